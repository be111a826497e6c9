"""Change one input as an error suggests: its dimensions, its sizes, its type."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..call import flat
from ..inputs import InputSpec
from .attempt import Stop
from .wanted import ATTENTION, BY_ELEMENT, NUMBER, wanted_dimensions, wanted_sizes


def changes(one: InputSpec, stop: Stop) -> Iterator[InputSpec]:
    """Yield specs to try in place of the input ONE, the likeliest first, as the error of the failed try STOP suggests:
    another type, range, number of dimensions (`wanted_dimensions`), or size (`wanted_sizes`, or numbers in the
    message). If the error asks for integers, these alone (nothing if ONE has integers). Some may be yielded twice;
    nothing if the error suggests nothing.
    """
    said, name = stop.message, stop.name
    floats = getattr(torch, one.dtype).is_floating_point
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    x = args[0] if args else None
    weight = args[1] if len(args) > 1 else None
    if name == "embedding" and floats and weight is not None:
        table = weight if x is None or (weight.ndim == 2 and weight.is_floating_point()) else x
        yield from _as_tokens(replace(one, high=len(table)))
    if re.search(
        r"scalar types?: Long|must be long|index tensor|be int|expected.*(Long|Int)\b.*(Float|Double)"
        r"|indices.*(integer|Long)|Long but found Float|slice indices|dtype int64|to be an integer|only integer",
        said,
    ):
        yield from _as_tokens(one) if floats else ()
        return
    if name == "embedding" and weight is not None:
        high = weight.shape[0]
        for fewer in dict.fromkeys((high, high // 2, 2)):
            if not floats and fewer > 1 and (one.high == 0 or fewer != one.high):
                yield replace(one, high=fewer)
    if re.search(r"out of (range|bounds)|Class values|index \d+ is", said) and not floats and "Dimension" not in said:
        size = [int(n) for n in re.findall(r"size (\d+)", said)]
        for high in dict.fromkeys((*size, one.high // 2, 4, 2)):
            if 1 < high < max(one.high, 3):
                yield replace(one, high=high)
    if re.search(
        r"(Long|long|Int|int)\b.*(should be the same|but got Long|found Long)|not implemented for '(Long|Int|Bool)'"
        r"|result type Float|have the same dtype|floating point|to be float|expected .*(Float|Half)\b",
        said,
    ):
        if not floats:
            for shape in dict.fromkeys((one.shape, (*one.shape, 12), one.shape[:1])):
                yield InputSpec("float32", shape)
        if re.search(r"got (Long|Bool|Int)|found (Long|Int)", said):
            yield replace(one, dtype="float32", high=0, low=0)
    sizes = (other for have, want in wanted_sizes(stop, x, weight) for other in _resized(one, have, want))
    deeper = _of_dimensions(one, wanted_dimensions(stop), stop, weight)
    yield from itertools.chain(sizes, deeper) if stop.name in BY_ELEMENT else itertools.chain(deeper, sizes)
    if x is not None and any(0 < want < have for have, want in wanted_dimensions(stop)):  # one that goes if it is 1
        for size in dict.fromkeys(x.shape[1:]):
            if size > 1:
                yield from _resized(one, size, 1)
    if name in ("linear", *ATTENTION) and floats and len(one.shape) != 3 and one.shape:  # a sequence of vectors
        width = weight.shape[1] if name == "linear" and weight is not None and weight.ndim == 2 else one.shape[-1]
        yield replace(one, shape=(one.shape[0], 12, width))
    target = re.search(r"Target sizes: \[([\d, ]+)\]\. +Tensor sizes: \[([\d, ]+)\]", said)
    target = target or re.search(r"size=\[([\d, ]+)\]()", said)
    if target:
        wanted = tuple(int(n) for n in NUMBER.findall(target[1]))
        if one.shape != wanted and (not target[2] or one.shape == tuple(map(int, NUMBER.findall(target[2])))):
            yield replace(one, shape=wanted)
    if stop.error in ("ValueError", "AssertionError"):  # as people write it
        numbers = list(dict.fromkeys(int(n) for n in NUMBER.findall(said)))[:4]
        for have, want in itertools.permutations(numbers, 2):
            yield from (
                replace(one, shape=tuple(want if i == d else n for i, n in enumerate(one.shape)))
                for d in range(len(one.shape))
                if one.shape[d] == have and 0 < want <= 4096
            )
    exact = re.search(r"[Ee]xpected[^(\[]*[(\[]([\d, ]+)[)\]],? *(?:but )?got *(?:size )?[(\[]([\d, ]+)[)\]]", said)
    if exact:
        expected, got = (tuple(int(n) for n in NUMBER.findall(exact[i])) for i in (1, 2))
        if got == one.shape:
            yield replace(one, shape=expected)
    doesnt = re.search(r"size \((\d+)\*(\d+)\) doesn't match model \((\d+)\*(\d+)\)", said)
    if doesnt and len(one.shape) == 4:
        yield replace(one, shape=(*one.shape[:2], int(doesnt[3]), int(doesnt[4])))
    if re.search(r"[Kk]ernel size|too small|Padding size should|at least|negative dimension|smaller than", said):
        if len(one.shape) > 2:
            for times in (2, 4, 8):
                yield replace(one, shape=(*one.shape[:2], *(n * times for n in one.shape[2:])))
                if len(one.shape) == 3:
                    yield replace(one, shape=(one.shape[0], one.shape[1] * times, one.shape[2]))
        elif floats:
            yield replace(one, shape=(one.shape[0], *(n * 4 for n in one.shape[1:])))
    if re.search(r"Sizes of tensors must match|must match the size", said):
        for times in (4, 16, 64):
            yield from (
                replace(one, shape=tuple(n * times if i == d else n for i, n in enumerate(one.shape)))
                for d in range(len(one.shape))
            )
    if not floats and stop.error in ("RuntimeError", "IndexError", "AssertionError", "ValueError") and one.high > 2:
        yield replace(one, high=2)
    if re.search(r"[Ll]engths?|sequence length|longer than|exceeds?|max(imum)?", said) and len(one.shape) > 1:
        for n in dict.fromkeys(int(n) for n in NUMBER.findall(said)):
            if 1 < n < 4096:
                yield replace(one, shape=(*one.shape[:-1], n))
                if len(one.shape) > 2:
                    yield replace(one, shape=(one.shape[0], n, *one.shape[2:]))


def _as_tokens(one: InputSpec) -> Iterator[InputSpec]:
    """Yield four specs of integers for the input ONE, below its `high` or else 4: with its first two dimensions, its
    first, all, and its first two and one of 2. Equal ones are yielded once.
    """
    high = one.high or 4
    for shape in dict.fromkeys((one.shape[:2], one.shape[:1], one.shape, (*one.shape[:2], 2))):
        yield InputSpec("int64", shape, high)


def _of_dimensions(
    one: InputSpec, found: Sequence[tuple[int, int]], stop: Stop, weight: torch.Tensor | None
) -> Iterator[InputSpec]:
    """Yield specs for the input ONE with other numbers of dimensions, by FOUND, (number that a tensor has, number that
    it needs) as in `wanted_dimensions`: as many more or fewer as the tensor needs; -1 stands for the number that ONE
    has, or for one more.

    For fewer dimensions, the last ones or those behind the first are left out. For more, sizes from the operation of
    STOP, or 4, are put in behind the first or at the end; inputs of floating point numbers also become sequences,
    pictures or volumes, with the channels of WEIGHT if the operation is a convolution. Nothing is yielded for less than
    1 or more than 6 dimensions.
    """
    rank = len(one.shape)
    for have, want in found:
        more = (rank + 1 if want < 0 else want) - (rank if have < 0 else have)
        new = rank + more
        if not more or not 1 <= new <= 6:
            continue
        channels = [weight.shape[1]] if weight is not None and stop.name.startswith("conv") else []
        floats = getattr(torch, one.dtype).is_floating_point
        if more < 0:
            yield replace(one, shape=one.shape[:new])
            yield replace(one, shape=(one.shape[0], *one.shape[1 - new :]) if new > 1 else one.shape[:1])
            continue
        between = [a.shape[1] for a in flat(stop.args) if isinstance(a, torch.Tensor) and a.ndim > 2]
        plain = [
            shape
            for n in dict.fromkeys((*between, 4))
            for shape in (
                (*one.shape[:1], *(n for _ in range(more)), *one.shape[1:]),
                (*one.shape, *(n for _ in range(more))),
            )
        ]
        if not stop.name.startswith("conv") and stop.name:
            yield from (replace(one, shape=shape) for shape in plain)
        if floats and new >= 3:
            for c in dict.fromkeys((*channels, *(one.shape[1:2] if rank > 1 else ()), 3)):
                size = {3: 64, 4: 32}.get(new, 16)
                shape = (2, c, *(size for _ in range(new - 2)))
                yield replace(one, shape=shape if new < 5 else (2, c, 4, *(size for _ in range(new - 3))))
                if new == 5:
                    yield replace(one, shape=(2, 4, c, 16, 16))
        yield from (replace(one, shape=shape) for shape in plain)


def deeper(one: InputSpec, rank: tuple[int, int]) -> InputSpec:
    """Return the input ONE with a second dimension of 4 put in, if an operation needs more dimensions than a tensor
    has; else ONE.

    RANK is (dimensions that the tensor has, dimensions that the operation needs), -1 for a number that is not known:
    then ONE is returned.
    """
    return replace(one, shape=(*one.shape[:1], 4, *one.shape[1:])) if 0 < rank[0] < rank[1] else one


def _resized(one: InputSpec, have: int, want: int) -> Iterator[InputSpec]:
    """Yield specs for the input ONE with other sizes, with which a tensor that was computed from it with size HAVE may
    get size WANT: sizes that equal HAVE become WANT, one at a time and then all; others are scaled by the same ratio,
    if the result is whole; of four or more dimensions, the last two become square or are scaled together; at last
    others are changed by the same difference. The first dimension comes last and is not changed by a difference.
    """
    shape = one.shape
    places = [*range(1, len(shape)), *range(len(shape))[:1]]
    equal = [d for d in places if shape[d] == have]
    for d in equal:
        yield replace(one, shape=tuple(want if i == d else n for i, n in enumerate(shape)))
    if len(equal) > 1:
        yield replace(one, shape=tuple(want if i in equal else n for i, n in enumerate(shape)))
    if len(shape) >= 4 and not equal and shape[-1] == shape[-2] and 1 < have < want and want % have == 0:
        sides = math.isqrt(want // have)  # a map that is flattened keeps its form: 7 x 7 places in place of 1
        if sides * sides == want // have:
            yield replace(one, shape=(*shape[:-2], shape[-2] * sides, shape[-1] * sides))
    for d in places:
        n = shape[d]
        made_ = n * want // have if n * want % have == 0 else 0
        if d not in equal and 0 < made_ != n:
            yield replace(one, shape=tuple(made_ if i == d else m for i, m in enumerate(shape)))
    if len(shape) >= 4:
        side = math.isqrt(shape[-1] * shape[-2] * want // have)
        for size in dict.fromkeys((side, side + 1)):
            if 0 < size != shape[-1]:
                yield replace(one, shape=(*shape[:-2], size, size))
        for beside in (0, 1) if min(have, want) > 1 else (0,):  # a token for the class stands beside those of places
            times = math.sqrt((want - beside) / (have - beside))
            if times == int(times) or 1 / times == int(1 / times):
                yield replace(one, shape=(*shape[:-2], int(shape[-2] * times), int(shape[-1] * times)))
    for d in places:
        if d and d not in equal and shape[d] + want - have > 0:
            yield replace(one, shape=tuple(n + want - have if i == d else n for i, n in enumerate(shape)))


__all__ = ["changes", "deeper"]
