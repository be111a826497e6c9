"""`ckptool inspect`."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import click

from ..disk.files import is_there, shell_path
from ..disk.inside import not_followed
from ..disk.runs import SUFFIX
from ..errors import CheckpointError, NotFound, UnknownFormat, printable
from ..reports import inspect as report
from ..reports.inspect_text import inspect_text
from .help import Command
from .options import FileName, SideOutput
from .output import check_side_outputs, collect, fetching, print_json, say_error, terminal_width, write_page
from .searching import Search


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@click.option("--filter", "pattern", metavar="PATTERN", help="Show only the tensors whose key fits.")
@click.option("--sort", type=click.Choice(["file", "name", "size"]), default="file", help="Order of the lines.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Sum up below N components of the keys.")
@click.option("--stats", is_flag=True, help="Read all values: smallest, largest, mean, spread, zeros, NaN.")
@click.option("--json", "as_json", is_flag=True, help="Print one document of JSON.")
@click.option("--html", type=SideOutput("page"), metavar="REPORT", help="Also write a page to look at.")
@click.option("--overwrite", is_flag=True, help="Allow REPORT to exist.")
@click.option("-v", "--verbose", is_flag=True, help="List all keys, however many.")
def inspect(
    files: tuple[str, ...],
    pattern: str | None,
    sort: Any,
    depth: int | None,
    stats: bool,
    as_json: bool,
    html: str | None,
    overwrite: bool,
    verbose: bool,
) -> int:
    """Show what is in a checkpoint: its keys, shapes, types and devices, and what else is in the file.

    Only headers and pickles are read (with --stats values, too), and nothing in them is run. A folder that is no
    checkpoint itself is searched for some.

    \b
    ckptool inspect model.pth
    ckptool inspect model.pth --depth 2 --sort size
    ckptool inspect model.pth --filter 'layers.{}.attn' --stats
    ckptool inspect *.safetensors --json
    """
    check_side_outputs()
    seen: list[report.Inspection] = []
    numbers: list[Any] = []
    status = 0
    search = Search(_unfolded(files), whole=_is_checkpoint)
    unfinished: dict[str, None] = {}
    for path, asked in search:
        half = [part for part in Path(path).parts if part.endswith(SUFFIX) and not asked]
        if half:
            unfinished[half[0]] = None
            continue
        collect(len(seen))
        try:
            with fetching(path):
                one = report.inspect(path)
            one = report.narrowed(one, pattern) if pattern else one
            numbers.append(report.statistics_of(path, one) if stats else None)
            seen.append(one)
        except CheckpointError as error:
            if not asked and isinstance(error, UnknownFormat):
                continue
            if len(files) == 1 and asked:
                raise
            status = 2
            say_error(error)
    for name in unfinished:
        what = f"left out {printable(name, 255)}, which a run of ckptool has not finished"
        click.echo(f"{what}; `ckptool doctor {shell_path(files[0])}` says more", err=True)
    for failure in search.failures:
        status = 2
        say_error(failure)
    if not seen and not status:
        left_alone = [not_followed(search.left_alone)] if search.left_alone else []
        raise NotFound("holds no checkpoint", where=files[0], evidence=left_alone)
    if html and seen:
        from ..reports.inspect_page import inspect_page

        page = inspect_page(seen, [_plain(found) for found in numbers] if stats else None)
        write_page(page, html, overwrite=overwrite)
    if as_json:
        documents = [one.as_json() for one in seen]
        for document, found in zip(documents, numbers, strict=True):
            if found is not None:
                document["stats"] = _plain(found)
        print_json({"ckptool": 1, "command": "inspect", "files": documents, "not_followed": search.left_alone})
    else:
        width = terminal_width()
        texts = [
            inspect_text(one, everything=verbose, width=width, sort=sort, depth=depth, stats=found)
            for one, found in zip(seen, numbers, strict=True)
        ]
        texts += [not_followed(search.left_alone)] if search.left_alone else []
        click.echo("\n\n".join(texts))
    return status


def _plain(found: Sequence[Any]) -> list[dict[str, Any] | None]:
    """Statistics as JSON can have them, which has no word for NaN."""
    return [
        None
        if one is None
        else {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in asdict(one).items()}
        for one in found
    ]


def _unfolded(files: tuple[str, ...]) -> list[str]:
    """The files, with those that fit a pattern which the shell left alone."""
    patterns = {name for name in files if not is_there(name) and glob.has_magic(name)}
    return [one for name in files for one in (name in patterns and sorted(glob.glob(name))) or [name]]  # noqa: PTH207


def _is_checkpoint(folder: str) -> bool:
    """Whether a folder is a checkpoint of several files."""
    from .. import formats

    try:
        formats.detect(folder)
    except CheckpointError:
        return False
    return True
