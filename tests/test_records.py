"""Records do what frozen dataclasses do, but for the guard."""

import copy
import pickle
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptool.records import record


def pair(one: Any) -> tuple[type, type]:
    """A record and a dataclass of the same text."""
    return one(record), one(dataclass)


def several(kind: Any) -> type:
    @kind(frozen=True, slots=True)
    class Several:
        first: Any
        second: Any = 2
        aside: Any = field(default=None, compare=False)
        hidden: Any = field(default_factory=list, repr=False, compare=False)

    return Several


def single(kind: Any) -> type:
    @kind(frozen=True, slots=True)
    class Single:
        first: Any

    return Single


def empty(kind: Any) -> type:
    @kind(frozen=True, slots=True)
    class Empty:
        pass

    return Empty


def shown(kind: Any) -> type:
    @kind(frozen=True, slots=True)
    class Shown:
        first: Any

        def __repr__(self) -> str:
            return "shown"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    return Shown


# No NaN: a dataclass with the same one is equal up to Python 3.12, and no longer from 3.13 on.
VALUES = st.one_of(st.integers(-1, 1), st.text(max_size=1), st.tuples(st.integers(0, 1)))


@pytest.mark.parametrize("made", [several, single, empty, shown])
@given(st.lists(VALUES, max_size=3), st.lists(VALUES, max_size=3))
def test_records_are_equal_hashed_and_shown_as_dataclasses_are(made, some, others):
    mine, theirs = pair(made)
    most = len([one for one in fields(theirs) if one.name != "hidden"])
    least = sum(one.name == "first" for one in fields(theirs))
    some, others = ([*values, 0][: max(least, min(most, len(values)))] for values in (some, others))
    a, b, c, d = mine(*some), mine(*others), theirs(*some), theirs(*others)
    assert (a == b, a != b, hash(a) == hash(b)) == (c == d, c != d, hash(c) == hash(d))
    assert hash(a) == hash(c)
    assert a == mine(*some)
    assert a != c or made is shown
    assert repr(a) == repr(c)
    assert (asdict(a), astuple(a)) == (asdict(c), astuple(c))
    assert [one.name for one in fields(mine)] == [one.name for one in fields(theirs)]
    assert mine.__match_args__ == theirs.__match_args__
    if least:
        assert replace(a, first=1).first == 1
    assert repr(copy.copy(a)) == repr(a)


def test_a_record_that_holds_itself_is_shown():
    mine, theirs = pair(single)
    holds: list[Any] = []
    holds.append(mine(holds))
    others: list[Any] = []
    others.append(theirs(others))
    assert repr(holds) == repr(others)


def test_a_record_that_may_change_has_no_hash():
    @record(frozen=False, slots=True)
    class Changing:
        first: int

    with pytest.raises(TypeError, match="unhashable"):
        hash(Changing(1))
    assert Changing(1) == Changing(1)


@record(frozen=True, slots=True)
class Pickled:
    """A class that can be pickled by its name."""

    first: Any
    second: Any = 2


def test_records_are_pickled():
    one = Pickled((1, "x"))
    assert pickle.loads(pickle.dumps(one)) == one
