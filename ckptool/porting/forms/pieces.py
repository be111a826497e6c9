"""One side of a port in the common form: its tensors as pieces, with what was done to make them.

On the source a step makes expressions over its keys; on the target it makes the expression that puts a key together
again, with holes where sources go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
        """The name of another tensor of the same module."""
        return Name(self.path, role)

    @property
    def hole(self) -> str:
        """How expressions call the place that this tensor of the target is to fill."""
        return ".".join(self.path) + "|" + self.role


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor in the common form.

    Attributes:
        path: components of the module that it belongs to.
        role: what it is there ("weight", "bias", "running_mean", "weight_ih").
        shape: its sizes.
        expr: over the source's keys; for a target, over holes (that of its own `name`).
        order: place in the state dict.
        used: place in the execution order, or None.
        words: its names, for words; those of the key it came from and of what it became.
        entry: the entry that it came from.
        questions: what the steps that made it are not sure of, with expressions over the source; for a target, over
            its own hole.
        steps: the steps of the common form that made it, by name.
        placed: whether its file says how it is laid out, so that it is in torch's layout whatever it is called.
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
    def name(self) -> Name:
        """Its name in the common form."""
        return Name(self.path, self.role)

    def asking(self, reason: Reason, *named: str, option: Expr | None = None) -> Piece:
        """The same with one more question, and what else it may be, if that is known."""
        return self.asked(Question(reason, named, () if option is None else (option,)))

    def asked(self, question: Question[Expr]) -> Piece:
        """The same with one more question."""
        return replace(self, questions=tuple(joined(self.questions, question)))

    @property
    def last(self) -> str:
        """The last component of its path; nothing for what the outermost module holds."""
        return self.path[-1] if self.path else ""

    @property
    def leaf(self) -> str:
        """The last component of its key; of what is in torch's layout as its file says, what torch calls it."""
        return self.role if self.placed else components(self.entry.key)[-1]


@dataclass(slots=True)
class Canon:
    """One side in the common form.

    Attributes:
        signature: what it was made from.
        is_target: expressions are over holes.
        pieces: by name.
        assembly: for a target, each key as an expression over holes.
        counters: keys of `num_batches_tracked`, with the path of the batch norm of each.
        dropped: keys of weights, with that of the copy beside each of which some is dropped.
        notes: what was done, for the report.
        adapter_scale: factor of low-rank adapters, if the file says it.
        step: the step that is being taken, which pieces remember that it makes.
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
        """Add a piece; one whose name is taken gets another."""
        while piece.name in self.pieces:
            piece = replace(piece, path=(*piece.path, "again"))
        if self.step and self.step not in piece.steps:
            piece = replace(piece, steps=(*piece.steps, self.step))
        if self.is_target:
            piece = replace(piece, expr=ex.of(piece.name.hole))
        self.pieces[piece.name] = piece
        return piece

    def has(self, piece: Piece) -> bool:
        """Whether this side has a tensor of the other by its name and with its sizes, so that nothing is to be done."""
        own = self.pieces.get(piece.name)
        return own is not None and own.shape == piece.shape

    def become(self, old: Piece, new: Sequence[tuple[Piece, Callable[[Expr], Expr]]], up: Callable[..., Expr]) -> None:
        """Replace OLD by NEW pieces: each with what makes it from OLD; UP makes OLD from them."""
        del self.pieces[old.name]
        placed = [self.put(replace(piece, expr=down(old.expr))) for piece, down in new]
        if self.is_target:
            self._fill(old.name.hole, up(*(piece.expr for piece in placed)))

    def _fill(self, hole: str, value: Expr) -> None:
        for key, expr in self.assembly.items():
            if hole in expr.keys():  # noqa: SIM118
                self.assembly[key] = substituted(expr, {hole: value})

    def merge(
        self, olds: Sequence[Piece], new: Piece, down: Callable[..., Expr], up: Sequence[Callable[[Expr], Expr]]
    ) -> None:
        """Replace OLDS by one NEW piece, made by DOWN from them; UP makes each of them from it."""
        for old in olds:
            del self.pieces[old.name]
        steps = tuple(dict.fromkeys(step for old in olds for step in old.steps))
        placed = self.put(replace(new, expr=down(*(old.expr for old in olds)), steps=steps))
        if self.is_target:
            for old, make in zip(olds, up, strict=True):
                self._fill(old.name.hole, make(placed.expr))


def substituted(expr: Expr, values: dict[str, Expr]) -> Expr:
    """EXPR with some keys replaced by expressions."""
    return expr.replaced(lambda key: values.get(key) or ex.of(key))


#: Frameworks whose images have their channels last.
_CHANNELS_LAST = frozenset({"keras", "tensorflow", "tensorflow.js", "tflite", "flax", "orbax", "mlx"})


def holds_channels_last(piece: Piece, framework: str) -> bool:
    """Whether the code behind a tensor of the source has images with their channels last, as far as can be known."""
    if piece.placed:
        return framework in _CHANNELS_LAST
    return piece.leaf in table().inputs_first


def unchanged(e: Expr) -> Expr:
    """The same, where a piece only gets another name."""
    return e


def squeezed(shape: Shape) -> Shape:
    """SHAPE without dimensions of one element."""
    return tuple(n for n in shape if n != 1)
