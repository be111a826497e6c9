"""Cells stay what the units in them say, and cost what changes in them."""

from collections import defaultdict
from itertools import permutations

import pytest
from effort import calls
from hypothesis import given
from hypothesis import strategies as st

from ckptool.porting.matching.cells import Cells
from ckptool.porting.matching.evidence import Evidence, Kind
from ckptool.porting.matching.units import Unit, around

NAMED = Evidence(Kind.NAME)


def units(side, colours):
    return [Unit((side, str(at)), {}, ((colour,), ""), at, None, ()) for at, colour in enumerate(colours)]


def grouped(cells):
    """What every unit's own cell says, the oracle: the cells in the order of their first units."""
    found = defaultdict(lambda: ([], []))
    for side, members in enumerate((cells.targets, cells.sources)):
        for unit in members:
            found[unit.cell][side].append(unit)
    return found


colours = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(colours, colours, st.lists(st.sampled_from(["some", "all", "fair", "one", "join"]), max_size=5), st.data())
def test_cells_hold_the_units_that_say_so(own, theirs, steps, data):
    cells = Cells(units("t", own), units("s", theirs))
    for step in steps:
        if step == "join":
            cells.join(data.draw(st.sampled_from(cells.targets)), data.draw(st.sampled_from(cells.sources)))
        else:
            labels = {
                id(u): data.draw(st.sampled_from([None, "a", "b", "c"])) for u in (*cells.targets, *cells.sources)
            }
            before = cells.groups()
            split = cells.split(NAMED, lambda unit, _, labels=labels: labels[id(unit)], mode=step)
            assert split == (cells.groups() != before)
        wanted = grouped(cells)
        assert list(cells.groups().items()) == list(wanted.items())
        assert cells.open() == [(t, s) for t, s in wanted.values() if t and s and len(t) + len(s) > 2]
        assert cells.pairs() == [(t[0], s[0]) for t, s in wanted.values() if len(t) == len(s) == 1]
        assert cells.pair_of == {cell: (t[0], s[0]) for cell, (t, s) in wanted.items() if len(t) == len(s) == 1}


def test_a_split_costs_nothing_for_what_is_decided():
    def cost(decided):
        cells = Cells(units("t", [0, 0, *range(1, decided)]), units("s", [0, 0, *range(1, decided)]))
        return calls(lambda: cells.split(NAMED, lambda unit, _: unit.path[1]))

    cost(10)  # what is noted once
    assert cost(1000) <= cost(10) + 8


@pytest.mark.parametrize(
    ("paths", "module"),
    [
        (["h.0.q", "h.0.k"], "h.0"),
        (["h.0.q"], "h.0"),
        (["h.0.q.norm", "h.0.q"], "h.0"),
        (["h.0.q.norm", "h.0"], "h"),
        (["h.0.q", ""], ""),
    ],
)
def test_the_module_around_units_is_the_same_in_whatever_order_they_come(paths: list[str], module: str) -> None:
    held = [tuple(path.split(".")) if path else () for path in paths]
    expected = tuple(module.split(".")) if module else ()
    assert {around(order) for order in permutations(held)} == {expected}
