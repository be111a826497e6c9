"""What the pickles of torch.save mean: persistent ids are storages, and rebuild functions make tensors of them.

What the arguments of rebuild functions mean is in `ckptool.inert.other_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dtypes import BY_STORAGE, UINT8, DType
from ..errors import Malformed, printable
from ..inert.other_tensors import COMPLETE_WHEN_CALLED, Contradiction, dense_tensor, other_tensor, stands_for_a_tensor
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import ABSENT, Dict, Global, Object
from .pickle.phrases import Maker, Phrase, Phrases
from .pickle.reader import Reader

_STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")


@record(frozen=True, slots=True)
class StorageForm:
    """What a persistent id says of a storage, but for its key, which is all that those of most tensors differ in.

    Attributes:
        dtype, location: as of `Storage`.
        nbytes: bytes that it must have, by the number of elements that the id gives.
        rest: what stands behind that number: of a view of another storage, which.
    """

    dtype: DType | None
    location: str
    nbytes: int
    rest: tuple[Any, ...] = ()


class TorchReader(Phrases, Reader):
    """Reads a pickle of torch.save.

    Args:
        data, where, complete, start: see `Reader`.
        storage: makes the storage of a key that is met for the first time.
    """

    def __init__(
        self,
        data: bytes,
        where: object,
        storage: Callable[[str, StorageForm], Storage],
        *,
        complete: bool = True,
        start: int = 0,
    ) -> None:
        super().__init__(data, where, complete=complete, start=start)
        self.storages: dict[str, Storage] = {}
        self.sources: dict[str, str] = {}  # class name -> source text that was saved with it
        self._others: list[Object] = []
        self._make = storage

    @property
    def others(self) -> list[Object]:
        """What stands for tensors that are no dense ones, those included that get their state after they are called."""
        return [*self._others, *(node for node in self.made if stands_for_a_tensor(node))]

    def lost_content(self) -> tuple[str, ...]:
        """What the pickle does beside making its tree."""
        return (f"{self.discarded:,} calls whose result its pickle throws away",) if self.discarded else ()

    # -- persistent ids

    def _storage(self, pid: Any) -> Any:
        """What a persistent id stands for. Ids that differ in the key of a storage alone must be treated alike."""
        if not isinstance(pid, tuple) or not pid:
            self._fail("has a persistent id that torch does not write")
        if pid[0] == "module" and len(pid) == 4:  # the class of a whole saved module, with its source code
            self.note_source(pid[1], pid[3])
            return pid[1]
        key, form = self._key_and_form(pid)
        known = self.storages.get(key)
        if known is None:
            known = self.storages[key] = self._make(key, form)
        elif form.nbytes != known.nbytes:
            self._fail(f"gives storage {printable(repr(key))} two sizes: {known.nbytes:,} and {form.nbytes:,} bytes")
        return known

    def note_source(self, cls: Any, source: Any) -> None:
        """Note the source code of a class. It is only counted."""
        if isinstance(cls, Global):
            self.sources[str(cls)] = str(source) if isinstance(source, str) else ""

    def _key_and_form(self, pid: tuple[Any, ...]) -> tuple[str, StorageForm]:
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
        return str(key), StorageForm(dtype, str(location), numel * (dtype.itemsize if dtype else 1), tuple(rest))

    # -- tensors

    def _maker(self, first: Phrase) -> Maker | None:
        try:
            storage, (_, form) = self._storage(first.pid), self._key_and_form(first.pid)
            like = LazyTensor(
                storage, storage.dtype or UINT8, first.shape, first.stride, first.offset, first.requires_grad
            )
            like.check()
        except Malformed:
            return None
        storages, make_storage = self.storages, self._make
        stored, nbytes, over = like.storage.dtype, like.storage.nbytes, like.over

        def make(key: str) -> LazyTensor | None:
            storage = storages.get(key)
            if storage is None:
                try:
                    storage = make_storage(key, form)
                except Malformed:
                    return None
                storages[key] = storage
            elif storage.dtype is not stored or storage.nbytes != nbytes or storage.key != key:
                return None
            return over(storage)

        return make

    def _arguments(self, made: LazyTensor, like: Phrase) -> tuple[str, tuple[Any, ...]]:
        no_hooks = Dict([], True)
        return made.storage.key, (made.storage, made.offset, like.shape, like.stride, made.requires_grad, no_hooks)

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
