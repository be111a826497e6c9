"""Settle the doubts about weights that equal outputs depend on, and ask about, or take back, what nothing confirms."""

from __future__ import annotations

import re
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import replace

from ....errors import RuleError, printable
from ... import expression as ex
from ...expression import Expr, Shape
from ...mapping import Entry, Mapping
from ...matching.units import template
from ...questions import Question, Reason, ask
from ..flow import MATRICES, Flow, Use
from ..ground import module_of
from ..trial import Trial
from ..verdict import shown_by


def felt(entries: dict[str, Entry], mapping: Mapping, trial: Trial, unfelt: set[str]) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) with the doubts of guessed keys settled where equal outputs prove them. UNFELT are
    the keys that outputs do not depend on; a key with a source that is not in UNFELT is proved. MAPPING is the
    mapping before the trials. The model of TRIAL has the weights of ENTRIES afterwards.

    The doubts of a guessed key are settled if one of these is true: the key is proved; a key of its module is proved;
    or a proved key has the same name and expression apart from the numbers of blocks (`h.3.fc.weight` for
    `h.5.fc.weight`), and some proved key is in the same blocks of both sides as the guessed key (`_blocks`). Of other
    guessed keys, those whose expression trials changed get the question NOT_FELT; the rest stay as they are.
    """
    out = dict(entries)
    before = {e.target: e for e in mapping.entries}
    proved = [e for key, e in entries.items() if key not in unfelt and e.expr is not None]
    sure = {module_of(e.target) for e in proved}
    kin, blocks = {_kind(e) for e in proved}, {_blocks(e) for e in proved}
    for key, entry in entries.items():
        if entry.status != "guessed":
            continue
        if key not in unfelt or module_of(entry.target) in sure:
            why = "proved by equal outputs" if key not in unfelt else "beside what equal outputs prove"
            out[key] = entry.settled(why)
        elif _kind(entry) in kin and _blocks(entry) in blocks - {None}:
            out[key] = entry.settled("as in other blocks, which outputs prove")
        elif entry.expr != before[key].expr:
            out[key] = entry.asking(ask(Reason.NOT_FELT))
    trial.load(entries.values())
    return out


def _kind(entry: Entry) -> tuple[str, str]:
    """Return (key, expression as text) of ENTRY with `{}` in place of components that are numbers: `h.{}.fc.weight` for
    `h.3.fc.weight`. Both are equal for the same layer in two blocks. The expression is "None" if there is none.
    """

    def plain(key: str) -> str:
        return ".".join(template(key.split(".")))

    return plain(entry.target), str(entry.expr.rename(plain) if entry.expr is not None else None)


def _blocks(entry: Entry) -> tuple[str, ...] | None:
    """Return the path of the numbered block around the key of ENTRY and around each key of the source that it reads, up
    to the last number in it, each once: ("h.3.", "layers.3.") for `h.3.fc.weight` from `layers.3.fc1.weight`. None if
    one of these keys is in no numbered block.
    """
    found = [re.match(r"(.*\.)?\d+\.", key) for key in (entry.target, *sorted(entry.sources))]
    return tuple(dict.fromkeys(one[0] for one in found if one)) if all(found) else None


def carried_along(
    entries: dict[str, Entry], mapping: Mapping, unfelt: set[str], shapes: MappingOf[str, Shape]
) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) in which keys that no output depends on (UNFELT) follow the rest of their block: if
    trials found that `h.0` of the model is `h.11` of the source, a layer of `h.0` that never runs reads `h.11`, too.
    MAPPING is the mapping before the trials; SHAPES has key of the source -> sizes.

    Keys of UNFELT that trials changed, without a source, or with `default` stay as they are. For each other key of
    UNFELT, the expression that it should have is the one that `_with_its_block` gives, or its present one, if that
    gives None. The readers are the keys outside of UNFELT that read a tensor of the expression that it should have.

    - If `_with_its_block` gives an expression, and there are no readers, the key gets that expression.
    - Else the key keeps its present one; if trials changed one of the readers, it gets the question TAKEN_BY_ANOTHER,
      which names the first reader.
    """
    before = {e.target: e for e in mapping.entries}
    moved = [
        (e.target, step)
        for e in entries.values()
        if e.target not in unfelt and (step := _step(before[e.target].expr, e.expr)) is not None
    ]
    sure = {key: e for key, e in entries.items() if key not in unfelt and e.expr is not None}
    out = dict(entries)
    for key in unfelt:
        entry = entries[key]
        if entry.expr is None or entry.default or entry.expr != before[key].expr:
            continue
        new = _with_its_block(key, entry.expr, moved, shapes, entry.shape)
        now = new if new is not None else entry.expr
        taken = [e for e in sure.values() if not set(e.sources).isdisjoint(now.keys())]
        if new is not None and not taken:
            out[key] = replace(entry, expr=new, evidence="with the rest of its block, which outputs prove")
        elif any(before[e.target].expr != e.expr for e in taken):
            out[key] = entry.asking(ask(Reason.TAKEN_BY_ANOTHER, printable(taken[0].target, 80)))
    return out


def _step(old: Expr | None, new: Expr | None) -> tuple[str, str] | None:
    """Return (beginning of the key of OLD, beginning of the key of NEW), such as ("layers.0.", "layers.11."), up to the
    component in which they differ. None unless OLD and NEW are copies of different keys of the source that have equally
    many components and differ in exactly one, which is not the last.
    """
    if old is None or new is None or old == new or not (old.is_copy and new.is_copy):
        return None
    (a,), (b,) = ((key.split(".") for key in x.keys()) for x in (old, new))  # noqa: SIM118
    apart = [i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q]
    if len(a) != len(b) or len(apart) != 1 or apart[0] == len(a) - 1:
        return None
    return ".".join(a[: apart[0] + 1]) + ".", ".".join(b[: apart[0] + 1]) + "."


def _with_its_block(
    key: str, expr: Expr, moved: Sequence[tuple[str, tuple[str, str]]], shapes: MappingOf[str, Shape], shape: Shape
) -> Expr | None:
    """Return EXPR, the expression of KEY, with another beginning of its keys, as trials gave it to other keys of its
    module: `layers.0.a` becomes `layers.11.a`. MOVED has (key of the model, (old beginning, new beginning)) for keys
    that trials moved; those in the innermost module around KEY that holds any count.

    None if no module around KEY holds any, if not exactly one of their old beginnings begins all keys of EXPR, or if
    the result does not exist or has other sizes than SHAPE. SHAPES has the sizes of the source's keys.
    """
    path = key.split(".")[:-1]
    heads = (".".join(path[:depth]) + "." for depth in range(len(path), 0, -1))
    of_modules = ({step for target, step in moved if target.startswith(head)} for head in heads)
    steps = next((found for found in of_modules if found), set())
    fitting = [step for step in steps if all(one.startswith(step[0]) for one in expr.keys())]  # noqa: SIM118
    if len(fitting) != 1:
        return None
    ((old, new),) = fitting
    made = expr.rename(lambda one: new + one[len(old) :])
    try:
        return made if ex.shape_of(made, shapes) == shape else None
    except RuleError:
        return None


def doubt_unseen_rows(
    entries: dict[str, Entry], mapping: Mapping, seen: Flow, shapes: MappingOf[str, Shape]
) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) with the question ROWS_NOT_SEEN for each piece of a table of positions of which the
    run SEEN read no row: it took a slice of successive rows (`positions[:9]`), and the expression of the table joins
    pieces, rows after rows. The question names the first and the last row of the piece. The other open questions of
    such an entry are answered. A piece of zeros counts only if the key had no expression in MAPPING, the mapping before
    the trials. SHAPES has the sizes of the source's keys.

    Left as they are: entries that were certain in MAPPING and kept their expression, tables that SEEN does not use, and
    tables that some use does not slice, such as one that looks up the ids of the inputs. But the rows that were added
    at the end of a table of positions (`_new_positions`) get this question however the table is used.
    """
    used: dict[str, list[tuple[int, int]] | None] = {}
    for held in (held for use in seen.uses for held in use.held.values()):
        for key in held.keys:
            rows = _rows_of(held.expr, key)
            known = used.setdefault(key, [])
            used[key] = None if rows is None or known is None else [*known, rows]
    before = {e.target: e for e in mapping.entries}
    out = {key: _new_positions(entry, before[key], shapes) for key, entry in entries.items()}
    for key, seen_rows in used.items():
        entry = entries.get(key)
        if entry is None or entry.expr is None or not seen_rows:
            continue
        certain = before[key].status == "mapped" and before[key].expr == entry.expr
        joined = ex.rows_joined(entry.expr)
        if certain or joined is None:
            continue
        at, unseen = 0, entry.settled(entry.evidence)
        for piece in joined:
            start, at = at, at + ex.shape_of(piece, shapes)[0]
            asks = piece.keys() or before[key].expr is None
            if asks and not any(first < at and start < last for first, last in seen_rows):
                asked: Question[Expr] = ask(Reason.ROWS_NOT_SEEN, f"{start:,}", f"{at - 1:,}")
                out[key] = unseen = unseen.asking(asked)
    return out


def _new_positions(entry: Entry, before: Entry, shapes: MappingOf[str, Shape]) -> Entry:
    """Return ENTRY with the question ROWS_NOT_SEEN about its last rows, if it is a table of positions to which its
    expression adds rows (`grow`), and the proof made it certain: BEFORE, the entry before the proof, was a guess. The
    source's code has no such positions, so nothing shows what code that runs there expects. SHAPES has the sizes of the
    source's keys. Return any other entry as it is, such as a table of words: what was asked about it is whether the
    words of the source come first in it, which equal outputs do show.
    """
    table = None if entry.expr is None else ex.rows_grown(entry.expr)
    if table is None or (before.status, entry.status) != ("guessed", "mapped"):
        return entry
    if {Reason.POSITIONS_RESIZED, Reason.PADDING_ADDED}.isdisjoint(question.reason for question in before.questions):
        return entry
    return entry.asking(ask(Reason.ROWS_NOT_SEEN, f"{ex.shape_of(table, shapes)[0]:,}", f"{entry.shape[0] - 1:,}"))


def _rows_of(expr: Expr | None, key: str) -> tuple[int, int] | None:
    """Return (first, after last) of the rows of KEY that the expression EXPR reads. None if EXPR is None, or if it is
    not successive rows of KEY, up to a reshape.
    """
    cut = None if expr is None else ex.rows_cut(ex.unreshaped(expr))
    return None if cut is None or cut[0] != ex.of(key) else cut[1:]


def taken_back(entries: dict[str, Entry], mapping: Mapping, keys: set[str]) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) in which those of KEYS that had no source in MAPPING, the mapping before trials,
    have their old entry, without a source, again. KEYS are keys that no later layer confirms.

    A key keeps its new source if the last component of its module's path is a component of the path of a key of the
    source that it reads now (`fc` for `a.fc.weight`).
    """
    open_before = {e.target: e for e in mapping.entries if e.status == "unmapped"}
    back = {key for key in keys & open_before.keys() if not _called_alike(entries[key])}
    return {key: open_before[key] if key in back else e for key, e in entries.items()}


def _called_alike(entry: Entry) -> bool:
    """Return whether the module of ENTRY has the name of a module on the path of one of its keys of the source:
    `a.fc.weight` from `b.fc.c.weight`. False for a key that is in no module.
    """
    own = module_of(entry.target).rpartition(".")[2]
    return bool(own) and any(own in key.split(".")[:-1] for key in entry.sources)


def refuted(entries: dict[str, Entry], seen: Flow, expected: Flow, trial: Trial) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) without the sources of guessed matrices that the proof shows to be new layers. SEEN
    is the flow of the model, EXPECTED that of the source's code.

    A guessed weight of a linear layer or convolution is taken back if all of these are true:

    - the bias of this layer has no source, and no steps are between the layer and the uses before it
      (`_zeros_for_bias`);
    - each use before the layer gives what uses in EXPECTED give, or leads to a use that does;
    - with zeros as the bias, no such use of the layer gives what uses in EXPECTED give.

    Its entry then has no expression and no evidence, and GIVES_SOMETHING_ELSE as its only question.

    The model of TRIAL is run once with zeros for these biases, and keeps them. ENTRIES are returned as they are if no
    layer is to be tested, or if the model cannot be run so.
    """
    fine = shown_by([expected.gives(use.given) for use in seen.uses], seen)
    found: dict[str, list[int]] = {}
    zero: dict[str, Entry] = {}
    for use in seen.uses:
        new = _zeros_for_bias(use, entries)
        if new and all(fine[i] for i in use.before):
            zero |= new
            for key in use.held["weight"].keys:
                found.setdefault(key, []).append(use.index)
    bare = trial.run((entries | zero).values()) if zero else None
    if bare is None or len(bare.uses) != len(seen.uses):
        return entries
    out = dict(entries)
    for key, uses in found.items():
        if not any(expected.gives(bare.uses[i].given) for i in uses):
            told = ", ".join(printable(one, 80) for one in entries[key].sources)
            asked: Question[Expr] = ask(Reason.GIVES_SOMETHING_ELSE, told)
            out[key] = replace(entries[key], expr=None, evidence="", questions=(asked,))
    return out


def _zeros_for_bias(use: Use, entries: MappingOf[str, Entry]) -> dict[str, Entry]:
    """Return key -> entry for the keys of the bias of USE, with zeros as the expressions, if USE is a linear layer or a
    convolution, all keys of its weight are guessed, all keys of its bias are without a source, and no steps (operations
    without weights) come between it and the uses before it; else {}.
    """
    weight, bias = use.held.get("weight"), use.held.get("bias")
    if use.kind not in MATRICES or weight is None or bias is None or use.steps:
        return {}
    guessed = all((e := entries.get(key)) and e.status == "guessed" for key in weight.keys)
    left = {key: e for key in bias.keys if (e := entries.get(key)) and e.status == "unmapped"}
    if not guessed or len(left) < len(bias.keys):
        return {}
    return {key: replace(e, expr=ex.zeros(*e.shape)) for key, e in left.items()}


def unseen(entries: dict[str, Entry], mapping: Mapping, alone: set[str] | None) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) with the question NO_OUTPUT_SHOWS_IT about each key that had no source in MAPPING,
    the mapping before the proof, and has one now; only about those in ALONE, unless it is None. It is for a proof
    without equal outputs: ALONE has the keys that no later layer confirms if all that was compared is equal, else
    it is None.
    """
    open_before = {e.target for e in mapping.entries if e.status == "unmapped"}
    return {
        key: e.asking(ask(Reason.NO_OUTPUT_SHOWS_IT))
        if key in open_before and e.expr is not None and (alone is None or key in alone)
        else e
        for key, e in entries.items()
    }


__all__ = ["carried_along", "doubt_unseen_rows", "felt", "refuted", "taken_back", "unseen"]
