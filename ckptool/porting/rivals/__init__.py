"""The last question before a pair counts as certain: would the swap with another pair fit as well?

Two pairs that look alike (equal shapes) and stand in one block can be exchanged without any shape telling. What tells
is weighed here once more, for all of them together and by other means than those that made the pairs: names, soft
words, and the orders of both sides, each as far as it can be believed in this block. Where nothing speaks for a pair
against its swap, or something speaks for the swap, it is a guess with a rival, whatever evidence made it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..matching.counting import backwards, rows
from ..matching.match import Matching
from ..matching.places import block_of
from ..matching.sequences import Sequences
from ..matching.units import Pair, Unit
from ..questions import Question, Reason, ask
from . import elsewhere
from .alike import MOST, across_blocks, by_block, in_doubt, look_alikes, out_of_place, strays
from .belief import Belief
from .company import crossed, in_company
from .doubting import doubt_both, in_both_directions, left_over, settle, spread
from .exchange import keep_together, rearrange, take_up
from .names import by_names, held_so
from .swaps import Swaps


def weigh(matching: Matching, sequences: Sequences) -> None:
    """Add a doubt and a rival to every pair that a swap with another fits as well.

    Args:
        matching: finished; its units get doubts.
        sequences: says which orders of the two sides are known.
    """
    take_up(matching)
    _count_backwards(matching.pairs)
    swaps = Swaps(matching, sequences)
    elsewhere.settle(matching.pairs, in_doubt(swaps))
    rearrange(swaps)
    keep_together(swaps.pairs)
    swaps.see_branches()
    _weigh_in_blocks(swaps)
    _weigh_across_blocks(swaps)
    settle(matching, swaps)
    for one, other in strays(matching.pairs):
        doubt_both(one, other, ask(Reason.IN_ANOTHER_BLOCK))
    for (t, _), module in out_of_place(matching.pairs):
        t.ask(ask(Reason.IN_ANOTHER_MODULE, ".".join(module)))
    spread(matching.pairs)
    in_both_directions(matching.pairs)
    left_over(matching, swaps)


def _count_backwards(pairs: list[Pair]) -> None:
    """Note of which lists around them the two sides count from opposite ends."""
    turned = backwards(pairs)
    for pair in pairs:
        for side, unit in enumerate(pair):
            unit.backwards |= frozenset(row for row, _ in rows(unit.path)) & {both[side] for both in turned}


def _weigh_in_blocks(swaps: Swaps) -> None:
    belief = Belief(swaps.pairs, swaps.orders, swaps.overall)
    blocks = list(by_block(swaps.pairs).values())
    asked = [
        [(one, other, swaps.reason(one, other, belief.about(one, other))) for one, other in look_alikes(pairs)]
        for pairs in blocks
    ]
    left = [[(a, b, why) for a, b, why in found if why and not swaps.contents.fit_only_so(a, b)] for found in asked]
    while True:  # what is no longer in question vouches for others
        anchors = [_certain(pairs, _in_question(found)) for pairs, found in zip(blocks, left, strict=True)]
        before = left
        left = [
            [(a, b, why) for a, b, why in found if not in_company(a, b, certain, least=2)]
            for found, certain in zip(before, anchors, strict=True)
        ]
        if left == before:
            break
    for found, open_to, certain in zip(asked, left, anchors, strict=True):
        for one, other, reason in open_to:
            doubt_both(one, other, reason)
        for one, other, why in found:
            if why or by_names(one, other) == "sure" or held_so(one, other):
                continue
            if in_company(*crossed(one, other), certain):
                doubt_both(one, other, ask(Reason.COMPANY_FOR_SWAP))


def _weigh_across_blocks(swaps: Swaps) -> None:
    blocks = by_block(swaps.pairs)
    found = across_blocks(swaps)
    open_to = _in_question(found)
    for one, other, reason in found:
        around = _certain([*blocks[block_of(one[0].path)], *blocks[block_of(other[0].path)]], open_to)
        if not swaps.contents.fit_only_so(one, other) and not in_company(one, other, around[:MOST]):
            doubt_both(one, other, reason)


def _in_question(found: Iterable[tuple[Pair, Pair, Question[Unit] | bool | None]]) -> set[int]:
    return {id(unit) for one, other, reason in found if reason for unit in (one[0], other[0])}


def _certain(pairs: list[Pair], open_to: set[int]) -> list[Pair]:
    """What nothing speaks against: who is in question vouches for nobody."""
    return [pair for pair in pairs if id(pair[0]) not in open_to and not pair[0].doubts]
