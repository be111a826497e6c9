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

#: Options of one module that are tried alone, and how far apart modules are that are exchanged.
_OF_ONE_MODULE, _APART = 6, 11


def changes(entries: dict[str, Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> new expression) of the whole mapping ENTRIES, in this order: another option for all
    keys with the same doubts; another convention of code for all tensors; another option, one of the first six, for one
    module of several with the same doubts, in exchange with the keys that have it now (`_exchanged`); exchanges of two
    guessed modules.
    """
    groups = _with_equal_doubts(entries.values())
    for members in groups:
        for number in range(max(len(e.rivals) for e in members)):
            yield members[0].doubts[0], {e.target: e.rivals[number] for e in members if len(e.rivals) > number}
    yield from _conventions(list(entries.values()))
    for members in groups:
        by_module: dict[str, list[Entry]] = {}
        for entry in members:
            by_module.setdefault(module_of(entry), []).append(entry)
        for one in by_module.values() if len(by_module) > 1 else ():
            for number in range(min(len(one[0].rivals), _OF_ONE_MODULE)):
                yield members[0].doubts[0], _exchanged(entries, one, number)
    yield from _exchanges(entries)


def _with_equal_doubts(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the guessed entries with options among ENTRIES, in groups with the same open questions."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(tuple(q.asked for q in still_open(entry.questions)), []).append(entry)
    return list(groups.values())


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
    option for all members of a group (entries with the same open questions) that they changed, each other member takes
    it as well, if EXPECTED, the flow of the source's code, multiplies by that factor behind the layer of its tensor.

    BEFORE has the entries before any trial, ENTRIES those after. Empty if trials changed nothing of the kind.
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
    factors = (step.factor for steps in behind for step in steps)
    return any(found is not None and isclose(found, factor, rel_tol=1e-5) for found in factors)


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
    """Yield changes (label, key -> expression), each of which exchanges the sources of two modules with guessed entries
    of equal shapes in equal order, at most 11 such modules apart. Entries that are not guessed stay.
    """
    modules: dict[str, list[tuple[Entry, Expr]]] = {}
    for entry in entries.values():
        if entry.status == "guessed" and entry.expr is not None:
            modules.setdefault(module_of(entry), []).append((entry, entry.expr))
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


def _conventions(entries: list[Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes (label, key -> new expression) of ENTRIES for conventions that shapes do not show, several for
    each, such as one for each usual number of heads: rotary embeddings, parts that alternate by heads, norms around 1,
    flattened features, transposed squares. No question has to be open: certain entries change as well (of tensors with
    joined parts, only guessed ones, if there are any). A change is made in all tensors that it concerns; for flattened
    features, in one matrix.
    """
    made = [(e, e.expr) for e in entries if e.expr is not None]
    yield from _rotary_orders(made)
    yield from _cut_by_heads(made)
    yield from _joined_by_heads(made)
    yield from _fused_by_heads(made)
    yield from _norms_around_one(made)
    yield from _flattened(entries)
    squares = {e.target: ex.transpose(x) for e, x in made if len(e.shape) == 2 and e.shape[0] == e.shape[1]}
    if squares:
        yield "square matrices transposed", squares


def _rotary_orders(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes that put the rows of all queries and keys in half or in interleaved order, for each usual width of
    heads that divides all of them.
    """
    attention = [(e, x) for e, x in made if _part(e) in ("q", "k")]
    for head in _HEAD_SIZES if attention else ():
        if all(e.shape[0] % head == 0 for e, _ in attention):
            for kind in ("half", "interleaved"):
                new = {e.target: ex.rotary(x, e.shape[0] // head, kind) for e, x in attention}
                yield f"rows of queries and keys in {kind} order", new


def _cut_by_heads(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes that cut all parts of fused tensors, thirds or halves, head by head, for each usual number of heads
    that divides the rows of all parts. These are the rows that the mapping cuts now at the first, second or third
    place, each of their own size.
    """
    parts = [(e, rows) for e, x in made if (rows := ex.rows_cut(x)) is not None]
    for n in (3, 2):
        split = {e.target: (e, x, start // (stop - start)) for e, (x, start, stop) in parts
                 if start % (stop - start) == 0 and start // (stop - start) < n}  # fmt: skip
        for heads in _HEAD_COUNTS if split else ():
            if all(e.shape[0] % heads == 0 for e, _, _ in split.values()):
                new = {key: ex.of_heads(x, heads, n, i) for key, (_, x, i) in split.items()}
                yield f"parts that alternate by {heads} heads", new


def _joined_by_heads(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield a change for each usual number of heads: it joins two or three parts head by head in all tensors with so
    many joined parts whose rows allow it. If some of these tensors are guessed, only they change.
    """
    fused = [(e, joined) for e, x in made if len(joined := ex.rows_joined(x) or ()) in (2, 3)]
    fused = [one for one in fused if one[0].status == "guessed"] or fused  # what is certain stays, if something is not
    for heads in _HEAD_COUNTS if fused else ():
        new = {e.target: ex.by_heads(heads, *args) for e, args in fused if (e.shape[0] // len(args)) % heads == 0}
        yield f"parts that alternate by {heads} heads", new


def _fused_by_heads(made: Sequence[_Made]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield two changes for each usual number of heads, of all fused projections (by name) that are whole tensors of
    the source and have thirds whose rows it divides: one puts the three parts head by head, and one takes them for head
    by head and puts them apart.
    """
    whole = [(e, x, e.shape[0] // 3) for e, x in made if x.is_copy and _is_fused(e)]
    for heads in _HEAD_COUNTS:
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
    adds. Norms are the vectors whose keys have "norm" in them and end in "weight". Nothing without any.
    """
    norms = [
        (e.target, ex.unshifted(x))
        for e, x in made
        if len(e.shape) == 1 and e.target.endswith("weight") and "norm" in e.target.lower()
    ]
    for amount in (1.0, -1.0) if norms else ():
        yield f"norm weights {amount:+g}", {key: ex.shift(x, amount) for key, x in norms}


def _flattened(entries: list[Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Yield changes of one matrix each, with 8 or more columns and a whole tensor of the source, perhaps transposed, as
    its expression: the order in which the features that it takes are flattened, "nhwc" and "nchw", for numbers of
    channels of convolutions before it (`_channels_before`) that leave a square map of more than one place.
    """
    for place, e in enumerate(entries):
        x = e.expr
        if x is None or len(e.shape) != 2 or e.shape[1] < 8 or not (x.is_copy or ex.is_transposed(x)):
            continue
        for c in _channels_before(entries, place, e.shape[1]):
            side = int((e.shape[1] // c) ** 0.5)
            if side * side * c == e.shape[1] and side > 1:
                for to in ("nhwc", "nchw"):
                    label = f"{e.target} for features flattened as {to.upper()}"
                    yield label, {e.target: ex.flatten(x, c, side, side, to)}


_HEAD_SIZES = (64, 128, 32, 96, 80, 16, 8, 4)
_HEAD_COUNTS = (2, 4, 8, 12, 16, 3, 6, 24, 32)


def _part(entry: Entry) -> str | None:
    """Return which part of a fused projection ENTRY is, "q", "k", "v", "gate" or "up", by the name of its module, or
    else by that of the only module of the source that it reads; None if neither says it.
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
    """Return numbers of channels that feature maps may have before the layer at PLACE in ENTRIES, which takes WIDTH
    numbers: the outputs of the two-dimensional convolutions before it that divide WIDTH, the nearest first, at most
    two.
    """
    found = [e.shape[0] for e in entries[:place] if len(e.shape) == 4 and width % e.shape[0] == 0]
    return list(dict.fromkeys(reversed(found)))[:2]
