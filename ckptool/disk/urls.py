"""Files on the web, read in parts: a URL is one more file to everything that reads checkpoints.

Nothing is asked of the network but what a person names by its URL, http:// or https://. The parts come from HTTP range
requests (RFC 9110, section 14) through `urllib` of the standard library, which knows proxies and certificates:

- few bytes (headers, the directory of an archive, pickles) come in blocks, which are kept,
- many bytes come as they are asked for; where one read goes on behind another, from one long answer.

A file that changes between two requests is noticed (If-Range, and the length in each answer), and refused.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..errors import CheckpointError, Malformed, UnknownFormat, Unreadable, printable
from .files import File, StrPath, is_url, reason, shell_path, shell_quote

#: Seconds without a byte after which a server is given up.
TIMEOUT = 30.0
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
_BUSY = (429, 500, 502, 503, 504)


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
    found: Url = path if isinstance(path, Url) else Url(unquote(urlsplit(str(path)).path) or "/")
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
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", os.fspath(path)) if isinstance(path, str) else None
    if scheme and not os.path.lexists(path):
        raise Unreadable(f"{scheme[1]}:// is not read; http:// and https:// are, and files", where=path)
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
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        self.fd = -1
        self.mode = 0o666
        self.holes = 0
        self.modified = 0
        self.url = urlunsplit(parts._replace(netloc=host, fragment=""))
        self.path = as_path(self.url)
        self.identity = (0, zlib.crc32(self.url.encode("utf-8", "replace")))
        self.size = 0
        self.traffic = TRAFFIC.setdefault(self.url, Traffic())
        self._login = user if at else ""
        self._asked = quote(self.url, safe="%/:=&?~+!$,;'@()*[]")
        self._found = self._asked  # where redirections lead
        self._tag: str | None = None
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
        answer = self._ask(0, _FIRST)
        with contextlib.closing(answer):
            self._found = answer.url
            tag = answer.headers.get("ETag") or ""
            self._tag = tag if tag.startswith('"') else answer.headers.get("Last-Modified")
            self.modified = zlib.crc32((tag or self._tag or "").encode())
            if answer.status == 206:
                stated = re.match(r"bytes 0-\d+/(\d+)\s*\Z", answer.headers.get("Content-Range") or "")
                if not stated:
                    raise Unreadable("its server does not say how large it is", where=self.path, hint=self._fetching())
                self.size = int(stated[1])
                data = self._received(answer.read(min(_FIRST, self.size)))
                self._refuse_page(answer, data)
                if len(data) == min(_FIRST, self.size):
                    self._keep(range(-(-len(data) // _BLOCK)), data)
                return
            if answer.status != 416:  # what an empty file answers to any range
                self._take_whole(answer)
            else:
                self._whole = b""

    def _take_whole(self, answer: Any) -> None:
        """The file from a server that sends nothing but the whole of it."""
        length = answer.headers.get("Content-Length") or ""
        head = self._received(answer.read(4096))
        self._refuse_page(answer, head)
        packed = answer.headers.get("Content-Encoding") or "identity"
        large = length.isdigit() and int(length) > MOST_WHOLE
        data = head if large or packed != "identity" else head + self._received(answer.read(MOST_WHOLE - len(head) + 1))
        if packed != "identity" or large or len(data) > MOST_WHOLE:
            size = f"it has {int(length):,} bytes" if length.isdigit() else "how large it is is not said"
            raise Unreadable(
                f"its server does not serve parts of files (HTTP range requests), and {size}",
                where=self.path,
                hint=self._fetching(),
            )
        if length.isdigit() and len(data) < int(length):
            raise Unreadable(f"the connection broke off after {len(data):,} of {int(length):,} bytes", where=self.path)
        self._whole, self.size = data, len(data)

    def _refuse_page(self, answer: Any, head: bytes) -> None:
        """A web page in place of a file: the page about it, a login, a quota."""
        kind = (answer.headers.get("Content-Type") or "").lower()
        if not re.match(rb"\s*<(!doctype\s+html|html)", head, re.IGNORECASE) and not (
            kind.startswith("text/html") and head.lstrip()[:1] == b"<"
        ):
            return
        other = _file_of_page(self.url)
        hint = f"the file itself is at {other}" if other else "open it in a browser: a login, a licence or a quota?"
        raise UnknownFormat("is a web page, not a file", where=self.path, hint=hint)

    def _fetching(self) -> str:
        """A command that fetches the file."""
        return f"fetch it first: curl -L -o {shell_path(self.path.name or 'FILE')} {shell_quote(self.url)}"

    def _received(self, data: bytes) -> bytes:
        with self._lock:
            self.traffic.received += len(data)
        return data

    def _answer(self, begin: int, end: int) -> Any:
        """The answer with the bytes from BEGIN to END, of the file that was opened and no other."""
        answer = self._ask(begin, end)
        stated = f"bytes {begin}-{end - 1}/{self.size}"
        if answer.status != 206 or (answer.headers.get("Content-Range") or "").strip() != stated:
            answer.close()
            raise Malformed(
                "changed on its server while it was being read", where=self.path, hint="try again: all is read anew"
            )
        return answer

    def _ask(self, begin: int, end: int) -> Any:
        """Send a request; again if the server is busy or the connection is lost, and to the URL itself where that to
        which it led has expired.
        """
        from http.client import HTTPException
        from urllib.error import HTTPError

        for pause in (*PAUSES, None):
            try:
                return self._send(begin, end)
            except HTTPError as error:
                error.close()
                if error.code == 416:
                    return error
                if error.code in (401, 403, 404, 410) and self._found != self._asked:
                    self._found = self._asked
                    return self._ask(begin, end)
                if error.code not in _BUSY or pause is None:
                    raise _refused(error.code, str(error.reason), self.path) from None
                time.sleep(pause)
            except (OSError, HTTPException, ValueError) as error:
                lost = isinstance(getattr(error, "reason", error), ConnectionError | HTTPException)
                if not lost or pause is None:
                    raise _unreached(error, self.path) from None
                time.sleep(pause)
        raise AssertionError

    def _send(self, begin: int, end: int) -> Any:
        from urllib.request import Request

        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity", "User-Agent": "ckptool"}
        if self._tag:
            headers["If-Range"] = self._tag
        request = Request(self._found, headers=headers)
        if self._login and urlsplit(self._found).netloc == urlsplit(self._asked).netloc:
            from base64 import b64encode

            word = b64encode(unquote(self._login).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {word}")  # which no other server gets
        with self._lock:
            self.traffic.requests += 1
        return _opener().open(request, timeout=TIMEOUT)


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
        self._answer: Any = file._answer(begin, end)

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
        """Up to LENGTH of the bytes that come next, at least one."""
        from http.client import HTTPException

        for pause in (*PAUSES, None):
            try:
                data: bytes = self._answer.read(length)
            except (ConnectionError, HTTPException) as lost:
                data = getattr(lost, "partial", b"")
            except OSError as lost:
                raise _unreached(lost, file.path) from None
            if data:
                return file._received(data)
            if pause is not None:
                self._answer.close()
                time.sleep(pause)
                self._answer = file._answer(self.position, self._end)
        what = f"the connection broke off at byte {self.position:,} of {file.size:,}"
        raise Unreadable(what, where=file.path, hint="try again")

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


def _opener() -> Any:
    """What sends requests: through the proxies of the environment, to http and https, and never from https to http."""
    import urllib.request as web

    class Redirections(web.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            old, new = req.full_url.lower(), newurl.lower()
            if not is_url(new) or (old.startswith("https:") and new.startswith("http:")):
                fp.close()
                where = "from https:// to http://" if is_url(new) else f"to {printable(newurl, 100)}"
                raise Unreadable(f"is redirected {where}, which is not followed", where=req.full_url)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler,
        web.UnknownHandler,
        web.HTTPHandler,
        web.HTTPSHandler,
        web.HTTPDefaultErrorHandler,
        Redirections,
        web.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _refused(code: int, said: str, path: Path) -> Unreadable:
    """What the number of an answer means."""
    if code in (404, 410):
        what, hint = f"is not there (HTTP {code})", "look at the address"
    elif code in (401, 403):
        what = f"its server refuses it (HTTP {code}): it needs a login or a licence, or the address has expired"
        hint = "fetch it with what you log in with, and name the file"
    elif 300 <= code < 400 and "not allowed" in said:
        what, hint = "is redirected to what is no address of the web, which is not followed", "look at the address"
    elif 300 <= code < 400:
        what, hint = f"is redirected in a circle (HTTP {code})", "look at the address"
    else:
        what, hint = f"its server answers HTTP {code} {printable(said, 80)}", "try again later"
    return Unreadable(what, where=path, hint=hint)


def _unreached(error: Exception, path: Path) -> Unreadable:
    """Why no answer came."""
    import socket
    import ssl

    cause = getattr(error, "reason", error)
    hint = "look at the address, and at the network"
    if isinstance(cause, TimeoutError):
        what, hint = f"its server does not answer within {TIMEOUT:g} seconds", "try again later"
    elif isinstance(cause, ssl.SSLCertVerificationError):
        what = f"the certificate of its server is not to be trusted: {printable(cause.verify_message, 120)}"
        hint = "look at the address; SSL_CERT_FILE names certificates of your own"
    elif isinstance(cause, ssl.SSLError):
        what = f"no secure connection comes about: {printable(str(cause.reason or cause), 120)}"
    elif isinstance(cause, socket.gaierror):
        what = f"there is no host {printable(urlsplit(str(path)).hostname or '', 100)}, or no network"
    else:
        said = reason(cause) if isinstance(cause, OSError) else str(cause) or type(cause).__name__
        what = f"its server cannot be reached: {printable(said, 120)}"
    return Unreadable(what, where=path, hint=hint)


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
