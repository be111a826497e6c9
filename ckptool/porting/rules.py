"""What a row of a table of rules is: a step towards the common form, or something that a rule can tell.

The rows stand beside the code that takes them: `forms.steps`, `matching.telling_apart`, `rivals` and
`holes`. `tables` lists all of them. Their order and their strength are data in each row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

#: What a row does.
Run = TypeVar("Run", covariant=True)


class Strength(Enum):
    """How much a rule says by itself."""

    CERTAIN = "certain by itself"
    LIKELY = "asked where nothing that is certain tells more"
    OPEN = "always ends as a question"


@dataclass(frozen=True, slots=True)
class Rule(Generic[Run]):
    """A row of a table.

    Attributes:
        name: what it is called in the documentation and by `--explain`.
        order: rows are taken from small to large.
        says: what it did or found, as a sentence for users.
        why: why that is right, or why it stands there.
        run: what does it.
        strength: how much it says by itself.
        when: in which case it is asked, in words; always, if empty.
    """

    name: str
    order: int
    says: str
    why: str
    run: Run = field(repr=False, compare=False)
    strength: Strength = Strength.CERTAIN
    when: str = ""


Row = TypeVar("Row")


def in_order(*rows: Rule[Row]) -> tuple[Rule[Row], ...]:
    """The rows from small to large numbers, each of which is there once."""
    found = tuple(sorted(rows, key=lambda row: row.order))
    assert len({row.order for row in found}) == len({row.name for row in found}) == len(found), "two rows in one place"
    return found


__all__ = ["Rule", "Strength", "in_order"]
