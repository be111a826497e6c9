"""Interpolate between two tries that stopped at the same place: a size there depends on one size of one input."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ..call import flat
from ..inputs import leaves, with_leaves
from .attempt import Stop
from .wanted import wanted_sizes


class SizesSeen:
    """Remembers, for each operation where tries stopped, the size that it needed and the sizes that tried inputs gave
    there.

    Two tries that differ in one size of one input, and stopped at the same operation, show how the size there depends
    on the size of the input.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], list[tuple[Any, int]]] = {}

    def fitting(self, spec: Any, stop: Stop) -> Iterator[Any]:
        """Yield inputs like SPEC with one size of one input changed, so that the operation where the try STOP of SPEC
        failed gets the size that it needs; and, when all are taken, remember SPEC for later calls.

        The new size is on the line through SPEC and an earlier try; it is rounded down, and then up. Each of the last
        twelve earlier tries counts that stopped at this operation, equally far in the model, with the same size needed,
        if it differs from SPEC in one size of one input, and gave another size at the operation. Only the first way to
        read the error counts (`wanted_sizes`). Nothing is yielded without such a try. Nothing is yielded or remembered
        if no operation on two tensors failed over a size.
        """
        args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
        if not stop.name or len(args) < 2:
            return
        for have, want in wanted_sizes(stop, args[0], args[1])[:1]:
            before = self._seen.setdefault((stop.name, int(stop.furthest), want), [])
            for other, gave in before[-12:]:
                yield from _between(spec, have, other, gave, want)
            before.append((spec, have))


def _between(spec: Any, have: int, other: Any, gave: int, want: int) -> Iterator[Any]:
    """Yield inputs like SPEC with the size, of the only one in which SPEC and OTHER differ, that gives WANT, if the
    size at the operation grows evenly from HAVE (of SPEC) to GAVE (of OTHER): rounded down, then up. For 32 with HAVE 6
    and 64 with GAVE 14, WANT 7 gives 36. Nothing is yielded if they differ in several sizes or in structure, if HAVE
    equals GAVE, or if the new size is not above 0.
    """
    here, there = leaves(spec), leaves(other)
    if have == gave or [path for path, _ in here] != [path for path, _ in there]:
        return
    apart = [
        (at, d)
        for at, ((_, a), (_, b)) in enumerate(zip(here, there, strict=True))
        for d in (range(len(a.shape)) if len(a.shape) == len(b.shape) else [-1])
        if d < 0 or a.shape[d] != b.shape[d]
    ]
    if len(apart) != 1 or apart[0][1] < 0:
        return
    (at, d) = apart[0]
    a, b = here[at][1].shape[d], there[at][1].shape[d]
    size = a + (want - have) * (b - a) / (gave - have)
    for n in dict.fromkeys((math.floor(size), math.ceil(size))):
        if n > 0:
            new = replace(here[at][1], shape=tuple(n if i == d else m for i, m in enumerate(here[at][1].shape)))
            yield with_leaves(spec, [new if i == at else one for i, (_, one) in enumerate(here)])


__all__ = ["SizesSeen"]
