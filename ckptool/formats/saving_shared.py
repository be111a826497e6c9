"""`ckptool.save` of tensors that the ranks of a run share: each writes what it holds, side by side, into one target.

Every rank lays out the whole from global sizes. The layouts are compared, and so are the parts: together they have to
be each tensor, once. Then all write (see `ckptool.disk.together`), and rank 0 gives the target its name.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..disk.files import Buffer, reason
from ..disk.folders import fingerprints
from ..dtypes import BY_NAME
from ..errors import CannotCarry, CheckpointError, Unwritable, printable
from ..ranks import Group
from ..sharding.held import Here, checkpoint_of, divide_among_holders
from ..tensor import LazyTensor, Storage, contiguous_stride
from .tiles import Chunk, overlapping

if TYPE_CHECKING:
    from .saving import Plan


def save_shared(value: Any, planned: Callable[[Checkpoint], Plan], written: Callable[..., Any]) -> Plan:
    """Write a dict of tensors that ranks share. Every rank calls it with its part.

    Args:
        value: the dict; what is no tensor is the same on all ranks.
        planned: lays out a checkpoint.
        written: carries out a plan, as one of several ranks.

    Raises:
        CheckpointError: as PLANNED and WRITTEN; or the ranks would write different things.
        RankFailed: another rank failed.
    """
    group = Group.of_process_group()
    try:
        run = str(group.exchange(uuid.uuid4().hex)[0])
        (receipt, held, _), told = group.agree(lambda: _planned(value, planned, run, group.rank), lambda made: made[2])
        group.led(lambda: _require_one_target([one[3] for one in told]))
        if any(one[:2] != told[0][:2] for one in told):
            kinds = group.exchange([here.kind for here in held])
            group.led(lambda: _refuse(kinds))
        boxes = [one[2] for one in told]
        group.led(lambda: _require_whole(held, boxes))
        divide_among_holders(held, boxes, group.rank)
        try:
            written(receipt, ranks=group)
        except OSError as error:
            raise (
                error if isinstance(error, CheckpointError) else Unwritable(reason(error), where=receipt.path)
            ) from None
        return receipt
    except BaseException as error:
        group.fail(error)
        raise
    finally:
        group.close()


def _planned(
    value: Any, planned: Callable[[Checkpoint], Plan], run: str, rank: int
) -> tuple[Plan, list[Here], tuple[Any, ...]]:
    """The plan, what this rank has, and what the others have to know: digests of tensors and plan, the boxes, the name
    of the target."""
    ckpt, held = checkpoint_of(value, run, rank)
    kinds = hashlib.sha256(json.dumps([here.kind for here in held]).encode()).hexdigest()
    receipt = planned(ckpt)
    draft = receipt.draft
    plan = fingerprints(draft.folder or {None: draft.pieces})[0]
    return receipt, held, (kinds, plan, [here.boxes for here in held], receipt.path.name)


def _require_one_target(names: Sequence[str]) -> None:
    """Refuse targets of other names on other ranks: all write into the one of rank 0, and the others would never be.

    Raises:
        CannotCarry: it says which rank.
    """
    for rank, name in enumerate(names):
        if name != names[0]:
            what = f"rank {rank} names another target than rank 0"
            evidence = [f"{printable(one, 100)} on rank {n}" for n, one in ((0, names[0]), (rank, name))]
            raise CannotCarry(
                what, evidence=evidence, hint="all ranks write into one target: give all of them its name"
            )


def _refuse(kinds: Sequence[Sequence[Any]]) -> None:
    """Refuse what ranks would not write alike.

    Raises:
        CannotCarry: it says which rank, and the first tensor that differs.
    """
    for rank, theirs in enumerate(kinds):
        for one, other in zip(kinds[0], theirs, strict=False):
            if one != other:
                shown = ((0, one), (rank, other))
                lines = [f"{printable(name, 100)} {sizes} {dtype} on rank {n}" for n, (name, sizes, dtype) in shown]
                raise CannotCarry(f"rank {rank} has other tensors than rank 0", evidence=lines)
        if len(theirs) != len(kinds[0]):
            raise CannotCarry(f"rank {rank} has {len(theirs):,} tensors, and rank 0 {len(kinds[0]):,}")
    hint = "what is not a tensor (an epoch, a text) has to be the same on all ranks, and so have the options"
    raise CannotCarry("not all ranks would write the same", hint=hint)


def _require_whole(held: Sequence[Here], told: Sequence[Sequence[Any]]) -> None:
    """Refuse tensors of which the ranks do not hold every element in one box, or some in several that differ.

    Raises:
        CannotCarry: it names the first.
    """
    for number, here in enumerate(held):
        name, sizes, dtype = here.kind
        found = sorted({(tuple(start), tuple(shape)) for boxes in told for start, shape in boxes[number]})
        chunks = [Chunk(start, _nothing(shape, dtype)) for start, shape in found]
        elements = sum(chunk.values.numel for chunk in chunks)
        if elements != prod(sizes) or overlapping(chunks):
            what = f"the parts of {printable(name)} that the ranks have do not make it up"
            evidence = [f"it has {prod(sizes):,} elements, and they {elements:,}, in {len(chunks):,} different boxes"]
            raise CannotCarry(what, evidence=evidence, hint="every rank that has a part has to call this")


def _nothing(shape: tuple[int, ...], dtype: str) -> LazyTensor:
    """A tensor without values."""
    return LazyTensor(Storage(Buffer(b"")), BY_NAME[dtype], shape, contiguous_stride(shape))
