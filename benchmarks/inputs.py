"""The checkpoints that are measured, and the check of what becomes of them.

torch does both, in processes of their own: a child's peak memory is counted from its fork on, when it still is as large
as its parent, so the process that measures must stay small.
"""

import os
import subprocess
import sys
from pathlib import Path

_SIDE = 1024  # of the tensors in the large layout: 4 MiB each
_MANY = 10_000
_RANKS = 4

#: File -> its layout, and whether it is in the legacy format.
INPUTS = {
    "large.pth": ("large", False),
    "large-legacy.pth": ("large", True),
    "many.pth": ("many", False),
    "many-legacy.pth": ("many", True),
    "tiny.pth": ("tiny", False),
    "folder": ("folder", False),
    "same.pth": ("large", False),  # the values of large.pth
    "near.pth": ("near", False),  # nearly
    "100k.pth": ("100k", False),
    "100k.safetensors": ("100k", False),
    "large.safetensors": ("large", False),
    "shards": ("large", False),
    "dcp": ("large", False),
    "zero-2": ("large", False),
    "zero-3": ("large", False),
}
#: Those that DeepSpeed would write: stage, and how many ranks.
_ZERO = {"zero-2": (2, 2), "zero-3": (3, 8)}


def describe(size: int) -> list[str]:
    """What is in the inputs of about SIZE bytes, a line each."""
    return [
        f"{layout}: {len(sides):,} float32 tensors of {sides[0]:,} x {sides[0]:,}, keys module.layers.N.weight"
        for layout, sides in (("large", _sides("large", size)), ("many", _sides("many", size)))
    ]


def make(folder: Path, names: set[str], size: int) -> None:
    """Write the inputs called NAMES, each of about SIZE bytes, and bring them to disk."""
    _in_torch("make", folder, size, *sorted(names))
    os.sync()


def check(source: Path, target: Path, prefix: str, location: str, dtype: str) -> None:
    """Hold an output against its input: equal values (as DTYPE), the keys that it should have, tagged with LOCATION."""
    _in_torch("check", source, target, prefix, location, dtype)


def _in_torch(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "benchmarks.inputs", *map(str, words)], check=True)


def _sides(layout: str, size: int) -> list[int]:
    """The side of each square tensor of a layout."""
    if layout == "tiny":
        return [4] * 4
    if layout == "100k":
        return [2] * 100_000
    if layout in ("large", "near"):
        return [_SIDE] * max(1, size // (4 * _SIDE * _SIDE))
    return [max(1, round((size / _MANY / 4) ** 0.5))] * _MANY


def _make(folder: str, size: str, *names: str) -> None:
    import torch

    for name in names:
        layout, legacy = INPUTS[name]
        torch.manual_seed(0)
        if layout == "folder":
            (Path(folder) / name).mkdir()
            for number in range(1000):
                small = {f"layers.{i}.weight": torch.rand(4, 4) for i in range(20)}
                torch.save(small, Path(folder) / name / f"{number}.pth")
            continue
        sides = _sides(layout, int(size))
        weights = {f"module.layers.{i}.weight": torch.rand(side, side) for i, side in enumerate(sides)}
        if layout == "near":
            weights = {key: value * (1 + 1e-4 * torch.rand_like(value)) for key, value in weights.items()}
        if name == "shards":
            import ckptool

            ckptool.save(weights, Path(folder) / name, format="shards", max_shard_size=int(size) // 4 + 1)
            continue
        if name in _ZERO:
            from .zero_runs import write

            write(Path(folder) / name, weights, *_ZERO[name])
            continue
        if name == "dcp":
            torch.multiprocessing.start_processes(
                save_rank, args=(weights, f"{folder}/{name}"), nprocs=_RANKS, start_method="fork"
            )
            continue
        if name.endswith(".safetensors"):
            from safetensors.torch import save_file

            save_file(weights, Path(folder) / name)
            continue
        torch.save(weights, Path(folder) / name, _use_new_zipfile_serialization=not legacy)


def save_rank(rank: int, weights, folder: str) -> None:
    """One of several processes that save WEIGHTS, divided among them along the first dimension."""
    import warnings

    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo", rank=rank, world_size=_RANKS)
    mesh = init_device_mesh("cpu", (_RANKS,))
    divided = {
        key: DTensor.from_local(value.chunk(_RANKS)[rank].clone(), mesh, [Shard(0)]) for key, value in weights.items()
    }
    dcp.save(divided, checkpoint_id=folder)
    dist.destroy_process_group()


def _check(source: str, target: str, prefix: str, location: str, dtype: str) -> None:
    import torch

    locations = {location} if os.path.isdir(target) or target.endswith(".safetensors") else set()

    def load(path: str):
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        if (Path(path) / ".metadata").exists():
            import ckptool

            return ckptool.load(path)
        if os.path.isdir(path):
            parts = (load(str(part)) for part in sorted(Path(path).glob("*.safetensors")))
            return {key: value for part in parts for key, value in part.items()}
        locations.clear()
        return torch.load(path, map_location=lambda storage, tag: locations.add(tag) or storage)

    one = Path(source).with_name("large.safetensors")  # the same values as in one of several files of a rank
    before = load(str(one) if Path(source).name in _ZERO else source)
    after = load(target)
    assert locations == {location}, f"locations {locations}"
    expected = {prefix + key.removeprefix("module."): value for key, value in before.items()}
    assert expected.keys() == after.keys(), "the keys are not those that were asked for"
    if dtype:
        expected = {key: value.to(getattr(torch, dtype)) for key, value in expected.items()}
    assert all(torch.equal(value, after[key]) for key, value in expected.items()), "a value has changed"


if __name__ == "__main__":
    {"make": _make, "check": _check}[sys.argv[1]](*sys.argv[2:])
