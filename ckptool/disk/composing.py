"""What a file is put together from.

What will be written (see `ckptool.disk.writing`) is described by *pieces*, in order, each with a `length`:

- `FileRange`: bytes of an open input file, which are copied, by the kernel where that is the faster way,
- `Buffer`: bytes in memory,
- any other `Source`, whose `chunks()` are computed while writing (a strided tensor, say),
- `Crc32Of`: the four bytes of a checksum, known only once another piece has been read,
- `Verify`: no bytes, but a request to compare a recorded checksum with that of the bytes that were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol, TypeGuard, TypeVar

from ..records import record
from .files import CHUNK, Buffer, Computed, File, FileRange, Source


@record(frozen=True, slots=True)
class Cut:
    """A part of a source whose values are computed when they are read."""

    source: Computed
    offset: int
    length: int

    @property
    def step(self) -> int:
        """As the source."""
        return self.source.step

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes from OFFSET of this part."""
        return self.source.read(self.offset + offset, length)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


def part_of(source: Source, offset: int, length: int) -> Source:
    """The LENGTH bytes from OFFSET of a source."""
    if not offset and length == source.length:
        return source
    if isinstance(source, FileRange | Buffer | Joined):
        return source.part(offset, length)
    return Zeros(length) if isinstance(source, Zeros) else Cut(source, offset, length)  # type: ignore[arg-type]


@record(frozen=True, slots=True)
class Zeros:
    """LENGTH bytes of zero: a hole."""

    length: int

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes."""
        return bytes(length)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most CHUNK."""
        for at in range(0, self.length, CHUNK):
            yield bytes(min(CHUNK, self.length - at))


@record(frozen=True, slots=True)
class Gap:
    """LENGTH bytes that are left as they are: somebody else writes them."""

    length: int

    def read(self, offset: int, length: int) -> bytes:
        """Zeros."""
        return bytes(length)

    def chunks(self) -> Iterator[bytes]:
        """Zeros."""
        yield bytes(self.length)


@record(frozen=True, slots=True)
class Joined:
    """Several sources, one after the other.

    Attributes:
        parts: the sources.
        crcs: the CRC-32 of each as it was recorded, or None. Empty if none was.
    """

    parts: tuple[Source, ...]
    crcs: tuple[int | None, ...] = ()

    def stored(self) -> Iterator[tuple[Source, int | None]]:
        """The parts with their checksums."""
        yield from zip(self.parts, self.crcs or (None,) * len(self.parts), strict=True)

    @property
    def length(self) -> int:
        """Bytes of all parts."""
        return sum(part.length for part in self.parts)

    def part(self, offset: int, length: int) -> Joined:
        """The LENGTH bytes from OFFSET, as what they are parts of."""
        found: list[Source] = []
        for one in self.parts:
            first, last = max(offset, 0), min(offset + length, one.length)
            if first < last:
                found.append(part_of(one, first, last - first))
            offset -= one.length
        return Joined(tuple(found))

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return LENGTH bytes from OFFSET."""
        found: list[bytes | memoryview] = []
        for part in self.parts:
            if 0 <= offset < part.length and length > 0:
                found.append(part.read(offset, min(length, part.length - offset)))
                length -= len(found[-1])
                offset += len(found[-1])
            offset -= part.length
        return found[0] if len(found) == 1 else b"".join(found)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes of all parts, in pieces."""
        for part in self.parts:
            yield from part.chunks()


@record(frozen=True, slots=True)
class Crc32Of:
    """The CRC-32 of another source as four little-endian bytes (as zip stores it), computed while others are copied."""

    source: Source
    length: int = 4


class Recorded(Source, Protocol):
    """A source whose checksum was recorded where it comes from."""

    @property
    def crc(self) -> int | None:
        """CRC-32 as it was recorded, or None."""

    @property
    def seen(self) -> int | None:
        """CRC-32 of all bytes, if they were taken as they were read; else None."""


@record(frozen=True, slots=True)
class Verify:
    """No bytes, but a request to compare the checksum of SOURCE. All pieces that need SOURCE are written before it.

    Attributes:
        source: the source.
        noted: the dict that takes the checksum that was found, right or wrong; None makes a wrong one an error.
        length: 0.
    """

    source: Recorded
    noted: dict[Recorded, int] | None
    length: int = 0


Piece = Source | Crc32Of | Verify

#: Kinds of pieces that ask for the checksum of another one. (Naming them as a union takes three times as long.)
OF_OTHERS = (Crc32Of, Verify)
#: Kinds of pieces that are copied or made while writing: most of a file with many tensors.
_COPIED = frozenset({FileRange, Buffer, *OF_OTHERS})
#: Bytes of a part of an input, at least, that make an output a patched copy of it.
_LEAST = 4096


def is_computed(piece: object) -> TypeGuard[Computed]:
    """Whether a piece is one whose values are computed. (Asking a protocol takes long where there are many pieces.)"""
    return type(piece) not in _COPIED and hasattr(piece, "step")


def uncopied(pieces: Iterable[Piece]) -> list[Piece]:
    """Those of PIECES that may be computed, or made of such: mostly none of very many."""
    return [piece for piece in pieces if type(piece) not in _COPIED]


def nested(source: object) -> Iterator[object]:
    """SOURCE, and all sources and files that it is computed from, once each."""
    pending, seen = [source], set()
    while pending:
        one = pending.pop()
        kind: Any = type(one)
        if isinstance(one, tuple | list):
            pending.extend(reversed(one))
        elif isinstance(one, dict):
            pending.extend(one.values())
        elif (names := _fields(kind)) is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            pending.extend([value for name in names if type(value := getattr(one, name)) not in _PLAIN])


#: Types of fields in which there is no source.
_PLAIN = frozenset({int, str, bool, type(None)})


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of what a source of a class is made of, the last first; None of what is neither a source nor a file."""
    named = getattr(kind, "__match_args__", () if hasattr(kind, "seen") else None)
    return None if named is None else tuple(reversed(named))


def files_in(pieces: Iterable[Piece]) -> list[File]:
    """The files that PIECES are copied or computed from, once each."""
    files: dict[int, File] = {}
    for piece in pieces:
        source = piece.source if isinstance(piece, OF_OTHERS) else piece
        if isinstance(source, FileRange):
            files[id(source.file)] = source.file
        elif not isinstance(source, Buffer):
            files.update((id(file), file) for file in nested(source) if isinstance(file, File))
    return list(files.values())


class Tally(Protocol):
    """What happened to values while they were computed."""

    def counts(self) -> Sequence[Any]:
        """What was counted, for `add` of another process."""

    def add(self, *counts: Any) -> None:
        """Count what happened elsewhere."""

    def clear(self) -> None:
        """Begin anew."""

    def lines(self) -> list[str]:
        """What a person should know."""


def tallies_in(pieces: Iterable[Piece]) -> list[Tally]:
    """The tallies of what PIECES are computed from, once each."""
    computed = (piece for piece in uncopied(pieces) if type(piece) is Joined or is_computed(piece))
    found = (getattr(inner, "tally", None) for piece in computed for inner in nested(piece))
    return list({id(tally): tally for tally in found if tally is not None}.values())


_One = TypeVar("_One", Source, Piece)


def flat(pieces: Sequence[_One]) -> Sequence[_One]:
    """PIECES with joined ones taken apart, so that the kernel can copy their parts."""
    if Joined not in set(map(type, pieces)):
        return pieces
    return [one for piece in pieces for one in (flat(piece.parts) if isinstance(piece, Joined) else (piece,))]


def patched_input(pieces: Sequence[Piece]) -> File | None:
    """The input of which PIECES are a patched copy: as long as it, with bytes of it in their places; or None."""
    position = 0
    base: File | None = None
    for piece in flat(pieces):
        if isinstance(piece, FileRange) and piece.offset == position and base is None and piece.length >= _LEAST:
            base = piece.file
        position += piece.length
    return base if base is not None and base.fd >= 0 and base.size == position else None


def room_for(pieces: Sequence[Piece]) -> int:
    """Bytes that PIECES take on a disk, where the holes of inputs stay holes."""
    total = 0
    sparse: dict[int, tuple[int, int]] = {}  # file -> its holes, and the bytes that are taken from it
    for piece in flat(pieces):
        total += piece.length
        if isinstance(piece, FileRange) and piece.file.is_sparse:
            taken = sparse.get(id(piece.file), (0, 0))[1] + piece.length
            sparse[id(piece.file)] = piece.file.holes, taken
    return total - sum(min(holes, taken) for holes, taken in sparse.values())
