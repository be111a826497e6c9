"""`ckptool inspect`."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import click

from ..errors import CheckpointError, NotFound, UnknownFormat
from ..reports import inspect as report
from ..reports.inspect_text import inspect_text
from .options import FileName
from .output import collect, print_json, terminal_width, write_page


@click.command()
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@click.option("--filter", "pattern", metavar="PATTERN", help="Show only the tensors whose key fits.")
@click.option("--sort", type=click.Choice(["file", "name", "size"]), default="file", help="Order of the lines.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Sum up below N components of the keys.")
@click.option("--stats", is_flag=True, help="Read all values: smallest, largest, mean, spread, zeros, NaN.")
@click.option("--json", "as_json", is_flag=True, help="Print one document of JSON.")
@click.option("--html", type=FileName(), metavar="REPORT", help="Also write a page to look at.")
@click.option("-v", "--verbose", is_flag=True, help="List all keys, however many.")
def inspect(
    files: tuple[str, ...],
    pattern: str | None,
    sort: Any,
    depth: int | None,
    stats: bool,
    as_json: bool,
    html: str | None,
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
    seen: list[report.Inspection] = []
    numbers: list[Any] = []
    status = 0
    for path, asked in _expanded(files):
        collect(len(seen))
        try:
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
            click.echo(f"Error: {error}", err=True)
    if not seen and not status:
        raise NotFound("holds no checkpoint", where=files[0])
    if html and seen:
        from ..reports.page import inspect_page

        write_page(inspect_page(seen, [_plain(found) for found in numbers] if stats else None), html)
    if as_json:
        documents = [one.as_json() for one in seen]
        for document, found in zip(documents, numbers, strict=True):
            if found is not None:
                document["stats"] = _plain(found)
        print_json({"ckptool": 1, "command": "inspect", "files": documents})
    else:
        width = terminal_width()
        texts = [
            inspect_text(one, everything=verbose, width=width, sort=sort, depth=depth, stats=found)
            for one, found in zip(seen, numbers, strict=True)
        ]
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


def _expanded(files: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Each file, and whether it was named itself: patterns that the shell left alone, and folders of checkpoints."""
    for name in files:
        found = sorted(glob.glob(name)) if not Path(name).exists() and glob.has_magic(name) else [name]  # noqa: PTH207
        for one in found or [name]:
            if Path(one).is_dir() and not _is_checkpoint(one):
                inside = sorted(path for path in Path(one).rglob("*") if path.is_file())
                yield from ((str(path), False) for path in inside)
            else:
                yield one, True


def _is_checkpoint(folder: str) -> bool:
    """Whether a folder is a checkpoint of several files."""
    from .. import formats

    try:
        formats.detect(folder)
    except CheckpointError:
        return False
    return True
