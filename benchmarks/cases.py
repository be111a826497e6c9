"""What is measured, as one table. In a command, {src}, {dst}, {other}, {python} and {ckptool} are filled in."""

from dataclasses import dataclass
from importlib.util import find_spec

Command = tuple[str, ...]

#: MB of memory that ckptool may take in any case.
MEMORY = 60


@dataclass(frozen=True)
class Case:
    """One job and the ways to do it.

    Attributes:
        name: for --only.
        title: for the table.
        source: the input, one of `inputs.INPUTS`.
        suffix: of the output.
        limit: the ratio of wall times, ckptool to the baseline, that must not be exceeded.
        ways: name -> command. The first is the baseline, the second "ckptool".
        prefix, location: what the keys of the output begin with and its tensors are tagged with.
        memory: MB that ckptool may take. numpy alone takes 30.
        dtype: of the output's tensors; "" if it is that of the input.
        rounds: how many times as many rounds as the others it needs, being short.
        other: a second input.
    """

    name: str
    title: str
    source: str
    suffix: str
    limit: float
    ways: dict[str, Command]
    prefix: str = "module."
    location: str = "cpu"
    dtype: str = ""
    memory: int = MEMORY
    rounds: int = 1
    other: str = ""


def _ckptool(*words: str) -> Command:
    return ("{ckptool}", words[0], "{src}", "{dst}", *words[1:], "--quiet")


def _torch(*steps: str, mmap: bool = False) -> Command:
    load = f"sd = torch.load(sys.argv[1], map_location='cpu', weights_only=True, mmap={mmap})"
    return ("{python}", "-c", "; ".join(("import os, sys, torch", load, *steps, _SYNC)), "{src}", "{dst}")


# ckptool has its output on disk when it ends, so the others have to as well
_SYNC = "os.fsync(os.open(sys.argv[2], os.O_RDONLY))"
_COPY = {"cp && sync": ("sh", "-c", 'cp "$0" "$1" && sync "$1"', "{src}", "{dst}")}
_STRIP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(sd, 'module.')"
_SAVE = "torch.save(sd, sys.argv[2])"
_SAVE_FILE = "from safetensors.torch import save_file; save_file(sd, sys.argv[2])"

_STRIP_WAYS = {
    **_COPY,
    "ckptool": _ckptool("strip-prefix"),
    "torch": _torch(_STRIP, _SAVE),
    "torch, mmap=True": _torch(_STRIP, _SAVE, mmap=True),
}
_REMAP_WAYS = {**_COPY, "ckptool": _ckptool("remap", "--map-location", "cpu=cuda:0")}
_SAFETENSORS_WAYS = {
    **_COPY,
    "ckptool": _ckptool("convert"),
    "torch, save_file": _torch(_SAVE_FILE),
    "torch, mmap=True, save_file": _torch(_SAVE_FILE, mmap=True),
}
_LEGACY_WAYS = {**_COPY, "ckptool": _ckptool("convert", "--to", "torch-zip"), "torch": _torch(_SAVE)}
#: Scanners of others, where they are installed (`pip install picklescan modelscan`).
_SCANNERS = {
    name: ("{python}", "-c", f"from {module} import main; main()", *words, "{src}")
    for name, module, words in (("picklescan", "picklescan.cli", ("-p",)), ("modelscan", "modelscan.cli", ("-p",)))
    if find_spec(name)
}
_SCAN_WAYS = {
    "python -c 'import click'": ("{python}", "-c", "import click"),
    "ckptool": ("{ckptool}", "scan", "{src}"),
    **_SCANNERS,
}
_LOAD_TWO = "import sys, torch; a, b = (torch.load(x, weights_only=True) for x in sys.argv[1:])"
_EQUAL = "assert all(torch.equal(a[k], b[k]) for k in a)"
_HOW_FAR = "print(max((float((a[k] - b[k]).abs().max()), float((a[k] - b[k]).abs().mean())) for k in a))"


def _diff_ways(compare: str, *options: str) -> dict[str, Command]:
    return {
        "torch": ("{python}", "-c", f"{_LOAD_TWO}; {compare}", "{src}", "{other}"),
        "ckptool": ("{ckptool}", "diff", "{src}", "{other}", "--quiet", *options),
    }


_VERIFY_WAYS = {
    "cat | cksum": ("sh", "-c", 'cat "$0" | cksum', "{src}"),
    "ckptool": ("{ckptool}", "verify", "{src}"),
}
_LIST = "print(*((k, f.get_slice(k).get_shape()) for k in f.keys()))"
_INSPECT_WAYS = {
    "torch": ("{python}", "-c", "import sys, torch; torch.load(sys.argv[1], weights_only=True)", "{src}"),
    "ckptool": ("{ckptool}", "inspect", "{src}"),
}
_INSPECT_FLAT_WAYS = {
    "safe_open, every shape": (
        "{python}",
        "-c",
        f"import sys; from safetensors import safe_open; f = safe_open(sys.argv[1], 'pt').__enter__(); {_LIST}",
        "{src}",
    ),
    "ckptool": ("{ckptool}", "inspect", "{src}"),
}
_INSPECT_LARGE_WAYS = {
    "ckptool --version": ("{ckptool}", "--version"),
    "ckptool": ("{ckptool}", "inspect", "{src}"),
}
_START_WAYS = {"python -c 'import click'": ("{python}", "-c", "import click"), "ckptool": ("{ckptool}", "--version")}


_COPY_FOLDER = {"cp -r && sync": ("sh", "-c", 'cp -r "$0" "$1" && sync "$1"/*', "{src}", "{dst}")}
_SHARDS_WAYS = {**_COPY_FOLDER, "ckptool": _ckptool("convert")}
_SHARDS_BACK_WAYS = {**_COPY, "ckptool": _ckptool("convert", "--to", "shards", "--max-shard-size", "300MB")}
_LOAD_DCP = (
    "import os, sys, torch, warnings; warnings.simplefilter('ignore'); from torch.distributed.checkpoint import "
    "FileSystemReader; from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner as P; "
    "from torch.distributed.checkpoint.state_dict_loader import _load_state_dict; sd = {}; "
    "_load_state_dict(sd, storage_reader=FileSystemReader(sys.argv[1]), planner=P(), no_dist=True)"
)  # as torch's dcp_to_torch_save does it
_DCP_WAYS = {
    "torch, save_file": ("{python}", "-c", "; ".join((_LOAD_DCP, _SAVE_FILE, _SYNC)), "{src}", "{dst}"),
    "ckptool": _ckptool("convert"),
    "torch, dcp_to_torch_save": (
        "{python}",
        "-c",
        "import os, sys, warnings; warnings.simplefilter('ignore'); "
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save; "
        f"dcp_to_torch_save(*sys.argv[1:]); {_SYNC}",
        "{src}",
        "{dst}.pth",
    ),
}
_ZERO_WAYS = {
    "cp && sync, as large": ("sh", "-c", 'cp "$0" "$1" && sync "$1"', "{other}", "{dst}"),
    "ckptool": _ckptool("convert"),
}
_CAST = "sd = {k: v.to(torch.bfloat16) for k, v in load_file(sys.argv[1]).items()}"
_CAST_WAYS = {
    "torch, save_file": (
        "{python}",
        "-c",
        f"import os, sys, torch; from safetensors.torch import load_file, save_file; {_CAST}; "
        f"save_file(sd, sys.argv[2]); {_SYNC}",
        "{src}",
        "{dst}",
    ),
    "ckptool": _ckptool("convert", "--cast", "bf16"),
}


def _rewrites(layout: str) -> tuple[Case, ...]:
    """The same four jobs for each layout of `inputs`."""
    zipped, legacy, tail = f"{layout}.pth", f"{layout}-legacy.pth", "" if layout == "large" else f"-{layout}"
    return (
        Case(f"strip{tail}", f"strip-prefix {zipped}, zip to zip", zipped, ".pth", 1.15, _STRIP_WAYS, prefix=""),
        Case(f"remap{tail}", f"remap {zipped}, zip to zip", zipped, ".pth", 1.15, _REMAP_WAYS, location="cuda:0"),
        Case(f"safetensors{tail}", f"{zipped} to safetensors", zipped, ".safetensors", 1.15, _SAFETENSORS_WAYS),
        Case(f"legacy{tail}", f"{legacy} to zip", legacy, ".pth", 1.3, _LEGACY_WAYS),
    )


CASES = (
    *_rewrites("large"),
    *_rewrites("many"),
    Case("scan", "scan large.pth", "large.pth", "", 3.0, _SCAN_WAYS),
    Case("scan-legacy", "scan large-legacy.pth", "large-legacy.pth", "", 3.0, _SCAN_WAYS),
    Case("scan-folder", "scan a folder of 1,000 files of 20 tensors", "folder", "", 30.0, _SCAN_WAYS),
    Case("diff-equal", "diff large.pth same.pth", "large.pth", "", 0.33, _diff_ways(_EQUAL), other="same.pth"),
    Case(
        "diff-near",
        "diff large.pth near.pth, with all differences",
        "large.pth",
        "",
        1.0,
        _diff_ways(_HOW_FAR, "--rtol", "1"),
        other="near.pth",
    ),
    Case("verify", "verify large.pth", "large.pth", "", 1.5, _VERIFY_WAYS, rounds=2),
    Case("inspect", "inspect large.pth", "large.pth", "", 3.5, _INSPECT_LARGE_WAYS, rounds=3),
    Case("inspect-100k", "inspect a zip of 100,000 tensors", "100k.pth", "", 0.25, _INSPECT_WAYS, memory=300),
    Case(
        "inspect-flat",
        "inspect a safetensors file of them",
        "100k.safetensors",
        "",
        1.0,
        _INSPECT_FLAT_WAYS,
        memory=200,
    ),
    Case("shards", "4 shards to one safetensors file", "shards", ".safetensors", 1.3, _SHARDS_WAYS),
    Case("shards-back", "a safetensors file to shards", "large.safetensors", "-shards", 1.3, _SHARDS_BACK_WAYS),
    Case("dcp", "a folder of torch.distributed.checkpoint, 4 ranks", "dcp", ".safetensors", 0.33, _DCP_WAYS),
    *(
        Case(
            f"zero-{stage}",
            f"DeepSpeed's ZeRO stage {stage}, {ranks} ranks, to safetensors",
            f"zero-{stage}",
            ".safetensors",
            1.3,
            _ZERO_WAYS,
            memory=80,
            other="large.safetensors",
        )
        for stage, ranks in ((2, 2), (3, 8))
    ),
    Case("cast", "float32 to bf16", "large.safetensors", ".safetensors", 1, _CAST_WAYS, dtype="bfloat16", memory=100),
    Case("start-up", "ckptool --version", "tiny.pth", "", 2.5, _START_WAYS, rounds=5),
)
