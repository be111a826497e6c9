"""A planned file or folder, cut into parts that several processes write side by side.

Where a part begins depends on the plan alone, not on how many processes there are: so a run on four ranks can go on
with what one on eight has finished. Each part is a run of bytes of one file. A checksum that is asked for is put
together from those of the parts that its bytes are in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeGuard

from .checksums import is_told_by_reading, joined_crc32, key_of
from .composing import OF_OTHERS, Crc32Of, Gap, Piece, Verify, is_computed, nested, part_of
from .files import Buffer, File, FileRange, Source


class Scattered(Source, Protocol):
    """Bytes that no process has all of: each writes those that it has."""

    def held(self) -> Iterator[tuple[int, memoryview]]:
        """What this process writes: where it begins in this source, and the bytes. No two processes write the same."""


def is_scattered(piece: object) -> TypeGuard[Scattered]:
    """Whether a piece is one that every process has some bytes of."""
    return hasattr(type(piece), "held")


#: Bytes of a part: about a thousandth of the whole, so that ranks get even shares, within these limits.
_SHARE = 1024
_LEAST, _MOST = 1 << 20, 256 << 20
#: In what is computed, a part begins with a whole number. The largest, complex128, has 16 bytes.
_NUMBER = 16

#: Name of a file -> its pieces; None is the name where the target is no folder.
Files = Mapping[Any, Sequence[Piece]]
#: (number of a piece, CRC-32 of the bytes of it that are in a part)
Sums = Sequence[tuple[int, int]]


class Part(NamedTuple):
    """The bytes from BEGIN to END of a file; the number of the file is its place in the plan."""

    file: int
    begin: int
    end: int

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return self.end - self.begin


class Parts:
    """The parts of one plan.

    Attributes:
        names: of the files; the last is "", a file that nobody writes: the bytes of which only the checksum is needed.
        all: the parts, in order; those that are only read stand beside those that are made of them, so that one rank
            gets both, and reads the disk once.
        verified: the comparisons that the plan asks for.
        scattered: the pieces that are in no part, since each rank writes what it has of them: (file, piece, where it
            begins in the file, the piece itself).
    """

    def __init__(self, files: Files) -> None:
        asked: dict[Hashable, tuple[Source, int, int]] = {}
        passing: set[Hashable] = set()
        self.verified: list[Verify] = []
        for file, pieces in enumerate(files.values()):
            at = 0
            for piece in pieces:
                if isinstance(piece, OF_OTHERS):
                    asked.setdefault(key_of(piece.source), (piece.source, file, at))
                    if isinstance(piece, Verify):
                        self.verified.append(piece)
                else:
                    passing.add(key_of(piece))
                at += piece.length
        further = [one for key, one in asked.items() if key not in passing and not is_told_by_reading(one[0])]
        self.names: list[str | None] = [*files, ""]
        self._pieces: list[Sequence[Piece]] = [*files.values(), [source for source, _, _ in further]]
        self._starts = [[0, *accumulate(piece.length for piece in pieces)] for pieces in self._pieces]
        self._wanted = [
            {n for n, piece in enumerate(pieces) if not isinstance(piece, OF_OTHERS) and key_of(piece) in asked}
            if asked
            else set()
            for pieces in self._pieces
        ]
        self.scattered = [
            (file, number, start, piece)
            for file, (pieces, starts) in enumerate(zip(self._pieces, self._starts, strict=True))
            for number, (piece, start) in enumerate(zip(pieces, starts, strict=False))
            if is_scattered(piece) and piece.length
        ]
        step = max(_LEAST, min(_MOST, sum(self.sizes) // _SHARE // _LEAST * _LEAST))
        beside = [(file, at) for _, file, at in further]

        def place(part: Part) -> tuple[int, int]:
            if self.is_written(part):
                return part.file, part.begin
            return beside[bisect_right(self._starts[part.file], part.begin) - 1]

        self.all = sorted((part for file in range(len(self._pieces)) for part in self._cut(file, step)), key=place)

    def is_written(self, part: Part) -> bool:
        """Whether a part is written, and not only read."""
        return part.file < len(self.names) - 1

    @property
    def sizes(self) -> list[int]:
        """Bytes of each file."""
        return [starts[-1] for starts in self._starts]

    def is_wanted(self, file: int, number: int) -> bool:
        """Whether the checksum of a piece is asked for."""
        return number in self._wanted[file]

    def _cut(self, file: int, step: int) -> Iterator[Part]:
        begin = 0
        for _, _, start, piece in (one for one in self.scattered if one[0] == file):
            yield from self._cut_between(file, step, begin, start)
            begin = start + piece.length
        yield from self._cut_between(file, step, begin, self._starts[file][-1])

    def _cut_between(self, file: int, step: int, begin: int, end: int) -> Iterator[Part]:
        starts, pieces = self._starts[file], self._pieces[file]
        for mark in range((begin // step + 1) * step, end, step):
            number = bisect_right(starts, mark) - 1
            piece, start = pieces[number], starts[number]
            if _is_whole(piece):
                mark = start if start > begin else min(starts[number + 1], end)
            elif is_computed(piece):
                mark -= (mark - start) % _NUMBER
            if begin < mark < end:
                yield Part(file, begin, mark)
                begin = mark
        if begin < end:
            yield Part(file, begin, end)

    def pieces_of(self, part: Part) -> Iterator[tuple[int, Source, bool]]:
        """The pieces of a part, in order: their number in the file, what is in the part, and whether its checksum is
        wanted. Checksums are gaps: rank 0 alone writes them, at the end. So a rank that was stopped, and goes on when
        another run has finished its work, writes nothing but what is there.
        """
        starts, pieces = self._starts[part.file], self._pieces[part.file]
        wanted = self._wanted[part.file]
        number = bisect_right(starts, part.begin) - 1
        while number < len(pieces) and starts[number] < part.end:
            first, last = max(part.begin, starts[number]), min(part.end, starts[number + 1])
            piece = pieces[number]
            if isinstance(piece, Crc32Of):
                yield number, Gap(last - first), False
            elif first < last and not isinstance(piece, Verify):
                yield number, part_of(piece, first - starts[number], last - first), number in wanted
            number += 1

    def checksums(self, sums: Iterable[tuple[Part, Sums]]) -> dict[Hashable, int]:
        """The checksums that were asked for, from those that the parts gave, by `key_of`. What parts do not tell of to
        its last byte (that of a file which an earlier run has finished) is missing.
        """
        found: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for part, ones in sums:
            starts = self._starts[part.file]
            for number, crc in ones:
                first, last = max(part.begin, starts[number]), min(part.end, starts[number + 1])
                found[part.file, number].append((first, last - first, crc))
        whole: dict[Hashable, int] = {}
        for file, wanted in enumerate(self._wanted):
            for number in wanted:
                crc, at = 0, self._starts[file][number]
                for first, length, one in sorted(set(found[file, number])):
                    if first == at:
                        crc, at = joined_crc32(crc, one, length), at + length
                if at == self._starts[file][number + 1]:
                    whole[key_of(self._pieces[file][number])] = crc  # type: ignore[arg-type]
        return whole

    def written_checksums(self, file: int) -> Iterator[tuple[int, Source]]:
        """The checksums that stand in a file: where, and of what."""
        for piece, start in zip(self._pieces[file], self._starts[file], strict=False):
            if isinstance(piece, Crc32Of):
                yield start, piece.source


def _is_whole(piece: Piece) -> bool:
    """Whether one process reads a piece from its beginning to its end: what is packed, or comes over a network."""
    if isinstance(piece, Buffer | Crc32Of | Verify):
        return False
    if isinstance(piece, FileRange):
        return piece.file.far
    return any(
        one.far if isinstance(one, File) else hasattr(type(one), "seen") and not isinstance(one, FileRange)
        for one in nested(piece)
    )
