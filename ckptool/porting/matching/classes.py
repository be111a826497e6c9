"""Modules of one class, found by their contents: a pair that shapes decide in one of them holds in all of them.

Code builds blocks from a class, and all of them have the same names inside. Two branches with equal shapes in one block
usually have different shapes in another block, which shows which is which.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from .cells import Cells
from .evidence import Evidence, Kind
from .scopes import Scopes
from .series import Relation
from .units import Path, Unit

#: A class of modules, and a path in it.
_Place = tuple[int, Path]
#: Evidence that comes from no order and no number.
_SURE = frozenset({Kind.NAME, Kind.SCOPE, Kind.WORDS, Kind.TENSORS, Kind.CLASS})


class Classes:
    """The classes of modules of both sides, and the rule that splits cells by paths inside of modules of two
    corresponding classes. Modules of one side are of one class if the units in them have equal paths (`_places`).
    """

    def __init__(self, cells: Cells, scopes: Scopes) -> None:
        self._cells = cells
        self._scopes = scopes
        self._places = {**_places(cells.targets), **_places(cells.sources)}

    def split(self) -> bool:
        """Split open cells by the paths of units inside of modules of one class (modules whose units have equal paths,
        `_places`): if certain pairs show that `left` in blocks of the target belongs to `a` in blocks of the source,
        the units `left` of a cell get a new cell with its units `a`. Return whether any cell was split.

        A class of the target and one of the source are tried if certain pairs show two or more paths of the target's
        class (`_relations`), and each of these belongs to just one path of the source's class, and the reverse. The
        path of a unit is that inside of the outermost module of the class around it. Only cells with equally many units
        of both sides in modules of the two classes are split. The first couple of classes that splits a cell ends the
        search. Then those targets of these cells whose path belongs to one, and that have evidence of the kind CLASS,
        note in `settled`: (number of the target's class, number of the source's class) -> path in the source's module.
        """
        open_ = [[unit for cell in self._cells.open() for unit in cell[side]] for side in (0, 1)]
        for kinds, relation in self._relations().items():
            if len(relation.sure()) < 2 or not relation.holds():
                continue
            inside = [self._in(kind, side) for kind, side in zip(kinds, open_, strict=True)]
            ours, theirs = (
                Counter(u.cell for u in side if id(u) in held) for side, held in zip(open_, inside, strict=True)
            )
            even = {cell for cell, count in ours.items() if theirs[cell] == count}
            labels = relation.labels(*inside)
            labels = {id(u): labels[id(u)] for side in open_ for u in side if id(u) in labels and u.cell in even}
            if self._cells.split(Evidence(Kind.CLASS), labels, mode="some"):
                for t in self._cells.targets:
                    if id(t) in labels and t.told_by(Kind.CLASS):
                        t.settled[kinds] = labels[id(t)]
                return True
        return False

    def _relations(self) -> dict[tuple[int, int], Relation[Path]]:
        """Return (class of the target, class of the source) -> `Relation`: which path inside a module of the first
        class belongs to which path inside a module of the second, as certain pairs show. A class is no class of Python,
        but a group of modules of one side that hold units at equal paths (`_places`). Couples of classes without such
        pairs are left out.

        A pair counts if all its evidence is NAME, WORDS, TENSORS, SCOPE or CLASS, or if it has none (its shape made
        it). If only order paired a scope around the target, modules outside of the innermost such scope do not count
        for this pair.
        """
        relations: dict[tuple[int, int], Relation[Path]] = defaultdict(Relation)
        for t, s in self._cells.certain():
            if not _SURE.issuperset(e.kind for e in t.evidence):
                continue
            least = self._scopes.in_order(t)
            for depth, (kind, path) in self._places[id(t)].items():
                for other, inner in self._places[id(s)].values() if depth >= least else ():
                    relations[kind, other].add(path, inner)
        return relations

    def _in(self, kind: int, units: list[Unit]) -> dict[int, Path]:
        """Return `id` of a unit -> its path inside of the outermost module around it that is of the class KIND. UNITS
        without such a module are left out.
        """
        every = ((unit, place) for unit in units for place in reversed(self._places[id(unit)].values()))
        return {id(unit): path for unit, (own, path) in every if own == kind}


def _places(units: list[Unit]) -> dict[int, dict[int, _Place]]:
    """Return `id` of a unit -> depth -> (number of the class of the module at this depth of its path, path inside of
    that module), for each of UNITS, of one side. Depths of modules without a class are left out.

    Modules are of one class if the paths of the units inside are equal. A class has at least two modules, with more
    than two units each; each side numbers its own. A list of single layers that all have one number of dimensions is no
    class: its members have no names.
    """
    inside: dict[Path, set[Path]] = defaultdict(set)
    named: set[Path] = set()
    ranks: dict[Path, set[int]] = defaultdict(set)
    for unit in units:
        for at in range(1, len(unit.path)):
            inside[unit.path[:at]].add(unit.path[at:])
            ranks[unit.path[:at]].add(len(unit.main.shape))
            if len(unit.path) - at > 1 or not unit.path[at].isdecimal():
                named.add(unit.path[:at])
    named |= {path for path, found in ranks.items() if len(found) > 1}
    classes = {path: frozenset(names) for path, names in inside.items() if len(names) > 2 and path in named}
    count = Counter(classes.values())
    number = {names: at for at, names in enumerate(names for names, n in count.items() if n > 1)}
    return {
        id(unit): {
            at: (number[names], unit.path[at:])
            for at in range(1, len(unit.path))
            if (names := classes.get(unit.path[:at])) in number
        }
        for unit in units
    }
