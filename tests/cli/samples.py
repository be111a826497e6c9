"""Small checkpoints made without torch, and what a run of the command line gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict, Global, List, Object

FLOAT = BY_NAME["float32"]


class Ran(NamedTuple):
    """What a run of the command line gave."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]
Files = dict[str, Path]


def tensor(*shape: int, location: str = "cpu", fill: int = 1) -> LazyTensor:
    """A float32 tensor with a storage of its own."""
    size = 4
    for n in shape:
        size *= n
    return LazyTensor(Storage(Buffer(bytes([fill]) * size), location, FLOAT), FLOAT, shape, contiguous_stride(shape))


def state_dict(prefix: str = "", location: str = "cpu") -> Dict:
    """The state dict of a small net, with `_metadata`."""
    names = ("conv1.weight", "conv1.bias", "fc.weight")
    shapes = ((2, 1, 3, 3), (2,), (4, 2))
    entries = [
        (prefix + n, tensor(*s, location=location, fill=i)) for i, (n, s) in enumerate(zip(names, shapes, strict=True))
    ]
    outer = [("", Dict([("version", 1)]))] if prefix else []
    wrapper = prefix.rstrip(".")
    paths = [wrapper, *(prefix + name for name in ("conv1", "fc"))]
    metadata = Dict([*outer, *((path, Dict([("version", 1)])) for path in paths)], ordered=True)
    return Dict(entries, True, Dict([("_metadata", metadata)]))


def envelope(weights: Dict) -> Dict:
    """A training checkpoint around a state dict, with a Namespace and an optimizer."""
    namespace = Object(
        "reduce", Global("argparse", "Namespace"), (), [("state", Dict([("lr", 0.1), ("gpu", "cuda:1")]))]
    )
    moments = Dict([(0, Dict([("step", tensor()), ("exp_avg", tensor(2, location="cuda:1"))]))])
    optimizer = Dict([("state", moments), ("param_groups", List([]))])
    return Dict([("epoch", 3), ("state_dict", weights), ("optimizer", optimizer), ("args", namespace)])
