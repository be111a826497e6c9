"""Several tensors of one list or one family of names on one side, which are one tensor on the other.

One mechanism for heads, paths and experts with a module each, tables of several fields in one, and stacked weights:
what stands apart is joined along a dimension, where the other side has as many tensors more of the joined
sizes as it has fewer of the parts. The order of a numbered list is kept; that of names is a question.
"""

from __future__ import annotations

from ..pieces import Canon
from .families import join_families
from .lists import join_lists
from .spelled_out import count_spelled, line_up, turn_spelled


def join_parts(one: Canon, other: Canon) -> None:
    """Join what stands apart on one side, where the other side has it in one tensor."""
    turn_spelled(one, other)
    line_up(one, other)
    count_spelled(one, other)
    join_lists(one, other)
    while join_families(one, other):  # what was joined is no longer among the tensors of its parts' sizes
        pass


__all__ = ["join_parts"]
