"""The last question before a pair counts as certain: would the swap with another pair fit as well?

Two pairs that look alike (equal shapes) and stand in one block can be exchanged without any shape telling. What tells
is weighed here once more, for all of them together and by other means than those that made the pairs: names, soft
words, and the orders of both sides, each as far as it can be believed in this block. Where nothing speaks for a pair
against its swap, or something speaks for the swap, it is a guess with a rival, whatever evidence made it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations

from . import elsewhere
from .branches import Branches, beside
from .counting import backwards, row_of, rows
from .match import Matching
from .scopes import IN_ANOTHER_ORDER
from .sequences import Sequences
from .series import series_of
from .units import OfOrder, Unit, hard_conflict, series, similarity, template
from .words import label, numbers, shared, table, telling_words, words_of

Pair = tuple[Unit, Unit]
_Place = Callable[[Unit], float | None]

#: An order in which less than this share of a block agrees with the other side decides nothing there.
_BELIEVED = 0.85
#: So many look-alikes are compared each with each; in larger groups each with its neighbours.
_ALL_WITH_ALL = 24
_NEAR = 3
#: Sources are exchanged in groups of look-alikes up to this size.
_MOST_EXCHANGED = 64
#: So many pairs around a target say where its source should stand.
_ANCHORS = 12
#: How doubts begin that are about a whole part of the model, which no exchange of two layers settles.
_OF_PARTS = "equal parts"
#: The group of words for shortcuts.
_SHORTCUTS = "branch"
#: A block in which less than this many couples tell about an order is judged by the whole model.
_FEW = 3


def weigh(matching: Matching, sequences: Sequences) -> None:
    """Add a doubt and a rival to every pair that a swap with another fits as well.

    Args:
        matching: finished; its units get doubts.
        sequences: says which orders of the two sides are known.
    """
    _take_up(matching)
    turned = backwards(matching.pairs)
    for pair in matching.pairs:
        for unit, at in zip(pair, (0, 1), strict=True):
            unit.backwards |= frozenset(row for row, _ in rows(unit.path)) & {both[at] for both in turned}
    orders = _orders(sequences)
    overall = {order.name: _concordance(order, matching.pairs) for order in orders}
    contents = _contents(matching)
    elsewhere.settle(matching.pairs, _in_doubt(matching, orders, overall, contents))
    _rearrange(matching, orders, overall, contents)
    branches = _branches(matching, orders, contents)
    blocks: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in matching.pairs:
        blocks[_block(pair[0].path)].append(pair)
    across = _Across(matching.pairs)
    for pairs in blocks.values():
        belief = _Belief(pairs, orders, overall, across)
        found = [
            (one, other, _swap(one, other, orders, belief.about(one, other), branches))
            for one, other in _look_alikes(pairs)
        ]
        open_to = {id(unit) for one, other, reason in found if reason for unit in (one[0], other[0])}
        anchors = [pair for pair in pairs if id(pair[0]) not in open_to and not pair[0].doubts]
        for one, other, reason in found:
            if reason and not _fits_only_so(one, other, contents) and not _in_company(one, other, anchors, least=2):
                _doubt_both(one, other, reason)
            elif not reason and _by_names(one, other) != "sure" and _in_company(*_crossed(one, other), anchors):
                _doubt_both(one, other, _COMPANY)
    apart = [(one, other, _AGAINST) for one, other in _of_other_blocks(matching.pairs)]
    apart += _in_other_company(matching.pairs, blocks)
    apart += _in_other_branches(matching.pairs, orders, overall, branches)
    # who is in question vouches for nobody
    open_to = {id(unit) for one, other, _ in apart for unit in (one[0], other[0])}
    for one, other, reason in apart:
        around = [
            pair
            for pair in (*blocks[_block(one[0].path)], *blocks[_block(other[0].path)])
            if not pair[0].doubts and id(pair[0]) not in open_to
        ]
        if not _fits_only_so(one, other, contents) and not _in_company(one, other, around[:_MOST_EXCHANGED]):
            _doubt_both(one, other, reason)
    _settle(matching, orders, overall, contents, branches)
    for one, other in _strays(matching.pairs):
        _doubt_both(one, other, "what is around it comes from where {} is")
    _spread(matching.pairs)
    _in_both_directions(matching.pairs)
    _left_over(matching)


def _take_up(matching: Matching) -> None:
    """Pair what nothing could separate, for the time being and in doubt, so that it is weighed with all else."""
    left = []
    for targets, sources in matching.undecided:
        if len(targets) != len(sources) or len(targets) > _MOST_EXCHANGED:
            left.append((targets, sources))
            continue
        free = sorted(sources, key=lambda s: s.order)
        certain = list(matching.pairs)
        for t in sorted(targets, key=lambda t: t.order if t.used is None else t.used):
            around = sorted(certain, key=lambda pair: -_nearness(t, pair[0]))[:_ANCHORS]
            s = max(free, key=lambda s: (hard_conflict(t.words, s.words) is None, _fitness(t, s, around)))
            free.remove(s)
            t.doubts.append(OfOrder(f"{len(sources)} tensors of the source fit as well"))
            t.rivals = [u for u in sources if u is not s][:8]
            matching.pairs.append((t, s))
    matching.undecided[:] = left
    matching.pairs.sort(key=lambda pair: pair[0].order)


def _fitness(t: Unit, s: Unit, around: list[Pair]) -> float:
    """How well a source fits by its name, and by standing where the sources of those around its target stand."""
    beside = sum(_nearness(s, other) for _, other in around)
    return similarity(t, s) + beside / max(len(around), 1)


@dataclass(slots=True)
class _Belief:
    """How far each order can be believed in a block."""

    pairs: list[Pair]
    orders: list[_Order]
    overall: dict[str, float]
    across: _Across
    _known: dict[tuple[tuple[str, ...], ...], dict[str, float]] = field(default_factory=dict)

    def about(self, one: Pair, other: Pair) -> dict[str, float]:
        """The share of what is outside of the two parts in question that an order keeps.

        That the layers of two parts lie as one part after the other says nothing about which of the parts is which.
        """
        at = _nearness(one[0], other[0]) + 1
        parts = tuple(sorted((one[0].path[:at], other[0].path[:at])))
        if min(len(one[0].path), len(other[0].path)) <= at:
            parts = ()
        if parts not in self._known:
            outside = [pair for pair in self.pairs if pair[0].path[:at] not in parts] if parts else self.pairs
            elsewhere = self.across.couples(*parts) if parts else []
            self._known[parts] = {
                order.name: _concordance(order, outside, least=_FEW, otherwise=_kept(order, elsewhere, self.overall))
                for order in self.orders
            }
        return self._known[parts]


class _Across:
    """Parts of the same names in all blocks: `blocks.{}.a` and `blocks.{}.b`."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs
        self._members: dict[int, dict[tuple[str, ...], list[Pair]]] = {}

    def couples(self, part: tuple[str, ...], other: tuple[str, ...]) -> list[tuple[Pair, Pair]]:
        """Some couples of one of each, of different blocks: they lie in one order where blocks follow each other on
        both sides, and in none where one side has a list of blocks and the other a list for each part."""
        at = len(part)
        if at not in self._members:
            self._members[at] = defaultdict(list)
            for pair in self._pairs:
                self._members[at][template(pair[0].path[:at])].append(pair)
        ours, theirs = (self._members[at][template(path)] for path in (part, other))
        found = [(a, b) for a in ours[:_ANCHORS] for b in theirs[:_ANCHORS]]
        found += [(a, b) for a in ours[-_ANCHORS:] for b in theirs[-_ANCHORS:]]
        return [(a, b) for a, b in found if a[0].path[: at - 1] != b[0].path[: at - 1]]


def _kept(order: _Order, couples: list[tuple[Pair, Pair]], overall: dict[str, float]) -> float:
    votes = [vote for a, b in couples if (vote := order.vote(a, b))]
    return sum(vote > 0 for vote in votes) / len(votes) if len(votes) >= _FEW else overall[order.name]


def _settle(
    matching: Matching, orders: list[_Order], overall: dict[str, float], contents: _Contents, branches: Branches
) -> None:
    """Take back doubts about orders where something better excludes every swap, or where there is nothing to swap."""
    others = Counter(unit.colour for unit in (*matching.free_targets, *matching.free_sources))
    others.update(unit.colour for cell in matching.undecided for side in cell for unit in side)
    alike: dict[object, list[Pair]] = defaultdict(list)
    for pair in matching.pairs:
        alike[pair[0].colour].append(pair)
    certain = _Certain(pair for pair in matching.pairs if not pair[0].doubts)

    def in_better_company(one: Pair, other: Pair) -> bool:
        around = certain.around(one, other) if _block(one[0].path) == _block(other[0].path) else []
        return _in_company(one, other, around) and not _in_company(*_crossed(one, other), around)

    for one in matching.pairs:
        group = alike[one[0].colour]
        if others[one[0].colour] or len(group) > _MOST_EXCHANGED or not any(_is_of_order(d) for d in one[0].doubts):
            continue
        if all(
            other is one
            or _fits_only_so(one, other, contents)
            or _excluded(one, other, orders, overall, branches)
            or in_better_company(one, other)
            for other in group
        ):
            one[0].doubts = [d for d in one[0].doubts if not _is_of_order(d)]
    for one in matching.pairs:
        group = alike[one[0].colour]
        open_ = others[one[0].colour] or len(group) > _MOST_EXCHANGED
        if open_ or IN_ANOTHER_ORDER not in one[0].doubts:
            continue
        if all(
            other is one or _fits_only_so(one, other, contents) or _swap(one, other, orders, overall, branches) is None
            for other in group
        ):
            one[0].doubts = [d for d in one[0].doubts if d != IN_ANOTHER_ORDER]


def _excluded(one: Pair, other: Pair, orders: list[_Order], overall: dict[str, float], branches: Branches) -> bool:
    """Whether names, numbers or an order that is kept all over the model exclude the swap of two pairs."""
    reason = _swap(one, other, orders, overall, branches)
    kept = any(overall[order.name] >= _BELIEVED and order.vote(one, other) > 0 for order in orders)
    return reason is None or (reason == "" and kept)


def _is_of_order(doubt: str) -> bool:
    return isinstance(doubt, OfOrder)


def _spread(pairs: list[Pair]) -> None:
    """A doubt about most of a numbered part is one about all of it that has no equal name."""
    parts: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for t, _ in pairs:
        for prefix in _numbered(t.path):
            parts[prefix].append(t)
    for units in parts.values():
        doubts = [next((d for d in unit.doubts if d.startswith(_OF_PARTS)), None) for unit in units]
        found = next((d for d in doubts if d is not None), None)
        if found is not None and sum(d is not None for d in doubts) > len(units) / 2:
            for unit, doubt in zip(units, doubts, strict=True):
                if doubt is None and "name" not in unit.evidence:
                    unit.doubts.append(found)


def _in_both_directions(pairs: list[Pair]) -> None:
    """What is in doubt about one direction of a recurrent layer is about the other."""
    found = {t.path: t for t, _ in pairs if "weight_ih" in t.pieces}
    for path, t in found.items():
        other = found.get(path[:-1]) if path[-1:] == ("reverse",) else None
        if other is not None and bool(t.doubts) != bool(other.doubts):
            doubted, sure = (t, other) if t.doubts else (other, t)
            if "name" not in sure.evidence:
                sure.doubts += doubted.doubts


class _Certain:
    """Pairs that nothing speaks against, by the numbered parts that they are in."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._held: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
        for pair in pairs:
            for part in ((), *_numbered(pair[0].path)):
                self._held[part].append(pair)

    def around(self, one: Pair, other: Pair) -> list[Pair]:
        """Some that are around each of two pairs, in the innermost numbered part that holds more than one."""
        found: dict[int, Pair] = {}
        for t, _ in (one, other):
            parts = ((), *_numbered(t.path))
            held = next((held for part in reversed(parts) if len(held := self._held[part]) > 1), self._held[()])
            found.update((id(pair), pair) for pair in held[:_ANCHORS])
        return [pair for pair in found.values() if pair[0] not in (one[0], other[0])]


def _rearrange(matching: Matching, orders: list[_Order], overall: dict[str, float], contents: _Contents) -> None:
    """Exchange the sources of two pairs as long as all that is known together speaks for it."""
    certain = _Certain(pair for pair in matching.pairs if all(doubt.startswith(_OF_PARTS) for doubt in pair[0].doubts))

    def gain(one: Pair, other: Pair) -> float:
        return -_balance(one, other, orders, overall, contents, certain.around(one, other))

    groups: dict[object, list[int]] = defaultdict(list)
    for at, (t, _) in enumerate(matching.pairs):
        groups[t.colour].append(at)
    for group in groups.values():
        if len(group) > _MOST_EXCHANGED:
            continue
        exchanged: list[tuple[int, int]] = []
        for _ in range(len(group)):
            better = [
                (better, i, j)
                for i, j in combinations(group, 2)
                if _plain(_block(matching.pairs[i][0].path)) == _plain(_block(matching.pairs[j][0].path))
                and _in_question(matching.pairs[i], matching.pairs[j], orders, overall)
                and (better := gain(matching.pairs[i], matching.pairs[j])) > 0
            ]
            if not better:
                break
            _, i, j = max(better)
            (t, s), (t2, s2) = matching.pairs[i], matching.pairs[j]
            matching.pairs[i], matching.pairs[j] = (t, s2), (t2, s)
            for unit in (t, t2):
                unit.evidence = ["exchanged, for all that speaks for it"]
            exchanged.append((i, j))
        for i, j in exchanged:
            one, other = matching.pairs[i], matching.pairs[j]
            within = all(_block(one[side].path) == _block(other[side].path) for side in (0, 1))
            if _by_names(one, other) != "sure" and not (within and _swap(one, other, orders, overall) is None):
                _doubt_both(one, other, "all but the numbers spoke for the swap with {}")


def _in_question(one: Pair, other: Pair, orders: list[_Order], overall: dict[str, float]) -> bool:
    return bool(one[0].doubts or other[0].doubts or _swap(one, other, orders, overall))


def _in_doubt(matching: Matching, orders: list[_Order], overall: dict[str, float], contents: _Contents) -> set[int]:
    """The targets of pairs that are doubted, or that a swap in their block fits as well."""
    branches = _branches(matching, orders, contents)
    blocks: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in matching.pairs:
        blocks[_block(pair[0].path)].append(pair)
    found = {id(t) for t, _ in matching.pairs if t.doubts}
    for pairs in blocks.values():
        for one, other in _look_alikes(pairs):
            if _swap(one, other, orders, overall, branches) and not _fits_only_so(one, other, contents):
                found |= {id(one[0]), id(other[0])}
    return found


def _crossed(one: Pair, other: Pair) -> tuple[Pair, Pair]:
    return (one[0], other[1]), (other[0], one[1])


def _balance(
    one: Pair, other: Pair, orders: list[_Order], overall: dict[str, float], contents: _Contents, around: list[Pair]
) -> float:
    """How much more speaks for two pairs than for their swap; below zero, the swap is better."""
    crossed = _crossed(one, other)
    if _fits_only_so(one, other, contents):
        return 10.0
    if _fits_only_so(*crossed, contents):
        return -10.0
    score = {"sure": 4.0, "for": 1.5, "nothing": 0.0, "against": -0.25}[_by_names(one, other)]
    if score < 0 and _by_names(*crossed) == "sure":
        score = -4.0
    if score < 0 and _soft(*one, _SHORTCUTS) + _soft(*other, _SHORTCUTS) < sum(
        _soft(*pair, _SHORTCUTS) for pair in crossed
    ):
        score = -3.25  # shortcuts are registered first or last, and are called so
    score += 1.5 * _by_numbers(one, other)
    anchors = [pair for pair in around if pair[0] not in (one[0], other[0])]
    weight = 1.0 if _block(one[0].path) == _block(other[0].path) else 3.0  # a block comes from one place
    score += weight * (_in_company(one, other, anchors) - _in_company(*crossed, anchors))
    if score >= 0:
        return score  # orders alone exchange nothing: they made these pairs
    return score + sum(order.vote(one, other) * (1.0 if overall[order.name] >= _BELIEVED else 0.25) for order in orders)


_Contents = dict[bool, dict[tuple[str, ...], Counter[object]]]


def _contents(matching: Matching) -> _Contents:
    """What is in each module of the target (True) and of the source: how many units of each look."""
    found: _Contents = {True: defaultdict(Counter), False: defaultdict(Counter)}
    targets = [t for t, _ in matching.pairs] + matching.free_targets + [u for ts, _ in matching.undecided for u in ts]
    sources = [s for _, s in matching.pairs] + matching.free_sources + [u for _, ss in matching.undecided for u in ss]
    for is_target, units in ((True, targets), (False, sources)):
        for unit in units:
            for at in range(1, len(unit.path) + 1):
                found[is_target][unit.path[:at]][unit.colour] += 1
            if (row := _list(unit.path)) != unit.path:
                found[is_target][row][unit.colour] += 1
    return found


def _fits_only_so(one: Pair, other: Pair, contents: _Contents) -> bool:
    """Whether the parts that hold the two have the same content as those of their sources, and not as the other's."""
    held = []
    for side, is_target in ((0, True), (1, False)):
        a, b = one[side], other[side]
        at = _nearness(a, b) + 1
        held.append((contents[is_target][a.path[:at]], contents[is_target][b.path[:at]]))
    (t, t2), (s, s2) = held
    if t == s and t2 == s2 and t != t2:
        return True
    if _made_of(one[0]) == _made_of(one[1]) != _made_of(other[0]) == _made_of(other[1]):
        return True
    (t, t2), (s, s2) = (
        (contents[is_target][_list(one[side].path)], contents[is_target][_list(other[side].path)])
        for side, is_target in ((0, True), (1, False))
    )
    return t == s and t2 == s2 and t != t2


def _made_of(unit: Unit) -> object:
    vector = sum(n > 1 for n in unit.main.shape) < 2
    # code adds biases to matrices and drops them; a norm with a bias is no scale that stands alone
    return {role: piece.shape for role, piece in unit.pieces.items() if vector or role != "bias"}


def _list(path: tuple[str, ...]) -> tuple[str, ...]:
    """A path without the number of its last component, as those beside it have it; itself where it has none."""
    return (*path[:-1], "{}" + "".join(c for c in path[-1] if not c.isdigit())) if path[-1][-1:].isdigit() else path


def _in_company(one: Pair, other: Pair, anchors: Iterable[Pair], least: int = 1) -> bool:
    """Whether what is certain stands nearer to one of the two on both sides, and seldom nearer to the other on one.

    As a batch norm stands in one module with a convolution whose shape no other has, is called after it, or is used
    directly after it. At least LEAST have to say so: that one layer is used next to it and counted with it may be
    chance; a module that both stand in counts twice.
    """
    with_us = against = vouching = 0
    near = min(_nearness(one[0], other[0]), max(len(_block(one[0].path)), 1))
    for t, s in anchors:
        path = _nearness(one[0], t) - _nearness(other[0], t)
        here = (
            path,
            _kinship(one[0], t) - _kinship(other[0], t),
            _in_line(one[0], t) - _in_line(other[0], t),
            _counted_alike(one[0], t) - _counted_alike(other[0], t),
            # at the end of a block the next one begins, whatever that has to do with it
            _next_to(one[0], t) - _next_to(other[0], t) if _nearness(one[0], t) >= near else 0,
        )
        there = (
            _nearness(one[1], s) - _nearness(other[1], s),
            _kinship(one[1], s) - _kinship(other[1], s),
            _in_line(one[1], s) - _in_line(other[1], s),
            _counted_alike(one[1], s) - _counted_alike(other[1], s),
        )
        if here[0] * there[0] < 0:
            return False
        votes = [a * b for a in here for b in there]
        for_us = sum(vote > 0 for vote in votes)
        with_us += for_us
        against += sum(vote < 0 for vote in votes)
        # what is used next to it, as what works on what it gives, is what it is called after
        called = here[4] * there[1] > 0 and not beside(one[0], t)
        vouching += 2 if here[0] * there[0] > 0 or called else for_us > 0
    return with_us > 2 * against and vouching >= least


def _kinship(one: Unit, other: Unit) -> int:
    """How many telling words the names of two units have in common."""
    return shared(*({word for word in telling_words(unit.path) if len(word) > 1} for unit in (one, other)))


def _in_line(one: Unit, other: Unit) -> bool:
    """Whether two are the same but for one number."""
    return not _rows(one.path).isdisjoint(_rows(other.path))


def _counted_alike(one: Unit, other: Unit) -> bool:
    """Whether two stand at the same place of lists, as the layers of one block do where each kind has its list.

    Or have the same numbers, where one is a batch norm and the other a layer: `bn1` and `conv1`.
    """
    if bool(one.backwards) != bool(other.backwards):
        return False
    if ("running_var" in one.pieces) != ("running_var" in other.pieces):
        return _numbers(one.path) == _numbers(other.path) and _numbers(one.path[-1:]) != ()
    places = [[component for component in unit.path if component.isdigit()] for unit in (one, other)]
    return places[0] == places[1] != []


def _in_equal_places(one: Pair, other: Pair) -> bool:
    """Whether both pairs have the same place in lists on their two sides, and would not if they were swapped."""
    places = [[[c for c in unit.path if c.isdigit()] for unit in pair] for pair in (one, other)]
    same = all(t == s for t, s in places) and not any(unit.backwards for unit in (one[0], other[0]))
    return same and places[0] != places[1]


_numbers = cache(numbers)


@cache
def _rows(path: tuple[str, ...]) -> frozenset[str]:
    return frozenset(row for row, _ in series_of(path))


def _next_to(one: Unit, other: Unit) -> bool:
    """Whether one is used directly before or after another."""
    return one.turn is not None and other.turn is not None and abs(one.turn - other.turn) == 1


def _nearness(one: Unit, other: Unit) -> int:
    """How many components two paths have in common, from the front on."""
    count = 0
    for a, b in zip(one.path, other.path, strict=False):
        if a != b:
            break
        count += 1
    return count


def _strays(pairs: list[Pair]) -> Iterable[tuple[Pair, Pair]]:
    """Pairs whose source is in another block than those of most of the target's block, and who has it from there."""
    members: dict[bool, dict[tuple[str, ...], list[Pair]]] = {True: defaultdict(list), False: defaultdict(list)}
    for pair in pairs:
        for is_target in (True, False):
            for prefix in _numbered(pair[not is_target].path):
                members[is_target][prefix].append(pair)
    owner = {s.path: (t, s) for t, s in pairs}
    for prefix, held in members[False].items():
        counts = Counter(own for t, _ in held for own in _numbered(t.path))
        own = max((o for o, n in counts.items() if n > len(held) / 2), key=len, default=None)
        if own is None or counts[own] <= len(members[True][own]) / 2:
            continue
        at = len(prefix)
        for t, s in members[True][own]:
            if s.path[: at - 1] == prefix[:-1] and s.path[at - 1] != prefix[-1] and s.path[at - 1].isdigit():
                beside = [s2.path[:at] == s.path[:at] for t2, s2 in members[True][own] if t2.path[:-1] == t.path[:-1]]
                if len(beside) > 1 and sum(beside) > len(beside) / 2:
                    continue  # the part of the block that it is in comes from there
                rival = owner.get((*prefix, *s.path[at:]))
                if rival is not None and rival[0].colour == t.colour:
                    yield (t, s), rival


def _numbered(path: Sequence[str]) -> list[tuple[str, ...]]:
    """The numbered parts of the model around a module, from the outermost on."""
    return [tuple(path[: at + 1]) for at in range(len(path) - 1) if path[at].isdigit()]


def _doubt_both(one: Pair, other: Pair, reason: str) -> None:
    if reason:
        _doubt(one, other, reason)
        _doubt(other, one, reason)


def _left_over(matching: Matching) -> None:
    """A pair whose source would go as well to a target that is left without one, in the same block."""
    free: dict[object, list[Unit]] = defaultdict(list)
    for unit in matching.free_targets:
        free[(unit.colour, _block(unit.path))].append(unit)
    for t, s in matching.pairs:
        if "name" in t.evidence or t.doubts:
            continue
        for other in free.get((t.colour, _block(t.path)), ()):
            ours, theirs = _shared(t, s, other, other), _shared(other, s, t, t)
            if theirs > ours or (theirs == ours and _soft(other, s) >= _soft(t, s)):
                t.doubts.append(f"it fits {'.'.join(other.path)} as well, which is left without a source")
                break


def _of_other_blocks(pairs: list[Pair]) -> Iterable[tuple[Pair, Pair]]:
    """Look-alikes of different blocks, as far as more than their numbers differs: a few of every kind."""
    for alike in _kinds(pairs).values():
        for one, other in combinations(list(alike.values())[:_ALL_WITH_ALL], 2):
            if (
                _block(one[0][0].path) != _block(other[0][0].path)
                and _by_names(one[0], other[0], soft=False) == "against"
            ):
                yield from ((pair, other[0]) for pair in one)
                yield from ((one[0], pair) for pair in other)


def _in_other_company(pairs: list[Pair], blocks: dict[tuple[str, ...], list[Pair]]) -> Iterable[tuple[Pair, Pair, str]]:
    """Look-alikes of different blocks of which each would stand with those of its block if they were swapped."""
    for alike in _kinds(pairs).values():
        for ones, others in combinations(list(alike.values())[:_ALL_WITH_ALL], 2):
            one = ones[0]
            other = next((pair for pair in others if _block(pair[0].path) != _block(one[0].path)), None)
            if other is None or () in (_block(one[0].path), _block(other[0].path)) or _by_names(one, other) == "sure":
                continue
            around = [
                pair
                for pair in (*blocks[_block(one[0].path)], *blocks[_block(other[0].path)])
                if pair[0].colour != one[0].colour and not pair[0].doubts
            ][:_MOST_EXCHANGED]
            if _in_company(*_crossed(one, other), around, least=2) and not _in_company(one, other, around):
                yield from ((pair, other, _COMPANY) for pair in ones)
                yield from ((one, pair, _COMPANY) for pair in others)


def _kinds(pairs: list[Pair]) -> dict[object, dict[object, list[Pair]]]:
    """Look-alikes, by the lists that they are in on the two sides."""
    kinds: dict[object, dict[object, list[Pair]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        kinds[pair[0].colour][(series(pair[0]), series(pair[1]))].append(pair)
    return kinds


_COMPANY = "what stands beside it speaks for the swap with {}"
_AGAINST = "the names speak for the swap with {}"
_BESIDE = "it runs beside {}, and nothing but the order in which they are registered tells which is which"


@dataclass(frozen=True, slots=True)
class _Order:
    """An order that both sides have: for two pairs, whether it keeps them (1), turns them round (-1) or is silent."""

    name: str
    vote: Callable[[Pair, Pair], int]


def _orders(of: Sequences) -> list[_Order]:
    found: list[_Order] = []
    if of.traced and of.source_traced:
        found.append(_Order("execution order of both", partial(_vote, _used, _used)))
    if of.ordered:
        if of.traced and not of.source_traced:
            found.append(_Order("execution order", partial(_vote, _used, _stored)))
        if not (of.traced and of.source_traced):
            found.append(_Order("registration order", partial(_vote, _stored, _stored)))
    if of.traced and not of.source_traced:
        found.append(_Order("order of its numbers", _counted))
    return found


def _used(unit: Unit) -> float | None:
    return unit.used


def _stored(unit: Unit) -> float | None:
    return unit.order


def _block(path: Sequence[str]) -> tuple[str, ...]:
    """The numbered part of the model around a module: everything up to the last number that is not its own name."""
    for at in range(len(path) - 1, 0, -1):
        if path[at - 1].isdigit() and at < len(path):
            return tuple(path[:at])
    return ()


def _look_alikes(pairs: list[Pair]) -> Iterable[tuple[Pair, Pair]]:
    alike: dict[object, list[Pair]] = defaultdict(list)
    for pair in pairs:
        alike[pair[0].colour].append(pair)
    for group in alike.values():
        if len(group) <= _ALL_WITH_ALL:
            yield from combinations(group, 2)
            continue
        for key in (lambda p: p[0].order, lambda p: p[1].order):
            row = sorted(group, key=key)
            for at, one in enumerate(row):
                for other in row[at + 1 : at + 1 + _NEAR]:
                    yield one, other


def _swap(
    one: Pair, other: Pair, orders: list[_Order], belief: dict[str, float], branches: Branches | None = None
) -> str | None:
    """Why the swap of two pairs cannot be excluded; an empty text where only an order excludes it, else None."""
    named = _by_names(one, other)
    if named == "sure":
        return None
    if named == "against":
        return _AGAINST
    votes = {order.name: order.vote(one, other) for order in orders}
    believed = {name: vote for name, vote in votes.items() if vote and belief[name] >= _BELIEVED}
    against = [name for name, vote in believed.items() if vote < 0]
    behind = [name for name, vote in believed.items() if vote > 0]
    if named == "for":
        against = [name for name, vote in votes.items() if vote < 0 and belief[name] > 0.5]
        if _in_equal_places(one, other):
            return None
        return f"the {against[0]} speaks for the swap with {{}}" if against and not behind else None
    if _convention(one[0], other[0], one[1], other[1]):
        return "which of the two is which is a convention of the code: {}"
    counted = not beside(one[0], other[0]) or _step(one[0], other[0]) == _step(one[1], other[1])
    if _by_numbers(one, other) > 0 and counted and not (against and not behind):
        return None
    if against and behind:
        return f"the {behind[0]} and the {against[0]} do not agree about it and {{}}"
    if against:
        return f"the {against[0]} speaks for the swap with {{}}"
    if not behind and any(votes.values()):
        return "nothing but an order that is not kept elsewhere tells it from {}"
    if branches is not None and beside(one[0], other[0]) and not any(branches.shown(one, other, n) for n in behind):
        return _BESIDE
    return ""


def _branches(matching: Matching, orders: list[_Order], contents: _Contents) -> Branches:
    def content(path: tuple[str, ...]) -> frozenset[tuple[object, int]]:
        return frozenset(contents[True][path].items())

    return Branches(matching.pairs, content, {order.name: order.vote for order in orders})


def _in_other_branches(
    pairs: list[Pair], orders: list[_Order], overall: dict[str, float], branches: Branches
) -> Iterable[tuple[Pair, Pair, str]]:
    """Look-alikes of different blocks that run beside each other, with why their swap cannot be excluded."""
    alike: dict[object, list[Pair]] = defaultdict(list)
    for pair in pairs:
        alike[pair[0].colour].append(pair)
    for group in alike.values():
        for one, other in combinations(group[:_MOST_EXCHANGED], 2):
            apart = _block(one[0].path) != _block(other[0].path) and beside(one[0], other[0])
            if apart and (reason := _swap(one, other, orders, overall, branches)):
                yield one, other, reason


def _convention(t: Unit, t2: Unit, s: Unit, s2: Unit) -> bool:
    """Whether one side calls them gate and up, which stand side by side, and the other does not say which is which."""
    neck = next(g for g in table().groups if g.name == "neck")
    own, theirs = ({label(neck, u.words) for u in pair} for pair in ((t, t2), (s, s2)))
    both = {"gate", "up"}
    return (own == both) != (theirs == both)


def _vote(of_target: _Place, of_source: _Place, one: Pair, other: Pair) -> int:
    t, s = of_target(one[0]), of_source(one[1])
    t2, s2 = of_target(other[0]), of_source(other[1])
    if t is None or s is None or t2 is None or s2 is None or t == t2 or s == s2:
        return 0
    return 1 if (t < t2) == (s < s2) else -1


def _counted(one: Pair, other: Pair) -> int:
    """Whether the target uses two of a list in the order in which the source numbers them."""
    t, t2, s, s2 = one[0], other[0], one[1], other[1]
    if t.used is None or t2.used is None or t.used == t2.used or s.numbers == s2.numbers or series(s) != series(s2):
        return 0
    return 1 if (t.used < t2.used) == (s.numbers < s2.numbers) else -1


def _concordance(order: _Order, pairs: list[Pair], least: int = 0, otherwise: float = 1.0) -> float:
    """The share of all couples of unlike pairs that lie in one order on both sides; OTHERWISE if less than LEAST."""
    step = max(len(pairs) // 60, 1)
    votes = [order.vote(a, b) for a, b in combinations(pairs[::step], 2) if _telling(a, b)]
    counted = [vote for vote in votes if vote]
    if len(counted) < max(least, 1):
        return otherwise
    return sum(vote > 0 for vote in counted) / len(counted)


def _telling(one: Pair, other: Pair) -> bool:
    return one[0].colour != other[0].colour or _by_numbers(one, other) > 0


def _by_numbers(one: Pair, other: Pair) -> int:
    """Whether both sides number the two, each in one series, and in the same direction."""
    t, t2, s, s2 = one[0], other[0], one[1], other[1]
    if series(t) != series(t2) or series(s) != series(s2):
        return 0
    if t.numbers == t2.numbers or s.numbers == s2.numbers:
        return 0
    from_the_end = row_of(t, t2) in t.backwards and row_of(s, s2) in s.backwards
    if ((t.numbers < t2.numbers) == (s.numbers < s2.numbers)) != from_the_end:
        return 1
    if from_the_end:
        return -1
    # sizes and scales are numbers, too, and are no places: only steps of equal length are counted backwards
    return -1 if _step(t, t2) == -_step(s, s2) else 0


def _step(one: Unit, other: Unit) -> int:
    """How far apart two numbers in the paths of a list are."""
    return next((b - a for a, b in zip(one.numbers, other.numbers, strict=False) if a != b), 0)


def _plain(path: Sequence[str]) -> tuple[str, ...]:
    return tuple("".join(c for c in component if not c.isdigit()) for component in path)


def _by_names(one: Pair, other: Pair, *, soft: bool = True) -> str:
    """What the names say about two pairs and their swap: sure, for, against or nothing."""
    if "name" in one[0].evidence and "name" in other[0].evidence:
        return "sure"
    if any(place != other[0].settled.get(kinds, place) for kinds, place in one[0].settled.items()):
        return "sure"
    (t, s), (t2, s2) = one, other
    swapped = (hard_conflict(t.words, s2.words) is not None) + (hard_conflict(t2.words, s.words) is not None)
    as_is = (hard_conflict(t.words, s.words) is not None) + (hard_conflict(t2.words, s2.words) is not None)
    agreed = _agreed(t, s) + _agreed(t2, s2) - _agreed(t, s2) - _agreed(t2, s)
    if swapped > as_is or (swapped == as_is and agreed > 0):
        return "sure"
    if as_is > swapped or agreed < 0:
        return "against"
    said = _soft(t, s) + _soft(t2, s2) - _soft(t, s2) - _soft(t2, s)
    words = _shared(t, s, t2, s2) + _shared(t2, s2, t, s)
    crossed = _shared(t, s2, t2, s) + _shared(t2, s, t, s2)
    if words != crossed and said * (words - crossed) >= 0:
        return "sure" if words > crossed else "against"
    equal = (t.path[-1] == s.path[-1]) + (t2.path[-1] == s2.path[-1])
    if (
        not any(u.path[-1].isdigit() for u in (t, t2, s, s2))
        and t.path[-1] != t2.path[-1]
        and s.path[-1] != s2.path[-1]
    ):
        if equal:
            return "sure"
        if t.path[-1] == s2.path[-1] or t2.path[-1] == s.path[-1]:
            return "against"
    if not soft:
        return "nothing"
    if said == 0:
        said = _counted_out(t, s) + _counted_out(t2, s2) - _counted_out(t, s2) - _counted_out(t2, s)
    return "for" if said > 0 else "against" if said < 0 else "nothing"


def _counted_out(t: Unit, s: Unit) -> bool:
    """Whether one name says in a word which of its kind it is, and the other has that number: `second_bn` and `bn2`."""
    (own, spelt), (theirs, spelt_there) = _which(t), _which(s)
    return own is not None and own == theirs and (spelt or spelt_there)


def _which(unit: Unit) -> tuple[int | None, bool]:
    """Which of its kind a unit is by the last of its names, counted from one, and whether a word says so."""
    name = unit.words[-len(words_of(unit.path[-1:])) :]
    said = next((word for word in reversed(name) if word.isdigit() or word in table().ordinals), None)
    if said is None:
        return None, False
    return (int(said), False) if said.isdigit() else (table().ordinals[said], True)


def _agreed(t: Unit, s: Unit) -> int:
    """In how many groups of words that exclude each other both names say the same."""
    said = [(label(group, t.words), label(group, s.words)) for group in table().groups if group.hard]
    return sum(one is not None and one == other for one, other in said)


def _shared(a: Unit, b: Unit, not_a: Unit, not_b: Unit) -> int:
    """Words that A and B have in common and that tell them from the others."""
    own = telling_words(a.path) - telling_words(not_a.path)
    return shared(own, telling_words(b.path) - telling_words(not_b.path))


def _soft(a: Unit, b: Unit, only: str = "") -> int:
    score = 0
    for group in table().groups:
        if not group.hard and only in ("", group.name):
            one, other = label(group, a.words), label(group, b.words)
            if one and other:
                score += 1 if one == other else -1
    return score


def _doubt(pair: Pair, other: Pair, reason: str) -> None:
    target = pair[0]
    said = reason.format(".".join(other[1].path))
    if not any(d.startswith(reason.partition("{}")[0]) for d in target.doubts):
        target.doubts.append(said)
    if other[1] not in target.rivals:
        target.rivals.append(other[1])
