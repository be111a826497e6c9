"""Zip archives as torch.save writes them: a strict reader. `layout` writes them.

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

import threading
import zlib
from collections.abc import Iterator, Mapping
from operator import add, attrgetter
from pathlib import Path
from typing import IO

from ...disk.checksums import crc32, joined_crc32
from ...disk.door import unnamed_file
from ...disk.files import CHUNK, File, FileRange, Window
from ...errors import Malformed, counted, printable
from ...records import record
from .columns import Members, odd_members, read_columns
from .directory import common_top, read_directory, refuse_doubles
from .ends import find_end
from .headers import Ahead, check_extents, locate
from .structure import DEFLATED, ENTRY, LOCAL, STORED, Member, bad, looks_like_zip


@record(frozen=True, slots=True)
class Archive:
    """An archive whose structure holds. Payloads have not been read, so their CRCs have not been checked."""

    file: File | Window
    top: str
    members: Mapping[str, Member]  # in the order of the directory
    directory: int  # offset of the central directory
    far: bool = False  # the file is, so that its stored records are looked for when they are read

    def range(self, name: str) -> FileRange:
        """The payload of a stored record, as a range of the file."""
        member = self._member(name)
        if member.method != STORED:
            raise self._bad(member, "is compressed, so its bytes cannot be used where they are")
        return self._stored(member)

    def sources(self, folder: str = "") -> Iterator[tuple[str, FileRange | Inflated]]:
        """The payloads of the records whose names begin with FOLDER, with their names, as `source` gives them."""
        members = self.members
        for name in members:
            if name.startswith(folder):
                number = members.number(name) if isinstance(members, Members) else -1
                if isinstance(members, Members) and number >= 0:
                    crc = members.crcs[number] or None
                    yield name, self.file.range(members.starts[number], members.sizes[number], crc)
                else:
                    yield name, self.source(name)

    def count(self, folder: str) -> int:
        """How many records have names that begin with FOLDER."""
        members = self.members
        numbered = len(members.sizes) if isinstance(members, Members) and members.head.startswith(folder) else 0
        return numbered + sum(one.name.startswith(folder) for one in odd_members(members))

    def extents(self) -> list[tuple[int, int]]:
        """Where each record begins with its header and where its payload ends, in the order of the file."""
        members = self.members
        found = [(one.header, one.start + one.compressed) for one in odd_members(members)]
        if isinstance(members, Members):
            found += zip(members.headers, map(add, members.starts, members.sizes), strict=True)
        return sorted(found)

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
        found = crc32(data)
        if found != member.crc and member.crc:
            raise self._bad(
                member,
                "is damaged: its checksum does not match",
                f"CRC-32 recorded {member.crc:08x}, found {found:08x} over {member.size:,} bytes",
            )
        return data

    def source(self, name: str) -> FileRange | Inflated:
        """The payload of a record of any size: as a range of the file, or inflated when it is read."""
        return self.payload(self._member(name))

    def payload(self, member: Member) -> FileRange | Inflated:
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
            raise bad(self.file, f"the record {printable(name)} is missing", first)
        return member

    def _bad(self, member: Member, what: str, *evidence: str) -> Malformed:
        return bad(self.file, f"the record {printable(member.name)} {what}", *evidence)


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
            self._seen[offset] = length, crc32(data)
        return data

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW from OFFSET of the record."""
        view[:] = self.read(offset, len(view))


class Inflated:
    """A compressed record as a source. torch.save never compresses, but people zip archives again.

    Bytes from the middle are had from an unnamed temporary file that the whole record is inflated to once.

    Attributes:
        packed: the compressed bytes.
        crc: CRC-32 of the inflated bytes as it was recorded, or None.
        seen: that of what came out, once all of it did.
    """

    __match_args__ = ("packed", "length", "crc")  # what it is made of: a plan has to tell it from another one
    seen: int | None = None

    def __init__(self, archive: Archive, member: Member) -> None:
        self._archive = archive
        self._member = member
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.crc = member.crc or None
        self.packed = archive.file.range(member.start, member.compressed)

    @property
    def length(self) -> int:
        """Bytes when inflated."""
        return self._member.size

    def chunks(self) -> Iterator[bytes]:
        """All bytes, as they come out."""
        crc = 0
        for chunk in self._archive.inflate(self._member):
            crc = crc32(chunk, crc)
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
    if not (isinstance(file, File) and file.far):
        found = read_columns(file, count, offset, size, whole_names=any_layout)
        if found is not None:
            return Archive(file, *found, offset)
    members = list(read_directory(file, count, offset, size))
    names = [member.name for member in members]
    top = "" if any_layout else common_top(file, names)
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
            raise bad(file, "a record reaches into what follows it", where)
