"""Parameters that one code holds in parts and another as a whole: complex numbers, stacked vectors, lone biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sides import found, pairing, signature, wanted, worked_out

from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]


def numbers(*sizes: int) -> Any:
    return np.random.default_rng(sum(sizes)).standard_normal(sizes).astype("float32")


# -- complex numbers


@pytest.mark.parametrize("names", [("re", "im"), ("real", "imag"), ("real", "imaginary")])
def test_real_and_imaginary_parts_are_the_last_dimension_of_a_tensor_that_holds_both(names: tuple[str, str]) -> None:
    re, im = (f"modes.weights_{name}" for name in names)
    source = {re: numbers(3, 5, 7), im: -numbers(3, 5, 7), "out.weight": numbers(4, 5)}
    made = worked_out(source, {"spectral": (3, 5, 7, 2), "out.weight": (4, 5)}, used=["spectral", "out.weight"])
    assert made["spectral"].status == "mapped"
    assert np.array_equal(made["spectral"].values, np.stack([source[re], source[im]], -1))


def test_a_tensor_of_complex_numbers_is_taken_apart_for_a_model_that_holds_them_apart() -> None:
    source = {"a.low": numbers(3, 5, 7, 2), "a.out.weight": numbers(4, 5)}
    shapes: Shapes = {"b.low_im": (3, 5, 7), "b.low_re": (3, 5, 7), "b.out.weight": (4, 5)}
    made = worked_out(source, shapes, used=list(shapes))
    for place, key in enumerate(("b.low_re", "b.low_im")):
        assert made[key].status == "mapped"
        assert np.array_equal(made[key].values, source["a.low"][..., place])


def test_a_part_alone_or_a_last_dimension_of_another_length_is_no_complex_number() -> None:
    alone = port(
        signature({"a.k_re": (3, 5, 7), "out.weight": (4, 5)}), wanted({"k": (3, 5, 7, 2), "out.weight": (4, 5)})
    )
    longer = port(
        signature({"a.k_re": (3, 5, 7), "a.k_im": (3, 5, 7), "out.weight": (4, 5)}),
        wanted({"k": (3, 5, 7, 3), "out.weight": (4, 5)}),
    )
    assert pairing(alone).keys() == pairing(longer).keys() == {"out.weight"}


def test_dimensions_are_put_in_the_one_order_that_fits_kernels_of_several_sizes() -> None:
    source = {"m0.w_x": numbers(4, 6, 5), "m1.w_x": numbers(4, 6, 5), "m2.w_x": numbers(6, 4, 5)}
    shapes: Shapes = {"l.0.w_x": (5, 4, 6), "l.1.w_x": (5, 4, 6), "l.2.w_x": (5, 6, 4)}
    made = worked_out(source, shapes, used=list(shapes))
    for place in range(3):
        assert np.array_equal(made[f"l.{place}.w_x"].values, source[f"m{place}.w_x"].transpose(2, 0, 1))


def test_dimensions_stay_where_two_orders_fit() -> None:
    source: Shapes = {"m0.w_x": (4, 6, 5), "m1.w_x": (6, 4, 5)}
    mapping = port(signature(source), wanted({"l.0.w_x": (5, 4, 6), "l.1.w_x": (5, 6, 4)}))
    assert not pairing(mapping)


# -- stacked vectors


def test_a_weight_and_a_bias_with_a_row_for_each_feature_are_a_list_of_layers_with_one_input() -> None:
    source = {"tokens.numeric.weight": numbers(3, 8), "tokens.numeric.bias": numbers(3, 8), "out.weight": numbers(2, 8)}
    shapes: Shapes = {
        **{f"embed.{n}.{leaf}": size for n in range(3) for leaf, size in (("weight", (8, 1)), ("bias", (8,)))},
        "out.weight": (2, 8),
    }
    made = worked_out(source, shapes, used=list(shapes))
    for n in range(3):
        for leaf in ("weight", "bias"):
            one = made[f"embed.{n}.{leaf}"]
            assert one.status == "mapped"
            assert np.array_equal(one.values.ravel(), source[f"tokens.numeric.{leaf}"][n])


def test_layers_with_one_input_fill_the_rows_of_one_parameter() -> None:
    source = {f"embed.{n}.{leaf}": numbers(8, 1) + n if leaf == "weight" else numbers(8) - n
              for n in range(3) for leaf in ("weight", "bias")}  # fmt: skip
    shapes: Shapes = {"numeric.weight": (3, 8), "numeric.bias": (3, 8)}
    made = worked_out(source, shapes, used=list(shapes))
    assert np.array_equal(
        made["numeric.weight"].values, np.stack([source[f"embed.{n}.weight"][:, 0] for n in range(3)])
    )
    assert np.array_equal(made["numeric.bias"].values, np.stack([source[f"embed.{n}.bias"] for n in range(3)]))


def test_a_vector_is_the_numbers_of_a_list_only_under_their_name() -> None:
    shapes: Shapes = {f"layers.{n}.{leaf}": s for n in range(3) for leaf, s in (("eps", ()), ("lin.weight", (4, 4)))}
    theirs: Shapes = {f"lins.{n}.weight": (4, 4) for n in range(3)}
    named = port(signature({"eps": (3,), **theirs}), wanted(shapes, used=list(shapes)))
    assert [str(found(named, f"layers.{n}.eps").expr) for n in range(3)] == [f"select(eps, 0, {n})" for n in range(3)]
    other = port(signature({"shift": (3,), **theirs}), wanted(shapes, used=list(shapes)))
    assert all(found(other, f"layers.{n}.eps").expr is None for n in range(3))


# -- biases that stand apart


@pytest.mark.parametrize("names", [("short_filter", "short_bias"), ("kernel", "kernel_bias")])
def test_a_lone_bias_belongs_to_the_matrix_that_it_is_named_after(names: tuple[str, str]) -> None:
    kernel, bias = (f"mix.{name}" for name in names)
    source: Shapes = {"m.conv.weight": (32, 1, 4), "m.conv.bias": (32,), "m.log": (32, 8), "m.up.weight": (32, 8)}
    source |= {"m.up.bias": (32,), "m.d": (32,)}
    shapes: Shapes = {kernel: (32, 4), bias: (32,), "mix.log": (32, 8), "mix.up.weight": (32, 8)}
    shapes |= {"mix.up.bias": (32,), "mix.d": (32,)}
    model = wanted(shapes, used=[kernel, bias, "mix.up.weight", "mix.up.bias", "mix.log", "mix.d"])
    entries = dict(model.entries)
    from dataclasses import replace

    entries[kernel] = replace(entries[kernel], how="mul")
    mapping = port(signature(source), replace(model, entries=entries))
    assert found(mapping, kernel).status == found(mapping, bias).status == "mapped"
    assert str(found(mapping, bias).expr) == "m.conv.bias"
    assert str(found(mapping, kernel).expr) == "reshape(m.conv.weight, 32, 4)"


def test_a_bias_named_as_a_part_belongs_to_the_projection_of_this_part_whenever_code_uses_it() -> None:
    source: Shapes = {}
    shapes: Shapes = {}
    used = []
    for n in range(3):
        source |= {f"blocks.{n}.attn.{part}_bias": (24,) for part in "qv"}
        source |= {f"blocks.{n}.attn.qkv.weight": (72, 24), f"blocks.{n}.attn.proj.weight": (24, 24)}
        shapes |= {f"layer.{n}.attention.{part}_bias": (24,) for part in "qv"}
        shapes |= {f"layer.{n}.attention.{part}.weight": (24, 24) for part in ("query", "key", "value", "dense")}
        steps = ("v_bias", "key.weight", "value.weight", "query.weight", "q_bias", "dense.weight")
        used += [f"layer.{n}.attention.{step}" for step in steps]
    made = worked_out({key: numbers(*shape) + len(key) for key, shape in source.items()}, shapes, used=used)
    for n in range(3):
        for part in "qv":
            entry = made[f"layer.{n}.attention.{part}_bias"].entry
            assert (str(entry.expr), entry.status) == (f"blocks.{n}.attn.{part}_bias", "mapped")


@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("traced", [True, False])
def test_a_bias_named_as_a_part_belongs_to_this_part_of_a_fused_projection(part: str, traced: bool) -> None:
    source: Shapes = {}
    shapes: Shapes = {}
    for n in range(2):
        source |= {f"blocks.{n}.attn.qkv.weight": (72, 24), f"blocks.{n}.attn.{part[0]}_bias": (24,)}
        source |= {f"blocks.{n}.attn.proj.weight": (24, 24)}
        shapes |= {f"layer.{n}.attention.{one}.weight": (24, 24) for one in ("query", "key", "value", "dense")}
        shapes |= {f"layer.{n}.attention.{part}.bias": (24,)}
    mapping = port(wanted(source, used=source if traced else None), wanted(shapes))
    for n in range(2):
        entry = found(mapping, f"layer.{n}.attention.{part}.bias")
        assert (str(entry.expr), entry.status) == (f"blocks.{n}.attn.{part[0]}_bias", "mapped")
        assert {found(mapping, f"layer.{n}.attention.{one}.weight").status for one in ("query", "key")} == {"mapped"}


@pytest.mark.parametrize("traced", [True, False])
def test_a_bias_named_as_a_part_belongs_to_no_other_part(traced: bool) -> None:
    """Each block has keys and values, and a bias of queries whose matrix is elsewhere."""
    source: Shapes = {}
    shapes: Shapes = {}
    for n in range(2):
        source |= {f"h.{n}.{leaf}": (24, 24) for leaf in ("key.weight", "value.weight")} | {f"h.{n}.q_bias": (24,)}
        shapes |= {f"l.{n}.{leaf}": (24, 24) for leaf in ("key.weight", "value.weight")}
        shapes |= {f"l.{n}.value.bias": (24,)}
    mapping = port(wanted(source, used=source if traced else None), wanted(shapes))
    for n in range(2):
        assert found(mapping, f"l.{n}.value.bias").status != "mapped"


def test_a_bias_belongs_to_no_matrix_of_another_block_that_is_used_before_it() -> None:
    source: Shapes = {"stem.weight": (8, 3), "stem.bias": (8,)}
    shapes: Shapes = dict(source)
    for n in range(3):
        source |= {f"h.{n}.{leaf}": (8, 8) for leaf in ("a.weight", "b.weight")} | {f"h.{n}.b.bias": (8,)}
        shapes |= {f"l.{n}.shift_bias": (8,)} | {f"l.{n}.{leaf}": (8, 8) for leaf in ("one.weight", "two.weight")}
    mapping = port(signature(source), wanted(shapes, used=list(shapes)))
    for n in range(3):
        entry = found(mapping, f"l.{n}.shift_bias")
        assert entry.status != "mapped" or str(entry.expr) == f"h.{n}.b.bias"
