"""The man page, made of the help of the commands: `python -m manual.man > manual/ckptool.1`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .commands import Told, told

_CODES = (
    ("0", "Yes, or the command did what you asked."),
    ("1", "No: files differ, a file is damaged or has a problem, a port is not certain."),
    ("2", "The command failed."),
    ("130, 141, 143", "Interrupted; the reader of a pipe closed it; terminated."),
)
_ENVIRONMENT = (
    ("NO_COLOR", "Use no colour. It wins over \\fB--color\\fR and FORCE_COLOR."),
    ("FORCE_COLOR", "Use colour where the output is no terminal."),
    ("CKPTOOL_DEBUG", "Show where an error came from."),
)


def man() -> str:
    """The page in roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    commands = list(told())
    yield '.\\" Made by `make man` of the help of the commands.'
    yield ".TH CKPTOOL 1"
    yield ".SH NAME"
    yield "ckptool \\- convert, inspect and port PyTorch checkpoints without running them"
    yield ".SH SYNOPSIS"
    yield ".B ckptool"
    yield r"\fICOMMAND\fR [\fIOPTIONS\fR] \fIFILE\fR ..."
    yield ".SH DESCRIPTION"
    yield _text("Open any PyTorch checkpoint, change it, and write it back at the speed of a file copy.")
    yield _text(
        "ckptool never runs anything inside a checkpoint. Writes are atomic: the output is complete or untouched."
    )
    yield ".SH COMMANDS"
    for one in commands:
        yield from _command(one)
    yield ".SH EXIT STATUS"
    yield from _terms(_CODES)
    yield ".SH ENVIRONMENT"
    for name, does in _ENVIRONMENT:
        yield from (".TP", f".B {name}", does)


def _command(one: Told) -> Iterator[str]:
    yield f'.SS "{_text(one.name)} {_text(one.usage)}"'
    for paragraph in one.paragraphs:
        yield from (_text(paragraph), ".PP")
    if one.examples:
        yield from (".RS", ".nf", *(_text(line) for line in one.examples), ".fi", ".RE")
    for heading, options in one.options.items():
        if heading == "General":  # the same in every command
            continue
        if heading:
            yield from (".PP", _text(f"{heading} options:"))
        yield from _terms(options)


def _terms(rows: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, does in rows:
        yield from (".TP", f"\\fB{_text(name)}\\fR", _text(does))


def _text(text: str) -> str:
    """TEXT as roff shows it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return re.sub(r"^(?=[.'])", r"\\&", text).replace("…", "...")


if __name__ == "__main__":
    print(man(), end="")
