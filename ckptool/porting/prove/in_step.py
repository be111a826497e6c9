"""Walk back through both codes in step, from a layer that both have, and pair the layers before it.

A layer that is given the weights of another gives what that one gives, wherever it stands. So layers that were
exchanged agree, each by itself, and the models diverge only where their outputs meet. There, what goes before each
layer shows its place: the two codes are followed back from the meeting to where they take the same, and the layers on
the way are paired. Names do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, permutations, product

from ..expression import Expr
from .fingerprints import pairing
from .flow import MATRICES, Flow, Held, Use
from .ground import Change, Ground, exchanged
from .outputs import by_name

#: Layers before one that are paired, steps back, and ways to pair the layers that are tried in one place, and in all.
_BEFORE, _BACK, _ORDERS, _WAYS = 6, 12, 24, 32

#: Layers of the model and of the source's code: one for one, or several that hold the same rows.
_Pair = tuple[list[Use], list[Use]]


def before_its_partner(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give the layers before F, a layer of the model, the weights of the
    layers before its partner in the source's code: those directly before it that do not agree, and, where two paired
    layers take unlike inputs, the layers before these two, up to 12 steps back (`_ways`). A change has all of them, in
    one pairing; at most 32 for each partner. Other keys of the model that had the new weights get the old weights of
    the changed layers in exchange.

    A partner of F reads all sources of the keys of F. If there is none, each layer that comes next there
    (`Ground.next_uses`) and is like F (`_are_alike`) is tried as its partner, and F gets its weights, too. Nothing if F
    has no partner of either kind.
    """
    for s, is_known in _partners(ground, f):
        more: list[_Pair] = [] if is_known else [([f], [s])]
        for way in islice(_ways(ground, f.before, s.before, _BACK), _WAYS):
            yield from _change(ground, [*more, *way])


def before_an_output(ground: Ground) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give the layers before an output of the model the weights of the
    layers before the same output of the source's code. These are the layers directly before it that do not agree, and,
    where two paired layers take unlike inputs, the layers before these two, up to 12 steps back (`_ways`). A change has
    all of them, paired in one way; there are at most 32 for each output. Other keys of the model that had the new
    weights get the old weights of the changed layers in exchange.

    Two outputs are the same if they have equally many numbers and no other output of either code has as many, or if
    their names say so (`by_name`): else the outputs, and not their layers, may have changed places.
    """
    sizes = [Counter(output.numel() for output in flow.outputs) for flow in (ground.theirs, ground.own)]
    named = by_name(ground.theirs, ground.own)
    for (i, output), (j, own) in product(enumerate(ground.theirs.outputs), enumerate(ground.own.outputs)):
        alone = output.numel() == own.numel() and all(count[own.numel()] == 1 for count in sizes)
        if (alone or (i, j) in named) and len(ground.theirs.behind) > i:
            for way in islice(_ways(ground, ground.own.behind[j], ground.theirs.behind[i], _BACK), _WAYS):
                yield from _change(ground, way)


def _partners(ground: Ground, f: Use) -> list[tuple[Use, bool]]:
    """Return (layer of the source's code, whether it has the weights of F) for each layer that may correspond to F, a
    layer of the model: with True, those that read all sources of the keys of F; if there are none, with False, those
    that come next (`Ground.next_uses`) and are like F (`_are_alike`). [] if there are none of these either.
    """
    sources = {key for own in f.keys if own in ground.entries for key in ground.entries[own].sources}
    known = [(s, True) for s in ground.theirs.uses if sources and sources <= set(s.keys)]
    return known or [(s, False) for s in ground.next_uses if _are_alike(f, s)]


def _ways(ground: Ground, own: Iterable[int], theirs: Iterable[int], back: int) -> Iterator[list[_Pair]]:
    """Yield ways to pair layers of the model and of the source's code, each as a list of (layers of the model, layers
    of the source's code). OWN and THEIRS are the indices of layers of the two codes; they are paired without those that
    give the same (`_left`). If a pair of single layers has unlike or unknown inputs, the layers before these two are
    paired as well, and so on, at most BACK steps back.

    At most 24 pairings (`_pairings`) of OWN and THEIRS are taken. Each gives at most 24 ways, made of at most two ways
    to pair the layers before each of its pairs. One way, [], if one side has no layers left, if one has more than six,
    or if BACK is 0. No way at all if the layers that are left, or those before a pair, cannot be paired.
    """
    mine, others = _left(_layers(ground.own, own), _layers(ground.theirs, theirs))
    if not mine or not others or back == 0 or max(len(mine), len(others)) > _BEFORE:
        yield []
        return
    for pairs in islice(_pairings(mine, others), _ORDERS):
        deeper = [
            list(islice(_ways(ground, u[0].before, v[0].before, back - 1), 2))
            for u, v in pairs
            if len(u) == len(v) == 1 and not _take_the_same(u[0], v[0])
        ]
        for chosen in islice(product(*deeper), _ORDERS):
            yield [*pairs, *(pair for way in chosen for pair in way)]


def _layers(flow: Flow, indices: Iterable[int]) -> list[Use]:
    """Return the uses of FLOW at INDICES in order, each once. For a use that only adds a bias to the output of a
    matrix, this is the matrix. Indices that FLOW has no use for are left out.
    """
    uses = {use.index: use for use in flow.uses}
    found: dict[int, Use] = {}
    for use in (uses[i] for i in sorted(indices) if i in uses):
        (before,) = use.before if use.kind == "shift" and len(use.before) == 1 else (None,)
        if before in uses and uses[before].kind in MATRICES:
            use = uses[before]
        found[use.index] = use
    return list(found.values())


def _left(mine: Sequence[Use], others: Sequence[Use]) -> tuple[list[Use], list[Use]]:
    """Return (MINE, OTHERS), layers of the model and of the source's code, without each layer of MINE whose output has
    the same channels, in any order, as that of one of OTHERS, and without that one.
    """
    rest, left = list(others), []
    for u in mine:
        same = next((v for v in rest if pairing(u.given, v.given) is not None), None)
        if same is None:
            left.append(u)
        else:
            rest.remove(same)
    return left, rest


def _pairings(mine: Sequence[Use], others: Sequence[Use]) -> Iterator[list[_Pair]]:
    """Yield ways to pair the layers MINE of the model with the layers OTHERS of the source's code, each as a list of
    (layers of the model, layers of the source's code).

    If they are equally many: one by one, in each order in which all pairs are alike (`_are_alike`: of like kinds, with
    as many channels). If not, but all are matrices and the rows of both sides add up to the same number: one pair of
    all with all, in each order of OTHERS. Nothing in other cases.
    """
    if len(mine) == len(others):
        for order in permutations(others):
            if all(_are_alike(u, v) for u, v in zip(mine, order, strict=True)):
                yield [([u], [v]) for u, v in zip(mine, order, strict=True)]
        return
    matrices = all(u.kind in MATRICES and "weight" in u.held for u in (*mine, *others))
    if matrices and sum(u.rows for u in mine) == sum(v.rows for v in others):
        for order in permutations(others):
            yield [(list(mine), list(order))]


def _are_alike(u: Use, v: Use) -> bool:
    """Return whether U and V could exchange their weights (`Use.is_like`) and give as many channels."""
    return u.is_like(v) and u.rows == v.rows


def _take_the_same(u: Use, v: Use) -> bool:
    """Return whether the inputs of U and V are known and have the same channels, in any order."""
    return u.taken is not None and v.taken is not None and pairing(u.taken, v.taken) is not None


def _change(ground: Ground, pairs: Sequence[_Pair]) -> Iterator[Change]:
    """Yield one change (label, key -> expression) for all of PAIRS, (layers of the model, layers of the source's code):
    the layers of the model get the weights of the others (`_given`), and other keys that had the new expressions get
    the old ones in exchange (`exchanged`). Nothing if one pair cannot change, if two pairs give one key different
    expressions, or if the keys have these expressions already.
    """
    new: dict[str, Expr] = {}
    for mine, others in pairs:
        found = _given(ground, mine, others)
        if found is None or any(new.get(key, expr) != expr for key, expr in found.items()):
            return
        new |= found
    new = {key: expr for key, expr in new.items() if ground.entries[key].expr != expr}
    if new:
        yield "what goes before its partner", exchanged(ground.entries, new)


def _given(ground: Ground, mine: Sequence[Use], others: Sequence[Use]) -> dict[str, Expr] | None:
    """Return key of the model -> expression, so that the layers MINE of the model get the weights of the layers OTHERS
    of the source's code.

    If all are matrices, the rows of OTHERS are concatenated and go to MINE in turn, so there may be more of one than of
    the other. The columns are reordered to fit the input of the first of MINE, if both inputs are known and have the
    same channels. {} if the sizes do not fit, if no expressions for the keys do this, or if the keys have these
    expressions already. None if the weight of one of OTHERS has no expression, or if its columns cannot be reordered in
    at most 64 slices (`columns`).

    Otherwise there has to be one layer on each side: the weights of the model's layer whose roles (weight, bias) the
    other layer has, too, get the expressions of that one, also if they have them already. {} if none of these has an
    expression; None if the sizes do not fit, or if no expressions for the keys do this.
    """
    if all(u.kind in MATRICES and "weight" in u.held for u in (*mine, *others)):
        taken = mine[0].taken
        orders = [None if taken is None or v.taken is None else pairing(taken, v.taken) for v in others]
        sources = [ground.theirs_rows(v, order) for v, order in zip(others, orders, strict=True)]
        if any(one.weight is None for one in sources):
            return None
        return next((new for _, new in ground.rows("", mine, sources)), {})
    (u,), (v,) = mine, others
    pairs: list[tuple[Held | None, Expr | None]] = [
        (held, ground.theirs_of(v.held[role])) for role, held in u.held.items() if role in v.held
    ]
    return ground.put(pairs)


__all__ = ["before_an_output", "before_its_partner"]
