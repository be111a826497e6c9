"""The orders that both sides have, and how reliable each is: in the whole model, and in one of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from operator import attrgetter

from ..matching.sequences import Sequences
from ..matching.units import Pair, Path, Unit, block_of, by_block, nearness, series
from .names import by_numbers

#: An order in which less than this share of a block agrees with the other side decides nothing there.
BELIEVED = 0.85
#: The name of the order of the numbers in the names of the source.
NUMBERED = "order of its numbers"
#: A block in which less than this many couples tell about an order is judged by the whole model.
_FEW = 3

_Place = Callable[[Unit], float | None]


@dataclass(frozen=True, slots=True)
class Order:
    """An order that both sides have.

    Attributes:
        name: its name in the report.
        vote: returns 1 if two pairs keep it, -1 if their sources are in the opposite order of their targets, 0 if that
            is not known.
        place: returns the place of a unit of the target in it, None if it has none.
    """

    name: str
    vote: Callable[[Pair, Pair], int]
    place: _Place


def orders_of(sequences: Sequences) -> list[Order]:
    """Return the orders in which both sides can be compared; [] if there are none.

    If the order of execution is known for both sides: "execution order of both" alone. Else, if the order of the
    source's keys is meaningful: "execution order" of the target (if known) and "registration order" of the target,
    compared with the source's keys. Last, if the target's order of execution is known: "order of its numbers", compared
    with the numbers in the names of the source (`_counted`).
    """
    if sequences.traced and sequences.source_traced:
        return [Order("execution order of both", partial(_vote, _used, _used), _used)]
    found: list[Order] = []
    if sequences.ordered and sequences.traced:
        found.append(Order("execution order", partial(_vote, _used, _stored), _used))
    if sequences.ordered:
        found.append(Order("registration order", partial(_vote, _stored, _stored), _stored))
    if sequences.traced:
        found.append(Order(NUMBERED, _counted, _used))
    return found


_used: _Place = attrgetter("used")
_stored: _Place = attrgetter("order")


def _vote(of_target: _Place, of_source: _Place, one: Pair, other: Pair) -> int:
    """Return 1 if ONE and OTHER are in one order on both sides, -1 if not, by the places that OF_TARGET and OF_SOURCE
    return for their units; 0 if a unit has none, or if two of a side are equal.
    """
    t, s = of_target(one[0]), of_source(one[1])
    t2, s2 = of_target(other[0]), of_source(other[1])
    if t is None or s is None or t2 is None or s2 is None or t == t2 or s == s2:
        return 0
    return 1 if (t < t2) == (s < s2) else -1


def _counted(one: Pair, other: Pair) -> int:
    """Return 1 if the model runs the targets of two pairs in the order of the numbers in the paths of their sources, -1
    if in the opposite order. 0 if it is not known when the model runs them, if the numbers are equal, or if the paths
    of the sources differ in more than numbers.
    """
    t, t2, s, s2 = one[0], other[0], one[1], other[1]
    if t.used is None or t2.used is None or t.used == t2.used or s.numbers == s2.numbers or series(s) != series(s2):
        return 0
    return 1 if (t.used < t2.used) == (s.numbers < s2.numbers) else -1


def concordance(
    order: Order,
    pairs: Sequence[Pair],
    least: int = 0,
    otherwise: float = 1.0,
    *,
    known: MutableMapping[tuple[int, int], bool] | None = None,
) -> float:
    """Return the share of couples of PAIRS that keep ORDER (have their units in it on both sides), 0 to 1, among those
    that tell about it; OTHERWISE if fewer than LEAST couples tell about it, or none.

    A couple tells about ORDER if its `vote` is not 0, and if its two pairs are no look-alikes, or are numbered in one
    order on both sides (`by_numbers`). Of 120 pairs or more, 60 to 90 are looked at, evenly spread. KNOWN keeps, for
    further calls with the same pairs, which couples of look-alikes are numbered so.
    """
    step = max(len(pairs) // 60, 1)
    known = {} if known is None else known
    couples = (both for both in combinations(pairs[::step], 2) if _telling(*both, known))
    votes = [vote for one, other in couples if (vote := order.vote(one, other))]
    return sum(vote > 0 for vote in votes) / len(votes) if len(votes) >= max(least, 1) else otherwise


def _telling(one: Pair, other: Pair, known: MutableMapping[tuple[int, int], bool]) -> bool:
    """Return whether ONE and OTHER are no look-alikes, or are numbered in one order on both sides (`by_numbers`), which
    is then in KNOWN (ids of the targets -> whether they are).
    """
    if one[0].colour != other[0].colour:
        return True
    both = id(one[0]), id(other[0])
    if both not in known:
        known[both] = by_numbers(one, other) > 0
    return known[both]


class Belief:
    """Measures how reliable each order is in a block.

    Args:
        pairs: the pairs as they are.
        orders: the orders to measure.
        overall: name of an order -> how reliable it is in the whole model, 0 to 1.
    """

    def __init__(self, pairs: Iterable[Pair], orders: Sequence[Order], overall: Mapping[str, float]) -> None:
        self._blocks, self._orders, self._overall = by_block(pairs), orders, overall
        self._known: dict[tuple[Path, ...], dict[str, float]] = {}
        self._numbered: dict[tuple[int, int], bool] = {}

    def about(self, one: Pair, other: Pair) -> dict[str, float]:
        """Return name of an order -> how reliable it is, 0 to 1, for the question whether ONE and OTHER are to be
        swapped: the share of couples of pairs in the block of the target of ONE that keep it (`concordance`); as in the
        whole model if fewer than three couples tell about it.

        If the targets of ONE and OTHER are in two different modules of one module (`a.q.x` and `a.k.x`), the pairs in
        these two (`a.q`, `a.k`) do not count: that one module comes before the other does not say which is which.
        """
        at = nearness(one[0], other[0]) + 1
        parts = tuple(sorted((one[0].path[:at], other[0].path[:at])))
        if min(len(one[0].path), len(other[0].path)) <= at:
            parts = ()
        block = block_of(one[0].path)
        about = (block, *parts)
        if about not in self._known:
            outside = [pair for pair in self._blocks[block] if not parts or pair[0].path[:at] not in parts]
            self._known[about] = {
                order.name: concordance(order, outside, _FEW, self._overall[order.name], known=self._numbered)
                for order in self._orders
            }
        return self._known[about]
