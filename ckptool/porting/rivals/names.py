"""What names and numbers show about two pairs and their swap."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

from ..forms.branches import flows_into
from ..forms.fusing.projections import part_label
from ..matching.counting import row_of
from ..matching.evidence import Kind
from ..matching.units import Pair, Path, Unit, hard_conflict, label_of, series
from ..words import label, labels, shared, table, telling_words, words_of

#: They exclude the swap, speak for the pairs as they are, speak for the swap, or say nothing.
Said = Literal["sure", "for", "against", "nothing"]


def by_names(one: Pair, other: Pair, *, soft: bool = True, settled: bool = True) -> Said:
    """Return what the names show about the pairs ONE and OTHER and their swap: "sure" (only these pairs are possible),
    "for" (they support them), "against" (they support the swap) or "nothing".

    The first of these that decides counts:

    1. strong evidence (`_decided`), such as words that exclude each other (encoder and decoder): "sure" or "against";
    2. telling words (not numbers, nor words such as "norm" or "layers") that a target and a source share and the other
       pair lacks (`own_words`): "sure" or "against". This is passed over if the labels of 3. say the opposite. If "in"
       and "out" are the only such words, they are added to the labels of 3. instead;
    3. labels of words that do not exclude each other (`soft_words`: gate and up, first and second half), then tensors
       (`held_so`), words for numbers (`_counted_out`), initials (`_initials`): "for" or "against".
    Args:
        one, other: the two pairs.
        soft: whether 3. counts.
        settled: whether what a rule decided for a whole module counts (`Unit.settled`).
    """
    if decided := _decided(one, other, settled=settled):
        return "sure" if decided > 0 else "against"
    (t, s), (t2, s2) = one, other
    said = _lead(soft_words, one, other)
    own = own_words(t, s, t2, s2) + own_words(t2, s2, t, s) - own_words(t, s2, t2, s) - own_words(t2, s, t, s2)
    if own and said * own >= 0:
        if not _only_directions(one, other):
            return "sure" if own > 0 else "against"
        said += own
    if not soft:
        return "nothing"
    said = said or int(held_so(one, other)) or _lead(_counted_out, one, other) or _lead(_initials, one, other)
    return "for" if said > 0 else "against" if said < 0 else "nothing"


def _decided(one: Pair, other: Pair, *, settled: bool) -> int:
    """Return more than 0 if strong evidence excludes the swap of ONE and OTHER, less than 0 if it is for the swap, 0 if
    there is none. The first of these that decides counts, the third only if SETTLED:

      - both pairs were made by equal names, or they are parts of one tensor (`_parts_of_one`): more than 0;
      - words for tables (`_looked_up`): either;
      - one rule for a whole module gave the two targets different places there (`Unit.settled`): more than 0;
      - names that exclude each other (`hard_conflict`): more than 0 if more pairs would have them after the swap, less
        than 0 if fewer;
      - equal labels of words that exclude each other (`_agreed`): more than 0 if the pairs would have fewer after the
        swap, less if more.
    """
    if (one[0].told_by(Kind.NAME) and other[0].told_by(Kind.NAME)) or _parts_of_one(one, other):
        return 1
    if looked_up := _looked_up(one, other) or _looked_up(other, one):
        return looked_up
    if settled and any(place != other[0].settled.get(kinds, place) for kinds, place in one[0].settled.items()):
        return 1
    excluding = _lead(lambda t, s: hard_conflict(t.words, s.words) is not None, one, other)
    return -excluding or _lead(_agreed, one, other)


def _lead(score: Callable[[Unit, Unit], int], one: Pair, other: Pair) -> int:
    """Return the sum of SCORE(target, source) of the pairs ONE and OTHER, minus that of the pairs after their swap:
    more than 0 if the pairs have the larger scores as they are.
    """
    (t, s), (t2, s2) = one, other
    return score(t, s) + score(t2, s2) - score(t, s2) - score(t2, s)


#: Words that say where a layer stands in its block; an attention and a feed-forward network both have them.
_DIRECTIONS = frozenset({"in", "out"})


def _only_directions(one: Pair, other: Pair) -> bool:
    """Return whether "in" and "out", which say where a layer is in its block, are the only words that tell the pairs
    ONE and OTHER apart: as they are, or with their sources exchanged (one of the two is enough). A word tells two pairs
    apart if the target and the source of one pair have it, and neither unit of the other pair does. False if no word
    tells them apart.
    """
    sides = [[telling_words(pair[side].path) for pair in (one, other)] for side in (0, 1)]
    (t, t2), (s, s2) = ((a - b, b - a) for a, b in sides)
    return any(words and words <= _DIRECTIONS for words in ((t & s) | (t2 & s2), (t & s2) | (t2 & s)))


def _initials(t: Unit, s: Unit) -> bool:
    """Return whether the last name of one of T and S is one word, made of the first letters of the words of the other's
    last name: `TC` and `time_C`.
    """
    short, long = sorted((words_of(unit.path[-1:]) for unit in (t, s)), key=len)
    return len(short) == 1 < len(long) and short[0] == "".join(word[0] for word in long)


def _parts_of_one(one: Pair, other: Pair) -> bool:
    """Return whether the targets (or the sources) of ONE and OTHER were one fused tensor, and all four names say which
    part (q, k, v, gate or up) a unit is: target and source of each pair the same part, the two pairs different parts.
    """
    (t, s), (t2, s2) = one, other
    if t.main.entry.key != t2.main.entry.key and s.main.entry.key != s2.main.entry.key:
        return False
    said = part_label(t.path), part_label(t2.path)
    return None not in said and said[0] != said[1] and said == (part_label(s.path), part_label(s2.path))


def _looked_up(one: Pair, other: Pair) -> int:
    """Return 1 if words for tables support the pairs ONE and OTHER as they are, -1 if they support the swap, 0 if they
    say nothing. They count if the model looks up rows of the target of ONE (an embedding), and is known to use the
    target of OTHER in another way: 1 if only the source of ONE has a word for a table in its name, -1 if only that of
    OTHER has; 0 if both or neither have.
    """
    hows = [pair[0].main.entry.how for pair in (one, other)]
    if hows[0] != "embedding" or hows[1] in ("", "embedding"):
        return 0
    called = [not table().lookups.isdisjoint(pair[1].words) for pair in (one, other)]
    return called[0] - called[1]


def held_so(one: Pair, other: Pair) -> bool:
    """Return whether the tensors of the units support the pairs ONE and OTHER: in each pair, target and source hold
    tensors of the same roles (weight, bias …), the two pairs hold different ones (a weight; a weight and a bias), and
    the output of one of the two targets flows into the other.

    A layer with a bias does not become one without. Of two layers whose outputs are added, either may hold the bias.
    """
    (t, s), (t2, s2) = one, other
    if not (flows_into(t, t2) or flows_into(t2, t)):
        return False
    return t.pieces.keys() == s.pieces.keys() != t2.pieces.keys() == s2.pieces.keys()


def _agreed(t: Unit, s: Unit) -> int:
    """Return in how many groups of words that exclude each other (such as encoder and decoder) the names of T and S
    have the same label.
    """
    return len(labels(t.words, hard=True).items() & labels(s.words, hard=True).items())


def soft_words(t: Unit, s: Unit) -> int:
    """Return in how many groups of words that do not exclude each other the names of T and S have the same label, minus
    in how many they have different labels.
    """
    own, theirs = labels(t.words, hard=False), labels(s.words, hard=False)
    return sum(1 if own[group] == theirs[group] else -1 for group in own.keys() & theirs.keys())


#: Groups of words that say where a layer stands, and which an order may contradict.
_PLACES = frozenset({"position", "half"})


def say_the_same(one: Pair, other: Pair) -> bool:
    """Return whether the words of both sides tell the pairs ONE and OTHER apart in the same way, such as gate and up on
    both sides.

    The groups that count are those of words that do not exclude each other, in which all four names have a label, and
    the labels of ONE and OTHER differ on a side. True if there is such a group, and in all of them the target and the
    source of each pair have equal labels. Words for places do not count: a norm after one layer is before the next.
    """
    (t, s), (t2, s2) = ([labels(unit.words, hard=False) for unit in pair] for pair in (one, other))
    both = (t.keys() & s.keys() & t2.keys() & s2.keys()) - _PLACES
    told = [group for group in both if t[group] != t2[group] or s[group] != s2[group]]
    return bool(told) and all(t[group] == s[group] and t2[group] == s2[group] for group in told)


def own_words(a: Unit, b: Unit, not_a: Unit, not_b: Unit) -> int:
    """Return how many telling words the paths of A and B share, whole or abbreviated, without the telling words that A
    has in common with NOT_A, and those that B has in common with NOT_B.
    """
    own = telling_words(a.path) - telling_words(not_a.path)
    return shared(own, telling_words(b.path) - telling_words(not_b.path))


def word_more(one: Path, other: Path) -> str | None:
    """Return the word that only the longer of the names ONE and OTHER has, if they are equal without this word:
    "temporal" for `norm1` and `temporal_norm1`. None if they are equal or differ in more than one word, or if the word
    is the last one or has a digit.
    """
    short, long = sorted((words_of(one), words_of(other)), key=len)
    at = next((at for at, word in enumerate(long[:-1]) if short[at : at + 1] != (word,)), None)
    return long[at] if at is not None and short == (*long[:at], *long[at + 1 :]) and long[at].isalpha() else None


def _counted_out(t: Unit, s: Unit) -> bool:
    """Return whether the last numbers in the last names of T and S are equal, and at least one of them is a word:
    `second_bn` and `bn2`.
    """
    (own, spelt), (theirs, spelt_there) = _which(t), _which(s)
    return own is not None and own == theirs and (spelt or spelt_there)


def _which(unit: Unit) -> tuple[int | None, bool]:
    """Return (the last number in the last name of UNIT, whether it is a word, such as "second"); (None, False) if the
    name has none.
    """
    name = unit.words[-len(words_of(unit.path[-1:])) :]
    said = next((word for word in reversed(name) if word.isdecimal() or word in table().ordinals), None)
    if said is None:
        return None, False
    return (int(said), False) if said.isdecimal() else (table().ordinals[said], True)


def by_convention(one: Pair, other: Pair) -> bool:
    """Return whether the names of exactly one side say which of ONE and OTHER is the gate and which is "up"; those of
    the other side do not.
    """
    own, theirs = ({label_of(one[side], "neck"), label_of(other[side], "neck")} for side in (0, 1))
    both = {"gate", "up"}
    return (own == both) != (theirs == both)


def gate_by_name(one: Pair, other: Pair) -> bool:
    """Return whether one side shows only by a name which of ONE and OTHER is the gate, and may mean the other one: code
    that adds a layer to a feed-forward network (`fc1`, `fc2`) may call that layer the gate, and pass the first layer of
    the network through the activation, as in RetNet.

    The names of this side are "gate" and a word for the first layer of such a network that does not also mean the value
    of a gate (`fc1`, but not `up_proj`), in one module; its forward pass does not show which is the gate. That of the
    other side does, and its gate goes through no sigmoid. False if the layer called gate has the same name on both
    sides.
    """
    for side in (0, 1):
        here, there = ([pair[at] for pair in (one, other)] for at in (side, 1 - side))
        said = {label(table().group("neck"), words_of(unit.path[-1:])): unit for unit in here}
        facts = [unit.main.entry.facts for unit in (*here, *there)]
        if said.keys() != {"gate", "up"} or part_label(said["up"].path) == "up" or facts[0].beside_gate:
            continue
        shown = {fact.beside_gate for fact in facts[2:]} == {"gate", "up"} and not facts[2].by_sigmoid
        partner = there[here.index(said["gate"])]
        if shown and here[0].path[:-1] == here[1].path[:-1] and partner.path[-1:] != said["gate"].path[-1:]:
            return True
    return False


def by_numbers(one: Pair, other: Pair) -> int:
    """Return 1 if the numbers in the paths of ONE and OTHER are in the same order on both sides (`h.1`, `h.4` and
    `l.2`, `l.7`), -1 if in the opposite order. In a list that the sides are known to count from opposite ends
    (`Unit.backwards`), it is 1 for the opposite order and -1 for the same.

    0 if the two paths of a side differ in more than numbers, or have equal numbers. 0, too, for the opposite order in
    a list that is not known to be counted so, unless the first differing numbers (`step`) are equally far apart.
    """
    t, t2, s, s2 = one[0], other[0], one[1], other[1]
    if series(t) != series(t2) or series(s) != series(s2):
        return 0
    if t.numbers == t2.numbers or s.numbers == s2.numbers:
        return 0
    from_the_end = row_of(t, t2) in t.backwards and row_of(s, s2) in s.backwards
    if ((t.numbers < t2.numbers) == (s.numbers < s2.numbers)) != from_the_end:
        return 1
    if from_the_end:
        return -1
    # sizes and scales are numbers, too, and are no places: only steps of equal length are counted backwards
    return -1 if step(t, t2) == -step(s, s2) else 0


def step(one: Unit, other: Unit) -> int:
    """Return the number of OTHER minus that of ONE, at the first place at which the numbers of their paths differ; 0 if
    there is none.
    """
    return next((b - a for a, b in zip(one.numbers, other.numbers, strict=False) if a != b), 0)


def in_equal_places(one: Pair, other: Pair) -> bool:
    """Return whether the target and the source of each pair have equal places in lists (`list_places`), and those of
    ONE and OTHER differ. False if a target is in a list that the source counts from the other end.
    """
    places = [[list_places(unit) for unit in pair] for pair in (one, other)]
    same = all(t == s for t, s in places) and not any(unit.backwards for unit in (one[0], other[0]))
    return same and places[0] != places[1]


def list_places(unit: Unit) -> tuple[str, ...]:
    """Return the components of the path of UNIT that are numbers, as text, in order: its places in the lists around it.
    () if there are none.
    """
    return _decimals(unit.path)


@cache
def _decimals(path: Path) -> tuple[str, ...]:
    return tuple(component for component in path if component.isdecimal())
