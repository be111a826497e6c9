"""Reports that fit on a screen: of lists as much is shown as there is room for, and the rest is counted."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

from ..records import record
from .styles import paint, plain, width_of

#: Lines of a report, and of one list in it, unless everything is asked for.
SCREEN = 60
ROWS = 40
#: Lines of each list, at least, as long as something else can be left out.
_FEW = 3

Item = str | Sequence[str]


@record(frozen=True, slots=True)
class Block:
    """Part of a report: lines that are shown, then a list of which as much is shown as there is room for.

    Attributes:
        head: the lines.
        items: the list. An item is a line, or several that stay together.
        indent: what stands before each line of the list.
        noun: what items are called where the rest is counted.
        most: items that are shown at most.
        more: how many more items there are, which were not made.
    """

    head: Sequence[str] = ()
    items: Sequence[Item] = ()
    indent: str = "    "
    noun: str = "more"
    most: int = ROWS
    more: int = 0

    @property
    def total(self) -> int:
        """How many items there are."""
        return len(self.items) + self.more


@record(frozen=True, slots=True)
class Several:
    """Any number of blocks, of which the first are shown.

    Attributes:
        blocks: they are made as far as they are needed.
        total: how many there are.
        noun: what they are called where the rest is counted.
    """

    blocks: Iterable[Block]
    total: int
    noun: str


Part = str | Block | Several


def section(title: str, items: Sequence[Item], *, more: int = 0) -> Iterator[Block]:
    """A title and a list, of which MORE are not in ITEMS; nothing if there are none."""
    if items:
        yield Block(["", f"  {paint(f'{title}:', 'heading')}"], items, more=more)


def screen(parts: Iterable[Part], width: int, *, everything: bool = False, room: int = SCREEN) -> str:
    """A report as text.

    Args:
        parts: its lines and blocks.
        width: columns to fill.
        everything: show all of it, however many lines that takes.
        room: lines that it may take otherwise. Lists become shorter first, the longest ones by most; then blocks of
            which there are several are left out.
    """
    most = None if everything else room
    made = [_Folded(one, several, width, everything) for part in parts for one, several in _blocks(part, most)]
    if everything:
        return "\n".join(_lines(made, None, len(made)))
    repeated = sum(one.several is not None for one in made)
    kept = next((kept for kept in range(repeated, 1, -1) if _height(made, _FEW, kept) <= room), 1)
    cap = next((cap for cap in range(ROWS, 1, -1) if _height(made, cap, kept) <= room), 1)
    lines = list(_lines(made, cap, kept))
    if len(lines) > room:
        lines[room - 1 :] = [_left(len(lines) - room + 1, "more lines", "")]
    return "\n".join(lines)


def _blocks(part: Part, most: int | None) -> Iterator[tuple[Block, Several | None]]:
    if isinstance(part, Several):
        yield from ((block, part) for block in islice(part.blocks, most))
    else:
        yield (part if isinstance(part, Block) else Block([part])), None


class _Folded:
    """A block whose lines are folded at the width of the screen.

    Attributes:
        block: the block.
        several: those that it is one of, or None.
        head, items: the lines.
        filled: how many lines the first item takes, the first two, and so on.
    """

    def __init__(self, block: Block, several: Several | None, width: int, everything: bool) -> None:
        self.block = block
        self.several = several
        self.head = list(wrapped(block.head, width))
        shown = block.items if everything else block.items[: block.most]
        self.items = [
            list(wrapped((block.indent + line for line in ([item] if isinstance(item, str) else item)), width))
            for item in shown
        ]
        self.filled = list(accumulate(map(len, self.items)))

    def shown(self, cap: int | None) -> int:
        """How many items are shown in CAP lines. One is shown in any case."""
        return len(self.items) if cap is None else min(max(bisect_right(self.filled, cap), 1), len(self.items))

    def height(self, cap: int) -> int:
        """How many lines it takes with CAP lines of the list."""
        shown = self.shown(cap)
        return len(self.head) + (self.filled[shown - 1] if shown else 0) + (shown < self.block.total)

    def lines(self, cap: int | None) -> Iterator[str]:
        """The lines, with CAP lines of the list."""
        yield from self.head
        shown = self.shown(cap)
        for item in self.items[:shown]:
            yield from item
        if shown < self.block.total:
            yield _left(self.block.total - shown, self.block.noun, self.block.indent)


def _left(number: int, noun: str, indent: str) -> str:
    return indent + paint(f"… and {number:,} {noun} (-v lists all)", "faint")


def _kept(made: Sequence[_Folded], kept: int) -> Iterator[tuple[_Folded, int]]:
    """The blocks of which KEPT that are one of several are left, each with how many are left out behind it."""
    several = [number for number, one in enumerate(made) if one.several is not None]
    out = set(several[kept:])
    for number, one in enumerate(made):
        if number in out:
            continue
        left = 0
        if one.several is not None and (number + 1 in out or number == several[-1]):
            left = one.several.total - sum(other.several is one.several for other in made[: number + 1])
        yield one, left


def _height(made: Sequence[_Folded], cap: int, kept: int) -> int:
    return sum(one.height(cap) + 2 * (left > 0) for one, left in _kept(made, kept))


def _lines(made: Sequence[_Folded], cap: int | None, kept: int) -> Iterator[str]:
    for one, left in _kept(made, kept):
        yield from one.lines(cap)
        if left and one.several is not None:
            yield from ("", _left(left, f"more {one.several.noun}", "  "))


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines folded at WIDTH between words, indented further. Words and commands are never cut."""
    for line in lines:
        if len(line) <= width or width_of(line) <= width or plain(line).lstrip().startswith("ckptool "):
            yield line
            continue
        text = line.lstrip(" ")
        indent = " " * (len(line) - len(text))
        yield from _folded(text, width, indent)


def _folded(text: str, width: int, indent: str) -> Iterator[str]:
    """TEXT on as many lines as it takes. Two spaces divide columns, and are where it is best divided."""
    line, used = indent, len(indent)
    begun = False
    for gap, word in _WORDS.findall(text):
        columns = width_of(word)
        if begun and used + len(gap) + columns > width:
            yield line
            line = f"{indent}    {word}"
            used = len(indent) + 4 + columns
        else:
            line += gap + word if begun else word
            used += (len(gap) if begun else 0) + columns
        begun = True
    yield line


#: A word and the spaces before it. What stands in brackets is one word: the shape of a tensor, an option and its value.
_WORDS = re.compile(r"( *)((?:\[[^][]{0,40}\]|[^ ])+)")
