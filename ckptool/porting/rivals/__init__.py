"""Ask about every pair of units whose swap with another pair would fit as well.

Two pairs of look-alikes in one block can be swapped, and no shape shows it. Names, words and the orders of both sides
are weighed here once more, each order only as far as it is reliable in this block. If nothing supports a pair against
its swap, or something supports the swap, the pair gets a question with the source of the other pair as its option.

The words of this package, beside those of `ckptool.porting` and `matching`:

    for, against  evidence is for two pairs if it supports them as they are, and for their swap (against the pairs) if
                  it supports the pairs with their sources exchanged. Some evidence excludes a swap.
    names         words of names, and what else tells pairs apart without orders and numbers (`by_names`).
    company       the certain pairs near two pairs (`in_company`): they have common names, numbers or places with one.
    reliable      said of an order, 0 to 1: the share of couples of pairs that keep it (`concordance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..matching.counting import directions, rows
from ..matching.match import Matching
from ..matching.sequences import Sequences
from ..matching.units import Pair, Unit, block_of, by_block
from ..questions import Question, Reason, ask
from ..rules import Rule, Strength, in_order
from . import elsewhere
from .alike import MOST, across_blocks, in_doubt, look_alikes, of_the_modules_beside, run_by_one_code
from .belief import Belief
from .both_flows import pair_by_flow, settle_by_flow
from .company import Anchors, crossed, in_company
from .doubting import doubt_both, in_both_directions, left_over, settle, spread
from .exchange import exchange_together, rearrange, take_up
from .names import by_names, held_so
from .spare import doubt_beside_spares
from .swaps import Said, Swaps, places_fall


class Weighing:
    """The pairs to weigh against their swaps.

    Attributes:
        matching: the finished matching, whose units get questions.
        sequences: the orders that both sides have.
    """

    def __init__(self, matching: Matching, sequences: Sequences) -> None:
        self.matching, self.sequences = matching, sequences
        self._swaps: Swaps | None = None

    @property
    def pairs(self) -> list[Pair]:
        """Return the pairs (target, source) as they are now, in the list that the rules change."""
        return self.matching.pairs

    @property
    def followed(self) -> bool:
        """Return whether the forward passes of the model and of the source's code were followed."""
        return self.sequences.traced and self.sequences.source_traced

    @property
    def swaps(self) -> Swaps:
        """Return the evidence about swaps, computed at the first use from the pairs as they are then."""
        if self._swaps is None:
            self._swaps = Swaps(self.matching, self.sequences)
        return self._swaps


def weigh(matching: Matching, sequences: Sequences) -> None:
    """Run the rules of the table `WEIGHING` in their order: each pair whose swap with another pair fits as well gets a
    question; some pairs are swapped before, and some questions are answered.

    Args:
        matching: the finished matching, whose pairs and units are changed.
        sequences: the orders that both sides have.
    """
    weighing = Weighing(matching, sequences)
    for rule in WEIGHING:
        rule.run(weighing)


def _count_backwards(pairs: list[Pair]) -> None:
    """Add to `backwards` of each unit of PAIRS, of both sides, the lists around it that the two sides count from
    opposite ends (`blocks.0` is the first in one and the last in the other), as PAIRS show (`directions`, with ONE).
    """
    turned = [both for both, way in directions(pairs, one=True).items() if way < 0]
    for pair in pairs:
        for side, unit in enumerate(pair):
            unit.backwards |= frozenset(row for row, _ in rows(unit.path)) & {both[side] for both in turned}


def _pair_by_flow(weighing: Weighing) -> None:
    """Pair layers by the graphs of both codes (`pair_by_flow`), and update the evidence about swaps if pairs were
    changed.
    """
    if pair_by_flow(weighing.matching):
        weighing.swaps.see_pairs()


def _weigh_in_blocks(swaps: Swaps) -> None:
    """Ask about the swaps of look-alikes in each block of the target (`_weigh_block`), with the orders as reliable as
    they are in that block (`Belief`). All swaps of all blocks are judged (`Swaps.reason`) before the first question is
    asked.
    """
    belief = Belief(swaps.pairs, swaps.orders, swaps.overall)
    blocks = list(by_block(swaps.pairs).values())
    asked = [
        [(one, other, swaps.reason(one, other, belief.about(one, other))) for one, other in look_alikes(pairs)]
        for pairs in blocks
    ]
    for pairs, found in zip(blocks, asked, strict=True):
        _weigh_block(swaps, pairs, found)


def _weigh_block(swaps: Swaps, pairs: list[Pair], found: list[tuple[Pair, Pair, Said]]) -> None:
    """Ask about swaps of two of PAIRS, the pairs of one block. FOUND has (pair, pair, result of `Swaps.reason`) for
    each two look-alikes among them.

    If the result is a question, it is asked about both pairs, unless contents exclude the swap (`fit_only_so`), or
    certain pairs of the block show that the two are right (`in_company` with LEAST 2). Certain are the pairs without an
    open question none of whose swaps is in question any more; so a pair may become certain, and exclude further swaps.

    If the result is None or False, both pairs get the question COMPANY_FOR_SWAP if the certain pairs show that the
    swapped pairs would be right (`in_company`); not if names or tensors exclude the swap (`by_names` is "sure",
    `held_so`), nor if one of the two is a certain pair itself, since that speaks against each swap of it.
    """
    left = [(one, other, why) for one, other, why in found if why and not swaps.contents.fit_only_so(one, other)]
    while True:
        certain = Anchors(_certain(pairs, _in_question(left)))
        before = left
        left = [
            (one, other, why)
            for one, other, why in left
            if not in_company(one, other, certain, least=2, loose=swaps.loose)
        ]
        if left == before:
            break
    for one, other, question in left:
        doubt_both(one, other, question)
    for one, other, why in found:
        if why or by_names(one, other) == "sure" or held_so(one, other):
            continue
        if in_company(*crossed(one, other), certain, loose=swaps.loose):
            doubt_both(one, other, ask(Reason.COMPANY_FOR_SWAP))


def _weigh_across_blocks(swaps: Swaps) -> None:
    """Ask both pairs of each swap that `across_blocks` finds (look-alikes in different blocks) its question, unless
    contents exclude the swap, or the first 64 certain pairs of the two blocks show that the pairs are right
    (`in_company`). Certain are pairs without an open question that are in no swap found. They do not count for pairs of
    two lists that code may run together (`places_fall`): around these, they are the same either way.
    """
    blocks = by_block(swaps.pairs)
    found = across_blocks(swaps)
    open_to = _in_question(found)
    for one, other, reason in found:
        both = {block_of(t.path): None for t, _ in (one, other)}  # which may be one block
        around = _certain([pair for block in both for pair in blocks[block]], open_to)
        kept = not places_fall(one, other) and in_company(one, other, around[:MOST])
        if not swaps.contents.fit_only_so(one, other) and not kept:
            doubt_both(one, other, reason)


def _weigh_the_modules_beside(weighing: Weighing) -> None:
    """Ask both pairs of each swap that `of_the_modules_beside` finds its question, unless what both codes run tells
    the two apart (`Swaps.run_apart`).
    """
    for one, other, question in of_the_modules_beside(weighing.pairs):
        if not weighing.swaps.run_apart(one, other):
            doubt_both(one, other, question)


def _weigh_what_is_run(weighing: Weighing) -> None:
    """Ask both pairs of each swap that `run_by_one_code` finds its question, if both codes were followed."""
    for one, other, question in run_by_one_code(weighing.pairs) if weighing.followed else ():
        doubt_both(one, other, question)


def _in_question(found: Iterable[tuple[Pair, Pair, Question[Unit]]]) -> set[int]:
    """Return the `id` of the targets of all pairs in FOUND."""
    return {id(unit) for one, other, _ in found for unit in (one[0], other[0])}


def _certain(pairs: list[Pair], open_to: set[int]) -> list[Pair]:
    """Return those of PAIRS whose target has no open question and whose target's `id` is not in OPEN_TO."""
    return [pair for pair in pairs if id(pair[0]) not in open_to and not pair[0].doubts]


#: What is asked of pairs that could be swapped, and what answers it.
WEIGHING: tuple[Rule[Callable[[Weighing], None]], ...] = in_order(
    Rule(
        "undecided",
        10,
        "Nothing told this tensor from others of its shape, so it was first paired by the most similar name and by "
        "place.",
        "Every pair has to be compared with its swaps. This pair is a question unless a later rule answers it.",
        lambda weighing: take_up(weighing.matching),
        Strength.OPEN,
    ),
    Rule(
        "counted from the other end",
        20,
        "Both sides count a list around it from opposite ends.",
        "All pairs of the list show it, so equal numbers are no evidence there.",
        lambda weighing: _count_backwards(weighing.pairs),
    ),
    Rule(
        "exchanged together",
        25,
        "This tensor and others of its block changed places with look-alikes, as their names say.",
        "Of a convolution and its norm alone, the other one would exclude the exchange.",
        lambda weighing: exchange_together(weighing.swaps),
        Strength.LIKELY,
    ),
    Rule(
        "settled in other blocks",
        30,
        "In other blocks, whose pairs have no open questions, the layer at this place has its partner at this "
        "place, too.",
        "For example, a block without a shortcut has no third layer that its two layers of one shape could be "
        "confused with.",
        lambda weighing: elsewhere.settle(weighing.pairs, in_doubt(weighing.swaps)),
    ),
    Rule(
        "exchanged",
        40,
        "This tensor changed places with another of its shape, because names, numbers and neighbours then fit better.",
        "Names, numbers, neighbours and orders are weighed for both ways; orders alone exchange nothing.",
        lambda weighing: rearrange(weighing.swaps),
        Strength.LIKELY,
    ),
    Rule(
        "places in both graphs",
        50,
        "In the graphs of both codes, this layer and its source come after the same layers.",
        "Names paired layers that come after other layers in one code than in the other; no pair does so now.",
        _pair_by_flow,
        when="the forward passes of the model and of the source's code were followed",
    ),
    Rule(
        "swaps in its block",
        60,
        "The evidence is as good if the pair exchanges tensors with a look-alike in its block.",
        "Names, words, certain neighbours, and the orders that other pairs of the block keep do not exclude the swap.",
        lambda weighing: _weigh_in_blocks(weighing.swaps),
        Strength.OPEN,
    ),
    Rule(
        "swaps across blocks",
        70,
        "The evidence is as good if the pair exchanges tensors with a look-alike of another block.",
        "Names or neighbours support the swap, or the two layers are parallel in the model.",
        lambda weighing: _weigh_across_blocks(weighing.swaps),
        Strength.OPEN,
    ),
    Rule(
        "modules beside it",
        75,
        "The modules beside this one come from the part of the source where another look-alike has its name.",
        "Two parts of a model may exchange their names, and a part with the old name of the other is no evidence then.",
        _weigh_the_modules_beside,
        Strength.OPEN,
    ),
    Rule(
        "no swap fits",
        80,
        "A question about orders was answered, because no swap with a look-alike would fit.",
        "Names, contents or neighbours exclude every swap, whatever the orders say.",
        lambda weighing: settle(weighing.matching, weighing.swaps),
    ),
    Rule(
        "run by one code",
        100,
        "Only one of the two codes runs this layer, and only the other one runs a look-alike of it.",
        "Names may say what code calls its parts and not which of them is needed; but a user may want both parts.",
        _weigh_what_is_run,
        Strength.OPEN,
        when="the forward passes of the model and of the source's code were followed",
    ),
    Rule(
        "as most of its part",
        110,
        "Most pairs of the part of the model around it have this question, so this pair has it, too.",
        "Parts are exchanged as a whole.",
        lambda weighing: spread(weighing.pairs),
        Strength.OPEN,
    ),
    Rule(
        "both directions",
        120,
        "One direction of a recurrent layer has this question, so the other direction has it, too.",
        "The two directions have equal shapes, and names that differ in one word.",
        lambda weighing: in_both_directions(weighing.pairs),
        Strength.OPEN,
    ),
    Rule(
        "left over",
        130,
        "A layer without a partner would fit in place of one of the two layers of this pair.",
        "The name of that layer, or its place in the orders, fits as well or better.",
        lambda weighing: left_over(weighing.matching, weighing.swaps),
        Strength.OPEN,
    ),
    Rule(
        "spare beside it",
        135,
        "A look-alike of its source in the same module of the file, or of its name in a module beside that, has no "
        "partner, and would fit as well.",
        "A file may hold a layer that the model lacks, such as an auxiliary head, and only names tell it apart.",
        lambda weighing: doubt_beside_spares(weighing.matching),
        Strength.OPEN,
    ),
    Rule(
        "one place in both graphs",
        140,
        "A question about look-alikes was answered, because in the graphs of both codes no look-alike has this place.",
        "Two codes of one model compute each result from the same weights, in whichever order they register or run "
        "them.",
        lambda weighing: settle_by_flow(weighing.matching),
        when="the forward passes of the model and of the source's code were followed",
    ),
)
