"""Commands that write, and ways in which a run of one can fail.

`make faults` interrupts every command at random moments with signals (see `interrupted`), in forks of one process, so
that thousands of runs take minutes. `tests/disk/test_faults.py` lets every call of the system that writes fail once.

After each run the target must be absent, the old one or the new one, whole; the input untouched; nothing but what the
record of the run names may be left, and that only by SIGKILL; and the same command must then do what it should.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import ckptool
from ckptool.cli import main
from ckptool.disk.patching import settle
from ckptool.disk.runs import SUFFIX
from ckptool.reports.diagnosis.leftovers import remove_leftovers


@dataclass(frozen=True)
class Command:
    """A command line that writes OUT.

    Attributes:
        words: the command; IN and OUT stand for the paths.
        target: what it writes, a file or a folder.
        in_place: whether the target is its input.
        old: how an old target is made, if it may have one.
    """

    words: str
    target: str = "out.pt"
    in_place: bool = False


COMMANDS = {
    "strip": Command("strip-prefix in.pt out.pt --overwrite"),
    "remap": Command("remap in.pt out.pt -m cpu --overwrite"),
    "legacy": Command("convert in.pt out.pt -t legacy --overwrite"),
    "safetensors": Command("convert in.pt out.safetensors --overwrite", "out.safetensors"),
    "cast": Command("convert in.pt out.safetensors --cast bf16 --overwrite", "out.safetensors"),
    "shards": Command("convert in.pt out --max-shard-size 300KB --overwrite", "out"),
    "dcp": Command("convert in.pt out -t dcp --overwrite", "out"),
    "average": Command("average in.pt in.pt -o out.pt --overwrite"),
    "in place": Command("add-prefix out.pt --prefix x. --in-place", in_place=True),
    "in place, backup": Command("add-prefix out.pt --prefix x. --in-place --backup .bak", in_place=True),
    "folder in place": Command("add-prefix out --prefix x. --in-place", "out", in_place=True),
    "folder in place, backup": Command("add-prefix out --prefix x. --in-place --backup .bak", "out", in_place=True),
    "patch": Command("strip-prefix out.pt --prefix old. --in-place --patch", in_place=True),
    "transfer": Command("transfer in.pt net.py:Net -o out.pt --overwrite"),
}
NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(256, 256) for _ in range(4)])
        self.head = torch.nn.Linear(256, 8)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""


def digest(path: Path) -> str:
    """What is at a path: its bytes, or those of all files in the folder."""
    if path.is_dir():
        return hashlib.sha256(repr([(p.name, digest(p)) for p in sorted(path.iterdir())]).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "absent"


class Bench:
    """A folder with inputs, in which one command is run again and again.

    Args:
        folder: an empty folder.
        command: the command.
        old: whether the target exists before.
        kilobytes: size of each tensor.
    """

    def __init__(self, folder: Path, command: Command, *, old: bool, kilobytes: int = 4) -> None:
        self.folder, self.command, self.old = folder, command, old or command.in_place
        from strategies import state_dict_of, tensor_of

        source = folder / "source"
        source.mkdir(parents=True)
        sizes = {f"module.layers.{n}.weight": (256, kilobytes) for n in range(4)}
        if "transfer" in command.words:
            sizes = {f"module.layers.{n}.weight": (256, 256) for n in range(4)}
            sizes |= {f"module.layers.{n}.bias": (256,) for n in range(4)}
            sizes |= {"module.head.weight": (8, 256), "module.head.bias": (8,)}
        ckpt = state_dict_of({key: tensor_of("float32", shape) for key, shape in sizes.items()})
        ckptool.save(ckpt, source / "in.pt")
        (source / "net.py").write_text(NET)
        if self.old:
            options = {"max_shard_size": 300_000} if command.target == "out" else {}
            ckptool.save(ckptool.add_prefix(ckpt, "old."), source / command.target, **options)
        self.source = source
        self.inputs = {p.name: digest(p) for p in source.iterdir() if p.name != command.target}
        self.begin()
        assert self.run() == 0
        self.new = digest(self.work / command.target)
        self.before = digest(source / command.target)

    @property
    def work(self) -> Path:
        """Where the command runs."""
        return self.folder / "work"

    def begin(self) -> None:
        """Put everything back to how it was."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.source, self.work)

    def run(self) -> int:
        """Run the command in this process. Returns its exit code."""
        before = Path.cwd()
        os.chdir(self.work)
        try:
            main([*self.command.words.split(), "-q"])
        except SystemExit as left:
            return int(left.code or 0)
        finally:
            os.chdir(before)
        return 0

    def judge(self, status: int | None, *, killed: bool) -> list[str]:
        """What is wrong after a run that may have failed; STATUS is its exit code, or None if it was killed."""
        wrong = []
        if "--patch" in self.command.words and killed:
            settle(self.work / self.command.target)
        target = digest(self.work / self.command.target)
        left = [p.name for p in self.work.iterdir() if p.name.endswith(SUFFIX)]
        if target not in (self.before, self.new):
            backup = self.work / f"{self.command.target}.bak"
            if not (target == "absent" and killed and digest(backup) == self.before):
                wrong.append("torn" if target != "absent" else "gone")
        if status == 0 and target != self.new:
            wrong.append("says it is done")
        if {p.name: digest(p) for p in self.source.iterdir() if p.name != self.command.target} != self.inputs:
            wrong.append("input changed")
        if any(digest(self.work / name) != value for name, value in self.inputs.items()):
            wrong.append("input changed")
        if left and not killed and self.command.target != "out":
            wrong.append("left " + left[0])
        if target == self.new and self.command.in_place:
            return wrong  # a second run would add the prefix twice
        shutil.rmtree(self.work / f"{self.command.target}.bak", ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.work / f"{self.command.target}.bak").unlink()
        if self.run() != 0 or digest(self.work / self.command.target) != self.new:
            wrong.append("the next run does not do it")
        wrong += [f"kept: {one.why}" for one in remove_leftovers(self.work) if not one.removed]
        if any(p.name.endswith(SUFFIX) for p in self.work.iterdir()):
            wrong.append("something is left")
        return wrong


def interrupted(bench: Bench, number: int, delay: float) -> tuple[int | None, bool]:
    """Run the command in a fork, and send it a signal after DELAY seconds. Returns its exit code, or that it died."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # a child that is just being born is not to end as its parent
    child = os.fork()
    if child == 0:
        status = 130  # of a signal that arrives outside of the command
        with contextlib.suppress(BaseException):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(one, signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process
            status = bench.run()
        os._exit(status)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None, True
    return os.WEXITSTATUS(status), False


def signalled(folder: Path, moments: int, seed: int) -> int:
    """Interrupt every command at random moments, and print what became of it. Returns how often something was wrong."""
    draw = random.Random(seed)
    bad = 0
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401 - so that forks have it

    for name, command in COMMANDS.items():
        if "transfer" in command.words and "torch" not in sys.modules:
            continue
        for old in [True] if command.in_place else [False, True]:
            bench = Bench(folder / f"{name} {old}".replace(" ", "-"), command, old=old, kilobytes=256)
            bench.begin()
            began = time.perf_counter()
            interrupted(bench, 0, 0)
            took = time.perf_counter() - began
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                seen: Counter[str] = Counter()
                for _ in range(moments):
                    bench.begin()
                    status, killed = interrupted(bench, number, draw.uniform(0, 1.1 * took))
                    wrong = bench.judge(status, killed=killed)
                    fine = "done" if status == 0 else "interrupted"
                    seen["WRONG: " + ", ".join(wrong) if wrong else fine] += 1
                    bad += bool(wrong)
                told = ", ".join(f"{count} {what}" for what, count in sorted(seen.items()))
                print(f"{name:24} {'old' if old else 'new'}  {signal.Signals(number).name:8} {told}", flush=True)
    return bad


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        moments, seed = (int(os.environ.get(name, default)) for name, default in (("MOMENTS", "50"), ("SEED", "1")))
        found = signalled(Path(place), moments, seed)
    print(f"{found} runs went wrong")
    sys.exit(1 if found else 0)
