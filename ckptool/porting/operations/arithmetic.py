"""Operations that compute element by element or over a dimension, and tensors of zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from ...tensor import LazyTensor
from .operation import REAL, Calculation, Expr, Operation, Shape, listed, need
from .storages import zeros as tensor_of_zeros


class Add(Calculation):
    """Add tensors; one may have fewer dimensions, or 1 in place of a size of the first."""

    name, usage = "add", "add(x, y, …)"
    summary = "the sum, element by element"
    infix = True
    helper = '''\
@in_float32
def total(*parts: Tensor) -> Tensor:
    """Return the sum of several tensors, which is rounded once."""
    return sum(parts[1:], parts[0])
'''
    takes = 0

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes of the first, which the others are spread to."""
        first, *others = shapes
        for one in others:
            fits = len(one) <= len(first) and all(a in (1, b) for a, b in zip(one[::-1], first[::-1], strict=False))
            need(fits, f"{list(one)} cannot be added to {list(first)}")
        return first

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """From the first to the last."""
        return sum(arrays[1:], arrays[0])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A plus; a helper for more than two, which rounds once."""
        return " + ".join(args) if len(args) == 2 else f"total({listed(args)})"


class Mul(Calculation):
    """Multiply two tensors of equal sizes."""

    name, usage = "mul", "mul(x, y)"
    summary = "the product, element by element"
    infix = True
    takes = 2

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Both have the sizes of the result."""
        x, y = shapes
        need(x == y, f"{list(x)} and {list(y)} are not of one size")
        return x

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Element by element."""
        return arrays[0] * arrays[1]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A star."""
        return f"{args[0]} * {args[1]}"


class _Elementwise(Calculation):
    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes stay."""
        return shapes[0]


class Nonzero(_Elementwise):
    """Tell zeros from other numbers: what a mask of pruning is."""

    name, usage = "nonzero", "nonzero(x)"
    summary = "1 where x is not 0, else 0"

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """0 or 1."""
        return arrays[0] != 0

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A comparison, in the type of x."""
        return f"{args[0]}.ne(0).to({args[0]}.dtype)"


class Shift(_Elementwise):
    """Add a number."""

    name, usage = "shift", "shift(x, value)"
    summary = "x + value"
    infix = True
    params = REAL

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Element by element."""
        return arrays[0] + float(params[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Take the number away again."""
        return [shift(value, -float(x.params[0]))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A plus."""
        return f"{args[0]} + {float(params[0])}" if params[0] >= 0 else f"{args[0]} - {-float(params[0])}"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """The sizes stay."""
        return [shape]


class Scale(_Elementwise):
    """Multiply by a number."""

    name, usage = "scale", "scale(x, value)"
    summary = "x * value"
    infix = True
    params = REAL

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Element by element."""
        return arrays[0] * float(params[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr] | None:
        """Divide by the number, if that is possible."""
        amount = float(x.params[0])
        return [scale(value, 1 / amount)] if amount and isfinite(1 / amount) else None

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """A star."""
        return f"{args[0]} * {float(params[0])}"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """The sizes stay."""
        return [shape]


class Flip(Calculation):
    """Mirror dimensions."""

    name, usage = "flip", "flip(x, dims…)"
    summary = "x with the elements of these dimensions in the opposite order, as torch.flip"
    params = "i+"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The sizes stay; each dimension is named once."""
        (shape,) = shapes
        fits = len(set(params)) == len(params) and max(params) < len(shape)
        need(fits, f"flip names {list(params)} of {len(shape)} dimensions")
        return shape

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """The elements in the opposite order."""
        (array,) = arrays
        turned = tuple(slice(None, None, -1 if dim in params else 1) for dim in range(array.ndim))
        return array[turned]

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Mirror them again."""
        return [flip(value, *map(int, x.params))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The method of tensors."""
        return f"{args[0]}.flip({listed(params)})"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """The sizes stay."""
        return [shape]


class Sum(Calculation):
    """Sum over a dimension."""

    name, usage = "sum", "sum(x, dim)"
    summary = "x summed over dimension dim, which stays with size 1"
    params = "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Size DIM is 1."""
        (shape,), (dim,) = shapes, params
        need(0 <= dim < len(shape), f"no dimension {dim} in {list(shape)}")
        return (*shape[:dim], 1, *shape[dim + 1 :])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """As numpy with `keepdims`."""
        return arrays[0].sum(axis=params[0], keepdims=True)

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """The method of tensors."""
        return f"{args[0]}.sum(dim={params[0]}, keepdim=True)"


class Zeros(Operation):
    """Zeros, where the source has nothing and the model wants what adds nothing."""

    name, usage = "zeros", "zeros(sizes…)"
    summary = "zeros of these sizes"
    takes, params = -1, "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """The parameters."""
        return tuple(params)

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Bytes of no file, of the type of LIKE."""
        return tensor_of_zeros(like, shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Nothing was read, so nothing is lost."""
        return []

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Of the type of the first tensor that is read."""
        return f"{like}.new_zeros({listed(params) or '()'})"


def add(*parts: Expr) -> Expr:
    """The sum of PARTS; one part alone is itself."""
    return parts[0] if len(parts) == 1 else Expr("add", parts)


def mul(x: Expr, y: Expr) -> Expr:
    """The product, element by element."""
    return Expr("mul", (x, y))


def nonzero(x: Expr) -> Expr:
    """1 where X is not 0."""
    return Expr("nonzero", (x,))


def flip(x: Expr, *dims: int) -> Expr:
    """X with the elements of these dimensions in the opposite order."""
    return Expr("flip", (x,), dims)


def shift(x: Expr, value: float) -> Expr:
    """X + VALUE."""
    return Expr("shift", (x,), (value,))


def scale(x: Expr, value: float) -> Expr:
    """X * VALUE."""
    return Expr("scale", (x,), (value,))


def summed(x: Expr, dim: int) -> Expr:
    """X summed over dimension DIM, which stays with size 1."""
    return Expr("sum", (x,), (dim,))


def zeros(*sizes: int) -> Expr:
    """Zeros of these sizes."""
    return Expr("zeros", (), sizes)


def unshifted(x: Expr) -> Expr:
    """X before a number was added to it, if one was."""
    return x.args[0] if x.op == "shift" else x
