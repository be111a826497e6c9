"""Layers whose output code cuts into three parts of one size for three uses: only the source's code shows the order.

Message passing over vectors takes three factors out of one layer (Schütt et al., "Equivariant Message Passing", 2021),
and each code has its own order. The names that the model's code gives to the parts show that they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from ...model_code.signature import Part
from .. import expression as ex
from ..expression import Expr
from ..forms.fusing.projections import said_part
from ..forms.pieces import Piece
from ..matching.units import Path, Unit
from ..questions import Reason
from ..words import cut, label, table
from .filling import Filled, Filling

#: So many parts have orders that can be listed: five beside the model's. Halves are asked about by what is done with
#: them, and four parts are most often the gates of a cell.
_PARTS = 3


def doubt_thirds(filling: Filling) -> None:
    """Add questions to what fills holes (`Filled`) of layers whose output the model's code cuts into three parts of one
    size with three different names, because the source's code may have another order of these parts. Parts of fused
    projections (q, k, v) and a scale with a shift get none: other rules know them (`_are_thirds`).

    - THIRDS, with the five other orders of the rows as options, unless both codes give the parts the same names in the
      same order.
    - HALVES_BESIDE_THIRDS, with the other order of the halves as the option, for layers in the module (`_module_of`) of
      a layer that got THIRDS, if they take two concatenated tensors of one size (then of their columns), or else if the
      model's code cuts their output into two parts of one size (of their rows). Code with its own order of thirds may
      also have its own order of halves. Not asked if both codes show the same names and sizes for the two.

    The tensors stay. Only tensors of `_written_anew` get questions, and none if the source has the keys of all
    parameters of the model (`same_names`).
    """
    if filling.same_names:
        return
    asked = set()
    for t, s, filled, piece in _written_anew(filling):
        facts = t.main.entry.facts
        if not _are_thirds(facts.parts, piece.shape[0]) or _names(t) == _names(s):
            continue
        asked.add(_module_of(t))
        one = sum(part.size for part in facts.parts)
        filled.ask(Reason.THIRDS, options=_other_orders(filled.expr, 0, one, _PARTS, piece.shape[0] // one))
    for t, s, filled, piece in _written_anew(filling):
        if _module_of(t) not in asked:
            continue
        here, there = t.main.entry.facts, s.main.entry.facts
        if len(piece.shape) > 1 and _are_halves(here.takes, piece.shape[1]) and here.takes != there.takes:
            filled.ask(Reason.HALVES_BESIDE_THIRDS, options=_other_orders(filled.expr, 1, piece.shape[1], 2))
        elif _are_halves(here.parts, piece.shape[0]) and here.parts != there.parts:
            filled.ask(Reason.HALVES_BESIDE_THIRDS, options=_other_orders(filled.expr, 0, piece.shape[0], 2))


def _written_anew(filling: Filling) -> Iterator[tuple[Unit, Unit, Filled, Piece]]:
    """Yield (layer of the model, layer of the source, what fills the tensor, tensor of the model) for tensors that two
    different codes may lay out differently: each filled tensor of a pair whose two layers neither have one name nor
    come from the same code (`Filling.written_once`). Left out are single numbers, and tensors whose expression joins
    several (`cat`).
    """
    for t, s in filling.matching.pairs:
        if filling.written_once(t, s):
            continue
        for piece in t.pieces.values():
            filled = filling.holes.get(piece.name)
            if filled is not None and piece.shape and "cat" not in filled.expr.operations():
                yield t, s, filled, piece


def _are_thirds(parts: Sequence[Part], rows: int) -> bool:
    """Return whether PARTS, which code cuts an output into, are three of one size above 0 with three different names,
    and ROWS, the number of rows of a tensor, is a multiple of three times this size (one layer or several). False if
    all names mean parts of fused projections ("q", "gate"), or if one means "scale" and one "shift": other rules know
    these.
    """
    names = {part.name for part in parts} - {""}
    sizes = {part.size for part in parts}
    if len(parts) != _PARTS or len(names) != _PARTS or len(sizes) != 1 or all(said_part(cut(name)) for name in names):
        return False
    if {"scale", "shift"} <= {label(table().group("affine"), cut(name)) for name in names}:
        return False  # shift, scale and gate have a rule of their own
    (size,) = sizes
    return size > 0 and rows % (size * _PARTS) == 0


def _are_halves(parts: Sequence[Part], size: int) -> bool:
    """Return whether PARTS are exactly two parts of equal size, whose sizes add up to SIZE."""
    sizes = [part.size for part in parts]
    return len(sizes) == 2 and sizes[0] == sizes[1] and sum(sizes) == size


def _module_of(unit: Unit) -> Path:
    """Return the path of the module that UNIT is in; of a member of a list or of an `nn.Sequential`, of the module that
    this one is in: `h.0` for `h.0.proj` and for `h.0.net.2`.
    """
    return unit.path[:-2] if unit.path and unit.path[-1].isdecimal() else unit.path[:-1]


def _names(unit: Unit) -> tuple[str, ...]:
    """Return the names that code gives to the parts of the output of UNIT, in their order, "" for a part without a
    name; () if code is not known to divide it.
    """
    return tuple(part.name for part in unit.main.entry.facts.parts)


def _other_orders(whole: Expr, dim: int, size: int, count: int, layers: int = 1) -> list[Expr]:
    """Return expressions of WHOLE with its COUNT equal parts along dimension DIM in each order but the present one, the
    opposite order first: five for three parts, one for two. WHOLE holds LAYERS layers along DIM, one after the other,
    of SIZE elements each, and the parts of each layer get the same order.
    """
    wide = size // count
    cut_up = [ex.part(whole, dim, wide * n, wide * (n + 1)) for n in range(count * layers)]
    orders = sorted(permutations(range(count)), reverse=True)[:-1]
    return [ex.cat(dim, *(cut_up[count * at + n] for at in range(layers) for n in order)) for order in orders]
