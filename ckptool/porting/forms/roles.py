"""Find the role of a tensor in its module ("weight", "bias", …), whatever the last component of its key is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import cache

from ..words import cut, table

_RNN = re.compile(r"(weight|bias)_(ih|hh|hr)(?:_l(\d+))?(_reverse)?\Z")
_SLOT = re.compile(r":\d+\Z")
_COUNTED = re.compile(r"(.+)_(\d+)\Z")


@cache
def components(key: str) -> tuple[str, ...]:
    """Return the components of KEY: its parts between dots, `a.b.weight`, or, if it has "/", of a name by scopes.

    Frameworks that name variables by scopes separate with "/", end with the number of an output, repeat the name of a
    layer, and count layers in their names: `block/layer_0/dense/dense/kernel:0` gives block, layer, 0, dense, kernel.
    Others name whole modules in this way, with "." before the last component: `block//norm.scale`. The number of the
    layer itself stays in its name. The last component gets torch's name, if the vocabulary has one (`slashed`), and
    `weights` of an embedding becomes "weight".
    """
    named = [component for component in _SLOT.sub("", key).split("/") if component] if "/" in key else []
    if not named:
        return tuple(key.split("."))
    *path, leaf = named
    module, _, leaf = leaf.rpartition(".")
    path += [module] if module else []
    found: list[str] = []
    for place, component in enumerate(path):
        if place and component == path[place - 1]:
            continue
        counted = _COUNTED.match(component) if any(other != component for other in path[place + 1 :]) else None
        found += counted.groups() if counted else [component]
    return (*found, "weight" if leaf == "weights" and _is_table(found) else table().slashed.get(leaf, leaf))


def _is_table(path: Sequence[str]) -> bool:
    """Return whether PATH, names by scopes, ends with the word "embedding", "embeddings" or "embed"; then `weights` in
    it is an embedding table. False for an empty path.
    """
    return bool(path) and not {"embedding", "embeddings", "embed"}.isdisjoint(cut(path[-1])[-1:])


def numbered(paths: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return PATHS with the number that frameworks omit for the first layer: `conv` beside `conv_1`, in one module,
    becomes `conv_0`, unless there is a `conv_0`. A path has the names of the scopes around a tensor, and that of the
    tensor.
    """
    paths = list(paths)
    beside: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths:
        for at, component in enumerate(path[:-1]):
            beside[path[:at]].add(component)

    def first(component: str, others: set[str]) -> bool:
        return f"{component}_1" in others and f"{component}_0" not in others

    return [tuple(f"{c}_0" if first(c, beside[path[:at]]) else c for at, c in enumerate(path)) for path in paths]


_BLOCK = re.compile(r"([A-Za-z]+)(\d+)\Z")


def divided(paths: Collection[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return path -> path with a module for each block, for files without modules that count blocks in names:
    `stage1_unit2_conv1` becomes `stage.1.unit.2.conv1`. Paths without such a name are in it, too, as they are.

    This is done only if no path has several components, and at least half are counted in this way; else the result is
    empty.
    """
    if any(len(path) > 1 for path in paths):
        return {}
    found = {path: tuple(_blocks(path[0])) for path in paths if path}
    return found if 2 * sum(len(path) > 1 for path in found.values()) >= len(found) else {}


def _blocks(name: str) -> tuple[str, ...]:
    """Return the path that a name with counted blocks stands for: `stage1_unit2_conv1` -> ("stage", "1", "unit", "2",
    "conv1"). The kind of tensor before a colon (`arg:`, `aux:`) is left out.

    A name without a number before its last "_", or with a number alone behind it, is one component.
    """
    *blocks, last = name.rpartition(":")[2].split("_")
    found: list[str] = []
    words: list[str] = []
    for block in () if last.isdecimal() else blocks:
        counted = _BLOCK.match(block)
        if counted is None and not block.isdecimal():
            words.append(block)
            continue
        word, number = counted.groups() if counted else ("", block)
        found += [*filter(None, ["_".join(filter(None, (*words, word)))]), number]
        words = []
    return (*found, "_".join((*words, last))) if found else (name.rpartition(":")[2],)


_LETTERED = re.compile(r"(.*[A-Za-z0-9]_)([a-h])\Z|(.*[A-Za-z0-9]_|.*[a-z0-9])([A-H])\Z")
_DIRECTION = re.compile(r"(.*?)([A-Za-z])(?:2|to|_to_)([A-Za-z])\Z")


def counted_by_letters(
    paths: Collection[tuple[str, ...]], *, beside: Collection[str] = ()
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return path -> path with numbers, for paths with modules that are counted by letters: `norm_a`, `norm_b` become
    `norm_1`, `norm_2`; `netA`, `netB` become `net1`, `net2`. Other paths are left out.

    The letters of one name in one module have to begin with a, without a gap, and be at least two; no name there has
    numbers in their place; and not all of these letters are in BESIDE, the last words of the names of the other side.
    Two modules from one domain to another and back (`netG_A2B`, `netG_B2A`) become `netG_ab` and `netG_ba`.
    """
    held: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths:
        for at, component in enumerate(path):
            held[path[:at]].add(component)
    names: dict[tuple[str, ...], str] = {}
    for around, components in held.items():
        rows: dict[str, set[str]] = defaultdict(set)
        for component in components - table().adapters.keys():
            if found := _LETTERED.match(component):
                rows[found[1] or found[3]].add(found[2] or found[4])
        for stem, letters in rows.items():
            counted = "".join(sorted(letters))
            said = any(f"{stem}{n}" in components for n in range(len(letters) + 1))
            said = said or all(letter in beside for letter in counted.lower())
            if len(letters) > 1 and "abcdefgh".startswith(counted.lower()) and not said:
                between = "_" if stem[-1].isdecimal() else ""  # `conv1A` is the first of `conv1`, and not the eleventh
                names |= {(*around, stem + letter): f"{stem}{between}{n}" for n, letter in enumerate(counted, 1)}
        ways = {component: found.groups() for component in components if (found := _DIRECTION.match(component))}
        for component, (stem, one, other) in ways.items():
            if one != other and (stem, other, one) in ways.values():
                names |= {(*around, component): f"{stem}{'_' * stem[-1:].isalnum()}{(one + other).lower()}"}

    def renamed(path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(path[: at + 1], component) for at, component in enumerate(path))

    return {path: changed for path in paths if names and (changed := renamed(path)) != path}


_SUFFIX = re.compile(r"(.+)_(weight|bias|kernel|gamma|beta|(?:running|moving)_(?:mean|var|variance))\Z")


#: What a factor stands beside to be a weight, and what stands beside a factor to be a bias. That is not said of "a" and
#: "b", which may be the two matrices of an adapter.
_SHIFTS = frozenset("bias beta shift offset loc".split())
_FACTORS = frozenset("weight gamma scale kernel w g a_2 gain alpha".split())


_WEIGHT_NORM = frozenset({"weight_g", "weight_v"})


def role_of(path: tuple[str, ...], siblings: set[str]) -> tuple[tuple[str, ...], str]:
    """Return (path of the module, role) of the tensor whose key has the components PATH. SIBLINGS are the last
    components of the keys in the same module.

    If the vocabulary lists the last component as a role (`kernel` for "weight"), it is the role, and the rest is the
    path. A last component that says what the tensor belongs to and its role (`fc_weight`, `q_bias` beside `q`, `b_q`
    beside `W_q`) gives a role and one more component of the path. Tensors of torch's recurrent layers, weight norm,
    pruning, parametrizations and noisy layers have roles of their own ("weight_ih", "weight_g", "weight_orig",
    "weight_mean").
    Everything else is a "weight" whose path is PATH: a parameter with a name of its own, a numbered one, a shift
    without a factor beside it.
    """
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
    if leaf in _WEIGHT_NORM <= siblings | {leaf}:
        return head, leaf  # weight norm, also of a model that is one layer
    noisy = _noisy(leaf)
    if noisy is not None and {(noisy[0], "mean"), noisy} <= {_noisy(s) for s in siblings} != {noisy}:
        return head, "_".join(noisy)
    lettered = _lettered(leaf, siblings)
    if lettered is not None:
        return (*head, lettered[0]), lettered[1]
    role = table().leaves.get(cut(leaf))
    if leaf in table().beside_bias and siblings & _SHIFTS:
        role = "weight"
    if role == "running_mean" and cut(leaf) == ("mean",) and not _has_variance(siblings):
        return path, "weight"  # the mean of what is normalized otherwise
    numbered = leaf[-1:].isdecimal() and any(
        s != leaf and s.rstrip("0123456789") == leaf.rstrip("0123456789") for s in siblings
    )
    if role is not None and head and not numbered:
        if role == "bias" and leaf not in ("bias",) and not {s.lower() for s in siblings} & _FACTORS:
            return path, "weight"  # a parameter that is alone is no bias of anything
        return head, role
    if {"q_bias", "v_bias"} <= siblings and leaf in ("q_bias", "k_bias", "v_bias"):
        return path, "bias"
    if leaf.endswith("_bias") and leaf.removesuffix("_bias") in siblings:
        return (*head, leaf.removesuffix("_bias")), "bias"
    suffix = _SUFFIX.match(leaf)
    if suffix:
        return (*head, suffix[1]), table().leaves[cut(suffix[2])]
    if leaf.endswith("_scale") and {f"{leaf[:-6]}_bias", f"{leaf[:-6]}_shift"} & siblings:
        return (*head, leaf[:-6]), "weight"
    if leaf.endswith("_shift") and f"{leaf[:-6]}_scale" in siblings:
        return (*head, leaf[:-6]), "bias"
    of, _, what = leaf.rpartition("_")
    if of in siblings and table().leaves.get((what,)) == "bias":  # `projection_shift` beside `projection`
        return (*head, of), "bias"
    return path, "weight"


def _has_variance(siblings: Collection[str]) -> bool:
    return any(table().leaves.get(cut(other)) == "running_var" for other in siblings)


def _lettered(leaf: str, siblings: set[str]) -> tuple[str, str] | None:
    """Return (last component of the module's path, role) of a parameter whose name LEAF differs from another in
    SIBLINGS by a letter for its role; None if there is no such name.

    `W_q` beside `b_q`, with ("W_q", "weight") and ("W_q", "bias"); `ln1w` beside `ln1b`, with ("ln1", "weight") and
    ("ln1", "bias"); `self_Wk` beside `self_bk`, with ("self_Wk", …), unless there is a `self_gk`.
    """
    first, rest, stem, last = leaf[:1], leaf[1:], leaf[:-1], leaf[-1:]
    if len(leaf) < 2:
        return None
    if first in "wW" and {"b" + rest, "B" + rest} & siblings:
        return leaf, "weight"
    if first in "bB" and (matrix := next((x + rest for x in "Ww" if x + rest in siblings), None)) is not None:
        return matrix, "bias"
    if last in ("w", "b") and len(stem) > 1 and {stem + "w", stem + "b"} <= siblings:
        return stem.rstrip("_"), "weight" if last == "w" else "bias"
    before, between, own = leaf.rpartition("_")
    before += between
    # `self_Wk` beside `self_bk`, in names without modules; beside a gain, a shift is as likely that of a norm
    if before and len(own) > 1 and f"{before}g{own[1:]}" not in siblings:
        if own[0] in "wW" and {f"{before}b{own[1:]}", f"{before}B{own[1:]}"} & siblings:
            return leaf, "weight"
        if own[0] in "bB" and (found := next((n for x in "Ww" if (n := before + x + own[1:]) in siblings), None)):
            return found, "bias"
    return None


def _noisy(leaf: str) -> tuple[str, str] | None:
    """Return (tensor, kind) of a parameter of a noisy layer: ("weight", "mean") for `weight_mu` and `mean_w`; None for
    other names.
    """
    words = cut(leaf)
    for first, rest in ((words[:1], words[1:]), (words[-1:], words[:-1])):
        of = {"weight": "weight", "w": "weight", "bias": "bias", "b": "bias"}.get("".join(first))
        kind = table().noisy.get(rest)
        if of is not None and kind is not None:
            return of, kind
    return None
