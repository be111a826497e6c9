"""`ckptool diff`."""

from __future__ import annotations

import click

from ..disk.addresses import is_url
from ..disk.urls import size_of
from ..reports.comparing import diff as report
from ..reports.comparing.diff_text import diff_page, diff_text
from . import launched
from .documents import print_json
from .help import Command
from .options import FileName, SideOutput, output_option, parts_option
from .output import check_side_outputs, fetching, progress_bar, terminal_width, write_page


class _Tolerance(click.ParamType[float]):
    """A number that is not negative."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{value!r} is not a tolerance; 0 or more, as in 1e-5", param, ctx)
        return number


@click.command(cls=Command)
@click.argument("left", type=FileName(), metavar="A")
@click.argument("right", type=FileName(), metavar="B")
@click.option("--weights", is_flag=True, help="Compare only the weights, not the rest of the files.")
@click.option("--at", metavar="PATH", help="Where the weights are, in files with several state dicts.")
@click.option("--rtol", type=_Tolerance(), default=0.0, help="Values are close within ATOL + RTOL * |B|.")
@click.option("--atol", type=_Tolerance(), default=0.0, help="Values are close within ATOL + RTOL * |B|.")
@click.option("--detect-renames", is_flag=True, help="Find tensors that were only renamed, by their content.")
@click.option("--strict", is_flag=True, help="Count devices, order, ties and `_metadata` as differences.")
@parts_option
@click.option("--json", "as_json", is_flag=True, help="Print one document of JSON.")
@output_option("--html", type=SideOutput("page"), metavar="REPORT", help="Also write the report as a web page.")
@output_option("--open", "show", is_flag=True, help="Open that page in the browser.")
@output_option("--overwrite", is_flag=True, help="Replace REPORT if it exists.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; use the exit code.")
@click.option("-v", "--verbose", is_flag=True, help="List all tensors, however many.")
def diff(
    left: str,
    right: str,
    weights: bool,
    at: str | None,
    rtol: float,
    atol: float,
    detect_renames: bool,
    strict: bool,
    as_json: bool,
    html: str | None,
    show: bool,
    overwrite: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Compare two checkpoints of any formats: keys, shapes, types, values and all other entries.

    Exit code 0: they hold the same. 1: they differ. Devices, order, ties and `_metadata` are listed but
    count as differences only with --strict.

    \b
    ckptool diff a.pth b.safetensors
    ckptool diff before.pth after.pth --rtol 1e-5 --atol 1e-8
    ckptool diff mine.pth theirs.pth --weights --detect-renames
    """
    if launched.leads():
        check_side_outputs()
    size = size_of(left)
    far = is_url(left) or is_url(right)
    with (
        progress_bar("comparing", size, wanted=not quiet, far=far) as progress,
        fetching(left, right, wanted=not quiet and progress is None),
    ):
        found = report.diff(
            left,
            right,
            at=at,
            weights=weights,
            rtol=rtol,
            atol=atol,
            detect_renames=detect_renames,
            strict=strict,
            progress=progress,
            ranks=launched.ranks(),
        )
    if not launched.leads():
        return 0  # rank 0 answers
    if html:
        write_page(diff_page(found), html, overwrite=overwrite, show=show)
    if as_json:
        print_json("diff", found.as_json())
    elif not quiet:
        click.echo(diff_text(found, everything=verbose, width=terminal_width()))
    return 0 if found.same else 1
