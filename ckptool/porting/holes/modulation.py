"""Layers whose output is split into scale and shift, or into value and gate: which part comes first.

Code that conditions norms takes shift and scale from one layer: shift first if the layer is beside the norm (Peebles
and Xie, "Scalable Diffusion Models with Transformers", 2023), scale first if it is inside (FiLM; Perez et al., 2018).
Gated feed-forward layers return gate and value, in either order. No shape shows which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...model_code.signature import Gate
from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import Piece
from ..forms.projections import fused_kind, open_gate
from ..matching.evidence import Kind
from ..matching.units import Unit
from ..questions import Reason
from ..words import table, words_of
from .filling import Filling


def doubt_modulation(filling: Filling) -> None:
    """Ask about layers that return scale and shift: only the source's code shows which comes first. If both forward
    passes show it, the parts are exchanged or kept without a question. Nothing is asked if the two sides have the same
    names.

    Usually all layers of a model have one order, and layers beside the norm give the shift first. If the model's code
    splits a layer in another order than most of its layers, the parts are exchanged, with a question. Else a layer that
    scales first, or has only two parts, is asked about; the parts are exchanged only if its name in the source says the
    other order.
    A layer is certain, and not asked about, under an equal name or of the same code, if its name in the source surely
    says the model's order, or says that the shift is first as in the model, or if it also returns gates and the model
    takes the shift first. Layers that scale first in both codes, under names that say nothing, get a needless doubt.
    Where the model was not traced, all layers with such names and 2, 3, 6 or 9 parts are asked about.
    """
    if filling.same_names:
        return
    layers = [(t, s, taken) for t, s in filling.matching.pairs if (taken := _taken(t)) and _is_filled(filling, t)]
    first = Counter(taken[0] for *_, taken in layers)
    usual = max(first, key=first.__getitem__) if first else ""
    for t, s, taken in layers:
        if filling.same_code(t, s) or t.told_by(Kind.NAME) or t.path[-2:] == s.path[-2:]:
            continue
        theirs = _taken(s)
        if theirs:
            if theirs[0] != taken[0]:
                _turn(filling, t, len(taken), None)
            continue
        own = "shift" if taken[0] == "add" else "scale"
        said, sure = _first_by_name(s) or ("", False)
        if said == own and (sure or own == "shift"):
            continue
        if len(first) > 1 and taken[0] != usual:
            _turn(filling, t, len(taken), Reason.MODULATION_ELSEWHERE)
        elif own == "scale" or len(taken) == 2:
            _turn(filling, t, len(taken), Reason.MODULATION, kept=said in ("", own))
    # Where the model was not followed, every layer with such a name is a guess.
    for t, s in () if filling.target.signature.traced else filling.matching.pairs:
        parts = _parts_of(t)
        named = _first_by_name(t) or _first_by_name(s)
        if parts and named and t.path[-2:] != s.path[-2:] and not filling.same_code(t, s):
            _turn(filling, t, parts, Reason.MODULATION_UNSEEN, kept=True)


def doubt_gates(filling: Filling) -> None:
    """Ask, of layers of the model that return a value and its gate (`open_gate`), which half is the gate in the source.
    If both forward passes show it, the halves are exchanged or kept without a question.

    Else the usual order is taken for the source, and the other is the option: the gate is first if the source's name
    begins with it or if it goes through silu, and second otherwise (Shazeer, "GLU Variants Improve Transformer", 2020,
    has one layer for each). Nothing is asked if the name shows the order, if names or codes are equal, or if the weight
    was joined from parts with names.
    """
    if filling.same_names:
        return
    for t, s in filling.matching.pairs:
        gate, whole = _gate(t), _whole(s)
        theirs = whole.entry.facts.gate if whole is not None else None
        if gate is None or not _is_filled(filling, t) or t.told_by(Kind.NAME) or t.path[-2:] == s.path[-2:]:
            continue
        if theirs is not None and theirs.half != gate.half:
            _turn(filling, t, 2, None)
        if theirs is not None or filling.same_code(t, s):
            continue
        if whole is None:
            continue  # put together of parts with names
        if "glu" in s.words and gate.half == 1 and gate.activation in _OF_GLU:
            continue  # whose order torch and the paper of that name define
        kind = fused_kind(whole)
        named = kind is not None and kind.parts[0] == "gate"
        first = 0 if named or gate.activation == "silu" else 1
        if not (kind is not None and named and kind.sure and gate.half == first):
            _turn(filling, t, 2, Reason.GATE_HALF, kept=gate.half == first)


#: Activations of what a layer called `glu` computes (Dauphin et al., "Language Modeling with Gated Convolutional
#: Networks", 2017).
_OF_GLU = frozenset({"glu", "sigmoid"})


def _taken(unit: Unit) -> tuple[str, ...]:
    """Return what the code does with each part of the output of UNIT, a layer that returns scale and shift: ("add",
    "mul", …) if the shift is first, ("mul", "add", …) if the scale is; () for other layers, and if the forward pass is
    not known.
    """
    piece = _whole(unit)
    taken = piece.entry.facts.modulates if piece is not None else ()
    return taken if {*taken[:2]} == {"add", "mul"} else ()


def _gate(unit: Unit) -> Gate | None:
    """Return which half of the output of UNIT is the gate in its side's code, and the activation; None if it has no
    gate, if it is a convolution before torch's `glu`, if its weight was split or joined, or if the forward pass does
    not show it.
    """
    piece = _whole(unit)
    return open_gate(piece.entry) if piece is not None else None


def _whole(unit: Unit) -> Piece | None:
    """Return the weight of UNIT; None if it has none, or if the weight does not have the sizes of its key, because it
    was split or joined.
    """
    piece = unit.pieces.get("weight")
    return piece if piece is not None and piece.shape == piece.entry.shape else None


def _is_filled(filling: Filling, unit: Unit) -> bool:
    piece = unit.pieces.get("weight")
    return piece is not None and piece.name in filling.holes


def _parts_of(unit: Unit) -> int:
    """Return how many parts the output of UNIT has, if its weight is a matrix with 2, 3, 6 or 9 times as many rows as
    columns; else 0.
    """
    piece = unit.pieces.get("weight")
    shape = piece.shape if piece is not None else ()
    times, rest = divmod(shape[0], shape[1]) if len(shape) == 2 and shape[1] else (0, 1)
    return times if not rest and times in (2, 3, 6, 9) else 0


def _first_by_name(unit: Unit) -> tuple[str, bool] | None:
    """Return ("shift" or "scale", whether all code with this name agrees): which part UNIT returns first by the longest
    known phrase in the last three components of its path; None if there is none.
    """
    known = table().modulation
    words = words_of(unit.path[-3:])
    spans = sorted((words[a:b] for a in range(len(words)) for b in range(a + 1, len(words) + 1)), key=len, reverse=True)
    return next((known[one] for one in spans if one in known), None)


def _turn(filling: Filling, unit: Unit, parts: int, why: Reason | None, *, kept: bool = False) -> None:
    """Exchange the first two parts of the output of UNIT; of a number of parts that 3 divides, the first two of each
    three. Tensors whose rows PARTS does not divide stay.

    Args:
        filling: the holes.
        unit: the layer of the target.
        parts: how many parts its output has.
        why: the question to ask, with the layer as it was as the option; None if the code shows the order.
        kept: leave the layer as it is, with the exchange as the option.
    """
    for piece in unit.pieces.values():
        filled = filling.holes.get(piece.name)
        if filled is None or not piece.shape or piece.shape[0] % parts:
            continue
        turned = ex.cat(0, *_exchanged(filled.expr, piece.shape[0] // parts, parts))
        if why is not None:
            filled.ask(why, options=[turned], exchange=not kept)
        elif not kept:
            filled.expr = turned


def _exchanged(whole: Expr, size: int, parts: int) -> Sequence[Expr]:
    cut = [ex.part(whole, 0, size * n, size * (n + 1)) for n in range(parts)]
    step = 3 if parts % 3 == 0 else parts
    for at in range(0, parts, step):
        cut[at], cut[at + 1] = cut[at + 1], cut[at]
    return cut
