"""What runs that were cut off left behind, and what others are working on."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..records import record
from . import run_record
from .door import Directory, lock
from .run_record import RECORD

SUFFIX = ".ckptool-tmp"
NEW = "new"
_LONGEST_NAME = 255


@record(frozen=True, slots=True)
class Leftover:
    """What a run left behind, or is working on.

    Attributes:
        path: the directory.
        target: the name that its output was to have.
        lives: whether the run is still at work.
        nbytes: bytes of the files in it.
        own: whether its record counts, or nothing is in it; nothing is removed of another one.
    """

    path: Path
    target: str
    lives: bool
    nbytes: int
    own: bool


def find(parent: Directory, target: str | None = None) -> list[Leftover]:
    """The directories of runs that make TARGET in the directory PARENT, or anything in it."""
    start = "." if target is None else beginning(target)
    try:
        names = parent.names()
    except OSError:  # a directory that may be written to and not listed
        return []
    found = []
    for name in names:
        status = parent.status(name) if name.startswith(start) and name.endswith(SUFFIX) else None
        if status is not None and stat.S_ISDIR(status.st_mode):
            one = _look(parent, name)
            if target is None or one.target == target:
                found.append(one)
    return found


def beginning(target: str) -> str:
    """How the name of a work directory begins: with that of its target, cut so that the whole fits."""
    room = _LONGEST_NAME - len(f"..00000000{SUFFIX}")
    return f".{os.fsencode(target)[:room].decode('utf-8', 'ignore')}."


def _look(parent: Directory, name: str) -> Leftover:
    path = parent.path / name
    target = name[1 : -len(SUFFIX)].rpartition(".")[0]
    try:
        with parent.enter(name) as own:
            nbytes = sum(_sizes(own))
            content, fd = run_record.read(own)
            if content is None:
                return Leftover(path, target, is_locked(own), nbytes, holds_nothing(own))
            os.close(fd)
            return Leftover(path, content["target"], is_locked(own), nbytes, True)
    except OSError:
        return Leftover(path, target, False, 0, False)


def is_locked(own: Directory) -> bool:
    """Whether the run that a record belongs to is at work. Several may look at once."""
    try:
        fd = own.reopen(RECORD)
    except OSError:
        return False
    try:
        return not lock(fd, shared=True)
    finally:
        os.close(fd)


def _sizes(folder: Directory) -> Iterator[int]:
    """Sizes of the files in a directory and those directly below it."""
    for name in folder.names():
        status = folder.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            with folder.enter(name) as inner:
                yield from (seen.size for seen in inner.contents().values())
        elif status is not None:
            yield status.st_size


def holds_nothing(own: Directory) -> bool:
    """Whether a run ended before it wrote a line of its record, or after it removed that: nothing can be lost."""
    for name in own.names():
        status = own.status(name)
        if name == NEW and status is not None and stat.S_ISDIR(status.st_mode):
            with own.enter(name) as new:
                if new.names():
                    return False
        elif name != RECORD or status is None or not stat.S_ISREG(status.st_mode) or status.st_size:
            return False
    return True
