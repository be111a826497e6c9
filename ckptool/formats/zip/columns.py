"""The records of an archive with as many tensors as it likes, in columns.

torch names storages `data/0`, `data/1`, `data/2` … and puts them into the directory in that order. Of records that
follow this in every respect a number a column is kept, and no object, name or place in a dict: 36 bytes, where those
take 600. Any other record is a `Member` like those of other archives, and so is everything in an archive with a record
that is odd in a way that matters here: `read_columns` then leaves it to the slower reader, which says what is wrong.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from ...disk.files import File, Window
from ...errors import Malformed
from ...records import record
from .directory import read_entry
from .headers import Ahead, as_written, locate
from .structure import CAP32, DESCRIPTOR, DESCRIPTOR64, ENTRY, FOLLOWS, LOCAL, STORED, UTF8, Member

_FLAGS = UTF8 | FOLLOWS
_FAR = Struct("<4sQ")  # the offset of a header behind four gigabytes
_FAR_FIELD = b"\1\0\10\0"
#: What folders at the top are mostly called.
_TOP = re.compile(rb"[\w-][\w.-]*", re.ASCII)
#: Digits of the number in the name of a record.
_LONGEST = 12
#: Entries of the directory that are taken apart at once.
_AT_ONCE = 1024
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
        if len(digits) > _LONGEST or not digits.isdecimal():
            return -1
        number = int(digits)
        return number if number < len(self.sizes) and str(number) == digits else -1

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
    headers = Ahead(file)
    at = end = 0
    usual: set[object] = set()
    folded: set[str] = set()
    top = head[: -len(b"data/")]
    while count:
        run = _run(data, at, head, len(members.sizes), min(count, _AT_ONCE))
        if run is not None:
            ended = None if run.odd else _add(members, run, headers, offset, end)
            if ended is None:
                return False
            behind = at + len(run.names) * run.size
            members.entries.extend(range(offset + at, offset + behind, run.size))
            at, end, count = behind, ended, count - len(run.names)
            continue
        member, fault, at = read_entry(data, at, offset, usual)
        if member is None or fault or not member.raw.startswith(top) or member.name.endswith("/"):
            return False
        if member.header < end or (not end and member.header):
            return False
        locate(headers, member, offset)
        end = member.start + member.compressed + (0 if member.descriptor is None else DESCRIPTOR.size)
        folded.add(member.name[len(top) :].casefold())
        member.name = member.name[members.skipped :]
        members.add(member)
        count -= 1
    # torch ignores case; which of several records with one name are meant is for the slower reader to say
    number = len(members.sizes)
    doubled = len(folded) < len(members) - number or any(name.startswith("data/") for name in folded)
    return at == len(data) and not doubled and number > 0


@record(frozen=True, eq=False, slots=True)
class _Run:
    """Entries of the directory, one behind the other, of records with consecutive numbers, in columns.

    Attributes:
        size: bytes of each entry.
        names: the whole names of the records.
        crcs, sizes, headers: as of `Member`.
        descriptor: the layout of what follows a payload.
        odd: an entry says something that torch does not write.
    """

    size: int
    names: Sequence[bytes]
    crcs: Sequence[int]
    sizes: Sequence[int]
    headers: Sequence[int]
    descriptor: Struct
    odd: bool


def _run(data: bytes, at: int, head: bytes, number: int, most: int) -> _Run | None:
    """The entries from AT on of the records HEAD + NUMBER and the next ones, up to MOST, whose entries have the same
    length. None if the first is of another record.
    """
    name = b"%b%d" % (head, number)
    begin = at + ENTRY.size
    if not data.startswith(name, begin):
        return None
    named, extra = ENTRY.unpack_from(data, at)[6:8]
    far = extra == _FAR.size  # behind four gigabytes, the offset of the header has a field of its own
    if named != len(name):
        return None
    entry = _entry(named, _FAR.size if far else 0)
    most = min(most, (len(data) - at) // entry.size)
    names: list[bytes] = []
    rows: list[tuple[Any, ...]] = []
    for row in entry.iter_unpack(memoryview(data)[at : at + most * entry.size]):
        if row[-2] != name or (row[7] == _FAR.size) != far:
            break
        names.append(name)
        rows.append(row)
        number += 1
        name = b"%b%d" % (head, number)
    if not rows:
        return None
    signs, flags, methods, crcs, stored, sizes, nameds, extras, comments, disks, headers, _, fields = zip(
        *rows, strict=True
    )
    marks = data[begin - 8 : begin + len(rows) * entry.size - 8 : entry.size]
    usual = ((signs, b"PK\1\2"), (methods, STORED), (nameds, named), (extras, entry.size - ENTRY.size - named))
    odd = any(column.count(value) != len(rows) for column, value in (*usual, (comments, 0), (disks, 0), (marks, 0)))
    odd |= stored != sizes or CAP32 in sizes or flags != tuple([_FLAGS if size else UTF8 for size in sizes])
    if far:
        odd |= headers.count(CAP32) != len(rows) or not all(field.startswith(_FAR_FIELD) for field in fields)
        headers = tuple([_FAR.unpack(field)[1] for field in fields])
    else:
        odd |= CAP32 in headers
    return _Run(entry.size, names, crcs, sizes, headers, DESCRIPTOR64 if far else DESCRIPTOR, odd)


@lru_cache(64)
def _entry(named: int, extra: int) -> Struct:
    """The layout of an entry with a name and an extra field of so many bytes."""
    return Struct(f"{ENTRY.format}{named}s{extra}s")


def _add(members: Members, run: _Run, headers: Ahead, offset: int, end: int) -> int | None:
    """Add a run of records behind the byte END to MEMBERS, if their local headers and descriptors say the same, before
    the directory at OFFSET. Returns where the last ends; None if anything is odd.
    """
    named = len(run.names[0])
    with_payload, empty = as_written(_FLAGS, STORED, named), as_written(UTF8, STORED, named)
    before, stated_as, behind = LOCAL.size + named, run.descriptor.pack, run.descriptor.size
    read_at, add_start = headers.at, members.starts.append
    for name, crc, size, header in zip(run.names, run.crcs, run.sizes, run.headers, strict=True):
        start = header + before
        if header < end or (not end and header) or start > offset:
            return None
        read, where = read_at(header, before)
        written = with_payload if size else empty
        if not (read.startswith(written, where) and read.startswith(name, where + LOCAL.size)):
            return None
        start += read[where + LOCAL.size - 2] + (read[where + LOCAL.size - 1] << 8)
        end = start + size
        if size:
            if end + behind > offset:
                return None
            read, where = read_at(end, behind)
            if not read.startswith(stated_as(b"PK\7\10", crc, size, size), where):
                return None
            end += behind
        elif crc or end > offset:
            return None
        add_start(start)
    members.crcs.extend(run.crcs)
    members.sizes.extend(run.sizes)
    members.headers.extend(run.headers)
    return end
