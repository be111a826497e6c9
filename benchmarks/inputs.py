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
}


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


def check(source: Path, target: Path, prefix: str, location: str) -> None:
    """Hold an output against its input: equal values, the keys that it should have, tagged with LOCATION."""
    _in_torch("check", source, target, prefix, location)


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
        if name.endswith(".safetensors"):
            from safetensors.torch import save_file

            save_file(weights, Path(folder) / name)
            continue
        torch.save(weights, Path(folder) / name, _use_new_zipfile_serialization=not legacy)


def _check(source: str, target: str, prefix: str, location: str) -> None:
    import torch

    locations = set()

    def load(path: str):
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        locations.clear()
        return torch.load(path, map_location=lambda storage, tag: locations.add(tag) or storage)

    before = load(source)
    after = load(target)
    assert locations == {location}, f"locations {locations}"
    expected = {prefix + key.removeprefix("module."): value for key, value in before.items()}
    assert expected.keys() == after.keys(), "the keys are not those that were asked for"
    assert all(torch.equal(value, after[key]) for key, value in expected.items()), "a value has changed"


if __name__ == "__main__":
    {"make": _make, "check": _check}[sys.argv[1]](*sys.argv[2:])
