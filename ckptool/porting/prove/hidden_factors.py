"""Factors of weights that outputs do not show: a norm, or code that gives weights a length of its own, takes them out.

One code multiplies a weight by a number on each call, and the other does not. What the layer gives directly is equal
only with that factor in the weight, so a trial puts it there; what follows is equal either way. Nothing shows what is
meant then, and the tensor is taken as it is, unless a question about it was answered in other layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from math import isclose

from .. import expression as ex
from ..expression import Expr, Shape
from ..mapping import Entry
from ..questions import still_open
from .flow import Flow


def plain(entries: MappingOf[str, Entry], before: Iterable[Entry], shapes: MappingOf[str, Shape]) -> dict[str, Expr]:
    """Return, as key -> expression without factors, the keys of ENTRIES whose factor trials found: not those that have
    one in BEFORE, the entries before any trial. SHAPES has the sizes of the source.
    """
    out = {}
    for old in before:
        now = entries[old.target].expr
        if now is not None and now != old.expr and (old.expr is None or ex.unscaled(old.expr) == old.expr):
            bare = ex.simplified(ex.unscaled(now), shapes)
            if bare != now:
                out[old.target] = bare
    return out


def factors_as_in_others(entries: MappingOf[str, Entry], before: Iterable[Entry], expected: Flow) -> dict[str, Expr]:
    """Return, as key -> option, the change that answers the questions about factors in one way: if trials took the same
    option for all members of a group with the same question that they changed, the other members take it as well, if
    EXPECTED, the flow of the source's code, has that factor behind them.

    BEFORE has the entries before any trial, ENTRIES those after. Empty if trials changed nothing of the kind.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in before:
        if entry.status == "guessed" and entry.rivals:
            groups.setdefault(tuple(q.asked for q in still_open(entry.questions)), []).append(entry)
    new: dict[str, Expr] = {}
    for members in groups.values():
        now = {e.target: entries[e.target].expr for e in members}
        taken = {e.rivals.index(x) for e in members if (x := now[e.target]) is not None and x in e.rivals}
        for entry in members if len(taken) == 1 else ():
            option = entry.rivals[min(taken)] if len(entry.rivals) > min(taken) else None
            if option is not None and now[entry.target] == entry.expr and _has_factor(option, expected):
                new[entry.target] = option
    return new


def _has_factor(option: Expr, expected: Flow) -> bool:
    """Return whether OPTION is a tensor of the source times a number, and the code multiplies by it what the tensor's
    layer gives.
    """
    if option.op != "scale" or not option.args[0].is_copy:
        return False
    factor, key = float(option.params[0]), option.args[0].key
    layers = {use.index for use in expected.uses if key in use.keys}
    behind = [use.steps for use in expected.uses if not layers.isdisjoint(use.before)]
    behind += [
        steps for ends, steps in zip(expected.behind, expected.tails, strict=False) if not layers.isdisjoint(ends)
    ]
    numbers = [(step.name, dict(step.settings).get("other")) for steps in behind for step in steps]
    return any(
        isinstance(number, float) and number and isclose(number if name == "mul" else 1 / number, factor, rel_tol=1e-5)
        for name, number in numbers
        if name in ("mul", "div")
    )


__all__ = ["factors_as_in_others", "plain"]
