"""Explain how one key was matched: its operations, the rules that told it apart, its questions, and what decided."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..errors import NotFound, counted, printable
from ..keys import closest
from .expression import OPERATIONS, Expr
from .mapping import Entry, Mapping
from .matching.evidence import Told
from .tables import rule

#: So many tensors of equal sizes are named.
_SEVERAL = 5


def explained(mapping: Mapping, key: str, width: int = 100) -> str:
    """Return how KEY, of the model or of the file, was matched, as text with lines of WIDTH columns (words are not
    broken). If both have the key, the text about the model's key comes first, then that about the file's. The former
    has the expression, how each part was matched, the questions and what decided; for a key without a source, the
    tensors of the file that have its sizes. The latter says which keys of the model read it, and which have it as an
    option, or, if there are neither, which have its sizes. At most five of each are named.

    Raises:
        NotFound: neither the model nor the file has the key.
    """
    own = [entry for entry in mapping.entries if entry.target == key]
    if not own and key not in mapping.source_shapes:
        known = [*(entry.target for entry in mapping.entries), *mapping.source_shapes]
        near = closest(key, known)
        raise NotFound(
            f"neither {printable(mapping.target) or 'the model'} nor the file has a key {printable(key)!r}",
            evidence=[f"did you mean: {', '.join(map(printable, near))}"] if near else [],
        )
    lines: list[str] = []
    for entry in own:
        lines += _of_target(mapping, entry, width)
    if key in mapping.source_shapes:
        lines += ["", *_of_source(mapping, key, width)] if own else _of_source(mapping, key, width)
    return "\n".join(lines)


def rows_of(entry: Entry) -> list[tuple[str, str]]:
    """Return how ENTRY was matched as rows (label, text), each row once, for the web page: the operations of its
    expression ("operation"); for each part of it, the steps ("in the file", "in the model"), the rules that told it
    from its look-alikes ("told apart"), and the rule that supports a pair made by its shape ("supported"); at the end,
    its answered questions ("answered"). Steps of the file are left out if the expression reads no tensor of the file
    (`zeros`, or no expression), and so are open questions. [] if there is nothing to say.
    """
    rows: list[tuple[str, str]] = []
    rows += [("operation", text) for text in _operations(entry.expr)]
    for part in entry.way:
        of_file = part.source_steps if _reads_the_file(entry.expr) else ()
        for label, steps in (("in the file", of_file), ("in the model", part.target_steps)):
            rows += [(label, _says(name)) for name in steps]
        rows += [("told apart", _told(one)) for one in part.told]
        rows += [("supported", _says(part.support))] if part.support else []
    rows += [("answered", f"{question}: {question.answer}") for question in entry.questions if not question.is_open]
    return list(dict.fromkeys(rows))


def _of_target(mapping: Mapping, entry: Entry, width: int) -> Iterator[str]:
    """Yield the lines about ENTRY, a key of the model: its sizes; its expression and what each operation does; for each
    part of its `way`, the steps on both sides, what told it from its look-alikes, and what supports a pair that its
    shape made; its questions; tensors of its sizes if it has no source; and what decided.
    """
    sizes = "x".join(map(str, entry.shape)) or "one value"
    yield f"{printable(entry.target, 200)} ({sizes}) of {printable(mapping.target, 60) or 'the model'}"
    if entry.expr is not None:
        yield from _indented(f"is made of {printable(str(entry.expr), 400)}", width)
        for text in _operations(entry.expr):
            yield from _item(text, width)
    elif entry.default:
        yield "  needs no source"
    else:
        yield "  has no source; the model's own value stays"
    several = len(entry.way) > 1
    for part in entry.way:
        if several:
            yield ""
            yield f"  part {printable(part.target, 100)} <- {printable(part.source, 100)}"
        yield from _steps("in the file", part.source_steps if _reads_the_file(entry.expr) else (), width)
        yield from _steps("in the model", part.target_steps, width)
        if part.told:
            yield "  what told it from its look-alikes:"
            for one in part.told:
                yield from _item(_told(one), width)
        if part.support:
            yield "  its shape made the pair; what supports it:"
            yield from _item(_says(part.support), width)
    yield from _asked(entry, width)
    yield from _alike(mapping, entry, width)
    yield "  what decided:"
    yield from _item(_decision(entry), width)


def _operations(expr: Expr | None) -> list[str]:
    """Return for each operation of EXPR how it is written and what it does ("USAGE: SUMMARY"), inner ones first, each
    once; [] for a copy and for None.
    """
    found = [] if expr is None or expr.is_copy else dict.fromkeys(expr.operations())
    return [f"{OPERATIONS[name].usage}: {OPERATIONS[name].summary}" for name in found]


def _reads_the_file(expr: Expr | None) -> bool:
    """Return whether a tensor of the file is in EXPR. Zeros, for one, were never in any form that the file has."""
    return expr is not None and bool(list(expr.keys()))


def _of_source(mapping: Mapping, key: str, width: int) -> Iterator[str]:
    """Yield the lines about KEY of the file: its sizes; the keys of the model that read it, or that none does; and the
    keys that have it as an option. If there are neither, the keys of the model that have its sizes and what they are
    made of. Each list ends after five.
    """
    sizes = "x".join(map(str, mapping.source_shapes[key])) or "one value"
    yield f"{printable(key, 200)} ({sizes}) of {printable(mapping.source, 60) or 'the file'}"
    readers = [entry for entry in mapping.entries if key in entry.sources]
    options = [entry for entry in mapping.entries if any(key in option.keys() for option in entry.rivals)]  # noqa: SIM118
    if readers:
        yield f"  is read by {counted(len(readers), 'key')} of the model:"
        for entry in readers[:_SEVERAL]:
            yield from _item(f"{printable(entry.target)} <- {printable(str(entry.expr), 300)} ({entry.status})", width)
    else:
        yield "  is not read by any key of the model"
    if options:
        yield f"  is an option for {counted(len(options), 'key')}, about which something is open:"
        for entry in options[:_SEVERAL]:
            yield from _item(f"{printable(entry.target)}: {'; '.join(entry.doubts)}", width)
    if not readers and not options:
        same = [entry for entry in mapping.entries if entry.shape == mapping.source_shapes[key]]
        if not same:
            yield "  no key of the model has its sizes"
        for entry in same[:_SEVERAL]:
            made = printable(str(entry.expr), 200) if entry.expr is not None else "nothing"
            yield from _item(f"{printable(entry.target)}, of these sizes, is made of {made}", width)


def _steps(where: str, names: Sequence[str], width: int) -> Iterator[str]:
    """Yield the heading WHERE and a line for each of NAMES, the rules of steps towards the common form; nothing if
    there are none.
    """
    if names:
        yield f"  {where}:"
    for name in names:
        yield from _item(_says(name), width)


def _asked(entry: Entry, width: int) -> Iterator[str]:
    """Yield each question of ENTRY, with its answer or, if it is open, with the options other than the expression.
    Nothing for an entry without a question or without an expression.
    """
    if entry.questions and entry.expr is not None:
        yield "  what was asked:"
        for question in entry.questions:
            yield from _item(f"{question}{'' if question.is_open else f' (answered: {question.answer})'}", width)
            for option in question.options if question.is_open else ():
                if option != entry.expr:
                    yield from _item(f"option: {printable(str(option), 300)}", width, 6)


def _alike(mapping: Mapping, entry: Entry, width: int) -> Iterator[str]:
    """Yield lines of text about ENTRY of MAPPING if it has no expression and needs one (not `Entry.default`): how many
    tensors of the source have just its sizes, and for each of the first five, which key of the target reads it (the
    last of several), or that nothing does; or one line that no tensor has its sizes. Nothing for other entries. Lines
    about a tensor are broken at WIDTH columns.
    """
    if entry.expr is not None or entry.default:
        return
    goes = {key: one.target for one in mapping.entries for key in one.sources}
    same = [key for key, shape in mapping.source_shapes.items() if shape == entry.shape]
    if same:
        yield f"  the file has {counted(len(same), 'tensor')} of its sizes:"
        for key in same[:_SEVERAL]:
            yield from _item(f"{printable(key)}, which {_goes(goes.get(key))}", width)
    else:
        yield "  no tensor of the file has its sizes"


def _goes(target: str | None) -> str:
    return "nothing reads" if target is None else f"goes to {printable(target)}"


def _told(told: Told) -> str:
    """Return the sentence of the rule that TOLD names (else its evidence), and which look-alikes the rule ruled out:
    those named in `against`, and how many more.
    """
    text = _says(told.rule) or told.evidence
    if told.against:
        more = told.among - told.left - len(told.against)
        others = ", ".join(printable(name, 80) for name in told.against) + (f" and {more:,} more" if more > 0 else "")
        text += f" So it is not {others}."
    return text


def _says(name: str) -> str:
    """Return the sentence of the rule NAME, with the name in brackets behind it; NAME itself if no rule has it."""
    row = rule(name)
    return name if row is None else f"{row.says} ({row.name})"


def _decision(entry: Entry) -> str:
    """Return what decided about ENTRY: an open question (a guess); why it has no source; or the evidence of its
    expression.
    """
    if entry.status == "guessed":
        return "a question is open, so this is a guess"
    if entry.status == "unmapped":
        return "; ".join(entry.doubts) or "nothing in the file goes here"
    return entry.evidence or "nothing about it is open"


def _item(text: str, width: int, indent: int = 4) -> list[str]:
    """Return TEXT as an item of a list, with a dash, wrapped at WIDTH columns and indented by INDENT."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent + "- ",
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
