"""The report of `ckptool scan`, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...drawing.screen import Block, Part, screen
from ...drawing.sizes import size_text
from ...drawing.styles import Meaning, paint
from ...errors import counted, printable
from .scan import Finding, Scan

_FINDINGS, _PROBLEMS = 12, 8
_WORDS: dict[str, tuple[str, Meaning]] = {
    "safe": ("safe", "good"),
    "unsafe": ("NOT SAFE", "bad"),
    "unknown": ("CANNOT TELL", "warning"),
}


def scan_text(seen: Scan, *, everything: bool = False, width: int = 120) -> str:
    """What unpickling a file would do, for a person: the verdict, then what it follows from.

    Args:
        seen: the report.
        everything: list the names of tensors and plain data as well, and all places.
        width: columns to fill.
    """
    return screen(_scanned(seen, everything), width, everything=everything)


def totals_text(verdicts: Mapping[str, int], *, failed: int, skipped: int) -> Iterator[str]:
    """The last lines for several files: how many were scanned and what they are, and how many are no checkpoints."""
    scanned = sum(verdicts.values()) + failed
    if scanned > 1:
        counts = [f"{verdicts[one]:,} {paint(*told)}" for one, told in _WORDS.items() if verdicts.get(one)]
        counts += [f"{failed:,} could not be read"] * bool(failed)
        yield f"{scanned:,} files scanned: {', '.join(counts)}"
    if skipped:
        yield f"{counted(skipped, 'file')} skipped: neither checkpoint nor pickle"


def _scanned(seen: Scan, everything: bool) -> Iterator[Part]:
    beyond = len(seen.unsafe)
    verdict = {
        "safe": "tensors and plain data only" if seen.pickles else "it holds no pickle",
        "unsafe": f"{counted(beyond, 'name')} other than tensors and plain data",
        "unknown": "not all of it can be read",
    }[seen.verdict]
    word, meaning = _WORDS[seen.verdict]
    yield f"{paint(printable(seen.path), 'name')}: {paint(f'{word}, {verdict}', meaning)}"
    yield Block(items=[printable(line, 160) for line in seen.problems], most=_PROBLEMS)
    if everything:
        yield f"  {printable(seen.kind)}, {size_text(seen.bytes)}, {counted(len(seen.pickles), 'pickle')}"
        yield Block(items=[printable(place, 100) for place in seen.pickles if place])
    for group in dict.fromkeys(one.group for one in seen.findings):
        inside = [one for one in seen.findings if one.group == group]
        if everything or inside[0] in seen.unsafe:
            shown = inside if everything else inside[:_FINDINGS]
            items = [list(_finding(one, len(seen.pickles) > 1, everything)) for one in shown]
            yield Block([f"  {paint(f'{group}:', 'heading')}"], items, more=len(inside) - len(shown))
    refused = [one.name for one in seen.findings if one.group == "plain data" and not one.plain]
    if seen.verdict == "safe" and refused:
        names = ", ".join(printable(name, 60) for name in refused[:6]) + (", …" if len(refused) > 6 else "")
        yield f"    torch.load(weights_only=True) does not know {names}"
    yield Block(items=[printable(line, 160) for line in seen.notes])


def _finding(one: Finding, several: bool, everything: bool) -> Iterator[str]:
    where = [printable(place, 60) for place in one.places if place and (several or one.program)]
    places = f" in {', '.join(where if everything else where[:2])}{', …' if len(where) > 2 and not everything else ''}"
    calls = f"called {counted(one.calls, 'time')}" if one.calls else "carried" if one.program else "named"
    yield f"{printable(one.name, 100)}: {calls}{places if where else ''}"
    if one.group == "code execution" or everything:
        yield from (f"    {example}" for example in one.examples)
