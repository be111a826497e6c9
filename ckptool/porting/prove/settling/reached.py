"""The state that a proof has reached: the mapping with the changes so far, and how much agrees with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...mapping import Entry, Mapping
from ..causes import Codes, Sharp, sharp
from ..flow import Flow
from ..measure import Measured
from ..other_settings import Setting, layer_of
from ..trial import Trial
from ..verdict import Verdict, behind_new_keys, judge


@dataclass(slots=True)
class Reached:
    """What a proof works with, and the state that it has reached.

    Attributes:
        mapping: the mapping to prove, as it was before.
        trial: runs the model with other expressions for its weights.
        codes: the source's code and its forward pass.
        others: further inputs, on which both models have to agree: (flow of the source's code, or None if it cannot be
            run on them; inputs of the model).
        entries: key -> entry of the mapping, with the changes from trials.
        seen: the flow of the model with these entries.
        verdict: how much of `seen` agrees with the flow of the source's code.
        shown: the inputs, as text, with what is to be said of the comparison on them.
        first: the flow of the model before any change.
        changed: the labels of the changes that trials made, as keys.
        causes: settings of the code that make the models differ.
        sharply: the models compared in float64, with the entries as they are now; None if that was not done.
        before, after: such a comparison with the model's own settings, and with the settings of the source's code; None
            unless `causes` were found.
        alike: pairs of keys whose weights the outputs do not tell apart.
        hidden: keys with a factor in the source's code that the outputs do not show.
    """

    mapping: Mapping
    trial: Trial
    codes: Codes
    others: Sequence[tuple[Flow | None, Any]]
    entries: dict[str, Entry]
    seen: Flow
    verdict: Verdict
    shown: str
    first: Flow
    changed: dict[str, None] = field(default_factory=dict)
    causes: list[Setting] = field(default_factory=list)
    sharply: Sharp | None = None
    before: Sharp | None = None
    after: Sharp | None = None
    alike: list[tuple[str, str]] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    @property
    def is_proved(self) -> bool:
        """Return whether everything that could be compared is equal, with the model's own settings."""
        return self.verdict.equal and not self.causes

    @property
    def measured(self) -> Measured | None:
        """Return how far the outputs of the model, or else its layers, with this mapping and its own settings, are from
        those of the source's code; None if the two were not compared in float64.
        """
        told = self.before if self.causes else self.sharply
        return None if told is None else told.measured

    @property
    def parts(self) -> Verdict:
        """Return how much agrees with the model's own settings: the verdict in float64 if `causes` were found, else
        `verdict`.
        """
        return self.before.verdict if self.causes and self.before is not None else self.verdict

    @property
    def divergence(self) -> str:
        """Return the path of the module where the models diverge, with the model's own settings; that of the first
        cause if all uses of weights agree; "the output" if there is no cause either.
        """
        if self.causes and not self.parts.front:
            return self.causes[0].places[0][1]
        return first_divergence(self.parts)

    @property
    def has_open(self) -> bool:
        """Return whether a use of weights in the model reads a key without a source that is not to keep the model's own
        value.
        """
        return any(behind_new_keys(self.seen, self.entries))

    def judge_again(self) -> None:
        """Set `verdict` to the verdict on the flow `seen` with the entries as they are now. Nothing is run."""
        self.verdict = judge(self.codes.expected, self.seen, self.entries)

    def sharp(self, entries: dict[str, Entry], seen: Flow, *, all_outputs: bool = True) -> Sharp | None:
        """Return the comparison of both models in float64, where SEEN is the flow of the model with ENTRIES; None if
        one of the models cannot be run in float64 (see `causes.sharp`).
        """
        return sharp(self.codes, self.trial, entries, seen, all_outputs=all_outputs)

    def take(self, found: tuple[dict[str, Entry], Flow, Verdict, Iterable[str]]) -> None:
        """Make FOUND, the result of a `search`, the present state: (entries, flow, verdict, labels of changes)."""
        self.entries, self.seen, self.verdict = found[:3]
        self.changed |= dict.fromkeys(found[3])

    def holds_on_others(self) -> bool:
        """Return whether the models agree on all further inputs, `others`, with the entries as they are now (`holds`).
        The first inputs on which they do not are noted in `Trial.unlike`; None is noted if they agree on all.
        """
        self.trial.progress.say("comparing outputs on other inputs")
        unlike = (inputs for flow, inputs in self.others if not self.holds(self.entries, self.verdict, flow, inputs))
        self.trial.unlike = next(unlike, None)
        return self.trial.unlike is None

    def holds(self, entries: dict[str, Entry], first: Verdict, expected: Flow | None, inputs: Any) -> bool:
        """Return whether the models agree on INPUTS of the model, run with ENTRIES, as much as FIRST says of the first
        inputs. EXPECTED is the flow of the source's code on INPUTS; True if it is None, because that code cannot be run
        on them; False if the model cannot be run on INPUTS. The inputs of the trial stay as they are.

        If FIRST compared outputs, and is not `Verdict.beyond`, all outputs on INPUTS have to be equal, not only up to
        the last use of weights. Else it is enough that the verdict on INPUTS is equal in any way, or that those outputs
        are equal that depend on no key without a source (`but_for_new_keys`).
        """
        if expected is None:
            return True
        before, self.trial.inputs = self.trial.inputs, inputs
        seen = self.trial.run(entries.values())
        self.trial.inputs = before
        again = judge(expected, seen, entries, turned=first.turned)
        if first.compared and not first.beyond:
            return again.equal and not again.beyond
        return again.equal or but_for_new_keys(expected, seen, entries) is not None


def but_for_new_keys(expected: Flow, seen: Flow | None, entries: dict[str, Entry]) -> Verdict | None:
    """Return the verdict on SEEN, the flow of the model, without its outputs that depend on a key without a source in
    ENTRIES, if the other outputs are equal to those of EXPECTED and at least 60 percent of the uses of weights agree;
    else None, also if SEEN is None. If no other outputs can be compared, the uses decide whether that is equal
    (`judge`).
    """
    found = judge(expected, seen, entries, all_outputs=False)
    return found if found.equal and found.agreeing >= _MOST * found.uses else None


#: Share of the uses of weights that has to agree where outputs cannot, because some keys have no source.
_MOST = 0.6


def first_divergence(verdict: Verdict) -> str:
    """Return the path of the module of the first key where the models diverge, by VERDICT (the key itself if it is in
    no module); "the output" if all uses of weights agree.
    """
    return next((layer_of(use) for use in verdict.front if use.keys), "the output")


__all__ = ["Reached", "but_for_new_keys", "first_divergence"]
