"""`.metadata` of torch.distributed.checkpoint: a pickle that says which slices of which files a checkpoint is made of.

    Metadata
      state_dict_metadata  {name: TensorStorageMetadata(properties, size, chunks) or BytesStorageMetadata()}
      planner_data         {name: path}: ("optimizer", "state", 0, "step"); names are paths joined by dots
      storage_data         {MetadataIndex(fqn, offset, index): _StorageInfo(relative_path, offset, length)}
      storage_meta         StorageMeta(checkpoint_id, save_id, load_id, modules)
      version              "1.0.0"

torch unpickles this file without any restriction. Here it is read by our own machine, and nothing in it runs. Records:
torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.13; written with protocol 2, which torch reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..disk.files import File
from ..dtypes import BY_NAME, DType
from ..errors import Malformed, printable
from ..inert.allowed import beyond_plain_data, is_plain_data
from ..inert.other_tensors import numbers
from ..tree import Dict, Global, List, Object
from ._records import LARGEST_PICKLE
from .pickle.reader import Reader
from .pickle.writer import write_pickle

NAME = ".metadata"
_RECORDS = "torch.distributed.checkpoint.metadata"
_STORAGE_INFO = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Where an item is: a part of a file, itself what torch.save writes."""

    file: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A chunk of a tensor and where it is. A value that is no tensor has neither offsets nor sizes."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    slice: Slice


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a checkpoint.

    Attributes:
        name: its path, joined by dots.
        path: where it is in the tree, or None if the file does not tell.
        boxes: its chunks; of a value that is no tensor, one.
        dtype, shape, requires_grad: of a tensor. A dtype of None marks another value.
    """

    name: str
    path: Path | None
    boxes: Sequence[Box]
    dtype: DType | None = None
    shape: tuple[int, ...] = ()
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    """What `.metadata` says.

    Attributes:
        items: in the order of the tree where that is known, else as they are listed.
        foreign: names beyond torch's own records, which torch would import to read the file.
    """

    items: Sequence[Item]
    foreign: Sequence[str] = field(default_factory=tuple)


def read_metadata(file: File) -> Metadata:
    """Read `.metadata` and compare its parts with each other.

    Raises:
        Malformed: it is no such file, or contradicts itself.
    """
    return _Parser(file).parse()


class _Parser:
    def __init__(self, file: File) -> None:
        self.where = file.path
        if file.size > LARGEST_PICKLE:
            self._fail(f"has {file.size:,} bytes; {LARGEST_PICKLE:,} is the limit")
        self.data = file.read(0, file.size)

    def _fail(self, what: str) -> NoReturn:
        raise Malformed(what, where=self.where)

    def _no_storage(self, pid: Any) -> Any:
        self._fail("holds a storage where none can be")

    def parse(self) -> Metadata:
        reader = Reader(self.data, self.where, self._no_storage)
        root = reader.load()
        whole = self._record(root, "Metadata")
        listed = self._pairs(whole.get("state_dict_metadata"), "state_dict_metadata")
        slices = self._slices(whole.get("storage_data"))
        paths = self._paths(whole.get("planner_data"), {name for name, _ in listed})
        items = [self._item(name, entry, slices, paths.get(name)) for name, entry in listed]
        if slices:
            name, offsets = next(iter(slices))
            self._fail(f"has a slice of {printable(repr(name), 80)} at {offsets}, which is not a chunk of it")
        place = {name: number for number, name in enumerate(paths)}
        items.sort(key=lambda item: place.get(item.name, len(place)))  # stable
        foreign = () if is_plain_data(reader.named, reader.made) else sorted(beyond_plain_data(root))
        return Metadata(items, foreign)

    def _record(self, node: Any, name: str, module: str = _RECORDS) -> dict[str, Any]:
        """The attributes of a record."""
        state = node.state if isinstance(node, Object) and str(node.callee) == f"{module}.{name}" else None
        if not isinstance(state, Dict) or not all(isinstance(key, str) for key, _ in state.entries):
            self._fail(f"has no {name} where torch writes one")
        return {str(key): value for key, value in state.entries}

    def _pairs(self, node: Any, what: str) -> list[tuple[str, Any]]:
        if not isinstance(node, Dict) or not all(isinstance(key, str) for key, _ in node.entries):
            self._fail(f"its {what} is not a dict of names")
        pairs = [(str(key), value) for key, value in node.entries]
        if len(dict(pairs)) != len(pairs):
            self._fail(f"its {what} has a name twice")
        return pairs

    def _slices(self, node: Any) -> dict[tuple[str, tuple[int, ...] | None], Slice]:
        if not isinstance(node, Dict):
            self._fail("its storage_data is not a dict")
        slices: dict[tuple[str, tuple[int, ...] | None], Slice] = {}
        for key, value in node.entries:
            index = self._record(key, "MetadataIndex")
            name, offset = index.get("fqn"), index.get("offset")
            info = self._record(value, _STORAGE_INFO.name, _STORAGE_INFO.module)
            path, start, length = (info.get(part) for part in ("relative_path", "offset", "length"))
            offsets = None if offset is None else numbers(offset)
            if not isinstance(name, str) or (offsets is None) != (offset is None):
                self._fail("has an index that is none")
            if not isinstance(path, str) or type(start) is not int or type(length) is not int or min(start, length) < 0:
                self._fail(f"says no place for {printable(repr(name), 80)}")
            if (str(name), offsets) in slices:
                self._fail(f"has two slices of {printable(repr(name), 80)} at {offsets}")
            listed = info.get("transform_descriptors")
            steps = listed.items if isinstance(listed, List) else listed
            if steps is not None and not isinstance(steps, list | tuple):
                self._fail(f"says no place for {printable(repr(name), 80)}")
            transforms = tuple(map(str, steps or ()))
            slices[str(name), offsets] = Slice(str(path), start, length, transforms)
        return slices

    def _paths(self, node: Any, names: set[str]) -> dict[str, Path]:
        """The paths of names. Newer versions put them into a list with other data; without any, names are keys."""
        if not isinstance(node, Dict):
            return {}
        paths: dict[str, Path] = {}
        for name, path in node.entries:
            path = tuple(path.items) if isinstance(path, List) else path
            fine = isinstance(path, tuple) and path and all(isinstance(p, str) or type(p) is int for p in path)
            if not isinstance(name, str) or not fine or isinstance(path[0], int) or len(path) > 64:
                self._fail(f"gives {printable(repr(name), 80)} a path that is none")
            if str(name) in names:
                paths[str(name)] = path
        return paths

    def _item(
        self, name: str, node: Any, slices: dict[tuple[str, tuple[int, ...] | None], Slice], path: Path | None
    ) -> Item:
        shown = printable(repr(name), 80)
        if isinstance(node, Object) and str(node.callee) == f"{_RECORDS}.BytesStorageMetadata":
            place = slices.pop((name, None), None)
            if place is None:
                self._fail(f"has no slice of {shown}")
            return Item(name, path, [Box((), (), place)])
        tensor = self._record(node, "TensorStorageMetadata")
        dtype, requires_grad = self._properties(tensor.get("properties"), shown)
        shape, chunks = numbers(tensor.get("size")), tensor.get("chunks")
        if shape is None or min(shape, default=0) < 0 or not isinstance(chunks, List):
            self._fail(f"{shown} has no size or no chunks")
        boxes = []
        for chunk in chunks.items:
            parts = self._record(chunk, "ChunkStorageMetadata")
            offsets, sizes = numbers(parts.get("offsets")), numbers(parts.get("sizes"))
            if offsets is None or sizes is None or len(offsets) != len(sizes) or min(*offsets, *sizes, 0, 0) < 0:
                self._fail(f"{shown} has a chunk without offsets or sizes")
            place = slices.pop((name, offsets), None)
            if place is None and 0 not in sizes:
                self._fail(f"has no slice of {shown} at {list(offsets)}, though a chunk of it is there")
            if place is not None:
                boxes.append(Box(offsets, sizes, place))
        return Item(name, path, boxes, dtype, shape, requires_grad)

    def _properties(self, node: Any, shown: str) -> tuple[DType, bool]:
        """The type, and whether gradients are required: of a tuple, or (before torch 2.0) of attributes."""
        state = node.state if isinstance(node, Object) else None
        if isinstance(state, tuple) and len(state) == 5:
            named, grad = state[0], state[2]
        elif isinstance(state, Dict):
            named, grad = state.get("dtype"), state.get("requires_grad")
        else:
            self._fail(f"{shown} has no properties")
        dtype = BY_NAME.get(named.name) if isinstance(named, Global) and named.module == "torch" else None
        if dtype is None:
            self._fail(f"{shown} has the unknown type {printable(str(named), 60)}")
        return dtype, grad is True


# -- writing


def write_metadata(items: Sequence[Item]) -> bytes:
    """The bytes of `.metadata` for ITEMS. Equal texts are one object in it, so that equal items give equal bytes."""
    texts: dict[str, str] = {}
    sizes: dict[tuple[int, ...], Object] = {}

    def one(text: str) -> str:
        return texts.setdefault(text, text)

    def size(numbers: tuple[int, ...]) -> Object:
        return sizes.setdefault(numbers, Object("reduce", Global("torch", "Size"), (numbers,)))

    entries: list[tuple[Any, Any]] = []
    places: list[tuple[Any, Any]] = []
    layout = Object("reduce", Global("torch.serialization", "_get_layout"), ("torch.strided",))
    memory_format = Object("reduce", Global(_RECORDS, "_MEM_FORMAT_ENCODING"), (0,))
    for item in items:
        indexed = item.dtype is not None
        for number, box in enumerate(item.boxes):
            index = {"fqn": one(item.name), **({"offset": size(box.offsets), "index": number} if indexed else {})}
            place = {"relative_path": one(box.slice.file), "offset": box.slice.offset, "length": box.slice.length}
            places.append((_made("MetadataIndex", index), _made(_STORAGE_INFO, place)))
        if item.dtype is None:
            entries.append((one(item.name), _made("BytesStorageMetadata", {})))
            continue
        properties = Object(
            "newobj",
            Global(_RECORDS, "TensorProperties"),
            (),
            [("state", (Global("torch", item.dtype.name), layout, item.requires_grad, memory_format, False))],
        )
        chunks = [
            _made("ChunkStorageMetadata", {"offsets": size(box.offsets), "sizes": size(box.sizes)})
            for box in item.boxes
        ]
        fields = {"properties": properties, "size": size(item.shape), "chunks": List(chunks)}
        entries.append((one(item.name), _made("TensorStorageMetadata", fields)))
    paths: list[tuple[Any, Any]] = [
        (one(item.name), tuple(one(part) if isinstance(part, str) else part for part in item.path))
        for item in items
        if item.path is not None
    ]
    storage_meta = {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": List([])}
    root = _made(
        "Metadata",
        {
            "state_dict_metadata": Dict(entries),
            "planner_data": Dict(paths),
            "storage_data": Dict(places),
            "storage_meta": _made("StorageMeta", storage_meta),
            "version": "1.0.0",
        },
    )
    return bytes(write_pickle(root, _no_storages))


def _made(record: str | Global, fields: dict[str, Any]) -> Object:
    """A record with its attributes, as pickle makes one."""
    named = Global(_RECORDS, record) if isinstance(record, str) else record
    return Object("newobj", named, (), [("state", Dict(list(fields.items())))] if fields else [])


def _no_storages(storage: object) -> NoReturn:
    raise AssertionError("the metadata hold no tensor")
