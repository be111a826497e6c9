"""Envelopes: the weights out of what stands around them, and under the key where a script expects them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, StateDict, around
from ..disk.files import shell_quote
from ..errors import KeyCollision, NoMatch, RuleError, counted, printable
from ..inert.pickled_models import has_own_ways
from ..inert.plain_values import plain_value
from ..tree import Dict, Object, component_text, is_mapping, names_in, with_entries
from ..weights import is_training_state
from ._plain import Missing, on_plain_dicts_too
from ._words import changeable


@on_plain_dicts_too
def extract(ckpt: Checkpoint, *, at: str | None = None) -> Checkpoint:
    """Keep only the weights: the state dict becomes the root, and what stood around it is left behind.

    So are numbers and texts that stand between tensors at the root, as the `epoch` of `{"conv.weight": …, "epoch": 7}`.

    From a whole pickled model the state dict is recovered, as `model.state_dict()` would give it, without its class.
    """
    weights = ckpt.state_dict(at)
    if weights.node is ckpt.root:
        kept, beside = _apart(weights)
        if not beside:
            return replace(ckpt, at="").noting("extract: the file already holds only weights")
        what = ", ".join(printable(str(key), 60) for key, _ in beside)
        done = replace(ckpt, root=with_entries(weights.node, kept), at="")
        return done.noting(f"extract: {counted(len(kept), 'key')} kept; left behind: {what}")
    left = around(ckpt, weights)
    path = f" {printable(weights.path, 60)}" if weights.path else ""
    behind = ", ".join(left[:12] + ["…"] * (len(left) > 12)) or "nothing"
    notes = [f"extract{path}: {counted(len(weights), 'key')} kept; left behind: {behind}"]
    if weights.model is not None and has_own_ways(weights.model):
        notes.append("note: the model has functions that change its state dict when it is made; they were not run")
    if weights.aside:
        notes.append(f"note: no state dict holds these tensors among the model's attributes: {_some(weights.aside)}")
    if weights.strangers:
        notes.append(
            f"note: if these classes add to a state dict by code, that is not in it: {_some(weights.strangers)}"
        )
    lost = (*ckpt.lost_content, *weights.lost)
    return replace(ckpt, root=weights.node, at="", sealed="", lost_content=lost).noting(*notes)


def _some(names: Sequence[str]) -> str:
    shown = [printable(name, 60) for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _apart(weights: StateDict) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """The entries of a state dict at the root that are weights, and those that training left between them."""
    kept: list[tuple[Any, Any]] = []
    beside: list[tuple[Any, Any]] = []
    for key, value in weights.node.entries:
        plain = value is None or isinstance(value, str | bytes | int | float)
        name = isinstance(key, str) and "." not in key and key != "_extra_state"
        (beside if name and (plain or is_training_state(key)) else kept).append((key, value))
    return kept, beside


def scalars_to_metadata(ckpt: Checkpoint, *, missing: Missing = "error") -> Checkpoint:
    """Move numbers and texts at the root (`epoch`, `step`, `best_fitness`) into the text metadata of the checkpoint.

    safetensors keeps these in its header, as text: a number or truth value as JSON writes it. `torch.load` reads no
    metadata, so `convert` refuses this for a .pth file.

    Raises:
        NoMatch: there is no number and no text at the root.
        KeyCollision: the metadata has another text under the same name.
    """
    root = ckpt.root
    moved: dict[str, str] = {}
    named = {key for one in ckpt.state_dicts() for key in one.tensors}  # a text like that would be read as a tie
    for key, value in root.entries if is_mapping(root) else ():
        plain = plain_value(value) if isinstance(value, Object) else value
        if (
            isinstance(key, str)
            and isinstance(plain, bool | int | float | str)
            and key not in _TAKEN
            and plain not in named
        ):
            moved[key] = plain if isinstance(plain, str) else json.dumps(plain)
    if not moved and missing == "error":
        raise NoMatch("has no numbers or texts at its root", where=ckpt.where, hint="--if-present")
    for key, text in moved.items():
        if ckpt.metadata.get(key, text) != text:
            what = f"its metadata has another text under {printable(repr(key), 60)}"
            raise KeyCollision(what, where=ckpt.where, evidence=[printable(ckpt.metadata[key], 100)])
    if not moved:
        return ckpt
    kept = [(key, value) for key, value in root.entries if key not in moved]
    told = ", ".join(f"{printable(key, 40)} {printable(text, 40)}" for key, text in moved.items())
    done = replace(ckpt, root=with_entries(root, kept), sealed="", metadata={**ckpt.metadata, **moved})
    return done.noting(f"scalars to metadata: {told}")


#: Names in the header of safetensors that mean something else.
_TAKEN = frozenset({"format", "ckptool"})


@on_plain_dicts_too
def wrap(ckpt: Checkpoint, key: str = "state_dict", *, at: str | None = None) -> Checkpoint:
    """Put the weights under KEY, where a script looks for them: `checkpoint["state_dict"]`.

    Weights that are all there is get a dict around them. Those that stand under another key of it get this one in its
    place, and what is beside them stays.

    Raises:
        RuleError: the key is empty or one of training state, or the weights stand deeper in the file.
        KeyCollision: something else stands under that key.
    """
    if not key or is_training_state(key):
        what = "is a name of training state" if key else "is empty"
        raise RuleError(f"the key {printable(repr(key), 60)} {what}", where="--wrap", hint="--wrap state_dict")
    weights, root = changeable(ckpt, at), ckpt.root
    line = f"wrap: {counted(len(weights), 'key')} under {printable(repr(key), 60)}"
    if weights.node is root:
        kept, beside = _apart(weights)
        entries = [(key, with_entries(weights.node, kept)), *beside]
        made: Any = Dict(entries)
    else:
        if not is_mapping(root) or not any(value is weights.node for _, value in root.entries):
            raise RuleError(
                f"the weights stand deeper, at {printable(weights.path, 60)}",
                where=ckpt.where,
                hint=f"--extract --wrap {shell_quote(key, 200)}   # leaves behind what is around them",
            )
        entries = [(key if value is weights.node else old, value) for old, value in root.entries]
        made = with_entries(root, entries)
        if weights.path != component_text(key):
            line += f", and no longer {printable(repr(names_in(weights.path)[0]), 60)}"
    if [name for name, _ in entries].count(key) > 1:
        raise KeyCollision(
            f"something else stands under {printable(repr(key), 60)}",
            where=ckpt.where,
            hint=f"--extract --wrap {shell_quote(key, 200)}   # leaves it behind",
        )
    return replace(ckpt, root=made, at=None if ckpt.at is None else component_text(key)).noting(line)


#: The name of the command.
extract_weights = extract
