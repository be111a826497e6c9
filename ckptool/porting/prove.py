"""Proof: both models on the same inputs, and what comes out compared.

Equal outputs prove all that they depend on. Where they differ, the modules that were matched are compared in the order
in which they run, which names the first divergence; and the rivals of doubtful tensors, and conventions that no shape
shows, are tried against it, within bounds: each trial must bring more of the modules to agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch

from ..architecture import ModelSource, build, fill, find_model, unwrapped
from ..checkpoint import Checkpoint
from ..errors import CannotCarry, CheckpointError, NotFound, RuleError, counted, printable
from ..files import StrPath
from ..inputs import guess_inputs, inputs_text, made
from ..keys import unwrap
from ..model import load, to_torch
from ..signature import Signature
from . import expression as ex
from .expression import Expr
from .fused import part_label
from .mapping import Entry, Mapping
from .sources import open_source, source_tensors

#: Forward passes that looking for a better mapping may take.
_TRIALS = 400
#: Largest difference, relative to the spread of the values, that counts as equal.
_TOLERANCE = 1e-3
_SEED = 20


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
    _load_own(theirs, ckpt, mapping)
    own = _built(target_model)
    given = _inputs(theirs, own, inputs, source_inputs)
    trial = _Trial(own, ckpt, mapping, given[1])
    expected = _run(theirs, given[0], trial.watched_sources(theirs))
    if expected is None:
        raise CannotCarry(
            "the source's code cannot be run on these inputs", where="--prove", hint="--input 'float32[2,3,64,64]'"
        )
    return _settle(mapping, trial, expected, inputs_text(given[2]))


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
    return _settle(mapping, trial, _Seen(outs, {}), "the saved inputs")


def _built(model: Any) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        return unwrapped(model)
    found = model if isinstance(model, ModelSource) else find_model(str(model))
    return unwrapped(build(found, real=True))


def _load_own(model: torch.nn.Module, ckpt: Checkpoint, mapping: Mapping) -> None:
    """Load the source file into the source's own code."""
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


# -------------------------------------------------------------------------------------------------- inputs


def _inputs(theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any) -> tuple[Any, Any, Any]:
    """Inputs for both models with the same values, and their description."""
    if inputs is not None:
        for first in [source_inputs] if source_inputs is not None else _spellings(theirs, inputs):
            a = _values(first)
            b = _like(a, inputs)
            if b is not None and _run(theirs, a, {}) is not None:
                return a, b, first
        raise CannotCarry("the source's code cannot be run on these inputs", where="--input")
    for spec in chain(islice(guess_inputs(theirs), 60), islice(guess_inputs(own), 60)):
        a = _values(spec)
        if _run(theirs, a, {}) is None:
            continue
        for form in _forms(own, spec, a):
            if _run(own, form, {}) is not None:
                return a, form, spec
    raise CannotCarry(
        "found no inputs that both models take", where="--prove", hint="--input 'float32[2,3,64,64]' gives them"
    )


def _spellings(model: torch.nn.Module, spec: Any) -> Iterator[Any]:
    """Inputs as they are, by position, and under the names that MODEL has for as many."""
    flat = list(spec.values()) if isinstance(spec, MappingOf) else list(spec)
    yield spec
    yield flat
    for other in islice(guess_inputs(model), 1):
        if isinstance(other, MappingOf) and len(other) == len(flat):
            yield dict(zip(other, flat, strict=True))
    main = getattr(model, "main_input_name", None)
    if isinstance(main, str) and len(flat) == 1:
        yield {main: flat[0]}
    for other in islice(guess_inputs(model), 60):
        yield other


def _values(spec: Any) -> Any:
    generator = torch.Generator().manual_seed(_SEED)
    if isinstance(spec, MappingOf):
        return {k: made(v, generator=generator) for k, v in spec.items()}
    return [made(v, generator=generator) for v in spec]


def _like(values: Any, wanted: Any) -> Any | None:
    """The same values in the form of WANTED, or None where it wants others.

    Each goes where its type and shape are wanted. A picture in colours becomes grey where WANTED is.
    """
    left = list(values.values()) if isinstance(values, dict) else list(values)
    own = _values(wanted)
    for key in own if isinstance(own, dict) else range(len(own)):
        mine = own[key]
        same = next((v for v in left if v.dtype == mine.dtype and v.shape == mine.shape), None)
        if same is None:
            same = next((v for v in left if v.ndim == mine.ndim == 4 and _is_grey_of(mine, v)), None)
            if same is None:
                return None
            same.copy_(mine.expand_as(same))
        else:
            own[key] = same
        left = [v for v in left if v is not same]
    return own


def _is_grey_of(grey: torch.Tensor, colours: torch.Tensor) -> bool:
    return grey.shape[1] == 1 and grey.shape[2:] == colours.shape[2:] and len(grey) == len(colours)


def _forms(own: torch.nn.Module, spec: Any, values: Any) -> Iterator[Any]:
    """VALUES in the forms in which OWN may take them: other spellings, then what it takes itself."""
    for wanted in _spellings(own, spec):
        form = _like(values, wanted)
        if form is not None and len(form) == len(values):
            yield form


# ------------------------------------------------------------------------------------------------- running


@dataclass(slots=True)
class _Seen:
    """What a forward pass gave: its outputs, and what some modules gave, by a name that both sides share."""

    outputs: list[torch.Tensor]
    inner: dict[str, torch.Tensor]


def _run(model: torch.nn.Module, inputs: Any, watched: dict[str, str]) -> _Seen | None:
    """Run MODEL in eval mode. WATCHED: path of a module -> the name under which its output is kept."""
    inner: dict[str, torch.Tensor] = {}
    hooks = []
    for path, module in model.named_modules():
        name = watched.get(path)
        if name is not None:
            hooks.append(module.register_forward_hook(_keeper(inner, name)))
    training = model.training
    model.eval()
    torch.manual_seed(_SEED)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            out = model(**inputs) if isinstance(inputs, MappingOf) else model(*inputs)
    except Exception:
        return None
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    return _Seen([t for t in _tensors(out) if t.is_floating_point()], inner)


def _keeper(inner: dict[str, torch.Tensor], name: str) -> Any:
    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        first = next(iter(_tensors(output)), None)
        if first is not None and name not in inner:
            inner[name] = first.detach().clone()  # a ReLU in place may follow

    return keep


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, MappingOf):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() != b.numel() or a.numel() == 0:
        return False
    if a.shape != b.shape:
        if a.squeeze().shape != b.squeeze().shape:
            return False
        a, b = a.squeeze(), b.squeeze()
    a, b = a.float(), b.float()
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        same = torch.isfinite(a) & torch.isfinite(b)
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)) or not same.any():
            return False
        a, b = a[same], b[same]
    spread = float(a.abs().max()) or 1.0
    return float((a - b).abs().max()) <= _TOLERANCE * spread


class _Trial:
    """The target model, and what comes out of it with one mapping or another."""

    def __init__(self, model: torch.nn.Module, ckpt: Checkpoint, mapping: Mapping, inputs: Any) -> None:
        self.model, self.ckpt, self.inputs = model, ckpt, inputs
        self.tensors = source_tensors(ckpt, _with_rivals(mapping))
        self.state = model.state_dict()
        self.initial = {k: v.clone() for k, v in self.state.items()}
        self.mapping = mapping
        self.loaded: dict[str, Expr | None] = {}
        self.runs = 0
        self.modules = _matched_modules(mapping)

    def watched_sources(self, source: torch.nn.Module) -> dict[str, str]:
        """The modules of the source to look at, by name of the target's."""
        paths = {path for path, _ in source.named_modules()}
        short = {new: old for old, new in unwrap([f"{p}.x" for p in paths if p]).items()}
        found = {}
        for own, theirs in self.modules.items():
            path = theirs if theirs in paths else short.get(f"{theirs}.x", "").removesuffix(".x")
            if path and path not in found:
                found[path] = own
        return found

    def load(self, entries: Sequence[Entry]) -> None:
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

    def run(self, entries: Sequence[Entry]) -> _Seen | None:
        """What the model gives with these entries; None where one of them cannot be made."""
        shapes = {key: t.shape for key, t in self.tensors.items()}
        for entry in entries:
            if entry.expr is not None and self.loaded.get(entry.target) != entry.expr:
                try:
                    if ex.shape_of(entry.expr, shapes) != entry.shape:
                        return None
                except RuleError:
                    return None
        self.load(entries)
        self.runs += 1
        return _run(self.model, self.inputs, {path: path for path in self.modules})


def _with_rivals(mapping: Mapping) -> Mapping:
    """All that the mapping or its rivals read, as entries, so that every tensor is at hand."""
    more = [replace(e, target=f"{e.target}#{i}", expr=r) for e in mapping.entries for i, r in enumerate(e.rivals)]
    return replace(mapping, entries=(*mapping.entries, *more))


def _matched_modules(mapping: Mapping) -> dict[str, str]:
    """Module of the target -> module of the source, where all its tensors are plain copies from one module."""
    found: dict[str, set[str]] = {}
    for entry in mapping.entries:
        if entry.expr is not None and not entry.default:
            path = entry.target.rpartition(".")[0]
            for key in entry.sources:
                found.setdefault(path, set()).add(key.rpartition(".")[0])
    return {path: next(iter(sources)) for path, sources in found.items() if path and len(sources) == 1}


# ------------------------------------------------------------------------------------------------ settling


@dataclass(slots=True)
class _Verdict:
    """How far one mapping gets: equal at the end, or how many modules agree before the first that does not."""

    equal: bool
    agreeing: int
    compared: int
    outputs: int
    divergence: str | None
    score: float = field(default=0.0)


def _judge(expected: _Seen, seen: _Seen | None) -> _Verdict:
    if seen is None:
        return _Verdict(False, 0, 0, 0, "the forward pass", -1.0)
    compared = agreeing = total = 0
    divergence = None
    for name, value in seen.inner.items():
        other = expected.inner.get(name)
        if other is None or other.numel() != value.numel():
            continue
        compared += 1
        if _equal(other, value):
            total += 1
            if divergence is None:
                agreeing += 1
        elif divergence is None:
            divergence = name
    pairs = _paired(expected.outputs, seen.outputs)
    same = [_equal(a, b) for a, b in pairs]
    equal = bool(pairs) and all(same)
    if not pairs:
        equal = compared > 0 and total == compared
    return _Verdict(
        equal, agreeing, compared, len(pairs), None if equal else divergence or "the output", total + agreeing / 1000
    )


def _paired(expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs that can be compared: in order where both have as many, else each with the nearest of its shape."""
    if len(expected) == len(seen):
        return [(a, b) for a, b in zip(expected, seen, strict=True) if a.numel() == b.numel() and a.ndim == b.ndim]
    left, pairs = list(expected), []
    for b in seen:
        alike = [a for a in left if a.shape == b.shape and b.ndim]
        if alike:
            a = next((a for a in alike if _equal(a, b)), alike[0])
            left = [x for x in left if x is not a]
            pairs.append((a, b))
    return pairs


def _settle(mapping: Mapping, trial: _Trial, expected: _Seen, shown: str) -> Mapping:
    entries = list(mapping.entries)
    verdict = _judge(expected, trial.run(entries))
    if verdict.compared == 0 and verdict.outputs == 0:
        return replace(
            mapping, proof=_proof(False, "nothing could be compared: no output and no module of equal size", None, 0)
        )
    changed: list[str] = []
    if not verdict.equal:
        entries, verdict, changed = _search(entries, verdict, trial, expected)
    if verdict.equal:
        entries = _felt(entries, verdict, trial, expected)
    where = (
        f"outputs are equal on {shown}"
        if verdict.outputs
        else f"{verdict.compared} matched modules give the same on {shown}"
    )
    if not verdict.equal:
        where = (
            f"outputs differ on {shown}; the first divergence is at {verdict.divergence}, after {verdict.agreeing} of "
            f"{verdict.compared} matched modules"
        )
    if changed:
        where += f"; settled by trial: {'; '.join(dict.fromkeys(changed))}"
    proof = _proof(verdict.equal, where, None if verdict.equal else verdict.divergence, trial.runs)
    return replace(mapping, proof=proof).with_entries(entries)


def _proof(equal: bool, text: str, divergence: str | None, runs: int) -> dict[str, Any]:
    return {"equal": equal, "text": text, "first_divergence": divergence, "runs": runs}


def _search(
    entries: list[Entry], verdict: _Verdict, trial: _Trial, expected: _Seen
) -> tuple[list[Entry], _Verdict, list[str]]:
    """Try changes, keep the best, go on until outputs are equal or no change brings anything."""
    changed: list[str] = []
    while not verdict.equal and trial.runs < _TRIALS:
        best: tuple[_Verdict, list[Entry], str] | None = None
        for text, candidate in _changes(entries, trial):
            if trial.runs >= _TRIALS:
                break
            found = _judge(expected, trial.run(candidate))
            if found.equal or found.score > (best[0].score if best else verdict.score):
                best = (found, candidate, text)
                if found.equal:
                    break
        if best is None:
            break
        verdict, entries = best[0], best[1]
        changed.append(best[2])
    return entries, verdict, changed


def _changes(entries: list[Entry], trial: _Trial) -> Iterator[tuple[str, list[Entry]]]:
    """Mappings that differ in one respect: a group of doubts settled otherwise, or a convention applied."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(entry.doubts, []).append(place)
    for doubts, places in groups.items():
        for number in range(max(len(entries[p].rivals) for p in places)):
            yield doubts[0], _swapped(entries, places, number)
    yield from _conventions(entries, trial)
    for doubts, places in groups.items():
        if len(places) > 1:
            for place in places:
                same_module = [p for p in places if _module(entries[p]) == _module(entries[place])]
                if same_module[0] != place:
                    continue
                for number in range(min(len(entries[place].rivals), 6)):
                    yield doubts[0], _exchanged(entries, same_module, number)
    yield from _exchanges(entries)


def _module(entry: Entry) -> str:
    return entry.target.rpartition(".")[0]


def _swapped(entries: list[Entry], places: Sequence[int], number: int) -> list[Entry]:
    out = list(entries)
    for place in places:
        entry = out[place]
        if len(entry.rivals) > number and entry.expr is not None:
            rivals = list(entry.rivals)
            rivals[number], new = entry.expr, rivals[number]
            out[place] = replace(entry, expr=new, rivals=tuple(rivals))
    return out


def _exchanged(entries: list[Entry], places: Sequence[int], number: int) -> list[Entry]:
    """A rival in place of what a module has; whoever had it gets that instead."""
    out = _swapped(entries, places, number)
    for place in places:
        new, old = out[place].expr, entries[place].expr
        for other, entry in enumerate(out):
            if other not in places and entry.expr == new and entry.expr is not None and entry.shape == out[place].shape:
                out[other] = replace(entry, expr=old)
    return out


def _exchanges(entries: list[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Guessed modules of equal shapes exchanged."""
    modules: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.status == "guessed" and entry.expr is not None:
            modules.setdefault(_module(entry), []).append(place)
    paths = list(modules)
    for i, one in enumerate(paths):
        for other in paths[i + 1 : i + 12]:
            a, b = modules[one], modules[other]
            if [entries[p].shape for p in a] == [entries[p].shape for p in b]:
                out = list(entries)
                for p, q in zip(a, b, strict=True):
                    out[p] = replace(entries[p], expr=entries[q].expr)
                    out[q] = replace(entries[q], expr=entries[p].expr)
                yield f"{one} and {other} exchanged", out


def _conventions(entries: list[Entry], trial: _Trial) -> Iterator[tuple[str, list[Entry]]]:
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


def _with(entries: list[Entry], new: MappingOf[int, Expr]) -> list[Entry]:
    return [replace(e, expr=new[p]) if p in new else e for p, e in enumerate(entries)]


def _part(entry: Entry) -> str | None:
    path = tuple(entry.target.split(".")[:-1])
    found = part_label(path) if path else None
    if found is None and entry.expr is not None:
        own = [part_label(tuple(key.split(".")[:-1])) for key in entry.sources if "." in key]
        found = own[0] if len(own) == 1 else None
    return found


def _is_fused(entry: Entry) -> bool:
    from .fused import fused_by_name

    return fused_by_name(entry.target) or any(fused_by_name(key) for key in entry.sources)


def _channels_before(entries: list[Entry], place: int, width: int) -> list[int]:
    """Channels that feature maps may have before a layer of WIDTH inputs: outputs of the convolutions before it."""
    found = [e.shape[0] for e in entries[:place] if len(e.shape) == 4 and width % e.shape[0] == 0]
    return list(dict.fromkeys(reversed(found)))[:2]


def _felt(entries: list[Entry], verdict: _Verdict, trial: _Trial, expected: _Seen) -> list[Entry]:
    """Doubts that equal outputs settle: those whose rivals would have changed them."""
    out = list(entries)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.status == "guessed":
            groups.setdefault(entry.doubts, []).append(place)
    for places in groups.values():
        settled = True
        most = max(len(entries[p].rivals) for p in places)
        for number in range(min(most, 3)):
            if trial.runs >= 2 * _TRIALS:
                settled = False
                break
            if _judge(expected, trial.run(_swapped(entries, places, number))).equal:
                settled = False
        if settled:
            for place in places:
                out[place] = replace(
                    out[place], status="mapped", evidence="proved by equal outputs", doubts=(), rivals=()
                )
    trial.load(entries)
    return out


__all__ = ["CheckpointError", "RuleError", "fill", "prove", "prove_against"]
