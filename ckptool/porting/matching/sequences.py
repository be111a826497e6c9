"""The orders in which the units of both sides can be compared: of execution, and of registration."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from .cells import Cells
from .units import Unit

#: (`id` of a unit -> the unit directly before it, `id` of a unit -> the unit directly after it); "edge" at an end.
Around = tuple[dict[int, Unit | str], dict[int, Unit | str]]
Sequence = tuple[str, list[Unit], list[Unit]]


class Sequences:
    """The orders in which units of both sides are compared: execution on both, if both were traced; and, if the order
    of the source's keys is meaningful, execution of the target (if it was traced) and registration of the target, each
    with registration of the source.

    Attributes:
        ordered: whether the order of the source's keys is meaningful.
        traced, source_traced: whether the order of execution is known for the target, and for the source.
    """

    def __init__(self, cells: Cells, *, ordered: bool, traced: bool, source_traced: bool) -> None:
        self._cells = cells
        self.ordered, self.traced, self.source_traced = ordered, traced, source_traced
        self._credits: dict[str, float] = {}
        self._around: dict[int, Around] = {}  # by the id of one of the lists in `_all`
        self._all = self._ordered()

    def all(self) -> list[Sequence]:
        """Return the orders that both sides have, the most reliable first (see `_credit`): (name, units of the target,
        units of the source), each side in its order. An order of execution lacks units whose place in it is not known.
        """
        return self._all

    def neighbours(self, units: list[Unit]) -> Around:
        """Return (`id` of a unit -> the unit directly before it, `id` of a unit -> the unit directly after it), for
        UNITS, a list of `all`, in its order. The first has "edge" before it, and the last has "edge" after it. The
        result is kept for the same list object.
        """
        if id(units) not in self._around:
            edges: list[Unit | str] = ["edge", *units, "edge"]
            before = {id(unit): other for unit, other in zip(units, edges, strict=False)}
            self._around[id(units)] = before, {id(unit): other for unit, other in zip(units, edges[2:], strict=True)}
        return self._around[id(units)]

    def _ordered(self) -> list[Sequence]:
        """Return the orders for `all`, each as (name, units of the target, units of the source), both in this order:

        - "execution order of both", if both sides were traced (orders of execution lack units without a known place);
        - if the order of the source's keys is meaningful: "execution order" if the target was traced, and "registration
          order", both with the source in the order of registration.

        [] if none of these is there. The order in which neighbours of both sides have equal colours most often is first
        (`_credit`); of several with an equal share, the first in this list.
        """
        found = []
        stored = sorted(self._cells.sources, key=lambda u: u.order)
        if self.source_traced and self.traced:
            found.append(("execution order of both", _in_use(self._cells.targets), _in_use(self._cells.sources)))
        if self.ordered:
            if self.traced:
                found.append(("execution order", _in_use(self._cells.targets), stored))
            found.append(("registration order", sorted(self._cells.targets, key=lambda u: u.order), stored))
        return sorted(found, key=lambda one: -self._credit(*one))

    def _credit(self, name: str, targets: list[Unit], sources: list[Unit]) -> float:
        """Return how well the order NAME agrees on both sides, 0 to 1: how many couples of neighbours in TARGETS have a
        couple of neighbours of the same two colours, first and second, in SOURCES, each counted once, divided by the
        number of couples of the shorter side; 0 if a side has no two units. It is noted for `credit_of`.
        """
        a, b = (Counter(pairwise(c)) for c in ([u.colour for u in targets], [u.colour for u in sources]))
        self._credits[name] = sum((a & b).values()) / max(min(sum(a.values()), sum(b.values())), 1)
        return self._credits[name]

    def credit_of(self, name: str) -> float:
        """Return how well the order NAME, which both sides have, agrees on both sides: 0 to 1, see `_credit`."""
        return self._credits[name]

    def best_credit(self) -> float:
        """Return how well the best order agrees on both sides, 0 to 1 (see `_credit`); 1 if there is no order."""
        return max((self._credits[name] for name, _, _ in self.all()), default=1.0)


def _in_use(units: list[Unit]) -> list[Unit]:
    """Return those of UNITS whose place in the order of execution is known, in this order."""
    return sorted((u for u in units if u.used is not None), key=lambda u: u.used or 0.0)
