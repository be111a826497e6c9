"""Evidence: what told a unit from its look-alikes. Rules read its kind; the report prints its text."""

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
    NAME_ALONG = "named like the layers along its branch"
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
    GRAPHS = "its place in the graphs of both codes"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence, shared by all units that it splits off from a cell.

    Attributes:
        kind: the kind of evidence.
        order: the name of the order that it comes from ("execution order"); "" if it comes from none.
    """

    kind: Kind
    order: str = ""

    def __str__(self) -> str:
        return self.kind.value.format(self.order)

    @property
    def is_order(self) -> bool:
        """Return whether this evidence comes from the order of registration or of execution: a rank there, or
        neighbours.
        """
        return self.kind in (Kind.RANK, Kind.BETWEEN, Kind.AFTER, Kind.BEFORE, Kind.FOLLOWS)

    @property
    def is_rank(self) -> bool:
        """Return whether this evidence is a place among look-alikes, in an order or by their numbers; both sides have
        equally many of them.
        """
        return self.kind in (Kind.RANK, Kind.NUMBERS)

    @property
    def supports(self) -> bool:
        """Return whether this evidence alone is enough for a pair: equal or similar names, other blocks, a name after a
        companion or along a branch, the neighbours on both sides (BETWEEN), or the next place in a row (FOLLOWS). One
        neighbour alone (AFTER, BEFORE) is not enough.
        """
        return self.kind in _STRONG


_STRONG = frozenset(
    {
        Kind.NAME,
        Kind.SIMILAR_NAME,
        Kind.OTHER_BLOCKS,
        Kind.NAME_OF_COMPANION,
        Kind.NAME_ALONG,
        Kind.BETWEEN,
        Kind.FOLLOWS,
    }
)


class Told(NamedTuple):
    """One step in which a rule told a unit of the target from look-alikes, for `--explain`.

    Attributes:
        rule: the name of the rule.
        evidence: the text of its evidence in the report.
        among: how many units of the source were possible before.
        left: how many were possible after it.
        against: the paths of some units that it excluded.
    """

    rule: str
    evidence: str
    among: int
    left: int
    against: tuple[str, ...]
