"""hdf5: files of HDF5, where Keras and many others keep weights. Read only.

A child process asks the package h5py where each dataset stands (see `apart`); the values stay in the file. Datasets are
contiguous, or divided into chunks, each perhaps compressed (gzip), with the bytes of its numbers in another order
(shuffle) and with a checksum (Fletcher-32). The numbers of the filters are those of the HDF5 format specification.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.composing import Zeros
from ...disk.files import Buffer, File, FileRange, Source
from ...dtypes import BY_NAME, DType
from ...errors import CannotCarry, Malformed, counted, printable
from ...tensor import LazyTensor, Storage, contiguous_stride
from ..base import Format
from ..tiles import Chunk, assemble
from . import keras_names
from .apart import asked
from .found import NUMPY_TYPES, checked_shape, named, wrong_size

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_CHILD = f"{__package__}.hdf5_child"
_GZIP, _SHUFFLE, _FLETCHER = 1, 2, 3
#: Bytes of a chunk, which is undone as a whole.
_LARGEST_CHUNK = 1 << 28


@dataclass(frozen=True, slots=True)
class Contents:
    """What an HDF5 file holds.

    Attributes:
        tensors: path -> tensor, in the order in which they stand in the file.
        values: path -> text.
        groups: path -> its attributes; "" is the file.
        lost: what is no tensor and no text.
        notes: what a person should know.
    """

    tensors: dict[str, LazyTensor]
    values: dict[str, Any]
    groups: dict[str, dict[str, Any]]
    lost: list[str]
    notes: list[str]


def contents_of(file: File, offset: int = 0, size: int | None = None) -> Contents:
    """What is in the HDF5 file that is a part of FILE, without its values.

    Raises:
        Malformed: it refers to other files, or contradicts itself.
    """
    found = asked(_CHILD, "h5py", "an HDF5 file", file, offset, size)
    end = file.size if size is None else offset + size
    outside = found.get("outside", [])
    if outside:
        raise Malformed(
            "refers to other files, which are not followed:",
            where=file.path,
            evidence=[f"{printable(str(path), 80)}: {printable(str(what), 100)}" for path, what in outside[:8]],
            hint="h5repack or h5py copies what it refers to into one file",
        )
    tensors: list[tuple[int, str, LazyTensor]] = []
    values: dict[str, Any] = {}
    lost: list[str] = []
    for one in found.get("datasets", []):
        path = str(one["path"])
        if one.get("kind") == "text" and one.get("text") is not None:
            values[path] = one["text"]
        elif "kind" in one:
            lost.append(f"{printable(path, 80)}, {printable(str(one['kind']), 80)}")
        elif (dtype := _type_of(one)) is None:
            lost.append(f"{printable(path, 80)}, values of type {printable(str(one['dtype']), 40)}")
        else:
            place, tensor = _tensor(file, offset, end, one, dtype, path)
            tensors.append((place, path, tensor))
    tensors.sort(key=lambda row: row[0])
    notes = []
    soft = found.get("soft", [])
    if soft:
        shown = ", ".join(f"{printable(str(a), 60)} = {printable(str(b), 60)}" for a, b in soft[:3])
        notes.append(f"{counted(len(soft), 'link')} within the file, which are not shown twice: {shown}")
    return Contents({path: t for _, path, t in tensors}, values, found.get("groups", {}), lost, notes)


def _type_of(one: dict[str, Any]) -> DType | None:
    code = str(one["dtype"])
    if code.endswith("V2") and one.get("attributes", {}).get("dtype", "bfloat16") == "bfloat16":
        return BY_NAME["bfloat16"]  # opaque, as Keras stores it
    return BY_NAME.get(NUMPY_TYPES.get(code.lstrip("<>|="), ""))


def _tensor(file: File, offset: int, end: int, one: dict[str, Any], dtype: DType, path: str) -> tuple[int, LazyTensor]:
    """A dataset as a tensor, and where it begins."""
    shape = tuple(one["shape"])
    checked_shape(shape, dtype, path, file.path)
    nbytes = prod(shape) * dtype.itemsize
    if one["bytes"] != nbytes:
        raise wrong_size(path, dtype.name, shape, nbytes, one["bytes"], file.path)
    big = str(one["dtype"]).startswith(">") and dtype.itemsize > 1
    place = end
    source: Source
    if "offset" in one:
        place = offset + one["offset"]
        source = _range(file, place, nbytes, end, path)
    elif "values" in one:
        source = Buffer(bytes.fromhex(one["values"]))
        if source.length != nbytes:
            raise wrong_size(path, dtype.name, shape, nbytes, source.length, file.path)
    elif "pieces" in one:
        place = min((offset + piece[1] for piece in one["pieces"]), default=end)
        source = _from_chunks(file, offset, end, one, dtype, path)
    else:
        source = _filled(one, dtype, shape)
    typed = dtype if dtype.storage else None
    storage = Storage(source, "cpu", typed, path, None, big)
    return place, LazyTensor(storage, dtype, shape, contiguous_stride(shape))


def _range(file: File, start: int, length: int, end: int, path: str) -> FileRange:
    if start < 0 or start + length > end:
        raise Malformed(
            f"{printable(repr(path), 80)} reaches beyond the end of the file",
            where=file.path,
            evidence=[f"its {length:,} bytes begin at byte {start:,}, and the file ends at {end:,}"],
            hint="the download or copy did not finish; compare the size with the source",
        )
    return FileRange(file, start, length)


def _filled(one: dict[str, Any], dtype: DType, shape: tuple[int, ...]) -> Source:
    """What was never written: the fill value all over."""
    fill = bytes.fromhex(one.get("fill", ""))
    if not any(fill) or len(fill) != dtype.itemsize:
        return Zeros(prod(shape) * dtype.itemsize)
    return LazyTensor(Storage(Buffer(fill)), dtype, shape, (0,) * len(shape)).source()


@dataclass(frozen=True, slots=True)
class Unfiltered:
    """A chunk of a dataset, with its filters undone when it is read.

    Attributes:
        stored: the bytes in the file.
        filters: (number, values) of each filter, in the order in which they are undone.
        length: bytes of the values.
    """

    stored: FileRange
    filters: tuple[tuple[int, int], ...]
    length: int

    @property
    def step(self) -> int:
        """Bytes that are undone at once."""
        return self.length

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes of values from OFFSET."""
        whole: bytes = _undone(self)
        return whole[offset : offset + length]

    def chunks(self) -> Iterator[bytes]:
        """All values."""
        yield _undone(self)


@lru_cache(maxsize=8)
def _undone(chunk: Unfiltered) -> bytes:
    data = chunk.stored.read(0, chunk.stored.length)
    where = chunk.stored.file.path
    for code, width in chunk.filters:
        if code == _FLETCHER:
            data, checksum = data[:-4], data[-4:]
            if _fletcher32(data) != int.from_bytes(checksum, "little"):
                raise Malformed("a chunk is damaged: its checksum (Fletcher-32) does not match", where=where)
        elif code == _GZIP:
            stream = zlib.decompressobj()
            try:
                data = stream.decompress(data, chunk.length + 5)
            except zlib.error as error:
                raise Malformed("a chunk cannot be inflated", where=where, evidence=[str(error)]) from None
        else:
            data = _unshuffled(data, width)
    data = bytes(data)
    if len(data) != chunk.length:
        raise Malformed(f"a chunk has {len(data):,} bytes of values, and {chunk.length:,} are stated", where=where)
    return data


def _unshuffled(data: bytes, width: int) -> bytes:
    """The bytes of numbers that were sorted by their place in a number."""
    import numpy as np

    count = len(data) // width
    whole = np.frombuffer(data, np.uint8, count * width).reshape(width, count)
    turned: bytes = whole.T.tobytes()
    return turned + data[count * width :]


def _fletcher32(data: bytes) -> int:
    """The checksum of HDF5's filter: two sums of big-endian words, modulo 65535."""
    import numpy as np

    words = np.frombuffer(data[: len(data) // 2 * 2], ">u2").astype(np.uint64)
    if len(data) % 2:
        words = np.append(words, np.uint64(data[-1] << 8))
    first = second = 0
    for at in range(0, len(words), 4096):
        part = words[at : at + 4096]
        weights = np.arange(len(part), 0, -1, dtype=np.uint64)
        second = (second + first * len(part) + int((part * weights).sum())) % 65535
        first = (first + int(part.sum())) % 65535
    return second << 16 | first


def _from_chunks(file: File, offset: int, end: int, one: dict[str, Any], dtype: DType, path: str) -> Source:
    """The values of a dataset that is divided into chunks."""
    shape, size = tuple(one["shape"]), tuple(one["chunk"])
    shown = printable(repr(path), 80)
    whole = prod(size) * dtype.itemsize
    if len(size) != len(shape) or any(n < 1 for n in size) or whole > _LARGEST_CHUNK:
        raise Malformed(f"the chunks of {shown} are none: {printable(str(size), 60)}", where=file.path)
    unknown = [name for code, _, name in one["filters"] if code not in (_GZIP, _SHUFFLE, _FLETCHER)]
    if unknown:
        raise CannotCarry(
            f"{shown} is packed with the filter {printable(str(unknown[0]), 40)}; gzip is read",
            where=file.path,
            hint="h5repack -f NONE IN OUT writes it without filters",
        )
    filters = [
        (code, values[0] if code == _SHUFFLE and values else dtype.itemsize) for code, values, _ in one["filters"]
    ]
    if any(not 0 < width <= 64 for _, width in filters):
        raise Malformed(f"the filters of {shown} are none", where=file.path)
    chunks: list[Chunk] = []
    stride = contiguous_stride(size)
    seen: set[tuple[int, ...]] = set()
    for start, at, length, mask in one["pieces"]:
        if any(s % n for s, n in zip(start, size, strict=True)) or tuple(start) in seen:
            raise Malformed(f"a chunk of {shown} is where none can be: {printable(str(start), 60)}", where=file.path)
        if any(s >= n for s, n in zip(start, shape, strict=True)):
            continue  # left over from when the dataset was larger
        seen.add(tuple(start))
        stored = _range(file, offset + at, length, end, path)
        undone = tuple((code, width) for n, (code, width) in reversed(list(enumerate(filters))) if not mask >> n & 1)
        source: Source = Unfiltered(stored, undone, whole) if undone else stored
        if source.length != whole:
            raise wrong_size(path, dtype.name, size, whole, source.length, file.path)
        chunks.append(_box(Storage(source), dtype, start, size, shape, stride))
    missing = prod(-(-n // c) for n, c in zip(shape, size, strict=True)) - len(seen)
    if missing:
        if missing > 1 << 20:
            raise CannotCarry(f"{shown} has {missing:,} chunks that were never written", where=file.path)
        fill = bytes.fromhex(one.get("fill", ""))
        filling = Storage(Buffer(fill if len(fill) == dtype.itemsize else bytes(dtype.itemsize)))
        every = product(*(range(0, n, c) for n, c in zip(shape, size, strict=True)))
        none = (0,) * len(size)
        chunks += [_box(filling, dtype, start, size, shape, none) for start in every if start not in seen]
    try:
        return assemble(shape, dtype, chunks)
    except (Malformed, CannotCarry) as error:
        error.where = error.where or str(file.path)
        error.what = f"{shown}: {error.what}"
        raise


def _box(
    storage: Storage, dtype: DType, start: Any, size: tuple[int, ...], shape: tuple[int, ...], stride: tuple[int, ...]
) -> Chunk:
    """A chunk, cut where it reaches beyond the dataset."""
    cut = tuple(min(c, n - s) for s, c, n in zip(start, size, shape, strict=True))
    return Chunk(tuple(start), LazyTensor(storage, dtype, cut, stride))


def open_hdf5(file: File) -> Checkpoint:
    """Open an HDF5 file: the places of its datasets are read, no values are. Keras's names are recognised."""
    found = contents_of(file)
    return checkpoint_of(found, file, "hdf5", {})


def checkpoint_of(found: Contents, file: File, format_: str, texts: dict[str, str]) -> Checkpoint:
    """The checkpoint in an HDF5 file, with TEXTS that stand beside it."""
    seen = keras_names.named_as_in_keras(list(found.tensors), found.groups, texts, found.tensors)
    entries = [(name, found.tensors[path]) for name, path in seen.weights]
    values = [(path, value) for path, value in found.values.items()]
    root = named([*entries, *values], file.path)
    if seen.optimizer:
        optimizer = named([(name, found.tensors[path]) for name, path in seen.optimizer], file.path)
        root = named([("model_weights", root), ("optimizer_weights", optimizer)], file.path)
    return Checkpoint(
        root,
        format_,
        file.path,
        file.size,
        metadata=texts | seen.texts,
        warnings=(*found.notes, *found.lost, *seen.notes),
        lost_content=tuple(found.lost),
        framework=seen.framework,
        roles=seen.roles,
    )


FORMAT = Format(
    name="hdf5",
    aliases=("h5", "keras-h5"),
    suffixes=(),
    summary="HDF5: weights of Keras (.h5, .weights.h5) and of others; needs h5py",
    carries="tensors, under Keras's own names where it wrote them; its configuration as text",
    pickles=False,
    sniff=lambda head, file: head.startswith(SIGNATURE),
    open=open_hdf5,
    loader="other",
)
