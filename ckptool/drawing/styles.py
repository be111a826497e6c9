"""Colour and weight in what a terminal shows, each with one meaning. Text stays plain until `switch(True)`."""

from __future__ import annotations

import re
from typing import Literal

Meaning = Literal["heading", "good", "bad", "warning", "command", "name", "faint"]

#: Meaning -> the attributes of ECMA-48 (SGR). Of the eight colours only, so that every palette and theme can show them.
_ATTRIBUTES: dict[Meaning, str] = {
    "heading": "1",
    "good": "32",
    "bad": "1;31",
    "warning": "33",
    "command": "36",
    "name": "1;36",
    "faint": "2",
}
_ESCAPE = re.compile("\x1b\\[[0-9;]*m")
_on = False
_always = False


def switch(on: bool, *, always: bool = False) -> None:
    """Let `paint` paint, or leave text as it is: the command line does so, for reports on a terminal.

    Args:
        on: paint.
        always: paint what goes into files and pipes, too.
    """
    global _on, _always
    _on, _always = on, always


def always() -> bool | None:
    """Whether colour goes into files and pipes, too, as `click.echo` takes it."""
    return _always or None


def paint(text: str, meaning: Meaning) -> str:
    """TEXT as the terminal shows this MEANING; the text itself while painting is off."""
    return f"\x1b[{_ATTRIBUTES[meaning]}m{text}\x1b[0m" if _on and text else text


def plain(text: str) -> str:
    """TEXT without colour and weight."""
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def width_of(text: str) -> int:
    """Columns that TEXT takes."""
    return len(plain(text))


def hinted(text: str) -> str:
    """TEXT of an error with its hint painted."""
    head, mark, hint = text.rpartition("\nHint: ")
    return f"{head}\n{paint('Hint:', 'heading')} {paint(hint, 'command')}" if mark else text
