"""What the pickles of torch.save mean: persistent ids are storages, and rebuild functions make tensors of them.

What the arguments of rebuild functions mean is in `ckptool.inert.other_tensors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..dtypes import BY_STORAGE, UINT8, DType
from ..errors import Malformed, printable
from ..inert.other_tensors import COMPLETE_WHEN_CALLED, Contradiction, dense_tensor, other_tensor, stands_for_a_tensor
from ..records import record
from ..tensor import LazyTensor, Storage
from ..tree import ABSENT, Dict, Global, Object
from .pickle.machine import Later
from .pickle.reader import Reader

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
#: memo, PUT puts one there.
_TENSOR = re.compile(
    rb"""(GET \(\( GET GET) X (.)\0\0\0 ([0-9]+) PUT    # _rebuild_tensor_v2, ("storage", class, key,
    (GET INTEGER N? t) PUT                          # location, elements, and in legacy files None): a storage
    (Q INTEGER TUPLE) (?:(?<!\)) PUT)?              # offset, shape
    (TUPLE) (?:(?<!\)) PUT)?                        # stride
    ([\x88\x89] GET) \) R PUT                       # requires_grad, no hooks: OrderedDict()
    t PUT R PUT""".replace(b"PUT", b"r(....)")
    .replace(b"GET", b"(?:h.|j....)")
    .replace(b"TUPLE", rb"(?:\)|\(?INTEGER{1,64}[t\x85-\x87](?=r))")  # () is not put into the memo
    .replace(b"INTEGER", rb"(?:K.|M..|J....)"),
    re.DOTALL | re.VERBOSE,
)
#: Numbers 0, 1, 2 … of four bytes each, seen as one number, and as many ones: a multiple of them makes it 5, 6, 7 …
_COUNTED = {
    4 * count: (sum(i << 32 * i for i in range(count)), sum(1 << 32 * i for i in range(count))) for count in (5, 6, 7)
}
#: The groups of the numbers under which it puts values into the memo.
_PUTS = (4, 6, 8, 10, 12, 13, 14)
_REBUILD, _ORDERED_DICT = ("torch._utils", "_rebuild_tensor_v2"), ("collections", "OrderedDict")


def _got(raw: bytes) -> tuple[int, bytes]:
    """The number of the memo that an opcode takes a value from, and what follows that opcode."""
    return (raw[1], raw[2:]) if raw[:1] == b"h" else (int.from_bytes(raw[1:5], "little"), raw[5:])


def _integer(raw: bytes) -> tuple[int, bytes]:
    """The integer that an opcode pushes, and what follows that opcode."""
    end = {b"K": 2, b"M": 3, b"J": 5}[raw[:1]]
    return int.from_bytes(raw[1:end], "little", signed=end == 5), raw[end:]


def _tuple_of(raw: bytes) -> tuple[int, ...] | None:
    """The tuple that opcodes make of integers, or None if that is not what they do."""
    marked = raw[:1] == b"("
    rest, found = raw[marked:], []
    while rest[:1] in (b"K", b"M", b"J"):
        integer, rest = _integer(rest)
        found.append(integer)
    return tuple(found) if rest == (b"t" if marked else b")\x85\x86\x87"[len(found) : len(found) + 1]) else None


@record(frozen=True, slots=True)
class _First:
    """The first of the tensors whose opcodes differ in the key of their storage and the numbers of the memo alone.

    Attributes:
        pid, id: the persistent id of its storage, and what that says.
        tensor: the tensor.
        memo: what stands for its parts in the memo, until somebody asks for them.
        head: its bytes up to the key of the storage.
        tail: those behind it, as a number, if the numbers that count in the memo began at 0.
        ones: what they grow by for each value in the memo.
        length: how many bytes there are behind the key.
    """

    pid: tuple[Any, ...]
    id: StorageId
    tensor: LazyTensor
    memo: tuple[Later, ...]
    head: bytes
    tail: int
    ones: int
    length: int


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
        found = self._storage_id(pid)
        known = self.storages.get(found.key)
        if known is None:
            known = self.storages[found.key] = self._make(found)
        elif found.nbytes != known.nbytes:
            self._fail(
                f"gives storage {printable(repr(found.key))} two sizes: {known.nbytes:,} and {found.nbytes:,} bytes"
            )
        return known

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
        """A dense tensor, and the entries of a dict that follow it and hold others of its kind. What is odd in any way
        is left to the opcodes, one by one.
        """
        first: _First | None = self._phrases.get(None)  # mostly, it is as the one before
        behind = self._read_again(at, first) if first is not None else at
        if behind > at:
            return behind
        found = _TENSOR.match(self.data, at)
        if found is None or self._memo_beyond:
            return at
        head, length, key, p1, numel, p2, shape, p3, stride, p4, grad, p5, p6, p7 = found.groups(b"")
        puts = b"".join((p1, p2, p3, p4, p5, p6, p7))
        counted, ones = _COUNTED[len(puts)]
        if int.from_bytes(puts, "little") != counted + len(self._memo) * ones or len(key) != length[0]:
            return at
        first = self._phrases.get((head, numel, shape, stride, grad))
        if first is None:
            first = self._first(found)
            if first is None:
                return at
            self._phrases[head, numel, shape, stride, grad] = first
        self._phrases[None] = first
        return self._read_again(at, first)

    def _read_again(self, at: int, first: _First) -> int:
        """Tensors that are as FIRST but for their storage and the numbers of the memo, from AT on, with the keys
        between them. Returns where something else begins.
        """
        data, memo, stack, storages = self.data, self._memo, self._stack, self.storages
        head, tail, ones, length = first.head, first.tail, first.ones, first.length
        its_id, like, parts, last = first.id, first.tensor, first.memo, len(data) - length
        dtype, stored, nbytes = like.dtype, like.storage.dtype, like.storage.source.length
        shape, stride, offset, requires_grad = like.shape, like.stride, like.offset, like.requires_grad
        skip = len(head) + 5
        while data.startswith(head, at) and not self._memo_beyond:
            begin = at + skip
            end = begin + data[begin - 4]
            digits, start = data[begin:end], len(memo)
            if end > last or not digits.isdigit() or data[begin - 3 : begin] != b"\0\0\0":
                break
            if int.from_bytes(data[end : end + length], "little") != tail + start * ones:
                break
            name = digits.decode()
            storage = storages.get(name)
            if storage is None:
                try:
                    storage = self._make(StorageId(name, its_id.dtype, its_id.location, its_id.numel, its_id.rest))
                except Malformed:
                    break
                storages[name] = storage
            elif storage.dtype is not stored or storage.source.length != nbytes or storage.key != name:
                break
            made = LazyTensor(storage, dtype, shape, stride, offset, requires_grad)
            memo += parts
            memo.append(made)
            stack.append(made)
            at = end + length
            begin = at + 5  # of the next key
            if data[at : at + 1] != b"X":
                break
            end = begin + int.from_bytes(data[at + 1 : begin], "little")
            if not data.startswith(head, end + 5) or data[end : end + 5] != b"r" + (start + len(parts) + 1).to_bytes(
                4, "little"
            ):
                break
            try:
                text = str(data[begin:end], "utf-8", "surrogatepass")
            except UnicodeDecodeError:
                break
            memo.append(text)
            stack.append(text)
            at = end + 5
        return at

    def _first(self, found: re.Match[bytes]) -> _First | None:
        """A tensor that is made by a phrase, or None if that is odd."""
        head, _, key, _, numel, _, shape, p3, stride, p4, grad, _, _, _ = found.groups(b"")
        place, numel = _got(numel)
        elements, end = _integer(numel)
        offset, shape = _integer(shape[1:])
        sizes, steps = _tuple_of(shape), _tuple_of(stride)
        callee_at, rest = _got(head)
        word_at, rest = _got(rest[2:])
        memo, taken = self._memo, (callee_at, word_at, _got(rest)[0], place, _got(grad[1:])[0])
        if (
            sizes is None
            or steps is None
            or max(taken) >= len(memo)
            or bool(sizes) != bool(p3)
            or bool(steps) != bool(p4)
        ):
            return None
        callee, word, cls, location, hooks = map(self._made_later, taken)
        if callee is not self._named.get(_REBUILD) or hooks is not self._named.get(_ORDERED_DICT):
            return None
        pid = (word, cls, key.decode(), location, elements, None)[: 5 + len(end) - 1]
        try:
            storage = self._storage(pid)
            made = LazyTensor(storage, storage.dtype or UINT8, sizes, steps, offset, grad[:1] == b"\x88")
            made.check()
        except Malformed:
            return None
        begin, length = found.end(3), found.end() - found.end(3)
        puts = [found.start(group) - begin for group in _PUTS if found.start(group) >= 0]
        tail = bytearray(self.data[begin : found.end()])
        for number, put in enumerate(puts):
            tail[put : put + 4] = number.to_bytes(4, "little")
        ones = sum(1 << 8 * put for put in puts)
        first = _First(pid, self._storage_id(pid), made, (), head, int.from_bytes(tail, "little"), ones, length)
        object.__setattr__(first, "memo", tuple(Later(number, first) for number in range(len(puts) - 1)))
        return first

    def _make_later(self, start: int, like: _First) -> None:
        """The parts of a tensor: key, persistent id, shape, stride, hooks, and the arguments of the call."""
        memo, sizes, steps = self._memo, like.tensor.shape, like.tensor.stride
        made: LazyTensor = memo[start + len(like.memo)]
        name, no_hooks = made.storage.key, Dict([], True)
        args = (made.storage, made.offset, sizes, steps, made.requires_grad, no_hooks)
        parts = (name, (*like.pid[:2], name, *like.pid[3:]), *((sizes,) if sizes else ()), *((steps,) if steps else ()))
        memo[start : start + len(like.memo)] = [*parts, no_hooks, args]

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
