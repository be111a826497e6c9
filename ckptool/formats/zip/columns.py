"""The records of an archive with as many tensors as it likes, in columns.

torch names storages `data/0`, `data/1`, `data/2` … and puts them into the directory in that order. Of records that
follow this in every respect a number a column is kept, and no object, name or place in a dict: 36 bytes, where those
take 600. Any other record is a `Member` like those of other archives, and so is everything in an archive with a record
that is odd in a way that matters here: `read_columns` then leaves it to the slower reader, which says what is wrong.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct

from ...disk.files import File, Window
from ...errors import Malformed
from .directory import read_entry
from .headers import Ahead, as_written, locate
from .structure import CAP32, DESCRIPTOR, DESCRIPTOR64, ENTRY, FOLLOWS, LOCAL, STORED, UTF8, Member

_FLAGS = UTF8 | FOLLOWS
_SIZES, _SIZES64 = DESCRIPTOR, DESCRIPTOR64
_FAR = Struct("<4sQ")  # the offset of a header behind four gigabytes
_FAR_FIELD = b"\1\0\10\0"
#: What folders at the top are mostly called.
_TOP = re.compile(rb"[\w-][\w.-]*", re.ASCII)
#: Digits of the number in the name of a record.
_LONGEST = 12
#: Archives with fewer entries are no larger as objects.
FEWEST = 64


class Members(Mapping[str, Member]):
    """The records of an archive by name, in the order of its directory.

    Args:
        top: the whole beginning of the names of numbered records, `TOP/data/`, as bytes.
        skipped: how many characters of it are left out of their names.

    Attributes:
        head: what the names of numbered records begin with.
    """

    def __init__(self, top: bytes, skipped: int) -> None:
        self._top = top
        self.head = top.decode()[skipped:]
        self.skipped = skipped
        self._odd: dict[str, Member] = {}
        self._before: list[int] = []  # for each odd one, how many numbered ones stand before it
        self.crcs, self.sizes = array("I"), array("Q")
        self.headers, self.starts, self.entries = array("Q"), array("Q"), array("Q")

    def number(self, name: str) -> int:
        """The number in the name of a numbered record, or -1."""
        return self.number_behind(name.removeprefix(self.head)) if name.startswith(self.head) else -1

    def number_behind(self, digits: str) -> int:
        """The number of the record whose name has DIGITS behind `head`, or -1 if it is no numbered one."""
        if not (digits.isdigit() and digits.isascii()) or len(digits) > _LONGEST:
            return -1
        number = int(digits)
        return number if number < len(self.sizes) and (digits[0] != "0" or digits == "0") else -1

    def add(self, member: Member) -> None:
        """Add a record that is not numbered, behind all that there are."""
        self._odd[member.name] = member
        self._before.append(len(self.sizes))

    def odd(self) -> Iterable[Member]:
        """The records that are not numbered."""
        return self._odd.values()

    def __getitem__(self, name: str) -> Member:
        found = self._odd.get(name)
        if found is not None:
            return found
        number = self.number(name)
        if number < 0:
            raise KeyError(name)
        return self.numbered(number)

    def numbered(self, number: int) -> Member:
        """The record `data/NUMBER`."""
        size, start = self.sizes[number], self.starts[number]
        return Member(
            f"{self.head}{number}",
            b"%b%d" % (self._top, number),
            STORED,
            _FLAGS if size else UTF8,
            self.crcs[number],
            size,
            size,
            self.headers[number],
            self.entries[number],
            start,
            start + size if size else None,
        )

    def __contains__(self, name: object) -> bool:
        return name in self._odd or (isinstance(name, str) and self.number(name) >= 0)

    def __len__(self) -> int:
        return len(self.sizes) + len(self._odd)

    def __iter__(self) -> Iterator[str]:
        done = 0
        for name, before in zip(self._odd, self._before, strict=True):
            yield from (f"{self.head}{number}" for number in range(done, before))
            done = before
            yield name
        yield from (f"{self.head}{number}" for number in range(done, len(self.sizes)))


def odd_members(members: Mapping[str, Member]) -> Iterable[Member]:
    """Those of the records of an archive that may be other than stored under a number."""
    return members.odd() if isinstance(members, Members) else members.values()


def read_columns(
    file: File | Window, count: int, offset: int, size: int, *, whole_names: bool
) -> tuple[str, Members] | None:
    """The top folder and the records of an archive that holds nothing odd, all of it checked as `read_directory`,
    `locate` and `check_extents` check it. None where there is anything for these to say, or to look at more closely.

    With WHOLE_NAMES, no top folder is told ("") and names keep theirs.
    """
    if count < FEWEST:
        return None
    data = file.read(offset, size)
    named = ENTRY.unpack_from(data)[6]
    top = data[ENTRY.size : ENTRY.size + named].partition(b"/")[0]
    if not _TOP.fullmatch(top) or top == b"__MACOSX":  # others want a closer look
        return None
    head = top + b"/data/"
    members = Members(head, 0 if whole_names else len(top) + 1)
    try:
        whole = _read(file, data, members, head, count, offset)
    except Malformed:
        return None
    return ("" if whole_names else top.decode(), members) if whole else None


def _read(file: File | Window, data: bytes, members: Members, head: bytes, count: int, offset: int) -> bool:
    """Fill MEMBERS from the directory in DATA, which is at OFFSET, and from the local headers. False for odd ones."""
    unpack, longest, whole, fixed = ENTRY.unpack_from, len(data) - ENTRY.size, len(data), LOCAL.size
    headers = Ahead(file)
    at = end = number = 0
    usual: set[object] = set()
    folded: set[str] = set()
    top = head[: -len(b"data/")]
    add_crc, add_size, add_header = members.crcs.append, members.sizes.append, members.headers.append
    add_start, add_entry = members.starts.append, members.entries.append
    for _ in range(count):
        if at > longest:
            return False
        sign, flags, method, crc, compressed, length, named, extra, comment, disk, header = unpack(data, at)
        begin = at + ENTRY.size
        behind = begin + named + extra + comment
        raw = b"%b%d" % (head, number)
        if sign != b"PK\1\2" or behind > whole:
            return False
        if named == len(raw) and data.startswith(raw, begin):
            sizes = _SIZES
            if extra:  # behind four gigabytes, the offset has a field of its own
                if extra != _FAR.size or header != CAP32 or not data.startswith(_FAR_FIELD, begin + named):
                    return False
                header, sizes = _FAR.unpack_from(data, begin + named)[1], _SIZES64
            elif header == CAP32:
                return False
            odd = method or comment or disk or data[begin - 8] or compressed != length or length == CAP32
            if odd or flags != (_FLAGS if length else UTF8) or header < end or (not end and header):
                return False
            first = header + fixed + named
            if first > offset:
                return False
            read, where = headers.at(header, fixed + named)
            if not (read.startswith(as_written(flags, STORED, named), where) and read.startswith(raw, where + fixed)):
                return False
            start = first + read[where + fixed - 2] + (read[where + fixed - 1] << 8)
            end = start + length
            if length:
                stated = sizes.pack(b"PK\7\10", crc, length, length)
                end += len(stated)
                if end > offset:
                    return False
                read, where = headers.at(end - len(stated), len(stated))
                if not read.startswith(stated, where):
                    return False
            elif crc or end > offset:
                return False
            add_crc(crc)
            add_size(length)
            add_header(header)
            add_start(start)
            add_entry(offset + at)
            number += 1
        else:
            member, fault, _ = read_entry(data, at, offset, usual)
            if member is None or fault or not member.raw.startswith(top) or member.name.endswith("/"):
                return False
            if member.header < end or (not end and member.header):
                return False
            locate(headers, member, offset)
            end = member.start + member.compressed + (0 if member.descriptor is None else DESCRIPTOR.size)
            folded.add(member.name[len(top) :].casefold())
            member.name = member.name[members.skipped :]
            members.add(member)
        at = behind
    # torch ignores case; which of several records with one name are meant is for the slower reader to say
    doubled = len(folded) < len(members) - number or any(name.startswith("data/") for name in folded)
    return at == whole and not doubled and number > 0
