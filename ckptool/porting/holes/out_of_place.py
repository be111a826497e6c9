"""What is taken from elsewhere than all around it: a leftover of equal shape, or a block in place of another.

Where a model has a layer that the file does not have, and the file one that the model does not have, the two may fit
each other by their sizes, their neighbours and their words. Numbers of blocks, and the parts that the two belong to,
then say something else. Nothing is changed here: such a pair is asked about.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from ..matching.units import Unit, related, similarity
from ..questions import Reason
from .filling import Filling

Pair = tuple[Unit, Unit]

#: A list of blocks: its path with `{}` in place of the number, on both sides.
_Lists = tuple[str, str]

#: Pairs that are out of place in the same way by so many blocks are a way of writing the code, not leftovers.
_A_HABIT = 2


def doubt_what_is_out_of_place(filling: Filling) -> None:
    """Ask about pairs of which the blocks, or the parts, that they belong to go elsewhere."""
    pairs = list({(id(t), id(s)): (t, s) for t, s in filling.unit_of.values() if t is not s}.values())
    _in_other_blocks(filling, pairs)
    _in_other_parts(filling, pairs)
    _against_other_blocks(filling, pairs)


def _against_other_blocks(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Pairs of two names that both belong to others in all other blocks."""
    of_target: dict[str, Counter[str]] = defaultdict(Counter)
    of_source: dict[str, Counter[str]] = defaultdict(Counter)
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


def _in_other_blocks(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Pairs whose blocks are matched with others; and blocks that change places though they would fit as they are."""
    votes: dict[_Lists, Counter[tuple[int, int]]] = defaultdict(Counter)
    places = [list(_places(t, s)) for t, s in pairs]
    for found in places:
        for lists, numbers in found:
            votes[lists][numbers] += 1
    habits: Counter[tuple[str, str, int]] = Counter()
    stray: list[tuple[Pair, _Lists, tuple[int, int], tuple[str, str, int]]] = []
    for pair, found in zip(pairs, places, strict=True):
        for lists, (i, j) in found:
            rows = {b: n for (a, b), n in votes[lists].items() if a == i and b != j}
            columns = {a: n for (a, b), n in votes[lists].items() if b == j and a != i}
            if rows and columns and votes[lists][i, j] <= min(max(rows.values()), max(columns.values())):
                habit = _without_numbers(pair[0]), _without_numbers(pair[1]), j - i
                stray.append((pair, lists, (i, j), habit))
                habits[habit] += 1
    for (t, _), lists, (i, j), habit in stray:
        if habits[habit] < _A_HABIT:
            own, theirs = (name.format(n) for name, n in zip(lists, (i, j), strict=True))
            _ask(filling, t, Reason.FROM_ANOTHER_BLOCK, own, theirs)
    for lists, counted in votes.items():
        _crossed(filling, pairs, lists, counted)


def _crossed(filling: Filling, pairs: Sequence[Pair], lists: _Lists, votes: Counter[tuple[int, int]]) -> None:
    """Blocks of which the one with the higher number comes from the one with the lower, where each would fit both."""
    rows: dict[int, Counter[int]] = defaultdict(Counter)
    for (i, j), n in votes.items():
        rows[i][j] += n
    best = {i: found.most_common(1)[0][0] for i, found in rows.items() if sum(found.values()) > 1}
    for (i, j), (k, m) in combinations(sorted(best.items()), 2):
        if j <= m:
            continue
        here, there = (_in_block(pairs, lists[0], n) for n in (i, k))
        common = here.keys() & there.keys()
        if common and all(_shapes(here[name][0]) == _shapes(there[name][0]) for name in common):
            for t, _ in (*here.values(), *there.values()):
                _ask(filling, t, Reason.BLOCKS_CHANGE_PLACES, lists[1].format(j), lists[1].format(m))


def _in_block(pairs: Sequence[Pair], name: str, number: int) -> dict[str, Pair]:
    head = name.format(number) + "."
    return {".".join(t.path).removeprefix(head): (t, s) for t, s in pairs if ".".join(t.path).startswith(head)}


def _shapes(unit: Unit) -> dict[str, tuple[int, ...]]:
    return {role: piece.shape for role, piece in unit.pieces.items()}


def _in_other_parts(filling: Filling, pairs: Sequence[Pair]) -> None:
    """Pairs of two names without a word in common, each of which has all its neighbours elsewhere on the other side."""
    for t, s in pairs:
        if len(t.path) < 2 and len(s.path) < 2:
            continue
        if similarity(t, s) > 0 or related(t, s) or t.path[-1:] == s.path[-1:]:
            continue
        own = [b for a, b in pairs if a is not t and a.path[:-1] == t.path[:-1]]
        theirs = [a for a, b in pairs if b is not s and b.path[:-1] == s.path[:-1]]
        if len(own) < 2 or len(theirs) < 2:
            continue
        home, other = _shared(own), _shared(theirs)
        if home and other and s.path[: len(home)] != home and t.path[: len(other)] != other:
            _ask(filling, t, Reason.FROM_ANOTHER_PART, ".".join(home), ".".join(s.path))


def _shared(units: Sequence[Unit]) -> tuple[str, ...]:
    """What the paths of all begin with."""
    paths = [unit.path for unit in units]
    same = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), None)
    return paths[0][: min(map(len, paths)) if same is None else same]


def _ask(filling: Filling, t: Unit, reason: Reason, *named: str) -> None:
    for piece in t.pieces.values():
        if piece.name in filling.holes:
            filling.holes[piece.name].ask(reason, *named)


_NUMBER, _AT_THE_END = re.compile(r"\d+"), re.compile(r"\d+$")


def _places(t: Unit, s: Unit) -> Iterator[tuple[_Lists, tuple[int, int]]]:
    """The lists that a pair is in, of both sides, with its numbers there."""
    for own, i in _numbered(t.path):
        for theirs, j in _numbered(s.path):
            yield (own, theirs), (i, j)


def _numbered(path: Sequence[str]) -> list[tuple[str, int]]:
    """The blocks around a unit: the path of each with `{}` in place of its number."""
    out = []
    for place, part in enumerate(path[:-1]):
        found = _NUMBER.search(part)
        if found is not None and not any(mark in "".join(path[: place + 1]) for mark in "{}"):
            part = part[: found.start()] + "{}" + part[found.end() :]
            out.append((".".join((*path[:place], part)), int(found.group())))
    return out


def _without_numbers(unit: Unit) -> str:
    return _NUMBER.sub("{}", ".".join(unit.path))


def _in_any_block(unit: Unit) -> str:
    """Its path without the numbers of the blocks around it."""
    return ".".join((*(_AT_THE_END.sub("{}", part) for part in unit.path[:-1]), *unit.path[-1:]))


__all__ = ["doubt_what_is_out_of_place"]
