"""Compare the outputs of two models: which are equal, and which output of one is which of the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from ..words import all_in, cut
from .flow import Flow, Place
from .measure import of_one_size, orders

#: Largest difference, relative to the spread of the values, with which trials go on: what proves is measured.
TOLERANCE = 1e-3


def are_equal(a: torch.Tensor, b: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether the outputs A and B are equal: they have equally many numbers, at least one, and are `_close` with
    the dimensions of A in some order; outputs of unlike sizes are compared flattened (see `orders`).
    """
    if a.numel() != b.numel() or a.numel() == 0:
        return False
    return any(_close(x, y, tolerance) for x, y in orders(a, b))


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether A and B, of one size and not empty, differ by at most TOLERANCE times the largest absolute value
    of A (TOLERANCE itself if A is all zeros). Numbers that are not finite have to be in the same places in both; which
    they are (NaN or infinity) is not compared. False if no number is finite.
    """
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        same = torch.isfinite(a) & torch.isfinite(b)
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)) or not same.any():
            return False
        a, b = a[same], b[same]
    spread = float(a.abs().max()) or 1.0
    return float((a - b).abs().max()) <= tolerance * spread


def compared_outputs(
    expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor], tolerance: float = TOLERANCE
) -> tuple[int, bool, list[int]]:
    """Return (number of outputs that can be compared, whether outputs are equal, the indices of the outputs in SEEN
    that are equal to one in EXPECTED). (0, False, []) if none can be compared. EXPECTED are the outputs of the source's
    code, SEEN those of the model; they are compared in any order.

    Two outputs can be compared if they have equally many numbers, and more than one unless each code has one output
    alone (`of_one_size`). They are equal if they differ by at most TOLERANCE times the largest absolute value of the
    one in EXPECTED, with its dimensions in some order (`are_equal`). The number is that of the code in which fewer can
    be compared. The second result is True if each of these, in at least one of the two codes, equals some output of the
    other: either code may have more, such as hidden states, or values computed from several outputs.
    """
    alone = len(expected) == len(seen) == 1
    theirs = [i for i, a in enumerate(expected) if any(of_one_size(a, b, alone) for b in seen)]
    own = [j for j, b in enumerate(seen) if any(of_one_size(a, b, alone) for a in expected)]
    found = [(i, j) for i in theirs for j in own if are_equal(expected[i], seen[j], tolerance)]
    equal = {i for i, _ in found} == set(theirs) or {j for _, j in found} == set(own)
    return min(len(theirs), len(own)), equal and bool(found), sorted({j for _, j in found})


def apart(expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> tuple[float, float] | None:
    """Return (largest difference, largest absolute value in EXPECTED) at the output in EXPECTED that is farthest apart
    from its nearest output in SEEN. None if no two outputs can be compared. Outputs with equally many numbers are
    compared, flattened, also those of one number; only numbers that are finite in both count, for both results.
    """
    worst: tuple[float, float] | None = None
    for a in expected:
        near: tuple[float, float] | None = None
        for b in (b for b in seen if a.numel() == b.numel() > 0):
            x, y = a.detach().double().reshape(-1), b.detach().double().reshape(-1)
            both = torch.isfinite(x) & torch.isfinite(y)
            if bool(both.any()):
                found = float((x - y)[both].abs().max()), float(x[both].abs().max())
                near = found if near is None else min(near, found)
        if near is not None:
            worst = near if worst is None else max(worst, near)
    return worst


def in_their_places(expected: Flow, seen: Flow, tolerance: float) -> bool:
    """Return whether the outputs of SEEN, the flow of the model, equal those in their places in EXPECTED, the flow of
    the source's code, within TOLERANCE. True if there is nothing to compare.

    If `by_name` finds pairs of outputs, those of them that can be compared have to be equal. Else, of the outputs with
    equally many numbers, all of the code that has fewer have to equal outputs of the other in the same order; the other
    may have more of them in between.
    """
    if named := by_name(expected, seen):
        both = [(expected.outputs[i], seen.outputs[j]) for i, j in named]
        return all(are_equal(a, b, tolerance) for a, b in both if of_one_size(a, b, len(seen.outputs) == 1))
    sizes: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = defaultdict(lambda: ([], []))
    for side, flow in enumerate((expected, seen)):
        for output in flow.outputs:
            if output.numel() > 1 or (output.numel() and len(flow.outputs) == 1):  # as `of_one_size` has it
                sizes[output.numel()][side].append(output)
    return all(_longest(a, b, tolerance) == min(len(a), len(b)) for a, b in sizes.values())


def places_decide(expected: Flow, seen: Flow) -> bool:
    """Return whether outputs may be told apart by their places: `by_name` finds pairs of outputs, or neither model
    names any.
    """
    return bool(by_name(expected, seen)) or not (_named(seen.places) or _named(expected.places))


def by_name(expected: Flow, seen: Flow) -> list[tuple[int, int]]:
    """Return pairs (index in EXPECTED, index in SEEN) of outputs of the two codes that correspond by their names; [] if
    there are none, or if one of the codes does not name its outputs.

    These are all outputs in equal places (`Flow.places`: names and indices). Only if there are none: outputs with
    equally many numbers whose last name is short for the other's (`_stand_for_each_other`: `wh`, `width_height`), if
    each is in one pair only, and all outputs of these sizes in EXPECTED are in one.
    """
    if not (_named(seen.places) and _named(expected.places)):
        return []
    own = {place: at for at, place in enumerate(seen.places)}
    if same := [(at, own[place]) for at, place in enumerate(expected.places) if place in own]:
        return same
    alike = [
        (i, j)
        for i, place in enumerate(expected.places)
        for j, other in enumerate(seen.places)
        if expected.outputs[i].numel() == seen.outputs[j].numel() and _stand_for_each_other(place, other)
    ]
    one_to_one = all(len({pair[side] for pair in alike}) == len(alike) for side in (0, 1))
    sizes = {expected.outputs[i].numel() for i, _ in alike}
    left = [at for at, output in enumerate(expected.outputs) if output.numel() in sizes]
    return alike if one_to_one and len(left) == len(alike) else []


def _stand_for_each_other(one: Place, other: Place) -> bool:
    """Return whether the last part of one of two places is short for that of the other: all of its words are words of
    the other, or abbreviate them, or are its initials, as `wh` for `width_height`. False if a place has no parts.
    """
    names = [str(place[-1]) for place in (one, other) if place]
    return len(names) == 2 and any(all_in(cut(a), b) for a, b in (names, reversed(names)) if cut(a))


def _named(places: Iterable[Place]) -> bool:
    """Return whether one of PLACES has a name in it, not only indices."""
    return any(isinstance(part, str) for place in places for part in place)


def _longest(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], tolerance: float) -> int:
    """Return how many outputs of A equal outputs of B (`are_equal`, within TOLERANCE) in the same order: the length of
    their longest common subsequence.
    """
    best = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for at, y in enumerate(b):
            row.append(best[at] + 1 if are_equal(x, y, tolerance) else max(best[at + 1], row[at]))
        best = row
    return best[-1]


def are_rearranged(expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> bool:
    """Return whether an output in SEEN has the values of one in EXPECTED (`_close`), but in another order; both are
    divided by their largest absolute value before. Outputs of one number do not count.
    """
    for a, b in ((a, b) for a in expected for b in seen if 1 < a.numel() == b.numel()):
        one, other = (x / (float(x.abs().max()) or 1.0) for x in (y.detach().double().reshape(-1) for y in (a, b)))
        if _close(one.sort().values, other.sort().values) and not _close(one, other):
            return True
    return False


__all__ = [
    "TOLERANCE",
    "apart",
    "are_equal",
    "are_rearranged",
    "by_name",
    "compared_outputs",
    "in_their_places",
    "places_decide",
]
