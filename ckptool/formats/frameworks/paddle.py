"""Files of Paddle (.pdparams, .pdopt): plain pickles of a dict of arrays. What they hold beside these is told here.

    StructuredToParameterName@@    name of a weight -> name of Paddle's parameter

The name of a parameter ("conv2d_0.w_0") begins with the class of its layer. A Linear has its weight as (in, out), all
else is ordered as in torch. bfloat16 is stored as uint16, and the file does not say so: which it is cannot be told.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from ...checkpoint import Checkpoint, Role
from ...errors import counted, printable
from ...inert.other_tensors import as_dense
from ...tree import Dict, is_mapping
from .tensor_roles import SPACE

_NAMES = "StructuredToParameterName@@"


def told_of_paddle(ckpt: Checkpoint) -> Checkpoint:
    """The checkpoint in a plain pickle, as Paddle's if it is one: the names of its parameters become text metadata."""
    root = ckpt.root
    if not isinstance(root, Dict):
        return ckpt
    names = next((value for key, value in root.entries if key == _NAMES), None)
    if not is_mapping(names) or not all(isinstance(k, str) and isinstance(v, str) for k, v in names.entries):
        return ckpt
    entries = [(key, value) for key, value in root.entries if key != _NAMES]
    dense = {key: as_dense(value) for key, value in entries}
    two = [str(key) for key, tensor in dense.items() if tensor is not None and tensor.dtype.name == "uint16"]
    notes = []
    if two:
        shown = ", ".join(printable(key, 60) for key in two[:3])
        they = counted(len(two), "tensor is", "tensors are")
        notes.append(f"{they} uint16, as which Paddle also stores bfloat16; the file does not say which: {shown}")
    return replace(
        ckpt,
        root=Dict(entries, root.ordered, root.attributes),
        metadata={**ckpt.metadata, "paddle.parameter_names": json.dumps(dict(names.entries), ensure_ascii=False)},
        warnings=(*ckpt.warnings, *notes),
        framework="paddle",
        roles={
            str(key): role
            for key, name in names.entries
            if (tensor := dense.get(key)) is not None and (role := _role(str(name), len(tensor.shape))) != Role()
        },
    )


_PARAMETER = re.compile(r"(\w+)_\d+\.([wb])_(\d+)")


def _role(name: str, rank: int) -> Role:
    """What the parameter is that Paddle calls NAME."""
    found = _PARAMETER.fullmatch(name)
    if found is None:
        return Role()
    layer, letter, number = found[1], found[2], int(found[3])
    norm = "norm" in layer
    space = SPACE.get(rank - 2, "")
    axes = ""
    if letter == "b":
        part = "beta" if norm else "bias"
    elif norm:
        part = ("gamma", "moving_mean", "moving_variance")[number] if number < 3 else ""
    else:
        part = "kernel"
        if layer == "linear" and rank == 2:
            axes = "IO"
        elif layer == "embedding" and rank == 2:
            part, axes = "embeddings", "VO"
        elif layer.startswith("conv") and space:
            axes = f"IO{space}" if "transpose" in layer else f"OI{space}"
        elif layer == "p_re_lu":
            part = "alpha"
    return Role(layer, part, axes, "class")
