"""A proof draws its inputs at random. What the first ones do not show, others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.porting import expression as ex
from ckptool.porting.mapping import Entry
from ckptool.porting.prove.ground import exchanged


class Times(nn.Module):
    """Multiplies with a matrix that is stored as code of its own may store it: `x @ W`, not `x @ W.T`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 6))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


class Net(nn.Module):
    """Of positive weights, so that its output is 0 wherever the inputs have a negative sum."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.names = first, second
        self.add_module(first, Times())
        self.add_module(second, nn.Linear(6, 6, bias=False))

    def forward(self, x: Any) -> Any:
        first, second = (getattr(self, name) for name in self.names)
        return second(first(x).relu())


@pytest.mark.parametrize("seed", range(6))
def test_a_matrix_is_found_whichever_way_it_is_stored_also_if_the_first_outputs_are_all_zero(
    seed: int, tmp_path: Path
) -> None:
    torch.manual_seed(seed)
    theirs, own = Net("one", "two").eval(), Net("first", "second").eval()
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    inputs = [torch.rand(2, 6)]
    mapping = ckptool.transfer(tmp_path / "a.pth", own, source_model=theirs, inputs=inputs, prove=True)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof["text"]
    ckptool.load_into(own, tmp_path / "a.pth", mapping=mapping)
    assert torch.equal(own.first.weight, theirs.one.weight)


def test_keys_of_other_sizes_exchange_nothing() -> None:
    x, y = ex.of("x"), ex.of("y")
    entries = {e.target: e for e in (Entry("a", (4,), x), Entry("b", (4,), y), Entry("c", (2, 2), y))}
    assert exchanged(entries, {"a": y}) == {"a": y, "b": x}
