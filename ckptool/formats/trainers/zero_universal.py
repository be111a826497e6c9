"""DeepSpeed's universal checkpoints: a folder for each parameter, in which it is whole, whatever the ranks were.

    global_step10_universal/
        mp_rank_00_model_states.pt                as before; several of them if there were tensor-parallel ranks
        zero/NAME/fp32.pt                         {param: the weight, cat_dim}; of stage 3 the weight, flat
        zero/NAME/exp_avg.pt, exp_avg_sq.pt       the same of a state of the optimizer
        zero/NAME/step.pt                         how many steps were taken
        zero/optimizer_state.pt                   {param_groups: [{lr, …}], loss_scaler, …}

Seen in what `deepspeed.checkpoint.ds_to_universal` of 0.19.8 makes of stages 2 and 3 without tensor parallelism. With
it, sizes are those of the files and not of the model's file, which has those of a part: layout from source, never seen.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

from ...disk.files import is_folder
from ...disk.inside import Folder
from ...errors import Malformed, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import Dict, List
from .flat import as_tensor
from .pickled import entries_of, folder_in, items_of, open_part
from .zero_files import UNIVERSAL, ZeroFiles
from .zero_parts import OTHERS, Divided, Shapes

_SETTINGS = "optimizer_state.pt"


def read_universal(files: ZeroFiles, groups: list[Shapes], elsewhere: Collection[str]) -> Divided:
    """The parameters of GROUPS, and of tensor-parallel runs all that have a folder.

    Args:
        files: the files of the save.
        groups: the parameters of each group of the optimizer.
        elsewhere: names whose folders are not read: buffers, which are floats there whatever they were, and tied
            names, whose values there are rounded.

    Raises:
        Malformed: one is missing, or does not have the sizes that the model's file says.
    """
    zero = folder_in(files.folder, UNIVERSAL, UNIVERSAL)
    made = Divided(3 if files.divided else 0, len(files.model) if files.divided else 0)
    wanted: dict[str, tuple[int, ...] | None] = {name: shape for group in groups for name, shape in group.items()}
    if files.parallel:
        wanted = dict.fromkeys(wanted) | {
            name: None
            for name in zero.names
            if name not in wanted and name not in elsewhere and is_folder(zero.path / name)
        }
    for name, shape in wanted.items():
        inner = folder_in(zero, name, files.model[min(files.model)])
        found = {
            file.removesuffix(".pt"): _value(files, inner, name, file) for file in inner.names if file.endswith(".pt")
        }
        whole = found.pop("fp32", None)
        if not isinstance(whole, LazyTensor):
            raise Malformed(f"holds no fp32.pt of {printable(repr(name), 80)}", where=inner.path)
        made.weights[name] = _shaped(whole, shape or whole.shape, name, inner)
        made.states[name] = {
            key: _shaped(v, made.weights[name].shape, f"{name}.{key}", inner)
            if isinstance(v, LazyTensor) and v.shape
            else v
            for key, v in found.items()
        }
        made.used += made.weights[name].numel
    if _SETTINGS in zero.names:
        part = files.opened[f"{UNIVERSAL}/{_SETTINGS}"] = open_part(zero.file(_SETTINGS, UNIVERSAL))
        said = entries_of(part.root)
        settings = [one for one in items_of(said.get("param_groups")) or [] if isinstance(one, Dict)]
        made.others = {key: said[key] for key in OTHERS if key in said}
        if len(settings) == len(groups) and not files.parallel:
            made.groups = [
                Dict([(key, List(list(group)) if key == "params" else value) for key, value in one.entries])
                for one, group in zip(settings, groups, strict=True)
            ]
        elif settings:
            made.left.append("param_groups, which do not say the names of their parameters")
    return made


def _value(files: ZeroFiles, inner: Folder, name: str, file: str) -> Any:
    """What one file holds: a tensor, or a number."""
    part = files.opened[f"{UNIVERSAL}/{name}/{file}"] = open_part(inner.file(file, file))
    tensor = as_dense(part.root)
    if tensor is None:
        tensor = as_dense(entries_of(part.root).get("param"))
    return part.root if tensor is None and isinstance(part.root, int | float) else tensor


def _shaped(value: LazyTensor, shape: tuple[int, ...], name: str, folder: Folder) -> LazyTensor:
    """A whole tensor in its shape; stage 3 leaves it flat."""
    if value.shape not in (shape, (prod(shape),)):
        raise Malformed(
            f"{printable(repr(name), 80)} is {list(value.shape)}, and the file with the model says {list(shape)}",
            where=folder.path,
            hint="files of two runs lie in this folder; move those of one away",
        )
    return as_tensor(value.source(), value.dtype, shape, name, value.storage.crc if value.fills_storage else None)
