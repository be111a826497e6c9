"""Zip archives as torch.save writes them: a strict reader. `_zip_layout` writes them.

    local header 30 | TOP/name | extra | payload | descriptor 16      a record, as often as there are records
    ...
    directory entry 46 | TOP/name | extra                             the central directory, in the same order
    ...
    zip64 end record 56 | zip64 locator 20 | end record 22            all three, in small archives as well

What torch does in its own way (caffe2/serialize/inline_container.cc over a patched miniz), compared byte by
byte with torch 2.13; integers are little-endian:

- Payloads are stored, not compressed. The local header says 0 for CRC and sizes: the directory has them, and
  the descriptor (`50 4b 07 08`, CRC, compressed, size) behind every payload that is not empty.
- Every payload starts at a multiple of the alignment (64). The gap is an extra field "FB" full of "Z", which
  only the *local* header has: the lengths there, and nothing else, say where a payload starts.
- Payloads or offsets of 0xffffffff and more have a zip64 field before the FB field, and a descriptor of 24
  bytes. Its local copy says compressed = 0 and repeats the offset; the 32-bit sizes before it stay 0.
- Dates are 0, which is no date at all: nothing here decodes them.

Readers of zip files disagree on archives that contradict themselves, so that a scanner and a loader can be
shown two different pickles in one file. Hence everything said twice is compared, and one disagreement refuses
the archive. No size or offset is used before it has been checked against the size of the file.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import IO, NamedTuple

from ...disk.checksums import joined_crc32
from ...disk.door import unnamed_file
from ...disk.files import CHUNK, File, FileRange, Source, Window, shell_path
from ...errors import Malformed, UnknownFormat, counted, printable
from ...records import record
from ..foreign import describe_zip

STORED = 0
DEFLATED = 8

# Pad bytes (x) are fields that nobody needs: versions, times, attributes. torch writes zeros, and so do we.
LOCAL = struct.Struct("<4s2x2H4x3I2H")  # PK34, flags method, crc compressed size, lengths of name and extra
ENTRY = struct.Struct("<4s4x2H4x3I4H6xI")  # PK12, the same, lengths of name extra comment, disk, header
END = struct.Struct("<4s4H2IH")  # PK56, disk disk entries entries, size and offset of the directory, comment
LOCATOR = struct.Struct("<4sIQI")  # PK67, disk, offset of the zip64 end record, disks
END64 = struct.Struct("<4sQ2H2I4Q")  # PK66, its length, made-by needed, then as in END
_DESCRIPTOR = struct.Struct("<4s3I")  # PK78, crc compressed size
_DESCRIPTOR64 = struct.Struct("<4sI2Q")

_ENCRYPTED = 0x2041  # bits 0, 6 and 13: the payload, strongly, the directory
FOLLOWS = 0x0008  # CRC and sizes follow the payload, in a descriptor
UTF8 = 0x0800
_MARKED_AS_FOLDER = 0x10  # in the attributes of MS-DOS
_KNOWN_FLAGS = 0x0006 | FOLLOWS | UTF8  # 1 and 2 tell how hard deflate tried
CAP16 = 0xFFFF
CAP32 = 0xFFFFFFFF
_TAIL = END.size + CAP16  # the end record with the longest comment that it may have: 65,557 bytes
_DEFLATE_RATIO = 1032  # deflate cannot do better than 258 bytes in 2 bits
#: Bytes that are read at once where headers are: behind a descriptor stands the next header.
_AHEAD = 4096
_PARTS = "is one part of an archive on several disks"
_CUT_SHORT = "the download or copy did not finish; compare the size with the source, and fetch it again"


@record(frozen=False, slots=True)
class Member:
    """One record of an archive. Offsets count from the start of the file.

    Attributes:
        name: without the top folder: `data/0`.
        raw: the whole name as it stands in the file.
        method: 0 stored, 8 deflated.
        flags: the general purpose bits.
        crc: CRC-32 of the payload as the directory states it; 0 with a size means that it was not recorded.
        size: bytes of the payload, inflated.
        compressed: bytes of the payload in the file.
        header: offset of the local header.
        start: offset of the payload, -1 until it is looked for (see `locate`).
        directory: offset of the entry in the central directory; its CRC stands at +16.
        descriptor: offset of the data descriptor, if there is one; its CRC stands at +4.
    """

    name: str
    raw: bytes
    method: int
    flags: int
    crc: int
    size: int
    compressed: int
    header: int
    directory: int = 0
    start: int = -1
    descriptor: int | None = None


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive whose structure holds. Payloads have not been read, so their CRCs have not been checked."""

    file: File | Window
    top: str
    members: dict[str, Member]  # in the order of the directory
    directory: int  # offset of the central directory
    far: bool = False  # the file is, so that its stored records are looked for when they are read

    def range(self, name: str) -> FileRange:
        """The payload of a stored record, as a range of the file."""
        member = self._member(name)
        if member.method != STORED:
            raise self._bad(member, "is compressed, so its bytes cannot be used where they are")
        return self._stored(member)

    def read(self, name: str, limit: int) -> bytes:
        """The checked payload of a small record (a pickle, the version), inflated if need be.

        Args:
            name: of the record, without the top folder.
            limit: most bytes that a sensible file has there.

        Raises:
            Malformed: no such record, it is larger than LIMIT, or it contradicts its size or CRC.
        """
        member = self._member(name)
        if member.size > limit:
            raise self._bad(member, f"is too large: {member.size:,} bytes, where {limit:,} are plenty")
        data = b"".join(self.inflate(member)) if member.method == DEFLATED else self.range(name).read(0, member.size)
        found = zlib.crc32(data)
        if found != member.crc and member.crc:
            raise self._bad(
                member,
                "is damaged: its checksum does not match",
                f"CRC-32 recorded {member.crc:08x}, found {found:08x} over {member.size:,} bytes",
            )
        return data

    def source(self, name: str) -> Source:
        """The payload of a record of any size: as a range of the file, or inflated when it is read."""
        return self.payload(self._member(name))

    def payload(self, member: Member) -> Source:
        """The payload of a record of this archive, as `source`."""
        return self._stored(member) if member.method == STORED else Inflated(self, member)

    def _stored(self, member: Member) -> FileRange:
        crc = member.crc or None  # 0: not recorded, or nothing that could be damaged
        if member.start < 0:
            assert isinstance(self.file, File)
            return FileRange(_FarRecord(self.file, member, self.directory), 0, member.size, crc)
        return self.file.range(member.start, member.size, crc)

    def inflate(self, member: Member) -> Iterator[bytes]:
        """Inflate in bounded steps, and never more than the record is said to have: it may go on for ever."""
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        size = 0
        try:
            for chunk in self.file.range(member.start, member.compressed).chunks():
                while chunk and not stream.eof and size <= member.size:
                    # One byte more than there may be shows a stream that goes on; and 0 would mean "no limit".
                    data = stream.decompress(chunk, min(member.size - size + 1, CHUNK))
                    size += len(data)
                    if size <= member.size:
                        yield data
                    chunk = stream.unconsumed_tail
                if size > member.size or stream.unused_data:
                    break
            if not stream.eof and size <= member.size:
                data = stream.decompress(b"", member.size - size + 1)
                size += len(data)
                if size <= member.size:
                    yield data
        except zlib.error as error:
            raise self._bad(member, "cannot be inflated", str(error)) from None
        if size != member.size or stream.unused_data or not stream.eof:
            raise self._bad(
                member,
                f"does not inflate to the {member.size:,} bytes that the directory states",
                f"{size:,} bytes came out, and the stream {'ended' if stream.eof else 'had not ended'}",
            )

    def _member(self, name: str) -> Member:
        member = self.members.get(name)
        if member is None:
            shown = ", ".join(printable(other, 40) for other in list(self.members)[:8])
            first = f"{counted(len(self.members), 'record')}, the first {shown}"
            raise _bad(self.file, f"the record {printable(name)} is missing", first)
        return member

    def _bad(self, member: Member, what: str, *evidence: str) -> Malformed:
        return _bad(self.file, f"the record {printable(member.name)} {what}", *evidence)


class _FarRecord(File):
    """A stored record of an archive on a server, whose local header is read when the record is."""

    def __init__(self, file: File, member: Member, limit: int) -> None:
        self.fd = -1
        self.path = file.path
        self.size = member.size
        self.mode, self.holes, self.modified, self.identity = file.mode, 0, file.modified, file.identity
        self._file = file
        self._member = member
        self._limit = limit
        self._seen: dict[int, tuple[int, int]] = {}  # offset of what was read -> its length and CRC-32

    @property
    def seen(self) -> int | None:
        """The CRC-32 of the record, put together from what was read of it."""
        at = crc = 0
        while at < self.size and at in self._seen:
            length, part = self._seen[at]
            crc = joined_crc32(crc, part, length)
            at += length
        return crc if at == self.size else None

    @property
    def far(self) -> bool:
        """As the file that it is in."""
        return True

    def located(self, offset: int) -> tuple[File, int]:
        """The place in the file."""
        if self._member.start < 0:
            locate(Ahead(self._file), self._member, self._limit, behind=False)
        return self._file, self._member.start + offset

    def read(self, offset: int, length: int) -> bytes:
        """Return LENGTH bytes from OFFSET of the record."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(f"a record ends at byte {self.size:,}, {offset + length:,} are needed", where=self.path)
        file, at = self.located(offset)
        data = file.read(at, length)
        if length > self._seen.get(offset, (0, 0))[0]:
            self._seen[offset] = length, zlib.crc32(data)
        return data

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW from OFFSET of the record."""
        view[:] = self.read(offset, len(view))


class Inflated:
    """A compressed record as a source. torch.save never compresses, but people zip archives again.

    Bytes from the middle are had from an unnamed temporary file that the whole record is inflated to once.

    Attributes:
        crc: CRC-32 of the inflated bytes as it was recorded, or None.
        seen: that of what came out, once all of it did.
    """

    seen: int | None = None

    def __init__(self, archive: Archive, member: Member) -> None:
        self._archive = archive
        self._member = member
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.crc = member.crc or None

    @property
    def length(self) -> int:
        """Bytes when inflated."""
        return self._member.size

    @property
    def packed(self) -> FileRange:
        """The compressed bytes."""
        return self._archive.file.range(self._member.start, self._member.compressed)

    def chunks(self) -> Iterator[bytes]:
        """All bytes, as they come out."""
        crc = 0
        for chunk in self._archive.inflate(self._member):
            crc = zlib.crc32(chunk, crc)
            yield chunk
        self.seen = crc

    @property
    def path(self) -> Path:
        """The file that it is in."""
        return self._archive.file.path

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET."""
        with self._lock:
            if self._file is None:
                file = unnamed_file()
                try:
                    file.writelines(self.chunks())
                except BaseException:
                    file.close()
                    raise
                self._file = file
            self._file.seek(offset)
            return self._file.read(length)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


def looks_like_zip(head: bytes) -> bool:
    """Whether a file that starts with HEAD (4 bytes suffice) means to be a zip archive, be it empty."""
    return head.startswith((b"PK\3\4", b"PK\5\6"))


def holds_record(file: File | Window, name: str) -> bool:
    """Whether FILE is a zip archive with the record TOP/NAME, from a look at its directory; nothing is checked."""
    try:
        if not looks_like_zip(file.read(0, min(4, file.size))):
            return False
        _, offset, size = find_end(file)
        data = file.read(offset, size)
    except Malformed:
        return False
    if len(data) < ENTRY.size:
        return False
    top = data[ENTRY.size :].split(b"/", 1)[0]
    return data.startswith(b"PK\1\2") and top + b"/" + name.encode() in data


def open_archive(file: File | Window, *, any_layout: bool = False) -> Archive:
    """Read and check the structure of an archive: end, directory and all local headers, but no payload.

    With ANY_LAYOUT it need not be torch's: records stand in any folders, and names keep theirs. Names of
    arrays (.npy) may then differ in upper and lower case alone: numpy tells them apart.

    Raises:
        Malformed: it is cut short, contradicts itself, or does what torch.save never does and no reader needs
            (encryption, several disks, bytes before or behind it, unsafe or ambiguous names).
    """
    count, offset, size = find_end(file)
    members = list(read_directory(file, count, offset, size))
    names = [member.name for member in members]
    top = "" if any_layout else _common_top(file, names)
    if not (any_layout and all(name.endswith(".npy") for name in names)) or len(set(names)) < len(names):
        refuse_doubles(file, names)
    now = members
    far = isinstance(file, File) and file.far and not any_layout
    if isinstance(file, File) and file.far:
        if far:
            now = [member for member in members if member.method != STORED or not member.size]
            _check_spread(file, members, offset)
        file.expect((m.header, m.header + LOCAL.size + len(m.raw)) for m in now)
    headers = Ahead(file)
    for member in now:
        locate(headers, member, offset)
    skip = len(top) + (not any_layout)
    for member in members:
        member.name = member.name[skip:]
    if not far:
        check_extents(file, members)
    # Folders have entries of their own in archives that were zipped again. They were checked like the others.
    return Archive(file, top, {m.name: m for m in members if m.name and m.name[-1] != "/"}, offset, far)


def _check_spread(file: File, members: list[Member], limit: int) -> None:
    """Refuse an archive whose records have no room between their headers, before any of these is read."""
    ordered = sorted(members, key=attrgetter("header"))
    for member, end in zip(ordered, [*(m.header for m in ordered[1:]), limit], strict=True):
        if member.header + LOCAL.size + len(member.raw) + member.compressed > end:
            where = f"{printable(member.name)}, {member.compressed:,} bytes from {member.header:,} on"
            raise _bad(file, "a record reaches into what follows it", where)


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


def _bad(file: File | Window, what: str, *evidence: str, hint: str | None = None) -> Malformed:
    return Malformed(what, where=file.path, evidence=evidence, hint=hint)


class _End(NamedTuple):
    """What an end record says; the order is that of both kinds."""

    disk: int
    directory_disk: int
    entries_here: int
    entries: int
    size: int
    offset: int


def find_end(file: File | Window, *, headless: bool = False) -> tuple[int, int, int]:
    """Number of entries, offset and size of the central directory, all of which fit together and into the file.

    With HEADLESS the file need not start like an archive.
    """
    head = file.read(0, min(4, file.size))
    if len(head) == 4 and not looks_like_zip(head) and not headless:
        raise _bad(file, "does not start like a zip archive", f"the first bytes are {head.hex(' ')}")
    at, end = _end_record(file)
    start = at - LOCATOR.size
    if start >= 0 and (locator := file.read(start, LOCATOR.size)).startswith(b"PK\6\7"):
        _, disk, at, disks = LOCATOR.unpack(locator)
        end = _end_record64(file, at, start, end)
        end = end._replace(disk=end.disk | disk | (disks > 1))
    if end.disk or end.directory_disk or end.entries_here != end.entries:
        raise _bad(file, _PARTS, hint=f"zip -s 0 {shell_path(file.path)} --out joined.pt")
    if end.offset + end.size != at:
        raise _shifted(file, "the end of the central directory", end.offset + end.size, at)
    if not end.entries:
        raise _bad(file, "is an archive without records", hint="what wrote it has failed; write it again")
    if end.size < end.entries * ENTRY.size:
        raise _bad(file, "the central directory is too small", f"{end.size:,} bytes for {end.entries:,} entries")
    return end.entries, end.offset, end.size


def _shifted(file: File | Window, what: str, stated: int, found: int) -> Malformed:
    """Offsets that do not fit are how joined archives, prefixes and holes show themselves."""
    differs = f"{abs(found - stated):,} bytes {'longer' if found > stated else 'shorter'}"
    return _bad(
        file,
        f"the archive is {differs} than its end records say",
        f"{what} is announced at byte {stated:,} and must be at {found:,}",
        hint="two archives were joined, or something was put in front" if found > stated else _CUT_SHORT,
    )


def _end_record(file: File | Window) -> tuple[int, _End]:
    """The classic end record: the last one, whose comment must end with the file.

    torch and Python take the last signature that has room for a record behind it, without a look at the comment; other
    readers look for one whose comment fits. Where these are not the same record, each reads a directory of its own.
    """
    base = max(0, file.size - END.size)
    tail = file.read(base, file.size - base)
    if not (tail.startswith(b"PK\5\6") and tail.endswith(b"\0\0")):  # else it is the record, without a comment
        base = max(0, file.size - _TAIL)
        tail = file.read(base, file.size - base)
    at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - END.size + 4))
    if at >= 0:
        _, *numbers, comment = END.unpack_from(tail, at)
        end = _End(*numbers)
        left = len(tail) - at - END.size - comment
        if not left:
            return base + at, end
        # Payloads may hold the signature by chance or as a nested archive. One that fits its place is an end.
        zip64 = tail[max(0, at - LOCATOR.size) : at].startswith(b"PK\6\7")
        if left > 0 and (zip64 or end.offset + end.size == base + at):
            raise _bad(file, "something was appended to the archive", f"{left:,} bytes stand behind its end")
    present = f"{file.size:,} bytes are present, and no end record is among the last {len(tail):,}"
    raise _bad(file, "the end of the archive is missing", present, hint=_CUT_SHORT)


def _end_record64(file: File | Window, at: int, locator: int, classic: _End) -> _End:
    """The zip64 end record at AT, which must reach to its locator and agree with the classic one."""
    if at + END64.size != locator:
        raise _shifted(file, "the zip64 end record", at, locator - END64.size)
    signature, length, _, _, *numbers = END64.unpack(file.read(at, END64.size))
    if signature != b"PK\6\6" or length != END64.size - 12:
        raise _bad(file, "the zip64 end record is damaged", f"at byte {at:,}")
    end = _End(*numbers)
    caps = (CAP16,) * 4 + (CAP32,) * 2
    if any(short not in (long, cap) for short, long, cap in zip(classic, end, caps, strict=True)):
        said = "{}: {:,} entries, {:,} bytes at {:,}"
        raise _bad(
            file,
            "the two end records contradict each other",
            said.format("zip64", *end[3:]),
            said.format("classic", *classic[3:]),
        )
    return end


def read_directory(file: File | Window, count: int, offset: int, size: int) -> Iterator[Member]:
    """The records as the central directory tells them, by whole names, checked against what no checkpoint may have.

    Where their payloads begin is for `locate` to say.
    """
    data = file.read(offset, size)
    usual: set[object] = set()  # folders, and flags of stored records, that nothing was to be said against
    at = 0
    for number in range(count):
        where = offset + at
        entry = None
        fault: str | None = "the central directory is damaged"
        if size - at >= ENTRY.size:
            sign, flags, method, crc, compressed, length, named, extra, comment, disk, header = ENTRY.unpack_from(
                data, at
            )
            begin = at + ENTRY.size
            at = begin + named + extra + comment
            if sign == b"PK\1\2" and at <= size:
                raw = data[begin : begin + named]
                name = raw.decode("utf-8", "backslashreplace")  # torch takes the bytes, bit 11 or not
                wide: tuple[int, ...] | None = (length, compressed, header)
                if extra:
                    wide = widen(data[begin + named : at - comment], (length, compressed, header))
                    length, compressed, header = wide or (length, compressed, header)
                entry = Member(name, raw, method, flags, crc, length, compressed, header, where)
                *folder, leaf = name.rpartition("/")
                marked = data[begin - 8] & _MARKED_AS_FOLDER  # the attributes, four bytes, stand before the offset
                kind, place = (method == STORED, flags, disk, marked), tuple(folder)
                if kind in usual and place in usual and compressed == length and leaf.isalnum() and wide:
                    fault = None
                else:
                    fault = _PARTS if disk else _entry_fault(entry) if wide else "an extra field is damaged"
                    if marked and length and not fault:
                        fault = "a record is marked as a folder, so that torch leaves it unread"
                    if method == STORED:
                        usual |= {kind, place}
        if entry is None or fault:
            evidence = [f"entry {number + 1:,} of {count:,}, at byte {where:,}"]
            if entry:
                evidence.append(f"{printable(entry.name)}: {_said_of(entry)}")
            raise _bad(file, fault or "", *evidence)
        yield entry
    if at != size:
        left = f"{count:,} entries are {at:,} bytes, the directory has {size:,}"
        raise _bad(file, "the central directory holds more than its entries", left)


def _said_of(entry: Member) -> str:
    return _said(entry.flags, entry.method, entry.crc, entry.compressed, entry.size)


def _said(flags: int, method: int, crc: int, compressed: int, size: int) -> str:
    return f"flags {flags:#06x}, method {method}, CRC {crc:08x}, {compressed:,} bytes for {size:,}"


def _entry_fault(entry: Member) -> str | None:
    """What one entry of the directory has that no checkpoint may have, or None."""
    if entry.flags & _ENCRYPTED:
        return "is encrypted"
    if entry.flags & ~_KNOWN_FLAGS:
        return "uses a feature of zip that no checkpoint uses"
    if entry.method not in (STORED, DEFLATED):
        return f"is compressed with method {entry.method}, which no checkpoint uses"
    if entry.method == STORED and entry.size != entry.compressed:
        return "a record that is not compressed has two sizes"
    if entry.size > entry.compressed * _DEFLATE_RATIO + 64:
        return "a compressed record claims more than deflate can do"
    if fault := name_fault(entry.name):
        return f"the name of a record {fault}"
    if entry.name.endswith("/") and entry.size:
        return "a folder of the archive has content"
    return None


def widen(extra: bytes, values: tuple[int, ...]) -> tuple[int, ...] | None:
    """VALUES with every 0xffffffff replaced by the next zip64 number in EXTRA. None if EXTRA is damaged."""
    field = None
    at = 0
    while at < len(extra):
        if len(extra) - at < 4:
            return None
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4 + length
        if at > len(extra) or (kind == 1 and field is not None):
            return None
        if kind == 1:
            field = extra[at - length : at]
    if field is None:
        return values
    capped = values.count(CAP32)
    if len(field) < 8 * capped:
        return None
    numbers = iter(struct.unpack_from(f"<{capped}Q", field))
    return tuple(next(numbers) if value == CAP32 else value for value in values)


def name_fault(name: str) -> str | None:
    """Why no record may have this full name, or None.

    We never extract, but others do. A top folder "." leads nowhere, and torch makes one for a file `..pt`.
    """
    if "\0" in name or "\\" in name:
        return "is not text, or holds a NUL or a backslash"
    parts = name.split("/")
    if not parts[-1] and len(parts) > 1:
        parts.pop()  # a folder
    if "" in parts or ".." in parts or "." in parts[1:]:
        return "is empty, absolute, or has an empty, '.' or '..' component"
    return None


def _common_top(file: File | Window, names: list[str]) -> str:
    """The one folder that holds all records."""
    top = names[0].partition("/")[0]
    if top != "__MACOSX" and all(map(methodcaller("startswith", f"{top}/"), names)):
        return top
    quoted = shell_path(file.path)
    if any(name.startswith("__MACOSX/") for name in names):
        raise _bad(
            file,
            "was zipped again by macOS, which added a folder __MACOSX; torch.load refuses it, too",
            hint=f"zip -d {quoted} '__MACOSX/*'",
        )
    flat = next((name for name in names if "/" not in name), None)
    if flat is not None:
        if "data.pkl" not in names:
            raise UnknownFormat(f"not a checkpoint that can be read: {describe_zip(names)}", where=file.path)
        raise _bad(
            file,
            "its records are not in one folder, as torch.save puts them",
            f"{counted(len(names), 'record')}, such as {printable(flat)}",
            hint=f"unzip -d archive {quoted} && zip -0 -r repaired.pt archive",
        )
    tops = list(dict.fromkeys(name.split("/", 1)[0] for name in names))
    if len(tops) > 1:
        shown = ", ".join(printable(top, 40) for top in tops[:8])
        raise _bad(file, "its records are in several top folders", f"{len(tops):,} folders: {shown}")
    return tops[0]


def refuse_doubles(file: File | Window, names: list[str]) -> None:
    """Refuse an archive with two records of one name."""
    # torch ignores case: DATA.PKL can stand in for data.pkl. Of equal names some readers take the last.
    if len(set(map(str.casefold, names))) == len(names):
        return
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if folded in seen:
            both = f"{printable(seen[folded])} and {printable(name)}"
            raise _bad(file, "two records have the same name, and readers disagree on which counts", both)
        seen[folded] = name


def locate(headers: Ahead, entry: Member, limit: int, *, behind: bool = True) -> None:
    """Read the local header of a record, check it against the directory, and note where the payload is.

    The descriptor BEHIND the payload is checked against both, unless its being there is not worth a read of its own.
    """
    raw, flags, compressed, header = entry.raw, entry.flags, entry.compressed, entry.header
    end = header + LOCAL.size + len(raw)
    if end > limit:
        where = f"header at byte {header:,}, the directory begins at {limit:,}"
        raise _bad(headers.file, "a record begins behind the last possible place", printable(entry.name), where)
    data, begin = headers.at(header, LOCAL.size + len(raw))
    written = _as_written(flags, entry.method, len(raw))
    usual = flags & FOLLOWS and data.startswith(written, begin) and data.startswith(raw, begin + LOCAL.size)
    start = end + data[begin + LOCAL.size - 2] + (data[begin + LOCAL.size - 1] << 8)
    if not usual and not data.startswith(b"PK\3\4", begin):
        where = f"{printable(entry.name)}, at byte {header:,}: {data[begin : begin + 4].hex(' ')}"
        raise _bad(headers.file, "there is no record where the directory says", where)
    if start + compressed > limit:
        where = f"bytes {start:,} to {start + compressed:,}, the directory begins at {limit:,}"
        raise _bad(headers.file, "a record reaches into the central directory", printable(entry.name), where)
    if not usual:
        _compare(headers, entry, data[begin : begin + LOCAL.size + len(raw)])
    end = start + compressed
    entry.start = start
    if behind and flags & FOLLOWS and _has_descriptor(headers, entry, end, limit):
        entry.descriptor = end


@lru_cache(256)
def _as_written(flags: int, method: int, named: int) -> bytes:
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
        raise _bad(
            headers.file,
            "a record contradicts its entry in the directory",
            f"entry at byte {entry.directory:,}: {printable(entry.name)}: {_said_of(entry)}",
            f"record at byte {entry.header:,}: {other}: {_said(flags2, method2, *local)}",
        )


def _has_descriptor(headers: Ahead, entry: Member, at: int, limit: int) -> bool:
    """Whether a descriptor stands at AT. Its signature is optional, so none need be recognised."""
    room = min(_DESCRIPTOR64.size, limit - at)
    data, begin = headers.at(at, room)
    if not data.startswith(b"PK\7\10", begin, begin + room):
        return False
    stated = (entry.crc, entry.compressed, entry.size)
    for form in (_DESCRIPTOR, _DESCRIPTOR64):
        if room >= form.size and form.unpack_from(data, begin)[1:] == stated:
            return True
    where = f"{printable(entry.name)}, descriptor at byte {at:,}"
    found = data[begin : begin + room].hex(" ")
    raise _bad(headers.file, "a record contradicts the checksum or the sizes behind it", where, found)


def check_extents(file: File | Window, members: list[Member]) -> None:
    """Refuse records that share a byte: that is how bombs are made small. They may leave gaps, as edits in place do."""
    end = 0
    last: Member | None = None
    for member in sorted(members, key=attrgetter("header")):
        if last is None and member.header:
            where = f"the first record is at byte {member.header:,}"
            raise _bad(file, "the archive does not begin with its first record", where)
        if last is not None and member.header < end:
            both = f"{printable(last.name)} and {printable(member.name)}"
            raise _bad(file, "two records overlap", f"{both} share bytes {member.header:,} to {end:,}")
        end = member.start + member.compressed + (0 if member.descriptor is None else _DESCRIPTOR.size)
        last = member
