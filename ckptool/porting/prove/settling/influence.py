"""Find which weights the compared outputs depend on, and settle the doubts about these weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from itertools import pairwise

import torch

from ....errors import RuleError, printable
from ....model_code.in_eval import modes_kept
from ... import expression as ex
from ...expression import Expr, Shape
from ...mapping import Entry, Mapping
from ...matching.units import template
from ...questions import Question, Reason, ask
from ..flow import MATRICES, Flow, Use
from ..other_conventions import module_of
from ..recorder import called, tensors
from ..trial import Trial
from ..verdict import Verdict, compared_outputs, shown_by

_SEED = 20


def unfelt_keys(trial: Trial, seen: Flow, expected: Flow, entries: MappingOf[str, Entry]) -> list[str]:
    """Return the keys with a source that the compared outputs do not depend on, in the order of ENTRIES: the forward
    pass never uses them, or their influence is too small to measure.

    SEEN is the flow of the model, EXPECTED that of the source's code. Keys of a use whose output is not all zero and
    occurs in EXPECTED are left out, but for a bias without influence beside weights with influence.
    """
    _, _, same = compared_outputs(expected.outputs, seen.outputs)
    reached = seen.reaching(i for j in same for i in seen.behind[j]) if same else range(len(seen.uses))
    used = {key for i in reached for key in seen.uses[i].keys}
    weak = _without_slope(trial, same or None)
    if expected.uses:
        weak -= {key for use in seen.uses for key in use.keys if _shows(use, expected)} - _biases_of_keys(weak, seen)
        used |= {key for use in seen.uses for key in use.keys if _shows(use, expected)}
    return [key for key, e in entries.items() if e.expr is not None and (key not in used or key in weak)]


def by_itself_alone(
    seen: Flow, expected: Flow, entries: MappingOf[str, Entry], mapping: Mapping, verdict: Verdict
) -> set[str]:
    """Return the keys that the model uses whose place in the model no later layer confirms, and that were not certain
    before the proof. Empty if there is no flow of the source's code.

    Any layer that gets the same input and the same weights as a layer of the source gives the same output, even a new
    head that has nothing to do with it. It is confirmed by an equal output of the model that depends on it (by any
    output if they differ only by steps after the last use, see VERDICT), or by a later layer that agrees and was
    certain before the proof, in MAPPING.
    """
    if not expected.uses:
        return set()
    _, _, same = compared_outputs(expected.outputs, seen.outputs)
    before = {e.target: e for e in mapping.entries}
    sure = {key for key, e in before.items() if e.status == "mapped" and not e.default and e.expr == entries[key].expr}
    compared = range(len(seen.behind)) if verdict.beyond else same
    ends = {i for j in compared for i in seen.behind[j]}
    shown = [use.index in ends for use in seen.uses]
    for use in reversed(seen.uses):
        vouches = bool(use.keys) and sure.issuperset(use.keys) and expected.gives(use.given)
        if shown[use.index] or vouches:
            for earlier in use.before:
                shown[earlier] = True
    found = {key for use in seen.uses if shown[use.index] for key in use.keys}
    return {key for use in seen.uses for key in use.keys if key in entries} - found - sure


def taken_back(entries: dict[str, Entry], mapping: Mapping, keys: set[str]) -> dict[str, Entry]:
    """Return ENTRIES in which KEYS, keys that no later layer confirms, are without a source again, as in MAPPING, if
    trials gave them one.

    A key keeps its new source if the last part of its module's path is a part of the path of the source.
    """
    open_before = {e.target: e for e in mapping.entries if e.expr is None and not e.default}
    back = {key for key in keys & open_before.keys() if not _called_alike(entries[key])}
    return {key: open_before[key] if key in back else e for key, e in entries.items()}


def refuted(entries: dict[str, Entry], seen: Flow, expected: Flow, trial: Trial) -> dict[str, Entry]:
    """Return ENTRIES without the sources of guessed matrices that have a bias without a source, if all that such a
    matrix takes agrees, and what it gives, but for the bias, is in no output of EXPECTED, the flow of the source's
    code: it is a new layer. SEEN is the flow of the model.
    """
    fine = shown_by([expected.gives(use.given) for use in seen.uses], seen)
    found: dict[str, list[int]] = {}
    zero: dict[str, Entry] = {}
    for use in seen.uses:
        weight, bias = use.held.get("weight"), use.held.get("bias")
        if use.kind not in MATRICES or weight is None or bias is None or use.steps:
            continue
        left = {key: e for key in bias.keys if (e := entries.get(key)) and e.expr is None and not e.default}
        guessed = all((e := entries.get(key)) and e.status == "guessed" for key in weight.keys)
        if guessed and len(left) == len(bias.keys) and all(fine[i] for i in use.before):
            zero |= {key: replace(e, expr=ex.zeros(*e.shape)) for key, e in left.items()}
            for key in weight.keys:
                found.setdefault(key, []).append(use.index)
    bare = trial.run((entries | zero).values()) if zero else None
    if bare is None or len(bare.uses) != len(seen.uses):
        return entries
    out = dict(entries)
    for key, uses in found.items():
        if not any(expected.gives(bare.uses[i].given) for i in uses):
            told = ", ".join(printable(one, 80) for one in entries[key].sources)
            out[key] = replace(
                entries[key], expr=None, evidence="", questions=(ask(Reason.GIVES_SOMETHING_ELSE, told),)
            )
    return out


def _called_alike(entry: Entry) -> bool:
    own = module_of(entry).rpartition(".")[2]
    return bool(own) and any(own in key.split(".")[:-1] for key in entry.sources)


def _shows(use: Use, expected: Flow) -> bool:
    return bool(use.given[:, 0].any()) and expected.gives(use.given)


def _biases_of_keys(weak: set[str], seen: Flow) -> set[str]:
    """Return the keys in WEAK, keys without influence, that have a use with other weights with influence, such as the
    bias of the keys in attention. No output would show a wrong value of it.
    """
    return {key for use in seen.uses for key in use.keys if key in weak and not weak >= set(use.keys)}


def _without_slope(trial: Trial, which: Sequence[int] | None) -> set[str]:
    """Return the keys of the parameters that hardly change the outputs with the indices WHICH (all outputs if None), by
    their gradients: both the largest gradient and the sum of gradients times values (all magnitudes) are at most 1e-4
    of the median of all parameters. Empty if no such output depends on parameters, or if the code cannot be
    differentiated.
    """
    names = {id(p): key for key, p in reversed(list(trial.model.named_parameters(remove_duplicate=False)))}
    parameters = [p for p in trial.model.parameters() if p.is_floating_point()]
    before = [p.requires_grad for p in parameters]
    torch.manual_seed(_SEED)
    try:
        for p in parameters:
            p.requires_grad_(True)
        with modes_kept(trial.model), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            out = called(trial.model, trial.inputs)
            every = [t for t in tensors(out) if t.is_floating_point()]
            outs = [t for i, t in enumerate(every) if t.requires_grad and (which is None or i in which)]
            if not outs:
                return set()
            generator = torch.Generator().manual_seed(_SEED)
            weights = [torch.randn(t.shape, generator=generator).to(t) for t in outs]
            total = sum((t * w).sum() for t, w in zip(outs, weights, strict=True))
            slopes = torch.autograd.grad(total, parameters, allow_unused=True)
    except Exception:
        return set()  # code that cannot be differentiated: only what is never used is known
    finally:
        for p, old in zip(parameters, before, strict=True):
            p.requires_grad_(old)
    sizes = [0.0 if g is None else float((g * p.detach()).abs().sum()) for g, p in zip(slopes, parameters, strict=True)]
    steep = [0.0 if g is None else float(g.abs().max()) for g in slopes]
    usual, usually = (sorted(x)[len(x) // 2] if x else 0.0 for x in (sizes, steep))
    return {
        names[id(p)]
        for p, size, slope in zip(parameters, sizes, steep, strict=True)
        if size <= _WEAK * usual and slope <= _WEAK * usually
    }


#: Influence on the outputs, relative to what is usual in the model, that counts as none.
_WEAK = 1e-4


def nearly_equal(trial: Trial, entries: MappingOf[str, Entry], unfelt: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of keys of equal sizes whose weights, as TRIAL has loaded them, differ, but by at most 1e-3 of the
    largest: outputs may be equal up to rounding if the two are exchanged. Of weights of one size, those with
    neighbouring means are compared. Keys in UNFELT, without a source, or of one element are left out.
    """
    groups: dict[Shape, list[tuple[float, str]]] = {}
    for key, tensor in trial.state.items():
        felt_here = key in entries and entries[key].expr is not None and key not in unfelt
        if felt_here and isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel() > 1:
            groups.setdefault(tuple(tensor.shape), []).append((float(tensor.mean()), key))
    for group in groups.values():
        for (_, one), (_, other) in pairwise(sorted(group)):
            a, b = trial.state[one], trial.state[other]
            if not torch.equal(a, b) and float((a - b).abs().max()) <= _NEAR * float(a.abs().max()):
                yield min(one, other), max(one, other)


#: Difference of two weights, relative to the largest, for which it is tried whether outputs show it.
_NEAR = 1e-3


def unseen(entries: dict[str, Entry], mapping: Mapping, alone: set[str] | None) -> dict[str, Entry]:
    """Return ENTRIES with a question about each key that had no source before the proof and has one now, for a proof
    without equal outputs. If no layer differs, ALONE has the keys that no later layer confirms, and the others are not
    asked about; else it is None.

    Any layer that gets the same input and weights as a layer of the source gives the same output, even a new head.
    """
    open_before = {e.target for e in mapping.entries if e.expr is None and not e.default}
    return {
        key: e.asking(ask(Reason.NO_OUTPUT_SHOWS_IT))
        if key in open_before and e.expr is not None and (alone is None or key in alone)
        else e
        for key, e in entries.items()
    }


def carried_along(
    entries: dict[str, Entry], mapping: Mapping, unfelt: set[str], shapes: MappingOf[str, Shape]
) -> dict[str, Entry]:
    """Return ENTRIES in which each key of UNFELT, keys that no output depends on, is moved to the block of the source
    that trials moved the rest of its block to. If a key that is not in UNFELT has the same source, it is not moved, and
    a question is asked if trials changed that key.

    If trials found that block 0 of the model is the last block of the source, a layer of block 0 that never runs comes
    from the last block, too. MAPPING is that before the trials; SHAPES has the sizes of the source. Keys that trials
    changed stay as they are.
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
    """Return the beginnings (old, new) of the source's key if the expressions OLD and NEW are copies whose keys differ
    in one part of the path, but for the last, such as ("layers.0.", "layers.11."); else None.
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
    path = key.split(".")[:-1]
    for depth in range(len(path), 0, -1):
        head = ".".join(path[:depth]) + "."
        steps = {step for target, step in moved if target.startswith(head)}
        if not steps:
            continue
        fitting = [step for step in steps if all(one.startswith(step[0]) for one in expr.keys())]  # noqa: SIM118
        return _stepped(expr, *fitting[0], shapes, shape) if len(fitting) == 1 else None
    return None


def _stepped(expr: Expr, old: str, new: str, shapes: MappingOf[str, Shape], shape: Shape) -> Expr | None:
    made = expr.rename(lambda one: new + one[len(old) :])
    try:
        return made if ex.shape_of(made, shapes) == shape else None
    except RuleError:
        return None


def doubt_unseen_rows(
    entries: dict[str, Entry], mapping: Mapping, seen: Flow, shapes: MappingOf[str, Shape]
) -> dict[str, Entry]:
    """Return ENTRIES with a question, in place of others, about the last piece of each table joined from pieces of
    which the run SEEN read no row; a piece of zeros counts only if the key had no expression in MAPPING. Entries that
    were certain in MAPPING and kept their expression stay, and so do tables of which it is not known which rows each
    use read. SHAPES has the sizes of the source.
    """
    used: dict[str, list[tuple[int, int]] | None] = {}
    for held in (held for use in seen.uses for held in use.held.values()):
        for key in held.keys:
            rows = _rows_of(held.expr, key)
            known = used.setdefault(key, [])
            used[key] = None if rows is None or known is None else [*known, rows]
    before = {e.target: e for e in mapping.entries}
    out = dict(entries)
    for key, seen_rows in used.items():
        entry = entries.get(key)
        if entry is None or entry.expr is None or not seen_rows:
            continue
        certain = before[key].status == "mapped" and before[key].expr == entry.expr
        joined = ex.rows_joined(entry.expr)
        if certain or joined is None:
            continue
        at = 0
        for piece in joined:
            start, at = at, at + ex.shape_of(piece, shapes)[0]
            asks = piece.keys() or before[key].expr is None
            if asks and not any(first < at and start < last for first, last in seen_rows):
                asked: Question[Expr] = ask(Reason.ROWS_NOT_SEEN, f"{start:,}", f"{at - 1:,}")
                out[key] = entry.settled(entry.evidence).asking(asked)
    return out


def _rows_of(expr: Expr | None, key: str) -> tuple[int, int] | None:
    """Return (first, after last) of the rows of KEY that the expression EXPR reads. None if EXPR is None, or if it is
    not successive rows of KEY, up to a reshape.
    """
    cut = None if expr is None else ex.rows_cut(ex.unreshaped(expr))
    return None if cut is None or cut[0] != ex.of(key) else cut[1:]


def _kind(entry: Entry) -> tuple[str, str]:
    """Return the key and the expression (as text) of ENTRY without the numbers of blocks: equal for a layer and its kin
    in other blocks.
    """

    def plain(key: str) -> str:
        return ".".join(template(key.split(".")))

    return plain(entry.target), str(entry.expr.rename(plain) if entry.expr is not None else None)


def _blocks(entry: Entry) -> tuple[str, ...] | None:
    """Return the paths of the numbered blocks that the keys of ENTRY, in the model and in the source, are in, up to the
    last number, each once. None if one of its keys is in no such block.
    """
    found = [re.match(r"(.*\.)?\d+\.", key) for key in (entry.target, *sorted(entry.sources))]
    return tuple(dict.fromkeys(one[0] for one in found if one)) if all(found) else None


def felt(entries: dict[str, Entry], mapping: Mapping, trial: Trial, unfelt: set[str]) -> dict[str, Entry]:
    """Return ENTRIES in which doubts about keys are settled if equal outputs depend on them, on other keys of their
    module, or on their kin in the same blocks. Another key with a doubt that trials changed gets one more question.
    MAPPING is that before the trials, UNFELT are the keys that outputs do not depend on. The model of TRIAL has the
    weights of ENTRIES afterwards.
    """
    out = dict(entries)
    before = {e.target: e for e in mapping.entries}
    proved = [e for key, e in entries.items() if key not in unfelt and e.expr is not None]
    sure = {module_of(e) for e in proved}
    kin, blocks = {_kind(e) for e in proved}, {_blocks(e) for e in proved}
    for key, entry in entries.items():
        if entry.status != "guessed":
            continue
        if key not in unfelt or module_of(entry) in sure:
            why = "proved by equal outputs" if key not in unfelt else "beside what equal outputs prove"
            out[key] = entry.settled(why)
        elif _kind(entry) in kin and _blocks(entry) in blocks - {None}:
            out[key] = entry.settled("as in other blocks, which outputs prove")
        elif entry.expr != before[key].expr:
            out[key] = entry.asking(ask(Reason.NOT_FELT))
    trial.load(entries.values())
    return out
