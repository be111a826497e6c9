"""The central directory of a zip archive: its entries, and which names records may have."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from operator import methodcaller

from ...disk.files import File, Window, shell_path
from ...errors import UnknownFormat, counted, printable
from ..foreign import describe_zip
from .structure import CAP32, DEFLATED, ENTRY, FOLLOWS, PARTS, STORED, UTF8, Member, bad

_ENCRYPTED = 0x2041  # bits 0, 6 and 13: the payload, strongly, the directory
_MARKED_AS_FOLDER = 0x10  # in the attributes of MS-DOS
_KNOWN_FLAGS = 0x0006 | FOLLOWS | UTF8  # 1 and 2 tell how hard deflate tried
_DEFLATE_RATIO = 1032  # deflate cannot do better than 258 bytes in 2 bits


def read_directory(file: File | Window, count: int, offset: int, size: int) -> Iterator[Member]:
    """The records as the central directory tells them, by whole names, checked against what no checkpoint may have.

    Where their payloads begin is for `locate` to say.
    """
    data = file.read(offset, size)
    usual: set[object] = set()  # folders, and flags of stored records, that nothing was to be said against
    at = 0
    for number in range(count):
        where = offset + at
        entry, fault, at = read_entry(data, at, offset, usual)
        if entry is None or fault:
            evidence = [f"entry {number + 1:,} of {count:,}, at byte {where:,}"]
            if entry:
                evidence.append(f"{printable(entry.name)}: {said_of(entry)}")
            raise bad(file, fault or "", *evidence)
        yield entry
    if at != size:
        left = f"{count:,} entries are {at:,} bytes, the directory has {size:,}"
        raise bad(file, "the central directory holds more than its entries", left)


def read_entry(data: bytes, at: int, offset: int, usual: set[object]) -> tuple[Member | None, str | None, int]:
    """The record whose entry begins at the byte AT of a directory, what is wrong with it, and where the next begins.

    Args:
        data: the directory, which begins at the byte OFFSET of the file.
        at, offset: the place.
        usual: folders, and flags of stored records, that nothing was to be said against before. It grows.
    """
    fault: str | None = "the central directory is damaged"
    if len(data) - at < ENTRY.size:
        return None, fault, at
    sign, flags, method, crc, compressed, length, named, extra, comment, disk, header = ENTRY.unpack_from(data, at)
    begin = at + ENTRY.size
    end = begin + named + extra + comment
    if sign != b"PK\1\2" or end > len(data):
        return None, fault, end
    raw = data[begin : begin + named]
    name = raw.decode("utf-8", "backslashreplace")  # torch takes the bytes, bit 11 or not
    wide: tuple[int, ...] | None = (length, compressed, header)
    if extra:
        wide = widen(data[begin + named : end - comment], (length, compressed, header))
        length, compressed, header = wide or (length, compressed, header)
    entry = Member(name, raw, method, flags, crc, length, compressed, header, offset + at)
    *folder, leaf = name.rpartition("/")
    marked = data[begin - 8] & _MARKED_AS_FOLDER  # the attributes, four bytes, stand before the offset
    kind, place = (method == STORED, flags, disk, marked), tuple(folder)
    if kind in usual and place in usual and compressed == length and leaf.isalnum() and wide:
        return entry, None, end
    fault = PARTS if disk else _entry_fault(entry) if wide else "an extra field is damaged"
    if marked and length and not fault:
        fault = "a record is marked as a folder, so that torch leaves it unread"
    if method == STORED:
        usual |= {kind, place}
    return entry, fault, end


def said_of(entry: Member) -> str:
    """What an entry of the directory says, for messages."""
    return said(entry.flags, entry.method, entry.crc, entry.compressed, entry.size)


def said(flags: int, method: int, crc: int, compressed: int, size: int) -> str:
    """What an entry, or a header, says."""
    return f"flags {flags:#06x}, method {method}, CRC {crc:08x}, {compressed:,} bytes for {size:,}"


def _entry_fault(entry: Member) -> str | None:
    """What one entry of the directory has that no checkpoint may have, or None."""
    if entry.flags & _ENCRYPTED:
        return "is encrypted"
    if entry.flags & ~_KNOWN_FLAGS:
        return "uses a feature of zip that no checkpoint uses"
    if entry.method not in (STORED, DEFLATED):
        return f"is compressed with method {entry.method}, which no checkpoint uses"
    if entry.method == STORED and entry.size != entry.compressed:
        return "a record that is not compressed has two sizes"
    if entry.size > entry.compressed * _DEFLATE_RATIO + 64:
        return "a compressed record claims more than deflate can do"
    if fault := name_fault(entry.name):
        return f"the name of a record {fault}"
    if entry.name.endswith("/") and entry.size:
        return "a folder of the archive has content"
    return None


def widen(extra: bytes, values: tuple[int, ...]) -> tuple[int, ...] | None:
    """VALUES with every 0xffffffff replaced by the next zip64 number in EXTRA. None if EXTRA is damaged."""
    field = None
    at = 0
    while at < len(extra):
        if len(extra) - at < 4:
            return None
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4 + length
        if at > len(extra) or (kind == 1 and field is not None):
            return None
        if kind == 1:
            field = extra[at - length : at]
    if field is None:
        return values
    capped = values.count(CAP32)
    if len(field) < 8 * capped:
        return None
    numbers = iter(struct.unpack_from(f"<{capped}Q", field))
    return tuple(next(numbers) if value == CAP32 else value for value in values)


def name_fault(name: str) -> str | None:
    """Why no record may have this full name, or None.

    We never extract, but others do. A top folder "." leads nowhere, and torch makes one for a file `..pt`. An empty
    component in the middle leads nowhere either, and names of AlphaFold's parameters have one (`attention//query_w`).
    """
    if "\0" in name or "\\" in name:
        return "is not text, or holds a NUL or a backslash"
    parts = name.split("/")
    if not parts[-1] and len(parts) > 1:
        parts.pop()  # a folder
    if not parts[0] or not parts[-1] or ".." in parts or "." in parts[1:]:
        return "is empty, absolute, ends with '//', or has a '.' or '..' component"
    return None


def common_top(file: File | Window, names: list[str]) -> str:
    """The one folder that holds all records."""
    top = names[0].partition("/")[0]
    if top != "__MACOSX" and all(map(methodcaller("startswith", f"{top}/"), names)):
        return top
    quoted = shell_path(file.path)
    if any(name.startswith("__MACOSX/") for name in names):
        raise bad(
            file,
            "was zipped again by macOS, which added a folder __MACOSX; torch.load refuses it, too",
            hint=f"zip -d {quoted} '__MACOSX/*'",
        )
    flat = next((name for name in names if "/" not in name), None)
    if flat is not None:
        if "data.pkl" not in names:
            raise UnknownFormat(f"not a checkpoint that can be read: {describe_zip(names)}", where=file.path)
        raise bad(
            file,
            "its records are not in one folder, as torch.save puts them",
            f"{counted(len(names), 'record')}, such as {printable(flat)}",
            hint=f"unzip -d archive {quoted} && zip -0 -r repaired.pt archive",
        )
    tops = list(dict.fromkeys(name.split("/", 1)[0] for name in names))
    if len(tops) > 1:
        shown = ", ".join(printable(top, 40) for top in tops[:8])
        raise bad(file, "its records are in several top folders", f"{len(tops):,} folders: {shown}")
    return tops[0]


_SLASHES = re.compile("/+")


def refuse_doubles(file: File | Window, names: list[str]) -> None:
    """Refuse an archive with two records of one name."""
    # torch ignores case: DATA.PKL can stand in for data.pkl. Of equal names some readers take the last. A folder holds
    # a//b and a/b in one place.
    if len({_SLASHES.sub("/", name.casefold()) for name in names}) == len(names):
        return
    seen: dict[str, str] = {}
    for name in names:
        folded = _SLASHES.sub("/", name.casefold())
        if folded in seen:
            both = f"{printable(seen[folded])} and {printable(name)}"
            raise bad(file, "two records have the same name, and readers disagree on which counts", both)
        seen[folded] = name
