"""Journals of patches that were cut off, and files as they were before.

    .NAME.ckptool-patch
        {"ckptool": 2, "made": inode, "patched": [inode, size], "name": "NAME",
         "ranges": [[first byte, length, SHA-256 of the old bytes, SHA-256 of the new ones], …]}
        the old bytes of all ranges, then the new ones

A journal is whole and on the disk before the first byte of its file changes, and it is removed when the last one is on
the disk (see `ckptool.disk.patching`). Until then whoever opens the file without ckptool may see a part of the change.
ckptool reads the file as it was, and changes nothing.

Devices are not stated: after a power cut the same disk may have another number (btrfs, NFS, volumes).

A journal counts only if it is a regular file of this user or of the owner of the file, has one name, states its own
inode (`made`) and that of the file beside it (`patched`), agrees with its digests, and if every byte of the ranges is
the old one or the new one. So one that was copied, unpacked or planted, or that belongs to a file that was replaced,
counts for nothing, and is named and left alone. But if what it says fits the file in all but the inodes, and shows a
part of a change in it, both were copied amid a patch: such a file is not read, since nothing tells its bytes apart
from whole ones. One that ends before it is whole shows that nothing was changed yet.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import CheckpointError, Unreadable, printable
from ..records import record
from .files import File, StrPath, reason, shell_path

if TYPE_CHECKING:
    from .door import Directory

#: What the name of a journal ends with.
ENDING = ".ckptool-patch"
#: Bytes that a patch may change: they are held in memory, old and new, and written twice.
MOST = 256 << 20
#: Ranges of one patch, at most: the line that tells them takes some 165 bytes for each (see `_LONGEST_LINE`).
MOST_RANGES = 4096
_LONGEST_NAME = 255
_LONGEST_LINE = 1 << 20
_BLOCK = 4096
_ANY_BEGINNING = b'{"ckptool": 2, "made": '


@record(frozen=True, slots=True)
class Range:
    """Bytes of a file that change."""

    offset: int
    old: bytes
    new: bytes


@record(frozen=True, slots=True)
class Journal:
    """A journal that counts.

    Attributes:
        name: of the journal.
        ranges: what changes; nothing, of one that is unfinished.
        state: "unfinished": nothing was changed yet; "begun"; or "complete": all new bytes are in the file.
        lives: the run that changes the file is at work.
    """

    name: str
    ranges: tuple[Range, ...]
    state: Literal["unfinished", "begun", "complete"]
    lives: bool


class StrangeJournal(Exception):
    """There is a journal, and it does not count. The text says why, behind its name."""


def journal_name(name: str) -> str:
    """The name of the journal of a file called NAME, cut so that it fits."""
    room = _LONGEST_NAME - len(f".{ENDING}")
    return f".{os.fsencode(name)[:room].decode('utf-8', 'ignore')}{ENDING}"


def beginning_of(made: os.stat_result) -> bytes:
    """How a journal begins. No other text is parsed."""
    return json.dumps({"ckptool": 2, "made": made.st_ino}).encode()[:-1] + b", "


def find_journal(folder: Directory, name: str, file: int) -> Journal | None:
    """The journal of the file NAME, which is open as FILE; None if there is none.

    Raises:
        StrangeJournal: there is one, and it does not count.
        OSError: it cannot be read.
    """
    from .door import lock

    beside = journal_name(name)
    if folder.status(beside) is None:
        return None
    try:
        fd = folder.open_made(beside, os.fstat(file).st_uid)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise StrangeJournal("may not be read") from None
    except OSError:
        raise StrangeJournal("is not a file that this user or its owner made, with one name") from None
    with os.fdopen(fd, "rb") as journal:
        lives = not lock(fd, shared=True)
        ranges = _read_journal(journal.readline(_LONGEST_LINE), fd, name, file, beginning_of(os.fstat(fd)))
        if ranges is None:
            return Journal(beside, (), "unfinished", lives)
        now = [read_at(file, one.offset, len(one.old)) for one in ranges]
        if not all(_is_between(there, one) for one, there in zip(ranges, now, strict=True)):
            raise StrangeJournal("does not agree with what the file holds now")
        complete = all(there == one.new for one, there in zip(ranges, now, strict=True))
        return Journal(beside, tuple(ranges), "complete" if complete else "begun", lives)


def name_before(real: Path, file: int) -> tuple[str, str] | None:
    """The journal of a file that was renamed amid a patch, or has another name, and the name that it was patched under.

    None where no part of a change is in it.

    Args:
        real: the file, in the folder where it was patched.
        file: it, open.
    """
    from .documents import read_json
    from .door import Directory

    try:
        there = os.stat(real.parent)
        names = _journals_in(str(real.parent), there.st_ino, there.st_mtime_ns)
        if not names:
            return None
        status = os.fstat(file)
        with Directory.at(real.parent) as folder:
            for beside in names:
                with contextlib.suppress(OSError, CheckpointError, KeyError, TypeError, ValueError):
                    with os.fdopen(folder.open_made(beside, status.st_uid), "rb") as journal:
                        line = journal.readline(_LONGEST_LINE)
                        if not line.startswith(beginning_of(os.fstat(journal.fileno()))):
                            continue
                    said = read_json(line)
                    if said["patched"] == [status.st_ino, status.st_size] and journal_name(real.name) != beside:
                        return (beside, str(said["name"])) if holds_a_part(folder, beside, file) else None
    except OSError:
        return None
    return None


@functools.lru_cache(maxsize=64)
def _journals_in(folder: str, inode: int, modified: int) -> tuple[str, ...]:
    """The names of journals in a folder, as of a time of change."""
    try:
        return tuple(name for name in os.listdir(folder) if name.endswith(ENDING))
    except OSError:  # it may not be listed
        return ()


def holds_a_part(folder: Directory, beside: str, file: int) -> bool:
    """Whether the journal BESIDE, which does not count for the open FILE, shows that a part of a change is in it."""
    try:
        with os.fdopen(folder.open_to_read(beside), "rb") as journal:
            if not stat.S_ISREG(os.fstat(journal.fileno()).st_mode):
                return False
            line = journal.readline(_LONGEST_LINE)
            ranges = _read_journal(line, journal.fileno(), "", file, _ANY_BEGINNING, anywhere=True)
    except (StrangeJournal, OSError):
        return False
    both = [(read_at(file, one.offset, len(one.old)), one) for one in ranges or ()]
    whole = all(there == one.old for there, one in both) or all(there == one.new for there, one in both)
    return not whole and all(_is_between(there, one) for there, one in both)


def _read_journal(
    line: bytes, fd: int, name: str, opened: int, beginning: bytes, *, anywhere: bool = False
) -> list[Range] | None:
    """The ranges of a journal, if it is that of the file (or ANYWHERE, of one of its size); None if it is not
    whole.

    Raises:
        StrangeJournal: it is none, or of another file.
    """
    made, file = os.fstat(fd), os.fstat(opened)
    is_cut = len(line) == made.st_size and line.decode("latin-1").isprintable()
    if is_cut and (beginning.startswith(line) or line.startswith(beginning)):
        return None  # its run ended before its first line did
    if not line.startswith(beginning) or not line.endswith(b"\n"):
        raise StrangeJournal("was not made here")  # and nothing of it is read
    from .documents import read_json

    try:
        said = read_json(line)
        here = [file.st_ino, file.st_size]
        if said["patched"][1 * anywhere :] != here[1 * anywhere :] or (said["name"] != name and not anywhere):
            raise StrangeJournal("belongs to another file")
        told = [(offset, length, old, new) for offset, length, old, new in said["ranges"]]
        if not all(type(n) is int and n >= 0 for offset, length, *_ in told for n in (offset, length)):
            raise StrangeJournal("is damaged")
        whole = sum(length for _, length, *_ in told)
        if made.st_size < len(line) + 2 * whole:
            if whole > MOST or not all(_digest_at(opened, one[0], one[1]) == one[2] for one in told):
                raise StrangeJournal("is damaged")  # the file was changed: the journal had been whole
            return None
        inside = all(offset + length <= file.st_size for offset, length, *_ in told)
        if whole > MOST or not inside or made.st_size > len(line) + 2 * whole:
            raise StrangeJournal("is damaged")
    except (CheckpointError, KeyError, TypeError, ValueError):
        raise StrangeJournal("is damaged") from None
    texts, at = [], len(line)
    for length in [length for _, length, *_ in told] * 2:
        texts.append(read_at(fd, at, length))
        at += length
    olds, news = texts[: len(told)], texts[len(told) :]
    ranges = [Range(one[0], old, new) for one, old, new in zip(told, olds, news, strict=True)]
    for one, (_, _, old, new) in zip(ranges, told, strict=True):
        if digest(one.old) != old or digest(one.new) != new:
            raise StrangeJournal("is damaged")
    return ranges


def _is_between(there: bytes, one: Range) -> bool:
    """Whether each byte is the old one or the new one."""
    if there in (one.old, one.new):
        return True
    for at in range(0, len(there), _BLOCK):
        now, old, new = (text[at : at + _BLOCK] for text in (there, one.old, one.new))
        if now not in (old, new) and any(a not in (b, c) for a, b, c in zip(now, old, new, strict=True)):
            return False
    return len(there) == len(one.old)


def read_at(fd: int, offset: int, length: int) -> bytes:
    """Up to LENGTH bytes from OFFSET of an open file."""
    parts = []
    while length:
        os.lseek(fd, offset, os.SEEK_SET)
        part = os.read(fd, length)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def _digest_at(fd: int, offset: int, length: int) -> str:
    return digest(read_at(fd, offset, length))


def digest(data: bytes) -> str:
    """SHA-256, as text."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


class Journaled(File):
    """A file whose patch was cut off, or that was patched since it was opened, as it was before."""

    def __init__(self, file: File, ranges: Sequence[Range]) -> None:
        self._file = file
        self._ranges = ranges
        self.fd = -1  # whoever reads past this would see the patch
        self.path, self.size, self.mode = file.path, file.size, file.mode
        self.identity, self.modified, self.holes = file.identity, file.modified, 0
        self._at_path = file.identity

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly LENGTH bytes from OFFSET, as `File.read`."""
        data = self._file.read(offset, length)
        for one in self._ranges:
            first, last = max(one.offset, offset), min(one.offset + len(one.old), offset + length)
            if first < last:
                old = one.old[first - one.offset : last - one.offset]
                data = data[: first - offset] + old + data[last - offset :]
        return data

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill VIEW with the bytes from OFFSET."""
        view[:] = self.read(offset, len(view))

    def is_unchanged(self) -> bool:
        """As the file."""
        return self._file.is_unchanged()

    def note_settled(self) -> None:
        """Go on reading what was there before the patch, which ckptool itself has taken back or completed."""
        self._file.modified = self.modified = os.fstat(self._file.fd).st_mtime_ns

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def has_journal(path: StrPath) -> bool:
    """Whether something has the name of the journal of the file at PATH."""
    try:
        real = Path(os.path.realpath(path))
        return os.path.lexists(real.parent / journal_name(real.name))
    except (OSError, ValueError):
        return False


def _refusal(file: File, named: str) -> Unreadable:
    where = file.path
    file.close()
    return Unreadable(
        "holds a part of a patch that was cut off or still goes on:",
        where=where,
        evidence=[
            f"some bytes are those from before, some those from after the patch that {named} describes,",
            "which was made for another file (this one is a copy) or by another user, and takes nothing back here",
        ],
        hint=f"ckptool doctor --recover {shell_path(where.name)} where it was patched; then copy it again",
    )


def renamed(path: StrPath, real: Path, beside: str, name: str) -> Unreadable:
    """What to say of a file that was renamed amid a patch (see `name_before`)."""
    return Unreadable(
        f"holds a part of a patch that was cut off or still goes on under the name {printable(name, 120)}",
        where=path,
        evidence=[f"{printable(beside, 120)} is its journal"],
        hint=f"mv -n {shell_path(real)} {shell_path(real.parent / name)} gives it that name, under which it is read as "
        "it was and can be recovered (ckptool doctor --recover)",
    )


def as_it_was(file: File) -> File:
    """FILE, or if a patch of it was cut off, what it was before that. Nothing is changed.

    Raises:
        Unreadable: it holds a part of a patch, and its journal does not count: it was copied, or somebody else made it.
    """
    if file.fd < 0:
        return file
    try:
        real = Path(os.path.realpath(file.path))
    except (OSError, ValueError):  # the current folder was deleted
        return file
    if not os.path.lexists(real.parent / journal_name(real.name)):
        before = name_before(real, file.fd)
        if before is not None:
            file.close()
            raise renamed(file.path, real, *before)
        return file
    from .door import Directory

    named = printable(journal_name(real.name), 120)
    settled = f"ckptool doctor --recover {shell_path(file.path)}"
    why, torn = "", False
    try:
        with Directory.at(real.parent) as folder:
            try:
                found = find_journal(folder, real.name, file.fd)
            except StrangeJournal as strange:
                found, why = None, str(strange)
                torn = holds_a_part(folder, journal_name(real.name), file.fd)
    except OSError as error:
        found, why = None, reason(error)
    if torn:
        raise _refusal(file, named)
    if why:
        file.notes = (*file.notes, f"{named} beside it {why}, and is left alone")
        return file
    if found is None:
        return file
    if found.state == "begun":
        file = Journaled(file, found.ranges)
    told = {
        "unfinished": f"a patch of it was cut off before it changed anything; {settled} removes {named}",
        "begun": f"a patch of it was cut off, and it is read as it was before; {settled} puts that back from {named}",
        "complete": f"a patch of it is complete and was cut off at its end; {settled} removes {named}",
    }[found.state]
    file.notes = (*file.notes, f"another run of ckptool is patching it ({named})" if found.lives else told)
    return file
