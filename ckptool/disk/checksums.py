"""Checksums that are needed while a file is written: to be written themselves, or compared with those on record.

Those of bytes that pass through this process are taken from them. A thread takes those of what is not written as it is:
of the records that values are computed from, say.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import Malformed
from .composing import OF_OTHERS, Joined, Piece, Recorded, Verify, flat, nested
from .files import CHUNK, File, FileRange, Source

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Bytes after which the thread looks whether to stop.
_UNHEARD = 64 << 20


#: Bytes that a checksum of a file is taken of at once.
_CHECKED = 1 << 20
#: Bytes from which on isal saves more than its import takes.
_MANY = 1 << 16


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """The CRC-32 of DATA; that of bytes with the CRC-32 VALUE and DATA.

    The zlib of Python takes some 3 GB a second, which a disk gives, too; isal, where it is installed (`pip install
    'ckptool[fast]'`), several times as many.
    """
    return (_fastest() if len(data) >= _MANY else zlib.crc32)(data, value)


@lru_cache(1)
def _fastest() -> Callable[[bytes | bytearray | memoryview, int], int]:
    try:
        from isal.isal_zlib import crc32 as of_isal
    except ImportError:
        return zlib.crc32
    fastest: Callable[[bytes | bytearray | memoryview, int], int] = of_isal
    return fastest


def crc32_of(source: Source, value: int = 0) -> int:
    """The CRC-32 of all bytes of SOURCE, read in bounded pieces; that of bytes with the CRC-32 VALUE and these."""
    if isinstance(source, FileRange):  # through one buffer, in steps that leave the copying thread in peace
        buffer = memoryview(bytearray(min(_CHECKED, source.length)))
        for at in range(0, source.length, _CHECKED):
            part = buffer[: source.length - at]
            source.file.read_into(part, source.offset + at)
            value = crc32(part, value)
        return value
    for chunk in source.chunks():
        value = crc32(chunk, value)
    return value


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
    """The checksums that PIECES ask for. See `checksums`.

    Attributes:
        apart: what is asked for and none of the pieces.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        asked = {id(piece.source): piece.source for piece in pieces if isinstance(piece, OF_OTHERS)}
        written = set(map(id, pieces)) if asked else set()
        # mostly, what is asked for is one of the pieces itself
        apart = {key_of(source): source for one, source in asked.items() if one not in written}
        for piece in pieces if apart else ():
            if isinstance(piece, Joined):
                for part in flat(piece.parts):
                    apart.pop(key_of(part), None)
            if not isinstance(piece, OF_OTHERS):
                apart.pop(key_of(piece), None)
        self._missing = set(map(key_of, asked.values()))
        self._found: dict[Hashable, int] = {}
        self._later: list[Verify] = []
        self._thread: Future[None] | None = None
        self._stopped = False
        self.apart = [source for source in apart.values() if not is_told_by_reading(source)]

    def missing(self, piece: Source) -> bool:
        """Whether the checksum of a piece that is about to be written should be taken from its bytes."""
        return bool(self._missing) and key_of(piece) in self._missing

    def note(self, piece: Source, crc: int) -> None:
        """The checksum of a piece, taken from its bytes."""
        key = key_of(piece)
        self._found[key] = crc
        self._missing.discard(key)

    def of(self, source: Source) -> int | None:
        """The checksum of SOURCE, which was written; None if only a part of it was, and the rest takes long to read."""
        key = key_of(source)
        if key not in self._found and is_told_by_reading(source):
            return getattr(source, "seen", None)
        if key not in self._found and self._thread is not None:
            self._thread.result()
        if key not in self._found:
            self.note(source, crc32_of(source))
        return self._found[key]

    def verify(self, piece: Verify) -> None:
        """Compare a checksum with the one on record; later if the thread has not come to it.

        Raises:
            Damaged: they differ, and nobody said that they may.
        """
        crc = self._found.get(key_of(piece.source))
        if crc is None:
            if not is_told_by_reading(piece.source):
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

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Have a thread take those of what is no piece."""
        self._thread = pool.submit(self._take)

    def _take(self) -> None:
        for source in self.apart:
            crc = 0
            for part in _parts(source):
                if self._stopped:
                    return
                crc = crc32_of(part, crc)
            self._found[key_of(source)] = crc


@contextlib.contextmanager
def checksums(pieces: Sequence[Piece]) -> Iterator[Checksums]:
    """The checksums that PIECES, which are written one after the other, ask for.

    One thread helps: a second one was measured to take more from the copying than it gives.
    """
    made = Checksums(pieces)
    if sum(source.length for source in made.apart) < CHUNK:
        yield made
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "crc32") as pool:
        made.begin(pool)
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
    return (id(source.file), source.offset, source.length) if type(source) is FileRange else id(source)


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
