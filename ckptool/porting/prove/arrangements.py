"""Changes that reorder the rows of the weights before a use of weights.

Such a change reorders the channels that the use takes, and leaves their set as it is: exchanged parts, rows head by
head, gates of recurrent layers, pairs of rotary embeddings. Before the outputs of the model, it reorders what several
last layers take of one tensor (`at_the_end`), or exchanges the weights of two outputs (`exchanged_outputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, combinations, islice, permutations

from ..expression import Expr
from ..forms.fusing.projections import part_label
from .flow import MATRICES, Held, Use
from .ground import Change, Ground
from .outputs import by_name
from .rows import HEAD_COUNTS, HEAD_SIZES, Rows, by_heads, joined, place_of, turned

#: A function from the rows of some weights to reordered rows.
Turn = Callable[[Sequence[Rows]], list[Rows]]

#: Chunks of one layer that are reordered; fewer than these are tried in each order, others with two exchanged.
_MOST_CHUNKS, _FEW_CHUNKS = 9, 5


def twice(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) of the layers before F, an operation with weights in the model's forward
    pass. Each does two things at once, for models in which neither alone makes more agree: it reorders parts or heads
    (see `_orders`), and then the rows of queries and keys for another rotary embedding (see `_turns`). There is one for
    each pair of such a reordering and such an embedding.

    Each group of layers with one input (see `_groups_before`) is changed by itself. A group is left out if one of its
    weights has no expression now (see `Ground.now`).
    """
    for group in _groups_before(ground, f):
        rows = [ground.current(u) for u in group]
        if any(r.weight is None for r in rows):
            continue
        for label, turn in _turns(group):
            for other, new in _orders(rows):
                yield from _rearranged(ground, f"{other}; {label}", group, turn(new))


def arrangements(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that reorder the rows of the weights, and of their biases, in the layers
    before F, an operation with weights in the model's forward pass. F then takes the same channels in another order.

    First come gates of recurrent layers (`_gates`); then chunks of one layer directly before F (`_chunks`); then, for
    each group of layers with one input (`_groups_before`), parts and heads (`_orders`), and pairs of rotary embeddings
    (`_turns`). A group is left out if one of its weights has no expression now (see `Ground.now`).
    """
    groups = [g for g in _groups_before(ground, f) if all(ground.now(u.held["weight"]) is not None for u in g)]
    yield from _gates(ground, f, groups)
    for u in (u for group in groups for u in group if u.index in f.before):
        for label, new in _chunks(ground, f, u):
            yield from _rearranged(ground, label, [u], new)
    for group in groups:
        rows = [ground.current(u) for u in group]
        for label, new in _orders(rows):
            yield from _rearranged(ground, label, group, new)
        for label, turn in _turns(group):
            yield from _rearranged(ground, label, group, turn(rows))


def at_the_end(ground: Ground) -> Iterator[Change]:
    """Yield changes (label, key -> expression) for last layers of the model that are cut from one layer of the source:
    they are cut from it in another order. Which layer has which rows shows in no layer, only in the outputs.

    Last layers are the linear layers and convolutions directly before an output. Those with the same input are changed
    together, with their biases, once for each other order. They have to be two to four layers, all with unlike numbers
    of rows, and the weight of each has to be a slice of rows of the same tensor now. The rows that they take together
    stay the same. Layers with equal numbers of rows are not changed: those layers or the outputs may be exchanged.
    """
    groups: dict[frozenset[int], list[Use]] = {}
    for index in sorted({i for behind in ground.own.behind for i in behind}):
        use = ground.own.uses[index]
        if use.kind in MATRICES and "weight" in use.held:
            groups.setdefault(use.before, []).append(use)
    for group in groups.values():
        rows = [ground.current(u) for u in group]
        sizes = [r.rows for r in rows]
        of = {place_of(r)[0] for r in rows}
        if 2 <= len(group) == len(set(sizes)) and len(of) == 1 and "" not in of:
            for label, parts in _cut_in_another_order(rows):
                yield from _rearranged(ground, label, group, parts)


def exchanged_outputs(ground: Ground) -> Iterator[Change]:
    """Yield changes (label, key -> expression), one for each two outputs of the model with equally many numbers: the
    keys of the layers that serve only one of them exchange their expressions, in order, with the keys of the layers
    that serve only the other. Nothing if no two outputs qualify.

    Only outputs count whose names pair them with outputs of the source's code (see `by_name`), and only if these keys
    have equal sizes in equal order. A key stays as it is if its counterpart has no source.
    """
    named = by_name(ground.theirs, ground.own)
    made_of = [ground.own.reaching(behind) for behind in ground.own.behind]
    for j, k in combinations((own for _, own in named), 2):
        if ground.own.outputs[j].numel() != ground.own.outputs[k].numel():
            continue
        one, other = (
            [e for u in sorted(apart) for key in ground.own.uses[u].keys if (e := ground.entries.get(key))]
            for apart in (made_of[j] - made_of[k], made_of[k] - made_of[j])
        )
        if [e.shape for e in one] == [e.shape for e in other]:
            new = {a.target: b.expr for a, b in (*zip(one, other, strict=True), *zip(other, one, strict=True))}
            yield "what two outputs are made of, exchanged", {key: x for key, x in new.items() if x is not None}


def _chunks(ground: Ground, f: Use, u: Use) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, [new rows]) for the layer U, before the layer F, with its rows (weight and bias) in other orders of
    chunks, such as scale, shift and gate. A chunk has as many rows as the input of F has channels.

    Two to four chunks come in each other order; of five to nine, each two are exchanged. Nothing if the input of F is
    not known, if U has another number of chunks, if its rows are no whole number of chunks, or if its weight has no
    expression now.
    """
    width = 0 if f.taken is None else len(f.taken)
    n = u.rows // width if width and u.rows % width == 0 else 0
    now = ground.current(u)
    if not 2 <= n <= _MOST_CHUNKS or now.weight is None:
        return
    cut = [now.part(i * width, (i + 1) * width) for i in range(n)]
    exchanges = ([{i: j, j: i}.get(k, k) for k in range(n)] for i, j in combinations(range(n), 2))
    for order in islice(permutations(range(n)), 1, None) if n < _FEW_CHUNKS else map(tuple, exchanges):
        yield f"{n} chunks in the order {order}", [joined([cut[i] for i in order])]


def _gates(ground: Ground, f: Use, groups: Sequence[Sequence[Use]]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that reorder the gates of a recurrent layer before F: the rows of its
    weights and biases, in four parts or in three, all weights in the same order. Its weights are those in GROUPS whose
    outputs F takes, if need be with a bias added, and that have parts of one size. Nothing if they are fewer than two.

    GROUPS has the layers before F, grouped by their input. A weight may have only the first two or more of the parts,
    if the other gates are computed elsewhere; an order that would give it a part that it lacks is left out.
    """
    direct = [u for group in groups for u in group if u.index in f.before or f.before & ground.own.after(u)]
    direct = list({u.told: u for u in direct}.values())
    for width, n in dict.fromkeys((u.rows // n, n) for u in direct for n in (4, 3) if u.rows % n == 0):
        parts = [(u, u.rows // width) for u in direct if u.rows % width == 0 and width < u.rows <= n * width]
        for order in islice(permutations(range(n)), 1, None) if len(parts) > 1 else ():
            if any(max(order[:count]) >= count for _, count in parts):
                continue  # rows that a weight lacks
            pairs: list[tuple[Held | None, Expr | None]] = []
            for u, count in parts:
                now = ground.current(u)
                new = joined([now.part(i * width, (i + 1) * width) for i in order[:count]])
                pairs += [(u.held["weight"], new.weight), (ground.own.bias(u), new.bias)]
            yield from ground.change(f"gates in the order {order}", pairs)


def _groups_before(ground: Ground, f: Use) -> list[list[Use]]:
    """Return the matrices (linear layers and convolutions) of the model before F, in groups with the same input:
    queries, keys and values form one group. [] if there are none.

    These are the matrices whose outputs F takes, directly or through up to three layers of other kinds, and all others
    with the input of one of these (`Ground.twins`). Layers before these matrices are not looked at. At most four groups
    of eight layers each, in the order of execution.
    """
    found: list[Use] = []
    open_ = set(f.before)
    for _ in range(4):
        uses = [ground.own.uses[i] for i in sorted(open_)]
        found += [u for u in uses if u.kind in MATRICES and u not in found and "weight" in u.held]
        through = [u for u in uses if u.kind not in MATRICES]
        open_ = set(chain.from_iterable(u.before for u in through))
    found += [t for u in list(found) for t in ground.twins(u) if t not in found]
    by_input: dict[frozenset[int], list[Use]] = {}
    for u in sorted(found, key=lambda u: u.index):
        if len(by_input.setdefault(u.before, [])) < 8:
            by_input[u.before].append(u)
    return list(by_input.values())[:4]


def _rearranged(ground: Ground, label: str, group: Sequence[Use], rows: Sequence[Rows]) -> Iterator[Change]:
    """Yield the change (LABEL, key -> expression) that gives the layers GROUP the weights and biases ROWS, one each.
    Nothing if a layer has another number of rows, if no expressions of its keys give these rows, or if the keys have
    these expressions already.
    """
    if [r.rows for r in rows] != [u.rows for u in group]:
        return
    pairs: list[tuple[Held | None, Expr | None]] = []
    for u, r in zip(group, rows, strict=True):
        pairs += [(u.held["weight"], r.weight), (ground.own.bias(u), r.bias)]
    yield from ground.change(label, pairs)


def _orders(rows: Sequence[Rows]) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, new rows) for each way to reorder ROWS, the rows of weights with the same input: parts in another
    order, parts head by head, and groups of several queries with a key and a value. The new rows are as many as ROWS,
    each with as many rows as before.
    """
    yield from _in_another_order(rows)
    whole = joined(sorted(rows, key=place_of))
    yield from _cut_in_another_order(rows)
    yield from _two_exchanged(rows)
    yield from _equal_parts(rows, whole)
    yield from _grouped_queries(rows, whole)


def _in_another_order(rows: Sequence[Rows]) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, new rows) for each other order of ROWS, if they are two to four of one size; else nothing."""
    if 2 <= len(rows) <= 4 and len({r.rows for r in rows}) == 1:
        for order in islice(permutations(range(len(rows))), 1, None):
            yield f"parts in the order {order}", [rows[i] for i in order]


def _cut_in_another_order(rows: Sequence[Rows]) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, new rows) for each order in which the source may hold the parts of ROWS (`_cut_in_order`), if they
    are two to four of several sizes; else nothing. The new rows have the sizes of ROWS, in the order of ROWS. The
    present order is among them: ROWS need not be in the order of the source, so it may be any.
    """
    sizes = [r.rows for r in rows]
    if 2 <= len(rows) <= 4 and len(set(sizes)) > 1:
        whole = joined(sorted(rows, key=place_of))
        for order in permutations(range(len(rows))):
            yield f"parts cut in the order {order}", _cut_in_order(whole, sizes, order)


def _cut_in_order(whole: Rows, sizes: Sequence[int], order: Sequence[int]) -> list[Rows]:
    """Return the parts of WHOLE with SIZES rows, in the order of SIZES. ORDER has the indices of the parts in the order
    in which WHOLE holds them: for SIZES [2, 1] and ORDER (1, 0), part 0 is rows 1 and 2 of WHOLE, part 1 is row 0.
    """
    ends = dict(zip(order, accumulate(sizes[i] for i in order), strict=True))
    return [whole.part(ends[i] - n, ends[i]) for i, n in enumerate(sizes)]


def _two_exchanged(rows: Sequence[Rows]) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, new rows) for each two of ROWS that have one size: ROWS with these two exchanged. Nothing if ROWS
    are fewer than three, or all have one size.
    """
    if len(rows) > 2 and len({r.rows for r in rows}) > 1:
        for i, j in combinations(range(len(rows)), 2):
            if rows[i].rows == rows[j].rows:
                swapped = list(rows)
                swapped[i], swapped[j] = rows[j], rows[i]
                yield f"parts {i} and {j} exchanged", swapped


def _equal_parts(rows: Sequence[Rows], whole: Rows) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, new rows) for WHOLE cut into N equal parts (three, two, then four), in other orders. ROWS is either
    the one weight that is WHOLE, or N weights of one size that make it up; for other ROWS, that N is skipped.

    If ROWS is one weight, its parts come in each other order. For two and three parts and each usual number of heads
    above 1 that divides a part (2 to 32, `HEAD_COUNTS`; also with each row as a head), WHOLE is taken to hold the
    parts head by head, and they are put part by part, in each order; if ROWS is one weight, its parts are also joined
    head by head, in each order.
    """
    for n in (3, 2, 4):
        if whole.rows % n or (len(rows) > 1 and (len(rows) != n or len({r.rows for r in rows}) > 1)):
            continue
        size = whole.rows // n
        cut = [whole.part(i * size, (i + 1) * size) for i in range(n)]
        every = list(permutations(range(n)))
        if len(rows) == 1:
            for order in every[1:]:
                yield f"{n} parts in the order {order}", [joined([cut[i] for i in order])]
        for heads in dict.fromkeys((*HEAD_COUNTS, size)) if n < 4 else ():  # by single rows, too
            if size % heads or heads == 1:
                continue
            apart = [whole.of_heads(heads, n, i) for i in range(n)]
            for order in every:
                new = [apart[i] for i in order]
                yield f"{n} parts by {heads} heads, {order}", [joined(new)] if len(rows) == 1 else new
            for order in every if len(rows) == 1 else ():
                yield f"{n} parts to {heads} heads, {order}", [by_heads(heads, [cut[i] for i in order])]


def _grouped_queries(rows: Sequence[Rows], whole: Rows) -> Iterator[tuple[str, list[Rows]]]:
    """Yield (label, [queries, keys, values]) for ROWS, three weights cut from WHOLE, which is taken to hold, for each
    head of the keys, several queries, a key and a value: one for each usual number of heads (1 to 32, `HEAD_COUNTS`)
    that divides the rows of the keys. Nothing unless the last two of ROWS have one size, and the first is larger and a
    multiple of it.
    """
    if len(rows) != 3 or rows[1].rows != rows[2].rows or rows[0].rows <= rows[1].rows or rows[0].rows % rows[1].rows:
        return
    times = rows[0].rows // rows[1].rows
    for heads in HEAD_COUNTS:
        if rows[1].rows % heads == 0:
            *queries, key, value = [whole.of_heads(heads, times + 2, i) for i in range(times + 2)]
            yield f"groups of {times} queries by {heads} heads", [by_heads(heads, queries), key, value]


def _turns(group: Sequence[Use]) -> Iterator[tuple[str, Turn]]:
    """Yield (label, function) for each way to put the rows of queries and keys into the order of another rotary
    embedding. The function takes the rows of GROUP, layers with one input, and returns them with those of queries and
    keys reordered (see `turned`).

    There is one for each two layers of GROUP that may be queries and keys, each usual number of rows of a head (twelve
    from 2 to 128, `HEAD_SIZES`) that divides the rows of both, and each of the orders "half" and "interleaved". If
    just two layers are named as queries or keys, they come first. All other pairs follow if GROUP has fewer than five
    layers. A layer alone, whose rows three divides, is taken to hold queries, keys and values, a third each.
    """
    said = [part_label(tuple(u.keys[0].split(".")[:-1])) if u.keys else None for u in group]
    named = [i for i, part in enumerate(said) if part in ("q", "k")]
    sizes = [u.rows for u in group]
    choices: list[tuple[int, ...]] = [tuple(named)] if len(named) == 2 else []
    choices += [pair for pair in combinations(range(len(group)), 2) if pair not in choices] if len(group) < 5 else []
    if len(group) == 1 and sizes[0] % 3 == 0:
        choices.append(())
    for chosen in choices:
        for head in HEAD_SIZES:
            widths = [sizes[i] for i in chosen] or [sizes[0] // 3]
            if any(w % head for w in widths):
                continue
            for kind in ("half", "interleaved"):
                turn = partial(turned, chosen=chosen, head=head, kind=kind)
                yield f"pairs of rotary embeddings of {head} {kind} {chosen}", turn


__all__ = ["arrangements", "at_the_end", "exchanged_outputs", "twice"]
