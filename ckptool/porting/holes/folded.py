"""Fold batch norms that the model does not have into what it has in their place."""

from __future__ import annotations

from .. import expression as ex
from ..expression import Expr, Shape
from ..matching.units import Unit, label_of
from ..questions import Question, Reason, ask, ask_code
from .filling import Filled, Filling


def fold_norms(filling: Filling) -> None:
    """Fold batch norms of the source without a partner, but with a weight, into the layer of the model whose partner
    the source registers directly before the norm. That layer has two or more dimensions and as many outputs as the norm
    has numbers. It is a question, with the plain tensors as options, unless the source's code shows the eps (else
    1e-05) and the order.

    If the model multiplies and adds one number to each channel behind the layer (`_scale_after`), the norm is folded
    into these numbers, with a question. If not, nothing is done if another unit of the model without a partner has the
    sizes of the norm; and if the layer has no bias to fold into, the norm is left out, and a question says so.
    """
    free = [u for u in filling.matching.free_sources if u.pieces.keys() >= {"running_mean", "running_var", "weight"}]
    if not free:
        return
    stored = sorted(filling.matcher.cells.sources, key=lambda u: u.order)
    place = {id(u): i for i, u in enumerate(stored)}
    partner = {id(s): t for t, s in filling.matching.pairs}
    for norm in free:
        i = place[id(norm)]
        before = stored[i - 1] if i else None
        t = partner.get(id(before))
        if before is None or t is None or "weight" not in before.pieces or "weight" not in t.pieces:
            continue
        w = before.pieces["weight"]
        if not w.shape or w.shape[0] != norm.pieces["running_mean"].shape[0] or len(w.shape) < 2:
            continue
        scale = _scale_after(filling, t, norm.main.shape)
        if scale is None and any(u.main.shape == norm.main.shape for u in filling.matching.free_targets):
            continue  # it may be what has no source
        if scale is None and "bias" not in t.pieces:
            for piece in t.pieces.values():
                filling.holes[piece.name].ask(Reason.UNREAD_NORM, ".".join(norm.path))
            continue
        gamma, var = norm.pieces["weight"].expr, norm.pieces["running_var"].expr
        mean = norm.pieces["running_mean"].expr
        beta = norm.pieces["bias"].expr if "bias" in norm.pieces else ex.zeros(*norm.pieces["weight"].shape)
        behind = norm.pieces["running_mean"].entry.facts.behind
        shown = behind is not None and behind.weight == w.entry.key
        eps = behind.eps if behind is not None and shown else 1e-05
        if scale is not None:
            ones, zeros = ex.shift(ex.zeros(*scale.main.shape), 1.0), ex.zeros(*scale.main.shape)
            made = {"weight": ex.fold_weight(ones, gamma, var, eps)}
            made["bias"] = ex.fold_bias(zeros, gamma, beta, mean, var, eps)
            for role, expr in made.items():
                filling.holes[scale.pieces[role].name] = Filled(expr, "folded", [ask(Reason.NORM_AS_SCALE, f"{eps:g}")])
                filling.unit_of[scale.pieces[role].name] = (scale, norm)
            continue
        folded: Question[Expr] = (
            ask_code(Reason.FOLDED_NORM, f"{eps:g}", shows=f"has eps {eps:g}, and the norm right behind the layer")
            if shown
            else ask(Reason.FOLDED_NORM, "1e-05")
        )
        hole = t.pieces["weight"].name
        plain = filling.holes[hole].expr
        filling.holes[hole] = Filled(ex.fold_weight(plain, gamma, var, eps), "folded", [folded.about(plain)])
        own = filling.holes.get(t.pieces["bias"].name) if "bias" in before.pieces else None
        bias = ex.zeros(*norm.pieces["weight"].shape) if own is None else own.expr
        filling.holes[t.pieces["bias"].name] = Filled(
            ex.fold_bias(bias, gamma, beta, mean, var, eps),
            "folded",
            [folded.about(bias)],
        )
        filling.unit_of[t.pieces["bias"].name] = (t, norm)


def _scale_after(filling: Filling, t: Unit, shape: Shape) -> Unit | None:
    """Return the unit that the model runs directly after T, if it is not filled, and the code multiplies with its
    weight of SHAPE and adds its bias of SHAPE, as what is left of a batch norm at inference does. None if there is no
    such unit, if it is a norm, or if the order of execution is not known.
    """
    places = {id(u): u.used for u in filling.matcher.cells.targets if u.used is not None}
    here = places.get(id(t))
    after = [u for u in filling.matcher.cells.targets if here is not None and places.get(id(u), -1) > here]
    u = min(after, key=lambda u: places[id(u)], default=None)
    if u is None or u.main.name in filling.holes or u.pieces.keys() != {"weight", "bias"}:
        return None
    is_norm = label_of(u, "purpose") == "norm" or "norm" in u.main.entry.module.lower()
    scales = all(p.shape == shape and p.entry.how in _BY_CHANNEL for p in u.pieces.values())
    return u if scales and not is_norm else None


#: How code uses a vector with a number for each channel.
_BY_CHANNEL = frozenset("mul __mul__ __rmul__ multiply add __add__ __radd__ addcmul __getitem__ unsqueeze".split())
