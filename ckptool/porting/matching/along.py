"""Pair layers by the names of other layers along their branch: layers that take their output, or give their input.

`fc_h_v` and `fc_h_a` look alike; `fc_z_v` and `fc_z_a` do not, and are paired. The layer of the model whose output
flows only into the partner of `fc_z_v` is the partner of `fc_h_v`, whatever the model calls it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from ..forms.branches import flows_into
from ..words import words_of
from .cells import Cells
from .units import Pair, Unit, block_of, by_block

#: Cells of more look-alikes are no branches.
_MOST = 8


def along_branches(cells: Cells) -> dict[int, Hashable]:
    """Return `id` of a unit -> label, ("along", path of the source), equal for a target and a source that are in one
    branch: the forward pass shows the branch of the target, a word in its name that of the source (`_found`). {} if
    there are none.

    Only open cells with equally many units of both sides, at most 8 of each, are looked at. Only certain pairs show
    branches, and only those whose target is in the block of one of the cell's targets. All units of a cell get a label
    if `_found` has a source of its own for each target; else none of them does.
    """
    certain = by_block(cells.certain())
    labels: dict[int, Hashable] = {}
    for targets, sources in cells.even():
        if len(targets) <= _MOST:
            beside = [
                pair for block in dict.fromkeys(block_of(t.path) for t in targets) for pair in certain.get(block, ())
            ]
            found = _found(targets, sources, beside)
            if len(found) == len({id(s) for s in found.values()}) == len(targets):
                for t in targets:
                    labels[id(t)] = labels[id(found[id(t)])] = ("along", found[id(t)].path)
    return labels


def _found(targets: Sequence[Unit], sources: Sequence[Unit], beside: Sequence[Pair]) -> dict[int, Unit]:
    """Return `id` of a target -> the source that is in its branch, as the pairs BESIDE show it. TARGETS for which they
    show no source, or several, are left out. Two targets may get one source.

    A pair of A and B (its target and its source) shows that T and S are in one branch if all of these are true:
    - Of TARGETS, only T gives its output to A (also through other layers); or, tried separately, only T takes that of
      A.
    - Of SOURCES, only S has a word in its path that the path of B has, and that no other of SOURCES has.
    - If the flow of S is known, S gives its output to B, or takes that of B, as T does with A. If it is not known, the
      caller has to ask a question.
    """
    said = [set(words_of(s.path)) for s in sources]
    own = [words - set().union(*(other for other in said if other is not words)) for words in said]
    votes: dict[int, set[int]] = defaultdict(set)
    directions: tuple[Callable[[Unit, Unit], bool], ...] = (flows_into, lambda t, other: flows_into(other, t))
    for other, partner in beside:
        words = set(words_of(partner.path))
        named = [at for at, telling in enumerate(own) if telling & words]
        for flows in directions if len(named) == 1 else ():
            along = [t for t in targets if flows(t, other)]
            there = sources[named[0]]
            if len(along) == 1 and (there.flow is None or flows(there, partner)):
                votes[id(along[0])].add(named[0])
    return {t: sources[next(iter(places))] for t, places in votes.items() if len(places) == 1}
