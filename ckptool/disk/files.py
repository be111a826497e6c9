"""Byte ranges of files, and other sources of bytes.

What will be written (see `ckptool.disk.writing`) is described by *pieces*, in order, each with a `length`:

- `FileRange`: bytes of an open input file, which are copied, by the kernel where that is the faster way,
- `Buffer`: bytes in memory,
- any other `Source`, whose `chunks()` are computed while writing (a strided tensor, say),
- `Crc32Of`: the four bytes of a checksum, known only once another piece has been read,
- `Verify`: no bytes, but a request to compare a recorded checksum with that of the bytes that were read.

Nothing here knows what a checkpoint is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

from ..errors import Malformed, Unreadable, printable
from ..records import record
from .addresses import StrPath as StrPath
from .addresses import is_url, model_hint

#: Bytes read into memory at once where bytes must pass through this process.
CHUNK = 4 << 20
#: Bytes of a part of a file that are read at once, since most of them will be looked at.
_SMALL = 8 << 10
#: Bytes of a checksum that are read at once.
_CHECKED = 1 << 20
#: How files are opened. A pipe that nobody writes to does not block.
READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class File:
    """A regular file open for reading at any offset, by several threads at once.

    Args:
        path: the file.
        descriptor: what it was opened as, if it was; it is closed with this.

    Attributes:
        notes: what a person should know about everything that is read from it, for reports and receipts.

    Raises:
        Unreadable: if PATH is absent, a folder, a device, a pipe, or may not be read. A pipe is refused at once
            instead of blocking.
    """

    notes: tuple[str, ...] = ()

    #: Which file its path names, as far as ckptool knows. None where no path of this machine does.
    _at_path: tuple[int, int] | None = None

    def __init__(self, path: StrPath, descriptor: int | None = None) -> None:
        self.path = path if isinstance(path, Path) else Path(path)
        try:
            self.fd = open_descriptor(path, READING) if descriptor is None else descriptor
        except (OSError, ValueError) as error:
            hint = model_hint(path) if isinstance(error, FileNotFoundError) else None
            raise Unreadable(reason(error), where=path, hint=hint) from None
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self.fd)
            self.fd = -1
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise Unreadable(f"is {kind}", where=path)
        self.size = found.st_size
        self.mode = stat.S_IMODE(found.st_mode)
        self.identity = (found.st_dev, found.st_ino)
        self.modified = found.st_mtime_ns
        self._at_path = self.identity
        #: Bytes that take no room on the disk.
        self.holes = max(0, found.st_size - getattr(found, "st_blocks", found.st_size) * 512)

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly LENGTH bytes from OFFSET.

        Raises:
            Malformed: if the file ends before that.
            Unreadable: if the system cannot read it there.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(
                f"ends at byte {self.size:,}, but bytes {offset:,} to {offset + length:,} are needed",
                where=self.path,
                hint="the download or copy did not finish; compare the size with the source",
            )
        try:
            data = _pread(self.fd, length, offset)
            if len(data) == length:
                return data
            parts = [data]
            got = len(data)
            while got < length:
                more = _pread(self.fd, length - got, offset + got)
                if not more:
                    raise Malformed("became shorter while it was being read", where=self.path)
                parts.append(more)
                got += len(more)
        except OSError as error:
            raise Unreadable(reason(error), where=self.path) from None
        return b"".join(parts)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW with the bytes from OFFSET, as `read` does, into memory that is there already."""
        try:
            done = os.preadv(self.fd, [view], offset) if hasattr(os, "preadv") else 0
        except OSError as error:
            raise Unreadable(reason(error), where=self.path) from None
        if done < len(view):
            view[done:] = self.read(offset + done, len(view) - done)

    @property
    def name_while_open(self) -> str:
        """A name under which others open this very file, where the system has one: PATH may lead elsewhere by now."""
        opened = f"/dev/fd/{self.fd}"
        return opened if os.path.exists(opened) else str(self.path)

    @property
    def far(self) -> bool:
        """Whether small reads take long, since each crosses a network."""
        return False

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Say that small parts (begin, end) will be read soon, for files where that is worth knowing."""

    def located(self, offset: int) -> tuple[File, int]:
        """The file that really holds the byte at OFFSET, and where."""
        return self, offset

    @property
    def is_sparse(self) -> bool:
        """Whether the file has holes that are worth looking for."""
        return self.holes >= CHUNK and hasattr(os, "SEEK_DATA")

    def next_data(self, offset: int, end: int) -> tuple[int, int]:
        """Where the next data begin, from OFFSET on, and where the hole after them begins; END where there is none."""
        try:
            begin = os.lseek(self.fd, offset, os.SEEK_DATA)
            hole = os.lseek(self.fd, begin, os.SEEK_HOLE)
        except OSError as error:
            return (end, end) if error.errno == errno.ENXIO else (offset, end)  # nothing but a hole, or not to be told
        return min(begin, end), min(hole, end)

    @property
    def seen(self) -> int | None:
        """The CRC-32 of all bytes, of a file that takes it as they are read; None while some were not."""
        return None

    def range(self, offset: int, length: int, crc: int | None = None) -> FileRange:
        """The LENGTH bytes from OFFSET, as a source, with their CRC-32 where one was recorded."""
        return FileRange(self, offset, length, crc)

    def called(self, path: Path) -> File:
        """This file under another name, which messages show: one of a cache under the name that was asked for."""
        self.path, self._at_path = path, None
        return self

    def is_unchanged(self) -> bool:
        """Whether size and time of change are those of when it was opened."""
        if self.fd < 0:
            return True
        now = os.fstat(self.fd)
        return (now.st_size, now.st_mtime_ns) == (self.size, self.modified)

    def is_at_its_path(self) -> bool:
        """Whether its path still names this very file, or the one by which ckptool itself replaced it."""
        return self._at_path is None or _identity(self.path) == self._at_path

    def note_replaced(self) -> None:
        """Remember that ckptool itself gave its path to another file."""
        self._at_path = _identity(self.path)

    def close(self) -> None:
        """Close the file. Storages that were not read yet can no longer be read."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def __repr__(self) -> str:
        return f"File({str(self.path)!r}, {self.size} bytes)"


def _identity(path: StrPath) -> tuple[int, int] | None:
    """Device and number of the file at PATH."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Window:
    """A part of a file that is read as if it were a file: an archive among others.

    Args:
        file: the file.
        offset, size: the part, which must lie inside.
    """

    def __init__(self, file: File, offset: int, size: int) -> None:
        self.path = file.path
        self.size = size
        self._range = file.range(offset, size)
        self._small = self._range.read(0, size) if size <= _SMALL else None

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly LENGTH bytes from OFFSET of this part.

        Raises:
            Malformed: if it ends before that.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(
                f"a part of it ends at byte {self.size:,}, but bytes {offset:,} to {offset + length:,} are needed",
                where=self.path,
            )
        return self._range.read(offset, length) if self._small is None else self._small[offset : offset + length]

    def range(self, offset: int, length: int, crc: int | None = None) -> FileRange:
        """The LENGTH bytes from OFFSET, as a range of the whole file, with their CRC-32 where one was recorded."""
        return FileRange(self._range.file, self._range.offset + offset, length, crc)


def open_descriptor(path: StrPath, flags: int, *, dir_fd: int | None = None) -> int:
    """Open PATH. A checkpoint of thousands of files may need more descriptors than a process gets by default."""
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ImportError, ValueError, OSError):  # Windows, or a limit that may not be reached
        pass
    return os.open(path, flags, dir_fd=dir_fd)


if hasattr(os, "pread"):
    _pread = os.pread
else:  # Windows has no positioned read: one lock around seek and read does the same
    import threading

    _seek_lock = threading.Lock()

    def _pread(fd: int, length: int, offset: int, /) -> bytes:
        with _seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, length)


@runtime_checkable
class Source(Protocol):
    """Bytes that can be had piecewise, wherever they are."""

    @property
    def length(self) -> int:
        """How many bytes there are."""

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes from OFFSET, counted from the start of this source."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All bytes, in order, in pieces of bounded size."""


class Computed(Source, Protocol):
    """A source whose values are computed when they are read: worth several threads, each with STEP bytes at a time."""

    @property
    def step(self) -> int:
        """Bytes of a piece."""


@record(frozen=True, slots=True)
class FileRange:
    """A run of bytes of a file.

    Attributes:
        file, offset, length: where they are.
        crc: their CRC-32 as it was recorded, or None.
        whole: the range with a recorded checksum that they are a part of, or None.
    """

    file: File
    offset: int
    length: int
    crc: int | None = field(default=None, compare=False)
    whole: FileRange | None = field(default=None, compare=False)

    def read(self, offset: int, length: int) -> bytes:
        """Return LENGTH bytes from OFFSET of this range."""
        return self.file.read(self.offset + offset, length)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most CHUNK."""
        for at in range(0, self.length, CHUNK):
            yield self.read(at, min(CHUNK, self.length - at))

    def part(self, offset: int, length: int) -> FileRange:
        """The LENGTH bytes from OFFSET of this range, as a range."""
        if not offset and length == self.length:
            return self
        return FileRange(self.file, self.offset + offset, length, None, self.whole if self.crc is None else self)

    @property
    def seen(self) -> int | None:
        """As `File.seen`, of a range that is the whole of its file."""
        return self.file.seen if (self.offset, self.length) == (0, self.file.size) else None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes in memory."""

    data: bytes | memoryview

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes from OFFSET."""
        return self.data[offset : offset + length]

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes, in one piece: they are in memory anyway."""
        yield self.data

    def part(self, offset: int, length: int) -> Buffer:
        """The LENGTH bytes from OFFSET."""
        return Buffer(self.data[offset : offset + length])


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a source whose values are computed when they are read."""

    source: Computed
    offset: int
    length: int

    @property
    def step(self) -> int:
        """As the source."""
        return self.source.step

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes from OFFSET of this part."""
        return self.source.read(self.offset + offset, length)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


def part_of(source: Source, offset: int, length: int) -> Source:
    """The LENGTH bytes from OFFSET of a source."""
    if not offset and length == source.length:
        return source
    if isinstance(source, FileRange | Buffer | Joined):
        return source.part(offset, length)
    return Zeros(length) if isinstance(source, Zeros) else Cut(source, offset, length)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Zeros:
    """LENGTH bytes of zero: a hole."""

    length: int

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes."""
        return bytes(length)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most CHUNK."""
        for at in range(0, self.length, CHUNK):
            yield bytes(min(CHUNK, self.length - at))


@dataclass(frozen=True, slots=True)
class Gap:
    """LENGTH bytes that are left as they are: somebody else writes them."""

    length: int

    def read(self, offset: int, length: int) -> bytes:
        """Zeros."""
        return bytes(length)

    def chunks(self) -> Iterator[bytes]:
        """Zeros."""
        yield bytes(self.length)


@dataclass(frozen=True, slots=True)
class Joined:
    """Several sources, one after the other.

    Attributes:
        parts: the sources.
        crcs: the CRC-32 of each as it was recorded, or None. Empty if none was.
    """

    parts: tuple[Source, ...]
    crcs: tuple[int | None, ...] = ()

    def stored(self) -> Iterator[tuple[Source, int | None]]:
        """The parts with their checksums."""
        yield from zip(self.parts, self.crcs or (None,) * len(self.parts), strict=True)

    @property
    def length(self) -> int:
        """Bytes of all parts."""
        return sum(part.length for part in self.parts)

    def part(self, offset: int, length: int) -> Joined:
        """The LENGTH bytes from OFFSET, as what they are parts of."""
        found: list[Source] = []
        for one in self.parts:
            first, last = max(offset, 0), min(offset + length, one.length)
            if first < last:
                found.append(part_of(one, first, last - first))
            offset -= one.length
        return Joined(tuple(found))

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes from OFFSET."""
        found: list[bytes | memoryview] = []
        for part in self.parts:
            if 0 <= offset < part.length and length > 0:
                found.append(part.read(offset, min(length, part.length - offset)))
                length -= len(found[-1])
                offset += len(found[-1])
            offset -= part.length
        return found[0] if len(found) == 1 else b"".join(found)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes of all parts, in pieces."""
        for part in self.parts:
            yield from part.chunks()


@dataclass(frozen=True, slots=True)
class Crc32Of:
    """The CRC-32 of another source as four little-endian bytes (as zip stores it), computed while others are copied."""

    source: Source
    length: int = 4


class Recorded(Source, Protocol):
    """A source whose checksum was recorded where it comes from."""

    @property
    def crc(self) -> int | None:
        """CRC-32 as it was recorded, or None."""

    @property
    def seen(self) -> int | None:
        """CRC-32 of all bytes, if they were taken as they were read; else None."""


@dataclass(frozen=True, slots=True)
class Verify:
    """No bytes, but a request to compare the checksum of SOURCE. All pieces that need SOURCE are written before it.

    Attributes:
        source: the source.
        noted: the dict that takes the checksum that was found, right or wrong; None makes a wrong one an error.
        length: 0.
    """

    source: Recorded
    noted: dict[Recorded, int] | None
    length: int = 0


Piece = Source | Crc32Of | Verify


def is_computed(piece: object) -> TypeGuard[Computed]:
    """Whether a piece is one whose values are computed. (Asking a protocol takes long where there are many pieces.)"""
    return not isinstance(piece, FileRange | Buffer | Crc32Of | Verify) and hasattr(piece, "step")


def nested(source: object) -> Iterator[object]:
    """SOURCE, and all sources and files that it is computed from, once each."""
    pending, seen = [source], set()
    while pending:
        one = pending.pop()
        if isinstance(one, tuple | list):
            pending.extend(reversed(one))
        elif isinstance(one, dict):
            pending.extend(one.values())
        elif id(one) not in seen and (hasattr(type(one), "seen") or (is_dataclass(one) and not isinstance(one, type))):
            seen.add(id(one))
            yield one
            if is_dataclass(one):
                pending.extend(getattr(one, one_field.name) for one_field in reversed(fields(one)))


def files_in(pieces: Iterable[Piece]) -> list[File]:
    """The files that PIECES are copied or computed from, once each."""
    files: dict[int, File] = {}
    for piece in pieces:
        found = [piece.file] if isinstance(piece, FileRange) else nested(piece)
        files.update((id(file), file) for file in found if isinstance(file, File))
    return list(files.values())


class Tally(Protocol):
    """What happened to values while they were computed."""

    def counts(self) -> Sequence[Any]:
        """What was counted, for `add` of another process."""

    def add(self, *counts: Any) -> None:
        """Count what happened elsewhere."""

    def clear(self) -> None:
        """Begin anew."""

    def lines(self) -> list[str]:
        """What a person should know."""


def tallies_in(pieces: Iterable[Piece]) -> list[Tally]:
    """The tallies of what PIECES are computed from, once each."""
    computed = (piece for piece in pieces if is_computed(piece) or isinstance(piece, Joined))
    found = (getattr(inner, "tally", None) for piece in computed for inner in nested(piece))
    return list({id(tally): tally for tally in found if tally is not None}.values())


def crc32(source: Source, value: int = 0) -> int:
    """The CRC-32 of all bytes of SOURCE, read in bounded pieces; that of bytes with the CRC-32 VALUE and these."""
    if isinstance(source, FileRange):  # through one buffer, in steps that leave the copying thread in peace
        buffer = memoryview(bytearray(min(_CHECKED, source.length)))
        for at in range(0, source.length, _CHECKED):
            part = buffer[: source.length - at]
            source.file.read_into(part, source.offset + at)
            value = zlib.crc32(part, value)
        return value
    for chunk in source.chunks():
        value = zlib.crc32(chunk, value)
    return value


def same_bytes(one: Source, other: Source) -> bool:
    """Whether two sources hold the same bytes, read in bounded pieces."""
    if one.length != other.length:
        return False
    return all(
        one.read(at, min(CHUNK, one.length - at)) == other.read(at, min(CHUNK, one.length - at))
        for at in range(0, one.length, CHUNK)
    )


def beside(path: object, word: str, suffix: str | None = None) -> str:
    """A name for an output beside PATH, quoted for a shell, so that a hint is a command that works as it stands.

    Nothing has that name yet; where nothing can be written beside PATH, it is one in the current folder.
    """
    source = Path(str(path) or "in.pth")
    if is_url(path):  # here, under the name that the file has there
        source = Path(re.split(r"[?#]", str(path))[0].partition("://")[2].rstrip("/").rpartition("/")[2] or "in.pth")
    if not source.name:  # "." or "..": beside the folder that it is
        source = Path("..") / source.resolve().name
    ending = source.name[-8:] if source.name.lower().endswith(".pth.tar") else source.suffix  # one ending, of two parts
    stem = source.name[: len(source.name) - len(ending)] or source.stem
    ending = ending if suffix is None else suffix
    folder = source.parent if _may_be_written(source.parent) else Path()
    names = (folder / f"{stem}-{word}{number}{ending}" for number in ("", *(f"-{n}" for n in range(2, _MOST_TAKEN))))
    return shell_path(next((name for name in names if not os.path.lexists(name)), folder / f"{stem}-{word}{ending}"))


#: Names that are tried before one that is taken is proposed.
_MOST_TAKEN = 100


def _may_be_written(folder: Path) -> bool:
    try:
        return os.access(folder, os.W_OK)
    except ValueError:  # a name that no system takes
        return True


def is_folder(path: StrPath) -> bool:
    """Whether there is a folder at PATH. False for names that the system does not take (pathlib raises for those)."""
    return os.path.isdir(path)


def is_file(path: StrPath) -> bool:
    """Whether there is a regular file at PATH. False for names that the system does not take."""
    return os.path.isfile(path)


def is_there(path: StrPath) -> bool:
    """Whether there is something at PATH. False for names that the system does not take."""
    return os.path.exists(path)


def shell_path(path: object) -> str:
    """PATH as one word of a shell. A name that begins like an option does not become one."""
    text = str(path)
    return shell_quote(f"./{text}" if text.startswith("-") else text)


def shell_quote(text: object, limit: int = 4096) -> str:
    """TEXT, cut at LIMIT, as one word of a shell: for the commands in hints.

    What must not reach a terminal is written as bash, zsh and ksh (and POSIX since 2024) read it: $'a\\nb'.
    """
    import shlex

    whole = str(text)
    cut = whole if len(whole) <= limit else whole[: limit - 1] + "…"
    return shlex.quote(cut) if printable(cut, limit) == cut else f"$'{''.join(map(_in_shell, cut))}'"


def _in_shell(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    of_system = "\udc80" <= character <= "\udcff"  # a byte of a name that is not UTF-8
    encoded = character.encode("utf-8", "surrogateescape" if of_system else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def reason(error: BaseException) -> str:
    """What the operating system says, in lower case and without the number."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + text[1:]
