"""Detectors have a class for the background, and code counts it first or last: ask which."""

from __future__ import annotations

from collections.abc import Iterable

from .. import expression as ex
from ..expression import Expr
from ..matching.units import Path, Unit, label_of
from ..questions import Reason
from .filling import Filling


def doubt_background(filling: Filling) -> None:
    """Ask about the rows of each layer for classes if the two codes may count the background in different places, first
    or last. Every filled tensor of a role that both units have gets a question with two options: the last row moved to
    the front, and the first row moved to the end. The second comes first if the source's layer for boxes has 4 * N
    rows. The tensors stay as they are.

    A pair is of a layer for classes, with N rows (three or more), if the name of its target says so; names also say
    which layers are for boxes. A layer for boxes in the same module with 4 * (N - 1) rows shows that the classes
    include the background; in other code it has 4 * N. A pair is asked about in two cases: one side has 4 * (N - 1)
    rows and the other side 4 * N; or the model has 4 * (N - 1), and some filled pair of the whole mapping has two
    different last names.
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
    """Return (path of the module around the unit, number of rows) for each of UNITS that is a layer for boxes by its
    name; scalars are left out.
    """
    return {(u.path[:-1], u.main.shape[0]) for u in units if u.main.shape and label_of(u, "task") == "boxes"}


def _turned(e: Expr, rows: int, at: int) -> Expr:
    """Return E, which has ROWS rows, with the rows from AT on before the others."""
    return ex.cat(0, ex.part(e, 0, at, rows), ex.part(e, 0, 0, at))
