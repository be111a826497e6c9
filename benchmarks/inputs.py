"""Makes the input of one point (see `points`), and compares what ckptool makes of it with what torch loads.

torch does both, in processes of their own: a child's peak memory is counted from its fork on, when it still is as large
as its parent, so the process that measures must stay small.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

_RANKS = 4
#: Ranks of each stage of ZeRO.
_ZERO = {"zero-2": (2, 2), "zero-3": (3, 8)}
#: Bytes of each tensor of a folder with holes.
_WIDE = 64 << 20


def make(path: str, format: str, size: str, tensors: str) -> None:
    """Write the checkpoint of a point to PATH."""
    if format == "holes":
        _make_holes(Path(path), int(size), int(tensors))
        return
    if format == "huge":
        from .large import make as make_large

        make_large(Path(path))
        return
    import torch

    count = int(tensors)
    side = max(1, round((int(size) / count / 4) ** 0.5))
    torch.manual_seed(0)
    weights = {f"module.layers.{number}.weight": torch.rand(side, side) for number in range(count)}
    if format == "near":
        weights = {key: value * (1 + 1e-4 * torch.rand_like(value)) for key, value in weights.items()}
    elif format == "one differs":
        weights[f"module.layers.{count // 2}.weight"] = torch.zeros(side, side)
    if format == "safetensors":
        from safetensors.torch import save_file

        save_file(weights, path)
    elif format == "shards":
        import ckptool

        ckptool.save(weights, Path(path), format="shards", max_shard_size=int(size) // 4 + 1)
    elif format == "dcp":
        arguments = (weights, path)
        torch.multiprocessing.start_processes(_save_rank, args=arguments, nprocs=_RANKS, start_method="fork")
    elif format in _ZERO:
        from .zero_runs import write

        write(Path(path), weights, *_ZERO[format])
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=format != "legacy")


def _save_rank(rank: int, weights: dict[str, Any], folder: str) -> None:
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
        key: DTensor.from_local(  # with its sizes, since not all are divided evenly
            value.chunk(_RANKS)[rank].clone(), mesh, [Shard(0)], shape=value.shape, stride=value.stride()
        )
        for key, value in weights.items()
    }
    dcp.save(divided, checkpoint_id=folder)
    dist.destroy_process_group()


def _make_holes(folder: Path, size: int, tensors: int) -> None:
    """Shards of a GiB with SIZE bytes of float32 zeros, which take no room on the disk."""
    folder.mkdir()
    weight_map = {}
    shards = max(1, size >> 30)
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        for index in range(tensors // shards):
            key = f"layers.{number}.{index}.weight"
            header[key] = {"dtype": "F32", "shape": [_WIDE // 4], "data_offsets": [at, at + _WIDE]}
            weight_map[key] = name
            at += _WIDE
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with open(folder / name, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + at)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def check(source: str, target: str, prefix: str, location: str, dtype: str) -> None:
    """Compare an output with its input: equal values (as DTYPE), keys that begin with PREFIX, tagged with LOCATION."""
    import torch

    locations = {location} if os.path.isdir(target) or target.endswith(".safetensors") else set()

    def load(path: str) -> dict[str, Any]:
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

    before, after = load(source), load(target)
    assert locations == {location}, f"locations {locations}"
    expected = {prefix + key.removeprefix("module."): value for key, value in before.items()}
    assert expected.keys() == after.keys(), "the keys are not those that were asked for"
    if dtype:
        expected = {key: value.to(getattr(torch, dtype)) for key, value in expected.items()}
    assert all(torch.equal(value, after[key]) for key, value in expected.items()), "a value has changed"


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
