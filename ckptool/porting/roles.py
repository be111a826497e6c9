"""Roles of tensors in their modules, whatever the leaf of the key is called."""

from __future__ import annotations

import re

from .words import cut, table

_RNN = re.compile(r"(weight|bias)_(ih|hh|hr)(?:_l(\d+))?(_reverse)?\Z")


_SUFFIX = re.compile(r"(.+)_(weight|bias|kernel)\Z")


def role_of(path: tuple[str, ...], siblings: set[str]) -> tuple[tuple[str, ...], str]:
    """The module path and the role of a key, whatever its leaf is called."""
    if "parametrizations" in path:
        at = path.index("parametrizations")
        base, what = path[:at], path[at + 1] if at + 1 < len(path) else "weight"
        leaf = path[-1]
        roles = {"original0": "g", "original1": "v", "original": "orig", "_u": "u", "_v": "sv"}
        return base, f"{what}_{roles.get(leaf, leaf)}"
    head, leaf = path[:-1], path[-1]
    rnn = _RNN.match(leaf)
    if rnn:
        inner = ((rnn[3],) if rnn[3] else ()) + (("reverse",) if rnn[4] else ())
        return (*head, *inner), f"{rnn[1]}_{rnn[2]}"
    whole, _, half = leaf.rpartition("_")
    if half in ("orig", "mask") and {f"{whole}_orig", f"{whole}_mask"} <= siblings:
        inner, of_whole = role_of((*head, whole), {s.removesuffix("_orig") for s in siblings})
        return inner, f"{of_whole}_{half}"
    if leaf == "weight_v" and "weight_orig" in siblings:
        return head, "weight_sv"
    role = table().leaves.get(cut(leaf))
    if role is not None and head:
        if (
            role == "bias"
            and leaf not in ("bias",)
            and not siblings & {"weight", "gamma", "scale", "kernel", "w", "a_2"}
        ):
            return path, "weight"  # a parameter that is alone is no bias of anything
        return head, role
    if {"q_bias", "v_bias"} <= siblings and leaf in ("q_bias", "k_bias", "v_bias"):
        return path, "bias"
    suffix = _SUFFIX.match(leaf)
    if suffix:
        return (*head, suffix[1]), "weight" if suffix[2] == "kernel" else suffix[2]
    if leaf.endswith("_scale") and f"{leaf[:-6]}_bias" in siblings:
        return (*head, leaf[:-6]), "weight"
    return path, "weight"
