"""Writing to an object store: an object, or a folder of objects, is there whole or not at all.

A store knows no renaming. What S3 knows is an upload in parts, of which nothing can be seen until it is completed. So
all parts of all files are sent first. Then, in one short step in which signals wait, the uploads are completed in the
order of the files: the index, without which nobody takes shards for a checkpoint, is the last. Whatever breaks off
before that step leaves what was there, and no parts.

A new object is made on the condition that there is none (`If-None-Match: *`), one that is replaced on the condition
that it is still the one that was seen (`If-Match`). In an old folder that is replaced, the files of the old checkpoint
go before a new one comes: if the step is cut in two, what is left lacks files and is refused, and is no mixture.

Other stores are written through fsspec's files, which are closed in that same step.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..errors import CheckpointError, OutputExists, RuleError, Unwritable
from .addresses import Url, scheme_of
from .composing import Piece
from .files import FileRange, shell_path
from .interrupts import put_off_signals
from .remote import Lost, NotThere, again
from .sending import ON_THEIR_WAY, Sent, seen, sender_for, unwritable
from .stores import call, filesystem
from .targets import written
from .writing import Output, Progress, put_pieces

#: Least bytes of a part, and most parts of an object. S3 allows 10,000.
PART = 8 << 20
_MOST_PARTS = 9_000
#: Files that are sent at once.
_AT_ONCE = 3
#: Bytes that the files of other stores may hold together.
_HELD = 128 << 20


def check_upload(path: Url, *, overwrite: bool = False, backup: str | None = None) -> None:
    """Refuse an object that cannot or must not be written, before any work is done.

    Raises:
        OutputExists: it is there, and OVERWRITE is false.
        Unwritable: nothing can be written there.
    """
    _file_there(path, overwrite, backup)


def check_upload_folder(path: Url, *, overwrite: bool = False, backup: str | None = None) -> None:
    """Refuse a folder that cannot or must not be written, before any work is done; see `check_upload`."""
    _folder_there(path, overwrite, backup)


def upload(
    path: Url,
    pieces: Sequence[Piece],
    *,
    overwrite: bool = False,
    backup: str | None = None,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write PIECES to an object, whole or not at all.

    Args:
        path: the URL of the object.
        pieces: its bytes, in order.
        overwrite: allow it to exist.
        backup: must be None; a store is asked for one by its own client.
        progress: called with the number of bytes, each time some were sent.
        check: called when all is sent, before the object takes its name; what it raises stops that.

    Raises:
        OutputExists: it is there and OVERWRITE is false, or it was made or changed meanwhile.
        Unwritable: the store does not take it.
    """
    fs, key, old = _file_there(path, overwrite, backup)
    with _uploading(fs, {path.name: path}, {path.name: key}, {path.name: pieces}, progress) as sent:
        check()
        with put_off_signals():
            sent[path.name].publish(old)
            written.append(str(path))


def upload_folder(
    path: Url,
    files: Mapping[str, Sequence[Piece]],
    *,
    overwrite: bool = False,
    backup: str | None = None,
    replaced: Callable[[str], bool] = lambda _: False,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write FILES to a folder, so that there is a whole checkpoint or none.

    Args:
        path: the URL of the folder.
        files: name -> pieces; the last is what makes the others a checkpoint.
        overwrite: allow the folder to hold something. What is neither replaced nor among FILES stays.
        replaced: whether an object that is there goes, though none of FILES takes its place.
        backup, progress, check: see `upload`.

    Raises:
        OutputExists, Unwritable: see `upload`.
    """
    fs, key, there = _folder_there(path, overwrite, backup)
    goes = [name for name in there if name in files or replaced(name)]
    keys = {name: f"{key}/{name}" for name in files}
    with _uploading(fs, {name: path / name for name in files}, keys, files, progress) as sent:
        check()
        if _versions(fs, key, path) != there:
            raise OutputExists("was changed by another program meanwhile", where=path, hint="run the command again")
        with put_off_signals():
            done: list[str] = []
            try:
                for name in reversed([*(n for n in goes if n not in files), *(n for n in files if n in goes)]):
                    _remove(fs, f"{key}/{name}", path / name)
                for name, one in sent.items():
                    one.publish(None)
                    done.append(name)
            except CheckpointError as error:
                for name in done if not goes else ():
                    with contextlib.suppress(CheckpointError):
                        _remove(fs, keys[name], path / name)
                if goes:
                    error.hint = "what was there is gone in part: run the command again, with --overwrite"
                raise
            written.append(str(path))


@contextlib.contextmanager
def _uploading(
    fs: Any,
    paths: Mapping[str, Url],
    keys: Mapping[str, str],
    files: Mapping[str, Sequence[Piece]],
    progress: Progress | None,
) -> Iterator[dict[str, Sent]]:
    """Send all files, several at once. What was not published at the end of the block is taken back."""
    gate = threading.Semaphore(ON_THEIR_WAY)
    room = max(1 << 20, min(PART, _HELD // len(files)))
    sent: dict[str, Sent] = {}
    with ThreadPoolExecutor(ON_THEIR_WAY, "part") as parts, ThreadPoolExecutor(_AT_ONCE, "upload") as pool:
        going: list[Future[None]] = []
        try:
            for name, pieces in files.items():
                size = sum(piece.length for piece in pieces)
                sent[name] = sender_for(fs, keys[name], paths[name], size, room, parts, gate, progress)
            going += [pool.submit(_send, sent[name], pieces, size_of_part(pieces)) for name, pieces in files.items()]
            finished, _ = concurrent.futures.wait(going, return_when=concurrent.futures.FIRST_EXCEPTION)
            for one in (*finished, *going):  # one that failed first: it need not wait for the others
                one.result()
            yield sent
        except BaseException as error:
            with put_off_signals():
                for sender in sent.values():
                    sender.stop()
                for one in going:
                    one.cancel()
                pool.shutdown(wait=True)
                for sender in sent.values():
                    with contextlib.suppress(CheckpointError):
                        sender.discard()
            if isinstance(error, Lost):
                raise Unwritable(error.what, where=error.where, hint=error.hint) from None
            raise


def size_of_part(pieces: Sequence[Piece]) -> int:
    """Bytes of each part of an object, but for the last: more than `PART` only where there would be too many."""
    size = sum(piece.length for piece in pieces)
    return max(PART, -(-size // _MOST_PARTS))


def _send(sender: Sent, pieces: Sequence[Piece], part: int) -> None:
    output = _Parts(sender, part)
    put_pieces(output, pieces)
    output.finish()
    sender.finish()


class _Parts(Output):
    """Takes bytes in order, and sends them in parts of one size."""

    def __init__(self, sender: Sent, part: int) -> None:
        self._sender = sender
        self._part = part
        self._buffer = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.position += len(view)
        while view:
            room = self._part - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == self._part:
                self._sender.add(bytes(self._buffer))
                self._buffer = bytearray()

    def copy(self, piece: FileRange, crc: int | None = None) -> int | None:
        """Append a range of an input. Where CRC is the checksum of what is before it, returns that of both."""
        from .checksums import crc32

        for chunk in piece.chunks():
            crc = None if crc is None else crc32(chunk, crc)
            self.write(chunk)
        return crc

    def skip(self, length: int) -> None:
        """Append LENGTH bytes that are there already. In a store none are."""
        raise AssertionError(f"{length} bytes to skip")

    def flush(self) -> None:
        """What is left goes with the last part."""

    def finish(self) -> None:
        """Send the last part."""
        if self._buffer:
            self._sender.add(bytes(self._buffer))


# -- what is there


def _file_there(path: Url, overwrite: bool, backup: str | None) -> tuple[Any, str, str | None]:
    if path.address.endswith("/"):
        raise Unwritable("is a folder, not a file name", where=path)
    fs, key = _reached(path, backup)
    if "/" not in key.strip("/") and scheme_of(path) != "memory":
        raise Unwritable("names a bucket, and no object in it", where=path, hint=f"{shell_path(path)}/NAME")
    try:
        found = call(fs, path, "info", key)
    except NotThere:
        return fs, key, None
    except CheckpointError as error:
        raise unwritable(error, path) from None
    if found["type"] != "file":  # an object of that name would hide it from everybody who reads
        raise Unwritable("is a folder, not a file name", where=path, hint="choose another name")
    if not overwrite:
        raise OutputExists("exists already", where=path, hint="add --overwrite, or choose another name")
    return fs, key, seen(found)


def _folder_there(path: Url, overwrite: bool, backup: str | None) -> tuple[Any, str, dict[str, str]]:
    fs, key = _reached(path, backup)
    if "/" in key.strip("/") and _is_object(fs, key.rstrip("/"), path):
        raise Unwritable("is an object, not a folder", where=path, hint="choose another name")
    there = _versions(fs, key, path)
    if there and not overwrite:
        hint = "add --overwrite, or choose another name"
        raise OutputExists("is a folder that is not empty", where=path, hint=hint)
    return fs, key.rstrip("/"), there


def _reached(path: Url, backup: str | None) -> tuple[Any, str]:
    if backup is not None:
        what = "keeps no backup in a store, where nothing can be renamed"
        raise RuleError(what, where="--backup", hint="copy what is there with the store's own client first")
    if scheme_of(path).startswith("s3") and "?versionId=" in path.address:
        what = "names a version of an object, and versions that are there cannot be written"
        raise Unwritable(what, where=path, hint="name the object without ?versionId=")
    return filesystem(path)


def _is_object(fs: Any, key: str, path: Url) -> bool:
    """Whether there is an object of the name of a folder. Who reads that name gets the object."""
    fs.invalidate_cache()
    try:
        return bool(call(fs, path, "info", key)["type"] == "file")
    except NotThere:
        return False
    except CheckpointError as error:
        raise unwritable(error, path) from None


def _versions(fs: Any, key: str, path: Url) -> dict[str, str]:
    """The objects of a folder and their versions."""
    fs.invalidate_cache()
    try:
        inside = call(fs, path, "ls", key.rstrip("/"), detail=True)
    except NotThere:
        return {}
    except CheckpointError as error:
        raise unwritable(error, path) from None
    return {
        one["name"].rpartition("/")[2]: seen(one)
        for one in inside
        if one["type"] == "file" and one["name"].rstrip("/") != key.rstrip("/")
    }


def _remove(fs: Any, key: str, path: Url) -> None:
    try:
        again(lambda: call(fs, path, "rm_file", key))
    except NotThere:
        return
    except CheckpointError as error:
        raise unwritable(error, path) from None
