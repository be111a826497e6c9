"""Operations that compute element by element or sum over a dimension, and tensors of zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from ...tensor import LazyTensor
from .operation import REAL, Calculation, Expr, Operation, Shape, listed, need
from .storages import zeros as tensor_of_zeros


class Add(Calculation):
    """Add tensors. The others are broadcast to the first."""

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
        """Return the sizes of the first tensor, to which the others are broadcast."""
        first, *others = shapes
        for one in others:
            fits = len(one) <= len(first) and all(a in (1, b) for a, b in zip(one[::-1], first[::-1], strict=False))
            need(fits, f"{list(one)} cannot be added to {list(first)}")
        return first

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Add from the first tensor to the last."""
        return sum(arrays[1:], arrays[0])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: `x + y` for two tensors; a helper that rounds once for more."""
        return " + ".join(args) if len(args) == 2 else f"total({listed(args)})"


class Mul(Calculation):
    """Multiply two tensors of equal sizes."""

    name, usage = "mul", "mul(x, y)"
    summary = "the product, element by element"
    infix = True
    takes = 2

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes that both tensors have."""
        x, y = shapes
        need(x == y, f"{list(x)} and {list(y)} are not of one size")
        return x

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Multiply element by element."""
        return arrays[0] * arrays[1]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x * y`."""
        return f"{args[0]} * {args[1]}"


class _Elementwise(Calculation):
    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of the tensor, which stay."""
        return shapes[0]


class Nonzero(_Elementwise):
    """Give 1 where an element is not 0, and 0 elsewhere: the mask of a pruned weight."""

    name, usage = "nonzero", "nonzero(x)"
    summary = "1 where x is not 0, else 0"

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return whether each element is not 0."""
        return arrays[0] != 0

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a comparison with 0, converted to the type of x."""
        return f"{args[0]}.ne(0).to({args[0]}.dtype)"


class Shift(_Elementwise):
    """Add a number to each element."""

    name, usage = "shift", "shift(x, value)"
    summary = "x + value"
    infix = True
    params = REAL

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Add the number to each element."""
        return arrays[0] + float(params[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Subtract the number again."""
        return [shift(value, -float(x.params[0]))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x + number` or `x - number`."""
        return f"{args[0]} + {float(params[0])}" if params[0] >= 0 else f"{args[0]} - {-float(params[0])}"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the same sizes: the operation keeps them."""
        return [shape]


class Scale(_Elementwise):
    """Multiply each element by a number."""

    name, usage = "scale", "scale(x, value)"
    summary = "x * value"
    infix = True
    params = REAL

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Multiply each element by the number."""
        return arrays[0] * float(params[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr] | None:
        """Divide by the number, or return None if the number is 0 or so small that its inverse is infinite."""
        amount = float(x.params[0])
        return [scale(value, 1 / amount)] if amount and isfinite(1 / amount) else None

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x * number`."""
        return f"{args[0]} * {float(params[0])}"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the same sizes: the operation keeps them."""
        return [shape]


class Flip(Calculation):
    """Reverse the order of the elements in some dimensions, as torch.flip."""

    name, usage = "flip", "flip(x, dims…)"
    summary = "x with the elements of these dimensions in the opposite order, as torch.flip"
    params = "i+"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the same sizes. Each dimension may be named once."""
        (shape,) = shapes
        fits = len(set(params)) == len(params) and max(params) < len(shape)
        need(fits, f"flip names {list(params)} of {len(shape)} dimensions")
        return shape

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Reverse the elements of these dimensions."""
        (array,) = arrays
        turned = tuple(slice(None, None, -1 if dim in params else 1) for dim in range(array.ndim))
        return array[turned]

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Flip the same dimensions again: a flip is its own inverse."""
        return [flip(value, *map(int, x.params))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.flip(dims)`."""
        return f"{args[0]}.flip({listed(params)})"

    def taken(self, shape: Shape, params: tuple[Any, ...], count: int) -> list[Shape]:
        """Return the same sizes: the operation keeps them."""
        return [shape]


class Sum(Calculation):
    """Sum over a dimension."""

    name, usage = "sum", "sum(x, dim)"
    summary = "x summed over dimension dim, which stays with size 1"
    params = "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes with 1 in dimension DIM."""
        (shape,), (dim,) = shapes, params
        need(0 <= dim < len(shape), f"no dimension {dim} in {list(shape)}")
        return (*shape[:dim], 1, *shape[dim + 1 :])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Sum over the dimension, as numpy with `keepdims`."""
        return arrays[0].sum(axis=params[0], keepdims=True)

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.sum(dim=DIM, keepdim=True)`."""
        return f"{args[0]}.sum(dim={params[0]}, keepdim=True)"


class Zeros(Operation):
    """Give a tensor of zeros, for a tensor of the model that the source lacks and that then adds nothing."""

    name, usage = "zeros", "zeros(sizes…)"
    summary = "zeros of these sizes"
    takes, params = -1, "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the parameters, which are the sizes."""
        return tuple(params)

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a tensor of zeros of the type of LIKE, which reads no file."""
        return tensor_of_zeros(like, shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return no expressions: the operation reads no tensor."""
        return []

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code of zeros of the type and device of LIKE, the first tensor that is read."""
        return f"{like}.new_zeros({listed(params) or '()'})"


def add(*parts: Expr) -> Expr:
    """Return the sum of PARTS, or the part itself if there is one."""
    return parts[0] if len(parts) == 1 else Expr("add", parts)


def mul(x: Expr, y: Expr) -> Expr:
    """Return the product X * Y, element by element."""
    return Expr("mul", (x, y))


def nonzero(x: Expr) -> Expr:
    """Return an expression that is 1 where X is not 0, and 0 elsewhere."""
    return Expr("nonzero", (x,))


def flip(x: Expr, *dims: int) -> Expr:
    """Return X with the elements of these dimensions in the opposite order."""
    return Expr("flip", (x,), dims)


def shift(x: Expr, value: float) -> Expr:
    """Return X + VALUE."""
    return Expr("shift", (x,), (value,))


def scale(x: Expr, value: float) -> Expr:
    """Return X * VALUE."""
    return Expr("scale", (x,), (value,))


def summed(x: Expr, dim: int) -> Expr:
    """Return the sum of X over dimension DIM, which stays with size 1."""
    return Expr("sum", (x,), (dim,))


def zeros(*sizes: int) -> Expr:
    """Return zeros of these sizes."""
    return Expr("zeros", (), sizes)


def unshifted(x: Expr) -> Expr:
    """Return the argument of X if X adds a number (`shift`), else X."""
    return x.args[0] if x.op == "shift" else x
