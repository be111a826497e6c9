"""Rules about orders: neighbours, ranks and numbers, and how reliable an order is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from ..forms.branches import flows_into
from ..questions import Question, Reason, ask
from ..words import common_start, label, table
from .cells import Cells, of
from .counting import counted, rows
from .evidence import Evidence, Kind
from .neighbours import Neighbours
from .scopes import Scopes
from .sequences import Sequences
from .series import common
from .units import (
    SOME,
    Path,
    Unit,
    block_of,
    label_of,
    number_ranks,
    related,
    same_numbers,
    series,
    similarity,
    tables_of_words,
)

#: An order of which less than this share agrees says little on its own.
_LITTLE = 0.6
#: Share of pairs decided otherwise that must lie in one order on both sides for that order to decide.
_ORDERED = 0.75
_MOST_COMPARED = 48
#: Words for which norm of a block one is, in the order in which they are used.
_PLACES = ("first", "second", "third")


class Orders:
    """Rules that split cells by orders (`by_…`). Each returns whether it split any cell; `by_neighbours` may return
    False in spite of it.
    """

    def __init__(self, cells: Cells, sequences: Sequences, scopes: Scopes) -> None:
        self.cells = cells
        self.sequences = sequences
        self.scopes = scopes
        self.neighbours = Neighbours(cells, sequences, scopes)
        self._places: dict[str, tuple[dict[int, int], ...]] = {}

    def by_numbers(self) -> bool:
        """Split cells with equally many units on both sides by the ranks of numbers: the lowest number is paired with
        the lowest, and so on, or the lists are counted from opposite ends (see `_number_ranks`). Return whether any
        cell was split.

        If the order of execution or of registration contradicts the ranks (`_order_conflict`), a cell is split only if
        both sides have the same numbers, and these do not count members of several lists. If no pair of the list is
        known, and the levels that it takes speak against its numbers (`Levels.against`), the pairs are a question.
        """
        changed = False
        for targets, sources in self.cells.open():
            if len(targets) != len(sources):
                continue
            ranks = self._number_ranks(targets, sources)
            if ranks is None:
                continue
            against = self._order_conflict(targets, sources, ranks)
            if against and (not same_numbers(targets, sources) or _of_several_rows(targets)):
                continue
            levels = not self._known(targets[0], sources[0]) and self._against_levels(targets, sources)
            reason = Reason.AGAINST_LEVELS if levels > 0 else Reason.LEVELS_FROM_THE_OTHER_END
            doubt: Question[Unit] | None = ask(reason) if levels else None
            changed |= self.cells.split(
                Evidence(Kind.NUMBERS), partial(of, ranks), mode="all", cells=[(targets, sources)], doubt=doubt
            )
        return changed

    def _number_ranks(self, targets: list[Unit], sources: list[Unit]) -> dict[int, int] | None:
        """Return `id` of a unit -> rank of its numbers, from 0. None as in `units.number_ranks`.

        If TARGETS are of one series and SOURCES, too, the sources are ranked from the other end if decided pairs of the
        two series show it or, without any, if the forward pass and the names do (`Levels.against` is -1); in the second
        case, the units note it in `backwards`. None, too, if such pairs contradict both ways to count, or if two units
        of a side have one rank and are counted from the other end.
        """
        ranks = number_ranks(targets, sources)
        if ranks is None or len({series(u) for u in targets}) > 1 or len({series(u) for u in sources}) > 1:
            return ranks
        known = self._known(targets[0], sources[0])
        sign = counted([u.numbers for u in targets], [u.numbers for u in sources], known)
        if not known and self._against_levels(targets, sources) < 0:
            sign = -1
            for unit in (*targets, *sources):
                unit.backwards |= {row for row, _ in rows(unit.path)}
        if sign > 0:
            return ranks
        last = max(ranks.values())
        other_end = {id(u): ranks[id(u)] for u in targets} | {id(u): last - ranks[id(u)] for u in sources}
        return other_end if sign < 0 and len(set(other_end.values())) == len(targets) else None

    def _known(self, target: Unit, source: Unit) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return (numbers of the target, numbers of the source) for each decided pair of the series of TARGET and
        SOURCE.
        """
        both = series(target), series(source)
        return [(t.numbers, s.numbers) for t, s in self.cells.pairs() if (series(t), series(s)) == both]

    def _against_levels(self, targets: list[Unit], sources: list[Unit]) -> int:
        """Return whether the levels that a list takes speak against its numbers: 0, 1 or -1 as in `Levels.against`. 0
        if the paths of TARGETS, or those of SOURCES, do not differ in exactly one number.
        """
        own, theirs = common(t.path for t in targets), common(s.path for s in sources)
        return 0 if own is None or theirs is None else self.scopes.levels.against(own[0], theirs[0])

    def _order_conflict(self, targets: list[Unit], sources: list[Unit], ranks: dict[int, int]) -> bool:
        """Return whether RANKS (`id` of a unit -> rank of its numbers) put the units in another order than execution in
        the model and registration in the source do.

        Without a forward pass, the numbers of one series are believed (False), and those of several series are compared
        with the order of registration. False if the order of the source's keys means nothing.
        """
        if not self.sequences.ordered:
            return False
        if self.sequences.traced:
            used = sorted(targets, key=lambda u: (u.used is None, u.used or 0.0))
        elif len({series(u) for u in targets}) > 1:
            used = sorted(targets, key=lambda u: u.order)
        else:
            return False
        stored = sorted(sources, key=lambda u: u.order)
        return [ranks[id(u)] for u in used] != [ranks[id(u)] for u in stored]

    def by_said_places(self) -> bool:
        """Pair the units of a cell whose names in the source say their place in words ("first", "second", "third") with
        those of the model in the order of execution. Return whether any pair was made.

        Both sides have equally many units, the sources say the first places, each once, the targets say none, and the
        place of each target in the order of execution is known.
        """
        changed, place = False, table().group("position")
        for targets, sources in self.cells.open():
            # numbers may count what is registered: `norm1` of some code is used second
            said = {label(place, [w for w in s.words if not w.isdecimal()]): s for s in sources}
            if not (
                len(targets) == len(sources) == len(said) and list(_PLACES)[: len(said)] == sorted(filter(None, said))
            ):
                continue
            if any(t.used is None or label_of(t, "position") for t in targets):
                continue
            ranks = {id(t): n for n, t in enumerate(sorted(targets, key=lambda t: t.used or 0.0))}
            ranks |= {id(s): _PLACES.index(where) for where, s in said.items() if where}
            changed |= self.cells.split(
                Evidence(Kind.RANK, "execution order"), partial(of, ranks), mode="all", cells=[(targets, sources)]
            )
        return changed

    def by_neighbours(self) -> bool:
        """Split cells by the units directly before and after, if these are paired. Return whether other rules should
        run again, as `Neighbours.split` does. A pair is a question if `_doubt_of` has one.
        """
        return self.neighbours.split(lambda name: partial(self._doubt_of, name))

    def by_rank(self) -> bool:
        """Split one cell by place among look-alikes: the first of the target is the first of the source, and so on.
        Return whether any cell was split. The smallest cells with equally many units of both sides are tried first.

        The first order that has all units of the cell decides: the most reliable of the orders that both sides have,
        then the numbers. Numbers go first if the model uses the units in their order. The pairs are a question if
        numbers do not confirm that order, and another order contradicts it (unless names or numbers speak for all pairs
        but one), it agrees little on both sides, or less than 75 percent of the certain pairs nearby keep it. They are
        also a question if different numbers decide and the source is not ordered.
        """
        cells = sorted(((t, s) for t, s in self.cells.open() if len(t) == len(s)), key=lambda c: len(c[0]))
        for targets, sources in cells:
            inside_t, inside_s = set(map(id, targets)), set(map(id, sources))
            votes = []
            for name, ts, ss in self.sequences.all():
                rank_t = {id(u): i for i, u in enumerate(u for u in ts if id(u) in inside_t)}
                rank_s = {id(u): i for i, u in enumerate(u for u in ss if id(u) in inside_s)}
                if len(rank_t) == len(rank_s) == len(targets):
                    votes.append((name, {**rank_t, **rank_s}))
            numbered = self._number_ranks(targets, sources)
            if numbered is not None and len(set(numbered.values())) == len(targets):
                votes.append(("numbers", numbered))
            if not votes and (row := _in_one_row(targets, sources)) is not None:
                votes.append(("numbers", row))
            if not votes:
                continue
            if votes[-1][0] == "numbers" and self._counted_as_used(targets, sources, votes[-1][1]):
                votes.insert(0, votes.pop())
            name, ranks = votes[0]
            first = _pairing(targets, sources, ranks)
            other = {n: _pairing(targets, sources, r) for n, r in votes[1:]}
            against = [n for n, pairing in other.items() if pairing != first]
            doubt: Question[Unit] | None = None
            pairs = [(t, next(s for s in sources if id(s) == i)) for t, i in zip(targets, first, strict=True)]
            if sum(not self._corroborated(t, s, targets, sources) for t, s in pairs) <= 1:
                against = []
            if (
                not against
                and name != "numbers"
                and self.sequences.credit_of(name) < _LITTLE
                and other.get("numbers") != first
            ):
                doubt = self._against(*pairs[0], targets, sources)
            if not doubt and name != "numbers" and other.get("numbers") != first:
                loose = [pair for pair in pairs if not self._corroborated(*pair, targets, sources)]
                if len(loose) > 1 and self._agreement(name, targets, sources) < _ORDERED:
                    doubt = ask(Reason.ORDERS_DIFFER_ELSEWHERE)
            if against and other.get("numbers") != first:
                doubt = ask(Reason.ORDERS_DISAGREE, name, against[0])
            elif name == "numbers" and numbered and not self.sequences.ordered and not same_numbers(targets, sources):
                doubt = ask(Reason.ONLY_NUMBERS)
            evidence = Evidence(Kind.NUMBERS) if name == "numbers" else Evidence(Kind.RANK, name)
            if self.cells.split(evidence, partial(of, ranks), mode="all", cells=[(targets, sources)], doubt=doubt):
                return True
        return False

    def _counted_as_used(self, targets: list[Unit], sources: list[Unit], numbered: dict[int, int]) -> bool:
        """Return whether each side numbers one series, and the model uses (without a forward pass: registers) its units
        in the order of these numbers. NUMBERED has `id` of a unit -> rank of its number.
        """
        used = [u.used if u.used is not None else u.order for u in sorted(targets, key=lambda u: numbered[id(u)])]
        return used == sorted(used) and len({series(u) for u in sources}) == len({series(u) for u in targets}) == 1

    def by_chain(self) -> bool:
        """Pair two units of one cell that directly follow a decided pair on both sides, or are the first of both sides.
        The two sources have to be in one module: else a list ends there. Each call makes at most one pair. Return
        whether any pair was made.

        The pair is a question unless the names agree or it goes on the series of the pair before. It is also a question
        if the names do not agree and any unit of a row may be the one without a partner.
        """
        for name, targets, sources in self.sequences.all():
            before_t, _ = self.sequences.neighbours(targets)
            before_s, _ = self.sequences.neighbours(sources)
            following = {id(b): u for u in sources if isinstance(b := before_s.get(id(u)), Unit)}
            first = sources[0] if sources else None
            for t in targets:
                if t.cell in self.cells.pair_of:
                    continue
                b = before_t.get(id(t))
                s = None
                if b == "edge":
                    s = first
                elif isinstance(b, Unit) and b.cell in self.cells.pair_of:
                    s = following.get(id(self.cells.pair_of[b.cell][1]))
                if s is None or s.cell != t.cell or s.cell in self.cells.pair_of:
                    continue
                if isinstance(b, Unit) and self.cells.pair_of[b.cell][1].path[:-1] != s.path[:-1]:
                    continue  # the list that it would go on is at its end
                goes_on = isinstance(b, Unit) and series(b) == series(t)
                named = similarity(t, s) > SOME or related(t, s) or tables_of_words(t, s)
                cell = next((c for c in self.cells.open() if any(u is t for u in c[0])), None)
                why = Reason.ONLY_FIRST if b == "edge" else Reason.ONLY_FOLLOWS
                doubt: Question[Unit] | None = None if goes_on or named else ask(why)
                if cell is not None and not doubt and not named and self._left_in_the_middle(t, s, cell, targets):
                    doubt = ask(Reason.LEFT_OUT_OF_A_ROW)
                if cell is not None and self.cells.split(
                    Evidence(Kind.FOLLOWS, name),
                    partial(of, {id(t): 1, id(s): 1}),
                    mode="one",
                    cells=[cell],
                    doubt=doubt,
                ):
                    return True
        return False

    def _left_in_the_middle(self, t: Unit, s: Unit, cell: tuple[list[Unit], list[Unit]], targets: list[Unit]) -> bool:
        """Return whether the two sides of CELL have different numbers of units, and some decided pair of another colour
        is behind T in TARGETS, the order of the target, and behind all sources of CELL in the order of registration.

        Then any unit of the longer row may be the one without a partner, not only the last. S is the partner of T in
        question.
        """
        if len(cell[0]) == len(cell[1]):
            return False
        behind = targets[targets.index(t) + 1 :]
        pairs = (self.cells.pair_of.get(u.cell) for u in behind if u.colour != t.colour)
        last = max(u.order for u in cell[1])
        return any(pair is not None and pair[1].order > last for pair in pairs)

    def _is_last(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether T and S directly follow the two units of one decided pair in the orders TARGETS and SOURCES,
        and no unit after them has a partner. False if an order lacks the unit.
        """
        place = [next((i for i, u in enumerate(units) if u is one), -1) for units, one in ((targets, t), (sources, s))]
        if min(place) < 1:
            return False
        before = targets[place[0] - 1], sources[place[1] - 1]
        rest = [*targets[place[0] + 1 :], *sources[place[1] + 1 :]]
        paired = before[0].cell == before[1].cell and before[0].cell in self.cells.pair_of
        return paired and not any(u.cell in self.cells.pair_of for u in rest)

    def between(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S stand, in some order, between the same two decided pairs, or between the same two
        blocks. The ends of an order on both sides count as a pair.

        Blocks count, because code may begin and end them with other layers: then the two units before T and S (or those
        after them) are each paired with a unit of the other's block, and T and S are not in these blocks.
        """
        return any(self._fits_between(t, s, ts, ss) for _, ts, ss in self.sequences.all())

    def at_the_end(self, t: Unit, s: Unit) -> bool:
        """Return whether, in some order, T and S directly follow the two units of one decided pair, and no later unit
        of either side has a partner.
        """
        return any(self._is_last(t, s, ts, ss) for _, ts, ss in self.sequences.all())

    def _fits_between(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        before_t, after_t = self.sequences.neighbours(targets)
        before_s, after_s = self.sequences.neighbours(sources)

        def same(a: object, b: object) -> bool:
            if not isinstance(a, Unit) or not isinstance(b, Unit):
                return a == b == "edge"
            if a.cell == b.cell:
                return a.cell in self.cells.pair_of
            own, theirs = block_of(a.path), block_of(b.path)
            if not own or not theirs or inside(t, own) or inside(s, theirs):
                return False
            return all(
                u.cell in self.cells.pair_of
                and inside(self.cells.pair_of[u.cell][0], own)
                and inside(self.cells.pair_of[u.cell][1], theirs)
                for u in (a, b)
            )

        def inside(unit: Unit, block: Path) -> bool:
            return unit.path[: len(block)] == block

        return same(before_t.get(id(t)), before_s.get(id(s))) and same(after_t.get(id(t)), after_s.get(id(s)))

    def _doubt_of(self, name: str, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> Question[Unit] | None:
        """Return the question about T and S, a pair that the order NAME made of the cell of TARGETS and SOURCES: that
        orders differ elsewhere, if names and numbers do not speak for the pair and less than 75 percent of the certain
        pairs nearby keep the order; else the result of `_against`. None if there is no doubt.
        """
        if not self._corroborated(t, s, targets, sources) and self._agreement(name, targets, sources) < _ORDERED:
            return ask(Reason.ORDERS_DIFFER_ELSEWHERE)
        return self._against(t, s, targets, sources)

    def _against(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> Question[Unit] | None:
        """Return a question if no order agrees well on both sides, or if an order gives T and S different places among
        TARGETS and SOURCES, their look-alikes. None if neither is so, if names or numbers speak for the pair
        (`_corroborated`), if the two sides have different numbers of look-alikes, or if all TARGETS are batch norms.
        """
        if len(targets) != len(sources) or all("running_var" in u.pieces for u in targets):
            return None
        inside_t, inside_s = set(map(id, targets)), set(map(id, sources))
        if self._corroborated(t, s, targets, sources):
            return None
        if self.sequences.best_credit() < _LITTLE:
            return ask(Reason.ORDERS_DIFFER)
        for name, ts, ss in self.sequences.all():
            place_t = next((i for i, u in enumerate(u for u in ts if id(u) in inside_t) if u is t), None)
            place_s = next((i for i, u in enumerate(u for u in ss if id(u) in inside_s) if u is s), None)
            if place_t is not None and place_s is not None and place_t != place_s:
                return ask(Reason.ORDER_SPEAKS_FOR_ANOTHER, name)
        return None

    def _corroborated(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether names or numbers, too, speak for the pair of T and S, and for no other pair of the cell
        TARGETS, SOURCES.

        The two names are more similar than either is to any other. Or T has numbers, and T and S have the same rank
        among all numbers of the cell; if two units of a side have one rank, they have equal numbers, and no third unit
        has these.
        """
        own = similarity(t, s)
        if (
            own > 0
            and own > max((similarity(t, other) for other in sources if other is not s), default=0.0)
            and own > max((similarity(other, s) for other in targets if other is not t), default=0.0)
        ):
            return True
        if not t.numbers:
            return False
        ranks = self._number_ranks(targets, sources)
        if ranks is not None and len(set(ranks.values())) == len(targets):
            return ranks[id(t)] == ranks[id(s)]
        same = [u for u in (*targets, *sources) if u.numbers == t.numbers]
        return len(same) == 2 and s.numbers == t.numbers

    def _agreement(self, name: str, targets: list[Unit], sources: list[Unit]) -> float:
        """Return how well pairs near TARGETS and SOURCES keep the order NAME: the share of couples of pairs that are in
        one order on both sides, 0 to 1, and 1 if there are none. Pairs with a doubt, and pairs that an order made, do
        not count.

        Near means in the innermost pair of scopes around all of the units, of which fewer than 96 are compared. If all
        units of each side are of one series, only pairs of one series are compared: one list after the other is the
        same order as interleaved lists. It is 1 for the order of execution if SOURCES are one series, stored in the
        order of its numbers.
        """
        places = self._places.get(name)
        if places is None:
            _, ts, ss = next(one for one in self.sequences.all() if one[0] == name)
            places = self._places[name] = tuple({id(u): n for n, u in enumerate(side)} for side in (ts, ss))
        if name == "execution order" and _counted_as_stored(sources):
            return 1.0  # what is numbered in the order in which it is stored is used in that order
        around = self.scopes.around(targets, sources)
        step = max(len(around) // _MOST_COMPARED, 1)
        decided = [
            (places[0][id(t)], places[1][id(s)], series(t), series(s))
            for t in around[::step]
            if t.cell in self.cells.pair_of
            and (s := self.cells.pair_of[t.cell][1])
            and id(t) in places[0]
            and id(s) in places[1]
            and not t.doubts
            and not any(e.is_order for e in t.evidence)
        ]
        alike = _of_one_series(targets) and _of_one_series(sources)
        compared = [
            (a[0] < b[0]) == (a[1] < b[1])
            for n, a in enumerate(decided)
            for b in decided[:n]
            if not alike or (a[2] == b[2] and a[3] == b[3])
        ]
        return sum(compared) / len(compared) if compared else 1.0


def _in_one_row(targets: list[Unit], sources: list[Unit]) -> dict[int, int] | None:
    """Return `id` of a unit -> its rank, from 0, if the model runs TARGETS one after the other, and SOURCES differ in
    the number at one place of their paths: `3.0.fn.2` and `3.3`. None if not: if the forward pass is not known, if
    there is no number at the place where the paths begin to differ, or if two have the same.

    A list of layers runs in its order, whatever the file sorts its keys by.
    """
    used = sorted(targets, key=lambda u: u.order if u.used is None else u.used)
    if not all(flows_into(one, other) for one, other in pairwise(used)):
        return None
    shared = common_start([unit.path for unit in sources])
    places = [unit.path[shared] if len(unit.path) > shared else "" for unit in sources]
    if not all(place.isdecimal() for place in places) or len({*places}) < len(sources):
        return None
    stored = sorted(range(len(sources)), key=lambda at: int(places[at]))
    return {id(u): n for n, u in enumerate(used)} | {id(sources[at]): n for n, at in enumerate(stored)}


def _of_several_rows(units: list[Unit]) -> bool:
    """Return whether all UNITS have a number as their last name, and are in more than one module: `down.4` and
    `up.2`.
    """
    return all(u.last.isdecimal() for u in units) and len({u.path[:-1] for u in units}) > 1


def _counted_as_stored(sources: list[Unit]) -> bool:
    """Return whether SOURCES are of one series, and their numbers rise in the order in which they are stored."""
    if not _of_one_series(sources):
        return False
    stored = [u.numbers for u in sorted(sources, key=lambda u: u.order)]
    return all(a < b for a, b in pairwise(stored))


def _of_one_series(units: list[Unit]) -> bool:
    return all(series(unit) == series(units[0]) for unit in units)


def _pairing(targets: Sequence[Unit], sources: Sequence[Unit], ranks: dict[int, int]) -> list[int]:
    by_rank = {ranks[id(s)]: id(s) for s in sources}
    return [by_rank[ranks[id(t)]] for t in targets]
