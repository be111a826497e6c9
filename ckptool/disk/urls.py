"""Files on the web, read in parts: a URL is one more file to everything that reads checkpoints.

Nothing is asked of the network but what a person names by its URL, http:// or https://. The parts come from HTTP range
requests (RFC 9110, section 14) through `urllib` of the standard library, which knows proxies and certificates:

- few bytes (headers, the directory of an archive, pickles) come in blocks, which are kept,
- many bytes come as they are asked for; where one read goes on behind another, from one long answer.

Every answer is compared with the first: its ETag, its Last-Modified and the length of the file. A difference is
refused. A server that sends neither ETag nor Last-Modified is asked for the whole of a small file in one answer. A
large file is read in parts then, and `RemoteFile.notes` says that a change could not be noticed.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import weakref
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import CheckpointError, Malformed, UnknownFormat, Unreadable, printable
from .files import File, StrPath, is_remote, is_url, shell_path, shell_quote

if TYPE_CHECKING:
    from .web import Answer

#: Seconds before each new try of a request that broke off or found the server busy.
PAUSES = (0.5, 2.0)
#: Most bytes of a file that is fetched whole, from a server that does not serve parts.
MOST_WHOLE = 64 << 20

_BLOCK = 16 << 10
_FIRST = 64 << 10
_MOST_BLOCKS = 4096
#: A read of so many bytes is not kept. So far ahead a long answer is read on rather than another one asked for.
_LARGE = 64 << 10
_AHEAD = 256 << 10
#: Bytes of a long answer that are kept for reads that come a little later: of other threads, or of what lies between.
_WINDOW = 8 << 20
_STEP = 1 << 20
_STREAMS = 4
_THREADS = 8


_PACKED = re.compile(r"gzip|deflate|compress|br|zstd", re.IGNORECASE)
_NO_VERSION = (
    "gives no version of it (neither ETag nor Last-Modified), so a change while it was being read could not be noticed"
)
_T = TypeVar("_T")


@dataclass(slots=True)
class Traffic:
    """What was read from a URL by this process."""

    size: int = 0
    received: int = 0
    requests: int = 0


#: URL, without a password -> what was read from it.
TRAFFIC: dict[str, Traffic] = {}


class Url(type(Path())):  # type: ignore[misc]
    """A URL where a path is expected: its name and its suffix are those of the file, and it is shown as it is."""

    text = ""

    def __str__(self) -> str:
        return self.text or super().__str__()

    def __fspath__(self) -> str:
        return str(self)


def as_path(path: StrPath) -> Path:
    """A path, or a URL as one."""
    if not is_url(path):
        return Path(path)
    inner = re.sub(r"^[^:]*://[^/?#]*|[?#].*$", "", str(path), flags=re.DOTALL)
    found: Url = path if isinstance(path, Url) else Url(unquote(inner) or "/")
    found.text = found.text or str(path)
    return found


def open_file(path: StrPath) -> File:
    """A file to read from, by its path or its URL.

    Raises:
        Unreadable: it cannot be opened.
        UnknownFormat: the URL is that of a web page.
    """
    if is_url(path):
        return RemoteFile(str(path))
    if is_remote(path):
        scheme = str(path).partition(":")[0]
        what = f"{printable(scheme)}:// is not read; http:// and https:// are, and files"
        if scheme.lower() in ("http", "https"):
            what = "a URL is given as text; a Path loses one of its slashes"
        raise Unreadable(what, where=path)
    return File(path)


def size_of(path: StrPath) -> int:
    """Bytes of a file, for a progress bar; 0 for what is none."""
    if is_url(path):
        with contextlib.suppress(CheckpointError):
            return RemoteFile(str(path)).size
        return 0
    return os.stat(path).st_size if os.path.isfile(path) else 0


class RemoteFile(File):
    """A file on a web server, of which the parts are fetched that are read.

    Raises:
        Unreadable: it is not there, may not be read, or its server cannot be reached or does not serve parts of it.
        UnknownFormat: it is a web page.
    """

    def __init__(self, url: str) -> None:
        from . import web

        login = re.match(r"[^:]*://([^/?#]*)@", url)
        self.fd = -1
        self.mode = 0o666
        self.holes = 0
        self.url = (url if login is None else url.replace(f"{login[1]}@", "", 1)).partition("#")[0]
        self.path = as_path(self.url)
        web.require_address(self.url, self.path)
        self.identity = (0, zlib.crc32(self.url.encode("utf-8", "replace")))
        self.size = 0
        self.traffic = TRAFFIC.setdefault(self.url, Traffic())
        self._asked = web.quoted(self.url)
        self._found = self._asked  # where redirections lead
        self._login = {web.origin(self._asked): _basic(login[1])} if login else {}
        self._version = ("", "")
        self._whole: bytes | None = None
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._ends: deque[int] = deque(maxlen=2 * _STREAMS)  # where reads of many bytes have ended
        self._streams: list[_Stream] = []
        self._lock = threading.RLock()
        weakref.finalize(self, _close_all, self._streams)  # in a cycle, their sockets might be finalized first
        self._begin()
        self.traffic.size = self.size

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
        with ThreadPoolExecutor(_THREADS) as pool:
            for run, data in zip(runs, pool.map(self._run, runs), strict=True):
                self._keep(run, data)

    def close(self) -> None:
        """Close all connections."""
        _close_all(self._streams)

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
        with self._lock:
            for stream in self._streams:
                if stream.start <= offset and offset + length <= stream.position + (ahead or stream.ahead + length):
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
            with self._lock:
                self._streams.append(stream)
                last = self._streams.pop(0) if len(self._streams) > _STREAMS else None
            if last:
                last.close()
        try:
            return stream.part(self, offset, length)
        except _Passed:
            return self._part(offset, offset + length)
        except BaseException:
            with self._lock, contextlib.suppress(ValueError):
                self._streams.remove(stream)
            stream.close()
            raise

    # -- requests

    def _begin(self) -> None:
        """Ask for the first block: how large the file is, and whether its server serves parts."""
        _again(self._open)
        if self._whole is None and not any(self._version):
            if self.size <= MOST_WHOLE:  # no two answers can be told to be of one file
                self._whole = _again(lambda: self._all(self._answer(0, self.size), self.size))
            else:
                self.notes = (f"{printable(self.url)}: its server {_NO_VERSION}",)
        self.modified = zlib.crc32(self._whole or repr(self._version).encode())
        if self.notes:  # a run that was cut off must not be taken up with another file
            self.modified = time.time_ns()

    def _open(self) -> None:
        answer = self._send(0, _FIRST)
        with contextlib.closing(answer):
            self._found, self._version = answer.found, answer.file_version
            if answer.status == 206:
                if re.fullmatch(r"bytes \d+-\d+/\*", answer.said("Content-Range")):
                    raise Unreadable("its server does not say how large it is", where=self.path, hint=self._fetching())
                begin, end, self.size = answer.part or (1, 0, 0)
                if begin or end > _FIRST:
                    raise self._other(answer)
                data = self._all(answer, end)
                self._refuse_page(answer, data)
                if end == self.size:
                    self._whole = data
                elif end == _FIRST:
                    self._keep(range(end // _BLOCK), data)
            elif answer.status == 200:
                self._take_whole(answer)
            else:  # 416 is what an empty file answers to any range
                self._whole = b""
                if answer.said("Content-Range") not in ("", "bytes */0"):
                    raise self._other(answer)

    def _take_whole(self, answer: Answer) -> None:
        """The file from a server that sends nothing but the whole of it."""
        large = (answer.total or 0) > MOST_WHOLE
        data = b"" if large else self._all(answer, answer.total)
        self._refuse_page(answer, data)
        if large or len(data) > MOST_WHOLE:
            size = "how large it is is not said" if answer.total is None else f"it has {answer.total:,} bytes"
            raise Unreadable(
                f"its server does not serve parts of files (HTTP range requests), and {size}",
                where=self.path,
                hint=self._fetching(),
            )
        self._whole, self.size = data, len(data)

    def _all(self, answer: Answer, length: int | None) -> bytes:
        """The body of one answer: LENGTH bytes, or where its end is not known at most one more than may be held."""
        from .web import Lost

        data = bytearray()
        with contextlib.closing(answer), contextlib.suppress(Lost):
            while more := answer.some(min(_STEP, (length or MOST_WHOLE + 1) - len(data))):
                data += self._received(more)
            if len(data) >= (length or 0):
                return bytes(data)
        of = "" if length is None else f" of {length:,}"
        what = f"the connection broke off after {len(data):,}{of} bytes"
        raise Lost(what, where=self.path, hint="try again")

    def _refuse_page(self, answer: Answer, head: bytes) -> None:
        """A web page in place of a file: the page about it, a login, a quota."""
        kind = answer.said("Content-Type").lower()
        if not re.match(rb"\s*<(!doctype\s+html|html)", head, re.IGNORECASE) and not (
            kind.startswith("text/html") and head.lstrip()[:1] == b"<"
        ):
            return
        other = _file_of_page(self.url)
        hint = f"the file itself is at {other}" if other else "open it in a browser: a login, a licence or a quota?"
        raise UnknownFormat("is a web page, not a file", where=self.path, hint=hint)

    def _fetching(self, option: str = "") -> str:
        """A command that fetches the file."""
        return f"fetch it first: curl {option}-L -o {shell_path(self.path.name or 'FILE')} {shell_quote(self.url)}"

    def _received(self, data: bytes) -> bytes:
        with self._lock:
            self.traffic.received += len(data)
        return data

    def _answer(self, begin: int, end: int) -> Answer:
        """The answer with the bytes from BEGIN to END, of the file that was opened and no other.

        Raises:
            Malformed: it is that of another version of the file.
            Unreadable: it has other bytes.
        """
        answer = self._send(begin, end)
        try:
            size = answer.part[2] if answer.part else answer.total if answer.status == 200 else self.size
            if answer.file_version != self._version or size not in (None, self.size) or answer.status == 416:
                raise Malformed(
                    "changed on its server while it was being read", where=self.path, hint="try again: all is read anew"
                )
            if answer.part != (begin, end, self.size):
                raise self._other(answer)
        except BaseException:
            answer.close()
            raise
        return answer

    def _other(self, answer: Answer) -> Unreadable:
        """An answer that is not the one to the question."""
        said = f"HTTP {answer.status}"
        for name in ("Content-Range", "Content-Length", "Content-Type"):
            if answer.said(name):
                said += f", {name}: {printable(answer.said(name), 60)}"
        what = f"its server does not send the bytes that were asked for ({said})"
        return Unreadable(what, where=self.path, hint=self._fetching())

    def _send(self, begin: int, end: int) -> Answer:
        """Send a request, and to the URL itself where that to which it led has expired.

        Raises:
            Lost: the connection broke off, or the server is busy.
            Unreadable: there is no answer that can be read.
        """
        from . import web

        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity", "User-Agent": "ckptool"}
        with self._lock:
            self.traffic.requests += 1
        answer = web.ask(self._found, headers, self.path, self._login)
        if answer.status in (200, 206, 416):
            packed = _PACKED.search(answer.said("Content-Encoding"))
            if packed is None:
                return answer
            answer.close()
            what = f"its server sends it packed (Content-Encoding: {packed[0]}), which was not asked for"
            raise Unreadable(what, where=self.path, hint=self._fetching("--compressed "))
        answer.close()
        if answer.status in (401, 403, 404, 410) and self._found != self._asked:
            self._found = self._asked
            return self._send(begin, end)
        raise web.refused(answer)


def _basic(login: str) -> str:
    from base64 import b64encode

    return f"Basic {b64encode(unquote(login).encode()).decode()}"


def _again(work: Callable[[], _T]) -> _T:
    """What WORK gives. It is tried again where a connection is lost or a server is busy."""
    from .web import Lost

    for pause in PAUSES:
        try:
            return work()
        except Lost:
            time.sleep(pause)
    return work()


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
        self._window = bytearray()
        self._lock = threading.Lock()
        self._breaks = self._since = 0
        self._answer = _again(lambda: file._answer(begin, end))

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
                self._window += data
                self.position += len(data)
                surplus = min(len(self._window) - _WINDOW, offset - self.start)
                if surplus > 0:
                    del self._window[:surplus]
                    self.start += surplus
            at = offset - self.start
            return bytes(memoryview(self._window)[at : at + length])

    def _next(self, file: RemoteFile, length: int) -> bytes:
        """Up to LENGTH of the bytes that come next, at least one.

        An answer that breaks off is asked for again, but only so often before another 64 kB have come: a server that
        sends a byte at a time would hold us for ever.
        """
        from .web import Lost

        while True:
            try:
                data = self._answer.some(length)
            except Lost:
                data = b""
            if data:
                self._since += len(data)
                return file._received(data)
            self._answer.close()
            if self._since >= _LARGE:
                self._breaks = self._since = 0
            if self._breaks == len(PAUSES):
                what = f"the connection broke off at byte {self.position:,} of {file.size:,}"
                raise Unreadable(what, where=file.path, hint="try again")
            time.sleep(PAUSES[self._breaks])
            self._breaks += 1
            self._answer = _again(lambda: file._answer(self.position, self._end))

    def close(self) -> None:
        """Close the connection, when nobody reads from it."""
        with self._lock:
            self._answer.close()


def _close_all(streams: list[_Stream]) -> None:
    while streams:
        streams.pop().close()


def _runs(numbers: list[int]) -> Iterator[range]:
    """NUMBERS, which ascend, as runs of those that follow one another."""
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield range(numbers[begin], numbers[at - 1] + 1)
            begin = at


def _file_of_page(url: str) -> str | None:
    """The URL of the file that a page of a hub is about."""
    parts = urlsplit(url)
    if "/blob/" in parts.path:
        word = "raw" if re.search(r"(^|\.)(github|gitlab|gitee|codeberg)\.", parts.netloc) else "resolve"
        return urlunsplit(parts._replace(path=parts.path.replace("/blob/", f"/{word}/", 1), query=""))
    page = re.fullmatch(r"(/[^/]+/[^/]+)(/tree/([^/]+))?/?", parts.path)
    if page and re.fullmatch(r"(www\.)?(huggingface\.co|hf\.co|hf-mirror\.com)", parts.netloc):
        return urlunsplit(parts._replace(path=f"{page[1]}/resolve/{page[3] or 'main'}/FILE", query=""))
    if parts.netloc.endswith("dropbox.com") and "dl=0" in parts.query:
        return urlunsplit(parts._replace(query=parts.query.replace("dl=0", "dl=1")))
    return None
