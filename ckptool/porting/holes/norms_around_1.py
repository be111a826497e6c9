"""Ask about norm weights to which one of the two codes adds 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .. import expression as ex
from ..forms.pieces import Name, Piece, squeezed
from ..matching.evidence import Kind
from ..matching.units import Unit, label_of
from ..questions import Reason
from ..words import table
from .filling import Filling, Values

#: The unit of a norm in the model, its partner, and its weight in the model.
_Norm = tuple[Unit, Unit, Piece]

#: So many norms are read to judge all.
_READ = 24


def doubt_norms_around_1(filling: Filling) -> None:
    """Shift vectors to which the two codes add different numbers, as both forward passes show (`_added_in_code`). Then
    ask about the other norm weights if their values show that only one of the two codes adds 1 to them: those to which
    the model adds nothing (`_doubt_around_0`), and those to which it adds something (`_doubt_around_1`). If one of the
    former has no open question then, its name may raise one (`_doubt_gamma`). Nothing is asked without values to read.
    """
    told = _added_in_code(filling)
    if filling.values is None:
        return
    norms = [norm for norm in _norms(filling) if norm[2].name not in told]
    _doubt_around_0(filling, filling.values, [norm for norm in norms if not _adds(norm[2])])
    _doubt_around_1(filling, filling.values, [norm for norm in norms if _adds(norm[2])])
    for t, s, piece in norms:
        if not _adds(piece) and not filling.holes[piece.name].doubts:
            _doubt_gamma(filling, t, s, piece)


def _norms(filling: Filling) -> list[_Norm]:
    """Return (T, S, weight of T) for each pair whose T is a norm (`_is_norm`), if that weight is a vector and filled
    with a copy of a source tensor. Left out are weights whose key in the model ends in a name of `beside_bias` in
    words.yaml (`alpha`): they may be another parameter than the weight of a norm.
    """
    found = []
    for t, s in filling.matching.pairs:
        piece = t.pieces.get("weight")
        if piece is None or piece.name not in filling.holes or not filling.holes[piece.name].expr.is_copy:
            continue
        ambiguous = piece.entry.key.rpartition(".")[2] in table().beside_bias
        if len(piece.shape) == 1 and _is_norm(t) and not ambiguous:
            found.append((t, s, piece))
    return found


def _is_norm(unit: Unit) -> bool:
    """Return whether the module or the name of UNIT is that of a norm, and it is no batch norm."""
    named = "norm" in unit.main.entry.module.lower() or label_of(unit, "purpose") == "norm"
    return named and "running_var" not in unit.pieces


def _doubt_around_0(filling: Filling, values: Values, norms: Sequence[_Norm]) -> None:
    """Ask about all of NORMS, to whose weights the model adds nothing, if more than 25 percent of all values of the
    first 24 weights are negative. For a norm with a bias, the option is the weight with 1 added. For one without, the
    weight with 1 added is taken, and the plain one is the option: code that adds 1 has, as a rule, no bias.
    """
    share = _share_of_negatives(values, _keys(filling, norms))
    for t, _, piece in norms if share is not None and share > 0.25 else ():
        filled = filling.holes[piece.name]
        filled.ask(Reason.NORMS_AROUND_0, other=partial(ex.shift, value=1.0), exchange="bias" not in t.pieces)


def _doubt_around_1(filling: Filling, values: Values, norms: Sequence[_Norm]) -> None:
    """Ask about all of NORMS, to whose weights the model adds something, if less than 2 percent of all values of the
    first 24 weights are negative. The weights stay; the option is the weight with 1 subtracted. If each of NORMS has
    the path of its partner or was told by its name, the values also have to be near 1 (`_are_near_1`), because training
    may have moved weights of the same code above 0.
    """
    keys = _keys(filling, norms)
    share = _share_of_negatives(values, keys)
    same_names = all(t.path == s.path or t.told_by(Kind.NAME) for t, s, _ in norms)
    around_1 = share is not None and share < 0.02 and (not same_names or _are_near_1(values, keys))
    for _, _, piece in norms if around_1 else ():
        filled = filling.holes[piece.name]
        filled.ask(Reason.NORMS_AROUND_1, options=[ex.shift(filled.expr, -1.0)])


def _doubt_gamma(filling: Filling, t: Unit, s: Unit, piece: Piece) -> None:
    """Ask whether 1 is added to the weight PIECE of the norm T, if its partner S calls it `gamma` and T does not, and
    neither has a bias. The weight stays; the option has 1 added. Else nothing is asked.
    """
    leaf = s.pieces["weight"].leaf if "weight" in s.pieces else ""
    # code that adds 1 calls a norm weight without a bias gamma, and torch does not
    if leaf == "gamma" != piece.leaf and "bias" not in t.pieces and "bias" not in s.pieces:
        filled = filling.holes[piece.name]
        filled.ask(Reason.MAY_ADD_1, leaf, options=[ex.shift(filled.expr, 1.0)])


def _keys(filling: Filling, norms: Sequence[_Norm]) -> list[str]:
    """Return the keys in the file of the weights of the first 24 of NORMS."""
    return [filling.holes[piece.name].expr.key for _, _, piece in norms[:_READ]]


def _added_in_code(filling: Filling) -> set[Name]:
    """Shift vectors to which the two codes add different numbers, and return the holes of all vectors for which both
    forward passes show the number that code adds (0 for none). What fills a hole has to be a copy of a source tensor.
    If the numbers differ, the source's number minus the model's is added to it, without an open question.
    """
    told = set()
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, own = t.pieces.get(hole.role), s.pieces.get(hole.role)
        if piece is None or own is None or len(squeezed(piece.shape)) != 1 or not filled.expr.is_copy:
            continue
        here, there = _added(piece), _added(own)
        if here is None or there is None:
            continue
        told.add(hole)
        if here != there:
            add = partial(ex.shift, value=there - here)
            filled.learn(add, Reason.PLUS_IN_CODE, f"{there:g}", f"{here:g}", shows=f"adds {there:g} to it")
    return told


def _added(piece: Piece) -> float | None:
    """Return which number code adds to PIECE; None if the forward pass does not show it, or if PIECE is the variance of
    a batch norm, to which torch adds eps.
    """
    if piece.role == "running_var" and piece.entry.how == "batch_norm":
        return None
    return piece.entry.facts.plus


def _adds(piece: Piece) -> bool:
    """Return whether the first thing that the model's code does with the tensor PIECE is to add something to it."""
    return piece.entry.how in ("add", "__add__", "__radd__")


def _are_near_1(values: Values, keys: Sequence[str]) -> bool:
    """Return whether all values of KEYS together have a mean that is less than 0.3 from 1, and a standard deviation of
    less than 0.3. False if no values can be read.

    Code that adds 1 to norm weights starts with 0. If training moved all of them above 0, it moved them far apart.
    """
    found = [value.astype("float64") for key in keys if (value := values(key)) is not None]
    total = sum(value.size for value in found)
    if not total:
        return False
    mean = sum(float(value.sum()) for value in found) / total
    spread = sum(float(((value - mean) ** 2).sum()) for value in found) / total
    return bool(abs(mean - 1) < _NEAR and spread < _NEAR**2)


#: How far from 1 the mean of norm weights may be, and how far apart they are, that nothing is added to.
_NEAR = 0.3


def _share_of_negatives(values: Values, keys: Sequence[str]) -> float | None:
    """Return which share of the values of all tensors KEYS is below 0, from 0 to 1; None if no values can be read."""
    found = [value for key in keys if (value := values(key)) is not None]
    total = sum(int(value.size) for value in found)
    return sum(int((value < 0).sum()) for value in found) / total if total else None


__all__ = ["doubt_norms_around_1"]
