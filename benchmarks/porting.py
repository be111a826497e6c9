"""Port every pair of a folder of porting pairs, score the result, and print one table next to simple baselines.

    python -m benchmarks.porting DIR                   as a user who accepts guesses and gaps would
    python -m benchmarks.porting DIR --with-code       with the source's code, nothing proved
    python -m benchmarks.porting DIR --prove           with the source's code, outputs compared
    python -m benchmarks.porting DIR --only vgg -v     some pairs, each in a line

DIR holds `score.py` and `pairs/NAME/` with `meta.json`, `truth.json`, `model.py`, the source file and, for --prove,
`source_model.py`. The scorer that comes with the pairs judges: values are compared, and a pair is wrong with one tensor
that is wrong and was not flagged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import ckptool
from ckptool.errors import CheckpointError, counted

_CLASSES = {
    1: "wrappers and parts",
    2: "same order, other names",
    3: "other order",
    4: "structural",
    5: "real cross-implementation",
}

#: In an answer that the source's code gave; and in the remark about a pair with such answers.
_CODE, _BY_CODE = "the source's code ", "the source's code answered questions about"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.porting", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--prove", action="store_true", help="use the source's code and compare outputs")
    parser.add_argument("--with-code", action="store_true", help="use the source's code, and prove nothing")
    parser.add_argument("--own-inputs", action="store_true", help="with --prove: let inputs be worked out")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="pairs whose name holds TEXT")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every pair's result")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every pair")
    options = parser.parse_args()
    pairs = folder_of_pairs(options.folder)
    scorer = next((d / "score.py" for d in (options.folder, options.folder.parent) if (d / "score.py").exists()), None)
    if scorer is None:
        parser.error(f"there is no score.py in {options.folder}")
    chosen = [d for d in pairs_in(pairs) if not options.only or any(text in d.name for text in options.only)]
    methods = {
        "ckptool" + (" --prove" if options.prove else " --with-code" if options.with_code else ""): lambda d, meta: (
            port(d, meta, options.prove, own_inputs=options.own_inputs, with_code=options.with_code)
        )
    }
    if not options.no_baselines:
        methods |= {"position, shapes checked": by_position, "exact names": by_name, "next of the same shape": by_shape}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, method in methods.items():
            results[name] = run(name, method, chosen, Path(folder), pairs, scorer)
    first = next(iter(results.values()))
    if options.verbose:
        for row in first:
            print(_pair_line(row))
        print()
    print(table(results))
    print(summary(first))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def folder_of_pairs(folder: Path) -> Path:
    """Where the pairs are: in `pairs` of FOLDER, or in FOLDER itself."""
    return folder / "pairs" if (folder / "pairs").is_dir() else folder


def pairs_in(pairs: Path) -> list[Path]:
    """The folder of every pair, by name."""
    return [d for d in sorted(pairs.iterdir()) if (d / "meta.json").exists()]


# ------------------------------------------------------------------------------------------------- the methods


def port(
    folder: Path, meta: dict[str, Any], prove: bool, *, own_inputs: bool = False, with_code: bool = False
) -> tuple[Any, list[str], list[str], str]:
    """What `ckptool transfer --accept-guesses --partial` gives: tensors, flagged keys, keys left, and a remark."""
    from ckptool.model_code.inputs import InputSpec
    from ckptool.porting.applying import apply

    code = folder / "source_model.py"  # a file of another framework may come without
    arguments: dict[str, Any] = {"source_model": str(code)} if with_code and code.exists() else {}
    source = folder / meta["source_file"]
    remark = ""

    def specs(given: dict[str, Any]) -> Any:
        made = {k: _spec(InputSpec, v) for k, v in given.get("kwargs", {}).items()}
        return made or [_spec(InputSpec, v) for v in given.get("args", [])]

    if prove:
        arguments = {"source_model": str(folder / "source_model.py"), "prove": True}
        if meta.get("source_inputs") and not own_inputs:
            arguments["source_inputs"] = specs(meta["source_inputs"])
        if meta.get("target_inputs") and not own_inputs:
            arguments["inputs"] = specs(meta["target_inputs"])
    try:
        mapping = ckptool.transfer(source, str(folder / "model.py"), **arguments)
    except CheckpointError as error:
        if not prove:
            raise
        remark = f"not proved: {error.what}"
        mapping = ckptool.transfer(source, str(folder / "model.py"))
    if mapping.proof is not None:
        remark = str(mapping.proof.get("text"))
    elif by_code := [e for e in mapping.entries if any(q.answer and _CODE in q.answer for q in e.questions)]:
        remark = f"{_BY_CODE} {counted(len(by_code), 'key')}"
    flagged = [e.target for e in mapping.having("guessed")]
    if mapping.proof is not None and not mapping.proof.get("equal"):
        flagged = [e.target for e in mapping.entries if e.expr is not None]  # refused: nothing is claimed
    left = [e.target for e in mapping.entries if e.expr is None]
    return apply(mapping, source), flagged, left, remark


def _spec(kind: Any, given: dict[str, Any]) -> Any:
    return kind(given["dtype"], tuple(given["shape"]), given.get("high", 0), given.get("low", 0))


def _both(folder: Path, meta: dict[str, Any]) -> tuple[list[tuple[str, Any]], dict[str, list[int]]]:
    ckpt = ckptool.open(folder / meta["source_file"])
    weights = ckpt.state_dicts()[0]
    return list(weights.tensors.items()), json.loads((folder / "target_shapes.json").read_text())


def _copied(pairs: dict[str, Any]) -> tuple[Any, list[str], list[str], str]:
    from ckptool.checkpoint import Checkpoint
    from ckptool.tree import Dict

    return Checkpoint(Dict(list(pairs.items()), ordered=True)), [], [], ""


def by_position(folder: Path, meta: dict[str, Any]) -> Any:
    """The n-th to the n-th, those of other shapes left out."""
    have, wanted = _both(folder, meta)
    return _copied(
        {key: t for (key, shape), (_, t) in zip(wanted.items(), have, strict=False) if list(t.shape) == shape}
    )


def by_name(folder: Path, meta: dict[str, Any]) -> Any:
    """Equal names, with or without one first component."""
    have, wanted = _both(folder, meta)
    known = {name: t for key, t in have for name in (key, key.partition(".")[2])}
    found = {}
    for key, shape in wanted.items():
        t = known.get(key, known.get(key.partition(".")[2]))
        if t is not None and list(t.shape) == shape:
            found[key] = t
    return _copied(found)


def by_shape(folder: Path, meta: dict[str, Any]) -> Any:
    """The next tensor of the same shape that is not used yet."""
    have, wanted = _both(folder, meta)
    free: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    for _, t in have:
        free[t.shape].append(t)
    return _copied({key: free[tuple(shape)].pop(0) for key, shape in wanted.items() if free[tuple(shape)]})


# ------------------------------------------------------------------------------------------------- the scoring


def run(name: str, method: Any, chosen: list[Path], folder: Path, pairs: Path, scorer: Path) -> list[dict[str, Any]]:
    predictions = folder / name.replace(" ", "-").replace(",", "")
    logging.disable(logging.CRITICAL)
    remarks, seconds = {}, {}
    for pair in chosen:
        meta = json.loads((pair / "meta.json").read_text())
        out = predictions / pair.name
        out.mkdir(parents=True)
        began = time.monotonic()
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                made, flagged, left, remark = method(pair, meta)
            ckptool.save(made, out / "pred.pth")
            (out / "pred.json").write_text(json.dumps({"flagged": flagged, "unmapped_target": left}))
        except CheckpointError as error:
            remark = f"refused: {error.what}"
        except Exception as error:
            remark = f"FAILED: {type(error).__name__}: {error}"
        remarks[pair.name], seconds[pair.name] = remark, time.monotonic() - began
    result = predictions / "result.json"
    subprocess.run(
        [sys.executable, str(scorer), str(predictions), "--pairs", str(pairs), "--json", str(result)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    names = {pair.name for pair in chosen}
    rows = [row for row in json.loads(result.read_text())["pairs"] if row["name"] in names]
    for row in rows:
        prediction = predictions / row["name"] / "pred.json"
        row["remark"], row["seconds"] = remarks[row["name"]], round(seconds[row["name"]], 2)
        row["flags"] = len(json.loads(prediction.read_text())["flagged"]) if prediction.exists() else 0
        if row["outcome"] == "refused" and row["remark"].startswith("FAILED"):
            row["outcome"] = "failed"
    return rows


def _pair_line(row: dict[str, Any]) -> str:
    flagged = row["flagged_right"] + row["flagged_wrong"]
    cells = [
        f"{row['outcome']:<8} {row['cls']}  {row['name']:<34}",
        f"{row['right']:>5}/{row['n_truth']:<5} {row['seconds']:6.2f} s ",
        f"{'needs a hint' if row['hint'] else '':<13}",
        f"{f'{flagged} flagged' if flagged else '':<12}",
        ", ".join([*row["wrong_keys"][:2], *row["missed_keys"][:2]]),
        row["remark"][:90],
    ]
    return " ".join(cells).rstrip()


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Right and silently wrong pairs of each method by class of difficulty."""
    classes = sorted({row["cls"] for row in next(iter(results.values()))})
    head = (
        f"{'right / silently wrong':<26}" + "".join(f"{_CLASSES.get(c, str(c)):>28}" for c in classes) + f"{'all':>14}"
    )
    lines = [
        head,
        f"{'pairs':<26}" + "".join(f"{sum(r['cls'] == c for r in next(iter(results.values()))):>28}" for c in classes),
    ]
    lines[-1] += f"{len(next(iter(results.values()))):>14}"
    for name, rows in results.items():
        cells = []
        for c in [*classes, None]:
            outcomes = Counter(r["outcome"] for r in rows if c in (None, r["cls"]))
            cells.append(f"{outcomes['right']} / {outcomes['wrong']}")
        lines.append(f"{name:<26}" + "".join(f"{cell:>28}" for cell in cells[:-1]) + f"{cells[-1]:>14}")
    return "\n".join(lines)


def _shown(row: dict[str, Any]) -> bool:
    """Return whether outputs are equal, or the source's code answered a question that names leave open."""
    return "outputs are equal" in row["remark"] or _BY_CODE in row["remark"]


def summary(rows: list[dict[str, Any]]) -> str:
    """What the issue asks for, in sentences."""
    decidable = [r for r in rows if not r["hint"]]
    hints = [r for r in rows if r["hint"]]
    right = [r for r in decidable if r["outcome"] == "right"]
    wrong = [r for r in rows if r["outcome"] == "wrong"]
    needless = [r for r in right if r["flagged_right"]]
    open_hints = [r["name"] for r in hints if r["outcome"] == "wrong" or (r["outcome"] != "right" and not r["flags"])]
    unflagged = [r["name"] for r in hints if r["outcome"] == "right" and not r["flags"] and not _shown(r)]
    slowest = max(rows, key=lambda r: r["seconds"])
    return "\n".join(
        [
            "",
            f"decidable pairs fully right: {len(right)} of {len(decidable)}"
            + (
                f"; not: {', '.join(r['name'] for r in decidable if r['outcome'] != 'right')}"
                if len(right) < len(decidable)
                else ""
            ),
            f"silently wrong: {len(wrong)}" + (f": {', '.join(r['name'] for r in wrong)}" if wrong else ""),
            f"right, but flagged without need: {len(needless)} of {len(right)}"
            + (f": {', '.join(r['name'] for r in needless)}" if needless else ""),
            f"pairs that need a hint, neither flagged, proved nor answered by code: {len(open_hints) + len(unflagged)} "
            f"of {len(hints)}" + (f": {', '.join(open_hints + unflagged)}" if open_hints or unflagged else ""),
            f"slowest: {slowest['name']}, {slowest['seconds']} s",
        ]
    )


if __name__ == "__main__":
    main()
