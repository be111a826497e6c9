"""Whole pickled models: the state dict that they would give, without their class.

A pickled `torch.nn.Module` is an inert object whose state has the dicts `_parameters`, `_buffers` and `_modules`.
`state_dict_of` walks them as `Module.state_dict()` does: parameters, then persistent buffers, then children, in the
order in which they were registered; what torch's quantized modules add is in `ckptool.inert.quantized`. What other
classes add by code of their own (`get_extra_state`, hooks, an own `_save_to_state_dict`) cannot be known. Source:
`torch/nn/modules/module.py` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import CannotCarry, Malformed, printable
from ..records import record
from ..tensor import LazyTensor
from ..tree import Aside, Dict, List, Mapped, Object, Set, Trail, children, is_mapping, trail_to
from . import quantized
from .other_tensors import other_tensor, stands_for_a_tensor

#: A model that is shared by many of its own parts unfolds into one key for each way to a tensor. This is enough.
_MOST_KEYS = 1_000_000
_MOST_REPEATS = 100_000  # of modules that are in several places: forty of them can unfold into 2**40
_MOST_DEPTH = 500

_NORM = "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d".split()
_INSTANCE = [f"{lazy}InstanceNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3)]
#: Classes of torch whose state dicts have a version other than 1.
_VERSIONS = {
    **{f"torch.nn.modules.batchnorm.{name}": 2 for name in _NORM},
    **{f"torch.nn.modules.instancenorm.{name}": 2 for name in _INSTANCE},
    **{
        f"torch.ao.quantization.observer.{name}": 3
        for name in """HistogramObserver MinMaxObserver MovingAverageMinMaxObserver PerChannelMinMaxObserver
        MovingAveragePerChannelMinMaxObserver""".split()
    },
}
_COMPILED = "torch._dynamo.eval_frame.OptimizedModule"
_FX = ("torch.fx.graph_module.reduce_graph_module", "torch.fx.graph_module.reduce_package_graph_module")


@record(frozen=True, slots=True)
class PickledModule:
    """A whole module in a tree.

    Attributes:
        node: the object.
        trail: its place.
    """

    node: Object
    trail: Trail


_Child = tuple[str, Any, Trail]


@record(frozen=True, slots=True)
class _View:
    """What a module holds: its own tensors and its children, each as (name, value, place)."""

    tensors: list[_Child]
    children: list[_Child]
    hooked: bool = False
    lost: tuple[tuple[str, str], ...] = ()  # (name, why) of parts whose weights cannot be told
    aside: tuple[tuple[str, Any], ...] = ()  # tensors among its other attributes, which no state dict holds


_AT_STATE, _AT_ARGUMENT = trail_to("@state"), trail_to("@args/0")


def _state(node: Any) -> tuple[Mapped, Trail] | None:
    """The attributes of an object and where they are below it, if they are those of a module."""
    if not isinstance(node, Object) or not (node.steps or node.args):
        return None
    state, place = node.state, _AT_STATE
    if str(node.callee) in _FX and node.args:
        state, place = node.args[0], _AT_ARGUMENT
    if not is_mapping(state):
        return None
    held = {key for key, _ in state.entries if isinstance(key, str)}
    return (state, place) if "_parameters" in held and held & {"_buffers", "_modules", "training"} else None


def is_module(node: Any) -> bool:
    """Whether a node is a whole pickled module."""
    return _state(node) is not None or _is_compiled(node) or quantized.is_convolution(node)


def _is_compiled(node: Any) -> bool:
    """Whether a node is what torch.compile made of a model, whose call is made again when it is unpickled."""
    return isinstance(node, Object) and str(node.callee) == _COMPILED and type(node.args) is tuple and bool(node.args)


def _view(node: Object, trail: Trail) -> _View:
    found = _state(node)
    if found is None and _is_compiled(node):
        return _split([], [("_orig_mod", node.args[0], ((trail, Aside("@args")), 0))])
    if found is None:
        packed = quantized.of_convolution(node)
        return _View([(name, value, _joined(trail, below)) for name, value, below in packed], [])
    state, below = found
    place = _joined(trail, below)

    def part(name: str) -> list[_Child]:
        inner = next((value for key, value in reversed(state.entries) if key == name), None)
        pairs = inner.entries if is_mapping(inner) else []
        return [(key, value, ((place, name), key)) for key, value in pairs if isinstance(key, str)]

    passing = next((value for key, value in state.entries if key == "_non_persistent_buffers_set"), None)
    left_out = {item for item in passing.items if isinstance(item, str)} if isinstance(passing, Set | List) else set()
    buffers = [child for child in part("_buffers") if child[0] not in left_out]
    tensors = [child for child in (*part("_parameters"), *buffers) if child[1] is not None]
    own = [(name, value, _joined(place, below)) for name, value, below in quantized.of_attributes(node, state)]
    tensors += own
    taken = {id(value) for _, value, _ in tensors}
    attributes = [(key, value) for key, value in state.entries if isinstance(key, str) and key not in _REGISTERED]
    told = {below[1] for *_, below in own}
    unread = {key: "packed by code of torch" for key, value in attributes if quantized.is_packed(value)}
    return _split(
        tensors,
        part("_modules"),
        _hooked(state),
        tuple((key, why) for key, why in unread.items() if key not in told),
        tuple((key, one) for key, value in attributes for one in _tensors_in(value) if id(one) not in taken),
    )


_REGISTERED = ("_parameters", "_buffers", "_modules")


def _split(
    tensors: list[_Child],
    children: list[_Child],
    hooked: bool = False,
    lost: tuple[tuple[str, str], ...] = (),
    aside: tuple[tuple[str, Any], ...] = (),
) -> _View:
    """A view of a module whose CHILDREN may be of any form: what is no module that can be looked into is lost."""
    modules = [child for child in children if is_module(child[1])]
    opaque = [
        (
            name,
            f"an object of class {value.class_name} in a form of its own" if isinstance(value, Object) else "no module",
        )
        for name, value, _ in children
        if value is not None and not is_module(value)
    ]
    return _View(tensors, modules, hooked, (*lost, *opaque), aside)


def _tensors_in(value: Any) -> Iterator[Any]:
    """The tensors that an attribute is, or holds in a list, tuple or dict."""
    held = value if type(value) is tuple else value.items if isinstance(value, List) else (value,)
    for one in [item for _, item in value.entries] if isinstance(value, Dict) else held:
        if isinstance(one, LazyTensor) or (stands_for_a_tensor(one) and not one.class_name.startswith("numpy.")):
            yield one


def _hooked(state: Mapped) -> bool:
    hooks = [value for key, value in state.entries if key in ("_state_dict_hooks", "_state_dict_pre_hooks")]
    return any(is_mapping(found) and bool(found.entries) for found in hooks)


def _joined(trail: Trail, below: Trail) -> Trail:
    return trail if below is None else (_joined(trail, below[0]), below[1])


@record(frozen=True, slots=True)
class Recovered:
    """The state dict of a pickled module.

    Attributes:
        node: the state dict, with its `_metadata`.
        places: key -> the place in the tree of that tensor.
        lost: parts of the model whose weights cannot be told, a line each.
        aside: names of tensors that the model has among its attributes, and its state dict does not hold.
        strangers: classes in it that are none of torch's; what they add to a state dict by code cannot be known.
    """

    node: Dict
    places: dict[str, Trail]
    lost: tuple[str, ...]
    aside: tuple[str, ...]
    strangers: tuple[str, ...]


def state_dict_of(module: PickledModule, where: object = "") -> Recovered:
    """The state dict that a pickled module would give.

    Tensors are as `state_dict()` gives them: detached, no longer parameters; tied ones share their storage.

    Raises:
        Malformed: the module holds itself.
        CannotCarry: it has more than a million keys, or a hundred thousand modules that it has elsewhere too, or five
            hundred that are one within the other.
    """
    entries: list[tuple[Any, Any]] = []
    places: dict[str, Trail] = {}
    metadata: list[tuple[Any, Any]] = []
    detached: dict[int, tuple[Any, Any]] = {}
    met: set[int] = set()
    lost: list[str] = []
    aside: dict[str, Any] = {}
    strangers: dict[str, None] = {}
    pending: list[tuple[Object, str, Trail, tuple[int, ...]]] = [(module.node, "", module.trail, ())]
    while pending:
        node, prefix, trail, above = pending.pop()
        if id(node) in above:
            raise Malformed("holds a module that contains itself", where=where)
        if len(above) > _MOST_DEPTH:
            raise CannotCarry(f"has modules nested more than {_MOST_DEPTH} deep", where=where)
        view = _view(node, trail)
        lost += [f"the weights of {printable(prefix + name, 100)}, {printable(why, 100)}" for name, why in view.lost]
        for name, value in view.aside:
            aside.setdefault(prefix + name, value)
        if not node.class_name.startswith("torch."):
            strangers.setdefault(node.class_name)
        metadata.append((prefix[:-1], Dict([("version", _version(node, view))])))
        for name, value, place in view.tensors:
            if id(value) not in detached:
                detached[id(value)] = value, _detached(value)  # both, so that the id stays its own
            entries.append((prefix + name, detached[id(value)][1]))
            places[prefix + name] = place
        met.add(id(node))
        if len(entries) > _MOST_KEYS or len(metadata) - len(met) > _MOST_REPEATS:
            raise CannotCarry(f"has modules that hold one another in more than {_MOST_REPEATS:,} ways", where=where)
        pending += [
            (child, f"{prefix}{name}.", place, (*above, id(node))) for name, child, place in reversed(view.children)
        ]
    attributes = Dict([("_metadata", Dict(metadata, ordered=True))])
    stored = {value.storage.identity for _, value in entries if isinstance(value, LazyTensor)}
    beside = [n for n, v in aside.items() if not (isinstance(v, LazyTensor) and v.storage.identity in stored)]
    root = Dict(entries, ordered=True, attributes=attributes)
    return Recovered(root, places, tuple(lost), tuple(beside), tuple(strangers))


def _detached(value: Any) -> Any:
    if isinstance(value, LazyTensor):
        return value.changed(requires_grad=False, parameter=False)
    other = other_tensor(value)
    if other is not None and other.kind in ("attributes", "device") and other.dense is not None:
        return other.dense.changed(requires_grad=False, parameter=False)
    while other is not None and value.args and str(value.callee).startswith("torch._utils._rebuild_parameter"):
        value = value.args[0]
        other = other_tensor(value)
    return value


def _version(node: Object, view: _View) -> int:
    """The version of the state dict of a module: that of its class, as far as it is torch's.

    Classes of other makers are taken for version 1, and for 2 if they count batches as a batch norm does since then.
    """
    known = quantized.version(node)
    if known is not None:
        return known
    counts = any(name == "num_batches_tracked" for name, _, _ in view.tensors)
    return _VERSIONS.get(node.class_name, 2 if counts else 1)


def _views(module: Object) -> Iterator[_View]:
    """A module and all below it, each once."""
    seen: set[int] = set()
    pending = [module]
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            view = _view(node, None)
            yield view
            pending += [child for _, child, _ in view.children]


def has_own_ways(module: Object) -> bool:
    """Whether functions were registered that change the state dict of a module. They are not run."""
    return any(view.hooked for view in _views(module))


_INNER = (Dict, List, Object, tuple)


def find_modules(root: Any) -> list[PickledModule]:
    """The outermost modules in a tree that hold tensors, in the order of the file, wherever they are."""
    found: list[PickledModule] = []
    seen: set[int] = set()
    pending: list[tuple[Trail, Any]] = [(None, root)]
    while pending:
        trail, node = pending.pop()
        if id(node) in seen or not isinstance(node, _INNER) or stands_for_a_tensor(node):
            continue
        seen.add(id(node))
        if isinstance(node, Object) and is_module(node):
            if any(view.tensors for view in _views(node)):
                found.append(PickledModule(node, trail))
            continue
        inner = [((trail, part), child) for part, child in children(node) if isinstance(child, _INNER) and child != ()]
        pending.extend(reversed(inner))
    return found
