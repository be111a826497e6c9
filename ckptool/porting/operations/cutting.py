"""Operations that cut a tensor into parts, and operations that join parts. Each is the inverse of the other:

slice    <-> cat        parts one after the other along a dimension
select   <-> stack      each part is one element of the first dimension
of_heads <-> by_heads   each head holds some rows of every part
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
    """An operation that returns a part of a tensor."""

    @abstractmethod
    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Return the expression that joins VALUES, the parts of one tensor of sizes SHAPE, to this whole tensor. PARTS
        has, for each value, the parameters of this operation that cut it out of the tensor; both are sorted by the
        place where a part begins (`begins`). None if the parts do not cover the tensor, each element once.
        """

    @abstractmethod
    def begins(self, params: tuple[Any, ...]) -> int:
        """Return the place where the part cut with PARAMS begins, by which parts are sorted."""


class Slice(Cut):
    """The operation `slice(x, dim, start, stop)`: elements start to stop - 1 of dimension dim."""

    name, usage = "slice", "slice(x, dim, start, stop)"
    summary = "elements start to stop - 1 of dimension dim"
    params = "iii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `slice(x, dim, start, stop)`: those of x, with stop - start in dimension dim. Raise
        RuleError if x does not have all of these elements, or if stop is not above start.
        """
        (shape,), (dim, start, stop) = shapes, params
        fits = 0 <= dim < len(shape) and 0 <= start < stop <= shape[dim]
        need(fits, f"no elements {start} to {stop} in {list(shape)}")
        return (*shape[:dim], stop - start, *shape[dim + 1 :])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return the elements of X that PARAMS (dim, start, stop) name, as a view."""
        return sliced(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return an expression that equals the slice X, made by the first of these rules that fits and simplified in
        turn; X itself if none fits. The tensor inside of X is simplified already. SHAPES has the sizes of each key.

        - A slice of all elements of its dimension is the tensor inside of X.
        - A slice of a slice along the same dimension is one slice.
        - A slice of a `cat` along the same dimension joins the parts that it covers, cut where it begins and ends.
        - Rows (dimension 0) of a reshape that keeps the number of rows are a reshape of these rows.
        - Rows of zeros are zeros.
        """
        (inner,), (dim, start, stop) = x.args, map(int, x.params)
        if start == 0 and stop == shape_of(inner, shapes)[dim]:
            return inner
        if inner.op == "slice" and inner.params[0] == dim:
            first = int(inner.params[1])
            return simplified(part(inner.args[0], dim, first + start, first + stop), shapes)
        if inner.op == "cat" and inner.params[0] == dim:
            return simplified(_across(inner.args, dim, start, stop, shapes), shapes)
        if inner.op == "reshape" and dim == 0 and shape_of(inner.args[0], shapes)[:1] == inner.params[:1]:
            rows = simplified(part(inner.args[0], 0, start, stop), shapes)
            return simplified(Expr("reshape", (rows,), (stop - start, *inner.params[1:])), shapes)
        if inner.op == "zeros" and dim == 0:
            return replace(inner, params=(stop - start, *inner.params[1:]))
        return x

    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Return the `cat` of VALUES along the dimension of their slices PARTS, (dim, start, stop) for each value; a
        single value itself. None if the slices are along several dimensions, or if, in their order, they do not cover
        this dimension of a tensor of sizes SHAPE from start to end without gaps.
        """
        dim = parts[0][0]
        along = all(d == dim for d, _, _ in parts) and parts[0][1] == 0 and parts[-1][2] == shape[dim]
        return cat(dim, *values) if along and all(a[2] == b[1] for a, b in pairwise(parts)) else None

    def begins(self, params: tuple[Any, ...]) -> int:
        """Return the index of the first element of a slice with PARAMS (dim, start, stop)."""
        return int(params[1])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code of a slice, `x[:, start:stop]`, for the text ARGS[0] and PARAMS (dim, start, stop),
        where start and stop are numbers or codes. A start of 0 is left out. If one of them has a space in it, the colon
        has spaces, too: `x[2 * n : 2 * n + 2]`, or `x[: n + 1]` without a start.
        """
        start, stop = ("" if place in (0, "0") else str(place) for place in params[1:])
        between = ":"
        if " " in start + stop:  # as formatters have it
            between = " : " if start else ": "
        return f"{args[0]}[{':, ' * params[0]}{start}{between}{stop}]"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return [sizes of x], for the sizes SHAPE of the result and PARAMS (dim, start, stop): in dimension dim, x has
        at least stop elements.
        """
        dim, _, stop = params
        return [(*shape[:dim], stop, *shape[dim + 1 :])]


class Select(Cut):
    """The operation `select(x, dim, index)`: element index of dimension dim, without that dimension."""

    name, usage = "select", "select(x, dim, index)"
    summary = "one element of dimension dim, which goes away"
    params = "ii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `select(x, dim, index)`: those of x without dimension dim. Raise RuleError if x has no
        such element.
        """
        (shape,), (dim, index) = shapes, params
        fits = 0 <= dim < len(shape) and 0 <= index < shape[dim]
        need(fits, f"no element {index} in dimension {dim} of {list(shape)}")
        return (*shape[:dim], *shape[dim + 1 :])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return the element of X that PARAMS (dim, index) name, as a view with one dimension less."""
        return selected(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return the tensor that X selects from a stack of tensors, if X does that along dimension 0; else X."""
        (inner,), (dim, index) = x.args, map(int, x.params)
        return inner.args[index] if inner.op == "stack" and dim == 0 else x

    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Return the expression that stacks VALUES, if PARTS (dim, index) are all elements of the first dimension of a
        tensor of sizes SHAPE in order; else None.
        """
        return stack(*values) if list(parts) == [(0, i) for i in range(shape[0])] else None

    def begins(self, params: tuple[Any, ...]) -> int:
        """Return the index of the element that PARAMS (dim, index) select."""
        return int(params[1])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code of an index, `x[:, index]`, for the text ARGS[0] and PARAMS (dim, index)."""
        return f"{args[0]}[{':, ' * params[0]}{params[1]}]"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return [sizes of x], for the sizes SHAPE of the result and PARAMS (dim, index): x has one dimension more,
        with at least index + 1 elements.
        """
        dim, index = params
        return [(*shape[:dim], index + 1, *shape[dim:])]


class OfHeads(Cut):
    """The operation `of_heads(x, heads, n, i[, j])`: parts i to j - 1 of the n equal parts of rows that each head has;
    without j, part i alone.

    The rows of a fused projection are often stored head by head: queries, keys and values of head 0, then of head 1.
    For 12 heads, `of_heads(x, 12, 3, 0)` has the queries of all heads.
    """

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
        """Return the sizes of `of_heads(x, heads, n, i[, j])`: those of x, with (j - i) / n of its rows. Raise
        RuleError if heads * n does not divide the rows, or if there are no parts i to j - 1.
        """
        (shape,), (heads, n, start, stop) = shapes, _with_end(params)
        fits = bool(shape) and heads * n > 0 and shape[0] % (heads * n) == 0
        need(fits, f"{list(shape)} has no {heads} heads of {n} parts")
        need(0 <= start < stop <= n, f"no parts {start} to {stop} of {n}")
        return (shape[0] // n * (stop - start), *shape[1:])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return the rows of X in the parts that PARAMS (heads, n, i[, j]) name, in their old order: X reshaped to
        [heads, n, rows of a part], sliced along the second dimension, and reshaped to rows again (see `reshaped`).
        """
        heads, n, start, stop = _with_end(params)
        d = x.shape[0] // (heads * n)
        inner = sliced(reshaped(x, heads, n, d, *x.shape[1:]), 1, start, stop)
        return reshaped(inner, heads * (stop - start) * d, *x.shape[1:])

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return the tensor itself if X takes exactly one of the tensors that the `by_heads` inside of X joins, in the
        same number of heads; else X. SHAPES has the sizes of each key.
        """
        (inner,), (heads, n, start, stop) = x.args, _with_end(x.params)
        if inner.op == "by_heads" and inner.params == (heads,):
            unit, at = shape_of(inner, shapes)[0] // n, 0
            for piece in inner.args:
                rows = shape_of(piece, shapes)[0]
                if (at, at + rows) == (start * unit, stop * unit):
                    return piece
                at += rows
        return x

    def whole(self, values: Sequence[Expr], parts: Sequence[tuple[Any, ...]], shape: Shape) -> Expr | None:
        """Return the `by_heads` expression that joins VALUES head by head. PARTS has (heads, n, i, j), or (heads, n, i)
        for one part, of each value. None unless all have the same heads and n, and together, in their order, are the
        parts 0 to n - 1 without gaps. SHAPE does not count.
        """
        ends = [_with_end(params) for params in parts]
        heads, n, first, _ = ends[0]
        along = first == 0 and ends[-1][3] == n and all(params[:2] == (heads, n) for params in ends)
        return by_heads(heads, *values) if along and all(a[3] == b[2] for a, b in pairwise(ends)) else None

    def begins(self, params: tuple[Any, ...]) -> int:
        """Return i of PARAMS (heads, n, i[, j]): the number of the first part that is taken."""
        return int(params[2])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a call of the helper `of_heads` for the text ARGS[0] and PARAMS (heads, n, i[, j]); j
        is always written.
        """
        return f"of_heads({args[0]}, {listed(_with_end(params))})"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return [the sizes of x] for the sizes SHAPE of the result and PARAMS (heads, n, i, j): all n parts, which
        have equally many rows.
        """
        _, n, start, stop = _with_end(params)
        return [(shape[0] * n // (stop - start), *shape[1:])]


def _across(parts: Sequence[Expr], dim: int, start: int, stop: int, shapes: Mapping[str, Shape]) -> Expr:
    """Return the expression of elements START to STOP - 1 of the `cat` of PARTS along dimension DIM, without the parts
    that these elements do not touch: a `cat` of the others, of which the first and the last are slices if only some of
    their elements are taken. If one part is left, it is not joined. SHAPES has the sizes of each key.
    """
    at, kept = 0, []
    for piece in parts:
        size = shape_of(piece, shapes)[dim]
        low, high = max(start - at, 0), min(stop - at, size)
        if low < high:
            kept.append(piece if (low, high) == (0, size) else part(piece, dim, low, high))
        at += size
    return cat(dim, *kept)


def _with_end(params: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """Return (heads, n, i, j) of `of_heads`; j is i + 1 if PARAMS do not have it."""
    heads, n, start, *stop = params
    return heads, n, start, stop[0] if stop else start + 1


class Join(Operation):
    """An operation that joins one or more tensors into one."""

    takes = 0
    moves = True

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return the tensor itself if X joins all parts of one tensor in their old order, each cut from it by the
        inverse of X's operation (`stack(select(t, 0, 0), select(t, 0, 1))` is `t` if t has two rows); else X.
        """
        first = x.args[0]
        cut = OPERATIONS.get(first.op)
        if isinstance(cut, Cut) and all((arg.op, arg.args) == (first.op, first.args) for arg in x.args):
            (inner,) = first.args
            if cut.whole(x.args, [arg.params for arg in x.args], shape_of(inner, shapes)) == x:
                return inner
        return x


class Cat(Join):
    """The operation `cat(dim, x, y, …)`: tensors joined along dimension dim."""

    name, usage = "cat", "cat(dim, x, y, …)"
    summary = "tensors joined along dimension dim"
    calls = True
    first, params = 1, "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `cat(dim, x, y, …)`: in dimension dim the sum, in the others the sizes that all tensors
        share. Raise RuleError if these or the numbers of dimensions differ, or if a tensor has no dimension dim.
        """
        (dim,) = params
        need(all(dim < len(s) for s in shapes), f"there is no dimension {dim} to join along")
        rest = {(*s[:dim], *s[dim + 1 :]) for s in shapes}
        alike = len(rest) == 1 and len({len(s) for s in shapes}) == 1
        need(alike, f"cannot join {', '.join(str(list(s)) for s in shapes[:4])}")
        return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a lazy tensor of sizes SHAPE that concatenates PARTS along the dimension in PARAMS: their bytes one
        after the other, or, along a later dimension than the first, the bytes of one row of each part in turn. It has
        the type and the location of the first of PARTS. Raise RuleError if PARTS are of different types.
        """
        return join(params[0], parts, widest(parts), shape)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return an expression that equals the concatenation X, with fewer operations if possible. The parts of a `cat`
        along the same dimension directly inside of X become parts of X; neighbouring slices of one tensor that continue
        each other become one slice; slices are simplified (`Slice.simplified`), so that a slice of all elements becomes
        its tensor. If one part is left, it is returned without a `cat`.
        """
        merged = _merged(x.args, int(x.params[0]))
        return cat(int(x.params[0]), *(simplified(arg, shapes) if arg.op == "slice" else arg for arg in merged))

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [expression for each part] made from VALUE, the result of the concatenation X: the slice of VALUE
        where the part is. SHAPES are the sizes of the source.
        """
        dim, at, found = int(x.params[0]), 0, []
        for arg in x.args:
            size = shape_of(arg, shapes)[dim]
            found.append(part(value, dim, at, at + size))
            at += size
        return found

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `torch.cat([…], dim=…)` for the texts ARGS and the dimension in PARAMS."""
        return f"torch.cat([{listed(args)}], dim={params[0]})"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the sizes of COUNT joined tensors for the sizes SHAPE of the result: equal sizes (rounded down),
        because the result does not show others.
        """
        (dim,) = params
        return [(*shape[:dim], shape[dim] // count, *shape[dim + 1 :])] * count


def _merged(parts: Sequence[Expr], dim: int) -> list[Expr]:
    """Return PARTS of a concatenation along dimension DIM, with the parts of each concatenation along DIM among them in
    its place, and with neighbouring slices of one tensor that continue each other as one slice. The order stays.
    """
    out: list[Expr] = []
    flat = [one for x in parts for one in (x.args if x.op == "cat" and x.params[0] == dim else (x,))]
    for x in flat:
        if out and _continues(x, out[-1], dim):
            out[-1] = replace(x, params=(dim, out[-1].params[1], x.params[2]))
        else:
            out.append(x)
    return out


def _continues(x: Expr, before: Expr, dim: int) -> bool:
    """Return whether X and BEFORE are slices of one tensor along dimension DIM, and X begins where BEFORE ends."""
    if not (x.op == before.op == "slice" and x.args == before.args):
        return False
    return x.params[0] == before.params[0] == dim and x.params[1] == before.params[2]


class Stack(Join):
    """The operation `stack(x, y, …)`: tensors of equal sizes joined along a new first dimension."""

    name, usage = "stack", "stack(x, y, …)"
    summary = "tensors joined along a new first dimension"
    calls = True

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `stack(x, y, …)`: the number of tensors, then their sizes. Raise RuleError if
        these differ.
        """
        need(len(set(shapes)) == 1, f"cannot stack {', '.join(str(list(s)) for s in shapes[:4])}")
        return (len(shapes), *shapes[0])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a lazy tensor of sizes SHAPE that has the bytes of PARTS, one after the other, and the type and
        location of the first of them. Raise RuleError if PARTS are of different types.
        """
        return join(0, [reshaped(p, 1, *p.shape) for p in parts], widest(parts), shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [expression for each stacked tensor] made from VALUE, the result of the stack X: an element
        of VALUE.
        """
        return [select(value, 0, i) for i in range(len(x.args))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `torch.stack([…])` for the texts ARGS."""
        return f"torch.stack([{listed(args)}])"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the sizes of COUNT stacked tensors for the sizes SHAPE of the result: those without the
        first dimension.
        """
        return [shape[1:]] * count


class ByHeads(Join):
    """The operation `by_heads(heads, x, y, …)`: rows of tensors joined head by head: the rows of head 0 of each tensor,
    then of head 1, and so on.
    """

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
        """Return the sizes of `by_heads(heads, x, y, …)`: the sum of the rows, and the other sizes, which all tensors
        share. Raise RuleError if these differ, or if heads does not divide the rows of each tensor.
        """
        (heads,) = params
        fits = heads > 0 and len({s[1:] for s in shapes}) == 1 and all(s and s[0] % heads == 0 for s in shapes)
        need(fits, f"cannot interleave {len(shapes)} parts by {heads} heads")
        return (sum(s[0] for s in shapes), *shapes[0][1:])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a lazy tensor of sizes SHAPE: the rows of each of PARTS reshaped to [heads, rows of a head], joined
        along the second dimension. Raise RuleError if PARTS are of different types.
        """
        (heads,) = params
        cut = [reshaped(p, heads, p.shape[0] // heads, *p.shape[1:]) for p in parts]
        rows = sum(p.shape[1] for p in cut)
        return reshaped(join(1, cut, widest(parts), (heads, rows, *shape[1:])), *shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [expression for each joined tensor] made from VALUE, the result of X = `by_heads(heads, …)`: its rows
        of every head. SHAPES are the sizes of the source.
        """
        heads = int(x.params[0])
        return cut_by_heads(value, heads, [shape_of(arg, shapes)[0] // heads for arg in x.args])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a call of the helper `by_heads` for the number of heads in PARAMS and the
        texts ARGS.
        """
        return f"by_heads({params[0]}, {listed(args)})"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the sizes of COUNT joined tensors for the sizes SHAPE of the result: equal sizes (rounded down),
        because the result does not show others.
        """
        return [(shape[0] // count, *shape[1:])] * count


def part(x: Expr, dim: int, start: int, stop: int) -> Expr:
    """Return the expression of elements START to STOP - 1 of dimension DIM of X."""
    return Expr("slice", (x,), (dim, start, stop))


def select(x: Expr, dim: int, index: int) -> Expr:
    """Return the expression of element INDEX of dimension DIM of X, without that dimension."""
    return Expr("select", (x,), (dim, index))


def of_heads(x: Expr, heads: int, n: int, index: int) -> Expr:
    """Return the expression of part INDEX of the N equal parts of rows that each of the HEADS heads of X has."""
    return Expr("of_heads", (x,), (heads, n, index))


def cut_by_heads(x: Expr, heads: int, rows: Sequence[int]) -> list[Expr]:
    """Return the expressions of the parts of X, one for each of ROWS. X has HEADS heads, one after the other, and each
    head holds ROWS[0] rows of the first part, then ROWS[1] rows of the second, and so on. Each expression is an
    `of_heads` that takes the rows of its part from all heads. It counts in n equal parts of g rows, where g is the
    greatest common divisor of ROWS: for ROWS [4, 2, 2], n is 4, and the three take parts 0 and 1, part 2, and part 3.
    """
    unit = gcd(*rows)
    n, at, found = sum(rows) // unit, 0, []
    for row in rows:
        edges = (at, at + row // unit)
        found.append(Expr("of_heads", (x,), (heads, n, *(edges if row > unit else edges[:1]))))
        at = edges[1]
    return found


def cat(dim: int, *parts: Expr) -> Expr:
    """Return the expression of PARTS joined along dimension DIM, or the part itself if there is only one."""
    return parts[0] if len(parts) == 1 else Expr("cat", parts, (dim,))


def stack(*parts: Expr) -> Expr:
    """Return the expression of PARTS stacked along a new first dimension."""
    return Expr("stack", parts)


def by_heads(heads: int, *parts: Expr) -> Expr:
    """Return the expression of the rows of PARTS, joined head by head: the rows of head 0 of each part, then of head 1,
    and so on.
    """
    return Expr("by_heads", parts, (heads,))


def is_selected(x: Expr) -> bool:
    """Return whether the outermost operation of X takes one element of a dimension (`select`)."""
    return x.op == "select"


def rows_cut(x: Expr) -> tuple[Expr, int, int] | None:
    """Return (tensor, first row, row after the last) if the outermost operation of X cuts rows from a tensor;
    else None.
    """
    return (x.args[0], int(x.params[1]), int(x.params[2])) if x.op == "slice" and x.params[0] == 0 else None


def rows_joined(x: Expr) -> tuple[Expr, ...] | None:
    """Return the parts that the outermost operation of X joins along the rows (`cat` along dimension 0); None
    for others.
    """
    return x.args if x.op == "cat" and x.params == (0,) else None
