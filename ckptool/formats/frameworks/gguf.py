"""gguf: the files of llama.cpp. Written only from one that was read.

    "GGUF", u32 version (2 or 3), u64 number of tensors, u64 number of metadata entries
    per entry:  u64 length, key, u32 type, value            (text: u64 length, UTF-8; array: u32 type, u64 count)
    per tensor: u64 length, name, u32 number of dimensions, u64 dimensions (the fastest first), u32 type, u64 offset
    padding up to a multiple of `general.alignment` (32), then the tensors, each at such a multiple from there

The layout is that of ggml's docs/gguf.md; types and the sizes of their blocks are those of ggml.h. Blocks of quantized
numbers are read as the float32 values that they stand for, computed when they are asked for by the package gguf. What
is written back are the blocks themselves, with all metadata as they stood.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from ...checkpoint import Checkpoint, around
from ...disk.composing import Piece
from ...disk.files import Buffer, File, FileRange, Source
from ...dtypes import BY_NAME
from ...errors import CannotCarry, Malformed, counted, printable, require
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor, Storage, contiguous_stride
from ..base import Draft, Format
from .cursor import Cursor
from .found import LONGEST_NAME, checked_shape, named

_MAGIC = b"GGUF"
#: Bytes of all metadata, and values of one array that are also given as text.
_LARGEST_METADATA = 1 << 30
_MOST_VALUES = 1 << 20
_LONGEST_TEXT = 1 << 26
_STEP = 4 << 20

_PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
_TYPE_OF = {name: number for number, name in _PLAIN.items()}
#: Types of blocks: number -> name, numbers in a block, bytes of a block.
_BLOCKS = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
_FLOAT32 = BY_NAME["float32"]
#: Types of metadata as the module struct has them; 8 is text, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Dequantized:
    """The float32 values of blocks of quantized numbers, computed when they are read.

    Attributes:
        blocks: the bytes of the blocks.
        kind: number of their type.
    """

    blocks: FileRange
    kind: int

    @property
    def length(self) -> int:
        """Bytes of all values."""
        _, count, size = _BLOCKS[self.kind]
        return self.blocks.length // size * count * 4

    @property
    def step(self) -> int:
        """Bytes that are computed at once."""
        return _STEP

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes of values from OFFSET."""
        import numpy as np

        name, count, size = _BLOCKS[self.kind]
        first, last = offset // (count * 4), -(-(offset + length) // (count * 4))
        raw = np.frombuffer(self.blocks.read(first * size, (last - first) * size), np.uint8).reshape(-1, size)
        quants = _quants(self.blocks.file.path)
        with np.errstate(all="ignore"):
            try:
                values = quants.dequantize(raw, quants.GGMLQuantizationType(self.kind))
            except (NotImplementedError, ValueError):
                raise CannotCarry(
                    f"has tensors of {name}, which the package gguf that is installed cannot compute",
                    where=self.blocks.file.path,
                    hint="pip install --upgrade gguf",
                ) from None
        return memoryview(values.astype("<f4", copy=False).tobytes())[offset - first * count * 4 :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


def _quants(where: object) -> Any:
    require("reading quantized tensors", "gguf", where=where)
    from gguf import quants

    return quants


@dataclass(frozen=True, slots=True)
class _Origin:
    """The file that a checkpoint came from: where its metadata stand, how many they are, and how it is aligned."""

    file: File
    start: int
    end: int
    count: int
    version: int
    alignment: int
    order: str


def open_gguf(file: File) -> Checkpoint:
    """Open a GGUF file: metadata and the list of tensors are read, no tensor is."""
    header = Cursor(file)
    header.take(4)
    version = header.number("I")
    if version & 0xFFFF == 0:
        header.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise CannotCarry(f"is a GGUF file of version {version}; 2 and 3 are read", where=file.path)
    tensors, entries = header.number("Q"), header.number("Q")
    if tensors * 24 > file.size or entries * 13 > file.size:
        raise header.bad(f"announces {tensors:,} tensors and {entries:,} entries, more than the file has room for")
    start = header.at
    metadata, alignment, warnings = _metadata(header, entries)
    origin = _Origin(file, start, header.at, entries, version, alignment, header.order)
    found = [_info(header) for _ in range(tensors)]
    data = -(-header.at // alignment) * alignment
    kinds: Counter[str] = Counter()
    ranges: list[tuple[int, int, str]] = []
    root = named([_tensor(file, data, one, origin, kinds, ranges) for one in found], file.path)
    end = _check_places(file, ranges, data)
    if kinds:
        shown = ", ".join(f"{kind} x{count:,}" for kind, count in kinds.most_common())
        they = counted(sum(kinds.values()), "tensor is", "tensors are")
        warnings.append(f"{they} quantized ({shown}), and shown as the float32 values that they stand for")
    if metadata.get("split.count", "1") not in ("0", "1"):
        number = int(metadata.get("split.no", "0")) + 1 if metadata.get("split.no", "0").isdigit() else "one"
        warnings.append(
            f"it is part {number} of {printable(metadata['split.count'], 20)}; the other files have the rest"
        )
    behind = file.size - -(-end // alignment) * alignment
    lost = (f"{behind:,} bytes that follow the last tensor",) if behind > 0 else ()
    return Checkpoint(
        root,
        "gguf",
        file.path,
        file.size,
        metadata=metadata,
        origin=origin,
        warnings=(*warnings, *lost),
        lost_form=lost,
        framework="llama.cpp",
    )


def _metadata(header: Cursor, entries: int) -> tuple[dict[str, str], int, list[str]]:
    """The metadata as text, the alignment, and what a person should know."""
    found: dict[str, str] = {}
    alignment, untold, begin = 32, 0, header.at
    for _ in range(entries):
        key = header.text(header.number("Q"), LONGEST_NAME)
        if key in found:
            raise header.bad(f"has two metadata entries {printable(key, 60)!r}")
        kind = header.number("I")
        value = _value(header, kind, key)
        if header.at - begin > _LARGEST_METADATA:
            raise header.bad(f"has more than {_LARGEST_METADATA:,} bytes of metadata")
        if key == "general.alignment":
            if kind != 4 or not 1 <= value <= 1 << 20 or value & (value - 1):
                raise header.bad(f"states an alignment that is none: {printable(str(value), 40)}")
            alignment = value
        if value is None:
            untold += 1
            found[key] = "(an array too long to be shown)"
        else:
            found[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    long = counted(untold, "array of the metadata is", "arrays of the metadata are")
    return found, alignment, [f"{long} too long to be given as text"] if untold else []


def _value(header: Cursor, kind: int, key: str) -> Any:
    """The value of a metadata entry; None for an array that is too long."""
    if kind == _TEXT:
        return header.text(header.number("Q"), _LONGEST_TEXT)
    if kind in _SCALARS:
        return header.number(_SCALARS[kind])
    if kind != _ARRAY:
        raise header.bad(f"has an entry {printable(key, 60)!r} of the unknown type {kind}")
    inner, count = header.number("I"), header.number("Q")
    if inner == _TEXT:
        header.need(count * 8)
        texts = []
        for _ in range(count):
            text = header.text(header.number("Q"), _LONGEST_TEXT)
            if count <= _MOST_VALUES:
                texts.append(text)
        return texts if count <= _MOST_VALUES else None
    if inner not in _SCALARS:
        raise header.bad(f"has an array {printable(key, 60)!r} of the unknown type {inner}")
    width = struct.calcsize(_SCALARS[inner])
    header.need(count * width)
    if count > _MOST_VALUES:
        header.skip(count * width)
        return None
    return list(struct.unpack(f"{header.order}{count}{_SCALARS[inner]}", header.take(count * width)))


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _info(header: Cursor) -> _Info:
    """What the list says of the next tensor."""
    length = header.number("Q")
    if length > LONGEST_NAME:
        raise header.bad(f"has a name of {length:,} bytes")
    try:
        name = header.take(length).decode()
    except UnicodeDecodeError:
        raise header.bad("has the name of a tensor that is not text") from None
    dimensions = header.number("I")
    if dimensions > 8:
        raise header.bad(f"gives {printable(repr(name), 60)} {dimensions:,} dimensions")
    shape = tuple(header.number("Q") for _ in range(dimensions))[::-1]
    return _Info(name, shape, header.number("I"), header.number("Q"))


def _tensor(
    file: File, data: int, info: _Info, origin: _Origin, kinds: Counter[str], ranges: list[tuple[int, int, str]]
) -> tuple[str, LazyTensor]:
    shown = printable(repr(info.name), 80)
    block = _BLOCKS.get(info.kind)
    dtype = BY_NAME[_PLAIN[info.kind]] if info.kind in _PLAIN else _FLOAT32
    if block is None and info.kind not in _PLAIN:
        raise Malformed(f"{shown} has the type {info.kind}, which this ckptool does not know", where=file.path)
    checked_shape(info.shape, dtype, info.name, file.path)
    if block is None:
        nbytes = prod(info.shape) * dtype.itemsize
    else:
        kinds[block[0]] += 1
        if not info.shape or info.shape[-1] % block[1]:
            raise Malformed(
                f"{shown} of {block[0]} has rows of {info.shape[-1] if info.shape else 1:,} numbers, and blocks have "
                f"{block[1]}",
                where=file.path,
            )
        if origin.order == ">":
            raise CannotCarry(f"{shown} is quantized and big-endian, which is not read", where=file.path)
        nbytes = prod(info.shape) // block[1] * block[2]
    start = data + info.offset
    if info.offset % origin.alignment:
        raise Malformed(
            f"{shown} begins at byte {info.offset:,} of the data, which is not a multiple of {origin.alignment}",
            where=file.path,
        )
    if start + nbytes > file.size:
        raise Malformed(
            f"{shown} reaches beyond the end of the file",
            where=file.path,
            evidence=[f"its {nbytes:,} bytes begin at byte {start:,}, and the file has {file.size:,}"],
            hint="the download or copy did not finish; compare the size with the source",
        )
    ranges.append((start, start + nbytes, info.name))
    raw = FileRange(file, start, nbytes)
    source: Source = raw if block is None else Dequantized(raw, info.kind)
    big = origin.order == ">" and dtype.itemsize > 1
    storage = Storage(source, "cpu", dtype if dtype.storage else None, info.name, None, big)
    return info.name, LazyTensor(storage, dtype, info.shape, contiguous_stride(info.shape))


def _check_places(file: File, ranges: list[tuple[int, int, str]], data: int) -> int:
    """Refuse tensors that share bytes. Returns where the last one ends."""
    end, before = data, ""
    for start, stop, name in sorted(ranges):
        if start < end and stop > start:
            raise Malformed(
                f"two tensors overlap: {printable(repr(before), 60)} and {printable(repr(name), 60)}",
                where=file.path,
                evidence=[f"the one ends at byte {end:,}, the other begins at byte {start:,}"],
            )
        if stop > start:
            end, before = stop, name
    return end


# -- writing


def draft_gguf(ckpt: Checkpoint) -> Draft:
    """Lay out a checkpoint that came from a GGUF file as one: its metadata as they were, blocks as they are."""
    origin = ckpt.origin
    if not isinstance(origin, _Origin):
        raise CannotCarry(
            "cannot become a GGUF file: only one that was read as GGUF has the metadata that llama.cpp needs",
            where=ckpt.where,
            hint="convert_hf_to_gguf.py of llama.cpp makes one from a model of transformers",
        )
    weights = ckpt.state_dict()
    content = around(ckpt, weights)
    infos: list[bytes] = []
    sources: list[Source] = []
    position = 0
    cast = 0
    for key, value in weights.node.entries:
        tensor = value if isinstance(value, LazyTensor) else as_dense(value)
        shown = printable(str(key), 60)
        if tensor is None or not isinstance(key, str):
            content.append(f"the value {shown}, which is not a dense tensor")
            continue
        stored = _stored(tensor, origin)
        if stored is None:
            content.append(f"the tensor {shown} of {tensor.dtype.name}")
            continue
        kind, source = stored
        cast += kind in _PLAIN and not isinstance(source, FileRange)
        raw = key.encode("utf-8", "surrogatepass")
        infos.append(
            struct.pack(f"{origin.order}Q", len(raw))
            + raw
            + struct.pack(f"{origin.order}I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
            + struct.pack(f"{origin.order}IQ", kind, position)
        )
        sources.append(source)
        position += -(-source.length // origin.alignment) * origin.alignment
    head = _MAGIC + struct.pack(f"{origin.order}IQQ", origin.version, len(infos), origin.count)
    listed = b"".join(infos)
    kept = FileRange(origin.file, origin.start, origin.end - origin.start)
    before = len(head) + kept.length + len(listed)
    pieces: list[Piece] = [Buffer(head), kept, Buffer(listed + bytes(-before % origin.alignment))]
    for source in sources:
        pieces.append(source)
        if source.length % origin.alignment:
            pieces.append(Buffer(bytes(-source.length % origin.alignment)))
    form = ["the entry general.file_type stays as it was, though types of tensors changed"] if cast else []
    ties = sum(len(keys) - 1 for keys in weights.ties())
    if ties:
        form.append(counted(ties, "tied key is stored twice", "tied keys are stored twice"))
    written = [piece for piece in pieces if piece.length]
    return Draft(written, tuple(form), tuple(content), "the old metadata, then the tensors, copied as they are")


def _stored(tensor: LazyTensor, origin: _Origin) -> tuple[int, Source] | None:
    """The type that a tensor has in a GGUF file, and its bytes there; None if there is no such type."""
    held = tensor.storage.source
    if isinstance(held, Dequantized) and tensor.fills_storage and tensor.dtype == _FLOAT32:
        _, count, _ = _BLOCKS[held.kind]
        if tensor.shape and tensor.shape[-1] % count == 0:
            return held.kind, held.blocks
    kind = _TYPE_OF.get(tensor.dtype.name)
    if kind is None or len(tensor.shape) > 4:
        return None
    if origin.order == ">":
        if not tensor.storage.big_endian and tensor.dtype.itemsize > 1:
            return None
        return kind, tensor.changed(storage=tensor.storage.changed(big_endian=False)).source()
    return kind, tensor.source()


FORMAT = Format(
    name="gguf",
    aliases=(),
    suffixes=(".gguf",),
    summary="tensors and metadata of llama.cpp; written only from a GGUF file",
    carries="tensors of 8 plain types, blocks of 26 quantized ones as they are; metadata",
    pickles=False,
    sniff=lambda head, file: head.startswith(_MAGIC),
    open=open_gguf,
    draft=draft_gguf,
    loader="other",
    kept_as="gguf",
)
