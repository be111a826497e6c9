"""`make bench`: one table of ckptool beside `cp`, torch, safetensors and programs of others, all in the same run.

All ways to do a job run in turn, and a ratio is of wall times within one round. The reference and ckptool run in every
round; the others, which take several times as long, in two, or in one where there are more than 2 GB.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import monotonic

from .measure import Failed, Run, ckptool_path, run_once
from .points import PEERS, Point, Row, rows

_OTHERS = 2
_LARGE = 2 * 10**9
_QUICK = 64 * 10**6
_HOME = Path(__file__).parents[1]
#: In the documents, between lines like these.
_BEGIN, _END = "<!-- make bench: {} -->", "<!-- end of make bench: {} -->"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 MB for 1 GB, three rounds, fewer points")
    parser.add_argument("--rounds", type=int, help="rounds of each row (default: 9)")
    parser.add_argument("--minutes", type=float, help="stop beginning rows after this time (default: 55; quick: 2.5)")
    parser.add_argument("--dir", type=Path, help="where to write; on the disk that matters (default: benchmarks/out)")
    parser.add_argument("--peers", type=Path, default=_HOME / "build/peers/bin", help="where programs of others are")
    parser.add_argument("--only", metavar="TEXT", help="rows with this in their words")
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the table into docs/performance.md and the README; with --only, its rows in place of theirs",
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 9)
    options.minutes = options.minutes or (2.5 if options.quick else 55)
    wanted = [
        row
        for row in rows(*([_QUICK] if options.quick else []), quick=options.quick)
        if options.only is None or options.only in f"{row.job}, {row.point.words}"
    ]
    parent = options.dir or Path(__file__).with_name("out")
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="table-"))
    try:
        lines, told = measured(wanted, folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.write and options.only is not None:
        page = _HOME / "docs/performance.md"
        write(page, "table", [about(options), "", *renewed(between(page, "table"), lines)])
    elif options.write:
        write(_HOME / "docs/performance.md", "table", [about(options), "", *lines])
        write(_HOME / "README.md", "three lines", told)


def about(options: argparse.Namespace) -> str:
    """The machine, and the versions of everything."""
    programs = []
    for name in ("torch", "safetensors", "numpy", "isal"):
        try:
            programs.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            programs.append(f"no {name}")
    for name, package in PEERS.items():
        if peer(name, options.peers):
            programs.append(f"{name} {_version_of(package, options.peers)}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{date.today()}: {os.cpu_count()} cores, {memory:.0f} GB of memory, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {', '.join(programs)}; {options.rounds} rounds (others than the first "
        f"two ways: {_OTHERS}), inputs in the page cache."
    )


def _version_of(package: str, folder: Path) -> str:
    python = folder / "python"
    ask = f"from importlib.metadata import version; print(version({package!r}))"
    if not python.exists():
        return ""
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False).stdout.strip()


def peer(name: str, folder: Path) -> str | None:
    """The program NAME of others, from their environment or from wherever it is installed."""
    return shutil.which(name, path=str(folder)) or shutil.which(name)


def measured(wanted: list[Row], folder: Path, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The lines of the table, and the three for the README. Each row is printed as soon as it is known."""
    begun = monotonic()
    head = "| job | way | time | ratio (smallest – largest) | CPU | memory | read | written |"
    lines, told = [about(options), "", head, "|---|---|---|---|---|---|---|---|"], []
    print("\n".join(lines), flush=True)
    made: set[Point] = set()
    for number, row in enumerate(wanted):
        points = [row.point, *([row.other] if row.other else [])]
        if monotonic() - begun > options.minutes * 60:
            cells = [f"| {row.job}: {row.point.words} | skipped: {options.minutes:g} minutes were over | | | | | | |"]
        else:
            for point in points:
                if point not in made:
                    make(point, folder / point.name)
                    made.add(point)
            try:
                runs, skipped = rounds(row, folder, options)
                cells = table(row, runs, skipped)
                if row.axis == "base" and row.job in ("strip-prefix", "to safetensors", "load"):
                    told.append(_sentence(row, runs))
            except Failed as error:
                cells = [f"| {row.job}: {row.point.words} | failed: {str(error).splitlines()[0][:100]} | | | | | | |"]
                print(error, file=sys.stderr)
        print("\n".join(cells), flush=True)
        lines += cells
        still = {one for later in wanted[number + 1 :] for one in (later.point, later.other)}
        for point in made - still:  # 8 GB of disk are not kept longer than they are needed
            _remove(folder / point.name)
        made &= still
    return lines[2:], told


def make(point: Point, path: Path) -> None:
    """Write an input, with torch, in a process of its own: this one must stay small."""
    words = (str(path), point.format, str(point.size), str(point.tensors))
    subprocess.run([sys.executable, "-m", "benchmarks.inputs", "make", *words], check=True, cwd=_HOME)
    os.sync()


def check(row: Row, source: Path, target: Path) -> None:
    """Refuse an output of ckptool that does not hold what its input holds.

    Raises:
        Failed: it does not.
    """
    words = (str(source), str(target), row.prefix, row.location, row.dtype)
    command = [sys.executable, "-m", "benchmarks.inputs", "check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_HOME)
    if done.returncode:
        raise Failed(f"{row.job}: {row.point.words}: {done.stderr.splitlines()[-1]}")


def rounds(row: Row, folder: Path, options: argparse.Namespace) -> tuple[dict[str, list[Run]], list[str]]:
    """What every way took, round by round, and why others were left out.

    The first round is not counted: it fills the caches, and what ckptool writes in it is checked. The first two ways
    change places from round to round: what one leaves in memory and on the disk meets the next.
    """
    programs = {name: peer(name, options.peers) for name in PEERS}
    ways, skipped = {}, []
    for way, command in row.ways.items():
        named = [match[1] for word in command if (match := re.fullmatch(r"\{peer:(.+)\}", word))]
        if all(programs[name] for name in named):
            ways[way] = tuple(programs[named[0]] if re.fullmatch(r"\{peer:.+\}", word) else word for word in command)
        else:
            skipped.append(f"{way}: not installed")
    source, target = folder / row.point.name, folder / f"out{row.suffix}"
    other = folder / row.other.name if row.other else source
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    others = 1 if options.quick or row.point.size > _LARGE else _OTHERS
    for number in range(options.rounds + 1):
        now = list(ways.items())[: None if number <= others and (number or not options.quick) else 2]
        measured = [way for way, _ in now[:2]]
        for way, command in [*(now[:2] if number % 2 else now[1::-1]), *now[2:]]:
            try:
                run = run_once(command, source, target, other, row.ends)
                if number:
                    runs[way].append(run)
                elif way == "ckptool" and row.suffix and row.point.size <= _LARGE and not options.quick:
                    check(row, other, target)
            except Failed as error:
                if way in measured:
                    raise
                skipped.append(f"{way}: {str(error).splitlines()[-1][:80]}")
                del ways[way], runs[way]
            for left in target.parent.glob("out*"):
                _remove(left)
            os.sync()  # what one leaves behind must not slow the next
    return runs, skipped


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def table(row: Row, runs: dict[str, list[Run]], skipped: list[str]) -> list[str]:
    """The lines of one row."""
    first = next(iter(runs.values()))
    lines = []
    for way, mine in runs.items():
        ratios = [one.wall / other.wall for one, other in zip(mine, first, strict=False)]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})" if mine is not first else ""
        cells = (
            "" if lines else f"{row.job}: {row.point.words}",
            way,
            _seconds(median(one.wall for one in mine)),
            ratio,
            _seconds(median(one.cpu for one in mine)),
            f"{max(one.peak for one in mine):,.0f} MB",
            _bytes([one.read for one in mine]),
            _bytes([one.written for one in mine]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| | {why.replace('|', '/')} | | | | | | |" for why in skipped]
    return lines


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 0.0995 else f"{value:.2f} s"


def _bytes(found: list[int | None]) -> str:
    known = [one for one in found if one is not None]
    return f"{median(known) / 1e6:,.1f} MB" if known else ""


def _sentence(row: Row, runs: dict[str, list[Run]]) -> str:
    """A line for the README."""
    first, *_ = runs
    (_, mine), torch = (list(runs.items())[1], runs.get("torch", []))
    ratio = median(one.wall / other.wall for one, other in zip(mine, runs[first], strict=False))
    beside = f"{ratio:.2f} times {first}" if first != "torch" else f"{ratio:.2f} times `torch.load`"
    also = f"; through torch {_seconds(median(one.wall for one in torch))}" if torch and first != "torch" else ""
    took, peak = _seconds(median(one.wall for one in mine)), max(one.peak for one in mine)
    return f"- {row.job}, {row.point.words}: {took}, {peak:,.0f} MB, {beside}{also}"


def renewed(found: list[str], measured: list[str]) -> list[str]:
    """The lines of an earlier table with the rows of MEASURED in place of its own; each begins with a job."""
    blocks: dict[str, list[str]] = {}
    job = ""
    for line in [line for line in (*found, "", *measured) if not line or line.startswith("|")]:
        begins = line.split("|")[1].strip() if line else ""
        if begins and begins != job:
            job, blocks[begins] = begins, []
        if line:
            blocks[job].append(line)
    return [line for lines in blocks.values() for line in lines]


def between(path: Path, name: str) -> list[str]:
    """The lines between the marks of NAME in a document."""
    begin, end = _BEGIN.format(name), _END.format(name)
    return path.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].splitlines()


def write(path: Path, name: str, lines: list[str]) -> None:
    """Put LINES between the marks of NAME in a document."""
    begin, end = _BEGIN.format(name), _END.format(name)
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    if not found or end not in rest:
        sys.exit(f"Error: {path} has no {begin} … {end}")
    path.write_text("\n".join((f"{before}{begin}", *lines, end)) + rest.partition(end)[2], encoding="utf-8")


if __name__ == "__main__":
    try:
        ckptool_path()
        main()
    except Failed as error:
        sys.exit(f"Error: {error}")
