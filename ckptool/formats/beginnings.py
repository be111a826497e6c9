"""How files of torch and safetensors begin: for a look at one without opening it, and for writing one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..disk.composing import Piece
from ..disk.files import FileRange

#: The number that a file of torch before 1.6 begins with, pickled.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
#: Bytes of the header of a safetensors file, as the reference limits them.
LARGEST_HEADER = 100_000_000
_LEGACY_BYTES = LEGACY_MAGIC.to_bytes(10, "little")


def is_legacy(head: bytes) -> bool:
    """Whether HEAD begins with the pickled magic number of torch-legacy, in any pickle protocol that can hold it."""
    return _LEGACY_BYTES in head[:24] or head.startswith(b"L%dL\n" % LEGACY_MAGIC)


def is_safetensors(head: bytes) -> bool:
    """Whether HEAD may be the beginning of a safetensors file: a header length that makes sense, then `{`."""
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LARGEST_HEADER


def is_tar(head: bytes) -> bool:
    """Whether HEAD begins with a tar header whose checksum holds; torch.load believes it before anything else."""
    checksum = head[148:156].split(b"\0")[0]
    if len(head) < 512 or not (
        checksum[:1] in (b"\x80", b"\xff") or re.search(rb"[0-7]", checksum) or _sums_to_zero(head)
    ):
        return False  # which spares most files the import
    import tarfile

    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _sums_to_zero(head: bytes) -> bool:
    """Whether a header without a checksum fits it: some readers add the bytes as signed numbers."""
    rest = head[:148] + head[156:512]
    return 256 + sum(rest) - 256 * sum(byte > 127 for byte in rest) == 0


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
