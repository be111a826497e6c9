"""Ways of sending an object to a store: S3's own uploads in parts, files of fsspec, and memory."""

from __future__ import annotations

import contextlib
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import md5
from io import BytesIO
from typing import Any, Protocol

from ..errors import CheckpointError, OutputExists, Unwritable
from .addresses import Url
from .remote import Lost, again
from .stores import call, code_of, protocols, refusal, version_of, wait
from .writing import Progress

#: Parts that are on their way at once, of all files together.
ON_THEIR_WAY = 6
#: An object of so few bytes is sent in one request, and held until then.
SMALL = 256 << 10
#: Seconds in which a store has to put the parts of an object together.
_PUTTING_TOGETHER = 600.0


class Sent(Protocol):
    """An object on its way."""

    def add(self, data: bytes) -> None:
        """Send what comes next: PART bytes, or more where the object is large, but for the last."""

    def finish(self) -> None:
        """Wait until the store has all that was sent."""

    def publish(self, old: str | None) -> None:
        """Give the object its name; OLD is the version of what has it, or None if nothing does."""

    def stop(self) -> None:
        """Send no more."""

    def discard(self) -> None:
        """Take back what was sent."""


def seen(found: Mapping[str, Any]) -> str:
    """What tells an object from another one of its name."""
    return next(iter(version_of(found).values()), str(found["size"]))


def unwritable(error: CheckpointError, path: Url) -> CheckpointError:
    """What a store refuses, of a target."""
    return error if isinstance(error, OutputExists) else Unwritable(error.what, where=path, hint=error.hint)


def _taken(path: Url, old: str | None) -> OutputExists:
    what = "was made by another program meanwhile" if old is None else "was changed by another program meanwhile"
    return OutputExists(what, where=path, hint="run the command again, with --overwrite")


def sender_for(
    fs: Any,
    key: str,
    path: Url,
    size: int,
    room: int,
    parts: ThreadPoolExecutor,
    gate: threading.Semaphore,
    progress: Progress | None,
) -> Sent:
    """What sends an object to a store.

    Args:
        fs, key, path: the store, the name of the object there, and its URL.
        size: its bytes.
        room: bytes that may be held of it, where the store's own file holds some.
        parts, gate: what sends parts in the background, and how many at once.
        progress: called with the number of bytes, each time some were sent.
    """
    names = protocols(fs)
    if "s3" in names:
        return _ToS3(fs, key, path, size, parts, gate, progress)
    return (_ToMemory if "memory" in names else _ToStore)(fs, key, path, room, progress)


class _ToS3:
    """An object of S3: an upload in parts, or one request for a small one."""

    _stopped = False

    def __init__(
        self,
        fs: Any,
        key: str,
        path: Url,
        size: int,
        parts: ThreadPoolExecutor,
        gate: threading.Semaphore,
        progress: Progress | None,
    ) -> None:
        self._fs, self._path, self._size = fs, path, size
        self._bucket, self._key, _ = fs.split_path(key)
        self._pool, self._gate, self._progress = parts, gate, progress
        self._small = b""
        self._upload = ""
        self._parts: list[Future[dict[str, Any]]] = []
        self._published = False

    def add(self, data: bytes) -> None:
        """Send a part, in the background."""
        if self._size <= SMALL:
            self._small = data
            return
        if not self._upload:
            self._upload = self._ask("create_multipart_upload")["UploadId"]
        while not self._gate.acquire(timeout=0.5):
            self._require_going()
        for part in self._parts[-ON_THEIR_WAY - 1 :]:
            if part.done():
                part.result()
        number = len(self._parts) + 1
        self._parts.append(self._pool.submit(self._part, number, data))

    def _part(self, number: int, data: bytes) -> dict[str, Any]:
        try:
            self._require_going()
            digest = b64encode(md5(data, usedforsecurity=False).digest()).decode()
            options = {"UploadId": self._upload, "PartNumber": number, "ContentMD5": digest}
            answer = again(lambda: self._ask("upload_part", Body=BytesIO(data), **options))
            if self._progress:
                self._progress(len(data))
            return {"PartNumber": number, "ETag": answer["ETag"]}
        finally:
            self._gate.release()

    def _require_going(self) -> None:
        if self._stopped:
            raise Unwritable("was not written to its end", where=self._path)

    def finish(self) -> None:
        """Wait for the parts that are on their way."""
        for part in self._parts:
            part.result()

    def publish(self, old: str | None) -> None:
        """Complete the upload."""
        if old and str(self._ask("head_object").get("ETag") or "") != old:  # some servers do not look at If-Match
            raise _taken(self._path, old)
        condition = {"IfMatch": old} if old else {"IfNoneMatch": "*"}
        if not self._upload:
            digest = b64encode(md5(self._small, usedforsecurity=False).digest()).decode()
            self._conditional("put_object", condition, old, Body=self._small, ContentMD5=digest)
            if self._progress and self._small:
                self._progress(len(self._small))
        else:
            parts = {"Parts": [part.result() for part in self._parts]}
            self._conditional("complete_multipart_upload", condition, old, UploadId=self._upload, MultipartUpload=parts)
        self._published = True

    def _conditional(self, method: str, condition: dict[str, str], old: str | None, **options: Any) -> None:
        """Ask for what makes the object visible. Where the answer is lost, the object itself is looked at."""
        try:
            self._ask(method, **options, **condition)
        except OutputExists:
            raise _taken(self._path, old) from None
        except Lost:
            if not self._is_there(old):
                raise

    def _is_there(self, old: str | None) -> bool:
        """Whether an object of this size is there now that is not the one that was."""
        found = self._ask("head_object")
        return int(found["ContentLength"]) == self._size and str(found.get("ETag") or "") != (old or "")

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    def discard(self) -> None:
        """Abort the upload, when no part of it is on its way any more."""
        for part in self._parts:
            part.cancel()
            with contextlib.suppress(BaseException):
                part.result()
        if self._upload and not self._published:
            self._ask("abort_multipart_upload", UploadId=self._upload)

    def _ask(self, method: str, **options: Any) -> Any:
        work = self._fs._call_s3(method, Bucket=self._bucket, Key=self._key, **options)
        try:
            return wait(self._fs, self._path, _answer(work), _PUTTING_TOGETHER, stoppable=False)
        except _Taken:
            raise _taken(self._path, None) from None
        except Lost:
            raise
        except CheckpointError as error:
            raise unwritable(error, self._path) from None


class _Taken(OutputExists):
    """A condition that does not hold."""


async def _answer(work: Any) -> Any:
    try:
        return await work
    except Exception as error:
        taken = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
        if isinstance(error, FileExistsError) or code_of(error) in taken:
            raise _Taken("exists already") from None
        raise


class _ToStore:
    """An object of another store: a file of fsspec's, which is closed to publish it."""

    _stopped = False

    def __init__(self, fs: Any, key: str, path: Url, room: int, progress: Progress | None) -> None:
        self._fs, self._key, self._path = fs, key, path
        self._room, self._progress = room, progress
        self._file: Any = None

    def add(self, data: bytes) -> None:
        """Send what comes next."""
        if self._stopped:
            raise Unwritable("was not written to its end", where=self._path)
        with self._refusing(None):
            if self._file is None:
                self._file = self._open()
            self._file.write(data)
        if self._progress:
            self._progress(len(data))

    def _open(self) -> Any:
        mode = "xb" if self._is_free() else "wb"
        return self._fs.open(self._key, mode, block_size=self._room)

    def _is_free(self) -> bool:
        self._fs.invalidate_cache()
        return not self._fs.exists(self._key)

    def finish(self) -> None:
        """What is left is sent when the file is closed."""

    def publish(self, old: str | None) -> None:
        """Close the file."""
        with self._refusing(old):
            if self._file is None:
                self._file = self._open()
            if old is not None:
                found = call(self._fs, self._path, "info", self._key)
                if seen(found) != old:
                    raise _taken(self._path, old)
            self._file.close()

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    def discard(self) -> None:
        """Let the store forget what was sent; otherwise closing would publish it."""
        if self._file is not None and not self._file.closed:
            with contextlib.suppress(Exception):
                self._file.discard()
            self._file.closed = True

    @contextlib.contextmanager
    def _refusing(self, old: str | None) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise _taken(self._path, old) from None
        except Exception as error:
            if "exists" in type(error).__name__.lower() or code_of(error) in ("BlobAlreadyExists", "412"):
                raise _taken(self._path, old) from None
            raise unwritable(refusal(error, self._path), self._path) from None


class _ToMemory:
    """An object in the memory of this process."""

    def __init__(self, fs: Any, key: str, path: Url, room: int, progress: Progress | None) -> None:
        self._fs, self._key, self._path = fs, key, path
        self._progress = progress
        self._held = bytearray()

    def add(self, data: bytes) -> None:
        """Hold what comes next."""
        self._held += data
        if self._progress:
            self._progress(len(data))

    def finish(self) -> None:
        """All is here."""

    def publish(self, old: str | None) -> None:
        """Put it there."""
        try:
            self._fs.pipe_file(self._key, bytes(self._held), mode="create" if old is None else "overwrite")
        except FileExistsError:
            raise _taken(self._path, old) from None

    def stop(self) -> None:
        """All that is here is forgotten anyway."""

    def discard(self) -> None:
        """Forget it."""
        self._held.clear()
