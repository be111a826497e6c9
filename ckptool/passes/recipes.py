"""Recipes: passes as a list that can be run, written down, and run again.

    ckptool: 1
    passes:
    - strip-prefix: module.
    - rename: [features=backbone, 'classifier.{}=head.{}']
    - cast: {to: bfloat16, keep: [re:norm]}
    - map-location: cpu

The passes run in the order in which they are listed. Values are what the options of `ckptool convert` take; `true` for
those that take none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint
from ..disk.documents import read_yaml, yaml_text
from ..disk.files import StrPath
from ..errors import RuleError, counted, in_words
from ..lazy import later
from ..records import record
from . import by_key as passes
from ._words import TIES as TIES
from .by_key import Missing

if TYPE_CHECKING:
    from . import buffers, dequantizing, envelopes, moving, slimming, values
else:  # a command waits for the passes that it runs
    buffers = later(".buffers", __package__)
    dequantizing = later(".dequantizing", __package__)
    envelopes = later(".envelopes", __package__)
    moving = later(".moving", __package__)
    slimming = later(".slimming", __package__)
    values = later(".values", __package__)

#: Passes of a recipe, and texts of one pass. Each is a look at every tensor.
_MOST_PASSES = 100
_MOST_TEXTS = 10_000


@record(frozen=True, slots=True)
class Step:
    """A pass and what it is given: text, a list of texts, True, or (of `cast`) a dict."""

    name: str
    value: Any = True


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _cast(ckpt: Checkpoint, value: Any, at: str | None, missing: Missing) -> Checkpoint:
    wanted = value if isinstance(value, dict) else {"to": value}
    return values.cast(ckpt, str(wanted["to"]), keep=_texts(wanted.get("keep", [])), at=at, missing=missing)


def _slim(ckpt: Checkpoint, value: Any, at: str | None, missing: Missing) -> Checkpoint:
    return slimming.slim(ckpt, weights=None if value is True else value, at=at)


_Run = Callable[[Checkpoint, Any, str | None, Missing], Checkpoint]


@record(frozen=True, slots=True)
class Pass:
    """A pass as people ask for it.

    Attributes:
        kind: what it is given: a "flag", a "text", "texts", a type to "cast" to, "which" weights, or a word for "ties".
        run: how it is run.
        help: of the option of `convert`; "" if it has none.
        metavar: what stands for its value there.
        letter: the short form of the option.
        renames: whether it changes keys; `-v` then lists which.
        takes_out: whether the weights are at the root, or in another place, after it.
    """

    kind: str
    run: _Run
    help: str = ""
    metavar: str = ""
    letter: str = ""
    renames: bool = False
    takes_out: bool = False


#: In the order in which `convert` runs its options.
PASSES: dict[str, Pass] = {
    "scalars-to-metadata": Pass(
        "flag",
        lambda c, v, at, m: envelopes.scalars_to_metadata(c, missing=m),
        "Move epoch, step and other numbers and texts at the root into text metadata, which safetensors holds.",
    ),
    "extract": Pass(
        "flag",
        lambda c, v, at, m: envelopes.extract(c, at=at),
        "Keep only the weights; leave the rest of the file behind.",
        takes_out=True,
    ),
    "slim": Pass("which", _slim, takes_out=True),
    "clean": Pass("flag", lambda c, v, at, m: passes.clean(c)),
    "unwrap": Pass(
        "flag",
        lambda c, v, at, m: passes.unwrap(c, at=at, missing=m),
        "Remove wrappers from keys: DataParallel, torch.compile, FSDP …",
        renames=True,
    ),
    "strip-prefix": Pass(
        "text",
        lambda c, v, at, m: passes.strip_prefix(c, v, at=at, missing=m),
        "Remove PREFIX from every key.",
        "PREFIX",
        renames=True,
    ),
    "strip-first": Pass(
        "flag",
        lambda c, v, at, m: passes.strip_prefix(c, first=True, at=at, missing=m),
        "Remove the first component of every key.",
        renames=True,
    ),
    "rename": Pass(
        "texts",
        lambda c, v, at, m: passes.rename(c, _texts(v), at=at, missing=m),
        "Rename keys (see `ckptool rename`).",
        "OLD=NEW",
        renames=True,
    ),
    "add-prefix": Pass(
        "text",
        lambda c, v, at, m: passes.add_prefix(c, v, at=at),
        "Add PREFIX to every key.",
        "PREFIX",
        renames=True,
    ),
    "select": Pass(
        "texts",
        lambda c, v, at, m: passes.select(c, _texts(v), at=at, missing=m),
        "Keep only the keys that match, by their new names.",
        "PATTERN",
    ),
    "drop": Pass(
        "texts",
        lambda c, v, at, m: passes.drop(c, _texts(v), at=at, missing=m),
        "Leave out the keys that match, by their new names.",
        "PATTERN",
    ),
    "drop-buffers": Pass(
        "flag",
        lambda c, v, at, m: buffers.drop_buffers(c, at=at, missing=m),
        "Leave out buffers that models compute themselves: num_batches_tracked, position_ids, inv_freq, masks …",
    ),
    "fill-buffers": Pass(
        "flag",
        lambda c, v, at, m: buffers.fill_buffers(c, at=at, missing=m),
        "Add such buffers if the file lacks them and the weights determine their values.",
    ),
    "to-dense": Pass(
        "flag", lambda c, v, at, m: passes.to_dense(c, missing=m), "Convert sparse tensors to dense ones."
    ),
    "dequantize": Pass(
        "flag",
        lambda c, v, at, m: dequantizing.dequantize(c, at=at, missing=m),
        "Convert quantized weights to plain tensors: torch, bitsandbytes, compressed-tensors, GPTQ …",
    ),
    "untie": Pass(
        "flag",
        lambda c, v, at, m: values.untie(c, at=at),
        "Give every key its own tensor if several share one.",
    ),
    "ties": Pass(
        "ties",
        lambda c, v, at, m: values.ties(c, v, at=at),
        "For safetensors: store a tied tensor under every key (keep), once (drop), or untied (clone).",
        "[keep|drop|clone]",
    ),
    "compact": Pass("flag", lambda c, v, at, m: values.compact(c), "Drop the parts of storages that no tensor uses."),
    "cast": Pass("cast", _cast, "Cast floating point tensors of the weights: bf16, fp16, fp32, e4m3 …", "TYPE"),
    "map-location": Pass(
        "texts",
        lambda c, v, at, m: moving.map_location(c, _texts(v), missing=m),
        "Change devices (see `ckptool remap`).",
        "RULE",
        "-m",
    ),
    "wrap": Pass(
        "text",
        lambda c, v, at, m: envelopes.wrap(c, v, at=at),
        "Put the weights under KEY, where a script expects them: state_dict, model.",
        "KEY",
        takes_out=True,
    ),
}


def run(
    ckpt: Checkpoint, steps: Sequence[Step], *, at: str | None = None, missing: Missing = "error", tell: bool = True
) -> tuple[Checkpoint, list[tuple[str, str]]]:
    """Run passes one after the other.

    Returns:
        The result, and, if TELL, (old key, new key) of the tensors whose key changed.

    Raises:
        CheckpointError: as the passes do.
    """
    renamed: dict[str, str] = {}  # the key of now -> that of the beginning
    for step in steps:
        known = PASSES[step.name]
        before, ckpt = ckpt, known.run(ckpt, step.value, at, missing)
        if known.takes_out:
            at = None
        if tell and known.renames:
            changed = _changed(before, ckpt)
            earlier = {old: renamed.pop(old, old) for old, _ in changed}
            renamed |= {new: earlier[old] for old, new in changed}
    return ckpt, [(old, new) for new, old in renamed.items() if old != new]


def result(ckpt: Checkpoint, steps: Sequence[Step], *, at: str | None = None) -> Checkpoint:
    """What `run` makes of a checkpoint.

    Raises:
        CheckpointError: as the passes do.
    """
    return run(ckpt, steps, at=at, tell=False)[0]


def _changed(before: Checkpoint, after: Checkpoint) -> list[tuple[str, str]]:
    old = {id(t): key for weights in before.state_dicts() for key, t in weights.tensors.items()}
    new = {id(t): key for weights in after.state_dicts() for key, t in weights.tensors.items()}
    return [(old[t], key) for t, key in new.items() if t in old and old[t] != key]


def read(path: StrPath) -> list[Step]:
    """The passes of the recipe at PATH.

    Raises:
        Unreadable: it cannot be read.
        RuleError: it is no recipe, or names a pass that does not exist or a value that it does not take.
    """
    loaded = read_yaml(path)
    listed = loaded.get("passes") if isinstance(loaded, dict) else None
    if not isinstance(listed, list) or loaded.get("ckptool") != 1 or set(loaded) - {"ckptool", "passes"}:
        raise RuleError(
            "is not a recipe: a recipe has 'ckptool: 1' and a list of passes",
            where=path,
            hint="see docs/cli.md, Recipes",
        )
    return _steps(listed, path)


def _steps(listed: Sequence[Any], where: StrPath) -> list[Step]:
    if len(listed) > _MOST_PASSES:
        raise RuleError(f"lists {counted(len(listed), 'pass', 'passes')}; {_MOST_PASSES} is the limit", where=where)
    return [_step(item, where) for item in listed]


def _step(item: Any, where: StrPath) -> Step:
    if isinstance(item, str):
        item = {item: True}
    if not isinstance(item, dict) or len(item) != 1:
        raise RuleError(f"has the pass {in_words(item, 80)}, which is none: one name a line", where=where)
    ((name, value),) = item.items()
    if name not in PASSES:
        known = ", ".join(PASSES)
        raise RuleError(f"names the pass {in_words(name)}; there are {known}", where=where)
    kind = PASSES[name].kind
    if not _fits(kind, value):
        raise RuleError(f"gives {name} the value {in_words(value)}; it takes {_TAKES[kind]}", where=where)
    texts = value.get("keep") if isinstance(value, dict) else value
    if isinstance(texts, list) and len(texts) > _MOST_TEXTS:
        raise RuleError(f"gives {name} {counted(len(texts), 'text')}; {_MOST_TEXTS:,} is the limit", where=where)
    return Step(name, value)


_TAKES = {
    "flag": "true, or nothing",
    "text": "a text",
    "texts": "a text or a list of texts",
    "cast": "a type, or {to: TYPE, keep: [PATTERN, …]}",
    "which": "ema, raw, or nothing",
    "ties": "keep, drop or clone",
}


def _fits(kind: str, value: Any) -> bool:
    are_texts = isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
    if kind == "cast" and isinstance(value, dict):
        keep = value.get("keep", [])
        fine = isinstance(keep, str) or (isinstance(keep, list) and all(isinstance(item, str) for item in keep))
        return set(value) <= {"to", "keep"} and isinstance(value.get("to"), str) and fine
    return {
        "flag": value is True,
        "which": value is True or value in ("ema", "raw"),
        "ties": value in TIES,
        "texts": isinstance(value, str) or are_texts,
    }.get(kind, isinstance(value, str))


def text(steps: Sequence[Step]) -> str:
    """STEPS as a recipe.

    Raises:
        RuleError: they are more than a recipe holds.
    """
    listed = [{step.name: step.value} for step in steps]
    _steps(listed, "--save-recipe")
    return yaml_text({"ckptool": 1, "passes": listed}, "--save-recipe")
