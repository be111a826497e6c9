"""Change what a proof has reached, until outputs agree: other settings of code first, then other weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...mapping import Entry
from ..causes import Sharp, causes, restored, set_attributes
from ..flow import Flow, Use
from ..goes_in import takes_the_same
from ..ground import Ground
from ..improving import FEWEST, search
from ..trial import TRIALS
from ..verdict import Verdict, given_by, judge
from .influence import by_itself_alone
from .reached import Reached, but_for_new_keys

#: Uses of keys without a source where a search for these begins.
_OPEN_USES = 4


def reach(reached: Reached) -> None:
    """Change REACHED until the outputs of both models agree, in steps, each only if they do not agree yet: change
    settings and search for other weights (`_try_changes`), let outputs of one size change places, and leave out outputs
    that depend on keys without a source.

    If outputs agree then, they have to agree on further inputs, too (`_confirm`). At last the difference is measured in
    float64 (`_measure`). The verdict of REACHED is not equal if one of these two fails.
    """
    _try_changes(reached)
    if not reached.verdict.equal:  # last, so that weights are searched for with which each is in its place
        _let_outputs_change_places(reached)
    whole = reached.verdict.equal
    if not whole:
        known = but_for_new_keys(reached.codes.expected, reached.seen, reached.entries)
        reached.verdict = known or reached.verdict
    if reached.verdict.equal:
        _confirm(reached)
    _measure(reached, all_outputs=whole or not reached.verdict.equal)


def _try_changes(reached: Reached) -> None:
    """Change the settings of the model and the weights in REACHED, each only if its verdict is not equal yet: first
    settings, unless a key has no source; then weights (`search`); then settings, if keys had no source at the beginning
    and all have one now.

    Two more searches may be made. If the verdict is equal at the beginning, but no outputs were compared, and keys have
    no source, these keys are searched for. If settings were changed, and outputs differ still, or a layer may have the
    weights of another (`_may_be_of_others`), weights are searched for with the model's own settings.
    """
    begun, had_open = reached.entries, reached.has_open
    if not reached.verdict.equal and not had_open:
        change_settings(reached)
    if not reached.verdict.equal:
        reached.take(search(*_state(reached), reached.trial, reached.codes.expected))
    elif had_open and not reached.verdict.compared and reached.codes.expected.uses:
        _search_for_new_keys(reached)
    if not reached.verdict.equal and had_open and not reached.has_open:
        change_settings(reached)
    elif reached.causes and (not reached.verdict.equal or _may_be_of_others(reached, begun)):
        _search_before_settings(reached, begun)


def _state(reached: Reached) -> tuple[dict[str, Entry], Flow, Verdict]:
    return reached.entries, reached.seen, reached.verdict


def _let_outputs_change_places(reached: Reached) -> None:
    """Judge REACHED again, so that outputs of one size may change places, and keep that verdict if all outputs are
    equal by it, not only up to the last use. Then the text of the inputs (`shown`) says so.
    """
    verdict = judge(reached.codes.expected, reached.seen, reached.entries, turned=True)
    if verdict.equal and verdict.compared and not verdict.beyond:
        reached.verdict = verdict
        reached.shown += ", though outputs of one size have changed places"


def _confirm(reached: Reached) -> None:
    """Require of REACHED, whose outputs agree, that they agree on further inputs as well (`holds_on_others`). If they
    do not, and no settings were changed before, look for settings; if none are found, search for weights in float64
    (`_search_finely`). If outputs still do not agree on all inputs, the verdict of REACHED is not equal afterwards, and
    the text of the inputs (`shown`) says so.
    """
    if reached.holds_on_others():
        return
    changed = False
    if not reached.causes:
        # the first inputs differed by just less than the comparison allows: a setting may be the cause all the same
        change_settings(reached)
        changed = bool(reached.causes) or _search_finely(reached)
    if not changed or not reached.verdict.equal or not reached.holds_on_others():
        reached.verdict = replace(reached.verdict, equal=False)
        reached.shown += ", though not on other values"


def _measure(reached: Reached, *, all_outputs: bool) -> None:
    """Compare the models of REACHED in float64, and keep the result as its `sharply` (None if they cannot be run so);
    also as its `after`, if settings and weights were changed.

    If the proof has succeeded so far, and outputs are not exactly equal in float64, look for a setting as the cause. It
    is dropped again if rounding explains the difference and the setting does not make it smaller. If there is no cause,
    search for other weights in float64 (`_search_finely`). The verdict of REACHED is not equal afterwards if there is a
    cause, or if the difference is larger than rounding in float32 explains. ALL_OUTPUTS is False if outputs that depend
    on keys without a source shall be left out.
    """
    reached.trial.progress.say("measuring what rounding explains")
    reached.sharply = reached.sharp(reached.entries, reached.seen, all_outputs=all_outputs)
    if reached.causes and reached.changed:
        reached.after = reached.sharply
    if not reached.is_proved or reached.sharply is None or _is_exact(reached.sharply, reached.verdict):
        return
    _look_for_causes(reached)
    if reached.causes and _is_within(reached.sharply, reached.verdict) and not _brings_nearer(reached):
        restored(reached.trial)
        reached.causes, reached.after = [], reached.before
    if not reached.causes and _search_finely(reached) and reached.holds_on_others():
        reached.sharply = reached.sharp(reached.entries, reached.seen, all_outputs=all_outputs)
    if reached.causes or reached.sharply is None or not _is_within(reached.sharply, reached.verdict):
        told = reached.sharply.verdict if reached.sharply is not None else reached.verdict
        reached.verdict = replace(reached.verdict, equal=False, front=told.front, agreeing=told.agreeing)


def _brings_nearer(reached: Reached) -> bool:
    """Return whether the outputs of REACHED, measured in float64, are nearer to those of the source's code with the
    settings in `causes` (`after`) than without them (`before`). True, too, if one of the two was not measured. If
    outputs are equal already, a setting that does not bring them nearer is no cause: it only makes some layer agree.
    """
    before, after = (None if one is None else one.measured for one in (reached.before, reached.after))
    return before is None or after is None or after.difference < before.difference


def change_settings(reached: Reached) -> None:
    """Look for settings of the source's code with which more agrees, note them in `causes` of REACHED, and change the
    model to them; then run the model and judge REACHED again. If none are found, `causes` is [], and the model and the
    verdict stay as they are.

    The mapping does not count as proved while there are causes. The model keeps these settings until `settle` ends, or
    until they are restored.
    """
    _look_for_causes(reached)
    if reached.causes:
        reached.seen = reached.trial.run(reached.entries.values()) or reached.seen
        reached.judge_again()


def _look_for_causes(reached: Reached) -> None:
    """Look for settings that make the models of REACHED differ (`causes`), and note what is found in its `causes`,
    `before` and `after`, in place of what was there: the settings, and the comparisons in float64 with the model's own
    settings and with these. The model keeps these settings until `restored`. If none are found, `causes` is [], and
    `before` and `after` are one comparison, or None.
    """
    found = causes(reached.codes, reached.trial, reached.entries, reached.seen)
    reached.causes, reached.before, reached.after = found


def _search_for_new_keys(reached: Reached) -> None:
    """Search for expressions for the keys without a source of REACHED, whose outputs could not be compared, and put
    them into REACHED if more layers agree with them. Else REACHED stays as it is.

    A change counts only if a later layer, of which the mapping was certain, confirms the keys (`by_itself_alone`): any
    new head gives what a layer of the source gives, if it has its weights.
    """
    trial, expected = reached.trial, reached.codes.expected

    def confirms(seen: Flow, entries: dict[str, Entry], verdict: Verdict, keys: Iterable[str]) -> bool:
        return by_itself_alone(seen, expected, entries, reached.mapping, verdict).isdisjoint(keys)

    before = replace(reached.verdict, equal=False)
    front = before.front or _open_front(reached)
    trial.confirms = confirms
    try:
        found = search(reached.entries, reached.seen, replace(before, front=front), trial, expected, FEWEST)
    finally:
        trial.confirms = None
    if found[2].is_ahead_of(before):
        reached.take(found)
        reached.judge_again()


def _open_front(reached: Reached) -> tuple[Use, ...]:
    """Return the first four uses of keys without a source, in the order of execution."""
    open_ = {key for key, entry in reached.entries.items() if entry.status == "unmapped"}
    return tuple(use for use in reached.seen.uses if not open_.isdisjoint(use.keys))[:_OPEN_USES]


def _may_be_of_others(reached: Reached, begun: dict[str, Entry]) -> bool:
    """Return whether a layer of the model may belong to another layer of the source than BEGUN says, the entries
    before any change: it is one of the layers at which the models diverged first with BEGUN, and a layer of like
    kind in the source's code takes the same input, but reads none of the keys that BEGUN gives to it.
    """
    expected, seen = reached.codes.expected, reached.first
    ground = Ground(begun, seen, expected, reached.trial.shapes)
    for use in judge(expected, seen, begun).front:
        sources = {key for own in use.keys if own in begun for key in begun[own].sources}
        if any(sources.isdisjoint(other.keys) for other, _ in takes_the_same(ground, use)):
            return True
    return False


def _search_before_settings(reached: Reached, begun: dict[str, Entry]) -> None:
    """Search for weights again, from the entries BEGUN, those before any change, with the model's own settings, because
    a wrong weight may have looked like another setting. If outputs are equal then, put the result into REACHED. If they
    are equal neither then nor in REACHED, look for settings on top of the weights found, and put the result into
    REACHED if outputs are equal with these.

    In all other cases REACHED, the settings of the model and its swaps are as before afterwards. The count of trials in
    vain (`Trial.misses`) starts from 0.
    """
    trial, expected = reached.trial, reached.codes.expected
    swaps, undo, values = trial.swaps, trial.undo, [(one, name, getattr(one, name)) for one, name, _ in trial.undo]
    restored(trial)
    verdict = judge(expected, reached.first, begun)
    own = replace(
        reached, entries=begun, seen=reached.first, verdict=verdict, changed={}, causes=[], before=None, after=None
    )
    trial.misses = 0
    own.take(search(*_state(own), trial, expected, FEWEST if reached.verdict.equal else TRIALS))
    if not own.verdict.equal and not reached.verdict.equal:
        change_settings(own)
    if own.verdict.equal:
        for name in ("entries", "seen", "verdict", "changed", "causes", "before", "after"):
            setattr(reached, name, getattr(own, name))
        return
    restored(trial)
    trial.swaps, trial.undo = swaps, undo
    set_attributes(values)


def _search_finely(reached: Reached) -> bool:
    """Search in float64 for other weights; float32 does not tell apart branches of small effect, or weights with and
    without an eps in them. If outputs are equal with the weights found, in float64 and in float32, and the changed
    layers give what layers of the source's code give, put them into REACHED and return True.

    Else return False and leave REACHED as it was (the model keeps the weights of the last trial). Also False, without
    a search, if rounding in float32 explains the present difference, or if the models cannot be compared in float64.
    """
    trial, wide = reached.trial, reached.codes.wide
    now = reached.sharp(reached.entries, reached.seen)
    if now is None or wide is None or _is_within(now, reached.verdict):
        return False
    trial.finely = now.tolerance
    try:
        found = search(reached.entries, now.wide, replace(now.verdict, equal=False), trial, wide)
    finally:
        trial.finely = None
    entries, flow, verdict, labels = found
    seen = trial.run(entries.values())
    narrow = judge(reached.codes.expected, seen, entries)
    changed = {key for key, entry in entries.items() if entry is not reached.entries[key]}
    fine = given_by(wide, flow)
    # what is smaller than the bound has to show in the layers themselves
    shown = all(fine[use.index] for use in flow.uses if not changed.isdisjoint(use.keys))
    if seen is None or not verdict.equal or not narrow.equal or not shown:
        return False
    reached.take((entries, seen, narrow, labels))
    return True


def _is_exact(sharply: Sharp, verdict: Verdict) -> bool:
    """Return whether the outputs of both models could be compared, in float32 (VERDICT) and in float64 (SHARPLY), and
    are equal up to rounding in float64.
    """
    return verdict.compared > 0 and sharply.measured is not None and sharply.has_outputs and sharply.measured.is_exact


def _is_within(sharply: Sharp, verdict: Verdict) -> bool:
    """Return whether rounding explains every difference. SHARPLY is the comparison in float64, VERDICT that in float32.

    If outputs could be compared, and VERDICT does not say that they differ only by steps after the last use of weights,
    the outputs in SHARPLY decide. Else it is True if everything compared in SHARPLY is equal, or if at least as many
    uses of weights agree there as in VERDICT.
    """
    if verdict.compared and not verdict.beyond and sharply.has_outputs:
        return sharply.outputs_are_equal
    return sharply.verdict.equal or sharply.verdict.agreeing >= verdict.agreeing


__all__ = ["reach"]
