"""Numbered names: what is learned of some members of a series holds for the others.

A path with a number in it belongs to a series for each of its numbers: `blocks.3.norm1` to `blocks.{}.norm1` with 3 and
to `blocks.3.norm{}` with 1. Where two members of a series went to two of another, the way from number to number is
known: the same, so many more, or counted from the other end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .relation import Relation

#: A number in a path.
NUMBER = re.compile(r"\d{1,8}")

#: A path with a hole in place of one of its numbers.
Series = str


def series_of(path: Sequence[str]) -> Iterator[tuple[Series, int]]:
    """The series that a path belongs to, each with its number there."""
    text = ".".join(path)
    for found in NUMBER.finditer(text):
        yield f"{text[: found.start()]}{{}}{text[found.end() :]}", int(found[0])


def members_of(paths: Iterable[Sequence[str]]) -> dict[Series, set[int]]:
    """The numbers that each series of some paths has."""
    found: dict[Series, set[int]] = defaultdict(set)
    for path in paths:
        for series, number in series_of(path):
            found[series].add(number)
    return found


@dataclass(frozen=True, slots=True)
class Way:
    """How numbers of a target's series become those of a source's: `sign * n + offset`."""

    source: Series
    sign: int
    offset: int

    def __call__(self, number: int) -> int:
        """The number in the source's series."""
        return self.sign * number + self.offset


class Ways:
    """What is known of series from pairs of (target, source) paths.

    A series is known where at least two members went to one series of the source, all by one rule, and nothing else
    went there.

    Args:
        pairs: paths of what was matched.
        members: the numbers that each series has on the two sides, where a rule has to hold for all of them: the source
            has every number that the rule leads to. Two blocks that each begin a stage (`res.2` is `layer2.0`, `res.3`
            is `layer3.0`) show nothing of the others otherwise.
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
        """The series of the source that a path belongs to, or would, and its number there: equal for what is known to
        go to each other. None where nothing is known."""
        for row, number in series_of(path):
            if is_target and (way := self._known.get(row)) is not None:
                return way.source, way(number)
            if not is_target and row in self._sources:
                return row, number
        return None

    def beside(self, own: Series, theirs: Series) -> set[tuple[int, int]]:
        """The rules (sign, offset) by which series go to each other that stand where these two do."""
        both = parent(own), parent(theirs)
        return {(w.sign, w.offset) for row, w in self._known.items() if (parent(row), parent(w.source)) == both}


def _rule(series: Series, numbers: dict[int, int]) -> Way | None:
    if len(numbers) < 2 or len(set(numbers.values())) < len(numbers):
        return None
    for sign in (1, -1):
        offsets = {other - sign * number for number, other in numbers.items()}
        if len(offsets) == 1:
            return Way(series, sign, next(iter(offsets)))
    return None


def common(paths: Iterable[Sequence[str]]) -> tuple[Series, tuple[int, ...]] | None:
    """The one series that all PATHS belong to, and the number of each in it, if there is exactly one."""
    known: dict[Series, list[int]] | None = None
    for path in paths:
        own = dict(series_of(path))
        known = (
            {series: [number] for series, number in own.items()}
            if known is None
            else {series: [*numbers, own[series]] for series, numbers in known.items() if series in own}
        )
    if known is None or len(known) != 1:
        return None
    series, numbers = next(iter(known.items()))
    return (series, tuple(numbers)) if len(set(numbers)) == len(numbers) else None


def parent(series: Series) -> str:
    """Where the members of a series stand: what is before the component with the hole."""
    components = series.split(".")
    place = next(i for i, component in enumerate(components) if "{}" in component)
    head = ".".join(components[:place])
    return head if components[place] != "{}" else ".".join(components[: place - 1])
