"""Which of the weights in a checkpoint to keep: those of the model, or their exponential moving average.

Where the two stand depends on the framework: timm keeps the average in `state_dict_ema`, DiT and ultralytics in `ema`,
torchvision in `model_ema`, BasicSR in `params_ema`, latent diffusion under `model_ema.` within the state dict.
mmengine's EMAHook swaps them when it saves: `state_dict` is the average, and `ema_state_dict` the raw model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from ..checkpoint import Checkpoint, StateDict
from ..disk.files import same_bytes, shell_path
from ..disk.paths import shell_quote
from ..errors import Ambiguous, NotFound, counted, printable
from ..inert.pickled_models import is_module
from ..tensor import LazyTensor
from ..tree import Dict, component_text
from ..weights import is_state_dict, is_training_state, name_of, named_as_average
from .by_key import drop, unwrap
from .envelopes import extract
from .values import with_other_entries

Which = Literal["ema", "raw"]


#: (averaged, raw): where frameworks put the two under names that do not say it of each other (see `named_as_average`).
_PAIRS = (
    ("model_ema", "state_dict"),
    ("ema_state_dict", "model_state_dict"),
    ("ema", "model"),  # DiT, ultralytics
)
#: Dicts within dicts in which the two are looked for.
_DEEPEST = 8
#: Inside one state dict: the copy of `model.a.b` is `model_ema.ab` (latent diffusion).
_INSIDE = "model_ema."


def slim(ckpt: Checkpoint, *, weights: Which | None = None, at: str | None = None) -> Checkpoint:
    """Keep only the weights; of a checkpoint with an exponential moving average, the averaged or the raw ones.

    The two are told apart by their places, as each framework has them; whether they differ is looked at.

    Args:
        ckpt: the checkpoint.
        weights: "ema" or "raw"; None if there is but one set.
        at: path of the state dict, which settles it.

    Raises:
        Ambiguous: there are both, and WEIGHTS does not say which.
        NotFound: WEIGHTS says "ema" and there is no average, or "raw" and there is nothing else.
    """
    if at is not None:
        return extract(ckpt, at=at)
    places = _averaged_and_raw(ckpt)
    inside = None if places else _inside(ckpt)
    if places is None and inside is None:
        held = ckpt.state_dicts()
        averaged = [one for one in held if named_as_average(one.path.rpartition("/")[2]) is not None]
        if weights == "ema" and len(averaged) == 1:
            return extract(ckpt, at=averaged[0].path)
        if weights == "ema":
            several = len(held) > 1
            raise NotFound(
                "holds no moving average (EMA) at a place that ckptool knows",
                where=ckpt.where,
                hint=f"ckptool inspect {shell_path(ckpt.where)}   # then name one of its state dicts: --at PATH"
                if several
                else "--weights raw   # takes the weights that are there",
            )
        if weights == "raw" and len(held) == len(averaged) == 1:
            raise NotFound(
                f"holds a moving average (EMA) alone, at {printable(averaged[0].path, 60)}",
                where=ckpt.where,
                hint="--weights ema   # takes it all the same",
            )
        return extract(ckpt)
    if weights is None:
        shown = places or (f"{_INSIDE}*", "model.*")
        raise Ambiguous(
            "holds the weights and their moving average; say which:",
            where=ckpt.where,
            evidence=[f"ema: {printable(shown[0], 60)}", f"raw: {printable(shown[1], 60)}"],
            hint="--weights ema",
        )
    if inside is not None:
        return _taken_apart(ckpt, *inside, weights)
    assert places is not None
    both = [ckpt.state_dict(place) for place in places]
    note = "note: the moving average and the raw weights are equal" if _equal(*both) else None
    chosen, other = places if weights == "ema" else places[::-1]
    done = _out_of_the_average(extract(ckpt, at=chosen))
    word = "moving average" if weights == "ema" else "raw weights"
    return done.noting(
        f"slim: {word} at {printable(chosen, 60)}, not {printable(other, 60)}", *([note] if note else [])
    )


def _out_of_the_average(ckpt: Checkpoint) -> Checkpoint:
    """Weights without `module.` and the counter of mmengine's averaged model, if that is what holds them."""
    held = ckpt.state_dict("")
    if "steps" not in held or not all(key.startswith("module.") for key in held if key != "steps"):
        return ckpt
    return unwrap(drop(ckpt, "steps"))


def _averaged_and_raw(ckpt: Checkpoint) -> tuple[str, str] | None:
    """The paths of an average and of what it is the average of, which stand beside each other in one dict.

    Raises:
        Ambiguous: there are several such pairs.
    """
    found: list[tuple[str, str]] = []
    seen: set[int] = set()
    pending: list[tuple[str, int, Any]] = [("", 0, ckpt.root)]
    while pending:
        folder, depth, node = pending.pop()
        if not isinstance(node, Dict) or id(node) in seen or depth > _DEEPEST:
            continue
        seen.add(id(node))
        there: dict[str, Any] = {}
        for key, value in node.entries:
            if not isinstance(key, str) or is_training_state(key):
                continue
            if is_module(value) or is_state_dict(value):
                there[key] = value
            else:
                pending.append((f"{folder}{component_text(key)}/", depth + 1, value))
        for average, raw in _pairs_of(there):
            if average == "ema_state_dict" and isinstance(ckpt.root, Dict) and _is_mmengine(ckpt.root):
                average, raw = raw, average
            found.append((folder + component_text(average), folder + component_text(raw)))
    if len(found) > 1:
        raise Ambiguous(
            f"holds {len(found):,} moving averages and what they are the averages of; say which of all:",
            where=ckpt.where,
            evidence=[printable(f"{average}, of {raw}", 120) for average, raw in found[:8]],
            hint=f"--at {shell_quote(found[0][0], 200)}",
        )
    return found[0] if found else None


def _pairs_of(names: Collection[str]) -> list[tuple[str, str]]:
    """The pairs (average, raw) among NAMES that stand in one dict. Names that say it of each other come first."""
    plain = {name_of(name): name for name in reversed(list(names)) if named_as_average(name) is None}
    told = [(name, plain[of]) for name in names if (of := named_as_average(name)) in plain]
    return told or [pair for pair in _PAIRS if set(pair) <= set(names)][:1]


def _is_mmengine(root: Dict) -> bool:
    """Whether mmengine saved it, whose EMAHook swaps the two. Others call the average what it is."""
    meta = root.get("meta")
    return "message_hub" in root or (isinstance(meta, Dict) and "mmengine_version" in meta)


def _inside(ckpt: Checkpoint) -> tuple[StateDict, dict[str, str]] | None:
    """The state dict, and which of its keys is the averaged twin of which."""
    try:
        weights = ckpt.state_dict()
    except (Ambiguous, NotFound):
        return None
    twins = {
        key: twin
        for key in weights
        if key.startswith("model.") and (twin := _INSIDE + key.removeprefix("model.").replace(".", "")) in weights
    }
    return (weights, twins) if twins else None


def _taken_apart(ckpt: Checkpoint, weights: StateDict, twins: Mapping[str, str], which: Which) -> Checkpoint:
    equal = all(_same(weights[key], weights[twin]) for key, twin in twins.items())
    entries = [
        (key, weights[twins[key]] if which == "ema" and key in twins else value)
        for key, value in weights.node.entries
        if not str(key).startswith(_INSIDE)
    ]
    done = extract(with_other_entries(ckpt, weights, entries), at=weights.path)
    word = "moving average" if which == "ema" else "raw weights"
    notes = ["note: the moving average and the raw weights are equal"] if equal else []
    return done.noting(f"slim: {word} of {counted(len(twins), 'key')} with a twin under {_INSIDE}", *notes)


def _equal(one: StateDict, other: StateDict) -> bool:
    """Whether two sets of weights are the same, wrappers aside. Compared until something differs."""
    plain = {key.removeprefix("module."): value for key, value in other.tensors.items()}
    return all(key.removeprefix("module.") in plain for key in one.tensors) and all(
        _same(value, plain[key.removeprefix("module.")]) for key, value in one.tensors.items()
    )


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, LazyTensor) or not isinstance(other, LazyTensor):
        return False
    return one.dtype == other.dtype and one.shape == other.shape and same_bytes(one.source(), other.source())
