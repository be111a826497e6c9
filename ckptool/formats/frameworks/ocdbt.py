"""OCDBT: a store of keys and values in a folder, as TensorStore keeps it, in which Orbax puts arrays of Zarr.

    manifest.ocdbt    0c db 3a 2a, u64 length, version 0, compression; the rest, perhaps compressed with zstd: id (16
                      bytes), kind, settings, a table of data files, the newest versions: each has the place of its root
    d/…, X/d/…        nodes of a tree, each 0c db 20 de, u64 length, version 0, compression, and values
    a node            height, table of data files, number of entries, their keys; on height 0 the lengths of the values,
                      and these or their places; above, the places of the nodes below
    at the end of each, its CRC-32C

Integers without a size are varints, and lists stand column by column. The layout is that of TensorStore's page on the
driver "ocdbt"; behind the id stands the kind of the manifest, which the page leaves out. Only the newest version is
looked at. A value that stands in a data file is a range of it; nodes are read, values are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...disk.files import Buffer, File, FileRange
from ...disk.inside import Folder
from ...errors import CannotCarry, Malformed, printable
from .cursor import Cursor
from .filtered_chunks import crc32c, inflated
from .folder_paths import FolderPaths

MANIFEST = "manifest.ocdbt"
_MANIFEST_MAGIC, _NODE_MAGIC = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
#: Bytes of a node, as it is stored and inflated; bytes of all nodes, and keys, of a store.
_LARGEST_NODE, _LARGEST_INFLATED = 64 << 20, 256 << 20
_LARGEST_TREE, _MOST_KEYS = 1 << 30, 2_000_000
_DEEPEST = 64
_LONGEST_NAME = 1 << 16


class Place(NamedTuple):
    """Where something stands: the data file, from which byte on, and how many."""

    path: str
    offset: int
    length: int


@dataclass(slots=True)
class _Reader:
    """Reads a store."""

    folder: Folder
    paths: FolderPaths
    found: dict[str, FileRange | Buffer]
    read: int = 0

    def file(self, path: str) -> File:
        """A data file."""
        found = self.paths.find(path)
        if found is None:
            raise Malformed(
                f"names {printable(repr(path), 120)}, which is not in the folder",
                where=self.folder.path / MANIFEST,
                hint=Folder.unfinished,
            )
        return found

    def body(self, file: File, place: Place, magic: bytes, what: str) -> Cursor:
        """What is in the manifest or in a node, past its header."""
        if place.length > _LARGEST_NODE or place.length < 18 or place.offset + place.length > file.size:
            raise Malformed(
                f"{what} is cut short, or states wrong lengths",
                where=file.path,
                evidence=[f"{place.length:,} bytes from byte {place.offset:,} on, and the file has {file.size:,}"],
                hint="copy or download it again",
            )
        raw = bytes(file.read(place.offset, place.length))
        head = Cursor(file, what=what, held=raw)
        if head.take(4) != magic or head.number("Q") != place.length or head.varint():
            raise head.bad("has a header that is none")
        packed = head.varint()
        if packed > 1:
            raise head.bad(f"is compressed in the way {packed:,}")
        if crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
            raise Malformed(f"{what} is damaged: its checksum (CRC-32C) does not match", where=file.path)
        body = raw[head.at : -4]
        if packed:
            body = inflated(body, "zstd", _LARGEST_INFLATED + 1, file.path)
        self.read += len(body)
        if len(body) > _LARGEST_INFLATED or self.read > _LARGEST_TREE:
            raise Malformed(f"{what} is larger than is sensible", where=file.path)
        return Cursor(file, what=what, held=body)

    def root(self) -> tuple[Place, str] | None:
        """Where the root of the newest version stands, and what paths begin with there; None for an empty store."""
        file = self.folder.file(MANIFEST, MANIFEST)
        body = self.body(file, Place(MANIFEST, 0, file.size), _MANIFEST_MAGIC, "its manifest")
        body.take(16)
        if body.varint():
            raise CannotCarry("has its versions in manifests with numbers, which are not read", where=self.folder.path)
        body.varint()
        body.varint()
        body.take(1)
        if body.varint():
            body.take(4)
        paths = _paths(body, "")
        count = body.varint()
        body.need(count)
        if not count:
            return None
        _column(body, count)
        body.take(count)
        which, offsets, lengths = (_column(body, count) for _ in range(3))
        if lengths[-1] == 0 or offsets[-1] == lengths[-1] == 0xFFFFFFFFFFFFFFFF:
            return None
        path, base = _one_of(body, paths, which[-1])
        return Place(path, offsets[-1], lengths[-1]), base

    def walk(self) -> None:
        """Find every key of the newest version."""
        root = self.root()
        pending: list[tuple[Place, str, bytes, int | None]] = [(*root, b"", None)] if root else []
        seen: set[Place] = set()
        while pending:
            place, base, prefix, height = pending.pop()
            if place in seen:
                raise Malformed("has a tree that goes in circles", where=self.folder.path / MANIFEST)
            seen.add(place)
            node = self.body(self.file(place.path), place, _NODE_MAGIC, "a node of its tree")
            own = node.take(1)[0]
            if own > _DEEPEST or (height is not None and own != height):
                raise node.bad(f"has the height {own}")
            paths = _paths(node, base)
            count = node.varint()
            node.need(count)
            if len(self.found) + count > _MOST_KEYS:
                raise node.bad(f"has more than {_MOST_KEYS:,} keys")
            if not own:
                self._leaf(node, paths, prefix, count)
                continue
            keys, common = _keys(node, count, inner=True)
            which, offsets, lengths = (_column(node, count) for _ in range(3))
            for key, shared, number, offset, length in zip(keys, common, which, offsets, lengths, strict=True):
                path, further = _one_of(node, paths, number)
                if shared > len(key):
                    raise node.bad("has a key that is shorter than what it shares")
                pending.append((Place(path, offset, length), further, prefix + key[:shared], own - 1))

    def _leaf(self, node: Cursor, paths: Sequence[tuple[str, str]], prefix: bytes, count: int) -> None:
        keys, _ = _keys(node, count)
        lengths, kinds = _column(node, count), _column(node, count)
        if any(kind > 1 for kind in kinds):
            raise node.bad("has a value of an unknown kind")
        outside = [at for at, kind in enumerate(kinds) if kind]
        which, offsets = _column(node, len(outside)), _column(node, len(outside))
        places = dict(zip(outside, zip(which, offsets, strict=True), strict=True))
        for at, key in enumerate(keys):
            name = (prefix + key).decode("utf-8", "replace")
            if name in self.found:
                raise node.bad(f"has the key {printable(name, 80)!r} twice")
            if at not in places:
                node.need(lengths[at])
                self.found[name] = Buffer(node.take(lengths[at]))
                continue
            number, offset = places[at]
            file = self.file(_one_of(node, paths, number)[0])
            if offset + lengths[at] > file.size:
                raise Malformed(
                    f"the value of {printable(name, 80)!r} reaches beyond the end of the file",
                    where=file.path,
                    evidence=[f"{lengths[at]:,} bytes from byte {offset:,} on, and the file has {file.size:,}"],
                    hint="the download or copy did not finish; compare the size with the source",
                )
            self.found[name] = FileRange(file, offset, lengths[at])


def _column(body: Cursor, count: int) -> list[int]:
    return [body.varint() for _ in range(count)]


def _paths(body: Cursor, base: str) -> list[tuple[str, str]]:
    """A table of data files: path, and what the paths below begin with."""
    count = body.varint()
    body.need(count)
    shared = [0, *_column(body, max(count - 1, 0))][:count]
    sizes, bases = _column(body, count), _column(body, count)
    found: list[tuple[str, str]] = []
    last = b""
    for common, size, own in zip(shared, sizes, bases, strict=True):
        if common > len(last) or common + size > _LONGEST_NAME or own > common + size:
            raise body.bad("has a path that is none")
        last = last[:common] + body.take(size)
        found.append((base + last.decode("utf-8", "replace"), base + last[:own].decode("utf-8", "replace")))
    return found


def _one_of(body: Cursor, paths: Sequence[tuple[str, str]], number: int) -> tuple[str, str]:
    if number >= len(paths):
        raise body.bad(f"names data file {number:,} of {len(paths):,}")
    return paths[number]


def _keys(node: Cursor, count: int, *, inner: bool = False) -> tuple[list[bytes], list[int]]:
    """The keys of a node, and of an inner one how much of each all keys below it share."""
    shared = [0, *_column(node, max(count - 1, 0))][:count]
    sizes = _column(node, count)
    common = _column(node, count) if inner else []
    found: list[bytes] = []
    last = b""
    for before, size in zip(shared, sizes, strict=True):
        if before > len(last) or before + size > _LONGEST_NAME:
            raise node.bad("has a key that is none")
        last = last[:before] + node.take(size)
        found.append(last)
    return found, common


def values_in(folder: Folder) -> dict[str, FileRange | Buffer]:
    """Key -> value, of the newest version of the store in a folder.

    Raises:
        Malformed: it contradicts itself, is damaged, or names files that are not there.
        CannotCarry: it is of a kind that is not read.
        NotInstalled: it is compressed, and the package zstandard is not installed.
    """
    reader = _Reader(folder, FolderPaths(folder), {})
    reader.walk()
    return reader.found
