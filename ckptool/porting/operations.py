"""What can be done with tensors on the way: the shape that an operation gives, and its result as a view or from values.

What only rearranges is a view of the source and moves no byte; what computes does so in float32 (float64 stays) and
rounds once, when it is written, one tensor at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from ..disk.files import CHUNK, Source
from ..errors import RuleError, printable
from ..tensor import LazyTensor, Storage, contiguous_stride

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]
Number = int | float | str


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be done.

    Attributes:
        shape: sizes of the result for the sizes of the arguments and the parameters.
        view: the result as a view of its one argument, where nothing is computed.
        compute: the result from numpy arrays, where it is.
        first: parameters that are written before the arguments.
        summary: for the documentation.
        takes: how many arguments (0: any number, -1: none).
        params: the other parameters, as `fits` spells them.
    """

    shape: Callable[..., Shape]
    summary: str
    view: Callable[..., LazyTensor] | None = None
    compute: Callable[..., np.ndarray[Any, Any]] | None = None
    first: int = 0
    takes: int = 1
    params: str = ""

    def fits(self, params: Sequence[Number]) -> bool:
        """Whether these are its parameters, by kind: i is an integer from 0 on, f another number, w a word."""
        return re.fullmatch(self.params, "".join(map(_kind, params))) is not None


def _kind(param: Number) -> str:
    if isinstance(param, str):
        return "w"
    return "i" if isinstance(param, int) and param >= 0 else "f"


_REAL = "[if]"


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
    _need(all(dim < len(s) for s in shapes), f"there is no dimension {dim} to join along")
    rest = {(*s[:dim], *s[dim + 1 :]) for s in shapes}
    _need(
        len(rest) == 1 and len({len(s) for s in shapes}) == 1,
        f"cannot join {', '.join(str(list(s)) for s in shapes[:4])}",
    )
    return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])


def _stacked(*shapes: Shape) -> Shape:
    _need(len(set(shapes)) == 1, f"cannot stack {', '.join(str(list(s)) for s in shapes[:4])}")
    return (len(shapes), *shapes[0])


def _flipped_pairs(shape: Shape, heads: int, to: str) -> Shape:
    _need(bool(shape) and heads > 0 and shape[0] % (2 * heads) == 0, f"{list(shape)} has no {heads} heads of pairs")
    _need(to in ("half", "interleaved"), f"{to!r} is neither half nor interleaved")
    return shape


def _of_heads(shape: Shape, heads: int, n: int, start: int, stop: int | None = None) -> Shape:
    stop = start + 1 if stop is None else stop
    _need(
        bool(shape) and heads * n > 0 and shape[0] % (heads * n) == 0,
        f"{list(shape)} has no {heads} heads of {n} parts",
    )
    _need(0 <= start < stop <= n, f"no parts {start} to {stop} of {n}")
    return (shape[0] // n * (stop - start), *shape[1:])


def _into_heads(heads: int, *shapes: Shape) -> Shape:
    _need(
        heads > 0 and len({s[1:] for s in shapes}) == 1 and all(s and s[0] % heads == 0 for s in shapes),
        f"cannot interleave {len(shapes)} parts by {heads} heads",
    )
    return (sum(s[0] for s in shapes), *shapes[0][1:])


def _flattened(shape: Shape, c: int, h: int, w: int, to: str) -> Shape:
    _need(len(shape) >= 1 and shape[-1] == c * h * w, f"{list(shape)} does not take {c} x {h} x {w} features")
    _need(to in ("nchw", "nhwc"), f"{to!r} is neither nchw nor nhwc")
    return shape


def _normed(g: Shape, v: Shape) -> Shape:
    own = next((d for d, n in enumerate(g) if n != 1), 0) if len(g) == len(v) else 0
    _need(prod(g) == 1 or v[own : own + 1] == (prod(g),), f"the norms {list(g)} are not those of {list(v)}")
    return v


def _norms(v: Shape) -> Shape:
    _need(bool(v), "a single number has no rows")
    return (v[0], *[1] * (len(v) - 1))


def _lora(w: Shape, a: Shape, b: Shape, scale: object) -> Shape:
    fits = len(a) > 1 and len(b) > 1 and a[0] == prod(b[1:]) and prod(w) == b[0] * prod(a[1:])
    _need(fits and (len(w) > 2 or w == (b[0], prod(a[1:]))), f"{list(b)} times {list(a)} does not fit {list(w)}")
    return w


def _lora_alpha(w: Shape, a: Shape, b: Shape, alpha: Shape) -> Shape:
    _need(prod(alpha) == 1, f"{list(alpha)} is not one number")
    return _lora(w, a, b, None)


def _same(shape: Shape, *_: Any) -> Shape:
    return shape


def _spectral_shape(w: Shape, u: Shape, v: Shape) -> Shape:
    _need(bool(w) and (u, v) == (w[:1], (prod(w[1:]),)), f"{list(u)} and {list(v)} are not the vectors of {list(w)}")
    return w


def _folded(w: Shape, *rows: Any) -> Shape:
    _need(bool(w) and all(s == w[:1] for s in rows[:-1]), f"{list(w)} does not have the rows of a batch norm")
    return w


def _widest(first: Shape, *others: Shape) -> Shape:
    for one in others:
        fits = len(one) <= len(first) and all(a in (1, b) for a, b in zip(one[::-1], first[::-1], strict=False))
        _need(fits, f"{list(one)} cannot be added to {list(first)}")
    return first


def _alike(x: Shape, y: Shape) -> Shape:
    _need(x == y, f"{list(x)} and {list(y)} are not of one size")
    return x


def _summed(shape: Shape, dim: int) -> Shape:
    _need(0 <= dim < len(shape), f"no dimension {dim} in {list(shape)}")
    return (*shape[:dim], 1, *shape[dim + 1 :])


def _repeated(shape: Shape, dim: int, times: int) -> Shape:
    _need(0 <= dim < len(shape) and times > 0, f"{list(shape)} cannot be repeated {times} times in dimension {dim}")
    return (*shape[:dim], shape[dim] * times, *shape[dim + 1 :])


def _grown(shape: Shape, dim: int, size: int) -> Shape:
    _need(0 <= dim < len(shape) and size >= shape[dim] > 0, f"{list(shape)} cannot grow to {size} in dimension {dim}")
    return (*shape[:dim], size, *shape[dim + 1 :])


def _zeroed(*sizes: int) -> Shape:
    return tuple(sizes)


def _resized(shape: Shape, prefix: int, old_h: int, old_w: int, new_h: int, new_w: int) -> Shape:
    fits = len(shape) >= 2 and shape[-2] == prefix + old_h * old_w
    _need(fits and old_h * old_w * new_h * new_w > 0, f"{list(shape)} is no grid of {old_h} x {old_w}")
    return (*shape[:-2], prefix + new_h * new_w, shape[-1])


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise RuleError(printable(what, 300))


# -- views


def _view_transposed(x: LazyTensor) -> LazyTensor:
    shape, stride = ((*t[:-2], t[-1], t[-2]) for t in (x.shape, x.stride))
    return replace(x, shape=shape, stride=stride)


def _view_permuted(x: LazyTensor, *dims: int) -> LazyTensor:
    return replace(x, shape=tuple(x.shape[d] for d in dims), stride=tuple(x.stride[d] for d in dims))


def _view_reshaped(x: LazyTensor, *new: int) -> LazyTensor:
    x = contiguous(x)
    return replace(x, shape=tuple(new), stride=contiguous_stride(tuple(new)))


def _view_sliced(x: LazyTensor, dim: int, start: int, stop: int) -> LazyTensor:
    shape = (*x.shape[:dim], stop - start, *x.shape[dim + 1 :])
    return replace(x, shape=shape, offset=x.offset + start * x.stride[dim])


def _view_selected(x: LazyTensor, dim: int, index: int) -> LazyTensor:
    shape, stride = ((*t[:dim], *t[dim + 1 :]) for t in (x.shape, x.stride))
    return replace(x, shape=shape, stride=stride, offset=x.offset + index * x.stride[dim])


def _view_pairs(x: LazyTensor, heads: int, to: str) -> LazyTensor:
    d, rest = x.shape[0] // heads, x.shape[1:]
    inner = (heads, d // 2, 2, *rest) if to == "half" else (heads, 2, d // 2, *rest)
    swapped = _view_permuted(_view_reshaped(x, *inner), 0, 2, 1, *range(3, 3 + len(rest)))
    return _view_reshaped(swapped, *x.shape)


def _view_of_heads(x: LazyTensor, heads: int, n: int, start: int, stop: int | None = None) -> LazyTensor:
    stop = start + 1 if stop is None else stop
    d = x.shape[0] // (heads * n)
    inner = _view_sliced(_view_reshaped(x, heads, n, d, *x.shape[1:]), 1, start, stop)
    return _view_reshaped(inner, heads * (stop - start) * d, *x.shape[1:])


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


def _lora_alpha_values(w: Any, a: Any, b: Any, alpha: Any) -> Any:
    return _lora_values(w, a, b, alpha.reshape(()) / a.shape[0])


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


def _mul(x: Any, y: Any) -> Any:
    return x * y


def _nonzero(x: Any) -> Any:
    return x != 0


def _repeat(x: Any, dim: int, times: int) -> Any:
    import numpy as np

    return np.concatenate([x] * times, axis=dim) / times


def _grow(x: Any, dim: int, size: int) -> Any:
    import numpy as np

    return np.concatenate([x, *[x.mean(axis=dim, keepdims=True)] * (size - x.shape[dim])], axis=dim)


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
    "permute": Operation(_permuted, "reorder dimensions, as torch.permute", view=_view_permuted, params="i*"),
    "reshape": Operation(_reshaped, "other sizes, same values in C order", view=_view_reshaped, params="i*"),
    "slice": Operation(_sliced, "slice(x, dim, start, stop)", view=_view_sliced, params="iii"),
    "select": Operation(
        _selected, "select(x, dim, index): one element of a dimension", view=_view_selected, params="ii"
    ),
    "cat": Operation(_joined, "cat(dim, x, y, …): join along a dimension", first=1, takes=0, params="i"),
    "stack": Operation(_stacked, "stack(x, y, …): join along a new first dimension", takes=0),
    "rotary": Operation(
        _flipped_pairs,
        "rotary(x, heads, half|interleaved): rows of queries and keys into that order",
        view=_view_pairs,
        params="iw",
    ),
    "of_heads": Operation(
        _of_heads,
        "of_heads(x, heads, n, i): part i of n that alternate by head; of_heads(x, heads, n, i, j): parts i to j - 1",
        view=_view_of_heads,
        params="iiii?",
    ),
    "by_heads": Operation(
        _into_heads, "by_heads(heads, x, y, …): parts that alternate by head", first=1, takes=0, params="i"
    ),
    "flatten": Operation(
        _flattened,
        "flatten(x, c, h, w, nchw|nhwc): columns into the order of that flattening",
        view=_view_flattened,
        params="iiiw",
    ),
    "weight_norm": Operation(_normed, "weight_norm(g, v): v scaled to the norms g", compute=_weight_norm, takes=2),
    "norm": Operation(_norms, "norm(v): the norms of the rows of v", compute=_norm_values),
    "spectral_norm": Operation(
        _spectral_shape, "spectral_norm(w, u, v): w by its largest singular value", compute=_spectral, takes=3
    ),
    "lora": Operation(_lora, "lora(w, a, b, scale): w + scale * b a", compute=_lora_values, takes=3, params=_REAL),
    "lora_alpha": Operation(
        _lora_alpha, "lora_alpha(w, a, b, alpha): w + alpha / rank * b a", compute=_lora_alpha_values, takes=4
    ),
    "fold_weight": Operation(
        _folded,
        "fold_weight(w, gamma, var, eps): batch norm into a weight",
        compute=_fold_weight,
        takes=3,
        params=_REAL,
    ),
    "fold_bias": Operation(
        _folded,
        "fold_bias(b, gamma, beta, mean, var, eps): batch norm into a bias",
        compute=_fold_bias,
        takes=5,
        params=_REAL,
    ),
    "add": Operation(_widest, "add(x, y, …): the sum", compute=_add, takes=0),
    "mul": Operation(_alike, "mul(x, y): the product, element by element", compute=_mul, takes=2),
    "nonzero": Operation(_same, "nonzero(x): 1 where x is not 0", compute=_nonzero),
    "shift": Operation(_same, "shift(x, value): x + value", compute=_shift, params=_REAL),
    "scale": Operation(_same, "scale(x, value): x * value", compute=_scale, params=_REAL),
    "sum": Operation(
        _summed, "sum(x, dim): summed over a dimension, which stays with size 1", compute=_sum_values, params="i"
    ),
    "repeat": Operation(
        _repeated, "repeat(x, dim, n): n times side by side, divided by n", compute=_repeat, params="ii"
    ),
    "grow": Operation(
        _grown,
        "grow(x, dim, n): n elements of a dimension, the new ones the mean of the others",
        compute=_grow,
        params="ii",
    ),
    "zeros": Operation(_zeroed, "zeros(sizes…)", takes=-1, params="i*"),
    "resize": Operation(
        _resized,
        "resize(x, prefix, h, w, new_h, new_w): position table of a grid, bicubic",
        compute=_resize,
        params="iiiii",
    ),
}


# -- results over new storages


def result(op: str, parts: list[LazyTensor], params: tuple[Number, ...], shape: Shape, like: LazyTensor) -> LazyTensor:
    """The result of an operation on lazy tensors, of sizes SHAPE, typed and placed like LIKE."""
    operation = OPERATIONS[op]
    if operation.view is not None:
        return operation.view(parts[0], *params)
    if op == "zeros":
        return _over(_Zeros(prod(shape) * like.dtype.itemsize), like, shape)
    if any(p.dtype != like.dtype for p in parts):
        like = max(parts, key=lambda p: p.dtype.itemsize)
    if op == "by_heads":
        heads = int(params[0])
        cut = [_view_reshaped(p, heads, p.shape[0] // heads, *p.shape[1:]) for p in parts]
        return _view_reshaped(_join(1, cut, like), *shape)
    if op == "stack":
        return _view_reshaped(_join(0, [_view_reshaped(p, 1, *p.shape) for p in parts], like), *shape)
    if op == "cat":
        return _join(int(params[0]), parts, like)
    return _over(_Computed(operation, parts, params, like, prod(shape) * like.dtype.itemsize), like, shape)


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

    #: Whatever is wanted of it, all of it is computed.
    computed_at_once: ClassVar[bool] = True

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
        return memoryview(np.ascontiguousarray(values.astype(kind)).reshape(-1).view(np.uint8).data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        yield self._bytes()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        return self._bytes()[offset : offset + length]
