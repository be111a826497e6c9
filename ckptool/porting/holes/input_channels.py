"""Kernels for another number of input channels: grey pictures, depth, satellite bands, several frames.

No file shows which rule the new code needs, so each result is a guess, with the other rules as options. The names of
the rules are those of `--input-channels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import RuleError, printable
from .. import expression as ex
from ..expression import Expr, Shape
from ..mapping import Entry, Mapping
from ..questions import Question, Reason

#: What each rule does, as the report says it, with the numbers of channels that the file and the model have.
RULES = {
    "repeat": "its channels were repeated in turn, times {have}/{wanted}",
    "sum": "its channels were summed to {wanted}",
    "mean": "each channel got the mean of all",
    "zeros": "the new channels were filled with zeros",
    "first": "only the first {wanted} were kept",
}


def of_channels(wanted: Shape, have: Shape, expr: Expr) -> tuple[Expr, Question[Expr]] | None:
    """Return the kernel [out, in, …] by the likeliest rule, and the question about it with the other rules as options.
    None if anything but the number of input channels differs.

    Args:
        wanted, have: the sizes in the model and in the file, which differ only in the second number.
        expr: the kernel of the file, of sizes HAVE.
    """
    if len(wanted) != len(have) or len(wanted) not in (3, 4, 5) or wanted[:1] + wanted[2:] != have[:1] + have[2:]:
        return None
    ways = _more(wanted, have[1], expr) if wanted[1] > have[1] else _fewer(wanted, have[1], expr)
    first, *others = ways
    words = RULES[first].format(have=have[1], wanted=wanted[1])
    named = str(have[1]), str(wanted[1]), words, ", ".join(others)
    return ways[first], Question(Reason.OTHER_CHANNELS, named, tuple(ways[name] for name in others))


def _more(wanted: Shape, have: int, x: Expr) -> dict[str, Expr]:
    times, rest = divmod(wanted[1], have)
    if rest:
        turns = ex.cat(1, *[x] * times, ex.part(x, 1, 0, rest))
        repeated = ex.scale(turns, have / wanted[1])
    else:
        repeated = ex.repeat(x, 1, times)
    ways = {"repeat": repeated, "zeros": ex.cat(1, x, ex.zeros(wanted[0], wanted[1] - have, *wanted[2:]))}
    return ways if have == 1 else ways | {"mean": ex.repeat(ex.summed(x, 1), 1, wanted[1])}


def _fewer(wanted: Shape, have: int, x: Expr) -> dict[str, Expr]:
    n = wanted[1]
    first = ex.part(x, 1, 0, n)
    if n == 1:
        total = ex.summed(x, 1)
        return {"sum": total, "mean": ex.scale(total, 1 / have), "first": first}
    parts = [ex.part(x, 1, at, min(at + n, have)) for at in range(0, have, n)]
    if have % n:
        parts[-1] = ex.cat(1, parts[-1], ex.zeros(wanted[0], n - have % n, *wanted[2:]))
    return {"first": first, "sum": ex.add(*parts)}


def rule_of(expr: Expr) -> str:
    """Return the rule for input channels (a key of RULES) that made the kernel EXPR, told from its operations."""
    operations = set(expr.operations())
    if not operations.isdisjoint(("sum", "add")):
        return "mean" if not operations.isdisjoint(("scale", "repeat")) else "sum"
    if "zeros" in operations:
        return "zeros"
    return "first" if operations.isdisjoint(("scale", "repeat")) else "repeat"


def by_rule(mapping: Mapping, rule: str) -> Mapping:
    """Return MAPPING with RULE applied to every kernel of another number of input channels; their questions are
    answered.

    Raises:
        RuleError: the rule cannot make the channels of the model from those of the file.
    """
    return mapping.with_entries([_by_rule(entry, rule) for entry in mapping.entries])


def _by_rule(entry: Entry, rule: str) -> Entry:
    asked = next((q for q in entry.questions if q.is_open and q.reason is Reason.OTHER_CHANNELS), None)
    if asked is None or entry.expr is None:
        return entry
    ways = {rule_of(way): way for way in (*asked.options, entry.expr)}
    if not asked.options:  # the bias beside the kernel, which is the same by every rule
        ways = {rule: entry.expr}
    if rule not in ways:
        raise RuleError(
            f"the rule {rule!r} does not lead from {asked.named[0]} input channels to {asked.named[1]}",
            where=printable(entry.target, 100),
            hint=f"--input-channels {_likeliest(list(ways))}",
        )
    answer = f"input channels by the rule {rule!r}, as asked for"
    left = [q if q is not asked else replace(q, answer=answer) for q in entry.questions]
    return replace(entry, expr=ways[rule], questions=tuple(left), evidence=answer)


def _likeliest(names: Sequence[str]) -> str:
    return min(names, key=list(RULES).index)


__all__ = ["RULES", "by_rule", "of_channels", "rule_of"]
