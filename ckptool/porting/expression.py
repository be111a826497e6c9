"""What a target tensor is made of: expressions over the tensors of a source.

    layer1.0.conv1.weight                            a copy
    transpose(h.0.attn.c_attn.weight)                the last two dimensions swapped
    slice(blocks.0.attn.qkv.weight, 0, 0, 768)       rows 0 to 767 of dimension 0
    cat(0, q.weight, k.weight, v.weight)             joined along dimension 0

A key that is not plain (letters, digits, `_`, `.`, `-`) stands in double quotes, as in JSON. An expression is a value:
it can be written down, read back, inverted where that is possible, and turned into a `LazyTensor` that moves no byte
until it is written. What only rearranges (a slice, a transposition) is a view of the source and keeps its type; what
computes does so in float32 and rounds once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import RuleError, printable
from ..files import CHUNK, Source
from ..tensor import LazyTensor, Storage, contiguous_stride

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
Number = int | float | str


@dataclass(frozen=True, slots=True)
class Expr:
    """An operation on expressions, or a key (`op` is "key", and its name the one parameter).

    Attributes:
        op: its name in `OPERATIONS`.
        args: the expressions that it takes.
        params: its other arguments.
    """

    op: str
    args: tuple[Expr, ...] = ()
    params: tuple[Number, ...] = ()

    @property
    def key(self) -> str:
        """The key of a plain copy."""
        assert self.op == "key"
        return str(self.params[0])

    @property
    def is_copy(self) -> bool:
        """Whether it is a tensor of the source as it is."""
        return self.op == "key"

    def keys(self) -> list[str]:
        """The keys that it reads, once each, in order."""
        if self.op == "key":
            return [self.key]
        return list(dict.fromkeys(key for arg in self.args for key in arg.keys()))  # noqa: SIM118 - a method of ours

    def operations(self) -> list[str]:
        """The names of the operations in it, from the inside out, once each."""
        inner = [name for arg in self.args for name in arg.operations()]
        return list(dict.fromkeys(inner + ([] if self.op == "key" else [self.op])))

    def rename(self, new: Callable[[str], str]) -> Expr:
        """The same on other keys."""
        if self.op == "key":
            return of(new(self.key))
        return replace(self, args=tuple(arg.rename(new) for arg in self.args))

    def __str__(self) -> str:
        if self.op == "key":
            return self.key if _PLAIN.fullmatch(self.key) else json.dumps(self.key)
        words = OPERATIONS[self.op].first
        params, args = list(map(str, self.params)), list(map(str, self.args))
        return f"{self.op}({', '.join(params[:words] + args + params[words:])})"


_PLAIN = re.compile(r"[\w.\-{}]+")


def of(key: str) -> Expr:
    """The tensor KEY as it is."""
    return Expr("key", (), (key,))


# ------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be done.

    Attributes:
        shape: sizes of the result for the sizes of the arguments and the parameters.
        view: the result as a view of its one argument, where nothing is computed.
        compute: the result from numpy arrays, where it is.
        first: parameters that are written before the arguments.
        summary: for the documentation.
        takes: how many arguments (0: any number).
    """

    shape: Callable[..., Shape]
    summary: str
    view: Callable[..., LazyTensor] | None = None
    compute: Callable[..., np.ndarray[Any, Any]] | None = None
    first: int = 0
    takes: int = 1


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


def part(x: Expr, dim: int, start: int, stop: int) -> Expr:
    """The elements START to STOP (excluded) of dimension DIM."""
    if x.op == "cat" and x.params == (dim,):
        return Expr("slice", (x,), (dim, start, stop))
    return Expr("slice", (x,), (dim, start, stop))


def select(x: Expr, dim: int, index: int) -> Expr:
    """Element INDEX of dimension DIM, which goes away."""
    return Expr("select", (x,), (dim, index))


def cat(dim: int, *parts: Expr) -> Expr:
    """PARTS joined along DIM; all slices of one tensor in their order are that tensor."""
    if len(parts) == 1:
        return parts[0]
    whole = _whole(parts, "slice", lambda p: p.params[0] == dim)
    if whole is not None and all(int(a.params[2]) == int(b.params[1]) for a, b in zip(parts, parts[1:], strict=False)):
        if int(parts[0].params[1]) == 0 and parts[-1].params[2] == _END.get(id(whole), parts[-1].params[2]):
            return Expr("cat", parts, (dim,))
    return Expr("cat", parts, (dim,))


_END: dict[int, int] = {}


def stack(*parts: Expr) -> Expr:
    """PARTS along a new first dimension."""
    return Expr("stack", parts)


def _whole(parts: Sequence[Expr], op: str, fits: Callable[[Expr], bool]) -> Expr | None:
    if all(p.op == op and fits(p) and p.args == parts[0].args for p in parts):
        return parts[0].args[0]
    return None


def simplified(x: Expr, shapes: Mapping[str, Shape]) -> Expr:
    """The same in fewer steps: what was taken apart and put together again is a copy."""
    if x.op == "key":
        return x
    args = tuple(simplified(arg, shapes) for arg in x.args)
    x = replace(x, args=args)
    inner = args[0] if args else x
    if x.op == "transpose" and inner.op == "transpose":
        return inner.args[0]
    if x.op == "permute":
        if x.params == tuple(range(len(x.params))):
            return inner
        if inner.op == "permute":
            return simplified(replace(x, args=inner.args, params=tuple(inner.params[int(d)] for d in x.params)), shapes)
    if x.op == "reshape":
        while inner.op == "reshape":
            inner = inner.args[0]
        if shape_of(inner, shapes) == x.params:
            return inner
        return replace(x, args=(inner,))
    if x.op == "cat":
        if len(args) == 1:
            return inner
        whole = _whole(args, "slice", lambda p: p.params[0] == x.params[0])
        if whole is not None:
            edges = [(int(p.params[1]), int(p.params[2])) for p in args]
            full = shape_of(whole, shapes)[int(x.params[0])]
            if edges[0][0] == 0 and edges[-1][1] == full and all(a[1] == b[0] for a, b in zip(edges, edges[1:])):  # noqa: B905
                return whole
    if x.op == "stack":
        whole = _whole(args, "select", lambda p: p.params[0] == 0)
        if whole is not None and [p.params[1] for p in args] == list(range(shape_of(whole, shapes)[0])):
            return whole
    if x.op == "slice":
        dim, start, stop = map(int, x.params)
        if start == 0 and stop == shape_of(inner, shapes)[dim]:
            return inner
        if inner.op == "cat" and int(inner.params[0]) == dim:
            at = 0
            for piece in inner.args:
                size = shape_of(piece, shapes)[dim]
                if (at, at + size) == (start, stop):
                    return piece
                at += size
    if x.op == "select" and inner.op == "stack" and x.params[0] == 0:
        return inner.args[int(x.params[1])]
    return x


# -- shapes


def _transposed(shape: Shape) -> Shape:
    _need(len(shape) >= 2, "transpose needs two dimensions")
    return (*shape[:-2], shape[-1], shape[-2])


def _permuted(shape: Shape, *dims: int) -> Shape:
    _need(sorted(dims) == list(range(len(shape))), f"permute names {list(dims)} of {len(shape)} dimensions")
    return tuple(shape[d] for d in dims)


def _reshaped(shape: Shape, *new: int) -> Shape:
    _need(prod(shape) == prod(new), f"{list(shape)} cannot be seen as {list(new)}")
    return tuple(new)


def _sliced(shape: Shape, dim: int, start: int, stop: int) -> Shape:
    _need(0 <= dim < len(shape) and 0 <= start < stop <= shape[dim], f"no elements {start} to {stop} in {list(shape)}")
    return (*shape[:dim], stop - start, *shape[dim + 1 :])


def _selected(shape: Shape, dim: int, index: int) -> Shape:
    _need(0 <= dim < len(shape) and 0 <= index < shape[dim], f"no element {index} in dimension {dim} of {list(shape)}")
    return (*shape[:dim], *shape[dim + 1 :])


def _joined(dim: int, *shapes: Shape) -> Shape:
    rest = {(*s[:dim], *s[dim + 1 :]) for s in shapes}
    _need(
        len(rest) == 1 and len({len(s) for s in shapes}) == 1, f"cannot join {', '.join(str(list(s)) for s in shapes)}"
    )
    return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])


def _stacked(*shapes: Shape) -> Shape:
    _need(len(set(shapes)) == 1, f"cannot stack {', '.join(str(list(s)) for s in shapes[:4])}")
    return (len(shapes), *shapes[0])


def _flipped_pairs(shape: Shape, heads: int, to: str) -> Shape:
    _need(bool(shape) and shape[0] % (2 * heads) == 0, f"{list(shape)} has no {heads} heads of pairs")
    _need(to in ("half", "interleaved"), f"{to!r} is neither half nor interleaved")
    return shape


def _of_heads(shape: Shape, heads: int, n: int, index: int) -> Shape:
    _need(bool(shape) and shape[0] % (heads * n) == 0, f"{list(shape)} has no {heads} heads of {n} parts")
    _need(0 <= index < n, f"no part {index} of {n}")
    return (shape[0] // n, *shape[1:])


def _into_heads(heads: int, *shapes: Shape) -> Shape:
    _need(
        len(set(shapes)) == 1 and shapes[0][0] % heads == 0, f"cannot interleave {len(shapes)} parts by {heads} heads"
    )
    return (shapes[0][0] * len(shapes), *shapes[0][1:])


def _flattened(shape: Shape, c: int, h: int, w: int, to: str) -> Shape:
    _need(len(shape) >= 1 and shape[-1] == c * h * w, f"{list(shape)} does not take {c} x {h} x {w} features")
    _need(to in ("nchw", "nhwc"), f"{to!r} is neither nchw nor nhwc")
    return shape


def _normed(g: Shape, v: Shape) -> Shape:
    _need(prod(g) in v or prod(g) == 1, f"the norms {list(g)} are not those of {list(v)}")
    return v


def _norms(v: Shape) -> Shape:
    return (v[0], *[1] * (len(v) - 1))


def _lora(w: Shape, a: Shape, b: Shape, scale: float) -> Shape:
    _need(prod(w) == b[0] * prod(a[1:]) and a[0] == b[1], f"{list(b)} times {list(a)} does not fit {list(w)}")
    return w


def _same(shape: Shape, *_: Any) -> Shape:
    return shape


def _first_shape(*shapes: Any) -> Shape:
    found: Shape = shapes[0]
    return found


def _summed(shape: Shape, dim: int) -> Shape:
    _need(0 <= dim < len(shape), f"no dimension {dim} in {list(shape)}")
    return (*shape[:dim], 1, *shape[dim + 1 :])


def _repeated(shape: Shape, dim: int, times: int) -> Shape:
    return (*shape[:dim], shape[dim] * times, *shape[dim + 1 :])


def _zeroed(*sizes: int) -> Shape:
    return tuple(sizes)


def _resized(shape: Shape, prefix: int, old_h: int, old_w: int, new_h: int, new_w: int) -> Shape:
    _need(len(shape) >= 2 and shape[-2] == prefix + old_h * old_w, f"{list(shape)} is no grid of {old_h} x {old_w}")
    return (*shape[:-2], prefix + new_h * new_w, shape[-1])


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise RuleError(what)


def shape_of(x: Expr, shapes: Mapping[str, Shape]) -> Shape:
    """The sizes of what X gives, for the sizes of the source.

    Raises:
        RuleError: an operation does not fit, or a key is not there.
    """
    if x.op == "key":
        if x.key not in shapes:
            raise RuleError(f"there is no {printable(x.key)} in the source")
        return tuple(shapes[x.key])
    operation = OPERATIONS[x.op]
    inner = [shape_of(arg, shapes) for arg in x.args]
    first, rest = x.params[: operation.first], x.params[operation.first :]
    return operation.shape(*first, *inner, *rest)


# -- views


def _view_transposed(x: LazyTensor) -> LazyTensor:
    swap = lambda t: (*t[:-2], t[-1], t[-2])  # noqa: E731
    return replace(x, shape=swap(x.shape), stride=swap(x.stride))


def _view_permuted(x: LazyTensor, *dims: int) -> LazyTensor:
    return replace(x, shape=tuple(x.shape[d] for d in dims), stride=tuple(x.stride[d] for d in dims))


def _view_reshaped(x: LazyTensor, *new: int) -> LazyTensor:
    x = contiguous(x)
    return replace(x, shape=tuple(new), stride=contiguous_stride(tuple(new)))


def _view_sliced(x: LazyTensor, dim: int, start: int, stop: int) -> LazyTensor:
    shape = (*x.shape[:dim], stop - start, *x.shape[dim + 1 :])
    return replace(x, shape=shape, offset=x.offset + start * x.stride[dim])


def _view_selected(x: LazyTensor, dim: int, index: int) -> LazyTensor:
    drop = lambda t: (*t[:dim], *t[dim + 1 :])  # noqa: E731
    return replace(x, shape=drop(x.shape), stride=drop(x.stride), offset=x.offset + index * x.stride[dim])


def _view_pairs(x: LazyTensor, heads: int, to: str) -> LazyTensor:
    d, rest = x.shape[0] // heads, x.shape[1:]
    inner = (heads, d // 2, 2, *rest) if to == "half" else (heads, 2, d // 2, *rest)
    swapped = _view_permuted(_view_reshaped(x, *inner), 0, 2, 1, *range(3, 3 + len(rest)))
    return _view_reshaped(swapped, *x.shape)


def _view_of_heads(x: LazyTensor, heads: int, n: int, index: int) -> LazyTensor:
    d = x.shape[0] // (heads * n)
    inner = _view_selected(_view_reshaped(x, heads, n, d, *x.shape[1:]), 1, index)
    return _view_reshaped(inner, heads * d, *x.shape[1:])


def _view_flattened(x: LazyTensor, c: int, h: int, w: int, to: str) -> LazyTensor:
    lead = x.shape[:-1]
    n = len(lead)
    if to == "nhwc":
        inner = _view_permuted(_view_reshaped(x, *lead, c, h, w), *range(n), n + 1, n + 2, n)
    else:
        inner = _view_permuted(_view_reshaped(x, *lead, h, w, c), *range(n), n + 2, n, n + 1)
    return _view_reshaped(inner, *x.shape)


def contiguous(x: LazyTensor) -> LazyTensor:
    """The same values in C order over a storage of their own (bytes of the source where that is possible)."""
    if x.fills_storage:
        return x
    storage = Storage(x.source(), x.location, x.storage.dtype, x.storage.key)
    return LazyTensor(storage, x.dtype, x.shape, contiguous_stride(x.shape))


# -- values


def _sum_values(x: Any, dim: int) -> Any:
    return x.sum(axis=dim, keepdims=True)


def _weight_norm(g: Any, v: Any) -> Any:
    import numpy as np

    if g.size == 1:
        return v * (g.reshape(()) / np.sqrt((v * v).sum()))
    dim = next((d for d in range(g.ndim) if g.shape[d] != 1), 0) if g.ndim == v.ndim else 0
    axes = tuple(d for d in range(v.ndim) if d != dim)
    shape = [v.shape[d] if d == dim else 1 for d in range(v.ndim)]
    return v * (g.reshape(shape) / np.sqrt((v * v).sum(axis=axes, keepdims=True)))


def _norm_values(v: Any) -> Any:
    import numpy as np

    return np.sqrt((v * v).sum(axis=tuple(range(1, v.ndim)), keepdims=True))


def _spectral(w: Any, u: Any, v: Any) -> Any:
    return w / (u @ (w.reshape(w.shape[0], -1) @ v))


def _lora_values(w: Any, a: Any, b: Any, scale: float) -> Any:
    return w + float(scale) * (b.reshape(b.shape[0], -1) @ a.reshape(a.shape[0], -1)).reshape(w.shape)


def _fold_weight(w: Any, gamma: Any, var: Any, eps: float) -> Any:
    import numpy as np

    return w * (gamma / np.sqrt(var + float(eps))).reshape(-1, *[1] * (w.ndim - 1))


def _fold_bias(b: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float) -> Any:
    import numpy as np

    return (b - mean) * gamma / np.sqrt(var + float(eps)) + beta


def _shift(x: Any, value: float) -> Any:
    return x + float(value)


def _scale(x: Any, value: float) -> Any:
    return x * float(value)


def _add(*parts: Any) -> Any:
    return sum(parts[1:], parts[0])


def _repeat(x: Any, dim: int, times: int) -> Any:
    import numpy as np

    return np.concatenate([x] * times, axis=dim) / times


def _resize(x: Any, prefix: int, old_h: int, old_w: int, new_h: int, new_w: int) -> Any:
    """Bicubic with antialiasing, as torch.nn.functional.interpolate(mode="bicubic", antialias=True)."""
    import numpy as np

    head, grid = x[..., :prefix, :], x[..., prefix:, :]
    grid = grid.reshape(*x.shape[:-2], old_h, old_w, x.shape[-1])
    rows, columns = _resampling(old_h, new_h), _resampling(old_w, new_w)
    grid = np.einsum("ab,...bcd->...acd", rows, grid)
    grid = np.einsum("ab,...cbd->...cad", columns, grid)
    return np.concatenate([head, grid.reshape(*x.shape[:-2], new_h * new_w, x.shape[-1])], axis=-2)


def _resampling(old: int, new: int) -> Any:
    """The matrix that resamples OLD values to NEW ones: cubic convolution with a = -0.5, widened when it shrinks."""
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


#: All that a mapping may say.
OPERATIONS: dict[str, Operation] = {
    "transpose": Operation(_transposed, "swap the last two dimensions", view=_view_transposed),
    "permute": Operation(_permuted, "reorder dimensions, as torch.permute", view=_view_permuted),
    "reshape": Operation(_reshaped, "other sizes, same values in C order", view=_view_reshaped),
    "slice": Operation(_sliced, "slice(x, dim, start, stop)", view=_view_sliced),
    "select": Operation(_selected, "select(x, dim, index): one element of a dimension", view=_view_selected),
    "cat": Operation(_joined, "cat(dim, x, y, …): join along a dimension", first=1, takes=0),
    "stack": Operation(_stacked, "stack(x, y, …): join along a new first dimension", takes=0),
    "rotary": Operation(
        _flipped_pairs, "rotary(x, heads, half|interleaved): rows of queries and keys into that order", view=_view_pairs
    ),
    "of_heads": Operation(
        _of_heads, "of_heads(x, heads, n, i): part i of n that alternate by head", view=_view_of_heads
    ),
    "by_heads": Operation(_into_heads, "by_heads(heads, x, y, …): parts that alternate by head", first=1, takes=0),
    "flatten": Operation(
        _flattened, "flatten(x, c, h, w, nchw|nhwc): columns into the order of that flattening", view=_view_flattened
    ),
    "weight_norm": Operation(_normed, "weight_norm(g, v): v scaled to the norms g", compute=_weight_norm, takes=2),
    "norm": Operation(_norms, "norm(v): the norms of the rows of v", compute=_norm_values),
    "spectral_norm": Operation(
        _first_shape, "spectral_norm(w, u, v): w by its largest singular value", compute=_spectral, takes=3
    ),
    "lora": Operation(_lora, "lora(w, a, b, scale): w + scale * b a", compute=_lora_values, takes=3),
    "fold_weight": Operation(
        _first_shape, "fold_weight(w, gamma, var, eps): batch norm into a weight", compute=_fold_weight, takes=3
    ),
    "fold_bias": Operation(
        _first_shape, "fold_bias(b, gamma, beta, mean, var, eps): batch norm into a bias", compute=_fold_bias, takes=5
    ),
    "add": Operation(_first_shape, "add(x, y, …): the sum", compute=_add, takes=0),
    "shift": Operation(_same, "shift(x, value): x + value", compute=_shift),
    "scale": Operation(_same, "scale(x, value): x * value", compute=_scale),
    "sum": Operation(_summed, "sum(x, dim): summed over a dimension, which stays with size 1", compute=_sum_values),
    "repeat": Operation(_repeated, "repeat(x, dim, n): n times side by side, divided by n", compute=_repeat),
    "zeros": Operation(_zeroed, "zeros(sizes…)", takes=-1),
    "resize": Operation(
        _resized, "resize(x, prefix, h, w, new_h, new_w): position table of a grid, bicubic", compute=_resize
    ),
}


# ------------------------------------------------------------------------------------------------ into tensors


def lazy(x: Expr, tensors: Mapping[str, LazyTensor]) -> LazyTensor:
    """What X gives as a tensor over TENSORS that is read when it is written."""
    if x.op == "key":
        return tensors[x.key]
    operation = OPERATIONS[x.op]
    shape = shape_of(x, {key: tensors[key].shape for key in x.keys()})  # noqa: SIM118
    if operation.view is not None:
        return operation.view(lazy(x.args[0], tensors), *x.params)
    if x.op == "zeros":
        like = next(iter(tensors.values()))
        return _over(_Zeros(prod(shape) * like.dtype.itemsize), like, shape)
    parts = [lazy(arg, tensors) for arg in x.args]
    like = parts[0]
    if any(p.dtype != like.dtype for p in parts):
        like = max(parts, key=lambda p: p.dtype.itemsize)
    if x.op == "by_heads":
        heads = int(x.params[0])
        cut = [_view_reshaped(p, heads, 1, p.shape[0] // heads, *p.shape[1:]) for p in parts]
        return _view_reshaped(_join(1, cut, like), *shape)
    if x.op == "stack":
        return _view_reshaped(_join(0, [_view_reshaped(p, 1, *p.shape) for p in parts], like), *shape)
    if x.op == "cat":
        return _join(int(x.params[0]), parts, like)
    return _over(_Computed(operation, parts, x.params, like, prod(shape) * like.dtype.itemsize), like, shape)


def _over(source: Source, like: LazyTensor, shape: Shape) -> LazyTensor:
    typed = like.dtype if like.dtype.storage else None
    return LazyTensor(Storage(source, like.location, typed), like.dtype, shape, contiguous_stride(shape))


def _join(dim: int, parts: Sequence[LazyTensor], like: LazyTensor) -> LazyTensor:
    shape = _joined(dim, *(p.shape for p in parts))
    if any(p.dtype != like.dtype for p in parts):
        raise RuleError("tensors of different types are joined: " + ", ".join(p.dtype.name for p in parts))
    rows = prod(shape[:dim])
    # along a later dimension the parts take turns, row by row
    cut: list[Source] = []
    if rows == 1:
        cut = [p.source() for p in parts]
    else:
        flat = [_view_reshaped(p, rows, p.numel // rows) for p in parts]
        if rows > _MOST_TURNS:
            return _over(_Turns([p.source() for p in flat], rows), like, shape)
        cut = [_view_sliced(p, 0, row, row + 1).source() for row in range(rows) for p in flat]
    return _over(Joined(tuple(cut)), like, shape)


_MOST_TURNS = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Joined:
    """Sources one after the other."""

    parts: tuple[Source, ...]

    @property
    def length(self) -> int:
        """Bytes of all of them."""
        return sum(part.length for part in self.parts)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All bytes, in order, in pieces of bounded size."""
        for one in self.parts:
            yield from one.chunks()

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET."""
        out = bytearray()
        for one in self.parts:
            if offset < one.length and length > 0:
                take = min(one.length - offset, length)
                out += one.read(offset, take)
                offset, length = 0, length - take
            else:
                offset = max(offset - one.length, 0)
        return bytes(out)


@dataclass(frozen=True, eq=False, slots=True)
class _Turns:
    """Sources of ROWS rows each, that take turns: the first rows of all, the second rows of all, …"""

    parts: list[Source]
    rows: int

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    def chunks(self) -> Iterator[bytes]:
        row = self.length // self.rows
        step = max(CHUNK // max(row, 1), 1)
        for first in range(0, self.rows, step):
            yield self.read(first * row, min(step, self.rows - first) * row)

    def read(self, offset: int, length: int) -> bytes:
        row = self.length // self.rows
        first, last = offset // row, -(-(offset + length) // row)
        cut = []
        for one in self.parts:
            width = one.length // self.rows
            cut.append((width, one.read(first * width, (last - first) * width)))
        out = b"".join(bytes(data[i * w : (i + 1) * w]) for i in range(last - first) for w, data in cut)
        return out[offset - first * row : offset - first * row + length]


@dataclass(frozen=True, eq=False, slots=True)
class _Zeros:
    length: int

    def chunks(self) -> Iterator[bytes]:
        for at in range(0, self.length, CHUNK):
            yield bytes(min(CHUNK, self.length - at))

    def read(self, offset: int, length: int) -> bytes:
        return bytes(length)


@dataclass(frozen=True, eq=False, slots=True)
class _Computed:
    """The values of one computed tensor. They are computed when they are written, one tensor at a time."""

    operation: Operation
    parts: list[LazyTensor]
    params: tuple[Number, ...]
    like: LazyTensor
    length: int

    def _bytes(self) -> memoryview:
        import numpy as np

        assert self.operation.compute is not None
        kind = self.like.numpy().dtype if self.like.numel else np.dtype("float32")
        wide = np.float64 if kind == np.float64 else np.float32
        values = self.operation.compute(*(p.numpy().astype(wide) for p in self.parts), *self.params)
        return memoryview(np.ascontiguousarray(values.astype(kind)).reshape(-1).view(np.uint8))

    def chunks(self) -> Iterator[bytes | memoryview]:
        yield self._bytes()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        return self._bytes()[offset : offset + length]


# --------------------------------------------------------------------------------------------------- from text

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[(),]|[^\s(),"]+)')


def parse(text: str) -> Expr:
    """The expression that TEXT says.

    Raises:
        RuleError: it says none.
    """
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise RuleError(f"cannot read the expression {printable(text)!r}")
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens, text)
    made = reader.expression()
    if not isinstance(made, Expr) or reader.tokens:
        raise RuleError(f"cannot read the expression {printable(text)!r}")
    return made


class _Reader:
    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens, self.text = tokens, text

    def expression(self) -> Expr:
        if not self.tokens:
            raise RuleError(f"the expression {printable(self.text)!r} ends too early")
        head = self.tokens.pop(0)
        if head in ("(", ")", ","):
            raise RuleError(f"cannot read the expression {printable(self.text)!r}")
        if not self.tokens or self.tokens[0] != "(":
            return of(json.loads(head) if head.startswith('"') else head)
        if head not in OPERATIONS:
            raise RuleError(
                f"there is no operation {printable(head)!r}", evidence=[f"there are {', '.join(OPERATIONS)}"]
            )
        return self._call(head)

    def _call(self, name: str) -> Expr:
        operation = OPERATIONS[name]
        self.tokens.pop(0)
        params: list[Number] = []
        args: list[Expr] = []
        count = 0
        while True:
            if not self.tokens:
                raise RuleError(f"the expression {printable(self.text)!r} has no closing bracket")
            if self.tokens[0] == ")":
                self.tokens.pop(0)
                break
            if count < operation.first or operation.takes < 0 or (operation.takes and len(args) == operation.takes):
                params.append(_number(self.tokens.pop(0)))
            else:
                args.append(self.expression())
            count += 1
            if self.tokens and self.tokens[0] == ",":
                self.tokens.pop(0)
        if not args and operation.takes >= 0:
            raise RuleError(f"{name}() in {printable(self.text)!r} has nothing to work on")
        return Expr(name, tuple(args), tuple(params))


def _number(text: str) -> Number:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# ---------------------------------------------------------------------------------------------------- inversion


def inverted(target: str, x: Expr, shapes: Mapping[str, Shape]) -> dict[str, list[tuple[Expr, Any]]] | None:
    """How the keys that X reads come back from the tensor TARGET, or None where values are lost.

    Gives, for each key, the pieces that are known of it: (expression over TARGET, (kind, details) of the piece); a whole
    key is one piece with the kind "all".
    """
    out: dict[str, list[tuple[Expr, Any]]] = {}
    if not _undo(x, of(target), ("all",), out, shapes):
        return None
    return out


def _undo(
    x: Expr, value: Expr, piece: Any, out: dict[str, list[tuple[Expr, Any]]], shapes: Mapping[str, Shape]
) -> bool:
    if x.op == "key":
        out.setdefault(x.key, []).append((value, piece))
        return True
    if x.op == "zeros":
        return True
    inner = x.args[0]
    if x.op == "transpose":
        return _undo(inner, transpose(value), piece, out, shapes)
    if x.op == "permute":
        back = [0] * len(x.params)
        for new, old in enumerate(x.params):
            back[int(old)] = new
        return _undo(inner, permute(value, *back), piece, out, shapes)
    if x.op == "reshape":
        return _undo(inner, reshape(value, shape_of(inner, shapes)), piece, out, shapes)
    if x.op == "rotary":
        other = "half" if x.params[1] == "interleaved" else "interleaved"
        return _undo(inner, Expr("rotary", (value,), (x.params[0], other)), piece, out, shapes)
    if x.op == "flatten":
        other = "nchw" if x.params[3] == "nhwc" else "nhwc"
        return _undo(inner, Expr("flatten", (value,), (*x.params[:3], other)), piece, out, shapes)
    if x.op in ("shift", "scale"):
        amount = float(x.params[0])
        back_to = -amount if x.op == "shift" else 1 / amount
        return _undo(inner, Expr(x.op, (value,), (back_to,)), piece, out, shapes)
    if x.op == "cat":
        dim, at = int(x.params[0]), 0
        for arg in x.args:
            size = shape_of(arg, shapes)[dim]
            if not _undo(arg, Expr("slice", (value,), (dim, at, at + size)), piece, out, shapes):
                return False
            at += size
        return True
    if x.op == "stack":
        return all(_undo(arg, select(value, 0, i), piece, out, shapes) for i, arg in enumerate(x.args))
    if x.op == "by_heads":
        n = len(x.args)
        return all(
            _undo(arg, Expr("of_heads", (value,), (x.params[0], n, i)), piece, out, shapes)
            for i, arg in enumerate(x.args)
        )
    if x.op in ("slice", "select", "of_heads") and inner.op == "key":
        return _undo(inner, value, (x.op, *x.params), out, shapes)
    return False


def reassembled(pieces: Sequence[tuple[Expr, Any]], shape: Shape) -> Expr | None:
    """One tensor of sizes SHAPE from its PIECES (see `inverted`), or None if some are missing."""
    for value, piece in pieces:
        if piece[0] == "all":
            return value
    kind = pieces[0][1][0]
    if any(piece[0] != kind for _, piece in pieces):
        return None
    if kind == "slice":
        dim = pieces[0][1][1]
        ordered = sorted(pieces, key=lambda item: item[1][2])
        edges = [(p[2], p[3]) for _, p in ordered]
        if any(p[1] != dim for _, p in ordered) or edges[0][0] != 0 or edges[-1][1] != shape[dim]:
            return None
        if any(a[1] != b[0] for a, b in zip(edges, edges[1:], strict=False)):
            return None
        return Expr("cat", tuple(value for value, _ in ordered), (dim,)) if len(ordered) > 1 else ordered[0][0]
    if kind == "select":
        ordered = sorted(pieces, key=lambda item: item[1][2])
        if any(p[1] != 0 for _, p in ordered) or [p[2] for _, p in ordered] != list(range(shape[0])):
            return None
        return stack(*(value for value, _ in ordered))
    ordered = sorted(pieces, key=lambda item: item[1][3])
    heads, n = ordered[0][1][1], ordered[0][1][2]
    if [p[3] for _, p in ordered] != list(range(n)):
        return None
    return Expr("by_heads", tuple(value for value, _ in ordered), (heads,))
