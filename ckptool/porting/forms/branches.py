"""Parallel branches, which code may register in any order: do both sides register them in one order?

Layers that feed each other are usually registered in the order of execution. Nothing orders the branches of a block,
the two towers of a model, or queries, keys and values. If two of them look alike, an order on both sides says little
about which is which, unless branches that cannot be confused show that this code keeps the order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import and_

from ...model_code.signature import Flow
from ..matching.units import Pair, Unit, series, take_turns, template

#: For two pairs: 1 where both sides have them in one order, -1 where not, 0 where that is not known.
Vote = Callable[[Pair, Pair], int]
#: The place of a unit of the target in an order; None if it has none.
Place = Callable[[Unit], float | None]

#: So many couples of branches that cannot be confused have to be in order: in modules of the kind of a module, or in
#: all modules; and this share of them.
_ENOUGH, _ENOUGH_ELSEWHERE, _KEPT = 2, 3, 0.85
#: In modules with more children than this, not all couples are looked at.
_MOST = 24


def beside(one: Unit, other: Unit) -> bool:
    """Return whether ONE and OTHER are parallel, by their main tensors: the output of neither flows into the first
    input of the other, directly or through other layers. False if a forward pass was not followed, or does not use one
    of them.
    """
    a, b = one.main.entry.facts.flow, other.main.entry.facts.flow
    return a is not None and b is not None and a.beside(b)


def flows_into(one: Unit, other: Unit) -> bool:
    """Return whether the output of ONE flows into the first input of OTHER, directly or through other layers, by their
    main tensors. False if a forward pass was not followed, or does not use one of them.
    """
    a, b = one.main.entry.facts.flow, other.main.entry.facts.flow
    return a is not None and b is not None and a.into(b)


def in_channel_order(units: Sequence[Unit]) -> None:
    """Change the places of UNITS in the order of execution (`used`, `turn`): where one layer takes the concatenated
    outputs of several branches, the units of these branches share their places anew, branch by branch in the order of
    the concatenation. Units that are in several of the branches, or in none, keep their places. So do all branches of a
    layer if one of their last layers is no unit of UNITS that the forward pass is known to use. The `turn` of all UNITS
    is counted anew in any case.

    Code may compute branches in any order, but the order of their channels is in the weights of the layer that takes
    them, which both sides share.
    """
    flows: dict[str, Flow] = {}
    numbered: dict[int, Unit] = {}
    for unit in units:
        flow = unit.main.entry.facts.flow
        if unit.used is not None and flow is not None:
            flows[unit.main.entry.key] = flow
            numbered[flow.number] = unit
    for unit in units:
        end = flows.get(unit.main.entry.key)
        parts = [flows.get(key) for key, _ in unit.main.entry.facts.joined]
        if end is None or len(parts) < 2 or None in parts:
            continue
        branches = _branches([part for part in parts if part is not None], end, numbered)
        places = sorted(u.used or 0.0 for branch in branches for u in branch)
        members = [u for branch in branches for u in sorted(branch, key=lambda u: u.used or 0.0)]
        for member, place in zip(members, places, strict=True):
            member.used = place
    take_turns(units)


def _branches(parts: Sequence[Flow], end: Flow, numbered: Mapping[int, Unit]) -> list[list[Unit]]:
    """Return, for each of PARTS in order, the units of its branch that are in no other branch; [] for a branch without
    any. A unit is in a branch if the output of the branch's last layer was computed from it, or if it is between that
    layer and END. Units before all branches are left out.

    Args:
        parts: the places of the last layers of the branches in the graph.
        end: the place of the layer that takes all branches.
        numbered: number in the graph (`Flow.number`) -> unit, for all units.
    """
    found: list[list[Unit]] = [[] for _ in parts]
    before = [part.before | part.bit for part in parts]
    rest = end.before & ~reduce(and_, before)
    while rest:
        number = (rest & -rest).bit_length() - 1
        rest &= rest - 1
        unit = numbered.get(number)
        flow = None if unit is None else unit.main.entry.facts.flow
        if unit is None or flow is None:
            continue
        inside = [at for at, part in enumerate(parts) if before[at] & flow.bit or flow.before & part.bit]
        if len(inside) == 1:
            found[inside[0]].append(unit)
    return found


class Branches:
    """Answers whether both sides keep an order in parallel branches, as branches that cannot be confused show it.

    Args:
        pairs: the matched pairs.
        content: returns the contents of a module of the target by its path.
        votes: name of an order -> (function that returns 1 if two pairs keep it, -1 if they reverse it, 0 if that is
            not known; function that returns the place of a unit of the target in it).
    """

    def __init__(
        self,
        pairs: Iterable[Pair],
        content: Callable[[tuple[str, ...]], Hashable],
        votes: dict[str, tuple[Vote, Place]],
    ) -> None:
        self._content, self._votes = content, votes
        parts: dict[tuple[str, ...], dict[str, list[Pair]]] = defaultdict(lambda: defaultdict(list))
        for pair in pairs:
            path = pair[0].path
            for at in range(len(path)):
                parts[path[:at]][path[at]].append(pair)
        self._kind = {path: _kind(path, held) for path, held in parts.items()}
        #: (order, kind of module, whether look-alikes are in a numbered list) or (order, two branches in such a
        #: module) -> how many couples of branches keep the order (True) and reverse it (False).
        self._kept: dict[tuple[Hashable, ...], Counter[bool]] = defaultdict(Counter)
        self._counted: set[tuple[Hashable, ...]] = set()
        for path, held in parts.items():
            self._count(path, held)

    def _count(self, path: tuple[str, ...], held: Mapping[str, list[Pair]]) -> None:
        """Count how many couples of parts of the module PATH keep each order, and how many reverse it (`_vote`). HELD
        has name of a part -> the pairs in it. The first pair without a doubt stands for a part.

        A couple is two of the first 24 parts. It is left out if the contents of the two are equal, if one takes the
        output of the other, if one has no pair without a doubt, or if these pairs are not known to be parallel.

        A couple that keeps an order is counted for its own two branches alone if an earlier couple of this module comes
        from the same choice of the code, whatever that couple says: each of its two parts is one part of this couple
        (not both the same), or before or behind one in the forward pass (`q`, `k` for `q_norm`, `k_norm`). A couple is
        also counted for look-alikes in a numbered list, but no more, if an earlier couple about this order has equal
        contents in the same order (one branch, and another look-alike).
        """
        apart = _Apart(held)
        seen: list[tuple[str, str]] = []
        looks: set[tuple[Hashable, ...]] = set()
        for a, b in combinations(list(held)[:_MOST], 2):
            if self._content((*path, a)) == self._content((*path, b)) or not apart(a, b):
                continue
            one, other = _first(held[a]), _first(held[b])
            if one is None or other is None or not beside(one[0], other[0]):
                continue
            # Beside layers that follow each other, a branch is one choice of the code: it confirms an order once.
            again = any(not apart(a, c) and not apart(b, d) for c, d in (*seen, *((d, c) for c, d in seen)))
            seen.append((a, b))
            for name, (vote, place) in self._votes.items():
                said = vote(one, other)
                if not said:
                    continue
                # So is a branch before several look-alikes, or after them: it says nothing about their own order.
                turned = (place(one[0]) or 0.0) > (place(other[0]) or 0.0)
                both = (name, *(self._content((*path, part)) for part in ((b, a) if turned else (a, b))))
                self._vote(name, path, (a, b), kept=said > 0, known={True: again, False: again or both in looks})
                looks.add(both)

    def _vote(
        self, name: str, path: tuple[str, ...], branches: tuple[str, str], *, kept: bool, known: Mapping[bool, bool]
    ) -> None:
        """Count in `_kept` that the two BRANCHES of the module PATH keep the order NAME (KEPT), or reverse it (not
        KEPT): for these two branches, for modules of this kind, and for all modules.

        The count for the two branches has every call. The others have the same answer about the same two branches in
        modules of one kind only once, because these are one choice of the code. Of each of the others there is one
        count for look-alikes in a numbered list (True in KNOWN), and one for others (False); KNOWN says for which
        another couple has confirmed the order already, so that only a reversal is counted there.
        """
        kind, both = self._kind[path], sorted(branches)
        choice = (name, kind, *both, kept)
        for counted, again in known.items():
            if choice not in self._counted and not (kept and again):
                self._kept[name, kind, counted][kept] += 1
                self._kept[name, None, counted][kept] += 1
        self._counted.add(choice)
        self._kept[name, (kind, *both)][kept] += 1

    def shown(self, one: Pair, other: Pair, order: str) -> bool:
        """Return whether both sides keep the order named ORDER between parallel branches, so that it may tell the pairs
        ONE and OTHER apart. The branches are the two where the paths of their target units part; False if one of these
        paths is in the other.

        If the same two branches were counted in modules of this kind, the result is whether none of them reverses the
        order, and nothing else counts. Else couples of other branches decide:

          - those in modules of this kind, if there are two or more, or one that reverses the order: True if at least
            two of them, and 85 percent, keep it;
          - else those in all modules, if there are three or more, or one that reverses it: True if at least three of
            them, and 85 percent, keep it;
          - else the result is False.

        Look-alikes beside one branch count once, unless one side has ONE and OTHER in a numbered list.
        """
        at = next((i for i, (a, b) in enumerate(zip(one[0].path, other[0].path, strict=False)) if a != b), None)
        if at is None:  # one is a module in the other
            return False
        kind = self._kind[one[0].path[:at]]
        same = self._kept[order, (kind, *sorted((one[0].path[at], other[0].path[at])))]
        if same[False] or same[True]:
            return not same[False]
        counted = any(series(one[side]) == series(other[side]) for side in (0, 1))  # which is an order of its own
        here, elsewhere = (self._kept[order, one_kind, counted] for one_kind in (kind, None))
        for counts, enough in ((here, _ENOUGH), (elsewhere, _ENOUGH_ELSEWHERE)):
            if counts.total() >= enough or counts[False]:
                return counts[True] >= max(_KEPT * counts.total(), enough)
        return False


class _Apart:
    """Tells which parts of a module do not take each other's output.

    Args:
        held: name of a part -> the pairs in it.
    """

    def __init__(self, held: Mapping[str, Iterable[Pair]]) -> None:
        self._own: dict[str, int] = defaultdict(int)
        self._before: dict[str, int] = defaultdict(int)
        for name, pairs in held.items():
            for t, _ in pairs:
                if (flow := t.main.entry.facts.flow) is not None:
                    self._own[name] |= flow.bit
                    self._before[name] |= flow.before

    def __call__(self, a: str, b: str) -> bool:
        """Return whether A and B are the names of two parts, and neither takes the output of the other."""
        return a != b and not (self._before[a] & self._own[b] or self._before[b] & self._own[a])


def _kind(path: tuple[str, ...], held: Iterable[str]) -> Hashable:
    """Return a value that is equal for modules of one class: the names HELD inside the module, or, if all of these are
    numbers, its path PATH without numbers.
    """
    names = frozenset(held)
    return template(path) if all(name.isdecimal() for name in names) else names


def _first(pairs: list[Pair]) -> Pair | None:
    """Return the first of PAIRS whose unit of the target has no doubt; None if all have one."""
    return next((pair for pair in pairs if not pair[0].doubts), None)
