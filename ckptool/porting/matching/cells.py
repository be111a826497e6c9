"""Cells of units that may still be partners, and how evidence splits them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from ..questions import Question
from ..words import Group, label
from .evidence import Evidence, Told
from .units import Pair, Unit


class _Worded(Protocol):
    words: tuple[str, ...]


#: Units that could be one another: those of the target, those of the source.
_Cell = tuple[list[Unit], list[Unit]]
#: So many look-alikes that a rule excludes are named.
_NAMED = 3
#: When `Cells.split` splits a cell.
Mode = Literal["some", "all", "fair", "one"]
#: The doubt about a pair (target, source) that leaves a cell of such targets and sources, or None.
DoubtOf = Callable[[Unit, Unit, "list[Unit]", "list[Unit]"], "Question[Unit] | None"]


class Cells:
    """All units of two sides, grouped in cells: a cell holds the units of both sides that may still be partners. At
    first, all units of one colour are in one cell. Each unit has the number of its cell (`Unit.cell`).

    Attributes:
        targets, sources: the units.
        pair_of: number of a cell -> its pair, for the cells that hold one unit of each side; in no order (see `pairs`).
        rule: the name of the running rule, which units note when it splits them off.
    """

    def __init__(self, targets: list[Unit], sources: list[Unit]) -> None:
        self.targets = targets
        self.sources = sources
        colours: dict[Hashable, int] = {}
        for unit in (*targets, *sources):
            unit.cell = colours.setdefault(unit.colour, len(colours))
        self._count = len(colours)
        self.rule = ""
        self.pair_of: dict[int, Pair] = {}
        self._place = {id(unit): place for place, unit in enumerate((*targets, *sources))}
        self._held: dict[int, _Cell] = {}
        self._open: set[int] = set()
        self._pairs: list[Pair] | None = None
        groups: dict[int, _Cell] = defaultdict(lambda: ([], []))
        for side, units in enumerate((targets, sources)):
            for unit in units:
                groups[unit.cell][side].append(unit)
        self._settle(groups)

    def groups(self) -> dict[int, _Cell]:
        """Return number of a cell -> its units, (targets, sources), for all cells, also those of one side only. Cells
        with targets come first, in the order of their first targets; then come the others, in that of their first
        sources.
        """
        return {cell: self._held[cell] for cell in self._in_order(self._held)}

    def open(self) -> list[_Cell]:
        """Return the cells that can still be split, as (targets, sources): those with units of both sides, and more
        than one unit of a side. They are in the order of their first targets.
        """
        return [self._held[cell] for cell in self._in_order(self._open)]

    def even(self) -> list[_Cell]:
        """Return the open cells with equally many units of both sides, as (targets, sources)."""
        return [cell for cell in self.open() if len(cell[0]) == len(cell[1])]

    def is_even(self, cell: int) -> bool:
        """Return whether the cell with the number CELL holds equally many units of both sides."""
        targets, sources = self._held[cell]
        return len(targets) == len(sources)

    def pairs(self) -> list[Pair]:
        """Return the decided pairs (target, source), those that are alone in their cell, in the order of `targets`."""
        if self._pairs is None:
            self._pairs = [self.pair_of[cell] for cell in self._in_order(self.pair_of)]
        return self._pairs

    def certain(self) -> list[Pair]:
        """Return the decided pairs whose target has no open question, in the order of `targets`. A question that only
        the source has does not count.
        """
        return [(t, s) for t, s in self.pairs() if not t.doubts]

    def _in_order(self, cells: Iterable[int]) -> list[int]:
        """Return CELLS, numbers of cells, in the order of their first targets, then those without targets in the order
        of their first sources.
        """
        return sorted(cells, key=lambda cell: self._place[id((self._held[cell][0] or self._held[cell][1])[0])])

    def split(
        self,
        evidence: Evidence,
        labels: Mapping[int, Hashable] | Callable[[Unit, bool], Hashable],
        *,
        mode: Mode = "some",
        cells: Iterable[_Cell] | None = None,
        doubt: Question[Unit] | None = None,
        doubt_of: DoubtOf | None = None,
    ) -> bool:
        """Split cells by a label: for each label that both sides of a cell have equally often, the units with it leave
        the cell for a new one. A label that all units of a cell have splits nothing. If one unit of each side is left
        behind, these two are a decided pair, too. Return whether any unit left its cell.

        Args:
            evidence: what the label comes from; units that leave add it to their `evidence`. Targets that leave also
                note in `told` how many sources were possible before and after, and up to three that were excluded.
            labels: `id` of a unit -> its label, or a function that returns the label of a unit, given the unit and
                whether it is of the target. Units without one (None) stay, except with mode "all".
            mode: when a cell is split. "some": always. "all": if both sides have every label (also None) equally often.
                "fair": if the function `fair` says so. "one": always, but only labels that exactly one unit of each
                side has count.
            cells: the cells to look at; all open ones if None.
            doubt: a question that all units of a split cell get (`_ask`); None for no question.
            doubt_of: used if DOUBT is None: takes a target and a source that leave as a pair, and the targets and
                sources of their cell, and returns such a question, or None.
        """
        moved: dict[int, _Cell] = {}
        for targets, sources in self.open() if cells is None else cells:
            by_label: dict[Hashable, tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
            for side, units in enumerate((targets, sources)):
                for unit in units:
                    label = labels(unit, side == 0) if callable(labels) else labels.get(id(unit))
                    by_label[label][side].append(unit)
            if not _may_split(by_label, mode):
                continue
            even = [(value, part) for value, part in by_label.items() if len(part[0]) == len(part[1]) > 0]
            size = len(targets), len(sources)
            parts = [p for value, p in even if _leaves(value, p, mode) and (len(p[0]), len(p[1])) != size]
            moved |= self._divided((targets, sources), parts, evidence, doubt, doubt_of)
        self._settle(moved)
        return bool(moved)

    def pair_off(self, evidence: Evidence, pairs: Iterable[Pair], doubt_of: DoubtOf) -> list[Pair]:
        """Move each of PAIRS to a new cell of its own. The two units (target, source) of a pair are in one open cell;
        different pairs may be in different cells. Both units add EVIDENCE to their `evidence`; the target also notes in
        `told` what was excluded (see `split`). DOUBT_OF(target, source, targets of the cell, sources of the cell)
        returns the question about a pair, which all units of its cell get (`_ask`), or None.

        Returns:
            The pairs that are decided now: PAIRS, and each target and source that are left alone in their cell.
        """
        parts: dict[int, list[_Cell]] = defaultdict(list)
        for t, s in sorted(pairs, key=lambda pair: self._place[id(pair[0])]):
            parts[t.cell].append(([t], [s]))
        moved: dict[int, _Cell] = {}
        for cell in self._in_order(parts):
            moved |= self._divided(self._held[cell], parts[cell], evidence, None, doubt_of)
        self._settle(moved)
        return [self.pair_of[cell] for cell in moved if cell in self.pair_of]

    def _divided(
        self,
        cell: _Cell,
        parts: Iterable[_Cell],
        evidence: Evidence,
        doubt: Question[Unit] | None,
        doubt_of: DoubtOf | None,
    ) -> dict[int, _Cell]:
        """Move the units of each of PARTS, (targets, sources), from CELL to a new cell: `cell` of these units changes,
        they add EVIDENCE to their `evidence`, and the targets also note in `told` what was excluded. For each part, all
        units of CELL get the question DOUBT (`_ask`). If DOUBT is None and the part has one target, they get the
        question that DOUBT_OF returns for it, if it returns one (see `split`).

        Return number of a cell -> (targets, sources), for the new cells and for what is left of CELL, also if that is
        nothing; {} if there are no parts. The lists of this object are not updated (see `_settle`).
        """
        targets, sources = cell
        before = targets[0].cell
        moved: dict[int, _Cell] = {}
        for t, s in parts:
            self._count += 1
            for unit in (*t, *s):
                unit.cell = self._count
                unit.evidence.append(evidence)
            others = [".".join(u.path) for u in sources[: len(s) + _NAMED] if u.cell != self._count][:_NAMED]
            for unit in t:
                unit.told.append(Told(self.rule, str(evidence), len(sources), len(s), tuple(others)))
            question = doubt
            if question is None and doubt_of is not None and len(t) == 1:
                question = doubt_of(t[0], s[0], targets, sources)
            if question is not None:
                _ask(question, (t, s), cell)
            moved[self._count] = t, s
        if moved:
            left_t, left_s = ([unit for unit in side if unit.cell == before] for side in cell)
            moved[before] = left_t, left_s
        return moved

    def join(self, target: Unit, source: Unit) -> None:
        """Make a decided pair of TARGET and SOURCE, units of unequal shapes and so of two cells: both move to a new
        cell of their own. They note no evidence, and no unit gets a question. The other units stay in the two old
        cells; if just one unit of each side is left in one of these, the two become a pair.
        """
        moved: dict[int, _Cell] = {}
        self._count += 1
        for cell in (target.cell, source.cell):
            targets, sources = self._held[cell]
            moved[cell] = [u for u in targets if u is not target], [u for u in sources if u is not source]
        target.cell = source.cell = self._count
        self._settle(moved | {self._count: ([target], [source])})

    def _settle(self, moved: Mapping[int, _Cell]) -> None:
        """Update the lists of cells, of open cells and of pairs for the cells in MOVED (number -> units), which are new
        or have lost units. A cell without units is removed.
        """
        for cell, (targets, sources) in moved.items():
            self._held.pop(cell, None)
            self.pair_of.pop(cell, None)
            self._open.discard(cell)
            if targets or sources:
                self._held[cell] = targets, sources
            if len(targets) == len(sources) == 1:
                self.pair_of[cell] = targets[0], sources[0]
            elif targets and sources:
                self._open.add(cell)
        if moved:
            self._pairs = None


def _ask(question: Question[Unit], part: _Cell, cell: _Cell) -> None:
    """Add QUESTION to all units of CELL, (targets, sources) as they were before PART left it, because the place of each
    depends on this guess. The options differ: a target of PART gets all sources of CELL except the first of PART; a
    source of PART gets none; each other unit gets the sources of PART. PART is in its new cell already.
    """
    (targets, sources), (cell_targets, cell_sources) = part, cell
    for t in targets:
        t.ask(question.about(*(u for u in cell_sources if u is not sources[0])))
    for s in sources:
        s.ask(question)
    for unit in (*cell_targets, *cell_sources):
        if unit.cell != targets[0].cell:
            unit.ask(question.about(*sources))


def _may_split(by_label: Mapping[Hashable, _Cell], mode: Mode) -> bool:
    """Return whether a cell may be split by its labels. BY_LABEL has label -> (targets, sources), with None for units
    without one. False in MODE "all" unless both sides have every label (also None) equally often, in "fair" unless the
    function `fair` says so, and in every mode but "one" if all units have one label; else True.
    """
    if mode == "all" and any(len(t) != len(s) for t, s in by_label.values()):
        return False
    if mode == "fair" and not fair(by_label):
        return False
    return len(by_label) > 1 or (mode == "one" and bool(by_label))


def _leaves(label: Hashable, part: _Cell, mode: Mode) -> bool:
    """Return whether PART, the units with LABEL, leaves its cell in this MODE: units without a label (None) only in
    mode "all", several of a side not in mode "one".
    """
    return (label is not None or mode == "all") and (mode != "one" or len(part[0]) == 1)


def fair(by_label: Mapping[Hashable, tuple[Sequence[object], Sequence[object]]]) -> bool:
    """Return whether a split by labels is fair to units without a label. BY_LABEL has label -> (targets, sources), with
    None for units without one.

    It is fair if both sides have equally many units in all, and each label other than None is equally often on both
    sides, or on one side only, which is the same side for all such labels: units without a label on the other side may
    be their partners.
    """
    sizes = {value: (len(t), len(s)) for value, (t, s) in by_label.items()}
    if sum(t for t, _ in sizes.values()) != sum(s for _, s in sizes.values()):
        return False
    uneven = [(t, s) for value, (t, s) in sizes.items() if value is not None and t != s]
    return all(0 in pair for pair in uneven) and len({t == 0 for t, _ in uneven}) <= 1


def said(group: Group, item: _Worded, _: bool) -> str | None:
    """Return the label ("q") that the words of ITEM, a unit or scope, have in GROUP; None if they have none. The last
    argument has no effect: `Cells.split` passes whether the item is of the target.
    """
    return label(group, item.words)
