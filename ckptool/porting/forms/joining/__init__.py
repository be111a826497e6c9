"""Join several tensors of one side that are one tensor on the other side.

Examples are heads, paths and experts with a module each, tables of several fields in one, and stacked weights. Tensors
are joined along a dimension if the other side has as many more tensors of the joined sizes as it has fewer of the
parts. A numbered list keeps its order; the order of names is a question.
"""

from __future__ import annotations

from ..pieces import Canon
from .families import join_families
from .join import SizeCounts
from .joined_modules import count_spelled, line_up, turn_spelled, unwrap
from .lists import join_lists
from .twins import join_twins


def join_parts(one: Canon, other: Canon) -> None:
    """Join tensors of ONE that are one tensor on the side OTHER, such as matrices of single heads: lists first, then
    twins (modules of a block with equal layers), then families (tensors of one module), families again and again until
    none is left to join. Both sides are changed.

    Before, bare parameters of OTHER that hold such joined rows with inputs first are transposed (`turn_spelled`).
    Nothing more is done if both sides then have equally many tensors of each size. Else modules of ONE whose layers
    belong together are first moved into lists, or beside each other (`unwrap`, `count_spelled`, `line_up`).
    """
    turn_spelled(one, other)
    if SizeCounts(one, other).are_equal:
        return  # what is in parts on one side has other sizes on the other side
    unwrap(one, other)
    count_spelled(one, other)
    line_up(one, other)
    join_lists(one, other)
    join_twins(one, other)
    while join_families(one, other):  # what was joined is no longer among the tensors of its parts' sizes
        pass


__all__ = ["join_parts"]
