"""What matching makes of every pair, as text, and how it differs from the stored text.

    python -m benchmarks.golden             the pairs of the zoo; stored in benchmarks/zoo/golden.txt
    python -m benchmarks.golden DIR         and those of a folder of porting pairs; stored in benchmarks/out
    python -m benchmarks.golden --accept    store what matching makes of them now

A pair is a group of lines, and an entry is a line: status, key, expression, doubts, rivals. Matching runs without the
source's code, then with it. A status with a plus (`mapped+`) is of the second run, and has a line only where the two
runs differ. Nothing is proved.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import logging
import multiprocessing
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ckptool
from ckptool.errors import counted, printable
from ckptool.porting.mapping import Entry
from ckptool.porting.matching.units import natural

from .porting import folder_of_pairs, pairs_in
from .zoo.__main__ import PAIRS, built

#: Pair -> its lines.
Golden = dict[str, list[str]]

OF_THE_ZOO = Path(__file__).with_name("zoo") / "golden.txt"
_OUT = Path(__file__).with_name("out")
_WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="a folder of porting pairs")
    parser.add_argument("--accept", action="store_true", help="store what matching makes of the pairs now")
    options = parser.parse_args()
    differ = False
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_WORKERS, mp_context=spawn, initializer=_begin) as pool:
        for folder in (None, *options.folders):
            names = sorted(PAIRS) if folder is None else [pair.name for pair in pairs_in(folder_of_pairs(folder))]
            stored = OF_THE_ZOO if folder is None else _OUT / f"golden-{folder.resolve().name}.txt"
            found = dict(zip(names, pool.map(partial(lines_of, folder), names, chunksize=4), strict=True))
            differ |= compare(stored, found, accept=options.accept)
    sys.exit(differ)


def compare(stored: Path, found: Golden, *, accept: bool) -> bool:
    """Print how FOUND differs from what is stored, or store it. Whether it differs and was not stored."""
    before = read(stored) if stored.exists() else None
    print(f"{stored}: {counts(found)}")
    if before is None or accept:
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(text_of(found), encoding="utf-8", newline="\n")
        print("stored; there was nothing to compare with" if before is None else f"stored; {summary(before, found)}")
        return False
    print(*difference(before, found), summary(before, found), sep="\n")
    return before != found


# -------------------------------------------------------------------------------------------------- the matching


def _begin() -> None:
    """Give each of several processes one thread, and no log."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)


def lines_of(folder: Path | None, name: str) -> list[str]:
    """What matching makes of one pair of FOLDER, or of the zoo."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of models
        if folder is None:
            code, model, source = built(PAIRS[name])
        else:
            pair = folder_of_pairs(folder) / name
            source = pair / json.loads((pair / "meta.json").read_text())["source_file"]
            code, model = str(pair / "source_model.py"), str(pair / "model.py")
        plain = _matched(source, model)
        with_code = _matched(source, model, source_model=code, prove=False)
    lines = []
    for key in sorted(plain | with_code, key=lambda key: natural(key.split("."))):
        if key in plain:
            lines.append("{:<9} {}".format(*plain[key]))
        if key in with_code and with_code[key] != plain.get(key):
            status, text = with_code[key]
            lines.append(f"{status + '+':<9} {text}")
    return lines


def _matched(source: Any, model: Any, **more: Any) -> dict[str, tuple[str, str]]:
    """Target key -> its status, and the rest of its line. What stops the matching is one line, too."""
    try:
        mapping = ckptool.transfer(source, model, **more)
    except Exception as error:
        return {"": ("failed", printable(f"{type(error).__name__}: {getattr(error, 'what', error)}"))}
    return {entry.target: (entry.status, _text(entry)) for entry in mapping.entries}


def _text(entry: Entry) -> str:
    made = entry.expr if entry.expr is not None else "default" if entry.default else "nothing"
    doubts = f"   ({'; '.join(entry.doubts)})" if entry.doubts else ""
    rivals = f"   or {', '.join(map(str, entry.rivals))}" if entry.rivals else ""
    return printable(f"{entry.target} <- {made}{doubts}{rivals}", sys.maxsize)


# ------------------------------------------------------------------------------------------------------ the text


def text_of(golden: Golden) -> str:
    """Groups of indented lines, each below the name of its pair."""
    return "".join(f"{name}\n" + "".join(f"  {line}\n" for line in lines) for name, lines in golden.items())


def read(path: Path) -> Golden:
    """What `text_of` wrote."""
    golden: Golden = {}
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            lines.append(line[2:])
        else:
            lines = golden[line] = []
    return golden


def difference(before: Golden, now: Golden) -> Iterator[str]:
    """A unified diff of every changed pair."""
    for name in _changed(before, now):
        old, new = before.get(name, []), now.get(name, [])
        yield from difflib.unified_diff(old, new, f"{name} (stored)", f"{name} (now)", n=1, lineterm="")


def summary(before: Golden, now: Golden) -> str:
    """How many pairs and entries changed, and from which status to which one without the source's code."""
    pairs = _changed(before, now)
    moves: Counter[str] = Counter()
    for name in pairs:
        old, new = (golden.get(name, []) for golden in (before, now))
        was, becomes = ({key: status for status, key in map(_entry, some) if status[-1] != "+"} for some in (old, new))
        keys = {_entry(line)[1] for line in set(old) ^ set(new)}
        moves.update(f"{was.get(key, 'absent')} -> {becomes.get(key, 'absent')}" for key in keys)
    listed = "".join(f"\n  {move}: {number:,}" for move, number in sorted(moves.items()))
    return f"{counted(len(pairs), 'pair')} and {counted(moves.total(), 'entry', 'entries')} changed{listed}"


def counts(golden: Golden) -> str:
    """How many pairs and entries there are, by status, without the source's code."""
    found = Counter(line.split()[0] for lines in golden.values() for line in lines)
    return ", ".join(
        [counted(len(golden), "pair"), *(f"{found[s]:,} {s}" for s in ("mapped", "guessed", "unmapped", "failed"))]
    )


def _changed(before: Golden, now: Golden) -> list[str]:
    return [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]


def _entry(line: str) -> tuple[str, str]:
    """The status and the key in a line."""
    status, _, text = line.partition(" ")
    return status, text.strip().partition(" <- ")[0]


if __name__ == "__main__":
    main()
