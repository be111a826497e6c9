"""Doubts about inputs or outputs of one size that have changed places between the two models.

If a model gives the mean where the source's code gives the variance, its outputs are equal in another order. Either the
model returns them in that order, or the layers that make them were exchanged: no output shows which. The same is true
of inputs.
"""

from __future__ import annotations

from ..mapping import Entry
from ..questions import Reason, ask
from .flow import Flow


def doubt_turned(entries: dict[str, Entry], seen: Flow, reason: Reason) -> dict[str, Entry]:
    """Return ENTRIES with the question REASON (outputs turned, or inputs turned) about each key that serves some of the
    outputs (or inputs) of the model, and not all. SEEN is the flow of the model.
    """
    ends = _ends(seen) if reason is Reason.OUTPUTS_TURNED else _starts(seen)
    some = {key for at, reached in enumerate(ends) if not all(reached) for key in seen.uses[at].keys}
    return {
        key: entry.asking(ask(reason)) if key in some and entry.expr is not None else entry
        for key, entry in entries.items()
    }


def _ends(seen: Flow) -> list[list[bool]]:
    """Return a row for each use of weights: for each output, whether it depends on that use. The row of a use directly
    before an output has one False more, so that it is never all True.
    """
    reached = [[use.index in behind for behind in seen.behind] for use in seen.uses]
    last = frozenset().union(*seen.behind)
    for use in reversed(seen.uses):
        for before in use.before:
            reached[before] = [a or b for a, b in zip(reached[before], reached[use.index], strict=True)]
    return [[*row, False] if at in last else row for at, row in enumerate(reached)]


def _starts(seen: Flow) -> list[list[bool]]:
    """Return a row for each use of weights: for each use without a use before it, whether this use depends on that one.
    The row of such a first use has one False more, so that it is never all True.
    """
    first = [use.index for use in seen.uses if not use.before]
    reached: list[list[bool]] = []
    for use in seen.uses:
        row = [use.index == at for at in first]
        for before in use.before:
            row = [a or b for a, b in zip(row, reached[before], strict=True)]
        reached.append(row)
    return [[*row, False] if at in first else row for at, row in enumerate(reached)]


__all__ = ["doubt_turned"]
