"""The parameters of a ZeRO run that were not trained, which its optimizer does not have.

    frozen_param_shapes          {name: shape}
    frozen_param_fragments       {name: values}: whole at stages 1 and 2; of stage 3 a part a rank, the last filled up

Seen in files that DeepSpeed 0.19.8 wrote.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...errors import Malformed, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import Dict
from .flat import Flat, joined
from .pickled import entries_of
from .zero_files import ZeroFiles
from .zero_parts import shapes_in


def frozen_in(files: ZeroFiles, models: list[dict[str, Any]]) -> tuple[dict[str, LazyTensor], int]:
    """(name -> the parameter, elements of padding), where the model's files note them apart.

    Args:
        files: the files of a save.
        models: what the model's file of each rank holds.

    Raises:
        Malformed: values are missing, or do not have the sizes that they should have.
    """
    where = files.folder.path / files.model[min(files.model)]
    noted = models[0].get("frozen_param_shapes")
    if noted is None:
        return {}, 0
    shapes = shapes_in(Dict(noted.entries if isinstance(noted, Dict) else []), files)[0]
    pieces = [entries_of(model.get("frozen_param_fragments")) for model in models]
    found: dict[str, LazyTensor] = {}
    padding = 0
    for name, shape in shapes.items():
        held = [as_dense(one.get(name)) for one in pieces]
        parts = [part for part in held if part is not None]
        numel = prod(shape)
        if len(parts) != len(held) or len({part.dtype for part in parts}) != 1:
            raise Malformed(f"has no values of the frozen {printable(repr(name), 80)}", where=where)
        if not files.divided:
            if parts[0].shape != shape:
                raise other_shape(name, parts[0].shape, shape, where)
            found[name] = parts[0]
            continue
        each = -(-numel // len(parts))
        if any(part.shape != (each,) for part in parts):
            there = " + ".join(str(part.numel) for part in parts[:8])
            raise Malformed(
                f"the parts of the frozen {printable(repr(name), 80)} do not add up: {there} elements, and it is "
                f"{list(shape)}",
                where=files.folder.path,
            )
        flats = [Flat([part]) for part in parts]
        cut = [v for n, flat in enumerate(flats) for v in flat.cut(0, max(0, min(each, numel - n * each)))]
        found[name] = joined(cut, parts[0].dtype, shape, name)
        padding += each * len(parts) - numel
    return found, padding


def other_shape(name: str, there: tuple[int, ...], said: tuple[int, ...], where: Any) -> Malformed:
    """What to raise where a parameter does not have the shape that is said of it."""
    return Malformed(
        f"{printable(repr(name), 80)} is {list(there)}, and the file with the model says {list(said)}",
        where=where,
        hint="files of two runs lie in this folder; move those of one away",
    )
