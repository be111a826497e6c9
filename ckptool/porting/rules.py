"""A row of a table of rules: a step towards the common form, or a rule that gives evidence.

The rows are in the modules that use them: `forms.step_table`, `matching.telling_apart`, `rivals` and `holes`. `tables`
lists all of them. Order and strength are data in each row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

#: What a row does.
Run = TypeVar("Run", covariant=True)


class Strength(Enum):
    """How much a rule proves by itself; the value says when its result becomes a question."""

    CERTAIN = "its result is certain"
    LIKELY = "its result becomes a question if nothing certain confirms it"
    OPEN = "its result is always a question, which other evidence may answer"


@dataclass(frozen=True, slots=True)
class Rule(Generic[Run]):
    """A row of a table.

    Attributes:
        name: its name in the documentation and for `--explain`.
        order: rows are used from small to large numbers.
        says: what it did or found, as a sentence for users.
        why: why that is right, or why it has this place in the order.
        run: the function that does it; the table says what it takes and returns.
        strength: how much it proves by itself.
        when: the case in which it is used, in words for users; always, if empty.
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
    """Return ROWS sorted by `order`, from small to large. An assertion fails if two have one number or one name."""
    found = tuple(sorted(rows, key=lambda row: row.order))
    assert len({row.order for row in found}) == len({row.name for row in found}) == len(found), "two rows in one place"
    return found


__all__ = ["Rule", "Strength", "in_order"]
