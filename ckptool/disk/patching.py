"""Changing some bytes of a file where it stands, with a journal beside it that can take the change back.

The journal (see `ckptool.disk.journals`) is synced before the first byte of the file changes. `settle` ends what was
cut off: if all new bytes are there only the journal goes, else the old bytes are put back.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence

from ..errors import RuleError, Unwritable, counted, printable
from . import run_record
from .checksums import crc32
from .composing import Piece
from .door import Seen, is_own_file, lock, set_mode
from .files import File, FileRange, StrPath
from .interrupts import put_off_signals
from .journals import (
    MOST,
    MOST_RANGES,
    Journaled,
    Range,
    StrangeJournal,
    as_it_was,
    beginning_of,
    digest,
    find_journal,
    has_journal,
    journal_name,
)
from .targets import Target, refusals, target_file, written
from .writing import Output, Progress, put_pieces, write_at

#: What to do where nothing can be patched.
PLAIN = "without --patch a new file is written, which takes the name when it is whole"

#: Seconds for which a journal waits for those who look at it.
_LONGEST_LOOK = 5


class _Changes(Output):
    """Takes what is written, and keeps what is not in the file already."""

    def __init__(self, base: File, progress: Progress | None) -> None:
        self.shared = base
        self.found: list[tuple[int, bytearray]] = []
        self._progress = progress

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        last = self.found[-1] if self.found else (-1, bytearray())
        if last[0] + len(last[1]) != self.position:
            last = (self.position, bytearray())
            self.found.append(last)
        last[1].extend(data)
        self._advance(len(data))

    def copy(self, piece: FileRange, crc: int | None = None) -> int | None:
        """Append bytes that come from another place."""

        for chunk in piece.chunks():
            crc = None if crc is None else crc32(chunk, crc)
            self.write(chunk)
        return crc

    def skip(self, length: int) -> None:
        """Leave LENGTH bytes as they are."""
        self._advance(length)

    def flush(self) -> None:
        """Nothing waits."""

    def _advance(self, length: int) -> None:
        self.position += length
        if self._progress:
            self._progress(length)


def obstacle(pieces: Sequence[Piece], base: File | None) -> str | None:
    """Why PIECES cannot be patched into the file BASE, or None if they can.

    They can if most of them are bytes of that file in their places, and its size stays.
    """
    if base is None:
        return "the new file is not made of the one that is there"
    size = sum(piece.length for piece in pieces)
    if size != base.size:
        return "what changes does not fit into its place"
    at = changed = ranges = 0
    stayed = True
    for piece in pieces:
        stays = isinstance(piece, FileRange) and piece.file is base and piece.offset == at
        changed += 0 if stays else piece.length
        ranges += stayed and not stays
        stayed = stays
        at += piece.length
    if ranges > MOST_RANGES:
        return f"{ranges:,} ranges would change; {MOST_RANGES:,} is the limit"
    return f"{changed:,} bytes would change; {MOST:,} is the limit" if changed > MOST else None


def base_of(path: StrPath, files: Sequence[File]) -> File | None:
    """Which of FILES is the one at PATH; None if none is, or if it is read through a journal."""
    with contextlib.suppress(OSError):
        there = os.stat(path)
        for file in files:
            if file.fd >= 0 and file.identity == (there.st_dev, there.st_ino):
                return file
    return None


def check_patch(path: StrPath, pieces: Sequence[Piece], files: Sequence[File]) -> None:
    """Refuse a patch that cannot be, before any work is done.

    Args:
        path: the file.
        pieces: what its new content is put together from.
        files: the files that these come from.

    Raises:
        RuleError: the new content does not fit into the place of the old one, or the file has several names.
        Unwritable: it may not be written to.
    """
    with target_file(path, overwrite=True) as target:
        why = obstacle(pieces, base_of(target.real, files))
        if target.old is not None and target.old.st_nlink > 1:
            why = f"it has {counted(target.old.st_nlink, 'name')} (hard links), and all of them would change"
        if why is not None:
            raise RuleError(f"cannot be patched: {why}", where=path, hint=PLAIN)
        if not os.access(target.real, os.W_OK):
            raise Unwritable("no permission to write to it", where=path, hint=PLAIN)
        if target.folder.status(journal_name(target.name)) is not None:
            _refuse_journal(target)


def _refuse_journal(target: Target) -> None:
    """Say that there is a journal that this run did not make, and that is not settled."""
    raise Unwritable(
        f"{printable(journal_name(target.name), 120)} is in the way, which is not a journal of this file",
        where=target.path,
        hint="look at it, and move it away",
    )


def patch(
    path: StrPath,
    pieces: Sequence[Piece],
    files: Sequence[File],
    *,
    progress: Progress | None = None,
    check: Callable[[], None] | None = None,
) -> int:
    """Change the file at PATH so that it holds PIECES. Most of them are bytes of the file in their places.

    What fails before all of it is on the disk is taken back at once. Where even that fails, the journal stays.

    Args:
        path: the file. A link is followed, once.
        pieces, files: see `check_patch`.
        progress: called with the number of bytes, each time some were looked at.
        check: called before the first byte changes; it may refuse.

    Returns:
        How many bytes changed.

    Raises:
        RuleError, Unwritable: as `check_patch`, or the system does not let it.
        OutputExists: somebody else changed the file meanwhile.
    """
    check_patch(path, pieces, files)
    with target_file(path, overwrite=True) as target, refusals(target), target.locked():
        base = base_of(target.real, files)
        assert base is not None
        assert target.old is not None
        changes = _Changes(base, progress)
        put_pieces(changes, pieces)
        both = [Range(at, base.read(at, len(new)), bytes(new)) for at, new in changes.found]
        ranges = [one for one in both if one.old != one.new]
        if check is not None:
            check()
        if ranges:
            _carry_out(target, ranges)
            base.note_patched(Journaled(File(base.path, base.fd), ranges))
        written.append(os.fspath(path))
    return sum(len(one.new) for one in ranges)


def _carry_out(target: Target, ranges: Sequence[Range]) -> None:
    """Make the journal, change the file, and remove the journal."""
    assert target.old is not None
    old = Seen.of(target.old)
    fd = target.folder.open_to_patch(target.name, old)
    journal = -1
    try:
        with put_off_signals():
            journal = _make_journal(target, ranges)
            try:
                for one in ranges:
                    write_at(fd, one.new, one.offset)
                os.fsync(fd)
            except OSError:
                _take_back(target, fd, ranges)
                raise
            _remove_journal(target, journal)
    finally:
        os.close(fd)
        if journal >= 0:
            os.close(journal)


def _take_back(target: Target, fd: int, ranges: Sequence[Range]) -> None:
    """Put the old bytes back after an error. If that fails as well, the journal stays for `settle`."""
    with contextlib.suppress(OSError):
        _put_back(fd, ranges)
        target.folder.remove(journal_name(target.name), is_own_file)
        target.folder.sync()


def _put_back(fd: int, ranges: Sequence[Range]) -> None:
    for one in ranges:
        write_at(fd, one.old, one.offset)
    os.fsync(fd)


def _make_journal(target: Target, ranges: Sequence[Range]) -> int:
    """Make the journal of a patch, whole and on disk. Returns its descriptor, which holds its lock.

    What ends it before that leaves a journal that is not whole, and a file that is as it was.
    """
    assert target.old is not None
    name = journal_name(target.name)
    fd = target.folder.create(name, 0o600)
    try:
        made = os.fstat(fd)
        set_mode(fd, _mode_of_journal(target.old, made))
        _lock_journal(fd)
        said = {
            "patched": [target.old.st_ino, target.old.st_size],
            "name": target.name,
            "ranges": [[one.offset, len(one.old), digest(one.old), digest(one.new)] for one in ranges],
        }
        at = 0
        line = beginning_of(made) + json.dumps(said).encode()[1:] + b"\n"
        for text in (line, *(one.old for one in ranges), *(one.new for one in ranges)):
            write_at(fd, text, at)
            at += len(text)
        os.fsync(fd)
        target.folder.sync()
    except BaseException:
        try:
            with contextlib.suppress(OSError):
                target.folder.remove(name, is_own_file)
        finally:
            os.close(fd)
        raise
    return fd


def _mode_of_journal(old: os.stat_result, made: os.stat_result) -> int:
    """Permissions by which only those read a journal who may read its file, which may be of another group."""
    group = old.st_mode & 0o040 if old.st_gid == made.st_gid else 0
    return 0o600 | (0o044 if old.st_mode & 0o044 == 0o044 else group)


def _lock_journal(fd: int) -> None:
    """Lock a journal, by which others see that its run lives. One of them may just look; nobody may hold it up."""
    until = time.monotonic() + _LONGEST_LOOK
    while not lock(fd) and time.monotonic() < until:
        time.sleep(0.01)


def _remove_journal(target: Target, journal: int) -> None:
    made = run_record.number(os.fstat(journal))
    with contextlib.suppress(OSError):  # the file is whole, with or without it
        target.folder.remove(journal_name(target.name), lambda status: run_record.number(status) == made)
    target.folder.sync()


def settle(path: StrPath) -> str | None:
    """End a patch of the file at PATH that was cut off: complete it if all new bytes are there, else take it back.

    Returns:
        What was done, in a line; None where there is nothing to do.

    Raises:
        Unwritable: another run is patching it, or the system does not let it.
        RuleError: there is a journal that is not of this file. It is left alone, and so is the file.
    """
    if not has_journal(path):
        as_it_was(File(path)).close()  # which names the journal of a file that was renamed
        return None
    with target_file(path, overwrite=True) as target, refusals(target), contextlib.ExitStack() as locked:
        if target.old is None:
            raise RuleError(
                f"{printable(journal_name(target.name), 120)} is a journal, and its file is not there", where=path
            )
        # Of two runs that end it, the later one could take back what came after the first; and the run that makes the
        # journal holds this lock before there is one.
        locked.enter_context(target.locked())
        owner = target.old.st_uid
        fd = target.folder.open_to_patch(target.name, Seen.of(target.old), links=True)
        try:
            found = find_journal(target.folder, target.name, fd)
            if found is None:
                return None
            if found.lives:
                raise Unwritable("another run of ckptool is patching it", where=path, hint="wait until it ends")
            with put_off_signals():
                if found.state == "complete":
                    os.fsync(fd)
                elif found.ranges:
                    _put_back(fd, found.ranges)
                target.folder.remove(found.name, lambda status: is_own_file(status, owner))
                target.folder.sync()
        except StrangeJournal as strange:
            named = printable(journal_name(target.name), 120)
            what = f"{named} beside it {strange}, and is left alone"
            raise RuleError(what, where=path, hint="look at it, and move it away") from None
        finally:
            os.close(fd)
    return {
        "unfinished": "nothing of it was changed",
        "begun": "it is as it was before the patch that was cut off",
        "complete": "its patch is complete: every byte of it was there",
    }[found.state]
