"""Permute bare parameters whose dimensions have another order in the target."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from .. import expression as ex
from ..expression import Expr, Shape
from .layouts import is_bare
from .pieces import Canon, Piece, squeezed


def permute(source: Canon, target: Canon) -> None:
    """Permute bare tensors of the source with three or more dimensions to the order of dimensions in the target.

    This is done only if all their sizes differ, so that one order fits, and both sides have equally many tensors of
    these sizes.
    """
    theirs, own = _by_sizes(target), _by_sizes(source)
    for sizes, pieces in own.items():
        there = {squeezed(piece.shape) for piece in theirs[sizes]}
        here = {squeezed(piece.shape) for piece in pieces}
        if len(set(sizes)) < len(sizes) or len(pieces) != len(theirs[sizes]) or not len(here) == len(there) == 1:
            continue
        wanted, have = there.pop(), here.pop()
        if wanted == have or not all(map(is_bare, (*pieces, *theirs[sizes]))):
            continue
        dims = tuple(have.index(size) for size in wanted)
        for piece in pieces:
            _permute(source, piece, have, dims)


def _by_sizes(canon: Canon) -> dict[Shape, list[Piece]]:
    found: dict[Shape, list[Piece]] = defaultdict(list)
    for piece in canon.pieces.values():
        sizes = tuple(sorted(squeezed(piece.shape)))
        if len(sizes) > 2:
            found[sizes].append(piece)
    return found


def _permute(source: Canon, piece: Piece, have: Shape, dims: tuple[int, ...]) -> None:
    def moved(e: Expr) -> Expr:
        return ex.permute(e if piece.shape == have else ex.reshape(e, have), *dims)

    source.become(piece, [(replace(piece, shape=tuple(have[d] for d in dims)), moved)], lambda e: e)
