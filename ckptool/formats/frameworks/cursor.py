"""Small reads of a file, one behind the other, out of larger ones; with an end that none may pass."""

from __future__ import annotations

import struct
from typing import Any

from ...disk.files import File, Window
from ...errors import Malformed, printable

#: Bytes that are read at once.
_AHEAD = 1 << 16


class Cursor:
    """A place in a file that moves on as numbers, texts and bytes are read from it.

    Args:
        file: the file.
        start, end: where it may read.
        what: what is being read, for messages: "the header", "the graph".
        order: "<" or ">".
        held: what is read instead, from its beginning: bytes that were inflated, of FILE for messages alone.
    """

    def __init__(
        self,
        file: File | Window,
        start: int = 0,
        end: int | None = None,
        *,
        what: str = "the header",
        order: str = "<",
        held: bytes | None = None,
    ) -> None:
        self.file = file
        self.at = start
        self.end = end if end is not None else file.size if held is None else len(held)
        self.what = what
        self.order = order
        self._data = held or b""
        self._begin = start

    @property
    def left(self) -> int:
        """Bytes up to the end."""
        return self.end - self.at

    def need(self, length: int) -> None:
        """Refuse what reaches beyond the end."""
        if length < 0 or length > self.left:
            raise Malformed(
                f"{self.what} is cut short, or states wrong lengths",
                where=self.file.path,
                evidence=[f"{length:,} bytes are needed at byte {self.at:,}, and {self.left:,} are there"],
                hint="compare the size with the source; copy or download it again",
            )

    def take(self, length: int) -> bytes:
        """The next LENGTH bytes."""
        self.need(length)
        first = self.at - self._begin
        if first < 0 or first + length > len(self._data):
            self._data = self.file.read(self.at, max(length, min(_AHEAD, self.left)))
            self._begin, first = self.at, 0
        self.at += length
        return self._data[first : first + length]

    def skip(self, length: int) -> int:
        """Pass over LENGTH bytes. Returns where they begin."""
        self.need(length)
        start = self.at
        self.at += length
        return start

    def number(self, code: str) -> Any:
        """The next number, of a type of the module struct."""
        layout = struct.Struct(self.order + code)
        return layout.unpack(self.take(layout.size))[0]

    def text(self, length: int, most: int) -> str:
        """The next LENGTH bytes as text; what is no UTF-8 in it is replaced."""
        if length > most:
            raise self.bad(f"has a text of {length:,} bytes, where {most:,} are the most")
        return self.take(length).decode("utf-8", "replace")

    def varint(self) -> int:
        """The next number in groups of seven bits, as protobuf and LevelDB write it, below 2^64."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise self.bad("has a number of more than ten bytes")
        return value & 0xFFFFFFFFFFFFFFFF

    def bad(self, what: str) -> Malformed:
        """An error at this place."""
        return Malformed(f"{self.what} {printable(what)}", where=self.file.path, evidence=[f"at byte {self.at:,}"])
