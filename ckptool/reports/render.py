"""Reports as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import counted, printable
from ..keys import collapse

if TYPE_CHECKING:
    from .inspect import Inspection, StateDictReport, TensorReport
    from .scan import Finding, Scan

_ROWS = 40
_FINDINGS = 12


def size_text(nbytes: int) -> str:
    """A size in the decimal units of disks and downloads: 548.1 MB."""
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{nbytes:,} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def count_text(count: int) -> str:
    """A number of parameters: 143.7 M."""
    for limit, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:,}"


def percent(part: int, whole: int) -> str:
    """PART of WHOLE in percent, 100 % for all of them only."""
    share = 100 * part / whole if whole else 100.0
    return f"{min(share, 99.99) if part < whole else share:.4g} %"


def inspect_text(seen: Inspection, *, everything: bool = False, width: int = 120) -> str:
    """What is in a file, for a person: modules one a line, numbered ones folded, then what else there is.

    Args:
        seen: the report.
        everything: list all modules and all their tensors, however many.
        width: columns to fill.
    """
    return "\n".join(_inspection(seen, everything, width))


def _inspection(seen: Inspection, everything: bool, width: int) -> Iterator[str]:
    yield f"{printable(seen.path)}: {seen.format}, {size_text(seen.bytes)}"
    for one in seen.state_dicts:
        inside = [t for t in seen.tensors if t.key is not None and t.state_dict == one.path]
        yield ""
        yield from _state_dict(one, inside, everything, width)
    if not seen.state_dicts:
        yield f"  no state dict; {counted(len(seen.tensors), 'tensor')}"
    yield from section("tied", [" = ".join(printable(key, 60) for key in keys) for keys in seen.ties], everything)
    yield from section("also in the file", table([(printable(n, 40), text) for n, text in seen.others]), everything)
    objects = [(printable(name, 80), f"{count:,}") for name, count in seen.objects.items()]
    yield from section("objects (shown, never run)", table(objects), everything)
    if seen.unsafe:
        yield ""
        yield f"  unpickling would import or call {counted(len(seen.unsafe), 'name')} beyond plain data; nothing was"
    devices = [(printable(path, 60) or "the root", printable(text, 40)) for path, text in seen.devices]
    yield from section("devices written down elsewhere", table(devices), everything)
    yield from section("notes", [printable(line) for line in seen.warnings], everything)
    for why in dict.fromkeys(why for _, why in seen.suggestions):
        yield from section(why, [command for command, reason in seen.suggestions if reason == why], True)


def scan_text(seen: Scan, *, everything: bool = False, width: int = 120) -> str:
    """What unpickling a file would do, for a person: the verdict, then what it follows from.

    Args:
        seen: the report.
        everything: list the names of tensors and plain data as well, and all places.
        width: columns to fill.
    """
    return "\n".join(wrapped(_scanned(seen, everything), width))


def _scanned(seen: Scan, everything: bool) -> Iterator[str]:
    beyond = len(seen.unsafe)
    verdict = {
        "safe": "safe, tensors and plain data only" if seen.pickles else "safe, it holds no pickle",
        "unsafe": f"NOT SAFE, {counted(beyond, 'name')} beyond plain data",
        "unknown": "CANNOT TELL, not all of it can be read",
    }[seen.verdict]
    yield f"{printable(seen.path)}: {verdict}"
    yield from (f"    {printable(line, 160)}" for line in seen.problems[: None if everything else 8])
    if everything:
        yield f"  {printable(seen.kind)}, {size_text(seen.bytes)}, {counted(len(seen.pickles), 'pickle')}"
        yield from (f"    {printable(place, 100)}" for place in seen.pickles if place)
    for group in dict.fromkeys(one.group for one in seen.findings):
        inside = [one for one in seen.findings if one.group == group]
        if everything or inside[0] in seen.unsafe:
            yield f"  {group}:"
            shown = inside if everything else inside[:_FINDINGS]
            for one in shown:
                yield from _finding(one, len(seen.pickles) > 1, everything)
            if len(inside) > len(shown):
                yield f"    … and {len(inside) - len(shown):,} more (-v lists all)"
    refused = [one.name for one in seen.findings if one.group == "plain data" and not one.plain]
    if seen.verdict == "safe" and refused:
        names = ", ".join(printable(name, 60) for name in refused[:6]) + (", …" if len(refused) > 6 else "")
        yield f"    torch.load(weights_only=True) does not know {names}"
    yield from (f"    {printable(line, 160)}" for line in seen.notes)


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines folded at WIDTH between words, indented further. A word is never cut, so paths can be copied."""
    for line in lines:
        if len(line) <= width:
            yield line
            continue
        indent = " " * (len(line) - len(line.lstrip()))
        yield from textwrap.wrap(
            line.lstrip(),
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _finding(one: Finding, several: bool, everything: bool) -> Iterator[str]:
    where = [printable(place, 60) for place in one.places if place and (several or one.program)]
    places = f" in {', '.join(where if everything else where[:2])}{', …' if len(where) > 2 and not everything else ''}"
    calls = f"called {counted(one.calls, 'time')}" if one.calls else "carried" if one.program else "named"
    yield f"    {printable(one.name, 100)}: {calls}{places if where else ''}"
    if one.group == "code execution" or everything:
        yield from (f"        {example}" for example in one.examples)


def section(title: str, lines: list[str], everything: bool) -> Iterator[str]:
    """A title and its lines, as many as one wants to see; nothing without lines."""
    if lines:
        yield ""
        yield f"  {title}:"
        shown = lines if everything else lines[:_ROWS]
        yield from (f"    {line}" for line in shown)
        if len(lines) > len(shown):
            yield f"    … and {len(lines) - len(shown):,} more (-v lists all)"


def _state_dict(one: StateDictReport, tensors: list[TensorReport], everything: bool, width: int) -> Iterator[str]:
    place = f"at {printable(one.path)}" if one.path else "at the root"
    place += f", recovered from a module of class {printable(one.model, 80)}" if one.model else ""
    size = f"{count_text(one.parameters)} parameters, {size_text(one.bytes)}"
    yield f"  state dict {place}: {counted(one.keys, 'key')}, {size}"
    dtypes, locations = Counter(t.dtype for t in tensors), Counter(t.location for t in tensors)
    kinds = Counter(t.kind for t in tensors if t.kind != "dense")
    facts = [_histogram(dtypes), _histogram(locations)]
    stored = [t.storage for t in tensors if t.storage is not None]
    if len(set(stored)) < len(stored):
        facts.append(f"{len(stored):,} tensors in {counted(len(set(stored)), 'storage')}")
    facts += [f"{count:,} {kind}" for kind, count in kinds.items()]
    facts += [f"{name} in {counted(count, 'key')}" for name, count in one.wrappers.items()]
    yield "    " + "; ".join(fact for fact in facts if fact)
    yield ""
    usual = (dtypes.most_common(1)[0][0], locations.most_common(1)[0][0]) if tensors else ("", "")
    rows = _modules(tensors, usual, 10**6 if everything else width - 4)
    shown = rows if everything else rows[:_ROWS]
    yield from (f"    {line}" for line in table(shown))
    if len(rows) > len(shown):
        yield f"    … and {len(rows) - len(shown):,} more lines (-v lists all)"


def _modules(tensors: list[TensorReport], usual: tuple[str, str], width: int) -> list[tuple[str, ...]]:
    """A row for each module, or for each run of modules that differ in a number only, not wider than WIDTH."""
    leaves: dict[str, list[tuple[str, str]]] = {}
    sizes: Counter[str] = Counter()
    for t in tensors:
        module, _, leaf = (t.key or "").rpartition(".")
        unusual = [x for x, common in zip((t.dtype, printable(t.location, 20)), usual, strict=True) if x != common]
        unusual += [t.kind] if t.kind != "dense" else []
        leaves.setdefault(module, []).append((leaf, " ".join([str(t.shape), *unusual])))
        sizes[module] += t.bytes
    rows: list[tuple[str, str, list[str]]] = []
    for group in collapse((module, tuple(held)) for module, held in leaves.items()):
        held = leaves[group.keys[0]]
        name = printable(group.pattern, 80) + (f"  x{len(group.keys):,}" if len(group.keys) > 1 else "")
        texts = [f"{printable(leaf, 40)} {shape}" for leaf, shape in held]
        rows.append((name or "(top level)", size_text(sum(sizes[module] for module in group.keys)), texts))
    room = width - sum(max((len(row[i]) for row in rows), default=0) + 2 for i in (0, 1))
    return [(name, size, _fitting(texts, room)) for name, size, texts in rows]


def _fitting(texts: list[str], room: int) -> str:
    """TEXTS side by side, as many as there is ROOM for, and how many more there are."""
    line = texts[0]
    for index, text in enumerate(texts[1:], start=1):
        more = f"  … {len(texts) - index:,} more"
        if len(line) + 2 + len(text) + (len(more) if index < len(texts) - 1 else 0) > room:
            return line + more
        line += f"  {text}"
    return line


def _histogram(counted: Counter[str]) -> str:
    if len(counted) == 1:
        return printable(next(iter(counted)), 40)
    return ", ".join(f"{printable(name, 40)} x{count:,}" for name, count in counted.most_common(6))


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
