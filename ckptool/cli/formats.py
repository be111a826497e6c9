"""`ckptool formats`."""

from __future__ import annotations

import click

from ..formats import FOLDERS, FORMATS
from ..formats.base import AnyFormat, FolderFormat
from .documents import print_json
from .help import Command
from .output import terminal_width


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def formats(as_json: bool) -> None:
    """List the formats that ckptool reads and writes, and what each can store.

    \b
    ckptool formats
    """
    every: list[AnyFormat] = [*FORMATS, *FOLDERS]
    if as_json:
        listed = [
            {
                "name": f.name,
                "aliases": list(f.aliases),
                "suffixes": list(f.suffixes),
                "directory": isinstance(f, FolderFormat),
                "summary": f.summary,
                "carries": f.carries,
                "reads": True,
                "writes": f.draft is not None,
            }
            for f in every
        ]
        print_json("formats", {"formats": listed})
        return
    for f in every:
        also = f" (also: {', '.join(f.aliases)})" if f.aliases else ""
        does = "read and written" if f.draft else "read only"
        lines = [f.summary, f"carries {f.carries}"]
        lines += [f"written for {' '.join(f.suffixes)}"] if f.suffixes else []
        click.echo(f"{f.name}{also}: {does}")
        for line in lines:
            click.echo(click.wrap_text(line, terminal_width(), initial_indent="  ", subsequent_indent="    "))
