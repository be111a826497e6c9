"""Files of Paddle (.pdparams, .pdopt): plain pickles of a dict of arrays. What they hold beside these is told here.

    StructuredToParameterName@@    name of a weight -> name of Paddle's parameter

bfloat16 is stored as uint16, and the file does not say so: which it is cannot be told.
"""

from __future__ import annotations

import json
from dataclasses import replace

from ...checkpoint import Checkpoint
from ...errors import counted, printable
from ...inert.other_tensors import as_dense
from ...tree import Dict, is_mapping

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
    )
