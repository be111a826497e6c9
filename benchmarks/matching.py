"""What matching of large models takes: CPU seconds of `ckptool.transfer`, and how they grow with the entries.

    python -m benchmarks.matching                       every case
    python -m benchmarks.matching --only deep --to 2000 some cases, up to so many entries
    python -m benchmarks.matching --only same:500 --profile
                                                        one case, and the functions that took most

`deep` is a transformer whose source has other names for everything; `same` and `distinct` are rows of linear layers
with random names on both sides, of equal sizes and each of its own size. Each is matched with a model in memory that is
followed through a forward pass, with one that is not, and with model code in a file. The seconds are those of this
process, after a small transfer that has loaded all modules.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ckptool
from ckptool.model_code.trace import signature_of
from ckptool.porting.sources import match_signature
from ckptool.porting.words import words_of

#: Key of the target -> key of the source, and the shape of both.
Truth = dict[str, tuple[str, tuple[int, ...]]]

_TRANSFORMER = """
class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.dense = nn.Linear(size, size)

    def forward(self, x):
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(-1, -2), -1)
        return self.dense(weights @ self.value(x))


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.attention = Attention(size)
        self.layernorm_before = nn.LayerNorm(size)
        self.intermediate = nn.Linear(size, 4 * size)
        self.output = nn.Linear(4 * size, size)
        self.layernorm_after = nn.LayerNorm(size)

    def forward(self, x):
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(torch.relu(self.intermediate(self.layernorm_after(x))))


class Model(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.embeddings = nn.Embedding(32, size)
        self.layer = nn.ModuleList(Layer(size) for _ in range(LAYERS))
        self.layernorm = nn.LayerNorm(size)
        self.classifier = nn.Linear(size, 10)

    def forward(self, x):
        x = self.embeddings(x)
        for layer in self.layer:
            x = layer(x)
        return self.classifier(self.layernorm(x).mean(1))
"""

_BEGIN = "import torch\nfrom torch import nn\n\n"
_SIZE = 4


def deep(entries: int) -> tuple[str, Truth]:
    """Return the code of a transformer with so many entries, and where each of them comes from."""
    layers = max((entries - 5) // 16, 1)
    truth: Truth = {"embeddings.weight": ("tok.weight", (32, _SIZE))}

    def add(target: str, source: str, *shape: int) -> None:
        truth[f"{target}.weight"] = f"{source}.weight", shape
        truth[f"{target}.bias"] = f"{source}.bias", shape[:1]

    for n in range(layers):
        own, theirs = f"layer.{n}", f"blocks.{n}"
        add(f"{own}.layernorm_before", f"{theirs}.norm1", _SIZE)
        for name, other in {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "proj"}.items():
            add(f"{own}.attention.{name}", f"{theirs}.attn.{other}", _SIZE, _SIZE)
        add(f"{own}.layernorm_after", f"{theirs}.norm2", _SIZE)
        add(f"{own}.intermediate", f"{theirs}.mlp.fc1", 4 * _SIZE, _SIZE)
        add(f"{own}.output", f"{theirs}.mlp.fc2", _SIZE, 4 * _SIZE)
    add("layernorm", "norm", _SIZE)
    add("classifier", "head", 10, _SIZE)
    return f"{_BEGIN}LAYERS = {layers}\n{_TRANSFORMER}", truth


def same(layers: int) -> tuple[str, Truth]:
    """Return the code of so many layers with random names and equal sizes, and where each tensor comes from."""
    return _row([_SIZE] * (layers + 1))


def distinct(layers: int) -> tuple[str, Truth]:
    """Return the code of so many layers with random names, each of its own size, and where each tensor comes from."""
    return _row(list(range(_SIZE, _SIZE + layers + 1)))


def _row(sizes: list[int]) -> tuple[str, Truth]:
    draw = random.Random(0)
    drawn = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(3 * len(sizes)))
    names = [name for name in drawn if words_of([name]) == (name,)]  # `bwlxjbn` would be taken for a norm
    truth: Truth = {}
    init, forward = [], []
    for own, theirs, before, after in zip(names[::2], names[1::2], sizes, sizes[1:], strict=False):
        init.append(f"        self.{own} = nn.Linear({before}, {after})")
        forward.append(f"        x = self.{own}(x)")
        truth[f"{own}.weight"] = f"{theirs}.weight", (after, before)
        truth[f"{own}.bias"] = f"{theirs}.bias", (after,)
    lines = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()", *init, ""]
    return _BEGIN + "\n".join([*lines, "    def forward(self, x):", *forward, "        return x", ""]), truth


CASES: dict[str, tuple[Callable[[int], tuple[str, Truth]], tuple[int, ...]]] = {
    "deep": (deep, (1_000, 10_000)),
    "same": (same, (100, 500, 1_000)),
    "distinct": (distinct, (100, 500, 1_000)),
}


def in_memory(code: str, source: dict[str, Any], folder: Path) -> Callable[[], Any]:
    """Return a transfer into a model that is followed through a forward pass."""
    model = _built(code)
    return lambda: ckptool.transfer(source, model)


def not_followed(code: str, source: dict[str, Any], folder: Path) -> Callable[[], Any]:
    """Return a transfer into a model of which only its state dict is known."""
    model = _built(code)
    return lambda: match_signature(source, signature_of(model, trace=False))


def from_a_file(code: str, source: dict[str, Any], folder: Path) -> Callable[[], Any]:
    """Return a transfer from a file into code in a file."""
    torch.save(source, folder / "weights.pth")
    (folder / "model.py").write_text(code)
    return lambda: ckptool.transfer(folder / "weights.pth", f"{folder / 'model.py'}:Model")


WAYS = {"followed": in_memory, "not followed": not_followed, "from a file": from_a_file}


def _built(code: str) -> torch.nn.Module:
    names: dict[str, Any] = {}
    exec(code, names)
    with torch.device("meta"):
        return names["Model"]()


def measured(case: str, size: int, way: str, *, profile: bool = False) -> tuple[int, float, Any, Truth]:
    """Return the entries of a case, the CPU seconds that its transfer takes, the mapping, and the truth."""
    code, truth = CASES[case][0](size)
    source = {key: torch.zeros(shape) for key, shape in truth.values()}
    with tempfile.TemporaryDirectory() as folder:
        run = WAYS[way](code, source, Path(folder))
        watch = cProfile.Profile(time.process_time)
        began = time.process_time()
        mapping = watch.runcall(run) if profile else run()
        took = time.process_time() - began
    if profile:
        pstats.Stats(watch).sort_stats("tottime").print_stats(40)
        pstats.Stats(watch).sort_stats("cumulative").print_stats(70)
    return len(truth), took, mapping, truth


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matching", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="CASE[:SIZE]", help="deep, same:500 …")
    parser.add_argument("--way", action="append", choices=[*WAYS], help="how the model is given")
    parser.add_argument("--to", type=int, default=10_000, metavar="N", help="sizes up to N")
    parser.add_argument("--profile", action="store_true", help="also print the functions that took most")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    measured("deep", 50, "from a file")
    print(f"{'case':<10}{'model':<14}{'entries':>8}{'CPU s':>8}{'growth':>8}{'right':>8}{'asked':>8}")
    for case, (_, sizes) in CASES.items():
        chosen = [only.partition(":")[2] for only in options.only if only.partition(":")[0] == case]
        if options.only and not chosen:
            continue
        wanted = [int(size) for size in chosen if size] or [size for size in sizes if size <= options.to]
        for way in options.way or WAYS:
            before: tuple[int, float] | None = None
            for size in wanted:
                entries, took, mapping, truth = measured(case, size, way, profile=options.profile)
                right = sum(e.expr is not None and str(e.expr) == truth[e.target][0] for e in mapping.entries)
                growth = ""
                if before is not None:  # the exponent: 1 is linear, 2 is quadratic
                    growth = f"{math.log(took / before[1]) / math.log(entries / before[0]):.1f}"
                before = entries, took
                asked = len(mapping.having("guessed"))
                print(f"{case:<10}{way:<14}{entries:>8,}{took:>8.2f}{growth:>8}{right:>8,}{asked:>8,}", flush=True)


if __name__ == "__main__":
    main()
