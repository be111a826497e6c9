"""`ckptool.load`: a checkpoint as the objects that `torch.load` would give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoint import Checkpoint, little_endian_throughout, settle_ties
from ..disk.files import StrPath
from ..errors import CannotCarry, CheckpointError, RuleError
from ..sharding.into_memory import naming_the_rank
from ..sharding.placed_like import load_like
from ..torch_bridge import Loader, MapLocation
from .opening import open as open_checkpoint


def load(
    source: StrPath | Checkpoint,
    map_location: MapLocation = None,
    *,
    mmap: bool = False,
    like: Mapping[str, Any] | None = None,
) -> Any:
    """Load a checkpoint as torch.load does: the same containers, tensors of equal values that share what they shared.

    Nothing in the file is run. Where torch.load would make an object of some class, there is an `Inert` one, whose
    state can be read.

    Args:
        source: a file or folder of any format that ckptool reads, or a checkpoint that was opened, as passes left it.
        map_location: as in torch.load: a device, a dict of locations, or a function of (storage, location).
        mmap: map the file into memory instead of reading it; works for legacy files, too.
        like: `model.state_dict()`, or a dict of such dicts under the names that they have in the file. The result has
            its keys, and tensors of its types where its tensors are; what else is in the file stays there. Of a
            `DTensor`, which the ranks of a run share, each rank reads its own part, also where LIKE is on the meta
            device.

    Raises:
        NotFound, RuleError, CannotCarry: keys of LIKE are not in the file, have other sizes there, or are no dense
            tensors. All ranks raise the same, and nothing was read.
        RuntimeError: torch's own, if a storage is on a device that is not there and MAP_LOCATION does not say where to
            put it.
        CheckpointError: the file cannot be read.
    """
    if like is not None and (map_location is not None or mmap):
        raise RuleError("the tensors of `like` say where values go; it takes no map_location and no mmap", where="like")
    with naming_the_rank(like):
        opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        if like is not None:
            try:
                return load_like(opened, like)
            except CheckpointError as error:
                error.where = error.where or opened.where
                raise
    ckpt = little_endian_throughout(settle_ties(opened))
    try:
        return Loader(map_location, mmap=mmap).value(ckpt.root)
    except RecursionError:
        raise CannotCarry("holds tuples that are too deep to be loaded", where=ckpt.where) from None
    except CheckpointError as error:
        error.where = error.where or ckpt.where
        raise
