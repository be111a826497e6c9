"""Zip archives that say only once where their records are, since the other account of it is lost.

Without the directory, local headers and descriptors are read from the front. torch's local headers have zeros in place
of sizes; these follow the payload, in a descriptor. So the end of a payload is the first place where a descriptor
stands that states the size that it would then have. An empty payload has none.

Without a local header, whose lengths say where the payload begins, the directory and the descriptor tell: the payload
ends where its descriptor or the next record begins. Its checksum, or the descriptor, has to agree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ...disk.checksums import crc32_of
from ...disk.files import File
from ...errors import Malformed, printable
from .archive import Archive
from .directory import name_fault, read_directory, refuse_doubles, widen
from .ends import find_end
from .headers import Ahead, check_extents, locate
from .structure import CAP32, FOLLOWS, LOCAL, Member

_STEP = 1 << 22
_MOST_RECORDS = 1_000_000
_MOST_BROKEN = 64


def by_directory(file: File) -> tuple[Archive, list[str]]:
    """The archive as its directory tells it, whatever became of its local headers, and what is wrong with these.

    A record that is found by nothing is left out.

    Raises:
        Malformed: the directory is lost or damaged, too.
    """
    count, offset, size = find_end(file, headless=True)
    entries = list(read_directory(file, count, offset, size))
    refuse_doubles(file, [entry.name for entry in entries])
    begins = sorted(entry.header for entry in entries)
    ends = dict(zip(begins, [*begins[1:], offset], strict=True))
    members: list[Member] = []
    wrong = []
    for entry in entries:
        try:
            locate(Ahead(file), entry, offset)
        except Malformed:
            wrong.append(f"the header of its record {printable(entry.name, 60)} is damaged")
            if not _found_without_header(file, entry, ends[entry.header]):
                continue
        members.append(entry)
    check_extents(file, members)
    return Archive(file, "", {m.name: m for m in members if not m.name.endswith("/")}, offset), wrong


def told_checksums(file: File) -> dict[str, int]:
    """Name of a record -> its CRC-32 by the directory; {} if the directory is lost or damaged."""
    try:
        return {entry.name: entry.crc for entry in read_directory(file, *find_end(file, headless=True))}
    except Malformed:
        return {}


def _found_without_header(file: File, entry: Member, end: int) -> bool:
    """Find a record, which reaches to END at most, by all but its local header; False if nothing tells where it is."""
    first = entry.header + LOCAL.size + len(entry.raw)
    told = []
    for form in ("<3I", "<I2Q"):
        if max(entry.compressed, entry.size) > CAP32 and form == "<3I":
            continue
        stated = b"PK\7\10" + struct.pack(form, entry.crc, entry.compressed, entry.size)
        if file.read(max(0, end - len(stated)), len(stated)) == stated:
            told.append(end - len(stated) - entry.compressed)
    own = sum(LOCAL.unpack(file.read(entry.header, LOCAL.size))[-2:])  # if only something else of the header is damaged
    starts = [*told, entry.header + LOCAL.size + own, *(end - length - entry.compressed for length in (0, 12, 20))]
    for start in starts if entry.size else [first]:
        if not first <= start <= end - entry.compressed:
            continue
        entry.start, entry.descriptor = start, None
        if not entry.size or (_agrees(file, entry) if entry.crc else start in told):
            return True
    return False


def _agrees(file: File, member: Member) -> bool:
    try:
        return crc32_of(Archive(file, "", {member.name: member}, file.size).source(member.name)) == member.crc
    except Malformed:
        return False


def carve(file: File) -> Iterator[tuple[Member, bool]]:
    """Every record that has a local header, in order, and whether it is whole."""
    at, count, broken = 0, 0, 0
    while count < _MOST_RECORDS and broken < _MOST_BROKEN:  # each of these costs a look at the rest of the file
        header = _next_header(file, at)
        if header is None:
            return
        member, at, whole = header
        count, broken = count + 1, broken + (not whole)
        yield member, whole


def _next_header(file: File, at: int) -> tuple[Member, int, bool] | None:
    """The record whose header is the first from AT, where to go on, and whether it is whole."""
    for start in _found(file, b"PK\3\4", at):
        if start + LOCAL.size > file.size:
            return None
        fields = LOCAL.unpack(file.read(start, LOCAL.size))
        _, flags, method, crc, compressed, size, named, extra = fields
        payload = start + LOCAL.size + named + extra
        if method not in (0, 8) or payload > file.size:
            continue
        raw = file.read(start + LOCAL.size, named)
        name = raw.decode("utf-8", "replace")
        if name_fault(name):
            continue
        if CAP32 in (compressed, size):
            size, compressed = widen(file.read(start + LOCAL.size + named, extra), (size, compressed)) or (-1, -1)
        if (flags & FOLLOWS and not (compressed or size)) or compressed < 0:
            return _with_descriptor(file, name, raw, flags, method, start, payload)
        member = Member(name, raw, method, flags, crc, size, compressed, start, 0, payload)
        whole = payload + compressed <= file.size
        return member, payload + compressed if whole else file.size, whole
    return None


def _with_descriptor(
    file: File, name: str, raw: bytes, flags: int, method: int, start: int, payload: int
) -> tuple[Member, int, bool]:
    """A record whose sizes follow it."""
    ahead = file.read(payload, min(4, file.size - payload))
    if ahead in (b"PK\3\4", b"PK\1\2"):
        return Member(name, raw, method, flags, 0, 0, 0, start, 0, payload), payload, True
    for end in _found(file, b"PK\7\10", payload):
        stated = file.read(end, min(24, file.size - end))
        for width, length in ((4, 16), (8, 24)):
            if len(stated) < length or int.from_bytes(stated[8 : 8 + width], "little") != end - payload:
                continue
            size = int.from_bytes(stated[8 + width : 8 + 2 * width], "little")
            if method or size == end - payload:
                crc = int.from_bytes(stated[4:8], "little")
                member = Member(name, raw, method, flags, crc, size, end - payload, start, 0, payload, end)
                return member, end + length, True
    left = file.size - payload
    return Member(name, raw, method, flags, 0, left, left, start, 0, payload), payload, False


def _found(file: File, signature: bytes, start: int) -> Iterator[int]:
    """Where SIGNATURE stands, from START on."""
    for base in range(start, file.size, _STEP):
        data = file.read(base, min(_STEP + len(signature) - 1, file.size - base))
        at = data.find(signature)
        while at >= 0:
            yield base + at
            at = data.find(signature, at + 1)
