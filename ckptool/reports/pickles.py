"""Every pickle in a file, wherever it is: in archives within archives, behind another one, under any name.

Each is read by our own machine, so nothing that it names is imported and nothing that it calls is called. What a
pickle would have done before it fails counts as well: a stock unpickler would have done it, too.

What can be read in several ways is looked at in each: a file that begins like a safetensors file, a picture or nothing
at all may still be taken for a pickle by `torch.load`, and one that ends like a zip archive for one by Python.
"""

from __future__ import annotations

import contextlib
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..dtypes import BY_STORAGE
from ..errors import CheckpointError, Malformed, printable
from ..files import Buffer, File, FileRange, Source, crc32
from ..formats import safetensors, torch_legacy
from ..formats._foreign import OLD_PICKLE, describe
from ..formats._pickle_read import NeedsMore, Reader
from ..formats._zip import DEFLATED, LOCAL, STORED, Archive, looks_like_zip, open_archive
from ..tree import Global, Object

_HEAD = 4096
_FIRST_READ = 1 << 18
_LARGEST_PICKLE = 1 << 30
_MOST_IN_A_ROW = 1000
_DEEPEST = 6
_MOST_HEADERS = 100_000
#: A compressed record that grows more than this is a bomb, and is not looked into.
_GROWTH, _SMALL = 100, 1 << 26
_PACKED = ("gzip", "bzip2", "xz file", "zstd", "7z", "rar")


@dataclass(frozen=True, slots=True)
class Pickle:
    """One pickle.

    Attributes:
        place: where it is in the file: `archive/data.pkl`, `model.zip/archive/data.pkl`, with ` #2` for the second of
            several in a row; "" for a file that is one pickle.
        named: every class and function that it names.
        made: every object that it makes or call that it makes, in order.
        failure: why it could not be read to its end, or None.
    """

    place: str
    named: list[Global]
    made: list[Object]
    failure: str | None


@dataclass(slots=True)
class Contents:
    """What was found in a file.

    Attributes:
        kind: what the file is, in a word or a phrase.
        pickles: all pickles, in the order of the file.
        problems: why it cannot be said that these are all.
        notes: what else is worth knowing.
        checkpoint: it is of a kind that could hold a pickle, or a checkpoint of another kind.
    """

    kind: str = ""
    pickles: list[Pickle] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checkpoint: bool = True


def find_pickles(file: File) -> Contents:
    """Find and read every pickle of a file."""
    found = Contents()
    _Search(found).file(file)
    return found


class _Part(File):
    """Bytes within a file, seen as a file of their own."""

    def __init__(self, source: Source, name: str) -> None:
        self.fd = -1
        self.path = Path(name)
        self.size = source.length
        self.mode = 0
        self.identity = (0, 0)
        self._source = source

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(f"ends at byte {self.size:,}, but byte {offset + length:,} is needed", where=self.path)
        return bytes(self._source.read(offset, length))

    def read_into(self, view: memoryview, offset: int) -> None:
        view[:] = self.read(offset, len(view))


class _Recorder(Reader):
    """Reads a pickle and remembers the storages that its persistent ids name."""

    def __init__(self, data: bytes, *, complete: bool) -> None:
        super().__init__(data, "", self._id, complete=complete)
        self.storages: dict[str, int] = {}

    def _id(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":
            return pid[1]  # the class of a whole saved module, which torch gives back
        if isinstance(pid, tuple) and len(pid) >= 5:
            _, cls, key, _, numel = pid[:5]
            if isinstance(cls, Global) and isinstance(key, str | int) and isinstance(numel, int):
                dtype = BY_STORAGE.get(cls.name)
                self.storages[str(key)] = max(numel, 0) * (dtype.itemsize if dtype else 1)
        return Object("persistent", None, ())


class _Search:
    def __init__(self, found: Contents) -> None:
        self.found = found

    def file(self, file: File) -> None:
        """Look at a whole file, in every way in which a program may read it."""
        try:
            self._whole(file)
        except CheckpointError as error:
            self._problem("", error)

    def _whole(self, file: File) -> None:
        found, whole = self.found, FileRange(file, 0, file.size)
        head = file.read(0, min(_HEAD, file.size))
        found.kind = self._look(whole, head, "", 0) or ""
        if not found.kind:
            if self._attempt(whole, 0, ""):
                found.kind = "pickle"
            else:
                what, _ = describe(head, file.size, file.path)
                found.kind, found.checkpoint = what, False
                found.problems.append(f"not a checkpoint that can be scanned: {what}")
        elif found.kind not in ("pickle", "torch-legacy") and self._attempt(whole, 0, ""):
            found.notes.append(f"it begins like a {found.kind}, and is a pickle as well")
        if not looks_like_zip(head) and _ends_like_zip(file):
            found.problems.append("it ends like a zip archive; programs disagree on what it is")
            self._carve(whole, "")

    def _look(self, source: Source, head: bytes, place: str, depth: int) -> str | None:
        """Look at what begins with HEAD. Returns what it is, or None if it is nothing that holds pickles."""
        if depth > _DEEPEST:
            self._problem(place, f"archives are nested more than {_DEEPEST} deep")
            return "archive"
        if looks_like_zip(head):
            return self._zip(source, place, depth)
        if _is_tar(head):
            return self._tar(source, place, depth)
        if torch_legacy.sniff(head):
            return self._legacy(source, place)
        if head.startswith(b"\x93NUMPY"):
            return self._npy(source, head, place)
        if re.match(rb"\x80[\x00-\x05]", head) or OLD_PICKLE.match(head):
            self._in_a_row(source, 0, place)
            return "pickle"
        if safetensors.sniff(head) or place.endswith(".safetensors"):
            with self._reporting(place):
                safetensors.open_safetensors(_Part(source, place))
            return "safetensors"
        return None

    # -- pickles

    def _read(self, source: Source, start: int) -> tuple[_Recorder, str | None]:
        """Read the pickle at START, and say what went wrong, if anything."""
        have = _FIRST_READ
        while True:
            length = min(have, source.length - start)
            reader = _Recorder(bytes(source.read(start, length)), complete=start + length >= source.length)
            try:
                reader.load()
            except NeedsMore:
                if have < _LARGEST_PICKLE:
                    have *= 8
                    continue
                return reader, f"is larger than {_LARGEST_PICKLE:,} bytes"
            except CheckpointError as error:
                return reader, error.what.removeprefix("its pickle ")
            except (MemoryError, OverflowError, RecursionError) as error:
                return reader, f"is too deep or too large to be read ({type(error).__name__})"
            return reader, None

    def _add(self, place: str, reader: _Recorder, failure: str | None) -> None:
        self.found.pickles.append(Pickle(place, reader.named, reader.made, failure))
        if failure:
            self._problem(place, f"the pickle {failure}")

    def _attempt(self, source: Source, start: int, place: str) -> bool:
        """Read what may be a pickle, and say whether it is one: it calls something, or names something to its end."""
        reader, failure = self._read(source, start)
        if not reader.made and (failure or not reader.named):
            return False
        self._add(place, reader, failure)
        return True

    def _in_a_row(self, source: Source, start: int, place: str) -> None:
        """The pickle at START, and those that follow it."""
        reader, failure = self._read(source, start)
        self._add(place, reader, failure)
        number, at = 1, start + reader.position
        while not failure and at < source.length and number < _MOST_IN_A_ROW:
            number += 1
            reader, failure = self._read(source, at)
            begins = bytes(source.read(at, min(2, source.length - at)))
            if failure and not reader.made and not re.match(rb"\x80[\x00-\x05]", begins):
                self._note(place, f"{source.length - at:,} bytes follow the end of the pickle")
                return
            self._add(f"{place} #{number}".strip(), reader, failure)
            at += reader.position

    def _legacy(self, source: Source, place: str) -> str:
        """Five pickles, then the storages that the fourth names, then perhaps something else."""
        at, storages = 0, 0
        for number in range(1, 6):
            reader, failure = self._read(source, at)
            self._add(f"{place} #{number}".strip(), reader, failure)
            if failure:
                return "torch-legacy"
            at += reader.position
            if number == 4:
                storages = sum(8 + nbytes for nbytes in reader.storages.values())
        end = at + storages
        if end > source.length:
            self._problem(place, f"it is cut short: {end - source.length:,} bytes of its storages are missing")
        elif end < source.length and not self._attempt(source, end, f"{place} behind the last storage".strip()):
            self._note(place, f"{source.length - end:,} bytes follow the last storage")
        return "torch-legacy"

    def _npy(self, source: Source, head: bytes, place: str) -> str:
        """A header, then the values: those of an array of objects are a pickle."""
        size = 2 if head[6:7] == b"\1" else 4
        start = 8 + size + int.from_bytes(head[8 : 8 + size], "little")
        if start < source.length and re.search(rb"'descr'\s*:\s*[^,]*O", head[: max(start, 0)]):
            self._in_a_row(source, start, place)
        return "numpy array"

    # -- archives

    def _zip(self, source: Source, place: str, depth: int) -> str:
        try:
            file = source.file if isinstance(source, FileRange) and not place else _Part(source, place)
            archive = open_archive(file, any_layout=True)
        except CheckpointError as error:
            parts = list(_archives_in_a_row(source))
            if sum(part.file.size for part in parts) != source.length:
                self._problem(place, error)
                self._carve(source, place)
                return "zip archive"
            for number, part in enumerate(parts, start=1):
                self._records(part, f"{place} #{number}".strip(), depth)
            return "zip archives in a row"
        return self._records(archive, place, depth)

    def _records(self, archive: Archive, place: str, depth: int) -> str:
        tensors = self._data_pickles(archive, place)
        for name, member in archive.members.items():
            if name in tensors or not member.size:
                continue
            here = f"{place}/{name}".lstrip("/")
            if member.method == DEFLATED and member.size > max(_SMALL, _GROWTH * member.compressed):
                self._problem(here, f"it grows from {member.compressed:,} to {member.size:,} bytes; not looked into")
                continue
            with self._reporting(here):
                self._member(archive.source(name), here, name, depth)
        return _zip_kind(archive)

    def _data_pickles(self, archive: Archive, place: str) -> set[str]:
        """Read the pickles that torch reads, and return their names and those of the storages that they use."""
        done = set()
        for name, member in archive.members.items():
            stem, _, suffix = name.rpartition(".")
            if suffix.lower() != "pkl" or member.size > max(_SMALL, _GROWTH * member.compressed):
                continue
            done.add(name)
            here = f"{place}/{name}".lstrip("/")
            with self._reporting(here):
                source = archive.source(name)
                reader, failure = self._read(source, 0)
                self._add(here, reader, failure)
                if member.crc and crc32(source) != member.crc:
                    self._problem(here, "its checksum does not match; torch does not look at it")
                if not failure and reader.position < source.length:
                    rest = source.length - reader.position
                    if not self._attempt(source, reader.position, f"{here} #2"):
                        self._note(here, f"{rest:,} bytes follow the end of the pickle")
                done |= {f"{stem}/{key}" for key in reader.storages}
        return done

    def _member(self, source: Source, here: str, name: str, depth: int) -> None:
        head = bytes(source.read(0, min(_HEAD, source.length)))
        if self._look(source, head, here, depth + 1) is None and not self._attempt(source, 0, here):
            what, _ = describe(head, source.length, Path(name))
            if any(word in what for word in _PACKED):
                self._problem(here, f"it is {what}, which is not looked into")

    def _carve(self, source: Source, place: str) -> None:
        """Look at what follows every local header, directory or not: some program may believe in it."""
        for at in _found(source, b"PK\3\4", _MOST_HEADERS):
            if at + LOCAL.size > source.length:
                return
            fields = LOCAL.unpack(bytes(source.read(at, LOCAL.size)))
            method, named, extra = fields[2], fields[-2], fields[-1]
            start = at + LOCAL.size + named + extra
            if start >= source.length:
                continue
            name = bytes(source.read(at + LOCAL.size, named)).decode("utf-8", "backslashreplace")
            here = f"{place}/{name}".lstrip("/")
            if method == STORED:
                self._attempt(source, start, here)
            elif method == DEFLATED:
                stream = zlib.decompressobj(-zlib.MAX_WBITS)
                with contextlib.suppress(zlib.error):
                    packed = bytes(source.read(start, min(_SMALL, source.length - start)))
                    self._attempt(Buffer(stream.decompress(packed, _SMALL)), 0, here)

    def _tar(self, source: Source, place: str, depth: int) -> str:
        import tarfile

        names = set()
        try:
            with tarfile.open(fileobj=io.BufferedReader(_Stream(source)), mode="r:") as tar:
                for info in tar:
                    here = f"{place}/{info.name}".lstrip("/")
                    if info.name in names:
                        self._problem(here, "it is there twice; readers disagree on which counts")
                    names.add(info.name)
                    if info.sparse is not None:
                        self._problem(here, "it is stored with holes, and not looked into")
                    elif info.isreg() and info.offset_data + info.size <= source.length:
                        member = FileRange(_Part(source, here), info.offset_data, info.size)
                        with self._reporting(here):
                            self._member(member, here, info.name, depth)
        except (tarfile.TarError, ValueError, OSError, OverflowError) as error:
            self._problem(place, f"its tar archive is damaged ({printable(str(error), 80)})")
        return "tar archive of torch before 0.1.10" if {"pickle", "storages"} <= names else "tar archive"

    # -- what to say

    def _problem(self, place: str, what: str | CheckpointError) -> None:
        text = what if isinstance(what, str) else "; ".join((what.what.rstrip(":"), *what.evidence[:1]))
        self.found.problems.append(f"{printable(place, 80)}: {text}" if place else text)

    def _note(self, place: str, what: str) -> None:
        self.found.notes.append(f"{printable(place, 80)}: {what}" if place else what)

    @contextlib.contextmanager
    def _reporting(self, place: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            self._problem(place, error)


class _Stream(io.RawIOBase):
    """A source as a stream, for tarfile."""

    def __init__(self, source: Source) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._source.length)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._source.length - self._at))
        buffer[:length] = self._source.read(self._at, length)
        self._at += length
        return length


def _is_tar(head: bytes) -> bool:
    """Whether HEAD begins with a tar header whose checksum holds; torch.load believes it before anything else."""
    checksum = head[148:156]
    if not (checksum[:1] in (b"\x80", b"\xff") or any(digit in checksum for digit in b"01234567")):
        return False  # which spares most files the import
    import tarfile

    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _ends_like_zip(file: File) -> bool:
    """Whether an end record stands at the end of a file that does not begin as an archive."""
    size = min(file.size, 22 + 0xFFFF)
    tail = file.read(file.size - size, size)
    at = tail.rfind(b"PK\5\6")
    return at >= 0 and len(tail) - at >= 22 and at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") == len(tail)


def _archives_in_a_row(source: Source) -> Iterator[Archive]:
    """The archives that follow one another in a file, as torch.distributed.checkpoint writes its tensors."""
    whole = _Part(source, "")
    begin = 0
    for at in _found(source, b"PK\5\6", _MOST_HEADERS):
        end = at + 22  # torch writes no comment
        if at < begin or end > source.length:
            continue
        with contextlib.suppress(CheckpointError):
            yield open_archive(_Part(FileRange(whole, begin, end - begin), ""), any_layout=True)
            begin = end


def _found(source: Source, signature: bytes, most: int) -> Iterator[int]:
    """Where SIGNATURE stands, from the front."""
    step, count = 1 << 22, 0
    for base in range(0, source.length, step):
        data = bytes(source.read(base, min(step + len(signature) - 1, source.length - base)))
        at = data.find(signature)
        while at >= 0 and count < most:
            yield base + at
            count += 1
            at = data.find(signature, at + len(signature))


def _zip_kind(archive: Archive) -> str:
    """What kind of zip archive it is."""
    names = {name.rpartition("/")[2] for name in archive.members}
    if "constants.pkl" in names:
        return "TorchScript archive"
    if "extern_modules" in names:
        return "torch.package archive"
    if "data.pkl" in names:
        return "torch-zip"
    return "numpy archive" if any(name.endswith(".npy") for name in names) else "zip archive"
