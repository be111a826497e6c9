"""Keys of one tensor of the model: a proof settles the first of them, and the others follow."""

from __future__ import annotations

from dataclasses import replace

import torch

from ....errors import RuleError
from ....torch_bridge import to_torch
from ... import expression as ex
from ...expression import Expr
from ...mapping import Entry, Mapping
from ..trial import Trial


def with_first_keys(mapping: Mapping, trial: Trial) -> Mapping:
    """Return MAPPING with one entry for each tensor of the model of TRIAL, under its first key. Of the entries of
    several keys it is the last with an expression, as that is loaded last; the first, if none has one.
    """
    found: dict[str, Entry] = {}
    for entry in mapping.entries:
        first = trial.ties.get(entry.target, entry.target)
        if first not in found or entry.expr is not None:
            found[first] = replace(entry, target=first)
    return replace(mapping, entries=tuple(found.values()))


def with_all_keys(
    mapping: Mapping, before: Mapping, settled: dict[str, Entry], trial: Trial, *, proved: bool
) -> list[Entry]:
    """Return an entry for each entry of MAPPING, by SETTLED (key -> entry), which a proof made of BEFORE, the result of
    `with_first_keys`. PROVED says whether the proof succeeded.

    The keys of one tensor of the model of TRIAL get its entry in SETTLED. But a key keeps its own expression if that
    makes the same values; and its own entry if, besides, both are certain or both are not, and the proof did not change
    the entry of the tensor, or if the proof neither succeeded nor changed that entry.
    """
    old = {entry.target: entry for entry in before.entries}
    several = set(trial.ties.values())
    out = []
    for entry in mapping.entries:
        first = trial.ties.get(entry.target, entry.target)
        new = settled[first]
        if first in several:
            same = _make_the_same(entry.expr, new.expr, trial)
            if new == old[first] and (not proved or (same and entry.status == new.status)):
                new = entry
            else:
                made = entry if same else new
                new = replace(new, target=entry.target, expr=made.expr, way=made.way, line=entry.line)
        out.append(new)
    return out


def _make_the_same(one: Expr | None, other: Expr | None, trial: Trial) -> bool:
    """Return whether two expressions make the same values of the tensors of TRIAL; False if one cannot be made, or if
    just one is None.
    """
    if one is None or other is None or one == other:
        return one == other
    try:
        return bool(torch.equal(*(to_torch(ex.lazy(x, trial.tensors)) for x in (one, other))))
    except RuleError:
        return False


__all__ = ["with_all_keys", "with_first_keys"]
