"""What speaks against being sure: a sentence for people, and for rules that take doubts back what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .expression import Expr


class About(Enum):
    """What a doubt is about, so that a later rule can settle it, whichever rule raised it."""

    #: Which of several look-alikes it is, by orders alone. What excludes every swap by other means settles it.
    ORDER = auto()
    #: Which of equal parts of the model it is in, by orders. What excludes every swap of single layers settles it.
    PARTS = auto()
    #: From which end equal parts are counted, which no swap of single layers settles.
    COUNT = auto()
    #: How a matrix stands in the code: with its inputs or its outputs first.
    TURNED = auto()
    #: How parts stand inside of a fused projection, which does not matter where it is put together again.
    LAYOUT = auto()
    #: All else, which nothing settles.
    ELSE = auto()


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason for which something is a guess. As a text it is the sentence that the report prints.

    Attributes:
        reason: the sentence; what is equal has one reason.
        about: what it is about.
        named: what stands for `{}` in the sentence, if it speaks of something by name.
        rival: the expression that is as likely, where the doubt is about how a tensor is made.
    """

    reason: str
    about: About = About.ELSE
    named: str = ""
    rival: Expr | None = None

    def __str__(self) -> str:
        return self.reason.replace("{}", self.named) if self.named else self.reason

    @property
    def of_parts(self) -> bool:
        """Whether it is about whole parts of the model, which no exchange of two layers settles."""
        return self.about in (About.PARTS, About.COUNT)
