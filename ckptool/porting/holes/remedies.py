"""Fill a tensor from a source of other sizes. All of this changes values, so each result is a guess.

No file shows which rule the new code needs for another number of input channels (grey pictures, depth, satellite bands,
several frames); the other rules are options. The names of these rules are those of `--input-channels`.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt, prod

from ...errors import RuleError, counted, printable
from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import squeezed
from ..mapping import Entry, Mapping
from ..questions import Question, Reason

#: What to do, and what is not certain about it, with what else could be meant.
Remedy = tuple[Expr, Question[Expr]]

#: Rows that code keeps for padding in front of a table of positions, at most.
_PADDING = 2


def remedy(wanted: Shape, have: Shape, expr: Expr, kind: str | None, *, is_input: bool = False) -> Remedy | None:
    """Return an expression of sizes WANTED, and the question about it; None if no rule changes the sizes, or if a
    tensor has no elements. The rules for kernels are tried first, then the one for KIND.

    Args:
        wanted, have: the sizes in the model and in the source.
        expr: the tensor of the source, of sizes HAVE.
        kind: "token" for a word table, "position" for a position table, None for others.
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
    """Return (EXPR, of sizes HAVE, changed to sizes WANTED; the question about it) by the first of these rules that
    fits; None if none fits:

    - `_of_patches`: a matrix and a kernel of as many outputs and elements;
    - `_of_one_pixel`: a matrix and a transposed convolution;
    - `_of_groups`: a stack of matrices as a grouped layer;
    - `_of_turned`: a transpose with more or fewer sizes of 1;
    - `_of_channels`: another number of input channels. This is tried only if the layer takes the inputs of the model
      (IS_INPUT), or if the model's weight has one input channel, or a multiple of those of the source;
    - `_of_frames`: pictures and frames.
    """
    for rule in (_of_patches, _of_one_pixel, _of_groups, _of_turned):
        if (found := rule(wanted, have, expr)) is not None:
            return found
    if len(wanted) == len(have) > 1 and (is_input or wanted[1] == 1 or not wanted[1] % have[1]):
        found = _of_channels(wanted, have, expr)
    return _of_frames(wanted, have, expr) if found is None else found


def _of_patches(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR reshaped to WANTED, the question about it), if WANTED and HAVE have equally many outputs and
    elements, and two, four or five dimensions each: a linear layer over patches is a kernel. Else None. If just one of
    the two is a matrix, the option has the columns of the matrix pixel by pixel (`_by_pixels`); else there is none.
    """
    if prod(wanted) != prod(have) or wanted[:1] != have[:1] or not {len(wanted), len(have)} <= {2, 4, 5}:
        return None
    reason = Reason.PATCHES if 2 in (len(wanted), len(have)) else Reason.RESHAPED
    return ex.reshape(expr, wanted), Question(reason, (), _by_pixels(wanted, have, expr))


def _of_one_pixel(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR transposed and reshaped to WANTED, the question about it, without options), if one of WANTED and
    HAVE is a matrix [out, in], and the other a kernel [in, …] of four or five dimensions with as many elements: a
    transposed convolution of one pixel is a linear layer. Both have more than one input, and the kernel is wider than
    one pixel. Else None.
    """
    matrix, kernel = sorted((wanted, have), key=len)
    if len(matrix) != 2 or len(kernel) not in (4, 5) or prod(wanted) != prod(have):
        return None
    if matrix[1] != kernel[0] or matrix[1] == 1 or prod(kernel[2:]) == 1:
        return None
    flat = ex.transpose(ex.reshape(expr, (have[0], prod(have[1:])))) if len(wanted) == 2 else ex.transpose(expr)
    return ex.reshape(flat, wanted), Question(Reason.FROM_ONE_PIXEL)


def _of_turned(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR transposed, with sizes WANTED; the question about it, without options), if WANTED and HAVE, without
    sizes of 1, are a matrix and its transpose, and not square. Else None; also if WANTED and HAVE have equally many
    dimensions, sizes of 1 included.
    """
    narrow, other = squeezed(wanted), squeezed(have)
    if len(narrow) != 2 or narrow != other[::-1] or narrow == other or len(wanted) == len(have):
        return None
    turned = ex.reshape(ex.transpose(ex.reshape(expr, other, have)), wanted, narrow)
    return turned, Question(Reason.TURNED_LAYER)


def _of_frames(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR changed to sizes WANTED, the question about it, without options) for a kernel of pictures [out, in,
    h, w] and one of frames [out, in, frames, h, w]: from pictures to two or more frames it is repeated and divided by
    their number, from frames to pictures summed over them. None for other sizes, and if another size differs.
    """
    if len(wanted) == 5 and len(have) == 4 and wanted[:2] + wanted[3:] == have and wanted[2] > 1:
        flat = ex.reshape(expr, (*have[:2], 1, *have[2:]))
        return ex.repeat(flat, 2, wanted[2]), _asked(Reason.FRAMES_REPEATED, wanted[2], wanted[2])
    if len(wanted) == 4 and len(have) == 5 and have[:2] + have[3:] == wanted:
        return ex.reshape(ex.summed(expr, 2), wanted), _asked(Reason.FRAMES_SUMMED, have[2])
    return None


def _by_pixels(wanted: Shape, have: Shape, expr: Expr) -> tuple[Expr, ...]:
    """Return (EXPR, of sizes HAVE, changed to sizes WANTED,) for a linear layer that takes all channels of one pixel,
    then those of the next, and so on. () unless exactly one of WANTED and HAVE has two dimensions.
    """
    if len(have) == 2 < len(wanted):
        pixels = ex.reshape(expr, (wanted[0], *wanted[2:], wanted[1]))
        return (ex.permute(pixels, 0, len(wanted) - 1, *range(1, len(wanted) - 1)),)
    if len(wanted) == 2 < len(have):
        return (ex.reshape(ex.permute(expr, 0, *range(2, len(have)), 1), wanted),)
    return ()


def _of_groups(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR, a stack of n matrices, as one grouped layer [n * outputs, inputs] of sizes WANTED, in which sizes
    of 1 do not count; the question about it). The stack is [n, inputs, outputs], whose matrices are transposed, or
    [n, outputs, inputs]. If the sizes fit both, the first way is taken, and the second is the option; if they fit
    neither, None.
    """
    if len(have) != 3 or len(wanted) < 2:
        return None
    ways = [
        ((have[0] * have[2], have[1]), ex.reshape(ex.transpose(expr), wanted)),
        ((have[0] * have[1], have[2]), ex.reshape(expr, wanted)),
    ]
    fitting = tuple(way for sizes, way in ways if sizes == squeezed(wanted))
    return (fitting[0], Question(Reason.GROUPS, (), fitting[1:])) if fitting else None


def of_rows(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR, a word table or an output layer, with WANTED[0] instead of HAVE[0] rows; the question about it,
    without options): rows are cut off at the end, or added there, each the mean of all rows. None if other sizes differ
    as well, if WANTED and HAVE are equal, or if a tensor has no elements or no dimensions.
    """
    if 0 in (*wanted, *have) or not wanted or not have or wanted[1:] != have[1:] or wanted == have:
        return None
    if wanted[0] < have[0]:
        return ex.part(expr, 0, 0, wanted[0]), _asked(Reason.FEWER_WORDS, wanted[0], have[0])
    return ex.grow(expr, 0, wanted[0]), _asked(Reason.MORE_WORDS, wanted[0] - have[0], have[0])


def _of_positions(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return a position table for another number of positions, and the question about it: by `_of_grid`, or else by
    `_of_sequence`. None for tensors of another width, with more than one table, or with fewer than two dimensions. The
    arguments are as in `remedy`.
    """
    if len(wanted) < 2 or len(have) < 2 or wanted[-1] != have[-1] or prod(wanted[:-2]) != 1 or prod(have[:-2]) != 1:
        return None
    return _of_grid(wanted, have, expr) or _of_sequence(wanted, have, expr)


def _of_grid(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR, the positions of a square grid, resampled to the square grid of WANTED; the question about it,
    without options). Rows before the grid (class tokens) are kept: 1, 0 or 2, the first of these numbers for which the
    other rows are a square number in both tables. None if there is no such number.
    """
    for prefix in (1, 0, 2):
        old, new = have[-2] - prefix, wanted[-2] - prefix
        a, b = isqrt(max(old, 0)), isqrt(max(new, 0))
        if old > 0 and new > 0 and a * a == old and b * b == new:
            made = ex.reshape(ex.resize(expr, prefix, (a, a), (b, b)), wanted, (*have[:-2], *wanted[-2:]))
            kept = counted(prefix, "class token")
            return made, Question(Reason.GRID_RESIZED, (f"{a} x {a}", f"{b} x {b}", kept))
    return None


def _of_sequence(wanted: Shape, have: Shape, expr: Expr) -> Remedy | None:
    """Return (EXPR, a table of two dimensions, for WANTED[0] instead of HAVE[0] positions; the question about it); None
    if WANTED or HAVE has other than two dimensions.

    If EXPR has one or two rows too many (padding), they are left out at the start; if it has more, at the end. The
    option leaves out as many at the other end. If it has one or two rows too few, rows of zeros are added at the start;
    if it lacks more, the table is resampled. The option adds rows at the end, each the mean of all.
    """
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
    """Return the question for REASON, without options, with NUMBERS in its sentence, written as `50,257`."""
    return Question(reason, tuple(f"{number:,}" for number in numbers))


#: What each rule does, as the report says it, with the numbers of channels that the file and the model have.
RULES = {
    "repeat": "its channels were repeated in turn, times {have}/{wanted}",
    "sum": "its channels were summed to {wanted}",
    "mean": "each channel got the mean of all",
    "zeros": "the new channels were filled with zeros",
    "first": "only the first {wanted} were kept",
}


def _of_channels(wanted: Shape, have: Shape, expr: Expr) -> tuple[Expr, Question[Expr]] | None:
    """Return (the kernel [out, in, …] with another number of input channels, by the likeliest of `RULES`: "repeat" for
    more channels (in turn, scaled by have/wanted), "sum" for one, else the "first" ones; the question about it, with
    the results of the other rules that are possible as options). None if anything but the number of input channels
    differs, or if the kernel does not have three to five dimensions.

    Args:
        wanted, have: the sizes in the model and in the file, which differ in the second number.
        expr: the kernel of the file, of sizes HAVE.
    """
    if len(wanted) != len(have) or len(wanted) not in (3, 4, 5) or wanted[:1] + wanted[2:] != have[:1] + have[2:]:
        return None
    ways = _more(wanted, have[1], expr) if wanted[1] > have[1] else _fewer(wanted, have[1], expr)
    first, *others = ways
    words = RULES[first].format(have=have[1], wanted=wanted[1])
    named = str(have[1]), str(wanted[1]), words, ", ".join(others)
    return ways[first], Question(Reason.OTHER_CHANNELS, named, tuple(ways[name] for name in others))


def _more(wanted: Shape, have: int, x: Expr) -> dict[str, Expr]:
    """Return rule -> the kernel X, of HAVE input channels, with more channels (sizes WANTED), the likeliest first:
    "repeat" (its channels in turn, times HAVE / WANTED[1]), "zeros" (new channels of zeros at the end) and "mean" (each
    channel is the sum of all, divided by WANTED[1]). There is no "mean" for one channel, for which it is "repeat".
    """
    times, rest = divmod(wanted[1], have)
    if rest:
        turns = ex.cat(1, *[x] * times, ex.part(x, 1, 0, rest))
        repeated = ex.scale(turns, have / wanted[1])
    else:
        repeated = ex.repeat(x, 1, times)
    ways = {"repeat": repeated, "zeros": ex.cat(1, x, ex.zeros(wanted[0], wanted[1] - have, *wanted[2:]))}
    return ways if have == 1 else ways | {"mean": ex.repeat(ex.summed(x, 1), 1, wanted[1])}


def _fewer(wanted: Shape, have: int, x: Expr) -> dict[str, Expr]:
    """Return rule -> the kernel X, of HAVE input channels, with fewer channels (sizes WANTED), the likeliest first.

    To one channel: "sum" of all channels, "mean" of all, and the "first". To several, n: the "first" n, and "sum", the
    sum of slices of n channels each, of which the last is filled up with zeros.
    """
    n = wanted[1]
    first = ex.part(x, 1, 0, n)
    if n == 1:
        total = ex.summed(x, 1)
        return {"sum": total, "mean": ex.scale(total, 1 / have), "first": first}
    parts = [ex.part(x, 1, at, min(at + n, have)) for at in range(0, have, n)]
    if have % n:
        parts[-1] = ex.cat(1, parts[-1], ex.zeros(wanted[0], n - have % n, *wanted[2:]))
    return {"first": first, "sum": ex.add(*parts)}


def _ways(asked: Question[Expr], expr: Expr) -> dict[str, Expr]:
    """Return rule -> the expression that it made, for the question ASKED by `_of_channels` about EXPR: the rule of EXPR
    first, then those of the options. The texts of the question name them.
    """
    have, wanted, done, others = asked.named
    first = next(rule for rule, words in RULES.items() if words.format(have=have, wanted=wanted) == done)
    return dict(zip((first, *others.split(", ")), (expr, *asked.options), strict=False))


def by_rule(mapping: Mapping, rule: str) -> Mapping:
    """Return MAPPING with RULE, a key of RULES, applied to every entry with an open question about its number of input
    channels: it gets the kernel made by this rule (the present one or an option), and the question is answered. If the
    question has no options (of a bias beside such a kernel), the expression stays. Other entries stay.

    Raises:
        RuleError: the rule cannot make the channels of the model from those of the file, for one of these entries.
    """
    return mapping.with_entries([_by_rule(entry, rule) for entry in mapping.entries])


def _by_rule(entry: Entry, rule: str) -> Entry:
    """Return ENTRY with its expression made by RULE, its question about input channels answered, and the text of the
    answer as its evidence. Return ENTRY as it is if it has no open question about input channels, or no expression.

    The expression is the one of the present expression and the options that RULE made; RuleError if none is. If the
    question has no options, as for the bias beside such a kernel, the expression stays.
    """
    asked = next((q for q in entry.questions if q.is_open and q.reason is Reason.OTHER_CHANNELS), None)
    if asked is None or entry.expr is None:
        return entry
    # the bias beside the kernel, which is the same by every rule, has no options
    ways = _ways(asked, entry.expr) if asked.options else {rule: entry.expr}
    if rule not in ways:
        raise RuleError(
            f"the rule {rule!r} does not lead from {asked.named[0]} input channels to {asked.named[1]}",
            where=printable(entry.target, 100),
            hint=f"--input-channels {min(ways, key=list(RULES).index)}",
        )
    answer = f"input channels by the rule {rule!r}, as asked for"
    left = [q if q is not asked else replace(q, answer=answer) for q in entry.questions]
    return replace(entry, expr=ways[rule], questions=tuple(left), evidence=answer)


__all__ = ["RULES", "by_rule", "of_rows", "remedy"]
