"""Linear layers over patches of pictures: only code shows in which order a patch lists its numbers."""

from __future__ import annotations

from functools import partial
from math import prod

from ...model_code.signature import Axis
from .. import expression as ex
from ..expression import Expr, Shape
from ..matching.units import Unit
from ..questions import Reason
from .filling import Filling

#: The orders that most code has, each with the other one: channel by channel, as `unfold` lists them, and pixel by
#: pixel; with the frames of a video.
_OTHER = {"chw": "hwc", "hwc": "chw", "cthw": "thwc", "thwc": "cthw"}
#: Names of modules in vit-pytorch, and in code after it, whose layers take patches pixel by pixel.
_BY_PIXEL = frozenset({"to_patch_embedding", "patch_to_embedding"})


def doubt_patch_order(filling: Filling) -> None:
    """Bring the columns of each linear layer over patches, and the numbers of a layer norm before it, into the order in
    which the model's code lists the numbers of a patch.

    If both forward passes show an order, and both patches have the same sizes, there is no open question. If only the
    model's is shown, and it is a usual one, the tensor stays, and the other usual order is the option of a question,
    unless the two layers come from the same code (`Filling.same_code`). If the source's names are those of code that
    lists patches pixel by pixel, there is no question for a model that does so, too; for any other, the reordered
    tensor is taken, and the plain one is the option.
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, theirs_piece = t.pieces.get(hole.role), s.pieces.get(hole.role)
        if piece is None or theirs_piece is None or piece.shape != theirs_piece.shape:
            continue  # of another layer, or of a convolution, whose kernel is in the model's order already
        own, theirs = _shown(t, hole.role), _shown(s, hole.role)
        letters = _letters(own)
        move = partial(_moved, shape=piece.shape, own=own)
        if own and theirs and own != theirs and sorted(own) == sorted(theirs):
            names = letters, _letters(theirs)
            filled.learn(partial(move, theirs=theirs), Reason.PATCH_ORDER, *names, shows=f"lists them as {names[1]}")
        elif letters in _OTHER and not theirs and not filling.same_code(t, s):
            by_pixel = not _BY_PIXEL.isdisjoint(s.path)
            if by_pixel and letters.endswith("c"):
                continue
            size = dict(own)
            back = partial(move, theirs=tuple(Axis(letter, size[letter]) for letter in _OTHER[letters]))
            filled.ask(Reason.PATCH_ORDER, letters, _OTHER[letters], other=back, exchange=by_pixel)


def _shown(unit: Unit, role: str) -> tuple[Axis, ...]:
    """Return the order in which the patches that the tensor ROLE of UNIT takes list their numbers, without axes of size
    1. () if no forward pass shows it, if the tensor was split or joined, or if it is no matrix and no vector with as
    many columns as a patch has numbers.
    """
    piece = unit.pieces.get(role)
    if piece is None or not piece.is_whole or len(piece.shape) > 2:
        return ()
    axes = piece.entry.facts.pixels
    return tuple(a for a in axes if a.size > 1) if piece.shape[-1:] == (prod(a.size for a in axes),) else ()


def _letters(axes: tuple[Axis, ...]) -> str:
    return "".join(axis.letter for axis in axes)


def _moved(x: Expr, shape: Shape, own: tuple[Axis, ...], theirs: tuple[Axis, ...]) -> Expr:
    """Return X, of sizes SHAPE, with its last dimension in the order OWN instead of THEIRS."""
    outer = shape[:-1]
    apart = ex.reshape(x, (*outer, *(axis.size for axis in theirs)))
    order = (theirs.index(axis) + len(outer) for axis in own)
    return ex.reshape(ex.permute(apart, *range(len(outer)), *order), shape)


__all__ = ["doubt_patch_order"]
