"""What Megatron's optimizer keeps, by the names of parameters: in the rank's file, or in distrib_optim.pt beside it.

    optimizer              {optimizer: {state: {N: {exp_avg, exp_avg_sq, step}}, param_groups}, fp32_from_fp16_params,
                            grad_scaler}; of a run in fp32 the inner dict alone; of expert parallelism a list of two
    distrib_optim.pt       {0: {(type, type): {param, exp_avg, exp_avg_sq, numel_unpadded}}, buckets_coalesced}, of each
                            chunk of layers; of expert parallelism a list of two

The first counts parameters: group after group, in each in the order of the model. Groups differ in `wd_mult` (0 for
what has one dimension, and biases) and `is_expert_parallel`. The second has all parameters in one tensor, the last one
first, each at a multiple of 64 elements of its bucket; no file says where a bucket ends. Neither has names. They are
taken where counts and sizes agree, and where the float32 weights that are kept beside the states, rounded to the type
of the model, are the weights of the model: so names are shown to be right. A plain optimizer in fp32 keeps none.

The result has them as Megatron's distributed format does: name -> exp_avg, exp_avg_sq, step, fp32_param.

Seen in what get_megatron_optimizer of megatron-core 0.16.1 gives; how megatron.training puts it into files: layout from
source, never seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...disk.files import File
from ...disk.inside import Folder
from ...errors import CannotCarry, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor, contiguous_stride
from ...tree import Dict, List
from .accounts import Account
from .flat import as_tensor, rounds_to
from .megatron_parts import Joining, Place, has_thirds
from .pickled import entries_of, integer, items_of, open_part
from .plan import Plan

_ALIGNED = 64
_MASTER = "fp32_param"
#: What the distributed optimizer calls the weights.
_PARAM = "param"
#: In the optimizer of mixed precision: the plain one within, and what both hold for each parameter.
_INNER = "optimizer"
_STATES = ("state", "fp32_from_fp16_params")
_DEEPEST = 4

Name = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Rank:
    """What the file of one rank holds.

    Attributes:
        name: of its folder.
        entries: of its file.
        chunks: name -> value of its weights, for each of its chunks of layers.
        optimizer: the optimizer's state in its file, or None.
        file: that of the distributed optimizer, or None.
    """

    name: str
    entries: dict[str, Any]
    chunks: list[dict[str, Any]]
    optimizer: Any
    file: File | None


@dataclass(slots=True)
class _Kept:
    """What the optimizer of one rank keeps.

    Attributes:
        states: (chunk, name on this rank) -> state -> value.
        groups: its settings, with the names of parameters where they are known.
        filling: elements that belong to no parameter.
        without_rest: it has the experts alone.
    """

    states: dict[Name, dict[str, Any]] = field(default_factory=dict)
    groups: list[tuple[Dict, list[Name]]] = field(default_factory=list)
    filling: int = 0
    without_rest: bool = False


def joined_states(ranks: Mapping[Place, Rank], folder: Folder, plan: Plan, account: Account) -> tuple[Dict, list[str]]:
    """({state: {name: {…}}, param_groups}, lines for the receipt) of the optimizers of all ranks.

    Raises:
        CannotCarry: what is kept cannot be told to be of which parameter.
    """
    kept = {place: _kept(rank, account) for place, rank in ranks.items()}
    for place, one in kept.items():  # what is no expert is in the file of the first expert-parallel rank alone
        if one.without_rest:
            first = kept[Place(place.stage, place.tensor, 0)].states
            one.states |= {name: values for name, values in first.items() if not _is_expert(name)}
    keys = dict.fromkeys(key for one in kept.values() for values in one.states.values() for key in values)
    found: dict[str, dict[str, Any]] = {}
    used = repeated = 0
    for key in keys:
        models: dict[Place, list[dict[str, Any]]] = {}
        alone: dict[Place, list[dict[str, Any]]] = {}
        for place, rank in ranks.items():
            of_chunks: list[dict[str, Any]] = [{} for _ in rank.chunks]
            for chunk, weights in enumerate(rank.chunks):
                for name in weights:
                    if (values := kept[place].states.get((chunk, name))) is not None and key in values:
                        of_chunks[chunk][name] = values[key]
            models[place] = [{n: v for n, v in one.items() if as_dense(v) is not None} for one in of_chunks]
            alone[place] = [{n: v for n, v in one.items() if as_dense(v) is None} for one in of_chunks]
        if any(any(one) for one in alone.values()):
            raise CannotCarry(f"the optimizer's {printable(repr(key), 40)} is not a tensor", where=folder.path)
        joining = Joining(folder, plan, has_thirds(ranks[min(ranks)].entries))
        joining.join(models)
        for name, value in joining.entries.items():
            own = value if value.shape else as_tensor(value.source(), value.dtype, (), f"{name}.{key}")
            found.setdefault(name, {})[key] = own
        used += joining.used
        repeated += joining.repeated
    groups = [Dict([(k, v) for k, v in group.entries if k != "params"]) for group, _ in kept[min(kept)].groups]
    filling = sum(one.filling for one in kept.values())
    lines = [
        f"the optimizer's states of {counted(len(found), 'parameter')}: {counted(used, 'element')} under the names of "
        f"the weights; left behind: {repeated:,} that other ranks hold as well, {filling:,} of padding",
        "param_groups are those of the first rank, without the numbers of its parameters",
    ]
    if _MASTER not in keys:
        lines.append("the names of states follow from the order of parameters; no float32 copies of weights prove them")
    states = Dict([(name, Dict(list(values.items()))) for name, values in found.items()])
    others = settings_of(ranks[min(ranks)].optimizer, without=("param_groups",))
    return Dict([("state", states), ("param_groups", List(groups)), *others]), lines


def settings_of(node: Any, without: tuple[str, ...] = (), depth: int = 0) -> list[tuple[Any, Any]]:
    """The entries that Megatron's optimizer has beside its states and float32 weights: param_groups, grad_scaler, ….

    Those of the optimizer within are among them. Several optimizers, in a list or by numbers, keep theirs in a dict
    each, under their numbers.

    Args:
        node: the entry `optimizer` of a file.
        without: entries that are left out, of all optimizers.
        depth: how many optimizers are around this one.
    """
    if (items := items_of(node)) is not None:
        node = Dict(list(enumerate(items)))
    if not isinstance(node, Dict) or depth > _DEEPEST:
        return []
    found: dict[Any, Any] = {}
    for key, value in node.entries:
        if key == _INNER or type(key) is int:
            inner = settings_of(value, without, depth + 1)
            found |= dict(inner) if key == _INNER else {key: Dict(inner)} if inner else {}
    return list(
        (found | {k: v for k, v in node.entries if k not in (_INNER, *_STATES, *without) and k not in found}).items()
    )


def _kept(rank: Rank, account: Account) -> _Kept:
    """What one rank's optimizer keeps, by the names that its weights have on this rank."""
    weights = {
        (chunk, name): tensor
        for chunk, held in enumerate(rank.chunks)
        for name, value in held.items()
        if (tensor := as_dense(value)) is not None and tensor.dtype.name.startswith(("float", "bfloat"))
    }
    listed = items_of(rank.optimizer)
    parts = [rank.optimizer] if listed is None else listed
    kept = _Kept()
    named = 0
    inners = [(node, entries_of(node.get("optimizer")) or node) for node in map(entries_of, parts)]
    of_all = [[g for g in items_of(inner.get("param_groups")) or [] if isinstance(g, Dict)] for _, inner in inners]
    by_experts = any(entries_of(g).get("is_expert_parallel") is True for groups in of_all for g in groups)
    for (node, inner), groups in zip(inners, of_all, strict=True):
        if isinstance(inner.get("state"), Dict) and groups:
            masters = node.get("fp32_from_fp16_params")
            _plain(kept, rank, weights, inner, groups, masters, by_experts=by_experts)
            named += 1
        else:
            kept.groups += [(group, []) for group in groups]
    if rank.file is not None:
        if named:
            raise _unknown(rank, "its file and distrib_optim.pt both hold states")
        part = open_part(rank.file)
        account.hold([part])
        _distributed(kept, rank, weights, part.root)
    if not kept.states:
        raise _unknown(rank, "no states are there")
    return kept


def _unknown(rank: Rank, why: str) -> CannotCarry:
    return CannotCarry(
        f"the optimizer's states of {printable(rank.name, 60)} cannot be told to be of which parameter: {why}",
        hint="without --with-optimizer, the weights are read",
    )


# -- in the rank's file


def _plain(
    kept: _Kept,
    rank: Rank,
    weights: dict[Name, LazyTensor],
    inner: dict[str, Any],
    groups: list[Dict],
    masters: Any,
    *,
    by_experts: bool,
) -> None:
    by_number = {key: entries_of(value) for key, value in inner["state"].entries if type(key) is int}
    of_groups = items_of(masters)
    for index, group in enumerate(groups):
        said = entries_of(group)
        numbers = [integer(item) for item in items_of(said.get("params")) or []]
        names = list(_members(rank, said, [entries_of(one) for one in groups], weights, by_experts=by_experts))
        if len(names) != len(numbers) or None in numbers:
            raise _unknown(
                rank, f"group {index} has {len(numbers):,}, and the model has {len(names):,} such parameters"
            )
        kept.groups.append((group, names))
        in_float32 = items_of(of_groups[index]) if of_groups is not None and index < len(of_groups) else None
        if in_float32 is not None and len(in_float32) != len(names) and in_float32:
            raise _unknown(rank, f"group {index} has {len(in_float32):,} float32 weights of {len(names):,} parameters")
        for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
            values = dict(by_number.get(number or 0, {}))
            if in_float32:
                values[_MASTER] = in_float32[place]
            _require_same(rank, weights[name], values, name)
            if values:
                kept.states[name] = values
    known = {integer(item) for group in groups for item in items_of(entries_of(group).get("params")) or []}
    if unknown := [printable(str(key), 40) for key, _ in inner["state"].entries if key not in known]:
        raise _unknown(rank, f"its states have {', '.join(unknown[:4])}, which no group has")


def _members(
    rank: Rank,
    group: dict[str, Any],
    groups: list[dict[str, Any]],
    weights: dict[Name, LazyTensor],
    *,
    by_experts: bool,
) -> Iterator[Name]:
    """The parameters of a group, in the order in which the optimizer counts them."""
    if any(one.get("is_decoupled_lr") is True for one in groups):
        raise _unknown(rank, "embeddings have a learning rate of their own, and no file says which parameters that are")
    decays = {one.get("wd_mult") for one in groups}
    if not decays <= {0.0, 1.0}:
        raise _unknown(rank, f"groups have wd_mult {sorted(map(str, decays))}")
    for name, tensor in weights.items():
        plain = len(tensor.shape) == 1 or name[1].endswith(".bias")
        if len(decays) > 1 and plain != (group.get("wd_mult") == 0.0):
            continue
        if by_experts and _is_expert(name) != (group.get("is_expert_parallel") is True):
            continue
        yield name


def _is_expert(name: Name) -> bool:
    return ".experts." in name[1]


def _require_same(rank: Rank, weight: LazyTensor, values: dict[str, Any], name: Name) -> None:
    """Refuse states of other sizes than the weight, and float32 weights that are not those of the model."""
    for key, value in values.items():
        tensor = as_dense(value)
        if tensor is not None and tensor.shape not in ((), weight.shape):
            raise _unknown(
                rank,
                f"{printable(str(key), 40)} of {printable(name[1], 80)} is {list(tensor.shape)}, and the weight is "
                f"{list(weight.shape)}",
            )
    master = as_dense(values.get(_MASTER))
    if master is not None and not rounds_to(master, weight):
        raise _unknown(rank, f"the float32 values that would be {printable(name[1], 80)} are not those of the model")


# -- the distributed optimizer


def _distributed(kept: _Kept, rank: Rank, weights: dict[Name, LazyTensor], root: Any) -> None:
    parts = items_of(root)
    optimizers = [root] if parts is None else parts
    for number, part in enumerate(optimizers):
        if part is None and number == 0 and len(optimizers) == 2:
            kept.without_rest = True
            continue
        if not isinstance(part, Dict):
            raise _unknown(rank, "distrib_optim.pt is not what Megatron writes")
        for chunk, held in part.entries:
            if type(chunk) is not int or not isinstance(held, Dict):
                continue
            if len(held.entries) != 1:
                raise _unknown(rank, f"distrib_optim.pt has {len(held.entries)} buffers of one chunk of layers")
            tensors = entries_of(held.entries[0][1])
            flats = {key: tensor for key, value in tensors.items() if (tensor := as_dense(value)) is not None}
            names = [
                name
                for name in weights
                if name[0] == chunk and (len(optimizers) == 1 or _is_expert(name) == (number == 1))
            ]
            _unpack(kept, rank, {name: weights[name] for name in names}, flats)


def _unpack(kept: _Kept, rank: Rank, weights: dict[Name, LazyTensor], flats: dict[str, LazyTensor]) -> None:
    """Cut the tensors of one chunk of layers into those of its parameters."""
    master = flats.get(_PARAM)
    if master is None or any(len(flat.shape) != 1 or flat.shape != master.shape for flat in flats.values()):
        raise _unknown(rank, "distrib_optim.pt does not hold 1-d tensors of one length")
    at = bucket = 0
    used = 0
    for name, weight in reversed(weights.items()):
        aligned = bucket + -(-(at - bucket) // _ALIGNED) * _ALIGNED
        for start in dict.fromkeys((aligned, at)):
            if start + weight.numel <= master.numel and rounds_to(_cut(master, start, weight.shape), weight):
                break
        else:
            raise _unknown(rank, f"no float32 values in distrib_optim.pt are those of {printable(name[1], 80)}")
        if start != aligned:
            bucket = start
        kept.states[name] = {
            _MASTER if key == _PARAM else key: _own(flat, start, weight.shape, f"{name[1]}.{key}")
            for key, flat in flats.items()
        }
        at = start + weight.numel
        used += weight.numel
    if at != master.numel:
        raise _unknown(rank, f"distrib_optim.pt has {master.numel:,} elements, and the parameters end at {at:,}")
    kept.filling += (master.numel - used) * len(flats)


def _cut(flat: LazyTensor, start: int, shape: tuple[int, ...]) -> LazyTensor:
    return flat.changed(shape=shape, stride=contiguous_stride(shape), offset=flat.offset + start * flat.stride[0])


def _own(flat: LazyTensor, start: int, shape: tuple[int, ...], name: str) -> LazyTensor:
    """A range of a flat tensor as a tensor with a storage of its own."""
    assert prod(shape) + start <= flat.numel
    return as_tensor(_cut(flat, start, shape).source(), flat.dtype, shape, name)
