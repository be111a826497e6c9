"""The rows of a weight, rearranged together with its bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import expression as ex
from ..expression import Expr

#: Most slices that a change of order may be written in.
_RUNS = 64
#: Usual numbers of rows of a head, and of heads, the likeliest first.
HEAD_SIZES = (64, 128, 32, 96, 80, 16, 8, 4, 2, 12, 24, 6)
HEAD_COUNTS = (2, 4, 8, 12, 16, 3, 6, 24, 32, 1, 5, 10)


def columns(x: Expr | None, order: Sequence[int], dim: int) -> Expr | None:
    """Return the expression X with the elements along DIM in another order: ORDER has their present indices, so that
    element n of the result is element ORDER[n] of X. X itself if the order stays. None if X is None, or if the result
    would join more than 64 slices and is no `flatten` of columns (`_flattened`).
    """
    if x is None or list(order) == list(range(len(order))):
        return x
    runs: list[tuple[int, int]] = []
    for place in order:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    if len(runs) > 4 and dim == 1 and (flat := _flattened(x, list(order))) is not None:
        return flat
    if len(runs) > _RUNS:
        return None
    return ex.cat(dim, *(ex.part(x, dim, start, stop) for start, stop in runs))


def _flattened(x: Expr, order: list[int]) -> Expr | None:
    """Return the expression X with its columns in ORDER (their present indices) as one `flatten` operation. None if
    ORDER does not turn flattened features with their channels first (channel 0 at all places, then channel 1 …) into
    those with their channels last, or the other way.
    """
    size = len(order)
    for c in (c for c in range(2, size) if size % c == 0):
        n = size // c
        if order == [ch * n + i for i in range(n) for ch in range(c)]:
            return ex.flatten(x, c, 1, n, "nhwc")
        if order == [i * c + ch for ch in range(c) for i in range(n)]:
            return ex.flatten(x, c, 1, n, "nchw")
    return None


@dataclass(frozen=True, slots=True)
class Rows:
    """A weight and its bias as expressions over keys of the source, and the number of their rows. An expression is None
    if there is none or it is not known.
    """

    weight: Expr | None
    bias: Expr | None
    rows: int

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows from START to STOP - 1, of the weight and of the bias."""
        return self._each(stop - start, lambda x: ex.part(x, 0, start, stop))

    def of_heads(self, heads: int, n: int, index: int) -> Rows:
        """Return part INDEX of the N equal parts that each of HEADS heads has, for rows that hold the parts head by
        head: all rows of the first head, then the second.
        """
        return self._each(self.rows // n, lambda x: ex.of_heads(x, heads, n, index))

    def rotary(self, heads: int, kind: str) -> Rows:
        """Return the rows with those of each of HEADS heads in the order KIND of a rotary embedding ("half" or
        "interleaved"), from the other of the two orders.
        """
        return self._each(self.rows, lambda x: ex.rotary(x, heads, kind))

    def _each(self, rows: int, what: Callable[[Expr], Expr]) -> Rows:
        """Return what WHAT makes of the weight and of the bias, with the number ROWS of rows; None stays None."""
        weight = None if self.weight is None else what(self.weight)
        return Rows(weight, None if self.bias is None else what(self.bias), rows)


def place_of(rows: Rows) -> tuple[str, int]:
    """Return (expression as text, first row) for ROWS whose weight is a slice of rows of an expression, to sort them
    by: ("a.weight", 8) for rows 8 to 15 of `a.weight`. ("", 0) for other rows, also for all rows of a weight.
    """
    x = rows.weight
    cut = None if x is None else ex.rows_cut(x)
    return ("", 0) if cut is None else (str(cut[0]), cut[1])


def joined(rows: Sequence[Rows]) -> Rows:
    """Return ROWS, which have weights, concatenated, as one. Without a bias if one of them has none."""
    weights = [r.weight for r in rows if r.weight is not None]
    biases = [r.bias for r in rows if r.bias is not None]
    bias = ex.cat(0, *biases) if len(biases) == len(rows) else None
    return Rows(ex.cat(0, *weights), bias, sum(r.rows for r in rows))


def by_heads(heads: int, rows: Sequence[Rows]) -> Rows:
    """Return ROWS, parts of equal size, joined into one head by head: the first of HEADS heads of each part, then the
    second of each. Without a bias if one of them has none.
    """
    weights = tuple(r.weight for r in rows if r.weight is not None)
    biases = tuple(r.bias for r in rows if r.bias is not None)
    bias = ex.by_heads(heads, *biases) if len(biases) == len(rows) else None
    return Rows(ex.by_heads(heads, *weights), bias, sum(r.rows for r in rows))


def turned(rows: Sequence[Rows], chosen: Sequence[int], head: int, kind: str) -> list[Rows]:
    """Return ROWS with the rows of queries and keys in the order KIND of a rotary embedding ("half" or "interleaved"),
    from the other of these two orders, for heads of HEAD rows. CHOSEN has the indices of queries and keys in ROWS;
    others stay. If CHOSEN is empty, ROWS has one element, which holds queries, keys and values, a third each.
    """
    if chosen:
        return [r.rotary(r.rows // head, kind) if i in chosen else r for i, r in enumerate(rows)]
    third = rows[0].rows // 3
    q, k, v = (rows[0].part(i * third, (i + 1) * third) for i in range(3))
    return [joined([q.rotary(third // head, kind), k.rotary(third // head, kind), v])]


__all__ = ["HEAD_COUNTS", "HEAD_SIZES", "Rows", "by_heads", "columns", "joined", "place_of", "turned"]
