"""What names and numbers show about two pairs and their swap."""

from __future__ import annotations

from functools import cache
from typing import Literal

from ..forms.branches import flows_into
from ..forms.projections import part_label
from ..matching.counting import row_of
from ..matching.evidence import Kind
from ..matching.units import Pair, Path, Unit, hard_conflict, label_of, series
from ..words import labels, shared, table, telling_words, words_of

#: They exclude the swap, speak for the pairs as they are, speak for the swap, or say nothing.
Said = Literal["sure", "for", "against", "nothing"]


def by_names(one: Pair, other: Pair, *, soft: bool = True) -> Said:
    """Return what the names show about the pairs ONE and OTHER and their swap.

    "sure": only these pairs are possible. "for": the names support them. "against": the names support the swap.
    "nothing".
    Args:
        one, other: the two pairs.
        soft: whether words that do not exclude each other count, too.
    """
    if one[0].told_by(Kind.NAME) and other[0].told_by(Kind.NAME):
        return "sure"
    if _parts_of_one(one, other):
        return "sure"
    if looked_up := _looked_up(one, other) or _looked_up(other, one):
        return "sure" if looked_up > 0 else "against"
    if any(place != other[0].settled.get(kinds, place) for kinds, place in one[0].settled.items()):
        return "sure"
    (t, s), (t2, s2) = one, other
    swapped = (hard_conflict(t.words, s2.words) is not None) + (hard_conflict(t2.words, s.words) is not None)
    as_is = (hard_conflict(t.words, s.words) is not None) + (hard_conflict(t2.words, s2.words) is not None)
    agreed = _agreed(t, s) + _agreed(t2, s2) - _agreed(t, s2) - _agreed(t2, s)
    if swapped > as_is or (swapped == as_is and agreed > 0):
        return "sure"
    if as_is > swapped or agreed < 0:
        return "against"
    said = soft_words(t, s) + soft_words(t2, s2) - soft_words(t, s2) - soft_words(t2, s)
    words = own_words(t, s, t2, s2) + own_words(t2, s2, t, s)
    crossed = own_words(t, s2, t2, s) + own_words(t2, s, t, s2)
    if words != crossed and said * (words - crossed) >= 0:
        if not _only_directions(one, other) and not _only_directions((t, s2), (t2, s)):
            return "sure" if words > crossed else "against"
        said += words - crossed
    if not soft:
        return "nothing"
    if said == 0:
        said = int(held_so(one, other))
    if said == 0:
        said = _counted_out(t, s) + _counted_out(t2, s2) - _counted_out(t, s2) - _counted_out(t2, s)
    if said == 0:
        said = _initials(t, s) + _initials(t2, s2) - _initials(t, s2) - _initials(t2, s)
    return "for" if said > 0 else "against" if said < 0 else "nothing"


#: Words that say where a layer stands in its block; an attention and a feed-forward network both have them.
_DIRECTIONS = frozenset({"in", "out"})


def _only_directions(one: Pair, other: Pair) -> bool:
    """Return whether the names of ONE and OTHER differ, on both sides, only by words that say where a layer stands
    ("in", "out").
    """
    (t, s), (t2, s2) = one, other
    own = (telling_words(t.path) - telling_words(t2.path)) & (telling_words(s.path) - telling_words(s2.path))
    own |= (telling_words(t2.path) - telling_words(t.path)) & (telling_words(s2.path) - telling_words(s.path))
    return bool(own) and own <= _DIRECTIONS


def _initials(t: Unit, s: Unit) -> bool:
    """Return whether the last name of one unit is made of the first letters of the words of the other: `TC`
    and `time_C`.
    """
    short, long = sorted((words_of(unit.path[-1:]) for unit in (t, s)), key=len)
    return len(short) == 1 < len(long) and short[0] == "".join(word[0] for word in long)


def _parts_of_one(one: Pair, other: Pair) -> bool:
    """Return whether ONE and OTHER are parts of one fused tensor, and their names say which part on both sides."""
    (t, s), (t2, s2) = one, other
    if t.main.entry.key != t2.main.entry.key and s.main.entry.key != s2.main.entry.key:
        return False
    said = part_label(t.path), part_label(t2.path)
    return None not in said and said[0] != said[1] and said == (part_label(s.path), part_label(s2.path))


def _looked_up(one: Pair, other: Pair) -> int:
    """Return 1 if the model looks up rows of the first target, and only its source is called a table; -1 if only the
    source of the other target is, with which the model multiplies; else 0.
    """
    hows = [pair[0].main.entry.how for pair in (one, other)]
    if hows[0] != "embedding" or hows[1] in ("", "embedding"):
        return 0
    called = [not table().lookups.isdisjoint(pair[1].words) for pair in (one, other)]
    return called[0] - called[1]


def held_so(one: Pair, other: Pair) -> bool:
    """Return whether the targets of ONE and OTHER hold different tensors, and each holds the same as its source: a
    weight, or a weight and a bias.

    A layer with a bias does not become one without. This counts only if the output of one layer flows into the other:
    of two layers whose outputs are added, either may hold the bias.
    """
    (t, s), (t2, s2) = one, other
    if not (flows_into(t, t2) or flows_into(t2, t)):
        return False
    return t.pieces.keys() == s.pieces.keys() != t2.pieces.keys() == s2.pieces.keys()


def _agreed(t: Unit, s: Unit) -> int:
    """Return in how many groups of exclusive words (encoder or decoder) the names of T and S have the same word."""
    return len(labels(t.words, hard=True).items() & labels(s.words, hard=True).items())


def soft_words(t: Unit, s: Unit) -> int:
    """Return in how many groups of other words the names of T and S agree, minus the groups in which they disagree."""
    own, theirs = labels(t.words, hard=False), labels(s.words, hard=False)
    return sum(1 if own[group] == theirs[group] else -1 for group in own.keys() & theirs.keys())


#: Groups of words that say where a layer stands, and which an order may contradict.
_PLACES = frozenset({"position", "half"})


def say_the_same(one: Pair, other: Pair) -> bool:
    """Return whether one group of words names all four layers, alike in each pair, and the two pairs differently.

    For example, gate and up on both sides. No other group may contradict it. Words for places do not count: a norm
    after one layer is the norm before the next.
    """
    (t, s), (t2, s2) = ([labels(unit.words, hard=False) for unit in pair] for pair in (one, other))
    both = (t.keys() & s.keys() & t2.keys() & s2.keys()) - _PLACES
    told = [group for group in both if t[group] != t2[group] or s[group] != s2[group]]
    return bool(told) and all(t[group] == s[group] and t2[group] == s2[group] for group in told)


def own_words(a: Unit, b: Unit, not_a: Unit, not_b: Unit) -> int:
    """Return how many words the names of A and B share that neither the name of NOT_A nor that of NOT_B has."""
    own = telling_words(a.path) - telling_words(not_a.path)
    return shared(own, telling_words(b.path) - telling_words(not_b.path))


def word_more(one: Path, other: Path) -> str | None:
    """Return the word by which the longer of the names ONE and OTHER is the shorter one with one word more, in front of
    something: "temporal" for `norm1` and `temporal_norm1`. None if they differ by something else, or by a number.
    """
    short, long = sorted((words_of(one), words_of(other)), key=len)
    at = next((at for at, word in enumerate(long[:-1]) if short[at : at + 1] != (word,)), None)
    return long[at] if at is not None and short == (*long[:at], *long[at + 1 :]) and long[at].isalpha() else None


def _counted_out(t: Unit, s: Unit) -> bool:
    """Return whether one name has a word for its number, and the other has that number: `second_bn` and `bn2`."""
    (own, spelt), (theirs, spelt_there) = _which(t), _which(s)
    return own is not None and own == theirs and (spelt or spelt_there)


def _which(unit: Unit) -> tuple[int | None, bool]:
    """Return (number of UNIT by the end of its name, counted from one, whether it is a word ("second")); the number is
    None if the name has none.
    """
    name = unit.words[-len(words_of(unit.path[-1:])) :]
    said = next((word for word in reversed(name) if word.isdecimal() or word in table().ordinals), None)
    if said is None:
        return None, False
    return (int(said), False) if said.isdecimal() else (table().ordinals[said], True)


def by_convention(one: Pair, other: Pair) -> bool:
    """Return whether one side names the two layers gate and up, and the other side does not say which is which."""
    own, theirs = ({label_of(one[side], "neck"), label_of(other[side], "neck")} for side in (0, 1))
    both = {"gate", "up"}
    return (own == both) != (theirs == both)


def by_numbers(one: Pair, other: Pair) -> int:
    """Return 1 if both sides number the pairs ONE and OTHER, each in one list, in the direction in which these lists
    are counted; -1 if in the other direction, with steps of equal length or in lists that are known to be counted from
    opposite ends; else 0.
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
    """Return the difference of the first numbers in which the paths of ONE and OTHER differ; 0 if they have
    equal numbers.
    """
    return next((b - a for a, b in zip(one.numbers, other.numbers, strict=False) if a != b), 0)


def in_equal_places(one: Pair, other: Pair) -> bool:
    """Return whether each pair has equal numbers in lists on both sides, and would not have them if the two
    were swapped.
    """
    places = [[list_places(unit) for unit in pair] for pair in (one, other)]
    same = all(t == s for t, s in places) and not any(unit.backwards for unit in (one[0], other[0]))
    return same and places[0] != places[1]


def list_places(unit: Unit) -> tuple[str, ...]:
    """Return the numbers (as text) that are components of the path of UNIT: its places in the lists around it."""
    return _decimals(unit.path)


@cache
def _decimals(path: Path) -> tuple[str, ...]:
    return tuple(component for component in path if component.isdecimal())
