"""The meaning of names: the table `words.yaml`, and functions that split names into words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from itertools import takewhile
from typing import Any

from ..keys.known_buffers import COMPUTED

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A group of words of which a name means one at most, such as encoder and decoder.

    Attributes:
        name: the name of the group.
        hard: whether a name with one label never means the same as a name with another label.
        phrases: words -> label; see `label` for which phrase of a name counts.
        longest: number of words in the longest phrase.
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
    """What the name of a projection that holds several (`qkv`, `gate_up_proj`) says about how they are stored.

    Attributes:
        parts: the projections that it holds, in the order that the name gives or that is usual.
        fixed: whether it is a parameter of a torch module, which defines the layout.
        sure: whether the name says that the parts follow one another.
        ordered: whether all code with this name keeps the order of the parts.
        by_heads: whether most code with this name interleaves the parts by attention head.
        ungated: whether `by_heads`, which is then true, does not hold if keys have fewer heads than queries, and one
            layer computes gate and up.
        linear: whether the name says this only of linear layers, not of convolutions.
    """

    parts: tuple[str, ...]
    fixed: bool = False
    sure: bool = False
    ordered: bool = False
    by_heads: bool = False
    ungated: bool = False
    linear: bool = False


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """A kind of recurrent cell, LSTM or GRU.

    Attributes:
        gates: the letters of its gates, in the order in which torch stacks them.
        words: word in a name -> letter of the gate.
        recurrent_kernel: the letters in the order in which code with a `recurrent_kernel` (Keras) stacks them.
        other: the letters in the order of other code that holds all gates in one matrix.
    """

    gates: tuple[str, ...]
    words: dict[str, str]
    recurrent_kernel: tuple[str, ...]
    other: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rotary:
    """How rotary embeddings pair the rows of queries and keys.

    Attributes:
        kind: "half" (row i with the row half a head further) or "interleaved" (with the next row).
        sure: whether all code with such names does so, or only most.
    """

    kind: str
    sure: bool


@dataclass(frozen=True, slots=True)
class OfLibrary:
    """The conventions of a library, for modules with a name that it uses.

    Attributes:
        beside: a name that has to be in the same module, so that it is this library's.
        within: names that have to follow each other in the path to that module; none if all paths will do.
        by_heads: whether the parts of a fused projection are interleaved by attention head, or by group of heads.
        rotary: how rotary embeddings pair its rows.
    """

    beside: str
    within: tuple[str, ...]
    by_heads: bool
    rotary: Rotary


@dataclass(frozen=True, slots=True)
class Together:
    """Several outputs that some code computes with one layer, and other code with a layer each: mean and spread.

    Attributes:
        parts: the outputs, in their usual order in the one layer.
        phrases: words of a name -> the output that they mean.
        turns: whether they alternate there (all outputs of the first anchor, then of the second …).
        sure: whether all code keeps that order.
        needed: how many of the outputs have to be there as layers, so that their names mean this: two, or all.
    """

    parts: tuple[str, ...]
    phrases: dict[tuple[str, ...], str]
    turns: bool
    sure: bool
    needed: int

    def label(self, words: Sequence[str]) -> str | None:
        """Return the output that the words of a name mean, by the longest phrase in them, and of several by the first;
        None if they mean none.
        """
        spans = [tuple(words[a:b]) for a in range(len(words)) for b in range(a + 1, len(words) + 1)]
        return next((self.phrases[s] for s in sorted(spans, key=len, reverse=True) if s in self.phrases), None)


@dataclass(frozen=True, slots=True)
class Company:
    """Names that mean something only if one module has all of them. Other names in the module do not matter.

    Attributes:
        words: name in small letters -> the word that it stands for.
        modules: whether they may also be names of modules with layers in them, and not of layers alone.
    """

    words: dict[str, str]
    modules: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """The vocabulary of names, read from `words.yaml`: every word and phrase that has a meaning in the name of a
    tensor.

    Each attribute is the section with its name, where a comment says what it means; `glued` and `glued_to` are one
    section, and `derived` also has the names of known buffers that models compute (`COMPUTED`). Phrases are tuples of
    words.
    """

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
    in_company: tuple[Company, ...]
    groups: tuple[Group, ...]
    empty: frozenset[str]
    copies: tuple[str, ...]
    rotary: dict[tuple[str, ...], Rotary]
    modulation: dict[tuple[str, ...], tuple[str, bool]]
    of_library: dict[str, tuple[OfLibrary, ...]]
    experts: frozenset[str]
    cells: tuple[RecurrentCell, ...]
    cell_sides: dict[str, str]
    cell_matrices: dict[tuple[str, ...], str]
    adapters: dict[str, str]
    adapted: frozenset[str]
    trained_instead: dict[str, str]
    adapter_prefixes: frozenset[str]
    ordinals: dict[str, int]
    derived: frozenset[str]
    averages: frozenset[str]
    counts: frozenset[str]
    lookups: frozenset[str]
    complex_parts: dict[str, str]
    beside: frozenset[str]
    sizes: frozenset[str]
    whole: frozenset[str]
    after: frozenset[str]
    endings: tuple[str, ...]
    vocabulary: frozenset[str]
    glued: frozenset[str]
    glued_to: frozenset[str]

    def group(self, name: str) -> Group:
        """Return the group of words called NAME, which has to exist."""
        return next(group for group in self.groups if group.name == name)


@cache
def table() -> Words:
    """Return the vocabulary of names in `words.yaml`. The file is read once."""
    import yaml

    text = files(__package__).joinpath("words.yaml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # ten times as fast

    def turned(labels: dict[str, Sequence[str]]) -> dict[tuple[str, ...], str]:
        """Return words of a phrase -> label, from LABELS (label -> phrases)."""
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
            Together(
                tuple(parts := one["parts"]),
                turned(parts),
                one["turns"],
                one["sure"],
                len(parts) if one.get("all") else 2,
            )
            for one in raw["together"]
        ),
        tuple(Company(**one) for one in raw["in_company"]),
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
            name: tuple(
                OfLibrary(one["beside"], tuple(one.get("within", ())), one["by_heads"], Rotary(one["rotary"], True))
                for one in libraries
            )
            for name, libraries in raw["of_library"].items()
        },
        frozenset(raw["experts"]),
        tuple(
            RecurrentCell(
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
        frozenset(COMPUTED.union(raw["derived"])),
        frozenset(raw["averages"]),
        frozenset(raw["counts"]),
        frozenset(raw["lookups"]),
        {word: part for part, words in raw["complex_parts"].items() for word in words},
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
    """Return the words of NAME, in lower case. Each is a run of capitals, of small letters with or without a capital
    before them, or of digits; all other characters separate words: "queryProj2" gives ("query", "proj", "2"),
    "LSTMCell" ("lstm", "cell"). Letters other than a to z separate words, too.
    """
    return tuple(word.lower() for word in _WORD.findall(name))


@cache
def alike(a: str, b: str) -> bool:
    """Return whether the words A and B are equal, or one abbreviates the other: "attn" and "attention", "residual" and
    "res".

    A word of three letters or more abbreviates a longer one that begins with it; also one as long or longer with the
    same first letter whose `consonants` begin with those of the word, if these are three letters or more (so "patch"
    and "pitch" are alike). Of two words of the same length, either may abbreviate the other. Words in `Words.whole`
    ("key", "post") abbreviate nothing and are not abbreviated.
    """
    if a == b:
        return True
    short, long = sorted((a, b), key=len)
    if len(short) < 3 or short[0] != long[0] or not {short, long}.isdisjoint(table().whole):
        return False
    bare, whole = consonants(short), consonants(long)
    if len(short) == len(long):
        bare, whole = sorted((bare, whole), key=len)
    return long.startswith(short) or (len(bare) > 2 and whole.startswith(bare))


def common_start(names: Sequence[Sequence[str]]) -> int:
    """Return the length of the common beginning of all NAMES: in letters for texts, in components for paths; 0 without
    names.
    """
    return sum(1 for _ in takewhile(lambda some: len(set(some)) == 1, zip(*names, strict=False)))


@cache
def consonants(word: str) -> str:
    """Return WORD without the vowels a, e, i, o and u after its first letter: "attention" gives "attntn"."""
    return word[0] + "".join(letter for letter in word[1:] if letter not in "aeiou")


def shared(a: Iterable[str], b: Collection[str]) -> int:
    """Return how many words of A are also in B, whole or abbreviated (`alike`)."""
    return sum(any(alike(word, other) for other in b) for word in a)


@cache
def initials(words: tuple[str, ...]) -> frozenset[str]:
    """Return the first letters of each run of two or more neighbouring words, as texts: {"ab", "bc", "abc"} for ("a1",
    "b1", "c1"), {} for fewer than two words.
    """
    spans = (words[a:b] for a in range(len(words)) for b in range(a + 2, len(words) + 1))
    return frozenset("".join(word[0] for word in span) for span in spans)


def all_in(words: Iterable[str], name: str) -> bool:
    """Return whether each of WORDS is a word of NAME, whole or abbreviated, or the initials of two or more neighbouring
    words of it.
    """
    own = cut(name)
    return all(shared((word,), own) or word in initials(own) for word in words)


def words_of(path: Sequence[str]) -> tuple[str, ...]:
    """Return the words of all components of PATH, in lower case. A word that ends in a kind of layer, or begins with a
    letter for queries, keys, values or weights before a known word, is two words (`_apart`): "skipbn" gives ("skip",
    "bn"). If a component is a number, its word gets a 0 in front: `attn.2` gives ("attn", "02"), but `attn2` ("attn",
    "2").
    """
    return _words_of(tuple(path))


@cache
def _words_of(path: tuple[str, ...]) -> tuple[str, ...]:
    # a place in a list is no number of a name: `attn2` may be the second attention of a block, `attn.2` is the third
    placed = (f"0{component}" if component.isdecimal() else component for component in path)
    return tuple(part for component in placed for word in cut(component) for part in _apart(word))


@cache
def _apart(word: str) -> tuple[str, ...]:
    """Return WORD as two words if it is two words written as one, else (WORD,). A word that the vocabulary knows (one
    of a group, or in `Words.empty`) is never cut.

    ("skip", "bn") for "skipbn": it ends in a kind of layer (bn, norm, conv, proj, attn; the first that fits counts)
    after three or more letters. Else ("q", "proj") for "qproj": it begins with a letter for queries, keys, values or
    weights (q, k, v, w), and the rest is a known word of two letters or more, or "content", but no word for a copy of a
    model.
    """
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


@cache
def singular(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return WORDS with the singular in place of each plural with s, if the singular is a known word (of a group, or in
    `Words.empty`) and the plural is not. Lists have plurals as names (`norms.0`).
    """
    known = _known()
    return tuple(w[:-1] if w.endswith("s") and w not in known and w[:-1] in known else w for w in words)


def label(group: Group, words: Sequence[str]) -> str | None:
    """Return the label in GROUP that WORDS, those of a path, mean: that of the phrase that ends last, and of several
    that of the longest. None if they mean none.

    A phrase with the label "nothing" means none, and no phrase that ends within it counts. A word of one letter before
    a number ("v2") is no phrase alone. If the phrase ends in a number, and the words before it end in a phrase of as
    many words or more, that counts instead: `self_attn2` is self-attention, whatever `attn2` means.
    """
    return None if group.known.isdisjoint(words) else _label(group, tuple(words))


@lru_cache(maxsize=1 << 16)
def _label(group: Group, words: tuple[str, ...]) -> str | None:
    """Return the label in GROUP of WORDS, or None, as `label` does. Results are kept, because every rule asks about the
    same names.
    """
    return _label_of_kind(group, tuple(w if w in group.known else _NUMBER if w.isdecimal() else "" for w in words))


#: Stands for every number that is in no phrase of a group.
_NUMBER = "000"


@cache
def _label_of_kind(group: Group, words: tuple[str, ...]) -> str | None:
    """Return the label in GROUP of WORDS (see `label`); None if they mean none. Words that are in no phrase of the
    group were replaced, numbers by "000" and others by "", so that equal blocks share a cached result.
    """
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
    """Return the label that WORDS have in GROUP without the number at their end: that of the longest phrase, of at
    least SIZE words, in which the words before the number end. Phrases with the label "nothing" are passed over.
    None if the last of WORDS is not a number, or if there is no such phrase.

    "self_attn2" is self-attention by "self_attn": where a name says its meaning, the number only counts layers.
    """
    if not words[-1].isdecimal():
        return None
    before = words[:-1]
    spans = (tuple(before[-n:]) for n in range(min(group.longest, len(before)), size - 1, -1))
    return next((said for span in spans if (said := group.phrases.get(span)) not in (None, _NOTHING)), None)


@cache
def labels(words: tuple[str, ...], *, hard: bool) -> dict[str, str]:
    """Return name of a group -> label of WORDS in it, for the groups whose labels exclude each other (HARD), or for the
    other groups (not HARD); groups in which they have no label are left out.
    """
    groups = (group for group in table().groups if group.hard is hard)
    return {group.name: said for group in groups if (said := label(group, words)) is not None}


#: The label of phrases that look as if they said something in a group, and do not.
_NOTHING = "nothing"


@cache
def telling_words(path: tuple[str, ...]) -> frozenset[str]:
    """Return the words of PATH that tell it from others: no numbers, no words for kinds of layers (`_kinds`) or
    containers ("layers", `Words.empty`). "post" or "after" is one word with the next word of its component
    ("postattention", `_placed`).
    """
    words = (word for component in path for word in _placed(words_of((component,))))
    return frozenset(w for w in words if w not in table().empty and w not in _kinds() and not w.isdecimal())


def _placed(words: tuple[str, ...]) -> Iterator[str]:
    """Yield WORDS, those of a name, with "post" or "after" joined to the next word, unless there is none or it is a
    word for a kind of layer (`_kinds`): then it stays as a word of its own.

    ("postattention", "norm") for ("post", "attention", "norm"), which is not a part of the attention: it may be the
    norm of the next part.
    """
    at = 0
    while at < len(words):
        after = words[at] in table().after and at + 1 < len(words) and words[at + 1] not in _kinds()
        yield "".join(words[at : at + 1 + after])
        at += 1 + after


@cache
def _kinds() -> frozenset[str]:
    """Return the words for kinds of layers and for weights, which do not tell one norm from another: those of all
    phrases for norms and convolutions ("norm", "conv"), and "linear", "dense", "fc", "proj", "projection", "batch",
    "weight" and "bias".
    """
    purpose = table().group("purpose")
    words = {w for phrase, said in purpose.phrases.items() if said in ("norm", "conv") for w in phrase}
    return frozenset(words | {"linear", "dense", "fc", "proj", "projection", "batch", "weight", "bias"})


@cache
def numbers(path: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers in the words of the components of PATH, in order: (2, 1) for ("layer2", "first").

    "first" to "fifth" and "one" to "five" are 1 to 5, and so are "thr", "fou" and "fiv". Numbers of ten or more digits
    are passed over. A component may give several numbers, or none.
    """
    ordinals = table().ordinals
    return tuple(
        int(word) if word.isdecimal() else ordinals[word]
        for component in path
        for word in cut(component)
        if (word.isdecimal() and len(word) < 10) or word in ordinals
    )
