"""Tables for the two sides of a picture, where sizes of 1 say for one code alone which table goes along which side."""

from __future__ import annotations

from collections import defaultdict

from .. import expression as ex
from ..forms.pieces import Piece, squeezed
from ..matching.evidence import Kind
from ..questions import Reason
from .filling import Filled, Filling


def doubt_broadcast(filling: Filling) -> None:
    """Ask about two or more parameters of one module that on one side all differ in the places of their sizes of 1 ([1,
    8, 4], [8, 1, 4]), and have one shape on the other side, where only an index in the code (`w[:, None]`) shows along
    which dimension a parameter is added. Names say little there: some code calls "width" what lies along the height.
    The parameters stay; the options of each are what fills the others of the module, reshaped to its sizes.

    Only parameters that may be exchanged are compared: they have one role, their modules and those of their partners
    are the same, and their shapes, as stored on both sides, are equal but for sizes of 1 and have equally many
    dimensions per side.

    Nothing is asked about parameters that were paired by equal names, or whose expression reads anything but one whole
    key of the file, that of their partner. Nothing at all is asked if the source has the keys of all parameters of the
    model (`same_names`).
    """
    modules: dict[object, list[tuple[Piece, Piece, Filled]]] = defaultdict(list)
    for hole, filled in () if filling.same_names else filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, own = filling.target.pieces.get(hole), s.pieces.get(hole.role, s.main)
        if piece is None or t.told_by(Kind.NAME) or filled.expr.keys() != own.expr.keys() or not own.expr.is_copy:
            continue
        sizes, theirs = squeezed(piece.entry.shape), squeezed(own.entry.shape)
        if sizes == theirs:
            at = piece.path[:-1], own.path[:-1], piece.role
            modules[at, sizes, len(piece.entry.shape), len(own.entry.shape)].append((piece, own, filled))
    for alike in modules.values():
        shapes = {piece.entry.shape for piece, _, _ in alike}, {own.entry.shape for _, own, _ in alike}
        if len(alike) < 2 or sorted(map(len, shapes)) != [1, len(alike)]:
            continue
        made = [(filled.expr, piece.shape) for piece, _, filled in alike]
        for place, (piece, _, filled) in enumerate(alike):
            others = [ex.reshape(expr, piece.shape, shape) for expr, shape in made[:place] + made[place + 1 :]]
            filled.ask(Reason.BROADCAST, options=others)


__all__ = ["doubt_broadcast"]
