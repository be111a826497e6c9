"""Answer questions about look-alikes by the places that layers have in the graphs of both codes.

Two codes of one model compute each result from the same weights, whatever they call them and in whichever order they
register or run them. So a layer and its source come after the same layers and before the same layers. Each unit gets a
label for what is known of its place: its shape and kind, then the labels of all units before it and behind it, and so
on. A pair that no question is about has a label of its own. If a label belongs to one unit of each side, no look-alike
has that place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterator, Sequence

from ..matching.match import Matching
from ..matching.units import Pair, Unit
from ..questions import Topic, answered

#: With more pairs than this, each would be compared with too many others.
_MOST = 1500
#: The questions about which of several look-alikes a layer is.
_WHICH = (Topic.ORDER, Topic.PARTS, Topic.COUNT, Topic.SWAP)
_ANSWER = "the source's code has no other layer of this look in this place of its graph"


def settle_by_flow(matching: Matching) -> None:
    """Answer the questions about which of several look-alikes a target is, for each pair of MATCHING whose units have
    the same place in the graphs of both codes, and no look-alike has it (`_alone`). Answers may show further ones.

    Pairs with look-alikes without a partner are left as they are. Nothing is done if the graphs have more than 1500
    pairs.
    """
    free = {unit.colour for side in (0, 1) for unit in matching.unpaired(side)}
    placed = [pair for pair in matching.pairs if all(unit.flow is not None for unit in pair)]
    if len(placed) > _MOST:
        return
    open_to = [t for t, _ in placed if t.colour not in free and _asked(t)]
    sides = [_Graph([pair[side] for pair in placed]) for side in (0, 1)] if open_to else []
    while open_to:
        settled = _alone(placed, sides, set(map(id, open_to)))
        if not settled:
            return
        for t in settled:
            for topic in _WHICH:
                t.questions = answered(t.questions, topic, _ANSWER)
        open_to = [t for t in open_to if _asked(t)]


class _Graph:
    """What comes before each unit of one side, and what behind it.

    Args:
        units: the units, which all have a place in the graph.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        flows = [flow for unit in units if (flow := unit.flow) is not None]
        self.before = [[n for n, one in enumerate(flows) if one.into(flow)] for flow in flows]
        self.behind: list[list[int]] = [[] for _ in flows]
        for at, before in enumerate(self.before):
            for n in before:
                self.behind[n].append(at)


def _alone(placed: Sequence[Pair], sides: Sequence[_Graph], open_to: Container[int]) -> list[Unit]:
    """Return the targets in OPEN_TO (the `id` of each) that have one label with their source and no other unit, by the
    first labels (`_refined`) with which there are any; [] if there are none. The first labels are shape and kind, and
    for pairs without a question also their number. SIDES has the graphs of both sides.
    """
    first: list[Hashable] = [(t.colour, None if t.doubts else at) for at, (t, _) in enumerate(placed)]
    for labels in _refined(first, sides):
        counts = [Counter(side) for side in labels]
        found = [
            t
            for (t, _), own, theirs in zip(placed, *labels, strict=True)
            if id(t) in open_to and own == theirs and counts[0][own] == counts[1][own] == 1
        ]
        if found:
            return found
    return []


def _refined(first: Sequence[Hashable], sides: Sequence[_Graph]) -> Iterator[list[list[int]]]:
    """Yield [labels of the units of a side] for both SIDES, again and again: a new label stands for the old label of a
    unit and those of all units before and behind it. Stop when neither side gets more different labels. FIRST has the
    label that both units of a pair have at first; it is not yielded.
    """
    names: dict[Hashable, int] = {}
    labels = [[names.setdefault(label, len(names)) for label in first] for _ in sides]
    while True:
        names = {}
        finer = [
            [
                names.setdefault((own[at], _held(own, graph.before[at]), _held(own, graph.behind[at])), len(names))
                for at in range(len(own))
            ]
            for own, graph in zip(labels, sides, strict=True)
        ]
        if all(len({*new}) == len({*old}) for new, old in zip(finer, labels, strict=True)):
            return
        labels = finer
        yield labels


def _held(labels: Sequence[int], members: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (label, how often) for those of LABELS at the places MEMBERS."""
    return tuple(sorted(Counter(labels[n] for n in members).items()))


def _asked(unit: Unit) -> bool:
    return any(question.reason.topic in _WHICH for question in unit.doubts)


__all__ = ["settle_by_flow"]
