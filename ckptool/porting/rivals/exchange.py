"""Pair the units that nothing told apart, and swap pairs as long as all evidence together supports it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from ..matching.evidence import Kind
from ..matching.match import Matching
from ..matching.units import Pair, Unit, block_of, by_block, hard_conflict, nearness, similarity, without_digits
from ..questions import Question, Reason, ask
from ..words import numbers, shared, telling_words
from .alike import MOST, by_look, look_alikes
from .belief import BELIEVED
from .company import ANCHORS, Certain, crossed, in_company
from .doubting import doubt_both
from .names import by_names, by_numbers, in_equal_places
from .swaps import Swaps


def take_up(matching: Matching) -> None:
    """Pair the units of undecided cells that have equally many of both sides, at most 64; later rules can swap them.
    Other cells stay undecided.

    Each target, in the order of execution (or of the keys, if that is not known), gets the source that fits best of
    those that are left (`_fitness`, with the twelve pairs nearest to the target), if possible one whose words do not
    exclude it. The target gets the question SEVERAL_FIT with all other sources of the cell as options (eight at most).
    The pairs of MATCHING stay in the order of the target's keys.
    """
    left = []
    for targets, sources in matching.undecided:
        if len(targets) != len(sources) or len(targets) > MOST:
            left.append((targets, sources))
            continue
        free = sorted(sources, key=lambda s: s.order)
        certain = list(matching.pairs)
        for t in sorted(targets, key=lambda t: t.order if t.used is None else t.used):
            around = sorted(certain, key=lambda pair: -nearness(t, pair[0]))[:ANCHORS]
            s = max(free, key=lambda s: (hard_conflict(t.words, s.words) is None, _fitness(t, s, around)))
            free.remove(s)
            others = tuple(u for u in sources if u is not s)
            t.ask(Question(Reason.SEVERAL_FIT, (str(len(sources)),), others))
            matching.pairs.append((t, s))
    matching.undecided[:] = left
    matching.pairs.sort(key=lambda pair: pair[0].order)


def _fitness(t: Unit, s: Unit, around: list[Pair]) -> float:
    """Return how well the source S suits the target T: the similarity of their names, 0 to 1.05, plus how many
    components the path of S shares with those of the sources of the pairs AROUND, on average.
    """
    beside = sum(nearness(s, other) for _, other in around)
    return similarity(t, s) + beside / max(len(around), 1)


def exchange_together(swaps: Swaps) -> None:
    """Exchange the sources of several couples of look-alikes of one block at once, such as two convolutions and their
    norms: of each couple alone, the layers beside it exclude the swap.

    Names have to be for the swap of a couple (`by_names` is "against" for the two pairs), and to exclude all but the
    swapped pairs (it is "sure" for these), both without what a rule decided for a whole module, which may rest on the
    other couple. Contents must not exclude the swap (`fit_only_so`). Couples that share a pair are left out. If a block
    has two or more such couples, all of them are exchanged, and their targets note that as their only evidence; one
    alone stays as it is. No question is asked. SWAPS is updated if pairs have changed.
    """
    pairs = swaps.pairs
    places = {id(t): at for at, (t, _) in enumerate(pairs)}
    before = list(pairs)
    for block in by_block(before).values():
        couples = {
            (places[id(one[0])], places[id(other[0])])
            for one, other in look_alikes(block)
            if by_names(one, other, settled=False) == "against"
            and by_names(*crossed(one, other), settled=False) == "sure"
            and not swaps.contents.fit_only_so(one, other)
        }
        several = Counter(at for couple in couples for at in couple)
        alone = [couple for couple in sorted(couples) if all(several[at] == 1 for at in couple)]
        for i, j in alone if len(alone) > 1 else ():
            pairs[i], pairs[j] = crossed(pairs[i], pairs[j])
            for unit in (pairs[i][0], pairs[j][0]):
                unit.exchange("exchanged together", Kind.EXCHANGED)
    if pairs != before:
        swaps.see_pairs()


def rearrange(swaps: Swaps) -> None:
    """Exchange the sources of look-alikes in the list of pairs of SWAPS as long as all evidence together is for it
    (`_exchanged`), and ask AGAINST_NUMBERS about the two pairs of each exchange unless names, places or neighbours
    settle it (`_is_settled`). Groups of more than 64 look-alikes are left as they are. SWAPS is updated at the end if
    pairs have changed.

    The certain neighbours are the pairs that, before the first exchange, have no doubt, or only doubts about whole
    blocks.
    """
    pairs = swaps.pairs
    certain = Certain(pair for pair in pairs if all(doubt.of_parts for doubt in pair[0].doubts))
    places = {id(t): at for at, (t, _) in enumerate(pairs)}
    before = list(pairs)
    for alike in by_look(pairs).values():
        if len(alike) <= MOST:
            for i, j in _exchanged([places[id(t)] for t, _ in alike], swaps, certain):
                if not _is_settled(pairs[i], pairs[j], swaps, certain):
                    doubt_both(pairs[i], pairs[j], ask(Reason.AGAINST_NUMBERS))
    if pairs != before:
        swaps.see_pairs()


def _exchanged(group: Sequence[int], swaps: Swaps, certain: Certain) -> list[tuple[int, int]]:
    """Exchange the sources of look-alikes, two pairs at a time, in the list of pairs of SWAPS, and return the places in
    this list of the two pairs of each exchange, in order; [] if there was none. GROUP has the places of look-alikes.

    Each time, of all two pairs that may be swapped (`_in_question`), the two are exchanged for whose swap the evidence
    is strongest (`_balance`, with certain pairs around them from CERTAIN). It ends when the evidence is for no swap, or
    after as many exchanges as GROUP has places. The exchanged targets note it as their only evidence (`Unit.exchange`).
    """
    pairs, exchanged = swaps.pairs, []
    for _ in group:
        better = [
            (gain, i, j)
            for i, j in combinations(group, 2)
            if _in_question(pairs[i], pairs[j], swaps)
            and (gain := -_balance(pairs[i], pairs[j], swaps, certain.around(pairs[i], pairs[j]))) > 0
        ]
        if not better:
            break
        _, i, j = max(better)
        pairs[i], pairs[j] = crossed(pairs[i], pairs[j])
        for unit in (pairs[i][0], pairs[j][0]):
            unit.exchange("exchanged", Kind.EXCHANGED)
        exchanged.append((i, j))
    return exchanged


def _is_settled(one: Pair, other: Pair, swaps: Swaps, certain: Certain) -> bool:
    """Return whether ONE and OTHER, two pairs after the exchange of their sources, need no question. One of these is
    enough:

    - names exclude that they are swapped back (`by_names`);
    - target and source have equal places in lists (`in_equal_places`);
    - their numbers are in one order on both sides, and the last names of each pair agree (`_called_alike`);
    - certain pairs around them, at least two, show it (`in_company`);
    - both are in one block on both sides, and `Swaps.reason_in_row` is None (the swap back is excluded).
    """
    if by_names(one, other) == "sure" or in_equal_places(one, other):
        return True
    if by_numbers(one, other) > 0 and all(map(_called_alike, (one, other))):
        return True
    if in_company(one, other, certain.around(one, other), least=2, loose=swaps.loose):
        return True
    within = all(block_of(one[side].path) == block_of(other[side].path) for side in (0, 1))
    return within and swaps.reason_in_row(one, other) is None


def _called_alike(pair: Pair) -> bool:
    """Return whether the last names of the target and the source of PAIR share a telling word, whole or abbreviated,
    and have equal numbers.
    """
    own, theirs = (unit.path[-1:] for unit in pair)
    return bool(shared(telling_words(own), telling_words(theirs))) and numbers(own) == numbers(theirs)


def _in_question(one: Pair, other: Pair, swaps: Swaps) -> bool:
    """Return whether the swap of ONE and OTHER is to be considered: the target of one of them has a doubt, or
    `Swaps.reason_in_row` returns a question about their swap. False in any case if the paths of their targets' blocks
    differ in more than digits, or if the file states different kinds of layers for the two sources (`_stated_apart`).
    """
    if without_digits(block_of(one[0].path)) != without_digits(block_of(other[0].path)):
        return False
    if _stated_apart(one[1], other[1]):
        return False  # where names speak for it all the same, a question does
    return bool(one[0].doubts or other[0].doubts or swaps.reason_in_row(one, other))


def _stated_apart(one: Unit, other: Unit) -> bool:
    """Return whether the file states a kind of layer for both sources ONE and OTHER, such as attention and dense, and
    these differ.
    """
    stated = [unit.main.entry.stated for unit in (one, other)]
    layers = {role.layer for role in stated if role is not None and role.layer}
    return len(layers) > 1


def _balance(one: Pair, other: Pair, swaps: Swaps, around: list[Pair]) -> float:
    """Return a score for the pairs ONE and OTHER against their swap; below zero, the swap is better. AROUND are certain
    pairs near them.

    10 if contents exclude the swap, -10 if they exclude the pairs as they are (`fit_only_so`). Else the sum for names
    (`by_names`: 4 if they exclude the swap, -4 if they exclude the pairs, else 1.5, 0 or -0.25), numbers (`by_numbers`:
    1.5, 0 or -1.5) and neighbours (`in_company`: 1, 0 or -1, three times as much between two blocks). If it is below
    zero, the votes of the orders (1 or -1 each) are added, a quarter of those of orders that are less than 0.85
    reliable in the whole model.
    """
    swap = crossed(one, other)
    if swaps.contents.fit_only_so(one, other):
        return 10.0
    if swaps.contents.fit_only_so(*swap):
        return -10.0
    score = {"sure": 4.0, "for": 1.5, "nothing": 0.0, "against": -0.25}[by_names(one, other)]
    if score < 0 and by_names(*swap) == "sure":
        score = -4.0
    score += 1.5 * by_numbers(one, other)
    weight = 1.0 if block_of(one[0].path) == block_of(other[0].path) else 3.0  # a block comes from one place
    loose = swaps.loose
    score += weight * (in_company(one, other, around, loose=loose) - in_company(*swap, around, loose=loose))
    if score >= 0:
        return score  # orders alone exchange nothing: they made these pairs
    believed = {order.name: 1.0 if swaps.overall[order.name] >= BELIEVED else 0.25 for order in swaps.orders}
    return score + sum(order.vote(one, other) * believed[order.name] for order in swaps.orders)
