"""Peak memory for checkpoints of growing size with tensors of the same size: it must not grow."""

import json
from pathlib import Path

from .measure import ckptool_path, run_once

_TENSOR = 64 << 20
_SIZES = (1, 4, 16)


def make_sparse(folder: Path, size: int) -> None:
    """Shards with SIZE bytes of float32 zeros, made of holes."""
    folder.mkdir()
    weight_map = {}
    shards = max(1, size >> 30)
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        for index in range(size // shards // _TENSOR):
            key = f"layers.{number}.{index}.weight"
            header[key] = {"dtype": "F32", "shape": [_TENSOR // 4], "data_offsets": [at, at + _TENSOR]}
            weight_map[key] = name
            at += _TENSOR
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with open(folder / name, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + at)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def report(folder: Path) -> str:
    """Convert shards of each size to one file, cast to bfloat16, so that every value passes through memory."""
    lines = ["memory: shards to one safetensors file, --cast bf16, tensors of 64 MiB"]
    for size in _SIZES:
        source, target = folder / f"sparse-{size}", folder / "out.safetensors"
        make_sparse(source, size << 30)
        command = (ckptool_path(), "convert", str(source), str(target), "--cast", "bf16", "--quiet")
        run = run_once(command, source, target, source)
        target.unlink()
        lines.append(f"  {size:>3} GiB   {run.wall:8.2f} s   {run.peak:6.0f} MB")
    return "\n".join(lines)
