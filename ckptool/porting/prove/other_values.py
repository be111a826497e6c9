"""Changes to other tensors of the source: options of questions, offsets, factors, any tensor of equal size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from math import prod

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import squeezed
from .flow import VECTORS, Held, Use
from .goes_in import tables
from .ground import Change, Ground

#: Scales of adapters that are tried beside those of the code, and uses whose weights are tried for one of their sizes.
_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625, 32.0)
_OF_THESE_SIZES = 16


def options(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that take another option of the questions about the weights of the use F
    and of the uses directly before it (the last eight of them).

    Option N is taken for all of these keys at once, then, if they are of several modules, for each module alone, and
    then for each module in exchange, if other keys have its new expressions: these get the old ones.
    """
    near = [f, *(ground.own.uses[i] for i in sorted(f.before)[-8:])]
    keys = dict.fromkeys(key for u in near for key in u.keys if key in ground.entries)
    doubtful = [ground.entries[key] for key in keys if ground.entries[key].rivals]
    for number in range(max((len(e.rivals) for e in doubtful), default=0)):
        fitting = {e.target: e.rivals[number] for e in doubtful if len(e.rivals) > number}
        yield f"option {number + 1}", fitting
        by_module: dict[str, dict[str, Expr]] = {}
        for key, expr in fitting.items():
            by_module.setdefault(key.rpartition(".")[0], {})[key] = expr
        if len(by_module) > 1:
            yield from ((f"option {number + 1} of one", new) for new in by_module.values())
        for new in by_module.values():
            back = {
                key: ground.entries[own].expr
                for own, expr in new.items()
                for key, e in ground.entries.items()
                if e.expr == expr and key not in new
            }
            if back:
                yield f"exchanged with option {number + 1}", new | {k: x for k, x in back.items() if x is not None}


def options_at_once(ground: Ground, fronts: Sequence[Use]) -> Iterator[Change]:
    """Yield changes (label, key -> expression), one for each N, that take option N of the questions about the weights
    of all FRONTS at once, for the keys with so many. Left out are changes of one module alone. It is for two layers
    whose outputs are added: one alone gives nothing that agrees.
    """
    keys = dict.fromkeys(key for use in fronts for key in use.keys if key in ground.entries)
    doubtful = [ground.entries[key] for key in keys if ground.entries[key].rivals]
    for number in range(max((len(e.rivals) for e in doubtful), default=0)):
        new = {e.target: e.rivals[number] for e in doubtful if len(e.rivals) > number}
        if len({key.rpartition(".")[0] for key in new}) > 1:
            yield f"option {number + 1} at once", new


def around_zero_or_one(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that add 1 to a vector of the use F, or subtract 1, in place of what the
    mapping adds to it: one code stores some weights around 0 and the other around 1. Nothing unless F is a norm, scale,
    shift or depthwise convolution.
    """
    for key in f.keys if f.kind in VECTORS else ():
        entry = ground.entries.get(key)
        if entry is not None and entry.expr is not None and len(squeezed(entry.shape)) == 1:
            for amount in (1.0, -1.0):
                yield f"{amount:+g}", {key: ex.shift(ex.unshifted(entry.expr), amount)}


def without_shifts(ground: Ground) -> Iterator[Change]:
    """Yield one change (label, key -> expression) that takes all tensors as they are to which the mapping adds a number
    of the code: an eps, or the 1 of a norm; nothing if there are none. If the codes differ otherwise than matching took
    it, all of them are wrong.
    """
    new = {key: ex.unshifted(e.expr) for key, e in ground.entries.items() if e.expr is not None}
    new = {key: expr for key, expr in new.items() if expr != ground.entries[key].expr}
    if new:
        yield "without what was added", new


def adapters(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression), each of which sets the scale of all low-rank adapters at once to a
    factor: those that the source's code suggests, then powers of two. Nothing unless the use F or one directly before
    it has an adapter. The effect of one adapter alone would not be visible.
    """
    near = {key for u in (f, *(ground.own.uses[i] for i in f.before)) for key in u.keys}
    adapted = {k: e.expr for k, e in ground.entries.items() if e.expr is not None and "lora" in e.expr.operations()}
    if near & adapted.keys():
        for factor in dict.fromkeys([*ground.factors, *_FACTORS]):
            yield f"adapters times {factor:g}", {key: ex.rescaled(expr, factor) for key, expr in adapted.items()}


def any_of_these_sizes(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give the use F the weight of another use of its family in the
    source's code, in each form that fits (`_in_other_sizes`), with its bias. Of a use without a weight, on either side,
    the bias takes the place of the weight. Nothing if F has neither.

    Only uses with as many numbers count, the nearest in the order of execution first, at most 16; of uses with the same
    keys, the first. If F is a table, uses of any family count, and any table fills it as `tables` says.
    """
    own = f.held.get("weight") or f.held.get("bias")
    if own is None:
        return
    place = f.index / max(len(ground.own.uses), 1)
    length = max(len(ground.theirs.uses), 1)
    seen = set()
    left = _OF_THESE_SIZES
    for s in sorted(ground.theirs.uses, key=lambda s: abs(s.index / length - place)):
        have = s.held.get("weight") or s.held.get("bias")
        if have is None or (s.family != f.family and f.kind != "table") or s.keys in seen:
            continue
        if f.kind == "table" and s.kind == "table":
            seen.add(s.keys)
            yield from tables(ground, f, [s])
            continue
        if prod(have.shape) != prod(own.shape):
            continue
        if not left:
            return
        seen.add(s.keys)
        left -= 1
        bias = [(ground.own.bias(f), ground.theirs_of(ground.theirs.bias(s)))] if own is f.held.get("weight") else []
        for label, x in _in_other_sizes(ground.theirs_of(have), have.shape, own.shape):
            yield from ground.change(label, [(own, x), *bias])


def table_or_matrix(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes that make the table F of a linear matrix of the transposed sizes that comes next in the source's
    code, with the matrix's bias added to each row, or the linear matrix F of such a table, with zeros for the bias of
    F: a matrix that is given ones and zeros looks its columns up.
    """
    own = f.held.get("weight")
    for s in ground.next_uses:
        have = s.held.get("weight")
        x = ground.theirs_of(have)
        if {f.kind, s.kind} != {"table", "linear"} or own is None or have is None or x is None:
            continue
        if own.shape != have.shape[::-1]:
            continue
        bias = ground.theirs_of(ground.theirs.bias(s)) if s.kind == "linear" else None
        turned = ex.transpose(x) if bias is None else ex.add(ex.transpose(x), bias)
        pairs: list[tuple[Held | None, Expr | None]] = [(own, turned)]
        if f.kind == "linear" and (own_bias := ground.own.bias(f)) is not None:
            pairs.append((own_bias, ex.zeros(*own_bias.shape)))
        yield from ground.change("a table as matrix" if f.kind == "linear" else "a matrix as table", pairs)


def _in_other_sizes(x: Expr | None, have: Shape, own: Shape) -> Iterator[tuple[str, Expr]]:
    """Yield (label, expression) for each form of X, of sizes HAVE, that fits the sizes OWN. Nothing if X is None, or if
    the numbers of elements differ.

    Dimensions of 1 do not count. X is taken as it is, if the sizes are equal; with its dimensions in any other order
    that gives OWN; or, if the sizes are others but the numbers of rows are equal, reshaped row by row: after its other
    dimensions were put in each order, if it has 3 or 4, or else before those of OWN are, if OWN has 3 or 4.
    """
    a, b = squeezed(have), squeezed(own)
    if x is None or prod(a) != prod(b):
        return
    if a == b:
        yield "of these sizes", x
    if len(a) == len(b) <= 5 and sorted(a) == sorted(b):
        for order in islice(permutations(range(len(a))), 1, None):
            if tuple(a[i] for i in order) == b:
                yield f"dimensions in the order {order}", ex.permute(ex.reshape(x, a, have), *order)
    elif a[:1] == b[:1]:
        if 3 <= len(a) <= 4:
            for order in permutations(range(1, len(a))):
                moved = ex.permute(ex.reshape(x, a, have), 0, *order)
                yield f"as rows, dimensions in the order {order}", ex.reshape(moved, own)
        elif 3 <= len(b) <= 4:
            for order in permutations(range(1, len(b))):
                # laid out as (rows, …) in that order, and put back
                back = [0] * len(b)
                for new, old in enumerate((0, *order)):
                    back[old] = new
                laid = ex.reshape(x, tuple(b[i] for i in (0, *order)))
                yield f"from rows, dimensions in the order {order}", ex.reshape(ex.permute(laid, *back), own, b)


__all__ = ["adapters", "any_of_these_sizes", "around_zero_or_one", "options", "table_or_matrix", "without_shifts"]
