"""tflite: the weights of a TensorFlow Lite model. The graph is not read. Read only.

A model is a FlatBuffer: tables with an offset to a list of the offsets of their fields, all within the file. Numbers of
fields and types are those of `schema.fbs`. The values of a tensor stand in a buffer, in the table or, in large models,
behind it. Quantized tensors are integers; scales and zero points stand beside them as `NAME/scale`, `NAME/zero_point`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import File
from ...dtypes import BY_NAME
from ...errors import Malformed, counted, printable
from ...tensor import LazyTensor
from ..base import Format
from .found import LONGEST_NAME, checked_shape, named, tensor_at

_TYPES = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    8: "complex64",
    9: "int8",
    10: "float64",
    11: "complex128",
    12: "uint64",
    15: "uint32",
    16: "uint16",
    18: "bfloat16",
}
_WORDS = {5: "texts", 13: "resources", 14: "variants", 17: "int4"}
_MOST = 1 << 22


class _Table:
    """A table of a FlatBuffer. Every place is checked against the size of the file."""

    def __init__(self, file: File, at: int) -> None:
        self.file = file
        self.at = at
        back = self.scalar_at(at, "i")
        listed = at - back
        size = self.scalar_at(listed, "H")
        if size < 4 or size % 2:
            raise _bad(file, listed, "a list of fields that is none")
        self._fields = struct.unpack(f"<{size // 2 - 2}H", _bytes(file, listed + 4, size - 4))

    def scalar_at(self, at: int, code: str) -> Any:
        """A number at a place of the file."""
        return struct.unpack(f"<{code}", _bytes(self.file, at, struct.calcsize(code)))[0]

    def place(self, number: int) -> int:
        """Where a field stands, or 0."""
        offset = self._fields[number] if number < len(self._fields) else 0
        return self.at + offset if offset else 0

    def scalar(self, number: int, code: str) -> Any:
        """The number in a field, 0 where it is left out."""
        place = self.place(number)
        return self.scalar_at(place, code) if place else 0

    def vector(self, number: int, width: int) -> tuple[int, int]:
        """Where the elements of a list begin, and how many there are."""
        place = self.place(number)
        if not place:
            return 0, 0
        start = place + self.scalar_at(place, "I")
        count = self.scalar_at(start, "I")
        if count * width > self.file.size - start - 4:
            raise _bad(self.file, start, f"a list of {count:,} elements")
        return start + 4, count

    def numbers(self, number: int, code: str) -> Sequence[Any]:
        """A list of numbers."""
        width = struct.calcsize(code)
        start, count = self.vector(number, width)
        return struct.unpack(f"<{count}{code}", _bytes(self.file, start, count * width)) if count else ()

    def tables(self, number: int) -> list[_Table]:
        """A list of tables."""
        start, count = self.vector(number, 4)
        if count > _MOST:
            raise _bad(self.file, start, f"a list of {count:,} tables")
        offsets = struct.unpack(f"<{count}I", _bytes(self.file, start, 4 * count)) if count else ()
        return [_Table(self.file, start + 4 * n + offset) for n, offset in enumerate(offsets)]

    def table(self, number: int) -> _Table | None:
        """A table, or None."""
        place = self.place(number)
        return _Table(self.file, place + self.scalar_at(place, "I")) if place else None

    def text(self, number: int) -> str:
        """A text."""
        start, count = self.vector(number, 1)
        if count > LONGEST_NAME:
            raise _bad(self.file, start, f"a name of {count:,} bytes")
        return _bytes(self.file, start, count).decode("utf-8", "replace") if count else ""


def _bytes(file: File, at: int, length: int) -> bytes:
    if at < 0 or at + length > file.size:
        raise _bad(file, at, f"{length:,} bytes")
    return file.read(at, length)


def _bad(file: File, at: int, what: str) -> Malformed:
    return Malformed(
        "is cut short, or states wrong places",
        where=file.path,
        evidence=[f"at byte {at:,} it should have {what}, and the file has {file.size:,} bytes"],
        hint="copy or download it again",
    )


def open_tflite(file: File) -> Checkpoint:
    """Open a model: names, shapes and places of its constant tensors are read, no value is."""
    root = struct.unpack("<I", _bytes(file, 0, 4))[0]
    model = _Table(file, root)
    buffers = model.tables(4)
    graphs = model.tables(2)
    entries: list[tuple[str, LazyTensor]] = []
    lost: list[str] = []
    operators = 0
    seen: dict[str, int] = {}
    for number, graph in enumerate(graphs):
        prefix = f"{graph.text(4) or number}/" if len(graphs) > 1 else ""
        operators += graph.vector(3, 4)[1]
        for tensor in graph.tables(0):
            place, length = _values(file, buffers, tensor.scalar(2, "I"))
            if not length:
                continue  # computed when the model runs
            name = prefix + tensor.text(3)
            seen[name] = seen.get(name, 0) + 1
            name = name if seen[name] == 1 else f"{name}#{seen[name]}"
            kind = tensor.scalar(1, "b")
            dtype = BY_NAME.get(_TYPES.get(kind, ""))
            if dtype is None or tensor.table(6) is not None:
                what = "sparse values" if dtype else _WORDS.get(kind, f"type {kind}")
                lost.append(f"the tensor {printable(name, 80)} of {what}")
                continue
            shape = tensor.numbers(0, "i")
            checked_shape(shape, dtype, name, file.path)
            entries.append((name, tensor_at(file, place, dtype, shape, name, length=length)))
            entries += _quantization(file, tensor, name)
    return Checkpoint(
        named(entries, file.path),
        "tflite",
        file.path,
        file.size,
        metadata={"tflite.description": text} if (text := model.text(3)) else {},
        warnings=tuple(lost),
        lost_content=tuple(lost),
        lost_form=(f"left out: the graph of {counted(operators, 'operator')}",),
        framework="tensorflow",
    )


def _values(file: File, buffers: list[_Table], number: int) -> tuple[int, int]:
    """Where the bytes of a buffer stand, and how many there are."""
    if number >= len(buffers):
        raise _bad(file, number, f"a buffer {number:,} of {len(buffers):,}")
    buffer = buffers[number]
    offset, size = buffer.scalar(1, "Q"), buffer.scalar(2, "Q")
    return (offset, size) if offset > 1 else buffer.vector(0, 1)


def _quantization(file: File, tensor: _Table, name: str) -> list[tuple[str, LazyTensor]]:
    """Scales and zero points, for tensors that have any."""
    table = tensor.table(4)
    found: list[tuple[str, LazyTensor]] = []
    for word, number, kind, width in (("scale", 2, "float32", 4), ("zero_point", 3, "int64", 8)):
        start, count = table.vector(number, width) if table else (0, 0)
        if count:
            key = f"{name}/{word}"
            found.append((key, tensor_at(file, start, BY_NAME[kind], (count,), key)))
    return found


FORMAT = Format(
    name="tflite",
    aliases=("lite",),
    suffixes=(),
    summary="a model of TensorFlow Lite",
    carries="constant tensors under their names, quantized ones with scales and zero points; the graph is not read",
    pickles=False,
    sniff=lambda head, file: head[4:8] == b"TFL3",
    open=open_tflite,
    loader="other",
)
