"""What the pickles of torch.save mean: persistent ids are storages, and rebuild functions make tensors of them.

What the arguments of rebuild functions mean is in `ckptool.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import BY_STORAGE, DType
from ..errors import Malformed, printable
from ..kinds import COMPLETE_WHEN_CALLED, Contradiction, dense_tensor, other_tensor, stands_for_a_tensor
from ..tensor import Storage
from ..tree import ABSENT, Global, Object
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
            self._ids[found.key] = found
            self.storages[found.key] = self._make(found)
        elif found.nbytes != known.nbytes:
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

    def _rebuild(self, callee: Any, args: Any) -> Any:
        """Dense tensors and parameters become lazy ones; other kinds are checked and kept as they came."""
        if not isinstance(callee, Global):
            return ABSENT
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
