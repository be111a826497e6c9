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
from .ground import Change, Ground, exchanged, module_of

#: Scales of adapters that are tried beside those of the code, and uses whose weights are tried for one of their sizes.
_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625, 32.0)
_OF_THESE_SIZES = 16


def options(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that take another option of the open questions about the weights of F, a
    layer of the model, and of the layers directly before it (the last eight of them). Nothing if there are no options.

    For each N, option N is taken first for all of these keys that have so many options; then, if the keys are in
    several modules, for each module alone. Last, also if they are in one module: if other keys of the model have the
    new expressions of a module now, it is taken for this module, and the other keys get its old expressions, where
    sizes are equal (`exchanged`).
    """
    near = [f, *(ground.own.uses[i] for i in sorted(f.before)[-8:])]
    keys = dict.fromkeys(key for u in near for key in u.keys if key in ground.entries)
    doubtful = [ground.entries[key] for key in keys if ground.entries[key].rivals]
    for number in range(max((len(e.rivals) for e in doubtful), default=0)):
        fitting = {e.target: e.rivals[number] for e in doubtful if len(e.rivals) > number}
        yield f"option {number + 1}", fitting
        by_module: dict[str, dict[str, Expr]] = {}
        for key, expr in fitting.items():
            by_module.setdefault(module_of(key), {})[key] = expr
        if len(by_module) > 1:
            yield from ((f"option {number + 1} of one", new) for new in by_module.values())
        for new in by_module.values():
            both = exchanged(ground.entries, new)
            if len(both) > len(new):
                yield f"exchanged with option {number + 1}", both


def options_at_once(ground: Ground, fronts: Sequence[Use]) -> Iterator[Change]:
    """Yield changes (label, key -> expression), one for each N, that take option N of the open questions about the
    weights of FRONTS, layers of the model, for all keys with so many options at once. A change of the keys of one
    module alone is left out. It is for two layers whose outputs are added: one alone gives nothing that agrees.
    """
    keys = dict.fromkeys(key for use in fronts for key in use.keys if key in ground.entries)
    doubtful = [ground.entries[key] for key in keys if ground.entries[key].rivals]
    for number in range(max((len(e.rivals) for e in doubtful), default=0)):
        new = {e.target: e.rivals[number] for e in doubtful if len(e.rivals) > number}
        if len(set(map(module_of, new))) > 1:
            yield f"option {number + 1} at once", new


def around_zero_or_one(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield two changes (label, key -> expression) for each vector of F, a layer of the model: one adds 1 to the
    source's tensor, one subtracts 1, and a number that the mapping adds last now is left out. One code stores some
    weights around 0 and the other around 1. Nothing unless F is a norm, scale, shift or depthwise convolution; keys
    without an expression stay.
    """
    for key in f.keys if f.kind in VECTORS else ():
        entry = ground.entries.get(key)
        if entry is not None and entry.expr is not None and len(squeezed(entry.shape)) == 1:
            for amount in (1.0, -1.0):
                yield f"{amount:+g}", {key: ex.shift(ex.unshifted(entry.expr), amount)}


def without_shifts(ground: Ground) -> Iterator[Change]:
    """Yield one change (label, key -> expression) that no longer adds a number, such as an eps or the 1 of a norm, to
    any of the tensors to which the mapping adds one now, as the last operation on the tensor (`unshifted`). Nothing if
    there are none. If matching was wrong about such a number, it was wrong for all of them.
    """
    new = {key: ex.unshifted(e.expr) for key, e in ground.entries.items() if e.expr is not None}
    new = {key: expr for key, expr in new.items() if expr != ground.entries[key].expr}
    if new:
        yield "without what was added", new


def adapters(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression), each of which sets the scale of all low-rank adapters in the mapping to
    one number: first those in `Ground.factors`, then ten powers of two from 1/16 to 32. Nothing unless F, a layer of
    the model, or a layer directly before it has an adapter. The effect of one adapter alone would not be visible.
    """
    near = {key for u in (f, *(ground.own.uses[i] for i in f.before)) for key in u.keys}
    adapted = {k: e.expr for k, e in ground.entries.items() if e.expr is not None and "lora" in e.expr.operations()}
    if near & adapted.keys():
        for factor in dict.fromkeys([*ground.factors, *_FACTORS]):
            yield f"adapters times {factor:g}", {key: ex.rescaled(expr, factor) for key, expr in adapted.items()}


def any_of_these_sizes(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give F, a layer of the model, the weight of a layer of the source's
    code, in each form that fits (`_in_other_sizes`), and its bias. For a layer without a weight, on either side, the
    bias stands in for the weight. Nothing if F has neither.

    A layer of the source's code counts if it is of the family of F (`Use.family`: matrix, vector …), and its weight has
    as many numbers: at most 16 layers, those at the nearest place in the order of execution first, the first of those
    with the same keys. If F is a table, layers of any family count; tables fill it as `tables` says, whatever their
    sizes and number.
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
    """Yield changes (label, key -> expression) that fill an embedding table from a linear layer, or the other way: a
    linear layer that is given ones and zeros looks its columns up. F is a layer of the model; a layer of the source's
    code counts if it comes next there (`Ground.next_uses`) and its weight has the transposed sizes.

    If F is a table, it gets the transposed weight of such a linear layer, with the bias of that added to each row. If F
    is a linear layer, it gets the transposed table, and zeros for its bias. Nothing for other layers.
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
    the numbers of elements differ. Dimensions of 1 do not count:

    - if the sizes are equal, X as it is;
    - if the sizes are equal in some order, X with its dimensions (at most five) in each other order that gives OWN;
    - else, if the numbers of rows are equal, X reshaped row by row: if X has 3 or 4 dimensions, after all but the first
      of these were put in each order; else, if OWN has 3 or 4, as if X had the dimensions of OWN in each order, which
      are then put in the order of OWN.
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
