"""Limits for files that are no models: names with thousands of components, too many tensors to match.

Matching looks at every component of every name, and at the neighbours of every tensor. This is fast only for files with
names and numbers of tensors that models have.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..checkpoint import StateDict
from ..errors import RuleError, counted, printable
from ..model_code.signature import Signature

#: Characters and components of a name, at most. Those of the deepest models have some 150 and 20.
_LONGEST, _DEEPEST = 400, 64
#: Tensors of a file that are matched with any model, and for each tensor of a larger one.
_MOST_TENSORS, _TIMES = 20_000, 10
#: State dicts of one file that are tried.
_MOST_TRIED = 16


def stand_ins(signature: Signature) -> dict[str, str]:
    """Return key -> short name for the keys of SIGNATURE that are too long to match (over 400 characters or 64
    components); usually {}. A short name is `START_NUMBER.END`: the first 40 characters of the key, with `_` for dots,
    a number counted from 0, and the first 40 characters of the key's last component. If a key of SIGNATURE has this
    name, `_` is added at its end. No two keys get one short name, and none gets that of another key.
    """
    long = [key for key in signature.entries if len(key) > _LONGEST or key.count(".") >= _DEEPEST]
    found = {}
    for number, key in enumerate(long):
        short = f"{key[:40].replace('.', '_')}_{number}.{key.rpartition('.')[2][:40]}"
        while short in signature.entries:
            short += "_"
        found[key] = short
    return found


def under(signature: Signature, new: dict[str, str]) -> Signature:
    """Return SIGNATURE with its keys renamed by NEW (old key -> new key), also in `tied`; other keys, and names in the
    facts of an entry, stay.
    """
    entries = {
        new.get(key, key): replace(entry, key=new.get(key, key), tied=entry.tied and new.get(entry.tied, entry.tied))
        for key, entry in signature.entries.items()
    }
    return replace(signature, entries=entries)


def require_size(source: Signature, target: Signature) -> None:
    """Raise RuleError if SOURCE has more than 20,000 tensors and more than ten times as many as the model TARGET. Tied
    tensors do not count.
    """
    have, wanted = (sum(e.tied is None for e in side.entries.values()) for side in (source, target))
    if have > max(_MOST_TENSORS, _TIMES * wanted):
        raise RuleError(
            f"its {have:,} tensors are too many to be matched with the {counted(wanted, 'tensor')} of "
            f"{printable(target.name, 60)}",
            where=source.name,
            hint="name the part that the model is made for (--at PATH), or take out its keys with "
            "`ckptool convert --select PATTERN` first",
        )


def likely(found: Sequence[StateDict], target: Signature) -> list[StateDict]:
    """Return the state dicts of FOUND to try for the model TARGET, in their order: all if there are at most 16, else
    the 16 with the most tensors of the model's sizes, of equals the first. Each size counts as often as both the model
    and the state dict have it.
    """
    if len(found) <= _MOST_TRIED:
        return list(found)
    wanted = Counter(entry.shape for entry in target.entries.values())

    def common(place: int) -> tuple[int, int]:
        shapes = Counter(tensor.shape for tensor in found[place].tensors.values())
        return sum((shapes & wanted).values()), -place

    return [found[place] for place in sorted(heapq.nlargest(_MOST_TRIED, range(len(found)), key=common))]
