"""Chunks of arrays that went through filters before they were stored, as HDF5 and Zarr have them.

zlib, zstd     compressed
shuffle        the bytes of numbers sorted by their place in a number
fletcher32     a checksum behind the bytes, as HDF5 has it
crc32c         a checksum behind the bytes, as Zarr 3 and OCDBT have it
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...disk.files import Buffer, FileRange
from ...errors import Malformed, require


@dataclass(frozen=True, slots=True)
class Unfiltered:
    """A chunk with its filters undone when it is read.

    Attributes:
        stored: the bytes as they are stored.
        filters: (name, bytes of a number) of each filter, in the order in which they are undone.
        length: bytes of the values.
        where: the file, for messages.
    """

    stored: FileRange | Buffer
    filters: tuple[tuple[str, int], ...]
    length: int
    where: str

    @property
    def step(self) -> int:
        """Bytes that are undone at once."""
        return self.length

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes of values from OFFSET."""
        whole: bytes = _undone(self)
        return whole[offset : offset + length]

    def chunks(self) -> Iterator[bytes]:
        """All values."""
        yield _undone(self)


@lru_cache(maxsize=8)
def _undone(chunk: Unfiltered) -> bytes:
    data = bytes(chunk.stored.read(0, chunk.stored.length))
    for name, width in chunk.filters:
        if name in _CHECKSUMS:
            words, compute = _CHECKSUMS[name]
            data, checksum = data[:-4], data[-4:]
            if compute(data) != int.from_bytes(checksum, "little"):
                raise Malformed(f"a chunk is damaged: its checksum ({words}) does not match", where=chunk.where)
        elif name == "shuffle":
            data = _unshuffled(data, width)
        else:
            data = inflated(data, name, chunk.length + 5, chunk.where)
    if len(data) != chunk.length:
        raise Malformed(
            f"a chunk has {len(data):,} bytes of values, but {chunk.length:,} are announced", where=chunk.where
        )
    return data


def inflated(data: bytes, how: str, most: int, where: object) -> bytes:
    """What comes out of DATA, up to MOST bytes: HOW is "zstd", "gzip" or "zlib".

    Raises:
        Malformed: it cannot be inflated.
        NotInstalled: the package zstandard is not installed.
    """
    try:
        if how != "zstd":
            return zlib.decompressobj(47).decompress(data, most)
        zstandard = _zstandard(where)
        try:
            stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
            found: bytes = stream.read(most)
            return found
        except zstandard.ZstdError as error:
            raise Malformed("a chunk cannot be inflated", where=where, evidence=[str(error)[:200]]) from None
    except zlib.error as error:
        raise Malformed("a chunk cannot be inflated", where=where, evidence=[str(error)]) from None


def _zstandard(where: object) -> Any:
    require("reading arrays that are compressed with zstd", "zstandard", where=where)
    import zstandard

    return zstandard


def _unshuffled(data: bytes, width: int) -> bytes:
    """The bytes of numbers that were sorted by their place in a number."""
    import numpy as np

    count = len(data) // width
    whole = np.frombuffer(data, np.uint8, count * width).reshape(width, count)
    turned: bytes = whole.T.tobytes()
    return turned + data[count * width :]


def _fletcher32(data: bytes) -> int:
    """The checksum of HDF5's filter: two sums of big-endian words, modulo 65535."""
    import numpy as np

    words = np.frombuffer(data[: len(data) // 2 * 2], ">u2").astype(np.uint64)
    if len(data) % 2:
        words = np.append(words, np.uint64(data[-1] << 8))
    first = second = 0
    for at in range(0, len(words), 4096):
        part = words[at : at + 4096]
        weights = np.arange(len(part), 0, -1, dtype=np.uint64)
        second = (second + first * len(part) + int((part * weights).sum())) % 65535
        first = (first + int(part.sum())) % 65535
    return second << 16 | first


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of DATA."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


_CHECKSUMS = {"fletcher32": ("Fletcher-32", _fletcher32), "crc32c": ("CRC-32C", crc32c)}
