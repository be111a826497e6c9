"""zero, ranks and megatron: folders in which each rank of a run saved files of its own. Read, and never written.

How the files go together is in `ckptool.formats.trainers`: `zero` for DeepSpeed's folders, `rank_files` for any names,
`placement` for what DTensors say of it, `plan` for what a person says, and `megatron` for the folders of Megatron-LM.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoint import Checkpoint
from ..disk.inside import Folder
from ._folder import FolderOrigin, origin_in
from .base import FolderFormat, Wanted
from .trainers import megatron, zero, zero_files
from .trainers.rank_files import NAME, open_ranks
from .trainers.rank_series import fits, series_in


def open_folder(folder: Folder, wanted: Wanted | None = None) -> Checkpoint:
    """Open a folder with a file for each rank."""
    wanted = wanted or Wanted()
    found = open_ranks(folder, wanted.parts, whole=wanted.with_optimizer)
    of_ranks = frozenset(name for one in series_in(folder) for name in one.files.values())
    lies = origin_in(folder, {}, of_ranks)
    origin = FolderOrigin(folder, {}, frozenset(), lies.beside, lies.left_alone)
    return replace(found, origin=origin, warnings=(*found.warnings, *origin.lines()))


FORMAT = FolderFormat(
    name=NAME,
    aliases=("rank-files",),
    summary="a directory with a file of each rank, whose DTensors say how they go together (FSDP, TP, verl)",
    carries="what the files hold, tensors put together",
    pickles=True,
    within=(),
    fits=fits,
    open=open_folder,
    draft=None,
    join=open_folder,
    loader="other",
    archive=True,
    of_ranks=True,
)


def open_megatron(folder: Folder, wanted: Wanted | None = None) -> Checkpoint:
    """Open a folder of Megatron-LM's, with a folder for each tensor-parallel rank and stage."""
    wanted = wanted or Wanted()
    found = megatron.open_megatron(folder, wanted.parts, whole=wanted.with_optimizer)
    lies = origin_in(folder, {}, frozenset([megatron.LATEST]))
    origin = FolderOrigin(folder, {}, frozenset(), lies.beside, lies.left_alone)
    return replace(found, origin=origin, warnings=(*found.warnings, *origin.lines()))


MEGATRON = FolderFormat(
    name=megatron.NAME,
    aliases=("megatron-lm",),
    summary="a directory of Megatron-LM: mp_rank_XX folders of tensor-parallel ranks and stages, with core's names",
    carries="weights under Megatron's names, as one rank has them",
    pickles=True,
    within=(),
    fits=megatron.fits,
    open=open_megatron,
    draft=None,
    join=open_megatron,
    loader="other",
    archive=True,
    of_ranks=True,
)


def open_zero(folder: Folder, *, whole: bool = False) -> Checkpoint:
    """Open a folder of DeepSpeed's: the pickles of all ranks are read, no tensor is. WHOLE: with the optimizer."""
    found = zero.open_save(folder, whole=whole)
    lies = origin_in(folder, {}, frozenset())
    beside = tuple(
        name for name in lies.beside if name not in zero_files.SCRIPTS and not name.endswith((".pt", ".pth"))
    )
    origin = FolderOrigin(folder, {}, frozenset(), beside, lies.left_alone)
    return replace(found, origin=origin, warnings=(*found.warnings, *origin.lines()))


ZERO = FolderFormat(
    name=zero.NAME,
    aliases=("deepspeed",),
    summary="a directory of DeepSpeed: ZeRO stages 0 to 3, universal, pipelines; weights in float32",
    carries="weights, optimizer states by name, what else was saved",
    pickles=True,
    within=(),
    fits=zero_files.fits,
    open=open_zero,
    draft=None,
    join=lambda folder, wanted: open_zero(folder, whole=wanted.with_optimizer),
    loader="other",
    archive=True,
    of_ranks=True,
)
