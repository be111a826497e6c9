"""The commands that make a file load: worked out from what is in the way, and tried on paper before they are shown.

On paper means: the passes are run on the open checkpoint, which reads no tensor, and what they give is looked at as the
file was. A command whose result would still be in the way, or would have lost a tensor, is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...checkpoint import Checkpoint, StateDict, around
from ...disk.paths import beside, shell_path, shell_quote
from ...errors import CheckpointError
from ...inert.allowed import PLAIN, named_globals
from ...keys import AVERAGED_COUNTER
from ...passes import recipes
from ...passes.buffers import required
from ...passes.recipes import Step
from ...tensor import LazyTensor
from ...tree import walk
from .finding import Finding
from .fits import Fit
from .in_headers import kind_of
from .obstacles import BY_NAME, HOPELESS, in_the_way, partly_wrapped, strangers

#: State dicts of one file that a command is shown for.
_MOST = 4
#: Options of `convert` that take no value.
_FLAGS = ("--extract", "--unwrap", "--fill-buffers")


def cure(ckpt: Checkpoint, weights: StateDict | None, findings: Sequence[Finding], fit: Fit | None) -> list[str]:
    """The commands that take all that is in the way out of a file, in order; [] if there are none, or none is needed.

    Args:
        ckpt, weights: the file, and its weights, or None if there are none or several.
        findings: what is in the way.
        fit: how they fit the model, if one was given.
    """
    names = {one.name for one in findings if one.trouble}
    if parts := [one for one in findings if one.trouble and one.name in ("one-file-a-rank", "part-of-a-run")]:
        return [parts[0].commands[0][0]]
    if "no-version" in names:  # the first of several, then: what is written has it
        repaired = beside(ckpt.where, "repaired")
        again = [f"ckptool doctor {repaired}"] if len(names) > 1 else []
        return [f"ckptool repair {shell_path(ckpt.where)} {repaired}", *again]
    on_cpu = ["--map-location", "cpu"] if "device" in names else []
    if fit is not None and not fit.fits:
        return _fitting(fit, names, on_cpu)
    if names & HOPELESS == {"no-weights"} and names & {"weights-only", "code-execution"}:
        return _cleaned(ckpt, bool(on_cpu))
    if names & HOPELESS:
        return []
    if weights is None:
        several = ckpt.state_dicts()
        return [line for one in several[:_MOST] if (line := _one_of_several(ckpt, one, on_cpu))]
    return _of_one(ckpt, weights, names, on_cpu)


def _fitting(fit: Fit, names: set[str], on_cpu: list[str]) -> list[str]:
    if not fit.commands:
        return []
    command = fit.commands[0][0]
    if " convert " in command or not on_cpu:
        extract = ["--extract"] if "weights-only" in names and "--extract" not in command else []
        return [" ".join([command, *extract, *on_cpu])]
    return [command]


def _of_one(ckpt: Checkpoint, weights: StateDict, names: set[str], on_cpu: list[str]) -> list[str]:
    file, out = shell_path(ckpt.where), beside(ckpt.where, "fixed")
    at = ["--at", weights.path] if len(ckpt.state_dicts()) > 1 else []
    keys = key_options(weights) if names & BY_NAME else []
    if "misnamed" in names and kind_of(ckpt).loader == "safetensors":
        return _shown(ckpt, weights, [*keys], [], out, ["-t", "torch-zip"])
    if "misnamed" in names:
        return _shown(ckpt, weights, ["--extract", *keys, *on_cpu], at, out)
    objects = names & {"weights-only", "pickled-model", "code-execution", "sealed", "old-container"}
    taken = bool(names & {"envelope", "several", "strangers", "pickled-model", "sealed"})
    taken = taken or bool(objects and (weights.path or weights.model))
    extract = ["--extract"] if taken else []
    if not (extract or keys or on_cpu or objects):
        return []
    if objects and not extract and ("old-container" not in names or names & {"weights-only", "code-execution"}):
        clean = beside(ckpt.where, "clean") if keys or on_cpu else out
        first = f"ckptool clean {file} {clean}"
        options = [*keys, *on_cpu, *at]
        if clean == out:
            return [first]
        return [first, " ".join(["ckptool convert", clean, out, *map(_quoted, options)])]
    options, container = [*extract, *keys, *on_cpu], _container(ckpt) if objects else []
    shown = _shown(ckpt, weights, options, at, out, container)
    if not shown or not objects or _is_plain(ckpt, weights, options):
        return shown
    clean = beside(ckpt.where, "clean")  # the weights themselves hold what torch.load refuses, as arrays of numpy
    try:
        cleaned = recipes.result(ckpt, [Step("clean", True)])
        after = cleaned.state_dict(weights.path or None)
    except CheckpointError:
        return []
    if not (is_whole(cleaned, after, options) and _is_plain(cleaned, after, options)):
        return []
    return [f"ckptool clean {file} {clean}", *(line.replace(file, clean, 1) for line in shown)]


def _cleaned(ckpt: Checkpoint, moved: bool) -> list[str]:
    """The commands that make plain data of objects with tensors in them, on the CPU if they have to be MOVED."""
    try:
        done = recipes.result(ckpt, [Step("clean", True)])
    except CheckpointError:
        return []
    if done.lost_content != ckpt.lost_content or not any(isinstance(node, LazyTensor) for _, node in walk(done.root)):
        return []
    clean, out = beside(ckpt.where, "clean"), beside(ckpt.where, "fixed")
    first = f"ckptool clean {shell_path(ckpt.where)} {clean}"
    return [first, f"ckptool remap {clean} {out} --map-location cpu"] if moved else [first]


def _is_plain(ckpt: Checkpoint, weights: StateDict, options: Sequence[str]) -> bool:
    """Whether torch.load takes what `convert` with OPTIONS would give, with weights_only=True."""
    done = recipes.result(ckpt, steps_of(options), at=weights.path or None)
    return all(name in PLAIN for name in named_globals(done.root))


def key_options(weights: StateDict) -> list[str]:
    """Options of `convert` that give the keys the names of a plain model."""
    options = ["--unwrap"] if weights.wrappers else []
    for component in partly_wrapped(weights):
        options += ["--rename", f"{component}="]
    dotted = [key for key in strangers(weights) if "." in key]
    options += [word for key in dotted for word in ("--drop", key)]
    return [*options, "--fill-buffers"] if required(weights) else options


def _one_of_several(ckpt: Checkpoint, one: StateDict, on_cpu: list[str]) -> str:
    out = beside(ckpt.where, re.sub(r"\W+", "-", one.path) or "root")
    options = ["--extract", *key_options(one), *on_cpu]
    return next(iter(_shown(ckpt, one, options, ["--at", one.path], out, _container(ckpt))), "")


def _shown(
    ckpt: Checkpoint, weights: StateDict, options: list[str], at: list[str], out: str, to: Sequence[str] = ()
) -> list[str]:
    """The command with these options, if what it gives is a plain model's weights, all of them."""
    if not is_whole(ckpt, weights, options):
        return []
    plain = options == ["--unwrap"] and not to and list(weights.wrappers) == ["module."]
    file = shell_path(ckpt.where)
    if plain and all(line.startswith("module.") for line in weights.outline.split("\n")[1:-1]):
        return [" ".join(["ckptool strip-prefix", file, out, *map(_quoted, at)])]
    if options == ["--extract"] and not to:
        return [" ".join(["ckptool extract-weights", file, out, *map(_quoted, at)])]
    return [" ".join(["ckptool convert", file, out, *map(_quoted, [*options, *at]), *to])]


def is_whole(ckpt: Checkpoint, weights: StateDict, options: Sequence[str]) -> bool:
    """Whether `convert` with OPTIONS would give all tensors of WEIGHTS, in a form that loads."""
    try:
        done = recipes.result(ckpt, steps_of(options), at=weights.path or None)
        after = done.state_dict()
    except CheckpointError:
        return False
    held = len(after.column) + len(after.others)
    wanted = len(weights.column) + len(weights.others) - ("--unwrap" in options and AVERAGED_COUNTER in weights)
    return held >= wanted and not any(one.trouble for one in in_the_way(done, after))


def steps_of(options: Sequence[str]) -> list[Step]:
    """Options of `convert` as passes, in the order in which it runs them."""
    wanted: dict[str, list[str]] = {}
    words = iter(options)
    for word in words:
        wanted.setdefault(word.removeprefix("--"), []).extend([] if word in _FLAGS else [next(words)])
    return [
        Step(name, True if f"--{name}" in _FLAGS else wanted[name] if one.kind == "texts" else wanted[name][0])
        for name, one in recipes.PASSES.items()
        if name in wanted
    ]


def keeping_all(ckpt: Checkpoint, weights: StateDict | None, names: set[str]) -> tuple[str, str] | None:
    """The command that mends the weights and keeps what training left beside them, and what it is for; or None."""
    if weights is None or not weights.path or weights.model is not None or ckpt.sealed or names & HOPELESS:
        return None
    if not around(ckpt, weights):
        return None
    on_cpu = ["--map-location", "cpu"] if "device" in names else []
    options = [*(key_options(weights) if names & BY_NAME else []), *on_cpu]
    file, out = shell_path(ckpt.where), beside(ckpt.where, "all")
    what = "to keep the rest of the file too, to resume training"
    if names & {"weights-only", "code-execution", "old-container"}:
        return f"ckptool clean {file} {out}", "to keep the rest of the file too, as plain data"
    return (" ".join(["ckptool convert", file, out, *map(_quoted, options)]), what) if options else None


def _quoted(word: str) -> str:
    return shell_quote(word, 200)


def _container(ckpt: Checkpoint) -> list[str]:
    """The format has to be named where that of the file cannot be written."""
    return ["-t", "torch-zip"] if kind_of(ckpt).draft is None else []
