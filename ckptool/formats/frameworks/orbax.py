"""orbax: folders of Orbax, whose leaves are arrays of Zarr. Read only.

_METADATA                    JSON: the tree; a leaf has the keys on the way to it
manifest.ocdbt, d/…          one store for all leaves (see `ocdbt`), which is what Orbax writes unless it is told
a.b.c/.zarray, a.b.c/0.1     or a folder for each (`use_ocdbt=False`): the array at a, b, c (see `zarr_arrays`)
STEP/ITEM/_METADATA          such folders, as a CheckpointManager keeps them; beside ITEM is _CHECKPOINT_METADATA
"""

from __future__ import annotations

from typing import Any

from ...checkpoint import Checkpoint
from ...disk.documents import read_json
from ...disk.files import Buffer, FileRange, shell_path
from ...disk.inside import Folder
from ...errors import Ambiguous, Malformed, printable
from ..base import FolderFormat
from .flax import flattened
from .folder_paths import FolderPaths, folder_in
from .ocdbt import MANIFEST, values_in
from .zarr_arrays import Stored, array_in

_TREE = "_METADATA"
_STEP = "_CHECKPOINT_METADATA"
_LARGEST_JSON = 1 << 28


def _fits(folder: Folder) -> bool:
    return _TREE in folder.names or bool(_within(folder))


def _within(folder: Folder) -> list[str]:
    """The folders of Orbax in a step, or in the folder of all steps, as paths from FOLDER."""
    if _STEP in folder.names:
        return [name for name in folder.names if _holds(folder, name, _TREE)]
    steps = [name for name in folder.names if name.isdecimal() and _holds(folder, name, _STEP)]
    found = []
    for step in sorted(steps, key=int):
        inner = folder_in(folder, step)
        found += [f"{step}/{name}" for name in inner.names if _holds(inner, name, _TREE)] if inner else []
    return found


def _holds(folder: Folder, name: str, what: str) -> bool:
    if folder.lying(name) != "other" or (folder.path / name).is_symlink():
        return False
    inner = folder_in(folder, name)
    return inner is not None and what in inner.names


def open_folder(folder: Folder) -> Checkpoint:
    """Open a folder of Orbax: its tree and the descriptions of its arrays are read, no value is."""
    if _TREE not in folder.names:
        found = _within(folder)
        if len(found) > 1:
            raise Ambiguous(
                f"holds {len(found)} checkpoints of Orbax; say which one:",
                where=folder.path,
                evidence=[printable(name, 80) for name in found[-8:]],
                hint=f"name one: {shell_path(folder.path / found[-1])}",
            )
        for part in found[0].split("/"):
            folder = folder_in(folder, part) or folder
    described = _json(folder, _TREE)
    leaves = described.get("tree_metadata")
    if not isinstance(leaves, dict):
        raise Malformed(f"its {_TREE} describes no tree", where=folder.path)
    stored, names = _stored(folder, described.get("use_ocdbt") is True)
    tree: dict[str, Any] = {}
    lost: list[str] = []
    used: set[str] = set()
    size = folder.file(_TREE, _TREE).size
    for leaf in leaves.values():
        keys, kind = _leaf(leaf)
        if not keys:
            raise Malformed(f"its {_TREE} has a leaf without keys", where=folder.path)
        name = ".".join(keys)
        if name not in names:
            if kind not in ("None", "Dict", "List", "Tuple"):
                lost.append(f"{printable(name, 80)} ({printable(kind, 40)}), of which nothing is stored")
            continue
        at = tree
        for key in keys[:-1]:
            at = at.setdefault(key, {})
            if not isinstance(at, dict):
                raise Malformed(f"{printable(repr(name), 80)} lies below an array", where=folder.path)
        if keys[-1] in at:
            raise Malformed(f"has two values at {printable(repr(name), 80)}, or others below it", where=folder.path)
        at[keys[-1]], more = array_in(stored, name, str(folder.path))
        used.add(name)
        size += more
    lost += [f"the array {printable(name, 80)}, which its {_TREE} does not name" for name in sorted(names - used)]
    return Checkpoint(
        flattened(tree, folder.path),
        "orbax",
        folder.path,
        size,
        warnings=tuple(lost),
        lost_content=tuple(lost),
        framework="orbax",
    )


def _leaf(said: Any) -> tuple[list[str], str]:
    """The keys on the way to a leaf, and what kind of value it is."""
    described = said if isinstance(said, dict) else {}
    keys, value = described.get("key_metadata"), described.get("value_metadata")
    found = [one.get("key") if isinstance(one, dict) else None for one in keys] if isinstance(keys, list) else []
    kind = value.get("value_type", "?") if isinstance(value, dict) else "?"
    return [str(key) for key in found] if all(isinstance(key, str | int) for key in found) else [], str(kind)


def _stored(folder: Folder, in_one: bool) -> tuple[Stored, set[str]]:
    """What is stored under a key, and the names of arrays."""
    if MANIFEST in folder.names:
        values = values_in(folder)
        return values.get, {key.rpartition("/")[0] for key in values if key.endswith(("/.zarray", "/zarr.json"))}
    if in_one:
        raise Malformed(
            f"has no {MANIFEST}: the run that wrote it did not come to its end, or a file is missing",
            where=folder.path,
            hint=Folder.unfinished,
        )
    paths = FolderPaths(folder)

    def stored(key: str) -> FileRange | Buffer | None:
        file = paths.find(key)
        return FileRange(file, 0, file.size) if file is not None else None

    described = (".zarray", "zarr.json")
    return stored, {name for name in folder.names if any(_holds(folder, name, one) for one in described)}


def _json(folder: Folder, name: str) -> dict[str, Any]:
    file = folder.file(name, name)
    if file.size > _LARGEST_JSON:
        raise Malformed(f"has {file.size:,} bytes of JSON", where=file.path)
    found = read_json(file.read(0, file.size), file.path, name)
    if not isinstance(found, dict):
        raise Malformed("is not a description", where=file.path)
    return found


FORMAT = FolderFormat(
    name="orbax",
    aliases=(),
    summary="a folder of Orbax, with its arrays in one store or in a folder each; needs zstandard",
    carries="tensors under the paths of the tree",
    pickles=False,
    within=(),
    fits=_fits,
    open=open_folder,
    draft=None,
    loader="other",
)
