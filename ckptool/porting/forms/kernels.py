"""Kernels of convolutions with channels last, of transposed convolutions, or over whole rows, on one side only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import table
from .layouts import turn
from .pieces import Canon, Piece, squeezed


def channels_first(source: Canon, target: Canon) -> None:
    """Bring kernels of the source with channels last ([out, height, width, in] or [height, width, in, out]) into
    torch's layout: all kernels without a stated layout (`_unplaced_kernels`) that have sizes of the model in the layout
    of the file (`_layout_of_file`), also if they fit as they are, because a file has one layout.
    """
    wanted = Counter(p.shape for p in target.pieces.values() if p.role.startswith("weight"))
    of_layers = {p.shape for p in target.pieces.values() if _is_transposed(p) is not None}
    kernels = _unplaced_kernels(source)
    way = _layout_of_file([p.shape for p in kernels], wanted, of_layers)
    if way is None:
        return
    for piece in kernels:
        there = _laid(piece.shape, way)
        if wanted[there]:
            source.permute(piece, way(len(there)))


def _unplaced_kernels(source: Canon) -> list[Piece]:
    """Return the kernels of SOURCE, weights of three to five dimensions, without those whose layout the file states,
    that are called `kernel`, or that were made by operations other than weight norm.
    """
    kernels = [p for p in source.pieces.values() if p.role == "weight" and not p.placed and 2 < len(p.shape) < 6]
    stored = [p for p in kernels if p.expr.is_copy or p.expr.op == "weight_norm"]
    return [p for p in stored if p.leaf not in table().inputs_first]


def _layout_of_file(shapes: Sequence[Shape], wanted: Counter[Shape], of_layers: set[Shape]) -> _Way | None:
    """Return the layout with channels last that kernels of the sizes SHAPES have; None if they have torch's layout, or
    if that is not clear.

    It has to be the only way for more than two thirds of the kernels that fit the sizes WANTED by the model in one way
    only, as they are or in one of the two layouts. Kernels that fit as they are and in a layout do not count, nor those
    that fit in both layouts. Kernels with three dimensions count for a layout only if code uses the new sizes in a
    convolution (OF_LAYERS).
    """
    votes: Counter[_Way | None] = Counter()
    for shape in shapes:
        fitting = [way for way in _WAYS if wanted[_laid(shape, way)]]
        if wanted[shape]:
            votes[None] += not fitting
        elif len(fitting) == 1 and (len(shape) > 3 or _laid(shape, fitting[0]) in of_layers):
            votes[fitting[0]] += 1
    best = max(_WAYS, key=lambda way: votes[way])
    return best if votes[best] > 2 * (votes.total() - votes[best]) else None


#: For a number of dimensions, which of those of a kernel go where torch has outputs, inputs, height, width.
_Way = Callable[[int], tuple[int, ...]]


#: The layouts [out, height, width, in] and [height, width, in, out].
_WAYS: tuple[_Way, ...] = (
    lambda rank: (0, rank - 1, *range(1, rank - 1)),
    lambda rank: (rank - 1, rank - 2, *range(rank - 2)),
)


def _laid(shape: Shape, way: _Way) -> Shape:
    """Return the sizes that a kernel of sizes SHAPE has after WAY."""
    return tuple(shape[d] for d in way(len(shape)))


def turn_kernels(source: Canon, target: Canon) -> None:
    """Swap inputs and outputs of kernels of transposed convolutions of the source ([in, out, k, k]) and flip them, for
    a model that is known to have plain convolutions, and no transposed ones. With stride 1 both compute the same; each
    such kernel has a question.

    All kernels of a list (`_lists_of_kernels`) are transposed if code or sizes show it (`_why_turned`). If nothing
    shows it either way, but their names say it, and all are square, they stay, and the other kernel is the option of a
    question. Kernels whose swapped sizes the model does not have stay.
    """
    own = [p for p in target.pieces.values() if p.role == "weight" and len(p.shape) > 2]
    plain = Counter(p.shape for p in own if _is_transposed(p) is False)
    if not plain or any(_is_transposed(p) for p in own):
        return
    for kernels in _lists_of_kernels(source):
        why = _why_turned(source, kernels, plain)
        named = why == "" and all(_called_transposed(p) and p.shape[0] == p.shape[1] for p in kernels)
        for piece in kernels if why or named else ():
            there = (piece.shape[1], piece.shape[0], *piece.shape[2:])
            if plain[there]:
                _turn_kernel(source, piece, there, why)


def _lists_of_kernels(source: Canon) -> list[list[Piece]]:
    """Return the kernels of SOURCE in lists: those whose paths are equal without digits. Kernels of a single pixel, and
    those whose layout the file states, are left out.
    """
    lists: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in source.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 2 and squeezed(piece.shape[2:]) and not piece.placed:
            lists[tuple(re.sub(r"\d+", "", component) for component in piece.path)].append(piece)
    return list(lists.values())


def _turn_kernel(source: Canon, piece: Piece, shape: Shape, why: str | None) -> None:
    """Swap and flip the kernel PIECE of SOURCE to the sizes SHAPE, with a question that names WHY. Without a reason (""
    or None), it stays, and the turned kernel is the option of its question.
    """
    flipped = partial(_flipped, rank=len(shape))
    if why:
        made = replace(piece, shape=shape).asking(Reason.TURNED_KERNEL, why)
        source.change(piece, made, flipped, flipped)
    else:
        made = piece.asking(Reason.KERNEL_BY_NAME, option=flipped(piece.expr))
        source.change(piece, made)


def _why_turned(source: Canon, kernels: Sequence[Piece], plain: Counter[Shape]) -> str | None:
    """Return what shows that KERNELS, one list of SOURCE, are those of transposed convolutions, as a text: the source's
    code, if all KERNELS that it is known to use are used so; without code, the lengths of biases or the sizes PLAIN of
    the model's convolutions (`_all_turned`). "" if nothing shows it; None if code uses one of them in a plain
    convolution.
    """
    seen = {_is_transposed(piece) for piece in kernels} - {None}
    if seen:
        return "the source's code" if seen == {True} else None
    return "the sizes of its kernels and biases" if _all_turned(source, kernels, plain) else ""


def _is_transposed(piece: Piece) -> bool | None:
    """Return whether code uses the kernel PIECE in a transposed convolution; None if its code is not known, or uses it
    in no convolution.
    """
    how, module = piece.entry.how, piece.entry.module
    if "conv" in how or "Conv" in module:
        return "transpose" in how or "Transpose" in module
    return None


def _all_turned(source: Canon, kernels: Sequence[Piece], plain: Counter[Shape]) -> bool:
    """Return whether KERNELS, one list of the source, have inputs first. PLAIN counts the sizes of the model's
    convolutions.

    At least one kernel has to show it, and none the opposite: by a bias as long as its second dimension, or, without a
    bias, by sizes that the model has only with the first two swapped. Kernels with as many inputs as outputs do not
    count.
    """
    votes: Counter[bool] = Counter()
    for piece in kernels:
        out, inputs = piece.shape[:2]
        if out == inputs:
            continue
        bias = source.pieces.get(piece.name.beside("bias"))
        if bias is not None:
            votes[bias.shape == (inputs,)] += 1
        else:
            there = (inputs, out, *piece.shape[2:])
            votes[plain[there] > 0 and not plain[piece.shape]] += 1
    return votes[True] > 0 and not votes[False]


def _called_transposed(piece: Piece) -> bool:
    """Return whether a name in the path of PIECE is one for a transposed convolution (`deconv`, `conv_transpose`)."""
    return any(re.search(r"deconv|trans(posed?_?)?conv|conv_?trans", component.lower()) for component in piece.path)


def _flipped(e: Expr, *, rank: int) -> Expr:
    """Return the kernel E of RANK dimensions with its first two swapped, and the others flipped."""
    return ex.flip(ex.permute(e, 1, 0, *range(2, rank)), *range(2, rank))


def lay_down(one: Canon, other: Canon) -> None:
    """Reshape kernels of ONE over the whole width of their input ([out, 1, length, width]) to 1d kernels ([out, width,
    length]), if OTHER has kernels of the new sizes and none of the old, and ONE has no tensor of the new sizes.

    A 2d convolution that takes a whole row at once equals a 1d convolution with the columns as channels. A kernel with
    a length or width of 1 stays. A square kernel does not show which dimension is the width: that is a question.
    """
    theirs = Counter(p.shape for p in other.pieces.values() if p.role.startswith("weight"))
    own = Counter(p.shape for p in one.pieces.values())
    for piece in list(one.pieces.values()):
        if len(piece.shape) != 4 or piece.shape[1] != 1 or 1 in piece.shape[2:] or not piece.role.startswith("weight"):
            continue
        out, _, length, width = piece.shape
        flat = (out, width, length)
        if theirs[piece.shape] or not theirs[flat] or own[flat]:
            continue
        if length == width:
            option = None if one.is_target else ex.reshape(piece.expr, flat)
            piece = piece.asking(Reason.SQUARE_KERNEL, str(length), str(width), option=option)
        turn(one, one.reshape(piece, (out, length, width)))
