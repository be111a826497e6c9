"""Compare the contents of modules: if only one of two pairings has equal contents, no order is needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from ..matching.match import Matching
from ..matching.units import Pair, Path, Unit, nearness

#: The first and the last place of some layers in the order of execution.
_Run = tuple[float, float]
_NOWHERE = (0.0, 0.0)


class Contents:
    """The contents of modules: how many units of each shape and kind every module of both sides holds, and every list
    of units; they tell whether two pairs may be swapped.

    Args:
        matching: the pairs, and the units without a partner.
    """

    def __init__(self, matching: Matching) -> None:
        sides = ([pair[side] for pair in matching.pairs] + matching.unpaired(side) for side in (0, 1))
        self._held = [_held(units) for units in sides]
        self.see_runs(matching.pairs)

    def see_runs(self, pairs: Iterable[Pair]) -> None:
        """Take PAIRS, all pairs as they are now, in place of earlier ones: `run_only_so` looks at these."""
        self._used = [pair for pair in pairs if pair[0].used is not None]
        self._runs: dict[tuple[Path, Path, Hashable], tuple[_Run, _Run]] = {}

    def of_target(self, path: Path) -> Hashable:
        """Return the contents of the module PATH of the target, which can be compared: how many units of each shape and
        kind are in it, at any depth.
        """
        return frozenset(self._held[0][path].items())

    def fit_only_so(self, one: Pair, other: Pair) -> bool:
        """Return whether contents exclude the swap of the pairs ONE and OTHER: in each pair, the contents around the
        target are equal to those around its source, and the contents in ONE differ from those in OTHER.

        Contents are numbers of units of each shape and kind. It is enough if that is true of one of these: the
        outermost modules that hold only one of the two units of a side; the modules directly around the units; their
        lists (`_list`); or, in place of contents, the roles and shapes of the tensors of the units, without the bias of
        a matrix (`_made_of`).
        """
        apart = [nearness(one[side], other[side]) + 1 for side in (0, 1)]
        held = [[unit.path[:at] for at, unit in zip(apart, pair, strict=True)] for pair in (one, other)]
        inner = [[unit.path[:-1] for unit in pair] for pair in (one, other)]
        if self._equal_only_so(held) or (all(map(all, inner)) and self._equal_only_so(inner)):
            return True
        if _made_of(one[0]) == _made_of(one[1]) != _made_of(other[0]) == _made_of(other[1]):
            return True
        return self._equal_only_so([[_list(unit.path) for unit in pair] for pair in (one, other)])

    def run_only_so(self, one: Pair, other: Pair) -> bool:
        """Return whether the order of execution excludes the swap of the pairs ONE and OTHER: the model runs the target
        of one of them among the layers of a module of the source that holds its source, and the target of the other
        outside of these (`_run_in`), so that the swap would tear this module apart.

        False if the outermost modules of the source that hold only one of the two sources have equal contents, because
        then these may be exchanged as a whole.
        """
        at = nearness(one[1], other[1]) + 1
        if self._held[1][one[1].path[:at]] == self._held[1][other[1].path[:at]]:
            return False
        return self._run_in(one, other) or self._run_in(other, one)

    def _run_in(self, one: Pair, other: Pair) -> bool:
        """Return whether the model runs the target of ONE between certain layers of a module that holds the source of
        ONE and not that of OTHER, and the target of OTHER before or after all layers of this module. False if a layer
        of another module runs among them, or if it is not known when a target runs.
        """
        (t, s), (t2, s2) = one, other
        if t.used is None or t2.used is None:
            return False
        for at in range(nearness(s, s2) + 1, len(s.path)):
            known, whole = self._run_of(s.path[:at], s.path[: at + 1], t.colour)
            if known[0] < t.used < known[1] and not whole[0] <= t2.used <= whole[1]:
                return True
        return False

    def _run_of(self, module: Path, part: Path, colour: Hashable) -> tuple[_Run, _Run]:
        """Return ((first, last) of the certain layers of MODULE, (first, last) of all layers of MODULE), as places in
        the order in which the model runs the targets of these layers. Both are (0, 0) if the model runs a layer of
        another module between the first and the last; the former is (0, 0) if no layer is certain.

        MODULE is the path of a module of the source. Its layers are certain if their targets have no doubt, unless they
        are in PART, a module in it, or have the shape and kind COLOUR: these may be exchanged along.
        """
        run = (module, part, colour)
        if run not in self._runs:
            inside = [(t.used or 0.0, t, s) for t, s in self._used if s.within(module)]
            sure = [used for used, t, s in inside if not (t.doubts or t.colour == colour or s.within(part))]
            known, whole = _extent(sure), _extent(used for used, _, _ in inside)
            apart = any(whole[0] <= (t.used or 0.0) <= whole[1] and not s.within(module) for t, s in self._used)
            self._runs[run] = (_NOWHERE, _NOWHERE) if apart else (known, whole)
        return self._runs[run]

    def _equal_only_so(self, paths: list[list[Path]]) -> bool:
        """Return whether, in each of two pairs, the module of the target and that of the source have equal contents,
        and the contents of one pair differ from those of the other. PATHS has [path of the target's module, path of the
        source's module] for each pair.
        """
        (t, s), (t2, s2) = ((self._held[0][own], self._held[1][theirs]) for own, theirs in paths)
        return t == s and t2 == s2 and t != t2


def _extent(places: Iterable[float]) -> _Run:
    found = sorted(places)
    return (found[0], found[-1]) if found else _NOWHERE


def _held(units: Iterable[Unit]) -> dict[Path, Counter[Hashable]]:
    """Return path of a module, a unit or a list (`_list`) -> shape and kind -> how many of UNITS are there."""
    found: dict[Path, Counter[Hashable]] = defaultdict(Counter)
    for unit in units:
        for at in range(1, len(unit.path) + 1):
            found[unit.path[:at]][unit.colour] += 1
        if (row := _list(unit.path)) != unit.path:
            found[row][unit.colour] += 1
    return found


def _list(path: Path) -> Path:
    """Return the path of the list of the unit PATH, whose last component ends in a digit: with `{}` and the rest of
    this component without digits in place of it (`a.conv1` -> `a.{}conv`). Other paths are returned as they are.
    """
    last = path[-1] if path else ""
    return (*path[:-1], "{}" + "".join(c for c in last if not c.isdecimal())) if last[-1:].isdecimal() else path


def _made_of(unit: Unit) -> Hashable:
    """Return (role, shape) of each tensor of UNIT, without the bias of a matrix, which other code may leave out."""
    vector = sum(n > 1 for n in unit.main.shape) < 2
    return frozenset((role, piece.shape) for role, piece in unit.pieces.items() if vector or role != "bias")
