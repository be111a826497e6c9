"""Pair the units of two sides, by splitting cells until each cell holds one pair.

All units of one colour (shape and kind) begin in one cell. A piece of evidence gives every unit a label that means the
same on both sides: its name, the pair of scopes around it, the word `query` in its name, the pair that runs before it.
If both sides have equally many units of a label, the cell is split. Strong evidence is used first, and all rules run
again whenever a cell was split: pairs make scopes known, and scopes decide about the units inside. Units that nothing
splits, and units that only weak or contradictory evidence splits, are reported as guesses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import or_
from typing import Any

from ...keys.known_buffers import STATISTICS
from ...model_code.signature import Entry
from ..expression import Shape
from ..forms.branches import flows_into, in_channel_order
from ..forms.pieces import Canon, squeezed
from ..forms.unrolled import later_blocks
from ..questions import Reason, ask
from ..rules import Rule, Strength
from ..words import common_start, cut, label, labels, shared, table, telling_words
from .cells import Cells
from .classes import Classes
from .counting import of_unlike_sizes
from .evidence import Kind
from .naming import Naming
from .orders import Orders
from .scopes import Scopes
from .sequences import Sequences
from .telling_apart import SUPPORT, TELLING, Split
from .units import (
    SOME,
    Pair,
    Path,
    Unit,
    block_of,
    hard_conflict,
    label_of,
    natural,
    related,
    series,
    similarity,
    units_of,
)

#: A file may have such a share of tensors of which the model has none that looks so, and still be of the same model.
_FEW_SPARE = 0.1
#: A part of a model with fewer layers may have kept its names by accident.
_FEWEST_KEPT = 4
#: So small a share of pairs with words that exclude each other may be other words for the same.
_FEW = 0.1
#: Rounds of splitting: each learns something, and this is more than any model has needed.
_MOST_ROUNDS = 400


@dataclass(slots=True)
class Matching:
    """The result of matching.

    Attributes:
        pairs: (target, source) units, in the order of the target.
        free_targets, free_sources: units that have no partner and are in no cell of `undecided`. Sources that `Matcher`
            left out from the start are in no list.
        undecided: cells with units of both sides that nothing could split further: (targets, sources).
        new: the units of `free_targets` that are heads in place of another head of the source.
        later: units of the target in repeated blocks of which the source has only the first; in no other list.
    """

    pairs: list[Pair]
    free_targets: list[Unit]
    free_sources: list[Unit]
    undecided: list[tuple[list[Unit], list[Unit]]]
    new: list[Unit] = field(default_factory=list)
    later: list[Unit] = field(default_factory=list)

    def unpaired(self, side: int) -> list[Unit]:
        """Return the units of the target (SIDE 0) or of the source (1) that are in no pair: those without a partner,
        then those of undecided cells.
        """
        free = (self.free_targets, self.free_sources)[side]
        return [*free, *(unit for cell in self.undecided for unit in cell[side])]


class Matcher:
    """Matches two sides in their common form.

    At first, the order of execution and the colours of some units are changed, so that they can be compared with those
    of the other side (`in_channel_order`, `_as_plain`, `_by_exact_sizes`).

    Some units are left out from the start: buffers of the target that code computes (`_constants`), and its repeated
    blocks of which the source has only the first (`later_blocks`); of the source, running averages
    (`_without_averages`), and what code computes if the target has no unit of that colour. If the source's keys were
    sorted by name, or have no order, its units get the order of their names, with numbers by value.

    Attributes:
        cells: the units that may still be partners.
        sequences: the orders of both sides.
        scopes: modules of both sides with equal contents.
        orders: rules about these orders.
        naming: rules about names.
        classes: rules about other modules of a class.
    """

    def __init__(self, source: Canon, target: Canon) -> None:
        targets, sources = units_of(target), units_of(source)
        for side in (sources, targets):
            in_channel_order(side)
        for one, other in ((sources, targets), (targets, sources)):
            _as_plain(one, other)
        _by_exact_sizes(targets, sources)
        self._constants = _constants(targets, sources, source)
        targets = _without(targets, self._constants)
        wanted = {u.colour for u in targets}
        computed = {id(u) for u in sources if all(p.leaf in table().derived for p in u.pieces.values())}
        sources = [u for u in sources if u.colour in wanted or id(u) not in computed]
        sources = _without_averages(sources, targets)
        self._later = later_blocks(targets, sources)
        targets = _without(targets, self._later)
        ordered = source.signature.ordered and not _sorted_by_name(source)
        if not ordered:
            for place, unit in enumerate(sorted(sources, key=lambda u: natural(u.path))):
                unit.order = place
        self.cells: Cells = Cells(targets, sources)
        self.sequences = Sequences(
            self.cells,
            ordered=ordered,
            traced=target.signature.traced,
            source_traced=source.signature.traced,
        )
        self.scopes: Scopes = Scopes(self.cells, self.sequences)
        self.naming: Naming = Naming(self.cells, self.scopes.levels)
        self.classes: Classes = Classes(self.cells, self.scopes)
        self.orders: Orders = Orders(self.cells, self.sequences, self.scopes)
        self._other_keys: dict[str, list[str]] = defaultdict(list)  # key of the target -> the keys tied to it
        for key, entry in target.signature.entries.items():
            if entry.tied is not None:
                self._other_keys[entry.tied].append(key)
        own, theirs = (Counter(u.colour for u in units) for units in (targets, sources))
        self._whole: set[tuple[Path, Path]] | None = None
        self._blocks: list[Counter[Any]] = []
        self._alike = {colour: (own[colour], theirs[colour]) for colour in (*own, *theirs)}

    def run(self) -> Matching:
        """Split cells until no rule splits any more, and return the result, with questions about its pairs (`_result`).

        A round pairs scopes (`Scopes.pair`), and then runs the certain rules of `TELLING` in their order, up to the
        first that splits a cell. If none does, the round also pairs scopes by their order, and runs all rules of
        `TELLING` in the same way. The last round is the first in which no rule splits a cell, or the 400th.
        """
        certain = [rule for rule in TELLING if rule.strength is Strength.CERTAIN]
        for _ in range(_MOST_ROUNDS):
            self.scopes.pair(in_order=False)
            if any(map(self._splits, certain)):
                continue
            self.scopes.pair(in_order=True)
            if not any(map(self._splits, TELLING)):
                break
        return self._result()

    def _splits(self, rule: Rule[Split]) -> bool:
        """Run RULE, and return whether it split a cell (a rule may also return False if that helps no other rule).
        Units that it splits off note its name.
        """
        self.cells.rule = rule.name
        return rule.run(self)

    def alike(self, unit: Unit) -> tuple[int, int]:
        """Return (number of units of the target, of the source) with the colour of UNIT, without the units that
        matching left out at first.
        """
        return self._alike[unit.colour]

    def _result(self) -> Matching:
        """Return the result for the cells as they are, and add questions to targets of its pairs (`_doubt_lone`,
        `_contradictions`, `_doubt_behind_new`).

        `pairs` are the decided pairs that count (`_accepted`), without new heads (`_new_heads`), in the order of the
        target. `undecided` are the open cells, without heads of another model (`_heads_of_others`). `new` has the
        targets of both kinds of heads. `free_targets` and `free_sources` have all other units: those of cells of one
        side only, of both kinds of heads, of decided pairs that do not count, and buffers that the model computes.
        """
        cells = list(self.cells.groups().values())
        accepted, lone = self._accepted()
        undecided = self.cells.open()
        taken = {id(unit) for group in (*accepted, *(side for cell in undecided for side in cell)) for unit in group}
        free_t, free_s = ([u for cell in cells for u in cell[side] if id(u) not in taken] for side in (0, 1))
        heads = self._new_heads(accepted)
        pairs = [pair for pair in accepted if pair not in heads]
        others = self._heads_of_others(pairs, undecided)
        undecided = [cell for cell in undecided if cell not in others]
        new = [*(t for t, _ in heads), *(t for targets, _ in others for t in targets)]
        free_t += new
        free_s += [*(s for _, s in heads), *(s for _, sources in others for s in sources)]
        self._doubt_lone(lone, pairs, free_s, open_targets=[*free_t, *(t for targets, _ in undecided for t in targets)])
        self._contradictions(pairs, free_s, whole=all(len(t) == len(s) for t, s in cells))
        self._doubt_behind_new(pairs, free_t)
        pairs.sort(key=lambda pair: pair[0].order)
        return Matching(pairs, [*free_t, *self._constants], free_s, undecided, new, self._later)

    def _accepted(self) -> tuple[list[Pair], list[Pair]]:
        """Return (the decided pairs that count, those of them that only their shape made).

        All decided pairs count if the source covers the model (`_covers_model`: equally many units of both sides in
        each cell, but for a few spare ones of the source); then the second list is []. Else a pair counts if it is in a
        series of unlike sizes (`of_unlike_sizes`: `conv1` to `conv3` and `c.0` to `c.2`, of three colours); if a rule
        supports it (`_supported`; the target notes the rule in `support`); if its shape allows no other pair
        (`_only_so`); or if it is in `_last_ones`. Pairs of the last two kinds are those that only their shape made.
        Pairs whose biases have unequal lengths (`_gives_others`) never count.
        """
        pairs, lone = [], []
        covered = self._covers_model()
        growing = set() if covered else of_unlike_sizes(self.cells.pairs())
        for t, s in self.cells.pairs():
            if _gives_others(t, s):
                continue
            if covered or id(t) in growing or self._supported(t, s):
                pairs.append((t, s))
            elif self._only_so(t, s):
                lone.append((t, s))
                pairs.append((t, s))
        last = self._last_ones(pairs)
        return pairs + last, lone + last

    def _last_ones(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the decided pairs that are not in PAIRS, and count although nothing supports them: pairs of vectors or
        squares, whose sizes above 1 are all equal ([n], [n, n]). [] if PAIRS hold less than half of the target's units.

        For such a pair of T and S, one of these is true:
        - Both are the only units of their colour, and are squares or have running statistics (`_alone_by_size`).
        - T is the only vector of the target that is in none of PAIRS, and S is the only one of the source: the last
          norm.
        - Both have running statistics, and are directly behind the two layers of one of PAIRS (`_is_directly_behind`).

        And all of these are true: T and S hold the same roles, or only T has a bias and the batch norm behind S will
        give it (`_may_be_folded`); they have more than one element; their names do not exclude each other; their biases
        are of equal sizes (`_gives_others`).
        """
        if 2 * len(pairs) < len(self.cells.targets):
            return []
        taken = {id(unit) for pair in pairs for unit in pair}
        left = [
            [u for u in side if id(u) not in taken and len({*squeezed(u.main.shape)}) == 1 and prod(u.main.shape) > 1]
            for side in (self.cells.targets, self.cells.sources)
        ]
        vectors = [sum(len(squeezed(u.main.shape)) == 1 for u in side) for side in left]
        known = _ids(pairs)
        return [
            (t, s)
            for t, s in self.cells.pairs()
            if t in left[0]
            and s in left[1]
            and (t.pieces.keys() == s.pieces.keys() or self._may_be_folded(t, s, taken))
            and not _gives_others(t, s)
            and not hard_conflict(t.words, s.words)
            and (
                self._alone_by_size(t)
                or (vectors == [1, 1] and len(squeezed(t.main.shape)) == 1)
                or self._is_directly_behind(t, s, known)
            )
        ]

    def _may_be_folded(self, t: Unit, s: Unit, taken: Set[int]) -> bool:
        """Return whether T holds the roles of S and a bias more, which the batch norm behind S may give when it is
        folded into S. This norm is the next unit of the source after S, in the order of registration, has as many
        values as S has rows, and no partner (TAKEN has the `id` of all paired units); and the source has more units of
        the norm's colour than the model. False if the order of the source's keys means nothing.
        """
        behind = min((u for u in self.cells.sources if u.order > s.order), key=lambda u: u.order, default=None)
        if behind is None or id(behind) in taken or not self.sequences.ordered:
            return False
        own, theirs = self._alike[behind.colour]
        fits = bool(behind.pieces.keys() & STATISTICS) and behind.main.shape[:1] == s.main.shape[:1] and own < theirs
        return fits and t.pieces.keys() - s.pieces.keys() == {"bias"} and s.pieces.keys() <= t.pieces.keys()

    def _is_directly_behind(self, t: Unit, s: Unit, known: Set[tuple[int, int]]) -> bool:
        """Return whether T and S are batch norms directly behind the two layers of a known pair. KNOWN has (`id` of the
        target, `id` of the source) of such pairs.

        The layer before T is the one whose output T normalizes in the forward pass; if the forward pass does not show
        it, the unit that runs last before T. The layer before S is the unit registered last before S. False if T has no
        running mean, if it is not known when T runs, or if the order of the source's keys means nothing.
        """
        mean = t.pieces.get("running_mean")
        if mean is None or t.turn is None or not self.sequences.ordered:
            return False
        behind = mean.entry.facts.behind
        if behind is None:
            ran = [u for u in self.cells.targets if u.turn is not None and u.turn < t.turn]
            own = max(ran, key=lambda u: u.turn or 0, default=None)
        else:
            named = (u for u in self.cells.targets if u.pieces.keys() >= {"weight"})
            own = next((u for u in named if u.pieces["weight"].entry.key == behind.weight), None)
        theirs = max((u for u in self.cells.sources if u.order < s.order), key=lambda u: u.order, default=None)
        return (id(own), id(theirs)) in known

    def _alone_by_size(self, t: Unit) -> bool:
        """Return whether each side has just one unit of T's colour, and T has running statistics or is no vector (it
        has two or more sizes above 1, or none).
        """
        vector = len(squeezed(t.main.shape)) == 1 and STATISTICS.isdisjoint(t.pieces)
        return self._alike[t.colour] == (1, 1) and not vector

    def _covers_model(self) -> bool:
        """Return whether each cell has equally many units of both sides, apart from cells of sources whose colour the
        model does not have. False if these cells together hold more than 10 percent of the sources.
        """
        cells = self.cells.groups().values()
        spare = [sources for targets, sources in cells if not targets and not self._wanted(sources[0])]
        uneven = [targets for targets, sources in cells if len(targets) != len(sources)]
        return len(uneven) == len(spare) and sum(map(len, spare)) <= _FEW_SPARE * len(self.cells.sources)

    def _doubt_lone(
        self, lone: list[Pair], pairs: list[Pair], free_s: Sequence[Unit], open_targets: Sequence[Unit]
    ) -> None:
        """Add the question ONLY_ITS_SHAPE to the target of each of LONE, pairs that only their shape made, with these
        exceptions:

        - If OPEN_TARGETS, the units of the model without a partner, is empty: a pair in its place (`_in_its_place`),
          and a pair of the only units of their colour. The latter is no exception if FREE_S, the units of the source
          without a partner, has a matrix of a colour that the model lacks: a new layer of the model may replace that
          matrix.
        - A pair before new heads (`_is_before_heads`).
        - Norms directly behind the two layers of a certain pair (`_is_directly_behind`).

        PAIRS are all pairs of the result. LONE may also have pairs of new heads, which PAIRS lack.
        """
        whole = not open_targets
        nothing_left = not free_s
        positions_left = all(label_of(u, "embedding") == "position" for u in free_s)
        replaced = any(len(squeezed(u.main.shape)) > 1 and not self._wanted(u) for u in free_s)
        by_shape = _ids(lone)
        certain = [(t, s) for t, s in pairs if (id(t), id(s)) not in by_shape and not t.doubts] if lone else []
        known = _ids(certain)
        for t, s in lone:
            only = not replaced and self._alike[t.colour] == (1, 1)
            left = nothing_left or ("bias" in s.pieces and positions_left)
            if whole and (only or self._in_its_place(t, s, pairs, nothing_left=left)):
                continue
            if not (self._is_directly_behind(t, s, known) or self._is_before_heads(t, s, certain, open_targets)):
                t.ask(ask(Reason.ONLY_ITS_SHAPE))

    def _is_before_heads(self, t: Unit, s: Unit, certain: list[Pair], open_targets: Sequence[Unit]) -> bool:
        """Return whether T and S have the same place among the pairs CERTAIN, and the model runs all OPEN_TARGETS, its
        units without a partner, after T, as it runs new heads.

        The same place: for each pair (A, B) of CERTAIN, the output of T flows into A, directly or through other layers,
        if, and only if, B is registered after S. At least one B is registered after S. False if T and S hold different
        roles or are not the only units of their colour, if OPEN_TARGETS is empty, if it is not known when T or one of
        OPEN_TARGETS runs, or if the order of the source's keys means nothing.
        """
        turns = [u.turn for u in (t, *open_targets)]
        ran = [turn for turn in turns if turn is not None]
        if len(ran) < len(turns) or len(ran) < 2 or min(ran[1:]) < ran[0] or not self.sequences.ordered:
            return False
        if self._alike[t.colour] != (1, 1) or t.pieces.keys() != s.pieces.keys():
            return False
        behind = [b.order > s.order for _, b in certain]
        return any(behind) and all(
            self._comes_before(t, a) == is_so for (a, _), is_so in zip(certain, behind, strict=True)
        )

    def _wanted(self, s: Unit) -> bool:
        """Return whether the model has a unit, paired or not, with the colour of S, so that S may belong in its
        place.
        """
        return self._alike[s.colour][0] > 0

    def _supported(self, t: Unit, s: Unit) -> bool:
        """Return whether a name, a scope or neighbours support T and S, a decided pair. The first row of `SUPPORT` with
        an answer (True or False) decides; if it is True, T notes the name of this row in `support`. False if no row has
        an answer.
        """
        for rule in SUPPORT:
            verdict = rule.run(self, t, s)
            if verdict is not None:
                t.support = rule.name if verdict else t.support
                return verdict
        return False

    def in_whole_modules(self, t: Unit, s: Unit) -> bool:
        """Return whether one of these is true:

        - T and S are in two modules that match as a whole (`Scopes.same`).
        - Another decided pair is in two such modules, and has the paths of T and S apart from numbers: `h.3.norm` for
          `h.5.norm`. In addition, the block of T and that of S belong together: two or more decided pairs, that of T
          and S included, have their targets in the block of T and their sources in that of S; or no other decided pair
          has a unit in either block. This is for blocks in which one side lacks a layer.
        """
        if self.scopes.same(t, s):
            return True
        if self._whole is None:
            pairs = self.cells.pairs()
            self._whole = {(series(a), series(b)) for a, b in pairs if self.scopes.same(a, b)}
            blocks = [(block_of(a.path), block_of(b.path)) for a, b in pairs]
            self._blocks = [Counter(blocks), *(Counter(side) for side in zip(*blocks, strict=True))]
        own, theirs = block_of(t.path), block_of(s.path)
        both, of_targets, of_sources = self._blocks
        partners = both[own, theirs] > 1 or of_targets[own] == of_sources[theirs] == 1
        return partners and (series(t), series(s)) in self._whole

    def in_unused_parts(self, t: Unit, s: Unit, *, both: bool = False) -> bool:
        """Return whether T or S (with BOTH: T and S) is in a module, not the outermost, that holds other units of its
        side and no decided pair among them: a new neck, or a tower that the model does not use.
        """
        unused = (self._in_unused_part(t, self.cells.targets), self._in_unused_part(s, self.cells.sources))
        return all(unused) if both else any(unused)

    def _in_unused_part(self, unit: Unit, units: Sequence[Unit]) -> bool:
        """Return whether a module around UNIT, not the outermost, holds others of UNITS, all units of its side, and
        none of these others is in a decided pair.
        """
        for depth in range(1, len(unit.path)):
            beside = [u for u in units if u is not unit and u.path[:depth] == unit.path[:depth]]
            if beside and not any(u.cell in self.cells.pair_of for u in beside):
                return True
        return False

    def _only_so(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S, a decided pair, are the only possible pair by their shape: both sides have one unit
        of their colour. If both have several, equally many, return whether the modules around T told it from the others
        (evidence of the kind SCOPE), or T and S hold the same roles.

        False if T has fewer than two different sizes above 1 (a vector, a square), or if the two names exclude each
        other.
        """
        sizes = {n for n in t.main.shape if n > 1}
        if len(sizes) < 2 or hard_conflict(t.words, s.words):
            return False
        own, theirs = self._alike[t.colour]
        return own == theirs == 1 or (own == theirs and (t.told_by(Kind.SCOPE) or t.pieces.keys() == s.pieces.keys()))

    def _in_its_place(self, t: Unit, s: Unit, pairs: list[Pair], *, nothing_left: bool) -> bool:
        """Return whether T and S stand before the two units of another pair of PAIRS that is certain, or at the end of
        both sides. A layer that is new in the model, or missing there, would be at the end of one side only.

        Before, not always directly: the output of T flows into the target of the other pair, also through other layers
        (without a forward pass: T is registered before it), and S is registered before its source. At the end: see
        `_are_last`, which gets NOTHING_LEFT, whether all other units of the source have partners (position tables do
        not count if S has a bias).

        False if the order of the source's keys means nothing, if T and S hold different roles, if the two sides do not
        have equally many units of their colour, if another pair of this colour has a doubt, or if no other pair of
        PAIRS is certain.
        """
        own, theirs = self._alike[t.colour]
        others = [(a, b) for a, b in pairs if a is not t]
        certain = [(a, b) for a, b in others if not a.doubts]
        doubted = any(a.doubts for a, _ in others if a.colour == t.colour)
        if own != theirs or doubted or not certain or not self.sequences.ordered or t.pieces.keys() != s.pieces.keys():
            return False
        before = any(b.order > s.order and self._comes_before(t, a) for a, b in certain)
        return before or self._are_last(t, s, certain, nothing_left=nothing_left)

    def _are_last(self, t: Unit, s: Unit, certain: list[Pair], *, nothing_left: bool) -> bool:
        """Return whether the model runs T after the targets of all pairs CERTAIN, and S is the last unit registered in
        the innermost module that holds the sources of these pairs. With NOTHING_LEFT (all other units of the source
        have partners), S may be anywhere. False if it is not known when T or one of the targets runs.
        """
        if t.turn is None or any(a.turn is None or a.turn >= t.turn for a, _ in certain):
            return False
        part = s.path[: common_start([b.path for _, b in certain])]
        inside = certain[0][1].within(part)
        behind = any(u.order > s.order and u.within(part) for u in self.cells.sources)
        return nothing_left or (inside and not behind)

    def _comes_before(self, one: Unit, other: Unit) -> bool:
        """Return whether the output of ONE flows into OTHER, directly or through other layers; if the forward pass is
        not known, whether ONE is registered before OTHER.
        """
        return flows_into(one, other) if self.sequences.traced else one.order < other.order

    def _contradictions(self, pairs: list[Pair], free_sources: Sequence[Unit], *, whole: bool) -> None:
        """Add a question to the target of each of PAIRS for each of these that speaks against it. WHOLE says whether
        each cell has equally many units of both sides, FREE_SOURCES are units of the source without a partner.

        - PARTS_UNNAMED: only one name says which part of an attention it is (`_parts_without_names`).
        - OTHER_WORDS: the two names have words that exclude each other (`_excluding_words`).
        - ANOTHER_NAME: the names differ where nearly all others are equal (`_strangers_among_namesakes`). With WHOLE
          and a source whose keys are in a meaningful order, not for a pair that is between the same neighbours on both
          sides (`Orders.between`) and comes before both units of a certain pair whose names do not differ so. Nor for a
          source that is joined from several tensors, or that has the name of a tensor tied to the target.
        - AUXILIARY: only one of the two is an auxiliary layer by its name (`_is_beside`: used in training alone),
          unless equal names made the pair. With WHOLE, only if it is the one of the source.
        - A pair of scopes around the two units has a question (`Scopes.doubts_of`): the target gets this question.
        - RENAMED_PART: the source is in a part whose names the model does not keep, while it keeps those of another
          part (`_renamed_parts`).
        """
        self._parts_without_names(pairs)
        for part, kept in _renamed_parts(pairs, free_sources).items():
            for t, s in pairs:
                if s.path[: len(part)] == part:
                    t.ask(ask(Reason.RENAMED_PART, ".".join(kept), ".".join(part), ".".join(kept)))
        strangers = self._strangers_among_namesakes(pairs)
        new = {id(t) for t, _ in strangers}
        certain = [(a, b) for a, b in pairs if not a.doubts and id(a) not in new]
        for t, s in strangers:
            on_the_way = any(b.order > s.order and self._comes_before(t, a) for a, b in certain)
            joined = len(s.main.expr.keys()) > 1  # several tensors have the size of one by no accident
            called_so = any(_ends_alike(key, s.main.entry.key) for key in self._other_keys[t.main.entry.key])
            in_place = whole and on_the_way and self.sequences.ordered and self.orders.between(t, s)
            if not joined and not called_so and not in_place:
                t.ask(ask(Reason.ANOTHER_NAME))
        self._excluding_words(pairs, whole=whole)
        for t, s in pairs:
            # a layer beside the model that the file does not have is asked about only if something is missing
            beside = _is_beside(s) != _is_beside(t) and (_is_beside(s) or not whole)
            if beside and not t.told_by(Kind.NAME):
                t.ask(ask(Reason.AUXILIARY))
            for question in self.scopes.doubts_of(t, s):
                t.ask(question)

    def _doubt_behind_new(self, pairs: list[Pair], open_targets: Sequence[Unit]) -> None:
        """Add the question BEHIND_NEW to the target T of each of PAIRS that may be a new head behind new layers: T and
        one of OPEN_TARGETS, N, are matrices, N flows into T, and all targets of PAIRS that flow into T, one or more,
        flow into N; T flows into no target of PAIRS; T and its source have unequal last names, and equal names
        (`Kind.NAME`) did not make the pair. The question names the first such N. Only if the forward pass of the model
        is known.
        """
        if not self.sequences.traced:
            return
        followed = [t.flow.before for t, _ in pairs if t.flow is not None]
        into = reduce(or_, followed, 0)
        new = [u for u in open_targets if _is_matrix(u) and u.flow is not None]
        for t, s in pairs:
            at_end = t.flow is not None and not into >> t.flow.number & 1
            if not (new and at_end and _is_matrix(t)) or t.last == s.last or t.told_by(Kind.NAME):
                continue
            before = [a for a, _ in pairs if flows_into(a, t)]
            behind = (u for u in new if flows_into(u, t) and all(flows_into(a, u) for a in before))
            if before and (one := next(behind, None)) is not None:
                t.ask(ask(Reason.BEHIND_NEW, ".".join(one.path)))

    def _excluding_words(self, pairs: list[Pair], *, whole: bool) -> None:
        """Add the question OTHER_WORDS to the target of each of PAIRS whose names have labels that exclude each other
        (`hard_conflict`), such as "q" and "k", unless equal names made the pair.

        With WHOLE (each cell has equally many units of both sides), two labels that exclude each other in at most 10
        percent of PAIRS may be two words for the same: then there is no question, unless one side uses both labels
        (`_tells`).
        """
        conflicts = [hard_conflict(t.words, s.words) for t, s in pairs]
        said = [{word for pair in pairs for word in labels(pair[side].words, hard=True).items()} for side in (0, 1)]
        for (t, s), conflict in zip(pairs, conflicts, strict=True):
            few = whole and conflicts.count(conflict) <= _FEW * len(pairs)
            if conflict and not t.told_by(Kind.NAME) and (not few or _tells(said, t, s)):
                t.ask(ask(Reason.OTHER_WORDS, *conflict))

    def _strangers_among_namesakes(self, pairs: list[Pair]) -> list[Pair]:
        """Return those of PAIRS whose two names differ without a good reason, while nearly all other names are equal:
        equal paths below two prefixes (`Naming.exact`). If more than 20 percent of PAIRS have other names, at most
        pairs of equal names that say nothing ("0") are returned (`_other_names`). The target of a returned pair may be
        a new layer that only has the shape of the source.

        The names differ if they have words that exclude each other, or if they are `_unlike`. In the second case, there
        is a good reason if both last names mean one role (`_of_one_role`), or if the module was renamed, as other pairs
        in it show (`_in_a_renamed_module`); these pairs are left out.

        If pairs of equal names are below two or more couples of unequal prefixes (`text` and `language`), a pair is not
        `_unlike` if its source is directly in the same numbered list as the source of one of those pairs.
        """
        renamed = [(t, s) for t, s in self._namesakes(pairs) if self.naming.renamed(t, s)]
        strangers = self._other_names(pairs, renamed)
        several = len({self.naming.exact[id(t)][:2] for t, _ in renamed}) > 1
        rows = {s.path[:-1] for _, s in renamed if s.last.isdecimal()} if several else set()
        found = [(t, s) for t, s in strangers if hard_conflict(t.words, s.words) or self._unlike(t, s, rows)]
        odd = {id(t) for t, _ in found}
        known = [(t, s) for t, s in pairs if id(t) not in odd and not t.doubts]
        return [
            (t, s)
            for t, s in found
            if hard_conflict(t.words, s.words) or not (_of_one_role(t, s) or _in_a_renamed_module(t, s, known))
        ]

    def _namesakes(self, pairs: list[Pair]) -> list[Pair]:
        """Return those of PAIRS whose two names are equal: their paths, or the paths below two prefixes
        (`Naming.exact`, which has no units that their shapes alone have paired).
        """
        names = self.naming.exact
        return [(t, s) for t, s in pairs if t.path == s.path or (id(t) in names and names[id(t)] == names.get(id(s)))]

    def _other_names(self, pairs: list[Pair], renamed: list[Pair]) -> list[Pair]:
        """Return the pairs of PAIRS without equal names (not in `_namesakes`), and the pairs of RENAMED whose equal
        names say nothing. If both together are more than 20 percent of PAIRS, return only the latter.

        RENAMED are the pairs of equal names below two unequal prefixes (a prefix on one side alone does not count). The
        name of such a pair says nothing if it has no telling word below the prefixes (`box_head.0` and `mask_head.0`:
        "0" says nothing), and RENAMED are less than half of all pairs of equal names.
        """
        named, names = self._namesakes(pairs), self.naming.exact
        few = 2 * len(renamed) < len(named)
        counted = [(t, s) for t, s in renamed if few and not telling_words(names[id(t)][2])]
        inside = {id(t) for t, _ in named} - {id(t) for t, _ in counted}
        strangers = [(t, s) for t, s in pairs if id(t) not in inside]
        return counted if len(strangers) > 0.2 * len(pairs) else strangers

    def _unlike(self, t: Unit, s: Unit, rows: Set[Path]) -> bool:
        """Return whether the names of T and S differ so much that S may be another layer.

        - False if S is directly in one of ROWS, paths of lists of the source with renamed layers.
        - Names that are neither similar (`similarity` above `SOME`, 0.15) nor `related` (an equal label): True; but
          False if S is the last layer of a source whose keys are in a meaningful order, its path has no telling word
          and no number (`linear`), and the name of T means "head".
        - Names that are similar or related: True if they share no telling word (`_of_no_head`), and S is not the last
          layer of the source (`_is_end`), which is the output under any name. False if they are related, and the order
          of the source's keys means nothing, because it is not known then which layer is last.
        """
        if s.path[:-1] in rows:
            return False
        if similarity(t, s) <= SOME and not related(t, s):
            plain = not telling_words(s.path) and not s.numbers and label_of(t, "purpose") == "head"
            return not (plain and self.sequences.ordered and self._is_end(s))
        apart = not shared(_of_no_head(t), _of_no_head(s)) and not self._is_end(s)
        return apart and (self.sequences.ordered or not related(t, s))

    def _is_end(self, s: Unit) -> bool:
        """Return whether S is the last unit of the source, and no batch norm."""
        last = max((u.order for u in self.cells.sources), default=0.0)
        return s.order == last and not s.pieces.keys() & STATISTICS

    def _heads_of_others(
        self, pairs: list[Pair], undecided: list[tuple[list[Unit], list[Unit]]]
    ) -> list[tuple[list[Unit], list[Unit]]]:
        """Return those of UNDECIDED, cells as (targets, sources), that hold heads of another model. [] without PAIRS,
        or if the names of any pair are not equal (`Naming.renamed`; a prefix that only one side has does not count).

        A cell holds such heads if its two sides have different numbers of units, the model runs all its targets after
        the targets of all PAIRS (`_turn`: or has them later in its state dict, if it is not known when they run), and
        no target shares a telling word (`_of_no_head`: not "head") with a source of the cell.
        """
        if not pairs or any(self.naming.renamed(t, s) for t, s in pairs):
            return []
        last = max(_turn(t) for t, _ in pairs)
        return [
            (targets, sources)
            for targets, sources in undecided
            if len(targets) != len(sources)
            and all(_turn(t) > last for t in targets)
            and not any(shared(_of_no_head(t), _of_no_head(s)) for t in targets for s in sources)
        ]

    def _new_heads(self, pairs: list[Pair]) -> list[Pair]:
        """Return those of PAIRS whose target T is a new head, which the source S only fits by its shape. Only pairs of
        different names (`_strangers_among_namesakes`) are looked at; the others of PAIRS are called known here.

        T is a new head if the names of T and S exclude each other (a class token and a mask token), or if all of these
        are true:

        - The model runs T after the targets of all known pairs (`_turn`).
        - The source's code is not known to run S after the sources of all known pairs; or it does, and both T and S go
          on with layers without partners only (`_goes_on_alone`).
        - The names of all known pairs are equal (`Naming.renamed` is False); or T and S are vectors behind layers
          without partners (`_behind_new`), or are both in modules without other decided pairs (`in_unused_parts`).
        """
        strangers = self._strangers_among_namesakes(pairs)
        inside = {id(t) for t, _ in strangers}
        known = [pair for pair in pairs if id(pair[0]) not in inside]
        renamed = any(self.naming.renamed(t, s) for t, s in known)
        last = max((_turn(t) for t, _ in known), default=0)
        turns = [s.turn for _, s in known]
        paired = {id(u) for pair in pairs for u in pair}
        return [
            (t, s)
            for t, s in strangers
            if hard_conflict(t.words, s.words)
            or (
                _turn(t) > last
                and (
                    s.turn is None
                    or any(turn is None or turn > s.turn for turn in turns)
                    or (_goes_on_alone(t, self.cells.targets, paired) and _goes_on_alone(s, self.cells.sources, paired))
                )
                and (not renamed or self._behind_new(t, s, paired) or self.in_unused_parts(t, s, both=True))
            )
        ]

    def _behind_new(self, t: Unit, s: Unit, paired: set[int]) -> bool:
        """Return whether T is a vector, and the unit directly before T (in the order of execution of the model) and the
        unit directly before S (in the order of registration of the source) both have no partner: T may be the norm of a
        new head. False if T or S is the first. PAIRED has the `id` of all paired units.
        """
        if len(squeezed(t.main.shape)) != 1:
            return False
        before = max((u for u in self.cells.targets if _turn(u) < _turn(t)), key=_turn, default=None)
        earlier = max((u for u in self.cells.sources if u.order < s.order), key=lambda u: u.order, default=None)
        return before is not None and earlier is not None and paired.isdisjoint((id(before), id(earlier)))

    def _parts_without_names(self, pairs: list[Pair]) -> None:
        """Add the question PARTS_UNNAMED to the target of each of PAIRS in which only one side says which part of an
        attention it is: its name means "q", "k" or "v", it is cut from a key that also gives paired units with another
        label or none (a fused projection), and the name of the other side has no label in the group "attention". Pairs
        that equal names made get no question.
        """
        group = table().group("attention")
        for side in (0, 1):
            held: dict[str, set[str | None]] = defaultdict(set)
            for pair in pairs:
                held[pair[side].main.entry.key].add(label(group, pair[side].words))
            for pair in pairs:
                own, others = (label(group, pair[n].words) for n in (side, 1 - side))
                apart = len(held[pair[side].main.entry.key]) > 1 and own in ("q", "k", "v") and others is None
                if apart and not pair[0].told_by(Kind.NAME):
                    one, several = ("source", "model") if side else ("model", "source")
                    pair[0].ask(ask(Reason.PARTS_UNNAMED, one, several, several))


def _goes_on_alone(unit: Unit, units: Sequence[Unit], paired: Set[int]) -> bool:
    """Return whether the output of UNIT flows into some of UNITS, the units of its side, and none of these has a
    partner. PAIRED has the `id` of all paired units.
    """
    behind = [id(other) for other in units if flows_into(unit, other)]
    return bool(behind) and paired.isdisjoint(behind)


def _ends_alike(key: str, other: str) -> bool:
    """Return whether KEY and OTHER are equal, as they are or but for a prefix of one of them:
    `model.encoder.embed.weight` and `encoder.embed.weight`. A shorter key without a dot (`weight`) has to be equal.
    """
    short, long = sorted((key, other), key=len)
    return long == short or (long.endswith("." + short) and "." in short)


def _tells(said: Sequence[Collection[tuple[str, str]]], t: Unit, s: Unit) -> bool:
    """Return whether T and S have labels that exclude each other, and one side has both of these labels, so that they
    do not mean the same. SAID has, for each side, (group, label) of all labels of its paired units.
    """
    own, theirs = (labels(unit.words, hard=True) for unit in (t, s))
    apart = [(group, own[group], theirs[group]) for group in own.keys() & theirs.keys() if own[group] != theirs[group]]
    return any({(group, one), (group, other)} <= set(words) for group, one, other in apart for words in said)


def _is_beside(unit: Unit) -> bool:
    """Return whether the name of UNIT marks a layer that is used only in training, such as an auxiliary head."""
    return not table().beside.isdisjoint(unit.words)


def _gives_others(t: Unit, s: Unit) -> bool:
    """Return whether T and S both have a bias, with unequal numbers of values, and so different numbers of outputs,
    such as a bilinear layer with one output and a square linear layer.
    """
    biases = [unit.pieces.get("bias") for unit in (t, s)]
    return len({prod(bias.shape) for bias in biases if bias is not None}) > 1


def _ids(pairs: Iterable[Pair]) -> set[tuple[int, int]]:
    return {(id(t), id(s)) for t, s in pairs}


def _turn(unit: Unit) -> float:
    """Return the place of UNIT in the order of execution of its side; its place in the state dict if the former is not
    known. Both places are counted in keys, so that they can be compared.
    """
    return unit.order if unit.used is None else unit.used


def _of_one_role(t: Unit, s: Unit) -> bool:
    """Return whether T and S are in modules of equal paths, and their last names mean one role, such as `offset` and
    `b`.
    """
    own, theirs = (table().leaves.get(cut(u.last)) for u in (t, s))
    return own is not None and own == theirs and t.path[:-1] == s.path[:-1]


def _in_a_renamed_module(t: Unit, s: Unit, known: list[Pair]) -> bool:
    """Return whether T and S have equal last names in modules of different names, and KNOWN has a pair with its target
    in the module of T and its source in that of S. The modules are the paths before the components that both have at
    the end: `enc` and `text` for `enc.attn.q` and `text.attn.q`. False if nothing is left of one of the two paths.
    """
    same = common_start([t.path[::-1], s.path[::-1]])
    own, theirs = t.path[: len(t.path) - same], s.path[: len(s.path) - same]
    if not same or not own or not theirs:
        return False
    return any(a.within(own) and b.within(theirs) for a, b in known)


def _of_no_head(unit: Unit) -> set[str]:
    """Return the telling words of UNIT's path (`telling_words`: no numbers, no kinds of layers, no names of lists),
    without those that any head may have: all words of the phrases for a head in `words.yaml`, also in the plural. For
    `lm_head`, nothing is left.
    """
    heads = {word for phrase, said in table().group("purpose").phrases.items() if said == "head" for word in phrase}
    return {w for w in telling_words(unit.path) if w not in heads and w.removesuffix("s") not in heads}


def _renamed_parts(pairs: Sequence[Pair], free_sources: Sequence[Unit]) -> dict[Path, Path]:
    """Return part of the source -> other part of it, for each part that may be another network in the model than in the
    source, as the model keeps the names of the other part only. Parts are the modules directly below the common
    beginning of the paths of all sources in PAIRS (`text` and `vision`). All of these are true:

    - The source has a layer of the same path in both parts (`text.layers.0.norm1`, `vision.layers.0.norm1`), and that
      in the first part is paired with a target of another last name.
    - The other part has four or more pairs, and each of their targets has at its end the path of its source from the
      name of the part on (`model.vision.layers.0.norm1`). No target of the first part has.
    - One of FREE_SOURCES, units of the source without a partner, is in the first part: what fits as a whole is no
      accident.

    If several other parts fit, the last one counts.
    """
    start = common_start([s.path for _, s in pairs])
    parts: dict[Path, dict[Path, Unit]] = defaultdict(dict)
    kept: dict[Path, set[bool]] = defaultdict(set)
    for t, s in pairs:
        part = s.path[: start + 1]
        parts[part][s.path[start + 1 :]] = t
        kept[part].add(t.path[-len(s.path) + start :] == s.path[start:])
    left = {s.path[: start + 1] for s in free_sources}
    whole = [part for part, held in parts.items() if kept[part] == {True} and len(held) >= _FEWEST_KEPT]
    return {
        part: other
        for part, held in parts.items()
        for other in whole
        if part in left
        and kept[part] == {False}
        and any(rest and rest[-1] != held[rest].last for rest in held.keys() & parts[other])
    }


def _is_matrix(unit: Unit) -> bool:
    """Return whether the main tensor of UNIT has two or more sizes above 1."""
    return len(squeezed(unit.main.shape)) > 1


def _constants(targets: list[Unit], sources: list[Unit], source: Canon) -> list[Unit]:
    """Return the units of TARGETS that hold buffers alone, such as masks and indices, which code computes when the
    model is built.

    Left out are buffers that may be learned (a codebook, a moving mean under another name), because they are matched
    like other tensors. These are: units with running statistics; units with a key whose last two components are those
    of a key of SOURCE; and units of a colour and kind of type (`kind_of`) of which SOURCES have more units than TARGETS
    have without such buffers.
    """

    def look(unit: Unit) -> tuple[object, str]:
        return unit.colour, kind_of(unit.main.entry)

    tails = {tuple(key.split(".")[-2:]) for key in source.signature.entries}
    buffers = [
        unit
        for unit in targets
        if all(p.entry.parameter is False for p in unit.pieces.values())
        and not unit.pieces.keys() & STATISTICS
        and not any(tuple(p.entry.key.split(".")[-2:]) in tails for p in unit.pieces.values())
    ]
    wanted, there = Counter(map(look, _without(targets, buffers))), Counter(map(look, sources))
    return [unit for unit in buffers if there[look(unit)] <= wanted[look(unit)]]


def _without(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    left_out = set(map(id, others))
    return [unit for unit in units if id(unit) not in left_out]


def _as_plain(units: list[Unit], others: list[Unit]) -> None:
    """Change the colour of UNITS of the kinds "bias" (a bias without a weight), "row" (a table with one row) and "one"
    (a layer with one output) to the kind "", so that plain parameters of their shape may be partners; and of the kind
    "statistics", if OTHERS, the other side, have instance norms of this shape. A unit is only changed if OTHERS have no
    unit of its colour, and more units of its shape and the kind "" than UNITS have. Nothing is returned.
    """
    theirs, own = (Counter(u.colour for u in side) for side in (others, units))
    instance_norms = {u.colour[0] for u in others if u.main.entry.of_instance_norm}
    for unit in units:
        shape, family = unit.colour
        plain = family in ("bias", "row", "one") or (family == "statistics" and shape in instance_norms)
        if plain and not theirs[unit.colour] and theirs[shape, ""] > own[shape, ""]:
            unit.colour = shape, ""


def _by_exact_sizes(targets: list[Unit], sources: list[Unit]) -> None:
    """Change the colour of units to their full shape, with dimensions of size 1, and their kind, if full shapes tell
    units of one colour apart (`[n, m, 1, 5]` and `[n, m, 5, 1]`). That is done for a colour with two or more full
    shapes, if all of these have equally many dimensions, and TARGETS have each of them as often as SOURCES.
    """
    shapes: dict[object, tuple[Counter[Shape], Counter[Shape]]] = defaultdict(lambda: (Counter(), Counter()))
    for side, units in enumerate((targets, sources)):
        for unit in units:
            shapes[unit.colour][side][unit.main.shape] += 1
    for unit in (*targets, *sources):
        own, theirs = shapes[unit.colour]
        if own == theirs and len(own) > 1 and len({*map(len, own)}) == 1:
            unit.colour = unit.main.shape, unit.colour[1]


def _without_averages(sources: list[Unit], targets: list[Unit]) -> list[Unit]:
    """Return SOURCES without running averages (EMA) of other tensors. A unit is left out if all of these are true:

    - Its name marks it as an average (`is_average`).
    - The module around it directly holds its original: a unit that is no average, with a tensor of the same stored
      sizes (its common form may be transposed). If there are several, all have one colour.
    - SOURCES have more units of the colour of the original than TARGETS, if averages count as of this colour.
    """
    originals: dict[tuple[Path, Shape], set[tuple[Shape, str]]] = defaultdict(set)
    for u in sources:
        if not is_average(u.path):
            originals[u.path[:-1], u.main.entry.shape].add(u.colour)
    averages = {
        id(u): next(iter(colours))
        for u in sources
        if is_average(u.path) and len(colours := originals.get((u.path[:-1], u.main.entry.shape), set())) == 1
    }
    wanted = Counter(u.colour for u in targets)
    there = Counter(averages.get(id(u), u.colour) for u in sources)
    return [u for u in sources if id(u) not in averages or there[averages[id(u)]] <= wanted[averages[id(u)]]]


def is_average(path: Sequence[str]) -> bool:
    """Return whether the last name in PATH marks a tensor as a running average of another tensor."""
    return any(not table().averages.isdisjoint(cut(name)) for name in path[-1:])


def kind_of(entry: Entry) -> str:
    """Return the kind of ENTRY's element type: "float" (also for bfloat16), "complex", "bool", or "int" for others."""
    return next((kind for kind in ("float", "complex", "bool") if kind in entry.dtype), "int")


def _sorted_by_name(canon: Canon) -> bool:
    """Return whether the keys of CANON were sorted by name, which no model does: there are more than 8, all in
    alphabetical order, or more than 3 keys or modules in an alphabetical order that differs from that with numbers by
    value (10 before 2). Files that were put together of sorted ones count, too: all modules with a weight and a bias,
    four or more, have the bias first, which torch registers last.
    """
    found = list(canon.signature.entries)
    modules = list(dict.fromkeys(key.rpartition("/" if "/" in key else ".")[0] for key in found))
    places = {key: place for place, key in enumerate(found)}
    layers = [[places.get(f"{module}.{role}") for role in ("bias", "weight")] for module in modules]
    both = [(bias, weight) for bias, weight in layers if bias is not None and weight is not None]
    return (
        any(
            len(names) > 3
            and names == sorted(names)
            and names != sorted(names, key=lambda name: natural(name.split(".")))
            for names in (found, modules)
        )
        or (len(found) > 8 and found == sorted(found))
        or (len(both) > 3 and all(bias < weight for bias, weight in both))
    )
