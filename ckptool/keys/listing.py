"""Lists of keys short enough to read, their outline, and the names that look most like one."""

from __future__ import annotations

import difflib
import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import accumulate, chain, compress, count, islice, pairwise, repeat, zip_longest
from math import prod
from operator import itemgetter, sub
from sys import intern
from typing import Generic, TypeAlias, TypeVar

from ..records import record
from .prefixes import agreeing

_Signature = TypeVar("_Signature", bound=Hashable)


@record(frozen=True, slots=True)
class Collapsed(Generic[_Signature]):
    """Keys that differ only in numbers, as one line: `layers.{0..31}.attn.weight`.

    Attributes:
        pattern: the line; the key itself when it stands alone.
        keys: the keys, in the order in which they were given.
        signature: what was given for each of them.
    """

    pattern: str
    keys: tuple[str, ...]
    signature: _Signature


# A component that is a number. "007" is a name, for as a number it would be "7"; so is what is too long for an index.
_NUMBER = re.compile(r"(?<![^.])(0|[1-9][0-9]{0,8})(?![^.])")

# The same in a text in which each key has a dot before it and "\n." behind it: a dot is found much faster.
_NUMBER_BEHIND_DOT = re.compile(r"\.(0|[1-9][0-9]{0,8})(?=[.\n])")
_MARK = "\0"

# Keys that are taken apart at once.
_AT_ONCE = 4096

# A box is the numbers for each place where a name has one, and the keys (by number) that it stands for.
_Box: TypeAlias = tuple[tuple[Collection[str], ...], list[int]]

# Numbers of one key that are folded. Each costs one more look at every key, and names come out of files.
_MOST_NUMBERS = 8


def collapse(items: Iterable[tuple[str, _Signature]]) -> list[Collapsed[_Signature]]:
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
    groups: defaultdict[tuple[_Signature, str], list[int]] = defaultdict(list)
    for index, told in enumerate(zip(signatures.values(), templates, strict=True)):
        groups[told].append(index)
    found: list[tuple[int, Collapsed[_Signature]]] = []
    for (_, template), members in groups.items():
        begins = list(map(firsts.__getitem__, members))
        columns = [list(map(numbers.__getitem__, map(place.__add__, begins))) for place in range(counts[template])]
        around = _NUMBER.split(keys[members[0]], _MOST_NUMBERS)[::2]
        for ranges, own in _joined(columns, members):
            pattern = "".join(chain(*zip_longest(around, map(_ranges, ranges), fillvalue="")))
            own.sort()
            folded = Collapsed(pattern, tuple(map(keys.__getitem__, own)), signatures[keys[own[0]]])
            found.append((own[0], folded))
    return [folded for _, folded in sorted(found, key=itemgetter(0))]


@record(frozen=True, slots=True)
class CollapsedModules(Generic[_Signature]):
    """Modules that differ only in numbers and have the same tensors, as one line: `layers.{0..31}.attn`.

    Attributes:
        pattern: the line; the name of the module when it stands alone.
        count: how many modules they are.
        keys: those of all their tensors.
        leaves: the last component of the key of each tensor of one of them, and what was given for it. The whole keys,
            also with a dot at their beginning, of tensors in no module, whose pattern is empty.
    """

    pattern: str
    count: int
    keys: tuple[str, ...]
    leaves: tuple[tuple[str, _Signature], ...]


def collapse_modules(keys: Sequence[str], signatures: Sequence[_Signature]) -> list[CollapsedModules[_Signature]]:
    """Fold modules, the parents of KEYS, that differ only in components that are numbers and have equal tensors.

    Tensors are equal where their last components and SIGNATURES are. Results come in the order in which the first keys
    of the modules came.

    Keys are folded first. Mostly those of a run of modules have the same numbers in all of their lines, and no module
    has to be looked at by itself. Nor has one if a run has several such groups of lines, and one tensor is in all of
    the groups: as each key is in one line only, the groups are of other modules.
    """
    runs: defaultdict[str, defaultdict[str | None, list[Collapsed[_Signature]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line in collapse(zip(keys, signatures, strict=True)):
        module, leaf = _parted(line.keys[0])
        end = f".{leaf}" if module else leaf
        ends = line.pattern.endswith(end)  # else it is a number, which the pattern has a range for
        run = runs[_MARK.join(_NUMBER.split(module)[::2])]
        run[line.pattern[: len(line.pattern) - len(end)] if ends else None].append(line)
    found: list[tuple[str, CollapsedModules[_Signature]]] = []
    apart: set[str] = set()
    for run in runs.values():
        named = [{_parted(line.keys[0])[1] for line in lines} for lines in run.values()]
        together = None not in run and (len(run) == 1 or bool(set.intersection(*named)))
        for pattern, lines in run.items():
            if pattern is None or not together:
                apart.update(*(line.keys for line in lines))
                continue
            leaves = tuple((_parted(line.keys[0])[1], line.signature) for line in lines)
            held = tuple(chain.from_iterable(line.keys for line in lines))
            found.append((held[0], CollapsedModules(pattern, len(lines[0].keys), held, leaves)))
    if not apart:
        return _in_order(found, keys)
    inside: defaultdict[str, list[str]] = defaultdict(list)  # modules -> the keys of their tensors
    tensors: defaultdict[str, list[tuple[str, _Signature]]] = defaultdict(list)
    for key, signature in zip(keys, signatures, strict=True):
        if key in apart:
            module, leaf = _parted(key)
            inside[module].append(key)
            tensors[module].append((leaf, signature))
    for modules in collapse((module, tuple(held)) for module, held in tensors.items()):
        held = tuple(chain.from_iterable(map(inside.__getitem__, modules.keys)))
        leaves = tuple(tensors[modules.keys[0]])
        found.append((held[0], CollapsedModules(modules.pattern, len(modules.keys), held, leaves)))
    return _in_order(found, keys)


def _parted(key: str) -> tuple[str, str]:
    """Return the module of KEY, and its last component; ("", KEY) for a key in no module, such as `w` and `.w`."""
    module, _, leaf = key.rpartition(".")
    return (module, leaf) if module else ("", key)


def _in_order(
    found: list[tuple[str, CollapsedModules[_Signature]]], keys: Sequence[str]
) -> list[CollapsedModules[_Signature]]:
    """What was FOUND, each beginning with one of KEYS, in the order of these."""
    first = {key for key, _ in found}
    place = {key: at for at, key in enumerate(keys) if key in first}
    return [folded for _, folded in sorted(found, key=lambda one: place[one[0]])]


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
    in_order = list(map(dict.fromkeys, columns))  # as they come, which is mostly sorted
    if prod(map(len, in_order)) == len(keys):
        return [(tuple(in_order), keys)]  # every combination is there, as nearly always
    sets = list(map(frozenset, in_order))
    varied = [place for place, numbers in enumerate(sets) if len(numbers) > 1]
    *outer, last = (columns[place] for place in varied)
    by_outer: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, numbers in enumerate(zip(*outer, strict=True)):
        by_outer[numbers].append(index)
    single = {number: frozenset((number,)) for place in varied[:-1] for number in sets[place]}
    boxes: list[tuple[tuple[frozenset[str], ...], list[int]]] = [
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


def _ranges(numbers: Collection[str]) -> str:
    """Return `3` for one number, otherwise `{0..31}` or `{0,2,5..7}`."""
    if len(numbers) == 1:
        return str(*numbers)
    values = sorted(map(int, numbers))
    after_holes = compress(count(1), map((1).__lt__, map(sub, values[1:], values)))
    texts: list[str] = []
    for begin, end in pairwise([0, *after_holes, len(values)]):
        run = values[begin:end]
        texts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
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
