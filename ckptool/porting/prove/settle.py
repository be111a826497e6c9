"""What a proof makes of a mapping: doubts settled, and what was seen said in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...errors import counted, printable
from ...keys import collapse
from ..mapping import Entry, Mapping
from ..questions import Question, Reason
from .flow import Flow
from .improving import search
from .influence import by_itself_alone, carried_along, doubt_unseen_rows, felt, taken_back, unfelt_keys, unseen
from .layers import layers
from .trial import Trial
from .verdict import Verdict, apart, judge, shown_by


def settle(
    mapping: Mapping,
    trial: Trial,
    expected: Flow,
    shown: str,
    others: Iterable[tuple[Flow | None, Any]] = (),
    copies: MappingOf[str, Sequence[str]] = MappingProxyType({}),
) -> Mapping:
    """The mapping with its proof, as EXPECTED judges it, on OTHERS too; doubts that this settles are settled.

    COPIES are keys of the file that the source's code would take as well: which of them is meant stays a doubt.
    """
    entries = {e.target: e for e in mapping.entries}
    trial.progress.say("comparing outputs")
    seen = trial.run(entries.values())
    verdict = judge(expected, seen, entries)
    if seen is None or (not verdict.compared and verdict.agreeing <= 0 and not expected.uses):
        what = "the model cannot be run on these inputs" if seen is None else "no output is of the size of a saved one"
        return replace(mapping, proof=nothing_compared(what, trial.runs))
    changed: dict[str, None] = {}
    if not verdict.equal:
        entries, seen, verdict, changed = search(entries, seen, verdict, trial, expected)
    if not verdict.equal:
        verdict = _but_for_new_keys(expected, seen, entries) or verdict
    unfelt: list[str] = []
    if verdict.equal:
        trial.progress.say("comparing outputs on other inputs")
    if verdict.equal and not all(_holds(trial, entries, verdict, *other) for other in others):
        verdict = replace(verdict, equal=False)
        shown += ", though not on other values"
    if verdict.equal and seen is not None:
        trial.progress.say("looking which keys outputs depend on")
        trial.load(entries.values())
        unfelt = unfelt_keys(trial, seen, expected, entries)
        open_still = set(unfelt) | by_itself_alone(seen, expected, entries, mapping, verdict)
        if not verdict.compared:
            fine = shown_by([expected.gives(use.given) for use in seen.uses], seen)
            open_still |= {key for use in seen.uses if not fine[use.index] for key in use.keys}
        entries = felt(entries, mapping, trial, open_still)
        entries = carried_along(entries, mapping, open_still, trial.shapes)
        entries = doubt_unseen_rows(entries, mapping, seen, trial.shapes)
    if seen is not None:
        alone = by_itself_alone(seen, expected, entries, mapping, verdict)
        entries = taken_back(entries, mapping, alone)
        if not (verdict.equal and verdict.compared):
            entries = unseen(entries, mapping)
    if copies:
        entries = {key: _of_copies(entry, copies) for key, entry in entries.items()}
        shown += ", with one of the copies that the file holds"
    text = _said(verdict, shown, expected, seen)
    stopped = None if verdict.equal else _stopped(trial)
    if stopped == "time":
        text += f"; the search had its {trial.progress.patience:g} s (--patience gives it more)"
    elif stopped == "trials":
        text += f"; the search ended after {counted(trial.misses, 'trial')} in vain"
    new = [e.target for e in mapping.entries if entries[e.target].expr != e.expr]
    if new:
        text += f"; settled by trial: {counted(len(new), 'key')} ({_few(new)})"
    if unfelt:
        text += f"; they do not depend on {_unfelt_text(unfelt)}"
    divergence = None if verdict.equal else first_divergence(verdict)
    proof = _proof(verdict.equal, text, divergence, trial.runs)
    proof |= {"changes": list(changed), "unfelt": unfelt, "stopped": stopped}
    if not verdict.equal and seen is not None and expected.uses:
        proof["layers"] = layers(expected, seen, entries, verdict)
    return replace(mapping, proof=proof).with_entries([entries[e.target] for e in mapping.entries])


def _stopped(trial: Trial) -> str | None:
    """What ended the search before it had tried all that it could think of."""
    return "time" if trial.progress.late else "trials" if trial.is_over else None


def _but_for_new_keys(expected: Flow, seen: Flow | None, entries: MappingOf[str, Entry]) -> Verdict | None:
    """The verdict without outputs that are made with keys without a source, if most of the model agrees."""
    found = judge(expected, seen, entries, all_outputs=False)
    return found if found.equal and found.agreeing >= _MOST * found.uses else None


#: Share of the uses of weights that has to agree where outputs cannot, because some keys have no source.
_MOST = 0.6


def _of_copies(entry: Entry, copies: MappingOf[str, Sequence[str]]) -> Entry:
    """The code of the source fits several copies of it in the file, and no output says which is wanted."""
    if entry.expr is None or not any(key in copies for key in entry.sources):
        return entry
    count = max(len(copies.get(key, ())) for key in entry.sources)
    options = [
        entry.expr.rename(lambda key, n=n: copies[key][n] if n < len(copies.get(key, ())) else key)  # type: ignore[misc]
        for n in range(count)
    ]
    return entry.settled(entry.evidence).asking(Question(Reason.COPIES_OF_CODE, (), tuple(options)))


def _holds(trial: Trial, entries: dict[str, Entry], first: Verdict, expected: Flow | None, inputs: Any) -> bool:
    """Whether the models agree on other inputs, too, where the source's code can be run on them."""
    if expected is None:
        return True
    before, trial.inputs = trial.inputs, inputs
    seen = trial.run(entries.values())
    trial.inputs = before
    again = judge(expected, seen, entries)
    if first.compared and not first.beyond:
        return again.equal and not again.beyond
    return again.equal or _but_for_new_keys(expected, seen, entries) is not None


def _said(verdict: Verdict, shown: str, expected: Flow, seen: Flow | None) -> str:
    if verdict.beyond:
        return f"all {counted(verdict.uses, 'use')} of weights give the same on {shown}; outputs differ in what follows"
    if verdict.equal and verdict.compared:
        return f"outputs are equal on {shown}"
    agree = f"{verdict.agreeing:,} of {counted(verdict.uses, 'use')} of weights give the same on {shown}"
    if verdict.equal:
        beyond = f", all before {printable(verdict.left[0], 60)}, which has no source" if verdict.left else ""
        return f"{agree}{beyond}; no outputs are of one size"
    difference = None if seen is None else apart(expected.outputs, seen.outputs)
    differ = f"outputs differ on {shown}"
    if difference is not None and verdict.compared and difference[0] > 0:
        differ += f", by up to {difference[0]:.2g} where the largest is {difference[1]:.2g}"
    if not expected.uses:
        return differ
    return f"{differ}; the first divergence is at {first_divergence(verdict)}: {agree}"


def first_divergence(verdict: Verdict) -> str:
    """The module at which the models part."""
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


def nothing_compared(why: str, runs: int) -> dict[str, Any]:
    """The proof where no outputs could be compared, so that it says nothing against the mapping."""
    return {**_proof(False, f"nothing could be compared: {why}", None, runs), "compared": False}


def _proof(equal: bool, text: str, divergence: str | None, runs: int) -> dict[str, Any]:
    return {"equal": equal, "text": text, "first_divergence": divergence, "runs": runs}
