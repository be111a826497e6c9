"""Propose weights for layers that follow one another and scale and shift each channel: a batch norm, or its parts.

One code has a batch norm, another subtracts, divides, multiplies and adds vectors of its own, and a third has only the
factor and the shift that are left of it, or neither, as they are in the weight and the bias of the layer before. What
goes into all of this is equal, and so is what comes out; nothing in between is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import squeezed
from .fingerprints import pairing
from .flow import MATRICES, VECTORS, Flow, Held, Use
from .ground import Change, Ground
from .rows import columns

#: Uses that follow one another, vectors that are tried in each order, and changes for one place.
_LONGEST, _MOST, _WAYS = 6, 5, 48
_STATISTICS = ("running_mean", "running_var")


def vectors(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) for the vectors of F, a norm, scale or shift of the model, and of up to
    five such uses after it (`_row`). They get the vectors of a row in the source's code whose first use has the input
    channels of F, also in another order. Each such row is tried: its batch norm as a scale and a shift
    (`_scale_and_shift`), and the vectors of its first one, two … uses in each order (`_in_each_order`). Nothing if F is
    of another kind, or if its input is not known.
    """
    if f.taken is None or not _is_vector(f):
        return
    own = _row(ground.own, f)
    for s in ground.theirs.uses:
        order = pairing(f.taken, s.taken) if s.taken is not None and _is_vector(s) else None
        if order is not None:
            theirs = _row(ground.theirs, s)
            yield from _scale_and_shift(ground, own, theirs, order)
            for length in range(1, len(theirs) + 1):
                yield from _in_each_order(ground, own, theirs[:length], order)


def _is_vector(use: Use) -> bool:
    """Return whether USE is a norm, a scale or a shift."""
    return use.kind in VECTORS and use.kind != "depthwise"


def _row(flow: Flow, first: Use) -> list[Use]:
    """Return FIRST, a use in FLOW, and up to five norms, scales and shifts after it, each of which takes the output of
    the one before it and of no other use. Uses that do not take only the output of the last one are passed over; the
    row ends at the first use that does, and is no norm, scale or shift.
    """
    out = [first]
    for use in flow.uses[flow.uses.index(first) + 1 :]:
        if use.before == frozenset({out[-1].index}):
            if not _is_vector(use) or len(out) == _LONGEST:
                break
            out.append(use)
    return out


def _in_each_order(ground: Ground, own: Sequence[Use], theirs: Sequence[Use], order: Sequence[int]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give the vectors of the first n uses in OWN all vectors of THEIRS,
    for each n for which these are equally many vectors, two to five: in each order, at most 48 for each n, first those
    that leave most vectors as they are. ORDER has, for each channel of OWN, its place in the channels of THEIRS. A
    vector that ORDER would cut into more than 64 slices (`columns`) leaves its place in OWN as it is.
    """
    values = [columns(x, order, 0) for x in _values(ground, theirs)]
    for length in range(1, len(own) + 1):
        slots = _slots(ground, own[:length])
        if not 1 < len(slots) == len(values) <= _MOST:
            continue
        now = [ground.now(slot) for slot in slots]
        every = sorted(permutations(values), key=lambda way: sum(a != b for a, b in zip(way, now, strict=True)))
        for way in islice(every, _WAYS):
            yield from ground.change(
                "vectors of what the same goes into", list(zip(slots, way, strict=True)), in_part=True
            )


def _slots(ground: Ground, uses: Sequence[Use]) -> list[Held]:
    """Return the weights of USES that are vectors (one dimension, without sizes of 1), as the model takes them, each
    once. In place of a weight that the model's code computes, its keys themselves are returned, if they are vectors.
    """
    found: dict[object, Held] = {}
    for held in (held for use in uses for held in use.held.values()):
        whole = [Held((key,), ex.of(key), ground.entries[key].shape) for key in held.keys if key in ground.entries]
        for one in whole if held.is_computed else [held]:
            if len(squeezed(one.shape)) == 1:
                found.setdefault(one.expr, one)
    return list(found.values())


def _values(ground: Ground, uses: Sequence[Use]) -> list[Expr]:
    """Return the weights of USES, of the source's code, that are vectors, as expressions of one dimension over keys of
    the file, each once. In place of a weight that the code computes, the keys that it is computed from are returned, if
    they are vectors. Weights with keys that the file lacks are left out.
    """
    found: dict[Expr, None] = {}
    for held in (held for use in uses for held in use.held.values()):
        for x in [ex.of(key) for key in held.keys] if held.is_computed else [held.expr]:
            if x is not None and all(key in ground.shapes for key in x.keys()):  # noqa: SIM118
                shape = squeezed(ex.shape_of(x, ground.shapes))
                if len(shape) == 1:
                    found[ex.reshape(x, shape, ex.shape_of(x, ground.shapes))] = None
    return list(found)


@dataclass(frozen=True, slots=True)
class _Norm:
    """A batch norm of the source's code: its weight (GAMMA), bias (BETA) and statistics as expressions over keys of the
    file, and its eps. `weight` and `bias` fold it into the layer before.
    """

    gamma: Expr
    beta: Expr
    mean: Expr
    var: Expr
    eps: float

    def weight(self, w: Expr) -> Expr:
        """Return the weight W of the layer before, with the norm folded in: W * gamma / sqrt(var + eps), row by row."""
        return ex.fold_weight(w, self.gamma, self.var, self.eps)

    def bias(self, b: Expr) -> Expr:
        """Return the bias B of the layer before, with the norm folded in: (B - mean) * gamma / sqrt(var + eps) + beta,
        for each channel.
        """
        return ex.fold_bias(b, self.gamma, self.beta, self.mean, self.var, self.eps)


def _norm(ground: Ground, use: Use, order: Sequence[int] | None = None) -> _Norm | None:
    """Return USE of the source's code as a batch norm, with its channels in ORDER (as they are if None); without a
    weight it has ones, without a bias zeros. None if it has no running statistics in the file or no eps, or if ORDER
    would cut a tensor into more than 64 slices (`columns`).
    """
    eps = None if use.step is None else dict(use.step.settings).get("eps")
    mean, var = (ground.theirs_of(use.held.get(role)) for role in _STATISTICS)
    if not isinstance(eps, float) or mean is None or var is None:
        return None
    gamma, beta = (ground.theirs_of(use.held.get(role)) for role in ("weight", "bias"))
    gamma = ex.shift(ex.zeros(use.rows), 1.0) if gamma is None else gamma
    beta = ex.zeros(use.rows) if beta is None else beta
    parts = [columns(x, order, 0) if order is not None else x for x in (gamma, beta, mean, var)]
    known = [x for x in parts if x is not None]
    if len(known) < len(parts):
        return None
    gamma, beta, mean, var = known
    return _Norm(gamma, beta, mean, var, eps)


def _scale_and_shift(
    ground: Ground, own: Sequence[Use], theirs: Sequence[Use], order: Sequence[int]
) -> Iterator[Change]:
    """Yield one change (label, key -> expression) that gives a scale and a shift of the model, the first two uses in
    OWN, the factor and the shift that a batch norm of the source's code, the first use in THEIRS, computes, with its
    channels in ORDER. Nothing if the first two uses in OWN are no scale and shift with one vector each, or if the first
    in THEIRS is no batch norm (`_norm`).
    """
    norm = _norm(ground, theirs[0], order)
    slots = _slots(ground, own[:2])
    if norm is not None and [use.kind for use in own[:2]] == ["scale", "shift"] and len(slots) == 2:
        zeros, ones = ex.zeros(theirs[0].rows), ex.shift(ex.zeros(theirs[0].rows), 1.0)
        pairs = [(slots[0], norm.weight(ones)), (slots[1], norm.bias(zeros))]
        yield from ground.change("a batch norm as factor and shift", pairs, in_part=True)


def with_the_norm_after_it(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give F, a linear layer or convolution of the model with a bias, the
    weight and the bias of such a layer of the source's code with the batch norm after it folded in. Without a bias
    there, zeros take its place.

    Each layer of the source's code counts that takes the same input channels (in any order: the columns are reordered),
    has as many output channels, and has a batch norm as the first norm in the row after it (`_row`). Nothing if F has
    no bias, if its input is not known, or if a norm or a scale is in the row after F.
    """
    own_bias = ground.own.bias(f)
    if f.kind not in MATRICES or "weight" not in f.held or own_bias is None:
        return
    if any(u.kind != "shift" for u in _row(ground.own, f)[1:]):
        return
    for s in ground.theirs.uses:
        order = pairing(f.taken, s.taken) if f.taken is not None and s.taken is not None and f.is_like(s) else None
        if order is None or s.rows != f.rows or "weight" not in s.held:
            continue
        after = next((t for t in _row(ground.theirs, s)[1:] if t.kind == "norm"), None)
        norm = None if after is None else _norm(ground, after)
        weight = columns(ground.theirs_of(s.held["weight"]), order, 1)
        if norm is None or weight is None:
            continue
        bias = ground.theirs_of(ground.theirs.bias(s))
        folded = norm.weight(weight), norm.bias(ex.zeros(s.rows) if bias is None else bias)
        yield from ground.change("with the batch norm after it", [(f.held["weight"], folded[0]), (own_bias, folded[1])])


__all__ = ["vectors", "with_the_norm_after_it"]
