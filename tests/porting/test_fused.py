"""Projections that are several in one: taken apart as code and names show, and guesses where neither does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, lazy_tensor, pairing, signature, wanted, worked_out

from ckptool.model_code.signature import Entry, Facts, Flow, Layout, Part, Signature
from ckptool.porting.expression import lazy, shape_of
from ckptool.porting.port import port

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
        key: Entry(key, shape, parameter=True, used=place, how="linear", facts=_grouped(key, shape))
        for place, (key, shape) in enumerate(shapes.items())
    }
    return Signature("Net", entries, traced=True)


def _grouped(key: str, shape: tuple[int, ...]) -> Facts:
    return Facts(layout=Layout("grouped", (shape[0] // HEAD, HEAD))) if ".attn." in key else Facts()


@pytest.mark.parametrize("name", ["qkv", "c_attn", "to_qkv"])
def test_one_part_follows_the_other_where_the_name_says_so(name: str) -> None:
    source = fused(name)
    made = worked_out(source, apart())
    for n in range(2):
        for place, part in enumerate("qkv"):
            got = made[f"blocks.{n}.attn.{part}_proj.weight"]
            assert got.status == "mapped"
            whole = source[f"layers.{n}.attn.{name}.weight"]
            np.testing.assert_array_equal(got.values, whole[place * WIDTH : (place + 1) * WIDTH])


@pytest.mark.parametrize("groups", [0, 2, 4])
def test_where_not_all_code_keeps_the_order_of_a_name_it_is_a_question_unless_code_cuts_it_into_heads(
    groups: int,
) -> None:
    """Code that cuts the rows into other groups than attention heads shares them out to devices."""
    shapes = {key: value.shape for key, value in fused("qkv_proj").items()}
    source = signature(shapes)
    if groups:
        facts = Facts(layout=Layout("grouped", (groups, 3 * WIDTH // groups)))
        entries = {k: replace(e, facts=facts) if "qkv_proj" in k else e for k, e in wanted(shapes).entries.items()}
        source = Signature("", entries)
    whole = RANDOM.standard_normal((3 * WIDTH, WIDTH)).astype(np.float32)
    tensors = {key: lazy_tensor(whole) for key in shapes if "qkv_proj" in key}
    rows = whole.reshape(max(groups, 1), 3, -1, WIDTH)
    mapping = port(source, with_heads(apart()))
    for place, part in enumerate("qkv"):
        entry = found(mapping, f"blocks.1.attn.{part}_proj.weight")
        assert entry.status == ("mapped" if groups == WIDTH // HEAD else "guessed")
        ways = [lazy(expr, tensors).numpy() for expr in (entry.expr, *entry.rivals)]
        np.testing.assert_array_equal(ways[0], rows[:, place].reshape(WIDTH, WIDTH))
        if part != "q" and entry.status == "guessed":
            np.testing.assert_array_equal(ways[1], rows[:, 3 - place].reshape(WIDTH, WIDTH))


def test_a_projection_may_have_query_key_and_value_of_each_number_side_by_side() -> None:
    """LightGlue reshapes the outputs of Wqkv to [heads, width of a head, 3]."""
    whole = RANDOM.standard_normal((3 * WIDTH, WIDTH)).astype(np.float32)
    shapes = {key: value.shape for key, value in fused("Wqkv").items()}
    facts = Facts(layout=Layout("grouped", (6, 2, 3)), parts=tuple(Part(name, 0) for name in "qkv"))
    entries = {k: replace(e, facts=facts) if "Wqkv" in k else e for k, e in wanted(shapes).entries.items()}
    mapping = port(Signature("", entries), with_heads(apart()))
    tensors = {key: lazy_tensor(whole) for key in shapes if "Wqkv" in key}
    for place, part in enumerate("qkv"):
        entry = found(mapping, f"blocks.1.attn.{part}_proj.weight")
        assert entry.status == "mapped"
        np.testing.assert_array_equal(lazy(entry.expr, tensors).numpy(), whole[place::3])


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
        ("qkv_proj", "qkv", "guessed"),
        ("qkv_proj", "qkv_proj", "mapped"),
    ],
)
def test_what_may_alternate_by_head_is_taken_in_doubt_by_a_model_that_calls_it_otherwise_and_has_blocks(
    theirs: str, own: str, expected: str
) -> None:
    shapes = {key.replace("layers", "blocks"): value.shape for key, value in fused(own).items()}
    target = wanted(shapes, used=shapes)
    entries = {
        key: replace(entry, how="linear", facts=Facts(layout=Layout("block")) if own in key else Facts())
        for key, entry in target.entries.items()
    }
    mapping = port(signature({k: v.shape for k, v in fused(theirs).items()}), replace(target, entries=entries))
    entry = found(mapping, f"blocks.1.attn.{own}.weight")
    assert (str(entry.expr), entry.status) == (f"layers.1.attn.{theirs}.weight", expected)


@pytest.mark.parametrize(("name", "parts"), [("qkv", 3), ("gate_up", 2)])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_heads_that_do_not_divide_the_rows_of_the_parts_are_no_option(name: str, parts: int, rows: int) -> None:
    shape = (parts * rows, 6)
    model = wanted({f"b.{name}.weight": shape, "out.weight": (5, 6)}, used=[f"b.{name}.weight", "out.weight"])
    entry = model.entries[f"b.{name}.weight"]
    entries = {**model.entries, entry.key: replace(entry, facts=Facts(layout=Layout("inside", (3, 5))))}
    source = {f"a.{name}_proj.weight" if name != "qkv" else "a.to_qkv.weight": shape, "out.weight": (5, 6)}
    made = found(port(signature(source), replace(model, entries=entries)), entry.key)
    for option in (made.expr, *made.rivals):
        assert shape_of(option, source) == shape


@pytest.mark.parametrize(
    ("theirs", "own", "expected"),
    [
        ("w13", "gate_up_proj", "guessed"),
        ("gate_up_proj", "w13", "guessed"),
        ("w1", "gate_up_proj", "guessed"),
        ("gate_up", "gate_up_proj", "mapped"),
        ("w13", "w13", "mapped"),
    ],
)
@pytest.mark.parametrize("experts", [0, 4])
def test_gate_and_up_in_one_under_two_names_are_in_doubt_unless_both_say_how_they_stand(
    theirs: str, own: str, expected: str, experts: int
) -> None:
    stack = (experts,) if experts else ()

    def named(fused: str, inner: str, outer: str) -> dict[str, tuple[int, ...]]:
        leaf = "" if experts else ".weight"
        return {
            f"{outer}.{n}.mlp.{name}{leaf}": (*stack, *shape)
            for n in range(2)
            for name, shape in ((fused, (24, 8)), (inner, (8, 12)))
        } | {f"{outer}.{n}.norm.weight": (8,) for n in range(2)}

    target = named(own, "down_proj", "layers")
    mapping = port(signature(named(theirs, "w2", "blocks")), wanted(target, used=target))
    key = next(key for key in target if own in key)
    assert found(mapping, key).status == expected, found(mapping, key)
    assert str(found(mapping, key).expr).startswith("blocks.0.mlp." + theirs)


@pytest.mark.parametrize(("heads", "expected"), [(4, "guessed"), (0, "mapped")])
@pytest.mark.parametrize("pixels", [(1,), (1, 1)])
def test_what_a_convolution_gives_may_be_cut_into_heads_first(
    heads: int, expected: str, pixels: tuple[int, ...]
) -> None:
    source = {
        key: value.reshape(*value.shape, *pixels) if "qkv" in key else value for key, value in fused("qkv").items()
    }
    target = with_heads(apart())
    if not heads:
        entries = {key: replace(entry, facts=Facts()) for key, entry in target.entries.items()}
        target = replace(target, entries=entries)
    entry = found(port(signature({k: v.shape for k, v in source.items()}), target), "blocks.1.attn.v_proj.weight")
    assert entry.status == expected
    assert str(entry.expr) == "reshape(slice(layers.1.attn.qkv.weight, 0, 24, 36), 12, 12)"
    if heads:
        assert any("of_heads" in rival.operations() for rival in entry.rivals)


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
            assert entry.status == ("mapped" if keys < WIDTH else "guessed")  # of its order, where all have one size
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


@pytest.mark.parametrize(
    ("name", "path", "beside"),
    [
        ("Wqkv", "layers.{}.mixer", "out_proj"),  # flash-attn
        ("Wqkv", "layers.{}.attn", "Wo"),  # ModernBERT
        ("W_pack", "model.layers.{}.self_attn", "o_proj"),  # Baichuan
        ("query_key_value", "transformer.encoder.layers.{}.self_attention", "dense"),  # ChatGLM
    ],
)
@pytest.mark.parametrize("keys", [HEAD * 2, WIDTH])
def test_libraries_that_store_one_part_after_the_other_are_known_by_their_names(
    name: str, path: str, beside: str, keys: int
) -> None:
    old, named = "layers.{}.attn." + name, f"{path}.{name}"
    source = {key: value.shape for key, value in fused(name, keys=keys).items()}
    target = apart(keys=keys)
    for n in range(2):
        source[f"{named.format(n)}.weight"] = source.pop(f"{old.format(n)}.weight")
        source[f"{path.format(n)}.{beside}.weight"] = (WIDTH, WIDTH + 1)
        target[f"blocks.{n}.attn.o_proj.weight"] = (WIDTH, WIDTH + 1)
    entry = found(port(signature(source), with_heads(target)), "blocks.1.attn.k_proj.weight")
    assert str(entry.expr) == f"slice({named.format(1)}.weight, 0, {WIDTH}, {WIDTH + keys})"
    assert entry.status == "mapped"


def test_a_name_of_flash_attn_in_a_module_of_another_name_is_a_question() -> None:
    """LightGlue has Wqkv beside out_proj, too, and stores queries, keys and values number by number."""
    source = {key: value.shape for key, value in fused("Wqkv").items()}
    target = apart()
    for n in range(2):
        source[f"layers.{n}.attn.out_proj.weight"] = target[f"blocks.{n}.attn.o_proj.weight"] = (WIDTH, WIDTH + 1)
    assert found(port(signature(source), with_heads(target)), "blocks.1.attn.k_proj.weight").status == "guessed"


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


@pytest.mark.parametrize("name", ["", "qkv_proj", "wqkv"])
@pytest.mark.parametrize("groups", [1, 2])
def test_heads_of_keys_that_several_queries_share_are_repeated_in_place_in_doubt(name: str, groups: int) -> None:
    keys = groups * HEAD
    shapes = apart(keys=keys) if not name else {key: value.shape for key, value in fused(name, keys=keys).items()}
    source = {key: RANDOM.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    target = with_heads({key.replace("blocks", "h"): shape for key, shape in apart().items()})
    mapping = port(signature(shapes), target)
    tensors = {key: lazy_tensor(value) for key, value in source.items()}
    for n in range(2):
        for place, part in enumerate("kv"):
            entry = found(mapping, f"h.{n}.attn.{part}_proj.weight")
            assert entry.status == ("guessed" if groups > 1 else "mapped")
            if name:
                whole = source[f"layers.{n}.attn.{name}.weight"]
                few = np.split(whole[WIDTH:], 2)[place]
            else:
                few = source[f"blocks.{n}.attn.{part}_proj.weight"]
            expected = few.reshape(groups, 1, HEAD, WIDTH).repeat(WIDTH // keys, 1).reshape(WIDTH, WIDTH)
            ways = [lazy(expr, tensors).numpy() for expr in (entry.expr, *entry.rivals)]
            np.testing.assert_array_equal(ways[0], expected)
    assert found(mapping, "h.1.attn.q_proj.weight").expr is not None


@pytest.mark.parametrize("order", ["qkvg", "gqkv", "kqgv"])
@pytest.mark.parametrize("back", [False, True])
def test_a_name_of_first_letters_says_which_parts_a_layer_has_and_in_which_order(order: str, back: bool) -> None:
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "g": "gate_proj"}
    rows = {"q": 8, "k": 8, "v": 16, "g": 16}
    one = {
        f"h.{n}.mix.{name}.{leaf}": (rows[c], *((8,) if leaf == "weight" else ()))
        for n in range(2)
        for c, name in names.items()
        for leaf in ("weight", "bias")
    } | {f"h.{n}.mix.o_proj.weight": (8, 16) for n in range(2)}
    other = {
        f"blocks.{n}.mixer.{order}_proj.{leaf}": (48, *((8,) if leaf == "weight" else ()))
        for n in range(2)
        for leaf in ("weight", "bias")
    } | {f"blocks.{n}.mixer.out.weight": (8, 16) for n in range(2)}
    source, target = (one, other) if back else (other, one)
    mapping = port(signature(source), wanted(target))
    starts = dict(zip(order, np.cumsum([0, *(rows[c] for c in order)]), strict=False))
    for n in range(2):
        for leaf in ("weight", "bias"):
            if back:
                entry = found(mapping, f"blocks.{n}.mixer.{order}_proj.{leaf}")
                parts = ", ".join(f"h.{n}.mix.{names[c]}.{leaf}" for c in order)
                assert (str(entry.expr), entry.status) == (f"cat(0, {parts})", "mapped")
            else:
                for c, name in names.items():
                    entry = found(mapping, f"h.{n}.mix.{name}.{leaf}")
                    rows_of = f"{starts[c]}, {starts[c] + rows[c]}"
                    whole = f"blocks.{n}.mixer.{order}_proj.{leaf}"
                    assert (str(entry.expr), entry.status) == (f"slice({whole}, 0, {rows_of})", "mapped")


@pytest.mark.parametrize("value", ["value", "self_attention_value_layer"])
def test_a_bias_of_zeros_for_the_keys_gives_them_no_words_of_the_values(value: str) -> None:
    names = {"key": "k_proj", "query": "q_proj", value: "v_proj", "out": "out_proj"}
    shapes = {"weight": (8, 8), "bias": (8,)}
    source = {f"attn.{name}.{leaf}": shape for name in names for leaf, shape in shapes.items()}
    target = {f"mix.{own}.{leaf}": shape for own in sorted(names.values()) for leaf, shape in shapes.items()}
    del source["attn.key.bias"]
    mapping = port(signature(source), wanted(target))
    made = {f"mix.{own}.{leaf}": f"attn.{name}.{leaf}" for name, own in names.items() for leaf in shapes}
    assert pairing(mapping) == made | {"mix.k_proj.bias": "zeros(8)"}
    assert mapping.is_sure


@pytest.mark.parametrize("target_fused", [True, False])
def test_keys_without_a_bias_beside_queries_and_values_with_one_have_one_of_zeros(target_fused: bool) -> None:
    source = {key: RANDOM.standard_normal(shape).astype(np.float32) for key, shape in apart().items()}
    for n in range(2):
        for part in "qv":
            source[f"blocks.{n}.attn.{part}_proj.bias"] = RANDOM.standard_normal(WIDTH).astype(np.float32)
    shapes = {k: v.shape for k, v in fused("c_attn").items()} if target_fused else apart(suffix="")
    for key, shape in list(shapes.items()):
        if ".attn." in key:
            shapes[key.replace("weight", "bias")] = shape[:1]
    made = worked_out(source, shapes)
    for n in range(2):
        whole = [source[f"blocks.{n}.attn.q_proj.bias"], np.zeros(WIDTH), source[f"blocks.{n}.attn.v_proj.bias"]]
        keys = [f"layers.{n}.attn.c_attn.bias"] if target_fused else [f"blocks.{n}.attn.{p}.bias" for p in "qkv"]
        np.testing.assert_array_equal(np.concatenate([made[key].values for key in keys]), np.concatenate(whole))
        assert {made[key].status for key in keys} == {"mapped"}


def test_shared_heads_are_repeated_for_a_model_that_holds_all_in_one_and_for_keys_and_values_in_one() -> None:
    source = {
        f"blocks.{n}.attn.{name}.weight": (rows, WIDTH)
        for n in range(2)
        for name, rows in (("q_proj", WIDTH), ("kv_proj", 2 * 2 * HEAD))
    }
    source |= {f"blocks.{n}.out.weight": (5, WIDTH) for n in range(2)}
    entries = {
        key: Entry(
            key,
            shape,
            parameter=True,
            used=at,
            how="linear",
            facts=Facts(layout=Layout("block"), heads=WIDTH // HEAD) if ".attn." in key else Facts(),
        )
        for at, (key, shape) in enumerate({k: v.shape for k, v in fused("c_attn").items()}.items())
    }
    mapping = port(signature(source), Signature("Net", entries, traced=True))
    for n in range(2):
        entry = found(mapping, f"layers.{n}.attn.c_attn.weight")
        key, value = (f"slice(blocks.{n}.attn.kv_proj.weight, 0, {at}, {at + 6})" for at in (0, 6))
        both = f"by_heads(2, {key}, {key}), by_heads(2, {value}, {value})"
        assert (str(entry.expr), entry.status) == (f"cat(0, blocks.{n}.attn.q_proj.weight, {both})", "guessed")


def test_parts_of_a_fused_layer_take_one_input_and_none_of_them_the_output_of_another() -> None:
    names = ("context", "glimpse_key", "glimpse_value", "logit_key", "glimpse_out")
    before = {"context": 1, "glimpse_key": 1, "glimpse_value": 1, "logit_key": 1, "glimpse_out": 0b1101}
    inputs = {"context": 0, "glimpse_key": 1, "glimpse_value": 1, "logit_key": 1, "glimpse_out": 2}
    model = wanted({"stem.weight": (8, 2)} | {f"point.{name}.weight": (8, 8) for name in names})
    entries = dict(model.entries)
    for n, name in enumerate(names, 1):
        facts = Facts(Flow(n, before[name]), input=inputs[name])
        entries[f"point.{name}.weight"] = replace(entries[f"point.{name}.weight"], used=n, how="linear", facts=facts)
    source = {"init.weight": (8, 2), "nodes.weight": (24, 8), "fixed_context.weight": (8, 8)}
    source |= {"project_out.weight": (8, 8)}
    got = pairing(port(signature(source), replace(model, entries=entries, traced=True)))
    assert got["point.glimpse_out.weight"] == "project_out.weight"
    assert got["point.context.weight"] == "fixed_context.weight"
    assert {got[f"point.{name}.weight"].partition(",")[0] for name in names[1:4]} == {"slice(nodes.weight"}


@pytest.mark.parametrize("whole", ["qkv", "mat_qkv"])
@pytest.mark.parametrize("keys", [True, False])
def test_biases_of_queries_and_values_are_one_with_that_of_the_keys_or_zeros(keys: bool, whole: str) -> None:
    names = ["q_bias", *(["k_bias"] if keys else []), "v_bias"]
    source = {f"blocks.0.attn.{name}": RANDOM.standard_normal(WIDTH).astype(np.float32) for name in names}
    source |= {f"blocks.0.attn.{whole}.weight": RANDOM.standard_normal((3 * WIDTH, WIDTH)).astype(np.float32)}
    target = {"layers.0.attn.qkv.weight": (3 * WIDTH, WIDTH), "layers.0.attn.qkv.bias": (3 * WIDTH,)}
    made = worked_out(source, target)["layers.0.attn.qkv.bias"].values
    held = {
        name: source.get(f"blocks.0.attn.{name}", np.zeros(WIDTH, np.float32))
        for name in ("q_bias", "k_bias", "v_bias")
    }
    np.testing.assert_array_equal(made, np.concatenate([*held.values()]))


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("fused", ["qkv.bias", "q_bias and v_bias"])
def test_biases_of_queries_and_values_belong_to_projections_that_stand_apart(keys: bool, fused: str) -> None:
    """EVA-02 has q_proj.weight, k_proj.weight and v_proj.weight beside q_bias and v_bias, and a model of timm has all
    three weights in qkv.
    """
    names = ["q_bias", *(["k_bias"] if keys else []), "v_bias"]
    source = {f"blocks.{n}.attn.{name}": RANDOM.standard_normal(WIDTH) for n in range(2) for name in names}
    weights = [f"{part}_proj.weight" for part in "qkv"]
    source |= {f"blocks.{n}.attn.{name}": RANDOM.standard_normal((WIDTH, WIDTH)) for n in range(2) for name in weights}
    target = {f"layers.{n}.attn.qkv.weight": (3 * WIDTH, WIDTH) for n in range(2)}
    own = {"qkv.bias": 3 * WIDTH} if fused == "qkv.bias" else dict.fromkeys(names, WIDTH)
    target |= {f"layers.{n}.attn.{name}": (size,) for n in range(2) for name, size in own.items()}
    made = worked_out({key: value.astype(np.float32) for key, value in source.items()}, target)
    assert {one.status for one in made.values()} == {"mapped"}
    held = [source.get(f"blocks.1.attn.{name}", np.zeros(WIDTH)) for name in ("q_bias", "k_bias", "v_bias")]
    found = [made[f"layers.1.attn.{name}"].values for name in own]
    wanted_values = held if fused == "qkv.bias" else [source[f"blocks.1.attn.{name}"] for name in names]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(wanted_values), rtol=1e-6)


@pytest.mark.parametrize("keys", [True, False])
def test_biases_of_queries_and_values_belong_to_the_parts_of_a_projection_that_code_cuts_by_heads(keys: bool) -> None:
    """DeBERTa cuts in_proj head by head, and q_bias and v_bias are added to the queries and values themselves."""
    source = {f"l.attn.{part}_bias": (WIDTH,) for part in ("qkv" if keys else "qv")}
    source |= {"l.attn.in_proj.weight": (3 * WIDTH, WIDTH)}
    facts = Facts(layout=Layout("grouped", (2, 3 * WIDTH // 2)))
    entries = {k: replace(e, facts=facts) if "in_proj" in k else e for k, e in wanted(source).entries.items()}
    target = {
        f"h.attn.{part}.{leaf}": (WIDTH, WIDTH)[: 2 - at]
        for part in ("query", "key", "value")
        for at, leaf in enumerate(("weight", "bias"))
        if part != "key" or keys or not at
    }
    got = pairing(port(Signature("", entries), wanted(target)))
    biases = {f"h.attn.{part}.bias": f"l.attn.{part[0]}_bias" for part in ("query", "key", "value")}
    weights = ("query", "key", "value")
    parts = {f"h.attn.{p}.weight": f"of_heads(l.attn.in_proj.weight, 2, 3, {i})" for i, p in enumerate(weights)}
    assert got == parts | {key: bias for key, bias in biases.items() if key in target}


def test_biases_of_queries_and_values_become_one_in_the_order_of_a_projection_that_code_cuts_by_heads() -> None:
    source = {"l.attn.q_bias": (WIDTH,), "l.attn.v_bias": (WIDTH,), "l.attn.in_proj.weight": (3 * WIDTH, WIDTH)}
    target = {"h.attn.in_proj.weight": (3 * WIDTH, WIDTH), "h.attn.in_proj.bias": (3 * WIDTH,)}
    facts = Facts(layout=Layout("grouped", (2, 3 * WIDTH // 2)))
    sides = [
        {k: replace(e, facts=facts) if "weight" in k else e for k, e in wanted(side).entries.items()}
        for side in (source, target)
    ]
    got = pairing(port(*(Signature("", entries) for entries in sides)))
    assert got["h.attn.in_proj.bias"] == f"by_heads(2, l.attn.q_bias, zeros({WIDTH}), l.attn.v_bias)"


@pytest.mark.parametrize("rows", [WIDTH, 2 * WIDTH])
def test_one_layer_for_queries_and_keys_is_each_of_them_or_has_each_in_a_half(rows: int) -> None:
    """The cross-attention of LightGlue has the same projection for both."""
    source = {f"l.{n}.cross.to_qk.weight": RANDOM.standard_normal((rows, WIDTH)) for n in range(2)}
    source |= {f"l.{n}.cross.to_qk.bias": RANDOM.standard_normal(rows) for n in range(2)}
    source |= {f"l.{n}.cross.to_v.weight": RANDOM.standard_normal((WIDTH, WIDTH)) for n in range(2)}
    target: dict[str, tuple[int, ...]] = {}
    for n in range(2):
        target |= {f"h.{n}.attn.{part}_proj.weight": (WIDTH, WIDTH) for part in "qkv"}
        target |= {f"h.{n}.attn.{part}_proj.bias": (WIDTH,) for part in "qk"}
    made = worked_out({key: value.astype(np.float32) for key, value in source.items()}, target)
    for at, part in enumerate("qk"):
        for leaf in ("weight", "bias"):
            one = made[f"h.1.attn.{part}_proj.{leaf}"]
            start = at * WIDTH if rows > WIDTH else 0
            whole = source[f"l.1.cross.to_qk.{leaf}"].astype(np.float32)
            np.testing.assert_array_equal(one.values, whole[start : start + WIDTH])
            assert one.status == "mapped"


def test_queries_and_keys_in_two_halves_stay_halves_where_others_are_as_large_as_both() -> None:
    source = {"small.to_qk.weight": (2 * WIDTH, WIDTH), "large.to_qk.weight": (4 * WIDTH, WIDTH)}
    target = {f"small.{part}_proj.weight": (WIDTH, WIDTH) for part in "qk"}
    target |= {f"large.{part}_proj.weight": (2 * WIDTH, WIDTH) for part in "qk"}
    mapping = port(signature(source), wanted(target))
    assert str(found(mapping, "small.k_proj.weight").expr) == f"slice(small.to_qk.weight, 0, {WIDTH}, {2 * WIDTH})"
    assert str(found(mapping, "large.q_proj.weight").expr) == f"slice(large.to_qk.weight, 0, 0, {2 * WIDTH})"


@pytest.mark.parametrize("seen", [True, False])
def test_a_layer_whose_output_code_divides_into_no_parts_has_no_half_that_is_a_gate(seen: bool) -> None:
    source = {f"block.W1{n}.weight": (8, 6 if n == 1 else 8) for n in (1, 2, 3)}
    target = wanted({f"block.{name}.weight": (8, 6 if name == "enter" else 8) for name in ("enter", "mid", "leave")})
    entries = {key: replace(entry, how="linear" if seen else "", used=None) for key, entry in target.entries.items()}
    made = port(signature(source), replace(target, entries=entries))
    asks = {question.reason.name for entry in made.entries for question in entry.questions}
    assert ("HALF_ARRANGED" in asks) != seen
