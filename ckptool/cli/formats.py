"""`ckptool formats`."""

from __future__ import annotations

import click

from ..formats import FORMATS
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
            {
                "name": f.name,
                "aliases": list(f.aliases),
                "suffixes": list(f.suffixes),
                "summary": f.summary,
                "carries": f.carries,
                "reads": True,
                "writes": f.draft is not None,
            }
            for f in FORMATS
        ]
        print_json({"ckptool": 1, "command": "formats", "formats": listed})
        return
    for f in FORMATS:
        also = f" (also: {', '.join(f.aliases)})" if f.aliases else ""
        does = "read and written" if f.draft else "read only"
        click.echo(f"{f.name}{also}: {does}\n  {f.summary}\n  carries {f.carries}")
        if f.suffixes:
            click.echo(f"  written for {' '.join(f.suffixes)}")
