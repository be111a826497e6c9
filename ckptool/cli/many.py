"""Many files with one command: which they are, what each becomes, and a line for each.

Without --in-place and --out-dir two arguments are IN and OUT. With one of them every argument is an IN: a file, or a
folder that is a checkpoint; with -r, a folder is searched for both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import click

from .. import formats
from ..disk.addresses import address_of, as_path, is_url
from ..disk.door import make_directories
from ..disk.paths import is_folder, is_there, reason
from ..drawing.sizes import size_text
from ..drawing.styles import paint
from ..errors import CheckpointError, OutputExists, RuleError, counted, printable
from ..formats.opening import holds_one
from ..records import record
from . import launched
from .documents import Documents
from .output import collect

_ONE = "leave out --in-place to write to another file"
#: Endings of files that are taken for checkpoints in a folder that is searched.
_ENDINGS = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".pth.tar", ".t7", ".th")
#: What one rewrite gives: the plan that was carried out, keys that changed, and notes.
Done = tuple[formats.Plan, list[tuple[str, str]], list[str]]


@record(frozen=True, slots=True)
class Job:
    """One file of many: where it is, and where it goes. Without TARGET it is replaced."""

    source: str
    target: str | None


def sort_out(options: dict[str, Any], *, as_folder: bool = False) -> list[Job] | None:
    """Make `source` and `target` of the arguments of a command; or the jobs of one with several files.

    Args:
        options: of the command; its `paths`, `recursive` and `out_dir` are taken out.
        as_folder: what is written are folders, whatever their names.
    """
    if "paths" not in options:  # a command with inputs of its own
        return None
    paths, out_dir, recursive = options.pop("paths"), options.pop("out_dir"), options.pop("recursive")
    in_place, output = options["in_place"], options["output"]
    if out_dir is not None and (in_place or output is not None):
        raise click.UsageError(f"--out-dir and {'--in-place' if in_place else '-o'} exclude each other.")
    if in_place and output is not None:
        raise click.UsageError("--in-place replaces IN; OUT must not be given with it.")
    if out_dir is None and not in_place:
        if recursive:
            raise click.UsageError("-r goes with --in-place or --out-dir.")
        if len(paths) > 2:
            raise click.UsageError("Several files need --in-place or --out-dir DIR.")
        options["source"], options["target"] = paths[0], paths[1] if len(paths) > 1 else None
        return None
    if in_place and len(paths) == 1 and not recursive:
        options["source"], options["target"] = paths[0], None
        return None
    options["target"] = None
    if in_place and (absent := [path for path in paths if not is_url(path) and not is_there(path)]):
        raise RuleError(
            "is not there, and with --in-place every argument is a file that is replaced", where=absent[0], hint=_ONE
        )
    if launched.ranks() is not None:
        raise RuleError("several files are not divided among ranks", where="torchrun", hint="run it without torchrun")
    found = _apart(list(_jobs(paths, out_dir, options["format_"], recursive=recursive, as_folder=as_folder)), out_dir)
    if not found:
        raise RuleError("holds no file that may be a checkpoint", where=printable(paths[0]), hint="name the files")
    _keep_inputs(found)
    return found


def _apart(jobs: list[Job], out_dir: str | None) -> list[Job]:
    """JOBS of which no two have one target: those that would keep the endings of their sources, w.pt.safetensors, or
    else the folders that they are in."""
    for named in (_with_ending, _with_folder):
        seen = Counter(job.target for job in jobs if job.target is not None)
        jobs = [
            Job(job.source, named(job, str(out_dir)) if job.target is not None and seen[job.target] > 1 else job.target)
            for job in jobs
        ]
    return jobs


def _with_ending(job: Job, out_dir: str) -> str:
    target, source = str(job.target), PurePath(job.source)
    name = target.replace("\\", "/").rpartition("/")[2]
    kept = source.name + PurePath(name).suffix
    return target if name == source.name or is_folder(job.source) else target[: len(target) - len(name)] + kept


def _with_folder(job: Job, out_dir: str) -> str:
    parent = PurePath(job.source).parent
    name = str(job.target).rpartition("/")[2]
    if is_url(job.source) or parent.is_absolute() or ".." in parent.parts:
        return str(job.target)
    return address_of(as_path(out_dir) / parent / name)


def _keep_inputs(jobs: Sequence[Job]) -> None:
    """Refuse jobs of which one would be written over the input of another, which may not have been read yet."""
    sources = {_identity(job.source): job.source for job in jobs if not is_url(job.source)}
    for job in jobs:
        other = None if job.target is None else sources.get(_identity(job.target))
        if other is not None and other != job.source:
            raise RuleError(
                f"the output for {printable(job.source)} would replace {printable(other)}, which this command names",
                where="--out-dir",
                hint="--out-dir ANOTHER_FOLDER",
            )


def _identity(path: str) -> Any:
    """The same for two names of one file; of a file that is not there, its name alone."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _jobs(
    paths: Sequence[str], out_dir: str | None, format_: str | None, *, recursive: bool, as_folder: bool
) -> Iterator[Job]:
    seen: set[str] = set()
    for path in paths:
        for source, name in _sources(path, recursive, out_dir):
            real = source if is_url(source) else os.path.realpath(source)
            if real not in seen:
                seen.add(real)
                if out_dir is None:
                    yield Job(source, None)
                else:  # of a URL, `Path` would make a folder here that is called s3:
                    yield Job(source, address_of(as_path(out_dir) / _named(name, source, format_, as_folder)))


def _sources(path: str, recursive: bool, out_dir: str | None) -> Iterator[tuple[str, str]]:
    """The checkpoints that an argument means, each with its name below --out-dir."""
    if not (recursive and is_folder(path)) or holds_one(path):
        yield path, Path(path).name or Path(path).resolve().name
        return
    leave = None if out_dir is None else os.path.realpath(out_dir)
    for folder, inner, names in os.walk(path):
        here = Path(folder)
        shown = [one for one in inner if not one.startswith(".") and os.path.realpath(here / one) != leave]
        whole = [one for one in shown if holds_one(here / one)]
        inner[:] = sorted(set(shown) - set(whole))
        files = [one for one in names if one.lower().endswith(_ENDINGS) and not one.startswith(".")]
        for name in sorted([*files, *whole]):
            yield str(here / name), os.path.relpath(here / name, path)


def _named(name: str, source: str, format_: str | None, as_folder: bool) -> str:
    """The name of the output: that of the source, with the ending of the format that is asked for."""
    chosen = formats.named_format(format_) if format_ else None
    if as_folder or chosen in formats.FOLDERS:
        whole = name[: -len(".tar")] if name.lower().endswith(".pth.tar") else name
        return name if is_folder(source) else str(Path(whole).with_suffix(""))
    endings = chosen.suffixes if chosen is not None else ()
    if endings and name.lower().endswith(".pth.tar") and ".tar" not in endings:
        name = name[: -len(".tar")]
    if is_folder(source):
        return name + endings[0] if endings else name
    return name if not endings or Path(name).suffix.lower() in endings else str(Path(name).with_suffix(endings[0]))


def run_each(jobs: Sequence[Job], one: Callable[[dict[str, Any]], Done], command: str, options: dict[str, Any]) -> int:
    """Rewrite one file after the other; one that fails does not stop the others. Returns the worst exit code.

    Args:
        jobs: the files.
        one: rewrites one with its options.
        command: for the document of --json.
        options: of all; each gets a copy.
    """
    quiet, dry_run = options["quiet"], options["dry_run"]
    documents = Documents(command, as_json=options["as_json"], as_lines=options["as_lines"])
    taken: dict[Any, str] = {}
    failed = 0
    for number, job in enumerate(jobs):
        collect(number)
        try:
            plan, renamed, notes = _one(job, one, options, taken)
        except (CheckpointError, OSError) as error:
            failed += 1
            what = error.what.rstrip(":") if isinstance(error, CheckpointError) else reason(error)
            what += "; -r looks into folders" if is_folder(job.source) and not holds_one(job.source) else ""
            documents.fail(error, job.source)
            if not documents.wanted:
                click.echo(f"{paint('FAILED', 'bad')} {paint(printable(job.source), 'name')}: {what}", err=True)
            continue
        entry = {"source": job.source, "dry_run": dry_run, **plan.as_json()}
        entry |= {"notes": notes} if notes else {}
        entry |= {"renamed": [{"from": a, "to": b} for a, b in renamed]} if renamed else {}
        documents.add(entry)
        if not (quiet or documents.wanted):
            verb = paint("would write" if dry_run else "wrote", "good")
            said = "; ".join([*plan.steps, *(f"LOST, as allowed: {line}" for line in plan.content), *notes])
            line = f"{verb} {paint(printable(str(plan.path)), 'name')}: {plan.format}, {size_text(plan.nbytes)}"
            click.echo(f"{line}{f'; {said}' if said else ''}", err=not dry_run)
    documents.end(failed=failed)
    if not (quiet or documents.wanted):
        done = f"{len(jobs) - failed:,} {'would be written' if dry_run else 'written'}"
        click.echo(f"{counted(len(jobs), 'file')}: {done}, {failed:,} failed", err=not dry_run)
    return 2 if failed else 0


def _one(job: Job, one: Callable[[dict[str, Any]], Done], options: dict[str, Any], taken: dict[Any, str]) -> Done:
    mine = {**options, "source": job.source, "target": job.target}
    if job.target is not None:
        place = _identity(job.target)
        if place in taken:
            raise OutputExists(f"{printable(taken[place])} goes there, too", where=job.target)
        taken[place] = taken[os.path.realpath(job.target)] = job.source
        folder = Path(job.target).parent
        if is_url(job.target):
            pass  # a store has no folders to make
        elif options["dry_run"]:
            mine["new_folder"] = not folder.exists()  # nobody has to make it for that
        else:
            make_directories(folder)
    done = one(mine)
    if job.target is not None:
        taken[_identity(job.target)] = job.source  # a disk may take two names for one, as A.pth and a.pth
    return done
