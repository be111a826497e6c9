"""Operations that compute element by element or sum over a dimension, tensors of zeros, and unit matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import Any

from ...tensor import LazyTensor
from .operation import OPERATIONS, REAL, Calculation, Expr, Operation, Shape, listed, need
from .storages import Computed, over
from .storages import zeros as tensor_of_zeros

#: The longest sum that is written with a plus.
_IN_ONE_LINE = 100


class Add(Calculation):
    """The operation `add(x, y, …)`: the sum of tensors, element by element. All but the first are broadcast
    to the first.
    """

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
        """Return the sizes of `add(x, y, …)`: those of x. Raise RuleError if another tensor cannot be broadcast to x
        without changing its sizes.
        """
        first, *others = shapes
        for one in others:
            need(_is_broadcast(one, first), f"{list(one)} cannot be added to {list(first)}")
        return first

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the sum of ARRAYS, added from the first to the last."""
        return sum(arrays[1:], arrays[0])

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code of the sum of ARGS, texts: `x + y` for two that fit into one line; else a call of a
        helper, whose arguments are in lines of their own, and which rounds once.
        """
        plain = " + ".join(args)
        return plain if len(args) == 2 and len(plain) <= _IN_ONE_LINE else f"total({listed(args)})"


class Mul(Calculation):
    """The operation `mul(x, y)`: the product of two tensors, element by element. y is broadcast to x."""

    name, usage = "mul", "mul(x, y)"
    summary = "the product, element by element"
    infix = True
    takes = 2

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `mul(x, y)`: those of x. Raise RuleError if y cannot be broadcast to x."""
        x, y = shapes
        need(_is_broadcast(y, x), f"{list(x)} cannot be multiplied by {list(y)}")
        return x

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the product of the two ARRAYS, element by element."""
        return arrays[0] * arrays[1]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x * y` for the two texts ARGS."""
        return f"{args[0]} * {args[1]}"


def _is_broadcast(one: Shape, to: Shape) -> bool:
    """Return whether a tensor of sizes ONE can be broadcast to the sizes TO."""
    return len(one) <= len(to) and all(a in (1, b) for a, b in zip(one[::-1], to[::-1], strict=False))


class _Elementwise(Calculation):
    """An operation on each element of one tensor."""

    keeps_sizes = True

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of the result: those of the only tensor, which stay."""
        return shapes[0]


class Nonzero(_Elementwise):
    """The operation `nonzero(x)`: 1 where an element is not 0, and 0 elsewhere: the mask of a pruned weight."""

    name, usage = "nonzero", "nonzero(x)"
    summary = "1 where x is not 0, else 0"

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return, for each element of the only array, whether it is not 0, as booleans."""
        return arrays[0] != 0

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a comparison of the text ARGS[0] with 0, converted to the type of that tensor."""
        return f"{args[0]}.ne(0).to({args[0]}.dtype)"


class Shift(_Elementwise):
    """The operation `shift(x, value)`: x + value."""

    name, usage = "shift", "shift(x, value)"
    summary = "x + value"
    infix = True
    params = REAL

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the only array plus the number in PARAMS."""
        return arrays[0] + float(params[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `shift(x, value)`: the
        number subtracted again.
        """
        return [shift(value, -float(x.params[0]))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x + number` or `x - number` for the text ARGS[0] and the number in PARAMS."""
        return f"{args[0]} + {float(params[0])}" if params[0] >= 0 else f"{args[0]} - {-float(params[0])}"


class Scale(_Elementwise):
    """The operation `scale(x, value)`: x * value."""

    name, usage = "scale", "scale(x, value)"
    summary = "x * value"
    infix = True
    params = REAL

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the only array times the number in PARAMS."""
        return arrays[0] * float(params[0])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr] | None:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `scale(x, value)`: divided
        by the number. None if the number is 0, or so small that its inverse is infinite.
        """
        amount = float(x.params[0])
        return [scale(value, 1 / amount)] if amount and isfinite(1 / amount) else None

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x * number` for the text ARGS[0] and the number in PARAMS."""
        return f"{args[0]} * {float(params[0])}"


class Flip(Calculation):
    """The operation `flip(x, dims…)`: x with the elements of some dimensions in the opposite order, as torch.flip."""

    name, usage = "flip", "flip(x, dims…)"
    summary = "x with the elements of these dimensions in the opposite order, as torch.flip"
    params = "i+"
    keeps_sizes = moves = True

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `flip(x, dims…)`: those of x. Raise RuleError if a dimension is named twice or does not
        exist.
        """
        (shape,) = shapes
        fits = len(set(params)) == len(params) and max(params) < len(shape)
        need(fits, f"flip names {list(params)} of {len(shape)} dimensions")
        return shape

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the only array with the elements of the dimensions PARAMS in the opposite order."""
        (array,) = arrays
        turned = tuple(slice(None, None, -1 if dim in params else 1) for dim in range(array.ndim))
        return array[turned]

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the expression for the tensor inside], made from VALUE, the result of X = `flip(x, dims…)`: flipped
        again.
        """
        return [flip(value, *map(int, x.params))]

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.flip(dims)` for the text ARGS[0] and the dimensions PARAMS."""
        return f"{args[0]}.flip({listed(params)})"


class Sum(Calculation):
    """The operation `sum(x, dim)`: the sum over a dimension, which stays with size 1."""

    name, usage = "sum", "sum(x, dim)"
    summary = "x summed over dimension dim, which stays with size 1"
    params = "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `sum(x, dim)`: those of x, with 1 in dimension dim. Raise RuleError if there is no such
        dimension.
        """
        (shape,), (dim,) = shapes, params
        need(0 <= dim < len(shape), f"no dimension {dim} in {list(shape)}")
        return (*shape[:dim], 1, *shape[dim + 1 :])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the sum of the only array over the dimension in PARAMS, which stays with size 1."""
        return arrays[0].sum(axis=params[0], keepdims=True)

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code `x.sum(dim=…, keepdim=True)` for the text ARGS[0] and the dimension in PARAMS."""
        return f"{args[0]}.sum(dim={params[0]}, keepdim=True)"


class Zeros(Operation):
    """The operation `zeros(sizes…)`: zeros, for a tensor of the model that the source lacks and that then
    adds nothing.
    """

    name, usage = "zeros", "zeros(sizes…)"
    summary = "zeros of these sizes"
    takes, params = -1, "i*"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `zeros(sizes…)`: PARAMS. There are no tensors, so SHAPES is empty."""
        return tuple(params)

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a lazy tensor of zeros with the sizes SHAPE and the type of LIKE; it reads no file."""
        return tensor_of_zeros(like, shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [], because `zeros(sizes…)` reads no tensor."""
        return []

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code of zeros with the sizes PARAMS, of the type and device of LIKE, the code of a
        tensor.
        """
        return f"{like}.new_zeros({listed(params) or '()'})"


class Eye(Operation):
    """The operation `eye(n)`: the unit matrix, for a layer that the source lacks because it passes its input on."""

    name, usage = "eye", "eye(n)"
    summary = "the unit matrix [n, n]"
    takes, params = -1, "i"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `eye(n)`: [n, n]. There are no tensors, so SHAPES is empty."""
        return (params[0], params[0])

    def result(
        self, parts: Sequence[LazyTensor], params: tuple[Any, ...], shape: Shape, like: LazyTensor
    ) -> LazyTensor:
        """Return a lazy tensor of the unit matrix with the type of LIKE; it reads no file."""
        import numpy as np

        made = Computed(lambda _: np.eye(params[0]), (), like, prod(shape) * like.dtype.itemsize)
        return over(made, like, shape)

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [], because `eye(n)` reads no tensor."""
        return []

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code of the unit matrix of the type and device of LIKE, the code of a tensor."""
        return f"{like}.new_zeros({params[0]}, {params[0]}).fill_diagonal_(1)"


def add(*parts: Expr) -> Expr:
    """Return the expression of the sum of PARTS, or the part itself if there is only one."""
    return parts[0] if len(parts) == 1 else Expr("add", parts)


def mul(x: Expr, y: Expr) -> Expr:
    """Return the expression of the product X * Y, element by element."""
    return Expr("mul", (x, y))


def nonzero(x: Expr) -> Expr:
    """Return the expression that is 1 where X is not 0, and 0 elsewhere."""
    return Expr("nonzero", (x,))


def flip(x: Expr, *dims: int) -> Expr:
    """Return the expression of X with the elements of the dimensions DIMS in the opposite order."""
    return Expr("flip", (x,), dims)


def shift(x: Expr, value: float) -> Expr:
    """Return the expression X + VALUE."""
    return Expr("shift", (x,), (value,))


def scale(x: Expr, value: float) -> Expr:
    """Return the expression X * VALUE."""
    return Expr("scale", (x,), (value,))


def summed(x: Expr, dim: int) -> Expr:
    """Return the expression of the sum of X over dimension DIM, which stays with size 1."""
    return Expr("sum", (x,), (dim,))


def zeros(*sizes: int) -> Expr:
    """Return the expression of zeros with these SIZES."""
    return Expr("zeros", (), sizes)


def eye(size: int) -> Expr:
    """Return the expression of the unit matrix [SIZE, SIZE]."""
    return Expr("eye", (), (size,))


def unshifted(x: Expr) -> Expr:
    """Return the tensor to which X adds a number, if the outermost operation of X is `shift`; else X."""
    return x.args[0] if x.op == "shift" else x


def unscaled(x: Expr) -> Expr:
    """Return X without its factors: each `scale` is left out that is outermost, or that has only operations around it
    that move values (`Operation.moves`) and other such `scale`: `transpose(scale(a, 2.0))` -> `transpose(a)`. All parts
    that a `cat` or `stack` joins lose theirs. Any other operation stays as it is, with each `scale` inside of it.
    """
    if x.is_copy:
        return x
    if x.op == "scale":
        return unscaled(x.args[0])
    return replace(x, args=tuple(map(unscaled, x.args))) if OPERATIONS[x.op].moves else x
