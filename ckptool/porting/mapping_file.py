"""Mapping files: a port as YAML, which a person can read, edit, keep and apply again.

    ckptool-mapping: 1
    source: vgg19.pth
    target: Net
    doubts:
      # 2 tensors of the source fit as well
      head.weight: guess(classifier.6.weight)
      # head.weight: classifier.3.weight
    mapping:
      blocks.{0..11}.attn.qkv.weight: cat(0, layers.{}.q.weight, layers.{}.k.weight, layers.{}.v.weight)
    left: [pooler.weight, pooler.bias]

A line with ranges is a line for each of their numbers. `{}` on the right is the number on the left; `{1}`, `{2}` if
there are several. If a key has several lines, the last one counts, and one under `doubts` before one under `mapping`:
to settle a doubt, uncomment another option, or remove `guess( )`. Keys under `left` keep the model's own values. A
brace inside of a key is doubled.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..disk.documents import LARGEST_LIST, check_size, quoted, read_yaml
from ..disk.files import StrPath
from ..disk.targets import write_side_output
from ..errors import Malformed, RuleError, counted, in_words, printable
from ..keys import collapse, unwrap
from ..keys.known_buffers import Holds, holds, is_counter
from ..model_code.signature import Signature
from . import expression as ex
from . import ranges
from .expression import Expr, Shape
from .forms.pieces import substituted
from .mapping import Entry, Mapping
from .questions import Reason, ask
from .ranges import Line

_VERSION = 1


def text_of(mapping: Mapping) -> str:
    """Return MAPPING as the text of a mapping file: its source, target and `at` (each if it has one), guesses under
    `doubts`, mapped keys under `mapping`, and unmapped keys under `left`. Equal blocks share a line (`folded`). Keys
    without an expression that need no source are left out, and so are the sections `doubts` and `left` if they are
    empty.

    A guess is written as `guess(EXPRESSION)`, with its doubts in a comment before it and its options in comments behind
    it. Guesses with equal doubts are together.
    """
    lines = [f"ckptool-mapping: {_VERSION}"]
    lines += [
        f"{name}: {quoted(value)}" for name, value in (("source", mapping.source), ("target", mapping.target)) if value
    ]
    if mapping.at:
        lines.append(f"at: {quoted(mapping.at)}")
    guessed = mapping.having("guessed")
    if guessed:
        lines += ["doubts:", *(f"  # {line}" for line in _HOW_TO_SETTLE), *_doubts(guessed)]
    lines.append("mapping:")
    sure = [e for e in mapping.entries if e.status == "mapped" and e.expr is not None]
    lines += [f"  {_yaml_key(pattern)}: {_yaml_value(made)}" for pattern, made, _ in folded(sure)]
    left = [e.target for e in mapping.entries if e.status == "unmapped"]
    if left:
        lines.append("left:")
        lines += [f"  - {_yaml_key(c.pattern)}" for c in collapse([(_with_braces(key), None) for key in left])]
    return "\n".join(lines) + "\n"


_HOW_TO_SETTLE = (
    "Take guess( ) away where the guess is right, or uncomment a rival below it; then give this file to",
    "`ckptool transfer SRC MODEL.py --mapping`.",
)


def _doubts(guessed: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines under `doubts:` for GUESSED entries: each doubt once as a comment, then for its entries, with
    equal blocks in one line, `KEY: guess(EXPRESSION)` and the options as comments, ready to be uncommented.
    """
    said: str | None = None
    by_text: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in guessed:
        by_text[entry.doubts].append(entry)
    for doubts, entries in by_text.items():
        text = "; ".join(doubts)
        if text != said:
            yield f"  # {printable(text, 1000)}"
            said = text
        for pattern, made, members in folded(entries):
            yield f"  {_yaml_key(pattern)}: {_yaml_value(f'guess({made})')}"
            for number in range(max(len(e.rivals) for e in members)):
                rivals = [replace(e, expr=e.rivals[number]) for e in members if len(e.rivals) > number]
                for rival_pattern, rival, _ in folded(rivals):
                    yield f"  # {_yaml_key(rival_pattern)}: {_yaml_value(rival)}"


def _yaml_key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.\-{},/]*", text) else quoted(text)


def _yaml_value(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.\-(), {}]*", text) and not text.endswith(" ") else quoted(text)


def folded(entries: Sequence[Entry]) -> list[tuple[str, str, list[Entry]]]:
    """Return ENTRIES, all of which have an expression, as lines of a mapping file: (pattern of target keys, text of the
    expression with holes for their numbers, the entries of the line), in the order of the first entry of each line. For
    `a.0.w` made of `b.0.w` and `a.1.w` made of `b.1.w`: [("a.{0..1}.w", "b.{}.w", [both entries])]. An entry that
    shares no line has a line of its own. Only keys and expressions decide which entries share a line, not sizes, doubts
    or evidence. If the pattern has several ranges, the holes are `{1}`, `{2}` ….
    """
    groups: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[_shape_of_key(entry)].append(entry)
    templates: dict[str, str] = {}
    for members in groups.values():
        templates.update(_templates(members))
    by_target = {_with_braces(e.target): e for e in entries}
    lines = []
    for found in collapse([(target, templates[e.target]) for target, e in by_target.items()]):
        numbers = [c for c in found.pattern.split(".") if _is_number(c) or _is_range(c)]
        ranged = [i for i, c in enumerate(numbers, 1) if _is_range(c)]
        text = str(found.signature)
        for i, component in enumerate(numbers, 1):
            hole = component if i not in ranged else "{}" if len(ranged) == 1 else f"{{{ranged.index(i) + 1}}}"
            text = re.sub(rf"(?<!\{{)\{{#{i}\}}", hole, text)
        lines.append((found.pattern, text, [by_target[key] for key in found.keys]))
    return lines


def _shape_of_key(entry: Entry) -> tuple[str, ...]:
    """Return the target and the source keys of ENTRY with `#` in place of each component that is a number. Entries with
    equal results may share a line.
    """
    keys = [entry.target, *entry.sources]
    return tuple(".".join("#" if _is_number(c) else c for c in key.split(".")) for key in keys)


def _templates(members: Sequence[Entry]) -> dict[str, str]:
    """Return target -> the text of its expression, with holes for numbers that it has in common with the target, for
    MEMBERS: entries with expressions that are equal by `_shape_of_key`. `a.0.w` made of `b.0.w` and `a.1.w` made of
    `b.1.w` both have the text `b.{#1}.w`.

    A component of a source key that is a number becomes `{#i}` if in all members it equals the i-th number, from 1,
    among the components of the target, and not all members have the same number there. If several i fit, it is the
    first that no earlier component of the source key has, or else the first. Numbers inside a component (`conv1`)
    neither count nor change. If members read different counts of keys, all texts are without holes.
    """
    numbers = [[c for c in e.target.split(".") if _is_number(c)] for e in members]
    keys = [e.expr.keys() for e in members if e.expr is not None]
    count = len(keys[0]) if keys else 0
    if any(len(k) != count for k in keys):
        return {e.target: _text(e.expr, {}) for e in members if e.expr is not None}
    holes: list[dict[int, int]] = []  # for each key: place of a component -> number of the target
    for place in range(count):
        split = [k[place].split(".") for k in keys]
        found: dict[int, int] = {}
        for at in range(len(split[0])):
            if any(at >= len(s) or not _is_number(s[at]) for s in split):
                continue
            fitting = [
                i for i in range(len(numbers[0])) if all(s[at] == n[i] for s, n in zip(split, numbers, strict=True))
            ]
            if fitting and len({s[at] for s in split}) > 1:
                taken = set(found.values())
                found[at] = next((i for i in fitting if i not in taken), fitting[0])
        holes.append(found)
    out = {}
    for entry, own in zip(members, keys, strict=True):
        names = {}
        for place, key in enumerate(own):
            parts = _with_braces(key).split(".")
            for at, i in holes[place].items():
                parts[at] = f"{{#{i + 1}}}"
            names[key] = ".".join(parts)
        assert entry.expr is not None
        out[entry.target] = _text(entry.expr, names)
    return out


def _text(expr: Expr, names: dict[str, str]) -> str:
    """Return the text of EXPR with NAMES (key -> name, which may have holes) in place of its keys; keys that are not in
    NAMES stay, with doubled braces. A name is in quotes if its key has characters other than letters, digits, `_`, `.`,
    `-` and `/`.
    """

    def written(key: str) -> str:
        name = names.get(key) or _with_braces(key)
        return name if re.fullmatch(r"[\w.\-/]+", key) else json.dumps(name, ensure_ascii=False)

    return expr.written(written)


def _with_braces(key: str) -> str:
    """Return KEY with its own braces doubled, because single braces are ranges and holes."""
    return key.replace("{", "{{").replace("}", "}}")


def _is_range(component: str) -> bool:
    """Return whether COMPONENT is a range of several numbers (`{0..3}`, `{1,4}`), made by `collapse`, and not a doubled
    brace of a key.
    """
    return component.startswith("{") and not component.startswith("{{")


def _is_number(component: str) -> bool:
    """Return whether COMPONENT is a number of a list: ASCII digits without a leading zero, fewer than ten of them."""
    return (
        component.isascii()
        and component.isdecimal()
        and (component == "0" or component[0] != "0")
        and len(component) < 10
    )


# ------------------------------------------------------------------------------------------------------ reading


def save(mapping: Mapping, path: StrPath, *, overwrite: bool = False) -> None:
    """Write MAPPING to the mapping file PATH, whole or not at all. A file at PATH that already holds the same text is
    left as it is; one with another text is replaced only with OVERWRITE.

    Raises:
        RuleError: the file could not be read again: it is too large, or has a name that is not text.
        OutputExists: another file is there, and OVERWRITE is false or that is no mapping file.
        Unwritable: the file cannot be written there.
    """
    text = text_of(mapping)
    check_size(text, path, largest=LARGEST_LIST)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if Path(path).read_text(encoding="utf-8") == text:
            return
    write_side_output("mapping", path, text, overwrite=overwrite)


def read(path: StrPath) -> Mapping:
    """Return the mapping for one model in the file PATH. It holds no shapes; `for_target` adds those of a model.

    Raises:
        Unreadable: there is no such file, or it is not text.
        Malformed: it is not a mapping file of this version, or a line of it is wrong; then the message names the line,
            by number and, if it can be read, by key.
    """
    return mapping_of(document_of(path), path)


def document_of(path: StrPath) -> dict[str, Any]:
    """Return the sections of the mapping file PATH: name -> contents, in which all values are texts, and lists and
    dicts of them.

    Raises:
        Unreadable: there is no such file, or it is not text.
        Malformed: it is no YAML, or not a mapping file of this version.
    """
    document = read_yaml(
        path, Malformed, largest=LARGEST_LIST, texts=True
    )  # texts only: a layer may be called `no` or `on`
    if not isinstance(document, dict) or "ckptool-mapping" not in document:
        raise Malformed("is not a mapping file", where=path, hint="ckptool transfer SRC MODEL.py --save-mapping m.yaml")
    version = _text_at(document, "ckptool-mapping", path)
    if version != str(_VERSION):
        raise Malformed(f"is a mapping file of version {printable(version or '')}", where=path)
    return document


def mapping_of(document: dict[str, Any], path: StrPath) -> Mapping:
    """Return the mapping for one model in DOCUMENT, the sections of the file PATH (used in messages). Its entries have
    no sizes; `for_target` adds those of a model.

    If a key has several lines, the last one counts, and one under `doubts` before one under `mapping`. A key under
    `left` gets an unmapped entry, unless it has a line in another section. An expression in `guess( )` makes a guess
    with the question CALLED_A_GUESS, without options; other expressions make mapped entries.

    Raises:
        Malformed: as `read`.
    """
    named = [_text_at(document, name, path) for name in ("source", "target", "at")]
    entries: dict[str, Entry] = {}
    for line in ranges.within_limits(_lines(document, path), path):
        for entry in _entries(line, path):
            if entry.status == "unmapped":
                entries.setdefault(entry.target, entry)
            else:
                entries[entry.target] = entry
    return Mapping(tuple(entries.values()), (), {}, named[0] or "", named[1] or "", at=named[2])


def _text_at(document: dict[str, Any], name: str, path: StrPath) -> str | None:
    """Return the text of DOCUMENT under NAME; None if it has none. Raises Malformed if it is something else."""
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise Malformed(f"{name!r} holds {in_words(value)}, not a text", where=path)
    return value


def _lines(document: dict[str, Any], path: StrPath) -> Iterator[Line]:
    """Yield the lines of `mapping`, `doubts` and `left`, in this order; those of `left` have no expression. Raises
    Malformed, with the line number, if a section or a value is of another kind.
    """
    for section in ("mapping", "doubts"):
        lines = document.get(section) or {}
        if not isinstance(lines, dict):
            raise Malformed(f"{section!r} holds no lines KEY: EXPRESSION", where=path)
        for pattern, value in lines.items():
            if not isinstance(value, str):
                place = ranges.place_of(ranges.number_of(pattern))
                what = f"{place}{printable(pattern)}: {in_words(value)} is not an expression"
                raise Malformed(what, where=path, hint="put an expression that begins with [ or { in quotes")
            yield ranges.line(pattern, value, path)
    left = document.get("left") or []
    if not isinstance(left, list):
        raise Malformed("'left' holds no list of keys", where=path)
    for pattern in left:
        if not isinstance(pattern, str):
            raise Malformed(f"'left' holds {in_words(pattern)}, which is not a key", where=path)
        yield ranges.line(pattern, None, path)


def _entries(line: Line, path: StrPath) -> Iterator[Entry]:
    """Yield an entry for each key that LINE stands for. Under `left` it has no expression and a question; with `guess(
    )` it has a question, too, so that it stays a guess. Raises Malformed, with the line number, if the expression
    cannot be read.
    """
    for key, text in ranges.written_out(line, path):
        if text is None:
            yield Entry(key, (), line=line.number).asking(ask(Reason.LEFT_BY_FILE))
            continue
        guess = re.fullmatch(r"guess\((.*)\)", text, re.DOTALL)
        try:
            expr = ex.parse(guess[1] if guess else text)
        except RuleError as error:
            what = f"{printable(key)}: {error.what}"
            raise line.malformed(what, path, evidence=error.evidence, hint=error.hint) from None
        if guess:
            yield Entry(key, (), expr, "the mapping file", line=line.number).asking(ask(Reason.CALLED_A_GUESS))
        else:
            yield Entry(key, (), expr, "the mapping file", line=line.number)


#: Where the operations are listed, for what reads well and does not fit.
_HOW_WRITTEN = "`ckptool inspect FILE -v` shows the shapes; docs/transfer.md, Operations, says what each takes"


def for_target(mapping: Mapping, target: Signature, shapes: dict[str, Shape]) -> Mapping:
    """Return MAPPING for the model TARGET and a source of SHAPES (key -> sizes): with the model's sizes, types, name
    and metadata, and with an entry for each key of the model in its order. Expressions, questions and evidence of its
    entries are kept.

    A key without an entry in the mapping, or with an entry that needs no source (`Entry.default`), needs no source if
    it is a counter, or a buffer that holds no statistics; else it is unmapped. A key whose entry has no expression for
    another reason (in a file: a key under `left`) is always unmapped. If SHAPES lacks a key that an expression reads,
    the sizes that this expression gives are not compared with the model's. If the source has the keys that the mapping
    reads only with or without a wrapper, they are renamed (`fitted`). Keys of SHAPES that no entry reads are its unused
    keys.

    Raises:
        RuleError: the mapping names keys that the model does not have, or an expression cannot be applied to these
            sizes or gives another shape than the model's.
    """
    mapping = fitted(mapping, shapes)
    known = {e.target: e for e in mapping.entries}
    strangers = [key for key in known if key not in target.entries]
    if strangers:
        raise RuleError(
            f"the mapping names {counted(len(strangers), 'key')} that {printable(target.name)} does not have",
            where=mapping.source or "--mapping",
            evidence=[printable(key, 100) for key in strangers[:5]],
            hint="is it for another model, or should it be used with --invert?",
        )
    entries = []
    for wanted in target.entries.values():
        blank = Entry(wanted.key, wanted.shape, dtype=wanted.dtype, parameter=wanted.parameter)
        found = known.get(wanted.key)
        if found is not None and found.expr is not None:
            if all(key in shapes for key in found.expr.keys()):  # noqa: SIM118
                try:
                    gives = ex.shape_of(found.expr, shapes)
                except RuleError as error:
                    what = f"{ranges.place_of(found.line)}{printable(wanted.key)}: {error.what}"
                    raise RuleError(what, where="--mapping", hint=_HOW_WRITTEN) from None
                if gives != wanted.shape:
                    said = f"{printable(str(found.expr))} gives {list(gives)}"
                    what = f"{ranges.place_of(found.line)}{printable(wanted.key)} wants {list(wanted.shape)}; {said}"
                    raise RuleError(what, where="--mapping", hint=_HOW_WRITTEN)
            entries.append(replace(found, shape=wanted.shape, dtype=wanted.dtype, parameter=wanted.parameter))
        elif (found is None or found.default) and (
            is_counter(wanted.key) or (wanted.parameter is False and holds(wanted.key) is not Holds.STATISTIC)
        ):
            entries.append(replace(blank, default=True, evidence="computed by the model itself"))
        else:
            entries.append((found and replace(blank, questions=found.questions)) or blank)
    made = replace(mapping, target=target.name, source_shapes=shapes, metadata=target.metadata)
    return made.with_entries(entries)


def fitted(mapping: Mapping, keys: Iterable[str]) -> Mapping:
    """Return MAPPING with the source keys in its expressions renamed to those of KEYS, the keys of a source, if they
    differ only in components of wrappers (`module.a.w` and `a.w`). Its unused keys are then found anew among the keys
    of its `source_shapes`.

    MAPPING is returned as it is if KEYS has all keys that it reads, if KEYS lacks one of them even without wrappers, or
    if two of KEYS differ only in such components.
    """
    there = set(keys)
    own = list(dict.fromkeys(key for entry in mapping.entries for key in entry.sources))
    if there.issuperset(own):
        return mapping
    plain = {name: key for key, name in unwrap(keys).items()}
    found = {key: plain.get(name) for key, name in unwrap(own).items()}
    exprs = {key: ex.of(name) for key, name in found.items() if name is not None}
    if len(exprs) < len(own) or len(plain) < len(there):
        return mapping
    return mapping.with_entries(
        [e if e.expr is None else replace(e, expr=substituted(e.expr, exprs)) for e in mapping.entries]
    )


def invert(mapping: Mapping, shapes: dict[str, Shape]) -> Mapping:
    """Return the inverse of MAPPING: a mapping with an entry for each source key that MAPPING reads, made of its target
    keys, and with the names of source and target exchanged. SHAPES has the sizes of these source keys; their names
    there may differ by the components of a wrapper (`fitted`). Entries of MAPPING without an expression are left out,
    and its questions, notes and `at` are not kept: all entries are mapped.

    If several entries of MAPPING read a key, the parts of the key in them are joined. If one of them has the whole key,
    the first such one is taken alone, even if others lose values.

    Raises:
        RuleError: a key cannot be made whole, since values are lost; an expression cannot be applied to its keys; or
            SHAPES lacks a key. The message names the keys.
    """
    mapping = fitted(mapping, shapes)
    pieces: dict[str, list[tuple[Expr, Expr]]] = defaultdict(list)
    lost: list[str] = []
    read = dict.fromkeys(key for entry in mapping.entries for key in entry.sources)
    absent = [key for key in read if key not in shapes]
    if absent:
        raise RuleError(
            f"the model does not have {counted(len(absent), 'key')} of the {len(read):,} that the mapping takes",
            where="--invert",
            evidence=[printable(key, 100) for key in absent[:5]],
            hint="with --invert, the model is the one that the mapping takes from, and the file holds what it gives",
        )
    for entry in mapping.entries:
        if entry.expr is None:
            continue
        try:
            ex.shape_of(entry.expr, shapes)
        except RuleError as error:
            what = f"{ranges.place_of(entry.line)}{printable(entry.target)}: {error.what}"
            raise RuleError(what, where="--invert", hint=_HOW_WRITTEN) from None
        back = ex.inverted(entry.target, entry.expr, shapes)
        if back is None:
            lost += entry.sources
            continue
        for key, found in back.items():
            pieces[key] += found
    entries = []
    for key, found in pieces.items():
        expr = ex.reassembled(found, shapes[key])
        if expr is None:
            lost.append(key)
        else:
            entries.append(Entry(key, shapes[key], expr, "the mapping, inverted"))
    found_again = {e.target for e in entries}
    lost = [key for key in dict.fromkeys(lost) if key not in found_again]
    if lost:
        raise RuleError(
            f"the mapping cannot be inverted for {counted(len(lost), 'key')}: values are lost on the way",
            where="--invert",
            evidence=[printable(key, 100) for key in lost[:5]],
        )
    return Mapping(tuple(entries), (), {}, mapping.target, mapping.source)
