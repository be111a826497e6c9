"""Differences that no comparison in float32 shows: a proof searches for weights in float64 as well."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting import expression as ex
from ckptool.porting.mapping import Mapping
from ckptool.porting.prove import prove


def random_state(source: nn.Module) -> dict[str, Any]:
    """The state dict of SOURCE, filled at random."""
    torch.manual_seed(3)
    for parameter in source.parameters():
        nn.init.normal_(parameter, std=0.4)
    for buffer in source.buffers():
        nn.init.uniform_(buffer, 0.2, 0.9)
    return source.state_dict()


# ------------------------------------------------------------------------------------- two branches of a small effect


class Gate(nn.Module):
    """Two branches that are added, with an effect of less than a thousandth; the second is squared in `theirs`."""

    def __init__(self, names: tuple[str, str], power: float = 1.0) -> None:
        super().__init__()
        self.names, self.power = names, power
        for name in sorted(names):
            self.add_module(name, nn.Linear(6, 6))
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        one, other = (self.get_submodule(name) for name in self.names)
        weak = torch.tanh(one(x)) * torch.sigmoid(other(self.first(x))) ** self.power
        return self.last(x + 1e-4 * weak)


def exchanged(source: nn.Module, own: nn.Module) -> Mapping:
    """The mapping after a proof of one in which the two branches are exchanged."""
    state = random_state(source)
    found = ckptool.transfer(state, own, hints=["b=z", "a=y"])
    return prove(found, state, source, own)


def test_branches_of_small_effect_are_told_apart_in_double_precision() -> None:
    mapping = exchanged(Gate(("a", "b")), Gate(("z", "y")))
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    found = {e.target: str(e.expr) for e in mapping.entries}
    assert (found["z.weight"], found["y.weight"]) == ("a.weight", "b.weight")


def test_a_code_that_differs_by_as_little_is_not_proved_by_any_choice_of_branches() -> None:
    mapping = exchanged(Gate(("a", "b"), 1.05), Gate(("z", "y")))
    assert mapping.proof is not None
    assert not mapping.proof["equal"]


# --------------------------------------------------------------------------------------- an eps that the mapping added


class Frozen(nn.Module):
    """A norm of which the statistics are buffers."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(5))

    def forward(self, x: Any) -> Any:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return x * scale + (self.bias - self.running_mean * scale)


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 5), norm, nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.first(x)))


def added(source: nn.Module, own: nn.Module, amount: float) -> Mapping:
    """The mapping after a proof of one that adds AMOUNT to the variances."""
    state = random_state(source)
    found = ckptool.transfer(state, own, inputs=["float32[4,5]"])
    entries = [
        e.tried(ex.shift(ex.of(e.target), amount)) if e.target == "norm.running_var" else e for e in found.entries
    ]
    return prove(found.with_entries(entries), state, source, own)


@pytest.mark.parametrize("amount", [1e-5, -1e-5, 1.0])
def test_what_a_mapping_added_without_need_is_taken_off(amount: float) -> None:
    mapping = added(Normed(Frozen(1e-5)), Normed(nn.BatchNorm1d(5)).eval(), amount)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert {e.target: str(e.expr) for e in mapping.entries}["norm.running_var"] == "norm.running_var"


def test_what_was_added_rightly_stays() -> None:
    mapping = added(Normed(Frozen(2e-5)), Normed(nn.BatchNorm1d(5)).eval(), 1e-5)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    assert "shift" in {e.target: str(e.expr) for e in mapping.entries}["norm.running_var"]


def test_an_eps_that_differs_is_not_taken_for_a_sum() -> None:
    mapping = added(Normed(Frozen(3e-5)), Normed(nn.BatchNorm1d(5)).eval(), 1e-5)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
