"""Proofs of weights in which several things stand otherwise at once, and of tables whose positions begin elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting.mapping import Mapping


def proved(source: nn.Module, own: nn.Module, *inputs: str) -> Mapping:
    torch.manual_seed(1)
    for p in source.parameters():
        nn.init.normal_(p, std=0.5)
    mapping = ckptool.transfer(source.state_dict(), own, inputs=list(inputs), source_model=source, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    return mapping


class Cell(nn.Module):
    """One matrix for what goes in and the state, in this order or the other; its gates in any order."""

    def __init__(self, name: str, gates: str, state_first: bool, inputs: int) -> None:
        super().__init__()
        setattr(self, name, nn.Linear(inputs + 5, 20))
        self.name, self.letters, self.state_first = name, gates, state_first

    def forward(self, x: Any) -> Any:
        h = c = torch.zeros(len(x), 5)
        for t in range(x.shape[1]):
            sides = [h, x[:, t]] if self.state_first else [x[:, t], h]
            parts = getattr(self, self.name)(torch.cat(sides, 1)).chunk(4, 1)
            gate = dict(zip(self.letters, parts, strict=True))
            c = gate["f"].sigmoid() * c + gate["i"].sigmoid() * gate["g"].tanh()
            h = gate["o"].sigmoid() * c.tanh()
        return h


@pytest.mark.parametrize("inputs", [3, 5])
def test_sides_and_gates_of_one_matrix_stand_in_other_orders(inputs: int) -> None:
    source, own = Cell("kernel", "igfo", True, inputs), Cell("gates", "ofgi", False, inputs)
    mapping = proved(source, own, f"float32[2,4,{inputs}]")
    ckptool.load_into(own, source.state_dict(), mapping=mapping)
    x = torch.randn(3, 6, inputs)
    with torch.no_grad():
        torch.testing.assert_close(own(x), source(x), rtol=1e-4, atol=1e-5)


class Text(nn.Module):
    """Words and positions, of which the first is row FIRST of their table."""

    def __init__(self, names: tuple[str, str, str], first: int, rows: int) -> None:
        super().__init__()
        for name, layer in zip(names, (nn.Embedding(30, 8), nn.Embedding(rows, 8), nn.Linear(8, 8)), strict=True):
            setattr(self, name, layer)
        self.names, self.first = names, first

    def forward(self, ids: Any) -> Any:
        words, positions, out = (getattr(self, name) for name in self.names)
        return out(words(ids) + positions(torch.arange(ids.shape[1]) + self.first)).tanh()


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ((2, 18), (0, 16), "slice(pos.weight, 0, 2, 18)"),
        ((0, 16), (2, 18), "cat(0, zeros(2, 8), pos.weight)"),
        ((1, 17), (0, 16), "slice(pos.weight, 0, 1, 17)"),
    ],
)
def test_positions_begin_at_another_row(theirs: tuple[int, int], ours: tuple[int, int], expected: str) -> None:
    source, own = Text(("tok", "pos", "out"), *theirs), Text(("words", "places", "proj"), *ours)
    mapping = proved(source, own, "int64[2,12]<30")
    assert str(mapping["places.weight"].expr) == expected
    assert mapping["places.weight"].status == "mapped"


def test_rows_that_no_run_looks_at_stay_a_guess() -> None:
    """Both tables have 18 rows, and theirs begins at 2: our last two have no counterpart."""
    source, own = Text(("tok", "pos", "out"), 2, 18), Text(("words", "places", "proj"), 0, 18)
    found = proved(source, own, "int64[2,12]<30")["places.weight"]
    assert str(found.expr) == "cat(0, slice(pos.weight, 0, 2, 18), slice(pos.weight, 0, 16, 18))"
    assert found.status == "guessed"
    assert len(found.doubts) == 1
    assert found.doubts[0].startswith("the inputs of the proof never used rows 16 to 17")


@pytest.mark.parametrize("rows", [18, 24])
def test_rows_behind_the_last_position_of_the_source_stay_a_guess(rows: int) -> None:
    """The source's code has 16 positions, so that no equal output shows what the rows behind them are for."""
    source, own = Text(("tok", "pos", "out"), 0, 16), Text(("words", "places", "proj"), 0, rows)
    found = proved(source, own, "int64[2,12]<30")["places.weight"]
    assert str(found.expr) == f"grow(pos.weight, 0, {rows})"
    assert [doubt.split(";")[0] for doubt in found.doubts] == [
        f"the inputs of the proof never used rows 16 to {rows - 1} of this table, so these rows are not confirmed"
    ]


def test_means_for_words_that_the_source_does_not_have_are_certain_once_the_other_words_are() -> None:
    source, own = Text(("tok", "pos", "out"), 0, 16), Text(("words", "places", "proj"), 0, 16)
    own.words = nn.Embedding(40, 8)
    found = proved(source, own, "int64[2,12]<30")["words.weight"]
    assert str(found.expr) == "grow(tok.weight, 0, 40)"
    assert found.status == "mapped"
