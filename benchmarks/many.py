"""Files with many small tensors, beside the least that could read them: `python -m benchmarks.many [--only WORD]`.

Every way runs in processes of its own. What counts is CPU time, the least of the runs, and peak memory, which other
work on the machine hardly changes. Ways that print "@ SECONDS" are timed inside the process, behind its imports.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .measure import ckptool_path

COUNTS = (20_000, 100_000, 1_000_000)
_FIXTURES = Path(__file__).parent.parent / "fixtures"

#: The pickle of an archive through the pickle of C, where everything that it names is a tuple of its arguments.
_STAND_INS = """
import io, pickle, sys, zipfile
class Standin(dict):
    def __new__(cls, *args): return dict.__new__(cls)
    def __init__(self, *args): pass
class Stands(pickle.Unpickler):
    def find_class(self, module, name): return Standin if name == "OrderedDict" else (lambda *args: args)
    def persistent_load(self, pid): return pid
file = open(sys.argv[1], "rb")
data = file.read(64)
assert data[:4] == b"PK\\3\\4"
file.seek(30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little"))
assert len(Stands(file).load()) == int(sys.argv[2])
"""
_SHAPES = """
import sys; from safetensors import safe_open
with safe_open(sys.argv[1], "np") as file: print(*((key, file.get_slice(key).get_shape()) for key in file.keys()))
"""
_HEADERS = """
import glob, json, sys
for path in glob.glob(sys.argv[1] + "/*.safetensors"):
    with open(path, "rb") as file: json.loads(file.read(int.from_bytes(file.read(8), "little")))
"""
_TIMED = """
import sys, time, torch, ckptool; from safetensors.torch import load_file
ckptool.load; ckptool.load_into; {before}
wall, cpu = time.perf_counter(), time.process_time(); {load}
sum(float(value.view(-1)[0]) for value in found.values())
print("@", time.perf_counter() - wall, time.process_time() - cpu)
"""
_MODEL = """
class Model(torch.nn.Module):
    def __init__(self, like):
        super().__init__()
        for key, value in like.items():
            at = self
            *path, last = key.split(".")
            for name in path:
                at = at._modules.setdefault(name, torch.nn.Module())
            at.register_parameter(last, torch.nn.Parameter(torch.zeros(value.shape, dtype=value.dtype)))
import glob; files = sorted(glob.glob(sys.argv[1] + "/*.safetensors"))
model = Model({key: value for one in files for key, value in load_file(one).items()})
"""


@dataclass(frozen=True)
class Row:
    """One job.

    Attributes:
        job: in words.
        ways: name -> words of the command; the first is what the others are compared with.
        limit: what is aimed at.
    """

    job: str
    ways: dict[str, tuple[str, ...]]
    limit: str


def _timed(load: str, before: str = "") -> str:
    return _TIMED.format(load=load, before=before)


def rows(folder: Path) -> list[Row]:
    """All jobs, over the files that `make` made in FOLDER."""
    ckptool, python = ckptool_path(), (sys.executable, "-c")
    version = {"`ckptool --version`": (ckptool, "--version")}
    out = str(folder / "out")

    def of(ending: str, count: int, suffix: str = "") -> str:
        return str(folder / f"{count}{suffix}.{ending}")

    torch_load = "found = torch.load(sys.argv[1], weights_only=True{})"
    load = "found = ckptool.load(sys.argv[1]{})"
    mapped = ", mmap=True"
    thousand, hundred = COUNTS[0], COUNTS[1]
    found = [
        Row(
            "inspect zip, 100,000",
            {
                "pickle": (*python, _STAND_INS, of("pth", hundred), str(hundred)),
                "ckptool": (ckptool, "inspect", of("pth", hundred)),
            },
            "2 x, 100 MB",
        ),
        Row(
            "inspect safetensors, 100,000",
            {
                "safetensors": (*python, _SHAPES, of("safetensors", hundred)),
                "ckptool": (ckptool, "inspect", of("safetensors", hundred)),
            },
            "0.5 s",
        ),
        Row(
            "inspect folder, 92,000 in 163 shards",
            {
                "json": (*python, _HEADERS, str(folder / "large")),
                "ckptool": (ckptool, "inspect", str(folder / "large")),
            },
            "2.5 x",
        ),
        Row("doctor zip, 20,000", {**version, "ckptool": (ckptool, "doctor", of("pth", thousand))}, "1.5 s"),
        Row(
            "diff zip, 20,000, one differs",
            {**version, "ckptool": (ckptool, "diff", of("pth", thousand), of("pth", thousand, "-other"))},
            "2 s",
        ),
    ]
    found += [
        Row(
            f"strip zip, {count:,}",
            {
                "`cp`": ("cp", of("pth", count), out),
                "ckptool": (ckptool, "strip-prefix", of("pth", count), f"{out}.pth", "--quiet"),
            },
            "linear, 700 MB",
        )
        for count in COUNTS[1:]
    ]
    scan: dict[str, tuple[str, ...]] = {**version, "ckptool": (ckptool, "scan", str(_FIXTURES))}
    picklescan = os.environ.get("PICKLESCAN")
    if picklescan:
        scan = {"picklescan": (picklescan, "-p", str(_FIXTURES)), **scan}
    found.append(Row("scan fixtures", scan, "1 x picklescan"))
    for name in ("1000.pth", "1000-legacy.pth", f"{hundred}.pth", f"{hundred}-legacy.pth"):
        path, legacy = str(folder / name), "legacy" in name
        ways = {
            "torch": (*python, _timed(torch_load.format("")), path),
            "ckptool": (*python, _timed(load.format("")), path),
        }
        if not legacy:
            ways["torch, mmap=True"] = (*python, _timed(torch_load.format(mapped)), path)
        ways["ckptool, mmap=True"] = (*python, _timed(load.format(mapped)), path)
        found.append(Row(f"load {name}", ways, "1 x"))
    shards = str(folder / "shards")
    torch_into = "[model.load_state_dict(load_file(one), strict=False) for one in files]; found = model.state_dict()"
    found.append(
        Row(
            "load_into, 1 GB in shards",
            {
                "safetensors": (*python, _timed(torch_into, _MODEL), shards),
                "ckptool": (
                    *python,
                    _timed("ckptool.load_into(model, sys.argv[1]); found = model.state_dict()", _MODEL),
                    shards,
                ),
            },
            "1.05 x",
        )
    )
    return found


def make(folder: Path) -> None:
    """Make all inputs, in a process of its own: what this one holds would count as the peak of its children."""
    if not (folder / "large").exists():
        subprocess.run([sys.executable, "-c", f"from {__spec__.name} import _make; _make({str(folder)!r})"], check=True)


def _make(path: str) -> None:
    import torch
    from safetensors.torch import save_file

    import ckptool

    from .large import make as make_large

    folder = Path(path)

    def weights(count: int, side: int) -> dict[str, torch.Tensor]:
        return {f"module.layers.{number}.weight": torch.rand(side, side) for number in range(count)}

    for count in COUNTS:
        several = weights(count, 2)
        torch.save(several, folder / f"{count}.pth")
        if count == COUNTS[-1]:
            continue
        torch.save(several, folder / f"{count}-legacy.pth", _use_new_zipfile_serialization=False)
        save_file(several, folder / f"{count}.safetensors")
        several[f"module.layers.{count // 2}.weight"] = torch.zeros(2, 2)
        torch.save(several, folder / f"{count}-other.pth")
    large = weights(1000, 512)
    torch.save(large, folder / "1000.pth")
    torch.save(large, folder / "1000-legacy.pth", _use_new_zipfile_serialization=False)
    ckptool.save(large, folder / "shards", format="shards", max_shard_size=250 << 20)
    make_large(folder / "large")


def _once(command: tuple[str, ...]) -> tuple[float, float, float]:
    """Seconds on the clock and of CPU, and the peak in MB, of one run."""
    with tempfile.TemporaryFile() as said:
        # an installed package has its modules compiled
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        child = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    if child.returncode not in (0, 1, 2):  # picklescan ends with 2 where it could not read a file
        sys.exit(f"{' '.join(command)}\nended with {child.returncode}: {text[-2000:]}")
    wall = cpu = used.ru_utime + used.ru_stime
    for line in text.splitlines():
        if line.startswith("@ "):
            wall, cpu = map(float, line.split()[1:])
    return wall, cpu, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="jobs whose name has this in it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where the inputs are, or will be made and stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.dir or Path(scratch)
        folder.mkdir(exist_ok=True)
        make(folder)
        print("| job | way | CPU s | x | peak MB | aim |\n|---|---|---|---|---|---|")
        for row in rows(folder):
            if options.only not in row.job:
                continue
            runs: dict[str, list[tuple[float, float, float]]] = {way: [] for way in row.ways}
            for _ in range(options.runs):
                for way, command in row.ways.items():
                    runs[way].append(_once(command))
                    (folder / "out").unlink(missing_ok=True)
                    (folder / "out.pth").unlink(missing_ok=True)
            least = {way: min(cpu for _, cpu, _ in mine) for way, mine in runs.items()}
            first = next(iter(least.values()))
            for way, mine in runs.items():
                peak = max(peak for _, _, peak in mine)
                print(
                    f"| {row.job} | {way} | {least[way]:.3f} | {least[way] / first:.2f} | {peak:.0f} | {row.limit} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
