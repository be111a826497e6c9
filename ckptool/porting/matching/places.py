"""Where modules stand in a model: the numbered parts around them, and how near two of them are."""

from __future__ import annotations

from collections.abc import Sequence

from ..words import common_start
from .units import Unit

Path = tuple[str, ...]


def block_of(path: Sequence[str]) -> Path:
    """The numbered part of the model around a module: everything up to the last number that is not its own name."""
    return next(iter(reversed(parts_around(path))), ())


def parts_around(path: Sequence[str]) -> list[Path]:
    """The numbered parts of the model around a module, from the outermost on."""
    return [tuple(path[: at + 1]) for at in range(len(path) - 1) if path[at].isdecimal()]


def around(paths: Sequence[Path]) -> Path:
    """The innermost module around all of some units."""
    return paths[0][: min(common_start(paths), len(paths[0]) - 1)]


def nearness(one: Unit, other: Unit) -> int:
    """How many components two paths have in common, from the front on."""
    if one.path[:1] != other.path[:1]:
        return 0  # most modules of a large model
    return common_start((one.path, other.path))


def without_digits(path: Sequence[str]) -> Path:
    """The names of a path; those of blocks of one list are equal."""
    return tuple("".join(c for c in component if not c.isdecimal()) for component in path)
