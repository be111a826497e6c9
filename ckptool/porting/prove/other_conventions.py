"""Changes of the whole mapping: another option for a group of doubts, or another convention of code for all tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from math import isclose, isqrt

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.fusing.projections import fused_by_name, part_label
from ..mapping import Entry
from ..questions import still_open
from .flow import Flow
from .ground import exchanged, module_of
from .rows import HEAD_COUNTS, HEAD_SIZES

#: Options of one module that are tried alone, and how far apart modules are that are exchanged.
_OF_ONE_MODULE, _APART = 6, 11


def changes(entries: dict[str, Entry], shapes: MappingOf[str, Shape]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> new expression) of the whole mapping ENTRIES (key -> entry), of a source with the
    sizes SHAPES (key -> sizes), in this order:

    - option N of their questions for all guessed keys with the same doubts and so many options, for each N;
    - another convention of code for all tensors (`_conventions`);
    - one of the first six options for one module, if several modules have the same doubts (as many options as the first
      of its keys has); keys that have its new expressions now get its old ones in exchange (`exchanged`);
    - exchanges of two guessed modules (`_exchanges`).
    """
    groups = _with_equal_doubts(entries.values())
    for members in groups:
        for number in range(max(len(e.rivals) for e in members)):
            yield members[0].doubts[0], {e.target: e.rivals[number] for e in members if len(e.rivals) > number}
    yield from _conventions(list(entries.values()), shapes)
    for members in groups:
        by_module: dict[str, list[Entry]] = {}
        for entry in members:
            by_module.setdefault(module_of(entry.target), []).append(entry)
        for one in by_module.values() if len(by_module) > 1 else ():
            for number in range(min(len(one[0].rivals), _OF_ONE_MODULE)):
                new = {e.target: e.rivals[number] for e in one if len(e.rivals) > number}
                yield members[0].doubts[0], exchanged(entries, new)
    yield from _exchanges(entries)


def _with_equal_doubts(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the guessed entries with options among ENTRIES, in groups with the same open questions (equal reasons and
    names, as in `Question.asked`; their options may differ). A group may have one entry; [] if there are none.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(tuple(q.asked for q in still_open(entry.questions)), []).append(entry)
    return list(groups.values())


def without_factors(
    entries: MappingOf[str, Entry], before: Iterable[Entry], shapes: MappingOf[str, Shape]
) -> dict[str, Expr]:
    """Return the change, as key -> expression without its factor, that takes factors out again that trials have put in.
    It has each key whose expression in ENTRIES (key -> entry) has a factor (as `unscaled` finds it: `scale(a, 2.0)`)
    and is not that in BEFORE, the entries before any trial, unless the old expression had a factor, too. {} if there
    are none. SHAPES has the sizes of the source.

    One code multiplies a weight by a number on each call, and the other does not. What the layer gives directly is
    equal only with that factor in the weight, but a norm, or code that gives weights a length of its own, takes it out.
    """
    out = {}
    for old in before:
        now = entries[old.target].expr
        if now is not None and now != old.expr and (old.expr is None or ex.unscaled(old.expr) == old.expr):
            bare = ex.simplified(ex.unscaled(now), shapes)
            if bare != now:
                out[old.target] = bare
    return out


def factors_as_in_others(entries: MappingOf[str, Entry], before: Iterable[Entry], expected: Flow) -> dict[str, Expr]:
    """Return the change, as key -> expression, that gives factors to more keys, as trials gave them to others. BEFORE
    has the entries before any trial, ENTRIES (key -> entry) those after.

    In each group of guessed entries with the same open questions, some members have to have one of their options now,
    and all of these the option with the same number. Each member that still has its old expression then gets its own
    option with this number, if that is a tensor times a factor, and EXPECTED, the flow of the source's code, multiplies
    by this factor after the layer of that tensor (`_has_factor`). {} if there is none.
    """
    new: dict[str, Expr] = {}
    for members in _with_equal_doubts(before):
        now = {e.target: entries[e.target].expr for e in members}
        taken = {e.rivals.index(x) for e in members if (x := now[e.target]) is not None and x in e.rivals}
        for entry in members if len(taken) == 1 else ():
            option = entry.rivals[min(taken)] if len(entry.rivals) > min(taken) else None
            if option is not None and now[entry.target] == entry.expr and _has_factor(option, expected):
                new[entry.target] = option
    return new


def _has_factor(option: Expr, expected: Flow) -> bool:
    """Return whether OPTION is a whole tensor of the source times a number, and the source's code, whose flow EXPECTED
    is, multiplies by this number (or divides by its inverse) between a layer with that tensor and the next layer, or
    between it and an output.
    """
    if option.op != "scale" or not option.args[0].is_copy:
        return False
    factor, key = float(option.params[0]), option.args[0].key
    layers = {use.index for use in expected.uses if key in use.keys}
    behind = [use.steps for use in expected.uses if not layers.isdisjoint(use.before)]
    behind += [
        steps for ends, steps in zip(expected.behind, expected.tails, strict=False) if not layers.isdisjoint(ends)
    ]
    factors = (step.factor for steps in behind for step in steps)
    return any(found is not None and isclose(found, factor, rel_tol=1e-5) for found in factors)


def _exchanges(entries: dict[str, Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression), each of which exchanges the expressions of the guessed entries of two
    modules, if these have equal sizes in equal order. Each module with guessed entries is exchanged with the next 11 of
    them. Entries that are not guessed stay.
    """
    modules: dict[str, list[tuple[Entry, Expr]]] = {}
    for entry in entries.values():
        if entry.status == "guessed" and entry.expr is not None:
            modules.setdefault(module_of(entry.target), []).append((entry, entry.expr))
    paths = list(modules)
    for i, one in enumerate(paths):
        for other in paths[i + 1 : i + 1 + _APART]:
            a, b = modules[one], modules[other]
            if [e.shape for e, _ in a] == [e.shape for e, _ in b]:
                pairs = list(zip(a, b, strict=True))
                there = {p.target: x for (p, _), (_, x) in pairs}
                yield f"{one} and {other} exchanged", there | {q.target: x for (_, x), (q, _) in pairs}


# ------------------------------------------------------------------------------------------------- conventions

#: An entry, and its expression.
_Made = tuple[Entry, Expr]


def _conventions(entries: list[Entry], shapes: MappingOf[str, Shape]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> new expression) of ENTRIES for conventions of code that shapes do not show: orders
    of rotary embeddings, parts that alternate by heads, norms around 1, flattened features, square matrices transposed.
    There may be several for a convention, such as one for each usual number of heads.

    A change is made at once in all entries with an expression that the convention concerns, also in those without a
    doubt. There are two exceptions: a change for flattened features is of one matrix, and if some of the joined parts
    (`_joined_by_heads`) are guessed, only these change. SHAPES has the sizes of the source.
    """
    made = [(e, e.expr) for e in entries if e.expr is not None]
    yield from _rotary_orders(made)
    yield from _cut_by_heads(made, shapes)
    yield from _joined_by_heads(made)
    yield from _fused_by_heads(made)
    yield from _norms_around_one(made)
    yield from _flattened(entries)
    squares = {e.target: ex.transpose(x) for e, x in made if len(e.shape) == 2 and e.shape[0] == e.shape[1]}
    if squares:
        yield "square matrices transposed", squares


def _rotary_orders(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression) that put the rows of all queries and keys of MADE, pairs (entry, its
    expression), into the "half" or the "interleaved" order of a rotary embedding: two changes for each width of
    heads in `HEAD_SIZES` (2 to 128) that divides the rows of all of them. Queries and keys are told by their names
    (`_part`); nothing without any.
    """
    attention = [(e, x) for e, x in made if e.shape and _part(e) in ("q", "k")]
    for head in HEAD_SIZES if attention else ():
        if all(e.shape[0] % head == 0 for e, _ in attention):
            for kind in ("half", "interleaved"):
                new = {e.target: ex.rotary(x, e.shape[0] // head, kind) for e, x in attention}
                yield f"rows of queries and keys in {kind} order", new


def _cut_by_heads(made: Sequence[_Made], shapes: MappingOf[str, Shape]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression) that cut parts from fused tensors of the source head by head, not as one
    block of rows each: first thirds, then halves, one change for each number of heads in `HEAD_COUNTS` (1 to 32) that
    divides the rows of all these parts. A change has all thirds, or all halves, of MADE, pairs (entry, its expression).

    Parts are entries that take the first, second and (of thirds) third block of equally many rows of one tensor, if
    these are all of its rows (SHAPES has the sizes of the source). Blocks of a tensor with more rows are no parts.
    """
    cut: dict[tuple[Expr, int], list[tuple[Entry, int]]] = defaultdict(list)
    for e, x in made:
        if (found := ex.rows_cut(x)) is not None and found[1] % (found[2] - found[1]) == 0:
            whole, start, stop = found
            cut[whole, stop - start].append((e, start // (stop - start)))
    for n in (3, 2):
        parts = [
            (e, whole, place)
            for (whole, rows), held in cut.items()
            if {place for _, place in held} == {*range(n)} and ex.shape_of(whole, shapes)[0] == n * rows
            for e, place in held
        ]
        for heads in HEAD_COUNTS if parts else ():
            if all(e.shape[0] % heads == 0 for e, _, _ in parts):
                new = {e.target: ex.of_heads(whole, heads, n, place) for e, whole, place in parts}
                yield f"parts that alternate by {heads} heads", new


def _joined_by_heads(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression), one for each number of heads in `HEAD_COUNTS`, in which two or three
    tensors that are concatenated along the rows now are joined head by head. MADE has pairs (entry, its expression);
    all entries with such an expression change at once, if the number of heads divides their rows per part (if it
    divides none, the change is empty). If some of them are guessed, only these change. Nothing without any.
    """
    fused = [(e, joined) for e, x in made if len(joined := ex.rows_joined(x) or ()) in (2, 3)]
    fused = [one for one in fused if one[0].status == "guessed"] or fused  # what is certain stays, if something is not
    for heads in HEAD_COUNTS if fused else ():
        new = {e.target: ex.by_heads(heads, *args) for e, args in fused if (e.shape[0] // len(args)) % heads == 0}
        yield f"parts that alternate by {heads} heads", new


def _fused_by_heads(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield two changes (label, key -> expression) for each number of heads in `HEAD_COUNTS`. One puts the three
    parts of fused projections, which are one after the other, head by head; the other takes them for head by head, and
    puts them one after the other.

    MADE has pairs (entry, its expression). All fused projections (by their names, `_is_fused`) change at once that are
    copies of a tensor of the source and have thirds whose rows the number of heads divides; a number of heads that
    divides none gives no changes.
    """
    whole = [(e, x, e.shape[0] // 3) for e, x in made if e.shape and x.is_copy and _is_fused(e)]
    for heads in HEAD_COUNTS:
        fitting = [(e, x, third) for e, x, third in whole if not (e.shape[0] % 3 or third % heads)]
        if not fitting:
            continue
        to: dict[str, Expr] = {}
        back: dict[str, Expr] = {}
        for e, x, third in fitting:
            to[e.target] = ex.by_heads(heads, *(ex.part(x, 0, i * third, (i + 1) * third) for i in range(3)))
            back[e.target] = ex.cat(0, *(ex.of_heads(x, heads, 3, i) for i in range(3)))
        yield f"fused projections to alternating by {heads} heads", to
        yield f"fused projections from alternating by {heads} heads", back


def _norms_around_one(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield a change that adds 1 to the weights of all norms, and one that subtracts 1, in place of what the mapping
    adds last now (`unshifted`). Norms are the vectors whose keys have "norm" in them, in any letters, and end in
    "weight". Nothing without any.
    """
    norms = [
        (e.target, ex.unshifted(x))
        for e, x in made
        if len(e.shape) == 1 and e.target.endswith("weight") and "norm" in e.target.lower()
    ]
    for amount in (1.0, -1.0) if norms else ():
        yield f"norm weights {amount:+g}", {key: ex.shift(x, amount) for key, x in norms}


def _flattened(entries: list[Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression) of one matrix each: its columns are reordered for feature maps that are
    flattened with their channels last ("nhwc"), or first ("nchw"), in place of the other.

    A matrix of ENTRIES counts if it has 8 or more columns, and is a whole tensor of the source, perhaps transposed. It
    is changed in both ways for each number of channels of convolutions before it (`_channels_before`, at most two) with
    which its columns make maps of more than one place (512 columns and 32 channels: 4 x 4). If these are no squares,
    the map is written as one row.
    """
    for place, e in enumerate(entries):
        x = e.expr
        if x is None or len(e.shape) != 2 or e.shape[1] < 8 or not (x.is_copy or ex.is_transposed(x)):
            continue
        for c in _channels_before(entries, place, e.shape[1]):
            places = e.shape[1] // c
            side = isqrt(places)
            h, w = (side, side) if side * side == places else (1, places)
            for to in ("nhwc", "nchw") if places > 1 else ():
                yield f"{e.target} for features flattened as {to.upper()}", {e.target: ex.flatten(x, c, h, w, to)}


def _part(entry: Entry) -> str | None:
    """Return which part of a fused projection ENTRY is, "q", "k", "v", "gate" or "up", by the name of its module, or
    else, if it reads just one key of the source, by that of the module of this key; None if neither says it.
    """
    path = tuple(entry.target.split(".")[:-1])
    found = part_label(path) if path else None
    if found is None and entry.expr is not None:
        own = [part_label(tuple(key.split(".")[:-1])) for key in entry.sources if "." in key]
        found = own[0] if len(own) == 1 else None
    return found


def _is_fused(entry: Entry) -> bool:
    """Return whether the key of ENTRY, or a key of the source that it reads, is a fused projection by its name."""
    return fused_by_name(entry.target) or any(fused_by_name(key) for key in entry.sources)


def _channels_before(entries: list[Entry], place: int, width: int) -> list[int]:
    """Return up to two numbers of channels that feature maps may have before the layer at PLACE in ENTRIES, which takes
    WIDTH numbers: the first sizes, which divide WIDTH, of the kernels of convolutions (three to five dimensions) before
    it in the order of ENTRIES, each number once, the nearest first. [] if there are none.
    """
    found = [e.shape[0] for e in entries[:place] if 2 < len(e.shape) < 6 and e.shape[0] and width % e.shape[0] == 0]
    return list(dict.fromkeys(reversed(found)))[:2]
