"""Relations that pairs show: places of the target that always correspond to one place of the source, and the other way
round.

Code builds blocks from a class, so a relation from one block holds in the others. Callers decide what a place is: a
path without its numbers, a name with its neighbours, a path inside of a module of a class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

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
        """Return place of the target -> place of the source, for places that always go together."""
        return {own: there for own, (there, *more) in self._there.items() if not more and len(self._back[there]) == 1}

    def holds(self) -> bool:
        """Return whether every place goes to one place only. If not, the modules of the two sides are not of
        one class.
        """
        return len(self.sure()) == len(self._there)

    def labels(self, targets: Mapping[int, P], sources: Mapping[int, P]) -> dict[int, P]:
        """Return `id` of a unit -> label, equal for units of TARGETS and SOURCES whose places always go together; other
        units are left out.

        Args:
            targets, sources: `id` of a unit -> its place.
        """
        sure = self.sure()
        images = set(sure.values())
        found = {target: sure[place] for target, place in targets.items() if place in sure}
        return found | {source: place for source, place in sources.items() if place in images}
