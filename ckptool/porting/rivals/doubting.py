"""Ask about pairs that may be swapped, answer questions if every swap is excluded, and spread doubts within a block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from ..matching.evidence import Kind
from ..matching.match import Matching
from ..matching.units import Pair, Path, Unit, block_of, hard_conflict, parts_around, tables_of_words
from ..questions import Question, Reason, Topic, answered, ask
from ..words import table
from .alike import MOST, by_look
from .belief import BELIEVED, Order
from .company import Certain, crossed, in_company
from .names import own_words, soft_words
from .swaps import Swaps


def doubt_both(one: Pair, other: Pair, question: Question[Unit]) -> None:
    """Ask QUESTION about the targets of ONE and OTHER, two pairs that may be swapped: each gets it with the source of
    the other pair as its option, and with the path of this source as the last name in the sentence. A target that has
    an open question with this reason and otherwise the same names gets only the option, added to that question.
    """
    for (target, _), (_, rival) in ((one, other), (other, one)):
        named = (*question.named, ".".join(rival.path))
        for asked in target.doubts:
            if asked.reason is question.reason and asked.named[:-1] == question.named:
                named = asked.named
        target.ask(Question(question.reason, named, (rival,)))


def settle(matching: Matching, swaps: Swaps) -> None:
    """Answer the open questions of the topics ORDER and PARTS about each pair of MATCHING whose swap with each of its
    look-alikes is excluded (`_answer` says which pairs stay as they are).

    Contents exclude a swap for both topics (`fit_only_so`). For ORDER, so do names, numbers, places, modules or orders
    (`Swaps.excluded`), and certain neighbours for the pairs and not for the swap (`in_company`; two are needed for
    pairs in different blocks). For PARTS, so does all that makes `Swaps.reason` None: an order alone does not count.
    """
    certain = Certain(pair for pair in matching.pairs if not pair[0].doubts)

    def in_better_company(one: Pair, other: Pair) -> bool:
        """Return whether certain neighbours are for the pairs ONE and OTHER, and not for their swap."""
        around = certain.around(one, other)
        least = 1 if block_of(one[0].path) == block_of(other[0].path) else 2
        beside = in_company(one, other, around, least, loose=swaps.loose)
        return beside and not in_company(*crossed(one, other), around, loose=swaps.loose)

    _answer(
        matching,
        Topic.ORDER,
        lambda one, other: (
            swaps.contents.fit_only_so(one, other) or swaps.excluded(one, other) or in_better_company(one, other)
        ),
    )
    _answer(
        matching,
        Topic.PARTS,
        lambda one, other: swaps.contents.fit_only_so(one, other) or swaps.reason(one, other) is None,
    )


def _answer(matching: Matching, topic: Topic, excluded: Callable[[Pair, Pair], bool]) -> None:
    """Answer the open questions of TOPIC about the target of each pair of MATCHING if EXCLUDED(pair, other) is true for
    each other pair of its colour, since no swap is possible then; also if there is no other pair. A pair is left as it
    is if any unit of its colour, on either side, has no partner, or if more than 64 pairs are of this colour.
    """
    others = {unit.colour for side in (0, 1) for unit in matching.unpaired(side)}
    alike = by_look(matching.pairs)
    for one in matching.pairs:
        group = alike[one[0].colour]
        if one[0].colour in others or len(group) > MOST:
            continue
        if all(doubt.reason.topic is not topic for doubt in one[0].doubts):
            continue
        if all(other is one or excluded(one, other) for other in group):
            one[0].questions = answered(one[0].questions, topic, _NO_SWAP)


def spread(pairs: list[Pair]) -> None:
    """Ask all units of a block of the target the question that most of them have about whole blocks. If more than half
    of the units in the block (also in blocks within it) have an open question about whole blocks (`Question.of_parts`),
    the first of these questions, without its options, is asked of the units that have none. Units that were paired by
    equal names do not get it. PAIRS are (target, source); targets outside of all blocks are left as they are.

    Blocks are taken one after the other, each before the blocks within it; what was asked in a block counts in these.
    """
    parts: dict[Path, list[Unit]] = defaultdict(list)
    for t, _ in pairs:
        for part in parts_around(t.path):
            parts[part].append(t)
    for units in parts.values():
        doubts = [next((d for d in unit.doubts if d.of_parts), None) for unit in units]
        found = next((d for d in doubts if d is not None), None)
        if found is not None and sum(d is not None for d in doubts) > len(units) / 2:
            for unit, doubt in zip(units, doubts, strict=True):
                if doubt is None and not unit.told_by(Kind.NAME):
                    unit.ask(found.about())


def in_both_directions(pairs: list[Pair]) -> None:
    """Ask one direction of a bidirectional recurrent layer all open questions of the other, without their options. This
    is done if just one of the two has open questions, and the one without was not paired by equal names. The two
    directions are the targets in PAIRS with the paths X and X.reverse.
    """
    found = {t.path: t for t, _ in pairs if "weight_ih" in t.pieces}
    for path, t in found.items():
        other = found.get(path[:-1]) if path[-1:] == ("reverse",) else None
        if other is not None and bool(t.doubts) != bool(other.doubts):
            doubted, sure = (t, other) if t.doubts else (other, t)
            if not sure.told_by(Kind.NAME):
                for question in doubted.doubts:
                    sure.ask(question.about())


#: What answers a question about orders.
_NO_SWAP = "no swap with another of its look would fit"


def left_over(matching: Matching, swaps: Swaps) -> None:
    """Ask about a pair if a unit without a partner would fit as well or better in the place of one of its two units, by
    its name (`_wanted_elsewhere`) or by orders (`_out_of_order`).
    """
    _wanted_elsewhere(matching)
    _out_of_order(matching, swaps)


def _wanted_elsewhere(matching: Matching) -> None:
    """Ask WANTED_ELSEWHERE about each pair of MATCHING whose source fits another unit of the target as well: a
    look-alike of its target in the same block without a partner. The first such unit is named in the sentence.

    It fits as well if the source's name shares more words with that unit alone than with the target alone
    (`own_words`); or as many, and `soft_words` is not lower for that unit than for the target. A unit does not count if
    its words exclude the source, and those of the target do not; nor, for a pair of word tables, if it is no word table
    (an output layer may be tied to the table); nor if it is what the model computes itself, such as a mask. Pairs with
    equal names or a doubt are not asked about.
    """
    free: dict[object, list[Unit]] = defaultdict(list)
    for unit in matching.unpaired(0):
        if all(piece.leaf in table().derived for piece in unit.pieces.values()):
            continue
        free[(unit.colour, block_of(unit.path))].append(unit)
    for t, s in matching.pairs:
        if t.told_by(Kind.NAME) or t.doubts:
            continue
        for other in free.get((t.colour, block_of(t.path)), ()):
            if tables_of_words(t, s) and not tables_of_words(other, s):
                continue  # an output layer may be tied to it
            if hard_conflict(other.words, s.words) and not hard_conflict(t.words, s.words):
                continue
            ours, theirs = own_words(t, s, other, other), own_words(other, s, t, t)
            if theirs > ours or (theirs == ours and soft_words(other, s) >= soft_words(t, s)):
                t.ask(ask(Reason.WANTED_ELSEWHERE, ".".join(other.path)))
                break


#: How many others a pair is checked against, and the share of them that one out of its place, and one in it, crosses.
_ANCHORS, _OUT, _IN = 100, 0.3, 0.05


def _out_of_order(matching: Matching, swaps: Swaps) -> None:
    """Ask about each pair of MATCHING that is out of order, if a look-alike without a partner would be in order in
    place of its target (question OUT_OF_ORDER_HERE) or of its source (OUT_OF_ORDER). The first such unit is named in
    the sentence. Pairs with a doubt or with equal names are not asked about.

    The pair is compared with the pairs that have no doubt and are no look-alikes of it (of 200 or more, with at most
    150), in each order of SWAPS at least 0.85 reliable in the whole model. It is out of order if 30 % or more of these
    comparisons are against it, and would be in order if less than 5 % were.
    """
    orders = [order for order in swaps.orders if swaps.overall[order.name] >= BELIEVED]
    left = [matching.unpaired(side) for side in (0, 1)]
    certain = [pair for pair in matching.pairs if not pair[0].doubts]
    certain = certain[:: max(len(certain) // _ANCHORS, 1)]
    for t, s in matching.pairs:
        others = [(u, (u, s), Reason.OUT_OF_ORDER_HERE) for u in left[0] if u.colour == t.colour]
        others += [(u, (t, u), Reason.OUT_OF_ORDER) for u in left[1] if u.colour == t.colour]
        if not others or t.told_by(Kind.NAME) or t.doubts or _share_crossed((t, s), orders, certain) < _OUT:
            continue
        for unit, pair, reason in others:
            if _share_crossed(pair, orders, certain) < _IN:
                t.ask(ask(reason, ".".join(unit.path)))
                break


def _share_crossed(pair: Pair, orders: Sequence[Order], certain: Sequence[Pair]) -> float:
    """Return which share of the votes of ORDERS about PAIR and each of CERTAIN are against it; 0 without votes. Pairs
    of its look-alikes do not count.
    """
    others = [other for other in certain if other[0].colour != pair[0].colour]
    votes = [vote for order in orders for other in others if (vote := order.vote(pair, other))]
    return sum(vote < 0 for vote in votes) / max(len(votes), 1)
