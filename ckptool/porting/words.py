"""What names mean: the table `words.yaml`, and names cut into words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from itertools import takewhile
from typing import Any

from ..passes.buffers import NAMES

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Words that exclude one another.

    Attributes:
        name: what they speak of.
        hard: two labels of it are never one thing.
        phrases: words -> label; the longest that fits counts.
        longest: words in the longest phrase.
        known: the words of all phrases.
    """

    name: str
    hard: bool
    phrases: dict[tuple[str, ...], str]
    longest: int = field(init=False)
    known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "longest", max(map(len, self.phrases)))
        object.__setattr__(self, "known", frozenset(word for phrase in self.phrases for word in phrase))


@dataclass(frozen=True, slots=True)
class Fused:
    """A projection that is several in one.

    Attributes:
        parts: what it holds, in the order in which it does.
        fixed: it is the leaf of a module of torch, which lays it out so.
        sure: the name says that one part follows the other.
        ordered: all code that has this name keeps the order.
        by_heads: most code that has this name alternates the parts by attention head.
        ungated: unless keys have fewer heads than queries, and gate and up are one layer.
        linear: the name says what it says of linear layers, and nothing of convolutions.
    """

    parts: tuple[str, ...]
    fixed: bool = False
    sure: bool = False
    ordered: bool = False
    by_heads: bool = False
    ungated: bool = False
    linear: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent cell.

    Attributes:
        gates: their names, in the order in which torch stacks them.
        words: what they are called -> which it is.
        recurrent_kernel: the order in which code with that name stacks them.
        other: another order that code has.
    """

    gates: tuple[str, ...]
    words: dict[str, str]
    recurrent_kernel: tuple[str, ...]
    other: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rotary:
    """How rotary embeddings pair the rows of queries and keys.

    Attributes:
        kind: "half" (a row with that half a head further on) or "interleaved" (with the next one).
        sure: whether all code with such names does so, or most.
    """

    kind: str
    sure: bool


@dataclass(frozen=True, slots=True)
class OfLibrary:
    """What a library does with what it calls by a name.

    Attributes:
        beside: what has to stand beside it, so that it is that library's.
        by_heads: the parts of a fused projection alternate by attention head, or by group of them.
        rotary: how its rows are paired.
    """

    beside: str
    by_heads: bool
    rotary: Rotary


@dataclass(frozen=True, slots=True)
class Together:
    """Things that code computes by one layer.

    Attributes:
        parts: them, in their order.
        phrases: words -> part.
        turns: they take turns (the parts of the first anchor, those of the second …).
        sure: all code keeps that order.
    """

    parts: tuple[str, ...]
    phrases: dict[tuple[str, ...], str]
    turns: bool
    sure: bool

    def label(self, words: Sequence[str]) -> str | None:
        """Which part the words of a name say: by the longest phrase."""
        spans = [tuple(words[a:b]) for a in range(len(words)) for b in range(a + 1, len(words) + 1)]
        return next((self.phrases[s] for s in sorted(spans, key=len, reverse=True) if s in self.phrases), None)


@dataclass(frozen=True, slots=True)
class Words:
    """The table, ready to be asked."""

    leaves: dict[tuple[str, ...], str]
    beside_bias: frozenset[str]
    noisy: dict[tuple[str, ...], str]
    inputs_first: frozenset[str]
    depthwise: frozenset[str]
    slashed: dict[str, str]
    collections: frozenset[str]
    fused: dict[tuple[str, ...], Fused]
    parts: dict[tuple[str, ...], str]
    together: tuple[Together, ...]
    groups: tuple[Group, ...]
    empty: frozenset[str]
    copies: tuple[str, ...]
    rotary: dict[tuple[str, ...], Rotary]
    modulation: dict[tuple[str, ...], tuple[str, bool]]
    of_library: dict[str, OfLibrary]
    experts: frozenset[str]
    cells: tuple[Cell, ...]
    cell_sides: dict[str, str]
    cell_matrices: dict[tuple[str, ...], str]
    adapters: dict[str, str]
    adapted: frozenset[str]
    trained_instead: dict[str, str]
    adapter_prefixes: frozenset[str]
    ordinals: dict[str, int]
    derived: frozenset[str]
    averages: frozenset[str]
    beside: frozenset[str]
    sizes: frozenset[str]
    whole: frozenset[str]
    after: frozenset[str]
    endings: tuple[str, ...]
    vocabulary: frozenset[str]
    glued: frozenset[str]
    glued_to: frozenset[str]

    def group(self, name: str) -> Group:
        """The group of words of that name."""
        return next(group for group in self.groups if group.name == name)


@cache
def table() -> Words:
    """The table, read once."""
    import yaml

    text = files(__package__).joinpath("words.yaml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # ten times as fast

    def turned(labels: dict[str, Sequence[str]]) -> dict[tuple[str, ...], str]:
        return {cut(str(phrase)): label for label, phrases in labels.items() for phrase in phrases}

    fused = {}
    for one in raw["fused"]:
        for said in ("fixed", "sure", "linear", "open", "doubt", "by_heads", "ungated"):
            sure = said in ("fixed", "sure", "linear", "open")
            ordered = said in ("fixed", "sure", "linear")
            own = {"fixed": said == "fixed", "linear": said == "linear", "ungated": said == "ungated"}
            own["by_heads"] = said in ("by_heads", "ungated")
            kind = Fused(tuple(one["parts"]), sure=sure, ordered=ordered, **own)
            fused.update({cut(phrase): kind for phrase in one.get(said, ())})
    return Words(
        turned(raw["leaves"]),
        frozenset(raw["beside_bias"]),
        turned(raw["noisy"]),
        frozenset(raw["inputs_first"]),
        frozenset(raw["depthwise"]),
        dict(raw["slashed"]),
        frozenset(raw["collections"]),
        fused,
        turned(raw["parts"]),
        tuple(
            Together(tuple(one["parts"]), turned(one["parts"]), one["turns"], one["sure"]) for one in raw["together"]
        ),
        tuple(Group(name, one["hard"], turned(one["labels"])) for name, one in raw["groups"].items()),
        frozenset(map(str, raw["empty"])),
        tuple(raw["copies"]),
        {
            cut(phrase): Rotary(one["kind"], sure == "sure")
            for one in raw["rotary"]
            for sure in ("sure", "doubt")
            for phrase in one[sure]
        },
        {
            cut(phrase): (first, sure == "sure")
            for first, said in raw["modulation"].items()
            for sure in ("doubt", "sure")
            for phrase in said[sure]
        },
        {
            name: OfLibrary(one["beside"], one["by_heads"], Rotary(one["rotary"], True))
            for name, one in raw["of_library"].items()
        },
        frozenset(raw["experts"]),
        tuple(
            Cell(
                tuple(one["gates"]),
                {word: gate for gate, words in one["gates"].items() for word in words},
                tuple(one["recurrent_kernel"]),
                tuple(one["other"]),
            )
            for one in raw["cells"]
        ),
        {word: side for side, words in raw["cell_sides"].items() for word in words},
        turned(raw["cell_matrices"]),
        {name: role for role, names in raw["adapters"].items() for name in names},
        frozenset(raw["adapted"]),
        dict(raw["trained_instead"]),
        frozenset(raw["adapter_prefixes"]),
        {word: place for place, words in raw["ordinals"].items() for word in words},
        frozenset(NAMES.union(raw["derived"])),
        frozenset(raw["averages"]),
        frozenset(raw["beside"]),
        frozenset(raw["sizes"]),
        frozenset(raw["whole"]),
        frozenset(raw["after"]),
        tuple(raw["endings"]),
        frozenset(raw["vocabulary"]),
        frozenset(raw["glued"]["letters"]),
        frozenset(raw["glued"]["also"]),
    )


@cache
def cut(name: str) -> tuple[str, ...]:
    """The words of a name, in lower case; numbers are words: "queryProj2" gives ("query", "proj", "2")."""
    return tuple(word.lower() for word in _WORD.findall(name))


@cache
def alike(a: str, b: str) -> bool:
    """Whether two words are one, or one is the other cut short: "attn" and "attention", "residual" and "res"."""
    if a == b:
        return True
    short, long = sorted((a, b), key=len)
    if len(short) < 3 or short[0] != long[0] or not {short, long}.isdisjoint(table().whole):
        return False
    return long.startswith(short) or (len(bare := _consonants(short)) > 2 and _consonants(long).startswith(bare))


def common_start(names: Sequence[Sequence[str]]) -> int:
    """How many letters all names begin with alike, or how many components all paths do."""
    return sum(1 for _ in takewhile(lambda some: len(set(some)) == 1, zip(*names, strict=False)))


def _consonants(word: str) -> str:
    return word[0] + "".join(letter for letter in word[1:] if letter not in "aeiou")


def shared(a: Iterable[str], b: Collection[str]) -> int:
    """How many words of A are among those of B, whole or cut short."""
    return sum(any(alike(word, other) for other in b) for word in a)


@cache
def initials(words: tuple[str, ...]) -> frozenset[str]:
    """The first letters of words that follow each other: "ff" of "feed_forward"."""
    spans = (words[a:b] for a in range(len(words)) for b in range(a + 2, len(words) + 1))
    return frozenset("".join(word[0] for word in span) for span in spans)


def words_of(path: Sequence[str]) -> tuple[str, ...]:
    """The words of all components of a path; "skipbn" is two."""
    return tuple(part for component in path for word in cut(component) for part in _apart(word))


@cache
def _apart(word: str) -> tuple[str, ...]:
    """A word that is no word of the table, and ends in one for a kind of layer or has a letter before one, as two."""
    if word not in _known():
        for end in table().endings:
            if word.endswith(end) and len(word) > len(end) + 2:
                return word[: -len(end)], end
        rest = word[1:]
        if word[0] in table().glued and len(rest) > 1 and (rest in _known() or rest in table().glued_to):
            return (word,) if rest in table().copies else (word[0], rest)
    return (word,)


@cache
def _known() -> frozenset[str]:
    phrases = (phrase for group in table().groups for phrase in group.phrases)
    return frozenset(word for phrase in phrases for word in phrase) | table().empty


def label(group: Group, words: Sequence[str]) -> str | None:
    """What the words of a path say in GROUP: the label of the phrase that ends last, the longest of those."""
    return None if group.known.isdisjoint(words) else _label(group, tuple(words))


@lru_cache(maxsize=1 << 16)
def _label(group: Group, words: tuple[str, ...]) -> str | None:
    """The same, remembered: every rule and every round of it asks about the same names."""
    end = len(words)
    while end:
        for size in range(min(group.longest, end), 0, -1):
            found = group.phrases.get(tuple(words[end - size : end]))
            if size == 1 == len(words[end - 1]) and "".join(words[end : end + 1]).isdecimal():
                continue  # the "v" of "v2" is no value
            if found == _NOTHING:
                end -= size - 1
                break
            if found is not None:
                return _without_number(group, words[:end], size) or found
        end -= 1
    return None


def _without_number(group: Group, words: Sequence[str], size: int) -> str | None:
    """What the words before a number say that a phrase of SIZE words ends with, if they reach further to the front.

    Where a name spells what it is, a number only counts: the `attn2` of `self_attn2` is no attention across.
    """
    if not words[-1].isdecimal():
        return None
    before = words[:-1]
    spans = (tuple(before[-n:]) for n in range(min(group.longest, len(before)), size - 1, -1))
    return next((said for span in spans if (said := group.phrases.get(span)) not in (None, _NOTHING)), None)


@cache
def labels(words: tuple[str, ...], *, hard: bool) -> dict[str, str]:
    """What words say in the groups whose labels exclude each other, or in those whose labels do not: group -> label."""
    groups = (group for group in table().groups if group.hard is hard)
    return {group.name: said for group in groups if (said := label(group, words)) is not None}


#: The label of phrases that look as if they said something in a group, and do not.
_NOTHING = "nothing"


@cache
def telling_words(path: tuple[str, ...]) -> frozenset[str]:
    """The words of a path that say what it is, and not only what kind of layer or container."""
    words = (word for component in path for word in _placed(words_of((component,))))
    return frozenset(w for w in words if w not in table().empty and w not in _kinds() and not w.isdecimal())


def _placed(words: tuple[str, ...]) -> Iterator[str]:
    """The words of a name, with those that say what it comes after made one with what they say it of.

    What is called `post_attention_norm` is no part of attention: it may be the norm of what comes next.
    """
    at = 0
    while at < len(words):
        after = words[at] in table().after and at + 1 < len(words) and words[at + 1] not in _kinds()
        yield "".join(words[at : at + 1 + after])
        at += 1 + after


@cache
def _kinds() -> frozenset[str]:
    """Words for kinds of layers: that both are a norm does not make them alike, where all that compete are norms."""
    purpose = table().group("purpose")
    words = {w for phrase, said in purpose.phrases.items() if said in ("norm", "conv") for w in phrase}
    return frozenset(words | {"linear", "dense", "fc", "proj", "projection", "batch", "weight", "bias"})


@cache
def numbers(path: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers in a path, in order; "first" is one, too."""
    ordinals = table().ordinals
    return tuple(
        int(word) if word.isdecimal() else ordinals[word]
        for component in path
        for word in cut(component)
        if (word.isdecimal() and len(word) < 10) or word in ordinals
    )
