"""Weights that code computes from other tensors: weight norm, spectral norm, pruning masks, noise."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from ...errors import RuleError
from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from .layouts import is_turned, turn
from .pieces import Canon, Piece, squeezed, unchanged


def _name_gains(one: Canon, other: Canon) -> None:
    """Rename each vector of ONE that may be the gain of a weight norm, and its matrix (`_gains`: `gx`, `wx`), to
    `weight_g` and `weight_v` of one module. The `weight_v` gets a question, with the plain matrix as its
    option: only code shows what such a vector is.

    Nothing is done unless all vectors are as long as their matrices have columns, or all are as long as these have
    rows. In the first case, also if both are true (square matrices), the matrices have outputs last, and are
    transposed.
    """
    found = _gains(one, other)
    outputs_last = all(g.shape == w.shape[1:] for g, w in found)
    if not found or not (outputs_last or all(g.shape == w.shape[:1] for g, w in found)):
        return
    for gain, matrix in found:
        v = replace(matrix, role="weight_v").asking(Reason.GAIN, gain.entry.key, option=matrix.expr)
        v = one.change(matrix, v)
        rows = gain.shape[0]
        shape = (1, rows) if outputs_last else (rows, 1)
        g = replace(gain, path=matrix.path, role="weight_g", shape=shape, words=matrix.words)
        one.change(gain, g, partial(ex.reshape, shape=shape), partial(ex.reshape, shape=(rows,)))
        if outputs_last:
            turn(one, v)


def _gains(one: Canon, other: Canon) -> list[tuple[Piece, Piece]]:
    """Return (vector, matrix) for each two weights in one module of ONE whose names differ only in the first letter of
    the last word: a vector `gx` and a matrix `wx` (`gh` and `wh`). Left out are those with a shift (`bx`) beside them,
    where the vector belongs to a norm of the matrix's output, and those whose `gx` a tensor of OTHER has as the last
    word of its name.
    """
    held = {p.path: p for p in one.pieces.values() if p.role == "weight"}
    theirs = {named[2] for p in other.pieces.values() if (named := _LAST.match(p.last))}
    found: list[tuple[Piece, Piece]] = []
    for path, matrix in held.items():
        named = _LAST.match(path[-1]) if path else None
        if named is None or named[2][0] != "w" or len(matrix.shape) != 2:
            continue
        gain, shift = (held.get((*path[:-1], f"{named[1]}{letter}{named[2][1:]}{named[3]}")) for letter in ("g", "b"))
        if gain is not None and len(gain.shape) == 1 and shift is None and f"g{named[2][1:]}" not in theirs:
            found.append((gain, matrix))
    return found


#: The last word of a name, in small letters; the number of an output may stand behind it.
_LAST = re.compile(r"(.*?)([a-z]+)((?::\d+)?)\Z")


def merge_norms(one: Canon, other: Canon) -> None:
    """Turn each weight norm of ONE (`weight_g` and `weight_v` of a module, `_norms`) into one plain `weight`. There is
    no question.

    A weight norm stays if OTHER has a weight norm whose `weight_v` has equal sizes, and whose norms are over the same
    dimension. It also stays if OTHER has weight norms, but neither a weight norm nor a plain weight with its sizes.

    If ONE is the source, vectors that may be gains of a weight norm are renamed before, with a question
    (`_name_gains`), and spectral norms become plain weights, too (`_merge_spectral_norms`).
    """
    if not one.is_target:
        _name_gains(one, other)
    theirs: dict[Shape, set[int | None]] = defaultdict(set)
    for norm in _norms(other):
        theirs[norm.v.shape].add(norm.stored)
    plain = {p.shape for p in other.pieces.values() if p.role == "weight"}
    for norm in _norms(one):
        alike = theirs.get(norm.v.shape, set())
        if norm.stored not in alike and (alike or not theirs or norm.v.shape in plain):
            one.merge([norm.g, norm.v], replace(norm.v, role="weight"), norm.weight, [norm.norms, unchanged])
    if not one.is_target:
        _merge_spectral_norms(one, other)


@dataclass(frozen=True, slots=True)
class _Norm:
    """A weight norm.

    Attributes:
        g, v: its `weight_g` and `weight_v`.
        stored: the dimension of `weight_v`, as its key stores it, that has a norm for each of its elements; None if
            there is one norm of all of it.
        dim: the same dimension of V. It is another number than STORED if an earlier step has transposed V.
    """

    g: Piece
    v: Piece
    stored: int | None
    dim: int | None

    def weight(self, g: Expr, v: Expr) -> Expr:
        """Return the expression of the plain weight: `weight_norm(G, V)`, where G and V are the expressions of the two
        tensors, and G is first reshaped to have its norms along the dimension `dim`.
        """
        if self.dim is not None:
            g = ex.reshape(g, [n if d == self.dim else 1 for d, n in enumerate(self.v.shape)], self.g.shape)
        return ex.weight_norm(g, v)

    def norms(self, w: Expr) -> Expr:
        """Return the expression of `weight_g`, in its own sizes, made of W, the expression of the plain weight: the
        norm of each slice of W along the dimension `dim`, or one norm of all of W if `dim` is None.
        """
        shape = self.v.shape
        if self.dim is None:
            return ex.reshape(ex.norm(ex.reshape(w, (1, prod(shape)), shape)), self.g.shape, (1, 1))
        order = (self.dim, *(d for d in range(len(shape)) if d != self.dim))
        rows = ex.transpose(w) if order == (1, 0) else ex.permute(w, *order)
        return ex.reshape(ex.norm(rows), self.g.shape, (shape[self.dim], *[1] * (len(shape) - 1)))


def _norms(canon: Canon) -> list[_Norm]:
    """Return the weight norms of CANON: one for each `weight_g` that has a `weight_v` in its module and the sizes of
    its norms, one for each element of one dimension or a single one (`ex.normed_dimension`). Others are left out. Sizes
    are compared with `weight_v` as its key stores it, before any transposition.
    """
    found = []
    for g in [p for p in canon.pieces.values() if p.role == "weight_g"]:
        v = canon.pieces.get(g.name.beside("weight_v"))
        if v is None:
            continue
        dims = list(range(len(v.shape)))
        if len(dims) > 1 and (is_turned(canon, v) if canon.is_target else ex.is_transposed(v.expr)):
            dims[-2:] = dims[:-3:-1]
        with suppress(RuleError):
            stored = ex.normed_dimension(g.shape, tuple(v.shape[d] for d in dims))
            found.append(_Norm(g, v, stored, None if stored is None else dims[stored]))
    return found


def _merge_spectral_norms(source: Canon, target: Canon) -> None:
    """Turn each spectral norm of SOURCE that has all its tensors into a plain weight. Nothing is done if TARGET has a
    `weight_orig`.

    The norm counts rows along the first dimension of the weight, or, as torch does for a transposed convolution, along
    the second. The sizes of the singular vectors show which. If they fit both, the layers of TARGET with the sizes of
    the weight decide (`_counts_inputs`): the second if all of them are transposed convolutions, else the first, also
    without such layers. If some of them are transposed convolutions and some are not, a question has the second as its
    option. Norms whose vectors fit neither dimension stay.
    """
    if any(p.role == "weight_orig" for p in target.pieces.values()):
        return
    for w in [p for p in source.pieces.values() if p.role == "weight_orig"]:
        u, v = (source.pieces.get(w.name.beside(role)) for role in ("weight_u", "weight_sv"))
        if u is None or v is None or 0 in w.shape:
            continue
        fitting = [
            d for d in range(min(2, len(w.shape))) if (*u.shape, *v.shape) == (w.shape[d], prod(w.shape) // w.shape[d])
        ]
        kinds = _counts_inputs(w, target) if len(fitting) > 1 else set()
        fitting.sort(key=lambda d: bool(kinds) and (d == 1) not in kinds)
        orders = [(d, *range(1, d), 0, *range(d + 1, len(w.shape))) if d else range(len(w.shape)) for d in fitting]
        ways = [partial(_normed, first=order) for order in orders]
        if not ways:
            continue
        new = replace(w, role="weight")
        if len(kinds) > 1:
            new = new.asking(Reason.NORM_OF_INPUTS, option=ways[1](w.expr, u.expr, v.expr))
        source.merge([w, u, v], new, ways[0], [])


def _counts_inputs(w: Piece, target: Canon) -> set[bool]:
    """Return the kinds of the weights of TARGET whose keys have the sizes of the key of W: True for those of transposed
    convolutions, whose spectral norm counts along the second dimension, False for others. The set is empty if there are
    none. It is {False} for a W of older code (its key ends in `_bar`), which never counts along the second.
    """
    if w.entry.key.endswith("_bar"):
        return {False}
    alike = [p for p in target.pieces.values() if p.entry.shape == w.entry.shape and p.role == "weight"]
    return {p.entry.how.startswith("conv_transpose") for p in alike}


def _normed(w: Expr, u: Expr, v: Expr, *, first: Sequence[int]) -> Expr:
    """Return the weight W divided by its largest singular value, as the vectors U and V give it (`spectral_norm`). U
    and V are for W with its dimensions in the order FIRST, which is its own inverse, such as (1, 0, 2, 3).
    """
    return ex.permute(ex.spectral_norm(ex.permute(w, *first), u, v), *first)


def merge_masks(source: Canon, target: Canon) -> None:
    """Turn each pruned tensor of both sides, `weight_orig` times `weight_mask`, into a plain `weight` (`bias_orig`:
    `bias`). On the target it gets a question, without an option.

    The tensor stays pruned in each of these cases: it has no `_orig`, or that has other sizes than the mask; both sides
    have a mask of this name; or the other side has neither a mask nor a plain tensor of this name, and both sides have
    equally many such masks of these sizes (`_without_namesake`), so that the two sides only name them differently.
    """
    sides = ((source, target), (target, source))
    own, theirs = (_without_namesake(*pair) for pair in sides)
    for one, other in sides:
        for mask in _masks(one):
            role = mask.role.removesuffix("_mask")
            whole = one.pieces.get(mask.name.beside(f"{role}_orig"))
            plain, sizes = mask.name.beside(role) in other.pieces, _sizes_in_any_order(mask)
            stays = mask.name in other.pieces or (not plain and own[sizes] == theirs[sizes])
            if whole is None or stays or whole.shape != mask.shape:
                continue
            new = replace(whole, role=role)
            if one.is_target:
                new = new.asking(Reason.PRUNED)
            one.merge([whole, mask], new, ex.mul, [unchanged, ex.nonzero])


def _masks(canon: Canon) -> list[Piece]:
    """Return the tensors of CANON whose role ends with "_mask" ("weight_mask"), whether or not a tensor is pruned by
    them.
    """
    return [p for p in canon.pieces.values() if p.role.endswith("_mask")]


def _without_namesake(one: Canon, other: Canon) -> Counter[Shape]:
    """Return sizes -> how many masks of ONE have them, for the masks for which OTHER has neither a mask of the same
    name nor the plain tensor (`weight` for `weight_mask`). Sizes are sorted, without those of 1
    (`_sizes_in_any_order`).
    """
    masks = [p for p in _masks(one) if p.name not in other.pieces]
    return Counter(
        _sizes_in_any_order(p) for p in masks if p.name.beside(p.role.removesuffix("_mask")) not in other.pieces
    )


def _sizes_in_any_order(piece: Piece) -> Shape:
    """Return the sizes of PIECE in rising order, without those of 1."""
    return tuple(sorted(squeezed(piece.shape)))


def take_means(source: Canon, target: Canon) -> None:
    """Turn the means of noisy layers of SOURCE (roles `weight_mean`, `bias_mean`) into plain weights and biases,
    without a question. All other tensors of the module whose roles begin with `weight_`, or with `bias_` for a bias
    (spread and noise), are removed. Nothing is done if TARGET has a `weight_mean` or `bias_mean`.
    """
    if any(p.role in _MEANS for p in target.pieces.values()):
        return
    for mean in [p for p in source.pieces.values() if p.role in _MEANS]:
        of = mean.role.removesuffix("mean")
        beside = [p for p in source.pieces.values() if p.path == mean.path and p.role.startswith(of) and p is not mean]
        source.merge([mean, *beside], replace(mean, role=of.rstrip("_")), lambda first, *_: first, [])


_MEANS = frozenset({"weight_mean", "bias_mean"})


def take_unknown_as_plain(one: Canon, other: Canon) -> None:
    """Rename each tensor of ONE with an unknown parametrization to a plain tensor, `weight_orig` to `weight` and
    `bias_orig` to `bias`, with a question without options. A `weight_orig` stays if its module has another tensor with
    a role `weight_…` (a mask, singular vectors), or if OTHER has a `weight_orig` in any module; `bias_orig` likewise.
    """
    for piece in [p for p in one.pieces.values() if p.role.endswith("_orig")]:
        base = piece.role.removesuffix("_orig")
        beside = [p for p in one.pieces.values() if p.path == piece.path and p.role.startswith(f"{base}_")]
        if len(beside) > 1 or any(p.role == piece.role for p in other.pieces.values()):
            continue
        why = Reason.PARAMETRIZED_HERE if one.is_target else Reason.PARAMETRIZED_THERE
        new = replace(piece, role=base).asking(why, base)
        one.change(piece, new)
