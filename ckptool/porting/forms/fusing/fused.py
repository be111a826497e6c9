"""Split fused projections: queries, keys and values, or gate and up, stored one after the other or head by head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from ... import expression as ex
from ...expression import Shape
from ...questions import Reason, ask
from ...words import Fused
from ..pieces import Canon, Name, Piece, flat_kernel, squeezed, unchanged
from .fused_order import Parts, as_code_has_it, divides, form_of, has_heads, order_of_rows
from .projections import fused_kind, layout_of, open_gate, part_label, parts_in_code
from .taking_apart import Form, merge_parts, take_apart_with_bias


def fused_alike(one: Canon, other: Canon) -> set[Shape]:
    """Return the sizes of the weights that both sides have as fused projections by their names (`qkv`), so that these
    can stay fused.

    A size is left out if the sides have different numbers of such weights, and one of them also has separate parts of
    this size (weights named as parts, with a half or a third of the rows and equal other sizes).
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
    """Return how many weights of CANON that are fused by their names have each shape."""
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
    """Split fused projections of ONE (weights whose names say that they hold several, `qkv`), and their biases, into
    their parts (`attn.qkv.q` …), in the layout that `form_of` finds. OTHER, the other side, decides:

      - a projection that OTHER has as a whole, too (its shape is in BOTH, or `_Fused.stays`), stays, unless the layouts
        of both sides are known to differ (`_conflicting_layout`); then it is split, on the source with a question if
        nothing shows its layout for certain (`_or_by_heads`);
      - any other is split if OTHER has its parts (`_Fused.splits`), else it stays.

    Projections whose rows cannot be divided into the parts (`_part_sizes`) stay. One layer of the source that makes
    queries as well as keys (`to_qk`) is each of the two, if OTHER has both with as many rows, and not with half.
    """
    fused = [(p, kind) for p in one.pieces.values() if p.role == "weight" and (kind := fused_kind(p))]
    if not fused:
        return
    own, theirs, parts = _Weights(one), _Weights(other), Parts(other)
    for weight, kind in fused:
        half = (weight.shape[0] // 2, *weight.shape[1:])
        shared = all(theirs.by_part[p][weight.shape] and not theirs.by_part[p][half] for p in kind.parts)
        if not one.is_target and kind.parts == ("q", "k") and shared:
            _share(one, weight, kind.parts)
            continue
        sizes = _part_sizes(weight, kind, theirs.by_part)
        if sizes is None:
            continue
        found = _Fused(flat_kernel(weight.shape), dict(zip(kind.parts, sizes, strict=True)), own, theirs)
        whole = weight.shape in both or found.stays()
        if whole and _conflicting_layout(one, other, weight, kind):
            form = form_of(one, parts, weight, kind, sizes)
            take_apart_with_bias(one, weight, _or_by_heads(form, one, other, weight, kind))
        elif not whole and found.splits():
            take_apart_with_bias(one, weight, form_of(one, parts, weight, kind, sizes))


def _share(source: Canon, weight: Piece, parts: Sequence[str]) -> None:
    """Replace WEIGHT of SOURCE, and its bias if it has one, by a copy for each of PARTS: `attn.to_qk.q` and
    `attn.to_qk.k`, with the part among their words. Each copy has all rows.
    """
    for piece in (weight, source.pieces.get(weight.name.beside("bias"))):
        if piece is not None:
            copies = [replace(piece, path=(*piece.path, part), words=(*piece.words, part)) for part in parts]
            source.become(piece, [(copy, unchanged) for copy in copies], lambda first, *_: first)


class _Weights:
    """The weights of a side, without sizes of 1 after the second dimension.

    Attributes:
        count: how many weights have each shape.
        by_part: label of a part ("q", "gate" …) -> count of each shape of the weights with this label.
    """

    def __init__(self, canon: Canon) -> None:
        self.count = Counter(flat_kernel(p.shape) for p in canon.pieces.values() if p.role == "weight")
        self.by_part = _rows_of_parts(canon)


@dataclass(frozen=True, slots=True)
class _Fused:
    """A fused projection, beside what both sides have.

    Attributes:
        shape: its sizes.
        rows: label of a part -> its rows.
        own, theirs: the weights of its side and of the other.
    """

    shape: Shape
    rows: Mapping[str, int]
    own: _Weights
    theirs: _Weights

    def stays(self) -> bool:
        """Return whether this projection stays whole, because the other side most likely has it as a whole. All of
        these have to be true:

          - If the other side has any part by name (`_named`), it has at least as many weights of this shape as this
            side; if it has no part by name, it has at least one weight of this shape.
          - The other side has at least one of the parts by name less often (or not at all) than this side has weights
            of this shape.
          - The other side has no keys and values for shared heads (`_shares_heads`).
        """
        apart = [self._named(part) for part in self.rows]
        enough = min(apart) >= self.own.count[self.shape]  # then what has this shape is something else
        needed = self.own.count[self.shape] if any(apart) else 1
        return not enough and self.theirs.count[self.shape] >= needed and not self._shares_heads()

    def splits(self) -> bool:
        """Return whether the other side has each part of this projection: a weight with the sizes of the part, under
        any name, or the part by name (`_named`). Keys and values for shared heads (`_shares_heads`) are enough, too.
        """
        return self._shares_heads() or all(
            self.theirs.count[self._sizes(part)] or self._named(part) for part in self.rows
        )

    def _sizes(self, part: str) -> Shape:
        return (self.rows[part], *self.shape[1:])

    def _named(self, part: str) -> int:
        """Return how often the other side has PART by name, with its rows (see `_rows_of_parts`: half of a fused
        projection of two parts counts as well).
        """
        return self.theirs.by_part[part][self._sizes(part)]

    def _shares_heads(self) -> bool:
        """Return whether this projection has keys and values, and the other side has both with more rows, a multiple of
        those here, and neither with as many rows (`_repeated`): on this side several queries share a head of keys and
        values.
        """
        return self.rows.keys() >= {"k", "v"} and all(self._repeated(part) for part in "kv")

    def _repeated(self, part: str) -> bool:
        """Return whether the other side has PART by name with two or more times its rows (a multiple) and equal other
        sizes, and not with just its rows.
        """
        rows = self.rows[part]
        alike = (shape[0] for shape in self.theirs.by_part[part] if shape[1:] == self.shape[1:])
        return not self._named(part) and any(n > rows > 0 and n % rows == 0 for n in alike)


def _or_by_heads(form: Form, one: Canon, other: Canon, weight: Piece, kind: Fused) -> Form:
    """Return FORM, how to split the projection WEIGHT of ONE, with the question whether its parts follow one another or
    take turns. The other form (`rival`) has the same parts in as many heads as the code of OTHER shows. If it shows
    none that divide the parts, there is no other form for queries, keys and values; a gate and its value then take
    turns row by row.

    FORM is returned as it is if ONE is the target, if FORM has a question already, if KIND, what the name of WEIGHT
    says, is usually stored by heads, if torch defines its layout, or if its code shows it.
    """
    shown = as_code_has_it(one, weight) and layout_of(weight.entry, len(kind.parts))[0] != ""
    if one.is_target or form.doubt or kind.by_heads or kind.fixed or shown:
        return form
    heads = _alternating(other, weight, len(kind.parts))
    if not divides(heads, form.sizes):
        heads = 0 if has_heads(kind) else form.sizes[0]
    rival = (form.parts, form.sizes, heads) if heads else None
    return replace(form, doubt=ask(order_of_rows(kind)), rival=rival)


def _rows_of_parts(canon: Canon) -> dict[str, Counter[Shape]]:
    """Return label of a part ("q", "k", "v", "gate", "up") -> count of each shape of the weights of CANON with this
    label by name. A fused projection of two parts with an even number of rows counts for both of its labels, with half
    the rows. Vectors are left out, and so are sizes of 1 after the second dimension.
    """
    rows: dict[str, Counter[Shape]] = defaultdict(Counter)
    for p in canon.pieces.values():
        if p.role != "weight" or len(p.shape) < 2:
            continue
        label = part_label(p.path)
        if label:
            rows[label][flat_kernel(p.shape)] += 1
        kind, half = fused_kind(p), (p.shape[0] // 2, *flat_kernel(p.shape)[1:])
        if kind is not None and len(kind.parts) == 2 and p.shape[0] % 2 == 0:
            for part in kind.parts:
                rows[part][half] += 1
    return rows


def _conflicting_layout(one: Canon, other: Canon, weight: Piece, kind: Fused) -> bool:
    """Return whether WEIGHT of ONE, a fused projection that OTHER has as a whole, too, is known to have its rows in
    another order there. KIND is what the name of WEIGHT says.

    The weights of OTHER with the sizes of WEIGHT are looked at in order, until one decides; False if none does:

      - False for one that is not fused by its name.
      - True if both codes show the layout, and differ in it or in the order of the parts. If they agree, the next
        weight is looked at.
      - False for one that has the path of WEIGHT, or is in a module with the same contents (`_same_module`).
      - True if the model's code has a share of all parts in each head, and the name on the source's side surely means
        one part after the other; or if the source's code has such shares, and torch defines the model's tensor.
    """
    rivals = [p for p in other.pieces.values() if p.role == "weight" and p.shape == weight.shape]
    for rival in rivals:
        theirs = fused_kind(rival)
        if theirs is None:
            return False
        (target, own), (source, said) = ((weight, kind), (rival, theirs))[:: 1 if one.is_target else -1]
        in_model, in_source = (layout_of(p.entry, len(said.parts)) for p in (target, source))
        named = {parts_in_code(p.entry) for p in (target, source)} - {()}
        if in_model[0] and in_source[0]:
            if in_model != in_source or len(named) > 1:
                return True
        elif rival.path == weight.path or _same_module(one, other, weight, rival):
            return False
        elif (in_model[0] == "heads" and said.sure) or (in_source[0] == "heads" and own.fixed):
            return True
    return False


def _same_module(one: Canon, other: Canon, weight: Piece, rival: Piece) -> bool:
    """Return whether the projections WEIGHT of ONE and RIVAL of OTHER are in modules of the same code: their paths have
    the same last two components, and the modules directly around them hold tensors with the same paths and roles,
    whatever their sizes, in three or more layers (each attention has two). False for a path of one component.
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
    """Return the reason to ask whether TARGET and SOURCE, two paired projections that are both left whole, arrange
    their rows differently; None if there is nothing to ask. The name of SOURCE says what they hold, or, if it is not
    that of a fused projection, the name of TARGET. With queries, it is asked whether SOURCE stores them head by head
    (`_other_heads`), with a gate, which half is the gate (`_other_half`).

    None if neither name is that of a fused projection, and for keys and values alone. Also None if both layers have the
    same last name and number of dimensions: they are taken to have one layout.
    """
    own, theirs = fused_kind(target), fused_kind(source)
    kind = theirs or own
    same = target.path[-1:] == source.path[-1:] and len(target.shape) == len(source.shape)
    if kind is None or same:
        return None
    if "q" in kind.parts:
        return _other_heads(target, source, own, theirs)
    return _other_half(target, own, theirs) if "gate" in kind.parts else None


def _other_heads(target: Piece, source: Piece, own: Fused | None, theirs: Fused | None) -> Reason | None:
    """Return the reason to ask whether SOURCE stores queries, keys and values head by head, while TARGET has one after
    the other (in blocks): `HEADS_ARRANGED`, or None if there is nothing to ask. OWN and THEIRS are what the names of
    TARGET and SOURCE say; None for a name that is not that of a fused projection.

    It is asked if both names are those of fused projections, and TARGET has blocks, by its code or, if that shows no
    layout, by a sure name. It is not asked if the name of SOURCE surely means blocks (also an open one, `qkv_proj`, if
    keys have fewer rows than queries), if both codes cut them into blocks with the same names in the same order
    (`_blocks_in_both`), or if the source's code cuts SOURCE into blocks, and TARGET is of torch's own attention.
    """
    if own is None or theirs is None or _blocks_in_both(target, source, len(own.parts)):
        return None
    equal = source.shape[0] == len(theirs.parts) * prod(source.shape[1:])
    of_torch = own.fixed and layout_of(source.entry, len(own.parts))[0] == "block"
    if theirs.ordered or (theirs.sure and not equal) or of_torch:
        return None
    layout = layout_of(target.entry, len(own.parts))[0]
    return Reason.HEADS_ARRANGED if layout == "block" or (not layout and own.sure) else None


def _blocks_in_both(target: Piece, source: Piece, parts: int) -> bool:
    """Return whether both codes give the parts that they cut TARGET and SOURCE into the same names ("q", "k", "v") in
    the same order, and the source's code cuts SOURCE in blocks. PARTS is how many parts there are. False if a code
    names none.
    """
    named = parts_in_code(source.entry)
    same = named != () and named == parts_in_code(target.entry)
    return same and layout_of(source.entry, parts)[0] == "block"


def _other_half(target: Piece, own: Fused | None, theirs: Fused | None) -> Reason | None:
    """Return the reason to ask which half of TARGET is the gate; None if there is nothing to ask. OWN and THEIRS are
    what the names of both sides say. The first that applies:

      - None if both names surely say which half it is.
      - None for a linear layer whose output the model's code neither gates nor divides into parts: `W12` is then one of
        a row of layers.
      - `ROWS_ARRANGED` for a tensor whose key has three or more dimensions above 1.
      - None if the model's code shows an open gate (`open_gate`), because another rule asks about it.
      - Else `HALF_ARRANGED`.
    """
    if own and theirs and own.sure and theirs.sure:
        return None
    facts = target.entry.facts
    if target.entry.how == "linear" and facts.gate is None and not facts.parts and not facts.layout.kind:
        return None
    if len(squeezed(target.entry.shape)) > 2:
        return Reason.ROWS_ARRANGED
    return Reason.HALF_ARRANGED if open_gate(target.entry) is None else None


def _part_sizes(weight: Piece, kind: Fused, rows: Mapping[str, Counter[Shape]]) -> list[int] | None:
    """Return the rows of each part of the projection WEIGHT, in the order of KIND.parts. For three parts they are those
    with which the other side has queries, keys and values, if these add up (`_rows_of_three`). Else all parts have
    equally many rows; None if the number of parts does not divide the rows of WEIGHT. ROWS has label of a part -> count
    of each shape of the other side's weights with this label.
    """
    total, n = weight.shape[0], len(kind.parts)
    rest = flat_kernel(weight.shape)[1:]
    found = [[shape[0] for shape in rows[part] if shape[1:] == rest] if part in rows else [] for part in kind.parts]
    return (_rows_of_three(total, *found) if n == 3 else None) or ([total // n] * n if total % n == 0 else None)


def _rows_of_three(total: int, queries: list[int], keys: list[int], values: list[int]) -> list[int] | None:
    """Return [rows of queries, rows of keys, rows of values] that add up to TOTAL, as many for keys as for values; None
    if there are no such rows. QUERIES, KEYS and VALUES are the rows that weights of the other side have.

    First, each of the three is taken from its list. If none of these add up, the rows of queries are a number that all
    three lists have, and those of keys half of what is left of TOTAL, if that divides the rows of queries and is less
    (this side has fewer heads of keys): [8, 2, 2] for 12, if each list is [8]. The first that fit count, in the order
    of QUERIES, then of KEYS.
    """
    for first, rest in product(queries, keys):
        if first + 2 * rest == total and rest in values:
            return [first, rest, rest]
    for first in queries:
        rest, odd = divmod(total - first, 2)
        if not odd and 0 < rest < first and first % rest == 0 and first in keys and first in values:
            return [first, rest, rest]
    return None


def missing_key_bias(canon: Canon) -> None:
    """Replace the biases `q_bias` [n] and `v_bias` [n] that are in one module with a fused projection (`attn.q_bias`,
    `attn.qkv.weight`) of 3 * n rows without a bias by one bias for it: queries, keys, values. The part for the keys is
    `k_bias` [n] if the module has it, which is replaced, too; else zeros, without a question. If the module has a
    projection for each part instead (`attn.q_proj.weight`), of n rows and without a bias, each of them gets its part.
    Other biases stay, and so do these if `q_bias` or `v_bias` is missing, or if one of them has another size.

    The parts of the one bias follow one another; but if code cuts the projection head by head, and each head into these
    parts, they alternate by head as the rows of the projection do: code adds `q_bias` to the queries of all heads.
    """
    for piece in [p for p in canon.pieces.values() if p.role == "bias" and p.last == "q_bias"]:
        base, n = piece.path[:-1], prod(piece.shape)
        parts = [canon.pieces.get(Name((*base, name), "bias")) for name in ("q_bias", "k_bias", "v_bias")]
        there = {at: part for at, part in enumerate(parts) if part is not None}
        if parts[2] is None or {part.shape for part in there.values()} != {(n,)}:
            continue
        beside = [p for p in canon.pieces.values() if p.role == "weight" and p.path and p.path[:-1] == base]
        free = [p for p in beside if p.name.beside("bias") not in canon.pieces]
        fused = next((p for p in free if p.shape[:1] == (3 * n,) and fused_kind(p)), None)
        named = {part_label(p.path): p for p in reversed(free) if p.shape[:1] == (n,)}
        apart = [named[part] for part in "qkv" if part in named]
        if fused is not None:
            form = Form(tuple("qkv"), (n,) * 3, layout_of(fused.entry, 3, (n,) * 3)[1])
            merge_parts(canon, there, replace(piece, path=fused.path, role="bias", shape=(3 * n,)), form)
        elif len(apart) == len(parts):
            if 1 not in there:
                of_keys = parts[2].moved_to(apart[1]), partial(_zeros, n=n)
                canon.become(parts[2], [(parts[2], unchanged), of_keys], lambda values, _: values)
            for at, part in there.items():
                canon.change(canon.pieces[part.name], part.moved_to(apart[at]))


def _zeros(_: ex.Expr, n: int) -> ex.Expr:
    """Return N zeros, whatever the expression is that they take the place of."""
    return ex.zeros(n)
