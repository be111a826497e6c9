"""Proof: both models on the same inputs, and what comes out compared.

Equal outputs prove all that they depend on. Where they differ, every use of weights in the model is looked up among
those in the source's code, by what comes out of it: the first that is not found, with everything before it found, is
where they part. Other mappings for the weights there (`hypotheses`) are tried, each of which must make more uses
agree; what has worked in one block is tried first in the next. Nothing is ever tried in all combinations.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import Any

import torch

from ..architecture import ModelSource, build, fill, find_model, unwrapped
from ..checkpoint import Checkpoint
from ..errors import CheckpointError, NotFound, RuleError, counted, printable
from ..files import StrPath
from ..keys import collapse, unwrap
from ..model import load, to_torch
from ..signature import Signature
from . import expression as ex
from .expression import Expr
from .flow import Flow, Use, called, follow, tensors
from .fused import fused_by_name, part_label
from .hypotheses import Ground
from .mapping import Entry, Mapping
from .same_inputs import same_inputs
from .sources import open_source, source_tensors

#: Trials without success that looking for a better mapping may take, those of big models, and changes for one place.
_TRIALS, _FEWEST, _GUESSES = 600, 80, 200
#: Uses of weights in all trials without success.
_WORK = 15_000
#: Largest difference, relative to the spread of the values, that counts as equal.
_TOLERANCE = 1e-3
_SEED = 20
#: Of further inputs, on which what was found has to hold as well.
_MORE_SEEDS = (21, 22)


def prove(
    mapping: Mapping,
    source: Any,
    source_model: Any,
    target_model: Any,
    *,
    inputs: Any = None,
    source_inputs: Any = None,
) -> Mapping:
    """Run the source's own code and the model on the same random inputs, and settle doubts by what comes out.

    Args:
        mapping: what is to be proved.
        source: the checkpoint.
        source_model: the source's code: a module, a `ModelSource` or `MODEL.py:Name`.
        target_model: the model, likewise.
        inputs: for the model; worked out if None.
        source_inputs: for the source's code, if it takes them in another form.

    Returns:
        The mapping with its `proof`: {"equal": bool, "text": str, "first_divergence": str | None}.

    Raises:
        NotFound: the source's code does not have the keys of the file.
        CannotCarry: no inputs were found that both models take.
    """
    ckpt = open_source(source)
    theirs = _built(source_model)
    made_of = _load_own(theirs, ckpt, mapping)
    own = _built(target_model)
    both = same_inputs(theirs, own, inputs, source_inputs)
    trial = _Trial(own, ckpt, mapping, both.own, _factors(theirs))
    more = [both.again(seed) for seed in _MORE_SEEDS]
    others = ((follow(theirs, a), b) for a, b in more if b is not None)
    return _settle(mapping, trial, both.flow.renamed(made_of), both.shown, others)


def prove_against(mapping: Mapping, source: Any, target_model: Any, reference: StrPath) -> Mapping:
    """Compare with inputs and outputs that were saved where the source's code runs.

    REFERENCE holds tensors named `input`, `input.0`, `input.NAME` … and `output`, `output.0` …, in any format.
    """
    raw = load(reference)
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, MappingOf):
            flat.update({f"{key}.{k}": v for k, v in value.items()})
        elif isinstance(value, list | tuple):
            flat.update({f"{key}.{i}": v for i, v in enumerate(value)})
        else:
            flat[key] = value
    ins = {k: v for k, v in flat.items() if k.partition(".")[0] in ("input", "inputs")}
    outs = [v for k, v in flat.items() if k.partition(".")[0] in ("output", "outputs")]
    if not ins or not outs:
        raise NotFound("holds no tensors named `input…` and `output…`", where=reference)
    names = [k.partition(".")[2] for k in ins]
    given: Any = (
        list(ins.values()) if all(not n or n.isdigit() for n in names) else dict(zip(names, ins.values(), strict=True))
    )
    trial = _Trial(_built(target_model), open_source(source), mapping, given)
    return _settle(mapping, trial, Flow([], outs), "the saved inputs")


def _built(model: Any) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        return unwrapped(model)
    found = model if isinstance(model, ModelSource) else find_model(str(model))
    return unwrapped(build(found, real=True))


def _load_own(model: torch.nn.Module, ckpt: Checkpoint, mapping: Mapping) -> dict[str, Expr]:
    """Load the source file into the source's own code, and say what each of its keys is made of."""
    from ..trace import signature_of
    from .sources import apply, match_signature

    wanted_here = signature_of(model, trace=False)
    found = _by_names(wanted_here, ckpt, mapping.at) or match_signature(ckpt, wanted_here, at=mapping.at)
    wanted = [e for e in found.entries if not e.default]
    missing = [e.target for e in wanted if e.status != "mapped"]
    if len(missing) > 0.1 * len(wanted):
        raise NotFound(
            f"the code of the source has {counted(len(missing), 'key')} that the file does not have for certain",
            where=ckpt.where,
            evidence=[printable(key, 100) for key in missing[:4]],
            hint="--source-model names the code that the file was saved from",
        )
    fill(model, apply(found, ckpt))
    return {e.target: e.expr for e in found.entries if e.expr is not None}


def _factors(model: torch.nn.Module) -> list[float]:
    """What low-rank adapters may be multiplied with: numbers that the modules with adapters hold, and their ratios."""
    found: dict[float, None] = {}
    for module in model.modules():
        names = [*module._parameters, *module._modules]
        if not any("lora" in name.lower() for name in names):
            continue
        values = [v for held in vars(module).values() for v in (held.values() if isinstance(held, dict) else [held])]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
        found |= dict.fromkeys([*numbers, *(a / b for a in numbers for b in numbers)])
    return list(found)[:64]


def _by_names(wanted: Signature, ckpt: Checkpoint, at: str | None) -> Mapping | None:
    """The mapping by equal names, wrappers aside, where all of them are there in the same sizes: it is its own file."""
    weights = ckpt.state_dict(at)
    names: dict[str, str | None] = {}
    for depth in range(4):  # below modules and collections that the code does not have
        ends: dict[str, str | None] = {}
        for held in weights.tensors:
            end = ".".join(held.split(".")[depth:])
            ends[end] = None if end in ends else held
        names = ends | names
    entries = []
    for own, entry in zip(unwrap(list(wanted.entries)).values(), wanted.entries.values(), strict=True):
        key = names.get(entry.key) or names.get(own)
        if key is None and entry.key.endswith("num_batches_tracked"):
            entries.append(Entry(entry.key, entry.shape, "mapped", default=True))
        elif key is None or weights.tensors[key].shape != entry.shape:
            return None
        else:
            entries.append(Entry(entry.key, entry.shape, "mapped", ex.of(key)))
    shapes = {key: tensor.shape for key, tensor in weights.tensors.items()}
    return Mapping((), (), shapes, ckpt.where, wanted.name, at=at).with_entries(entries)


# ------------------------------------------------------------------------------------------------- running


class _Trial:
    """The target model, and what flows through it with one mapping or another."""

    def __init__(
        self, model: torch.nn.Module, ckpt: Checkpoint, mapping: Mapping, inputs: Any, factors: Sequence[float] = ()
    ) -> None:
        self.model, self.inputs, self.factors = model, inputs, factors
        every = [ex.of(key) for key in mapping.source_shapes]
        more = [r for e in mapping.entries for r in e.rivals]
        wanted = [Entry(f"#{i}", (), "mapped", x) for i, x in enumerate([*every, *more])]
        self.tensors = source_tensors(ckpt, replace(mapping, entries=(*mapping.entries, *wanted)))
        self.shapes = {key: t.shape for key, t in self.tensors.items()}
        self.state = model.state_dict()
        self.initial = {k: v.clone() for k, v in self.state.items() if isinstance(v, torch.Tensor)}
        self.loaded: dict[str, Expr | None] = {}
        self.runs = self.misses = 0
        self.patience = _TRIALS

    def load(self, entries: Iterable[Entry]) -> None:
        """Put the values that ENTRIES say into the model."""
        with torch.no_grad():
            for entry in entries:
                if entry.target in self.loaded and self.loaded[entry.target] == entry.expr:
                    continue
                self.loaded[entry.target] = entry.expr
                own = self.state.get(entry.target)
                if own is None:
                    continue
                if entry.expr is None:
                    own.copy_(self.initial[entry.target])
                else:
                    own.copy_(to_torch(ex.lazy(entry.expr, self.tensors)))

    def run(self, entries: Iterable[Entry]) -> Flow | None:
        """What flows through the model with these entries; None where one of them cannot be made."""
        entries = list(entries)
        for entry in entries:
            if entry.expr is not None and self.loaded.get(entry.target) != entry.expr:
                try:
                    if ex.shape_of(entry.expr, self.shapes) != entry.shape:
                        return None
                except (RuleError, IndexError, ZeroDivisionError):
                    return None
        self.load(entries)
        self.runs += 1
        return follow(self.model, self.inputs)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two outputs are the same, also where one has its dimensions in another order."""
    if a.numel() != b.numel() or a.numel() == 0:
        return False
    a, b = a.detach().double().squeeze(), b.detach().double().squeeze()
    if sorted(a.shape) == sorted(b.shape) and a.ndim <= 4:
        orders = [p for p in permutations(range(a.ndim)) if tuple(a.shape[i] for i in p) == tuple(b.shape)]
        return any(_close(a.permute(p), b) for p in orders)
    return _close(a.reshape(-1), b.reshape(-1))


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        same = torch.isfinite(a) & torch.isfinite(b)
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)) or not same.any():
            return False
        a, b = a[same], b[same]
    spread = float(a.abs().max()) or 1.0
    return float((a - b).abs().max()) <= _TOLERANCE * spread


# ------------------------------------------------------------------------------------------------- judging


@dataclass(frozen=True, slots=True)
class _Verdict:
    """How far one mapping gets.

    Attributes:
        equal: whether the outputs, or all that could be compared in place of them, are the same.
        compared: outputs of the model that could be compared.
        agreeing: uses of weights that give what one in the source's code gives.
        uses: how many there are.
        entered: those that take what one there takes.
        front: those that do not, while all before them do.
        left: keys without a source that keep others from being compared.
    """

    equal: bool
    compared: int
    agreeing: int
    uses: int
    front: tuple[Use, ...] = ()
    left: tuple[str, ...] = ()
    entered: int = 0

    def is_ahead_of(self, other: _Verdict) -> bool:
        """Whether more agrees: what is taken counts as well, since the next weights may be wrong, too."""
        return self.equal or (self.agreeing + self.entered) > (other.agreeing + other.entered)


_Nothing = _Verdict(False, 0, -1, 0)


def _judge(expected: Flow, seen: Flow | None, entries: MappingOf[str, Entry]) -> _Verdict:
    if seen is None:
        return _Nothing
    known = [bool(expected.uses) and expected.known.holds(use.given) for use in seen.uses]
    fine = _shown(known, seen)
    front = [use for use in seen.uses if not fine[use.index] and all(fine[i] for i in use.before)]
    compared, equal, _ = _compared(expected.outputs, seen.outputs)
    if not compared:
        open_front = [use for use in front if not _is_left(use, entries)]
        equal = bool(expected.uses) and not open_front and sum(known) > 0
    left = [key for use in front for key in use.keys if key in entries and entries[key].expr is None]
    return _Verdict(
        equal,
        compared,
        sum(known),
        len(known),
        tuple(front if not equal else ()),
        tuple(dict.fromkeys(left)),
        sum(use.taken is not None and expected.entries.holds(use.taken) for use in seen.uses) if expected.uses else 0,
    )


def _shown(known: Sequence[bool], seen: Flow) -> list[bool]:
    """Which uses give what one in the source's code gives, or lead to one that does."""
    fine = list(known)
    for use in reversed(seen.uses):
        if fine[use.index]:
            for before in use.before:
                fine[before] = True
    return fine


def _is_left(use: Use, entries: MappingOf[str, Entry]) -> bool:
    return any(key in entries and entries[key].expr is None and not entries[key].default for key in use.keys)


def _compared(expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> tuple[int, bool, list[int]]:
    """How many outputs can be compared; whether all of one side that can be are on the other; which of the model's are.

    Either side may give more: hidden states, or what is computed of several outputs.
    """
    alone = len(expected) == len(seen) == 1
    theirs = [i for i, a in enumerate(expected) if any(_of_one_size(a, b, alone) for b in seen)]
    own = [j for j, b in enumerate(seen) if any(_of_one_size(a, b, alone) for a in expected)]
    found = [(i, j) for i in theirs for j in own if _equal(expected[i], seen[j])]
    equal = {i for i, _ in found} == set(theirs) or {j for _, j in found} == set(own)
    return min(len(theirs), len(own)), equal and bool(found), sorted({j for _, j in found})


def _of_one_size(a: torch.Tensor, b: torch.Tensor, alone: bool) -> bool:
    return a.numel() == b.numel() and (alone or a.numel() > 1)


# ------------------------------------------------------------------------------------------------ settling


def _settle(
    mapping: Mapping,
    trial: _Trial,
    expected: Flow,
    shown: str,
    others: Iterable[tuple[Flow | None, Any]] = (),
) -> Mapping:
    entries = {e.target: e for e in mapping.entries}
    seen = trial.run(entries.values())
    verdict = _judge(expected, seen, entries)
    if seen is None or (not verdict.compared and verdict.agreeing <= 0 and not expected.uses):
        what = "the model cannot be run on these inputs" if seen is None else "no output is of the size of a saved one"
        return replace(mapping, proof=_proof(False, f"nothing could be compared: {what}", None, trial.runs))
    changed: dict[str, None] = {}
    if not verdict.equal:
        entries, seen, verdict, changed = _search(entries, seen, verdict, trial, expected)
    unfelt: list[str] = []
    if verdict.equal and not all(_holds(trial, entries, *other) for other in others):
        verdict = replace(verdict, equal=False)
        shown += ", though not on other values"
    if verdict.equal:
        trial.load(entries.values())
        unfelt = _unfelt(trial, seen, expected, entries)
        open_still = set(unfelt)
        if not verdict.compared and seen is not None:
            fine = _shown([expected.known.holds(use.given) for use in seen.uses], seen)
            open_still |= {key for use in seen.uses if not fine[use.index] for key in use.keys}
        entries = _felt(entries, mapping, trial, open_still)
    if not (verdict.equal and verdict.compared):
        entries = _unseen(entries, mapping)
    text = _said(verdict, shown)
    new = [e.target for e in mapping.entries if entries[e.target].expr != e.expr]
    if new:
        text += f"; settled by trial: {counted(len(new), 'key')} ({_few(new)})"
    if unfelt:
        text += f"; they do not depend on {_unfelt_text(unfelt)}"
    divergence = None if verdict.equal else _first(verdict)
    proof = _proof(verdict.equal, text, divergence, trial.runs) | {"changes": list(changed), "unfelt": unfelt}
    return replace(mapping, proof=proof).with_entries([entries[e.target] for e in mapping.entries])


def _holds(trial: _Trial, entries: dict[str, Entry], expected: Flow | None, inputs: Any) -> bool:
    """Whether the models agree on other inputs, too, where the source's code can be run on them."""
    if expected is None:
        return True
    first, trial.inputs = trial.inputs, inputs
    seen = trial.run(entries.values())
    trial.inputs = first
    return _judge(expected, seen, entries).equal


def _said(verdict: _Verdict, shown: str) -> str:
    if verdict.equal and verdict.compared:
        return f"outputs are equal on {shown}"
    agree = f"{verdict.agreeing:,} of {counted(verdict.uses, 'use')} of weights give the same on {shown}"
    if verdict.equal:
        beyond = f", all before {printable(verdict.left[0], 60)}, which has no source" if verdict.left else ""
        return f"{agree}{beyond}; no outputs are of one size"
    if not verdict.uses:
        return f"outputs differ on {shown}"
    return f"outputs differ on {shown}; the first divergence is at {_first(verdict)}: {agree}"


def _first(verdict: _Verdict) -> str:
    keys = [key for use in verdict.front for key in use.keys]
    return keys[0].rpartition(".")[0] or keys[0] if keys else "the output"


def _unfelt_text(keys: Sequence[str]) -> str:
    counters = [key for key in keys if key.endswith("num_batches_tracked")]
    others = [key for key in keys if not key.endswith("num_batches_tracked")]
    said = [f"{counted(len(counters), 'counter')} of batch norms"] if counters else []
    said += [f"{counted(len(others), 'key')} ({_few(others)})"] if others else []
    return " and ".join(said)


def _few(keys: Sequence[str]) -> str:
    patterns = [group.pattern for group in collapse([(key, None) for key in keys])]
    return ", ".join(printable(p, 60) for p in patterns[:3]) + (", …" if len(patterns) > 3 else "")


def _proof(equal: bool, text: str, divergence: str | None, runs: int) -> dict[str, Any]:
    return {"equal": equal, "text": text, "first_divergence": divergence, "runs": runs}


_State = tuple[dict[str, Entry], Flow, _Verdict]


def _search(
    entries: dict[str, Entry], seen: Flow, verdict: _Verdict, trial: _Trial, expected: Flow
) -> tuple[dict[str, Entry], Flow, _Verdict, dict[str, None]]:
    """Try changes where the models part, keep what makes more agree, until outputs are equal or nothing is left."""
    changed: dict[str, None] = {}
    trial.patience = max(_FEWEST, min(_TRIALS, _WORK // max(len(seen.uses), 1)))
    while not verdict.equal and trial.misses < trial.patience:
        state = _better(entries, seen, verdict, trial, expected, changed)
        if state is None:
            break
        entries, seen, verdict = state
    return entries, seen, verdict, changed


def _better(
    entries: dict[str, Entry], seen: Flow, verdict: _Verdict, trial: _Trial, expected: Flow, changed: dict[str, None]
) -> _State | None:
    ground = Ground(entries, seen, expected, trial.shapes, trial.factors)
    fronts = verdict.front if expected.uses else ()
    guesses = [change for use in fronts for change in islice(ground.for_use(use), _GUESSES)]
    guesses += [change for use in fronts[:2] for change in islice(ground.twice(use), 2 * _GUESSES)]
    for label, new in sorted(_once(guesses), key=lambda change: change[0] not in changed):
        found = _tried(entries, new, verdict, trial, expected)
        if found is not None:
            changed[label] = None
            return found
    best: tuple[str, _State] | None = None
    for label, new in _changes(entries):
        found = _tried(entries, new, verdict, trial, expected)
        if found is not None and (best is None or found[2].is_ahead_of(best[1][2])):
            best = label, found
            if found[2].equal:
                break
    if best is None:
        return None
    changed[best[0]] = None
    return best[1]


def _once(changes: list[tuple[str, dict[str, Expr]]]) -> list[tuple[str, dict[str, Expr]]]:
    """Each once."""
    seen = set()
    out = []
    for label, new in changes:
        told = frozenset(new.items())
        if told not in seen:
            seen.add(told)
            out.append((label, new))
    return out


def _tried(
    entries: dict[str, Entry], new: MappingOf[str, Expr], verdict: _Verdict, trial: _Trial, expected: Flow
) -> _State | None:
    """What comes of changing entries, if more agrees than before."""
    if trial.misses >= trial.patience:
        return None
    candidate = dict(entries)
    for key, expr in new.items():
        entry = candidate[key]
        if entry.expr != expr:
            rivals = [r for r in (entry.expr, *entry.rivals) if r is not None and r != expr]
            doubts = entry.doubts if entry.status == "guessed" else ("found by trial",)
            changed = replace(entry, status="guessed", expr=expr, doubts=doubts, default=False)
            candidate[key] = replace(changed, rivals=tuple(dict.fromkeys(rivals)))
    if all(candidate[key] is entries[key] for key in new):
        return None
    seen = trial.run(candidate.values())
    found = _judge(expected, seen, candidate)
    if seen is not None and found.is_ahead_of(verdict):
        return candidate, seen, found
    trial.misses += 1
    return None


def _changes(entries: dict[str, Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Changes of the whole mapping: a group of doubts settled otherwise, or a convention applied everywhere."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries.values():
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(entry.doubts, []).append(entry)
    for doubts, members in groups.items():
        for number in range(max(len(e.rivals) for e in members)):
            yield doubts[0], {e.target: e.rivals[number] for e in members if len(e.rivals) > number}
    yield from _conventions(list(entries.values()))
    for doubts, members in groups.items():
        by_module: dict[str, list[Entry]] = {}
        for entry in members:
            by_module.setdefault(_module(entry), []).append(entry)
        for one in by_module.values() if len(by_module) > 1 else ():
            for number in range(min(len(one[0].rivals), 6)):
                yield doubts[0], _exchanged(entries, one, number)
    yield from _exchanges(entries)


def _module(entry: Entry) -> str:
    return entry.target.rpartition(".")[0]


def _exchanged(entries: dict[str, Entry], members: Sequence[Entry], number: int) -> dict[str, Expr]:
    """A rival in place of what a module has; whoever had it gets that instead."""
    new = {e.target: e.rivals[number] for e in members if len(e.rivals) > number}
    for own, expr in list(new.items()):
        old = entries[own].expr
        for key, entry in entries.items():
            if key not in new and entry.expr == expr and old is not None and entry.shape == entries[own].shape:
                new[key] = old
    return new


def _exchanges(entries: dict[str, Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Guessed modules of equal shapes exchanged."""
    modules: dict[str, list[Entry]] = {}
    for entry in entries.values():
        if entry.status == "guessed" and entry.expr is not None:
            modules.setdefault(_module(entry), []).append(entry)
    paths = list(modules)
    for i, one in enumerate(paths):
        for other in paths[i + 1 : i + 12]:
            a, b = modules[one], modules[other]
            if [e.shape for e in a] == [e.shape for e in b]:
                pairs = [(p, q) for p, q in zip(a, b, strict=True) if p.expr is not None and q.expr is not None]
                there = {p.target: q.expr for p, q in pairs if q.expr is not None}
                yield f"{one} and {other} exchanged", there | {q.target: p.expr for p, q in pairs if p.expr is not None}


def _conventions(entries: list[Entry]) -> Iterator[tuple[str, dict[str, Expr]]]:
    """Conventions that shapes do not show, each applied to all tensors that it concerns."""
    copied = [(p, e, e.expr) for p, e in enumerate(entries) if e.expr is not None]
    attention = [(p, e, x) for p, e, x in copied if _part(e) in ("q", "k")]
    widths = sorted({e.shape[0] for _, e, _ in attention})
    if attention:
        for head in (d for d in _HEAD_SIZES if all(w % d == 0 for w in widths)):
            for kind in ("half", "interleaved"):
                yield (
                    f"rows of queries and keys in {kind} order",
                    _with(entries, {p: Expr("rotary", (x,), (e.shape[0] // head, kind)) for p, e, x in attention}),
                )
    parts = [(p, e, x) for p, e, x in copied if x.op == "slice" and x.params[0] == 0]
    for n in (3, 2):
        split = {}
        for p, _, x in parts:
            _, start, stop = map(int, x.params)
            if (stop - start) and start % (stop - start) == 0 and start // (stop - start) < n:
                split[p] = (x, start // (stop - start))
        if split:
            for heads in _HEAD_COUNTS:
                if all(entries[p].shape[0] % heads == 0 for p in split):
                    yield (
                        f"parts that alternate by {heads} heads",
                        _with(entries, {p: Expr("of_heads", x.args, (heads, n, i)) for p, (x, i) in split.items()}),
                    )
    fused = [(p, e, x) for p, e, x in copied if x.op == "cat" and x.params == (0,) and len(x.args) in (2, 3)]
    for heads in _HEAD_COUNTS if fused else ():
        yield (
            f"parts that alternate by {heads} heads",
            _with(
                entries,
                {
                    p: Expr("by_heads", x.args, (heads,))
                    for p, e, x in fused
                    if (e.shape[0] // len(x.args)) % heads == 0
                },
            ),
        )
    whole = [(p, e, x) for p, e, x in copied if x.is_copy and _is_fused(e)]
    for heads in _HEAD_COUNTS if whole else ():
        for turn in (True, False):
            new = {}
            for p, e, x in whole:
                third = e.shape[0] // 3
                if e.shape[0] % 3 or third % heads:
                    continue
                if turn:
                    cut = [ex.part(x, 0, i * third, (i + 1) * third) for i in range(3)]
                    new[p] = Expr("by_heads", tuple(cut), (heads,))
                else:
                    cut = [Expr("of_heads", (x,), (heads, 3, i)) for i in range(3)]
                    new[p] = Expr("cat", tuple(cut), (0,))
            if new:
                yield f"fused projections {'to' if turn else 'from'} alternating by {heads} heads", _with(entries, new)
    norms = [
        (p, e, x.args[0] if x.op == "shift" else x)
        for p, e, x in copied
        if len(e.shape) == 1 and e.target.endswith("weight") and "norm" in e.target.lower()
    ]
    for amount in (1.0, -1.0) if norms else ():
        yield f"norm weights {amount:+g}", _with(entries, {p: Expr("shift", (x,), (amount,)) for p, e, x in norms})
    for p, e, x in copied:
        if len(e.shape) == 2 and e.shape[1] >= 8 and x.op in ("key", "transpose"):
            for c in _channels_before(entries, p, e.shape[1]):
                side = int((e.shape[1] // c) ** 0.5)
                if side * side * c == e.shape[1] and side > 1:
                    for to in ("nhwc", "nchw"):
                        yield (
                            f"{e.target} for features flattened as {to.upper()}",
                            _with(entries, {p: Expr("flatten", (x,), (c, side, side, to))}),
                        )
    square = [(p, e, x) for p, e, x in copied if len(e.shape) == 2 and e.shape[0] == e.shape[1]]
    if square:
        yield "square matrices transposed", _with(entries, {p: ex.transpose(x) for p, e, x in square})


_HEAD_SIZES = (64, 128, 32, 96, 80, 16, 8, 4)
_HEAD_COUNTS = (2, 4, 8, 12, 16, 3, 6, 24, 32)


def _with(entries: list[Entry], new: MappingOf[int, Expr]) -> dict[str, Expr]:
    return {entries[p].target: expr for p, expr in new.items()}


def _part(entry: Entry) -> str | None:
    path = tuple(entry.target.split(".")[:-1])
    found = part_label(path) if path else None
    if found is None and entry.expr is not None:
        own = [part_label(tuple(key.split(".")[:-1])) for key in entry.sources if "." in key]
        found = own[0] if len(own) == 1 else None
    return found


def _is_fused(entry: Entry) -> bool:
    return fused_by_name(entry.target) or any(fused_by_name(key) for key in entry.sources)


def _channels_before(entries: list[Entry], place: int, width: int) -> list[int]:
    """Channels that feature maps may have before a layer of WIDTH inputs: outputs of the convolutions before it."""
    found = [e.shape[0] for e in entries[:place] if len(e.shape) == 4 and width % e.shape[0] == 0]
    return list(dict.fromkeys(reversed(found)))[:2]


# ---------------------------------------------------------------------------------------- what was proved


def _unfelt(trial: _Trial, seen: Flow, expected: Flow, entries: MappingOf[str, Entry]) -> list[str]:
    """Keys with a source that what was compared does not depend on: never used, or without any influence to speak of.

    What comes out of a use and is found in the source's code shows its weights as well as outputs do.
    """
    reached: set[int] = set()
    compared, _, same = _compared(expected.outputs, seen.outputs)
    open_ = {i for j in same for i in seen.behind[j]} if compared else set(range(len(seen.uses)))
    while open_:
        reached |= open_
        open_ = {i for at in open_ for i in seen.uses[at].before} - reached
    used = {key for i in reached for key in seen.uses[i].keys}
    weak = _without_slope(trial, same if compared else None)
    if expected.uses:
        weak -= {key for use in seen.uses for key in use.keys if _shows(use, expected)} - _biases_of_keys(weak, seen)
        used |= {key for use in seen.uses for key in use.keys if _shows(use, expected)}
    return [key for key, e in entries.items() if e.expr is not None and (key not in used or key in weak)]


def _shows(use: Use, expected: Flow) -> bool:
    return bool(use.given[:, 0].any()) and expected.known.holds(use.given)


def _biases_of_keys(weak: set[str], seen: Flow) -> set[str]:
    """Weak keys of uses whose other weights are strong: no wrong value of theirs would be seen any further."""
    return {key for use in seen.uses for key in use.keys if key in weak and not weak >= set(use.keys)}


def _without_slope(trial: _Trial, which: Sequence[int] | None) -> set[str]:
    """Parameters by which these outputs, or all, hardly change, as the biases of keys in attention."""
    names = {id(p): key for key, p in reversed(list(trial.model.named_parameters(remove_duplicate=False)))}
    parameters = [p for p in trial.model.parameters() if p.is_floating_point()]
    before = [p.requires_grad for p in parameters]
    training = trial.model.training
    trial.model.eval()
    torch.manual_seed(_SEED)
    try:
        for p in parameters:
            p.requires_grad_(True)
        with warnings.catch_warnings(), torch.enable_grad():
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
        trial.model.train(training)
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


def _unseen(entries: dict[str, Entry], mapping: Mapping) -> dict[str, Entry]:
    """What was left open and found in the flow stays a guess where no output shows it.

    A new head takes what some layer of the source takes, and gives the same with that layer's weight: whatever it is.
    """
    open_before = {e.target for e in mapping.entries if e.expr is None and not e.default}
    doubt = "it takes what this layer of the source takes, and no output shows that it is that layer"
    return {
        key: replace(e, status="guessed", doubts=(*e.doubts, doubt)) if key in open_before and e.expr is not None else e
        for key, e in entries.items()
    }


def _felt(entries: dict[str, Entry], mapping: Mapping, trial: _Trial, unfelt: set[str]) -> dict[str, Entry]:
    """What equal outputs settle: doubts about what they depend on, and about what stands beside that in its module."""
    out = dict(entries)
    before = {e.target: e for e in mapping.entries}
    sure = {_module(e) for key, e in entries.items() if key not in unfelt and e.expr is not None}
    for key, entry in entries.items():
        if entry.status != "guessed":
            continue
        if key not in unfelt or _module(entry) in sure:
            why = "proved by equal outputs" if key not in unfelt else "beside what equal outputs prove"
            out[key] = replace(entry, status="mapped", evidence=why, doubts=(), rivals=(), default=False)
        elif entry.expr != before[key].expr:
            out[key] = replace(entry, doubts=(*entry.doubts, "the outputs do not depend on it"))
    trial.load(entries.values())
    return out


__all__ = ["CheckpointError", "prove", "prove_against"]
