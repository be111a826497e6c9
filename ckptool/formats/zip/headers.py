"""The local headers of a zip archive, and the descriptors behind payloads, held against the directory."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter

from ...disk.files import File, Window
from ...errors import printable
from .directory import said, said_of, widen
from .structure import CAP32, DESCRIPTOR, DESCRIPTOR64, FOLLOWS, LOCAL, Member, bad

#: Bytes that are read at once where headers are: behind a descriptor stands the next header.
_AHEAD = 4096


class Ahead:
    """Short reads of a file that mostly follow one another, as fewer longer ones."""

    def __init__(self, file: File | Window) -> None:
        self.file = file
        self._ahead = 0 if isinstance(file, File) and file.far else _AHEAD  # a file on a server has blocks of its own
        self._start = 0
        self._data = b""

    def at(self, offset: int, length: int) -> tuple[bytes, int]:
        """Bytes, and the place among them from which on they are the LENGTH bytes from OFFSET of the file."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            at, self._start = 0, offset
            self._data = self.file.read(offset, max(length, min(self._ahead, self.file.size - offset)))
        return self._data, at

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET, as `File.read`."""
        data, at = self.at(offset, length)
        return data[at : at + length]


def locate(headers: Ahead, entry: Member, limit: int, *, behind: bool = True) -> None:
    """Read the local header of a record, check it against the directory, and note where the payload is.

    The descriptor BEHIND the payload is checked against both, unless its being there is not worth a read of its own.
    """
    raw, flags, compressed, header = entry.raw, entry.flags, entry.compressed, entry.header
    end = header + LOCAL.size + len(raw)
    if end > limit:
        where = f"header at byte {header:,}, the directory begins at {limit:,}"
        raise bad(headers.file, "a record begins behind the last possible place", printable(entry.name), where)
    data, begin = headers.at(header, LOCAL.size + len(raw))
    written = as_written(flags, entry.method, len(raw))
    usual = flags & FOLLOWS and data.startswith(written, begin) and data.startswith(raw, begin + LOCAL.size)
    start = end + data[begin + LOCAL.size - 2] + (data[begin + LOCAL.size - 1] << 8)
    if not usual and not data.startswith(b"PK\3\4", begin):
        where = f"{printable(entry.name)}, at byte {header:,}: {data[begin : begin + 4].hex(' ')}"
        raise bad(headers.file, "there is no record where the directory says", where)
    if start + compressed > limit:
        where = f"bytes {start:,} to {start + compressed:,}, the directory begins at {limit:,}"
        raise bad(headers.file, "a record reaches into the central directory", printable(entry.name), where)
    if not usual:
        _compare(headers, entry, data[begin : begin + LOCAL.size + len(raw)])
    end = start + compressed
    entry.start = start
    if behind and flags & FOLLOWS and _has_descriptor(headers, entry, end, limit):
        entry.descriptor = end


@lru_cache(256)
def as_written(flags: int, method: int, named: int) -> bytes:
    """A local header as torch writes it, up to the length of its extra field, when CRC and sizes follow the payload."""
    return LOCAL.pack(b"PK\3\4", flags, method, 0, 0, 0, named, 0)[:-2]


def _compare(headers: Ahead, entry: Member, data: bytes) -> None:
    """Check the local header and the name in DATA against the entry in the directory."""
    raw, flags, method = entry.raw, entry.flags, entry.method
    _, flags2, method2, crc2, compressed2, size2, named, extra = LOCAL.unpack_from(data)
    if CAP32 in (compressed2, size2):
        found = widen(headers.read(entry.header + len(data), extra), (size2, compressed2))
        size2, compressed2 = found or (-1, -1)
    same = data[LOCAL.size :] == raw and (flags2, method2, named) == (flags, method, len(raw))
    local, stated = (crc2, compressed2, size2), (entry.crc, entry.compressed, entry.size)
    if local != stated and not (local == (0, 0, 0) and flags & FOLLOWS):
        same &= all(a == b or (a == 0 and flags & FOLLOWS) for a, b in zip(local, stated, strict=True))
    if not same:
        other = printable(data[LOCAL.size :].decode("utf-8", "replace"))
        raise bad(
            headers.file,
            "a record contradicts its entry in the directory",
            f"entry at byte {entry.directory:,}: {printable(entry.name)}: {said_of(entry)}",
            f"record at byte {entry.header:,}: {other}: {said(flags2, method2, *local)}",
        )


def _has_descriptor(headers: Ahead, entry: Member, at: int, limit: int) -> bool:
    """Whether a descriptor stands at AT. Its signature is optional, so none need be recognised."""
    room = min(DESCRIPTOR64.size, limit - at)
    data, begin = headers.at(at, room)
    if not data.startswith(b"PK\7\10", begin, begin + room):
        return False
    stated = (entry.crc, entry.compressed, entry.size)
    for form in (DESCRIPTOR, DESCRIPTOR64):
        if room >= form.size and form.unpack_from(data, begin)[1:] == stated:
            return True
    where = f"{printable(entry.name)}, descriptor at byte {at:,}"
    found = data[begin : begin + room].hex(" ")
    raise bad(headers.file, "a record contradicts the checksum or the sizes behind it", where, found)


def check_extents(file: File | Window, members: list[Member]) -> None:
    """Refuse records that share a byte: that is how bombs are made small. They may leave gaps, as edits in place do."""
    end = 0
    last: Member | None = None
    for member in sorted(members, key=attrgetter("header")):
        if last is None and member.header:
            where = f"the first record is at byte {member.header:,}"
            raise bad(file, "the archive does not begin with its first record", where)
        if last is not None and member.header < end:
            both = f"{printable(last.name)} and {printable(member.name)}"
            raise bad(file, "two records overlap", f"{both} share bytes {member.header:,} to {end:,}")
        end = member.start + member.compressed + (0 if member.descriptor is None else DESCRIPTOR.size)
        last = member
