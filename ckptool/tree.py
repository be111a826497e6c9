"""The tree of what was saved: dicts, lists, tuples, scalars, tensors, and inert objects.

Nothing here is an instance of a class that a file names. A pickled object is recorded as what pickle would have done
to make it: a global that is named but never imported, its arguments, and the items and state that follow. Scalars
(None, bool, int, float, str, bytes) and tuples are Python's own; every other node is compared by identity, so that a
node that is referenced twice stays one node, and a cycle stays a cycle. Nodes are never changed once they are read;
`rebuild` makes changed copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast, overload

from .records import record
from .tensor import LazyTensor, Storage, TensorColumn


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


#: In place of a state or attributes that an object does not have (None is a state that it can have).
ABSENT: Any = _Absent()


class ByteString(str):
    """A `str` of Python 2: read as text, as torch.load does, and written back as the bytes that it was."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> ByteString:
        """Decode RAW as UTF-8, or byte by byte where it is none."""
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
        made = super().__new__(cls, text)
        made.raw = raw
        return made

    def __getnewargs__(self) -> tuple[bytes]:  # type: ignore[override]
        """So that it can be copied."""
        return (self.raw,)


@record(frozen=True, slots=True)
class Global:
    """A class or function that a pickle names. It is never imported."""

    module: str
    name: str
    _dotted: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_dotted", f"{self.module}.{self.name}")

    def __str__(self) -> str:
        """Both, with a dot between them. Made once, since every object is asked what it is."""
        return self._dotted


@dataclass(eq=False, slots=True)
class List:
    """A list."""

    items: list[Any] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Set:
    """A set or frozenset. Its items are kept in the order of the file and never hashed."""

    items: list[Any] = field(default_factory=list)
    frozen: bool = False


class Pairs(Sequence[tuple[Any, Any]]):
    """The entries of a large dict in two columns, which take half of the memory. A pair is made when it is asked for.

    Attributes:
        key_column, value_column: the Nth of each are those of the Nth pair.
    """

    __slots__ = ("_mapping", "_names", "_tensors_alone", "key_column", "value_column")

    def __init__(self, keys: list[Any], values: Sequence[Any], names: dict[Any, None] | None = None) -> None:
        self.key_column = keys
        self.value_column = values
        self._forget(names)  # where somebody has made that dict already

    def _forget(self, names: dict[Any, None] | None = None) -> None:
        self._mapping: dict[Any, Any] | None = None
        self._names = names
        self._tensors_alone: bool | None = None

    @property
    def mapping(self) -> dict[Any, Any]:
        """The values by their keys, which must be hashable. Nobody may change this dict, which is made once."""
        if self._mapping is None:
            self._mapping = dict(zip(self.key_column, self.value_column, strict=True))
        return self._mapping

    @property
    def names(self) -> dict[Any, None]:
        """The keys, each once, which must be hashable. Nobody may change this dict, which is made once."""
        if self._names is None:
            self._names = dict.fromkeys(self.key_column)
        return self._names

    @property
    def tensors_alone(self) -> bool:
        """Whether all keys are texts and all values dense tensors. It is found out once."""
        if self._tensors_alone is None:
            self._tensors_alone = _are_tensors_alone(self.key_column, self.value_column)
        return self._tensors_alone

    def extend(self, keys: list[Any], values: list[Any]) -> None:
        """Add pairs to a dict that is being read."""
        self.key_column += keys
        cast("list[Any]", self.value_column).extend(values)  # what is being read is in lists
        self._forget()

    def __len__(self) -> int:
        return len(self.key_column)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.key_column, self.value_column, strict=True)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return zip(reversed(self.key_column), reversed(self.value_column), strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, Any]]: ...
    def __getitem__(self, index: int | slice) -> tuple[Any, Any] | list[tuple[Any, Any]]:
        if isinstance(index, slice):
            return list(zip(self.key_column[index], self.value_column[index], strict=True))
        return self.key_column[index], self.value_column[index]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Pairs | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pairs({len(self):,})"


def key_column(entries: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The keys of the entries of a dict. Nobody may change this list."""
    return entries.key_column if type(entries) is Pairs else [key for key, _ in entries]


def value_column(entries: Sequence[tuple[Any, Any]]) -> Sequence[Any]:
    """The values of the entries of a dict, of one file maybe a `TensorColumn`. Nobody may change a list of them."""
    return entries.value_column if type(entries) is Pairs else [value for _, value in entries]


def mapping_of(entries: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """The values of the entries of a dict by their keys, which must be hashable. Nobody may change this dict."""
    return entries.mapping if type(entries) is Pairs else dict(entries)


def names_of(entries: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """The keys of the entries of a dict, each once, which must be hashable. Nobody may change this dict."""
    return entries.names if type(entries) is Pairs else dict(entries)


#: Dicts with fewer entries are no larger as a list of pairs.
_FEWEST_IN_COLUMNS = 64


def in_columns(keys: list[Any], values: list[Any]) -> Sequence[tuple[Any, Any]]:
    """The entries of a dict: a list of pairs, or of many the columns, which nobody may change."""
    return Pairs(keys, values) if len(keys) >= _FEWEST_IN_COLUMNS else list(zip(keys, values, strict=True))


@dataclass(eq=False, slots=True)
class Dict:
    """A dict or OrderedDict, as pairs in the order of the file. Keys may be anything and are never hashed.

    Attributes:
        entries: (key, value) pairs.
        ordered: it is a collections.OrderedDict.
        attributes: the instance's own attributes (a `Dict`, holding `_metadata` in a state dict), or ABSENT.
    """

    entries: Sequence[tuple[Any, Any]] = field(default_factory=list)
    ordered: bool = False
    attributes: Any = ABSENT

    def extend(self, keys: list[Any], values: list[Any]) -> None:
        """Add entries to a dict that is being read."""
        entries = self.entries
        if type(entries) is Pairs:
            entries.extend(keys, values)
        elif type(entries) is list and len(entries) + len(keys) < _FEWEST_IN_COLUMNS:
            entries.extend(zip(keys, values, strict=True))
        else:
            self.entries = Pairs([*key_column(entries), *keys], [*value_column(entries), *values])

    def get(self, name: str, default: Any = None) -> Any:
        """The value of the last entry whose key is the string NAME."""
        for key, value in reversed(self.entries):
            if isinstance(key, str) and key == name:
                return value
        return default

    def __contains__(self, name: str) -> bool:
        return self.get(name, ABSENT) is not ABSENT


class _Referable:
    """So that what is known about an object can be kept as long as the object is."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True, repr=False)
class Object(_Referable):
    """An instance of some class, as the steps that pickle would take to make it. None of them is taken.

    Attributes:
        how: "reduce" (callee(*args)), "newobj" (callee.__new__(callee, *args)), "newobj_ex" (with keyword
            arguments as the last item of args) or "obj" (the old INST/OBJ opcodes).
        callee: usually a `Global`.
        args: a tuple.
        steps: what followed, in order: ("items", list), ("entries", list of pairs) or ("state", value).
    """

    how: str
    callee: Any
    args: Any
    steps: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def state(self) -> Any:
        """The state that it was given last, or ABSENT."""
        return next((value for kind, value in reversed(self.steps) if kind == "state"), ABSENT)

    @property
    def items(self) -> list[Any]:
        """Items that were appended to it."""
        return [item for kind, value in self.steps if kind == "items" for item in value]

    @property
    def entries(self) -> list[tuple[Any, Any]]:
        """Pairs that were set in it."""
        return [pair for kind, value in self.steps if kind == "entries" for pair in value]

    @property
    def class_name(self) -> str:
        """Dotted name of its class, as far as the pickle tells."""
        named = self.callee
        if str(named) == "copyreg._reconstructor" and type(self.args) is tuple and self.args:
            named = self.args[0]
        return str(named) if isinstance(named, Global) else "?"

    def __repr__(self) -> str:
        """Its class alone: what is in it may be in it again and again."""
        return f"Object({self.class_name})"


Mapped = Dict | Object
Node = List | Set | Dict | Object
NODES = (List, Set, Dict, Object)
_INNER = (tuple, *NODES)
Scalar = str | bytes | bytearray | int | float | bool | None


def is_mapping(node: Any) -> TypeGuard[Mapped]:
    """Whether a node is a dict, or an object that keys were set in, as a defaultdict or another class of dicts."""
    return isinstance(node, Dict) or (isinstance(node, Object) and any(kind == "entries" for kind, _ in node.steps))


def attributes_of(node: Any) -> Any:
    """The attributes of an instance of a class of dicts (a `Dict` in a state dict), or ABSENT."""
    return node.attributes if isinstance(node, Dict) else node.state if isinstance(node, Object) else ABSENT


def with_entries(node: Mapped, entries: Sequence[tuple[Any, Any]], attributes: Any = ABSENT) -> Mapped:
    """A copy of a dict (of whatever class) with other ENTRIES, and other ATTRIBUTES if they are given."""
    if isinstance(node, Dict):
        return Dict(entries, node.ordered, node.attributes if attributes is ABSENT else attributes)
    steps: list[tuple[str, Any]] = []
    placed = False
    for kind, value in node.steps:
        if kind == "entries" and placed:
            continue
        placed |= kind == "entries"
        changed = (
            entries if kind == "entries" else attributes if kind == "state" and attributes is not ABSENT else value
        )
        steps.append((kind, changed))
    return Object(node.how, node.callee, node.args, steps)


class Aside(str):
    """A path component that is no key or index: `@state`, `@args`, or `#3` for an entry without a plain key."""

    __slots__ = ()


Trail = Any  # None at the root, else (trail of the parent, component)


def children(node: Any) -> Iterable[tuple[str | int, Any]]:
    """The nodes directly below NODE, each with its path component, in the order of the file."""
    if type(node) is tuple:
        return enumerate(node)
    if type(node) is Dict and node.attributes is ABSENT and set(map(type, key_column(node.entries))) <= _PLAIN_KEYS:
        return node.entries  # as most are, and large ones
    return _children(node)


_PLAIN_KEYS = {str, int}


def _beside_entries(node: Any) -> Iterator[tuple[str | int, Any]]:
    if node.attributes is not ABSENT:
        yield Aside("@state"), node.attributes


def _children(node: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, tuple):
        yield from enumerate(node)
    elif isinstance(node, List):
        yield from enumerate(node.items)
    elif isinstance(node, Set):
        for index, item in enumerate(node.items):
            yield Aside(f"#{index}"), item
    elif isinstance(node, Dict):
        yield from _entries(node.entries)
        if node.attributes is not ABSENT:
            yield Aside("@state"), node.attributes
    elif isinstance(node, Object):
        yield Aside("@class"), node.callee
        yield Aside("@args"), node.args
        for kind, value in node.steps:
            if kind == "items":
                yield from enumerate(value)
            elif kind == "entries":
                yield from _entries(value)
            else:
                yield Aside("@state"), value


def _entries(entries: Sequence[tuple[Any, Any]]) -> Iterator[tuple[str | int, Any]]:
    for index, (key, value) in enumerate(entries):
        if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
            yield key, value
        else:
            yield Aside(f"#{index}@key"), key
            yield Aside(f"#{index}"), value


#: What `walk` gives of a tree: each node with its trail.
Walked = Iterable[tuple[Trail, Any]]


def holds_tensors_alone(node: Any) -> bool:
    """Whether it is a dict of texts and dense tensors alone, as large ones mostly are."""
    if type(node) is not Dict or not node.entries:
        return False
    entries = node.entries
    if type(entries) is Pairs:
        return entries.tensors_alone
    return _are_tensors_alone(key_column(entries), value_column(entries))


def _are_tensors_alone(keys: list[Any], values: Sequence[Any]) -> bool:
    tensors = type(values) is TensorColumn or set(map(type, values)) == {LazyTensor}
    return tensors and set(map(type, keys)) == {str}


def walk(root: Any, without: Callable[[Any], bool] | None = None) -> Iterator[tuple[Trail, Any]]:
    """Every node below ROOT (ROOT first), parents before children, in the order of the file. Of dicts for which WITHOUT
    is true (`holds_tensors_alone`, where their tensors are taken at once or not at all), the entries are left out.

    A container or object that is referenced several times comes once, at its first place; tensors and scalars come at
    every place. Iterative, so that no depth of nesting can exhaust the stack.
    """
    seen: set[int] = set()
    above: Trail = None
    levels: list[tuple[Trail, Iterator[tuple[str | int, Any]]]] = []
    trail: Trail = None
    node = root
    while True:
        if not isinstance(node, _INNER):
            yield trail, node
        elif id(node) not in seen:
            seen.add(id(node))
            yield trail, node
            below = children(node) if without is None or not without(node) else _beside_entries(node)
            levels.append((trail, iter(below)))
        while levels:
            above, siblings = levels[-1]
            following = next(siblings, None)
            if following is not None:
                component, node = following
                trail = (above, component)
                break
            levels.pop()
        else:
            return


def address(trail: Trail) -> str:
    """The path of a node: components joined by `/`, with `/` and `~` inside a key written `~1` and `~0` (RFC 6901).

    An integer key or index stands as it is; a string that could be taken for one (or for a component with a meaning
    of its own) stands in double quotes. The root is the empty path.
    """
    components: list[str] = []
    while trail is not None:
        trail, component = trail
        components.append(component_text(component))
    return "/".join(reversed(components))


class Paths:
    """The paths of many places in a tree: those of `address`, each made from that of the place above.

    A path of more than a thousand characters is cut, and has a digest in place of its middle: the paths of all
    places in a tree 20,000 deep would take gigabytes.

    Args:
        plain: leave out components that are no keys and no indices (`@state`).
    """

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain
        self._above: dict[int, tuple[Trail, str]] = {}  # id of a trail -> itself and its path, the outermost first

    def of(self, trail: Trail) -> str:
        """The path of the place that TRAIL leads to."""
        return "" if trail is None else self._joined(self._begun(trail[0]), trail[1])

    def below(self, trail: Trail) -> str:
        """What the paths of all that stands in the place begin with."""
        path = self._begun(trail)
        return f"{path}/" if path else ""

    def _begun(self, trail: Trail) -> str:
        """The path of something that others stand in. It is kept until it is left: trees are walked in depth."""
        missing = []
        while trail is not None and id(trail) not in self._above:
            missing.append(trail)
            trail = trail[0]
        while self._above and next(reversed(self._above)) != id(trail):
            self._above.popitem()
        path = "" if trail is None else self._above[id(trail)][1]
        for one in reversed(missing):
            path = self._joined(path, one[1])
            if len(path) > _LONGEST_PATH:
                import hashlib

                told = hashlib.sha256(path.encode("utf-8", "replace")).hexdigest()[:16]
                path = f"{path[: _LONGEST_PATH // 2]}…{told}"
            self._above[id(one)] = one, path
        return path

    def _joined(self, path: str, component: str | int) -> str:
        if self._plain and isinstance(component, Aside):
            return path
        return f"{path}/{component_text(component)}" if path else component_text(component)


_LONGEST_PATH = 1000


def component_text(component: str | int) -> str:
    """One component of a path as text."""
    if isinstance(component, Aside | int):
        return str(component)
    text = str(component)
    if text[:1].isalpha() and "/" not in text and "~" not in text:  # as nearly all
        return text
    if not text or text[0] in '"#@' or text.removeprefix("-").isdecimal():
        text = f'"{text}"'
    return text.replace("~", "~0").replace("/", "~1")


def names_in(path: str) -> list[str]:
    """The components of a path as they are called in the file: those of `a/b~1c` are "a" and "b/c"."""
    texts = [text.replace("~1", "/").replace("~0", "~") for text in path.split("/")] if path else []
    return [text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text for text in texts]


def trail_to(path: str) -> Trail:
    """The trail whose `address` is PATH."""
    trail: Trail = None
    for text in path.split("/") if path else []:
        trail = (trail, Aside(text))
    return trail


def descend(root: Any, path: str) -> Any:
    """The node at PATH (see `address`), or ABSENT if there is none. Of equal keys the last counts, as in Python."""
    node = root
    for text in path.split("/") if path else []:
        found = [child for part, child in children(node) if component_text(part) == text]
        if not found:
            return ABSENT
        node = found[-1]
    return node


def rebuild(
    root: Any,
    *,
    leaf: Callable[[LazyTensor | Storage], Any] | None = None,
    instead: Mapping[int, Any] | None = None,
) -> Any:
    """A copy of the tree below ROOT with the same sharing and the same cycles.

    Args:
        root: the tree.
        leaf: gives the replacement of a tensor or of a bare storage; called once for each.
        instead: nodes to put in place of others, by the `id` of the old one; what is below them is copied too.
    """
    made: dict[int, Any] = {}
    fills: list[tuple[Node, Node]] = []  # (copy, original) still to be filled

    def begin(node: Any) -> Any:
        """The copy of NODE if it can be had now: all but a tuple that is met for the first time."""
        if isinstance(node, Scalar | Global | _Absent):
            return node
        known = made.get(id(node), ABSENT)
        if known is not ABSENT:
            return known
        original = instead.get(id(node), node) if instead else node
        if isinstance(original, NODES):
            copy: Any = type(original).__new__(type(original))
            fills.append((copy, original))
        elif isinstance(original, LazyTensor | Storage):
            copy = leaf(original) if leaf else original
        elif type(original) is tuple:
            return ABSENT
        else:
            copy = original
        made[id(node)] = copy
        return copy

    def copied(node: Any) -> Any:
        """The copy of NODE. Tuples are built innermost first; the nodes in them may still be empty then."""
        ready = begin(node)
        if ready is not ABSENT or node is ABSENT:
            return ready
        waiting = [node]
        while waiting:
            top = waiting[-1]
            if id(top) in made:
                waiting.pop()
                continue
            missing = [child for child in top if begin(child) is ABSENT]
            if missing:
                waiting.extend(missing)
                continue
            made[id(top)] = tuple(begin(child) for child in top)
            waiting.pop()
        return made[id(node)]

    result = copied(root)
    while fills:
        copy: Any
        copy, original = fills.pop()
        if isinstance(original, List):
            copy.items = [copied(item) for item in original.items]
        elif isinstance(original, Set):
            copy.items, copy.frozen = [copied(item) for item in original.items], original.frozen
        elif isinstance(original, Dict):
            entries = original.entries  # the columns of a large dict are shared: nobody changes them
            if not holds_tensors_alone(original):
                copy.entries = [(copied(key), copied(value)) for key, value in entries]
            elif leaf is None:
                copy.entries = entries if type(entries) is Pairs else list(entries)
            else:
                copy.entries = in_columns(key_column(entries), [begin(tensor) for tensor in value_column(entries)])
            copy.ordered, copy.attributes = original.ordered, copied(original.attributes)
        else:
            copy.how, copy.callee, copy.args = original.how, copied(original.callee), copied(original.args)
            copy.steps = []
            for kind, value in original.steps:
                if kind == "items":
                    value = [copied(item) for item in value]
                elif kind == "entries":
                    value = [(copied(key), copied(item)) for key, item in value]
                else:
                    value = copied(value)
                copy.steps.append((kind, value))
    return result


def metadata_of(node: Mapped) -> Dict | None:
    """The `_metadata` node of a state dict, or None."""
    attributes = attributes_of(node)
    found = attributes.get("_metadata") if isinstance(attributes, Dict) else None
    return found if isinstance(found, Dict) else None
