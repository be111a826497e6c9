"""Operations that keep every value and change only its place: views, each with an inverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ...tensor import LazyTensor
from .operation import Expr, Shape, View, listed, need, shape_of, simplified
from .storages import permuted, reshaped


class Transpose(View):
    """The operation `transpose(x)`: x with its last two dimensions swapped. It is its own inverse."""

    name, usage = "transpose", "transpose(x)"
    summary = "x with its last two dimensions swapped"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `transpose(x)`: those of x with the last two swapped. Raise RuleError if x has less than
        two.
        """
        (shape,) = shapes
        need(len(shape) >= 2, "transpose needs two dimensions")
        return (*shape[:-2], shape[-1], shape[-2])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return X with its last two dimensions swapped, as a view."""
        n = len(x.shape)
        return permuted(x, *range(n - 2), n - 1, n - 2)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return X as it is, but x for X = `transpose(transpose(x))`."""
        return transpose(x.args[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `transpose(x)`: transposed
        again.
        """
        return [transpose(value)]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.mT` for the text ARGS[0]."""
        return f"{args[0]}.mT"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return [the sizes of x] for the sizes SHAPE of the result of `transpose(x)`: the last two swapped."""
        return [(*shape[:-2], shape[-1], shape[-2])]


class Permute(View):
    """The operation `permute(x, dims…)`: x with its dimensions in another order, as torch.permute."""

    name, usage = "permute", "permute(x, dims…)"
    summary = "x with its dimensions in this order, as torch.permute"
    params = "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `permute(x, dims…)`: dimension i of the result is dimension dims[i] of x. Raise RuleError
        if dims do not name each dimension once.
        """
        (shape,) = shapes
        need(sorted(params) == list(range(len(shape))), f"permute names {list(params)} of {len(shape)} dimensions")
        return tuple(shape[d] for d in params)

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return X with its dimensions in the order PARAMS, as a view."""
        return permuted(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return an expression that equals the permutation X, with fewer operations if possible: a reshape to the
        permuted sizes, if X permutes a reshape and moves only dimensions of size 1 past others; one permutation, if X
        permutes a permutation; the tensor inside of X, if X, or both permutations together, change nothing. Else an
        expression equal to X.
        """
        inner, dims = x.args[0], [int(d) for d in x.params]
        if inner.op == "reshape":
            sizes = [int(n) for n in inner.params]
            moved = [d for d in dims if sizes[d] != 1]
            if moved == sorted(moved):
                return simplified(reshape(inner, [sizes[d] for d in dims]), shapes)
        return permute(inner, *dims)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `permute(x, dims…)`: each
        dimension moved back.
        """
        return [permute(value, *sorted(range(len(x.params)), key=lambda new: x.params[new]))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.permute(dims)` for the text ARGS[0] and the dimensions PARAMS."""
        return f"{args[0]}.permute({listed(params) or '()'})"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return [the sizes of x] for the sizes SHAPE of the result of `permute(x, dims…)`: those in their
        old order.
        """
        return [tuple(shape[params.index(d)] for d in range(len(shape)))]


class Reshape(View):
    """The operation `reshape(x, sizes…)`: the values of x in C order with other sizes, as torch.reshape."""

    name, usage = "reshape", "reshape(x, sizes…)"
    summary = "the values of x in C order, with these sizes"
    params = "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `reshape(x, sizes…)`: PARAMS. Raise RuleError if x has another number of elements."""
        (shape,) = shapes
        need(prod(shape) == prod(params), f"{list(shape)} cannot be seen as {list(params)}")
        return tuple(params)

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return the values of X in C order with the sizes PARAMS."""
        return reshaped(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Return an expression that equals the reshape X, with fewer operations if possible: of several reshapes in a
        row only the outermost stays, and the tensor inside of them is returned alone if it has the sizes of X already.
        SHAPES has the sizes of each key.
        """
        inner = x.args[0]
        while inner.op == self.name:
            inner = inner.args[0]
        return inner if shape_of(inner, shapes) == x.params else replace(x, args=(inner,))

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `reshape(x, sizes…)`:
        reshaped to its old sizes.
        """
        return [reshape(value, shape_of(x.args[0], shapes))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.reshape(sizes)` for the text ARGS[0] and the sizes PARAMS."""
        return f"{args[0]}.reshape({listed(params) or '()'})"


class Rotary(View):
    """The operation `rotary(x, heads, half|interleaved)`: rows of queries or keys, moved to this order of a kind of
    rotary embedding from the other order.

    In "half" order, row i of a head is rotated with row i + d/2 (d: rows of a head); in "interleaved" order, row 2i
    with row 2i + 1.
    """

    name, usage = "rotary", "rotary(x, heads, half|interleaved)"
    summary = "rows of queries or keys in the order of that kind of rotary embedding"
    calls = True
    helper = '''\
def rotary(x: Tensor, heads: int, order: str) -> Tensor:
    """Order the rows of each head for rotary embeddings that turn pairs of them.

    A pair is rows i and i + d/2 ("half"), or rows 2i and 2i + 1 ("interleaved").
    """
    pairs = (-1, 2) if order == "half" else (2, -1)
    return x.unflatten(0, (heads, *pairs)).transpose(1, 2).flatten(0, 2)
'''
    params = "iw"
    keeps_sizes = True

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `rotary(x, heads, order)`: those of x. Raise RuleError if 2 * heads does not divide the
        rows, or for an unknown order.
        """
        (shape,), (heads, to) = shapes, params
        need(bool(shape) and heads > 0 and shape[0] % (2 * heads) == 0, f"{list(shape)} has no {heads} heads of pairs")
        need(to in ("half", "interleaved"), f"{to!r} is neither half nor interleaved")
        return shape

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return the rows of X moved to the order in PARAMS (heads, order): the d rows of each head reshaped to [d/2,
        2] for "half" or [2, d/2] for "interleaved", and these two dimensions swapped.
        """
        heads, to = params
        d, rest = x.shape[0] // heads, x.shape[1:]
        inner = (heads, d // 2, 2, *rest) if to == "half" else (heads, 2, d // 2, *rest)
        return reshaped(permuted(reshaped(x, *inner), 0, 2, 1, *range(3, 3 + len(rest))), *x.shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `rotary(x, heads, order)`:
        rows in the other order.
        """
        heads, to = x.params
        return [rotary(value, int(heads), "half" if to == "interleaved" else "interleaved")]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a call of the helper `rotary` for the text ARGS[0] and PARAMS (heads, order)."""
        return f'rotary({args[0]}, {params[0]}, "{params[1]}")'


class Flatten(View):
    """The operation `flatten(x, c, h, w, nchw|nhwc)`: the columns (the last dimension) of a linear layer that takes
    flattened images, moved to this order from the other: images are flattened as [c, h, w] (nchw) or [h, w, c] (nhwc).
    """

    name, usage = "flatten", "flatten(x, c, h, w, nchw|nhwc)"
    summary = "columns in the order that flattening images [c, h, w] this way gives"
    params = "iiiw"
    keeps_sizes = True

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `flatten(x, c, h, w, order)`: those of x. Raise RuleError if the last is not c * h * w,
        or for an unknown order.
        """
        (shape,), (c, h, w, to) = shapes, params
        need(len(shape) >= 1 and shape[-1] == c * h * w, f"{list(shape)} does not take {c} x {h} x {w} features")
        need(to in ("nchw", "nhwc"), f"{to!r} is neither nchw nor nhwc")
        return shape

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Return X with its columns moved, for PARAMS (c, h, w, order): reshaped to [c, h, w] for "nhwc", where the
        channels become the last of the three, or to [h, w, c] for "nchw", where they become the first.
        """
        c, h, w, to = params
        lead = x.shape[:-1]
        n = len(lead)
        if to == "nhwc":
            inner = permuted(reshaped(x, *lead, c, h, w), *range(n), n + 1, n + 2, n)
        else:
            inner = permuted(reshaped(x, *lead, h, w, c), *range(n), n + 2, n, n + 1)
        return reshaped(inner, *x.shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `flatten(x, c, h, w,
        order)`: columns in the other order.
        """
        c, h, w, to = x.params
        return [flatten(value, int(c), int(h), int(w), "nchw" if to == "nhwc" else "nhwc")]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.unflatten(-1, (c, h, w)).movedim(-3, -1).flatten(-3)` for the text ARGS[0] and
        PARAMS (c, h, w, "nhwc"); for "nchw" `x.unflatten(-1, (h, w, c)).movedim(-1, -3).flatten(-3)`.
        """
        return (
            f"{args[0]}.unflatten(-1, ({listed(params[:3])})).movedim(-3, -1).flatten(-3)"
            if params[3] == "nhwc"
            else f"{args[0]}.unflatten(-1, ({params[1]}, {params[2]}, {params[0]})).movedim(-1, -3).flatten(-3)"
        )


def transpose(x: Expr) -> Expr:
    """Return the expression of X with its last two dimensions swapped; for a transposition, the tensor inside of it."""
    return x.args[0] if x.op == "transpose" else Expr("transpose", (x,))


def permute(x: Expr, *dims: int) -> Expr:
    """Return the expression of X with its dimensions in the order DIMS, as torch.permute. Two permutations in a row
    become one. X itself if DIMS change nothing; the tensor inside of X if two permutations cancel each other.
    """
    if dims == tuple(range(len(dims))):
        return x
    if x.op == "permute":
        return permute(x.args[0], *(int(x.params[d]) for d in dims))
    return Expr("permute", (x,), dims)


def reshape(x: Expr, shape: Sequence[int], old: Sequence[int] | None = None) -> Expr:
    """Return the expression of X reshaped to SHAPE, or X itself if OLD, the sizes of X, equals SHAPE; without OLD,
    always a reshape. If X is a reshape, the new one takes the tensor inside of X: there are never two in a row.
    """
    if old is not None and tuple(shape) == tuple(old):
        return x
    if x.op == "reshape":
        x = x.args[0]
    return Expr("reshape", (x,), tuple(shape))


def is_transposed(x: Expr) -> bool:
    """Return whether the outermost operation of X is `transpose`. `permute` is another operation."""
    return x.op == "transpose"


def unreshaped(x: Expr) -> Expr:
    """Return X without the reshapes around it; X itself if there are none."""
    while x.op == "reshape":
        x = x.args[0]
    return x


def rotary(x: Expr, heads: int, to: str) -> Expr:
    """Return the expression of X with the rows of each head moved to the order TO ("half" or "interleaved") of a kind
    of rotary embedding, from the other order.
    """
    return Expr("rotary", (x,), (heads, to))


def flatten(x: Expr, c: int, h: int, w: int, to: str) -> Expr:
    """Return the expression of X with its columns moved to the order TO ("nchw" or "nhwc") of flattened images [C, H,
    W], from the other order.
    """
    return Expr("flatten", (x,), (c, h, w, to))
