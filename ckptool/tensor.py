"""Storages and lazy tensors: what a checkpoint says about its numbers, without the numbers.

A `Storage` is a run of bytes somewhere (in a file, in memory, or computed from another tensor) with a location.
A `LazyTensor` is a strided view of one. Two tensors over the same storage share memory: they are tied, or views.
All counts (offset, shape, stride) are in elements, as in torch; `nbytes` and `length` are in bytes.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain, repeat
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

from .disk.files import Buffer, FileRange, Source
from .dtypes import UINT8, DType
from .errors import CannotCarry, Malformed, require
from .records import record
from .signs import require_resolvable, resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch

    Reader = Callable[[int, int], bytes | memoryview]

#: Bytes of a strided tensor that are gathered at once. Large, because a transposed matrix is read in runs whose
#: length grows with it.
_GATHERED = 16 << 20
#: Bytes of a big-endian storage that are turned at once.
_TURNED = 4 << 20
#: Dimensions that torch and numpy can hold.
MOST_DIMENSIONS = 64


@record(frozen=True, eq=False, slots=True)
class StorageKind:
    """What many storages of a file have in common. The attributes are those of `Storage`."""

    location: str
    dtype: DType | None
    big_endian: bool
    tie: object


_kinds: dict[tuple[str, int, bool], StorageKind] = {}
#: So many kinds are remembered, at most: a file may name any number of locations.
_MOST_KINDS = 1024


def kind_of(location: str, dtype: DType | None, *, big_endian: bool = False, tie: object = None) -> StorageKind:
    """The kind of a storage with these attributes; the same object for the same ones, unless there are very many."""
    if tie is not None:
        return StorageKind(location, dtype, big_endian, tie)
    told = location, id(dtype), big_endian
    kind = _kinds.get(told)
    if kind is None:
        if len(_kinds) >= _MOST_KINDS:
            _kinds.clear()
        kind = _kinds[told] = StorageKind(location, dtype, big_endian, None)
    return kind


class Storage:
    """A run of bytes with a location; tensors are views of it. Compared by identity: the same object is shared memory.

    There may be a million of them, so that each holds as little as it can.

    Args:
        source: where the bytes are.
        location: torch's tag, "cpu" or "cuda:1".
        dtype: element type that the file gives it, or None for an untyped storage (bytes).
        key: its name in the file it came from.
        crc: CRC-32 as recorded there, or None if it was not recorded.
        big_endian: the bytes are in big-endian order.
        tie: storages with the same tie are said, by a note in a format that cannot share, to be one.
            `checkpoint.settle_ties` compares their bytes before anything is written or loaded.
    """

    __slots__ = ("_crc", "_key", "_place", "kind")
    __match_args__ = ("source", "location", "dtype", "key", "crc", "big_endian", "tie")

    _place: Any
    _key: Any
    _crc: int | None
    kind: StorageKind

    def __init__(
        self,
        source: Source,
        location: str = "cpu",
        dtype: DType | None = None,
        key: str = "",
        crc: int | None = None,
        big_endian: bool = False,
        tie: object = None,
    ) -> None:
        self._place = source
        self._key = key
        self._crc = crc
        self.kind = kind_of(location, dtype, big_endian=big_endian, tie=tie)

    @property
    def source(self) -> Source:
        """Where the bytes are."""
        return cast("Source", self._place)

    @property
    def key(self) -> str:
        """Its name in the file it came from."""
        return str(self._key)

    @property
    def crc(self) -> int | None:
        """CRC-32 as recorded in the file, or None if it was not recorded."""
        return self._crc

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.source.length

    @property
    def location(self) -> str:
        """Torch's tag, "cpu" or "cuda:1"."""
        return self.kind.location

    @property
    def dtype(self) -> DType | None:
        """Element type that the file gives it, or None for an untyped storage (bytes)."""
        return self.kind.dtype

    @property
    def big_endian(self) -> bool:
        """Whether the bytes are in big-endian order."""
        return self.kind.big_endian

    @property
    def tie(self) -> object:
        """What storages have in common that a note calls one, or None."""
        return self.kind.tie

    @property
    def identity(self) -> int:
        """The same number for storages that are one."""
        return id(self) if self.kind.tie is None else id(self.kind.tie)

    @property
    def class_name(self) -> str:
        """Name of the torch class that it is pickled as."""
        return (self.dtype.storage if self.dtype else None) or "UntypedStorage"

    @property
    def numel(self) -> int:
        """Size in elements of its class (bytes for an untyped storage), as a persistent id gives it."""
        return self.nbytes // (self.dtype.itemsize if self.dtype else 1)

    def changed(self, **fields: Any) -> Storage:
        """Another storage, with other values for the FIELDS that are named as arguments of `Storage`."""
        return Storage(**{name: getattr(self, name) for name in Storage.__match_args__} | fields)

    def tie_to(self, tie: object) -> None:
        """Complete a storage that nobody has seen yet: it may be one with others that have the same TIE."""
        self.kind = kind_of(self.location, self.dtype, big_endian=self.big_endian, tie=tie)

    def move_to(self, source: Source) -> None:
        """Complete a storage that nobody has seen yet: its bytes are in SOURCE."""
        self._place = source

    def __repr__(self) -> str:
        return f"Storage({self.key!r}, {self.nbytes} bytes, {self.location})"


class StorageTable(Protocol):
    """Where the storages of a file are, in columns. Each is known by its number. `sizes` are in bytes."""

    @property
    def sizes(self) -> Sequence[int]:
        """Of each number, what `Storage.nbytes` is."""

    def key(self, number: int) -> str:
        """As `Storage.key`."""

    def source(self, number: int) -> Source:
        """As `Storage.source`."""

    def crc(self, number: int) -> int | None:
        """As `Storage.crc`."""


#: Attributes that storages have in common with others.
_OF_KINDS = frozenset(("location", "dtype", "big_endian", "tie"))


class NumberedStorage(Storage):
    """A storage that a table holds under a number: a third of the memory, in files of very many."""

    __slots__ = ()

    def __init__(self, table: StorageTable, number: int, kind: StorageKind) -> None:
        self._place = table
        self._key = number
        self.kind = kind

    @property
    def source(self) -> Source:
        """Where the bytes are."""
        return cast("StorageTable", self._place).source(self._key)

    @property
    def key(self) -> str:
        """Its name in the file it came from."""
        return cast("StorageTable", self._place).key(self._key)

    @property
    def crc(self) -> int | None:
        """CRC-32 as recorded in the file, or None if it was not recorded."""
        return cast("StorageTable", self._place).crc(self._key)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        table: StorageTable = self._place
        size: int = table.sizes[self._key]
        return size

    def changed(self, **fields: Any) -> Storage:
        """Another storage, with other values for the FIELDS that are named as arguments of `Storage`."""
        if not _OF_KINDS.issuperset(fields):
            return super().changed(**fields)
        kind = self.kind
        told = {
            "big_endian": kind.big_endian,
            "tie": kind.tie,
            "location": kind.location,
            "dtype": kind.dtype,
            **fields,
        }
        return NumberedStorage(self.table, self.number, kind_of(**told))

    @property
    def number(self) -> int:
        """Its number in the table."""
        return int(self._key)

    @property
    def table(self) -> StorageTable:
        """The table that holds it."""
        return cast("StorageTable", self._place)


@record(frozen=True, eq=False, slots=True)
class View:
    """How tensors look at their storages, from an offset on: what many tensors of a file have in common.

    Attributes:
        dtype, shape, stride, requires_grad, parameter, conj, neg: as of `LazyTensor`.
        numel: number of elements.
        nbytes: bytes that the values take when stored one after the other.
        is_contiguous: whether the values stand in the storage in C order without gaps.
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    parameter: bool
    conj: bool
    neg: bool
    numel: int
    nbytes: int
    is_contiguous: bool


_views: dict[tuple[Any, ...], View] = {}
#: So many views are remembered, at most.
_MOST_VIEWS = 4096


def _view_of(
    dtype: DType,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    parameter: bool,
    conj: bool,
    neg: bool,
) -> View:
    """The view with these attributes; the same object for the same ones, unless there are very many."""
    told = id(dtype), shape, stride, requires_grad, parameter, conj, neg
    view = _views.get(told)
    if view is None:
        if len(_views) >= _MOST_VIEWS:
            _views.clear()
        numel = prod(shape)
        contiguous = _is_contiguous(shape, stride, numel)
        view = View(
            dtype, shape, stride, requires_grad, parameter, conj, neg, numel, numel * dtype.itemsize, contiguous
        )
        _views[told] = view
    return view


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...], numel: int) -> bool:
    expected = contiguous_stride(shape)
    if stride == expected:
        return True
    return len(stride) == len(shape) and (
        numel == 0 or all(step == one or size == 1 for size, step, one in zip(shape, stride, expected, strict=True))
    )


class LazyTensor:
    """A tensor whose values stay in the file until they are asked for.

    There may be a million of them: what many have in common is in `view`.

    Args:
        storage: the bytes, possibly shared with other tensors.
        dtype: element type.
        shape: sizes, () for a scalar.
        stride: elements to step per dimension.
        offset: elements before the first one.
        requires_grad: as it was saved.
        parameter: it was saved as a torch.nn.Parameter.
        conj: the stored bytes are the conjugate of the values.
        neg: the stored bytes are the negative of the values.
    """

    __slots__ = ("offset", "storage", "view")
    __match_args__ = ("storage", "dtype", "shape", "stride", "offset", "requires_grad", "parameter", "conj", "neg")

    storage: Storage
    offset: int
    view: View

    def __init__(
        self,
        storage: Storage,
        dtype: DType,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int = 0,
        requires_grad: bool = False,
        parameter: bool = False,
        conj: bool = False,
        neg: bool = False,
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.view = _view_of(dtype, shape, stride, requires_grad, parameter, conj, neg)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.view.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, () for a scalar."""
        return self.view.shape

    @property
    def stride(self) -> tuple[int, ...]:
        """Elements to step per dimension."""
        return self.view.stride

    @property
    def requires_grad(self) -> bool:
        """Whether it required gradients when it was saved."""
        return self.view.requires_grad

    @property
    def parameter(self) -> bool:
        """Whether it was saved as a torch.nn.Parameter."""
        return self.view.parameter

    @property
    def conj(self) -> bool:
        """Whether the stored bytes are the conjugate of the values."""
        return self.view.conj

    @property
    def neg(self) -> bool:
        """Whether the stored bytes are the negative of the values."""
        return self.view.neg

    @property
    def location(self) -> str:
        """Location of its storage, "cpu" or "cuda:1"."""
        return self.storage.location

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same for tensors that are one: the same view of the same storage, read in the same way."""
        return self.storage.identity, self.dtype.name, self.offset, self.shape, self.stride, self.conj, self.neg

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.view.numel

    @property
    def nbytes(self) -> int:
        """Bytes that its values take when stored one after the other."""
        return self.view.nbytes

    @property
    def is_contiguous(self) -> bool:
        """Whether its values stand in the storage in C order without gaps."""
        return self.view.is_contiguous

    @property
    def fills_storage(self) -> bool:
        """Whether it is the whole of its storage, in C order."""
        return self.is_contiguous and self.offset == 0 and self.nbytes == self.storage.nbytes

    def over(self, storage: Storage) -> LazyTensor:
        """The same view of another storage."""
        made = object.__new__(LazyTensor)
        made.storage = storage
        made.offset = self.offset
        made.view = self.view
        return made

    def changed(self, **fields: Any) -> LazyTensor:
        """Another tensor, with other values for the FIELDS that are named as arguments of `LazyTensor`."""
        return LazyTensor(**{name: getattr(self, name) for name in LazyTensor.__match_args__} | fields)

    def check(self, where: object = "", name: str = "") -> None:
        """Refuse a view that reaches outside its storage.

        Raises:
            Malformed: negative numbers, lengths that disagree, or an element beyond the end.
        """
        if problem := self._problem():
            raise Malformed(f"a tensor{name and ' ' + name} over storage {self.storage.key!r} {problem}", where=where)

    def _problem(self) -> str:
        """Why it is no view of its storage, or "". Every tensor of every file comes here."""
        shape, stride = self.shape, self.stride
        if len(shape) != len(stride):
            return f"has {len(shape)} sizes but {len(stride)} strides"
        last, numel, negative = self.offset, 1, self.offset < 0
        for n, step in zip(shape, stride):  # noqa: B905 - of one length
            negative |= n < 0 or step < 0
            numel *= n
            last += (n - 1) * step
        if negative:
            return "has a negative size, stride or offset"
        item = self.dtype.itemsize
        room = (numel or prod(n for n in shape if n)) * item  # numpy and safetensors count so, though there are none
        if len(shape) > MOST_DIMENSIONS or room >= 1 << 63 or self.offset >= 1 << 63:
            return "has more elements or dimensions than any memory"
        needed, there = (last + 1) * item if numel else 0, self.storage.nbytes
        return f"reaches to byte {needed:,} of a storage of {there:,} bytes" if needed > there else ""

    def source(self) -> Source:
        """The bytes of its values in C order: a range of the file where possible, else gathered piece by piece.

        Raises:
            CannotCarry: a stride of 0 makes a huge tensor of a few bytes; or it is lazily negated, and its type has no
                negative numbers.
        """
        stored = self.storage.source
        where = stored.file.path if isinstance(stored, FileRange) else ""
        if self.conj or self.neg:
            require_resolvable(self.dtype, where)
        if self.storage.big_endian:
            return self.over(little_endian(self.storage, self.dtype)).source()
        if self.is_contiguous and not self.conj and not self.neg:
            start = self.offset * self.dtype.itemsize
            if start == 0 and self.nbytes == stored.length:
                return stored
            if isinstance(stored, FileRange | Buffer):
                return stored.part(start if self.nbytes else 0, self.nbytes)
        if self.nbytes > max(64 << 20, 256 * self.storage.nbytes):
            what = (
                f"a tensor of shape {list(self.shape)} expands {self.storage.nbytes:,} stored bytes to {self.nbytes:,}"
            )
            raise CannotCarry(what, where=where)
        return Gathered(self)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a numpy array (bfloat16 and float8 as `ml_dtypes`), read now.

        Raises:
            CannotCarry: numpy has no such element type (quantized, bits, float4).
        """
        import numpy as np

        if self.dtype.numpy is None:
            raise CannotCarry(f"numpy has no type for {self.dtype.name}")
        kind: Any = self.dtype.numpy
        if not hasattr(np, kind) and kind != "bool":
            import ml_dtypes

            kind = getattr(ml_dtypes, kind)
        source = self.source()
        return np.frombuffer(bytearray(source.read(0, source.length)), dtype=kind).reshape(self.shape)

    def torch(self) -> torch.Tensor:
        """The values as a torch tensor on the CPU, in C order, read now. `ckptool.load` puts tensors where they belong.

        Raises:
            CannotCarry: torch, as it is installed here, has no such element type.
            NotInstalled: torch is not installed. `numpy` needs none.
        """
        require("LazyTensor.torch", "torch", extra="torch")
        import torch

        kind = getattr(torch, self.dtype.name, None)
        if kind is None or self.dtype.name.startswith(("qint", "quint")):
            raise CannotCarry(f"torch {torch.__version__} makes no plain tensor of {self.dtype.name}")
        source = self.source()
        if not source.length:
            return torch.empty(self.shape, dtype=kind)
        return torch.frombuffer(bytearray(source.read(0, source.length)), dtype=torch.uint8).view(kind).view(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the values of a LazyTensor are in a file; they cannot be had without a copy")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of no dimensions has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # whether it is there; what its values are, nobody has read

    def __getitem__(self, index: Any) -> LazyTensor:
        """A part, by numbers, slices and `...`, as in numpy and torch. Only its bytes are read, when they are.

        Raises:
            IndexError: beyond the end, or more numbers than dimensions.
            TypeError: an index of another kind (a list, a mask).
        """
        wanted = index if isinstance(index, tuple) else (index,)
        if wanted.count(Ellipsis) > 1:
            raise IndexError("an index can have only one '...'")
        rest = len(self.shape) - sum(one is not Ellipsis for one in wanted)
        if rest < 0:
            raise IndexError(f"too many indices for a tensor of {len(self.shape)} dimensions")
        at = wanted.index(Ellipsis) if Ellipsis in wanted else len(wanted)
        full = (*wanted[:at], *[slice(None)] * rest, *wanted[at + 1 :])
        offset, shape, stride = self.offset, [], []
        for one, size, step in zip(full, self.shape, self.stride, strict=True):
            if isinstance(one, slice):
                picked = range(size)[one]
                if picked.step < 0:
                    raise ValueError("a LazyTensor cannot be read backwards: the step of a slice is 1 or more")
                offset += picked.start * step if picked else 0
                shape.append(len(picked))
                stride.append(step * picked.step)
            else:
                offset += range(size)[operator.index(one)] * step
        return self.changed(shape=tuple(shape), stride=tuple(stride), offset=offset, parameter=False)

    def __repr__(self) -> str:
        return f"LazyTensor({self.dtype.name}, {list(self.shape)}, {self.location})"


@record(frozen=True, eq=False, slots=True)
class Swapped:
    """The bytes of another source with the order of those of each number turned round.

    Attributes:
        source: the bytes as they are.
        width: bytes of a number; those of the two parts of a complex number are turned one by one.
    """

    source: Source
    width: int

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return self.source.length

    @property
    def step(self) -> int:
        """Bytes that are turned at once."""
        return _TURNED

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        start = offset // self.width * self.width
        end = min(-(-(offset + length) // self.width) * self.width, self.length)
        raw = bytearray(self.source.read(start, end - start))
        whole = len(raw) // self.width * self.width
        swapped = np.frombuffer(raw, np.uint8)[:whole].reshape(-1, self.width)
        swapped[:] = swapped[:, ::-1].copy()
        return memoryview(raw)[offset - start :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All bytes, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


class TensorColumn(Sequence[LazyTensor]):
    """The tensors of a file, each over a storage of its own, in columns. They are made when one of them is asked for.

    Args:
        table: their storages: the Nth is that of the Nth tensor.
        alike: for each tensor, one with the same view and the same kind of storage.
    """

    __slots__ = ("_made", "alike", "table")

    def __init__(self, table: StorageTable, alike: list[LazyTensor]) -> None:
        self.table = table
        self.alike = alike
        self._made: list[LazyTensor] | None = None

    @classmethod
    def holding(cls, tensors: list[LazyTensor]) -> TensorColumn | None:
        """These tensors as a column, which keeps this very list; None unless the Nth is over the Nth storage of one
        table, which has no others.
        """
        if set(map(type, map(_STORAGE, tensors))) != {NumberedStorage}:
            return None
        tables = set(map(_PLACE, map(_STORAGE, tensors)))
        numbers = range(len(tensors))
        if len(tables) > 1 or not all(map(operator.eq, map(_NUMBER, map(_STORAGE, tensors)), numbers)):
            return None
        (table,) = tables
        if len(table.sizes) != len(tensors):
            return None
        several = len(set(map(_STORAGE_KIND, tensors))) > 1
        told: Callable[[], Iterator[Any]] = partial(_looks, tensors) if several else partial(map, _VIEW, tensors)
        column = cls(table, list(map(dict(zip(told(), tensors, strict=True)).__getitem__, told())))
        column._made = tensors
        return column

    @classmethod
    def joining(cls, columns: Sequence[Sequence[LazyTensor]]) -> Sequence[LazyTensor]:
        """The tensors of COLUMNS, those of one behind those of the other: in a column, unless some have been made."""
        parts = [column for column in columns if isinstance(column, cls) and column._made is None]
        if len(parts) < len(columns):
            return [tensor for column in columns for tensor in column]
        return cls(_JoinedTable([part.table for part in parts]), [one for part in parts for one in part.alike])

    @property
    def views(self) -> Iterator[View]:
        """The view of each tensor."""
        return map(_VIEW, self.alike)

    @property
    def storage_kinds(self) -> Iterator[StorageKind]:
        """The kind of the storage of each tensor."""
        return map(_STORAGE_KIND, self.alike)

    @property
    def _tensors(self) -> list[LazyTensor]:
        if self._made is None:
            storages = map(NumberedStorage, repeat(self.table), range(len(self)), self.storage_kinds)
            self._made = list(map(LazyTensor.over, self.alike, storages))
        return self._made

    def __len__(self) -> int:
        return len(self.alike)

    def __iter__(self) -> Iterator[LazyTensor]:
        return iter(self._tensors)

    def __reversed__(self) -> Iterator[LazyTensor]:
        return reversed(self._tensors)

    @overload
    def __getitem__(self, index: int) -> LazyTensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[LazyTensor]: ...
    def __getitem__(self, index: int | slice) -> LazyTensor | list[LazyTensor]:
        return self._tensors[index]


class _JoinedTable:
    """The storages of several tables, those of one behind those of the other."""

    def __init__(self, tables: Sequence[StorageTable]) -> None:
        self._tables = tables
        self._begins = [0, *accumulate(len(table.sizes) for table in tables)]
        self.sizes = array("Q", chain.from_iterable(table.sizes for table in tables))

    def _of(self, number: int) -> tuple[StorageTable, int]:
        at = bisect_right(self._begins, number) - 1
        return self._tables[at], number - self._begins[at]

    def key(self, number: int) -> str:
        """As `Storage.key`."""
        table, own = self._of(number)
        return table.key(own)

    def source(self, number: int) -> Source:
        """As `Storage.source`."""
        table, own = self._of(number)
        return table.source(own)

    def crc(self, number: int) -> int | None:
        """As `Storage.crc`."""
        table, own = self._of(number)
        return table.crc(own)


#: What is asked of each of a hundred thousand tensors is asked in C.
_STORAGE = operator.attrgetter("storage")
_STORAGE_KIND = operator.attrgetter("storage.kind")
_VIEW, _NBYTES = operator.attrgetter("view"), operator.attrgetter("nbytes")
_KIND, _PLACE, _NUMBER = map(operator.attrgetter, ("kind", "_place", "_key"))


def _looks(tensors: Sequence[LazyTensor]) -> Iterator[tuple[View, StorageKind]]:
    return zip(map(_VIEW, tensors), map(_STORAGE_KIND, tensors), strict=True)


def distinct(tensors: Sequence[LazyTensor]) -> Sequence[LazyTensor]:
    """TENSORS, those that are one once."""
    return tensors if share_nothing(tensors) else list({t.identity: t for t in tensors}.values())


def share_nothing(tensors: Sequence[LazyTensor]) -> bool:
    """Whether each of TENSORS has a storage of its own, as nearly always. A quick look, which may say no for yes."""
    if isinstance(tensors, TensorColumn):
        return True
    storages = list(map(_STORAGE, tensors))
    return len(set(storages)) == len(storages) and all(kind.tie is None for kind in set(map(_KIND, storages)))


def locations(storages: Iterable[Storage]) -> Counter[str]:
    """The locations of STORAGES, in the order in which they come first, each with how many there are."""
    return locations_of(map(_KIND, storages))


def locations_of(kinds: Iterable[StorageKind]) -> Counter[str]:
    """The locations of storages of these kinds, in the order in which they come first, and how many there are."""
    found: Counter[str] = Counter()
    for kind, count in Counter(kinds).items():  # kinds are few where storages are many
        found[kind.location] += count
    return found


def joined(parts: Sequence[Sequence[LazyTensor]]) -> Sequence[LazyTensor]:
    """The tensors of all PARTS. One that is alone comes back as it is: it may be a `TensorColumn`."""
    return parts[0] if len(parts) == 1 else [tensor for part in parts for tensor in part]


def views_of(tensors: Iterable[LazyTensor]) -> Counter[View]:
    """How TENSORS look at their storages, each with how many do: few, where tensors are many."""
    if not isinstance(tensors, TensorColumn):
        return Counter(map(_VIEW, tensors))
    found: Counter[View] = Counter()
    for tensor, count in Counter(tensors.alike).items():
        found[tensor.view] += count
    return found


def looks_of(tensors: Iterable[LazyTensor]) -> Iterator[View]:
    """How each of TENSORS looks at its storage."""
    return tensors.views if isinstance(tensors, TensorColumn) else map(_VIEW, tensors)


def storage_kinds_of(tensors: Iterable[LazyTensor]) -> Iterator[StorageKind]:
    """What the storage of each of TENSORS has in common with others."""
    return tensors.storage_kinds if isinstance(tensors, TensorColumn) else map(_STORAGE_KIND, tensors)


def totals(views: Mapping[View, int]) -> tuple[int, int]:
    """How many elements tensors have, and how many bytes. VIEWS gives how many tensors there are of each view."""
    numel = sum(view.numel * count for view, count in views.items())
    return numel, sum(view.nbytes * count for view, count in views.items())


def stored_and_used(tensors: Sequence[LazyTensor]) -> tuple[int, int]:
    """How many bytes the storages of TENSORS have, and how many of these the tensors use.

    Views that overlap count as the whole storage that they are in, at most.
    """
    if share_nothing(tensors):
        column = tensors if isinstance(tensors, TensorColumn) else None
        sizes = list(map(_NBYTES, map(_STORAGE, tensors))) if column is None else list(column.table.sizes)
        wanted = list(map(_NBYTES, looks_of(tensors)))
        stored = sum(sizes)
        return stored, stored if wanted == sizes else sum(map(min, wanted, sizes))
    used: dict[int, int] = {}
    for t in distinct(tensors):
        one = t.storage.identity
        used[one] = min(used.get(one, 0) + t.nbytes, t.storage.nbytes)
    return sum(map(_NBYTES, set(map(_STORAGE, tensors)))), sum(used.values())


def little_endian(storage: Storage, dtype: DType | None = None) -> Storage:
    """A big-endian storage with its bytes turned round as they are read; others as they are.

    Args:
        storage: the storage.
        dtype: element type of the tensor that is read, which counts where the storage has none of its own.
    """
    if not storage.big_endian:
        return storage
    width = width_of_numbers(storage, dtype)
    if width == 1:
        return storage.changed(big_endian=False)
    return storage.changed(source=Swapped(storage.source, width), big_endian=False, crc=None)


def width_of_numbers(storage: Storage, dtype: DType | None) -> int:
    """Bytes of a number in a storage, seen as DTYPE where it has no type of its own; of a complex one, of a part."""
    dtype = storage.dtype or dtype
    return 1 if dtype is None else dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize


@lru_cache(1024)
def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor of SHAPE in C order, as torch computes them (a size of 0 counts as 1)."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def is_permutation(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether STRIDE only reorders the dimensions of a tensor without gaps (transposed, channels last)."""
    order = memory_order(stride)
    return all(
        shape[dim] == 1 or stride[dim] == expected
        for dim, expected in zip(order, contiguous_stride(tuple(shape[d] for d in order)), strict=True)
    )


def memory_order(stride: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest in memory."""
    return tuple(sorted(range(len(stride)), key=lambda dim: -stride[dim]))


def permuted(values: LazyTensor, stride: tuple[int, ...]) -> LazyTensor:
    """The same values as the contiguous tensor VALUES, laid out in memory with STRIDE (a permutation of C order).

    The storage of the result is computed from VALUES when it is read.
    """
    order = memory_order(stride)
    reordered = LazyTensor(
        values.storage,
        values.dtype,
        tuple(values.shape[dim] for dim in order),
        tuple(values.stride[dim] for dim in order),
        values.offset,
    )
    storage = Storage(reordered.source(), values.location, values.storage.dtype, values.storage.key)
    return LazyTensor(storage, values.dtype, values.shape, stride)


@record(frozen=True, eq=False, slots=True)
class Gathered:
    """The values of a strided tensor in C order, computed in pieces of bounded size from reads of bounded size."""

    tensor: LazyTensor

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return self.tensor.nbytes

    @property
    def step(self) -> int:
        """Bytes that are gathered at once."""
        return max(_GATHERED // self.tensor.dtype.itemsize, 1) * self.tensor.dtype.itemsize

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET of the values in C order."""
        import numpy as np

        if not length:
            return memoryview(b"")
        item = self.tensor.dtype.itemsize
        first, last = offset // item, -(-(offset + length) // item)
        parts = [self._box(start, count) for start, count in boxes(self.tensor.shape, first, last)]
        values = np.concatenate([part.reshape(-1) for part in parts]) if len(parts) != 1 else parts[0].reshape(-1)
        raw = resolved(values.view(np.uint8), self.tensor.dtype, conj=self.tensor.conj, neg=self.tensor.neg)
        return memoryview(raw.data)[offset - first * item :][:length]

    def _box(self, start: tuple[int, ...], count: tuple[int, ...]) -> np.ndarray[Any, Any]:
        tensor = self.tensor
        offset = tensor.offset + sum(i * s for i, s in zip(start, tensor.stride, strict=True))
        return _gather(tensor.storage.source.read, tensor.dtype.itemsize, count, tensor.stride, offset)


def boxes(shape: tuple[int, ...], first: int, last: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cover the elements FIRST to LAST of C order by boxes (start, count), in order, at most two per dimension."""
    if first >= last:
        return
    if not shape:
        yield (), ()
        return
    inner = prod(shape[1:])
    row, skip = divmod(first, inner)
    if skip or last - first < inner:
        end = min(last, (row + 1) * inner)
        for start, count in boxes(shape[1:], first - row * inner, end - row * inner):
            yield (row, *start), (1, *count)
        yield from boxes(shape, end, last)
        return
    rows = (last - first) // inner
    yield (row, *(0,) * (len(shape) - 1)), (rows, *shape[1:])
    yield from boxes(shape, first + rows * inner, last)


def _gather(
    read: Reader, item: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> np.ndarray[Any, Any]:
    """The elements of a strided box as a contiguous array of raw items, never reading far more than it holds."""
    import numpy as np

    kind = np.dtype(f"V{item}")
    span = (sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1) * item
    if span <= max(4 * prod(shape) * item, 1 << 16) or len(shape) < 1:
        raw = np.frombuffer(read(offset * item, span), kind)
        steps = tuple(s * item if n > 1 else 0 for n, s in zip(shape, stride, strict=True))  # others may be any number
        view = np.lib.stride_tricks.as_strided(raw, shape, steps, writeable=False)
        return np.ascontiguousarray(view) if shape else view.reshape(())
    outer = max((dim for dim in range(len(shape)) if shape[dim] > 1), key=lambda dim: stride[dim])
    out = np.empty(shape, kind)
    row = (*shape[:outer], 1, *shape[outer + 1 :])
    gather = partial(_gather, read, item, row, stride)
    for index in range(shape[outer]):
        out[(slice(None),) * outer + (slice(index, index + 1),)] = gather(offset + index * stride[outer])
    return out


def untyped(source: Source, location: str = "cpu", key: str = "") -> Storage:
    """A storage of plain bytes."""
    return Storage(source, location, None, key)


def bytes_of(storage: Storage) -> LazyTensor:
    """A storage seen as a uint8 tensor of all its bytes."""
    return LazyTensor(storage, UINT8, (storage.nbytes,), (1,))
