"""hdf5: files of HDF5, where Keras and many others keep weights. Read only.

In a file as the library writes it by default, `hdf5_plain` finds where each dataset stands; of others, a child process
asks the package h5py (see `apart`). The values stay in the file. Datasets are contiguous, or divided into chunks, each
perhaps compressed (gzip), with the bytes of its numbers in another order (shuffle) and with a checksum (Fletcher-32).
The numbers of the filters are those of the HDF5 format specification.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from .filtered_chunks import Unfiltered
from .found import NUMPY_TYPES, checked_shape, named, wrong_size
from .hdf5_plain import plain

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_CHILD = f"{__package__}.hdf5_child"
#: Number of a filter -> its name.
_FILTERS = {1: "zlib", 2: "shuffle", 3: "fletcher32"}
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
    found = None if file.fd < 0 else plain(file, offset, file.size - offset if size is None else size)
    if found is None:
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
    guessed = [
        str(o["path"]) for o in found.get("datasets", []) if str(o.get("dtype")).endswith("V2") and not _told_type(o)
    ]
    if guessed:
        shown = ", ".join(printable(path, 60) for path in guessed[:3])
        arrays = counted(len(guessed), "array is", "arrays are")
        notes.append(f"{arrays} of two bytes without a type, which are taken for bfloat16, as Keras writes it: {shown}")
    soft = found.get("soft", [])
    if soft:
        shown = ", ".join(f"{printable(str(a), 60)} = {printable(str(b), 60)}" for a, b in soft[:3])
        notes.append(f"{counted(len(soft), 'link')} within the file, which are not shown twice: {shown}")
    return Contents({path: t for _, path, t in tensors}, values, found.get("groups", {}), lost, notes)


def _told_type(one: dict[str, Any]) -> Any:
    """The type that an attribute of a dataset names, or None."""
    return one.get("attributes", {}).get("dtype")


def _type_of(one: dict[str, Any]) -> DType | None:
    code = str(one["dtype"])
    if code.endswith("V2") and _told_type(one) in ("bfloat16", None):
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
        source = _filled(one, dtype, shape, big=big)
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


def _fill(one: dict[str, Any], dtype: DType, *, big: bool) -> bytes:
    """The fill value, which is told in little-endian order, in that of the dataset."""
    fill = bytes.fromhex(one.get("fill", ""))
    width = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    return b"".join(fill[at : at + width][::-1] for at in range(0, len(fill), width)) if big else fill


def _filled(one: dict[str, Any], dtype: DType, shape: tuple[int, ...], *, big: bool) -> Source:
    """What was never written: the fill value all over."""
    fill = _fill(one, dtype, big=big)
    if not any(fill) or len(fill) != dtype.itemsize:
        return Zeros(prod(shape) * dtype.itemsize)
    return LazyTensor(Storage(Buffer(fill)), dtype, shape, (0,) * len(shape)).source()


def _from_chunks(file: File, offset: int, end: int, one: dict[str, Any], dtype: DType, path: str) -> Source:
    """The values of a dataset that is divided into chunks."""
    shape, size = tuple(one["shape"]), tuple(one["chunk"])
    shown = printable(repr(path), 80)
    whole = prod(size) * dtype.itemsize
    if len(size) != len(shape) or any(n < 1 for n in size) or whole > _LARGEST_CHUNK:
        raise Malformed(f"the chunks of {shown} are none: {printable(str(size), 60)}", where=file.path)
    unknown = [name for code, _, name in one["filters"] if code not in _FILTERS]
    if unknown:
        raise CannotCarry(
            f"{shown} is packed with the filter {printable(str(unknown[0]), 40)}; gzip is read",
            where=file.path,
            hint="h5repack -f NONE IN OUT writes it without filters",
        )
    filters = [
        (_FILTERS[code], values[0] if values and _FILTERS[code] == "shuffle" else dtype.itemsize)
        for code, values, _ in one["filters"]
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
        undone = tuple(step for n, step in reversed(list(enumerate(filters))) if not mask >> n & 1)
        source: Source = Unfiltered(stored, undone, whole, str(file.path)) if undone else stored
        if source.length != whole:
            raise wrong_size(path, dtype.name, size, whole, source.length, file.path)
        chunks.append(_box(Storage(source), dtype, start, size, shape, stride))
    missing = prod(-(-n // c) for n, c in zip(shape, size, strict=True)) - len(seen)
    if missing:
        if missing > 1 << 20:
            raise CannotCarry(f"{shown} has {missing:,} chunks that were never written", where=file.path)
        fill = _fill(one, dtype, big=str(one["dtype"]).startswith(">"))
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
    summary="HDF5: weights of Keras (.h5, .weights.h5) and of others; may need h5py",
    carries="tensors, under Keras's own names where it wrote them; its configuration as text",
    pickles=False,
    sniff=lambda head, file: head.startswith(SIGNATURE),
    open=open_hdf5,
    loader="other",
)
