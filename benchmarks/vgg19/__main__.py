"""Time `ckptool transfer` of VGG19 against `cp` and the import of torch, and check that outputs are equal.

python -m benchmarks.vgg19 [--runs 3]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

#: With compiled modules kept, as in any installation.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
NETS = ("named", "convolutional", "sliced")


def source() -> nn.Module:
    """The layout of the original: features.{0..34} and classifier.{0,3,6}, 38 tensors."""
    layers: list[nn.Module] = []
    before = 3
    for count, width in ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    made = nn.Module()
    made.features = nn.Sequential(*layers)
    made.classifier = nn.Sequential(
        nn.Linear(25088, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )
    return made.eval()


def timed(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vgg19", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(dir=here.parent) as folder:
        zipped, legacy, out = (str(Path(folder) / name) for name in ("zip.pth", "legacy.pth", "out.pth"))
        torch.manual_seed(0)
        model = source()
        state = model.state_dict()
        torch.save(state, zipped)
        torch.save(state, legacy, _use_new_zipfile_serialization=False)
        x = torch.randn(1, 3, 224, 224)
        with torch.no_grad():
            expected = model.classifier(model.features(x).flatten(1))
        rows: dict[str, list[float]] = {}
        for _ in range(runs):
            rows.setdefault("cp, sync", []).append(timed("sh", "-c", f"cp {zipped} {out} && sync {out} && rm {out}"))
            rows.setdefault("import torch", []).append(timed(sys.executable, "-c", "import torch"))
            for path in (zipped, legacy):
                for net in NETS:
                    name = f"{Path(path).stem} to {net}"
                    command = (sys.executable, "-m", "ckptool", "transfer", path, str(here / f"{net}.py"), "-o", out)
                    rows.setdefault(name, []).append(timed(*command, "-q", "--overwrite"))
                    if len(rows[name]) == 1:
                        check(here / f"{net}.py", out, x, expected)
                    Path(out).unlink()
    middle = {name: statistics.median(times) for name, times in rows.items()}
    allowed = 1.5 * middle["cp, sync"] + middle["import torch"]
    for name, seconds in middle.items():
        print(
            f"{name:<24} {seconds:6.2f} s"
            + (f"  {seconds / allowed:5.2f} of what is allowed" if " to " in name else "")
        )
    print(f"allowed: {allowed:.2f} s (1.5 times cp, and the import of torch)")


def check(code: Path, made: str, x: torch.Tensor, expected: torch.Tensor) -> None:
    names: dict[str, type[nn.Module]] = {}
    exec(compile(code.read_text(), str(code), "exec"), names)
    net = names["Net"]().eval()
    net.load_state_dict(torch.load(made))
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
