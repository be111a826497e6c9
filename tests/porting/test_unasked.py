"""Both codes at hand, and no word about a proof: outputs are compared where that is cheap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting.prove import unasked


class Norms(nn.Module):
    """Two layers of one size that no name tells from each other, and a norm."""

    def __init__(self, names: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.names = names.split()
        for name in sorted(self.names):
            self.add_module(name, nn.Linear(6, 6))
        self.norm = nn.LayerNorm(6, eps=eps)

    def forward(self, x: Any) -> Any:
        for name in self.names:
            x = getattr(self, name)(x).sin()
        return self.norm(x)


def ported(prove: bool | None, eps: float = 1e-5, spec: str = "float32[2,6]") -> ckptool.Mapping:
    """b before a in the source, c before d in the model; the model is built first, so its values are others."""
    torch.manual_seed(0)
    model, source = Norms("c d", eps).eval(), Norms("b a").eval()
    with torch.no_grad():
        source.norm.weight.mul_(2)
    code = Norms("b a").eval()
    return ckptool.transfer(source.state_dict(), model, source_model=code, inputs=[spec], prove=prove)


def test_equal_outputs_settle_doubts_without_being_asked_for() -> None:
    mapping = ported(None)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    assert mapping.proof == ported(True).proof
    assert not mapping.having("guessed")


def test_nothing_is_compared_if_that_is_not_wanted() -> None:
    assert ported(False).proof is None


def test_outputs_that_differ_leave_the_mapping_as_it_was_and_the_report_says_where() -> None:
    mapping, plain = ported(None, eps=0.1), ported(False, eps=0.1)
    assert mapping.proof is None
    assert mapping.entries == plain.entries
    note = mapping.notes[-1]
    assert "the source has eps 1e-05 at norm, the model has eps 0.1 at norm" in note
    assert note in " ".join(str(mapping).split())


def why_not_compared(spec: str = "float32[2,6]") -> str:
    """The note of a port of which no outputs were compared; else it is as without a proof."""
    mapping, plain = ported(None, spec=spec), ported(False, spec=spec)
    *before, note = mapping.notes
    assert replace(mapping, notes=tuple(before)) == plain
    assert "were not compared" in note
    assert "--prove" in note
    return note


def test_two_large_models_are_not_run_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasked, "MOST_VALUES", 95)  # 2 x 42 + 12 = 96
    assert "more than 95 values" in why_not_compared()


def test_inputs_on_which_nothing_runs_are_no_error() -> None:
    assert "2x7" in why_not_compared("float32[2,7]")
    with pytest.raises(ckptool.CheckpointError):
        ported(True, spec="float32[2,7]")


class Streaming(nn.Module):
    """Keeps what it has seen in its buffers, and has one whose elements share their memory."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(4, 4))
        self.register_buffer("state", torch.zeros(1, 4))
        self.register_buffer("places", torch.arange(4.0).expand(2, 4), persistent=False)

    def forward(self, x: Any) -> Any:
        h = getattr(self, self.name)(x + self.state + self.places)
        self.state = h[:1].detach()
        return h


@pytest.mark.parametrize("prove", [None, True])
def test_buffers_that_a_run_replaces_are_those_of_the_caller_again(prove: bool | None) -> None:
    source, model = Streaming("a"), Streaming("b")
    states = [one.state for one in (source, model)]
    ckptool.transfer(Streaming("a").state_dict(), model, source_model=source, inputs=["float32[2,4]"], prove=prove)
    for one, state in zip((source, model), states, strict=True):
        assert one.state is state
        assert not state.any()
        one(torch.randn(2, 4))


def test_a_proof_that_takes_long_or_fails_stops_no_port_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(unasked, "_LONGEST", -1.0)
        assert "seconds" in why_not_compared()
    monkeypatch.setattr("ckptool.porting.prove.prove", lambda *_, **__: 1 / 0)
    assert "division by zero" in why_not_compared()
