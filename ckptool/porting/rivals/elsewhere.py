"""Use a block without doubts for a block with doubts: equal places of two blocks go to equal places of their sources.

In a block without a shortcut, a layer may be the only one of its shape; in the next block the shortcut has that shape,
too. `classes` compares blocks of equal shapes before any order counts. Here blocks with one name are compared, when all
other evidence has been used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ..matching.evidence import Kind
from ..matching.series import Relation
from ..matching.units import Pair, Path, around, is_counted, without_digits

#: The names of a block of the target and of its counterpart, without their numbers.
_Kinds = tuple[Path, Path]


def settle(pairs: list[Pair], doubtful: Collection[int]) -> None:
    """Exchange the sources of look-alikes in each block of the target that holds a doubtful pair, if the certain pairs
    of all blocks of its kind, itself included, show which path in such a block belongs to which path in its counterpart
    (`_settle_block`). If `fc1` is always paired with `up` there, a doubtful `fc1` gets `up` of the counterpart.

    Blocks are here all modules whose names have a digit. The counterparts of a block are the blocks of the source that
    hold all sources of its pairs. Two blocks are of one kind if their paths are equal apart from digits, and those of
    their counterparts, too. Nothing is exchanged if there are no certain pairs in blocks of the kind, or if one of
    their paths belongs to two paths, on either side. If that can be done with several counterparts of a block, the
    innermost is taken.
    Args:
        pairs: (target, source), changed in place.
        doubtful: the `id` of each target whose pair may be swapped; the others are the certain pairs.
    """
    blocks: dict[Path, list[int]] = defaultdict(list)
    for at, (t, _) in enumerate(pairs):
        for depth, component in enumerate(t.path[:-1]):
            if is_counted(component):
                blocks[t.path[: depth + 1]].append(at)
    relations: dict[_Kinds, Relation[Path]] = defaultdict(Relation)
    couples = [
        (block, counterpart, held)
        for block, held in blocks.items()
        for counterpart in _blocks_around([pairs[at][1].path for at in held])
    ]
    for block, counterpart, held in couples:
        relation = relations[without_digits(block), without_digits(counterpart)]
        for t, s in (pairs[at] for at in held if id(pairs[at][0]) not in doubtful):
            relation.add(t.path[len(block) :], s.path[len(counterpart) :])
    known = {kinds: relation.sure() for kinds, relation in relations.items() if relation.holds()}
    settled = set()
    for block, counterpart, held in couples:
        kinds = (without_digits(block), without_digits(counterpart))
        if block not in settled and known.get(kinds) and any(id(pairs[at][0]) in doubtful for at in held):
            _settle_block(pairs, held, block, counterpart, known[kinds], kinds)
            settled.add(block)


def _settle_block(
    pairs: list[Pair], held: Sequence[int], block: Path, counterpart: Path, known: Mapping[Path, Path], kinds: _Kinds
) -> None:
    """Give each target in BLOCK the source that is at its place in COUNTERPART, in exchange with the look-alike in the
    block that has this source. Nothing is exchanged if no look-alike in the block has it, or if that look-alike has got
    the source of its own place already. Exchanged units note that as their only evidence (`Unit.exchange`).

    Targets that now have the source at their place, exchanged or not, note their place in `settled`; all their other
    look-alikes in the block note ().

    Args:
        pairs: all pairs, changed in place.
        held: the places in PAIRS of the pairs of the block.
        block, counterpart: the paths of the block and of its counterpart.
        known: path in the block -> path in the counterpart.
        kinds: BLOCK and COUNTERPART without digits.
    """
    holder = {pairs[at][1].path: at for at in held}
    confirmed: dict[int, Path] = {}
    for at in held:
        t, s = pairs[at]
        place = known.get(t.path[len(block) :])
        wanted = None if place is None else holder.get((*counterpart, *place))
        if wanted is None or pairs[wanted][0].colour != t.colour or wanted in confirmed:
            continue
        if wanted != at:
            t2, s2 = pairs[wanted]
            pairs[at], pairs[wanted] = (t, s2), (t2, s)
            holder[s.path], holder[s2.path] = wanted, at
            for unit in (t, t2):
                unit.exchange("settled in other blocks", Kind.OTHER_BLOCKS)
        confirmed[at] = t.path[len(block) :]
    about = (block, *kinds)
    colours = {pairs[at][0].colour for at in confirmed}
    for at in held:
        if pairs[at][0].colour in colours:
            pairs[at][0].settled[about] = confirmed.get(at, ())


def _blocks_around(paths: Sequence[Path]) -> list[Path]:
    """Return the paths of the modules around all PATHS whose names have a digit, the innermost first; [] if there are
    none.

    A block whose units are all in one numbered part (`stage.1.branch2`) is compared with other blocks as a whole, too.
    """
    shared = around(paths)
    return [shared[:at] for at in range(len(shared), 0, -1) if is_counted(shared[at - 1])]
