"""Tensors whose values are computed by rows when they are written: in float32, in pieces of bounded size.

What computes them is a `Rows`: a matrix that gives any run of its rows. Rows are built on each other (a weight, the
weight plus a product of two thin matrices, that scaled …); `Matrix` rounds them once, to the type of the tensor.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from ..disk.files import Source
from ..dtypes import DType
from ..tensor import LazyTensor, Storage, contiguous_stride
from .casting import convert, numpy_type

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Bytes of a tensor that are computed at once.
_PIECE = 4 << 20
#: Bytes of small tensors that are kept between two pieces, since each piece needs them whole.
_KEPT = 256 << 20


class Rows(Protocol):
    """A matrix that is computed by rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST, in float32 (in float64 where a weight is float64)."""


@dataclass(frozen=True, eq=False, slots=True)
class Matrix:
    """The values of a `Rows` as bytes of a type, computed in pieces when they are read.

    Attributes:
        made: what computes them.
        dtype: the type that they are rounded to.
        piece: bytes that are computed at once, about.
    """

    made: Rows
    dtype: DType
    piece: int = _PIECE

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return prod(self.made.shape) * self.dtype.itemsize

    @property
    def step(self) -> int:
        """Bytes of a piece: whole rows."""
        row = max(self.made.shape[1] * self.dtype.itemsize, 1)
        return max(self.piece // row, 1) * row

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        row = self.made.shape[1] * self.dtype.itemsize
        if not length or not row:
            return memoryview(b"")
        first, last = offset // row, -(-(offset + length) // row)
        with np.errstate(all="ignore"):
            values = np.ascontiguousarray(self.made.rows(first, last))
        raw = convert(values, self.dtype).reshape(-1).view(np.uint8)
        return memoryview(raw.data)[offset - first * row :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


def computed(made: Rows, dtype: DType, shape: tuple[int, ...], like: LazyTensor, piece: int = _PIECE) -> LazyTensor:
    """A tensor of SHAPE in C order with the values of MADE. Where it is, and whether it is a parameter, as LIKE."""
    storage = Storage(Matrix(made, dtype, piece), like.location, dtype if dtype.storage else None)
    return LazyTensor(storage, dtype, shape, contiguous_stride(shape), 0, like.requires_grad, like.parameter)


def flat(shape: tuple[int, ...]) -> tuple[int, int]:
    """SHAPE as rows and columns: the first dimension, and all others."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


@dataclass(frozen=True, eq=False, slots=True)
class Stored:
    """The values of a tensor as they are stored, seen as a matrix of SHAPE.

    Attributes:
        source: the bytes in C order.
        dtype: their type.
        shape: rows and columns.
    """

    source: Source
    dtype: DType
    shape: tuple[int, int]

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        wide = self.shape[1] * self.dtype.itemsize
        raw = np.frombuffer(self.source.read(first * wide, (last - first) * wide), numpy_type(self.dtype))
        kind = np.float64 if self.dtype.itemsize == 8 and self.dtype.is_floating else np.float32
        return raw.reshape(last - first, self.shape[1]).astype(kind)


def stored(tensor: LazyTensor, shape: tuple[int, int] | None = None) -> Stored:
    """The values of TENSOR as a matrix: its first dimension by all others, or of SHAPE."""
    return Stored(tensor.source(), tensor.dtype, shape or flat(tensor.shape))


class _Recent:
    """Arrays that were read last, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[int, tuple[object, Array]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, of: object) -> Array | None:
        with self._lock:
            found = self._held.get(id(of))
            if found is not None:
                self._held.move_to_end(id(of))
            return found[1] if found else None

    def put(self, of: object, values: Array) -> None:
        with self._lock:
            if id(of) in self._held:
                return
            self._held[id(of)] = of, values
            self._bytes += values.nbytes
            while self._bytes > self._most and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1].nbytes


RECENT = _Recent(_KEPT)


@dataclass(frozen=True, eq=False, slots=True)
class Factor:
    """A small tensor that is needed whole for each piece of a large one. It is read when it is needed.

    Attributes:
        source: its bytes in C order.
        dtype: their type.
        shape: its shape.
    """

    source: Source
    dtype: DType
    shape: tuple[int, ...]

    @property
    def values(self) -> Array:
        """All values in float32; integers as they are."""
        import numpy as np

        found = RECENT.get(self)
        if found is None:
            raw = np.frombuffer(self.source.read(0, self.source.length), numpy_type(self.dtype)).reshape(self.shape)
            whole = not self.dtype.is_floating
            found = raw if whole else raw.astype(np.float64 if self.dtype.itemsize == 8 else np.float32)
            RECENT.put(self, found)
        return found


def factor(tensor: LazyTensor, shape: tuple[int, ...] | None = None) -> Factor:
    """TENSOR as a factor, seen in another SHAPE of as many elements if one is given."""
    return Factor(tensor.source(), tensor.dtype, shape or tensor.shape)
