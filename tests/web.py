"""A web server on this machine for tests: it serves a folder, with or without parts of files, and fails as asked."""

import contextlib
import hashlib
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Server(ThreadingHTTPServer):
    """Serves the files of a folder.

    Attributes:
        ranges: whether it serves parts of files.
        tags: what it says to tell versions of a file apart: "strong", "weak", "date", or "" for nothing.
        redirects: path -> where it leads.
        pages: path -> the text of a web page.
        status: path -> the number it answers with.
        failing: path -> numbers that the next requests are answered with.
        slow: path -> seconds before it answers.
        raw: path -> what is sent byte for byte, and then the connection is closed: a function of the bytes that are
            asked for (a range) and of the number of the request, from 0, that yields bytes. b"" resets the connection.
        breaking: bytes of an answer after which the connection is cut, the next so many times.
        requests: (path, headers) of all requests.
        sent: bytes of bodies.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.ranges = True
        self.tags = "strong"
        self.redirects: dict[str, str] = {}
        self.pages: dict[str, str] = {}
        self.status: dict[str, int] = {}
        self.failing: dict[str, list[int]] = {}
        self.slow: dict[str, float] = {}
        self.raw: dict[str, Callable[[range, int], Iterable[bytes]]] = {}
        self.breaking: list[int] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.sent = 0

    def url(self, name: str) -> str:
        """The URL of a file."""
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that goes away before the end is nothing to speak of."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server, path = self.server, unquote(urlsplit(self.path).path).lstrip("/")
        server.requests.append((path, dict(self.headers)))
        time.sleep(server.slow.get(path, 0))
        if server.failing.get(path):
            return self._say(server.failing[path].pop(0), b"later")
        if path in server.redirects:
            return self._say(302, b"", Location=server.redirects[path])
        if path in server.pages:
            return self._say(200, server.pages[path].encode(), **{"Content-Type": "text/html; charset=utf-8"})
        if path in server.raw:
            return self._say_raw(path)
        if path in server.status:
            return self._say(server.status[path], b"no")
        file = server.folder / path
        if not file.is_file():
            return self._say(404, b"no such file")
        data = file.read_bytes()
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        headers = {
            "strong": {"ETag": tag},
            "weak": {"ETag": f"W/{tag}"},
            "date": {"Last-Modified": self.date_time_string(int(file.stat().st_mtime))},
        }.get(server.tags, {})
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        condition = self.headers.get("If-Range")
        if not (wanted and server.ranges) or (condition and condition not in headers.values()):
            return self._say(200, data, **headers)
        begin, end = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1) + 1
        if begin >= len(data):
            return self._say(416, b"", **{"Content-Range": f"bytes */{len(data)}"})
        where = f"bytes {begin}-{end - 1}/{len(data)}"
        return self._say(206, data[begin:end], **{"Content-Range": where}, **headers)

    def _say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/octet-stream", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.breaking.pop(0) if self.server.breaking and len(body) > self.server.breaking[0] else None
        self.server.sent += len(body[:cut])
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[:cut])
        if cut is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def _say_raw(self, path: str) -> None:
        self.close_connection = True
        wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        asked = range(int(wanted[1]), int(wanted[2]) + 1) if wanted else range(0)
        number = [name for name, _ in self.server.requests].count(path) - 1
        with contextlib.suppress(ConnectionError):
            for data in self.server.raw[path](asked, number):
                if not data:
                    linger = struct.pack("ii" if os.name != "nt" else "hh", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.rfile.close()
                    self.connection.close()
                    return
                self.connection.sendall(data)


def answer(status: int, body: bytes = b"", *headers: tuple[str, object]) -> bytes:
    """An answer as it crosses the network."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} said\r\n{lines}\r\n".encode("latin-1") + body


def part(data: bytes, asked: range, *headers: tuple[str, object], length: bool = True) -> bytes:
    """The answer of a server that does well: the bytes of DATA that are asked for."""
    body = data[asked.start : asked.stop]
    where = f"bytes {asked.start}-{asked.start + len(body) - 1}/{len(data)}"
    return answer(206, body, ("Content-Range", where), *([("Content-Length", len(body))] if length else []), *headers)


@contextlib.contextmanager
def serving(folder: Path):
    """A server for FOLDER that runs while it is needed."""
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
