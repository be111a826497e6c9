"""Names of a fused tensor that spell the names of its parts: `conv_zr` for `conv_z` and `conv_r`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import permutations, product

from ..words import common_start, cut

#: So many parts may be spelled in the name of the whole.
MOST_SPELLED = 4


def spelled(names: Sequence[str], wholes: Set[str]) -> tuple[int, ...] | None:
    """Return the order (indices of NAMES) in which one of WHOLES, the names that a fused tensor may have, spells the
    names of its parts: `conv_z` and `conv_r` in `conv_zr`. None if no order does, if several do, or for more than four
    names.

    The common beginning and end of the parts' names may appear once in the name or be replaced: `mix_rkv` for
    `time_mix_r`, `time_mix_k` and `time_mix_v`. Or the parts are cut short: `b1_b2r` for `b1` and `b2_reduce`. Or the
    name has the first word of each part, or the last: `uqk` for `gate_u`, `query_q` and `key_k`.
    """
    if len(names) > MOST_SPELLED:
        return None
    spoken = {word for whole in wholes if len(word := "".join(cut(whole))) >= len(names)}
    ends = {name.rpartition("_")[2] for name in wholes}
    head, tail = common_start(names), common_start([name[::-1] for name in names])
    found = []
    for order in permutations(range(len(names))):
        own = [names[at] for at in order]
        for a, b in product(range(head + 1), range(tail + 1)):
            inner = [name[a : len(name) - b] for name in own]
            texts = {f"{own[0][:a]}{between.join(inner)}{own[0][len(own[0]) - b :]}" for between in ("", "_", "_and_")}
            alone = "".join(inner) if a == head and b == tail else ""
            if all(inner) and (texts & wholes or (len(alone) > 1 and alone in ends)):
                found.append(order)
                break
        else:
            if any(_cut_short(own, whole) for whole in wholes):
                found.append(order)
                continue
            words = [cut(name) for name in own]
            if spoken & {"".join(word[at] for word in words if word) for at in (0, -1)}:
                found.append(order)
    return found[0] if len(found) == 1 else None


def _cut_short(names: Sequence[str], whole: str) -> bool:
    """Return whether WHOLE, a fused tensor's name, ends with NAMES, those of its parts, in order, each cut to its first
    word and the first letters of the others: `b1_b2r` for `b1` and `b2_reduce`. Each has two letters or more, and all
    differ.
    """
    said = whole.split("_")[-len(names) :]
    short = [(first, first + "".join(word[:1] for word in rest)) for first, *rest in (n.split("_") for n in names)]
    return len({*said}) == len(names) and all(
        len(word) > 1 and word == full for word, (_, full) in zip(said, short, strict=False)
    )
