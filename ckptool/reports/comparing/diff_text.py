"""A comparison as text for a terminal, and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import isnan

from ...drawing.page import pairs_page
from ...drawing.screen import Part, screen, section
from ...drawing.sizes import parameters_text, percent, table
from ...drawing.styles import paint
from ...errors import counted, printable
from ...keys import collapse
from .diff import STATUSES, Diff, Pair, Side, Status
from .numbers import Difference

_TITLES: dict[Status, str] = {
    "only left": "only at the left",
    "only right": "only at the right",
    "shape": "other shapes",
    "perhaps moved": "perhaps moved (same shapes in the same order; the values differ)",
    "moved": "moved (equal, under another name)",
    "type": "other types",
    "values": "other values",
    "close": "close, within the tolerance",
    "equal": "equal",
}
_LONGEST_NAME = 60


def diff_text(found: Diff, *, everything: bool = False, width: int = 120) -> str:
    """How two files differ, for a person: the verdict, what is in both, then what differs, the most first.

    Args:
        found: the comparison.
        everything: list all tensors, the equal ones too. Else the text fits on a screen.
        width: columns to fill.
    """
    return screen(diff_parts(found, everything), width, everything=everything)


def diff_parts(found: Diff, everything: bool) -> Iterator[Part]:
    """The parts of that text."""
    left, right = printable(found.left), printable(found.right)
    verdict = "the same" if found.same else "DIFFERENT"
    left, right = paint(left, "name"), paint(right, "name")
    verdict = paint(verdict, "good" if found.same else "bad")
    yield f"{verdict}: {left} ({found.formats[0]}), {right} ({found.formats[1]})"
    yield f"  {_summary(found)}"
    for line in dict.fromkeys(_coverage(found)) if found.pairs else ():
        yield f"  {line}"
    by_status: dict[Status, list[Pair]] = {}
    for pair in found.pairs:
        by_status.setdefault(pair.status, []).append(pair)
    for status in STATUSES:
        pairs = by_status.get(status, [])
        if not pairs or (status == "equal" and not everything):
            continue
        title = f"{_TITLES[status]}, {len(pairs):,}"
        yield from section(title, table(_rows(pairs, status)))
    entries = [
        (printable(path, 60), "" if a is b is None else f"{_entry(a)} | {_entry(b)}") for path, a, b in found.entries
    ]
    yield from section(f"other entries that differ, {len(entries):,}", table(entries))
    yield from section("differences in form", list(found.form))
    yield from section("not the whole", found.parts)
    for command, why in found.suggestions:
        yield from section(why, [paint(command, "command")])


def _coverage(found: Diff) -> Iterator[str]:
    """How much of each side has a partner of the same shape on the other."""
    (met, all_, some, whole), (its, theirs, part, sum_) = found.coverage("left"), found.coverage("right")
    if met == all_ and its == theirs:
        yield f"each tensor has a partner: {counted(met, 'tensor')}, {parameters_text(whole)} on each side"
        return
    for side, numbers in (("left", (met, all_, some, whole)), ("right", (its, theirs, part, sum_))):
        partners = f"{numbers[0]:,} of {counted(numbers[1], 'tensor')} have a partner"
        yield f"{side}: {partners}, {percent(*numbers[2:])} of {parameters_text(numbers[3])}"


def _summary(found: Diff) -> str:
    counts = Counter(pair.status for pair in found.pairs)
    words = [f"{counts[status]:,} {status}" for status in reversed(STATUSES) if counts[status]]
    return ", ".join(words) or "no tensor in either"


def _entry(text: str | None) -> str:
    return "nothing" if text is None else printable(text, 60)


def _rows(pairs: list[Pair], status: Status) -> list[tuple[str, ...]]:
    if status in ("only left", "only right", "shape", "equal"):
        return _collapsed(pairs)
    rows: list[tuple[str, ...]] = []
    for pair in pairs:
        name = printable(pair.name, _LONGEST_NAME)
        assert pair.left is not None
        assert pair.right is not None
        if status in ("moved", "perhaps moved"):
            rows.append((name, f"-> {printable(pair.right.name, _LONGEST_NAME)}", *_numbers(pair.values)))
        elif status == "type":
            rows.append((name, f"{pair.left.dtype} | {pair.right.dtype}", *_numbers(pair.values)))
        else:
            rows.append((name, str(pair.left.shape), *_numbers(pair.values)))
    columns = max(len(row) for row in rows)
    return [(*row, *("",) * (columns - len(row))) for row in rows]


def _collapsed(pairs: list[Pair]) -> list[tuple[str, ...]]:
    """A row for each run of names that differ in a number only and are alike otherwise."""

    def told(pair: Pair) -> str:
        if pair.left and pair.right and pair.status == "shape":
            return f"{pair.left.shape} | {pair.right.shape}"
        side = pair.left or pair.right
        return _what(side) if side else ""

    text = {pair.name: told(pair) for pair in pairs}
    return [
        (
            printable(group.pattern, _LONGEST_NAME) + (f"  x{len(group.keys):,}" if len(group.keys) > 1 else ""),
            text[group.keys[0]],
        )
        for group in collapse(text.items())
    ]


def _what(side: Side) -> str:
    return f"{side.dtype} {side.shape}"


def _numbers(found: Difference | None) -> tuple[str, ...]:
    if found is None:
        return ()
    if not found.different:
        return ("equal numbers",)
    several = found.elements > 1 or found.unmatched
    words = [f"{found.different:,} of {found.elements:,}"] if several else []
    words += [f"max {found.max_abs:.3g}", f"mean {found.mean_abs:.3g}", f"relative {found.max_rel:.2g}"]
    words += [] if isnan(found.cosine) else [f"cosine {found.cosine:.9g}"]
    words += [f"{found.unmatched:,} NaN or infinite in one only"] if found.unmatched else []
    return (", ".join(words),)


def diff_page(found: Diff) -> str:
    """The page of `ckptool diff --html`: two columns, joined by lines that are coloured by status."""
    links = []
    for pair in found.pairs:
        details = [(name, _what(side)) for name, side in (("left", pair.left), ("right", pair.right)) if side]
        details += [("difference", text) for text in _numbers(pair.values)]
        links.append(
            {
                "left": printable(pair.left.name, 2000) if pair.left else None,
                "right": printable(pair.right.name, 2000) if pair.right else None,
                "status": pair.status,
                "details": details,
            }
        )
    left, right = printable(found.left), printable(found.right)
    notes = [f"{printable(path, 60)}: {_entry(a)} | {_entry(b)}" for path, a, b in found.entries[:50]]
    notes += list(found.form)
    verdict = "the same" if found.same else "different"
    summary = f"{verdict}: {_summary(found)}"
    return pairs_page(f"{left} | {right}", left, right, links, summary=summary, notes=notes, commands=found.suggestions)
