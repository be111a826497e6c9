"""Heads in a dimension of their own, and lists of layers and experts in one tensor."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, lazy_tensor, pairing, signature, wanted, worked_out

from ckptool.model_code.signature import Facts
from ckptool.porting.expression import lazy
from ckptool.porting.port import port

# -- heads in a dimension of their own


@pytest.mark.parametrize(("gives", "takes"), [("gating", "output"), ("mix", "back"), ("carry", "land")])
def test_what_a_bias_says_of_heads_tells_which_dimensions_the_parameters_beside_it_take(gives: str, takes: str) -> None:
    rng = np.random.default_rng(0)
    source = {
        "part/query_w": rng.standard_normal((12, 4, 5)),
        f"part/{gives}_w": rng.standard_normal((12, 4, 5)),
        f"part/{gives}_b": rng.standard_normal((4, 5)),
        f"part/{takes}_w": rng.standard_normal((4, 5, 12)),
        f"part/{takes}_b": rng.standard_normal(12),
    }
    target = {
        "attend.query.weight": (20, 12),
        f"attend.{gives}.weight": (20, 12),
        f"attend.{gives}.bias": (20,),
        f"attend.{takes}.weight": (12, 20),
        f"attend.{takes}.bias": (12,),
    }
    made = worked_out(source, target)
    np.testing.assert_array_equal(made[f"attend.{takes}.weight"].values, source[f"part/{takes}_w"].reshape(20, 12).T)
    np.testing.assert_array_equal(made[f"attend.{gives}.weight"].values, source[f"part/{gives}_w"].reshape(12, 20).T)
    np.testing.assert_array_equal(made[f"attend.{gives}.bias"].values, source[f"part/{gives}_b"].reshape(20))


def test_fused_experts_that_a_model_multiplies_with_by_an_equation_stay_one_for_each() -> None:
    source = {f"moe.experts.{n}.{name}.weight": (7, 6) for n in range(3) for name in ("gate_proj", "up_proj")}
    source |= {f"moe.experts.{n}.down_proj.weight": (6, 7) for n in range(3)}
    target = wanted({"moe.w13_weight": (3, 14, 6), "moe.w2_weight": (3, 6, 7)})
    dims = {"moe.w13_weight": ("output", "output", "input"), "moe.w2_weight": ("input", "output", "input")}
    entries = {key: replace(entry, facts=Facts(dims=dims[key])) for key, entry in target.entries.items()}
    mapping = port(signature(source), replace(target, entries=entries))
    parts = [f"moe.experts.{n}.{name}_proj.weight" for n in range(3) for name in ("gate", "up")]
    pairs = [f"cat(0, {gate}, {up})" for gate, up in zip(parts[::2], parts[1::2], strict=True)]
    assert pairing(mapping)["moe.w13_weight"] == f"stack({', '.join(pairs)})"
    assert found(mapping, "moe.w13_weight").status == "guessed"  # which half is the gate


# -- stacks of parameters


def test_a_vector_beside_a_stack_of_matrices_is_a_stack_of_one_for_each_too() -> None:
    source = {f"look_{n}.{leaf}": size for n in range(3) for leaf, size in {"W": (7, 4), "a": (8, 1)}.items()}
    target = {"look.W": (3, 7, 4), "look.a": (3, 8)}
    entry = found(port(signature(source), wanted(target)), "look.a")
    assert str(entry.expr) == "stack(reshape(look_0.a, 8), reshape(look_1.a, 8), reshape(look_2.a, 8))"


@given(n=st.integers(2, 5), names=st.permutations(["rise", "fall", "rest"]))
def test_layers_that_are_in_a_list_each_are_stacked_each_whatever_order_the_model_has_them_in(
    n: int, names: list[str]
) -> None:
    leaves = {"weight": (9, 6), "bias": (9,)}
    lists = [f"{name}_layers" for name in ("rise", "fall", "rest")]
    source = {f"{row}.{i}.{leaf}": size for row in lists for i in range(n) for leaf, size in leaves.items()}
    target = {f"{name}.{leaf}": (n, *size) for name in names for leaf, size in leaves.items()}
    mapping = port(signature(source), wanted(target, used=target))
    for name in names:
        for leaf in leaves:
            parts = ", ".join(f"{name}_layers.{i}.{leaf}" for i in range(n))
            assert pairing(mapping)[f"{name}.{leaf}"] == f"stack({parts})"
            assert found(mapping, f"{name}.{leaf}").status == "mapped"


@pytest.mark.parametrize(("rows", "columns"), [(7, 4), (4, 7), (6, 6)])
def test_a_stack_beside_another_parameter_is_a_list_and_the_bias_of_its_module_is_that_of_the_other(
    rows: int, columns: int
) -> None:
    source = {
        f"conv{n}.{leaf}": size
        for n in (1, 2)
        for leaf, size in {"weight": (3, columns, rows), "root": (columns, rows), "bias": (rows,)}.items()
    }
    target = {
        f"steps.{n}.{leaf}": size
        for n in range(2)
        for leaf, size in {
            "own.weight": (rows, columns),
            "own.bias": (rows,),
            **{f"kinds.{kind}.weight": (rows, columns) for kind in range(3)},
        }.items()
    }
    model = wanted(target)
    entries = {key: replace(entry, how="linear", module="Linear") for key, entry in model.entries.items()}
    mapping = port(signature(source), replace(model, entries=entries))
    for n in range(2):
        root = found(mapping, f"steps.{n}.own.weight")
        assert pairing(mapping)[f"steps.{n}.own.bias"] == f"conv{n + 1}.bias"
        if rows == columns:  # how they stand is in the code only
            assert f"conv{n + 1}.root" in str(root.expr)
            assert root.status == "guessed"
            continue
        assert str(root.expr) == f"transpose(conv{n + 1}.root)"
        for kind in range(3):
            line = pairing(mapping)[f"steps.{n}.kinds.{kind}.weight"]
            assert line == f"select(transpose(conv{n + 1}.weight), 0, {kind})"


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3, 1)])
def test_single_numbers_in_a_list_are_the_numbers_of_one_parameter(shape: tuple[int, ...]) -> None:
    source = {f"scales.{n}.scale": np.array([n + 0.5]) for n in (2, 0, 1)} | {"head.weight": np.ones((4, 6))}
    made = worked_out(source, {"gains": shape, "out.weight": (4, 6)})
    np.testing.assert_array_equal(made["gains"].values, np.array([0.5, 1.5, 2.5]).reshape(shape))


def test_stacks_of_target_networks_do_not_count_for_a_model_without_target_networks() -> None:
    stacks = {
        f"{n}.{part}": (5, *shape)
        for n, rows, width in ((0, 8, 7), (1, 8, 8), (2, 4, 8))
        for part, shape in {"weight": (rows, width), "bias": (rows,), "ln.weight": (rows,), "ln.bias": (rows,)}.items()
        if n < 2 or not part.startswith("ln")
    }
    source = {f"_{net}.params.{key}": shape for net in ("Qs", "target_Qs") for key, shape in stacks.items()}
    source |= {f"_reward.{key}": shape[1:] for key, shape in stacks.items()}
    own = {key.replace(".ln.", ".norm."): shape[1:] for key, shape in stacks.items()}
    target = {f"reward.{key}": shape for key, shape in own.items()}
    target |= {f"critics.{n}.{key}": shape for n in range(5) for key, shape in own.items()}
    made = pairing(port(signature(source), wanted(target)))
    assert made.get("critics.3.1.weight") == "select(_Qs.params.1.weight, 0, 3)"
    assert len(made) == len(target)


@pytest.mark.parametrize("count", [5, 6])
def test_experts_along_the_last_dimension_of_a_kernel_become_a_list(count: int) -> None:
    rng = np.random.default_rng(0)
    source = {"mix.expert_kernels": rng.normal(size=(7, 4, 5)), "mix.expert_bias": rng.normal(size=(4, 5))}
    target = {
        f"experts.{n}.fc.{leaf}": shape for n in range(count) for leaf, shape in (("weight", (4, 7)), ("bias", (4,)))
    }
    mapping = port(signature({key: value.shape for key, value in source.items()}), wanted(target))
    if count != 5:
        assert not pairing(mapping)
        return
    made = worked_out(source, target)
    for n in range(5):
        assert np.array_equal(made[f"experts.{n}.fc.weight"].values, source["mix.expert_kernels"][:, :, n].T)
        assert np.array_equal(made[f"experts.{n}.fc.bias"].values, source["mix.expert_bias"][:, n])


def test_experts_of_square_matrices_along_the_last_dimension_are_not_taken_in_one_of_two_ways() -> None:
    source = signature({"mix.expert_kernels": (7, 7, 5), "mix.expert_bias": (7, 5)})
    target = wanted(
        {f"experts.{n}.fc.{leaf}": shape for n in range(5) for leaf, shape in (("weight", (7, 7)), ("bias", (7,)))}
    )
    assert not [key for key in pairing(port(source, target)) if key.endswith("weight")]


#: Sizes of a stack, and those of one of the five layers it holds.
SEVERAL_WAYS = [
    ((7, 5, 5), (7, 5)),
    ((7, 5, 5), (5, 7)),
    ((5, 5, 7), (5, 7)),
    ((5, 5, 7), (7, 5)),
    ((5, 7, 5), (7, 5)),
    ((5, 7, 5), (5, 7)),
    ((5, 5, 5), (5, 5)),
]


@pytest.mark.parametrize(("stack", "layer"), SEVERAL_WAYS)
def test_a_stack_of_which_two_dimensions_may_count_its_layers_is_a_question(
    stack: tuple[int, ...], layer: tuple[int, ...]
) -> None:
    layers = {f"experts.{n}.w.weight": layer for n in range(5)} | {"head.weight": (3, 11)}
    whole = {"experts.w": stack, "head.weight": (3, 11)}
    assert found(port(signature(layers), wanted(whole)), "experts.w").status == "guessed"
    values = {key: np.arange(np.prod(size)).reshape(size) for key, size in whole.items()}
    made = worked_out(values, layers)
    orders = [dims for dims in permutations(range(3)) if tuple(stack[d] for d in dims) == (5, *layer)]
    for n in range(5):
        one = made[f"experts.{n}.w.weight"]
        assert one.status == "guessed"
        tensors = {key: lazy_tensor(value) for key, value in values.items()}
        offered = [one.values, *(lazy(option, tensors).numpy() for option in one.entry.rivals)]
        expected = [values["experts.w"].transpose(dims)[n] for dims in orders]
        assert sorted(x.tobytes() for x in offered) == sorted(x.tobytes() for x in expected)


@pytest.mark.parametrize(
    ("beside", "layer", "turned"),
    [
        ({"experts.b1": (5, 7)}, {"w1.bias": (7,)}, False),
        ({"experts.w3": (5, 8, 6)}, {"w3.weight": (8, 6)}, False),
        ({"experts.w3": (5, 8, 6)}, {"w3.weight": (8, 6)}, True),
    ],
)
def test_other_stacks_of_its_module_show_which_dimension_of_a_stack_counts_its_layers(
    beside: dict[str, tuple[int, ...]], layer: dict[str, tuple[int, ...]], turned: bool
) -> None:
    whole = {"experts.w1": (5, 7, 5), "experts.w2": (5, 5, 7), **beside}
    one = {"w1.weight": (7, 5), "w2.weight": (5, 7), **layer}
    layers = {f"experts.{n}.{leaf}": size for n in range(5) for leaf, size in one.items()}
    source, target = (layers, whole) if turned else (whole, layers)
    mapping = port(signature(source), wanted(target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_scales_and_shifts_of_as_many_norms_as_they_have_numbers_are_a_question() -> None:
    source = {"norm.weight": (4, 4), "norm.bias": (4, 4), "head.weight": (3, 11)}
    target = {f"norms.{n}.{leaf}": (4,) for n in range(4) for leaf in ("weight", "bias")} | {"head.weight": (3, 11)}
    entry = found(port(signature(source), wanted(target)), "norms.1.bias")
    assert [entry.status, *map(str, (entry.expr, *entry.rivals))] == [
        "guessed",
        "select(norm.bias, 0, 1)",
        "select(permute(norm.bias, 1, 0), 0, 1)",
    ]


def test_kernels_with_their_experts_last_that_fit_in_both_orders_are_a_question() -> None:
    source = {"experts.one": (7, 4, 5), "experts.other": (4, 7, 5), "head.weight": (3, 11)}
    layers = {f"experts.{n}.{leaf}.weight": size for n in range(5) for leaf, size in {"a": (4, 7), "b": (7, 4)}.items()}
    mapping = port(signature(source), wanted(layers | {"head.weight": (3, 11)}))
    assert {found(mapping, key).status for key in layers} == {"guessed"}


def test_tables_of_a_target_language_are_no_target_networks() -> None:
    source = signature({"embed.weight": (9, 6), "target_embed.weight": (9, 6), "out.weight": (4, 6)})
    target = wanted({"src_embed.weight": (9, 6), "tgt_embed.weight": (9, 6), "out.weight": (4, 6)})
    made = pairing(port(source, target))
    assert made["tgt_embed.weight"] == "target_embed.weight"
    assert made["src_embed.weight"] == "embed.weight"


def test_modules_with_single_numbers_beside_their_layers_are_matched() -> None:
    """As in StyleGAN2, where each layer has the strength of its noise."""
    source = {f"m.{side}.{leaf}": size for side in ("left", "right") for leaf, size in ONE_NUMBER.items()}
    target = {"fc.weight": (16, 4), **{f"n.{side}.noise": () for side in ("a", "b")}}
    for one, other in ((source, target), (target, source)):
        assert len(port(signature(one), wanted(other)).entries) == len(other)


ONE_NUMBER: dict[str, tuple[int, ...]] = {"noise.weight": (), "conv.weight": (8, 4)}


@pytest.mark.parametrize("names", [("one",), ("one", "two"), ("one", "two", "six")])
def test_biases_beside_kernels_with_their_experts_last_have_their_experts_last_as_well(names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    shapes = {"wide_matrix": (5, 4, 3)}
    for name in names:
        shapes |= {f"{name}_matrix": (5, 3, 3), f"{name}_bias": (3, 3)}
    source = {f"moe.{key}": rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    target = {}
    for n in range(3):
        target[f"experts.{n}.wide.weight"] = (4, 5)
        for name in names:
            target |= {f"experts.{n}.{name}.weight": (3, 5), f"experts.{n}.{name}.bias": (3,)}
    made = worked_out(source, target)
    for n in range(3):
        for name in names:
            weight, bias = (made[f"experts.{n}.{name}.{leaf}"] for leaf in ("weight", "bias"))
            np.testing.assert_array_equal(weight.values, source[f"moe.{name}_matrix"][:, :, n].T)
            np.testing.assert_array_equal(bias.values, source[f"moe.{name}_bias"][:, n])
