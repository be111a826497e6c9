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
    """Fill position tables of videos from the source's table of frames and its table of the places in a frame: with
    the sum of two rows for each place of each frame, below the rows for a class token. Each is a question, with all
    frames of a place side by side as the option.

    Among the position tables of the source without a partner, exactly one has a word for frames in its name, one a word
    for places, and at most one a word for the class token. A position table of the model without a partner is filled if
    it has the sizes [rows for the class token + frames * places, width].
    """
    tables = [u for u in filling.matching.free_sources if label_of(u, "embedding") == "position"]
    said = {axis: [u for u in tables if not words.isdisjoint(u.words)] for axis, words in _AXES.items()}
    if [len(said["frames"]), len(said["places"])] != [1, 1] or len(said["class"]) > 1:
        return
    frames, places = (said[axis][0].main for axis in ("frames", "places"))
    first = [u.main for u in said["class"]]
    if {prod(p.shape[:-2]) for p in (frames, places, *first)} != {1}:
        return
    n, m, width = frames.shape[-2], places.shape[-2], frames.shape[-1]
    wanted = sum(p.shape[-2] for p in first) + n * m, width
    for t in filling.matching.free_targets:
        is_table = label_of(t, "embedding") == "position" and squeezed(t.main.shape) == wanted
        if not is_table or t.main.name in filling.holes or places.shape[-1] != width:
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
    """Return TIMES copies of X side by side along dimension DIM, bit for bit: `repeat` divides by the number, which is
    exact for 2 ** n.
    """
    enough = float(2 ** (times - 1).bit_length())
    return ex.part(ex.scale(ex.repeat(x, dim, int(enough)), enough), dim, 0, times)
