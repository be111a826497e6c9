"""Files that are open for reading, byte ranges of them, and other sources of bytes.

Nothing here knows what a checkpoint is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..errors import Malformed, NoSuchFile, Unreadable
from ..records import record
from .addresses import StrPath as StrPath
from .addresses import model_hint
from .paths import beside as beside
from .paths import is_file as is_file
from .paths import is_folder as is_folder
from .paths import is_there as is_there
from .paths import near_name_hint
from .paths import reason as reason
from .paths import shell_path as shell_path
from .paths import shell_quote as shell_quote

#: Bytes read into memory at once where bytes must pass through this process.
CHUNK = 4 << 20
#: Bytes of a part of a file that are read at once, since most of them will be looked at.
_SMALL = 8 << 10
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

    #: What is read in its place, since ckptool itself changed bytes of it meanwhile.
    _before: File | None = None

    #: All its bytes, if they are in memory.
    _held: bytes | None = None

    def __init__(self, path: StrPath, descriptor: int | None = None) -> None:
        self.path = path if isinstance(path, Path) else Path(path)
        try:
            self.fd = open_descriptor(path, READING) if descriptor is None else descriptor
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError):
                raise NoSuchFile(reason(error), where=path, hint=model_hint(path) or near_name_hint(path)) from None
            raise Unreadable(reason(error), where=path) from None
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
        if self._before is not None:
            return self._before.read(offset, length)
        if self._held is not None:
            return self._held[offset : offset + length]
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

    def hold(self, most: int) -> None:
        """Read it whole, once, if it has no more than MOST bytes: for those who look at it in many small parts."""
        if self.fd >= 0 and self.size <= most:
            self._held = self.read(0, self.size)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW with the bytes from OFFSET, as `read` does, into memory that is there already."""
        try:
            done = os.preadv(self.fd, [view], offset) if self.fd >= 0 and hasattr(os, "preadv") else 0
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
        if self._before is not None:
            return self._before.is_unchanged()
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

    def note_patched(self, before: File) -> None:
        """Read from now on what the file BEFORE holds, since ckptool itself changed bytes of this one.

        BEFORE takes over the descriptor.
        """
        self._before = before
        self.modified, self.holes = before.modified, before.holes
        self.fd = -1  # whoever reads past BEFORE would see the patch

    def close(self) -> None:
        """Close the file. Storages that were not read yet can no longer be read."""
        if self._before is not None:
            self._before.close()
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


@record(frozen=True, slots=True)
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


def same_bytes(one: Source, other: Source) -> bool:
    """Whether two sources hold the same bytes, read in bounded pieces."""
    if one.length != other.length:
        return False
    return all(
        one.read(at, min(CHUNK, one.length - at)) == other.read(at, min(CHUNK, one.length - at))
        for at in range(0, one.length, CHUNK)
    )
