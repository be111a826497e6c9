"""`ckptool formats`."""

from __future__ import annotations

import click

from ..formats import FOLDERS, FORMATS
from .output import print_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def formats(as_json: bool) -> None:
    """List the formats that can be read and written, and what each can carry.

    \b
    ckptool formats
    """
    if as_json:
        listed = [
            {"name": f.name, "aliases": list(f.aliases), "suffixes": list(f.suffixes), "carries": f.carries}
            for f in FORMATS
        ]
        listed += [{"name": f.name, "aliases": list(f.aliases), "suffixes": [], "carries": f.carries} for f in FOLDERS]
        print_json({"ckptool": 1, "command": "formats", "formats": listed})
        return
    for f in FORMATS:
        also = f" (also: {', '.join(f.aliases)})" if f.aliases else ""
        click.echo(f"{f.name}{also}\n  {f.summary}\n  carries {f.carries}")
        if f.suffixes:
            click.echo(f"  written for {' '.join(f.suffixes)}")
    for folder in FOLDERS:
        also = f" (also: {', '.join(folder.aliases)})" if folder.aliases else ""
        click.echo(f"{folder.name}{also}\n  {folder.summary}\n  carries {folder.carries}")
