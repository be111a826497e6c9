"""Ask about units whose source is from elsewhere than the sources of their neighbours.

If each side has a layer that the other lacks, the two may have equal sizes, neighbours and words. The numbers of the
blocks, or the modules around the two, may still contradict this. Nothing is changed here: such a pair gets a question.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ..forms.branches import flows_into
from ..matching.evidence import Kind
from ..matching.units import Unit, related, similarity
from ..questions import Reason
from .filling import Filling

Pair = tuple[Unit, Unit]

#: A list of blocks: its path with `{}` in place of the number, on both sides.
_Lists = tuple[str, str]

#: Pairs that are out of place in the same way by so many blocks are a way of writing the code, not leftovers.
_A_HABIT = 2


def doubt_what_is_out_of_place(filling: Filling) -> None:
    """Ask about pairs that fill a hole if the blocks or modules around the two are paired with others, by the four
    tests of this module. The questions have no options.
    """
    pairs = list({(id(t), id(s)): (t, s) for t, s in filling.unit_of.values() if t is not s}.values())
    _in_other_blocks(filling, pairs)
    _in_other_parts(filling, pairs)
    _against_other_blocks(filling, pairs)
    _against_their_order(filling, pairs)


def _against_other_blocks(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Ask about a pair of names that is paired in one block alone, if each of the two names is paired with another name
    in other blocks, the target's name at least twice with the same one. Names are paths with `{}` for the numbers of
    blocks (`_in_any_block`).

    A last name that is a number does not count: in a block without its first layer, all layers have other numbers.
    """
    of_target: dict[str, Counter[str]] = defaultdict(Counter)
    of_source: dict[str, Counter[str]] = defaultdict(Counter)
    pairs = [(t, s) for t, s in pairs if not _is_number(t) and not _is_number(s)]
    for t, s in pairs:
        own, theirs = _in_any_block(t), _in_any_block(s)
        of_target[own][theirs] += 1
        of_source[theirs][own] += 1
    for t, s in pairs:
        own, theirs = _in_any_block(t), _in_any_block(s)
        if of_target[own][theirs] == 1 and len(of_target[own]) > 1 and len(of_source[theirs]) > 1:
            other, count = next(one for one in of_target[own].most_common() if one[0] != theirs)
            if count < _A_HABIT:
                continue
            _ask(filling, t, Reason.ANOTHER_IN_OTHER_BLOCKS, other.replace("{}", "*"), ".".join(s.path))


def _against_their_order(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Ask about two look-alikes of one module that the source lists in another order than the model, if in no block
    anything but the modules around them and other blocks told them apart. The question names the partner of the other
    of the two, and has no options.

    All blocks count together (paths with `{}` for their numbers, `_in_any_block`): a pair that a name, a word or an
    order told in one block is told in all. Pairs without evidence are left out. Two layers that have different sizes in
    another block, under one module, are told apart by that. Of layers that feed each other, the order of use counts in
    place of the model's list.

    A block that lacks one of two norms makes the other norm look like that of another block, whose pairs then count as
    evidence for the first: no name, no word and no order has told which is which.
    """
    told: dict[tuple[str, str], bool] = defaultdict(bool)
    beside: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[Pair]] = defaultdict(list)
    for t, s in pairs:
        told[_in_any_block(t), _in_any_block(s)] |= not _BY_PLACE.issuperset(one.kind for one in t.evidence)
        beside[t.path[:-1], s.path[:-1], str(_shapes(t))].append((t, s))
    sizes: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[tuple[str, str], str]] = defaultdict(dict)
    for (own, theirs, size), found in beside.items():
        sizes[own, theirs] |= {(_in_any_block(t), _in_any_block(s)): size for t, s in found}
    for found in beside.values():
        alike = [(t, s) for t, s in found if t.evidence and not told[_in_any_block(t), _in_any_block(s)]]
        for (t, s), (u, v) in pairwise(sorted(alike, key=lambda pair: pair[0].order)):
            if flows_into(u, t):  # layers that feed each other have an order that does not depend on who lists them
                (t, s), (u, v) = (u, v), (t, s)
            one, other = ((_in_any_block(a), _in_any_block(b)) for a, b in ((t, s), (u, v)))
            by_size = any(one in held and other in held and held[one] != held[other] for held in sizes.values())
            if v.order < s.order and not by_size:  # sizes tell the two in a block that has both
                _ask(filling, t, Reason.ONLY_THE_BLOCK, ".".join(v.path))
                _ask(filling, u, Reason.ONLY_THE_BLOCK, ".".join(s.path))


#: Evidence that says where look-alikes are, and nothing of which of them is which.
_BY_PLACE = frozenset({Kind.SCOPE, Kind.OTHER_BLOCKS})


def _in_other_blocks(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Ask about pairs whose blocks are paired with others: at least as many pairs link each of the two blocks with one
    other block of the list. Only lists with the same blocks are compared (`_go_together`). Also ask about blocks in the
    opposite order on the two sides (`_crossed`).

    Pairs of one name that are out of place by the same number of blocks at least twice are a way of writing the code,
    and not asked about; nor are those of `_between_two_blocks`.
    """
    votes: dict[_Lists, Counter[tuple[int, int]]] = defaultdict(Counter)
    places = [list(_places(t, s)) for t, s in pairs]
    for found in places:
        for lists, numbers in found:
            votes[lists][numbers] += 1
    rivals = {lists: _Rivals(counted) for lists, counted in votes.items() if _go_together(counted)}
    habits: Counter[tuple[str, str, int]] = Counter()
    stray: list[tuple[Pair, _Lists, tuple[int, int], tuple[str, str, int]]] = []
    for pair, found in zip(pairs, places, strict=True):
        for lists, (i, j) in found:
            if lists in rivals and votes[lists][i, j] <= rivals[lists].votes_against(i, j):
                habit = _without_numbers(pair[0]), _without_numbers(pair[1]), j - i
                stray.append((pair, lists, (i, j), habit))
                habits[habit] += 1
    for (t, s), lists, (i, j), habit in stray:
        if habits[habit] < _A_HABIT and not _between_two_blocks(t, s, pairs, i - j):
            own, theirs = (name.format(n) for name, n in zip(lists, (i, j), strict=True))
            _ask(filling, t, Reason.FROM_ANOTHER_BLOCK, own, theirs)
    inside: dict[_Lists, dict[int, dict[str, Pair]]] = defaultdict(lambda: defaultdict(dict))
    for (t, s), found in zip(pairs, places, strict=True):
        for lists, (i, _) in found:
            inside[lists][i][_below(t, lists[0].format(i))] = t, s
    turned = filling.matcher.scopes.levels.turned  # all blocks of these are in the opposite order, as they have to be
    for lists, counted in votes.items():
        if lists[0].partition("{}")[0] not in turned:
            _crossed(filling, inside[lists], lists, counted)


def _between_two_blocks(t: Unit, s: Unit, pairs: Sequence[Pair], blocks: int) -> bool:
    """Return whether the pair T, S is between two blocks on both sides, and one code counts it among the block before,
    the other among the block after. BLOCKS is the difference of the numbers of its blocks on the two sides, which has
    to be 1 or -1.

    The names have a word and the last component in common, and the pair has the same place among all layers of other
    modules in PAIRS: for example, `downsample` at the end of a stage, or at the beginning of the next.
    """
    same = abs(blocks) == 1 and s.path[-1:] == t.path[-1:] and similarity(t, s) > 0
    others = [(a, b) for a, b in pairs if a.path[:-1] != t.path[:-1]]
    return same and all((a.order < t.order) == (b.order < s.order) for a, b in others)


def _go_together(votes: Counter[tuple[int, int]]) -> bool:
    """Return whether two lists have the same blocks: more than half of the pairs link a block of the first list with
    that block of the second with which it has the most pairs. VOTES has (number in one list, number in the other) ->
    how many pairs link them.

    If one side has a list of blocks and the other a list for each part, no partner has most of the layers.
    """
    best: dict[int, int] = defaultdict(int)
    for (i, _), n in votes.items():
        best[i] = max(best[i], n)
    return 2 * sum(best.values()) > votes.total()


class _Rivals:
    """Counts, for two lists of blocks, how many pairs link a block with another block than a given one.

    Args:
        votes: (number in the target's list, number in the source's list) -> how many pairs link them.
    """

    def __init__(self, votes: Counter[tuple[int, int]]) -> None:
        self._rows: dict[int, Counter[int]] = defaultdict(Counter)
        self._columns: dict[int, Counter[int]] = defaultdict(Counter)
        for (i, j), n in votes.items():
            self._rows[i][j], self._columns[j][i] = n, n
        self._best_of_rows = {i: found.most_common(2) for i, found in self._rows.items()}
        self._best_of_columns = {j: found.most_common(2) for j, found in self._columns.items()}

    def votes_against(self, i: int, j: int) -> int:
        """Return how many pairs link block I of the target with the one other block than J that has the most, or block
        J of the source with the one other block than I that has the most: the smaller of the two numbers; 0 for none.
        """
        row = next((n for b, n in self._best_of_rows[i] if b != j), 0)
        column = next((n for a, n in self._best_of_columns[j] if a != i), 0)
        return min(row, column)


def _crossed(
    filling: Filling, inside: Mapping[int, Mapping[str, Pair]], lists: _Lists, votes: Counter[tuple[int, int]]
) -> None:
    """Ask about blocks in the opposite order on the two sides, if each would also fit in the place of the other: what
    both hold under equal paths has equal shapes, and they hold something equal. A block of LISTS goes to that block of
    the source with which it has the most pairs; blocks with a single pair are left out.

    Blocks of one kind (equal paths and shapes) are compared in one pass: with the highest number before and the lowest
    after. INSIDE has number of a block -> path inside of it -> pair; VOTES is as in `_go_together`.
    """
    rows: dict[int, Counter[int]] = defaultdict(Counter)
    for (i, j), n in votes.items():
        rows[i][j] += n
    best = sorted((i, found.most_common(1)[0][0]) for i, found in rows.items() if found.total() > 1)
    turned = {place for place, _ in _inverted(best, best)}
    kinds: dict[_Kind, list[tuple[int, int]]] = defaultdict(list)
    for i, j in best:
        if (i, j) in turned:
            kinds[frozenset((name, tuple(_shapes(t).items())) for name, (t, _) in inside[i].items())].append((i, j))
    holding: dict[object, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        for held in kind:
            holding[held].append(number)
    numbered = [(dict(kind), places) for kind, places in kinds.items()]
    for one, of_one in numbered:
        for number in sorted({number for held in one.items() for number in holding[held]}):
            other, of_other = numbered[number]
            if all(one[name] == other[name] for name in one.keys() & other.keys()):
                for (i, j), m in _inverted(of_one, of_other):
                    high, low = (lists[1].format(n) for n in (max(j, m), min(j, m)))
                    for t, _ in inside[i].values():
                        _ask(filling, t, Reason.BLOCKS_CHANGE_PLACES, high, low)


#: What a block holds: the names in it with the shapes of their tensors.
_Kind = frozenset[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]]


def _inverted(
    of_one: Sequence[tuple[int, int]], of_other: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ((i, j), m) for each pair of numbers (i, j) in OF_ONE that is in the opposite order to pairs in OF_OTHER; M
    is the second number of the farthest of these: the highest of those before, which is above j, or the lowest of those
    after, which is below j. A pair with both is yielded twice.

    Both lists of pairs are sorted by i.
    """
    highest, place = -1, 0
    for i, j in of_one:
        while place < len(of_other) and of_other[place][0] < i:
            highest, place = max(highest, of_other[place][1]), place + 1
        if highest > j:
            yield (i, j), highest
    lowest, place = None, len(of_other) - 1
    for i, j in reversed(of_one):
        while place >= 0 and of_other[place][0] > i:
            found = of_other[place][1]
            lowest, place = found if lowest is None else min(lowest, found), place - 1
        if lowest is not None and lowest < j:
            yield (i, j), lowest


def _below(unit: Unit, head: str) -> str:
    return ".".join(unit.path).removeprefix(head + ".")


def _shapes(unit: Unit) -> dict[str, tuple[int, ...]]:
    return {role: piece.shape for role, piece in unit.pieces.items()}


def _in_other_parts(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Ask about pairs whose last names differ and have no word or meaning in common, if on both sides the partners of
    all neighbours in the same module (`_Beside.shared`) are in one module, and the pair's is not in it. Pairs of which
    both units are in no module are left out.
    """
    of_t: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    of_s: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for t, s in pairs:
        of_t[t.path[:-1]].append(s)
        of_s[s.path[:-1]].append(t)
    beside_t, beside_s = ({path: _Beside(units) for path, units in found.items()} for found in (of_t, of_s))
    for t, s in pairs:
        if len(t.path) < 2 and len(s.path) < 2:
            continue
        home, other = beside_t[t.path[:-1]].shared(s), beside_s[s.path[:-1]].shared(t)
        apart = home and other and s.path[: len(home)] != home and t.path[: len(other)] != other
        if apart and t.path[-1:] != s.path[-1:] and not related(t, s) and similarity(t, s) == 0:
            _ask(filling, t, Reason.FROM_ANOTHER_PART, ".".join(home), ".".join(s.path))


class _Beside:
    """The paths of the partners of all units in one module, from which `shared` computes what the paths have in common.

    Args:
        units: these partners.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._paths = sorted(unit.path for unit in units)

    def shared(self, left_out: Unit) -> tuple[str, ...]:
        """Return the common beginning of all partners' paths except that of LEFT_OUT, one of them; () if fewer than two
        remain.
        """
        if len(self._paths) < 3:
            return ()
        first = self._paths[self._paths[0] == left_out.path]
        last = self._paths[-2 if self._paths[-1] == left_out.path else -1]
        same = next(
            (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
        )
        return first[:same]  # what is first and last of a sorted list have in common all have


def _ask(filling: Filling, t: Unit, reason: Reason, *named: str) -> None:
    for piece in t.pieces.values():
        if piece.name in filling.holes:
            filling.holes[piece.name].ask(reason, *named)


_NUMBER, _AT_THE_END = re.compile(r"\d+"), re.compile(r"\d+$")


def _places(t: Unit, s: Unit) -> Iterator[tuple[_Lists, tuple[int, int]]]:
    """Yield ((list of the target, list of the source), (number of T in it, number of S in it)) for each numbered list
    around T with each numbered list around S.
    """
    for own, i in _numbered(t.path):
        for theirs, j in _numbered(s.path):
            yield (own, theirs), (i, j)


def _numbered(path: Sequence[str]) -> list[tuple[str, int]]:
    """Return (path to it with `{}` in place of its number, number) for each module around a unit with this PATH that
    has a number in its name, the outermost first; of several numbers in one name, the first counts. [] if there are
    none.
    """
    out = []
    for place, part in enumerate(path[:-1]):
        found = _NUMBER.search(part)
        if found is not None and not any(mark in "".join(path[: place + 1]) for mark in "{}"):
            part = part[: found.start()] + "{}" + part[found.end() :]
            out.append((".".join((*path[:place], part)), int(found.group())))
    return out


def _without_numbers(unit: Unit) -> str:
    return _NUMBER.sub("{}", ".".join(unit.path))


def _is_number(unit: Unit) -> bool:
    return unit.path[-1:] != () and unit.path[-1].isdecimal()


def _in_any_block(unit: Unit) -> str:
    """Return the path of UNIT with `{}` in place of numbers at the end of the names of the modules around it:
    `h.3.block2.fc1` -> `h.{}.block{}.fc1`.
    """
    return ".".join((*(_AT_THE_END.sub("{}", part) for part in unit.path[:-1]), *unit.path[-1:]))


__all__ = ["doubt_what_is_out_of_place"]
