"""Permute bare parameters whose dimensions have another order in the target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from .. import expression as ex
from ..expression import Expr, Shape
from .layouts import is_bare
from .pieces import Canon, Piece, squeezed, unchanged


def permute(source: Canon, target: Canon) -> None:
    """Permute tensors of the source with three or more sizes above 1 to the order of dimensions in the target. Sizes of
    1 do not count, and are dropped from what is permuted.

    Tensors whose sizes are the same different numbers, in any order, are permuted alike, if both sides have equally
    many of them, and exactly one order of dimensions gives them the shapes of the target, each as often. Nothing is
    done if the shapes are those of the target, or if one of these tensors, on either side, may be the weight of a torch
    layer.
    """
    theirs, own = _by_sizes(target), _by_sizes(source)
    for sizes, pieces in own.items():
        there = Counter(squeezed(piece.shape) for piece in theirs[sizes])
        here = Counter(squeezed(piece.shape) for piece in pieces)
        if len(set(sizes)) < len(sizes) or here == there or here.total() != there.total():
            continue
        if not all(map(_of_own_code, (*pieces, *theirs[sizes]))):
            continue
        first, *_ = here
        orders = {tuple(map(first.index, wanted)) for wanted in there}
        fitting = [dims for dims in orders if Counter(_in_order(shape, dims) for shape in here.elements()) == there]
        if len(fitting) == 1:
            for piece in pieces:
                _permute(source, piece, squeezed(piece.shape), fitting[0])


def _of_own_code(piece: Piece) -> bool:
    """Return whether PIECE is no weight of a torch layer: it is bare by its name, or joined from complex parts, or the
    forward pass takes it by another function than a linear layer or a convolution.
    """
    how = piece.entry.how
    joined = "complex numbers" in piece.steps
    return is_bare(piece) or joined or (how != "" and how != "linear" and not how.startswith("conv"))


def _in_order(shape: Shape, dims: Sequence[int]) -> Shape:
    return tuple(shape[dim] for dim in dims)


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

    source.become(piece, [(replace(piece, shape=_in_order(have, dims)), moved)], unchanged)
