"""Relations that pairs show, and numbered names: a rule that some members of a series show holds for the others.

A path belongs to a series for each of its numbers: `blocks.3.norm1` to `blocks.{}.norm1` with 3, and to
`blocks.3.norm{}` with 1. If two members of a series are paired with two of another series, the rule between the numbers
is known: equal, shifted, or counted from the other end. A relation takes places of the target to one place of the
source each, and back. Code builds blocks from a class, so a relation from one block holds in the others. Callers decide
what a place is: a path without its numbers, a name with its neighbours, a path inside of a module of a class.

Words and numbers that tell look-alikes apart are translated in the same way: if `lateral_fine` is known to be `output1`
and `lateral_mid` to be `output2`, these mean the same for `smooth_fine` and `merge1`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from ..words import words_of

#: A number in a path.
NUMBER = re.compile(r"\d{1,8}")

#: A path with a hole in place of one of its numbers.
Series = str


def series_of(path: Sequence[str]) -> Iterator[tuple[Series, int]]:
    """Yield (series, number) for each number in PATH: `blocks.3.norm1` gives ("blocks.{}.norm1", 3) and
    ("blocks.3.norm{}", 1).
    """
    text = ".".join(path)
    for found in NUMBER.finditer(text):
        yield f"{text[: found.start()]}{{}}{text[found.end() :]}", int(found[0])


def members_of(paths: Iterable[Sequence[str]]) -> dict[Series, set[int]]:
    """Return series -> the numbers that PATHS have in it: {"h.{}": {0, 1}} for `h.0` and `h.1`."""
    found: dict[Series, set[int]] = defaultdict(set)
    for path in paths:
        for series, number in series_of(path):
            found[series].add(number)
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """A rule from the numbers of a series of the target to those of `source`, a series of the source: `sign * n +
    offset`, with the sign 1 or -1.
    """

    source: Series
    sign: int
    offset: int

    def __call__(self, number: int) -> int:
        """Return the number in the source's series for NUMBER in the target's."""
        return self.sign * number + self.offset


class Ways:
    """The rules by which numbers of series of the target become numbers of series of the source, as known pairs show
    them: `h.2.a` is `layers.3.b` if `h.0.a` is `layers.1.b` and `h.1.a` is `layers.2.b`.

    The rule of a series of the target is known if at least two of its members are paired with members of one series of
    the source, all of these by one rule (`Way`), and no other rule was found for either of the two series.
    Args:
        pairs: paths of pairs, (of the target, of the source).
        members: series -> its numbers (`members_of`), of the target and of the source, for rules that have to hold for
            all members: the source has every number that the rule gives. Without it, two blocks that each begin a stage
            (`res.2` is `layer2.0`, `res.3` is `layer3.0`) would show a rule for the others.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
        members: tuple[Mapping[Series, Collection[int]], Mapping[Series, Collection[int]]] | None = None,
    ) -> None:
        votes: dict[tuple[Series, Series], dict[int, int]] = defaultdict(dict)
        broken: set[tuple[Series, Series]] = set()
        for target, source in pairs:
            theirs = list(series_of(source))
            for own, number in series_of(target):
                for series, other in theirs:
                    if votes[(own, series)].setdefault(number, other) != other:
                        broken.add((own, series))
        ways = {both: way for both, numbers in votes.items() if both not in broken and (way := _rule(both[1], numbers))}
        if members is not None:
            held, there = members
            ways = {
                (own, series): way
                for (own, series), way in ways.items()
                if {way(number) for number in held[own]} <= {*there[series]}
            }
        self._known = {own: ways[own, series] for own, series in Relation(ways).sure().items()}
        self._sources = {way.source for way in self._known.values()}

    def label(self, path: Sequence[str], is_target: bool) -> tuple[Series, int] | None:
        """Return (series of the source, number there) for PATH, equal for a target and a source that correspond.

        IS_TARGET says that PATH is of the target: then it is the result of the rule of the first series of PATH that
        has a known rule. For a path of the source, it is the first series of PATH to which a known rule leads, and the
        path's own number in it. None if PATH has no such series.
        """
        for row, number in series_of(path):
            if is_target and (way := self._known.get(row)) is not None:
                return way.source, way(number)
            if not is_target and row in self._sources:
                return row, number
        return None

    def beside(self, own: Series, theirs: Series) -> set[tuple[int, int]]:
        """Return the rules (sign, offset) of all known series whose modules (`parent`) are those of the series OWN and
        THEIRS.
        """
        both = parent(own), parent(theirs)
        return {(w.sign, w.offset) for row, w in self._known.items() if (parent(row), parent(w.source)) == both}


def _rule(series: Series, numbers: dict[int, int]) -> Way | None:
    """Return the rule to SERIES, a series of the source, that all NUMBERS (number n of the target -> number of the
    source) follow: n + d with one d, or else d - n. None if they follow neither, if there are fewer than two, or if two
    numbers of the source are equal.
    """
    if len(numbers) < 2 or len(set(numbers.values())) < len(numbers):
        return None
    for sign in (1, -1):
        offsets = {other - sign * number for number, other in numbers.items()}
        if len(offsets) == 1:
            return Way(series, sign, next(iter(offsets)))
    return None


def common(paths: Iterable[Sequence[str]]) -> tuple[Series, tuple[int, ...]] | None:
    """Return (the one series that all PATHS belong to, the number of each path in it, in their order), if PATHS differ
    in exactly one number: (`h.{}.a`, (0, 1)) for `h.0.a` and `h.1.a`. A single path has to have exactly one number.

    None if they have no series in common, if they have several, if two paths have the same number, or without paths.
    """
    every = [dict(series_of(path)) for path in paths]
    shared = set.intersection(*map(set, every)) if every else set()
    if len(shared) != 1:
        return None
    series = shared.pop()
    numbers = tuple(own[series] for own in every)
    return (series, numbers) if len(set(numbers)) == len(numbers) else None


def parent(series: Series) -> str:
    """Return the path of the module around the list of SERIES: `blocks` for `blocks.norm{}`, and also for
    `blocks.list.{}.a`; "" for `blocks.{}.norm1`, whose list is in the outermost module.
    """
    components = series.split(".")
    place = next(i for i, component in enumerate(components) if "{}" in component)
    head = ".".join(components[:place])
    return head if components[place] != "{}" else ".".join(components[: max(place - 1, 0)])


P = TypeVar("P", bound=Hashable)


class Relation(Generic[P]):
    """Notes which places of the target correspond to which places of the source, and which of these have no exception.

    A place is any value that describes where a unit is, such as the path of its module without numbers.
    Args:
        couples: the places of pairs, as (place of the target, place of the source).
    """

    def __init__(self, couples: Iterable[tuple[P, P]] = ()) -> None:
        self._there: dict[P, set[P]] = defaultdict(set)
        self._back: dict[P, set[P]] = defaultdict(set)
        for own, theirs in couples:
            self.add(own, theirs)

    def add(self, own: P, theirs: P) -> None:
        """Note the place OWN of the target and THEIRS of the source of one pair."""
        self._there[own].add(theirs)
        self._back[theirs].add(own)

    def sure(self) -> dict[P, P]:
        """Return place of the target -> place of the source, for places that always go together: neither was noted with
        any other.
        """
        return {own: there for own, (there, *more) in self._there.items() if not more and len(self._back[there]) == 1}

    def holds(self) -> bool:
        """Return whether all places of the target are in `sure`; True if none was noted. If not, the modules of the two
        sides are not of one class.
        """
        return len(self.sure()) == len(self._there)

    def labels(self, targets: Mapping[int, P], sources: Mapping[int, P]) -> dict[int, P]:
        """Return `id` of a unit -> label, which is the place of the source: for one of TARGETS, the place that always
        goes together with its own (`sure`); for one of SOURCES, its own place, if `sure` leads to it. Other units are
        left out. The label is equal for a target and a source that correspond.

        Args:
            targets, sources: `id` of a unit -> its place.
        """
        sure = self.sure()
        images = set(sure.values())
        found = {target: sure[place] for target, place in targets.items() if place in sure}
        return found | {source: place for source, place in sources.items() if place in images}


Path = tuple[str, ...]


def translation(
    own: Sequence[Path], theirs: Sequence[Path], known: Iterable[tuple[Path, Path]]
) -> dict[Path, Path] | None:
    """Return the partners of several look-alikes by the one word in which the paths of each side differ: if known pairs
    are `x.left` and `y.l`, `x.right` and `y.r`, then `a.left` is the partner of `b.l`, and `a.right` that of `b.r`.

    The known pairs that show a translation have equal paths but for these words (`x.left`, `x.right` and `y.l`, `y.r`).
    There has to be one for each word of the target, each with a word of the source of its own.
    Args:
        own, theirs: paths of equally many parts of each side.
        known: paths of pairs, (of the target, of the source).
    Returns:
        Path of the target -> path of the source, for all of OWN. None if the paths of a side do not differ in exactly
        one word (`_apart`), if these words are numbers on both sides, or if the known pairs show no translation of all
        words, or several different ones. Known pairs (equal but for these words) that translate only some of the
        words, or one word in two ways, do not count.
    """
    ours, others = _apart(own), _apart(theirs)
    if ours is None or others is None or all(word.isdecimal() for word in (*ours, *others)):
        return None
    votes: dict[tuple[Path, Path], Relation[str]] = defaultdict(Relation)
    for target, source in known:
        a, b = words_of(target), words_of(source)
        for i, j in product(range(len(a)), range(len(b))):
            if a[i] in ours and b[j] in others:
                votes[(*a[:i], "", *a[i + 1 :]), (*b[:j], "", *b[j + 1 :])].add(a[i], b[j])
    said = {tuple(sorted(met.sure().items())) for met in votes.values() if met.holds() and len(met.sure()) == len(ours)}
    return {ours[word]: others[other] for word, other in said.pop()} if len(said) == 1 else None


def _apart(paths: Sequence[Path]) -> dict[str, Path] | None:
    """Return word -> path for two or more PATHS with equally many words, all equal but for one place, where each has
    another word; None for other PATHS.
    """
    cut_up = [words_of(path) for path in paths]
    if len(paths) < 2 or len({len(words) for words in cut_up}) != 1:
        return None
    columns = [column for column in zip(*cut_up, strict=True) if len(set(column)) > 1]
    if len(columns) != 1 or len(set(columns[0])) < len(paths):
        return None
    return dict(zip(columns[0], paths, strict=True))
