"""Pair look-alikes, and answer questions about them, by the places that layers have in the graphs of both codes.

Two codes of one model compute each result from the same weights, whatever they call them and in whichever order they
register or run them. So a layer and its source come after the same layers and before the same layers, and both give the
queries, the keys or the values of an attention. Each unit gets a label for what is known of its place: its shape, kind
and role, then the labels of all units before it and behind it, and so on. A pair that no question is about has a label
of its own. If a label belongs to one unit of each side, no look-alike has that place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..matching.evidence import Kind
from ..matching.match import Matching
from ..matching.units import Pair, Unit, block_of, hard_conflict
from ..questions import Reason, Topic, answered

#: With more pairs than this, each would be compared with too many others.
_MOST = 1500
#: The questions about which of several look-alikes a layer is.
_WHICH = (Topic.ORDER, Topic.PARTS, Topic.COUNT, Topic.SWAP)
_ANSWER = "the source's code has no other layer of this look in this place of its graph"
_BETWEEN = "the source's code runs it between the same layers"


def settle_by_flow(matching: Matching) -> None:
    """Answer the questions about which of several look-alikes a target is (topics ORDER, PARTS, COUNT and SWAP), for
    each pair of MATCHING whose two units have the same place in the graphs of both codes, if no look-alike has this
    place (`_alone`). The pairs settled so help to settle others, until no more are. Then also confirm pairs that only
    their shape made (`_confirm_in_the_middle`).

    If a pair is settled so, the question from which end blocks are counted (topic COUNT) is also answered for each pair
    with known places whose target has the same block as the target of that pair, and whose source the same block as its
    source, if they are in blocks. Else two kinds of pairs are left as they are: those with a
    unit whose place in its graph is not known; and those of a colour of which some unit without a partner, on either
    side, has a known place. Nothing is done if the places are known of more than 1500 pairs.
    """
    free = {unit.colour for side in (0, 1) for unit in matching.unpaired(side) if unit.flow is not None}
    placed = [pair for pair in matching.pairs if all(unit.flow is not None for unit in pair)]
    if len(placed) > _MOST:
        return
    looked_at = [t for t, _ in placed if t.colour not in free and t.doubts]
    sides = [_Graph([pair[side] for pair in placed]) for side in (0, 1)] if looked_at else []
    open_to = [t for t in looked_at if _asked(t)]
    known: set[int] = set()
    while open_to and (settled := _alone(placed, sides, set(map(id, open_to)))):
        known.update(map(id, settled))
        for t in settled:
            for topic in _WHICH:
                t.questions = answered(t.questions, topic, _ANSWER)
        open_to = [t for t in open_to if _asked(t)]
    blocks = {(block_of(t.path), block_of(s.path)) for t, s in placed if id(t) in known} - {((), ())}
    for t, s in placed if blocks else ():
        if (block_of(t.path), block_of(s.path)) in blocks:
            t.questions = answered(t.questions, Topic.COUNT, _ANSWER)
    if looked_at:
        _confirm_in_the_middle(placed, sides, set(map(id, looked_at)))


def _confirm_in_the_middle(placed: Sequence[Pair], sides: Sequence[_Graph], looked_at: Container[int]) -> None:
    """Answer the question whether a target and its source, which only their shape made a pair, are one layer
    (ONLY_ITS_SHAPE): for each target in LOOKED_AT (a set of `id`) that in both graphs is directly behind the same pairs
    and directly before the same pairs, at least one each, if none of these has an open question. PLACED has the pairs,
    SIDES the graphs.

    A layer at the end is not confirmed: a new head comes behind the same layers as the one that it replaces.
    """
    own, theirs = sides

    def nearest(graph: _Graph, at: int) -> tuple[set[int], set[int]]:
        """Return (numbers of the units directly before the unit AT in GRAPH, numbers of those directly behind it)."""
        before, behind = graph.before[at], graph.behind[at]
        inner = {n for one in before for n in graph.before[one]}, {n for one in behind for n in graph.behind[one]}
        return set(before) - inner[0], set(behind) - inner[1]

    sure = {at for at, (t, _) in enumerate(placed) if not t.doubts}
    for at, (t, _) in enumerate(placed):
        if id(t) not in looked_at or all(q.reason is not Reason.ONLY_ITS_SHAPE for q in t.doubts):
            continue
        places = zip(nearest(own, at), nearest(theirs, at), strict=True)
        if all(a == b and a and a <= sure for a, b in places):
            t.questions = [
                replace(q, answer=_BETWEEN) if q.is_open and q.reason is Reason.ONLY_ITS_SHAPE else q
                for q in t.questions
            ]


def pair_by_flow(matching: Matching) -> bool:
    """Give targets other sources, by their places in the graphs of both codes, if pairs of MATCHING contradict the
    graphs: a target comes after other layers than its source, or gives the queries of an attention and its source the
    keys (`_contradicted`). Return True if this was done; else False, and nothing is changed.

    Units get labels by shape, kind, role and place in the graph (`_refined`). Pairs with one label on both sides stay;
    the sources of the others are handed out anew (`_handed_out`). It is done only if no pair contradicts the graphs
    then. A target with another source than before has the graphs as its only evidence afterwards, and all questions
    about which of several look-alikes it is are answered. Nothing is done if the places are known of fewer than 2 or
    more than 1500 pairs.
    """
    places = [at for at, pair in enumerate(matching.pairs) if all(unit.flow is not None for unit in pair)]
    placed = [matching.pairs[at] for at in places]
    if not 1 < len(placed) <= _MOST:
        return False
    sides = [_Graph([pair[side] for pair in placed]) for side in (0, 1)]
    roles = _roles(placed)
    if not _contradicted(sides, roles, range(len(placed))):
        return False
    looks = [[(pair[0].colour, own) for pair, own in zip(placed, side, strict=True)] for side in roles]
    labels = _last(_refined(looks, sides))
    kept = [own == theirs for own, theirs in zip(*labels, strict=True)]
    first = [[at if kept[at] else look for at, look in enumerate(side)] for side in looks]
    sources = _handed_out(placed, _last(_refined(first, sides)))
    if sources is None or _contradicted(sides, roles, sources):
        return False
    for at, new in enumerate(sources):
        if new != at:
            t = placed[at][0]
            matching.pairs[places[at]] = t, placed[new][1]
            for topic in _WHICH:
                t.questions = answered(t.questions, topic, _ANSWER)
            t.exchange("places in both graphs", Kind.GRAPHS)
    return True


def _contradicted(sides: Sequence[_Graph], roles: Sequence[Sequence[str]], sources: Sequence[int]) -> bool:
    """Return whether any target has another role in an attention than its source (ROLES, see `_roles`), or comes after
    other layers: the sources of the units before it in the target's graph are not exactly the units before its source
    in the source's graph. SIDES has (graph of the target, graph of the source); SOURCES has, for each unit of the
    target, the number of its source in the source's graph.
    """
    own, theirs = sides
    return any(
        roles[0][at] != roles[1][sources[at]] or {sources[n] for n in before} != {*theirs.before[sources[at]]}
        for at, before in enumerate(own.before)
    )


def _roles(placed: Sequence[Pair]) -> tuple[list[str], list[str]]:
    """Return (role of each target of PLACED, role of each source) in an attention: "q", "k", "v", or "" for others.
    All units of one colour have "" if the two codes do not show each role of them equally often.
    """
    held: dict[Hashable, tuple[Counter[str], Counter[str]]] = defaultdict(lambda: (Counter(), Counter()))
    for t, s in placed:
        for counted, unit in zip(held[t.colour], (t, s), strict=True):
            counted[unit.attends] += 1
    seen = {colour for colour, (own, theirs) in held.items() if own == theirs}
    own, theirs = ([pair[side].attends if pair[0].colour in seen else "" for pair in placed] for side in (0, 1))
    return own, theirs


def _last(labels: Iterable[list[list[int]]]) -> list[list[int]]:
    """Return the last, finest one of LABELS, the rounds of `_refined`; [[], []] if there are none."""
    last: list[list[int]] = [[], []]
    for last in labels:  # noqa: B007
        pass
    return last


def _handed_out(placed: Sequence[Pair], labels: list[list[int]]) -> list[int] | None:
    """Return, for the target of each pair in PLACED, the number (place in PLACED) of the pair whose source it gets: its
    own if target and source have the same label, else that of a source with the label of the target. LABELS has [the
    labels of the targets, those of the sources], in the order of PLACED.

    None if a label is not on both sides equally often; if words exclude all of the sources that a target may get, or
    leave several; or if a target would lose a source with its own path.
    """
    own, theirs = labels
    if Counter(own) != Counter(theirs):
        return None
    free: dict[int, list[int]] = defaultdict(list)
    for at, label in enumerate(theirs):
        if own[at] != label:
            free[label].append(at)
    sources = list(range(len(placed)))
    for at, label in enumerate(own):
        if label != theirs[at]:
            t, s = placed[at]
            fitting = [n for n in free[label] if hard_conflict(t.words, placed[n][1].words) is None]
            if len(fitting) != 1 or t.path == s.path:
                return None
            sources[at] = fitting[0]
            free[label].remove(fitting[0])
    return sources


class _Graph:
    """What comes before each unit of one side, and what behind it, at any distance.

    Args:
        units: the units, which all have a place in the graph.
    Attributes:
        before, behind: for each unit, the numbers (places in UNITS) of those before it, and of those behind it.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        flows = [flow for unit in units if (flow := unit.flow) is not None]
        self.before = [[n for n, one in enumerate(flows) if one.into(flow)] for flow in flows]
        self.behind: list[list[int]] = [[] for _ in flows]
        for at, before in enumerate(self.before):
            for n in before:
                self.behind[n].append(at)


def _alone(placed: Sequence[Pair], sides: Sequence[_Graph], open_to: Container[int]) -> list[Unit]:
    """Return the targets in OPEN_TO (a set of `id`) whose label is that of their source and of no other unit of either
    side; [] if there are none. PLACED has the pairs, SIDES the graphs of both sides.

    At first, a label is shape, kind and role in an attention (`_roles`); pairs without an open question have a label of
    their own. Labels are made finer by the units before and behind (`_refined`) until there are such targets.
    """
    known = [None if t.doubts else at for at, (t, _) in enumerate(placed)]
    first = [
        [(t.colour, role, at) for (t, _), role, at in zip(placed, own, known, strict=True)] for own in _roles(placed)
    ]
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


def _refined(first: Sequence[Sequence[Hashable]], sides: Sequence[_Graph]) -> Iterator[list[list[int]]]:
    """Yield [labels of the units of the target, labels of those of the source]: first FIRST as numbers, then finer with
    each round. Units get equal new labels if their old labels are equal, and those of all units before and behind them
    in their graph, with how often each is there. Stop when neither side gets more different labels.

    FIRST has, for each side, the labels that its units have at first. SIDES has the graphs.
    """
    names: dict[Hashable, int] = {}
    labels = [[names.setdefault(label, len(names)) for label in own] for own in first]
    before: list[list[int]] = [[], []]
    while any(len({*new}) > len({*old}) for new, old in zip(labels, before, strict=True)):
        yield labels
        names, before = {}, labels
        labels = [
            [
                names.setdefault((own[at], _held(own, graph.before[at]), _held(own, graph.behind[at])), len(names))
                for at in range(len(own))
            ]
            for own, graph in zip(before, sides, strict=True)
        ]


def _held(labels: Sequence[int], members: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (label, how often) for those of LABELS at the places MEMBERS."""
    return tuple(sorted(Counter(labels[n] for n in members).items()))


def _asked(unit: Unit) -> bool:
    return any(question.reason.topic in _WHICH for question in unit.doubts)


__all__ = ["pair_by_flow", "settle_by_flow"]
