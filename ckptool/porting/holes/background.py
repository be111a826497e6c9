"""Detectors have a class for the background, and code counts it first or last: ask which."""

from __future__ import annotations

from collections.abc import Iterable

from .. import expression as ex
from ..expression import Expr
from ..matching.units import Path, Unit, label_of
from ..questions import Reason
from .filling import Filling


def doubt_background(filling: Filling) -> None:
    """Ask about the rows of layers for three classes or more, if the two codes may count the background in different
    places. The options have the last row first, and the first row last; if the source has boxes for all classes, in
    the opposite order.

    A layer counts the background if a layer for boxes in its module has four rows for each class but one (in other
    code, for each class). It is asked about if the model's layer does, and some pair of the two models has unequal last
    names; or if on one side it does, and on the other side a layer for boxes has four rows for each class. Which layers
    are for classes and for boxes, names say.
    """
    pairs = {id(t): (t, s) for t, s in filling.unit_of.values()}.values()
    renamed = any(t.path[-1:] != s.path[-1:] for t, s in pairs)
    boxes = [
        _boxes([*(pair[side] for pair in pairs), *free])
        for side, free in enumerate((filling.matching.free_targets, filling.matching.free_sources))
    ]
    for t, s in pairs:
        rows = t.main.shape[0] if t.main.shape else 0
        if rows < 3 or label_of(t, "task") != "classes":
            continue
        without, with_it = (
            [(unit.path[:-1], 4 * n) in held for unit, held in zip((t, s), boxes, strict=True)]
            for n in (rows - 1, rows)
        )
        unlike = (without[0] and with_it[1]) or (without[1] and with_it[0])
        if not unlike and not (renamed and without[0]):
            continue
        for role, piece in t.pieces.items():
            filled = filling.holes.get(piece.name)
            if filled is not None and role in s.pieces:
                options = [_turned(filled.expr, rows, rows - 1), _turned(filled.expr, rows, 1)]
                filled.ask(Reason.BACKGROUND, options=options[::-1] if with_it[1] else options)


def _boxes(units: Iterable[Unit]) -> set[tuple[Path, int]]:
    """Return (path of the module around it, number of rows) of each of UNITS whose name says that it is for boxes."""
    return {(u.path[:-1], u.main.shape[0]) for u in units if u.main.shape and label_of(u, "task") == "boxes"}


def _turned(e: Expr, rows: int, at: int) -> Expr:
    """Return E, which has ROWS rows, with the rows from AT on before the others."""
    return ex.cat(0, ex.part(e, 0, at, rows), ex.part(e, 0, 0, at))
