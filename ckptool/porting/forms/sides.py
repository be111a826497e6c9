"""Layers of a recurrent cell over the concatenated input and hidden state, and cells with a layer for each of the two,
as in torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import RecurrentCell, table
from .gates import reordered
from .pieces import Canon, Piece


def cut_sides(one: Canon, other: Canon) -> None:
    """Split each weight of ONE [rows, inputs + hidden], over the concatenated input and hidden state of a recurrent
    cell, into `weight_ih` [rows, inputs] and `weight_hh` [rows, hidden], if OTHER has cells with these two (`_cells`).
    A bias of the layer becomes `bias_ih`.

    All weights of one size are split if they are at most as many as the cells of OTHER that make up this size, all
    these cells have equally many inputs, and OTHER has no weight (or `weight_ih`) of this size. Unless the code of ONE
    shows it, it is a question whether the hidden state comes first, and another one in which order the gates are, if
    the layer has as many rows as all gates of a kind of cell.
    """
    for whole, widths in _cells(other).items():
        wholes = [p for p in one.pieces.values() if p.role == "weight" and p.shape == whole]
        apart = any(p.role in ("weight", "weight_ih") and p.shape == whole for p in other.pieces.values())
        if len(set(widths)) == 1 and len(wholes) <= len(widths) and not apart:
            for piece in wholes:
                _cut(one, piece, *widths[0])


def _cells(canon: Canon) -> dict[Shape, list[tuple[int, int]]]:
    """Return sizes -> [(number of inputs, width of the hidden state)] with one entry for each cell of CANON that has a
    `weight_ih` and a `weight_hh` equal in all sizes but the second. The sizes are those of the two side by side along
    the second dimension: a weight over the concatenated input and hidden state.
    """
    cells: dict[Shape, list[tuple[int, int]]] = defaultdict(list)
    for ih in canon.pieces.values():
        hh = canon.pieces.get(ih.name.beside("weight_hh")) if ih.role == "weight_ih" else None
        if hh is not None and min(len(ih.shape), len(hh.shape)) > 1 and _around(ih.shape) == _around(hh.shape):
            whole = (ih.shape[0], ih.shape[1] + hh.shape[1], *ih.shape[2:])
            cells[whole].append((ih.shape[1], hh.shape[1]))
    return cells


def _around(shape: Shape) -> Shape:
    """Return the sizes of a matrix or kernel without its number of inputs, the second size."""
    return (shape[0], *shape[2:])


def _cut(one: Canon, piece: Piece, inputs: int, hidden: int) -> None:
    """Split PIECE of ONE into `weight_ih` with INPUTS columns and `weight_hh` with HIDDEN columns, with the gates in
    torch's order. A bias beside it with as many values as PIECE has rows becomes `bias_ih`, with its gates in this
    order, too.

    The columns of the hidden state are taken to be the first if the code of ONE shows it, and the last otherwise; this
    is a question if the code does not show where they are. The order of the gates is a question if the code does not
    show it (`_orders`); the gates stay if no kind of cell has so many rows. On the source, a question has the other
    way as its option; on the target it has none.
    """
    rows, hidden_at = piece.shape[0], piece.entry.facts.hidden
    have, other, cell = _orders(piece, hidden)
    own: tuple[str, ...] = () if cell is None else cell.gates
    first = ((0, inputs), (inputs, inputs + hidden))
    second = ((hidden, hidden + inputs), (0, hidden))
    if hidden_at == 0:
        first = second

    def asked(made: Piece, whole: Piece, order: Callable[..., Expr]) -> Piece:
        """Return MADE with the question in which order its gates are. ORDER makes MADE of the expression of WHOLE,
        given the present order of the gates. MADE is returned as it is if the code shows the order, or no kind of cell
        fits.
        """
        if cell is None or not other:
            return made
        return made.asking(Reason.GATE_ORDER, ", ".join(have), option=_rival(one, whole, partial(order, have=other)))

    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    for place, side in enumerate(("ih", "hh")):
        side_of = partial(_side_of, edges=first[place], rows=rows, have=have, want=own)
        made = replace(
            piece,
            role=f"weight_{side}",
            shape=(rows, (inputs, hidden)[place], *piece.shape[2:]),
            order=piece.order + place / 8,
            used=None if piece.used is None else piece.used + place / 8,
        )
        if hidden_at is None:
            made = made.asking(Reason.HIDDEN_FIRST, option=_rival(one, piece, partial(side_of, edges=second[place])))
        new.append((asked(made, piece, side_of), side_of))
    bias = one.pieces.get(piece.name.beside("bias"))
    one.become(piece, new, partial(_both, rows=rows, have=own, want=have, turned=hidden_at == 0))
    if bias is not None and bias.shape == (rows,):
        order = partial(reordered, rows=rows, have=have, want=own)
        made = asked(replace(bias, role="bias_ih"), bias, order)
        one.change(bias, made, order, partial(reordered, rows=rows, have=own, want=have))


def _orders(piece: Piece, hidden: int) -> tuple[tuple[str, ...], tuple[str, ...], RecurrentCell | None]:
    """Return (likeliest order of the gates in PIECE, another common order, kind of recurrent cell), such as LSTM; `(),
    (), None` if no kind of cell has so many gates, the rows of PIECE divided by HIDDEN.

    If the code shows the order, it is the first, and the other is (). Else a matrix most likely has torch's order, and
    the kernel of a convolution the other one.
    Args:
        piece: a weight over the concatenated input and hidden state.
        hidden: the width of the hidden state.
    """
    cell = next((c for c in table().cells if piece.shape[0] == len(c.gates) * hidden), None)
    if cell is None:
        return (), (), None
    if sorted(shown := piece.entry.facts.gates) == sorted(cell.gates):
        return shown, (), cell
    # torch has no cells with convolutions, so code that has them does not follow its order
    return (cell.gates, cell.other, cell) if len(piece.shape) == 2 else (cell.other, cell.gates, cell)


def _rival(one: Canon, piece: Piece, make: Callable[[Expr], Expr]) -> Expr | None:
    """Return what MAKE makes of PIECE, as an option on the source; None if ONE is the target."""
    return None if one.is_target else make(piece.expr)


def _side_of(e: Expr, *, edges: tuple[int, int], rows: int, have: tuple[str, ...], want: tuple[str, ...]) -> Expr:
    """Return the columns from EDGES[0] to EDGES[1] - 1 of E, with their gates moved as by `reordered`."""
    return reordered(ex.part(e, 1, *edges), rows=rows, have=have, want=want)


def _both(*sides: Expr, rows: int, have: tuple[str, ...], want: tuple[str, ...], turned: bool) -> Expr:
    """Return the two SIDES side by side, the second one first if TURNED, with their gates moved as by `reordered`."""
    ordered = [reordered(side, rows=rows, have=have, want=want) for side in sides]
    return ex.cat(1, *(ordered[::-1] if turned else ordered))
