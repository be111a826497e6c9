"""The one door out: every name that ckptool makes, renames, links or removes on a disk goes through this module.

No other module calls the system to change a name; `tests/disk/test_door.py` reads them all for such calls. So these
rules hold everywhere:

- A directory is held open by its descriptor, and names in it are plain names below that descriptor. Nobody can exchange
  the directory for a link meanwhile.
- No link in it is followed (O_NOFOLLOW), and a file that is made is never one that was there (O_EXCL).
- A file is removed only if it is the one that was seen before: same device, inode, size and time of change. A directory
  is removed only when it is empty.

A system without calls below a descriptor (Windows) gets the same checks by path: then somebody who may write to the
directory can exchange a name between the check and the call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

_BELOW_DESCRIPTORS = {os.open, os.mkdir, os.rmdir, os.unlink, os.rename, os.link, os.stat} <= os.supports_dir_fd
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = _FLAGS | os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_RENAME_EXCHANGE = 2  # of renameat2 (linux/fs.h)


class Seen(NamedTuple):
    """What tells a file from another one, and from itself after a change."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> Seen:
        """The marks in the answer of a stat."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Directory:
    """A directory that is held open, and what can be done with the names in it.

    Attributes:
        path: where it was when it was opened, for messages.
    """

    def __init__(self, path: Path, fd: int | None) -> None:
        self.path = path
        self._fd = fd
        self._closed = False

    @classmethod
    def at(cls, path: Path) -> Directory:
        """Open the directory at PATH, which must be no link.

        Raises:
            OSError: there is none, it is something else, or it may not be opened.
        """
        if not _BELOW_DESCRIPTORS:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            return cls(path, None)
        try:
            return cls(path, os.open(path, _DIRECTORY))
        except PermissionError:  # a directory that may be written to and not listed
            if not hasattr(os, "O_PATH"):
                raise
            return cls(path, os.open(path, _DIRECTORY | os.O_PATH))

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory. Nothing can be done with it any more, least of all by its path."""
        self._closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    # -- looking

    def names(self) -> list[str]:
        """The names in it, in order."""
        return sorted(os.listdir(self._itself()))

    def status(self, name: str) -> os.stat_result | None:
        """The status of what has NAME, which for a link is that of the link, or None."""
        at, below = self._place(name)
        try:
            return os.stat(at, dir_fd=below, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def own_status(self) -> os.stat_result:
        """The status of the directory itself."""
        return os.stat(self._itself(), follow_symlinks=self._fd is not None)

    def contents(self) -> dict[str, Seen]:
        """Everything in it, as it is now."""
        found = {name: self.status(name) for name in self.names()}
        return {name: Seen.of(status) for name, status in found.items() if status is not None}

    def open_to_read(self, name: str) -> int:
        """A descriptor for reading a regular file that is no link, without waiting for a pipe."""
        at, below = self._place(name)
        return os.open(at, _FLAGS | os.O_RDONLY | getattr(os, "O_NONBLOCK", 0), dir_fd=below)

    def enter(self, name: str) -> Directory:
        """Open a directory in it."""
        at, below = self._place(name)
        if below is None:
            return Directory.at(self.path / name)
        return Directory(self.path / name, os.open(at, _DIRECTORY, dir_fd=below))

    # -- making

    def create(self, name: str, mode: int = 0o666) -> int:
        """A descriptor for writing (and reading) a new file."""
        at, below = self._place(name)
        return os.open(at, _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, mode, dir_fd=below)

    def open_made(self, name: str, owner: int) -> int:
        """A descriptor for reading a file that ckptool made before: regular, of this user or of OWNER, with one name.

        Raises:
            OSError: it is something else, or may not be read.
        """
        fd = self.open_to_read(name)
        if not is_own_file(os.fstat(fd), owner):
            os.close(fd)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path / name))
        return fd

    def reopen(self, name: str, *, reading: bool = True) -> int:
        """A descriptor for writing a file that ckptool made before: regular, of this user, with one name.

        Without READING, the system does not read a page first of which a part is written, so that NFS does not write
        back the rest of it, where another machine may have written meanwhile.

        Raises:
            OSError: it is something else. A link is not followed, and a pipe does not block.
        """
        at, below = self._place(name)
        access = os.O_RDWR if reading else os.O_WRONLY
        fd = os.open(at, _FLAGS | access | getattr(os, "O_NONBLOCK", 0), dir_fd=below)
        if not is_own_file(os.fstat(fd)):
            os.close(fd)
            raise PermissionError(
                errno.EPERM, "is not a file that this user made, with one name", str(self.path / name)
            )
        return fd

    def open_to_patch(self, name: str, seen: Seen, *, links: bool = False) -> int:
        """A descriptor for changing some bytes of a file, if it is the one that was seen, with one name.

        With LINKS it may have several names.

        Raises:
            FileExistsError: it is another file, or was changed.
        """
        at, below = self._place(name)
        fd = os.open(at, _FLAGS | os.O_RDWR | getattr(os, "O_NONBLOCK", 0), dir_fd=below)
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode) or Seen.of(now) != seen or (now.st_nlink > 1 and not links):
            os.close(fd)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path / name))
        return fd

    def make_directory(self, name: str, mode: int = 0o777) -> Directory:
        """Make a directory in it, and open that."""
        at, below = self._place(name)
        os.mkdir(at, mode, dir_fd=below)
        return self.enter(name)

    def set_mode(self, mode: int) -> None:
        """Give the directory itself other permissions."""
        if self._fd is not None:
            os.fchmod(self._fd, mode)
        else:
            os.chmod(self.path, mode)

    # -- renaming and removing

    def rename(self, name: str, to: Directory, new: str) -> None:
        """Move what has NAME to another directory, in the place of a file that has the name NEW there."""
        old_at, old_below = self._place(name)
        new_at, new_below = to._place(new)
        os.replace(old_at, new_at, src_dir_fd=old_below, dst_dir_fd=new_below)

    def rename_to_free(self, name: str, to: Directory, new: str) -> None:
        """Move a file to another directory, never in the place of something.

        Raises:
            FileExistsError: something has the name NEW already.
        """
        try:
            self.link(name, to, new)
        except FileExistsError:
            raise
        except OSError:  # a filesystem without hard links
            if to.status(new) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(to.path / new)) from None
            self.rename(name, to, new)
        else:
            at, below = self._place(name)
            with contextlib.suppress(OSError):  # it has its new name, and whoever clears up sees the old one
                os.unlink(at, dir_fd=below)

    def link(self, name: str, to: Directory, new: str) -> None:
        """Give a file a second name in another directory."""
        old_at, old_below = self._place(name)
        new_at, new_below = to._place(new)
        options = {} if old_below is None else {"src_dir_fd": old_below, "dst_dir_fd": new_below}
        os.link(old_at, new_at, follow_symlinks=False, **options)

    def exchange(self, name: str, to: Directory, new: str) -> bool:
        """Let two things take each other's names in one step. False where the system or the filesystem cannot."""
        if self._fd is None or to._fd is None:
            return False
        try:
            import ctypes

            renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        except (ImportError, OSError, AttributeError):  # no Linux, a C library of before 2018, a Python without ctypes
            return False
        old_at, new_at = os.fsencode(self._place(name)[0]), os.fsencode(to._place(new)[0])
        if renameat2(self._fd, old_at, to._fd, new_at, _RENAME_EXCHANGE) == 0:
            return True
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return False
        raise OSError(number, os.strerror(number), str(to.path / new))

    def remove(self, name: str, seen: Callable[[os.stat_result], bool]) -> bool:
        """Remove a file if SEEN knows it. Returns whether the name is gone."""
        status = self.status(name)
        if status is None:
            return True
        if stat.S_ISDIR(status.st_mode) or not seen(status):
            return False
        at, below = self._place(name)
        os.unlink(at, dir_fd=below)
        return True

    def remove_directory(self, name: str) -> bool:
        """Remove a directory that is empty. Returns whether the name is gone."""
        at, below = self._place(name)
        try:
            os.rmdir(at, dir_fd=below)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
                return False
            raise
        return True

    def sync(self) -> None:
        """Make its names durable. Where a directory cannot be opened (Windows) or synced there is no way to."""
        with contextlib.suppress(OSError):
            if self._fd is not None:
                os.fsync(self._fd)

    def _itself(self) -> int | Path:
        """What the calls of the system take for the directory: its descriptor, or its path."""
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        return self.path if self._fd is None else self._fd

    def _place(self, name: str) -> tuple[str, int | None]:
        """What the calls of the system take for a name in it: a name below the descriptor, or a path."""
        self._itself()
        if not is_plain_name(name):
            raise ValueError(f"{name!r} is not a plain name")
        return (str(self.path / name), None) if self._fd is None else (name, self._fd)


def is_plain_name(name: object) -> bool:
    """Whether it is text that can be the name of something in a directory, and leads nowhere else."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False
    return True


def is_own_file(status: os.stat_result, owner: int | None = None) -> bool:
    """Whether it is a regular file of this user (or of OWNER), with one name."""
    own = not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), owner)
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and own


def permissions(old: os.stat_result) -> int:
    """The permissions of a file, for one that takes its place: without that of running as somebody else (setuid)."""
    return old.st_mode & 0o777


def set_mode(fd: int, mode: int) -> None:
    """Give an open file other permissions."""
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)


def lock(fd: int, *, wait: bool = False, shared: bool = False) -> bool:
    """Lock an open file or directory until it is closed. False if another run holds the lock, unless it may WAIT.

    A SHARED lock does not keep others from taking a shared one: it is for those who only look.

    Where files cannot be locked (Windows, some network filesystems) nothing is, and the answer is True.
    """
    try:
        import fcntl

        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def make_directories(path: Path) -> None:
    """Make a directory, and those above it that are missing."""
    path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A private directory among the temporary files of the system, removed with all that is in it at the end."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ckptool-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def unnamed_file(in_memory: int = 0, folder: Path | None = None) -> IO[bytes]:
    """A file without a name, gone when it is closed. Up to IN_MEMORY bytes of it stay in memory.

    It takes its room in FOLDER, or else where the system keeps temporary files.
    """
    import tempfile

    if in_memory:
        return tempfile.SpooledTemporaryFile(in_memory, dir=None if folder is None else str(folder))
    return tempfile.TemporaryFile(dir=folder)
