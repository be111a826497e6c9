"""Rules about names: equal names, words that exclude each other, similar names, and pairs in other blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from ...keys.known_buffers import STATISTICS
from ..questions import Question, Reason, ask
from ..words import Group, cut, table, words_of
from .along import along_branches
from .cells import Cells, of, said
from .counting import turned
from .evidence import Evidence, Kind
from .levels import Levels
from .owners import Owners
from .series import Relation, Series, Ways, common, translation
from .units import Pair, Unit, hard_conflict, similarity, template

#: A prefix of the target, one of the source, and the path below both.
Exact = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Naming:
    """Rules that split cells by names. Each rule (`by_…`) returns whether it split any cell.

    Attributes:
        exact: `id` of a unit -> (prefix of the target, prefix of the source, path below both), equal for two units of
            one colour with equal paths below these prefixes. It has the units of at most eight pairs of prefixes, below
            which most paths agree; it lacks members of lists that the two sides count differently.
    """

    def __init__(self, cells: Cells, levels: Levels) -> None:
        self.cells = cells
        self._levels = levels
        self._owners = Owners(cells)
        self.exact: dict[int, Exact] = self._prefix_labels()

    def renamed(self, t: Unit) -> bool:
        """Return whether T, a unit of the target, has no unit of the source with an equal path (see `exact`), or one
        only below a different prefix. A prefix that only one side has does not count as different.
        """
        found = self.exact.get(id(t))
        return found is None or (found[0] != () != found[1] and found[0] != found[1])

    def by_exact_names(self) -> bool:
        """Split cells by equal paths below a prefix of each side, if most paths below the two prefixes agree (see
        `exact`). Return whether any cell was split.
        """
        return self.cells.split(Evidence(Kind.NAME), partial(of, self.exact))

    def _prefix_labels(self) -> dict[int, Exact]:
        found: dict[int, Exact] = {}
        targets, sources = list(self.cells.targets), list(self.cells.sources)
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
            if hard_conflict(words_of(own), words_of(theirs)):
                continue  # what `text.` and `image.` hold may have one name, and is not one
            below_t = {u.path[len(own) :]: u for u in targets if u.path[: len(own)] == own}
            below_s = {u.path[len(theirs) :]: u for u in sources if u.path[: len(theirs)] == theirs}
            agreed = [
                (t, below_s[path])
                for path, t in below_t.items()
                if path in below_s and below_s[path].colour == t.colour
            ]
            clash = sum(path in below_s and below_s[path].colour != t.colour for path, t in below_t.items())
            agreed = _counted_alike(
                agreed, below_t, below_s, unlike=self._levels.against(_list(own), _list(theirs)) != 0
            )
            if not agreed:
                continue
            share = len(agreed) / max(min(len(below_t), len(below_s)), 1)
            plain = sum(path[-1].isdecimal() for path, t in below_t.items() if path) / max(len(below_t), 1)
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

    def by_hard_words(self) -> bool:
        """Split cells by labels that exclude one another: query and key, encoder and decoder. Units with a label that
        both sides have equally often leave their cell. Return whether any cell was split.
        """
        return self._by_groups(hard=True)

    def by_soft_words(self) -> bool:
        """Split cells by labels that do not exclude one another, if the split is fair (see `cells.fair`). Return
        whether any cell was split.
        """
        return self._by_groups(hard=False)

    def _by_groups(self, *, hard: bool) -> bool:
        changed = False
        for group in table().groups:
            if group.hard is hard:
                changed |= self.cells.split(
                    Evidence(Kind.WORDS), partial(_said, group), mode="some" if hard else "fair"
                )
        return changed

    def by_other_blocks(self) -> bool:
        """Split cells by pairs in other blocks: if `h.{}.a` is paired with `layers.{}.b` in another block, and neither
        with anything else, it is in this block, too. Return whether any cell was split.

        Also if `conv1` is paired with `first` in another module whose layers have the same names. If a pair that showed
        this has a doubt, the new pairs get the same question.
        """
        for (own, theirs), pairs in self._places_in_blocks():
            labels = Relation((own[id(t)], theirs[id(s)]) for t, s in pairs).labels(own, theirs)
            doubtful = {own[id(t)]: t.doubts[0] for t, _ in pairs if t.doubts}
            doubt_of = partial(_doubt_about, own, doubtful)
            if self.cells.split(Evidence(Kind.OTHER_BLOCKS), partial(of, labels), doubt_of=doubt_of):
                return True
        return False

    def _places_in_blocks(self) -> Iterator[tuple[list[_Places], list[Pair]]]:
        """Yield, for three ways to describe the place of a unit in a block: [places of the targets, places of the
        sources], each `id` of a unit -> place, and the pairs that show which place corresponds to which.

        The ways: the path with `{}` for its numbers; the last name with those beside it on the target, the last name
        alone on the source; and the same with the two sides exchanged. The first has all decided pairs, the others
        certain pairs of units in modules whose last names are no numbers.
        """
        sides = self.cells.targets, self.cells.sources
        decided = self.cells.pairs()
        yield [_open_paths(side) for side in sides], decided
        sure = [
            (t, s)
            for t, s in decided
            if not t.doubts and min(len(t.path), len(s.path)) > 1
            if not t.last.isdecimal() and not s.last.isdecimal()  # places in a list move
        ]
        own, theirs = (_last_names(side) for side in sides)
        yield [_last_names_in_company(sides[0]), theirs], sure
        yield [own, _last_names_in_company(sides[1])], sure

    def by_series(self) -> bool:
        """Split cells by how other members of a numbered series, or of a series in the same module, are paired with
        certainty. Return whether any cell was split.

        If `h.0.a` and `h.1.a` are paired with `layers.0.b` and `layers.1.b`, `h.2.a` is paired with `layers.2.b`. A
        series in the same module only counts for a cell with equally many units of both sides, which are one series on
        each side, if its rule takes all numbers of the targets to those of the sources.
        """
        known = Ways((t.path, s.path) for t, s in self.cells.pairs() if not t.doubts)
        if self.cells.split(Evidence(Kind.SERIES), lambda u, is_target: known.label(u.path, is_target), mode="one"):
            return True
        for targets, sources in self.cells.open():
            one, other = common(t.path for t in targets), common(s.path for s in sources)
            if one is None or other is None or len(targets) != len(sources):
                continue
            for sign, offset in known.beside(one[0], other[0]):
                numbers = [sign * n + offset for n in one[1]]
                if set(numbers) == set(other[1]):
                    ranks = {id(u): n for u, n in zip([*targets, *sources], [*numbers, *other[1]], strict=True)}
                    if self.cells.split(
                        Evidence(Kind.SERIES_BESIDE), partial(of, ranks), mode="all", cells=[(targets, sources)]
                    ):
                        return True
        return False

    def by_words_beside(self) -> bool:
        """Split cells with equally many units of both sides by the one word that tells look-alikes apart, if certain
        pairs show which word of the other side means the same (see `translation`). Return whether any cell was split.
        """
        known = [(t.path, s.path) for t, s in self.cells.pairs() if not t.doubts]
        changed = False
        for targets, sources in self.cells.open():
            if len(targets) != len(sources):
                continue
            found = translation([t.path for t in targets], [s.path for s in sources], known)
            if found is not None:
                labels = {id(t): found[t.path] for t in targets} | {id(s): s.path for s in sources}
                cells = [(targets, sources)]
                changed |= self.cells.split(Evidence(Kind.WORDS_BESIDE), partial(of, labels), cells=cells)
        return changed

    def by_branches(self) -> bool:
        """Split cells by the names of decided layers that take the output of a look-alike, or give its input
        (`along_branches`). The pairs are a question unless the flow of the source's code is known. Return whether any
        cell was split.
        """
        labels = along_branches(self.cells)
        known = any(id(unit) in labels and unit.main.entry.facts.flow is not None for unit in self.cells.sources)
        doubt: Question[Unit] | None = None if known else ask(Reason.NAMED_ALONG)
        return self.cells.split(Evidence(Kind.NAME_ALONG), partial(of, labels), doubt=doubt)

    def by_owners(self) -> bool:
        """Pair a vector that the source names as the norm of a layer in the same module (`conv2_bn`) with the vector of
        the same cell that the model runs directly after that layer's partner, if the pair of the layers is certain.
        Return whether any pair was made.

        Of units that the forward pass does not show, the order of registration counts.
        """
        layers = {self._layer(u): u for u in self.cells.sources if len(u.main.shape) > 1}
        labels: dict[int, Hashable] = {}
        order = sorted(self.cells.targets, key=lambda u: u.used if u.used is not None else u.order)
        follower = {id(a): b for a, b in pairwise(order) if len(b.main.shape) == 1}
        for s in self.cells.sources:
            owner = layers.get((s.path[:-1], _without_norm(s.last))) if len(s.main.shape) == 1 else None
            pair = None if owner is None else self.cells.pair_of.get(owner.cell)
            t = None if pair is None else follower.get(id(pair[0]))
            if t is not None and t.cell == s.cell and pair is not None and not pair[0].doubts:
                labels[id(s)] = labels[id(t)] = ("after", id(pair[0]))
        return self.cells.split(Evidence(Kind.NAME_OF_ONE_BEFORE), partial(of, labels), mode="one")

    def by_parts(self) -> bool:
        """Pair norms that one side names after a part of their module (`norm_attn`) with the norms at the partner of
        that part on the other side (`Owners`). Norms that would be in two different pairs are left out. Note the pairs
        in `settled` of the targets, and () in that of their look-alikes in the module. Return whether any pair was
        made.
        """
        labels: dict[int, Hashable] = {}
        for t, s in self._owners.pairs():
            if labels.setdefault(id(t), (id(t), id(s))) != (id(t), id(s)) or labels.setdefault(
                id(s), (id(t), id(s))
            ) != (id(t), id(s)):
                labels[id(t)] = labels[id(s)] = None
        if not self.cells.split(Evidence(Kind.NAME_OF_COMPANION), partial(of, labels), mode="one"):
            return False
        named = [t for t, s in self.cells.pairs() if labels.get(id(t)) == (id(t), id(s))]
        for t in named:
            kinds = ("named after a part", t.path[:-1], t.colour)
            t.settled[kinds] = t.path
            for other in self.cells.targets:
                if other.path[:-1] == t.path[:-1] and other.colour == t.colour:
                    other.settled.setdefault(kinds, ())
        return True

    @staticmethod
    def _layer(unit: Unit) -> tuple[tuple[str, ...], tuple[str, ...]]:
        path = unit.path[:-1] if unit.last in ("depthwise", "pointwise") else unit.path
        return path[:-1], cut(path[-1]) if path else ()

    def by_roles(self) -> bool:
        """Split cells by the roles that a unit holds (a weight alone, or a weight with a bias), if both sides of a cell
        have each set of roles equally often. Return whether any cell was split.
        """
        return self.cells.split(Evidence(Kind.TENSORS), lambda u, _: frozenset(u.pieces), mode="all")

    def by_similar_names(self) -> bool:
        """Split cells by the similarity of names: pairs with a similarity of 0.3 or more that is the highest for both
        units, by more than 0.1. Cells with more than 24 units of a side are left as they are. Return whether any cell
        was split.
        """
        changed = False
        for targets, sources in self.cells.open():
            if len(targets) > 24 or len(sources) > 24:
                continue
            scores = {(id(t), id(s)): similarity(t, s) for t in targets for s in sources}
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
                changed |= self.cells.split(
                    Evidence(Kind.SIMILAR_NAME), partial(of, best), mode="one", cells=[(targets, sources)]
                )
        return changed


def _said(group: Group, unit: Unit, is_target: bool) -> str | None:
    """Return the label that the words of UNIT have in GROUP; None if they have none.

    The label "norm" is skipped for a norm with statistics: `bn2` says no more than its tensors do.
    """
    found = said(group, unit, is_target)
    return None if found == "norm" and group.name == "purpose" and unit.pieces.keys() & STATISTICS else found


_Path = tuple[str, ...]
_Places = dict[int, Hashable]


def _open_paths(units: Iterable[Unit]) -> _Places:
    return {id(unit): template(unit.path) for unit in units}


def _last_names(units: Iterable[Unit]) -> _Places:
    return {id(unit): unit.last for unit in units}


def _last_names_in_company(units: Iterable[Unit]) -> _Places:
    """Return `id` of a unit -> (its last name, the set of last names of all UNITS in its module whose main tensors have
    as many dimensions).
    """
    beside: dict[tuple[_Path, int], set[str]] = defaultdict(set)
    for unit in units:
        beside[unit.path[:-1], len(unit.main.shape)].add(unit.last)
    company = {where: frozenset(names) for where, names in beside.items()}
    return {id(unit): (unit.last, company[unit.path[:-1], len(unit.main.shape)]) for unit in units}


def _doubt_about(
    own: _Places, doubtful: Mapping[Hashable, Question[Unit]], t: Unit, *_: object
) -> Question[Unit] | None:
    found = doubtful.get(own[id(t)])
    return None if found is None else found.about()


def _counted_alike(
    agreed: list[tuple[Unit, Unit]], below_t: Mapping[_Path, Unit], below_s: Mapping[_Path, Unit], *, unlike: bool
) -> list[tuple[Unit, Unit]]:
    """Return AGREED, pairs of equal names, without the pairs in lists that the two sides count differently: from
    another number, from the other end, or as a part of a longer list. UNLIKE says that the forward pass speaks against
    equal numbers in the outermost list.

    BELOW_T and BELOW_S have path below the prefix -> unit, of the target and the source. `blocks.1` of a list from 1 to
    4 is not `blocks.1` of a list from 0 to 3, nor of a list whose last member has the sizes of this list's first. And
    `layers.0` of `first, layers.0, last` is not `layers.0` of `layers.0, 1, 2`.
    """
    both = {template(path) for path in below_t} & {template(path) for path in below_s}
    own, theirs = _lists(below_t, both), _lists(below_s, both)
    moved = {
        row
        for row, members in own.items()
        if row in theirs and (_moved(sorted(members), sorted(theirs[row])) or turned(members, theirs[row]))
    }
    moved |= {
        row
        for row, members in own.items()
        if len(members) < len(theirs.get(row, ())) and _continued(row, below_t, below_s)
    }
    if unlike and () in own:
        moved.add(())
    if not moved:
        return agreed
    paths = {id(t): path for path, t in below_t.items()}
    return [(t, s) for t, s in agreed if moved.isdisjoint(_rows(paths[id(t)]))]


def _list(path: _Path) -> Series:
    return ".".join((*path, "{}"))


def _rows(path: _Path) -> Iterator[_Path]:
    """Yield the lists around PATH, the outermost first: the part of the path before each component that is a number."""
    return (path[:at] for at, component in enumerate(path) if component.isdecimal())


def _lists(below: Mapping[_Path, Unit], named: Collection[_Path]) -> dict[_Path, dict[int, Hashable]]:
    """Return list -> number of a member -> its contents, a set of (path inside of it, colour). All lists of BELOW (path
    -> unit) are there; the contents have only those units whose paths, with `{}` for numbers, are in NAMED.
    """
    found: dict[_Path, dict[int, set[tuple[_Path, Hashable]]]] = defaultdict(lambda: defaultdict(set))
    for path, unit in below.items():
        for row in _rows(path):
            members = found[row][int(path[len(row)])]
            if template(path) in named:
                members.add((path[len(row) + 1 :], unit.colour))
    return {row: {n: frozenset(held) for n, held in members.items()} for row, members in found.items()}


def _continued(row: _Path, below_t: Mapping[_Path, Unit], below_s: Mapping[_Path, Unit]) -> bool:
    """Return whether the list ROW of the target and the layers beside it are one longer list of that name in the
    source: the modules around them hold equal colours equally often, and the source has none of the layers beside by
    its name. False if there are no layers beside, or if ROW is ().
    """
    held_t, held_s = (
        {path: unit.colour for path, unit in side.items() if path[: len(row) - 1] == row[:-1]}
        for side in (below_t, below_s)
    )
    beside = [path for path in held_t if path[: len(row)] != row]
    return (
        bool(row)
        and bool(beside)
        and all(path not in held_s for path in beside)
        and Counter(held_t.values()) == Counter(held_s.values())
    )


def _moved(own: Sequence[int], theirs: Sequence[int]) -> bool:
    same = len(own) == len(theirs) > 1 and own[0] != theirs[0]
    return same and len({b - a for a, b in zip(own, theirs, strict=True)}) == 1


def _without_norm(name: str) -> tuple[str, ...]:
    """Return the words of the name of a norm without those at its start or end that say that it is a norm: `conv2_bn`
    -> ("conv", "2"). () if no other word is left, or if the name does not say it.
    """
    purpose = table().group("purpose")
    words = cut(name)
    for size in range(len(words) - 1, 0, -1):
        for norm, rest in ((words[-size:], words[:-size]), (words[:size], words[size:])):
            if purpose.phrases.get(norm) == "norm":
                return rest
    return ()
