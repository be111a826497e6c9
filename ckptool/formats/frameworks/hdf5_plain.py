"""Reads what an HDF5 file says of its datasets, if it is one as the library writes it unless it is told otherwise.

    superblock, version 0           where the root group is, and where the file ends
    object header, version 1        the messages of a group or a dataset, in blocks
    symbol table                    what is in a group: a B-tree of nodes `SNOD`, and a heap `HEAP` with the names
    B-tree of type 1                the chunks of a dataset
    heap `GCOL`                     texts of any length

Files of Keras 1 to 3 are such files. The library takes a process, numpy and itself to read one, which is 0.2 s before
the first byte, and this needs none of them. It decides nothing that is in doubt: where a file has anything else, says
anything twice, or could be read in two ways, the answer is None, and the library is asked (see `hdf5_child`), which
says what is wrong. So a file that is made to show one thing here and another one there is the library's.

Source: HDF5 File Format Specification, version 3.0. Numbers are little-endian, and addresses count from the superblock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from ...disk.files import File

#: Bytes of an attribute or a text that are given, and the number of its elements.
_LONGEST_TEXT, _MOST_ELEMENTS = 64 << 20, 1 << 16
_MOST_OBJECTS = 1_000_000
_MOST_CHUNKS = 2_000_000
_NOWHERE = (1 << 64) - 1
#: Messages that say nothing of what is in a file: none at all, a comment, and when it was changed.
_SILENT = frozenset((0x00, 0x0D, 0x0E, 0x12))
_SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS, _ATTRIBUTE, _MORE, _TABLE = 1, 3, 4, 5, 8, 11, 12, 16, 17


class _NotPlain(Exception):
    """It is the library that has to read this file."""


class _Type(NamedTuple):
    """A type of elements.

    Attributes:
        name: as numpy writes it; "" for text.
        code: as `struct` writes it; "" if that has none.
        size: bytes of an element; of a text, of what stands in its place.
    """

    name: str
    code: str
    size: int


def plain(file: File, offset: int, size: int) -> dict[str, Any] | None:
    """What `hdf5_child` answers about a part of FILE, if that can be told without the library."""
    try:
        return _Reader(file, offset, size).all_of()
    except (_NotPlain, struct.error, LookupError, OverflowError, ValueError):
        return None


def _need(true: bool) -> None:
    if not true:
        raise _NotPlain


def _known_types() -> dict[bytes, _Type]:
    """The types that are read, by the messages that describe them, without the zeros at their ends."""
    known = {}
    for big in (0, 1):
        order = "<>"[big]
        for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q")):
            for signed in (0, 1):
                if big and size == 1:
                    continue
                message = struct.pack("<BBHIHH", 0x10, big | signed << 3, 0, size, 0, 8 * size)
                name = f"{'|' if size == 1 else order}{'ui'[signed]}{size}"
                known[message] = _Type(name, order + (code if signed else code.upper()), size)
        for size, code, exponent, mantissa, bias in ((2, "e", 5, 10, 15), (4, "f", 8, 23, 127), (8, "d", 11, 52, 1023)):
            message = struct.pack("<BBBBIHH", 0x11, big | 0x20, 8 * size - 1, 0, size, 0, 8 * size)
            message += struct.pack("<BBBBI", mantissa, exponent, 0, mantissa, bias)
            known[message] = _Type(f"{order}f{size}", order + code, size)
    byte = struct.pack("<BBHIHH", 0x10, 8, 0, 1, 0, 8)
    known[struct.pack("<BBHI", 0x18, 2, 0, 1) + byte + b"FALSE\0\0\0TRUE\0\0\0\0\0\1"] = _Type("|b1", "?", 1)
    for charset in (0, 1):
        unsigned = struct.pack("<BBHIHH", 0x10, 0, 0, 1, 0, 8)
        known[struct.pack("<BBBBI", 0x19, 1, charset, 0, 16) + unsigned] = _Type("", "", 16)
    return {message.rstrip(b"\0"): kind for message, kind in known.items()}


_TYPES = _known_types()


class _Reader:
    """Walks through a file."""

    def __init__(self, file: File, offset: int, size: int) -> None:
        self.file, self.offset, self.end = file, offset, size
        self.left = 2 * size + (1 << 16)  # bytes that may be read: what stands twice in a tree is not read for ever
        self.seen: set[int] = set()
        self.chunks = 0
        self.heaps: dict[int, dict[int, bytes]] = {}
        self.most_names = self.most_children = 0

    def all_of(self) -> dict[str, Any]:
        """Everything that is in the file."""
        fields = struct.unpack("<8s8BHHI4Q2Q2I2Q", self.at(0, 96))
        _need(fields[:9] == (b"\x89HDF\r\n\x1a\n", 0, 0, 0, 0, 0, 8, 8, 0) and fields[11] == 0)
        base, free, end, driver, name, root, kept, _, tree, heap = fields[12:]
        _need((base, free, driver, name, kept) == (0, _NOWHERE, _NOWHERE, 0, 1) and end <= self.end)
        self.end, self.most_names, self.most_children = end, 2 * fields[9], 2 * fields[10]
        datasets: list[dict[str, Any]] = []
        messages = self.messages(root)
        groups = {"": self.attributes(messages)}
        pending: list[tuple[str, dict[int, list[bytes]], tuple[int, int] | None]] = [("", messages, (tree, heap))]
        count = 0
        while pending:
            path, messages, expected = pending.pop()
            table = struct.unpack("<QQ", _only(messages, _TABLE))
            _need(expected in (None, table) and set(messages) <= {_TABLE, _ATTRIBUTE})
            for name, header, inside in self.names(*table):
                count += 1
                _need(count <= _MOST_OBJECTS)
                here = f"{path}/{name}" if path else name
                messages = self.messages(header)
                if _TABLE in messages:
                    groups[here] = self.attributes(messages)
                    pending.append((here, messages, inside))
                else:
                    _need(inside is None)
                    datasets.append({"path": here, "attributes": self.attributes(messages)} | self.dataset(messages))
        return {"datasets": datasets, "groups": groups, "outside": [], "soft": []}

    def at(self, address: int, length: int) -> bytes:
        """The LENGTH bytes at an address."""
        self.left -= length
        _need(self.left >= 0 and address + length <= self.end)
        return self.file.read(self.offset + address, length)

    def once(self, address: int) -> int:
        """An address that nothing else has been read from."""
        _need(address not in self.seen)
        self.seen.add(address)
        return address

    # -- objects

    def messages(self, address: int) -> dict[int, list[bytes]]:
        """The messages of an object, by their kinds."""
        version, zero, count, names, length = struct.unpack("<BBHII", self.at(self.once(address), 12))
        _need((version, zero, names) == (1, 0, 1))
        found: dict[int, list[bytes]] = {}
        blocks = [(address + 16, length)]
        for start, size in blocks:
            block, at = self.at(self.once(start), size), 0
            while at < size:
                kind, length, flags = struct.unpack_from("<HHB", block, at)
                body = block[at + 8 : at + 8 + length]
                _need(len(body) == length and not length % 8 and flags in (0, 1))
                at += 8 + length
                count -= 1
                if kind == _MORE:
                    blocks.append(struct.unpack("<QQ", body))
                elif kind not in _SILENT:
                    found.setdefault(kind, []).append(body)
        _need(count == 0)
        return found

    def names(self, tree: int, heap: int) -> Iterator[tuple[str, int, tuple[int, int] | None]]:
        """What is in a group: the name of each object, where its header is, and its symbol table as noted here."""
        signature, length, free, start = struct.unpack("<8sQQQ", self.at(self.once(heap), 32))
        texts = self.at(self.once(start), length)
        _need(signature == b"HEAP\0\0\0\0" and _is_chain(texts, free))
        before = b""
        for low, node, high in self.leaves(tree, 0, "<Q", self.most_children, {}):
            signature, count = struct.unpack("<6sH", self.at(self.once(node), 8))
            _need(signature == b"SNOD\1\0" and count <= self.most_names)
            rows = self.at(node + 8, 40 * self.most_names)[: 40 * count]
            least, most = (texts[place : texts.index(b"\0", place)] for (place,) in (low, high))
            for place, header, kept, _, *inside in struct.iter_unpack("<QQIIQQ", rows):
                text = texts[place : texts.index(b"\0", place)]
                _need(max(before, least) < text <= most and b"/" not in text and text != b"." and kept in (0, 1))
                before = text
                yield text.decode(), header, (inside[0], inside[1]) if kept else None

    def leaves(
        self, address: int, kind: int, key: str, most: int, beside: dict[int, tuple[int, int]], level: int | None = None
    ) -> Iterator[tuple[Any, int, Any]]:
        """What the lowest nodes of a B-tree point to: the key of each, where it is, and the key behind it.

        BESIDE: of each level, the node that was read last, and the one that it says is next.
        """
        signature, type_, depth, used, left, right = struct.unpack("<4sBBHQQ", self.at(self.once(address), 24))
        _need(
            signature == b"TREE"
            and type_ == kind
            and used <= most
            and depth == (min(depth, 9) if level is None else level)
        )
        _need((left, address) == beside.get(depth, (_NOWHERE, address)))
        beside[depth] = address, right
        width = struct.calcsize(key)
        data = self.at(address + 24, most * (width + 8) + width)
        for at in range(0, used * (width + 8), width + 8):
            (child,) = struct.unpack_from("<Q", data, at + width)
            if depth:
                yield from self.leaves(child, kind, key, most, beside, depth - 1)
            else:
                yield struct.unpack_from(key, data, at), child, struct.unpack_from(key, data, at + width + 8)
        if level is None:
            _need(all(following == _NOWHERE for _, following in beside.values()))

    def attributes(self, messages: dict[int, list[bytes]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for message in messages.get(_ATTRIBUTE, ()):
            version, zero, *lengths = struct.unpack_from("<BBHHH", message)
            _need((version, zero) == (1, 0))
            parts, at = [], 8
            for length in lengths:
                parts.append(message[at : at + length])
                at += -(-length // 8) * 8
            name = parts[0][:-1].decode()
            _need(parts[0].endswith(b"\0") and "\0" not in name and name not in found)
            shape = _shape(parts[2])
            _need(len(shape) < 2 and prod(shape) <= _MOST_ELEMENTS)
            values = self.values(parts[1], message[at:], prod(shape))
            found[name] = [*map(_as_json, values)] if shape else _as_json(values[0])
        return found

    def values(self, type_: bytes, data: bytes, count: int) -> list[Any]:
        """Elements, with texts as they are."""
        if type_[:1] == b"\x13":  # texts of a fixed length
            _, how, _, _, size = struct.unpack_from("<BBBBI", type_)
            _need(how & 0x0F < 2 and size > 0 and not any(type_[8:]) and not any(type_[2:4]) and how < 0x20)
            _need(count * size <= len(data))
            texts = [data[at : at + size].rstrip(b"\0") for at in range(0, count * size, size)]
            _need(not any(b"\0" in text for text in texts))
            return [text.decode() for text in texts]
        known = _type(type_)
        if known.name:
            _need(known.name != "|b1" or set(data[:count]) <= {0, 1})
            return list(
                struct.unpack_from(
                    f"{known.code[0]}{count}{known.code[-1]}" if known.code != "?" else f"{count}?", data
                )
            )
        return [self.text(*struct.unpack_from("<IQI", data, at)) for at in range(0, 16 * count, 16)]

    def text(self, length: int, heap: int, number: int) -> str:
        """A text of any length, which stands in a heap."""
        if heap not in self.heaps:
            signature, size = struct.unpack("<8sQ", self.at(self.once(heap), 16))
            _need(signature == b"GCOL\1\0\0\0")
            self.heaps[heap] = _in_heap(self.at(heap + 16, size - 16))
        text = self.heaps[heap][number]
        _need(len(text) == length <= _LONGEST_TEXT and b"\0" not in text)
        return text.decode()

    # -- datasets

    def dataset(self, messages: dict[int, list[bytes]]) -> dict[str, Any]:
        _need(set(messages) <= {_SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS, _ATTRIBUTE})
        shape, type_, layout = _shape(_only(messages, _SPACE)), _only(messages, _TYPE), _only(messages, _LAYOUT)
        known = _type(type_)
        nbytes = prod(shape) * known.size
        found: dict[str, Any] = {"shape": list(shape)}
        version, way = layout[:2]
        _need(version == 3 and (way == 2 or _FILTERS not in messages))
        address, length = struct.unpack_from("<QQ", layout, 2) if way == 1 else (_NOWHERE, nbytes)
        _need(length == nbytes and (address == _NOWHERE or address + length <= self.end))
        if not known.name:
            _need(way == 1 and len(shape) < 2 and prod(shape) <= _MOST_ELEMENTS and (address != _NOWHERE or not nbytes))
            texts = self.values(type_, self.at(address, nbytes) if nbytes else b"", prod(shape))
            return found | {"kind": "text", "text": texts if shape else texts[0]}
        found |= {"dtype": known.name, "bytes": nbytes, "fill": _fill(messages, known).hex()}
        if way == 2:
            return found | self.chunked(layout, len(shape), known.size, messages)
        if way == 0:
            (length,) = struct.unpack_from("<H", layout, 2)
            _need(length == nbytes)
            return found | {"values": layout[4 : 4 + length].hex()}
        _need(way == 1 and address > 0)
        return found if address == _NOWHERE else found | {"offset": address}

    def chunked(self, layout: bytes, rank: int, itemsize: int, messages: dict[int, list[bytes]]) -> dict[str, Any]:
        """The chunks of a dataset, and the filters that each went through."""
        ranks, address = struct.unpack_from("<BQ", layout, 2)
        _need(ranks == rank + 1 and rank > 0)
        *chunk, last = struct.unpack_from(f"<{ranks}I", layout, 11)
        _need(last == itemsize and all(chunk))
        pieces: list[list[Any]] = []
        if address != _NOWHERE:
            for (size, mask, *start, zero), place, _ in self.leaves(address, 1, f"<II{ranks}Q", 64, {}):
                self.chunks += 1
                _need(self.chunks <= _MOST_CHUNKS and zero == 0 and place + size <= self.end)
                _need(not any(at % wide for at, wide in zip(start, chunk, strict=True)))
                pieces.append([start, place, size, mask])
        return {"chunk": chunk, "pieces": pieces, "filters": _filters(messages)}


def _only(messages: dict[int, list[bytes]], kind: int) -> bytes:
    """The only message of a kind."""
    found = messages.get(kind, [])
    _need(len(found) == 1)
    return found[0]


def _type(message: bytes) -> _Type:
    known = _TYPES.get(message.rstrip(b"\0"))
    if known is None:
        raise _NotPlain
    return known


def _shape(message: bytes) -> tuple[int, ...]:
    version, rank, flags = message[:3]
    _need(version == 1 and rank <= 32 and flags in (0, 1))
    shape: tuple[int, ...] = struct.unpack_from(f"<{rank}Q", message, 8)
    most = struct.unpack_from(f"<{rank}Q", message, 8 + 8 * rank) if flags else shape
    _need(all(n <= limit for n, limit in zip(shape, most, strict=True)))
    return shape


def _fill(messages: dict[int, list[bytes]], type_: _Type) -> bytes:
    """The value of what was never written, in little-endian order."""
    version, _, _, defined = _only(messages, _FILL)[:4]
    _need((version, defined) == (2, 1))
    found = []
    for kind, start in ((_FILL, 4), (_OLD_FILL, 0)):
        if kind in messages:
            message = _only(messages, kind)
            (length,) = struct.unpack_from("<I", message, start)
            found.append(message[start + 4 : start + 4 + length])
            _need(length in (0, type_.size) and len(found[-1]) == length and found[-1] == found[0])
    fill = found[0] or bytes(type_.size)
    return fill[::-1] if type_.name[0] == ">" else fill


def _filters(messages: dict[int, list[bytes]]) -> list[list[Any]]:
    """The filters of a dataset: the number of each, its settings, and its name."""
    if _FILTERS not in messages:
        return []
    message = _only(messages, _FILTERS)
    _need(message[0] == 1)
    found, at = [], 8
    for _ in range(message[1]):
        code, length, _, count = struct.unpack_from("<4H", message, at)
        name, nul, _ = message[at + 8 : at + 8 + length].partition(b"\0")
        _need(bool(name and nul) and not length % 8)
        at += 8 + length
        found.append([code, list(struct.unpack_from(f"<{count}I", message, at)), name.decode()])
        at += 4 * (count + count % 2)
    return found


def _in_heap(data: bytes) -> dict[int, bytes]:
    """What stands in a heap, by its numbers."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 16 <= len(data):
        number, _, _, size = struct.unpack_from("<HHIQ", data, at)
        if number == 0:  # the rest is free, as it says
            _need(size == len(data) - at)
            break
        _need(number not in found and at + 16 + size <= len(data))
        found[number] = data[at + 16 : at + 16 + size]
        at += 16 + -(-size // 8) * 8
    return found


def _is_chain(data: bytes, at: int) -> bool:
    """Whether what is free in the heap of a group is a list of places, from AT on, each of which says what is next."""
    for _ in range(len(data) // 16 + 1):
        if at == 1:
            return True
        following, size = struct.unpack_from("<QQ", data, at)
        _need(0 < size <= len(data) - at)
        at = following
    return False


def _as_json(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value
