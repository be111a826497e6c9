"""What is uncertain about a tensor: a question, with the things that the tensor may be instead as options.

A rule that is not sure asks a question. It has a reason, which is a row of the table in `reasons`, and options: units
while modules are matched, expressions later. Questions are only added, and may be answered by later evidence; none is
removed. An entry with an open question is a guess. The report prints questions, the mapping file lists their options,
and a proof tries these before other weights.
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
    """One uncertainty of a rule about one tensor or unit.

    Attributes:
        reason: why the rule asks: a member of `Reason`, with the sentence that the report prints.
        named: the text for each `{}` in the sentence.
        options: what else the tensor may be, the likeliest first: units or expressions.
        answer: the evidence that answered the question; an empty text while it is open.
    """

    reason: Reason
    named: tuple[str, ...] = ()
    options: tuple[T, ...] = ()
    answer: str = ""

    def __str__(self) -> str:
        return self.reason.says.format(*self.named)

    @property
    def is_open(self) -> bool:
        """Return whether nothing has answered the question."""
        return not self.answer

    @property
    def of_parts(self) -> bool:
        """Return whether the question is about whole blocks of the model: its topic is PARTS or COUNT. The swap of two
        layers alone says nothing about it.
        """
        return self.reason.topic in (Topic.PARTS, Topic.COUNT)

    @property
    def asked(self) -> tuple[Reason, tuple[str, ...]]:
        """Return (reason, names in its sentence). Two questions for which these are equal are one question, even if
        their options differ.
        """
        return self.reason, self.named

    def about(self, *options: T) -> Question[T]:
        """Return the same question with OPTIONS in place of its options."""
        return replace(self, options=options)

    def translated(self, into: Callable[[T], S | None]) -> Question[S]:
        """Return the same question with INTO(option) for each option, without those that are None."""
        made = tuple(new for option in self.options if (new := into(option)) is not None)
        return Question(self.reason, self.named, made, self.answer)


def ask(reason: Reason, *named: str) -> Question[T]:
    """Return an open question for REASON, with NAMED as the texts for the `{}` in its sentence, and without options."""
    return Question(reason, named)


def ask_code(reason: Reason, *named: str, shows: str) -> Question[T]:
    """Return an answered question for REASON, with NAMED as the texts for the `{}` in its sentence and without options.
    Its answer is that the source's code answers it: SHOWS says what that code does ("adds 1").
    """
    return Question(reason, named, answer=f"the source's code {shows}")


def still_open(questions: Iterable[Question[T]]) -> list[Question[T]]:
    """Return those of QUESTIONS that nothing has answered."""
    return [question for question in questions if question.is_open]


def joined(questions: Iterable[Question[T]], more: Question[T]) -> list[Question[T]]:
    """Return a list of QUESTIONS with MORE added at the end. But if MORE is open, and one of QUESTIONS with the same
    reason and names is open, too, nothing is added: the first such question gets the options of MORE after its own,
    each once. Of the question that was added or changed, only the first eight options are kept.
    """
    found = list(questions)
    for place, question in enumerate(found):
        if question.is_open and more.is_open and question.asked == more.asked:
            options = dict.fromkeys((*question.options, *more.options))
            found[place] = replace(question, options=tuple(options)[:MOST_OPTIONS])
            return found
    return [*found, replace(more, options=more.options[:MOST_OPTIONS])]


def answered(questions: Sequence[Question[T]], topic: Topic | None, answer: str) -> list[Question[T]]:
    """Return QUESTIONS, all in their order, with ANSWER as the answer of those that are open and of this TOPIC, or of
    all that are open if TOPIC is None. Their options stay; questions that were answered before keep their answer.
    """
    return [
        replace(one, answer=answer) if one.is_open and topic in (None, one.reason.topic) else one for one in questions
    ]


__all__ = ["Question", "Reason", "Topic", "answered", "ask", "ask_code", "joined", "still_open"]
