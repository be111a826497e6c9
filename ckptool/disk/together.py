"""Several processes write one file or folder: each its parts, side by side, into the same directory.

Rank 0 makes the directory (see `ckptool.disk.work`) with empty files of the right size, and gives the target its name
when all parts are there. So there is no index, and no target, before everything is on disk. Each rank brings its parts
to disk before it reports them, and rank 0 writes them down: the next run, on any number of ranks, goes on from there.

Before a byte is written, the ranks compare their plans and a sample of their inputs, and every one looks whether it
sees the directory that rank 0 has made. If rank 0 dies, others may go on for a moment; they write the bytes of the same
plan to the same places, so a run that took up the work meanwhile is not disturbed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from ..errors import CannotCarry, CheckpointError, Unwritable, printable
from ..ranks import Group, cut_evenly
from .checksums import Damaged, crc32, crc32_of, is_told_by_reading, joined_crc32, key_of
from .composing import Piece, room_for
from .door import Directory, Seen, permissions
from .files import CHUNK, Buffer, File, FileRange, StrPath, reason
from .folders import Making, fingerprints, there_in
from .parts import Files, Part, Parts, Sums
from .targets import Target, publish, refusals, target_file
from .work import Work, enter, reopen
from .writing import Progress, write_part, write_runs

#: Places at which inputs are compared, and bytes at each.
_SAMPLES, _SAMPLE = 16, 4096
#: Seconds in which a directory that one machine has made shows on the others.
_SHOWS_UP = 10.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank wrote.

    Attributes:
        rank: its number.
        bytes: of its parts, with those that it only read.
        seconds: from its first to its last byte on disk.
        heard: what its caller wants to tell that of rank 0.
    """

    rank: int
    bytes: int
    seconds: float
    heard: Any


def write_together(
    path: StrPath,
    files: Files,
    ranks: Group,
    *,
    inputs: Sequence[File] = (),
    overwrite: bool = False,
    backup: str | None = None,
    replaced: Callable[[str], bool] = lambda _: True,
    mode: int = 0o666,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
    heard: Callable[[], Any] = lambda: None,
) -> tuple[list[str], list[Share]]:
    """Make PATH a file, or a folder of FILES, whole or not at all. Every rank calls it with the same plan.

    Args:
        path: the target, on a disk that all ranks share; a link is followed, once.
        files: name -> pieces; the one name None for a target that is a file.
        ranks: this process and the others.
        inputs: the files that the pieces are taken from.
        overwrite, backup, replaced: see `replacing_folder`; they count on rank 0.
        mode: permissions of a new file, before the umask.
        progress: called with the number of bytes that any rank wrote, on rank 0, from a thread.
        check: called on every rank when all is written, before the target takes its name; what it raises stops that.
        heard: called on every rank after its last part; rank 0 gets what it gives, as plain data.

    Returns:
        What a person should know, and what each rank wrote; on all ranks.

    Raises:
        CannotCarry: the ranks see different inputs.
        Unwritable: a rank does not see the target; or see `replacing` and `replacing_folder`.
        Damaged: a checksum of an input is wrong; on rank 0.
        RankFailed: another rank failed.
    """
    try:
        plan = _require_same_plan(path, files, inputs, ranks)
        parts = Parts(files)
        with contextlib.ExitStack() as stack:
            lead = None
            if ranks.leads:
                lead = _Lead(path, files, parts, plan, overwrite=overwrite, backup=backup, replaced=replaced, mode=mode)
            _, made = ranks.led(lambda: stack.enter_context(lead.working()), lambda told: told)  # type: ignore[union-attr]
            where = stack.enter_context(_joined(path, made, ranks, folder=None not in files))
            done = {Part(*numbers) for numbers in made["parts"]}
            whole = set(made["finished"])
            todo = [part for part in parts.all if part not in done and parts.names[part.file] not in whole]
            if progress and lead:
                progress(_written(parts, parts.all) - _written(parts, todo))
            mine = [todo[n] for n in cut_evenly([part.length for part in todo], ranks.size)[ranks.rank]]
            begun = time.monotonic()
            with ranks.following(progress, lead.take if lead else None):
                _write(where, parts, mine, ranks)
                held = _write_scattered(where, parts, ranks)
            own = sum(part.length for part in mine) + sum(nbytes for nbytes, _ in held)
            shares = ranks.exchange([own, time.monotonic() - begun, _told_by_reading(parts), held, heard()])
            read = ranks.exchange(_read_again(where, parts, [held for _, _, _, held, _ in shares], ranks))
            ranks.agree(check)
            told = [told for _, _, told, _, _ in shares]
            _, notes = ranks.led(lambda: lead.finish(where, told, read), lambda notes: notes)  # type: ignore[union-attr]
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        hint = "what is finished stays beside it; the same command goes on from there"
        raise Unwritable(reason(error), where=path, hint=hint) from None
    return notes, [Share(rank, nbytes, seconds, said) for rank, (nbytes, seconds, _, _, said) in enumerate(shares)]


# -- before anything is written


def _require_same_plan(path: StrPath, files: Files, inputs: Sequence[File], ranks: Group) -> str:
    """Refuse to begin if ranks would write different things. Returns the fingerprint of the plan on this machine.

    Raises:
        CannotCarry: they would.
    """
    (_, plan), told = ranks.agree(
        lambda: fingerprints(files), lambda prints: [prints[0], [sampled(file) for file in inputs]]
    )
    for rank, (theirs, seen) in enumerate(told):
        if theirs == told[0][0] and seen == told[0][1]:
            continue
        differ = [i for i, (one, other) in enumerate(zip(told[0][1], seen, strict=False)) if one != other]
        evidence = []
        for number in differ[:4]:
            (size, _), (other, _) = told[0][1][number], seen[number]
            file = printable(str(inputs[number].path)) if number < len(inputs) else f"input {number + 1}"
            evidence.append(
                f"{file}: {size:,} bytes on rank 0, {other:,} on rank {rank}"
                if size != other
                else f"{file}: other bytes on rank 0 than on rank {rank}"
            )
        error = CannotCarry(
            f"rank {rank} sees other inputs than rank 0" + (":" if evidence else ""),
            where=path,
            evidence=evidence,
            hint="put the inputs where all nodes see the same files, and run the command again",
        )
        error.on_all_ranks = True
        raise error
    return plan


def sampled(file: File) -> tuple[int, str]:
    """The size of an input, and a digest of bytes at some places in it; of one on the web, of nothing."""
    digest = hashlib.sha256()
    if not file.far:
        last = max(file.size - _SAMPLE, 0)
        for place in dict.fromkeys(last * n // (_SAMPLES - 1) for n in range(_SAMPLES)):
            digest.update(file.read(place, min(_SAMPLE, file.size)))
    return file.size, digest.hexdigest()


@contextlib.contextmanager
def _joined(path: StrPath, told: dict[str, Any], ranks: Group, *, folder: bool) -> Iterator[Directory]:
    """The directory in which rank 0 has made the files, as this rank sees it."""
    parent = Path(os.path.realpath(path)).parent
    until = time.monotonic() + (0 if ranks.leads else _SHOWS_UP)

    def entered() -> Directory:
        while True:
            try:
                with Directory.at(parent) as above:
                    found = enter(above, told["name"], told["mark"], folder=folder)
            except FileNotFoundError:
                found = None
            except OSError as error:
                raise Unwritable(reason(error), where=path) from None
            if found is not None:
                return found
            if time.monotonic() > until:
                raise Unwritable(
                    "is on a disk that this rank does not share: the directory that rank 0 made there is missing",
                    where=path,
                    hint="name a target on a disk that all nodes share",
                )
            time.sleep(0.1)

    where, _ = ranks.agree(entered)
    with where:
        yield where


# -- rank 0


class _Lead:
    """What rank 0 does besides: it makes the files, writes down what is finished, and gives the target its name."""

    def __init__(
        self,
        path: StrPath,
        files: Files,
        parts: Parts,
        plan: str,
        *,
        overwrite: bool,
        backup: str | None,
        replaced: Callable[[str], bool],
        mode: int,
    ) -> None:
        self._path, self._files, self._parts, self._plan = path, files, parts, plan
        self._overwrite, self._backup, self._replaced, self._mode = overwrite, backup, replaced, mode
        self._file_of = {name: number for number, name in enumerate(parts.names)}
        self._sums: list[tuple[Part, Sums]] = []
        self._made: Making | None = None
        self._publish: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def working(self) -> Iterator[dict[str, Any]]:
        """Make the directory and the files, or take up those of a run that was cut off.

        Yields what the other ranks have to know: where it is, and what is finished.
        """
        with self._making() as making:
            self._made = making
            work, sizes = making.work, dict(zip(self._parts.names, self._parts.sizes, strict=True))
            for name, pieces in self._files.items():
                if str(name) not in work.finished:
                    old = making.target.old if name is None else None
                    mode = self._mode_of(pieces) if old is None else permissions(old)
                    work.make_room(name, sizes[name], mode, exactly=old is not None)
            planned = set(self._parts.all)
            for name, begin, end, sums in work.parts:
                part = Part(self._file_of.get(name, -1), begin, end)
                if part in planned:  # of a version that cuts parts alike
                    self._sums.append((part, sums))
            yield {
                "name": work.name,
                "mark": work.mark,
                "finished": list(work.finished),
                "parts": [list(part) for part, _ in self._sums],
            }

    @contextlib.contextmanager
    def _making(self) -> Iterator[Making]:
        names = [name for name in self._files if name is not None]
        room = sum(room_for(pieces) for pieces in self._files.values())
        sizes = dict(zip(self._files, self._parts.sizes, strict=False))
        with contextlib.ExitStack() as stack:
            if names:
                target = stack.enter_context(Target(self._path))
            else:
                target = stack.enter_context(target_file(self._path, overwrite=self._overwrite))
                if target.old is not None:
                    stack.enter_context(target.locked())
            stack.enter_context(refusals(target))
            scattered = bool(self._parts.scattered)  # the memory of the ranks, which no later run has
            work = None if scattered else Work.resume(target.folder, target.name, self._plan, sizes)
            if work is not None:
                stack.callback(work.close)
            there: dict[str, Seen] | None = None
            if names:
                target.old = target.folder.status(target.name)  # a folder that stood aside may have its name again
                there = there_in(target, overwrite=self._overwrite, names=names, replaced=self._replaced)
            kept = target.backup(self._backup) if (there if names else target.old) else None
            making = stack.enter_context(
                Making(target, names=names or None, plan=self._plan, work=work, stays=not scattered)
            )
            if not making.work.parts:
                target.require_room(room)
            if names:
                self._publish = lambda: making.publish(there, kept)
            else:
                self._publish = lambda: publish(target, making.work, kept)
            yield making

    def _mode_of(self, pieces: Sequence[Piece]) -> int:
        return next((piece.file.mode & 0o777 for piece in pieces if isinstance(piece, FileRange)), self._mode)

    def take(self, rank: int, post: list[Any]) -> None:
        """Write down parts that a rank has brought to disk."""
        assert self._made is not None
        for file, begin, end, sums in post:
            self._sums.append((Part(file, begin, end), sums))
            self._made.work.note_part(self._parts.names[file], begin, end, sums)

    def finish(
        self, where: Directory, told: Sequence[Sequence[Sequence[int]]], shared: Sequence[Sequence[Sequence[int]]]
    ) -> list[str]:
        """Write and compare checksums, and give the target its name. Returns what a person should know.

        Args:
            where: the directory.
            told: the checksums that each rank had as it read: the number of the comparison, and the CRC-32.
            shared: those that each rank found of what is in no part: the number of the piece, and the CRC-32.
        """
        assert self._made is not None
        whole = self._made.work.finished
        there = {part for part, _ in self._sums}
        missing = [p for p in self._parts.all if p not in there and str(self._parts.names[p.file]) not in whole]
        if missing:  # no rank has said that it failed, and yet a target with a hole in it must not appear
            raise AssertionError(f"{len(missing)} of {len(self._parts.all)} parts were not written")
        for number, sum_ in (one for ones in shared for one in ones):
            file, piece, start, scattered = self._parts.scattered[number]
            self._sums.append((Part(file, start, start + scattered.length), [(piece, sum_)]))
        found = self._parts.checksums(self._sums)
        for number, name in enumerate(self._files):
            places = list(self._parts.written_checksums(number))
            if places and str(name) not in self._made.work.finished:
                with reopen(where, name) as out:
                    for at, source in places:
                        write_part(out, [Buffer(found[key_of(source)].to_bytes(4, "little"))], [False], at)
                    os.fsync(out.fileno())
        read = {number: crc for one in told for number, crc in one}
        for number, verify in enumerate(self._parts.verified):
            crc = found.get(key_of(verify.source), read.get(number))
            if crc is not None and verify.noted is not None:
                verify.noted[verify.source] = crc
            elif crc is not None and crc != verify.source.crc:
                raise Damaged(verify.source, crc)
        self._publish()
        return self._made.notes


# -- every rank


def _write(where: Directory, parts: Parts, mine: Sequence[Part], ranks: Group) -> None:
    """Write the parts of this rank, and report each once it is on disk."""
    with contextlib.ExitStack() as files, _Syncing(ranks) as syncing:
        opened: tuple[int, IO[bytes]] | None = None
        for part in mine:
            pieces = list(parts.pieces_of(part))
            if not parts.is_written(part):
                ranks.check()
                sums = [(number, crc32_of(source)) for number, source, _ in pieces]
                syncing.put(part, sums, None)
                continue
            if opened is None or opened[0] != part.file:
                opened = part.file, files.enter_context(reopen(where, parts.names[part.file]))
            wanted = [want for _, _, want in pieces]
            crcs = write_part(opened[1], [source for _, source, _ in pieces], wanted, part.begin, ranks.advance)
            sums = [(number, crc) for (number, _, _), crc in zip(pieces, crcs, strict=True) if crc is not None]
            syncing.put(part, sums, opened[1])


def _write_scattered(where: Directory, parts: Parts, ranks: Group) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Write what this rank has of the pieces that are in no part, and bring it to disk.

    Returns:
        Of each such piece how many bytes, and the runs with their checksums, if those are asked for and not very many.
    """
    done: list[tuple[int, list[tuple[int, int, int]]]] = []
    for file, group in groupby(parts.scattered, lambda one: one[0]):
        # for writing alone: where the part of one rank ends within a page, that of the next one begins there
        with reopen(where, parts.names[file], reading=False) as out:
            for _, number, start, piece in group:
                wanted = parts.is_wanted(file, number)
                runs = write_runs(out, piece.held(), start, crcs=wanted, progress=ranks.advance)
                told = runs if wanted and len(runs) <= _MOST_RUNS else []
                done.append((sum(length for _, length, _ in runs), told))
            os.fsync(out.fileno())
    return done


def _read_again(where: Directory, parts: Parts, held: Sequence[Sequence[Any]], ranks: Group) -> list[tuple[int, int]]:
    """The checksums of some of the pieces that are in no part; the ranks divide them. All ranks have written theirs.

    They are put together from those of the runs; where a piece has very many, of short rows, it is read from the disk.

    Args:
        where: the directory.
        parts: the plan.
        held: for each rank, what it wrote of each piece (see `_write_scattered`).
        ranks: this process and the others.

    Returns:
        For each piece that this rank looked at its number, and the CRC-32 where it is asked for, else 0.
    """
    found = []
    for number, (file, piece, start, source) in list(enumerate(parts.scattered))[ranks.rank :: ranks.size]:
        ones = [rank[number] for rank in held]
        nbytes = sum(nbytes for nbytes, _ in ones)
        if nbytes != source.length:  # no rank has said that it failed, and yet a target with a hole must not appear
            raise AssertionError(f"{nbytes:,} of {source.length:,} bytes were written")
        runs = sorted(run for _, runs in ones for run in runs)
        crc = 0
        if parts.is_wanted(file, piece) and sum(length for _, length, _ in runs) == source.length:
            for _, length, one in runs:
                crc = joined_crc32(crc, one, length)
        elif parts.is_wanted(file, piece):
            with reopen(where, parts.names[file]) as written:
                for at in range(0, source.length, CHUNK):
                    crc = crc32(os.pread(written.fileno(), min(CHUNK, source.length - at), start + at), crc)
        found.append((number, crc))
    return found


#: Runs of a piece of which a rank tells the checksums one by one.
_MOST_RUNS = 64


class _Syncing:
    """A thread that brings parts to disk while the next ones are written, and tells rank 0 about them."""

    def __init__(self, ranks: Group) -> None:
        self._ranks = ranks
        self._waiting: queue.SimpleQueue[tuple[Part, Sums, IO[bytes] | None] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sync")

    def __enter__(self) -> _Syncing:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def put(self, part: Part, sums: Sums, out: IO[bytes] | None) -> None:
        """A part was written into OUT; None for one that was only read."""
        if self._failure is not None:
            raise self._failure
        self._waiting.put((part, sums, out))

    def _run(self) -> None:
        ended = False
        while not ended:
            ready = [self._waiting.get()]
            while not self._waiting.empty():
                ready.append(self._waiting.get())
            ended = ready[-1] is None
            done = [one for one in ready if one is not None]
            try:
                for fd in {out.fileno() for _, _, out in done if out is not None}:
                    os.fsync(fd)
            except BaseException as error:
                self._failure = error
                return
            if done:
                self._ranks.post([[part.file, part.begin, part.end, list(sums)] for part, sums, _ in done])


def _written(parts: Parts, some: Sequence[Part]) -> int:
    """Bytes of those of SOME parts that are written."""
    return sum(part.length for part in some if parts.is_written(part))


def _told_by_reading(parts: Parts) -> list[list[int]]:
    """Checksums of what told them as it was read whole by this rank: the number of the comparison, and the CRC-32."""
    return [
        [number, verify.source.seen]
        for number, verify in enumerate(parts.verified)
        if is_told_by_reading(verify.source) and verify.source.seen is not None
    ]
