"""torch-tar: what torch.save wrote before 0.1.10, a tar archive. Read in place, never unpacked; not written.

    sys_info   pickle  {"protocol_version": 1000, …}
    pickle     pickle  the tree; persistent ids are the numbers of tensors and storages, as text
    tensors    pickle(n), n times: pickle (number, number of its storage, class), ndim (4 bytes), 4 bytes that mean
               nothing, ndim sizes, ndim strides and the offset (8 bytes each, little-endian, in elements)
    storages   pickle(n), n times: pickle (number, location, class), number of elements (8 bytes), the elements;
               then a pickle [(number of a view, number of its root, offset, number of elements), …]

Persistent ids that are tuples (class, file, source code) stand for the class. torch 2.13 unpacks these files to a
temporary folder, and only without `weights_only`; source: `_legacy_load` in `torch/serialization.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.files import File, FileRange
from ..dtypes import BY_STORAGE
from ..errors import Malformed, counted, printable
from ..inert.decode import check_all
from ..tensor import MOST_DIMENSIONS, LazyTensor, Storage
from ..tree import Global, List
from ._torch import TorchReader
from .base import Format
from .pickle.reader import NeedsMore, Reader

_BLOCK = 512
_NAMES = ("sys_info", "pickle", "tensors", "storages")
_MOST_MEMBERS = 1000
_LARGEST_EXTENSION = 1 << 16
_FIRST_READ = 4096
_LARGEST_PICKLE = 1 << 30


# -- the archive


def _number(field: bytes) -> int:
    """A number of a header: octal text, or big-endian bytes for large ones."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.strip(b"\0 ") or b"0"
    if digits.strip(b"01234567"):  # int() takes signs and underscores
        raise ValueError
    return int(digits, 8)


def _members(read: Callable[[int, int], bytes], size: int, where: object) -> Iterator[tuple[str, bytes, int, int]]:
    """(name, kind, offset, size) of every member. PAX headers, which Python writes before each, are applied."""
    at = count = 0
    extended: dict[str, str] = {}
    while at + _BLOCK <= size and count < _MOST_MEMBERS:
        block = read(at, _BLOCK)
        if not block.strip(b"\0"):
            return
        try:
            length, stated = _number(block[124:136]), _number(block[148:156])
        except ValueError:
            raise Malformed(f"its tar header at byte {at:,} is damaged", where=where) from None
        if sum(block) - sum(block[148:156]) + 8 * 32 != stated:
            raise Malformed(f"its tar header at byte {at:,} does not fit its checksum", where=where)
        kind, start = block[156:157], at + _BLOCK
        name = block[:100].split(b"\0")[0].decode("utf-8", "replace")
        if kind not in (b"x", b"g"):
            name = extended.get("path", name)
            digits = extended.get("size", "")
            if "size" in extended:
                if not _is_number(digits):
                    raise Malformed(f"its tar member {printable(name, 40)!r} has a size that is none", where=where)
                length = int(digits)
        if start + length > size:
            raise Malformed(
                f"its member {printable(name, 40)!r} is cut short: {length:,} bytes expected, {size - start:,} left",
                where=where,
                hint="the download or copy did not finish; compare the size with the source",
            )
        if kind in (b"x", b"g"):
            if length > _LARGEST_EXTENSION:
                raise Malformed(f"has an extended tar header of {length:,} bytes", where=where)
            extended = _extension(read(start, length)) if kind == b"x" else extended
        else:
            yield name.removeprefix("./"), kind, start, length
            extended = {}
        count += 1
        at = start + -(-length // _BLOCK) * _BLOCK


def _is_number(digits: str) -> bool:
    """Whether DIGITS are those of a number that tar and torch write: no sign, no digits of other scripts."""
    return digits.isascii() and digits.isdecimal() and len(digits) < 20


def _extension(data: bytes) -> dict[str, str]:
    """The records "LENGTH KEY=VALUE\\n" of a PAX header."""
    found: dict[str, str] = {}
    while data:
        digits, _, rest = data.partition(b" ")
        if not digits.isdigit() or len(digits) > 6 or not len(digits) + 1 < int(digits) <= len(data):
            break
        key, _, value = rest[: int(digits) - len(digits) - 1].rstrip(b"\n").partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        data = data[int(digits) :]
    return found


def sniff(head: bytes, file: File | None = None) -> bool:
    """Whether HEAD is the beginning of a tar archive whose first member is one of torch's."""
    if head[257:262] != b"ustar":
        return False
    try:
        first = next(_members(lambda at, length: head[at : at + length], len(head), ""), ("",))
    except (Malformed, ValueError):
        return head.startswith(tuple(name.encode() + b"\0" for name in _NAMES))
    return first[0] in _NAMES or head.startswith(tuple(name.encode() + b"\0" for name in _NAMES))


# -- what is in it


@dataclass(slots=True)
class Stream:
    """One member: pickles and numbers one after the other."""

    file: File
    at: int
    end: int

    def take(self, length: int) -> bytes:
        """The next LENGTH bytes."""
        if self.at + length > self.end:
            raise Malformed("a member of its tar archive is cut short", where=self.file.path)
        self.at += length
        return self.file.read(self.at - length, length)

    def integers(self, count: int) -> tuple[int, ...]:
        """The next COUNT numbers of 8 bytes."""
        raw = self.take(8 * count)
        return tuple(int.from_bytes(raw[at : at + 8], "little", signed=True) for at in range(0, len(raw), 8))

    def pickle(self) -> Any:
        """What the next pickle holds, which is plain data."""
        have, left = _FIRST_READ, self.end - self.at
        while True:
            size = min(have, left)
            reader = Reader(self.file.read(self.at, size), self.file.path, self._refuse, complete=size == left)
            try:
                value = reader.load()
            except NeedsMore:
                have *= 8
                continue
            self.at += reader.position
            return value

    def _refuse(self, pid: Any) -> Any:
        raise Malformed("has a persistent id where plain data must be", where=self.file.path)


def open_tar(file: File) -> Checkpoint:
    """Open a tar file of torch 0.1: its pickles are read where they are, no storage is."""
    where = file.path
    members: dict[str, Stream] = {}
    others: list[str] = []
    for name, kind, start, length in _members(file.read, file.size, where):
        if name not in _NAMES:
            others.append(printable(name, 60))
        elif kind not in (b"0", b"\0"):
            raise Malformed(f"its member {name!r} is not a regular file", where=where)
        elif name in members:
            raise Malformed(f"has two members {name!r}", where=where)
        else:
            members[name] = Stream(file, start, start + length)
    missing = [name for name in _NAMES[1:] if name not in members]
    if missing:
        raise Malformed(f"is a tar archive without the member {missing[0]!r}", where=where)
    storages, bases = read_storages(members["storages"])
    tensors = read_tensors(members["tensors"], storages, bases)
    tree = members["pickle"]
    if tree.end - tree.at > _LARGEST_PICKLE:
        raise Malformed(f"its pickle has {tree.end - tree.at:,} bytes; 1 GiB is the limit", where=where)
    reader = _TarReader(tree.take(tree.end - tree.at), where, lambda *_: Storage(FileRange(file, 0, 0)))
    reader.objects = {**storages, **tensors}
    root = reader.load()
    lost = [f"the member {name}" for name in others[:10]]
    if reader.sources:
        lost.append(f"the source code of {counted(len(reader.sources), 'class', 'classes')} that is recorded in it")
    return Checkpoint(
        root,
        "torch-tar",
        where,
        file.size,
        warnings=(*check_all(reader.others, where), *lost),
        lost_content=reader.lost_content(),
        lost_form=tuple(lost),
    )


class _TarReader(TorchReader):
    """Reads the tree, whose persistent ids are numbers of tensors and storages that were read before."""

    objects: dict[int, Any]

    def _storage(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) == 3:  # a class with its source code
            self.note_source(pid[0], pid[2])
            return pid[0]
        number = int(pid) if isinstance(pid, str) and _is_number(pid) else pid
        if type(number) is not int or number not in self.objects:
            shown = printable(repr(pid), 40) if isinstance(pid, str | int) else f"of a {type(pid).__name__.lower()}"
            self._fail(f"refers to the object {shown}, which is not in the archive")
        return self.objects[number]


_Bases = dict[int, tuple[Storage, int]]  # number of a view -> its root and its offset in elements


def read_storages(stream: Stream) -> tuple[dict[int, Storage], _Bases]:
    """The storages by number, and what the views among them are parts of."""
    where = stream.file.path
    storages: dict[int, Storage] = {}
    for _ in range(_count(stream)):
        entry = stream.pickle()
        number, location, cls = entry if isinstance(entry, tuple) and len(entry) == 3 else (None,) * 3
        dtype = BY_STORAGE.get(cls.name) if isinstance(cls, Global) and cls.module in ("torch", "torch.cuda") else None
        if type(number) is not int or not isinstance(location, str) or dtype is None:
            raise Malformed("has a storage that torch does not write", where=where)
        (numel,) = stream.integers(1)
        if numel < 0 or stream.at + numel * dtype.itemsize > stream.end:
            raise Malformed(
                f"storage {number} is cut short: {counted(numel, 'element')} of {dtype.name} at byte {stream.at:,}",
                where=where,
            )
        source = FileRange(stream.file, stream.at, numel * dtype.itemsize)
        storages[number] = Storage(source, str(location), dtype, str(number))
        stream.at += source.length
    bases: _Bases = {}
    views = stream.pickle()
    for view in views.items if isinstance(views, List) else ():
        if not isinstance(view, tuple) or len(view) != 4 or not all(type(n) is int for n in view):
            raise Malformed("has a view of a storage that torch does not write", where=where)
        number, root, offset, numel = view
        if root not in storages or offset < 0 or numel < 0 or offset + numel > storages[root].numel:
            raise Malformed(f"has a view of elements {offset:,} to {offset + numel:,} beyond its storage", where=where)
        bases[number] = (storages[root], offset)
        base = storages[root]
        assert isinstance(base.source, FileRange)
        assert base.dtype is not None
        part = base.source.part(offset * base.dtype.itemsize, numel * base.dtype.itemsize)
        storages[number] = base.changed(source=part, key=f"{base.key}/{number}")
    return storages, bases


def read_tensors(stream: Stream, storages: dict[int, Storage], bases: _Bases) -> dict[int, LazyTensor]:
    """The tensors by number."""
    where = stream.file.path
    tensors: dict[int, LazyTensor] = {}
    for _ in range(_count(stream)):
        entry = stream.pickle()
        number, key, cls = entry if isinstance(entry, tuple) and len(entry) == 3 else (None,) * 3
        if type(number) is not int or type(key) is not int or key not in storages or not isinstance(cls, Global):
            raise Malformed("has a tensor that torch does not write", where=where)
        ndim = int.from_bytes(stream.take(8)[:4], "little", signed=True)
        if not 0 <= ndim <= MOST_DIMENSIONS:
            raise Malformed(f"tensor {number} has {ndim:,} dimensions", where=where)
        shape, stride, (offset,) = stream.integers(ndim), stream.integers(ndim), stream.integers(1)
        storage = storages[key]
        assert storage.dtype is not None
        LazyTensor(storage, storage.dtype, shape, stride, offset).check(where, str(number))
        root, more = bases.get(key, (storage, 0))
        tensors[number] = LazyTensor(root, storage.dtype, shape, stride, offset + more)
    return tensors


def _count(stream: Stream) -> int:
    count = stream.pickle()
    if type(count) is not int or not 0 <= count <= stream.end - stream.at:
        raise Malformed("has a number of storages or tensors that is none", where=stream.file.path)
    return count


FORMAT = Format(
    name="torch-tar",
    aliases=("tar",),
    suffixes=(),
    summary="what torch.save wrote before 0.1.10",
    carries="everything: entries, objects, ties, views, strides, locations",
    pickles=True,
    sniff=sniff,
    open=open_tar,
    loader="pickle",
)
