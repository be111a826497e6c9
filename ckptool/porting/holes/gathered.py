"""Layers that take neighbours of a feature map side by side: only code shows the order of the neighbours."""

from __future__ import annotations

from functools import partial

from ...model_code.signature import Neighbours
from .. import expression as ex
from ..expression import Expr, Shape
from ..matching.units import Unit
from ..questions import Reason
from .filling import Change, Filling

#: Four neighbours column by column, and row by row.
_BY_COLUMNS = Neighbours((0, 2, 1, 3), False)
_BY_ROWS = frozenset({Neighbours((0, 1, 2, 3), False), Neighbours((0, 1, 2, 3), True)})
_NORMS_AND_MATRICES = frozenset({"linear", "layer_norm"})


def doubt_neighbours(filling: Filling) -> None:
    """Bring the channels of each layer that takes neighbouring pixels of a feature map side by side into the model's
    order of the neighbours, without an open question, if both forward passes show their orders (`_shown`) and these
    differ.

    If only the model's does, ask about linear layers and layer norms that take four neighbours of a square row by row,
    all channels of one neighbour together or all neighbours of one channel, unless the two layers come from the same
    code (`Filling.same_code`): most such code follows Swin Transformer, which takes them column by column, all channels
    of one neighbour together, so the reordered tensor is taken, and the plain one is the option. All other tensors
    stay, without a question, and so do those that cannot be reordered (`_moving`).
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        own, theirs = _shown(t, hole.role), _shown(s, hole.role)
        if own is None or own == theirs:
            continue
        if theirs is not None:
            move = _moving(t.pieces[hole.role].shape, own, theirs)
            if move is not None:
                filled.learn(move, Reason.NEIGHBOURS, shows=f"takes neighbours in the order {theirs.order}")
        elif own in _BY_ROWS and t.main.entry.how in _NORMS_AND_MATRICES and not filling.same_code(t, s):
            move = _moving(t.pieces[hole.role].shape, own, _BY_COLUMNS)
            if move is not None:
                filled.ask(Reason.NEIGHBOURS, other=move, exchange=True)


def _shown(unit: Unit, role: str) -> Neighbours | None:
    """Return the neighbours that the tensor ROLE of UNIT takes, as a forward pass shows; None if it shows none, or if
    that tensor was split or joined.
    """
    piece = unit.pieces.get(role)
    return piece.entry.facts.neighbours if piece is not None and piece.is_whole else None


def _moving(shape: Shape, own: Neighbours, theirs: Neighbours) -> Change | None:
    """Return the change that puts the channels of a tensor of sizes SHAPE into the order OWN instead of THEIRS
    (`_moved`). None if OWN and THEIRS have unequally many neighbours, or if this number does not divide the channels:
    the second dimension of a matrix or kernel, the only one of a vector.
    """
    count = len(own.order)
    if len(theirs.order) != count or shape[min(len(shape) - 1, 1)] % count:
        return None
    return partial(_moved, shape=shape, own=own, theirs=theirs)


def _moved(x: Expr, shape: Shape, own: Neighbours, theirs: Neighbours) -> Expr:
    """Return X, of sizes SHAPE, with its channels in the order OWN instead of THEIRS: the order of the neighbours, and
    whether all neighbours of one channel are together (`by_channel`) or all channels of one neighbour.
    """
    dim, count = min(len(shape) - 1, 1), len(own.order)
    wide = shape[dim] // count
    if theirs.by_channel:
        x = _exchanged(x, shape, dim, wide, count)
    places = [theirs.order.index(place) for place in own.order]
    if places != sorted(places):
        x = ex.cat(dim, *(ex.part(x, dim, wide * at, wide * (at + 1)) for at in places))
    return _exchanged(x, shape, dim, count, wide) if own.by_channel else x


def _exchanged(x: Expr, shape: Shape, dim: int, outer: int, inner: int) -> Expr:
    """Return X, with the sizes SHAPE, whose dimension DIM counts OUTER times INNER channels, with the two counted the
    other way round.
    """
    apart = ex.reshape(x, (*shape[:dim], outer, inner, *shape[dim + 1 :]))
    turned = [*range(len(shape) + 1)]
    turned[dim], turned[dim + 1] = dim + 1, dim
    return ex.reshape(ex.permute(apart, *turned), shape)


__all__ = ["doubt_neighbours"]
