"""Layers whose output is split into scale and shift, or into value and gate: which part comes first.

Code that conditions norms takes shift and scale from one layer: shift first if the layer is beside the norm (Peebles
and Xie, "Scalable Diffusion Models with Transformers", 2023), scale first if it is inside (FiLM; Perez et al., 2018).
Gated feed-forward layers return gate and value, in either order. No shape shows which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from ...model_code.signature import Gate
from .. import expression as ex
from ..expression import Expr
from ..forms.fusing.projections import fused_kind, open_gate
from ..forms.pieces import Piece
from ..matching.units import Unit
from ..questions import Reason
from ..words import table, words_of
from .filling import Change, Filled, Filling


def doubt_modulation(filling: Filling) -> None:
    """Ask about each layer of the model that returns scale and shift (`_taken`) in which order the source has these two
    parts (`_doubt_order`). If both forward passes show what is done with each part, the parts are put into the model's
    order (`_places_of`), without a question. Else nothing
    is done if the source has the keys of all parameters of the model (`same_names`), or for pairs of one name or the
    same code (`Filling.written_once`).

    If the model was not traced, and the source lacks the key of some parameter of the model, a pair is asked about if
    all of these are true: the name of T or of S is one for scale and shift (`_first_by_name`); the weight of T has 2,
    3, 6 or 9 times as many rows as columns (`_parts_of`); the last two components of the paths differ; and the two are
    not of the same code (`Filling.same_code`). The option is the layer with its parts exchanged.
    """
    layers = [(t, s, taken) for t, s in filling.matching.pairs if (taken := _taken(t)) and _is_filled(filling, t)]
    first = Counter(taken[0] for *_, taken in layers)
    for t, s, taken in layers:
        theirs = _taken(s)
        if theirs and theirs != taken:
            _reorder(filling, t, _places_of(taken, theirs))
        elif not theirs and not filling.same_names and not filling.written_once(t, s):
            _doubt_order(filling, t, s, taken, unusual=taken[0] != first.most_common(1)[0][0])
    if not filling.target.signature.traced and not filling.same_names:
        for t, s in filling.matching.pairs:
            named = _first_by_name(t) or _first_by_name(s)
            if _parts_of(t) and named and t.path[-2:] != s.path[-2:] and not filling.same_code(t, s):
                _ask(filling, t, _parts_of(t), Reason.MODULATION_UNSEEN)


def _doubt_order(filling: Filling, t: Unit, s: Unit, taken: tuple[str, ...], *, unusual: bool) -> None:
    """Ask whether S, the partner of T, has scale and shift in the order of T. TAKEN is what the model's code does with
    each part of the output of T: "add" (a shift), "mul" (a scale), or "". If the exchanged parts are taken, the plain
    ones are the option. The first of these that applies decides:

    - the name of S says the order of T, surely or with the shift first: nothing is asked;
    - the order of T is UNUSUAL, not that of most such layers of the model: the exchanged parts are taken;
    - the scale is first in T, or it has only two parts: the exchanged parts are taken if the name of S says the other
      order, and are the option if not;
    - the shift is first in T, which has further parts (gates): nothing is asked.
    """
    own = "shift" if taken[0] == "add" else "scale"
    said, sure = _first_by_name(s) or ("", False)
    if said == own and (sure or own == "shift"):
        return
    if unusual:
        _ask(filling, t, len(taken), Reason.MODULATION_ELSEWHERE, exchange=True)
    elif own == "scale" or len(taken) == 2:
        _ask(filling, t, len(taken), Reason.MODULATION, exchange=said not in ("", own))


def doubt_gates(filling: Filling) -> None:
    """Ask about each layer of the model that returns a value and its gate (`_gate`) which half of its output is the
    gate in the source (`_doubt_half`, `_doubt_far`). If both forward passes show it, the halves are exchanged if the
    codes differ, and kept if not, without a question. A layer is left out if its weight is not filled, or if its
    partner has no weight that was neither split nor joined.

    If the source's code does not show the gate, nothing is asked if the source has the keys of all parameters of the
    model (`same_names`), about pairs of one name or of the same code (`Filling.written_once`), nor about layers called
    `glu` whose gate is where torch's `glu` has it (`_is_of_glu`).
    """
    for t, s in filling.matching.pairs:
        gate, whole = _gate(t), _whole(s)
        if gate is None or whole is None or not _is_filled(filling, t):
            continue
        theirs = whole.entry.facts.gate
        if theirs is not None:
            if theirs.half != gate.half:
                _reorder(filling, t, [1, 0])
        elif filling.same_names or filling.written_once(t, s) or _is_of_glu(s, gate):
            continue
        elif gate.far:
            _doubt_far(filling, t, gate)
        else:
            _doubt_half(filling, t, gate, whole)


def _is_of_glu(s: Unit, gate: Gate) -> bool:
    """Return whether S is called `glu` and GATE is the second half, through a sigmoid: torch and the paper of that name
    define this order.
    """
    return "glu" in s.words and gate.half == 1 and gate.activation in _OF_GLU


def _doubt_half(filling: Filling, t: Unit, gate: Gate, whole: Piece) -> None:
    """Ask which half of T is the gate in the source, whose weight is WHOLE; GATE is that of the model. In the source,
    the gate is taken to be first if the name of WHOLE says so, or if the model's gate goes through silu, and second
    otherwise (Shazeer, "GLU Variants Improve Transformer", 2020, has one layer for each). If that is the model's half,
    the tensors stay, and the option has the halves exchanged. If it is the other half, the halves of a linear layer are
    exchanged, and the plain tensor is the option; a convolution, which has no usual order (WaveNet has the gate second,
    DiffWave and Restormer first), stays as it is, with the exchanged halves as the option. Nothing is asked if the name
    surely says that the gate is first, and it is first in the model.
    """
    kind = fused_kind(whole)
    named = kind is not None and kind.parts[0] == "gate"
    first = 0 if named or gate.activation == "silu" else 1
    if kind is None or not named or not kind.sure or gate.half != first:
        _ask(filling, t, 2, Reason.GATE_HALF, exchange=gate.half != first and t.main.entry.how == "linear")


def _doubt_far(filling: Filling, t: Unit, gate: Gate) -> None:
    """Exchange the halves of T and ask, if GATE, its gate, is the first half and no sigmoid: code with further layers
    between the value and the product has the value first (Gu and Dao, "Mamba", 2023). Recurrent cells have sigmoids.
    """
    if gate.half == 0 and not gate.is_sigmoid:
        _ask(filling, t, 2, Reason.GATE_HALF, exchange=True)


#: Activations of what a layer called `glu` computes (Dauphin et al., "Language Modeling with Gated Convolutional
#: Networks", 2017).
_OF_GLU = frozenset({"glu", "sigmoid"})


def _taken(unit: Unit) -> tuple[str, ...]:
    """Return what code does with each part of the output of UNIT, a layer that returns scale and shift: ("add", "mul",
    …) if the shift is first, ("mul", "add", …) if the scale is. () for other layers, and if the forward pass does not
    show it.
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
    return piece if piece is not None and piece.is_whole else None


def _is_filled(filling: Filling, unit: Unit) -> bool:
    """Return whether UNIT has a weight that is filled."""
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
    """Return (the part that UNIT returns first by its name, "shift" or "scale"; whether all code with this name
    agrees). A phrase of the vocabulary (`modulation`) in the last three components of its path decides: the one with
    most words, or of several with as many, the first in the path (`film` in `film.modulation`). None without a phrase.
    """
    known = table().modulation
    words = words_of(unit.path[-3:])
    spans = sorted((words[a:b] for a in range(len(words)) for b in range(a + 1, len(words) + 1)), key=len, reverse=True)
    return next((known[one] for one in spans if one in known), None)


def _ask(filling: Filling, unit: Unit, parts: int, why: Reason, *, exchange: bool = False) -> None:
    """Ask with the reason WHY about each filled tensor of UNIT, a layer of the target with PARTS parts in its output,
    if PARTS divides its rows. The tensor with parts exchanged (`_exchanged`: the first two, or the first two of each
    three) is the option; with EXCHANGE it is taken, and the other is the option.
    """
    for filled, turn in _with_exchange(filling, unit, parts):
        filled.ask(why, other=turn, exchange=exchange)


def _places_of(taken: tuple[str, ...], theirs: tuple[str, ...]) -> list[int]:
    """Return for each part of TAKEN, what the model's code does with the parts of an output, which part of the source's
    code, whose parts are THEIRS, is that one: its first shift is the first shift there, and so on. If the two have not
    equally many of each, only the first two parts are exchanged (`_exchanged_places`), if one begins with a shift and
    the other with a scale.
    """
    if Counter(taken) != Counter(theirs):
        return _exchanged_places(len(taken)) if theirs[0] != taken[0] else [*range(len(taken))]
    left = {kind: iter([at for at, one in enumerate(theirs) if one == kind]) for kind in set(theirs)}
    return [next(left[kind]) for kind in taken]


def _reorder(filling: Filling, unit: Unit, places: Sequence[int]) -> None:
    """Put the parts of each filled tensor of UNIT into the order PLACES (of each new part, its place before), without a
    question; tensors whose rows the number of parts does not divide stay.
    """
    if list(places) == sorted(places):
        return
    for piece in unit.pieces.values():
        if piece.name in filling.holes and piece.shape and piece.shape[0] % len(places) == 0:
            size = piece.shape[0] // len(places)
            filling.holes[piece.name].change(partial(_in_places, size=size, places=places))


def _with_exchange(filling: Filling, unit: Unit, parts: int) -> list[tuple[Filled, Change]]:
    """Return (`Filled` of a tensor, the change that exchanges its parts, `_exchanged`) for each filled tensor of UNIT
    whose number of rows PARTS divides. Nothing is changed.
    """
    return [
        (filling.holes[p.name], partial(_exchanged, size=p.shape[0] // parts, parts=parts))
        for p in unit.pieces.values()
        if p.name in filling.holes and p.shape and p.shape[0] % parts == 0
    ]


def _exchanged(whole: Expr, size: int, parts: int) -> Expr:
    """Return WHOLE, PARTS parts of SIZE rows each, with the first two exchanged; if 3 divides PARTS, the first two of
    each three.
    """
    return _in_places(whole, size, _exchanged_places(parts))


def _exchanged_places(parts: int) -> list[int]:
    """Return the places of PARTS parts, from 0, with the first two exchanged; if 3 divides PARTS, the first two of each
    three.
    """
    places = [*range(parts)]
    for at in range(0, parts, 3 if parts % 3 == 0 else parts):
        places[at], places[at + 1] = places[at + 1], places[at]
    return places


def _in_places(whole: Expr, size: int, places: Sequence[int]) -> Expr:
    """Return WHOLE, parts of SIZE rows each, with its parts in the order PLACES: of each new part, its place before."""
    return ex.cat(0, *(ex.part(whole, 0, size * at, size * (at + 1)) for at in places))
