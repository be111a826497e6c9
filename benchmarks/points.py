"""The points that `make bench` measures: one axis at a time around a zip archive of 1 GB with 1,000 tensors.

In a command, {src}, {dst}, {other}, {python} and {ckptool} are filled in, and {peer:NAME} by the program NAME.
"""

from dataclasses import dataclass, replace

from .cases import Command

GB = 10**9


@dataclass(frozen=True)
class Point:
    """One input.

    Attributes:
        format: zip, legacy, safetensors, shards or dcp.
        size: bytes of all tensors, which are square, of float32 and of one size.
        tensors: how many.
    """

    format: str = "zip"
    size: int = GB
    tensors: int = 1000

    @property
    def name(self) -> str:
        """Of the file or folder."""
        ending = {"zip": ".pth", "legacy": "-legacy.pth", "safetensors": ".safetensors"}.get(self.format, "")
        return f"{self.format if not ending else 'model'}-{self.size}-{self.tensors}{ending}"

    @property
    def words(self) -> str:
        """For the table."""
        size = f"{self.size / GB:g} GB" if self.size >= GB else f"{self.size / 10**6:g} MB"
        return f"{self.format}, {size}, {self.tensors:,} tensors"


@dataclass(frozen=True)
class Row:
    """One job at one point and the ways to do it; the first is what the others are compared with.

    Attributes:
        job: in words.
        point: the input.
        ways: name -> command.
        suffix: of the output.
        axis: which one the point lies on: base, format, size or tensors.
        other: a second input, for commands that compare two.
    """

    job: str
    point: Point
    ways: dict[str, Command]
    suffix: str = ""
    axis: str = "base"
    other: Point | None = None


_COPY = {"`cp`, `sync`": ("sh", "-c", 'cp "$0" "$1" && sync "$1"', "{src}", "{dst}")}
_COPY_FOLDER = {"`cp -r`, `sync`": ("sh", "-c", 'cp -r "$0" "$1" && sync "$1"/*', "{src}", "{dst}")}
# ckptool has its output on disk when it ends, so the others have to as well
_SYNC = "os.fsync(os.open(sys.argv[2], os.O_RDONLY))"
_STRIP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(sd, 'module.')"
_SAVE_FILE = "from safetensors.torch import save_file; save_file(sd, sys.argv[2])"


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
        return Row(
            "strip-prefix", point, {**_COPY, **_ckptool("strip-prefix"), "sft": _then_sync(*rename)}, ".safetensors"
        )
    ways = {**_COPY, **_ckptool("strip-prefix"), **_torch_ways(_STRIP, "torch.save(sd, sys.argv[2])")}
    return Row("strip-prefix", point, ways, ".pth")


def _remap(point: Point) -> Row:
    return Row("remap", point, {**_COPY, **_ckptool("remap", "--map-location", "cpu=cuda:0")}, ".pth")


def _to_zip(point: Point) -> Row:
    return Row("to zip", point, {**_COPY, **_ckptool("convert", "--to", "torch-zip")}, ".pth")


def _convert(point: Point) -> Row:
    if point.format in ("shards", "dcp"):
        return Row("to safetensors", point, {**_COPY_FOLDER, **_ckptool("convert")}, ".safetensors")
    if point.format == "safetensors":
        imports = "import os, sys, torch; from safetensors.torch import load_file"
        save = f"{imports}; torch.save(load_file(sys.argv[1]), sys.argv[2]); {_SYNC}"
        torch = ("{python}", "-c", save, "{src}", "{dst}")
        return Row("to zip", point, {**_COPY, **_ckptool("convert"), "safetensors, torch": torch}, ".pth")
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
_TIMED = (
    "import sys, time, torch, ckptool; from safetensors.torch import load_file; ckptool.load; "
    "wall, cpu = time.perf_counter(), time.process_time(); sd = {}; "
    "sum(float(t.flatten()[0]) for t in sd.values()); "
    "print('@', time.perf_counter() - wall, time.process_time() - cpu)"
)


def _timed(load: str) -> Command:
    return ("{python}", "-c", _TIMED.replace("sd = {}", f"sd = {load}"), "{src}")


def _load(point: Point) -> Row:
    ours, torch = "ckptool.load(sys.argv[1]{})", "torch.load(sys.argv[1], weights_only=True{})"
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
        ways = {"safetensors": _timed("load_file(sys.argv[1])"), "ckptool": _timed(ours.format(""))}
    else:
        files = "sorted(__import__('glob').glob(sys.argv[1] + '/*.safetensors'))"
        files = f"{{key: value for file in {files} for key, value in load_file(file).items()}}"
        ways = {"safetensors": _timed(files), "ckptool": _timed(ours.format(""))}
    return Row("load", point, ways)


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
    return found
