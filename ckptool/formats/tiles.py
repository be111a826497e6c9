"""A tensor that is stored as chunks, as a sharded run leaves it: each a box of the whole, somewhere in some file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..disk.composing import Joined
from ..disk.files import Source
from ..dtypes import DType
from ..errors import CannotCarry, Malformed
from ..records import record
from ..tensor import LazyTensor, boxes

if TYPE_CHECKING:
    import numpy as np

#: So many chunks that no plane divides are compared pair by pair.
_INTERLOCKED = 1000
#: What a tensor may be larger than what is stored for it, as for strides of 0 (see `LazyTensor.source`).
_SMALL, _GROWTH = 64 << 20, 256
#: Bytes that are gathered at once.
_GATHERED = 4 << 20


@record(frozen=True, slots=True)
class Chunk:
    """A box of a tensor.

    Attributes:
        offsets: its first element, in elements per dimension.
        values: the box, a tensor of its sizes.
    """

    offsets: tuple[int, ...]
    values: LazyTensor

    @property
    def ends(self) -> tuple[int, ...]:
        """Per dimension, the first index behind it."""
        return tuple(start + size for start, size in zip(self.offsets, self.values.shape, strict=True))

    @property
    def crc(self) -> int | None:
        """The CRC-32 of its bytes, where it was recorded."""
        return self.values.storage.crc if self.values.fills_storage else None


def assemble(shape: tuple[int, ...], dtype: DType, chunks: Sequence[Chunk]) -> Source:
    """The bytes of the whole tensor in C order: its chunks one after the other where that is so, else gathered.

    Args:
        shape: of the whole.
        dtype: of all chunks.
        chunks: in any order.

    Raises:
        CannotCarry: a stride of 0 makes a huge chunk of a few bytes, or one chunk stands in very many places.
        Malformed: they leave a hole, overlap, or reach beyond the whole.
    """
    filled = sorted((chunk for chunk in chunks if chunk.values.numel), key=lambda chunk: chunk.offsets)
    for chunk in chunks:
        if len(chunk.offsets) != len(shape) or any(end > size for end, size in zip(chunk.ends, shape, strict=True)):
            raise Malformed(
                f"a chunk of sizes {list(chunk.values.shape)} at {list(chunk.offsets)} reaches beyond {list(shape)}"
            )
    stored = sum(chunk.values.numel for chunk in filled)
    if stored < prod(shape):
        raise Malformed(f"its {len(filled):,} chunks leave a hole: they hold {stored:,} of {prod(shape):,} elements")
    pair = overlapping(filled) if filled else None
    if pair:
        raise Malformed(
            f"two chunks overlap: sizes {list(pair[0].values.shape)} at {list(pair[0].offsets)}, and sizes "
            f"{list(pair[1].values.shape)} at {list(pair[1].offsets)}"
        )
    if stored > prod(shape):
        raise Malformed(f"its {len(filled):,} chunks hold {stored:,} elements, and the tensor has {prod(shape):,}")
    parts = tuple(chunk.values.source() for chunk in filled)  # refuses one that a stride of 0 makes huge
    held = sum({id(chunk.values.storage): chunk.values.storage.nbytes for chunk in filled}.values())
    if stored * dtype.itemsize > max(_SMALL, _GROWTH * held):
        made = stored * dtype.itemsize
        raise CannotCarry(f"chunks that are one and the same expand {held:,} stored bytes to {made:,}")
    if all(chunk.values.shape[1:] == shape[1:] for chunk in filled):  # divided along the first dimension, or not at all
        return parts[0] if len(parts) == 1 else Joined(parts, tuple(chunk.crc for chunk in filled))
    return Tiled(shape, dtype, tuple(filled))


def overlapping(chunks: list[Chunk]) -> tuple[Chunk, Chunk] | None:
    """Two chunks that share an element, or None.

    Where a plane passes between chunks, each side is looked at alone; what no plane divides is compared pair by pair.

    Raises:
        Malformed: too many chunks interlock; no program divides a tensor so.
    """
    pending = [chunks]
    while pending:
        group = pending.pop()
        if len(group) < 2:
            continue
        for dim in range(len(group[0].offsets)):
            parts = _divided(group, dim)
            if len(parts) > 1:
                pending += parts
                break
        else:
            if len(group) > _INTERLOCKED:
                raise Malformed(f"{len(group):,} of its chunks interlock, so that no plane divides them")
            for number, one in enumerate(group):
                for other in group[number + 1 :]:
                    if all(
                        max(a, b) < min(c, d)
                        for a, b, c, d in zip(one.offsets, other.offsets, one.ends, other.ends, strict=True)
                    ):
                        return one, other
    return None


def _divided(group: list[Chunk], dim: int) -> list[list[Chunk]]:
    """GROUP, cut wherever a plane across DIM touches no chunk."""
    parts: list[list[Chunk]] = []
    reached = -1
    for chunk in sorted(group, key=lambda chunk: chunk.offsets[dim]):
        if chunk.offsets[dim] >= reached:
            parts.append([])
        parts[-1].append(chunk)
        reached = max(reached, chunk.ends[dim])
    return parts


@record(frozen=True, eq=False, slots=True)
class Tiled:
    """The values of a tensor in C order, gathered from chunks in pieces of bounded size."""

    shape: tuple[int, ...]
    dtype: DType
    tiles: tuple[Chunk, ...]

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return prod(self.shape) * self.dtype.itemsize

    def stored(self) -> Iterator[tuple[Source, int | None]]:
        """The chunks as they are stored, with their checksums."""
        yield from ((tile.values.storage.source, tile.values.storage.crc) for tile in self.tiles)

    @property
    def step(self) -> int:
        """Bytes that are gathered at once."""
        return max(_GATHERED // self.dtype.itemsize, 1) * self.dtype.itemsize

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET of the values in C order."""
        import numpy as np

        item = self.dtype.itemsize
        first, last = offset // item, -(-(offset + length) // item)
        raw = np.empty(last - first, f"V{item}")
        at = 0
        for start, count in boxes(self.shape, first, last):
            self._fill(raw[at : at + prod(count)].reshape(count), start)
            at += prod(count)
        return memoryview(raw.view(np.uint8).data)[offset - first * item :][:length]

    def within(self, low: tuple[int, ...], high: tuple[int, ...]) -> Iterator[tuple[tuple[slice, ...], LazyTensor]]:
        """What the box from LOW to HIGH is made of: for each tile that it meets, where in the box, and the values."""
        for tile in self.tiles:
            first = tuple(map(max, low, tile.offsets))
            last = tuple(map(min, high, tile.ends))
            if all(a < b for a, b in zip(first, last, strict=True)):
                where = tuple(slice(a - s, b - s) for a, b, s in zip(first, last, low, strict=True))
                yield where, _part(tile, first, last)

    def _fill(self, out: np.ndarray[Any, Any], start: tuple[int, ...]) -> None:
        """Put the box that begins at START into OUT."""
        import numpy as np

        end = tuple(map(sum, zip(start, out.shape, strict=True)))
        for where, inner in self.within(start, end):
            source = inner.source()
            out[where] = np.frombuffer(source.read(0, source.length), out.dtype).reshape(inner.shape)


def _part(chunk: Chunk, low: tuple[int, ...], high: tuple[int, ...]) -> LazyTensor:
    """The elements of a chunk from LOW to HIGH, both counted in the whole."""
    values = chunk.values
    steps = zip(low, chunk.offsets, values.stride, strict=True)
    return values.changed(
        shape=tuple(b - a for a, b in zip(low, high, strict=True)),
        offset=values.offset + sum((a - start) * stride for a, start, stride in steps),
    )
