"""1.3 TB in 163 shards, made of holes: how evenly ranks share it, what planning takes, and a whole run under torchrun.

`python -m benchmarks.large` prints the figures of docs/large.md. The files are sparse: they take some megabytes of disk
and have every header and every size of the real thing. What is read and written is zeros that the disk does not hold,
so the times of a run are those of everything but the disks.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ckptool import formats
from ckptool.disk.folders import fingerprints
from ckptool.disk.parts import Parts
from ckptool.ranks import balance, cut_evenly

SHARDS, TENSORS, BYTES = 163, 92_000, 1_300 * 10**9
_LAYERS, _EXPERTS = 61, 256


def make(folder: Path, tensors: int = TENSORS, shards: int = SHARDS, nbytes: int = BYTES) -> None:
    """A mixture of experts in float8, with a scale in float32 for each block of 128 x 128, as sparse shards."""
    folder.mkdir()
    pairs = tensors // 2
    rows = max(128, round((nbytes / pairs) ** 0.5 / 128) * 128)
    columns = max(128, round(nbytes / pairs / rows / 128) * 128)
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for number in range(pairs * shard // shards, pairs * (shard + 1) // shards):
            layer, expert = divmod(number, _EXPERTS * 3)
            key = f"model.layers.{layer}.mlp.experts.{expert // 3}.{('gate', 'up', 'down')[expert % 3]}_proj.weight"
            scales = (rows // 128) * (columns // 128) * 4
            header[f"{key}_scale_inv"] = _entry("F32", [rows // 128, columns // 128], at, scales)
            header[key] = _entry("F8_E4M3", [rows, columns], at + scales, rows * columns)
            weight_map |= {f"{key}_scale_inv": name, key: name}
            at += scales + rows * columns
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with open(folder / name, "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + at)
        total += at
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _entry(dtype: str, shape: list[int], at: int, nbytes: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}


def plan(folder: Path, target: Path, ranks: tuple[int, ...]) -> dict[str, object]:
    """What one process takes to read all headers and to plan a run, and how even the shares of ranks are."""
    begun = time.process_time()
    ckpt = formats.open(folder)
    opened = time.process_time()
    planned = formats.plan(ckpt, target)
    parts = Parts(planned.draft.folder)
    fingerprints(planned.draft.folder)
    shares = {}
    for size in ranks:
        lengths = [part.length for part in parts.all]
        shares[size] = balance([sum(lengths[n] for n in share) for share in cut_evenly(lengths, size)])
    done = time.process_time()
    return {
        "tensors": len(ckpt.state_dict()),
        "open": opened - begun,
        "plan": done - opened,
        "parts": len(parts.all),
        "balance": shares,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run(folder: Path, target: Path, ranks: int) -> tuple[float, list[str], float]:
    """A whole `ckptool convert` under torchrun: seconds, what it says, and the peak memory of a rank in MB."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words += ["-m", "ckptool", "rename", str(folder), str(target), "--rename", "model=", "-t", "safetensors"]
    begun = time.perf_counter()
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(done.stderr)
    said = [line for line in done.stderr.splitlines() if "rank" in line or line.startswith("wrote")]
    return seconds, said, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("--dir", type=Path, help="where to write; a disk whose files may be sparse")
    parser.add_argument("--ranks", type=int, default=2, help="processes of the whole run (default: 2)")
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(plan(options.plan, options.plan.with_name("out"), (8, 16, 64))))
        return
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="large-") as name:
        folder = Path(name)
        for tensors in (TENSORS // 4, TENSORS // 2, TENSORS):
            make(folder / str(tensors), tensors)
            words = [sys.executable, "-m", "benchmarks.large", "--plan", str(folder / str(tensors))]
            found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
            even = ", ".join(f"{value:.4f} on {size}" for size, value in found["balance"].items())
            print(
                f"{found['tensors']:,} tensors: {found['open']:.2f} s to open, {found['plan']:.2f} s to plan, "
                f"{found['peak']:.0f} MB; {found['parts']:,} parts; heaviest rank over the mean: {even}"
            )
        source = folder / str(TENSORS)
        print(f"{sum(f.stat().st_size for f in source.iterdir()):,} bytes in {SHARDS} shards")
        for ranks in (1, options.ranks):
            seconds, said, peak = run(source, folder / f"out-{ranks}", ranks)
            print(f"{ranks} of torchrun: {seconds:.1f} s, {peak:.0f} MB a rank at most", *said, sep="\n  ")


if __name__ == "__main__":
    main()
