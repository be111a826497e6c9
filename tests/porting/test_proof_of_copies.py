"""A file that holds a model several times, or in parts: outputs show how it is filled, and not with which copy."""

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


class Parts(nn.Module):
    """A body and a generator, which a file may hold as two state dicts; the body's output is multiplied with FACTOR."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.body, self.generator, self.factor = Net(*THEIRS), nn.Sequential(nn.Linear(6, 4)), factor

    def forward(self, x: Any) -> Any:
        return self.generator(self.body(x) * self.factor)


class OneModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.last = Net(*OWN), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.encoder(x))


@pytest.mark.parametrize("wrapper", ["", "module."])
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_proof_fills_a_layer_from_another_state_dict_that_the_code_reads(
    tmp_path: Path, wrapper: str, factor: float
) -> None:
    torch.manual_seed(0)
    theirs = Parts(factor)
    parts = {"body": theirs.body.state_dict(), "generator": theirs.generator.state_dict()}
    held = {name: {f"{wrapper}{key}": x for key, x in part.items()} for name, part in parts.items()}
    torch.save(held, tmp_path / "parts.pth")
    mapping = ckptool.transfer(tmp_path / "parts.pth", OneModel(), at="body", source_model=Parts(factor), prove=True)
    assert mapping.proof is not None
    if factor == 1.0:
        assert mapping.proof["text"].startswith("outputs are equal"), mapping.proof
        assert str(mapping["last.weight"].expr) == f"generator/{wrapper}0.weight"
        own = OneModel()
        ckptool.load_into(own, tmp_path / "parts.pth", mapping=mapping)
        assert torch.equal(own.last.bias, theirs.generator[0].bias)
    else:
        assert mapping["last.weight"].expr is None, mapping.proof
