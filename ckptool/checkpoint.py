"""A checkpoint: the tree that was saved and where it came from, and a primitive that passes are built on.

`map_storages` replaces storages wherever they are. It returns a new checkpoint and leaves the old one as it was; no
tensor is read. The other primitive, which renames keys, is `ckptool.passes.rekeying.rekey`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .disk.files import same_bytes, shell_path, shell_quote
from .disk.inside import Folder
from .dtypes import DType
from .errors import Ambiguous, NotFound, counted, printable
from .inert.in_memory import to_plain
from .inert.other_tensors import OtherTensor, other_tensor, others_in
from .inert.pickled_models import PickledModule, find_modules, is_module, state_dict_of
from .keys import find_wrappers, outline
from .records import record
from .tensor import LazyTensor, Storage, View, distinct, little_endian, totals, views_of, width_of_numbers
from .tree import (
    ABSENT,
    Dict,
    Mapped,
    Object,
    Paths,
    address,
    component_text,
    descend,
    holds_tensors_alone,
    is_mapping,
    mapping_of,
    metadata_of,
    names_of,
    rebuild,
    trail_to,
    value_column,
    walk,
)
from .weights import around as entries_around
from .weights import find_state_dicts


class SideFile(NamedTuple):
    """A file beside the weights that passes changed.

    Attributes:
        data: what is in it now; None leaves it behind.
        lines: what changed, a line each.
    """

    data: bytes | None
    lines: tuple[str, ...]


@record(frozen=True, slots=True)
class Role:
    """What a tensor is in the framework that wrote it, as far as the file tells.

    Letters of `axes`, one for each dimension of the tensor as it is shown:

        I    inputs; of a convolution in groups those of one group, so that a depthwise kernel has one
        O    outputs
        M    outputs for each input of a depthwise convolution ("HWIM": output i * M + m comes from input i)
        D, H, W    depth, height, width
        V    entries of a table that are looked up
        N    a stack of several that are alike: experts, directions

    A letter that stands twice ("IOO", the heads of an attention) is one axis that is divided, its slow part first.

    Attributes:
        layer: the kind of layer or operator, in the framework's own word ("Conv2D", "Gemm"), or "".
        part: what it is there, in the words of Keras, whatever the framework says: "kernel", "recurrent_kernel",
            "depthwise_kernel", "pointwise_kernel", "bias", "embeddings", "gamma" (the factor of a norm), "beta" (what a
            norm adds), "moving_mean", "moving_variance", "alpha" (slopes); or "".
        axes: see above; "" where they are not known, and for tensors of one dimension.
        told_by: what it was told by: "operator" (the operator of the graph that takes it), "class" (the class of its
            layer, as the file gives it), or "name" (its name and its number of dimensions, by what the framework's
            layers call their weights: then a layer of a program's own may mean another thing by that name).
    """

    layer: str = ""
    part: str = ""
    axes: str = ""
    told_by: str = ""


#: State dicts, and tensors of each, in the table of a notebook.
_TABLES, _ROWS = 4, 50


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved, and where it came from.

    Attributes:
        root: the tree (see `ckptool.tree`).
        format: name of the format it was read from, "memory" if from none.
        path: the file, or None.
        nbytes: size of the file.
        metadata: text that the file carries beside the tree (the `__metadata__` of safetensors).
        origin: what the format needs to write the file back with little change; of no use to others.
        order_preserved: keys are in the order in which they were saved (safetensors files lose it).
        warnings: oddities that were noticed while opening.
        at: path of the state dict, if somebody named it; else it is looked for.
        lost_content: content that no rewrite can keep, since reading already left it behind.
        lost_form: form that no rewrite can keep, for the same reason.
        history: what passes did, a line each.
        ties: how a format that cannot share memory stores tied tensors: "keep" (each, with a note), "drop" (one of
            them, with a note, as `save_model` of safetensors), or "" as they came: "drop" if there are `tied_names`.
        tied_names: keys that the file itself does not hold: its notes say that they are other keys' tensors.
        folder: the directory that it came from, with the files beside the weights; None for a single file.
        side_files: of those, the ones that passes changed, by name. They are written where the others are copied.
        part_of: what this file is a part of ("shard 1 of 3 of a checkpoint in several files"); "" for the whole.
        sealed: why the whole cannot be written to a pickle, nor its keys changed ("is a TorchScript archive: …"); ""
            if it can. Extracting the weights takes them out.
        framework: the framework that wrote it, where the file says so: "keras", "tensorflow", "tensorflow.js", "flax",
            "orbax", "equinox", "onnx", "mlx", "paddle", "llama.cpp", "numpy", "joblib"; "" if it does not, or is torch.
        roles: what each tensor is there, by its key in its state dict, as far as the file tells (see `Role`). Passes
            that rename keys rename these.
    """

    root: Any
    format: str = "memory"
    path: Path | None = None
    nbytes: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: Any = None
    order_preserved: bool = True
    warnings: tuple[str, ...] = ()
    at: str | None = None
    lost_content: tuple[str, ...] = ()
    lost_form: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    sealed: str = ""
    ties: str = ""
    tied_names: tuple[str, ...] = ()
    part_of: str = ""
    framework: str = ""
    roles: Mapping[str, Role] = field(default_factory=dict)
    folder: Folder | None = None
    side_files: dict[str, SideFile] = field(default_factory=dict)
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The file name for messages, "" for a checkpoint in memory."""
        return str(self.path) if self.path else ""

    def tensors(self) -> Iterator[tuple[str, LazyTensor]]:
        """Every tensor in the tree with its path, at every place where it stands, in the order of the file."""
        paths = Paths()
        for trail, node in walk(self.root):
            if isinstance(node, LazyTensor):
                yield paths.of(trail), node

    def other_tensors(self) -> Iterator[tuple[str, OtherTensor]]:
        """Every tensor that is no dense one (sparse, quantized, a numpy array …) with its path, once each."""
        paths = Paths()
        for trail, _, other in others_in(self.root):
            yield paths.of(trail), other

    def storages(self) -> list[Storage]:
        """Every storage in the tree, once each, in the order in which it is first met."""
        if "storages" not in self._known:
            found: list[Storage] = []
            for _, node in walk(self.root, holds_tensors_alone):
                if isinstance(node, LazyTensor | Storage):
                    found.append(node.storage if isinstance(node, LazyTensor) else node)
                elif holds_tensors_alone(node):
                    found += map(attrgetter("storage"), value_column(node.entries))
            self._known["storages"] = list(dict.fromkeys(found))
        return list(self._known["storages"])

    def state_dicts(self) -> list[StateDict]:
        """The state dicts in it: the dicts of tensors that hold a model's weights (see `ckptool.weights`).

        Without any, those that can be recovered from whole pickled models.
        """
        if "state dicts" not in self._known:  # many ask for them, and the whole tree is searched
            found = [StateDict(node, path) for path, node in find_state_dicts(self.root)]
            models = [] if found else find_modules(self.root)
            self._known["state dicts"] = found or [recovered(module, self.where) for module in models]
        return list(self._known["state dicts"])

    def state_dict(self, at: str | None = None) -> StateDict:
        """The state dict in it, or the one at the path AT.

        Raises:
            NotFound: there is none.
            Ambiguous: there are several and AT does not say which.
        """
        return _the_state_dict(self, at)

    def noting(self, *lines: str) -> Checkpoint:
        """The same checkpoint with further lines in its history."""
        return replace(self, history=(*self.history, *lines))

    def __getitem__(self, key: Any) -> Any:
        """What stands under a key of the root: a `StateDict`, a `LazyTensor`, or plain values that hold tensors."""
        node = self._entries()[key]
        return self._known["by node"].get(id(node)) or to_plain(node)

    def __contains__(self, key: Any) -> bool:
        return key in self._entries()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        return True

    def keys(self) -> list[Any]:
        """The keys at the root, those of Python's own types: none if the root is no dict."""
        return list(self._entries())

    def _entries(self) -> dict[Any, Any]:
        """The entries of the root by key. A flat checkpoint has as many as tensors, so they are collected once."""
        if "entries" not in self._known:
            found = self.root.entries if isinstance(self.root, Dict) else []
            self._known["entries"] = {key: node for key, node in found if _plain_key(key)}
            self._known["by node"] = {id(one.node): one for one in self.state_dicts()}
        known: dict[Any, Any] = self._known["entries"]
        return known

    def values(self) -> list[Any]:
        """What stands under them, as `ckpt[key]` gives it."""
        return [self[key] for key in self.keys()]

    def items(self) -> list[tuple[Any, Any]]:
        """Both."""
        return [(key, self[key]) for key in self.keys()]

    def get(self, key: Any, default: Any = None) -> Any:
        """What stands under a key, or DEFAULT."""
        with suppress(KeyError):
            return self[key]
        return default

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of the tensors of each state dict, the first of many."""
        from html import escape

        parts = [f"<p><b>{escape(printable(self.where) or self.format)}</b></p>"]
        for one in self.state_dicts()[:_TABLES]:
            rows = "".join(
                f"<tr><td><code>{escape(printable(key, 120))}</code></td><td>{list(t.shape)}</td>"
                f"<td>{t.dtype.name}</td><td>{escape(printable(t.location, 40))}</td></tr>"
                for key, t in islice(one.tensors.items(), _ROWS)
            )
            more = f"<p>… and {len(one.tensors) - _ROWS:,} more</p>" if len(one.tensors) > _ROWS else ""
            title = f"{printable(one.path)}: {counted(len(one), 'key')}, {counted(one.parameters, 'parameter')}"
            parts.append(f"<p>{escape(title.removeprefix(': '))}</p><table>{rows}</table>{more}")
        return "".join(parts)

    def __dir__(self) -> list[str]:
        """What is completed: without the fields that formats and passes keep for the writer."""
        return [name for name in object.__dir__(self) if name not in _FOR_WRITERS]

    def __repr__(self) -> str:
        return (
            f"Checkpoint({str(self.path) if self.path else self.format!r}, {counted(len(self.storages()), 'storage')})"
        )


#: Fields of a checkpoint that its writer reads, and nobody else.
_FOR_WRITERS = frozenset(
    "at folder lost_content lost_form order_preserved origin part_of sealed side_files tied_names ties".split()
)


def _plain_key(key: Any) -> bool:
    return all(map(_plain_key, key)) if isinstance(key, tuple) else isinstance(key, str | int | float | bytes | None)


_Found = TypeVar("_Found")


class StateDict(Mapping[str, LazyTensor]):
    """A state dict inside a checkpoint: key -> tensor, in the order in which it was saved.

    Attributes:
        node: its place in the tree. For one that was recovered from a pickled model it is made anew.
        path: the path of that place, "" at the root; of a recovered one that of the model.
        model: the pickled model that it was recovered from, or None.
        places: of a recovered one, the path of each of its tensors.
        lost: of a pickled model, parts whose weights cannot be told, a line each.
        aside: of a pickled model, names of tensors among its attributes that no state dict holds.
        strangers: of a pickled model, classes that are not torch's and may add to a state dict by code.
    """

    def __init__(self, node: Mapped, path: str, model: Object | None = None) -> None:
        self.node = node
        self.path = path
        self.model = model
        self.places: dict[str, str] = {}
        self.lost: tuple[str, ...] = ()
        self.aside: tuple[str, ...] = ()
        self.strangers: tuple[str, ...] = ()
        self._found: dict[Any, Any] = {}
        self._plain = holds_tensors_alone(node)

    @cached_property
    def _values(self) -> dict[str, Any]:
        entries = self.node.entries
        return (
            mapping_of(entries) if self._plain else {str(key): value for key, value in entries if isinstance(key, str)}
        )

    @cached_property
    def _names(self) -> dict[str, Any]:
        """A dict of the same keys. Of many tensors, it needs none of them."""
        return names_of(self.node.entries) if self._plain else self._values

    def __getitem__(self, key: str) -> LazyTensor:
        found: LazyTensor = self._values[key]  # of the few kinds that `others` lists, its node
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def items(self) -> ItemsView[str, LazyTensor]:
        """Both; a mapping's own asks for each value by its key."""
        return self._values.items()

    @cached_property
    def tensors(self) -> dict[str, LazyTensor]:
        """The entries that are dense tensors."""
        if self._plain:
            return self._values
        return {key: value for key, value in self._values.items() if isinstance(value, LazyTensor)}

    @cached_property
    def others(self) -> dict[str, OtherTensor]:
        """The entries that are tensors of other kinds: sparse, quantized, numpy arrays and so on."""
        if self._plain:
            return {}
        found = {key: other_tensor(value) for key, value in self._values.items() if not isinstance(value, LazyTensor)}
        return {key: other for key, other in found.items() if other is not None}

    @property
    def parameters(self) -> int:
        """Number of elements of all tensors, tied ones counted once, of sparse ones those that are stored."""
        return self._totals[0] + sum(other.numel for other in self.others.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, counted in the same way."""
        return self._totals[1] + sum(other.nbytes for other in self.others.values())

    @cached_property
    def column(self) -> Sequence[LazyTensor]:
        """Its dense tensors without their keys; of one file, they may not have been made yet (see `TensorColumn`)."""
        entries = self.node.entries
        return value_column(entries) if self._plain and len(self) == len(entries) else list(self.tensors.values())

    @cached_property
    def views(self) -> Counter[View]:
        """How its dense tensors look at their storages, which is the same of many, and how many there are of each."""
        return views_of(self.column)

    @cached_property
    def _distinct(self) -> Sequence[LazyTensor]:
        return distinct(self.column)

    @cached_property
    def _totals(self) -> tuple[int, int]:
        return totals(self.views if len(self._distinct) == len(self.column) else views_of(self._distinct))

    @cached_property
    def wrappers(self) -> dict[str, int]:
        """The wrappers that its keys go through, and how many keys go through each (see `keys.find_wrappers`)."""
        return find_wrappers(self._names, self.outline)

    @cached_property
    def outline(self) -> str:
        """What its keys have in them apart from the numbers (see `keys.outline`)."""
        return outline(self._names)

    def once(self, find: Callable[[StateDict], _Found]) -> _Found:
        """What FIND finds in it, which is not searched for again."""
        if find not in self._found:
            self._found[find] = find(self)
        found: _Found = self._found[find]
        return found

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The `_metadata` that torch keeps beside the keys (module path -> {"version": …}), or None."""
        found = metadata_of(self.node)
        return None if found is None else {str(path): to_plain(value) for path, value in found.entries}

    def ties(self) -> list[list[str]]:
        """Groups of keys whose tensors are the same view of the same storage."""
        return ties_of(self.tensors) if len(self._distinct) < len(self.column) else []

    def __repr__(self) -> str:
        return f"StateDict({self.path!r}, {counted(len(self), 'key')})"


def recovered(module: PickledModule, where: object = "") -> StateDict:
    """The state dict that a whole pickled model would give (see `ckptool.inert.pickled_models`)."""
    found = state_dict_of(module, where)
    made = StateDict(found.node, address(module.trail), module.node)
    paths = Paths()
    made.places = {key: paths.of(trail) for key, trail in found.places.items()}
    made.lost, made.aside, made.strangers = found.lost, found.aside, found.strangers
    return made


def _the_state_dict(ckpt: Checkpoint, at: str | None = None) -> StateDict:
    at = ckpt.at if at is None else at
    if at is not None:
        node = descend(ckpt.root, at)
        known: list[StateDict] = ckpt._known.setdefault("asked for", [])
        one: StateDict
        for one in (*known, *ckpt._known.get("state dicts", ())):  # with all that was found out about it
            if node is (one.model or one.node) and one.path == at:
                return one
        if is_module(node) or is_mapping(node):
            module = is_module(node)
            known.append(recovered(PickledModule(node, trail_to(at)), ckpt.where) if module else StateDict(node, at))
            return known[-1]
        what = "nothing is" if node is ABSENT else "there is no dict"
        raise NotFound(f"{what} at {printable(repr(at))}", where=ckpt.where, evidence=_overview(ckpt), hint=_look(ckpt))
    found = ckpt.state_dicts()
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound("holds no state dict", where=ckpt.where, evidence=_overview(ckpt), hint=_look(ckpt))
    width = max(len(printable(one.path, 60)) for one in found[:8])
    raise Ambiguous(
        f"holds {len(found)} state dicts; say which one:",
        where=ckpt.where,
        evidence=[
            f"{printable(one.path, 60):{width}}   {counted(len(one), 'key')}   {counted(one.parameters, 'parameter')}"
            for one in found[:8]
        ]
        + (["…"] if len(found) > 8 else []),
        hint=f"--at {shell_quote(found[0].path, 200)}",
    )


def _overview(ckpt: Checkpoint) -> list[str]:
    """What stands at the root, in a line or two."""
    root = ckpt.root
    if isinstance(root, Dict):
        keys = [printable(component_text(key), 40) for key, _ in root.entries[:8] if isinstance(key, str | int)]
        return [f"at the root: {', '.join(keys)}{', …' if len(root.entries) > 8 else ''}"] if keys else []
    if isinstance(root, Object):
        return [f"the root is an object of class {printable(root.class_name, 80)}"]
    return [f"the root is a {type(root).__name__.lower()}"]


def _look(ckpt: Checkpoint) -> str | None:
    return f"ckptool inspect {shell_path(ckpt.where)}" if ckpt.path else None


def around(ckpt: Checkpoint, weights: StateDict) -> list[str]:
    """What stands around a state dict, an entry a line, with the number of tensors in it."""
    lines: list[str] = []
    if weights.model is not None:
        lines = [f"the model around them: an object of class {printable(weights.model.class_name, 80)}", *weights.lost]
    return lines + entries_around(ckpt.root, weights.model or weights.node)


def ties_of(tensors: Mapping[str, LazyTensor]) -> list[list[str]]:
    """Groups of keys whose tensors are the same view of the same storage."""
    if len(distinct(list(tensors.values()))) == len(tensors):
        return []
    groups: dict[Any, list[str]] = {}
    for key, t in tensors.items():
        if t.numel:
            groups.setdefault(t.identity, []).append(key)
    return [keys for keys in groups.values() if len(keys) > 1]


def map_storages(ckpt: Checkpoint, change: Callable[[Storage], Storage]) -> Checkpoint:
    """Replace storages wherever they are in the tree: under tensors, and bare in pickled objects. Ties stay ties."""
    made: dict[int, Storage] = {}

    def mapped(storage: Storage) -> Storage:
        if id(storage) not in made:
            made[id(storage)] = change(storage)
        return made[id(storage)]

    def leaf(node: LazyTensor | Storage) -> LazyTensor | Storage:
        return mapped(node) if isinstance(node, Storage) else node.over(mapped(node.storage))

    return replace(ckpt, root=rebuild(ckpt.root, leaf=leaf))


def little_endian_throughout(ckpt: Checkpoint) -> Checkpoint:
    """The same checkpoint with the bytes of big-endian storages turned round as they are read.

    One that tensors of several widths look at becomes one for each.
    """
    if not any(storage.big_endian for storage in ckpt.storages()):
        return ckpt
    seen_as = {id(t.storage): t.dtype for _, t in ckpt.tensors()}
    made: dict[tuple[int, int], Storage] = {}

    def turned(storage: Storage, dtype: DType | None) -> Storage:
        place = id(storage), width_of_numbers(storage, dtype)
        if place not in made:
            made[place] = little_endian(storage, dtype)
        return made[place]

    def leaf(node: LazyTensor | Storage) -> LazyTensor | Storage:
        if isinstance(node, Storage):
            return turned(node, seen_as.get(id(node)))
        return node.changed(storage=turned(node.storage, node.dtype)) if node.storage.big_endian else node

    return replace(ckpt, root=rebuild(ckpt.root, leaf=leaf))


def settle_ties(ckpt: Checkpoint) -> Checkpoint:
    """Compare the tensors that a note calls tied: equal ones become one storage, different ones stay apart."""
    ties: dict[int, Storage] = {}
    broken: list[str] = []

    def settled(storage: Storage) -> Storage:
        if storage.tie is None:
            return storage
        first = ties.setdefault(id(storage.tie), storage)
        if first is not storage and not same_bytes(first.source, storage.source):
            broken.append(f"note: {printable(storage.key)} is no longer tied to {printable(first.key)}: they differ")
            return storage.changed(tie=None)
        return alone.setdefault(id(storage.tie), first.changed(tie=None))

    alone: dict[int, Storage] = {}
    if all(storage.tie is None for storage in ckpt.storages()):
        return ckpt
    done = map_storages(ckpt, settled)
    return done.noting(*broken)
