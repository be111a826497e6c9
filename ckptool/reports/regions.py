"""What the files of a checkpoint consist of, as runs of bytes: for `verify`, which reads all of them once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.addresses import is_url
from ..disk.composing import Joined, nested
from ..disk.files import File, FileRange, Source
from ..disk.urls import look
from ..dtypes import DType
from ..errors import CheckpointError, printable
from ..formats.tiles import Tiled
from ..formats.zip.archive import Archive, Inflated, open_archive
from ..formats.zip.structure import looks_like_zip
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import Trail, address, walk

#: Bytes of a page of the file. Smaller regions are read together.
PAGE = 4096
#: Bytes that are looked at at once: few enough to be in the cache at the second look, and not so few that threads do
#: little but hand the interpreter over to each other.
PIECE = 1 << 20


@record(frozen=True, slots=True)
class Held:
    """What a storage holds: the first of the tensors that are views of it, how many more there are, and their type."""

    trail: Trail
    more: int
    dtype: DType | None


@record(frozen=True, slots=True)
class Region:
    """A run of bytes: where it is, its checksum if one is recorded, and what it holds.

    `place` is where its first tensor stands in the tree, or the name of a record or storage; `file` and `chunk` tell
    regions of one place apart; `skip` bytes at the beginning of `source` are a header.
    """

    place: Trail | str
    source: Source
    crc: int | None
    held: Held | None = None
    big_endian: bool = False
    chunk: int = 0
    file: str = ""
    skip: int = 0

    @property
    def dtype(self) -> DType | None:
        """The type of all numbers in it, if they are of one."""
        return self.held.dtype if self.held else None

    @property
    def within(self) -> bool:
        """Whether it is a part of a record whose checksum is compared as a whole."""
        return self.crc is None and any(_is_recorded(part) for part in nested(self.source))

    @property
    def name(self) -> str:
        """What it is called in messages. Few are asked for it, and the path of a place deep in a tree is long."""
        place = self.place if isinstance(self.place, str) else address(self.place)
        more = f" and {self.held.more:,} more" if self.held and self.held.more else ""
        return f"{self.file}{printable(place, 80)}{more}" + (f", chunk {self.chunk:,}" if self.chunk else "")


def regions(ckpt: Checkpoint) -> Iterator[Region]:
    """Everything in the files of a checkpoint: the records of archives, the storages of other files."""
    held: dict[int, Held] = {}
    storages: dict[int, Storage] = {}
    for trail, node in walk(ckpt.root):
        if isinstance(node, LazyTensor):
            storage = node.storage
            known = held.get(id(storage))
            if known is None:
                held[id(storage)] = Held(trail, 0, node.dtype)
            else:
                dtype = known.dtype if known.dtype == node.dtype else None
                held[id(storage)] = Held(known.trail, known.more + 1, dtype)
        elif isinstance(node, Storage):
            storage = node
        else:
            continue
        storages.setdefault(id(storage), storage)
    files: dict[int, File] = {}
    inside: dict[int, dict[int, Storage]] = {}  # file -> the storages in it, by where they begin
    alone: list[Storage] = []
    headers: dict[int, int] = {}  # storage -> bytes of its record that stand before its values
    for storage in storages.values():
        source, header = _record_of(storage.source)
        if header:
            headers[id(storage)] = header
        if not isinstance(source, FileRange | Inflated):
            alone.append(storage)
            chunks = isinstance(source, Joined | Tiled)
            parts = (part for part in nested(source) if isinstance(part, FileRange) and (part.whole or not chunks))
            files.update((id(part.file), part.file) for part in parts if _is_recorded(part))
            continue
        file, at = source.file.located(source.offset) if isinstance(source, FileRange) else _packed(source)
        files[id(file)] = file
        mine = inside.setdefault(id(file), {})
        if at not in mine or storage.nbytes > mine[at].nbytes:  # an empty one begins where the next one does
            mine[at] = storage

    def told(storage: Storage) -> Iterator[Region]:
        used = held.get(id(storage))
        place = used.trail if used else storage.key
        source = storage.source
        if isinstance(source, Joined | Tiled):  # chunks with checksums of their own
            for number, (chunk, crc) in enumerate(source.stored(), 1):
                yield Region(place, chunk, crc, used, storage.big_endian, number)
        else:
            yield Region(place, source, storage.crc, used, storage.big_endian)

    if not files and ckpt.path is not None and (is_url(ckpt.path) or ckpt.path.is_file()):  # an archive without tensors
        alone_in = look(ckpt.path)
        if isinstance(alone_in, File):
            files[id(alone_in)] = alone_in
    for number, file in files.items():
        mine = inside.get(number, {})
        archive = _archive(file)
        if archive is None:
            for storage in mine.values():
                yield from told(storage)
            continue
        prefix = f"{printable(file.path.name, 60)}: " if len(files) > 1 else ""
        for name, source in archive.sources():
            crc = 0 if source.crc is None and not source.length else source.crc  # that of nothing is 0
            at = source.offset if isinstance(source, FileRange) else source.packed.offset
            here = mine.get(at) if source.length else None
            if here is None:
                yield Region(name, source, crc, file=prefix)
                continue
            used, skip = held.get(id(here)), headers.get(id(here), 0)
            values_of = used if skip % 16 == 0 else None  # else pieces of the record would cut numbers in two
            place = used.trail if used else here.key
            yield Region(place, source, crc, values_of, here.big_endian, 0, prefix, skip)
    for storage in alone:
        yield from told(storage)


def regions_of(others: dict[str, Checkpoint]) -> Iterator[Region]:
    """The same of files beside it."""
    for name, part in others.items():
        yield from (replace(region, file=f"{name}: ") for region in regions(part))


def _record_of(source: Source) -> tuple[Source, int]:
    """The record that a storage is the rest of, and how many bytes stand before it there: arrays have a header."""
    whole: Any = getattr(source, "whole", None)
    if whole is None:
        return source, 0
    skip = source.offset - whole.offset if isinstance(source, FileRange) else whole.length - source.length
    return (whole, skip) if skip + source.length == whole.length else (source, 0)


def runs(regions: Iterable[Region]) -> Iterator[list[Region]]:
    """REGIONS in their order, those together that are small, alike, and near each other in one file."""
    run: list[Region] = []
    alike, begin, end = None, 0, 0
    for region in regions:
        kind, source = _small_and_alike(region), region.source
        first, last = (source.offset, source.offset + source.length) if isinstance(source, FileRange) else (0, 0)
        if run and (kind is None or kind != alike or first < end or last - begin > PIECE):
            yield run
            run = []
        begin = begin if run else first
        alike, end = kind, last
        run.append(region)
    if run:
        yield run


def _small_and_alike(region: Region) -> tuple[object, ...] | None:
    """The same for small regions whose numbers can be looked at as one run of numbers; None of any other."""
    source, dtype = region.source, region.dtype
    if not isinstance(source, FileRange) or source.length >= PAGE or region.skip:
        return None
    return None if dtype and source.length % dtype.itemsize else (source.file, dtype, region.big_endian)


def _is_recorded(source: object) -> bool:
    """Whether it is a record with a checksum, or a part of one."""
    return isinstance(source, FileRange) and (source.crc is not None or source.whole is not None)


def _packed(source: Inflated) -> tuple[File, int]:
    return source.packed.file, source.packed.offset


def _archive(file: File) -> Archive | None:
    """A file as a zip archive. One with several archives in a row (of torch.distributed.checkpoint) is none."""
    if not looks_like_zip(file.read(0, min(4, file.size))):
        return None
    try:
        return open_archive(file, any_layout=True)
    except CheckpointError:
        return None
