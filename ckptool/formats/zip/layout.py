"""The layout of a new zip archive, byte for byte as torch 2.13 would write it (drawn in `_zip`)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ...disk.composing import Crc32Of, Piece
from ...disk.files import CHUNK, Buffer, FileRange, Source
from ...errors import printable
from ...records import record
from .directory import name_fault
from .structure import CAP16, CAP32, END, END64, ENTRY, FOLLOWS, LOCAL, LOCATOR, STORED, UTF8

CRC_IN_ENTRY = 16  # where the CRC stands in an entry of the directory
CRC_IN_DESCRIPTOR = 4
_FILLING, _SIZES, _SIZES64 = struct.Struct("<2sH"), struct.Struct("<2I"), struct.Struct("<2Q")
#: Small pieces of bytes that are held as they are, before they become one.
_TOGETHER = 4096
_SMALL = 64 << 10  # a payload in memory up to here is joined with its headers


@record(frozen=True, slots=True)
class Record:
    """A record to be written, stored. A checksum that neither `crc` nor the source tells is computed while copying."""

    name: str
    source: Source
    crc: int | None


def lay_out(
    top: str | None, records: Sequence[Record], alignment: int = 64, *, case_counts: bool = False
) -> list[Piece]:
    """The bytes of an archive of RECORDS, in order, exactly as torch 2.13 would write them.

    Args:
        top: name of the folder that holds all records, or None where there is none.
        records: in the order of writing. torch starts with `data.pkl`.
        alignment: every payload starts at a multiple of it. 1 to 32,768: the gap must fit a 16-bit length.
        case_counts: names may differ in upper and lower case alone.

    Raises:
        ValueError: an alignment or a name that cannot be written. (torch writes an unreadable file there.)
    """
    if not 1 <= alignment <= 1 << 15:
        raise ValueError(f"alignment must be 1 to 32768, not {alignment}")
    out = _Pieces()
    entries = [_add_record(out, one.name if top is None else f"{top}/{one.name}", one, alignment) for one in records]
    if len({entry.name if case_counts else entry.name.casefold() for entry in entries}) != len(entries):
        raise ValueError("two records have the same name")
    offset = out.position
    for entry, one in zip(entries, records, strict=True):
        _add_entry(out, entry, one.source)
    size, count, at = out.position - offset, len(entries), out.position
    out.add(END64.pack(b"PK\6\6", END64.size - 12, 0x031E, 45, 0, 0, count, count, size, offset))
    out.add(LOCATOR.pack(b"PK\6\7", 0, at, 1))
    count, size, offset = min(count, CAP16), min(size, CAP32), min(offset, CAP32)
    out.add(END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0))
    return out.finish()


class _Written(NamedTuple):
    """A record that was laid out, for its entry in the directory. A `crc` of None is computed while copying."""

    raw: bytes
    name: str
    flags: int
    crc: int | None
    size: int
    header: int


def _add_record(out: _Pieces, name: str, one: Record, alignment: int) -> _Written:
    """Header, payload and descriptor of one record. Returns what the directory will say about it."""
    raw = name.encode()
    if len(raw) > CAP16 or name.endswith("/") or name.startswith("__MACOSX/") or name_fault(name):
        raise ValueError(f"a record cannot be called {printable(name)!r}")
    header, size, source = out.position, one.source.length, one.source
    crc = source.crc if one.crc is None and isinstance(source, FileRange) else one.crc
    if not size:
        crc = 0
    elif crc is None and isinstance(source, Buffer) and size <= CHUNK:
        crc = zlib.crc32(source.data)  # at once: this keeps its headers and its neighbours' in one piece
    wide = _wide_field(size, 0, header)
    start = header + LOCAL.size + len(raw) + len(wide) + 4
    filling = -start % alignment
    extra = b"".join((wide, _FILLING.pack(b"FB", filling), b"Z" * filling))
    flags = UTF8 | (FOLLOWS if size else 0)
    out.add(b"".join((LOCAL.pack(b"PK\3\4", flags, STORED, 0, 0, 0, len(raw), len(extra)), raw, extra)))
    if size:
        out.add_source(source)
        out.add(b"PK\7\10")
        out.add_crc(crc, source)
        out.add((_SIZES64 if wide else _SIZES).pack(size, size))
    return _Written(raw, name, flags, crc, size, header)


def _add_entry(out: _Pieces, entry: _Written, source: Source) -> None:
    size, header = min(entry.size, CAP32), min(entry.header, CAP32)
    wide = _wide_field(entry.size, entry.size, entry.header)
    named, extra = len(entry.raw), len(wide)
    data = ENTRY.pack(b"PK\1\2", entry.flags, STORED, 0, size, size, named, extra, 0, 0, header)
    out.add(data[:CRC_IN_ENTRY])
    out.add_crc(entry.crc, source)
    out.add(data[CRC_IN_ENTRY + 4 :] + entry.raw + wide)


def _wide_field(size: int, compressed: int, header: int) -> bytes:
    """The zip64 extra field of a record that is so large or so far behind, else nothing."""
    numbers = [size, compressed] if size >= CAP32 else []
    if header >= CAP32:
        numbers.append(header)
    return struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


class _Pieces:
    """Pieces that grow at the end; what stands in memory side by side becomes one."""

    def __init__(self) -> None:
        self.position = 0
        self._pieces: list[Piece] = []
        self._bytes = bytearray()
        self._beside: list[bytes | memoryview] = []  # what comes behind these

    def add(self, data: bytes | memoryview) -> None:
        self._beside.append(data)
        self.position += len(data)
        if len(self._beside) == _TOGETHER:
            self._bytes += b"".join(self._beside)
            self._beside.clear()

    def add_source(self, source: Source) -> None:
        if isinstance(source, Buffer) and source.length <= _SMALL:
            self.add(source.data)
        else:
            self._append(source)

    def add_crc(self, crc: int | None, source: Source) -> None:
        if crc is None:
            self._append(Crc32Of(source))
        else:
            self.add(crc.to_bytes(4, "little"))

    def _append(self, piece: Piece) -> None:
        self.finish().append(piece)
        self.position += piece.length

    def finish(self) -> list[Piece]:
        if self._beside or self._bytes:
            self._pieces.append(Buffer(b"".join([self._bytes, *self._beside])))
            self._bytes, self._beside = bytearray(), []
        return self._pieces
