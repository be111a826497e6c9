"""Folders that are no checkpoint themselves: what is in them, and what keeps it from loading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...disk.files import StrPath, beside, shell_path
from ...disk.inside import Folder
from ...errors import CheckpointError, printable
from ...formats import open as open_checkpoint
from .finding import Finding
from .obstacles import in_the_way

#: Endings of files that are looked into.
_ENDINGS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".pkl", ".tar", ".t7", ".th", ".model")
#: Files of a folder that are opened.
_MOST = 50


def in_folder(path: StrPath) -> Iterator[Finding]:
    """A finding for each checkpoint in a folder: whether it would load, by its header and its names alone."""
    names = Folder(path).names
    if "data.pkl" in names and any(name in names for name in ("version", "byteorder", "data")):
        out = beside(path, "zipped", ".pth")
        what = "it is an archive of torch.save that was unpacked; a .pth file is the archive as it was"
        actions = [f"zip -0 -r {out} {shell_path(path)} makes one of it again; then: ckptool doctor {out}"]
        yield Finding("unpacked", what, actions=actions)
        return
    files = [name for name in names if name.lower().endswith(_ENDINGS)]
    for name in files[:_MOST]:
        place = Path(path) / name
        try:
            opened = open_checkpoint(place)
            found = opened.state_dicts()
            wrong = [one for one in in_the_way(opened, found[0] if len(found) == 1 else None) if one.trouble]
        except CheckpointError as error:
            yield Finding("damaged", f"{printable(name, 60)}: {error.what.rstrip(':')}")
            continue
        said = "; ".join(one.what for one in wrong[:2])
        verdict = said or "no problem found, as far as its names tell"
        yield Finding("file", f"{printable(name, 60)}: {verdict}", bool(wrong))
    if files[_MOST:]:
        yield Finding("file", f"and {len(files) - _MOST:,} more files, which were not looked into", False)
