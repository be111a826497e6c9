"""What the files of trainers have in common: plain values in the pickles of torch.save, and refusals that say where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import File, is_folder, shell_path
from ...disk.inside import Folder, listed
from ...errors import CheckpointError, Malformed, UnknownFormat, counted, printable
from ...inert.other_tensors import as_dense, numbers
from ...tensor import LazyTensor
from ...tree import Dict, List, Object, holds_tensors_alone, mapping_of
from .. import torch_legacy, torch_zip

_HEAD = 4096


def open_part(file: File) -> Checkpoint:
    """The checkpoint in one file that torch.save wrote, in whichever of its two formats."""
    head = file.read(0, min(_HEAD, file.size))
    try:
        for format_ in (torch_zip.FORMAT, torch_legacy.FORMAT):
            if format_.sniff(head, file):
                return format_.open(file)
    except CheckpointError as error:
        error.where = error.where or str(file.path)
        raise
    raise UnknownFormat(
        "torch.save did not write it",
        where=file.path,
        hint="the save, the download or the copy did not finish; use an earlier checkpoint, or fetch it again",
    )


_RANK = re.compile(r"rank[._-]?(\d{1,9})", re.ASCII)


def saved_under(part: Checkpoint, name: str) -> str | None:
    """The name under which a rank saved its file, if that is the name of another rank's: torch notes it in the archive.

    Args:
        part: the file, as it was opened.
        name: that of the file.
    """
    told = torch_zip.saved_as(part)
    one, other = ([int(number) for number in _RANK.findall(text)] for text in (told, name.rpartition(".")[0]))
    return told if len(one) == len(other) and one != other else None


def folder_in(folder: Folder, name: str, said_by: str) -> Folder:
    """The folder called NAME in FOLDER. A link that leads out of it is not followed.

    Raises:
        Malformed: there is none, or it leads elsewhere.
    """
    shown = printable(repr(name), 120)
    if name in ("", ".", "..") or set(name) & {"/", "\\", ":", "\0"}:
        raise Malformed(f"names {shown}, which is not a plain name of a folder", where=folder.path / said_by)
    if name not in folder.names or not is_folder(folder.path / name):
        there = [one for one in folder.names if is_folder(folder.path / one)]
        raise Malformed(
            f"names the folder {shown}, which is not there",
            where=folder.path / said_by,
            evidence=[f"there are {listed(there)}"] if there else [],
            hint=f"name a folder: {shell_path(folder.path / there[-1])}" if there else "fetch the folder",
        )
    if folder.lying(name) == "outside":
        raise Malformed(f"{shown} is a link out of the folder, and is not followed", where=folder.path)
    return Folder(folder.path / name)


def entries_of(node: Any) -> dict[str, Any]:
    """The entries of a dict whose keys are texts, or those of an object's attributes; {} of anything else.

    Nobody may change this dict.
    """
    if isinstance(node, Object):
        node = node.state
    if holds_tensors_alone(node):
        return mapping_of(node.entries)
    return {str(key): value for key, value in node.entries if isinstance(key, str)} if isinstance(node, Dict) else {}


def items_of(node: Any) -> list[Any] | None:
    """The items of a list or tuple, or None."""
    return node.items if isinstance(node, List) else list(node) if type(node) is tuple else None


def integer(node: Any) -> int | None:
    """An integer, or that of an enumeration; None if NODE is neither."""
    if isinstance(node, Object) and isinstance(node.args, tuple) and len(node.args) == 1:
        node = node.args[0]
    return node if type(node) is int else None


def sizes(node: Any) -> tuple[int, ...] | None:
    """A shape, or None."""
    found = numbers(node)
    return None if found is None or min(found, default=0) < 0 else found


def flat_tensors(node: Any) -> list[LazyTensor] | None:
    """A list of 1-d tensors (or one tensor, as a list), or None if NODE is none."""
    items = items_of(node)
    found = [as_dense(item) for item in ([node] if items is None else items)]
    return [t for t in found if t] if all(t is not None and len(t.shape) == 1 for t in found) else None


def plainly(node: Any) -> Any:
    """An object as the dict of its attributes, so that nothing of its class is needed; other nodes as they are."""
    attributes = entries_of(node) if isinstance(node, Object) else {}
    if isinstance(node, Object) and integer(node) is not None:
        return integer(node)
    return Dict(list(attributes.items())) if attributes else node


def require_ranks(found: dict[int, str], world: int, what: str, folder: Folder) -> None:
    """Refuse a folder that lacks the files of some ranks, or has those of more than there were.

    Args:
        found: rank -> the name of its file.
        world: how many ranks there were.
        what: what the files are, in a phrase.
        folder: where they are.
    """
    missing = [rank for rank in range(world) if rank not in found]
    beyond = [name for rank, name in found.items() if rank >= world]
    if beyond:
        raise Malformed(
            f"holds {what} of {len(found):,} ranks, and they were written by {world:,}:",
            where=folder.path,
            evidence=[f"of no rank below {world:,}: {listed(beyond)}"],
            hint="files of an earlier run with more ranks lie among these; move them away",
        )
    if missing:
        ranks = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        raise Malformed(
            f"lacks {what} of {counted(len(missing), 'rank')} of {world:,}: {ranks}",
            where=folder.path,
            evidence=[f"there are {listed(list(found.values()))}"],
            hint="the save, the download or the copy did not finish; fetch the missing files",
        )


def differing(values: dict[str, Any]) -> Iterator[str]:
    """Lines that name the files and their VALUES, if those are not all the same."""
    if len(set(values.values())) > 1:
        first: dict[Any, str] = {}
        for name, value in values.items():
            first.setdefault(value, name)
        yield from (f"{printable(name, 80)}: {printable(str(value), 80)}" for value, name in first.items())
