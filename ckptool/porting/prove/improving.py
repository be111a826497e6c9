"""Search for a mapping with which more uses agree, starting where two models diverge.

Options of the questions from matching come first, then weights of uses with the same input, then tensors that nothing
uses. If the source has no use with the input of a use, the weights before it are rearranged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from itertools import chain, islice, takewhile
from typing import NamedTuple

from ...errors import counted
from ..expression import Expr
from ..mapping import Entry
from .arrangements import arrangements, at_the_end, exchanged_outputs, twice
from .flow import Flow, Use
from .goes_in import at_once, from_what_goes_in, made_together, tables_of_one, takes_a_part, takes_the_same
from .ground import Change, Ground
from .in_step import before_an_output, before_its_partner
from .other_conventions import changes
from .other_values import (
    adapters,
    any_of_these_sizes,
    around_zero_or_one,
    options,
    options_at_once,
    table_or_matrix,
    without_shifts,
)
from .trial import TRIALS, Trial
from .unused import UNUSED, cut_from_few, fillings, from_unused
from .vectors import vectors, with_the_norm_after_it
from .verdict import Verdict, judge

#: Trials without success that looking for a better mapping may take with big models, and changes for one place.
FEWEST, _GUESSES = 80, 200
#: Uses of weights in all trials without success.
_WORK = 15_000
#: Uses of the same keys for which changes are made, of those where the models diverge.
_OF_ONE_KEY = 4
#: Fillings of a recurrent layer that are tried, and of which they are chosen.
_OF_A_LOOP, _LIKELIEST = 2, 8


class _State(NamedTuple):
    """The mapping that a search has reached, the flow of the model with it, and the verdict on that flow."""

    entries: dict[str, Entry]
    seen: Flow
    verdict: Verdict


def search(
    entries: dict[str, Entry], seen: Flow, verdict: Verdict, trial: Trial, expected: Flow, most: int = TRIALS
) -> tuple[dict[str, Entry], Flow, Verdict, dict[str, None]]:
    """Try changes where the models diverge, and keep each with which more agrees, until outputs are equal, no change
    helps, or the limits of TRIAL are reached.

    SEEN is the flow of the model with ENTRIES, VERDICT compares it with EXPECTED, the flow of the source's code. SEEN
    and EXPECTED are in float64 if TRIAL compares finely (`Trial.finely`). At most MOST trials may be in vain, and at
    most 15,000 divided by the number of uses of weights, but at least 80: this becomes the `patience` of TRIAL; trials
    in vain before this search count, too.

    Returns:
        (the entries, the flow of the model with them, the verdict about it, the labels of the changes that were kept,
            as keys). All are as given, without labels, if nothing was kept.
    """
    state = _State(entries, seen, verdict)
    changed: dict[str, None] = {}
    trial.patience = max(FEWEST, min(most, _WORK // max(len(seen.uses), 1)))
    while not state.verdict.equal and not trial.is_over:
        trial.progress.say(f"{_agreeing(state.verdict)}, looking for what makes more agree")
        found = _better(state, trial, expected, changed)
        if found is None:
            break
        label, state = found
        changed[label] = None
    return *state, changed


def _better(state: _State, trial: Trial, expected: Flow, changed: MappingOf[str, None]) -> tuple[str, _State] | None:
    """Return (label of a change with which more agrees than in STATE (`_tried`), the state after it), or None.

    First come changes of the layers at which the models diverge (`_guesses`; no layer counts if the source's code was
    not followed): the first one that helps is taken, and made in all other blocks as well, if that helps, too. If none
    helps, all changes of the whole mapping (`changes`) are tried, and the best is taken; one with which outputs are
    equal is taken at once. CHANGED has the labels of the changes that were kept before. The model is run for each
    change, and TRIAL counts those that do not help.
    """
    ground = Ground(state.entries, state.seen, expected, trial.shapes, trial.factors)
    fronts = state.verdict.front if expected.uses else ()
    for label, new in _once(_guesses(ground, fronts, trial, changed)):
        found = _tried(label, state, new, trial, expected)
        if found is not None:
            return label, _in_all_blocks(label, state.entries, new, found, trial, expected)
    best: tuple[str, _State] | None = None
    for label, new in _in_time(changes(state.entries, trial.shapes), trial):
        found = _tried(label, state, new, trial, expected)
        if found is not None and (best is None or found.verdict.is_ahead_of(best[1].verdict)):
            best = label, found
            if found.verdict.equal:
                break
    return best


def _guesses(ground: Ground, fronts: Sequence[Use], trial: Trial, changed: MappingOf[str, None]) -> Iterator[Change]:
    """Yield changes (label, key -> expression) for the weights of FRONTS, the layers at which the models diverge, or of
    layers before them, until the limits of TRIAL are reached. There are four steps: the likeliest changes (`_for_all`;
    without FRONTS, of the last layers before the outputs), then unused tensors of the source (`from_unused`), then up
    to 200 of `_others` for each layer, then up to 400 pairs of changes (`twice`) for each of the first two FRONTS.

    If CHANGED has labels, which are those of changes that worked elsewhere, the changes of all steps with such a label
    come before the first step, and again in their step. The step of unused tensors takes long, and is left out of this
    first round unless a change with an unused tensor worked. Changes are made one by one as they are asked for.
    """
    apart = _of_unlike_keys(fronts)
    steps: list[Callable[[], Iterable[Change]]] = [
        lambda: _for_all(ground, fronts, apart, trial),
        lambda: _in_time(from_unused(ground, fronts), trial),
        lambda: (change for use in apart for change in _in_time(islice(_others(ground, use), _GUESSES), trial)),
        lambda: (c for use in fronts[:2] for c in _in_time(islice(twice(ground, use), 2 * _GUESSES), trial)),
    ]
    filled = any(label.startswith(UNUSED) for label in changed)
    for number, step in enumerate(steps if changed else ()):
        yield from (change for change in (step() if number != 1 or filled else ()) if change[0] in changed)
    for step in steps:
        yield from step()


def _for_all(ground: Ground, fronts: Sequence[Use], apart: Sequence[Use], trial: Trial) -> Iterator[Change]:
    """Yield the likeliest changes (label, key -> expression): first some of the whole mapping (`without_shifts`,
    `cut_from_few`); then, if there are several FRONTS (layers at which the models diverge), some that change all of
    them at once, or, if there are none, options of questions about all layers at once, and up to 200 of the last layers
    before the outputs; then up to 200 for each layer of APART (`_likely`), then those for recurrent layers
    (`_of_a_loop`). APART is FRONTS with at most four runs of the same keys.

    Changes for one layer, of the last layers, and for recurrent layers end when the limits of TRIAL are reached.
    """
    yield from without_shifts(ground)
    yield from cut_from_few(ground)
    if len(fronts) > 1:
        yield from options_at_once(ground, fronts)
        yield from at_once(ground, fronts)
        yield from tables_of_one(ground, fronts)
    if not fronts:
        yield from options_at_once(ground, ground.own.uses)  # of layers whose outputs have changed places
        ends = chain(exchanged_outputs(ground), at_the_end(ground), before_an_output(ground))
        yield from _in_time(islice(ends, _GUESSES), trial)
    for use in apart:
        yield from _in_time(islice(_likely(ground, use), _GUESSES), trial)
    yield from _in_time(_of_a_loop(ground, fronts), trial)


def _likely(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield the likelier changes (label, key -> expression) of the weights of F, a layer of the model, or of layers
    before it: first options of questions (`options`), and scales of adapters (`adapters`). That is all if F has a
    low-rank adapter.

    Else come weights of layers of the source's code with the same input as F, first with a batch norm after them folded
    in (`with_the_norm_after_it`), then as they are (`from_what_goes_in`). If no layer there has the input of F, weights
    for a part of an input there (`takes_a_part`), and for the layers before F (`before_its_partner`), come in their
    place. In both cases, sources for other keys of a weight that the code of F computes from several (`made_together`),
    vectors (`vectors`), and tables for matrices or the other way (`table_or_matrix`) come last.
    """
    yield from options(ground, f)
    yield from adapters(ground, f)
    if _is_adapted(ground, f):
        return  # what an adapted layer gives is in the source in two parts
    matched = takes_the_same(ground, f)
    if matched:
        yield from with_the_norm_after_it(ground, f)
        yield from from_what_goes_in(ground, f, matched)
    else:
        yield from takes_a_part(ground, f)
        yield from before_its_partner(ground, f)
    yield from made_together(ground, f)
    yield from vectors(ground, f)
    yield from table_or_matrix(ground, f)


def _others(ground: Ground, f: Use) -> Iterator[Change]:
    """Yield less likely changes (label, key -> expression) of F, a layer of the model, or of layers before it: 1 is
    added to the vectors of F or subtracted (`around_zero_or_one`), then F gets other weights of its sizes
    (`any_of_these_sizes`). Rearranged rows of the layers before F (`arrangements`) come first if no layer of the
    source's code has the input of F, else last. Nothing if F has a low-rank adapter.
    """
    if _is_adapted(ground, f):
        return
    matched = takes_the_same(ground, f)
    if not matched:
        yield from arrangements(ground, f)
    yield from around_zero_or_one(ground, f)
    yield from any_of_these_sizes(ground, f)
    if matched:
        yield from arrangements(ground, f)


def _is_adapted(ground: Ground, f: Use) -> bool:
    """Return whether a key of F has a low-rank adapter in the present mapping."""
    return any("lora" in e.expr.operations() for k in f.keys if (e := ground.entries.get(k)) and e.expr is not None)


def _of_a_loop(ground: Ground, fronts: Sequence[Use]) -> Iterator[Change]:
    """Yield up to two changes (label, key -> expression) that fill keys without a source from unused tensors, if one of
    FRONTS runs in a loop (several times, and its last run takes what an earlier one gave); else nothing. They are, of
    the eight cheapest fillings (`fillings`), the two that fill most keys. The state of a recurrent layer depends on all
    of its keys, so its gates show only if all are filled.
    """
    if any(_runs_in_a_loop(ground.own, use) for use in fronts):
        likeliest = fillings(ground, fronts)[:_LIKELIEST]
        for one in sorted(likeliest, key=lambda one: -len(one.new))[:_OF_A_LOOP]:
            yield f"{UNUSED}, all of a loop", one.new


def _runs_in_a_loop(flow: Flow, use: Use) -> bool:
    """Return whether USE runs several times in FLOW, with outputs of one size, and its last run takes what an earlier
    run gave.
    """
    runs = [one.index for one in flow.uses if one.told == use.told] if use.told in flow.repeated else []
    return bool(runs) and not flow.reaching(flow.uses[runs[-1]].before).isdisjoint(runs)


def _of_unlike_keys(fronts: Iterable[Use]) -> list[Use]:
    """Return FRONTS with at most four uses of the same keys: a kernel that is used place by place has hundreds."""
    counts: Counter[tuple[str, ...]] = Counter()
    out = []
    for use in fronts:
        counts[use.keys] += 1
        if counts[use.keys] <= _OF_ONE_KEY:
            out.append(use)
    return out


def _in_time(changes: Iterable[Change], trial: Trial) -> Iterator[Change]:
    """Yield CHANGES until the limits of TRIAL are reached. Making a change takes longer than a run for a wide layer, so
    this is looked at between changes.
    """
    return takewhile(lambda _: not trial.is_over, changes)


def _once(changes: Iterable[Change]) -> Iterator[Change]:
    """Yield CHANGES without those that put the same expressions into the same keys as an earlier one."""
    seen = set()
    for label, new in changes:
        told = frozenset(new.items())
        if told not in seen:
            seen.add(told)
            yield label, new


def _in_all_blocks(
    label: str, entries: dict[str, Entry], new: MappingOf[str, Expr], found: _State, trial: Trial, expected: Flow
) -> _State:
    """Try a change that worked in one block in all other blocks, and return the state (entries, flow, verdict) after
    it. Return FOUND, the state after the change in the one block, if that does not make more agree, or if no other
    block qualifies (`_in_other_blocks`).

    NEW is the change (key -> expression), LABEL its name, ENTRIES the mapping before it. Changes for other blocks that
    `Trial.elsewhere` has from earlier tries are tried together with this one, except those for keys of NEW. After a
    success `Trial.elsewhere` is emptied; after a failure it also has this change for the other blocks. It stays as it
    is if no other block qualifies.
    """
    there = _in_other_blocks(entries, new)
    if not there:
        return found
    trial.elsewhere = {key: expr for key, expr in trial.elsewhere.items() if key not in new} | there
    spread = _tried(f"{label}, in all blocks", found, trial.elsewhere, trial, expected)
    if spread is None:
        return found
    trial.elsewhere = {}
    return spread


def _agreeing(verdict: Verdict) -> str:
    """Return how many uses of weights agree by VERDICT, as text."""
    return f"{max(verdict.agreeing, 0):,} of {counted(verdict.uses, 'use')} of weights agree"


def _tried(label: str, state: _State, new: MappingOf[str, Expr], trial: Trial, expected: Flow) -> _State | None:
    """Load the change NEW (key -> expression) of STATE, called LABEL, into the model, run it, and return the state
    after the change if more agrees with EXPECTED, the flow of the source's code, than in STATE; else None. The changed
    keys have NEW as found by trial (`Entry.tried`).

    More agrees if the outputs are equal, or if more of them and of the inputs and outputs of layers agree
    (`Verdict.is_ahead_of`). If TRIAL has a check (`confirms`), equal outputs alone do not count, and the check has to
    say yes, too. In a fine search (`finely`), the model is run in float64, and only the number of inputs and outputs of
    layers that agree decides. If None is returned for a change that was tried, TRIAL counts one more miss (`misses`),
    also if the model cannot be run.

    None without a try or a miss if NEW changes nothing, if the search is over, or if TRIAL has a check and a key of NEW
    has a source already: with a check, only keys without a source may change. The model keeps the weights of the last
    run.
    """
    if trial.is_over or (trial.confirms and any(state.entries[key].expr is not None for key in new)):
        return None
    different = {key: expr for key, expr in new.items() if state.entries[key].expr != expr}
    if not different:
        return None
    candidate = state.entries | {key: state.entries[key].tried(expr) for key, expr in different.items()}
    in_vain = f"{trial.misses:,} of at most {counted(trial.patience, 'trial')} in vain"
    trial.progress.say(f"{_agreeing(state.verdict)}; {in_vain}: {label}")
    if trial.finely is None:
        seen = trial.run(candidate.values())
        found = judge(expected, seen, candidate)
        if trial.confirms is not None:
            found = replace(found, equal=False)
        ahead = found.is_ahead_of(state.verdict)
        if ahead and seen is not None and trial.confirms is not None:
            ahead = trial.confirms(seen, candidate, found, new)
    else:  # outputs alone say little here: what is changed may have less effect than the bound
        seen = trial.run(candidate.values(), wider=True)
        found = judge(expected, seen, candidate, tolerance=trial.finely)
        ahead = found.agreeing + found.entered > state.verdict.agreeing + state.verdict.entered
    if seen is not None and ahead:
        return _State(candidate, seen, found)
    trial.misses += 1
    return None


# ------------------------------------------------------------------------------------------------- in other blocks


def _in_other_blocks(entries: MappingOf[str, Entry], new: MappingOf[str, Expr]) -> dict[str, Expr]:
    """Return, as key -> expression, the change NEW (key -> expression) of one block repeated in all other blocks that
    qualify by `_in_block`; {} if none does, or if no number names the block. The keys of NEW are not in the result.

    The numbers in the common beginning of all keys of NEW name the block: `layers.3.` in `layers.3.q.weight` and
    `layers.3.q.bias`. Another block differs in one of these numbers or in several, and has a key that is otherwise
    equal to the first key of NEW. ENTRIES is the mapping before the change.
    """
    paths = [key.split(".") for key in new]
    shared = next((i for i in range(min(map(len, paths))) if len({path[i] for path in paths}) > 1), len(paths[0]) - 1)
    places = [i for i in range(shared) if paths[0][i].isdecimal()]
    out: dict[str, Expr] = {}
    for target in entries if places else ():
        path = target.split(".")
        numbers = {i: path[i] for i in places if i < len(path)}
        if _at(paths[0], numbers) == path != paths[0] and all(number.isdecimal() for number in numbers.values()):
            out |= _in_block(entries, new, numbers) or {}
    return out


def _at(path: list[str], numbers: MappingOf[int, str]) -> list[str]:
    return [numbers.get(i, part) for i, part in enumerate(path)]


def _in_block(
    entries: MappingOf[str, Entry], new: MappingOf[str, Expr], numbers: MappingOf[int, str]
) -> dict[str, Expr] | None:
    """Return, as key -> expression, the change NEW (key -> expression) of one block repeated in another block, over the
    keys of the source that this other block reads. NUMBERS names the other block: position in the path of a key ->
    number ({1: "5"} for `layers.5`). ENTRIES is the mapping before the change.

    None if the other block lacks a key of NEW, if such a key has no expression in one of the two blocks, if the present
    expressions of the two blocks are not the same up to the names of keys, or if a key of the source that NEW reads has
    no counterpart for the other block (`_moved`).
    """
    names: dict[str, str] = {}
    others = {key: ".".join(_at(key.split("."), numbers)) for key in new}
    for key, other in others.items():
        here, there = entries[key].expr, entries[other].expr if other in entries else None
        if here is None or there is None or len(here.keys()) != len(there.keys()):
            return None
        pairs = list(zip(here.keys(), there.keys(), strict=True))
        if any(names.setdefault(a, b) != b for a, b in pairs) or here.rename(names.__getitem__) != there:
            return None
    for key in dict.fromkeys(key for expr in new.values() for key in expr.keys()):  # noqa: SIM118 - a method of ours
        if key not in names:
            moved = _moved(key, names)
            if moved is None:
                return None
            names[key] = moved
    return {other: new[key].rename(names.__getitem__) for key, other in others.items()}


def _moved(key: str, names: MappingOf[str, str]) -> str | None:
    """Return the key of the source that corresponds to KEY in another block, by NAMES, the pairs (key of this block ->
    key of the other block) known so far: with `h.0.q` -> `h.3.q`, `h.0.k` becomes `h.3.k`. The first pair counts that
    has KEY in the same block: it begins like the pair's own key, up to the last name in which the two of the pair
    differ. None if there is none.
    """
    for here, there in names.items():
        a, b, path = here.split("."), there.split("."), key.split(".")
        apart = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
        if len(a) == len(b) and apart and path[: apart[-1] + 1] == a[: apart[-1] + 1]:
            return ".".join([*b[: apart[-1] + 1], *path[apart[-1] + 1 :]])
    return None
