"""Writing pieces one after the other into an open file."""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from .checksums import Checksums, checksums, crc32, crc32_of, joined_crc32
from .composing import Crc32Of, Gap, Joined, Piece, Verify, Zeros, flat, is_computed, patched_input
from .files import CHUNK, Buffer, Computed, File, FileRange, Source
from .interrupts import put_off_signals

Progress = Callable[[int], None]

#: Bytes per write: many pages, yet no large block of memory, for which a virtual machine may have to wait.
_STEP = 256 << 10
#: Bytes of a buffer: so many that a thread which writes them is rarely woken. A multiple of the step.
_BUFFER = 1 << 20
#: Most threads that compute values, and bytes that are computed ahead of the writing.
_MOST_THREADS = 8
_ON_ITS_WAY = 16 << 20
#: Bytes that go through buffers before a thread writes them.
_MUCH = 4 << 20
#: Buffers of one file: one that is filled, one that is written, and what waits between.
_BUFFERS = 3
#: Bytes after which the disk is told to start, and which the kernel copies per call. A multiple of the step.
_AHEAD = 8 << 20
_PAGE = 4096
#: Requests (ioctl) that make one file share all blocks of another, or those of a range (linux/fs.h).
_FICLONE = 0x40049409
_FICLONERANGE = 0x4020940D
#: Why a kernel may refuse to share or to copy: between these filesystems, on this one, or at all.
_REFUSED = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ENOTTY, errno.EBADF)


def write_pieces(
    out: IO[bytes],
    pieces: Sequence[Piece],
    progress: Progress | None = None,
    *,
    unshared: Callable[[], None] = lambda: None,
) -> None:
    """Write PIECES one after the other to the empty file OUT.

    When a whole input is kept and only patched, its blocks are shared where the filesystem can do that (btrfs, xfs), so
    that nothing is copied at all. Where that cannot be, UNSHARED is called first. Otherwise see `_Output`.
    """
    shared = _share_blocks(out.fileno(), pieces)
    if shared is None:
        unshared()
    with _Output(out.fileno(), progress, shared=shared) as output:
        put_pieces(output, pieces)
    if os.fstat(out.fileno()).st_size < output.position:  # it ends with a hole
        os.ftruncate(out.fileno(), output.position)


def put_pieces(output: Output, pieces: Sequence[Piece]) -> None:
    """Append PIECES to an output, and compare their checksums on the way."""
    with checksums(pieces) as sums, _ahead(flat(pieces)) as next_of:
        for piece in pieces:
            if type(piece) is Buffer and not sums.missing(piece):  # as most are, of many tensors
                output.write(piece.data)
                continue
            end = output.position + piece.length
            if isinstance(piece, Crc32Of):
                output.write((sums.of(piece.source) or 0).to_bytes(4, "little"))
            elif isinstance(piece, Verify):
                sums.verify(piece)
            else:
                _put(output, piece, next_of, sums)
            assert output.position == end, f"{piece!r} gave {output.position - end} bytes more than it said"
        output.flush()
        sums.finish()


def _put(output: Output, piece: Source, next_of: _Next, sums: Checksums) -> None:
    """Append a piece, and note the checksums that are missing: its own, and those of its parts if it is joined."""
    wanted = sums.missing(piece)
    parts = flat(piece.parts) if isinstance(piece, Joined) else ()
    if parts and any(map(sums.missing, parts)):
        whole = 0
        for part in parts:
            crc = output.put(part, next_of, 0 if wanted or sums.missing(part) else None)
            crc = crc32_of(part) if crc is None and wanted else crc
            if crc is not None:
                sums.note(part, crc)
                whole = joined_crc32(whole, crc, part.length) if wanted else 0
        if wanted:
            sums.note(piece, whole)
        return
    crc = output.put(piece, next_of, 0 if wanted else None)
    if crc is not None:
        sums.note(piece, crc)


def write_part(
    out: IO[bytes], pieces: Sequence[Source], wanted: Sequence[bool], at: int, progress: Progress | None = None
) -> list[int | None]:
    """Write PIECES one after the other into the file OUT, from its byte AT on. Nothing else of the file is touched.

    Returns:
        The CRC-32 of each piece that is WANTED; None for the others.
    """
    with _Output(out.fileno(), progress, at) as output, _ahead(flat(pieces)) as next_of:
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
        write_at(out.fileno(), data, at + begin)
        done.append((begin, len(data), crc32(data) if crcs else 0))
        unstarted += len(data)
        if unstarted >= _AHEAD and hasattr(os, "posix_fadvise"):  # see `_Output._start_writeback`
            with contextlib.suppress(OSError):
                os.posix_fadvise(out.fileno(), at + started, begin + len(data) - started, os.POSIX_FADV_DONTNEED)
            started, unstarted = begin + len(data), 0
        if progress:
            progress(len(data))
    return done


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
                crc = None if crc is None else crc32(chunk, crc)
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

    Three things decide about its speed. Every write ends at a multiple of the step, so that whole pages are filled:
    what is small, or has to move by less than a page, goes through a buffer; long ranges that keep their place within a
    page are copied by the kernel. Where much goes through buffers, a thread writes one while the next one is filled,
    which takes as long: bytes are read, and their checksum is taken. And the disk starts while there is still something
    to copy, not at the final fsync.
    """

    def __init__(self, fd: int, progress: Progress | None, at: int = 0, shared: File | None = None) -> None:
        """AT is the place of the first byte; the blocks of the file SHARED are in the output already."""
        self.position = at  # where the next byte goes
        self._fd = fd
        self._progress = progress
        self.shared = shared
        self._buffer = memoryview(bytearray(_BUFFER))
        self._filled = 0  # bytes at the start of the buffer that are not in the file yet
        self._through_buffers = 0  # bytes
        self._thread: _FullBuffers | None = None
        self._started = at  # what is before this is on its way to the disk
        self._in_kernel = _ways_in_kernel()
        self._sharing = True

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.end()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        size = len(data)
        if type(data) is bytes and size < _BUFFER - self.position % _BUFFER:  # as the small pieces between tensors
            self._buffer[self._filled : self._filled + size] = data
            self._filled += size
            self.position += size
            self._report(size)
            return
        view = memoryview(data).cast("B") if size else memoryview(b"")
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
                    crc = None if crc is None else crc32_of(Zeros(begin - offset), crc)
                    offset = begin
                    continue
                solid = max(solid, begin)
            done = 0
            whole_pages = crc is None and solid - offset >= _STEP and (offset - self.position) % _PAGE == 0
            if whole_pages and self.position % _STEP == 0 and self._filled:
                self._hand_over()
            if whole_pages and not self._filled:
                self._settle()
                done = self._share(source, offset, solid - offset)
                if not done:
                    done = self._copy_in_kernel(source, offset, min(solid - offset, _AHEAD - self.position % _AHEAD))
            if not done:
                left_in_step = _STEP - self.position % _STEP  # behind which the kernel may copy
                room = self._room(left_in_step if whole_pages else solid - offset)
                source.read_into(room, offset)
                crc = None if crc is None else crc32(room, crc)
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
        """Bring all buffers into the file."""
        self._settle()
        if self._filled:
            self._write(self._fd, self._buffer[: self._filled], self.position - self._filled)
            self._filled = 0

    def _settle(self) -> None:
        """Wait until full buffers are written."""
        if self._thread is not None:
            self._thread.wait()

    def _hand_over(self) -> None:
        """Have the full buffer written: by the thread, if much goes through buffers."""
        self._through_buffers += self._filled
        if self._thread is None and self._through_buffers > _MUCH and hasattr(os, "pwrite"):
            self._thread = _FullBuffers(self._fd, _BUFFER, self._write)
        if self._thread is None:
            self.flush()
        else:
            self._buffer = self._thread.put(self._buffer, self._filled, self.position - self._filled)
            self._filled = 0

    def _write(self, fd: int, data: memoryview, position: int) -> None:
        """Write what was in a buffer. The thread calls this, and nothing else writes meanwhile."""
        end = position + len(data)
        while position < end:
            done = min(_STEP - position % _STEP, end - position)
            write_at(fd, data[:done], position)
            data, position = data[done:], position + done
        self._start_writeback(fd, end)

    def _room(self, wanted: int) -> memoryview:
        """Up to WANTED bytes of the buffer, for what comes next, but not beyond the end of the step."""
        return self._buffer[self._filled : self._filled + min(wanted, _BUFFER - self.position % _BUFFER)]

    def _advance(self, length: int) -> None:
        """LENGTH bytes were put into the buffer."""
        self._filled += length
        self.position += length
        if self.position % _BUFFER == 0:
            self._hand_over()
        self._report(length)

    def _share(self, source: File, offset: int, length: int) -> int:
        """Let the output share up to LENGTH bytes with the input: whole blocks, at places that are multiples of one.

        0 if it cannot. (`copy_file_range` shares them as well, in pieces of what is written between two looks at the
        disk, each of which is a change of the filesystem.)
        """
        end = offset + length
        length = length if end == source.size else length // _PAGE * _PAGE
        if not self._sharing or source.fd < 0 or offset % _PAGE or self.position % _PAGE or length < _STEP:
            return 0
        try:
            import fcntl

            fcntl.ioctl(self._fd, _FICLONERANGE, struct.pack("=qQQQ", source.fd, offset, length, self.position))
        except ImportError:
            self._sharing = False
            return 0
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self._sharing = False
            return 0
        self.position = self._started = self.position + length
        self._report(length)
        return length

    def _copy_in_kernel(self, source: File, offset: int, length: int) -> int:
        """Copy up to LENGTH bytes. 0 if the kernel cannot, between these filesystems or at all."""
        done = 0
        while self._in_kernel and source.fd >= 0:
            try:
                done = self._in_kernel[0](source.fd, self._fd, length, offset, self.position)
                break
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                self._in_kernel.pop(0)
        if not done:
            return 0
        self.position += done
        self._start_writeback(self._fd, self.position)
        self._report(done)
        return done

    def _start_writeback(self, fd: int, end: int) -> None:
        """Let the disk begin with what has been written. On Linux this is what DONTNEED does with unwritten pages."""
        if end - self._started >= _AHEAD and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, self._started, end - self._started, os.POSIX_FADV_DONTNEED)
            self._started = end

    def _report(self, length: int) -> None:
        if self._progress:
            self._progress(length)


class _FullBuffers:
    """Buffers that a thread writes, in order, while the next ones are filled.

    The thread has a descriptor of its own: whatever becomes of the caller's, it writes into no other file. The buffers
    are not sent faster than they are written, so memory is bounded.

    Args:
        fd: the file.
        length: bytes of a buffer.
        write: writes bytes into a file: (descriptor, bytes, place).
    """

    def __init__(self, fd: int, length: int, write: Callable[[int, memoryview, int], None]) -> None:
        import queue
        import threading

        self._write = write
        self._full: queue.SimpleQueue[tuple[memoryview, int, int] | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(_BUFFERS - 1):  # the caller has one
            self._free.put(memoryview(bytearray(length)))
        self._failure: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(os.dup(fd),), name="write", daemon=True)
        self._thread.start()

    def put(self, buffer: memoryview, length: int, position: int) -> memoryview:
        """Have the first LENGTH bytes of BUFFER written at a place. Returns another buffer, which is free.

        Raises:
            OSError: what was put before could not be written.
        """
        self._full.put((buffer, length, position))
        other = self._free.get()
        self._require_written()
        return other

    def wait(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: it could not be.
        """
        for buffer in [self._free.get() for _ in range(_BUFFERS - 1)]:
            self._free.put(buffer)
        self._require_written()

    def end(self) -> None:
        """Write nothing any more, and end the thread."""
        self._stopped = True
        self._full.put(None)
        with put_off_signals():
            self._thread.join()

    def _require_written(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self, fd: int) -> None:
        try:
            while (job := self._full.get()) is not None:
                buffer, length, position = job
                if self._failure is None and not self._stopped:
                    try:
                        self._write(fd, buffer[:length], position)
                    except BaseException as error:
                        self._failure = error
                self._free.put(buffer)
        finally:
            os.close(fd)


#: Copies bytes from one open file to another: (from, to, length, place there, place here) -> how many were copied.
_InKernel = Callable[[int, int, int, int, int], int]


def _ways_in_kernel() -> list[_InKernel]:
    """How the kernel copies, the best first: `copy_file_range` within a filesystem, `sendfile` from one to another."""
    ways: list[_InKernel] = [os.copy_file_range] if hasattr(os, "copy_file_range") else []
    return [*ways, _send] if sys.platform == "linux" else ways


def _send(source: int, to: int, length: int, offset: int, position: int) -> int:
    os.lseek(to, position, os.SEEK_SET)
    return os.sendfile(to, source, offset, length)


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
    base = patched_input(pieces)
    if base is None:
        return None
    try:
        import fcntl

        fcntl.ioctl(fd, _FICLONE, base.fd)
    except (ImportError, OSError):
        return None
    return base


def write_at(fd: int, data: bytes | memoryview, position: int) -> None:
    """Write all of DATA into an open file, from a place on."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if not hasattr(os, "pwrite"):
        os.lseek(fd, position, os.SEEK_SET)
    while view:
        done = os.pwrite(fd, view, position) if hasattr(os, "pwrite") else os.write(fd, view)
        view = view[done:]
        position += done
