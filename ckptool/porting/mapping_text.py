"""Show a mapping as a report that people can read in a minute; and where two models diverge, as a table of the layers
around the first layer that differs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from ..drawing.sizes import count_text, parameters_text
from ..errors import counted, printable
from ..keys import collapse
from ..keys.known_buffers import is_counter
from .explaining import rows_of
from .mapping import Entry, Mapping, different
from .mapping_file import folded


def mapping_text(mapping: Mapping, *, everything: bool = False, width: int = 100) -> str:
    """Return the report of MAPPING: coverage and notes, guesses with their doubts and at most three options each, keys
    without a source, mapped keys, the number of keys that need no source, unused keys, and the proof, with equal blocks
    in one line. Parts for which there is nothing are left out.

    Args:
        mapping: the mapping.
        everything: print one line for each key, with its evidence, and all unused keys. Otherwise the latter have at
            most twelve lines, and keys without a source have one each only if they are at most sixty.
        width: columns to fill.
    """
    return "\n".join(line.rstrip() for line in _lines(mapping, everything, width))


def mapping_page(mapping: Mapping) -> str:
    """Return MAPPING as the text of a page of HTML: the source's keys beside the target's, linked and coloured by the
    status of the target's key. A key of the target that is made of several source keys has a link to each of them.
    Keys without a source, and unused source keys, are there without a link. A link has the shape, evidence, expression
    (if it is no copy), doubts, options, and how the key was matched (`rows_of`) as details; the page has the coverage,
    the notes and the text of the proof, if there is one.
    """
    links = []
    for entry in mapping.entries:
        details = [("shape", "x".join(map(str, entry.shape))), ("evidence", entry.evidence)]
        details += [("made of", str(entry.expr))] if entry.expr is not None and not entry.expr.is_copy else []
        details += [("doubt", doubt) for doubt in entry.doubts]
        details += [("fits as well", str(rival)) for rival in entry.rivals]
        details += rows_of(entry)
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
    from ..drawing.page import pairs_page  # here, since few ask for a page

    return pairs_page(title, mapping.source, mapping.target, links, summary=summary, notes=notes)


def _link(left: str | None, right: str | None, status: str, details: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a link of the web page from the source key LEFT to the target key RIGHT (either may be None) with those
    DETAILS, pairs of (label, text), whose text is not empty.
    """
    return {"left": left, "right": right, "status": status, "details": [d for d in details if d[1]]}


def _lines(mapping: Mapping, everything: bool, width: int) -> Iterator[str]:
    """Yield the lines of the report, WIDTH columns wide: the coverage, notes, guesses with their doubts and options,
    keys without a source, mapped keys, keys that need none, unused keys of the source, and the proof. Parts that are
    empty are left out. With EVERYTHING, each key has a line of its own with its evidence; otherwise equal blocks, and
    modules that keep their name, share one, and long lists are cut.
    """
    keys, parameters = mapping.coverage["keys"], mapping.coverage["parameters"]
    yield (
        f"{printable(mapping.source, 60) or 'the source'} -> {printable(mapping.target, 60)}: "
        f"{keys[0]:,} of {counted(keys[1], 'key')}, "
        f"{count_text(parameters[0])} of {parameters_text(parameters[1])}"
    )
    for note in (*mapping.notes, *_blocks_left(mapping)):
        yield from _sentence(f"note: {printable(note, 600)}", width)
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
        counters = sum(is_counter(e.target) for e in defaults)
        yield ""
        words = [f"{counted(counters, 'counter')} num_batches_tracked"] if counters else []
        if len(defaults) > counters:
            words.append(f"{counted(len(defaults) - counters, 'buffer')} that the model computes itself")
        yield f"  needs no source: {', '.join(words)}"
    if mapping.unused:
        yield ""
        yield f"  not used, of the source ({len(mapping.unused):,}):"
        shown = list(mapping.unused) if everything else _unused(mapping)
        yield from (f"    {printable(text, 100)}" for text in (shown if everything else shown[:_FEW]))
        if len(shown) > _FEW and not everything:
            yield f"    … and {len(shown) - _FEW:,} more lines (-v lists all)"
    if mapping.proof is not None:
        yield ""
        yield from _sentence(f"proof: {printable(str(mapping.proof.get('text', '')), 600)}", width)
        yield from divergence_table(mapping.proof.get("layers") or (), width)


_FEW = 12


def _sentence(text: str, width: int) -> list[str]:
    """Return the indented lines of TEXT, WIDTH columns wide; a longer word stays whole."""
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _section(title: str, entries: Sequence[Entry], everything: bool, width: int, *, doubts: bool) -> Iterator[str]:
    """Yield an empty line, TITLE, and the lines of ENTRIES (`KEY <- EXPRESSION SIZES`) in columns. With DOUBTS, each
    doubt stands once above its entries. Up to three options follow each line. With EVERYTHING, each entry has a line
    with its evidence; otherwise those that differ in numbers alone share one.
    """
    yield ""
    yield f"  {title}:"
    rows: list[_Row] = []
    if everything:
        rows = [_Row(e.target, str(e.expr), _sizes([e]), [e], list(map(str, e.rivals))) for e in entries]
    else:
        for some in _by_doubts(entries):
            whole = _from_one_prefix(some) if doubts else None
            rows += [whole] if whole is not None else _rows(some)
    left = min(max((len(row.target) for row in rows), default=0), max(width // 2 - 4, 20))
    right = max((len(row.made) for row in rows if len(row.made) <= max(width // 2 - 8, 20)), default=0)
    said = ""
    for row in rows:
        first = row.members[0]
        if doubts:
            text = "; ".join(first.doubts)
            if text != said:
                yield from _folded(f"    ({printable(text, 1000)})", width, 5)
                said = text
        evidence = f"   [{first.evidence}]" if everything and first.evidence else ""
        line = (
            f"    {printable(row.target, 100):<{left}} <- {printable(row.made, 200):<{right}}   {row.sizes}{evidence}"
        )
        yield from _folded(line, width, left + 8)
        for rival in row.rivals[:_RIVALS]:
            yield from _folded(f"    {'':<{left}}  or {printable(rival, 200)}", width, left + 8)
        if len(row.rivals) > _RIVALS:
            yield f"    {'':<{left}}  or {counted(len(row.rivals) - _RIVALS, 'other')}"


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the report: a key, the same key in equal blocks (`h.{0..11}.fc.weight`), or a module with all its
    keys, and the expression.

    Attributes:
        target, made: pattern of the keys, and of the expression for them.
        sizes: their sizes as text.
        members: the entries of these keys.
        rivals: the options, as texts like `made`.
    """

    target: str
    made: str
    sizes: str
    members: Sequence[Entry]
    rivals: Sequence[str] = ()


def _folded(line: str, width: int, indent: int) -> list[str]:
    """Return LINE wrapped into lines of at most WIDTH columns; [LINE] if it fits. Words are not broken, so that a long
    word makes a longer line. All lines but the first are indented by INDENT, or by less if the longest word would not
    fit then, but always by at least 6. LINE is not wrapped at a no-break space (`_SPACE`), and each becomes a plain
    space.
    """
    if len(line) <= width:
        return [line.replace(_SPACE, " ")]
    indent = max(min(indent, width - max(map(len, line.split(" ")))), 6)
    lines = textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [one.replace(_SPACE, " ") for one in lines]


#: A space at which no line ends; keys have none, since they are shown as `printable` makes them.
_SPACE = "\N{NO-BREAK SPACE}"


def _unused(mapping: Mapping) -> list[str]:
    """Return lines about the unused source keys, in their order; [] if there are none. The keys in a module of which no
    key is used share a line, for the outermost such module: its path with a dot at its end, and the number of its
    tensors (`pooler.   2 tensors`). A key that is alone there, or in no such module, has a line with its name. Equal
    lines for blocks of a list become one (`h.{12..23}.   144 tensors`).
    """
    unused = set(mapping.unused)
    read = {key[:end] for key in mapping.source_shapes if key not in unused for end in _ends(key)}
    below: dict[str, list[str]] = {}
    for key in mapping.unused:
        whole = next((key[: end + 1] for end in _ends(key) if key[:end] not in read), key)
        below.setdefault(whole, []).append(key)
    alone = {keys[0] if len(keys) == 1 else whole: keys for whole, keys in below.items()}
    lines = []
    for found in collapse((whole, len(keys)) for whole, keys in alone.items()):
        tensors = sum(len(alone[whole]) for whole in found.keys)
        lines.append(found.pattern + (f"   {counted(tensors, 'tensor')}" if found.pattern.endswith(".") else ""))
    return lines


def _blocks_left(mapping: Mapping) -> Iterator[str]:
    """Yield a line for each group of equal blocks in a list of the source, if the entries of MAPPING read no key of
    some of them, and keys of others: the model has fewer layers. The line has the unused blocks:
    `12 of 24 equal blocks of the source are not used: h.{12..23}`. Equal blocks have the same keys, at least four, of
    the same sizes. Mostly nothing is yielded, as for a mapping without `source_shapes` (just read from a file).
    """
    unused = set(mapping.unused)
    blocks: dict[str, dict[str, list[str]]] = {}
    for key in mapping.source_shapes:
        parts = key.split(".", _DEEPEST)
        for place, part in enumerate(parts[:-1]):
            if part.isdecimal():
                blocks.setdefault(".".join(parts[:place]), {}).setdefault(part, []).append(key)
    for path, below in blocks.items():
        alike: dict[Any, list[tuple[str, bool]]] = {}
        for number, keys in below.items():
            head = len(f"{path}.{number}." if path else f"{number}.")
            look = frozenset((key[head:], mapping.source_shapes[key]) for key in keys)
            if len(keys) >= _A_BLOCK:
                alike.setdefault(look, []).append((number, all(key in unused for key in keys)))
        for found in alike.values():
            left = [number for number, is_left in found if is_left]
            if 0 < len(left) < len(found):
                (row,) = collapse((f"{path}.{number}" if path else number, None) for number in left)[:1]
                yield f"{len(left):,} of {len(found):,} equal blocks of the source are not used: {row.pattern}"


#: Tensors of what is called a block, at least.
_A_BLOCK = 4


def _ends(key: str) -> Iterator[int]:
    """Yield the places of the first 64 dots in KEY: the ends of the paths of the modules around it, the outermost
    first.
    """
    return islice((place for place, character in enumerate(key) if character == "."), _DEEPEST)


_DEEPEST = 64


def _by_doubts(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return ENTRIES in groups with equal doubts, in the order of the first of each group."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.doubts, []).append(entry)
    return list(found.values())


def _from_one_prefix(entries: Sequence[Entry]) -> _Row | None:
    """Return one row for ENTRIES if only prefixes tell their keys from their sources (`* <- student.*`); else None. The
    row has the number of tensors in place of their sizes, and a pattern for each option (`teacher.*`).

    These are the conditions: there are at least eight entries; all are copies from keys below one prefix to the same
    keys below another one (the two beginnings in which the key and the source of the first entry differ, `different`);
    at least one has options, and each entry with options has copies from the same keys below the same prefixes, in the
    same order.
    """
    first = entries[0]
    if len(entries) < _WORTH_A_STAR or first.expr is None or not first.expr.is_copy:
        return None
    own, theirs = different(first.target, first.expr.key)
    below: set[tuple[str, ...]] = set()
    for entry in entries:
        if not entry.target.startswith(own) or any(not e.is_copy for e in (*entry.rivals, entry.expr) if e is not None):
            return None
        tail = entry.target[len(own) :]
        if entry.expr is None or entry.expr.key != theirs + tail or any(not r.key.endswith(tail) for r in entry.rivals):
            return None
        if entry.rivals:
            below.add(tuple(rival.key.removesuffix(tail) for rival in entry.rivals))
    if len(below) != 1:
        return None
    rivals = [f"{prefix}*" for prefix in below.pop()]
    return _Row(f"{own}*", f"{theirs}*", counted(len(entries), "tensor"), entries, rivals)


_WORTH_A_STAR = 8


def _rows(entries: Sequence[Entry]) -> list[_Row]:
    """Return ENTRIES as rows of the report, in their order. Keys of equal blocks share a row (`folded`).

    Successive rows for keys of one module become one if all are copies of tensors with the same last names in one
    module of the source, with options from the same modules and the same doubts (`_modules`). Such a row has the paths
    of the modules with a dot at the end (`h.{0..11}.ln.`), and in place of sizes the last names of the first two keys,
    each with its sizes, and "… N more" for the others.
    """
    rows: list[_Row] = []
    found = [_Row(pattern, made, _sizes(some), some, _rivals(some)) for pattern, made, some in folded(entries)]
    for head, group in groupby(found, _modules):
        lines = list(group)
        if head is None or len(lines) == 1:
            rows += lines
            continue
        leaves = [f"{line.target.rpartition('.')[2]}{_SPACE}{line.sizes}".rstrip() for line in lines]
        shown = [*leaves[:2], *([f"… {len(leaves) - 2} more"] if len(leaves) > 2 else [])]
        members = [entry for line in lines for entry in line.members]
        rows.append(_Row(f"{head[0]}.", f"{head[1]}.", ", ".join(shown), members, [f"{r}." for r in head[2]]))
    return rows


def _rivals(members: Sequence[Entry]) -> list[str]:
    """Return the options of MEMBERS, the entries of one line of the report, as texts: one for all their first options,
    one for all their second options, and so on, with holes for numbers (`folded`). If the n-th options do not fit one
    pattern, the text is that of the first pattern with " …" at its end. [] if no member has an option.
    """
    texts = []
    for number in range(max(len(e.rivals) for e in members)):
        some = folded([replace(e, expr=e.rivals[number]) for e in members if len(e.rivals) > number])
        texts.append(some[0][1] + (" …" if len(some) > 1 else ""))
    return texts


def _modules(line: _Row) -> tuple[str, str, tuple[str, ...], tuple[str, ...]] | None:
    """Return (module of the target's key, module of the source's key, modules of the options, doubts) of LINE, a row of
    the report, if its expression and all its options are copies of tensors with the same last name as its key
    ("weight"). None for other rows, and for a key outside of all modules. Rows with equal results may become one.
    """
    (own, _, leaf), made = line.target.rpartition("."), [line.made, *line.rivals]
    exprs = [expr for e in line.members for expr in (e.expr, *e.rivals)]
    if not own or any(text.rpartition(".")[2] != leaf for text in made):
        return None
    if any(expr is None or not expr.is_copy for expr in exprs):
        return None
    theirs = [text.rpartition(".")[0] for text in made]
    return own, theirs[0], tuple(theirs[1:]), line.members[0].doubts


def _sizes(members: Sequence[Entry]) -> str:
    sizes = {e.shape for e in members}
    return "x".join(map(str, next(iter(sizes)))) if len(sizes) == 1 else "(several sizes)"


_RIVALS = 3


#: Keys without a source that are named one by one; more of them are folded.
_MOST_NAMES = 60


def _keys_only(entries: Sequence[Entry], one_by_one: bool) -> Iterator[str]:
    """Yield a line with name and sizes for each of ENTRIES; if not ONE_BY_ONE, one for all keys that differ in numbers
    alone and have equal sizes.
    """
    sized = [(e.target, "x".join(map(str, e.shape))) for e in entries]
    rows = sized if one_by_one else [(found.pattern, str(found.signature)) for found in collapse(sized)]
    width = max((len(key) for key, _ in rows), default=0)
    for key, size in rows:
        yield f"    {printable(key, 100):<{min(width, 100)}}   {size}"


#: Layers that are shown before the first that gives something else, and after it.
_BEFORE, _AFTER = 3, 5
#: Columns of the mark and of the differences.
_MARGIN, _NUMBER = 6, 12


def divergence_table(rows: Sequence[MappingOf[str, Any]], width: int) -> Iterator[str]:
    """Yield the lines of a table of the layers around the first that differs (three before, five after), in the order
    of execution; nothing if none differs.

    Args:
        rows: `proof["layers"]`, a dict for each layer: "layer" and "source", its names on both sides (no "source" is
            shown as "-"); "first", whether it is the first that differs; "difference", how much its outputs differ
            relative to the largest of them, None if they have other sizes.
        width: columns to fill. If the names need more, those of each side lose their common beginning, which is printed
            once above the table; if they still need more, they lose their middle. The source's names have a column of
            their own only if one of them is not equal to the model's.

    A line before and one behind the layers that are shown give the largest difference of those that are not.
    """
    first = next((n for n, row in enumerate(rows) if row["first"]), None)
    if first is None:
        return
    start, stop = max(first - _BEFORE, 0), min(first + _AFTER + 1, len(rows))
    shown = rows[start:stop]
    own, theirs = [str(row["layer"]) for row in shown], [str(row["source"] or "-") for row in shown]
    one = own == theirs  # the same names on both sides are said once
    room = width - _MARGIN - _NUMBER
    intro: list[str] = []
    if max(map(len, own)) + (0 if one else 2 + max(map(len, theirs))) > room:
        for side, names in (("", own), *(() if one else ((" of the source", theirs),))):
            below = _shared(names)
            if below:
                intro += [f"layers{side} below {printable(below, max(width - 33, 20))}"]
                names[:] = [name.removeprefix(below) for name in names]
        one = own == theirs
    left = max(len("layer"), *map(len, own))
    right = 0 if one else max(len("in the source"), *map(len, theirs))
    if not one and left + 2 + right > room:
        left = min(left, max(room // 2, room - 2 - right))
    yield ""
    yield from (f"      {line}" for line in intro)
    yield f"      {'differs by':<{_NUMBER}}{'layer':<{left}}{'' if one else '  in the source'}"
    if start:
        yield f"      {_difference(_most(rows[:start])):<{_NUMBER}}… {counted(start, 'layer')} before, at most"
    for row, name, other in zip(shown, own, theirs, strict=True):
        cells = _cut(name, room if one else left).ljust(0 if one else left)
        cells += "" if one else f"  {_cut(other, room - left - 2)}"
        yield f"    {'>' if row['first'] else ' '} {_difference(row['difference']):<{_NUMBER}}{cells}"
    if stop < len(rows):
        yield f"      {_difference(_most(rows[stop:])):<{_NUMBER}}… {counted(len(rows) - stop, 'layer')} after, at most"
    yield "      (> where they part; relative to the layer's largest)"


def _shared(names: Sequence[str]) -> str:
    """Return the path of the innermost module around all layers in NAMES, with a dot at its end; "" if there is none,
    or if NAMES has fewer than two layers ("-" is none).
    """
    paths = [name.split(".")[:-1] for name in names if name != "-"]
    if len(paths) < 2:
        return ""
    same = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))
    return "".join(f"{part}." for part in paths[0][:same])


def _cut(name: str, room: int) -> str:
    """Return NAME, printable; if it is longer than ROOM characters (at least 9), with "…" in place of its middle, so
    that it has as many. The first third of them is from its start, the rest from its end.
    """
    name, room = printable(name, 400), max(room, 9)
    head = (room - 1) // 3
    return name if len(name) <= room else f"{name[:head]}…{name[head + 1 - room :]}"


def _most(rows: Sequence[MappingOf[str, Any]]) -> float | None:
    return max((row["difference"] for row in rows if row["difference"] is not None), default=None)


def _difference(value: float | None) -> str:
    return "other sizes" if value is None else f"{value:.1g}"


__all__ = ["divergence_table", "mapping_page", "mapping_text"]
