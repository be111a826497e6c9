"""Expressions for tensors that code computes from weights alone: a weight times a number, a sum of tables, tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import torch

from ...errors import RuleError
from .. import expression as ex
from ..expression import Expr, Shape
from .rows import columns

#: Copies of a tensor that an expression may join, and operations in an expression.
_TILES, _OPERATIONS = 64, 256
_COPIES = frozenset({"clone", "contiguous", "_to_copy", "copy", "detach", "_reshape_copy", "alias", "lift_fresh"})


@dataclass(frozen=True, slots=True)
class Derived:
    """What a tensor made of weights alone is computed from.

    Attributes:
        known: returns the expression of a tensor that is a weight, or made of weights; None for other tensors.
        shapes: key of the state dict -> its sizes.
    """

    known: Callable[[torch.Tensor], Expr | None]
    shapes: dict[str, Shape]

    def of(self, name: str, args: Sequence[Any], kwargs: MappingOf[str, Any], out: torch.Tensor) -> Expr | None:
        """Return the expression of OUT, which the operation NAME of torch makes of ARGS and KWARGS: a copy, `cat`,
        `stack`, `add`, `sub`, `mul`, `div`, `neg`, `flip`, `repeat`, `index_select`, or successive rows of a table
        (`embedding`). An underscore at the end of NAME makes no difference.

        None for other operations, if no operation of expressions does the same (see `_arithmetic` and `_rows`), if one
        of the tensors that it takes has no expression, if it joins more than 64 tensors, copies or slices, or if the
        expression has another size than OUT or more than 256 operations and keys.
        """
        made = self._made(name.removesuffix("_"), args, kwargs, out)
        try:
            if made is None or ex.shape_of(made, self.shapes) != tuple(out.shape):
                return None
        except RuleError:
            return None
        return made if _count(made) <= _OPERATIONS else None

    def _made(self, name: str, args: Sequence[Any], kwargs: MappingOf[str, Any], out: torch.Tensor) -> Expr | None:
        """Return the expression of OUT as in `of`, None for the same reasons; but it may still be of another size, or
        too long.
        """
        if not args:
            return None
        if name in ("cat", "stack"):
            return self._joined(name, args, kwargs, tuple(out.shape))
        if name in ("add", "sub", "mul", "div") and len(args) > 1:
            return self._arithmetic(name, args, kwargs, tuple(out.shape))
        if name == "embedding":
            return self._rows(args[0], args[1].reshape(-1), tuple(out.shape))
        x = self._whole(args[0])
        if x is None:
            return None
        if name in _COPIES:
            return x
        if name == "neg":
            return ex.scale(x, -1.0)
        if name == "flip":
            return ex.flip(x, *(int(dim) % out.ndim for dim in args[1]))
        if name == "repeat":
            return _tiled(x, tuple(args[0].shape), [int(n) for n in args[1]])
        if name == "index_select":
            return columns(x, [int(place) for place in args[2]], int(args[1]) % out.ndim)
        return None

    def _joined(self, name: str, args: Sequence[Any], kwargs: MappingOf[str, Any], shape: Shape) -> Expr | None:
        """Return the expression of NAME ("cat" or "stack") of the tensors ARGS[0] along the dimension in ARGS[1] or in
        KWARGS (else 0). SHAPE has the sizes of the result. None if one of the tensors has no expression, or if they are
        more than 64.
        """
        dim = int(args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(shape)
        parts = [self._whole(one) for one in args[0]]
        made = [part for part in parts if part is not None]
        if len(made) < len(parts) or len(parts) > _TILES:
            return None
        if name == "stack":
            made = [ex.reshape(part, (*shape[:dim], 1, *shape[dim + 1 :])) for part in made]
        return ex.cat(dim, *made)

    def _whole(self, tensor: Any) -> Expr | None:
        """Return the expression of TENSOR in its full sizes: an expanded tensor (stride 0 in a dimension) is repeated.
        None if TENSOR is no tensor or has no expression, or if its expression has other sizes than TENSOR and not as
        many numbers as TENSOR without the repeated ones.
        """
        expr = self.known(tensor) if isinstance(tensor, torch.Tensor) else None
        if expr is None:
            return None
        shape = tuple(tensor.shape)
        if ex.shape_of(expr, self.shapes) == shape:
            return expr
        small = tuple(1 if n > 1 and not s else n for n, s in zip(shape, tensor.stride(), strict=True))
        inner = ex.reshape(expr, small) if prod(ex.shape_of(expr, self.shapes)) == prod(small) else None
        return None if inner is None else _broadcast(inner, small, shape)

    def _arithmetic(self, name: str, args: Sequence[Any], kwargs: MappingOf[str, Any], shape: Shape) -> Expr | None:
        """Return the expression of NAME ("add", "sub", "mul" or "div") of the first two of ARGS: two tensors with
        expressions, or one and a number (also a tensor without dimensions). SHAPE has the sizes of the result.

        None if neither has an expression, or one is a tensor with dimensions without one; for a tensor divided by a
        tensor; for a number minus a tensor or divided by a tensor; for a factor that is 0 or not finite; and if KWARGS
        has an `alpha` other than 1, or a `rounding_mode`.
        """
        if kwargs.get("alpha", 1) != 1 or kwargs.get("rounding_mode") is not None:
            return None
        one, other = (self._whole(arg) for arg in args[:2])
        if one is not None and other is not None:
            return None if name == "div" else self._of_two(name, one, other, shape)
        if one is not None and (number := _number(args[1])) is not None:
            return _with_number(name, one, number)
        if other is not None and name in ("add", "mul") and (number := _number(args[0])) is not None:
            return _with_number(name, other, number)
        return None

    def _of_two(self, name: str, one: Expr, other: Expr, shape: Shape) -> Expr:
        """Return ONE plus, minus or times OTHER, by NAME ("add", "sub", "mul"), both repeated to sizes SHAPE as torch
        does (broadcasting).
        """
        second = ex.scale(other, -1.0) if name == "sub" else other
        parts = [self._on_the_right(x, shape) for x in (one, second)]
        large, small = sorted(parts, key=lambda x: -prod(ex.shape_of(x, self.shapes)))
        whole = ex.shape_of(large, self.shapes)
        if name == "mul":
            return ex.mul(_broadcast(large, whole, shape), small)
        return ex.add(large, small) if whole == shape else ex.add(ex.zeros(*shape), large, small)

    def _on_the_right(self, x: Expr, shape: Shape) -> Expr:
        """Return X with dimensions of size 1 put first until it has as many dimensions as SHAPE; with the dimensions of
        X if it has as many or more.
        """
        have = ex.shape_of(x, self.shapes)
        return ex.reshape(x, (1,) * (len(shape) - len(have)) + have, have)

    def _rows(self, table: Any, places: torch.Tensor, shape: Shape) -> Expr | None:
        """Return the expression of the rows of TABLE at the indices PLACES, reshaped to SHAPE. None if there are no
        indices, if they do not follow one another (`3, 4, 5`), if TABLE has no expression, or if SHAPE, without its
        last dimension, does not have as many places as there are indices.
        """
        x = self._whole(table)
        if x is None or not places.numel() or places.numel() != prod(shape[:-1]):
            return None
        start = int(places[0])
        if not torch.equal(places, torch.arange(start, start + len(places))):
            return None
        return ex.reshape(ex.part(x, 0, start, start + len(places)), shape, (len(places), shape[-1]))


def _number(value: Any) -> float | None:
    """Return VALUE as a float if it is a number (not True or False) or a tensor without dimensions; else None."""
    if isinstance(value, torch.Tensor):
        return float(value) if not value.ndim else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _with_number(name: str, x: Expr, number: float) -> Expr | None:
    """Return X plus, minus, times or divided by NUMBER, by NAME ("add", "sub", "mul" or "div"). None for a factor that
    is 0 or not finite, and for a division by 0.
    """
    if name in ("add", "sub"):
        return ex.shift(x, number if name == "add" else -number)
    factor = number if name == "mul" else 1 / number if number else 0.0
    return ex.scale(x, factor) if factor and isfinite(factor) else None


def _broadcast(x: Expr, have: Shape, shape: Shape) -> Expr:
    """Return X, of sizes HAVE, repeated to sizes SHAPE."""
    return x if have == shape else ex.add(ex.zeros(*shape), x)


def _tiled(x: Expr, have: Shape, times: Sequence[int]) -> Expr | None:
    """Return X, of sizes HAVE, repeated along each dimension as often as TIMES says, as `torch.Tensor.repeat` does. If
    TIMES has more numbers than HAVE, X gets more dimensions first. None for more than 64 copies in all, or if TIMES has
    fewer numbers than HAVE.
    """
    if prod(times) > _TILES or len(times) < len(have):
        return None
    x = ex.reshape(x, (1,) * (len(times) - len(have)) + have, have)
    for dim, count in enumerate(times):
        x = ex.cat(dim, *[x] * count)
    return x


def _count(x: Expr) -> int:
    """Return the number of operations and keys in X."""
    return 1 + sum(map(_count, x.args))


__all__ = ["Derived"]
