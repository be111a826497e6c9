"""Propose other expressions for weights where two models diverge, the likeliest first.

Options of the questions from matching come first. If the source's code has a use with the same input, the weights of
that use are proposed next; if not, the weights before are rearranged.
"""

from __future__ import annotations

from collections.abc import Iterator

from .arrangements import arrangements
from .flow import Use
from .goes_in import from_what_goes_in, made_together, takes_the_same
from .ground import Change, Ground
from .other_values import adapters, any_of_these_sizes, around_zero_or_one, options


def for_use(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield changes (label, key -> expression) for the weights of F, the use where the models diverge, or for the
    weights before it, the likeliest first.
    """
    yield from options(ground, f)
    yield from adapters(ground, f)
    if any("lora" in e.expr.operations() for k in f.keys if (e := ground.entries.get(k)) and e.expr is not None):
        return  # what an adapted layer gives is in the source in two parts
    matched = takes_the_same(ground, f)
    if matched:
        yield from from_what_goes_in(ground, f, matched)
    yield from made_together(ground, f)
    if not matched:
        yield from arrangements(ground, f)
    yield from around_zero_or_one(ground, f)
    yield from any_of_these_sizes(ground, f)
    if matched:
        yield from arrangements(ground, f)


__all__ = ["for_use"]
