"""Rules about orders: neighbours, ranks and numbers, and how reliable an order is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise

from ..forms.branches import flows_into
from ..questions import Question, Reason, ask
from ..words import common_start, label, table
from .cells import Cells
from .counting import counted, direction, rows
from .evidence import Evidence, Kind
from .levels import reason_against
from .neighbours import Neighbours
from .scopes import Scopes
from .sequences import Sequences
from .series import common
from .units import (
    SOME,
    Pair,
    Path,
    Unit,
    around,
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
#: Look-alikes of both sides of which each is compared with each.
_FEW = 8
#: Words for which norm of a block one is, in the order in which they are used.
_PLACES = ("first", "second", "third")


#: The name of an order, and `id` of a unit -> its rank in that order.
_Vote = tuple[str, dict[int, int]]


class Orders:
    """Rules that split cells by orders (`by_…`), and tests whether two units have the same place in an order
    (`between`, `at_the_end`). Each rule returns whether it split any cell; only `by_neighbours` may return False in
    spite of it.
    """

    def __init__(self, cells: Cells, sequences: Sequences, scopes: Scopes) -> None:
        self.cells = cells
        self.sequences = sequences
        self.scopes = scopes
        self.neighbours = Neighbours(cells, sequences, scopes)
        self._places: dict[str, tuple[dict[int, int], ...]] = {}

    def by_numbers(self) -> bool:
        """Split cells with equally many units of both sides by the ranks of the numbers in their paths ("first" is 1):
        the units of the lowest number of both sides are partners, and so on; or those of the lowest and of the highest
        number, if the sides count from opposite ends (`_number_ranks`, which may fill `backwards`). A cell without
        ranks stays as it is. Return whether any cell was split.

        If the ranks pair the units in another way than execution and registration do (`_order_conflict`), a cell is
        split only if both sides have the same numbers and its targets are not members of several lists
        (`_of_several_rows`). If no decided pair is of the two series of the first target and the first source, all
        units of a cell that is split get the question of `_doubt_of_numbers`, if it has one.
        """
        changed = False
        for targets, sources in self.cells.even():
            ranks = self._number_ranks(targets, sources)
            if ranks is None:
                continue
            against = self._order_conflict(targets, sources, ranks)
            if against and (not same_numbers(targets, sources) or _of_several_rows(targets)):
                continue
            doubt = None if self._known(targets[0], sources[0]) else self._doubt_of_numbers(targets, sources)
            changed |= self.cells.split(
                Evidence(Kind.NUMBERS), ranks, mode="all", cells=[(targets, sources)], doubt=doubt
            )
        return changed

    def _number_ranks(self, targets: list[Unit], sources: list[Unit]) -> dict[int, int] | None:
        """Return `id` of a unit -> rank of the numbers in its path, from 0, for TARGETS and SOURCES, the units of a
        cell; equal ranks are partners. None if there are no such ranks. The first of these that fits decides:

        - The forward pass is known, TARGETS are in several outermost lists, and SOURCES of one series with one number
          each, whose order in the file means nothing or is that of the numbers: the result of `_counted_in_use`, which
          ranks TARGETS by use. The source counts through the layers of all these lists.
        - `units.number_ranks` returns None (the paths of a side do not all have equally many numbers, or all have the
          same; or the sides do not have equally many units of a rank): None.
        - TARGETS, or SOURCES, are of several series (paths without numbers): the ranks of `number_ranks`, or None if
          the numbers around them count otherwise (`_counted_otherwise`).
        - Decided pairs are of the two series: they show (`counted`) that the ranks of `number_ranks` hold, or that
          those of SOURCES are to be counted from the highest number down. None if they contradict both.
        - Else the ranks of `number_ranks`; but those of SOURCES from the highest number down if the forward pass and
          the names show it (`Levels.against` is -1), or other series in the list of TARGETS do (`_others_turned`). In
          that case the lists around all these units are added to their `backwards`.

        None in place of ranks from the highest number down if two units of a side have the same numbers.
        """
        lists = {row for u in targets for row, _ in rows(u.path)[:1]}
        counts = _of_one_series(sources) and all(len(u.numbers) == 1 for u in sources)
        in_turn = not self.sequences.ordered or _counted_as_stored(sources)
        if self.sequences.traced and counts and in_turn and len(lists) > 1:
            return _counted_in_use(targets, sources)
        ranks = number_ranks(targets, sources)
        if ranks is None:
            return None
        if not _of_one_series(targets) or not _of_one_series(sources):
            return None if self._counted_otherwise(targets, sources) else ranks
        known = self._known(targets[0], sources[0])
        sign = counted([u.numbers for u in targets], [u.numbers for u in sources], known)
        if not known and (self._against_levels(targets, sources) < 0 or self._others_turned(targets, sources)):
            sign = -1
            for unit in (*targets, *sources):
                unit.backwards |= {row for row, _ in rows(unit.path)}
        if sign > 0:
            return ranks
        last = max(ranks.values())
        other_end = {id(u): ranks[id(u)] for u in targets} | {id(u): last - ranks[id(u)] for u in sources}
        return other_end if sign < 0 and len(set(other_end.values())) == len(targets) else None

    def _known(self, target: Unit, source: Unit) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return (numbers of the target, numbers of the source) for each decided pair, of any shape, that has as many
        numbers on each side as TARGET and SOURCE, and whose paths without digits and words such as "first" (`series`)
        are those of TARGET and SOURCE: `h.3.fc2` counts for `h.5.fc1`, and `h.3.fc` does not.
        """
        both = _counted_in(target), _counted_in(source)
        return [(t.numbers, s.numbers) for t, s in self.cells.pairs() if (_counted_in(t), _counted_in(s)) == both]

    def _counted_otherwise(self, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether the numbers in the module around TARGETS and in that around SOURCES count in different orders:
        of the couples of decided pairs there, with as many numbers in their paths as the first of TARGETS and of
        SOURCES, more have their numbers in opposite orders on the two sides than in one order. `compress1`, `dw2` and
        `dw4` of one side count otherwise than `branch2.0`, `branch2.1` and `branch1.0`, their partners. False if there
        are no such couples, or equally many of both kinds.
        """
        own, theirs = around([u.path for u in targets]), around([u.path for u in sources])
        sizes = len(targets[0].numbers), len(sources[0].numbers)
        inside = {
            (t.numbers, s.numbers)
            for t, s in self.cells.pairs()
            if t.within(own) and s.within(theirs) and (len(t.numbers), len(s.numbers)) == sizes
        }
        ways = [(a < c) == (b < d) for (a, b), (c, d) in combinations(inside, 2) if a != c and b != d]
        return ways.count(False) > ways.count(True)

    def _others_turned(self, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether decided pairs show that the source counts the outermost list around TARGETS (around the first
        of them that is in a list) from the other end: from one pair to the next, the number of the target in that list
        rises, and the number of the source in its outermost list falls.

        Only pairs with the target in that list are looked at. If those of them with the source in the outermost list
        around SOURCES (around the first) show how it is counted, they alone decide. Else all outermost lists of the
        source that show it decide, and all have to fall. The deciding pairs together need two or more different couples
        (series of the target, series of the source). False if TARGETS have fewer than two numbers in their outermost
        lists.
        """
        inside = [around[0] for t in targets if (around := rows(t.path))]  # without `conv_first` beside `conv_2`
        if len({number for _, number in inside}) < 2:
            return False
        own_list = {row for row, _ in rows(sources[0].path)[:1]}
        members: dict[str, set[tuple[int, int]]] = defaultdict(set)
        couples: dict[str, set[tuple[Hashable, Hashable]]] = defaultdict(set)
        for t, s in self.cells.pairs():
            own, other = rows(t.path), rows(s.path)
            if own and other and own[0][0] == inside[0][0]:
                members[other[0][0]].add((own[0][1], other[0][1]))
                couples[other[0][0]].add((series(t), series(s)))
        ways = {
            row: direction(apart)
            for row, found in members.items()
            if (apart := [(a, b) for a, b in pairwise(sorted(found)) if a[0] != b[0] and a[1] != b[1]])
        }
        shown = {row: ways[row] for row in own_list & ways.keys()} or ways
        return sum(len(couples[row]) for row in shown) > 1 and {*shown.values()} == {-1}

    def _doubt_of_numbers(self, targets: list[Unit], sources: list[Unit]) -> Question[Unit] | None:
        """Return the question about pairing TARGETS and SOURCES, members of two lists, by their numbers: that of
        `reason_against` if the forward pass speaks against equal numbers (`_against_levels` is not 0); else
        AGAINST_LEVELS if certain pairs show that the two sides count another list in the same modules from opposite
        ends (`Scopes.counts_back_beside`). None if neither is so, or if the paths of TARGETS, or those of SOURCES, do
        not differ in exactly one number.
        """
        levels = self._against_levels(targets, sources)
        if levels:
            return ask(reason_against(levels))
        own, theirs = common(t.path for t in targets), common(s.path for s in sources)
        back = own is not None and theirs is not None and self.scopes.counts_back_beside(own[0], theirs[0])
        return ask(Reason.AGAINST_LEVELS) if back else None

    def _against_levels(self, targets: list[Unit], sources: list[Unit]) -> int:
        """Return whether the levels that a list takes speak against its numbers: 0, 1 or -1 as in `Levels.against`. 0
        if the paths of TARGETS, or those of SOURCES, do not differ in exactly one number.
        """
        own, theirs = common(t.path for t in targets), common(s.path for s in sources)
        return 0 if own is None or theirs is None else self.scopes.levels.against(own[0], theirs[0])

    def _order_conflict(self, targets: list[Unit], sources: list[Unit], ranks: dict[int, int]) -> bool:
        """Return whether RANKS (`id` of a unit -> rank of its numbers) pair TARGETS and SOURCES in another way than
        their orders do: the first of TARGETS in the order of execution with the first of SOURCES in the order of
        registration, and so on. If the forward pass is not known, TARGETS are in the order of registration instead.

        False if the order of the source's keys means nothing; and if the forward pass is not known and TARGETS are all
        of one series.
        """
        if not self.sequences.ordered:
            return False
        if self.sequences.traced:
            used = sorted(targets, key=lambda u: (u.used is None, u.used or 0.0))
        elif not _of_one_series(targets):
            used = sorted(targets, key=lambda u: u.order)
        else:
            return False
        stored = sorted(sources, key=lambda u: u.order)
        return [ranks[id(u)] for u in used] != [ranks[id(u)] for u in stored]

    def by_said_places(self) -> bool:
        """Pair units by places that the names of the source say in words: the source that says "first" is the partner
        of the target that the model runs first, and so on. Return whether any pair was made.

        A cell is split so if it has equally many units of both sides, if its sources say the first places, each once
        (`_said_places`: at most "first", "second" and "third"), if no target says a place, and if it is known when the
        model runs each target.
        """
        changed = False
        for targets, sources in self.cells.even():
            said = _said_places(sources)
            known = all(t.used is not None and not label_of(t, "position") for t in targets)
            if said is None or not known:
                continue
            ranks = {id(t): n for n, t in enumerate(sorted(targets, key=lambda t: t.used or 0.0))}
            changed |= self.cells.split(
                Evidence(Kind.RANK, "execution order"),
                ranks | said,
                mode="all",
                cells=[(targets, sources)],
            )
        return changed

    def by_neighbours(self) -> bool:
        """Split cells by the units directly before and after, if these are paired. Return whether other rules should
        run again, as `Neighbours.split` does. A pair is a question if `_doubt_of` has one.
        """
        return self.neighbours.split(lambda name: partial(self._doubt_of, name))

    def by_rank(self) -> bool:
        """Split one cell by place in an order: the first of its targets is the partner of the first of its sources, and
        so on, in the first of the orders that `_votes` returns. Return whether a cell was split. Only cells with
        equally many units of both sides are tried, the smallest first, until one is split; a cell without an order is
        passed over. The units get the question of `_doubt_of_ranks`, if it has one.
        """
        for targets, sources in sorted(self.cells.even(), key=lambda cell: len(cell[0])):
            votes = self._votes(targets, sources)
            if not votes:
                continue
            name, ranks = votes[0]
            evidence = Evidence(Kind.NUMBERS) if name == "numbers" else Evidence(Kind.RANK, name)
            doubt = self._doubt_of_ranks(votes, targets, sources)
            if self.cells.split(evidence, ranks, mode="all", cells=[(targets, sources)], doubt=doubt):
                return True
        return False

    def _votes(self, targets: list[Unit], sources: list[Unit]) -> list[_Vote]:
        """Return (name of an order, `id` of a unit -> rank from 0) for each order that has all units of a cell, TARGETS
        and SOURCES: first the orders of `Sequences.all`, the most reliable first, then "numbers" (`_number_ranks`). []
        if there are none.

        "numbers" come first if the model uses the units in the order of their numbers (`_counted_as_used`). The ranks
        of `_number_ranks` are left out if two units of a side have one rank. If they are left out or missing, and no
        other order has all units, the ranks of `_in_one_row`, if it has any, are "numbers".
        """
        ranks = [(name, _rank(ts, targets), _rank(ss, sources)) for name, ts, ss in self.sequences.all()]
        votes = [(name, own | theirs) for name, own, theirs in ranks if len(own) == len(theirs) == len(targets)]
        numbers = self._number_ranks(targets, sources)
        if numbers is None or len(set(numbers.values())) < len(targets):
            numbers = None if votes else _in_one_row(targets, sources)
        if numbers is None:
            return votes
        counted = [("numbers", numbers)]
        return counted + votes if self._counted_as_used(targets, sources, numbers) else votes + counted

    def _doubt_of_ranks(
        self, votes: Sequence[_Vote], targets: list[Unit], sources: list[Unit]
    ) -> Question[Unit] | None:
        """Return the question about the pairs that the first of VOTES (see `_votes`) makes of TARGETS and SOURCES; None
        if there is none. The first of these that fits:

        - ORDERS_DISAGREE if a later vote makes other pairs, no later vote of the numbers makes the same pairs, and two
          or more of the pairs are not corroborated (`_corroborated`).
        - If the first vote is that of the numbers: ONLY_NUMBERS if the order of the source's keys means nothing and the
          paths of the two sides have different numbers, else None. None, too, if `_number_ranks` has no ranks.
        - None if a later vote of the numbers makes the same pairs.
        - The result of `_doubt_of_order`.
        """
        name, ranks = votes[0]
        pairs = _pairing(targets, sources, ranks)
        other = {n: _pairing(targets, sources, r) for n, r in votes[1:]}
        loose = [pair for pair in pairs if not self._corroborated(*pair, targets, sources)]
        against = [n for n, others in other.items() if others != pairs and len(loose) > 1]
        if against and other.get("numbers") != pairs:
            return ask(Reason.ORDERS_DISAGREE, name, against[0])
        if name == "numbers":
            numbered = self._number_ranks(targets, sources) is not None
            only = numbered and not self.sequences.ordered and not same_numbers(targets, sources)
            return ask(Reason.ONLY_NUMBERS) if only else None
        return None if other.get("numbers") == pairs else self._doubt_of_order(name, pairs, loose, targets, sources)

    def _doubt_of_order(
        self, name: str, pairs: Sequence[Pair], loose: Sequence[Pair], targets: list[Unit], sources: list[Unit]
    ) -> Question[Unit] | None:
        """Return the question about PAIRS, which the order NAME makes of TARGETS and SOURCES; None if there is none.
        LOOSE are those of PAIRS that nothing corroborates. The first of these that fits:

        - If NAME agrees on both sides to less than 60 percent (`Sequences.credit_of`), and nothing corroborates the
          first of PAIRS: the question of `_against` about this pair, if it has one.
        - ORDERS_DIFFER_ELSEWHERE if LOOSE has two or more pairs, and certain pairs nearby keep NAME to less than 75
          percent (`_agreement`).
        """
        weak = self.sequences.credit_of(name) < _LITTLE
        alone = weak and not self._corroborated(*pairs[0], targets, sources)
        found = self._against(name, *pairs[0], targets, sources) if alone else None
        if found is None and len(loose) > 1 and self._agreement(name, targets, sources) < _ORDERED:
            return ask(Reason.ORDERS_DIFFER_ELSEWHERE)
        return found

    def _counted_as_used(self, targets: list[Unit], sources: list[Unit], numbered: dict[int, int]) -> bool:
        """Return whether the paths of TARGETS are equal but for numbers, those of SOURCES, too, and the model runs
        TARGETS in the order of their numbers (registers them so, if it is not known when it runs them). NUMBERED has
        `id` of a unit -> rank of its number.
        """
        used = [u.used if u.used is not None else u.order for u in sorted(targets, key=lambda u: numbered[id(u)])]
        return used == sorted(used) and _of_one_series(targets) and _of_one_series(sources)

    def by_chain(self) -> bool:
        """Make a pair of a target T and a source S of one cell that have the same place in an order: T is directly
        behind the target of a decided pair, which may be a guess, and S directly behind the source of that pair, in the
        same module; or T and S are both the first (`_next_source`). The orders of `Sequences.all` are tried one after
        the other, each from its beginning. Each call makes at most one pair (and a second one, if one unit of each side
        is left in the cell). Return whether it made one. All units of the cell get the question of `_doubt_of_next`, if
        it has one.

        If T is the first of the order, its cell has at most eight units of both sides together, and another source of
        the cell has the most similar name (`_most_similar`), T gets that source instead, always with the question
        SEVERAL_FIT.
        """
        for name, targets, sources in self.sequences.all():
            before_t, _ = self.sequences.neighbours(targets)
            before_s, _ = self.sequences.neighbours(sources)
            following = {id(b): u for u in sources if isinstance(b := before_s.get(id(u)), Unit)}
            for t in targets:
                beside = before_t.get(id(t))
                before = self.cells.pair_of.get(beside.cell) if isinstance(beside, Unit) else beside
                s = self._next_source(t, before, following, sources)
                if s is None:
                    continue
                cell = self.cells.groups()[t.cell]
                doubt = self._doubt_of_next(t, s, before, cell, targets)
                few = cell[1] if before == "edge" and len(cell[0]) + len(cell[1]) <= _FEW else ()
                if named := [u for u in few if u is not s and _most_similar(t, u, *cell)]:
                    labels = {id(t): 1, id(named[0]): 1}
                    doubt = ask(Reason.SEVERAL_FIT, str(len(few)))
                    return self.cells.split(Evidence(Kind.SIMILAR_NAME), labels, mode="one", cells=[cell], doubt=doubt)
                labels = {id(t): 1, id(s): 1}
                return self.cells.split(Evidence(Kind.FOLLOWS, name), labels, mode="one", cells=[cell], doubt=doubt)
        return False

    def _next_source(
        self, t: Unit, before: Pair | str | None, following: Mapping[int, Unit], sources: Sequence[Unit]
    ) -> Unit | None:
        """Return the unit of the source that has the place of T in an order: the one directly behind the source of
        BEFORE, the pair of the unit before T; the first of SOURCES if BEFORE is "edge" (T is the first). FOLLOWING has
        `id` of a unit of the source -> the unit directly behind it.

        None if BEFORE is None (the unit before T is in no pair), if no unit is there, if it is in another cell than T
        or in another module than the source of BEFORE, or if T is in a decided pair.
        """
        s: Unit | None = None
        if before == "edge":
            s = sources[0] if sources else None
        elif isinstance(before, tuple):
            s = following.get(id(before[1]))
            if s is not None and before[1].path[:-1] != s.path[:-1]:
                return None  # the list that it would go on is at its end
        return s if s is not None and s.cell == t.cell and t.cell not in self.cells.pair_of else None

    def _doubt_of_next(
        self, t: Unit, s: Unit, before: Pair | str | None, cell: tuple[list[Unit], list[Unit]], targets: list[Unit]
    ) -> Question[Unit] | None:
        """Return the question about T and S, units of CELL that directly follow BEFORE in an order: a pair, or "edge"
        if they are the first. TARGETS is the target's side of this order.

        None if the names of T and S are similar (a `similarity` above 0.15) or have an equal label (`related`), or if
        both are word tables. Else ONLY_FIRST if BEFORE is "edge". Else ONLY_FOLLOWS if T is not of the series of the
        target of BEFORE. If it is: LEFT_OUT_OF_A_ROW if any unit of CELL may be the one without a partner
        (`_left_in_the_middle`); else None.
        """
        if similarity(t, s) > SOME or related(t, s) or tables_of_words(t, s):
            return None
        if not isinstance(before, tuple) or series(before[0]) != series(t):
            return ask(Reason.ONLY_FIRST if before == "edge" else Reason.ONLY_FOLLOWS)
        return ask(Reason.LEFT_OUT_OF_A_ROW) if self._left_in_the_middle(t, cell, targets) else None

    def _left_in_the_middle(self, t: Unit, cell: tuple[list[Unit], list[Unit]], targets: list[Unit]) -> bool:
        """Return whether any unit of CELL, not only the last, may be the one without a partner: the two sides of CELL
        have different numbers of units, and there is a decided pair of another colour whose target is behind T in
        TARGETS (the target's side of an order), and whose source is registered after all sources of CELL.
        """
        if len(cell[0]) == len(cell[1]):
            return False
        behind = targets[targets.index(t) + 1 :]
        pairs = (self.cells.pair_of.get(u.cell) for u in behind if u.colour != t.colour)
        last = max(u.order for u in cell[1])
        return any(pair is not None and pair[1].order > last for pair in pairs)

    def _is_last(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether T and S directly follow the two units of one decided pair in the orders TARGETS and SOURCES,
        and no unit behind T or behind S has a partner. False if TARGETS lack T, or SOURCES lack S.
        """
        place = [next((i for i, u in enumerate(units) if u is one), -1) for units, one in ((targets, t), (sources, s))]
        if min(place) < 1:
            return False
        before = targets[place[0] - 1], sources[place[1] - 1]
        rest = [*targets[place[0] + 1 :], *sources[place[1] + 1 :]]
        paired = before[0].cell == before[1].cell and before[0].cell in self.cells.pair_of
        return paired and not any(u.cell in self.cells.pair_of for u in rest)

    def between(self, t: Unit, s: Unit) -> bool:
        """Return whether, in at least one order of both sides, the units directly before T and S match, and the units
        directly after T and S match. Two units match if they are a decided pair, or are in partner blocks. Two ends of
        an order match; an end and a unit do not.

        Two blocks are partners here if each of the two units has a partner in the other block. They do not count if T
        or S is in one of them: code may begin and end a block with other layers.
        """
        return any(self._fits_between(t, s, ts, ss) for _, ts, ss in self.sequences.all())

    def at_the_end(self, t: Unit, s: Unit) -> bool:
        """Return whether, in some order, T and S directly follow the two units of one decided pair, and no later unit
        of either side has a partner.
        """
        return any(self._is_last(t, s, ts, ss) for _, ts, ss in self.sequences.all())

    def _fits_between(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether, in the order in which the two sides are TARGETS and SOURCES, the units directly before T and
        S match, and the units directly after T and S match. Two units match if they are a decided pair; or if they are
        in different cells, each is paired with a unit in the other's block, and T and S are not in these blocks. Two
        ends of the order match, too. False if the order lacks T or S.
        """
        before_t, after_t = self.sequences.neighbours(targets)
        before_s, after_s = self.sequences.neighbours(sources)

        def same(a: object, b: object) -> bool:
            """Return whether A and B match: neighbours of T and S, "edge" at an end, None if the order lacks T or S."""
            if not isinstance(a, Unit) or not isinstance(b, Unit):
                return a == b == "edge"
            if a.cell == b.cell:
                return a.cell in self.cells.pair_of
            own, theirs = block_of(a.path), block_of(b.path)
            if not own or not theirs or t.within(own) or s.within(theirs):
                return False
            pairs = [self.cells.pair_of.get(u.cell) for u in (a, b)]
            return all(pair is not None and pair[0].within(own) and pair[1].within(theirs) for pair in pairs)

        return same(before_t.get(id(t)), before_s.get(id(s))) and same(after_t.get(id(t)), after_s.get(id(s)))

    def _doubt_of(self, name: str, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> Question[Unit] | None:
        """Return the question about T and S, a pair that the order NAME made of the cell of TARGETS and SOURCES; None
        if there is none, as where names or numbers corroborate the pair (`_corroborated`). It is
        ORDERS_DIFFER_ELSEWHERE if certain pairs nearby keep NAME to less than 75 percent (`_agreement`); else the
        result of `_against`.
        """
        if self._corroborated(t, s, targets, sources):
            return None
        if self._agreement(name, targets, sources) < _ORDERED:
            return ask(Reason.ORDERS_DIFFER_ELSEWHERE)
        return self._against(name, t, s, targets, sources)

    def _against(self, name: str, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> Question[Unit] | None:
        """Return the question about the pair of T and S, which the order NAME made of the cell TARGETS, SOURCES:
        ORDERS_DIFFER if even the best order agrees on both sides to less than 60 percent (`Sequences.best_credit`);
        else ORDER_SPEAKS_FOR_ANOTHER if an order gives T another rank among TARGETS than S among SOURCES.

        None if neither is so, if TARGETS and SOURCES are not equally many, or if all TARGETS are batch norms, and T is
        beside a layer that it may belong to (`_beside_a_matrix`). It is for a pair that nothing corroborates
        (`_corroborated`).
        """
        norms = all("running_var" in u.pieces for u in targets)
        if len(targets) != len(sources) or (norms and self._beside_a_matrix(name, t)):
            return None
        if self.sequences.best_credit() < _LITTLE:
            return ask(Reason.ORDERS_DIFFER)
        for order, *_ in self.sequences.all():
            in_target, in_source = self._places_in(order)
            own, theirs = _rank_of(t, targets, in_target), _rank_of(s, sources, in_source)
            if own is not None and theirs is not None and own != theirs:
                return ask(Reason.ORDER_SPEAKS_FOR_ANOTHER, order)
        return None

    def _beside_a_matrix(self, name: str, t: Unit) -> bool:
        """Return whether the main tensor of the unit directly before or after T, in the order NAME, is a matrix or has
        more dimensions.
        """
        units = next(own for other, own, _ in self.sequences.all() if other == name)
        beside = [around.get(id(t)) for around in self.sequences.neighbours(units)]
        return any(isinstance(unit, Unit) and len(unit.main.shape) > 1 for unit in beside)

    def _corroborated(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether names or numbers speak for the pair of T and S, of the cell TARGETS, SOURCES. One of two is
        enough: their names are more similar than T is to any other of SOURCES and S to any other of TARGETS
        (`_most_similar`), or T and S have the same number or rank (`_numbered_alike`).
        """
        return _most_similar(t, s, targets, sources) or self._numbered_alike(t, s, targets, sources)

    def _numbered_alike(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Return whether the numbers in the paths speak for the pair of T and S, of the cell TARGETS, SOURCES: T and S
        have the same rank (`_number_ranks`), and each unit of a side has a rank of its own. If there are no ranks, or
        several units of a side have one rank: whether S has the same numbers as T, and no other unit of the cell has
        them. False if the path of T has no number. As `_number_ranks`, it may fill `backwards` of the units.
        """
        if not t.numbers:
            return False
        ranks = self._number_ranks(targets, sources)
        if ranks is not None and len(set(ranks.values())) == len(targets):
            return ranks[id(t)] == ranks[id(s)]
        same = [u for u in (*targets, *sources) if u.numbers == t.numbers]
        return len(same) == 2 and s.numbers == t.numbers

    def _agreement(self, name: str, targets: list[Unit], sources: list[Unit]) -> float:
        """Return how well certain pairs near TARGETS and SOURCES, a cell, keep the order NAME, 0 to 1: of all couples
        of such pairs, the share in which both sides have the two units in the same order. 1 if there is no couple.
        Pairs that an order made do not count.

        Near are the units in the innermost pair of scopes around TARGETS and SOURCES (`Scopes.around`), of which fewer
        than 96 are looked at. If TARGETS are of one series, and SOURCES, too, a couple counts only if its two targets
        are of one series and its two sources, too, whichever these are. The result is 1, too, for NAME "execution
        order" if SOURCES are of one series and are registered in the order of their numbers (`_counted_as_stored`).
        """
        if name == "execution order" and _counted_as_stored(sources):
            return 1.0  # what is numbered in the order in which it is stored is used in that order
        own, theirs = self._places_in(name)
        around = self.scopes.around(targets, sources)
        near = around[:: max(len(around) // _MOST_COMPARED, 1)]
        decided = [self.cells.pair_of[t.cell] for t in near if t.cell in self.cells.pair_of]
        certain = [
            (own[id(t)], theirs[id(s)], (series(t), series(s)))
            for t, s in decided
            if id(t) in own and id(s) in theirs and not t.doubts and not any(e.is_order for e in t.evidence)
        ]
        one_series = _of_one_series(targets) and _of_one_series(sources)
        compared = [
            (a[0] < b[0]) == (a[1] < b[1]) for a, b in combinations(certain, 2) if not one_series or a[2] == b[2]
        ]
        return sum(compared) / len(compared) if compared else 1.0

    def _places_in(self, name: str) -> tuple[dict[int, int], ...]:
        """Return (`id` of a target -> its place, `id` of a source -> its place) in the order NAME, from 0. NAME is
        one of `Sequences.all`.
        """
        if name not in self._places:
            sides = next(sides for other, *sides in self.sequences.all() if other == name)
            self._places[name] = tuple({id(u): place for place, u in enumerate(side)} for side in sides)
        return self._places[name]


def _said_places(units: list[Unit]) -> dict[int, int] | None:
    """Return `id` of a unit -> the place that its name says in words, from 0 for "first", if UNITS say the first
    places, each once: "first" and "second", or "first", "second" and "third". Else None, also for more than three
    units. Numbers do not count: `norm1` of some code is used second.
    """
    place = table().group("position")
    said = [label(place, [w for w in u.words if not w.isdecimal()]) or "" for u in units]
    first = list(_PLACES)[: len(units)]
    return {id(u): first.index(where) for u, where in zip(units, said, strict=True)} if sorted(said) == first else None


def _rank(order: Sequence[Unit], units: Sequence[Unit]) -> dict[int, int]:
    """Return `id` of a unit -> its place, from 0, among those of UNITS that are in ORDER."""
    inside = set(map(id, units))
    return {id(u): place for place, u in enumerate(u for u in order if id(u) in inside)}


def _rank_of(unit: Unit, units: Sequence[Unit], places: Mapping[int, int]) -> int | None:
    """Return the place of UNIT, from 0, among those of UNITS that are in an order. PLACES has `id` of a unit -> its
    place in this order. None if UNIT is not in it.
    """
    own = places.get(id(unit))
    return None if own is None else sum(places.get(id(u), own) < own for u in units)


def _most_similar(t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
    """Return whether the names of T and S have a similarity above 0, and a higher one than T with any other of SOURCES,
    and S with any other of TARGETS.
    """
    own = similarity(t, s)
    if not own or any(similarity(t, other) >= own for other in sources if other is not s):
        return False
    return all(similarity(other, s) < own for other in targets if other is not t)


def _in_one_row(targets: list[Unit], sources: list[Unit]) -> dict[int, int] | None:
    """Return `id` of a unit -> its rank, from 0: for TARGETS by the order in which the model runs them, for SOURCES by
    the number at the first place where their paths differ (`3.0.fn.2` before `3.3`). A list of layers runs in its
    order, whatever the file sorts its keys by.

    None if not each of TARGETS takes the output of the one run before it, directly or through other layers (also if the
    forward pass is not known), if one of SOURCES has no number at that place, or if two have the same number there.
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


def _counted_in_use(targets: Sequence[Unit], sources: Sequence[Unit]) -> dict[int, int] | None:
    """Return `id` of a unit -> its rank from 0: TARGETS in the order in which the model runs them, SOURCES by their
    numbers. None if it is not known when one of TARGETS runs, or if two of SOURCES have the same numbers.
    """
    numbered = sorted(sources, key=lambda u: u.numbers)
    if any(u.used is None for u in targets) or len({u.numbers for u in sources}) < len(sources):
        return None
    ran = sorted(targets, key=lambda u: u.used or 0.0)
    return {id(u): rank for side in (ran, numbered) for rank, u in enumerate(side)}


def _of_several_rows(units: list[Unit]) -> bool:
    """Return whether all UNITS have a number as their last name, and are in more than one module: `down.4` and
    `up.2`.
    """
    return all(u.last.isdecimal() for u in units) and len({u.path[:-1] for u in units}) > 1


def _counted_as_stored(sources: list[Unit]) -> bool:
    """Return whether the paths of SOURCES are equal but for numbers, which rise in the order of registration."""
    if not _of_one_series(sources):
        return False
    stored = [u.numbers for u in sorted(sources, key=lambda u: u.order)]
    return all(a < b for a, b in pairwise(stored))


def _counted_in(unit: Unit) -> tuple[Path, int]:
    """Return (`series` of UNIT, how many numbers its path has), which is equal for members of one list."""
    return series(unit), len(unit.numbers)


def _of_one_series(units: list[Unit]) -> bool:
    return all(series(unit) == series(units[0]) for unit in units)


def _pairing(targets: Sequence[Unit], sources: Sequence[Unit], ranks: dict[int, int]) -> list[Pair]:
    """Return the pairs of TARGETS with the SOURCES of the same rank. RANKS has `id` of a unit -> rank."""
    by_rank = {ranks[id(s)]: s for s in sources}
    return [(t, by_rank[ranks[id(t)]]) for t in targets]
