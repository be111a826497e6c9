"""What the optimizers of ZeRO's ranks keep beside the weights: values of each element, steps, settings of groups.

    base_optimizer_state         stages 1, 2: {state: {group: {exp_avg, exp_avg_sq, step}}, param_groups}
    optimizer_state_dict         stage 3: the same

Seen in files that DeepSpeed 0.19.8 wrote.
"""

from __future__ import annotations

from typing import Any

from ...errors import printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import Dict, List
from .flat import Flat, as_tensor
from .pickled import entries_of, integer, items_of
from .zero_files import ZeroFiles, require_one_run


def inner_of(rank: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Any]]:
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


def require_one_step(files: ZeroFiles, ranks: dict[int, dict[str, Any]]) -> None:
    """Refuse ranks that took different numbers of steps, or learn at different rates."""
    steps: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for rank, name in files.optimizer.items():
        states, groups = inner_of(ranks[rank])
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


class States:
    """What the optimizer keeps for the elements of a flat group, on every rank.

    Args:
        left: takes up what could not be told apart by parameters, in a phrase each.
        of: the group, in a phrase.
    """

    def __init__(self, left: list[str], of: str) -> None:
        self.left = left
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
                    trimmed = [v.changed(shape=(n,)) for v, n in zip(dense, lengths, strict=True)]
                    flats[key] = Flat(trimmed)
                    continue
            lone = values[0]
            if lone is None and key in states[0] and isinstance(states[0][key], int | float | str | None):
                single[key] = states[0][key]
            elif lone is not None and lone.shape == ():
                single[key] = lone
            else:
                self.left.append(f"{printable(str(key), 40)} of {self.what}, which is not a value for each element")
        return flats, single


def alone(value: Any, name: str, key: str) -> Any:
    """A value of a group for one of its parameters: a tensor of its own, since training counts it up in place."""
    if not isinstance(value, LazyTensor):
        return value
    return as_tensor(value.source(), value.dtype, value.shape, f"{name}.{key}")


def named_groups(groups: list[Any], names: list[list[str]]) -> list[Dict]:
    """The settings of groups, with the names of parameters in place of the numbers of flat groups."""
    made = []
    for group in groups:
        entries = group.entries if isinstance(group, Dict) else []
        numbers = [integer(item) for item in items_of(group.get("params")) or []] if entries else []
        held = [name for n in numbers if n is not None and 0 <= n < len(names) for name in names[n]]
        made.append(Dict([(key, List(list(held)) if key == "params" else value) for key, value in entries]))
    return made
