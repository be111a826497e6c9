"""What all readers of foreign files share: tensors at a place of a file, names, and what they say when they refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from ...disk.files import File, FileRange, Source, Window, shell_path
from ...dtypes import DType
from ...errors import Malformed, printable
from ...tensor import MOST_DIMENSIONS, LazyTensor, Storage, contiguous_stride
from ...tree import Dict

#: Longest name of a tensor. Names are kept in memory, and shown.
LONGEST_NAME = 1 << 16

#: A type of numpy without its byte order -> the name of the element type.
NUMPY_TYPES = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "b1": "bool",
    "c8": "complex64",
    "c16": "complex128",
}


def tensor_at(
    file: File | Window,
    offset: int,
    dtype: DType,
    shape: Sequence[int],
    name: str,
    *,
    big_endian: bool = False,
    length: int | None = None,
) -> LazyTensor:
    """The tensor of SHAPE (in C order) whose bytes begin at OFFSET of FILE.

    LENGTH is how many bytes the file says that there are.

    Raises:
        Malformed: they are not as many as its shape and type take, or not all in the file.
    """
    checked_shape(shape, dtype, name, file.path)
    nbytes = prod(shape) * dtype.itemsize
    if length is not None and length != nbytes:
        raise wrong_size(name, dtype.name, shape, nbytes, length, file.path)
    if offset < 0 or offset + nbytes > file.size:
        there = max(file.size - offset, 0) if offset >= 0 else 0
        raise Malformed(
            f"{printable(repr(name), 80)} reaches beyond the end of the file",
            where=file.path,
            evidence=[f"it has {nbytes:,} bytes from byte {offset:,} on, and {there:,} are there"],
            hint="the download or copy did not finish; compare the size with the source",
        )
    return tensor_over(file.range(offset, nbytes), dtype, shape, name, big_endian=big_endian)


def tensor_over(
    source: Source, dtype: DType, shape: Sequence[int], name: str, *, big_endian: bool = False
) -> LazyTensor:
    """The tensor of SHAPE, in C order, that SOURCE holds."""
    sizes = tuple(shape)
    crc = source.crc if isinstance(source, FileRange) else None
    turned = big_endian and dtype.itemsize > 1
    storage = Storage(source, "cpu", dtype if dtype.storage or turned else None, name, crc, turned)
    return LazyTensor(storage, dtype, sizes, contiguous_stride(sizes))


def checked_shape(shape: Sequence[Any], dtype: DType, name: str, where: object) -> None:
    """Refuse what is no shape."""
    if (
        len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
        or prod(n or 1 for n in shape) * dtype.itemsize >= 1 << 62
    ):
        shown = printable(str(list(shape)[:9]), 80)
        raise Malformed(f"the shape of {printable(repr(name), 80)} is none: {shown}", where=where)


def wrong_size(name: str, kind: str, shape: Sequence[int], takes: int, there: int, where: object) -> Malformed:
    """A tensor that has more or fewer bytes than its shape takes."""
    return Malformed(
        f"{printable(repr(name), 80)} has {there:,} bytes; {kind} of shape {printable(str(list(shape)), 80)} takes "
        f"{takes:,}",
        where=where,
    )


def named(entries: Iterable[tuple[str, Any]], where: object) -> Dict:
    """A dict of ENTRIES in their order.

    Raises:
        Malformed: two have one name, or a name is longer than any.
    """
    found = list(entries)
    if len(dict(found)) != len(found):
        counts = Counter(name for name, _ in found)
        twice = next(name for name, count in counts.items() if count > 1)
        raise Malformed(f"two tensors have the name {printable(repr(twice), 80)}", where=where)
    for name, _ in found:
        if len(name) > LONGEST_NAME:
            raise Malformed(f"the name of a tensor has {len(name):,} characters: {printable(name, 60)}", where=where)
    return Dict(list(found), ordered=True)


def not_written(path: Path, what: str) -> str:
    """The hint for a format that is only read."""
    return f"ckptool convert {shell_path(path)} {shell_path(path.with_suffix('.safetensors'))} makes a file of {what}"
