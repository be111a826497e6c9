"""A hub on this machine for tests: the routes of the Hugging Face hub that its client asks for, and what goes wrong."""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = hashlib.sha1(b"first").hexdigest()
OTHER = hashlib.sha1(b"second").hexdigest()
SIGNATURE = "c0ffee5ec2e7"
_ROUTE = re.compile(r"(?:/api/models)?/(org/[\w-]+)(?:/(revision|tree|paths-info|resolve)/(refs/\w+/\w+|[^/]+))?/?(.*)")


class Hub(ThreadingHTTPServer):
    """Serves the folder `org/m` in FOLDER as a repository; `org/gated` is one that lets nobody in.

    Attributes:
        revisions: revision -> commit.
        elsewhere: whether files come from another address, which is signed.
        token: what a request must bring, or "".
        failing: numbers that the next requests for files are answered with.
        cut: bytes of an answer after which the connection is cut, the next so many times.
        tag: what is added to the ETag, so that a file seems to be another one.
        shift: by how much the range is off that is sent in place of the one that was asked for.
        requests: "METHOD path" and headers of all requests.
        sent: bytes of files.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.revisions = {"main": COMMIT, "refs/pr/7": OTHER}
        self.elsewhere = False
        self.token = ""
        self.failing: list[int] = []
        self.cut: list[int] = []
        self.tag = ""
        self.shift = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.sent = 0

    @property
    def address(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that goes away before the end is nothing to speak of."""


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((f"{self.command} {path}", dict(self.headers)))
        if path.startswith("/cdn/"):
            return self._file(hub.folder / path.removeprefix("/cdn/"))
        if path.startswith("/api/") and not path.startswith("/api/models/"):
            return self._say(404, {})
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._say(401, {"error": "no"}, **{"X-Error-Code": "RepoNotFound"})
        found = _ROUTE.match(path)
        if not found or not (hub.folder / found[1]).is_dir():
            return self._say(404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"})
        repo, what, revision, inner = found.groups()
        commit = hub.revisions.get(revision or "main", revision if revision in (COMMIT, OTHER) else None)
        if commit is None:
            return self._say(404, {"error": "Invalid rev id"}, **{"X-Error-Code": "RevisionNotFound"})
        root = hub.folder / repo
        if what == "resolve":
            if repo == "org/gated":
                return self._say(403, {"error": "Access to model is restricted"}, **{"X-Error-Code": "GatedRepo"})
            if not (root / inner).is_file():
                return self._say(404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"})
            if hub.failing:
                return self._say(hub.failing.pop(0), {"error": "later"})
            if hub.elsewhere:
                return self._say(302, {}, Location=f"{hub.address}/cdn/{repo}/{inner}?X-Amz-Signature={SIGNATURE}")
            return self._file(root / inner)
        if what == "tree":
            deep = "recursive=true" in self.path.lower()
            below = (root / inner).rglob("*") if deep else (root / inner).iterdir()
            return self._say(200, [self._entry(root, one) for one in sorted(below)])
        if what == "paths-info":
            wanted = parse_qs(body).get("paths", [])
            return self._say(200, [self._entry(root, root / one) for one in wanted if (root / one).exists()])
        about = {"id": repo, "modelId": repo, "sha": commit, "private": False, "tags": [], "downloads": 0}
        siblings = [{"rfilename": str(one.relative_to(root))} for one in root.rglob("*") if one.is_file()]
        return self._say(200, {**about, "siblings": siblings})

    def _entry(self, root: Path, path: Path) -> dict[str, object]:
        name = str(path.relative_to(root))
        known = {"path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
        return {**known, **({"type": "directory"} if path.is_dir() else {"type": "file", "size": path.stat().st_size})}

    def _file(self, path: Path) -> None:
        data = path.read_bytes()
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        begin, end = (int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))) if wanted else (0, len(data))
        begin, end = begin + self.server.shift, end + self.server.shift
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}{self.server.tag}"', "X-Repo-Commit": COMMIT}
        if wanted:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        body = data[begin:end]
        self.send_response(206 if wanted else 200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.server.cut.pop(0) if self.server.cut and len(body) > self.server.cut[0] else None
        self.server.sent += len(body[:cut])
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def _say(self, status: int, document: object, **headers: str) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextlib.contextmanager
def hub_serving(folder: Path):
    """A hub for FOLDER that runs while it is needed."""
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
