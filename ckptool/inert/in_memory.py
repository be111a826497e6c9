"""Values in memory as a tree: dicts and lists of arrays of numpy, of tensors out of files, and of plain data.

`ckptool.torch_bridge` adds the tensors of torch.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..disk.files import Buffer
from ..dtypes import BY_NAME
from ..errors import CannotCarry, printable
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..tree import ABSENT, Dict, List, Set, metadata_of

if TYPE_CHECKING:
    import numpy as np


class FromMemory:
    """Makes nodes of a tree. What stands at several places stays one."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._alive: list[Any] = []

    def node(self, value: Any, path: str) -> Any:
        """The node for a value that stands at PATH.

        Raises:
            CannotCarry: a value of another class, which only torch.save can write.
        """
        if value is None or isinstance(value, bool | bytes):
            return value
        for plain in (str, int, float):  # of a subclass (an enum, a number of numpy) the value counts
            if isinstance(value, plain):
                return plain(value)
        if id(value) in self._made:
            return self._made[id(value)]
        self._alive.append(value)  # so that its id stays its own
        if type(value) is tuple:
            made: Any = tuple(self.node(item, f"{path}/{i}") for i, item in enumerate(value))
        elif type(value) in (dict, OrderedDict):
            made = self._made[id(value)] = Dict(ordered=isinstance(value, OrderedDict))
            made.entries = [
                (self.node(k, path), self.node(v, f"{path}/{k}" if path else str(k))) for k, v in value.items()
            ]
            metadata = getattr(value, "_metadata", None)
            if metadata is not None:
                made.attributes = Dict([("_metadata", self.node(metadata, path))])
        elif type(value) is list:
            made = self._made[id(value)] = List()
            made.items = [self.node(item, f"{path}/{i}") for i, item in enumerate(value)]
        elif type(value) in (set, frozenset):
            made = Set([self.node(item, path) for item in value], frozen=type(value) is frozenset)
        else:
            made = self.leaf(value, path)
        self._made[id(value)] = made
        return made

    def leaf(self, value: Any, path: str) -> Any:
        """The node for what is no container."""
        if isinstance(value, LazyTensor):
            return value
        numpy = sys.modules.get("numpy")  # without it nobody has an array
        if numpy is not None and isinstance(value, numpy.ndarray):
            return _of_array(value, path)
        if numpy is not None and isinstance(value, numpy.generic):
            return self.node(value.item(), path)
        raise CannotCarry(
            f"{printable(path) or 'the value'} is a {type(value).__name__}; only tensors and plain data are saved",
            hint="save it with torch.save, then open the file",
        )


def _of_array(array: np.ndarray[Any, Any], path: str) -> LazyTensor:
    """An array of numpy with its memory, if that is in C order and of this machine's byte order; else with a copy."""
    dtype = BY_NAME.get(array.dtype.name)
    if dtype is None or dtype.numpy is None:
        raise CannotCarry(f"{printable(path) or 'the value'} is an array of {array.dtype}, which no tensor can be")
    plain = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    raw: Any = plain.reshape(-1).view("u1") if plain.size else b""
    storage = Storage(Buffer(memoryview(raw)), "cpu", dtype if dtype.storage else None)
    return LazyTensor(storage, dtype, plain.shape, contiguous_stride(plain.shape))


# -- plain dicts of anything, so that passes work on what torch.load returned: what is no container is a leaf


def from_plain(value: Any, made: dict[int, Any] | None = None) -> Any:
    """A dict of tensors (or a dict of dicts of them) as a tree. Whatever is no dict, list or tuple is a leaf.

    What stands at several places (MADE remembers it) stays one.
    """
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, Mapping):
        node = made[id(value)] = Dict(ordered=isinstance(value, OrderedDict))
        metadata = getattr(value, "_metadata", None)
        node.attributes = ABSENT if metadata is None else Dict([("_metadata", from_plain(metadata, made))])
        node.entries = [(key, from_plain(item, made)) for key, item in value.items()]
        return node
    if isinstance(value, list):
        listed = made[id(value)] = List()
        listed.items = [from_plain(item, made) for item in value]
        return listed
    if type(value) is tuple:
        return made.setdefault(id(value), tuple(from_plain(item, made) for item in value))
    return value


def to_plain(node: Any, made: dict[int, Any] | None = None) -> Any:
    """The dict or list that a tree of `from_plain` stands for."""
    made = {} if made is None else made
    if id(node) in made:
        return made[id(node)]
    if isinstance(node, Dict):
        plain: Any = OrderedDict() if node.ordered else {}
        made[id(node)] = plain
        for key, value in node.entries:
            plain[key] = to_plain(value, made)
        metadata = metadata_of(node)
        if metadata is not None and node.ordered:
            plain._metadata = to_plain(metadata, made)
        return plain
    if isinstance(node, List):
        listed: list[Any] = made.setdefault(id(node), [])
        listed.extend(to_plain(item, made) for item in node.items)
        return listed
    if type(node) is tuple:
        return made.setdefault(id(node), tuple(to_plain(item, made) for item in node))
    return node
