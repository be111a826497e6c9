"""What the formats that are directories share: where a checkpoint's files are, and what lies beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from ..checkpoint import Checkpoint
from ..disk.composing import Piece
from ..disk.files import Buffer, FileRange
from ..disk.inside import Folder, listed, not_followed, same_place
from ..errors import printable
from ..records import record


@record(frozen=True, slots=True)
class FolderOrigin:
    """The directory that a checkpoint came from.

    Attributes:
        folder: the directory.
        parts: the checkpoint of each file of weights, by its name, in order.
        own: the names of all files that it was read from.
        beside: files of the directory that are none of the checkpoint's: a configuration, a tokenizer.
        left_alone: links out of the directory, which are not followed.
    """

    folder: Folder
    parts: dict[str, Checkpoint]
    own: frozenset[str]
    beside: tuple[str, ...]
    left_alone: tuple[str, ...]

    def lines(self) -> list[str]:
        """What a person should know of the links."""
        return [not_followed(self.left_alone)] if self.left_alone else []


def origin_in(folder: Folder, parts: dict[str, Checkpoint], own: frozenset[str]) -> FolderOrigin:
    """FOLDER as an origin, with what lies in it beside the checkpoint's OWN files. Hidden files do not count."""
    others = {name: folder.lying(name) for name in folder.names if name not in own and not name.startswith(".")}
    beside, left_alone = (tuple(n for n, what in others.items() if what == kind) for kind in ("file", "outside"))
    return FolderOrigin(folder, parts, own, beside, left_alone)


def carried_along(ckpt: Checkpoint, taken: Iterable[str]) -> tuple[dict[str, list[Piece]], list[str]]:
    """What lies beside the weights that CKPT came from, for the directory that it goes to, and lines that say so.

    TAKEN are the names that are written anyway. Other weights stay where they are: they would be those of before.
    """
    if not isinstance(ckpt.origin, FolderOrigin):
        return {}, []
    folder = ckpt.origin.folder
    beside = [name for name in ckpt.origin.beside if name not in set(taken)]
    names = [name for name in beside if not is_part(name) and not name.endswith(_OTHER_WEIGHTS)]
    files = {name: folder.file(name, name) for name in names}
    pieces: dict[str, list[Piece]] = {
        name: [FileRange(file, 0, file.size)] if file.size else [] for name, file in files.items()
    }
    changed = {name: side for name, side in ckpt.side_files.items() if name in names}
    for name, side in changed.items():
        if side.data is None:
            del pieces[name]
        else:
            pieces[name] = [Buffer(side.data)]
    same = [name for name in names if name not in changed]
    lines = [f"copied along, as they are: {listed(same)}"] if same else []
    lines += [f"{printable(name, 60)}: {line}" for name, side in changed.items() for line in side.lines]
    stay = [name for name in beside if name not in files]
    lines += [f"other weights beside them are not copied: {listed(stay)}"] if stay else []
    return pieces, lines + ckpt.origin.lines()


#: What a checkpoint in a directory is made of.
_PART = re.compile(
    r".+-\d{5,6}-of-\d{5,6}(?:\.[\w-]+)*\.(?:safetensors|bin)|(?:model|pytorch_model|diffusion_pytorch_model)"
    r"(?:\.[\w-]+)?\.(?:safetensors|bin)|.+\.(?:safetensors|bin)\.index(?:\.[\w-]+)?\.json|\.metadata|\.ckptool-note\.json|.+\.distcp"
)
#: Endings of other files with weights.
_OTHER_WEIGHTS = (".safetensors", ".h5", ".msgpack", ".gguf", ".onnx", ".pth", ".ckpt", ".ot", ".tflite")


def is_part(name: str) -> bool:
    """Whether a file of this name is a part of a checkpoint that is a directory."""
    return _PART.fullmatch(name) is not None


def may_go(ckpt: Checkpoint, target: Path) -> Callable[[str], bool]:
    """Whether a file in the directory TARGET may go when CKPT takes its place: parts of the checkpoint that is there.

    In the directory that CKPT itself came from, only the files that it was read from may.
    """
    if isinstance(ckpt.origin, FolderOrigin) and same_place(target, ckpt.origin.folder.path):
        return ckpt.origin.own.__contains__
    return is_part


def left_beside(ckpt: Checkpoint) -> tuple[str, ...]:
    """What a single file leaves behind of the directory that CKPT came from, as lines for the receipt."""
    if not isinstance(ckpt.origin, FolderOrigin):
        return ()
    beside = ckpt.origin.beside
    return (*((f"left behind beside the weights: {listed(beside)}",) if beside else ()), *ckpt.origin.lines())
