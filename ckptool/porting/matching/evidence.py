"""What told a unit from its look-alikes. Rules ask for the kind of evidence; the report prints its text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Kinds of evidence, each with its text in the report, where `{}` stands for an order."""

    NAME = "equal names"
    SIMILAR_NAME = "similar names"
    WORDS = "words in the names"
    WORDS_BESIDE = "words told apart beside it"
    NAME_OF_ONE_BEFORE = "named after the one before it"
    NAME_OF_COMPANION = "named after what it stands with"
    TENSORS = "which tensors they hold"
    SCOPE = "the modules around it"
    CLASS = "other modules of its class"
    OTHER_BLOCKS = "other blocks"
    SERIES = "others of its series"
    SERIES_BESIDE = "the series beside it"
    NUMBERS = "the numbers in the names"
    RANK = "{}"
    BETWEEN = "between the same neighbours in {}"
    AFTER = "after the same neighbour in {}"
    BEFORE = "before the same neighbour in {}"
    FOLLOWS = "follows the one before it in {}"
    EXCHANGED = "exchanged, for all that speaks for it"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence, which is the same for all units of a cell that it splits off.

    Attributes:
        kind: what kind it is.
        order: the order that it comes from ("execution order"), if it is of a kind that has one.
    """

    kind: Kind
    order: str = ""

    def __str__(self) -> str:
        return self.kind.value.format(self.order)

    @property
    def is_order(self) -> bool:
        """Whether it comes from an order in which units are stored or used."""
        return self.kind in (Kind.RANK, Kind.BETWEEN, Kind.AFTER, Kind.BEFORE, Kind.FOLLOWS)

    @property
    def is_rank(self) -> bool:
        """Whether it is a place among those that look alike, of which both sides have as many."""
        return self.kind in (Kind.RANK, Kind.NUMBERS)

    @property
    def supports(self) -> bool:
        """Whether it alone is enough for a pair: it comes from a name, or from what is on both sides of it."""
        return self.kind in _STRONG


_STRONG = frozenset(
    {Kind.NAME, Kind.SIMILAR_NAME, Kind.OTHER_BLOCKS, Kind.NAME_OF_COMPANION, Kind.BETWEEN, Kind.FOLLOWS}
)


class Told(NamedTuple):
    """What a rule told a unit of the target from.

    Attributes:
        rule: the row of the table.
        evidence: as the report prints it.
        among: how many units of the source it could have been before.
        left: how many after.
        against: some of those that it no longer can be.
    """

    rule: str
    evidence: str
    among: int
    left: int
    against: tuple[str, ...]
