"""Tensors that are stored as ranges of long 1-d tensors, as trainers with flat parameters leave them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any

from ...disk.composing import Joined
from ...disk.files import Source, same_bytes
from ...dtypes import BY_NAME, DType
from ...records import record
from ...tensor import LazyTensor, Storage, contiguous_stride

#: Elements that are widened at once.
_PIECE = 1 << 20
#: Elements at each end of a weight that are compared with those of the optimizer, and of which types.
_COMPARED = 1024
_ROUNDED = ("float32", "float16", "bfloat16")


class Flat:
    """1-d tensors of one type, one after the other, seen as one run of elements.

    Args:
        parts: the tensors.
        dtype: their type, where there may be none of them.
    """

    def __init__(self, parts: Sequence[LazyTensor], dtype: DType | None = None) -> None:
        self.dtype = dtype or parts[0].dtype
        self.parts = tuple(part for part in parts if part.numel)
        self._starts = [0, *accumulate(part.numel for part in self.parts)]

    @property
    def numel(self) -> int:
        """Number of elements of all parts."""
        return self._starts[-1]

    def cut(self, start: int, numel: int) -> Iterator[LazyTensor]:
        """The elements from START on, NUMEL of them, as views of the parts."""
        end = start + numel
        assert 0 <= start <= end <= self.numel
        index = bisect_right(self._starts, start) - 1
        while start < end:
            part, begin = self.parts[index], self._starts[index]
            count = min(end, self._starts[index + 1]) - start
            yield part.changed(shape=(count,), offset=part.offset + (start - begin) * part.stride[0])
            start += count
            index += 1

    def tensor(self, start: int, shape: tuple[int, ...], name: str) -> LazyTensor:
        """The tensor of SHAPE whose elements stand from START on. NAME is that of its storage."""
        return joined(list(self.cut(start, prod(shape))), self.dtype, shape, name)


def joined(pieces: Sequence[LazyTensor], dtype: DType, shape: tuple[int, ...], name: str) -> LazyTensor:
    """The tensor whose elements in C order are those of PIECES, which have as many. It is on the CPU."""
    assert sum(piece.numel for piece in pieces) == prod(shape)
    sources = tuple(piece.source() for piece in pieces if piece.numel)
    crcs = tuple(p.storage.crc if p.fills_storage else None for p in pieces if p.numel)
    one = len(sources) == 1
    source: Source = sources[0] if one else Joined(sources, crcs)
    crc = crcs[0] if one else None
    return as_tensor(source, dtype, shape, name, crc)


def as_tensor(source: Source, dtype: DType, shape: tuple[int, ...], name: str, crc: int | None = None) -> LazyTensor:
    """A contiguous tensor on the CPU over a storage of its own."""
    storage = Storage(source, "cpu", dtype if dtype.storage else None, name, crc)
    return LazyTensor(storage, dtype, shape, contiguous_stride(shape))


def widened(tensor: LazyTensor) -> LazyTensor:
    """A tensor of float16 or bfloat16 as float32, which holds each of their values; any other tensor as it is."""
    if tensor.dtype.name not in ("float16", "bfloat16"):
        return tensor
    dtype = BY_NAME["float32"]
    source = Widened(tensor.source(), half=tensor.dtype.name == "float16")
    return as_tensor(source, dtype, tensor.shape, tensor.storage.key)


@record(frozen=True, eq=False, slots=True)
class Widened:
    """The float32 values of a source of 16-bit numbers.

    Attributes:
        source: the numbers.
        half: they are float16, else bfloat16.
    """

    source: Source
    half: bool

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return 2 * self.source.length

    @property
    def step(self) -> int:
        """Bytes that are computed at once."""
        return 4 * _PIECE

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        first, last = offset // 4, -(-(offset + length) // 4)
        raw = np.frombuffer(self.source.read(2 * first, 2 * (last - first)), "<u2")
        wide: Any = raw.view("<f2").astype("<f4") if self.half else raw.astype("<u4") << 16
        return memoryview(wide.view(np.uint8).data)[offset - 4 * first :][:length]


def rounds_to(master: LazyTensor, weight: LazyTensor) -> bool:
    """Whether float32 values, rounded to the type of a weight, are those of the weight: its first and last elements."""
    import numpy as np

    if master.numel != weight.numel or weight.dtype.name not in _ROUNDED or master.dtype.name != "float32":
        return False
    for start in dict.fromkeys((0, max(weight.numel - _COMPARED, 0))):
        count = min(weight.numel, _COMPARED)
        given = np.frombuffer(master.source().read(4 * start, 4 * count), "<f4")
        wide = widened(weight).source().read(4 * start, 4 * count)
        if weight.dtype.name == "bfloat16":
            raw = given.view("<u4").astype("u8")
            given = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16 << 16).astype("<u4").view("<f4")
        elif weight.dtype.name == "float16":
            with np.errstate(over="ignore"):
                given = given.astype("<f2").astype("<f4")
        if not np.array_equal(given, np.frombuffer(wide, "<f4"), equal_nan=True):
            return False
    return True


def same_values(one: LazyTensor, other: LazyTensor) -> bool:
    """Whether two tensors have the same bytes: by the checksums of their records where those agree, else by reading."""
    if one.identity == other.identity:
        return True
    alike = one.offset == other.offset and one.stride == other.stride and one.storage.nbytes == other.storage.nbytes
    if alike and one.storage.crc is not None and one.storage.crc == other.storage.crc:
        return True
    return same_bytes(one.source(), other.source())
