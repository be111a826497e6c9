"""Detectors have a class for the background, and code counts it first or last: ask which."""

from __future__ import annotations

from collections.abc import Iterable

from .. import expression as ex
from ..expression import Expr
from ..matching.units import Path, Unit, label_of
from ..questions import Reason
from .filling import Filling


def doubt_background(filling: Filling) -> None:
    """Ask about layers for classes that have three classes or more, one more than a layer for boxes in the same module
    has, unless all pairs of the two models have equal last names. Ask despite equal names if only one side has boxes
    for the background, too. The options have the last row first, and the first row last.

    Boxes have four rows for each class, and in some code none for the background. Names say what layers are for, on the
    side of the model for its layers, and on that of the source for those of the source.
    """
    pairs = {id(t): (t, s) for t, s in filling.unit_of.values()}.values()
    renamed = any(t.path[-1:] != s.path[-1:] for t, s in pairs)
    own = _boxes([*(t for t, _ in pairs), *filling.matching.free_targets])
    theirs = _boxes([*(s for _, s in pairs), *filling.matching.free_sources])
    for t, s in pairs:
        rows = t.main.shape[0] if t.main.shape else 0
        if rows < 3 or label_of(t, "task") != "classes":
            continue
        without = (t.path[:-1], 4 * (rows - 1)) in own, (s.path[:-1], 4 * (rows - 1)) in theirs
        with_it = (t.path[:-1], 4 * rows) in own, (s.path[:-1], 4 * rows) in theirs
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
