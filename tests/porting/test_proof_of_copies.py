"""A file that holds a model several times: outputs show how the model is filled, and not with which copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool


class Net(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(6, 6))
        self.names = names

    def forward(self, x: Any) -> Any:
        for name in self.names:
            x = getattr(self, name)(x).relu()
        return x


THEIRS, OWN = ("one", "two", "three"), ("first", "second", "third")


def saved(path: Path, *places: str) -> dict[str, dict[str, Any]]:
    torch.manual_seed(0)
    states = {place: Net(*THEIRS).state_dict() for place in places}
    torch.save(states, path)
    return states


def test_what_at_chooses_is_what_the_model_is_filled_with(tmp_path: Path) -> None:
    states = saved(tmp_path / "two.pth", "params", "params_ema")
    for place, state in states.items():
        own = Net(*OWN)
        ckptool.load_into(own, tmp_path / "two.pth", at=place)
        assert torch.equal(own.second.bias, state["two.bias"])


def test_equal_outputs_do_not_say_which_state_dict_of_a_file_is_meant(tmp_path: Path) -> None:
    saved(tmp_path / "two.pth", "params", "params_ema")
    own, theirs = Net(*OWN).eval(), Net(*THEIRS).eval()
    mapping = ckptool.transfer(tmp_path / "two.pth", own, source_model=theirs, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert "one of the copies" in mapping.proof["text"]
    assert {entry.status for entry in mapping.entries} == {"guessed"}
    assert [str(rival) for rival in mapping["second.bias"].rivals] == ["params_ema/two.bias"]


def test_a_proof_of_the_state_dict_that_was_chosen_leaves_no_doubt(tmp_path: Path) -> None:
    states = saved(tmp_path / "two.pth", "params", "params_ema")
    own, theirs = Net(*OWN).eval(), Net(*THEIRS).eval()
    mapping = ckptool.transfer(tmp_path / "two.pth", own, at="params_ema", source_model=theirs, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    ckptool.load_into(own, tmp_path / "two.pth", mapping=mapping)
    assert torch.equal(own.third.weight, states["params_ema"]["three.weight"])
