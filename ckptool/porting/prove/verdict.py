"""Compare the outputs and uses of weights of a model with those of the source's code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass

import torch

from ..mapping import Entry
from ..words import all_in, cut
from .fingerprints import pairing
from .flow import Flow, Place, Use, is_silent
from .measure import of_one_size, orders

#: Largest difference, relative to the spread of the values, with which trials go on: what proves is measured.
_TOLERANCE = 1e-3


def _equal(a: torch.Tensor, b: torch.Tensor, tolerance: float = _TOLERANCE) -> bool:
    """Return whether the outputs A and B differ by at most TOLERANCE times the largest value of A.

    Dimensions may be in another order; outputs of unlike sizes are compared flattened (see `orders`). NaN and infinity
    have to be in the same places, and some numbers finite. Return False if the numbers of elements differ or are 0.
    """
    if a.numel() != b.numel() or a.numel() == 0:
        return False
    return any(_close(x, y, tolerance) for x, y in orders(a, b))


def _close(a: torch.Tensor, b: torch.Tensor, tolerance: float = _TOLERANCE) -> bool:
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        same = torch.isfinite(a) & torch.isfinite(b)
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)) or not same.any():
            return False
        a, b = a[same], b[same]
    spread = float(a.abs().max()) or 1.0
    return float((a - b).abs().max()) <= tolerance * spread


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much of the model agrees with the source's code.

    Attributes:
        equal: whether the outputs, or everything compared in place of them, are equal.
        compared: number of outputs that could be compared.
        agreeing: number of uses of weights whose output a use in the source's code gives; -1 in `NOTHING`.
        uses: number of uses of weights.
        entered: number of uses whose input a use in the source's code takes.
        front: the uses that do not agree while all uses before them do; empty if `equal`.
        left: keys without a source that prevent a comparison.
        beyond: whether outputs differ only because of steps after the last use of a weight.
        turned: whether outputs are equal only if some of one size change places.
        same: number of outputs that are equal, each in its place if they have names.
    """

    equal: bool
    compared: int
    agreeing: int
    uses: int
    front: tuple[Use, ...] = ()
    left: tuple[str, ...] = ()
    entered: int = 0
    beyond: bool = False
    turned: bool = False
    same: int = 0

    def is_ahead_of(self, other: Verdict) -> bool:
        """Return whether more agrees than in OTHER: outputs are equal, or the number of agreeing outputs, of the model
        and of uses, and of agreeing inputs of uses is larger. Inputs count: the weights after them may be wrong, too.
        Of as many, outputs count more: what still adds 0 gives what it takes, and the use after it takes the same.
        """
        return self.equal or self._agrees > other._agrees

    @property
    def _agrees(self) -> tuple[int, int]:
        outputs = self.agreeing + self.same
        return outputs + self.entered, outputs


NOTHING = Verdict(False, 0, -1, 0)


def judge(
    expected: Flow,
    seen: Flow | None,
    entries: MappingOf[str, Entry],
    *,
    all_outputs: bool = True,
    turned: bool = False,
    tolerance: float = _TOLERANCE,
) -> Verdict:
    """Return the verdict on SEEN, the flow of the model with ENTRIES, against EXPECTED, the flow of the source's code.
    `NOTHING` if SEEN is None.

    Outputs of one size have to be equal each in its place (see `in_their_places`), unless TURNED, or if no place
    decides (`places_decide`). Outputs that depend on keys without a source are skipped unless ALL_OUTPUTS. Two outputs
    are equal if they differ by at most TOLERANCE times the largest value.

    If no output can be compared, the uses of weights decide: some have to agree, and none may diverge but those with
    keys without a source. If outputs differ, and are not those of EXPECTED in another order, but all uses agree and the
    last one gives the same, they count as equal (`beyond`), unless an open question is about a factor of the last
    weights. The front (the uses that diverge first) is empty if the outputs are equal.
    """
    if seen is None:
        return NOTHING
    known = given_by(expected, seen)
    followed = seen.uses if expected.uses else []
    entering = _entering(expected, seen, entries)
    open_front = _front(followed, _fine(known, entering, expected, seen))
    # what has no source, and changes nothing, gives what the use before it gives: the search begins there
    filled = [k and not _is_left(use, entries) for k, use in zip(known, seen.uses, strict=True)]
    front = _front(followed, _fine(filled, entering, expected, seen))
    given = seen if all_outputs else made_of_known(seen, entries)
    outputs = given.outputs
    compared, equal, same = compared_outputs(expected.outputs, outputs, tolerance)
    if named := by_name(expected, given):
        same = [j for i, j in named if _equal(expected.outputs[i], outputs[j], tolerance)]
    moved = bool(compared) and equal and not in_their_places(expected, given, tolerance)
    if moved and not turned:
        equal = not places_decide(expected, given)
    if not compared:
        diverging = [use for use in open_front if not _is_left(use, entries)]
        equal = bool(expected.uses) and not diverging and sum(known) > 0
    same_to_the_last = False
    if compared and not equal and all(known) and not _rearranged(expected.outputs, outputs):
        asked = _may_lack_a_factor(seen, entries)
        same_to_the_last = equal = _same_last(expected, seen) and not asked
        front = front or asked
    left = [key for use in open_front for key in use.keys if key in entries and entries[key].expr is None]
    return Verdict(
        equal,
        compared,
        sum(filled),
        len(known),
        tuple(front if not equal else ()),
        tuple(dict.fromkeys(left)),
        sum(entering),
        same_to_the_last,
        moved and equal,
        len(same),
    )


def _front(uses: Sequence[Use], fine: Sequence[bool]) -> list[Use]:
    """Return those of USES that are not FINE, while all uses before them are. FINE has a value for each use, by its
    index.
    """
    return [use for use in uses if not fine[use.index] and all(fine[i] for i in use.before)]


def given_by(expected: Flow, seen: Flow) -> list[bool]:
    """Return, for each use in SEEN, whether uses in EXPECTED give its output; False for all if EXPECTED has no uses. A
    use that runs again and again, as in a loop over time, agrees, too, if its outputs together are given: they may be
    one use there, of all inputs at once.
    """
    if not expected.uses:
        return [False] * len(seen.uses)
    whole = {told for told, (use,) in seen.repeated.items() if expected.gives(use.given)}
    return [use.told in whole or expected.gives(use.given) for use in seen.uses]


def _entering(expected: Flow, seen: Flow, entries: MappingOf[str, Entry]) -> list[bool]:
    """Return, for each use in SEEN, whether a use in EXPECTED takes its input, also of all runs of a loop at once. The
    input does not count if it comes from a use of keys without a source in ENTRIES that leaves it as it was.
    """
    if not expected.uses:
        return [False] * len(seen.uses)
    of_loops = {told: use.taken for told, (use,) in seen.repeated.items() if use.taken is not None}
    whole = {told for told, taken in of_loops.items() if expected.takes(taken)}
    left = {use.index for use in seen.uses if _is_left(use, entries) and expected.gives(use.given)}
    return [
        left.isdisjoint(use.before) and (use.told in whole or (use.taken is not None and expected.takes(use.taken)))
        for use in seen.uses
    ]


def in_their_places(expected: Flow, seen: Flow, tolerance: float = _TOLERANCE) -> bool:
    """Return whether each output of SEEN equals the output in its place in EXPECTED.

    If `by_name` finds pairs of outputs, those of them that can be compared have to be equal. Else outputs with equally
    many numbers have to be equal in their order; either model may have more of them in between.
    """
    if named := by_name(expected, seen):
        both = [(expected.outputs[i], seen.outputs[j]) for i, j in named]
        return all(_equal(a, b, tolerance) for a, b in both if of_one_size(a, b, len(seen.outputs) == 1))
    sizes: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = defaultdict(lambda: ([], []))
    for side, flow in enumerate((expected, seen)):
        for output in flow.outputs:
            sizes[output.numel()][side].append(output)
    return all(_longest(a, b, tolerance) == min(len(a), len(b)) for a, b in sizes.values())


def places_decide(expected: Flow, seen: Flow) -> bool:
    """Return whether outputs may be told apart by their places: `by_name` finds pairs of outputs, or neither model
    names any.
    """
    return bool(by_name(expected, seen)) or not (_named(seen.places) or _named(expected.places))


def by_name(expected: Flow, seen: Flow) -> list[tuple[int, int]]:
    """Return pairs (index in EXPECTED, index in SEEN) of outputs in equal places (names and indices). If there are
    none: of outputs with equally many numbers, of which the last name of one stands for that of the other
    (`_stand_for_each_other`), if that pairs all outputs of these sizes in EXPECTED one for one.

    [] if there are no such pairs, or if a model does not name its outputs.
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
    the other, or abbreviate them, or are its initials, as `wh` for `width_height`.
    """
    names = [str(place[-1]) for place in (one, other) if place]
    return len(names) == 2 and any(all_in(cut(a), b) for a, b in (names, reversed(names)) if cut(a))


def _named(places: Iterable[Place]) -> bool:
    return any(isinstance(part, str) for place in places for part in place)


def _longest(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], tolerance: float) -> int:
    """Return the length of the longest common subsequence of the outputs A and B, which are equal within TOLERANCE: how
    many are equal in one order.
    """
    best = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for at, y in enumerate(b):
            row.append(best[at] + 1 if _equal(x, y, tolerance) else max(best[at + 1], row[at]))
        best = row
    return best[-1]


def _fine(known: Sequence[bool], entering: Sequence[bool], expected: Flow, seen: Flow) -> list[bool]:
    """Return, for each use of weights in SEEN, whether nothing is wrong up to it: as in `shown_by`, or a use takes what
    it gives, perhaps added to what others give, and a use of that kind in EXPECTED takes the same. Layers that one code
    adds up may be one layer in the other. ENTERING says of each use whether its input is taken there at all.
    """
    fine = list(known)
    for use in seen.uses:
        open_ = entering[use.index] and not all(fine[before] for before in use.before)
        if open_ and use.taken is not None and not is_silent(use.taken) and _takes_that(expected, use):
            for before in use.before:
                fine[before] = True
    return shown_by(fine, seen)


def _takes_that(expected: Flow, use: Use) -> bool:
    inputs = (other.taken for other in expected.uses if use.is_like(other))
    return any(use.taken is not None and t is not None and pairing(use.taken, t) is not None for t in inputs)


def shown_by(known: Sequence[bool], seen: Flow) -> list[bool]:
    """Return, for each use of weights in SEEN, whether it is KNOWN to agree (a value for each use), or its output flows
    into a use that is.
    """
    fine = list(known)
    for use in reversed(seen.uses):
        if fine[use.index]:
            for before in use.before:
                fine[before] = True
    return fine


def _rearranged(expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> bool:
    """Return whether an output in SEEN has the values of one in EXPECTED in another order, up to a positive factor.

    Code with another layout of channels (depth to space or pixel shuffle) needs another order in its last weights.
    """
    for a, b in ((a, b) for a in expected for b in seen if 1 < a.numel() == b.numel()):
        one, other = (x / (float(x.abs().max()) or 1.0) for x in (y.detach().double().reshape(-1) for y in (a, b)))
        if _close(one.sort().values, other.sort().values) and not _close(one, other):
            return True
    return False


def _same_last(expected: Flow, seen: Flow) -> bool:
    """Return whether each output of SEEN comes from one last use of weights with the same output, in the same order, as
    the last use behind that output of EXPECTED, and these come after all others. If there are several outputs, their
    names have to say which is which.

    Then outputs differ only by steps after these uses (adding the input, a scale), which do not concern weights.
    """
    ends, theirs = (sorted({i for behind in flow.behind for i in behind}) for flow in (seen, expected))
    if len(ends) == len(theirs) == 1:
        pairs = [(theirs[0], ends[0])]
    else:
        named = by_name(expected, seen)
        if len(named) < len(seen.outputs) or any(seen.places[j] != expected.places[i] for i, j in named):
            return False
        lasts = [(expected.behind[i], seen.behind[j]) for i, j in named]
        if any(len(behind) != 1 for pair in lasts for behind in pair):
            return False
        pairs = [(i, j) for one, other in lasts for i in one for j in other]
    uses = {use.index: use for use in expected.uses}
    same = all(i in uses and _gives_in_order(seen.uses[j], uses[i]) for i, j in pairs)
    return same and len(seen.reaching(ends)) == len(seen.uses)


def _gives_in_order(use: Use, other: Use) -> bool:
    return pairing(use.given, other.given) == list(range(use.rows))


def _may_lack_a_factor(seen: Flow, entries: MappingOf[str, Entry]) -> list[Use]:
    """Return the uses in SEEN that are the last ones before an output and whose weights have an open question in
    ENTRIES with a factor among its options; [] if there are none.

    A step that multiplies what such a use gives may be this factor, so the outputs have to answer the question.
    """
    last = sorted({i for behind in seen.behind for i in behind})
    return [seen.uses[i] for i in last if any(_is_factor_asked(entries.get(key)) for key in seen.uses[i].keys)]


def _is_factor_asked(entry: Entry | None) -> bool:
    return entry is not None and any("scale" in option.operations() for option in entry.rivals)


def made_of_known(seen: Flow, entries: MappingOf[str, Entry]) -> Flow:
    """Return SEEN, the flow of the model, without the outputs that depend on a key without a source in ENTRIES. Keys
    that are to keep the model's own values do not count.
    """
    return seen.with_outputs([i for i, open_ in enumerate(_made_with(seen, entries)) if not open_])


def _made_with(seen: Flow, entries: MappingOf[str, Entry]) -> list[bool]:
    """Return, for each output of the model, whether it depends on a key without a source in ENTRIES (see
    `behind_new_keys`).
    """
    open_ = behind_new_keys(seen, entries)
    return [any(open_[i] for i in behind) for behind in seen.behind]


def behind_new_keys(seen: Flow, entries: MappingOf[str, Entry]) -> list[bool]:
    """Return, for each use of weights in SEEN, whether it reads, or its input depends on, a key without a source in
    ENTRIES. Keys that are to keep the model's own values (`Entry.default`) do not count.
    """
    open_: list[bool] = []
    for use in seen.uses:
        open_.append(_is_left(use, entries) or any(open_[i] for i in use.before))
    return open_


def _is_left(use: Use, entries: MappingOf[str, Entry]) -> bool:
    return any(key in entries and entries[key].expr is None and not entries[key].default for key in use.keys)


def compared_outputs(
    expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor], tolerance: float = _TOLERANCE
) -> tuple[int, bool, list[int]]:
    """Return (how many outputs can be compared, whether all comparable outputs of one model are equal to some of the
    other, the indices of the outputs in SEEN that are equal to one in EXPECTED). With none that can be compared: (0,
    False, []).

    Either model may have more outputs: hidden states, or values computed from several outputs. Outputs are equal if
    they differ by at most TOLERANCE times the largest value.
    """
    alone = len(expected) == len(seen) == 1
    theirs = [i for i, a in enumerate(expected) if any(of_one_size(a, b, alone) for b in seen)]
    own = [j for j, b in enumerate(seen) if any(of_one_size(a, b, alone) for a in expected)]
    found = [(i, j) for i in theirs for j in own if _equal(expected[i], seen[j], tolerance)]
    equal = {i for i, _ in found} == set(theirs) or {j for _, j in found} == set(own)
    return min(len(theirs), len(own)), equal and bool(found), sorted({j for _, j in found})


def apart(expected: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]) -> tuple[float, float] | None:
    """Return (largest difference of the outputs, largest value of that output in EXPECTED), at the output in EXPECTED
    that is farthest from the nearest one in SEEN with as many numbers. Only numbers that are finite in both count. None
    if no two can be compared.
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
