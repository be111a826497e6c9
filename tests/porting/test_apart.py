"""What belongs to one layer and stands in several: statistics and scale, biases beside their layers, rows of a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sides import found, pairing, signature, wanted, worked_out

from ckptool.porting.forms.canonical import canonical
from ckptool.porting.matching.units import units_of
from ckptool.porting.port import port
from ckptool.porting.rivals.company import counted_alike
from ckptool.porting.words import alike, label, table, words_of

Shapes = dict[str, tuple[int, ...]]

RANDOM = np.random.default_rng(3)
Arrays = dict[str, np.ndarray[Any, Any]]


def values(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


# -- statistics in one layer, scale and shift in another

SIZES = {"stem": (4, 3), "mid": (6, 4), "top": (6, 6)}
TOGETHER = {
    key: shape
    for name, (n, c) in SIZES.items()
    for key, shape in {
        f"{name}.conv.weight": (n, c, 3, 3),
        f"{name}.norm.weight": (n,),
        f"{name}.norm.bias": (n,),
        f"{name}.norm.running_mean": (n,),
        f"{name}.norm.running_var": (n,),
    }.items()
}


def apart(statistics: str, factors: str) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Keys of a model that has the two apart, named by patterns, and which of them belongs to which of `TOGETHER`."""
    shapes: dict[str, tuple[int, ...]] = {}
    truth = {}
    for place, (name, (n, c)) in enumerate(SIZES.items()):
        shapes[f"conv_{name}.weight"] = (n, c, 3, 3)
        truth[f"{name}.conv.weight"] = f"conv_{name}.weight"
        for leaf in ("running_mean", "running_var", "weight", "bias"):
            pattern = statistics if leaf.startswith("running") else factors
            key = f"{pattern.format(name=name, one=3 * place + 1, two=3 * place + 2)}.{leaf}"
            shapes[key] = (n,)
            truth[f"{name}.norm.{leaf}"] = key
    return shapes, truth


@pytest.mark.parametrize(
    ("statistics", "factors"),
    [
        ("bn_{name}", "scale_{name}"),
        ("{name}_statistics", "{name}_affine"),
        ("{name}.whiten", "{name}.whiten.tune"),
        ("parts.{one}", "parts.{two}"),
    ],
)
def test_scale_and_shift_of_a_batch_norm_may_be_another_layer(statistics: str, factors: str) -> None:
    shapes, truth = apart(statistics, factors)
    mapping = port(signature(shapes), wanted(TOGETHER))
    assert pairing(mapping) == truth
    assert mapping.is_sure
    back = port(signature(TOGETHER), wanted(shapes))
    assert pairing(back) == {theirs: own for own, theirs in truth.items()}
    assert back.is_sure


def test_names_tell_which_factors_belong_to_which_statistics_where_they_come_in_another_order() -> None:
    shapes, truth = apart("bn_{name}", "scale_{name}")
    last = {key: shape for key, shape in shapes.items() if key.startswith("scale_")}
    mapping = port(
        signature({k: s for k, s in shapes.items() if k not in last} | dict(reversed(last.items()))), wanted(TOGETHER)
    )
    assert pairing(mapping) == truth


def test_statistics_that_both_sides_have_without_factors_stay_so() -> None:
    shapes, _ = apart("bn_{name}", "scale_{name}")
    renamed = {key.replace("bn_", "normal_").replace("scale_", "affine_"): shape for key, shape in shapes.items()}
    assert pairing(port(signature(shapes), wanted(renamed))) == dict(zip(renamed, shapes, strict=True))


# -- biases that stand beside the layers that they belong to


def test_a_parameter_named_as_the_shift_of_another_is_its_bias() -> None:
    source = {
        f"{part}_net.{leaf}": shape
        for part in ("a", "b")
        for leaf, shape in {"mix_weight": (8, 8), "mix_bias": (1, 8), "focus_weight": (8, 1)}.items()
    }
    target = {
        f"{part}.{leaf}": source[f"{part}_net.{own}"]
        for part in ("a", "b")
        for leaf, own in {"blend": "mix_weight", "blend_offset": "mix_bias", "goal": "focus_weight"}.items()
    }
    assert pairing(port(signature(source), wanted(target))) == dict(zip(target, source, strict=True))


@pytest.mark.parametrize(
    ("name", "group", "said"),
    [
        ("blocks.0.own_attention.query", "crossing", "self"),
        ("blocks.0.memory_attention.query", "crossing", "cross"),
        ("encoder.attn_layers.0.attention", "crossing", None),
        ("encoder.attn_layers.0.attention", "side", "encoder"),
        ("decoder.encoder_attn.0", "crossing", "cross"),
        ("first_state", "state", "hidden"),
        ("initial_cell", "state", "cell"),
    ],
)
def test_names_say_which_attention_and_which_state_it_is(name: str, group: str, said: str | None) -> None:
    assert label(table().group(group), words_of(tuple(name.split(".")))) == said


@pytest.mark.parametrize("first", [True, False])
def test_a_bias_called_after_a_layer_that_has_its_own_is_not_that_of_the_layer(first: bool) -> None:
    sums = {f"graph.{way}_bias": (6,) for way in ("incoming", "outgoing")}
    layers = {
        f"graph.{way}.{leaf}": shape
        for way in ("incoming", "outgoing")
        for leaf, shape in (("weight", (6, 6)), ("bias", (6,)))
    }
    target = {**sums, **layers} if first else {**layers, **sums}
    for unit in units_of(canonical(signature(target), wanted(target))[1]):
        assert {piece.entry.key.rpartition("_")[2] == "bias" for piece in unit.pieces.values()} != {True, False}


def test_a_bias_in_a_module_of_its_own_goes_to_the_layer_beside_it_whatever_dimensions_of_one_both_have() -> None:
    source: Arrays = {}
    target: dict[str, tuple[int, ...]] = {}
    for name, rows in (("first", 6), ("list.0", 6), ("list.1", 5)):
        source |= {
            f"{name}.act.bias": values(rows),
            f"{name}.kernel.weight": values(1, rows, 6, 3, 3),
            f"{name}.kernel.style.weight": values(6, 7),
            f"{name}.kernel.style.bias": values(6),
        }
        own = name.replace("list.0", "second").replace("list.1", "third")
        target |= {
            f"{own}.weight": (rows, 6, 3, 3),
            f"{own}.bias": (rows,),
            f"{own}.style.weight": (6, 7),
            f"{own}.style.bias": (6,),
        }
    made = worked_out(source, target, used=target)
    for own, name in (("first", "first"), ("second", "list.0"), ("third", "list.1")):
        np.testing.assert_array_equal(made[f"{own}.bias"].values, source[f"{name}.act.bias"])
        np.testing.assert_array_equal(made[f"{own}.weight"].values, source[f"{name}.kernel.weight"][0])
        np.testing.assert_array_equal(made[f"{own}.style.weight"].values, source[f"{name}.kernel.style.weight"])


def test_biases_in_a_list_called_b_are_those_of_the_layers_in_the_list_beside_it() -> None:
    source = {f"cross.w.{n}.weight": (1, 9) for n in range(3)} | {f"cross.b.{n}": (9,) for n in range(3)}
    target = {f"levels.{n}.{leaf}": shape for n in range(3) for leaf, shape in (("bias", (9,)), ("mix.weight", (1, 9)))}
    mapping = port(signature(source), wanted(target))
    for n in range(3):
        assert pairing(mapping)[f"levels.{n}.bias"] == f"cross.b.{n}"
        assert pairing(mapping)[f"levels.{n}.mix.weight"] == f"cross.w.{n}.weight"


@pytest.mark.parametrize("shape", [(5, 1), (5,)])
def test_a_bias_that_stands_alone_may_be_a_parameter_that_no_name_calls_a_bias(shape: tuple[int, ...]) -> None:
    source = {"policy.0.weight": (7, 6), "policy.0.bias": (7,), "policy.1.weight": (5, 7), "policy.1.bias": (5,)}
    source["spread._bias"] = shape
    target = {"mean.0.weight": (7, 6), "mean.0.bias": (7,), "mean.1.weight": (5, 7), "mean.1.bias": (5,)}
    mapping = port(signature(source), wanted(target | {"log_std": (1, 5)}))
    assert "spread._bias" in pairing(mapping)["log_std"]


# -- a list of layers in several tensors


def listed(depth: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for n in range(depth):
        found |= {f"layers.{n}.soft": (5, 3), f"layers.{n}.mix.weight": (8, 8), f"layers.{n}.norm.weight": (8,)}
    return found


def rows(*lengths: int, names: tuple[str, ...] = ("soft_tokens", "deep_soft_tokens", "last_soft_tokens")) -> Arrays:
    return {f"body.{names[i]}": values(n, 5, 3) for i, n in enumerate(lengths)} | {
        f"body.blocks.{n}.{leaf}": values(*shape)
        for n in range(sum(lengths))
        for leaf, shape in {"blend.weight": (8, 8), "ln.weight": (8,)}.items()
    }


@pytest.mark.parametrize("lengths", [(4,), (1, 3), (2, 3), (1, 1, 2)])
def test_a_tensor_of_each_layer_is_found_in_those_that_hold_several_layers(lengths: tuple[int, ...]) -> None:
    source = rows(*lengths)
    made = worked_out(source, listed(sum(lengths)))
    stacked = np.concatenate([value for key, value in source.items() if key.endswith("soft_tokens")])
    for n, expected in enumerate(stacked):
        np.testing.assert_array_equal(made[f"layers.{n}.soft"].values, expected)
        assert made[f"layers.{n}.soft"].status == ("mapped" if lengths in ((4,), (1, 3)) else "guessed")


@pytest.mark.parametrize(
    ("lengths", "names"), [((3, 1), ("deep_soft_tokens", "soft_tokens")), ((1, 3), ("a_soft_tokens", "b_soft_tokens"))]
)
def test_which_of_two_that_hold_the_layers_of_a_list_comes_first_is_a_guess_where_names_do_not_say_it(
    lengths: tuple[int, ...], names: tuple[str, ...]
) -> None:
    made = worked_out(rows(*lengths, names=names), listed(4))
    assert {made[f"layers.{n}.soft"].status for n in range(4)} == {"guessed"}


def test_layers_with_a_tensor_each_go_into_those_that_hold_several_layers() -> None:
    source: Arrays = {key: values(*shape) for key, shape in listed(4).items()}
    made = worked_out(source, {key: value.shape for key, value in rows(1, 3).items()})
    np.testing.assert_array_equal(made["body.soft_tokens"].values, source["layers.0.soft"][None])
    deep = np.stack([source[f"layers.{n}.soft"] for n in (1, 2, 3)])
    np.testing.assert_array_equal(made["body.deep_soft_tokens"].values, deep)


# -- what the source's model computes is no layer


def test_frequencies_that_the_source_kept_do_not_stand_between_its_last_layer_and_the_end() -> None:
    layers = {"words.weight": (11, 6), "a.weight": (6, 6), "b.weight": (9, 6), "b.bias": (9,), "out.weight": (11, 6)}
    source = {**layers, "out.bias": (11,), "position.inv_freq": (3,)}
    names = {"words.weight": "table.weight", "out.weight": "answer.weight", "out.bias": "answer.bias"}
    target = {names.get(key, f"body.{key}"): shape for key, shape in source.items() if "freq" not in key}
    mapping = port(signature(source), wanted(target, used=target))
    assert found(mapping, "answer.bias").expr is not None
    assert str(found(mapping, "answer.weight").expr) == "out.weight"


# -- lists that are counted from the other end


def test_parts_of_a_list_that_only_numbers_tell_apart_are_counted_as_those_that_sizes_tell_apart() -> None:
    def part(path: str, convs: int) -> dict[str, tuple[int, ...]]:
        return {f"{path}.convs.{i}.weight": (8, 4 if i == 0 else 8, 3, 3) for i in range(convs)} | {
            f"{path}.norms.{i}.weight": (8,) for i in range(convs)
        }

    depths = [4, 3, 1, 1]
    source: dict[str, tuple[int, ...]] = {}
    target: dict[str, tuple[int, ...]] = {}
    for n, depth in enumerate(depths):
        source |= part(f"stages.{n}", depth)
    for n, depth in reversed(list(enumerate(depths))):
        target |= part(f"level{5 - n}", depth)
    mapping = port(signature(source), wanted(target))
    for n in range(4):
        assert str(found(mapping, f"level{5 - n}.convs.0.weight").expr) == f"stages.{n}.convs.0.weight"
        assert str(found(mapping, f"level{5 - n}.norms.0.weight").expr) == f"stages.{n}.norms.0.weight"


def test_a_list_that_one_of_its_parts_shows_to_be_counted_from_the_other_end_is_so_as_a_guess() -> None:
    def part(path: str, rise: str, inputs: int, last: bool) -> dict[str, tuple[int, ...]]:
        found = {f"{path}.steps.{i}.conv.weight": (8, inputs if i == 0 else 8, 3, 3) for i in range(2)}
        return found if last else found | {f"{path}.{rise}.conv.weight": (8, 8, 3, 3)}

    source: dict[str, tuple[int, ...]] = {"first.weight": (8, 3, 1, 1)}
    target: dict[str, tuple[int, ...]] = {"begin.weight": (8, 3, 1, 1)}
    for n in range(3):
        source |= part(f"up.{n}", "rise", 16 if n == 0 else 8, last=n == 0)
        target |= part(f"blocks.{n}", "upsamplers.0", 16 if n == 2 else 8, last=n == 2)
    mapping = port(signature(source), wanted(target, used=target))
    for key in target:
        if key != "begin.weight":
            number, inner = key.removeprefix("blocks.").split(".", 1)
            own = f"up.{2 - int(number)}.{inner.replace('upsamplers.0', 'rise')}"
            assert str(found(mapping, key).expr) == own
            assert number == "2" or found(mapping, key).status == "guessed"


def test_means_most_likely_stand_before_spreads_where_one_layer_computes_both() -> None:
    source = {"encoder.weight": values(8, 5), "to_moments.weight": values(6, 8), "to_moments.bias": values(6)}
    target = {"body.weight": (8, 5), "to_mean.weight": (3, 8), "to_mean.bias": (3,)}
    made = worked_out(source, target | {"to_logvar.weight": (3, 8), "to_logvar.bias": (3,)})
    assert {key for key, one in made.items() if one.status == "guessed"} == target.keys() - {"body.weight"} | {
        "to_logvar.weight",
        "to_logvar.bias",
    }
    np.testing.assert_array_equal(made["to_logvar.weight"].values, source["to_moments.weight"][3:])


# -- words that say something else by what stands around them


def test_a_list_whose_name_is_a_letter_does_not_say_that_its_layers_give_values() -> None:
    def layer(path: str, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        return {f"{path}.{name}.weight": (8, 8) if at < 4 else (8,) for at, name in enumerate(names)}

    theirs = (
        "attention.query",
        "attention.key",
        "attention.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
    )
    source: dict[str, tuple[int, ...]] = {}
    target: dict[str, tuple[int, ...]] = {}
    for n in range(2):
        source |= layer(f"encoder.v_layer.{n}", theirs)
        target |= layer(f"image_blocks.{n}", ("q", "k", "v", "o", "norm"))
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))
    assert mapping.is_sure


def test_the_norm_of_a_feed_forward_part_is_the_third_where_there_are_three_also_inside_of_that_part() -> None:
    source: dict[str, tuple[int, ...]] = {}
    target: dict[str, tuple[int, ...]] = {}
    for n in range(2):
        for own, theirs, shape in (
            ("sampler.offsets", "cross_attn.offsets", (3, 8)),
            ("sampler_norm", "norm1", (8,)),
            ("mix", "self_attn.mix", (5, 8)),
            ("self_norm", "norm2", (8,)),
            ("ffn.one", "linear1", (16, 8)),
            ("ffn.two", "linear2", (8, 16)),
            ("ffn.norm", "norm3", (8,)),
        ):
            source[f"layers.{n}.{theirs}.weight"] = shape
            target[f"decoder.{n}.{own}.weight"] = shape
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))


@pytest.mark.parametrize(
    ("names", "third"),
    [
        (("ln_mix", "ln_look", "ln_ff"), True),
        (("norm_mix", "norm_look", "norm_mlp"), True),
        (("attention.shrink_norm", "norm_attention", "norm_ff"), False),
    ],
)
def test_the_norm_of_a_feed_forward_part_is_the_third_but_for_norms_inside_of_an_attention(
    names: tuple[str, ...], third: bool
) -> None:
    side = canonical(signature({f"blocks.0.{name}.weight": (6,) for name in names}), wanted({"fc.weight": (7, 5)}))[0]
    norm = next(p for p in side.pieces.values() if p.entry.key == f"blocks.0.{names[-1]}.weight")
    assert label(table().group("position"), norm.words) == ("third" if third else "second")


def test_a_norm_before_merging_is_no_output_of_attention() -> None:
    body = {
        f"layers.{n}.{leaf}": shape
        for n in range(2)
        for leaf, shape in {"mix.weight": (8, 8), "n.weight": (8,)}.items()
    }
    source = body | {"merger.ln_q.weight": (8,), "merger.mlp.weight": (16, 32)}
    target = {key.replace("layers", "blocks"): shape for key, shape in body.items()}
    target |= {"merge_norm.weight": (8,), "merge_in.weight": (16, 32)}
    mapping = port(signature(source), wanted(target, used=target))
    assert str(found(mapping, "merge_norm.weight").expr) == "merger.ln_q.weight"


def test_a_batch_norm_is_counted_with_the_convolution_of_its_number_and_a_layer_norm_with_none() -> None:
    shapes = {"part.conv1.weight": (8, 4, 3, 3), "part.conv2.weight": (8, 8, 3, 3), "part.fc1.weight": (8, 8)}
    shapes |= {f"part.bn{n}.{leaf}": (8,) for n in (1, 2) for leaf in ("weight", "running_mean", "running_var")}
    shapes |= {"part.norm1.weight": (8,)}
    side, _ = canonical(signature(shapes), wanted(shapes))
    units = {unit.path[-1]: unit for unit in units_of(side)}
    assert counted_alike(units["bn1"], units["conv1"])
    assert counted_alike(units["conv2"], units["bn2"])
    assert not counted_alike(units["bn1"], units["conv2"])
    assert not counted_alike(units["norm1"], units["fc1"])  # the first norm of a block is after its first attention


# -- names of layers that are none there


@pytest.mark.parametrize("spread", ["std", "deviation"])
def test_a_mean_without_a_variance_is_no_batch_norm(spread: str) -> None:
    source = {"normalizer.mean": (7,), f"normalizer.{spread}": (7,), "hidden.weight": (4, 7), "hidden.bias": (4,)}
    target = {"inputs_mean": (7,), f"inputs_{spread}": (7,), "fc.weight": (4, 7), "fc.bias": (4,)}
    assert pairing(port(signature(source), wanted(target))) == dict(zip(target, source, strict=True))


@pytest.mark.parametrize("leaf", ["var", "variance"])
def test_a_variance_without_a_mean_is_no_batch_norm(leaf: str) -> None:
    source = {f"deviation.{leaf}": (), "hidden.weight": (4, 7), "hidden.bias": (4,)}
    target = {"log_sharpness": (), "fc.weight": (4, 7), "fc.bias": (4,)}
    assert pairing(port(signature(source), wanted(target))) == dict(zip(target, source, strict=True))


def test_gamma_and_beta_of_a_block_are_two_parameters_where_it_holds_other_layers() -> None:
    source = {
        f"blocks.{n}.{key}": size
        for n in range(2)
        for key, size in {
            "mix.weight": (6, 6, 3, 3),
            "mix.bias": (6,),
            "beta": (1, 6, 1, 1),
            "grow.weight": (12, 6, 1, 1),
            "grow.bias": (12,),
            "gamma": (1, 6, 1, 1),
        }.items()
    }
    target = {
        key.replace("blocks", "stages").replace("beta", "mix_scale").replace("gamma", "grow_scale"): size
        for key, size in source.items()
    }
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))
    back = port(signature(target), wanted(source))
    assert pairing(back) == dict(zip(source, target, strict=True))


# -- copies


def test_what_the_model_holds_in_another_form_as_often_as_the_file_is_no_copy() -> None:
    leaves = {f"{n}.{leaf}": size for n in range(2) for leaf, size in {"weight": (4, 6), "bias": (4,)}.items()}
    source = {f"{name}_layers.{leaf}": size for name in ("rise", "fall") for leaf, size in leaves.items()}
    target = {"rise.weight": (2, 4, 6), "rise.bias": (2, 4), "fall.weight": (2, 4, 6), "fall.bias": (2, 4)}
    assert all(entry.expr is not None for entry in port(signature(source), wanted(target)).entries)
    once = port(signature(source), wanted({"rows.weight": (2, 4, 6), "rows.bias": (2, 4)}))
    assert found(once, "rows.weight").status == "guessed"


def test_a_bias_of_one_value_is_that_of_the_output_that_is_called_so_whatever_other_bias_stands_apart() -> None:
    source = {"lm_output_learned_bias": (1,), "tokens.weight": (1, 8), "far.weight": (1, 4), "embed_out.weight": (1, 8)}
    target = {"tokens": (1, 8), "far_bias": (1, 4), "out.weight": (1, 8), "out.bias": (1,)}
    entry = found(port(signature(source), wanted(target)), "out.bias")
    assert str(entry.expr) == "lm_output_learned_bias"


def test_a_bias_of_one_value_stays_a_parameter_where_the_model_has_no_such_layer_with_a_bias() -> None:
    source = {"first.weight": (6, 5), "out.bias": (1,), "deep.weight": (1, 6)}
    target = {"lift.weight": (6, 5), "offset": (1,), "last.weight": (1, 6)}
    assert str(found(port(signature(source), wanted(target)), "offset").expr) == "out.bias"


# -- modules side by side, each a layer and its norm, that the other side has in one


def _csp(entry: dict[str, int], *, stages: int = 2) -> Shapes:
    """Stages with an entry of some modules of so many channels, blocks, and a layer over all."""
    found: Shapes = {}
    for stage in range(stages):
        width = 8 << stage
        for name, times in entry.items():
            found |= _with_norm(f"stage{stage}.1.{name}", width * times, 2 * width)
        found |= _with_norm(f"stage{stage}.1.final_conv", 2 * width, 2 * width)
        found |= _with_norm(f"stage{stage}.1.blocks.0.conv1", width, width)
        found |= _with_norm(f"stage{stage + 1}.0", 4 * width, 2 * width)
    return found


def _with_norm(name: str, given: int, taken: int) -> Shapes:
    norm = {f"{name}.bn.{leaf}": (given,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    return {f"{name}.conv.weight": (given, taken, 1, 1)} | norm


@pytest.mark.parametrize("fused_source", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_modules_whose_names_one_module_of_the_other_side_spells_are_joined_in_its_order(
    fused_source: bool, swapped: bool
) -> None:
    names = ("main_conv", "short_conv")
    whole = "short_main_conv" if swapped else "main_short_conv"
    apart, together = _csp(dict.fromkeys(names, 1)), _csp({whole: 2})
    source, target = (together, apart) if fused_source else (apart, together)
    made = worked_out({key: np.random.default_rng(0).normal(size=size) for key, size in source.items()}, target)
    assert {one.status for one in made.values()} == {"mapped"}
    values = {key: np.random.default_rng(0).normal(size=size) for key, size in source.items()}
    order = names[::-1] if swapped else names
    for stage in range(2):
        for leaf in ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"):
            parts = {name: f"stage{stage}.1.{name}.{leaf}" for name in names}
            one = f"stage{stage}.1.{whole}.{leaf}"
            if fused_source:
                halves = dict(zip(order, np.split(values[one], 2), strict=True))
                assert all(np.array_equal(made[parts[name]].values, halves[name]) for name in names)
            else:
                assert np.array_equal(made[one].values, np.concatenate([values[parts[name]] for name in order]))


def test_a_norm_is_a_guess_that_stands_in_a_module_of_another_name_while_all_else_keeps_its_own() -> None:
    """Both stages have an entry in two modules, and the model has it in one of a name that says nothing of it."""
    source, target = _csp({"left_conv": 1, "right_conv": 1}), _csp({"wide_right_conv": 2})
    mapping = port(signature(source), wanted(target, used=target))
    crossing = [e for e in mapping.having("mapped") if e.target.split(".")[0] != e.sources[0].split(".")[0]]
    assert not crossing


def test_tables_of_one_column_are_tables_on_both_sides_whatever_they_are_called() -> None:
    source = {"user_factors": (40, 12), "item_factors": (56, 12), "user_biases": (40, 1), "item_biases": (56, 1)}
    target = {"P": (40, 12), "Q": (56, 12), "b_u": (40, 1), "b_i": (56, 1)}
    mapping = port(
        *(side({f"{k}.weight": s for k, s in d.items()}) for side, d in ((signature, source), (wanted, target)))
    )
    assert list(pairing(mapping).values()) == [f"{name}.weight" for name in source]
    assert not mapping.having("guessed")


def test_a_module_that_holds_something_else_spells_nothing() -> None:
    source = _with_norm("c", 8, 16) | _with_norm("f", 8, 16) | {"fc.0.weight": (4, 16)}
    target = _with_norm("both", 16, 16) | {"fc.0.weight": (4, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    assert found(mapping, "both.conv.weight").status != "mapped"
    target = _with_norm("c_f", 16, 16) | {"fc.0.weight": (4, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    assert str(found(mapping, "c_f.conv.weight").expr) == "cat(0, c.conv.weight, f.conv.weight)"


def test_two_of_such_modules_beside_each_other_are_joined_each_of_its_own() -> None:
    names = ("left_up", "left_down", "right_up", "right_down")
    source = {key: size for name in names for key, size in _with_norm(name, 8, 16).items()}
    target = _with_norm("left_up_down", 16, 16) | _with_norm("right_up_down", 16, 16)
    mapping = port(signature(source), wanted(target, used=target))
    for side in ("left", "right"):
        parts = f"{side}_up.conv.weight, {side}_down.conv.weight"
        assert str(found(mapping, f"{side}_up_down.conv.weight").expr) == f"cat(0, {parts})"


def test_lists_of_matrices_and_of_their_biases_have_their_layers_whatever_letter_says_so() -> None:
    sizes = ((6, 9), (5, 6))
    source: Shapes = {}
    target: Shapes = {}
    for way, layers in (("encode", sizes), ("decode", tuple((b, a) for a, b in reversed(sizes)))):
        source |= {f"{way}_w.{n}": size for n, size in enumerate(layers)} | {
            f"{way}_b.{n}": size[:1] for n, size in enumerate(layers)
        }
        target |= {f"{way[:3]}_weights.{n}": size for n, size in enumerate(layers)} | {
            f"{way[:3]}_biases.{n}": size[:1] for n, size in enumerate(layers)
        }
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))
    assert not mapping.having("guessed")


def test_a_stack_called_v_is_no_projection_of_an_attention() -> None:
    tables = {f"ffm.embeddings.{n}.weight": (45, 8) for n in range(5)}
    made = port(signature({**tables, "linear.weight": (45, 1)}), wanted({"v": (5, 45, 8), "w": (45,)}))
    assert pairing(made)["v"] == f"stack({', '.join(tables)})"
    assert found(made, "v").status == "mapped"


def test_a_norm_beside_what_it_wraps_comes_first_although_code_registers_it_later() -> None:
    source: Shapes = {"embed.weight": (9, 6)}
    target: Shapes = {"lookup.weight": (9, 6)}
    names: dict[str, str] = {}
    for n in range(2):
        around = f"layers.{n}.fn"
        parts = {
            "norm": (f"{around}.norm", (6,)),
            "expand": (f"{around}.fn.proj_in", (12, 6)),
            "gate_norm": (f"{around}.fn.unit.norm", (6,)),
            "across": (f"{around}.fn.unit", (6, 6)),
            "contract": (f"{around}.fn.proj_out", (6, 6)),
        }
        for own, (theirs, shape) in parts.items():
            names[f"blocks.{n}.{own}"] = theirs
            target |= {f"blocks.{n}.{own}.weight": shape, f"blocks.{n}.{own}.bias": shape[:1]}
        for own in ("expand", "across", "gate_norm", "contract", "norm"):
            theirs, shape = parts[own]
            source |= {f"{theirs}.weight": shape, f"{theirs}.bias": shape[:1]}
    made = port(signature(source), wanted(target, used=target))
    assert {e.status for e in made.entries} == {"mapped"}
    for entry in made.entries[1:]:
        module, _, leaf = entry.target.rpartition(".")
        assert str(entry.expr) == f"{names[module]}.{leaf}"


def test_which_of_two_words_is_asked_for_first_does_not_matter() -> None:
    words = ["patch", "pitch", "conv", "cnvs", "block", "blocks", "blcks", "attn", "attention", "norm", "nrmal", "key"]
    assert alike("blcks", "block")
    assert [(a, b) for a in words for b in words if alike(a, b) != alike(b, a)] == []
