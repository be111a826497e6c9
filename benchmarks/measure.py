"""Running a command, and what it took."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

#: The words of a command. {src}, {dst}, {other}, {python} and {ckptool} are filled in.
Command = tuple[str, ...]


#: Bytes of what a command says that are looked at.
_LAST = 1000


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


def run_once(command: Command, source: Path, target: Path, other: Path, ends: tuple[int, ...] = (0,)) -> Run:
    """Run COMMAND, with its places filled in; it ends with one of the codes ENDS.

    Raises:
        Failed: it ended with another.
    """
    places = {"{src}": source, "{dst}": target, "{dst}.pth": target.with_name(f"{target.name}.pth"), "{other}": other}
    places |= {"{python}": sys.executable, "{ckptool}": ckptool_path()}
    words = [str(places.get(word, word)) for word in command]
    # an installed package has its modules compiled
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    said = target.with_name("said")
    with said.open("wb") as out:
        begin = perf_counter()
        # some programs leave files where they run
        child = subprocess.Popen(words, stdout=out, stderr=out, env=environment, cwd=tempfile.gettempdir())
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wall = perf_counter() - begin
        passed = _passed(child.pid)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in ends:
        raise Failed(f"{' '.join(words)}\nended with {child.returncode}: {said.read_text(errors='replace')[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = used.ru_utime + used.ru_stime
    with said.open("rb") as out:
        out.seek(max(said.stat().st_size - _LAST, 0))  # not the whole: what this process holds counts as its children's
        last = out.read().decode("utf-8", "replace").splitlines()[-1:]
    if last and last[0].startswith("@ "):
        wall, cpu = map(float, last[0].split()[1:])
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
