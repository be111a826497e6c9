"""Recurrent cells that code writes by hand: what it does with a part says which gate it is."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.model_code.building import signature_of

IN, WIDTH = 5, 4


class OfTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(IN, WIDTH, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0]


class ByHand(nn.Module):
    """One matrix for all GATES in this order, over the input and the hidden state, of which either may be first."""

    def __init__(self, gates: str, *, hidden_first: bool = False, sliced: bool = False) -> None:
        super().__init__()
        self.gates, self.hidden_first, self.sliced = gates, hidden_first, sliced
        self.both = nn.Linear(IN + WIDTH, 4 * WIDTH)

    def forward(self, x: Any) -> Any:
        h = c = x.new_zeros(len(x), WIDTH)
        steps = []
        for at in range(x.shape[1]):
            made = self.both(torch.cat([h, x[:, at]] if self.hidden_first else [x[:, at], h], 1))
            parts = (
                [made[:, n * WIDTH : (n + 1) * WIDTH] for n in range(4)] if self.sliced else list(made.chunk(4, dim=1))
            )
            cut = dict(zip(self.gates, parts, strict=True))
            c = cut["f"].sigmoid() * c + cut["i"].sigmoid() * torch.tanh(cut["g"])
            h = cut["o"].sigmoid() * c.tanh()
            steps.append(h)
        return torch.stack(steps, 1)


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("gates", ["".join(order) for order in permutations("ifgo")][::5])
def test_the_gates_of_a_cell_are_known_by_what_is_done_with_them(gates: str, sliced: bool) -> None:
    model = ByHand(gates, sliced=sliced)
    found = signature_of(model, inputs=(torch.zeros(2, 3, 5),)).entries
    assert found["both.weight"].facts.gates == found["both.bias"].facts.gates == tuple(gates)
    assert found["both.weight"].facts.hidden == 1


def same_outputs(mapping: Any, theirs: nn.Module, own: nn.Module) -> bool:
    made = mapping.apply(dict(theirs.state_dict())).state_dicts()[0]
    own.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.tensors.items()})
    x = torch.randn(2, 3, IN)
    with torch.no_grad():
        return torch.allclose(theirs.eval()(x), own.eval()(x), atol=1e-6)


@pytest.mark.parametrize("hidden_first", [False, True])
@pytest.mark.parametrize("gates", ["ifgo", "ifog", "fiog"])
def test_the_weights_of_torch_become_those_of_a_cell_without_a_question(gates: str, hidden_first: bool) -> None:
    theirs, own = OfTorch(), ByHand(gates, hidden_first=hidden_first)
    mapping = ckptool.transfer(dict(theirs.state_dict()), own, inputs=["float32[2,3,5]"])
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own)


@pytest.mark.parametrize("code", [False, True])
def test_the_code_of_the_source_shows_the_gates_of_its_cell(code: bool) -> None:
    theirs, own = ByHand("ofig", hidden_first=True), OfTorch()
    mapping = ckptool.transfer(
        dict(theirs.state_dict()), own, inputs=["float32[2,3,5]"], source_model=theirs if code else None, prove=False
    )
    if not code:
        assert mapping.having("guessed")
        return
    assert mapping.having("guessed") == []
    assert same_outputs(mapping, theirs, own)


class Plain(nn.Module):
    """A recurrent layer without gates, over the input and the hidden state."""

    def __init__(self, *, hidden_first: bool) -> None:
        super().__init__()
        self.hidden_first = hidden_first
        self.both = nn.Linear(WIDTH + WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(len(x), WIDTH)
        for at in range(x.shape[1]):
            h = torch.tanh(self.both(torch.cat([h, x[:, at]] if self.hidden_first else [x[:, at], h], 1)))
        return h


@pytest.mark.parametrize("hidden_first", [False, True])
def test_a_hidden_state_is_known_by_the_matrix_that_made_it(hidden_first: bool) -> None:
    found = signature_of(Plain(hidden_first=hidden_first), inputs=(torch.zeros(2, 3, 4),)).entries
    assert found["both.weight"].facts.hidden == (0 if hidden_first else 1)
    once = signature_of(Plain(hidden_first=hidden_first), inputs=(torch.zeros(2, 1, 4),)).entries
    assert once["both.weight"].facts.hidden is None
