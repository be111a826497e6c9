"""Writing pieces one after the other into an open file."""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from .checksums import checksums
from .composing import Crc32Of, Gap, Joined, Piece, Verify, Zeros, is_computed
from .files import CHUNK, Computed, File, FileRange, Source, crc32

Progress = Callable[[int], None]

#: Bytes per write: many pages, yet few enough to be still in the cache of the processor when they are written.
_STEP = 256 << 10
#: Most threads that compute values, and bytes that are computed ahead of the writing.
_MOST_THREADS = 8
_ON_ITS_WAY = 16 << 20
#: Bytes after which the disk is told to start, and which the kernel copies per call. A multiple of the step.
_AHEAD = 8 << 20
_PAGE = 4096
_FICLONE = 0x40049409  # ioctl that makes one file share all blocks of another (linux/fs.h)


def write_pieces(out: IO[bytes], pieces: Sequence[Piece], progress: Progress | None = None) -> None:
    """Write PIECES one after the other to the empty file OUT.

    When a whole input is kept and only patched, its blocks are shared where the filesystem can do that (btrfs, xfs), so
    that nothing is copied at all. Otherwise see `_Output`.
    """
    flat = list(_flat(pieces))
    shared = _share_blocks(out.fileno(), flat)
    output = _Output(out.fileno(), progress, shared=shared)
    put_pieces(output, pieces)
    if os.fstat(out.fileno()).st_size < output.position:  # it ends with a hole
        os.ftruncate(out.fileno(), output.position)


def put_pieces(output: Output, pieces: Sequence[Piece]) -> None:
    """Append PIECES to an output, and compare their checksums on the way."""
    with checksums(pieces) as sums, _ahead(list(_flat(pieces))) as next_of:
        for piece in pieces:
            end = output.position + piece.length
            if isinstance(piece, Crc32Of):
                output.write((sums.of(piece.source) or 0).to_bytes(4, "little"))
            elif isinstance(piece, Verify):
                sums.verify(piece)
            else:
                crc = output.put(piece, next_of, 0 if sums.missing(piece) else None)
                if crc is not None:
                    sums.note(piece, crc)
            assert output.position == end, f"{piece!r} gave {output.position - end} bytes more than it said"
        output.flush()
        sums.finish()


def write_part(
    out: IO[bytes], pieces: Sequence[Source], wanted: Sequence[bool], at: int, progress: Progress | None = None
) -> list[int | None]:
    """Write PIECES one after the other into the file OUT, from its byte AT on. Nothing else of the file is touched.

    Returns:
        The CRC-32 of each piece that is WANTED; None for the others.
    """
    output = _Output(out.fileno(), progress, at)
    with _ahead(list(_flat(pieces))) as next_of:
        sums = [output.put(piece, next_of, 0 if want else None) for piece, want in zip(pieces, wanted, strict=True)]
    output.flush()
    return sums


def write_runs(
    out: IO[bytes], runs: Iterable[tuple[int, memoryview]], at: int, *, crcs: bool, progress: Progress | None = None
) -> list[tuple[int, int, int]]:
    """Write runs of bytes into the file OUT, each where it belongs, counted from the byte AT.

    Returns:
        Of each run where it begins, its length, and its CRC-32 if CRCS are asked for, else 0.
    """
    done = []
    started = unstarted = 0
    for begin, data in runs:
        _write_at(out.fileno(), data, at + begin)
        done.append((begin, len(data), zlib.crc32(data) if crcs else 0))
        unstarted += len(data)
        if unstarted >= _AHEAD and hasattr(os, "posix_fadvise"):  # see `_Output._start_writeback`
            with contextlib.suppress(OSError):
                os.posix_fadvise(out.fileno(), at + started, begin + len(data) - started, os.POSIX_FADV_DONTNEED)
            started, unstarted = begin + len(data), 0
        if progress:
            progress(len(data))
    return done


def _flat(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """PIECES with joined ones taken apart, so that the kernel can copy their parts."""
    for piece in pieces:
        if isinstance(piece, Joined):
            yield from _flat(piece.parts)
        else:
            yield piece


class Output(abc.ABC):
    """Where bytes go, in order.

    Attributes:
        position: where the next byte goes.
        shared: a file whose bytes are in the output already, if there is one.
    """

    position = 0
    shared: File | None = None

    def put(self, piece: Source, next_of: _Next, crc: int | None) -> int | None:
        """Append a piece. Returns the checksum of what had the checksum CRC and this, or None for None.

        NEXT_OF gives the values of a piece that is computed.
        """
        if isinstance(piece, Joined):
            for part in piece.parts:
                crc = self.put(part, next_of, crc)
        elif isinstance(piece, FileRange) and piece.file is self.shared and piece.offset == self.position:
            self.skip(piece.length)
            return None
        elif isinstance(piece, Gap):
            self.skip(piece.length)
        elif isinstance(piece, FileRange) and not piece.file.far:
            return self.copy(piece, crc)
        else:
            for chunk in next_of(piece) if is_computed(piece) and piece.length else piece.chunks():
                crc = None if crc is None else zlib.crc32(chunk, crc)
                self.write(chunk)
        return crc

    @abc.abstractmethod
    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    @abc.abstractmethod
    def copy(self, piece: FileRange, crc: int | None = None) -> int | None:
        """Append a range of an input. Where CRC is the checksum of what is before it, returns that of both."""

    @abc.abstractmethod
    def skip(self, length: int) -> None:
        """Leave LENGTH bytes as they are."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Bring all bytes to where they go."""


class _Output(Output):
    """The file being written, from its beginning to its end.

    Two things decide about its speed. Every write ends at a multiple of the step, so that whole pages are filled: what
    is small, or has to move by less than a page, goes through a buffer; long ranges that keep their place within a page
    are copied by the kernel. And the disk starts while there is still something to copy, not at the final fsync.
    """

    def __init__(self, fd: int, progress: Progress | None, at: int = 0, shared: File | None = None) -> None:
        """AT is the place of the first byte; the blocks of the file SHARED are in the output already."""
        self.position = at  # where the next byte goes
        self._fd = fd
        self._progress = progress
        self.shared = shared
        self._buffer = memoryview(bytearray(_STEP))
        self._filled = 0  # bytes at the start of the buffer that are not in the file yet
        self._started = at  # what is before this is on its way to the disk
        self._in_kernel = hasattr(os, "copy_file_range")

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while view:
            room = self._room(len(view))
            room[:] = view[: len(room)]
            self._advance(len(room))
            view = view[len(room) :]

    def copy(self, piece: FileRange, crc: int | None = None) -> int | None:
        """Append a range of an input. Where CRC is the checksum of what is before it, returns that of both."""
        source, offset, end = piece.file, piece.offset, piece.offset + piece.length
        solid = offset if source.is_sparse else end  # before this there is no hole
        while offset < end:
            if offset >= solid:
                begin, solid = source.next_data(offset, end)
                if begin - offset >= _STEP:
                    self.skip(begin - offset)  # a hole stays one
                    crc = None if crc is None else crc32(Zeros(begin - offset), crc)
                    offset = begin
                    continue
                solid = max(solid, begin)
            done = 0
            whole_pages = solid - offset >= _STEP and not self._filled and (offset - self.position) % _PAGE == 0
            if crc is None and whole_pages:
                done = self._copy_in_kernel(source, offset, min(solid - offset, _AHEAD - self.position % _AHEAD))
            if not done:
                room = self._room(solid - offset)
                source.read_into(room, offset)
                crc = None if crc is None else zlib.crc32(room, crc)
                done = len(room)
                self._advance(done)
            offset += done
        return crc

    def skip(self, length: int) -> None:
        """Leave LENGTH bytes as they are: those of a shared block, or of a hole."""
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
        if not self._in_kernel or source.fd < 0:
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


_Next = Callable[[Computed], Iterator[bytes | memoryview]]


@contextlib.contextmanager
def _ahead(pieces: Sequence[Piece]) -> Iterator[_Next]:
    """Compute the values of PIECES (of those that are computed) in threads, in order, a little ahead of the writing.

    What is on its way at any time is bounded in bytes, so memory does not grow with the file.
    """
    computed = [piece for piece in pieces if is_computed(piece) and piece.length]
    if sum(piece.length for piece in computed) < CHUNK:
        yield lambda piece: piece.chunks()
        return
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    jobs = (
        (piece, at, min(piece.step, piece.length - at))
        for piece in computed
        for at in range(0, piece.length, piece.step)
    )
    pending: deque[Future[bytes | memoryview]] = deque()
    on_its_way = 0
    following = next(jobs, None)
    workers = min(os.cpu_count() or 1, _MOST_THREADS)

    def refill() -> None:
        nonlocal on_its_way, following
        while following is not None and (not pending or on_its_way + following[2] <= _ON_ITS_WAY):
            piece, at, length = following
            pending.append(pool.submit(piece.read, at, length))
            on_its_way += length
            following = next(jobs, None)

    def chunks(piece: Computed) -> Iterator[bytes | memoryview]:
        nonlocal on_its_way
        for at in range(0, piece.length, piece.step):
            refill()
            value = pending.popleft().result()
            on_its_way -= min(piece.step, piece.length - at)
            refill()
            yield value

    with ThreadPoolExecutor(workers, "compute") as pool:
        try:
            yield chunks
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _share_blocks(fd: int, pieces: Sequence[Piece]) -> File | None:
    """Make the output share all blocks of the input that it is a patched copy of. None if it is not, or it cannot."""
    position = 0
    base: File | None = None
    for piece in pieces:
        if isinstance(piece, FileRange) and piece.offset == position and base is None:
            base = piece.file
        position += piece.length
    if base is None or base.fd < 0 or base.size != position:
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


def room_for(pieces: Iterable[Piece]) -> int:
    """Bytes that PIECES take on a disk, where the holes of inputs stay holes."""
    total = 0
    sparse: dict[int, tuple[int, int]] = {}  # file -> its holes, and the bytes that are taken from it
    for piece in _flat(pieces):
        total += piece.length
        if isinstance(piece, FileRange) and piece.file.is_sparse:
            taken = sparse.get(id(piece.file), (0, 0))[1] + piece.length
            sparse[id(piece.file)] = piece.file.holes, taken
    return total - sum(min(holes, taken) for holes, taken in sparse.values())
