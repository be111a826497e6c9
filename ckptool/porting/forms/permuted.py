"""Permute bare parameters whose dimensions have another order in the target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..expression import Shape
from .layouts import is_bare
from .pieces import Canon, Piece, squeezed


def permute(source: Canon, target: Canon) -> None:
    """Permute tensors of the source with three or more sizes above 1 to the order of dimensions in the target: [h, w,
    c] -> [c, h, w]. Sizes of 1 do not count, and a tensor that is permuted loses them. No question is asked.

    All tensors with the same set of sizes, in any order and all different, are permuted in one way. This is done if
    both sides have equally many of them, and exactly one order of dimensions gives the source's tensors the shapes that
    the target has, each as often. They stay if their shapes are those of the target already, or if one of them, on
    either side, may be the weight of a torch layer (not `_of_own_code`).
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
                have = squeezed(piece.shape)
                source.permute(piece if piece.shape == have else source.reshape(piece, have), fitting[0])


def _of_own_code(piece: Piece) -> bool:
    """Return whether PIECE is no weight of a torch layer. One of these is enough: it is bare by its name (`is_bare`); a
    step joined it from complex parts; the forward pass takes it first by another function than a linear layer or a
    convolution.
    """
    how = piece.entry.how
    joined = "complex numbers" in piece.steps
    return is_bare(piece) or joined or (how != "" and how != "linear" and not how.startswith("conv"))


def _in_order(shape: Shape, dims: Sequence[int]) -> Shape:
    return tuple(shape[dim] for dim in dims)


def _by_sizes(canon: Canon) -> dict[Shape, list[Piece]]:
    """Return sizes above 1, sorted -> the tensors of CANON that have them, for tensors with three or more of these."""
    found: dict[Shape, list[Piece]] = defaultdict(list)
    for piece in canon.pieces.values():
        sizes = tuple(sorted(squeezed(piece.shape)))
        if len(sizes) > 2:
            found[sizes].append(piece)
    return found
