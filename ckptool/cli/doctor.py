"""`ckptool doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from ..disk.addresses import is_url
from ..disk.files import is_file, is_folder, shell_path
from ..disk.urls import size_of
from ..errors import NotFound, RuleError, Unreadable, printable
from ..reports.diagnosis import advice, leftovers
from ..reports.diagnosis import doctor as report
from ..reports.diagnosis.doctor_text import doctor_text, explanation_text
from .documents import as_entry, print_json
from .help import Command
from .options import FileName, SideOutput, output_option, parts_option
from .output import check_side_outputs, fetching, progress_bar, status_line, terminal_width, write_page
from .typed import keyword_arguments

_LONGEST = 1 << 20


@click.command(cls=Command)
@click.argument("file", type=FileName(), metavar="[FILE]", required=False)
@click.argument("model", type=FileName(), metavar="[MODEL.py]", required=False)
@click.option("--kwargs", multiple=True, metavar="NAME=VALUE", help="An argument for the class or factory of MODEL.py.")
@click.option("--error", metavar="TEXT", help="An error message to explain; - reads it from stdin.")
@click.option("--at", metavar="PATH", help="Where the weights are, in files with several state dicts.")
@parts_option
@click.option("--recover", is_flag=True, help="Finish or undo an interrupted --patch of FILE.")
@click.option("--remove-leftovers", is_flag=True, help="Remove temporary files of interrupted runs in or beside FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print one document of JSON.")
@output_option("--html", type=SideOutput("page"), metavar="REPORT", help="Also write the report as a web page.")
@output_option("--open", "show", is_flag=True, help="Open that page in the browser.")
@output_option("--overwrite", is_flag=True, help="Replace REPORT if it exists.")
@click.option("-q", "--quiet", is_flag=True, help="Print only problems and the commands that fix them.")
@click.option("-v", "--verbose", is_flag=True, help="List everything, however long.")
def doctor(
    file: str | None,
    model: str | None,
    kwargs: tuple[str, ...],
    error: str | None,
    at: str | None,
    recover: bool,
    remove_leftovers: bool,
    as_json: bool,
    html: str | None,
    show: bool,
    overwrite: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Find what keeps a file from loading and show the commands that fix it, or explain an error message.

    Exit code 0: a plain model can load the file on a machine without a GPU. 1: doctor found a problem. With MODEL.py
    (or MODEL.py:Name), doctor also checks whether the file fits that model; this runs MODEL.py.

    \b
    ckptool doctor model.pth
    ckptool doctor model.pth net.py:Net
    ckptool doctor --error 'Missing key(s) in state_dict: "conv1.bias"' a.pth
    ckptool doctor --error - < log.txt
    ckptool doctor folder/ --remove-leftovers
    ckptool doctor model.pth --recover
    ckptool doctor model.pth --html report.html --open
    ckptool doctor model.pth -q
    """
    if file is None and error is None:
        raise click.UsageError("Missing FILE, or --error TEXT.")
    if html and (recover or remove_leftovers):
        raise click.UsageError(
            f"--html writes what doctor found; {'--recover' if recover else '--remove-leftovers'} looks for nothing."
        )
    check_side_outputs()
    if recover:
        return _recover(file, as_json=as_json)
    if file is not None and file.endswith(".py") and model is not None and not model.partition(":")[0].endswith(".py"):
        what = "is code; the file comes first, and then the model that it goes into"
        raise RuleError(what, where=file, hint=f"ckptool doctor {shell_path(model)} {shell_path(file)}")
    if remove_leftovers:
        return _remove_leftovers(file, as_json=as_json)
    width, arguments = terminal_width(), keyword_arguments(kwargs, "--kwargs")
    explained = found = None
    message = sys.stdin.read(_LONGEST) if error == "-" else error
    if file is not None:
        size = 0 if is_folder(file) else size_of(file)
        with (
            progress_bar("reading", size, wanted=not quiet, far=is_url(file)) as progress,
            fetching(file, wanted=not quiet and progress is None and is_url(file)),
            status_line(f"reading {printable(file, 60)}", wanted=not quiet and is_folder(file) and not is_url(file)),
        ):
            if message is None:
                found = report.doctor(file, model, at=at, kwargs=arguments, progress=progress)
            else:
                explained, found = advice.advise(message, file, model, at=at, kwargs=arguments, progress=progress)
    elif message is not None:
        explained = advice.explain(message, None, model)
    if explained is not None and not as_json:
        click.echo(explanation_text(explained, everything=verbose, width=width, file=file is not None))
    if found is not None and not as_json and not (quiet and found.healthy):
        text = doctor_text(found, everything=verbose, width=width, only_problems=quiet)
        click.echo(("\n" if explained is not None else "") + text)
    unknown = explained is not None and not explained and found is None
    if html and not unknown:
        from ..reports.diagnosis.doctor_page import doctor_page

        write_page(doctor_page(found, explained), html, overwrite=overwrite, show=show)
    if as_json:
        messages = [asdict(one) for one in explained] if explained is not None else None
        errors = [as_entry(NotFound("ckptool does not know this error message", where="--error"))] if unknown else []
        print_json("doctor", {"messages": messages, **(found.as_json() if found else {})}, errors)
    wrong = any(one.trouble for one in explained or ()) if found is None else not found.healthy
    return 2 if unknown else int(wrong)


def _remove_leftovers(file: str | None, *, as_json: bool) -> int:
    if file is None:
        raise click.UsageError("--remove-leftovers needs FILE, a file or a folder.")
    removed = leftovers.remove_leftovers(file)
    if as_json:
        print_json("doctor", {"leftovers": [asdict(one) for one in removed]})
    else:
        click.echo(leftovers.removal_text(removed))
    return 0 if all(one.removed for one in removed) else 1


def _recover(file: str | None, *, as_json: bool) -> int:
    if file is None:
        raise click.UsageError("--recover needs FILE.")
    if is_url(file) or not is_file(file):
        raise Unreadable("is not a local file; only local files are patched", where=file)
    from ..disk.patching import settle

    done = settle(file)
    if as_json:
        print_json("doctor", {"recovered": done})
    else:
        click.echo(f"{printable(file)}: {done or 'no patch of it was cut off'}")
    return 0
