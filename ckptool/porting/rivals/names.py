"""What names and numbers show about two pairs and their swap."""

from __future__ import annotations

from functools import cache
from typing import Literal

from ..forms.branches import flows_into
from ..forms.fusing.projections import part_label
from ..matching.counting import row_of
from ..matching.evidence import Kind
from ..matching.units import Pair, Path, Unit, hard_conflict, label_of, series
from ..words import labels, shared, table, telling_words, words_of

#: They exclude the swap, speak for the pairs as they are, speak for the swap, or say nothing.
Said = Literal["sure", "for", "against", "nothing"]


def by_names(one: Pair, other: Pair, *, soft: bool = True) -> Said:
    """Return what the names show about the pairs ONE and OTHER and their swap: "sure" (only these pairs are possible),
    "for" (they support them), "against" (they support the swap) or "nothing".

    The first of these that decides gives "sure" or "against": equal names; parts of one tensor; words for tables;
    places that other blocks settled; words of which one excludes another, or their agreement; words that only the two
    of a pair share, unless these are only "in" and "out", or words that do not exclude each other say the opposite.
    Then the first of these gives "for" or "against": words that do not exclude each other (with the shared ones); the
    tensors; words for numbers; initials.
    Args:
        one, other: the two pairs.
        soft: whether the last four count.
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
    """Return whether the words that both units of ONE have and no unit of OTHER has, or the reverse, are only "in" and
    "out", which say where a layer is in its block. False if there are no such words.
    """
    (t, s), (t2, s2) = one, other
    own = (telling_words(t.path) - telling_words(t2.path)) & (telling_words(s.path) - telling_words(s2.path))
    own |= (telling_words(t2.path) - telling_words(t.path)) & (telling_words(s2.path) - telling_words(s.path))
    return bool(own) and own <= _DIRECTIONS


def _initials(t: Unit, s: Unit) -> bool:
    """Return whether the last name of one of T and S is one word, made of the first letters of the words of the other's
    last name: `TC` and `time_C`.
    """
    short, long = sorted((words_of(unit.path[-1:]) for unit in (t, s)), key=len)
    return len(short) == 1 < len(long) and short[0] == "".join(word[0] for word in long)


def _parts_of_one(one: Pair, other: Pair) -> bool:
    """Return whether the targets or the sources of ONE and OTHER are parts of one fused tensor, and their names say on
    both sides which part (q, k, v, gate or up) each is, alike in each pair.
    """
    (t, s), (t2, s2) = one, other
    if t.main.entry.key != t2.main.entry.key and s.main.entry.key != s2.main.entry.key:
        return False
    said = part_label(t.path), part_label(t2.path)
    return None not in said and said[0] != said[1] and said == (part_label(s.path), part_label(s2.path))


def _looked_up(one: Pair, other: Pair) -> int:
    """Return 1 if the model looks up rows of the target of ONE and uses that of OTHER otherwise, and only the source of
    ONE has a word for a table in its name; -1 if only that of OTHER has; else 0.
    """
    hows = [pair[0].main.entry.how for pair in (one, other)]
    if hows[0] != "embedding" or hows[1] in ("", "embedding"):
        return 0
    called = [not table().lookups.isdisjoint(pair[1].words) for pair in (one, other)]
    return called[0] - called[1]


def held_so(one: Pair, other: Pair) -> bool:
    """Return whether the targets of ONE and OTHER hold different tensors by their roles (a weight; a weight and a
    bias), and each holds the same as its source.

    A layer with a bias does not become one without. This counts only if the output of one layer flows into the other:
    of two layers whose outputs are added, either may hold the bias.
    """
    (t, s), (t2, s2) = one, other
    if not (flows_into(t, t2) or flows_into(t2, t)):
        return False
    return t.pieces.keys() == s.pieces.keys() != t2.pieces.keys() == s2.pieces.keys()


def _agreed(t: Unit, s: Unit) -> int:
    """Return in how many groups of words that exclude each other (encoder or decoder) the names of T and S have the
    same label.
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
    """Return whether the words of both sides say which of the pairs ONE and OTHER is which, such as gate and up on both
    sides.

    What counts are the groups of words that do not exclude each other in which all four names have a label, and the
    labels of ONE and OTHER differ on a side. There has to be one, and in all of them target and source of each pair
    need one label. Words for places do not count: a norm after one layer is the norm before the next.
    """
    (t, s), (t2, s2) = ([labels(unit.words, hard=False) for unit in pair] for pair in (one, other))
    both = (t.keys() & s.keys() & t2.keys() & s2.keys()) - _PLACES
    told = [group for group in both if t[group] != t2[group] or s[group] != s2[group]]
    return bool(told) and all(t[group] == s[group] and t2[group] == s2[group] for group in told)


def own_words(a: Unit, b: Unit, not_a: Unit, not_b: Unit) -> int:
    """Return how many telling words of the path of A, which that of NOT_A has not, are in the path of B and not in that
    of NOT_B, whole or abbreviated.
    """
    own = telling_words(a.path) - telling_words(not_a.path)
    return shared(own, telling_words(b.path) - telling_words(not_b.path))


def word_more(one: Path, other: Path) -> str | None:
    """Return the word, not the last, by which the longer of the names ONE and OTHER is the shorter one with one word
    more: "temporal" for `norm1` and `temporal_norm1`. None if they differ by something else, or by a number.
    """
    short, long = sorted((words_of(one), words_of(other)), key=len)
    at = next((at for at, word in enumerate(long[:-1]) if short[at : at + 1] != (word,)), None)
    return long[at] if at is not None and short == (*long[:at], *long[at + 1 :]) and long[at].isalpha() else None


def _counted_out(t: Unit, s: Unit) -> bool:
    """Return whether the last names of T and S have the same number, and at least one of them has it as a word:
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
    """Return whether exactly one side names the two layers gate and up by its words, so that the other side does not
    say which is which.
    """
    own, theirs = ({label_of(one[side], "neck"), label_of(other[side], "neck")} for side in (0, 1))
    both = {"gate", "up"}
    return (own == both) != (theirs == both)


def by_numbers(one: Pair, other: Pair) -> int:
    """Return 1 if the numbers of the pairs ONE and OTHER are in the same order on both sides (in the opposite order, in
    lists that are known to be counted from opposite ends), -1 if in the other order, else 0.

    It is 0 if the two paths of a side differ in more than numbers, or have equal numbers. Without known lists, -1 needs
    a difference of equal size on both sides.
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
    """Return the first number of OTHER that differs from that of ONE at its place, minus that of ONE; 0 if there is
    none.
    """
    return next((b - a for a, b in zip(one.numbers, other.numbers, strict=False) if a != b), 0)


def in_equal_places(one: Pair, other: Pair) -> bool:
    """Return whether each of the two pairs has equal numbers as components of both its paths, and the two pairs do not
    have the same. False if a target is in a list that the source counts from the other end.
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
