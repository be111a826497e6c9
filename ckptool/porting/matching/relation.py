"""What goes where, as pairs show it: places that always go to one place, to which nothing else goes.

Code builds blocks from a class, and what is settled in one of them holds in the others. What a place is depends on who
asks: a path with its numbers left open, a name among those beside it, a path inside of a module of a class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)


class Relation(Generic[P]):
    """Which places of the target go to which of the source.

    Args:
        couples: places of pairs, (of the target, of the source).
    """

    def __init__(self, couples: Iterable[tuple[P, P]] = ()) -> None:
        self._there: dict[P, set[P]] = defaultdict(set)
        self._back: dict[P, set[P]] = defaultdict(set)
        for own, theirs in couples:
            self.add(own, theirs)

    def add(self, own: P, theirs: P) -> None:
        """Note that one pair has these places."""
        self._there[own].add(theirs)
        self._back[theirs].add(own)

    def sure(self) -> dict[P, P]:
        """The places that go to one, to which nothing else goes."""
        return {own: there for own, (there, *more) in self._there.items() if not more and len(self._back[there]) == 1}

    def holds(self) -> bool:
        """Whether that is true of all places. Else what has these places is not of one class on the two sides."""
        return len(self.sure()) == len(self._there)

    def labels(self, targets: Mapping[int, P], sources: Mapping[int, P]) -> dict[int, P]:
        """Labels that are equal for what goes to each other: of each target's place, and of each source's.

        Args:
            targets, sources: id -> place.
        """
        sure = self.sure()
        images = set(sure.values())
        found = {target: sure[place] for target, place in targets.items() if place in sure}
        return found | {source: place for source, place in sources.items() if place in images}
