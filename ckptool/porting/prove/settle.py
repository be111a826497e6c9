"""Turn the result of a proof into a mapping: settle doubts, and describe the result in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from ...errors import counted, printable
from ...keys import collapse
from ...keys.known_buffers import is_counter
from ..expression import Expr
from ..mapping import Entry, Mapping
from ..questions import Question, Reason
from .causes import Codes, Sharp, as_it_was, causes, restored, sharp, suspects
from .flow import Flow, Use
from .goes_in import takes_the_same
from .ground import Ground
from .improving import FEWEST, TRIALS, search
from .influence import (
    by_itself_alone,
    carried_along,
    doubt_unseen_rows,
    felt,
    nearly_equal,
    refuted,
    taken_back,
    unfelt_keys,
    unseen,
)
from .layers import layers
from .measure import Measured
from .other_conventions import factors_as_in_others, without_factors
from .other_settings import Setting, layer_of
from .trial import Trial
from .unseen_orders import doubt_turned
from .verdict import Verdict, apart, behind_new_keys, given_by, judge, shown_by


def settle(
    mapping: Mapping,
    trial: Trial,
    codes: Codes,
    shown: str,
    others: Iterable[tuple[Flow | None, Any]] = (),
    copies: MappingOf[str, Sequence[str]] = MappingProxyType({}),
) -> Mapping:
    """Return MAPPING with the result of its proof as its `proof`, with doubts settled and new doubts added. The
    settings of the model are as before afterwards.

    Args:
        mapping: the mapping to prove.
        trial: runs the model with other expressions for its weights.
        codes: the source's code and its forward pass.
        shown: the inputs, as text.
        others: further inputs on which both models have to agree: (flow of the source's code, inputs of the model).
        copies: key -> other keys of the file that would suit the source's code as well. Which copy is right stays a
            doubt.
    """
    with as_it_was(trial):
        return _settled(mapping, trial, codes, shown, others, copies)


@dataclass(slots=True)
class _Reached:
    """The state that a proof has reached.

    Attributes:
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


def _settled(
    mapping: Mapping,
    trial: Trial,
    codes: Codes,
    shown: str,
    others: Iterable[tuple[Flow | None, Any]],
    copies: MappingOf[str, Sequence[str]],
) -> Mapping:
    expected = codes.expected
    entries = {e.target: e for e in mapping.entries}
    trial.progress.say("comparing outputs")
    seen = trial.run(entries.values())
    verdict = judge(expected, seen, entries)
    if seen is None or (not verdict.compared and verdict.agreeing <= 0 and not expected.uses):
        what = "the model cannot be run on these inputs" if seen is None else "no output is of the size of a saved one"
        return replace(mapping, proof=nothing_compared(what, trial.runs))
    reached = _Reached(entries, seen, verdict, shown, seen)
    others = list(others)
    _reach(reached, mapping, trial, codes, others)
    unfelt: list[str] = []
    if reached.is_proved and reached.changed:
        _settle_hidden_factors(reached, mapping, trial, codes, others)
    if reached.is_proved:
        trial.progress.say("looking which keys outputs depend on")
        trial.load(reached.entries.values())
        unfelt = unfelt_keys(trial, reached.seen, expected, reached.entries)
        pairs = list(islice(nearly_equal(trial, reached.entries, unfelt), _MOST_PAIRS))
        reached.alike = [pair for pair in pairs if _may_be_exchanged(pair, reached, trial, codes)]
    reached.entries = _settled_entries(reached, mapping, trial, codes, unfelt)
    if reached.is_proved and reached.verdict.turned:
        reached.entries = doubt_turned(reached.entries, reached.seen, Reason.OUTPUTS_TURNED)
    if copies:
        reached.entries = {key: _of_copies(entry, copies) for key, entry in reached.entries.items()}
        reached.shown += ", with one of the copies that the file holds"
    proof = _account(reached, mapping, trial, codes, unfelt)
    return replace(mapping, proof=proof).with_entries([reached.entries[e.target] for e in mapping.entries])


#: Pairs of keys with nearly equal weights that are exchanged to see whether outputs show it.
_MOST_PAIRS = 8


def _may_be_exchanged(pair: tuple[str, str], reached: _Reached, trial: Trial, codes: Codes) -> bool:
    """Return whether outputs are equal up to rounding also if the two keys of PAIR get each other's weights. The model
    has the weights of REACHED afterwards.
    """
    one, other = (reached.entries[key] for key in pair)
    turned = {pair[0]: replace(one, expr=other.expr), pair[1]: replace(other, expr=one.expr)}
    entries = reached.entries | turned
    seen = trial.run(entries.values())
    found = None if seen is None else sharp(codes, trial, entries, seen)
    trial.load(reached.entries.values())
    return found is not None and found.outputs_are_equal


def _reach(
    reached: _Reached, mapping: Mapping, trial: Trial, codes: Codes, others: Iterable[tuple[Flow | None, Any]]
) -> None:
    """Change REACHED in steps, each only if the outputs do not agree yet: change settings, search for other weights
    than those of MAPPING, change settings again for keys that were filled (or before the search, if REACHED has
    causes), allow outputs of one size to change places, and leave out outputs that depend on keys without a source.

    If they agree, the result has to hold on OTHERS, further inputs, after at most one more change of settings and one
    fine search; else it is not equal. At last the difference that is left is measured in double precision: if it is
    neither exact nor within what the verdict allows, and no cause is found, the result is not equal, either. The
    numbers of the run in double precision are kept in `sharply`.
    """
    expected, others, begun = codes.expected, list(others), reached.entries
    had_open = _has_open(reached)  # what a key without a source makes is no work of a setting
    if not reached.verdict.equal and not had_open:  # settings come first: no weight is changed for a setting
        _change_settings(reached, trial, codes)
    if not reached.verdict.equal:
        _search(reached, trial, codes)
    elif had_open and not reached.verdict.compared and expected.uses:
        _search_for_new_keys(reached, mapping, trial, codes)
    if not reached.verdict.equal and had_open and not _has_open(reached):
        _change_settings(reached, trial, codes)
    elif reached.causes and (not reached.verdict.equal or _may_be_of_others(reached.first, begun, trial, expected)):
        _search_before_settings(reached, trial, codes, begun)
    if not reached.verdict.equal:  # last, so that weights are searched for with which each is in its place
        verdict = judge(expected, reached.seen, reached.entries, turned=True)
        if verdict.equal and verdict.compared and not verdict.beyond:
            reached.verdict = verdict
            reached.shown += ", though outputs of one size have changed places"
    whole = reached.verdict.equal
    if not whole:
        reached.verdict = _but_for_new_keys(expected, reached.seen, reached.entries) or reached.verdict
    if reached.verdict.equal:
        if not _holds_on(others, reached, trial) and not reached.causes:
            # the first inputs differed by just less than the comparison allows: a setting may be the cause all the same
            _change_settings(reached, trial, codes)
        if not reached.causes and not (reached.verdict.equal and _holds_on(others, reached, trial)):
            _search_finely(reached, trial, codes)
        if not reached.verdict.equal or not _holds_on(others, reached, trial):
            reached.verdict = replace(reached.verdict, equal=False)
            reached.shown += ", though not on other values"
    trial.progress.say("measuring what rounding explains")
    all_outputs = whole or not reached.verdict.equal
    reached.sharply = sharp(codes, trial, reached.entries, reached.seen, all_outputs=all_outputs)
    if reached.causes and reached.changed:
        reached.after = reached.sharply
    if reached.is_proved and reached.sharply is not None and not _is_exact(reached.sharply, reached.verdict):
        _look_for_causes(reached, trial, codes)
        if not reached.causes and _search_finely(reached, trial, codes) and _holds_on(others, reached, trial):
            reached.sharply = sharp(codes, trial, reached.entries, reached.seen, all_outputs=all_outputs)
        if reached.causes or reached.sharply is None or not _is_within(reached.sharply, reached.verdict):
            told = reached.sharply.verdict if reached.sharply is not None else reached.verdict
            reached.verdict = replace(reached.verdict, equal=False, front=told.front, agreeing=told.agreeing)


def _settle_hidden_factors(
    reached: _Reached, mapping: Mapping, trial: Trial, codes: Codes, others: Sequence[tuple[Flow | None, Any]]
) -> None:
    """Take factors that trials found out of weights where nothing but the layer itself shows them, and answer questions
    about factors that outputs do not answer as they answered them about other keys. REACHED changes.
    """
    bare = without_factors(reached.entries, mapping.entries, trial.shapes)
    if bare and _put_if_equal(reached, bare, mapping, trial, codes, others):
        reached.hidden += bare
    else:
        for key in list(bare)[:_MOST_FACTORS] if len(bare) > 1 else ():
            if _put_if_equal(reached, {key: bare[key]}, mapping, trial, codes, others):
                reached.hidden.append(key)
    new = factors_as_in_others(reached.entries, mapping.entries, codes.expected)
    if new and reached.verdict.compared and _put_if_equal(reached, new, mapping, trial, codes, others):
        reached.hidden = [key for key in reached.hidden if key not in new]


#: Keys with a factor that are tried one by one.
_MOST_FACTORS = 32


def _put_if_equal(
    reached: _Reached,
    new: MappingOf[str, Expr],
    mapping: Mapping,
    trial: Trial,
    codes: Codes,
    others: Sequence[tuple[Flow | None, Any]],
) -> bool:
    """Put the expressions NEW (key -> expression) into REACHED, and return True, if outputs stay equal, also on OTHERS,
    further inputs. If none can be compared, all uses have to agree that agreed, but those that read these keys.
    """
    before = {entry.target: entry for entry in mapping.entries}
    changed = {
        key: before[key] if before[key].expr == expr else reached.entries[key].tried(expr) for key, expr in new.items()
    }
    entries = reached.entries | changed
    seen = trial.run(entries.values())
    if seen is None:
        return False
    verdict = judge(codes.expected, seen, entries, turned=reached.verdict.turned)
    found = reached.sharply
    if reached.verdict.compared and not reached.verdict.beyond:
        found = sharp(codes, trial, entries, seen)
        equal = verdict.equal and found is not None and found.outputs_are_equal
        equal = equal and all(_holds(trial, entries, verdict, *other) for other in others)
    else:
        agreed, now = (given_by(codes.expected, flow) for flow in (reached.seen, seen))
        same = [
            b or not a or not new.keys().isdisjoint(u.keys) for a, b, u in zip(agreed, now, seen.uses, strict=False)
        ]
        equal = len(same) == len(agreed) == len(now) and all(same)
        verdict = replace(reached.verdict, agreeing=verdict.agreeing)
    if equal:
        reached.entries, reached.seen, reached.verdict, reached.sharply = entries, seen, verdict, found
    return equal


def _has_open(reached: _Reached) -> bool:
    """Return whether a use of weights in the model reads a key without a source."""
    return any(behind_new_keys(reached.seen, reached.entries))


def _change_settings(reached: _Reached, trial: Trial, codes: Codes) -> None:
    """Note in REACHED the settings of the source's code with which more agrees (`causes`), and judge the model with
    them again. With such a cause the mapping does not count as proved. The model keeps these settings until `settle`
    ends, or until they are restored.
    """
    _look_for_causes(reached, trial, codes)
    if reached.causes:
        reached.seen = trial.run(reached.entries.values()) or reached.seen
        reached.verdict = judge(codes.expected, reached.seen, reached.entries)


def _search(reached: _Reached, trial: Trial, codes: Codes, most: int = TRIALS) -> None:
    found = search(reached.entries, reached.seen, reached.verdict, trial, codes.expected, most)
    reached.entries, reached.seen, reached.verdict = found[:3]
    reached.changed |= found[3]


def _search_for_new_keys(reached: _Reached, mapping: Mapping, trial: Trial, codes: Codes) -> None:
    """Search for what keys without a source are made of where no outputs are compared: what comes before these keys
    agrees, which says nothing about them. REACHED changes if more layers agree then, and a later layer, of which
    MAPPING is certain, confirms the keys: a new head gives what a layer of the source gives, if it has its weights.
    """

    def confirms(seen: Flow, entries: dict[str, Entry], verdict: Verdict, keys: Iterable[str]) -> bool:
        return by_itself_alone(seen, codes.expected, entries, mapping, verdict).isdisjoint(keys)

    before = replace(reached.verdict, equal=False)
    front = before.front or _open_front(reached)
    trial.confirms = confirms
    try:
        found = search(reached.entries, reached.seen, replace(before, front=front), trial, codes.expected, FEWEST)
    finally:
        trial.confirms = None
    if found[2].is_ahead_of(before):
        reached.entries, reached.seen = found[:2]
        reached.verdict = judge(codes.expected, reached.seen, reached.entries)
        reached.changed |= found[3]


def _open_front(reached: _Reached) -> tuple[Use, ...]:
    """Return the first uses of keys without a source, in the order of execution."""
    open_ = {key for key, entry in reached.entries.items() if entry.expr is None and not entry.default}
    return tuple(use for use in reached.seen.uses if not open_.isdisjoint(use.keys))[:_FEWEST_FRONT]


#: Uses of keys without a source where such a search begins.
_FEWEST_FRONT = 4


def _may_be_of_others(seen: Flow, entries: dict[str, Entry], trial: Trial, expected: Flow) -> bool:
    """Return whether a layer where the models diverge has the input of a layer of the source's code with other weights
    than the mapping gives it. SEEN is the flow of the model with ENTRIES and its own settings.
    """
    ground = Ground(entries, seen, expected, trial.shapes)
    for use in judge(expected, seen, entries).front:
        sources = {key for own in use.keys if own in entries for key in entries[own].sources}
        if any(sources.isdisjoint(other.keys) for other, _ in takes_the_same(ground, use)):
            return True
    return False


def _search_before_settings(reached: _Reached, trial: Trial, codes: Codes, begun: dict[str, Entry]) -> None:
    """Search for weights with the model's own settings, from the entries BEGUN on, and, if outputs are not equal with
    the settings that were found, for settings after that. Change REACHED if outputs are equal then; else leave it and
    the settings as they are.

    Around wrong weights, the steps of two layers are compared that have nothing to do with each other, and a difference
    between them may look like a cause.
    """
    swaps, undo, values = trial.swaps, trial.undo, [(one, name, getattr(one, name)) for one, name, _ in trial.undo]
    restored(trial)
    own = _Reached(begun, reached.first, judge(codes.expected, reached.first, begun), reached.shown, reached.first)
    trial.misses = 0
    _search(own, trial, codes, FEWEST if reached.verdict.equal else TRIALS)
    if not own.verdict.equal and not reached.verdict.equal:
        _change_settings(own, trial, codes)
    if own.verdict.equal:
        for name in ("entries", "seen", "verdict", "changed", "causes", "before", "after"):
            setattr(reached, name, getattr(own, name))
        return
    restored(trial)
    trial.swaps, trial.undo = swaps, undo
    for module, name, value in values:
        setattr(module, name, value)


def _search_finely(reached: _Reached, trial: Trial, codes: Codes) -> bool:
    """Search in float64 for other weights, if the outputs are farther apart than rounding explains. If outputs are
    equal with those found, in float64 and in float32, and the changed layers agree, put them into REACHED and return
    True; else return False.

    Branches of small effect, or an eps that a weight already holds, are told apart by no comparison in float32.
    """
    now = sharp(codes, trial, reached.entries, reached.seen)
    if now is None or codes.wide is None or _is_within(now, reached.verdict):
        return False
    trial.finely = now.tolerance
    try:
        found = search(reached.entries, now.wide, replace(now.verdict, equal=False), trial, codes.wide)
    finally:
        trial.finely = None
    seen = trial.run(found[0].values())
    verdict = judge(codes.expected, seen, found[0])
    changed = {key for key, entry in found[0].items() if entry is not reached.entries[key]}
    fine = given_by(codes.wide, found[1])
    shown = all(fine[use.index] for use in found[1].uses if not changed.isdisjoint(use.keys))
    if seen is None or not found[2].equal or not verdict.equal or not shown:
        return False  # what is smaller than the bound has to show in the layers themselves
    reached.entries, reached.seen, reached.verdict = found[0], seen, verdict
    reached.changed |= found[3]
    return True


def _holds_on(others: Sequence[tuple[Flow | None, Any]], reached: _Reached, trial: Trial) -> bool:
    trial.progress.say("comparing outputs on other inputs")
    trial.unlike = next(
        (inputs for flow, inputs in others if not _holds(trial, reached.entries, reached.verdict, flow, inputs)), None
    )
    return trial.unlike is None


def _look_for_causes(reached: _Reached, trial: Trial, codes: Codes) -> None:
    reached.causes, reached.before, reached.after = causes(codes, trial, reached.entries, reached.seen)


def _settled_entries(
    reached: _Reached, mapping: Mapping, trial: Trial, codes: Codes, unfelt: Sequence[str]
) -> dict[str, Entry]:
    """Return the entries (key -> entry) after a proof: if it succeeded, with settled doubts; else without vain changes.
    Sources from trials that nothing confirms are taken back or questioned. UNFELT are the keys that the outputs do not
    depend on.
    """
    entries, seen, verdict, expected = reached.entries, reached.seen, reached.verdict, codes.expected
    if reached.is_proved:
        open_still = set(unfelt) | by_itself_alone(seen, expected, entries, mapping, verdict)
        if not verdict.compared:
            fine = shown_by([expected.gives(use.given) for use in seen.uses], seen)
            open_still |= {key for use in seen.uses if not fine[use.index] for key in use.keys}
        entries = felt(entries, mapping, trial, open_still)
        entries = carried_along(entries, mapping, open_still, trial.shapes)
        entries = doubt_unseen_rows(entries, mapping, seen, trial.shapes)
    alone = by_itself_alone(seen, expected, entries, mapping, verdict)
    entries = taken_back(entries, mapping, alone)
    if reached.is_proved and not verdict.compared:
        entries = refuted(entries, seen, expected, trial)
    if not (verdict.equal and verdict.compared):
        entries = unseen(entries, mapping, alone if verdict.equal else None)
    return entries if reached.is_proved else _without_vain_changes(entries, mapping, expected, seen)


def _account(reached: _Reached, mapping: Mapping, trial: Trial, codes: Codes, unfelt: Sequence[str]) -> dict[str, Any]:
    """Return the dict that becomes `Mapping.proof`: "equal", "text", "first_divergence", "runs", measured differences,
    "changes", "unfelt", "stopped", "causes", "suspects", and, if the proof failed and the source's code was followed,
    "layers". UNFELT are the keys that the outputs do not depend on.
    """
    may_be: list[Setting] = []
    if not reached.is_proved and not reached.causes:
        front = {layer_of(use) for use in reached.verdict.front}
        may_be = suspects(codes, reached.entries, reached.first, front)
    text = _said(reached, codes.expected, may_be)
    stopped = None if reached.is_proved or reached.causes else _stopped(trial)
    if stopped == "time":
        text += f"; the search had its {trial.progress.patience:g} s (--patience gives it more)"
    elif stopped == "trials":
        text += f"; the search ended after {counted(trial.misses, 'trial')} in vain"
    new = [e.target for e in mapping.entries if reached.entries[e.target].expr not in (None, e.expr)]
    if new:
        text += f"; settled by trial: {counted(len(new), 'key')} ({_few(new)})"
    if unfelt:
        text += f"; they do not depend on {_unfelt_text(unfelt)}"
    if reached.hidden:
        text += f"; they do not show a factor of {counted(len(reached.hidden), 'key')} ({_few(reached.hidden)})"
        text += ", of which the plain tensors were taken"
    if reached.alike:
        said = (" and ".join(printable(key, 60) for key in pair) for pair in reached.alike[:_MOST_CAUSES])
        text += f"; nothing measurable changes if weights are exchanged of {', or of '.join(said)}"
    divergence = None if reached.is_proved else reached.divergence
    proof = _proof(reached.is_proved, text, divergence, trial.runs) | _as_measured(reached.measured)
    proof |= {"changes": list(reached.changed), "unfelt": list(unfelt), "stopped": stopped}
    proof |= {"causes": [one.as_json() for one in reached.causes], "suspects": [one.as_json() for one in may_be]}
    if not reached.is_proved and codes.expected.uses:
        seen = reached.first if reached.causes else reached.seen
        proof["layers"] = layers(codes.expected, seen, reached.entries, reached.parts)
    return proof


def _is_exact(sharply: Sharp, verdict: Verdict) -> bool:
    """Return whether the outputs of both models could be compared and are equal up to rounding in float64."""
    return verdict.compared > 0 and sharply.measured is not None and sharply.has_outputs and sharply.measured.is_exact


def _is_within(sharply: Sharp, verdict: Verdict) -> bool:
    """Return whether rounding explains every difference. If outputs could be compared and do not differ only by steps
    after the last use, these decide; else whether, in float64, everything compared is equal or at least as many uses of
    weights agree as in VERDICT.
    """
    if verdict.compared and not verdict.beyond and sharply.has_outputs:
        return sharply.outputs_are_equal
    return sharply.verdict.equal or sharply.verdict.agreeing >= verdict.agreeing


def _as_measured(found: Measured | None) -> dict[str, float | None]:
    if found is None:
        return {"difference": None, "bound": None, "largest": None}
    return {"difference": found.difference, "bound": found.bound, "largest": found.largest}


def _without_vain_changes(
    entries: dict[str, Entry], mapping: Mapping, expected: Flow, seen: Flow | None
) -> dict[str, Entry]:
    """Return ENTRIES with the entries of MAPPING in place of those that trials changed in vain: a change stays only if
    its key is used and the outputs of all uses of it occur in EXPECTED, the flow of the source's code. SEEN is the flow
    of the model, or None.
    """
    before = {e.target: e for e in mapping.entries}
    right: dict[str, bool] = {}
    if seen is not None:
        for use in seen.uses:
            agrees = bool(expected.uses) and expected.gives(use.given)
            for key in use.keys:
                right[key] = right.get(key, True) and agrees
    return {
        key: entry if entry.expr == before[key].expr or right.get(key, False) else before[key]
        for key, entry in entries.items()
    }


def _stopped(trial: Trial) -> str | None:
    """Return the limit that ended the search of TRIAL: "time", or "trials" if there was time left; None if it ended by
    itself.
    """
    return "time" if trial.progress.late else "trials" if trial.is_over else None


def _but_for_new_keys(expected: Flow, seen: Flow | None, entries: MappingOf[str, Entry]) -> Verdict | None:
    """Return the verdict on SEEN about the outputs that depend on no key without a source in ENTRIES, if these are
    equal to EXPECTED and at least 60 percent of the uses of weights agree; else None.
    """
    found = judge(expected, seen, entries, all_outputs=False)
    return found if found.equal and found.agreeing >= _MOST * found.uses else None


#: Share of the uses of weights that has to agree where outputs cannot, because some keys have no source.
_MOST = 0.6


def _of_copies(entry: Entry, copies: MappingOf[str, Sequence[str]]) -> Entry:
    """Return ENTRY with the question which of several copies in the file is right, and no other, if it reads a key in
    COPIES (key -> other keys that suit the source's code as well); else as it is. Each option reads one of the other
    copies.
    """
    if entry.expr is None or not any(key in copies for key in entry.sources):
        return entry
    count = max(len(copies.get(key, ())) for key in entry.sources)
    options = [
        entry.expr.rename(lambda key, n=n: copies[key][n] if n < len(copies.get(key, ())) else key)  # type: ignore[misc]
        for n in range(count)
    ]
    return entry.settled(entry.evidence).asking(Question(Reason.COPIES_OF_CODE, (), tuple(options)))


def _holds(trial: Trial, entries: dict[str, Entry], first: Verdict, expected: Flow | None, inputs: Any) -> bool:
    """Return whether the models agree on other INPUTS of the model as well, with ENTRIES, as much as the verdict FIRST
    on the first inputs says; True if EXPECTED, the flow of the source's code on them, is None because it cannot be run.
    """
    if expected is None:
        return True
    before, trial.inputs = trial.inputs, inputs
    seen = trial.run(entries.values())
    trial.inputs = before
    again = judge(expected, seen, entries, turned=first.turned)
    if first.compared and not first.beyond:
        return again.equal and not again.beyond
    return again.equal or _but_for_new_keys(expected, seen, entries) is not None


def _said(reached: _Reached, expected: Flow, may_be: Sequence[Setting]) -> str:
    verdict, shown, how = reached.verdict, reached.shown, reached.measured
    agree = f"{verdict.agreeing:,} of {counted(verdict.uses, 'use')} of weights give the same on {shown}"
    if reached.is_proved:
        if verdict.beyond:
            same = f"all {counted(verdict.uses, 'use')} of weights give the same on {shown}"
            return f"{same}; outputs differ in what follows{_that(may_be)}"
        if verdict.compared:
            return f"outputs are equal on {shown}{f', {how}' if how is not None else ''}"
        beyond = f", all before {printable(verdict.left[0], 60)}, which has no source" if verdict.left else ""
        same = agree if how is None else f"{agree}, {how}"
        return f"{same}{beyond}; no outputs are of one size"
    differ = f"outputs differ on {shown}"
    if how is not None and not how.is_equal:
        differ += f", by {how}"
    elif how is None and verdict.compared:
        difference = apart(expected.outputs, reached.seen.outputs)
        if difference is not None and difference[0] > 0:
            differ += f", by up to {difference[0]:.2g} where the largest is {difference[1]:.2g}"
    if reached.causes:
        rest, later = agree, reached.after
        if later is not None:
            fine = later.outputs_are_equal if later.has_outputs else later.verdict.equal
            rest = "outputs are equal" if fine else f"outputs differ at {first_divergence(later.verdict)}"
        why = "; ".join(map(str, reached.causes[:_MOST_CAUSES]))
        return f"{differ}; the first divergence is at {reached.divergence}: {why}; with that changed, {rest}"
    if not expected.uses:
        return differ
    return f"{differ}; the first divergence is at {reached.divergence}: {agree}{_that(may_be)}"


#: Causes that the sentence about a proof names; the JSON has all.
_MOST_CAUSES = 4


def _that(may_be: Sequence[Setting]) -> str:
    """Return the end of a sentence that names the settings MAY_BE, at most two, which may be the cause of the
    difference although no trial confirmed it; "" if there are none.
    """
    return f"; it may be that {'; '.join(map(str, may_be[:2]))}" if may_be else ""


def first_divergence(verdict: Verdict) -> str:
    """Return the path of the module of the first key where the models diverge, by VERDICT (the key itself if it is in
    no module); "the output" if all uses of weights agree.
    """
    keys = [key for use in verdict.front for key in use.keys]
    return keys[0].rpartition(".")[0] or keys[0] if keys else "the output"


def _unfelt_text(keys: Sequence[str]) -> str:
    counters = [key for key in keys if is_counter(key)]
    others = [key for key in keys if not is_counter(key)]
    said = [f"{counted(len(counters), 'counter')} of batch norms"] if counters else []
    said += [f"{counted(len(others), 'key')} ({_few(others)})"] if others else []
    return " and ".join(said)


def _few(keys: Sequence[str]) -> str:
    patterns = [group.pattern for group in collapse([(key, None) for key in keys])]
    return ", ".join(printable(p, 60) for p in patterns[:3]) + (", …" if len(patterns) > 3 else "")


def nothing_compared(why: str, runs: int) -> dict[str, Any]:
    """Return the proof (a dict) for a mapping whose outputs could not be compared, with the reason WHY in its "text",
    and "compared": False. RUNS is the number of runs of the model.
    """
    return {**_proof(False, f"nothing could be compared: {why}", None, runs), "compared": False}


def _proof(equal: bool, text: str, divergence: str | None, runs: int) -> dict[str, Any]:
    return {"equal": equal, "text": text, "first_divergence": divergence, "runs": runs}
