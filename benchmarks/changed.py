"""Change the source of pairs a little, and count the tensors that a port then gets wrong without a doubt.

    python -m benchmarks.changed                 the pairs of the zoo
    python -m benchmarks.changed DIR             and those of a folder of porting pairs
    python -m benchmarks.changed --kind less     one kind of change
    python -m benchmarks.changed -v              a line for each wrong port

Kinds of change: `less` leaves out the tensors of one module, `more` adds a module of equal sizes beside one, `other
end` registers the modules of the source from last to first, `sorted` sorts keys by name. Of `less` and `more`, each
pair has as many changes as `--most` says, drawn with a fixed seed.

What a certain entry of the unchanged port takes is the truth, so DIR's scorer is not needed. A port is wrong in silence
if an entry is certain and takes other values; or any values, where the tensors that it takes are left out. The source's
code is not used.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ckptool
from ckptool.errors import CheckpointError, counted
from ckptool.porting.expression import lazy
from ckptool.porting.mapping import Mapping
from ckptool.torch_bridge import from_torch, to_torch

from .porting import folder_of_pairs, pairs_in
from .zoo import PAIRS
from .zoo.__main__ import built

State = dict[str, torch.Tensor]
KINDS = ("less", "more", "other end", "sorted")
_WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.changed", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="a folder of porting pairs")
    parser.add_argument("--kind", action="append", choices=KINDS, help="one kind of change (all of them)")
    parser.add_argument("--most", type=int, default=6, help="changes of one kind for each pair (6)")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each wrong port")
    options = parser.parse_args()
    kinds = tuple(options.kind or KINDS)
    ports, wrong, flags, began = Counter[str](), Counter[str](), Counter[str](), time.perf_counter()
    with ProcessPoolExecutor(_WORKERS, mp_context=multiprocessing.get_context("spawn"), initializer=_begin) as pool:
        for folder in (None, *options.folders):
            names = sorted(PAIRS) if folder is None else [pair.name for pair in pairs_in(folder_of_pairs(folder))]
            for name, rows in zip(names, pool.map(partial(_of_pair, folder, kinds, options.most), names), strict=True):
                for kind, change, bad, doubted in rows:
                    ports[kind] += 1
                    wrong[kind] += bool(bad)
                    flags[kind] += doubted
                    if bad and options.verbose:
                        print(f"{name}, {kind} {change}: {'; '.join(bad[:4])}", flush=True)
    for kind in kinds:
        print(f"{kind:<10} {ports[kind]:6,} ports   {wrong[kind]:4,} wrong in silence   {flags[kind]:6,} more doubts")
    print(
        f"{counted(sum(wrong.values()), 'wrong port')} of {sum(ports.values()):,}, {time.perf_counter() - began:.0f} s"
    )
    sys.exit(bool(wrong.total()))


def _begin() -> None:
    """Give each of several processes one thread, and no log."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)


def _of_pair(
    folder: Path | None, kinds: tuple[str, ...], most: int, name: str
) -> list[tuple[str, str, list[str], int]]:
    """Kind, change, what is wrong in silence, and how many entries more are in doubt, of each change of one pair."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of models
        try:
            state, model = _both(folder, name)
            truth = ckptool.transfer(state, model)
        except (CheckpointError, ImportError):
            return []
        return [
            (kind, change, *_compared(truth, state, new, model)) for kind, change, new in changes(state, kinds, most)
        ]


def _both(folder: Path | None, name: str) -> tuple[State, Any]:
    """The state dict of the source, and the model, or the path of its code."""
    if folder is None:
        _, model, state = built(PAIRS[name])
        return state, model
    pair = folder_of_pairs(folder) / name
    source = pair / json.loads((pair / "meta.json").read_text())["source_file"]
    tensors = ckptool.open(source).state_dicts()[0].tensors
    return {key: to_torch(tensor) for key, tensor in tensors.items()}, str(pair / "model.py")


def changes(state: State, kinds: tuple[str, ...], most: int) -> Iterator[tuple[str, str, State]]:
    """Kind of change, what it changes, and the changed state dict."""
    drawn = random.Random(0)
    modules: dict[str, list[str]] = {}
    for key in state:
        modules.setdefault(key.rpartition(".")[0], []).append(key)
    chosen = drawn.sample(list(modules), min(most, len(modules)))
    for module in chosen if "less" in kinds else ():
        yield "less", module, {key: value for key, value in state.items() if key not in modules[module]}
    for module in chosen if "more" in kinds else ():
        yield "more", module, _with_another(state, modules[module], first=drawn.random() < 0.5)
    if "other end" in kinds:
        yield "other end", "", {key: state[key] for keys in reversed(modules.values()) for key in keys}
    if "sorted" in kinds:
        yield "sorted", "", {key: state[key] for key in sorted(state)}


def _with_another(state: State, keys: list[str], *, first: bool) -> State:
    """STATE with a module more that has the sizes of that of KEYS and other values, before it if FIRST, else behind it.
    Its name is `extra`, in the module around the other one.
    """
    module = keys[0].rpartition(".")[0]
    around = module.rpartition(".")[0]
    name = f"{around}.extra" if around else "extra"
    generator = torch.Generator().manual_seed(9)
    more = {f"{name}.{key[len(module) :].lstrip('.')}": _other_values(state[key], generator) for key in keys}
    made: State = {}
    for key, value in state.items():
        if first and key == keys[0]:
            made |= more
        made[key] = value
        if not first and key == keys[-1]:
            made |= more
    return made


def _other_values(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    return torch.rand(tensor.shape, generator=generator).to(tensor.dtype) + 0.5


def _compared(truth: Mapping, state: State, changed: State, model: Any) -> tuple[list[str], int]:
    """The entries of a port of CHANGED that are wrong in silence, and how many more than in TRUTH are in doubt."""
    try:
        found = ckptool.transfer(changed, model)
    except CheckpointError:
        return [], 0
    before = {entry.target: entry.expr for entry in truth.having("mapped") if entry.expr is not None}
    old, new = (from_torch(some).state_dicts()[0].tensors for some in (state, changed))
    bad = []
    for entry in found.having("mapped"):
        true = before.get(entry.target)
        if true is None or entry.expr is None:
            continue
        there = set(true.keys()) <= set(changed)
        if not there or not torch.equal(to_torch(lazy(true, old)), to_torch(lazy(entry.expr, new))):
            bad.append(f"{entry.target} <- {entry.expr}, not {true}")
    return bad, max(0, len(found.having("guessed")) - len(truth.having("guessed")))


if __name__ == "__main__":
    main()
