"""Which tensor goes where: laws of matching, on signatures alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from effort import calls
from hypothesis import given, settings
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted

import ckptool
from ckptool.porting import expression as ex
from ckptool.porting.port import port
from ckptool.porting.words import label, table, words_of

pytestmark = pytest.mark.same_without_torch

Shapes = dict[str, tuple[int, ...]]


def vgg(widths: tuple[int, ...] = (8, 8, 16, 16), prefix: str = "features", step: int = 2) -> Shapes:
    found: Shapes = {}
    before = 3
    for place, width in enumerate(widths):
        found[f"{prefix}.{place * step}.weight"] = (width, before, 3, 3)
        found[f"{prefix}.{place * step}.bias"] = (width,)
        before = width
    found["classifier.weight"], found["classifier.bias"] = (10, before), (10,)
    return found


def transformer(depth: int = 3, width: int = 8, *, fused: bool = False) -> Shapes:
    found: Shapes = {"embed.weight": (50, width), "pos_embed.weight": (16, width)}
    for n in range(depth):
        for norm in ("norm1", "norm2"):
            found |= {f"blocks.{n}.{norm}.weight": (width,), f"blocks.{n}.{norm}.bias": (width,)}
        if fused:
            found |= {f"blocks.{n}.attn.qkv.weight": (3 * width, width), f"blocks.{n}.attn.qkv.bias": (3 * width,)}
        else:
            for name in "qkv":
                found |= {f"blocks.{n}.attn.{name}.weight": (width, width), f"blocks.{n}.attn.{name}.bias": (width,)}
        found |= {f"blocks.{n}.attn.proj.weight": (width, width), f"blocks.{n}.attn.proj.bias": (width,)}
        found |= {f"blocks.{n}.fc1.weight": (4 * width, width), f"blocks.{n}.fc1.bias": (4 * width,)}
        found |= {f"blocks.{n}.fc2.weight": (width, 4 * width), f"blocks.{n}.fc2.bias": (width,)}
    found |= {"norm.weight": (width,), "norm.bias": (width,), "head.weight": (50, width)}
    return found


def residual(widths: tuple[int, ...] = (8, 8, 16), blocks: int = 2) -> Shapes:
    found: Shapes = {"conv1.weight": (widths[0], 3, 7, 7)}
    found |= {f"bn1.{leaf}": (widths[0],) for leaf in ("weight", "bias", "running_mean", "running_var")}
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            base = f"layer{stage + 1}.{block}"
            for place, into in ((1, before), (2, width)):
                found[f"{base}.conv{place}.weight"] = (width, into, 3, 3)
                for leaf in ("weight", "bias", "running_mean", "running_var"):
                    found[f"{base}.bn{place}.{leaf}"] = (width,)
            if before != width:
                found[f"{base}.downsample.0.weight"] = (width, before, 1, 1)
                for leaf in ("weight", "bias", "running_mean", "running_var"):
                    found[f"{base}.downsample.1.{leaf}"] = (width,)
            before = width
    found |= {"fc.weight": (10, before), "fc.bias": (10,)}
    return found


FAMILIES: dict[str, Callable[[], Shapes]] = {
    "a plain chain": vgg,
    "a deep chain of equal layers": lambda: vgg((8,) * 12),
    "a transformer": transformer,
    "a transformer with fused projections": lambda: transformer(fused=True),
    "a residual net": residual,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_the_model_itself_ports_key_by_key(family: str) -> None:
    shapes = FAMILIES[family]()
    mapping = port(signature(shapes), wanted(shapes))
    assert pairing(mapping) == {key: key for key in shapes}
    assert mapping.is_sure
    assert mapping.unused == ()


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.module.", "net.backbone."])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_changes_nothing(family: str, prefix: str) -> None:
    shapes = FAMILIES[family]()
    mapping = port(signature({prefix + key: shape for key, shape in shapes.items()}), wanted(shapes))
    assert pairing(mapping) == {key: prefix + key for key in shapes}
    assert mapping.is_sure


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(data=st.data())
def test_with_equal_names_the_order_of_keys_does_not_matter(family: str, data: st.DataObject) -> None:
    shapes = FAMILIES[family]()
    shuffled = data.draw(st.permutations(list(shapes)))
    mapping = port(signature({key: shapes[key] for key in shuffled}), wanted(shapes))
    assert pairing(mapping) == {key: key for key in shapes}
    assert mapping.is_sure


def other_names(key: str) -> str:
    """Names that have nothing to do with the old ones, one to one by component; numbers stay."""
    module, _, leaf = key.rpartition(".")
    shifted = str.maketrans("abcdefghijklmnopqrstuvwxyz", "hijklmnopqrstuvwxyzabcdefg")
    return f"{module.translate(shifted)}.{leaf}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_order_under_other_names_is_found(family: str) -> None:
    """Registration, storage and execution in one order; the names say nothing."""
    shapes = FAMILIES[family]()
    renamed = {other_names(key): shape for key, shape in shapes.items()}
    assert len(renamed) == len(shapes)
    mapping = port(signature(shapes), wanted(renamed, used=renamed))
    assert pairing(mapping) == dict(zip(renamed, shapes, strict=True))


def test_what_has_one_name_and_another_place_goes_by_its_name() -> None:
    shapes = transformer()
    keys = list(shapes)
    random.Random(3).shuffle(keys)
    mapping = port(signature({f"encoder.{k}": shapes[k] for k in keys}), wanted(shapes))
    assert pairing(mapping) == {key: f"encoder.{key}" for key in shapes}


def test_two_that_nothing_tells_apart_are_a_guess_with_the_rival_named() -> None:
    """Equal shapes, no name, no order: a file with sorted keys."""
    source = signature({"aa.weight": (4, 4), "bb.weight": (4, 4), "stem.weight": (4, 9)}, ordered=False)
    target = wanted({"left.weight": (4, 4), "right.weight": (4, 4), "stem.weight": (4, 9)})
    mapping = port(source, target)
    assert [e.target for e in mapping.having("mapped")] == ["stem.weight"]
    for entry in mapping.entries[:2]:
        assert entry.status in ("guessed", "unmapped")
        if entry.status == "guessed":
            assert entry.rivals
            assert entry.doubts


def test_an_order_that_contradicts_the_numbers_is_never_followed_in_silence() -> None:
    source = signature({f"up.{n}.weight": (8, 8, 3, 3) for n in (0, 1, 2)})
    shapes = {f"dec.{n}.weight": (8, 8, 3, 3) for n in (1, 2, 3)}
    target = wanted(shapes, used=[f"dec.{n}.weight" for n in (3, 2, 1)])
    mapping = port(source, target)
    assert not mapping.is_sure


def test_a_new_head_is_left_and_never_filled_with_what_happens_to_fit() -> None:
    source = {**vgg(), "other.weight": (5, 16), "other.bias": (5,)}
    target = {**vgg(), "classifier.weight": (5, 16), "classifier.bias": (5,)}
    mapping = port(signature(source), wanted(target, used=target))
    head = [mapping["classifier.weight"], mapping["classifier.bias"]]
    assert [e.status for e in head] != ["mapped", "mapped"]
    assert all(e.status == "mapped" for e in mapping.entries if e not in head)


@pytest.mark.parametrize("theirs", ["box_head.tower", "head.reg_convs", "rank_head.layers"])
def test_a_new_head_is_left_where_the_source_has_another_one_of_more_layers_that_fit(theirs: str) -> None:
    body = {key: size for key, size in vgg().items() if key.startswith("features")}
    shape = (6, 6, 3, 3)
    source = {**body, **{f"{theirs}.{n}.conv.weight": shape for n in range(4)}}
    target = {**body, **{f"segment_head.scales.{n}.conv.weight": shape for n in range(3)}}
    mapping = port(signature(source), wanted(target, used=target))
    assert {e.status for e in mapping.entries if e.target.startswith("segment")} == {"unmapped"}
    kept = {**body, **{f"{theirs}.{n}.conv.weight": shape for n in range(3)}}
    assert all(e.expr is not None for e in port(signature(source), wanted(kept, used=kept)).entries)


def test_an_output_layer_with_a_bias_that_the_source_has_not_is_new_and_no_copy_of_a_table() -> None:
    body = {"kinds.weight": (3, 8), "fc.weight": (8, 8), "fc.bias": (8,)}
    head = {"predict.weight": (3, 8), "predict.bias": (3,)}
    target = {f"net.{key}": size for key, size in body.items()} | head
    model = wanted(target, used=target)
    entries = dict(model.entries)
    entries["net.kinds.weight"] = replace(entries["net.kinds.weight"], how="embedding", module="Embedding")
    entries["predict.weight"] = replace(entries["predict.weight"], how="linear", module="Linear")
    mapping = port(signature(body), replace(model, entries=entries))
    assert mapping["predict.weight"].status == "unmapped"
    tied = port(signature(body), replace(model, entries={k: e for k, e in entries.items() if k != "predict.bias"}))
    assert tied["predict.weight"].status == "guessed"


def test_a_pooler_that_the_source_has_not_is_not_filled_from_a_left_over() -> None:
    source = {**transformer(), "relation.dense.weight": (8, 8), "relation.dense.bias": (8,)}
    target = {**transformer(), "pooler.weight": (8, 8), "pooler.bias": (8,)}
    mapping = port(signature(source), wanted(target, used=target))
    assert mapping["pooler.weight"].status != "mapped"
    assert all(e.status == "mapped" for e in mapping.entries if not e.target.startswith("pooler"))


def test_fused_projections_are_cut_by_name() -> None:
    fused, apart = transformer(fused=True), transformer()
    forth = port(signature(fused), wanted(apart))
    assert pairing(forth)["blocks.1.attn.k.weight"] == "slice(blocks.1.attn.qkv.weight, 0, 8, 16)"
    assert forth.is_sure
    back = port(signature(apart), wanted(fused))
    assert (
        pairing(back)["blocks.0.attn.qkv.bias"]
        == "cat(0, blocks.0.attn.q.bias, blocks.0.attn.k.bias, blocks.0.attn.v.bias)"
    )
    assert back.is_sure


def test_matrices_with_their_inputs_first_are_turned() -> None:
    target = {"a.weight": (6, 4), "a.bias": (6,), "b.weight": (4, 6), "b.bias": (4,)}
    source = {"a.kernel": (4, 6), "a.bias": (6,), "b.kernel": (6, 4), "b.bias": (4,)}
    assert pairing(port(signature(source), wanted(target)))["a.weight"] == "transpose(a.kernel)"


def test_convolutions_of_other_frameworks_are_permuted() -> None:
    target = {"stem.weight": (8, 3, 5, 5), "stem.bias": (8,)}
    source = {"stem.kernel": (5, 5, 3, 8), "stem.bias": (8,)}
    assert pairing(port(signature(source), wanted(target)))["stem.weight"] == "permute(stem.kernel, 3, 2, 0, 1)"


def test_a_linear_layer_becomes_a_convolution_over_one_pixel() -> None:
    mapping = port(
        signature({"fc.weight": (10, 8), "fc.bias": (10,)}), wanted({"fc.weight": (10, 8, 1, 1), "fc.bias": (10,)})
    )
    assert pairing(mapping)["fc.weight"] == "reshape(fc.weight, 10, 8, 1, 1)"
    assert mapping.is_sure


def test_old_and_new_weight_norms_meet() -> None:
    old = {"conv.weight_g": (8, 1, 1), "conv.weight_v": (8, 4, 3), "conv.bias": (8,)}
    new = {
        "conv.bias": (8,),
        "conv.parametrizations.weight.original0": (8, 1, 1),
        "conv.parametrizations.weight.original1": (8, 4, 3),
    }
    assert pairing(port(signature(old), wanted(new)))["conv.parametrizations.weight.original0"] == "conv.weight_g"
    plain = port(signature(old), wanted({"conv.weight": (8, 4, 3), "conv.bias": (8,)}))
    assert pairing(plain)["conv.weight"] == "weight_norm(conv.weight_g, conv.weight_v)"


def test_a_square_that_is_alone_with_its_size_is_a_guess() -> None:
    source = {"shared": (4, 4), "a.weight": (8, 3), "b.weight": (9, 8), "c.weight": (5, 9), "all.weight": (20, 3)}
    target = {"p.weight": (8, 3), "q.weight": (9, 8), "x.weight": (7, 3), "ids.weight": (4, 4), "r.weight": (5, 9)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["ids.weight"] == "shared"
    assert found(mapping, "ids.weight").status == "guessed"
    several = port(signature(source | {"more": (4, 4)}), wanted(target))
    assert "ids.weight" not in pairing(several)


def test_a_weight_norm_over_kernels_with_outputs_last_is_merged_and_turned() -> None:
    old = {"conv.weight_g": (1, 1, 8), "conv.weight_v": (3, 4, 8), "conv.bias": (8,)}
    new = wanted({"conv.weight": (8, 4, 3), "conv.bias": (8,)})
    new.entries["conv.weight"] = replace(new.entries["conv.weight"], how="conv1d")
    plain = port(signature(old), new)
    assert pairing(plain)["conv.weight"] == "permute(weight_norm(conv.weight_g, conv.weight_v), 2, 1, 0)"


@pytest.mark.parametrize("leaf", ["beta", "offset"])
def test_an_offset_beside_one_square_matrix_is_the_bias_of_it(leaf: str) -> None:
    theirs = {f"g.{n}.{name}": shape for n in range(2) for name, shape in (("beta", (8,)), ("gamma", (8, 8)))}
    own = {f"n{n}.{name}": shape for n in range(2) for name, shape in ((leaf, (8,)), ("mix", (8, 8)))}
    pairs = pairing(port(signature(theirs), wanted(own)))
    assert pairs == {f"n{n}.{name}": f"g.{n}.{of}" for n in range(2) for name, of in ((leaf, "beta"), ("mix", "gamma"))}


@pytest.mark.parametrize("sizes", [(8, 8), (8, 8, 1)], ids=["linear", "convolutions"])
def test_a_list_of_three_beside_an_output_is_queries_keys_and_values(sizes: tuple[int, ...]) -> None:
    theirs = {"attn.merge.weight": sizes, **{f"attn.proj.{n}.weight": sizes for n in range(3)}}
    own = {f"{name}.weight": (8, 8) for name in ("value", "key", "query", "out_proj")}
    layers = {entry.target: entry.sources for entry in port(signature(theirs), wanted(own)).entries}
    held = {"query": "proj.0", "key": "proj.1", "value": "proj.2", "out_proj": "merge"}
    assert layers == {f"{name}.weight": [f"attn.{there}.weight"] for name, there in held.items()}


def test_weight_norms_that_a_model_took_off_some_of_its_layers_are_plain_weights_there_alone() -> None:
    old = {
        f"{part}.weight_{leaf}": (8, 1, 1) if leaf == "g" else shape
        for part, shape in (("post.conv", (8, 4, 3)), ("dec.conv", (8, 6, 5)))
        for leaf in "gv"
    }
    new = {
        "post.conv.parametrizations.weight.original0": (8, 1, 1),
        "post.conv.parametrizations.weight.original1": (8, 4, 3),
        "decoder.conv.weight": (8, 6, 5),
    }
    found = pairing(port(signature(old), wanted(new)))
    assert found["post.conv.parametrizations.weight.original0"] == "post.conv.weight_g"
    assert found["decoder.conv.weight"] == "weight_norm(dec.conv.weight_g, dec.conv.weight_v)"


def test_what_is_joined_has_the_last_word_of_its_names_in_common() -> None:
    """Of `a_p`, `a_g`, `b_p` and `b_g`, two projections and two gates become one layer each."""
    apart = {f"m.{name}.weight": (6, 4) for name in ("a_p", "a_g", "b_p", "b_g")}
    found = pairing(port(signature(apart), wanted({"n.p_in.weight": (12, 4), "n.g_in.weight": (12, 4)})))
    assert found["n.p_in.weight"] == "cat(0, m.a_p.weight, m.b_p.weight)"
    assert found["n.g_in.weight"] == "cat(0, m.a_g.weight, m.b_g.weight)"


def test_stacked_experts_are_taken_apart_and_put_together() -> None:
    apart = {f"experts.{n}.w.weight": (6, 4) for n in range(3)} | {"router.weight": (3, 4)}
    stacked = {"experts.w.weight": (3, 6, 4), "router.weight": (3, 4)}
    assert pairing(port(signature(stacked), wanted(apart)))["experts.1.w.weight"] == "select(experts.w.weight, 0, 1)"
    made = pairing(port(signature(apart), wanted(stacked)))["experts.w.weight"]
    assert made == "stack(experts.0.w.weight, experts.1.w.weight, experts.2.w.weight)"


def test_counters_of_batch_norms_may_be_missing_and_need_no_acceptance() -> None:
    target = residual() | {"bn1.num_batches_tracked": ()}
    mapping = port(signature(residual()), wanted(target))
    counter = mapping["bn1.num_batches_tracked"]
    assert (counter.status, counter.default, counter.expr) == ("mapped", True, None)
    assert mapping.is_sure


def test_a_channel_that_was_added_is_a_declared_guess() -> None:
    target = residual() | {"conv1.weight": (8, 1, 7, 7)}
    mapping = port(signature(residual()), wanted(target))
    assert (mapping["conv1.weight"].status, str(mapping["conv1.weight"].expr)) == ("guessed", "sum(conv1.weight, 1)")
    assert all(e.status == "mapped" for e in mapping.entries if e.target != "conv1.weight")


def test_words_that_exclude_each_other_are_never_paired_in_silence() -> None:
    source = signature({"text.proj.weight": (8, 8), "text.norm.weight": (8,)})
    target = wanted({"image.proj.weight": (8, 8), "image.norm.weight": (8,)})
    assert port(source, target).having("mapped") == []


def check_account(ours: Shapes, theirs: Shapes) -> None:
    """Each target key is there once, its sizes right, and no source key used that is not there."""
    mapping = port(signature(ours), wanted(theirs))
    assert [e.target for e in mapping.entries] == list(theirs)
    for entry in mapping.entries:
        assert entry.status in ("mapped", "guessed", "unmapped")
        if entry.expr is not None:
            assert ex.shape_of(entry.expr, ours) == entry.shape
        if entry.status == "guessed":
            assert entry.doubts
    used = {key for e in mapping.entries for key in e.sources}
    assert set(mapping.unused) == set(ours) - used


#: All that the table of words knows, so that every rule about names is met, beside what no rule expects.
WORDS = re.findall(r"[A-Za-z_]\w*", (Path(ckptool.__file__).parent / "porting" / "words.yaml").read_text("utf-8"))
COMPONENTS = st.sampled_from(sorted(set(WORDS))) | st.sampled_from(["", "0", "1", "2", "10", "x_y", "a/b", "/", "ключ"])
LEAVES = st.sampled_from(["weight", "bias", "running_mean", "weight_g", "kernel", "gamma"]) | COMPONENTS
KEYS = st.builds(lambda path, leaf: ".".join([*path, leaf]), st.lists(COMPONENTS, max_size=3), LEAVES)
SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12]), max_size=5).map(tuple)


def turned(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Sizes that may come from a tensor of other code: turned, stacked, fused, flattened, of none."""
    ways = [shape, shape, shape[::-1], shape[1:], (3, *shape), (*shape[:-1], 0)]
    if len(shape) > 1:
        ways += [(3 * shape[0], *shape[1:]), (shape[0] * shape[1], *shape[2:])]
    return st.sampled_from(ways)


def test_keys_whose_components_are_alike_when_joined_stay_two_keys() -> None:
    ours = {"weight": (), "A.weight": (), "running_mean": (0,), "bias": (), "A": (), "A.bias": (), "A.A.weight": ()}
    check_account(ours, {"weight": (), "..": (0,), "bias": (), "A": (), "A.bias": (), "A.A": (), "../": ()})


@settings(max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_whatever_the_keys_every_entry_ends_in_one_of_three_ways(data: st.DataObject) -> None:
    ours = data.draw(st.dictionaries(KEYS, SIZES, max_size=10))
    theirs = {
        key if data.draw(st.booleans()) else data.draw(KEYS): data.draw(turned(shape)) for key, shape in ours.items()
    }
    check_account(ours, theirs | data.draw(st.dictionaries(KEYS, SIZES, max_size=4)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param({"x.qkv.weight": ()}, {"x.qkv.weight": (1,)}, id="a projection of no dimension"),
        pytest.param({"q.weight": (3, 0, 8)}, {"q.weight": (24, 0)}, id="heads of no width"),
        pytest.param(
            {"parametrizations.weight.original0": (4, 1), "parametrizations.weight.original1": (4, 2)},
            {"weight": (4, 2)},
            id="a layer that no module holds",
        ),
        pytest.param(
            {f"attn.{n}.weight": (8 * (n == "q"), 8) for n in "qkv"},
            {f"attn.{n}.weight": (8, 8) for n in "qkv"},
            id="keys of no heads",
        ),
        pytest.param({"weight_ih_l0": (8,), "weight_hh_l0": (8,)}, {"a.weight": (8, 8)}, id="gates in a row"),
        pytest.param({"/": (2, 3)}, {"a.weight": (2, 3)}, id="a key of nothing but slashes"),
        pytest.param(
            {"end.weight": (), "A": (2,), "A.A.A.weight": (), "weight": (), ".weight": ()},
            {".A.weight": (0,), "end.weight": (), "weight": (), "A.A.A.weight": (), ".weight": (), "": (2,)},
            id="a part of nothing",
        ),
        pytest.param({"embed_tokens.weight": (16,)}, {"token_embed.weight": (0,)}, id="a vocabulary of nothing"),
        pytest.param({"a.q_bias": (), "a.v_bias": ()}, {"a.qkv.weight": (12, 4)}, id="biases of no dimension"),
        pytest.param(
            {"a.q_bias": (4,), "a.v_bias": (4,), "a.logit_scale.weight": (), "a.qkv.weight": (12, 4)},
            {"a.qkv.weight": (12, 4), "a.qkv.bias": (12,)},
            id="a number beside a projection",
        ),
        pytest.param(
            {"m.wh": (1,), "m.W": (16,), "m.scale": (8, 4), "m.U": ()},
            {"weight_ih_l0": (16, 4), "weight_hh_l0": (), "bias_ih_l0": (0,)},
            id="a hidden state of no dimension",
        ),
        pytest.param(
            {"a.q_bias": (4, 4), "a.v_bias": (2, 4, 4), "a.in_proj_bias": (4, 4, 3), "b.in_proj_weight": (12, 4)},
            {"a.q_bias": (4, 4), "a.v_bias": (2, 4, 4), "a.in_proj_bias": (4, 4, 3), "b.in_proj_weight": (0, 4)},
            id="no queries",
        ),
    ],
)
def test_no_name_and_no_size_makes_the_matching_raise(ours: Shapes, theirs: Shapes) -> None:
    check_account(ours, theirs)
    check_account(theirs, ours)


def test_matching_a_thousand_layers_costs_four_times_as_much_as_matching_a_quarter_of_them() -> None:
    def cost(depth: int) -> int:
        shapes = {f"layers.{n}.linear.weight": (8, 8) for n in range(depth)}
        renamed = {f"blocks.{n}.fc.weight": (8, 8) for n in range(depth)}

        def match() -> None:
            mapping = port(signature(shapes), wanted(renamed, used=renamed))
            assert pairing(mapping) == dict(zip(renamed, shapes, strict=True))

        return calls(match)

    assert cost(1000) < 5 * cost(250)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("layers.0.self_attn2", "self"),
        ("layers.0.multihead_attn1", "cross"),
        ("blocks.0.attn2", "cross"),
        ("blocks.0.cross_attend", "cross"),
        ("blocks.0.mlp", None),
    ],
)
def test_a_number_counts_only_where_the_name_spells_what_it_is(name: str, said: str | None) -> None:
    assert label(table().group("crossing"), words_of(tuple(name.split(".")))) == said


def test_the_table_of_words_names_no_model() -> None:
    """General knowledge only: no line of it may be about one architecture."""
    from importlib.resources import files

    text = files("ckptool.porting").joinpath("words.yaml").read_text(encoding="utf-8").lower()
    models = "resnet vgg bert gpt llama clip vit deit swin unet densenet mobilenet t5 whisper mixtral qwen gemma yolo"
    assert [name for name in models.split() if name in text.replace("_", " ").replace(",", " ").split()] == []


def test_every_phrase_of_a_group_has_one_meaning() -> None:
    for group in table().groups:
        assert group.phrases
        assert all(phrase for phrase in group.phrases)


@pytest.mark.parametrize("name", ["{}_bn", "{}_batch_norm", "bn_{}"])
def test_norms_without_an_order_stand_behind_the_layers_that_they_are_named_after(name: str) -> None:
    source: Shapes = {}
    target: Shapes = {}
    leaves = ("weight", "bias", "running_mean", "running_var")
    for place, layer in enumerate(("stem", "wide", "deep", "last")):
        source[f"{layer}.weight"] = target[f"body.{2 * place}.weight"] = (8, 3 + place, 3, 3)
        source |= {f"{name.format(layer)}.{leaf}": (8,) for leaf in leaves}
        target |= {f"body.{2 * place + 1}.{leaf}": (8,) for leaf in leaves}
    mapping = port(signature(dict(sorted(source.items())), ordered=False), wanted(target, used=target))
    found = pairing(mapping)
    for place, layer in enumerate(("stem", "wide", "deep", "last")):
        assert found[f"body.{2 * place + 1}.running_mean"] == f"{name.format(layer)}.running_mean"
    assert {entry.status for entry in mapping.entries} == {"mapped"}


@pytest.mark.parametrize(("theirs", "own"), [("projector", "classifier"), ("projection_head", "head")])
def test_a_head_for_another_purpose_is_left_alone(theirs: str, own: str) -> None:
    layers = {f"layers.{n}.{leaf}": shape for n in range(6) for leaf, shape in (("weight", (8, 8)), ("bias", (8,)))}
    source = {f"encoder.{key}": shape for key, shape in layers.items()} | {
        f"{theirs}.weight": (5, 8),
        f"{theirs}.bias": (5,),
    }
    target = {f"trunk.{key}": shape for key, shape in layers.items()} | {f"{own}.weight": (5, 8), f"{own}.bias": (5,)}
    mapping = port(signature(source), wanted(target))
    assert {e.target for e in mapping.having("unmapped")} == {f"{own}.weight", f"{own}.bias"}
    assert len(mapping.having("mapped")) == len(layers)


@pytest.mark.parametrize(("own", "theirs"), [("cls_token", "mask_token"), ("query_bias", "value_bias")])
def test_what_excludes_the_only_free_name_among_equal_ones_is_a_gap_wherever_it_stands(own: str, theirs: str) -> None:
    blocks = {f"blocks.{n}.fc{i}.weight": (4, 4) for n in range(3) for i in (1, 2)}
    mapping = port(signature({theirs: (1, 1, 6), **blocks}), wanted({own: (1, 1, 6), **blocks}))
    assert pairing(mapping) == {key: key for key in blocks}


@pytest.mark.parametrize("bias", [True, False])
def test_norm_weights_around_0_are_those_of_code_that_adds_1_unless_there_is_a_bias(bias: bool) -> None:
    leaves = ("weight", "bias") if bias else ("weight",)
    source = {f"layers.{n}.norm.{leaf}": (8,) for n in range(3) for leaf in leaves}
    target = {f"blocks.{n}.norm.{leaf}": (8,) for n in range(3) for leaf in leaves}
    rng = np.random.default_rng(0)
    mapping = port(signature(source), wanted(target), values=lambda key: rng.standard_normal(8) / 4)
    for n in range(3):
        entry = found(mapping, f"blocks.{n}.norm.weight")
        ways = [str(entry.expr), *map(str, entry.rivals)]
        assert entry.status == "guessed"
        assert ways == sorted((f"layers.{n}.norm.weight", f"shift(layers.{n}.norm.weight, 1.0)"), reverse=not bias)


def test_a_linear_layer_may_be_a_convolution_of_size_1_also_where_both_sides_have_as_many_of_both() -> None:
    source = {"attn.query.weight": (8, 8, 1, 1), "attn.out_proj.weight": (8, 8)}
    target = {"att.q.weight": (8, 8), "att.to_out.weight": (8, 8, 1, 1)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["att.q.weight"] == "reshape(attn.query.weight, 8, 8)"
    assert pairing(mapping)["att.to_out.weight"] == "reshape(attn.out_proj.weight, 8, 8, 1, 1)"
