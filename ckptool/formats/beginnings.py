"""How files of torch, safetensors and Keras begin: for a look at one without opening it, and for writing one."""

from __future__ import annotations

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
    if len(head) < 512:
        return False
    checksum = head[148:156].split(b"\0")[0]
    if checksum[:1] not in (b"\x80", b"\xff"):  # in octal digits; this spares most files the import
        rest = memoryview(head[:148] + head[156:512])
        try:  # some programs add the bytes as signed numbers
            if int(checksum.decode("ascii").strip() or "0", 8) - 256 not in (sum(rest), sum(rest.cast("b"))):
                return False
        except ValueError:
            return False
    import tarfile

    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


#: Records that a `.keras` archive begins with.
_OF_KERAS = (b"config.json", b"metadata.json", b"model.weights.h5")


def is_keras(head: bytes) -> bool:
    """Whether HEAD is that of a zip archive whose first record is one of a model of Keras 3."""
    return head.startswith(b"PK\3\4") and head[30 : 30 + int.from_bytes(head[26:28], "little")] in _OF_KERAS


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
