"""`ckptool scan`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

import click

from ..disk.addresses import is_url
from ..disk.inside import not_followed
from ..errors import CheckpointError
from ..reports.scanning import scan as report
from ..reports.scanning.scan_text import scan_text, totals_text
from .documents import Documents
from .help import Command
from .options import FileName, json_options
from .output import collect, counting, fetching, say_error, terminal_width
from .searching import Search

_STATUS = {"safe": 0, "unsafe": 1, "unknown": 2}


@click.command(cls=Command)
@click.argument("files", nargs=-1, required=True, type=FileName(), metavar="FILE…")
@json_options
@click.option("-q", "--quiet", is_flag=True, help="Show only files that are not safe.")
@click.option("-v", "--verbose", is_flag=True, help="Also list tensors and plain data, and every place.")
def scan(files: tuple[str, ...], as_json: bool, as_lines: bool, quiet: bool, verbose: bool) -> int:
    """Show what unpickling a file would import and call, without doing any of it.

    Exit code 0: the file holds only tensors and plain data. 1: loading it would import or call something else. 2: scan
    could not check all of it. Folders are searched; other files in them (texts, pictures) are counted and skipped.
    Links that lead out of a folder are reported, not followed.

    \b
    ckptool scan model.pth
    ckptool scan downloads/ -q
    ckptool scan *.pt *.bin --json
    """
    documents = Documents("scan", as_json=as_json, as_lines=as_lines)
    status = skipped = failed = 0
    verdicts: Counter[str] = Counter()
    search = Search(files)
    alone = as_json and len(files) == 1 and not is_url(files[0])
    for path, asked, found in _in_order(counting("scanning", search, wanted=alone), quiet=quiet):
        try:
            one = found()
        except CheckpointError as error:
            if len(files) == 1 and asked:
                raise
            status = 2
            failed += 1
            documents.fail(error, path)
            say_error(error)
            continue
        if not one.checkpoint and not asked:
            skipped += 1
            continue
        status = max(status, _STATUS[one.verdict])
        verdicts[one.verdict] += 1
        if documents.wanted:
            documents.add(one.as_json())
        elif not quiet or one.verdict != "safe":
            click.echo(scan_text(one, everything=verbose, width=terminal_width()))
    for failure in search.failures:
        status = 2
        failed += 1
        documents.fail(failure)
        say_error(failure)
    left_alone = search.left_alone
    documents.end(skipped=skipped, not_followed=left_alone)
    if not quiet and not documents.wanted:
        for line in totals_text(verdicts, failed=failed, skipped=skipped):
            click.echo(line)
    if left_alone and not documents.wanted:
        click.echo(not_followed(left_alone))
    return status or (2 if left_alone else 0)


#: Endings of files that another process reads, which first imports a library; and files that wait for one of them.
_READ_APART = (".h5", ".hdf5")
_MOST_WAITING = 256


class _Waiting(NamedTuple):
    """A file, whether it was named itself, and what gives its report or raises why there is none."""

    path: str
    asked: bool
    found: Callable[[], report.Scan]
    is_there: Callable[[], bool]


def _in_order(
    files: Iterable[tuple[str, bool]], *, quiet: bool
) -> Iterator[tuple[str, bool, Callable[[], report.Scan]]]:
    """FILES, each with what gives its report, in their order. While one is read apart, those behind it are scanned."""
    waiting: deque[_Waiting] = deque()
    for number, (path, asked) in enumerate(files):
        collect(number)
        beside = path.lower().endswith(_READ_APART) and not is_url(path)
        waiting.append(_Waiting(path, asked, *(_begun if beside else _scanned)(path, quiet)))
        while waiting and (waiting[0].is_there() or len(waiting) > _MOST_WAITING):
            yield waiting.popleft()[:3]
    for one in waiting:
        yield one[:3]


def _scanned(path: str, quiet: bool) -> tuple[Callable[[], report.Scan], Callable[[], bool]]:
    """What gives the report of a file, which is made now, and whether it is there."""
    try:
        with fetching(path, wanted=not quiet):
            one = report.scan(path)
    except Exception as error:
        failure = error
        return lambda: _raise(failure), lambda: True
    return lambda: one, lambda: True


def _begun(path: str, quiet: bool) -> tuple[Callable[[], report.Scan], Callable[[], bool]]:
    """The same, of a report that a thread makes. Nobody waits for it where the command ends before."""
    from threading import Thread

    made: list[Callable[[], report.Scan]] = []
    thread = Thread(target=lambda: made.append(_scanned(path, quiet)[0]), daemon=True)
    thread.start()

    def found() -> report.Scan:
        thread.join()
        return made[0]()

    return found, lambda: not thread.is_alive()


def _raise(error: Exception) -> NoReturn:
    raise error
