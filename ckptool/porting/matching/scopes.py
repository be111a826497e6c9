"""Pair modules of both sides that hold the same units (scopes), and pair units inside of paired modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..questions import Question, Reason, ask
from ..words import alike, common_start, labels, numbers, shared, table, telling_words, words_of
from .cells import Cells, fair, said
from .counting import counted, rows
from .evidence import Evidence, Kind
from .levels import Levels, reason_against
from .sequences import Sequences
from .series import Series, Ways, common, members_of, series_of, translation
from .units import Path, Unit, number_ranks, same_numbers, without_digits


@dataclass(eq=False, slots=True)
class Scope:
    """A module with units below it.

    Attributes:
        path: the components of its path.
        units: the units below it whose colour the other side has.
        words: the words of its path.
        partner: the scope of the other side that it is paired with, or None.
        doubts: the questions about this pair; the scope of the target has them, that of the source has none.
        whole: whether it and its partner held equally many units of every cell when they were paired, and `all` is True
            for both.
        all: False for the outermost module if the other side lacks the colour of one of its units; else True.
        in_order: whether only an order decided which scope is its partner; always False for scopes of the source.
    """

    path: tuple[str, ...]
    units: list[Unit]
    words: tuple[str, ...] = ()
    partner: Scope | None = None
    doubts: list[Question[Unit]] = field(default_factory=list)
    whole: bool = False
    all: bool = True
    in_order: bool = False

    @property
    def order(self) -> float:
        """Return the lowest place of its units in the state dict."""
        return min(unit.order for unit in self.units)

    @property
    def used(self) -> float | None:
        """Return the lowest place of its units in the order of execution; None if that is not known."""
        return min((unit.used for unit in self.units if unit.used is not None), default=None)


#: The name of an order, and the sources in the order of the targets that they are paired with.
_Vote = tuple[str, list[Scope]]
#: Returns a value for a scope that means the same on both sides, or None; it takes the scope, and whether it is of the
#: target.
_Label = Callable[[Scope, bool], Hashable]


class Scopes:
    """The modules of both sides that hold more than one unit, and their partners. A module with the same units as the
    module around it is not among them; the outermost module is. Units of a colour that the other side lacks do not
    count.

    Attributes:
        settled: whether the last call of `pair` paired none.
    """

    def __init__(self, cells: Cells, sequences: Sequences) -> None:
        self.cells = cells
        self.sequences = sequences
        self.scopes: dict[bool, list[Scope]] = {
            True: _scopes(cells.targets, cells.sources),
            False: _scopes(cells.sources, cells.targets),
        }
        self.settled = False
        self.levels = Levels(cells)
        self._ways: Ways | None = None
        self._counted: Ways | None = None
        self._members = members_of(s.path for s in self.scopes[True]), members_of(s.path for s in self.scopes[False])
        self._inner: dict[int, list[Scope]] = defaultdict(list)
        for scopes in self.scopes.values():
            for scope in sorted(scopes, key=lambda s: -len(s.path)):
                for unit in scope.units:
                    self._inner[id(unit)].append(scope)

    def pair(self, *, in_order: bool) -> None:
        """Pair scopes of the two sides that have no partner yet and hold equally many units of each cell, at least two
        units each: first counting the units of all cells, then only those of cells with equally many units of both
        sides. Several with equal contents are paired if the modules around them, words or numbers tell them apart, with
        IN_ORDER also if only an order does (`_pair_class`); the others stay without a partner.

        Sets `settled`: True if no scope was paired. Sets `whole` of all scopes that it looks at: True for both scopes
        of a pair made while all cells counted, if both are `all`; else False.
        """
        open_before, self._counted = self._count_open(), None
        cells = self.cells.groups().keys()
        even = {cell for cell in cells if self.cells.is_even(cell)}
        for counted_cells, all_count in ((cells, True), (even, False)):
            self._ways = None
            for targets, sources in self._classes(counted_cells):
                self._pair_class(targets, sources, in_order=in_order)
                for scope in (*targets, *sources):
                    scope.whole = all_count and scope.partner is not None and scope.all and scope.partner.all
        self.settled = self._count_open() == open_before

    def _count_open(self) -> int:
        return sum(scope.partner is None for scope in self.scopes[True])

    def _classes(self, counted_cells: Collection[int]) -> list[tuple[list[Scope], list[Scope]]]:
        """Return the scopes without a partner in groups with equal contents, as (scopes of the target, scopes of the
        source), the groups with the fewest targets first. All scopes of a group hold equally many units of each of
        COUNTED_CELLS, numbers of cells; units of other cells do not count. Left out are groups of one side only, and
        scopes with fewer than two units that count.
        """
        classes: dict[Hashable, tuple[list[Scope], list[Scope]]] = defaultdict(lambda: ([], []))
        for is_target, scopes in self.scopes.items():
            for scope in (scope for scope in scopes if scope.partner is None):
                cells = [u.cell for u in scope.units if u.cell in counted_cells]
                if len(cells) > 1:
                    classes[tuple(sorted(cells))][0 if is_target else 1].append(scope)
        return sorted(filter(all, classes.values()), key=lambda group: len(group[0]))

    def _pair_class(self, targets: list[Scope], sources: list[Scope], *, in_order: bool) -> None:
        """Pair TARGETS and SOURCES, scopes with equal contents, as far as something tells them apart.

        - No scope of a side: nothing is done. One of each side: they are paired, unless pairs of modules around them
          exclude it (`_is_outside`).
        - Several: nothing is done if one side has a list of modules with parts (`steps.0.scale`), and the other a list
          for each part (`scale.0`, `_crosswise`). Else the first function of `_labels` that divides them does so, and
          no later one is tried. It divides them if its values differ, and at least one value other than None is there
          on both sides equally often. If the sides have equally many scopes, each value that is not there equally
          often, except None, also has to be on one side only, the same side for all such values (`fair`). Scopes with a
          value that is there equally often are then paired with each other in this same way; if the sides have equally
          many scopes, so are all scopes that are left, together.
        - No function divides them: if there are equally many, they are paired by their words (`_join_by_words`), or
          else, with IN_ORDER, by their order (`_pair_in_order`). If there are not, they stay without a partner.
        """
        if not targets or not sources or (len(targets) == len(sources) == 1):
            for target, source in zip(targets, sources, strict=False):  # the only ones, if both are there
                if not self._is_outside(target, source):
                    _join_scopes(target, source)
            return
        if _crosswise(targets, sources):
            return
        equal = len(targets) == len(sources)
        for label in self._labels(targets, sources, in_order=in_order):
            parts: dict[Hashable, tuple[list[Scope], list[Scope]]] = defaultdict(lambda: ([], []))
            for side, scopes in enumerate((targets, sources)):
                for scope in scopes:
                    parts[label(scope, side == 0)][side].append(scope)
            even = {value: (t, s) for value, (t, s) in parts.items() if value is not None and len(t) == len(s)}
            if len(parts) < 2 or not even or (equal and not fair(parts)):
                continue
            for t, s in even.values():
                self._pair_class(t, s, in_order=in_order)
            if equal:
                rest = [part for value, part in parts.items() if value not in even]
                own, theirs = ([scope for part in rest for scope in part[side]] for side in (0, 1))
                self._pair_class(own, theirs, in_order=in_order)
            return
        if equal and not self._join_by_words(targets, sources) and in_order:
            self._pair_in_order(targets, sources)

    def _is_outside(self, t: Scope, s: Scope) -> bool:
        """Return whether pairs of scopes around T and S exclude that T and S are partners: S is not inside the partner
        of the innermost scope around T that has a partner without a doubt, or T is not inside the partner of the
        innermost such scope around S. False if no scope around either has such a partner.
        """
        for one, other in ((t, s), (s, t)):
            around = (o for o in self._inner[id(one.units[0])] if o is not one and _begins(o.path, one.path))
            partner = next((o.partner for o in around if o.partner and not (o.doubts or o.partner.doubts)), None)
            if partner is not None and not _begins(partner.path, other.path):
                return True
        return False

    def counts_back_beside(self, own: Series, theirs: Series) -> bool:
        """Return whether certain pairs show that the two sides count some list from opposite ends, and this list is in
        the module around OWN in the target, and in that around THEIRS in the source. OWN and THEIRS are a series of the
        target and one of the source. The certain pairs are those at the first call since `pair` ran.
        """
        if self._counted is None:
            self._counted = Ways((t.path, s.path) for t, s in self.cells.certain())
        return any(sign < 0 for sign, _ in self._counted.beside(own, theirs))

    def _labels(self, targets: list[Scope], sources: list[Scope], *, in_order: bool) -> list[_Label]:
        """Return functions (scope, whether it is of the target) -> label, equal for partners, or None, that tell
        TARGETS and SOURCES apart, the most reliable first. The labels are: the pair of scopes around it; for each group
        of words that exclude each other, the label of its path there; its place in a list that the two sides count from
        opposite ends; its path; its place in a series with a known rule between numbers; with IN_ORDER, its place in a
        list (`_places_in_lists`); the numbers in its path ("first" is 1).

        The last two are left out if `_other_end` has a question about TARGETS and SOURCES. The numbers are also left
        out if the paths of a side do not all have equally many numbers.
        """
        labels: list[_Label] = [
            self._parent_label,
            *(partial(said, group) for group in table().groups if group.hard),
            self._scope_turned,
            lambda scope, _: scope.path,
            self._scope_way,
        ]
        if self._other_end(targets, sources)[1]:
            return labels
        if in_order:
            places = _places_in_lists(targets, sources)
            labels.append(lambda scope, _: places.get(id(scope)))
        if any(len({len(numbers(scope.path)) for scope in side}) > 1 for side in (targets, sources)):
            return labels  # the 1 of `middle.1` is not that of `down.1.attn`
        return [*labels, lambda scope, _: numbers(scope.path) or None]

    def _join_by_words(self, targets: list[Scope], sources: list[Scope]) -> bool:
        """Pair TARGETS and SOURCES, equally many scopes with equal contents, by the words that tell them apart. Return
        True if all were paired, False if none was.

        Certain pairs of units show which word of the source means the same as a word of the target (`translation`: if
        `x.left` is paired with `y.l`, `left` means `l`); if they show nothing, words that both sides have decide
        (`_namesakes`). No scope is paired if neither finds a partner for all, or if the pairs of modules around exclude
        one of the new pairs (`_is_outside`).
        """
        known = ((t.path, s.path) for t, s in self.cells.certain())
        own, theirs = [t.path for t in targets], [s.path for s in sources]
        found = translation(own, theirs, known) or _namesakes(own, theirs)
        if not found:
            return False
        partners = {s.path: s for s in sources}
        if any(self._is_outside(t, partners[found[t.path]]) for t in targets):
            return False
        for t in targets:
            _join_scopes(t, partners[found[t.path]])
        return True

    def _pair_in_order(self, targets: list[Scope], sources: list[Scope]) -> None:
        """Pair TARGETS and SOURCES, equally many scopes with equal contents, in the first of their orders (`_votes`),
        and set `in_order` of the targets. Nothing is done if `_votes` has no order.

        Two things change this. If `number_ranks` ranks their paths by numbers, and `_other_end` says that the two sides
        count them from opposite ends, the first is paired with the last, and so on; the units of all of them then get
        the lists around these scopes in `backwards`. If it does not say so, lists of the source may be turned
        (`_from_the_other_end`).

        The targets and all their units get one question: that of `_other_end`, or else that of `_disagreement`, or else
        FROM_THE_OTHER_END if `_from_the_other_end` turned a list; none if none of these has one. `_other_end` is not
        asked without number ranks.
        """
        votes = self._votes(targets, sources)
        if not votes:
            return
        doubt = self._disagreement(votes, targets, sources)
        chosen = votes[0][1]
        numbered = number_ranks(targets, sources)
        if numbered is not None:
            turned, why = self._other_end(targets, sources)
            doubt = why or doubt
            if turned:
                chosen = _from_the_end(targets, sources, numbered)
                for unit, row in [(u, row) for s in (*targets, *sources) for u in s.units for row, _ in rows(s.path)]:
                    unit.backwards |= {row}
        if chosen is votes[0][1] and (turned_lists := self._from_the_other_end(targets, chosen)) is not None:
            chosen, doubt = turned_lists, doubt or ask(Reason.FROM_THE_OTHER_END)
        for t, s in zip(targets, chosen, strict=True):
            _join_scopes(t, s, doubt)
            t.in_order = True
            if doubt:
                for unit in t.units:
                    unit.ask(doubt)

    def _from_the_other_end(self, targets: Sequence[Scope], chosen: Sequence[Scope]) -> list[Scope] | None:
        """Return CHOSEN, the partners of TARGETS in their order, with some outermost lists of the source turned: of the
        members of a turned list that have scopes in CHOSEN, the lowest exchanges its scopes with the highest, each for
        the one with the same path in the member, and so on. None if no list is turned, or if the path of a target does
        not have exactly one number.

        A list is turned if all of these are true:

        - There are pairs that were made before, with the source in this list, and with a target that has the path of
          TARGETS apart from digits.
        - Together with these pairs, the numbers of the list neither rise nor fall along the numbers of the targets; but
          they do if the list is turned.
        - Each of its scopes has a counterpart. Sources with fewer than two numbers in their paths stay, and do not
          count.

        If `blocks.5` is paired with `up.2.attn`, and `blocks.15` with `up.0.block`, then `blocks.4` and `blocks.6` get
        scopes in `up.2`, not in `up.1`.
        """
        if {len(numbers(t.path)) for t in targets} != {1}:
            return None
        kind = without_digits(targets[0].path)
        paired = [(t, t.partner) for t in self.scopes[True] if t.partner is not None and without_digits(t.path) == kind]
        lists: dict[Path, list[int]] = defaultdict(list)
        for at, s in enumerate(chosen):
            if (around := _outer_list(s.path)) is not None and len(numbers(s.path)) > 1:
                lists[around].append(at)
        made = list(chosen)
        for around, places in lists.items():
            members = {_member(chosen[at].path, around): chosen[at] for at in places}
            outer = sorted({number for number, _ in members})
            turned = dict(zip(outer, reversed(outer), strict=True))
            other = {at: members.get((turned[n], rest)) for (n, rest), at in zip(members, places, strict=True)}
            known = [(numbers(t.path), _member(s.path, around)[0]) for t, s in paired if _outer_list(s.path) == around]
            own = [numbers(targets[at].path) for at in places]
            as_they_are = [n for n, _ in members]
            if (
                known
                and None not in other.values()
                and not _one_way(sorted([*known, *zip(own, as_they_are, strict=True)]))
                and _one_way(sorted([*known, *zip(own, (turned[n] for n in as_they_are), strict=True)]))
            ):
                made = [other.get(at) or s for at, s in enumerate(made)]
        return made if made != list(chosen) else None

    def _votes(self, targets: list[Scope], sources: list[Scope]) -> list[_Vote]:
        """Return (name of an order, partners) for each order of TARGETS and SOURCES, equally many scopes: the partners
        are SOURCES, sorted so that the n-th is the partner of the n-th of TARGETS in this order. [] if there is none.

        The first is "numbers in their names", if `number_ranks` has ranks for them, and no two scopes of a side have
        one rank. Then come "execution order" and "registration order" of the target, each with registration of the
        source, the more reliable first. Both are missing if the order of the source's keys means nothing; "execution
        order" is also missing if it is not known when one of TARGETS runs.
        """
        votes: list[_Vote] = []
        numbered = number_ranks(targets, sources)
        if numbered is not None and len(set(numbered.values())) == len(targets):
            by_number = {numbered[id(s)]: s for s in sources}
            votes.append(("numbers in their names", [by_number[numbered[id(t)]] for t in targets]))
        stored = sorted(sources, key=lambda s: s.order)
        for name, _, _ in self.sequences.all() if self.sequences.ordered else ():
            used = [t.order if name == "registration order" else t.used for t in targets]
            ranks = _ranks(used) if name in ("registration order", "execution order") else []
            if ranks:
                votes.append((name, [stored[rank] for rank in ranks]))
        return votes

    def _disagreement(
        self, votes: Sequence[_Vote], targets: list[Scope], sources: list[Scope]
    ) -> Question[Unit] | None:
        """Return the question about the pairs of TARGETS and SOURCES that the first of VOTES (see `_votes`) makes:
        PARTS_IN_ANOTHER_ORDER if another vote makes other pairs; PARTS_BY_REGISTRATION if the order of registration is
        the only vote, there are no number ranks, and the forward pass is not known. None if neither is so.

        None, too, if there are three votes and one of the other two makes the same pairs, if `number_ranks` has ranks
        and the paths of both sides have the same numbers, or if names speak for all pairs, or for all but one
        (`_names_speak_for`).
        """
        chosen, numbered = votes[0][1], number_ranks(targets, sources)
        against = [name for name, vote in votes if vote != chosen]
        only_registered = len(votes) == 1 and numbered is None and not self.sequences.traced
        confirmed = len(votes) == 3 and len(against) < 2
        same = numbered is not None and same_numbers(targets, sources)
        if confirmed or same or not (against or only_registered):
            return None
        unsaid = [pair for pair in zip(targets, chosen, strict=True) if not _names_speak_for(*pair, targets, sources)]
        if len(unsaid) <= 1:
            return None
        if not against:
            return ask(Reason.PARTS_BY_REGISTRATION)
        return ask(Reason.PARTS_IN_ANOTHER_ORDER, votes[0][0], against[0])

    def _other_end(self, targets: list[Scope], sources: list[Scope]) -> tuple[bool, Question[Unit] | None]:
        """Return (True if the two sides count the list of TARGETS and SOURCES from opposite ends, the question about
        its pairs or None). (False, None) if the paths of TARGETS, or those of SOURCES, do not differ in exactly one
        number.

        If scopes of the two lists are paired already, these pairs decide (`counted`), and there is a question only for
        opposite ends. Else what the forward pass shows (`Levels.against`) decides: 0 (nothing speaks against equal
        numbers) means False, 1 (something does) False and a question, -1 (the source counts from the other end) True
        and a question. For 0, there is a question, too, if the model runs the list from its last member to its first
        (`Levels.runs_back`), or if another list beside it is counted from opposite ends (`counts_back_beside`).
        """
        own, theirs = common(t.path for t in targets), common(s.path for s in sources)
        if own is None or theirs is None:
            return False, None
        known = self._known_numbers(own[0], theirs[0])
        if known:
            turned = counted(own[1], theirs[1], known) < 0
            return turned, ask(Reason.FROM_THE_OTHER_END) if turned else None
        against = self.levels.against(own[0], theirs[0])
        if not against and self.levels.runs_back(own[0]):
            return False, ask(Reason.RUN_BACKWARDS)
        if not against and self.counts_back_beside(own[0], theirs[0]):
            return False, ask(Reason.AGAINST_LEVELS)
        return against < 0, ask(reason_against(against)) if against else None

    def _known_numbers(self, own: Hashable, theirs: Hashable) -> list[tuple[int, int]]:
        """Return (number in the target, number in the source) for each pair of scopes in the lists OWN, a series of the
        target, and THEIRS, a series of the source.
        """
        pairs = [(t.path, t.partner.path) for t in self.scopes[True] if t.partner is not None]
        couples = [(here, there) for t, s in pairs for here in series_of(t) for there in series_of(s)]
        return [(here[1], there[1]) for here, there in couples if (here[0], there[0]) == (own, theirs)]

    def _parent_label(self, scope: Scope, is_target: bool) -> Hashable:
        """Return the `id` of the target in the innermost pair of scopes around SCOPE; None if there is no such pair.
        IS_TARGET says which side SCOPE is of.
        """
        around = self._inner[id(scope.units[0])]
        outer = next((o for o in around if len(o.path) < len(scope.path) and o.partner is not None), None)
        return None if outer is None else id(outer if is_target else outer.partner)

    def _scope_turned(self, scope: Scope, is_target: bool) -> Hashable:
        """Return (list of the source, number there) for a scope in a list whose contents show that the two sides count
        it from opposite ends (`Levels.turned`); None for other scopes. It is equal for partners: for a scope of the
        target (IS_TARGET is true), it has the number of the partner; for one of the source, its own.
        """
        places = self.levels.turned
        around = rows(scope.path)
        if is_target:
            return next((places[row][number] for row, number in around if row in places), None)
        there = {place for members in places.values() for place in members.values()}
        return next((place for place in around if place in there), None)

    def _scope_way(self, scope: Scope, is_target: bool) -> Hashable:
        """Return (series of the source, number there) for a scope, by the rule between the numbers of two series that
        pairs of other scopes without a doubt show (`Ways`): equal, shifted, or counted from the end. None if they show
        no rule for a series of the scope. It is equal for partners: for a scope of the target (IS_TARGET is true), it
        has the number that the rule gives; for one of the source, its own.
        """
        if self._ways is None:
            paired = [(s.path, s.partner.path) for s in self.scopes[True] if s.partner is not None and not s.doubts]
            self._ways = Ways(paired, self._members)
        return self._ways.label(scope.path, is_target)

    def split(self) -> bool:
        """Split cells by the innermost pair of scopes around each unit, since partners are in partner scopes. If that
        splits no cell, split them by the second innermost, and if that splits none either, by the third. Return whether
        any cell was split.
        """
        evidence = Evidence(Kind.SCOPE)
        return any(self.cells.split(evidence, partial(self._scope_label, depth=depth)) for depth in range(3))

    def _scope_label(self, unit: Unit, is_target: bool, *, depth: int) -> Hashable:
        """Return the `id` of the scope of the target in one of the pairs of scopes around UNIT: in the innermost pair
        for DEPTH 0, in the next one for DEPTH 1. None if there are not so many. IS_TARGET says which side UNIT is of;
        the result is equal for two units in the two scopes of one pair.
        """
        paired = [scope for scope in self._inner.get(id(unit), ()) if scope.partner is not None]
        if len(paired) <= depth:
            return None
        scope = paired[depth]
        return id(scope if is_target else scope.partner)

    def around(self, targets: list[Unit], sources: list[Unit]) -> list[Unit]:
        """Return the units of a scope of the target (only those whose colour the source has): of the innermost one that
        has a partner, holds all TARGETS, and whose partner holds all SOURCES. If there is none, all units of the
        target.
        """
        own, theirs = set(map(id, targets)), set(map(id, sources))
        for scope in self._inner.get(id(targets[0]), ()):
            partner = scope.partner
            if partner is not None and own <= set(map(id, scope.units)) and theirs <= set(map(id, partner.units)):
                return scope.units
        return self.cells.targets

    def are_paired(self, unit: Unit) -> bool:
        """Return whether all scopes (modules) around UNIT have partners; True if there are none."""
        return all(scope.partner is not None for scope in self._inner.get(id(unit), ()))

    def in_order(self, unit: Unit) -> int:
        """Return the number of components in the path of the innermost scope around UNIT, a unit of the target, whose
        partner only an order decided; 0 if there is none.
        """
        return max((len(scope.path) for scope in self._inner.get(id(unit), ()) if scope.in_order), default=0)

    def same(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S are in the two modules of a pair of scopes that hold the same units as a whole
        (`Scope.whole`).
        """
        partners = {id(scope.partner) for scope in self._inner.get(id(t), ()) if scope.whole}
        return any(id(scope) in partners for scope in self._inner.get(id(s), ()))

    def doubts_of(self, t: Unit, s: Unit) -> list[Question[Unit]]:
        """Return the questions about each pair of scopes that has T in its target and S in its source, the innermost
        first.
        """
        found = []
        for scope in self._inner.get(id(t), ()):
            if scope.doubts and any(p is scope.partner for p in self._inner.get(id(s), ())):
                found += scope.doubts
        return found


def _outer_list(path: Path) -> Path | None:
    """Return the path of the outermost list that the module PATH is in, directly or deeper: `up` for `up.2.block.1` and
    for `up.2`. None if there is none.
    """
    return next((path[:at] for at, component in enumerate(path) if component.isdecimal()), None)


def _member(path: Path, around: Path) -> tuple[int, Path]:
    """Return (number, rest of PATH) for the module PATH in the list AROUND."""
    return int(path[len(around)]), path[len(around) + 1 :]


def _one_way(pairs: Sequence[tuple[tuple[int, ...], int]]) -> bool:
    """Return whether the second numbers of PAIRS, in the order of PAIRS, never fall, or never rise; equal ones may
    follow one another. True for fewer than two pairs.
    """
    values = [value for _, value in pairs]
    return values in (sorted(values), sorted(values, reverse=True))


def _names_speak_for(t: Scope, s: Scope, targets: Sequence[Scope], sources: Sequence[Scope]) -> bool:
    """Return whether the paths of T and S share a word or label, and more of them than T with any other of SOURCES, and
    than S with any other of TARGETS.
    """
    own = _shared_words(t, s)
    return own > max((_shared_words(t, o) for o in sources if o is not s), default=0) and own > max(
        (_shared_words(o, s) for o in targets if o is not t), default=0
    )


def _crosswise(targets: Sequence[Scope], sources: Sequence[Scope]) -> bool:
    """Return True if one side lists by number what the other side lists by name, so that no scope has a partner:

    - the scopes of one side are numbered members that hold named parts (`steps.0` with `scale` and `shift`, `steps.1`);
    - those of the other side are named parts that hold numbered members (`scale` with `0` and `1`, `shift`);
    - each scope has as many different names directly below it as its side has scopes.
    """
    forms = []
    for scopes in (targets, sources):
        inner = [{u.path[len(s.path)] for u in s.units if len(u.path) > len(s.path)} for s in scopes]
        listed = {s.path[-1].isdecimal() for s in scopes if s.path}
        lists = {name.isdecimal() for names in inner for name in names}
        alike = len(listed) == len(lists) == 1 and all(len(names) == len(scopes) for names in inner)
        forms.append((listed.pop(), lists.pop()) if alike else None)
    return forms in ([(True, False), (False, True)], [(False, True), (True, False)])


def _places_in_lists(targets: Sequence[Scope], sources: Sequence[Scope]) -> dict[int, tuple[int, int]]:
    """Return `id` of a scope -> (n, place): its outermost list has n members with scopes of its side, TARGETS or
    SOURCES, and the member with this scope is at this place among them, from 0. Scopes in no list are left out.

    {} unless three things are true: both sides have each (n, place) equally often; there are two or more different
    ones; and these are fewer than TARGETS, so that some have several scopes. The other side may have a list for each of
    these: `steps.0.first` and `first.3`, if 3 is the lowest number there, both belong to the first step.
    """
    places: dict[int, tuple[int, int]] = {}
    sizes = []
    for scopes in (targets, sources):
        outermost: dict[int, tuple[Path, int]] = {}
        lists: dict[Path, set[int]] = defaultdict(set)
        for scope in scopes:
            at = next((at for at, component in enumerate(scope.path) if component.isdecimal()), None)
            if at is not None:
                outermost[id(scope)] = scope.path[:at], int(scope.path[at])
                lists[scope.path[:at]].add(int(scope.path[at]))
        own = {i: (len(lists[row]), sorted(lists[row]).index(number)) for i, (row, number) in outermost.items()}
        sizes.append(Counter(own.values()))
        places |= own
    return places if sizes[0] == sizes[1] and 1 < len(sizes[0]) < len(targets) else {}


def _namesakes(own: Sequence[Path], theirs: Sequence[Path]) -> dict[Path, Path]:
    """Return path of OWN -> path of THEIRS, two lists of equally many paths, for paths that share words which not all
    paths of their side have (`_words_apart`). The result has all paths of OWN, or is {}.

    - Each path of OWN shares such words with exactly one path of THEIRS, and no two with the same one: these are the
      partners.
    - Some, but not all, paths of OWN do so, and the others share no such words: {}. But if each side has two paths, the
      two that are left are partners as well.
    - No path shares such words, one shares some with several paths, or two share some with the same path: the result of
      `_phrased_alike`.
    """
    words, others = _words_apart(own), _words_apart(theirs)
    fitting = {t: [s for s, there in others.items() if shared(said, there)] for t, said in words.items()}
    found = {t: partners[0] for t, partners in fitting.items() if len(partners) == 1}
    if sum(map(len, fitting.values())) > len(found) or len(set(found.values())) < len(found) or not found:
        return _phrased_alike(own, theirs)
    left, free = [t for t in own if t not in found], [s for s in theirs if s not in found.values()]
    alone = not left or len(own) == len(theirs) == 2
    return found | dict(zip(left, free, strict=True)) if alone and len(left) == len(free) else {}


def _words_apart(paths: Sequence[Path]) -> dict[Path, frozenset[str]]:
    """Return path -> those of its telling words and labels (`_said`) that not all PATHS have."""
    words = [_said(path) for path in paths]
    alike = frozenset.intersection(*words)
    return {path: found - alike for path, found in zip(paths, words, strict=True)}


def _phrased_alike(own: Sequence[Path], theirs: Sequence[Path]) -> dict[Path, Path]:
    """Return path of OWN -> path of THEIRS, by the share of words that two paths have in the same order (`_in_a_row`):
    the share of two partners is at least 0.5, and more than 0.2 higher than that of either with any other path. {} if a
    path of OWN has no such partner.

    That tells paths apart that have the same words: `text_to_image` and `image_to_text`.
    """
    phrases = [_phrases(paths) for paths in (own, theirs)]
    scores = {(t, s): _in_a_row(a, b) for t, a in phrases[0].items() for s, b in phrases[1].items()}
    found = {}
    for t in own:
        best = max(theirs, key=lambda s: scores[t, s])
        others = [scores[t, s] for s in theirs if s != best] + [scores[o, best] for o in own if o != t]
        if scores[t, best] < _HALF or scores[t, best] <= max(others, default=0.0) + _MARGIN:
            return {}
        found[t] = best
    return found


#: How much of two phrases has to be alike, and how much more than of any other.
_HALF, _MARGIN = 0.5, 0.2


def _phrases(paths: Sequence[Path]) -> dict[Path, tuple[str, ...]]:
    """Return path -> its words in order, without the components at the start that all PATHS share, without numbers and
    words for containers.
    """
    start = common_start(paths)
    return {
        path: tuple(w for w in words_of(path[start:]) if w not in table().empty and not w.isdecimal()) for path in paths
    }


def _in_a_row(a: Sequence[str], b: Sequence[str]) -> float:
    """Return the length of the longest sequence of words that A and B both have in this order, other words between them
    or not, divided by the length of the longer of A and B: 1 for equal phrases, 0 if one is empty. A word and a short
    form of it are equal here (`alike`).
    """
    longest = [0] * (len(b) + 1)
    for word in a:
        row = [0]
        for at, other in enumerate(b):
            row.append(longest[at] + 1 if alike(word, other) else max(longest[at + 1], row[at]))
        longest = row
    return longest[-1] / max(len(a), len(b), 1)


def _said(path: Path) -> frozenset[str]:
    """Return the telling words of PATH, and "GROUP:LABEL" for each label of its components in a group whose words do
    not exclude each other.
    """
    meant = [labels(words_of((component,)), hard=False) for component in path]
    return telling_words(path) | {f"{group}:{label}" for found in meant for group, label in found.items()}


def _begins(path: Path, other: Path) -> bool:
    """Return whether OTHER is PATH, or a path inside of it."""
    return other[: len(path)] == path


def _shared_words(t: Scope, s: Scope) -> int:
    """Return how many words, other than words for containers, the paths of T and S share, whole or abbreviated, plus in
    how many groups of words they have the same label.
    """
    said = [labels(t.words, hard=hard).items() & labels(s.words, hard=hard).items() for hard in (True, False)]
    return shared({*t.words} - table().empty, {*s.words} - table().empty) + sum(map(len, said))


def _scopes(units: Sequence[Unit], others: Sequence[Unit]) -> list[Scope]:
    """Return the scopes of the side with UNITS: the outermost module, and each module that holds more than one of
    UNITS, but fewer than the module around it. Units of a colour that none of OTHERS, the other side, has do not count,
    and are in no scope; [] if no unit counts. No scope has a partner yet.
    """
    colours = {unit.colour for unit in others}
    inside: dict[Path, list[Unit]] = defaultdict(list)
    for unit in units:
        for at in range(len(unit.path)) if unit.colour in colours else ():
            inside[unit.path[:at]].append(unit)
    return [
        Scope(path, members, words_of(path), all=path != () or len(members) == len(units))
        for path, members in inside.items()
        if not path or 1 < len(members) < len(inside[path[:-1]])
    ]


def _join_scopes(target: Scope, source: Scope, doubt: Question[Unit] | None = None) -> None:
    target.partner, source.partner = source, target
    if doubt:
        target.doubts.append(doubt)


def _ranks(places: Sequence[float | None]) -> list[int]:
    """Return the rank, from 0, of each of PLACES: [2, 0, 1] for 9, 1 and 4. [] if one of them is None."""
    known = [place for place in places if place is not None]
    order = sorted(range(len(known)), key=known.__getitem__)
    return [order.index(at) for at in range(len(known))] if len(known) == len(places) else []


def _from_the_end(targets: list[Scope], sources: list[Scope], numbered: Mapping[int, int]) -> list[Scope]:
    """Return SOURCES sorted so that the n-th is the partner of the n-th of TARGETS if the two sides count from opposite
    ends: the target of the lowest rank gets the source of the highest, and so on. NUMBERED has `id` of a scope -> its
    rank by number, the same ranks on both sides.
    """
    ranks = sorted(numbered[id(t)] for t in targets)
    other_end = dict(zip(ranks, reversed(ranks), strict=True))
    return [next(s for s in sources if numbered[id(s)] == other_end[numbered[id(t)]]) for t in targets]
