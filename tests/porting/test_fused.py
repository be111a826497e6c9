"""Projections that are several in one: taken apart as code and names show, and guesses where neither does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, lazy_tensor, pairing, signature, wanted, worked_out

from ckptool.porting.expression import lazy
from ckptool.porting.port import port
from ckptool.signature import Entry, Signature

WIDTH, HEAD = 12, 3
RANDOM = np.random.default_rng(0)


def apart(order: str = "qkv", *, keys: int = WIDTH, suffix: str = "_proj") -> dict[str, tuple[int, ...]]:
    """Two blocks with queries, keys and values of so many rows, registered in this order."""
    return {
        f"blocks.{n}.attn.{part}{suffix}.weight": (WIDTH if part == "q" else keys, WIDTH)
        for n in range(2)
        for part in order
    } | {f"blocks.{n}.out.weight": (5, WIDTH) for n in range(2)}


def fused(name: str, *, keys: int = WIDTH) -> dict[str, np.ndarray[Any, Any]]:
    return {
        f"layers.{n}.attn.{name}.weight": RANDOM.standard_normal((WIDTH + 2 * keys, WIDTH)).astype(np.float32)
        for n in range(2)
    } | {f"layers.{n}.out.weight": RANDOM.standard_normal((5, WIDTH)).astype(np.float32) for n in range(2)}


def with_heads(shapes: dict[str, tuple[int, ...]]) -> Signature:
    """A model whose forward pass was followed: what makes queries, keys and values is seen as so many heads."""
    entries = {
        key: Entry(key, shape, parameter=True, used=place, how="linear", notes=_grouped(key, shape))
        for place, (key, shape) in enumerate(shapes.items())
    }
    return Signature("Net", entries, traced=True)


def _grouped(key: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"layout": ("grouped", (shape[0] // HEAD, HEAD))} if ".attn." in key else {}


@pytest.mark.parametrize("name", ["qkv", "qkv_proj", "c_attn", "to_qkv"])
def test_one_part_follows_the_other_where_the_name_says_so(name: str) -> None:
    source = fused(name)
    made = worked_out(source, apart())
    for n in range(2):
        for place, part in enumerate("qkv"):
            got = made[f"blocks.{n}.attn.{part}_proj.weight"]
            assert got.status == "mapped"
            whole = source[f"layers.{n}.attn.{name}.weight"]
            np.testing.assert_array_equal(got.values, whole[place * WIDTH : (place + 1) * WIDTH])


@pytest.mark.parametrize("order", ["kvq", "kqv"])
def test_where_all_code_keeps_the_order_that_a_name_says_it_is_no_doubt(order: str) -> None:
    made = worked_out(fused("c_attn"), apart(order))
    assert {entry.status for entry in made.values()} == {"mapped"}


@pytest.mark.parametrize("order", ["kvq", "vkq", "kqv"])
def test_a_model_that_holds_them_in_another_order_than_the_name_says_is_a_doubt(order: str) -> None:
    mapping = port(signature({k: v.shape for k, v in fused("qkv_proj").items()}), wanted(apart(order)))
    entry = found(mapping, "blocks.1.attn.v_proj.weight")
    assert entry.status == "guessed"
    start = WIDTH * order.index("v")
    assert f"slice(layers.1.attn.qkv_proj.weight, 0, {start}, {start + WIDTH})" in map(str, (entry.expr, *entry.rivals))


def test_what_torch_itself_lays_out_is_no_doubt_whatever_the_order_of_the_model() -> None:
    shapes = {k.replace(".weight", "_weight") if "in_proj" in k else k: v.shape for k, v in fused("in_proj").items()}
    mapping = port(signature(shapes), wanted(apart("kvq")))
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_a_layer_that_is_only_called_as_torch_calls_its_own_parameter_may_be_laid_out_by_heads() -> None:
    source = signature({k: v.shape for k, v in fused("in_proj").items()})
    entry = found(port(source, with_heads(apart())), "blocks.1.attn.v_proj.weight")
    assert entry.status == "guessed"
    assert any(rival.op == "of_heads" for rival in entry.rivals)


@pytest.mark.parametrize(
    ("theirs", "own", "expected"),
    [
        ("query_key_value", "qkv", "guessed"),
        ("in_proj", "c_attn", "guessed"),
        ("query_key_value", "query_key_value", "mapped"),
        ("c_attn", "qkv", "mapped"),
    ],
)
def test_what_may_alternate_by_head_is_taken_in_doubt_by_a_model_that_calls_it_otherwise_and_has_blocks(
    theirs: str, own: str, expected: str
) -> None:
    shapes = {key.replace("layers", "blocks"): value.shape for key, value in fused(own).items()}
    target = wanted(shapes, used=shapes)
    entries = {
        key: replace(entry, how="linear", notes={"layout": ("block", ())} if own in key else {})
        for key, entry in target.entries.items()
    }
    mapping = port(signature({k: v.shape for k, v in fused(theirs).items()}), replace(target, entries=entries))
    entry = found(mapping, f"blocks.1.attn.{own}.weight")
    assert (str(entry.expr), entry.status) == (f"layers.1.attn.{theirs}.weight", expected)


@pytest.mark.parametrize(("own", "expected"), [("c_attn", "guessed"), ("attention_qkv", "mapped")])
def test_a_name_under_which_all_code_has_blocks_stands_for_a_forward_pass_that_does_not_show_it(
    own: str, expected: str
) -> None:
    shapes = {key.replace("layers", "blocks"): value.shape for key, value in fused(own).items()}
    source = {k: v.shape for k, v in fused("query_key_value").items()}
    entry = found(port(signature(source), wanted(shapes, used=shapes)), f"blocks.1.attn.{own}.weight")
    assert (str(entry.expr), entry.status) == ("layers.1.attn.query_key_value.weight", expected)


@given(groups=st.sampled_from([1, 2, 4]), name=st.sampled_from(["query_key_value", "linear_qkv", "wqkv", "qkv_proj"]))
def test_fewer_keys_than_queries_stand_in_blocks_or_in_groups(groups: int, name: str) -> None:
    keys = groups * HEAD
    source = fused(name, keys=keys)
    mapping = port(signature({k: v.shape for k, v in source.items()}), with_heads(apart(keys=keys)))
    tensors = {key: lazy_tensor(value) for key, value in source.items()}
    whole = source["layers.0.attn." + name + ".weight"]
    blocks = np.split(whole, [WIDTH, WIDTH + keys])
    inside = whole.reshape(groups, -1, HEAD, WIDTH)
    alternating = [inside[:, :-2], inside[:, -2], inside[:, -1]]
    for place, part in enumerate("qkv"):
        entry = found(mapping, f"blocks.0.attn.{part}_proj.weight")
        ways = [lazy(expr, tensors).numpy() for expr in (entry.expr, *entry.rivals)]
        likely = [blocks[place], alternating[place].reshape(blocks[place].shape)]
        if groups == 1 or name == "qkv_proj":
            assert entry.status == "mapped"
            np.testing.assert_array_equal(ways[0], likely[0])
        else:
            first = likely if name == "wqkv" else likely[::-1]
            assert entry.status == "guessed"
            np.testing.assert_array_equal(ways[0], first[0])
            assert any(np.array_equal(way, first[1]) for way in ways[1:])


@pytest.mark.parametrize(
    ("name", "inner", "blocks"), [("query_key_value", 2, True), ("query_key_value", 1, False), ("linear_qkv", 2, False)]
)
def test_code_that_joins_gate_and_up_has_fewer_keys_than_queries_in_blocks_most_likely(
    name: str, inner: int, blocks: bool
) -> None:
    keys = 2 * HEAD
    source = {key: value.shape for key, value in fused(name, keys=keys).items()}
    target = apart(keys=keys)
    for n in range(2):
        source |= {
            f"layers.{n}.mlp.dense_h_to_4h.weight": (inner * 10, WIDTH),
            f"layers.{n}.mlp.dense_4h_to_h.weight": (WIDTH, 10),
        }
        parts = ("gate_proj", "up_proj") if inner == 2 else ("up_proj",)
        target |= {f"blocks.{n}.mlp.{part}.weight": (10, WIDTH) for part in parts}
        target |= {f"blocks.{n}.mlp.down_proj.weight": (WIDTH, 10)}
    entry = found(port(signature(source), with_heads(target)), "blocks.1.attn.k_proj.weight")
    assert entry.status == "guessed"
    assert (str(entry.expr) == f"slice(layers.1.attn.{name}.weight, 0, {WIDTH}, {WIDTH + keys})") is blocks


@pytest.mark.parametrize(("beside", "status"), [("linear_proj", "mapped"), ("proj", "guessed")])
@pytest.mark.parametrize("keys", [HEAD * 2, WIDTH])
def test_a_name_that_a_library_has_says_what_that_does_where_more_of_it_stands_beside(
    keys: int, beside: str, status: str
) -> None:
    source = {key: value.shape for key, value in fused("linear_qkv", keys=keys).items()}
    target = apart(keys=keys)
    for n in range(2):
        source[f"layers.{n}.attn.{beside}.weight"] = target[f"blocks.{n}.attn.o_proj.weight"] = (WIDTH, WIDTH + 1)
    followed, blind = (
        found(port(signature(source), one), "blocks.1.attn.k_proj.weight")
        for one in (with_heads(target), wanted(target))
    )
    assert (followed.status, blind.status) == (status, "guessed")
    assert "of_heads" in str(followed.expr)


def test_queries_and_fused_keys_and_values_come_out_of_one_projection() -> None:
    source = fused("query_key_value", keys=HEAD)
    shapes = {
        f"blocks.{n}.attn.{name}.weight": (rows, WIDTH)
        for n in range(2)
        for name, rows in (("to_q", WIDTH), ("to_kv", 2 * HEAD))
    } | {f"blocks.{n}.out.weight": (5, WIDTH) for n in range(2)}
    made = worked_out(source, shapes)
    for n in range(2):
        whole = source[f"layers.{n}.attn.query_key_value.weight"]
        np.testing.assert_array_equal(made[f"blocks.{n}.attn.to_q.weight"].values, whole[:WIDTH])
        np.testing.assert_array_equal(made[f"blocks.{n}.attn.to_kv.weight"].values, whole[WIDTH:])


def test_a_convolution_over_what_was_fused_is_fused_and_one_in_a_part_is_its_part() -> None:
    source = {
        f"layers.{n}.attn.{leaf}.weight": shape
        for n in range(2)
        for leaf, shape in (("qkv", (24, 8, 1, 1)), ("qkv_dwconv", (24, 1, 3, 3)), ("out", (8, 8, 3, 3)))
    }
    target: dict[str, tuple[int, ...]] = {}
    for n in range(2):
        for part in ("to_q", "to_k", "to_v"):
            target |= {f"blocks.{n}.{part}.0.weight": (8, 8, 1, 1), f"blocks.{n}.{part}.1.weight": (8, 1, 3, 3)}
        target[f"blocks.{n}.project.weight"] = (8, 8, 3, 3)
    mapping = port(signature(source), wanted(target, used=target))
    for n in range(2):
        for place, part in enumerate(("to_q", "to_k", "to_v")):
            rows = f"weight, 0, {8 * place}, {8 * place + 8})"
            assert pairing(mapping)[f"blocks.{n}.{part}.0.weight"] == f"slice(layers.{n}.attn.qkv.{rows}"
            assert pairing(mapping)[f"blocks.{n}.{part}.1.weight"] == f"slice(layers.{n}.attn.qkv_dwconv.{rows}"


def test_halves_of_a_gated_layer_are_guesses_where_the_name_says_no_order() -> None:
    shapes = {"mlp.wi_fused.weight": (16, 6), "mlp.w3.weight": (6, 8)}
    target = wanted({"mlp.gate_proj.weight": (8, 6), "mlp.up_proj.weight": (8, 6), "mlp.down_proj.weight": (6, 8)})
    mapping = port(signature(shapes), target)
    entry = found(mapping, "mlp.gate_proj.weight")
    assert entry.status == "guessed"
    assert [str(entry.expr), *map(str, entry.rivals)][:2] == [
        "slice(mlp.wi_fused.weight, 0, 0, 8)",
        "slice(mlp.wi_fused.weight, 0, 8, 16)",
    ]


@pytest.mark.parametrize("name", ["query_key_value", "w12"])
def test_what_is_fused_on_both_sides_is_a_copy_and_no_doubt(name: str) -> None:
    shapes = {k: v.shape for k, v in fused(name).items()}
    mapping = port(signature({f"module.{key}": shape for key, shape in shapes.items()}), wanted(shapes))
    assert {str(e.expr) for e in mapping.entries} == {f"module.{key}" for key in shapes}
    assert {e.status for e in mapping.entries} == {"mapped"}


def test_what_only_has_the_shape_of_a_fused_projection_is_none_where_its_parts_are_there() -> None:
    source, target = {}, {}
    for n in range(2):
        source |= {f"layers.{n}.attention.W_{part}.weight": (8, 8) for part in "qkv"}
        source |= {f"layers.{n}.linear0.weight": (24, 8), f"layers.{n}.linear1.weight": (8, 12)}
        target |= {f"blocks.{n}.attn.in_proj_weight": (24, 8), f"blocks.{n}.value.weight": (12, 8)}
        target |= {f"blocks.{n}.gate.weight": (12, 8), f"blocks.{n}.down.weight": (8, 12)}
    mapping = port(signature(source), wanted(target))
    for n in range(2):
        entry = found(mapping, f"blocks.{n}.attn.in_proj_weight")
        assert list(entry.sources) == [f"layers.{n}.attention.W_{part}.weight" for part in "qkv"]
        assert found(mapping, f"blocks.{n}.gate.weight").status == "guessed"


def test_one_fused_projection_among_parts_goes_to_parts_among_fused_ones() -> None:
    source = {f"layers.{n}.{part}_proj.weight": (8, 8) for n in range(2) for part in "kvq"}
    source |= {f"layers.{n}.out.weight": (5, 8) for n in range(2)}
    source |= {"head.attention.in_proj_weight": (24, 8), "head.mlp.weight": (7, 8)}
    target = {f"blocks.{n}.qkv.weight": (24, 8) for n in range(2)} | {
        f"blocks.{n}.out.weight": (5, 8) for n in range(2)
    }
    target |= {"pool.q.weight": (8, 8), "pool.kv.weight": (16, 8), "pool.mlp.weight": (7, 8)}
    mapping = port(signature(source), wanted(target))
    assert [str(found(mapping, f"blocks.{n}.qkv.weight").expr) for n in range(2)] == [
        f"cat(0, layers.{n}.q_proj.weight, layers.{n}.k_proj.weight, layers.{n}.v_proj.weight)" for n in range(2)
    ]
    assert str(found(mapping, "pool.q.weight").expr) == "slice(head.attention.in_proj_weight, 0, 0, 8)"
    assert str(found(mapping, "pool.kv.weight").expr) == "slice(head.attention.in_proj_weight, 0, 8, 24)"
