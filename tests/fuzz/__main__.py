"""Ask of mutants, by the thousand: `python -m tests.fuzz run zip --mutants 1000`, `python -m tests.fuzz one zip 42`."""

import argparse
import faulthandler
import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from . import seeds
from .judge import Judge, memory_limit
from .mutants import Mutants

ROOT = Path(__file__).parents[2]
_SHOWN = 3
#: Seconds on the clock after which the process is taken to hang where no signal reaches it.
_HANGS = 600


def options():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the number that all mutants follow from")
    parser.add_argument("--seeds", type=Path, default=ROOT / "build/fuzz/seeds", help="where the valid files are kept")
    parser.add_argument("--findings", type=Path, default=ROOT / "build/fuzz/findings", help="where mutants are kept")
    parser.add_argument("--dir", type=Path, help="a folder for files that live for a moment (default: in memory)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("seeds", help="make the valid files anew")
    run = commands.add_parser("run", help="ask of mutants")
    run.add_argument("family", choices=[*seeds.FAMILIES, "all"])
    run.add_argument("--mutants", type=int, default=1000)
    run.add_argument("--first", type=int, default=0, help="number of the first one")
    one = commands.add_parser("one", help="ask everything of one mutant, and keep it")
    one.add_argument("family", choices=seeds.FAMILIES)
    one.add_argument("number", type=int)
    files = commands.add_parser("files", help="ask everything of files")
    files.add_argument("paths", type=Path, nargs="+")
    return parser.parse_args()


def working_folder(wanted=None):
    """A folder of our own, in memory where that can be."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="ckptool-fuzz-", dir=wanted or (memory if memory.is_dir() else None)))


def put(place, files):
    """Write a mutant to PLACE, whatever was there."""
    if place.is_dir():
        shutil.rmtree(place)
    if "" in files:
        place.write_bytes(files[""])
        return
    place.unlink(missing_ok=True)
    place.mkdir()
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)


def place_of(folder, name, files):
    return folder / ("in" + Path(name).suffix if "" in files else "in")


def opened_at(place, files):
    """What is opened of a mutant: itself, or the file of a folder that names the others."""
    return next((place / name for name in seeds.OPENED if name in files), place)


def run(family, given, work, judge):
    """Ask of many mutants. Returns the number of different findings."""
    mutants = Mutants(family, seeds.read(given.seeds, family), given.seed)
    known = {}
    began, clock = time.process_time(), time.monotonic()
    count = -(-given.mutants // seeds.CHILDREN.get(family, 1))
    for number in range(given.first, given.first + count):
        faulthandler.dump_traceback_later(_HANGS, exit=True)
        name, files, rng = mutants[number]
        place = place_of(work, name, files)
        put(place, files)
        for finding in judge.ask(opened_at(place, files), rng):
            known.setdefault(finding.kind, []).append(number)
            if len(known[finding.kind]) <= _SHOWN:
                report(finding, family, number, given)
                keep(given.findings / f"{family}-{given.seed}-{number}-{name}", files)
        if (number + 1) % 10_000 == 0:
            gc.collect()
            told(family, number + 1 - given.first, began, clock, judge)
    faulthandler.cancel_dump_traceback_later()
    told(family, count, began, clock, judge, known)
    return len(known)


def told(family, count, began, clock, judge, known=None):
    seconds = time.process_time() - began
    with open("/proc/self/statm") as status:
        resident = int(status.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
    done = sum(n for (how, asked), n in judge.outcomes.items() if (how, asked) == ("done", "open"))
    print(
        f"{family}: {count:,} mutants, {done:,} opened, {seconds:,.0f} s CPU, {time.monotonic() - clock:,.0f} s, "
        f"slowest {judge.slowest:.2f} s, {resident:,.0f} MB, {len(os.listdir('/proc/self/fd'))} descriptors",
        flush=True,
    )
    for kind, numbers in (known or {}).items():
        print(f"  FOUND {len(numbers):,} times: {' | '.join(map(str, kind))}: first {numbers[0]}")


def report(finding, family, number, given):
    print(f"\nFINDING {family} {number} [{finding.asked}] {finding.what[:600]}")
    print("".join(f"  | {line}\n" for line in finding.detail.splitlines()[-12:]), end="")
    seed = f" --seed {given.seed}" if given.seed != 1 else ""
    print(f"  again: .venv/bin/python -m tests.fuzz{seed} one {family} {number}", flush=True)


def keep(place, files):
    place.parent.mkdir(parents=True, exist_ok=True)
    put(place, files)


def main():
    given = options()
    given.seeds, given.findings = given.seeds.resolve(), given.findings.resolve()
    if given.command == "seeds":
        seeds.write(given.seeds)
        return 0
    work = working_folder(given.dir)
    if given.command == "files":
        given.paths = [path.resolve() for path in given.paths]
    try:
        return ask(given, work)
    finally:
        os.chdir(ROOT)
        shutil.rmtree(work, ignore_errors=True)


def ask(given, work):
    import random

    family = getattr(given, "family", None)
    families = seeds.FAMILIES if family == "all" else [family] if family else []
    valid = {family: seeds.read(given.seeds, family) for family in families}
    judge = Judge(work, torch=_has_torch())
    for family, ones in valid.items():  # what is loaded when it is first used; and valid files have no findings
        for name, files in ones:
            place = place_of(work, name, files)
            put(place, files)
            for finding in judge.ask(opened_at(place, files), random.Random(0), everything=True):
                print(f"VALID {family} {name}: {finding}")
    judge.outcomes.clear()
    judge.slowest = 0.0
    gc.collect()
    gc.freeze()
    with memory_limit():
        if given.command == "files":
            found = [(path, one) for path in given.paths for one in judge.ask(path, random.Random(0), everything=True)]
            for path, one in found:
                print(f"{path}: [{one.asked}] {one.what}\n{one.detail}")
            return bool(found)
        if given.command == "one":
            name, files, rng = Mutants(given.family, valid[given.family], given.seed)[given.number]
            kept = given.findings / f"{given.family}-{given.seed}-{given.number}-{name}"
            keep(kept, files)
            print(f"{kept}: from {name}")
            place = place_of(work, name, files)
            put(place, files)
            at = opened_at(place, files)
            found = [*judge.ask(at, rng), *judge.ask(at, rng, everything=True)]
            for finding in found:
                report(finding, given.family, given.number, given)
            return bool(found)
        return bool(sum([run(family, given, work, judge) for family in families]))


def _has_torch():
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
