"""Search for inputs: continue the tries that got furthest, until the time is over."""

from __future__ import annotations

import heapq
import inspect
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..hollow import shape_only, without_memory
from ..inputs import InputSpec, guess_inputs, inputs_for, leaves, with_leaves
from .attempt import Done, Shortcut, Stop, attempt
from .interpolation import SizesSeen
from .suggestions import suggestions

#: Seconds of CPU time that a search may take, forward passes that it may try, and most elements of one input.
_PATIENCE, _TRIES, _MOST = 8.0, 160, 1 << 21

#: Different kinds of first guesses.
_SEEDS = 12


def find_inputs(
    model: torch.nn.Module,
    *,
    like: Sequence[Any] = (),
    shortcut: Shortcut | None = None,
    patience: float = _PATIENCE,
) -> Iterator[Any]:
    """Yield inputs on which the forward pass of MODEL runs: lists of specs by position, or dicts by name. Those that
    use at least 95 percent of its parameters come as they are found, the others at the end of the search. Nothing is
    yielded if none are found.

    A second search, in which the earlier suggestions count half, is made if the first found nothing. Each makes at most
    160 tries, besides those that change inputs that were found (`_searched`).
    Args:
        model: the model; its weights need no values.
        like: inputs to begin with, before any guess.
        shortcut: replaces operations of which only shapes matter; it may take sizes and types that these refuse.
        patience: seconds of CPU time for both searches, half for each, so that a busy machine finds the same inputs.
    """
    found = False
    for memory in (1.0, 0.5):
        for spec in _searched(model, like, shortcut, patience / 2, memory):
            found = True
            yield spec
        if found:
            return


def _searched(
    model: torch.nn.Module, like: Sequence[Any], shortcut: Shortcut | None, patience: float, memory: float
) -> Iterator[Any]:
    """Yield inputs on which MODEL runs, from one search of at most 160 tries and PATIENCE seconds of CPU time. LIKE and
    SHORTCUT are as in `find_inputs`. Inputs that are found are first changed to show more of the model (`_fuller`,
    whose tries do not count), but for those in LIKE. Inputs that leave more than 5 percent of the parameters (tensors)
    unused come last, those that use most first; the search ends 25 turns after the first of these.

    LIKE and the first guesses (`_seeds`) go first, and then what the error of a failed try suggests
    (`SizesSeen.fitting`, then `suggestions`): suggestions of tries that got further before others, and of those that
    got equally far, the likelier ones. Suggestions with integers of more than three dimensions go later. Each sixth try
    is the one that has waited longest, and each third one is of that kind of first guesses (`_kind`) of which fewest
    were tried: code that takes a text before a picture stops early for all texts of another length. None is tried
    twice, and none that is too large (`_is_small`) even after `_smaller`. MEMORY is the weight of the earlier
    suggestions that led to a try: with 0, the rank of the latest suggestion counts alone.
    """
    until = time.thread_time() + patience
    count = itertools.count()
    queue: list[tuple[float, float, int, Any]] = []
    waiting: dict[int, tuple[float, float, Any]] = {}  # in the order in which they were thought of
    tried: Counter[Any] = Counter()  # kind of a first guess -> how many of this kind were tried
    seen: set[str] = set()

    def push(furthest: float, rank: float, spec: Any) -> None:
        """Add the inputs SPEC to those that wait, unless they are too large even if they are made smaller, or were
        added before.
        """
        spec = _smaller(spec)
        told = repr(spec)
        if told not in seen and _is_small(spec):
            seen.add(told)
            number = next(count)
            waiting[number] = -furthest, rank, spec
            heapq.heappush(queue, (-furthest, rank, number, spec))

    asked = {repr(one) for one in like}
    for place, spec in enumerate(itertools.chain(like, _seeds(model))):
        push(math.inf, 0.2 * place, spec)
        tried[_kind(spec)] = 0
    told_sizes = SizesSeen()
    partial: list[tuple[int, int, Any]] = []  # what runs, and leaves some weights unused
    since = 0
    wanted = len({id(p) for p in model.parameters()})
    tries = 0
    for turn in itertools.count():
        if tries == _TRIES or not waiting or time.thread_time() > until or (partial and since > _LONGER):
            break
        since += bool(partial)
        if turn % 6 == 5:  # so that nothing that looks good for a while keeps all else from being tried
            number = next(iter(waiting))
            spec, rank = waiting[number][2], float(number)
        elif turn % 3 == 1 and (few := [n for n, one in waiting.items() if _kind(one[2]) in tried]):
            number = min(few, key=lambda n: (tried[_kind(waiting[n][2])], waiting[n][:2]))
            _, rank, spec = waiting[number]
        else:
            _, rank, number, spec = heapq.heappop(queue)
            if number not in waiting:  # it was tried out of turn
                continue
        del waiting[number]
        tries += 1
        if _kind(spec) in tried:
            tried[_kind(spec)] += 1
        done = attempt(model, spec, shortcut)
        if isinstance(done, Stop):
            for number, other in enumerate(
                itertools.chain(told_sizes.fitting(spec, done), suggestions(model, spec, done))
            ):
                odd = any(one.dtype == "int64" and len(one.shape) > 3 for _, one in leaves(other))
                push(done.furthest - 4 * odd, memory * rank + 0.25 * number + 0.1, other)
            continue
        if repr(spec) not in asked:
            spec, done = _fuller(model, spec, done, shortcut)
        if done.used >= 0.95 * wanted:
            yield spec
        else:
            partial.append((-done.used, next(count), spec))
    yield from (spec for _, _, spec in sorted(partial, key=lambda one: one[:2]))


def _kind(spec: Any) -> tuple[Any, ...]:
    """Return (path, element type, number of dimensions) of each input in SPEC."""
    return tuple((path, one.dtype, len(one.shape)) for path, one in leaves(spec))


def _smaller(spec: Any) -> Any:
    """Return the inputs SPEC with the sizes of all pictures (all dimensions behind the second, if there are more than
    three) halved until all inputs are small (`_is_small`). All are halved together, so that they still suit each other.

    Halving ends when one of these sizes is odd, so the result may be too large still, as are large inputs without
    pictures.
    """
    while not _is_small(spec):
        told = [one for _, one in leaves(spec)]
        halved = [
            replace(one, shape=(*one.shape[:2], *(n // 2 for n in one.shape[2:]))) if len(one.shape) > 3 else one
            for one in told
        ]
        if halved == told or any(n % 2 for one in told if len(one.shape) > 3 for n in one.shape[2:]):
            break
        spec = with_leaves(spec, halved)
    return spec


def _is_small(spec: Any) -> bool:
    """Return whether all inputs in SPEC have elements, and few enough: at most 2 million each, and 4,096 rows unless
    they have more than three dimensions, for code that compares each row with each.
    """
    return all(
        all(0 < n <= _MOST for n in one.shape)
        and math.prod(one.shape) <= _MOST
        and (len(one.shape) > 3 or math.prod(one.shape[:-1]) <= _MOST_ROWS)
        for _, one in leaves(spec)
    )


#: Rows of inputs that are no pictures (nodes of a graph, places of a text).
_MOST_ROWS = 4096

#: Further tries for inputs that use more of the weights than those that were found.
_LONGER = 24


def _fuller(model: torch.nn.Module, spec: Any, done: Done, shortcut: Shortcut | None) -> tuple[Any, Done]:
    """Return inputs like SPEC, which run, that show more of MODEL, and how their try ended: without unused last inputs
    (of a list), with every word of a vocabulary, and with all pictures (inputs of more than three dimensions) 8, 4 or 2
    times as high and wide (the first that runs), if an input of floating point numbers is less than 8 high or wide.

    DONE is how the try of SPEC ended. Each change is tried on top of those before it, and kept if it runs and uses at
    least as many parameters; changes to inputs that are too large (`_is_small`) are not tried. Without any change, SPEC
    and DONE are returned.
    """

    def tried(other: Any) -> bool:
        """Try the inputs OTHER. Return whether they are kept, in place of `spec` and `done`: not those that are like
        `spec`, too large, stop, or use fewer parameters.
        """
        nonlocal spec, done
        if repr(other) == repr(spec) or not _is_small(other):
            return False
        found = attempt(model, other, shortcut)
        if isinstance(found, Stop) or found.used < done.used:
            return False
        spec, done = other, found
        return True

    if isinstance(spec, list):
        while len(spec) > 1 and len(leaves(spec)) == len(spec) and len(spec) - 1 not in done.touched:
            if not tried(spec[:-1]):
                break
    told = [one for _, one in leaves(spec)]
    for at, rows in done.tables.items():
        if at < len(told) and told[at].high < rows:
            tried(with_leaves(spec, [replace(o, high=rows) if i == at else o for i, o in enumerate(told)]))
            told = [one for _, one in leaves(spec)]
    small = [
        one for one in told if len(one.shape) > 2 and min(one.shape[2:][-2:]) < 8 and one.dtype.startswith("float")
    ]
    for times in (8, 4, 2) if small else ():
        grown = [
            replace(one, shape=(*one.shape[:2], *(n * times for n in one.shape[2:]))) if len(one.shape) > 3 else one
            for one in told
        ]
        if tried(with_leaves(spec, grown)):
            break
    return spec, done


def working_inputs(model: torch.nn.Module, *, like: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield inputs on which MODEL runs, as `find_inputs` does; LIKE are inputs to begin with. Nothing is yielded if
    none are found.

    For a model of 50 million parameters and more, they are searched for with copies without values, one after the
    other, until one copy gives some; MODEL itself is run only if none does. A smaller model is run itself.
    """
    small = sum(p.numel() for p in model.parameters()) < _SMALL
    for one in () if small else without_memory(model):
        found = False
        for spec in find_inputs(one, like=like, shortcut=shape_only):
            found = True
            yield spec
        if found:
            return
    yield from find_inputs(model, like=like)


#: Up to so many parameters a forward pass costs next to nothing.
_SMALL = 50_000_000


def _seeds(model: torch.nn.Module) -> Iterator[Any]:
    """Yield the first inputs of MODEL to try, in this order: all arguments annotated as tensors (see
    `_said_to_be_tensors`); the first guess (`guess_inputs`) for each combination of names, element types and numbers of
    dimensions, up to 12 combinations, and right after one of several matrices of integers alone also one of vectors;
    vectors [2, 12] and sequences [2, 12, 16] for all arguments that need a value; and if there is only `*args`, for
    each of the first three guesses of one input: five equal inputs, and one.
    """
    kinds = set()
    yield from _said_to_be_tensors(model)
    for spec in itertools.islice(guess_inputs(model), 150):
        told = leaves(spec)
        kind = _kind(spec)
        if kind not in kinds:
            kinds.add(kind)
            yield spec
            if len(told) > 1 and all(one.dtype == "int64" and len(one.shape) == 2 for _, one in told):
                # no texts, but one of each: a user and an item
                yield with_leaves(spec, [replace(one, shape=one.shape[:1]) for _, one in told])
            if len(kinds) == _SEEDS:
                break
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    yield from ([InputSpec("float32", shape) for _ in needed] for shape in ((2, 12), (2, 12, 16)) if needed)
    if [p.kind for p in parameters if p.kind != p.VAR_KEYWORD] == [inspect.Parameter.VAR_POSITIONAL]:
        for one in itertools.islice(inputs_for(model, parameters[0].name, 2), 3):
            yield from ([one] * n for n in (5, 1))


def _said_to_be_tensors(model: torch.nn.Module) -> Iterator[Any]:
    """Yield one dict argument -> spec, its first guess, for all arguments of MODEL annotated as tensors (`Tensor`,
    `torch.LongTensor`; `Optional[Tensor]` is none), if there are two to eight, some have None as their default, and all
    arguments that need a value are among them; else nothing. Arguments by keyword only never count.
    """
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return
    said = [p for p in parameters if p.kind != p.KEYWORD_ONLY and _TENSOR.fullmatch(_annotation(p))]
    needed = [p for p in parameters if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
    some_are_open = 1 < len(said) < _MOST_ARGUMENTS and any(p.default is None for p in said)
    if some_are_open and all(p in said for p in needed):
        yield {p.name: one for p in said for one in itertools.islice(inputs_for(model, p.name, len(said)), 1)}


def _annotation(parameter: inspect.Parameter) -> str:
    own = parameter.annotation
    return own if isinstance(own, str) else getattr(own, "__name__", "")


_TENSOR = re.compile(r"(torch\.)?(Float|Long|Int)?Tensor")
#: Models that take more than this have some of them for special cases.
_MOST_ARGUMENTS = 9


__all__ = ["find_inputs", "working_inputs"]
