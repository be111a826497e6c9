"""Use the certain pairs near two pairs to decide between the two and their swap: neighbours agree on both sides.

A batch norm is in one module with a convolution, has a similar name, has the same number, or runs directly after it. If
that is so on both sides, it tells the batch norm from another of equal shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import Any

from ..forms.branches import beside
from ..matching.series import series_of
from ..matching.units import Pair, Path, Unit, block_of, nearness, parts_around
from ..words import alike, consonants, numbers, shared, telling_words
from .names import list_places

#: So many certain pairs around a target are looked at.
ANCHORS = 12


def crossed(one: Pair, other: Pair) -> tuple[Pair, Pair]:
    """Return the pairs ONE and OTHER with their sources exchanged: (target of ONE, source of OTHER), (target of OTHER,
    source of ONE).
    """
    return (one[0], other[1]), (other[0], one[1])


def in_company(
    one: Pair, other: Pair, anchors: Anchors | Iterable[Pair], least: int = 1, *, loose: bool = False
) -> bool:
    """Return whether certain pairs near ONE and OTHER, two pairs of look-alikes, show that these two are right as they
    are, and not swapped.

    On each side, a certain pair may be nearer to ONE or to OTHER in several ways: by its path, shared words, a common
    series of numbers or equal numbers (`_nearer`), and in the target, within the block, by running directly before or
    after. Each way that decides in the target makes a vote with each way that decides in the source: for the two pairs
    if both are nearer to the same one of them, else against. (Nearer to ONE by path and word in the target, and by word
    in the source: two votes for.) True if the votes for, of all certain pairs together, are more than twice those
    against, and LEAST is reached. False at once if a certain pair is nearer by its path to one of the two in the
    target, and to the other in the source.

    Args:
        one, other: the two pairs.
        anchors: the certain pairs; of `Anchors`, only those that may be nearer to one of the two are looked at.
        least: how many certain pairs have to make at least one vote for the two, as one neighbour with an equal number
            may be chance. A certain pair counts twice if it is nearer to the same one by its path on both sides; or if
            it runs next to one of the two, is no parallel branch of ONE, and shares more words with the source of this
            one.
        loose: whether no order of all layers is reliable (`Swaps.loose`). Then two results have to be True: the one
            without LOOSE, and one for which less counts. For the latter, a common series makes a vote only with a
            common series, and numbers make none if the two are not in equally many lists (but for batch norms). Code
            may number all convolutions of a block in one series, and a layer of it is not nearer to these than one with
            a name, or in a list of its own.
    """
    if loose and not in_company(one, other, anchors, least):
        return False
    with_us = against = vouching = 0
    near = min(nearness(one[0], other[0]), max(len(block_of(one[0].path)), 1))
    for t, s in anchors.near(one[0], other[0]) if isinstance(anchors, Anchors) else anchors:
        # at the end of a block the next one begins, whatever that has to do with it
        next_to = _next_to(one[0], t) - _next_to(other[0], t) if nearness(one[0], t) >= near else 0
        here = [*_nearer(one[0], other[0], t, loose=loose), next_to]
        if not any(here):
            continue  # what is as near to both says nothing, and in a large block most of it is
        there = _nearer(one[1], other[1], s, loose=loose)
        if here[0] * there[0] < 0:
            return False
        votes = [
            a * b for i, a in enumerate(here) for j, b in enumerate(there) if not loose or (i == _LINE) == (j == _LINE)
        ]
        for_us = sum(vote > 0 for vote in votes)
        with_us += for_us
        against += sum(vote < 0 for vote in votes)
        # A layer that directly consumes its output counts as the layer that it is named after.
        called = next_to * there[1] > 0 and not beside(one[0], t)
        vouching += 2 if here[0] * there[0] > 0 or called else for_us > 0
    return with_us > 2 * against and vouching >= least


#: The place of a common series in the result of `_nearer`.
_LINE = 2


def _nearer(one: Unit, other: Unit, anchor: Unit, *, loose: bool) -> list[int]:
    """Return how much nearer ANCHOR is to ONE than to OTHER, less than 0 if it is nearer to OTHER, in four ways: by its
    path (`nearness`), shared words (`_kinship`), a common series (`_in_line`), and equal numbers (`counted_alike`). If
    LOOSE is true, the last is 0 if ONE and OTHER are not in equally many lists, unless they are batch norms.
    """
    ways = [nearness, _kinship, _in_line, counted_alike]
    found = [way(one, anchor) - way(other, anchor) for way in ways]
    of_its_own = len(list_places(one)) != len(list_places(other)) and "running_var" not in one.pieces
    return [*found[:-1], 0] if loose and of_its_own else found


def _kinship(one: Unit, other: Unit) -> int:
    """Return how many telling words of more than one letter the path of ONE shares with that of OTHER, whole or
    abbreviated.
    """
    return shared(_said(one.path), _said(other.path))


@cache
def _said(path: Path) -> frozenset[str]:
    return frozenset(word for word in telling_words(path) if len(word) > 1)


def _in_line(one: Unit, other: Unit) -> bool:
    """Return whether the paths of ONE and OTHER are equal apart from one number, which both have: `block.1.conv` and
    `block.2.conv`, or `block.1.bn1` and `block.1.bn2`.
    """
    return not _lines(one.path).isdisjoint(_lines(other.path))


@cache
def _lines(path: Path) -> frozenset[str]:
    return frozenset(row for row, _ in series_of(path))


def counted_alike(one: Unit, other: Unit) -> bool:
    """Return whether the components of their paths that are numbers are equal for ONE and OTHER, two units of one side,
    and there is at least one: `norms.3` and `convs.3` are layers of one block, if each kind has a list.

    If exactly one of them is a batch norm (has a running variance), another rule takes its place: all numbers in their
    paths are equal, and the last component of ONE has a number (`bn1` and `conv1`). False in any case if exactly one of
    them is in a list that the other side counts from the other end.
    """
    if bool(one.backwards) != bool(other.backwards):
        return False
    if ("running_var" in one.pieces) != ("running_var" in other.pieces):
        return one.numbers == other.numbers and numbers(one.path[-1:]) != ()
    return list_places(one) == list_places(other) != ()


def _next_to(one: Unit, other: Unit) -> bool:
    """Return whether ONE runs directly before or after OTHER, among the units of their side; False if that is not
    known.
    """
    return one.turn is not None and other.turn is not None and abs(one.turn - other.turn) == 1


class Anchors:
    """Certain pairs, of which `in_company` looks only at those that may be nearer to one of two units.

    In a block with a thousand layers these are a few, and all others cost time and decide nothing.
    Args:
        pairs: the certain pairs.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = list(pairs)
        self._having: dict[Hashable, list[int]] = defaultdict(list)
        self._words: tuple[dict[str, set[str]], dict[str, set[str]]] = defaultdict(set), defaultdict(set)

    def near(self, one: Unit, other: Unit) -> list[Pair]:
        """Return those of the certain pairs, in their order, whose targets may be nearer to ONE than to OTHER, or the
        reverse, which are two units of the target; all certain pairs if they are at most 32. A target may be nearer to
        one if it shares a feature (`_features`) with it that the other one lacks: the feature itself, an abbreviation
        of a word, or the next place in the order of execution. Where equal numbers may count for one of the two only
        (`counted_alike`), features of both count, too. So the result may have pairs that are nearer to neither.
        """
        if len(self._pairs) <= _ALL:
            return self._pairs
        if not self._having:
            self._index()
        wanted = _features(one) ^ _features(other)
        if one.backwards or other.backwards:  # equal places in lists may then count for one of the two only
            wanted |= _features(one) | _features(other)
        if ("running_var" in one.pieces) != ("running_var" in other.pieces):
            wanted.add(("list", list_places(one)))
        wanted |= {("numbers", unit.numbers) for unit in (one, other) if numbers(unit.path[-1:])}
        for kind, value in [*wanted]:
            if kind == "word":
                wanted |= {(kind, word) for word in self._begun_alike(value) if alike(value, word)}
            elif kind == "turn":
                wanted |= {(kind, value - 1), (kind, value + 1)}
        return [self._pairs[at] for at in sorted({at for one in wanted for at in self._having.get(one, ())})]

    def _index(self) -> None:
        """Fill the tables for `near`: feature -> places of the pairs whose targets have it; consonants of a word ->
        the words of the targets with these consonants, and the words whose consonants begin with these.
        """
        for at, (t, _) in enumerate(self._pairs):
            for word in _said(t.path):
                bare = consonants(word)
                self._words[0][bare].add(word)
                for length in range(1, len(bare)):
                    self._words[1][bare[:length]].add(word)
            for feature in _features(t):
                self._having[feature].append(at)

    def _begun_alike(self, word: str) -> Iterator[str]:
        """Yield each word of the certain pairs whose consonants (`consonants`) begin with those of WORD, or are the
        beginning of these. All abbreviations of WORD are among them, and all words that it abbreviates. A word may come
        twice.
        """
        bare = consonants(word)
        for length in range(1, len(bare) + 1):
            yield from self._words[0].get(bare[:length], ())
        yield from self._words[1].get(bare, ())


#: Of so few pairs all are looked at.
_ALL = 32


def _features(unit: Unit) -> set[tuple[str, Any]]:
    """Return (kind, value) for everything that can make UNIT near to another unit that has it, too: "path" for each
    beginning of its path, "word" for each telling word of more than one letter, "line" for each series, "list" for its
    places in lists and "numbers" for its numbers (if it has any), "turn" for its place in the order of execution (if
    known).
    """
    found: set[tuple[str, Any]] = {("path", unit.path[:at]) for at in range(1, len(unit.path) + 1)}
    found |= {("word", word) for word in _said(unit.path)}
    found |= {("line", row) for row in _lines(unit.path)}
    found |= {("list", list_places(unit)), ("numbers", unit.numbers)} - {("list", ()), ("numbers", ())}
    return found if unit.turn is None else found | {("turn", unit.turn)}


class Certain:
    """Pairs that the caller takes as certain (those without an open question, say), grouped by the blocks around their
    targets, from which `around` takes those near two pairs.

    Args:
        pairs: these pairs.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._held: dict[Path, list[Pair]] = defaultdict(list)
        for pair in pairs:
            for part in ((), *parts_around(pair[0].path)):
                self._held[part].append(pair)

    def around(self, one: Pair, other: Pair) -> list[Pair]:
        """Return certain pairs around the targets of ONE and OTHER, without these two: for each of the two targets, the
        first twelve in the innermost block around it that holds two or more certain pairs; the first twelve of all if
        none does.
        """
        found: dict[int, Pair] = {}
        for t, _ in (one, other):
            parts = ((), *parts_around(t.path))
            held = next((held for part in reversed(parts) if len(held := self._held[part]) > 1), self._held[()])
            found.update((id(pair), pair) for pair in held[:ANCHORS])
        return [pair for pair in found.values() if pair[0] not in (one[0], other[0])]
