"""`ckptool doctor --error`: messages are recognised, and what is advised can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest
from messages import MESSAGES

import ckptool
from ckptool.cli import cli
from ckptool.reports.diagnosis.first_bytes import FIRST_BYTES, first_byte
from ckptool.reports.diagnosis.lessons import LESSONS, lessons_for


def test_every_lesson_has_its_messages_and_every_message_its_lesson():
    assert sorted(MESSAGES) == sorted(lesson.name for lesson in LESSONS)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MESSAGES.items() for text in texts])
def test_a_message_is_known_by_its_own_lesson_first(name, text):
    assert lessons_for(text)[0].name == name
    assert ckptool.explain(text)[0].name == name
    traceback = f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n{text}\n'
    assert lessons_for(traceback)[0].name == name


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_lesson_says_what_to_do_with_commands_that_can_be_typed(lesson):
    assert lesson.commands or lesson.actions or lesson.name == "nothing-missing"
    for command in lesson.commands:
        words = shlex.split(command.format(file="FILE", out="OUT", key="KEY"))
        assert words[0] == "ckptool"
        found = cli.get_command(click.Context(cli), words[1])
        assert found is not None, command
        found.make_context(words[1], words[2:])  # raises UsageError where a word is not understood


def test_every_message_that_heads_a_part_of_the_readme_is_known():
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (`.*`)$", text, re.MULTILINE)
    messages = [message for heading in headings for message in re.findall(r"`([^`]+)`", heading)]
    assert len(messages) >= 5
    assert [message for message in messages if not lessons_for(message)] == []


def test_what_is_no_known_message_is_not_explained():
    assert ckptool.explain("ValueError: something else") == []


@pytest.mark.parametrize("byte", FIRST_BYTES)
def test_the_first_byte_of_a_file_says_what_it_is(byte):
    shown = {10: "\\n", 13: "\\r", 0: "\\x00", 31: "\\x1f", 149: "\\x95"}.get(byte, chr(byte))
    for text in (f"invalid load key, '{shown}'.", f"Unsupported operand {byte}"):
        assert FIRST_BYTES[byte] in (first_byte(text) or ""), text


def test_an_unknown_first_byte_is_told_too():
    assert "0x58" in (first_byte("invalid load key, 'X'.") or "")


def test_the_file_is_put_into_the_commands():
    (found,) = ckptool.explain(MESSAGES["rezipped"][0], "my model.pth")
    assert found.commands == [("ckptool repair 'my model.pth' 'my model-fixed.pth'", "")]
