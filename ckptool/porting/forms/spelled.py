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

    It spells them joined (`_joined`), or cut short (`_cut_short`), or by the first word of each part, or the last:
    `uqk` for `gate_u`, `query_q` and `key_k`.
    """
    if len(names) > MOST_SPELLED:
        return None
    spoken = {word for whole in wholes if len(word := "".join(cut(whole))) >= len(names)}
    found = []
    for order in permutations(range(len(names))):
        own = [names[at] for at in order]
        words = [cut(name) for name in own]
        by_word = {"".join(word[at] for word in words if word) for at in (0, -1)}
        if _joined(own, wholes) or any(_cut_short(own, whole) for whole in wholes) or spoken & by_word:
            found.append(order)
    return found[0] if len(found) == 1 else None


def _joined(names: Sequence[str], wholes: Set[str]) -> bool:
    """Return whether one of WHOLES is NAMES, in order, one after the other, with nothing, "_" or "_and_" between them.
    Their common beginning and end, or a part of it, may be there once for all, before and behind the names.

    Without both, the names may also be the last component between "_" of one of WHOLES, with two letters or more:
    `mix_rkv` for `time_mix_r`, `time_mix_k` and `time_mix_v`.
    """
    head, tail = common_start(names), common_start([name[::-1] for name in names])
    for a, b in product(range(head + 1), range(tail + 1)):
        inner = [name[a : len(name) - b] for name in names]
        first, last = names[0][:a], names[0][len(names[0]) - b :]
        if not all(inner):
            continue
        if not wholes.isdisjoint(f"{first}{between.join(inner)}{last}" for between in ("", "_", "_and_")):
            return True
        alone = "".join(inner)
        if a == head and b == tail and len(alone) > 1 and alone in {name.rpartition("_")[2] for name in wholes}:
            return True
    return False


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
