"""Heads that one code has as one layer: which head has which rows shows in no layer, but in the outputs."""

from __future__ import annotations

from itertools import accumulate, permutations
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting import expression as ex
from ckptool.porting.mapping import Mapping
from ckptool.porting.prove.arrangements import _orders
from ckptool.porting.prove.rows import Rows

SIZES = (1, 2, 3)


class Whole(nn.Module):
    """One layer for three heads of 5, 2 and 4; FACTOR is what one of them is multiplied with."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, 11)

    def forward(self, x: Any) -> Any:
        a, b, c = self.fc(torch.tanh(self.body(x))).split([5, 2, 4], -1)
        return torch.cat([a.log_softmax(-1), (self.factor * b).log_softmax(-1), c.log_softmax(-1)], -1)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.c, self.b, self.a = nn.Linear(8, 4), nn.Linear(8, 2), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.body(x))
        return torch.cat([head(x).log_softmax(-1) for head in (self.a, self.b, self.c)], -1)


def tried(source: nn.Module) -> Mapping:
    torch.manual_seed(3)
    for p in source.parameters():
        nn.init.normal_(p, std=0.5)
    return ckptool.transfer(source.state_dict(), Heads(), inputs=["float32[3,6]"], source_model=source, prove=True)


def test_heads_of_unequal_sizes_get_the_rows_with_which_outputs_agree() -> None:
    mapping = tried(Whole())
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof
    found = {e.target: str(e.expr) for e in mapping.entries}
    assert found["a.weight"] == "slice(fc.weight, 0, 0, 5)"
    assert found["c.bias"] == "slice(fc.bias, 0, 7, 11)"


def test_no_rows_are_proved_if_the_code_multiplies_one_head() -> None:
    mapping = tried(Whole(factor=1.5))
    assert mapping.proof is not None
    assert not mapping.proof["equal"]


@pytest.mark.parametrize("present", [*permutations(range(3))], ids=str)
def test_parts_of_unequal_sizes_are_cut_in_each_order_whichever_they_have_now(present: tuple[int, ...]) -> None:
    def cut(order: tuple[int, ...]) -> list[Rows]:
        ends = dict(zip(order, accumulate(SIZES[i] for i in order), strict=True))
        places = [(ends[i] - n, ends[i]) for i, n in enumerate(SIZES)]
        return [Rows(ex.part(ex.of("fc"), 0, *place), None, place[1] - place[0]) for place in places]

    shapes = {"fc": (sum(SIZES), 6)}
    made = {tuple(ex.simplified(r.weight, shapes) for r in rows if r.weight) for _, rows in _orders(cut(present))}
    assert made >= {tuple(r.weight for r in cut(order)) for order in permutations(range(3)) if order != present}
