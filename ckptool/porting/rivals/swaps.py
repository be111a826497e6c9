"""Decide whether the swap of two pairs would fit as well, by names, numbers and orders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Literal

from ..forms.branches import Branches, beside
from ..matching.counting import directions, row_of, rows
from ..matching.match import Matching
from ..matching.sequences import Sequences
from ..matching.units import Pair, Path, Unit, block_of, series
from ..questions import Question, Reason, ask
from .belief import BELIEVED, concordance, orders_of
from .insides import Contents
from .names import by_convention, by_names, by_numbers, held_so, in_equal_places, say_the_same, step, word_more

#: So many layers of a block are looked at for names with one word more.
_MOST = 64
#: Why a swap is not excluded; None if names, numbers or places exclude it, False if an order alone does or if nothing
#: tells the two apart. The source of the other pair is named by who asks.
Said = Question[Unit] | Literal[False] | None
#: What has one name but for its numbers.
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
    """

    def __init__(self, matching: Matching, sequences: Sequences) -> None:
        self.pairs = matching.pairs
        self.orders = orders_of(sequences)
        self.overall = {order.name: concordance(order, self.pairs) for order in self.orders}
        self.contents = Contents(matching)
        self._in_turn: dict[_Row, bool] = {}
        self._added: dict[Path, Counter[str]] = {}
        self._rows: dict[_Row, list[Pair]] = defaultdict(list)
        self._ways = directions([pair for pair in self.pairs if not pair[0].doubts])
        self._members: tuple[dict[str, set[int]], ...] = (defaultdict(set), defaultdict(set))
        for pair in self.pairs:
            self._rows[series(pair[1])].append(pair)
            for members, unit in zip(self._members, pair, strict=True):
                for row, number in rows(unit.path):
                    members[row].add(number)
        self.see_pairs()

    def see_pairs(self) -> None:
        """Update the evidence of parallel branches, and of modules that run as a whole, after pairs have changed."""
        self.contents.see_runs(self.pairs)
        votes = {order.name: (order.vote, order.place) for order in self.orders}
        self._branches = Branches(self.pairs, self.contents.of_target, votes)

    def reason(self, one: Pair, other: Pair, belief: Mapping[str, float] | None = None) -> Said:
        """Return the question to ask about the pairs ONE and OTHER if they may be swapped: that of `reason_in_row`. If
        that is False, also:

        - RUNS_BESIDE if the targets are parallel branches, and no order that is for the pairs is one that branches
          which cannot be confused keep on both sides;
        - else NAMED_AS_ADDED if one source is named as added later (`_is_added`).

        Args:
            one, other: the pairs.
            belief: name of an order -> how reliable it is for these two pairs, 0 to 1; as in the whole model if None.
        Returns:
            The question; False if only an order excludes the swap; None if names, places or modules exclude it.
        """
        belief = self.overall if belief is None else belief
        found = self.reason_in_row(one, other, belief)
        if found is False and beside(one[0], other[0]):
            votes = self._believed(one, other, belief)
            if not any(self._branches.shown(one, other, name) for name, vote in votes.items() if vote > 0):
                return ask(Reason.RUNS_BESIDE)
        if found is False and self._is_added(one[1], other[1]):
            return ask(Reason.NAMED_AS_ADDED)
        return found

    def _is_added(self, one: Unit, other: Unit) -> bool:
        """Return whether one of two sources in one block is called as the other with one word more, and two or more
        couples of look-alikes in this block, these two among them, differ by this word: `temporal_norm` and
        `temporal_attn` beside `norm` and `attn`. Of a block, 64 sources are compared.

        Code got these layers later, so their place in the file does not tell when it runs them.
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
        """Return the result of `reason`, but without the questions RUNS_BESIDE and NAMED_AS_ADDED. The first of these
        that applies decides; an order counts if BELIEF in it is at least 0.85, but against names that only support the
        pairs if it is above 0.5:

        - names that exclude the swap: None; names that support it: NAMES_FOR_SWAP;
        - names that support the pairs: ORDER_FOR_SWAP if an order is for the swap and none for the pairs, unless places
          in lists, tensors or all words agree with the names; else None;
        - a gate that one side does not name: CONVENTION_OF_TWO;
        - numbers in the same order on both sides: None, if no order is for the swap or one is for the pairs, and, for
          parallel branches, the numbers differ by as much on both sides or one list goes through them
          (`_counts_through`);
        - orders for the swap: ORDERS_ABOUT_SWAP if others are for the pairs, else ORDER_FOR_SWAP;
        - orders that tell the two apart, none of which counts: NO_ORDER_KEPT;
        - else, an order for the pairs or none that tells them apart: False.
        """
        named = by_names(one, other)
        if named == "sure" or (named != "against" and self.contents.run_only_so(one, other)):
            return None
        if named == "against":
            return ask(Reason.NAMES_FOR_SWAP)
        belief = self.overall if belief is None else belief
        believed = self._believed(one, other, belief)
        against = [name for name, vote in believed.items() if vote < 0]
        behind = [name for name, vote in believed.items() if vote > 0]
        if named == "for":
            if in_equal_places(one, other) or say_the_same(one, other) or held_so(one, other):
                return None  # names that agree in full, equal places in lists, and biases count more than any order
            against = [o.name for o in self.orders if belief[o.name] > 0.5 and o.vote(one, other) < 0]
            return ask(Reason.ORDER_FOR_SWAP, against[0]) if against and not behind else None
        if by_convention(one, other):
            return ask(Reason.CONVENTION_OF_TWO)
        counted = (
            not beside(one[0], other[0])
            or step(one[0], other[0]) == step(one[1], other[1])
            or self._runs_as_counted(one, other)
            or self._counts_through(one, other)
        )
        if by_numbers(one, other) > 0 and counted and (behind or not against or self._counted_as_beside(one, other)):
            return None
        if against and behind:
            return ask(Reason.ORDERS_ABOUT_SWAP, behind[0], against[0])
        if against:
            return ask(Reason.ORDER_FOR_SWAP, against[0])
        if not behind and any(order.vote(one, other) for order in self.orders):
            return ask(Reason.NO_ORDER_KEPT)
        return False

    def _counted_as_beside(self, one: Pair, other: Pair) -> bool:
        """Return whether members of unlike looks, or other lists in the same modules, show that both sides count the
        list with ONE and OTHER from the same end. Some code runs a list from its end.
        """
        return self._ways.get((row_of(one[0], other[0]), row_of(one[1], other[1])), 0) > 0

    def _runs_as_counted(self, one: Pair, other: Pair) -> bool:
        """Return whether both sides have ONE and OTHER in a list with equally many members, and the model runs them in
        the order of their numbers.

        Such numbers may have gaps: `stride8` and `stride16`.
        """
        (t, t2), (s, s2) = zip(one, other, strict=True)
        own, theirs = row_of(t, t2), row_of(s, s2)
        if None in (t.used, t2.used) or not own or len(self._members[0][own]) != len(self._members[1][theirs]):
            return False
        return ((t.used or 0.0) < (t2.used or 0.0)) == (t.numbers < t2.numbers)

    def _counts_through(self, one: Pair, other: Pair) -> bool:
        """Return whether the source of ONE is in a list that goes through several towers of the model, one after the
        other, and all pairs of this list are in that order: `l1` to `l6` for `q1.0` to `q1.2` and `q2.0` to `q2.2`.

        The towers are told apart by the first number in the path of the target, and have successive numbers. The shapes
        of the list are those of the towers one after the other, and not those of all first layers, then all second
        ones, so that the layers of a tower have to differ. The members of the list have one number each.
        """
        row = series(one[1])
        if row not in self._in_turn:
            held = self._rows[row]
            own = sorted((t for t, _ in held), key=lambda u: (u.numbers[:1], u.order if u.used is None else u.used))
            theirs = sorted((s for _, s in held), key=lambda u: u.numbers)
            towers: dict[tuple[int, ...], list[Unit]] = defaultdict(list)
            for unit in own:
                towers[unit.numbers[:1]].append(unit)
            across = [unit for layer in zip(*towers.values(), strict=False) for unit in layer]
            looks = [unit.colour for unit in theirs]
            self._in_turn[row] = (
                {len(unit.numbers) for unit in theirs} == {1}
                and () not in towers
                and [n for (n,) in towers] == list(range(min(towers)[0], min(towers)[0] + len(towers)))
                and looks == [unit.colour for unit in own] != [unit.colour for unit in across]
                and {(id(t), id(s)) for t, s in held} >= {(id(t), id(s)) for t, s in zip(own, theirs, strict=True)}
            )
        return self._in_turn[row]

    def _believed(self, one: Pair, other: Pair, belief: Mapping[str, float]) -> dict[str, int]:
        return {o.name: vote for o in self.orders if belief[o.name] >= BELIEVED and (vote := o.vote(one, other))}

    def excluded(self, one: Pair, other: Pair) -> bool:
        """Return whether names, numbers or places exclude the swap of ONE and OTHER, or an order alone does that the
        whole model keeps and that is for the pairs.
        """
        reason = self.reason(one, other)
        return reason is None or (reason is False and 1 in self._believed(one, other, self.overall).values())
