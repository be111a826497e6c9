"""Operations that change the number of elements of a tensor: guesses at the weights of a larger or smaller model, and
kernels of another size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cutting import part
from .operation import Calculation, Expr, Shape, need, shape_of


class Repeat(Calculation):
    """The operation `repeat(x, dim, n)`: n copies of x one after the other along dimension dim, divided by n.

    A layer with this weight gives the same output if its input is repeated in the same way.
    """

    name, usage = "repeat", "repeat(x, dim, n)"
    summary = "x n times side by side along dimension dim, divided by n"
    infix = calls = True
    params = "ii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `repeat(x, dim, n)`: those of x, with n times as many elements in dimension dim. Raise
        RuleError if there is no such dimension, or if n is 0.
        """
        (shape,), (dim, times) = shapes, params
        fits = 0 <= dim < len(shape) and times > 0
        need(fits, f"{list(shape)} cannot be repeated {times} times in dimension {dim}")
        return (*shape[:dim], shape[dim] * times, *shape[dim + 1 :])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return n copies of the only array, concatenated along dimension dim and divided by n; PARAMS are (dim, n)."""
        import numpy as np

        dim, times = params
        return np.concatenate([arrays[0]] * times, axis=dim) / times

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code for the text ARGS[0] and PARAMS (dim, n): n copies concatenated along dim and divided
        by n.
        """
        return f"torch.cat([{args[0]}] * {params[1]}, dim={params[0]}) / {params[1]}"


class Grow(Calculation):
    """The operation `grow(x, dim, n)`: x with n elements in dimension dim; each new element, behind the others, is the
    mean of the others.
    """

    name, usage = "grow", "grow(x, dim, n)"
    summary = "x with n elements in dimension dim, the new ones the mean of the others"
    calls = True
    helper = '''\
@in_float32
def grow(x: Tensor, dim: int, size: int) -> Tensor:
    """Append the mean of the elements of a dimension until it has the size."""
    mean = x.mean(dim=dim, keepdim=True)
    return torch.cat([x, *[mean] * (size - x.shape[dim])], dim=dim)
'''
    params = "ii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `grow(x, dim, n)`: those of x, with n in dimension dim. Raise RuleError if x has more
        elements there, none, or no such dimension.
        """
        (shape,), (dim, size) = shapes, params
        fits = 0 <= dim < len(shape) and size >= shape[dim] > 0
        need(fits, f"{list(shape)} cannot grow to {size} in dimension {dim}")
        return (*shape[:dim], size, *shape[dim + 1 :])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the only array with n elements along dimension dim: first its own, then new ones, each the mean of its
        own along dim. PARAMS are (dim, n).
        """
        import numpy as np

        (x,), (dim, size) = arrays, params
        return np.concatenate([x, *[x.mean(axis=dim, keepdims=True)] * (size - x.shape[dim])], axis=dim)


class Pad(Calculation):
    """The operation `pad(x, dim, n)`: x between zeros, n before and n behind its elements in dimension dim."""

    name, usage = "pad", "pad(x, dim, n)"
    summary = "x between n zeros on each side in dimension dim"
    calls = moves = True
    helper = '''\
def pad(x: Tensor, dim: int, count: int) -> Tensor:
    """Put zeros before and behind the elements of a dimension, so many on each side."""
    sizes = list(x.shape)
    sizes[dim] = count
    zeros = x.new_zeros(sizes)
    return torch.cat([zeros, x, zeros], dim=dim)
'''
    params = "ii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `pad(x, dim, n)`: those of x, with 2 * n more in dimension dim. Raise RuleError if there
        is no such dimension.
        """
        (shape,), (dim, count) = shapes, params
        need(dim < len(shape), f"no dimension {dim} in {list(shape)}")
        return (*shape[:dim], shape[dim] + 2 * count, *shape[dim + 1 :])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the only array with n zeros before and behind its elements along dim; PARAMS are (dim, n)."""
        import numpy as np

        (x,), (dim, count) = arrays, params
        return np.pad(x, [(count, count) if d == dim else (0, 0) for d in range(x.ndim)])

    def undone(self, x: Expr, value: Expr, shapes: Mapping[str, Shape]) -> Sequence[Expr]:
        """Return [the slice of VALUE, the result of X, without the zeros]. SHAPES are the sizes of the source."""
        dim, count = map(int, x.params)
        return [part(value, dim, count, count + shape_of(x.args[0], shapes)[dim])]


class Resize(Calculation):
    """The operation `resize(x, prefix, h, w, new_h, new_w)`: a position table [..., prefix + h * w, features] resampled
    to a grid of new_h x new_w, bicubic; the first prefix rows stay.
    """

    name, usage = "resize", "resize(x, prefix, h, w, new_h, new_w)"
    summary = "a position table of h x w places behind a prefix, for another grid, bicubic"
    calls = True
    helper = '''\
@in_float32
def resize(x: Tensor, prefix: int, h: int, w: int, new_h: int, new_w: int) -> Tensor:
    """Resample a table of positions, a prefix and a grid of h x w, to another grid."""
    *lead, _, features = x.shape
    grid = x[..., prefix:, :].reshape(-1, h, w, features).movedim(-1, 1)
    if new_w == 1:  # for which torch would give all places of the column one value
        grid = F.interpolate(grid.mT, (new_w, new_h), mode="bicubic", antialias=True).mT
    else:
        grid = F.interpolate(grid, (new_h, new_w), mode="bicubic", antialias=True)
    grid = grid.movedim(1, -1).reshape(*lead, new_h * new_w, features)
    return torch.cat([x[..., :prefix, :], grid], dim=-2)
'''
    params = "iiiii"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `resize(x, prefix, h, w, new_h, new_w)`: [..., prefix + new_h * new_w, features]. Raise
        RuleError if x does not have prefix + h * w rows in its last dimension but one, or if a grid has no places.
        """
        (shape,), (prefix, old_h, old_w, new_h, new_w) = shapes, params
        fits = len(shape) >= 2 and shape[-2] == prefix + old_h * old_w and old_h * old_w * new_h * new_w > 0
        need(fits, f"{list(shape)} is not a grid of {old_h} x {old_w}")
        return (*shape[:-2], prefix + new_h * new_w, shape[-1])

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the only array with its grid of h x w resampled to new_h x new_w, bicubic with antialiasing, as
        torch.nn.functional.interpolate(mode="bicubic", antialias=True) does; the first prefix rows stay. PARAMS are
        (prefix, h, w, new_h, new_w).
        """
        import numpy as np

        (x,), (prefix, old_h, old_w, new_h, new_w) = arrays, params
        head, grid = x[..., :prefix, :], x[..., prefix:, :]
        grid = grid.reshape(*x.shape[:-2], old_h, old_w, x.shape[-1])
        rows, columns = _resampling(old_h, new_h), _resampling(old_w, new_w)
        grid = np.einsum("ab,...bcd->...acd", rows, grid)
        grid = np.einsum("ab,...cbd->...cad", columns, grid)
        return np.concatenate([head, grid.reshape(*x.shape[:-2], new_h * new_w, x.shape[-1])], axis=-2)


def _resampling(old: int, new: int) -> Any:
    """Return the matrix [NEW, OLD] that resamples OLD values to NEW values, as float64: cubic convolution with a =
    -0.5, widened by OLD / NEW if NEW is smaller. Values outside of the old ones are left out; each row is divided by
    its sum, so that it sums up to 1.
    """
    import numpy as np

    scale = old / new
    support = 2.0 * max(scale, 1.0)
    out = np.zeros((new, old))
    for i in range(new):
        centre = scale * (i + 0.5)
        low, high = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), old)
        at = np.abs((np.arange(low, high) - centre + 0.5) / max(scale, 1.0))
        near = ((1.5 * at - 2.5) * at) * at + 1
        far = ((-0.5 * at + 2.5) * at - 4) * at + 2
        weights = np.where(at < 1, near, np.where(at < 2, far, 0.0))
        out[i, low:high] = weights / weights.sum()
    return out


def repeat(x: Expr, dim: int, times: int) -> Expr:
    """Return the expression of TIMES copies of X along dimension DIM, divided by TIMES."""
    return Expr("repeat", (x,), (dim, times))


def grow(x: Expr, dim: int, size: int) -> Expr:
    """Return the expression of X with SIZE elements in dimension DIM; the new ones, at the end, are the mean of the
    others.
    """
    return Expr("grow", (x,), (dim, size))


def pad(x: Expr, dim: int, count: int) -> Expr:
    """Return the expression of X between zeros, COUNT on each side in dimension DIM; X itself if COUNT is 0."""
    return Expr("pad", (x,), (dim, count)) if count else x


def rows_grown(x: Expr) -> Expr | None:
    """Return the tensor to which the outermost operation of X adds rows (`grow` along dimension 0); None for others."""
    return x.args[0] if x.op == "grow" and x.params[0] == 0 else None


def resize(x: Expr, prefix: int, old: tuple[int, int], new: tuple[int, int]) -> Expr:
    """Return the expression of the position table X for a grid of NEW (height, width) in place of OLD. The first PREFIX
    rows stay.
    """
    return Expr("resize", (x,), (prefix, *old, *new))
