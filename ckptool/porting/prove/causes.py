"""Find settings of code that make two models differ although their weights are right, by trying each setting on the
model.

For each setting that differs (`other_settings`), the model is run in float64 with the setting of the source's code. If
more uses of weights agree then, the setting is a cause. No weights are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as MappingOf
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ...model_code.inputs import leaves, with_leaves
from ..mapping import Entry
from .flow import Flow
from .layers import apart_at_most
from .measure import Measured, measured, sharpened
from .other_settings import Setting, settings
from .trial import Trial
from .verdict import Verdict, judge, made_of_known

#: Settings that are tried, and how often what is left is looked at again.
_MOST, _ROUNDS = 24, 4
#: A cause makes outputs differ by less than this share of what they differed by, if no more uses agree.
_LESS = 0.5
_SEED = 23


@dataclass
class Codes:
    """The source's code as a proof has it, and how its modules correspond to those of the model.

    Attributes:
        expected: the flow of the source's code.
        wider: returns the flow of the source's code in float64, or None if that cannot be run.
        modules: key of the model -> (module of the source's code, module of the model).
        coarse: how far inputs may be from those of the source's code, relative to each number: more than 0 if they were
            saved in low precision.
    """

    expected: Flow
    wider: Callable[[], Flow | None] = lambda: None
    modules: MappingOf[str, tuple[torch.nn.Module, torch.nn.Module]] = field(default_factory=dict)
    coarse: float = 0.0

    @cached_property
    def wide(self) -> Flow | None:
        """Return the flow of the source's code in float64, which `wider` makes when it is first needed; None if the
        code cannot be run in float64.
        """
        return self.wider()


@dataclass(frozen=True, slots=True)
class Sharp:
    """The comparison of both models in float64, where only differences beyond rounding count.

    Attributes:
        verdict: how much agrees.
        measured: how far the outputs are apart, or, if none can be compared, the layers; None if nothing can be
            measured.
        wide: the flow of the model in float64.
        tolerance: how far two equal outputs may be apart, relative to the largest value.
    """

    verdict: Verdict
    measured: Measured | None
    wide: Flow
    tolerance: float

    @property
    def has_outputs(self) -> bool:
        """Return whether outputs could be compared."""
        return self.measured is not None and self.measured.of_outputs

    @property
    def outputs_are_equal(self) -> bool:
        """Return whether outputs could be compared, and rounding in float32 explains their difference."""
        return self.measured is not None and self.measured.of_outputs and self.measured.is_equal

    def is_ahead_of(self, other: Sharp) -> bool:
        """Return whether this comparison is better than OTHER: more uses agree (counting inputs and outputs of uses)
        and the difference is at most twice as large; or at least as many agree and the difference is less than half as
        large.

        If a difference was not measured in one of the two, only the number of uses counts.
        """
        ours, theirs = (one.verdict.agreeing + one.verdict.entered for one in (self, other))
        if self.measured is not None and other.measured is not None:
            if self.measured.difference < _LESS * other.measured.difference and ours >= theirs:
                return True
            if self.measured.difference > other.measured.difference / _LESS:
                return False
        return ours > theirs


def sharp(
    codes: Codes, trial: Trial, entries: dict[str, Entry], seen: Flow, *, all_outputs: bool = True
) -> Sharp | None:
    """Return the comparison of both models in float64, with the mapping ENTRIES (key -> entry) in the model; None if
    one of them cannot be run in float64. If no outputs can be compared, layers are measured instead (`apart_at_most`);
    the result has no measured difference if no layer can be compared either.

    CODES has the source's code, TRIAL runs the model. SEEN is the flow of the model in float32. With ALL_OUTPUTS False,
    outputs computed from keys without a source are left out. The model keeps the weights of ENTRIES, and the flow of
    the source's code in float64 (`Codes.wide`) compares channels from then on as finely as rounding allows.
    """
    if codes.wide is None:
        return None
    wide = trial.run(entries.values(), wider=True)
    if wide is None:
        return None
    share = sharpened(codes.expected, seen, codes.wide, wide)
    pair = (seen, wide) if all_outputs else (made_of_known(seen, entries), made_of_known(wide, entries))
    found = measured(codes.expected, pair[0], codes.wide, pair[1], _blurred(codes, trial, entries))
    tolerance = share if found is None else found.bound / found.largest
    verdict = judge(codes.wide, wide, entries, all_outputs=all_outputs, tolerance=tolerance)
    if found is None and codes.wide.uses:
        worst = apart_at_most(codes.wide, wide, entries)
        found = None if worst is None else Measured(worst, share, 1.0, of_outputs=False)
    return Sharp(verdict, found, wide, tolerance)


def _blurred(codes: Codes, trial: Trial, entries: dict[str, Entry]) -> Flow | None:
    """Return the flow of the model with ENTRIES, in float64, on inputs changed at random by as much as rounding may
    have changed the saved inputs; the inputs of TRIAL stay as they are. None if the inputs are exact, or the model
    cannot be run.
    """
    if not codes.coarse:
        return None
    generator = torch.Generator().manual_seed(_SEED)
    before = trial.inputs

    def off(t: torch.Tensor) -> torch.Tensor:
        """Return T with each number changed at random, relative to it by at most `codes.coarse`."""
        return t * (1 + codes.coarse * (torch.rand(t.shape, generator=generator) * 2 - 1).to(t))

    trial.inputs = with_leaves(before, [off(t) if t.is_floating_point() else t for _, t in leaves(before)])
    try:
        return trial.run(entries.values(), wider=True)
    finally:
        trial.inputs = before


def causes(
    codes: Codes, trial: Trial, entries: dict[str, Entry], seen: Flow
) -> tuple[list[Setting], Sharp | None, Sharp | None]:
    """Return (the settings that differ and are causes, the comparison of both models in float64 before any setting was
    changed, the comparison with all of these changed). A cause is a setting (eps, activation) with which more agrees
    (`Sharp.is_ahead_of`) once the model has its value from the source's code. At most four are found, each on top of
    those before it, by `_better`; the search ends when time is over. If none is found, both comparisons are the same
    one.

    ([], None, None) if no setting that can be tried differs, or if the models cannot be run in float64. The model keeps
    the changed settings until `restored` is called. SEEN is the flow of the model with ENTRIES in float32.
    """
    found: list[Setting] = []
    if not _candidates(codes, entries, seen, found):
        return found, None, None
    now = sharp(codes, trial, entries, seen)
    if now is None:
        return found, None, None
    first = now
    for _ in range(_ROUNDS):
        better = _better(codes, trial, entries, seen, found, now)
        if better is None:
            break
        now = better
    return found, first, now


def suspects(codes: Codes, entries: dict[str, Entry], seen: Flow, front: set[str]) -> list[Setting]:
    """Return the settings that differ between both codes at a module of the model whose path is in FRONT, where the
    models diverge; [] if there are none. Nothing is tried here: it is open whether they matter, and settings that
    cannot be tried are there, too. SEEN is the flow of the model with ENTRIES.
    """
    every = settings(codes.expected, seen, entries, codes.modules)
    return [one for one in every if any(own in front for _, own in one.places)]


def _candidates(codes: Codes, entries: dict[str, Entry], seen: Flow, found: list[Setting]) -> list[Setting]:
    """Return the first 24 settings that differ between both codes, can be tried, and are not in FOUND (none of FOUND
    has the same name and the same two values), in the order of `settings`; [] if there are none. SEEN is the flow of
    the model with ENTRIES.
    """
    told = {(one.name, one.theirs, one.own) for one in found}
    every = settings(codes.expected, seen, entries, codes.modules)
    return [one for one in every if one.can_be_tried and (one.name, one.theirs, one.own) not in told][:_MOST]


def _better(
    codes: Codes, trial: Trial, entries: dict[str, Entry], seen: Flow, found: list[Setting], now: Sharp
) -> Sharp | None:
    """Find one more setting that makes the models differ, and return the comparison of the models with it changed. Each
    setting that differs and is not in FOUND (`_candidates`) is tried, in all of its places at once; the first with
    which more agrees than in NOW, the comparison so far, counts (`Sharp.is_ahead_of`). It is added to FOUND and stays
    in the model, and TRIAL notes how to undo it.

    None if there is no such setting, or if time is over; the model then has the settings that it had before. SEEN is
    the flow of the model with ENTRIES in float32.
    """
    for one in _candidates(codes, entries, seen, found):
        if trial.progress.late:
            break
        trial.progress.say(f"trying whether {one}")
        swaps, trial.swaps = trial.swaps, {**trial.swaps, **one.swaps}
        values = [(module, name, getattr(module, name)) for module, name, _ in one.modules]
        set_attributes(one.modules)
        changed = sharp(codes, trial, entries, seen)
        if changed is not None and changed.is_ahead_of(now):
            found.append(one)
            trial.undo += values
            return changed
        trial.swaps = swaps
        set_attributes(values)
    return None


def set_attributes(values: Iterable[tuple[torch.nn.Module, str, Any]]) -> None:
    """Set attributes of modules to VALUES, (module, name, value)."""
    for module, name, value in values:
        setattr(module, name, value)


@contextmanager
def as_it_was(trial: Trial) -> Iterator[None]:
    """In this context, the settings of the model may be changed; afterwards, also after an error, the changes that
    TRIAL noted are undone.
    """
    try:
        yield
    finally:
        restored(trial)


def restored(trial: Trial) -> None:
    """Undo the changes of settings that TRIAL made in the model and noted (`undo`, `swaps`), and forget them."""
    set_attributes(reversed(trial.undo))
    trial.undo, trial.swaps = [], {}


__all__ = ["Codes", "Sharp", "as_it_was", "causes", "restored", "set_attributes", "sharp", "suspects"]
