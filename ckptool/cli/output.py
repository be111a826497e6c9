"""What a person sees of a rewrite: the progress bar and the receipt."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..drawing import styles
from ..drawing.sizes import size_text
from ..drawing.styles import paint
from ..errors import RuleError, counted, printable, without_secrets
from .documents import Documents, print_json

if TYPE_CHECKING:
    from ..formats import Plan

WORTH_A_BAR = 64 << 20
_WORTH_A_BAR_FAR = 2 << 20
_MOST_DAMAGED = 12


@contextlib.contextmanager
def progress_bar(title: str, total: int, *, wanted: bool, far: bool = False) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr that counts bytes, for work that takes a while and is watched. None otherwise.

    What is FAR takes a while sooner.
    """
    if not wanted or total < (_WORTH_A_BAR_FAR if far else WORTH_A_BAR) or not sys.stderr.isatty():
        yield None
        return
    if os.environ.get("NO_COLOR"):
        with _plain_line(title) as say:
            done = 0

            def advance(length: int) -> None:
                nonlocal done
                done += length
                say(f"{100 * done // total} % of {size_text(total)}")

            yield advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(title, 40), total=total)
        yield lambda done: bar.advance(task, done)


def hush(*places: object) -> None:
    """Let the clients that reach PLACES elsewhere say nothing of their own: what matters becomes a line of ours."""
    from ..disk.addresses import is_url

    if any(is_url(place) for place in places):
        import logging

        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        logging.lastResort = logging.NullHandler()


@contextlib.contextmanager
def fetching(*places: object, wanted: bool = True) -> Iterator[None]:
    """A line on stderr that counts what arrives, while something is read that is elsewhere."""
    from ..disk.addresses import as_path, is_url

    elsewhere = [as_path(str(place)) for place in places if is_url(place)]
    hush(*elsewhere)
    with status_line(f"reading {elsewhere[0].name}" if elsewhere else "", wanted=wanted and bool(elsewhere)) as say:
        if say is None:
            yield
            return
        from ..disk.remote import watching

        arrived = requests = 0

        def count(length: int) -> None:
            nonlocal arrived, requests
            arrived += length
            requests += 1
            say(f"{size_text(arrived)} in {counted(requests, 'piece')}")

        watching.append(count)
        try:
            yield
        finally:
            watching.remove(count)


@contextlib.contextmanager
def _plain_line(title: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that is written over again and again, without a single escape code: NO_COLOR asks for that."""
    import time

    shown, last = 0, 0.0

    def say(text: str) -> None:
        nonlocal shown, last
        now = time.monotonic()
        if now - last >= _BETWEEN:
            line = printable(f"{title}: {text}", 79)
            sys.stderr.write(f"\r{line}{' ' * (shown - len(line))}")
            sys.stderr.flush()
            shown, last = len(line), now

    try:
        yield say
    finally:
        sys.stderr.write(f"\r{' ' * shown}\r")
        sys.stderr.flush()


#: Seconds between two of its texts.
_BETWEEN = 0.2


@contextlib.contextmanager
def status_line(title: str, *, wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """A line on stderr that says what is being done, and for how long, for work whose end nobody knows; else None."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    if os.environ.get("NO_COLOR"):
        with _plain_line(title) as say:
            yield say
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    said = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    with Progress(SpinnerColumn(), TimeElapsedColumn(), said, console=Console(stderr=True), transient=True) as line:
        task = line.add_task(title, total=None)
        yield lambda text: line.update(task, description=printable(f"{title}: {text}", 200))


def counting(title: str, files: Iterable[tuple[str, bool]], *, wanted: bool) -> Iterator[tuple[str, bool]]:
    """FILES, with such a line that counts them once a second is over. Nothing may be printed on stdout meanwhile."""
    import time

    began = time.monotonic()
    say: Callable[[str], None] | None = None
    with contextlib.ExitStack() as line:
        for number, (path, asked) in enumerate(files):
            if say is None and wanted and time.monotonic() - began > 1:
                say = line.enter_context(status_line(title, wanted=True))
            if say is not None:
                say(f"{counted(number, 'file')}, {path}")
            yield path, asked


def print_receipt(
    plan: Plan,
    source: str,
    renamed: list[tuple[str, str]],
    notes: list[str],
    *,
    command: str,
    as_json: bool,
    as_lines: bool = False,
    quiet: bool,
    dry_run: bool,
) -> None:
    """Say what was written: on stderr, or as JSON on stdout. A dry run is a report, and goes to stdout."""
    if as_json or as_lines:
        shown = without_secrets(source)
        document = {"source": shown, "dry_run": dry_run, **plan.as_json()}
        if notes:
            document["notes"] = notes
        if renamed:
            document["renamed"] = [{"from": old, "to": new} for old, new in renamed]
        if as_lines:
            Documents(command, as_json=False, as_lines=True).add(document)
        else:
            print_json(command, document)
    elif not quiet:
        click.echo(
            "\n".join([*_receipt(plan, renamed, dry_run), *(f"  note: {line}" for line in notes)]), err=not dry_run
        )


def say_error(error: object, *, before: str = "") -> None:
    """Say on stderr what went wrong: the place, what is wrong, the evidence, and a hint."""
    click.echo(f"{paint('Error:', 'bad')} {before}{styles.hinted(str(error))}", err=True)


def collect(number: int) -> None:
    """Free what is left of the files before the one of this NUMBER: checkpoints hold cycles, and each an open file.

    What an earlier call has left is looked at rarely: it is the program, and a file that was just being reported.
    """
    many = gc.get_count()[0] > _MANY
    if many or number % 64 == 63:
        gc.collect(2 if many or number % 1024 == 1023 else 1)


#: Objects that may be left over.
_MANY = 1_000_000


def check_side_outputs() -> None:
    """Refuse a page, recipe, mapping or manifest of this command that would replace something else.

    It is never another file of the command, whatever is said, and replaces only one of its own kind.
    """
    from ..disk.targets import check_side_output, is_same_file
    from .options import FileName, SideOutput

    context = click.get_current_context()
    if context.params.get("show") and context.params.get("html") is None:
        raise click.UsageError("--open shows the page that --html REPORT writes.")
    named = [(p, context.params.get(p.name)) for p in context.command.params if p.name and isinstance(p.type, FileName)]
    files = [(param, path) for param, value in named for path in ([value] if isinstance(value, str) else value or ())]
    if suffix := context.params.get("backup"):
        files += [(param, f"{path}{suffix}") for param, path in files if not isinstance(param.type, SideOutput)]
    for param, path in files:
        if not isinstance(param.type, SideOutput):
            continue
        option = param.opts[0]
        if any(other is not param and is_same_file(path, theirs) for other, theirs in files):
            raise RuleError(
                f"{printable(path, 200)} is an input or another output of this command",
                where=option,
                hint=f"{option} ANOTHER_NAME",
            )
        allowed = bool(context.params.get("overwrite")) or param.type.same_is_fine
        check_side_output(param.type.kind, path, overwrite=allowed)


def write_page(page: str, path: str, *, overwrite: bool, show: bool = False) -> None:
    """Write a page of HTML: whole, or not at all. With SHOW, the browser shows it."""
    from ..disk.targets import write_side_output

    write_side_output("page", path, page, overwrite=overwrite)
    click.echo(f"wrote {printable(path)}", err=True)
    if show:
        import webbrowser

        webbrowser.open(Path(path).resolve().as_uri())


def _receipt(plan: Plan, renamed: list[tuple[str, str]], dry_run: bool) -> Iterator[str]:
    verb = "would write" if dry_run else "wrote"
    place = paint(printable(os.fspath(plan.path)), "name")
    yield f"{paint(verb, 'good')} {place}: {plan.format}, {size_text(plan.nbytes)}, {plan.how}"
    for line in plan.steps:
        yield f"  {line}"
    for old, new in renamed:
        yield f"    {printable(old)} -> {printable(new)}"
    for line in plan.form:
        yield f"  form: {line}"
    for line in plan.content:
        yield f"  {paint('LOST, as allowed:', 'warning')} {line}"
    yield from damage(plan)
    for name, count in plan.objects.items():
        yield f"  object kept: {printable(name, 100)} ({count:,}); whoever loads the file runs what it names"


def damage(plan: Plan) -> Iterator[str]:
    """The first of the tensors that were written though their checksums are wrong, and how many more there are."""
    lines = plan.damaged
    yield from (f"  {paint('DAMAGED, as allowed:', 'bad')} {line}" for line in lines[:_MOST_DAMAGED])
    if lines[_MOST_DAMAGED:]:
        yield f"  DAMAGED, as allowed: … and {len(lines) - _MOST_DAMAGED:,} more, which --json lists"


def terminal_width() -> int:
    """Columns to fill: those of the terminal, never less than 60. Without one (a pipe, a file) lines are not folded."""
    import shutil

    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return _NOT_FOLDED
    return max(shutil.get_terminal_size((120, 40)).columns, 60)


#: More columns than a line has.
_NOT_FOLDED = 10**6
