"""Write out lines of a mapping file: `layers.{0..11}.w: h.{}.w` as all of its keys, each with its expression."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..disk.documents import Placed
from ..disk.files import StrPath
from ..errors import Malformed, printable

#: What the ranges of a whole file may stand for, once they are written out: keys, operations and their arguments, each
#: of them counted, and characters. The largest models have 150,000 tensors.
_MOST_PARTS = 1_000_000
_MOST_CHARACTERS = 1 << 26
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a mapping file before it is written out.

    Attributes:
        pattern, value: the left side and the right side; the value is None for a key under `left`.
        around: the texts of the pattern before, between and after its ranges.
        ranges: the numbers of each range, as a list of parts: {0..3,8} has two.
        keys: how many keys it stands for; 1,000,001 if they are more than 1,000,000.
        number: its line number in the file, counted from 1; 0 if not known.
    """

    pattern: str
    value: str | None
    around: list[str]
    ranges: list[list[range]]
    keys: int
    number: int = 0

    def malformed(
        self, what: str, path: StrPath, *, evidence: Sequence[str] = (), hint: str | None = None
    ) -> Malformed:
        """Return (not raise) the error Malformed about this line: its text is the line's number, if it is known, and
        WHAT. PATH is the file; EVIDENCE and HINT are those of the error.
        """
        return Malformed(place_of(self.number) + what, where=path, evidence=evidence, hint=hint)


def place_of(number: int) -> str:
    """Return the beginning of a message about line NUMBER of a file, "line 7: "; "" for 0."""
    return f"line {number}: " if number else ""


def number_of(*texts: object) -> int:
    """Return the line number of the last of TEXTS that was read from a file; 0 if none was. Other objects among TEXTS
    are passed over.
    """
    return next((text.line for text in reversed(texts) if isinstance(text, Placed)), 0)


def line(pattern: str, value: str | None, path: StrPath) -> Line:
    """Return the line PATTERN: VALUE of the file PATH with its ranges read, but not written out. VALUE is None for a
    key under `left`. A PATTERN without ranges stands for one key.

    Raises:
        Malformed: a text in braces in PATTERN is not a range.
    """
    ranges, around, keys, number = [], [""], 1, number_of(pattern, value)
    for text, inner in _pieces(pattern):
        if inner is None:
            around[-1] += text
        else:
            ranges.append(_numbers(inner, pattern, path, number))
            around.append("")
            keys = min(keys * sum(map(len, ranges[-1])), _MOST_PARTS + 1)
    return Line(pattern, value, around, ranges, keys, number)


def within_limits(lines: Iterable[Line], path: StrPath) -> list[Line]:
    """Return LINES of the file PATH as a list, unchanged, if what they stand for together, written out, has at most
    1,000,000 parts and 67,108,864 characters. Each key of a line counts as 2 parts (the key and its expression), and
    one more for each comma and opening bracket in the expression; its characters are those of both sides of the line.

    Raises:
        Malformed: they stand for more; the message names the first line that exceeds a limit.
    """
    found, parts, characters = [], 0, 0
    for one in lines:
        value = one.value or ""
        parts += one.keys * (2 + value.count(",") + value.count("("))
        characters += one.keys * (len(one.pattern) + len(value))
        if parts > _MOST_PARTS or characters > _MOST_CHARACTERS:
            raise one.malformed(
                f"stands for too much, from {printable(one.pattern, 80)} on",
                path,
                evidence=[
                    f"all lines together may make {_MOST_PARTS // 2:,} keys, fewer where several tensors make one,",
                    f"and {_MOST_CHARACTERS:,} characters",
                ],
            )
        found.append(one)
    return found


def written_out(one: Line, path: StrPath) -> Iterator[tuple[str, str | None]]:
    """Yield (key, expression as text) for each key that the line ONE of the file PATH stands for, with the numbers of
    the last range running fastest; None for the expression of a key under `left`.

    In an expression, `{1}`, `{2}` … become the numbers of the ranges, `{}` that of the only one, and doubled braces
    single ones.
    Raises:
        Malformed: the expression has a hole without a range.
    """
    value = None if one.value is None else list(_pieces(one.value))
    for numbers in itertools.product(*(itertools.chain(*found) for found in one.ranges)):
        key = one.around[0] + "".join(f"{n}{piece}" for n, piece in zip(numbers, one.around[1:], strict=True))
        holes = {str(place): str(n) for place, n in enumerate(numbers, 1)}
        if len(numbers) == 1:
            holes[""] = str(numbers[0])
        try:
            yield key, None if value is None else "".join(text if hole is None else holes[hole] for text, hole in value)
        except KeyError:
            shown = f"{printable(one.pattern)}: {printable(one.value or '')}"
            hint = (
                "{} stands for the number of the one range on the left, {1} and {2} for those of several; a brace of "
            )
            raise one.malformed(
                f"{shown} has a hole that the left side does not fill", path, hint=f"{hint}a key is written twice"
            ) from None


def _pieces(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of TEXT in order: (literal text, None), and ("", text in the braces) for a pair of braces, which
    may be empty. "h.{0..3}.w" gives ("h.", None), ("", "0..3"), (".w", None). A doubled brace is a literal single one.
    Literal parts may be empty.
    """
    at = 0
    for found in _BRACES.finditer(text):
        yield text[at : found.start()], None
        yield (found[0][0], None) if found[1] is None else ("", found[1])
        at = found.end()
    yield text[at:], None


def _numbers(text: str, pattern: str, path: StrPath, line: int) -> list[range]:
    """Return the parts of a range with TEXT in its braces, one for each comma: "0..3,8" gives [range(0, 4), range(8,
    9)]. PATTERN, the file PATH and the number LINE are for the message.

    Raises:
        Malformed: a part is neither a number of at most nine digits nor two such numbers A..B with A at most B.
    """
    out = []
    for one in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})(?:\.\.([0-9]{1,9}))?\s*", one)
        numbers = range(0) if found is None else range(int(found[1]), int(found[2] or found[1]) + 1)
        if not numbers:
            raise Malformed(
                f"{place_of(line)}{printable(pattern)}: {{{printable(text)}}} is not a range such as {{0..11}}",
                where=path,
                hint="ranges are written {0..11}, {0,2,5} or {0..3,8}; a brace of a key is written twice: {{ and }}",
            )
        out.append(numbers)
    return out
