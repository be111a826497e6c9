"""Tables of LevelDB, sorted entries of keys and values: the index of a TensorFlow checkpoint. Read only.

    blocks      entries: varints shared, own, length; the rest of the key; the value. Then restarts (u32), their number
    behind each block: one byte, 0 for no compression, and the masked CRC-32C of the block and that byte
    the index   a block: last key of a block -> place of the block (varints offset, size)
    footer      48 bytes: places of the meta index and the index, padding, 57 fb 80 8b 24 75 47 db

See `doc/table_format.md` of LevelDB.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...disk.files import File
from ...errors import CannotCarry, Malformed
from .cursor import Cursor
from .filtered_chunks import crc32c

MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48
_LONGEST_KEY = 1 << 16
#: Bytes of a block whose checksum is compared. Tables of TensorFlow have blocks of 256 kB.
_CHECKED = 1 << 20
#: Entries of a table.
_MOST = 10_000_000


def is_table(file: File) -> bool:
    """Whether FILE ends as a table does."""
    return file.size >= _FOOTER and file.read(file.size - 8, 8) == MAGIC


def entries(file: File) -> Iterator[tuple[bytes, int, int]]:
    """The entries of a table: key, where the value begins in the file, and how long it is.

    Raises:
        Malformed: it contradicts itself, or a checksum does not match.
    """
    footer = Cursor(file, file.size - _FOOTER, file.size - 8, what="the footer of its table")
    footer.varint(), footer.varint()
    index = _place(file, footer)
    count = 0
    blocks: set[int] = set()
    for _, start, length in _block(file, *index):
        at, size = _place(file, Cursor(file, start, start + length, what="the index of its table"))
        if at in blocks:
            raise Malformed("has a table that names a block twice", where=file.path, evidence=[f"at byte {at:,}"])
        blocks.add(at)
        for entry in _block(file, at, size):
            count += 1
            if count > _MOST:
                raise CannotCarry(f"has a table of more than {_MOST:,} entries", where=file.path)
            yield entry


def _place(file: File, cursor: Cursor) -> tuple[int, int]:
    offset, size = cursor.varint(), cursor.varint()
    if offset + size + 5 > file.size:
        raise cursor.bad("names a block beyond the end of the file")
    return offset, size


def _block(file: File, offset: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """The entries of a block."""
    kind, masked = file.read(offset + size, 1)[0], int.from_bytes(file.read(offset + size + 1, 4), "little")
    if size <= _CHECKED:
        found = crc32c(file.read(offset, size + 1))
        rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
        if found != ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF:
            raise Malformed(
                "has a table with a damaged block: its checksum (CRC-32C) does not match",
                where=file.path,
                evidence=[f"{size:,} bytes from byte {offset:,} on"],
                hint="copy or download it again",
            )
    if kind:
        raise CannotCarry("has a table with compressed blocks, which are not read", where=file.path)
    restarts = int.from_bytes(file.read(offset + size - 4, 4), "little") if size >= 4 else 0
    if size < 4 or 4 * restarts + 4 > size:
        raise Malformed("has a table with a damaged block", where=file.path, evidence=[f"at byte {offset:,}"])
    cursor = Cursor(file, offset, offset + size - 4 - 4 * restarts, what="a block of its table")
    key = b""
    while cursor.left:
        shared, own, length = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or own > _LONGEST_KEY:
            raise cursor.bad("has a key that is none")
        key = key[:shared] + cursor.take(own)
        yield key, cursor.skip(length), length
