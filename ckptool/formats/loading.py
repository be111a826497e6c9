"""`ckptool.load`: a checkpoint as the objects that `torch.load` would give."""

from __future__ import annotations

from typing import Any

from ..checkpoint import Checkpoint, little_endian_throughout, settle_ties
from ..disk.files import StrPath
from ..errors import CannotCarry, CheckpointError
from ..torch_bridge import Loader, MapLocation
from .opening import open as open_checkpoint


def load(source: StrPath | Checkpoint, map_location: MapLocation = None, *, mmap: bool = False) -> Any:
    """Load a checkpoint as torch.load does: the same containers, tensors of equal values that share what they shared.

    Nothing in the file is run. Where torch.load would make an object of some class, there is an `Inert` one, whose
    state can be read.

    Args:
        source: a file or folder of any format that ckptool reads, or a checkpoint that was opened, as passes left it.
        map_location: as in torch.load: a device, a dict of locations, or a function of (storage, location).
        mmap: map the file into memory instead of reading it; works for legacy files, too.

    Raises:
        RuntimeError: torch's own, if a storage is on a device that is not there and MAP_LOCATION does not say where to
            put it.
        CheckpointError: the file cannot be read.
    """
    opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    ckpt = little_endian_throughout(settle_ties(opened))
    try:
        return Loader(map_location, mmap=mmap).value(ckpt.root)
    except RecursionError:
        raise CannotCarry("holds tuples that are too deep to be loaded", where=ckpt.where) from None
    except CheckpointError as error:
        error.where = error.where or ckpt.where
        raise
