"""Measure every case and print one table."""

import argparse
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from .cases import CASES, Case
from .inputs import describe, make
from .measure import Failed, Result, measure
from .memory import report

_UNITS = {"M": 1 << 20, "G": 1 << 30}


def _size(text: str) -> int:
    number, unit = text[:-1], text[-1:].upper()
    if unit not in _UNITS or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 256M or 1G")
    return int(number) * _UNITS[unit]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--size", type=_size, default="1G", help="bytes of each input, as 256M or 1G (default: 1G)")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds of each case (default: 5)")
    parser.add_argument("--only", action="append", metavar="NAME", choices=[*(case.name for case in CASES), "memory"])
    parser.add_argument("--dir", type=Path, help="where to write; on the disk that matters (default: benchmarks/out)")
    parser.add_argument("--keep", action="store_true", help="keep the inputs")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


def _row(name: str, *cells: str) -> str:
    return (
        f"  {name:<28}" + "".join(f"{cell:>10}" for cell in cells[:4]) + "".join(f"   {cell:<12}" for cell in cells[4:])
    )


def _table(case: Case, results: list[Result]) -> str:
    lines = [f"{case.name}: {case.title}"]
    baseline = results[0]
    for result in results:
        cells = [f"{result.wall:.3f} s", f"{result.cpu:.3f} s", f"{result.peak:,.0f} MB"]
        if result is not baseline:
            cells += [f"{result.ratio:.2f} x", f"{min(result.ratios):.2f} – {max(result.ratios):.2f}"]
        if result.way == "ckptool":
            cells.append(_verdict(case, result))
        lines.append(_row(result.way, *cells).rstrip())
    return "\n".join(lines)


def _verdict(case: Case, result: Result) -> str:
    time = f"{'within' if result.ratio <= case.limit else 'OVER'} {case.limit:.2f} x"
    return time if result.peak <= case.memory else f"{time}, OVER {case.memory} MB"


def main() -> None:
    options = _options()
    cases = [case for case in CASES if not options.only or case.name in options.only]
    parent = options.dir or Path(__file__).with_name("out")
    parent.mkdir(parents=True, exist_ok=True)
    print(
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, torch {version('torch')}; "
        f"{options.runs} rounds, the input in the page cache"
    )
    print("\n".join(describe(options.size)))
    print("ratio: wall time to that of the first line in the same round, then its smallest and largest")
    print("wall, CPU, ratio: medians; peak: the largest, and never below what this process takes itself\n")
    print(_row("", "wall", "CPU", "peak", "ratio", "pair by pair", "wanted").rstrip())
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="run-"))
    try:
        make(folder, {name for case in cases for name in (case.source, case.other) if name}, options.size)
        for case in cases:
            print(_table(case, measure(case, folder, options.runs)), flush=True)
        if not options.only or "memory" in options.only:
            print(report(folder))
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"Error: {error}")
