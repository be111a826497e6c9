"""One file of a run whose ranks wrote a file each: what it is a part of, and where the whole is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import beside, shell_path
from ...errors import CheckpointError, counted
from ...tensor import LazyTensor
from ...tree import Dict
from .pickled import entries_of, integer, items_of
from .placement import part_of
from .rank_files import placed_in


@dataclass(frozen=True, slots=True)
class PartOfRun:
    """What one file of a run is.

    Attributes:
        what: that, in a sentence.
        command: what puts the whole together.
        gives: what that gives, as the end of a sentence.
        is_less: the file is less than the whole.
    """

    what: str
    command: str
    gives: str
    is_less: bool = True

    def __str__(self) -> str:
        """All of it, in a line."""
        return f"{self.what}; {self.command} {self.gives}"


def noted(ckpt: Checkpoint) -> Checkpoint:
    """CKPT, and if it is a part of a run, lines that say so. A part is not written as if it were the whole."""
    found = part_of_run(ckpt)
    if found is None:
        return ckpt
    content = (*ckpt.lost_content, str(found)) if found.is_less else ckpt.lost_content
    return replace(ckpt, warnings=(*ckpt.warnings, str(found)), lost_content=content)


def part_of_run(ckpt: Checkpoint) -> PartOfRun | None:
    """What a file is a part of, by what is in it; None for a file of its own."""
    folder = ckpt.path.absolute().parent if ckpt.path is not None else Path("FOLDER")
    shown = ckpt.path.parent if ckpt.path is not None and ckpt.path.parent.name else folder
    command = f"ckptool convert {shell_path(shown)} {beside(shown, 'whole', '.safetensors')}"
    root = entries_of(ckpt.root)
    optimizer = entries_of(root.get("optimizer_state_dict"))
    if integer(optimizer.get("zero_stage")) is not None and "partition_count" in optimizer:
        counts = [integer(n) for n in items_of(optimizer["partition_count"]) or [optimizer["partition_count"]]]
        known = [n for n in counts if n]
        of = f"one rank of {max(known):,}" if known else "one rank"
        return PartOfRun(f"it holds what {of} of a DeepSpeed run has of the weights and the optimizer", command, _ALL)
    if {"param_shapes", "buffer_names", "ds_version"} <= root.keys() and items_of(root.get("param_shapes")):
        if _is_hollow(root.get("module")):
            return PartOfRun("its parameters are placeholders of DeepSpeed's ZeRO stage 3", command, _ALL)
        gives = "takes those of the optimizer, in float32"
        return PartOfRun("its weights are in the type of training", command, gives, is_less=False)
    return _divided(ckpt.root, command)


_ALL = "puts those of all ranks together"


def _divided(root: Any, command: str) -> PartOfRun | None:
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
    return PartOfRun(f"this is {of}: {counted(parts, 'tensor')} in it are parts of larger ones", command, _ALL)


def _is_hollow(module: Any) -> bool:
    tensors = (
        [value for _, value in module.entries if isinstance(value, LazyTensor)] if isinstance(module, Dict) else []
    )
    return sum(tensor.shape == (0,) for tensor in tensors) > len(tensors) // 2
