"""`ckptool.load` and `ckptool.from_torch`: a checkpoint as objects of torch, and the other way round.

torch is imported when they are called, so that they have their names, and a message, where it is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, little_endian_throughout, settle_ties
from ..disk.files import StrPath
from ..errors import CannotCarry, CheckpointError, RuleError, require
from .opening import open as open_checkpoint

if TYPE_CHECKING:
    from ..torch_bridge import MapLocation


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
        NotInstalled: torch is not installed. `ckptool.open` reads the file without it.
        CheckpointError: the file cannot be read.
    """
    require("ckptool.load", "torch", extra="torch")
    from ..torch_bridge import Loader

    if like is not None and (map_location is not None or mmap):
        raise RuleError("the tensors of `like` say where values go; it takes no map_location and no mmap", where="like")
    if like is not None:
        return _load_like(source, like)
    opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    ckpt = little_endian_throughout(settle_ties(opened))
    try:
        return Loader(map_location, mmap=mmap).value(ckpt.root)
    except RecursionError:
        raise CannotCarry("holds tuples that are too deep to be loaded", where=ckpt.where) from None
    except CheckpointError as error:
        error.where = error.where or ckpt.where
        raise


def _load_like(source: StrPath | Checkpoint, like: Mapping[str, Any]) -> Any:
    from ..sharding.into_memory import naming_the_rank
    from ..sharding.placed_like import load_like

    with naming_the_rank(like):
        opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        try:
            return load_like(opened, like)
        except CheckpointError as error:
            error.where = error.where or opened.where
            raise


def from_torch(value: Any) -> Checkpoint:
    """A dict of torch tensors (nested, with lists and scalars) as a checkpoint, without copying their memory.

    Raises:
        CannotCarry: a value of another class, which only torch.save can write.
        NotInstalled: torch is not installed. `ckptool.save` takes arrays of numpy without it.
    """
    require("ckptool.from_torch", "torch", extra="torch")
    from ..torch_bridge import from_torch

    return from_torch(value)
