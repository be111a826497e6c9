"""Pairs of independent codings of one architecture, to see what porting does with code that it was not written for.

Each pair is a function that gives the source's model and the target's. Both compute the same function of the same
input, so that a port is judged by outputs: no table of truth is needed.

    python -m benchmarks.zoo            every pair, without the source's code
    python -m benchmarks.zoo --prove    with it
    python -m benchmarks.golden         what matching makes of each pair, next to what is in golden.txt
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

Make = Callable[[], tuple[nn.Module, nn.Module]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two codings of one architecture.

    Attributes:
        name: of the pair.
        make: gives the source and the target.
        inputs: as `--input` takes them; both take the same.
        prepare: changes the source's state dict before it is saved (sorted keys, wrappers, stacked layers …).
        hint: why no name, shape or order decides, if that is so: then it has to be flagged or proved.
        new: keys of the target that the source has nothing for.
    """

    name: str
    make: Make
    inputs: tuple[str, ...]
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    hint: str = ""
    new: tuple[str, ...] = ()


PAIRS: dict[str, Pair] = {}


def pair(
    *inputs: str,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    hint: str = "",
    new: tuple[str, ...] = (),
) -> Callable[[Make], Make]:
    """Add a function to `PAIRS` under its name."""

    def add(make: Make) -> Make:
        PAIRS[make.__name__] = Pair(make.__name__, make, inputs, prepare, hint, new)
        return make

    return add


def by_name(state: dict[str, Any]) -> dict[str, Any]:
    """Keys in the order of the alphabet, as some formats and frameworks leave them."""
    return dict(sorted(state.items()))


def below(prefix: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Every key below a prefix."""
    return lambda state: {prefix + key: value for key, value in state.items()}
