"""Measure which weights the compared outputs depend on, and which of them later layers confirm."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from itertools import pairwise

import torch

from ....model_code.in_eval import modes_kept
from ....model_code.inputs import made
from ...expression import Shape
from ...mapping import Entry, Mapping
from ..calling import called, tensors
from ..flow import Flow, Use
from ..outputs import compared_outputs
from ..trial import Trial
from ..verdict import Verdict

_SEED = 20


def unfelt_keys(trial: Trial, seen: Flow, expected: Flow, entries: MappingOf[str, Entry]) -> list[str]:
    """Return the keys with a source that the compared outputs do not depend on, in the order of ENTRIES. SEEN is the
    flow of the model, EXPECTED that of the source's code. A key is returned for one of these reasons:

    - no use of it leads to an output that is equal to one of EXPECTED (if no output is equal: no use reads it);
    - its influence on the equal outputs (on all outputs, if none is equal) is too small to measure (`_without_slope`).

    But a key is not returned if a use of it gives what uses in EXPECTED give, and not all zero. The exception is a key
    without influence that has a use together with keys that have influence, such as the bias of the keys in attention.
    """
    _, _, same = compared_outputs(expected.outputs, seen.outputs)
    reached = seen.reaching(i for j in same for i in seen.behind[j]) if same else range(len(seen.uses))
    used = {key for i in reached for key in seen.uses[i].keys}
    weak = _without_slope(trial, same or None)
    if expected.uses:
        shown = {key for use in seen.uses if _shows(use, expected) for key in use.keys}
        weak -= shown - _biases_of_keys(weak, seen)
        used |= shown
    return [key for key, e in entries.items() if e.expr is not None and (key not in used or key in weak)]


def _shows(use: Use, expected: Flow) -> bool:
    """Return whether the output of USE occurs in EXPECTED, and is not all zero."""
    return bool(use.given[:, 0].any()) and expected.gives(use.given)


def _biases_of_keys(weak: set[str], seen: Flow) -> set[str]:
    """Return the keys in WEAK, keys without influence, that have a use with other weights with influence, such as the
    bias of the keys in attention. No output would show a wrong value of it.
    """
    return {key for use in seen.uses for key in use.keys if key in weak and not weak >= set(use.keys)}


def _without_slope(trial: Trial, which: Sequence[int] | None) -> set[str]:
    """Return the keys of the parameters that hardly change the outputs with the indices WHICH (all outputs if None), by
    their gradients. For each floating point parameter, two numbers count: its largest gradient, and the sum of its
    gradients times its values (all magnitudes). The parameter is returned if each is at most 1e-4 of the median of that
    number over all parameters. A parameter with several keys is returned by its first. Empty if the gradients are not
    known (see `_slopes`).
    """
    names = {id(p): key for key, p in reversed(list(trial.model.named_parameters(remove_duplicate=False)))}
    parameters = [p for p in trial.model.parameters() if p.is_floating_point()]
    slopes = _slopes(trial, parameters, which)
    if slopes is None:
        return set()
    sizes = [0.0 if g is None else float((g * p.detach()).abs().sum()) for g, p in zip(slopes, parameters, strict=True)]
    steep = [0.0 if g is None else float(g.abs().max()) for g in slopes]
    usual, usually = (sorted(x)[len(x) // 2] if x else 0.0 for x in (sizes, steep))
    return {
        names[id(p)]
        for p, size, slope in zip(parameters, sizes, steep, strict=True)
        if size <= _WEAK * usual and slope <= _WEAK * usually
    }


def _slopes(
    trial: Trial, parameters: Sequence[torch.nn.Parameter], which: Sequence[int] | None
) -> Sequence[torch.Tensor | None] | None:
    """Return the gradient of each of PARAMETERS of the model (None if the outputs do not depend on it), of a sum of the
    numbers of the outputs with the indices WHICH (all floating point outputs if None), each times a random number. None
    if no such output depends on parameters, or if the code cannot be differentiated.

    Torch's random numbers, and whether PARAMETERS require gradients, are as before afterwards.
    """
    before = [p.requires_grad for p in parameters]
    try:
        for p in parameters:
            p.requires_grad_(True)
        random = torch.random.fork_rng(devices=[])
        with random, modes_kept(trial.model), warnings.catch_warnings(), torch.enable_grad():
            torch.manual_seed(_SEED)
            warnings.simplefilter("ignore")
            out = called(trial.model, made(trial.inputs))
            every = [t for t in tensors(out) if t.is_floating_point()]
            outs = [t for i, t in enumerate(every) if t.requires_grad and (which is None or i in which)]
            if not outs:
                return None
            generator = torch.Generator().manual_seed(_SEED)
            weights = [torch.randn(t.shape, generator=generator).to(t) for t in outs]
            total = sum((t * w).sum() for t, w in zip(outs, weights, strict=True))
            slopes: Sequence[torch.Tensor | None] = torch.autograd.grad(total, parameters, allow_unused=True)
            return slopes
    except Exception:
        return None  # code that cannot be differentiated: only what is never used is known
    finally:
        for p, old in zip(parameters, before, strict=True):
            p.requires_grad_(old)


#: Kinds of uses that slide a kernel over a map.
_CONVOLUTIONS = frozenset({"conv", "grouped conv", "depthwise", "deconv"})


def branches_alike(trial: Trial, seen: Flow) -> set[str]:
    """Return the keys of parallel branches whose weights could be exchanged because the inputs of TRIAL are too small
    to tell the branches apart, such as three convolutions of one size with different dilations. Empty if there are
    none. SEEN is the flow of the model of TRIAL.

    Compared are convolutions that come after the same uses and have weights of one size, if their settings are not all
    equal. One is blind if some place of its kernel has no influence on the outputs (it meets only padding), or if that
    is not known. If two or more of them are blind, the keys of their branches are returned: those of the blind ones, of
    the uses behind them, and of the use that takes the outputs of several of them; not of what follows this use.
    """
    rows: dict[tuple[frozenset[int], Shape], list[Use]] = {}
    for use in seen.uses:
        weight = use.held.get("weight")
        if use.kind in _CONVOLUTIONS and use.step is not None and weight is not None:
            rows.setdefault((use.before, weight.shape), []).append(use)
    unlike = [uses for uses in rows.values() if len({repr(use.step and use.step.settings) for use in uses}) > 1]
    blind = _blind(trial, {key for uses in unlike for use in uses for key in use.held["weight"].keys})
    keys: set[str] = set()
    for uses in unlike:
        small = {use.index for use in uses if not blind.isdisjoint(use.held["weight"].keys)}
        if len(small) > 1:
            keys |= _up_to_their_end(seen, small)
    return keys


def _blind(trial: Trial, kernels: set[str]) -> set[str]:
    """Return those of KERNELS, keys of weights of convolutions, that have a place in the kernel (a row and a column) at
    which no channel has an influence on the outputs, by its gradient. A key that is no parameter of the model of TRIAL,
    or whose gradient is not known, is returned, too.
    """
    parameters = dict(trial.model.named_parameters(remove_duplicate=False))
    known = {key: p for key in sorted(kernels) if (p := parameters.get(key)) is not None and p.ndim > 2}
    slopes = _slopes(trial, [*known.values()], None) if known else None
    seeing = {key for key, g in zip(known, slopes or (), strict=False) if g is not None and g.abs().amax((0, 1)).all()}
    return kernels - seeing


def _up_to_their_end(seen: Flow, branches: set[int]) -> set[str]:
    """Return the keys of the uses of SEEN with the indices BRANCHES, of all uses that are computed from the output of
    exactly one of them, and of the first uses that are computed from the outputs of several. The keys of what follows
    those that take several are left out.
    """
    of: dict[int, frozenset[int]] = {at: frozenset({at}) for at in branches}
    keys = {key for at in branches for key in seen.uses[at].keys}
    for use in seen.uses:
        taken = frozenset().union(*(of.get(at, frozenset()) for at in use.before))
        if taken and use.index not in of:
            keys.update(use.keys)
            if len(taken) == 1:
                of[use.index] = taken
    return keys


#: Influence on the outputs, relative to what is usual in the model, that counts as none.
_WEAK = 1e-4


def nearly_equal(trial: Trial, entries: MappingOf[str, Entry], unfelt: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of keys of equal sizes, each in alphabetical order, whose weights, as TRIAL has loaded them, differ,
    but by at most 1e-3 of the largest: outputs may be equal up to rounding if the two are exchanged. Weights that are
    exactly equal are no such pair. Of weights of one size, only those with neighbouring means are compared. Keys in
    UNFELT, without a source, of one element or of whole numbers are left out.
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


def by_itself_alone(
    seen: Flow, expected: Flow, entries: MappingOf[str, Entry], mapping: Mapping, verdict: Verdict
) -> set[str]:
    """Return the keys of ENTRIES that the model uses and that no output and no later layer confirms. Keys that were
    certain in MAPPING, the mapping before the proof, and have the same expression in ENTRIES are left out. Empty if
    there is no flow of the source's code (EXPECTED has no uses).

    A key is confirmed if an output of SEEN, the flow of the model, depends on a use of it and is equal to one of
    EXPECTED (any output, if VERDICT says that outputs differ only by steps after the last use); or if a later use that
    depends on it agrees with EXPECTED and reads only keys that were certain. That its own output agrees confirms
    nothing: any layer with the input and the weights of a layer of the source gives the same, even a new head.
    """
    if not expected.uses:
        return set()
    _, _, same = compared_outputs(expected.outputs, seen.outputs)
    before = {e.target: e for e in mapping.entries}
    sure = {key for key, e in before.items() if e.status == "mapped" and not e.default and e.expr == entries[key].expr}
    ends = {i for j in (range(len(seen.behind)) if verdict.beyond else same) for i in seen.behind[j]}
    shown = seen.reaching(ends)
    others = (use for use in seen.uses if use.index not in shown and sure.issuperset(use.keys))
    vouching = [use for use in others if use.keys and expected.gives(use.given)]
    shown |= seen.reaching(earlier for use in vouching for earlier in use.before)
    confirmed = {key for use in seen.uses if use.index in shown for key in use.keys}
    return {key for use in seen.uses for key in use.keys if key in entries} - confirmed - sure


__all__ = ["branches_alike", "by_itself_alone", "nearly_equal", "unfelt_keys"]
