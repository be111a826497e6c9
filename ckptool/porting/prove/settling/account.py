"""The account of a proof, as a dict and as a sentence (`Mapping.proof`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import counted, printable
from ....keys import collapse
from ....keys.known_buffers import is_counter
from ..causes import suspects
from ..layers import layers
from ..measure import Measured
from ..other_settings import Setting, layer_of
from ..outputs import apart
from ..trial import Trial
from .reached import Reached, first_divergence

#: Causes, and pairs of keys, that the sentence about a proof names; the JSON has all causes.
_NAMED = 4


def account(reached: Reached, unfelt: Sequence[str]) -> dict[str, Any]:
    """Return the account of the proof REACHED as a dict for `Mapping.proof`. UNFELT are the keys that the outputs do
    not depend on.

    "equal": whether the proof succeeded. "text": a sentence about it. "first_divergence": a path of a module, None if
    the proof succeeded. "runs": the number of runs of the model. "difference", "bound", "largest": measured in float64,
    None if that was not done. "changes": the labels of what trials changed. "unfelt": UNFELT. "stopped": the limit that
    ended the search, "time" or "trials", or None. "causes", "suspects": lists of settings of the code, each as a dict
    (`Setting.as_json`). "layers": a list of rows (`layers`), only if the proof failed and the source's code was
    followed. "stopped" is None and "suspects" is [] if the proof succeeded or causes were found.
    """
    may_be: list[Setting] = []
    if not reached.is_proved and not reached.causes:
        front = {layer_of(use) for use in reached.verdict.front}
        may_be = suspects(reached.codes, reached.entries, reached.first, front)
    stopped = None if reached.is_proved or reached.causes else _stopped(reached.trial)
    said = _what_is_equal(reached) if reached.is_proved else _what_differs(reached, may_be)
    text = said + _limit(reached.trial, stopped) + _about_keys(reached, unfelt)
    divergence = None if reached.is_proved else reached.divergence
    proof = _proof(reached.is_proved, text, divergence, reached.trial.runs) | _as_measured(reached.measured)
    proof |= {"changes": list(reached.changed), "unfelt": list(unfelt), "stopped": stopped}
    proof |= {"causes": [one.as_json() for one in reached.causes], "suspects": [one.as_json() for one in may_be]}
    if not reached.is_proved and reached.codes.expected.uses:
        seen = reached.first if reached.causes else reached.seen
        proof["layers"] = layers(reached.codes.expected, seen, reached.entries, reached.parts)
    return proof


def nothing_compared(why: str, runs: int) -> dict[str, Any]:
    """Return the proof (a dict) for a mapping whose outputs could not be compared, with the reason WHY in its "text",
    and "compared": False. RUNS is the number of runs of the model.
    """
    return {**_proof(False, f"nothing could be compared: {why}", None, runs), "compared": False}


def _proof(equal: bool, text: str, divergence: str | None, runs: int) -> dict[str, Any]:
    return {"equal": equal, "text": text, "first_divergence": divergence, "runs": runs}


def _as_measured(found: Measured | None) -> dict[str, float | None]:
    """Return the "difference", "bound" and "largest" of FOUND, each None if FOUND is None."""
    return {name: getattr(found, name, None) for name in ("difference", "bound", "largest")}


def _stopped(trial: Trial) -> str | None:
    """Return the limit that ended the search of TRIAL: "time", or "trials" if there was time left; None if it ended by
    itself.
    """
    return "time" if trial.progress.late else "trials" if trial.is_over else None


# ------------------------------------------------------------------------------------------------- the sentence


def _what_is_equal(reached: Reached) -> str:
    """Return the sentence about a proof that succeeded: outputs are equal, and how far they are apart in float64, if
    that was measured. If no outputs could be compared, it says instead how many uses agree, with the first key without
    a source, if one ended the comparison; if outputs differ only in steps after the last use of weights, it says that
    all uses agree.
    """
    verdict, shown, how = reached.verdict, reached.shown, reached.measured
    if verdict.beyond:
        same = f"all {counted(verdict.uses, 'use')} of weights give the same on {shown}"
        return f"{same}; outputs differ in what follows"
    if verdict.compared:
        return f"outputs are equal on {shown}{f', {how}' if how is not None else ''}"
    same = _how_many_agree(reached) if how is None else f"{_how_many_agree(reached)}, {how}"
    beyond = f", all before {printable(verdict.left[0], 60)}, which has no source" if verdict.left else ""
    return f"{same}{beyond}; no outputs are of one size"


def _what_differs(reached: Reached, may_be: Sequence[Setting]) -> str:
    """Return the sentence about a proof that failed: by how much outputs differ, where the models diverge, and then, if
    causes were found, these (four at most) and what differs still when they are changed; else how many uses of weights
    agree, and the settings MAY_BE that may be the cause (two at most).

    If there are no causes and the source's code was not followed, the sentence says only by how much outputs differ.
    """
    differ = f"outputs differ on {reached.shown}{_by_how_much(reached)}"
    if not reached.causes and not reached.codes.expected.uses:
        return differ
    at = f"{differ}; the first divergence is at {reached.divergence}"
    if not reached.causes:
        return f"{at}: {_how_many_agree(reached)}{_that(may_be)}"
    rest, later = _how_many_agree(reached), reached.after
    if later is not None:
        fine = later.outputs_are_equal if later.has_outputs else later.verdict.equal
        rest = "outputs are equal" if fine else f"outputs differ at {first_divergence(later.verdict)}"
    return f"{at}: {'; '.join(map(str, reached.causes[:_NAMED]))}; with that changed, {rest}"


def _by_how_much(reached: Reached) -> str:
    """Return the end of a sentence that says how far outputs differ: as measured in float64, or, if that was not done,
    their largest difference in float32. "" if rounding explains the difference in float64, or if float32 shows none or
    no outputs can be compared.
    """
    how = reached.measured
    if how is not None:
        return "" if how.is_equal else f", by {how}"
    difference = apart(reached.codes.expected.outputs, reached.seen.outputs) if reached.verdict.compared else None
    if difference is None or difference[0] <= 0:
        return ""
    return f", by up to {difference[0]:.2g} where the largest is {difference[1]:.2g}"


def _how_many_agree(reached: Reached) -> str:
    """Return how many uses of weights agree (`Verdict.agreeing`), and on which inputs, as text."""
    verdict = reached.verdict
    return f"{verdict.agreeing:,} of {counted(verdict.uses, 'use')} of weights give the same on {reached.shown}"


def _that(may_be: Sequence[Setting]) -> str:
    """Return the end of a sentence that names the settings MAY_BE, at most two, which may be the cause of the
    difference although no trial confirmed it; "" if there are none.
    """
    return f"; it may be that {'; '.join(map(str, may_be[:2]))}" if may_be else ""


def _limit(trial: Trial, stopped: str | None) -> str:
    """Return the end of a sentence that says which limit ended the search of TRIAL: "time" or "trials", in STOPPED; ""
    for None.
    """
    if stopped == "time":
        return f"; the search had its {trial.progress.patience:g} s ({trial.progress.longer} gives it more)"
    return "" if stopped is None else f"; the search ended after {counted(trial.misses, 'trial')} in vain"


def _about_keys(reached: Reached, unfelt: Sequence[str]) -> str:
    """Return the end of a sentence about keys: those that trials settled, those that the outputs do not depend on
    (UNFELT), those of which the outputs do not show a factor, and pairs whose weights may be exchanged (four at most);
    "" if there are none of these.
    """
    text = ""
    before = reached.mapping.entries
    new = [e.target for e in before if reached.entries[e.target].expr not in (None, e.expr)]
    if new:
        text += f"; settled by trial: {counted(len(new), 'key')} ({_few(new)})"
    if unfelt:
        text += f"; they do not depend on {_unfelt_text(unfelt)}"
    if reached.hidden:
        text += f"; they do not show a factor of {counted(len(reached.hidden), 'key')} ({_few(reached.hidden)})"
        text += ", of which the plain tensors were taken"
    if reached.alike:
        said = (" and ".join(printable(key, 60) for key in pair) for pair in reached.alike[:_NAMED])
        text += f"; nothing measurable changes if weights are exchanged of {', or of '.join(said)}"
    return text


def _unfelt_text(keys: Sequence[str]) -> str:
    """Return KEYS in a few words: how many are counters of batch norms, and how many are others, with patterns."""
    counters = [key for key in keys if is_counter(key)]
    others = [key for key in keys if not is_counter(key)]
    said = [f"{counted(len(counters), 'counter')} of batch norms"] if counters else []
    said += [f"{counted(len(others), 'key')} ({_few(others)})"] if others else []
    return " and ".join(said)


def _few(keys: Sequence[str]) -> str:
    """Return up to three patterns that fit KEYS, with "…" if there are more."""
    patterns = [group.pattern for group in collapse([(key, None) for key in keys])]
    return ", ".join(printable(p, 60) for p in patterns[:3]) + (", …" if len(patterns) > 3 else "")


__all__ = ["account", "nothing_compared"]
