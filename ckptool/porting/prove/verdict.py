"""Compare the outputs and uses of weights of a model with those of the source's code."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass

from ..mapping import Entry
from .fingerprints import pairing
from .flow import Flow, Use, is_silent
from .outputs import TOLERANCE, are_equal, are_rearranged, by_name, compared_outputs, in_their_places, places_decide


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much of the model agrees with the source's code.

    Attributes:
        equal: whether the outputs, or everything compared in place of them, are equal.
        compared: number of outputs that could be compared.
        agreeing: number of uses of weights whose output channels are outputs of uses in the source's code, without
            those that read a key without a source; -1 in `NOTHING`.
        uses: number of uses of weights.
        entered: number of uses whose input channels uses in the source's code take, too (see `_entering`).
        front: the uses that do not agree while all uses before them do (see `judge`); empty if `equal`.
        left: keys without a source of the uses that diverge first: they prevent a comparison.
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
        """Return whether this verdict is better than OTHER: True if it is `equal`; else if more outputs of the model,
        outputs of uses and inputs of uses agree, counted together; if as many, whether more outputs do. Inputs count
        because the weights after them may be wrong, too.
        """
        return self.equal or self._agrees > other._agrees

    @property
    def _agrees(self) -> tuple[int, int]:
        """Return (the number of agreeing outputs and inputs, that of the outputs), of the model and of uses."""
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
    tolerance: float = TOLERANCE,
) -> Verdict:
    """Return the verdict on SEEN, the flow of the model with ENTRIES, against EXPECTED, the flow of the source's code.
    `NOTHING` if SEEN is None.

    Outputs of one size have to be equal each in its place (see `in_their_places`), unless TURNED is true or places do
    not tell outputs apart (`places_decide`). Outputs that depend on keys without a source are skipped unless
    ALL_OUTPUTS. Two are equal if they differ by at most TOLERANCE times the largest absolute value (`are_equal`).

    If no output can be compared (has as many numbers as one of EXPECTED, more than one: `compared_outputs`), the uses
    of weights decide: some have to agree, and none may diverge but those with keys without a source. If outputs differ,
    and are not those of EXPECTED in another order, but all uses agree and the last one gives the same, they count as
    equal (`beyond`), unless an open question is about a factor of the last weights (`_may_lack_a_factor`).

    The front has the uses that diverge first: those of which nothing shows that they are right (`_fine`), while all
    uses before them are. A use that reads a key without a source counts as wrong even if its output agrees, unless a
    later use shows it to be right: a search for that key begins there. If no use diverges, the front has the uses of
    last weights with an open question about a factor, if outputs differ. It is empty if the outputs are equal, or if
    EXPECTED has no uses.
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
    compared, equal, moved, same = _compared(expected, given, turned, tolerance)
    beyond = False
    if not compared:
        diverging = [use for use in open_front if not _is_left(use, entries)]
        equal = bool(expected.uses) and not diverging and any(known)
    elif not equal and all(known) and not are_rearranged(expected.outputs, given.outputs):
        asked = _may_lack_a_factor(seen, entries)
        beyond = equal = _same_last(expected, seen) and not asked
        front = front or asked
    left = [key for use in open_front for key in use.keys if key in entries and entries[key].expr is None]
    return Verdict(
        equal=equal,
        compared=compared,
        agreeing=sum(filled),
        uses=len(known),
        front=() if equal else tuple(front),
        left=tuple(dict.fromkeys(left)),
        entered=sum(entering),
        beyond=beyond,
        turned=moved and equal,
        same=same,
    )


def _compared(expected: Flow, given: Flow, turned: bool, tolerance: float) -> tuple[int, bool, bool, int]:
    """Return (how many outputs can be compared, whether they are equal, whether their values are equal but in other
    places than in EXPECTED, how many outputs of GIVEN are equal to one of EXPECTED) for two flows. TOLERANCE is
    relative to the largest value of an output. If none can be compared (`compared_outputs`), it begins with 0, False,
    False.

    Outputs in other places count as equal only if TURNED, or if places do not tell outputs apart (`places_decide`). If
    outputs can be paired by name (`by_name`), the last number is how many of these pairs are equal.
    """
    compared, equal, same = compared_outputs(expected.outputs, given.outputs, tolerance)
    if named := by_name(expected, given):
        same = [j for i, j in named if are_equal(expected.outputs[i], given.outputs[j], tolerance)]
    moved = bool(compared) and equal and not in_their_places(expected, given, tolerance)
    return compared, equal and (not moved or turned or not places_decide(expected, given)), moved, len(same)


def _front(uses: Sequence[Use], fine: Sequence[bool]) -> list[Use]:
    """Return those of USES that are not FINE, while all uses before them are. FINE has a value for each use, by its
    index.
    """
    return [use for use in uses if not fine[use.index] and all(fine[i] for i in use.before)]


def given_by(expected: Flow, seen: Flow) -> list[bool]:
    """Return, for each use of weights in SEEN, whether all channels of its output are outputs of uses in EXPECTED, too;
    False for all if EXPECTED has no uses. For a use that runs again and again, as in a loop over time, it is also True
    if this holds for the outputs of all its runs joined: they may be one use there, of all inputs at once.
    """
    if not expected.uses:
        return [False] * len(seen.uses)
    whole = {told for told, use in seen.repeated.items() if expected.gives(use.given)}
    return [use.told in whole or expected.gives(use.given) for use in seen.uses]


def _entering(expected: Flow, seen: Flow, entries: MappingOf[str, Entry]) -> list[bool]:
    """Return, for each use in SEEN, whether uses in EXPECTED take all channels of its input (`Flow.takes`), or those of
    all of its runs in a loop at once; False for all if EXPECTED has no uses. An input does not count that comes from a
    use of keys without a source in ENTRIES which gives what uses in EXPECTED give: such a use has changed nothing yet.
    """
    if not expected.uses:
        return [False] * len(seen.uses)
    of_loops = {told: use.taken for told, use in seen.repeated.items() if use.taken is not None}
    whole = {told for told, taken in of_loops.items() if expected.takes(taken)}
    left = {use.index for use in seen.uses if _is_left(use, entries) and expected.gives(use.given)}
    return [
        left.isdisjoint(use.before) and (use.told in whole or (use.taken is not None and expected.takes(use.taken)))
        for use in seen.uses
    ]


def _fine(known: Sequence[bool], entering: Sequence[bool], expected: Flow, seen: Flow) -> list[bool]:
    """Return, for each use of weights in SEEN, whether nothing is wrong up to it. KNOWN says of each use whether it
    agrees, ENTERING whether uses in EXPECTED take the channels of its input. One of these is enough:

    - the use is KNOWN to agree;
    - a use directly after it has an input, not all zero, that is the input of a use of like kind (`Use.is_like`) in
      EXPECTED, the same channels in any order, and is ENTERING: layers that one code adds up may be one layer in the
      other;
    - its output flows into a use for which one of these holds (`shown_by`).
    """
    fine = list(known)
    for use in seen.uses:
        open_ = entering[use.index] and not all(fine[before] for before in use.before)
        if open_ and use.taken is not None and not is_silent(use.taken):
            inputs = (other.taken for other in expected.uses if use.is_like(other))
            if any(taken is not None and pairing(use.taken, taken) is not None for taken in inputs):
                for before in use.before:
                    fine[before] = True
    return shown_by(fine, seen)


def shown_by(known: Sequence[bool], seen: Flow) -> list[bool]:
    """Return, for each use of weights in SEEN, whether its value in KNOWN (one for each use, by its index) is True, or
    that of some use later in the flow whose input depends on its output. KNOWN stays as it is.
    """
    shown = seen.reaching(at for at, one in enumerate(known) if one)
    return [use.index in shown for use in seen.uses]


def _same_last(expected: Flow, seen: Flow) -> bool:
    """Return whether the last uses of weights in SEEN and EXPECTED give the same channels in the same order.

    If all outputs of each flow come from one last use, these two are compared. Else each output of SEEN has to have a
    counterpart of the same name in EXPECTED, and each of the two has to come from one last use. False, too, if a use
    in SEEN flows into none of its last uses.

    Then outputs differ only by steps after these uses (adding the input, a scale), which do not concern weights.
    """
    ends, theirs = (sorted({i for behind in flow.behind for i in behind}) for flow in (seen, expected))
    if len(ends) == len(theirs) == 1:
        pairs = [(theirs[0], ends[0])]
    else:
        named = by_name(expected, seen)
        if len(named) < len(seen.outputs) or any(seen.places[j] != expected.places[i] for i, j in named):
            return False
        if any(len(expected.behind[i]) != 1 or len(seen.behind[j]) != 1 for i, j in named):
            return False
        pairs = [(min(expected.behind[i]), min(seen.behind[j])) for i, j in named]
    uses = {use.index: use for use in expected.uses}
    same = all(i in uses and _gives_in_order(seen.uses[j], uses[i]) for i, j in pairs)
    return same and len(seen.reaching(ends)) == len(seen.uses)


def _gives_in_order(use: Use, other: Use) -> bool:
    """Return whether both uses give the same channels in the same order."""
    return pairing(use.given, other.given) == list(range(use.rows))


def _may_lack_a_factor(seen: Flow, entries: MappingOf[str, Entry]) -> list[Use]:
    """Return the uses in SEEN that are the last ones before an output and whose weights have an open question in
    ENTRIES with a factor among its options; [] if there are none.

    A step that multiplies what such a use gives may be this factor, so the outputs have to answer the question.
    """
    last = sorted({i for behind in seen.behind for i in behind})
    return [
        use
        for use in (seen.uses[i] for i in last)
        if any("scale" in x.operations() for key in use.keys if key in entries for x in entries[key].rivals)
    ]


def made_of_known(seen: Flow, entries: MappingOf[str, Entry]) -> Flow:
    """Return SEEN, the flow of the model, without the outputs that depend on a key without a source in ENTRIES (see
    `behind_new_keys`).
    """
    open_ = behind_new_keys(seen, entries)
    return seen.with_outputs([at for at, behind in enumerate(seen.behind) if not any(open_[i] for i in behind)])


def behind_new_keys(seen: Flow, entries: MappingOf[str, Entry]) -> list[bool]:
    """Return, for each use of weights in SEEN, whether it reads, or its input depends on, a key without a source in
    ENTRIES. Keys that are to keep the model's own values (`Entry.default`) do not count.
    """
    open_ = seen.depending(use.index for use in seen.uses if _is_left(use, entries))
    return [use.index in open_ for use in seen.uses]


def _is_left(use: Use, entries: MappingOf[str, Entry]) -> bool:
    """Return whether USE reads a key without a source in ENTRIES that is not to keep the model's own value."""
    return any(key in entries and entries[key].expr is None and not entries[key].default for key in use.keys)
