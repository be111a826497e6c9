"""Weights that code multiplies by a factor on every call, for models that take them as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sides import found, signature, wanted

from ckptool.porting.port import port

SHAPES = {f"{n}.conv.weight": (8, 8 + n, 3, 3) for n in range(5)} | {"head.weight": (3, 8, 1, 1)}


def ported(spread: str, *, factor_in_code: bool = False, prefix: str = "blocks.") -> Any:
    rng = np.random.default_rng(0)
    source = {
        f"{prefix}{key.replace('conv', 'layer')}": rng.standard_normal(shape)
        * (1 if spread == "equal" else np.prod(shape[1:]) ** -0.5)
        for key, shape in SHAPES.items()
    }
    target = wanted({f"net.{key}": shape for key, shape in SHAPES.items()})
    how = "mul" if factor_in_code else "conv2d"
    entries = {key: replace(entry, module="Conv2d", how=how) for key, entry in target.entries.items()}
    shapes = {key: value.shape for key, value in source.items()}
    return port(signature(shapes), replace(target, entries=entries), values=source.get)


def test_weights_as_wide_as_where_a_factor_is_in_the_code_are_guesses() -> None:
    mapping = ported("equal")
    assert {entry.status for entry in mapping.entries} == {"guessed"}
    entry = found(mapping, "net.2.conv.weight")
    assert str(entry.expr) == "blocks.2.layer.weight"
    factors = [float(str(rival).split(", ")[1].rstrip(")")) for rival in entry.rivals]
    assert factors == pytest.approx([(2 / 90) ** 0.5, (1 / 90) ** 0.5])


def test_a_model_that_multiplies_them_itself_takes_them_as_they_are() -> None:
    assert ported("equal", factor_in_code=True).is_sure


def test_weights_as_code_initialises_them_are_no_doubt() -> None:
    assert ported("by inputs").is_sure


def test_one_plain_layer_among_wide_ones_does_not_hide_their_factor() -> None:
    rng = np.random.default_rng(0)
    wide = {f"blocks.{n}.layer.weight": rng.standard_normal((8, 8 + n, 3, 3)) for n in range(6)}
    source = wide | {"first.layer.weight": rng.standard_normal((5, 30, 3, 3)) * 270**-0.5}
    names = dict(zip(source, [f"net.{n}.conv.weight" for n in range(6)] + ["to_maps.weight"], strict=True))
    model = wanted({new: source[old].shape for old, new in names.items()})
    entries = {key: replace(entry, module="Conv2d", how="conv2d") for key, entry in model.entries.items()}
    shapes = {key: value.shape for key, value in source.items()}
    mapping = port(signature(shapes), replace(model, entries=entries), values=source.get)
    assert found(mapping, "net.2.conv.weight").status == "guessed"
