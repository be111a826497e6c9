"""What the pickles of torch.save mean: persistent ids are storages, and rebuild functions make tensors of them.

Dense tensors and parameters become `LazyTensor`; other kinds (sparse, quantized, nested) stay inert objects over their
storages, and so are carried as they came. Argument orders are those of `torch/_utils.py` in torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import BY_NAME, BY_STORAGE, UINT8, DType
from ..errors import printable
from ..tensor import MOST_DIMENSIONS, LazyTensor, Storage
from ..tree import ABSENT, Dict, Global, Object
from ._pickle_read import Reader

_STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")


@dataclass(frozen=True, slots=True)
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
        self._make = storage
        self._ids: dict[str, StorageId] = {}

    def lost_content(self) -> tuple[str, ...]:
        """What the pickle does beside making its tree."""
        return (f"{self.discarded:,} calls whose result its pickle throws away",) if self.discarded else ()

    # -- persistent ids

    def _storage(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or not pid:
            self._fail("has a persistent id that torch does not write")
        if pid[0] == "module" and len(pid) == 4:  # the class of a whole saved module, with its source code
            self.sources[str(pid[1])] = str(pid[3])
            return pid[1]
        found = self._storage_id(pid)
        known = self._ids.get(found.key)
        if known is None:
            self._ids[found.key] = found
            self.storages[found.key] = self._make(found)
        elif found.nbytes != known.nbytes:
            self._fail(
                f"gives storage {printable(repr(found.key))} two sizes: {known.nbytes:,} and {found.nbytes:,} bytes"
            )
        return self.storages[found.key]

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

    def _rebuild(self, callee: Any, args: Any) -> Any:
        if not isinstance(callee, Global) or callee.module not in ("torch._utils", "torch._tensor"):
            return ABSENT
        kind = _REBUILDS.get(callee.name)
        if kind is None:
            return ABSENT
        if not isinstance(args, tuple):
            self._fail(f"calls {callee} without arguments")
        return kind(self, callee, args)

    def _dense(self, callee: Global, args: tuple[Any, ...]) -> Any:
        fixed = {"_rebuild_tensor": 4, "_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}[callee.name]
        if not fixed <= len(args) <= fixed + (fixed > 4):
            self._fail(f"calls {callee} with {len(args)} arguments")
        storage, offset, shape, stride, *more = args
        shape, stride = _numbers(shape), _numbers(stride)
        if not isinstance(storage, Storage) or shape is None or stride is None or type(offset) is not int:
            self._fail(f"calls {callee} with arguments that are none of a tensor")
        if more and _not_empty(more[1]):
            return ABSENT  # hooks: torch never writes any; kept as they came
        flags = self._flags(args[fixed:])
        tensor = LazyTensor(
            storage,
            self._dtype(storage, more),
            shape,
            stride,
            offset,
            requires_grad=bool(more) and more[0] is True,
            conj="conj" in flags,
            neg="neg" in flags,
        )
        tensor.check(self.where)
        return tensor

    def _dtype(self, storage: Storage, more: list[Any]) -> Any:
        named = more[2] if len(more) > 2 and isinstance(more[2], Global) else None
        if named is None:
            return storage.dtype or UINT8
        dtype = BY_NAME.get(named.name) if named.module == "torch" else None
        if dtype is None:
            return self._fail(f"has a tensor of unknown type {printable(str(named))}")
        return dtype

    def _flags(self, metadata: tuple[Any, ...]) -> set[str]:
        if not metadata or metadata[0] is None:
            return set()
        if not isinstance(metadata[0], Dict):
            self._fail("has a tensor with metadata that are no dict")
        flags = {str(key) for key, value in metadata[0].entries if value is True}
        if flags - {"conj", "neg"}:
            self._fail("has a tensor with unknown metadata")
        return flags

    def _quantized(self, callee: Global, args: tuple[Any, ...]) -> Any:
        """Checked as a dense tensor is, then kept as it came."""
        if len(args) > 4:
            self._dense(Global(callee.module, "_rebuild_tensor"), args[:4])
        return ABSENT

    def _parameter(self, callee: Global, args: tuple[Any, ...]) -> Any:
        if len(args) != 3 or not isinstance(args[0], LazyTensor) or _not_empty(args[2]):
            return ABSENT
        data = args[0]
        return LazyTensor(
            data.storage, data.dtype, data.shape, data.stride, data.offset, args[1] is True, True, data.conj, data.neg
        )


_REBUILDS: dict[str, Callable[[TorchReader, Global, tuple[Any, ...]], Any]] = {
    "_rebuild_tensor": TorchReader._dense,
    "_rebuild_tensor_v2": TorchReader._dense,
    "_rebuild_tensor_v3": TorchReader._dense,
    "_rebuild_parameter": TorchReader._parameter,
    "_rebuild_qtensor": TorchReader._quantized,
}


def _numbers(value: Any) -> tuple[int, ...] | None:
    """A shape or stride: a tuple of integers, or a torch.Size of one."""
    if isinstance(value, Object) and str(value.callee) == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if (
        isinstance(value, tuple)
        and len(value) <= MOST_DIMENSIONS
        and all(type(n) is int and abs(n) < 1 << 62 for n in value)
    ):
        return value
    return None


def _not_empty(hooks: Any) -> bool:
    return not (hooks is None or hooks == () or (isinstance(hooks, Dict) and not hooks.entries))
