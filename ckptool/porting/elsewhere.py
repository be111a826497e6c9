"""What is certain in one block, and open in another: the same places of both go to the same places.

A block without a shortcut has nothing that its two layers of one shape could be confused with; in the block beside it
the shortcut has that shape, too. What `classes` does where two blocks hold the same, before any order counts, is done
here for blocks of one name, when all that can be told of each is told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from .units import Unit

Pair = tuple[Unit, Unit]
_Path = tuple[str, ...]
#: The names of a block of the target and of its counterpart, without their numbers.
_Kinds = tuple[_Path, _Path]


@dataclass(slots=True)
class _Known:
    """Where the places of blocks of one name go, both ways."""

    there: dict[_Path, set[_Path]] = field(default_factory=lambda: defaultdict(set))
    back: dict[_Path, set[_Path]] = field(default_factory=lambda: defaultdict(set))

    def of(self, place: _Path) -> _Path | None:
        """The one place of the source that a place of the target goes to, and nothing else does."""
        found = self.there.get(place, set())
        return next(iter(found)) if len(found) == 1 and len(self.back[next(iter(found))]) == 1 else None


def settle(pairs: list[Pair], doubtful: Collection[int]) -> None:
    """Exchange the sources of doubtful pairs that go elsewhere in other blocks, and mark those that others confirm.

    Args:
        pairs: (target, source), changed in place.
        doubtful: the `id` of the targets of those of which it is open whether a swap fits as well.
    """
    blocks: dict[_Path, list[int]] = defaultdict(list)
    for at, (t, _) in enumerate(pairs):
        for depth, component in enumerate(t.path[:-1]):
            if _is_counted(component):
                blocks[t.path[: depth + 1]].append(at)
    known: dict[_Kinds, _Known] = defaultdict(_Known)
    counterpart = {block: _around([pairs[at][1].path for at in held]) for block, held in blocks.items()}
    for block, held in blocks.items():
        places = known[_plain(block), _plain(counterpart[block])]
        for t, s in (pairs[at] for at in held):
            if id(t) not in doubtful:
                own, theirs = t.path[len(block) :], s.path[len(counterpart[block]) :]
                places.there[own].add(theirs)
                places.back[theirs].add(own)
    for block, held in blocks.items():
        kinds = (_plain(block), _plain(counterpart[block]))
        if counterpart[block] and any(id(pairs[at][0]) in doubtful for at in held):
            _settle_block(pairs, held, block, counterpart[block], known[kinds], kinds)


def _settle_block(
    pairs: list[Pair], held: Sequence[int], block: _Path, counterpart: _Path, known: _Known, kinds: _Kinds
) -> None:
    holder = {pairs[at][1].path: at for at in held}
    confirmed: dict[int, _Path] = {}
    for at in held:
        t, s = pairs[at]
        place = known.of(t.path[len(block) :])
        wanted = None if place is None else holder.get((*counterpart, *place))
        if wanted is None or pairs[wanted][0].colour != t.colour or wanted in confirmed:
            continue
        if wanted != at:
            t2, s2 = pairs[wanted]
            pairs[at], pairs[wanted] = (t, s2), (t2, s)
            holder[s.path], holder[s2.path] = wanted, at
            for unit in (t, t2):
                unit.evidence = ["other blocks"]
        confirmed[at] = t.path[len(block) :]
    about = (block, *kinds)
    colours = {pairs[at][0].colour for at in confirmed}
    for at in held:
        if pairs[at][0].colour in colours:
            pairs[at][0].settled[about] = confirmed.get(at, ())


def _around(paths: Sequence[_Path]) -> _Path:
    """The innermost numbered module around all of some units, or nothing."""
    shared = paths[0][:-1]
    for path in paths:
        while path[: len(shared)] != shared:
            shared = shared[:-1]
    while shared and not _is_counted(shared[-1]):
        shared = shared[:-1]
    return shared


def _is_counted(component: str) -> bool:
    return any(map(str.isdigit, component))


def _plain(path: _Path) -> _Path:
    return tuple("".join(c for c in component if not c.isdigit()) for component in path)
