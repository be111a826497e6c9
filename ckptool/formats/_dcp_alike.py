"""Slices that are like one that was read before, so that a comparison of bytes says all that reading them would.

Each slice is an archive with a pickle in it, and a run leaves thousands of them. Tensors of one size differ in their
values, the checksum of these, and the number that torch gives each archive. Where all other bytes are those of a slice
whose structure was checked and whose pickle was read, both would end in the same way. What differs in any other byte
is left to the readers of archives and pickles.
"""

from __future__ import annotations

from typing import Any

from ..disk.files import File, FileRange
from ..records import record
from ..tensor import LazyTensor, Storage
from .zip.archive import Archive
from .zip.headers import as_written
from .zip.structure import STORED, Member

#: Most bytes around the values that are kept and compared.
_MOST = 16 << 10
_SERIALIZATION_ID = ".data/serialization_id"
#: Where a checksum stands in an entry of the directory, and in a descriptor.
_IN_ENTRY, _IN_DESCRIPTOR = 16, 4


@record(frozen=True, eq=False, slots=True)
class Like:
    """A slice that was read, and that others are compared with.

    Attributes:
        tensor: what it holds.
        head, tail: its bytes before and behind the values; in the tail, what may differ is 0.
        free: what may differ in the tail.
        twice: pairs of these that must be the same.
        crc: the one with the checksum of the values.
    """

    tensor: LazyTensor
    head: bytes
    tail: bytes
    free: tuple[slice, ...]
    twice: tuple[tuple[slice, slice], ...]
    crc: slice

    def read(self, file: File, offset: int) -> LazyTensor | None:
        """The tensor of a slice as long as this one at OFFSET of FILE, or None if the two are not alike."""
        like = self.tensor
        storage = like.storage
        start, length = offset + len(self.head), storage.nbytes
        if file.read(offset, len(self.head)) != self.head:
            return None
        tail = bytearray(file.read(start + length, len(self.tail)))
        for one, other in self.twice:
            if tail[one] != tail[other]:
                return None
        crc = int.from_bytes(tail[self.crc], "little")
        for part in self.free:
            tail[part] = bytes(part.stop - part.start)
        if tail != self.tail:
            return None
        source = file.range(start, length, crc or None)
        made = Storage(source, storage.location, storage.dtype, storage.key, crc or None, storage.big_endian)
        return like.over(made)


def like_of(archive: Archive, made: Any) -> Like | None:
    """What others are compared with, once an archive was read and held the tensor MADE and nothing else."""
    if type(made) is not LazyTensor or not made.storage.nbytes or not isinstance(made.storage.source, FileRange):
        return None
    whole, values = archive.file.range(0, archive.file.size), made.storage.source
    begin = values.offset - whole.offset
    end = begin + values.length
    if values.file is not whole.file or begin < 0 or whole.length - values.length > _MOST:
        return None
    head = whole.read(0, begin)
    tail = bytearray(whole.read(end, whole.length - end))
    holding = [
        m for m in archive.members.values() if m.method == STORED and (m.start, m.size) == (begin, values.length)
    ]
    if len(holding) != 1 or not _is_usual(holding[0], head, 0):
        return None
    free = list(_checksums(holding[0], end))
    twice = [(free[0], free[1])]
    number = archive.members.get(_SERIALIZATION_ID)
    if number is not None and number.start > end and _is_usual(number, tail, end):
        one, other = _checksums(number, end)
        twice.append((one, other))
        free += [one, other, slice(number.start - end, number.start - end + number.size)]
    for part in free:
        tail[part] = bytes(part.stop - part.start)
    return Like(made, head, bytes(tail), tuple(free), tuple(twice), free[0])


def _is_usual(member: Member, data: bytes | bytearray, at: int) -> bool:
    """Whether the checksum of a record stands in the directory and in a descriptor, and nowhere else. DATA, which hold
    its header, are at AT.
    """
    header = as_written(member.flags, STORED, len(member.raw))
    begin = member.header - at
    return member.method == STORED and member.descriptor is not None and begin >= 0 and data.startswith(header, begin)


def _checksums(member: Member, at: int) -> tuple[slice, slice]:
    """Where the checksum of a record stands, counted from AT."""
    assert member.descriptor is not None
    places = member.directory + _IN_ENTRY - at, member.descriptor + _IN_DESCRIPTOR - at
    return slice(places[0], places[0] + 4), slice(places[1], places[1] + 4)
