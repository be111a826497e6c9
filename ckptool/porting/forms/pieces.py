"""One side of a port in the common form: its tensors as pieces, with the operations that make them.

On the source, a step makes expressions over its keys. On the target, a step makes the expression that builds a key from
holes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple

from ...model_code.signature import Entry, Signature
from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Question, Reason, joined
from ..words import table
from .roles import components


class Name(NamedTuple):
    """The name of a tensor in the common form, unique on its side.

    Attributes:
        path: components of the module that the tensor belongs to.
        role: what it is there ("weight", "bias", "running_mean", "weight_ih").
    """

    path: tuple[str, ...]
    role: str

    def beside(self, role: str) -> Name:
        """Return the name of the tensor with another ROLE in the same module: of the bias beside a weight."""
        return Name(self.path, role)

    @property
    def hole(self) -> str:
        """Return the text by which expressions refer to this tensor of the target. No other name has it, whatever
        characters are in its components.
        """
        return f"{self.path!r}|{self.role}"


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor in the common form.

    Attributes:
        path: components of the module that it belongs to.
        role: what it is in the module ("weight", "bias", "running_mean", "weight_ih").
        shape: its sizes.
        expr: for the source, an expression over its keys; for a target, its own hole.
        order: place in the state dict.
        used: place in the order of execution, or None.
        words: the words of its names: of its key, and of the names that it got later.
        entry: the entry of the signature that it was made from.
        questions: the questions of the steps that made it. Their options are expressions over the source; for a target,
            over its own hole.
        steps: the steps of the common form that made it, by name.
        placed: whether the file states its layout, so that it has torch's layout whatever its name is.
    """

    path: tuple[str, ...]
    role: str
    shape: Shape
    expr: Expr
    order: float
    used: float | None
    words: tuple[str, ...]
    entry: Entry
    questions: tuple[Question[Expr], ...] = ()
    steps: tuple[str, ...] = ()
    placed: bool = False

    @property
    def is_whole(self) -> bool:
        """Return whether this piece has the sizes of its key: no step split, joined or reshaped it, so that the facts
        of its entry are about the whole piece. A transposed square matrix is whole, too.
        """
        return self.shape == self.entry.shape

    @property
    def name(self) -> Name:
        """Return the name (path and role) of this piece."""
        return Name(self.path, self.role)

    def moved_to(self, layer: Piece) -> Piece:
        """Return the same piece in the module of LAYER: with its path and words."""
        return replace(self, path=layer.path, words=layer.words)

    def asking(self, reason: Reason, *named: str, option: Expr | None = None) -> Piece:
        """Return the same piece with a question for REASON added, with the texts NAMED in its sentence. Its only option
        is the expression OPTION, what else the piece may be; it has none if OPTION is None. See `asked`.
        """
        return self.asked(Question(reason, named, () if option is None else (option,)))

    def asked(self, question: Question[Expr]) -> Piece:
        """Return the same piece with QUESTION added at the end of its questions. But if QUESTION is open, and the piece
        has an open question with the same sentence, that one gets the options of QUESTION after its own instead. A
        question keeps its first eight options.
        """
        return replace(self, questions=tuple(joined(self.questions, question)))

    @property
    def is_laid_out_as_stored(self) -> bool:
        """Return whether this piece of the source has its dimensions as the file stores them: its expression is a copy
        of one key, or the `weight_norm` of a `weight_v` that is a copy. False after any other operation.
        """
        return self.expr.is_copy or (self.expr.op == "weight_norm" and self.expr.args[1].is_copy)

    @property
    def last(self) -> str:
        """Return the last component of its path, or "" for a tensor of the outermost module."""
        return self.path[-1] if self.path else ""

    @property
    def leaf(self) -> str:
        """Return the last component of the key of this piece (`weight` for `fc.weight`). If the file states the layout
        of the piece (`placed`), return its role instead, which is torch's name for it.
        """
        return self.role if self.placed else components(self.entry.key)[-1]


def unchanged(e: Expr) -> Expr:
    """Return E as it is: for steps that only rename a piece."""
    return e


@dataclass(slots=True)
class Canon:
    """One side in the common form.

    Attributes:
        signature: the keys and shapes that it was made from.
        is_target: whether expressions are over holes.
        pieces: the pieces, by name.
        assembly: for a target, each key as an expression over holes.
        counters: key of each `num_batches_tracked` -> path of its batch norm.
        dropped: key of each raw weight -> key of its copy with dropout.
        notes: notes for the report.
        adapter_scale: the factor of low-rank adapters, if the file states it.
        step: the step that is running; pieces that it makes keep its name.
    """

    signature: Signature
    is_target: bool
    pieces: dict[Name, Piece] = field(default_factory=dict)
    assembly: dict[str, Expr] = field(default_factory=dict)
    counters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    adapter_scale: float | None = None
    step: str = ""

    def put(self, piece: Piece) -> Piece:
        """Add PIECE to this side, and return the piece that was added. If its name is taken, its path gets "again" at
        the end, until the name is free. The running step is added to its steps. On the target, its expression becomes
        its own hole.
        """
        while piece.name in self.pieces:
            piece = replace(piece, path=(*piece.path, "again"))
        if self.step and self.step not in piece.steps:
            piece = replace(piece, steps=(*piece.steps, self.step))
        if self.is_target:
            piece = replace(piece, expr=ex.of(piece.name.hole))
        self.pieces[piece.name] = piece
        return piece

    def modules(self) -> dict[tuple[str, ...], dict[str, Piece]]:
        """Return path of a module -> role -> tensor, for the tensors in the module itself."""
        found: dict[tuple[str, ...], dict[str, Piece]] = {}
        for piece in self.pieces.values():
            found.setdefault(piece.path, {})[piece.role] = piece
        return found

    def has(self, piece: Piece) -> bool:
        """Return whether this side has a piece with the name and the sizes of PIECE."""
        own = self.pieces.get(piece.name)
        return own is not None and own.shape == piece.shape

    def become(
        self, old: Piece, new: Sequence[tuple[Piece, Callable[[Expr], Expr]]], up: Callable[..., Expr]
    ) -> list[Piece]:
        """Replace the piece OLD by new pieces, and return these as they were added (`put`). On the target, the keys
        that used the hole of OLD then use the new holes. On the source, the options of questions that a new piece has
        from OLD are changed in the same way as the expression.

        Args:
            old: the piece.
            new: the new pieces, each with the function that makes its expression from that of OLD.
            up: makes the expression of OLD from the expressions of all new pieces, in their order.
        """
        del self.pieces[old.name]
        placed = [self.put(replace(self._carried(piece, old, down), expr=down(old.expr))) for piece, down in new]
        if self.is_target:
            self._fill(old.name.hole, up(*(piece.expr for piece in placed)))
        return placed

    def _carried(self, piece: Piece, old: Piece, down: Callable[[Expr], Expr]) -> Piece:
        """Return PIECE, which DOWN makes of OLD, with DOWN applied to each option of the questions it has from OLD.
        Its other questions stay, because they were asked about PIECE itself. On the target, where options are over
        holes, PIECE is returned as it is.
        """
        had = {id(question) for question in old.questions if question.options}
        if self.is_target or not had:
            return piece
        return replace(piece, questions=tuple(q.translated(down) if id(q) in had else q for q in piece.questions))

    def change(
        self,
        old: Piece,
        new: Piece,
        down: Callable[[Expr], Expr] = unchanged,
        up: Callable[[Expr], Expr] = unchanged,
    ) -> Piece:
        """Replace the piece OLD by one piece NEW, and return the piece that was added (`become`). DOWN makes the
        expression of NEW from that of OLD, and UP the expression of OLD from that of NEW. UP is used for a target only.
        """
        return self.become(old, [(new, down)], up)[0]

    def reshape(self, old: Piece, shape: Shape) -> Piece:
        """Replace the piece OLD by itself with the sizes SHAPE, and return that."""
        down, up = (partial(ex.reshape, shape=sizes) for sizes in (shape, old.shape))
        return self.change(old, replace(old, shape=shape), down, up)

    def permute(self, old: Piece, dims: Sequence[int]) -> Piece:
        """Replace the piece OLD by itself with its dimensions in the order DIMS, and return that."""
        back = [dims.index(d) for d in range(len(dims))]
        made = replace(old, shape=tuple(old.shape[d] for d in dims))
        return self.change(old, made, lambda e: ex.permute(e, *dims), lambda e: ex.permute(e, *back))

    def _fill(self, hole: str, value: Expr) -> None:
        """Put the expression VALUE in place of HOLE in every key of the target."""
        for key, expr in self.assembly.items():
            if hole in expr.keys():  # noqa: SIM118
                self.assembly[key] = substituted(expr, {hole: value})

    def merge(
        self, olds: Sequence[Piece], new: Piece, down: Callable[..., Expr], up: Sequence[Callable[[Expr], Expr]]
    ) -> None:
        """Replace the pieces OLDS by one piece NEW, which gets the steps of all OLDS and the running one. The questions
        of OLDS are lost; NEW keeps those that it has. On the target, the keys that used the holes of OLDS then use that
        of NEW. Returns nothing.

        Args:
            olds: the pieces, which are removed.
            new: the new piece; its expression and steps are replaced by those made here. If its name is taken, its path
                gets "again" at the end (`put`).
            down: makes the expression of NEW from those of OLDS, in their order. On the target, the expression is the
                hole of NEW instead.
            up: for each of OLDS, the function that makes its expression from that of NEW. For a source it is not used,
                and may be empty.
        """
        for old in olds:
            del self.pieces[old.name]
        steps = tuple(dict.fromkeys(step for old in olds for step in old.steps))
        placed = self.put(replace(new, expr=down(*(old.expr for old in olds)), steps=steps))
        if self.is_target:
            for old, make in zip(olds, up, strict=True):
                self._fill(old.name.hole, make(placed.expr))


def substituted(expr: Expr, values: dict[str, Expr]) -> Expr:
    """Return EXPR with each key in VALUES replaced by its expression there."""
    return expr.replaced(lambda key: values.get(key) or ex.of(key))


#: Frameworks whose images have their channels last.
_CHANNELS_LAST = frozenset({"keras", "tensorflow", "tensorflow.js", "tflite", "flax", "orbax", "mlx"})


def holds_channels_last(piece: Piece, framework: str) -> bool:
    """Return whether the code of the source stores images with channels last: as the FRAMEWORK of the file shows, if
    the file states the layout of PIECE, a tensor of it; else as the name of PIECE shows (`kernel`).
    """
    if piece.placed:
        return framework in _CHANNELS_LAST
    return piece.leaf in table().inputs_first


@cache
def squeezed(shape: Shape) -> Shape:
    """Return SHAPE without dimensions of size 1."""
    return tuple(n for n in shape if n != 1)


def flat_kernel(shape: Shape) -> Shape:
    """Return SHAPE without sizes of 1 after the second dimension: (out, in) for (out, in, 1, 1)."""
    return (*shape[:2], *squeezed(shape[2:]))
