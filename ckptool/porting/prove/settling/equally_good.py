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
    """Return the pairs of keys whose weights may be exchanged: if the two keys get each other's weights, the outputs
    are still equal to those of the source's code up to rounding, in float64. Only the first eight pairs of keys with
    nearly equal weights (`nearly_equal`) are tried; [] if there are none. UNFELT, the keys that the outputs do not
    depend on, are left out. The model has the weights of REACHED afterwards.
    """
    pairs = list(islice(nearly_equal(reached.trial, reached.entries, unfelt), _MOST_PAIRS))
    return [pair for pair in pairs if _may_be_exchanged(pair, reached)]


def _may_be_exchanged(pair: tuple[str, str], reached: Reached) -> bool:
    """Return whether outputs stay equal up to rounding in float64 if the two keys of PAIR exchange their expressions.
    False if the model cannot be run with these, or if no outputs can be compared in float64. The model has the weights
    of REACHED afterwards.
    """
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
    """Change REACHED in two steps, each only if outputs stay equal (`_put_if_equal`).

    First, keys whose expression got a factor (`scale`) by trials lose this factor: all at once, or, if outputs are not
    equal then, one by one (the first 32). The keys that lost it are added to `hidden`: outputs do not show the factor.

    Then, if outputs were compared and trials answered a question about a factor in one way for all keys that they
    changed, the other keys with this question get the same answer (`factors_as_in_others`), all at once. These keys
    leave `hidden`. Each success also changes the entries, the flow and the verdict of REACHED.
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
    """Run the model with the expressions NEW (key -> expression) in place of those in REACHED. If as much agrees as
    before, put them into REACHED, with the flow and the verdict for them, and return True; else leave REACHED as it is
    and return False (also if the model cannot be run).

    As much agrees if outputs are equal in float32, in float64 and on further inputs. But if no outputs were compared
    before, or they differ in steps after the last use of weights (`Verdict.beyond`): if each use of weights that agreed
    before agrees, or reads a key of NEW. A key for which NEW has the expression from before the proof gets its
    entry from before the proof; others get NEW as found by trial (`Entry.tried`).
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
