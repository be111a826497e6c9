"""Detectors have a class for the background, and code counts it first or last: ask which."""

from __future__ import annotations

from .. import expression as ex
from ..expression import Expr
from ..matching.units import label_of
from ..questions import Reason
from .filling import Filling


def doubt_background(filling: Filling) -> None:
    """Ask about layers for classes that have three classes or more, one more than a layer for boxes in the same module
    has, unless all pairs of the two models have equal last names. The option has the last row first.

    Boxes have four rows for each class except the background. The names of the layers of the model say what they are
    for.
    """
    pairs = {id(t): (t, s) for t, s in filling.unit_of.values()}.values()
    if not any(t.path[-1:] != s.path[-1:] for t, s in pairs):
        return
    boxes = {(t.path[:-1], t.main.shape[0]) for t, _ in pairs if t.main.shape and label_of(t, "task") == "boxes"}
    for t, s in pairs:
        rows = t.main.shape[0] if t.main.shape else 0
        if rows < 3 or label_of(t, "task") != "classes" or (t.path[:-1], 4 * (rows - 1)) not in boxes:
            continue
        for role, piece in t.pieces.items():
            filled = filling.holes.get(piece.name)
            if filled is not None and role in s.pieces:
                filled.ask(Reason.BACKGROUND, options=[_turned(filled.expr, rows)])


def _turned(e: Expr, rows: int) -> Expr:
    """Return E, which has ROWS rows, with the last row first."""
    return ex.cat(0, ex.part(e, 0, rows - 1, rows), ex.part(e, 0, 0, rows - 1))
