"""What a proof takes: seconds and memory of `ckptool transfer` with the source's code, beside two runs of the models.

    python -m benchmarks.proving                    every case, each way in new processes, in turn
    python -m benchmarks.proving --only resnet50 --runs 1

Each case is one network in two codes, the second with other names. The ways: no source code; the source's code with
`--no-prove`, so that only its forward pass is followed; as a user types it, so that outputs are compared if the models
are small; and `--prove`. `both models` is what nothing can do without: a process that builds the two, loads the file
into one, and runs each once on the inputs that the proof takes. The ratios are to this row.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from .measure import Command, Run, run_once

_BEGIN = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"

_RESNET50 = """
class Bottleneck(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        before, layers = 64, []
        for n, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            made = []
            for block in range(blocks):
                made.append(Bottleneck(before, width, 2 if n and not block else 1))
                before = 4 * width
            layers.append(nn.Sequential(*made))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
"""

_VGG19 = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for count, width in ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)):
            for _ in range(count):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        head = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
        self.classifier = nn.Sequential(*head, nn.Linear(4096, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))
"""

_VIT = """
class Block(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.fc1, self.fc2 = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, size=384):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size))
        self.pos_embed = nn.Parameter(torch.zeros(1, 197, size))
        self.patch_embed = nn.Conv2d(3, size, 16, 16)
        self.blocks = nn.ModuleList(Block(size, 6) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 1000)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
"""

#: Case -> code, and what the second code calls the names of the first.
CASES = {
    "resnet50": (_RESNET50, {"conv": "c", "bn": "n", "downsample": "short", "layer": "stage", "self.fc": "self.out"}),
    "vit_small": (_VIT, {"norm": "ln", "qkv": "attn_in", "proj": "attn_out", "fc": "mlp", "blocks": "layers"}),
    "vgg19": (_VGG19, {"features": "body", "classifier": "top"}),
}

_BOTH = """
import sys, time
began, cpu = time.perf_counter(), time.process_time()
import runpy, torch
own, theirs = (runpy.run_path(path)["Model"]().eval() for path in sys.argv[2:4])
theirs.load_state_dict(torch.load(sys.argv[1], mmap=True))
with torch.no_grad():
    for model in (own, theirs):
        model(torch.randn(2, 3, 224, 224))
print("@", time.perf_counter() - began, time.process_time() - cpu)
"""


def ways(folder: Path) -> dict[str, Command]:
    """Return way -> command, for a case whose files are in FOLDER."""
    weights, own, theirs = (str(folder / name) for name in ("weights.pth", "own.py", "theirs.py"))
    port = (sys.executable, "-m", "ckptool", "transfer", weights, f"{own}:Model", "-n", "-q")
    code = (*port, "--source-model", f"{theirs}:Model")
    return {
        "both models": (sys.executable, "-c", _BOTH, weights, own, theirs),
        "names": port,
        "source's code, --no-prove": (*code, "--no-prove"),
        "source's code": code,
        "source's code, --prove": (*code, "--prove"),
    }


def write(folder: Path, code: str, names: dict[str, str]) -> None:
    """Write the files of a case to FOLDER: both codes, and weights of the first in which no norm is trivial."""
    other = code
    for old, new in names.items():
        other = other.replace(old, new) if "." in old else other.replace(f"self.{old}", f"self.{new}")
    (folder / "theirs.py").write_text(_BEGIN + code)
    (folder / "own.py").write_text(_BEGIN + other)
    made: dict[str, type[torch.nn.Module]] = {}
    exec(_BEGIN + code, made)
    torch.manual_seed(0)
    state = made["Model"]().state_dict()
    for key, value in state.items():
        if value.dtype.is_floating_point and (value == value.flatten()[0]).all():
            value.uniform_(0.5, 1.5) if "var" in key or "weight" in key else value.normal_(std=0.1)
    torch.save(state, folder / "weights.pth")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proving", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=[*CASES], help="some cases")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{'case':<11}{'way':<28}{'wall':>8}{'ratio':>8}{'CPU':>8}{'memory':>10}")
    for case in options.only or CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, *CASES[case])
            rows: dict[str, list[Run]] = {}
            for _ in range(options.runs):
                for way, command in ways(folder).items():
                    rows.setdefault(way, []).append(run_once(command, folder, folder / "out", folder))
        first = statistics.median(one.wall for one in rows["both models"])
        for way, runs in rows.items():
            wall, cpu = (statistics.median(getattr(one, name) for one in runs) for name in ("wall", "cpu"))
            peak = max(one.peak for one in runs)
            print(f"{case:<11}{way:<28}{wall:>6.2f} s{wall / first:>8.2f}{cpu:>6.2f} s{peak:>7,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
