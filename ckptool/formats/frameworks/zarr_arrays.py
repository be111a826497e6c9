"""Arrays of Zarr, versions 2 and 3, from a function that gives what is stored under a key.

    NAME/.zarray      JSON: shape, chunks, type, order, compression             (version 2)
    NAME/0.1          a chunk, compressed as a whole (zstd, gzip, zlib) or not at all
    NAME/zarr.json    JSON: shape, grid of chunks, type, codecs                 (version 3)
    NAME/c/0/1        a chunk: bytes, compressed (zstd, gzip), with a checksum (crc32c); or divided into inner chunks
                      (sharding_indexed), behind or before which stand the place and length of each, u64, and a checksum

The layouts are those of Zarr's specifications, and of ZEP 2 for divided chunks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ...disk.documents import read_json
from ...disk.files import Buffer, FileRange, Source
from ...dtypes import BY_NAME, DType
from ...errors import CannotCarry, CheckpointError, Malformed, printable
from ...tensor import LazyTensor, Storage, contiguous_stride, little_endian
from ..tiles import Chunk, assemble
from .filtered_chunks import Unfiltered, crc32c
from .found import NUMPY_TYPES, checked_shape, tensor_over

_LARGEST_JSON = 1 << 28
_LARGEST_CHUNK = 1 << 30
_MOST_CHUNKS = 1_000_000
_PACKED = ("zstd", "gzip", "zlib")
_ABSENT = 0xFFFFFFFFFFFFFFFF

#: Key -> what is stored there, or None.
Stored = Callable[[str], "FileRange | Buffer | None"]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How an array is stored.

    Attributes:
        dtype, shape, chunk: the values of the array and of a chunk.
        big: the bytes of numbers are the other way round.
        fortran: chunks have their first dimension as the fast one.
        filters: what undoes a chunk, in order.
        inner: the shape of inner chunks, if a chunk is divided.
        at_end: their places stand behind them.
        zeros: a chunk that is not there is full of zeros.
    """

    dtype: DType
    shape: list[int]
    chunk: list[int]
    big: bool
    fortran: bool
    filters: tuple[tuple[str, int], ...]
    inner: list[int] | None
    at_end: bool
    zeros: bool


def array_in(stored: Stored, name: str, where: str) -> tuple[LazyTensor, int]:
    """The array NAME, and the bytes that are stored of it.

    Raises:
        Malformed: it contradicts itself.
        CannotCarry: it has a type, codec or filter that is not read.
    """
    second = stored(f"{name}/.zarray")
    third = stored(f"{name}/zarr.json") if second is None else None
    described = second if second is not None else third
    if described is None:
        raise Malformed(f"{printable(repr(name), 80)} has no description (.zarray, zarr.json)", where=where)
    if described.length > _LARGEST_JSON:
        raise Malformed(f"has {described.length:,} bytes of JSON", where=where)
    said = read_json(bytes(described.read(0, described.length)), where, f"the description of {printable(name, 60)}")
    if not isinstance(said, dict):
        raise Malformed(f"the description of {printable(repr(name), 80)} is none", where=where)
    layout = _second(said, name, where) if second is not None else _third(said, name, where)
    checked_shape(layout.shape, layout.dtype, name, where)
    checked_shape(layout.chunk, layout.dtype, name, where)
    whole = prod(layout.chunk) * layout.dtype.itemsize
    counts = [-(-n // c) if c else 0 for n, c in zip(layout.shape, layout.chunk, strict=True)]
    if 0 in layout.chunk or whole > _LARGEST_CHUNK or prod(counts) > _MOST_CHUNKS:
        raise Malformed(f"its chunks are none: {printable(str(layout.chunk), 60)}", where=where)
    if second is not None:
        between, first = str(said.get("dimension_separator", ".")), ""
    else:
        between, first = _key_of(said, name, where)
    boxes: list[Chunk] = []
    read = 0
    for place in product(*map(range, counts)):
        key = between.join([*([first] if first else []), *map(str, place)]) or "0"
        one = stored(f"{name}/{key}")
        read += one.length if one is not None else 0
        starts = tuple(at * c for at, c in zip(place, layout.chunk, strict=True))
        boxes += _boxes(one, starts, layout, f"{name}/{key}", where)
    try:
        return tensor_over(assemble(tuple(layout.shape), layout.dtype, boxes), layout.dtype, layout.shape, name), read
    except CheckpointError as error:
        error.where = error.where or where
        raise


def _second(said: dict[str, Any], name: str, where: str) -> _Layout:
    """A description of version 2."""
    shape, chunk, order = said.get("shape"), said.get("chunks"), said.get("order")
    packed, filters, code = said.get("compressor"), said.get("filters"), said.get("dtype")
    dtype = BY_NAME.get(NUMPY_TYPES.get(code.lstrip("<>|"), code)) if isinstance(code, str) else None
    how = packed.get("id") if isinstance(packed, dict) else None
    if filters or order not in ("C", "F") or (packed is not None and how not in _PACKED):
        what = f"compressor {how}" if how not in (*_PACKED, None) else "filters or order"
        raise CannotCarry(f"has an array with {printable(what, 60)} that are not read", where=where)
    return _checked(
        dtype,
        code,
        shape,
        chunk,
        name,
        where,
        big=str(code).startswith(">"),
        fortran=order == "F",
        filters=((str(how), 0),) if how else (),
        zeros=said.get("fill_value") in (0, 0.0, False) and said.get("fill_value") is not None,
    )


def _third(said: dict[str, Any], name: str, where: str) -> _Layout:
    """A description of version 3."""
    grid = said.get("chunk_grid")
    kind = said.get("data_type")
    settings = grid.get("configuration") if isinstance(grid, dict) and grid.get("name") == "regular" else None
    chunk = settings.get("chunk_shape") if isinstance(settings, dict) else None
    codecs = said.get("codecs")
    inner, at_end = None, True
    if isinstance(codecs, list) and len(codecs) == 1 and _named(codecs[0])[0] == "sharding_indexed":
        settings = _named(codecs[0])[1]
        inner, codecs = settings.get("chunk_shape"), settings.get("codecs")
        at_end = settings.get("index_location", "end") == "end"
        index = settings.get("index_codecs")
        if not isinstance(index, list) or [_named(one)[0] for one in index] != ["bytes", "crc32c"]:
            raise CannotCarry("has divided chunks with places that are not read", where=where)
        if not isinstance(inner, list) or any(type(n) is not int or n < 1 for n in inner):
            raise Malformed(f"the inner chunks of {printable(repr(name), 80)} are none", where=where)
    steps = [_named(one) for one in codecs] if isinstance(codecs, list) else []
    unknown = [name for name, _ in steps if name not in ("bytes", "crc32c", *_PACKED)]
    if unknown or not steps or steps[0][0] != "bytes":
        what = printable(str(unknown[0] if unknown else "none"), 40)
        raise CannotCarry(f"has an array with the codec {what}, which is not read", where=where)
    dtype = BY_NAME.get(kind) if isinstance(kind, str) else None
    return _checked(
        dtype,
        kind,
        said.get("shape"),
        chunk,
        name,
        where,
        big=steps[0][1].get("endian") == "big",
        fortran=False,
        filters=tuple((step, 0) for step, _ in reversed(steps[1:])),
        zeros=said.get("fill_value") in (0, 0.0, False) and said.get("fill_value") is not None,
        inner=inner,
        at_end=at_end,
    )


def _named(codec: Any) -> tuple[str, dict[str, Any]]:
    """The name of a codec, and its settings."""
    settings = codec.get("configuration") if isinstance(codec, dict) else None
    return (str(codec.get("name")) if isinstance(codec, dict) else "?"), settings if isinstance(settings, dict) else {}


def _checked(
    dtype: DType | None,
    code: Any,
    shape: Any,
    chunk: Any,
    name: str,
    where: str,
    *,
    big: bool,
    fortran: bool,
    filters: tuple[tuple[str, int], ...],
    zeros: bool,
    inner: list[int] | None = None,
    at_end: bool = True,
) -> _Layout:
    if dtype is None or dtype.numpy is None:
        raise CannotCarry(f"has values of type {printable(str(code), 40)}, which are not read", where=where)
    if not isinstance(shape, list) or not isinstance(chunk, list) or len(shape) != len(chunk):
        raise Malformed(f"the description of {printable(repr(name), 80)} has no shape and chunks", where=where)
    if inner is not None and (len(inner) != len(chunk) or any(c % n for c, n in zip(chunk, inner, strict=True))):
        raise Malformed(f"the inner chunks of {printable(repr(name), 80)} are none", where=where)
    return _Layout(dtype, shape, chunk, big and dtype.itemsize > 1, fortran, filters, inner, at_end, zeros)


def _key_of(said: dict[str, Any], name: str, where: str) -> tuple[str, str]:
    """What stands between the numbers of a chunk in its key, and before them."""
    kind, settings = _named(said.get("chunk_key_encoding"))
    if kind not in ("default", "v2"):
        raise CannotCarry(f"names chunks in the way {printable(kind, 40)}, which is not read", where=where)
    between = settings.get("separator", "/" if kind == "default" else ".")
    if between not in ("/", "."):
        raise Malformed(f"the keys of {printable(repr(name), 80)} are none", where=where)
    return between, "c" if kind == "default" else ""


def _boxes(
    stored: FileRange | Buffer | None, starts: tuple[int, ...], layout: _Layout, key: str, where: str
) -> Iterator[Chunk]:
    """A chunk, or the inner chunks of one, each cut where it reaches beyond the array."""
    if stored is None:
        yield _box(None, starts, layout.chunk, layout, key, where)
        return
    if layout.inner is None:
        yield _box(_values(stored, layout, layout.chunk, key, where), starts, layout.chunk, layout, key, where)
        return
    counts = [c // n for c, n in zip(layout.chunk, layout.inner, strict=True)]
    size = 16 * prod(counts) + 4
    if prod(counts) > _MOST_CHUNKS or size > stored.length:
        raise Malformed(f"the chunk {printable(key, 60)} is cut short", where=where)
    raw = bytes(stored.read(stored.length - size if layout.at_end else 0, size))
    if crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise Malformed(
            f"the chunk {printable(key, 60)} is damaged: its checksum (CRC-32C) does not match", where=where
        )
    places = struct.unpack(f"<{2 * prod(counts)}Q", raw[:-4])
    for number, place in enumerate(product(*map(range, counts))):
        at, length = places[2 * number : 2 * number + 2]
        first = tuple(s + p * n for s, p, n in zip(starts, place, layout.inner, strict=True))
        if any(s >= n for s, n in zip(first, layout.shape, strict=True)):
            continue
        values = None
        if (at, length) != (_ABSENT, _ABSENT):
            if at + length > stored.length:
                raise Malformed(f"a part of the chunk {printable(key, 60)} reaches beyond its end", where=where)
            values = _values(_part(stored, at, length), layout, layout.inner, key, where)
        yield _box(values, first, layout.inner, layout, key, where)


def _part(stored: FileRange | Buffer, at: int, length: int) -> FileRange | Buffer:
    if isinstance(stored, FileRange):
        return FileRange(stored.file, stored.offset + at, length)
    return Buffer(bytes(stored.read(at, length)))


def _values(stored: FileRange | Buffer, layout: _Layout, size: list[int], key: str, where: str) -> Source:
    whole = prod(size) * layout.dtype.itemsize
    values: Source = Unfiltered(stored, layout.filters, whole, where) if layout.filters else stored
    if values.length != whole:
        raise Malformed(f"chunk {printable(key, 60)} has {values.length:,} bytes, not {whole:,}", where=where)
    return values


def _box(
    values: Source | None, starts: tuple[int, ...], size: list[int], layout: _Layout, key: str, where: str
) -> Chunk:
    """The values of a chunk, or zeros, at their place."""
    dtype = layout.dtype
    stride = contiguous_stride(tuple(size))
    if layout.fortran:
        stride = contiguous_stride(tuple(size)[::-1])[::-1]
    if values is None:
        if not layout.zeros:
            raise Malformed(
                f"chunk {printable(key, 60)} is missing",
                where=where,
                hint="the download or copy did not finish; fetch the missing file",
            )
        values, stride = Buffer(bytes(dtype.itemsize)), (0,) * len(size)
    cut = tuple(min(c, n - s) for c, n, s in zip(size, layout.shape, starts, strict=True))
    storage = little_endian(Storage(values, "cpu", None, key, None, layout.big), dtype)
    return Chunk(starts, LazyTensor(storage, dtype, cut, stride))
