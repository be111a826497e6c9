"""Whether the Python that a port is emitted as makes what `mapping.apply` makes.

python -m benchmarks.emitted          of every pair of the zoo
python -m benchmarks.emitted DIR      and of those of a folder of porting pairs
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import ckptool
from ckptool.errors import CheckpointError, printable
from ckptool.porting.emitting import python_of

from .porting import folder_of_pairs, pairs_in
from .zoo.__main__ import PAIRS, built


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emitted", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="a folder of porting pairs")
    parser.add_argument("--write", type=Path, metavar="DIR", help="also write the code into a folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs: list[tuple[Path | None, str]] = [(None, name) for name in sorted(PAIRS)]
    pairs += [(folder, pair.name) for folder in options.folders for pair in pairs_in(folder_of_pairs(folder))]
    bad = lines = 0
    for folder, name in pairs:
        try:
            text = emitted(name, folder)
        except (CheckpointError, ImportError) as error:
            print(f"{name}: no port: {printable(str(error).splitlines()[0], 100)}")
            continue
        if options.write:
            options.write.mkdir(parents=True, exist_ok=True)
            (options.write / f"{name}.py").write_text(text, encoding="utf-8")
        difference = compared(name, text, folder)
        lines += text.count("\n")
        if difference:
            bad += 1
            print(f"{name}: {difference}")
    print(f"{len(pairs):,} pairs, {lines:,} lines; {bad} differ")
    sys.exit(bool(bad))


def emitted(name: str, folder: Path | None = None) -> str:
    """The code of the port of one pair of the zoo, or of FOLDER."""
    mapping, _ = _ported(name, folder)
    return python_of(mapping, f"ckptool transfer {name}.pth model.py")


def compared(name: str, text: str, folder: Path | None = None) -> str:
    """What the code of a pair makes otherwise than `apply`, as a line; "" if nothing."""
    mapping, source = _ported(name, folder)
    told: dict[str, Any] = {"__name__": "port"}
    exec(compile(text, f"{name}.py", "exec"), told)
    weights = _weights(source, mapping.at) if isinstance(source, Path) else source
    try:
        made = told["convert"](weights)
    except (KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    wanted = mapping.apply(source).state_dict().tensors
    if made.keys() != wanted.keys():
        return f"other keys: {sorted(made.keys() ^ wanted.keys())[:4]}"
    for key, tensor in wanted.items():
        values = torch.from_numpy(tensor.numpy().astype("float64"))
        if tuple(made[key].shape) != tensor.shape or str(made[key].dtype) != f"torch.{tensor.dtype.name}":
            return f"{key} is {made[key].dtype} {list(made[key].shape)}, not {tensor.dtype.name} {list(tensor.shape)}"
        if not torch.allclose(made[key].double(), values, rtol=1e-5, atol=1e-6, equal_nan=True):
            return f"{key} has other values"
    return ""


def _weights(path: Path, at: str | None) -> Any:
    """What a file holds where its weights are."""
    found = ckptool.load(path)
    for part in filter(None, ckptool.open(path).state_dict(at).path.split("/")):
        found = found[int(part) if isinstance(found, list) else part]
    return found


def _ported(name: str, folder: Path | None) -> tuple[Any, Any]:
    """The mapping of a pair, and its source."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of models
        if folder is None:
            _, model, source = built(PAIRS[name])
            return ckptool.transfer(source, model), source
        pair = folder_of_pairs(folder) / name
        path = pair / json.loads((pair / "meta.json").read_text())["source_file"]
        return ckptool.transfer(path, str(pair / "model.py")), path


if __name__ == "__main__":
    main()
