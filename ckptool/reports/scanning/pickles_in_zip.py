"""Pickles in zip archives: in their records, between them, and in archives that follow one another in one file."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator

from ...disk.checksums import crc32_of
from ...disk.door import unnamed_file
from ...disk.files import CHUNK, Buffer, File, FileRange, Source
from ...errors import CheckpointError, Malformed
from ...formats.zip.archive import Archive, open_archive
from ...formats.zip.structure import DEFLATED, LOCAL, STORED, Member
from .following import Behind, Budget, Follow, Loose, Part, Parts, Problem, Programs, Record, TooMuch
from .programs import programs_of_archive

_FIRST_READ = 4096
_MOST_HEADERS = 100_000
#: A compressed record that grows more than this is a bomb, and is not looked into.
_GROWTH, _SMALL = 100, 1 << 26


def parts_of_zip(source: Source, place: str, budget: Budget, follow: Follow) -> Parts:
    """All that a zip archive, or several in a row, may hold."""
    try:
        file = source.file if isinstance(source, FileRange) and not place else Part(source, place)
        archive = open_archive(file, any_layout=True)
    except CheckpointError as error:
        found = list(_archives_in_a_row(source))
        if sum(one.file.size for one in found) != source.length:
            yield Problem(place, error)
            yield from carved(source, place, 0, source.length, budget)
            return "zip archive"
        for number, one in enumerate(found, start=1):
            yield from _records(one, f"{place} #{number}".strip(), budget, follow)
        return "zip archives in a row"
    return (yield from _records(archive, place, budget, follow))


def _records(archive: Archive, place: str, budget: Budget, follow: Follow) -> Parts:
    source = archive.file.range(0, archive.file.size)
    kind = _zip_kind(archive)
    done: set[str] = set()
    yield from _data_pickles(archive, place, kind, budget, follow, done)
    for name in archive.members:
        if name in done or not (member := archive.members[name]).size:
            continue
        here = f"{place}/{name}".lstrip("/")
        try:
            yield Record(_inside(archive, member, budget), here)
        except CheckpointError as error:
            yield Problem(here, error)
    yield Programs(programs_of_archive(archive, place, kind))
    end = 0  # what stands between the records, and is in no directory
    for header, behind in archive.extents():
        if header - end >= LOCAL.size:
            yield from carved(source, place, end, header, budget)
        end = behind
    if archive.directory - end >= LOCAL.size:
        yield from carved(source, place, end, archive.directory, budget)
    return kind


def _inside(archive: Archive, member: Member, budget: Budget) -> Source:
    """The payload of a record, inflated as far as it is read."""
    if member.method != DEFLATED:
        return archive.range(member.name)
    if member.size > max(_SMALL, _GROWTH * member.compressed):
        grows = f"it grows from {member.compressed:,} to {member.size:,} bytes; not looked into"
        raise Malformed(grows)
    return _Inflating(archive, member, budget)


def _data_pickles(archive: Archive, place: str, kind: str, budget: Budget, follow: Follow, done: set[str]) -> Parts:
    """The pickles that torch reads. DONE gets their names, and those of the storages that they use.

    Where a loader would take another record than `data/NUMBER` for a pickle, none is passed over.
    """
    for name in archive.members:
        stem, _, suffix = name.rpartition(".")
        if suffix.lower() != "pkl" or not (member := archive.members[name]).size:
            continue
        done.add(name)
        here = f"{place}/{name}".lstrip("/")
        try:
            source = _inside(archive, member, budget)
            reading = follow(source, here)
            if member.crc and crc32_of(source) != member.crc:
                yield Problem(here, "its checksum does not match; torch does not look at it")
            if not reading.failure:
                yield Behind(source, reading.reader.position, here, "end of the pickle")
            if kind in ("torch-zip", "TorchScript archive") and stem.rpartition("/")[2] in ("data", "constants"):
                done |= {f"{stem}/{key}" for key in reading.reader.storages if re.fullmatch("[0-9]+", key)}
        except CheckpointError as error:
            yield Problem(here, error)
    return kind


def carved(source: Source, place: str, begin: int, end: int, budget: Budget) -> Parts:
    """What follows every local header, directory or not: some program may believe in it."""
    try:
        for at in _found(source, b"PK\3\4", _MOST_HEADERS, begin, end):
            if at + LOCAL.size > source.length:
                break
            fields = LOCAL.unpack(bytes(source.read(at, LOCAL.size)))
            method, named, extra = fields[2], fields[-2], fields[-1]
            start = at + LOCAL.size + named + extra
            if start >= source.length:
                continue
            name = bytes(source.read(at + LOCAL.size, named)).decode("utf-8", "backslashreplace")
            here = f"{place}/{name}".lstrip("/")
            budget.spend(LOCAL.size)
            if method == STORED:
                yield Loose(source, start, here)
            elif method == DEFLATED:
                yield Loose(Buffer(_inflated(source, start, budget)), 0, here)
    except TooMuch as error:
        yield Problem(place, error)
    return "zip archive"


def _inflated(source: Source, start: int, budget: Budget) -> bytes:
    """What a deflated stream at START becomes, as far as it can be inflated and the budget goes."""
    stream, most = zlib.decompressobj(-zlib.MAX_WBITS), min(_SMALL, budget.left // 4)
    out = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(start, source.length, _FIRST_READ):
            out += stream.decompress(bytes(source.read(at, min(_FIRST_READ, source.length - at))), most - len(out))
            if stream.eof or len(out) >= most:
                break
    budget.spend(len(out) + _FIRST_READ)
    return bytes(out)


class _Inflating:
    """A compressed record as a source, inflated only as far as somebody reads."""

    def __init__(self, archive: Archive, member: Member, budget: Budget) -> None:
        self.length = member.size
        self._chunks = archive.inflate(member)
        self._file = unnamed_file(CHUNK)
        self._have = 0
        self._budget = budget

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET."""
        while self._have < offset + length or self._have == self.length:
            chunk = next(self._chunks, None)  # behind the last one, the sizes are compared
            if chunk is None:
                break
            self._budget.spend(len(chunk))
            self._file.seek(self._have)
            self._file.write(chunk)
            self._have += len(chunk)
        self._file.seek(offset)
        return self._file.read(length)

    def chunks(self) -> Iterator[bytes]:
        """All bytes."""
        for at in range(0, self.length, CHUNK):
            yield self.read(at, min(CHUNK, self.length - at))

    def __del__(self) -> None:
        self._file.close()


def ends_like_zip(file: File) -> bool:
    """Whether an end record stands near the end of a file that does not begin as an archive: torch takes the last one
    that leads to a directory, whatever follows it."""
    size = min(file.size, 22 + 0xFFFF + 4096)
    base = file.size - size
    tail = file.read(base, size)
    at = tail.rfind(b"PK\5\6")
    while at >= 0:
        if len(tail) - at >= 22:
            length, offset = (int.from_bytes(tail[at + byte : at + byte + 4], "little") for byte in (12, 16))
            places = {offset, base + at - length, base + at - length - 76}
            if any(0 <= place <= file.size - 4 and file.read(place, 4) == b"PK\1\2" for place in places):
                return True
        at = tail.rfind(b"PK\5\6", 0, at)
    return False


def _archives_in_a_row(source: Source) -> Iterator[Archive]:
    """The archives that follow one another in a file, as torch.distributed.checkpoint writes its tensors."""
    whole = Part(source, "")
    begin = 0
    for at in _found(source, b"PK\5\6", _MOST_HEADERS):
        end = at + 22  # torch writes no comment
        if at < begin or end > source.length:
            continue
        with contextlib.suppress(CheckpointError):
            yield open_archive(Part(FileRange(whole, begin, end - begin), ""), any_layout=True)
            begin = end


def _found(source: Source, signature: bytes, most: int, begin: int = 0, end: int | None = None) -> Iterator[int]:
    """Where SIGNATURE stands between BEGIN and END, from the front."""
    step, count = 1 << 22, 0
    end = source.length if end is None else end
    for base in range(begin, end, step):
        data = bytes(source.read(base, min(step + len(signature) - 1, end - base)))
        at = data.find(signature)
        while at >= 0 and count < most:
            yield base + at
            count += 1
            at = data.find(signature, at + len(signature))


def _zip_kind(archive: Archive) -> str:
    """What kind of zip archive it is, to the loaders that unpickle most first."""
    names = {name.rpartition("/")[2] for name in archive.members}
    if "extern_modules" in names:
        return "torch.package archive"
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return "exported program"
    if "constants.pkl" in names:
        return "TorchScript archive"
    if "data.pkl" in names:
        return "torch-zip"
    return "numpy archive" if any(name.endswith(".npy") for name in names) else "zip archive"
