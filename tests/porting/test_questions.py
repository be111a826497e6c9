"""A question has a sentence for people, options to choose from, and an answer that is added."""

import string

import pytest

from ckptool.porting import expression as ex
from ckptool.porting.mapping import Entry
from ckptool.porting.questions import Question, Reason, Topic, answered, ask, joined, still_open

_A, _B, _C = ex.of("a"), ex.of("b"), ex.of("c")


def test_what_a_question_speaks_of_stands_in_its_sentence() -> None:
    assert str(ask(Reason.OTHER_SIZES, "a.weight", "[3, 4]")).endswith("a.weight [3, 4]")


def test_a_name_with_braces_is_no_place_for_another() -> None:
    assert "layers.{}" in str(ask(Reason.ONE_FOR_ALL, "layers.{}"))


@pytest.mark.parametrize("reason", Reason)
def test_every_sentence_is_plain_and_takes_names_in_order(reason: Reason) -> None:
    fields = [name for _, name, _, _ in string.Formatter().parse(reason.says) if name is not None]
    assert set(fields) <= {""}
    assert reason.says == reason.says.strip(" .\n") != ""


@pytest.mark.parametrize("reason", Reason)
def test_only_what_is_about_equal_parts_is_of_parts(reason: Reason) -> None:
    assert ask(reason).of_parts == (reason.topic in {Topic.PARTS, Topic.COUNT})


def test_a_question_that_is_asked_twice_has_all_options() -> None:
    once = joined([], Question(Reason.ONLY_NUMBERS, (), (_A,)))
    assert joined(once, Question(Reason.ONLY_NUMBERS, (), (_A, _B))) == [Question(Reason.ONLY_NUMBERS, (), (_A, _B))]


def test_an_answered_question_can_be_asked_again() -> None:
    settled = answered([Question(Reason.ONLY_NUMBERS, (), (_A,))], Topic.ORDER, "no swap fits")
    again = joined(settled, Question(Reason.ONLY_NUMBERS, (), (_B,)))
    assert [question.is_open for question in again] == [False, True]
    assert [question.options for question in still_open(again)] == [(_B,)]


def test_only_questions_of_the_topic_are_answered() -> None:
    asked = [ask(Reason.ONLY_NUMBERS), ask(Reason.ROTARY)]
    assert [q.reason for q in still_open(answered(asked, Topic.ORDER, "no swap fits"))] == [Reason.ROTARY]


def test_an_entry_is_a_guess_as_long_as_a_question_is_open() -> None:
    entry = Entry("x", (2,), _A).asking(Question(Reason.ROTARY, (), (_B,)))
    assert (entry.status, entry.rivals) == ("guessed", (_B,))
    settled = entry.settled("equal outputs")
    assert (settled.status, settled.doubts, settled.rivals, settled.evidence) == ("mapped", (), (), "equal outputs")
    assert [str(question) for question in settled.questions] == [Reason.ROTARY.says]


def test_a_trial_turns_what_an_entry_had_into_its_first_option() -> None:
    entry = Entry("x", (2,), _A).asking(Question(Reason.ROTARY, (), (_B, _C)))
    assert entry.tried(_B).rivals == (_A, _C)


def test_a_trial_of_what_was_certain_asks_whether_the_trial_is_right() -> None:
    tried = Entry("x", (2,), _A).tried(_B)
    assert (tried.status, tried.doubts, tried.rivals) == ("guessed", (Reason.FOUND_BY_TRIAL.says,), (_A,))
