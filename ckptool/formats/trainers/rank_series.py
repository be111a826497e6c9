"""Which files of a folder differ in the number of the rank alone."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from ...disk.files import is_folder
from ...disk.inside import Folder
from ...errors import Malformed, printable
from ...weights import is_training_state

_FILE = re.compile(
    r"(?P<stem>.*?)[._-]?(?:world_size_(?P<world>\d{1,6})[._-])?rank[._-]?(?P<rank>\d{1,6})(?P<rest>(?:[._-]\w+)*?)"
    r"\.(?:pt|pth|bin|ckpt)",
    re.ASCII,
)
_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class Series:
    """Files that differ in the number of the rank alone.

    Attributes:
        stem: what their names begin with ("model", "optim").
        world: the number of ranks that the names tell, or None.
        files: rank -> name.
    """

    stem: str
    world: int | None
    files: dict[int, str]

    @property
    def is_optimizer(self) -> bool:
        """Whether the names are those of training state."""
        return is_training_state(self.stem) or self.stem.startswith(("optim", "extra_state", "rng"))


def lacking(every: list[Series]) -> dict[str, list[int]]:
    """Names of series of training state -> ranks whose file is missing, for those series that lack some.

    The ranks are those that the names tell (`world_size_4`), else those of the weights. A single file without such a
    name may be of something that the first rank alone saves, and lacks nothing.
    """
    of_weights = {rank for one in every if not one.is_optimizer for rank in one.files}
    found: dict[str, list[int]] = {}
    for one in every:
        ranks = set(range(one.world)) if one.world else of_weights if len(one.files) > 1 else set()
        if one.is_optimizer and (missing := sorted(ranks - one.files.keys())):
            found[one.stem] = missing
    return found


def series_in(folder: Folder) -> list[Series]:
    """The series of files in a folder, in the order of their names."""
    found: dict[tuple[str, str | None, str], list[tuple[int, str]]] = defaultdict(list)
    for name in folder.names:
        match = _FILE.fullmatch(name)
        if match and not is_folder(folder.path / name):
            found[match["stem"], match["world"], match["rest"]].append((int(match["rank"]), name))
    made = []
    for (stem, world, _), files in found.items():
        by_rank: dict[int, str] = {}
        for rank, name in sorted(files):
            if rank in by_rank:
                raise Malformed(
                    f"holds two files of rank {rank}:",
                    where=folder.path,
                    evidence=[printable(by_rank[rank], 80), printable(name, 80)],
                    hint="move one of them away",
                )
            by_rank[rank] = name
        made.append(Series(stem, int(world) if world else None, by_rank))
    return made


def fits(folder: Folder) -> bool:
    """Whether a folder holds files of ranks."""
    return any(_FILE.fullmatch(name) and not is_folder(folder.path / name) for name in folder.names)


def fill(folder: Folder) -> bool:
    """Whether a folder holds files of several ranks, and no other files that torch.save may have written."""
    files = [name for name in folder.names if name.endswith(_ENDINGS) and not is_folder(folder.path / name)]
    ranks = {match["rank"] for name in files if (match := _FILE.fullmatch(name))}
    return len(ranks) > 1 and all(_FILE.fullmatch(name) for name in files)
