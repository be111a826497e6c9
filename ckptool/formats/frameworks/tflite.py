"""tflite: the weights of a TensorFlow Lite model. The graph is left behind. Read only.

A model is a FlatBuffer: tables with an offset to a list of the offsets of their fields, all within the file. Numbers of
fields and types are those of `schema.fbs`. The values of a tensor stand in a buffer, in the table or, in large models,
behind it. Quantized tensors are integers; scales and zero points stand beside them as `NAME/scale`, `NAME/zero_point`.
What a weight is follows from the operator that takes it: the filter of a CONV_2D is OHWI, of a DEPTHWISE_CONV_2D IHWO.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ...checkpoint import Checkpoint, Role
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
#: Number of a built-in operator -> its name, and place among its inputs -> (part, axes).
_GATES = dict.fromkeys((1, 2, 3, 4), ("kernel", "OI")) | dict.fromkeys((5, 6, 7, 8), ("recurrent_kernel", "OI"))
_GATES |= dict.fromkeys((12, 13, 14, 15), ("bias", ""))
_OPERATORS: dict[int, tuple[str, dict[int, tuple[str, str]]]] = {
    3: ("CONV_2D", {1: ("kernel", "OHWI"), 2: ("bias", "")}),
    4: ("DEPTHWISE_CONV_2D", {1: ("depthwise_kernel", "IHWO"), 2: ("bias", "")}),
    9: ("FULLY_CONNECTED", {1: ("kernel", "OI"), 2: ("bias", "")}),
    44: ("UNIDIRECTIONAL_SEQUENCE_LSTM", _GATES),
    16: ("LSTM", _GATES),
    36: ("GATHER", {0: ("embeddings", "VO")}),
    7: ("EMBEDDING_LOOKUP", {1: ("embeddings", "VO")}),
    54: ("PRELU", {1: ("alpha", "")}),
    67: ("TRANSPOSE_CONV", {1: ("kernel", "OHWI"), 3: ("bias", "")}),
    132: ("CONV_3D", {1: ("kernel", "DHWIO"), 2: ("bias", "")}),
    133: ("CONV_3D_TRANSPOSE", {1: ("kernel", "DHWOI"), 3: ("bias", "")}),
}
_DEQUANTIZE = 6


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
    roles: dict[str, Role] = {}
    codes = [max(one.scalar(0, "b"), one.scalar(3, "i")) for one in model.tables(1)]
    for number, graph in enumerate(graphs):
        prefix = f"{graph.text(4) or number}/" if len(graphs) > 1 else ""
        taken = _taken(graph, codes)
        operators += graph.vector(3, 4)[1]
        for index, tensor in enumerate(graph.tables(0)):
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
            role = taken.get(index)
            if (
                role is not None
                and len(shape) >= len(role.axes)
                and not (role.part == "embeddings" and len(shape) != 2)
            ):
                roles[name] = role
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
        framework="tflite",
        roles=roles,
    )


def _taken(graph: _Table, codes: Sequence[int]) -> dict[int, Role]:
    """Number of a tensor -> what the operator says that takes it, also behind the DEQUANTIZE of halved weights."""
    found: dict[int, Role] = {}
    behind: dict[int, int] = {}
    for operator in graph.tables(3):
        number = operator.scalar(0, "I")
        code = codes[number] if number < len(codes) else -1
        inputs = operator.numbers(1, "i")
        if code == _DEQUANTIZE:
            behind.update(zip(operator.numbers(2, "i"), inputs, strict=False))
        layer, places = _OPERATORS.get(code, ("", {}))
        for place, (part, axes) in places.items():
            if place < len(inputs):
                found.setdefault(inputs[place], Role(layer, part, axes, "operator"))
    for output, stored in behind.items():
        if output in found:
            found.setdefault(stored, found[output])
    return found


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
