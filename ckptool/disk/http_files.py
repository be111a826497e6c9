"""Files on the web. Their parts come from HTTP range requests (RFC 9110, section 14).

`urllib` of the standard library knows proxies and certificates. Every answer is compared with the first: its ETag, its
Last-Modified and the length of the file. A difference is refused. A server that sends neither ETag nor Last-Modified is
asked for the whole of a small file in one answer. A large file is read in parts then, and the notes of the file say
that a change could not be noticed.
"""

from __future__ import annotations

import contextlib
import re
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import Malformed, UnknownFormat, Unreadable, printable
from . import web
from .addresses import Url, as_path
from .files import File, shell_path, shell_quote
from .remote import FIRST, TRAFFIC, Beginning, Body, Lost, NotThere, RemoteFile, Traffic, again
from .remote_folders import RemoteFolder
from .web import Answer

#: Most bytes of a file that is fetched whole, from a server that does not serve parts.
MOST_WHOLE = 64 << 20

_STEP = 1 << 20
_PACKED = re.compile(r"gzip|deflate|compress|br|zstd", re.IGNORECASE)
_NO_VERSION = (
    "gives no version of it (neither ETag nor Last-Modified), so a change while it was being read could not be noticed"
)


class HttpFetcher:
    """Asks a web server for the parts of a file.

    Args:
        address: its URL. A login in it goes to that server, and to no other.
    """

    def __init__(self, address: str) -> None:
        login = re.match(r"[^:]*://([^/?#]*)@", address)
        self.url = (address if login is None else address.replace(f"{login[1]}@", "", 1)).partition("#")[0]
        path = as_path(self.url)
        assert isinstance(path, Url)
        self.path = path
        web.require_address(self.url, self.path)
        self.traffic = TRAFFIC.setdefault(str(path), Traffic())
        self._asked = web.quoted(self.url)
        self._found = self._asked  # where redirections lead
        self._login = {web.origin(self._asked): _basic(login[1])} if login else {}
        self._version = ("", "")
        self._size = 0

    def begin(self, first: int) -> Beginning:
        """Ask for the first bytes: how large the file is, and whether its server serves parts."""
        head = self._open(first)
        notes: tuple[str, ...] = ()
        if len(head) < self._size and not any(self._version):
            if self._size <= MOST_WHOLE:  # no two answers can be told to be of one file
                head = again(lambda: self._all(self._answer(0, self._size), self._size))
            else:
                notes = (f"{printable(str(self.path))}: its server {_NO_VERSION}",)
        return Beginning(self._size, self._version, head, notes)

    def body(self, begin: int, end: int) -> Body:
        """The bytes from BEGIN to END, from one answer."""
        return _Counted(self._answer(begin, end), self.traffic)

    def _open(self, first: int) -> bytes:
        """The first bytes; all of them where the server sends no parts."""
        answer = self._send(0, first)
        with contextlib.closing(answer):
            self._found, self._version = answer.found, answer.file_version
            if answer.status == 206:
                if re.fullmatch(r"bytes \d+-\d+/\*", answer.said("Content-Range")):
                    raise Unreadable("its server does not say how large it is", where=self.path, hint=self._fetching())
                begin, end, self._size = answer.part or (1, 0, 0)
                if begin or end > first:
                    raise self._other(answer)
                data = self._all(answer, end)
                self._refuse_page(answer, data)
                return data if end in (first, self._size) else b""
            if answer.status == 200:
                return self._take_whole(answer)
            self._size = 0  # 416 is what an empty file answers to any range
            if answer.said("Content-Range") not in ("", "bytes */0"):
                raise self._other(answer)
            return b""

    def _take_whole(self, answer: Answer) -> bytes:
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
        self._size = len(data)
        return data

    def _all(self, answer: Answer, length: int | None) -> bytes:
        """The body of one answer: LENGTH bytes, or where its end is not known at most one more than may be held."""
        data = bytearray()
        with contextlib.closing(answer), contextlib.suppress(Lost):
            while more := answer.some(min(_STEP, (length or MOST_WHOLE + 1) - len(data))):
                self.traffic.arrived(len(more))
                data += more
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
        return f"fetch it first: curl {option}-L -o {shell_path(self.path.name or 'FILE')} {shell_quote(self.path)}"

    def _answer(self, begin: int, end: int) -> Answer:
        """The answer with the bytes from BEGIN to END, of the file that was opened and no other.

        Raises:
            Malformed: it is that of another version of the file.
            Unreadable: it has other bytes.
        """
        answer = self._send(begin, end)
        try:
            size = answer.part[2] if answer.part else answer.total if answer.status == 200 else self._size
            if answer.file_version != self._version or size not in (None, self._size) or answer.status == 416:
                raise Malformed(
                    "changed on its server while it was being read", where=self.path, hint="try again: all is read anew"
                )
            if answer.part != (begin, end, self._size):
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
        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity", "User-Agent": "ckptool"}
        self.traffic.asked()
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


class _Counted:
    """The body of an answer, whose bytes are counted as they arrive."""

    def __init__(self, answer: Answer, traffic: Traffic) -> None:
        self._answer = answer
        self._traffic = traffic

    def some(self, most: int) -> bytes:
        """Up to MOST bytes that come next."""
        data = self._answer.some(most)
        self._traffic.arrived(len(data))
        return data

    def close(self) -> None:
        """Close the connection."""
        self._answer.close()


def _basic(login: str) -> str:
    from base64 import b64encode

    return f"Basic {b64encode(unquote(login).encode()).decode()}"


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


#: Files that say what a folder holds, in the order in which loaders look for them, with what may lie beside them.
_FOUND_BY_NAME = (
    (".metadata", ".ckptool-note.json"),
    ("model.safetensors.index.json",),
    ("model.safetensors",),
    ("diffusion_pytorch_model.safetensors.index.json",),
    ("diffusion_pytorch_model.safetensors",),
    ("adapter_model.safetensors",),
    ("pytorch_model.bin.index.json",),
    ("pytorch_model.bin",),
)


def folder_of_names(path: Url) -> RemoteFolder | None:
    """The folder at a URL that ends with a slash, or None if none of the files that make one a checkpoint is there."""
    if not re.search(r"://[^/?#]+/([^?#]*/)?(\?|\Z)", path.address):
        return None
    return next((found for names in _FOUND_BY_NAME if (found := folder_with(path, names[0]))), None)


def folder_with(path: Url, name: str) -> RemoteFolder | None:
    """The folder at a URL, if a file of this NAME is in it. Its other files are looked for when they are named."""
    names = next((names for names in _FOUND_BY_NAME if names[0] == name), (name,))
    there: dict[str, File] = {}
    for one in names:
        found = _opened(path, one, FIRST)
        if found is not None:
            there[one] = found
        elif one == name:
            return None
    return RemoteFolder(path, there, lambda name, first: _opened(path, name, first), listed=False, opened=there)


def _opened(path: Url, name: str, first: int) -> RemoteFile | None:
    with contextlib.suppress(NotThere, UnknownFormat):  # a page that says so
        return RemoteFile(HttpFetcher((path / name).address), first)
    return None
