"""Rules about names: equal names, words that exclude each other, similar names, and pairs in other blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise

from ...keys.known_buffers import STATISTICS
from ..forms.pieces import squeezed
from ..questions import Question, Reason, ask
from ..words import Group, cut, table, words_of
from .along import along_branches
from .cells import Cells, said
from .counting import turned
from .evidence import Evidence, Kind
from .levels import Levels
from .namesakes import prefix_votes
from .owners import Owners
from .series import Relation, Series, Ways, series_of, translation
from .units import Pair, Path, Unit, hard_conflict, similarity, template

#: A prefix of the target, one of the source, and the path below both.
Exact = tuple[Path, Path, Path]
#: `id` of a unit -> where it is.
_Places = dict[int, Hashable]


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

    def renamed(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S, the units of a pair, have unequal paths, and one of two is true: `exact` does not
        have T, or the two prefixes that it has for T are different, and neither is (). So `encoder.fc` for `fc` is not
        renamed, and `encoder.fc` for `backbone.fc` is.
        """
        found = self.exact.get(id(t))
        return t.path != s.path and (found is None or (found[0] != () != found[1] and found[0] != found[1]))

    def by_exact_names(self) -> bool:
        """Split cells by equal paths below two prefixes (see `exact`). Return whether any cell was split."""
        return self.cells.split(Evidence(Kind.NAME), self.exact)

    def _prefix_labels(self) -> dict[int, Exact]:
        """Return the attribute `exact`: `id` of a unit -> (prefix of the target, prefix of the source, path below
        both), for the pairs of `_best_prefixes`; both units of a pair have the same value. The search is repeated with
        the units that are left, eight times at most, and ends when it finds no prefixes.
        """
        found: dict[int, Exact] = {}
        targets, sources = list(self.cells.targets), list(self.cells.sources)
        for _ in range(8):
            best = self._best_prefixes(targets, sources)
            if best is None:
                break
            own, theirs, agreed = best
            for t, s in agreed:
                found[id(t)] = found[id(s)] = (own, theirs, t.path[len(own) :])
            targets, sources = ([u for u in side if id(u) not in found] for side in (targets, sources))
        return found

    def _best_prefixes(self, targets: list[Unit], sources: list[Unit]) -> tuple[Path, Path, list[Pair]] | None:
        """Return (prefix of TARGETS, prefix of SOURCES, the pairs (target, source) of one colour with equal paths below
        these) for the first couple of prefixes below which most paths agree; None if there is none. Looked at are the
        12 couples with the most votes of targets, the most first; a couple without a vote of a source is passed over. A
        unit votes for its shortest prefix below which the other side has its path and colour (`prefix_votes`). Pairs in
        lists that the two sides count differently (`_counted_alike`) are left out.

        The two prefixes count if all of these are true:
        - There are two or more pairs: at least half as many as paths below the prefix of the side that has fewer; 90
          percent if more than half of the targets below the prefix have a number as their last name.
        - Units of different colours have equal paths there at most twice, or in up to a tenth as many cases as pairs.
        - Words of the prefixes do not exclude each other, and neither has as many votes with another prefix.

        If both prefixes are () (all paths as they are), one pair is enough, and other prefixes may have as many votes;
        if no last name of the targets is a number either, the first two conditions do not count.
        """
        looks = [[(u.path, u.colour) for u in side] for side in (targets, sources)]
        votes, in_return = prefix_votes(*looks), None
        for (own, theirs), n in votes.most_common(12):
            full = own == theirs == ()
            rivals = any(m >= n and (a == own) != (b == theirs) for (a, b), m in votes.items())
            if (rivals and not full) or hard_conflict(words_of(own), words_of(theirs)):
                continue  # what `text.` and `image.` hold may have one name, and is not one
            in_return = prefix_votes(*reversed(looks)) if in_return is None else in_return
            if (theirs, own) not in in_return:
                continue  # `pool.0` and `list.0.0` share a number, and `list.0.0` of this side shares more
            below_t, below_s = _below(own, targets), _below(theirs, sources)
            same = [(t, below_s[path]) for path, t in below_t.items() if path in below_s]
            alike = [(t, s) for t, s in same if t.colour == s.colour]
            unlike = self._levels.against(_list(own), _list(theirs)) != 0
            agreed = _counted_alike(alike, below_t, below_s, unlike=unlike)
            if not agreed:
                continue
            numbered = sum(path[-1].isdecimal() for path in below_t if path) / len(below_t)
            enough = len(agreed) / min(len(below_t), len(below_s)) >= (0.9 if numbered > 0.5 else 0.5)
            few_clashes = len(same) - len(alike) <= max(2, 0.1 * len(agreed))
            if (enough and few_clashes and (len(agreed) > 1 or full)) or (full and not numbered):
                return own, theirs, agreed
        return None

    def by_hard_words(self) -> bool:
        """Split cells by labels that exclude one another: query and key, encoder and decoder. Units with a label that
        both sides of their cell have equally often leave it. Return whether any cell was split.
        """
        return self._by_groups(hard=True)

    def by_soft_words(self) -> bool:
        """Split cells by labels that do not exclude one another ("norm"), if the split is fair (see `cells.fair`).
        Units with a label that both sides of their cell have equally often leave it. Return whether any cell was split.
        """
        return self._by_groups(hard=False)

    def _by_groups(self, *, hard: bool) -> bool:
        """Split cells by the labels of `_said` in each group of words that is HARD (or not, with HARD false), one group
        after the other. A cell is always split if HARD is true, else only if that is fair (see `cells.fair`). Return
        whether any cell was split.
        """
        changed = False
        for group in table().groups:
            if group.hard is hard:
                changed |= self.cells.split(
                    Evidence(Kind.WORDS), partial(_said, group), mode="some" if hard else "fair"
                )
        return changed

    def by_other_blocks(self) -> bool:
        """Split cells by decided pairs at the same place elsewhere: if `h.{}.a` is always paired with `layers.{}.b`,
        and neither with anything else, the units `h.{}.a` of a cell get a new cell with its units `layers.{}.b`, if
        these are equally many; their numbers are not compared. If that splits nothing, by last names: if `conv1` is
        always paired with `first` in modules whose layers have the same names, and neither with anything else
        (`_places_in_blocks`). Return whether any cell was split.

        If a new cell is a pair, and a decided pair at the same place has a doubt, this pair is a guess, too: all units
        of the old cell get the question that the last such decided pair has (its first open one), with sources of the
        old cell as options in place of its own (`Cells.split`).
        """
        for (own, theirs), pairs in self._places_in_blocks():
            labels = Relation((own[id(t)], theirs[id(s)]) for t, s in pairs).labels(own, theirs)
            doubtful = {own[id(t)]: t.doubts[0] for t, _ in pairs if t.doubts}
            doubt_of = partial(_doubt_about, own, doubtful)
            if self.cells.split(Evidence(Kind.OTHER_BLOCKS), labels, doubt_of=doubt_of):
                return True
        return False

    def _places_in_blocks(self) -> Iterator[tuple[list[_Places], list[Pair]]]:
        """Yield ([places of the targets, places of the sources], pairs) for each of three ways to describe the place of
        a unit in a block. Places are `id` of a unit -> place, for all units; pairs (target, source) show which place of
        the target corresponds to which place of the source.

        1. The place is the path with `{}` for its numbers. The pairs are all decided ones.
        2. The place of a target is (its last name, the last names in its module: `_last_names_in_company`), that of a
           source its last name. The pairs are the certain ones of units that are in a module and whose last names are
           no numbers.
        3. As 2, with the two sides exchanged.
        """
        sides = self.cells.targets, self.cells.sources
        yield [{id(unit): template(unit.path) for unit in side} for side in sides], self.cells.pairs()
        sure = [
            (t, s)
            for t, s in self.cells.certain()
            if min(len(t.path), len(s.path)) > 1
            if not t.last.isdecimal() and not s.last.isdecimal()  # places in a list move
        ]
        own, theirs = (_last_names(side) for side in sides)
        yield [_last_names_in_company(sides[0]), theirs], sure
        yield [own, _last_names_in_company(sides[1])], sure

    def by_series(self) -> bool:
        """Split cells by the rule between numbers that two or more certain pairs of a numbered series show (`Ways`:
        equal, shifted, or from the other end): if `h.0.a` and `h.1.a` are paired with `layers.0.b` and `layers.1.b`,
        `h.2.a` is paired with `layers.2.b`. Return whether any cell was split.

        If that splits nothing, the rules of other series in the same two modules count (`Ways.beside`), for cells with
        equally many units of both sides that hold several members of just one series on each side (`_series_in`). Such
        a rule has to take the numbers of these targets to just those of these sources, and all rules that do so have to
        make the same pairs. Only the first cell that they split is split. A cell whose list the forward pass shows to
        be numbered otherwise (`Levels.against` is not 0) is left as it is.
        """
        known = Ways((t.path, s.path) for t, s in self.cells.certain())
        if self.cells.split(Evidence(Kind.SERIES), lambda u, is_target: known.label(u.path, is_target), mode="one"):
            return True
        for targets, sources in self.cells.even():
            one, other = _series_in(targets), _series_in(sources)
            if one is None or other is None or self._levels.against(one[0], other[0]):
                continue
            rules = known.beside(one[0], other[0])
            fitting = {numbers for a, b in rules if {*(numbers := tuple(a * n + b for n in one[1]))} == {*other[1]}}
            if len(fitting) == 1:
                own = zip(fitting.pop(), one[1].values(), strict=True)
                ranks = {id(unit): n for n, unit in (*own, *other[1].items())}
                if self.cells.split(Evidence(Kind.SERIES_BESIDE), ranks, mode="all", cells=[(targets, sources)]):
                    return True
        return False

    def by_words_beside(self) -> bool:
        """Split cells with equally many units of both sides by the one word in which the names of the units of each
        side differ: if `left.a` and `right.a` are certainly paired with `x.a` and `y.a`, `left.b` and `right.b` are
        paired with `x.b` and `y.b`. A cell is split only if certain pairs show the partner word for each such word
        (`translation`). Return whether any cell was split.
        """
        known = [(t.path, s.path) for t, s in self.cells.certain()]
        changed = False
        for targets, sources in self.cells.even():
            found = translation([t.path for t in targets], [s.path for s in sources], known)
            if found is not None:
                labels = {id(t): found[t.path] for t in targets} | {id(s): s.path for s in sources}
                cells = [(targets, sources)]
                changed |= self.cells.split(Evidence(Kind.WORDS_BESIDE), labels, cells=cells)
        return changed

    def by_branches(self) -> bool:
        """Split cells by the names of layers along a branch: certain pairs of layers that take the output of a
        look-alike, or give its input (`along_branches`). Return whether any cell was split. All units of a split cell
        get the question NAMED_ALONG, unless the forward pass of the source's code uses one of the sources with a label.
        """
        labels = along_branches(self.cells)
        known = any(id(unit) in labels and unit.flow is not None for unit in self.cells.sources)
        doubt: Question[Unit] | None = None if known else ask(Reason.NAMED_ALONG)
        return self.cells.split(Evidence(Kind.NAME_ALONG), labels, doubt=doubt)

    def by_owners(self) -> bool:
        """Pair norms by the layers that the source names them after. A vector of the source that is named as the norm
        of a layer in the same module (`conv2_bn` beside `conv2`) is the partner of the vector that the model runs
        directly after the partner of that layer (or registers directly after it, if it is not known when it runs them).
        The layer has to be in a certain pair, and the two vectors in one cell. Return whether any pair was made.
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
        return self.cells.split(Evidence(Kind.NAME_OF_ONE_BEFORE), labels, mode="one")

    def by_parts(self) -> bool:
        """Pair norms that one side names after a part of their module (`norm_attn`) with the norms at the partner of
        that part on the other side (`Owners.pairs`). Norms that would be in two different pairs are left out. Return
        whether any pair was made.

        If so, the target of each such pair that is decided gets an entry in `settled`: ("named after a part", path of
        its module, its colour) -> its own path. The other units of its colour in this module get () for the same key,
        unless they have a value.
        """
        labels: dict[int, Hashable] = {}
        for t, s in self._owners.pairs():
            pair = id(t), id(s)
            if labels.setdefault(id(t), pair) != pair or labels.setdefault(id(s), pair) != pair:
                labels[id(t)] = labels[id(s)] = None
        if not self.cells.split(Evidence(Kind.NAME_OF_COMPANION), labels, mode="one"):
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
    def _layer(unit: Unit) -> tuple[Path, tuple[str, ...]]:
        """Return (path of the module around UNIT, words of its last name); those of the module around it for a layer
        called `depthwise` or `pointwise`.
        """
        path = unit.path[:-1] if unit.last in ("depthwise", "pointwise") else unit.path
        return path[:-1], cut(path[-1]) if path else ()

    def by_roles(self) -> bool:
        """Split cells by the tensors that units hold. Return whether any cell was split. Three ways are tried, each on
        all open cells:

        1. The roles (weight and bias, or a weight alone) with their sizes, without sizes of 1. They tell a norm, whose
           bias is as long as its weight, from a layer with one output.
        2. The roles alone. In both ways, a cell is split only if both sides have each set of these equally often.
        3. If a cell has one source and several targets, of which one holds the same roles: these two are split off (a
           norm beside a token; `_only_with_its_roles`).
        """

        def sizes(unit: Unit, _: bool) -> Hashable:
            return frozenset((role, squeezed(piece.shape)) for role, piece in unit.pieces.items())

        by_sizes = self.cells.split(Evidence(Kind.TENSORS), sizes, mode="all")
        by_roles = self.cells.split(Evidence(Kind.TENSORS), lambda u, _: frozenset(u.pieces), mode="all")
        return self._only_with_its_roles() or by_roles or by_sizes

    def _only_with_its_roles(self) -> bool:
        """Pair the only source of a cell with that of its several targets that holds the same roles, for each open cell
        with one source. Exactly one target has to hold these roles, and the words of the two must not exclude each
        other; other cells stay as they are. Return whether any cell was split.
        """
        changed = False
        for targets, sources in self.cells.open():
            alike = [t for t in targets if t.pieces.keys() == sources[0].pieces.keys()]
            if len(sources) == len(alike) == 1 < len(targets) and not hard_conflict(alike[0].words, sources[0].words):
                pair: dict[int, Hashable] = {id(unit): "pair" for unit in (alike[0], sources[0])}
                changed |= self.cells.split(Evidence(Kind.TENSORS), pair, mode="one", cells=[(targets, sources)])
        return changed

    def by_initials(self) -> bool:
        """Split each cell of two to eight units of each side, equally many, whose last names one side abbreviates to a
        letter: the words that tell the last names of one side apart (`_telling_words`) are single letters, and are the
        first letters of the words that tell those of the other side apart, which are not all single letters:
        `r_w_bias`, `r_r_bias` and `word_bias`, `rel_bias`. Return whether any cell was split.
        """
        changed = False
        for targets, sources in self.cells.even():
            if len(targets) > 8:
                continue
            words = {**_telling_words(targets), **_telling_words(sources)}
            sides = [[words.get(id(unit), "") for unit in side] for side in (targets, sources)]
            short = [all(len(word) == 1 for word in side) for side in sides]
            initials = [{word[:1] for word in side} for side in sides]
            if short in ([True, False], [False, True]) and initials[0] == initials[1] and "" not in initials[0]:
                labels: dict[int, Hashable] = {unit: word[0] for unit, word in words.items()}
                changed |= self.cells.split(Evidence(Kind.SIMILAR_NAME), labels, mode="one", cells=[(targets, sources)])
        return changed

    def by_similar_names(self) -> bool:
        """Pair units of a cell by the similarity of their names (`similarity`): T and S leave the cell as a pair if
        their similarity is 0.3 or more, and more than 0.1 higher than that of T with any other source, and of S with
        any other target, of the cell. Cells with more than 24 units of a side are left as they are. Return whether any
        cell was split.
        """
        changed = False
        for targets, sources in self.cells.open():
            if len(targets) > 24 or len(sources) > 24:
                continue
            scores = {(t, s): similarity(t, s) for t in targets for s in sources}
            best: dict[int, Hashable] = {}
            for t in targets:
                s = max(sources, key=lambda s: scores[t, s])
                others = [scores[t, o] for o in sources if o is not s] + [scores[o, s] for o in targets if o is not t]
                if scores[t, s] >= 0.3 and scores[t, s] > max(others) + 0.1:
                    best[id(t)] = best[id(s)] = (id(t), id(s))
            if best:
                changed |= self.cells.split(Evidence(Kind.SIMILAR_NAME), best, mode="one", cells=[(targets, sources)])
        return changed


def _said(group: Group, unit: Unit, is_target: bool) -> str | None:
    """Return the label that the words of UNIT have in GROUP; None if they have none. None, too, for the label "norm"
    of a unit with running statistics: `bn2` says no more than its tensors do.
    """
    found = said(group, unit, is_target)
    return None if found == "norm" and group.name == "purpose" and unit.pieces.keys() & STATISTICS else found


def _series_in(units: Sequence[Unit]) -> tuple[Series, dict[int, Unit]] | None:
    """Return (the only series that two or more of UNITS are in, number -> unit of these); None if there is no such
    series, or if there are several.
    """
    found: dict[Series, dict[int, Unit]] = defaultdict(dict)
    for unit in units:
        for series, number in series_of(unit.path):
            found[series][number] = unit
    several = [both for both in found.items() if len(both[1]) > 1]
    return several[0] if len(several) == 1 else None


def _telling_words(units: Sequence[Unit]) -> dict[int, str]:
    """Return `id` of a unit -> the word that tells its last name from those of the other UNITS; {} if the last names
    are not of equally many words that differ in just one place, or if two are equal there.
    """
    names = [cut(unit.last) for unit in units]
    places = [at for at, words in enumerate(zip(*names, strict=False)) if len(set(words)) > 1]
    if len({len(name) for name in names}) != 1 or len(places) != 1:
        return {}
    told = {id(unit): name[places[0]] for unit, name in zip(units, names, strict=True)}
    return told if len(set(told.values())) == len(units) else {}


def _last_names(units: Iterable[Unit]) -> _Places:
    return {id(unit): unit.last for unit in units}


def _last_names_in_company(units: Iterable[Unit]) -> _Places:
    """Return `id` of a unit -> (its last name, the set of the last names of all UNITS directly in its module, itself
    included, whose main tensors have as many dimensions as its own).
    """
    beside: dict[tuple[Path, int], set[str]] = defaultdict(set)
    for unit in units:
        beside[unit.path[:-1], len(unit.main.shape)].add(unit.last)
    company = {where: frozenset(names) for where, names in beside.items()}
    return {id(unit): (unit.last, company[unit.path[:-1], len(unit.main.shape)]) for unit in units}


def _doubt_about(
    own: _Places, doubtful: Mapping[Hashable, Question[Unit]], t: Unit, *_: object
) -> Question[Unit] | None:
    """Return the question that DOUBTFUL (place -> question) has for the place of T, without its options; None if it has
    none. OWN has `id` of a target -> its place. The other arguments, of `cells.DoubtOf`, have no effect.
    """
    found = doubtful.get(own[id(t)])
    return None if found is None else found.about()


def _counted_alike(
    agreed: list[Pair], below_t: Mapping[Path, Unit], below_s: Mapping[Path, Unit], *, unlike: bool
) -> list[Pair]:
    """Return AGREED, pairs of equal paths below two prefixes, without the pairs in lists that the two sides count
    differently. BELOW_T and BELOW_S have path below the prefix -> unit, of the target and of the source.

    The sides count a list differently if one begins at another number (`_moved`: 1 to 4 and 0 to 3), if its contents
    are equal only when one side is read from its end (`turned`), or if that of the target is shorter and a part of the
    source's longer list (`_continued`), but its contents do not show that it is the beginning (`_is_the_beginning`).
    With UNLIKE, the forward pass speaks against equal numbers: then pairs whose path below the prefix begins with a
    number are left out as well.
    """
    both = {template(path) for path in below_t} & {template(path) for path in below_s}
    own, theirs = _lists(below_t, both), _lists(below_s, both)
    moved = {
        row
        for row, members in own.items()
        if row in theirs
        and (
            _moved(sorted(members), sorted(theirs[row]))
            or turned(members, theirs[row])
            or (
                len(members) < len(theirs[row])
                and _continued(row, below_t, below_s)
                and not _is_the_beginning(members, theirs[row])
            )
        )
    }
    if unlike and () in own:
        moved.add(())
    if not moved:
        return agreed
    paths = {id(t): path for path, t in below_t.items()}
    return [(t, s) for t, s in agreed if moved.isdisjoint(_rows(paths[id(t)]))]


def _below(prefix: Path, units: Iterable[Unit]) -> dict[Path, Unit]:
    """Return path below PREFIX -> unit, for those of UNITS that are in this module."""
    return {unit.path[len(prefix) :]: unit for unit in units if unit.within(prefix)}


def _list(path: Path) -> Series:
    """Return the list of numbered modules in the module PATH: "a.b.{}" for `a.b`."""
    return ".".join((*path, "{}"))


def _rows(path: Path) -> Iterator[Path]:
    """Yield the lists around PATH, the outermost first: the part of the path before each component that is a number."""
    return (path[:at] for at, component in enumerate(path) if component.isdecimal())


def _lists(below: Mapping[Path, Unit], named: Collection[Path]) -> dict[Path, dict[int, Hashable]]:
    """Return path of a list -> number of a member -> its contents, a set of (path inside of it, colour), for each list
    in BELOW (path -> unit). Units whose paths, with `{}` for numbers, are not in NAMED are left out of the contents.
    """
    found: dict[Path, dict[int, set[tuple[Path, Hashable]]]] = defaultdict(lambda: defaultdict(set))
    for path, unit in below.items():
        for row in _rows(path):
            members = found[row][int(path[len(row)])]
            if template(path) in named:
                members.add((path[len(row) + 1 :], unit.colour))
    return {row: {n: frozenset(held) for n, held in members.items()} for row, members in found.items()}


def _continued(row: Path, below_t: Mapping[Path, Unit], below_s: Mapping[Path, Unit]) -> bool:
    """Return whether the list ROW of the target, together with the layers beside it, is one longer list ROW in the
    source: `first`, `layers.0`, `last` in the target and `layers.0`, `layers.1`, `layers.2` in the source. BELOW_T and
    BELOW_S have path -> unit of the two sides.

    That is so if the module around ROW holds each colour equally often on both sides, and no layer beside ROW in the
    target has its path in the source, too. False if no layer is beside ROW, or if ROW is ().
    """
    held_t, held_s = (
        {path: unit.colour for path, unit in side.items() if path[: len(row) - 1] == row[:-1]}
        for side in (below_t, below_s)
    )
    beside = {path for path in held_t if path[: len(row)] != row}
    return (
        row != ()
        and beside != set()
        and beside.isdisjoint(held_s)
        and Counter(held_t.values()) == Counter(held_s.values())
    )


def _is_the_beginning(own: Mapping[int, Hashable], theirs: Mapping[int, Hashable]) -> bool:
    """Return whether contents show that the list OWN is the beginning of the longer list THEIRS: each member of OWN has
    the contents of the member of THEIRS with the same number, and there is no other difference d such that each member
    n has the contents of member n + d of THEIRS. Both have number of a member -> its contents.
    """
    first = min(own)
    steps = (n - first for n, held in theirs.items() if held == own[first])
    fitting = (step for step in steps if all(theirs.get(n + step) == held for n, held in own.items()))
    return list(islice(fitting, 2)) == [0]


def _moved(own: Sequence[int], theirs: Sequence[int]) -> bool:
    """Return whether THEIRS are the numbers OWN, two or more in order, with one difference added that is not 0."""
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
