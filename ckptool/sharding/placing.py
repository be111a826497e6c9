"""Which elements of a whole tensor a rank holds, by the rules of `torch.distributed.tensor`.

A `DTensor` is a tensor of which each rank of a mesh holds a part. For each dimension of the mesh it says whether the
ranks along it hold the same (`Replicate`), or cut a dimension of the tensor among them (`Shard`), as `torch.chunk`
does: each takes the size divided by their number, rounded up, and the last ones less, or nothing. `_StridedShard` is
what FSDP makes of a tensor that tensor parallelism has cut before: its `split_factor` says that the cut among other
dimensions of the mesh, as many ranks in all, comes first.

The computation knows sizes alone, so that any process can say what any rank holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ..errors import CannotCarry, printable

#: A range of indices of one dimension: the first, and the one after the last.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """A box of a whole tensor that lies in a local one.

    Attributes:
        start: its first element in the whole, per dimension.
        shape: its sizes.
        at: its first element in the local tensor.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    at: tuple[int, ...]

    @property
    def within(self) -> tuple[slice, ...]:
        """Where it is in the local tensor, as an index."""
        return tuple(slice(first, first + size) for first, size in zip(self.at, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """One way in which a tensor is cut among the ranks along a dimension of the mesh.

    Attributes:
        dim: the dimension of the tensor.
        split_factor: of a strided cut, into how many pieces the tensor is cut before; 1 for a plain one.
    """

    dim: int
    split_factor: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank holds of a tensor.

    Attributes:
        shape: of the whole tensor.
        local: of what the rank holds.
        slices: the boxes that make it up, in the order of the local tensor.
    """

    shape: tuple[int, ...]
    local: tuple[int, ...]
    slices: tuple[Slice, ...]


def whole(shape: Sequence[int]) -> Share:
    """The share of a rank that holds all of a tensor by itself."""
    sizes = tuple(shape)
    here = (0,) * len(sizes)
    return Share(sizes, sizes, (Slice(here, sizes, here),))


def share(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int] | None,
    placements: Sequence[Cut | None],
    order: Sequence[int] | None = None,
    *,
    literally: bool = False,
) -> Share:
    """What the rank at COORDINATE of a mesh holds of a tensor of SHAPE.

    Args:
        shape: of the whole tensor.
        mesh: how many ranks there are along each dimension of the mesh.
        coordinate: of the rank; None if it is not in the mesh and holds nothing.
        placements: for each dimension of the mesh, how it cuts the tensor; None where its ranks hold the same.
        order: the dimensions of the mesh in the order in which they cut, where that is not told by the cuts.
        literally: take a strided cut for what `distribute_tensor` makes of it, which is another thing than FSDP does
            where sizes cannot be divided: it cuts the pieces, and then what each rank has of them all.
    """
    if coordinate is None:
        return Share(tuple(shape), (0,), ())
    spans: list[list[Span]] = [[(0, size)] for size in shape]
    nested = tuple(order) if order is not None else None if literally else _nested(mesh, placements)
    for number in nested if nested is not None else range(len(mesh)):
        cut = placements[number]
        if cut is not None:
            factor = 1 if nested is not None else cut.split_factor
            spans[cut.dim] = _cut(spans[cut.dim], mesh[number], coordinate[number], factor)
    local = tuple(sum(end - begin for begin, end in held) for held in spans)
    return Share(tuple(shape), local, tuple(_slices(spans)) if prod(local) else ())


def _nested(mesh: Sequence[int], placements: Sequence[Cut | None]) -> tuple[int, ...] | None:
    """The dimensions of the mesh in the order in which they cut; None where a strided cut tells of no such order.

    A strided cut stands behind those of its dimension whose numbers of ranks multiply to its split factor.
    """
    orders: dict[int, list[int]] = {}
    for number in reversed(range(len(placements))):
        cut = placements[number]
        if cut is None:
            continue
        order = orders.setdefault(cut.dim, [])
        before = [prod(mesh[other] for other in order[:place]) for place in range(len(order) + 1)]
        if cut.split_factor not in before:
            return None
        order.insert(before.index(cut.split_factor), number)
    return tuple(number for order in orders.values() for number in order)


def _cut(spans: list[Span], ranks: int, rank: int, factor: int) -> list[Span]:
    """What one of so many ranks takes of the indices in SPANS, which are cut into FACTOR pieces before."""
    held = sum(end - begin for begin, end in spans)
    taken: list[Span] = []
    for begin, end in _chunks(held, factor):
        first, last = _chunks(end - begin, ranks)[rank]
        taken += _part(spans, begin + first, begin + last)
    return taken


def _chunks(size: int, count: int) -> list[Span]:
    """The ranges that `torch.chunk` gives, and empty ones up to COUNT."""
    step = -(-size // count)
    return [(min(number * step, size), min((number + 1) * step, size)) for number in range(count)]


def _part(spans: list[Span], first: int, last: int) -> list[Span]:
    """The indices at places FIRST to LAST of those in SPANS, neighbours as one."""
    found: list[Span] = []
    at = 0
    for begin, end in spans:
        low, high = max(first - at, 0), min(last - at, end - begin)
        if low < high:
            if found and found[-1][1] == begin + low:
                found[-1] = (found[-1][0], begin + high)
            else:
                found.append((begin + low, begin + high))
        at += end - begin
    return found


def _slices(spans: list[list[Span]]) -> list[Slice]:
    """The boxes of which a local tensor is made, each of one span in every dimension."""
    placed = []
    for held in spans:
        at, found = 0, []
        for begin, end in held:
            found.append((begin, end - begin, at))
            at += end - begin
        placed.append(found)
    made = []
    for parts in product(*placed):
        start, sizes, at_ = (tuple(column) for column in zip(*parts, strict=True)) if parts else ((), (), ())
        made.append(Slice(start, sizes, at_))
    return made


# ---------------------------------------------------------------------------------------------------- of torch


def is_sharded(tensor: Any) -> bool:
    """Whether a torch tensor is a `DTensor`, whichever torch is installed. No module is imported to find out."""
    return any(
        kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed") for kind in type(tensor).__mro__
    )


def has_sharded(value: Any) -> bool:
    """Whether there is a DTensor in a dict, or in dicts and lists in it, which may hold themselves."""
    pending, seen = [value], set()
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping) or type(one) in (list, tuple):
            if id(one) not in seen:
                seen.add(id(one))
                pending.extend(one.values() if isinstance(one, Mapping) else one)
        elif is_sharded(one):
            return True
    return False


def identity_of(tensor: Any) -> tuple[Any, ...]:
    """The same for torch tensors that are one: the same view of the same memory."""
    local = tensor._local_tensor if is_sharded(tensor) else tensor
    placed = tuple(map(str, tensor.placements)) if is_sharded(tensor) else ()
    where = local.untyped_storage()._cdata, local.storage_offset()
    seen_as = local.dtype, local.is_conj(), local.is_neg()  # conj() gives the same memory, of other numbers
    return (*where, tuple(tensor.shape), tuple(local.shape), local.stride(), *seen_as, placed)


def share_of(name: str, tensor: Any) -> Share:
    """What this rank holds of a torch tensor: its share of a `DTensor`, and all of any other.

    Raises:
        CannotCarry: the tensor NAME is a sum whose terms the ranks hold (`Partial`), or is placed in a way of its own.
    """
    if not is_sharded(tensor):
        return whole(tensor.shape)
    mesh = tensor.device_mesh
    cuts = [_cut_of(name, tensor, placement) for placement in tensor.placements]
    order = None
    noted = getattr(getattr(tensor, "_spec", None), "shard_order", None)  # not every torch notes one
    if noted and all(cut is None or cut.split_factor == 1 for cut in cuts):
        order = [int(number) for entry in noted for number in entry.mesh_dims]
    held = tuple(tensor._local_tensor.shape)
    for literally in (False, True):  # strided cuts are nearly always those of FSDP
        made = share(tensor.shape, mesh.shape, mesh.get_coordinate(), cuts, order, literally=literally)
        if made.local == held or not prod(made.local) + prod(held):
            return made
    raise CannotCarry(
        f"{printable(name)} is placed as {_placed(tensor)}, of which this rank should hold {list(made.local)}, "
        f"and it holds {list(held)}"
    )


def _cut_of(name: str, tensor: Any, placement: Any) -> Cut | None:
    if placement.is_replicate():
        return None
    if placement.is_partial():
        raise CannotCarry(
            f"{printable(name)} is a sum of which each rank holds one term ({_placed(tensor)}), and has no values yet",
            hint="tensor.redistribute(placements=[Replicate()]) adds it up",
        )
    dim = getattr(placement, "dim", None)
    if not isinstance(dim, int):
        raise CannotCarry(f"{printable(name)} is placed in a way that ckptool does not know: {_placed(tensor)}")
    return Cut(dim % tensor.ndim if tensor.ndim else dim, int(getattr(placement, "split_factor", 1)))


def _placed(tensor: Any) -> str:
    return ", ".join(printable(str(placement), 60) for placement in tensor.placements)


__all__ = ["Cut", "Share", "Slice", "has_sharded", "identity_of", "is_sharded", "share", "share_of", "whole"]
