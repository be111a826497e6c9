"""Makes the input of one point (see `points`) with torch: `benchmarks.point_inputs PATH FORMAT SIZE TENSORS`."""

import sys
from pathlib import Path

import torch

_RANKS = 4


def main(path: str, format: str, size: str, tensors: str) -> None:
    count = int(tensors)
    side = max(1, round((int(size) / count / 4) ** 0.5))
    torch.manual_seed(0)
    weights = {f"module.layers.{number}.weight": torch.rand(side, side) for number in range(count)}
    if format == "safetensors":
        from safetensors.torch import save_file

        save_file(weights, path)
    elif format == "shards":
        import ckptool

        ckptool.save(weights, Path(path), format="shards", max_shard_size=int(size) // 4 + 1)
    elif format == "dcp":
        from .inputs import save_rank

        arguments = (weights, path)
        torch.multiprocessing.start_processes(save_rank, args=arguments, nprocs=_RANKS, start_method="fork")
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=format == "zip")


if __name__ == "__main__":
    main(*sys.argv[1:])
