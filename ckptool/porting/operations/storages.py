"""Make lazy tensors: views of a tensor, concatenations of tensors, and tensors that are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from ...disk.composing import Joined, Zeros
from ...disk.files import CHUNK, Source
from ...errors import RuleError
from ...passes.casting import numpy_type
from ...tensor import LazyTensor, Storage, contiguous_stride

# -- views


def permuted(x: LazyTensor, *dims: int) -> LazyTensor:
    """Return a view of X with its dimensions in the order DIMS."""
    return x.changed(shape=tuple(x.shape[d] for d in dims), stride=tuple(x.stride[d] for d in dims))


def reshaped(x: LazyTensor, *sizes: int) -> LazyTensor:
    """Return the values of X in C order with the sizes SIZES: a view of X if X fills its storage, else over a storage
    of its own (see `contiguous`). SIZES are not checked against the number of elements.
    """
    return contiguous(x).changed(shape=sizes, stride=contiguous_stride(sizes))


def sliced(x: LazyTensor, dim: int, start: int, stop: int) -> LazyTensor:
    """Return a view of elements START to STOP - 1 of dimension DIM of X. They are not checked against its sizes."""
    shape = (*x.shape[:dim], stop - start, *x.shape[dim + 1 :])
    return x.changed(shape=shape, offset=x.offset + start * x.stride[dim])


def selected(x: LazyTensor, dim: int, index: int) -> LazyTensor:
    """Return a view of element INDEX of dimension DIM of X, without that dimension."""
    shape, stride = ((*t[:dim], *t[dim + 1 :]) for t in (x.shape, x.stride))
    return x.changed(shape=shape, stride=stride, offset=x.offset + index * x.stride[dim])


def contiguous(x: LazyTensor) -> LazyTensor:
    """Return the values of X in C order over a storage of their own, which reads the bytes of the source when it is
    read; X itself if it is all of its storage in C order.
    """
    if x.fills_storage:
        return x
    storage = Storage(x.source(), x.location, x.storage.dtype, x.storage.key)
    return LazyTensor(storage, x.dtype, x.shape, contiguous_stride(x.shape))


# -- results over new storages


def over(source: Source, like: LazyTensor, shape: tuple[int, ...]) -> LazyTensor:
    """Return a tensor of sizes SHAPE over the bytes of SOURCE, with the type and location of LIKE."""
    typed = like.dtype if like.dtype.storage else None
    return LazyTensor(Storage(source, like.location, typed), like.dtype, shape, contiguous_stride(shape))


def join(dim: int, parts: Sequence[LazyTensor], like: LazyTensor, shape: tuple[int, ...]) -> LazyTensor:
    """Return a lazy tensor that concatenates PARTS along dimension DIM, with the type and location of LIKE. Nothing is
    read before the result is read.

    SHAPE has the sizes of the result; they are not checked against PARTS. If DIM is not the first dimension, the bytes
    come from one part after the other, for each place in the dimensions before DIM.

    Raises:
        RuleError: a part has another type than LIKE.
    """
    if any(p.dtype != like.dtype for p in parts):
        raise RuleError("tensors of different types are joined: " + ", ".join(p.dtype.name for p in parts))
    rows = prod(shape[:dim])
    # along a later dimension the parts take turns, row by row
    cut: list[Source] = []
    if rows == 1:
        cut = [p.source() for p in parts]
    else:
        flat = [reshaped(p, rows, prod(p.shape[dim:])) for p in parts]
        if rows > _MOST_TURNS and 0 not in shape:
            return over(_Turns([p.source() for p in flat], rows), like, shape)
        cut = [sliced(p, 0, row, row + 1).source() for row in range(rows) for p in flat]
    return over(Joined(tuple(cut)), like, shape)


#: Rows of more than so many turns are not held as sources of their own.
_MOST_TURNS = 4096


@dataclass(frozen=True, eq=False, slots=True)
class _Turns:
    """The bytes of several sources, row by row: the first row of each source in order, then the second row of each, …

    Attributes:
        parts: the sources. Rows of two sources may have different lengths; those of one source have equal lengths.
        rows: the number of rows, the same for all sources.
    """

    parts: list[Source]
    rows: int

    @property
    def length(self) -> int:
        """Return the number of bytes of all sources together."""
        return sum(part.length for part in self.parts)

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes in order, in chunks of at most CHUNK bytes, but at least one row of each source."""
        row = self.length // self.rows
        step = max(CHUNK // max(row, 1), 1)
        for first in range(0, self.rows, step):
            yield self.read(first * row, min(step, self.rows - first) * row)

    def read(self, offset: int, length: int) -> bytes:
        """Return LENGTH of these bytes from OFFSET on. Whole rows of each source are read for this."""
        row = self.length // self.rows
        first, last = offset // row, -(-(offset + length) // row)
        cut = []
        for one in self.parts:
            width = one.length // self.rows
            cut.append((width, one.read(first * width, (last - first) * width)))
        out = b"".join(bytes(data[i * w : (i + 1) * w]) for i in range(last - first) for w, data in cut)
        return out[offset - first * row : offset - first * row + length]


def zeros(like: LazyTensor, shape: tuple[int, ...]) -> LazyTensor:
    """Return a lazy tensor of zeros with the sizes SHAPE, and the type and location of LIKE."""
    return over(Zeros(prod(shape) * like.dtype.itemsize), like, shape)


@dataclass(frozen=True, eq=False, slots=True)
class Computed:
    """The bytes of one computed tensor, which are computed each time they are read.

    Attributes:
        compute: takes the values of PARTS as a list of arrays of one type (`_wide`), and returns the values of the
            tensor.
        parts: the tensors that it is computed from.
        like: a tensor with the type to write.
        length: number of bytes.
    """

    #: Whatever is wanted of it, all of it is computed.
    computed_at_once: ClassVar[bool] = True

    compute: Callable[[list[Any]], Any]
    parts: Sequence[LazyTensor]
    like: LazyTensor
    length: int

    def _bytes(self) -> memoryview:
        """Return the result as bytes: the parts are read as float32 or float64 (`_wide`), given to `compute`, and
        rounded once to the type of `like`.
        """
        import numpy as np

        wide = self._wide()
        values = self.compute([part.numpy().astype(wide) for part in self.parts])
        made = np.ascontiguousarray(values.astype(numpy_type(self.like.dtype)))
        return memoryview(made.reshape(-1).view(np.uint8).data)

    def _wide(self) -> str:
        """Return the numpy type to compute in: that of LIKE if it is complex, float64 or uint64; else float32, or int64
        if all of PARTS are whole numbers, which float32 does not hold beyond 2**24.
        """
        dtype = self.like.dtype
        if dtype.is_complex or dtype.name in ("float64", "uint64"):
            return dtype.name
        return "float32" if any(part.dtype.is_floating for part in self.parts) else "int64"

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield all bytes of the computed tensor at once."""
        yield self._bytes()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes of the computed tensor from OFFSET on; all of it is computed for this."""
        return self._bytes()[offset : offset + length]
