"""Lists of two sides, and from which end each counts what is in it.

Code numbers the layers of a list as they come, as levels, or from the other end: a decoder that goes back through the
levels of an encoder has its coarsest block first or last. What is known of some members says how all are counted: two
that lie in one order on both sides, or one that is not as far from the start in the one list as in the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise

from .series import NUMBER, series_of
from .units import Unit

#: The number of something in a list; where lists stand in lists, all numbers around it.
Number = int | tuple[int, ...]
#: What both sides number it.
Member = tuple[Number, Number]

#: What stands before a number in a path: `blocks` of `blocks.3.norm1` and `level` of `level3.norm1`.
Row = str

#: So many members of a list are compared each with each.
_MOST = 24
#: So many members of other sizes make a list that is known by them.
_UNLIKE = 3


def direction(couples: Iterable[tuple[Member, Member]]) -> int:
    """Whether the numbers of one side go up as those of the other do (1), go down (-1), or nothing is known (0).

    Args:
        couples: two members each; those of one number say nothing.
    """
    up = {(a[0] < b[0]) == (a[1] < b[1]) for a, b in couples if a[0] != b[0]}  # type: ignore[operator]
    return 0 if len(up) != 1 else 1 if up == {True} else -1


def counted(own: Collection[Number], theirs: Collection[Number], known: Collection[Member] = ()) -> int:
    """How members of two lists are counted: from one end (1), from opposite ends (-1), or neither fits (0).

    Both lists are counted from one end unless members that are known to be each other exclude that.

    Args:
        own, theirs: the numbers of members of which it is asked which is which.
        known: others of the two lists that are known to be each other.
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
    """Whether the contents of the members of two lists, by number, are the same from opposite ends and not from one."""
    ours, other = ([side[n] for n in sorted(side)] for side in (own, theirs))
    return ours != other and ours == other[::-1]


def backwards(pairs: Collection[tuple[Unit, Unit]]) -> set[tuple[Row, Row]]:
    """The lists (of the target, of the source) that members of unlike content show to be counted from opposite ends.

    Args:
        pairs: what was matched.
    """
    lists: dict[tuple[Row, Row], dict[tuple[int, int], Counter[Hashable]]] = defaultdict(lambda: defaultdict(Counter))
    for t, s in pairs:
        theirs = rows(s.path)
        for row, number in rows(t.path):
            for other, place in theirs:
                lists[row, other][number, place][t.colour] += 1
    found, alike = set(), set()
    beside: dict[tuple[Row, Row], Counter[int]] = defaultdict(Counter)
    for both, members in lists.items():
        couples = list(combinations(list(members)[:: max(len(members) // _MOST, 1)], 2))
        shown = direction((a, b) for a, b in couples if members[a] != members[b])
        beside[_around(both)][shown] += 1
        if shown < 0:
            found.add(both)
        elif not shown and direction(couples) < 0:
            alike.add(both)
    # of members that all look alike, what several lists beside it show
    return found | {both for both in alike if beside[_around(both)][-1] > 1 and not beside[_around(both)][1]}


def _around(both: tuple[Row, Row]) -> tuple[Row, Row]:
    """Where two lists stand."""
    own, theirs = (row.rstrip(".").rpartition(".")[0] for row in both)
    return own, theirs


def of_unlike_sizes(pairs: Collection[tuple[Unit, Unit]]) -> set[int]:
    """The targets (ids) in lists of which all members have other sizes, and go to those of one list, number by number.

    That three sizes or more come in one order in two lists by chance is not to be expected.

    Args:
        pairs: (target, source) that could be each other, whatever speaks for it.
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
    """The lists that a path is in, each with its number there."""
    text = ".".join(path)
    return [(text[: found.start()], int(found[0])) for found in NUMBER.finditer(text)]


def row_of(one: Unit, other: Unit) -> Row:
    """The list in which two units that are the same but for numbers have different ones, the outermost."""
    both = zip(rows(one.path), rows(other.path), strict=False)
    return next((row for (row, number), (_, place) in both if number != place), "")
