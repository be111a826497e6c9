"""Operations that keep every value and change its place: views with an inverse each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ...tensor import LazyTensor
from .operation import Expr, Shape, View, listed, need, shape_of
from .storages import permuted, reshaped


class Transpose(View):
    """Swap the last two dimensions; it is its own inverse."""

    name, usage = "transpose", "transpose(x)"
    summary = "x with its last two dimensions swapped"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """[..., n, m] -> [..., m, n]."""
        (shape,) = shapes
        need(len(shape) >= 2, "transpose needs two dimensions")
        return (*shape[:-2], shape[-1], shape[-2])

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Swap sizes and strides."""
        n = len(x.shape)
        return permuted(x, *range(n - 2), n - 1, n - 2)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Two of them are none."""
        return transpose(x.args[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Swap them again."""
        return [transpose(value)]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Its property."""
        return f"{args[0]}.mT"


class Permute(View):
    """Reorder dimensions, as torch.permute."""

    name, usage = "permute", "permute(x, dims…)"
    summary = "x with its dimensions in this order, as torch.permute"
    params = "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Size I of the result is that of dimension params[I]."""
        (shape,) = shapes
        need(sorted(params) == list(range(len(shape))), f"permute names {list(params)} of {len(shape)} dimensions")
        return tuple(shape[d] for d in params)

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """Reorder sizes and strides."""
        return permuted(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Two of them are one, and one that changes nothing is none."""
        return permute(x.args[0], *map(int, x.params))

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Put each dimension back where it was."""
        return [permute(value, *sorted(range(len(x.params)), key=lambda new: x.params[new]))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The method of tensors."""
        return f"{args[0]}.permute({listed(params) or '()'})"


class Reshape(View):
    """Give other sizes to the same values in C order."""

    name, usage = "reshape", "reshape(x, sizes…)"
    summary = "the values of x in C order, with these sizes"
    params = "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes are the parameters; the number of elements stays."""
        (shape,) = shapes
        need(prod(shape) == prod(params), f"{list(shape)} cannot be seen as {list(params)}")
        return tuple(params)

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """The bytes in C order with other sizes."""
        return reshaped(x, *params)

    def simplified(self, x: Expr, shapes: Mapping[str, Shape]) -> Expr:
        """Only the last of several counts, and one to the sizes that are there already is none."""
        inner = x.args[0]
        while inner.op == self.name:
            inner = inner.args[0]
        return inner if shape_of(inner, shapes) == x.params else replace(x, args=(inner,))

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Give back the sizes before."""
        return [reshape(value, shape_of(x.args[0], shapes))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The method of tensors."""
        return f"{args[0]}.reshape({listed(params) or '()'})"


class Rotary(View):
    """Reorder the rows of each head of queries or keys for another kind of rotary embedding.

    In "half" order, row i of a head turns together with row i + d/2; in "interleaved" order, with its neighbour.
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

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes stay; the rows are those of heads with an even number of rows each."""
        (shape,), (heads, to) = shapes, params
        need(bool(shape) and heads > 0 and shape[0] % (2 * heads) == 0, f"{list(shape)} has no {heads} heads of pairs")
        need(to in ("half", "interleaved"), f"{to!r} is neither half nor interleaved")
        return shape

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """See the rows of a head as pairs, and swap the two dimensions of these."""
        heads, to = params
        d, rest = x.shape[0] // heads, x.shape[1:]
        inner = (heads, d // 2, 2, *rest) if to == "half" else (heads, 2, d // 2, *rest)
        return reshaped(permuted(reshaped(x, *inner), 0, 2, 1, *range(3, 3 + len(rest))), *x.shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Into the other order."""
        heads, to = x.params
        return [rotary(value, int(heads), "half" if to == "interleaved" else "interleaved")]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A helper."""
        return f'rotary({args[0]}, {params[0]}, "{params[1]}")'


class Flatten(View):
    """Reorder the columns of a layer on flattened images for another order of flattening."""

    name, usage = "flatten", "flatten(x, c, h, w, nchw|nhwc)"
    summary = "columns in the order in which images [c, h, w] are flattened so"
    params = "iiiw"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes stay; the last is c x h x w."""
        (shape,), (c, h, w, to) = shapes, params
        need(len(shape) >= 1 and shape[-1] == c * h * w, f"{list(shape)} does not take {c} x {h} x {w} features")
        need(to in ("nchw", "nhwc"), f"{to!r} is neither nchw nor nhwc")
        return shape

    def view(self, x: LazyTensor, params: tuple[Any, ...]) -> LazyTensor:
        """See the columns as an image, and move the channels."""
        c, h, w, to = params
        lead = x.shape[:-1]
        n = len(lead)
        if to == "nhwc":
            inner = permuted(reshaped(x, *lead, c, h, w), *range(n), n + 1, n + 2, n)
        else:
            inner = permuted(reshaped(x, *lead, h, w, c), *range(n), n + 2, n, n + 1)
        return reshaped(inner, *x.shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Into the other order."""
        c, h, w, to = x.params
        return [flatten(value, int(c), int(h), int(w), "nchw" if to == "nhwc" else "nhwc")]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The columns as an image, its channels moved, and columns again."""
        return (
            f"{args[0]}.unflatten(-1, ({listed(params[:3])})).movedim(-3, -1).flatten(-3)"
            if params[3] == "nhwc"
            else f"{args[0]}.unflatten(-1, ({params[1]}, {params[2]}, {params[0]})).movedim(-1, -3).flatten(-3)"
        )


def transpose(x: Expr) -> Expr:
    """X with its last two dimensions swapped."""
    return x.args[0] if x.op == "transpose" else Expr("transpose", (x,))


def permute(x: Expr, *dims: int) -> Expr:
    """X with its dimensions in another order, as torch.permute."""
    if dims == tuple(range(len(dims))):
        return x
    if x.op == "permute":
        return permute(x.args[0], *(int(x.params[d]) for d in dims))
    return Expr("permute", (x,), dims)


def reshape(x: Expr, shape: Sequence[int], old: Sequence[int] | None = None) -> Expr:
    """X with other sizes; X itself if OLD, its sizes, are these."""
    if old is not None and tuple(shape) == tuple(old):
        return x
    if x.op == "reshape":
        x = x.args[0]
    return Expr("reshape", (x,), tuple(shape))


def is_transposed(x: Expr) -> bool:
    """Whether the last step that makes X swaps its last two dimensions."""
    return x.op == "transpose"


def unreshaped(x: Expr) -> Expr:
    """X before it got other sizes, if that is the last step that makes it."""
    while x.op == "reshape":
        x = x.args[0]
    return x


def rotary(x: Expr, heads: int, to: str) -> Expr:
    """The rows of X in the order ("half", "interleaved") of a kind of rotary embedding."""
    return Expr("rotary", (x,), (heads, to))


def flatten(x: Expr, c: int, h: int, w: int, to: str) -> Expr:
    """The columns of X in the order ("nchw", "nhwc") of flattened images of C channels and H x W pixels."""
    return Expr("flatten", (x,), (c, h, w, to))
