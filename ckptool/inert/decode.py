"""Sparse, nested and quantized tensors: their indices checked, and their dense values computed while they are written.

What torch computes: `Tensor.to_dense()` (entries of an uncoalesced tensor that have the same index are added) and
`Tensor.dequantize()`: (q - zero_point) * scale, in float32 where one scale is that of the whole tensor, and with scales
in float64 where each channel has its own. Memory is that of what is stored, not of the dense tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ..dtypes import BY_NAME, DType
from ..errors import CannotCarry, Malformed, counted
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..tree import Object
from .other_tensors import COMPRESSED, OtherTensor, other_tensor

if TYPE_CHECKING:
    import numpy as np

_PIECE = 1 << 20  # elements that are computed at once
#: A dense tensor may be this much larger than what is stored, or this large.
_MOST_EXPANSION = 1 << 16
_MOST_ALWAYS = 1 << 30

#: What quantized values are stored as, and how many of them are in a byte of a packed type.
_INTEGERS = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
_PACKED = {"quint4x2": 2, "quint2x4": 4}


def to_dense(other: OtherTensor) -> LazyTensor:
    """The dense tensor of a sparse one. Its index tensors are read and checked now, its values when they are written.

    Raises:
        CannotCarry: it would be absurdly large.
        Malformed: its indices are out of range.
    """
    check_indices(other)
    values = other.parts["values"]
    size = prod(other.shape) * values.dtype.itemsize
    if size > max(_MOST_ALWAYS, _MOST_EXPANSION * other.nbytes):
        raise CannotCarry(f"a sparse tensor of {counted(values.numel, 'value')} would be {size:,} bytes when dense")
    return _computed(Scattered(other, size), values.dtype, other)


def dequantized(other: OtherTensor) -> LazyTensor:
    """The float32 tensor that a quantized one stands for."""
    return _computed(Dequantized(other), BY_NAME["float32"], other)


def _computed(source: Any, dtype: DType, other: OtherTensor) -> LazyTensor:
    storage = Storage(source, other.location, dtype if dtype.storage else None)
    stride = contiguous_stride(other.shape)
    return LazyTensor(storage, dtype, other.shape, stride, 0, other.requires_grad, other.parameter)


@dataclass(eq=False, slots=True)
class Scattered:
    """The dense bytes of a sparse tensor: zeros, and its values where its indices say."""

    other: OtherTensor
    length: int
    _sorted: Any = field(default=None, repr=False)

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET of the dense tensor."""
        import numpy as np

        if self._sorted is None:
            self._sorted = _entries(self.other)
        places, values = self._sorted
        row = values.shape[1]  # elements that each entry gives, side by side
        item = values.dtype.itemsize
        first, last = offset // item, -(-(offset + length) // item)
        low, high = np.searchsorted(places, [first // row, -(-last // row)])
        start = first // row * row
        out = np.zeros((-(-last // row) * row - start) // row * row, values.dtype).reshape(-1, row)
        out[places[low:high] - first // row] = values[low:high]
        raw = out.reshape(-1).view(np.uint8)
        return memoryview(raw.data)[offset - start * item :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All bytes, in pieces."""
        step = _PIECE * 4
        for at in range(0, self.length, step):
            yield self.read(at, min(step, self.length - at))


def _entries(other: OtherTensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(places in rising order, values): where each entry stands among all that there could be, and its elements."""
    import numpy as np

    values = other.parts["values"].numpy()
    if other.kind == "sparse_coo":
        indices = other.parts["indices"].numpy()
        depth = len(indices)
        places = _places([*indices], other.shape[:depth], values.shape[0])
        values = values.reshape(values.shape[0], prod(values.shape[1:]))
    else:
        places, values = _compressed_entries(other, values)
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order]
    if len(places) and (places[1:] == places[:-1]).any():
        places, which = np.unique(places, return_inverse=True)
        summed = np.zeros((len(places), values.shape[1]), values.dtype)
        np.add.at(summed, which, values)
        values = summed
    if values.shape[1] == 0:
        values = np.zeros((0, 1), values.dtype)
        places = places[:0]
    return places, values


def _places(indices: list[Any], shape: tuple[int, ...], count: int) -> Any:
    import numpy as np

    places = np.zeros(count, np.int64)
    for index, size in zip(indices, shape, strict=True):
        places = places * size + index
    return places


def _compressed_entries(other: OtherTensor, values: Any) -> tuple[Any, Any]:
    """The same for a tensor with compressed rows or columns, possibly of blocks, possibly a batch of them."""
    import numpy as np

    outer, inner = other.parts["compressed"].numpy(), other.parts["indices"].numpy()
    batch = outer.ndim - 1
    blocks = other.kind in ("sparse_bsr", "sparse_bsc")
    high, wide = values.shape[batch + 1 : batch + 3] if blocks else (1, 1)
    rest = prod(values.shape[batch + 1 + 2 * blocks :])
    count = inner.shape[-1]
    layers = prod(outer.shape[:-1])
    steps = np.diff(outer.reshape(layers, -1), axis=1)
    lines = np.concatenate([np.repeat(np.arange(steps.shape[1]), row) for row in steps] or [np.zeros(0, np.int64)])
    layer = np.repeat(np.arange(layers), count)
    across = inner.reshape(-1).astype(np.int64)
    rows, columns = (lines, across) if other.kind in ("sparse_csr", "sparse_bsr") else (across, lines)
    down, right = np.divmod(np.arange(high * wide), wide)  # within a block
    rows = (rows[:, None] * high + down).reshape(-1)
    columns = (columns[:, None] * wide + right).reshape(-1)
    layer = np.repeat(layer, high * wide)
    places = _places([layer, rows, columns], (layers, *other.shape[batch : batch + 2]), len(rows))
    return places, values.reshape(len(rows), rest)


@dataclass(eq=False, slots=True)
class Dequantized:
    """The float32 bytes of a quantized tensor."""

    other: OtherTensor

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return 4 * prod(self.other.shape)

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        if not length:
            return memoryview(b"")
        first, last = offset // 4, -(-(offset + length) // 4)
        values, detail = self._integers(first, last), self.other.detail
        with np.errstate(all="ignore"):  # scales may be anything
            if isinstance(detail, tuple):  # integers of 32 bits: their difference is exact in float64
                made = (values.astype(np.float64) - detail[1]).astype(np.float32) * np.float32(detail[0])
            else:
                scales, zeros = self._of_channels(first, last)
                made = (values.astype(np.float32) - zeros.astype(np.float32)) * scales
                made = made.astype(np.float32)
        return memoryview(made.view(np.uint8).data)[offset - 4 * first :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, 4 * _PIECE):
            yield self.read(at, min(4 * _PIECE, self.length - at))

    def _of_channels(self, first: int, last: int) -> tuple[Any, Any]:
        """Scale and zero point of the channel of each of these elements. Scales count in full where zero points are
        integers, and as float32 where they are none, as in torch.
        """
        import numpy as np

        axis, shape = self.other.detail, self.other.shape
        channel = np.arange(first, last) // prod(shape[axis + 1 :]) % shape[axis]
        scales, zeros = (self.other.parts[name].numpy() for name in ("scales", "zero_points"))
        kind = np.float32 if zeros.dtype.kind == "f" else np.float64
        return scales.astype(kind)[channel], zeros[channel]

    def _integers(self, first: int, last: int) -> Any:
        """These elements as integers, in C order."""
        import numpy as np

        stored = self.other.parts["values"]
        per_byte = _PACKED.get(stored.dtype.name)
        if per_byte is None:
            kind = np.dtype(_INTEGERS[stored.dtype.name])
            raw = stored.source().read(first * kind.itemsize, (last - first) * kind.itemsize)
            return np.frombuffer(raw, kind)
        start, end = first // per_byte, -(-last // per_byte)
        packed = np.frombuffer(stored.source().read(start, end - start), np.uint8)
        bits = 8 // per_byte
        parts = [packed >> (bits * place) & ((1 << bits) - 1) for place in range(per_byte)]
        return np.stack(parts, axis=1).reshape(-1)[first - start * per_byte : last - start * per_byte]


# -- what is in index tensors is structure: it is checked against the sizes before anybody relies on it

#: Bytes of index tensors that are read to check them when a file is opened. The others are checked when they are used.
CHECKED_ON_OPENING = 64 << 20


def check_indices(other: OtherTensor) -> None:
    """Read the index tensors of a sparse or nested tensor and check them against its sizes.

    Raises:
        Malformed: an index is out of range, or out of order where order is needed.
    """
    if other.kind == "sparse_coo":
        found = other.parts["indices"].numpy()
        for row, size in zip(found, other.shape, strict=False):
            _in_range(row, 0, size)
    elif other.kind in COMPRESSED:
        _check_compressed(other)
    elif other.kind == "nested":
        _check_nested(other)


def _in_range(values: Any, low: int, high: int) -> None:
    """Refuse values outside LOW <= value < HIGH."""
    if values.size and (int(values.min()) < low or int(values.max()) >= high):
        shown = int(values.min()) if int(values.min()) < low else int(values.max())
        raise Malformed(f"a sparse or nested tensor has the index {shown:,} where {low:,} to {high - 1:,} can be")


def _check_compressed(other: OtherTensor) -> None:
    import numpy as np

    outer, inner = other.parts["compressed"].numpy(), other.parts["indices"].numpy()
    by_rows, blocks = COMPRESSED[other.kind]
    batch = outer.ndim - 1
    block = other.parts["values"].shape[batch + 1 : batch + 3] if blocks else (1, 1)
    plain = other.shape[batch + by_rows] // block[by_rows]
    _in_range(inner, 0, plain)
    count = inner.shape[-1]
    _in_range(outer, 0, count + 1)
    steps = np.diff(outer, axis=-1)
    if (steps < 0).any() or (outer[..., 0] != 0).any() or (outer[..., -1] != count).any():
        raise Malformed("a sparse tensor has compressed indices that do not rise from 0 to the number of its values")


def _check_nested(other: OtherTensor) -> None:
    import numpy as np

    room = other.parts["values"].numel
    offsets = other.parts["offsets"].numpy()
    if other.detail == "jagged":
        _in_range(offsets, 0, other.parts["values"].shape[0] + 1)
        if (np.diff(offsets) < 0).any():
            raise Malformed("a nested tensor has offsets that do not rise")
        return
    sizes, strides = (other.parts[name].numpy() for name in ("sizes", "strides"))
    _in_range(offsets, 0, 1 << 62)
    _in_range(sizes, 0, 1 << 62)
    _in_range(strides, 0, 1 << 62)
    filled = (sizes > 0).all(axis=1)
    # As floats first, which do not overflow: what is beyond all memory needs no exact number.
    about = offsets + ((sizes - 1).astype(np.float64) * strides).sum(axis=1)
    far = filled & (about > 1 << 61)
    last = np.where(filled & ~far, offsets + ((sizes - 1) * strides).sum(axis=1), -1)
    if far.any() or (last >= room).any():
        raise Malformed(f"a nested tensor has a part that reaches beyond its {room:,} elements")


def check_all(nodes: Iterable[Object], where: object) -> tuple[str, ...]:
    """Check tensors of all kinds as a file is opened: that their parts fit together, and the indices of those that have
    any. Returns warnings on indices that are left for later.
    """
    left, later = CHECKED_ON_OPENING, 0
    checked: set[Any] = set()
    try:
        for node in nodes:
            other = other_tensor(node)
            if other is None or not (other.kind == "nested" or other.kind.startswith("sparse")):
                continue
            index = [part for name, part in other.parts.items() if name != "values"]
            same = (other.kind, other.shape, other.parts["values"].shape, *(part.identity for part in index))
            if same in checked:
                continue
            size = sum(part.nbytes for part in index)
            if size > left:
                later += 1
                continue
            left -= size
            check_indices(other)
            checked.add(same)
    except Malformed as error:
        error.where = error.where or str(where)
        raise
    return (f"the indices of {counted(later, 'sparse tensor')} were not checked: they are large",) if later else ()
