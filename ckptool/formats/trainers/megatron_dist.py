"""Megatron-core's distributed format: a folder of torch.distributed.checkpoint in which all layers are one tensor.

    metadata.json     {"sharded_backend": "torch_dist", …}
    common.pt         what is not divided: args, iteration
    .metadata, __0_0.distcp, …

`decoder.layers.mlp.linear_fc2.weight` has one dimension more than the weight of a layer: the layer. Each layer becomes
a tensor of its own, a view, under the name `decoder.layers.0.mlp.linear_fc2.weight`, as in the files of ranks. What the
optimizer keeps is beside the weights, as `optimizer.state.exp_avg.NAME`. Seen in what megatron-core 0.16.1 writes, with
a plain optimizer; `chained_0.` before it, and rng_state: layout from source, never seen.
"""

from __future__ import annotations

import re
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.documents import read_json
from ...disk.inside import Folder, listed
from ...errors import Malformed, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import Dict
from .flat import as_tensor
from .megatron_optimizer import settings_of
from .pickled import entries_of, open_part

NOTE = "metadata.json"
_LARGEST_NOTE = 1 << 16
_MOST_LAYERS = 100_000
_STACKED = re.compile(r"(?P<before>(?:.*\.)?layers\.)(?P<behind>(?!\d+\.)[^/]+)", re.ASCII)
_STATE = re.compile(r"(?P<before>(?:.*\.)?layers\.)(?P<behind>.*_extra_state)/shard_(?P<number>\d+)_\d+", re.ASCII)
_OTHER_STATE = re.compile(r"(?P<name>.*_extra_state)/shard_0_1", re.ASCII)
_KEPT = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<state>[^.]+)\.(?P<name>.+)", re.ASCII)
_OF_OPTIMIZER = re.compile(r"(?:chained_\d+\.)?optimizer\b.*", re.ASCII | re.DOTALL)
_RANDOM = re.compile(r"rng_state(?:/.*)?", re.ASCII | re.DOTALL)
_COMMON = "common.pt"
#: Optimizers within each other.
_DEEPEST = 4
#: Files of the format beside those of torch.distributed.checkpoint.
OWN = frozenset([NOTE, _COMMON])


def is_megatron(folder: Folder) -> bool:
    """Whether a folder of torch.distributed.checkpoint is one of Megatron's."""
    if NOTE not in folder.names or folder.lying(NOTE) != "file":
        return False
    file = folder.file(NOTE, NOTE)
    try:
        note = read_json(file.read(0, min(file.size, _LARGEST_NOTE)))
    except Malformed:
        return False
    return isinstance(note, dict) and note.get("sharded_backend") == "torch_dist"


def unstacked(root: Dict) -> tuple[Dict, int]:
    """ROOT with a tensor for each layer, and how many tensors were stacked. The order is that of the layers."""
    entries: list[tuple[Any, Any]] = []
    layers: dict[int, list[tuple[Any, Any]]] = {}
    taken = {key for key, _ in root.entries if isinstance(key, str)}
    count = 0
    for key, value in root.entries:
        state = _STATE.fullmatch(key) if isinstance(key, str) else None
        stack = _STACKED.fullmatch(key) if isinstance(key, str) else None
        other = _OTHER_STATE.fullmatch(key) if isinstance(key, str) else None
        if state:
            number = int(state["number"][:9])
            layers.setdefault(number, []).append((f"{state['before']}{number}.{state['behind']}", value))
        elif stack and isinstance(value, LazyTensor) and value.shape and value.shape[0] <= _MOST_LAYERS:
            count += 1
            for number in range(value.shape[0]):
                one = value.changed(
                    shape=value.shape[1:],
                    stride=value.stride[1:],
                    offset=value.offset + number * value.stride[0],
                )
                layers.setdefault(number, []).append((f"{stack['before']}{number}.{stack['behind']}", one))
        else:
            entries.append((other["name"] if other else key, value))
    made = [*entries, *(pair for number in sorted(layers) for pair in layers[number])]
    names = [key for key, _ in made]
    if len({name for name in names if isinstance(name, str)}) < len(names) or not taken:
        return root, 0  # two would have one name
    return Dict(made, root.ordered, root.attributes), count


def _common_steps(node: Any, depth: int = 0) -> list[Any]:
    """How many steps each optimizer in common.pt took: one number for all of its parameters."""
    if not isinstance(node, Dict) or depth > _DEEPEST:
        return []
    state = entries_of(entries_of(node).get("state"))
    inner = [value for key, value in node.entries if key == "optimizer" or type(key) is int]
    own = [state["common_step"]] if "common_step" in state else []
    return own + [step for value in inner for step in _common_steps(value, depth + 1)]


def _own(step: Any, name: str) -> Any:
    """STEP with memory of its own, since an optimizer adds to that of each parameter."""
    tensor = as_dense(step)
    return step if tensor is None else as_tensor(tensor.source(), tensor.dtype, tensor.shape, name)


def divided(root: Dict, folder: Folder, *, whole: bool) -> tuple[Dict, list[str], Checkpoint | None]:
    """(the weights of ROOT, lines for the receipt, what common.pt holds), or if WHOLE all of it as a tree.

    The tree is that of the folders of ranks: model, optimizer {state: {name: {exp_avg, …}}, param_groups}, the rest.
    """
    common = open_part(folder.file(_COMMON, NOTE)) if _COMMON in folder.names else None
    beside = entries_of(common.root) if common is not None else {}
    weights: list[tuple[Any, Any]] = []
    states: dict[str, dict[str, Any]] = {}
    others: list[tuple[Any, Any]] = []
    extra = 0
    for key, value in root.entries:
        name = key if isinstance(key, str) else ""
        kept = _KEPT.fullmatch(name)
        if name.split("/")[0].endswith("._extra_state"):
            extra += 1
        elif kept and kept["state"] not in states.get(kept["name"], {}):
            states.setdefault(kept["name"], {})[kept["state"]] = value
        elif _OF_OPTIMIZER.fullmatch(name) or _RANDOM.fullmatch(name):
            others.append((key, value))
        else:
            weights.append((key, value))
    lines = [f"left behind: {counted(extra, 'extra state')} of modules"] if extra else []
    model = Dict(weights, root.ordered, root.attributes)
    if whole:
        noted = beside.get("optimizer")
        steps = _common_steps(noted)
        if len(steps) == 1:
            for name, values in states.items():
                values.setdefault("step", _own(steps[0], f"{name}.step"))
        elif steps:
            lines.append(
                "left behind: the steps of several optimizers (common_step), which do not say of what they are"
            )
        optimizer: list[tuple[Any, Any]] = [
            ("state", Dict([(name, Dict(list(values.items()))) for name, values in states.items()])),
            *settings_of(noted),
        ]
        rest = [(key, value) for key, value in beside.items() if key not in ("optimizer", "model")]
        taken = {key for key, _ in rest}
        others = [(key, value) for key, value in others if key not in taken]
        return Dict([("model", model), ("optimizer", Dict(optimizer)), *others, *rest]), lines, common
    if states or others:
        count = sum(len(values) for values in states.values()) + len(others)
        kinds = ", ".join(dict.fromkeys(state for values in states.values() for state in values))
        lines.append(
            f"left behind: the optimizer's state ({counted(count, 'entry', 'entries')}{': ' if kinds else ''}"
            f"{printable(kinds, 80)}); --with-optimizer keeps it"
        )
    if beside:
        lines.append(f"left behind of {_COMMON}: {listed(list(beside))}")
    return model, lines, common
