"""The header of a safetensors file: JSON that says of each tensor its type, its shape and where its bytes are.

`safetensors` says what is in it. A header as the reference writes it is read by one pattern, entry after entry; in
whatever differs from that by a character, by a parser of JSON, which says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from typing import Any

from ...disk.documents import read_json
from ...disk.files import File, FileRange
from ...dtypes import BY_SAFETENSORS, DType
from ...errors import Malformed, counted, in_words, printable
from ...records import record
from ...tensor import MOST_DIMENSIONS, contiguous_stride
from ..beginnings import LARGEST_HEADER


def read_header(file: File) -> tuple[dict[str, Any], dict[str, str]]:
    """The header, without its metadata, and these."""
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


#: A header as the reference writes it, without a space and with one order of the fields; and one of its entries.
_ENTRY = re.compile(
    r"""[{,]"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+)","shape":\[((?:NUMBER(?:,NUMBER)*)?)\],"""
    r""""data_offsets":\[(NUMBER),(NUMBER)\]\}""".replace("NUMBER", "(?:0|[1-9][0-9]{0,17})")
)
_METADATA = '{"__metadata__":'


def _read_usual(raw: bytes) -> tuple[dict[str, Any], dict[str, str]] | None:
    """As `read_header`, of a header that is as most are from its first character to its last; None of any other."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    metadata: dict[str, str] = {}
    at = 0
    if text.startswith(_METADATA):
        try:
            _, at = json.JSONDecoder().raw_decode(text, len(_METADATA))
            metadata = read_json(text[len(_METADATA) : at])
        except (ValueError, RecursionError, Malformed):
            return None
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            return None
    kinds: dict[tuple[Any, ...], _Kind] = {}
    known: dict[tuple[str, str], _Kind] = {}
    found: dict[str, Any] = {}
    count = 0
    for entry in _ENTRY.finditer(text, at):
        if entry.start() != at or text[at] != ("," if at else "{"):
            return None
        at = entry.end()
        name, code, shape, first, last = entry.groups()
        begin, end = int(first), int(last)
        kind = known.get((code, shape))
        if kind is None:
            sizes = [int(n) for n in shape.split(",")] if shape else []
            told = _usual(code, sizes, [begin, end], kinds)
            if told is None:
                return None
            kind = known[code, shape] = told[0]
        if end - begin != kind.nbytes:
            return None
        found[name] = kind, begin, end
        count += 1
    whole = bool(count) and text[at : at + 1] == "}" and not text[at + 1 :].strip(" ")
    # a name that stands twice, or that only metadata may have
    return (found, metadata) if whole and len(found) == count and "__metadata__" not in found else None


@record(frozen=True, slots=True)
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
        dtype = BY_SAFETENSORS.get(code)
        sizes = tuple(shape)
        possible = len(sizes) <= MOST_DIMENSIONS and all(0 <= n < 1 << 62 for n in sizes)
        if dtype is None or dtype.packed > 1 or not possible:
            return None
        kind = kinds[told] = _Kind(dtype, sizes, contiguous_stride(sizes), prod(sizes) * dtype.itemsize)
    begin, end = offsets
    return (kind, begin, end) if end - begin == kind.nbytes and 0 <= begin < 1 << 62 else None


def tensors_in(file: File, header: dict[str, Any]) -> Iterator[tuple[str, _Kind, FileRange]]:
    """The tensors of a header, which is empty then: with several hundred thousand, memory counts."""
    start = 8 + int.from_bytes(file.read(0, 8), "little")
    for name in list(header):
        entry = header.pop(name)
        kind, begin, end = entry if type(entry) is tuple else _entry(file, name, entry)
        yield name, kind, FileRange(file, start + begin, end - begin)


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


def check_tiling(file: File, names: list[str], ranges: list[FileRange]) -> None:
    """Refuse holes, overlaps, and data that are missing or too many, as the reference does."""
    position = start = 8 + int.from_bytes(file.read(0, 8), "little")
    order = sorted(range(len(ranges)), key=lambda number: ranges[number].length)  # of two at one place the empty one
    for number in sorted(order, key=lambda number: ranges[number].offset):
        begin = ranges[number].offset
        if begin != position:
            kind = "a hole before" if begin > position else "an overlap at"
            where = f"{printable(repr(names[number]), 80)} (byte {position - start:,})"
            raise Malformed(f"its data have {kind} {where}", where=file.path)
        position += ranges[number].length
    if position > file.size:
        short = sum(part.offset + part.length > file.size for part in ranges)
        raise Malformed(
            f"is cut short: its tensors take {position - start:,} bytes, {file.size - start:,} are there",
            evidence=[f"{counted(short, 'tensor')} of {len(ranges):,} not whole"],
            where=file.path,
            hint="the download or copy did not finish; compare the size with the source",
        )
    if position < file.size:
        raise Malformed(f"{file.size - position:,} bytes follow the last tensor", where=file.path)


def has_half_a_pair(text: str) -> bool:
    """Whether TEXT holds a lone surrogate, which Python allows and UTF-8 does not."""
    return not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)
