"""Torch tensors that ranks share as a checkpoint that all of them lay out alike, each with the bytes that it has.

A tensor is planned by its global sizes. Its bytes are `Held`: a source that gives each rank the runs of bytes that it
is to write. What several ranks hold alike is written once: of a large box each of them writes an equal part, of a small
one a single rank all of it. That is told by the boxes themselves, for a tensor which FSDP divides and tensor
parallelism does not know of is on a mesh of its own in every column of ranks. What is no DTensor is taken from rank 0,
as `get_model_state_dict` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ..checkpoint import Checkpoint
from ..dtypes import BY_NAME, BY_STORAGE
from ..errors import CannotCarry, printable
from ..tensor import LazyTensor, Storage, contiguous_stride
from ..torch_bridge import FromTorch
from .into_memory import pieces_of, raw_memory
from .placing import Slice, identity_of, is_sharded, share_of

#: Bytes of a tensor that several ranks hold, above which they divide it.
_DIVIDED = 1 << 20
#: Bytes that are copied from a device, or put in order, at once.
_STEP = 16 << 20


class Here:
    """What this rank has of a tensor, and what of it it writes. A plan does not say, so that it is that of all ranks.

    Attributes:
        kind: path, sizes and type of the tensor.
        local: the memory of this rank.
        slices: the boxes of the tensor that are in it, and that this rank may write.
        own: those that it does write.
    """

    def __init__(self, kind: tuple[str, tuple[int, ...], str], local: torch.Tensor, slices: Sequence[Slice]) -> None:
        self.kind, self.local, self.slices = kind, local, tuple(slices)
        self.own: tuple[Slice, ...] = ()

    @property
    def boxes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The first element and the sizes of each box, as other ranks are told."""
        return [(one.start, one.shape) for one in self.slices]


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """The bytes of a tensor in C order, of which each rank has some.

    Attributes:
        name: of the tensor, for messages.
        run: what tells this run from any other one: the values are in no file, so no later run can go on with them.
        shape: global sizes.
        item: bytes of an element.
        here: what this rank has.
    """

    name: str
    run: str
    shape: tuple[int, ...]
    item: int
    here: Here

    @property
    def length(self) -> int:
        """How many bytes there are, on all ranks together."""
        return prod(self.shape) * self.item

    def read(self, offset: int, length: int) -> bytes:
        """Nobody has all bytes.

        Raises:
            CannotCarry: always.
        """
        raise CannotCarry(
            f"{printable(self.name)} is divided among ranks, and would have to be computed from as a whole"
        )

    def chunks(self) -> Iterator[bytes]:
        """See `read`."""
        yield self.read(0, self.length)

    def held(self) -> Iterator[tuple[int, memoryview]]:
        """What this rank writes: where it begins, and the bytes."""
        for one in self.here.own:
            for piece in pieces_of(one.shape, max(_STEP // self.item, 1)):
                where = tuple(slice(a + p.start, a + p.stop) for a, p in zip(one.at, piece, strict=True))
                part = self.here.local[where] if where else self.here.local
                start = tuple(a + p.start for a, p in zip(one.start, piece, strict=True))
                yield from _runs(self.shape, self.item, start, tuple(part.shape), part)


def _runs(
    shape: tuple[int, ...], item: int, start: tuple[int, ...], sizes: tuple[int, ...], part: torch.Tensor
) -> Iterator[tuple[int, memoryview]]:
    """The bytes of a box of a tensor of SHAPE, in runs that stand one after the other there."""
    import numpy as np

    raw = np.ascontiguousarray(raw_memory(part.detach().resolve_conj().resolve_neg().cpu()))
    data = memoryview(raw.reshape(-1).view(np.uint8).data)
    dims = len(shape)
    while dims and sizes[dims - 1] == shape[dims - 1]:
        dims -= 1
    dims = max(dims - 1, 0)  # the run goes through this dimension
    run, steps = prod(sizes[dims:]) * item, contiguous_stride(shape)
    first = sum(at * step for at, step in zip(start, steps, strict=True))
    for number, index in enumerate(np.ndindex(*sizes[:dims])):
        at = first + sum(i * step for i, step in zip(index, steps, strict=False))
        yield at * item, data[number * run : (number + 1) * run]


def divide_among_holders(held: Sequence[Here], told: Sequence[Sequence[Any]], rank: int) -> None:
    """Settle what this rank writes of each tensor, so that together the ranks write each box once.

    Args:
        held: the tensors of this rank, which are those of all.
        told: for each rank, the boxes of each tensor that it holds.
        rank: the number of this process.
    """
    for number, here in enumerate(held):
        item = BY_NAME[here.kind[2]].itemsize
        holders: dict[Any, list[int]] = {}
        for other, boxes in enumerate(told):
            for start, shape in boxes[number]:
                holders.setdefault((tuple(start), tuple(shape)), []).append(other)
        own: list[Slice] = []
        for one in here.slices:
            ranks = holders[one.start, one.shape]
            if len(ranks) == 1:
                own.append(one)
            elif not one.shape or prod(one.shape) * item < _DIVIDED:
                own += [one] if ranks[number % len(ranks)] == rank else []
            else:
                own += _part(one, ranks.index(rank), len(ranks))
        here.own = tuple(own)


def _part(one: Slice, number: int, count: int) -> list[Slice]:
    """One of COUNT equal parts of a box, along the first dimension that has as many elements."""
    dim = next((dim for dim, size in enumerate(one.shape) if size >= count), 0)
    step = -(-one.shape[dim] // count)
    low = min(number * step, one.shape[dim])
    size = min(step, one.shape[dim] - low)
    start, at = (tuple(n + low * (d == dim) for d, n in enumerate(ns)) for ns in (one.start, one.at))
    return [Slice(start, (*one.shape[:dim], size, *one.shape[dim + 1 :]), at)] if size else []


class _Maker(FromTorch):
    """Makes a checkpoint of torch tensors, and notes what this rank has of each."""

    def __init__(self, run: str, rank: int) -> None:
        super().__init__()
        self._run, self._rank = run, rank
        self._known: dict[Any, LazyTensor] = {}
        self.held: list[Here] = []

    def tensor(self, tensor: Any, path: str) -> LazyTensor:
        """A tensor with global sizes, whose bytes are held by the ranks."""
        local = tensor._local_tensor if is_sharded(tensor) else tensor
        if local.layout != torch.strided or local.is_quantized or local.device.type == "meta":
            raise CannotCarry(f"{printable(path)} is not a dense tensor with data")
        dtype = BY_NAME[str(tensor.dtype).removeprefix("torch.")]
        key = identity_of(tensor)
        if key not in self._known:
            shape = tuple(tensor.shape)
            mine = share_of(path, tensor) if is_sharded(tensor) or self._rank == 0 else None
            here = Here((path, shape, dtype.name), local, mine.slices if mine and prod(shape) else ())
            self.held.append(here)
            source = Held(path, self._run, shape, dtype.itemsize, here)
            storage = Storage(source, "cpu", dtype if dtype.storage in BY_STORAGE else None)
            self._known[key] = LazyTensor(storage, dtype, shape, contiguous_stride(shape))
        parameter = isinstance(tensor, torch.nn.Parameter)
        return self._known[key].changed(requires_grad=tensor.requires_grad, parameter=parameter)


def checkpoint_of(value: Any, run: str, rank: int) -> tuple[Checkpoint, list[Here]]:
    """A dict of tensors that ranks share (nested, with lists and scalars) as a checkpoint.

    Args:
        value: the dict, on each rank its own.
        run: a text that tells this run from any other one, the same on all ranks.
        rank: the number of this process.

    Returns:
        The checkpoint, the same on all ranks but for the bytes; and what this rank has of each tensor.

    Raises:
        CannotCarry: a value of another class, a tensor without values, or a sum of which each rank holds a term.
    """
    maker = _Maker(run, rank)
    return Checkpoint(maker.node(value, "")), maker.held


__all__ = ["Held", "Here", "checkpoint_of", "divide_among_holders"]
