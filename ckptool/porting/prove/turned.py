"""Inputs and outputs of one size that have changed places between the two models, and what that leaves in doubt.

If a model gives the mean where the source's code gives the variance, its outputs are equal but for their order. Either
the model returns them in another order, or the layers that make them were exchanged: nothing in the outputs shows
which. The same is true of inputs.
"""

from __future__ import annotations

from ..mapping import Entry
from ..questions import Reason, ask
from .flow import Flow


def doubt_turned(entries: dict[str, Entry], seen: Flow, reason: Reason) -> dict[str, Entry]:
    """Return ENTRIES with a question about each key that serves some of the inputs or outputs, and not all."""
    ends = _ends(seen) if reason is Reason.OUTPUTS_TURNED else _starts(seen)
    some = {key for at, reached in enumerate(ends) if not all(reached) for key in seen.uses[at].keys}
    return {
        key: entry.asking(ask(reason)) if key in some and entry.expr is not None else entry
        for key, entry in entries.items()
    }


def _ends(seen: Flow) -> list[list[bool]]:
    """Return, for each use, whether each output depends on it; a use directly before an output counts as one that
    serves this output alone.
    """
    reached = [[use.index in behind for behind in seen.behind] for use in seen.uses]
    last = frozenset().union(*seen.behind)
    for use in reversed(seen.uses):
        for before in use.before:
            reached[before] = [a or b for a, b in zip(reached[before], reached[use.index], strict=True)]
    return [[*row, False] if at in last else row for at, row in enumerate(reached)]


def _starts(seen: Flow) -> list[list[bool]]:
    """Return, for each use, whether it depends on each of the first uses; each of these counts as one that serves its
    own input alone.
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
