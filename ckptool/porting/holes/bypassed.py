"""Layers whose output is cut into parts, of which one goes past the layers that take the others: which one?

The two codes of a Res2Net leave out the first part or the last one. Where they differ, the channels of the layer that
makes the parts, of its norm, and of the layer that takes them all stand in another order.
"""

from __future__ import annotations

from functools import partial

from ...model_code.signature import Bypass
from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import Piece
from ..matching.units import Unit
from ..questions import Reason
from .filling import Filling


def doubt_bypasses(filling: Filling) -> None:
    """Reorder the channels of layers with a bypass, or ask about their order (`_move_or_ask`): the output of a layer is
    cut into equal parts, and one part goes past the layers that take the others. The layers that make, norm or take all
    these parts are looked at, as the model's forward pass shows them (`_bypasses`).

    The layer that makes the parts has to be filled with one tensor of the source (`_is_whole`). Nothing is done for
    pairs of one name or the same code (`Filling.written_once`), unless the source's forward pass shows a bypass along
    the same dimension; nor for any pair if the source was not traced and has the keys of all parameters of the model.
    """
    if filling.same_names and not filling.source.signature.traced:
        return
    whole = {p.entry.key for t, _ in filling.matching.pairs for p in t.pieces.values() if _is_whole(filling, p)}
    for t, s in filling.matching.pairs:
        for own in _bypasses(t):
            theirs = next((one for one in _bypasses(s) if one.dim == own.dim), None)
            if own.layer in whole and (theirs is not None or not filling.written_once(t, s)):
                _move_or_ask(filling, t, own, theirs)


def _move_or_ask(filling: Filling, t: Unit, own: Bypass, theirs: Bypass | None) -> None:
    """Move a part of the channels in each filled tensor of T, or ask whether to move it. T is a layer that makes the
    parts, norms them or takes them. OWN and THEIRS tell which part the model and the source's code pass on unchanged;
    THEIRS is None if that is not known of the source.

    If both codes have equally many parts, there is no open question in two cases: both pass on the same part and join
    the parts in one known order (the tensors stay), or both join the parts in the order in which they cut them (the
    source's part is moved to the place of the model's). In all other cases, also if the codes are known to differ, the
    tensors stay, with a question. Its option moves the first part to the place of the model's, or the last part if the
    model's is the first. Left out are tensors that are not filled, that lack the dimension of the parts, or whose
    channels there the number of parts does not divide.
    """
    known = None
    if theirs is not None and theirs.parts == own.parts:
        same = bool(own.joined) and (theirs.joined, theirs.place) == (own.joined, own.place)
        known = theirs.place if same or (theirs.in_place and own.in_place) else None
    usual = 0 if own.place else own.parts - 1
    for piece in t.pieces.values():
        filled = filling.holes.get(piece.name)
        if filled is None or len(piece.shape) <= own.dim or piece.shape[own.dim] % own.parts:
            continue
        size = piece.shape[own.dim]
        if known is None:
            filled.ask(Reason.BYPASS, other=partial(_moved, size=size, own=own, place=usual))
        else:
            move = partial(_moved, size=size, own=own, place=known)
            filled.learn(move, Reason.BYPASS, shows=f"lets part {known + 1} of {own.parts} pass unchanged")


def _bypasses(unit: Unit) -> tuple[Bypass, ...]:
    """Return what a forward pass shows about the parts of the channels of UNIT (`facts.bypasses` of the first of its
    tensors that were not split or joined and have such facts); () if it shows none.
    """
    shown = (p.entry.facts.bypasses for p in unit.pieces.values() if p.is_whole)
    return next(filter(None, shown), ())


def _is_whole(filling: Filling, piece: Piece) -> bool:
    """Return whether PIECE of the model is filled, is a whole tensor (`Piece.is_whole`), and joins no tensors of the
    source (its expression has no `cat`), so that its parts are in the order of the source.
    """
    filled = filling.holes.get(piece.name)
    return filled is not None and piece.is_whole and "cat" not in filled.expr.operations()


def _moved(whole: Expr, size: int, own: Bypass, place: int) -> Expr:
    """Return WHOLE with its part PLACE moved to the place of OWN, the part that the model lets pass; the other parts
    keep their order. WHOLE has SIZE channels along the dimension `own.dim`, in `own.parts` parts, counted from 0. It is
    returned as it is if PLACE is that place already.
    """
    if place == own.place:
        return whole
    wide = size // own.parts
    order = [n for n in range(own.parts) if n != place]
    order.insert(own.place, place)
    return ex.cat(own.dim, *(ex.part(whole, own.dim, wide * n, wide * (n + 1)) for n in order))
