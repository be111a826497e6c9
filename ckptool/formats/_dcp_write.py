"""Writing a directory of torch.distributed.checkpoint (see `dcp`).

The tree is flattened as torch does it: dicts, and lists that hold tensors, are gone through; everything else is one
value. Names are paths joined by dots. Each value is a slice of its own, a zip archive as torch.save writes it, at a
multiple of 64 bytes in its file. Tensors that are tied are one slice with two names.

What torch does not record (OrderedDict, numbers as keys, `_metadata`, text metadata) is in a file of ours beside
`.metadata`, with the CRC-32 of that, so that the note is not believed after somebody else wrote there.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint import Checkpoint, little_endian_throughout
from ..disk.composing import Piece
from ..disk.documents import through_json
from ..disk.files import Buffer
from ..errors import CannotCarry, counted, printable
from ..inert.in_memory import to_plain
from ..tensor import LazyTensor, Storage, contiguous_stride, is_permutation, permuted
from ..tree import ABSENT, Dict, List, metadata_of
from . import _dcp_metadata as records
from ._dcp_metadata import Box, Item, Path, Slice
from .base import SHARD_SIZE, Draft, Split
from .beside_weights import carried_along
from .torch_zip import draft_zip

#: The file with what `.metadata` cannot say.
NOTE = ".ckptool-note.json"
_ALIGNMENT = 64
#: Most parts of a path; what is deeper is a single value.
_DEEPEST = 50


def draft_dcp(ckpt: Checkpoint, split: Split) -> Draft:
    """Lay out a checkpoint as a directory of torch.distributed.checkpoint."""
    ckpt = little_endian_throughout(ckpt)
    if not isinstance(ckpt.root, Dict):
        raise CannotCarry("is not a dict, and torch.distributed.checkpoint holds nothing else", where=ckpt.where)
    flat = _Flat(ckpt.where)
    leaves = list(flat.leaves((), ckpt.root))
    writer = _Writer(split.most or SHARD_SIZE)
    items = [writer.add(path, value) for path, value in leaves]
    metadata = records.write_metadata(items)
    note = {"version": 1, "crc": zlib.crc32(metadata), "dicts": flat.kinds, "metadata": dict(ckpt.metadata)}
    folder: dict[str, Sequence[Piece]] = dict(writer.files)
    if flat.kinds or ckpt.metadata:
        folder[NOTE] = [Buffer(json.dumps(note).encode())]
    folder[records.NAME] = [Buffer(metadata)]
    beside, lines = carried_along(ckpt, folder)
    form = (*flat.form(), *_form([value for _, value in leaves if isinstance(value, LazyTensor)]), *lines)
    how = f"{counted(len(writer.files), 'file')} of slices, tensors copied as they are"
    return Draft([], form, tuple(flat.content), how, {**beside, **folder})


@dataclass
class _Flat:
    """Goes through a tree, and notes what its paths do not tell."""

    where: str
    kinds: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    _names: dict[str, Path] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _repeated: int = 0
    _left_out: int = 0

    def leaves(self, path: Path, node: Any) -> Iterator[tuple[Path, Any]]:
        """The values below NODE with their paths."""
        if not path or self._goes_on(path, node):
            self._seen.add(id(node))
            if isinstance(node, Dict):
                self._note(path, node)
                below: list[tuple[str | int, Any]] = [(str(key), value) for key, value in node.entries]
            else:
                below = list(enumerate(node.items))
            for part, value in below:
                yield from self.leaves((*path, part), value)
            return
        name = ".".join(map(str, path))
        if name in self._names:
            raise CannotCarry(
                f"has two values that torch.distributed.checkpoint would both call {printable(repr(name), 80)}",
                where=self.where,
                evidence=[printable("/".join(map(str, which)), 100) for which in (self._names[name], path)],
                hint="rename one of them: --rename OLD=NEW",
            )
        self._names[name] = path
        yield path, node

    def _goes_on(self, path: Path, node: Any) -> bool:
        """Whether a node is gone through. One that stands at two places is a single value at the second."""
        if len(path) > _DEEPEST or not isinstance(node, Dict | List) or not _is_container(node):
            return False
        if id(node) in self._seen:
            self._repeated += 1
            return False
        return True

    def _note(self, path: Path, node: Dict) -> None:
        if not path and not _has_plain_keys(node):
            raise CannotCarry("has keys that are neither text nor numbers", where=self.where)
        kind: dict[str, Any] = {"ordered": True} if node.ordered else {}
        numbers = [str(key) for key, _ in node.entries if not isinstance(key, str)]
        if numbers:
            kind["numbers"] = numbers
        metadata = metadata_of(node)
        if metadata is not None:
            try:
                plain = {str(key): to_plain(value) for key, value in metadata.entries}
                kind["_metadata"] = through_json(plain)
                self._left_out += kind["_metadata"] != plain
            except (TypeError, ValueError, RecursionError):
                self._left_out += 1
        others = node.attributes
        if isinstance(others, Dict):
            rest = [str(key) for key, _ in others.entries if key != "_metadata"]
        else:
            rest = [] if others is ABSENT else ["their state"]
        if rest:
            place = printable("/".join(map(str, path)), 80) or "the root"
            self.content.append(f"attributes of the dict at {place}: {printable(', '.join(rest), 120)}")
        if kind:
            self.kinds.append((path, kind))

    def form(self) -> Iterator[str]:
        """What changes in form, in lines."""
        if self._repeated:
            yield f"{counted(self._repeated, 'value')} that stand at several places are stored at each"
        if self._left_out:
            yield "_metadata that are not plain data are changed or left out"


def _is_container(node: Dict | List) -> bool:
    """Whether torch goes through a node, as `_traverse` has it; and whether keys and paths can tell what is in it.

    A list is one if there is a tensor or such a dict in it, or in a list in it. What stands at many places is looked at
    once.
    """
    seen: set[int] = set()
    level: list[Any] = [node]
    for _ in range(_DEEPEST + 1):
        below = []
        for one in level:
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, LazyTensor) or (isinstance(one, Dict) and one.entries and _has_plain_keys(one)):
                return True
            if isinstance(one, List):
                below += one.items
        level = below
    return any(isinstance(one, LazyTensor) for one in level)


def _has_plain_keys(node: Dict) -> bool:
    keys = [key for key, _ in node.entries]
    return all(isinstance(key, str) or type(key) is int for key in keys) and len(set(map(str, keys))) == len(keys)


class _Writer:
    """Puts slices into files, one after the other."""

    def __init__(self, most: int) -> None:
        self.files: dict[str, list[Piece]] = {}
        self._most = most
        self._position = 0
        self._name = ""
        self._known: dict[Any, Slice] = {}

    def add(self, path: Path, value: Any) -> Item:
        """A slice with VALUE, and what `.metadata` say of it."""
        name = ".".join(map(str, path))
        if not isinstance(value, LazyTensor):
            return Item(name, path, [Box((), (), self._slice(value))])
        place = self._known.get(value.identity) if value.numel else None
        if place is None:
            place = self._known[value.identity] = self._slice(_alone(value))
        box = Box((0,) * len(value.shape), value.shape, place)
        return Item(name, path, [box], value.dtype, value.shape, value.requires_grad)

    def _slice(self, value: Any) -> Slice:
        pieces = draft_zip(Checkpoint(value)).pieces
        length = sum(piece.length for piece in pieces)
        if not self._name or (self._position and self._position + length > self._most):
            self._name = f"__{len(self.files)}_0.distcp"
            self.files[self._name] = []
            self._position = 0
        gap = -self._position % _ALIGNMENT
        self.files[self._name] += [Buffer(bytes(gap)), *pieces] if gap else pieces
        place = Slice(self._name, self._position + gap, length)
        self._position += gap + length
        return place


def _alone(tensor: LazyTensor) -> LazyTensor:
    """A tensor as torch stores one: over a storage that holds nothing else. Permuted strides stay."""
    tensor = tensor.changed(requires_grad=False, parameter=False)
    in_order = is_permutation(tensor.shape, tensor.stride)
    fills = tensor.offset == 0 and tensor.nbytes == tensor.storage.nbytes and not tensor.conj and not tensor.neg
    if fills and in_order:
        return tensor
    storage = Storage(tensor.source(), tensor.location, tensor.storage.dtype)
    values = LazyTensor(storage, tensor.dtype, tensor.shape, contiguous_stride(tensor.shape))
    return permuted(values, tensor.stride) if in_order and tensor.numel and not tensor.is_contiguous else values


def _form(tensors: Sequence[LazyTensor]) -> Iterator[str]:
    alone = {tensor.identity: tensor for tensor in tensors if tensor.numel}
    parts = sum(t.nbytes != t.storage.nbytes or t.conj or t.neg for t in alone.values())
    if parts:
        yield counted(
            parts,
            "tensor that is a part of a storage is stored on its own",
            "tensors that are parts of storages are stored on their own",
        )
    parameters = sum(tensor.parameter for tensor in tensors)
    if parameters:
        are = counted(parameters, "tensor is a parameter", "tensors are parameters")
        yield f"that {are} is not recorded; that gradients are required is"
