"""Blocks of the model that the source holds once, as code does whose layers share their weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from .expression import Shape
from .places import Path
from .units import Unit

#: A block of fewer layers than this is no block: any list of equal layers would be one.
_LAYERS = 4


def later_blocks(targets: Sequence[Unit], sources: Sequence[Unit]) -> list[Unit]:
    """Units of all blocks but the first of lists whose content the source has once (Lan et al., "ALBERT", 2020).

    Held against one block, every layer of the source has one partner; against all of them it fits several, and no two
    numbers agree.
    """
    blocks: dict[Path, dict[int, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in targets:
        for at, component in enumerate(unit.path[:-1]):
            if component.isdigit():
                blocks[unit.path[:at]][int(component)].append(unit)
    own, theirs = (Counter(u.colour for u in units) for units in (targets, sources))
    later: list[Unit] = []
    for found in blocks.values():
        held = [_colours(found[number]) for number in sorted(found)]
        if len(held) < 2 or held[0].total() < _LAYERS or any(colours != held[0] for colours in held):
            continue
        if all(own[c] - (len(held) - 1) * n == theirs[c] for c, n in held[0].items()):
            later += [unit for number in sorted(found)[1:] for unit in found[number]]
            own.subtract(_colours([u for n in sorted(found)[1:] for u in found[n]]))
    return later


def _colours(units: Sequence[Unit]) -> Counter[tuple[Shape, str]]:
    return Counter(unit.colour for unit in units)
