"""Layers that work on each channel by itself: apart in the model, one layer in the source's code."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting.mapping import Mapping

F = nn.functional


class Joined(nn.Module):
    """A gate and a value from one layer; POWER is what the gate is raised to."""

    def __init__(self, power: int = 1) -> None:
        super().__init__()
        self.power = power
        self.proj, self.each, self.out = (
            nn.Conv1d(4, 12, 1),
            nn.Conv1d(12, 12, 3, padding=1, groups=12),
            nn.Conv1d(6, 4, 1),
        )

    def forward(self, x: Any) -> Any:
        gate, value = self.each(self.proj(x)).chunk(2, 1)
        return self.out(torch.tanh(gate) ** self.power * value)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.point, self.place = nn.Conv1d(4, 6, 1), nn.Conv1d(6, 6, 3, padding=1, groups=6)

    def forward(self, x: Any) -> Any:
        return self.place(self.point(x))


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.last = Branch(), Branch(), nn.Conv1d(6, 4, 1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.gate(x)) * self.value(x))


def tried(source: nn.Module) -> Mapping:
    torch.manual_seed(3)
    for p in source.parameters():
        nn.init.normal_(p, std=0.5)
    return ckptool.transfer(source.state_dict(), Apart(), inputs=["float32[2,4,7]"], source_model=source, prove=True)


def test_each_branch_gets_the_places_of_the_channels_that_it_takes() -> None:
    mapping = tried(Joined())
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    found = {e.target: str(e.expr) for e in mapping.entries}
    assert found["gate.place.weight"] == "slice(each.weight, 0, 0, 6)"
    assert found["value.place.bias"] == "slice(each.bias, 0, 6, 12)"


def test_a_code_that_does_something_else_with_a_branch_is_not_proved() -> None:
    mapping = tried(Joined(power=3))
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
