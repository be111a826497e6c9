"""`ckptool inspect`."""

from __future__ import annotations

import click

from ..errors import CheckpointError
from ..reports import inspect as report
from ..reports.render import inspect_text
from .options import FileName
from .output import print_json, terminal_width, write_page


@click.command()
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@click.option("--json", "as_json", is_flag=True, help="Print one document of JSON.")
@click.option("--html", type=FileName(), metavar="REPORT", help="Also write a page to look at.")
@click.option("-v", "--verbose", is_flag=True, help="List all keys, however many.")
def inspect(files: tuple[str, ...], as_json: bool, html: str | None, verbose: bool) -> int:
    """Show what is in a checkpoint: its keys, shapes, types and devices, and what else is in the file.

    Only headers and pickles are read, and nothing in them is run.

    \b
    ckptool inspect model.pth
    ckptool inspect *.safetensors --json
    """
    seen = []
    status = 0
    for path in files:
        try:
            seen.append(report.inspect(path))
        except CheckpointError as error:
            if len(files) == 1:
                raise
            status = 2
            click.echo(f"Error: {error}", err=True)
    if html and seen:
        from ..reports.page import inspect_page

        write_page(inspect_page(seen), html)
    if as_json:
        print_json({"ckptool": 1, "command": "inspect", "files": [one.as_json() for one in seen]})
    else:
        width = terminal_width()
        click.echo("\n\n".join(inspect_text(one, everything=verbose, width=width) for one in seen))
    return status
