"""Pairs of independent codings of one architecture: what is ported computes the same, or was flagged."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[2]))
from benchmarks.zoo import PAIRS
from benchmarks.zoo.__main__ import port

#: They hold the engine as a whole to account; its lines are the business of the tests beside this one. Watched line by
#: line, they would take four times as long.
pytestmark = pytest.mark.no_cover

#: Pairs that are not ported right, and say so. Whoever makes one right takes it off the list.
NOT_YET: set[str] = set()


@pytest.mark.parametrize("name", PAIRS)
def test_a_port_is_right_or_says_that_it_is_not_sure(name: str) -> None:
    pair = PAIRS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models, such as those about nested tensors
        found = port(pair, prove=False)
    if pair.hint:
        assert found.flags, found.details
    elif name in NOT_YET:
        assert found.outcome in ("flagged", "partial"), found.details
    else:
        assert found.outcome == "right", found.details


@pytest.mark.parametrize("name", [name for name in PAIRS if name in NOT_YET or PAIRS[name].hint])
def test_with_the_code_of_the_source_it_is_proved(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = port(PAIRS[name], prove=True)
    assert found.outcome == "right", found.details
    assert "equal" in found.remark
