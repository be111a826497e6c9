"""Optimizers follow the weights: what renames or drops keys does the same to what an optimizer keeps for each.

The layouts, as torch 2.13 writes them (`torch/optim/optimizer.py`, `torch/distributed/checkpoint/state_dict.py`):

    numbered   {"state": {0: {"exp_avg": …}}, "param_groups": [{"lr": …, "params": [0, 1], "param_names": [name, …]}]}
               `param_names` are there only if the optimizer was made of `model.named_parameters()`
    named      {"state": {name: {"exp_avg": …}}, "param_groups": [{"params": [name, …]}]}     FSDP, and DCP
    flat       {"state.NAME.exp_avg": …, "param_groups.NAME.lr": …}                          DCP, flattened

torch pairs a numbered state with parameters by their places in the groups, so numbers without names say nothing of the
keys of the weights. They are given names only by the code of the model, and only where the shapes of the states leave
one way to do it (`name_parameters`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, StateDict, ties_of
from ..errors import CannotCarry, counted, printable
from ..keys import unwrap
from ..keys.known_buffers import holds
from ..records import record
from ..tensor import LazyTensor
from ..tree import Dict, List, Mapped, Paths, holds_tensors_alone, is_mapping, rebuild, walk, with_entries
from ..weights import named_as_average, words_in

#: What torch adds to a group for its own use, in a list for each group of the optimizer.
_OF_GROUPS = frozenset("base_lrs _last_lr lr_lambdas min_lrs max_lrs initial_lrs".split())
#: Ways to give names to numbers that are followed at once.
_MOST_WAYS = 200_000


@record(frozen=True, slots=True)
class Optimizer:
    """The saved state of an optimizer.

    Attributes:
        path, node: where it is in the tree.
        groups: the parameters of each group as the file has them: numbers or names. [] if it is flat.
        names: their names, group for group, or None if nothing tells.
        flat: its entries are `state.NAME.exp_avg`.
    """

    path: str
    node: Mapped
    groups: list[list[Any]]
    names: list[list[str]] | None
    flat: bool = False

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return sum(map(len, self.groups))


def optimizers_in(root: Any) -> list[Optimizer]:
    """The saved states of optimizers in a tree, in the order of the file."""
    paths = Paths()
    found = []
    for trail, node in walk(root, holds_tensors_alone):
        if is_mapping(node):
            one = _flat(node) or _grouped(node)
            if one is not None:
                found.append(replace(one, path=paths.of(trail)))
    return found


def _flat(node: Mapped) -> Optimizer | None:
    heads = ("state.", "param_groups.")
    keys = [key for key, _ in node.entries[:1] if isinstance(key, str) and key.startswith(heads)]
    if not keys or not all(isinstance(key, str) and key.startswith(heads) for key, _ in node.entries):
        return None
    names = dict.fromkeys(_flat_parts(key)[1] for key, _ in node.entries if key.startswith("param_groups."))
    return Optimizer("", node, [], [list(names)], flat=True) if names else None


def _grouped(node: Mapped) -> Optimizer | None:
    entries = {key: value for key, value in node.entries[:_FEW] if isinstance(key, str)}
    listed = entries.get("param_groups")
    if not is_mapping(entries.get("state")) or not isinstance(listed, List):
        return None
    groups: list[list[Any]] = []
    names: list[list[str]] = []
    for group in listed.items:
        params = group.get("params") if isinstance(group, Dict) else None
        if not isinstance(params, List) or not all(isinstance(one, str | int) for one in params.items):
            return None
        groups.append(params.items)
        by_name = all(isinstance(one, str) for one in params.items)
        told = params if by_name else group.get("param_names")
        if isinstance(told, List) and len(told.items) == len(params.items):
            names += [[name for name in told.items if isinstance(name, str)]]
    known = any(groups) and list(map(len, names)) == list(map(len, groups))
    return Optimizer("", node, groups, names if known else None)


#: Entries of an optimizer that are looked at; those that wrap one add a few of their own.
_FEW = 64


def _flat_parts(key: str) -> tuple[str, str, str]:
    """("state", "conv.weight", "exp_avg") of `state.conv.weight.exp_avg`."""
    head, _, rest = key.partition(".")
    name, _, slot = rest.rpartition(".")
    return head, name, slot


# -- following the weights


@record(frozen=True, slots=True)
class Followed:
    """What became of the optimizers in a checkpoint.

    Attributes:
        instead: the id of each node that changed -> what takes its place.
        within: the paths of the optimizers that follow, or that a line speaks of.
        lines: what was done, and what was not.
    """

    instead: dict[int, Any]
    within: list[str]
    lines: list[str]


def follow(ckpt: Checkpoint, weights: StateDict, renamed: Mapping[str, str | None]) -> Followed:
    """Let the optimizers of a checkpoint follow its weights: RENAMED gives the new name of each old one, None for
    those that are dropped. A parameter that was dropped under one of two tied names keeps the other."""
    found = optimizers_in(ckpt.root)
    moved = {old: new for old, new in renamed.items() if old != new}
    if not found or not moved:
        return Followed({}, [], [])
    moved = _still_tied(weights, moved)
    gone = [old for old, new in moved.items() if new is None and _may_be_a_parameter(old, weights.get(old))]
    instead: dict[int, Any] = {}
    lines: list[str] = []
    within = []
    sets = ckpt.state_dicts()
    for one in found:
        shown = printable(one.path, 60) or "the root"
        if not _belongs(one, weights, sets):
            continue
        within.append(one.path)
        if one.names is None:
            lines += _no_longer_fits(one, shown) if gone else []
            continue
        names = {name for group in one.names for name in group}
        touched = [name for name in names if name in moved]
        if not touched:
            continue
        changed, emptied = _moved(one, moved)
        instead.update(changed)
        left = [name for name in touched if moved[name] is None]
        if not left:
            lines.append(f"{shown}: {counted(len(touched), 'parameter name follows', 'parameter names follow')}")
            continue
        kept = len(names) - len(left)
        lines.append(f"{shown}: {kept:,} of {counted(len(names), 'parameter')} kept, with what belongs to them")
        if emptied:
            instead.update(_without_groups(ckpt.root, emptied, len(one.groups)) if len(found) == 1 else {})
            which = ", ".join(map(str, emptied))
            lines.append(f"note: {shown}: group {which} has no parameter left, and is left out")
    return Followed(instead, within, lines)


def _no_longer_fits(one: Optimizer, shown: str) -> list[str]:
    return [
        f"note: {shown} no longer fits the weights: it has {counted(one.parameters, 'parameter')} by number, and "
        "nothing names them. Give --model MODEL.py, whose parameters are in that order; or --extract leaves it behind, "
        "for a new optimizer"
    ]


def _still_tied(weights: StateDict, moved: Mapping[str, str | None]) -> dict[str, str | None]:
    done = dict(moved)
    if None in done.values():
        for group in ties_of(weights.tensors):
            kept = next((key for key in group if done.get(key, key) is not None), None)
            if kept is not None:
                done.update({key: done.get(kept, kept) for key in group if done.get(key, key) is None})
    return done


def _may_be_a_parameter(key: str, value: Any) -> bool:
    if isinstance(value, LazyTensor) and not (value.dtype.is_floating or value.dtype.is_complex):
        return False
    return holds(key) is None


def _belongs(one: Optimizer, weights: StateDict, sets: Sequence[StateDict]) -> bool:
    """Whether an optimizer trains these weights, as far as names tell, where there are several sets of them."""
    others = [other for other in sets if other.node is not weights.node]
    if not others:
        return True
    if one.names is not None:
        names = [name for group in one.names for name in group]
        mine = all(name in weights for name in names)
        if not mine or not any(all(name in other for name in names) for other in others):
            return mine
    word = _subject(one.path)
    alike = [other for other in sets if word and word == _subject(other.path)]
    if alike:
        return any(other.node is weights.node for other in alike)
    raw = [other for other in sets if named_as_average(other.path) is None]
    return len(raw) == 1 and raw[0].node is weights.node


def _subject(path: str) -> str:
    """What a path speaks of beside states and optimizers: "g" of `optimizer_G`, of `netG` and of `G_state_dict`."""
    words = (word for word in words_in(path) if not word.isdecimal())
    idle = "state dict optim optims optimizer optimizers opt net model weights".split()
    return " ".join({"generator": "g", "discriminator": "d"}.get(word, word) for word in words if word not in idle)


def _moved(one: Optimizer, moved: Mapping[str, str | None]) -> tuple[dict[int, Any], list[int]]:
    """Nodes to put in place of those of an optimizer, and the numbers of the groups that are empty now."""
    entries: list[tuple[Any, Any]] = []
    if one.flat:
        for key, value in one.node.entries:
            head, name, slot = _flat_parts(str(key))
            new = moved.get(name, name)
            if new is not None:
                entries.append((key if new == name else f"{head}.{new}.{slot}", value))
        return {id(one.node): with_entries(one.node, entries)}, []
    assert one.names is not None
    new_ids: dict[Any, Any] = {}
    groups: list[tuple[list[Any], list[str]]] = []
    dropping = any(moved.get(name, name) is None for names in one.names for name in names)
    number = 0
    for ids, names in zip(one.groups, one.names, strict=True):
        kept: tuple[list[Any], list[str]] = [], []
        for old, name in zip(ids, names, strict=True):
            new = moved.get(name, name)
            if new is None:
                new_ids[old] = None
                continue
            new_ids[old] = new if isinstance(old, str) else number if dropping else old
            number += 1
            kept[0].append(new_ids[old])
            kept[1].append(new)
        groups.append(kept)
    emptied = [n for n, (ids, kept) in enumerate(zip(one.groups, groups, strict=True)) if ids and not kept[0]]
    instead: dict[int, Any] = {}
    for key, value in one.node.entries:
        if key == "param_groups":
            listed = [
                _regrouped(group, *kept)
                for n, (group, kept) in enumerate(zip(value.items, groups, strict=True))
                if n not in emptied
            ]
            instead[id(value)] = List(listed)
        elif key == "state":
            pairs = [(new, held) for old, held in value.entries if (new := _new_id(old, new_ids, moved)) is not None]
            instead[id(value)] = with_entries(value, pairs)
    return instead, emptied


def _new_id(old: Any, new_ids: Mapping[Any, Any], moved: Mapping[str, str | None]) -> Any:
    if isinstance(old, str | int) and old in new_ids:
        return new_ids[old]
    return moved.get(old, old) if isinstance(old, str) else old


def _regrouped(group: Dict, ids: list[Any], names: list[str]) -> Dict:
    new = {"params": List(ids), "param_names": List(list(names))}
    entries = [(key, new.get(key, value) if isinstance(key, str) else value) for key, value in group.entries]
    return Dict(entries, group.ordered, group.attributes)


def _without_groups(root: Any, emptied: Sequence[int], count: int) -> dict[int, Any]:
    """The lists of schedulers that have an entry for each group, without those of the groups that went."""
    instead: dict[int, Any] = {}
    for _, node in walk(root, holds_tensors_alone):
        if isinstance(node, Dict):
            for key, value in node.entries:
                if isinstance(key, str) and key in _OF_GROUPS and isinstance(value, List) and len(value.items) == count:
                    instead[id(value)] = List([item for n, item in enumerate(value.items) if n not in emptied])
    return instead


# -- names by the code of the model


#: name -> shape, as `model.named_parameters()` lists them.
Parameters = Mapping[str, tuple[int, ...]]


def name_parameters(ckpt: Checkpoint, parameters: Parameters, *, at: str | None = None) -> Checkpoint:
    """Give `param_names` to optimizers that number their parameters.

    The order is that of the model, in each group by itself; which group a parameter is in follows from the shapes of
    the states. Nothing is guessed: there has to be one way only.

    Args:
        ckpt: the checkpoint.
        parameters: those of the model, in its order.
        at: where the weights are in the file, if there are several state dicts.

    Raises:
        CannotCarry: numbers or shapes are not those of the model, or there are several ways.
    """
    weights = ckpt.state_dict(at)
    here = {short: key for key, short in unwrap(list(weights)).items()} | {key: key for key in weights}
    instead: dict[int, Any] = {}
    lines = []
    sets = ckpt.state_dicts()
    for one in optimizers_in(ckpt.root):
        if one.names is not None or not _belongs(one, weights, sets):
            continue
        shown = printable(one.path, 60) or "the root"
        found = _names_of(one, parameters)
        if isinstance(found, str):
            raise CannotCarry(f"{shown} cannot be named: {found}", where=ckpt.where, hint=_OTHER_MODEL)
        listed = next(value for key, value in one.node.entries if key == "param_groups")
        groups = [
            Dict([*group.entries, ("param_names", List([here.get(name, name) for name in names]))], group.ordered)
            for group, names in zip(listed.items, found, strict=True)
        ]
        instead[id(listed)] = List(groups)
        lines.append(f"{shown}: {counted(one.parameters, 'parameter')} named in the order of the model")
    return replace(ckpt, root=rebuild(ckpt.root, instead=instead)).noting(*lines) if lines else ckpt


_OTHER_MODEL = "give the code of the model that was trained; or --extract, and begin with a new optimizer"


def without_names(ckpt: Checkpoint, paths: Sequence[str]) -> Checkpoint:
    """Take the `param_names` off the optimizers at PATHS: torch adds no group without them to one that has them."""
    instead = {}
    for one in optimizers_in(ckpt.root):
        if one.path in paths and not one.flat:
            listed = next(value for key, value in one.node.entries if key == "param_groups")
            for group in listed.items:
                entries = [pair for pair in group.entries if pair[0] != "param_names"]
                instead[id(group)] = Dict(entries, group.ordered, group.attributes)
    return replace(ckpt, root=rebuild(ckpt.root, instead=instead)) if instead else ckpt


def states_of(one: Optimizer) -> dict[Any, tuple[int, ...] | None]:
    """The shape of each parameter as its state tells it, None where there is none (a frozen one; plain SGD)."""
    state = next(value for key, value in one.node.entries if key == "state")
    known: dict[Any, tuple[int, ...]] = {}
    for number, held in state.entries:
        shapes = {
            value.shape
            for key, value in (held.entries if is_mapping(held) else ())
            if isinstance(value, LazyTensor) and key in _OF_ITS_SHAPE
        }
        if len(shapes) == 1 and isinstance(number, str | int):
            known[number] = shapes.pop()
    return {number: known.get(number) for group in one.groups for number in group}


#: What optimizers keep for a parameter in its shape. Others keep less: a row and a column, a number.
_OF_ITS_SHAPE = frozenset(
    "momentum_buffer exp_avg exp_avg_sq max_exp_avg_sq exp_inf square_avg acc_delta grad_avg sum prev ax".split()
)


def _names_of(one: Optimizer, parameters: Parameters) -> list[list[str]] | str:
    """The names of the parameters of each group, or why there are none."""
    if one.parameters != len(parameters):
        has = counted(one.parameters, "parameter")
        return f"it has {has} in {counted(len(one.groups), 'group')}, the model {len(parameters):,}"
    shapes = states_of(one)
    wanted = [[shapes[number] for number in group] for group in one.groups]
    # places in the groups -> in how many ways (1 or more) they are reached, and the last step of one of them
    layers: list[dict[tuple[int, ...], tuple[int, int]]] = [{(0,) * len(wanted): (1, -1)}]
    several = f"its {counted(len(wanted), 'group')} can be filled in more than one way"
    held = 1
    for name, shape in parameters.items():
        reached: dict[tuple[int, ...], tuple[int, int]] = {}
        for places, (ways, _) in layers[-1].items():
            if held + len(reached) > _MOST_WAYS:
                return several
            for group, place in enumerate(places):
                if place < len(wanted[group]) and wanted[group][place] in (None, shape):
                    after = (*places[:group], place + 1, *places[group + 1 :])
                    reached[after] = (min(reached.get(after, (0, 0))[0] + ways, 2), group)
        if not reached:
            return f"no state has the shape {list(shape)} of {printable(name, 80)} in its place"
        layers.append(reached)
        held += len(reached)
    end = tuple(len(group) for group in wanted)
    if layers[-1].get(end, (0, 0))[0] != 1:
        return several
    named: list[list[str]] = [[] for _ in wanted]
    places = end
    for name, layer in zip(reversed(list(parameters)), reversed(layers), strict=False):
        group = layer[places][1]
        named[group].append(name)
        places = (*places[:group], places[group] - 1, *places[group + 1 :])
    return [names[::-1] for names in named]


def misfits(ckpt: Checkpoint, parameters: Parameters) -> Iterator[str]:
    """What keeps an optimizer that was made of all parameters of a model from loading the states in a checkpoint."""
    for one in optimizers_in(ckpt.root):
        shown = printable(one.path, 60) or "the root"
        if one.flat:
            continue
        if one.parameters > len(parameters):
            sizes = " + ".join(f"{len(group):,}" for group in one.groups)
            what = f"{shown} has {counted(one.parameters, 'parameter')}{f' ({sizes})' if '+' in sizes else ''}"
            yield f"{what}, and the model {len(parameters):,}: an optimizer for it refuses the state"
            continue
        if one.names is not None:
            strange = [name for group in one.names for name in group if name not in parameters]
            if strange:
                has_not = counted(len(strange), "parameter")
                yield f"{shown} names {has_not} that the model has not: {printable(strange[0], 80)}"
        elif one.parameters == len(parameters) and isinstance(why := _names_of(one, parameters), str):
            if len(one.groups) == 1:
                yield f"{shown} is not of this model: {why}"
        elif one.parameters < len(parameters):
            yield f"{shown} has {counted(one.parameters, 'parameter')}, the model {len(parameters):,}"


__all__ = ["Optimizer", "Parameters", "follow", "misfits", "name_parameters", "optimizers_in", "without_names"]
