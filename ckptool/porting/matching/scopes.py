"""Pair modules of both sides that hold the same units (scopes), and pair units inside of paired modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..questions import Question, Reason, ask
from ..words import alike, common_start, labels, numbers, shared, table, telling_words, words_of
from .cells import Cells, fair, of, said
from .counting import counted, rows
from .evidence import Evidence, Kind
from .levels import Levels
from .sequences import Sequences
from .series import Ways, common, members_of, series_of, translation
from .units import Unit, number_ranks, same_numbers

_Path = tuple[str, ...]


@dataclass(eq=False, slots=True)
class Scope:
    """A module with units below it.

    Attributes:
        path: the components of its path.
        units: the units below it whose colour the other side has.
        words: the words of its path.
        partner: the scope of the other side that it is paired with, or None.
        doubts: the questions about this pair; the target has them.
        whole: whether it and its partner hold the same units, also those that have no partner yet.
        all: False for the outermost module if the other side lacks the colour of a unit; else True.
        in_order: whether only an order made its pair; the target has it.
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


class Scopes:
    """The modules of both sides that hold more than one unit, and their partners. A module with the same units as the
    module around it is not among them; the outermost module is.

    Attributes:
        settled: whether the last call of `pair` paired none.
    """

    def __init__(self, cells: Cells, sequences: Sequences) -> None:
        self.cells = cells
        self.sequences = sequences
        self.scopes: dict[bool, list[Scope]] = {}
        for is_target, units in ((True, self.cells.targets), (False, self.cells.sources)):
            other = {u.colour for u in (self.cells.sources if is_target else self.cells.targets)}
            inside: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
            for unit in units:
                if unit.colour in other:
                    for at in range(len(unit.path)):
                        inside[unit.path[:at]].append(unit)
            found: list[Scope] = []
            for path, members in inside.items():
                if path and inside.get(path[:-1]) and len(inside[path[:-1]]) == len(members):
                    continue  # the same as the one around it
                if len(members) > 1 or not path:
                    every = len(members) == len(units) if not path else True
                    found.append(Scope(path, members, words_of(path), all=every))
            self.scopes[is_target] = found
        self.settled = False
        self.levels = Levels(cells)
        self._ways: Ways | None = None
        self._members = members_of(s.path for s in self.scopes[True]), members_of(s.path for s in self.scopes[False])
        self._inner: dict[int, list[Scope]] = defaultdict(list)
        for scopes in self.scopes.values():
            for scope in sorted(scopes, key=lambda s: -len(s.path)):
                for unit in scope.units:
                    self._inner[id(unit)].append(scope)

    def pair(self, *, in_order: bool) -> None:
        """Pair scopes without a partner that hold equally many units of each cell, and set `settled`. Then do the same
        with the units of those cells alone that have equally many units of both sides. A scope has at least two such
        units.

        Of several such scopes, the scopes around them, their words, lists counted from the end, names, known series and
        numbers tell which are pairs, in this order.
        Args:
            in_order: also pair scopes by their places in lists and by orders, if nothing else tells them apart.
        """
        open_before = self._count_open()
        balanced = {cell for cell, (t, s) in self.cells.groups().items() if len(t) == len(s)}
        for only_balanced in (False, True):
            classes: dict[Hashable, tuple[list[Scope], list[Scope]]] = defaultdict(lambda: ([], []))
            for is_target, scopes in self.scopes.items():
                for scope in scopes:
                    if scope.partner is not None:
                        continue
                    cells = [u.cell for u in scope.units if not only_balanced or u.cell in balanced]
                    if len(cells) > 1:
                        classes[tuple(sorted(cells))][0 if is_target else 1].append(scope)
            self._ways = None
            for targets, sources in sorted(classes.values(), key=lambda c: len(c[0])):
                if targets and sources:
                    self._pair_class(targets, sources, in_order=in_order)
                    for scope in (*targets, *sources):
                        scope.whole = (
                            scope.partner is not None and not only_balanced and scope.all and scope.partner.all
                        )
        self.settled = self._count_open() == open_before

    def _count_open(self) -> int:
        return sum(scope.partner is None for scope in self.scopes[True])

    def _pair_class(self, targets: list[Scope], sources: list[Scope], *, in_order: bool) -> None:
        if not targets or not sources:
            return
        if len(targets) == len(sources) == 1:
            _join_scopes(targets[0], sources[0])
            return
        if _crosswise(targets, sources):
            return
        by_words = [partial(said, group) for group in table().groups if group.hard]
        tellings: list[Callable[[Scope, bool], Hashable]] = [
            self._parent_label,
            *by_words,
            self._scope_turned,
            self._scope_name,
            self._scope_way,
            self._scope_numbers,
        ]
        if self._other_end(targets, sources)[1]:
            tellings.pop()
        elif in_order:
            tellings.insert(-1, partial(of, _places_in_lists(targets, sources)))
        for told in tellings:
            parts: dict[Hashable, tuple[list[Scope], list[Scope]]] = defaultdict(lambda: ([], []))
            for scope in targets:
                parts[told(scope, True)][0].append(scope)
            for scope in sources:
                parts[told(scope, False)][1].append(scope)
            good = {k: v for k, v in parts.items() if k is not None and len(v[0]) == len(v[1])}
            if len(parts) < 2 or not good or (len(targets) == len(sources) and not fair(parts)):
                continue
            for t, s in good.values():
                self._pair_class(t, s, in_order=in_order)
            if len(targets) == len(sources):
                rest = [v for k, v in parts.items() if k not in good]
                self._pair_class([x for t, _ in rest for x in t], [x for _, s in rest for x in s], in_order=in_order)
            return
        if len(targets) == len(sources) and not self._join_by_words(targets, sources) and in_order:
            self._pair_in_order(targets, sources)

    def _join_by_words(self, targets: list[Scope], sources: list[Scope]) -> bool:
        """Pair TARGETS and SOURCES, equally many scopes with equal contents, by the words that tell them apart; return
        whether all were paired. If not, none is.

        Certain pairs show which word of the other side means the same (`translation`); if they show none, equal words
        count (`_namesakes`).
        """
        known = ((t.path, s.path) for t, s in self.cells.pairs() if not t.doubts)
        own, theirs = [t.path for t in targets], [s.path for s in sources]
        found = translation(own, theirs, known) or _namesakes(own, theirs)
        if not found:
            return False
        partners = {s.path: s for s in sources}
        for t in targets:
            _join_scopes(t, partners[found[t.path]])
        return True

    def _pair_in_order(self, targets: list[Scope], sources: list[Scope]) -> None:
        """Pair TARGETS and SOURCES, equally many scopes with equal contents, as the first of their orders says
        (`_votes`), or from opposite ends, if the two sides count so (`_other_end`); the units then note it in
        `backwards`. Nothing is done if no order has all of the scopes. The pairs are a question if `_disagreement` or
        `_other_end` has one.
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
        for t, s in zip(targets, chosen, strict=True):
            _join_scopes(t, s, doubt)
            t.in_order = True
            if doubt:
                for unit in t.units:
                    unit.ask(doubt)

    def _votes(self, targets: list[Scope], sources: list[Scope]) -> list[_Vote]:
        """Return (name of an order, the sources in the order of TARGETS by it): the numbers first, then the orders of
        execution and registration, the more reliable first. An order that does not have all of the scopes is left out;
        so are execution and registration if the source's keys are in no order.
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
        """Return the question about pairs of scopes that the first of VOTES makes: that another order makes other
        pairs, or that only the order of registration is known. None if neither is so.

        It counts for nothing if one of two other orders confirms the first, if both sides have the same numbers, or if
        names speak for all pairs but one.
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
        """Return (whether the two sides count a list of scopes from opposite ends, the question about it or None).
        (False, None) if the paths of TARGETS, or of SOURCES, do not differ in exactly one number.

        Decided pairs of the list decide; it is a question if they show opposite ends. Without any, the forward pass
        does (see `Levels.against`); it is a question if it speaks against equal numbers, or if the model runs the list
        from its end.
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
        return against < 0, ask(_levels(against)) if against else None

    def _known_numbers(self, own: Hashable, theirs: Hashable) -> list[tuple[int, int]]:
        """Return (number in the target, number in the source) for each pair of scopes of which one is in the list OWN
        of the target, and one in the list THEIRS of the source.
        """
        here, there = (
            {id(s): n for s in self.scopes[side] for row, n in series_of(s.path) if row == wanted}
            for side, wanted in ((True, own), (False, theirs))
        )
        pairs = [(id(t), id(t.partner)) for t in self.scopes[True]]
        return [(here[t], there[s]) for t, s in pairs if t in here and s in there]

    def _parent_label(self, scope: Scope, is_target: bool) -> Hashable:
        outer = next(
            (
                o
                for o in self._inner[id(scope.units[0])]
                if len(o.path) < len(scope.path) and o.partner is not None and o.path == scope.path[: len(o.path)]
            ),
            None,
        )
        if outer is None:
            return None
        return id(outer if is_target else outer.partner)

    def _scope_turned(self, scope: Scope, is_target: bool) -> Hashable:
        """Return (list of the source, number there) for a scope in a list whose contents show that the sides count it
        from opposite ends (`Levels.turned`); None for other scopes. IS_TARGET says which side the scope is of.
        """
        places = self.levels.turned
        around = rows(scope.path)
        if is_target:
            return next((places[row][number] for row, number in around if row in places), None)
        there = {place for members in places.values() for place in members.values()}
        return next((place for place in around if place in there), None)

    def _scope_name(self, scope: Scope, is_target: bool) -> Hashable:
        return scope.path

    def _scope_way(self, scope: Scope, is_target: bool) -> Hashable:
        """Return (series of the source, number there) for a scope, by the rule between numbers that certain pairs of
        other scopes of its series show (`Ways`): shifted, or counted from the end. None if they show none. IS_TARGET
        says which side the scope is of.
        """
        if self._ways is None:
            paired = [(s.path, s.partner.path) for s in self.scopes[True] if s.partner is not None and not s.doubts]
            self._ways = Ways(paired, self._members)
        return self._ways.label(scope.path, is_target)

    def _scope_numbers(self, scope: Scope, is_target: bool) -> Hashable:
        return numbers(scope.path) or None

    def split(self) -> bool:
        """Split cells by the innermost pair of scopes around each unit: partners are in partner scopes. If that splits
        nothing, by the second innermost, then by the third. Return whether any cell was split.
        """
        changed = False
        for depth in range(3):
            changed |= self.cells.split(Evidence(Kind.SCOPE), partial(self._scope_label, depth=depth))
            if changed:
                break
        return changed

    def _scope_label(self, unit: Unit, is_target: bool, *, depth: int) -> Hashable:
        paired = [scope for scope in self._inner.get(id(unit), ()) if scope.partner is not None]
        if len(paired) <= depth:
            return None
        scope = paired[depth]
        return id(scope if is_target else scope.partner)

    def around(self, targets: list[Unit], sources: list[Unit]) -> list[Unit]:
        """Return the units of the target in the innermost pair of scopes around all TARGETS and SOURCES; all units of
        the target if there is none.
        """
        own, theirs = set(map(id, targets)), set(map(id, sources))
        for scope in self._inner.get(id(targets[0]), ()):
            partner = scope.partner
            if partner is not None and own <= set(map(id, scope.units)) and theirs <= set(map(id, partner.units)):
                return scope.units
        return self.cells.targets

    def are_paired(self, unit: Unit) -> bool:
        """Return whether all scopes around UNIT have partners; True if there are none."""
        return all(scope.partner is not None for scope in self._inner.get(id(unit), ()))

    def in_order(self, unit: Unit) -> int:
        """Return the length of the path of the innermost scope around UNIT, of the target, that only an order paired; 0
        if none.
        """
        return max((len(scope.path) for scope in self._inner.get(id(unit), ()) if scope.in_order), default=0)

    def same(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S are in the two modules of a pair of scopes that hold the same units as a whole
        (`Scope.whole`).
        """
        partners = {
            id(scope.partner) for scope in self._inner.get(id(t), ()) if scope.partner is not None and scope.whole
        }
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


def _levels(against: int) -> Reason:
    """Return the reason to ask for AGAINST, a result of `Levels.against` other than 0."""
    return Reason.AGAINST_LEVELS if against > 0 else Reason.LEVELS_FROM_THE_OTHER_END


def _names_speak_for(t: Scope, s: Scope, targets: Sequence[Scope], sources: Sequence[Scope]) -> bool:
    """Return whether T and S share more words and labels than T with any other of SOURCES, and than S with any other of
    TARGETS.
    """
    own = _shared_words(t, s)
    return own > max((_shared_words(t, o) for o in sources if o is not s), default=0) and own > max(
        (_shared_words(o, s) for o in targets if o is not t), default=0
    )


def _outermost(path: _Path) -> tuple[_Path, int] | None:
    """Return (path of the outermost list around PATH, number in it); None if no component of PATH is a number."""
    return next(((path[:at], int(component)) for at, component in enumerate(path) if component.isdecimal()), None)


def _crosswise(targets: Sequence[Scope], sources: Sequence[Scope]) -> bool:
    """Return whether one side has parts in every member of a list, and the other side has a list for each part, with
    equally many of both.

    `steps.0.scale`, `steps.0.shift` … and `scale.0`, `scale.1` …: then a member is not the partner of a part, although
    there are equally many.
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
    """Return `id` of a scope -> (number of different members of its outermost list that have scopes here, its place
    among them from 0), if both sides have each such value equally often, and there are several, but fewer than TARGETS;
    else {}.

    So one side has members with several of these scopes; the other side may have a list for each: `steps.0.first` and
    `first.3` both belong to the first step.
    """
    places: dict[int, tuple[int, int]] = {}
    sizes = []
    for scopes in (targets, sources):
        found = {id(scope): _outermost(scope.path) for scope in scopes}
        lists: dict[_Path, set[int]] = defaultdict(set)
        for around, number in filter(None, found.values()):
            lists[around].add(number)
        ranks = {around: sorted(numbers) for around, numbers in lists.items()}
        own = {i: (len(ranks[at[0]]), ranks[at[0]].index(at[1])) for i, at in found.items() if at is not None}
        sizes.append(Counter(own.values()))
        places |= own
    return places if sizes[0] == sizes[1] and 1 < len(sizes[0]) < len(targets) else {}


def _namesakes(own: Sequence[_Path], theirs: Sequence[_Path]) -> dict[_Path, _Path]:
    """Return path of OWN -> path of THEIRS, by telling words and labels that not all paths of their side have: each
    path has to share one with exactly one path of the other side. Of two paths, one is enough.

    If no path has such a partner, if a path has several, or if two have the same, the result of `_phrased_alike`. {} if
    some paths have one and others none.
    """
    sides: list[dict[_Path, frozenset[str]]] = []
    for paths in (own, theirs):
        words = [_said(path) for path in paths]
        alike = frozenset.intersection(*words)
        sides.append({path: found - alike for path, found in zip(paths, words, strict=True)})
    fitting = {t: [s for s, there in sides[1].items() if shared(said, there)] for t, said in sides[0].items()}
    found = {t: partners[0] for t, partners in fitting.items() if len(partners) == 1}
    if sum(map(len, fitting.values())) > len(found) or len(set(found.values())) < len(found) or not found:
        return _phrased_alike(own, theirs)
    left, free = [t for t in own if t not in found], [s for s in theirs if s not in found.values()]
    alone = not left or len(own) == len(theirs) == 2
    return found | dict(zip(left, free, strict=True)) if alone and len(left) == len(free) else {}


def _phrased_alike(own: Sequence[_Path], theirs: Sequence[_Path]) -> dict[_Path, _Path]:
    """Return path of OWN -> path of THEIRS, by the order of their words (`_in_a_row`): the share of words in one order
    is at least 0.5, and more than 0.2 higher than that of either with any other. {} if a path has no such partner.

    `text_to_image` and `image_to_text` have the same words.
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


def _phrases(paths: Sequence[_Path]) -> dict[_Path, tuple[str, ...]]:
    """Return path -> its words in order, without the components at the start that all PATHS share, without numbers and
    words for containers.
    """
    start = common_start(paths)
    return {
        path: tuple(w for w in words_of(path[start:]) if w not in table().empty and not w.isdecimal()) for path in paths
    }


def _in_a_row(a: Sequence[str], b: Sequence[str]) -> float:
    """Return how many words the phrases A and B have in one order (equal, or one the short form of the other), as a
    share of the longer phrase: 1 for equal phrases, 0 for empty ones.
    """
    longest = [0] * (len(b) + 1)
    for word in a:
        row = [0]
        for at, other in enumerate(b):
            row.append(longest[at] + 1 if alike(word, other) else max(longest[at + 1], row[at]))
        longest = row
    return longest[-1] / max(len(a), len(b), 1)


def _said(path: _Path) -> frozenset[str]:
    """Return the telling words of PATH, and "GROUP:LABEL" for the labels of its components that do not exclude
    others.
    """
    meant = [labels(words_of((component,)), hard=False) for component in path]
    return telling_words(path) | {f"{group}:{label}" for found in meant for group, label in found.items()}


def _shared_words(t: Scope, s: Scope) -> int:
    said = [labels(t.words, hard=hard).items() & labels(s.words, hard=hard).items() for hard in (True, False)]
    return shared({*t.words} - table().empty, {*s.words} - table().empty) + sum(map(len, said))


def _join_scopes(target: Scope, source: Scope, doubt: Question[Unit] | None = None) -> None:
    target.partner, source.partner = source, target
    if doubt:
        target.doubts.append(doubt)


def _ranks(places: Sequence[float | None]) -> list[int]:
    """Return the rank, from 0, of each of PLACES; [] if one is None."""
    known = [place for place in places if place is not None]
    order = sorted(range(len(known)), key=known.__getitem__)
    return [order.index(at) for at in range(len(known))] if len(known) == len(places) else []


def _from_the_end(targets: list[Scope], sources: list[Scope], numbered: Mapping[int, int]) -> list[Scope]:
    """Return SOURCES in the order of TARGETS, the first by its number with the last. NUMBERED has `id` of a scope ->
    its rank.
    """
    ranks = sorted(numbered[id(t)] for t in targets)
    other_end = dict(zip(ranks, reversed(ranks), strict=True))
    return [next(s for s in sources if numbered[id(s)] == other_end[numbered[id(t)]]) for t in targets]
