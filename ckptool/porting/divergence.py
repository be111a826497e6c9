"""Show where two models diverge, as a table of the layers around the first layer that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from typing import Any

from ..errors import counted, printable

#: Layers that are shown before the first that gives something else, and after it.
_BEFORE, _AFTER = 3, 5
#: Columns of the mark and of the differences.
_MARGIN, _NUMBER = 6, 12


def divergence_table(rows: Sequence[MappingOf[str, Any]], width: int) -> Iterator[str]:
    """Yield the lines of a table of the layers around the first that differs, in the order of execution; nothing if
    none differs.

    Args:
        rows: `proof["layers"]`.
        width: columns to fill. Names that are too long lose their common beginning, which is printed once, and then
            their middle.
    """
    first = next((n for n, row in enumerate(rows) if row["first"]), None)
    if first is None:
        return
    start, stop = max(first - _BEFORE, 0), min(first + _AFTER + 1, len(rows))
    shown = rows[start:stop]
    own, theirs = [str(row["layer"]) for row in shown], [str(row["source"] or "-") for row in shown]
    one = own == theirs  # the same names on both sides are said once
    room = width - _MARGIN - _NUMBER
    intro: list[str] = []
    if max(map(len, own)) + (0 if one else 2 + max(map(len, theirs))) > room:
        for side, names in (("", own), *(() if one else ((" of the source", theirs),))):
            below = _shared(names)
            if below:
                intro += [f"layers{side} below {printable(below, max(width - 33, 20))}"]
                names[:] = [name.removeprefix(below) for name in names]
        one = own == theirs
    left = max(len("layer"), *map(len, own))
    right = 0 if one else max(len("in the source"), *map(len, theirs))
    if not one and left + 2 + right > room:
        left = min(left, max(room // 2, room - 2 - right))
    yield ""
    yield from (f"      {line}" for line in intro)
    yield f"      {'differs by':<{_NUMBER}}{'layer':<{left}}{'' if one else '  in the source'}"
    if start:
        yield f"      {_difference(_most(rows[:start])):<{_NUMBER}}… {counted(start, 'layer')} before, at most"
    for row, name, other in zip(shown, own, theirs, strict=True):
        cells = _cut(name, room if one else left).ljust(0 if one else left)
        cells += "" if one else f"  {_cut(other, room - left - 2)}"
        yield f"    {'>' if row['first'] else ' '} {_difference(row['difference']):<{_NUMBER}}{cells}"
    if stop < len(rows):
        yield f"      {_difference(_most(rows[stop:])):<{_NUMBER}}… {counted(len(rows) - stop, 'layer')} after, at most"
    yield "      (> where they part; relative to the layer's largest)"


def _shared(names: Sequence[str]) -> str:
    """Return the path of the modules around all layers in NAMES that they have in common, with a dot at its end; "" if
    there are none, or fewer than two layers.
    """
    paths = [name.split(".")[:-1] for name in names if name != "-"]
    if len(paths) < 2:
        return ""
    same = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))
    return "".join(f"{part}." for part in paths[0][:same])


def _cut(name: str, room: int) -> str:
    """Return NAME, cut to ROOM characters without its middle if it is longer: numbers are in front, and the kind of
    layer at the end.
    """
    name, room = printable(name, 400), max(room, 9)
    head = (room - 1) // 3
    return name if len(name) <= room else f"{name[:head]}…{name[head + 1 - room :]}"


def _most(rows: Sequence[MappingOf[str, Any]]) -> float | None:
    return max((row["difference"] for row in rows if row["difference"] is not None), default=None)


def _difference(value: float | None) -> str:
    return "other sizes" if value is None else f"{value:.1g}"


__all__ = ["divergence_table"]
