"""How both sides count the members of a list: from the same end, or from opposite ends.

Code numbers the layers of a list in order of execution, as levels, or from the other end: the coarsest block of a
decoder, which goes back through the levels of an encoder, is first or last. Known pairs of members show how all members
are counted: by two pairs in one order on both sides, or by one pair that is not equally far from the start of both
lists.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise

from .evidence import Kind
from .series import NUMBER, series_of
from .units import Unit

#: The number of a member in a list; for lists in lists, all numbers in its path.
Number = int | tuple[int, ...]
#: A member of a list: (its number in the target, its number in the source).
Member = tuple[Number, Number]

#: What stands before a number in a path: `blocks` of `blocks.3.norm1` and `level` of `level3.norm1`.
Row = str

#: So many members of a list are compared each with each.
_MOST = 24
#: So many members of other sizes make a list that is known by them.
_UNLIKE = 3


def direction(couples: Iterable[tuple[Member, Member]]) -> int:
    """Return 1 if the numbers of all COUPLES are in one order on both sides, -1 if those of all are in opposite orders;
    else 0. A couple is two members, each (number in the target's list, number in the source's list); those with equal
    numbers in the target's list do not count. 0 if no couple counts.

    Two members with equal numbers in the source's list, but not in the target's, count as in opposite orders: the
    numbers of two such lists do not correspond, and in opposite orders, equal numbers are no evidence.
    """
    up = {a[1] < b[1] for a, b in map(sorted, couples) if a[0] != b[0]}  # type: ignore[operator]
    return 0 if len(up) != 1 else 1 if up == {True} else -1


def counted(own: Collection[Number], theirs: Collection[Number], known: Collection[Member] = ()) -> int:
    """Return 1 if the two sides count two lists from the same end, -1 if from opposite ends, 0 if KNOWN contradicts
    both. 1 if KNOWN is empty.

    If OWN and THEIRS are equally many, they are paired in the order of their numbers, from the same end; if these pairs
    and KNOWN together rise on both sides, it is 1. Else they are paired from opposite ends; if these pairs and KNOWN
    together rise on one side and fall on the other, it is -1, and else 0. If OWN and THEIRS are not equally many, KNOWN
    alone decides in the same way, and it is 1 if KNOWN has fewer than two numbers of the target.

    Args:
        own, theirs: the numbers of the members to be paired.
        known: (number of the target, number of the source) of other members of the two lists that are paired.
    """
    if not known:
        return 1
    if len(own) != len(theirs):  # which of them are each other is open
        couples = [(a, b) for a, b in pairwise(sorted(known)) if a[0] != b[0]]
        return direction(couples) if couples else 1
    for sign in (1, -1):
        pairs = sorted([*known, *zip(sorted(own), sorted(theirs, reverse=sign < 0), strict=True)])
        if direction(pairwise(pairs)) == sign:
            return sign
    return 0


def turned(own: Mapping[int, Hashable], theirs: Mapping[int, Hashable]) -> bool:
    """Return whether two lists have unequal contents in the order of their numbers, and equal ones if one list is read
    from its end. OWN and THEIRS have number of a member -> its contents.
    """
    ours, other = ([side[n] for n in sorted(side)] for side in (own, theirs))
    return ours != other and ours == other[::-1]


def directions(pairs: Collection[tuple[Unit, Unit]], *, one: bool = False) -> dict[tuple[Row, Row], int]:
    """Return (list of the target, list of the source) -> 1 if both sides count the members from the same end, -1 if
    from opposite ends, as PAIRS (target, source) show. Each list around a target (`rows`) is compared with each list
    around its source. Couples of lists of which PAIRS do not show it are left out.

    Couples of members with different contents (colours of their targets) show it, if all agree (`direction`). If there
    are none, or they contradict each other, all couples of members show it, if they agree and other lists of the same
    two modules support it: by members with different contents, at least one list shows the same (two for opposite
    ends), and none shows the contrary. With ONE, one is enough for opposite ends if the list beside it told a member
    from the others. Of a list with more than 24 members, 24 to 47 are compared.
    """
    lists: dict[tuple[Row, Row], dict[tuple[int, int], Counter[Hashable]]] = defaultdict(lambda: defaultdict(Counter))
    told_beside: set[tuple[Row, Row]] = set()
    for t, s in pairs:
        theirs = rows(s.path)
        for row, number in rows(t.path):
            for other, place in theirs:
                lists[row, other][number, place][t.colour] += 1
                if one and t.told_by(Kind.SERIES_BESIDE):
                    told_beside.add((row, other))
    found: dict[tuple[Row, Row], int] = {}
    alike: dict[tuple[Row, Row], int] = {}
    beside: dict[tuple[Row, Row], Counter[int]] = defaultdict(Counter)
    for both, members in lists.items():
        couples = list(combinations(list(members)[:: max(len(members) // _MOST, 1)], 2))
        shown = direction((a, b) for a, b in couples if members[a] != members[b])
        beside[_around(both)][shown] += 1
        if shown:
            found[both] = shown
        else:
            alike[both] = direction(couples)
    for both, way in alike.items():  # of members that all look alike, what several lists beside it show
        told = beside[_around(both)]
        if way and not told[-way] and told[way] > (way < 0 and both not in told_beside):
            found[both] = way
    return found


def _around(both: tuple[Row, Row]) -> tuple[Row, Row]:
    """Return (path of the module around the list of the target, path of that around the list of the source) for BOTH
    lists; "" for the outermost module.
    """
    own, theirs = (row.rstrip(".").rpartition(".")[0] for row in both)
    return own, theirs


def of_unlike_sizes(pairs: Collection[tuple[Unit, Unit]]) -> set[int]:
    """Return the `id` of each target of PAIRS (target, source) in a series whose pairs cannot be chance: at least three
    pairs, with at least three different colours, have their targets in one series and their sources in another, and all
    pairs of these two series have one difference between their numbers (`conv1`, `conv2`, `conv3` and `c.0`, `c.1`,
    `c.2`).
    """
    lists: dict[tuple[str, str], list[tuple[int, int, Unit]]] = defaultdict(list)
    for t, s in pairs:
        theirs = list(series_of(s.path))
        for own, number in series_of(t.path):
            for other, place in theirs:
                lists[own, other].append((number, place, t))
    found: set[int] = set()
    for members in lists.values():
        numbers = {(number, place) for number, place, _ in members}
        steps = {place - number for number, place in numbers}
        if len(steps) == 1 and min(len(members), len({t.colour for *_, t in members})) >= _UNLIKE:
            found |= {id(t) for *_, t in members}
    return found


def rows(path: Sequence[str]) -> list[tuple[Row, int]]:
    """Return the lists around a path, the outermost first, each with the path's number in it: `blocks.3.norm1` gives
    ("blocks.", 3) and ("blocks.3.norm", 1). [] for a path without numbers.
    """
    text = ".".join(path)
    return [(text[: found.start()], int(found[0])) for found in NUMBER.finditer(text)]


def row_of(one: Unit, other: Unit) -> Row | None:
    """Return the beginning of the paths of ONE and OTHER before the first number in which they differ, which is "" in
    the outermost list (`0.conv`); None if no number differs. The paths are equal apart from numbers.
    """
    both = zip(rows(one.path), rows(other.path), strict=False)
    return next((row for (row, number), (_, place) in both if number != place), None)
