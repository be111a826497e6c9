"""Find out in which order a fused projection holds the rows of its parts: one after the other, or head by head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....model_code.signature import Entry
from ...expression import Expr, Shape
from ...questions import Question, Reason, ask, ask_code
from ...words import Fused, label, table
from ..pieces import Canon, Piece
from .projections import heads_of, layout_of, of_library, part_label, parts_in_code
from .taking_apart import Form


class Parts:
    """The parts of projections (q, k, v, gate, up) of one side, found by their names once and used for each
    projection.
    """

    def __init__(self, canon: Canon) -> None:
        self._labelled = [(label, p) for p in canon.pieces.values() if (label := part_label(p.path))]
        self._orders: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._heads: dict[int, int] = {}

    def order(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return PARTS, labels such as ("q", "k", "v"), in the order in which the modules of this side register the
        matrices for them. Only modules count that have a matrix for each of PARTS. Return PARTS as they are if there is
        no such module, or if two have different orders. The result is kept for the next call.
        """
        if parts not in self._orders:
            blocks: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
            for label, p in self._labelled:
                if p.role == "weight" and label in parts and len(p.shape) >= 2:
                    blocks[p.path[:-1]][label] = p.order
            held = {tuple(sorted(b, key=b.__getitem__)) for b in blocks.values() if len(b) == len(parts)}
            self._orders[parts] = held.pop() if len(held) == 1 else parts
        return self._orders[parts]

    def heads(self, rows: int) -> int:
        """Return into how many heads the code of this side splits keys with ROWS rows; 0 if it does not show it. The
        layers for keys, and those for queries, each show a number (`_heads_of_keys`): the most frequent one counts,
        where a layer for keys counts twice and one for queries once; the first of several that are equally frequent.
        """
        if rows not in self._heads:
            found: Counter[int] = Counter()
            for label, p in self._labelled:
                if heads := _heads_of_keys(label, p, rows):
                    found[heads] += 2 if label == "k" else 1
            self._heads[rows] = found.most_common(1)[0][0] if found else 0
        return self._heads[rows]

    def whole(self, rows: int) -> bool:
        """Return whether the forward pass of this side uses every weight for keys with ROWS rows without splitting its
        output into heads. False if there is no such weight, or if the forward pass is not known to use one of them.
        """
        keys = [p for label, p in self._labelled if label == "k" and p.role == "weight" and p.shape[:1] == (rows,)]
        return bool(keys) and all(p.entry.used is not None and not heads_of(p.entry) for p in keys)


def _heads_of_keys(label: str, piece: Piece, rows: int) -> int:
    """Return into how many heads keys with ROWS rows are split, as the code of PIECE shows; 0 if it does not show it.
    LABEL says what PIECE holds. If these are keys ("k") with ROWS rows, it is the number of their own heads. If they
    are queries ("q"), it is ROWS divided by the width of a head of the queries, if that divides ROWS. 0 for others.
    """
    heads = heads_of(piece.entry)
    if heads and label == "k" and piece.shape[0] == rows:
        return heads
    fits = heads and label == "q" and piece.shape[0] and rows * heads % piece.shape[0] == 0
    return rows * heads // piece.shape[0] if fits else 0


@dataclass(frozen=True, slots=True)
class _Projection:
    """A fused projection that is to be split.

    Attributes:
        one: its side.
        other: the parts on the other side.
        weight: its weight.
        kind: what its name says.
        parts: the names of the parts, in the order in which its code, or else its name, has them.
        sizes: the rows of each.
        ordered: whether this order is certain: all code with this name keeps it, or its code names the parts.
        layout: "block", "heads" or "", as `layout_of` says.
        seen: into how many heads its code splits the rows of each part; 0 if it does not show it.
        lost: whether its code was followed as far as this layer, and what it does with the output does not show the
            layout.
    """

    one: Canon
    other: Parts
    weight: Piece
    kind: Fused
    parts: tuple[str, ...]
    sizes: tuple[int, ...]
    ordered: bool
    layout: str
    seen: int
    lost: bool

    def form(self, heads: int = 0) -> Form:
        """Return the form with the parts as they are here, in HEADS heads, without a question."""
        return Form(self.parts, self.sizes, heads)

    def in_order(self, parts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return PARTS, the same parts in another order, and the rows of each."""
        return parts, tuple(self.sizes[self.parts.index(part)] for part in parts)

    def heads(self) -> int:
        """Return, for a source, into how many heads the code of the model splits keys. 0 if the code does not show it
        or has only one head, if this number does not divide the rows of each part, and for a target.
        """
        found = 0 if self.one.is_target else self.other.heads(self.sizes[-1])
        return found if found > 1 and divides(found, self.sizes) else 0


def form_of(one: Canon, other: Parts, weight: Piece, kind: Fused, sizes: Sequence[int]) -> Form:
    """Return how to split the fused projection WEIGHT of the side ONE into its parts: their order, whether they follow
    one another or are stored head by head, and a question if that is not certain. The first of the rules `_RULES` that
    applies decides; one always does. Nothing is split here.

    KIND is what the name of WEIGHT says, SIZES the rows of the parts in the order of KIND.parts, and OTHER has the
    parts of the other side.
    """
    found = _projection(one, other, weight, kind, tuple(sizes))
    return next(form for rule in _RULES if (form := rule(found)) is not None)


def _projection(one: Canon, other: Parts, weight: Piece, kind: Fused, sizes: tuple[int, ...]) -> _Projection:
    """Return the projection WEIGHT of ONE, with its parts in the order in which its code names them, if it names the
    same parts and WEIGHT is what the code uses (`as_code_has_it`); else as its name KIND has them. SIZES are the rows
    of the parts in the order of KIND. Heads that the code shows but that do not divide all SIZES do not count.
    """
    called = parts_in_code(weight.entry) if as_code_has_it(one, weight) else ()
    named = sorted(called) == sorted(kind.parts)
    parts = called if named else kind.parts
    sizes = tuple(sizes[kind.parts.index(part)] for part in parts)
    layout, seen = layout_of(weight.entry, len(parts), sizes)
    ordered = kind.ordered or named
    seen = seen if divides(seen, sizes) else 0
    lost = not layout and as_code_has_it(one, weight) and _is_followed(weight.entry)
    return _Projection(one, other, weight, kind, parts, sizes, ordered, layout, seen, lost)


def _is_followed(entry: Entry) -> bool:
    """Return whether a forward pass uses ENTRY as the weight of a layer whose output is followed."""
    return entry.used is not None and (entry.how in _FOLLOWED or entry.how.startswith("conv"))


#: Functions of layers whose outputs are followed.
_FOLLOWED = frozenset({"linear", "addmm", "matmul", "mm", "__matmul__"})


def as_code_has_it(one: Canon, weight: Piece) -> bool:
    """Return whether WEIGHT is the tensor that the code of its side ONE uses, so that what the forward pass shows is
    about it: any tensor of the target, or one of the source that no step has changed.
    """
    return one.is_target or weight.expr.is_copy


def divides(heads: int, sizes: Sequence[int]) -> bool:
    """Return whether HEADS is above 0 and divides each of SIZES."""
    return heads > 0 and all(size % heads == 0 for size in sizes)


def _half_in_code(p: _Projection) -> Form | None:
    """Return the form of a gate and its value in two halves, with the gate in the half that its own code uses as the
    gate, without a question. None if the code of P shows no gate, if P holds none by its name, or if P is a tensor of
    the source that a step has changed.
    """
    gate = p.weight.entry.facts.gate
    if gate is None or "gate" not in p.parts or not as_code_has_it(p.one, p.weight):
        return None
    parts, sizes = p.in_order(p.kind.parts)
    return Form(parts, sizes) if gate.half == 0 else Form(parts[::-1], sizes[::-1])


def _as_model_splits(p: _Projection) -> Form | None:
    """Return the form of a projection of the target whose layout its code shows or torch defines, in as many heads as
    the code shows (0: the parts follow one another), without a question. None for a source, and if neither shows the
    layout.
    """
    known = p.layout or p.kind.fixed or p.weight.entry.module == "MultiheadAttention"
    return p.form(p.seen) if p.one.is_target and known else None


def _as_named(p: _Projection) -> Form | None:
    """Return the form with one part after the other, without a question, if the name surely means it: it is the name of
    a parameter whose layout torch defines (P.kind.fixed), or P is of the target, its name is sure (P.kind.sure), and
    its code does nothing with it that leaves the layout open (P.lost). None for others.
    """
    return p.form() if p.kind.fixed or (p.one.is_target and p.kind.sure and not p.lost) else None


def _of_experts(p: _Projection) -> Form | None:
    """Return the form of a gate and its value, one after the other, with a question whether their rows alternate (gate,
    value, gate, value …), which is the other form. It is asked about a weight of the source that a step has changed,
    and that has a bias: experts that were stored in one stack often alternate. None for other projections, also for
    queries, keys and values.
    """
    bias = p.one.pieces.get(p.weight.name.beside("bias"))
    if has_heads(p.kind) or p.weight.expr.is_copy or bias is None or p.one.is_target:
        return None
    return Form(p.parts, p.sizes, 0, ask(Reason.ROWS_TAKE_TURNS), (p.parts, p.sizes, p.sizes[0]))


def has_heads(kind: Fused) -> bool:
    """Return whether a projection of this KIND holds queries or keys, and not a gate and its value."""
    return "q" in kind.parts or "k" in kind.parts


def _halves(p: _Projection) -> Form | None:
    """Return the form of a gate and its value; None for queries, keys and values. The first that applies:

    - For a target whose code does something with the output that does not show the halves (P.lost): one after the
      other, with the question whether their rows alternate, which is the other form.
    - If the name is sure (P.kind.sure): as its code shows (`_as_source_splits`), or else one after the other, without
      an open question.
    - Else: one after the other, or in as many shares as its code shows (P.seen), with the question which is first;
      the other form has the swapped order.
    """
    if has_heads(p.kind):
        return None
    if p.lost and p.one.is_target:
        return Form(p.parts, p.sizes, 0, ask(Reason.ROWS_TAKE_TURNS), (p.parts, p.sizes, p.sizes[0]))
    swapped = (p.parts[::-1], p.sizes[::-1], p.seen)
    surely = _as_source_splits(p) or p.form()
    return surely if p.kind.sure else Form(p.parts, p.sizes, p.seen, ask(Reason.WHICH_HALF), swapped)


def _as_library_splits(p: _Projection) -> Form | None:
    """Return the form that the library of the file is known to store such a projection in, without a question: in as
    many heads as the model's keys have, or with one part after the other. None if code shows the layout, if no such
    library is known, or if it stores heads and their number is not known.
    """
    library = None if p.layout else of_library(p.one, p.weight.path)
    if library is None or (library.by_heads and not p.heads()):
        return None
    return p.form(p.heads() if library.by_heads else 0)


def _as_model_registers(p: _Projection) -> Form | None:
    """Return the form with one part after the other, in the order of P.parts, with a question whether they are in the
    order in which the model registers the separate parts, which is the other form. None if the two orders are equal or
    the model's is not known, if the order of P is certain (P.ordered), and for a projection of the target.
    """
    order = p.other.order(p.parts)
    if order == p.parts or p.one.is_target or p.ordered:
        return None
    doubt: Question[Expr] = ask(Reason.PARTS_NAMED_OTHERWISE, ", ".join(p.parts), ", ".join(order))
    return Form(p.parts, p.sizes, 0, doubt, (*p.in_order(order), 0))


def _keys_or_values_first(p: _Projection) -> Form | None:
    """Return the form of a projection of the source with three parts, in the order and the heads that P has, with a
    question whether the third part comes before the second (values before keys), which is the other form.

    It is asked if the source's code splits the rows into another number of shares than the model has heads (shares of
    several devices, `_of_devices`); also about parts of equal sizes, if the name surely means one part after the other
    (P.kind.sure) and the source's code shows no layout. None for other projections, for those of the target, and if the
    order of P is certain (P.ordered).
    """
    unseen = p.kind.sure and not p.layout and not p.seen and len(set(p.sizes)) == 1
    if len(p.parts) != 3 or p.one.is_target or p.ordered or not (unseen or _of_devices(p)):
        return None
    turned = (p.parts[0], p.parts[2], p.parts[1])
    doubt: Question[Expr] = ask(Reason.PARTS_MAY_DIFFER, ", ".join(p.parts))
    return Form(p.parts, p.sizes, p.seen, doubt, (turned, p.sizes, p.seen))


def _of_devices(p: _Projection) -> bool:
    """Return whether the source's code splits the rows into another number of shares than the model has heads."""
    return p.seen > 0 and p.heads() > 0 and p.seen != p.heads()


def _as_source_splits(p: _Projection) -> Form | None:
    """Return the form that the code of P shows, one part after the other ("block"), or as many heads as P.seen says,
    with a question that is answered already, by this code. None if the code shows neither.
    """
    if p.layout != "block" and not p.seen:
        return None
    shares = "heads" if has_heads(p.kind) else "shares"
    how = f"cuts it into {p.seen} {shares} first" if p.seen else "cuts it into blocks"
    return Form(p.parts, p.sizes, p.seen, ask_code(order_of_rows(p.kind), shows=how))


def _without_heads(p: _Projection) -> Form | None:
    """Return the form with one part after the other, without a question, if the name surely means it (P.kind.sure, not
    P.lost), or if the model has one head of keys for all queries (`_has_one_head`) or does not split keys into heads
    (`_has_no_heads`). None for other projections.
    """
    return p.form() if (p.kind.sure and not p.lost) or _has_one_head(p) or _has_no_heads(p) else None


def _has_one_head(p: _Projection) -> bool:
    """Return whether the code of the model shows one head of keys and values for all queries: one head for keys with as
    many rows as the last part of P. False if all parts of P have equally many rows, and for a projection of the target.
    """
    return not p.one.is_target and len(set(p.sizes)) > 1 and p.other.heads(p.sizes[-1]) == 1


def _has_no_heads(p: _Projection) -> bool:
    """Return whether the model uses keys with as many rows as the last part of P whole (`Parts.whole`), as in linear
    attention, and the name of P surely means one part after the other in linear layers (P.kind.linear): here P is a
    convolution. False if the model's number of heads is known, and for a projection of the target.
    """
    return p.kind.linear and not p.heads() and not p.one.is_target and p.other.whole(p.sizes[-1])


def _heads_by_name(p: _Projection) -> Form | None:
    """Return the form in as many heads as the model's keys have, each with its share of all parts, if most code with
    this name stores it so (P.kind.by_heads). It has a question whether the parts follow one another, which is the other
    form. None for other names, and if the number of heads is not known.

    Also None for a name for which that does not hold in gated models (P.kind.ungated), if the parts have different
    sizes and a feed-forward layer of the same side holds gate and up (`_gate_and_up`).
    """
    gated = p.kind.ungated and len(set(p.sizes)) > 1 and _gate_and_up(p.one)
    if not p.kind.by_heads or not p.heads() or gated:
        return None
    return Form(p.parts, p.sizes, p.heads(), ask(Reason.BY_HEADS), (p.parts, p.sizes, 0))


def _one_after_the_other(p: _Projection) -> Form:
    """Return the form with one part after the other, with a question whether each head holds a share of all parts; that
    is the other form, if the number of the model's heads is known.
    """
    rival = (p.parts, p.sizes, p.heads()) if p.heads() else None
    return Form(p.parts, p.sizes, 0, ask(Reason.BY_HEADS), rival)


def order_of_rows(kind: Fused) -> Reason:
    """Return the reason to ask whether the parts of a projection of this KIND follow one another or take turns."""
    return Reason.BY_HEADS if has_heads(kind) else Reason.ROWS_TAKE_TURNS


#: What each rule says about a projection; the first that applies decides.
_RULES: tuple[Callable[[_Projection], Form | None], ...] = (
    _half_in_code,
    _as_model_splits,
    _as_named,
    _of_experts,
    _halves,
    _as_library_splits,
    _as_model_registers,
    _keys_or_values_first,
    _as_source_splits,
    _without_heads,
    _heads_by_name,
    _one_after_the_other,
)


def _gate_and_up(one: Canon) -> bool:
    """Return whether a layer of ONE holds gate and up in one matrix, as sizes show: a matrix named as the layer that
    expands ("up") is [2 * inner, width], and one named as the layer that contracts ("down") is [width, inner], in any
    module.
    """
    neck = table().group("neck")
    sizes: dict[str | None, set[Shape]] = defaultdict(set)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.shape) == 2:
            sizes[label(neck, piece.words)].add(piece.shape)
    return any((2 * inner, width) in sizes["up"] for width, inner in sizes["down"])


__all__ = ["Parts", "as_code_has_it", "divides", "form_of", "has_heads", "order_of_rows"]
