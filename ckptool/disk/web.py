"""Answers of web servers, in bounded time and of bounded size. What goes wrong becomes one line.

`urllib` of the standard library knows proxies and certificates, and `http.client` reads the head of an answer. All
bytes pass through `_Wire`, which counts and times them. Redirections are followed here, and the framing of a body is
read here, since the standard library has no limits for either. An answer that contradicts itself is refused.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import string
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import AbstractHTTPHandler, OpenerDirector, ProxyHandler, Request, UnknownHandler

from ..errors import CheckpointError, Unreadable, printable
from .addresses import is_web
from .files import reason
from .remote import Lost, NotThere, require_going

#: Seconds for a connection, and then for the head of an answer as a whole.
TIMEOUT = 30.0
#: Seconds of waiting for a body after which at least SLOWEST bytes a second must have arrived.
PATIENCE = 60.0
SLOWEST = 1000
#: Most bytes of the head of an answer, with the interim answers (1xx) before it.
MOST_HEAD = 256 << 10
#: Most bytes between the chunks of a body, besides one for each byte of the body.
MOST_FRAMING = 256 << 10
MOST_REDIRECTIONS = 10

_CHUNK_LINE = 4096
_TICK = 0.5
_BUSY = (429, 500, 502, 503, 504)
_REDIRECTIONS = (301, 302, 303, 307, 308)
_NUMBER = r"([0-9]{1,18})"


class _Wire(io.RawIOBase):
    """The bytes that arrive at a socket, counted and timed.

    The head of an answer has a deadline. A body has none, but a least speed. Only the time spent waiting counts, since
    a body may be read slowly.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._open = connected.makefile("rb", buffering=0)  # the socket stays open as long as this is
        self._head = True
        self._arrived = 0
        self._waited = 0.0

    def makefile(self, mode: str) -> io.BufferedReader:
        """What `http.client` asks a socket for."""
        return io.BufferedReader(self)

    def body(self) -> None:
        """From here on, the rules of a body hold."""
        self._head, self._arrived, self._waited = False, 0, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while True:
            began = time.monotonic()
            limit = TIMEOUT if self._head else PATIENCE
            self._socket.settimeout(max(0.001, min(_TICK, limit - self._waited)))
            try:
                got = self._socket.recv_into(buffer)
            except TimeoutError:
                got = -1
            self._waited += time.monotonic() - began
            self._arrived += max(got, 0)
            require_going()
            if self._head and self._arrived > MOST_HEAD:
                raise Unreadable(f"the head of its server's answer has more than {MOST_HEAD:,} bytes")
            if self._waited >= limit:
                if self._head:
                    raise TimeoutError
                if self._arrived < SLOWEST * PATIENCE:
                    what = f"its server sends less than {SLOWEST:,} bytes a second"
                    raise Unreadable(what, hint="try again later")
                self._arrived, self._waited = 0, 0.0
            if not got and self._head:
                raise Lost("its server closed the connection before its answer was complete", hint="try again later")
            if got >= 0:
                return got

    def close(self) -> None:
        self._open.close()
        super().close()


class Answer(HTTPResponse):
    """An answer: its head, and its body in pieces.

    Attributes:
        where: the URL for messages.
        found: the URL that answered, behind all redirections.
        total: bytes of the body, or None if the head does not say.
    """

    where = found = ""
    total: int | None = None

    def __init__(self, connected: socket.socket, *args: Any, **options: Any) -> None:
        self._wire = _Wire(connected)
        super().__init__(self._wire, *args, **options)  # type: ignore[arg-type]
        self._left: int | None = None  # bytes of the body, or of a chunk of it, that are still to come
        self._in_chunks = False
        self._framing = self._given = 0

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        while 100 <= self.status < 200:
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()
        self._wire.body()

    def said(self, name: str) -> str:
        """The value of a header, "" without one.

        Raises:
            Unreadable: it is there twice, with different values.
        """
        values = {value.strip() for value in self.headers.get_all(name, [])}
        if len(values) > 1:
            raise Unreadable(f"its server contradicts itself: it sends two different headers {name}", where=self.where)
        return values.pop() if values else ""

    @property
    def file_version(self) -> tuple[str, str]:
        """What tells versions of a file apart: ETag and Last-Modified, each "" where the server does not send it."""
        return self.said("ETag"), self.said("Last-Modified")

    @property
    def part(self) -> tuple[int, int, int] | None:
        """Where the body begins and ends in the file, and the size of the file, if the body is a part of it."""
        stated = re.fullmatch(rf"bytes {_NUMBER}-{_NUMBER}/{_NUMBER}", self.said("Content-Range"))
        if self.status != 206 or not stated or self.said("Content-Type").lower().startswith("multipart/"):
            return None
        begin, end, size = int(stated[1]), int(stated[2]) + 1, int(stated[3])
        return (begin, end, size) if begin < end <= size and self.total in (None, end - begin) else None

    def measure(self) -> None:
        """Find out how the body is framed.

        Raises:
            Unreadable: the head contradicts itself, or the framing is not known.
        """
        length, coding = self.said("Content-Length"), self.said("Transfer-Encoding").lower()
        stated = re.fullmatch(_NUMBER, length)
        if length and not stated:
            said = printable(repr(length), 60)
            raise Unreadable(f"its server sends no number as its length: {said}", where=self.where)
        if coding not in ("", "chunked"):
            said = printable(repr(coding), 60)
            raise Unreadable(f"its server sends it with Transfer-Encoding {said}, which is not read", where=self.where)
        self._in_chunks = bool(coding)
        if stated and not coding:
            self.total = int(stated[1])
        self._left = 0 if coding else self.total

    def some(self, most: int) -> bytes:
        """Up to MOST bytes of the body that come next; none at its end.

        Raises:
            Lost: the connection broke off.
            Unreadable: the body comes too slowly, or is framed wrongly.
        """
        if self.fp is None:
            raise Lost("the connection was closed", where=self.where)
        try:
            if most and self._in_chunks and not self._left:
                self._left = self._next_chunk()
            if not most or self._left == 0:
                return b""
            data = self.fp.read1(most if self._left is None else min(most, self._left))
            if self._left is not None:
                if not data:
                    raise Lost("the connection broke off", hint="try again")
                self._left -= len(data)
        except (OSError, HTTPException, ValueError) as error:
            raise failure(error, self.found, self.where) from None
        self._given += len(data)
        return data

    def _next_chunk(self) -> int:
        """The size of the next chunk. The last one is empty. What comes behind it is never read."""
        rest = self._line() if self._given else b""
        line = self._line()
        size = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(;.*)?", line)
        if rest or not size:
            raise Unreadable(f"its server sends a chunk without a size: {printable(repr(line[:40]), 80)}")
        self._in_chunks = int(size[1], 16) > 0
        return int(size[1], 16)

    def _line(self) -> bytes:
        line = self.fp.readline(_CHUNK_LINE)
        self._framing += len(line)
        if not line:
            raise Lost("the connection broke off", hint="try again")
        if not line.endswith(b"\n") or self._framing > MOST_FRAMING + self._given:
            raise Unreadable("its server sends more chunk headers than bytes of the file")
        return line.rstrip(b"\r\n")


class _Plain(HTTPConnection):
    response_class = Answer


class _Secure(HTTPSConnection):
    response_class = Answer


class _Handler(AbstractHTTPHandler):
    """Sends requests over connections whose answers are of our kind."""

    http_request = https_request = AbstractHTTPHandler.do_request_

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_Plain, request)

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_Secure, request)


def quoted(url: str) -> str:
    """A URL as it is sent: all letters behind its host are letters of URLs."""
    host = re.match(r"[^:]*://[^/?#]*", url)
    end = host.end() if host else 0
    return url[:end] + quote(url[end:], safe="%/:=&?~+!$,;'@()*[]")


def origin(url: str) -> str:
    """The server of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def require_address(url: str, where: object, what: str = "cannot be reached: it is not an address of the web") -> None:
    """Refuse a URL without a host, or with a port that is none."""
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise Unreadable(what, where=where, hint="look at the address")


def ask(url: str, headers: Mapping[str, str], where: object, login: Mapping[str, str]) -> Answer:
    """The answer to a request, behind all redirections. Its body is still to be read.

    Args:
        url: where the request goes.
        headers: what it says.
        where: the URL for messages.
        login: server (see `origin`) -> its header Authorization, which no other server gets.

    Raises:
        Lost: the connection broke off.
        Unreadable: the server cannot be reached, or its answer cannot be read.
    """
    seen: list[str] = []
    while True:
        require_going()
        word = login.get(origin(url))
        answer = _send(Request(url, headers={**headers, **({"Authorization": word} if word else {})}), where)
        try:
            if answer.status in (200, 206):
                answer.measure()
            if answer.status not in _REDIRECTIONS:
                return answer
            seen.append(url)
            url = _target(answer)
            if url in seen:
                raise Unreadable("is redirected in a circle", where=where, hint="look at the address")
            if len(seen) > MOST_REDIRECTIONS:
                raise Unreadable(f"is redirected more than {MOST_REDIRECTIONS} times", where=where)
        except BaseException:
            answer.close()
            raise
        answer.close()


def _send(request: Request, where: object) -> Answer:
    opener = OpenerDirector()
    for handler in (ProxyHandler(), UnknownHandler(), _Handler()):
        opener.add_handler(handler)
    try:
        answer = opener.open(request, timeout=TIMEOUT)
    except (OSError, HTTPException, ValueError) as error:
        raise failure(error, request.full_url, where) from None
    assert isinstance(answer, Answer)
    answer.where, answer.found = str(where), request.full_url
    return answer


def _target(answer: Answer) -> str:
    """Where a redirection leads."""
    said = answer.said("Location")
    shown = printable(said, 100)
    if not said:
        raise Unreadable("is redirected, but its server does not say where to", where=answer.where)
    try:
        target = urljoin(answer.found, quote(said, encoding="iso-8859-1", safe=string.punctuation))
    except ValueError:
        target = said
    if not is_web(target):
        raise Unreadable(f"is redirected to {shown}, which is not followed", where=answer.where)
    require_address(target, answer.where, f"is redirected to {shown}, which is not an address of the web")
    if "@" in urlsplit(target).netloc:
        host = printable(urlsplit(target).hostname or "", 100)
        raise Unreadable(f"is redirected to {host} with a login, which is not followed", where=answer.where)
    if urlsplit(answer.found).scheme == "https" and urlsplit(target).scheme == "http":
        raise Unreadable("is redirected from https:// to http://, which is not followed", where=answer.where)
    return target


def refused(answer: Answer) -> Unreadable:
    """What the number of an answer means."""
    code = answer.status
    if code in _BUSY:
        said = printable(answer.reason, 80)
        return Lost(f"its server answers HTTP {code} {said}", where=answer.where, hint="try again later")
    if code in (404, 410):
        return NotThere(f"is not there (HTTP {code})", where=answer.where, hint="look at the address")
    if code in (401, 403):
        what = f"its server refuses it (HTTP {code}): it needs a login or a licence, or the address has expired"
        hint = "fetch it with what you log in with, and name the file"
    else:
        what, hint = f"its server answers HTTP {code} {printable(answer.reason, 80)}", "try again later"
    return Unreadable(what, where=answer.where, hint=hint)


def failure(error: Exception, url: str, where: object) -> CheckpointError:
    """Why a request to URL has no answer, or the answer no end."""
    if isinstance(error, CheckpointError):
        error.where = error.where or str(where)
        return error
    cause = error.reason if isinstance(error, URLError) else error
    server = "its server"
    if origin(url) != origin(quoted(str(where))):
        server = f"{printable(origin(url), 100)}, where it is redirected,"
    hint = "look at the address, and at the network"
    if isinstance(cause, TimeoutError):
        what, hint = f"{server} does not answer within {TIMEOUT:g} seconds", "try again later"
    elif isinstance(cause, ssl.SSLCertVerificationError):
        what = f"the certificate of {server} is not to be trusted: {printable(cause.verify_message, 120)}"
        hint = "look at the address; SSL_CERT_FILE names certificates of your own"
    elif isinstance(cause, ssl.SSLError):
        what = f"{server} makes no secure connection: {printable(str(cause.reason or cause), 120)}"
    elif isinstance(cause, socket.gaierror):
        what = f"there is no host {printable(urlsplit(url).hostname or '', 100)}, or no network"
    elif isinstance(cause, HTTPException):
        what, hint = f"{server} gives no answer that can be read: {printable(str(cause), 120)}", "look at the address"
    else:
        said = reason(cause) if isinstance(cause, OSError) else str(cause) or type(cause).__name__
        what = f"{server} cannot be reached: {printable(said, 120)}"
    kind = Lost if isinstance(cause, ConnectionError) else Unreadable
    return kind(what, where=where, hint=hint)
