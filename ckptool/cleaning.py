"""A clean copy of a tree: tensors and plain data, as `torch.load(weights_only=True)` takes them, and nothing else.

Objects that hold data are turned into what they hold: paths, dates and numbers into text or numbers, Namespaces,
OmegaConf and whatever else has attributes or items into dicts and lists, numpy arrays into tensors, whole models into
their state dicts. Functions, classes and what would have to be run are left out. Nothing is done without a line that
says what and where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import counted
from .kinds import Contradiction, numpy_dtype, other_tensor, stands_for_a_tensor
from .modules import PickledModule, is_module, state_dict_of
from .objects import HARMLESS, PLAIN
from .tensor import LazyTensor, Storage
from .tree import ABSENT, ByteString, Dict, Global, List, Object, Set, Trail, address, is_mapping

_LONGEST = 255  # bytes of an integer that protocol 2 writes in the way that weights_only knows
_DEEPEST = 100  # objects within objects; deeper ones are left out


class _Nothing:
    """In place of what is left out."""


_LEFT_OUT: Any = _Nothing()


@dataclass(frozen=True, slots=True)
class Change:
    """What was done to one place: its path, the class that stood there, and what stands there now."""

    path: str
    was: str
    now: str


@dataclass(slots=True)
class _Cleaner:
    where: object
    changes: list[Change] = field(default_factory=list)
    made: dict[int, Any] = field(default_factory=dict)
    told: dict[int, tuple[str, str]] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
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
        if id(node) in self.made:
            if id(node) in self.told:  # it stands here, too
                self.changed(trail, *self.told[id(node)], None)
            return self.made[id(node)]
        if self.depth > _DEEPEST:
            return self.changed(trail, "what is nested too deeply", "left out", _LEFT_OUT)
        self.depth += 1
        made = self.container(node, trail)
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
            return tuple(self.items(node, trail))
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
                kept = self.entries(node.attributes.entries, (trail, "@state"))
                made.attributes = Dict(kept) if kept else ABSENT
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

    def entries(self, entries: list[tuple[Any, Any]], trail: Trail) -> list[tuple[Any, Any]]:
        kept = []
        for index, (key, value) in enumerate(entries):
            plain = isinstance(key, str | int)
            name = self.key(key, trail, index)
            item = self.value(value, (trail, key if plain else f"#{index}"))
            if name is not _LEFT_OUT and item is not _LEFT_OUT:
                kept.append((name, item))
        return kept

    def key(self, key: Any, trail: Trail, index: int) -> Any:
        """The clean form of a key; what no dict could hold is left out with its value."""
        made = self.value(key, (trail, f"#{index}@key"))
        if not _hashable(made):
            return self.changed((trail, f"#{index}"), "an entry whose key is no plain value", "left out", _LEFT_OUT)
        return made

    def set(self, node: Set, trail: Trail) -> Any:
        items = [item for item in self.items(node.items, trail) if item is not None or None in node.items]
        if any(isinstance(item, List | Dict | Set | Object) for item in items):
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
            state_dict, _ = state_dict_of(PickledModule(node, trail), self.where)
            made = self.value(state_dict, trail)
            return self.changed(trail, name, f"its state dict of {len(state_dict.entries):,} keys", made)
        if name in _CALLS:
            return self.plain_call(node, trail)
        if name.startswith("omegaconf.") and isinstance(node.state, Dict) and {"_content", "_val"} & _names(node.state):
            held = node.state.get("_content", node.state.get("_val"))
            return self.changed(trail, name, "what it holds", self.value(held, trail))
        for known in _KNOWN:
            text = known(node)
            if text is not None:
                return self.changed(trail, name, "text" if isinstance(text, str) else "a plain value", text)
        return self.data(node, name, trail)

    def plain_call(self, node: Object, trail: Trail) -> Any:
        """A call that weights_only makes (torch.Size, torch.device, Counter …), with clean arguments."""
        args = self.items(node.args, (trail, "@args"))
        if str(node.callee) == "builtins.bytearray" and not all(isinstance(arg, bytes) for arg in args):
            return self.changed(trail, "a call that makes as much as it is told to", "left out", _LEFT_OUT)
        steps = [(kind, self.entries(value, trail)) for kind, value in node.steps if kind == "entries"]
        if len(steps) != len(node.steps):
            return self.changed(trail, f"{node.class_name} with a state", "left out", _LEFT_OUT)
        return Object(node.how, node.callee, tuple(args), list(steps))

    def tensor(self, node: Object, trail: Trail) -> Any:
        try:
            other = other_tensor(node)
        except Contradiction:
            other = None
        if other is None:
            return self.data(node, node.class_name, trail)
        if other.kind == "numpy" and other.dense is not None:
            if not other.shape:
                return self.changed(trail, f"a numpy {other.dense.dtype.name}", "a number", _number(other.dense))
            return self.changed(trail, "a numpy array", "a tensor", other.dense)
        if other.kind == "subclass":
            if other.dense is None:
                return self.changed(trail, f"a tensor of class {other.class_name}", "left out", _LEFT_OUT)
            lost = f" without {', '.join(other.attributes)}" if other.attributes else ""
            return self.changed(trail, f"a tensor of class {other.class_name}", f"a plain tensor{lost}", other.dense)
        if not self.all_plain(node):
            if other.dense is None:
                return self.changed(trail, f"a {other.words} tensor with attributes", "left out", _LEFT_OUT)
            lost = f" without {', '.join(other.attributes)}" if other.attributes else ""
            return self.changed(trail, f"a tensor of the call {node.callee}", f"a plain tensor{lost}", other.dense)
        return node

    def all_plain(self, node: Object) -> bool:
        """Whether a tensor of another kind consists of nothing but what weights_only takes."""
        probe = _Cleaner(self.where)
        probe.depth = self.depth
        for index, arg in enumerate(node.args):
            probe.value(arg, (None, index))
        return str(node.callee) in PLAIN and not probe.changes and not node.steps

    def data(self, node: Object, name: str, trail: Trail) -> Any:
        """An object as what it holds: a dict of its attributes or entries, a list of its items."""
        if name.endswith(("_pickle.restore_type_tag",)) and node.args:
            return self.value(node.args[0], trail)
        if (node.items or name == "collections.deque") and not node.entries:
            listed = List(self.items(node.items, trail))
            return self.changed(trail, name, f"a list of {len(listed.items):,}", listed)
        pairs = [*_attributes(node), *node.entries] if not is_mapping(node) else node.entries
        if pairs or _holds_data(node):
            made = self.made[id(node)] = Dict()
            made.entries = self.entries(pairs, trail)
            return self.changed(trail, name, f"a dict of {len(made.entries):,}", made)
        named = isinstance(node.callee, Global) and isinstance(node.args, tuple) and node.args
        if named and len(node.args) == 1 and isinstance(node.args[0], str | int | float):  # as an Enum pickles
            return self.changed(trail, name, "its plain value", self.value(node.args[0], trail))
        if named and node.how == "newobj":  # as a named tuple pickles
            return self.changed(trail, name, f"a tuple of {len(node.args):,}", tuple(self.items(node.args, trail)))
        return self.changed(trail, name if name != "?" else "a call", "left out", _LEFT_OUT)


def clean(root: Any, where: object = "") -> tuple[Any, list[Change]]:
    """The tree below ROOT with nothing in it that `weights_only` refuses, and every change that this took."""
    cleaner = _Cleaner(where)
    made = cleaner.value(root, None)
    if cleaner.byte_strings:
        cleaner.changes.append(Change("", counted(cleaner.byte_strings, "byte string") + " of Python 2", "text"))
    return (None if made is _LEFT_OUT else made), cleaner.changes


#: Calls that weights_only makes and that make no more than they are given.
_CALLS = frozenset(
    """torch.Size torch.device torch.serialization._get_layout collections.Counter builtins.bytearray
    builtins.complex""".split()
)


def _names(node: Dict) -> set[str]:
    return {key for key, _ in node.entries if isinstance(key, str)}


def _hashable(key: Any) -> bool:
    """Whether a clean value can be a key of a dict."""
    pending = [key]
    while pending:
        part = pending.pop()
        if part is _LEFT_OUT or isinstance(part, Set | List | Dict | Object | bytearray):
            return part is _LEFT_OUT
        if isinstance(part, tuple):
            pending.extend(part)
    return True


def _attributes(node: Object) -> list[tuple[Any, Any]]:
    state = node.state
    parts = state if isinstance(state, tuple) else (state,)
    return [pair for part in parts if isinstance(part, Dict) for pair in part.entries if isinstance(pair[0], str)]


def _holds_data(node: Object) -> bool:
    """Whether an object was made without arguments to call its class with, as instances of plain classes are."""
    if str(node.callee) in ("copyreg._reconstructor", "collections.defaultdict"):
        return True
    called = node.how in ("newobj", "obj") or node.class_name in HARMLESS
    return isinstance(node.callee, Global) and called and not node.args


def _number(scalar: LazyTensor) -> Any:
    value = scalar.numpy()[()].item()
    if not isinstance(value, complex):
        return value
    return Object("reduce", Global("builtins", "complex"), (value.real, value.imag))


# -- objects whose value is known from their arguments


def _path(node: Object) -> str | None:
    module, _, name = node.class_name.rpartition(".")
    if module not in ("pathlib", "pathlib._local") or not all(isinstance(part, str) for part in node.args):
        return None
    parts = [str(part) for part in node.args]
    slash = "\\" if "Windows" in name else "/"
    first = parts[0] if parts else ""
    rest = slash.join(parts[1:])
    return (first + rest if first.endswith(slash) else slash.join(filter(None, [first, rest]))) or "."


def _moment(node: Object) -> Any:
    """A date, time or difference, from the bytes that they pickle as."""
    if not node.class_name.startswith("datetime.") or not node.args:
        return None
    import datetime

    raw = node.args[0].raw if isinstance(node.args[0], ByteString) else node.args[0]
    try:
        if node.class_name == "datetime.timedelta":
            return str(datetime.timedelta(*(int(part) for part in node.args)))
        if node.class_name in ("datetime.datetime", "datetime.date", "datetime.time") and isinstance(raw, bytes):
            made: Any = getattr(datetime, node.class_name[9:])(raw)
            return str(made.isoformat())
    except (TypeError, ValueError, OverflowError):
        return None
    return "UTC" if node.class_name == "datetime.timezone" else None


def _exact(node: Object) -> Any:
    """Decimal, Fraction and UUID."""
    if node.class_name in ("decimal.Decimal", "fractions.Fraction"):
        whole = all(type(part) is int or isinstance(part, str) for part in node.args)
        return "/".join(map(str, node.args)) if whole and node.args else None
    if node.class_name == "uuid.UUID" and isinstance(node.state, Dict):
        number = node.state.get("int")
        if type(number) is int and 0 <= number < 1 << 128:
            digits = f"{number:032x}"
            return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return None


def _range(node: Object) -> Any:
    if node.class_name in ("builtins.range", "builtins.slice") and all(
        part is None or type(part) is int for part in node.args
    ):
        return f"{node.class_name[9:]}({', '.join(map(str, node.args))})"
    return None


def _dtype(node: Object) -> Any:
    if node.class_name != "numpy.dtype":
        return None
    found = numpy_dtype(node)
    return found[0].name if found else str(node.args[0]) if node.args and isinstance(node.args[0], str) else None


_KNOWN: tuple[Callable[[Object], Any], ...] = (_path, _moment, _exact, _range, _dtype)
