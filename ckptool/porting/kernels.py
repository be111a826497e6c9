"""Kernels of convolutions that one side has with a dimension more than the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from . import expression as ex
from .expression import Expr
from .layouts import TURNED_IN_CODE
from .pieces import Canon


def lay_down(one: Canon, other: Canon) -> None:
    """Kernels over a whole map of one channel ([out, 1, length, width]) as such over its rows ([out, width, length]).

    A convolution of two dimensions that takes all of a row at once is one of one dimension, with the columns of the map
    for its channels.
    """
    theirs = Counter(p.shape for p in other.pieces.values() if p.role.startswith("weight"))
    own = Counter(p.shape for p in one.pieces.values())
    for piece in list(one.pieces.values()):
        if len(piece.shape) != 4 or piece.shape[1] != 1 or 1 in piece.shape[2:] or not piece.role.startswith("weight"):
            continue
        out, _, length, width = piece.shape
        flat = (out, width, length)
        if theirs[piece.shape] or not theirs[flat] or own[flat]:
            continue
        doubts = piece.doubts
        if length == width:
            doubts = (*doubts, (TURNED_IN_CODE, None if one.is_target else ex.reshape(piece.expr, flat)))

        def down(e: Expr, shape: tuple[int, ...] = (out, length, width)) -> Expr:
            return ex.transpose(ex.reshape(e, shape))

        def up(e: Expr, shape: tuple[int, ...] = piece.shape) -> Expr:
            return ex.reshape(ex.transpose(e), shape)

        one.become(piece, [(replace(piece, shape=flat, doubts=doubts), down)], up)
