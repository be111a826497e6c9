"""The way from a path to a checkpoint: whose format it is, its headers and pickles, or what is whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..disk.addresses import StrPath, as_path, is_url
from ..disk.files import File, is_folder, shell_path
from ..disk.inside import Folder
from ..disk.urls import folder_of, look, open_file
from ..errors import CannotCarry, CheckpointError, RuleError, UnknownFormat, counted, printable
from ..lazy import later
from ..tree import Dict
from ._choice import FOLDERS, detect_file, detect_folder, find_format, named_format
from .base import Wanted
from .flat import sharded
from .frameworks.tensor_roles import told_by_writer
from .trainers import zero_files
from .trainers.alone import noted, part_of_run
from .trainers.plan import Plan, parse_plan

if TYPE_CHECKING:
    from . import dcp
    from ._salvage import Salvage
    from .trainers import megatron, rank_series
else:  # not waited for where a file is opened
    dcp = later(".dcp", __package__)
    megatron = later(".trainers.megatron", __package__)
    rank_series = later(".trainers.rank_series", __package__)


@dataclass(slots=True)
class _Said:
    """How parts go together in all folders that are opened, where a call does not say so itself.

    Attributes:
        plan: as it was read.
        file: where it is written.
        taken, passed: a folder was opened with it; a single file was opened without.
    """

    plan: Plan
    file: StrPath
    taken: bool = False
    passed: bool = False


_PARTS: ContextVar[_Said | None] = ContextVar("parts", default=None)


@contextmanager
def with_parts(parts: Mapping[str, Any], file: StrPath) -> Iterator[_Said]:
    """While this lasts, `open` takes PARTS where it is told none: for reports and ports, which open files themselves.

    Args:
        parts: pattern of names -> how the parts of a tensor go together (see `open`).
        file: where that is written, for messages and for the commands that reports name.

    Raises:
        RuleError: PARTS is not such a mapping.
    """
    said = _Said(parse_plan(parts, file), file)
    token = _PARTS.set(said)
    try:
        yield said
    finally:
        _PARTS.reset(token)


def parts_option() -> str:
    """What a command has to end in so that it takes the parts that `with_parts` says: ` --parts FILE`, or nothing."""
    said = _PARTS.get()
    return f" --parts {shell_path(said.file)}" if said else ""


def detect(path: StrPath) -> str:
    """The name of the format of a file ("torch-zip"), from its first bytes.

    Raises:
        UnknownFormat: it is no checkpoint; the message says what it is instead.
        Unreadable: it cannot be opened.
    """
    found = look(path)
    return (detect_folder(found) if isinstance(found, Folder) else detect_file(found)).name


def open(
    path: StrPath,
    *,
    format: str | None = None,
    with_optimizer: bool = False,
    parts: Mapping[str, int | str] | None = None,
) -> Checkpoint:
    """Open a checkpoint: headers and pickles are read, tensors stay in the file until they are asked for.

    Nothing in the file is run or imported. The file stays open as long as something refers to its tensors.

    Args:
        path: the file or folder.
        format: name of its format, if it is not to be found out.
        with_optimizer: of a folder with a file for each rank, all that was saved: weights, optimizer, progress. Without
            it, the weights alone. Of other formats, all is read in any case.
        parts: of such a folder, how the parts of a tensor go together where no file says so: pattern of names -> the
            dimension along which ranks divided it, or "same" (see `ckptool.formats.trainers.plan`).

    Raises:
        UnknownFormat: it is no checkpoint.
        Malformed: it contradicts itself or is cut short.
        Unreadable: it cannot be opened.
        RuleError: `parts` makes no sense, or PATH is a single file.
    """
    try:
        place = as_path(path)
        if sharded.is_index(place.name) and not is_folder(place):
            return told_by_writer(sharded.open_index(folder_of(place), place.name))
        if place.name == ".metadata" and dcp.fits(folder := folder_of(place)):
            return dcp.FORMAT.open(folder)
        if place.suffix == ".distcp":
            raise UnknownFormat(
                "is a part of a folder of torch.distributed.checkpoint; the folder is the checkpoint",
                where=path,
                hint=f"name {shell_path(place.parent)}",
            )
        file = look(place)
        if isinstance(file, Folder):
            return told_by_writer(_open_folder(file, format, Wanted(with_optimizer, _plan(parts))))
        if parts:
            raise RuleError(
                "is one file; parts= is for a folder in which each rank of a run wrote a file",
                where=path,
                hint=f"name {shell_path(place.parent)}",
            )
        chosen = find_format(format) if format else detect_file(file)
        ckpt = _with_notes(chosen.open(file), file)
        if (said := _PARTS.get()) is not None:
            said.passed = True
        part = sharded.shard_of(place.name)
        return replace(ckpt, part_of=part, warnings=(f"it is {part}", *ckpt.warnings)) if part else ckpt
    except CheckpointError as error:
        error.where = error.where or str(path)
        raise
    except (RecursionError, MemoryError, OverflowError) as error:
        raise CannotCarry(f"is too deep or too large to be read ({type(error).__name__})", where=path) from None


def _plan(parts: Mapping[str, int | str] | None) -> Plan:
    """What a call says of the parts, or else what `with_parts` says."""
    said = _PARTS.get()
    if parts or said is None:
        return parse_plan(parts or {})
    said.taken = True
    return said.plan


def holds_one(path: StrPath) -> bool:
    """Whether a folder is one checkpoint in several files: shards, with an index or without, one of
    torch.distributed.checkpoint, or one of a trainer whose ranks wrote a file each."""
    if is_url(path) or not is_folder(path):
        return False
    folder = Folder(path)
    if dcp.fits(folder) or any(sharded.is_index(name) or sharded.shard_of(name) for name in folder.names):
        return True
    return zero_files.fits(folder) or megatron.fits(folder) or rank_series.fill(folder)


def require_whole(ckpt: Checkpoint, command: Callable[[str], str] | None = None) -> None:
    """Refuse a file that is a part of a checkpoint, which is no model without the others.

    Args:
        ckpt: as it was opened.
        command: the command that does the same with the path that it is given, for the hint.

    Raises:
        RuleError: it is a part.
    """
    if not ckpt.part_of or ckpt.path is None:
        return
    run = part_of_run(ckpt)
    folder = str(run.folder if run is not None else ckpt.path.parent)
    missing = [] if is_url(ckpt.path) else sharded.missing_beside(ckpt.path)
    lacking = f"{counted(len(missing), 'of the others is', 'of the others are')} not beside it:"
    evidence = [lacking, *(printable(name, 100) for name in missing[:5])] if missing else []
    whole = f"{command(folder) if command else shell_path(folder)}   # takes all of them"
    if missing:
        whole = "fetch the others, and name the folder"
    raise RuleError(
        f"is {ckpt.part_of}",
        where=ckpt.where,
        evidence=evidence,
        hint=f"{whole}; --partial-file writes what is in this one",
    )


def _with_notes(ckpt: Checkpoint, file: File) -> Checkpoint:
    """The checkpoint in FILE, with the notes of FILE: for reports, and for the receipt of whatever is made of it."""
    ckpt = noted(ckpt) if isinstance(ckpt.root, Dict) and ckpt.format.startswith("torch") else ckpt
    return told_by_writer(replace(ckpt, warnings=(*ckpt.warnings, *file.notes)).noting(*file.notes))


def _open_folder(folder: Folder, format: str | None, wanted: Wanted) -> Checkpoint:
    if not format:
        chosen = detect_folder(folder)
        return chosen.join(folder, wanted) if chosen.join else chosen.open(folder)
    named = named_format(format)
    found = next((f for f in FOLDERS if f is named or named.name in f.within), None)
    if found is None:
        raise RuleError(f"{named.name} is a format of files, and this is a folder", where=folder.path)
    return found.join(folder, wanted) if found.join else found.open(folder)


def salvage(path: StrPath) -> Salvage:
    """Read what is whole of a file that may not open: a zip archive that was zipped again or lost its directory, a
    zip, legacy or safetensors file that is cut short. What is lost is named.

    Raises:
        UnknownFormat: it is no checkpoint, or none of these formats.
        Malformed: what says which tensors there are is itself lost, so nothing can be saved.
        Unreadable: it cannot be opened.
    """
    from ._salvage import salvage as salvage_file

    file = open_file(path)
    try:
        found = salvage_file(file)
        return replace(found, checkpoint=_with_notes(found.checkpoint, file))
    except CheckpointError as error:
        error.where = error.where or str(path)
        raise
    except (RecursionError, MemoryError, OverflowError) as error:
        raise CannotCarry(f"is too deep or too large to be read ({type(error).__name__})", where=path) from None


#: The name of the command.
repair = salvage
