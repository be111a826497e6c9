"""`ckptool mappings`."""

from __future__ import annotations

import click

from ..errors import NotFound, printable
from ..porting import family_files
from .documents import print_json
from .help import Command


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def mappings(name: str | None, as_json: bool) -> None:
    """List the built-in mappings between libraries; with NAME, print the file of that mapping.

    `ckptool transfer FILE --mapping NAME -o OUT` applies a mapping, and --invert applies it in the opposite direction.
    No model code is needed.

    \b
    ckptool mappings
    ckptool mappings llama-to-hf
    """
    if name is not None:
        path = family_files.file_of(name)
        if path is None:
            raise NotFound(f"no mapping is called {printable(name)}", hint="ckptool mappings   # lists them")
        click.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    found = family_files.shipped()
    if as_json:
        listed = [
            {"name": one.name, "takes": one.source, "gives": one.target, "needs": dict(one.needs)} for one in found
        ]
        print_json("mappings", {"mappings": listed})
        return
    for one in found:
        click.echo(f"{one.name}\n  takes {one.source}\n  gives {one.target}")
        for number, what in one.needs.items():
            if one.numbers.get(number, "").startswith("config("):
                click.echo(f"  needs {number}: {what}; config.json, params.json or --number {number}=N")
