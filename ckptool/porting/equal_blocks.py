"""Match a few of many equal blocks, and let the other blocks follow them.

A large model is a stack of equal blocks: 80 layers, or 256 experts in each of 60 layers. What is true of `layers.30` is
true of `layers.31`. Therefore the first blocks of a long list are matched as if the model ended behind them, and the
others are paired in the same way. That is done only if nothing tells the blocks apart, on either side: names, sizes,
types, the order of the keys, the order of execution, and what the forward pass shows of each weight. The blocks that
were matched have to have one result, too. Otherwise the whole model is matched.

Lists inside of lists come after the lists around them: `port` shortens again what was shortened once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count, pairwise
from operator import attrgetter
from typing import NamedTuple

from ..model_code.signature import Entry as Tensor
from ..model_code.signature import Facts, Signature
from .mapping import Entry, Mapping
from .matching.evidence import Told

#: So many equal blocks are matched, which is more than any rule compares each with each; a long list has twice as many.
_MATCHED = 33


class _Place(NamedTuple):
    """Where a name is in a list: the path before the number of a block (`model.layers`), the number, and the path after
    it.
    """

    list: str
    number: int
    rest: str

    def __str__(self) -> str:
        return f"{self.list}.{self.number}.{self.rest}" if self.rest else f"{self.list}.{self.number}"

    def moved(self, by: int) -> _Place:
        """Return the same place in another block, whose number is greater by BY."""
        return self._replace(number=self.number + by)


class _Block(NamedTuple):
    """One block of a list.

    Attributes:
        content: for each of its tensors, in the order of keys, what is the same in equal blocks: the path inside the
            block, the other tensors that it names, and its sizes, type and facts.
        orders: the places of its tensors in three orders: of registration, of execution and of the graph of the forward
            pass. Tensors without a place in an order are left out of it. The first is empty if the keys are sorted by
            name.
        before: for each of its tensors, the numbers of the weights that its first input was computed from, as bits; 0
            if not known.
        taken: number of an input (`Facts.input`) -> which of the inputs of the block it is, from 0.
    """

    content: list[object]
    orders: tuple[list[int], list[int], list[int]]
    before: list[int]
    taken: dict[int, int]


#: Facts that hold a place, the name of another tensor or a number for the tensor that several layers take.
_ELSEWHERE = frozenset(["flow", "joined", "behind", "added", "bypasses", "input"])

#: What an entry, and its facts, say without these.
_SAID = attrgetter("shape", "dtype", "parameter", "module", "how", "stated")
_SHOWN = attrgetter(*(one.name for one in fields(Facts) if one.name not in _ELSEWHERE))


class _Side:
    """The long lists of one side: lists of at least 66 numbered blocks, without a gap between the numbers.

    Attributes:
        signature: the side.
        lengths: how many blocks each list of this side has, as a set, for long lists and others.
        first: long list -> the number of its first block.
        places: key -> where it is in the outermost long list around it; keys in no long list are left out.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        numbers: dict[str, set[int]] = defaultdict(set)
        around = {key: found for key in signature.entries if (found := _places(key))}
        for found in around.values():
            for name, number, _ in found:
                numbers[name].add(number)
        self.lengths = {len(held) for held in numbers.values()}
        long = {name: held for name, held in numbers.items() if len(held) >= 2 * _MATCHED}
        self.first = {name: min(held) for name, held in long.items() if max(held) - min(held) < len(held)}
        outermost = ((key, self._outermost(found)) for key, found in around.items() if self.first)
        self.places = {key: place for key, place in outermost if place is not None}
        self._others: dict[str, _Place | None] = {}  # the same for names that are no keys

    def _outermost(self, found: list[_Place]) -> _Place | None:
        """Return the first of FOUND, the places of a key from the outermost list inwards, which is in a long list; None
        if none is.
        """
        return next((place for place in found if place.list in self.first), None)

    def place(self, name: str) -> _Place | None:
        """Return where NAME, a key or the path of a module, is in the outermost long list around it; None if it is in
        none.
        """
        if name not in self.places and name not in self._others:
            self._others[name] = self._outermost(_places(name))
        return self.places[name] if name in self.places else self._others[name]

    @cached_property
    def blocks(self) -> dict[str, list[_Block]]:
        """Return path of a list -> its blocks, in the order of their numbers, for the long lists that are in no other
        long list. Only tensors with a key in such a list are in the blocks.
        """
        found: dict[str, dict[int, _Block]] = defaultdict(lambda: defaultdict(lambda: _Block([], ([], [], []), [], {})))
        entries = self.signature.entries
        sorted_by_name = not self.signature.ordered or [*entries] == sorted(entries)
        for at, (key, entry) in enumerate(entries.items()):
            if (place := self.places.get(key)) is None:
                continue
            block, facts = found[place.list][place.number], entry.facts
            flow, behind = facts.flow, facts.behind
            others = [name and self._seen_from(name, place.number) for name in _others(entry)]
            shown = (*_SAID(entry), *_SHOWN(facts), [count for _, count in facts.joined], behind and behind.eps)
            passed = [one._replace(layer="") for one in facts.bypasses]
            taken = None if facts.input is None else block.taken.setdefault(facts.input, len(block.taken))
            block.content.append((place.rest, others, entry.used is None, flow is None, shown, passed, taken))
            orders = (None if sorted_by_name else at, entry.used, None if flow is None else flow.number)
            for order, number in zip(block.orders, orders, strict=True):
                if number is not None:
                    order.append(number)
            block.before.append(flow.before if flow is not None else 0)
        return {name: [held[number] for number in sorted(held)] for name, held in found.items()}

    def _seen_from(self, name: str, number: int) -> _Place | str:
        """Return the place of the tensor NAME in the outermost long list around it, with its distance from block NUMBER
        in place of its block's number; NAME itself if it is in no long list.
        """
        place = self.places.get(name)
        return name if place is None else place.moved(-number)

    def equal_from(self, name: str) -> int:
        """Return the index of the first of the equal blocks at the end of the list NAME: 2 for a list of 80 blocks of
        which the first two differ from the others. Equal blocks have one content, follow each other at one distance in
        every order, and take their inputs alike (`_flow_alike`).

        If the blocks that are equal by content and distances do not take their inputs alike, the first of them is left
        out, then the first two: in a decoder, only the second block's whole input was computed from the memory of the
        encoder. If the others still differ, or fewer than two are left, return the number of blocks of the list: no
        blocks count as equal.
        """
        blocks = self.blocks[name]
        steps = _steps(*blocks[-2:])
        start = len(blocks) - 1
        while (
            start
            and blocks[start - 1].content == blocks[-1].content
            and _steps(*blocks[start - 1 : start + 1]) == steps
        ):
            start -= 1
        return next((n for n in range(start, start + 3) if _flow_alike(blocks[n:])), len(blocks))

    def shortened(self, kept: MappingOf[int, int]) -> Signature | None:
        """Return the signature of this side with only the first blocks of its long lists that are in no other long list
        (`blocks`): KEPT has length of a list -> how many blocks stay. Lists of other lengths, and all other keys, stay
        whole. None if a tensor that stays names one that is left out (`_others`), such as one that it is tied to.
        """
        entries = {}
        for key, entry in self.signature.entries.items():
            place = self.places.get(key)
            length = 0 if place is None else len(self.blocks[place.list])
            if place is None or place.number - self.first[place.list] < kept.get(length, length):
                entries[key] = entry
        needed = {name for entry in entries.values() for name in _others(entry)} & self.signature.entries.keys()
        return replace(self.signature, entries=entries) if needed <= entries.keys() else None


def _places(name: str) -> list[_Place]:
    """Return the places of NAME in the lists around it, the outermost first: one for each component that is a number of
    at most eight digits, without zeros in front, and not the first component.
    """
    return [_Place(name[: at.start()], int(at[1]), name[at.end() + 1 :]) for at in _NUMBER.finditer(name)]


#: A component that is the number of a block.
_NUMBER = re.compile(r"\.(0|[1-9][0-9]{0,7})(?=\.|\Z)")


def _others(entry: Tensor) -> list[str | None]:
    """Return the keys of the other tensors that ENTRY names: that it is tied to, the weight of the layer before a norm
    (each None if there is none), then those whose outputs are concatenated to its input, those that make the parts of
    which one goes past others, and those whose outputs are added to its output.
    """
    behind, bypasses = entry.facts.behind, (one.layer for one in entry.facts.bypasses)
    joined = (key for key, _ in entry.facts.joined)
    return [entry.tied, behind and behind.weight, *joined, *bypasses, *sorted(entry.facts.added)]


def _steps(one: _Block, other: _Block) -> list[set[int]]:
    """Return, for each order of `_Block.orders`, the set of distances from the tensors of ONE to the corresponding
    tensors of OTHER, the first to the first and so on; an empty set if either has none in that order.
    """
    return [{b - a for a, b in zip(*both, strict=False)} for both in zip(one.orders, other.orders, strict=True)]


def _flow_alike(blocks: Sequence[_Block]) -> bool:
    """Return whether the forward pass takes the inputs of BLOCKS, successive ones of a list, alike; False for fewer
    than two.

    For each tensor, `before` has the weights that its input was computed from. Those before the first of BLOCKS have to
    be the same in all blocks. The others, moved by the distance between two blocks, may differ from those of the same
    tensor in the next block (often by weights of the first block), but by the same weights for every two successive
    blocks. The tensors of the first two blocks also have to be at one distance in each order, and the second block must
    not be before the first in the graph.
    """
    if len(blocks) < 2 or any(len(steps) > 1 for steps in _steps(*blocks[:2])):
        return False
    step, *_ = *_steps(*blocks[:2])[2], 0
    start = min(blocks[0].orders[2], default=0)
    elsewhere = (1 << start) - 1
    added = {
        tuple((b >> start) ^ (a >> start << step) for a, b in zip(one.before, other.before, strict=True))
        for one, other in pairwise(blocks)
    }
    return step >= 0 and len(added) == 1 and len({tuple(b & elsewhere for b in block.before) for block in blocks}) == 1


@dataclass(frozen=True, slots=True)
class Shortened:
    """Two sides without most of their equal blocks.

    Attributes:
        source, target: the two sides without these blocks.
        whole: (source, target) with all blocks.
        equal: list of the target -> the numbers of its equal blocks that are still there.
        notes: what was left out, for the report.
    """

    source: Signature
    target: Signature
    whole: tuple[_Side, _Side]
    equal: dict[str, range]
    notes: tuple[str, ...]

    def carried(self, made: Mapping, looked_at: set[str]) -> Mapping | None:
        """Return the mapping of the whole sides: each block that was left out is filled as the last equal block that
        was matched (`_as_last`). The entries are in the order of the whole target; `notes` are added.

        Args:
            made: the mapping of the shorter sides.
            looked_at: the source keys whose values were looked at.
        Returns:
            The mapping. None if the equal blocks that were matched do not have one result, apart from the evidence; if
            a buffer in them reads a key of LOOKED_AT (other blocks may hold other values); if MADE has both unused keys
            and keys without a source; or if the source lacks a key that a block would read.
        """
        source, target = (side.signature.entries for side in self.whole)
        found = {entry.target: entry for entry in made.entries}
        for entry in made.entries:
            if (place := self._equal_place(entry.target)) is None:
                continue
            if replace(self._as_last(found, place), evidence=entry.evidence) != entry:
                return None
            if entry.parameter is False and not looked_at.isdisjoint(entry.sources):
                return None  # other blocks may hold other values
        if made.unused and made.having("unmapped"):
            return None  # what all blocks hold together may be one tensor of the other side
        for key in target:
            if key not in found and (place := self._equal_place(key)) is not None:
                found[key] = self._as_last(found, place)
        if not all(source.keys() >= {*entry.sources} for entry in found.values()):
            return None
        shapes = {key: entry.shape for key, entry in source.items()}
        whole = replace(made, source_shapes=shapes, notes=(*made.notes, *self.notes))
        return whole.with_entries([found[key] for key in target])

    def _equal_place(self, key: str) -> _Place | None:
        """Return where KEY of the target is in a list, if its block is one of the equal blocks of a list that was
        shortened, also if the block was left out; else None.
        """
        place = self.whole[1].places.get(key)
        within = place is not None and place.list in self.equal and place.number >= self.equal[place.list].start
        return place if within else None

    def _as_last(self, found: MappingOf[str, Entry], place: _Place) -> Entry:
        """Return the entry for PLACE: that of this place in the last equal block that was matched, from FOUND (key ->
        entry), with the number of its block changed in all names: in the expression, the evidence, the questions and
        the paths of the parts of its `way`. To what told each part from its look-alikes, which names other modules of
        the matched block, is added that the two blocks are equal.
        """
        last = place._replace(number=self.equal[place.list][-1])
        like, by = found[str(last)], place.number - last.number
        source, target = self.whole

        def key(name: str) -> str:
            """Return the key NAME of the source with its block's number moved by BY; NAME itself if it is in no long
            list.
            """
            there = source.place(name)
            return name if there is None else str(there.moved(by))

        def text(words: str) -> str:
            """Return WORDS, a name in the text of a question, with the block's number moved by BY in each word that is
            a key or the path of a module in a long list of either side.
            """
            moved = words.split(" ") if "." in words else []
            for at, word in enumerate(moved):
                if (there := source.place(word) or target.place(word)) is not None:
                    moved[at] = str(there.moved(by))
            return " ".join(moved) or words

        questions = tuple(
            replace(question.translated(lambda x: x.rename(key)), named=tuple(map(text, question.named)))
            for question in like.questions
        )
        told = Told(f"Its block is equal to that of {last}, for which the rules decided.", "", 0, 0, ())
        return replace(
            like,
            target=str(place),
            expr=like.expr and like.expr.rename(key),
            evidence=text(like.evidence),
            questions=questions,
            way=tuple(
                replace(part, target=text(part.target), source=key(part.source), told=(*part.told, told))
                for part in like.way
            ),
        )


def shortened(source: Signature, target: Signature) -> Shortened | None:
    """Return both sides without most of their equal blocks. None if no long lists of the two sides (66 numbered blocks
    or more, without a gap) have one length and, from some block on, at least 66 equal blocks, or if a tensor that stays
    names one that is left out, such as one that it is tied to.

    Only lists that are in no other long list are shortened: those of a length that both sides have, if in each of them,
    on both sides, the last 66 blocks or more are equal. Left, with their numbers, are the blocks before the first place
    from which all of them are equal, and the first 33 equal ones, or a few more: lists of one length stay of one
    length, and others differ as before, because a list may be known by its length.
    """
    whole = _Side(source), _Side(target)
    if not all(side.first for side in whole):
        return None
    lists = [(len(blocks), side, name) for side in whole for name, blocks in side.blocks.items()]
    taken = whole[0].lengths | whole[1].lengths
    kept: dict[int, range] = {}
    for length in sorted(set.intersection(*({len(blocks) for blocks in side.blocks.values()} for side in whole))):
        start = max(side.equal_from(name) for count, side, name in lists if count == length)
        if length - start >= 2 * _MATCHED:
            stop = next(n for n in count(start + _MATCHED) if n not in taken)
            taken.add(stop)
            kept[length] = range(start, stop)
    short = [side.shortened({length: equal.stop for length, equal in kept.items()}) for side in whole]
    if not kept or short[0] is None or short[1] is None:
        return None
    of_target = {name: (side.first[name], kept[n]) for n, side, name in lists if side is whole[1] and n in kept}
    equal = {name: range(first + blocks.start, first + blocks.stop) for name, (first, blocks) in of_target.items()}
    notes = tuple(
        f"of {length:,} equal blocks {blocks.stop} were matched; the others go where these go"
        for length, blocks in kept.items()
    )
    return Shortened(short[0], short[1], whole, equal, notes)


__all__ = ["Shortened", "shortened"]
