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
    torch's layout. The layout of most kernels that fit the model in one way only is that of the file
    (`_layout_of_file`); nothing is done if that is torch's, or not clear.

    All kernels without a stated layout (`_unplaced_kernels`) whose sizes after this change are those of some weight of
    the model are then changed, also if they fit as they are, because a file has one layout. There is no question.
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
    """Return the kernels of SOURCE, weights of three to five dimensions, whose layout nothing says. Kernels are left
    out if the file states their layout, if their name says it (`kernel`), or if a step has rearranged them
    (`is_laid_out_as_stored`).
    """
    kernels = [p for p in source.pieces.values() if p.role == "weight" and not p.placed and 2 < len(p.shape) < 6]
    return [p for p in kernels if p.is_laid_out_as_stored and p.leaf not in table().inputs_first]


def _layout_of_file(shapes: Sequence[Shape], wanted: Counter[Shape], of_layers: set[Shape]) -> _Way | None:
    """Return the layout with channels last that kernels of the sizes SHAPES have, one of `_WAYS`; None if they have
    torch's layout, or if that is not clear.

    Each kernel that fits the model in one way only is a vote: as it is (torch's layout), or in one of the two layouts
    with channels last. It fits if its sizes are in WANTED, sizes -> how many weights of the model have them. A layout
    needs more than two thirds of the votes. Kernels that fit in several ways have no vote, nor has a kernel with three
    dimensions for channels last, unless its new sizes are in OF_LAYERS, those of the model's convolutions.
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
    """Swap inputs and outputs of kernels of transposed convolutions of the source ([in, out, k, k]), and flip them in
    the other dimensions, for a model that is known to have plain convolutions, and no transposed ones; else nothing is
    done. With stride 1 both kinds compute the same; each changed kernel gets a question.

    The kernels of a list (`_lists_of_kernels`) are changed if code or sizes show that the list is one of transposed
    convolutions (`_why_turned`). If nothing shows it either way, but the names of all say it, and all have as many
    inputs as outputs, they stay, with a question whose option is the changed kernel. A kernel whose swapped sizes no
    plain convolution of the model has stays without a question.
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
    """Return the kernels of SOURCE in lists, one for each path without its digits: `up.0.conv` and `up.1.conv` are one
    list, and a kernel without others is a list of its own. Kernels are weights with three or more dimensions. Those of
    a single pixel ([out, in, 1, 1]), and those whose layout the file states, are left out.
    """
    lists: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in source.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 2 and squeezed(piece.shape[2:]) and not piece.placed:
            lists[tuple(re.sub(r"\d+", "", component) for component in piece.path)].append(piece)
    return list(lists.values())


def _turn_kernel(source: Canon, piece: Piece, shape: Shape, why: str | None) -> None:
    """Swap the first two dimensions of the kernel PIECE of SOURCE, and flip the others, so that it has the sizes SHAPE;
    it gets a question that names WHY, the reason. Without a reason (WHY is "" or None), PIECE stays as it is, and gets
    another question, whose option is the changed kernel.
    """
    flipped = partial(_flipped, rank=len(shape))
    if why:
        made = replace(piece, shape=shape).asking(Reason.TURNED_KERNEL, why)
        source.change(piece, made, flipped, flipped)
    else:
        made = piece.asking(Reason.KERNEL_BY_NAME, option=flipped(piece.expr))
        source.change(piece, made)


def _why_turned(source: Canon, kernels: Sequence[Piece], plain: Counter[Shape]) -> str | None:
    """Return what shows that KERNELS, one list of SOURCE, are those of transposed convolutions, as a text for a
    question:

      - "the source's code", if it is known to use some of KERNELS in transposed convolutions, and none in a plain one;
      - "the sizes of its kernels and biases", if the use of none of them is known, and these show it (`_all_turned`);
      - "" if the use of none is known, and their sizes do not show it;
      - None if the source's code uses one of them in a plain convolution.

    PLAIN counts the sizes of the model's plain convolutions.
    """
    seen = {_is_transposed(piece) for piece in kernels} - {None}
    if seen:
        return "the source's code" if seen == {True} else None
    return "the sizes of its kernels and biases" if _all_turned(source, kernels, plain) else ""


def _is_transposed(piece: Piece) -> bool | None:
    """Return whether code uses the kernel PIECE in a transposed convolution, by the name of the function that takes it
    first, or by the class of its module. None if neither of the two names is one for a convolution.
    """
    how, module = piece.entry.how, piece.entry.module
    if "conv" in how or "Conv" in module:
        return "transpose" in how or "Transpose" in module
    return None


def _all_turned(source: Canon, kernels: Sequence[Piece], plain: Counter[Shape]) -> bool:
    """Return whether KERNELS, one list of the source, have inputs first. PLAIN counts the sizes of the model's
    convolutions.

    At least one kernel has to show it, and none may fail to: a kernel with a bias shows it if the bias is as long as
    the second dimension of the kernel; a kernel without a bias, if PLAIN has its sizes only with the first two swapped.
    Kernels whose first two sizes are equal do not count. False if all are so.
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
    """Return the kernel E of RANK dimensions with its first two swapped, and its values along each of the others
    reversed.
    """
    return ex.flip(ex.permute(e, 1, 0, *range(2, rank)), *range(2, rank))


def lay_down(one: Canon, other: Canon) -> None:
    """Reshape kernels of ONE over the whole width of their input ([out, 1, length, width]) to 1d kernels ([out, width,
    length]), if OTHER has kernels of the new sizes and none of the old, and ONE has no tensor of the new sizes.

    A 2d convolution that takes a whole row at once equals a 1d convolution with the columns as channels. A kernel with
    a length or width of 1 stays. For a square kernel, the last dimension is taken as the width, with a question; on the
    source, the kernel with the other one as the width is its option.
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
        new = turn(one, one.reshape(piece, (out, length, width)))
        if length == width:  # asked afterwards, since a step changes the options of earlier questions, too
            option = None if one.is_target else ex.reshape(piece.expr, flat)
            one.pieces[new.name] = new.asking(Reason.SQUARE_KERNEL, str(length), str(width), option=option)
