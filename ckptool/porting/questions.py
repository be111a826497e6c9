"""What is not certain about a tensor: a question, with everything else that the tensor may be as options.

A rule that cannot be sure asks. A question has a reason, which is a row of the table in `reasons`, and options: units
while modules are matched, expressions once it is known how a tensor is made. Questions are only ever added, and
answered by what is learned later; none is taken back. An entry with an open question is a guess. The report words
questions, the mapping file lists their options, and a proof tries these before other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from .reasons import Reason, Topic

T = TypeVar("T")
S = TypeVar("S")

#: So many options of one question are kept.
MOST_OPTIONS = 8


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What a rule is not sure of.

    Attributes:
        reason: the row of the table that says why.
        named: what stands for each `{}` in its sentence.
        options: what else it may be, the likeliest first.
        answer: what settled it; an empty text while it is open.
    """

    reason: Reason
    named: tuple[str, ...] = ()
    options: tuple[T, ...] = ()
    answer: str = ""

    def __str__(self) -> str:
        return self.reason.says.format(*self.named)

    @property
    def is_open(self) -> bool:
        """Whether nothing has settled it."""
        return not self.answer

    @property
    def of_parts(self) -> bool:
        """Whether it is about whole parts of the model, which no exchange of two layers settles."""
        return self.reason.topic in (Topic.PARTS, Topic.COUNT)

    @property
    def asked(self) -> tuple[Reason, tuple[str, ...]]:
        """What makes two questions one, whatever their options are."""
        return self.reason, self.named

    def about(self, *options: T) -> Question[T]:
        """The same question with these options."""
        return replace(self, options=options)

    def translated(self, into: Callable[[T], S | None]) -> Question[S]:
        """The same question with what INTO makes of each option; those of which it makes nothing are left out."""
        made = tuple(new for option in self.options if (new := into(option)) is not None)
        return Question(self.reason, self.named, made, self.answer)


def ask(reason: Reason, *named: str) -> Question[T]:
    """An open question for a REASON, without options."""
    return Question(reason, named)


def ask_code(reason: Reason, *named: str, shows: str) -> Question[T]:
    """A question for a REASON that the source's code answers: SHOWS says what it does."""
    return Question(reason, named, answer=f"the source's code {shows}")


def still_open(questions: Iterable[Question[T]]) -> list[Question[T]]:
    """Those that nothing has settled."""
    return [question for question in questions if question.is_open]


def joined(questions: Iterable[Question[T]], more: Question[T]) -> list[Question[T]]:
    """QUESTIONS with one MORE; one that is open already gets its options."""
    found = list(questions)
    for place, question in enumerate(found):
        if question.is_open and more.is_open and question.asked == more.asked:
            options = dict.fromkeys((*question.options, *more.options))
            found[place] = replace(question, options=tuple(options)[:MOST_OPTIONS])
            return found
    return [*found, replace(more, options=more.options[:MOST_OPTIONS])]


def answered(questions: Sequence[Question[T]], topic: Topic | None, answer: str) -> list[Question[T]]:
    """QUESTIONS of which the open ones of a TOPIC, or all if None, have this ANSWER."""
    return [
        replace(one, answer=answer) if one.is_open and topic in (None, one.reason.topic) else one for one in questions
    ]


__all__ = ["Question", "Reason", "Topic", "answered", "ask", "ask_code", "joined", "still_open"]
