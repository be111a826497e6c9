"""Where a file may be written, and how it takes its name: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import CheckpointError, OutputExists, RuleError, Unwritable, counted, printable
from .addresses import is_remote
from .door import Directory, Seen, lock, permissions, set_mode
from .files import StrPath, reason, shell_path
from .interrupts import put_off_signals
from .runs import find
from .work import Work

#: What is written beside checkpoints -> a text that stands near its beginning.
SIDE_OUTPUTS = {
    "page": b"<!doctype html",
    "recipe": b"ckptool: 1",
    "mapping": b"ckptool-mapping:",
    "converter": b"\n    ckptool",
    "manifest": b'"ckptool-manifest"',
}

#: The last targets that took their names, for what an interrupted command says.
written: deque[str] = deque(maxlen=4)

_CHUNK = 1 << 20
_HEAD = 4096
_MOST_LINKS = 40


class Target:
    """A place where something may be written: a name in a directory that is held open.

    Attributes:
        path: as the user gave it, for messages.
        real: where it is. Links are followed once, here, and never again.
        folder: the directory that it is in.
        name: its name there.
        old: the status of what has the name now, or None.
    """

    def __init__(self, path: StrPath) -> None:
        """Look at a target.

        Raises:
            Unwritable: nothing can be made or looked at there: a URL, a link to nothing, no such folder, no permission.
        """
        self.path = path
        self.real = _real(path)
        try:
            self.folder = Directory.at(self.real.parent)
        except OSError as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError) and not self.real.parent.is_dir():
                raise Unwritable(
                    f"the folder {printable(self.real.parent.name or str(self.real.parent), 100)} does not exist",
                    where=path,
                    hint=f"mkdir -p {shell_path(os.path.dirname(os.fspath(path).rstrip('/')) or '.')}",
                ) from None
            raise Unwritable(reason(error), where=path) from None
        self.name = self.real.name
        try:
            self.old = self.folder.status(self.name)
            if self.old is None and not os.access(self.real.parent, os.W_OK):
                raise Unwritable("no permission to write into its folder", where=path)
        except (OSError, ValueError) as error:
            self.folder.close()
            if isinstance(error, CheckpointError):
                raise
            raise Unwritable(reason(error), where=path) from None

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.close()

    def backup(self, suffix: str | None) -> str | None:
        """The name under which the old target is kept, or None if it is not. An existing backup is never replaced."""
        if suffix is None:
            return None
        if not suffix or "/" in suffix or os.sep in suffix:
            raise RuleError("the suffix of a backup is empty or holds a slash", where="--backup", hint="--backup .bak")
        kept = self.name + suffix
        try:
            there = self.folder.status(kept)
        except (OSError, ValueError) as error:
            raise Unwritable(
                f"its backup cannot have the name {printable(kept, 60)}: {reason(error)}", where=self.path
            ) from None
        if there is not None:
            hint = "choose another --backup suffix"
            raise OutputExists(f"its backup {printable(kept, 100)} exists already", where=self.path, hint=hint)
        return kept

    def require_room(self, size: int | None) -> None:
        """Refuse early when the disk has no room for SIZE bytes."""
        if size is not None:
            require_room(self.folder.path, size, self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock what is there against another run that replaces it.

        Raises:
            Unwritable: another run is replacing it.
            FileExistsError: it is no longer what was seen.
        """
        assert self.old is not None
        try:
            fd = self.folder.open_to_read(self.name)
        except PermissionError:  # a file that may be replaced and not read
            yield
            return
        try:
            if not lock(fd):
                raise Unwritable("another run of ckptool is replacing it", where=self.path, hint="wait until it ends")
            if Seen.of(os.fstat(fd)) != Seen.of(self.old):
                raise FileExistsError
            yield
        finally:
            os.close(fd)

    def require_unchanged(self) -> None:
        """Refuse to go on if what has the name is no longer what was seen.

        Raises:
            FileExistsError: it changed, or is gone, or something took its place.
        """
        now = self.folder.status(self.name)
        if self.old is None or now is None or Seen.of(now) != Seen.of(self.old):
            raise FileExistsError


def require_room(on: StrPath | int, size: int, path: StrPath) -> None:
    """Refuse when the disk with the open file or the folder ON has no room for SIZE bytes of the target PATH.

    Raises:
        Unwritable: it has none.
    """
    if not hasattr(os, "statvfs"):
        return
    disk = os.statvfs(on)
    free = disk.f_bavail * disk.f_frsize
    if size > free and disk.f_blocks:
        raise Unwritable(f"no room: {size:,} bytes are needed, {free:,} are free", where=path)


def _real(path: StrPath) -> Path:
    """Where PATH leads when links are followed. It need not exist, but a link must lead to something."""
    if is_remote(path):
        raise Unwritable("files are written here, not to a URL", where=path, hint="name a file here, and copy it there")
    try:
        plain = os.fspath(path).rstrip("/") or "/"
        if _in_proc(plain):
            raise Unwritable("leads through /proc, where no files are written", where=path, hint="name the file itself")
        if os.path.islink(plain) and not os.path.exists(plain):
            os.stat(plain)
        real = Path(os.path.realpath(path))
        if not real.name:
            raise Unwritable("is the root of the file system", where=path)
    except FileNotFoundError:
        to = printable(os.readlink(plain), 100)
        hint = f"rm {shell_path(plain)}, or name the file itself"
        raise Unwritable(f"is a link to {to}, which does not exist", where=path, hint=hint) from None
    except (OSError, ValueError) as error:  # a NUL in the name, links in a circle
        if isinstance(error, CheckpointError):
            raise
        raise Unwritable(reason(error), where=path) from None
    return real


def _in_proc(path: str) -> bool:
    """Whether a path ends with a link of /proc (/proc/self/exe, /dev/stdout), which may name what is not there."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(path)
        folder = os.path.realpath(folder or os.curdir)
        if folder == "/proc" or folder.startswith("/proc/"):
            return True
        path = os.path.join(folder, name)
        if not os.path.islink(path):
            return False
        path = os.path.join(folder, os.readlink(path))
    return False


def check_target(path: StrPath, *, overwrite: bool = False, backup: str | None = None) -> bool:
    """Refuse a file that cannot or must not be written, before any work is done. Returns whether it exists.

    Args:
        path: the target.
        overwrite: allow it to exist.
        backup: suffix under which the old file will be kept.

    Raises:
        OutputExists: the target or its backup exists.
        Unwritable: nothing can be written there, or it is no regular file.
    """
    with target_file(path, overwrite=overwrite) as target:
        if target.old is not None:
            target.backup(backup)
        return target.old is not None


def target_file(path: StrPath, *, overwrite: bool) -> Target:
    """The place for a file.

    Raises:
        OutputExists, Unwritable: see `check_target`.
    """
    if os.fspath(path).endswith(("/", os.sep)):
        raise Unwritable("is a folder, not a file name", where=path)
    target = Target(path)
    try:
        if target.old is not None:
            _require_file(target.old, path)
            if not overwrite:
                raise OutputExists("exists already", where=path, hint="add --overwrite, or choose another name")
    except BaseException:
        target.folder.close()
        raise
    return target


def _require_file(status: os.stat_result, path: StrPath) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unwritable(f"is {'a folder' if stat.S_ISDIR(status.st_mode) else 'not a regular file'}", where=path)


@contextlib.contextmanager
def replacing(
    path: StrPath,
    *,
    size: int | None = None,
    overwrite: bool = False,
    backup: str | None = None,
    mode: int = 0o666,
) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes PATH when the block ends well, and vanishes when it does not.

    It is made in a directory beside the real target (see `ckptool.disk.work`), is synced to disk before it takes the
    name, and has the mode of the file that it replaces. Whatever happens, PATH is the old file or the new one.

    Args:
        path: the target. A link is followed, once.
        size: bytes that will be written, to refuse early when the disk has no room.
        overwrite: allow the target to exist.
        backup: suffix under which the old target is kept.
        mode: of a new file, before the umask; a file that is replaced keeps its own.

    Raises:
        OutputExists: the target (or the backup) exists and OVERWRITE is false, or it appeared or changed meanwhile.
        Unwritable: no such folder, no permission, no room, the target is no regular file, or another run replaces it.
    """
    with target_file(path, overwrite=overwrite) as target, contextlib.ExitStack() as locked, refusals(target):
        old, kept = target.old, target.backup(backup) if target.old is not None else None
        work: Work | None = None
        try:
            if old is not None:
                locked.enter_context(target.locked())
            target.require_room(size)
            with put_off_signals():
                work = Work.start(target.folder, target.name)
            with work.create(mode=mode if old is None else permissions(old)) as out:
                if old is not None:
                    set_mode(out.fileno(), permissions(old))
                yield out
                os.fsync(out.fileno())
            publish(target, work, kept)
        finally:
            if work is not None:
                with put_off_signals(), contextlib.suppress(OSError):
                    work.discard()


@contextlib.contextmanager
def refusals(target: Target) -> Iterator[None]:
    """What the system says while a file takes the name of TARGET, as errors for a person.

    Raises:
        OutputExists: something else has the name.
        Unwritable: anything else.
    """
    try:
        yield
    except FileExistsError as error:
        if isinstance(error, CheckpointError):
            raise
        what = f"was {'made' if target.old is None else 'changed'} by another program meanwhile"
        raise OutputExists(what, where=target.path, hint="run the command again, with --overwrite") from None
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise Unwritable(reason(error), where=target.path) from None


def publish(target: Target, work: Work, kept: str | None) -> None:
    """Give a file that is whole and on disk the name of TARGET; what had the name is KEPT under another one, or gone.

    Raises:
        FileExistsError: something else has the name.
    """
    with put_off_signals():
        if target.old is not None:
            target.require_unchanged()
        if kept is not None:
            _keep(target, kept)
        work.publish_file(None if target.old is None else Seen.of(target.old))
        work.discard()
        written.append(os.fspath(target.path))
    target.folder.sync()


def _keep(target: Target, kept: str) -> None:
    """Give the old file a second name, so that it has its own until the new file takes it."""
    try:
        target.folder.link(target.name, target.folder, kept)
    except FileExistsError:
        raise OutputExists(f"its backup {printable(kept, 100)} was made meanwhile", where=target.path) from None
    except OSError:  # a filesystem without hard links
        _copy(target, kept)


def _copy(target: Target, kept: str) -> None:
    """Copy the old file to the name KEPT; nothing stays there if that fails."""
    assert target.old is not None
    with (
        os.fdopen(target.folder.open_to_read(target.name), "rb") as old,
        os.fdopen(target.folder.create(kept, permissions(target.old)), "wb") as copy,
    ):
        made = Seen.of(os.fstat(copy.fileno()))
        try:
            while part := old.read(_CHUNK):
                copy.write(part)
            copy.flush()
            os.fsync(copy.fileno())
        except BaseException:
            target.folder.remove(kept, lambda status: Seen.of(status)[:2] == made[:2])
            raise


def check_side_output(kind: str, path: StrPath, *, overwrite: bool = False) -> None:
    """Refuse a page, recipe, mapping or manifest that would replace something else, before any work is done.

    Args:
        kind: one of `SIDE_OUTPUTS`.
        path: where it is to be written.
        overwrite: allow it to exist, if it is of that kind: `--html *.pt` names a checkpoint by mistake.

    Raises:
        OutputExists, Unwritable: it may not be written there.
    """
    with target_file(path, overwrite=overwrite) as target:
        if target.old is None or not target.old.st_size:
            return
        try:
            with os.fdopen(target.folder.open_to_read(target.name), "rb") as old:
                head = old.read(_HEAD)
        except OSError as error:
            raise Unwritable(reason(error), where=path) from None
        if SIDE_OUTPUTS[kind] not in head:
            what = f"is not a ckptool {kind}, so --overwrite does not replace it"
            raise OutputExists(what, where=path, hint="choose another name")


def write_side_output(kind: str, path: StrPath, text: str, *, overwrite: bool = False) -> None:
    """Write a page, recipe, mapping or manifest, whole or not at all. See `check_side_output`."""
    check_side_output(kind, path, overwrite=overwrite)
    data = text.encode()
    with replacing(path, size=len(data), overwrite=overwrite) as out:
        out.write(data)


def is_same_file(path: StrPath, other: StrPath) -> bool:
    """Whether two paths name one file, or would if it was there."""
    try:
        return os.path.realpath(path) == os.path.realpath(other) or os.path.samefile(path, other)
    except (OSError, ValueError):
        return False


def leftover_notes(path: StrPath) -> list[str]:
    """What runs that were cut off left behind beside a target, a line each."""
    with contextlib.suppress(CheckpointError, OSError), Target(path) as target:
        left = [one for one in find(target.folder, target.name) if one.own and not one.lives]
        if left:
            nbytes = sum(one.nbytes for one in left)
            where = os.path.dirname(os.fspath(path).rstrip("/")) or "."
            return [
                f"a run that was cut off left {', '.join(printable(one.path.name, 120) for one in left[:3])} "
                f"({counted(nbytes, 'byte')}); ckptool doctor {shell_path(where)} --remove-leftovers removes it"
            ]
    return []
