"""What the files of a run hold beside the weights that are read by default: its optimizer's state, copies, progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import Checkpoint
from ..disk.composing import files_in
from ..disk.files import File, is_folder
from ..disk.inside import Folder
from ..errors import CheckpointError, printable
from ..formats import format_of
from ..formats import open as open_checkpoint
from ..formats.base import FolderFormat
from ..formats.trainers import rank_files, zero_files
from ..formats.trainers.pickled import open_part
from ..formats.trainers.rank_series import lacking, series_in
from ..formats.zip.structure import looks_like_zip

_ENDINGS = (".pt", ".pth")


def with_all_states(ckpt: Checkpoint) -> Checkpoint:
    """The same checkpoint with the states of the optimizer, if it is one of parts and these are left behind by default.

    Args:
        ckpt: as it was opened.
    """
    kind = format_of(ckpt)
    if not isinstance(kind, FolderFormat) or kind.join is None or kind.of_ranks or ckpt.path is None:
        return ckpt
    try:
        return open_checkpoint(ckpt.path, with_optimizer=True)
    except CheckpointError:  # then what can be read are the weights, and whoever wants more is told why
        return ckpt


@dataclass(frozen=True, slots=True)
class Unread:
    """What stands beside the files that a checkpoint is made of.

    Attributes:
        parts: name -> a file of torch.save of which no weight is made.
        damage: lines on those that cannot be read.
        nbytes: of these files and of those that weights are made of.
    """

    parts: dict[str, Checkpoint]
    damage: list[str]
    nbytes: int


def unread_files(ckpt: Checkpoint) -> Unread:
    """The files of a run that its checkpoint is not made of.

    They are looked for beside those that it is made of, in the folders of all ranks. A file that is no archive is among
    them in any case, since not all that it holds may be used.

    Args:
        ckpt: the checkpoint.
    """
    kind = format_of(ckpt)
    if not isinstance(kind, FolderFormat) or kind.join is None or ckpt.path is None:
        return Unread({}, [], ckpt.nbytes)
    used = {file.path: file for file in files_in(storage.source for storage in ckpt.storages())}
    found: dict[str, Checkpoint] = {}
    damage: list[str] = []
    nbytes = sum(file.size for file in used.values()) if kind.of_ranks else ckpt.nbytes
    if ckpt.format == rank_files.NAME:
        for stem, ranks in lacking(series_in(Folder(ckpt.path))).items() if is_folder(ckpt.path) else ():
            damage.append(f"{printable(stem, 40)}: no file of rank {', '.join(map(str, ranks[:8]))}")
    for place in _places(path.parent for path in used):
        folder = Folder(place) if is_folder(place) else None
        for name in folder.names if folder else ():
            path = place / name
            if not name.endswith(_ENDINGS) or folder is None or folder.lying(name) != "file":
                continue
            if path in used and _is_archive(used[path]):
                continue
            shown = printable(str(path.relative_to(ckpt.path)) if ckpt.path in path.parents else name, 120)
            try:
                found[shown] = open_part(folder.file(name, name))
                nbytes += 0 if path in used else found[shown].nbytes
            except CheckpointError as error:
                damage.append(f"{shown}: {error.what}")
    return Unread(found, damage, nbytes)


def _places(used: Iterable[Path]) -> list[Path]:
    """The folders that files were taken from. A universal checkpoint has one for each parameter, used or not."""
    places = set(used)
    for above in {place.parent for place in places if place.parent.name == zero_files.UNIVERSAL}:
        folder = Folder(above)
        places |= {above, *(above / name for name in folder.names if folder.lying(name) != "outside")}
    return sorted(places)


def _is_archive(file: File) -> bool:
    return looks_like_zip(file.read(0, min(4, file.size)))
