"""Writing a tree as a pickle: protocol 2, within the opcodes that torch's `weights_only` unpickler takes.

A value that is referenced again is put into the memo, and nothing else is, so what we write is nearly always shorter
than what torch wrote. `fit` fills it up to a given length with memo puts before its STOP: any unpickler runs them, none
sees anything odd, and the pickle can then be patched over the old one in place. Only where the tree holds what
protocol 2 cannot say (nested class names, keyword arguments to __new__, a module that is called as one of Python 2 was)
is protocol 4 written.

Opcodes: CPython's `pickletools`. The subset: `torch/_weights_only_unpickler.py` of torch 2.13.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from ...errors import CannotCarry, printable
from ...tensor import LazyTensor, Storage, View
from ...tree import (
    ABSENT,
    ByteString,
    Dict,
    Global,
    List,
    Object,
    Set,
    holds_tensors_alone,
    key_column,
    value_column,
    walk,
)
from .python2 import python2_name, python3_name

_LONGEST_TEXT = (1 << 32) - 1  # bytes that the texts of protocol 2 can have
#: Opcodes that are joined at once.
_AT_ONCE = 1 << 16
_BATCH = 1000  # items per APPENDS or SETITEMS, as the standard pickler does

_Value = TypeVar("_Value")

_ORDERED_DICT = Global("collections", "OrderedDict")
_ENCODE = Global("_codecs", "encode")
_BYTEARRAY = Global("builtins", "bytearray")
_SETS = {False: Global("builtins", "set"), True: Global("builtins", "frozenset")}
_PARAMETER = Global("torch._utils", "_rebuild_parameter")
_TENSOR_2 = Global("torch._utils", "_rebuild_tensor_v2")
_TENSOR_3 = Global("torch._utils", "_rebuild_tensor_v3")
_UNTYPED = Global("torch.storage", "UntypedStorage")


class _PutLater:
    """A task: put VALUE, just made, under KEY."""

    __slots__ = ("key", "value")

    def __init__(self, key: Any, value: Any) -> None:
        self.key = key
        self.value = value


class _TupleEnd:
    """A task: make a tuple of the items just emitted."""

    __slots__ = ("value",)

    def __init__(self, value: tuple[Any, ...]) -> None:
        self.value = value


class _Op:
    """A task: emit these bytes."""

    __slots__ = ("code",)

    def __init__(self, code: bytes) -> None:
        self.code = code


class _Tensors:
    """A task: emit the PART of the entries of a dict, which are texts and tensors alone."""

    __slots__ = ("entries", "part")

    def __init__(self, entries: Sequence[tuple[str, LazyTensor]], part: slice) -> None:
        self.entries = entries
        self.part = part


class _Run:
    """Neighbours in a dict whose opcodes are those of ALIKE but for their keys and the names of their storages.

    Their opcodes are made when all are joined, and the names again then: there may be a million.
    """

    __slots__ = ("alike", "keys", "storages")

    def __init__(self, alike: _Alike) -> None:
        self.alike = alike
        self.keys: list[str] = []
        self.storages: list[Storage] = []


class _Alike(NamedTuple):
    """The opcodes of tensors that differ in the name of their storage alone: those before it and those behind it."""

    before: tuple[Any, ...]
    behind: tuple[Any, ...]
    uses: list[int]  # one number: how many tensors were written with them
    view: View  # kept alive, since it is known by its id


_REDUCE, _NEWOBJ, _NEWOBJ_EX, _OBJ = _Op(b"R"), _Op(b"\x81"), _Op(b"\x92"), _Op(b"o")
_BUILD, _MARK, _APPENDS, _SETITEMS = _Op(b"b"), _Op(b"("), _Op(b"e"), _Op(b"u")


def write_pickle(root: Any, name_of: Callable[[Storage], str], *, legacy: bool = False) -> bytearray:
    """The pickle of the tree below ROOT.

    Args:
        root: the tree.
        name_of: gives the name of a storage in the file, called for each tensor in the order of the pickle, and for
            some once more later: it gives the same one then.
        legacy: persistent ids are those of a legacy file, which end with the place of a view: None here.

    Raises:
        CannotCarry: a name that no pickle can spell.
    """
    repeated = _repeated(root)
    end = b"NtQ" if legacy else b"tQ"
    emitter = _Emitter(name_of, end, *repeated)
    pickle = emitter.run(root)
    return pickle if emitter.protocol == 2 else _Emitter(name_of, end, *repeated, emitter.protocol).run(root)


def _repeated(root: Any) -> tuple[set[int], set[str]]:
    """The ids of the tensors that stand in several places, and the keys that stand at several tensors or are a text
    elsewhere.
    """
    tensors: list[int] = []
    texts: list[str] = []
    for trail, node in walk(root, holds_tensors_alone):
        if trail is not None and type(trail[1]) is str:
            texts.append(trail[1])
        if type(node) is LazyTensor:
            tensors.append(id(node))
        elif type(node) is str:
            texts.append(node)
        elif holds_tensors_alone(node):
            texts += key_column(node.entries)
            tensors += map(id, value_column(node.entries))
    return _several(tensors), _several(texts)


def _several(values: list[_Value]) -> set[_Value]:
    """The values that are there more than once: mostly none, of very many."""
    if len(set(values)) == len(values):
        return set()
    return {one for one, count in Counter(values).items() if count > 1}


class _Emitter:
    """Turns a tree into opcodes.

    Values that can be referenced again are numbered as they are put. In `out`, a number N stands for a fetch of value
    N, a tuple for what stands at several places; which puts are needed, and their places in the memo, is known only at
    the end. Of a tensor that stands in one place, as nearly all, nothing is kept: there may be a million.
    """

    def __init__(
        self,
        name_of: Callable[[Storage], str],
        end_of_id: bytes,
        repeated: set[int],
        repeated_keys: set[str],
        protocol: int = 2,
    ) -> None:
        self.protocol = protocol  # grows to 4 where the tree needs it; what was written then is written again
        self._name_of = name_of
        self._end_of_id = end_of_id
        self._shared = repeated
        self._shared_keys = repeated_keys
        self._out: list[bytes | int | tuple[bytes | int, ...] | _Run] = []
        self._alike: dict[tuple[Any, ...], _Alike] = {}
        self._last: tuple[LazyTensor, _Alike] | None = None
        self._repeated: list[tuple[list[int], list[int]]] = []  # values that are fetched together, and how often
        self._numbers_of: dict[Any, int] = {}
        self._fetched: list[int] = []  # how often each is fetched
        self._puts = array("Q")  # and before which item of `out` it is put
        self._alive: list[Any] = []  # what is known by its `id` must live, lest another value gets the same
        self._todo: list[Any] = []

    def run(self, root: Any) -> bytearray:
        todo = self._todo
        todo.append(root)
        while todo:
            self._emit(todo.pop())
        return self._render()

    def _render(self) -> bytearray:
        for fetches, count in self._repeated:
            for number in fetches:
                self._fetched[number] += count[0]
        # the most fetched values get the one-byte indices
        used = sorted((n for n, count in enumerate(self._fetched) if count), key=lambda n: -self._fetched[n])
        place = {number: index for index, number in enumerate(used)}
        known: dict[int, bytes] = {}  # opcodes that come again and again

        def spelled(opcodes: tuple[bytes | int, ...]) -> bytes:
            if id(opcodes) not in known:
                told = (one if isinstance(one, bytes) else _indexed(b"h", b"j", place[one]) for one in opcodes)
                known[id(opcodes)] = b"".join(told)
            return known[id(opcodes)]

        pickle = bytearray((0x80, self.protocol))
        needed = iter(sorted(place))
        following = next(needed, None)
        self._numbers_of.clear()
        self._alive.clear()  # there may be a million keys and names of storages
        for begin in range(0, len(self._out), _AT_ONCE):
            batch = self._out[begin : begin + _AT_ONCE]
            self._out[begin : begin + len(batch)] = repeat(b"", len(batch))  # what is written need not be kept
            parts: list[bytes] = []
            for at, item in enumerate(batch, begin):
                while following is not None and self._puts[following] == at:
                    parts.append(_indexed(b"q", b"r", place[following]))
                    following = next(needed, None)
                if type(item) is bytes:
                    parts.append(item)
                elif type(item) is int:
                    parts.append(_indexed(b"h", b"j", place[item]))
                elif type(item) is tuple:
                    parts.append(spelled(item))
                elif type(item) is _Run:
                    pickle += b"".join(parts)
                    parts.clear()
                    self._spell_run(item, spelled(item.alike.before), spelled(item.alike.behind), pickle)
            pickle += b"".join(parts)
        pickle += b"."
        return pickle

    def _spell_run(self, run: _Run, before: bytes, behind: bytes, pickle: bytearray) -> None:
        """Add the opcodes of neighbours, some at a time, to PICKLE."""
        for at in range(0, len(run.keys), _BATCH):
            batch = slice(at, at + _BATCH)
            pairs = zip(run.keys[batch], map(self._name_of, run.storages[batch]), strict=True)
            pickle += b"".join([_spelled(key) + before + _spelled(name) + behind for key, name in pairs])

    def _fetch(self, key: Any) -> bool:
        """Emit a fetch if the value was put already."""
        number = self._numbers_of.get(key)
        if number is None:
            return False
        self._fetched[number] += 1
        self._out.append(number)
        return True

    def _put(self, key: Any, value: Any) -> None:
        self._numbers_of[key] = len(self._fetched)
        self._fetched.append(0)
        self._alive.append(value)
        self._puts.append(len(self._out))

    def _push(self, *tasks: Any) -> None:
        """Do TASKS next, in this order."""
        self._todo.extend(reversed(tasks))

    def _emit(self, node: Any) -> None:
        # ordered by how often each comes in a checkpoint
        kind = type(node)
        if kind is _Op:
            self._out.append(node.code)
        elif kind is _PutLater:
            self._put(node.key, node.value)
        elif kind is _TupleEnd:
            self._end_tuple(node.value)
        elif kind is _Tensors:
            for key, tensor in node.entries[node.part]:
                self._entry(key, tensor)
        elif kind is str:
            self._text(node)
        elif kind is LazyTensor:
            self._tensor_or_fetch(node)
        elif kind is bool:
            self._out.append(b"\x88" if node else b"\x89")
        elif kind is int:
            self._out.append(_integer(node))
        elif kind is Global:
            self._global(node)
        elif kind is tuple:
            self._tuple(node)
        elif node is None:
            self._out.append(b"N")
        elif kind is float:
            self._out.append(struct.pack(">cd", b"G", node))
        elif kind is ByteString:
            self._byte_string(node)
        elif kind is bytes:
            self._bytes(node)
        elif isinstance(node, Storage):
            self._persistent_id(node, self._name_of(node))
        elif not self._fetch(id(node)):
            self._new_node(node)

    def _new_node(self, node: Any) -> None:
        put = _PutLater(id(node), node)
        if isinstance(node, Dict):
            self._dict(node, put)
        elif isinstance(node, List):
            self._out.append(b"]")
            self._push(put, *self._items(node.items))
        elif isinstance(node, Object):
            self._object(node, put)
        elif isinstance(node, Set):
            self._push(_SETS[node.frozen], (List(list(node.items)),), _REDUCE, put)
        elif isinstance(node, bytearray):
            self._push(_BYTEARRAY, (bytes(node),), _REDUCE, put)
        else:
            raise CannotCarry(f"a {type(node).__name__} cannot be written to a pickle")

    # -- scalars

    def _text(self, text: str) -> None:
        if not self._fetch(text):
            self._text_once(text)
            self._put(text, text)

    def _text_once(self, text: str) -> None:
        spelled = _spelled(text)
        if spelled[:1] != b"X":
            self.protocol = 4
        self._out.append(spelled)

    def _byte_string(self, text: ByteString) -> None:
        key = (ByteString, text.raw)
        if not self._fetch(key):
            size = len(text.raw)
            self._out.append((bytes((0x55, size)) if size < 256 else struct.pack("<cI", b"T", size)) + text.raw)
            self._put(key, text)

    def _bytes(self, data: bytes) -> None:
        if not self._fetch((bytes, id(data))):
            made = (data.decode("latin-1"), "latin1")  # also of none: weights_only knows no call of bytes()
            self._push(_ENCODE, made, _REDUCE, _PutLater((bytes, id(data)), data))

    def _global(self, node: Global) -> None:
        if self._fetch(node):
            return
        if "\n" in str(node) or any("\ud800" <= char <= "\udfff" for char in str(node)):
            raise CannotCarry(f"the class name {printable(str(node))} is none; no pickle should carry it")
        if "." in node.name:  # nested: only protocol 4 walks through attributes
            self.protocol = 4
        spelled = (node.module, node.name)
        if self.protocol == 2:
            spelled = python2_name(*spelled)
            if python3_name(*spelled) != (node.module, node.name):  # readers would take it for a name of Python 2
                self.protocol = 4
        if "." in node.name:
            self._push(*spelled, _Op(b"\x93"), _PutLater(node, node))
        else:
            self._out.append(f"c{spelled[0]}\n{spelled[1]}\n".encode())
            self._put(node, node)

    # -- containers

    def _tuple(self, items: tuple[Any, ...]) -> None:
        if not items:
            self._out.append(b")")
        elif not self._fetch(id(items)):
            begin = (_MARK,) if len(items) > 3 else ()
            self._push(*begin, *items, _TupleEnd(items))

    def _end_tuple(self, items: tuple[Any, ...]) -> None:
        if id(items) in self._numbers_of:  # it holds itself, and was made while its items were
            self._out.append(b"1" if len(items) > 3 else b"0" * len(items))
            self._fetch(id(items))
            return
        self._out.append((b"\x85", b"\x86", b"\x87")[len(items) - 1] if len(items) <= 3 else b"t")
        self._put(id(items), items)

    def _items(self, items: list[Any]) -> list[Any]:
        tasks: list[Any] = []
        for at in range(0, len(items), _BATCH):
            tasks += [_MARK, *items[at : at + _BATCH], _APPENDS]
        return tasks

    def _pairs(self, entries: Sequence[tuple[Any, Any]], *, tensors: bool = False) -> list[Any]:
        tasks: list[Any] = []
        for at in range(0, len(entries), _BATCH):
            batch = slice(at, at + _BATCH)
            inside = [_Tensors(entries, batch)] if tensors else [part for pair in entries[batch] for part in pair]
            tasks += [_MARK, *inside, _SETITEMS]
        return tasks

    def _dict(self, node: Dict, put: _PutLater) -> None:
        begin = (_ORDERED_DICT, (), _REDUCE) if node.ordered else (_Op(b"}"),)
        state = () if node.attributes is ABSENT else (node.attributes, _BUILD)
        self._push(*begin, put, *self._pairs(node.entries, tensors=holds_tensors_alone(node)), *state)

    def _object(self, node: Object, put: _PutLater) -> None:
        tasks: list[Any] = []
        if node.how == "obj":
            tasks += [_MARK, node.callee, *node.args, _OBJ]
        elif node.how == "newobj_ex":
            self.protocol = 4
            tasks += [node.callee, *node.args, _NEWOBJ_EX]
        else:
            tasks += [node.callee, node.args, _NEWOBJ if node.how == "newobj" else _REDUCE]
        tasks.append(put)
        for kind, value in node.steps:
            if kind == "items":
                tasks += self._items(value)
            elif kind == "entries":
                tasks += self._pairs(value)
            else:
                tasks += [value, _BUILD]
        self._push(*tasks)

    # -- tensors: written at once, since nothing in them can be referenced again

    def _tensor_or_fetch(self, tensor: LazyTensor) -> None:
        if id(tensor) not in self._shared:
            self._tensor(tensor)
        elif not self._fetch(id(tensor)):
            self._tensor(tensor)
            self._put(id(tensor), tensor)

    def _tensor(self, tensor: LazyTensor) -> None:
        """A tensor. All but the name of its storage is as in most others, and their opcodes are those of the first."""
        name = self._name_of(tensor.storage)
        alike = self._like(tensor, name)
        if alike is None:
            self._tensor_anew(tensor, name)
        else:
            self._out += (alike.before, _spelled(name), alike.behind)
            alike.uses[0] += 1

    def _entry(self, key: str, tensor: LazyTensor) -> None:
        """An entry of a dict of tensors. Mostly, both are met once, and all but the key and the name of the storage is
        as in the entry before.
        """
        may_come_again = "." not in key or key in self._shared_keys  # as the name of a storage, or of its place
        if may_come_again or id(tensor) in self._shared:
            self._text(key)
            self._tensor_or_fetch(tensor)
            return
        storage = tensor.storage
        name = self._name_of(storage)
        alike = self._like(tensor, name)
        if alike is None:
            self._text_once(key)
            self._tensor_anew(tensor, name)
            return
        run = self._out[-1]
        if type(run) is not _Run or run.alike is not alike:
            run = _Run(alike)
            self._out.append(run)
        run.keys.append(key)
        run.storages.append(storage)
        alike.uses[0] += 1

    def _like(self, tensor: LazyTensor, name: str) -> _Alike | None:
        """The opcodes of a tensor that differs from this one in the NAME of its storage alone, if there was one, and if
        that name was not put into the memo.
        """
        if name in self._numbers_of:
            return None
        if self._last is not None:  # mostly, the one before
            last, alike = self._last
            storage, other = tensor.storage, last.storage
            alike_storages = storage.kind is other.kind and storage.nbytes == other.nbytes
            if alike_storages and tensor.view is last.view and tensor.offset == last.offset:
                return alike
        known = self._alike.get(_told(tensor))
        if known is not None:
            self._last = tensor, known
        return known

    def _tensor_anew(self, tensor: LazyTensor, name: str) -> None:
        """The opcodes of a tensor, which are kept for those that are like it."""
        begin, number = len(self._out), len(self._fetched)
        self._opcodes(tensor, name)
        made = self._out[begin:]
        if len(self._puts) == number + 1 and self._numbers_of.get(name) == number:  # the name is all that was put
            named = self._puts[number] - begin
            count = [0]
            self._alike[_told(tensor)] = _Alike(tuple(made[: named - 1]), tuple(made[named:]), count, tensor.view)
            self._repeated.append(([one for one in made if type(one) is int], count))

    def _opcodes(self, tensor: LazyTensor, name: str) -> None:
        out = self._out
        typed = tensor.storage.dtype is not None
        if typed and tensor.storage.dtype != tensor.dtype:  # torch rebuilds it as what the storage is
            raise CannotCarry(f"a tensor of {tensor.dtype.name} over a storage of {tensor.storage.dtype}")
        if tensor.parameter:
            self._global(_PARAMETER)
        self._global(_TENSOR_2 if typed else _TENSOR_3)
        out.append(b"(")
        self._persistent_id(tensor.storage, name)
        out.append(_integer(tensor.offset))
        self._numbers(tensor.shape)
        self._numbers(tensor.stride)
        out.append(b"\x88" if tensor.requires_grad and not tensor.parameter else b"\x89")
        self._no_hooks()
        if not typed:
            self._global(Global("torch", tensor.dtype.name))
        if tensor.conj or tensor.neg:
            out.append(b"}")
            for bit in ("conj", "neg"):
                if getattr(tensor, bit):
                    self._text(bit)
                    out.append(b"\x88s")
        out.append(b"tR")
        if tensor.parameter:
            out.append(b"\x88" if tensor.requires_grad else b"\x89")
            self._no_hooks()
            out.append(b"\x87R")

    def _persistent_id(self, storage: Storage, name: str) -> None:
        self._out.append(b"(")
        self._text("storage")
        self._global(_class_named(storage.class_name))
        self._text(name)
        self._text(storage.location)
        self._out.append(_integer(storage.numel) + self._end_of_id)

    def _numbers(self, numbers: tuple[int, ...]) -> None:
        short = len(numbers) <= 3
        end = (b")", b"\x85", b"\x86", b"\x87")[len(numbers)] if short else b"t"
        self._out.append((b"" if short else b"(") + b"".join(map(_integer, numbers)) + end)

    def _no_hooks(self) -> None:
        self._global(_ORDERED_DICT)
        self._out.append(b")R")


def _told(tensor: LazyTensor) -> tuple[Any, ...]:
    """All that the opcodes of a tensor tell but the name of its storage."""
    storage = tensor.storage
    return storage.class_name, storage.location, storage.numel, id(tensor.view), tensor.offset


def _spelled(text: str) -> bytes:
    """The opcode that pushes a text."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= _LONGEST_TEXT:
        return struct.pack("<cI", b"X", len(raw)) + raw
    return struct.pack("<BQ", 0x8D, len(raw)) + raw


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return bytes((0x4B, value))
    if 0 <= value < 1 << 16:
        return struct.pack("<cH", b"M", value)
    if -(1 << 31) <= value < 1 << 31:
        return struct.pack("<ci", b"J", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return (bytes((0x8A, len(raw))) if len(raw) < 256 else struct.pack("<BI", 0x8B, len(raw))) + raw


def _indexed(short: bytes, long: bytes, index: int) -> bytes:
    return short + bytes((index,)) if index < 256 else long + struct.pack("<I", index)


def fit(pickle: bytearray, length: int) -> bool:
    """Make PICKLE exactly LENGTH bytes long. Returns False, and changes nothing, if it is longer or that cannot be.

    Memo puts (2 or 5 bytes) just before its STOP refer to slots that nothing fetches any more. Their lengths add up to
    everything but 1 and 3.
    """
    missing = length - len(pickle)
    if missing < 0 or missing in (1, 3):
        return False
    long, short = divmod(missing, 5)
    if short % 2:  # one LONG_BINPUT less makes the rest even: 1 becomes 6, 3 becomes 8
        long, short = long - 1, short + 5
    blocks, rest = divmod(long, _AT_ONCE)
    del pickle[-1:]
    for count in (*repeat(_AT_ONCE, blocks), rest):
        pickle += b"r\0\0\0\0" * count
    pickle += b"q\0" * (short // 2) + b"."
    return True


@lru_cache(64)
def _class_named(name: str) -> Global:
    return Global("torch", name) if name != "UntypedStorage" else _UNTYPED
