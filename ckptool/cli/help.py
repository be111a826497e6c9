"""What `--help` looks like: own options first, shared ones under headings; and colour where it is wanted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import click

from ..drawing import styles

#: Headings in the order in which help shows them. Options without one come first.
_HEADINGS = ("", "Matching", "Proof", "Process", "Learning", "Data", "Model", "Output", "General")


class Option(click.Option):
    """An option that help shows under a heading of its own."""

    def __init__(self, *args: Any, heading: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.heading = heading


class _Formatter(click.HelpFormatter):
    """Help with headings that stand out, and the names of options and commands in colour."""

    def write_heading(self, heading: str) -> None:
        """Write a heading."""
        super().write_heading(styles.paint(heading, "heading"))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands, each with what it does."""
        told = [(styles.paint(name, "command"), _held_together(does)) for name, does in rows]
        super().write_dl(told, col_max, col_spacing)

    def write_text(self, text: str) -> None:
        """Write paragraphs. One that is a table, a name and what it means on each line, is wrapped like options."""
        plain: list[str] = []
        for paragraph in text.split("\n\n"):
            rows = [_ROW.fullmatch(line) for line in paragraph.splitlines()[1:]]
            if not (paragraph.startswith("\b") and rows and all(rows)):
                plain.append(paragraph)
                continue
            self._write_plain(plain)
            with self.indentation():
                self.write_dl([(row[1], row[2]) for row in rows if row])
            self.write_paragraph()
            plain = []
        self._write_plain(plain, last=True)

    def _write_plain(self, paragraphs: list[str], *, last: bool = False) -> None:
        if paragraphs:
            super().write_text(_held_together("\n\n".join(paragraphs)))
            if not last:
                self.write_paragraph()

    def getvalue(self) -> str:
        """What was written."""
        return super().getvalue().replace(_HELD, " ")


#: A line of a table: two spaces, a name, two spaces or more, and what it means.
_ROW = re.compile(r"  (\S+) {2,}(\S.*)")
#: A space at which no line ends, while text is wrapped.
_HELD = "\N{NO-BREAK SPACE}"


def _held_together(text: str) -> str:
    """TEXT in which no line will end within `code`, [brackets] or --option VALUE, where they are short."""
    return re.sub(
        r"`[^`\n]{1,30}`|\[[^]\n]{1,20}\]|--[a-z-]+ [A-Z0-9][\w.]*", lambda found: found[0].replace(" ", _HELD), text
    )


class Context(click.Context):
    """Where a command keeps whether it colours."""

    formatter_class = _Formatter

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if self.parent is None:
            self.colour(None)

    def colour(self, asked: str | None) -> None:
        """Colour as ASKED ("auto", "always", "never"), or as the environment says, here and in what is called."""
        wanted = colour_wanted(asked)
        for context in (self, self.find_root()):
            context.color = wanted
        on_a_terminal = sys.stdout.isatty() or sys.stderr.isatty()
        styles.switch(wanted or (wanted is None and on_a_terminal), always=wanted or False)


def colour_wanted(asked: str | None, environment: Mapping[str, str] = os.environ) -> bool | None:
    """Whether to colour: yes, no, or where a terminal shows it (None).

    NO_COLOR wins over all (https://no-color.org), then --color, then FORCE_COLOR, then a terminal without colours.
    """
    if environment.get("NO_COLOR") or asked == "never":
        return False
    if asked == "always" or (asked is None and environment.get("FORCE_COLOR", "0") not in ("", "0")):
        return True
    return False if environment.get("TERM") == "dumb" else None


def _colour_as_asked(ctx: click.Context, param: click.Parameter, asked: str | None) -> None:
    if asked is not None and isinstance(ctx, Context):
        ctx.colour(asked)


COLOR = Option(
    ["--color"],
    type=click.Choice(["auto", "always", "never"]),
    expose_value=False,
    is_eager=True,
    callback=_colour_as_asked,
    heading="General",
    help="When to use colour. NO_COLOR and FORCE_COLOR are respected.",
)


#: Options and arguments whose values the shell completes -> the function in `offered` that gives them.
_OFFERED = {
    "--at": "state_dicts",
    "--cast": "dtypes",
    "--cast-keep": "keys",
    "--drop": "keys",
    "--filter": "keys",
    "--fits": "models",
    "--for": "versions",
    "--hint": "keys",
    "--map-location": "devices",
    "--mapping": "mappings",
    "--model": "models",
    "--optimizer": "optimizers",
    "--prefix": "prefixes",
    "--rename": "keys",
    "--save": "saves",
    "--select": "keys",
    "--source-model": "models",
    "--strategy": "strategies",
    "--strip-prefix": "prefixes",
    "--task": "tasks",
    "--to": "formats",
    "--wrap": "places",
    "model": "models",
    "name": "mappings",
}


def _completed(values: str, otherwise: Callable[..., list[Any]], ctx: click.Context, incomplete: str) -> list[Any]:
    """What the shell is offered for a value: these values, or else what the type of the parameter offers."""
    from . import offered

    return offered.offer(getattr(offered, values), ctx, incomplete) or otherwise(ctx, incomplete)


class Command(click.Command):
    """A command that takes --color, whose help is in sections, and whose values the shell completes."""

    context_class = Context

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for param in self.params:
            for name in _OFFERED.keys() & {*param.opts}:
                vars(param)["shell_complete"] = partial(_completed, _OFFERED[name], param.shell_complete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ARGS; for an unknown option, propose those that are like it without the dashes, which all have."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            names = {name.lstrip("-"): name for param in self.get_params(ctx) for name in param.opts}
            near = get_close_matches(error.option_name.lstrip("-"), names, 3, 0.66)
            raise click.NoSuchOption(error.option_name, None, [names[name] for name in near], error.ctx) from None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with --color before --help."""
        *own, last = super().get_params(ctx)
        return [*own, COLOR, last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                heading = "General" if param is self.get_help_option(ctx) else getattr(param, "heading", "")
                sections[heading].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(f"{heading} options" if heading else "Options"):
                    formatter.write_dl(records)
