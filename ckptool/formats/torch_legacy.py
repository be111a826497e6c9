"""torch-legacy: what torch.save wrote before 1.6, and still does with `_use_new_zipfile_serialization=False`.

    pickle  0x1950a86a20f9469cfc6c      magic number
    pickle  1001                        protocol version
    pickle  {little_endian: …}          not used by any reader; numbers are little-endian
    pickle  the tree                    storages are ('storage', class, KEY, location, numel, VIEW)
    pickle  [KEY, …]                    in the order of the data
    then for each KEY: numel (8 bytes, little-endian) and the bytes of the storage, without gaps

VIEW is None, or (KEY of its own, offset, numel) in elements of the storage: a part of it that is a storage to the
program. Where the data of a storage begin is known only after all five pickles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from ..checkpoint import Checkpoint, little_endian_throughout
from ..disk.composing import Piece
from ..disk.files import Buffer, File, FileRange
from ..errors import CannotCarry, Malformed, counted, in_words, printable
from ..inert.decode import check_all
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import Dict, List
from ._torch import StorageForm, TorchReader
from .base import Draft, Format
from .beginnings import LEGACY_MAGIC, is_legacy
from .pickle.reader import NeedsMore
from .pickle.writer import write_pickle

_PROTOCOL = 1001
_FIRST_READ = 1 << 18


def sniff(head: bytes, file: object = None) -> bool:
    """Whether HEAD begins with the pickled magic number, in any pickle protocol that can hold it."""
    return is_legacy(head)


@record(frozen=True, slots=True)
class _Pickles:
    tree: Any
    keys: list[str]
    reader: _LegacyReader
    end: int


def open_legacy(file: File, broken: dict[int, str] | None = None) -> Checkpoint:
    """Open a legacy file: its five pickles are read, no storage is (torch itself reads all of them).

    With BROKEN, storages that are not whole are no error but noted there: the id of each, and why (see `_salvage`).
    """
    have = _FIRST_READ
    while True:
        try:
            data = file.read(0, min(have, file.size))
            pickles = _read_pickles(file, data, complete=have >= file.size, strict=broken is None)
            break
        except NeedsMore:
            have *= 8
    where, reader = file.path, pickles.reader
    end = _place_storages(file, pickles, broken)
    unchecked = check_all(reader.others, where)
    lost = []
    if end < file.size:
        lost.append(f"{file.size - end:,} bytes that follow the last storage")
    if reader.sources:
        names = ", ".join(printable(name, 60) for name in list(reader.sources)[:3])
        names += ", …" if len(reader.sources) > 3 else ""
        lost.append(
            f"the source code of {counted(len(reader.sources), 'class', 'classes')} that is recorded in it: {names}"
        )
    return Checkpoint(
        pickles.tree,
        "torch-legacy",
        where,
        file.size,
        warnings=(*unchecked, *lost),
        lost_content=reader.lost_content(),
        lost_form=tuple(lost),
    )


@record(frozen=True, slots=True)
class _InMemory:
    """Bytes that are read like a file."""

    data: bytes
    path: Any

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET."""
        return self.data[offset : offset + length]


def read_stream(data: bytes, where: object) -> Any:
    """The tree in a legacy stream that stands somewhere in memory; offsets of its storages count from its start."""
    stream: Any = _InMemory(data, where)
    pickles = _read_pickles(stream, data, complete=True)
    _place_storages(stream, pickles)
    return pickles.tree


def _read_pickles(file: File, data: bytes, *, complete: bool, strict: bool = True) -> _Pickles:
    position = 0
    values = []

    def storage(key: str, form: StorageForm) -> Storage:
        if form.nbytes > file.size and strict:
            raise Malformed(
                f"storage {printable(key)} should have {form.nbytes:,} bytes; the file has {file.size:,}",
                where=file.path,
                hint="the download or copy did not finish; compare the size with the source",
            )
        return Storage(FileRange(file, 0, form.nbytes), form.location, form.dtype, key)

    for index in range(5):
        reader = _LegacyReader(data, file.path, storage, complete=complete, start=position)
        values.append(reader.load())
        position = reader.position
        if index != 3 and reader.discarded:
            raise Malformed("has calls in a pickle that only holds plain data", where=file.path)
        if index == 0 and values[0] != LEGACY_MAGIC:
            raise Malformed("does not begin with torch's magic number", where=file.path)
        if index == 1 and values[1] != _PROTOCOL:
            version = in_words(values[1], 20).strip("'")
            raise Malformed(f"has protocol version {version}, not {_PROTOCOL}", where=file.path)
        if index == 3:
            tree_reader = reader
    keys = values[4]
    if not isinstance(keys, List) or not all(isinstance(key, str | int) for key in keys.items):
        raise Malformed("has no list of storage keys", where=file.path)
    return _Pickles(values[3], [str(key) for key in keys.items], tree_reader, position)


class _LegacyReader(TorchReader):
    """Resolves storage views: a tensor over a view becomes one over the root storage, at a larger offset."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._views: dict[tuple[str, str, int, int], Storage] = {}
        self._bases: dict[int, tuple[Storage, int]] = {}  # id of a view -> root storage, offset in elements

    def views(self) -> list[tuple[Storage, tuple[Storage, int]]]:
        """The storages that are parts of another: (view, (root, offset in elements))."""
        return [(view, self._bases[id(view)]) for view in self._views.values()]

    def _storage(self, pid: Any) -> Any:
        root = super()._storage(pid)
        if not isinstance(root, Storage):
            return root
        if len(pid) != 6:
            self._fail("has a persistent id without view metadata")
        view = pid[5]
        if view is None:
            return root
        if not isinstance(view, tuple) or len(view) != 3 or not all(isinstance(n, int) for n in view[1:]):
            self._fail("has view metadata that torch does not write")
        name, offset, numel = view
        if offset < 0 or numel < 0 or offset + numel > root.numel:
            self._fail(f"has a view of elements {offset:,} to {offset + numel:,} of a storage of {root.numel:,}")
        key = (root.key, str(name), offset, numel)
        if key not in self._views:
            item = root.dtype.itemsize if root.dtype else 1
            assert isinstance(root.source, FileRange)
            part = root.source.part(offset * item, numel * item)
            self._views[key] = made = root.changed(source=part, key=f"{root.key}/{name}")
            self._bases[id(made)] = (root, offset)
        return self._views[key]

    def _rebuild(self, callee: Any, args: Any) -> Any:
        made = super()._rebuild(callee, args)
        if isinstance(made, LazyTensor) and id(made.storage) in self._bases:
            root, offset = self._bases[id(made.storage)]
            return made.changed(storage=root, offset=made.offset + offset)
        return made


def _place_storages(file: File, pickles: _Pickles, broken: dict[int, str] | None = None) -> int:
    """Say where each storage begins, now that it is known. Returns where the last one ends."""
    where, storages = file.path, pickles.reader.storages
    listed = set(pickles.keys)
    if len(listed) != len(pickles.keys):
        raise Malformed("lists a storage twice", where=where)
    if listed != storages.keys():
        missing, extra = sorted(storages.keys() - listed), sorted(listed - storages.keys())
        raise Malformed(
            f"its tensors use {counted(len(storages), 'storage')}, its list names {len(listed):,}",
            where=where,
            evidence=[printable(f"not in the list: {', '.join(missing[:4])}")] * bool(missing)
            + [printable(f"used by no tensor: {', '.join(extra[:4])}")] * bool(extra),
        )
    roots = [storages[key] for key in pickles.keys]
    sizes = [storage.nbytes for storage in roots]
    places = list(accumulate((8 + size for size in sizes), initial=pickles.end))
    if broken is None:
        fit = places[-1] <= file.size and all(
            int.from_bytes(file.read(place, 8), "little", signed=True) == storage.numel
            for storage, place in zip(roots, places, strict=False)
        )
        for storage, place in () if fit else zip(roots, places, strict=False):
            if problem := _misfit(file, storage, place):
                hint = "the download or copy did not finish; compare the size with the source"
                what = f"storage {printable(storage.key)} {problem}"
                raise Malformed(what, where=where, hint=hint if "cut" in problem else None)
    else:
        broken.update(_not_whole(file, roots, places))
    for storage, place, size in zip(roots, places, sizes, strict=False):
        storage.move_to(FileRange(file, place + 8, size))
    for view, (root, offset) in pickles.reader.views():
        assert isinstance(root.source, FileRange)
        _move(view, root.source.offset + offset * (root.dtype.itemsize if root.dtype else 1))
        if broken is not None and id(root) in broken:
            broken[id(view)] = broken[id(root)]
    return places[-1]


def _misfit(file: File, storage: Storage, place: int) -> str:
    """Why a storage cannot be at PLACE, or ""."""
    if place + 8 + storage.nbytes > file.size:
        left = max(file.size - place - 8, 0)
        return f"is cut short: {storage.nbytes:,} bytes expected at offset {place + 8:,}, {left:,} left in the file"
    numel = _count_at(file, place)
    if numel != storage.numel:
        return f"has {counted(numel or 0, 'element')} where it stands; its tensors say {storage.numel:,}"
    return ""


def _count_at(file: File, place: int) -> int | None:
    """The number of elements that stands at PLACE, or None where the file has no eight bytes."""
    if place < 0 or place + 8 > file.size:
        return None
    return int.from_bytes(file.read(place, 8), "little", signed=True)


def _not_whole(file: File, storages: Sequence[Storage], places: Sequence[int]) -> dict[int, str]:
    """The storages of a damaged file that may not be whole: the id of each, and why.

    A storage is whole if its count stands before it, and the next count, or the end of the file, right behind it. Bytes
    that are missing or too many move all that follows, by as much as the file is too short or too long. So a count has
    two possible places. It shows that nothing before it moved if it stands at the first alone, and if no other count of
    the same number would have come to stand there.

    Args:
        file: the file.
        storages: in the order of the file.
        places: where the count of each should stand, and where the file should end.
    """
    problems = [_misfit(file, storage, place) for storage, place in zip(storages, places, strict=False)]
    moved = file.size - places[-1]
    if not moved:
        why = "the count behind it is wrong, so bytes of it may have moved"
        behind = [*problems[1:], ""]
        found = [problem or (after and why) for problem, after in zip(problems, behind, strict=True)]
    else:
        sure = _last_sure(file, storages, places, moved)
        why = f"{abs(moved):,} bytes are {'missing' if moved < 0 else 'too many'} in it or before it"
        found = [problem if "cut" in problem else why for problem in problems]
        found[:sure] = [""] * sure
    return {id(storage): problem for storage, problem in zip(storages, found, strict=True) if problem}


def _last_sure(file: File, storages: Sequence[Storage], places: Sequence[int], moved: int) -> int:
    """The last storage whose count shows that nothing before it moved, or 0."""
    counts = {(place, storage.numel) for storage, place in zip(storages, places, strict=False)}
    sure = 0
    for number, (storage, place) in enumerate(zip(storages, places, strict=False)):
        if _count_at(file, place) != storage.numel:
            break
        elsewhere = _count_at(file, place + moved) == storage.numel or (place - moved, storage.numel) in counts
        if storage.numel and not elsewhere:  # a count of 0 is like many other bytes
            sure = number
    return sure


def _move(storage: Storage, offset: int) -> None:
    """Complete a storage that nobody has seen yet."""
    assert isinstance(storage.source, FileRange)
    storage.move_to(replace(storage.source, offset=offset))


def draft_legacy(ckpt: Checkpoint) -> Draft:
    """Lay out a checkpoint as a legacy file."""
    storages: dict[int, Storage] = {}
    names: dict[int, str] = {}

    def name_of(storage: Storage) -> str:
        if id(storage) not in names:
            names[id(storage)] = str(len(names))
            storages[id(storage)] = storage
        return names[id(storage)]

    tree = write_pickle(little_endian_throughout(ckpt).root, name_of, legacy=True)
    untyped = next((storage for storage in storages.values() if storage.class_name == "UntypedStorage"), None)
    if untyped is not None:
        raise CannotCarry(
            "torch cannot load untyped storages (of float8, uint16 and other new types) from legacy files",
            where=ckpt.where,
            hint="-t torch-zip",
        )
    plain = partial(write_pickle, name_of=name_of)
    sizes = Dict([("short", 2), ("int", 4), ("long", 4)])
    info = Dict([("protocol_version", _PROTOCOL), ("little_endian", True), ("type_sizes", sizes)])
    keys = list(names.values())
    header = [plain(LEGACY_MAGIC), plain(_PROTOCOL), plain(info), tree, plain(List(list(keys)))]
    pieces: list[Piece] = [Buffer(b"".join(header))]
    for storage in storages.values():
        pieces += [Buffer(storage.numel.to_bytes(8, "little")), storage.source]
    content: tuple[str, ...] = ()
    if ckpt.metadata:
        content = (f"the text metadata of the safetensors header: {printable(', '.join(ckpt.metadata))}",)
    return Draft(
        [piece for piece in pieces if piece.length], content=content, how="a new file, tensors copied as they are"
    )


FORMAT = Format(
    name="torch-legacy",
    aliases=("legacy",),
    suffixes=(),
    summary="what torch.save wrote before 1.6; read by every torch",
    carries="all but the newest types (float8, uint16 …): entries, objects, ties, strides, locations, order, _metadata",
    pickles=True,
    sniff=sniff,
    open=open_legacy,
    draft=draft_legacy,
    mapped=False,
    kept_as="torch-legacy",
)
