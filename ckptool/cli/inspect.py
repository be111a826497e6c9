"""`ckptool inspect`."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import click

from ..checkpoint import Checkpoint
from ..disk.addresses import is_url
from ..disk.files import is_there, shell_path
from ..disk.inside import not_followed
from ..disk.runs import SUFFIX
from ..drawing.sizes import table
from ..drawing.styles import paint, width_of
from ..errors import CheckpointError, NotFound, RuleError, UnknownFormat, counted, printable
from ..reports import inspect as report
from ..reports.inspect_text import inspect_text, overview
from .documents import Documents
from .help import Command
from .options import FileName, SideOutput, json_options, output_option, parts_option
from .output import check_side_outputs, collect, counting, fetching, progress_bar, say_error, terminal_width, write_page
from .searching import Search


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@click.option("--filter", "pattern", metavar="PATTERN", help="Show only tensors whose key matches.")
@click.option("--sort", type=click.Choice(["file", "name", "size"]), default="file", help="Order of the lines.")
@click.option(
    "--depth", type=click.IntRange(0), metavar="N", help="Show totals for the first N components of the keys."
)
@click.option("--stats", is_flag=True, help="Read all values; show min, max, mean, std, zeros and NaN.")
@parts_option
@click.option("--settings", is_flag=True, help="Print the settings alone (hyper_parameters, args, cfg), as JSON.")
@click.option(
    "--list",
    "as_list",
    is_flag=True,
    help="Print a line for each tensor, with a digest, and each value; for git diff.",
)
@json_options
@output_option("--html", type=SideOutput("page"), metavar="REPORT", help="Also write the report as a web page.")
@output_option("--open", "show", is_flag=True, help="Open that page in the browser.")
@output_option("--overwrite", is_flag=True, help="Replace REPORT if it exists.")
@click.option("-q", "--quiet", is_flag=True, help="Print one line per file.")
@click.option("-v", "--verbose", is_flag=True, help="List all keys, however many.")
def inspect(
    files: tuple[str, ...],
    pattern: str | None,
    sort: Any,
    depth: int | None,
    stats: bool,
    settings: bool,
    as_list: bool,
    as_json: bool,
    as_lines: bool,
    html: str | None,
    show: bool,
    overwrite: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Show the keys, shapes, types and devices in a checkpoint, and everything else in the file.

    Only headers and pickles are read (with --stats and --list also the values), and nothing in them is run. A folder
    that is not a checkpoint itself is searched for checkpoints; each gets one line, or with -v a full report.

    \b
    ckptool inspect model.pth
    ckptool inspect model.pth --depth 2 --sort size
    ckptool inspect model.pth --filter 'layers.{}.attn' --stats
    ckptool inspect *.pth -q
    ckptool inspect *.safetensors --json
    ckptool inspect last.ckpt --settings > settings.json
    ckptool inspect model.pth --list | grep bias
    """
    if settings:
        return _print_settings(files)
    if as_list:
        return _print_list(files)
    check_side_outputs()
    documents = Documents("inspect", as_json=as_json, as_lines=as_lines)
    whole = None if quiet else verbose or stats or bool(pattern) or depth is not None
    shown = _Shown(documents.wanted, verbose, sort, depth, whole=whole)
    for_page: list[tuple[report.Inspection, Any]] = []
    status = many = 0
    search = Search(_unfolded(files), whole=_is_checkpoint)
    unfinished: dict[str, None] = {}
    lines = len(files) == 1 and not is_url(files[0]) and (documents.wanted or not shown.wants_all_of(False))
    for path, asked in counting("inspecting", search, wanted=lines and not stats and not as_lines):
        half = [part for part in Path(path).parts if part.endswith(SUFFIX) and not asked]
        if half:
            unfinished[half[0]] = None
            continue
        collect(many)
        try:
            with fetching(path):
                one = report.inspect(path, suggest=bool(html) or shown.wants_all_of(asked))
            one = report.narrowed(one, pattern) if pattern else one
            found = None
            if stats:
                with progress_bar("reading values", sum(t.bytes for t in one.tensors), wanted=True) as progress:
                    found = report.statistics_of(path, one, progress)
        except CheckpointError as error:
            if not asked and isinstance(error, UnknownFormat):
                continue
            if len(files) == 1 and asked:
                raise
            status = 2
            from ..reports.diagnosis.rescue import point_to_rescue

            point_to_rescue(error, path)
            documents.fail(error, path)
            say_error(error)
            continue
        many += 1
        for_page += [(one, _plain(found) if found is not None else None)] if html else []
        if documents.wanted:
            documents.add({**one.as_json(), **({"stats": _plain(found)} if found is not None else {})})
        else:
            shown.add(one, found, asked=asked)
    for name in unfinished:
        what = f"left out {printable(name, 255)}, which a run of ckptool has not finished"
        click.echo(f"{what}; `ckptool doctor {shell_path(files[0])}` says more", err=True)
    for failure in search.failures:
        status = 2
        documents.fail(failure)
        say_error(failure)
    if not many and not status:
        left_alone = [not_followed(search.left_alone)] if search.left_alone else []
        raise NotFound("holds no checkpoint", where=files[0], evidence=left_alone)
    if html and for_page:
        from ..reports.inspect_page import inspect_page

        page = inspect_page([one for one, _ in for_page], [found for _, found in for_page] if stats else None)
        write_page(page, html, overwrite=overwrite, show=show)
    shown.end(search.left_alone)
    documents.end(not_followed=search.left_alone)
    return status


def _print_settings(files: tuple[str, ...]) -> int:
    """Print the settings in one file as a document of JSON."""
    from ..reports.training import settings_of

    found = settings_of(_opened(files, "--settings"))
    if not found:
        look = f"ckptool inspect {shell_path(files[0])}   # shows what is in it"
        raise NotFound("holds no settings (hyper_parameters, args, cfg …)", where=files[0], hint=look)
    click.echo(json.dumps(found, indent=1))
    return 0


def _print_list(files: tuple[str, ...]) -> int:
    """Print what is in one file, line by line."""
    from ..reports.content_lines import content_lines

    ckpt = _opened(files, "--list")
    with fetching(files[0]), progress_bar("reading values", ckpt.nbytes, wanted=True) as progress:
        lines = list(content_lines(ckpt, progress))
    click.echo("\n".join(lines))
    return 0


def _opened(files: tuple[str, ...], option: str) -> Checkpoint:
    """The one file that OPTION takes."""
    from .. import formats

    if len(files) > 1:
        raise RuleError("is for one file", where=option, hint=f"ckptool inspect {shell_path(files[0])} {option}")
    with fetching(files[0]):
        return formats.open(files[0])


#: Columns of the overview that matter less, in the order in which they are left out: types, formats, sizes.
_LESS = (4, 2, 1)


class _Shown:
    """The reports on a terminal: each as a whole if it was asked for, and a line for each file out of a folder.

    Args:
        silent: nothing is shown.
        everything, sort, depth: as `inspect_text` takes them.
        whole: show each as a whole, those out of a folder too; None: show a line for each.
    """

    def __init__(self, silent: bool, everything: bool, sort: Any, depth: int | None, *, whole: bool | None) -> None:
        self._silent, self._everything, self._sort, self._depth, self._whole = silent, everything, sort, depth, whole
        self._rows: list[tuple[str, ...]] = []
        self._begun = False

    def wants_all_of(self, asked: bool) -> bool:
        """Whether a file is shown as a whole: not if it is out of a folder, unless that was asked for."""
        return not self._silent and self._whole is not None and (asked or self._whole)

    def add(self, one: report.Inspection, found: Any, *, asked: bool) -> None:
        """Show a report, or keep its line."""
        if not self.wants_all_of(asked):
            self._rows.append(overview(one))
            return
        width = terminal_width()
        text = inspect_text(
            one, everything=self._everything, width=width, sort=self._sort, depth=self._depth, stats=found
        )
        self._say(text)

    def end(self, left_alone: Sequence[str]) -> None:
        """Show the lines, aligned, and what was left alone."""
        if self._rows:
            more = f"{counted(len(self._rows), 'file')}; -v shows what is in each"
            rows = [*self._rows]
            for column in _LESS:  # on a narrow terminal the rest can stay on one line
                if max(map(width_of, table(rows))) > terminal_width():
                    rows = [(*row[:column], *row[column + 1 :]) for row in rows]
            self._say("\n".join([*table(rows), *([] if self._whole is None else [paint(more, "faint")])]))
        if left_alone and not self._silent:
            self._say(not_followed(left_alone))

    def _say(self, text: str) -> None:
        click.echo(f"\n{text}" if self._begun else text)
        self._begun = True


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
