"""Propose weights by the inputs of layers: a use in the model gets the weights of a use in the source's code with the
same input.

The columns of these weights are put into the order that the channels of the input have in the model. Names do not
count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, combinations, islice, pairwise, permutations, product

from .. import expression as ex
from ..expression import Expr
from .fingerprints import pairing, places
from .flow import MATRICES, VECTORS, Held, Use
from .ground import Change, Ground
from .rows import Rows, columns

#: Rows of a table at which the first of those that are cut from it may begin.
_STARTS = 8
#: Weights of the source after one another that are joined, at most.
_JOINED = 8


def takes_the_same(ground: Ground, f: Use) -> list[tuple[Use, list[int]]]:
    """Return (use in the source's code, order) for each use there that is like F (see `Use.is_like`) and has the input
    channels of the use F of the model, in any order; the first of several uses of the same weights. ORDER has, for each
    channel of the input of F, its place in the input there. [] if there is none, or if the input of F is not known.

    If F runs again and again, its first run and all runs together count, too. A use of the source's code that does so
    counts once more with all runs together.
    """
    if f.taken is None:
        return []
    found: dict[object, tuple[Use, list[int]]] = {}
    whole = ground.own.repeated.get(f.told)
    again = [] if whole is None else [whole, next(u for u in ground.own.uses if u.told == f.told)]
    mine = [u.taken for u in (f, *again) if u.taken is not None]
    for s in chain(ground.theirs.uses, ground.theirs.repeated.values()):
        if s.taken is None or not f.is_like(s):
            continue
        order = next((o for taken in mine if (o := pairing(taken, s.taken)) is not None), None)
        if order is not None:
            found.setdefault((s.keys, s.held["weight"].expr if "weight" in s.held else None), (s, order))
    return list(found.values())


def at_once(ground: Ground, fronts: Sequence[Use]) -> Iterator[Change]:
    """Yield one change (label, key -> expression) that gives all matrices in FRONTS the weights and biases of the
    source's use with the same input and as many rows, where there is just one; a bias that it lacks is zeros. Weights
    that no expressions for their keys make are left out (`Ground.put`). Nothing if none is left, or if they have these
    weights already. It is for the members of a stack, of which one alone would not show in an output.
    """
    by_keys: dict[tuple[str, ...], list[tuple[Held | None, Expr | None]]] = {}
    for f in fronts:
        fitting = [(u, order) for u, order in takes_the_same(ground, f) if "weight" in u.held and u.rows == f.rows]
        if f.kind in MATRICES and "weight" in f.held and len(fitting) == 1:
            ((u, order),) = fitting
            pairs = by_keys.setdefault(f.held["weight"].keys, [])
            pairs.append((f.held["weight"], columns(ground.theirs_of(u.held["weight"]), order, 1)))
            if (bias := ground.own.bias(f)) is not None:
                theirs = ground.theirs_of(ground.theirs.bias(u))
                pairs.append((bias, ex.zeros(*bias.shape) if theirs is None else theirs))
    new: dict[str, Expr] = {}
    for pairs in by_keys.values():
        new |= ground.put(pairs) or {}
    if any(ground.entries[key].expr != expr for key, expr in new.items()):
        yield "the same goes in at several places", new


def tables_of_one(ground: Ground, fronts: Sequence[Use]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that cut the tables without a source in FRONTS, two or more, from one
    table of the source with as many columns, in the order of use: its code adds to each column of words where the rows
    of that column begin. The first table begins so that the last one ends with the source's, or at row 0, 1, 2 …: at
    most eight changes for each table of the source. Nothing for one with fewer rows than all of them.
    """
    own = [f for f in fronts if f.kind == "table" and ground.now(f.held["weight"]) is None]
    sizes = [f.held["weight"].shape[0] for f in own]
    for s in ground.theirs.uses if len(own) > 1 else ():
        x = ground.theirs_of(s.held.get("weight"))
        if s.kind != "table" or x is None or any(f.rows != s.rows for f in own):
            continue
        more = s.held["weight"].shape[0] - sum(sizes)
        for start in islice(dict.fromkeys([more, *range(more)]), _STARTS) if more >= 0 else ():
            edges = list(accumulate(sizes, initial=start))
            parts = [ex.part(x, 0, *edge) for edge in pairwise(edges)]
            pairs = [(f.held["weight"], part) for f, part in zip(own, parts, strict=True)]
            yield from ground.change(f"tables cut from one, from row {start} on", pairs)


def from_what_goes_in(ground: Ground, f: Use, matched: list[tuple[Use, list[int]]]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give the use F, and other uses of its input, the weights of the
    uses in the source's code with the same input, MATCHED (from `takes_the_same`), the likeliest first.

    A table gets what `tables` says; vectors get the vectors of the same roles; a matrix or kernel gets the keys of a
    use whose channels are in order (`_key_by_key`), and then rows (`_rows_of_the_same`).
    """
    if f.kind == "table":
        yield from tables(ground, f, [s for s, _ in matched])
        return
    for u, order in matched:
        if order == sorted(order):
            yield from _key_by_key(ground, f, u)
    if f.kind not in VECTORS:
        yield from _rows_of_the_same(ground, f, matched)
        return
    for u, order in matched:
        roles = [role for role in u.held if role in f.held]
        pairs = [(f.held[role], columns(ground.theirs_of(u.held[role]), order, 0)) for role in roles]
        yield from ground.change("the same goes in", pairs)


def _rows_of_the_same(ground: Ground, f: Use, matched: list[tuple[Use, list[int]]]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give rows of MATCHED, uses in the source's code with the input of
    the matrix F, to F and to the uses with the same input in the model (its twins). These changes are:

    - all sources for all twins, if they have equal numbers of rows in the order of use;
    - one source of as many rows for F, those that no twin has first;
    - all sources for all twins, cut anew, if their rows add up;
    - two to eight sources after one another joined for F, if their rows add up;
    - a part of a larger source for F: each, and the last rows, if the parts do not divide it.
    """
    sources = [ground.theirs_rows(u, order) for u, order in matched if "weight" in u.held]
    sources = [s for s in sources if s.weight is not None]
    twins = ground.twins(f)
    if len(twins) > 1 and [t.rows for t in twins] == [s.rows for s in sources]:
        yield from ground.rows("the same goes in, in the order of use", twins, sources)
    taken = {key for t in twins if t is not f and (x := ground.now(t.held["weight"])) for key in x.keys()}  # noqa: SIM118
    fitting = [s for s in sources if s.rows == f.rows]
    for s in sorted(fitting, key=lambda s: s.weight is not None and set(s.weight.keys()) <= taken):
        yield from ground.rows("the same goes in", [f], [s])
    if sum(t.rows for t in twins) == sum(s.rows for s in sources):
        yield from ground.rows("the same goes in, rows in the order of use", twins, sources)
    for first, last in combinations(range(len(sources) + 1), 2):
        if 2 <= last - first <= _JOINED and sum(s.rows for s in sources[first:last]) == f.rows:
            yield from ground.rows("the same goes into several", [f], sources[first:last])
    for s in (s for s in sources if s.rows > f.rows):
        yield from _part_by_part(ground, f, s)


def _part_by_part(ground: Ground, f: Use, source: Rows) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give the use F a part of SOURCE, which has more rows: each part of
    as many rows, those that no key has first, and the last rows, if the parts do not divide it.
    """
    parts = [source.part(k, k + f.rows) for k in range(0, source.rows - f.rows + 1, f.rows)]
    for k, part in enumerate(sorted(parts, key=lambda part: ground.is_used(part.weight))):
        yield from ground.rows(f"the same goes in, part {k}", [f], [part])
    if source.rows % f.rows:
        yield from ground.rows("the same goes in, the last rows", [f], [source.part(source.rows - f.rows, source.rows)])


def takes_a_part(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) for a use F that works on each channel by itself, and whose input
    channels are some of those that a like use takes in the source's code: F gets the elements of the weights for these
    channels. Uses with a weight of another length than that of their channels are left out.
    """
    if f.kind not in VECTORS or f.taken is None:
        return
    for s in ground.theirs.uses:
        if s.taken is None or not f.is_like(s) or len(s.taken) <= len(f.taken):
            continue
        order = places(f.taken, s.taken)
        if order is None or any(len(held.shape) == 0 or held.shape[0] != len(s.taken) for held in s.held.values()):
            continue
        first = order == list(range(len(order)))
        pairs: list[tuple[Held | None, Expr | None]] = []
        for role, held in s.held.items():
            x = ground.theirs_of(held)
            part = ex.part(x, 0, 0, len(order)) if first and x is not None else columns(x, order, 0)
            pairs.append((f.held.get(role), part))
        yield from ground.change("a part of the same goes in", pairs)


def _key_by_key(ground: Ground, f: Use, s: Use) -> Iterator[Change]:
    """Yield the change (label, key -> expression) that gives each key of the use F one key of the use S of the source's
    code, role by role and in sorted order, if the model computes a weight of F from several keys. Nothing if their
    number or sizes differ, or if the keys have these expressions already.
    """
    if not any(held.is_computed for held in f.held.values()):
        return
    new: dict[str, Expr] = {}
    for role in dict.fromkeys([*f.held, "bias"]):
        held = f.held.get(role) if role != "bias" else ground.own.bias(f)
        other = s.held.get(role) if role != "bias" else ground.theirs.bias(s)
        if held is None:
            continue
        if other is None or len(other.keys) != len(held.keys):
            return
        for own, key in zip(sorted(held.keys), sorted(other.keys), strict=True):
            if own not in ground.entries or ground.shapes.get(key) != ground.entries[own].shape:
                return
            new[own] = ex.of(key)
    if any(ground.entries[own].expr != expr for own, expr in new.items()):
        yield "the same goes in", new


def tables(ground: Ground, f: Use, matched: Sequence[Use]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that fill the table (of words or positions) of the use F from the tables
    of MATCHED, uses of the source's code. One with as many columns and as many rows fills it whole; one with more rows
    fills it from row 0 on, with its last rows, and from row 1 and 2 on; one with fewer rows is left out. One of as many
    rows, with several times as many columns, fills it with each part of its columns, those that no key has first.
    """
    own = f.held["weight"]
    for s in matched:
        x = ground.theirs_of(s.held.get("weight"))
        if x is not None and s.rows > f.rows and s.rows % f.rows == 0 and s.held["weight"].shape[0] == own.shape[0]:
            cut = [ex.part(x, 1, k, k + f.rows) for k in range(0, s.rows, f.rows)]
            for part in sorted(cut, key=ground.is_used):
                yield from ground.change("columns of a table", [(own, part)])
        if x is None or s.rows != f.rows:
            continue
        have, want = s.held["weight"].shape[0], own.shape[0]
        for start in dict.fromkeys([0, have - want, 1, 2] if have > want else [0]):
            if have >= want + start:
                yield from ground.change(
                    f"table from row {start} on", [(own, x if have == want else ex.part(x, 0, start, start + want))]
                )


def made_together(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) for a use F with a weight that the model computes from several keys;
    nothing for other uses. For each use of the source's code that reads sources of some of the keys of F, the remaining
    keys of both, equally many and at most four, are paired in every order: as they are or transposed, whichever fits,
    and square matrices in both ways. Left out are changes in which a pair fits in neither way, and those that change
    nothing.
    """
    if not any(held.is_computed for held in f.held.values()):
        return
    made = {own: set(ground.entries[own].sources) for own in f.keys if own in ground.entries}
    read = set().union(*made.values())
    for s in ground.theirs.uses:
        shared = read & set(s.keys)
        own = [key for key, keys in made.items() if not keys & shared]
        theirs = [key for key in s.keys if key not in shared and key in ground.shapes]
        if not shared or len(own) != len(theirs) or len(theirs) > 4:
            continue
        for order, turned in product(permutations(theirs), (False, True)):
            new = _each_for_each(ground, own, order, turned)
            if new and any(ground.entries[key].expr != expr for key, expr in new.items()):
                yield "computed with the same", new


def _each_for_each(ground: Ground, own: Sequence[str], theirs: Sequence[str], turned: bool) -> dict[str, Expr] | None:
    """Return the change, as key -> expression, that gives each key of the model in OWN the key of the source in the
    same place of THEIRS, transposed if its sizes ask for it. TURNED transposes square matrices, too. None if sizes
    differ.
    """
    new: dict[str, Expr] = {}
    for key, other in zip(own, theirs, strict=True):
        wanted, have = ground.entries[key].shape, ground.shapes[other]
        if wanted == have and not (turned and len(have) == 2 and have[0] == have[1]):
            new[key] = ex.of(other)
        elif len(have) == 2 and wanted == have[::-1]:
            new[key] = ex.transpose(ex.of(other))
        else:
            return None
    return new


__all__ = [
    "at_once",
    "from_what_goes_in",
    "made_together",
    "tables",
    "tables_of_one",
    "takes_a_part",
    "takes_the_same",
]
