"""Lists that take the outputs of another list, its levels, and may be numbered by level or in order of execution.

A decoder goes from the coarsest level to the finest. Some code numbers its blocks by the level that they take, other
code in order of execution; if all have one size, nothing else shows which. The forward pass shows how the model numbers
them; the source may do either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise

from ..questions import Reason
from ..words import table, words_of
from .cells import Cells
from .counting import Row, direction, rows
from .series import NUMBER, Relation, Series
from .units import Unit

#: Lists with more members than this are no levels.
_MOST = 12


@dataclass(slots=True)
class _Part:
    """One member of a list: its weights and the weights whose outputs it takes (`own`, `before`: bits, see `Flow`), its
    first use (infinite if not known), and how many units of each colour it has.
    """

    own: int = 0
    before: int = 0
    used: float = float("inf")
    looks: Counter[Hashable] = field(default_factory=Counter)


class Levels:
    """The numbered lists of both sides with more than one member. It answers whether a list of the model is numbered
    against the levels that it takes, lists of the model whose outputs its members take one by one, and whether a list
    is numbered or run from its other end.
    """

    def __init__(self, cells: Cells) -> None:
        self._lists: dict[bool, dict[Row, dict[int, _Part]]] = {
            True: _lists(cells.targets),
            False: _lists(cells.sources),
        }
        self._known: dict[tuple[Row, Row], int] = {}

    def against(self, own: Series, theirs: Series) -> int:
        """Return whether the forward pass speaks against pairing the members of a list by equal numbers: 0, 1 or -1.

        Args:
            own, theirs: the list in the model and in the source, as series.

        Returns:
            0: No, nothing speaks against it; also if the model's list does not have 2 to 12 members.
            1: Yes, and it is not known how the source counts. Either only one side's numbers are sizes
                (`_are_sizes`), or the members take the outputs of another list of the model in the opposite order
                (`_opposite_levels`).
            -1: Yes: the members take the outputs of another list in the opposite order, and the source counts by levels
                (`_counts_by_levels`), so that its first member is the partner of the model's last.
        """
        both = own.partition("{}")[0], theirs.partition("{}")[0]
        if both not in self._known:
            self._known[both] = self._look_up(*both)
        return self._known[both]

    def _look_up(self, own: Row, theirs: Row) -> int:
        """Return the result of `against` for the lists OWN (of the model) and THEIRS (of the source): 0 if nothing
        speaks against equal numbers, 1 if something does, -1 if the source is known to count from the other end.
        """
        if not 2 <= len(self._lists[True].get(own, {})) <= _MOST:
            return 0
        if self._are_sizes(own, theirs):
            return 1
        levels = self._opposite_levels(own)
        return 0 if not levels else -1 if self._counts_by_levels(theirs, levels) else 1

    def _are_sizes(self, own: Row, theirs: Row) -> bool:
        """Return whether just one of the lists OWN (of the model) and THEIRS (of the source) says by its name that its
        numbers are sizes: `scale0` may be the smallest, while `discriminators.0` sees the whole picture. False if they
        do not have equally many members, if members of OWN take each other's outputs, or if it is not known where a
        member of OWN is in the forward pass.
        """
        members, others = self._lists[True][own], self._lists[False].get(theirs, {})
        followed = own in self._apart and all(part.own for part in members.values())
        return followed and len(members) == len(others) and _of_sizes(own) != _of_sizes(theirs)

    def _opposite_levels(self, own: Row) -> list[dict[int, _Part]]:
        """Return the levels of the list OWN that are numbered in the opposite order: lists of the model, each as number
        -> member, whose outputs the members of OWN take one by one (`_takes` is -1). [] if there are none. A list is
        left out if it has the path of OWN apart from numbers, more members than OWN, more than 12, or members that take
        each other's outputs.
        """
        members = self._lists[True][own]
        return [
            levels
            for row, levels in self._apart.items()
            if len(levels) <= len(members) and _kind(row) != _kind(own) and _takes(members, levels) < 0
        ]

    def _counts_by_levels(self, theirs: Row, levels: list[dict[int, _Part]]) -> bool:
        """Return whether names show that the list THEIRS of the source is numbered by levels: its numbers are parts of
        names (`up3`), and so are those of another list of the source (`stage3`) that is the levels, with the same
        numbers as THEIRS, and with members that have the contents of the members of one of LEVELS, lists of the model,
        in any order.
        """
        numbers = self._lists[False].get(theirs, {}).keys()
        looks = [Counter(_in_turn(members)) for members in levels]
        return _in_name(theirs) and any(
            _in_name(row) and members.keys() == numbers and Counter(_in_turn(members)) in looks
            for row, members in self._lists[False].items()
            if row != theirs
        )

    @cached_property
    def turned(self) -> dict[Row, dict[int, tuple[Row, int]]]:
        """Return list of the target -> number -> (list of the source, number there), for each two lists whose contents
        (units of each colour) are equal if one is read from its end: the lowest number of the target has the highest of
        the source.

        Left out are lists of the target that the model does not run from the last member to the first (`runs_back`),
        because contents alone may also differ by missing layers; lists that have the contents of a list of the other
        side read from the start; and lists that fit several lists of the other side.
        """
        ours, theirs = ({row: _in_turn(m) for row, m in self._lists[side].items()} for side in (True, False))
        in_turn = {*ours.values()}, {*theirs.values()}
        from_the_end: dict[tuple[Hashable, ...], list[Row]] = defaultdict(list)
        for other, contents in theirs.items():
            if contents not in in_turn[0]:
                from_the_end[contents[::-1]].append(other)
        fitting: Relation[Row] = Relation(
            (own, other)
            for own, contents in ours.items()
            if self.runs_back(own) and contents not in in_turn[1]
            for other in from_the_end.get(contents, ())
        )
        found = {}
        for own, other in fitting.sure().items():
            places = sorted(self._lists[False][other], reverse=True)
            found[own] = {n: (other, place) for n, place in zip(sorted(self._lists[True][own]), places, strict=True)}
        return found

    def runs_back(self, series: Series) -> bool:
        """Return whether the model runs the list SERIES (a series, or its beginning before the number) from its highest
        number to its lowest: each member takes the output of the member with the next higher number, directly or
        through other layers, and does not give it its own. False if the list does not have 2 to 12 members, or if the
        forward pass is not known.
        """
        members = self._lists[True].get(series.partition("{}")[0], {})
        run = [members[number] for number in sorted(members, reverse=True)]
        return 2 <= len(run) <= _MOST and all(b.before & a.own and not a.before & b.own for a, b in pairwise(run))

    @cached_property
    def _apart(self) -> dict[Row, dict[int, _Part]]:
        """Return the lists of the model, of 2 to 12 members, whose members do not take each other's outputs, neither
        directly nor through other layers: list -> number -> member.
        """
        return {
            row: members
            for row, members in self._lists[True].items()
            if len(members) <= _MOST
            and not any(a.before & b.own or b.before & a.own for a, b in combinations(members.values(), 2))
        }


def reason_against(against: int) -> Reason:
    """Return the reason to ask for AGAINST, a result of `Levels.against` other than 0."""
    return Reason.AGAINST_LEVELS if against > 0 else Reason.LEVELS_FROM_THE_OTHER_END


def _of_sizes(row: Row) -> bool:
    """Return whether the last word of the name of the list ROW says that its numbers are sizes (`scale0`)."""
    return not table().sizes.isdisjoint(w.removesuffix("s") for w in words_of(row.rstrip(".").split("."))[-1:])


def _kind(row: Row) -> Row:
    """Return the list ROW without the numbers in its path."""
    return NUMBER.sub("", row)


def _lists(units: Iterable[Unit]) -> dict[Row, dict[int, _Part]]:
    """Return list -> number -> member, for each numbered list around UNITS, of one side, with more than one member. A
    list is the beginning of paths before a number: "blocks." of `blocks.3.norm1`.
    """
    found: dict[Row, dict[int, _Part]] = defaultdict(lambda: defaultdict(_Part))
    for unit in units:
        flow = unit.flow
        for row, number in rows(unit.path):
            part = found[row][number]
            part.looks[unit.colour] += 1
            part.used = min(part.used, part.used if unit.used is None else unit.used)
            if flow is not None:
                part.own |= flow.bit
                part.before |= flow.before
    return {row: dict(members) for row, members in found.items() if len(members) > 1}


def _in_turn(members: Mapping[int, _Part]) -> tuple[Hashable, ...]:
    """Return the contents of each of MEMBERS, in the order of their numbers: how many units of each colour it has."""
    return tuple(frozenset(members[number].looks.items()) for number in sorted(members))


def _takes(members: dict[int, _Part], levels: dict[int, _Part]) -> int:
    """Return 1 if MEMBERS of a list take the outputs of LEVELS, another list, one by one in the same order, -1 if in
    the opposite order, 0 if neither. Both are number -> member.

    If several members take the output of a level, directly or through others, the one that the model runs first counts.
    0 if there is a level whose output no member takes, if one member counts for two levels, if a member and a level
    share layers, if the numbers neither all rise nor all fall together, or if there is only one level.
    """
    if any(part.own & level.own for part in members.values() for level in levels.values()):
        return 0
    taken = {}
    for number, level in levels.items():
        having = [n for n, part in members.items() if part.before & level.own]
        if not having:
            return 0
        taken[min(having, key=lambda n: members[n].used)] = number
    return direction(combinations(taken.items(), 2)) if len(taken) == len(levels) else 0


def _in_name(row: Row) -> bool:
    """Return whether the numbers of the list ROW are parts of names (`stage3`), and not indices of a list of modules
    (`stage.3`).
    """
    return row.rpartition(".")[2] != ""
