"""Reading large checkpoints in several processes: each reads a share of the tensors, and all get all results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from typing import TypeVar

from ...checkpoint import Checkpoint
from ...disk.composing import files_in
from ...disk.files import StrPath
from ...disk.together import sampled
from ...errors import CheckpointError, printable
from ...formats import open as open_checkpoint
from ...ranks import Group, divide
from .numbers import in_threads

_T = TypeVar("_T")
_R = TypeVar("_R")


def open_alike(path: StrPath | Checkpoint, ranks: Group | None) -> Checkpoint:
    """Open a checkpoint, and have every rank see the same one.

    Args:
        path: the checkpoint, which may be open already.
        ranks: this process and others; None for this one alone.

    Raises:
        CheckpointError: it cannot be opened, or a rank sees another one.
    """

    def opened() -> Checkpoint:
        return path if isinstance(path, Checkpoint) else open_checkpoint(path)

    if ranks is None:
        return opened()
    ckpt, told = ranks.agree(
        opened, lambda it: [it.nbytes, [sampled(file) for file in files_in(s.source for s in it.storages())]]
    )
    other = next((rank for rank, one in enumerate(told) if one != told[0]), None)
    if other is not None:
        error = CheckpointError(
            f"rank {other} sees another file than rank 0",
            where=ckpt.where,
            evidence=[f"{told[0][0]:,} bytes on rank 0, {told[other][0]:,} on rank {other}"],
            hint=f"put {printable(ckpt.where)} where all nodes see the same file",
        )
        error.on_all_ranks = True
        raise error
    return ckpt


def in_ranks(
    work: Callable[[_T], _R],
    items: Iterable[_T],
    size: Callable[[_T], int],
    ranks: Group | None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[_T, _R]]:
    """Each of ITEMS with what WORK makes of it, in order, as `in_threads`; with the items divided among RANKS.

    Args:
        work: makes plain data, in which tuples may come out as lists.
        items: the same on every rank.
        size: bytes that an item stands for.
        ranks: this process and others; None for this one alone.
        progress: called with the bytes of items that are done, on any rank; on rank 0 only.
    """
    if ranks is None:
        one, other = tee(items)
        for item, made in zip(one, in_threads(work, other, size), strict=True):
            yield item, made
            if progress:
                progress(size(item))
        return
    every = list(items)
    mine = divide([size(item) for item in every], ranks.size)[ranks.rank]
    own = []
    with ranks.following(progress if ranks.leads else None):
        for number, made in zip(mine, in_threads(work, [every[n] for n in mine], size), strict=True):
            own.append((number, made))
            ranks.advance(size(every[number]))
    found = {number: made for theirs in ranks.exchange(own) for number, made in theirs}
    yield from ((item, found[number]) for number, item in enumerate(every))
