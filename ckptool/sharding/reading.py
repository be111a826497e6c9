"""A box of a lazy tensor, read into memory that is there already: its bytes, and as few others as can be.

What lies in one piece in the file goes from there to its place, without memory in between. A box of columns is read row
by row; where such runs are short, several are read at once with what lies between them. A tensor that is stored as
tiles is read from those that the box meets. What a mapping computes from several values is computed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from ..disk.composing import nested
from ..disk.files import FileRange, Source
from ..tensor import LazyTensor, contiguous_stride, little_endian, memory_order

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Index = tuple[int, ...]

#: Bytes that are in memory at once where they do not go to their place directly.
STEP = 8 << 20
#: A shorter run is read together with its neighbours, if they are not far: a disk reads so many bytes anyway.
_SHORT, _FAR = 4 << 10, 16 << 10
#: Bytes that the system is asked for at once. It gives no more than 2 GiB.
_MOST = 1 << 30


class Tiles(Source, Protocol):
    """A source that is put together from boxes."""

    @property
    def shape(self) -> Index:
        """The sizes of the whole."""

    def within(self, low: Index, high: Index) -> Iterator[tuple[tuple[slice, ...], LazyTensor]]:
        """What a box of it is made of: where in the box, and the values."""


def read_box(tensor: LazyTensor, start: Index, out: Array) -> None:
    """Fill OUT with the elements of TENSOR from START on.

    Args:
        tensor: the whole tensor.
        start: the first element that is read, per dimension.
        out: of the sizes of the box, of any strides; its elements are raw ones (`V4`), as many bytes as a number has.

    Raises:
        CannotCarry: a negated tensor of a type without negative numbers.
        Unreadable: the system cannot read the file there.
    """
    if not out.size:
        return
    offset = tensor.offset + sum(at * step for at, step in zip(start, tensor.stride, strict=True))
    box = tensor.changed(shape=out.shape, offset=offset)
    if box.storage.big_endian:
        box = box.changed(storage=little_endian(box.storage, box.dtype))
    if box.conj or box.neg:
        _fill(box.source(), 0, out)
        return
    once = _view(out, tuple(slice(1 if step == 0 else None) for step in box.stride))  # what is repeated is read once
    order = memory_order(box.stride)
    _read_in_order(
        box.changed(shape=tuple(once.shape[dim] for dim in order), stride=tuple(box.stride[dim] for dim in order)),
        once.transpose(order),
    )
    if once.shape != out.shape:
        out[...] = once


def _read_in_order(box: LazyTensor, out: Array) -> None:
    """Fill OUT from a box whose dimensions stand from the slowest to the fastest in memory."""
    source = box.storage.source
    low = _place_in(source, box) if _has_tiles(source) else None
    if low is not None and _has_tiles(source):
        high = tuple(first + size for first, size in zip(low, box.shape, strict=True))
        for where, values in source.within(low, high):
            read_box(values, (0,) * len(values.shape), _view(out, where))
    elif any(getattr(type(part), "computed_at_once", False) for part in nested(source)):
        _from_whole(box, out)
    else:
        _read(source, box.offset, box.shape, box.stride, out)


def _view(out: Array, index: tuple[slice, ...]) -> Array:
    """A part of an array that shares its memory, also of one without dimensions."""
    found: Array = out[index] if index else out
    return found


def _has_tiles(source: Source) -> TypeGuard[Tiles]:
    return hasattr(source, "within")


def _place_in(source: Tiles, box: LazyTensor) -> Index | None:
    """Where a box begins in a tensor that is stored as tiles, or None if it is no box of that but another view."""
    if box.stride != contiguous_stride(source.shape):
        return None
    left, low = box.offset, []
    for step in box.stride:
        low.append(left // step)
        left %= step
    inside = all(first + size <= room for first, size, room in zip(low, box.shape, source.shape, strict=True))
    return tuple(low) if inside else None


def _from_whole(box: LazyTensor, out: Array) -> None:
    """Fill OUT from a storage that is computed as a whole, whatever is wanted of it."""
    import numpy as np

    source, item = box.storage.source, out.dtype.itemsize
    values = np.frombuffer(b"".join(source.chunks()), out.dtype)[box.offset :]
    steps = tuple(step * item for step in box.stride)
    out[...] = np.lib.stride_tricks.as_strided(values, box.shape, steps, writeable=False)


def _read(source: Source, offset: int, shape: Index, stride: Index, out: Array) -> None:
    """Fill OUT with a strided box, by runs of neighbours that are as long as can be. All is counted in elements."""
    import numpy as np

    item, total, run, dims = out.dtype.itemsize, prod(shape), 1, len(shape)
    while dims and (stride[dims - 1] == run or shape[dims - 1] == 1):
        dims -= 1
        run *= shape[dims]
    if run == total:
        _fill(source, offset * item, out)
        return
    rows = 1
    if run * item < _SHORT and stride[dims - 1] * item <= _FAR:
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if span * item <= STEP:
            values = np.frombuffer(source.read(offset * item, span * item), out.dtype)
            steps = tuple(step * item for step in stride)
            out[...] = np.lib.stride_tricks.as_strided(values, shape, steps, writeable=False)
            return
        rows = STEP // (stride[0] * item) if stride[0] else 1
        rows = rows if 1 < rows < shape[0] else 1
    for first in range(0, shape[0], rows):
        at = offset + first * stride[0]
        if rows == 1:
            _read(source, at, shape[1:], stride[1:], out[first, ...])
        else:
            part = out[first : first + rows]
            _read(source, at, part.shape, stride, part)


def _fill(source: Source, offset: int, out: Array) -> None:
    """Fill OUT with the bytes of SOURCE from OFFSET, which are its elements in C order."""
    import numpy as np

    size = out.size * out.dtype.itemsize
    if isinstance(source, FileRange) and out.flags.c_contiguous:
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        for at in range(0, size, _MOST):
            source.file.read_into(view[at : at + _MOST], source.offset + offset + at)
    elif size <= STEP or not out.ndim:
        out[...] = np.frombuffer(source.read(offset, size), out.dtype).reshape(out.shape)
    else:
        row = size // len(out)
        rows = STEP // row
        for first in range(0, len(out), max(rows, 1)):
            part = out[first : first + rows] if rows else out[first, ...]
            _fill(source, offset + first * row, part)


__all__ = ["STEP", "read_box"]
