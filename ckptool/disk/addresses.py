"""Words that name something elsewhere: which there are, and how they are shown.

`https://host/a.pth`, `s3://bucket/a.pth` and `hf://org/model/a.pth` stand where a path stands. `Url` is such a word
with the manners of a path. What it was typed as is its `address`; what is shown of it has no password and no signature,
so that neither gets into a message, a receipt or a log.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import without_secrets

StrPath = str | os.PathLike[str]

#: Schemes of files on the web.
WEB = ("http", "https")
#: Scheme of an object store -> the package that fsspec reaches it through, "" where fsspec itself does.
STORES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
    "memory": "",
}
#: Scheme of the Hugging Face hub.
HUB = "hf"

_KNOWN = re.compile(rf"({'|'.join((*WEB, *STORES, HUB))})://", re.IGNORECASE)


class Url(type(Path())):  # type: ignore[misc]
    """A URL where a path is expected: its name and its suffix are those of the file.

    Attributes:
        address: the URL as it was given, for those who ask for it. As text it is shown without secrets.
    """

    address = ""

    def __str__(self) -> str:
        return without_secrets(self.address) or super().__str__()

    def __fspath__(self) -> str:
        return str(self)

    def __truediv__(self, name: StrPath) -> Url:
        place, query = _parted(self.address)
        return _url(f"{place.rstrip('/')}/{os.fspath(name)}{query}")

    @property
    def parent(self) -> Url:
        """The folder that it is in. On the web, what stands behind `?` stays: a signature may be for all of it."""
        place, query = _parted(self.address)
        folder = re.sub(r"(?<![:/])/[^/]*/?\Z", "/", place)
        return _url(f"{folder}{query}")


def _parted(address: str) -> tuple[str, str]:
    """A URL without its query, and the query with its `?`. Elsewhere than on the web, that is a letter of names."""
    place, mark, query = address.partition("?") if is_web(address) else (address, "", "")
    return place, f"{mark}{query}"


def _url(address: str) -> Url:
    query = r"[?#].*$" if is_web(address) else r"\Z"  # elsewhere these are letters of names
    inner = re.sub(rf"^[^:]*://[^/?#]*|{query}", "", address, flags=re.DOTALL)
    from urllib.parse import unquote

    made = Url((unquote(inner) if is_web(address) else inner) or "/")
    made.address = address
    return made


def as_path(path: StrPath) -> Path:
    """A path, or a URL as one."""
    if isinstance(path, Url):
        return path
    return _url(str(path)) if is_url(path) else Path(path)


def address_of(path: StrPath) -> str:
    """A path or URL as it was given, with what is not shown of it."""
    return (path.address if isinstance(path, Url) else "") or str(path)


def scheme_of(path: object) -> str:
    """The scheme of a URL that can be read, in lower case: `s3`. "" for anything else."""
    found = _KNOWN.match(str(path))
    return found[1].lower() if found else ""


def is_url(path: object) -> bool:
    """Whether a path is a URL that can be read: of the web, of an object store, or of the hub."""
    return _KNOWN.match(str(path)) is not None


def is_web(path: object) -> bool:
    """Whether a path is a URL of the web."""
    return scheme_of(path) in WEB


def is_store(path: object) -> bool:
    """Whether a path is a URL of an object store, which can also be written to."""
    return scheme_of(path) in STORES


def is_remote(path: object) -> bool:
    """Whether a path names something elsewhere (`ftp://host/x`): it has a scheme, and there is no such file here.

    One letter before the colon is a drive of Windows. Of a `Path`, `//` has become `/`, as behind a folder `s3:` here.
    """
    scheme = re.match(r"([a-z][a-z0-9+.-]+:)(//?)", str(path), re.IGNORECASE)
    if scheme is None or (scheme[2] == "/" and (isinstance(path, str) or os.path.isdir(scheme[1]))):
        return False
    return is_url(path) or not os.path.lexists(str(path))


def model_hint(path: object) -> str | None:
    """What to type where PATH is no file and may be the name of a model on the hub: `org/model`."""
    name = str(path).removeprefix("./")
    parts = name.split("/")
    if len(parts) != 2 or not all(re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}", part, re.ASCII) for part in parts):
        return None
    if os.path.lexists(parts[0]) or re.search(r"\.(pth?|ckpt|bin|safetensors|tar|zip|pkl|json|index|metadata)$", name):
        return None
    return f"if it is a model on the Hugging Face hub, name it hf://{name}"
