"""Ask about units whose source is from elsewhere than the sources of their neighbours.

If each side has a layer that the other lacks, the two may have equal sizes, neighbours and words. The numbers of the
blocks, or the modules around the two, may still contradict this. Nothing is changed here: such a pair gets a question.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product

from ..forms.branches import flows_into
from ..matching.evidence import Kind
from ..matching.units import Pair, Path, Unit, around, block_of, related, similarity
from ..questions import Reason
from ..words import common_start
from .filling import Filling

#: A list of blocks: its path with `{}` in place of the number, on both sides.
_Lists = tuple[str, str]
#: Such lists, and the numbers of a pair in them.
_Place = tuple[_Lists, tuple[int, int]]

#: The target of a pair that is out of place, the reason for a question about it, and the texts in the sentence.
_Asked = tuple[Unit, Reason, tuple[str, ...]]

#: So many other pairs of a block have to show where its sources are.
_FEWEST_BESIDE = 2
#: A module that holds so many units of the names of another one is its twin.
_FEWEST_TWINS = 2
#: So many units of a module show that it corresponds with another one as a whole.
_A_BLOCK = 4
#: Pairs that are out of place in the same way by so many blocks are a way of writing the code, not leftovers.
_A_HABIT = 2


def doubt_what_is_out_of_place(filling: Filling) -> None:
    """Ask about pairs that fill a hole if the modules around the two units contradict the pair: the blocks around them
    are paired with others (`_in_other_blocks`), their neighbours have their partners in another module
    (`_in_other_parts`, `_in_twins`) or in blocks (`_outside_of_blocks`), in other blocks their names are paired with
    others (`_against_other_blocks`), or the source lists two look-alikes in the opposite order
    (`_against_their_order`). The questions have no options.
    """
    pairs = list({(id(t), id(s)): (t, s) for t, s in filling.unit_of.values() if t is not s}.values())
    asked = [
        *_in_other_blocks(filling, pairs),
        *_in_other_parts(pairs),
        *_in_twins(filling, pairs),
        *_outside_of_blocks(pairs),
        *_against_other_blocks(filling, pairs),
        *_against_their_order(pairs),
    ]
    for t, reason, named in asked:
        for filled in (filling.holes[p.name] for p in t.pieces.values() if p.name in filling.holes):
            filled.ask(reason, *named)


def _against_other_blocks(filling: Filling, pairs: Sequence[Pair]) -> Iterator[_Asked]:
    """Yield a question about each pair (T, S) whose names are paired with each other only once, if other blocks pair
    them otherwise: the name of T with another name at least twice, and the name of S with another name at least once.
    The names are the paths without the numbers of blocks (`_names`). The question names the partner that T has most
    often in other blocks, and S.

    Pairs of which one has a number as its last name are left out: in a block without its first layer, all layers have
    other numbers. So are pairs of the only unit of its sizes in two modules that correspond (`_is_the_only_one`): the
    first and the last block of a network often have other names, because other code makes them.
    """
    of_target: dict[str, Counter[str]] = defaultdict(Counter)
    of_source: dict[str, Counter[str]] = defaultdict(Counter)
    every = pairs
    pairs = [(t, s) for t, s in pairs if not t.last.isdecimal() and not s.last.isdecimal()]
    for pair in pairs:
        own, theirs = _names(pair)
        of_target[own][theirs] += 1
        of_source[theirs][own] += 1
    for t, s in pairs:
        own, theirs = _names((t, s))
        if of_target[own][theirs] == 1 and len(of_target[own]) > 1 and len(of_source[theirs]) > 1:
            other, count = next(one for one in of_target[own].most_common() if one[0] != theirs)
            if count >= _A_HABIT and not _is_the_only_one(filling, t, every):
                yield t, Reason.ANOTHER_IN_OTHER_BLOCKS, (other.replace("{}", "*"), ".".join(s.path))


def _is_the_only_one(filling: Filling, t: Unit, pairs: Sequence[Pair]) -> bool:
    """Return whether T has no look-alike in a module around it that corresponds as a whole with a module of the source:
    both hold four or more units, all of them in PAIRS with units of the other, and all other PAIRS are before both
    modules or behind both, in the order of registration.
    """
    for end in range(len(t.path) - 1, 0, -1):
        inside = [(a, b) for a, b in pairs if a.within(t.path[:end])]
        if sum(a.colour == t.colour for a, _ in inside) > 1:
            return False
        modules = t.path[:end], around([b.path for _, b in inside])
        free = any(u.within(module) for side, module in enumerate(modules) for u in filling.matching.unpaired(side))
        if len(inside) < _A_BLOCK or not modules[1] or free:
            continue
        first = [min(pair[side].order for pair in inside) for side in (0, 1)]
        others = [(a, b) for a, b in pairs if not a.within(modules[0])]
        if all(not b.within(modules[1]) and (a.order < first[0]) == (b.order < first[1]) for a, b in others):
            return True
    return False


def _against_their_order(pairs: Sequence[Pair]) -> Iterator[_Asked]:
    """Yield questions about two look-alikes of one module that the source lists in the opposite order to the model, if
    no evidence says which of them is which. The question about each names the partner of the other.

    Look-alikes are pairs of PAIRS with equal shapes, in one module on both sides, that have evidence of their place
    only (the modules around them, other blocks: `_BY_PLACE`). A pair is left out if a pair of the same names (`_names`)
    has evidence of another kind in any block. Of the look-alikes of a module, only two that follow one another in the
    model's order of registration are compared. The source has to register their partners in this order, too; but if the
    model's first takes the output of its second, also through others, in the reverse order. Nothing is asked if the two
    names have different sizes in the module of another block.

    A block that lacks one of two norms makes the other norm look like that of another block, whose pairs then count as
    evidence for the first: no name, no word and no order has told which is which.
    """
    told: dict[tuple[str, str], bool] = defaultdict(bool)
    beside: dict[tuple[Path, Path, str], list[Pair]] = defaultdict(list)
    sizes: dict[tuple[Path, Path], dict[tuple[str, str], str]] = defaultdict(dict)
    for t, s in pairs:
        told[_names((t, s))] |= not _BY_PLACE.issuperset(one.kind for one in t.evidence)
        beside[t.path[:-1], s.path[:-1], str(_shapes(t))].append((t, s))
    for (own, theirs, size), found in beside.items():
        sizes[own, theirs] |= {_names(pair): size for pair in found}
    for found in beside.values():
        alike = [(t, s) for t, s in found if t.evidence and not told[_names((t, s))]]
        for one, other in pairwise(sorted(alike, key=lambda pair: pair[0].order)):
            (t, s), (t2, s2) = (other, one) if flows_into(other[0], one[0]) else (one, other)
            here, there = _names(one), _names(other)
            by_size = any(here in held and there in held and held[here] != held[there] for held in sizes.values())
            if s2.order < s.order and not by_size:
                yield t, Reason.ONLY_THE_BLOCK, (".".join(s2.path),)
                yield t2, Reason.ONLY_THE_BLOCK, (".".join(s.path),)


#: Evidence that says where look-alikes are, and not which of them is which.
_BY_PLACE = frozenset({Kind.SCOPE, Kind.OTHER_BLOCKS})


def _in_other_blocks(filling: Filling, pairs: Sequence[Pair]) -> Iterator[_Asked]:
    """Yield a question about each of PAIRS that is in block i of the model and in block j of the source, if block i has
    at least as many pairs with another block of the source, and block j at least as many with another block of the
    model, as the two have with each other (`_strays`). Nothing is asked if its units are between two blocks
    (`_between_two_blocks`: a `downsample`), or if a pair of the same names is out of place by as many blocks. Also ask
    about blocks in the opposite order on the two sides (`_crossed`), unless matching found that the two sides count
    this list from opposite ends (`Levels.turned`).
    """
    votes: dict[_Lists, Counter[tuple[int, int]]] = defaultdict(Counter)
    inside: dict[_Lists, dict[int, dict[str, Pair]]] = defaultdict(lambda: defaultdict(dict))
    places = [(pair, list(_places(*pair))) for pair in pairs]
    for pair, found in places:
        for lists, (i, j) in found:
            votes[lists][i, j] += 1
            inside[lists][i][".".join(pair[0].path).removeprefix(lists[0].format(i) + ".")] = pair
    for (t, s), lists, (i, j) in _strays(places, votes):
        if not _between_two_blocks(t, s, pairs, i - j):
            own, theirs = (name.format(n) for name, n in zip(lists, (i, j), strict=True))
            yield t, Reason.FROM_ANOTHER_BLOCK, (own, theirs)
    turned = filling.matcher.scopes.levels.turned
    for lists, counted in votes.items():
        if lists[0].partition("{}")[0] not in turned:
            yield from _crossed(inside[lists], lists, counted)


def _strays(
    places: Sequence[tuple[Pair, list[_Place]]], votes: Mapping[_Lists, Counter[tuple[int, int]]]
) -> list[tuple[Pair, _Lists, tuple[int, int]]]:
    """Return (pair, lists, (i, j)) for each pair in block i of the target's list and block j of the source's list, if
    both blocks are paired with others as much: block i has at least as many pairs with another block of the source as
    with j, and block j at least as many with another block of the target as with i (`_Rivals`). Only lists with the
    same blocks are looked at (`_go_together`). A pair may come several times, for several lists; [] if there is none.

    Left out are pairs with equal paths, but for numbers, of which two or more are out of place by the same j - i: that
    is a way of writing the code. PLACES has (pair, [(lists, (i, j))]), VOTES lists -> (i, j) -> how many pairs are
    there.
    """
    rivals = {lists: _Rivals(counted) for lists, counted in votes.items() if _go_together(counted)}
    habits: Counter[tuple[str, str, int]] = Counter()
    found = []
    for (t, s), found_in in places:
        for lists, (i, j) in found_in:
            if lists in rivals and votes[lists][i, j] <= rivals[lists].votes_against(i, j):
                habit = _without_numbers(t), _without_numbers(s), j - i
                found.append(((t, s), lists, (i, j), habit))
                habits[habit] += 1
    return [(pair, lists, numbers) for pair, lists, numbers, habit in found if habits[habit] < _A_HABIT]


def _between_two_blocks(t: Unit, s: Unit, pairs: Sequence[Pair], blocks: int) -> bool:
    """Return whether T and S are a layer between two blocks, such as a `downsample`, which one code counts to the block
    before it, the other to the block after it. All of these have to be true:

      - BLOCKS, the difference of the numbers of the blocks of T and S, is 1 or -1.
      - The last components of their paths are equal, and their similarity is above 0.
      - Each of PAIRS whose target is in another module than T is registered before T and S on both sides, or behind
        them on both sides.
    """
    same = abs(blocks) == 1 and s.path[-1:] == t.path[-1:] and similarity(t, s) > 0
    others = [(a, b) for a, b in pairs if a.path[:-1] != t.path[:-1]]
    return same and all((a.order < t.order) == (b.order < s.order) for a, b in others)


def _go_together(votes: Counter[tuple[int, int]]) -> bool:
    """Return whether two lists have the same blocks. VOTES has (number of a block in the first list, number of a block
    in the second) -> how many pairs link the two. True if more than half of all pairs remain when each block of the
    first list keeps only its pairs with that block of the second with which it has the most. False, as a rule, if one
    side has a list of blocks and the other a list for each part.
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
        """Return the smaller of two numbers: how many pairs link block I of the target with one block of the source
        other than J, and how many link block J of the source with one block of the target other than I; each for the
        other block with the most pairs. 0 if I or J is linked with no other block.
        """
        row = next((n for b, n in self._best_of_rows[i] if b != j), 0)
        column = next((n for a, n in self._best_of_columns[j] if a != i), 0)
        return min(row, column)


def _crossed(
    inside: Mapping[int, Mapping[str, Pair]], lists: _Lists, votes: Counter[tuple[int, int]]
) -> Iterator[_Asked]:
    """Yield a question about all pairs in a block of the model if the block and another one are in the opposite order
    on the two sides, and each would also fit in the place of the other (`_fitting`: layers of equal path have equal
    shapes in both). Nothing is asked if the graphs of both codes have the two in the same order (`_in_one_order`).

    The partner of a block is the block of the source with which it has the most pairs; blocks with a single pair are
    left out. LISTS are the paths of the list on the two sides, which the questions name with the numbers of the blocks;
    INSIDE has number of a block of the model -> path inside of it -> pair, VOTES (number in the model's list, number in
    the source's list) -> how many pairs link the two blocks.
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
    for one, other in _fitting(kinds):
        numbers = {theirs: own for own, theirs in (*kinds[one], *kinds[other])}
        for (i, j), m in _inverted(kinds[one], kinds[other]):
            if _in_one_order(inside[i].values(), inside[numbers[m]].values()):
                continue
            high, low = (lists[1].format(n) for n in (max(j, m), min(j, m)))
            for t, _ in inside[i].values():
                yield t, Reason.BLOCKS_CHANGE_PLACES, (high, low)


def _in_one_order(block: Iterable[Pair], other: Iterable[Pair]) -> bool:
    """Return whether the pairs of BLOCK and those of OTHER are in one order in the graphs of both codes: in both, the
    output of the one flows into the other, or in both the other way round. The first two of them count, one of each
    block, of which one flows into the other in the model: blocks may begin with layers that run beside each other.
    Layers between the two do not matter. False if a code was not followed, or if none flows into another.
    """
    for (t, s), (t2, s2) in product(block, other):
        ways = flows_into(t, t2), flows_into(t2, t)
        if any(ways):
            return ways == (flows_into(s, s2), flows_into(s2, s))
    return False


def _fitting(kinds: Collection[_Kind]) -> Iterator[tuple[_Kind, _Kind]]:
    """Yield (kind, other kind) for each two of KINDS whose blocks would fit in each other's place, in both orders, and
    each kind with itself. The two hold at least one layer of equal path and shapes, and all layers that both hold under
    one path have equal shapes; layers that only one of them holds do not count.
    """
    holding: dict[object, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        for held in kind:
            holding[held].append(number)
    numbered = [(kind, dict(kind)) for kind in kinds]
    for one, own in numbered:
        for number in sorted({number for held in one for number in holding[held]}):
            other, theirs = numbered[number]
            if all(own[path] == theirs[path] for path in own.keys() & theirs.keys()):
                yield one, other


#: What a block holds: the names in it with the shapes of their tensors.
_Kind = frozenset[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]]


def _inverted(
    of_one: Sequence[tuple[int, int]], of_other: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ((i, j), m) for each pair of numbers (i, j) in OF_ONE that some pair in OF_OTHER contradicts.

    A pair (k, l) of OF_OTHER contradicts it if k < i and l > j; m is the highest such l. It also does if k > i and l <
    j; m is the lowest such l. An (i, j) with pairs of both kinds is yielded twice. Both lists have to be sorted by
    their first numbers. OF_ONE and OF_OTHER may be one list.
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


def _shapes(unit: Unit) -> dict[str, tuple[int, ...]]:
    return {role: piece.shape for role, piece in unit.pieces.items()}


def _in_other_parts(pairs: Sequence[Pair]) -> Iterator[_Asked]:
    """Yield a question about a pair (T, S) if all other units in the module of T have their partners in one module of
    the source, S is not in it, and the same holds with T and S exchanged (`_Beside.shared`). The last components of
    their paths have to differ, and their names to have no word or meaning in common. The question names that module of
    the source and S.

    Nothing is asked if fewer than two neighbours are known on a side, or if T and S are both in no module.
    """
    of_t: dict[Path, list[Unit]] = defaultdict(list)
    of_s: dict[Path, list[Unit]] = defaultdict(list)
    for t, s in pairs:
        of_t[t.path[:-1]].append(s)
        of_s[s.path[:-1]].append(t)
    beside_t, beside_s = ({path: _Beside(units) for path, units in found.items()} for found in (of_t, of_s))
    for t, s in pairs:
        if len(t.path) < 2 and len(s.path) < 2:
            continue
        home, other = beside_t[t.path[:-1]].shared(s), beside_s[s.path[:-1]].shared(t)
        apart = home and other and not s.within(home) and not t.within(other)
        if apart and t.path[-1:] != s.path[-1:] and not related(t, s) and similarity(t, s) == 0:
            yield t, Reason.FROM_ANOTHER_PART, (".".join(home), ".".join(s.path))


def _in_twins(filling: Filling, pairs: Sequence[Pair]) -> Iterator[_Asked]:
    """Yield a question about each pair (T, S) if the partners of all other units in the module of T are in one module
    of the source, and S is in a twin of that module. The twin has units without a partner, under the same paths inside,
    for two or more of these partners: that of an average, or the other branch of a pair. The question names the module
    of the partners and S.
    """
    spare = {unit.path for unit in filling.matching.unpaired(1)}
    partners: dict[Path, list[Unit]] = defaultdict(list)
    for t, s in pairs if spare else ():
        partners[t.path[:-1]].append(s)
    beside = {module: _Beside(units) for module, units in partners.items()}
    for t, s in pairs if spare else ():
        home = beside[t.path[:-1]].shared(s)
        twin = s.path[: len(home)]
        others = [unit for unit in partners[t.path[:-1]] if unit is not s]
        if home and twin != home and sum((*twin, *unit.path[len(home) :]) in spare for unit in others) >= _FEWEST_TWINS:
            yield t, Reason.FROM_ANOTHER_PART, (".".join(home), ".".join(s.path))


def _outside_of_blocks(pairs: Sequence[Pair]) -> Iterator[_Asked]:
    """Yield a question about each pair (T, S) with T in a block and S in none, if all other pairs of this block, two or
    more, and the pairs of this name in other blocks, one or more, have their sources in blocks. The question names
    such a source of another block, and S. Also ask about each look-alike of T outside of all blocks that has a source
    in a block with the sources of these other pairs: it may have what T should have.
    """
    blocks: dict[Path, list[Pair]] = defaultdict(list)
    named: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if block := block_of(pair[0].path):
            blocks[block].append(pair)
            named[_without_numbers(pair[0])].append(pair)
    outside = {id(t) for t, s in pairs if not block_of(s.path)}
    for block, held in blocks.items():
        astray = [(t, s) for t, s in held if id(t) in outside]
        if len(astray) != 1 or len(held) <= _FEWEST_BESIDE:
            continue
        ((t, s),) = astray
        others = [pair for pair in named[_without_numbers(t)] if block_of(pair[0].path) != block]
        if others and all(id(other) not in outside for other, _ in others):
            yield (
                t,
                Reason.ANOTHER_IN_OTHER_BLOCKS,
                (_without_numbers(others[0][1]).replace("{}", "*"), ".".join(s.path)),
            )
            theirs = {block_of(one.path) for _, one in held if one is not s}
            for t2, s2 in pairs:
                if not block_of(t2.path) and block_of(s2.path) in theirs and t2.colour == t.colour:
                    said = (_without_numbers(others[0][1]), _without_numbers(others[0][0]))
                    yield (
                        t2,
                        Reason.TO_ANOTHER_IN_OTHER_BLOCKS,
                        (*(x.replace("{}", "*") for x in said), ".".join(s2.path)),
                    )


class _Beside:
    """The paths of the partners of all units in one module, from which `shared` computes what the paths have in common.

    Args:
        units: these partners.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._paths = sorted(unit.path for unit in units)

    def shared(self, left_out: Unit) -> Path:
        """Return the common beginning of the paths of all partners but LEFT_OUT, which is one of them: (`h`, `0`) for
        `h.0.q` and `h.0.k`. () if fewer than two other partners remain, or if their paths begin with different
        components.
        """
        if len(self._paths) < 3:
            return ()
        first = self._paths[self._paths[0] == left_out.path]
        last = self._paths[-2 if self._paths[-1] == left_out.path else -1]
        return first[: common_start([first, last])]  # what the first and last of a sorted list share, all share


_NUMBER, _AT_THE_END = re.compile(r"\d+"), re.compile(r"\d+$")


def _places(t: Unit, s: Unit) -> Iterator[_Place]:
    """Yield ((list of the target, list of the source), (number of T in it, number of S in it)) for each numbered list
    around T with each numbered list around S.
    """
    for own, i in _numbered(t.path):
        for theirs, j in _numbered(s.path):
            yield (own, theirs), (i, j)


def _numbered(path: Sequence[str]) -> list[tuple[str, int]]:
    """Return (path with `{}` in place of the number, number) for each module around the unit PATH with a number in its
    name, the outermost first: [("h.{}", 3), ("h.3.conv{}", 1)] for `h.3.conv1.norm`. Of several numbers in one name,
    the first counts. [] if there are none. Modules with a brace in their path are left out.
    """
    out = []
    for place, part in enumerate(path[:-1]):
        found = _NUMBER.search(part)
        if found is not None and not any(mark in "".join(path[: place + 1]) for mark in "{}"):
            part = part[: found.start()] + "{}" + part[found.end() :]
            out.append((".".join((*path[:place], part)), int(found.group())))
    return out


def _without_numbers(unit: Unit) -> str:
    """Return the path of UNIT with `{}` in place of all numbers."""
    return _NUMBER.sub("{}", ".".join(unit.path))


def _names(pair: Pair) -> tuple[str, str]:
    """Return the paths of both units of PAIR as texts, with `{}` in place of the number at the end of each component
    but the last: `h.3.block2.fc1` -> `h.{}.block{}.fc1`.
    """
    t, s = (".".join((*(_AT_THE_END.sub("{}", part) for part in u.path[:-1]), *u.path[-1:])) for u in pair)
    return t, s


__all__ = ["doubt_what_is_out_of_place"]
