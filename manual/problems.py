"""A page for each kind of error message: the lessons that `ckptool doctor --error` knows, with messages as printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptool.reports.diagnosis.lessons import LESSONS, Lesson
from tests.reports.messages import MESSAGES

#: What stands for a file, a file to write and a key in a lesson -> what a page shows.
_NAMES = {"{file}": "model.pth", "{out}": "fixed.pth", "{key}": "state_dict"}
_LONGEST = 90


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of each page."""
    yield "index", index()
    for lesson in LESSONS:
        yield lesson.name, page(lesson)


def index() -> str:
    """The list of all messages."""
    lines = ["# Problems, by their error text", ""]
    lines += ["Search this site for a part of your message, or give the whole message to ckptool:", ""]
    lines += ["```sh", "ckptool doctor model.pth --error 'the message'", "```", ""]
    lines += [f"- [`` {title(lesson)} ``]({lesson.name}.md)" for lesson in LESSONS]
    return "\n".join([*lines, ""])


def title(lesson: Lesson) -> str:
    """The line of the first message that the lesson is about, cut where it is long."""
    whole = MESSAGES[lesson.name][0]
    lines = [line.strip() for line in whole.splitlines()]
    line = next((line for line in lines if re.search(lesson.pattern, line, re.IGNORECASE)), lines[-1])
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rpartition(' ')[0]} …"


def page(lesson: Lesson) -> str:
    """The page about a lesson, in Markdown."""
    means = lesson.means[0].upper() + lesson.means[1:]
    lines = [f"# `` {title(lesson)} ``", "", _plain(means), ""]
    if lesson.commands:
        lines += ["## What helps", "", "```sh", *(_named(command) for command in lesson.commands), "```", ""]
    if lesson.actions:
        lines += [] if lesson.commands else ["## What helps", ""]
        lines += [f"- {_plain(_named(action))}" for action in lesson.actions]
        lines += [""]
    lines += ["## Messages of this kind", ""]
    for message in MESSAGES[lesson.name]:
        lines += ["```text", *message.splitlines(), "```", ""]
    return "\n".join(lines)


def _named(text: str) -> str:
    for word, name in _NAMES.items():
        text = text.replace(word, name)
    return text


def _plain(text: str) -> str:
    return re.sub(r"([*_<>\[\]])", r"\\\1", text) if "`" not in text else text
