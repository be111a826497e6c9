"""`ckptool scan`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from ..disk.files import reason
from ..errors import CheckpointError, Unreadable, counted
from ..reports import scan as report
from ..reports.render import scan_text
from .options import FileName
from .output import collect, print_json, terminal_width

_STATUS = {"safe": 0, "unsafe": 1, "unknown": 2}


@click.command()
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@click.option("--json", "as_json", is_flag=True, help="Print one document of JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Show only files that are not safe.")
@click.option("-v", "--verbose", is_flag=True, help="Also list tensors and plain data, and every place.")
def scan(files: tuple[str, ...], as_json: bool, quiet: bool, verbose: bool) -> int:
    """Show what unpickling a file would import and call, without doing any of it.

    Exit code 0: tensors and plain data only. 1: it would import or call more. 2: not all of it could be accounted for.
    Folders are searched; what is in them but is no checkpoint (a text, a picture) is counted and does not matter.

    \b
    ckptool scan model.pth
    ckptool scan downloads/ -q
    ckptool scan *.pt *.bin --json
    """
    seen = []
    status = 0
    skipped: Counter[str] = Counter()
    for number, (path, asked) in enumerate(_expanded(files)):
        collect(number)
        try:
            one = report.scan(path)
        except CheckpointError as error:
            if len(files) == 1 and asked:
                raise
            status = 2
            click.echo(f"Error: {error}", err=True)
            continue
        if not one.checkpoint and not asked:
            skipped["file"] += 1
            continue
        status = max(status, _STATUS[one.verdict])
        if as_json:
            seen.append(one.as_json())
        elif not quiet or one.verdict != "safe":
            click.echo(scan_text(one, everything=verbose, width=terminal_width()))
    if as_json:
        print_json({"ckptool": 1, "command": "scan", "files": seen, "skipped": skipped["file"]})
    elif skipped and not quiet:
        click.echo(f"{counted(skipped['file'], 'file')} skipped: neither checkpoint nor pickle")
    return status


def _expanded(files: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Each file, and whether it was named itself; links to folders are not followed."""

    def refuse(error: OSError) -> None:
        raise Unreadable(reason(error), where=error.filename) from None

    for name in files:
        if not Path(name).is_dir():
            yield name, True
            continue
        for folder, inner, names in os.walk(name, onerror=refuse):
            inner.sort()
            for path in (Path(folder, file) for file in sorted(names)):
                if path.is_file():
                    yield str(path), False
