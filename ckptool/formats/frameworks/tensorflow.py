"""tensorflow: checkpoints of TensorFlow, in both of its layouts, read without TensorFlow. Read only.

    V2    X.index, a table (see `leveldb_table`): "" -> header (number of shards, byte order), name of a variable ->
          type, shape, shard, offset, size; X.data-0000I-of-0000N, the bytes
    V1    X, a table: "" -> names, types and shapes, further keys -> slices of variables, as lists of numbers

Numbers of fields are those of `tensor_bundle.proto`, `saved_tensor_slice.proto` and `tensor.proto`. A variable that is
divided among several is put together from its slices. Names of TensorFlow 2 end in `/.ATTRIBUTES/VARIABLE_VALUE`, which
is left out; under `_CHECKPOINTABLE_OBJECT_GRAPH` stands a `TrackableObjectGraph`, with the names that layers gave them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import File, Source, shell_path
from ...disk.inside import Folder
from ...disk.urls import folder_of
from ...dtypes import BY_NAME, DType
from ...errors import Ambiguous, CheckpointError, Malformed, printable
from ...tensor import LazyTensor, contiguous_stride, little_endian
from ...tree import Dict
from ...weights import variable_of_slot
from ..base import FolderFormat, Format
from ..tiles import Chunk, assemble
from .cursor import Cursor
from .folder_paths import folder_in
from .found import checked_shape, named, tensor_at, tensor_over, wrong_size
from .leveldb_table import entries, is_table
from .protobuf import BYTES, VARINT, Field, fields, floats, inside, numbers, signed, stored_as, text_of
from .tensor_roles import roles_by_name

#: Numbers of types in `types.proto`.
TYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "int8",
    12: "uint8",
    13: "int32",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
}
_STRING = 7
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_MOST_SHARDS = 100_000
#: The fields of `TensorProto` that hold numbers.
_FLOATS = {5: "float32", 6: "float64", 9: "complex64", 12: "complex128"}
_INTEGERS = (7, 10, 11, 13, 16, 17)


@dataclass(slots=True)
class _Entry:
    """What the index says of a variable."""

    kind: int = 1
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    slices: list[list[tuple[int, int]]] = field(default_factory=list)


def open_checkpoint(file: File) -> Checkpoint:
    """Open a checkpoint by its index: names, types and places of its variables are read, no value is."""
    return _opened(file, None, file.path.name)


def _opened(file: File, folder: Folder | None, name: str) -> Checkpoint:
    listed = list(entries(file))
    head = next(((start, length) for key, start, length in listed if not key), None)
    if head is None:
        raise Malformed("is a table of LevelDB without the header of a checkpoint", where=file.path)
    header = list(fields(_cursor(file, *head)))
    if any(one.number == 1 and one.kind == BYTES for one in header):
        return _first_layout(file, listed)
    folder = folder_of(file.path) if folder is None else folder
    shards = next((one.value for one in header if one.number == 1), 1)
    big_endian = any(one.number == 2 and one.value == 1 for one in header)
    if not 1 <= shards <= _MOST_SHARDS:
        raise Malformed(f"its header states {shards:,} shards", where=file.path)
    found: dict[str, _Entry] = {}
    pieces: dict[bytes, _Entry] = {}
    for key, start, length in listed:
        if key[:1] == b"\0":
            pieces[key] = _entry(_cursor(file, start, length))
        elif key:
            text = key.decode("utf-8", "replace")
            found[text] = _entry(_cursor(file, start, length))
    prefix = name.removesuffix(".index")
    opened: dict[int, File] = {}

    def data(number: int) -> File:
        if not 0 <= number < shards:
            raise Malformed(f"names shard {number:,}, and there are {shards:,}", where=file.path)
        if number not in opened:
            opened[number] = folder.file(f"{prefix}.data-{number:05d}-of-{shards:05d}", name)
        return opened[number]

    tensors: list[tuple[str, LazyTensor]] = []
    left: list[str] = []
    lost: list[str] = []
    layers: dict[str, str] = {}
    for text, entry in found.items():
        if entry.kind == _STRING:
            if text == _GRAPH:
                layers = _names_in_layers(data(entry.shard), entry)
            (left if text == _GRAPH else lost).append(
                f"{printable(text, 80)}, {'text' if text != _GRAPH else 'by which TensorFlow finds its variables'}"
            )
            continue
        dtype = BY_NAME.get(TYPES.get(entry.kind, ""))
        if dtype is None:
            lost.append(f"the variable {printable(text, 80)} of type {entry.kind}")
            continue
        if entry.slices:
            tensors.append((text, _from_slices(text, entry, dtype, pieces, data, big_endian, file)))
        else:
            tensors.append((text, _whole(text, entry, dtype, data, big_endian)))
    size = file.size + sum(one.size for one in opened.values())
    return _made(tensors, file, size, lost, left, layers)


def _cursor(file: File, start: int, length: int) -> Cursor:
    return Cursor(file, start, start + length, what="an entry of its table")


def _entry(message: Cursor) -> _Entry:
    """A `BundleEntryProto`."""
    found = _Entry()
    for one in fields(message):
        if one.number == 1:
            found.kind = one.value
        elif one.number == 2 and one.kind == BYTES:
            found.shape = _shape(inside(message, one))
        elif one.number == 3:
            found.shard = one.value
        elif one.number == 4:
            found.offset = one.value
        elif one.number == 5:
            found.size = one.value
        elif one.number == 7 and one.kind == BYTES:
            found.slices.append(_slice(inside(message, one)))
    return found


def _shape(message: Cursor) -> tuple[int, ...]:
    """A `TensorShapeProto`."""
    sizes = []
    for one in fields(message):
        if one.number == 2 and one.kind == BYTES:
            size = [f.value for f in fields(inside(message, one)) if f.number == 1 and f.kind == VARINT]
            sizes.append(signed(size[0]) if size else 0)
    return tuple(sizes)


def _slice(message: Cursor) -> list[tuple[int, int]]:
    """A `TensorSliceProto`: (start, length) of each dimension, with a length of -1 for all of it."""
    extents = []
    for one in fields(message):
        if one.number == 1 and one.kind == BYTES:
            known = {f.number: signed(f.value) for f in fields(inside(message, one)) if f.kind == VARINT}
            extents.append((known.get(1, 0), known.get(2, -1)))
    return extents


def _whole(name: str, entry: _Entry, dtype: DType, data: Callable[[int], File], big_endian: bool) -> LazyTensor:
    held = data(entry.shard)
    return tensor_at(held, entry.offset, dtype, entry.shape, name, big_endian=big_endian, length=entry.size)


def _from_slices(
    name: str,
    entry: _Entry,
    dtype: DType,
    pieces: dict[bytes, _Entry],
    data: Callable[[int], File],
    big_endian: bool,
    file: File,
) -> LazyTensor:
    """A variable that is stored as slices, each an entry of its own."""
    checked_shape(entry.shape, dtype, name, file.path)
    boxes = []
    for extents in entry.slices:
        piece = pieces.get(slice_key(name, extents))
        if piece is None:
            raise Malformed(f"a slice of {printable(repr(name), 80)} is missing from the index", where=file.path)
        boxes.append((extents, _whole(name, piece, dtype, data, big_endian)))
    return _assembled(name, entry.shape, dtype, boxes, file)


def _assembled(
    name: str, shape: tuple[int, ...], dtype: DType, boxes: Iterable[tuple[Any, LazyTensor]], file: File
) -> LazyTensor:
    """A variable from its slices."""
    chunks = []
    for extents, values in boxes:
        if len(extents) != len(shape):
            raise Malformed(f"a slice of {printable(repr(name), 80)} has other dimensions", where=file.path)
        starts = tuple(start for start, _ in extents)
        sizes = tuple(n if length < 0 else length for (_, length), n in zip(extents, shape, strict=True))
        if values.numel != prod(sizes) or min(starts, default=0) < 0:
            raise wrong_size(name, "a slice", sizes, prod(sizes) * dtype.itemsize, values.nbytes, file.path)
        storage = little_endian(values.storage, dtype)
        chunks.append(Chunk(starts, LazyTensor(storage, dtype, sizes, contiguous_stride(sizes))))
    try:
        source = assemble(shape, dtype, chunks)
    except CheckpointError as error:
        error.where = error.where or str(file.path)
        error.what = f"{printable(repr(name), 80)}: {error.what}"
        raise
    return tensor_over(source, dtype, shape, name)


def slice_key(name: str, extents: Iterable[tuple[int, int]]) -> bytes:
    """The key under which the index keeps a slice: a 0, the name, the dimensions, start and length of each.

    Texts and numbers are encoded so that their bytes sort as they do (`ordered_code.cc`).
    """
    parts = list(extents)
    escaped = re.sub(rb"[\0\xff]", lambda one: one[0] + bytes([one[0][0] ^ 0xFF]), name.encode())
    dimensions = len(parts).to_bytes((len(parts).bit_length() + 7) // 8, "big")
    key = b"\0" + escaped + b"\0\1" + bytes([len(dimensions)]) + dimensions
    return key + b"".join(_ordered(number) for extent in parts for number in extent)


def _ordered(number: int) -> bytes:
    """A signed number as bytes: as many leading ones as there are bytes, then the number in what is left."""
    size = (~number if number < 0 else number).bit_length() // 7 + 1
    if size == 1:
        return bytes([(number & 0xFF) ^ 0x80])
    raw = bytearray(number.to_bytes(max(size, 9) + 1, "big", signed=True)[-size:])
    for bit in range(size):
        raw[bit // 8] ^= 0x80 >> bit % 8
    return bytes(raw)


# -- the first layout


def _first_layout(file: File, listed: list[tuple[bytes, int, int]]) -> Checkpoint:
    """A checkpoint that is one table: `SavedTensorSlices` with names and shapes, then with values."""
    known: dict[str, tuple[int, tuple[int, ...]]] = {}
    boxes: dict[str, list[tuple[Any, LazyTensor]]] = defaultdict(list)
    lost: list[str] = []
    for key, start, length in listed:
        message = _cursor(file, start, length)
        for one in fields(message):
            if not key and one.number == 1 and one.kind == BYTES:
                meta = inside(message, one)
                for inner in fields(meta):
                    if inner.number == 1 and inner.kind == BYTES:
                        name, kind, shape = _slice_meta(inside(meta, inner))
                        known[name] = kind, shape
            elif key and one.number == 2 and one.kind == BYTES:
                _saved_slice(inside(message, one), known, boxes, file)
    tensors = []
    for name, (kind, shape) in known.items():
        dtype = BY_NAME.get(TYPES.get(kind, ""))
        if dtype is None:
            lost.append(f"the variable {printable(name, 80)} of type {'text' if kind == _STRING else kind}")
            continue
        checked_shape(shape, dtype, name, file.path)
        tensors.append((name, _assembled(name, shape, dtype, boxes[name], file)))
    return _made(tensors, file, file.size, lost, [])


def _slice_meta(message: Cursor) -> tuple[str, int, tuple[int, ...]]:
    """A `SavedSliceMeta`: name, type, shape."""
    name, kind = "", 1
    shape: tuple[int, ...] = ()
    for one in fields(message):
        if one.number == 1 and one.kind == BYTES:
            name = text_of(message, one)
        elif one.number == 2 and one.kind == BYTES:
            shape = _shape(inside(message, one))
        elif one.number == 3:
            kind = one.value
    return name, kind, shape


def _saved_slice(
    message: Cursor, known: dict[str, Any], boxes: dict[str, list[tuple[Any, LazyTensor]]], file: File
) -> None:
    """A `SavedSlice`: name, slice, values."""
    name, extents, values = "", [], None
    for one in fields(message):
        if one.number == 1 and one.kind == BYTES:
            name = text_of(message, one)
        elif one.number == 2 and one.kind == BYTES:
            extents = _slice(inside(message, one))
        elif one.number == 3 and one.kind == BYTES:
            values = inside(message, one)
    if name not in known or values is None:
        raise Malformed(f"holds a slice of {printable(repr(name), 80)}, which its list does not name", where=file.path)
    dtype = BY_NAME.get(TYPES.get(known[name][0], ""))
    if dtype is not None:
        source = values_of(values, dtype)
        count = source.length // dtype.itemsize
        if source.length % dtype.itemsize:
            raise Malformed(f"the values of {printable(repr(name), 80)} are cut off", where=file.path)
        boxes[name].append((extents, tensor_over(source, dtype, (count,), name)))


def values_of(message: Cursor, dtype: DType) -> Source:
    """The values of a `TensorProto` as bytes of DTYPE."""
    real: list[Field] = []
    whole: list[Field] = []
    for one in fields(message):
        if one.number == 4 and one.kind == BYTES:
            return message.file.range(one.start, one.value)
        if one.number in _FLOATS and _FLOATS[one.number] == dtype.name:
            real.append(one)
        elif one.number in _INTEGERS:
            whole.append(one)
    return floats(message, real) if real or not whole else stored_as(numbers(message, whole), dtype)


# -- what both have in common


def _is_of_optimizer(name: str, names: set[str]) -> bool:
    """Whether a variable is state of an optimizer: a slot beside another variable, or below an optimizer."""
    if variable_of_slot(name) in names:
        return True
    return "/.OPTIMIZER_SLOT/" in name or re.match(r"(?:[\w.]+/)?_?optimizer\d*/", name) is not None


def _names_in_layers(held: File, entry: _Entry) -> dict[str, str]:
    """Key of a variable -> the name that its layer gave it ("conv2d_1/kernel"), by the graph of objects.

    A text is stored as its length, a varint, four bytes of checksum, and its bytes.
    """
    found: dict[str, str] = {}
    if entry.shape or entry.offset + entry.size > held.size:
        return found
    head = Cursor(held, entry.offset, entry.offset + entry.size, what="its graph of objects")
    length = head.varint()
    head.take(4)
    if length != head.left:
        return found
    for node in fields(head):
        if node.number != 1 or node.kind != BYTES:
            continue
        trackable = inside(head, node)
        for one in fields(trackable):
            if one.number == 2 and one.kind == BYTES:
                attribute = inside(trackable, one)
                words = {f.number: text_of(attribute, f) for f in fields(attribute) if f.kind == BYTES}
                if words.get(2) and words.get(3):
                    found[words[3]] = words[2]
    return found


def _made(
    tensors: list[tuple[str, LazyTensor]],
    file: File,
    size: int,
    lost: list[str],
    left: list[str],
    layers: dict[str, str] | None = None,
) -> Checkpoint:
    called = {layers[name]: (name, tensor) for name, tensor in tensors if name in layers} if layers else {}
    said = roles_by_name("tensorflow", {full: tensor for full, (_, tensor) in called.items()})
    roles = {called[full][0].removesuffix(_VALUE): role for full, role in said.items()}
    names = {name for name, _ in tensors}
    short = [(name.removesuffix(_VALUE), tensor) for name, tensor in tensors]
    if len({name for name, _ in short}) < len(short):
        short = tensors
    weights = [(name, tensor) for name, tensor in short if not _is_of_optimizer(name, names)]
    optimizer = [(name, tensor) for name, tensor in short if _is_of_optimizer(name, names)]
    root: Dict = named(weights, file.path)
    if optimizer:
        root = Dict([("variables", root), ("optimizer", named(optimizer, file.path))], ordered=True)
    return Checkpoint(
        root,
        "tensorflow",
        file.path,
        size,
        warnings=tuple(lost),
        lost_content=tuple(lost),
        lost_form=tuple(f"left out: {line}" for line in left),
        framework="tensorflow",
        roles=roles,
    )


def _is_checkpoint(head: bytes, file: Any) -> bool:
    return is_table(file)


FORMAT = Format(
    name="tensorflow",
    aliases=("tf",),
    suffixes=(),
    summary="checkpoints of TensorFlow: X.index with X.data-…, and X of the first layout",
    carries="variables under their names, those of optimizers apart",
    pickles=False,
    sniff=_is_checkpoint,
    open=open_checkpoint,
    loader="other",
)


# -- folders


def _prefixes(folder: Folder) -> list[str]:
    """Names of checkpoints in a folder."""
    names = [name for name in folder.names if name.endswith(".index")]
    return [n for n in names if any(o.startswith(f"{n.removesuffix('.index')}.data-") for o in folder.names)]


def _fits(folder: Folder) -> bool:
    return bool(_prefixes(folder)) or {"saved_model.pb", "variables"} <= set(folder.names)


def open_folder(folder: Folder) -> Checkpoint:
    """Open the checkpoint in a folder, or the variables of a SavedModel."""
    found = _prefixes(folder)
    inner = folder
    if not found:
        inner = folder_in(folder, "variables") or folder
        found = _prefixes(inner)
    if not found:
        raise Malformed(
            "is a SavedModel without variables",
            where=folder.path,
            hint="its constants stand in its graph, which is not read",
        )
    if len(found) > 1:
        raise Ambiguous(
            f"holds {len(found)} checkpoints of TensorFlow; say which one:",
            where=folder.path,
            evidence=[printable(name, 80) for name in found[-8:]],
            hint=f"name one: {shell_path(folder.path / found[-1])}",
        )
    return _opened(inner.file(found[0], found[0]), inner, found[0])


FOLDER = FolderFormat(
    name="saved-model",
    aliases=("tensorflow-folder",),
    summary="a folder with one checkpoint of TensorFlow, or a SavedModel",
    carries="variables under their names; the graph is not read",
    pickles=False,
    within=(),
    fits=_fits,
    open=open_folder,
    draft=None,
    loader="other",
)
