"""Writing a directory of files so that it is whole or absent, and going on where a run was cut off.

The files are written into a sibling, `.NAME.ckptool-tmp`, which is renamed to NAME once all of them are on disk. In the
sibling, `.ckptool-plan.json` says which plan it belongs to and which files are finished:

    {"ckptool": 1, "plan": "…", "finished": {"model-00001-of-00002.safetensors": [size, time of change in ns]}}

The plan is a SHA-256 over everything that decides about the bytes: names, the ranges of input files with the size, time
of change and number of each file, bytes in memory, and how values are computed. A run with the same plan takes over
what is finished; one with another plan starts anew. A file is noted as finished after it was synced to disk.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import CheckpointError, OutputExists, Unwritable, counted, printable
from .files import Buffer, File, FileRange, Piece, StrPath, reason, shell_quote
from .writing import (
    Progress,
    check_backup,
    real_path,
    require_room,
    room_for,
    sync_folder,
    target_status,
    write_pieces,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

_RECORD = ".ckptool-plan.json"
#: More bytes in memory than this get a CRC in the fingerprint: much faster, and nobody forges his own plan.
_HASHED = 1 << 20


def check_folder(
    path: StrPath,
    *,
    overwrite: bool = False,
    names: Sequence[str] = (),
    replaced: Callable[[str], bool] = lambda _: True,
) -> os.stat_result | None:
    """Refuse a target that cannot or must not become a directory, before any work is done.

    Args:
        path: the target. It may be an empty directory.
        overwrite: allow a directory that is not empty.
        names: of the files that will be in it.
        replaced: whether a file that is there may go, though none of NAMES takes its place.

    Returns:
        The status of what is there, or None.

    Raises:
        OutputExists: it exists, and OVERWRITE is false.
        Unwritable: it is a file, or holds what would be lost, or no folder can be made there.
    """
    target = real_path(path)
    old = target_status(path)
    if old is None:
        return None
    if not stat.S_ISDIR(old.st_mode):
        raise Unwritable("is a file, where a folder is to be written", where=path, hint="choose another name")
    there = sorted(os.listdir(target))
    if there and not overwrite:
        raise OutputExists("is a folder that is not empty", where=path, hint="add --overwrite, or choose another name")
    lost = [name for name in there if name not in names and (not replaced(name) or (target / name).is_dir())]
    if lost:
        raise Unwritable(
            f"holds {counted(len(lost), 'other thing')}, which would be lost:",
            where=path,
            evidence=[printable(name, 100) for name in lost[:5]] + (["…"] if len(lost) > 5 else []),
            hint="move them away, or write to another folder",
        )
    if not os.access(target.parent, os.W_OK):
        raise Unwritable("the folder that it is in may not be written to", where=path)
    return old


def replacing_folder(
    path: StrPath,
    files: Mapping[str, Sequence[Piece]],
    *,
    overwrite: bool = False,
    backup: str | None = None,
    replaced: Callable[[str], bool] = lambda _: True,
    progress: Progress | None = None,
) -> list[str]:
    """Make PATH a directory of FILES, whole or not at all.

    Args:
        path: the target; links are followed.
        files: name -> pieces, in the order of writing.
        overwrite, replaced: see `check_folder`.
        backup: suffix under which an old directory is kept.
        progress: called with the number of bytes, each time some were written (or found finished).

    Returns:
        What a person should know: whether a run that was cut off was taken up.

    Raises:
        OutputExists, Unwritable: see `check_folder`; or no room, or another process is writing it.
    """
    target = real_path(path)
    _bring_back(target)
    old = check_folder(path, overwrite=overwrite, names=list(files), replaced=replaced)
    kept = check_backup(target, backup) if old and os.listdir(target) else None
    sibling = target.with_name(f".{target.name[:200]}.ckptool-tmp")
    try:
        with _Sibling(sibling, fingerprint(files)) as work:
            todo = (pieces for name, pieces in files.items() if name not in work.finished)
            require_room(target, sum(map(room_for, todo)))
            for name, pieces in files.items():
                work.write(name, pieces, progress)
            work.close()
            if old is not None:
                os.chmod(sibling, stat.S_IMODE(old.st_mode))
            _exchange(sibling, target, kept, replace=old is not None)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        hint = None
        if sibling.exists():
            hint = f"what is finished stays in {shell_quote(sibling.name)}; the same command goes on from there"
        raise Unwritable(reason(error), where=path, hint=hint) from None
    return work.notes


class _Sibling:
    """The directory that is being written."""

    def __init__(self, path: Path, plan: str) -> None:
        self.path = path
        self.plan = plan
        self.notes: list[str] = []
        self.finished: dict[str, list[int]] = {}
        self._lock = -1
        self._finishing: list[Future[None]] = []

    def __enter__(self) -> _Sibling:
        from concurrent.futures import ThreadPoolExecutor

        with contextlib.suppress(FileExistsError):
            self.path.mkdir()
        self._lock_it()
        record = self._read()
        if record is not None and record.get("plan") == self.plan:
            self.finished = {name: seen for name, seen in record["finished"].items() if self._stat(name) == seen}
            if self.finished:
                self.notes.append(
                    f"taken up from a run that was cut off: {counted(len(self.finished), 'finished file')}"
                )
        others = [name for name in os.listdir(self.path) if name not in self.finished and name != _RECORD]
        for name in others:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        if record is not None and record.get("plan") != self.plan:
            self.notes.append("what a run with another plan left half done was removed")
        self._note()
        #: Brings a file to disk and notes it as finished, while the next one is being written.
        self._finisher = ThreadPoolExecutor(1, "sync")
        return self

    def __exit__(self, *error: object) -> None:
        self._finisher.shutdown(wait=True)
        if error[0] is not None and not self.finished:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)

    def write(self, name: str, pieces: Sequence[Piece], progress: Progress | None) -> None:
        """Write one file, and note it as finished once it is on disk."""
        size = sum(piece.length for piece in pieces)
        if name in self.finished:
            if progress and size:
                progress(size)
            return
        mode = next((piece.file.mode & 0o777 for piece in pieces if isinstance(piece, FileRange)), 0o666)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        out = os.fdopen(os.open(self.path / name, flags, mode), "wb", buffering=0)
        try:
            write_pieces(out, pieces, progress)
        except BaseException:
            out.close()
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
            raise
        self._finishing.append(self._finisher.submit(self._finish, name, out))

    def _finish(self, name: str, out: IO[bytes]) -> None:
        with out:
            os.fsync(out.fileno())
        found = self._stat(name)
        assert found is not None
        self.finished[name] = found
        self._note()

    def close(self) -> None:
        """Take the record away: the directory is complete, once all files are on disk."""
        for finishing in self._finishing:
            finishing.result()
        (self.path / _RECORD).unlink()
        sync_folder(self.path)

    def _lock_it(self) -> None:
        """Keep another process from writing the same directory. Where files cannot be locked, nothing does."""
        self._lock = os.open(self.path / _RECORD, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise Unwritable("another process is writing it", where=self.path) from None
        except (ImportError, OSError):
            pass

    def _read(self) -> dict[str, Any] | None:
        try:
            record = json.loads((self.path / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        fine = isinstance(record, dict) and record.get("ckptool") == 1 and isinstance(record.get("finished"), dict)
        return record if fine else None

    def _note(self) -> None:
        text = json.dumps({"ckptool": 1, "plan": self.plan, "finished": self.finished}).encode()
        os.lseek(self._lock, 0, os.SEEK_SET)
        os.write(self._lock, text)
        os.truncate(self._lock, len(text))

    def _stat(self, name: str) -> list[int] | None:
        try:
            found = (self.path / name).stat()
        except OSError:
            return None
        return [found.st_size, found.st_mtime_ns]


def fingerprint(files: Mapping[str, Sequence[Piece]]) -> str:
    """The plan in one word: a SHA-256 over all that decides about the bytes of FILES."""
    digest = hashlib.sha256()
    for token in _tokens(list(files.items()), {}):
        digest.update(token.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _tokens(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """What a piece is made of, as texts. Pieces are dataclasses of dataclasses, of files and of plain values."""
    if isinstance(value, File):
        yield f"file {value.path} {value.size} {value.modified} {value.identity}"
    elif isinstance(value, Buffer):
        data = value.data
        yield hashlib.sha256(data).hexdigest() if len(data) <= _HASHED else f"{len(data)} {zlib.crc32(data)}"
    elif isinstance(value, list | tuple):
        yield f"{len(value)} items"
        for item in value:
            yield from _tokens(item, seen)
    elif isinstance(value, Mapping):
        yield from _tokens(list(value.items()), seen)
    elif is_dataclass(value) and not isinstance(value, type):
        if id(value) in seen:
            yield f"again {seen[id(value)]}"
            return
        seen[id(value)] = len(seen)
        yield type(value).__name__
        for field in fields(value):
            yield from _tokens(getattr(value, field.name), seen)
    elif value is None or isinstance(value, str | int | float | bytes | enum.Enum):
        yield repr(value)
    else:
        yield getattr(value, "__qualname__", type(value).__name__)


def _aside(target: Path) -> Path:
    """Where the old directory stands while the new one takes its name: no call of the system swaps them everywhere."""
    return target.with_name(f".{target.name[:200]}.old.ckptool-tmp")


def _bring_back(target: Path) -> None:
    """Give an old directory its name back, if a run was cut off just when it stood aside."""
    if _aside(target).is_dir() and not target.exists():
        with contextlib.suppress(OSError):
            _aside(target).rename(target)


def _exchange(sibling: Path, target: Path, kept: Path | None, *, replace: bool) -> None:
    """Give the new directory the name of the target. The old one is put back if that fails."""
    old: Path | None = None
    if replace and os.listdir(target):
        old = kept or _aside(target)
        if kept is None and old.exists():
            shutil.rmtree(old)
        target.rename(old)
    try:
        sibling.rename(target)
    except OSError as error:
        if old is not None:
            old.rename(target)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise OutputExists("was made by somebody else meanwhile", where=target, hint="add --overwrite") from None
        raise
    sync_folder(target.parent)
    if old is not None and kept is None:
        shutil.rmtree(old, ignore_errors=True)
