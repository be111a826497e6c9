"""`ckptool formats`."""

from __future__ import annotations

import click

from ..formats import FOLDERS, FORMATS
from ..formats.base import AnyFormat, FolderFormat
from .documents import print_json
from .help import Command


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
        click.echo(f"{f.name}{also}: {does}\n  {f.summary}\n  carries {f.carries}")
        if f.suffixes:
            click.echo(f"  written for {' '.join(f.suffixes)}")
