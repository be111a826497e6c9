"""Object stores, through fsspec: `s3://`, `gs://`, `az://`, and `memory://` for trying things out.

Who logs in, and how, is the business of the package behind each scheme: it finds its own configuration, and nothing of
it is looked at here. Of what a store says, a message shows the code and never the text, which may hold names of
accounts or a signed URL.

All bytes are of one version of an object. S3 is asked for the ETag of the first answer (`If-Match`). Of other stores
the version is looked up after each read, which costs one more request.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from ..errors import CheckpointError, Malformed, Unreadable, not_installed, printable
from . import remote
from .addresses import STORES, Url, scheme_of
from .ahead import body_of
from .files import File
from .inside import Folder
from .remote import TRAFFIC, Beginning, Body, Lost, NotThere, RemoteFile, Traffic
from .remote_folders import RemoteFolder

#: Seconds in which a store has to answer, or to send more of an answer.
PATIENCE = 60.0
#: Bytes that it has to send in a second.
SLOWEST = 20_000

_TICK = 0.5
_VERSIONS = "ETag etag VersionId generation md5Hash LastModified last_modified updated created".split()
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_UNKNOWN_LOGIN = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidClientTokenId", "InvalidToken")
_BUSY = "SlowDown InternalError ServiceUnavailable RequestTimeout ServerBusy 500 502 503 504".split()
_NO_LOGIN = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError")
_UNREACHED = re.compile("connect|timeout|timedout|disconnect|payload|incompleteread|servicerequest|streaming")
_T = TypeVar("_T")


def filesystem(path: Url) -> tuple[Any, str]:
    """What reaches the store of a URL, and the name of the object there.

    Raises:
        NotInstalled: the package for it is not installed.
        Unreadable: it finds its configuration wanting.
    """
    scheme = scheme_of(path)
    package = STORES[scheme] or "fsspec"
    try:
        from fsspec import get_filesystem_class

        # not `url_to_fs`, for which `::` in a name begins another URL, so that it reads and writes another object
        kind = get_filesystem_class(scheme)
        address = f"{scheme}{path.address[len(scheme) :]}"
        fs, key = kind(**kind._get_kwargs_from_urls(address)), kind._strip_protocol(address)
    except ImportError:
        raise not_installed(f"{scheme}://", package, where=path) from None
    except Exception as error:
        what = f"{package} cannot be used as it is configured ({type(error).__name__})"
        raise Unreadable(what, where=path, hint=_login_hint(scheme)) from None
    fs.invalidate_cache()
    return fs, key


def look(path: Url) -> File | Folder:
    """The object at a URL, or all objects whose names begin with it and a slash.

    Raises:
        Unreadable: there is none, or it may not be read.
    """
    fs, key = filesystem(path)
    if ("/" in key.strip("/") or scheme_of(path) == "memory") and not path.address.endswith("/"):
        try:
            return RemoteFile(_fetcher(fs, key, path))
        except NotThere as error:
            nothing = error
    else:
        nothing = NotThere("holds nothing", where=path, hint="check the name")
    try:
        return _folder(fs, key.rstrip("/"), path)
    except NotThere:
        raise nothing from None


def _folder(fs: Any, key: str, path: Url) -> Folder:
    TRAFFIC.setdefault(str(path), Traffic()).asked()
    inside = [one for one in call(fs, path, "ls", key, detail=True) if one["name"].rstrip("/") != key]
    if not inside:
        raise NotThere("holds nothing", where=path, hint="check the name")
    named = {one["name"].rstrip("/").rpartition("/")[2]: one for one in inside}
    files = {name: one for name, one in named.items() if one["type"] == "file" and name}
    return RemoteFolder(
        path,
        files,
        lambda name, first: RemoteFile(_fetcher(fs, files[name]["name"], path / name, files[name]), first),
        folders=[name for name in named if name not in files],
    )


def _fetcher(fs: Any, key: str, path: Url, known: Mapping[str, Any] | None = None) -> StoreFetcher:
    return (S3Fetcher if "s3" in protocols(fs) else StoreFetcher)(fs, key, path, known)


def protocols(fs: Any) -> tuple[str, ...]:
    """The schemes of a store."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


class StoreFetcher:
    """Asks a store for the parts of an object, and looks up its version after each.

    Args:
        fs: what reaches the store.
        key: the name of the object there.
        path: its URL.
        known: what a listing said of it.
    """

    def __init__(self, fs: Any, key: str, path: Url, known: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.traffic = TRAFFIC.setdefault(str(path), Traffic())
        self._fs = fs
        self._key = key
        self._size = -1
        self._version: dict[str, str] = {}
        if known is not None:
            self._size, self._version = int(known["size"]), version_of(known)

    def begin(self, first: int) -> Beginning:
        """Find out how large it is, and fetch its first bytes."""
        if self._size < 0:
            self._size, self._version = self._info()
        head = self._range(0, min(first, self._size)) if self._size else b""
        return Beginning(self._size, tuple(self._version.values()), head)

    def body(self, begin: int, end: int) -> Body:
        """The bytes from BEGIN to END, in several requests if they are many."""
        return body_of(self._range, begin, end)

    def _info(self) -> tuple[int, dict[str, str]]:
        self._fs.invalidate_cache(self._fs._parent(self._key))
        self.traffic.asked()
        found = call(self._fs, self.path, "info", self._key)
        if found["type"] != "file" or found.get("size") is None:
            raise NotThere("is a folder", where=self.path)
        return int(found["size"]), version_of(found)

    def _range(self, begin: int, end: int) -> bytes:
        self.traffic.asked()
        patience = PATIENCE + (end - begin) / SLOWEST
        data: bytes = call(self._fs, self.path, "cat_file", self._key, start=begin, end=end, patience=patience)
        self.traffic.arrived(len(data))
        size, version = self._info()
        if size != self._size or any(version.get(name, value) != value for name, value in self._version.items()):
            raise changed(self.path)
        self._version |= version  # a listing may say less
        return self.measured(data, begin, end)

    def measured(self, data: bytes, begin: int, end: int) -> bytes:
        """DATA, if they are as many bytes as were asked for."""
        if len(data) != end - begin:
            what = f"its store sent {len(data):,} bytes, where {end - begin:,} were asked for"
            raise Lost(what, where=self.path, hint="try again")
        return data


class S3Fetcher(StoreFetcher):
    """Asks S3 for the parts of an object, each with the ETag of the first."""

    def begin(self, first: int) -> Beginning:
        """Ask for the first bytes: one request says how large it is, which version, and what it begins with."""
        if self._size == 0:
            return Beginning(0, tuple(self._version.values()))
        try:
            answer, head = self._get(0, first if self._size < 0 else min(first, self._size))
        except _NoSuchRange:  # what an empty object answers to any range
            self._size, self._version = self._info()
            if self._size:
                raise Lost("its store serves no parts of it", where=self.path, hint="try again") from None
            return Beginning(0, tuple(self._version.values()))
        stated = re.fullmatch(r"bytes 0-(\d+)/(\d+)", str(answer.get("ContentRange", "")))
        if not stated or int(stated[1]) + 1 != min(first, int(stated[2])):
            raise self._other(answer)
        if self._size not in (-1, int(stated[2])):
            raise changed(self.path)
        self._size = int(stated[2])
        self._version = version_of(answer)
        head = self.measured(head, 0, min(first, self._size))
        return Beginning(self._size, (self._version.get("ETag", ""), self._version.get("VersionId", "")), head)

    def _range(self, begin: int, end: int) -> bytes:
        answer, data = self._get(begin, end)
        if answer.get("ContentRange") != f"bytes {begin}-{end - 1}/{self._size}":
            raise self._other(answer)
        if version_of(answer).get("ETag") != self._version.get("ETag"):  # a store that does not look at If-Match
            raise changed(self.path)
        return self.measured(data, begin, end)

    def _other(self, answer: Mapping[str, Any]) -> Unreadable:
        said = printable(str(answer.get("ContentRange")), 60)
        what = f"its store does not send the bytes that were asked for (Content-Range: {said})"
        return Unreadable(what, where=self.path, hint="try again")

    def _get(self, begin: int, end: int) -> tuple[Mapping[str, Any], bytes]:
        """The answer with the bytes from BEGIN on, END at the most, and these bytes."""
        bucket, key, version = self._fs.split_path(self._key)
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={begin}-{end - 1}"}
        asked |= {"VersionId": version} if version else {}
        asked |= {"IfMatch": self._version["ETag"]} if "ETag" in self._version else {}
        self.traffic.asked()

        async def get() -> tuple[Mapping[str, Any], bytes]:
            answer = await self._fs._call_s3("get_object", **asked)
            body = answer["Body"]
            try:
                if int(answer["ContentLength"]) > end - begin:
                    return answer, b""
                return answer, await body.read()
            finally:
                body.close()

        answer, data = wait(self._fs, self.path, get(), PATIENCE + (end - begin) / SLOWEST)
        self.traffic.arrived(len(data))
        return answer, data


def version_of(known: Mapping[str, Any]) -> dict[str, str]:
    """What tells versions of an object apart, as far as an answer says it."""
    found = {name: known[name] for name in _VERSIONS if known.get(name) not in (None, "")}
    return {name: str(value.timestamp() if hasattr(value, "timestamp") else value) for name, value in found.items()}


def changed(path: Url) -> Malformed:
    """What is said of an object that became another one meanwhile."""
    return Malformed("changed in its store while it was being read", where=path, hint="try again: all is read anew")


# -- asking


def call(fs: Any, path: Url, method: str, *args: Any, patience: float = PATIENCE, **options: Any) -> Any:
    """Call a method of a store, which answers in bounded time.

    Raises:
        CheckpointError: whatever goes wrong, as one line.
    """
    if fs.async_impl:
        return wait(fs, path, getattr(fs, f"_{method}")(*args, **options), patience)
    try:
        return getattr(fs, method)(*args, **options)
    except Exception as error:
        raise refusal(error, path) from None


def wait(fs: Any, path: Url, work: Coroutine[Any, Any, _T], patience: float, *, stoppable: bool = True) -> _T:
    """What WORK gives, which the loop of a store does, in bounded time.

    STOPPABLE work is given up when the program ends.
    """
    future = asyncio.run_coroutine_threadsafe(work, fs.loop)
    waited = 0.0
    try:
        while True:
            try:
                return future.result(_TICK)
            except concurrent.futures.TimeoutError as error:
                if future.done() and not future.cancelled():
                    if future.exception() is not None:
                        raise refusal(error, path) from None
                    continue
                waited += _TICK
                if stoppable:
                    remote.require_going()
                if waited >= patience:
                    raise Lost(
                        f"its store does not answer within {patience:,.0f} seconds", where=path, hint="try again later"
                    ) from None
            except CheckpointError:
                raise
            except Exception as error:
                raise refusal(error, path) from None
    finally:
        future.cancel()


class _NoSuchRange(Unreadable):
    """The object ends before the bytes that were asked for."""


def code_of(error: BaseException) -> str:
    """The code that a store gave with an error, "" without one."""
    for one in (error, error.__cause__, error.__context__):
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        code = getattr(one, "error_code", None) or getattr(one, "code", None) or getattr(one, "status_code", None)
        if code is not None and not callable(code):
            return str(getattr(code, "value", code))
    return ""


def refusal(error: BaseException, path: Url) -> CheckpointError:
    """What an error of a store means, in a line: its code, and nothing of its text."""
    if isinstance(error, CheckpointError):
        return error
    scheme, code, kind = scheme_of(path), code_of(error), type(error).__name__
    shown = printable(code or kind, 60)
    if kind in _NO_LOGIN:
        return Unreadable("no login for its store was found", where=path, hint=_login_hint(scheme))
    if code in _EXPIRED:
        return Unreadable(f"the login for its store has expired ({shown})", where=path, hint="log in again")
    if code in _UNKNOWN_LOGIN:
        return Unreadable(f"its store does not know the login ({shown})", where=path, hint=_login_hint(scheme))
    if code in ("NoSuchBucket", "ContainerNotFound"):
        bucket = printable(path.address.partition("://")[2].partition("/")[0], 100)
        return Unreadable(f"there is no bucket {bucket}", where=path, hint="check the name and the login")
    if code in ("PreconditionFailed", "412", "ConditionNotMet"):
        return changed(path)
    if code in ("InvalidRange", "416"):
        return _NoSuchRange("is shorter than it was", where=path)
    if isinstance(error, PermissionError) or code in ("403", "401", "AuthorizationFailure", "AuthenticationFailed"):
        what = f"its store denies access to it ({shown})"
        return Unreadable(what, where=path, hint=f"look at who is logged in, and what they may: {_who(scheme)}")
    if isinstance(error, FileNotFoundError) or code in ("404", "NoSuchKey", "BlobNotFound"):
        return NotThere("is not there", where=path, hint="check the name")
    unreached = isinstance(error, TimeoutError | asyncio.TimeoutError | ConnectionError)
    if code in _BUSY or unreached or _UNREACHED.search(kind.lower()):
        return Lost(f"its store cannot be reached, or is busy ({shown})", where=path, hint="try again later")
    hint = "look whether the store's own client can do it"
    return Unreadable(f"its store answers with an error ({shown})", where=path, hint=hint)


def _who(scheme: str) -> str:
    return {"s3fs": "aws sts get-caller-identity", "gcsfs": "gcloud auth list", "adlfs": "az account show"}.get(
        STORES.get(scheme, ""), "its configuration"
    )


def _login_hint(scheme: str) -> str:
    return {
        "s3fs": "aws configure, or AWS_PROFILE=NAME; for what is public FSSPEC_S3_ANON=true",
        "gcsfs": "gcloud auth application-default login; for what is public FSSPEC_GS_TOKEN=anon",
        "adlfs": "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and az login",
    }.get(STORES.get(scheme, ""), "look at its configuration")
