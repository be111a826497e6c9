"""What is in a file, as text for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeVar

from ..drawing.screen import ROWS, Block, Part, Several, screen, section
from ..drawing.sizes import count_text, parameters_text, percent, size_text, table
from ..drawing.styles import paint
from ..errors import counted, printable
from ..keys import collapse_modules
from .tensor_reports import TensorReports

if TYPE_CHECKING:
    from .comparing.numbers import Statistics
    from .inspect import Inspection, PackedReport, StateDictReport
    from .tensor_reports import Kind, TensorReport

_T = TypeVar("_T")
Order = Literal["file", "name", "size"]
#: Settings are many; more than these are for -v.
_SETTINGS = 12
#: And so are the keys that can share one tensor.
_TIED = 8


def inspect_text(
    seen: Inspection,
    *,
    everything: bool = False,
    width: int = 120,
    sort: Order = "file",
    depth: int | None = None,
    stats: Sequence[Statistics | None] | None = None,
) -> str:
    """What is in a file, for a person: modules one a line, numbered ones folded, then what else there is.

    Args:
        seen: the report.
        everything: list all modules and all their tensors, however many. Else the text fits on a screen.
        width: columns to fill.
        sort: the order of the lines: as in the file, by name, or by size, the largest first.
        depth: sum up below this number of components of the keys.
        stats: statistics for each tensor, which are then listed one a line.
    """
    parts = _inspection(seen, everything, width, sort, depth, stats)
    return screen(parts, 10**6 if everything else width, everything=everything)


def _inspection(
    seen: Inspection,
    everything: bool,
    width: int,
    sort: Order,
    depth: int | None,
    stats: Sequence[Statistics | None] | None,
) -> Iterator[Part]:
    by = f", saved by {seen.training.framework}" if seen.training.framework else ""
    by += f", written by {seen.framework}" if seen.framework and seen.framework != seen.format else ""
    yield f"{paint(printable(seen.path), 'name')}: {seen.format}, {size_text(seen.bytes)}{by}"
    listed = seen.tensors if isinstance(seen.tensors, TensorReports) else TensorReports.of(seen.tensors)

    def state_dict(one: StateDictReport) -> Block:
        held = listed.in_state_dict(one.path)
        kinds: _Kinds = Counter()
        for kind, count in Counter(held[1]).items():
            kinds[kind.dtype, kind.location, kind.kind] += count
        if depth is not None:
            rows = _subtrees(held, sort, depth)
        else:
            rows = _modules(held, kinds, sort, everything, width)
        shown = table(rows if everything else rows[:ROWS])
        return Block(
            ["", *_state_dict(one, listed.storages_in(one.path), kinds), ""],
            shown,
            noun="more lines",
            more=len(rows) - len(shown),
        )

    yield Several(map(state_dict, seen.state_dicts), len(seen.state_dicts), "state dicts")
    if not seen.state_dicts:
        yield f"  no state dict; {counted(len(seen.tensors), 'tensor')}"
    yield from section("adapter", seen.adapter.lines() if seen.adapter else [])
    yield from section("packed weights", [_packed(one) for one in seen.packed])
    if stats is not None:
        yield from section("values", table(_values(seen.tensors, stats, sort)))
    yield from _training(seen, everything)
    yield from section("tied", [_tied(keys, everything) for keys in seen.ties])
    told = {name for name, _ in seen.training.progress} | {name for name, _, _ in seen.training.state}
    told |= {path.partition("/")[0] for path, _ in seen.training.settings}
    others = [(printable(name, 40), text) for name, text in seen.others if name not in told]
    yield from section("also in the file", table(others))
    objects = [(printable(name, 80), f"{count:,}") for name, count in seen.objects.items()]
    yield from section("objects (shown, never run)", table(objects))
    if seen.unsafe:
        yield ""
        what = f"loading this file with pickle would import or call {counted(len(seen.unsafe), 'name')}"
        yield f"  {paint(what, 'warning')}; ckptool ran nothing"
    devices = [(printable(path, 60) or "the root", printable(text, 40)) for path, text in seen.devices]
    yield from section("device names outside tensors", table(devices))
    yield from section("notes", [printable(line) for line in seen.warnings])
    reasons: dict[str, list[str]] = {}
    for command, why in seen.suggestions:
        reasons.setdefault(why, []).append(command)
    for why, commands in reasons.items():
        yield from section(why, [paint(command, "command") for command in commands])


def overview(seen: Inspection) -> tuple[str, ...]:
    """What is in a file, as a row of a table: its name, size and format, its weights, and what is special."""
    kinds = Counter((t.dtype, t.location, t.kind) for t in seen.tensors)
    weights = counted(len(seen.tensors), "tensor")
    if seen.state_dicts:
        weights += f", {parameters_text(sum(one.parameters for one in seen.state_dicts))}"
    wrappers = dict.fromkeys(name for one in seen.state_dicts for name in one.wrappers)
    odd = [printable(name, 20) for name in wrappers]
    odd += [counted(len(seen.state_dicts), "state dict")] if len(seen.state_dicts) > 1 else []
    odd += [location for location in _summed(kinds, 1) if location not in ("cpu", "")]
    odd += ["adapter"] if seen.adapter else []
    odd += [one.family for one in seen.packed]
    odd += [paint(f"{counted(len(seen.unsafe), 'unsafe name')}", "warning")] if seen.unsafe else []
    types = ", ".join(printable(name, 20) for name, _ in _summed(kinds, 0).most_common(2))
    return paint(printable(seen.path), "name"), size_text(seen.bytes), seen.format, weights, types, ", ".join(odd)


def _packed(one: PackedReport) -> str:
    """A family of packed weights."""
    how = [f"{one.bits} bits"] if one.bits and str(one.bits) not in one.family else []
    how += [f"a scale for {one.shared}"] if one.shared else []
    names = ", ".join(printable(key, 60) for key in one.together[:4]) + (", …" if one.together[4:] else "")
    counts = f"{counted(one.weights, 'weight')} in {counted(one.tensors, 'tensor')}, {size_text(one.bytes)}"
    return f"{', '.join([one.family, *how])}: {counts}; together: {names}"


def _tied(keys: Sequence[str], everything: bool) -> str:
    """Keys whose tensors are one."""
    names = [printable(key, 60) for key in (keys if everything else keys[:_TIED])]
    return " = ".join(names) + (f" = … and {len(keys) - len(names):,} more" if len(keys) > len(names) else "")


def _training(seen: Inspection, everything: bool) -> Iterator[Part]:
    """How far training was, what it left, and its settings."""
    found = seen.training
    yield from section("training", table([*found.progress]))
    states = [(printable(name, 40), size_text(size), words) for name, words, size in found.state]
    yield from section("training state", table(states))
    shown = found.settings if everything else found.settings[:_SETTINGS]
    lines = table([(printable(path, 60), value) for path, value in shown])
    yield from section("settings", lines, more=len(found.settings) - len(shown))
    if seen.stored > seen.used:
        spare = seen.stored - seen.used
        yield ""
        yield f"  {size_text(spare)} of the {size_text(seen.stored)} stored are not used by any tensor"
    if seen.slim and seen.slim * 10 > seen.stored:
        yield ""
        share = percent(seen.slim, seen.stored)
        yield f"  keeping only the weights would save {size_text(seen.slim)}, {share} of the stored data (ckptool slim)"


#: The keys of the tensors of a state dict, and what kind each is.
_Held = tuple[list[str], list["Kind"]]
#: How many tensors there are of each (dtype, location, kind).
_Kinds = Counter[tuple[str, str, str]]


def _summed(kinds: _Kinds, part: int) -> Counter[str]:
    """How many tensors there are of each dtype (PART 0), location (1) or kind (2)."""
    found: Counter[str] = Counter()
    for kind, count in kinds.items():
        found[kind[part]] += count
    return found


def _state_dict(one: StateDictReport, stored: tuple[int, int], kinds: _Kinds) -> Iterator[str]:
    place = f"at {printable(one.path)}" if one.path else "at the root"
    place += f", recovered from a module of class {printable(one.model, 80)}" if one.model else ""
    size = f"{parameters_text(one.parameters)}, {size_text(one.bytes)}"
    yield f"  {paint(f'state dict {place}:', 'heading')} {counted(one.keys, 'key')}, {size}"
    facts = [_histogram(_summed(kinds, 0)), _histogram(_summed(kinds, 1))]
    if stored[1] < stored[0]:
        facts.append(f"{counted(stored[0], 'tensor')} in {counted(stored[1], 'storage')}")
    facts += [f"{count:,} {kind}" for kind, count in _summed(kinds, 2).items() if kind != "dense"]
    facts += [f"{name} in {counted(count, 'key')}" for name, count in one.wrappers.items()]
    yield "    " + "; ".join(fact for fact in facts if fact)


def _subtrees(tensors: _Held, sort: Order, depth: int) -> list[tuple[str, ...]]:
    """A row for all that has the same first components of its keys."""
    sums: dict[str, list[int]] = {}
    for key, t in zip(*tensors, strict=True):
        head = ".".join(key.split(".")[:depth])
        found = sums.setdefault(head, [0, 0, 0])
        numel = 1
        for n in t.shape:
            numel *= n
        for place, number in enumerate((1, numel, t.bytes)):
            found[place] += number
    rows = [
        (
            printable(head, 80) or ('""' if depth else "(all)"),
            counted(count, "tensor"),
            f"{count_text(numel)} parameter{'' if numel == 1 else 's'}",
            size_text(size),
            size,
        )
        for head, (count, numel, size) in sums.items()
    ]
    return [row[:4] for row in _sorted([(row[0], row[4], row) for row in rows], sort)]


def _sorted(rows: Sequence[tuple[str, int, _T]], sort: Order) -> list[_T]:
    """Rows of (name, size, row) in the order that was asked for."""
    if sort == "name":
        rows = sorted(rows, key=lambda row: row[0])
    elif sort == "size":
        rows = sorted(rows, key=lambda row: -row[1])
    return [row for _, _, row in rows]


def _values(tensors: Sequence[TensorReport], stats: Sequence[Statistics | None], sort: Order) -> list[tuple[str, ...]]:
    rows = []
    for t, found in zip(tensors, stats, strict=True):
        name = printable(t.path if t.key is None else t.key, 60)
        if found is None:
            rows.append((name, t.bytes, (name, str(t.shape), "not computed", "", "")))
            continue
        odd = [counted(found.zeros, "zero")] if found.zeros else []
        odd += [paint(f"{found.nan:,} NaN", "bad")] if found.nan else []
        odd += [paint(f"{found.infinite:,} infinite", "bad")] if found.infinite else []
        finite = found.elements > found.nan + found.infinite
        span = f"{found.min:.4g} to {found.max:.4g}" if finite else "no finite value" if found.elements else "no values"
        around = f"mean {found.mean:.4g}, std {found.std:.4g}" if finite else ""
        rows.append((name, t.bytes, (name, str(t.shape), span, around, ", ".join(odd))))
    return _sorted(rows, sort)


def _modules(tensors: _Held, kinds: _Kinds, sort: Order, everything: bool, width: int) -> list[tuple[str, ...]]:
    """A row for each module, or for each run of modules that differ in a number only, not wider than WIDTH."""
    usual = tuple(found[0][0] if (found := _summed(kinds, part).most_common(1)) else "" for part in (0, 1))
    width = 10**6 if everything else width - 4
    folded: list[tuple[str, int, tuple[str, str, list[str]]]] = []
    keys, of_tensors = tensors
    slashed = any("/" in key for key in keys) and not any("." in key for key in keys)  # as JAX and TensorFlow have it
    keys = [_SLASH.sub(".", key) for key in keys] if slashed else keys
    shapes = {kind: _shape(kind, usual, everything) for kind in set(of_tensors)}  # the same of kinds that look alike
    each = {(shape, kind.bytes) for kind, shape in shapes.items()}
    told = dict(each) if len(each) == len(set(shapes.values())) else {}  # bytes by shape, if those tell; else by key
    by_key = {} if told else dict(zip(keys, map(attrgetter("bytes"), of_tensors), strict=True))

    def shown(name: str, limit: int) -> str:
        return printable(_DOT.sub("/", name) if slashed else name, limit)

    for group in collapse_modules(keys, list(map(shapes.__getitem__, of_tensors))):
        name = shown(group.pattern, 80) + (f"  x{group.count:,}" if group.count > 1 else "")
        one = sum(told[shape] for _, shape in group.leaves) if told else 0
        size = group.count * one if told else sum(map(by_key.__getitem__, group.keys))
        texts = [f"{shown(leaf, 40)} {shape}" for leaf, shape in group.leaves]
        folded.append((name, size, (name or "(top level)", size_text(size), texts)))
    rows = _sorted(folded, sort)
    room = width - sum(max((len(row[i]) for row in rows), default=0) + 2 for i in (0, 1))
    return [(name, size, _fitting(texts, room)) for name, size, texts in rows]


#: A slash between components, the second of two, and a dot that took its place: none of a range of numbers (`{0..3}`).
_SLASH, _DOT = re.compile(r"/(?!/)"), re.compile(r"(?<!\.)\.(?!\.)")


def _shape(t: Kind, usual: Sequence[str], everything: bool) -> str:
    """The shape of a tensor with what is not as in most. USUAL are the dtype and the location of most."""
    unusual = [x for x, common in zip((t.dtype, printable(t.location, 20)), usual, strict=True) if x != common]
    unusual += [t.kind] if t.kind != "dense" else []
    axes = [t.role.axes] if everything and t.role is not None and t.role.axes else []
    return " ".join([str(t.shape), *axes, *unusual])


def _fitting(texts: list[str], room: int) -> str:
    """TEXTS side by side, as many as there is ROOM for, and how many more there are."""
    line = texts[0]
    for index, text in enumerate(texts[1:], start=1):
        left = len(texts) - index
        more = f"  … {left:,} more"
        if len(line) + 2 + len(text) + (len(more) if left > 1 else 0) > room:
            # only the first text can leave no room for the words: it is shown whatever its length is
            return line + (more if len(line) + len(more) <= room else f"  +{left:,}")
        line += f"  {text}"
    return line


def _histogram(counted: Counter[str]) -> str:
    if len(counted) == 1:
        return printable(next(iter(counted)), 40)
    return ", ".join(f"{printable(name, 40)} x{count:,}" for name, count in counted.most_common(6))
