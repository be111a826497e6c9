"""What runs that were cut off left behind in a folder or beside a file, and its removal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...disk.addresses import StrPath, is_url
from ...disk.door import Directory
from ...disk.files import reason
from ...disk.runs import Leftover, find
from ...disk.work import remove
from ...errors import Unreadable, Unwritable, counted, printable


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of something that a run left behind.

    Attributes:
        path: the directory.
        nbytes: bytes of the files in it.
        removed: whether it is gone.
        why: why it is not.
    """

    path: str
    nbytes: int
    removed: bool
    why: str = ""


def left_behind(path: StrPath) -> list[Leftover]:
    """The directories of runs that were cut off: those in the folder PATH, and those of runs that wrote PATH.

    Raises:
        Unreadable: the folder cannot be looked into.
    """
    if is_url(path):
        return []
    real = Path(os.path.realpath(path))
    places: list[tuple[Path, str | None]] = [(real.parent, real.name)] if real.name else []
    if real.is_dir():
        places.append((real, None))
    found: list[Leftover] = []
    for folder, target in places:
        try:
            with Directory.at(folder) as parent:
                found += find(parent, target)
        except OSError as error:
            raise Unreadable(reason(error), where=path) from None
    return found


def remove_leftovers(path: StrPath) -> list[Removal]:
    """Remove what runs that were cut off left behind: in the folder PATH, and beside the file or folder PATH.

    Nothing is removed of a run that is still at work, nor anything that no record of ckptool names.

    Raises:
        Unreadable: there is nothing at PATH, or it cannot be looked into.
        Unwritable: something cannot be removed.
    """
    if not os.path.lexists(path) and not left_behind(path):
        raise Unreadable("no such file or directory", where=path)
    return list(_removed(path))


def _removed(path: StrPath) -> Iterator[Removal]:
    for one in left_behind(path):
        shown = os.fspath(one.path)
        if one.lives:
            yield Removal(shown, one.nbytes, False, "its run is still at work")
        elif not one.own:
            yield Removal(shown, one.nbytes, False, "its record is not of this machine, so nothing of it is removed")
        else:
            try:
                kept = remove(one)
            except OSError as error:
                raise Unwritable(f"cannot be removed: {reason(error)}", where=one.path) from None
            why = f"it also holds {', '.join(printable(name, 60) for name in kept[:3])}" if kept else ""
            yield Removal(shown, one.nbytes, not kept, why)


def removal_text(removed: list[Removal]) -> str:
    """What became of leftovers, for a person."""
    if not removed:
        return "nothing is left behind"
    return "\n".join(
        f"{'removed' if one.removed else 'kept'} {printable(one.path)} ({counted(one.nbytes, 'byte')})"
        + (f": {one.why}" if one.why else "")
        for one in removed
    )
