"""A question has a sentence for people, options to choose from, and an answer that is added."""

import string
from dataclasses import replace
from pathlib import Path

import pytest
from sides import signature, wanted

from ckptool import porting
from ckptool.errors import Doubtful
from ckptool.model_code.signature import Facts, Signature
from ckptool.porting import expression as ex
from ckptool.porting.expression import Expr, Shape
from ckptool.porting.holes.filling import Filled
from ckptool.porting.holes.remedies import remedy
from ckptool.porting.mapping import Entry
from ckptool.porting.port import port
from ckptool.porting.questions import Question, Reason, Topic, answered, ask, joined, still_open
from ckptool.porting.refusal import require_accepted

_A, _B, _C = ex.of("a"), ex.of("b"), ex.of("c")


def test_what_a_question_speaks_of_stands_in_its_sentence() -> None:
    assert "a.weight with sizes [3, 4]" in str(ask(Reason.OTHER_SIZES, "a.weight", "[3, 4]"))


def test_a_name_with_braces_is_no_place_for_another() -> None:
    assert "layers.{}" in str(ask(Reason.ONE_FOR_ALL, "layers.{}"))


@pytest.mark.parametrize("reason", Reason)
def test_every_sentence_is_plain_and_takes_names_in_order(reason: Reason) -> None:
    fields = [name for _, name, _, _ in string.Formatter().parse(reason.says) if name is not None]
    assert set(fields) <= {""}
    assert reason.says == reason.says.strip(" .\n") != ""


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.topic is not Topic.LEFT])
def test_every_question_says_what_to_do_and_never_speaks_of_a_side(reason: Reason) -> None:
    advice = ("check ", "compare ", "accept ", "merge ", "join ", "choose ", "--at PATH", "remove ", "take ", "give ")
    assert any(one in reason.says.partition(";")[2] for one in advice)
    assert not any(one in reason.says for one in ("one side", "other side", "both sides", "which of the two "))


@pytest.mark.parametrize("reason", [reason for reason in Reason if "; check " in reason.says])
def test_a_check_ends_with_what_to_do_if_it_shows_the_other_thing(reason: Reason) -> None:
    after = reason.says.partition("; check ")[2]
    ends = (" if ", "if not", ", and correct ", ", and merge ", ", and save ", ", and exchange ", "with another ", "--")
    assert any(one in after for one in ends) or "(the alternative below)" in after


@pytest.mark.parametrize("way", ["change", "learn", "exchange"])
def test_what_changes_a_tensor_changes_what_may_be_in_its_place(way: str) -> None:
    filled = Filled(_A, "", [Question(Reason.SEVERAL_FIT, ("2",), (_B,)), Question(Reason.ROTARY, (), (_C,), "a name")])
    if way == "change":
        filled.change(ex.transpose)
    elif way == "learn":
        filled.learn(ex.transpose, Reason.FLATTENED, "a", "b", shows="turns it")
    else:
        filled.ask(Reason.INPUTS_FIRST, other=ex.transpose, exchange=True)
        assert filled.questions[-1].options == (_A,)
    assert filled.expr == ex.transpose(_A)
    assert [question.options for question in filled.questions[:2]] == [(ex.transpose(_B),), (ex.transpose(_C),)]


def test_a_refusal_shows_the_whole_advice_once() -> None:
    shapes = {f"{one}.weight": (4, 4) for one in ("a", "b")}
    mapping = port(signature(shapes), wanted(shapes))
    asked: Question[Expr] = ask(Reason.EQUALISED)
    doubted = replace(mapping, entries=tuple(e.asking(asked) for e in mapping.entries))
    with pytest.raises(Doubtful) as raised:
        require_accepted(doubted, [], [])
    first, second, *_ = raised.value.evidence
    assert first.endswith(str(asked))
    assert second.endswith("…")


def test_a_refusal_shows_one_of_the_keys_that_differ_in_numbers() -> None:
    mapping = port(signature({}), wanted({f"h.{n}.{leaf}": (4,) for n in (8, 9, 10, 100) for leaf in ("w1", "v")}))
    with pytest.raises(Doubtful) as raised:
        require_accepted(mapping, [], [])
    first, second, more, *_ = raised.value.evidence
    assert (first.split()[0], second.split()[0], more) == ("h.8.w1", "h.8.v", "… and 6 more")


def asked_of(source: Signature, target: Signature) -> set[Reason]:
    return {question.reason for entry in port(source, target).entries for question in entry.questions}


def test_equal_blocks_of_a_model_that_did_not_run_are_not_said_to_run_in_another_order() -> None:
    shapes = {f"{part}.{leaf}.weight": (4, 4) for part in ("one", "two") for leaf in ("a", "b")}
    others = {key.replace("one", "left").replace("two", "right"): shape for key, shape in shapes.items()}
    assert {Reason.PARTS_BY_REGISTRATION} <= asked_of(signature(shapes), wanted(others))
    assert Reason.PARTS_IN_ANOTHER_ORDER not in asked_of(signature(shapes), wanted(others))


def test_a_square_kernel_over_the_whole_width_is_no_matrix() -> None:
    (entry,) = port(signature({"a.weight": (4, 1, 5, 5)}), wanted({"a.weight": (4, 5, 5)})).entries
    assert [question.reason for question in entry.questions] == [Reason.SQUARE_KERNEL]
    assert str(entry.expr) == "transpose(reshape(a.weight, 4, 5, 5))"
    assert [str(option) for option in entry.questions[0].options] == ["reshape(a.weight, 4, 5, 5)"]


def test_vectors_to_which_code_adds_another_number_are_not_said_to_lie_around_0() -> None:
    def code(plus: float) -> Signature:
        made = wanted({"norm.weight": (4,)})
        return replace(made, entries={k: replace(e, facts=Facts(plus=plus)) for k, e in made.entries.items()})

    (entry,) = port(code(1.0), code(0.0)).entries
    assert str(entry.expr) == "shift(norm.weight, 1.0)"
    assert [str(question) for question in entry.questions] == [
        "the source's code adds 1 to this tensor before it uses it, and the model's code adds 0, so the difference was "
        "added to the tensor; check the forward of this layer in both codes: if both add the same number, take the "
        "plain tensor"
    ]


def test_only_weights_of_patches_are_said_to_be_of_patches() -> None:
    def asked(wanted: Shape, have: Shape) -> Reason | None:
        found = remedy(wanted, have, ex.of("a"), None)
        return None if found is None else found[1].reason

    assert asked((8, 3, 2, 2), (8, 12)) is asked((8, 12), (8, 3, 2, 2)) is Reason.PATCHES
    assert asked((8, 3, 1, 2, 2), (8, 3, 2, 2)) is asked((8, 12, 1, 1), (8, 3, 2, 2)) is Reason.RESHAPED


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


@pytest.mark.parametrize("evidence", ["equal outputs", ""])
def test_an_entry_is_a_guess_as_long_as_a_question_is_open(evidence: str) -> None:
    entry = Entry("x", (2,), _A).asking(Question(Reason.ROTARY, (), (_B,)))
    assert (entry.status, entry.rivals) == ("guessed", (_B,))
    settled = entry.settled(evidence)
    assert (settled.status, settled.doubts, settled.rivals, settled.evidence) == ("mapped", (), (), evidence)
    assert [str(question) for question in settled.questions] == [Reason.ROTARY.says]


def test_a_trial_turns_what_an_entry_had_into_its_first_option() -> None:
    entry = Entry("x", (2,), _A).asking(Question(Reason.ROTARY, (), (_B, _C)))
    assert entry.tried(_B).rivals == (_A, _C)


def test_a_trial_of_what_was_certain_asks_whether_the_trial_is_right() -> None:
    tried = Entry("x", (2,), _A).tried(_B)
    assert (tried.status, tried.doubts, tried.rivals) == ("guessed", (Reason.FOUND_BY_TRIAL.says,), (_A,))


@pytest.mark.parametrize("why", [ask(Reason.NOTHING), ask(Reason.COMPUTED_OR_READ, "a")])
def test_a_trial_that_fills_a_key_answers_why_it_had_no_source(why: Question[Expr]) -> None:
    tried = Entry("x", (2,)).asking(why).tried(_A)
    assert (tried.status, tried.doubts, tried.rivals) == ("guessed", (Reason.FOUND_BY_TRIAL.says,), ())
    assert tried.tried(_B).rivals == (_A,)


def test_every_reason_is_asked_for_somewhere() -> None:
    package = Path(porting.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    assert [reason.name for reason in Reason if f"Reason.{reason.name}" not in text] == []
