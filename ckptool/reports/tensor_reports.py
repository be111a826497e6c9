"""The tensors of a file as a report lists them: in columns, since there may be a hundred thousand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, overload

from ..checkpoint import Role
from ..inert.other_tensors import OtherTensor
from ..records import record
from ..tensor import LazyTensor, StorageKind, TensorColumn, View, joined, looks_of, share_nothing, storage_kinds_of
from ..tree import component_text, key_column, value_column


@record(frozen=True, slots=True)
class TensorReport:
    """A tensor in a file. `storage` numbers the storages: tensors with the same number share memory.

    `key` and `state_dict` (its path) are None outside a state dict; `shape` and `stride` are in elements. `kind` is
    "dense", or what the tensor is otherwise ("sparse_coo", "quantized", "numpy" …); `bytes` are then those of its
    parts, which follow it in the list. `role` is what the tensor is in the framework that wrote it, as far as the file
    tells.
    """

    path: str
    key: str | None
    dtype: str
    shape: list[int]
    stride: list[int]
    location: str
    storage: int | None
    bytes: int
    requires_grad: bool
    kind: str = "dense"
    state_dict: str | None = None
    role: Role | None = None


@record(frozen=True, eq=False, slots=True)
class Kind:
    """What the reports of many tensors have in common; see `TensorReport`."""

    dtype: str
    shape: list[int]
    stride: list[int]
    location: str
    bytes: int
    requires_grad: bool
    kind: str
    role: Role | None = None


@record(frozen=True, slots=True)
class _Run:
    """Neighbours in the list: the number of the first, what their paths begin with, and their state dict.

    Outside a state dict, names are whole paths.
    """

    first: int
    below: str
    state_dict: str | None


class TensorReports(Sequence[TensorReport]):
    """A list of `TensorReport`. Each is made when it is asked for."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._kinds: list[Kind] = []
        self._held: list[Sequence[LazyTensor]] = []  # the tensors, or what those of other kinds are stored in
        self._unstored: set[int] = set()  # the numbers of those of other kinds that no tensor stores
        self._paths: dict[int, str] = {}  # of those whose names do not tell
        self._runs: list[_Run] = []
        self._known: dict[tuple[Any, ...], Kind] = {}
        self._lists: dict[tuple[int, ...], list[int]] = {}
        self._numbers: list[int | None] = []

    def add(self, name: str, tensor: LazyTensor | OtherTensor, below: str, state_dict: str | None) -> None:
        """Add a tensor: its key, what its path begins with and the path of its state dict, or its path, "" and None."""
        self._begin(below, state_dict)
        self._names.append(name)
        if isinstance(tensor, LazyTensor):
            self._kinds.append(self._kind(tensor.view, tensor.storage.kind))
            self._held.append((tensor,))
            return
        stored = tensor.dense
        self._kinds.append(
            Kind(
                tensor.dtype.name if tensor.dtype else "?",
                list(tensor.shape),
                list(stored.stride) if stored else [],
                tensor.location,
                tensor.nbytes,
                tensor.requires_grad,
                tensor.words,
            )
        )
        if stored is None:
            self._unstored.add(len(self._names) - 1)
        else:
            self._held.append((stored,))

    def add_place(self, path: str, key: str, tensor: LazyTensor | OtherTensor, state_dict: str) -> None:
        """Add a tensor of a state dict whose place in the file has another name than its key."""
        self._paths[len(self._names)] = path
        self.add(key, tensor, "", state_dict)

    def add_all(self, entries: Sequence[tuple[str, LazyTensor]], below: str, state_dict: str) -> None:
        """Add the entries of a state dict, all of which are dense tensors."""
        self._begin(below, state_dict)
        tensors = value_column(entries)
        self._names += key_column(entries)
        self._held.append(tensors)
        self._kinds += self._kinds_of(tensors)

    def _begin(self, below: str, state_dict: str | None) -> None:
        last = self._runs[-1] if self._runs else None
        if last is None or last.below != below or last.state_dict != state_dict:
            self._runs.append(_Run(len(self._names), below, state_dict))

    def _kinds_of(self, tensors: Sequence[LazyTensor]) -> Iterator[Kind]:
        if isinstance(tensors, TensorColumn):
            of_one = {one: self._kind(one.view, one.storage.kind) for one in set(tensors.alike)}
            return map(of_one.__getitem__, tensors.alike)
        told = list(zip(looks_of(tensors), storage_kinds_of(tensors), strict=True))
        kinds = {one: self._kind(*one) for one in set(told)}
        return map(kinds.__getitem__, told)

    def _kind(self, t: View, stored: StorageKind) -> Kind:
        told = t.dtype.name, t.shape, t.stride, stored.location, t.requires_grad
        kind = self._known.get(told)
        if kind is None:
            size = prod(t.shape) * t.dtype.itemsize
            shape, stride = (self._lists.setdefault(sizes, list(sizes)) for sizes in (t.shape, t.stride))
            kind = self._known[told] = Kind(told[0], shape, stride, told[3], size, told[4], "dense")
        return kind

    def in_state_dict(self, path: str) -> tuple[list[str], list[Kind]]:
        """The keys of the tensors of the state dict at PATH, and what kind each is."""
        keys: list[str] = []
        kinds: list[Kind] = []
        for run, end in self._with_ends():
            if run.state_dict == path:
                keys += self._names[run.first : end]
                kinds += self._kinds[run.first : end]
        return keys, kinds

    def storages_in(self, path: str) -> tuple[int, int]:
        """How many tensors of the state dict at PATH are stored, and in how many storages."""
        numbers = self._numbers
        stored: list[int] = []
        for run, end in self._with_ends():
            if run.state_dict == path:
                stored += [number for number in numbers[run.first : end] if number is not None]
        return len(stored), len(set(stored))

    def tell(self, roles: Mapping[str, Role]) -> None:
        """Note what tensors are in the framework that wrote them, by their keys."""
        known: dict[tuple[Kind, Role], Kind] = {}
        for run, end in self._with_ends():
            for index in range(run.first, end) if run.state_dict is not None else ():
                kind, role = self._kinds[index], roles.get(self._names[index])
                if role is not None:
                    self._kinds[index] = known.setdefault((kind, role), replace(kind, role=role))

    def let_go(self) -> None:
        """Number the storages and forget the tensors, which keep files open."""
        held = joined(self._held)
        if len(held) == len(self) and share_nothing(held):
            self._numbers = list(range(len(held)))
        else:
            known: dict[int, int] = {}
            numbers = iter([known.setdefault(t.storage.identity, len(known)) for t in held])
            self._numbers = [None if index in self._unstored else next(numbers) for index in range(len(self))]
        self._held = []

    @classmethod
    def of(cls, reports: Iterable[TensorReport]) -> TensorReports:
        """The same reports in columns."""
        made = cls()
        for one in reports:
            inside = one.key is not None and one.state_dict is not None
            if inside:
                made._paths[len(made)] = one.path
            made._begin("", one.state_dict if inside else None)
            made._names.append(str(one.key) if inside else one.path)
            common = one.location, one.bytes, one.requires_grad, one.kind, one.role
            told = one.dtype, tuple(one.shape), tuple(one.stride), *common
            kind = made._known.get(told)
            if kind is None:
                kind = made._known[told] = Kind(one.dtype, one.shape, one.stride, *common)
            made._kinds.append(kind)
            made._numbers.append(one.storage)
        return made

    def _with_ends(self) -> Iterator[tuple[_Run, int]]:
        ends = [*(run.first for run in self._runs[1:]), len(self._names)]
        return zip(self._runs, ends, strict=False)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> TensorReport: ...
    @overload
    def __getitem__(self, index: slice) -> list[TensorReport]: ...
    def __getitem__(self, index: int | slice) -> TensorReport | list[TensorReport]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        run = self._runs[bisect_right(self._runs, index, key=lambda run: run.first) - 1]
        return self._report(index, run)

    def __iter__(self) -> Iterator[TensorReport]:
        for run, end in self._with_ends():
            for index in range(run.first, end):
                yield self._report(index, run)

    def _report(self, index: int, run: _Run) -> TensorReport:
        name, kind = self._names[index], self._kinds[index]
        inside = run.state_dict is not None
        return TensorReport(
            self._paths[index] if index in self._paths else run.below + component_text(name) if inside else name,
            name if inside else None,
            kind.dtype,
            kind.shape,
            kind.stride,
            kind.location,
            self._numbers[index],
            kind.bytes,
            kind.requires_grad,
            kind.kind,
            run.state_dict,
            kind.role,
        )
