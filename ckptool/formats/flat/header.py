"""The header of a safetensors file: JSON that says of each tensor its type, its shape and where its bytes are.

`safetensors` says what is in it. A header as the reference writes it is read by one pattern, entry after entry; in
whatever differs from that by a character, by a parser of JSON, which says what is wrong.
"""

from __future__ import annotations

import json
import re
from array import array
from math import prod
from operator import attrgetter, sub
from typing import Any

from ...disk.documents import read_json
from ...disk.files import File, FileRange
from ...dtypes import BY_SAFETENSORS, DType
from ...errors import Malformed, counted, in_words, printable
from ...records import record
from ...tensor import MOST_DIMENSIONS, contiguous_stride
from ..beginnings import LARGEST_HEADER


@record(frozen=True, eq=False, slots=True)
class Header:
    """What a header says, in columns: the Nth of each is of the Nth tensor.

    Attributes:
        names: of the tensors, each once.
        kinds: what each has in common with others.
        begins, ends: where its bytes are, from the beginning of the data.
        metadata: the `__metadata__`.
        start: offset of the data in the file.
    """

    names: dict[str, None]
    kinds: list[_Kind]
    begins: list[int]
    ends: list[int]
    metadata: dict[str, str]
    start: int


class HeaderTable:
    """The storages of a safetensors file, by the numbers of their tensors in its header."""

    def __init__(self, file: File, header: Header) -> None:
        self._file, self._start, self._names = file, header.start, list(header.names)
        self._begins = array("Q", header.begins)
        self.sizes = array("Q", map(attrgetter("nbytes"), header.kinds))

    def key(self, number: int) -> str:
        """The name of the tensor."""
        return self._names[number]

    def source(self, number: int) -> FileRange:
        """Where its bytes are."""
        return FileRange(self._file, self._start + self._begins[number], self.sizes[number])

    def crc(self, number: int) -> None:
        """None: the format has no checksums."""


def read_header(file: File) -> Header:
    """The header of a safetensors file, each tensor checked by itself (see `check_tiling`)."""
    where = file.path
    if file.size < 8:
        raise Malformed(f"has {file.size} bytes; a safetensors file has at least 8", where=where)
    length = int.from_bytes(file.read(0, 8), "little")
    if length > LARGEST_HEADER:
        raise Malformed(f"announces a header of {length:,} bytes; 100,000,000 is the limit", where=where)
    if 8 + length > file.size:
        raise Malformed(
            f"its header is cut short: {length:,} bytes announced, {file.size - 8:,} left in the file",
            where=where,
            hint="the download or copy did not finish; compare the size with the source",
        )
    raw = file.read(8, length)
    usual = _read_usual(raw)
    if usual is not None:
        return usual
    header, metadata = _read_slowly(file, raw)
    entries = [entry if type(entry) is tuple else _entry(file, name, entry) for name, entry in header.items()]
    kinds, begins, ends = ([entry[part] for entry in entries] for part in range(3))
    return Header(dict.fromkeys(header), kinds, begins, ends, metadata, 8 + length)


def _read_slowly(file: File, raw: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """A header of any form, without its metadata, and these; of odd tensors, the object of JSON."""
    where = file.path
    kinds: dict[tuple[Any, ...], _Kind] = {}

    def compact(pairs: list[tuple[str, Any]]) -> Any:
        """The object of a tensor, as most programs write it, as (its kind, begin, end); None for any other."""
        if len(pairs) == 3:
            (first, code), (second, shape), (third, offsets) = pairs
            if (first, second, third) == _FIELDS:
                return _usual(code, shape, offsets, kinds)
        return None

    if raw[:1] != b"{":
        raise Malformed("its header does not begin with '{'", where=where)
    header = read_json(raw, where, "its header", compact=compact)
    if not isinstance(header, dict):
        raise Malformed("its header is not an object of JSON", where=where)
    for name in header:
        if has_half_a_pair(name):
            raise Malformed(f"its header has the name {printable(repr(name), 80)}, which is not text", where=where)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Malformed("its __metadata__ is not a map of texts", where=where)
    return header, metadata


def _form(space: str) -> tuple[str, re.Pattern[str], int]:
    """Of headers with SPACE behind each comma and colon: a pattern for an entry and the comma behind it, and how many
    characters of an entry are outside its groups.

    The groups are the name, the type with the shape, and the offsets. That numbers are in order is left to JSON, which
    reads each shape once, and the offsets of many tensors at once.
    """
    entry = '"(NAME)":~{"dtype":~"(CODE",~"shape":~[SIZES)],~"data_offsets":~[(NUMBER,~NUMBER)]},~'
    entry = entry.replace("~", space)
    outside = len(re.sub(r"\(.*?\)", "", entry))
    parts = {"NAME": r'[^"\\\x00-\x1f]*', "CODE": "[A-Z0-9_]+", "SIZES": "[0-9, ]*", "NUMBER": "[0-9]+"}
    pattern = re.escape(entry).replace(r"\(", "(").replace(r"\)", ")")
    for name, part in parts.items():
        pattern = pattern.replace(name, part)
    return space, re.compile(pattern), outside


#: Headers as the reference and most others write them, and as `json.dumps` does, with one order of the fields.
_FORMS = _form(""), _form(" ")
_METADATA = re.compile(r'{"__metadata__": ?')
#: Characters of a header that are taken apart at once: so many fit the cache of a processor.
_AT_ONCE = 1 << 17


def _read_usual(raw: bytes) -> Header | None:
    """As `read_header`, of a header that is as most are from its first character to its last; None of any other.

    No entry is looked at by itself: that the pattern finds the whole of the text is seen by its length, and columns
    are compared with columns.
    """
    try:
        text = raw.decode("utf-8").rstrip(" ")
    except UnicodeDecodeError:
        return None
    metadata: dict[str, str] = {}
    at = 0
    if begun := _METADATA.match(text):
        try:
            _, at = json.JSONDecoder().raw_decode(text, begun.end())
            metadata = read_json(text[begun.end() : at])
        except (ValueError, RecursionError, Malformed):
            return None
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            return None
    if text[-3:] != "]}}" or text[at : at + 1] != ("," if at else "{"):
        return None
    space, pattern, outside = _FORMS['": {' in text[at : at + _AT_ONCE]]
    if at and not text.startswith(space, at + 1):
        return None
    at += 1 + (len(space) if at else 0)
    names: list[str] = []
    told: list[str] = []
    offsets: list[int] = []
    boundary = f']}},{space}"'
    while at < len(text):
        behind = text.find(boundary, at + _AT_ONCE) + len(boundary) - 1
        last = behind < len(boundary)
        part = f"{text[at:-1]},{space}" if last else text[at:behind]
        at = len(text) if last else behind
        found = pattern.findall(part)
        if not found:
            return None
        columns = list(zip(*found, strict=True))
        if sum(map(len, map("".join, columns))) + outside * len(found) != len(part):
            return None
        names += columns[0]
        told += columns[1]
        try:
            offsets += read_json(f"[{','.join(columns[2])}]")
        except Malformed:
            return None
    begins, ends = offsets[::2], offsets[1::2]
    known: dict[str, _Kind] = {}
    for one in set(told):
        code, _, sizes = one.partition(f'",{space}"shape":{space}[')
        try:
            kind = _kind(code, read_json(f"[{sizes}]"))
        except Malformed:
            return None
        if kind is None:
            return None
        known[one] = kind
    kinds = list(map(known.__getitem__, told))
    if list(map(sub, ends, begins)) != list(map(attrgetter("nbytes"), kinds)):
        return None
    distinct = dict.fromkeys(names)  # a name that stands twice, or that only metadata may have
    if len(distinct) < len(names) or "__metadata__" in distinct:
        return None
    return Header(distinct, kinds, begins, ends, metadata, 8 + len(raw))


@record(frozen=True, eq=False, slots=True)
class _Kind:
    """What tensors of one type and shape have in common. `nbytes` are those of the data of one."""

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int


_FIELDS = ("dtype", "shape", "data_offsets")
_INTEGERS = {int}


def _usual(code: Any, shape: Any, offsets: Any, kinds: dict[tuple[Any, ...], _Kind]) -> tuple[_Kind, int, int] | None:
    """The fields of a tensor with nothing odd about them, or None. KINDS are those that were met before: few, where
    tensors are many."""
    if type(code) is not str or type(shape) is not list or type(offsets) is not list or len(offsets) != 2:
        return None
    if set(map(type, shape + offsets)) != _INTEGERS:
        return None
    told = (code, *shape)
    kind = kinds.get(told)
    if kind is None:
        kind = _kind(code, shape)
        if kind is None:
            return None
        kinds[told] = kind
    begin, end = offsets
    return (kind, begin, end) if end - begin == kind.nbytes and 0 <= begin < 1 << 62 else None


def _kind(code: str, sizes: list[int]) -> _Kind | None:
    """The kind of tensors of a type and sizes with nothing odd about them, or None."""
    dtype = BY_SAFETENSORS.get(code)
    possible = len(sizes) <= MOST_DIMENSIONS and all(0 <= n < 1 << 62 for n in sizes)
    if dtype is None or dtype.packed > 1 or not possible:
        return None
    shape = tuple(sizes)
    return _Kind(dtype, shape, contiguous_stride(shape), prod(shape) * dtype.itemsize)


def _entry(file: File, name: str, entry: Any) -> tuple[_Kind, int, int]:
    """The fields of a tensor, or what is wrong with them."""
    shown = printable(repr(name), 80)
    try:
        code, shape, (begin, end) = [entry[field] for field in _FIELDS]
    except (KeyError, TypeError, ValueError):
        raise Malformed(f"the entry of {shown} lacks dtype, shape or two data_offsets", where=file.path) from None
    dtype = BY_SAFETENSORS.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise Malformed(f"{shown} has the unknown dtype {in_words(code, 40)}", where=file.path)
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in [*shape, begin, end])
        or prod(n or 1 for n in shape) * dtype.itemsize >= 1 << 63
    ):
        raise Malformed(f"the shape or offsets of {shown} are none", where=file.path)
    if dtype.packed > 1:
        if not shape or shape[-1] % dtype.packed:
            raise Malformed(f"{shown} has an odd number of 4-bit elements in a row", where=file.path)
        shape = [*shape[:-1], shape[-1] // dtype.packed]
    sizes = tuple(shape)
    kind = _Kind(dtype, sizes, contiguous_stride(sizes), prod(sizes) * dtype.itemsize)
    if end - begin != kind.nbytes:
        raise Malformed(
            f"{shown} has {end - begin:,} bytes; {code} of shape {printable(str(shape), 80)} takes {kind.nbytes:,}",
            where=file.path,
        )
    return kind, begin, end


def check_tiling(file: File, header: Header) -> None:
    """Refuse holes, overlaps, and data that are missing or too many, as the reference does."""
    begins, ends, start = header.begins, header.ends, header.start
    if begins[:1] != [0] or begins[1:] != ends[:-1]:  # mostly, one follows the other
        _check_order(file, header)
    position = start + max(ends, default=0)
    if position > file.size:
        short = sum(start + end > file.size for end in ends)
        raise Malformed(
            f"is cut short: its tensors take {position - start:,} bytes, {file.size - start:,} are there",
            evidence=[f"{counted(short, 'tensor')} of {len(ends):,} not whole"],
            where=file.path,
            hint="the download or copy did not finish; compare the size with the source",
        )
    if position < file.size:
        raise Malformed(f"{file.size - position:,} bytes follow the last tensor", where=file.path)


def _check_order(file: File, header: Header) -> None:
    """Refuse holes and overlaps, in whatever order the tensors stand in the file."""
    begins, ends = header.begins, header.ends
    position = 0
    order = sorted(range(len(begins)), key=lambda number: ends[number] - begins[number])  # an empty one is the first
    for number in sorted(order, key=begins.__getitem__):
        begin = begins[number]
        if begin != position:
            kind = "a hole before" if begin > position else "an overlap at"
            where = f"{printable(repr([*header.names][number]), 80)} (byte {position:,})"
            raise Malformed(f"its data have {kind} {where}", where=file.path)
        position = ends[number]


def has_half_a_pair(text: str) -> bool:
    """Whether TEXT holds a lone surrogate, which Python allows and UTF-8 does not."""
    return not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)
