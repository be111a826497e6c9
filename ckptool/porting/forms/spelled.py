"""Names of a fused tensor that spell the names of its parts: `conv_zr` for `conv_z` and `conv_r`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import permutations, product

from ..words import common_start, cut

#: So many parts may be spelled in the name of the whole.
MOST_SPELLED = 4


def spelled(names: Sequence[str], wholes: Set[str]) -> tuple[int, ...] | None:
    """Return the order (indices of NAMES) in which one of WHOLES, the names that a fused tensor may have, spells NAMES,
    those of its parts: (1, 0) for `conv_r` and `conv_z` in `conv_zr`. None if no order does, if several do, or for more
    than four names.

    A name spells the parts if it has their names joined (`_joined`) or cut short (`_cut_short`), or if it consists of
    the first word of each part, or of the last word of each: `uqk` for `gate_u`, `query_q` and `key_k`.
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
    """Return whether one of WHOLES consists of NAMES, in order, with nothing, "_" or "_and_" between them. What all of
    NAMES begin or end with, or a part of it, may be there only once, in front or at the end: `conv_zr` for `conv_z` and
    `conv_r`.

    NAMES without their common beginning and end, joined to two letters or more, may also be what one of WHOLES has
    behind its last "_": `mix_rkv` for `time_mix_r`, `time_mix_k` and `time_mix_v`. A common beginning or end that is
    the whole of one of NAMES is not left out.
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
    """Return whether WHOLE, a fused tensor's name, ends with NAMES, those of its parts, in order and between "_", each
    cut to its first word and the first letters of its other words: `b1_b2r` for `b1` and `b2_reduce`. False if one of
    these short names has fewer than two letters, or if two are equal.
    """
    said = whole.split("_")[-len(names) :]
    short = [(first, first + "".join(word[:1] for word in rest)) for first, *rest in (n.split("_") for n in names)]
    return len({*said}) == len(names) and all(
        len(word) > 1 and word == full for word, (_, full) in zip(said, short, strict=False)
    )
