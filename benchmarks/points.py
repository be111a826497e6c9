"""The jobs that `make bench` measures: one axis at a time around a zip archive of 1 GB with 1,000 tensors, then others.

In a command, {src}, {dst}, {other}, {python} and {ckptool} are filled in, and {peer:NAME} by the program NAME.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from .measure import Command

GB = 10**9


@dataclass(frozen=True)
class Point:
    """One input.

    Attributes:
        format: zip, legacy, safetensors, shards, dcp, zero-2 or zero-3; near or one differs (zip archives whose values
            are nearly those of the others, or all but one tensor's), holes (shards whose zeros take no room), huge
            (163 shards of a model of 1.3 TB in the same way).
        size: bytes of all tensors, which are square, of float32 and of one size.
        tensors: how many.
    """

    format: str = "zip"
    size: int = GB
    tensors: int = 1000

    @property
    def name(self) -> str:
        """Of the file or folder."""
        ending = {
            "zip": ".pth",
            "legacy": "-legacy.pth",
            "near": "-near.pth",
            "one differs": "-other.pth",
            "safetensors": ".safetensors",
        }.get(self.format, "")
        return f"{self.format if not ending else 'model'}-{self.size}-{self.tensors}{ending}"

    @property
    def words(self) -> str:
        """For the table."""
        if self.format == "huge":
            return f"{self.size / GB:,.0f} GB in 163 shards, {self.tensors:,} tensors"
        size = f"{self.size / GB:.3g} GB" if self.size >= GB else f"{self.size / 10**6:.3g} MB"
        size = size if self.size >= 10**4 else f"{self.size} bytes"
        return f"{self.format}, {size}, {self.tensors:,} tensor{'s'[: self.tensors > 1]}"


@dataclass(frozen=True)
class Row:
    """One job at one point and the ways to do it; the first is what the others are compared with.

    Attributes:
        job: in words.
        point: the input.
        ways: name -> command.
        suffix: of the output.
        axis: which one the point lies on: base, format, size or tensors; or "other".
        other: a second input, for commands that compare two; else one with the same values, for the check.
        prefix, location, dtype: what the keys of an output begin with, what its tensors are tagged with, and their type
            where it is not that of the input.
        ends: codes that a command may end with.
    """

    job: str
    point: Point
    ways: dict[str, Command]
    suffix: str = ""
    axis: str = "base"
    other: Point | None = None
    prefix: str = "module."
    location: str = "cpu"
    dtype: str = ""
    ends: tuple[int, ...] = (0,)


_COPY = {"`cp`, `sync`": ("sh", "-c", 'cp "$0" "$1" && sync "$1"', "{src}", "{dst}")}
_COPY_FOLDER = {"`cp -r`, `sync`": ("sh", "-c", 'cp -r "$0" "$1" && sync "$1"/*', "{src}", "{dst}")}
# ckptool has its output on disk when it ends, so the others have to as well
_SYNC = "os.fsync(os.open(sys.argv[2], os.O_RDONLY))"
_STRIP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(sd, 'module.')"
_SAVE_FILE = "from safetensors.torch import save_file; save_file(sd, sys.argv[2])"


#: As torch's `dcp_to_torch_save` loads.
_LOAD_DCP = (
    "import os, sys, torch, warnings; warnings.simplefilter('ignore'); from torch.distributed.checkpoint import "
    "FileSystemReader; from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner as P; "
    "from torch.distributed.checkpoint.state_dict_loader import _load_state_dict; sd = {}; "
    "_load_state_dict(sd, storage_reader=FileSystemReader(sys.argv[1]), planner=P(), no_dist=True)"
)


def _ckptool(*words: str) -> dict[str, Command]:
    return {"ckptool": ("{ckptool}", words[0], "{src}", "{dst}", *words[1:], "--quiet")}


def _torch(*steps: str, mmap: bool = False) -> Command:
    load = f"sd = torch.load(sys.argv[1], map_location='cpu', weights_only=True, mmap={mmap})"
    return ("{python}", "-c", "; ".join(("import os, sys, torch", load, *steps, _SYNC)), "{src}", "{dst}")


def _torch_ways(*steps: str, mmap: bool = True) -> dict[str, Command]:
    ways = {"torch": _torch(*steps)}
    return {**ways, "torch, mmap=True": _torch(*steps, mmap=True)} if mmap else ways


def _then_sync(*words: str) -> Command:
    """A program of others, and then what it wrote brought to the disk. Its path is $0."""
    return ("sh", "-c", '"$0" "$@" && sync', *words)


#: Programs that may be compared, with what pip calls them. They have an environment of their own: `make bench-peers`.
PEERS = {
    "sft": "sft-cli",
    "checkpoint-tools": "checkpoint-tools",
    "ckptkit": "ckptkit",
    "picklescan": "picklescan",
    "modelscan": "modelscan",
    "fickling": "fickling",
    "hayward": "hayward",
}


def _peer(name: str, *words: str) -> dict[str, Command]:
    return {name: (f"{{peer:{name}}}", *words)}


def _strip(point: Point) -> Row:
    if point.format == "safetensors":
        rename = ("{peer:sft}", "rename", "{src}", "--sub", r"^module\.", "--sub", "", "-o", "{dst}")
        ways = {**_COPY, **_ckptool("strip-prefix"), "sft": _then_sync(*rename)}
        return Row("strip-prefix", point, ways, ".safetensors", prefix="")
    ways = {**_COPY, **_ckptool("strip-prefix"), **_torch_ways(_STRIP, "torch.save(sd, sys.argv[2])")}
    return Row("strip-prefix", point, ways, ".pth", prefix="")


def _remap(point: Point) -> Row:
    ways = {**_COPY, **_ckptool("remap", "--map-location", "cpu=cuda:0")}
    return Row("remap", point, ways, ".pth", location="cuda:0")


#: The least that a zip archive takes, which `cp` does not: every byte is read, added to a checksum, and written.
_WITH_CHECKSUM = {
    "`read`, CRC-32, `write`": (
        "{python}",
        "-c",
        "import os, sys\n"
        "try: from isal.isal_zlib import crc32\n"
        "except ImportError: from zlib import crc32\n"
        "found, source, target = 0, open(sys.argv[1], 'rb', 0), open(sys.argv[2], 'wb', 0)\n"
        "while data := source.read(1 << 18): found = crc32(data, found); target.write(data)\n"
        "os.fsync(target)",
        "{src}",
        "{dst}",
    )
}


def _to_zip(point: Point) -> Row:
    return Row("to zip", point, {**_COPY, **_ckptool("convert", "--to", "torch-zip"), **_WITH_CHECKSUM}, ".pth")


def _convert(point: Point) -> Row:
    if point.format in ("shards", "dcp"):
        ways = {**_COPY_FOLDER, **_ckptool("convert")}
        if point.format == "dcp":
            ways["torch"] = ("{python}", "-c", "; ".join((_LOAD_DCP, _SAVE_FILE, _SYNC)), "{src}", "{dst}")
        return Row("to safetensors", point, ways, ".safetensors")
    if point.format == "safetensors":
        imports = "import os, sys, torch; from safetensors.torch import load_file"
        save = f"{imports}; torch.save(load_file(sys.argv[1]), sys.argv[2]); {_SYNC}"
        torch = ("{python}", "-c", save, "{src}", "{dst}")
        return Row(
            "to zip", point, {**_COPY, **_ckptool("convert"), "safetensors, torch": torch, **_WITH_CHECKSUM}, ".pth"
        )
    ways = {**_COPY, **_ckptool("convert"), **_torch_ways(_SAVE_FILE, mmap=point.format == "zip")}
    if point.format == "zip":
        ways["sft"] = _then_sync("{peer:sft}", "convert", "{src}", "-o", "{dst}")
    return Row("to safetensors", point, ways, ".safetensors")


def _inspect(point: Point) -> Row:
    shapes = "print(*((k, f.get_slice(k).get_shape()) for k in f.keys()))"
    flat = f"import sys; from safetensors import safe_open; f = safe_open(sys.argv[1], 'pt').__enter__(); {shapes}"
    load = "import sys, torch; torch.load(sys.argv[1], weights_only=True, mmap=True)"
    reference = {
        "zip": {"torch, mmap=True": ("{python}", "-c", load, "{src}")},
        "legacy": {"torch": ("{python}", "-c", load.replace(", mmap=True", ""), "{src}")},
        "safetensors": {"safetensors": ("{python}", "-c", flat, "{src}")},
    }.get(point.format, {"`ckptool --version`": ("{ckptool}", "--version")})
    ways = {**reference, "ckptool": ("{ckptool}", "inspect", "{src}")}
    if point.format in ("zip", "safetensors"):
        ways |= _peer("ckptkit", "info", "{src}")
    if point.format == "safetensors":
        ways |= _peer("sft", "info", "{src}")
    return Row("inspect", point, ways)


def _scan(point: Point) -> Row:
    ways = {
        "`import click`": ("{python}", "-c", "import click"),
        "ckptool": ("{ckptool}", "scan", "{src}"),
        **_peer("picklescan", "-p", "{src}"),
        **_peer("modelscan", "-p", "{src}"),
        **_peer("fickling", "--check-safety", "{src}"),
        **_peer("hayward", "scan", "--max-size", "16g", "{src}"),
    }
    return Row("scan", point, ways)


#: Loading is timed inside the process, behind its imports: it prints "@ SECONDS CPU".
_TIMED = """
import sys, time, torch, ckptool; from safetensors.torch import load_file
ckptool.load; ckptool.load_into
BEFORE
wall, cpu = time.perf_counter(), time.process_time()
LOAD
sum(float(t.flatten()[0]) for t in sd.values())
print("@", time.perf_counter() - wall, time.process_time() - cpu)
"""


def _timed(load: str, before: str = "") -> Command:
    return ("{python}", "-c", _TIMED.replace("BEFORE", before).replace("LOAD", load), "{src}")


def _load(point: Point) -> Row:
    ours, torch = "sd = ckptool.load(sys.argv[1]{})", "sd = torch.load(sys.argv[1], weights_only=True{})"
    if point.format == "zip":
        ways = {
            "torch": _timed(torch.format("")),
            "ckptool": _timed(ours.format("")),
            "torch, mmap=True": _timed(torch.format(", mmap=True")),
            "ckptool, mmap=True": _timed(ours.format(", mmap=True")),
        }
    elif point.format == "legacy":
        ways = {"torch": _timed(torch.format("")), "ckptool": _timed(ours.format(""))}
        ways["ckptool, mmap=True"] = _timed(ours.format(", mmap=True"))
    elif point.format == "safetensors":
        ways = {"safetensors": _timed("sd = load_file(sys.argv[1])"), "ckptool": _timed(ours.format(""))}
    else:
        files = "sorted(__import__('glob').glob(sys.argv[1] + '/*.safetensors'))"
        files = f"sd = {{key: value for file in {files} for key, value in load_file(file).items()}}"
        ways = {"safetensors": _timed(files), "ckptool": _timed(ours.format(""))}
    return Row("load", point, ways)


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


def _load_into(point: Point) -> Row:
    ways = {
        "safetensors": "[model.load_state_dict(load_file(one), strict=False) for one in files]",
        "ckptool": "ckptool.load_into(model, sys.argv[1])",
    }
    timed = {way: _timed(f"{load}; sd = model.state_dict()", _MODEL) for way, load in ways.items()}
    return Row("load_into", point, timed)


#: The pickle of an archive through the pickle of C, where everything that it names is a tuple of its arguments.
_STAND_INS = """
import io, pickle, sys
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
Stands(file).load()
"""
_HEADERS = """
import glob, json, sys
for path in glob.glob(sys.argv[1] + "/*.safetensors"):
    with open(path, "rb") as file: json.loads(file.read(int.from_bytes(file.read(8), "little")))
"""
_FIXTURES = str(Path(__file__).parents[1] / "fixtures")


def _many() -> list[Row]:
    """What is linear in the number of tensors: tensors of 2 x 2."""

    def of(count: int, format: str = "zip") -> Point:
        return Point(format, 16 * count, count)

    huge = Point("huge", 1_300 * GB, 92_000)
    hundred = 100_000
    version = {"`ckptool --version`": ("{ckptool}", "--version")}
    inspect = {"ckptool": ("{ckptool}", "inspect", "{src}")}
    flat = _inspect(of(hundred, "safetensors"))
    two = of(20_000), of(20_000, "one differs")
    return [
        Row("inspect", of(hundred), {"C `pickle`": ("{python}", "-c", _STAND_INS, "{src}"), **inspect}),
        replace(flat, ways={way: command for way, command in flat.ways.items() if way in ("safetensors", "ckptool")}),
        Row("inspect", huge, {"`json`": ("{python}", "-c", _HEADERS, "{src}"), **inspect}),
        Row("doctor", of(20_000), {**version, "ckptool": ("{ckptool}", "doctor", "{src}")}, ends=(0, 1)),
        Row(
            "diff", two[0], {**version, "ckptool": ("{ckptool}", "diff", "{src}", "{other}")}, other=two[1], ends=(0, 1)
        ),
        _load(of(hundred)),
        _load(of(hundred, "legacy")),
        replace(_strip(of(hundred)), ways={**_COPY, **_ckptool("strip-prefix")}),
        replace(_strip(of(10 * hundred)), ways={**_COPY, **_ckptool("strip-prefix")}),
    ]


def _others(base: Point) -> list[Row]:
    """Jobs that are measured at one point."""
    safetensors = replace(base, format="safetensors")
    cast = "sd = {k: v.to(torch.bfloat16) for k, v in load_file(sys.argv[1]).items()}"
    how_far = "print(max((float((a[k] - b[k]).abs().max()), float((a[k] - b[k]).abs().mean())) for k in a))"
    two = "import sys, torch; a, b = (torch.load(x, weights_only=True) for x in sys.argv[1:])"
    start = {"`import click`": ("{python}", "-c", "import click"), "ckptool": ("{ckptool}", "--version")}
    scan = {
        "`import click`": start["`import click`"],
        "ckptool": ("{ckptool}", "scan", _FIXTURES),
        **_peer("picklescan", "-p", _FIXTURES),
    }
    as_large = {"`cp`, `sync`, as large": ("sh", "-c", 'cp "$0" "$1" && sync "$1"', "{other}", "{dst}")}
    imports = "import os, sys, torch; from safetensors.torch import load_file, save_file"
    return [
        Row("`--version`", Point(size=100, tensors=1), start),
        Row("scan all of fixtures", Point(size=100, tensors=1), scan, ends=(0, 1, 2)),
        Row(
            "diff where all differ",
            base,
            {
                "torch": ("{python}", "-c", f"{two}; {how_far}", "{src}", "{other}"),
                "ckptool": ("{ckptool}", "diff", "{src}", "{other}", "--quiet", "--rtol", "1"),
            },
            other=replace(base, format="near"),
        ),
        Row(
            "to shards",
            safetensors,
            {**_COPY, **_ckptool("convert", "--to", "shards", "--max-shard-size", "300MB")},
            "-shards",
        ),
        Row(
            "`--cast bf16`",
            safetensors,
            {
                "torch": (
                    "{python}",
                    "-c",
                    f"{imports}; {cast}; save_file(sd, sys.argv[2]); {_SYNC}",
                    "{src}",
                    "{dst}",
                ),
                **_ckptool("convert", "--cast", "bf16"),
            },
            ".safetensors",
            dtype="bfloat16",
        ),
        *(
            Row(
                "to safetensors",
                replace(base, format=f"zero-{stage}"),
                {**as_large, **_ckptool("convert")},
                ".safetensors",
                other=safetensors,
            )
            for stage in (2, 3)
        ),
        _load_into(replace(base, format="shards")),
        *(
            Row(
                "`--cast bf16`",
                Point("holes", size << 30, size * 16),
                _ckptool("convert", "--cast", "bf16"),
                ".safetensors",
                prefix="",
                dtype="bfloat16",
            )
            for size in (1, 16)
        ),
    ]


def _diff(point: Point, other: Point) -> Row:
    two = "import sys, torch; a, b = (torch.load(x, weights_only=True) for x in sys.argv[1:])"
    equal = f"{two}; assert all(torch.equal(a[k], b[k]) for k in a)"
    ways = {
        "torch": ("{python}", "-c", equal, "{src}", "{other}"),
        "ckptool": ("{ckptool}", "diff", "{src}", "{other}", "--quiet"),
        **_peer("ckptkit", "diff", "{src}", "{other}"),
    }
    return Row("diff of equal files", point, ways, other=other)


def rows(size: int = GB, *, quick: bool = False) -> list[Row]:
    """All that is measured. QUICK: less of each axis, and 64 MB for 1 GB."""
    base = Point(size=size)
    verify = {
        "`cat`, `cksum`": ("sh", "-c", 'cat "$0" | cksum', "{src}"),
        "ckptool": ("{ckptool}", "verify", "{src}"),
    }
    found = [
        _strip(base),
        _remap(base),
        _convert(base),
        _inspect(base),
        _scan(base),
        _load(base),
        _diff(base, replace(base, format="legacy")),
        Row("verify", base, verify),
    ]
    for format in ("legacy", "safetensors", "shards", "dcp"):
        point = replace(base, format=format)
        jobs = [_convert(point), *([] if quick else [_inspect(point)])]
        jobs += [_load(point)] if format != "dcp" else []
        jobs += [_strip(point)] if format == "safetensors" else []
        jobs += [_scan(point)] if format == "legacy" else []
        found += [replace(job, axis="format") for job in jobs]
    for other in (size // 100, size * 8):
        if not (quick and other > size):
            point = replace(base, size=other)
            found += [replace(job, axis="size") for job in (_strip(point), _convert(point))]
    for count in (100_000,) if quick else (10, 100, 10_000, 100_000):
        point = replace(base, tensors=count)
        jobs = [_strip(point), _convert(point), _inspect(point)]
        if count == 10_000:
            jobs += [_remap(point), *(_to_zip(replace(point, format=format)) for format in ("legacy", "safetensors"))]
        found += [replace(job, axis="tensors") for job in jobs]
    return found if quick else [*found, *(replace(job, axis="other") for job in (*_many(), *_others(base)))]
