"""Files that hold several copies of a model, or a larger model that contains it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from ...model_code.signature import Signature
from ..expression import Shape
from ..holes.filling import Filling
from ..questions import Reason
from ..words import cut, label, labels, table
from .gates import are_gates


def copies(source: Signature, target: Signature) -> tuple[dict[str, str], set[str]]:
    """Return (key of a further copy of the model -> key of the preferred copy, keys of other parts of the file to leave
    out).

    A copy is a prefix with the same names and shapes below it as another prefix, if the target has fewer of these than
    the file.
    """
    below: dict[tuple[str, ...], dict[tuple[str, ...], Shape]] = defaultdict(dict)
    for key, entry in source.entries.items():
        parts = tuple(key.split("."))
        for depth in range(1, min(len(parts), 4)):
            below[parts[:depth]][parts[depth:]] = entry.shape
    groups: dict[Any, list[tuple[str, ...]]] = defaultdict(list)
    for prefix, inner in below.items():
        if len(inner) >= 4 and not prefix[-1].isdecimal():
            groups[(len(prefix), prefix[:-1], frozenset(inner.items()))].append(prefix)
    size: dict[tuple[str, ...], int] = {prefix: len(inner) for prefix, inner in below.items()}
    size[()] = len(source.entries)
    wanted: dict[Shape, int] = defaultdict(int)
    for entry in target.entries.values():
        wanted[entry.shape] += 1
    there = sum(entry.numel for entry in target.entries.values() if entry.tied is None)
    have: dict[Shape, int] = defaultdict(int)
    for entry in source.entries.values():
        have[entry.shape] += 1
    components = {component for key in target.entries for component in key.split(".")[:-1]}
    components -= {*table().copies, *table().empty}
    found: dict[str, str] = {}
    parts_of_others: set[tuple[str, ...]] = set()
    for (_, _, inner), prefixes in sorted(groups.items(), key=lambda g: -len(g[0][2])):
        if len(prefixes) < 2 or any(".".join(p) in found for p in prefixes) or are_gates([p[-1] for p in prefixes]):
            continue
        if len(prefixes) * len(inner) < 0.7 * size[prefixes[0][:-1]] or len(target.entries) > 1.5 * len(inner):
            continue
        big = [shape for _, shape in inner if len(shape) >= 2]
        if not big or any(wanted[shape] >= have[shape] for shape in big):
            continue
        if not any(wanted[shape] for shape in big) and len(prefixes) * sum(map(prod, dict(inner).values())) <= there:
            continue  # the target holds in another form as much as all of them
        if len({_role_word(p[-1]) for p in prefixes}) > 1 and _target_names_one(prefixes, target):
            continue
        if len(components.intersection(p[-1] for p in prefixes)) == 1:
            continue  # the model itself says which of them it is
        sides = {_side(p[-1]) for p in prefixes}
        if len(sides) > 1:  # parts of one model: what says no side goes to a model that says none
            if None in sides and not any(_side(part) for key in target.entries for part in key.split(".")):
                parts_of_others.update(p for p in prefixes if _side(p[-1]) is not None)
            continue
        ranked = sorted(prefixes, key=lambda p: _preference(p[-1]))
        for other in ranked[1:]:
            for tail in below[other]:
                found[".".join((*other, *tail))] = ".".join((*ranked[0], *tail))
    return found, {".".join((*prefix, *tail)) for prefix in parts_of_others for tail in below[prefix]}


def _role_word(name: str) -> str | None:
    return next(iter(labels(cut(name), hard=True).values()), None)


def _side(name: str) -> str | None:
    """Return the side ("encoder", "decoder") that NAME says, or None."""
    return label(table().group("side"), cut(name))


def _target_names_one(prefixes: Sequence[tuple[str, ...]], target: Signature) -> bool:
    """Return whether the names of the target have a word ("encoder") that is the role of one of the copies,
    PREFIXES.
    """
    own = {_role_word(component) for key in target.entries for component in key.split(".")[:-1]} - {None}
    return bool(own & {_role_word(p[-1]) for p in prefixes})


def _preference(name: str) -> tuple[int, str]:
    order = table().copies
    words = "_".join(cut(name))
    return next((i for i, word in enumerate(order) if word == words), len(order) // 2), name


def doubt_copies(filling: Filling, copies: Mapping[str, str]) -> None:
    """Add a question to every expression that reads one of several copies, with the other copies as options. COPIES has
    key of another copy -> key of the preferred copy.
    """
    if not copies:
        return
    others: dict[str, list[str]] = defaultdict(list)
    for other, key in copies.items():
        others[key].append(other)
    for filled in filling.holes.values():
        keys, others_of = filled.expr.keys(), []
        for n in range(max((len(others[k]) for k in keys if k in others), default=0)):
            swap = {k: others[k][n] for k in keys if len(others.get(k, ())) > n}
            others_of.append(filled.expr.rename(partial(_swapped, swap)))
        if any(k in others for k in keys):
            filled.ask(Reason.SEVERAL_COPIES, options=others_of)


def _swapped(names: Mapping[str, str], key: str) -> str:
    return names.get(key, key)
