"""Name the weights of graph operators (ONNX, TFLite) as layers, whatever names they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ....checkpoint import Role
from ... import expression as ex
from ...expression import Expr
from ...questions import Reason
from ..exported import is_numbered
from ..gates import reordered
from ..pieces import Canon, Piece, unchanged
from .axes import is_transposed_layer

#: Parts of which each layer has one; the others of a layer are as long as its outputs.
_LEADING = ("kernel", "depthwise_kernel", "gamma")
#: Frameworks whose files hold constants of a graph beside the weights.
_GRAPHS = frozenset({"onnx", "tflite"})
#: Operator of a recurrent layer -> its gates in the order of ONNX, and in that of torch. A GRU of ONNX computes what
#: torch's does only with an attribute that roles do not have, so it is left out.
_GATES = {"LSTM": (("i", "o", "f", "g"), ("i", "f", "g", "o")), "RNN": (("h",), ("h",))}


def _role(piece: Piece) -> Role:
    return piece.entry.stated or Role()


def join_operators(source: Canon) -> None:
    """Give the weights of one operator one path: the bias of a Conv that of its kernel, and so for the four tensors of
    a batch norm.

    Weights that have one path already stay. If several operators are possible, the order in the file decides, with a
    question.
    """
    of_graph: dict[str, list[Piece]] = defaultdict(list)
    if source.signature.framework in _GRAPHS:  # whole numbers that no operator takes as weights are sizes and axes
        for name, piece in list(source.pieces.items()):
            if piece.entry.stated is None and "int" in piece.entry.dtype:
                del source.pieces[name]
    for piece in source.pieces.values():
        if _role(piece).told_by == "operator" and not is_numbered(piece):
            of_graph[_role(piece).layer].append(piece)
    for operator, pieces in of_graph.items():
        if operator in _GATES:
            _join_cells(source, pieces, *_GATES[operator])
        else:
            _join_layers(source, pieces)


def _join_layers(source: Canon, pieces: Sequence[Piece]) -> None:
    leads: dict[int, list[Piece]] = defaultdict(list)
    others: dict[tuple[int, str], list[Piece]] = defaultdict(list)
    for piece in pieces:
        if _role(piece).part in _LEADING:
            leads[_outputs(piece)].append(piece)
        elif len(piece.shape) == 1 and piece.name.beside("weight") not in source.pieces:
            others[piece.shape[0], piece.role].append(piece)
    for (outputs, role), found in others.items():
        free = [lead for lead in leads[outputs] if lead.name.beside(role) not in source.pieces]
        if len(free) != len(found):
            continue
        for lead, piece in zip(free, found, strict=True):
            made = replace(piece, path=lead.path, words=lead.words)
            if len(free) > 1:
                made = made.asking(Reason.SEVERAL_OPERATORS)
            source.become(piece, [(made, unchanged)], unchanged)


def _outputs(piece: Piece) -> int:
    return piece.shape[1 if len(piece.shape) > 2 and is_transposed_layer(_role(piece)) else 0] if piece.shape else 0


def _join_cells(source: Canon, pieces: Sequence[Piece], have: tuple[str, ...], want: tuple[str, ...]) -> None:
    """Split weights [directions, gates * width, …] of recurrent operators into torch's weights for each direction, with
    the gates in the order WANT; HAVE is their present order. Operators with other sizes stay as they are.
    """
    parts = {name: [p for p in pieces if _role(p).part == name] for name in ("kernel", "recurrent_kernel", "bias")}
    inputs, states, biases = parts.values()
    if len(inputs) != len(states) or len(biases) not in (0, len(inputs)):
        return
    for place, (ih, hh) in enumerate(zip(inputs, states, strict=True)):
        bias = biases[place] if biases else None
        rows = ih.shape[1] if len(ih.shape) == 3 else 0
        fits = rows and hh.shape[:2] == ih.shape[:2] and rows == len(have) * hh.shape[-1]
        if not fits or (bias is not None and bias.shape != (ih.shape[0], 2 * rows)):
            continue
        several = len({p.shape for p in inputs}) < len(inputs)

        def named(piece: Piece, direction: int, role: str, *, of: Piece = ih, ask: bool = several) -> Piece:
            path = (*of.path, "reverse") if direction else of.path
            shape = (rows, *piece.shape[2:])  # noqa: B023 - called before the next layer
            made = replace(piece, path=path, role=role, shape=shape, words=of.words, placed=True)
            return made.asking(Reason.SEVERAL_OPERATORS) if ask else made

        for piece, side in ((ih, "ih"), (hh, "hh")):
            source.become(
                piece,
                [
                    (named(piece, d, f"weight_{side}"), partial(_gates, d=d, cut=(0, rows), have=have, want=want))
                    for d in range(piece.shape[0])
                ],
                _lost,
            )
        if bias is not None:
            new: list[tuple[Piece, Callable[[Expr], Expr]]] = [
                (
                    named(bias, d, f"bias_{side}"),
                    partial(_gates, d=d, cut=(rows * at, rows * (at + 1)), have=have, want=want, whole=2 * rows),
                )
                for d in range(bias.shape[0])
                for at, side in enumerate(("ih", "hh"))
            ]
            source.become(bias, new, _lost)


def _gates(
    e: Expr, *, d: int, cut: tuple[int, int], have: tuple[str, ...], want: tuple[str, ...], whole: int = 0
) -> Expr:
    e = ex.select(e, 0, d)
    e = ex.part(e, 0, *cut) if whole else e
    return e if have == want else reordered(e, cut[1] - cut[0], have, want)


def _lost(*parts: Expr) -> Expr:
    """Return the first of PARTS. It stands in for an inverse, which nobody needs for a source."""
    return parts[0]


__all__ = ["join_operators"]
