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
    """Return (layer of the source's code, order) for each layer there with the same input channels, in any order, as F,
    a layer of the model, and of a like kind (the same kind, or both are matrices: `Use.is_like`). ORDER has, for each
    channel of the input of F, its index in the input there. [] if there is no such layer, or if the input of F is not
    known.

    Of several runs of the same weights the first counts. If F runs again and again, as in a loop, the inputs of its
    first run and of all runs together may fit as well; so may those of all runs together of a layer there.
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
    """Yield one change (label, key -> expression) that gives new weights and biases to all matrices in FRONTS at once:
    those of the source's layer with the same input and as many rows. A matrix stays as it is if there is no such layer
    or more than one, or if no expressions for its keys make its new weight and bias (`Ground.put`, for all matrices
    that are parts of the same keys together). A bias that the source's layer lacks is zeros.

    Nothing if no matrix gets a new weight, or if all have these weights already. It is for the members of a stack, of
    which one alone would not show in an output.
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
    """Yield changes (label, key -> expression) for those embedding tables in FRONTS that have no source: rows of one
    table of the source fill them, one table after the other in the order of FRONTS. It is for a source whose code has
    one table for several columns of words, and adds to the words of each column the number of the row at which the part
    for that column begins.

    The table of the source needs as many columns as each of them, and at least as many rows as all of them together.
    The part for the first table begins so that the part for the last one ends with the last row of the source's table;
    in the next changes it begins at row 0, 1, 2 …: at most eight changes for each table of the source. Nothing for
    fewer than two tables without a source.
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
    """Yield changes (label, key -> expression), the likeliest first, that give weights of the source to F, a layer of
    the model, and some of them to other layers with its input, too. MATCHED has the layers of the source's code with
    the same input and the order of its channels (from `takes_the_same`).

    An embedding table is filled by `tables`. A norm, scale, shift or depthwise convolution gets the vectors of the same
    roles (weight, bias), in the order of the channels. Any other layer gets rows (`_rows_of_the_same`). Except for
    tables, copies of single keys come first, from each layer in MATCHED with the channels in the same order
    (`_key_by_key`).
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
    """Yield changes (label, key -> expression) that give rows of the source to the matrix F of the model and to the
    layers of the model with its input (its twins, among them F). MATCHED has (layer of the source's code, order of its
    columns) for the layers there with this input, the sources. These changes are:

    - each source for the twin in its place, in the order of execution, if there are two or more twins, as many sources,
      and the two in each place have equally many rows;
    - one source with as many rows as F for F; sources that no other twin has now come first;
    - the rows of all sources, in the order of execution, cut anew for all twins, if these have as many rows in all;
    - two to eight sources that follow one another, joined for F, if their rows are as many as those of F;
    - a part of a larger source for F (`_part_by_part`).
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
    """Yield changes (label, key -> expression) that give the layer F a part of SOURCE, which has more rows than F: the
    first as many rows as F has, the next as many, …; parts that no key has now come first. If the rows of F do not
    divide those of SOURCE, the last rows of SOURCE follow.
    """
    parts = [source.part(k, k + f.rows) for k in range(0, source.rows - f.rows + 1, f.rows)]
    for k, part in enumerate(sorted(parts, key=lambda part: ground.is_used(part.weight))):
        yield from ground.rows(f"the same goes in, part {k}", [f], [part])
    if source.rows % f.rows:
        yield from ground.rows("the same goes in, the last rows", [f], [source.part(source.rows - f.rows, source.rows)])


def takes_a_part(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that give F, a layer of the model, the elements for its channels from
    the weights of a layer of the source's code that takes these channels and more. Nothing unless F is a norm, scale,
    shift or depthwise convolution, and its input is known.

    There is one change for each layer of the source's code that is of the kind of F, takes all channels of F and more,
    and whose weights all have the channels of its input as their first dimension. Weights of roles (weight, bias) that
    one of the two layers lacks stay as they are.
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
    """Yield the change (label, key -> expression) that gives each key of F, a layer of the model, a copy of one key of
    S, a layer of the source's code: the keys of one role (weight, bias) in sorted order on both sides.

    It is for weights that the model computes from keys, by a sum or a product, or as no expression does
    (`Held.is_computed`): nothing unless F has one. Nothing either if S lacks a role of F, if numbers of keys or sizes
    differ, or if the keys have these expressions already.
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
    """Yield changes (label, key -> expression) that fill the table (of words or positions) of F, a layer of the model,
    from a table of MATCHED, layers of the source's code:

    - from one with as many columns and as many rows: the whole table;
    - from one with as many columns and more rows: rows from row 0 on, the last rows, rows from row 1 on, from row 2 on;
    - from one with as many rows and a multiple of the columns: each part of its columns, those that no key has first.

    Other tables, and those without an expression, are left out.
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
    """Yield changes (label, key -> expression) that fill the other keys of F, a layer of the model with a weight that
    its code computes from keys (`Held.is_computed`: by a sum or a product, or as no expression does), if some keys of F
    have their sources already. Nothing for other layers.

    A layer of the source's code counts if it reads sources of some keys of F. The keys of F of which this layer reads
    no source, and the keys of this layer that no key of F reads, have to be equally many and at most four. They are
    paired in every order: copied if the sizes are equal, transposed if they are swapped, square matrices both ways.
    Left out are changes in which a pair does not fit, and those that change nothing.
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
    same place of THEIRS: as it is if their sizes are equal, transposed if they are swapped. With TURNED, square
    matrices are transposed, too. None if one fits neither way.
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
