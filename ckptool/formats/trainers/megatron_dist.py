"""Megatron-core's distributed format: a folder of torch.distributed.checkpoint in which all layers are one tensor.

    metadata.json     {"sharded_backend": "torch_dist", …}
    common.pt         what is not divided: args, iteration
    .metadata, __0_0.distcp, …

`decoder.layers.mlp.linear_fc2.weight` has one dimension more than the weight of a layer: the layer. Each layer becomes
a tensor of its own, a view, under the name `decoder.layers.0.mlp.linear_fc2.weight`, as in the files of ranks. Seen in
what megatron-core 0.16.1 writes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...disk.documents import read_json
from ...disk.inside import Folder
from ...errors import Malformed
from ...tensor import LazyTensor
from ...tree import Dict

NOTE = "metadata.json"
_LARGEST_NOTE = 1 << 16
_MOST_LAYERS = 100_000
_STACKED = re.compile(r"(?P<before>(?:.*\.)?layers\.)(?P<behind>(?!\d+\.)[^/]+)", re.ASCII)
_STATE = re.compile(r"(?P<before>(?:.*\.)?layers\.)(?P<behind>.*_extra_state)/shard_(?P<number>\d+)_\d+", re.ASCII)
_OTHER_STATE = re.compile(r"(?P<name>.*_extra_state)/shard_0_1", re.ASCII)


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
                one = replace(
                    value,
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
