"""The Hugging Face hub: `hf://org/model`, `hf://org/model@revision`, `hf://org/model/folder/file`.

huggingface_hub asks, with its own configuration: who is logged in, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, proxies. A revision
is looked up once and becomes the hash of a commit; everything is read from that commit. What the local cache of the hub
has of it is read from there. With `HF_HUB_OFFLINE=1`, only that is.

Nothing is added to the cache, and nothing is uploaded: `hf download` and `hf upload` do that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from ..errors import CheckpointError, Malformed, Unreadable, printable, require
from . import remote
from .addresses import Url
from .ahead import body_of
from .files import File
from .inside import Folder
from .remote import FIRST, TRAFFIC, Beginning, Body, Lost, RemoteFile, Traffic
from .remote_folders import RemoteFolder

#: Seconds in which the hub has to answer, or to send more of an answer.
TIMEOUT = 30.0

_STEP = 1 << 20
_BUSY = (429, 500, 502, 503, 504)
_HASH = re.compile(r"[0-9a-f]{40}")
_WORD = re.compile(
    r"hf://(?:models/)?(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<inner>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Place:
    """What a URL of the hub names: a repository, a revision of it, and a file or folder inside ("" for all)."""

    path: Url
    repo: str
    revision: str
    inner: str


def _place(path: Url) -> _Place:
    if re.match(r"hf://(datasets|spaces|buckets)/", path.address, re.IGNORECASE):
        what = "names no model; of the hub, repositories of models are read"
        raise Unreadable(what, where=path, hint="hf download fetches from the others")
    found = _WORD.fullmatch(path.address)
    if found is None:
        raise Unreadable("names no model on the hub", where=path, hint="hf://ORG/MODEL, hf://ORG/MODEL@REVISION/FILE")
    inner = (found["inner"] or "").strip("/")
    if any(part in ("", ".", "..") for part in inner.split("/")) and inner:
        raise Unreadable("names no file of a repository", where=path, hint="check the name")
    return _Place(path, found["repo"], unquote(found["revision"] or "main"), inner)


def look(path: Url) -> File | Folder:
    """The file or folder that a URL of the hub names.

    Raises:
        Unreadable: it is not there, or may not be read, or the hub cannot be reached.
        NotInstalled: the package huggingface_hub is not installed.
    """
    place = _place(path)
    require("hf://", "huggingface_hub", where=path)
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE or (_HASH.fullmatch(place.revision) and place.inner and _cached(place, place.revision)):
        return _in_cache(place)
    traffic = TRAFFIC.setdefault(str(path), Traffic())

    def ask(work: Callable[[], _T]) -> _T:
        def once() -> _T:
            traffic.asked()
            try:
                return work()
            except Exception as error:
                raise _refusal(error, place) from None

        return remote.again(once)

    api = HfApi()
    commit = place.revision
    if not _HASH.fullmatch(commit):
        commit = ask(lambda: api.repo_info(place.repo, revision=place.revision, timeout=TIMEOUT)).sha or ""
        if not _HASH.fullmatch(commit):
            raise Unreadable("the hub does not say which commit the revision is", where=path, hint="try again later")
    if place.inner:
        found = ask(lambda: api.get_paths_info(place.repo, [place.inner], revision=commit))
        if not found:
            raise _not_there(place)
        if hasattr(found[0], "size"):
            return _file(place, commit, place.inner, path, found[0].size, FIRST)
    inside = ask(lambda: list(api.list_repo_tree(place.repo, place.inner or None, revision=commit)))
    files = {one.path.rpartition("/")[2]: one for one in inside if hasattr(one, "size")}
    return RemoteFolder(
        path,
        files,
        lambda name, first: _file(place, commit, files[name].path, path / name, files[name].size, first),
        folders=[one.path.rpartition("/")[2] for one in inside if not hasattr(one, "size")],
    )


def _file(place: _Place, commit: str, inner: str, path: Url, size: int, first: int) -> File:
    """A file of a commit: from the cache, or from the hub."""
    one = _Place(path, place.repo, place.revision, inner)
    here = _cached(one, commit)
    if here is not None:
        found = File(here).called(path)
        if found.size == size:
            return found
    return RemoteFile(HubFetcher(one, commit, size), first)


def _cached(place: _Place, commit: str) -> str | None:
    """Where the cache has a file of a commit, or None."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(place.repo, place.inner, revision=commit)
    return found if isinstance(found, str) else None


def _in_cache(place: _Place) -> File | Folder:
    """What the cache has of a revision, of which nothing else is asked."""
    from huggingface_hub import snapshot_download

    try:
        snapshot = snapshot_download(place.repo, revision=place.revision, local_files_only=True)
    except Exception as error:
        raise _refusal(error, place) from None
    real = os.path.join(snapshot, *place.inner.split("/")) if place.inner else snapshot
    if os.path.isfile(real):
        folder, name = os.path.split(real)
        return Folder(folder).file(name, name).called(place.path)
    if not os.path.isdir(real):
        what = "is not in the cache of the hub, and HF_HUB_OFFLINE forbids asking for it"
        raise Unreadable(what, where=place.path, hint=f"hf download {place.repo}, where there is a network")
    here = Folder(real)
    files = [name for name in here.names if here.lying(name) == "file"]
    return RemoteFolder(place.path, files, lambda name, _: here.file(name, name).called(place.path / name))


class HubFetcher:
    """Asks the hub for the parts of a file, with the client's own session and login.

    Args:
        place: the file.
        commit: the hash of the commit that it is read from.
        size: its bytes, as the hub lists them.
    """

    def __init__(self, place: _Place, commit: str, size: int) -> None:
        from huggingface_hub import hf_hub_url

        self.path = place.path
        self.traffic = TRAFFIC.setdefault(str(self.path), Traffic())
        self._place = place
        self._commit = commit
        self._size = size
        self._tag = ""
        self._url = hf_hub_url(place.repo, place.inner, revision=commit)

    def begin(self, first: int) -> Beginning:
        """Fetch the first bytes."""
        head = self._range(0, min(first, self._size)) if self._size else b""
        return Beginning(self._size, (self._commit, self._tag), head)

    def body(self, begin: int, end: int) -> Body:
        """The bytes from BEGIN to END, in several requests if they are many."""
        return body_of(self._range, begin, end)

    def _range(self, begin: int, end: int) -> bytes:
        self.traffic.asked()
        try:
            return self._fetch(begin, end)
        except Exception as error:
            raise _refusal(error, self._place) from None

    def _fetch(self, begin: int, end: int) -> bytes:
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        asked = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        headers = {**build_hf_headers(library_name="ckptool"), **asked}
        options: dict[str, Any] = {"headers": headers, "follow_redirects": True, "timeout": TIMEOUT}
        with get_session().stream("GET", self._url, **options) as answer:
            if answer.status_code >= 400:
                answer.read()
                hf_raise_for_status(answer)
            said = answer.headers.get("Content-Range", "")
            tag = answer.headers.get("ETag", "")
            whole = answer.status_code == 200 and (begin, end) == (0, self._size)
            if not whole and (answer.status_code != 206 or said != f"bytes {begin}-{end - 1}/{self._size}"):
                shown = printable(f"HTTP {answer.status_code}, Content-Range: {said}", 80)
                what = f"the hub does not send the bytes that were asked for ({shown})"
                raise Unreadable(what, where=self.path, hint=f"hf download {self._place.repo}, and name the folder")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise Unreadable("the hub sends it packed, which was not asked for", where=self.path)
            if self._tag and tag and tag != self._tag:
                raise Malformed("changed on the hub while it was being read", where=self.path, hint="try again")
            self._tag = self._tag or tag
            data = bytearray()
            for more in answer.iter_raw(_STEP):
                remote.require_going()
                self.traffic.arrived(len(more))
                data += more
                if len(data) > end - begin:
                    break
        if len(data) != end - begin:
            what = f"the hub sent {len(data):,} bytes, where {end - begin:,} were asked for"
            raise Lost(what, where=self.path, hint="try again")
        return bytes(data)


def _not_there(place: _Place) -> Unreadable:
    hint = f"check the name: https://huggingface.co/{place.repo}/tree/{place.revision}"
    return Unreadable("is not in the repository", where=place.path, hint=hint)


def _refusal(error: Exception, place: _Place) -> CheckpointError:
    """What an error of huggingface_hub means, in a line. Its own text may hold a signed URL and is not shown."""
    if isinstance(error, CheckpointError):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    where, repo = place.path, printable(place.repo, 100)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "GatedRepoError" in names:
        what = f"{repo} is gated: its owner has to let you in"
        return Unreadable(what, where=where, hint=f"ask at https://huggingface.co/{repo}, then: hf auth login")
    if "LocalEntryNotFoundError" in names or "OfflineModeIsEnabled" in names:
        what = "is not in the cache of the hub, and HF_HUB_OFFLINE forbids asking for it"
        return Unreadable(what, where=where, hint=f"hf download {repo}, where there is a network")
    if "RevisionNotFoundError" in names:
        revision = printable(place.revision, 100)
        return Unreadable(f"{repo} has no revision {revision}", where=where, hint="look at its branches and tags")
    if "RepositoryNotFoundError" in names:
        what = f"there is no model {repo} on the hub, or it is private"
        return Unreadable(what, where=where, hint="check the name; for a private one: hf auth login")
    if "EntryNotFoundError" in names:
        return _not_there(place)
    if "HFValidationError" in names:
        return Unreadable("names no model on the hub", where=where, hint="hf://ORG/MODEL, hf://ORG/MODEL@REVISION/FILE")
    if status in (401, 403):
        what = f"the hub refuses it (HTTP {status})"
        return Unreadable(what, where=where, hint="hf auth login, or check the permissions of the token")
    if status in _BUSY:
        return Lost(f"the hub is busy (HTTP {status})", where=where, hint="try again later")
    if status is not None:
        return Unreadable(f"the hub answers HTTP {status}", where=where, hint="try again later")
    if {"TransportError", "TimeoutError", "ConnectionError"} & names:
        what = f"the hub cannot be reached ({type(error).__name__})"
        hint = "look at the network; HF_HUB_OFFLINE=1 reads what is in the local cache"
        return Lost(what, where=where, hint=hint)
    return Unreadable(f"the hub cannot be asked ({type(error).__name__})", where=where, hint="hf download tells more")
