"""What is inside a folder. No link is followed out of it, except into the blobs of a Hugging Face cache:

    models--org--name/snapshots/REVISION/unet/model.safetensors -> ../../../blobs/HASH

A folder may come from anybody, and a link in it may lead to any file of the user: a private key as `config.json` would
be copied beside the weights. So links are looked up by name first, and refused where they leave. Then the way that was
found is opened step by step below the descriptor of the folder, following nothing, so that a link which is exchanged
meanwhile leads nowhere. Where a platform has no such calls, the real name is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from ..errors import CheckpointError, Malformed, Unreadable, printable
from .files import READING, File, StrPath, beside, open_descriptor, reason, shell_path
from .journals import as_it_was

_SHOWN = 4
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class Folder:
    """A directory open for reading: what is in it, and its files by their plain names, each opened once.

    Attributes:
        names: what is in it.
        unfinished: what to do where a file is missing.

    Raises:
        Unreadable: if PATH is no directory or may not be listed.
    """

    unfinished = "the download or copy did not finish; fetch the missing file"

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        self._open: dict[str, File] = {}
        self._fd = -1
        try:
            if os.open in os.supports_dir_fd and os.listdir in os.supports_fd and _NO_LINK:
                self._fd = open_descriptor(path, os.O_RDONLY | _FOLDER)
            self.names: tuple[str, ...] = tuple(sorted(os.listdir(path if self._fd < 0 else self._fd)))
        except (OSError, ValueError) as error:
            raise Unreadable(reason(error), where=path) from None

    def file(self, name: str, said_by: str) -> File:
        """The file called NAME in this directory.

        Args:
            name: a plain name.
            said_by: the file that names it, for messages.

        Raises:
            Malformed: the name leads out of the directory, or there is no such file.
            Unreadable: it is no regular file, or a link out of the directory.
        """
        if name not in self._open:
            if name in ("", ".", "..") or set(name) & {"/", "\\", ":", "\0"}:
                raise Malformed(
                    f"names {printable(repr(name), 120)}, which is not a plain file name: it could leave the folder",
                    where=self.path / said_by,
                )
            found = self._found(name)
            if found is None:
                raise Malformed(
                    f"names {printable(repr(name), 120)}, which is not in the folder",
                    where=self.path / said_by,
                    hint=self.unfinished,
                )
            self._open[name] = found
        return self._open[name]

    def expect(self, heads: Mapping[str, int]) -> None:
        """Say which files will be opened soon, and how many of their first bytes will be read then.

        That is worth knowing where a folder is elsewhere, and does nothing here.
        """

    def _found(self, name: str) -> File | None:
        """The file of a plain name, or None if there is nothing of that name."""
        if name not in self.names:
            return None
        try:
            return as_it_was(File(self.path / name, self._descriptor(name)))
        except CheckpointError:
            raise
        except (OSError, ValueError) as error:
            raise Unreadable(reason(error), where=self.path / name) from None

    def lying(self, name: str) -> Literal["file", "outside", "other"]:
        """What a name in this directory is: a file that can be read, a link out of the directory, or anything else."""
        place = self.path / name
        try:
            found = os.stat(place)
        except OSError:
            return "other"
        if os.path.islink(place) and self._steps(name) is None:
            return "outside"
        return "file" if stat.S_ISREG(found.st_mode) else "other"

    def _steps(self, name: str) -> tuple[str, ...] | None:
        return _steps(os.path.realpath(self.path), os.path.realpath(self.path / name))

    def _descriptor(self, name: str) -> int:
        """Open a file, or what a link leads to."""
        steps: tuple[str, ...] | None = (name,)
        if os.path.islink(self.path / name):
            if not os.path.exists(self.path / name):
                raise Unreadable(
                    "is a link that leads nowhere",
                    where=self.path / name,
                    hint="the download or copy did not finish; fetch the missing file",
                )
            steps = self._steps(name)
            if steps is None:
                raise self._refusal(name)
        assert steps is not None
        if self._fd < 0:
            return open_descriptor(os.path.join(os.path.realpath(self.path), *steps), READING | _NO_LINK)
        here = self._fd
        try:
            for step in steps[:-1]:
                # O_PATH, where there is one, needs no permission to list the folders on the way
                there = os.open(step, getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER | _NO_LINK, dir_fd=here)
                if here != self._fd:
                    os.close(here)
                here = there
            return open_descriptor(steps[-1], READING | _NO_LINK, dir_fd=here)
        finally:
            if here != self._fd:
                os.close(here)

    def _refusal(self, name: str) -> Unreadable:
        leaving = [name, *(other for other in self.names if other != name and self.lying(other) == "outside")]
        more = len(leaving) - _SHOWN
        return Unreadable(
            "is a link out of the folder, and is not followed:",
            where=self.path / name,
            evidence=[
                *(
                    f"{printable(one, 60)} -> {printable(os.path.realpath(self.path / one))}"
                    for one in leaving[:_SHOWN]
                ),
                *([f"… and {more:,} more"] if more > 0 else []),
            ],
            hint=f"cp -rL {shell_path(self.path)} {beside(self.path, 'copy')} puts files in the place of links; "
            "look first where they lead",
        )

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r}, {len(self.names)} names)"


def _steps(root: str, target: str) -> tuple[str, ...] | None:
    """The way from one real path to another, or None if it leaves ROOT for more than the blobs of its cache."""
    try:
        steps = Path(os.path.relpath(target, root)).parts
    except ValueError:  # another drive of Windows
        return None
    up = steps.count(os.pardir)  # which are its first steps
    in_cache = up > 1 and Path(root).parts[-up] == "snapshots" and steps[up:-1] == ("blobs",)
    return (steps or (os.curdir,)) if up == 0 or in_cache else None


def files_in(folder: StrPath, failed: Callable[[Unreadable], None]) -> Iterator[tuple[str, bool]]:
    """The files in a folder and the folders below it, in order, and whether each is inside: False for links out of it.

    Folders that may not be listed are told to FAILED.
    """
    try:
        root = os.path.realpath(folder)
    except OSError as error:  # the current folder was deleted
        failed(Unreadable(reason(error), where=folder))
        return
    for at, inner, names in os.walk(folder, onerror=lambda e: failed(Unreadable(reason(e), where=e.filename))):
        inner.sort()
        for name in sorted([*names, *(one for one in inner if os.path.islink(os.path.join(at, one)))]):
            path = Path(at, name)
            if path.is_symlink() and path.exists() and _steps(root, os.path.realpath(path)) is None:
                yield str(path), False
            elif path.is_file():
                yield str(path), True


def same_place(one: StrPath, other: StrPath) -> bool:
    """Whether two paths lead to the same place."""
    return os.path.realpath(one) == os.path.realpath(other)


def not_followed(names: Sequence[str]) -> str:
    """What to say of links out of a folder."""
    return f"not followed: {listed(names)}, {'a link' if len(names) == 1 else 'links'} out of the folder"


def listed(names: Sequence[str]) -> str:
    """Names for a line: the first of them, and how many more there are."""
    shown = ", ".join(printable(name, 60) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
