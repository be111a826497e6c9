"""The place where a new file or folder is made before it takes its name: a directory beside the target.

    .NAME.RANDOM.ckptool-tmp/
        record   what belongs to this run; locked while the run lives
        new      the file, or the folder with its files under their final names
        old      the folder that had the name, on systems that cannot exchange two names in one step

The record says what may be removed, and whether a later run may go on with what is finished. It has one line of JSON
for the run, one for each finished file of a folder or part of a file, and one for the files of an old folder before
that is replaced:

    {"ckptool": 2, "made": [device, inode], "target": "NAME", "plan": "SHA-256", "new": [device, inode],
     "names": ["model-00001-of-00002.safetensors", …]}
    {"finished": {"model-00001-of-00002.safetensors": [size, time of change]}}
    {"part": ["model-00001-of-00002.safetensors", first byte, end, [[number of a piece, CRC-32], …]]}
    {"old": {"model.safetensors": [device, inode, size, time of change]}}

Parts are what several ranks write of one file (see `ckptool.disk.together`).

It counts only if it is a regular file of this user with one name, and if `made` is the directory that it is in. The
inode of a directory cannot be foreseen, so a record that came out of an archive or a repository does not count. `made`
stands at its beginning, and of another record nothing else is read. A run removes nothing that its own record does not
name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import IO, Any

from ..errors import Unwritable, printable
from . import run_record
from .door import Directory, Seen, is_own_file, lock, set_mode
from .run_record import RECORD
from .runs import NEW, SUFFIX, Leftover, beginning, find, holds_nothing, is_locked

_OLD = "old"
_TRIES = 100


class Work:
    """The directory in which one run makes its output.

    Attributes:
        path: where it is.
        finished: of a folder, name -> (size, time of change) of the files that are whole and on disk.
    """

    def __init__(self, parent: Directory, name: str, own: Directory, record: int, content: dict[str, Any]) -> None:
        self._parent = parent
        self._name = name
        self._own = own
        self._record = record
        self._content = content
        self._new: Directory | None = None
        if content["names"] is not None:
            with contextlib.suppress(FileNotFoundError):  # a run that ended after the folder took its name
                self._new = own.enter(NEW)

    @classmethod
    def start(
        cls, parent: Directory, target: str, *, names: Sequence[str] | None = None, plan: str | None = None
    ) -> Work:
        """Begin a run that makes TARGET in the directory PARENT.

        Args:
            parent: the directory of the target.
            target: the name of the target.
            names: of the files, where the target is a folder.
            plan: what decides about the bytes, in a word; a later run with the same plan may go on.
        """
        record = -1
        own = new = None
        try:
            name, own = _free_directory(parent, target)
            record = own.create(RECORD, 0o600)
            lock(record, wait=True)  # another run may just look whether this one lives
            if names is not None:
                with own.make_directory(NEW) as folder:
                    new = run_record.number(folder.own_status())
            content = {
                "ckptool": 2,
                "made": run_record.number(own.own_status()),
                "target": target,
                "plan": plan,
                "new": new,
                "names": None if names is None else list(names),
            }
            run_record.append(record, content)
            return cls(parent, name, own, record, {**content, "finished": {}, "parts": [], "old": {}})
        except BaseException:
            if record >= 0:
                os.close(record)
            if own is not None:
                with contextlib.suppress(OSError), own:
                    own.remove(RECORD, lambda _: True)
                    own.remove_directory(NEW)
                    parent.remove_directory(own.path.name)
            raise

    @classmethod
    def resume(
        cls, parent: Directory, target: str, plan: str, sizes: Mapping[str | None, int] | None = None
    ) -> Work | None:
        """The work of a run that was cut off, if it made the same from the same.

        Args:
            parent, target, plan: see `start`.
            sizes: bytes of the files, of which finished parts count; without them only whole files do.

        Raises:
            Unwritable: another run is making this target now.
        """
        for left in find(parent, target):
            if left.lives:
                raise Unwritable(
                    f"another run of ckptool is writing it, in {printable(left.path.name, 255)}",
                    where=parent.path / target,
                    hint="wait until it ends",
                )
        for left in find(parent, target):
            found = _take(parent, left.path.name)
            if found is None:
                continue
            found._put_back()
            if found._content["plan"] == plan and (found._fits() if sizes is None else found._fits_in_parts(sizes)):
                return found
            found.close()
        return None

    @property
    def path(self) -> Path:
        """Where the directory is."""
        return self._own.path

    @property
    def new_path(self) -> Path:
        """Where what is made is, for libraries that write to a path."""
        return self._own.path / NEW

    @property
    def finished(self) -> dict[str, list[int]]:
        """Of a folder: name -> [size, time of change] of the files that are whole and on disk."""
        finished: dict[str, list[int]] = self._content["finished"]
        return finished

    @property
    def name(self) -> str:
        """The name of the directory, for the other ranks of a run."""
        return self._name

    @property
    def parts(self) -> list[tuple[str | None, int, int, list[tuple[int, int]]]]:
        """Parts that are on disk: file (None where the target is one), first byte, end, and checksums of pieces."""
        return [(name, begin, end, [(n, crc) for n, crc in sums]) for name, begin, end, sums in self._content["parts"]]

    @property
    def mark(self) -> str:
        """What tells this directory from any other one, wherever somebody sees it from."""
        return run_record.mark(self._own)

    # -- making

    def create(self, name: str | None = None, mode: int = 0o666) -> IO[bytes]:
        """Make the file, or one of those of the folder."""
        where = self._own if self._new is None else self._new
        fd = where.create(NEW if name is None else name, mode)
        return os.fdopen(fd, "wb", buffering=0)

    def drop(self, name: str) -> None:
        """Remove a file of the folder that was not finished."""
        assert self._new is not None
        self._new.remove(name, lambda _: True)

    def note_finished(self, name: str) -> None:
        """Write down that a file of the folder is whole and on disk."""
        assert self._new is not None
        status = self._new.status(name)
        assert status is not None
        self.finished[name] = [status.st_size, status.st_mtime_ns]
        run_record.append(self._record, {"finished": {name: self.finished[name]}})

    def make_room(self, name: str | None, size: int, mode: int, *, exactly: bool) -> None:
        """Make a file (see `create`) of SIZE bytes, all zeros, unless it is there. Ranks write their parts into it.

        Its permissions are MODE without what the umask takes away, or EXACTLY that.
        """
        where = self._own if self._new is None else self._new
        if where.status(name or NEW) is None:
            with self.create(name, mode) as out:
                if exactly:
                    set_mode(out.fileno(), mode)
                os.ftruncate(out.fileno(), size)

    def note_part(self, name: str | None, begin: int, end: int, sums: Sequence[tuple[int, int]]) -> None:
        """Write down that the bytes from BEGIN to END of a file are on disk, with the checksums SUMS of its pieces."""
        self._content["parts"].append([name, begin, end, [list(pair) for pair in sums]])
        run_record.append(self._record, {"part": self._content["parts"][-1]})

    def _fits_in_parts(self, sizes: Mapping[str | None, int]) -> bool:
        """Whether ranks can go on here. Files that are not as they were made are removed, with their parts."""
        where = self._own if self._new is None else self._new
        if self._new is not None:
            if self._number_of(NEW) != self._content["new"] or not set(self._new.names()) <= set(sizes):
                return False
        elif None not in sizes or self._content["names"] is not None:
            return False
        for name, size in sizes.items():
            status = where.status(name or NEW)
            if status is not None and is_own_file(status) and status.st_size == size:
                continue
            if status is not None and not where.remove(name or NEW, lambda _: True):
                return False
            self.finished.pop(str(name), None)
            self._drop_parts({name for name, *_ in self._content["parts"]} & {name})
        for name, (size, modified) in list(self.finished.items()):
            status = where.status(name)
            if status is None or [status.st_size, status.st_mtime_ns] != [size, modified]:
                del self.finished[name]
        return True

    def _fits(self) -> bool:
        """Whether a run can go on here: nothing strange is in it, and what was not finished could be removed."""
        if self._new is None:
            return False
        names = set(self._content["names"])
        if self._number_of(NEW) != self._content["new"] or not set(self._new.names()) <= names:
            return False
        for name in self._new.names():
            status = self._new.status(name)
            whole = status is not None and self.finished.get(name) == [status.st_size, status.st_mtime_ns]
            if not whole or status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                self.finished.pop(name, None)
                if not self._new.remove(name, lambda _: True):
                    return False
        for name in set(self.finished) - set(self._new.names()):
            del self.finished[name]
        self._drop_parts({name for name, *_ in self._content["parts"]})
        return True

    def _drop_parts(self, names: Set[str | None]) -> None:
        """Forget the parts of files, also in the record: another run would trust them."""
        if names:
            self._content["parts"] = [part for part in self._content["parts"] if part[0] not in names]
            run_record.append(self._record, {"anew": list(names)})

    # -- giving the target its name

    def publish_file(self, old: Seen | None) -> None:
        """Give the file its name; OLD is what has that name now.

        Raises:
            FileExistsError: something else has it.
        """
        target = self._content["target"]
        if old is None:
            self._own.rename_to_free(NEW, self._parent, target)
            return
        status = self._parent.status(target)
        if status is None or Seen.of(status) != old:
            raise FileExistsError
        self._own.rename(NEW, self._parent, target)

    def publish_folder(self, old: Mapping[str, Seen] | None, kept: str | None, mode: int | None) -> list[str]:
        """Give the folder its name.

        Args:
            old: what is in the folder that has the name now, all of which may go; None where nothing has it.
            kept: the name under which that folder is kept.
            mode: permissions of the new folder; None leaves what the umask gave.

        Returns:
            The names of what appeared or changed in the old folder too late to stop the exchange. It is kept.

        Raises:
            FileExistsError: something appeared or changed in the folder, or took the name. The folder is as it was.
        """
        assert self._new is not None
        if mode is not None:
            self._new.set_mode(mode)
        self._new.sync()
        target = self._content["target"]
        if not old:  # nothing, or an empty folder, which a rename replaces
            self._rename_new(target)
            return []
        self._content["old"] = {name: list(seen) for name, seen in old.items()}
        run_record.append(self._record, {"old": self._content["old"]})
        self._require_same(target, old)
        if kept is not None:
            self._parent.rename(target, self._parent, kept)
            self._swap(self._parent, kept, target, old)
            return []
        if self._own.exchange(NEW, self._parent, target):
            try:
                with self._own.enter(NEW) as aside:
                    _require_equal(aside.contents(), old)
            except BaseException:
                self._own.exchange(NEW, self._parent, target)
                raise
        else:
            self._parent.rename(target, self._own, _OLD)
            self._swap(self._own, _OLD, target, old)
        self._parent.sync()
        with contextlib.suppress(OSError):  # the new folder has its name, whether or not the old one can be removed
            return self._clear()
        return list(old)

    def _swap(self, where: Directory, aside: str, target: str, old: Mapping[str, Seen]) -> None:
        """Let the new folder take the name of the old one, which stands ASIDE, or put that back."""
        try:
            with where.enter(aside) as folder:
                _require_equal(folder.contents(), old)
            self._rename_new(target)
        except BaseException:
            with contextlib.suppress(OSError):
                where.rename(aside, self._parent, target)
            raise

    def _rename_new(self, target: str) -> None:
        try:
            self._own.rename(NEW, self._parent, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
                raise FileExistsError from error
            raise
        self._parent.sync()

    def _require_same(self, target: str, old: Mapping[str, Seen]) -> None:
        try:
            with self._parent.enter(target) as folder:
                _require_equal(folder.contents(), old)
        except FileNotFoundError:
            raise FileExistsError(f"{target} was removed") from None

    # -- leaving

    @property
    def closed(self) -> bool:
        """Whether the run has left it."""
        return self._record < 0

    def close(self) -> None:
        """Leave the work as it is, for a later run to go on."""
        if self._new is not None:
            self._new.close()
        self._own.close()
        if self._record >= 0:
            os.close(self._record)
            self._record = -1

    def discard(self) -> list[str]:
        """Remove what the record names, and the directory. Returns the names of what is in it besides.

        Once the work is closed, this does nothing.
        """
        if self.closed:
            return []
        try:
            left = self._clear()
            if not left:
                with contextlib.suppress(OSError):
                    self._own.remove(RECORD, lambda _: True)
        finally:
            self.close()
        with contextlib.suppress(OSError):
            self._parent.remove_directory(self._name)
        return left

    def _clear(self) -> list[str]:
        """Remove what the record names of `new` and `old`; an old folder whose name is free goes back there."""
        self._put_back()
        ours = self._number_of(NEW) == self._content["new"]
        if ours and self._own.status(_OLD) is not None:  # its name was taken before the new folder could take it
            return [_OLD]
        left = [name for name in self._own.names() if name not in (RECORD, NEW, _OLD)]
        left += self._clear_folder(_OLD, ours=False)
        if self._content["names"] is None:
            self._own.remove(NEW, lambda _: True)
        else:
            left += self._clear_folder(NEW, ours=ours)
        return left

    def _put_back(self) -> None:
        """Give an old folder its name again, if the run ended just when that was free."""
        target, old = self._content["target"], self._own.status(_OLD)
        if old is not None and stat.S_ISDIR(old.st_mode) and self._parent.status(target) is None:
            self._own.rename(_OLD, self._parent, target)
            self._parent.sync()

    def _clear_folder(self, name: str, *, ours: bool) -> list[str]:
        """Remove what the record names in a folder: one that was made here, or the old one."""
        status = self._own.status(name)
        if status is None:
            return []
        if not stat.S_ISDIR(status.st_mode):
            return [name]
        made, old = set(self._content["names"] or ()) if ours else set(), self._content["old"]
        with self._own.enter(name) as folder:
            for one in folder.names():
                seen = None if ours else old.get(one)
                folder.remove(one, lambda s, one=one, seen=seen: one in made or seen == list(Seen.of(s)))  # type: ignore[misc]
            left = folder.names()
        if not left:
            self._own.remove_directory(name)
        return left

    def _number_of(self, name: str) -> list[int] | None:
        status = self._own.status(name)
        return None if status is None else run_record.number(status)


def enter(parent: Directory, name: str, mark: str, *, folder: bool) -> Directory | None:
    """The directory in which another rank makes the files of one target, for one that writes parts of them.

    Args:
        parent: the directory of the target, as this rank sees it.
        name, mark: those of the work.
        folder: whether the target is a folder.

    Returns:
        The directory, which the caller closes; None if this rank sees none, or another one.
    """
    try:
        own = parent.enter(name)
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as closing:
        closing.callback(own.close)
        if run_record.mark(own) != mark:
            return None
        if folder:
            return own.enter(NEW)
        closing.pop_all()
        return own


def reopen(made_in: Directory, name: str | None, *, reading: bool = True) -> IO[bytes]:
    """Open a file in the directory that `enter` gave, to write into it; NAME is None where the target is that file.

    Without READING it is opened for writing alone (see `Directory.reopen`).
    """
    return os.fdopen(made_in.reopen(name or NEW, reading=reading), "r+b" if reading else "wb", buffering=0)


# -- what runs that were cut off left behind


def remove(left: Leftover) -> list[str]:
    """Remove what a run left behind. Returns the names of what is kept, since no record names it.

    Raises:
        OSError: it cannot be removed.
    """
    with Directory.at(left.path.parent) as parent:
        work = _take(parent, left.path.name)
        if work is not None:
            left_over = work.discard()
            return left_over or ([] if parent.status(left.path.name) is None else [RECORD])
        with parent.enter(left.path.name) as own:
            if holds_nothing(own) and not is_locked(own):
                own.remove(RECORD, lambda status: status.st_size == 0)
                own.remove_directory(NEW)
        return [] if parent.remove_directory(left.path.name) else [RECORD]


def _take(parent: Directory, name: str) -> Work | None:
    """Take over the work of a run that has ended. None if it lives, or its record does not count."""
    own = parent.enter(name)
    try:
        content, fd = run_record.read(own)
        if content is not None and lock(fd):
            with contextlib.suppress(OSError):
                return Work(parent, name, own, fd, content)
        if content is not None:
            os.close(fd)
    except BaseException:
        own.close()
        raise
    own.close()
    return None


def _free_directory(parent: Directory, target: str) -> tuple[str, Directory]:
    """A new directory beside TARGET, under a name that nobody can foresee."""
    for _ in range(_TRIES):
        name = f"{beginning(target)}{os.urandom(4).hex()}{SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return name, parent.make_directory(name, 0o700)
    raise OSError(errno.EBUSY, "no name for a temporary directory is free")


def _require_equal(now: Mapping[str, Seen], old: Mapping[str, Seen]) -> None:
    changed = [name for name in (*now, *old) if now.get(name) != old.get(name)]
    if changed:
        raise FileExistsError(sorted(set(changed)))
