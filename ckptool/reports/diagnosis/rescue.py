"""What can be saved of a damaged file: one answer for `doctor` and for the hints of errors."""

from __future__ import annotations

from ...disk.addresses import is_url
from ...disk.files import StrPath, beside, is_file, shell_path
from ...disk.urls import size_of
from ...errors import CheckpointError, Malformed, counted
from ...formats import Salvage, salvage

#: Files up to this size are read for a hint, which takes a second or two. For larger ones the hint is to ask `doctor`.
_READ_AT_ONCE = 1 << 30


def repairing(path: StrPath, found: Salvage, name: str = "repaired") -> str | None:
    """The command that saves what is whole of a file, or None if nothing is wrong or no tensor is whole."""
    if found.hopeless or not (found.wrong or found.lost):
        return None
    command = f"ckptool repair {shell_path(path)} {beside(path, name)}"
    return f"{command} --allow-loss" if found.lost else command


def point_to_rescue(error: CheckpointError, path: StrPath) -> None:
    """Let the hint of an ERROR that PATH is damaged name the command that saves its whole tensors, if it has any.

    Not of a part of a folder: what is left of a shard makes no checkpoint.
    """
    told = (error.hint or "").startswith("ckptool ")  # of damage that the reader knows more about
    if not isinstance(error, Malformed) or told or str(path) != error.where or is_url(path) or not is_file(path):
        return
    if size_of(path) > _READ_AT_ONCE:
        ask = f"`ckptool doctor {shell_path(path)}` says which tensors can be saved"
        error.hint = f"{error.hint}; {ask}" if error.hint else ask
        return
    try:
        found = salvage(path)
    except (CheckpointError, OSError):  # nothing can be saved, or it is of a format that is not repaired
        return
    if command := repairing(path, found):
        whole = f"saves {found.kept:,} of {counted(found.tensors, 'tensor')}"
        better = "; a whole copy is better, if there is one" if found.lost else ""
        error.hint = f"{command}   # {whole}{better}"
