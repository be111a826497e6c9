"""What is left when all is matched: parts of a layer whose name says nothing, and what the model has many times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted, worked_out

from ckptool.porting.forms.canonical import canonical
from ckptool.porting.holes.left_over import parts
from ckptool.porting.matching.units import units_of
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]

RANDOM = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def block(prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    return {
        f"{prefix}.conv.weight": values(9, 1, 4),
        f"{prefix}.out.weight": values(6, 9),
        f"{prefix}.norm.weight": values(6),
    }


@given(sizes=st.lists(st.integers(2, 5), min_size=2, max_size=3, unique=True))
def test_a_layer_that_holds_all_that_is_left_of_a_block_is_taken_apart_and_called_a_guess(sizes: list[int]) -> None:
    source, target = {}, {}
    for n in range(2):
        own = block(f"h.{n}.mixer")
        source |= own | {f"h.{n}.mixer.mixed.weight": values(sum(sizes), 7)}
        target |= {key.replace("h.", "layers.").replace("mixer", "body"): value.shape for key, value in own.items()}
        target |= {f"layers.{n}.body.part_{'abc'[i]}.weight": (size, 7) for i, size in enumerate(sizes)}
    made = worked_out(source, target)
    for n in range(2):
        edges = np.cumsum([0, *sizes])
        for i in range(len(sizes)):
            got = made[f"layers.{n}.body.part_{'abc'[i]}.weight"]
            assert got.status == "guessed"
            whole = source[f"h.{n}.mixer.mixed.weight"]
            np.testing.assert_array_equal(got.values, whole[edges[i] : edges[i + 1]])
    # and back
    back = worked_out({key: made[key].values for key in target}, {key: value.shape for key, value in source.items()})
    for n in range(2):
        got = back[f"h.{n}.mixer.mixed.weight"]
        assert got.status == "guessed"
        np.testing.assert_array_equal(got.values, source[f"h.{n}.mixer.mixed.weight"])


def test_two_tables_side_by_side_are_cut_along_their_columns() -> None:
    source = block("a.inner") | {"a.inner.both.weight": values(5, 8)}
    target = {key.replace("a.", "b."): value.shape for key, value in block("a.inner").items()}
    made = worked_out(source, target | {"b.inner.one.weight": (5, 4), "b.inner.two.weight": (5, 4)})
    np.testing.assert_array_equal(made["b.inner.two.weight"].values, source["a.inner.both.weight"][:, 4:])
    assert made["b.inner.two.weight"].status == "guessed"


@pytest.mark.parametrize(
    ("whole", "held", "name"), [((9, 7), [(4, 7), (5, 7)], "rows"), ((5, 9), [(5, 4), (5, 5)], "columns")]
)
def test_a_question_about_parts_of_a_layer_says_whether_they_are_rows_or_columns(
    whole: tuple[int, ...], held: list[tuple[int, ...]], name: str
) -> None:
    (one, other), (near, *several) = (
        units_of(canonical(signature(shapes), wanted(shapes))[0])
        for shapes in (
            {"a.norm.weight": (6,), "a.both.weight": whole},
            {"b.norm.weight": (6,), "b.one.weight": held[0], "b.two.weight": held[1]},
        )
    )
    made = [*parts([(near, one)], several, [other]), *parts([(one, near)], [other], several)]
    assert len(made) == 3
    assert all(f" {name} were " in str(proposal.question) for proposal in made)


@pytest.mark.parametrize("depth", [2, 4])
def test_a_block_that_the_source_has_once_goes_to_all_of_the_model_as_a_guess(depth: int) -> None:
    source = {f"encoder.shared.{key}": value for key, value in block("body").items()} | {"embed.weight": values(11, 6)}
    target = {f"layers.{n}.{key}": value.shape for n in range(depth) for key, value in block("body").items()}
    mapping = port(signature({k: v.shape for k, v in source.items()}), wanted(target | {"embed.weight": (11, 6)}))
    filled = [e for e in mapping.entries if e.target.startswith("layers.") and e.expr is not None]
    assert {e.status for e in filled} <= {"guessed", "mapped"}
    by_place: dict[str, set[str]] = {}
    for entry in filled:
        by_place.setdefault(entry.target.split(".", 2)[2], set()).add(str(entry.expr))
    assert all(len(exprs) == 1 for exprs in by_place.values())
    several = [e for e in filled if not e.target.startswith("layers.0.")]
    assert all(e.status == "guessed" for e in several)


def test_a_deeper_model_keeps_its_own_values_where_the_source_has_a_list_of_fewer() -> None:
    def layers(depth: int) -> dict[str, tuple[int, ...]]:
        return {f"layers.{n}.{key}": value.shape for n in range(depth) for key, value in block("body").items()}

    mapping = port(signature(layers(2)), wanted(layers(4)))
    assert found(mapping, "layers.1.body.conv.weight").status == "mapped"
    assert found(mapping, "layers.3.body.conv.weight").status == "unmapped"


def test_names_that_count_from_nought_are_not_those_that_count_from_one() -> None:
    def layers(first: str, second: str, up: str, down: str) -> dict[str, tuple[int, ...]]:
        return {
            f"layers.{n}.{name}.weight": shape
            for n in range(2)
            for name, shape in ((second, (6,)), (first, (6,)), (down, (6, 8)), (up, (8, 6)))
            if (n, name) != (0, first)
        }

    source = layers("norm0", "norm1", "linear0", "linear1")
    target = layers("attn_norm", "ffn_norm", "up_proj", "down_proj")
    mapping = port(signature(source), wanted(target))
    for entry in mapping.entries:
        if entry.status == "mapped":
            new = {"attn_norm": "norm0", "ffn_norm": "norm1", "up_proj": "linear0", "down_proj": "linear1"}
            layer, name = entry.target.split(".")[1:3]
            assert str(entry.expr) == f"layers.{layer}.{new[name]}.weight"


def test_one_table_of_words_serves_an_encoder_and_a_decoder_as_a_guess() -> None:
    source: Shapes = {"shared.weight": (40, 8)}
    target: Shapes = {"encoder_embed_tokens.weight": (40, 8), "decoder_embed_tokens.weight": (40, 8)}
    for side in ("encoder", "decoder"):
        layer: Shapes = {f"{side}.0.wi.weight": (16, 8), f"{side}.0.wo.weight": (8, 16), f"{side}_norm.weight": (8,)}
        source, target = source | layer, target | layer
    model = wanted(target, used=target)
    looked_up = {key: replace(e, how="embedding" * ("embed" in key)) for key, e in model.entries.items()}
    mapping = port(signature(source), replace(model, entries=looked_up))
    for key in list(target)[:2]:
        assert (found(mapping, key).status, str(found(mapping, key).expr)) == ("guessed", "shared.weight")
    assert len(mapping.having("mapped")) == len(target) - 2
    second = "decoder_embed_tokens.weight"
    other = replace(model, entries=looked_up | {second: replace(looked_up[second], shape=(41, 8))})
    assert found(port(signature(source), other), second).status == "unmapped"


def test_a_tensor_that_fits_two_layers_fills_the_first_with_a_question_that_names_the_other() -> None:
    layers: Shapes = {"fc1.weight": (32, 16), "fc1.bias": (32,), "fc2.weight": (16, 32), "fc2.bias": (16,)}
    towers = {"a": {"position_embedding": (24, 16)} | layers, "b": {"position_embedding": (30, 16)} | layers}
    target = {f"{side}.{key}": shape for side, tower in towers.items() for key, shape in tower.items()}
    mapping = port(signature({"position_embedding": (20, 16)} | layers), wanted(target))
    first = found(mapping, "a.fc1.weight")
    assert (first.status, str(first.expr)) == ("guessed", "fc1.weight")
    assert [doubt.split(" as well")[0] for doubt in first.doubts] == [
        "this tensor of the source fits the model's b.fc1"
    ]
    assert found(mapping, "b.fc1.weight").status == "unmapped"


def test_layers_that_all_blocks_copy_from_one_place_are_told_by_their_names() -> None:
    """As diffusers copies the embedding of time of a DiT into each block; no size tells these layers from others."""
    blocks = {f"blocks.{n}.{leaf}.weight": (8, 8) for n in range(3) for leaf in ("attn.proj", "mlp.fc")}
    source = {"t_embedder.mlp.0.weight": (8, 8), "t_embedder.mlp.2.weight": (8, 8), **blocks}
    copies = {f"blocks.{n}.norm.time_embedder.linear_{k}.weight": (8, 8) for n in range(3) for k in (1, 2)}
    target = {**copies, **blocks}
    mapping = port(signature(source), wanted(target, used=target))
    for key in copies:
        assert found(mapping, key).status == "guessed"
        assert pairing(mapping)[key] == f"t_embedder.mlp.{'0' if 'linear_1' in key else '2'}.weight"
    assert {found(mapping, key).status for key in blocks} == {"mapped"}


def test_a_block_more_in_the_model_is_no_copy_of_one_that_another_block_has() -> None:
    blocks = {f"h.{n}.fc.weight": (8, 8) for n in range(2)}
    mapping = port(signature(blocks | {"head.weight": (3, 8)}), wanted({f"l.{n}.up.weight": (8, 8) for n in range(4)}))
    assert len(set(pairing(mapping).values())) == len(pairing(mapping))


@pytest.mark.parametrize("has", [True, False])
def test_a_key_that_is_tied_to_one_without_a_source_says_why_it_has_none_either(has: bool) -> None:
    layer = {"fc.weight": (3, 4), "fc.bias": (3,)}
    model = wanted({"embed.weight": (10, 4), **layer, "head.weight": (10, 4)})
    tied = replace(model.entries["head.weight"], tied="embed.weight")
    target = replace(model, entries={**model.entries, "head.weight": tied})
    entry = found(port(signature(layer | ({"head.weight": (12, 5)} if has else {})), target), "head.weight")
    assert entry.status == "unmapped"
    (doubt,) = entry.doubts
    assert doubt.startswith("in its place the source has head.weight with sizes [12, 5]" if has else "no tensor of")


def rows_of(shapes: list[int], *, width: int = 4) -> dict[str, tuple[int, ...]]:
    """Tables with so many rows, of which one with a single row is a vector."""
    return {f"part{n}.table": (width,) if rows == 1 else (rows, width) for n, rows in enumerate(shapes)}


OUTPUT: Shapes = {"head.weight": (3, 4), "head.bias": (3,)}


def test_tables_that_are_rows_of_larger_ones_take_them_in_their_order_as_a_guess() -> None:
    """As in FT-Transformer: the class token is the first row of the table of the numbers."""
    source = OUTPUT | {"tokenizer.weight": (7, 4), "tokenizer.bias": (9, 4), "tokenizer.words.weight": (26, 4)}
    own = rows_of([1, 6, 6, 3, 9, 5, 12]) | {f"last.{key}": shape for key, shape in OUTPUT.items()}
    mapping = port(signature(source), wanted(own))
    assert {key: expr for key, expr in pairing(mapping).items() if "part" in key} == {
        "part0.table": "reshape(slice(tokenizer.weight, 0, 0, 1), 4)",
        "part1.table": "slice(tokenizer.weight, 0, 1, 7)",
        "part2.table": "slice(tokenizer.bias, 0, 0, 6)",
        "part3.table": "slice(tokenizer.bias, 0, 6, 9)",
        "part4.table": "slice(tokenizer.words.weight, 0, 0, 9)",
        "part5.table": "slice(tokenizer.words.weight, 0, 9, 14)",
        "part6.table": "slice(tokenizer.words.weight, 0, 14, 26)",
    }
    assert {entry.status for entry in mapping.entries if "part" in entry.target} == {"guessed"}


@pytest.mark.parametrize(
    ("own", "source"), [([1, 6, 2], [7]), ([2, 5, 5, 2], [7, 7]), ([3, 4, 3], [7]), ([8, 9], [7, 10])]
)
def test_tables_that_are_the_rows_of_others_in_no_way_or_in_several_stay_without_a_source(
    own: list[int], source: list[int]
) -> None:
    theirs = OUTPUT | {f"t{n}.weight": (rows, 4) for n, rows in enumerate(source)}
    mapping = port(signature(theirs), wanted(rows_of(own) | {f"last.{k}": v for k, v in OUTPUT.items()}))
    assert [entry.target for entry in mapping.entries if "part" in entry.target and entry.expr is not None] == []
