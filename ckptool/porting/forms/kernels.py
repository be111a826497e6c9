"""Kernels of convolutions with an extra dimension, or with channels last, on one side."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import table
from .pieces import Canon, Piece, squeezed


def channels_first(source: Canon, target: Canon) -> None:
    """Bring kernels with inputs last ([out, height, width, in] or [height, width, in, out]) into torch's layout.

    Only if most sizes require it. Kernels whose sizes fit both ways follow the others, because a file has one layout.
    """
    wanted = Counter(p.shape for p in target.pieces.values() if p.role.startswith("weight"))
    of_layers = {p.shape for p in target.pieces.values() if p.entry.module.startswith("Conv")}
    kernels = [
        p
        for p in source.pieces.values()
        if p.role == "weight"
        and not p.placed
        and 2 < len(p.shape) < 6
        and p.expr.is_copy
        and p.leaf not in table().inputs_first
    ]
    votes: Counter[_Way | None] = Counter()
    for piece in kernels:
        ways = [way for way in _WAYS if wanted[_laid(piece.shape, way)]]
        if wanted[piece.shape]:
            votes[None] += not ways
        elif len(ways) == 1 and (len(piece.shape) > 3 or _laid(piece.shape, ways[0]) in of_layers):
            votes[ways[0]] += 1
    best = max(_WAYS, key=lambda way: votes[way])
    if votes[best] <= 2 * (votes.total() - votes[best]):
        return
    for piece in kernels:
        there = _laid(piece.shape, best)
        if wanted[there]:
            dims = best(len(there))
            down = partial(_permuted, dims=dims)
            up = partial(_permuted, dims=tuple(dims.index(d) for d in range(len(dims))))
            source.become(piece, [(replace(piece, shape=there), down)], up)


def _permuted(e: Expr, *, dims: tuple[int, ...]) -> Expr:
    return ex.permute(e, *dims)


#: For a number of dimensions, which of those of a kernel go where torch has outputs, inputs, height, width.
_Way = Callable[[int], tuple[int, ...]]


def _inputs_last(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _both_last(rank: int) -> tuple[int, ...]:
    return (rank - 1, rank - 2, *range(rank - 2))


_WAYS: tuple[_Way, ...] = (_inputs_last, _both_last)


def _laid(shape: Shape, way: _Way) -> Shape:
    return tuple(shape[d] for d in way(len(shape)))


def turn_transposed(one: Canon, other: Canon) -> None:
    """Turn transposed convolutions over one pixel ([in, out, 1, 1]) into the linear layers that the other side has.

    The length of the bias shows the outputs; kernels without a bias, and square ones, follow the others of their list.
    """
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values() if p.role == "weight")
    flat: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 2 and not squeezed(piece.shape[2:]):
            flat[_unnumbered(piece.path)].append(piece)
    for kernels in flat.values():
        votes: Counter[bool] = Counter()
        for piece in kernels:
            bias = one.pieces.get(piece.name.beside("bias"))
            if bias is not None and piece.shape[0] != piece.shape[1]:
                votes[bias.shape == piece.shape[1:2] and theirs[squeezed(piece.shape[1::-1])] > 0] += 1
        if votes[True] and not votes[False]:
            for piece in kernels:
                _turned(one, piece)


def _turned(one: Canon, piece: Piece) -> None:
    rows, columns = piece.shape[:2]

    def down(e: Expr) -> Expr:
        return ex.transpose(ex.reshape(e, (rows, columns)))

    def up(e: Expr) -> Expr:
        return ex.reshape(ex.transpose(e), piece.shape)

    one.become(piece, [(replace(piece, shape=(columns, rows)), down)], up)


def _unnumbered(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "", component) for component in path)


def lay_down(one: Canon, other: Canon) -> None:
    """Reshape kernels over the whole width of a map ([out, 1, length, width]) to 1d kernels ([out, width, length]).

    A 2d convolution that takes a whole row at once equals a 1d convolution with the columns of the map as channels.
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
        made = replace(piece, shape=flat)
        if length == width:
            option = None if one.is_target else ex.reshape(piece.expr, flat)
            made = made.asking(Reason.INPUTS_FIRST, option=option)

        def down(e: Expr, shape: tuple[int, ...] = (out, length, width)) -> Expr:
            return ex.transpose(ex.reshape(e, shape))

        def up(e: Expr, shape: tuple[int, ...] = piece.shape) -> Expr:
            return ex.reshape(ex.transpose(e), shape)

        one.become(piece, [(made, down)], up)
