"""Blocks of the model that the source holds once, because its layers share their weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..expression import Shape
from ..matching.units import Path, Unit

#: A block of fewer layers than this is no block: any list of equal layers would be one.
_LAYERS = 4


def later_blocks(targets: Sequence[Unit], sources: Sequence[Unit]) -> list[Unit]:
    """Return the units of all blocks except the first, for each list of blocks in TARGETS of which SOURCES holds one
    block only; [] if there is no such list. Blocks are in the order of their numbers. In "ALBERT" (Lan et al., 2020)
    all blocks share their weights. Compared with one block, every layer of the source has one partner; compared with
    all, several.

    A list counts if all of these are true:

      - It has two or more blocks, of four or more units each, and all have equal units by colour (sizes and kind).
      - The source has exactly as many units of each of these colours as the target would have with one block of the
        list.
      - No unit of the source with one of these colours has a number other than 0 in its path (that of a list of its
        own, with blocks missing).
      - No other list of the model, neither inside of this list nor around it, has units of these colours.
    """
    blocks = _blocks(targets)
    own, theirs = (Counter(u.colour for u in units) for units in (targets, sources))
    counted = {u.colour for u in sources if any(number != 0 for number in u.numbers)}
    later: list[Unit] = []
    for path, found in blocks.items():
        first, *others = (found[number] for number in sorted(found))
        held = _colours(first)
        if not others or held.total() < _LAYERS or any(_colours(block) != held for block in others):
            continue
        if any(own[c] - len(others) * n != theirs[c] for c, n in held.items()):
            continue
        # only of the few lists that come here: each is checked against all others
        elsewhere = {
            u.colour for other in blocks if not _inside(other, path) for us in blocks[other].values() for u in us
        }
        if not held.keys() & (counted | elsewhere):
            rest = [unit for block in others for unit in block]
            later += rest
            own.subtract(_colours(rest))
    return later


def _blocks(units: Sequence[Unit]) -> dict[Path, dict[int, list[Unit]]]:
    """Return path of a list -> number of a member -> those of UNITS in this member, at any depth: `h` -> 3 -> the unit
    `h.3.attn.q`, for all components of paths that are plain numbers. A unit that is itself a member (`h.3`) is left out
    of that list; a unit with several numbers in its path is in several lists.
    """
    blocks: dict[Path, dict[int, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        for at, component in enumerate(unit.path[:-1]):
            if component.isdecimal():
                blocks[unit.path[:at]][int(component)].append(unit)
    return blocks


def _inside(one: Path, other: Path) -> bool:
    """Return whether one of the two lists ONE and OTHER is inside the other one, or both are the same list: the path of
    one is the beginning of the path of the other.
    """
    return one[: len(other)] == other or other[: len(one)] == one


def _colours(units: Sequence[Unit]) -> Counter[tuple[Shape, str]]:
    return Counter(unit.colour for unit in units)
