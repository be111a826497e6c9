"""What the pickles of torch.save mean: persistent ids are storages, and rebuild functions make tensors of them.

What the arguments of rebuild functions mean is in `ckptool.kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..dtypes import BY_STORAGE, UINT8, DType
from ..errors import Malformed, printable
from ..kinds import COMPLETE_WHEN_CALLED, Contradiction, dense_tensor, other_tensor, stands_for_a_tensor
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import ABSENT, Dict, Global, Object
from ._pickle_read import Reader

_STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")


@record(frozen=True, slots=True)
class StorageId:
    """What a persistent id says: the name of a storage, its class, location and number of elements."""

    key: str
    dtype: DType | None
    location: str
    numel: int
    rest: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the storage must have."""
        return self.numel * (self.dtype.itemsize if self.dtype else 1)


#: A dense tensor as torch pickles it once the names that all tensors share are in the memo. GET takes a value from the
#: memo, PUT may put one there.
_TENSOR = re.compile(
    rb"""h(.) \(                                                        # _rebuild_tensor_v2
    \( h(.) GET X(.)\0\0\0([0-9]+) PUT GET (INTEGER) (N?) t PUT Q         # "storage", class, key, location, elements
    (INTEGER) (TUPLE) PUT (TUPLE) PUT ([\x88\x89])                        # offset, shape, stride, requires_grad
    h(.) \) R PUT                                                         # no hooks: OrderedDict()
    t PUT R PUT""".replace(b"PUT", b"(q.|r....)?")
    .replace(b"GET", b"(h.|j....)")
    .replace(b"TUPLE", rb"\(?INTEGER{,64}[)t\x85-\x87]")
    .replace(b"INTEGER", rb"(?:K.|M..|J....)"),
    re.DOTALL | re.VERBOSE,
)
_REBUILD, _ORDERED_DICT = ("torch._utils", "_rebuild_tensor_v2"), ("collections", "OrderedDict")


@lru_cache(1024)
def _integers(raw: bytes) -> tuple[int, ...]:
    """The integers that opcodes push."""
    found = []
    at = 0
    while at < len(raw):
        length = {b"K": 1, b"M": 2, b"J": 4}[raw[at : at + 1]]
        found.append(int.from_bytes(raw[at + 1 : at + 1 + length], "little", signed=length == 4))
        at += 1 + length
    return tuple(found)


@lru_cache(1024)
def _tuple_of(raw: bytes) -> tuple[int, ...] | None:
    """The tuple of integers that opcodes make, or None if they do not make one and nothing else."""
    marked, end = raw[:1] == b"(", raw[-1:]
    found = _integers(raw[marked:-1])
    expected = b"t" if marked else b")\x85\x86\x87"[len(found) : len(found) + 1]
    return found if end == expected else None


class TorchReader(Reader):
    """Reads a pickle of torch.save.

    Args:
        data, where, complete, start: see `Reader`.
        storage: makes the storage of an id that is met for the first time.
    """

    def __init__(
        self,
        data: bytes,
        where: object,
        storage: Callable[[StorageId], Storage],
        *,
        complete: bool = True,
        start: int = 0,
    ) -> None:
        super().__init__(data, where, self._storage, self._rebuild, complete=complete, start=start)
        self.storages: dict[str, Storage] = {}
        self.sources: dict[str, str] = {}  # class name -> source text that was saved with it
        self._others: list[Object] = []
        self._make = storage
        self._ids: dict[str, StorageId] = {}

    @property
    def others(self) -> list[Object]:
        """What stands for tensors that are no dense ones, those included that get their state after they are called."""
        return [*self._others, *(node for node in self.made if stands_for_a_tensor(node))]

    def lost_content(self) -> tuple[str, ...]:
        """What the pickle does beside making its tree."""
        return (f"{self.discarded:,} calls whose result its pickle throws away",) if self.discarded else ()

    # -- persistent ids

    def _storage(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or not pid:
            self._fail("has a persistent id that torch does not write")
        if pid[0] == "module" and len(pid) == 4:  # the class of a whole saved module, with its source code
            self.note_source(pid[1], pid[3])
            return pid[1]
        found = self._storage_id(pid)
        known = self._ids.get(found.key)
        if known is None:
            made = self.storages[found.key] = self._make(found)
            self._ids[found.key] = found
            return made
        if found.nbytes != known.nbytes:
            self._fail(
                f"gives storage {printable(repr(found.key))} two sizes: {known.nbytes:,} and {found.nbytes:,} bytes"
            )
        return self.storages[found.key]

    def note_source(self, cls: Any, source: Any) -> None:
        """Note the source code of a class. It is only counted."""
        if isinstance(cls, Global):
            self.sources[str(cls)] = str(source) if isinstance(source, str) else ""

    def _storage_id(self, pid: tuple[Any, ...]) -> StorageId:
        if pid[0] != "storage" or len(pid) not in (5, 6):
            self._fail(f"has a persistent id of {len(pid)} parts that torch does not write")
        _, cls, key, location, numel, *rest = pid
        if not isinstance(cls, Global) or not isinstance(key, str | int) or not isinstance(location, str):
            self._fail("has a persistent id that torch does not write")
        if not isinstance(numel, int) or isinstance(numel, bool) or numel < 0:
            self._fail(f"gives storage {printable(repr(key))} a size that is none")
        dtype = BY_STORAGE.get(cls.name) if cls.module in _STORAGE_MODULES else None
        if dtype is None and (cls.module, cls.name.lstrip("_")) != ("torch.storage", "UntypedStorage"):
            self._fail(f"has a storage of an unknown class: {printable(str(cls))}")
        return StorageId(str(key), dtype, str(location), numel, tuple(rest))

    # -- tensors

    def _read_phrase(self, at: int) -> int:
        """A dense tensor. What is odd in any way is left to the opcodes, one by one."""
        found = _TENSOR.match(self.data, at)
        if found is None:
            return at
        # fmt: off
        (callee, word, cls, length, key, key_at, place, numel, view, id_at,
         offset, shape, shape_at, stride, stride_at, grad, hooks, hooks_at, args_at, made_at) = found.groups()
        # fmt: on
        memo, named = self._memo, self._named
        if memo.get(callee[0], ABSENT) is not named.get(_REBUILD):
            return at
        if memo.get(hooks[0], ABSENT) is not named.get(_ORDERED_DICT):
            return at
        sizes, steps = _tuple_of(shape), _tuple_of(stride)
        if sizes is None or steps is None or len(key) != length[0]:
            return at
        number = int.from_bytes  # of what the opcodes get from the memo, or put there
        puts = [
            number(put, "little") >> 8 if put else -1
            for put in (key_at, id_at, shape_at, stride_at, hooks_at, args_at, made_at)
        ]
        at_place = number(place, "little") >> 8
        if at_place == puts[0] or hooks[0] in puts[:4]:  # it gets what it has just put there
            return at
        name, (elements,), (start,), requires_grad = key.decode(), _integers(numel), _integers(offset), grad == b"\x88"
        known = memo.get(word[0]), memo.get(number(cls, "little") >> 8), name, memo.get(at_place)
        pid, no_hooks = (*known, elements, None) if view else (*known, elements), Dict(ordered=True)
        try:
            storage = self._storage(pid)
            made = LazyTensor(storage, storage.dtype or UINT8, sizes, steps, start, requires_grad)
            made.check()
        except Malformed:
            return at
        values = name, pid, sizes, steps, no_hooks, (storage, start, sizes, steps, requires_grad, no_hooks), made
        for place, value in zip(puts, values, strict=True):
            if place >= 0:
                memo[place] = value
        self._stack.append(made)
        return found.end()

    def _rebuild(self, callee: Any, args: Any) -> Any:
        """Dense tensors and parameters become lazy ones; other kinds are checked and kept as they came."""
        if not isinstance(callee, Global):
            return ABSENT
        if callee.module != "torch._utils" or not callee.name.startswith("_rebuild_"):
            known = str(callee)
            if known not in COMPLETE_WHEN_CALLED and not known.startswith("torch._utils._rebuild_"):
                return ABSENT
        try:
            made = dense_tensor(callee, args)
            if made is not None:
                return made
            node = Object("reduce", callee, args)
            if other_tensor(node) is not None:
                self._others.append(node)
                return node
        except Contradiction as error:
            self._fail(error.what)
        except Malformed as error:
            error.where = error.where or str(self.where)
            raise
        return ABSENT
