"""What is in a checkpoint, as a value: from headers and pickles alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import keys
from ..adapters.adapter_summary import AdapterSummary, summary_of
from ..checkpoint import Checkpoint, StateDict
from ..disk.files import StrPath, shell_quote
from ..errors import NoMatch, counted, printable
from ..formats import format_of
from ..formats import open as open_checkpoint
from ..inert.allowed import beyond_plain_data, count_objects
from ..inert.other_tensors import OtherTensor, other_tensor
from ..inert.plain_values import plain_value
from ..passes.locations import mentions
from ..passes.packed import grain, kinds_of_packed
from ..passes.side_files import quantization_of
from ..records import record
from ..tensor import LazyTensor, Storage, joined, stored_and_used
from ..tree import (
    Aside,
    Dict,
    Global,
    List,
    Object,
    Paths,
    Set,
    Trail,
    component_text,
    holds_tensors_alone,
    is_mapping,
    metadata_of,
    value_column,
    walk,
)
from ..weights import is_tensor
from .tensor_reports import TensorReport as TensorReport
from .tensor_reports import TensorReports
from .training import Training, training_of

if TYPE_CHECKING:
    from .comparing.numbers import Statistics


@record(frozen=True, slots=True)
class StateDictReport:
    """A state dict in a file. `wrappers` gives the number of keys that go through each wrapper ("module.").

    `model` is the class of the whole pickled model that it was recovered from, or None.
    """

    path: str
    keys: int
    parameters: int
    bytes: int
    wrappers: dict[str, int]
    metadata: dict[str, Any] | None
    model: str | None = None


@record(frozen=True, slots=True)
class PackedReport:
    """Weights that are packed or quantised in one way.

    Attributes:
        family: who packs like that.
        bits: of a number; None where the header does not tell.
        shared: what shares a scale ("groups of 64"); "" where the header does not tell.
        weights: how many.
        tensors: how many tensors they are, with their scales.
        bytes: those of all.
        together: the tensors of one of them.
    """

    family: str
    bits: int | None
    shared: str
    weights: int
    tensors: int
    bytes: int
    together: list[str]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in one file.

    Attributes:
        path: the file.
        format: the name of its format.
        bytes: its size.
        state_dicts: the weights, in the order of the file.
        tensors: all tensors, in the order of the file.
        objects: instances by class name, without plain data.
        warnings: oddities.
        ties: groups of keys whose tensors are one.
        others: (name, summary) of what stands around the state dicts.
        devices: (path, text) of places other than storages that name a device.
        unsafe: classes that may run code when the file is unpickled.
        suggestions: the commands that make it load, in order: (command, what for).
        training: what training left beside the weights.
        stored: bytes of all storages.
        used: bytes of storages that a tensor uses.
        slim: bytes that `ckptool slim` would save, 0 if that is not known.
        adapter: what it is, if it is an adapter (LoRA and its relatives).
        packed: the families of packed and quantised weights.
        framework: the framework that wrote it, where the file says so; "" for torch.
    """

    path: str
    format: str
    bytes: int
    state_dicts: list[StateDictReport]
    tensors: Sequence[TensorReport]
    objects: dict[str, int]
    warnings: list[str]
    ties: list[list[str]]
    others: list[tuple[str, str]]
    devices: list[tuple[str, str]]
    unsafe: dict[str, int]
    suggestions: list[tuple[str, str]]
    training: Training = field(default_factory=lambda: Training("", [], [], []))
    stored: int = 0
    used: int = 0
    slim: int = 0
    adapter: AdapterSummary | None = None
    packed: list[PackedReport] = field(default_factory=list)
    framework: str = ""

    def as_json(self) -> dict[str, Any]:
        """The document that `ckptool inspect --json` prints for one file."""
        whole = asdict(replace(self, tensors=[]))
        whole["tensors"] = [asdict(one) for one in self.tensors]
        names = ("path", "format", "bytes", "state_dicts", "tensors", "objects", "warnings", "stored", "used", "slim")
        further = ("training", "adapter", "packed", "framework")
        return {name: whole[name] for name in (*names, *further)}


def inspect(path: StrPath, *, suggest: bool = True) -> Inspection:
    """Open a checkpoint and say what is in it.

    Args:
        path: the file or folder.
        suggest: work out `suggestions`, too; without them a file of 20,000 tensors takes two thirds of the time.
    """
    return describe(open_checkpoint(path), suggest=suggest)


def describe(ckpt: Checkpoint, *, suggest: bool = True) -> Inspection:
    """Say what is in an open checkpoint. With SUGGEST, say which commands make it load, too."""
    weights = ckpt.state_dicts()
    rows, tensors, rest = _tensors(ckpt.root, weights)
    if ckpt.roles:
        rows.tell(ckpt.roles)
    stored, used = stored_and_used(tensors)
    if bare := {node for _, node in rest if isinstance(node, Storage)}:
        stored += sum(storage.nbytes for storage in bare.difference(tensor.storage for tensor in tensors))
    kind = format_of(ckpt)
    live = (kind is None or kind.pickles) and not ckpt.sealed
    unsafe = dict(beyond_plain_data(ckpt.root, rest)) if live else {}
    return Inspection(
        ckpt.where,
        ckpt.format,
        ckpt.nbytes,
        [_state_dict(one) for one in weights],
        rows,
        count_objects(ckpt.root, rest),
        [*ckpt.warnings, *(f"not in the state dict: {line}" for one in weights for line in one.lost)],
        [group for one in weights for group in one.ties()],
        _others(ckpt, weights),
        mentions(ckpt.root, rest),
        unsafe,
        _suggestions(ckpt) if suggest and kind is not None else [],
        training_of(ckpt),
        stored,
        used,
        _saved(ckpt, weights, stored),
        summary_of(ckpt),
        _packed(ckpt, weights),
        ckpt.framework,
    )


def _packed(ckpt: Checkpoint, weights: list[StateDict]) -> list[PackedReport]:
    """The families of packed weights, those with other bits or groups apart."""
    found: dict[tuple[str, int | None, str], PackedReport] = {}
    for one in weights:
        kinds = kinds_of_packed(one)
        config = quantization_of(ckpt) if kinds else {}
        for alike in kinds:
            first, count = alike[0], len(alike)
            size = sum(one[key].nbytes for key in first.keys)
            kind = (first.family, *grain(first, one.tensors, config))
            so_far = found.get(kind) or PackedReport(*kind, 0, 0, 0, list(first.keys))
            found[kind] = replace(
                so_far,
                weights=so_far.weights + count,
                tensors=so_far.tensors + count * len(first.keys),
                bytes=so_far.bytes + count * size,
            )
    return list(found.values())


def narrowed(seen: Inspection, pattern: str) -> Inspection:
    """The report with the tensors only whose key (or path, outside a state dict) fits a pattern.

    Raises:
        RuleError: it is no pattern.
        NoMatch: it fits nothing.
    """
    wanted = keys.Pattern.parse(pattern)
    kept = [t for t in seen.tensors if wanted.matches(t.path if t.key is None else t.key)]
    if not kept:
        near = keys.closest(pattern, [t.key for t in seen.tensors if t.key])
        found = near[0] if near else wanted.anywhere([t.key for t in seen.tensors if t.key])
        hint = f"--filter {shell_quote(found, 200)}" if found else None
        raise NoMatch(f"no tensor fits the pattern {printable(pattern)!r}", where=seen.path, hint=hint)
    return replace(seen, tensors=kept)


def statistics_of(
    path: StrPath, seen: Inspection, progress: Callable[[int], None] | None = None
) -> list[Statistics | None]:
    """Statistics of each tensor in a report, in its order; None for types that cannot be computed with.

    Every tensor is read once, in pieces, by several threads. PROGRESS is called with the bytes of each that is done.
    """
    from .comparing.numbers import in_threads, statistics

    found = dict(open_checkpoint(path).tensors())
    tensors = [found.get(t.path) for t in seen.tensors]
    done: list[Statistics | None] = []
    for tensor, one in zip(tensors, in_threads(lambda t: None if t is None else statistics(t), tensors), strict=True):
        done.append(one)
        if progress is not None and tensor is not None:
            progress(tensor.nbytes)
    return done


def _saved(ckpt: Checkpoint, weights: list[StateDict], stored: int) -> int:
    """What `slim` would save: the storages that no weight uses."""
    if len(weights) != 1 or not (weights[0].path or weights[0].model):
        return 0
    kept = {t.storage.identity: t.storage.nbytes for t in weights[0].tensors.values()}
    return max(stored - sum(kept.values()), 0)


def _state_dict(weights: StateDict) -> StateDictReport:
    return StateDictReport(
        weights.path,
        len(weights),
        weights.parameters,
        weights.nbytes,
        weights.wrappers,
        _metadata(weights),
        weights.model.class_name if weights.model else None,
    )


def _metadata(weights: StateDict) -> dict[str, Any] | None:
    """The `_metadata` as JSON can have it: what is no scalar is told in words."""
    found = metadata_of(weights.node)
    if found is None:
        return None

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return str(value)
        return value if value is None or isinstance(value, bool | int | float) else _summary(value)

    return {
        str(path): {str(k): plain(v) for k, v in value.entries} if isinstance(value, Dict) else plain(value)
        for path, value in found.entries
    }


def _tensors(
    root: Any, weights: list[StateDict]
) -> tuple[TensorReports, Sequence[LazyTensor], list[tuple[Trail, Any]]]:
    """The report of every tensor, all dense ones, and the other nodes of the tree with their trails.

    All nodes are looked at once: every further look costs as much as opening a file of many tensors.
    """
    rows = TensorReports()
    tensors: list[Sequence[LazyTensor]] = []
    rest: list[tuple[Trail, Any]] = []
    told: set[str] = set()
    homes: dict[int, str] = {}  # state dicts -> their paths
    plain: set[int] = set()  # those among them with nothing but dense tensors in them
    for one in weights:
        if one.model is None:
            homes[id(one.node)] = one.path
            continue
        for key, value in one.items():  # recovered from a model: under every name that it has there
            tensor = value if isinstance(value, LazyTensor) else other_tensor(value)
            if tensor is not None:
                rows.add_place(one.places[key], key, tensor, one.path)
                told.add(one.places[key])
    if not told:
        plain = {id(one.node) for one in weights if one.model is None and holds_tensors_alone(one.node)}
    paths = Paths()
    below: dict[int, tuple[Trail, str | None]] = {}  # id of the trail of a state dict -> itself, and its path
    last: Any = rows  # the trail whose beginning and home are at hand
    base, home = "", None
    for trail, node in walk(root, lambda node: id(node) in plain):
        found: LazyTensor | OtherTensor
        if not isinstance(node, LazyTensor):
            rest.append((trail, node))
            if id(node) in homes:
                below[id(trail)] = trail, homes[id(node)]
                if id(node) in plain:
                    rows.add_all(node.entries, paths.below(trail), homes[id(node)])
                    tensors.append(value_column(node.entries))
                    continue
            other = other_tensor(node)
            if other is None:
                continue
            found = other
        else:
            tensors.append((node,))
            found = node
        if trail is None:
            rows.add("", found, "", None)
            continue
        above, component = trail
        if above is not last:
            last, base, home = above, paths.below(above), below.get(id(above), (None, None))[1]
        path = base + component_text(component)
        if path in told:
            continue
        if home is None or not isinstance(component, str) or isinstance(component, Aside):
            rows.add(path, found, "", None)
        else:
            rows.add(str(component), found, base, home)
    rows.let_go()
    return rows, joined(tensors), rest


def _others(ckpt: Checkpoint, weights: list[StateDict]) -> list[tuple[str, str]]:
    """What stands at the root beside the state dicts, and what stands in them that is no tensor."""
    inside = {id(one.model or one.node) for one in weights}
    if holds_tensors_alone(ckpt.root) and id(ckpt.root) in inside:
        return []
    if id(ckpt.root) in inside:
        pairs = [(key, value) for key, value in weights[0].node.entries if not is_tensor(value)]
    elif is_mapping(ckpt.root):
        pairs = [(key, value) for key, value in ckpt.root.entries if id(value) not in inside]
    else:
        return [("(root)", _summary(ckpt.root))]
    values = {id(value): value for _, value in pairs}
    told = {key: _summary(value) for key, value in values.items()}  # once of what stands under several keys
    return [(component_text(key) if isinstance(key, str | int) else "#", told[id(value)]) for key, value in pairs]


def _summary(node: Any) -> str:
    """A value in a few words."""
    if isinstance(node, str):
        return repr(printable(node, 60))
    if node is None or isinstance(node, bool | int | float):
        return str(node)
    if isinstance(node, bytes | bytearray):
        return f"{len(node):,} bytes"
    if isinstance(node, LazyTensor):
        return f"{node.dtype.name} {list(node.shape)} on {printable(node.location)}"
    if isinstance(node, Global):
        return printable(str(node), 80)
    found = [value for _, value in walk(node) if isinstance(value, LazyTensor)]
    tensors = f", {counted(len(found), 'tensor')}, {sum(t.nbytes for t in found):,} bytes" if found else ""
    if isinstance(node, Object):
        known = plain_value(node)
        shown = f" {known!r}" if isinstance(known, bool | int | float) else ""
        return f"{printable(node.class_name, 80)}{shown}{tensors}"
    kind, size = "tuple", len(node) if isinstance(node, tuple) else 0
    if isinstance(node, Dict):
        kind, size = "dict", len(node.entries)
    elif isinstance(node, List | Set):
        kind, size = type(node).__name__.lower(), len(node.items)
    return f"{kind} of {size:,}{tensors}"


def _suggestions(ckpt: Checkpoint) -> list[tuple[str, str]]:
    from .diagnosis.suggested import suggestions  # many modules, which --json has no use for

    return suggestions(ckpt)
