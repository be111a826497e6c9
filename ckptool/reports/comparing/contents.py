"""What is in a file by names that do not depend on its container: what two files can be compared by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...checkpoint import Checkpoint, StateDict
from ...disk.files import Buffer
from ...dtypes import BY_NAME
from ...errors import printable
from ...inert.other_tensors import OtherTensor, other_tensor
from ...tensor import LazyTensor, Storage
from ...tree import NODES, Dict, Global, List, Paths, Set, component_text, walk

#: Longest text of an entry that is kept for showing.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a checkpoint, by name.

    Attributes:
        weights: the tensors of its state dicts, by key if there is one, else by path.
        others: all other tensors, by path.
        entries: what is no tensor, by path, as text.
        layers: of pickled models, the class and the settings (eps, stride, …) of each module, by path, as text.
    """

    weights: dict[str, LazyTensor]
    others: dict[str, LazyTensor]
    entries: dict[str, str]
    layers: dict[str, str]


def contents_of(ckpt: Checkpoint, state_dicts: list[StateDict], *, by_key: bool) -> Contents:
    """Take a checkpoint apart. BY_KEY: there is one state dict, and its tensors are named by their keys."""
    found = Contents({}, {}, {}, {})
    done: set[int] = set()
    for one in state_dicts:
        done.add(id(one.model or one.node))
        for key, value in one.items():
            name = key if by_key else f"{one.path}/{component_text(key)}" if one.path else component_text(key)
            other = None if isinstance(value, LazyTensor) else other_tensor(value)
            tensors = {name: value} if isinstance(value, LazyTensor) else dict(_parts(name, other)) if other else {}
            found.weights.update(tensors)
            if not tensors and one.model is None:
                found.entries.update(_entries(value, name))
        if one.model is not None:
            found.layers.update(_layers(one.model, "" if by_key else one.path))
    if id(ckpt.root) not in done:
        _outside(ckpt.root, done, found)
    return found


def _parts(name: str, other: OtherTensor) -> Iterator[tuple[str, LazyTensor]]:
    """The tensors that one is made of, and what else tells its values, as one more: its sizes, a scale, an axis."""
    if other.dense is not None:
        yield name, other.dense
        return
    for part, tensor in other.parts.items():
        yield f"{name}[{part}]", tensor
    told = hashlib.sha256(repr((other.kind, str(other.dtype), other.shape, _plain(other.detail))).encode()).digest()
    bytes_ = BY_NAME["uint8"]
    yield f"{name}[how it is made]", LazyTensor(Storage(Buffer(told), "cpu", bytes_), bytes_, (len(told),), (1,))


def _plain(value: Any) -> Any:
    """What a tensor needs to be decoded, without tensors: these are parts of their own."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def _outside(root: Any, done: set[int], found: Contents) -> None:
    """Everything but the nodes DONE and what is below them."""
    paths = Paths()
    inside: set[int] = set()
    trails: list[Any] = []  # so that the ids stay theirs
    for trail, node in walk(root):
        within = trail is not None and id(trail[0]) in inside
        other = None if within or isinstance(node, LazyTensor) else other_tensor(node)
        if within or other is not None or id(node) in done:
            inside.add(id(trail))
            trails.append(trail)
            if other is not None and id(node) not in done:
                found.others.update(_parts(paths.of(trail), other))
        elif isinstance(node, LazyTensor):
            found.others[paths.of(trail)] = node
        elif (text := _leaf(node)) is not None:
            found.entries[paths.of(trail)] = text


def _layers(model: Any, path: str) -> Iterator[tuple[str, str]]:
    """The classes of modules and their public attributes: weights may be equal where what computes with them is not.

    `training` is left out, and what torch keeps for itself (`_forward_hooks`, …).
    """
    paths = Paths()
    for trail, node in walk(model):
        if trail is None or isinstance(node, LazyTensor) or (text := _leaf(node)) is None:
            continue
        parts = [part for part in paths.of(trail).split("/") if part not in ("@state", "_modules", "@args")]
        if parts and parts[-1] != "training" and not any(part.startswith("_") for part in parts):
            yield "/".join([path, *parts] if path else parts), text


def _entries(value: Any, name: str) -> Iterator[tuple[str, str]]:
    paths = Paths()
    for trail, node in walk(value):
        if (text := _leaf(node)) is not None:
            yield (f"{name}/{paths.of(trail)}" if trail is not None else name), text


def told_apart(metadata: Dict | None) -> dict[str, dict[str, Any]]:
    """The `_metadata` of a state dict as what can be compared: for each module, what stands below each name."""
    known: dict[int, Any] = {}

    def below(value: Any) -> Any:
        if (text := _leaf(value)) is not None:
            return text
        if id(value) not in known:
            known[id(value)] = sorted(_entries(value, ""))
        return known[id(value)]

    pairs = [] if metadata is None else metadata.entries
    return {
        str(path): {str(name): below(item) for name, item in value.entries}
        for path, value in pairs
        if isinstance(value, Dict)
    }


def _leaf(node: Any) -> str | None:
    """A value that has nothing below it, as text that differs where it does."""
    if isinstance(node, str):
        return _short(repr(str(node)))
    if node is None or isinstance(node, bool | int | float):
        return _short(repr(node))
    if isinstance(node, bytes | bytearray):
        return f"{len(node):,} bytes ({hashlib.sha256(node).hexdigest()[:12]})"
    if isinstance(node, Global):
        return str(node)
    if isinstance(node, Storage):
        return f"a storage of {node.nbytes:,} bytes"
    if (isinstance(node, Dict) and not node.entries) or node == ():
        return "empty"
    if isinstance(node, List | Set) and not node.items:
        return f"empty {type(node).__name__.lower()}"
    return None if isinstance(node, (tuple, *NODES)) else printable(repr(node), _SHOWN)


def _short(text: str) -> str:
    """TEXT, or its beginning and something that tells it from others that begin like it."""
    if len(text) <= 200:
        return text
    import hashlib

    told = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{text[:_SHOWN]}… ({len(text):,} characters, {told})"
