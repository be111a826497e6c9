"""One canonical form for object graphs: trees of ckptool, and what Python and torch make of the same file.

`graph` numbers every mutable object, tensor and storage at its first visit and lists what it meets. Two graphs are the
same, sharing, cycles and order included, if their lists are equal. Trees and Python values give the same lists, so that
`graph(ckptool.open(path).root) == graph(torch.load(path))`.
"""

import enum
import sys
import types
from collections import OrderedDict

from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import ABSENT, Dict, Global, List, Object, Set


def graph(root, *, storages=True, sharing_of_tuples=True):
    """The canonical form of what is below ROOT.

    Args:
        root: a tree of ckptool, or Python objects with torch tensors among them.
        storages: include where storages are, what is in them, and which tensors share them.
        sharing_of_tuples: tell a tuple that is referenced twice from two equal ones.
    """
    return _Graph(storages, sharing_of_tuples).of(root)


class _Graph:
    def __init__(self, storages, sharing_of_tuples):
        self.storages, self.sharing_of_tuples = storages, sharing_of_tuples
        self.out = []
        self.numbers = {}
        self.alive = []
        self.todo = []

    def of(self, root):
        self.todo.append(root)
        while self.todo:
            self.visit(self.todo.pop())
        return self.out

    def then(self, *values):
        self.todo.extend(reversed(values))

    def is_new(self, key, kind):
        known = key in self.numbers
        number = self.numbers.setdefault(key, len(self.numbers))
        if known:
            self.out.append((kind, "again", number))
        return not known

    def visit(self, node):
        if isinstance(node, _Token):
            self.out.append(node.value)
        elif node is None or node is ABSENT or type(node) is bool:
            self.out.append(node)
        elif isinstance(node, str) and not isinstance(node, enum.Enum):
            self.out.append(("str", str(node)))
        elif type(node) is int:
            self.out.append(("int", node))
        elif type(node) is float:
            self.out.append(("float", node.hex()))
        elif type(node) is bytes:
            self.out.append(("bytes", node))
        elif type(node) is tuple:
            self.tuple(node)
        elif isinstance(node, Global):
            self.out.append(("global", node.module, node.name))
        elif isinstance(node, type | types.FunctionType | types.BuiltinFunctionType):
            self.out.append(("global", node.__module__, node.__qualname__))
        elif isinstance(node, Storage):
            self.storage(node.identity, node.location, lambda: bytes(node.source.read(0, node.nbytes)), node)
        elif _torch_kind(node) == "storage":
            self.torch_storage(node)
        elif _torch_kind(node) == "dtype":
            self.out.append(("global", "torch", str(node).removeprefix("torch.")))
        else:
            self.mutable(node)

    def tuple(self, items):
        self.alive.append(items)
        if not items or not self.sharing_of_tuples or self.is_new(id(items), "tuple"):
            self.out.append(("tuple", len(items)))
            self.then(*items)

    def storage(self, identity, location, data, alive):
        self.alive.append(alive)
        if not self.storages:
            self.out.append("storage")
        elif not (alive.nbytes() if callable(alive.nbytes) else alive.nbytes):  # torch gives each tensor one of its own
            self.out.append(("storage", location, b""))
        elif self.is_new(("storage", identity), "storage"):
            self.out.append(("storage", location, data()))

    def torch_storage(self, storage):
        import torch

        untyped = getattr(storage, "_untyped_storage", storage)
        self.storage(
            untyped._cdata,
            torch.serialization.location_tag(untyped),
            lambda: bytes(untyped.tolist()),
            untyped,
        )

    def tensor(self, dtype, shape, stride, offset, grad, parameter, conj, neg, storage):
        self.out.append((dtype, tuple(shape), tuple(stride), offset, grad, parameter, conj, neg))
        self.then(storage)

    def mutable(self, node):
        self.alive.append(node)
        kind = type(node).__name__
        if isinstance(node, LazyTensor):
            if self.is_new(id(node), "tensor"):
                flags = node.requires_grad, node.parameter, node.conj, node.neg
                self.tensor(node.dtype.name, node.shape, node.stride, node.offset, *flags, node.storage)
        elif _torch_kind(node) == "tensor":
            self.torch_tensor(node)
        elif isinstance(node, List | list):
            if self.is_new(id(node), "list"):
                items = node.items if isinstance(node, List) else node
                self.out.append(("list", len(items)))
                self.then(*items)
        elif isinstance(node, Set | set | frozenset):
            if self.is_new(id(node), "set"):
                self.set(node)
        elif isinstance(node, Dict) or type(node) in (dict, OrderedDict):
            if self.is_new(id(node), "dict"):
                self.dict(node)
        elif isinstance(node, bytearray) or (isinstance(node, Object) and node.class_name == "builtins.bytearray"):
            if self.is_new(id(node), "bytearray"):  # a call, before protocol 5
                self.out.append(("bytearray", bytes(*node.args) if isinstance(node, Object) else bytes(node)))
        elif isinstance(node, Object):
            if self.is_new(id(node), "object"):
                self.object(node)
        elif self.is_new(id(node), kind):
            self.instance(node)

    def set(self, node):
        items = node.items if isinstance(node, Set) else list(node)
        frozen = node.frozen if isinstance(node, Set) else isinstance(node, frozenset)
        self.out.append(("frozenset" if frozen else "set", len(items)))
        # of what is hashed by its value, the order is that of the file in a tree, and that of hashes in Python
        self.then(*(sorted(items, key=repr) if all(map(_hashed_by_value, items)) else items))

    def dict(self, node):
        if isinstance(node, Dict):
            entries, ordered, attributes = node.entries, node.ordered, node.attributes
        else:
            entries, ordered = list(node.items()), type(node) is OrderedDict
            attributes = vars(node) if ordered and vars(node) else ABSENT
        self.out.append(("OrderedDict" if ordered else "dict", len(entries)))
        self.then(*(part for pair in entries for part in pair), _Token("attributes"), attributes)

    def object(self, node):
        self.out.append(("object", node.how))
        steps = []
        for kind, value in node.steps:
            steps.append(_Token((kind, len(value)) if kind != "state" else kind))
            if kind == "state":
                steps.append(value)
            else:
                steps += value if kind == "items" else [part for pair in value for part in pair]
        self.then(node.callee, node.args, *steps, _Token("end"))

    def instance(self, node):
        """An object of any class, as its own class says that it should be copied."""
        made = node.__reduce_ex__(2)
        if isinstance(made, str):
            self.out.append(("global", type(node).__module__, made))
            return
        function, args, state, items, entries = (*made, None, None, None)[:5]
        items, pairs = list(items or ()), [part for pair in entries or () for part in pair]
        self.out.append(("instance", len(items), len(pairs)))
        self.then(function, args, state, *items, *pairs)

    def torch_tensor(self, node):
        import torch

        if self.is_new(id(node), "tensor"):
            flags = node.requires_grad, isinstance(node, torch.nn.Parameter), node.is_conj(), node.is_neg()
            dtype = str(node.dtype).removeprefix("torch.")
            self.tensor(dtype, node.shape, node.stride(), node.storage_offset(), *flags, node.untyped_storage())


class _Token:
    def __init__(self, value):
        self.value = value


def _hashed_by_value(item):
    return isinstance(item, str | bytes | int) or (type(item) is tuple and all(map(_hashed_by_value, item)))


def _torch_kind(value):
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
        return "storage"
    return "dtype" if isinstance(value, torch.dtype) else None
