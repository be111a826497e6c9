"""Propose sources for units without a partner: layers that hold several layers of the other side, or one shared layer.

Nothing here is certain: each proposal ends as a guess, unless the source's code answers its question.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import Piece, squeezed
from ..matching.units import Pair, Path, Unit, around, hard_conflict, template
from ..questions import Question, Reason, ask, ask_code
from ..words import label, table, telling_words
from ..words import shared as shared_words

#: As many parts of one layer are looked for, at most.
_MOST_PARTS = 4
#: As many tensors are looked for in the rows of such parts, at most; and the dimensions of a matrix.
_MOST_ROWS, _MATRIX = 64, 2
#: What a question calls the parts along each dimension. Columns are inputs of a linear layer, but outputs of a table.
_ALONG = ("rows", "columns")


@dataclass(frozen=True, slots=True)
class Proposal:
    """An expression that may fill one tensor of the target.

    Attributes:
        target, source: the units.
        role: the role of the tensor in the target's unit.
        expr: the expression for it.
        question: why this is uncertain, with other expressions as options.
    """

    target: Unit
    source: Unit
    role: str
    expr: Expr
    question: Question[Expr]


def parts(pairs: Sequence[Pair], targets: Sequence[Unit], sources: Sequence[Unit]) -> Iterator[Proposal]:
    """Yield proposals for two to four units of one side that together make up one unit of the other side. If the
    several are of the target, each gets its part of the source's unit (`_cut`); if they are of the source, the target's
    unit gets them side by side (`_joined`). Nothing is filled here.

    The several are all units without a partner in their module with the same roles and number of dimensions
    (`_families`). In the module of the other side with the partners of their neighbours (`_counterpart`), exactly one
    unit without a partner has the sum of their sizes (`_dimension`), and its words exclude none of theirs.

    Args:
        pairs: the pairs so far, (target, source).
        targets, sources: the units without a partner.
    """
    for to_target in (True, False):
        several, one = (targets, sources) if to_target else (sources, targets)
        for held in _families(several):
            module = _counterpart(pairs, held[0].path[:-1], of_target=to_target)
            inside = [] if module is None else [u for u in one if u.within(module)]
            fitting = [(u, dim) for u in inside if (dim := _dimension(u, held)) is not None]
            if len(fitting) == 1 and not any(hard_conflict(u.words, fitting[0][0].words) for u in held):
                yield from _cut(held, *fitting[0]) if to_target else _joined(held, *fitting[0])


def _families(units: Sequence[Unit]) -> list[list[Unit]]:
    """Return UNITS in groups of two to four with the same module, roles of tensors and number of dimensions, each in
    order of registration; larger groups, units alone and scalars are left out.
    """
    found: dict[object, list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.main.shape:
            found[(unit.path[:-1], frozenset(unit.pieces), len(unit.main.shape))].append(unit)
    return [sorted(held, key=lambda u: u.order) for held in found.values() if 1 < len(held) <= _MOST_PARTS]


def _counterpart(pairs: Sequence[Pair], module: Path, *, of_target: bool) -> Path | None:
    """Return the path of the module of the other side that corresponds to MODULE: the innermost one around all partners
    of the units in MODULE. MODULE is of the target if OF_TARGET, else of the source; PAIRS are (target, source).

    If no unit in MODULE has a partner, the units in the nearest module around it with partners are taken instead. None
    if only the outermost module has such units, or if MODULE is the outermost one.
    """
    for at in range(len(module), 0, -1):
        others = [(s if of_target else t).path for t, s in pairs if (t if of_target else s).path[:at] == module[:at]]
        if others:
            return around(others)
    return None


def _dimension(whole: Unit, held: Sequence[Unit]) -> int | None:
    """Return the first dimension, 0 or 1, along which the tensors of HELD, concatenated role by role, have the sizes of
    those of WHOLE; only 0 is possible if there are vectors among them. None if there is none, or if WHOLE and the first
    of HELD have different roles. All of HELD have the same roles.
    """
    if whole.pieces.keys() != held[0].pieces.keys():
        return None
    for dim in range(min(len(whole.main.shape), 2)):
        sums = (_sum([u.pieces[role].shape for u in held], dim) for role in whole.pieces)
        if all(found == piece.shape for found, piece in zip(sums, whole.pieces.values(), strict=True)):
            return dim
    return None


def _sum(shapes: Sequence[Shape], dim: int) -> Shape | None:
    """Return the sizes of tensors with SHAPES after they are concatenated along dimension DIM: (5, 4) for (2, 4) and
    (3, 4) along 0. None if they differ in another size or in the number of dimensions, or if one of them has no
    dimension DIM, or the size 0 there.
    """
    if any(len(s) <= dim or not s[dim] for s in shapes) or len({(*s[:dim], 0, *s[dim + 1 :]) for s in shapes}) != 1:
        return None
    return (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])


def _cut(held: Sequence[Unit], whole: Unit, dim: int) -> Iterator[Proposal]:
    """Yield a proposal for each tensor of HELD, units of the target: its part of the tensor of this role in WHOLE, of
    the source, cut along dimension DIM in the order of HELD. The option is its part for the opposite order.
    """
    asked: Question[Expr] = ask(Reason.PART_OF, ".".join(whole.path), _ALONG[dim])
    for role, piece in whole.pieces.items():
        sizes = [u.pieces[role].shape[dim] for u in held]
        total = sum(sizes)
        for place, unit in enumerate(held):
            start, stop = sum(sizes[:place]), sum(sizes[: place + 1])
            made = ex.part(piece.expr, dim, start, stop)
            rival = ex.part(piece.expr, dim, total - stop, total - start)
            yield Proposal(unit, whole, role, made, asked.about(rival))


def _joined(held: Sequence[Unit], whole: Unit, dim: int) -> Iterator[Proposal]:
    """Yield, for each tensor of WHOLE, a proposal with those of HELD side by side along DIM, and with the first of HELD
    as its source; the option is the opposite order.
    """
    asked: Question[Expr] = ask(Reason.JOINED_LAYERS, ".".join(whole.path), _ALONG[dim])
    for role in whole.pieces:
        exprs = [u.pieces[role].expr for u in held]
        yield Proposal(whole, held[0], role, ex.cat(dim, *exprs), asked.about(ex.cat(dim, *exprs[::-1])))


def rows(pairs: Sequence[Pair], targets: Sequence[Unit], sources: Sequence[Unit]) -> Iterator[Proposal]:
    """Yield proposals for tensors of the target that are rows of unused matrices of the source: the tensors of one
    width, in their order of registration, make up all unused matrices of this width, each a row of tensors that follow
    one another, in exactly one way (`_runs`). A vector is one row. There are at most four such matrices, and more
    tensors than matrices, but at most 64. Each tensor gets its rows; the option is its rows for the opposite order in
    this matrix.

    FT-Transformer (Gorishniy et al., 2021) has had its class token and its tables in such matrices. PAIRS are not
    looked at; TARGETS and SOURCES are the units that are not filled and not used.
    """
    wanted, have = ([(u, role) for u in units for role in u.pieces] for units in (targets, sources))
    for width in {u.pieces[role].shape[-1] for u, role in have if len(u.pieces[role].shape) == _MATRIX}:
        held = [(u, role) for u, role in wanted if _rows(u.pieces[role], width)]
        held.sort(key=lambda one: one[0].pieces[one[1]].order)
        wholes = [(u, role) for u, role in have if u.pieces[role].shape[1:] == (width,)]
        sizes, totals = ([_rows(u.pieces[role], width) for u, role in some] for some in (held, wholes))
        if sum(sizes) != sum(totals) or not len(wholes) < len(held) <= _MOST_ROWS or len(wholes) > _MOST_PARTS:
            continue
        found = list(islice(_runs(sizes, totals), 2))
        if len(found) != 1:
            continue
        for (whole, role), (begin, end) in zip(wholes, found[0], strict=True):
            asked: Question[Expr] = ask(Reason.PART_OF, ".".join((*whole.path, role)), _ALONG[0])
            total = sum(sizes[begin:end])
            for at in range(begin, end):
                start, stop = sum(sizes[begin:at]), sum(sizes[begin : at + 1])
                ways = [
                    ex.reshape(ex.part(whole.pieces[role].expr, 0, *cut), held[at][0].pieces[held[at][1]].shape)
                    for cut in ((start, stop), (total - stop, total - start))
                ]
                yield Proposal(held[at][0], whole, held[at][1], ways[0], asked.about(ways[1]))


def _rows(piece: Piece, width: int) -> int:
    """Return how many rows of WIDTH numbers PIECE has, sizes of 1 left out: 1 for a vector of WIDTH numbers. 0 if the
    last size is another one, and for tensors of three or more dimensions.
    """
    shape = squeezed(piece.shape)
    return prod(shape[:-1]) if shape[-1:] == (width,) and len(shape) <= _MATRIX else 0


def _runs(sizes: Sequence[int], totals: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield each way to divide SIZES, in their order, into runs of neighbours that add up to TOTALS, one run for each
    of TOTALS, in any order: as [(begin, end), …], in the order of TOTALS. For the sizes 1, 2, 3 and the totals 3, 3,
    the ways are [(0, 2), (2, 3)] and [(2, 3), (0, 2)]. Nothing is yielded if there is none.
    """
    if not totals:
        yield from [[]] if not sizes else []
        return
    sums = {sum(sizes[:end]): end for end in range(len(sizes), 0, -1)}
    for place, total in enumerate(totals):
        if (end := sums.get(total)) is not None:
            others = [*totals[:place], *totals[place + 1 :]]
            for found in _runs(sizes[end:], others):
                moved = [(a + end, b + end) for a, b in found]
                yield [*moved[:place], (0, end), *moved[place:]]


def segments(pairs: Sequence[Pair], targets: Sequence[Unit], sources: Sequence[Unit]) -> Iterator[Proposal]:
    """Yield a proposal of zeros, which add nothing, for each segment table of TARGETS: an `Embedding` whose name says
    "segment". Its `source` is the source's unit of the first paired word table. Nothing is yielded if one of SOURCES is
    a segment table by its name, or if no word table is paired.

    Args:
        pairs: the pairs so far, (target, source).
        targets: units without a source.
        sources: all units of the source.
    """
    group = table().group("embedding")
    words = next((s for t, s in pairs if "token" in (label(group, t.words), label(group, s.words))), None)
    if words is None or any(label(group, unit.words) == "segment" for unit in sources):
        return
    for unit in targets:
        if label(group, unit.words) == "segment" and unit.main.entry.module == "Embedding":
            yield Proposal(unit, words, unit.main.role, ex.zeros(*unit.main.shape), ask(Reason.NO_SEGMENTS))


def shared(pairs: Sequence[Pair], targets: Sequence[Unit], sources: Sequence[Unit]) -> Iterator[Proposal]:
    """Yield proposals that use one layer of the source for several blocks of the model: for `h.1.fc` and `h.2.fc` of
    TARGETS, copies of the source of the paired `h.0.fc`. Here, two units are alike if they have one colour, and equal
    paths but for components that are numbers.

    A unit of TARGETS with a number in its path gets them if a paired unit T of the model is alike, and one of these is
    true of the source S of T:

      - S is alike to none of the other SOURCES.
      - There are as many pairs whose sources are S or alike to it as there are such sources, and only one of these
        pairs has a target with the path of T, but for numbers: `t_embed.0` and `t_embed.2` fill `h.0.fc1` and
        `h.0.fc2`.

    Only tensors of equal sizes, of roles that all three units have, are proposed. The question is open, unless the
    source's code answers it: if that runs S once for the pair and once for each of TARGETS that is alike. For a unit
    without such a pair, words in the names may say of which layer it is a copy (`_shared_by_name`).

    Args:
        pairs: the pairs so far. The first of several like pairs counts.
        targets: units without a source.
        sources: all units of the source.
    """
    count = Counter((template(unit.path), unit.colour) for unit in sources)
    wanted = Counter((template(unit.path), unit.colour) for unit in targets)
    known: dict[object, Pair] = {}
    filling = Counter((template(s.path), s.colour) for _, s in pairs)
    alone = Counter((template(t.path), (template(s.path), s.colour)) for t, s in pairs)
    for t, s in pairs:
        row = template(s.path), s.colour
        if count[row] == 1 or (filling[row] == count[row] and alone[template(t.path), row] == 1):
            known.setdefault((template(t.path), t.colour), (t, s))
    yield from _shared_by_name(pairs, [u for u in targets if (template(u.path), u.colour) not in known], sources)
    for unit in targets:
        found = known.get((template(unit.path), unit.colour))
        if found is None or not any(component.isdecimal() for component in unit.path):
            continue
        t, s = found
        asked: Question[Expr] = ask(Reason.ONE_FOR_ALL, ".".join(template(unit.path)))
        runs = s.main.entry.facts.runs
        if runs == 1 + wanted[template(unit.path), unit.colour]:
            asked = ask_code(Reason.ONE_FOR_ALL, ".".join(template(unit.path)), shows=f"uses it {runs} times")
        for role, piece in unit.pieces.items():
            own = s.pieces.get(role)
            if own is not None and own.shape == piece.shape and role in t.pieces:
                yield Proposal(unit, s, role, own.expr, asked)


def _shared_by_name(pairs: Sequence[Pair], targets: Sequence[Unit], sources: Sequence[Unit]) -> Iterator[Proposal]:
    """Yield proposals that use a layer of the source for the layers of TARGETS that several blocks have:
    `t_embed.mlp.0` for `h.0.time_embed.fc1` and `h.1.time_embed.fc1`. All questions are open. Only tensors of equal
    sizes are proposed.

    TARGETS are units without a source. Those with one path, but for components that are numbers, one colour and equal
    roles are one layer; a layer of a single unit is left out. A layer may be a copy of those of SOURCES, units of the
    source, that are in none of PAIRS, have its colour and roles, and share a telling word with its name. If these
    sources are as many as the layers that may be copies of just them, the two are paired in their orders of
    registration; else nothing is proposed for these layers.
    """
    taken = {id(s) for _, s in pairs}
    free: dict[object, list[Unit]] = defaultdict(list)
    for s in sorted(sources, key=lambda u: u.order):
        if id(s) not in taken:
            free[s.colour, frozenset(s.pieces)].append(s)
    kinds: dict[object, dict[tuple[str, ...], list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for t in sorted(targets, key=lambda u: u.order):
        kinds[t.colour, frozenset(t.pieces)][template(t.path)].append(t)
    named: dict[tuple[int, ...], tuple[list[Unit], list[list[Unit]]]] = {}
    for colour, held in kinds.items():
        for units in (units for units in held.values() if len(units) > 1):
            words = telling_words(units[0].path)
            fitting = [s for s in free[colour] if shared_words(words, telling_words(s.path))]
            if fitting:
                named.setdefault(tuple(map(id, fitting)), (fitting, []))[1].append(units)
    for fitting, several in named.values():
        for units, s in zip(several, fitting, strict=True) if len(several) == len(fitting) else ():
            asked: Question[Expr] = ask(Reason.ONE_FOR_ALL, ".".join(template(units[0].path)))
            for t in units:
                for role, piece in s.pieces.items():
                    if piece.shape == t.pieces[role].shape:
                        yield Proposal(t, s, role, piece.expr, asked)
