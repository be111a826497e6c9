"""A mapping as text that people can check in a minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..errors import counted, printable
from ..keys import collapse
from ..reports.render import count_text, parameters_text
from .mapping import Entry, Mapping
from .mapping_file import folded


def mapping_text(mapping: Mapping, *, everything: bool = False, width: int = 100) -> str:
    """What becomes of every key of the target: coverage, doubts first, then the rest, blocks folded.

    Args:
        mapping: the mapping.
        everything: one line for each key, with its evidence.
        width: columns to fill.
    """
    return "\n".join(line.rstrip() for line in _lines(mapping, everything, width))


def mapping_page(mapping: Mapping) -> str:
    """A mapping as a page of HTML: the source's keys beside the target's, coloured by what is known of each pair."""
    links = []
    for entry in mapping.entries:
        details = [("shape", "x".join(map(str, entry.shape))), ("evidence", entry.evidence)]
        details += [("made of", str(entry.expr))] if entry.expr is not None and not entry.expr.is_copy else []
        details += [("doubt", doubt) for doubt in entry.doubts]
        details += [("fits as well", str(rival)) for rival in entry.rivals]
        status = "default" if entry.default else entry.status
        keys: list[str | None] = list(entry.sources) or [None]
        done = {"about": "x".join(map(str, entry.shape))}
        if entry.expr is not None and not entry.expr.is_copy:
            done["via"] = str(entry.expr).partition("(")[0][:16]
        links += [{**_link(key, entry.target, status, details), **done} for key in keys]
    links += [_link(key, None, "unused", []) for key in mapping.unused]
    covered, parameters = mapping.coverage["keys"], mapping.coverage["parameters"]
    summary = (
        f"{covered[0]:,} of {counted(covered[1], 'key')}, {parameters[0]:,} of {counted(parameters[1], 'parameter')}"
    )
    notes = [*mapping.notes, *([str(mapping.proof.get("text", ""))] if mapping.proof is not None else [])]
    title = f"{mapping.source} to {mapping.target}"
    from ..reports.page import pairs_page  # here, since few ask for a page

    return pairs_page(title, mapping.source, mapping.target, links, summary=summary, notes=notes)


def _link(left: str | None, right: str | None, status: str, details: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"left": left, "right": right, "status": status, "details": [d for d in details if d[1]]}


def _lines(mapping: Mapping, everything: bool, width: int) -> Iterator[str]:
    keys, parameters = mapping.coverage["keys"], mapping.coverage["parameters"]
    yield (
        f"{printable(mapping.source, 60) or 'the source'} -> {printable(mapping.target, 60)}: "
        f"{keys[0]:,} of {counted(keys[1], 'key')}, "
        f"{count_text(parameters[0])} of {parameters_text(parameters[1])}"
    )
    for note in mapping.notes:
        yield f"  note: {printable(note)}"
    guessed, unmapped = mapping.having("guessed"), mapping.having("unmapped")
    mapped = [e for e in mapping.entries if e.status == "mapped" and e.expr is not None]
    defaults = [e for e in mapping.entries if e.default]
    if guessed:
        yield from _section(f"guessed ({len(guessed):,})", guessed, everything, width, doubts=True)
    if unmapped:
        yield ""
        yield f"  without a source ({len(unmapped):,}); the model's own initial values stay:"
        yield from _keys_only(unmapped, everything or len(unmapped) <= _MOST_NAMES)
    if mapped:
        yield from _section(f"mapped ({len(mapped):,})", mapped, everything, width, doubts=False)
    if defaults:
        counters = sum(e.target.endswith("num_batches_tracked") for e in defaults)
        yield ""
        words = [f"{counted(counters, 'counter')} num_batches_tracked"] if counters else []
        if len(defaults) > counters:
            words.append(f"{counted(len(defaults) - counters, 'buffer')} that the model computes itself")
        yield f"  needs no source: {', '.join(words)}"
    if mapping.unused:
        yield ""
        yield f"  not used, of the source ({len(mapping.unused):,}):"
        shown = [c.pattern for c in collapse([(key, None) for key in mapping.unused])]
        yield from (f"    {printable(text, 100)}" for text in (shown if everything else shown[:_FEW]))
        if len(shown) > _FEW and not everything:
            yield f"    … and {len(shown) - _FEW:,} more lines (-v lists all)"
    if mapping.proof is not None:
        yield ""
        yield f"  proof: {printable(str(mapping.proof.get('text', '')), 300)}"


_FEW = 12


def _section(title: str, entries: Sequence[Entry], everything: bool, width: int, *, doubts: bool) -> Iterator[str]:
    yield ""
    yield f"  {title}:"
    rows = _rows(entries) if not everything else [_Row(e.target, str(e.expr), _sizes([e]), [e]) for e in entries]
    left = min(max((len(row.target) for row in rows), default=0), max(width // 2 - 4, 20))
    right = min(max((len(row.made) for row in rows), default=0), max(width // 2 - 8, 20))
    said = ""
    for row in rows:
        first = row.members[0]
        if doubts:
            text = "; ".join(first.doubts)
            if text != said:
                yield f"    ({printable(text, 400)})"
                said = text
        evidence = f"   [{first.evidence}]" if everything and first.evidence else ""
        yield f"    {printable(row.target, 100):<{left}} <- {printable(row.made, 200):<{right}}   {row.sizes}{evidence}"
        if doubts:
            more = len(first.rivals) - _RIVALS
            for rival in first.rivals[:_RIVALS]:
                yield f"    {'':<{left}}  or {printable(str(rival), 200)}"
            if more > 0:
                yield f"    {'':<{left}}  or {more:,} others"


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: what a key, or a module with all its keys, is made of."""

    target: str
    made: str
    sizes: str
    members: Sequence[Entry]


def _rows(entries: Sequence[Entry]) -> list[_Row]:
    """Entries folded: equal blocks are one line, and so is a module that takes all its tensors from one module."""
    rows: list[_Row] = []
    for head, group in groupby(folded(entries), _modules):
        lines = list(group)
        members = [entry for _, _, some in lines for entry in some]
        if head is None or len(lines) == 1:
            rows += [_Row(pattern, made, _sizes(some), some) for pattern, made, some in lines]
        else:
            leaves = [f"{pattern.rpartition('.')[2]} {_sizes(some)}".rstrip() for pattern, _, some in lines]
            shown = [*leaves[:2], *([f"… {len(leaves) - 2} more"] if len(leaves) > 2 else [])]
            rows.append(_Row(f"{head[0]}.", f"{head[1]}.", ", ".join(shown), members))
    return rows


def _modules(line: tuple[str, str, list[Entry]]) -> tuple[str, str, tuple[str, ...]] | None:
    """The two modules between which a line copies a tensor of the same name, and its doubts."""
    pattern, made, members = line
    (own, _, leaf), (theirs, _, other) = pattern.rpartition("."), made.rpartition(".")
    if not own or leaf != other or any(e.expr is None or not e.expr.is_copy or e.rivals for e in members):
        return None
    return own, theirs, members[0].doubts


def _sizes(members: Sequence[Entry]) -> str:
    sizes = {e.shape for e in members}
    return "x".join(map(str, next(iter(sizes)))) if len(sizes) == 1 else "(several sizes)"


_RIVALS = 3


#: Keys without a source that are named one by one; more of them are folded.
_MOST_NAMES = 60


def _keys_only(entries: Sequence[Entry], one_by_one: bool) -> Iterator[str]:
    sized = [(e.target, "x".join(map(str, e.shape))) for e in entries]
    rows = sized if one_by_one else [(found.pattern, str(found.signature)) for found in collapse(sized)]
    width = max((len(key) for key, _ in rows), default=0)
    for key, size in rows:
        yield f"    {printable(key, 100):<{min(width, 100)}}   {size}"
