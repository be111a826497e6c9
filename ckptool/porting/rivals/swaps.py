"""Decide whether the swap of two pairs would fit as well, by names, numbers and orders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby
from typing import Literal

from ..forms.branches import Branches, beside
from ..matching.counting import directions, row_of, rows
from ..matching.evidence import Kind
from ..matching.match import Matching
from ..matching.sequences import Sequences
from ..matching.units import Pair, Path, Unit, block_of, series
from ..questions import Question, Reason, ask
from ..words import common_start
from .belief import BELIEVED, NUMBERED, concordance, orders_of
from .insides import Contents
from .names import (
    by_convention,
    by_names,
    by_numbers,
    gate_by_name,
    held_so,
    in_equal_places,
    say_the_same,
    step,
    word_more,
)

#: So many layers of a block are looked at for names with one word more.
_MOST = 64
#: Why a swap is not excluded; None if names, numbers or places exclude it, False if an order alone does or if nothing
#: tells the two apart. The source of the other pair is named by who asks.
Said = Question[Unit] | Literal[False] | None
#: A path without digits (`series`), which is equal for the members of a list.
_Row = tuple[str, ...]


class Swaps:
    """Answers whether the sources of two pairs of look-alikes could be exchanged.

    Args:
        matching: the pairs, and the units without a partner.
        sequences: the orders that both sides have.
    Attributes:
        pairs: the pairs as they are now.
        orders: the orders in which both sides can be compared (`orders_of`).
        overall: name of an order -> how reliable it was in the whole model at the start, 0 to 1 (`concordance`).
        contents: the contents of the modules of both sides.
        loose: whether both sides have an order of all layers, and none of these is reliable in the whole model.
    """

    def __init__(self, matching: Matching, sequences: Sequences) -> None:
        self.pairs = matching.pairs
        self.orders = orders_of(sequences)
        self.overall = {order.name: concordance(order, self.pairs) for order in self.orders}
        places = [self.overall[order.name] for order in self.orders if order.name != NUMBERED]
        self.loose = max(places, default=1.0) < BELIEVED
        self.contents = Contents(matching)
        self._followed = sequences.traced and sequences.source_traced
        self._added: dict[Path, Counter[str]] = {}
        self._ways = directions([pair for pair in self.pairs if not pair[0].doubts])
        self._members: tuple[dict[str, set[int]], ...] = (defaultdict(set), defaultdict(set))
        for pair in self.pairs:
            for members, unit in zip(self._members, pair, strict=True):
                for row, number in rows(unit.path):
                    members[row].add(number)
        self.see_pairs()

    def see_pairs(self) -> None:
        """Update the evidence of parallel branches, of modules that run as a whole, and of lists that go through
        several towers, after pairs have changed.
        """
        self._in_turn: dict[_Row, bool] = {}
        self.contents.see_runs(self.pairs)
        votes = {order.name: (order.vote, order.place) for order in self.orders}
        self._branches = Branches(self.pairs, self.contents.of_target, votes)

    def reason(self, one: Pair, other: Pair, belief: Mapping[str, float] | None = None) -> Said:
        """Return the question to ask about the pairs ONE and OTHER if their swap cannot be excluded; it is not asked
        here. None if what both codes run tells the two apart (`run_apart`). Else it is the result of `reason_in_row`,
        unless that is no question; then:

        - None if the result was None;
        - else RUNS_BESIDE if the targets are parallel branches (neither takes the output of the other), unless an order
          that is 0.85 reliable or more is for the pairs, and other parallel branches keep it, too (`Branches.shown`);
        - else NAMED_AS_ADDED if one source has the name of a layer that was added to the code later (`_is_added`);
        - else False.

        Args:
            one, other: the pairs.
            belief: name of an order -> how reliable it is for these two pairs, 0 to 1; as in the whole model if None.
        Returns:
            The question; None if names, numbers, places or modules exclude the swap; False if only an order excludes
            it, or if nothing tells the two apart.
        """
        if self.run_apart(one, other):
            return None
        belief = self.overall if belief is None else belief
        found = self.reason_in_row(one, other, belief)
        if found is False and beside(one[0], other[0]):
            votes = self._believed(one, other, belief)
            if not any(self._branches.shown(one, other, name) for name, vote in votes.items() if vote > 0):
                return ask(Reason.RUNS_BESIDE)
        if found is False and self._is_added(one[1], other[1]):
            return ask(Reason.NAMED_AS_ADDED)
        return found

    def run_apart(self, one: Pair, other: Pair) -> bool:
        """Return whether both codes run both units of one of the pairs ONE and OTHER and neither unit of the other
        pair, and names are not for the swap (`by_names`). False if one of the two codes was not followed.
        """
        return self._ran(one, other) == {(True, True), (False, False)} and by_names(one, other) != "against"

    def _ran(self, *pairs: Pair) -> set[tuple[bool, ...]]:
        """Return the set of (whether the model runs the target, whether the source's code runs the source) of PAIRS:
        two equal results are one member. It is empty if one of the two codes was not followed.
        """
        return {tuple(unit.used is not None for unit in pair) for pair in pairs} if self._followed else set()

    def _is_added(self, one: Unit, other: Unit) -> bool:
        """Return whether one of the sources ONE and OTHER has the name of a layer that was added to the code later, so
        that its place in the file does not tell when it runs: both are in one block, and their names are equal except
        for one word that only one of them has (`word_more`), such as "temporal" in `temporal_norm` beside `norm`. At
        least two couples of look-alikes in this block, of which ONE and OTHER may be one, have to differ by this word
        (`temporal_attn` beside `attn`); the first 64 sources of the block are compared.
        """
        block = block_of(one.path)
        word = word_more(one.path[len(block) :], other.path[len(block) :])
        if word is None or block != block_of(other.path):
            return False
        if block not in self._added:
            self._added[block] = Counter()
            inside = [s for _, s in self.pairs if block_of(s.path) == block]
            for a, b in combinations(inside[:_MOST], 2):
                if a.colour == b.colour and (more := word_more(a.path[len(block) :], b.path[len(block) :])) is not None:
                    self._added[block][more] += 1
        return self._added[block][word] > 1

    def reason_in_row(self, one: Pair, other: Pair, belief: Mapping[str, float] | None = None) -> Said:
        """Return the question to ask about the pairs ONE and OTHER if their swap cannot be excluded; None if names,
        numbers, places or modules exclude it; False if only an order excludes it, or if nothing tells the two apart.
        BELIEF has name of an order -> how reliable it is for the two, 0 to 1; as in the whole model if it is None. The
        first of these that applies decides:

        - names for the swap (`by_names`): NAMES_FOR_SWAP;
        - a gate that only its name shows, and that may be the value of the gate (`gate_by_name`): GATE_BY_NAME;
        - names that exclude it, or a module of the source that it would tear apart (`run_only_so`): None;
        - places in two lists of one module, which are for the swap (`places_fall`): ORDERS_ABOUT_SWAP, if an order that
          is 0.85 reliable or more is for the pairs;
        - names for the pairs: the result of `_despite_names`, ORDER_FOR_SWAP or None;
        - gate and up, which only one side names (`by_convention`): CONVENTION_OF_TWO;
        - numbers and orders: the result of `_by_orders`.
        """
        named = by_names(one, other)
        if named == "against":
            return ask(Reason.NAMES_FOR_SWAP)
        if gate_by_name(one, other):
            return ask(Reason.GATE_BY_NAME)
        if named == "sure" or self.contents.run_only_so(one, other):
            return None
        belief = self.overall if belief is None else belief
        believed = self._believed(one, other, belief)
        behind = [name for name, vote in believed.items() if vote > 0]
        if behind and places_fall(one, other):
            return ask(Reason.ORDERS_ABOUT_SWAP, behind[0], "numbers in their lists")
        if named == "for":
            return self._despite_names(one, other, belief, believed)
        return ask(Reason.CONVENTION_OF_TWO) if by_convention(one, other) else self._by_orders(one, other, believed)

    def _despite_names(
        self, one: Pair, other: Pair, belief: Mapping[str, float], believed: Mapping[str, int]
    ) -> Question[Unit] | None:
        """Return the question ORDER_FOR_SWAP for ONE and OTHER, two pairs that names support, if an order is for their
        swap: its value in BELIEF (name of an order -> how reliable it is) is above 0.5, and no order in BELIEVED (name
        -> vote, 1 or -1; see `_believed`) is for the pairs.

        None if there is no such order; also if all words say the same (`say_the_same`), or if places in lists or
        tensors support the pairs, too: these count more than any order.
        """
        if in_equal_places(one, other) or say_the_same(one, other) or held_so(one, other):
            return None
        against = [o.name for o in self.orders if belief[o.name] > 0.5 and o.vote(one, other) < 0]
        return ask(Reason.ORDER_FOR_SWAP, against[0]) if against and 1 not in believed.values() else None

    def _by_orders(self, one: Pair, other: Pair, believed: Mapping[str, int]) -> Said:
        """Return what numbers and orders say about the swap of ONE and OTHER. BELIEVED has name -> vote of the orders
        that count: 1 for the pairs, -1 for the swap (see `_believed`). The first of these that applies decides:

        - numbers in opposite orders, as one list beside them shows (`_turned_as_beside`), and an order of layers that
          is for the swap, however reliable: ORDER_FOR_SWAP;
        - numbers in the same order on both sides that tell the two apart (`_numbers_tell`): None, unless orders are for
          the swap only and nothing shows that the list is counted from the same end (`_counted_as_beside`);
        - orders for the swap: ORDERS_ABOUT_SWAP if others are for the pairs, else ORDER_FOR_SWAP;
        - orders for the pairs, but the file lists the two sources against their numbers (`_listed_against_numbers`):
          ORDERS_ABOUT_SWAP;
        - orders that do not count, but tell the two apart, and none that counts: NO_ORDER_KEPT;
        - else False: orders are for the pairs, or none says anything.
        """
        against = [name for name, vote in believed.items() if vote < 0]
        behind = [name for name, vote in believed.items() if vote > 0]
        numbered = by_numbers(one, other) > 0 and self._numbers_tell(one, other)
        if self._turned_as_beside(one, other):
            others = (o.name for o in self.orders if o.name != NUMBERED and o.vote(one, other) < 0)
            if (name := next(others, None)) is not None:
                return ask(Reason.ORDER_FOR_SWAP, name)
        if numbered and (behind or not against or self._counted_as_beside(one, other)):
            return None
        if against and behind:
            return ask(Reason.ORDERS_ABOUT_SWAP, behind[0], against[0])
        if against:
            return ask(Reason.ORDER_FOR_SWAP, against[0])
        if behind and _listed_against_numbers(one[1], other[1]):
            return ask(Reason.ORDERS_ABOUT_SWAP, behind[0], "numbers in their names")
        if not behind and any(order.vote(one, other) for order in self.orders):
            return ask(Reason.NO_ORDER_KEPT)
        return False

    def _numbers_tell(self, one: Pair, other: Pair) -> bool:
        """Return whether numbers tell ONE and OTHER apart, two pairs whose numbers are in one order on both sides. True
        unless the targets are parallel branches. For these, one of three is enough: the numbers differ by as much on
        both sides (`step`), the model runs the targets in the order of their numbers (`_runs_as_counted`), or the list
        of the source of ONE goes through several towers (`_counts_through`).
        """
        return (
            not beside(one[0], other[0])
            or step(one[0], other[0]) == step(one[1], other[1])
            or self._runs_as_counted(one, other)
            or self._counts_through(one)
        )

    def _counted_as_beside(self, one: Pair, other: Pair) -> bool:
        """Return whether the pairs without a doubt at the start show that both sides count the members of the list that
        holds ONE and OTHER from the same end (`directions`). False if they show opposite ends, or nothing.
        """
        own, theirs = row_of(one[0], other[0]), row_of(one[1], other[1])
        return own is not None and theirs is not None and self._ways.get((own, theirs), 0) > 0

    def _turned_as_beside(self, one: Pair, other: Pair) -> bool:
        """Return whether a list beside that of ONE and OTHER told both pairs apart, their numbers are in opposite
        orders, and the pairs without a doubt at the start do not show how the list is counted (`directions`): one list
        of another kind alone may be counted otherwise.
        """
        own, theirs = row_of(one[0], other[0]), row_of(one[1], other[1])
        told = one[0].told_by(Kind.SERIES_BESIDE) and other[0].told_by(Kind.SERIES_BESIDE)
        if not told or own is None or theirs is None or (own, theirs) in self._ways:
            return False
        return (one[0].numbers < other[0].numbers) != (one[1].numbers < other[1].numbers)

    def _runs_as_counted(self, one: Pair, other: Pair) -> bool:
        """Return whether ONE and OTHER are in lists with equally many members on both sides, and the model runs their
        targets in the order of their numbers, which may have gaps (`stride8` and `stride16`). False if the numbers of
        a side do not differ, or if it is not known when the model runs the targets.
        """
        (t, t2), (s, s2) = zip(one, other, strict=True)
        own, theirs = row_of(t, t2), row_of(s, s2)
        if own is None or theirs is None or t.used is None or t2.used is None:
            return False
        counted = len(self._members[0][own]) == len(self._members[1][theirs])
        return counted and (t.used < t2.used) == (t.numbers < t2.numbers)

    def _counts_through(self, pair: Pair) -> bool:
        """Return whether the source of PAIR is in a list that goes through several towers of the model
        (`_goes_through_towers`).
        """
        row = series(pair[1])
        if row not in self._in_turn:
            self._in_turn[row] = _goes_through_towers([both for both in self.pairs if series(both[1]) == row])
        return self._in_turn[row]

    def _believed(self, one: Pair, other: Pair, belief: Mapping[str, float]) -> dict[str, int]:
        """Return name of an order -> its vote about ONE and OTHER: 1 for the pairs, -1 for the swap. Orders are left
        out that have no vote, or a BELIEF below 0.85.
        """
        return {o.name: vote for o in self.orders if belief[o.name] >= BELIEVED and (vote := o.vote(one, other))}

    def excluded(self, one: Pair, other: Pair) -> bool:
        """Return whether the swap of ONE and OTHER is excluded by names, numbers, places or modules (`reason` is None),
        or by an order alone (`reason` is False; an order at least 0.85 reliable in the whole model is for the pairs).
        """
        reason = self.reason(one, other)
        return reason is None or (reason is False and 1 in self._believed(one, other, self.overall).values())


def _listed_against_numbers(one: Unit, other: Unit) -> bool:
    """Return whether ONE and OTHER, two units of the source, are in one module and have names that differ only in
    numbers, and the file has the greater number first (`norm1`, `norm0`): the numbers tell when code runs them, as much
    as the order of the file does.
    """
    if one.path[:-1] != other.path[:-1] or series(one) != series(other):
        return False
    return one.numbers != other.numbers and (one.numbers < other.numbers) != (one.order < other.order)


def places_fall(one: Pair, other: Pair) -> bool:
    """Return whether the targets of ONE and OTHER are in two members of one list (their paths part at two numbers), the
    sources are directly in two lists of one module, whose names are no numbers, and the numbers of the sources there
    are in the opposite order of those of the targets: `0.conv` from `convs1.1` and `1.dilated` from `convs2.0`. False
    if two numbers are equal. Code may run the two lists together, member by member.
    """
    (t, s), (t2, s2) = one, other
    at = common_start((t.path, t2.path))
    own, theirs = (t.path[at : at + 1], t2.path[at : at + 1]), (s.path[-1:], s2.path[-1:])
    numbers = [[int(c) for (c,) in pair if c.isdecimal()] for pair in (own, theirs) if all(pair)]
    lists = s.path[-2:-1] + s2.path[-2:-1]
    beside = s.path[:-2] == s2.path[:-2] and len({*lists}) == 2 and not any(name.isdecimal() for name in lists)
    if not beside or [len(n) for n in numbers] != [2, 2]:
        return False
    (a, b), (c, d) = numbers
    return (a < b and c > d) or (a > b and c < d)


def _goes_through_towers(pairs: Sequence[Pair]) -> bool:
    """Return whether the sources of PAIRS, of one list, go through several towers of the model, one after the other:
    `l1` to `l6` for `q1.0` to `q1.2` and `q2.0` to `q2.2`.

    The first number in the path of a target is that of its tower. These numbers are successive, and each source has one
    number. Tower after tower, in the order in which the model runs them, the targets have the looks of the sources in
    the order of their numbers, and are paired with them so. All first layers, then all second layers, and so on, would
    not have these looks.
    """
    own = sorted((t for t, _ in pairs), key=lambda u: (u.numbers[:1], u.order if u.used is None else u.used))
    theirs = sorted((s for _, s in pairs), key=lambda u: u.numbers)
    if not all(unit.numbers for unit in own) or any(len(unit.numbers) != 1 for unit in theirs):
        return False
    towers = {number: list(units) for number, units in groupby(own, key=lambda u: u.numbers[0])}
    across = [unit.colour for layer in zip(*towers.values(), strict=False) for unit in layer]
    looks = [unit.colour for unit in own]
    return (
        [*towers] == [*range(min(towers), min(towers) + len(towers))]
        and [unit.colour for unit in theirs] == looks != across
        and {*zip(own, theirs, strict=True)} <= {*pairs}
    )
