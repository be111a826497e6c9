"""Operations that compute a weight from its parametrization: weight norm, spectral norm, LoRA, batch norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from .operation import REAL, Calculation, Expr, Shape, listed, need


class WeightNorm(Calculation):
    """The operation `weight_norm(g, v)`: the weight of `torch.nn.utils.weight_norm`, v * g / |v|. |v| has the norms
    over all dimensions of v but the one that `normed_dimension` returns.
    """

    name, usage = "weight_norm", "weight_norm(g, v)"
    summary = "rows of v scaled to the norms g"
    calls = True
    helper = '''\
@in_float32
def weight_norm(g: Tensor, v: Tensor) -> Tensor:
    """Scale the rows of v to the norms g, as torch.nn.utils.weight_norm does."""
    if g.numel() == 1:
        return v * (g.reshape(()) / v.norm())
    if g.ndim != v.ndim:
        g = g.reshape(-1, *[1] * (v.ndim - 1))
    dims = [dim for dim, size in enumerate(g.shape) if size == 1]
    return v * (g / (v.abs().square().sum(dims, keepdim=True).sqrt() if dims else v.abs()))
'''
    takes = 2

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of v, for SHAPES, the sizes of g and of v; there are no PARAMS. Raise RuleError unless g may
        be the norms of v (`normed_dimension`).
        """
        g, v = shapes
        normed_dimension(g, v)
        return v

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return v * g / |v| for ARRAYS (g, v), where |v| has the norms over all dimensions of v but the one that
        `normed_dimension` returns.
        """
        import numpy as np

        g, v = arrays
        dim = normed_dimension(g.shape, v.shape)
        axes = tuple(d for d in range(v.ndim) if d != dim)
        shape = [v.shape[d] if d == dim else 1 for d in range(v.ndim)]
        return v * (g.reshape(shape) / np.sqrt((abs(v) ** 2).sum(axis=axes, keepdims=True)))


class Norm(Calculation):
    """The operation `norm(v)`: the norms g of the rows of v, with the sizes [rows, 1, …], that
    `torch.nn.utils.weight_norm` would store for the weight v.
    """

    name, usage = "norm", "norm(v)"
    summary = "the norms of the rows of v"
    calls = True
    helper = '''\
@in_float32
def norm(v: Tensor) -> Tensor:
    """Return the norms of the rows of v, as torch.nn.utils.weight_norm keeps them."""
    return v.reshape(len(v), -1).norm(dim=1).reshape(-1, *[1] * (v.ndim - 1))
'''

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `norm(v)`: [rows, 1, …]. Raise RuleError for a tensor without dimensions."""
        (v,) = shapes
        need(bool(v), "a single number has no rows")
        return (v[0], *[1] * (len(v) - 1))

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return the norm of each row of the only array: the root of the sum of squares, with the sizes [rows, 1,
        …].
        """
        import numpy as np

        (v,) = arrays
        return np.sqrt((abs(v) ** 2).sum(axis=tuple(range(1, v.ndim)), keepdims=True))


class SpectralNorm(Calculation):
    """The operation `spectral_norm(w, u, v)`: the weight of `torch.nn.utils.spectral_norm` in eval mode, w / (u w v),
    with its stored singular vectors u and v. Dimensions of w after the first count as one in the product, its columns.
    """

    name, usage = "spectral_norm", "spectral_norm(w, u, v)"
    summary = "w divided by u w v, its largest singular value"
    calls = True
    helper = '''\
@in_float32
def spectral_norm(w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Divide w by its largest singular value, as torch.nn.utils.spectral_norm does in eval mode."""
    return w / (u @ w.flatten(1) @ v)
'''
    takes = 3

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `spectral_norm(w, u, v)`: those of w. Raise RuleError unless u has one element per row of
        w, and v one per column.
        """
        w, u, v = shapes
        fits = bool(w) and (u, v) == (w[:1], (prod(w[1:]),))
        need(fits, f"{list(u)} and {list(v)} are not the vectors of {list(w)}")
        return w

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return w / (u w v) for ARRAYS (w, u, v), where w counts as a matrix [rows, all other dimensions] in the
        product; the result has the sizes of w.
        """
        w, u, v = arrays
        return w / (u @ (w.reshape(w.shape[0], -1) @ v))


class Lora(Calculation):
    """The operation `lora(w, a, b, scale)`: w + scale * b a, a low-rank adapter merged into w (Hu et al., 2021)."""

    name, usage = "lora", "lora(w, a, b, scale)"
    summary = "w + scale * b a"
    calls = True
    helper = '''\
@in_float32
def lora(w: Tensor, a: Tensor, b: Tensor, scale: float | Tensor) -> Tensor:
    """Merge an adapter of low rank into w."""
    return w + scale * (b.flatten(1) @ a.flatten(1)).reshape(w.shape)
'''
    takes, params = 3, REAL

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of w, for SHAPES, the sizes of w, a [rank, inputs…] and b [outputs, rank…].

        Raise RuleError if a or b has fewer than two dimensions, if they do not have the same rank, if b times a has
        another number of elements than w, or if w has at most two dimensions and is not [outputs, inputs].
        """
        w, a, b = shapes[:3]
        fits = len(a) > 1 and len(b) > 1 and a[0] == prod(b[1:]) and prod(w) == b[0] * prod(a[1:])
        fits = fits and (len(w) > 2 or w == (b[0], prod(a[1:])))
        need(fits, f"{list(b)} times {list(a)} does not fit {list(w)}")
        return w

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return w + scale * b a for ARRAYS (w, a, b) and the scale in PARAMS. b counts as the matrix [outputs, rank],
        a as [rank, inputs]; their product gets the sizes of w.
        """
        w, a, b = arrays
        return w + float(params[0]) * (b.reshape(b.shape[0], -1) @ a.reshape(a.shape[0], -1)).reshape(w.shape)


class LoraAlpha(Lora):
    """The operation `lora_alpha(w, a, b, alpha)`: a low-rank adapter whose file holds alpha, a tensor of one number,
    merged into w with the scale alpha / rank.
    """

    name, usage = "lora_alpha", "lora_alpha(w, a, b, alpha)"
    summary = "w + alpha / rank * b a"
    helper = '''\
@in_float32
def lora_alpha(w: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Merge an adapter of low rank into w, scaled by alpha / rank."""
    return w + alpha / len(a) * (b.flatten(1) @ a.flatten(1)).reshape(w.shape)
'''
    takes, params = 4, ""
    typed = 3  # files hold alpha as any number, also as an integer

    def torch_text(self, args: Sequence[str], params: tuple[Any, ...], like: str) -> str:
        """Return the torch code: a call of the helper with alpha as a number."""
        *wab, alpha = args
        return f"{self.name}({listed([*wab, f'float({alpha})'])})"

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of `lora_alpha(w, a, b, alpha)`: those of w. Raise RuleError as for `lora`, or if alpha is
        not one number.
        """
        alpha = shapes[3]
        need(prod(alpha) == 1, f"{list(alpha)} is not one number")
        return super().shape(shapes, params)

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return w + alpha / rank * b a for ARRAYS (w, a, b, alpha). The rank is the number of rows of a."""
        *wab, alpha = arrays
        return super().compute(wab, (alpha.reshape(()) / wab[1].shape[0],))


class _Folded(Calculation):
    """An operation that folds a batch norm into the weight or bias of the layer before it; its only number is eps."""

    params = REAL

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of the weight or bias, the first of SHAPES. Raise RuleError if it has no dimensions, if one
        of the other tensors is not a vector with one element for each of its rows, or if the eps in PARAMS is negative.
        """
        w, *rows = shapes
        fits = bool(w) and all(s == w[:1] for s in rows)
        need(fits, f"{list(w)} does not have the rows of a batch norm")
        need(float(params[0]) >= 0, f"the eps {params[0]} is negative")
        return w


class FoldWeight(_Folded):
    """The operation `fold_weight(w, gamma, var, eps)`: the weight w of a convolution with the batch norm after it
    folded in: w * gamma / sqrt(var + eps), row by row.
    """

    name, usage = "fold_weight", "fold_weight(w, gamma, var, eps)"
    summary = "w of a layer that also does the work of the batch norm after it"
    calls = True
    helper = '''\
@in_float32
def fold_weight(w: Tensor, gamma: Tensor, var: Tensor, eps: float) -> Tensor:
    """Let the layer of w do the work of the batch norm after it as well."""
    return w * (gamma / (var + eps).sqrt()).reshape(-1, *[1] * (w.ndim - 1))
'''
    takes = 3

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return w * gamma / sqrt(var + eps), row by row, for ARRAYS (w, gamma, var) and the eps in PARAMS."""
        import numpy as np

        w, gamma, var = arrays
        return w * (gamma / np.sqrt(var + float(params[0]))).reshape(-1, *[1] * (w.ndim - 1))


class FoldBias(_Folded):
    """The operation `fold_bias(b, gamma, beta, mean, var, eps)`: the bias b of a convolution with the batch norm after
    it folded in: (b - mean) * gamma / sqrt(var + eps) + beta.
    """

    name, usage = "fold_bias", "fold_bias(b, gamma, beta, mean, var, eps)"
    summary = "the bias of such a layer"
    calls = True
    helper = '''\
@in_float32
def fold_bias(
    b: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """Return the bias of a layer that does the work of the batch norm after it as well."""
    return (b - mean) * gamma / (var + eps).sqrt() + beta
'''
    takes = 5

    def shape(self, shapes: Sequence[Shape], params: tuple[Any, ...]) -> Shape:
        """Return the sizes of the bias. Raise RuleError as for a weight, or if the bias is no vector."""
        need(len(shapes[0]) == 1, f"{list(shapes[0])} is not a bias")
        return super().shape(shapes, params)

    def compute(self, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Return (b - mean) * gamma / sqrt(var + eps) + beta for ARRAYS (b, gamma, beta, mean, var) and the
        eps in PARAMS.
        """
        import numpy as np

        b, gamma, beta, mean, var = arrays
        return (b - mean) * gamma / np.sqrt(var + float(params[0])) + beta


def normed_dimension(g: Shape, v: Shape) -> int | None:
    """Return which dimension of a weight of sizes V has a norm for each of its elements, if its norms have the sizes G:
    the first in which G is not 1, or the first of all (rows), if G has another number of dimensions than V. None for G
    of one element: it is the norm of all of V.

    Raise RuleError if G has several elements, and not as many as this dimension of V, or not all in one dimension.
    """
    if prod(g) == 1:
        return None
    own = next((d for d, n in enumerate(g) if n != 1), 0) if len(g) == len(v) else 0
    fits = v[own : own + 1] == (prod(g),) and max(g) == prod(g)
    need(fits, f"the norms {list(g)} are not those of {list(v)}")
    return own


def weight_norm(g: Expr, v: Expr) -> Expr:
    """Return the expression that scales V so that its norms are G (`normed_dimension`)."""
    return Expr("weight_norm", (g, v))


def norm(v: Expr) -> Expr:
    """Return the expression of the norms of the rows of V."""
    return Expr("norm", (v,))


def spectral_norm(w: Expr, u: Expr, v: Expr) -> Expr:
    """Return the expression of W divided by its largest singular value, computed from the singular vectors U and V."""
    return Expr("spectral_norm", (w, u, v))


def lora(w: Expr, a: Expr, b: Expr, scale: float) -> Expr:
    """Return the expression W + SCALE * B A, of the weight W with an adapter merged into it."""
    return Expr("lora", (w, a, b), (scale,))


def rescaled(x: Expr, scale: float) -> Expr:
    """Return X with SCALE as the scale of every adapter merged in it by `lora`, also of one inside of another
    operation. `lora_alpha`, which takes its scale from a tensor, stays.
    """
    args = tuple(rescaled(arg, scale) for arg in x.args)
    return replace(x, args=args, params=(scale,) if x.op == "lora" else x.params)


def lora_alpha(w: Expr, a: Expr, b: Expr, alpha: Expr) -> Expr:
    """Return the expression W + ALPHA / rank * B A, where the rank is the number of rows of A."""
    return Expr("lora_alpha", (w, a, b, alpha))


def fold_weight(w: Expr, gamma: Expr, var: Expr, eps: float) -> Expr:
    """Return the expression of the weight W with a batch norm (GAMMA, VAR, EPS) folded into it."""
    return Expr("fold_weight", (w, gamma, var), (eps,))


def fold_bias(b: Expr, gamma: Expr, beta: Expr, mean: Expr, var: Expr, eps: float) -> Expr:
    """Return the expression of the bias B with a batch norm (GAMMA, BETA, MEAN, VAR, EPS) folded into it."""
    return Expr("fold_bias", (b, gamma, beta, mean, var), (eps,))
