"""flax: trees of arrays in msgpack, as `flax.serialization` writes them. Read only, by a small reader of our own.

Beside what msgpack has there are three extensions, whose bodies are msgpack as well:

    1    an array: [shape, name of its type, bytes]           (`bfloat16` and float8 by their names in ml_dtypes)
    2    a complex number: [real, imaginary]
    3    a scalar of numpy, as an array without dimensions

An array of more than 2^30 bytes is a map {"__msgpack_chunked_array__": true, "shape": …, "chunks": {"0": array, …}}.
Lists are maps with the keys "0", "1" …. The values stay in the file.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.composing import Joined
from ...disk.files import Buffer, File, Source
from ...dtypes import BY_NAME
from ...errors import Malformed, printable
from ...tensor import LazyTensor
from ...tree import Dict, List
from ...weights import is_training_state
from ..base import Format
from .cursor import Cursor
from .found import LONGEST_NAME, named, tensor_at, tensor_over, wrong_size

_CHUNKED = "__msgpack_chunked_array__"
_DEEPEST = 100
_LONGEST_TEXT = 1 << 26
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
#: First byte -> layout of the number that follows.
_NUMBERS = {
    0xCA: "f",
    0xCB: "d",
    0xCC: "B",
    0xCD: "H",
    0xCE: "I",
    0xCF: "Q",
    0xD0: "b",
    0xD1: "h",
    0xD2: "i",
    0xD3: "q",
}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class _Reader:
    """Reads msgpack, leaving the bytes of arrays where they are."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.at = Cursor(file, what="its msgpack", order=">")
        self.lost: list[str] = []

    def value(self, path: str, depth: int = 0) -> Any:
        """The next value: plain data, a tensor, or a dict of entries for a map."""
        at = self.at
        if depth > _DEEPEST:
            raise at.bad(f"is nested more than {_DEEPEST} deep")
        first = at.take(1)[0]
        if first <= 0x7F:
            return first
        if first >= 0xE0:
            return first - 256
        if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
            count = first & 15 if first <= 0x8F else at.number("H" if first == 0xDE else "I")
            return self._map(count, path, depth)
        if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
            count = first & 15 if first <= 0x9F else at.number("H" if first == 0xDC else "I")
            at.need(count)
            return List([self.value(f"{path}/{n}", depth + 1) for n in range(count)])
        if 0xA0 <= first <= 0xBF or 0xD9 <= first <= 0xDB:
            length = first & 31 if first <= 0xBF else at.number("BHI"[first - 0xD9])
            return at.text(length, _LONGEST_TEXT)
        if 0xC4 <= first <= 0xC6:
            length = at.number("BHI"[first - 0xC4])
            at.need(length)
            if length > _LONGEST_TEXT:
                raise at.bad(f"has {length:,} bytes that are not an array")
            return at.take(length)
        if first in _NUMBERS:
            return at.number(_NUMBERS[first])
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if first in _FIXED_EXTENSIONS or 0xC7 <= first <= 0xC9:
            length = _FIXED_EXTENSIONS.get(first) or at.number("BHI"[first - 0xC7])
            return self._extension(at.number("b"), length, path, depth)
        raise at.bad(f"has the byte {first:02x}, which msgpack never uses")

    def _map(self, count: int, path: str, depth: int) -> Any:
        at = self.at
        at.need(2 * count)
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.value(path, depth + 1)
            if isinstance(key, int) and not isinstance(key, bool):
                key = str(key)
            if not isinstance(key, str) or len(key) > LONGEST_NAME:
                raise at.bad(f"has a key that is not text, below {printable(path, 60) or 'the root'}")
            if key in found:
                raise at.bad(f"has two entries {printable(f'{path}/{key}'.lstrip('/'), 80)!r}")
            found[key] = self.value(f"{path}/{key}" if path else key, depth + 1)
        return self._joined(found, path) if _CHUNKED in found else found

    def _extension(self, kind: int, length: int, path: str, depth: int) -> Any:
        at = self.at
        at.need(length)
        end = at.at + length
        if kind not in (_ARRAY, _COMPLEX, _SCALAR):
            self.lost.append(f"{printable(path, 80)}, an extension {kind} of msgpack")
            at.skip(length)
            return None
        if kind == _COMPLEX:
            pair = self.value(path, depth + 1)
            parts = pair.items if isinstance(pair, List) else []
            if len(parts) != 2 or not all(type(part) in (int, float) for part in parts):
                raise at.bad(f"has a complex number that is none at {printable(path, 80)}")
            raw = struct.pack("<2d", *parts)
            found: Any = tensor_over(Buffer(raw), BY_NAME["complex128"], (), path)
        else:
            found = self._array(path, depth)
        if at.at != end:
            raise at.bad(f"has an array {printable(repr(path), 80)} whose length is wrong")
        return found

    def _array(self, path: str, depth: int) -> LazyTensor | None:
        """[shape, type, bytes]"""
        at = self.at
        shown = printable(repr(path), 80)
        if at.take(1)[0] != 0x93:
            raise at.bad(f"has an array {shown} that is none")
        shape, kind = self.value(path, depth + 1), self.value(path, depth + 1)
        first = at.take(1)[0]
        if not isinstance(shape, List) or not isinstance(kind, str) or not 0xC4 <= first <= 0xC6:
            raise at.bad(f"has an array {shown} that is none")
        length = at.number("BHI"[first - 0xC4])
        start = at.skip(length)
        dtype = BY_NAME.get({"bool_": "bool"}.get(kind, kind))
        if dtype is None or dtype.numpy is None:
            self.lost.append(f"the array {printable(path, 80)} of {printable(kind, 40)}")
            return None
        return tensor_at(self.file, start, dtype, shape.items, path, length=length)

    def _joined(self, found: dict[str, Any], path: str) -> LazyTensor:
        """An array that is divided into chunks."""
        shape, chunks = found.get("shape"), found.get("chunks")
        if not isinstance(shape, dict) or not isinstance(chunks, dict) or not chunks:
            raise self.at.bad(f"has a divided array {printable(repr(path), 80)} that is none")
        sizes: list[Any] = [shape.get(str(n)) for n in range(len(shape))]
        parts = [part for n in range(len(chunks)) if isinstance(part := chunks.get(str(n)), LazyTensor)]
        if len(parts) != len(chunks) or any(part.dtype != parts[0].dtype for part in parts):
            raise self.at.bad(f"has a divided array {printable(repr(path), 80)} that is none")
        first = parts[0]
        source: Source = Joined(tuple(part.source() for part in parts))
        if any(type(n) is not int or n < 0 for n in sizes) or prod(sizes) * first.dtype.itemsize != source.length:
            raise wrong_size(path, first.dtype.name, sizes, -1, source.length, self.file.path)
        return tensor_over(source, first.dtype, sizes, path)


def flattened(tree: Any, where: object) -> Dict:
    """A tree of maps as state dicts: one at the root, or one for each entry of it where training state is among them.

    Below that, keys are joined by slashes, as in the names of scopes.
    """
    if not isinstance(tree, dict):
        raise Malformed("holds no tree of arrays", where=where)
    apart = any(is_training_state(key) or not isinstance(value, dict | LazyTensor) for key, value in tree.items())
    if not apart:
        return named(_leaves(tree), where)
    return Dict([(key, _entry(key, value, where)) for key, value in tree.items()], ordered=True)


def _entry(key: str, value: Any, where: object) -> Any:
    """A tree beside training state as a state dict; an optimizer of old Flax as two, `target` being the weights."""
    if not isinstance(value, dict):
        return value
    if is_training_state(key) and {"target"} <= value.keys() <= {"target", "state"}:
        return Dict([(name, _entry(name, below, where)) for name, below in value.items()], ordered=True)
    return named(_leaves(value), where)


def _leaves(tree: dict[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    pending = [("", tree)]
    while pending:
        path, one = pending.pop()
        if not isinstance(one, dict):
            found.append((path, one))
            continue
        if not one and path:
            found.append((path, Dict([])))
        pending.extend((f"{path}/{key}" if path else key, value) for key, value in reversed(one.items()))
    return found


def open_flax(file: File) -> Checkpoint:
    """Open a tree of arrays: its keys and the places of its arrays are read, no array is."""
    reader = _Reader(file)
    tree = reader.value("")
    lost = list(reader.lost)
    behind = file.size - reader.at.at
    if behind:
        lost.append(f"{behind:,} bytes that follow the end of its msgpack")
    return Checkpoint(
        flattened(tree, file.path),
        "flax",
        file.path,
        file.size,
        warnings=tuple(lost),
        lost_content=tuple(lost),
        framework="flax",
    )


def _is_msgpack(head: bytes, file: object) -> bool:
    """Whether HEAD begins with a map of msgpack whose first key is a text. A pickle would begin with an empty map."""
    if not head or not (0x81 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF)):
        return False
    at = {0xDE: 3, 0xDF: 5}.get(head[0], 1)
    first = head[at] if len(head) > at else 0
    if 0xA1 <= first <= 0xBF:
        start, length = at + 1, first & 31
    elif first == 0xD9 and len(head) > at + 1:
        start, length = at + 2, head[at + 1]
    else:
        return False
    key = head[start : start + length]
    return len(key) == length and key.decode("utf-8", "replace").isprintable() and b"\xef\xbf\xbd" not in key


FORMAT = Format(
    name="flax",
    aliases=("msgpack",),
    suffixes=(),
    summary="trees of arrays in msgpack, from flax.serialization",
    carries="tensors under the paths of the tree, numbers and texts beside them",
    pickles=False,
    sniff=_is_msgpack,
    open=open_flax,
    loader="other",
)
