"""A clean copy of a tree: tensors and plain data, as `torch.load(weights_only=True)` takes them, and nothing else.

Objects that hold data are turned into what they hold: paths, dates and numbers into text or numbers, Namespaces,
OmegaConf and whatever else has attributes or items into dicts and lists, numpy arrays into tensors, whole models into
their state dicts. Functions, classes and what would have to be run are left out. Nothing is done without a line that
says what and where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

from ..errors import counted
from ..inert.allowed import HARMLESS, PLAIN
from ..inert.other_tensors import (
    COMPLETE_WHEN_CALLED,
    COMPRESSED,
    Contradiction,
    numbers,
    other_tensor,
    stands_for_a_tensor,
)
from ..inert.pickled_models import PickledModule, has_own_ways, is_module, state_dict_of
from ..inert.plain_values import array_items, held_by_omegaconf, plain_value
from ..inert.tags import is_device
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import ABSENT, Aside, ByteString, Dict, Global, List, Object, Set, Trail, address, is_mapping, walk

_LONGEST = 255  # bytes of an integer that protocol 2 writes in the way that weights_only knows
_LARGEST_KEY = 10_000  # values in the tuples of a key, counted at every place
_DEEPEST = 100  # objects within objects; deeper ones are left out


class _Nothing:
    """In place of what is left out."""


_LEFT_OUT: Any = _Nothing()
_STATE, _ARGS = Aside("@state"), Aside("@args")


@record(frozen=True, slots=True)
class Change:
    """What was done to one place: its path, the class that stood there, and what stands there now."""

    path: str
    was: str
    now: str


@record(frozen=False, slots=True)
class _Cleaner:
    where: object
    changes: list[Change] = field(default_factory=list)
    made: dict[int, Any] = field(default_factory=dict)
    told: dict[int, tuple[str, str]] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    unfinished: set[int] = field(default_factory=set)
    circular: bool = False  # something holds itself
    probes: bool = False  # only whether there are changes counts: what is in a tensor that is looked at
    depth: int = 0
    byte_strings: int = 0

    def value(self, node: Any, trail: Trail) -> Any:
        """The clean form of a node; the same one wherever the node stands."""
        if node is None or isinstance(node, bool | float | bytes | LazyTensor | Storage):
            return node
        if isinstance(node, ByteString):
            self.byte_strings += 1
            return str(node)
        if isinstance(node, str):
            return node
        if isinstance(node, int):
            return (
                node if node.bit_length() < 8 * _LONGEST else self.changed(trail, "a huge integer", "text", hex(node))
            )
        if id(node) in self.unfinished:
            self.circular = True
            if isinstance(node, tuple):
                self.made.setdefault(id(node), List())
            elif self.probes and isinstance(node, Object):
                return self.changed(trail, "what holds itself", "left out", _LEFT_OUT)
        if id(node) in self.made:
            if id(node) in self.told:  # it stands here, too
                self.changed(trail, *self.told[id(node)], None)
            return self.made[id(node)]
        if self.depth > _DEEPEST:
            return self.changed(trail, "what is nested too deeply", "left out", _LEFT_OUT)
        self.depth += 1
        self.unfinished.add(id(node))
        made = self.container(node, trail)
        self.unfinished.discard(id(node))
        self.depth -= 1
        self.made[id(node)] = made
        last = self.changes[-1] if self.changes else None
        if last is not None and last.path == address(trail):
            self.told[id(node)] = (last.was, last.now)
        self.alive.append(node)
        return made

    def changed(self, trail: Trail, was: str, now: str, value: Any) -> Any:
        """Note a change, and return VALUE."""
        self.changes.append(Change(address(trail), was, now))
        return value

    def container(self, node: Any, trail: Trail) -> Any:
        if isinstance(node, tuple):
            items = self.items(node, trail)
            held = self.made.get(id(node))  # by one of its own items: weights_only cannot make such a tuple
            if held is None:
                return tuple(items)
            held.items = items
            return self.changed(trail, "a tuple that holds itself", "a list", held)
        if isinstance(node, bytearray):
            return node
        if isinstance(node, List):
            listed = self.made[id(node)] = List()
            listed.items = self.items(node.items, trail)
            return listed
        if isinstance(node, Dict):
            made = self.made[id(node)] = Dict(ordered=node.ordered)
            made.entries = self.entries(node.entries, trail)
            if isinstance(node.attributes, Dict):
                kept = self.entries(node.attributes.entries, (trail, _STATE))
                made.attributes = Dict(kept) if kept else ABSENT
            elif node.attributes is not ABSENT:
                self.changed(trail, "the state of an OrderedDict that is not a dict", "left out", None)
            return made
        if isinstance(node, Set):
            return self.set(node, trail)
        if isinstance(node, Global):
            if str(node) in PLAIN:
                return node
            return self.changed(trail, f"the class or function {node}", "left out", _LEFT_OUT)
        return self.object(node, trail)

    def items(self, items: Any, trail: Trail) -> list[Any]:
        """The items of a list or tuple. What is left out leaves None, so that the others keep their places."""
        found = (self.value(item, (trail, index)) for index, item in enumerate(items))
        return [None if item is _LEFT_OUT else item for item in found]

    def entries(self, entries: Sequence[tuple[Any, Any]], trail: Trail) -> list[tuple[Any, Any]]:
        kept: list[tuple[Any, Any]] = []
        as_they_were = {key for key, _ in entries if isinstance(key, str | int | float | bytes)}
        for index, (key, value) in enumerate(entries):
            plain = isinstance(key, str) or type(key) is int
            place = (trail, key if plain else Aside(f"#{index}"))
            name = self.key(key, (trail, Aside(f"#{index}@key")), place)
            item = self.value(value, place)
            if name is _LEFT_OUT or item is _LEFT_OUT:
                continue
            if isinstance(key, Object | Global | Set) and not isinstance(name, Object):
                if name in as_they_were:
                    self.changed(
                        (trail, Aside(f"#{index}")), f"an entry whose key became {name!r}, as another", "left out", 0
                    )
                    continue
                as_they_were.add(name)
            kept.append((name, item))
        return kept

    def key(self, key: Any, trail: Trail, place: Trail) -> Any:
        """The clean form of a key; what no dict could hold is left out with its value, at PLACE."""
        made = self.value(key, trail)
        if made is not _LEFT_OUT and not _hashable(made):
            return self.changed(place, "an entry whose key is not a plain value", "left out", _LEFT_OUT)
        return made

    def set(self, node: Set, trail: Trail) -> Any:
        nothing = any(item is None for item in node.items)
        items = [item for item in self.items(node.items, trail) if item is not None or nothing]
        if not all(map(_hashable, items)):
            return self.changed(trail, "a set", "a list", List(items))
        if node.frozen:
            return self.changed(trail, "a frozenset", "a set", Set(items))
        return Set(items)

    # -- objects

    def object(self, node: Object, trail: Trail) -> Any:
        name = node.class_name
        if stands_for_a_tensor(node):
            return self.tensor(node, trail)
        if is_module(node):
            found = state_dict_of(PickledModule(node, trail), self.where)
            made = self.value(found.node, trail)
            for line in found.lost:
                self.changed(trail, line, "left out", None)
            hooked = "; functions that change it are not run" if has_own_ways(node) else ""
            return self.changed(
                trail, name, f"its state dict of {counted(len(found.node.entries), 'key')}{hooked}", made
            )
        if name in _CALLS:
            return self.plain_call(node, trail)
        held = held_by_omegaconf(node)
        if held is not None:
            return self.changed(trail, name, "what it holds", self.value(held[0], trail))
        known = plain_value(node)
        if known is not None:
            return self.changed(trail, name, "text" if isinstance(known, str) else "a plain value", known)
        return self.data(node, name, trail)

    def plain_call(self, node: Object, trail: Trail) -> Any:
        """A call that weights_only makes (torch.Size, torch.device, Counter …), if it can be made."""
        args = self.items(node.args, (trail, _ARGS)) if isinstance(node.args, tuple) else []
        if node.steps or not _CALLS[node.class_name](args):
            return self.changed(trail, f"a call of {node.class_name} that fails", "left out", _LEFT_OUT)
        return Object("reduce", node.callee, tuple(args))

    def tensor(self, node: Object, trail: Trail) -> Any:
        try:
            other = other_tensor(node)
        except Contradiction:
            other = None
        if other is None:
            return self.array(node, trail)
        if other.kind == "numpy" and other.dense is not None:
            if not other.shape:
                return self.changed(trail, f"a numpy {other.dense.dtype.name}", "a number", _number(other.dense))
            return self.changed(trail, "a numpy array", "a tensor", other.dense)
        plain = self.if_plain(node) if other.kind != "subclass" else None
        if plain is not None:
            return plain
        what = f"of class {other.class_name}" if other.kind == "subclass" else f"of the call {node.callee}"
        lost = f" without {_listed(other.attributes)}" if other.attributes else ""
        if other.dense is not None:
            return self.changed(trail, f"a tensor {what}", f"a plain tensor{lost}", other.dense)
        bare = _without_attributes(node)
        inner = None if bare is None else self.if_plain(bare)
        if inner is not None:
            return self.changed(trail, f"a {other.words} tensor with attributes", f"a {other.words} one{lost}", inner)
        if not other.parts:
            return self.changed(trail, f"a tensor {what}", "left out", _LEFT_OUT)
        parts = Dict(list(other.parts.items()))
        return self.changed(trail, f"a tensor {what}", f"a dict of its parts ({_listed(other.parts)}){lost}", parts)

    def array(self, node: Object, trail: Trail) -> Any:
        """A numpy array of objects or texts as lists within lists."""
        found = array_items(node)
        if found is None:
            return self.data(node, node.class_name, trail)
        shape, items = found
        nested: list[Any] = self.items(items, (trail, _STATE))
        for size in reversed(shape[1:]):
            nested = [List(nested[at : at + size]) for at in range(0, len(nested), size)] if size else []
        what = f"a list of {shape[0]:,}" if shape else "its item"
        was = "a numpy array of objects or texts" if shape else "a numpy text or object"
        return self.changed(trail, was, what, List(nested) if shape else nested[0])

    def if_plain(self, node: Object) -> Object | None:
        """A tensor of another kind, if it consists of nothing but what weights_only takes."""
        probe = self if self.probes else _Cleaner(self.where, probes=True, depth=self.depth)
        probe.unfinished.add(id(node))
        args = tuple(probe.value(arg, (None, index)) for index, arg in enumerate(node.args))
        called = node.how == "reduce" and str(node.callee) in COMPLETE_WHEN_CALLED & PLAIN
        if not called or probe.changes or node.steps:
            return None
        if not probe.byte_strings:
            return node
        self.byte_strings += 0 if probe is self else probe.byte_strings
        return Object("reduce", node.callee, args)

    def data(self, node: Object, name: str, trail: Trail) -> Any:
        """An object as what it holds: a dict of its entries or attributes, a list of its items, its state or arguments.

        One of these is taken; what else there is is named in the change.
        """
        attributes, state = _attributes(node)
        items, args = node.items, _values(node.args)
        if name.startswith("torch.jit._pickle.") and node.args:  # a list or dict of TorchScript with its type
            return self.changed(trail, name, "what it types", self.value(node.args[0], (trail, _ARGS)))
        if is_mapping(node) or (attributes and not items):
            entries = node.entries if is_mapping(node) else attributes
            rest = [key for key, _ in attributes if not _has(entries, key)] if is_mapping(node) else []
            made = self.made[id(node)] = Dict()
            made.entries = self.entries(entries, trail)
            lost = _lost(rest, state=state, items=items, args=args)
            return self.changed(trail, name, f"a dict of {len(made.entries):,}{lost}", made)
        if items or name == "collections.deque":
            listed = self.made[id(node)] = List()
            listed.items = self.items(items, trail)
            lost = _lost([key for key, _ in attributes], state=state)
            return self.changed(trail, name, f"a list of {len(listed.items):,}{lost}", listed)
        if name in _FUNCTIONS and not _holds_tensors(node):
            return self.changed(trail, name, "left out", _LEFT_OUT)
        if state is not ABSENT:
            return self.changed(trail, name, "its state" + _lost(args=args), self.value(state, (trail, _STATE)))
        if _empty_instance(node):
            return self.changed(trail, name, "a dict of 0", Dict())
        if isinstance(node.callee, Global) and isinstance(node.args, tuple) and args:
            if node.how == "newobj":  # as a named tuple pickles
                return self.changed(trail, name, f"a tuple of {len(node.args):,}", self.value(node.args, trail))
            if len(node.args) == 1 and isinstance(args[0], str | int | float | List | Set | Dict | tuple):
                # as an Enum pickles, or a class of sets
                return self.changed(trail, name, "the value it is made from", self.value(args[0], (trail, _ARGS)))
            if _holds_tensors(node):
                return self.changed(trail, name, "its arguments", self.value(node.args, (trail, _ARGS)))
        return self.changed(trail, name if name != "?" else "a call", "left out", _LEFT_OUT)


def clean(root: Any, where: object = "") -> tuple[Any, list[Change]]:
    """The tree below ROOT with nothing in it that `weights_only` refuses, and every change that this took."""
    cleaner = _Cleaner(where)
    made = cleaner.value(root, None)
    if cleaner.circular:  # where something was left out, another item may now be the first that holds the others
        again = _Cleaner(where)
        made = again.value(made, None)
        cleaner.changes += again.changes
    if cleaner.byte_strings:
        cleaner.changes.append(Change("", counted(cleaner.byte_strings, "byte string") + " of Python 2", "text"))
    return (None if made is _LEFT_OUT else made), cleaner.changes


def _finite(args: list[Any]) -> bool:
    return len(args) == 2 and all(isinstance(arg, float) or (type(arg) is int and abs(arg) < 1 << 62) for arg in args)


_LAYOUTS = ("torch.strided", "torch.jagged", "torch.sparse_coo", *(f"torch.{name}" for name in COMPRESSED))

#: Calls that weights_only makes and that make no more than they are given -> whether arguments are ones that it takes.
_CALLS: dict[str, Callable[[list[Any]], bool]] = {
    "torch.Size": lambda args: len(args) == 1 and numbers(args[0]) is not None,
    "torch.device": lambda args: is_device(args),
    "torch.serialization._get_layout": lambda args: len(args) == 1 and args[0] in _LAYOUTS,
    "collections.Counter": lambda args: not args or (len(args) == 1 and isinstance(args[0], Dict)),
    "builtins.bytearray": lambda args: len(args) == 1 and isinstance(args[0], bytes),
    "builtins.complex": _finite,
}
_KEYS = ("torch.Size", "torch.device", "torch.serialization._get_layout", "builtins.complex")

#: Callables that are pickled as what they are made of.
_FUNCTIONS = ("functools.partial", "operator.attrgetter", "operator.itemgetter", "operator.methodcaller")


def _hashable(key: Any) -> bool:
    """Whether a clean value can be a key of a dict, and is not so large that to hash it would take for ever."""
    pending = [key]
    for _ in range(_LARGEST_KEY):
        if not pending:
            return True
        part = pending.pop()
        if isinstance(part, Object):
            if part.class_name not in _KEYS:
                return False
        elif isinstance(part, Set | List | Dict | bytearray):
            return False
        elif isinstance(part, tuple):
            pending.extend(part)
    return False


def _attributes(node: Object) -> tuple[list[tuple[Any, Any]], Any]:
    """The attributes that a state gives (a dict, or one and a dict of slots), or else the state itself."""
    state = node.state
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if any(isinstance(part, Dict) for part in parts) and all(isinstance(part, Dict | None) for part in parts):
        return [pair for part in parts if isinstance(part, Dict) for pair in part.entries], ABSENT
    return [], ABSENT if state is None else state


def _values(args: Any) -> list[Any]:
    """Arguments that are data, and no classes, or empty ones, as the plumbing of pickles has them."""
    if not isinstance(args, tuple):
        return []
    empty = (None, (), "")
    return [arg for arg in args if not isinstance(arg, Global) and not any(arg is none for none in empty)]


def _has(entries: list[tuple[Any, Any]], name: Any) -> bool:
    return any(isinstance(key, str) and key == name for key, _ in entries)


def _lost(attributes: Iterable[Any] = (), state: Any = ABSENT, items: Any = (), args: Any = ()) -> str:
    """What is not in the clean form of an object, for the line of its change."""
    names = [f"the attributes {_listed(attributes)}"] if attributes else []
    names += [
        f"its {what}"
        for what, there in (("state", state is not ABSENT), ("items", items), ("arguments", args))
        if there
    ]
    return f" without {' and '.join(names)}" if names else ""


def _listed(names: Iterable[Any]) -> str:
    texts = [str(name) if isinstance(name, str | int) else "?" for name in names]
    return ", ".join(texts[:5]) + (f" and {len(texts) - 5:,} more" if len(texts) > 5 else "")


def _empty_instance(node: Object) -> bool:
    """Whether an object was made without arguments to call its class with, as instances of plain classes are."""
    if str(node.callee) in ("copyreg._reconstructor", "collections.defaultdict"):
        return True
    called = node.how in ("newobj", "obj") or node.class_name in HARMLESS
    return isinstance(node.callee, Global) and called and not node.args


def _holds_tensors(node: Object) -> bool:
    return any(isinstance(below, LazyTensor | Storage) or stands_for_a_tensor(below) for _, below in walk(node))


def _without_attributes(node: Object) -> Object | None:
    """The call that makes the tensor inside one with attributes."""
    name, args = str(node.callee), node.args
    if name.startswith("torch._utils._rebuild_parameter") and isinstance(args[0], Object):
        return args[0]
    if name.startswith("torch._tensor._rebuild_from_type") and isinstance(args[0], Global):
        return Object("reduce", args[0], args[2])
    return None


def _number(scalar: LazyTensor) -> Any:
    value = scalar.numpy()[()].item()
    if not isinstance(value, complex):
        return value
    return Object("reduce", Global("builtins", "complex"), (value.real, value.imag))
