"""Fill the positions of a video from a table of frames and a table of the places in a frame."""

from __future__ import annotations

from math import prod

from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import Piece, squeezed
from ..matching.units import label_of
from ..questions import Question, Reason
from .filling import Filled, Filling


def positions_of_axes(filling: Filling) -> None:
    """Fill each position table of the model for videos from the source's table of frames and its table of the places in
    a frame. The rows of the filled table are those for a class token, if the source has a table of these; then, frame
    after frame, the sum of the frame's row and the place's row for each place. This is a question; the option has the
    sums of all frames for each place. The places are noted as the source.

    Nothing is done unless, of the position tables of the source without a partner (by the label of their names),
    exactly one has a word for frames in its name, another one a word for places, and at most one, a third, a word for
    the class token. These two or three tables have one width, and no more than one table of rows each (dimensions
    before the last two are of size 1).

    A position table of the model without a partner is filled if it is not filled yet and has, without sizes of 1, the
    sizes [rows for the class token + frames * places, width].
    """
    tables = [u for u in filling.matching.free_sources if label_of(u, "embedding") == "position"]
    said = {axis: [u for u in tables if not words.isdisjoint(u.words)] for axis, words in _AXES.items()}
    units = [u for axis in ("frames", "places", "class") for u in said[axis]]
    if [len(said["frames"]), len(said["places"])] != [1, 1] or len(said["class"]) > 1 or len(set(units)) < len(units):
        return
    frames, places, *first = (u.main for u in units)
    width = frames.shape[-1]
    pieces = (frames, places, *first)
    if any(len(p.shape) < 2 or p.shape[-1] != width or prod(p.shape[:-2]) != 1 for p in pieces):
        return
    wanted = sum(p.shape[-2] for p in first) + frames.shape[-2] * places.shape[-2], width
    for t in filling.matching.free_targets:
        is_table = label_of(t, "embedding") == "position" and squeezed(t.main.shape) == wanted
        if not is_table or t.main.name in filling.holes:
            continue
        rows = [ex.reshape(p.expr, (p.shape[-2], width), p.shape) for p in first]
        ways = [
            ex.reshape(ex.cat(0, *rows, grid), t.main.shape, wanted)
            for grid in (_sums(frames, places), _sums(places, frames))
        ]
        asked = Question(Reason.POSITIONS_OF_AXES, (), (ways[1],))
        filling.put(t.main, (t, said["places"][0]), Filled(ways[0], "the positions along each axis", [asked]))


_AXES = {
    "frames": frozenset({"temporal", "time", "frame"}),
    "places": frozenset({"spatial", "space"}),
    "class": frozenset({"class", "cls"}),
}


def _sums(outer: Piece, inner: Piece) -> Expr:
    """Return the sums of each row of OUTER and each row of INNER, all sums of one row of OUTER before those of the
    next: [rows of OUTER * rows of INNER, width].
    """
    n, m, width = outer.shape[-2], inner.shape[-2], outer.shape[-1]
    across = _copies(ex.reshape(outer.expr, (n, 1, width)), 1, m)
    down = _copies(ex.reshape(inner.expr, (1, m, width)), 0, n)
    return ex.reshape(ex.add(across, down), (n * m, width))


def _copies(x: Expr, dim: int, times: int) -> Expr:
    """Return TIMES copies of X side by side along dimension DIM, bit for bit. `repeat` divides by the number of copies,
    which is exact for a power of two: as many copies as the next such power are made and multiplied by it, and the
    first TIMES are cut out.
    """
    enough = float(2 ** (times - 1).bit_length())
    return ex.part(ex.scale(ex.repeat(x, dim, int(enough)), enough), dim, 0, times)
