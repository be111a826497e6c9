"""A layer that a file holds twice is one layer, and one of two equal modules is a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, lazy_tensor, pairing, signature, wanted

from ckptool.porting.forms.copies import doubles
from ckptool.porting.port import port


def tensors(layers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{path}.{leaf}": lazy_tensor(values) for path, inside in layers.items() for leaf, values in inside.items()}


def layer(seed: int, *, bias: bool = True) -> dict[str, Any]:
    made = np.random.default_rng(seed)
    weight = {"weight": made.normal(size=(6, 5)).astype("float32")}
    return weight | {"bias": made.normal(size=6).astype("float32")} if bias else weight


def test_the_second_of_two_equal_layers_is_the_first() -> None:
    held = tensors({"conv1": layer(1), "conv2": layer(2), "net.0": layer(1)})
    assert doubles(held, list(held)) == {"net.0.weight": "conv1.weight", "net.0.bias": "conv1.bias"}


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_layers_of_one_value_are_not_one_layer(value: float) -> None:
    same = {"weight": np.full((6, 5), value, "float32")}
    held = tensors({"a": same, "b": same})
    assert doubles(held, list(held)) == {}


def test_vectors_alone_are_not_one_layer() -> None:
    norm = {"weight": np.arange(8, dtype="float32")}
    held = tensors({"a": norm, "b": norm})
    assert doubles(held, list(held)) == {}


def test_a_layer_with_one_more_tensor_is_another_with_the_same_matrix() -> None:
    for order in (("a", "b"), ("b", "a")):
        held = tensors({name: layer(1, bias=name == "a") for name in order})
        assert doubles(held, list(held)) == {"a.weight": "b.weight"}


def test_layers_with_other_biases_are_two() -> None:
    one, other = layer(1), layer(1)
    other["bias"] = other["bias"] + 1
    held = tensors({"a": one, "b": other})
    assert doubles(held, list(held)) == {}


def test_layers_that_only_begin_alike_are_two() -> None:
    one, other = layer(1, bias=False), layer(1, bias=False)
    other["weight"] = other["weight"].copy()
    other["weight"][-1, -1] += 1
    held = tensors({"a": one, "b": other})
    assert doubles(held, list(held)) == {}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_every_layer_goes_to_the_first_with_its_values(seeds: list[int]) -> None:
    held = tensors({f"layers.{n}": layer(seed) for n, seed in enumerate(seeds)})
    first = {seed: seeds.index(seed) for seed in seeds}
    wanted = {
        f"layers.{n}.{leaf}": f"layers.{first[seed]}.{leaf}"
        for n, seed in enumerate(seeds)
        if first[seed] != n
        for leaf in ("weight", "bias")
    }
    assert doubles(held, list(held)) == wanted


def test_an_output_layer_of_a_table_has_the_bias_that_stands_alone_too() -> None:
    """`lm_head.bias` and `lm_head.decoder`, whose matrix is that of the words and whose bias is that one."""
    output = layer(1)
    held = tensors({"words": {"weight": output["weight"]}, "head": {"bias": output["bias"]}, "head.decoder": output})
    ties = {"head.decoder.weight": "words.weight", "head.decoder.bias": "head.bias"}
    assert doubles(held, list(held)) == doubles(held, sorted(held)) == ties
    held = tensors({"head": {"bias": output["bias"]}, "head.decoder": output})
    assert doubles(held, list(held)) == {}


@pytest.mark.parametrize("others", [1, 9])
def test_of_two_equal_modules_in_a_larger_file_a_model_of_that_look_takes_one_as_a_guess(others: int) -> None:
    look = {
        f"q{n}.{at}.{leaf}": shape
        for n in (1, 2)
        for at in (0, 2)
        for leaf, shape in (("weight", (6, 6)), ("bias", (6,)))
    }
    copies = {f"{name}.{key}": shape for name in ("q_target", "qf") for key, shape in look.items()}
    rest = {
        f"policy.{n}.{leaf}": (5, 4 + n)[: len(shape)]
        for n in range(others)
        for leaf, shape in (("weight", (6, 6)), ("bias", (6,)))
    }
    made = port(signature({**copies, **rest}), wanted(look))
    assert pairing(made) == {key: f"qf.{key}" for key in look}
    for entry in made.entries:
        assert [str(option) for question in entry.questions for option in question.options] == [
            f"q_target.{entry.target}"
        ]


@pytest.mark.parametrize("tied", ["encoder.embed", "encoder.words"])
def test_a_tied_tensor_is_called_as_the_source_calls_it_by_any_of_its_names(tied: str) -> None:
    """One table for encoder and decoder, which the model has a third name for."""
    numbers = [(side, n, m) for side in ("encoder", "decoder") for n in (0, 1) for m in (1, 2)]
    layers = {f"{side}.layers.{n}.fc{m}.weight": (8, 4 + n) for side, n, m in numbers}
    model = {"shared.weight": (9, 4), f"{tied}.weight": (9, 4), **layers}
    target = wanted({f"model.{key}": shape for key, shape in model.items()})
    key = f"model.{tied}.weight"
    entries = {**target.entries, key: replace(target.entries[key], tied="model.shared.weight")}
    source = signature({"encoder.embed.weight": (9, 4), **layers}, ordered=False)
    mapping = port(source, replace(target, entries=entries))
    entry = found(mapping, "model.shared.weight")
    assert str(entry.expr) == "encoder.embed.weight"
    assert (entry.status == "mapped") == (tied == "encoder.embed")
