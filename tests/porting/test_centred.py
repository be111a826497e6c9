"""Norm weights around 0, as where code adds 1 to them: whether the model does, its forward pass shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from ckptool.model_code.building import signature_of
from ckptool.porting.sources import match_signature

ADDS: dict[str, Callable[[Any], Any]] = {
    "plainly": lambda weight: 1 + weight,
    "to the left": lambda weight: 1.0 + weight.float(),
    "in another type": lambda weight: weight.to(torch.float64) + 1.0,
    "to a copy": lambda weight: weight.clone().double().add(1),
}


class RMSNorm(nn.Module):
    def __init__(self, taken: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight, self.taken = nn.Parameter(torch.zeros(12)), taken

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.taken(self.weight).to(x.dtype)


def net(taken: Callable[[Any], Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), RMSNorm(taken), nn.Linear(12, 10), nn.Linear(10, 12), RMSNorm(taken))


def statuses(taken: Callable[[Any], Any], *, around: float) -> set[tuple[str, str]]:
    torch.manual_seed(0)
    source = {key: torch.randn(value.shape) / 4 for key, value in net(taken).state_dict().items()}
    source |= {key: value + around for key, value in source.items() if key in ("1.weight", "4.weight")}
    mapping = match_signature(source, signature_of(net(taken), inputs=(torch.zeros(2, 8),)))
    return {(e.status, str(e.expr)) for e in mapping.entries if e.target in ("1.weight", "4.weight")}


@pytest.mark.parametrize("way", list(ADDS))
def test_norms_around_0_are_as_they_are_where_the_model_adds_1_to_them_in_any_type(way: str) -> None:
    assert statuses(ADDS[way], around=0.0) == {("mapped", "1.weight"), ("mapped", "4.weight")}


def test_norms_around_0_are_a_guess_where_the_model_takes_them_as_they_are() -> None:
    assert {status for status, _ in statuses(lambda weight: weight.float(), around=0.0)} == {"guessed"}
    assert {status for status, _ in statuses(lambda weight: weight.float(), around=1.0)} == {"mapped"}


def test_norms_above_0_under_their_own_names_are_those_of_a_model_that_adds_1() -> None:
    """Training may have taken all of them there; and where the names are others, they are taken as they are."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(8, 12), RMSNorm(ADDS["plainly"]), nn.Linear(12, 10)

        def forward(self, x: Any) -> Any:
            return self.last(self.norm(self.first(x)))

    wanted = signature_of(Named(), inputs=(torch.zeros(2, 8),))
    source = {key: value.abs() + 0.1 for key, value in Named().state_dict().items()}
    assert {e.status for e in match_signature(source, wanted).entries} == {"mapped"}
    renamed = {key.replace("norm", "ln"): value for key, value in source.items()}
    entry = next(e for e in match_signature(renamed, wanted).entries if e.target == "norm.weight")
    assert (entry.status, str(entry.expr), [str(rival) for rival in entry.rivals]) == (
        "guessed",
        "ln.weight",
        ["shift(ln.weight, -1.0)"],
    )


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_norms_closely_around_1_are_a_guess_where_the_model_adds_1_whatever_their_names(spread: float) -> None:
    model = net(ADDS["plainly"])
    source = {key: torch.randn(value.shape) / 4 for key, value in model.state_dict().items()}
    source |= {key: 1 + spread * torch.randn(12) for key in ("1.weight", "4.weight")}
    mapping = match_signature(source, signature_of(model, inputs=(torch.zeros(2, 8),)))
    guessed = {e.target: [str(rival) for rival in e.rivals] for e in mapping.having("guessed")}
    assert guessed == {key: [f"shift({key}, -1.0)"] for key in ("1.weight", "4.weight")}
