"""Changes of the whole mapping: another option for a group of doubts, or another convention of code for all tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from math import isclose

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.fusing.projections import fused_by_name, part_label
from ..mapping import Entry
from ..questions import still_open
from .flow import Flow


def changes(entries: dict[str, Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> new expression) of the whole mapping ENTRIES, in this order: another option for all
    keys with the same doubts; another convention of code for all tensors; another option for one module of several with
    the same doubts; exchanges of two guessed modules.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries.values():
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(tuple(q.asked for q in still_open(entry.questions)), []).append(entry)
    for members in groups.values():
        doubts = members[0].doubts
        for number in range(max(len(e.rivals) for e in members)):
            yield doubts[0], {e.target: e.rivals[number] for e in members if len(e.rivals) > number}
    yield from _conventions(list(entries.values()))
    for members in groups.values():
        doubts = members[0].doubts
        by_module: dict[str, list[Entry]] = {}
        for entry in members:
            by_module.setdefault(module_of(entry), []).append(entry)
        for one in by_module.values() if len(by_module) > 1 else ():
            for number in range(min(len(one[0].rivals), 6)):
                yield doubts[0], _exchanged(entries, one, number)
    yield from _exchanges(entries)


def without_factors(
    entries: MappingOf[str, Entry], before: Iterable[Entry], shapes: MappingOf[str, Shape]
) -> dict[str, Expr]:
    """Return, as key -> expression without factors, the keys of ENTRIES whose factor trials found: not those that have
    one in BEFORE, the entries before any trial. SHAPES has the sizes of the source.

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
    """Return, as key -> option, the change that answers the questions about factors in one way: if trials took the same
    option for all members of a group with the same question that they changed, the other members take it as well, if
    EXPECTED, the flow of the source's code, has that factor behind them.

    BEFORE has the entries before any trial, ENTRIES those after. Empty if trials changed nothing of the kind.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in before:
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(tuple(q.asked for q in still_open(entry.questions)), []).append(entry)
    new: dict[str, Expr] = {}
    for members in groups.values():
        now = {e.target: entries[e.target].expr for e in members}
        taken = {e.rivals.index(x) for e in members if (x := now[e.target]) is not None and x in e.rivals}
        for entry in members if len(taken) == 1 else ():
            option = entry.rivals[min(taken)] if len(entry.rivals) > min(taken) else None
            if option is not None and now[entry.target] == entry.expr and _has_factor(option, expected):
                new[entry.target] = option
    return new


def _has_factor(option: Expr, expected: Flow) -> bool:
    """Return whether OPTION is a whole tensor of the source times a number, and the source's code multiplies by this
    number (or divides by its inverse) between the layer of that tensor and the next one, or behind the last one.
    """
    if option.op != "scale" or not option.args[0].is_copy:
        return False
    factor, key = float(option.params[0]), option.args[0].key
    layers = {use.index for use in expected.uses if key in use.keys}
    behind = [use.steps for use in expected.uses if not layers.isdisjoint(use.before)]
    behind += [
        steps for ends, steps in zip(expected.behind, expected.tails, strict=False) if not layers.isdisjoint(ends)
    ]
    numbers = [(step.name, dict(step.settings).get("other")) for steps in behind for step in steps]
    return any(
        isinstance(number, float) and number and isclose(number if name == "mul" else 1 / number, factor, rel_tol=1e-5)
        for name, number in numbers
        if name in ("mul", "div")
    )


def module_of(entry: Entry) -> str:
    """Return the path of the module that holds the key of ENTRY: "a.b" for "a.b.weight", "" for "weight"."""
    return entry.target.rpartition(".")[0]


def _exchanged(entries: dict[str, Entry], members: Sequence[Entry], number: int) -> dict[str, Expr]:
    """Return the change, as key -> expression, that gives MEMBERS, the entries of one module, their option NUMBER, if
    they have so many, and their old expressions to the keys of the same sizes that had these options.
    """
    new = {e.target: e.rivals[number] for e in members if len(e.rivals) > number}
    for own, expr in list(new.items()):
        old = entries[own].expr
        for key, entry in entries.items():
            if key not in new and entry.expr == expr and old is not None and entry.shape == entries[own].shape:
                new[key] = old
    return new


def _exchanges(entries: dict[str, Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression), each of which exchanges the sources of two guessed modules with equal
    shapes, at most 11 modules apart.
    """
    modules: dict[str, list[Entry]] = {}
    for entry in entries.values():
        if entry.status == "guessed" and entry.expr is not None:
            modules.setdefault(module_of(entry), []).append(entry)
    paths = list(modules)
    for i, one in enumerate(paths):
        for other in paths[i + 1 : i + 12]:
            a, b = modules[one], modules[other]
            if [e.shape for e in a] == [e.shape for e in b]:
                pairs = [(p, q) for p, q in zip(a, b, strict=True) if p.expr is not None and q.expr is not None]
                there = {p.target: q.expr for p, q in pairs if q.expr is not None}
                yield f"{one} and {other} exchanged", there | {q.target: p.expr for p, q in pairs if p.expr is not None}


def _conventions(entries: list[Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> expression), each for one convention that shapes do not show, made in all tensors
    that it concerns: queries and keys in half or interleaved order, for each usual width of heads that divides all of
    them; parts cut from one tensor, joined parts, and whole fused projections, alternating by each usual number of
    heads that divides their rows; 1 added to or taken from norm weights; transposed squares.

    The order in which features are flattened is changed for one matrix at a time, with 8 or more columns, for numbers
    of channels of layers before it that leave a square map.
    """
    copied = [(p, e, e.expr) for p, e in enumerate(entries) if e.expr is not None]
    attention = [(p, e, x) for p, e, x in copied if _part(e) in ("q", "k")]
    widths = sorted({e.shape[0] for _, e, _ in attention})
    if attention:
        for head in (d for d in _HEAD_SIZES if all(w % d == 0 for w in widths)):
            for kind in ("half", "interleaved"):
                yield (
                    f"rows of queries and keys in {kind} order",
                    _with(entries, {p: ex.rotary(x, e.shape[0] // head, kind) for p, e, x in attention}),
                )
    parts = [(p, rows) for p, _, x in copied if (rows := ex.rows_cut(x)) is not None]
    for n in (3, 2):
        split = {}
        for p, (x, start, stop) in parts:
            if start % (stop - start) == 0 and start // (stop - start) < n:
                split[p] = (x, start // (stop - start))
        if split:
            for heads in _HEAD_COUNTS:
                if all(entries[p].shape[0] % heads == 0 for p in split):
                    yield (
                        f"parts that alternate by {heads} heads",
                        _with(entries, {p: ex.of_heads(x, heads, n, i) for p, (x, i) in split.items()}),
                    )
    fused = [(p, e, joined) for p, e, x in copied if len(joined := ex.rows_joined(x) or ()) in (2, 3)]
    fused = [one for one in fused if one[1].status == "guessed"] or fused  # what is certain stays, if something is not
    for heads in _HEAD_COUNTS if fused else ():
        yield (
            f"parts that alternate by {heads} heads",
            _with(
                entries,
                {p: ex.by_heads(heads, *args) for p, e, args in fused if (e.shape[0] // len(args)) % heads == 0},
            ),
        )
    whole = [(p, e, x) for p, e, x in copied if x.is_copy and _is_fused(e)]
    for heads in _HEAD_COUNTS if whole else ():
        for turn in (True, False):
            new = {}
            for p, e, x in whole:
                third = e.shape[0] // 3
                if e.shape[0] % 3 or third % heads:
                    continue
                if turn:
                    cut = [ex.part(x, 0, i * third, (i + 1) * third) for i in range(3)]
                    new[p] = ex.by_heads(heads, *cut)
                else:
                    cut = [ex.of_heads(x, heads, 3, i) for i in range(3)]
                    new[p] = ex.cat(0, *cut)
            if new:
                yield f"fused projections {'to' if turn else 'from'} alternating by {heads} heads", _with(entries, new)
    norms = [
        (p, e, ex.unshifted(x))
        for p, e, x in copied
        if len(e.shape) == 1 and e.target.endswith("weight") and "norm" in e.target.lower()
    ]
    for amount in (1.0, -1.0) if norms else ():
        yield f"norm weights {amount:+g}", _with(entries, {p: ex.shift(x, amount) for p, e, x in norms})
    for p, e, x in copied:
        if len(e.shape) == 2 and e.shape[1] >= 8 and (x.is_copy or ex.is_transposed(x)):
            for c in _channels_before(entries, p, e.shape[1]):
                side = int((e.shape[1] // c) ** 0.5)
                if side * side * c == e.shape[1] and side > 1:
                    for to in ("nhwc", "nchw"):
                        yield (
                            f"{e.target} for features flattened as {to.upper()}",
                            _with(entries, {p: ex.flatten(x, c, side, side, to)}),
                        )
    square = [(p, e, x) for p, e, x in copied if len(e.shape) == 2 and e.shape[0] == e.shape[1]]
    if square:
        yield "square matrices transposed", _with(entries, {p: ex.transpose(x) for p, e, x in square})


_HEAD_SIZES = (64, 128, 32, 96, 80, 16, 8, 4)
_HEAD_COUNTS = (2, 4, 8, 12, 16, 3, 6, 24, 32)


def _with(entries: list[Entry], new: MappingOf[int, Expr]) -> dict[str, Expr]:
    return {entries[p].target: expr for p, expr in new.items()}


def _part(entry: Entry) -> str | None:
    path = tuple(entry.target.split(".")[:-1])
    found = part_label(path) if path else None
    if found is None and entry.expr is not None:
        own = [part_label(tuple(key.split(".")[:-1])) for key in entry.sources if "." in key]
        found = own[0] if len(own) == 1 else None
    return found


def _is_fused(entry: Entry) -> bool:
    return fused_by_name(entry.target) or any(fused_by_name(key) for key in entry.sources)


def _channels_before(entries: list[Entry], place: int, width: int) -> list[int]:
    """Return numbers of channels that feature maps may have before the layer at PLACE in ENTRIES, which takes WIDTH
    numbers: the outputs of the two-dimensional convolutions before it that divide WIDTH, the nearest first, at most
    two.
    """
    found = [e.shape[0] for e in entries[:place] if len(e.shape) == 4 and width % e.shape[0] == 0]
    return list(dict.fromkeys(reversed(found)))[:2]
