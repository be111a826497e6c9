"""Find the role of a tensor in its module ("weight", "bias", …), whatever the last component of its key is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import cache

from ..words import cut, table

_RNN = re.compile(r"((weight|bias)_(ih|hh|hr)(?:_l(\d+))?(_reverse)?)(_raw)?\Z")
_SLOT = re.compile(r":\d+\Z")
_COUNTED = re.compile(r"(.+)_(\d+)\Z")


@cache
def components(key: str) -> tuple[str, ...]:
    """Return the components of KEY: its parts between dots, ("a", "b", "weight") for `a.b.weight`. For a name with "/"
    between scopes (TensorFlow), those of `_of_scopes`, without a number of an output at the end (`:0`).
    """
    named = [component for component in _SLOT.sub("", key).split("/") if component] if "/" in key else []
    return _of_scopes(named) if named else tuple(key.split("."))


def _of_scopes(named: Sequence[str]) -> tuple[str, ...]:
    """Return the components of a name with the scopes NAMED: block, layer_0, dense, dense, kernel give ("block",
    "layer", "0", "dense", "kernel"). A scope that repeats the one before it is left out. A number behind "_" becomes a
    component of its own if a module with another name follows; else `layer_0` stays one component.

    The last of NAMED is the tensor; it may have its module before a dot: `norm.scale` gives norm, scale. The tensor
    gets the usual name if the vocabulary has one (`slashed`: `weights` -> "kernel"), but `weights` of an embedding
    becomes "weight".
    """
    module, _, leaf = named[-1].rpartition(".")
    path = [*named[:-1], *([module] if module else [])]
    found: list[str] = []
    for place, component in enumerate(path):
        counted = _COUNTED.match(component) if any(other != component for other in path[place + 1 :]) else None
        if component not in path[max(place - 1, 0) : place]:
            found += counted.groups() if counted else [component]
    return (*found, "weight" if leaf == "weights" and _is_table(found) else table().slashed.get(leaf, leaf))


def _is_table(path: Sequence[str]) -> bool:
    """Return whether PATH, names by scopes, ends with the word "embedding", "embeddings" or "embed"; then `weights` in
    it is an embedding table. False for an empty path.
    """
    return bool(path) and not {"embedding", "embeddings", "embed"}.isdisjoint(cut(path[-1])[-1:])


def numbered(paths: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return PATHS, in their order, with the number that frameworks omit for the first layer. A path has the names of
    the scopes (modules) around a tensor and, last, that of the tensor. A module `conv` beside a module `conv_1` becomes
    `conv_0`, unless there is a module `conv_0` beside them, too.

    So does a module inside of a first layer, if the second layer has the module with `_1` behind its name, and none
    with its own name: `gru_cell` in `gru`, if `gru_1` holds `gru_cell_1`. The first layer is one that gets its number
    here (`gru`, but not one that is called `gru_0` in PATHS), with `gru_1` as the second, or a component `0`, with `1`
    as the second. Numbers that are components of their own are added before (`_with_first`).

    Names of tensors stay as they are, and do not count as such a `conv_1` or `conv_0`. Paths that differ stay
    different.
    """
    paths = _with_first(list(paths))
    beside = _held(paths)
    found = []
    for path in paths:
        made: list[str] = []
        for at, name in enumerate(path[:-1]):
            own = others = beside[path[:at]]
            if at and f"{name}_1" not in own:
                around = path[at - 1]
                second = "1" if around == "0" else f"{around}_1" if made[-1] != around else None
                there = beside.get((*path[: at - 1], second), set()) if second else set()
                others = own if name in there else there
            is_first = f"{name}_1" in others and f"{name}_0" not in others and f"{name}_0" not in own
            made.append(f"{name}_0" if is_first else name)
        found.append((*made, *path[-1:]))
    return found


def _with_first(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return PATHS, in their order, with the component 0 for the first layer of a list whose other numbers are
    components: `gru`, `gru_cell` becomes `gru`, `0`, `gru_cell` beside `gru`, `1`, `gru_cell_1`. The list has members 1
    and no member 0. Each module in it that is no number has to have a counterpart in member 1, of its name or with `_1`
    behind it; if one of these modules has none, the list stays as it is.
    """
    beside = _held(paths)

    def has_first(module: tuple[str, ...]) -> bool:
        """Return whether MODULE is a list that lacks its member 0: it has a member 1, no member 0, and other modules,
        each with a counterpart in member 1 (of its name, or with `_1` behind it).
        """
        second = beside.get((*module, "1"), set())
        names = {name for name in beside[module] if not name.isdecimal()} if second else set()
        return bool(names) and "0" not in beside[module] and all({name, f"{name}_1"} & second for name in names)

    lists = {module for module in beside if module and has_first(module)}
    found = []
    for path in paths:
        inside = {at for at in range(1, len(path) - 1) if not path[at].isdecimal() and path[:at] in lists}
        found.append(tuple(c for at, c in enumerate(path) for c in (("0", c) if at in inside else (c,))))
    return found


def _held(paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], set[str]]:
    """Return path of a module -> the names of the modules in it, for the modules around the tensors with PATHS."""
    beside: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths:
        for at, component in enumerate(path[:-1]):
            beside[path[:at]].add(component)
    return beside


_BLOCK = re.compile(r"([A-Za-z]+)(\d+)\Z")
#: A numbered convolution, and the numbered blocks behind it.
_LAYER_INSIDE = re.compile(
    r"([A-Za-z]*conv\d+(?:_\d+)?(?:_[A-Za-z]+)??)((?:_(?:stage|block|branch|unit|level|layer|L)\d+)+)\Z"
)
_COUNTED_WORD = re.compile(r"_([A-Za-z]+)(\d+)")


def divided(paths: Collection[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return path -> path with a module for each block, for files without modules that count blocks in names:
    ("stage1_unit2_conv1",) -> ("stage", "1", "unit", "2", "conv1"). Paths without such a name are in it, too, without
    the kind of tensor before a colon (`arg:`).

    {} if a path has several components, or if fewer than half of the paths count blocks in this way.
    """
    if any(len(path) > 1 for path in paths):
        return {}
    found = {path: tuple(_blocks(path[0])) for path in paths if path}
    return found if 2 * sum(len(path) > 1 for path in found.values()) >= len(found) else {}


def _blocks(name: str) -> tuple[str, ...]:
    """Return the path that a name with counted blocks stands for: `stage1_unit2_conv1` -> ("stage", "1", "unit", "2",
    "conv1"). The kind of tensor before a colon (`arg:`, `aux:`) is left out.

    In a name that begins with a numbered convolution, the blocks around the convolution come behind it:
    `conv1_stage2_L1` -> ("stage", "2", "L", "1", "conv1"), as in OpenPose (Cao et al., 2017).

    A name without a number before its last "_", or with a number alone behind it, is one component.
    """
    name = name.rpartition(":")[2]
    if inside := _LAYER_INSIDE.match(name):
        blocks = _COUNTED_WORD.findall(inside[2])
        return (*(part for word in blocks for part in word), inside[1])
    *blocks, last = name.split("_")
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
    return (*found, "_".join((*words, last))) if found else (name,)


_LETTERED = re.compile(r"(.*[A-Za-z0-9]_)([a-h])\Z|(.*[A-Za-z0-9]_|.*[a-z0-9])([A-H])\Z")
_DIRECTION = re.compile(r"(.*?)([A-Za-z])(?:2|to|_to_)([A-Za-z])\Z")


def counted_by_letters(
    paths: Collection[tuple[str, ...]], *, beside: Collection[str] = ()
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return path -> path with numbers, for paths with modules that are counted by letters: `norm_a`, `norm_b` become
    `norm_1`, `norm_2` (`_numbers_for_letters`). Two modules from one domain to another and back (`netG_A2B`,
    `netG_B2A`) become `netG_ab` and `netG_ba`. Paths without such modules are left out; {} if all are. BESIDE are words
    that names of the other side end with: letters that are all among them do not count modules.
    """
    held: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths:
        for at, component in enumerate(path):
            held[path[:at]].add(component)
    names = {
        (*around, component): name
        for around, components in held.items()
        for component, name in (_numbers_for_letters(components, beside) | _directions(components)).items()
    }

    def renamed(path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(path[: at + 1], component) for at, component in enumerate(path))

    return {path: changed for path in paths if names and (changed := renamed(path)) != path}


def _numbers_for_letters(components: Set[str], beside: Collection[str]) -> dict[str, str]:
    """Return component -> component with a number, for COMPONENTS of one module that are counted by letters: `norm_a`
    -> `norm_1`, `norm_b` -> `norm_2`; `conv1A` -> `conv1_1`. They are two or more with one stem and the letters from a
    on, without a gap, up to h, behind "_" or as capitals (`norm_a`, `normA`).

    Others are left out, and so are words for parts of adapters (`lora_A`), stems that are numbered as well (`norm_1`
    beside `norm_a`), and stems whose letters are all in BESIDE.
    """
    rows: dict[str, set[str]] = defaultdict(set)
    for component in components - table().adapters.keys():
        if found := _LETTERED.match(component):
            rows[found[1] or found[3]].add(found[2] or found[4])
    names: dict[str, str] = {}
    for stem, letters in rows.items():
        counted = "".join(sorted(letters))
        in_a_row = len(counted) > 1 and "abcdefgh".startswith(counted.lower())
        numbered = any(f"{stem}{n}" in components for n in range(len(letters) + 1))
        if in_a_row and not numbered and not set(counted.lower()) <= set(beside):
            between = "_" if stem[-1].isdecimal() else ""  # `conv1A` is the first of `conv1`, and not the eleventh
            names |= {stem + letter: f"{stem}{between}{n}" for n, letter in enumerate(counted, 1)}
    return names


def _directions(components: Set[str]) -> dict[str, str]:
    """Return component -> name with both letters, for those of COMPONENTS that lead from one domain to another (`A2B`,
    `AtoB`, `A_to_B` at the end), if there is one that leads back: `netG_A2B` beside `netG_B2A` gets `netG_ab`.
    """
    ways = {component: found.groups() for component in components if (found := _DIRECTION.match(component))}
    return {
        component: f"{stem}{'_' * stem[-1:].isalnum()}{(one + other).lower()}"
        for component, (stem, one, other) in ways.items()
        if one != other and (stem, other, one) in ways.values()
    }


_SUFFIX = re.compile(r"(.+)_(weight|bias|kernel|gamma|beta|(?:running|moving)_(?:mean|var|variance))\Z")


#: What a factor stands beside to be a weight, and what stands beside a factor to be a bias. That is not said of "a" and
#: "b", which may be the two matrices of an adapter.
_SHIFTS = frozenset("bias beta shift offset loc".split())
_FACTORS = frozenset("weight gamma scale kernel w g a_2 gain alpha".split())


#: What is beside the shift of a norm that has no scale (`scale=False` of Keras).
_STATISTICS = frozenset("moving_mean moving_variance running_mean running_var".split())

_WEIGHT_NORM = frozenset({"weight_g", "weight_v"})
#: Spectral norm of code from before torch had its own (Miyato et al., 2018): a wrapper, whose names differ.
_WRAPPED = {"weight_bar": "weight_orig", "weight_u": "weight_u", "weight_v": "weight_sv"}


def role_of(path: tuple[str, ...], siblings: set[str]) -> tuple[tuple[str, ...], str]:
    """Return (path of the module, role) of the tensor whose key has the components PATH. SIBLINGS are the names in the
    same module, of tensors and of modules, its own name among them.

    The first of `_READINGS` that reads the key decides: `fc.weight` is "weight" of `fc`, `norm.gamma` "weight" of
    `norm`, `fc_bias` "bias" of `fc`. Everything else is a "weight" whose path is PATH: a parameter with a name of its
    own, a numbered one, a shift without a factor beside it.
    """
    return next((found for read in _READINGS if (found := read(path, siblings)) is not None), (path, "weight"))


_Read = tuple[tuple[str, ...], str]


def _parametrized(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of the module, role) of a tensor of a parametrization of torch; None for a PATH without the
    component `parametrizations`.

    The module is the path before `parametrizations`, the role the name behind it with an ending:
    `fc.parametrizations.weight.original0` gives (("fc",), "weight_g"), `original1` "weight_v", and `original`
    "weight_orig"; `_u` and `_v` of spectral norm give "weight_u" and "weight_sv", any other NAME "weight_NAME". The
    roles of `fc.parametrizations.bias.…` begin with "bias" in the same way.
    """
    if "parametrizations" not in path:
        return None
    at = path.index("parametrizations")
    what = path[at + 1] if at + 1 < len(path) else "weight"
    roles = {"original0": "g", "original1": "v", "original": "orig", "_u": "u", "_v": "sv"}
    return path[:at], f"{what}_{roles.get(path[-1], path[-1])}"


def _recurrent(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of the module, role) of a tensor of a recurrent layer of torch; None for other names.
    `rnn.weight_ih_l1_reverse` gives (("rnn", "1", "reverse"), "weight_ih"), `cell.weight_ih` (("cell",), "weight_ih").

    Code that drops weights in training (Merity et al., "Regularizing and Optimizing LSTM Language Models", 2018) stores
    the whole weight under its name with `_raw` behind it: it is read like the name without `_raw`, but gives None if
    SIBLINGS have that name, too.
    """
    found = _RNN.match(path[-1])
    if found is None or (found[6] and found[1] in siblings):
        return None
    inner = ((found[4],) if found[4] else ()) + (("reverse",) if found[5] else ())
    return (*path[:-1], *inner), f"{found[2]}_{found[3]}"


def _pruned(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path, role) of `NAME_orig` or `NAME_mask`, which torch's pruning stores beside each other: those of NAME
    (`role_of`), with "_orig" or "_mask" behind the role. `fc.weight_mask` gives (("fc",), "weight_mask"). None for
    other names, and for one of the two without the other among SIBLINGS.
    """
    whole, _, half = path[-1].rpartition("_")
    if half not in ("orig", "mask") or not {f"{whole}_orig", f"{whole}_mask"} <= siblings:
        return None
    inner, role = role_of((*path[:-1], whole), {s.removesuffix("_orig") for s in siblings})
    return inner, f"{role}_{half}"


def _weight_norm(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of the module, role) of `weight_g` and `weight_v` of weight norm, whose names are their roles. Of
    spectral norm, a `weight_v` beside `weight_orig` is "weight_sv"; and `weight_bar`, `weight_u` and `weight_v` beside
    each other, the names of older code, are "weight_orig", "weight_u" and "weight_sv". None for other names, and if
    SIBLINGS do not have the others.
    """
    head, leaf = path[:-1], path[-1]
    if leaf == "weight_v" and "weight_orig" in siblings:
        return head, "weight_sv"
    if leaf in _WRAPPED and _WRAPPED.keys() <= siblings | {leaf}:
        return head, _WRAPPED[leaf]
    return (head, leaf) if leaf in _WEIGHT_NORM <= siblings | {leaf} else None


def _of_noisy_layer(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of the module, role) of a tensor of a noisy layer (`_noisy`): `weight_mu` is "weight_mean", and
    `weight_sigma` beside it "weight_spread". None for other names; also if SIBLINGS, all names in the module, have no
    mean of the same tensor (weight or bias), or hold this name alone.
    """
    noisy = _noisy(path[-1])
    if noisy is None:
        return None
    read = {_noisy(s) for s in siblings}
    return (path[:-1], "_".join(noisy)) if {(noisy[0], "mean"), noisy} <= read != {noisy} else None


def _lettered(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path, role) of a name that differs from another in SIBLINGS by a letter for its role, w or b; None for
    other names. The letter is at the beginning (`W_q` beside `b_q`), at the end (`ln1w` beside `ln1b`: `_last_letter`),
    or at the beginning of the last word (`self_Wk` beside `self_bk`). The path of both ends with the name of the matrix
    if the letter is at the beginning (`W_q` is the "weight" and `b_q` the "bias" of `W_q`), and with the name without
    the letter if it is at the end (`ln1w` and `ln1b` are of `ln1`).

    If SIBLINGS have a gain (`self_gk`), a letter at the beginning of the last word does not count: the shift `self_bk`
    is as likely that of a norm.
    """
    before, between, own = path[-1].rpartition("_")
    found = _first_letter("", path[-1], siblings) or _last_letter(path[-1], siblings)
    if found is None and before and f"{before}_g{own[1:]}" not in siblings:
        found = _first_letter(before + between, own, siblings)
    return None if found is None else ((*path[:-1], found[0]), found[1])


def _first_letter(before: str, word: str, siblings: set[str]) -> tuple[str, str] | None:
    """Return (name of the matrix, role) of the name BEFORE + WORD: a "weight" if WORD begins with w or W, and SIBLINGS
    have the same name with b or B instead (`Wk` beside `bk`); a "bias" if it is the other way round, whose matrix is
    the name with W or w (W if SIBLINGS have both). None for other names, and if WORD is a single letter.
    """
    first, rest = word[:1], word[1:]
    matrices, biases = ({before + letter + rest for letter in letters} & siblings for letters in ("Ww", "Bb"))
    if not rest or not matrices | biases:
        return None
    if first in "wW" and biases:
        return before + word, "weight"
    return (min(matrices), "bias") if first in "bB" and matrices else None


def _last_letter(leaf: str, siblings: set[str]) -> tuple[str, str] | None:
    """Return (name of the module, role) of a name LEAF that ends with w or b, if SIBLINGS have the name with both
    letters: `ln1w` gives ("ln1", "weight"), `ln1_b` ("ln1", "bias"). Else None; also if fewer than two characters come
    before the letter.
    """
    stem, last = leaf[:-1], leaf[-1:]
    if last not in ("w", "b") or len(stem) < 2 or not {stem + "w", stem + "b"} <= siblings:
        return None
    return stem.rstrip("_"), "weight" if last == "w" else "bias"


def _listed(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of the module, role) for a last component that the vocabulary lists as a role: `kernel` is the
    "weight" of its module. None for other names, for tensors without a module, and for a listed name with a number if
    SIBLINGS, the last components in the module, have one that differs from it in the number only, or has no number:
    `lambda1` beside `lambda2`.

    A `mean` without a variance among SIBLINGS, a `variance` without a mean, and a bias that is not called `bias`
    (`offset`) without a factor (`scale`) among them (`_stands_alone`), are weights of their own: (path, "weight").
    """
    role = _role_in_vocabulary(path[-1], siblings)
    if role is None or len(path) < 2 or _is_numbered(path[-1], siblings):
        return None
    return (path, "weight") if _stands_alone(path[-1], role, siblings) else (path[:-1], role)


def _role_in_vocabulary(leaf: str, siblings: set[str]) -> str | None:
    """Return the role that the vocabulary has for the name LEAF; None if it has none. A name that is a weight beside a
    shift (`Words.beside_bias`: `alpha` beside `beta`) is "weight" if SIBLINGS have a shift.
    """
    if leaf in table().beside_bias and siblings & _SHIFTS:
        return "weight"
    return table().leaves.get(cut(leaf))


def _is_numbered(leaf: str, siblings: set[str]) -> bool:
    """Return whether LEAF ends with a number, and another of SIBLINGS is equal to it without numbers at the end: True
    for `lambda1` beside `lambda2` or `lambda`.
    """
    stem = leaf.rstrip("0123456789")
    return stem != leaf and any(s != leaf and s.rstrip("0123456789") == stem for s in siblings)


def _stands_alone(leaf: str, role: str, siblings: set[str]) -> bool:
    """Return whether the tensor LEAF, whose ROLE is "bias", "running_mean" or "running_var" by its name, has nothing in
    SIBLINGS that it belongs to: True for a bias with another name than `bias` (`offset`) without a factor (`scale`) or
    statistics of a norm, for a `mean` without a variance, and for a `var` or `variance` without a mean. False for all
    other names and roles.
    """
    if leaf in _ALONE:
        return not any(table().leaves.get(cut(other)) == _ALONE[leaf] for other in siblings)
    return role == "bias" and leaf != "bias" and not {s.lower() for s in siblings} & (_FACTORS | _STATISTICS)


#: Names of a statistic that mean something else without the other statistic: name -> role of the other one.
_ALONE = {"mean": "running_var", "var": "running_mean", "variance": "running_mean"}


def _of_queries(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (PATH itself, "bias") for `q_bias`, `k_bias` and `v_bias`, if SIBLINGS have `q_bias` and `v_bias`: a fused
    projection has no biases of these names, so each has a path of its own. None for other names.
    """
    named = path[-1] in ("q_bias", "k_bias", "v_bias") and {"q_bias", "v_bias"} <= siblings
    return (path, "bias") if named else None


def _with_suffix(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of the module, role) of a name that ends with "_" and `weight`, `bias`, `kernel`, `gamma`, `beta`,
    or the running or moving mean or variance (`running_var`, `moving_variance`): `fc_weight`, `norm_gamma`,
    `bn_running_mean` are "weight", "weight" and "running_mean" of the modules `fc`, `norm` and `bn`. None for other
    names.
    """
    found = _SUFFIX.match(path[-1])
    return None if found is None else ((*path[:-1], found[1]), table().leaves[cut(found[2])])


def _scaled(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of a module NAME, "weight") for `NAME_scale` beside `NAME_bias`, `NAME_shift` or `NAME_mean`, and
    (the same path, "bias") for `NAME_shift` or `NAME_mean` beside `NAME_scale`; None for other names.
    """
    name, _, what = path[-1].rpartition("_")
    if what == "scale" and {f"{name}_bias", f"{name}_shift", f"{name}_mean"} & siblings:
        return (*path[:-1], name), "weight"
    return ((*path[:-1], name), "bias") if what in ("shift", "mean") and f"{name}_scale" in siblings else None


def _bias_of_sibling(path: tuple[str, ...], siblings: set[str]) -> _Read | None:
    """Return (path of NAME, "bias") for `NAME_shift`, or another word for a bias, beside a tensor `NAME`; else None."""
    name, _, what = path[-1].rpartition("_")
    return ((*path[:-1], name), "bias") if name in siblings and table().leaves.get((what,)) == "bias" else None


#: The ways to read a key, in their order.
_READINGS: tuple[Callable[[tuple[str, ...], set[str]], _Read | None], ...] = (
    _parametrized,
    _recurrent,
    _pruned,
    _weight_norm,
    _of_noisy_layer,
    _lettered,
    _listed,
    _of_queries,
    _with_suffix,
    _scaled,
    _bias_of_sibling,
)


def _noisy(leaf: str) -> tuple[str, str] | None:
    """Return (tensor, kind) of a parameter of a noisy layer by its name LEAF, ("weight", "mean") for `weight_mu` and
    `mean_w`: the tensor is "weight" or "bias", the kind what the vocabulary (`noisy`) calls the other words ("mean",
    "spread", "noise", …). None for other names.
    """
    words = cut(leaf)
    for first, rest in ((words[:1], words[1:]), (words[-1:], words[:-1])):
        of = {"weight": "weight", "w": "weight", "bias": "bias", "b": "bias"}.get("".join(first))
        kind = table().noisy.get(rest)
        if of is not None and kind is not None:
            return of, kind
    return None
