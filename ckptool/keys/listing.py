"""Lists of keys short enough to read, and the names that look most like one."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Hashable, Iterable
from itertools import chain, groupby, zip_longest
from operator import itemgetter
from typing import TypeAlias

from ..records import record
from .prefixes import agreeing


@record(frozen=True, slots=True)
class Collapsed:
    """Keys that differ only in numbers, as one line: `layers.{0..31}.attn.weight`.

    Attributes:
        pattern: the line; the key itself when it stands alone.
        keys: the keys, in the order in which they were given.
        signature: what was given for each of them.
    """

    pattern: str
    keys: tuple[str, ...]
    signature: Hashable


# A component that is a number. "007" is a name, for as a number it would be "7"; so is what is too long for an index.
_NUMBER = re.compile(r"(?<![^.])(0|[1-9][0-9]{0,8})(?![^.])")

# A box is one set of numbers for each place where a name has a number, and the keys (by number) that it stands for.
_Box: TypeAlias = tuple[tuple[frozenset[int], ...], list[int]]

# Numbers of one key that are folded. Each costs one more look at every key, and names come out of files.
_MOST_NUMBERS = 8


def collapse(items: Iterable[tuple[str, Hashable]]) -> list[Collapsed]:
    """Fold keys that differ only in components that are numbers and have equal signatures.

    Each item is a key and whatever tells it from its neighbours, such as (dtype, shape). Several numbers fold
    together where every combination is there; a layer that is unlike the others gets a line of its own. Every
    key is in exactly one result, and results come in the order in which their first keys came.
    """
    signatures = dict(items)
    keys = list(signatures)
    groups: dict[tuple[Hashable, ...], tuple[list[tuple[int, ...]], list[int]]] = {}
    for index, (key, signature) in enumerate(signatures.items()):
        pieces = _NUMBER.split(key, _MOST_NUMBERS)
        numbers, members = groups.setdefault((signature, *pieces[::2]), ([], []))
        numbers.append(tuple(map(int, pieces[1::2])))
        members.append(index)
    found: list[tuple[int, Collapsed]] = []
    for numbers, group in groups.values():
        around = _NUMBER.split(keys[group[0]], _MOST_NUMBERS)[::2]
        for ranges, members in _joined(numbers, group):
            pattern = "".join(chain(*zip_longest(around, map(_ranges, ranges), fillvalue="")))
            members.sort()
            folded = Collapsed(pattern, tuple([keys[index] for index in members]), signatures[keys[members[0]]])
            found.append((members[0], folded))
    return [folded for _, folded in sorted(found, key=itemgetter(0))]


def _joined(numbers: list[tuple[int, ...]], keys: list[int]) -> list[_Box]:
    """Join KEYS with the same number of NUMBERS into boxes, each with every combination of its numbers.

    From the last place to the first, boxes that differ in that place alone become one: first the experts of
    each layer, then the layers that have the same experts.
    """
    if len(numbers[0]) == 1:  # then they all do
        return [((frozenset([number for (number,) in numbers]),), keys)]
    boxes: list[_Box] = [(tuple(frozenset((n,)) for n in own), [key]) for own, key in zip(numbers, keys, strict=True)]
    for place in reversed(range(len(boxes[0][0]))):
        found: dict[tuple[frozenset[int], ...], tuple[list[frozenset[int]], list[int]]] = {}
        for ranges, members in boxes:
            here, all_keys = found.setdefault(ranges[:place] + ranges[place + 1 :], ([], []))
            here.append(ranges[place])
            all_keys.extend(members)
        boxes = [
            ((*rest[:place], frozenset().union(*here), *rest[place:]), every) for rest, (here, every) in found.items()
        ]
    return boxes


def _ranges(numbers: frozenset[int]) -> str:
    """Return `3` for one number, otherwise `{0..31}` or `{0,2,5..7}`."""
    if len(numbers) == 1:
        return str(*numbers)
    texts: list[str] = []
    # Along a run of neighbours, a number and its place in the list keep their distance.
    for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0]):
        values = [n for _, n in run]
        texts += [f"{values[0]}..{values[-1]}"] if len(values) > 2 else map(str, values)
    return "{" + ",".join(texts) + "}"


# Comparing costs up to the square of the length, and names come out of files.
_LONGEST, _MOST_NAMES = 200, 100


def closest(name: str, names: Iterable[str], n: int = 3) -> list[str]:
    """Return up to N of NAMES that look most like NAME, best first, for "did you mean"."""
    name = name[:_LONGEST]
    short = (other for other in names if len(other) <= _LONGEST)
    # Only those are compared in full that begin and end most like it.
    likely = heapq.nlargest(
        _MOST_NAMES, short, key=lambda other: agreeing(name, other) + agreeing(name[::-1], other[::-1])
    )
    return difflib.get_close_matches(name, likely, n)
