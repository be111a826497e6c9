"""Checksums that are needed while a file is written: to be written themselves, or compared with those on record.

Those of bytes that pass through this process are taken from them. A thread takes them instead where it has nothing else
to do: it reads the same bytes again, which are in memory by then. So an idle machine computes them beside the copying,
and a busy one, where the thread would have to be waited for, on the way.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import Malformed
from .composing import Crc32Of, Piece, Recorded, Verify, nested
from .files import CHUNK, File, FileRange, Source, crc32

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Bytes that are worth being handed to another thread; that it may have to do; after which it looks whether to stop.
_WORTH_IT = 1 << 20
_AHEAD = 16 << 20
_UNHEARD = 64 << 20


class Damaged(Malformed):
    """The checksum of what was read is not the one that was recorded.

    Attributes:
        source: what was read.
        found: its checksum.
    """

    def __init__(self, source: Recorded, found: int) -> None:
        super().__init__("is damaged: a checksum does not match")
        self.source = source
        self.found = found


class Checksums:
    """The checksums that PIECES ask for. See `checksums`."""

    def __init__(self, pieces: Sequence[Piece], pool: ThreadPoolExecutor | None) -> None:
        asked = {key_of(piece.source): piece.source for piece in pieces if isinstance(piece, Crc32Of | Verify)}
        passing = {key_of(piece): piece for piece in pieces if not isinstance(piece, Crc32Of | Verify)}
        self._asked = asked.keys()
        self._found: dict[Hashable, int] = {}
        self._later: list[Verify] = []
        self._pool = pool
        self._last: Future[None] | None = None
        self._stopped = False
        self._handed = self._done = 0  # bytes; the first is counted here, the second by the thread
        ranges = (piece for key, piece in passing.items() if key in asked and isinstance(piece, FileRange))
        self._coming = deque(piece for piece in ranges if piece.length >= _WORTH_IT and not piece.file.far)
        self._taken: set[Hashable] = set()
        self._begin([one for key, one in asked.items() if key not in passing and not is_told_by_reading(one)])

    def missing(self, piece: Source) -> bool:
        """Whether the checksum of a piece that is about to be written should be taken from its bytes.

        If the thread has little left to do, it gets the large pieces behind this one.
        """
        if self._coming and self._coming[0] == piece:
            self._coming.popleft()
        while self._coming and self._handed - self._done < _AHEAD:
            self._begin([self._coming.popleft()])
        key = key_of(piece)
        return key in self._asked and key not in self._taken and key not in self._found

    def note(self, piece: Source, crc: int) -> None:
        """The checksum of a piece, taken from its bytes."""
        self._found[key_of(piece)] = crc

    def of(self, source: Source) -> int | None:
        """The checksum of SOURCE, which was written; None if only a part of it was, and the rest takes long to read."""
        key = key_of(source)
        if key not in self._found and is_told_by_reading(source):
            return getattr(source, "seen", None)
        if key not in self._found and self._last is not None:
            self._last.result()  # the thread does one after the other
        if key not in self._found:
            self._found[key] = crc32(source)
        return self._found[key]

    def verify(self, piece: Verify) -> None:
        """Compare a checksum with the one on record; later if the thread has not come to it.

        Raises:
            Damaged: they differ, and nobody said that they may.
        """
        if key_of(piece.source) not in self._found and not is_told_by_reading(piece.source):
            self._later.append(piece)
            return
        crc = self.of(piece.source)
        if crc is not None and piece.noted is not None:
            piece.noted[piece.source] = crc
        elif crc is not None and crc != piece.source.crc:
            raise Damaged(piece.source, crc)

    def finish(self) -> None:
        """Compare what is left."""
        for piece in self._later:
            self.of(piece.source)
            self.verify(piece)

    def stop(self) -> None:
        """Let the thread end soon."""
        self._stopped = True

    def _begin(self, sources: Sequence[Source]) -> None:
        """Have the thread take the checksums of SOURCES, in order."""
        if self._pool is not None and sources:
            self._taken.update(map(key_of, sources))
            self._handed += sum(source.length for source in sources)
            self._last = self._pool.submit(self._take, sources)

    def _take(self, sources: Sequence[Source]) -> None:
        for source in sources:
            crc = 0
            for part in _parts(source):
                if self._stopped:
                    return
                crc = crc32(part, crc)
            self._found[key_of(source)] = crc
            self._done += source.length


@contextlib.contextmanager
def checksums(pieces: Sequence[Piece]) -> Iterator[Checksums]:
    """The checksums that PIECES, which are written one after the other, ask for.

    One thread helps: a second one was measured to take more from the copying than it gives.
    """
    if sum(p.source.length for p in pieces if isinstance(p, Crc32Of | Verify)) < CHUNK:
        yield Checksums(pieces, None)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "crc32") as pool:
        made = Checksums(pieces, pool)
        try:
            yield made
        finally:
            made.stop()


def recorded(source: Source) -> Iterator[Recorded]:
    """What SOURCE is made of and has a checksum on record, perhaps several times."""
    for part in (source,) if isinstance(source, FileRange) else nested(source):
        whole: Any = part
        if isinstance(part, FileRange):
            whole = part.whole if part.crc is None else part
        elif isinstance(part, File) or not hasattr(type(part), "seen"):
            continue
        if whole is not None and whole.crc is not None:
            yield whole


def joined_crc32(first: int, second: int, length: int) -> int:
    """The CRC-32 of bytes with the CRC-32 FIRST, followed by LENGTH bytes with SECOND.

    A CRC is the rest of a division of polynomials, and LENGTH bytes behind others multiply those by x to the power of
    8 * LENGTH. That power takes as many multiplications as LENGTH has bits.
    """
    return _product(_power(length), first) ^ second


@lru_cache(maxsize=1024)
def _power(length: int) -> int:
    """x to the power of 8 * LENGTH. Many runs of bytes have one length."""
    power, square = _ONE, _ONE >> 8  # x^0, x^8
    while length:
        if length & 1:
            power = _product(power, square)
        square = _product(square, square)
        length >>= 1
    return power


#: The polynomial of CRC-32 (ISO 3309, as in zlib), and the polynomial 1. The highest bit stands for x^0.
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def _product(one: int, other: int) -> int:
    """The product of two polynomials, modulo that of CRC-32."""
    made = 0
    while one:
        if one & _ONE:
            made ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return made


def key_of(source: Source) -> Hashable:
    """The same for sources that are one: a range by where it is, anything else by itself."""
    return source if isinstance(source, FileRange) else id(source)


def _parts(source: Source) -> Iterator[Source]:
    """A range piece by piece."""
    if not isinstance(source, FileRange):
        yield source
        return
    for at in range(0, source.length, _UNHEARD):
        yield source.part(at, min(_UNHEARD, source.length - at))


def is_told_by_reading(source: Any) -> bool:
    """Whether SOURCE itself takes its checksum as it is read, which takes too long to be done twice."""
    return source.file.far if isinstance(source, FileRange) else hasattr(type(source), "seen")
