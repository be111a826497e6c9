"""Files elsewhere, read in parts: what is asked for crosses the network, and little else.

How a file is asked for is the business of a `Fetcher`: over HTTP, of an object store, of the hub. Here is what they
have in common:

- few bytes (headers, the directory of an archive, pickles) come in blocks, which are kept,
- many bytes come as they are asked for; where one read goes on behind another, from a long answer, or from several
  requests that are on their way at once (see `ckptool.disk.ahead`),
- what breaks off is asked for again, a few times, after a pause,
- what was read is counted.

Memory is bounded: `_STREAMS` long reads at a time, whichever files they are of, each with `_WINDOW` bytes that were
read and what is on its way.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ..errors import Malformed, Unreadable
from ..records import record
from .addresses import Url
from .files import File

#: Seconds before each new try of a request that broke off or found the server busy.
PAUSES = (0.5, 2.0)
#: Bytes that are asked for when a file is opened, unless somebody knows better.
FIRST = 64 << 10
#: Requests for small parts that are on their way at once.
THREADS = 8

#: Set when a signal ends the program: threads that wait for a server stop waiting.
stopped = False
#: Called with the number of bytes, each time some have arrived: for a line on the terminal.
watching: list[Callable[[int], None]] = []

_BLOCK = 16 << 10
_MOST_BLOCKS = 4096
#: A read of so many bytes is not kept. So far ahead a long answer is read on rather than another one asked for.
_LARGE = 64 << 10
_AHEAD = 256 << 10
#: Bytes of a long answer that are kept for reads that come a little later: of other threads, or of what lies between.
_WINDOW = 8 << 20
_STEP = 1 << 20
_STREAMS = 4
_T = TypeVar("_T")


class Lost(Unreadable):
    """A connection that broke off, or a server that is busy: another try may go well."""


class NotThere(Unreadable):
    """There is nothing of that name."""


def require_going() -> None:
    """Refuse to go on when a signal has ended the program."""
    if stopped:
        raise Unreadable("was not read to its end: the program was interrupted")


def again(work: Callable[[], _T]) -> _T:
    """What WORK gives. It is tried again where a connection is lost or a server is busy."""
    for pause in PAUSES:
        try:
            return work()
        except Lost:
            require_going()
            time.sleep(pause)
    return work()


@dataclass(slots=True)
class Traffic:
    """What was read from a URL by this process."""

    size: int = 0
    received: int = 0
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def asked(self) -> None:
        """Count a request."""
        with self.lock:
            self.requests += 1

    def arrived(self, length: int) -> None:
        """Count LENGTH bytes."""
        with self.lock:
            self.received += length
        for watcher in watching:
            watcher(length)


#: URL, as it is shown -> what was read from it.
TRAFFIC: dict[str, Traffic] = {}


@record(frozen=True, slots=True)
class Beginning:
    """What is known of a file once the first bytes of it are here.

    Attributes:
        size: its bytes.
        version: what tells this version of it from others; empty where nothing does.
        head: its first bytes.
        notes: what a person should know about everything that is read from it.
    """

    size: int
    version: tuple[str, ...]
    head: bytes = b""
    notes: tuple[str, ...] = ()


class Body(Protocol):
    """Bytes that arrive, in order."""

    def some(self, most: int) -> bytes | memoryview:
        """Up to MOST bytes that come next; none at the end, or where the connection broke off. May raise `Lost`."""

    def close(self) -> None:
        """Stop waiting for the rest."""


class Fetcher(Protocol):
    """How a file elsewhere is asked for. It sees to it that all answers are of one version of the file.

    Attributes:
        path: the file, for messages.
        traffic: where its requests, and the bytes that they bring, are counted.
    """

    path: Url
    traffic: Traffic

    def begin(self, first: int) -> Beginning:
        """Ask for the first bytes: FIRST of them, or all.

        Raises:
            Lost: the connection broke off, or the server is busy.
            Unreadable: it is not there, or may not be read.
        """

    def body(self, begin: int, end: int) -> Body:
        """The bytes from BEGIN to END, of the version that was begun and no other.

        Raises:
            Lost: as above.
            Malformed: the file changed.
            Unreadable: the answer is another.
        """


class RemoteFile(File):
    """A file elsewhere, of which the parts are fetched that are read.

    Args:
        fetcher: how it is asked for.
        first: bytes that are asked for at once.

    Raises:
        Unreadable: it is not there, may not be read, or its server cannot be reached or does not serve parts of it.
        UnknownFormat: it is a web page.
    """

    def __init__(self, fetcher: Fetcher, first: int = FIRST) -> None:
        self.fd = -1
        self.mode = 0o666
        self.holes = 0
        self.path = fetcher.path
        self.identity = (0, zlib.crc32(str(self.path).encode("utf-8", "replace")))
        self.traffic = fetcher.traffic
        self._fetcher = fetcher
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._ends: deque[int] = deque(maxlen=2 * _STREAMS)  # where reads of many bytes have ended
        self._number = next(_numbers)
        self._lock = threading.RLock()
        weakref.finalize(self, _close_all, self._number)  # in a cycle, their sockets might be finalized first
        found = again(lambda: fetcher.begin(-(-first // _BLOCK) * _BLOCK))
        self.size = self.traffic.size = found.size
        self.notes = found.notes
        self._whole = found.head if len(found.head) == found.size else None
        if self._whole is None:
            whole = len(found.head) // _BLOCK
            self._keep(range(whole), found.head[: whole * _BLOCK])
        self.modified = zlib.crc32(repr(found.version).encode() if any(found.version) else self._whole or b"")
        if not any(found.version) and self._whole is None:  # a run that was cut off must not go on with another file
            self.modified = time.time_ns()

    @property
    def far(self) -> bool:
        """That small reads take long here."""
        return self._whole is None

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly LENGTH bytes from OFFSET.

        Raises:
            Malformed: the file ends before that, or changed since it was opened.
            Unreadable: the connection is lost.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Malformed(
                f"ends at byte {self.size:,}, but bytes {offset:,} to {offset + length:,} are needed", where=self.path
            )
        if self._whole is not None:
            return self._whole[offset : offset + length]
        if not length:
            return b""
        if length >= _LARGE:
            return self._read_many(offset, length)
        stream = self._near(offset, length, _LARGE)
        if stream:
            with contextlib.suppress(_Passed):
                return stream.part(self, offset, length)
        first, last = offset // _BLOCK, (offset + length - 1) // _BLOCK
        with self._lock:
            self._fetch_blocks(range(first, last + 1))
            data = b"".join(self._blocks[number] for number in range(first, last + 1))
        return data[offset - first * _BLOCK :][:length]

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW with the bytes from OFFSET."""
        view[:] = self.read(offset, len(view))

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch small parts that will be read soon, several at once."""
        if self._whole is not None:
            return
        from concurrent.futures import ThreadPoolExecutor

        wanted = {n for begin, end in ranges for n in range(begin // _BLOCK, -(-min(end, self.size) // _BLOCK))}
        runs = list(_runs(sorted(wanted - self._blocks.keys())[: _MOST_BLOCKS // 2]))
        with ThreadPoolExecutor(THREADS) as pool:
            for run, data in zip(runs, pool.map(self._run, runs), strict=True):
                self._keep(run, data)

    def close(self) -> None:
        """Close all connections."""
        _close_all(self._number)

    def __repr__(self) -> str:
        return f"RemoteFile({str(self.path)!r}, {self.size} bytes)"

    # -- blocks

    def _fetch_blocks(self, numbers: range) -> None:
        for run in _runs([number for number in numbers if number not in self._blocks]):
            self._keep(run, self._run(run))
        for number in numbers:
            self._blocks.move_to_end(number)
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)

    def _run(self, run: range) -> bytes:
        begin = run.start * _BLOCK
        return self._part(begin, min(run.stop * _BLOCK, self.size))

    def _keep(self, run: range, data: bytes) -> None:
        for index, number in enumerate(run):
            self._blocks[number] = data[index * _BLOCK : (index + 1) * _BLOCK]

    def _part(self, begin: int, end: int) -> bytes:
        with contextlib.closing(_Stream(self, begin, end)) as stream:
            return stream.part(self, begin, end - begin)

    # -- long reads

    def _near(self, offset: int, length: int, ahead: int = 0) -> _Stream | None:
        """The long answer that has these bytes, or soon will."""
        with _lock:
            for number, stream in _streams:
                end = stream.position + (ahead or stream.ahead + length)
                if number == self._number and stream.start <= offset and offset + length <= end:
                    return stream
        return None

    def _read_many(self, offset: int, length: int) -> bytes:
        """A read that goes on behind another one is read from an answer that reaches to the end of the file."""
        stream = self._near(offset, length)
        if stream is None:
            with self._lock:
                goes_on = any(0 <= offset - end <= _AHEAD for end in self._ends)
                self._ends.append(offset + length)
            if not goes_on:
                return self._part(offset, offset + length)
            stream = _Stream(self, offset, self.size)
            with _lock:
                _streams.append((self._number, stream))
                last = _streams.pop(0)[1] if len(_streams) > _STREAMS else None
            if last:
                last.close()
        try:
            return stream.part(self, offset, length)
        except _Passed:
            return self._part(offset, offset + length)
        except BaseException:
            with _lock, contextlib.suppress(ValueError):
                _streams.remove((self._number, stream))
            stream.close()
            raise

    def _body(self, begin: int, end: int) -> Body:
        return again(lambda: self._fetcher.body(begin, end))


_numbers = itertools.count()
_lock = threading.RLock()
#: The long answers that are open, with the number of their file, the oldest first.
_streams: list[tuple[int, _Stream]] = []


class _Passed(Exception):
    """The bytes are no longer in the window of an answer, or too far ahead."""


class _Stream:
    """An answer that is being read: the bytes of a file from a place on. One that breaks off is asked for again.

    Attributes:
        start, position: the bytes that are at hand; what comes next stands at POSITION.
        ahead: how far a read may skip what comes next.
    """

    def __init__(self, file: RemoteFile, begin: int, end: int) -> None:
        self.start = self.position = self._begin = begin
        self._end = end
        self._window: deque[bytes | memoryview] = deque()
        self._lock = threading.Lock()
        self._breaks = self._since = 0
        self._answer = file._body(begin, end)

    @property
    def ahead(self) -> int:
        """Little at first; where much was read in order, as much as is kept."""
        return _WINDOW if self.position - self._begin >= _WINDOW else _AHEAD

    def part(self, file: RemoteFile, offset: int, length: int) -> bytes:
        """LENGTH bytes of FILE from OFFSET. (FILE is not held, so that it can go while its answers are open.)"""
        with self._lock:
            if not self.start <= offset <= self.position + self.ahead:
                raise _Passed
            while self.position < offset + length:
                data = self._next(file, min(_STEP, offset + length - self.position))
                self._window.append(data)
                self.position += len(data)
                while self._is_surplus(offset):
                    self.start += len(self._window.popleft())
            return self._joined(offset, offset + length)

    def _is_surplus(self, offset: int) -> bool:
        """Whether the first bytes at hand need not be kept for who reads from OFFSET."""
        first = len(self._window[0])
        return self.start + first <= offset and self.position - self.start - first >= _WINDOW

    def _joined(self, begin: int, end: int) -> bytes:
        """The bytes at hand from BEGIN to END."""
        parts: list[bytes | memoryview] = []
        at = self.start
        for data in self._window:
            if at < end and at + len(data) > begin:
                parts.append(memoryview(data)[max(begin - at, 0) : end - at])
            at += len(data)
        return b"".join(parts)

    def _next(self, file: RemoteFile, length: int) -> bytes | memoryview:
        """Up to LENGTH of the bytes that come next, at least one.

        An answer that breaks off is asked for again, but only so often before another 64 kB have come: a server that
        sends a byte at a time would hold us for ever.
        """
        while True:
            try:
                data = self._answer.some(length)
            except Lost:
                data = b""
            if data:
                self._since += len(data)
                return data
            self._answer.close()
            if self._since >= _LARGE:
                self._breaks = self._since = 0
            if self._breaks == len(PAUSES):
                what = f"the connection broke off at byte {self.position:,} of {file.size:,}"
                raise Unreadable(what, where=file.path, hint="try again")
            time.sleep(PAUSES[self._breaks])
            self._breaks += 1
            self._answer = file._body(self.position, self._end)

    def close(self) -> None:
        """Close the connection, when nobody reads from it."""
        with self._lock:
            self._answer.close()


def _close_all(number: int) -> None:
    """Close the long answers of the file of this NUMBER."""
    with _lock:
        mine = [stream for owner, stream in _streams if owner == number]
        _streams[:] = [(owner, stream) for owner, stream in _streams if owner != number]
    for stream in mine:
        stream.close()


def _runs(numbers: list[int]) -> Iterator[range]:
    """NUMBERS, which ascend, as runs of those that follow one another."""
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield range(numbers[begin], numbers[at - 1] + 1)
            begin = at
