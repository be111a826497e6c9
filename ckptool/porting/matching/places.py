"""The numbered modules (blocks) around a module, and how near two modules are by their paths."""

from __future__ import annotations

from collections.abc import Sequence

from ..words import common_start
from .units import Unit

Path = tuple[str, ...]


def block_of(path: Sequence[str]) -> Path:
    """Return the path of the innermost block around the module PATH: its path up to its last number, `h.3` for
    `h.3.mlp.fc`. () if there is none.

    A number that is the module's own name does not count: the block of `h.3.mlp.0` is `h.3`.
    """
    return next(iter(reversed(parts_around(path))), ())


def parts_around(path: Sequence[str]) -> list[Path]:
    """Return the paths of the blocks around the module PATH, the outermost first."""
    return [tuple(path[: at + 1]) for at in range(len(path) - 1) if path[at].isdecimal()]


def around(paths: Sequence[Path]) -> Path:
    """Return the path of the innermost module around all PATHS."""
    return paths[0][: min(common_start(paths), len(paths[0]) - 1)]


def nearness(one: Unit, other: Unit) -> int:
    """Return how many components the paths of ONE and OTHER share from the front."""
    if one.path[:1] != other.path[:1]:
        return 0  # most modules of a large model
    return common_start((one.path, other.path))


def without_digits(path: Sequence[str]) -> Path:
    """Return PATH without digits, which is equal for the blocks of one list: `layer3.0` -> `layer.`."""
    return tuple("".join(c for c in component if not c.isdecimal()) for component in path)
