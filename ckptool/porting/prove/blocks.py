"""Repeat a change that worked in one block of a model in its other blocks."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf

from ..expression import Expr
from ..mapping import Entry


def in_other_blocks(entries: MappingOf[str, Entry], new: MappingOf[str, Expr]) -> dict[str, Expr]:
    """Return, as key -> expression, the change NEW (key -> expression) of one block repeated in each other block with
    the same layers from one block of the source.

    The numbers in the common beginning of all changed keys name the block: `layers.3.` in `layers.3.q.weight` and
    `layers.3.q.bias`. ENTRIES is the mapping before the change. {} if no other block qualifies (see `_in_block`).
    """
    paths = [key.split(".") for key in new]
    shared = next((i for i in range(min(map(len, paths))) if len({path[i] for path in paths}) > 1), len(paths[0]) - 1)
    places = [i for i in range(shared) if paths[0][i].isdecimal()]
    out: dict[str, Expr] = {}
    for target in entries if places else ():
        path = target.split(".")
        numbers = {i: path[i] for i in places if i < len(path)}
        if _at(paths[0], numbers) == path != paths[0] and all(number.isdecimal() for number in numbers.values()):
            out |= _in_block(entries, new, numbers) or {}
    return out


def _at(path: list[str], numbers: MappingOf[int, str]) -> list[str]:
    return [numbers.get(i, part) for i, part in enumerate(path)]


def _in_block(
    entries: MappingOf[str, Entry], new: MappingOf[str, Expr], numbers: MappingOf[int, str]
) -> dict[str, Expr] | None:
    """Return, as key -> expression, the change NEW for the block with these NUMBERS (position in a key's path ->
    number).

    None if the block lacks a changed key, if its present expressions in ENTRIES are not those of the first block with
    other keys, or if it is not known which key of the source takes the place of one that NEW reads.
    """
    names: dict[str, str] = {}
    others = {key: ".".join(_at(key.split("."), numbers)) for key in new}
    for key, other in others.items():
        here, there = entries[key].expr, entries[other].expr if other in entries else None
        if here is None or there is None or len(here.keys()) != len(there.keys()):
            return None
        pairs = list(zip(here.keys(), there.keys(), strict=True))
        if any(names.setdefault(a, b) != b for a, b in pairs) or here.rename(names.__getitem__) != there:
            return None
    for key in dict.fromkeys(key for expr in new.values() for key in expr.keys()):  # noqa: SIM118 - a method of ours
        if key not in names:
            moved = _moved(key, names)
            if moved is None:
                return None
            names[key] = moved
    return {other: new[key].rename(names.__getitem__) for key, other in others.items()}


def _moved(key: str, names: MappingOf[str, str]) -> str | None:
    """Return the key of the source that corresponds to KEY in another block, by NAMES, the pairs (key of this block ->
    key of the other block) known so far: the first pair that KEY shares the path with, up to the last part in which the
    two differ, gives the new beginning. None if there is none.
    """
    for here, there in names.items():
        a, b, path = here.split("."), there.split("."), key.split(".")
        apart = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        if len(a) == len(b) and apart and path[: apart[-1] + 1] == a[: apart[-1] + 1]:
            return ".".join([*b[: apart[-1] + 1], *path[apart[-1] + 1 :]])
    return None


__all__ = ["in_other_blocks"]
