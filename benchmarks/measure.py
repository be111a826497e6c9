"""Running commands in turn, and what they took."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from .cases import Case, Command
from .inputs import check

#: The ways through torch take several times as long, and nothing hangs on their third digit.
_RUNS_OF_OTHERS = 2


class Failed(Exception):
    """A command that was to be measured did not succeed."""


@dataclass(frozen=True)
class Run:
    """What one child process took.

    Attributes:
        wall, cpu: seconds on the clock and of CPU; of a command that prints "@ SECONDS CPU", those.
        peak: peak resident memory in MB.
        read, written: bytes that it read and wrote by system calls; None where the system does not tell.
    """

    wall: float
    cpu: float
    peak: float
    read: int | None = None
    written: int | None = None


@dataclass(frozen=True)
class Result:
    """All counted runs of one way to do a case, round by round."""

    way: str
    runs: tuple[Run, ...]
    ratios: tuple[float, ...]  # of its wall time to that of the baseline in the same round

    @property
    def wall(self) -> float:
        return median(run.wall for run in self.runs)

    @property
    def cpu(self) -> float:
        return median(run.cpu for run in self.runs)

    @property
    def peak(self) -> float:
        return max(run.peak for run in self.runs)

    @property
    def ratio(self) -> float:
        return median(self.ratios)


def measure(case: Case, folder: Path, rounds: int) -> list[Result]:
    """Run the ways of CASE in turn, A B C A B C …, so that all of them meet the same moods of the machine;
    those after the second way sit out later rounds.

    The first round is not counted: it fills the caches, and what ckptool writes in it is checked.
    """
    source, target = folder / case.source, folder / f"out{case.suffix}"
    runs: dict[str, list[Run]] = {way: [] for way in case.ways}
    for number in range(rounds * case.rounds + 1):
        for place, (way, command) in enumerate(case.ways.items()):
            if place > 1 and number > _RUNS_OF_OTHERS:
                continue
            run = run_once(command, source, target, folder / case.other)
            if number:
                runs[way].append(run)
            elif way == "ckptool" and target.exists():
                check(source, target, case.prefix, case.location, case.dtype)
            for left in target.parent.glob(f"{target.name}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            os.sync()  # what one leaves behind must not slow the next
    baseline = next(iter(runs.values()))
    return [
        Result(way, tuple(mine), tuple(m.wall / b.wall for m, b in zip(mine, baseline, strict=False)))
        for way, mine in runs.items()
    ]


def run_once(command: Command, source: Path, target: Path, other: Path) -> Run:
    places = {"{src}": source, "{dst}": target, "{dst}.pth": target.with_name(f"{target.name}.pth"), "{other}": other}
    places |= {"{python}": sys.executable, "{ckptool}": ckptool_path()}
    words = [str(places.get(word, word)) for word in command]
    # an installed package has its modules compiled
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    said = target.with_name("said")
    with said.open("wb") as out:
        begin = perf_counter()
        child = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wall = perf_counter() - begin
        passed = _passed(child.pid)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise Failed(f"{' '.join(words)}\nended with {child.returncode}: {said.read_text(errors='replace')[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = used.ru_utime + used.ru_stime
    with said.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("@ "):
                wall, cpu = map(float, line.split()[1:])
    return Run(wall, cpu, used.ru_maxrss * unit / 1e6, *passed)


def _passed(pid: int) -> tuple[int | None, int | None]:
    """Bytes that a process that has ended, and its children, read and wrote. What is mapped is not among them."""
    try:
        found = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    except OSError:
        return None, None
    return int(found["rchar"]), int(found["wchar"])


def ckptool_path() -> str:
    found = shutil.which("ckptool", path=os.path.dirname(sys.executable)) or shutil.which("ckptool")
    if found is None:
        raise Failed("the command ckptool is not installed")
    return found
