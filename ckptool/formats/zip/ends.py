"""The end of a zip archive: which of the records that could be its end is, and where it says that the directory is."""

from __future__ import annotations

from typing import NamedTuple

from ...disk.files import File, Window, shell_path
from ...errors import Malformed
from .structure import CAP16, CAP32, CUT_SHORT, END, END64, ENTRY, LOCATOR, PARTS, bad, looks_like_zip

_TAIL = END.size + CAP16  # the end record with the longest comment that it may have: 65,557 bytes


class _End(NamedTuple):
    """What an end record says; the order is that of both kinds."""

    disk: int
    directory_disk: int
    entries_here: int
    entries: int
    size: int
    offset: int


def find_end(file: File | Window, *, headless: bool = False) -> tuple[int, int, int]:
    """Number of entries, offset and size of the central directory, all of which fit together and into the file.

    With HEADLESS the file need not start like an archive.
    """
    head = file.read(0, min(4, file.size))
    if len(head) == 4 and not looks_like_zip(head) and not headless:
        raise bad(file, "does not start like a zip archive", f"the first bytes are {head.hex(' ')}")
    at, end = _end_record(file)
    start = at - LOCATOR.size
    if start >= 0 and (locator := file.read(start, LOCATOR.size)).startswith(b"PK\6\7"):
        _, disk, at, disks = LOCATOR.unpack(locator)
        end = _end_record64(file, at, start, end)
        end = end._replace(disk=end.disk | disk | (disks > 1))
    if end.disk or end.directory_disk or end.entries_here != end.entries:
        raise bad(file, PARTS, hint=f"zip -s 0 {shell_path(file.path)} --out joined.pt")
    if end.offset + end.size != at:
        raise _shifted(file, "the end of the central directory", end.offset + end.size, at)
    if not end.entries:
        raise bad(file, "is an archive without records", hint="what wrote it has failed; write it again")
    if end.size < end.entries * ENTRY.size:
        raise bad(file, "the central directory is too small", f"{end.size:,} bytes for {end.entries:,} entries")
    return end.entries, end.offset, end.size


def _shifted(file: File | Window, what: str, stated: int, found: int) -> Malformed:
    """Offsets that do not fit are how joined archives, prefixes and holes show themselves."""
    differs = f"{abs(found - stated):,} bytes {'longer' if found > stated else 'shorter'}"
    return bad(
        file,
        f"the archive is {differs} than its end records say",
        f"{what} is announced at byte {stated:,} and must be at {found:,}",
        hint="two archives were joined, or something was put in front" if found > stated else CUT_SHORT,
    )


def _end_record(file: File | Window) -> tuple[int, _End]:
    """The classic end record: the last one, whose comment must end with the file.

    torch and Python take the last signature that has room for a record behind it, without a look at the comment; other
    readers look for one whose comment fits. Where these are not the same record, each reads a directory of its own.
    """
    base = max(0, file.size - END.size)
    tail = file.read(base, file.size - base)
    if not (tail.startswith(b"PK\5\6") and tail.endswith(b"\0\0")):  # else it is the record, without a comment
        base = max(0, file.size - _TAIL)
        tail = file.read(base, file.size - base)
    at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - END.size + 4))
    if at >= 0:
        _, *numbers, comment = END.unpack_from(tail, at)
        end = _End(*numbers)
        left = len(tail) - at - END.size - comment
        if not left:
            return base + at, end
        # Payloads may hold the signature by chance or as a nested archive. One that fits its place is an end.
        zip64 = tail[max(0, at - LOCATOR.size) : at].startswith(b"PK\6\7")
        if left > 0 and (zip64 or end.offset + end.size == base + at):
            raise bad(file, "something was appended to the archive", f"{left:,} bytes stand behind its end")
    present = f"{file.size:,} bytes are present, and no end record is among the last {len(tail):,}"
    raise bad(file, "the end of the archive is missing", present, hint=CUT_SHORT)


def _end_record64(file: File | Window, at: int, locator: int, classic: _End) -> _End:
    """The zip64 end record at AT, which must reach to its locator and agree with the classic one."""
    if at + END64.size != locator:
        raise _shifted(file, "the zip64 end record", at, locator - END64.size)
    signature, length, _, _, *numbers = END64.unpack(file.read(at, END64.size))
    if signature != b"PK\6\6" or length != END64.size - 12:
        raise bad(file, "the zip64 end record is damaged", f"at byte {at:,}")
    end = _End(*numbers)
    caps = (CAP16,) * 4 + (CAP32,) * 2
    if any(short not in (long, cap) for short, long, cap in zip(classic, end, caps, strict=True)):
        said = "{}: {:,} entries, {:,} bytes at {:,}"
        raise bad(
            file,
            "the two end records contradict each other",
            said.format("zip64", *end[3:]),
            said.format("classic", *classic[3:]),
        )
    return end
