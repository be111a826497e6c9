"""Fill a tensor from a source of other sizes. All of this changes values, so each result is a guess."""

from __future__ import annotations

from math import isqrt, prod

from ...errors import counted
from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Question, Reason
from .input_channels import of_channels

#: What to do, and what is not certain about it, with what else could be meant.
Remedy = tuple[Expr, Question[Expr]]

#: Rows that code keeps for padding in front of a table of positions, at most.
_PADDING = 2


def remedy(wanted: Shape, have: Shape, expr: Expr, kind: str | None, *, is_input: bool = False) -> Remedy | None:
    """Return an expression of sizes WANTED, and the question about it; None if no rule changes the sizes, or if a
    tensor has no elements.

    Args:
        wanted, have: the sizes in the model and in the source.
        expr: the tensor of the source, of sizes HAVE.
        kind: "token" for a word table, "position" for a position table.
        is_input: whether the layer takes the inputs of the model, so that any number of channels is possible.
    """
    if 0 in (*wanted, *have):
        return None
    found = _of_kernel(wanted, have, expr, is_input)
    if found is None and kind == "token":
        found = of_rows(wanted, have, expr)
    if found is None and kind == "position":
        found = _of_positions(wanted, have, expr)
    return found


def _of_kernel(wanted: Shape, have: Shape, expr: Expr, is_input: bool) -> Remedy | None:
    """Return a weight changed to another number of channels, frames, groups or dimensions, and the question about it;
    else None. The arguments are as in `remedy`.
    """
    if prod(wanted) == prod(have) and wanted[:1] == have[:1] and {len(wanted), len(have)} <= {2, 4, 5}:
        reason = Reason.PATCHES if 2 in (len(wanted), len(have)) else Reason.RESHAPED
        return ex.reshape(expr, wanted), Question(reason, (), _by_pixels(wanted, have, expr))
    narrow, other = (tuple(n for n in shape if n != 1) for shape in (wanted, have))
    groups = _of_groups(wanted, narrow, have, expr)
    if groups:
        return groups[0], Question(Reason.GROUPS, (), groups[1:])
    if len(narrow) == 2 and narrow == other[::-1] and narrow != other and len(wanted) != len(have):
        turned = ex.reshape(ex.transpose(ex.reshape(expr, other, have)), wanted, narrow)
        return turned, Question(Reason.TURNED_LAYER)
    if len(wanted) == len(have) > 1 and (wanted[1] == 1 or is_input or not wanted[1] % have[1]):
        found = of_channels(wanted, have, expr)
        if found is not None:
            return found
    if len(wanted) == 5 and len(have) == 4 and wanted[:2] + wanted[3:] == have and wanted[2] > 1:
        flat = ex.reshape(expr, (*have[:2], 1, *have[2:]))
        return ex.repeat(flat, 2, wanted[2]), _asked(Reason.FRAMES_REPEATED, wanted[2], wanted[2])
    if len(wanted) == 4 and len(have) == 5 and have[:2] + have[3:] == wanted:
        return ex.reshape(ex.summed(expr, 2), wanted), _asked(Reason.FRAMES_SUMMED, have[2])
    return None


def _by_pixels(wanted: Shape, have: Shape, expr: Expr) -> tuple[Expr, ...]:
    """Return [the kernel for patches, if the linear layer takes all channels of one pixel, then of the next, and so
    on]; () if neither of the two is a linear layer.
    """
    if len(have) == 2 < len(wanted):
        pixels = ex.reshape(expr, (wanted[0], *wanted[2:], wanted[1]))
        return (ex.permute(pixels, 0, len(wanted) - 1, *range(1, len(wanted) - 1)),)
    if len(wanted) == 2 < len(have):
        return (ex.reshape(ex.permute(expr, 0, *range(2, len(have)), 1), wanted),)
    return ()


def _of_groups(wanted: Shape, narrow: Shape, have: Shape, expr: Expr) -> tuple[Expr, ...]:
    """Return the ways in which a stack of matrices can be one grouped layer, with the outputs of each matrix as rows;
    () if there are none.

    Args:
        wanted, narrow: the sizes of that layer, and its sizes other than 1.
        have: the sizes of the stack.
        expr: the stack.
    """
    if len(have) != 3 or len(wanted) < 2:
        return ()
    ways = [
        ((have[0] * have[2], have[1]), ex.reshape(ex.transpose(expr), wanted)),
        ((have[0] * have[1], have[2]), ex.reshape(expr, wanted)),
    ]
    return tuple(way for sizes, way in ways if sizes == narrow)


def of_rows(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return a word table or an output layer for another vocabulary, cut off or filled up with the mean, and the
    question about it. None if more than the number of rows differs, or nothing.
    """
    if 0 in (*wanted, *have) or not wanted or len(wanted) != len(have):
        return None
    if wanted[1:] != have[1:] or wanted == have:
        return None
    if wanted[0] < have[0]:
        return ex.part(expr, 0, 0, wanted[0]), _asked(Reason.FEWER_WORDS, wanted[0], have[0])
    return ex.grow(expr, 0, wanted[0]), _asked(Reason.MORE_WORDS, wanted[0] - have[0], have[0])


def _of_positions(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return a position table for another number of positions, a grid with 0 to 2 rows before it or a sequence, and the
    question about it. None for other tensors.
    """
    if len(wanted) < 2 or len(have) < 2 or wanted[-1] != have[-1] or prod(wanted[:-2]) != 1 or prod(have[:-2]) != 1:
        return None
    for prefix in (1, 0, 2):
        old, new = have[-2] - prefix, wanted[-2] - prefix
        a, b = isqrt(max(old, 0)), isqrt(max(new, 0))
        if old > 0 and new > 0 and a * a == old and b * b == new:
            made = ex.reshape(ex.resize(expr, prefix, (a, a), (b, b)), wanted, (*have[:-2], *wanted[-2:]))
            kept = counted(prefix, "class token")
            return made, Question(Reason.GRID_RESIZED, (f"{a} x {a}", f"{b} x {b}", kept))
    if len(wanted) != 2 or len(have) != 2:
        return None
    old, new = have[0], wanted[0]
    if new < old:
        first, last = ex.part(expr, 0, 0, new), ex.part(expr, 0, old - new, old)
        if old - new <= _PADDING:
            return last, _asked(Reason.PADDING_LEFT_OUT, old - new, old).about(first)
        return first, _asked(Reason.FEWER_POSITIONS, new, old).about(last)
    if new - old <= _PADDING:
        padded = ex.cat(0, ex.zeros(new - old, wanted[1]), expr)
        grown = ex.grow(expr, 0, new)
        return padded, _asked(Reason.PADDING_ADDED, new - old).about(grown)
    made = ex.resize(expr, 0, (1, old), (1, new))
    return made, _asked(Reason.POSITIONS_RESIZED, old, new).about(ex.grow(expr, 0, new))


def _asked(reason: Reason, *numbers: int) -> Question[Expr]:
    return Question(reason, tuple(f"{number:,}" for number in numbers))
