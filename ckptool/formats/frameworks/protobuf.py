"""The wire format of protobuf, of which ONNX and TensorFlow make their files: fields with a number and a type.

    a varint (number << 3 | type), then: type 0 a varint, 1 eight bytes, 2 a length and as many bytes, 5 four bytes

See the encoding guide of protobuf. Messages are not parsed whole: a field of bytes is a place in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...disk.files import Buffer, FileRange, Source
from ...dtypes import DType
from .cursor import Cursor

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_LONGEST_TEXT = 1 << 20


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: which one.
        kind: type on the wire.
        value: of a varint its value; of bytes their length.
        start: where the bytes begin.
    """

    number: int
    kind: int
    value: int
    start: int


def fields(message: Cursor) -> Iterator[Field]:
    """The fields of a message, from a cursor that ends where it does."""
    while message.left:
        tag = message.varint()
        number, kind = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise message.bad("has a field without a number")
        if kind == VARINT:
            yield Field(number, kind, message.varint(), message.at)
        elif kind == BYTES:
            length = message.varint()
            yield Field(number, kind, length, message.skip(length))
        elif kind in (EIGHT, FOUR):
            length = 8 if kind == EIGHT else 4
            yield Field(number, kind, length, message.skip(length))
        else:
            raise message.bad(f"has a field of type {kind}, which protobuf does not use")


def inside(message: Cursor, field: Field) -> Cursor:
    """A cursor over the bytes of a field."""
    return Cursor(message.file, field.start, field.start + field.value, what=message.what)


def text_of(message: Cursor, field: Field) -> str:
    """The bytes of a field as text."""
    return inside(message, field).text(field.value, _LONGEST_TEXT)


def signed(value: int) -> int:
    """A varint as the signed number of 64 bits that it stands for."""
    return value - (1 << 64) if value >> 63 else value


def numbers(message: Cursor, found: list[Field]) -> list[int]:
    """The values of a repeated field of varints, packed or one by one, signed."""
    values: list[int] = []
    for field in found:
        if field.kind == VARINT:
            values.append(signed(field.value))
        elif field.kind == BYTES:
            packed = inside(message, field)
            while packed.left:
                values.append(signed(packed.varint()))
    return values


def floats(message: Cursor, found: list[Field]) -> Source:
    """The bytes of a repeated field of floats or doubles: where they stand, if they are packed."""
    if len(found) == 1 and found[0].kind == BYTES:
        place = message.file.range(found[0].start, found[0].value)
        assert isinstance(place, FileRange)
        return place
    return Buffer(b"".join(message.file.read(field.start, field.value) for field in found))


def stored_as(values: list[int], dtype: DType) -> Buffer:
    """Numbers as the bytes of DTYPE, of which the lowest bits count."""
    codes = {1: "B", 2: "H", 4: "I", 8: "Q"}
    mask = (1 << 8 * dtype.itemsize) - 1
    whole: list[Any] = [value & mask for value in values]
    return Buffer(struct.pack(f"<{len(whole)}{codes[dtype.itemsize]}", *whole))
