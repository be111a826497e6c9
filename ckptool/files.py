"""Byte ranges of files, copying them in the kernel, and replacing a file so that it is whole or untouched.

What will be written is described by *pieces*, in order, each with a `length`:

- `FileRange`: bytes of an open input file, which are copied, by the kernel where that is the faster way,
- `Buffer`: bytes in memory,
- any other `Source`, whose `chunks()` are computed while writing (a strided tensor, say),
- `Crc32Of`: the four bytes of a checksum, known only once another piece has been read.

Nothing here knows what a checkpoint is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from .errors import Malformed, OutputExists, RuleError, Unreadable, Unwritable, printable

StrPath = str | os.PathLike[str]
Progress = Callable[[int], None]

#: Bytes read into memory at once where bytes must pass through this process.
CHUNK = 4 << 20
#: Bytes per write: many pages, yet few enough to be still in the cache of the processor when they are written.
_STEP = 256 << 10
#: Bytes after which the disk is told to start, and which the kernel copies per call. A multiple of the step.
_AHEAD = 8 << 20
_PAGE = 4096
#: Bytes of a checksum that are read at once.
_CHECKED = 1 << 20
_FICLONE = 0x40049409  # ioctl that makes one file share all blocks of another (linux/fs.h)


class File:
    """A regular file open for reading at any offset, by several threads at once.

    Raises:
        Unreadable: if PATH is absent, a folder, a device, a pipe, or may not be read. A pipe is refused at once
            instead of blocking.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            self.fd = os.open(path, flags)
        except (OSError, ValueError) as error:
            raise Unreadable(_reason(error), where=path) from None
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self.fd)
            self.fd = -1
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise Unreadable(f"is {kind}", where=path)
        self.size = found.st_size
        self.mode = stat.S_IMODE(found.st_mode)
        self.identity = (found.st_dev, found.st_ino)

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly LENGTH bytes from OFFSET.

        Raises:
            Malformed: if the file ends before that.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(
                f"ends at byte {self.size:,}, but bytes {offset:,} to {offset + length:,} are needed",
                where=self.path,
                hint="the download or copy did not finish; compare the size with the source",
            )
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
        return b"".join(parts)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW with the bytes from OFFSET, as `read` does, into memory that is there already."""
        done = os.preadv(self.fd, [view], offset) if hasattr(os, "preadv") else 0
        if done < len(view):
            view[done:] = self.read(offset + done, len(view) - done)

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


@dataclass(frozen=True, slots=True)
class FileRange:
    """LENGTH bytes of FILE from OFFSET."""

    file: File
    offset: int
    length: int

    def read(self, offset: int, length: int) -> bytes:
        """Return LENGTH bytes from OFFSET of this range."""
        return self.file.read(self.offset + offset, length)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most CHUNK."""
        for at in range(0, self.length, CHUNK):
            yield self.read(at, min(CHUNK, self.length - at))

    def part(self, offset: int, length: int) -> FileRange:
        """The LENGTH bytes from OFFSET of this range, as a range."""
        return FileRange(self.file, self.offset + offset, length)


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
class Crc32Of:
    """The CRC-32 of another source as four little-endian bytes (as zip stores it), computed while others are copied."""

    source: Source
    length: int = 4


Piece = Source | Crc32Of


def crc32(source: Source) -> int:
    """The CRC-32 of all bytes of SOURCE, read in bounded pieces."""
    value = 0
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


def write_pieces(out: IO[bytes], pieces: Sequence[Piece], progress: Progress | None = None) -> None:
    """Write PIECES one after the other to the empty file OUT.

    When a whole input is kept and only patched, its blocks are shared where the filesystem can do that (btrfs, xfs), so
    that nothing is copied at all. Otherwise see `_Output`.
    """
    shared = _share_blocks(out.fileno(), pieces)
    output = _Output(out.fileno(), progress)
    with _checksums(pieces) as checksum_of:
        for piece in pieces:
            end = output.position + piece.length
            if isinstance(piece, Crc32Of):
                output.write(checksum_of(piece.source).to_bytes(4, "little"))
            elif isinstance(piece, FileRange):
                if piece.file is shared and piece.offset == output.position:
                    output.skip(piece.length)
                else:
                    output.copy(piece)
            else:
                for chunk in piece.chunks():
                    output.write(chunk)
            assert output.position == end, f"{piece!r} gave {output.position - end} bytes more than it said"
        output.flush()


class _Output:
    """The file being written, from its beginning to its end.

    Two things decide about its speed. Every write ends at a multiple of the step, so that whole pages are filled: what
    is small, or has to move by less than a page, goes through a buffer; long ranges that keep their place within a page
    are copied by the kernel. And the disk starts while there is still something to copy, not at the final fsync.
    """

    def __init__(self, fd: int, progress: Progress | None) -> None:
        self.position = 0  # where the next byte goes
        self._fd = fd
        self._progress = progress
        self._buffer = memoryview(bytearray(_STEP))
        self._filled = 0  # bytes at the start of the buffer that are not in the file yet
        self._started = 0  # what is before this is on its way to the disk
        self._in_kernel = hasattr(os, "copy_file_range")

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while view:
            room = self._room(len(view))
            room[:] = view[: len(room)]
            self._advance(len(room))
            view = view[len(room) :]

    def copy(self, piece: FileRange) -> None:
        """Append a range of an input."""
        source, offset, end = piece.file, piece.offset, piece.offset + piece.length
        while offset < end:
            done = 0
            if end - offset >= _STEP and not self._filled and (offset - self.position) % _PAGE == 0:
                done = self._copy_in_kernel(source, offset, min(end - offset, _AHEAD - self.position % _AHEAD))
            if not done:
                room = self._room(end - offset)
                source.read_into(room, offset)
                done = len(room)
                self._advance(done)
            offset += done

    def skip(self, length: int) -> None:
        """Leave LENGTH bytes as they are."""
        self.flush()
        self.position = self._started = self.position + length
        self._report(length)

    def flush(self) -> None:
        """Bring the buffer into the file."""
        if self._filled:
            _write_at(self._fd, self._buffer[: self._filled], self.position - self._filled)
            self._filled = 0
        self._start_writeback()

    def _room(self, wanted: int) -> memoryview:
        """Up to WANTED bytes of the buffer, for what comes next, but not beyond the end of the step."""
        return self._buffer[self._filled : self._filled + min(wanted, _STEP - self.position % _STEP)]

    def _advance(self, length: int) -> None:
        """LENGTH bytes were put into the buffer."""
        self._filled += length
        self.position += length
        if self.position % _STEP == 0:
            self.flush()
        self._report(length)

    def _copy_in_kernel(self, source: File, offset: int, length: int) -> int:
        """Copy up to LENGTH bytes. 0 if the kernel cannot, between these filesystems or at all."""
        if not self._in_kernel:
            return 0
        try:
            done = os.copy_file_range(source.fd, self._fd, length, offset, self.position)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
            self._in_kernel = False
            return 0
        self.position += done
        self._start_writeback()
        self._report(done)
        return done

    def _start_writeback(self) -> None:
        """Let the disk begin with what has been written. On Linux this is what DONTNEED does with unwritten pages."""
        if self.position - self._started >= _AHEAD and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, self._started, self.position - self._started, os.POSIX_FADV_DONTNEED)
            self._started = self.position

    def _report(self, length: int) -> None:
        if self._progress:
            self._progress(length)


@contextlib.contextmanager
def _checksums(pieces: Sequence[Piece]) -> Iterator[Callable[[Source], int]]:
    """Compute the checksums that PIECES ask for in a thread, beside the copying, small ones in batches.

    One thread: a second one was measured to take more from the copying than it gives.
    """
    wanted = {id(p.source): p.source for p in pieces if isinstance(p, Crc32Of)}
    if sum(source.length for source in wanted.values()) < CHUNK:
        yield crc32
        return
    from concurrent.futures import ThreadPoolExecutor

    batches: list[list[Source]] = []
    room = 0
    for source in wanted.values():
        if room <= 0:
            batches.append([])
            room = CHUNK
        batches[-1].append(source)
        room -= source.length
    with ThreadPoolExecutor(1, "crc32") as pool:
        futures = {}
        for batch in batches:
            future = pool.submit(lambda batch: {id(source): crc32(source) for source in batch}, batch)
            futures.update(dict.fromkeys(map(id, batch), future))
        try:
            yield lambda source: futures[id(source)].result()[id(source)]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _share_blocks(fd: int, pieces: Sequence[Piece]) -> File | None:
    """Make the output share all blocks of the input that it is a patched copy of. None if it is not, or it cannot."""
    position = 0
    base: File | None = None
    for piece in pieces:
        if isinstance(piece, FileRange) and piece.offset == position and base is None:
            base = piece.file
        position += piece.length
    if base is None or base.size != position:
        return None
    try:
        import fcntl

        fcntl.ioctl(fd, _FICLONE, base.fd)
    except (ImportError, OSError):
        return None
    return base


def _write_at(fd: int, data: bytes | memoryview, position: int) -> None:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if not hasattr(os, "pwrite"):
        os.lseek(fd, position, os.SEEK_SET)
    while view:
        done = os.pwrite(fd, view, position) if hasattr(os, "pwrite") else os.write(fd, view)
        view = view[done:]
        position += done


@contextlib.contextmanager
def replacing(
    path: StrPath,
    *,
    size: int | None = None,
    overwrite: bool = False,
    backup: str | None = None,
    mode: int = 0o666,
) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes PATH when the block ends well, and vanishes when it does not.

    The temporary file stands in the folder of the real target (links are followed), is synced to disk before it is
    renamed, and takes over the mode of the file that it replaces. Whatever happens, PATH is the old file or the new.

    Args:
        path: the target.
        size: bytes that will be written, to refuse early when the disk has no room.
        overwrite: allow the target to exist.
        backup: suffix under which the old target is kept.
        mode: of a new file, before the umask; a file that is replaced keeps its own.

    Raises:
        OutputExists: the target (or the backup) exists and OVERWRITE is false.
        Unwritable: no such folder, no permission, no room, or the target is no regular file.
    """
    target = _real(path)
    old = check_target(path, overwrite=overwrite)
    kept = check_backup(path, backup) if old else None
    temporary = target.with_name(f".{target.name[:200]}.{os.urandom(4).hex()}.ckptool-tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        _require_room(target, size)
        out = os.fdopen(os.open(temporary, flags, mode), "wb", buffering=0)
    except OSError as error:
        raise Unwritable(_reason(error), where=path) from None
    try:
        with out:
            if old is not None:
                os.chmod(temporary, stat.S_IMODE(old.st_mode))
            yield out
            os.fsync(out.fileno())
        if kept is not None:
            _keep(target, kept)
        if old is None and not overwrite:
            _rename_to_new(temporary, target, path)
        else:
            temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, (Unwritable, OutputExists, Unreadable)):
            raise Unwritable(_reason(error), where=path) from None
        raise
    _sync_folder(target.parent)


def check_target(path: StrPath, *, overwrite: bool = False) -> os.stat_result | None:
    """Refuse a target that cannot or must not be written, before any work is done. Returns its status if it exists."""
    target = _real(path)
    if os.fspath(path).endswith(("/", os.sep)):
        raise Unwritable("is a folder, not a file name", where=path)
    try:
        old = target.stat()
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise Unwritable(
                f"the folder {target.parent.name or target.parent} does not exist",
                where=path,
                hint=f"mkdir -p {shell_quote(os.path.dirname(os.fspath(path)) or '.')}",
            ) from None
        if not os.access(target.parent, os.W_OK):
            raise Unwritable("the folder may not be written to", where=path) from None
        return None
    except (OSError, ValueError) as error:
        raise Unwritable(_reason(error), where=path) from None
    if not stat.S_ISREG(old.st_mode):
        raise Unwritable(f"is {'a folder' if stat.S_ISDIR(old.st_mode) else 'not a regular file'}", where=path)
    if not overwrite:
        raise OutputExists("exists already", where=path, hint="add --overwrite, or choose another name")
    return old


def beside(path: object, word: str, suffix: str | None = None) -> str:
    """A name for an output beside PATH, quoted for a shell, so that a hint is a command that works as it stands."""
    source = Path(str(path) or "in.pth")
    return shell_quote(source.with_name(f"{source.stem}-{word}{source.suffix if suffix is None else suffix}"))


def _real(path: StrPath) -> Path:
    """Where PATH leads when links are followed. It need not exist."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # a NUL in the name
        raise Unwritable(_reason(error), where=path) from None


def check_backup(path: StrPath, suffix: str | None) -> Path | None:
    """Where the old file at PATH is kept under SUFFIX, or None if it is not. An existing backup is never replaced."""
    if suffix is None:
        return None
    target = Path(os.path.realpath(path))
    kept = target.with_name(target.name + suffix)
    if not suffix or "/" in suffix or os.sep in suffix:
        raise RuleError("the suffix of a backup is empty or holds a slash", where="--backup", hint="--backup .bak")
    if os.path.lexists(kept):
        raise OutputExists(f"its backup {kept.name} exists already", where=path, hint="choose another --backup suffix")
    return kept


def shell_quote(text: object) -> str:
    """TEXT as one word of a POSIX shell, for the commands in hints."""
    import shlex

    return shlex.quote(printable(str(text), 4096))


def _require_room(target: Path, size: int | None) -> None:
    if size is None or not hasattr(os, "statvfs"):
        return
    disk = os.statvfs(target.parent)
    free = disk.f_bavail * disk.f_frsize
    if size > free and disk.f_blocks:
        raise OSError(errno.ENOSPC, f"no room: {size:,} bytes are needed, {free:,} are free")


def _keep(target: Path, kept: Path) -> None:
    """Give the old target a second name, so that it is at its place until the new one takes it."""
    try:
        os.link(target, kept)
    except FileExistsError:
        raise OutputExists(f"its backup {kept.name} was made meanwhile", where=target) from None
    except OSError:  # a filesystem without hard links
        import shutil

        shutil.copy2(target, kept)


def _rename_to_new(temporary: Path, target: Path, path: StrPath) -> None:
    """Rename without ever replacing a file that somebody else made meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise OutputExists("was made by somebody else meanwhile", where=path, hint="add --overwrite") from None
    except OSError:  # a filesystem without hard links
        temporary.replace(target)
    else:
        temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable. Where folders cannot be opened (Windows) or synced there is no way to."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _reason(error: BaseException) -> str:
    """What the operating system says, in lower case and without the number."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + text[1:]
