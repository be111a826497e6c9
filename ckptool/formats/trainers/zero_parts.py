"""The weights that ZeRO divided among ranks, put together from the flat groups of all ranks, and the optimizer's state.

Stages 1 and 2: each group of parameters is one 1-d tensor, the parameters one after the other, filled up at the end
(and behind each, if `param_alignment_paddings` say so), cut into one part a rank; groups of experts are divided among
teams of ranks (`zero_experts`). Stage 3: each parameter is cut into one part a rank, all of the same size, so that the
last may be filled up; a rank's parts stand one after the other.

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
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...disk.inside import Folder
from ...dtypes import DType
from ...errors import CannotCarry, Malformed, counted, printable
from ...tensor import LazyTensor
from ...tree import Dict
from .flat import Flat, joined
from .pickled import entries_of, flat_tensors, integer, items_of, require_ranks, sizes
from .zero_experts import names_in_model, teams_of
from .zero_files import ZeroFiles, require_one_run
from .zero_states import States, alone, inner_of, named_groups, require_one_step

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


#: Entries of an optimizer's file that are neither states nor settings of groups, and belong to the run.
OTHERS = ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad")


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
    if any(value.get("ds_zero_partition_groups") is not None for value in ranks.values()) or (
        min(count) < world and (stage == 3 or len(count) != len(shapes))
    ):
        raise CannotCarry(
            "divides some parameters among fewer ranks than others in a way that ckptool does not put together",
            where=folder.path,
            hint="python -m deepspeed.checkpoint.ds_to_universal makes whole parameters of them, which ckptool reads",
        )
    require_one_step(files, ranks)
    others = {key: ranks[0][key] for key in OTHERS if key in ranks[0]}
    made = Divided(stage, world, others=others, with_states=states)
    if stage == 3:
        _from_parameters(made, files, [ranks[rank] for rank in range(world)], shapes)
    else:
        config = files.open(first).get("ds_config")
        teams = [
            teams_of(world, size, config) for size in (count if len(count) == len(shapes) else count * len(shapes))
        ]
        _from_groups(made, files, [ranks[rank] for rank in range(world)], shapes, teams)
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


# -- stages 1 and 2


def _from_groups(
    made: Divided, files: ZeroFiles, ranks: list[dict[str, Any]], shapes: list[Shapes], teams: list[list[range]]
) -> None:
    """TEAMS: for each group, the ranks among which it was divided; of experts each team has its own."""
    parts = [
        _parts(rank, "single_partition_of_fp32_groups", len(shapes), number, files) for number, rank in enumerate(ranks)
    ]
    paddings = _paddings(ranks[0].get("param_alignment_paddings"), shapes, files)
    inner = [inner_of(rank) for rank in ranks]
    held: list[list[str]] = []
    for g, group in enumerate(shapes):
        held.append([])
        for number, team in enumerate(teams[g]):
            names = names_in_model(group, number, len(teams[g]))
            of = f"group {g}" + (f" of the ranks {', '.join(map(str, team))}" if len(teams[g]) > 1 else "")
            flat = _flat_group(files, ranks, g, group, paddings[g], team, [parts[rank][g] for rank in team], of)
            states = States(made.left, of)
            flats, single = states.of(
                [inner[rank][0][g] if g < len(inner[rank][0]) else {} for rank in team],
                [parts[rank][g].numel for rank in team],
            )
            for local, start in _placed(group, paddings[g]).items():
                name, shape = names[local], group[local]
                made.weights[name] = flat.tensor(start, shape, name)
                many = {
                    key: whole.tensor(start, shape, f"{name}.{key}") if made.with_states else None
                    for key, whole in flats.items()
                }
                made.states[name] = many | {key: alone(value, name, key) for key, value in single.items()}
                made.used += prod(shape)
            made.padding += flat.numel - sum(map(prod, group.values()))
            held[g] += names.values()
    made.groups = named_groups(inner[0][1], held)


def _flat_group(
    files: ZeroFiles,
    ranks: list[dict[str, Any]],
    g: int,
    group: Shapes,
    paddings: list[int],
    team: range,
    parts: list[LazyTensor],
    of: str,
) -> Flat:
    """The elements of group G on the ranks of a TEAM, held against what they say of it."""
    _one_type(parts, files.folder)
    flat = Flat(parts)
    wanted = sum(map(prod, group.values())) + sum(paddings)
    step = 2 * len(team)
    # Filled up to a multiple of 2 elements a rank; the last rank leaves off what fills it.
    if wanted - (paddings[-1] if paddings else 0) > flat.numel or -(-wanted // step) != -(-flat.numel // step):
        raise _no_sum(files.folder, of, wanted, flat.numel, f"{counted(len(group), 'parameter')}")
    if not any(paddings):
        lengths = [part.numel for part in parts]
        _check_slices(files, {rank: ranks[rank] for rank in team}, lengths, g, group, _placed(group, paddings))
    return flat


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
    files: ZeroFiles,
    ranks: dict[int, dict[str, Any]],
    lengths: list[int],
    g: int,
    group: Shapes,
    starts: dict[str, int],
) -> None:
    """Hold the places of parameters against what each rank notes of its part (`param_slice_mappings`)."""
    begin = 0
    for (number, rank), length in zip(ranks.items(), lengths, strict=True):
        noted = (items_of(rank.get("param_slice_mappings")) or [])[g : g + 1]
        for name, address in entries_of(noted[0]).items() if noted else ():
            said = entries_of(address)
            numel, start = integer(said.get("numel")), integer(said.get("start"))
            if name not in group or numel is None or start is None:
                continue
            low = max(starts[name], begin)
            high = min(starts[name] + prod(group[name]), begin + length)
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
        begin += length


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
    inner = [inner_of(rank) for rank in ranks]
    starts: dict[str, int] = {}
    at = 0
    for name, numel in each.items():
        starts[name] = at
        at += numel
    homes = _homes(starts, lengths)
    flat_states, single = [], []
    for number in range(made.ranks):
        states = States(made.left, f"rank {number:,}")
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
        made.states[name] |= {key: alone(v, name, key) for key, v in single[0][homes[name]].items()} if lengths else {}
        made.used += prod(shape)
        made.padding += each[name] * made.ranks - prod(shape)
    made.groups = named_groups(
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
