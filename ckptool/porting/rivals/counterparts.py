"""Modules of the two sides that are each other: a swap that would take something out of both is none.

What is certain of `tnet` comes from `feat.stn`, and nothing else does. Then no batch norm of `tnet` comes from
elsewhere while one of `feat.stn` goes elsewhere, whatever their numbers and orders say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..places import Path
from ..units import Pair

#: So much that is certain makes two modules each other's.
_LEAST = 3


class Counterparts:
    """For modules of the model the one of the source that all that is certain of them comes from and nothing else.

    Args:
        certain: pairs that nothing speaks against.
    """

    def __init__(self, certain: Iterable[Pair]) -> None:
        held: tuple[dict[Path, set[int]], ...] = defaultdict(set), defaultdict(set)
        for at, pair in enumerate(certain):
            for side, unit in enumerate(pair):
                for depth in range(1, len(unit.path)):
                    held[side][unit.path[:depth]].add(at)
        by_members: dict[frozenset[int], list[Path]] = defaultdict(list)
        for path, members in held[1].items():
            by_members[frozenset(members)].append(path)
        self._of = {path: by_members[frozenset(members)] for path, members in held[0].items() if len(members) >= _LEAST}

    def keep_apart(self, one: Pair, other: Pair) -> bool:
        """Whether one of two pairs is in such a module on both sides, and the other is not on either."""
        return self._inside(one, other) or self._inside(other, one)

    def _inside(self, one: Pair, other: Pair) -> bool:
        (t, s), (t2, s2) = one, other
        return any(
            _under(s.path, theirs) and not _under(s2.path, theirs)
            for depth in range(1, len(t.path))
            if not _under(t2.path, t.path[:depth])
            for theirs in self._of.get(t.path[:depth], ())
        )


def _under(path: Path, module: Path) -> bool:
    return path[: len(module)] == module
