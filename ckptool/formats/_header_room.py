"""How long the header of a safetensors file is made, and what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence

from ..disk.composing import Piece
from ..disk.files import FileRange
from .beginnings import LARGEST_HEADER

#: Bytes that data begin at a multiple of, where the file is large: a page, and a block of most filesystems.
_PAGE = 4096
#: Bytes of a longer name that a header has room for, for each tensor: `module.` and its relatives.
_ROOM = 16
#: A header has room for more where that is no more than this part of the data.
_LEAST_PART = 256


def length_of_header(needed: int, tensors: int, nbytes: int, data: Sequence[Piece]) -> int:
    """Bytes of a header with the spaces behind it, which every reader takes.

    Where the DATA stand in a safetensors file as they will stand in this one, the length is the one there, if it
    suffices: so the data keep their places, and the file can share their blocks with the other, or be patched. Else a
    large file gets room for longer names, so that it can be patched later.
    """
    only = data[0] if len(data) == 1 else None
    if isinstance(only, FileRange) and only.offset > 8 and only.offset + only.length == only.file.size:
        there = only.offset - 8
        if needed <= there <= LARGEST_HEADER and only.file.read(0, 8) == there.to_bytes(8, "little"):
            return there
    roomy = -(-(8 + needed + _ROOM * tensors) // _PAGE) * _PAGE - 8
    if roomy <= LARGEST_HEADER and (roomy - needed) * _LEAST_PART <= nbytes:
        return roomy
    return -(-needed // 8) * 8


def joined_ranges(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring ranges of one file as one, so that the kernel copies long runs."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            isinstance(piece, FileRange)
            and isinstance(last, FileRange)
            and last.file is piece.file
            and last.offset + last.length == piece.offset
        ):
            joined[-1] = FileRange(last.file, last.offset, last.length + piece.length)
        else:
            joined.append(piece)
    return joined
