"""What was typed: arguments for code, options whose value may be left out, and the command itself, for hints."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

import click

from ..disk.addresses import is_url
from ..disk.documents import read_json, read_text, read_yaml
from ..disk.paths import beside, is_file, shell_path, shell_quote
from ..errors import Malformed, RuleError, printable
from .help import Command

#: Stands for the value of an option that was given without one.
ALL = "*"


class WithPatterns(Command):
    """A command with options whose value may be left out, and then means all: never a file that stands after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ARGS, with `*` for a value that was left out."""
        told = [
            f"{word}={ALL}" if word in ("--accept-guesses", "--partial") and _is_a_file(after) else word
            for word, after in zip(args, [*args[1:], ""], strict=False)
        ]
        return super().parse_args(ctx, told)


def _is_a_file(word: str) -> bool:
    return is_file(word) or word.partition(":")[0].endswith(".py")


#: Words of Python that are none of JSON.
_PYTHON = {"True": True, "False": False, "None": None, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def keyword_arguments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """The arguments NAME=VALUE for a class or factory: JSON, words of Python, else text."""
    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise RuleError(f"{printable(text)!r} is not NAME=VALUE", where=option, hint=f"{option} classes=10")
        found: Any = None
        try:
            found = None if value[:1] == "@" else read_json(value)
        except Malformed:
            if value[:1] in ("{", "[") and value[-1:] in ("}", "]"):
                what = f"{printable(value, 60)} is not JSON; a shell takes quotes away that are not quoted"
                raise RuleError(what, where=option, hint=f"{option} {name}='{{\"NAME\": VALUE}}'") from None
            found = _PYTHON.get(value, value)
        if value[:1] == "@":
            found = _object_in(value[1:])
        if isinstance(found, list):
            found = tuple(found)
        elif isinstance(found, dict):
            found = _Config(found)
        out[name] = found
    return out


def _object_in(path: str) -> Any:
    """What a file holds: JSON, or YAML by its ending."""
    return read_yaml(path) if path.endswith((".yaml", ".yml")) else read_json(read_text(path), path)


class _Config(dict[str, Any]):
    """An object of JSON whose entries are attributes, too, as those of configurations are."""

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__({key: _Config(one) if isinstance(one, dict) else one for key, one in entries.items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}") from None


def with_command(hint: str, command: click.Command, where: str = "") -> str:
    """A hint that is options, or another name in MODEL.py, as the whole command that was typed: to be pasted.

    Options that were typed with another value, or of which WHERE says that they are wrong, give way to those of the
    hint. A hint with words that stand for something (`--at PATH`), or with options of another command, stays.
    """
    if meant := re.fullmatch(r"did you mean (.+)\?", hint):
        if where.startswith("--"):  # the value of an option, which may stand in one word with it
            hint = f"{where} {meant[1]}   # {hint}"
        elif where in click.get_current_context().find_root().obj:
            name = "".join(shlex.split(meant[1])[:1])
            return f"{command_as_typed(swapped={where: name})}   # {hint}"
    place, colon, _ = hint.rpartition(":")
    for word in click.get_current_context().find_root().obj:
        if colon and word.rpartition(":")[0] == place:  # another name in the code of the model
            return command_as_typed(swapped={word: hint})
    told, mark, why = hint.partition("   # ")
    known = {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}
    try:
        words = shlex.split(told)
    except ValueError:
        return hint
    given: list[click.Option] = []
    rest = iter(words)
    for word in rest:
        name = word.partition("=")[0]
        if name not in known or (not known[name].is_flag and "=" not in word and next(rest, None) is None):
            return hint
        given.append(known[name])
    if not given or re.search(r"(?<![\w.-])[A-Z][A-Z_]+(?![\w.-])|…", told):
        return hint
    typed = [str(word).partition("=")[0] for word in click.get_current_context().find_root().obj]
    many = [one for one in given if one.multiple and (count := sum(map(typed.count, one.opts)))
            and (count > 1 or where not in one.opts)]  # fmt: skip
    if many:  # whether it goes beside them or in the place of one is for the user to see
        return hint
    flags = {name for one in given if one.is_flag for name in one.opts}
    added = [shell_quote(word) for word in words if not (word in flags and word in typed)]
    single = [one for one in given if not one.is_flag and (not one.multiple or where in one.opts)]
    return " ".join([command_as_typed(without=[name for one in single for name in one.opts]), *added]) + mark + why


def with_free_name(hint: str, where: str) -> str:
    """The command as it was typed, with a name that nothing has in place of WHERE, a target that exists.

    The command with --overwrite would destroy the target where it is pasted without being read.
    """
    words = click.get_current_context().find_root().obj
    if where not in words or is_url(where):
        return hint
    name = "".join(shlex.split(beside(where, "new")))
    last = len(words) - 1 - words[::-1].index(where)  # IN may be the same file
    typed = [*words[:last], name, *words[last + 1 :]]
    return f"ckptool {' '.join(map(shell_quote, typed))}   # or add --overwrite to replace {shell_path(where)}"


def command_as_typed(without: Sequence[str] = (), swapped: dict[str, str] | None = None) -> str:
    """The command as it was typed, to be shown with what would accept the rest added.

    Args:
        without: options that are left out, with their values.
        swapped: words that take the place of others.
    """
    words: list[str] = []
    dropped = False
    for word in click.get_current_context().find_root().obj:
        if dropped and without:
            dropped = False
            continue
        name, equals, _ = word.partition("=")
        if name in without:
            dropped = not equals and name not in ("--prove", "--patch", "-n", "--dry-run")
            continue
        words.append((swapped or {}).get(word, word))
    if "--" in words:  # what is added is to be an option again
        at = words.index("--")
        words[at:] = [f"./{word}" if word.startswith("-") else word for word in words[at + 1 :]]
    return "ckptool " + " ".join(map(shell_quote, words))
