"""Weights that outputs do not tell apart: keys that could be exchanged, and factors that nothing shows."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from dataclasses import replace
from itertools import islice

from ...expression import Expr
from ..flow import Flow
from ..other_conventions import factors_as_in_others, without_factors
from ..verdict import given_by, judge
from .influence import nearly_equal
from .reached import Reached

#: Pairs of keys with nearly equal weights that are exchanged to see whether outputs show it.
_MOST_PAIRS = 8
#: Keys with a factor that are tried one by one.
_MOST_FACTORS = 32


def exchangeable(reached: Reached, unfelt: list[str]) -> list[tuple[str, str]]:
    """Return those of up to eight pairs of keys with nearly equal weights (`nearly_equal`) that may be exchanged: the
    outputs are equal up to rounding in float64, too, if the two keys get each other's weights. UNFELT are the keys that
    the outputs do not depend on. The model has the weights of REACHED afterwards.
    """
    pairs = list(islice(nearly_equal(reached.trial, reached.entries, unfelt), _MOST_PAIRS))
    return [pair for pair in pairs if _may_be_exchanged(pair, reached)]


def _may_be_exchanged(pair: tuple[str, str], reached: Reached) -> bool:
    """Return whether outputs stay equal up to rounding in float64 if the keys of PAIR exchange their weights."""
    one, other = (reached.entries[key] for key in pair)
    entries = reached.entries | {
        pair[0]: replace(one, expr=other.expr),
        pair[1]: replace(other, expr=one.expr),
    }
    seen = reached.trial.run(entries.values())
    found = None if seen is None else reached.sharp(entries, seen)
    reached.trial.load(reached.entries.values())
    return found is not None and found.outputs_are_equal


def settle_hidden_factors(reached: Reached) -> None:
    """Take factors that trials found out of weights where nothing but the layer itself shows them, all at once or else
    one by one (32 at most), if outputs stay equal (`_put_if_equal`). Their keys are added to `hidden` of REACHED.

    Then, if outputs were compared, answer questions about factors that outputs do not answer as they answered them
    about other keys, all at once. These keys leave `hidden`. The entries of REACHED, its flow and its verdict change
    with each step that succeeds.
    """
    bare = without_factors(reached.entries, reached.mapping.entries, reached.trial.shapes)
    if bare and _put_if_equal(reached, bare):
        reached.hidden += bare
    else:
        for key in list(bare)[:_MOST_FACTORS] if len(bare) > 1 else ():
            if _put_if_equal(reached, {key: bare[key]}):
                reached.hidden.append(key)
    new = factors_as_in_others(reached.entries, reached.mapping.entries, reached.codes.expected)
    if new and reached.verdict.compared and _put_if_equal(reached, new):
        reached.hidden = [key for key in reached.hidden if key not in new]


def _put_if_equal(reached: Reached, new: MappingOf[str, Expr]) -> bool:
    """Put the expressions NEW (key -> expression) into REACHED, with the flow and the verdict for them, and return
    True, if outputs stay equal, in float64, and on further inputs, too. If no outputs were compared, or they are equal
    only up to the last use (`Verdict.beyond`), all uses have to agree that agreed, but those that read these keys. Else
    return False, and leave REACHED as it is.

    A key whose expression in NEW is that before the proof gets its entry of that time; the others are noted as tried.
    """
    before = {entry.target: entry for entry in reached.mapping.entries}
    entries = reached.entries | {
        key: before[key] if before[key].expr == expr else reached.entries[key].tried(expr) for key, expr in new.items()
    }
    seen = reached.trial.run(entries.values())
    if seen is None:
        return False
    verdict = judge(reached.codes.expected, seen, entries, turned=reached.verdict.turned)
    found = reached.sharply
    if reached.verdict.compared and not reached.verdict.beyond:
        found = reached.sharp(entries, seen)
        equal = verdict.equal and found is not None and found.outputs_are_equal
        equal = equal and all(reached.holds(entries, verdict, *other) for other in reached.others)
    else:
        equal = _agree_as_before(reached, seen, new)
        verdict = replace(reached.verdict, agreeing=verdict.agreeing)
    if equal:
        reached.entries, reached.seen, reached.verdict, reached.sharply = entries, seen, verdict, found
    return equal


def _agree_as_before(reached: Reached, seen: Flow, new: MappingOf[str, Expr]) -> bool:
    """Return whether SEEN has as many uses of weights as the flow of REACHED, and each that agreed there agrees in
    SEEN, too, or reads a key in NEW.
    """
    agreed, now = (given_by(reached.codes.expected, flow) for flow in (reached.seen, seen))
    same = [b or not a or not new.keys().isdisjoint(u.keys) for a, b, u in zip(agreed, now, seen.uses, strict=False)]
    return len(same) == len(agreed) == len(now) and all(same)


__all__ = ["exchangeable", "settle_hidden_factors"]
