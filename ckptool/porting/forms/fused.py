"""Split fused projections: queries, keys and values, or gate and up, stored one after the other or head by head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Question, Reason, ask, ask_code
from ..words import Fused, cut, label, table
from .pieces import Canon, Name, Piece, squeezed
from .projections import fused_kind, heads_of, layout_of, of_library, open_gate, part_label, parts_in_code


def fused_alike(one: Canon, other: Canon) -> set[Shape]:
    """Return the sizes of projections that are fused on both sides, which stay fused.

    If one side has more of a size than the other, and either side has separate parts of it (named as parts, with a half
    or a third of the rows), the size is left out: they are all split.
    """
    own, theirs = _fused_shapes(one), _fused_shapes(other)
    alike = set()
    for shape in own.keys() & theirs.keys():
        sizes = {shape[0] // 2, shape[0] // 3}
        apart = any(
            part_label(p.path) and p.role == "weight" and p.shape[1:] == shape[1:] and p.shape[0] in sizes
            for canon in (one, other)
            for p in canon.pieces.values()
            if p.shape
        )
        if own[shape] == theirs[shape] or not apart:
            alike.add(shape)
    return alike


def _fused_shapes(canon: Canon) -> Counter[Shape]:
    return Counter(p.shape for p in canon.pieces.values() if p.role == "weight" and fused_kind(p))


def split_first(source: Canon, target: Canon) -> None:
    """Split fused projections of the source, then of the target, then of the source again, because a split target can
    show how to split the source. See `split_fused`.
    """
    both = fused_alike(source, target)
    for one, other in ((source, target), (target, source), (source, target)):
        split_fused(one, other, both)


def split_again(source: Canon, target: Canon) -> None:
    """Split fused projections of the source, then of the target, that became visible when stacks of experts or
    dimensions for heads were taken apart. See `split_fused`.
    """
    both = fused_alike(source, target)
    for one, other in ((source, target), (target, source)):
        split_fused(one, other, both)


def split_fused(one: Canon, other: Canon, both: set[Shape]) -> None:
    """Split the fused projections of ONE, and their biases, into their parts. OTHER needs, for each part, a weight with
    its rows, or keys and values with a multiple of their rows.

    A projection stays whole if its shape is in BOTH, the shapes that are fused on both sides. It also stays if OTHER
    has weights of its shape, as many as ONE (or one, if OTHER has none of the parts by name), unless OTHER has each
    part by name as often, or keys and values with a multiple of their rows.
    A projection that would stay whole is split even so if the model's code takes it head by head, and the source's name
    says that its parts follow one another. On the source this is a question, unless it has another one, or torch
    defines the layout.
    """
    fused = [(p, kind) for p in one.pieces.values() if p.role == "weight" and (kind := fused_kind(p))]
    if not fused:
        return
    theirs = Counter(_flat(p.shape) for p in other.pieces.values() if p.role == "weight")
    own = Counter(_flat(p.shape) for p in one.pieces.values() if p.role == "weight")
    rows = _rows_of_parts(other)
    theirs_by_name = _Parts(other)
    for weight, kind in fused:
        shape = _flat(weight.shape)
        rest = shape[1:]
        sizes = _part_sizes(weight, kind, rows)
        apart = [rows[label][_of_rows(size, rest)] for label, size in zip(kind.parts, sizes or (), strict=False)]
        enough = bool(apart) and min(apart) >= own[shape]  # then what has this shape is something else
        whole = weight.shape in both or (not enough and theirs[shape] >= (own[shape] if any(apart) else 1))
        shared = sizes is not None and _of_shared_heads(kind, sizes, rest, rows)
        whole = whole and not (shared and weight.shape not in both)
        conflict = sizes is not None and whole and _conflicting_layout(one, other, weight, kind)
        if sizes is None or (whole and not conflict):
            continue
        alike = shared or all(
            theirs[_of_rows(size, rest)] or rows[label][_of_rows(size, rest)]
            for label, size in zip(kind.parts, sizes, strict=True)
        )
        if not alike and not whole:
            continue
        form = _form(one, theirs_by_name, weight, kind, sizes)
        if conflict and not one.is_target and not form.doubt and kind.by_heads is False and not kind.fixed:
            heads = _alternating(other, weight, len(kind.parts))
            form = replace(form, doubt=ask(Reason.BY_HEADS), rival=(form.parts, form.sizes, heads))
        _take_apart(one, weight, form)
        bias = one.pieces.get(weight.name.beside("bias"))
        if bias is not None and bias.shape == weight.shape[:1]:
            _take_apart(one, bias, form)


def _of_shared_heads(kind: Fused, sizes: Sequence[int], rest: Shape, rows: Mapping[str, Counter[Shape]]) -> bool:
    """Return whether the other side has keys and values with a multiple of the rows of those in a projection, and none
    with their rows: on this side several queries share a head of them. False for projections without keys and values.

    KIND has the parts, SIZES the rows of each, REST the other sizes, ROWS label of a part -> sizes on the other side.
    """
    own = dict(zip(kind.parts, sizes, strict=True))
    return own.keys() >= {"k", "v"} and all(
        any(shape[1:] == rest and shape[0] > own[part] and shape[0] % own[part] == 0 for shape in rows.get(part, ()))
        and not rows[part][_of_rows(own[part], rest)]
        for part in "kv"
    )


def split_by_initials(one: Canon, other: Canon) -> None:
    """Split layers of ONE, and their biases, whose name has a word that is spelled by the first letters of layers that
    OTHER has in one module: `qkvg_proj` for `q_proj`, `k_proj`, `v_proj` and `gate_proj`.

    The letters of the word differ, OTHER does not have the layer itself, the name is that of no fused projection, and
    the rows of the parts add up in one way only (`_spelled_form`).
    """
    words = {id(p): [w for w in cut(p.last) if _spells(w)] for p in one.pieces.values()}
    wholes = [p for p in one.pieces.values() if words.get(id(p)) and p.role == "weight" and len(p.shape) > 1]
    wholes = [p for p in wholes if fused_kind(p) is None and not other.has(p)]
    if not wholes:
        return
    modules = _initials(other)
    forms: dict[tuple[str, Shape], _Form | None] = {}
    for weight in wholes:
        asked = [(word, _flat(weight.shape)) for word in words[id(weight)]]
        for word, shape in asked:
            if (word, shape) not in forms:
                forms[word, shape] = _spelled_form(word, shape, modules)
        form = next((forms[one] for one in asked if forms[one] is not None), None)
        if form is not None:
            _take_apart(one, weight, form)
            bias = one.pieces.get(weight.name.beside("bias"))
            if bias is not None and bias.shape == weight.shape[:1]:
                _take_apart(one, bias, form)


#: The parts of one module by the first letters of what is their own in their names.
_Initials = dict[str, list[Piece]]


def _spells(word: str) -> bool:
    return len(word) > 1 and len(set(word)) == len(word)


def _initials(canon: Canon) -> list[_Initials]:
    """Return, for each module of CANON with matrices, first letter of a name -> the matrices whose name begins with it.
    Words that more than half of the matrices in the module share are skipped before.
    """
    siblings: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for p in canon.pieces.values():
        if p.path and p.role == "weight" and len(p.shape) > 1:
            siblings[p.path[:-1]].append(p)
    found: list[_Initials] = []
    for pieces in siblings.values():
        common = Counter(word for p in pieces for word in set(cut(p.last)))
        letters: _Initials = defaultdict(list)
        for p in pieces:
            own = [word for word in cut(p.last) if 2 * common[word] <= len(pieces)]
            if own:
                letters[own[0][0]].append(p)
        found.append(letters)
    return found


def _spelled_form(word: str, whole: Shape, modules: Sequence[_Initials]) -> _Form | None:
    """Return how to split a layer of sizes WHOLE into the parts whose first letters are the letters of WORD, in this
    order, if all modules with such parts agree on their names and rows; else None. MODULES has first letter ->
    matrices, for each module.

    Each letter is that of one matrix alone, with the inputs of the whole, and their rows add up to those of the whole.
    For two letters, the letters are words of the names (`zr` for `conv_z` and `conv_r`), and the parts have equal rows.
    """
    forms = set()
    for letters in modules:
        parts = [letters[letter][0] for letter in word if len(letters.get(letter, ())) == 1]
        sizes = tuple(p.shape[0] for p in parts)
        alike = all(_flat(p.shape)[1:] == whole[1:] for p in parts)
        if len(word) < 3 and not all(letter in cut(p.last) for letter, p in zip(word, parts, strict=False)):
            continue  # two first letters are a word too often: `zr` is said of `conv_z` and `conv_r` only
        if len(word) < 3 and len(set(sizes)) > 1:
            continue  # keys and values of other sizes may stand in each head
        if alike and len(parts) == len(word) and sum(sizes) == whole[0]:
            forms.add(_Form(tuple(p.last for p in parts), sizes))
    return forms.pop() if len(forms) == 1 else None


def _rows_of_parts(canon: Canon) -> dict[str, Counter[Shape]]:
    """Return label of a part ("q", "k", "gate" …) -> count of each size of the weights with this label, also inside of
    fused projections of two parts. Sizes of 1 after the second dimension are left out.
    """
    rows: dict[str, Counter[Shape]] = defaultdict(Counter)
    for p in canon.pieces.values():
        if p.role != "weight" or len(p.shape) < 2:
            continue
        label = part_label(p.path)
        if label:
            rows[label][_flat(p.shape)] += 1
        kind = fused_kind(p)
        if kind is not None and len(kind.parts) == 2 and p.shape[0] % 2 == 0:
            for part in kind.parts:
                rows[part][_of_rows(p.shape[0] // 2, _flat(p.shape)[1:])] += 1
    return rows


@dataclass(frozen=True, slots=True)
class _Form:
    """How to split a projection.

    Attributes:
        parts: the names of the parts, in their order.
        sizes: rows of each part.
        heads: number of heads that each hold rows of all parts, or 0 if the parts follow one another.
        doubt: the question about it; None if it is certain.
        rival: another form that is as likely, as (parts, sizes, heads); None if there is none.
    """

    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    heads: int = 0
    doubt: Question[Expr] | None = None
    rival: tuple[tuple[str, ...], tuple[int, ...], int] | None = None


#: How far the parts of a projection stand from each other: less than the members of a list that was in one tensor.
_STEP = 1e-7


def _form(one: Canon, other: _Parts, weight: Piece, kind: Fused, sizes: Sequence[int]) -> _Form:
    """Return how to split the projection WEIGHT of the side ONE into parts of SIZES: as the code of its side shows, or
    else as its name or its library says, or else in the likeliest way, with a question. KIND is what its name says,
    OTHER has the parts of the other side, whose code shows the number of heads.
    """
    parts, size = kind.parts, tuple(sizes)
    if (gate := weight.entry.facts.gate) is not None and "gate" in parts and (one.is_target or weight.expr.is_copy):
        return _Form(parts, size) if gate.half == 0 else _Form(parts[::-1], size[::-1])
    called = parts_in_code(weight.entry) if one.is_target or weight.expr.is_copy else ()
    if called != parts and sorted(called) == sorted(parts):
        parts, size, kind = called, tuple(size[parts.index(part)] for part in called), replace(kind, ordered=True)
    layout, seen = layout_of(weight.entry, len(parts), size)
    seen = seen if _divides(seen, size) else 0
    if one.is_target and (layout or kind.fixed or weight.entry.module == "MultiheadAttention"):
        return _Form(parts, size, seen)
    if kind.fixed or (one.is_target and kind.sure):
        return _Form(parts, size)
    if "q" not in parts and "k" not in parts:
        bias = one.pieces.get(weight.name.beside("bias"))
        if not weight.expr.is_copy and bias is not None and not one.is_target:  # of experts, in products with biases
            return _Form(parts, size, 0, ask(Reason.ROWS_TAKE_TURNS), (parts, size, size[0]))
        swapped = (parts[::-1], size[::-1], 0)
        return _Form(parts, size) if kind.sure else _Form(parts, size, 0, ask(Reason.WHICH_HALF), swapped)
    heads = other.groups(size[-1]) if not one.is_target else 0
    heads = heads if _divides(heads, size) and heads > 1 else 0
    library = None if layout else of_library(one, weight.path)
    if library is not None and library.by_heads and heads:
        return _Form(parts, size, heads)
    order = other.order(parts)
    if order != parts and not one.is_target and not kind.ordered:
        doubt: Question[Expr] = ask(Reason.PARTS_NAMED_OTHERWISE, ", ".join(parts), ", ".join(order))
        return _Form(parts, size, 0, doubt, (order, tuple(size[parts.index(p)] for p in order), 0))
    ranks = seen > 0 and heads > 0 and seen != heads  # no heads: the shares of several devices
    unseen = kind.sure and not layout and not seen and len(set(size)) == 1
    if len(parts) == 3 and not one.is_target and not kind.ordered and (ranks or unseen):
        turned = (parts[0], parts[2], parts[1])
        return _Form(parts, size, seen, ask(Reason.PARTS_MAY_DIFFER, ", ".join(parts)), (turned, size, seen))
    if layout == "block" or seen:  # which code shows
        how = f"cuts it into {seen} heads first" if seen else "cuts it into blocks"
        return _Form(parts, size, seen, ask_code(Reason.BY_HEADS, shows=how))
    one_group = heads == 0 and not one.is_target and len(set(size)) > 1 and other.groups(size[-1]) == 1
    one_group = one_group or (kind.linear and heads == 0 and not one.is_target and other.whole(size[-1]))
    if one_group or kind.sure:
        return _Form(parts, size)
    if kind.by_heads and heads and not (kind.ungated and len(set(size)) > 1 and _gate_and_up(one)):
        return _Form(parts, size, heads, ask(Reason.BY_HEADS), (parts, size, 0))
    return _Form(parts, size, 0, ask(Reason.BY_HEADS), (parts, size, heads) if heads else None)


def _gate_and_up(one: Canon) -> bool:
    """Return whether a feed-forward layer of ONE that expands has twice as many outputs as a layer that contracts has
    inputs, with as many inputs as that has outputs, so that it holds gate and up.
    """
    neck = table().group("neck")
    sizes: dict[str | None, set[Shape]] = defaultdict(set)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.shape) == 2:
            sizes[label(neck, piece.words)].add(piece.shape)
    return any((2 * inner, width) in sizes["up"] for width, inner in sizes["down"])


def _divides(heads: int, sizes: Sequence[int]) -> bool:
    return heads > 0 and all(size % heads == 0 for size in sizes)


class _Parts:
    """The parts of projections (q, k, v, gate, up) of one side, found by their names once and used for each
    projection.
    """

    def __init__(self, canon: Canon) -> None:
        self._labelled = [(label, p) for p in canon.pieces.values() if (label := part_label(p.path))]
        self._orders: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._groups: dict[int, int] = {}

    def order(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return PARTS in the order in which the modules of this side register the weights of all of them; PARTS as
        they are if no module has all, or if modules have different orders.
        """
        if parts not in self._orders:
            blocks: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
            for label, p in self._labelled:
                if p.role == "weight" and label in parts and len(p.shape) >= 2:
                    blocks[p.path[:-1]][label] = p.order
            held = {tuple(sorted(b, key=b.__getitem__)) for b in blocks.values() if len(b) == len(parts)}
            self._orders[parts] = held.pop() if len(held) == 1 else parts
        return self._orders[parts]

    def groups(self, rows: int) -> int:
        """Return into how many heads the code of this side splits keys with ROWS rows, as the layers for keys of so
        many rows show, or those for queries of as wide heads; the most frequent number. 0 if the code does not show it.
        """
        if rows not in self._groups:
            found: Counter[int] = Counter()
            for label, p in self._labelled:
                heads = heads_of(p.entry)
                if heads and label == "k" and p.shape[0] == rows:
                    found[heads] += 2
                elif heads and label == "q" and p.shape[0] and rows * heads % p.shape[0] == 0:
                    found[rows * heads // p.shape[0]] += 1
            self._groups[rows] = found.most_common(1)[0][0] if found else 0
        return self._groups[rows]

    def whole(self, rows: int) -> bool:
        """Return whether this side has keys with ROWS rows, and the forward pass uses all of them without splitting
        them into heads.
        """
        keys = [p for label, p in self._labelled if label == "k" and p.role == "weight" and p.shape[0] == rows]
        return bool(keys) and all(p.entry.used is not None and not heads_of(p.entry) for p in keys)


def _conflicting_layout(one: Canon, other: Canon, weight: Piece, kind: Fused) -> bool:
    """Return whether WEIGHT, a projection that is fused on both sides, is known to have another layout on each side:
    the model's code takes it head by head, and the source's name says that its parts follow one another.

    Of the weights of OTHER with its sizes, in order, the first counts that shows such a conflict (True), or that is not
    fused, has the path of WEIGHT, or is in a module with the same contents (False). False if there is none. KIND is
    what the name of WEIGHT says.
    """
    rivals = [p for p in other.pieces.values() if p.role == "weight" and p.shape == weight.shape]
    for rival in rivals:
        theirs = fused_kind(rival)
        if theirs is None or rival.path == weight.path or _same_module(one, other, weight, rival):
            return False
        target = weight if one.is_target else rival
        source_kind = theirs if one.is_target else kind
        if layout_of(target.entry, len(source_kind.parts))[0] == "heads" and source_kind.sure:
            return True
    return False


def _same_module(one: Canon, other: Canon, weight: Piece, rival: Piece) -> bool:
    """Return whether the projections WEIGHT of ONE and RIVAL of OTHER have the same last two components in their paths,
    and the modules around them hold tensors with the same paths and roles, in three or more layers, more than every
    attention has.
    """
    if weight.path[-2:] != rival.path[-2:] or min(len(weight.path), len(rival.path)) < 2:
        return False
    own, theirs = (
        {Name(p.path[len(start) :], p.role) for p in canon.pieces.values() if p.path[: len(start)] == start != p.path}
        for canon, start in ((one, weight.path[:-1]), (other, rival.path[:-1]))
    )
    return own == theirs and len({name.path for name in own}) > _PLAIN_ATTENTION


#: Layers that every attention with one projection for queries, keys and values has.
_PLAIN_ATTENTION = 2


def _alternating(target: Canon, weight: Piece, parts: int) -> int:
    """Return the number of heads by which the code of TARGET interleaves the PARTS parts of a projection with the sizes
    of WEIGHT; 0 if it does not, or has no such projection.
    """
    rivals = (p for p in target.pieces.values() if p.role == "weight" and p.shape == weight.shape and fused_kind(p))
    return next((n for p in rivals for kind, n in [layout_of(p.entry, parts)] if kind == "heads"), 0)


def other_arrangement(target: Piece, source: Piece) -> Reason | None:
    """Return the reason to ask whether TARGET and SOURCE, two paired projections, arrange their rows differently; None
    if names or code show it, if neither is fused by name, or if another rule asks.

    A layer with the same name on both sides is taken to have one layout, unless one of the two layers is a convolution.
    Queries, keys and values are asked about if both are fused, TARGET in blocks, and neither the name of SOURCE is sure
    nor the source's code shows that it is in blocks, too, with the same names in the same order;
    gate and up, if not both names are sure, and code does not show the half (where it does, another rule asks).
    """
    own, theirs = fused_kind(target), fused_kind(source)
    kind = theirs or own
    same = target.path[-1:] == source.path[-1:] and len(target.shape) == len(source.shape)
    if kind is None or same:
        return None
    if "q" in kind.parts:
        layout = layout_of(target.entry, len(kind.parts))[0]
        block = layout == "block" or (not layout and own is not None and own.sure)  # as its name says, if not followed
        alike = () != parts_in_code(source.entry) == parts_in_code(target.entry)
        shown = alike and layout_of(source.entry, len(kind.parts))[0] == "block"
        return Reason.HEADS_ARRANGED if own and theirs and block and not (theirs.sure or shown) else None
    if "gate" not in kind.parts or (own and theirs and own.sure and theirs.sure):
        return None
    if len(squeezed(target.entry.shape)) > 2:
        return Reason.ROWS_ARRANGED
    return (
        Reason.HALF_ARRANGED if open_gate(target.entry) is None else None
    )  # where code shows the half, it is asked there


def _part_sizes(weight: Piece, kind: Fused, rows: dict[str, Counter[tuple[int, ...]]]) -> list[int] | None:
    total, rest = weight.shape[0], _flat(weight.shape)[1:]
    n = len(kind.parts)
    if n == 3 and rows:
        found = {label: [s[0] for s in rows[label] if s[1:] == rest] for label in kind.parts}
        for q in found["q"]:
            for k in found["k"]:
                if q + 2 * k == total and k in found["v"]:
                    return [q, k, k]
        for q in found["q"]:  # keys and values of fewer heads than the other side has
            k, odd = divmod(total - q, 2)
            if not odd and 0 < k < q and q % k == 0 and q in found["k"] and q in found["v"]:
                return [q, k, k]
    return [total // n] * n if total % n == 0 else None


def _of_rows(size: int, rest: Shape) -> Shape:
    return (size, *rest)


def _flat(shape: Shape) -> Shape:
    """Return SHAPE without sizes of 1 after the second dimension: (out, in) for (out, in, 1, 1)."""
    return (*shape[:2], *squeezed(shape[2:]))


def _block(e: Expr, *, start: int, stop: int) -> Expr:
    return ex.part(e, 0, start, stop)


def _parts_of(e: Expr, sizes: Sequence[int], heads: int) -> list[Expr]:
    """Return the parts of the projection E, with SIZES rows: one after the other, or, if HEADS is over 1, each made of
    its share of rows in every one of HEADS heads.
    """
    if heads > 1:
        return ex.cut_by_heads(e, heads, [size // heads for size in sizes])
    edges = [0, *accumulate(sizes)]
    return [ex.part(e, 0, start, stop) for start, stop in pairwise(edges)]


def _take_apart(canon: Canon, piece: Piece, form: _Form) -> None:
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    for index, (name, size) in enumerate(zip(form.parts, form.sizes, strict=True)):
        made = replace(
            piece,
            path=(*piece.path, name),
            shape=(size, *piece.shape[1:]),
            order=piece.order + index * _STEP,
            used=None if piece.used is None else piece.used + index * _STEP,
            words=(*piece.words, *cut(name)),
        )
        if form.doubt is not None:
            other = None
            if form.rival is not None and not canon.is_target:
                parts, sizes, heads = form.rival
                other = _parts_of(piece.expr, sizes, heads)[parts.index(name)]
            made = made.asked(form.doubt.about(*(() if other is None else (other,))))
        new.append((made, partial(_nth, form=form, index=index)))
    if form.heads > 1:
        canon.become(piece, new, lambda *e: ex.by_heads(form.heads, *e))
    else:
        canon.become(piece, new, lambda *e: ex.cat(0, *e))


def _nth(e: Expr, *, form: _Form, index: int) -> Expr:
    return _parts_of(e, form.sizes, form.heads)[index]


def _with_zeros_between(q: Expr, v: Expr, *, n: int) -> Expr:
    return ex.cat(0, q, ex.zeros(n), v)


def missing_key_bias(canon: Canon) -> None:
    """Replace biases `q_bias` [n] and `v_bias` in the module of a fused projection with 3 * n rows and no bias by one
    bias for the projection, with zeros for the keys.
    """
    for piece in list(canon.pieces.values()):
        if piece.role != "bias" or piece.last != "q_bias" or len(piece.shape) != 1:
            continue
        base = piece.path[:-1]
        other = canon.pieces.get(Name((*base, "v_bias"), "bias"))
        fused = next(
            (
                p
                for p in canon.pieces.values()
                if p.path[:-1] == base and p.role == "weight" and cut(p.last) in table().fused
            ),
            None,
        )
        if other is None or fused is None:
            continue
        n = piece.shape[0]
        if fused.name.beside("bias") in canon.pieces or fused.shape[0] != 3 * n:
            continue
        new = replace(piece, path=fused.path, role="bias", shape=(3 * n,))
        canon.merge(
            [piece, other],
            new,
            partial(_with_zeros_between, n=n),
            [partial(_block, start=0, stop=n), partial(_block, start=2 * n, stop=3 * n)],
        )
