"""Turn the result of a proof into a mapping: settle doubts, take back what nothing confirms, and add the account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...mapping import Entry, Mapping
from ...questions import Question, Reason
from ..causes import Codes, as_it_was
from ..flow import Flow
from ..trial import Trial
from ..verdict import judge, shown_by
from .account import account, nothing_compared
from .doubts import carried_along, doubt_unseen_rows, felt, refuted, taken_back, unseen
from .equally_good import exchangeable, settle_hidden_factors
from .influence import branches_alike, by_itself_alone, unfelt_keys
from .reached import Reached
from .reaching import reach
from .tied import with_all_keys, with_first_keys
from .unseen_orders import doubt_turned


def settle(
    mapping: Mapping,
    trial: Trial,
    codes: Codes,
    shown: str,
    others: Iterable[tuple[Flow | None, Any]] = (),
    copies: MappingOf[str, Sequence[str]] = MappingProxyType({}),
) -> Mapping:
    """Return MAPPING with the result of its proof as its `proof`, with doubts settled and new doubts added, alike for
    all keys of one tensor of the model (`with_all_keys`). The settings of the model are as before afterwards. If the
    model cannot be run, or no output can be compared and the source's code was not followed, only the `proof` is new,
    and says so.

    Args:
        mapping: the mapping to prove.
        trial: runs the model with other expressions for its weights.
        codes: the source's code and its forward pass.
        shown: the inputs, as text.
        others: further inputs on which both models have to agree: (flow of the source's code, inputs of the model).
        copies: key -> other keys of the file that would suit the source's code as well. Which copy is right stays a
            doubt.
    """
    given, mapping = mapping, with_first_keys(mapping, trial)
    with as_it_was(trial):
        entries = {e.target: e for e in mapping.entries}
        trial.progress.say("comparing outputs")
        seen = trial.run(entries.values())
        verdict = judge(codes.expected, seen, entries)
        if seen is None:
            return replace(given, proof=nothing_compared("the model cannot be run on these inputs", trial.runs))
        if not verdict.compared and verdict.agreeing <= 0 and not codes.expected.uses:
            return replace(given, proof=nothing_compared("no output is of the size of a saved one", trial.runs))
        reached = Reached(mapping, trial, codes, list(others), entries, seen, verdict, shown, first=seen)
        reach(reached)
        unfelt = _look_at_influence(reached) if reached.is_proved else []
        reached.entries = _settled_entries(reached, unfelt)
        if copies:
            reached.entries = {key: _of_copies(entry, copies) for key, entry in reached.entries.items()}
            reached.shown += ", with one of the copies that the file holds"
        settled = with_all_keys(given, mapping, reached.entries, trial, proved=reached.is_proved)
        return replace(given, proof=account(reached, unfelt)).with_entries(settled)


def _look_at_influence(reached: Reached) -> list[str]:
    """Return the keys that the outputs do not depend on, for REACHED, a proof that succeeded; [] if there are none.

    REACHED may change: if trials changed weights, factors that outputs do not show are first taken out of its entries
    (`settle_hidden_factors`); at last the pairs of keys that may be exchanged are noted in its `alike`.
    """
    if reached.changed:
        settle_hidden_factors(reached)
    reached.trial.progress.say("looking which keys outputs depend on")
    reached.trial.load(reached.entries.values())
    unfelt = unfelt_keys(reached.trial, reached.seen, reached.codes.expected, reached.entries)
    reached.alike = exchangeable(reached, unfelt)
    return unfelt


def _settled_entries(reached: Reached, unfelt: Sequence[str]) -> dict[str, Entry]:
    """Return the entries (key -> entry) after a proof. UNFELT are the keys that the outputs do not depend on.

    If it succeeded, doubts are settled about keys that outputs depend on (`felt`), unless the inputs are too small to
    tell them apart (`branches_alike`), and the others follow the rest of their block (`carried_along`). Doubts are
    added about rows that were not read (`doubt_unseen_rows`), and about outputs that changed places (`doubt_turned`).
    If no outputs were compared, sources of layers that it refuted are taken away (`refuted`). If it failed, vain
    changes are taken back (`_without_vain_changes`).

    In both cases, keys that trials filled and no output or later layer confirms (`by_itself_alone`) have no source
    again, unless the module has one name on both sides (`taken_back`). Keys that trials filled and that stay filled get
    a question (`unseen`) if outputs are not equal; if no outputs were compared and all else is equal, only those get it
    that nothing confirms.
    """
    entries, seen, verdict, expected = reached.entries, reached.seen, reached.verdict, reached.codes.expected
    mapping, trial = reached.mapping, reached.trial
    if reached.is_proved:
        open_still = set(unfelt) | by_itself_alone(seen, expected, entries, mapping, verdict)
        alike = branches_alike(trial, seen)
        open_still |= alike
        if not verdict.compared:
            fine = shown_by([expected.gives(use.given) for use in seen.uses], seen)
            open_still |= {key for use in seen.uses if not fine[use.index] for key in use.keys}
        entries = felt(entries, mapping, trial, open_still)
        if any(key in alike and entry.status == "guessed" for key, entry in entries.items()):
            reached.shown += ", though it takes larger inputs to tell branches with different dilations apart"
        entries = carried_along(entries, mapping, open_still, trial.shapes)
        entries = doubt_unseen_rows(entries, mapping, seen, trial.shapes)
    alone = by_itself_alone(seen, expected, entries, mapping, verdict)
    entries = taken_back(entries, mapping, alone)
    if reached.is_proved and not verdict.compared:
        entries = refuted(entries, seen, expected, trial)
    if not (verdict.equal and verdict.compared):
        entries = unseen(entries, mapping, alone if verdict.equal else None)
    if not reached.is_proved:
        return _without_vain_changes(entries, mapping, expected, seen)
    return doubt_turned(entries, seen, Reason.OUTPUTS_TURNED) if verdict.turned else entries


def _without_vain_changes(entries: dict[str, Entry], mapping: Mapping, expected: Flow, seen: Flow) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) with the old entry from MAPPING, the mapping before the proof, for each key whose
    expression trials changed in vain. A change is in vain unless its key is used in SEEN, the flow of the model, and
    the output of each use of the key occurs in EXPECTED, the flow of the source's code; if EXPECTED has no uses, all
    are in vain.
    """
    before = {e.target: e for e in mapping.entries}
    right: dict[str, bool] = {}
    for use in seen.uses:
        agrees = bool(expected.uses) and expected.gives(use.given)
        for key in use.keys:
            right[key] = right.get(key, True) and agrees
    return {
        key: entry if entry.expr == before[key].expr or right.get(key, False) else before[key]
        for key, entry in entries.items()
    }


def _of_copies(entry: Entry, copies: MappingOf[str, Sequence[str]]) -> Entry:
    """Return ENTRY with COPIES_OF_CODE as its only open question (which of several copies of the weights in the file is
    right?) if it reads a key in COPIES (key -> other keys that suit the source's code as well); else ENTRY as it is.
    Option n is the expression of ENTRY with each key replaced by its n-th other key; a key with fewer stays.
    """
    if entry.expr is None or not any(key in copies for key in entry.sources):
        return entry
    count = max(len(copies.get(key, ())) for key in entry.sources)
    options = [
        entry.expr.rename(lambda key, n=n: copies[key][n] if n < len(copies.get(key, ())) else key)  # type: ignore[misc]
        for n in range(count)
    ]
    return entry.settled(entry.evidence).asking(Question(Reason.COPIES_OF_CODE, (), tuple(options)))


__all__ = ["settle"]
