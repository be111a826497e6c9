"""What training leaves beside the weights: which framework saved it, how far it was, its optimizers and settings.

Nothing is made of what the file names: settings are read off inert objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import isfinite
from typing import Any

from ..checkpoint import Checkpoint
from ..errors import CannotCarry, counted, printable
from ..inert.plain_values import held_by_omegaconf, plain_value
from ..passes.cleaning import clean
from ..records import record
from ..tensor import LazyTensor
from ..tree import ABSENT, Dict, List, Object, Paths, Set, holds_tensors_alone, walk
from ..weights import is_training_state

#: Framework -> entries at the root that tell it: all of one of the groups.
_FRAMEWORKS: tuple[tuple[str, tuple[frozenset[str], ...]], ...] = (
    ("Lightning", (frozenset({"pytorch-lightning_version"}), frozenset({"state_dict", "callbacks", "loops"}))),
    ("mmengine", (frozenset({"state_dict", "message_hub"}),)),
    ("mmcv", (frozenset({"state_dict", "meta"}),)),
    ("DeepSpeed", (frozenset({"ds_version"}), frozenset({"module", "ds_config"}))),
    ("Megatron-LM", (frozenset({"checkpoint_version", "iteration"}), frozenset({"checkpoint_version", "args"}))),
    ("fairseq", (frozenset({"last_optimizer_state"}), frozenset({"optimizer_history", "model"}))),
    ("Ultralytics YOLO", (frozenset({"train_args"}), frozenset({"best_fitness", "model"}))),
    ("detectron2", (frozenset({"matching_heuristics"}), frozenset({"__author__", "model"}))),
    ("fvcore", (frozenset({"model", "iteration", "scheduler"}),)),
    ("pycls", (frozenset({"model_state"}),)),
    ("torchtune", (frozenset({"epochs_run"}), frozenset({"model", "adapter"}))),
    ("timm", (frozenset({"state_dict", "arch", "amp_scaler"}), frozenset({"state_dict_ema"}))),
    ("BasicSR", (frozenset({"params_ema"}), frozenset({"params-ema"}))),
    ("YOLOX", (frozenset({"model", "start_epoch"}),)),
    ("the examples of torch", (frozenset({"arch", "best_acc1"}), frozenset({"arch", "best_prec1"}))),
)
#: Entries at the root that say how far training was.
_PROGRESS = frozenset(
    """epoch epochs epochs_run step steps global_step iteration iter iterations it n_iter num_updates
    updates start_epoch best_acc best_acc1 best_prec1 best_loss best_fitness best_score best_metric loss
    val_loss acc seed arch date version pytorch-lightning_version ds_version checkpoint_version
    total_epochs""".split()
)
#: Entries at the root that hold settings.
_SETTINGS = frozenset(
    "hyper_parameters hparams args cfg config train_args opt options settings kwargs model_args model_config".split()
)
_LONGEST = 60


@record(frozen=True, slots=True)
class Training:
    """What stands beside the weights.

    Attributes:
        framework: what saved it, as far as its entries tell, or "".
        progress: (name, value) of epoch, step and the like.
        state: (name, in words, bytes) of optimizers, schedulers, scalers and random number generators.
        settings: (path, value) of hyper-parameters.
    """

    framework: str
    progress: list[tuple[str, str]]
    state: list[tuple[str, str, int]]
    settings: list[tuple[str, str]]


def training_of(ckpt: Checkpoint) -> Training:
    """What training left in a checkpoint."""
    if not isinstance(ckpt.root, Dict):
        return Training("", [], [], list(_settings("", ckpt.root)) if isinstance(ckpt.root, Object) else [])
    # none of the names that tell has a dot; the keys of a large state dict have one
    weights = [one for one in ckpt.state_dicts() if one.node is ckpt.root and holds_tensors_alone(one.node)]
    if weights and all("." in line for line in weights[0].outline.split("\n")[1:-1]):
        return Training("", [], [], [])
    entries = [(str(key), value) for key, value in ckpt.root.entries if isinstance(key, str) and "." not in key]
    names = {key for key, _ in entries}
    framework = next((name for name, groups in _FRAMEWORKS if any(group <= names for group in groups)), "")
    progress = [(key, shown) for key, value in entries if key in _PROGRESS and (shown := _shown(value))]
    kept = [(key, value) for key, value in entries if is_training_state(key) and not _is_empty(value)]
    told = {key: _state(value) for key, value in {id(value): value for _, value in kept}.items()}  # once of each
    state = [(key, *told[id(value)]) for key, value in kept]
    settings = [found for key, value in entries if key in _SETTINGS for found in _settings(key, value)]
    return Training(framework, progress, state, settings)


def _is_empty(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, Dict) and not value.entries)
        or (isinstance(value, List) and not value.items)
    )


def _shown(value: Any) -> str:
    """A scalar as text, "" for what is none."""
    if isinstance(value, Object):
        value = plain_value(value)
        if value is None:
            return ""
    if isinstance(value, str):
        return printable(value, _LONGEST)
    if isinstance(value, LazyTensor):
        return f"tensor {list(value.shape)}"
    return repr(value) if value is None or isinstance(value, bool | int | float) else ""


def _state(value: Any) -> tuple[str, int]:
    """An optimizer or the like in words, and the bytes of its tensors."""
    tensors = {t.identity: t.nbytes for _, t in walk(value) if isinstance(t, LazyTensor)}
    groups = [group for _, node in walk(value) if isinstance(node, Dict) for group in _groups(node)]
    words = [counted(len(tensors), "tensor")] if tensors else []
    if groups:
        held = sum(len(params.items) for group in groups if isinstance(params := group.get("params"), List))
        words.append(f"{counted(len(groups), 'group')} of {counted(held, 'parameter')}")
        for name in ("lr", "momentum", "betas", "weight_decay"):
            found = groups[0].get(name, ABSENT)
            if isinstance(found, bool | int | float) and found:
                words.append(f"{name} {found:g}")
            elif isinstance(found, tuple) and all(isinstance(x, int | float) for x in found):
                words.append(f"{name} {', '.join(f'{x:g}' for x in found)}")
    kind = _kind_of_optimizer(value)
    return ", ".join([kind, *words] if kind else words) or "no tensors", sum(tensors.values())


def _groups(node: Dict) -> list[Dict]:
    found = node.get("param_groups")
    return [group for group in found.items if isinstance(group, Dict)] if isinstance(found, List) else []


def _kind_of_optimizer(value: Any) -> str:
    """The kind of optimizer, by the names of what it keeps for each parameter."""
    names = {
        key for _, node in walk(value) if isinstance(node, Dict) for key, _ in node.entries if isinstance(key, str)
    }
    if {"exp_avg", "exp_avg_sq"} <= names:
        return "Adam or alike"
    if "momentum_buffer" in names:
        return "SGD with momentum"
    if "square_avg" in names:
        return "RMSprop or alike"
    return ""


def _settings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The scalars below an entry, by a path without what only the pickle knows."""
    if (shown := _shown(value)) and not isinstance(value, LazyTensor):
        yield key, shown
        return
    configured = any(isinstance(node, Object) and held_by_omegaconf(node) for _, node in walk(value))
    paths = Paths(plain=True)
    for trail, node in walk(value):
        if trail is None or isinstance(node, LazyTensor) or not (shown := _shown(node)):
            continue
        path = paths.of(trail)
        if configured:
            parts = path.split("/")
            path = "" if _OMEGACONF_KEEPS & set(parts) else "/".join(part for part in parts if part not in _AROUND)
        if path:
            yield f"{key}/{path}" if key else path, shown


#: What nodes of OmegaConf keep for themselves, and the names under which they hold their content.
_OMEGACONF_KEEPS = frozenset({"_metadata", "_parent", "_flags_cache"})
_AROUND = frozenset({"_content", "_val"})


def settings_of(ckpt: Checkpoint) -> dict[str, Any]:
    """The settings at the root of a checkpoint (`hyper_parameters`, `args`, `cfg` …), by name, as JSON can have them.

    Namespaces, OmegaConf and other objects are what they hold, as `clean` has it; what a class or function would be is
    left out. A tensor and a number that JSON lacks (NaN) are told in words.

    Raises:
        CannotCarry: they are too many.
    """
    if not isinstance(ckpt.root, Dict):
        return {}
    held = Dict([(key, value) for key, value in ckpt.root.entries if isinstance(key, str) and key in _SETTINGS])
    values = itertools.count()
    found = _for_json(clean(held, ckpt.where)[0], values, (), ckpt.where)
    return found if isinstance(found, dict) else {}


def _for_json(node: Any, values: Iterator[int], above: tuple[int, ...], where: object) -> Any:
    """A clean value as JSON can have it. VALUES counts them, ABOVE are the ids of what it stands in."""
    if next(values) > _MOST_VALUES:  # what stands in several places is written at each, which grows without end
        raise CannotCarry(f"its settings are more than {_MOST_VALUES:,} values", where=where)
    if id(node) in above or len(above) > _DEEPEST:
        return "…"
    inside = (*above, id(node))
    if isinstance(node, Dict):
        return {
            str(_for_json(key, values, inside, where)): _for_json(value, values, inside, where)
            for key, value in node.entries
        }
    if isinstance(node, List | Set | tuple):
        items = node if isinstance(node, tuple) else node.items
        return [_for_json(item, values, inside, where) for item in items]
    if node is None or isinstance(node, bool | int | str) or (isinstance(node, float) and isfinite(node)):
        return node
    if isinstance(node, Object) and isinstance(node.args, tuple):  # torch.Size and the like
        return [_for_json(item, values, inside, where) for item in node.args]
    return f"tensor {node.dtype.name} {list(node.shape)}" if isinstance(node, LazyTensor) else printable(str(node), 200)


_DEEPEST = 100
_MOST_VALUES = 100_000
