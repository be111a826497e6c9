"""The parts of a zip archive: their layout, and what is known of a record. `archive` says what torch does with them."""

from __future__ import annotations

import struct

from ...disk.files import File, Window
from ...errors import Malformed
from ...records import record

STORED = 0
DEFLATED = 8

# Pad bytes (x) are fields that nobody needs: versions, times, attributes. torch writes zeros, and so do we.
LOCAL = struct.Struct("<4s2x2H4x3I2H")  # PK34, flags method, crc compressed size, lengths of name and extra
ENTRY = struct.Struct("<4s4x2H4x3I4H6xI")  # PK12, the same, lengths of name extra comment, disk, header
END = struct.Struct("<4s4H2IH")  # PK56, disk disk entries entries, size and offset of the directory, comment
LOCATOR = struct.Struct("<4sIQI")  # PK67, disk, offset of the zip64 end record, disks
END64 = struct.Struct("<4sQ2H2I4Q")  # PK66, its length, made-by needed, then as in END
DESCRIPTOR = struct.Struct("<4s3I")  # PK78, crc compressed size
DESCRIPTOR64 = struct.Struct("<4sI2Q")

FOLLOWS = 0x0008  # CRC and sizes follow the payload, in a descriptor
UTF8 = 0x0800
CAP16 = 0xFFFF
CAP32 = 0xFFFFFFFF
PARTS = "is one part of an archive on several disks"
CUT_SHORT = "the download or copy did not finish; compare the size with the source, and fetch it again"


@record(frozen=False, slots=True)
class Member:
    """One record of an archive. Offsets count from the start of the file.

    Attributes:
        name: without the top folder: `data/0`.
        raw: the whole name as it stands in the file.
        method: 0 stored, 8 deflated.
        flags: the general purpose bits.
        crc: CRC-32 of the payload as the directory states it; 0 with a size means that it was not recorded.
        size: bytes of the payload, inflated.
        compressed: bytes of the payload in the file.
        header: offset of the local header.
        start: offset of the payload, -1 until it is looked for (see `locate`).
        directory: offset of the entry in the central directory; its CRC stands at +16.
        descriptor: offset of the data descriptor, if there is one; its CRC stands at +4.
    """

    name: str
    raw: bytes
    method: int
    flags: int
    crc: int
    size: int
    compressed: int
    header: int
    directory: int = 0
    start: int = -1
    descriptor: int | None = None


def looks_like_zip(head: bytes) -> bool:
    """Whether a file that starts with HEAD (4 bytes suffice) means to be a zip archive, be it empty."""
    return head.startswith((b"PK\3\4", b"PK\5\6"))


def bad(file: File | Window, what: str, *evidence: str, hint: str | None = None) -> Malformed:
    """The error for an archive."""
    return Malformed(what, where=file.path, evidence=evidence, hint=hint)
