"""What `--json` and `--json-lines` print: one document, or a line for each file, with what failed and why.

Text is ASCII, so that no key can talk to the terminal. The JSON Schemas of the documents are in `schemas/`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from ..errors import CheckpointError


class Documents:
    """The reports of a command on several files: printed as lines while it works, or as one document at its end.

    Args:
        command: its name.
        as_json: print one document.
        as_lines: print a line for each file, when it is done.
    """

    def __init__(self, command: str, *, as_json: bool, as_lines: bool) -> None:
        self._command = command
        self._lines = as_lines
        self._files: list[dict[str, Any]] = []
        self._errors: list[dict[str, Any]] = []
        #: Whether anything is printed as JSON.
        self.wanted = as_json or as_lines

    def add(self, report: dict[str, Any]) -> None:
        """One more file."""
        if self._lines:
            _print_line({"ckptool": 1, "command": self._command, **report})
        elif self.wanted:
            self._files.append(report)

    def fail(self, error: BaseException, source: str = "") -> None:
        """One more file that could not be done."""
        entry = as_entry(error, source)
        if self._lines:
            _print_line({"ckptool": 1, "command": self._command, "error": entry})
        elif self.wanted:
            self._errors.append(entry)

    def end(self, **more: Any) -> None:
        """Print the document, with what else it holds."""
        if self.wanted and not self._lines:
            print_json(self._command, {"files": self._files, **more}, self._errors)


def print_json(command: str, fields: dict[str, Any], errors: Sequence[dict[str, Any]] = ()) -> None:
    """One document of JSON on stdout."""
    click.echo(json.dumps({"ckptool": 1, "command": command, **fields, "errors": list(errors)}, indent=2))


def print_failure(argv: Sequence[str], commands: Callable[[str], bool], error: BaseException) -> None:
    """For a command that was typed with --json or --json-lines: print what kept it from doing anything.

    Args:
        argv: what was typed.
        commands: whether a word is the name of a command.
        error: what was raised.
    """
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    command = next((word for word in words if commands(word)), "")
    if "--json-lines" in words:
        _print_line({"ckptool": 1, "command": command, "error": as_entry(error)})
    elif "--json" in words:
        print_json(command, {"files": []} if command in _OF_FILES else {}, [as_entry(error)])


#: Commands whose document has a list of files.
_OF_FILES = ("inspect", "scan", "verify")


def as_entry(error: BaseException, source: str = "") -> dict[str, Any]:
    """What failed: which kind of error, where, what, evidence and hint, as the line on stderr says it."""
    entry: dict[str, Any] = {"error": type(error).__name__, "where": source, "what": "", "evidence": [], "hint": None}
    if isinstance(error, CheckpointError):
        where = entry["where"] or error.where
        return entry | {"where": where, "what": error.what, "evidence": list(error.evidence), "hint": error.hint}
    if isinstance(error, click.ClickException):
        return entry | {"what": error.format_message()}
    if isinstance(error, OSError) and error.errno is not None:
        name = error.filename.decode(errors="replace") if isinstance(error.filename, bytes) else error.filename
        what = os.strerror(error.errno)
        return entry | {"where": source or str(name or ""), "what": what, "evidence": [errno.errorcode[error.errno]]}
    return entry | {"what": str(error)[:200]}


def _print_line(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, separators=(",", ":")))
