"""One file of a run whose ranks wrote a file each: what it is a part of, and where the whole is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoint import Checkpoint
from ...disk.files import beside, shell_path
from ...errors import CheckpointError, counted
from ...lazy import later
from ...records import record
from ...tensor import LazyTensor
from ...tree import Dict, holds_tensors_alone
from .pickled import entries_of, integer, items_of
from .placement import part_of, placed_in

if TYPE_CHECKING:
    from . import megatron
else:
    megatron = later(".megatron", __package__)


@record(frozen=True, slots=True)
class PartOfRun:
    """What one file of a run is.

    Attributes:
        what: what it is a part of, behind "it is".
        folder: where the whole is.
        command: what puts the whole together.
        gives: what that gives, as the end of a sentence.
        is_less: the file is less than the whole.
    """

    what: str
    folder: Path
    command: str
    gives: str
    is_less: bool = True

    @property
    def sentence(self) -> str:
        """What it is, in a sentence."""
        return f"it is {self.what}"

    def __str__(self) -> str:
        """All of it, in a line."""
        return f"{self.sentence}; {self.command} {self.gives}"


def noted(ckpt: Checkpoint) -> Checkpoint:
    """CKPT, and if it is a part of a run, lines that say so. A part is not written as if it were the whole."""
    found = part_of_run(ckpt)
    if found is None:
        return ckpt
    ckpt = replace(ckpt, warnings=(*ckpt.warnings, str(found)))
    if not found.is_less:
        return ckpt
    return replace(ckpt, part_of=found.what, lost_content=(*ckpt.lost_content, str(found)))


def alone(ckpt: Checkpoint) -> Checkpoint:
    """CKPT for somebody who wants this part and knows that it is one: it may be written as it is."""
    found = part_of_run(ckpt)
    return replace(ckpt, lost_content=tuple(line for line in ckpt.lost_content if line != str(found)))


def part_of_run(ckpt: Checkpoint) -> PartOfRun | None:
    """What a file is a part of, by what is in it; None for a file of its own."""
    if holds_tensors_alone(ckpt.root):
        return None
    root = entries_of(ckpt.root) if isinstance(ckpt.root, Dict) else {}
    found = _megatron(ckpt.path, root)
    if found is not None:
        return PartOfRun(found, *_whole(ckpt.path, 2), _ALL)
    optimizer = entries_of(root.get("optimizer_state_dict"))
    if integer(optimizer.get("zero_stage")) is not None and "partition_count" in optimizer:
        counts = [integer(n) for n in items_of(optimizer["partition_count"]) or [optimizer["partition_count"]]]
        known = [n for n in counts if n]
        of = f"one rank of {max(known):,}" if known else "one rank"
        what = f"what {of} of a DeepSpeed run has of the weights and the optimizer"
        return PartOfRun(what, *_whole(ckpt.path, 1), _ALL)
    if {"param_shapes", "buffer_names", "ds_version"} <= root.keys() and items_of(root.get("param_shapes")):
        if _is_hollow(root.get("module")):
            what = "a file with placeholders of DeepSpeed's ZeRO stage 3 in place of the parameters"
            return PartOfRun(what, *_whole(ckpt.path, 1), _ALL)
        what, gives = (
            "a file of a ZeRO run, with weights in the type of training",
            "takes those of the optimizer, in float32",
        )
        return PartOfRun(what, *_whole(ckpt.path, 1), gives, is_less=False)
    said = _divided(ckpt.root)
    return None if said is None else PartOfRun(said, *_whole(ckpt.path, 1), _ALL)


def _whole(path: Path | None, levels: int) -> tuple[Path, str]:
    """The folder that many LEVELS above a file, and the command that puts together what is in it."""
    folder = path if path is not None else Path(*["FOLDER"] * levels, "FILE")
    for _ in range(levels):
        folder = folder.parent if folder.parent.name else _absolute(folder).parent
    return folder, f"ckptool convert {shell_path(folder)} {beside(folder, 'whole', '.safetensors')}"


def _megatron(path: Path | None, root: dict[str, Any]) -> str | None:
    """What a file is in a folder of Megatron's, if there are several ranks; by its place, and by what it was told."""
    if path is None or "model" not in root:
        return None
    there = megatron.ranks_beside(path)
    told = entries_of(root.get("args"))
    degrees = [integer(told.get(f"{kind}_model_parallel_size")) or 1 for kind in ("tensor", "pipeline")]
    count = max(there, degrees[0] * degrees[1]) if there else 0
    return f"one rank of {count:,} of a run of Megatron" if count > 1 else None


_ALL = "puts those of all ranks together"


def _divided(root: Any) -> str | None:
    """The same of a file of tensors that say where they belong."""
    parts, rank, ranks = 0, None, 0
    try:
        for node in placed_in(root):
            part = part_of(node)
            parts += part.divided
            rank, ranks = part.rank, max(ranks, len(part.ranks))
    except CheckpointError:  # of a kind that is not known: whoever joins them says so
        parts = max(parts, 1)
    if not parts:
        return None
    of = f"rank {rank:,} of {ranks:,} (counted from 0)" if rank is not None and ranks else "one rank of a run"
    return f"{of}: {counted(parts, 'tensor')} in it are parts of larger ones"


def _is_hollow(module: Any) -> bool:
    tensors = (
        [value for _, value in module.entries if isinstance(value, LazyTensor)] if isinstance(module, Dict) else []
    )
    return sum(tensor.shape == (0,) for tensor in tensors) > len(tensors) // 2


def _absolute(path: Path) -> Path:
    """PATH from the root on; as it is where the current folder was deleted."""
    try:
        return path.absolute()
    except FileNotFoundError:
        return path
