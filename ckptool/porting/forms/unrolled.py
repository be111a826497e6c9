"""Blocks of the model that the source holds once, because its layers share their weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..expression import Shape
from ..matching.units import Path, Unit

#: A block of fewer layers than this is no block: any list of equal layers would be one.
_LAYERS = 4


def later_blocks(targets: Sequence[Unit], sources: Sequence[Unit]) -> list[Unit]:
    """Return the units of all blocks except the first, for those lists of TARGETS of whose blocks SOURCES has only one.

    In "ALBERT" (Lan et al., 2020) all blocks share their weights. Compared with one block, every layer of the source
    has one partner; compared with all, several. The blocks of such a list have equal units, four or more, and the
    source has as many units of each kind as the target would have with one block. A list does not count if the source
    numbers layers of such kinds above 0 (it has a list of its own, with blocks missing), or if another list of the
    model has such layers, too.
    """
    blocks: dict[Path, dict[int, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in targets:
        for at, component in enumerate(unit.path[:-1]):
            if component.isdecimal():
                blocks[unit.path[:at]][int(component)].append(unit)
    own, theirs = (Counter(u.colour for u in units) for units in (targets, sources))
    counted = {u.colour for u in sources if any(number != 0 for number in u.numbers)}
    later: list[Unit] = []
    for path, found in blocks.items():
        held = [_colours(found[number]) for number in sorted(found)]
        if len(held) < 2 or held[0].total() < _LAYERS or any(colours != held[0] for colours in held):
            continue
        if any(own[c] - (len(held) - 1) * n != theirs[c] for c, n in held[0].items()):
            continue
        # only of the few lists that come here: each is checked against all others
        elsewhere = {
            u.colour for other in blocks if not _inside(other, path) for us in blocks[other].values() for u in us
        }
        if not held[0].keys() & (counted | elsewhere):
            rest = [unit for number in sorted(found)[1:] for unit in found[number]]
            later += rest
            own.subtract(_colours(rest))
    return later


def _inside(one: Path, other: Path) -> bool:
    """Return whether one of two lists, given by their paths, is inside a block of the other."""
    return one[: len(other)] == other or other[: len(one)] == one


def _colours(units: Sequence[Unit]) -> Counter[tuple[Shape, str]]:
    return Counter(unit.colour for unit in units)
