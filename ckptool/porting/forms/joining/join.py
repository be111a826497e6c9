"""Join several tensors to one and split it again, and count the tensors of each size on both sides."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from ... import expression as ex
from ...expression import Expr, Shape
from ..fusing.projections import fused_kind
from ..pieces import Canon, Piece, squeezed, unchanged

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A way to join several tensors to one, and to split that one again.

    Attributes:
        sizes: sizes of the parts along the joined dimension.
        dim: that dimension; None for a new first dimension.
        turns: 1 if the parts follow one another. Else they are interleaved along dimension 0: each is cut into so many
            slices, and the first slices of all parts come first, then their second ones, and so on.
        open: whether `turns` is a question.
    """

    sizes: tuple[int, ...]
    dim: int | None
    turns: int = 1
    open: bool = False

    def shape(self, part: Shape) -> Shape:
        """Return the sizes of the joined tensor, if PART are those of one part."""
        if self.dim is None:
            return (len(self.sizes), *part)
        return (*part[: self.dim], sum(self.sizes), *part[self.dim + 1 :])

    def whole(self, *parts: Expr, rest: Shape) -> Expr:
        """Return the expression that joins PARTS: as a stack if `dim` is None, else along `dim`, one after the other or
        interleaved (`turns`). REST are the sizes of a part after its first dimension.
        """
        if self.dim is None:
            return ex.stack(*parts)
        if self.turns == 1:
            return ex.cat(self.dim, *parts)
        cut_up = [
            ex.reshape(part, (self.turns, size // self.turns, *rest))
            for part, size in zip(parts, self.sizes, strict=True)
        ]
        return ex.reshape(ex.cat(1, *cut_up), (sum(self.sizes), *rest))

    def part(self, whole: Expr, *, index: int, rest: Shape) -> Expr:
        """Return the expression for part INDEX of WHOLE, the joined tensor, in the sizes that the part had. REST are
        the sizes of a part after its first dimension.
        """
        if self.dim is None:
            return ex.select(whole, 0, index)
        edges = list(pairwise(accumulate((0, *self.sizes))))
        start, stop = edges[index]
        if self.turns == 1:
            return ex.part(whole, self.dim, start, stop)
        rows = ex.reshape(whole, (self.turns, sum(self.sizes) // self.turns, *rest))
        inner = ex.part(rows, 1, start // self.turns, stop // self.turns)
        return ex.reshape(inner, (stop - start, *rest))


class SizeCounts:
    """Counts the tensors of each size on two sides, ONE and OTHER, to tell of which sizes OTHER has more. Sizes of 1 do
    not count. For a fused projection of OTHER (`qkv`), its parts of equal rows count as tensors, beside the whole,
    unless ONE has a fused projection of the same sizes, or the number of parts does not divide the rows. The counts are
    those of when the object is made.
    """

    def __init__(self, one: Canon, other: Canon) -> None:
        self._own = _counted(one)
        self._theirs = _counted(other)
        fused = {p.shape for p in one.pieces.values() if p.role == "weight" and fused_kind(p) is not None}
        for piece in other.pieces.values():
            kind = fused_kind(piece) if piece.role == "weight" else None
            apart = kind is not None and piece.shape not in fused  # what is fused on both sides stays so
            if kind is not None and apart and piece.shape[0] % len(kind.parts) == 0:
                self._theirs[squeezed((piece.shape[0] // len(kind.parts), *piece.shape[1:]))] += len(kind.parts)
        self._views: dict[tuple[Shape, bool], set[Shape]] = defaultdict(set)
        for piece in other.pieces.values():
            biased = piece.name.beside("bias") in other.pieces
            if piece.shape:
                self._views[piece.shape, biased].add(_view(piece))

    @property
    def are_equal(self) -> bool:
        """Return whether both sides have equally many tensors of each size, as counted here (see the class)."""
        return self._own == self._theirs

    def wanted(self, shape: Shape) -> int:
        """Return how many more tensors of SHAPE, but for sizes of 1, the side OTHER has than the side ONE; below 0 if
        it has fewer. The counts are those of when this object was made.
        """
        return self._theirs[squeezed(shape)] - self._own[squeezed(shape)]

    def join(self, part: Shape, count: int, *, biased: bool) -> Join:
        """Return how to join COUNT weights of sizes PART along their first dimension: one after the other, also if
        OTHER has no weight of the joined sizes, unless the code of OTHER shows that they are interleaved row by row.

        It does so if OTHER has a layer of the joined sizes, with a bias if BIASED, else without one, whose output its
        code reshapes to [rows of PART, COUNT] (`_view`): then `turns` is the rows of PART. `open` is set if PART has
        COUNT rows, or if the code does not reshape the outputs of all such layers in the same way.
        """
        join = Join((part[0],) * count, 0)
        views = self._views.get((join.shape(part), biased), set())
        if (part[0], count) not in views:
            return join
        return replace(join, turns=part[0], open=len(views) > 1 or part[0] == count)

    def only_whole(self, part: Shape, whole: Shape, count: int) -> bool:
        """Return whether the side ONE has exactly COUNT tensors of the sizes PART and none of the sizes WHOLE, and the
        side OTHER exactly one of the sizes WHOLE and none of the sizes PART. Sizes of 1 do not count.
        """
        part, whole = squeezed(part), squeezed(whole)
        own, theirs = (self._own[part], self._own[whole]), (self._theirs[part], self._theirs[whole])
        return own == (count, 0) and theirs == (0, 1)


def _view(piece: Piece) -> Shape:
    """Return the sizes to which code reshapes the output of PIECE, a layer or a part of a fused projection; () if the
    code does not show it, and for a part that is reshaped to two equal sizes, the first of which is that of heads, as
    a rule.

    A fused projection of n parts is reshaped to these sizes and n, in any place (to [heads, n * width], if the parts of
    each head follow one another); or it is divided into parts, which are reshaped to [heads, width].
    """
    facts, whole, rows = piece.entry.facts, piece.entry.shape, piece.shape[0]
    sizes, parts = facts.layout.sizes, whole[0] // rows if len(whole) == len(piece.shape) and rows else 1
    if parts < 2:
        return sizes
    heads = sizes[0] if sizes and sizes[0] != parts else facts.heads
    if len(sizes) == 3 and sizes[0] == parts:
        heads = sizes[1]
    return (heads, rows // heads) if heads and rows % heads == 0 and heads**2 != rows else ()


def _counted(canon: Canon) -> Counter[Shape]:
    """Return sizes, without sizes of 1 -> number of tensors of CANON that have them."""
    return Counter(squeezed(p.shape) for p in canon.pieces.values())


def merge(one: Canon, parts: Sequence[Piece], new: Piece, join: Join) -> Piece:
    """Replace PARTS in the side ONE by one tensor, joined as JOIN says, with the path, role and words of NEW. It gets
    the joined sizes, the first place of any part in the order of registration and in that of execution, and the
    questions of all parts, without their options, which are parts, before those of NEW, each only once. Return NEW with
    these changes, but without the expression with which it was added.
    """
    rest = parts[0].shape[1:]
    new = replace(
        new,
        shape=join.shape(parts[0].shape),
        order=min(p.order for p in parts),
        used=min((p.used for p in parts if p.used is not None), default=None),
        questions=tuple(dict.fromkeys((*(q.about() for p in parts for q in p.questions), *new.questions))),
    )
    up: list[Callable[[Expr], Expr]] = [partial(join.part, index=i, rest=rest) for i in range(len(parts))]
    one.merge(parts, new, partial(join.whole, rest=rest), up)
    return new


def merge_sum(one: Canon, parts: Sequence[Piece], new: Piece) -> None:
    """Replace the biases PARTS in the side ONE, of layers whose outputs are added, by one bias NEW, whose value is the
    sum of PARTS. Nothing is done if their sizes differ.

    On the target, whose keys are built from the sum, the first of PARTS gets the value of NEW, and the others zeros.
    """
    if len({p.shape for p in parts}) == 1:
        zeros = ex.zeros(*parts[0].shape)
        up: list[Callable[[Expr], Expr]] = [unchanged, *[lambda _: zeros] * (len(parts) - 1)]
        one.merge(parts, new, ex.add, up)


def move(one: Canon, old: _Path, new: _Path) -> None:
    """Move the tensors of the module at the path OLD, not those of modules in it, to the path NEW."""
    for piece in [p for p in one.pieces.values() if p.path == old]:
        one.change(piece, replace(piece, path=new))
