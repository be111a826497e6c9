"""A factor on the last output is a question of the last weights where one was asked, and the outputs answer it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting.mapping import Mapping

F = nn.functional


class Equalised(nn.Module):
    """Layers whose outputs are multiplied by INNER, the last one by LAST; norms hide the other factors."""

    def __init__(self, last: float, inner: float = 0.125) -> None:
        super().__init__()
        self.inner = inner
        self.scaleLayers = nn.ModuleList([nn.ModuleDict({"module": nn.Linear(64, 64)}) for _ in range(4)])
        self.last = last

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.scaleLayers):
            x = layer["module"](x) * (self.last if number == 3 else self.inner)
            x = F.normalize(x, dim=-1) if number < 3 else x
        return x


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.wide, self.narrow, self.rgb = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in (self.dense, self.wide, self.narrow):
            x = F.normalize(layer(x), dim=-1)
        return self.rgb(x)


def tried(last: float, inner: float = 0.125) -> Mapping:
    torch.manual_seed(3)
    source = Equalised(last, inner)
    for p in source.parameters():
        nn.init.normal_(p)
    return ckptool.transfer(source.state_dict(), Plain(), inputs=["float32[2,64]"], source_model=source, prove=True)


def test_a_factor_behind_the_last_layer_becomes_one_of_its_weights() -> None:
    mapping = tried(0.125)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["rgb.weight"].expr) == "scale(scaleLayers.3.module.weight, 0.125)"
    assert str(mapping["rgb.bias"].expr) == "scale(scaleLayers.3.module.bias, 0.125)"


def test_factors_that_norms_hide_are_taken_as_the_outputs_show_the_last() -> None:
    mapping = tried(0.125)
    for number, name in enumerate(("dense", "wide", "narrow")):
        assert str(mapping[f"{name}.weight"].expr) == f"scale(scaleLayers.{number}.module.weight, 0.125)"
        assert mapping[f"{name}.bias"].status == "mapped"


def test_layers_that_the_code_does_not_multiply_get_no_factor() -> None:
    mapping = tried(0.125, inner=0.7)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert str(mapping["wide.weight"].expr) == "scaleLayers.1.module.weight"


def test_a_factor_that_is_no_option_is_not_proved() -> None:
    mapping = tried(0.3)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
