"""Dequantising and merging adapters beside what the libraries do in memory: `python -m benchmarks.quantised`.

Each input has square matrices of 4096 columns. The other way loads the file with safetensors, computes each weight with
bitsandbytes or, as transformers, auto-gptq and peft do it, with torch, and saves all of them. Both have the output on
disk when they end. Where bitsandbytes is not installed, its row is left out.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from .__main__ import _size
from .measure import Run, run_once

_SIDE, _GROUP, _RANK = 4096, 128, 16
_START = (
    "import os, sys, json, torch; from safetensors.torch import load_file, save_file; src, dst, other = sys.argv[1:]"
)
_END = "save_file(out, dst); os.fsync(os.open(dst, os.O_RDONLY))"
#: Name -> what computes the weights of a file in memory.
WAYS = {
    "bnb-nf4": "import bitsandbytes.functional as F; sd = load_file(src + '/model.safetensors'); "
    "q = lambda k: F.QuantState.from_dict({n: v for n, v in sd.items() if n.startswith(k + '.')}, device='cpu'); "
    "out = {k: F.dequantize_4bit(sd[k], q(k)) for k in sd if k.endswith('weight')}",
    "fp8-blocks": "sd = load_file(src + '/model.safetensors'); "
    "s = lambda k: sd[k + '_scale_inv'].repeat_interleave(128, 0).repeat_interleave(128, 1); "
    "out = {k: (sd[k].float() * s(k)).bfloat16() for k in sd if k.endswith('weight')}",
    "gptq-4": "sd = load_file(src + '/model.safetensors'); f = torch.arange(0, 32, 4, dtype=torch.int32); "
    "w = lambda m: (sd[m + 'qweight'].unsqueeze(1) >> f.view(1, -1, 1) & 15).flatten(0, 1); "
    "z = lambda m: (sd[m + 'qzeros'].unsqueeze(2) >> f.view(1, 1, -1) & 15).flatten(1) + 1; "
    "out = {m + 'weight': (sd[m + 'scales'][g := sd[m + 'g_idx'].long()] * (w(m) - z(m)[g])).T.contiguous() "
    "for m in (k[:-7] for k in sd if k.endswith('qweight'))}",
    "lora": "sd = load_file(src + '/model.safetensors'); ad = load_file(other + '/adapter_model.safetensors'); "
    "b = 'base_model.model.'; out = {k: (v.float() + 2 * ad[b + k[:-6] + 'lora_B.weight'] @ "
    "ad[b + k[:-6] + 'lora_A.weight']).bfloat16() for k, v in sd.items()}",
}


def make(folder: Path, kind: str, size: int) -> None:
    """Write the input of KIND whose output has SIZE bytes: a folder, and for adapters a second one beside it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    random = torch.Generator().manual_seed(0)
    tensors, adapter = {}, {}
    config: dict[str, object] = {"torch_dtype": "bfloat16"}
    n = _SIDE
    for layer in range(max(size // (n * n * 2), 1)):
        key = f"layers.{layer}.linear."
        packed = torch.randint(0, 256, (n * n // 2, 1), dtype=torch.uint8, generator=random)
        if kind == "bnb-nf4":
            from bitsandbytes.functional import create_normal_map

            state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, n]}
            tensors |= {
                f"{key}weight": packed,
                f"{key}weight.absmax": torch.rand(n * n // 64, generator=random),
                f"{key}weight.quant_map": create_normal_map(),
                f"{key}weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode())).byte(),
            }
        elif kind == "fp8-blocks":
            weight = torch.randn(n, n, generator=random).to(torch.float8_e4m3fn)
            tensors |= {f"{key}weight": weight, f"{key}weight_scale_inv": torch.rand(n // 128, n // 128)}
            config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        elif kind == "gptq-4":
            tensors |= {
                f"{key}qweight": packed.view(torch.int32).view(n // 8, n),
                f"{key}qzeros": torch.full((n // _GROUP, n // 8), 0x77777777, dtype=torch.int32),
                f"{key}scales": torch.rand(n // _GROUP, n, generator=random).half(),
                f"{key}g_idx": (torch.arange(n) // _GROUP).int(),
            }
            said = {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "checkpoint_format": "gptq"}
            config["quantization_config"] = said
        else:
            tensors[f"{key}weight"] = torch.randn(n, n, generator=random).bfloat16()
            adapter[f"base_model.model.{key}lora_A.weight"] = torch.randn(_RANK, n, generator=random)
            adapter[f"base_model.model.{key}lora_B.weight"] = torch.randn(n, _RANK, generator=random)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    if adapter:
        beside = folder.with_name("adapter")
        beside.mkdir(exist_ok=True)
        save_file(adapter, beside / "adapter_model.safetensors", {"format": "pt"})
        said = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "target_modules": ["linear"]}
        (beside / "adapter_config.json").write_text(json.dumps(said))


def commands(kind: str) -> dict[str, tuple[str, ...]]:
    """The two ways."""
    ours = ("{python}", "-m", "ckptool")
    words = (
        ("merge-lora", "{src}", "{other}", "{dst}") if kind == "lora" else ("convert", "{src}", "{dst}", "--dequantize")
    )
    theirs = ("{python}", "-c", f"{_START}; {WAYS[kind]}; {_END}", "{src}", "{dst}", "{other}")
    return {"in memory": theirs, "ckptool": (*ours, *words, "--quiet")}


def row(kind: str, size: int, runs: dict[str, list[Run]]) -> str:
    """A line of the table."""
    cells = [f"{kind:<12} {size >> 20:>6,} MB"]
    for mine in runs.values():
        wall, cpu = median(run.wall for run in mine), median(run.cpu for run in mine)
        cells.append(f"{wall:7.2f} s {cpu:7.2f} s CPU {max(run.peak for run in mine):7,.0f} MB")
    ratios = [b.wall / a.wall for a, b in zip(*runs.values(), strict=True)]
    cells.append(f"{median(ratios):.2f} x ({min(ratios):.2f} – {max(ratios):.2f})")
    return "   ".join(cells)


def main() -> None:
    """Measure each family at two sizes, so that memory that grows with the file shows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantised", description=__doc__)
    parser.add_argument("--size", type=_size, default="1G", help="bytes of the larger output (default: 1G)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(WAYS))
    parser.add_argument("--dir", type=Path, help="where to write (default: benchmarks/out)")
    options = parser.parse_args()
    parent = options.dir or Path(__file__).with_name("out")
    parent.mkdir(parents=True, exist_ok=True)
    print(f"{'':<12} {'output':>9}   {'in memory':<34}   {'ckptool':<34}   ckptool / in memory, on the clock")
    for kind in options.only or list(WAYS):
        if kind.startswith("bnb") and not find_spec("bitsandbytes"):
            print(f"{kind}: bitsandbytes is not installed")
            continue
        for size in (options.size // 4, options.size):
            folder = Path(tempfile.mkdtemp(dir=parent, prefix="run-"))
            try:
                make(folder / "in", kind, size)
                runs: dict[str, list[Run]] = {way: [] for way in commands(kind)}
                for number in range(options.runs + 1):
                    for way, command in commands(kind).items():
                        target = folder / "out.safetensors"
                        run = run_once(command, folder / "in", target, folder / "adapter")
                        runs[way] += [run] if number else []
                        target.unlink()
                        os.sync()
                print(row(kind, size, runs), flush=True)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
