"""Matrices and kernels that stand with the inputs first, or with their heads in a dimension of their own."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial

from ..signature import Entry
from . import expression as ex
from .expression import Expr, Shape
from .pieces import Canon, Piece, unchanged
from .words import table

_TURNED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}


def torch_layout(canon: Canon, piece: Piece, leaf: str) -> None:
    """Weights that stand with the inputs first, as their name or their use says, in the layout of torch."""
    rank = len(piece.shape)
    if canon.is_target:
        if piece.entry.notes.get("right") and rank >= 2 and piece.entry.module != "Embedding":
            turn(canon, piece)
        return
    if leaf == "depthwise_kernel" and rank == 4:
        _reorder(canon, piece, (2, 3, 0, 1))
    elif leaf in table().inputs_first and rank in _TURNED:
        if piece.role == "weight" and {"recurrent_kernel"} & _leaves_beside(canon, piece):
            piece = _renamed(canon, piece, "weight_ih")
        _reorder(canon, piece, _TURNED[rank]) if rank != 2 else turn(canon, piece)
    elif leaf == "bias" and {"recurrent_kernel"} & _leaves_beside(canon, piece) and rank == 1:
        _renamed(canon, piece, "bias_ih")


def _leaves_beside(canon: Canon, piece: Piece) -> set[str]:
    head = piece.entry.key.rpartition(".")[0]
    return (
        {key.rpartition(".")[2] for key in canon.signature.entries if key.rpartition(".")[0] == head}
        if any("recurrent_kernel" in key for key in canon.signature.entries)
        else set()
    )


def _renamed(canon: Canon, piece: Piece, role: str) -> Piece:
    new = replace(piece, role=role)
    canon.become(piece, [(new, lambda e: e)], lambda e: e)
    return canon.pieces[new.name]


def turn(canon: Canon, piece: Piece) -> None:
    """Swap the last two dimensions of a piece."""
    shape = (*piece.shape[:-2], piece.shape[-1], piece.shape[-2])
    canon.become(piece, [(replace(piece, shape=shape), ex.transpose)], ex.transpose)


def _reorder(canon: Canon, piece: Piece, dims: tuple[int, ...]) -> None:
    back = [0] * len(dims)
    for new, old in enumerate(dims):
        back[old] = new
    shape = tuple(piece.shape[d] for d in dims)
    canon.become(
        piece,
        [(replace(piece, shape=shape), lambda e: ex.permute(e, *dims))],
        lambda e: ex.permute(e, *back),
    )


def turn_by_vote(canon: Canon) -> None:
    """Find matrices that stand with the inputs first by the lengths of their biases; square ones follow their kin."""
    votes: dict[str, Counter[bool]] = defaultdict(Counter)
    everywhere: Counter[bool] = Counter()
    matrices = []
    for piece in canon.pieces.values():
        if piece.role != "weight" or len(piece.shape) != 2 or piece.expr.op != "key":
            continue
        bias = canon.pieces.get(".".join(piece.path) + "|bias")
        if bias is None or len(bias.shape) != 1 or (canon.is_target and not _unseen(piece.entry)):
            continue
        matrices.append(piece)
        rows, columns = piece.shape[0] == bias.shape[0], piece.shape[1] == bias.shape[0]
        if rows != columns:
            votes[_kin(piece)][columns] += 1
            everywhere[columns] += 1
    if not everywhere[True]:
        return
    for piece in matrices:
        vote = votes.get(_kin(piece)) or everywhere
        if vote[True] > vote[False]:
            turn(canon, piece)


def _unseen(entry: Entry) -> bool:
    """Whether neither the forward pass nor the class of its module says how a matrix of the target stands."""
    return entry.used is None and entry.module not in ("Linear", "Embedding", "NonDynamicallyQuantizableLinear")


def _kin(piece: Piece) -> str:
    return re.sub(r"\d+", "", piece.path[-1]) if piece.path else ""


def general_dense(source: Canon, target: Canon) -> None:
    """Projections that hold their heads in a dimension of their own ([in, heads, width]), as plain matrices."""
    theirs = Counter(p.shape for p in target.pieces.values())
    for piece in list(source.pieces.values()):
        leaf = piece.entry.key.rpartition(".")[2]
        shape = piece.entry.shape
        if leaf in table().inputs_first and len(shape) == 3 and not theirs[piece.shape]:
            for flat in ((shape[0], shape[1] * shape[2]), (shape[0] * shape[1], shape[2])):
                if theirs[flat[::-1]]:
                    new = replace(piece, shape=flat[::-1])
                    source.become(piece, [(new, partial(_flat_dense, key=piece.entry.key, shape=flat))], unchanged)
                    break
        elif piece.role == "bias" and len(shape) == 2 and not theirs[piece.shape]:
            flat1 = (shape[0] * shape[1],)
            if theirs[flat1]:
                new = replace(piece, shape=flat1)
                source.become(piece, [(new, partial(ex.reshape, shape=flat1))], unchanged)


def _flat_dense(_: Expr, *, key: str, shape: Shape) -> Expr:
    return ex.transpose(ex.reshape(ex.of(key), shape))
