"""Pair units whose neighbours, the units directly before and after them, are paired.

Each new pair makes its own neighbours known. Usually the other rules run before the next pair is looked for, because
the new pair may help them. A pair of two names that are unrelated to any other name cannot help them: then the next
round follows at once, and looks only at the neighbours of the new pairs. A row of layers with random names takes as
many rounds as it has layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property

from ..words import labels
from .cells import Cells, DoubtOf
from .evidence import Evidence, Kind
from .scopes import Scopes
from .sequences import Sequences
from .series import NUMBER
from .units import Pair, Unit

#: Pairs by the `id` of their units, of which a direct neighbour on the same side is a pair, too.
_Beside = dict[tuple[int, int], Pair]


class Neighbours:
    """The rule that pairs the neighbours of pairs, in each order that both sides have.

    Attributes:
        rounds: how often `split` was called, which looks through all open cells.
    """

    def __init__(self, cells: Cells, sequences: Sequences, scopes: Scopes) -> None:
        self._cells, self._sequences, self._scopes = cells, sequences, scopes
        self.rounds = 0

    def split(self, doubt_of: Callable[[str], DoubtOf]) -> bool:
        """Pair units whose neighbours are paired, round after round (`_round`), each time with the pairs of the rounds
        before. Return True after the first round with a pair that may help other rules, so that these should run again;
        False after a round that made no pair. False does not mean that no pair was made: earlier rounds may have made
        pairs that help no other rule (`_tells_nothing`).

        Args:
            doubt_of: returns, for the name of an order, a function that returns the question about a pair, or None.
        """
        self.rounds += 1
        rows = [_Row(self._cells, *sequence, self._sequences) for sequence in self._sequences.all()]
        found = self._cells.pairs()
        while True:
            for row in rows:
                row.see(found)
            found = self._round(rows, doubt_of)
            if not found:
                return False
            if not all(self._tells_nothing(*pair) for pair in found):
                return True

    def _round(self, rows: Iterable[_Row], doubt_of: Callable[[str], DoubtOf]) -> list[Pair]:
        """Take the first of the orders ROWS in which open units have paired neighbours. Pair the units between two
        pairs there; if there are none, those directly after a pair; if there are none either, those directly before a
        pair. Return the pairs that are decided now (`Cells.pair_off`); [] if no order has such units. DOUBT_OF: see
        `split`.
        """
        for row in rows:
            for kind, pairs in row.found():
                if pairs:
                    return self._cells.pair_off(Evidence(kind, row.name), pairs, doubt_of(row.name))
        return []

    def _tells_nothing(self, t: Unit, s: Unit) -> bool:
        """Return whether the new pair of T and S cannot help any rule about names, contents or modules, which then need
        not run again: both hold the same roles, their names are unrelated to others (`_is_unrelated`), the modules
        around them are paired, and the last search for pairs of modules found none.
        """
        known = self._scopes.settled and self._scopes.are_paired(t) and self._scopes.are_paired(s)
        return known and t.pieces.keys() == s.pieces.keys() and self._is_unrelated(t) and self._is_unrelated(s)

    def _is_unrelated(self, unit: Unit) -> bool:
        """Return whether the path of UNIT tells nothing about other units: it has no number (also "first"), no word
        with a label in the vocabulary, and no word that another unit of either side has, also its partner.
        """
        if unit.numbers or NUMBER.search(".".join(unit.path)):
            return False
        if labels(unit.words, hard=True) or labels(unit.words, hard=False):
            return False
        return all(self._uses[word] == 1 for word in unit.words)

    @cached_property
    def _uses(self) -> Counter[str]:
        """Return word -> number of units of both sides with this word in their names."""
        return Counter(
            word for unit in (*self._cells.targets, *self._cells.sources) for word in dict.fromkeys(unit.words)
        )


class _Row:
    """One order of both sides, and the open units in it with a paired neighbour.

    Attributes:
        name: the name of the order.
    """

    def __init__(self, cells: Cells, name: str, targets: list[Unit], sources: list[Unit], sequences: Sequences) -> None:
        self.name = name
        self._cells = cells
        self._around = sequences.neighbours(targets), sequences.neighbours(sources)
        self._beside: tuple[_Beside, _Beside] = {}, {}  # behind a pair, before a pair
        for side, end in ((0, 0), (1, -1)):
            if targets and sources:
                self._note(side, targets[end], sources[end])

    def see(self, pairs: Iterable[Pair]) -> None:
        """Note, for `found`, the target and the source that stand directly before the two units of each of PAIRS, and
        those directly behind them, if these two are in one open cell.
        """
        for t, s in pairs:
            for side in (0, 1):
                self._note(side, *(around[1 - side].get(id(u)) for around, u in zip(self._around, (t, s), strict=True)))

    def _note(self, side: int, t: Unit | str | None, s: Unit | str | None) -> None:
        """Note T and S, which stand directly behind a pair (SIDE 0) or before one (1), if they are in one open cell."""
        if isinstance(t, Unit) and isinstance(s, Unit) and self._is_open(t, s):
            self._beside[side][id(t), id(s)] = t, s

    def _is_open(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S are in one open cell."""
        return t.cell == s.cell and t.cell not in self._cells.pair_of

    def found(self) -> Iterable[tuple[Kind, list[Pair]]]:
        """Yield (kind of evidence, pairs) three times: BETWEEN with the noted (target, source) that stand between two
        pairs, AFTER with those directly behind a pair, BEFORE with those directly before one. The two ends of an order
        count as a pair. A list may be empty. AFTER and BEFORE have only pairs whose cell has equally many units of both
        sides. Noted units that are not in one open cell any more are forgotten first.
        """
        for beside in self._beside:
            for key in [key for key, pair in beside.items() if not self._is_open(*pair)]:
                del beside[key]
        behind, before = self._beside
        yield Kind.BETWEEN, [behind[key] for key in behind.keys() & before.keys()]
        for kind, beside in ((Kind.AFTER, behind), (Kind.BEFORE, before)):
            yield kind, [(t, s) for t, s in beside.values() if self._cells.is_even(t.cell)]
