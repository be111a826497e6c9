"""Files whose tensors have numbers and no names: lists of arrays, as `np.savez(path, *arrays)` stores them.

`[value.numpy() for value in model.state_dict().values()]` gives `arr_0`, `arr_1` …. No key shows the module of a
tensor. If the sizes come in the order in which the model registers its tensors, the tensors get the names from the
model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from ...keys.known_buffers import is_counter
from ...model_code.signature import Entry, Signature
from ..mapping import Mapping
from ..matching.units import block_of
from ..questions import Reason, ask
from .roles import components

_NUMBERED = re.compile(r"(.*?)(?<!\d)(\d+)\Z")
#: So many tensors are a list.
_LEAST = 4
#: Such a share of sizes has to be those of the model, where a head of other classes is part of it.
_MOST = 0.6


def named_by_position(source: Signature, target: Signature) -> tuple[Signature, dict[str, str]]:
    """Return (SOURCE with keys of TARGET in place of its numbered keys, dict of old key -> new key). The tensor with
    the first number gets the first key of a list of the model's tensors, and so on: of all of them, or without
    counters, buffers or tied tensors (`_registered`). The renamed source counts as ordered, whatever the file format.

    The list that is used has as many tensors as SOURCE, with equal numbers of dimensions at each place, and the most
    places with equal sizes, at least 60 percent; of several such lists, it is the first. If there is none, if the keys
    of SOURCE are not numbered in a row (`_in_order`), or if one is a key of TARGET: (SOURCE as it is, {}).
    """
    keys = _in_order(source)
    if not keys or any(key in target.entries for key in keys):
        return source, {}
    entries = [source.entries[key] for key in keys]
    fitting = [wanted for wanted in _registered(target) if _fits(entries, wanted)]
    if not fitting:
        return source, {}
    best = max(fitting, key=lambda wanted: _equal(entries, wanted))
    new = {entry.key: own.key for entry, own in zip(entries, best, strict=True)}
    made = {new[e.key]: replace(e, key=new[e.key], tied=None if e.tied is None else new[e.tied]) for e in entries}
    return replace(source, entries=made, ordered=True), new


def doubt_order(mapping: Mapping, target: Signature) -> Mapping:
    """Return MAPPING, of a file without names, with an open question at each mapped entry whose tensor might as well be
    that of another key. The question names the first such key of TARGET, and has no options.

    Two tensors may be exchanged if they have equal sizes, the same last component of their keys and one block, and
    their layers may be parallel (`_beside`): no layer takes the output of the other, so code may register them in any
    order. If the forward pass was not followed, their layers have to be in one module, and not be numbered.
    """
    alike: dict[object, list[Entry]] = defaultdict(list)
    for made in mapping.having("mapped"):
        entry = target.entries[made.target]
        path = components(made.target)
        if made.expr is not None and len(path) > 1:
            alike[block_of(path[:-1]), path[-1], entry.shape].append(entry)
    others: dict[str, str] = {}
    for group in alike.values():
        for one, other in permutations(group, 2):
            if one.key not in others and _beside(one, other, traced=target.traced):
                others[one.key] = other.key
    entries = [
        e.asking(ask(Reason.WITHOUT_NAMES, others[e.target])) if e.target in others else e for e in mapping.entries
    ]
    return replace(mapping, entries=tuple(entries))


def _beside(one: Entry, other: Entry, *, traced: bool) -> bool:
    """Return whether the layers of ONE and OTHER may be parallel: a forward pass shows that neither takes the output of
    the other. Without a forward pass (TRACED is False): whether they are layers of one module, and the name of ONE's
    layer is no number.
    """
    if not traced:
        return components(one.key)[:-2] == components(other.key)[:-2] and not components(one.key)[-2].isdecimal()
    a, b = one.facts.flow, other.facts.flow
    return a is not None and b is not None and a.beside(b)


def _in_order(source: Signature) -> list[str]:
    """Return the keys of SOURCE in the order of their numbers, if all are one text (which may be empty) and a number at
    the end (`arr_0`, `arr_1` …), the numbers are consecutive from 0 or 1, and there are at least four keys; else [].
    """
    found = [_NUMBERED.match(key) for key in source.entries]
    named = [one for one in found if one is not None]
    numbers = sorted(int(one[2]) for one in named)
    whole = len(named) == len(found) >= _LEAST and len({one[1] for one in named}) == 1
    if not whole or numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
        return []
    return [one[0] for one in sorted(named, key=lambda one: int(one[2]))]


def _registered(target: Signature) -> Iterator[list[Entry]]:
    """Yield the six lists of tensors of TARGET that code may save: first with tied tensors, then without them, each
    time the whole state dict, the state dict without counters, and the parameters alone.
    """
    entries = list(target.entries.values())
    for ties in (True, False):
        some = [e for e in entries if ties or e.tied is None]
        yield some
        yield [e for e in some if not is_counter(e.key)]
        yield [e for e in some if e.parameter is not False]


def _fits(entries: Sequence[Entry], wanted: Sequence[Entry]) -> bool:
    """Return whether ENTRIES are as many as WANTED, each with as many dimensions as that in its place, and at least 60
    percent with the same sizes.
    """
    ranks = [len(e.shape) for e in entries] == [len(e.shape) for e in wanted]
    return ranks and _equal(entries, wanted) >= _MOST * len(entries)


def _equal(entries: Sequence[Entry], wanted: Sequence[Entry]) -> int:
    """Return how many tensors of ENTRIES have the sizes of the one in their place in WANTED, which has equally many."""
    return sum(own.shape == theirs.shape for own, theirs in zip(entries, wanted, strict=True))
