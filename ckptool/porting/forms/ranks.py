"""Join the files of tensor parallel training, which hold one state dict for each rank.

Each rank holds its rows of some matrices, its columns of others, and all of the tensors that are not split (Shoeybi et
al. 2019, Megatron-LM; LLaMA's own files). Which of these a key is follows from the model's sizes and from equal values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...checkpoint import Checkpoint, StateDict
from ...errors import printable
from ...model_code.signature import Entry, Signature
from ...tensor import LazyTensor
from .. import expression as ex
from ..expression import Expr, Shape
from ..mapping import Mapping as Port
from ..questions import Question, Reason, ask
from .copies import are_equal
from .fusing.projections import fused_by_name
from .pieces import squeezed, substituted

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The state dicts of all ranks of a run as one state dict.

    Attributes:
        paths: the paths of the state dicts, in the order of the ranks.
        shares: key -> the expression that joins its shares, over keys `PATH/KEY`.
        questions: key -> the question about how its shares are joined, for uncertain keys.
        tensors: key -> the joined tensor, which is read when its values are needed.
        sizes: `PATH/KEY` -> the sizes of this share.
    """

    paths: tuple[str, ...]
    shares: Mapping[str, Expr]
    questions: Mapping[str, Question[Expr]]
    tensors: Mapping[str, LazyTensor]
    sizes: Mapping[str, Shape]

    def signature(self, ckpt: Checkpoint) -> Signature:
        """Return the signature of the joined state dict; CKPT is the file that holds the shares."""
        entries = {key: Entry(key, t.shape, t.dtype.name) for key, t in self.tensors.items()}
        return Signature(ckpt.where, entries, ordered=ckpt.order_preserved)

    def mapping(self, joined: Port) -> Port:
        """Return JOINED, a mapping over the keys of the joined state dict, as a mapping over the keys `PATH/KEY` of the
        file. In all expressions and options, a joined key is replaced by the expression that joins its shares. An entry
        that is no copy of one key then also gets the questions about the joined keys that it reads.

        The mapping gets a note that names the first eight ranks, the path of the first rank as the place of its source,
        and the sizes of the shares.
        """
        entries = []
        for entry in joined.entries:
            asked = [self.questions[key] for key in entry.sources if key in self.questions]
            values = dict(self.shares)
            entry = replace(
                entry,
                expr=None if entry.expr is None else substituted(entry.expr, values),
                questions=tuple(q.translated(partial(substituted, values=values)) for q in entry.questions),
            )
            if entry.expr is not None and not entry.expr.is_copy:
                entry = entry.asking(*asked)
            entries.append(entry)
        names = ", ".join(printable(path, 40) for path in self.paths[:8])
        taken = "what is equal in all of them, and single numbers, are taken from the first"
        note = f"{len(self.paths)} ranks are joined: {names}; {taken}"
        made = replace(joined, source_shapes=self.sizes, at=self.paths[0], notes=(*joined.notes, note))
        return made.with_entries(entries)


def joined_ranks(found: Sequence[StateDict], target: Signature) -> Ranks | None:
    """Return the state dicts FOUND in a file as the ranks of one model, each with its share of the tensors. None if
    they are no ranks: ranks are two or more, have equal keys, sizes and types, and paths that differ in numbers alone
    (`_in_order`).

    A tensor with equal values in all ranks, or without dimensions, is taken from the first. The shares of others are
    joined along the first dimension for which TARGET has a tensor of the joined sizes, whatever its key and the order
    of its dimensions; if there is none, along dimension 0. A joined tensor has a question, without options, if several
    dimensions give sizes of TARGET, or else if its key is that of a fused projection (`qkv`).
    """
    ranks = _in_order(found)
    if not ranks:
        return None
    wanted = {tuple(sorted(squeezed(entry.shape))) for entry in target.entries.values()}
    tensors = {f"{one.path}/{key}": t for one in ranks for key, t in one.tensors.items()}
    shares: dict[str, Expr] = {}
    questions: dict[str, Question[Expr]] = {}
    for key, tensor in ranks[0].tensors.items():
        every = [one.tensors[key] for one in ranks]
        if are_equal(every) or not tensor.shape:  # a single number is no share
            shares[key] = ex.of(f"{ranks[0].path}/{key}")
            continue
        fit = [dim for dim in range(len(tensor.shape)) if _sizes(tensor.shape, dim, len(ranks)) in wanted]
        dim = fit[0] if fit else 0
        shares[key] = ex.cat(dim, *(ex.of(f"{one.path}/{key}") for one in ranks))
        if len(fit) > 1:
            questions[key] = ask(Reason.EITHER_DIMENSION, str(fit[0]), str(fit[1]))
        elif fused_by_name(key):
            questions[key] = ask(Reason.SHARES_OF_RANKS)
    joined = {key: ex.lazy(share, tensors) for key, share in shares.items()}
    sizes = {key: t.shape for key, t in tensors.items()}
    return Ranks(tuple(one.path for one in ranks), shares, questions, joined, sizes)


def _in_order(found: Sequence[StateDict]) -> list[StateDict]:
    """Return the state dicts FOUND in the order of the numbers in their paths; [] if there are fewer than two, if they
    have no tensors, if their paths differ in more than numbers, or if their keys, sizes or types differ.
    """
    ranks = sorted(found, key=lambda one: [int(n) for n in _NUMBER.findall(one.path)])
    if len(ranks) < 2 or len({_NUMBER.sub("", one.path) for one in ranks}) > 1:
        return []
    looks = [{key: (t.shape, t.dtype.name) for key, t in one.tensors.items()} for one in ranks]
    return ranks if looks[0] and all(look == looks[0] for look in looks) else []


def _sizes(shape: Shape, dim: int, ranks: int) -> Shape:
    """Return SHAPE with RANKS times the size of dimension DIM, sorted, without sizes of 1: (4, 8) for [4, 4] and two
    ranks.
    """
    return tuple(sorted(squeezed((*shape[:dim], shape[dim] * ranks, *shape[dim + 1 :]))))
