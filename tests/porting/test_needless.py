"""Evidence that makes a pair certain, each beside what looks like it and is not: that stays a guess."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow
from ckptool.porting.port import port
from ckptool.porting.words import labels, words_of

Shapes = dict[str, tuple[int, ...]]


def status(mapping: Any, key: str) -> str:
    return str(found(mapping, key).status)


# -- a shape that nothing else has


def flowing(shapes: Shapes, *, way: list[str]) -> Any:
    """A model that uses its weights one after the other, in the order of WAY."""
    model = wanted(shapes, used=way)
    place = {key: n for n, key in enumerate(way)}
    entries = {
        key: replace(e, facts=Facts(Flow(place[key], (1 << place[key]) - 1))) for key, e in model.entries.items()
    }
    return replace(model, entries=entries)


BODY: Shapes = {"body.0.weight": (16, 16), "body.0.bias": (16,), "body.1.weight": (12, 16), "body.1.bias": (12,)}


def within(*, first: bool) -> tuple[Shapes, Shapes]:
    """A layer of a size of its own, before or after the others, under two names; the source has a thing of its own."""
    own, theirs = {"look.weight": (16, 9)}, {"w_p.weight": (16, 9)}
    table: Shapes = {"table": (1, 7, 16)}
    theirs_body = {key.replace("body", "steps"): size for key, size in BODY.items()}
    return (own | BODY, theirs | table | theirs_body) if first else (BODY | own, theirs_body | table | theirs)


def test_what_only_its_shape_tells_is_certain_where_it_is_on_the_way_to_the_rest_on_both_sides() -> None:
    target, source = within(first=True)
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert pairing(mapping)["look.weight"] == "w_p.weight"
    assert status(mapping, "look.weight") == "mapped"


def test_what_only_its_shape_tells_is_a_guess_where_one_side_has_it_at_its_end() -> None:
    target, source = within(first=True)
    _, at_the_end = within(first=False)
    mapping = port(signature(at_the_end), flowing(target, way=list(target)))
    assert status(mapping, "look.weight") != "mapped"
    mapping = port(signature(source), flowing(target, way=[*BODY, "look.weight"]))
    assert status(mapping, "look.weight") != "mapped"


def test_what_only_its_shape_tells_is_a_guess_where_the_model_wants_more_than_a_new_head() -> None:
    target, source = within(first=True)
    target["extra.weight"] = (5, 12)
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert status(mapping, "look.weight") == "mapped"
    mapping = port(
        signature(source), flowing(target, way=["extra.weight", *(k for k in target if k != "extra.weight")])
    )
    assert status(mapping, "look.weight") != "mapped"


def test_a_norm_behind_a_certain_layer_is_certain_though_the_model_has_a_new_head() -> None:
    statistics = ("weight", "bias", "running_mean", "running_var")

    def layers(*names: str) -> Shapes:
        sizes = [(12, 8), (12, 12), (9, 12)]
        convs = {f"{name}.conv.weight": size for name, size in zip(names, sizes, strict=True)}
        return convs | {f"{names[-1]}.norm.{leaf}": (9,) for leaf in statistics}

    source = layers("a.0", "a.1", "a.2") | {"fc.weight": (5, 9), "fc.bias": (5,)}
    target = layers("first", "second", "third") | {"head.weight": (3, 9), "head.bias": (3,)}
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert pairing(mapping)["third.norm.running_mean"] == "a.2.norm.running_mean"
    assert status(mapping, "third.norm.running_mean") == status(mapping, "third.conv.weight") == "mapped"


# -- one tensor in place of several


@pytest.mark.parametrize(
    ("parts", "whole", "order"),
    [
        (("conv_z", "conv_r"), "conv_zr", (0, 1)),
        (("convz1", "convr1"), "convzr1", (0, 1)),
        (("convz1", "convr1"), "convrz1", (1, 0)),
        (("scale_proj", "shift_proj"), "shift_scale_proj", (1, 0)),
        (("conv1a", "conv1b"), "whole", (0, 1)),
    ],
)
def test_parts_stand_in_the_order_in_which_the_name_of_the_whole_spells_them_or_letters_count_them(
    parts: tuple[str, str], whole: str, order: tuple[int, int]
) -> None:
    apart: Shapes = {f"cell.{name}.weight": (8, 6, 3, 3) for name in parts} | {"cell.last.weight": (5, 8, 3, 3)}
    together: Shapes = {f"cell.{whole}.weight": (16, 6, 3, 3), "cell.last.weight": (5, 8, 3, 3)}
    one = port(signature(apart), wanted(together))
    joined = ", ".join(f"cell.{parts[i]}.weight" for i in order)
    assert pairing(one)[f"cell.{whole}.weight"] == f"cat(0, {joined})"
    assert status(one, f"cell.{whole}.weight") == "mapped"
    other = port(signature(together), wanted(apart))
    for place, i in enumerate(order):
        key = f"cell.{parts[i]}.weight"
        assert pairing(other)[key] == f"slice(cell.{whole}.weight, 0, {8 * place}, {8 * place + 8})"
        assert status(other, key) == "mapped"


@pytest.mark.parametrize(
    ("parts", "whole"),
    [(("convz", "convr"), "conv_both"), (("conv_b", "conv_a"), "whole"), (("conv1b", "conv1a"), "whole")],
)
def test_parts_whose_order_no_name_spells_are_guesses(parts: tuple[str, str], whole: str) -> None:
    apart: Shapes = {f"cell.{name}.weight": (8, 6, 3, 3) for name in parts} | {"cell.last.weight": (5, 8, 3, 3)}
    together: Shapes = {f"cell.{whole}.weight": (16, 6, 3, 3), "cell.last.weight": (5, 8, 3, 3)}
    assert status(port(signature(apart), wanted(together)), f"cell.{whole}.weight") == "guessed"
    mapping = port(signature(together), wanted(apart))
    assert {status(mapping, f"cell.{name}.weight") for name in parts} == {"guessed"}


# -- a linear layer that is a convolution


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("size", [(2, 2), (2, 2, 2)])
def test_a_linear_layer_over_all_of_its_feature_maps_is_a_convolution_whose_windows_overlap(
    size: tuple[int, ...], overlaps: bool
) -> None:
    body: Shapes = {"conv.weight": (6, 3, *(3 for _ in size)), "conv.bias": (6,)}
    target: Shapes = {**body, "fc.weight": (10, 6, *size), "fc.bias": (10,)}
    source: Shapes = {**body, "fc.weight": (10, 6 * 2 ** len(size)), "fc.bias": (10,)}
    model = wanted(target, used=target)
    facts = Facts(overlaps=overlaps)
    entries = {key: replace(entry, facts=facts) for key, entry in model.entries.items()}
    mapping = port(signature(source), replace(model, entries=entries))
    assert status(mapping, "fc.weight") == ("mapped" if overlaps else "guessed")


def test_in_which_order_a_linear_layer_takes_what_a_convolution_takes_is_a_guess_elsewhere() -> None:
    target: Shapes = {"patch.weight": (10, 3, 2, 2, 2), "head.weight": (4, 10)}
    mapping = port(signature({**target, "patch.weight": (10, 24)}), wanted(target, used=target))
    assert status(mapping, "patch.weight") == "guessed"
    rivals = [str(rival) for rival in found(mapping, "patch.weight").rivals]
    assert rivals == ["permute(reshape(patch.weight, 10, 2, 2, 2, 3), 0, 4, 1, 2, 3)"]
    keras: Shapes = {"conv/kernel": (3, 3, 3, 6), "conv/bias": (6,), "fc/kernel": (24, 10), "fc/bias": (10,)}
    target = {"conv.weight": (6, 3, 3, 3), "conv.bias": (6,), "fc.weight": (10, 6, 2, 2), "fc.bias": (10,)}
    mapping = port(signature(keras), wanted(target, used=target))
    assert status(mapping, "fc.weight") != "mapped"


@pytest.mark.parametrize(("how", "expected"), [("conv_transpose1d", "mapped"), ("conv1d", "guessed")])
def test_a_matrix_that_makes_frames_is_the_kernel_of_a_transposed_convolution(how: str, expected: str) -> None:
    body: Shapes = {"encoder.weight": (16, 1, 8)}
    model = wanted({**body, "decoder.filters": (16, 1, 8)}, used=[*body, "decoder.filters"])
    entries = dict(model.entries)
    entries["decoder.filters"] = replace(entries["decoder.filters"], how=how)
    mapping = port(signature({**body, "decoder.basis.weight": (8, 16)}), replace(model, entries=entries))
    assert "transpose(decoder.basis.weight)" in pairing(mapping)["decoder.filters"]
    assert status(mapping, "decoder.filters") == expected


# -- another name where all else has the same


def test_another_name_in_the_middle_of_equal_ones_is_certain_where_both_sides_hold_nothing_else() -> None:
    body: Shapes = {f"stages.{n}.weight": (6, 6, 3, 3) for n in range(1, 9)}
    target: Shapes = {"stem.weight": (6, 3, 7, 7), **body, "norm.weight": (12,), "out.weight": (5, 12)}
    source = {{"stem.weight": "embedder.convolution.weight"}.get(key, key): size for key, size in target.items()}
    assert status(port(signature(source), flowing(target, way=list(target))), "stem.weight") == "mapped"
    more = {**source, "other.weight": (3, 3, 9)}
    assert status(port(signature(more), flowing(target, way=list(target))), "stem.weight") == "guessed"


# -- what was exchanged


def inverted(conv: str, norm: str, start: int) -> Shapes:
    """Blocks of which the first has one layer fewer, with a norm after each; START is what the others count from."""
    found: Shapes = {}
    for n in range(4):
        layers = {"depth": (16, 1, 3, 3), "project": (8, 16, 1, 1)}
        if n:
            layers = {"expand": (16, 8, 1, 1), **layers}
        for i, (name, size) in enumerate(layers.items(), start if n else 1):
            found[f"blocks.{n}.{conv}{name}.weight"] = size
            found |= {f"blocks.{n}.{norm}{i}.{leaf}": size[:1] for leaf in ("weight", "bias")}
    return found


def test_norms_that_one_side_counts_from_nought_are_certain_also_where_equal_numbers_spoke_for_others() -> None:
    target, source = inverted("conv_", "bn", 1), inverted("_", "_bn", 0)
    mapping = port(signature(source), wanted(target, used=target))
    for n in range(1, 4):
        for i in (1, 2, 3):
            assert pairing(mapping)[f"blocks.{n}.bn{i}.weight"] == f"blocks.{n}._bn{i - 1}.weight"
            assert status(mapping, f"blocks.{n}.bn{i}.weight") == "mapped"


def by_kind(first: str, second: str) -> Shapes:
    """A list for each kind of layer: `NAME.0`, `NAME.1` and so on."""
    return {f"{name}.{n}.weight": (8,) for name in (first, second) for n in range(3)} | {
        f"mix.{n}.weight": (8, 8) for n in range(3)
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"), [("ln_before", "ln_after", "mapped"), ("ln_after", "ln_before", "guessed")]
)
def test_layers_of_a_block_in_lists_by_kind_are_told_by_their_names_and_places(
    before: str, after: str, expected: str
) -> None:
    target = by_kind("layer_norm1", "layer_norm2")
    source = {
        key: size
        for n in range(3)
        for key, size in {
            f"layers.{n}.{before}.weight": (8,),
            f"layers.{n}.mix.weight": (8, 8),
            f"layers.{n}.{after}.weight": (8,),
        }.items()
    }
    more: Shapes = {f"stem.{n}.weight": (n + 20, 3) for n in range(12)}
    mapping = port(signature(more | source), wanted(more | target))
    found = {status(mapping, f"layer_norm{i}.{n}.weight") for i in (1, 2) for n in range(3)}
    assert expected in found
    if expected == "mapped":
        assert found == {"mapped"}
        assert pairing(mapping)["layer_norm1.1.weight"] == "layers.1.ln_before.weight"


def test_layers_that_changed_places_across_blocks_are_never_taken_in_silence() -> None:
    target: Shapes = {}
    truth = {}
    for n in range(3):
        for name, size in {"conv1": (8, 8, 3, 3), "bn1": (8,), "conv2": (8, 8, 3, 3), "bn2": (8,)}.items():
            target[f"layer1.{n}.{name}.weight"] = size
            truth[f"layer1.{n}.{name}.weight"] = f"layer1_{name}s.{n}.weight"
    source: Shapes = {truth[key]: target[key] for key in sorted(target, key=lambda key: key.split(".")[2])}
    mapping = port(signature(source), wanted(target, used=target))
    for entry in mapping.entries:
        assert entry.status != "mapped" or str(entry.expr) == truth[entry.target]


@pytest.mark.parametrize(("other", "expected"), [("temporal", "mapped"), ("second", "guessed")])
def test_equal_parts_that_names_tell_apart_are_certain_in_whatever_order_they_come(other: str, expected: str) -> None:
    def part(path: str) -> Shapes:
        return {f"{path}.qkv.weight": (24, 8), f"{path}.qkv.bias": (24,), f"{path}.out.weight": (8, 8)}

    source: Shapes = {}
    target: Shapes = {}
    for n in range(2):
        source |= {f"blocks.{n}.mlp.weight": (32, 8)} | part(f"blocks.{n}.attn") | part(f"blocks.{n}.{other}_attn")
        target |= part(f"layer.{n}.temporal_attention.attention") | part(f"layer.{n}.attention.attention")
        target |= {f"layer.{n}.mlp.weight": (32, 8)}
    mapping = port(signature(source), wanted(target))
    for n in range(2):
        assert status(mapping, f"layer.{n}.attention.attention.qkv.weight") == expected
        if expected == "mapped":
            assert pairing(mapping)[f"layer.{n}.attention.attention.qkv.weight"] == f"blocks.{n}.attn.qkv.weight"


@pytest.mark.parametrize(("names", "expected"), [(("expand", "depth"), "mapped"), (("one_more", "another"), "guessed")])
def test_a_norm_that_is_called_after_a_layer_is_the_one_that_is_used_next_to_it(
    names: tuple[str, str], expected: str
) -> None:
    sizes: Shapes = {"expand": (16, 8, 1, 1), "depth": (16, 1, 3, 3), "project": (8, 16, 1, 1)}
    source: Shapes = {}
    target: Shapes = {}
    for n in range(3):
        called = dict(zip(sizes, (*names, "project"), strict=True))
        source |= {f"stages.{n}.bn_{called[name]}.weight": sizes[name][:1] for name in ("depth", "expand", "project")}
        source |= {f"stages.{n}.{name}.weight": size for name, size in sizes.items()}
        for i, size in enumerate(sizes.values()):
            target |= {f"features.{n}.conv.{3 * i}.weight": size, f"features.{n}.conv.{3 * i + 1}.weight": size[:1]}
    mapping = port(signature(source), flowing(target, way=list(target)))
    for n in range(3):
        assert status(mapping, f"features.{n}.conv.1.weight") == expected
        if expected == "mapped":
            assert pairing(mapping)[f"features.{n}.conv.1.weight"] == f"stages.{n}.bn_expand.weight"


# -- a name that differs in what is around it, or says the same in another word


NET: Shapes = {f"stages.{n}.weight": (6, 6, 3, 3) for n in range(40)}


@pytest.mark.parametrize(
    ("own", "theirs", "expected"),
    [
        # a module of two names, of which more is known
        (
            {"time.emb.weight": (9, 6), "time.lin.weight": (5, 9)},
            {"ada.emb.weight": (9, 6), "ada.lin.weight": (5, 9)},
            1,
        ),
        (
            {"time.emb.weight": (9, 6), "other.lin.weight": (5, 9)},
            {"ada.emb.weight": (9, 6), "ada.out.weight": (5, 9)},
            0,
        ),
        # two words of the table for one role
        ({"offset": (5,)}, {"b": (5,)}, 1),
        ({"odd": (5,)}, {"b": (5,)}, 0),
    ],
)
def test_a_stranger_among_namesakes_is_certain_where_its_names_say_the_same(
    own: Shapes, theirs: Shapes, expected: int
) -> None:
    mapping = port(signature({**NET, **theirs}, ordered=False), wanted({**NET, **own}, used=[*NET, *own]))
    assert (status(mapping, list(own)[-1]) == "mapped") == bool(expected)


def test_layers_of_a_head_do_not_vouch_for_each_other() -> None:
    own: Shapes = {"head_bn1": (6,), "head_fc1": (9, 6), "head_bn2": (9,), "head_fc2": (5, 9)}
    theirs = {f"1.{n}.weight": size for n, size in zip((2, 4, 6, 8), own.values(), strict=True)}
    target = {**NET, **{f"{key}.weight": size for key, size in own.items()}}
    mapping = port(signature({**NET, **theirs}), wanted(target, used=target))
    assert all(status(mapping, f"{key}.weight") != "mapped" for key in own)


# -- layers that the file does not have


LANGUAGE: Shapes = {"body.words.weight": (30, 8), "body.layers.0.weight": (8, 8), "body.norm.weight": (8,)}


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (LANGUAGE, "mapped"),
        ({key.removeprefix("body."): size for key, size in LANGUAGE.items()}, "guessed"),
        ({**LANGUAGE, "score.weight": (2, 8)}, "guessed"),
        ({key.replace("body.", "encoder."): size for key, size in LANGUAGE.items()}, "guessed"),
    ],
    ids=["all of it below the same name", "the body alone", "another head", "below another name"],
)
def test_an_output_layer_that_is_missing_beside_its_body_was_the_table_of_words(theirs: Shapes, expected: str) -> None:
    target = {**LANGUAGE, "lm_head.weight": (30, 8)}
    mapping = port(signature(theirs), _looking_up(target))
    assert pairing(mapping)["lm_head.weight"] == next(key for key in theirs if "words" in key)
    assert status(mapping, "lm_head.weight") == expected


def _looking_up(shapes: Shapes) -> Any:
    model = wanted(shapes, used=shapes)
    hows = {key: "embedding" if "words" in key or "look" in key else "linear" for key in shapes}
    return replace(model, entries={key: replace(e, how=hows[key]) for key, e in model.entries.items()})


@pytest.mark.parametrize(("look", "expected"), [("look_up", "mapped"), ("positions", "guessed")])
def test_a_table_of_words_is_that_in_which_the_model_looks_rows_up(look: str, expected: str) -> None:
    """The other of its size is the output layer, which the source has tied to it."""
    own: Shapes = {f"{look}.weight": (30, 8), "body.0.weight": (8, 8), "lm_head.weight": (30, 8)}
    source = signature({"shared.weight": (30, 8), "layers.0.weight": (8, 8), "lm_head.weight": (30, 8)})
    tied = replace(source.entries["lm_head.weight"], tied="shared.weight")
    source = replace(source, entries={**source.entries, "lm_head.weight": tied})
    mapping = port(source, _looking_up(own))
    entry = found(mapping, f"{look}.weight")
    assert (entry.status == "mapped" and str(entry.expr) == "shared.weight") == (expected == "mapped")


# -- names with numbers, norms inside of layers, buffers


@pytest.mark.parametrize(("numbers", "expected"), [("01", "mapped"), ("ab", "guessed")])
def test_numbers_that_belong_to_a_name_are_not_counted(numbers: str, expected: str) -> None:
    target: Shapes = {"ff.gate.weight": (9, 6), "ff.up.weight": (9, 6), "ff.down.weight": (6, 9)}
    source: Shapes = {f"block.wi_{n}.weight": (9, 6) for n in numbers} | {"block.wo.weight": (6, 9)}
    mapping = port(signature(source), wanted(target, used=target))
    assert status(mapping, "ff.gate.weight") == expected
    if expected == "mapped":
        assert pairing(mapping)["ff.gate.weight"] == "block.wi_0.weight"


@pytest.mark.parametrize("layers", [("linear_qkv", "linear_fc1"), ("one", "two")])
def test_a_norm_that_a_layer_holds_is_the_one_before_it(layers: tuple[str, str]) -> None:
    source: Shapes = {}
    target: Shapes = {}
    for n in range(2):
        own, own_two = f"blocks.{n}.attention", f"blocks.{n}.mlp"
        source |= {f"{own}.proj.weight": (8, 8), f"{own}.{layers[0]}.layer_norm_weight": (8,)}
        source |= {f"{own}.{layers[0]}.weight": (24, 8), f"{own_two}.{layers[1]}.layer_norm_weight": (8,)}
        source |= {f"{own_two}.{layers[1]}.weight": (20, 8), f"{own_two}.linear_fc2.weight": (8, 20)}
        target |= {f"layers.{n}.input_layernorm.weight": (8,)}
        target |= {f"layers.{n}.attn.{part}_proj.weight": (8, 8) for part in "qkvo"}
        target |= {f"layers.{n}.post_attention_layernorm.weight": (8,)}
        target |= {f"layers.{n}.mlp.up_proj.weight": (20, 8), f"layers.{n}.mlp.down_proj.weight": (8, 20)}
    mapping = port(signature(source), wanted(target))
    assert status(mapping, "layers.1.input_layernorm.weight") == "mapped"
    held = f"blocks.1.mlp.{layers[1]}.layer_norm_weight"
    assert pairing(mapping)["layers.1.post_attention_layernorm.weight"] == held


@pytest.mark.parametrize(("equal", "expected"), [(True, "mapped"), (False, "guessed")])
def test_a_buffer_of_which_the_file_has_several_is_any_of_them_if_they_are_equal(equal: bool, expected: str) -> None:
    source = {f"layers.{n}.self_attn.rot_emb.inv_freq": np.arange(6.0) + n * (not equal) for n in range(2)}
    source |= {"words.weight": np.zeros((9, 6)), **{f"layers.{n}.fc.weight": np.full((6, 4), n) for n in range(2)}}
    body = {"words.weight": (9, 6), **{f"blocks.{n}.fc.weight": (6, 4) for n in range(2)}}
    wanted_so = wanted({**body, "rotary_embeddings.inv_freq": (6,)})
    entries = dict(wanted_so.entries)
    entries["rotary_embeddings.inv_freq"] = replace(entries["rotary_embeddings.inv_freq"], parameter=False)
    mapping = port(
        signature({key: value.shape for key, value in source.items()}),
        replace(wanted_so, entries=entries),
        values=source.get,
    )
    assert status(mapping, "rotary_embeddings.inv_freq") == expected


def test_a_norm_stands_between_blocks_that_code_begins_and_ends_with_other_layers() -> None:
    """One code registers a norm before the layer it is for, the other behind it."""
    norm = {"norm.weight": (8,), "norm.bias": (8,)}
    fn = {"fn.0.weight": (6, 8), "fn.3.weight": (8, 6)}
    source: Shapes = {"1.weight": (8, 30)}
    target: Shapes = {"stem.weight": (8, 3, 5, 2)}
    for n in range(3):
        source |= {f"{n + 2}.{key}": size for key, size in (fn | norm).items()}
        target |= {f"blocks.{n}.{key}": size for key, size in (norm | {"mlp.fc1.weight": (6, 8)}).items()}
        target[f"blocks.{n}.mlp.fc2.weight"] = (8, 6)
    source |= {"5.weight": (8,), "5.bias": (8,), "7.weight": (10, 8)}
    target |= {"norm.weight": (8,), "norm.bias": (8,), "head.weight": (10, 8)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["norm.weight"] == "5.weight"
    assert (status(mapping, "norm.weight"), status(mapping, "stem.weight")) == ("mapped", "guessed")


def ranking(tables: str, bottom: str, top: str, last: str) -> Shapes:
    made: Shapes = {f"{tables}.{n}.weight": (size, 8) for n, size in enumerate((30, 50, 50, 20))}
    for name, sizes in ((bottom, (13, 16, 16, 8)), (top, (18, 16, 16))):
        for n, (inputs, outputs) in enumerate(pairwise(sizes)):
            made |= {f"{name}.{2 * n}.weight": (outputs, inputs), f"{name}.{2 * n}.bias": (outputs,)}
    return made | {f"{last}.weight": (1, 16), f"{last}.bias": (1,)}


def test_where_several_modules_were_renamed_the_next_layer_of_a_row_may_be_too() -> None:
    source, target = ranking("emb_l", "bot_l", "top_l", "top_l.4"), ranking("tables", "bottom", "top", "click")
    mapping = port(signature(source), wanted(target, used=target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_a_new_head_is_none_of_another_name_though_other_modules_were_renamed() -> None:
    def net(neck: str, head: str) -> Shapes:
        made: Shapes = {}
        for n in range(8):
            made |= {f"body.{n}.fc1.weight": (64, 16), f"body.{n}.fc1.bias": (64,), f"body.{n}.fc2.weight": (16, 64)}
        for part, width in (("a", 24), ("b", 40)):
            made |= {f"{neck}{part}.lin1.weight": (width, 16), f"{neck}{part}.lin2.weight": (width + 1, width)}
        return made | {f"{head}.weight": (7, 41), f"{head}.bias": (7,)}

    source, target = net("neck_", "contrastive"), net("proj_", "regressor")
    mapping = port(signature(source), wanted(target, used=target))
    assert status(mapping, "regressor.weight") == "guessed"


# -- the last layer under another name


@pytest.mark.parametrize(("new", "certain"), [("classifier", True), ("codebook", False)])
def test_a_layer_called_linear_may_be_the_classifier_where_all_else_keeps_its_name(new: str, certain: bool) -> None:
    body: Shapes = {f"levels.{n}.weight": (9 + n, 8 + n) for n in range(6)}
    source = {f"tcn.{key}": size for key, size in body.items()} | {"linear.weight": (5, 14)}
    target = body | {f"{new}.weight": (5, 14)}
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert (status(mapping, f"{new}.weight") == "mapped") == certain


@pytest.mark.parametrize(
    ("left", "certain"), [({"encoding.pos_embedding": (1, 9, 16)}, True), ({"table": (1, 9, 16)}, False)]
)
def test_an_output_that_is_registered_first_is_certain_where_only_positions_are_left_over(
    left: Shapes, certain: bool
) -> None:
    source = {"last.weight": (7, 12), "last.bias": (7,)} | {f"s.{key}": size for key, size in BODY.items()} | left
    target = BODY | {"whole.weight": (7, 12), "whole.bias": (7,)}
    mapping = port(signature(source), flowing(target, way=list(target)))
    assert pairing(mapping)["whole.weight"] == "last.weight"
    assert (status(mapping, "whole.weight") == "mapped") == certain


def test_linear_is_no_output_layer_beside_one_that_is_called_so() -> None:
    source: Shapes = {"conv1.weight": (8, 3, 3, 3), "linear.weight": (8, 8), "output.weight": (8, 8)}
    target: Shapes = {"conv1.weight": (8, 3, 3, 3), "proj.weight": (8, 8), "fc.weight": (8, 8)}
    for ordered in (True, False):
        mapping = port(signature(source, ordered=ordered), wanted(target, used=target))
        assert pairing(mapping) == dict(zip(target, source, strict=True))
    odd = {"conv1.weight": (8, 3, 3, 3), "linear.weight": (8, 8)}
    assert status(port(signature(source), wanted(odd, used=odd)), "linear.weight") == "mapped"


@pytest.mark.parametrize("name", ["pos_table", "codebook", "segment"])
def test_a_table_at_the_start_is_no_output_layer_where_positions_are_left_over(name: str) -> None:
    source = {f"{name}.weight": (7, 12)} | {f"s.{key}": size for key, size in BODY.items()}
    target = BODY | {"whole.weight": (7, 12)}
    mapping = port(signature(source | {"enc.pos_embedding": (1, 9, 16)}), flowing(target, way=list(target)))
    assert status(mapping, "whole.weight") != "mapped"


# -- words for what stands around a layer, and for its parts


def test_a_feed_forward_network_over_positions_is_no_table_of_positions() -> None:
    assert all("embedding" not in labels(words_of((name,)), hard=True) for name in ("pos_ffn", "positionwise_ff"))
    assert [labels(words_of(("pos_ffn", name)), hard=False)["neck"] for name in ("w_1", "w_2")] == ["up", "down"]


@pytest.mark.parametrize(
    ("theirs", "own"),
    [
        (("norm1", "norm2"), ("token_norm", "channel_norm")),
        (("pre_ffn_norm", "post_ffn_norm"), ("in_norm", "out_norm")),
    ],
)
def test_norms_around_a_layer_are_told_by_words_for_their_places(theirs: tuple[str, str], own: tuple[str, str]) -> None:
    source = {f"layers.{n}.{name}.weight": (12,) for n in range(3) for name in theirs}
    source |= {f"layers.{n}.{name}.weight": size for n in range(3) for name, size in (("a", (20, 12)), ("b", (12, 20)))}
    target = {f"blocks.{n}.{name}.weight": (12,) for n in range(3) for name in own[::-1]}
    target |= {f"blocks.{n}.{name}.weight": size for n in range(3) for name, size in (("a", (20, 12)), ("b", (12, 20)))}
    ways = [f"blocks.{n}.{name}.weight" for n in range(3) for name in (own[0], "a", "b", own[1])]
    mapping = port(signature(source), wanted(target, used=ways))
    assert [pairing(mapping)[f"blocks.1.{name}.weight"] for name in own] == [
        f"layers.1.{name}.weight" for name in theirs
    ]
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_layers_that_were_exchanged_are_certain_where_names_and_numbers_agree_in_the_end() -> None:
    kinds: Shapes = {"conv.weight": (8, 8, 3, 3), "bn.weight": (8,), "bn.bias": (8,)}
    source = {
        f"stage{n}.{way}_{key}": size for n in (1, 2) for way in ("high", "low", "fuse") for key, size in kinds.items()
    }
    target: Shapes = {}
    for n in (0, 1):
        names = ("fuse", "lowres", "highres")
        target |= {f"stages.{n}.bn_{name}.{leaf}": (8,) for name in names for leaf in ("weight", "bias")}
        target |= {f"stages.{n}.{name}.weight": (8, 8, 3, 3) for name in ("lowres", "fuse", "highres")}
    ways = [
        key
        for n in (0, 1)
        for name in ("lowres", "highres", "fuse")
        for key in (f"stages.{n}.{name}.weight", f"stages.{n}.bn_{name}.weight", f"stages.{n}.bn_{name}.bias")
    ]
    mapping = port(signature(source), wanted(target, used=ways))
    made = pairing(mapping)
    assert all(
        made[f"stages.{n}.bn_{way}res.weight"] == f"stage{n + 1}.{way}_bn.weight"
        for n in (0, 1)
        for way in ("low", "high")
    )
    assert {entry.status for entry in mapping.entries} == {"mapped"}


@pytest.mark.parametrize("names", [("dt", "b", "c"), ("delta", "B", "C")])
def test_projections_of_a_state_space_stand_in_the_order_that_all_code_has(names: tuple[str, str, str]) -> None:
    source = {"mixer.in_proj.weight": (32, 8), "mixer.x_proj.weight": (15, 16), "mixer.out_proj.weight": (8, 16)}
    parts = dict(zip(names, (3, 6, 6), strict=True))
    target = {"block.to_z.weight": (16, 8), "block.to_x.weight": (16, 8), "block.to_out.weight": (8, 16)}
    target |= {f"block.to_{name}.weight": (parts[name], 16) for name in reversed(names)}
    mapping = port(signature(source), wanted(target, used=[]))
    made = pairing(mapping)
    assert made["block.to_x.weight"] == "slice(mixer.in_proj.weight, 0, 0, 16)"
    assert made[f"block.to_{names[1]}.weight"] == "slice(mixer.x_proj.weight, 0, 3, 9)"
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_projections_without_the_step_of_a_state_space_are_a_guess() -> None:
    source = {"mixer.x_proj.weight": (12, 16), "mixer.out_proj.weight": (8, 16)}
    target = {"block.to_C.weight": (6, 16), "block.to_B.weight": (6, 16), "block.to_out.weight": (8, 16)}
    mapping = port(signature(source), wanted(target, used=[]))
    assert status(mapping, "block.to_B.weight") == "guessed"


@pytest.mark.parametrize("head", ["discriminator", "lm_head", "discriminator_predictions"])
def test_a_pooler_never_fills_the_dense_layer_of_a_new_head(head: str) -> None:
    body: Shapes = {"emb.weight": (20, 8), "enc.weight": (8, 8), "enc.bias": (8,)}
    dense: Shapes = {"dense.weight": (8, 8), "dense.bias": (8,)}
    target = body | {f"{head}.{key}": size for key, size in dense.items()} | {f"{head}.out.weight": (1, 8)}
    mapping = port(
        signature(body | {f"pooler.{key}": size for key, size in dense.items()}), wanted(target, used=target)
    )
    assert status(mapping, f"{head}.dense.weight") == "unmapped"
    assert status(mapping, "enc.weight") == "mapped"


@pytest.mark.parametrize(
    ("left", "expected"), [({"up_2.weight": (2, 2, 4, 4)}, "mapped"), ({"old_end.weight": (3, 9)}, "guessed")]
)
def test_a_shape_that_each_side_has_once_is_certain_where_nothing_is_left_that_a_new_layer_replaces(
    left: Shapes, expected: str
) -> None:
    """Each decoder of an optical flow network predicts a flow; the last prediction feeds nothing that has weights."""
    source: Shapes = {"conv_1.weight": (8, 5), "conv_2.weight": (8, 7), "up_1.weight": (2, 2, 4, 4)}
    source |= {"predict_flow.weight": (2, 9), **left, "dc_conv.weight": (4, 7)}
    names = {"conv_1": "net.one", "conv_2": "net.two", "up_1": "net.up_1", "predict_flow": "net.six", "dc_conv": "rest"}
    target = {f"{own}.weight": source[f"{theirs}.weight"] for theirs, own in names.items()}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["net.six.weight"] == "predict_flow.weight"
    assert status(mapping, "net.six.weight") == expected


@pytest.mark.parametrize(("more", "expected"), [({}, "mapped"), ({"second_projector.weight": (8, 6)}, "guessed")])
def test_words_that_exclude_each_other_are_no_question_where_neither_side_has_both(more: Shapes, expected: str) -> None:
    body: Shapes = {f"layers.{n}.{part}.weight": (6, 6 + n) for n in range(6) for part in ("near", "far")}
    target = {**body, **more, "classifier.weight": (5, 6)}
    source = {
        key.replace("layers", "steps").replace("near", "left").replace("far", "right"): s for key, s in body.items()
    }
    source |= {**more, "projector.weight": (5, 6)}
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping)["classifier.weight"] == "projector.weight"
    assert status(mapping, "classifier.weight") == expected


def test_a_norm_is_told_from_a_token_and_from_a_layer_with_one_output() -> None:
    source = {
        f"layers.{n}.{leaf}.weight": shape for n in (0, 1) for leaf, shape in {"mix": (6, 6), "up": (9, 6)}.items()
    }
    target = {f"h.{n}.{leaf}.weight": shape for n in (0, 1) for leaf, shape in {"a": (6, 6), "b": (9, 6)}.items()}
    source |= {"last.weight": (6,), "last.bias": (6,), "head.weight": (1, 6), "head.bias": (1,)}
    target = {"cls_token": (1, 1, 6)} | target
    target |= {"out.0.weight": (6,), "out.0.bias": (6,), "out.2.weight": (1, 6), "out.2.bias": (1,)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["out.0.weight"] == "last.weight"
    assert pairing(mapping)["out.2.weight"] == "head.weight"
    assert "cls_token" not in pairing(mapping)


def test_a_place_in_a_list_is_no_number_of_a_name() -> None:
    assert labels(words_of(("blocks", "0", "attn2", "to_q")), hard=True)["crossing"] == "cross"
    assert "crossing" not in labels(words_of(("attn", "2", "to_q")), hard=True)


def test_two_words_for_a_bound_are_one() -> None:
    shapes = {"a.weight": (4, 3), "b.weight": (3, 4)}
    source = shapes | {"min_logvar": (5,), "max_logvar": (5,)}
    target = {"logvar_hi": (5,), "logvar_lo": (5,)} | {key.upper(): shape for key, shape in shapes.items()}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["logvar_hi"] == "max_logvar"
    assert status(mapping, "logvar_lo") == "mapped"


def test_tables_that_together_are_one_of_the_model_are_no_accident_of_its_size() -> None:
    body: Shapes = {f"mlp.{n}.weight": (n + 5, n + 4) for n in range(8)}
    mapping = port(
        signature({f"emb_l.{n}.weight": (n + 2, 4) for n in range(3)} | body), wanted({"table.weight": (9, 4)} | body)
    )
    assert pairing(mapping)["table.weight"] == "cat(0, emb_l.0.weight, emb_l.1.weight, emb_l.2.weight)"
    assert status(mapping, "table.weight") == "mapped"
