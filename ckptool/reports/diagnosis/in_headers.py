"""What the headers and pickles of a file show to be in the way of loading it: no byte of a tensor is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from ...checkpoint import Checkpoint, StateDict
from ...errors import CheckpointError, counted, printable
from ...formats import format_of
from ...formats.base import AnyFormat
from ...formats.torch_zip import FORMAT as TORCH_ZIP
from ...formats.torch_zip import NO_VERSION
from ...inert.allowed import PLAIN, named_globals
from ...records import record
from ...tensor import LazyTensor, Storage, joined, locations, locations_of, share_nothing, storage_kinds_of
from ...tree import ByteString, Global, Object, Trail, address, holds_tensors_alone, value_column, walk
from .finding import Finding
from .obstacles import in_the_way


def in_headers(ckpt: Checkpoint, weights: StateDict | None, tree: Tree) -> list[Finding]:
    """What is in the way, of what the headers and pickles show.

    Args:
        ckpt, weights: the file, and its weights, or None if there are none or several.
        tree: what `look_through` saw in it.
    """
    return [*in_the_way(ckpt, weights), *_devices(tree), *_beyond_weights_only(ckpt, tree)]


def weights_in(ckpt: Checkpoint, at: str | None = None) -> StateDict | None:
    """The weights in a file (those AT a path); None if there are none, or several."""
    try:
        return ckpt.state_dict(at)
    except CheckpointError:
        return None


@record(frozen=True, slots=True)
class Tree:
    """What one walk through a checkpoint shows.

    Attributes:
        tensors: all of them.
        bare: storages that stand in it by themselves.
        classes: how many objects there are of each class.
        named: the classes and functions that it names.
        python_2: strings of Python 2 are in it.
        on_gpu: the place of the first tensor that belongs on the CPU and is tagged with a GPU, or "".
    """

    tensors: Sequence[LazyTensor]
    bare: list[Storage]
    classes: Counter[str]
    named: list[str]
    python_2: bool
    on_gpu: str

    @property
    def storages(self) -> list[Storage]:
        """All of them, each once."""
        return list(dict.fromkeys([*map(attrgetter("storage"), self.tensors), *self.bare]))

    @property
    def locations(self) -> Counter[str]:
        """Where they belong, and how many belong there."""
        if self.bare or not share_nothing(self.tensors):
            return locations(self.storages)
        return locations_of(storage_kinds_of(self.tensors))


def look_through(ckpt: Checkpoint) -> Tree:
    """Walk through a checkpoint once."""
    tensors: list[Sequence[LazyTensor]] = []
    bare: list[Storage] = []
    others: list[tuple[Trail, Any]] = []
    on_gpu = ""
    on_cpu = {id(one.node) for one in ckpt.state_dicts() if holds_tensors_alone(one.node) and _on_cpu(one)}
    for trail, node in walk(ckpt.root, lambda node: id(node) in on_cpu):
        if isinstance(node, LazyTensor):
            tensors.append((node,))
            if not on_gpu and node.location != "cpu" and _belongs_on_cpu(trail, node):
                on_gpu = address(trail)
        elif id(node) in on_cpu:  # at once: most of what a file holds
            tensors.append(value_column(node.entries))
        elif isinstance(node, Object | Global | ByteString):
            others.append((trail, node))
        elif isinstance(node, Storage):
            bare.append(node)
    return Tree(
        joined(tensors),
        bare,
        Counter(node.class_name for _, node in others if isinstance(node, Object)),
        list(named_globals(ckpt.root, others)),
        any(isinstance(node, ByteString) for _, node in others),
        on_gpu,
    )


def _on_cpu(weights: StateDict) -> bool:
    return {kind.location for kind in set(storage_kinds_of(weights.column))} <= {"cpu"}


#: Components of a path, the last of them, that are looked at.
_NEAR = 32


def _belongs_on_cpu(trail: Trail, tensor: LazyTensor) -> bool:
    if tensor.dtype.name != "uint8" and tensor.shape:
        return False
    parts: list[str] = []
    while trail is not None and len(parts) < _NEAR:
        trail, component = trail
        parts.append(str(component))
    rng = tensor.dtype.name == "uint8" and any("rng" in part.lower() for part in parts)
    return rng or (parts[:1] == ["step"] and not tensor.shape and "state" in parts)


def _devices(tree: Tree) -> Iterator[Finding]:
    places = tree.locations
    needed = [(place, count) for place, count in places.most_common(7) if place not in ("cpu", "meta")][:6]
    if needed:
        said = " and ".join(f"{counted(count, 'storage')} on {printable(place, 20)}" for place, count in needed)
        verb = "was" if len(needed) == 1 and needed[0][1] == 1 else "were"
        without = "it" if len(needed) == 1 else "them"
        yield Finding("device", f"{said.replace(' on ', f' {verb} saved on ', 1)}; torch.load fails without {without}")


def _beyond_weights_only(ckpt: Checkpoint, tree: Tree) -> Iterator[Finding]:
    if NO_VERSION in ckpt.warnings:
        yield Finding("no-version", NO_VERSION)
    if ckpt.sealed:
        yield Finding("sealed", printable(ckpt.sealed, 200))
        return
    suffix = Path(ckpt.where).suffix.lower()
    loader = kind_of(ckpt).loader
    if loader == "safetensors":
        if suffix in TORCH_ZIP.suffixes:
            what = f"it is a safetensors file with the name of a {suffix} file; torch.load cannot read it"
            yield Finding("misnamed", what, actions=["or load it with safetensors.torch.load_file"])
        return
    if suffix == ".safetensors":
        yield Finding("misnamed", f"it is a {ckpt.format} file in spite of its name; safetensors cannot read it")
    if loader == "pickle":
        yield Finding("old-container", f"a {ckpt.format} file; torch.load reads it with weights_only=False, if at all")
    beyond = [name for name in tree.named if name not in PLAIN]
    if beyond:
        said = ", ".join(printable(name, 60) for name in sorted(beyond, key=lambda name: -tree.classes[name])[:4])
        more = f" and {len(beyond) - 4:,} more" if len(beyond) > 4 else ""
        yield Finding("weights-only", f"torch.load(weights_only=True) refuses it because it names {said}{more}")


def kind_of(ckpt: Checkpoint) -> AnyFormat:
    """The format of a file that was opened."""
    kind = format_of(ckpt)
    assert kind is not None
    return kind
