"""Files that number their tensors and name none: lists of arrays, as `np.savez(path, *arrays)` and federated rounds keep.

`[value.numpy() for value in model.state_dict().values()]` gives `arr_0`, `arr_1` …. Which module a tensor belongs to,
and what it is there, is in no key; where the sizes are, in their order, those that the model registers, the model says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..signature import Entry, Signature
from .roles import components

_NUMBERED = re.compile(r"(.*?)(\d+)\Z")
#: So many tensors are a list.
_LEAST = 4
#: Such a share of sizes has to be those of the model, where a head of other classes is part of it.
_MOST = 0.75
_LETTERS = "bcdfghjklmnpqrst"


def named_by_position(source: Signature, target: Signature) -> tuple[Signature, dict[str, str]]:
    """A list of tensors under names that say what belongs to one module, and what it is there; else as it is.

    Returns:
        The signature in the order of its numbers, and the new name of each old one, nothing if it is no such list.
    """
    keys = _in_order(source)
    if not keys or any(key in target.entries for key in keys):
        return source, {}
    entries = [source.entries[key] for key in keys]
    fitting = [wanted for wanted in _registered(target) if _fits(entries, wanted)]
    if not fitting:
        return source, {}
    best = max(fitting, key=lambda wanted: _equal(entries, wanted))
    new: dict[str, str] = {}
    modules: dict[tuple[str, ...], str] = {}
    for entry, own in zip(entries, best, strict=True):
        *path, leaf = components(own.key)
        module = modules.setdefault(tuple(path), f"z{_spelled(len(modules))}z")
        new[entry.key] = f"{module}.{leaf}"
    made = {new[e.key]: replace(e, key=new[e.key], tied=None if e.tied is None else new[e.tied]) for e in entries}
    return replace(source, entries=made, ordered=True), new


def _in_order(source: Signature) -> list[str]:
    """The keys of a list by their numbers, if all are one name with numbers that leave none out; else nothing."""
    found = [_NUMBERED.match(key) for key in source.entries]
    named = [one for one in found if one is not None]
    numbers = sorted(int(one[2]) for one in named)
    whole = len(named) == len(found) >= _LEAST and len({one[1] for one in named}) == 1
    if not whole or numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
        return []
    return [one[0] for one in sorted(named, key=lambda one: int(one[2]))]


def _registered(target: Signature) -> Iterator[list[Entry]]:
    """What code lists of a model: its state dict, without counters, or its parameters."""
    entries = list(target.entries.values())
    for ties in (True, False):
        some = [e for e in entries if ties or e.tied is None]
        yield some
        yield [e for e in some if not e.key.endswith("num_batches_tracked")]
        yield [e for e in some if e.parameter is not False]


def _fits(entries: Sequence[Entry], wanted: Sequence[Entry]) -> bool:
    ranks = [len(e.shape) for e in entries] == [len(e.shape) for e in wanted]
    return ranks and _equal(entries, wanted) >= _MOST * len(entries)


def _equal(entries: Sequence[Entry], wanted: Sequence[Entry]) -> int:
    return sum(own.shape == theirs.shape for own, theirs in zip(entries, wanted, strict=True))


def _spelled(number: int) -> str:
    """A number in letters: what counts places in a list counts nothing else."""
    place, rest = divmod(number, len(_LETTERS))
    return (_spelled(place) if place else "") + _LETTERS[rest]
