"""Which tensor goes where: two lists of modules, split into ever smaller cells until each holds one pair.

All modules that look the same (equal shapes) begin in one cell. A piece of evidence gives every module a label that
means the same on both sides: its name, the pair of scopes that it stands in, the word `query` in its name, the pair
that comes just before it. Where both sides have as many of a label, the cell is split. Strong evidence goes first, and
whenever something was learned, it begins again: decided pairs make scopes known, and scopes decide what is in them.
What is never split by anything is not decided and is reported as a guess; what only weak or contradicting evidence
split, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from .expression import Shape
from .fused import part_label
from .pieces import STATISTICS, Canon, Piece, squeezed
from .series import common, parent, series_of, ways
from .words import Group, label, numbers, table, words_of

Labels = Sequence[Hashable]


@dataclass(eq=False, slots=True)
class Unit:
    """A module of one side: the tensors with one path.

    Attributes:
        path: its components.
        pieces: its tensors by role.
        colour: what has to be equal for two units to be one.
        order: its place in the state dict.
        used: its place in the execution order, or None.
        words: the words of its names.
        cell: the cell that it is in.
        evidence: what decided about it.
        doubts: what speaks against being sure.
        rivals: other units that fit as well.
    """

    path: tuple[str, ...]
    pieces: dict[str, Piece]
    colour: Hashable
    order: float
    used: float | None
    words: tuple[str, ...]
    cell: int = 0
    evidence: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    rivals: list[Unit] = field(default_factory=list)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in its path."""
        return numbers(self.path)

    @property
    def main(self) -> Piece:
        """Its most telling tensor."""
        return next((self.pieces[role] for role in _MAIN if role in self.pieces), next(iter(self.pieces.values())))


#: Similarity of names above which they count as related.
_SOME = 0.15
#: Evidence that is a place among those that look alike, of which both sides have as many.
_RANKS = ("execution order of both", "execution order", "registration order", "numbers")
#: An order of which less than this share agrees says little on its own.
_LITTLE = 0.6
#: Share of pairs decided otherwise that must lie in one order on both sides for that order to decide.
_ORDERED = 0.75
_MOST_COMPARED = 48
_MAIN = ("weight", "weight_ih", "weight_v", "weight_orig", "running_mean", "weight_hh", "bias")


@dataclass(eq=False, slots=True)
class Scope:
    """A module with modules below it."""

    path: tuple[str, ...]
    units: list[Unit]
    words: tuple[str, ...] = ()
    cell: Hashable = None
    partner: Scope | None = None
    doubts: list[str] = field(default_factory=list)
    whole: bool = False
    all: bool = True

    @property
    def order(self) -> float:
        """Place of its first unit."""
        return min(unit.order for unit in self.units)

    @property
    def used(self) -> float | None:
        """When it is first used."""
        return min((unit.used for unit in self.units if unit.used is not None), default=None)


@dataclass(slots=True)
class Matching:
    """What was found.

    Attributes:
        pairs: (target, source) units, in the order of the target.
        free_targets, free_sources: units without a partner.
        undecided: cells that nothing could split: (targets, sources).
    """

    pairs: list[tuple[Unit, Unit]]
    free_targets: list[Unit]
    free_sources: list[Unit]
    undecided: list[tuple[list[Unit], list[Unit]]]


def units_of(canon: Canon) -> list[Unit]:
    """The units of one side, in the order of its state dict."""
    grouped: dict[tuple[str, ...], dict[str, Piece]] = {}
    for piece in sorted(canon.pieces.values(), key=lambda p: p.order):
        grouped.setdefault(piece.path, {})[piece.role] = piece
    found = []
    for path, pieces in grouped.items():
        used = [p.used for p in pieces.values() if p.used is not None]
        words = max((p.words for p in pieces.values()), key=len)
        unit = Unit(path, pieces, None, min(p.order for p in pieces.values()), min(used, default=None), words)
        unit.colour = _colour(unit)
        found.append(unit)
    return sorted(found, key=lambda u: u.order)


def _colour(unit: Unit) -> tuple[Shape, str]:
    family = ""
    if unit.pieces.keys() & STATISTICS:
        family = "statistics"
    elif "weight_ih" in unit.pieces:
        family = "recurrent"
    elif "weight_g" in unit.pieces:
        family = "normed"
    elif unit.pieces.keys() == {"bias"}:
        family = "bias"
    return squeezed(unit.main.shape), family


def match(
    source: Canon, target: Canon, hints: Sequence[tuple[Callable[[str], bool], Callable[[str], str | None]]] = ()
) -> Matching:
    """Match the units of two sides in their common form."""
    return _Matcher(source, target, hints).run()


class _Matcher:
    def __init__(self, source: Canon, target: Canon, hints: Sequence[object] = ()) -> None:
        self.sources = units_of(source)
        self.targets = [u for u in units_of(target) if not _constant(u, source)]
        self.constants = [u for u in units_of(target) if _constant(u, source)]
        self.ordered = source.signature.ordered and not _sorted_by_name(source)
        if not self.ordered:
            for place, unit in enumerate(sorted(self.sources, key=lambda u: _natural(u.path))):
                unit.order = place
        self.traced = target.signature.traced
        self.source_traced = source.signature.traced
        self._cells = 0
        colours: dict[Hashable, int] = {}
        for unit in (*self.targets, *self.sources):
            unit.cell = colours.setdefault(unit.colour, len(colours))
        self._cells = len(colours)
        self.pair_of: dict[int, tuple[Unit, Unit]] = {}
        self._credits: dict[str, float] = {}
        self._places: dict[str, tuple[dict[int, int], ...]] = {}
        self._exact: dict[int, Hashable] | None = None
        own, theirs = (Counter(u.colour for u in units) for units in (self.targets, self.sources))
        self._alike = {colour: (own[colour], theirs[colour]) for colour in (*own, *theirs)}
        self._scopes()

    # -- the loop

    def run(self) -> Matching:
        """Split cells until nothing is learned any more."""
        evidence: list[Callable[[], bool]] = [
            self._by_exact_names,
            self._by_scope,
            self._by_hard_words,
            self._by_soft_words,
            self._by_template,
            self._by_tails,
            self._by_series,
            self._by_roles,
            self._by_numbers,
            self._by_neighbours,
            self._by_similar_names,
            self._by_rank,
            self._by_chain,
        ]
        self._settle()
        for _ in range(400):
            self._pair_scopes()
            if not any(step() for step in evidence):
                break
        return self._result()

    def _settle(self) -> None:
        """Note the cells that hold one pair."""
        groups = self._groups()
        self.pair_of = {cell: (ts[0], ss[0]) for cell, (ts, ss) in groups.items() if len(ts) == len(ss) == 1}

    def _groups(self) -> dict[int, tuple[list[Unit], list[Unit]]]:
        groups: dict[int, tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
        for unit in self.targets:
            groups[unit.cell][0].append(unit)
        for unit in self.sources:
            groups[unit.cell][1].append(unit)
        return groups

    def _open(self) -> list[tuple[list[Unit], list[Unit]]]:
        """Cells that could still be split: with units of both sides, and more than one of a side."""
        return [(t, s) for t, s in self._groups().values() if t and s and len(t) + len(s) > 2]

    def _split(
        self,
        name: str,
        label_of: Callable[[Unit, bool], Hashable],
        *,
        mode: str = "some",
        cells: Iterable[tuple[list[Unit], list[Unit]]] | None = None,
        doubt: str = "",
        doubt_of: Callable[[Unit, Unit, list[Unit], list[Unit]], str] | None = None,
    ) -> bool:
        """Split cells by a label. What balances is split off. MODE says when.

        "some": always; "all": where every label balances; "fair": where the labels that do not are on one side only, so
        that what has no label on the other may be they; "one": where the label is that of a single pair.
        """
        changed = False
        for targets, sources in self._open() if cells is None else cells:
            by_label: dict[Hashable, tuple[list[Unit], list[Unit]]] = defaultdict(lambda: ([], []))
            for unit in targets:
                by_label[label_of(unit, True)][0].append(unit)
            for unit in sources:
                by_label[label_of(unit, False)][1].append(unit)
            if len(by_label) < 2 and not (mode == "one" and by_label):
                continue
            if mode == "all" and any(len(t) != len(s) for t, s in by_label.values()):
                continue
            if mode == "fair" and not _fair(by_label):
                continue
            for value, (t, s) in by_label.items():
                if value is None and mode != "all":
                    continue
                if len(t) != len(s) or not t or (mode == "one" and len(t) != 1):
                    continue
                if len(t) == len(targets) and len(s) == len(sources):
                    continue
                self._cells += 1
                said = doubt
                if doubt_of is not None and len(t) == 1:
                    said = said or doubt_of(t[0], s[0], targets, sources)
                for unit in (*t, *s):
                    unit.cell = self._cells
                    unit.evidence.append(name)
                    if said:
                        unit.doubts.append(said)
                if said:
                    for unit in t:
                        unit.rivals = [u for u in sources if u is not s[0]][:8]
                    for unit in (*targets, *sources):  # who is left over is so because of a guess
                        if unit.cell != self._cells and said not in unit.doubts:
                            unit.doubts.append(said)
                            unit.rivals = unit.rivals or list(s)
                changed = True
        if changed:
            self._settle()
        return changed

    # -- names

    def _by_exact_names(self) -> bool:
        """Equal paths below a prefix of each side, where most of what is below the prefixes agrees."""
        if self._exact is None:
            self._exact = self._prefix_labels()
        return self._split("name", partial(_of, self._exact))

    def _prefix_labels(self) -> dict[int, Hashable]:
        found: dict[int, Hashable] = {}
        targets, sources = list(self.targets), list(self.sources)
        for _ in range(8):
            best = self._best_prefixes(targets, sources)
            if best is None:
                break
            own, theirs, agreed = best
            for t, s in agreed:
                found[id(t)] = found[id(s)] = (own, theirs, t.path[len(own) :])
            done = {id(u) for pair in agreed for u in pair}
            targets = [u for u in targets if id(u) not in done]
            sources = [u for u in sources if id(u) not in done]
        return found

    def _best_prefixes(
        self, targets: list[Unit], sources: list[Unit]
    ) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[Unit, Unit]]] | None:
        endings: dict[tuple[Hashable, tuple[str, ...]], list[Unit]] = defaultdict(list)
        for s in sources:
            for at in range(len(s.path)):
                endings[(s.colour, s.path[at:])].append(s)
        votes: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
        for t in targets:
            for at in range(len(t.path)):
                hits = endings.get((t.colour, t.path[at:]))
                if hits:
                    for s in hits[:4]:
                        votes[(t.path[:at], s.path[: len(s.path) - (len(t.path) - at)])] += 1
                    break
        for (own, theirs), _ in votes.most_common(12):
            below_t = {u.path[len(own) :]: u for u in targets if u.path[: len(own)] == own}
            below_s = {u.path[len(theirs) :]: u for u in sources if u.path[: len(theirs)] == theirs}
            agreed = [
                (t, below_s[path])
                for path, t in below_t.items()
                if path in below_s and below_s[path].colour == t.colour
            ]
            clash = sum(path in below_s and below_s[path].colour != t.colour for path, t in below_t.items())
            if not agreed:
                continue
            share = len(agreed) / max(min(len(below_t), len(below_s)), 1)
            plain = sum(path[-1].isdigit() for path, t in below_t.items() if path) / max(len(below_t), 1)
            wanted = 0.9 if plain > 0.5 else 0.5
            rivals = [
                pair
                for pair, n in votes.items()
                if n >= votes[(own, theirs)] and pair != (own, theirs) and (pair[0] == own or pair[1] == theirs)
            ]
            full = own == theirs == ()
            if rivals and not full:
                continue
            if share >= wanted and clash <= max(2, 0.1 * len(agreed)) and (len(agreed) > 1 or full):
                return own, theirs, agreed
            if full and not plain:
                return own, theirs, agreed
        return None

    def _by_hard_words(self) -> bool:
        """Words that exclude one another: query and key, encoder and decoder."""
        return self._by_groups(hard=True)

    def _by_soft_words(self) -> bool:
        """Words that only tell apart, where both sides use them alike."""
        return self._by_groups(hard=False)

    def _by_groups(self, *, hard: bool) -> bool:
        changed = False
        for group in table().groups:
            if group.hard is hard:
                changed |= self._split("words", partial(_said, group), mode="some" if hard else "fair")
        return changed

    def _by_template(self) -> bool:
        """What was decided about other blocks: if `h.{}.a` went to `layers.{}.b` there, it does here."""
        votes: dict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
        back: dict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
        for t, s in self.pair_of.values():
            a, b = _template(t.path), _template(s.path)
            votes[a][b] += 1
            back[b][a] += 1
        certain = {
            a: b.most_common(1)[0][0]
            for a, b in votes.items()
            if len(b) == 1 and len(back[next(iter(b))]) == 1 and "{}" in a
        }
        doubtful = {_template(t.path): t.doubts[0] for t, _ in self.pair_of.values() if t.doubts}
        return self._split(
            "other blocks",
            lambda u, is_target: (
                certain.get(_template(u.path))
                if is_target
                else (_template(u.path) if _template(u.path) in back and len(back[_template(u.path)]) == 1 else None)
            ),
            doubt_of=lambda t, s, ts, ss: doubtful.get(_template(t.path), ""),
        )

    def _by_tails(self) -> bool:
        """Names inside a block, as other blocks settled them: if `conv1` was `first` there, it is here."""
        beside: dict[bool, dict[tuple[object, ...], set[str]]] = {}
        for is_target, units in ((True, self.targets), (False, self.sources)):
            names = beside[is_target] = defaultdict(set)
            for u in units:
                names[(u.path[:-1], len(u.main.shape))].add(u.path[-1])

        def company(u: Unit, is_target: bool) -> Hashable:
            return frozenset(beside[is_target][(u.path[:-1], len(u.main.shape))])

        sure = [
            (t, s)
            for t, s in self.pair_of.values()
            if not t.doubts and min(len(t.path), len(s.path)) > 1
            if not t.path[-1].isdigit() and not s.path[-1].isdigit()  # places in a list move
        ]
        for own, theirs in ((True, False), (False, True)):  # of other company on both sides nothing is learned
            there: dict[Hashable, set[Hashable]] = defaultdict(set)
            back: dict[Hashable, set[Hashable]] = defaultdict(set)
            names_t = {id(u): (u.path[-1], company(u, True) if own else None) for u in self.targets}
            names_s = {id(u): (u.path[-1], company(u, False) if theirs else None) for u in self.sources}
            for t, s in sure:
                there[names_t[id(t)]].add(names_s[id(s)])
                back[names_s[id(s)]].add(names_t[id(t)])
            known = {a: b for a, (b, *more) in there.items() if not more and len(back[b]) == 1}
            images = set(known.values())
            labels = {i: known.get(name) for i, name in names_t.items()}
            labels |= {i: name if name in images else None for i, name in names_s.items()}
            if self._split("other blocks", partial(_of, labels)):
                return True
        return False

    def _by_series(self) -> bool:
        """What is known of other members of a numbered series, and of the series beside it."""
        sure = [(t.path, s.path) for t, s in self.pair_of.values() if not t.doubts]
        known = ways(sure)
        labels: dict[int, Hashable] = {}
        images = {way.source for way in known.values()}
        for t in self.targets:
            for own, number in series_of(t.path):
                if own in known and t.cell not in self.pair_of:
                    labels[id(t)] = (known[own].source, known[own](number))
        for s in self.sources:
            for series, number in series_of(s.path):
                if series in images and s.cell not in self.pair_of:
                    labels[id(s)] = (series, number)
        if self._split("others of its series", partial(_of, labels), mode="one"):
            return True
        beside: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
        for own, way in known.items():
            beside[(parent(own), parent(way.source))].add((way.sign, way.offset))
        for targets, sources in self._open():
            one, other = common(t.path for t in targets), common(s.path for s in sources)
            if one is None or other is None or len(targets) != len(sources):
                continue
            for sign, offset in beside.get((parent(one[0]), parent(other[0])), ()):
                numbers = [sign * n + offset for n in one[1]]
                if set(numbers) == set(other[1]):
                    ranks = {id(u): n for u, n in zip([*targets, *sources], [*numbers, *other[1]], strict=True)}
                    if self._split("the series beside it", partial(_of, ranks), mode="all", cells=[(targets, sources)]):
                        return True
        return False

    def _by_roles(self) -> bool:
        return self._split("which tensors they hold", lambda u, _: frozenset(u.pieces), mode="all")

    def _by_numbers(self) -> bool:
        """The places of their numbers: the first numbers of one side are the first numbers of the other."""
        changed = False
        for targets, sources in self._open():
            if len(targets) != len(sources):
                continue
            ranks = _number_ranks(targets, sources)
            if ranks is None:
                continue
            against = self._order_conflict(targets, sources, ranks)
            if against and not _same_numbers(targets, sources):
                continue
            changed |= self._split("numbers", partial(_of, ranks), mode="all", cells=[(targets, sources)])
        return changed

    def _order_conflict(self, targets: list[Unit], sources: list[Unit], ranks: dict[int, int]) -> bool:
        """Whether the order of numbers is not that in which the units are used and stored."""
        if not (self.traced and self.ordered):
            return False
        used = sorted(targets, key=lambda u: (u.used is None, u.used or 0.0))
        stored = sorted(sources, key=lambda u: u.order)
        return [ranks[id(u)] for u in used] != [ranks[id(u)] for u in stored]

    def _by_similar_names(self) -> bool:
        """Names that have most words in common, each the best of the other by a margin."""
        changed = False
        for targets, sources in self._open():
            if len(targets) > 24 or len(sources) > 24:
                continue
            scores = {(id(t), id(s)): _similarity(t, s) for t in targets for s in sources}
            best: dict[int, Hashable] = {}
            for t in targets:
                ranked = sorted(sources, key=lambda s: -scores[(id(t), id(s))])
                top = scores[(id(t), id(ranked[0]))]
                second = scores[(id(t), id(ranked[1]))] if len(ranked) > 1 else 0.0
                s = ranked[0]
                others = max((scores[(id(o), id(s))] for o in targets if o is not t), default=0.0)
                if top >= 0.3 and top > second + 0.1 and top > others + 0.1:
                    best[id(t)] = best[id(s)] = (id(t), id(s))
            if best:
                changed |= self._split("similar names", partial(_of, best), mode="one", cells=[(targets, sources)])
        return changed

    # -- scopes

    def _scopes(self) -> None:
        self.scopes: dict[bool, list[Scope]] = {}
        for is_target, units in ((True, self.targets), (False, self.sources)):
            other = {u.colour for u in (self.sources if is_target else self.targets)}
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
        self._inner: dict[int, list[Scope]] = defaultdict(list)
        for scopes in self.scopes.values():
            for scope in sorted(scopes, key=lambda s: -len(s.path)):
                for unit in scope.units:
                    self._inner[id(unit)].append(scope)

    def _pair_scopes(self) -> None:
        """Pair scopes that hold the same: as many of each cell."""
        balanced = {cell for cell, (t, s) in self._groups().items() if len(t) == len(s)}
        for only_balanced in (False, True):
            classes: dict[Hashable, tuple[list[Scope], list[Scope]]] = defaultdict(lambda: ([], []))
            for is_target, scopes in self.scopes.items():
                for scope in scopes:
                    if scope.partner is not None:
                        continue
                    cells = [u.cell for u in scope.units if not only_balanced or u.cell in balanced]
                    if len(cells) > 1:
                        classes[tuple(sorted(cells))][0 if is_target else 1].append(scope)
            for targets, sources in classes.values():
                if targets and sources:
                    self._pair_class(targets, sources)
                    for scope in (*targets, *sources):
                        scope.whole = (
                            scope.partner is not None and not only_balanced and scope.all and scope.partner.all
                        )

    def _pair_class(self, targets: list[Scope], sources: list[Scope]) -> None:
        if not targets or not sources:
            return
        if len(targets) == len(sources) == 1:
            _join_scopes(targets[0], sources[0], "")
            return
        by_words = [partial(_said, group) for group in table().groups if group.hard]
        labelings: list[Callable[[Scope, bool], Hashable]] = [
            self._parent_label,
            *by_words,
            self._scope_name,
            self._scope_numbers,
        ]
        for labels in labelings:
            parts: dict[Hashable, tuple[list[Scope], list[Scope]]] = defaultdict(lambda: ([], []))
            for scope in targets:
                parts[labels(scope, True)][0].append(scope)
            for scope in sources:
                parts[labels(scope, False)][1].append(scope)
            good = {k: v for k, v in parts.items() if k is not None and len(v[0]) == len(v[1])}
            if len(parts) < 2 or not good or (len(targets) == len(sources) and not _fair(parts)):
                continue
            for t, s in good.values():
                self._pair_class(t, s)
            if len(targets) == len(sources):
                rest = [v for k, v in parts.items() if k not in good]
                self._pair_class([x for t, _ in rest for x in t], [x for _, s in rest for x in s])
            return
        if len(targets) != len(sources):
            return
        self._pair_in_order(targets, sources)

    def _pair_in_order(self, targets: list[Scope], sources: list[Scope]) -> None:
        """Pair equal scopes by their numbers and by the order in which they are stored and used."""
        votes = []
        numbered = _number_ranks(targets, sources)
        if numbered is not None and len(set(numbered.values())) == len(targets):
            by_number = {numbered[id(s)]: s for s in sources}
            votes.append([by_number[numbered[id(t)]] for t in targets])
        stored = sorted(sources, key=lambda s: s.order) if self.ordered else None
        if stored is not None:
            for name, _, _ in self._sequences():
                if name == "registration order":
                    own = sorted(targets, key=lambda t: t.order)
                elif name == "execution order" and all(t.used is not None for t in targets):
                    own = sorted(targets, key=lambda t: t.used or 0.0)
                else:
                    continue
                votes.append([stored[own.index(t)] for t in targets])
        if not votes:
            return
        chosen = votes[0]
        only_registered = len(votes) == 1 and numbered is None and not self.traced
        agree = (not only_registered and all(vote == chosen for vote in votes)) or (
            len(votes) == 3 and votes[0] in votes[1:]
        )
        if not agree and numbered is not None and _same_numbers(targets, sources):
            agree = True
        if not agree:
            agree = sum(not _names_speak_for(t, s, targets, sources) for t, s in zip(targets, chosen, strict=True)) <= 1
        doubt = "" if agree else "equal parts of the model come in another order than they are registered or numbered"
        for t, s in zip(targets, chosen, strict=True):
            _join_scopes(t, s, doubt)
            if doubt:
                for unit in t.units:
                    unit.doubts.append(doubt)

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

    def _scope_name(self, scope: Scope, is_target: bool) -> Hashable:
        return scope.path

    def _scope_numbers(self, scope: Scope, is_target: bool) -> Hashable:
        return numbers(scope.path) or None

    def _by_scope(self) -> bool:
        """Being inside a pair of scopes, the innermost that is known."""
        changed = False
        for depth in range(3):
            changed |= self._split("scope", partial(self._scope_label, depth=depth))
            if changed:
                break
        return changed

    def _scope_label(self, unit: Unit, is_target: bool, *, depth: int) -> Hashable:
        paired = [scope for scope in self._inner.get(id(unit), ()) if scope.partner is not None]
        if len(paired) <= depth:
            return None
        scope = paired[depth]
        return id(scope if is_target else scope.partner)

    # -- order

    def _sequences(self) -> list[tuple[str, list[Unit], list[Unit]]]:
        """The orders in which the two sides can be laid beside each other, the most telling first."""
        found = []
        stored = sorted(self.sources, key=lambda u: u.order)
        if self.source_traced and self.traced:
            found.append(("execution order of both", _in_use(self.targets), _in_use(self.sources)))
        if self.ordered:
            if self.traced:
                found.append(("execution order", _in_use(self.targets), stored))
            found.append(("registration order", sorted(self.targets, key=lambda u: u.order), stored))
        return sorted(found, key=lambda one: -self._credit(*one))

    def _credit(self, name: str, targets: list[Unit], sources: list[Unit]) -> float:
        """How well two orders agree as far as shapes tell: the share of neighbours that look alike on both sides."""
        if name not in self._credits:
            a, b = (Counter(pairwise(c)) for c in ([u.colour for u in targets], [u.colour for u in sources]))
            self._credits[name] = sum((a & b).values()) / max(min(sum(a.values()), sum(b.values())), 1)
        return self._credits[name]

    def _agreement(self, name: str, targets: list[Unit], sources: list[Unit]) -> float:
        """How far what is decided by other evidence lies in one order on both sides, around these units: 0 to 1.

        Around them is the innermost pair of scopes that holds all of them. Where all of them are of one series on each
        side, series alone are compared: lists that stand one after the other are no other order than lists in turns.
        """
        places = self._places.get(name)
        if places is None:
            _, ts, ss = next(one for one in self._sequences() if one[0] == name)
            places = self._places[name] = tuple({id(u): n for n, u in enumerate(side)} for side in (ts, ss))
        around = self._scope_around(targets, sources)
        step = max(len(around) // _MOST_COMPARED, 1)
        decided = [
            (places[0][id(t)], places[1][id(s)], _series(t), _series(s))
            for t in around[::step]
            if t.cell in self.pair_of
            and (s := self.pair_of[t.cell][1])
            and id(t) in places[0]
            and id(s) in places[1]
            and not t.doubts
            and not any(_is_order(e) for e in t.evidence)
        ]
        alike = len({_series(t) for t in targets}) == len({_series(s) for s in sources}) == 1
        if name == "execution order" and _counted_as_stored(sources):
            return 1.0  # what is numbered in the order in which it is stored is used in that order
        compared = [
            (a[0] < b[0]) == (a[1] < b[1])
            for n, a in enumerate(decided)
            for b in decided[:n]
            if not alike or (a[2] == b[2] and a[3] == b[3])
        ]
        return sum(compared) / len(compared) if compared else 1.0

    def _scope_around(self, targets: list[Unit], sources: list[Unit]) -> list[Unit]:
        own, theirs = set(map(id, targets)), set(map(id, sources))
        for scope in self._inner.get(id(targets[0]), ()):
            partner = scope.partner
            if partner is not None and own <= set(map(id, scope.units)) and theirs <= set(map(id, partner.units)):
                return scope.units
        return self.targets

    def _doubt_of(self, name: str, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> str:
        """What speaks against a pair that the order NAME made."""
        if not self._corroborated(t, s, targets, sources) and self._agreement(name, targets, sources) < _ORDERED:
            return "elsewhere the two sides are stored and used in different orders"
        return self._against(t, s, targets, sources)

    def _against(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> str:
        """A doubt if a credible order gives t and s different places among those that look alike."""
        if len(targets) != len(sources) or all("running_var" in u.pieces for u in targets):
            return ""
        inside_t, inside_s = set(map(id, targets)), set(map(id, sources))
        if self._corroborated(t, s, targets, sources):
            return ""
        if max((self._credits[name] for name, _, _ in self._sequences()), default=1.0) < _LITTLE:
            return "the two sides are stored and used in different orders"
        for name, ts, ss in self._sequences():
            place_t = next((i for i, u in enumerate(u for u in ts if id(u) in inside_t) if u is t), None)
            place_s = next((i for i, u in enumerate(u for u in ss if id(u) in inside_s) if u is s), None)
            if place_t is not None and place_s is not None and place_t != place_s:
                return f"the {name} speaks for another"
        return ""

    def _by_neighbours(self) -> bool:
        """What comes directly before and after it, where those are decided."""
        for name, targets, sources in self._sequences():
            around = (_neighbours(targets), _neighbours(sources))
            between = f"between the same neighbours in {name}"
            doubt = partial(self._doubt_of, name)
            if self._split(between, partial(self._both_sides, around), mode="one", doubt_of=doubt):
                return True
            even = [(t, s) for t, s in self._open() if len(t) == len(s)]
            for side, word in ((0, "after"), (1, "before")):
                near = partial(self._one_side, around, side=side)
                text = f"{word} the same neighbour in {name}"
                if self._split(text, near, mode="one", cells=even, doubt_of=doubt):
                    return True
        return False

    def _one_side(self, around: tuple[_Around, _Around], unit: Unit, is_target: bool, *, side: int) -> Hashable:
        """The pair that stands directly before (0) or after (1) a unit, "edge" where nothing does."""
        place = around[0 if is_target else 1][side].get(id(unit))
        if place is None or isinstance(place, str):
            return place
        return place.cell if place.cell in self.pair_of else None

    def _both_sides(self, around: tuple[_Around, _Around], unit: Unit, is_target: bool) -> Hashable:
        before = self._one_side(around, unit, is_target, side=0)
        after = self._one_side(around, unit, is_target, side=1)
        return None if before is None or after is None else (before, after)

    def _corroborated(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Whether names or numbers speak for this pair and no other of the cell, too."""
        own = _similarity(t, s)
        if own > max((_similarity(t, other) for other in sources if other is not s), default=0.0) and own > max(
            (_similarity(other, s) for other in targets if other is not t), default=0.0
        ):
            return True
        ranks = _number_ranks(targets, sources)
        if ranks is not None and len(set(ranks.values())) == len(targets):
            return ranks[id(t)] == ranks[id(s)]
        same = [u for u in (*targets, *sources) if u.numbers == t.numbers]
        return bool(t.numbers) and len(same) == 2 and s.numbers == t.numbers

    def _by_rank(self) -> bool:
        """The same place among those that look alike; last, and only for full cells."""
        cells = sorted(((t, s) for t, s in self._open() if len(t) == len(s)), key=lambda c: len(c[0]))
        for targets, sources in cells:
            inside_t, inside_s = set(map(id, targets)), set(map(id, sources))
            votes = []
            for name, ts, ss in self._sequences():
                rank_t = {id(u): i for i, u in enumerate(u for u in ts if id(u) in inside_t)}
                rank_s = {id(u): i for i, u in enumerate(u for u in ss if id(u) in inside_s)}
                if len(rank_t) == len(rank_s) == len(targets):
                    votes.append((name, {**rank_t, **rank_s}))
            numbered = _number_ranks(targets, sources)
            if numbered is not None and len(set(numbered.values())) == len(targets):
                votes.append(("numbers", numbered))
            if not votes:
                continue
            if votes[-1][0] == "numbers" and self._counted_as_used(targets, sources, votes[-1][1]):
                votes.insert(0, votes.pop())
            name, ranks = votes[0]
            first = _pairing(targets, sources, ranks)
            other = {n: _pairing(targets, sources, r) for n, r in votes[1:]}
            against = [n for n, pairing in other.items() if pairing != first]
            doubt = ""
            pairs = [(t, next(s for s in sources if id(s) == i)) for t, i in zip(targets, first, strict=True)]
            if sum(not self._corroborated(t, s, targets, sources) for t, s in pairs) <= 1:
                against = []
            if not against and name != "numbers" and self._credits[name] < _LITTLE and other.get("numbers") != first:
                doubt = self._against(*pairs[0], targets, sources)
            if not doubt and name != "numbers" and other.get("numbers") != first:
                loose = [pair for pair in pairs if not self._corroborated(*pair, targets, sources)]
                if len(loose) > 1 and self._agreement(name, targets, sources) < _ORDERED:
                    doubt = "elsewhere the two sides are stored and used in different orders"
            if against and other.get("numbers") != first:
                doubt = f"{name} and {against[0]} do not agree"
            elif name == "numbers" and not self.ordered and not _same_numbers(targets, sources):
                doubt = "nothing but numbers tells them apart"
            if self._split(name, partial(_of, ranks), mode="all", cells=[(targets, sources)], doubt=doubt):
                return True
        return False

    def _counted_as_used(self, targets: list[Unit], sources: list[Unit], numbered: dict[int, int]) -> bool:
        """Whether the numbers of both sides count one series each, and the model uses its own in their order."""
        used = [u.used if u.used is not None else u.order for u in sorted(targets, key=lambda u: numbered[id(u)])]
        return used == sorted(used) and len({_series(u) for u in sources}) == len({_series(u) for u in targets}) == 1

    def _by_chain(self) -> bool:
        """In cells with more on one side: what follows a decided pair on both sides, from the front on."""
        for name, targets, sources in self._sequences():
            before_t, _ = _neighbours(targets)
            before_s, _ = _neighbours(sources)
            following = {id(b): u for u in sources if isinstance(b := before_s.get(id(u)), Unit)}
            first = sources[0] if sources else None
            for t in targets:
                if t.cell in self.pair_of:
                    continue
                b = before_t.get(id(t))
                s = None
                if b == "edge":
                    s = first
                elif isinstance(b, Unit) and b.cell in self.pair_of:
                    s = following.get(id(self.pair_of[b.cell][1]))
                if s is None or s.cell != t.cell or s.cell in self.pair_of:
                    continue
                if isinstance(b, Unit) and self.pair_of[b.cell][1].path[:-1] != s.path[:-1]:
                    continue  # the list that it would go on is at its end
                goes_on = isinstance(b, Unit) and _series(b) == _series(t)
                named = _similarity(t, s) > _SOME or _related(t, s)
                doubt = "" if goes_on or named else "it only follows the one before it"
                cell = next((c for c in self._open() if any(u is t for u in c[0])), None)
                if cell is not None and self._split(
                    f"follows the one before it in {name}",
                    partial(_of, {id(t): 1, id(s): 1}),
                    mode="one",
                    cells=[cell],
                    doubt=doubt,
                ):
                    return True
        return False

    # -- the end

    def _result(self) -> Matching:
        groups = self._groups()
        pairs, undecided, free_t, free_s = [], [], [], []
        complete = all(len(t) == len(s) for t, s in groups.values())
        share = len(self.pair_of) / max(len(self.targets), 1)
        for targets, sources in groups.values():
            if len(targets) == len(sources) == 1:
                t, s = targets[0], sources[0]
                if complete or self._supported(t, s, share):
                    pairs.append((t, s))
                else:
                    free_t.append(t)
                    free_s.append(s)
            elif targets and sources:
                undecided.append((targets, sources))
            else:
                free_t += targets
                free_s += sources
        self._contradictions(pairs)
        pairs.sort(key=lambda pair: pair[0].order)
        return Matching(pairs, [*free_t, *self.constants], free_s, undecided)

    def _supported(self, t: Unit, s: Unit, share: float) -> bool:
        """The last gate: a pair that only its shape made needs a name, a scope or neighbours that agree."""
        strong = [
            e
            for e in t.evidence
            if e in ("name", "similar names", "other blocks") or e.startswith(("between", "follows"))
        ]
        if strong:
            return True
        if self._hard_conflict(t, s):
            return False
        if self._same_scope(t, s) or _similarity(t, s) > _SOME or _related(t, s):
            return True
        if any(self._fits_between(t, s, ts, ss) for _, ts, ss in self._sequences()):
            return True
        alone = self._alike[t.colour] == (1, 1) or any(e in _RANKS for e in t.evidence)
        return alone and any(self._is_last(t, s, ts, ss) for _, ts, ss in self._sequences())

    def _is_last(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        """Whether they follow a pair, and nothing after them has a partner on either side: only the end differs."""
        place = [next((i for i, u in enumerate(units) if u is one), -1) for units, one in ((targets, t), (sources, s))]
        if min(place) < 1:
            return False
        before = targets[place[0] - 1], sources[place[1] - 1]
        rest = [*targets[place[0] + 1 :], *sources[place[1] + 1 :]]
        paired = before[0].cell == before[1].cell and before[0].cell in self.pair_of
        return paired and not any(u.cell in self.pair_of for u in rest)

    def _same_scope(self, t: Unit, s: Unit) -> bool:
        """Whether both are in a pair of scopes of which the whole content matched."""
        partners = {
            id(scope.partner) for scope in self._inner.get(id(t), ()) if scope.partner is not None and scope.whole
        }
        return any(id(scope) in partners for scope in self._inner.get(id(s), ()))

    def _fits_between(self, t: Unit, s: Unit, targets: list[Unit], sources: list[Unit]) -> bool:
        before_t, after_t = _neighbours(targets)
        before_s, after_s = _neighbours(sources)

        def same(a: object, b: object) -> bool:
            if a == "edge" or b == "edge":
                return a == b
            return isinstance(a, Unit) and isinstance(b, Unit) and a.cell == b.cell and a.cell in self.pair_of

        return same(before_t.get(id(t)), before_s.get(id(s))) and same(after_t.get(id(t)), after_s.get(id(s)))

    def _hard_conflict(self, t: Unit, s: Unit) -> str | None:
        return hard_conflict(t.words, s.words)

    def _contradictions(self, pairs: list[tuple[Unit, Unit]]) -> None:
        self._unusual_attention(pairs)
        self._strangers_among_namesakes(pairs)
        for t, s in pairs:
            conflict = self._hard_conflict(t, s)
            if conflict and "name" not in t.evidence:
                t.doubts.append(conflict)
            for scope in self._inner.get(id(t), ()):
                if scope.doubts and any(p is scope.partner for p in self._inner.get(id(s), ())):
                    t.doubts += [d for d in scope.doubts if d not in t.doubts]

    def _strangers_among_namesakes(self, pairs: list[tuple[Unit, Unit]]) -> None:
        """Where all else has the same name on both sides, a pair of two names may be something new that merely fits."""
        names = self._exact or {}
        strangers = [(t, s) for t, s in pairs if id(t) not in names or names[id(t)] != names.get(id(s))]
        if len(strangers) > 0.2 * len(pairs):
            return
        for t, s in strangers:
            if _similarity(t, s) <= _SOME and not _related(t, s):
                t.doubts.append("all else has the same name on both sides, and this has another")

    def _unusual_attention(self, pairs: list[tuple[Unit, Unit]]) -> None:
        """Queries, keys, values and output by the names of one side that the other does not use in that order."""
        group = next(g for g in table().groups if g.name == "attention")
        blocks: dict[tuple[str, ...], list[tuple[str, Unit, Unit]]] = defaultdict(list)
        for t, s in pairs:
            own, theirs = label(group, t.words), label(group, s.words)
            if (own is None) != (theirs is None) and "name" not in t.evidence:
                blocks[t.path[:-1]].append((own or theirs or "", t, s))
        for members in blocks.values():
            members.sort(key=lambda m: m[1].used if m[1].used is not None else m[1].order)
            said = [name for name, _, _ in members]
            if len(said) > 1 and said != sorted(said, key="qkvo".index):
                for name, t, _ in members:
                    t.doubts.append(f"{name} is not where queries, keys and values are computed as a rule")


def hard_conflict(a: Sequence[str], b: Sequence[str]) -> str | None:
    """Words of two names that exclude each other, as a sentence."""
    for group in table().groups:
        if group.hard:
            one, other = label(group, a), label(group, b)
            if one and other and one != other:
                return f"the names speak of different things: {one} and {other}"
    return None


def _names_speak_for(t: Scope, s: Scope, targets: Sequence[Scope], sources: Sequence[Scope]) -> bool:
    """Whether two scopes have more words in common than either has with another."""
    own = _shared_words(t, s)
    return own > max((_shared_words(t, o) for o in sources if o is not s), default=0) and own > max(
        (_shared_words(o, s) for o in targets if o is not t), default=0
    )


def _shared_words(t: Scope, s: Scope) -> int:
    said = [g.name for g in table().groups if (one := label(g, t.words)) is not None and one == label(g, s.words)]
    return len(set(t.words) & set(s.words) - table().empty) + len(said)


def _join_scopes(target: Scope, source: Scope, doubt: str) -> None:
    target.partner, source.partner = source, target
    if doubt:
        target.doubts.append(doubt)


def _constant(unit: Unit, source: Canon) -> bool:
    """Whether a unit of the target holds only buffers that are computed when it is built (masks, indices)."""
    if any(p.entry.parameter is not False for p in unit.pieces.values()) or unit.pieces.keys() & STATISTICS:
        return False
    keys = source.signature.entries
    own = {p.entry.key for p in unit.pieces.values()}
    tails = {".".join(key.split(".")[-2:]) for key in keys}
    return not any(key in keys or ".".join(key.split(".")[-2:]) in tails for key in own)


def _sorted_by_name(canon: Canon) -> bool:
    """Whether the keys of a file are in the order of the alphabet, as no model registers them."""
    found = list(canon.signature.entries)
    return (
        len(found) > 3 and found == sorted(found) and found != sorted(found, key=lambda k: _natural(k.split(".")))
    ) or (len(found) > 8 and found == sorted(found))


def _natural(path: Sequence[str]) -> list[tuple[int, int, str]]:
    out: list[tuple[int, int, str]] = []
    for component in path:
        pieces = re.findall(r"\d+|\D+", component)
        out += [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in pieces]
        out.append((-1, 0, ""))
    return out


def _fair(by_label: Mapping[Hashable, tuple[Sequence[object], Sequence[object]]]) -> bool:
    """Whether labels of one side that the other does not have can be what has no label there, and both hold as many."""
    sizes = {value: (len(t), len(s)) for value, (t, s) in by_label.items()}
    uneven = [pair for value, pair in sizes.items() if value is not None and pair[0] != pair[1]]
    if sum(t for t, _ in sizes.values()) != sum(s for _, s in sizes.values()):
        return not uneven and sizes.get(None, (0, 0))[0] == sizes.get(None, (0, 0))[1]
    return all(0 in pair for pair in uneven) and len({pair[0] == 0 for pair in uneven}) <= 1


def _of(labels: Mapping[int, Hashable], unit: Unit, _: bool) -> Hashable:
    return labels.get(id(unit))


def _said(group: Group, item: Unit | Scope, _: bool) -> str | None:
    return label(group, item.words)


def _template(path: Sequence[str]) -> tuple[str, ...]:
    return tuple("{}" if component.isdigit() else component for component in path)


def _series(unit: Unit) -> tuple[str, ...]:
    """What a path has in common with those of the same list: everything but its numbers."""
    return tuple(re.sub(r"\d+", "", component) for component in unit.path)


def _counted_as_stored(sources: list[Unit]) -> bool:
    """Whether these are of one series and stored in the order of their numbers."""
    stored = [u.numbers for u in sorted(sources, key=lambda u: u.order)]
    return len({_series(u) for u in sources}) == 1 and all(a < b for a, b in pairwise(stored))


def _is_order(evidence: str) -> bool:
    """Whether a piece of evidence comes from an order."""
    return evidence.startswith(("between", "after", "before", "follows")) or (
        evidence in _RANKS and evidence != "numbers"
    )


def _in_use(units: list[Unit]) -> list[Unit]:
    return sorted((u for u in units if u.used is not None), key=lambda u: u.used or 0.0)


_Around = tuple[dict[int, Unit | str], dict[int, Unit | str]]


def _neighbours(units: list[Unit]) -> _Around:
    before: dict[int, Unit | str] = {}
    after: dict[int, Unit | str] = {}
    for place, unit in enumerate(units):
        before[id(unit)] = units[place - 1] if place else "edge"
        after[id(unit)] = units[place + 1] if place + 1 < len(units) else "edge"
    return before, after


def _number_ranks(targets: Sequence[Unit | Scope], sources: Sequence[Unit | Scope]) -> dict[int, int] | None:
    """The rank of each by the numbers in its path, or None where the two sides do not have as many of each."""
    ranks: dict[int, int] = {}
    counts = []
    for side in (targets, sources):
        keys = {id(u): numbers(u.path) for u in side}
        if len({len(k) for k in keys.values()}) > 1:
            return None
        order = {value: rank for rank, value in enumerate(sorted(set(keys.values())))}
        if len(order) < 2:
            return None
        ranks.update({i: order[k] for i, k in keys.items()})
        counts.append(Counter(order[k] for k in keys.values()))
    return ranks if counts[0] == counts[1] else None


def _same_numbers(targets: Sequence[Unit | Scope], sources: Sequence[Unit | Scope]) -> bool:
    return Counter(numbers(u.path) for u in targets) == Counter(numbers(u.path) for u in sources)


def _pairing(targets: Sequence[Unit], sources: Sequence[Unit], ranks: dict[int, int]) -> list[int]:
    by_rank = {ranks[id(s)]: id(s) for s in sources}
    return [by_rank[ranks[id(t)]] for t in targets]


def _meaningful(unit: Unit) -> set[str]:
    """Words of a unit that say something, with those that mean the same made equal."""
    words = [w for w in unit.words if w not in table().empty and w not in ("weight", "bias", "proj", "layer")]
    found = {w for w in words if not w.isdigit()}
    for group in table().groups:
        said = label(group, unit.words)
        if said:
            found.add(f"{group.name}:{said}")
    return found


def _similarity(t: Unit, s: Unit) -> float:
    a, b = _meaningful(t), _meaningful(s)
    if not a or not b:
        return 0.0
    score = len(a & b) / len(a | b)
    return score + (0.05 if t.numbers == s.numbers and t.numbers else 0.0)


def _related(t: Unit, s: Unit) -> bool:
    """Whether a group of words calls both the same."""
    for group in table().groups:
        said = label(group, t.words)
        if said and said == label(group, s.words):
            return True
    return part_label(t.path) is not None and part_label(t.path) == part_label(s.path)
