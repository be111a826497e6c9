"""Find out whether square matrices have inputs or outputs first, which their own sizes do not show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ...model_code.signature import PRODUCTS
from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.layouts import is_bare, is_turned, kin
from ..forms.pieces import Piece, squeezed
from ..questions import Reason, Topic
from ..words import cut, label, table
from .filling import Filled, Filling

#: What a matrix that is taken as it stands may have been through.
AS_IT_IS = frozenset({"select", "reshape"})
#: Functions that normalize the rows or columns of a matrix.
_NORMALIZES = frozenset({"normalize", "renorm"})


def turn_bare_squares(filling: Filling) -> None:
    """Decide for each square bare parameter of the file (an `nn.Parameter` of no torch layer) whether it is transposed.

    It stays, without a question, if its key ends with the same name as the model's key, or if a step reshaped it or
    changed its layout (`may_be_turned`). Else the bare parameters of the file that are not square decide
    (`shows_turned`): if steps transposed all of them, it is transposed, too; if none or only some, it stays.

    If the file has none of these, a question is asked, unless one about transposing is open already. Then the transpose
    is taken, and the option is the parameter as it is. For scores, stacks and names that end in `_weight` it is the
    other way round: the parameter stays, and the option is the transpose (`from_the_right`).

    Before all this, `_turn_in_front` decides parameters that are multiplied along other dimensions than the last two.
    """
    _turn_in_front(filling)
    uses = list(_bare_uses(filling))
    shown = Counter(turned for use in uses if (turned := use.shows_turned()) is not None)
    for use in uses:
        if use.shows_turned() is None and use.may_be_turned():
            _decide(use.filled, shown, use.reason(), from_the_right=use.from_the_right())


def _turn_in_front(filling: Filling) -> None:
    """Swap inputs and outputs of each tensor of the file that is taken whole for a tensor of the model of equal sizes,
    such as [in, out, …] or [out, in, …] with as many inputs as outputs (`_in_front`), if both codes show the order, and
    the source's is the other one. There is no question.

    If only the model's code shows the order, and has outputs first, ask, with the swapped tensor as the option, unless
    T and S have one name or come from the same code (`Filling.written_once`): code of spectral convolutions (Li et al.,
    "Fourier Neural Operator", 2021) has inputs first. In all other cases nothing is done.
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, own = t.pieces.get(hole.role), _taken_whole(filled.expr, s.pieces.values())
        places = None if piece is None or own is None else _in_front(piece)
        if piece is None or own is None or places is None or own.shape != piece.shape:
            continue
        one, other = places
        order = [*range(len(piece.shape))]
        order[one], order[other] = other, one
        turn = partial(_permuted, dims=order)
        theirs = _in_front(own)
        if theirs == (other, one):
            filled.change(turn)
        elif theirs is None and other < one and not filling.written_once(t, s):
            filled.ask(Reason.INPUTS_FIRST, other=turn)


def _permuted(e: Expr, dims: Sequence[int]) -> Expr:
    """Return E with its dimensions in the order DIMS."""
    return ex.permute(e, *dims)


def _in_front(piece: Piece) -> tuple[int, int] | None:
    """Return (place of the inputs, place of the outputs) among the dimensions of PIECE, if an einsum shows one of each,
    of equal sizes, that are not the last two, and takes all others element by element ("both"); else None. PIECE may be
    a member of a stack: the dimensions of the stack in front do not count.
    """
    outer = len(piece.entry.shape) - len(piece.shape) if piece.entry.shape[-len(piece.shape) :] == piece.shape else 0
    dims = piece.entry.facts.dims[outer:]
    if len(dims) != len(piece.shape) or sorted(dims) != ["both"] * (len(dims) - 2) + ["input", "output"]:
        return None
    places = dims.index("input"), dims.index("output")
    is_square = piece.shape[places[0]] == piece.shape[places[1]]
    return places if is_square and {*places} != {len(dims) - 2, len(dims) - 1} else None


def _decide(filled: Filled, shown: Counter[bool], reason: Reason | None, *, from_the_right: bool) -> None:
    """Transpose the expression of FILLED, a square matrix, keep it, or ask which is right.

    SHOWN counts other matrices of the file that show it: True for those by which FILLED has to be transposed, False for
    those by which it stays. If all are True, it is transposed; if one is False, it stays; both without a question.

    If SHOWN counts none, REASON is asked: with FROM_THE_RIGHT the transpose is taken, and the matrix as it is is the
    option; else the other way round. Nothing is asked or changed if REASON is None, or if FILLED has an open question
    about transposing already.
    """
    asked = any(doubt.reason.topic is Topic.TURNED for doubt in filled.doubts)
    if shown[True] and not shown[False]:
        filled.change(ex.transpose)
    elif not shown.total() and reason is not None and not asked:
        filled.ask(reason, other=ex.transpose, exchange=from_the_right)


@dataclass(frozen=True, slots=True)
class _BareUse:
    """A bare parameter of the file (an `nn.Parameter` that is no weight of a torch layer) of two or more dimensions.

    Attributes:
        filled: where it goes.
        piece: the tensor of the model.
        own: the tensor of the file.
        shape: the sizes that the model multiplies with.
    """

    filled: Filled
    piece: Piece
    own: Piece
    shape: Shape

    def shows_turned(self) -> bool | None:
        """Return whether a step transposed this parameter of the file on its way into the common form, which shows how
        the file stores bare parameters; None if that is not known.

        If its sizes in the form (`own`) are those that the model multiplies with (`shape`): None if its last two sizes
        are equal, else whether its expression has a `transpose`. If its sizes are others: whether they are those with
        which the model stores its key.
        """
        if self.own.shape != self.shape:
            return self.own.shape == self.piece.entry.shape
        if self.own.shape[-1] != self.own.shape[-2]:
            return "transpose" in self.filled.expr.operations()
        return None

    def may_be_turned(self) -> bool:
        """Return whether the parameter has another last name than the model's tensor, no earlier step reshaped it, and
        nothing but selections and reshapes is done with it.
        """
        renamed = self.own.entry.key.split(".")[-1] != self.piece.entry.key.split(".")[-1]
        # an earlier step reads the rows of what it reshapes off sizes that are no square's, such as those of heads
        untouched = "reshape" not in self.own.expr.operations()
        return renamed and untouched and AS_IT_IS.issuperset(self.filled.expr.operations())

    def reason(self) -> Reason:
        """Return the reason to ask about the parameter: `SQUARE_SCORES` if it holds scores (`_as_scores`), else
        `INPUTS_FIRST`.
        """
        return Reason.INPUTS_FIRST if _as_scores(self.piece) is None else Reason.SQUARE_SCORES

    def from_the_right(self) -> bool:
        """Return whether code as a rule multiplies with such a parameter from the right: it is not called
        `…_weight`, is no stack of matrices, and holds no scores.
        """
        taken_one_by_one = len(self.own.shape) == 3
        return not taken_one_by_one and not self.own.leaf.endswith("_weight") and _as_scores(self.piece) is None


def _bare_uses(filling: Filling) -> Iterator[_BareUse]:
    """Yield each bare parameter of the file, of two or more dimensions, square or not, whose piece in the common form
    fills a matrix of the model (`_as_matrix`) or scores (`_as_scores`), unchanged or reshaped. An earlier step may have
    transposed it (`_BareUse.shows_turned`).
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        shape = None if piece is None else _as_matrix(piece) or _as_scores(piece)
        own = _taken_whole(filled.expr, s.pieces.values())
        if piece is not None and shape is not None and own is not None and is_bare(own) and len(own.shape) > 1:
            yield _BareUse(filled, piece, own, shape)


def _taken_whole(expr: Expr, pieces: Iterable[Piece]) -> Piece | None:
    """Return the first of PIECES whose expression is EXPR, or EXPR without the reshapes around it; None if there is
    none, as for an EXPR that cuts or joins pieces.
    """
    return next((p for p in pieces if p.expr in (expr, ex.unreshaped(expr))), None)


def turn_squares_of_layers(filling: Filling) -> None:
    """Decide for each square matrix of a layer of the file whether it is transposed, if nothing states its layout
    (`has_open_layout`). Bare parameters of the source are left as they are.

    Matrices of layers with the same name (`kin`: "fc" for `fc1`, `fc2`) that are not square show whether the file
    stores them in the model's layout or in the other one; they count only if the model's code normalizes both them and
    the square one, or neither. If they agree, the square one is taken in the same way; if they differ, it is taken to
    have outputs first in the file. Nothing is asked then.

    If there are no such matrices, the square one is taken to have outputs first in the file, as in most code. This is a
    question, with the other layout as its option, if the model stores the matrix with inputs first, normalizes it, or
    has it as a bare parameter that its forward pass does not use (`_OfLayer.reason`), and if no question about
    transposing it is open already. When the question is asked about a graph convolution (`_OfLayer.of_graph`), inputs
    first are taken, and outputs first are the option.
    """
    matrices = list(_of_layers(filling))
    by_name: dict[tuple[str, bool], Counter[bool]] = defaultdict(Counter)
    for one in matrices:
        if not one.is_square():
            by_name[kin(one.own), one.is_normalized()][one.turned != ex.is_transposed(one.own.expr)] += 1
    for one in matrices:
        if one.is_square() and one.has_open_layout():
            inputs_first = by_name[kin(one.own), one.is_normalized()]
            shown = Counter({True: inputs_first[not one.turned], False: inputs_first[one.turned]})
            _decide(one.filled, shown, one.reason(), from_the_right=one.of_graph())


@dataclass(frozen=True, slots=True)
class _OfLayer:
    """A matrix of a layer of the file, in the common form, that fills a hole unchanged.

    Attributes:
        filled: where it goes.
        piece: the tensor of the model.
        own: the tensor of the file.
        turned: whether the model stores it with inputs first.
    """

    filled: Filled
    piece: Piece
    own: Piece
    turned: bool

    def is_square(self) -> bool:
        """Return whether the last two sizes are equal."""
        return self.own.shape[-1] == self.own.shape[-2]

    def has_open_layout(self) -> bool:
        """Return whether nothing states the layout of the tensor of the file. All of these have to be true: no step
        changed it (its expression is a copy); the file does not state its layout (`placed`); its name does not say that
        inputs are first (`kernel`); and the source's code does not look up rows of it.
        """
        stated = self.own.placed or self.own.leaf in table().inputs_first or self.own.entry.how == "embedding"
        return self.own.expr.is_copy and not stated

    def reason(self) -> Reason | None:
        """Return `INPUTS_FIRST`, the reason to ask, in one of three cases; None for all others, which are most
        matrices:

          - The model stores the matrix with inputs first.
          - The model has it as a bare parameter, no `Embedding`, that its forward pass does not use.
          - The model normalizes it before it multiplies (`is_normalized`): code stores such last layers, whose outputs
            are cosines, in either layout.
        """
        entry = self.piece.entry
        unseen = entry.used is None and is_bare(self.piece) and entry.module != "Embedding"
        return Reason.INPUTS_FIRST if self.turned or unseen or self.is_normalized() else None

    def is_normalized(self) -> bool:
        """Return whether the model's code normalizes the matrix before it multiplies."""
        return self.piece.entry.how in _NORMALIZES

    def of_graph(self) -> bool:
        """Return whether the matrix is that of a graph convolution: the model stores it with inputs first, and its name
        in the file is one for convolutions (`conv1`, `convs.0`).
        """
        name = cut(kin(self.own).removesuffix("s"))
        return self.turned and label(table().group("purpose"), name) == "conv"


def _of_layers(filling: Filling) -> Iterator[_OfLayer]:
    """Yield each tensor of the file, in the common form, that fills a hole as it is and has two or more dimensions.
    Bare parameters of the file, which belong to no torch layer, are left out.
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        own = next((p for p in s.pieces.values() if p.expr == filled.expr), None)
        if piece is not None and own is not None and len(own.shape) > 1 and not is_bare(own):
            yield _OfLayer(filled, piece, own, is_turned(filling.target, piece))


def _as_matrix(piece: Piece) -> Shape | None:
    """Return the sizes with which the model multiplies by PIECE. For the kernel of a convolution of size 1: [outputs,
    inputs]. For other tensors of two or more dimensions: its whole shape, if the model takes it into a matrix product,
    the forward pass shows its layout, or it belongs to a `Linear`.

    None for larger convolutions and all other tensors, and if an einsum shows that it multiplies along other dimensions
    than the last two.
    """
    if len(piece.shape) > 2 and (piece.entry.how.startswith("conv") or piece.entry.module.startswith("Conv")):
        return piece.shape[:2] if not squeezed(piece.shape[2:]) else None
    if piece.entry.facts.dims and {*piece.entry.facts.dims[-2:]} != {"input", "output"}:
        return None
    shown = piece.entry.facts.inputs_first is not None
    multiplied = piece.entry.how in PRODUCTS or piece.entry.module == "Linear" or shown
    return piece.shape if len(piece.shape) > 1 and multiplied else None


def _as_scores(piece: Piece) -> Shape | None:
    """Return the shape of PIECE if it holds scores, such as those from class to class; None for other tensors.

    It is a trained bare parameter [n, n] with n > 1, no `Embedding`, and the model takes single numbers or rows out of
    it (`_TAKES`), or adds or multiplies with it element by element.
    """
    of_own_code = is_bare(piece) and piece.entry.parameter and piece.entry.module != "Embedding"
    is_square = len(piece.shape) == 2 and piece.shape[0] == piece.shape[1] > 1
    return piece.shape if of_own_code and is_square and piece.entry.how in _TAKES else None


#: How code takes numbers out of a matrix, or uses all of them, each for itself.
_TAKES = frozenset(
    "__getitem__ gather index_select add __add__ __radd__ mul multiply __mul__ __rmul__ unsqueeze".split()
)

__all__ = ["AS_IT_IS", "turn_bare_squares", "turn_squares_of_layers"]
