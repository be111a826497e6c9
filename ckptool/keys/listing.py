"""Lists of keys short enough to read, their outline, and the names that look most like one."""

from __future__ import annotations

import difflib
import heapq
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, chain, groupby, islice, repeat, zip_longest
from math import prod
from operator import itemgetter
from sys import intern
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

# The same in a text in which each key has a dot before it and "\n." behind it: a dot is found much faster.
_NUMBER_BEHIND_DOT = re.compile(r"\.(0|[1-9][0-9]{0,8})(?=[.\n])")
_MARK = "\0"

# Keys that are taken apart at once.
_AT_ONCE = 4096

# A box is one set of numbers for each place where a name has a number, and the keys (by number) that it stands for.
_Box: TypeAlias = tuple[tuple[frozenset[str], ...], list[int]]

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
    templates, numbers = _taken_apart(keys)
    counts = {template: template.count(_MARK) for template in set(templates)}
    firsts = [0, *accumulate(map(counts.__getitem__, templates))]
    groups: defaultdict[tuple[Hashable, str], list[int]] = defaultdict(list)
    for index, told in enumerate(zip(signatures.values(), templates, strict=True)):
        groups[told].append(index)
    found: list[tuple[int, Collapsed]] = []
    for (_, template), members in groups.items():
        columns = [[numbers[firsts[index] + place] for index in members] for place in range(counts[template])]
        around = _NUMBER.split(keys[members[0]], _MOST_NUMBERS)[::2]
        for ranges, own in _joined(columns, members):
            pattern = "".join(chain(*zip_longest(around, map(_ranges, ranges), fillvalue="")))
            own.sort()
            folded = Collapsed(pattern, tuple([keys[index] for index in own]), signatures[keys[own[0]]])
            found.append((own[0], folded))
    return [folded for _, folded in sorted(found, key=itemgetter(0))]


_DIGITS_AS_ZEROS = {ord(digit): "0" for digit in "123456789"}
#: Characters of keys that are looked at as one text.
_MOST_TOGETHER = 1 << 20


def outline(keys: Iterable[str]) -> str:
    r"""Return KEYS with every digit as 0, each text once on a line of its own, with a line's end before and behind.

    A word without digits is in a key where it is in the outline; a key ends with it where the outline has it before
    "\n", and begins with it where the outline has it behind "\n". Of 100,000 keys it is mostly a few lines.
    """
    lines: dict[str, None] = {}
    left = iter(keys)
    while some := list(islice(left, _AT_ONCE)):
        for text in ["\n".join(some)] if sum(map(len, some)) < _MOST_TOGETHER else some:
            lines |= dict.fromkeys(text.translate(_DIGITS_AS_ZEROS).split("\n"))
    return "\n".join(["", *lines, ""])


def _taken_apart(keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of each key, a text that is the same for those that differ in folded numbers alone; and all these numbers.

    A mark stands in each text for a number. Many keys are taken apart together, in half the time, unless one has more
    numbers than are folded.
    """
    if "\n" in (text := "".join(keys)) or _MARK in text:
        keys = [repr(key)[1:-1] for key in keys]
    templates: list[str] = []
    numbers: list[str] = []
    for at in range(0, len(keys), _AT_ONCE):
        pieces = _NUMBER_BEHIND_DOT.split("\n.".join(["", *keys[at : at + _AT_ONCE], ""]))
        templates += map(intern, _MARK.join(pieces[::2]).split("\n")[1:-1])
        numbers += pieces[1::2]
    if max(map(str.count, set(templates), repeat(_MARK)), default=0) <= _MOST_NUMBERS:
        return templates, numbers
    split = [_NUMBER.split(key, _MOST_NUMBERS) for key in keys]
    return [_MARK.join(one[::2]) for one in split], [number for one in split for number in one[1::2]]


def _joined(columns: list[list[str]], keys: list[int]) -> list[_Box]:
    """Join KEYS into boxes, each with every combination of its numbers.

    COLUMNS are their first numbers, their second ones, and so on. From the last place to the first, boxes that differ
    in that place alone become one: first the experts of each layer, then the layers that have the same experts.
    """
    sets = list(map(frozenset, columns))
    if prod(map(len, sets)) == len(keys):
        return [(tuple(sets), keys)]  # every combination is there, as nearly always
    varied = [place for place, numbers in enumerate(sets) if len(numbers) > 1]
    *outer, last = (columns[place] for place in varied)
    by_outer: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, numbers in enumerate(zip(*outer, strict=True)):
        by_outer[numbers].append(index)
    single = {number: frozenset((number,)) for place in varied[:-1] for number in sets[place]}
    boxes: list[_Box] = [
        ((*map(single.__getitem__, numbers), frozenset([last[index] for index in own])), [keys[index] for index in own])
        for numbers, own in by_outer.items()
    ]
    for place in reversed(range(len(outer))):
        found: dict[tuple[frozenset[str], ...], tuple[list[frozenset[str]], list[int]]] = {}
        for ranges, members in boxes:
            here, all_keys = found.setdefault(ranges[:place] + ranges[place + 1 :], ([], []))
            here.append(ranges[place])
            all_keys.extend(members)
        boxes = [
            ((*rest[:place], frozenset().union(*here), *rest[place:]), every) for rest, (here, every) in found.items()
        ]
    return [(_among(sets, varied, ranges), members) for ranges, members in boxes]


def _among(
    sets: list[frozenset[str]], varied: list[int], ranges: tuple[frozenset[str], ...]
) -> tuple[frozenset[str], ...]:
    """SETS, with RANGES in the places that are VARIED."""
    found = list(sets)
    for place, numbers in zip(varied, ranges, strict=True):
        found[place] = numbers
    return tuple(found)


def _ranges(numbers: frozenset[str]) -> str:
    """Return `3` for one number, otherwise `{0..31}` or `{0,2,5..7}`."""
    if len(numbers) == 1:
        return str(*numbers)
    texts: list[str] = []
    # Along a run of neighbours, a number and its place in the list keep their distance.
    for _, run in groupby(enumerate(sorted(map(int, numbers))), lambda item: item[1] - item[0]):
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
