"""What part of a tensor a rank holds: DTensor and ShardedTensor, from what the file says of their placement.

A DTensor lies on a mesh of ranks. Each dimension of the mesh divides one dimension of the tensor (`Shard`), or repeats
it (`Replicate`). Where several divide the same one, they do so one after the other; `_StridedShard` comes after those
that follow it (FSDP over tensor parallelism: the latter cuts first). Each cuts into pieces of ceil(size / ranks) rows,
so that the last may be shorter or empty. A ShardedTensor notes offsets and sizes of its pieces itself.

    _spec  DTensorSpec {mesh: DeviceMesh, placements, tensor_meta: (shape, stride, dtype), shard_order}
    mesh   {_layout: sizes, _rank, _coordinate_on_dim, _flatten_rank_map}, before 2.9 {mesh: the ranks, as a tensor}

Seen in files of torch 2.13; `mesh` as a tensor: torch/distributed/device_mesh.py of 2.4, layout from source.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ...dtypes import DType
from ...errors import CannotCarry, Malformed
from ...inert.other_tensors import as_dense, other_tensor
from ...records import record
from ...tensor import LazyTensor
from ...tree import Dict, List, Object, holds_tensors_alone
from .pickled import entries_of, integer, items_of, sizes

_SHARDED = ".ShardedTensor"
_DTENSOR = ".DTensor"


@record(frozen=True, slots=True)
class Part:
    """What one rank holds of a tensor.

    Attributes:
        shape, dtype: of the whole.
        rank: whose it is, or None if the file does not tell.
        ranks: all that hold parts of the whole, or () if the file does not tell.
        boxes: (offsets, values) of what the rank holds.
        divided: it is not the whole.
        requires_grad: as it was saved.
    """

    shape: tuple[int, ...]
    dtype: DType
    rank: int | None
    ranks: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], LazyTensor], ...]
    divided: bool
    requires_grad: bool


def is_placed(node: Any) -> bool:
    """Whether a node is a tensor of which each rank holds a part."""
    other = other_tensor(node) if isinstance(node, Object) else None
    return other is not None and other.class_name.endswith((_DTENSOR, _SHARDED))


def part_of(node: Any) -> Part:
    """What a rank holds of a DTensor or ShardedTensor.

    Raises:
        CannotCarry: it is divided in a way that is not known.
        Malformed: what the file says of it does not fit together.
    """
    other = other_tensor(node)
    assert other is not None
    assert other.dtype is not None
    state = node.args[3]
    if other.class_name.endswith(_SHARDED):
        return _sharded(state, other.shape, other.dtype, requires_grad=other.requires_grad)
    for entries in state if isinstance(state, tuple) else (state,):
        spec = entries.get("_spec") if isinstance(entries, Dict) else None
        if spec is not None:
            local = other.parts.get("_local_tensor")
            return _placed(spec, local, other.shape, other.dtype, requires_grad=other.requires_grad)
    raise Malformed("a DTensor says nothing of its placement")


def _sharded(state: Any, shape: tuple[int, ...], dtype: DType, *, requires_grad: bool) -> Part:
    parts = list(state) if isinstance(state, tuple) else []
    shards = items_of(parts[0]) if parts else None
    group = entries_of(parts[2]) if len(parts) > 2 else {}
    if shards is None:
        raise Malformed("a ShardedTensor holds no list of shards")
    boxes = []
    for shard in shards:
        held = _slots(shard)
        values, noted = as_dense(held.get("tensor")), _slots(held.get("metadata"))
        offsets = _integers(noted.get("shard_offsets"))
        if values is None or offsets is None or _integers(noted.get("shard_sizes")) != values.shape:
            raise Malformed("a shard of a ShardedTensor does not have the sizes that it notes")
        if values.dtype != dtype:
            raise Malformed(f"a shard of a {dtype} tensor is {values.dtype}")
        boxes.append((offsets, values))
    divided = [values.shape for _, values in boxes] != [shape]
    world = integer(group.get("global_world_size")) or 0
    ranks = tuple(range(world)) if world < 1 << 20 else ()
    return Part(shape, dtype, integer(group.get("global_rank")), ranks, tuple(boxes), divided, requires_grad)


def _slots(node: Any) -> dict[str, Any]:
    """The attributes of an object with or without slots."""
    state = node.state if isinstance(node, Object) else None
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, Dict):
            return entries_of(part)
    return {}


def _integers(node: Any) -> tuple[int, ...] | None:
    found = items_of(node)
    return None if found is None else sizes(tuple(found))


def _placed(spec: Any, local: LazyTensor | None, shape: tuple[int, ...], dtype: DType, *, requires_grad: bool) -> Part:
    said = entries_of(spec)
    mesh = entries_of(said.get("mesh"))
    degrees, ranks = _mesh(mesh)
    rank = integer(mesh.get("_rank"))
    place = _integers(mesh.get("_coordinate_on_dim"))
    if place is None and rank in ranks:
        index, found = ranks.index(rank), []
        for degree in reversed(degrees):
            found.append(index % degree)
            index //= degree
        place = tuple(reversed(found))
    if place is None or len(place) != len(degrees) or any(a >= b for a, b in zip(place, degrees, strict=True)):
        raise Malformed("a DTensor does not say where on its mesh the rank is")
    if rank is None and ranks:
        flat = 0
        for at, degree in zip(place, degrees, strict=True):
            flat = flat * degree + at
        rank = ranks[flat]
    placements = items_of(said.get("placements"))
    if placements is None or len(placements) != len(degrees) or local is None:
        raise Malformed("a DTensor has no local tensor, or not one placement for each dimension of its mesh")
    start, size = [0] * len(shape), list(shape)
    for dim, cutting in _order(placements, degrees, said).items():
        if not 0 <= dim < len(shape):
            raise Malformed(f"a DTensor of {list(shape)} is divided along dimension {dim}")
        for axis in cutting:
            each = -(-size[dim] // degrees[axis])
            begin = min(each * place[axis], size[dim])
            start[dim] += begin
            size[dim] = min(each, size[dim] - begin)
    if local.shape != tuple(size):
        raise CannotCarry(
            f"a DTensor of {list(shape)} has a part of {list(local.shape)} on the mesh place {list(place)}, where "
            f"equal pieces would be {size}: it is divided in a way that is not known"
        )
    if local.dtype != dtype:
        raise Malformed(f"the local part of a {dtype} DTensor is {local.dtype}")
    divided = local.shape != shape
    return Part(shape, dtype, rank, ranks, ((tuple(start), local),), divided, requires_grad)


def _mesh(mesh: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sizes of a mesh, its ranks in C order or () if they are not told)."""
    layout = entries_of(mesh.get("_layout"))
    listed = as_dense(mesh.get("mesh"))
    degrees: tuple[int, ...] | None = None
    found: list[tuple[int, ...] | None]
    if listed is not None:
        degrees = listed.shape
    elif (axes := items_of(layout.get("axes"))) is not None:
        found = [_integers(entries_of(axis).get("shape")) for axis in axes]
        degrees = tuple(prod(one) for one in found if one is not None) if None not in found else None
    elif layout:
        shape = layout.get("shape")
        degrees = (shape,) if type(shape) is int else _integers(shape)
    if degrees is None or not degrees or min(degrees) < 1 or prod(degrees) > 1 << 20:
        raise Malformed("a DTensor has no mesh that is known")
    if listed is not None and listed.numel <= 1 << 20 and listed.dtype.numpy:
        return degrees, tuple(int(n) for n in listed.numpy().reshape(-1))
    flat = _integers(mesh.get("_flatten_rank_map"))
    strides = [_integers(entries_of(axis).get("stride")) for axis in items_of(layout.get("axes")) or []]
    if flat is None or len(strides) != len(degrees) or any(one is None or len(one) != 1 for one in strides):
        return degrees, flat if flat is not None and len(flat) == prod(degrees) else ()
    return degrees, _among(flat, degrees, [one[0] for one in strides if one], mesh)


def _among(
    flat: tuple[int, ...], degrees: tuple[int, ...], strides: list[int], mesh: dict[str, Any]
) -> tuple[int, ...]:
    """The ranks of a mesh that may be one dimension of a larger one: those in line with this rank."""
    place, rank = _integers(mesh.get("_coordinate_on_dim")), integer(mesh.get("_rank"))
    if place is None or len(place) != len(degrees) or rank not in flat:
        return ()
    base = flat.index(rank) - sum(at * step for at, step in zip(place, strides, strict=True))
    places = [base]
    for degree, step in zip(degrees, strides, strict=True):
        places = [at + n * step for at in places for n in range(degree)]
    return tuple(flat[at] for at in places) if all(0 <= at < len(flat) for at in places) else ()


def _order(placements: list[Any], degrees: tuple[int, ...], said: dict[str, Any]) -> dict[int, list[int]]:
    """Tensor dimension -> the dimensions of the mesh that divide it, in the order in which they do."""
    cutting: dict[int, list[int]] = {}
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        kind = placement.class_name.rpartition(".")[2] if isinstance(placement, Object) else "?"
        if kind == "Replicate":
            continue
        dim = integer(entries_of(placement).get("dim"))
        if kind not in ("Shard", "_StridedShard") or dim is None:
            raise CannotCarry(f"a DTensor is placed in a way that no single rank can undo ({kind})")
        after = cutting.setdefault(dim, [])
        if kind == "Shard":
            after.insert(0, axis)
            continue
        factor = integer(entries_of(placement).get("split_factor"))
        told = said.get("use_strided_shard_as_shard_order")
        if factor != prod(degrees[one] for one in after) or told is False:
            raise CannotCarry(f"a DTensor has interleaved pieces (_StridedShard with split factor {factor})")
        after.append(axis)
    noted: dict[int, list[int]] = {}
    for entry in items_of(said.get("shard_order")) or []:
        values = list(entry.args) if isinstance(entry, Object) and isinstance(entry.args, tuple) else []
        axes = _integers(values[1]) if len(values) == 2 else None
        if axes is None or type(values[0]) is not int:
            raise CannotCarry("a DTensor notes an order of its pieces that is not known")
        noted[values[0]] = list(axes)
    if noted and {dim: sorted(axes) for dim, axes in noted.items()} != {d: sorted(a) for d, a in cutting.items()}:
        raise Malformed("a DTensor notes an order of its pieces that its placements do not have")
    return noted or cutting


def placed_in(root: Any) -> Iterator[Object]:
    """The tensors below ROOT of which each rank holds a part, going by the names of their classes."""
    pending = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Dict):
            if not holds_tensors_alone(node):
                pending += [value for _, value in reversed(node.entries)]
        elif isinstance(node, List):
            pending += reversed(node.items)
        elif isinstance(node, Object) and is_placed(node):
            yield node
