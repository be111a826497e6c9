"""Views of weights as expressions: parts of a tensor, with dimensions in another order, or reshaped."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from .. import expression as ex
from ..expression import Expr, Shape


@dataclass(slots=True)
class Base:
    """A tensor made only of weights, by its layout in its storage.

    Attributes:
        keys: the keys of the state dict that the tensor is made of.
        expr: the expression over these keys that makes this tensor; None if no expression does.
        shape, stride, offset, numel: the layout of this tensor in the storage.
    """

    keys: tuple[str, ...]
    expr: Expr | None
    shape: Shape
    stride: tuple[int, ...]
    offset: int
    numel: int


def viewed(base: Base, view: torch.Tensor) -> Expr | None:
    """Return VIEW, a tensor that shares the storage of BASE, as an expression over the keys of BASE, which itself needs
    an expression: all of BASE; a part of it, with its dimensions in another order (a slice, a transpose); or whole rows
    reshaped (`_reshaped`). A dimension along which VIEW repeats its numbers (stride 0) is left out of the result.

    None if VIEW is no such part: for example if it is empty, begins at no element of BASE, or takes every second row.
    """
    assert base.expr is not None
    shape, stride = tuple(view.shape), view.stride()
    starts, rest = [0] * len(base.shape), view.storage_offset() - base.offset
    if rest < 0:
        return None
    if shape == base.shape and not rest and (stride == base.stride or view.numel() == 1):
        return base.expr
    dims = sorted((d for d in range(len(base.shape)) if base.shape[d] > 1), key=lambda d: -base.stride[d])
    for d in dims:
        starts[d], rest = divmod(rest, base.stride[d])
    if rest:
        return None
    counts = _counts(base, view, starts, dims)
    if counts is None:
        return _reshaped(base, view, starts, dims)
    x, kept, order = _cut(base, starts, counts), [counts.get(d, 1) for d in range(len(base.shape))], list(counts)
    if order != sorted(order):
        still = sorted(order)
        x = ex.reshape(x, [kept[d] for d in still], kept)
        places = [still.index(d) for d in order]
        x = ex.transpose(x) if places == [1, 0] else ex.permute(x, *places)
        kept = [kept[d] for d in order]
    small = tuple(n for n, s in zip(shape, stride, strict=True) if not (n > 1 and not s))
    return ex.reshape(x, small, kept) if prod(small) == prod(kept) else None


def _counts(base: Base, view: torch.Tensor, starts: Sequence[int], dims: Sequence[int]) -> dict[int, int] | None:
    """Return dimension of BASE -> number of indices along it that VIEW has, in the order of the dimensions of VIEW;
    dimensions of VIEW with one index, or that repeat numbers (stride 0), are left out. None if another dimension of
    VIEW has the stride of no dimension of BASE that is still free, or goes beyond its end.

    STARTS has the first index of VIEW along each dimension of BASE; DIMS are the dimensions of BASE larger than 1.
    """
    free = list(dims)
    counts: dict[int, int] = {}
    for n, stride in zip(view.shape, view.stride(), strict=True):
        if n > 1 and stride:
            found = next((d for d in free if base.stride[d] == stride and starts[d] + n <= base.shape[d]), None)
            if found is None:
                return None
            free.remove(found)
            counts[found] = n
    return counts


def _cut(base: Base, starts: Sequence[int], counts: MappingOf[int, int]) -> Expr:
    """Return the expression of the part of BASE that begins at index STARTS[d] along each dimension d and has COUNTS[d]
    indices there; one index for a dimension that is not in COUNTS.
    """
    assert base.expr is not None
    x = base.expr
    for d, size in enumerate(base.shape):
        n = counts.get(d, 1)
        if (starts[d], n) != (0, size):
            x = ex.part(x, d, starts[d], starts[d] + n)
    return x


def _reshaped(base: Base, view: torch.Tensor, starts: Sequence[int], dims: Sequence[int]) -> Expr | None:
    """Return VIEW, a contiguous view of whole rows of BASE (of its first dimension larger than 1), perhaps with its
    last two dimensions exchanged, as an expression; None for other views, and if BASE is not contiguous. STARTS has the
    first index along each dimension, DIMS the dimensions larger than 1, those with larger strides first.
    """
    if not dims or any(starts[d] for d in dims[1:]) or list(dims) != sorted(dims):
        return None
    turned = not view.is_contiguous()
    plain = view.mT if turned and view.ndim >= 2 else view
    inner = prod(base.shape[d] for d in dims[1:])
    if not plain.is_contiguous() or plain.numel() % inner or base.stride[dims[0]] != inner:
        return None
    x = _cut(base, starts, {d: base.shape[d] for d in dims} | {dims[0]: plain.numel() // inner})
    x = ex.reshape(x, tuple(plain.shape))
    return ex.transpose(x) if turned else x


__all__ = ["Base", "viewed"]
