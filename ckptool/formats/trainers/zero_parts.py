"""The weights that ZeRO divided among ranks, put together from the flat groups of all ranks, and the optimizer's state.

Stages 1 and 2: each group of parameters is one 1-d tensor, the parameters one after the other, filled up at the end
(and behind each, if `param_alignment_paddings` say so), cut into one part a rank. Stage 3: each parameter is cut into
one part a rank, all of the same size, so that the last may be filled up; a rank's parts stand one after the other.

    optimizer_state_dict
      zero_stage, partition_count, loss_scaler, …
      single_partition_of_fp32_groups      stages 1, 2: a part of each group
      base_optimizer_state                 {state: {group: {exp_avg, exp_avg_sq, step}}, param_groups}
      param_slice_mappings                 [{name: fragment_address(numel, start)}]: what of each is in this rank's part
      fp32_flat_groups                     stage 3: a rank's parts of all parameters
      optimizer_state_dict                 stage 3: {state, param_groups}

Seen in files that DeepSpeed 0.19.8 wrote; names of entries: deepspeed/checkpoint/constants.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ...disk.inside import Folder
from ...dtypes import DType
from ...errors import CannotCarry, Malformed, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import Dict, List
from .flat import Flat, as_tensor, joined
from .pickled import entries_of, flat_tensors, integer, items_of, require_ranks, sizes
from .zero_files import ZeroFiles, require_one_run

Shapes = dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Divided:
    """What the ranks hold together.

    Attributes:
        stage: of ZeRO.
        ranks: how many there are.
        weights: name -> the parameter, as the optimizer keeps it (float32 as a rule).
        states: name -> state ("exp_avg") -> value.
        groups: the optimizer's settings for each group, with the names of its parameters.
        used, padding: elements of the groups that are weights, and that fill them up.
        others: entries of the optimizer beside those, by name.
        left: what of the optimizer could not be told apart by parameters.
        with_states: states are put together; else each is None.
    """

    stage: int
    ranks: int
    weights: dict[str, LazyTensor] = field(default_factory=dict)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: list[Dict] = field(default_factory=list)
    used: int = 0
    padding: int = 0
    others: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    with_states: bool = True


_OTHERS = ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad")


def shapes_in(node: Any, files: ZeroFiles) -> list[Shapes]:
    """What `param_shapes` says: the parameters of each group.

    Raises:
        Malformed: it is none.
    """
    groups = items_of(node)
    if groups is None and isinstance(node, Dict):  # before 0.4, there was one group
        groups = [node]
    found: list[Shapes] = []
    for group in groups or []:
        shapes = {name: sizes(size) for name, size in entries_of(group).items()}
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        if not isinstance(group, Dict) or len(known) != len(group.entries):
            groups = None
            break
        found.append(known)
    if groups is None:
        raise Malformed("says no shapes of its parameters (param_shapes)", where=files.folder.path / files.model[0])
    names = [name for group in found for name in group]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"has {printable(repr(twice), 80)} in two groups", where=files.folder.path / files.model[0])
    return found


def read_divided(files: ZeroFiles, shapes: list[Shapes], *, states: bool = True) -> Divided:
    """Put the parameters together from the optimizer files of all ranks.

    Args:
        files: the files of a save.
        shapes: the parameters of each group.
        states: put those of the optimizer together, too; else they are only named.

    Raises:
        Malformed: a rank is missing, files are of two runs, or the groups do not add up.
    """
    folder = files.folder
    ranks = {rank: _optimizer_of(files, name) for rank, name in files.optimizer.items()}
    stages = {name: integer(ranks[rank].get("zero_stage")) for rank, name in files.optimizer.items()}
    counts = {name: _counts(ranks[rank].get("partition_count")) for rank, name in files.optimizer.items()}
    configs = {name: _config(files.open(name).get("ds_config")) for name in files.optimizer.values()}
    kinds = {"stage": "the stage of ZeRO", "count": "how many ranks there are", "config": "the settings of DeepSpeed"}
    require_one_run(files, {"stage": stages, "count": counts, "config": configs}, kinds)
    first = files.optimizer[min(files.optimizer)]
    stage, count = stages[first], counts[first]
    if stage not in (1, 2, 3) or not count:
        raise Malformed("is not part of a ZeRO checkpoint: it says no stage from 1 to 3", where=folder.path / first)
    if (stage == 3) != files.divided:
        raise Malformed(
            f"says stage {stage}, and the files with the model are those of {'another' if stage == 3 else 'stage 3'}",
            where=folder.path / first,
            evidence=[f"the model is in {printable(files.model[min(files.model)], 80)}"],
            hint="files of two runs lie in this folder; move those of one away",
        )
    world = max(count)
    require_ranks(files.optimizer, world, "the optimizer's state", folder)
    if any(value.get("ds_zero_partition_groups") is not None for value in ranks.values()) or min(count) < world:
        raise CannotCarry(
            "divides some parameters among fewer ranks than others (experts), which ckptool does not put together",
            where=folder.path,
            hint="python -m deepspeed.checkpoint.ds_to_universal makes whole parameters of them, which ckptool reads",
        )
    _require_one_step(files, ranks)
    others = {key: ranks[0][key] for key in _OTHERS if key in ranks[0]}
    made = Divided(stage, world, others=others, with_states=states)
    if stage == 3:
        _from_parameters(made, files, [ranks[rank] for rank in range(world)], shapes)
    else:
        _from_groups(made, files, [ranks[rank] for rank in range(world)], shapes)
    files.require_own_names()
    return made


def _optimizer_of(files: ZeroFiles, name: str) -> dict[str, Any]:
    found = entries_of(files.open(name).get("optimizer_state_dict"))
    if not found:
        raise Malformed("holds no optimizer_state_dict", where=files.folder.path / name)
    return found


#: Settings that are the same on all ranks of a run. Others may name a disk of one machine.
_CONFIG = ("bf16", "fp16", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")


def _config(node: Any) -> str:
    """Those of the settings of DeepSpeed that all ranks of a run have in common, as a text."""
    said = entries_of(node)
    shown = {key: entries_of(said[key]) or said[key] for key in _CONFIG if key in said}
    flat = {
        f"{key} {inner}".strip(): value
        for key, one in shown.items()
        for inner, value in (one.items() if isinstance(one, dict) else [("", one)])
        if isinstance(value, int | float | str)
    }
    return ", ".join(f"{key} {value}" for key, value in sorted(flat.items()))


def _counts(node: Any) -> tuple[int, ...]:
    """The number of ranks for each group; one number stands for all."""
    found = [integer(item) for item in (items_of(node) or [node])]
    return tuple(n for n in found if n is not None and 0 < n < 1 << 24)


def _inner(rank: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The inner optimizer of a rank: the state of each flat group, and the settings of its groups."""
    inner = rank.get("base_optimizer_state", rank.get("optimizer_state_dict"))
    listed = items_of(inner)
    if listed is not None:  # the "elastic" kind
        return [entries_of(one) for one in listed], []
    found = entries_of(inner)
    state, groups = found.get("state"), items_of(found.get("param_groups")) or []
    by_number = {key: entries_of(value) for key, value in state.entries} if isinstance(state, Dict) else {}
    most = max((key for key in by_number if type(key) is int), default=-1)
    return [by_number.get(number, {}) for number in range(min(most, 1 << 20) + 1)], groups


def _require_one_step(files: ZeroFiles, ranks: dict[int, dict[str, Any]]) -> None:
    """Refuse ranks that took different numbers of steps, or learn at different rates."""
    steps: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for rank, name in files.optimizer.items():
        states, groups = _inner(ranks[rank])
        steps[name] = "step " + ", ".join(str(_number(state.get("step"))) for state in states)
        settings[name] = "; ".join(
            f"lr {entries_of(group).get('lr')}, step {_number(entries_of(group).get('step'))}" for group in groups
        )
    kinds = {"steps": "how many steps were taken", "settings": "the settings of the optimizer"}
    require_one_run(files, {"steps": steps, "settings": settings}, kinds)


def _number(node: Any) -> Any:
    """A number, or that of a tensor of one element; None of anything else."""
    tensor = as_dense(node)
    if tensor is not None and tensor.numel == 1 and tensor.dtype.numpy in ("float32", "float64", "int32", "int64"):
        return tensor.numpy().reshape(-1)[0].item()
    return node if isinstance(node, int | float) else None


# -- stages 1 and 2


def _from_groups(made: Divided, files: ZeroFiles, ranks: list[dict[str, Any]], shapes: list[Shapes]) -> None:
    where = files.folder
    parts = [
        _parts(rank, "single_partition_of_fp32_groups", len(shapes), number, files) for number, rank in enumerate(ranks)
    ]
    paddings = _paddings(ranks[0].get("param_alignment_paddings"), shapes, files)
    inner = [_inner(rank) for rank in ranks]
    for g, group in enumerate(shapes):
        flat = Flat([rank[g] for rank in parts])
        _one_type([rank[g] for rank in parts], where)
        wanted = sum(map(prod, group.values())) + sum(paddings[g])
        step = 2 * made.ranks
        # Filled up to a multiple of 2 elements a rank; the last rank leaves off what fills it.
        if wanted - (paddings[g][-1] if paddings[g] else 0) > flat.numel or -(-wanted // step) != -(
            -flat.numel // step
        ):
            raise _no_sum(where, f"group {g}", wanted, flat.numel, f"{counted(len(group), 'parameter')}")
        starts = _placed(group, paddings[g])
        if not any(paddings[g]):
            _check_slices(files, ranks, [rank[g].numel for rank in parts], g, group, starts)
        states = _States(made, files, f"group {g}")
        flats, single = states.of(
            [rank_state[0][g] if g < len(rank_state[0]) else {} for rank_state in inner],
            [rank[g].numel for rank in parts],
        )
        for name, shape in group.items():
            made.weights[name] = flat.tensor(starts[name], shape, name)
            many = {
                key: whole.tensor(starts[name], shape, f"{name}.{key}") if made.with_states else None
                for key, whole in flats.items()
            }
            made.states[name] = many | {key: _alone(value, name, key) for key, value in single.items()}
            made.used += prod(shape)
        made.padding += flat.numel - sum(map(prod, group.values()))
    made.groups = _named_groups(inner[0][1], [list(group) for group in shapes])


def _placed(group: Shapes, paddings: Sequence[int]) -> dict[str, int]:
    """Where each parameter of a group begins."""
    starts: dict[str, int] = {}
    at = 0
    for (name, shape), padding in zip(group.items(), paddings, strict=True):
        starts[name] = at
        at += prod(shape) + padding
    return starts


def _parts(rank: dict[str, Any], entry: str, groups: int | None, number: int, files: ZeroFiles) -> list[LazyTensor]:
    """The flat groups of a rank."""
    found = flat_tensors(rank.get(entry))
    where = files.folder.path / files.optimizer[number]
    if found is None:
        raise Malformed(f"has no {entry}, a list of 1-d tensors", where=where)
    if groups is not None and len(found) != groups:
        raise Malformed(
            f"has {counted(len(found), 'group')} of parameters, and the model's file names {groups:,}", where=where
        )
    return found


def _paddings(node: Any, shapes: list[Shapes], files: ZeroFiles) -> list[list[int]]:
    """Elements that follow each parameter. Older files do not say, and have none."""
    if node is None:
        return [[0] * len(group) for group in shapes]
    found = [[integer(item) for item in items_of(group) or []] for group in items_of(node) or []]
    known = [[n for n in group if n is not None and 0 <= n < 1 << 31] for group in found]
    if [len(group) for group in known] != [len(group) for group in shapes] or known != found:
        where = files.folder.path / files.optimizer[0]
        raise Malformed("has param_alignment_paddings that are not one number a parameter", where=where)
    return known


def _check_slices(
    files: ZeroFiles, ranks: list[dict[str, Any]], lengths: list[int], g: int, group: Shapes, starts: dict[str, int]
) -> None:
    """Hold the places of parameters against what each rank notes of its part (`param_slice_mappings`)."""
    begin = 0
    for number, rank in enumerate(ranks):
        noted = (items_of(rank.get("param_slice_mappings")) or [])[g : g + 1]
        for name, address in entries_of(noted[0]).items() if noted else ():
            said = entries_of(address)
            numel, start = integer(said.get("numel")), integer(said.get("start"))
            if name not in group or numel is None or start is None:
                continue
            low = max(starts[name], begin)
            high = min(starts[name] + prod(group[name]), begin + lengths[number])
            if (low - begin, high - low) != (start, numel):
                raise Malformed(
                    "is not the part that its name says",
                    where=files.folder.path / files.optimizer[number],
                    evidence=[
                        f"it notes {numel:,} elements of {printable(name, 80)}, from its element {start:,} on",
                        f"rank {number:,} has {max(high - low, 0):,} of them, from its element {low - begin:,} on",
                    ],
                    hint="the file of another rank or run has this name; fetch the right one",
                )
        begin += lengths[number]


# -- stage 3


def _from_parameters(made: Divided, files: ZeroFiles, ranks: list[dict[str, Any]], shapes: list[Shapes]) -> None:
    where = files.folder
    every = {name: shape for group in shapes for name, shape in group.items()}
    parts = [_parts(rank, "fp32_flat_groups", None, number, files) for number, rank in enumerate(ranks)]
    flats = [Flat(part) for part in parts]
    each = {name: -(-prod(shape) // made.ranks) for name, shape in every.items()}
    wanted = sum(each.values())
    lengths = [part.numel for part in parts[0]]
    for number, flat in enumerate(flats):
        if flat.numel != wanted or [part.numel for part in parts[number]] != lengths:
            of = f"rank {number:,}, stage 3"
            raise _no_sum(where, of, wanted, flat.numel, f"{counted(len(every), 'parameter')}, a part of each")
    _require_no_copies(files, parts)
    dtype = _one_type([part for rank in parts for part in rank], where)
    inner = [_inner(rank) for rank in ranks]
    starts: dict[str, int] = {}
    at = 0
    for name, numel in each.items():
        starts[name] = at
        at += numel
    homes = _homes(starts, lengths)
    flat_states, single = [], []
    for number in range(made.ranks):
        states = _States(made, files, f"rank {number:,}")
        found = [
            states.of([state], [length], filled=False)
            for state, length in zip(_filled(inner[number][0], lengths), lengths, strict=True)
        ]
        every_key = dict.fromkeys(key for one in found for key in one[0])
        names = [key for key in every_key if all(key in one[0] for one in found)]
        made.left += [f"{key} of some groups of rank {number:,}" for key in every_key if key not in names]
        flat_states.append(
            {key: Flat([part for one in found for part in one[0][key].parts], found[0][0][key].dtype) for key in names}
        )
        single.append([one[1] for one in found])
    common = [key for key in flat_states[0] if all(key in one for one in flat_states)]
    made.left += [
        f"{key} of some ranks" for key in dict.fromkeys(k for one in flat_states for k in one) if key not in common
    ]
    for name, shape in every.items():
        pieces = [*_pieces(flats, starts[name], each[name], prod(shape))]
        made.weights[name] = joined(pieces, dtype, shape, name)
        made.states[name] = {}
        for key in common:
            made.states[name][key] = None
            if made.with_states:
                held = [one[key] for one in flat_states]
                values = [*_pieces(held, starts[name], each[name], prod(shape))]
                made.states[name][key] = joined(values, held[0].dtype, shape, f"{name}.{key}")
        made.states[name] |= {key: _alone(v, name, key) for key, v in single[0][homes[name]].items()} if lengths else {}
        made.used += prod(shape)
        made.padding += each[name] * made.ranks - prod(shape)
    made.groups = _named_groups(
        inner[0][1], [[name for name in every if homes[name] == number] for number in range(len(lengths))]
    )


def _require_no_copies(files: ZeroFiles, parts: list[list[LazyTensor]]) -> None:
    """Refuse the file of one rank under the name of another: at stage 3 nothing in it tells whose it is.

    Two ranks with the same checksums of all parts are compared; weights of one value alone may be the same.
    """
    known: dict[tuple[int | None, ...], int] = {}
    for number, held in enumerate(parts):
        filled = [part for part in held if part.numel]
        key = tuple(part.storage.crc for part in filled)
        if not filled or None in key or known.setdefault(key, number) == number:
            continue
        first = bytes(filled[0].source().read(0, filled[0].dtype.itemsize))
        if all(
            bytes(chunk) == first * (len(chunk) // len(first)) for part in filled for chunk in part.source().chunks()
        ):
            continue
        names = [files.optimizer[known[key]], files.optimizer[number]]
        raise Malformed(
            f"holds the same values for the ranks {known[key]:,} and {number:,}",
            where=files.folder.path,
            evidence=[printable(name, 80) for name in names],
            hint="one is a copy of the other under another name; fetch the right one",
        )


def _filled(states: list[dict[str, Any]], lengths: list[int]) -> list[dict[str, Any]]:
    return [*states[: len(lengths)], *({} for _ in range(len(lengths) - len(states)))]


def _pieces(flats: Sequence[Flat], start: int, each: int, numel: int) -> Iterable[LazyTensor]:
    """The parts of a parameter on all ranks, without what fills up the last ones."""
    for number, flat in enumerate(flats):
        yield from flat.cut(start, max(0, min(each, numel - number * each)))


def _homes(starts: dict[str, int], lengths: list[int]) -> dict[str, int]:
    """Which of a rank's flat groups each parameter begins in."""
    homes: dict[str, int] = {}
    number, end = 0, lengths[0] if lengths else 0
    for name, start in starts.items():
        while start >= end and number + 1 < len(lengths):
            number += 1
            end += lengths[number]
        homes[name] = number
    return homes


# -- both


class _States:
    """What the optimizer keeps for the elements of a flat group, on every rank."""

    def __init__(self, made: Divided, files: ZeroFiles, of: str) -> None:
        self.made = made
        self.files = files
        self.what = of

    def of(
        self, states: list[dict[str, Any]], lengths: list[int], *, filled: bool = True
    ) -> tuple[dict[str, Flat], dict[str, Any]]:
        """(state -> its elements on all ranks, state -> one value for the group).

        FILLED: a tensor may be longer than the weights of the last rank, which leaves off what fills it up.
        """
        flats: dict[str, Flat] = {}
        single: dict[str, Any] = {}
        for key in dict.fromkeys(key for state in states for key in state):
            values = [as_dense(state.get(key)) for state in states]
            dense = [value for value in values if value is not None and len(value.shape) == 1]
            if len(dense) == len(states) and len({value.dtype for value in dense}) == 1:
                fits = [v.numel == n for v, n in zip(dense, lengths, strict=True)]
                fits[-1] |= filled and dense[-1].numel > lengths[-1]
                if all(fits):
                    trimmed = [replace(v, shape=(n,)) for v, n in zip(dense, lengths, strict=True)]
                    flats[key] = Flat(trimmed)
                    continue
            lone = values[0]
            if lone is None and key in states[0] and isinstance(states[0][key], int | float | str | None):
                single[key] = states[0][key]
            elif lone is not None and lone.shape == ():
                single[key] = lone
            else:
                self.made.left.append(
                    f"{printable(str(key), 40)} of {self.what}, which is not a value for each element"
                )
        return flats, single


def _alone(value: Any, name: str, key: str) -> Any:
    """A value of a group for one of its parameters: a tensor of its own, since training counts it up in place."""
    if not isinstance(value, LazyTensor):
        return value
    return as_tensor(value.source(), value.dtype, value.shape, f"{name}.{key}")


def _named_groups(groups: list[Any], names: list[list[str]]) -> list[Dict]:
    """The settings of groups, with the names of parameters in place of the numbers of flat groups."""
    made = []
    for group in groups:
        entries = group.entries if isinstance(group, Dict) else []
        numbers = [integer(item) for item in items_of(group.get("params")) or []] if entries else []
        held = [name for n in numbers if n is not None and 0 <= n < len(names) for name in names[n]]
        made.append(Dict([(key, List(list(held)) if key == "params" else value) for key, value in entries]))
    return made


def _one_type(parts: list[LazyTensor], folder: Folder) -> DType:
    kinds = {part.dtype for part in parts if part.numel} or {part.dtype for part in parts}
    if len(kinds) != 1:
        shown = ", ".join(sorted(kind.name for kind in kinds))
        raise Malformed(f"keeps parts of one group in several types: {shown}", where=folder.path)
    return kinds.pop()


def _no_sum(folder: Folder, of: str, wanted: int, there: int, parameters: str) -> Malformed:
    return Malformed(
        f"the parts of {of} do not add up: they hold {there:,} elements, and its parameters need {wanted:,}",
        where=folder.path,
        evidence=[f"the model's file names {parameters}"],
        hint="with offloading to NVMe the values are in a folder beside; else a file is of another run",
    )
