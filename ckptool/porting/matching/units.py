"""Units: the modules of one side that are matched, how similar two of them are by their names, the numbered modules
(blocks) around a module, and how near two modules are by their paths.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from ...keys.known_buffers import STATISTICS
from ...model_code.signature import PRODUCTS, Flow
from ..expression import Shape
from ..forms.fusing.projections import part_label
from ..forms.pieces import Canon, Piece, squeezed
from ..questions import Question, joined, still_open
from ..words import common_start, label, labels, numbers, singular, table
from .evidence import Evidence, Kind, Told


@dataclass(eq=False, slots=True)
class Unit:
    """A module of one side: the tensors with one path.

    Attributes:
        path: the components of its path.
        pieces: role -> its tensor in the common form.
        colour: the shape of its main tensor, without sizes of 1, and its kind (`_colour`). Partners have equal colours.
        order: its place in the state dict.
        used: its place in the order of execution, which counts keys as `order` does; None if that is not known.
        turn: its place in the order of execution, from 0, which counts the units of its side; None if not known.
        words: the words of its names.
        cell: the number of the cell that it is in.
        evidence: what told it from its look-alikes, in the order in which it was found.
        questions: its questions, each with the other units that it may be paired with.
        settled: what a rule decided for several units at once (a pair of classes, a module) -> the place of this unit
            there. Units with different places are not exchanged.
        backwards: the lists around it that the other side counts from the other end.
        told: which rules told it from which look-alikes, for `--explain`.
        support: for a target, the name of the rule that supports its pair, if the file does not cover the model and a
            rule of `SUPPORT` was asked about the pair; "" if none supports it, or none was asked.
    """

    path: tuple[str, ...]
    pieces: dict[str, Piece]
    colour: tuple[Shape, str]
    order: float
    used: float | None
    words: tuple[str, ...]
    turn: int | None = None
    cell: int = 0
    evidence: list[Evidence] = field(default_factory=list)
    questions: list[Question[Unit]] = field(default_factory=list)
    settled: dict[Hashable, Hashable] = field(default_factory=dict)
    backwards: frozenset[str] = frozenset()
    told: list[Told] = field(default_factory=list)
    support: str = ""

    @property
    def last(self) -> str:
        """Return the last component of its path, or "" for the outermost module."""
        return self.path[-1] if self.path else ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers in the words of its path, in order; "first" and "one" count as 1 (see `words.numbers`)."""
        return numbers(self.path)

    @property
    def attends(self) -> str:
        """Return what its output is in an attention, as its code shows: "q", "k" or "v"; "" if that is not known."""
        return self.main.entry.facts.attends

    def within(self, module: Path) -> bool:
        """Return whether the unit is in the module with the path MODULE, at any depth, or is it."""
        return self.path[: len(module)] == module

    @property
    def flow(self) -> Flow | None:
        """Return the place of its main tensor in the graph of its code; None if that is not known."""
        return self.main.entry.facts.flow

    @property
    def doubts(self) -> list[Question[Unit]]:
        """Return the open questions of this unit."""
        return still_open(self.questions)

    def ask(self, question: Question[Unit]) -> None:
        """Add QUESTION about this unit. If the same question is open, it gets the options of QUESTION as well, eight at
        most.
        """
        self.questions = joined(self.questions, question)

    def exchange(self, rule: str, kind: Kind) -> None:
        """Note that RULE gave this unit, of the target, the source of a look-alike: `evidence` is one piece of KIND
        afterwards, and `told` one step of RULE, with two sources possible before it and one after it. What was noted
        before spoke for the old source, and is dropped. The pair itself is changed by the caller.
        """
        self.evidence = [Evidence(kind)]
        self.told = [Told(rule, str(self.evidence[0]), 2, 1, ())]

    def told_by(self, kind: Kind) -> bool:
        """Return whether evidence of this KIND told the unit from its look-alikes."""
        return any(one.kind is kind for one in self.evidence)

    @property
    def main(self) -> Piece:
        """Return the main tensor of the unit: the first of the roles in `_MAIN` that it has (a weight before a running
        mean, and that before a bias); without any, its first tensor in the state dict.
        """
        for role in _MAIN:
            if (piece := self.pieces.get(role)) is not None:
                return piece
        return next(iter(self.pieces.values()))


#: The names of a module and of the modules around it, from the outermost.
Path = tuple[str, ...]
#: A unit of the target, and its partner in the source.
Pair = tuple[Unit, Unit]


class Placed(Protocol):
    """Anything with a `path`."""

    path: Path


#: Similarity of names above which they count as related.
SOME = 0.15
_MAIN = ("weight", "weight_ih", "weight_v", "weight_orig", "weight_mean", "running_mean", "weight_hh", "bias")


def units_of(canon: Canon) -> list[Unit]:
    """Return the units of CANON, one side in the common form: one unit for each path that its pieces have, in the order
    of the state dict. `order` and `used` of a unit are the lowest of its pieces (`used` is None if no piece has one),
    and its words are those of the piece with the most words. `colour` and `turn` are set, too.
    """
    grouped: dict[Path, dict[str, Piece]] = {}
    for piece in sorted(canon.pieces.values(), key=lambda p: p.order):
        grouped.setdefault(piece.path, {})[piece.role] = piece
    found = []
    for path, pieces in grouped.items():
        used = [p.used for p in pieces.values() if p.used is not None]
        words = max((p.words for p in pieces.values()), key=len)
        unit = Unit(path, pieces, ((), ""), min(p.order for p in pieces.values()), min(used, default=None), words)
        unit.colour = _colour(unit)
        found.append(unit)
    take_turns(found)
    return sorted(found, key=lambda u: u.order)


def take_turns(units: Iterable[Unit]) -> None:
    """Set `turn` of those of UNITS whose place in the order of execution is known: their places in this order, counted
    from 0 among these units.
    """
    for turn, unit in enumerate(sorted((u for u in units if u.used is not None), key=lambda u: u.used or 0.0)):
        unit.turn = turn


def _colour(unit: Unit) -> tuple[Shape, str]:
    """Return (shape of the main tensor of UNIT without sizes of 1, kind of UNIT). The kind is the first of these that
    fits:

    - "statistics": it has running statistics (a batch norm); "recurrent": it has a `weight_ih`; "normed": it has a
      `weight_g`; "bias": it holds a bias alone;
    - "row": a table with one row (`_is_row`); "index": its main tensor is of the type int64, int32 or bool, and has
      more than one element, so that it is no weight;
    - "one": its main tensor has one dimension other than 1, and its bias is a single number (a layer with one output);
    - "" for all others.
    """
    family = ""
    if unit.pieces.keys() & STATISTICS:
        family = "statistics"
    elif "weight_ih" in unit.pieces:
        family = "recurrent"
    elif "weight_g" in unit.pieces:
        family = "normed"
    elif unit.pieces.keys() == {"bias"}:
        family = "bias"
    elif _is_row(unit):
        family = "row"
    elif unit.main.entry.dtype in _INDICES and squeezed(unit.main.shape):
        family = "index"
    elif len(squeezed(unit.main.shape)) == 1 and "bias" in unit.pieces and not squeezed(unit.pieces["bias"].shape):
        family = "one"
    return squeezed(unit.main.shape), family


#: Types of numbers that no weight has.
_INDICES = frozenset({"int64", "int32", "bool"})


def _is_row(unit: Unit) -> bool:
    """Return whether UNIT is a table with one row, which is no vector like the weight of a norm: it holds only a weight
    of the sizes [1, n], and it is an `Embedding` module or its name has the label "token" or "segment" in the group
    "embedding". False if the code multiplies with the weight, whatever the name says.
    """
    if unit.pieces.keys() != {"weight"} or len(unit.main.shape) != 2 or unit.main.shape[0] != 1:
        return False
    if unit.main.entry.how in PRODUCTS:
        return False  # the model multiplies with it, so it is no table, whatever its name says
    return unit.main.entry.module == "Embedding" or label_of(unit, "embedding") in ("token", "segment")


def natural(path: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return a key for `sorted` by which PATH, the components of a path, is sorted with numbers by value: `h.2` before
    `h.10`, and numbers before other text. Numbers inside of components count, too (`conv2` before `conv10`).
    """
    out: list[tuple[int, int, str]] = []
    for component in path:
        pieces = re.findall(r"\d+|\D+", component)
        out += [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]
        out.append((-1, 0, ""))
    return out


def template(path: Sequence[str]) -> Path:
    """Return PATH with `{}` in place of components that are numbers."""
    return tuple("{}" if component.isdecimal() else component for component in path)


def series(unit: Unit) -> Path:
    """Return the path of UNIT without the digits in it and without words such as "first" and "second"; it is equal for
    the members of a list: ("h", "", "fc") for `h.3.fc` and for `h.3.fc1`, ("conv_",) for `conv_first`.
    """
    return _without_numbers(unit.path)


@cache
def _without_numbers(path: Path) -> Path:
    """Return PATH without digits and without words such as "first", unless these are a part of another word."""
    counts = "|".join(table().ordinals)
    return tuple(re.sub(rf"\d+|(?<![a-z])({counts})(?![a-z])", "", component) for component in path)


def number_ranks(targets: Sequence[Placed], sources: Sequence[Placed]) -> dict[int, int] | None:
    """Return `id` of a unit -> its rank, from 0, among the units of its side (TARGETS or SOURCES), sorted by all the
    numbers in their paths ("first" is 1, too). Units of a side with the same numbers have one rank: 0, 1, 1 for `a.0`,
    `a.2`, `b.2`. If the numbers of a source correspond to those of a target in another order (`blocks.2.conv1` and
    `convs1.2`), they are compared in the target's order (`_columns`).

    None if the paths of a side do not all have equally many numbers, if they all have the same numbers, or if the two
    sides do not have equally many units of each rank.
    """
    own, theirs = ([numbers(unit.path) for unit in side] for side in (targets, sources))
    if any(len(set(map(len, side))) > 1 or len(set(side)) < 2 for side in (own, theirs)):
        return None
    columns = _columns(own, theirs)
    if columns is not None:
        theirs = [tuple(found[column] for column in columns) for found in theirs]
    orders = [{found: rank for rank, found in enumerate(sorted(set(side)))} for side in (own, theirs)]
    ranks_t, ranks_s = ([order[found] for found in side] for order, side in zip(orders, (own, theirs), strict=True))
    if Counter(ranks_t) != Counter(ranks_s):
        return None
    return {id(unit): rank for unit, rank in zip((*targets, *sources), (*ranks_t, *ranks_s), strict=True)}


def _columns(own: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]]) -> list[int] | None:
    """Return, for each place of a number in the paths of the target, the place of the corresponding number in the paths
    of the source, from 0: [1, 0] for `blocks.2.conv1` and `convs1.2`. OWN and THEIRS have the numbers of each path.

    Two places correspond if the numbers there have the same set of values in all paths of their sides; if that does not
    give each place one other, two places with equally many values do. None if that is not clear either, if the places
    correspond in the same order, or if not all paths have equally many numbers.
    """
    if len({len(k) for k in (*own, *theirs)}) != 1:
        return None
    values = [[frozenset(column) for column in zip(*side, strict=True)] for side in (own, theirs)]
    kinds: list[list[list[Hashable]]] = [[[*side] for side in values], [[len(column) for column in s] for s in values]]
    for columns in kinds:
        if len(set(columns[0])) == len(columns[0]) and set(columns[0]) == set(columns[1]):
            return None if columns[0] == columns[1] else [columns[1].index(column) for column in columns[0]]
    return None


def same_numbers(targets: Sequence[Placed], sources: Sequence[Placed]) -> bool:
    """Return whether the paths of TARGETS and of SOURCES have the same numbers: each row of numbers in a path is there
    equally often on both sides.
    """
    return Counter(numbers(u.path) for u in targets) == Counter(numbers(u.path) for u in sources)


def hard_conflict(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, str] | None:
    """Return (label of A, label of B), such as ("q", "k"), if the words A and B of two names exclude each other: for
    the first group of words that exclude each other in which both names have a label, and not the same one. None if
    there is no such group.
    """
    theirs = labels(b, hard=True)
    for group, one in labels(a, hard=True).items():
        if (other := theirs.get(group, one)) != one:
            return one, other
    return None


@cache
def _meaningful(words: tuple[str, ...]) -> frozenset[str]:
    """Return those of the WORDS of a unit, in the singular, that mean something (no numbers, no words for containers,
    not "weight", "bias", "proj" or "layer"), and "GROUP:LABEL" for each label of the words.
    """
    said = singular(words)
    own = [w for w in said if w not in table().empty and w not in ("weight", "bias", "proj", "layer")]
    found = {w for w in own if not w.isdecimal()}
    both = labels(said, hard=True) | labels(said, hard=False)
    return frozenset(found | {f"{group}:{said}" for group, said in both.items()})


def similarity(t: Unit, s: Unit) -> float:
    """Return how many meaningful words and labels (`_meaningful`) the names of T and S have in common, as a share of
    all that either has, and 0.05 more if their paths have numbers (also "first"), the same in the same order: 0 to
    1.05. 0 if a name has no such word.
    """
    a, b = _meaningful(t.words), _meaningful(s.words)
    if not a or not b:
        return 0.0
    both = len(a & b)
    return both / (len(a) + len(b) - both) + (0.05 if t.numbers == s.numbers and t.numbers else 0.0)


def of_one_name(t: Unit, s: Unit) -> bool:
    """Return whether the names of T and S agree in more than the kind of layer ("norm", "conv"). One of these is
    enough:

    - an equal label in a group of words, other than such a kind;
    - the same part of a fused projection (`part_label`: "q", "gate");
    - a `similarity` of more than `SOME` (0.15), and a meaningful word or label in common that does not name such a
      kind.
    """
    kinds = {phrase for phrase, said in table().group("purpose").phrases.items() if said in _KINDS}
    generic = {word for phrase in kinds for word in phrase} | {f"purpose:{said}" for said in _KINDS}
    own, theirs = labels(t.words, hard=False), labels(s.words, hard=False)
    alike = {f"{group}:{said}" for group, said in own.items() if theirs.get(group) == said}
    if labels(t.words, hard=True).items() & labels(s.words, hard=True).items() or alike - generic:
        return True
    if part_label(t.path) is not None and part_label(t.path) == part_label(s.path):
        return True
    return similarity(t, s) > SOME and not (_meaningful(t.words) & _meaningful(s.words)) <= generic


#: What a name says of most layers of a model.
_KINDS = ("norm", "conv")


def related(t: Unit, s: Unit) -> bool:
    """Return whether the names of T and S have an equal label in a group of words, hard or soft, or name the same part
    of a fused projection (`part_label`: "q", "gate").
    """
    if any(labels(t.words, hard=hard).items() & labels(s.words, hard=hard).items() for hard in (True, False)):
        return True
    return part_label(t.path) is not None and part_label(t.path) == part_label(s.path)


def label_of(unit: Unit, group: str) -> str | None:
    """Return the label ("q") that the words of UNIT have in the group called GROUP ("attention"); None if they have
    none.
    """
    return label(table().group(group), unit.words)


def tables_of_words(t: Unit, s: Unit) -> bool:
    """Return whether T and S are word tables: the name of S has the label "token" in the group "embedding", the model
    looks up rows of T, and the name of T has that label, too, or none in this group.
    """
    looked_up = t.main.entry.how == "embedding" and label_of(t, "embedding") in (None, "token")
    return looked_up and label_of(s, "embedding") == "token"


def block_of(path: Sequence[str]) -> Path:
    """Return the path of the innermost block around the module PATH: `h.3` for `h.3.mlp.0`, whose own number does not
    count. () if there is none.
    """
    return (parts_around(path) or [()])[-1]


def by_block(pairs: Iterable[Pair]) -> dict[Path, list[Pair]]:
    """Return path of a block of the target -> the pairs whose target has it as its block, in their order; () for pairs
    outside of all blocks.
    """
    blocks: dict[Path, list[Pair]] = defaultdict(list)
    for pair in pairs:
        blocks[block_of(pair[0].path)].append(pair)
    return blocks


def parts_around(path: Sequence[str]) -> list[Path]:
    """Return the paths of the blocks around the module PATH, the outermost first: `h.3` and `h.3.mlp.0` for
    `h.3.mlp.0.fc`. PATH itself is not among them, and [] if there are none.
    """
    return [tuple(path[: at + 1]) for at in range(len(path) - 1) if path[at].isdecimal()]


def around(paths: Sequence[Path]) -> Path:
    """Return the path of the innermost module around all PATHS, which are those of units: `h.0` for `h.0.q` and
    `h.0.k`, for `h.0.q` alone, and for `h.0.q` and `h.0.q.norm`, in whatever order.
    """
    return paths[0][: common_start([path[:-1] for path in paths])]


def apart(one: Unit, other: Unit) -> tuple[Path, Path, Path]:
    """Return the paths of ONE and OTHER without the components that both end with, and these components:
    (("x",), ("x", "net"), ("encoder", "fc")) for `x.encoder.fc` and `x.net.encoder.fc`.
    """
    end = common_start((one.path[::-1], other.path[::-1]))
    at, there = len(one.path) - end, len(other.path) - end
    return one.path[:at], other.path[:there], one.path[at:]


def nearness(one: Unit, other: Unit) -> int:
    """Return how many components the paths of ONE and OTHER share from the front."""
    if one.path[:1] != other.path[:1]:
        return 0  # most modules of a large model
    return common_start((one.path, other.path))


def is_counted(name: str) -> bool:
    """Return whether NAME, that of a module, has a digit."""
    return any(map(str.isdecimal, name))


def without_digits(path: Sequence[str]) -> Path:
    """Return PATH without digits, which is equal for the blocks of one list: `layer3.0` -> `layer.`."""
    return tuple("".join(c for c in component if not c.isdecimal()) for component in path)
