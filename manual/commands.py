"""The commands as their help tells them: the one reading of click that pages and the man page are made of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

from ckptool.cli import _GROUPS, cli


@dataclass(frozen=True)
class Told:
    """What the help of a command says.

    Attributes:
        name: the command.
        group: what it is for: "Look", "Fix", "Change", …
        usage: its arguments, as the help shows them: `[OPTIONS] IN [OUT]`.
        summary: what it does, in a line.
        paragraphs: what else it says, a text each.
        examples: command lines.
        options: heading -> (names, what the option does).
    """

    name: str
    group: str
    usage: str
    summary: str
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]
    options: dict[str, list[tuple[str, str]]]


def told() -> Iterator[Told]:
    """Every command, in the order in which `ckptool --help` lists them."""
    for group, commands in _GROUPS.items():
        for name, (_, summary) in commands.items():
            command = cli.get_command(click.Context(cli), name)
            assert command is not None, name
            yield _told(name, group, summary, command)


def _told(name: str, group: str, summary: str, command: click.Command) -> Told:
    # A width at which nothing is wrapped; the name of an environment variable or a folder of this machine is not shown.
    # click keeps the option for help that it makes first: with -h, it is made as the command line has it.
    top = click.Context(cli, info_name="ckptool", **cli.context_settings)
    context = click.Context(command, info_name=name, parent=top)
    paragraphs: list[str] = []
    examples: list[str] = []
    for block in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = block.removeprefix("\b\n").splitlines()
        if block.startswith("\b\n"):
            examples += lines
        else:
            paragraphs.append(" ".join(line.strip() for line in lines))
    options: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None:
            shared = param is command.get_help_option(context)
            heading = "General" if shared else getattr(param, "heading", "")
            options.setdefault(heading, []).append(record)
    in_order = {heading: options[heading] for heading in sorted(options, key=_rank)}
    usage = " ".join(command.collect_usage_pieces(context))
    return Told(name, group, usage, summary, tuple(paragraphs), tuple(examples), in_order)


def _rank(heading: str) -> int:
    from ckptool.cli.help import _HEADINGS

    return _HEADINGS.index(heading)


def page(one: Told) -> str:
    """The page of a command, in Markdown."""
    lines = [f"# ckptool {one.name}", "", *(f"{_escaped(text)}\n" for text in one.paragraphs)]
    lines += ["```text", f"ckptool {one.name} {one.usage}", "```", ""]
    if one.examples:
        lines += ["## Examples", "", "```text", *one.examples, "```", ""]
    for heading, options in one.options.items():
        lines += [f"## {heading} options" if heading else "## Options", "", "| option | does |", "|---|---|"]
        lines += [f"| `{names.replace('|', chr(92) + '|')}` | {_cell(does)} |" for names, does in options] + [""]
    lines += [f"[Examples that were run, and all details](../cli.md#ckptool-{one.name})", ""]
    return "\n".join(lines)


def index() -> str:
    """The list of all commands, in Markdown."""
    lines, group = ["# Commands", ""], ""
    for one in told():
        if one.group != group:
            group = one.group
            lines += ["", f"## {group}", "", "| command | does |", "|---|---|"]
        lines.append(f"| [{one.name}]({one.name}.md) | {_cell(one.summary)} |")
    lines += [
        "",
        "[The command line](../cli.md) describes every option on one page, with examples, patterns, exit",
        "codes and the JSON of reports.",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """TEXT with what Markdown would read as markup between its pieces of code."""
    pieces = text.split("`")
    for at in range(0, len(pieces), 2):
        pieces[at] = "".join(f"\\{char}" if char in "*_[]<>{}" else char for char in pieces[at])
    return "`".join(pieces)
