"""Operations that cut a tensor into parts, and those that join parts: each is the other's inverse.

slice    <-> cat        parts one after the other along a dimension
select   <-> stack      parts of one element of the first dimension
of_heads <-> by_heads   parts that alternate by head
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import gcd
from typing import Any

from ...tensor import LazyTensor
from .operation import OPERATIONS, Expr, Operation, Shape, View, listed, need, shape_of, simplified, widest
from .storages import join, reshaped, selected, sliced


class Cut(View):
    """An operation that gives a part of a tensor."""

    @abstractmethod
    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """The tensor of sizes SHAPE from VALUES, its parts in order, with the parameters that cut each; None where
        these are not all of it.
        """

    @abstractmethod
    def begins(self, params: tuple[Any, ...]) -> int:
        """Where the part begins, to put parts in order by."""


class Slice(Cut):
    """Some elements of a dimension."""

    name, usage = "slice", "slice(x, dim, start, stop)"
    summary = "elements start to stop - 1 of dimension dim"
    params = "iii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Size DIM is stop - start."""
        (shape,), (dim, start, stop) = shapes, params
        fits = 0 <= dim < len(shape) and 0 <= start < stop <= shape[dim]
        need(fits, f"no elements {start} to {stop} in {list(shape)}")
        return (*shape[:dim], stop - start, *shape[dim + 1 :])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """A later beginning and a smaller size."""
        return sliced(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """All elements are no slice; a slice of a slice is one; that of joined parts is one of the parts it is in."""
        (inner,), (dim, start, stop) = x.args, map(int, x.params)
        if start == 0 and stop == shape_of(inner, shapes)[dim]:
            return inner
        if inner.op == "slice" and inner.params[0] == dim:
            first = int(inner.params[1])
            return simplified(part(inner.args[0], dim, first + start, first + stop), shapes)
        if inner.op == "cat" and inner.params[0] == dim:
            at, kept = 0, []
            for piece in inner.args:
                size = shape_of(piece, shapes)[dim]
                low, high = max(start - at, 0), min(stop - at, size)
                if low < high:
                    kept.append(piece if (low, high) == (0, size) else part(piece, dim, low, high))
                at += size
            return simplified(cat(dim, *kept), shapes)
        if inner.op == "reshape" and dim == 0 and shape_of(inner.args[0], shapes)[:1] == inner.params[:1]:
            rows = simplified(part(inner.args[0], 0, start, stop), shapes)
            return simplified(Expr("reshape", (rows,), (stop - start, *inner.params[1:])), shapes)
        if inner.op == "zeros" and dim == 0:
            return replace(inner, params=(stop - start, *inner.params[1:]))
        return x

    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Joined along the dimension that all were cut along, from its first element to its last."""
        dim = parts[0][0]
        along = all(d == dim for d, _, _ in parts) and parts[0][1] == 0 and parts[-1][2] == shape[dim]
        return cat(dim, *values) if along and all(a[2] == b[1] for a, b in pairwise(parts)) else None

    def begins(self, params: tuple[Any, ...]) -> int:
        """Its first element."""
        return int(params[1])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """An index."""
        start, stop = ("" if place in (0, "0") else str(place) for place in params[1:])
        between = ":"
        if " " in start + stop:  # as formatters have it
            between = " : " if start else ": "
        return f"{args[0]}[{':, ' * params[0]}{start}{between}{stop}]"


class Select(Cut):
    """One element of a dimension, which goes away."""

    name, usage = "select", "select(x, dim, index)"
    summary = "one element of dimension dim, which goes away"
    params = "ii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes without that of DIM."""
        (shape,), (dim, index) = shapes, params
        fits = 0 <= dim < len(shape) and 0 <= index < shape[dim]
        need(fits, f"no element {index} in dimension {dim} of {list(shape)}")
        return (*shape[:dim], *shape[dim + 1 :])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """A later beginning, and a dimension less."""
        return selected(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """One of the tensors that were stacked is that tensor."""
        (inner,), (dim, index) = x.args, map(int, x.params)
        return inner.args[index] if inner.op == "stack" and dim == 0 else x

    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Stacked, if these are all elements of the first dimension."""
        return stack(*values) if list(parts) == [(0, i) for i in range(shape[0])] else None

    def begins(self, params: tuple[Any, ...]) -> int:
        """Its index."""
        return int(params[1])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """An index."""
        return f"{args[0]}[{':, ' * params[0]}{params[1]}]"


class OfHeads(Cut):
    """Some of N equal parts of the rows that alternate by head, as those of fused projections often do."""

    name, usage = "of_heads", "of_heads(x, heads, n, i[, j])"
    summary = "rows of part i, or of parts i to j - 1, of n parts that alternate by head"
    calls = True
    helper = '''\
def of_heads(x: Tensor, heads: int, parts: int, start: int, stop: int) -> Tensor:
    """Return the rows of some of the parts that alternate by head."""
    return x.unflatten(0, (heads, parts, -1))[:, start:stop].flatten(0, 2)
'''
    params = "iiii?"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Of the rows, (j - i) / n."""
        (shape,), (heads, n, start, stop) = shapes, _with_end(params)
        fits = bool(shape) and heads * n > 0 and shape[0] % (heads * n) == 0
        need(fits, f"{list(shape)} has no {heads} heads of {n} parts")
        need(0 <= start < stop <= n, f"no parts {start} to {stop} of {n}")
        return (shape[0] // n * (stop - start), *shape[1:])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """See the rows as [heads, n, rows of a part], and slice the second dimension."""
        heads, n, start, stop = _with_end(params)
        d = x.shape[0] // (heads * n)
        inner = sliced(reshaped(x, heads, n, d, *x.shape[1:]), 1, start, stop)
        return reshaped(inner, heads * (stop - start) * d, *x.shape[1:])

    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Alternating by head, if these are all parts of as many heads."""
        ends = [_with_end(params) for params in parts]
        heads, n, first, _ = ends[0]
        along = first == 0 and ends[-1][3] == n and all(params[:2] == (heads, n) for params in ends)
        return by_heads(heads, *values) if along and all(a[3] == b[2] for a, b in pairwise(ends)) else None

    def begins(self, params: tuple[Any, ...]) -> int:
        """Its first part."""
        return int(params[2])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A helper."""
        return f"of_heads({args[0]}, {listed(_with_end(params))})"


def _with_end(params: tuple[Any, ...]) -> tuple[int, int, int, int]:
    heads, n, start, *stop = params
    return heads, n, start, stop[0] if stop else start + 1


class Join(Operation):
    """An operation that puts tensors together to one."""

    takes = 0

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """All parts of a tensor, joined as they were cut, are that tensor."""
        first = x.args[0]
        cut = OPERATIONS.get(first.op)
        if isinstance(cut, Cut) and all((arg.op, arg.args) == (first.op, first.args) for arg in x.args):
            (inner,) = first.args
            if cut.whole(x.args, [arg.params for arg in x.args], shape_of(inner, shapes)) == x:
                return inner
        return x


class Cat(Join):
    """Join tensors along a dimension."""

    name, usage = "cat", "cat(dim, x, y, …)"
    summary = "tensors joined along dimension dim"
    calls = True
    first, params = 1, "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Size DIM is the sum; the others are equal."""
        (dim,) = params
        need(all(dim < len(s) for s in shapes), f"there is no dimension {dim} to join along")
        rest = {(*s[:dim], *s[dim + 1 :]) for s in shapes}
        alike = len(rest) == 1 and len({len(s) for s in shapes}) == 1
        need(alike, f"cannot join {', '.join(str(list(s)) for s in shapes[:4])}")
        return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """The bytes of the parts, one after the other or in turns."""
        return join(params[0], parts, widest(parts), shape)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Parts that are joined themselves are parts of this; neighbouring slices of one tensor are one."""
        merged = _merged(x.args, int(x.params[0]))
        return cat(int(x.params[0]), *(simplified(arg, shapes) if arg.op == "slice" else arg for arg in merged))

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """A slice for each."""
        dim, at, found = int(x.params[0]), 0, []
        for arg in x.args:
            size = shape_of(arg, shapes)[dim]
            found.append(part(value, dim, at, at + size))
            at += size
        return found

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The function of torch."""
        return f"torch.cat([{listed(args)}], dim={params[0]})"


def _merged(parts: Sequence[Expr], dim: int) -> list[Expr]:
    out: list[Expr] = []
    for x in parts:
        for one in x.args if x.op == "cat" and x.params[0] == dim else (x,):
            last = out[-1] if out else None
            if (
                last is not None
                and last.op == one.op == "slice"
                and last.args == one.args
                and last.params[0] == one.params[0] == dim
                and last.params[2] == one.params[1]
            ):
                out[-1] = replace(last, params=(dim, last.params[1], one.params[2]))
            else:
                out.append(one)
    return out


class Stack(Join):
    """Join tensors of equal sizes along a new first dimension."""

    name, usage = "stack", "stack(x, y, …)"
    summary = "tensors joined along a new first dimension"
    calls = True

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """[number of tensors, their sizes]."""
        need(len(set(shapes)) == 1, f"cannot stack {', '.join(str(list(s)) for s in shapes[:4])}")
        return (len(shapes), *shapes[0])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """The bytes of the parts, one after the other."""
        return join(0, [reshaped(p, 1, *p.shape) for p in parts], widest(parts), shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """One element for each."""
        return [select(value, 0, i) for i in range(len(x.args))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The function of torch."""
        return f"torch.stack([{listed(args)}])"


class ByHeads(Join):
    """Join the rows of tensors so that they alternate by head."""

    name, usage = "by_heads", "by_heads(heads, x, y, …)"
    summary = "rows of several tensors, which alternate by head"
    calls = True
    helper = '''\
def by_heads(heads: int, *parts: Tensor) -> Tensor:
    """Join the rows of several tensors so that they alternate by head."""
    return torch.cat([x.unflatten(0, (heads, -1)) for x in parts], dim=1).flatten(0, 1)
'''
    first, params = 1, "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The rows are the sum; the other sizes are equal."""
        (heads,) = params
        fits = heads > 0 and len({s[1:] for s in shapes}) == 1 and all(s and s[0] % heads == 0 for s in shapes)
        need(fits, f"cannot interleave {len(shapes)} parts by {heads} heads")
        return (sum(s[0] for s in shapes), *shapes[0][1:])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """See the rows of each as [heads, rows of a head], and join along the second dimension."""
        (heads,) = params
        cut = [reshaped(p, heads, p.shape[0] // heads, *p.shape[1:]) for p in parts]
        rows = sum(p.shape[1] for p in cut)
        return reshaped(join(1, cut, widest(parts), (heads, rows, *shape[1:])), *shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """The parts of each head that belong to each."""
        heads = int(x.params[0])
        return cut_by_heads(value, heads, [shape_of(arg, shapes)[0] // heads for arg in x.args])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A helper."""
        return f"by_heads({params[0]}, {listed(args)})"


def part(x: Expr, dim: int, start: int, stop: int) -> Expr:
    """The elements START to STOP (excluded) of dimension DIM."""
    return Expr("slice", (x,), (dim, start, stop))


def select(x: Expr, dim: int, index: int) -> Expr:
    """Element INDEX of dimension DIM, which goes away."""
    return Expr("select", (x,), (dim, index))


def of_heads(x: Expr, heads: int, n: int, index: int) -> Expr:
    """Part INDEX of the N parts of X that alternate by head."""
    return Expr("of_heads", (x,), (heads, n, index))


def cut_by_heads(x: Expr, heads: int, rows: Sequence[int]) -> list[Expr]:
    """The parts of X that alternate by head, where each head holds so many ROWS of each."""
    unit = gcd(*rows)
    n, at, found = sum(rows) // unit, 0, []
    for row in rows:
        edges = (at, at + row // unit)
        found.append(Expr("of_heads", (x,), (heads, n, *(edges if row > unit else edges[:1]))))
        at = edges[1]
    return found


def cat(dim: int, *parts: Expr) -> Expr:
    """PARTS joined along DIM; one part alone is itself."""
    return parts[0] if len(parts) == 1 else Expr("cat", parts, (dim,))


def stack(*parts: Expr) -> Expr:
    """PARTS along a new first dimension."""
    return Expr("stack", parts)


def by_heads(heads: int, *parts: Expr) -> Expr:
    """The rows of PARTS, alternating by head."""
    return Expr("by_heads", parts, (heads,))


def is_selected(x: Expr) -> bool:
    """Whether X is one element of a dimension of a tensor."""
    return x.op == "select"


def rows_cut(x: Expr) -> tuple[Expr, int, int] | None:
    """The tensor that X is a slice of the rows of, its first row and the one after its last; None if X is none."""
    return (x.args[0], int(x.params[1]), int(x.params[2])) if x.op == "slice" and x.params[0] == 0 else None


def rows_joined(x: Expr) -> tuple[Expr, ...] | None:
    """The parts that X joins along the rows, or None if X joins none."""
    return x.args if x.op == "cat" and x.params == (0,) else None
