"""torch.distributed.checkpoint: a directory in which every rank of a run left slices of the tensors.

    .metadata             which tensors there are, and which slice of which file holds which chunk (see `_dcp_metadata`)
    __0_0.distcp          slices one after the other; each is what torch.save writes, a zip archive of its own
    __1_0.distcp          … of rank 1

A tensor is assembled from its chunks when it is read; a chunk that is missing, or two that overlap, refuse the
checkpoint. What is stored once is one value, and what is stored in chunks is divided: nothing is guessed. Two flavours
with safetensors files are read as well: `.distcp` files that are safetensors (which torch 2.13 writes and cannot read),
and `shard-00001-model-00001-of-00001.safetensors` of HuggingFaceStorageWriter before consolidation, whose header notes
where each chunk belongs.

`_dcp_write` writes them. Since tied tensors can be one slice with two names, ties are kept natively.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.documents import read_json
from ..disk.files import File, Window
from ..disk.inside import Folder
from ..disk.remote import FIRST
from ..errors import CannotCarry, CheckpointError, Malformed, counted, printable
from ..inert.decode import check_all
from ..inert.in_memory import from_plain
from ..inert.other_tensors import as_dense
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..tree import ABSENT, Dict, List
from . import _dcp_metadata as records
from ._dcp_alike import Like, like_of
from ._dcp_metadata import Box, Item, Slice
from ._dcp_write import NOTE, draft_dcp
from ._records import is_big_endian, read_pickle, storages_of
from ._torch import TorchReader
from .base import FolderFormat, Wanted
from .beside_weights import origin_in
from .flat import safetensors
from .tiles import Chunk, assemble
from .trainers.megatron_dist import OWN, divided, is_megatron, unstacked
from .zip.archive import open_archive

_SHARD = re.compile(r"shard-(\d{5})-(.+)\.safetensors", re.ASCII)
_OFFSETS = "DCP_SHARDING_INFO"
_LARGEST_NOTE = 1 << 28
#: Bytes at the beginning and the end of a slice that are looked at: its pickle, and the directory of its archive.
_PICKLE, _DIRECTORY = 512, 1 << 10


def fits(folder: Folder) -> bool:
    """Whether a directory is one of torch.distributed.checkpoint, finished or not."""
    return any(name == records.NAME or name.endswith(".distcp") or _SHARD.fullmatch(name) for name in folder.names)


def open_dcp(folder: Folder, wanted: Wanted | None = None) -> Checkpoint:
    """Open a directory: `.metadata`, and the pickles of all slices, are read; no tensor is.

    WANTED: of a directory of Megatron's, what of it.
    """
    if records.NAME in folder.names:
        return _open_slices(folder, whole=wanted is not None and wanted.with_optimizer)
    shards = [name for name in folder.names if _SHARD.fullmatch(name)]
    if shards:
        return _open_shards(folder, shards)
    raise Malformed(
        "has slices but no .metadata, which is written last: the save did not finish",
        where=folder.path,
        hint="use an earlier checkpoint",
    )


def _open_slices(folder: Folder, *, whole: bool) -> Checkpoint:
    file = folder.file(records.NAME, records.NAME)
    found = records.read_metadata(file)
    slices = _Slices(folder, found.items)
    values = [(item, slices.value(item)) for item in found.items]
    planned = all(item.path is not None for item in found.items)
    warnings = slices.warnings
    root, metadata = _noted(folder, file, _tree(values, file, warnings))
    form: list[str] = []
    common = None
    megatron = not planned and is_megatron(folder)
    own = frozenset([records.NAME, NOTE, *slices.files, *(OWN if megatron else ())])
    origin = origin_in(folder, {}, own)
    if megatron:
        root, stacked = unstacked(root)
        form = [f"{counted(stacked, 'tensor')} of all layers became one for each layer"] if stacked else []
        root, lines, common = divided(root, folder, whole=whole)
        form += lines
        warnings += common.warnings if common is not None else ()
        warnings.append("Megatron's distributed format: each layer of its stacked tensors is read as one of its own")
    if found.foreign:
        names = printable(", ".join(found.foreign[:4]), 200)
        warnings.append(f"its .metadata name what torch would import to read them: {names}")
    if not planned:
        warnings.append("its .metadata do not tell where its values are in the tree; their names are taken for keys")
    unused = [name for name in folder.names if name.endswith(".distcp") and name not in origin.own]
    if unused:
        warnings.append(f"files that its .metadata do not name: {printable(', '.join(unused[:4]), 200)}")
    return Checkpoint(
        root,
        FORMAT.name,
        folder.path,
        file.size + sum(slices.files[name].size for name in slices.files),
        metadata=metadata,
        origin=origin,
        order_preserved=planned or len(slices.files) < 2,
        warnings=(*warnings, *origin.lines()),
        lost_content=(*slices.lost, *(common.lost_content if common is not None else ())),
        lost_form=tuple(form),
    )


class _Slices:
    """The slices of a directory, each opened once. The same slice is the same storage: so ties are written."""

    def __init__(self, folder: Folder, items: Iterable[Item]) -> None:
        self.folder = folder
        self.files: dict[str, File] = {}
        self.warnings: list[str] = []
        self.lost: list[str] = []
        self._opened: dict[Slice, Any] = {}
        self._alike: dict[tuple[int, Any], Like] = {}  # the last one that was read, by its length and what it is for
        self._headers: dict[str, dict[str, Chunk]] = {}
        self._assembled: dict[Any, Storage] = {}
        places: dict[str, set[tuple[int, int]]] = defaultdict(set)
        boxes = [box for item in items for box in item.boxes]
        folder.expect(dict.fromkeys((box.slice.file for box in boxes if box.slice.file in folder.names), FIRST))
        for box in boxes:
            name = box.slice.file
            if name not in self.files:
                self.files[name] = folder.file(name, records.NAME)
                if safetensors.sniff(self.files[name].read(0, min(9, self.files[name].size))):
                    self._headers[name] = _chunks_in(self.files[name])
            if name not in self._headers:
                places[name].add((box.slice.offset, box.slice.length))
        for name, ranges in places.items():
            self._check_places(self.files[name], sorted(ranges))
            self.files[name].expect(part for at, length in ranges for part in _small_parts(at, length))

    def _check_places(self, file: File, ranges: list[tuple[int, int]]) -> None:
        end = 0
        for offset, length in ranges:
            if offset < end:
                raise Malformed(f"two of its slices overlap at byte {offset:,}", where=file.path)
            end = offset + length
        if end > file.size:
            raise Malformed(
                f"is cut short: its slices reach to byte {end:,}, and it has {file.size:,}",
                where=file.path,
                hint="the save, the download or the copy did not finish; use an earlier checkpoint, or fetch it again",
            )

    def value(self, item: Item) -> Any:
        """The tensor, or the other value, of an item."""
        try:
            if item.dtype is None:
                return self._open(item.boxes[0].slice)
            return self._tensor(item)
        except CheckpointError as error:
            error.where = error.where or str(self.folder.path)
            error.what = f"{printable(repr(item.name), 80)}: {error.what}"
            raise

    def _tensor(self, item: Item) -> LazyTensor:
        assert item.dtype is not None
        chunks = [self._chunk(item, box) for box in item.boxes]
        lone = chunks[0].values if len(chunks) == 1 else None
        if lone is not None and lone.shape == item.shape and not any(chunks[0].offsets):
            return lone.changed(requires_grad=item.requires_grad, parameter=False)
        key = (item.shape, *((chunk.offsets, id(chunk.values.storage)) for chunk in chunks))
        if key not in self._assembled:
            source = assemble(item.shape, item.dtype, chunks)
            location = chunks[0].values.location if chunks else "cpu"
            self._assembled[key] = Storage(source, location, item.dtype if item.dtype.storage else None, item.name)
        stride = contiguous_stride(item.shape)
        made = LazyTensor(self._assembled[key], item.dtype, item.shape, stride, requires_grad=item.requires_grad)
        made.check(self.folder.path, printable(item.name, 80))
        return made

    def _chunk(self, item: Item, box: Box) -> Chunk:
        noted = self._headers.get(box.slice.file)
        if noted is None:
            values = as_dense(self._open(box.slice, (box.sizes, item.dtype)))
        elif item.name in noted and noted[item.name].offsets == box.offsets:
            values = noted[item.name].values
        else:
            raise Malformed("is not where its .metadata say", where=self.files[box.slice.file].path)
        if values is None or values.shape != box.sizes or values.dtype != item.dtype:
            is_there = "no tensor" if values is None else f"{values.dtype} of {list(values.shape)}"
            raise Malformed(
                f"a slice holds {is_there}, where the .metadata say {item.dtype} of {list(box.sizes)}",
                where=self.files[box.slice.file].path,
            )
        return Chunk(box.offsets, values)

    def _open(self, place: Slice, kind: object = None) -> Any:
        """What torch.save wrote in a slice. KIND: the same for slices that may be alike."""
        if place in self._opened:
            return self._opened[place]
        like = self._alike.get((place.length, kind)) if not place.transforms else None
        made = like.read(self.files[place.file], place.offset) if like is not None else None
        if made is not None:
            self._opened[place] = made
            return made
        if place.transforms:
            raise CannotCarry(
                f"is stored through {printable(', '.join(place.transforms), 80)}, which ckptool does not undo",
                where=self.files[place.file].path,
                hint="save it without extensions: dcp.save(…) with a plain FileSystemWriter",
            )
        archive = open_archive(Window(self.files[place.file], place.offset, place.length))
        storage = storages_of(archive, "data/{}", big_endian=is_big_endian(archive))
        reader = TorchReader(read_pickle(archive, "data.pkl"), archive.file.path, storage)
        made = self._opened[place] = reader.load()
        warnings, lost = check_all(reader.others, archive.file.path), reader.lost_content()
        self.warnings += warnings
        self.lost += lost
        like = like_of(archive, made) if not warnings and not lost else None
        if like is not None:
            self._alike[place.length, kind] = like
        return made


def _small_parts(at: int, length: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where an archive of LENGTH bytes at a place has its pickle and its directory, as torch writes it."""
    end = at + length
    return (at, min(at + _PICKLE, end)), (max(end - _DIRECTORY, at), end)


def _tree(values: Iterable[tuple[Item, Any]], file: File, warnings: list[str]) -> Any:
    """The tree with VALUES at their paths, as torch.distributed.checkpoint._traverse.set_element makes it."""
    root: dict[str | int, Any] = {}
    for item, value in values:
        path = (item.name,) if item.path is None else item.path
        node = root
        for part, following in pairwise(path):
            kind = _IntegerKeys if type(following) is int else _TextKeys
            node = node.setdefault(part, kind())
            if type(node) is not kind:
                raise Malformed(f"has two values at the path of {printable(repr(item.name), 80)}", where=file.path)
        if path[-1] in node:
            raise Malformed(f"has two values at the path of {printable(repr(item.name), 80)}", where=file.path)
        node[path[-1]] = value
    return _as_nodes(root, file, warnings)


class _TextKeys(dict[str | int, Any]):
    """A dict of the tree that grows."""


class _IntegerKeys(dict[str | int, Any]):
    """A list of the tree that grows."""


def _as_nodes(node: dict[str | int, Any], file: File, warnings: list[str]) -> Any:
    """The nodes of the tree that NODE grew to. None stands for items that torch left out of lists: empty dicts."""
    below = {
        key: _as_nodes(v, file, warnings) if isinstance(v, _TextKeys | _IntegerKeys) else v for key, v in node.items()
    }
    if not isinstance(node, _IntegerKeys):
        return Dict(list(below.items()))
    numbers = sorted(map(int, node))
    if numbers[0] < 0 or numbers[-1] > 2 * len(numbers) + 1000:
        raise Malformed(f"has a list that lacks items: it has {numbers[:8]}", where=file.path)
    if len(numbers) <= numbers[-1]:
        warnings.append(f"a list in it lacks {numbers[-1] + 1 - len(numbers):,} items, as if they had been empty dicts")
    return List([below.get(number) for number in range(numbers[-1] + 1)])


def _noted(folder: Folder, file: File, root: Dict) -> tuple[Dict, dict[str, str]]:
    """Restore what we noted beside a `.metadata` of ours: kinds of dicts, numbers for keys, and `_metadata`."""
    if NOTE not in folder.names:
        return root, {}
    note_file = folder.file(NOTE, NOTE)
    try:
        note = read_json(note_file.read(0, min(note_file.size, _LARGEST_NOTE)))
        fresh = note["version"] == 1 and note["crc"] == zlib.crc32(file.read(0, file.size))
        if not fresh:
            return root, {}
        seen: dict[int, dict[str, Any]] = {}
        for path, kind in note["dicts"]:
            node = _at(root, path, seen)
            if isinstance(node, Dict):
                node.ordered = bool(kind.get("ordered"))
                if "numbers" in kind:
                    numbers = set(kind["numbers"])
                    node.entries = [(int(key) if key in numbers else key, v) for key, v in node.entries]
                if "_metadata" in kind and node.ordered:  # a plain dict has no attributes
                    entries = [(key, from_plain(value)) for key, value in kind["_metadata"].items()]
                    node.attributes = Dict([("_metadata", Dict(entries, ordered=True))])
        return root, {key: value for key, value in note["metadata"].items() if isinstance(value, str)}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Malformed(
            "is damaged: it holds what ckptool cannot store in .metadata",
            where=note_file.path,
            hint="without this file the folder is read as torch reads it",
        ) from None


def _at(root: Any, path: list[str | int], seen: dict[int, dict[str, Any]]) -> Any:
    """The node at PATH. SEEN keeps the entries of dicts by their names, for the next path."""
    node = root
    for part in path:
        if isinstance(node, List) and type(part) is int and part < len(node.items):
            node = node.items[part]
        elif isinstance(node, Dict) and isinstance(part, str):
            if id(node) not in seen:
                seen[id(node)] = {str(key): value for key, value in reversed(node.entries)}
            node = seen[id(node)].get(part, ABSENT)
        else:
            return ABSENT
    return node


# -- safetensors files of ranks


def _chunks_in(file: File) -> dict[str, Chunk]:
    """The chunks in a safetensors file that one rank wrote, by name."""
    part = safetensors.open_safetensors(file)
    try:
        noted = read_json(part.metadata.get(_OFFSETS, "{}"))
        offsets = {name: tuple(noted[name]["saved_offsets"]) for name, _ in part.root.entries if name in noted}
    except (ValueError, KeyError, TypeError):
        raise Malformed(f"its {_OFFSETS} is none", where=file.path) from None
    chunks = {}
    for name, tensor in part.root.entries:
        start = offsets.get(name, (0,) * len(tensor.shape))
        if len(start) != len(tensor.shape) or not all(type(n) is int and 0 <= n < 1 << 62 for n in start):
            raise Malformed(f"says no place for {printable(repr(name), 80)}", where=file.path)
        chunks[str(name)] = Chunk(start, tensor)
    return chunks


def _open_shards(folder: Folder, names: list[str]) -> Checkpoint:
    """Open the safetensors files of all ranks, which nothing but the notes in their headers holds together."""
    numbers = sorted({int(name[6:11]) for name in names})
    missing = sorted(set(range(1, numbers[-1] + 1)) - set(numbers))
    if missing:
        raise Malformed(
            f"lacks the files of {counted(len(missing), 'rank')}, the first of which is shard-{missing[0]:05d}-…",
            where=folder.path,
            hint="the download or copy did not finish; fetch the missing files",
        )
    chunks: dict[str, list[Chunk]] = defaultdict(list)
    files = [folder.file(name, name) for name in names]
    for file in files:
        for name, chunk in _chunks_in(file).items():
            chunks[name].append(chunk)
    entries: list[tuple[Any, Any]] = []
    for name, held in chunks.items():
        shown = printable(repr(name), 80)
        if len({(chunk.values.dtype, len(chunk.offsets)) for chunk in held}) > 1:
            raise Malformed(f"the chunks of {shown} are of several types or ranks", where=folder.path)
        dtype, shape = held[0].values.dtype, tuple(map(max, zip(*(chunk.ends for chunk in held), strict=True)))
        try:
            source = assemble(shape, dtype, held)
        except Malformed as error:
            error.where, error.what = str(folder.path), f"{shown}: {error.what}"
            raise
        storage = Storage(source, "cpu", dtype if dtype.storage else None, name)
        made = LazyTensor(storage, dtype, shape, contiguous_stride(shape))
        made.check(folder.path, shown)
        entries.append((name, made))
    origin = origin_in(folder, {}, frozenset(names))
    return Checkpoint(
        Dict(entries, ordered=True),
        FORMAT.name,
        folder.path,
        sum(file.size for file in files),
        origin=origin,
        order_preserved=False,
        warnings=(
            "the files of its ranks do not say how large its tensors are; they are taken to reach as far as the chunks",
            "the order of its keys is that of the headers; how they were saved is not known",
            *origin.lines(),
        ),
    )


FORMAT = FolderFormat(
    name="dcp",
    aliases=("distcp", "torch-distributed"),
    summary="a directory of torch.distributed.checkpoint: .metadata and slices of tensors in .distcp files",
    carries="nested dicts and lists of tensors, ties, strides, other values; noted: _metadata, OrderedDict",
    pickles=True,
    within=(),
    fits=fits,
    open=open_dcp,
    draft=draft_dcp,
    join=open_dcp,
    loader="other",
    archive=True,
)
