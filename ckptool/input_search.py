"""Inputs that a model takes, found by running it: where a try stops says what the next one is.

A first guess is made from the names of arguments and the first layers (`inputs`). A try that fails has used some of the
weights before; the operation that could not be done, what its tensors were made of, and what the message says lead to
others, of which the one that gets furthest is taken up first.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .hollow import shape_only, without_memory
from .inputs import Fields, InputSpec, guess_inputs, inputs_for, leaves, made, with_leaves

#: Seconds of CPU time that a search may take, forward passes that it may try, and most elements of one input.
_PATIENCE, _TRIES, _MOST = 8.0, 160, 1 << 21
#: Different kinds of first guesses.
_SEEDS = 12

#: Does an operation on tensors without values, where it can say what comes out; else gives None.
Shortcut = Callable[[str, Any, Any], "torch.Tensor | None"]


def find_inputs(
    model: torch.nn.Module,
    *,
    like: Sequence[Any] = (),
    shortcut: Shortcut | None = None,
    patience: float = _PATIENCE,
) -> Iterator[Any]:
    """Inputs on which the forward pass of MODEL runs, the likeliest first.

    Args:
        model: the model; its weights need no values.
        like: inputs to begin with, before any guess.
        shortcut: does operations of which only shapes matter.
        patience: seconds of CPU time, so that a busy machine finds the same.
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
    """One search. MEMORY says how much counts of what led to a try: little means to follow the latest message."""
    until = time.thread_time() + patience
    count = itertools.count()
    queue: list[tuple[float, float, int, Any]] = []
    waiting: dict[int, Any] = {}  # in the order in which they were thought of
    seen: set[str] = set()

    def push(furthest: float, rank: float, spec: Any) -> None:
        spec = _smaller(spec)
        told = repr(spec)
        if told not in seen and _is_small(spec):
            seen.add(told)
            number = next(count)
            waiting[number] = spec
            heapq.heappush(queue, (-furthest, rank, number, spec))

    asked = {repr(one) for one in like}
    for place, spec in enumerate(itertools.chain(like, _seeds(model))):
        push(math.inf, 0.2 * place, spec)
    told_sizes = _Sizes()
    partial: list[tuple[int, int, Any]] = []  # what runs, and leaves some weights unused
    since = 0
    wanted = len({id(p) for p in model.parameters()})
    for turn in range(_TRIES):
        if not waiting or time.thread_time() > until or (partial and since > _LONGER):
            break
        since += bool(partial)
        if turn % 6 == 5:  # so that nothing that looks good for a while keeps all else from being tried
            number = next(iter(waiting))
            spec, rank = waiting[number], float(number)
        else:
            _, rank, number, spec = heapq.heappop(queue)
            if number not in waiting:
                continue
        del waiting[number]
        done = _tried(model, spec, shortcut)
        if isinstance(done, _Stop):
            for number, other in enumerate(itertools.chain(told_sizes.fitting(spec, done), _others(model, spec, done))):
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


def _smaller(spec: Any) -> Any:
    """Inputs that have too many elements with all their pictures halved, so that those of several sizes still fit."""
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


class _Sizes:
    """Sizes that were wanted at one place, and those that inputs of several sizes gave there.

    Two tries that differ in one size of one input, and got to the same place, tell how what is there depends on it.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], list[tuple[Any, int]]] = {}

    def fitting(self, spec: Any, stop: _Stop) -> Iterator[Any]:
        """Inputs between or beyond those that were tried here, of the size that is wanted."""
        args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
        if not stop.name or len(args) < 2:
            return
        for have, want in _wanted_sizes(stop, args[0], args[1])[:1]:
            before = self._seen.setdefault((stop.name, int(stop.furthest), want), [])
            for other, gave in before[-12:]:
                yield from _between(spec, have, other, gave, want)
            before.append((spec, have))


def _between(spec: Any, have: int, other: Any, gave: int, want: int) -> Iterator[Any]:
    here, there = leaves(spec), leaves(other)
    if have == gave or [path for path, _ in here] != [path for path, _ in there]:
        return
    apart = [
        (at, d)
        for at, ((_, a), (_, b)) in enumerate(zip(here, there, strict=True))
        for d in (range(len(a.shape)) if len(a.shape) == len(b.shape) else [-1])
        if d < 0 or a.shape[d] != b.shape[d]
    ]
    if len(apart) != 1 or apart[0][1] < 0:
        return
    (at, d) = apart[0]
    a, b = here[at][1].shape[d], there[at][1].shape[d]
    size = a + (want - have) * (b - a) / (gave - have)
    for n in dict.fromkeys((math.floor(size), math.ceil(size))):
        if n > 0:
            new = replace(here[at][1], shape=tuple(n if i == d else m for i, m in enumerate(here[at][1].shape)))
            yield with_leaves(spec, [new if i == at else one for i, (_, one) in enumerate(here)])


def _is_small(spec: Any) -> bool:
    """Whether inputs have elements, and not so many that code which compares each with each takes much memory."""
    return all(
        all(0 < n <= _MOST for n in one.shape)
        and math.prod(one.shape) <= _MOST
        and (len(one.shape) > 3 or math.prod(one.shape[:-1]) <= _MOST_ROWS)
        for _, one in leaves(spec)
    )


#: Rows of inputs that are no pictures (nodes of a graph, places of a text), and elements of any intermediate result.
_MOST_ROWS, _MOST_MADE = 4096, 1 << 25


#: Further tries for inputs that use more of the weights than those that were found.
_LONGER = 24


def _fuller(model: torch.nn.Module, spec: Any, done: _Done, shortcut: Shortcut | None) -> tuple[Any, _Done]:
    """Inputs that show more: none that nobody looks at, all words, pictures of more than one element."""

    def tried(other: Any) -> bool:
        nonlocal spec, done
        if repr(other) == repr(spec) or not _is_small(other):
            return False
        found = _tried(model, other, shortcut)
        if isinstance(found, _Stop) or found.used < done.used:
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
    small = [one for one in told if len(one.shape) > 2 and min(one.shape[2:]) < 8 and one.dtype.startswith("float")]
    for times in (8, 4, 2) if small else ():
        grown = [
            replace(one, shape=(*one.shape[:2], *(n * times for n in one.shape[2:]))) if len(one.shape) > 3 else one
            for one in told
        ]
        if tried(with_leaves(spec, grown)):
            break
    return spec, done


def working_inputs(model: torch.nn.Module, *, like: Sequence[Any] = ()) -> Iterator[Any]:
    """`find_inputs`, tried on a copy without values where the model has one that runs."""
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
    """First guesses, one of every kind: types and numbers of dimensions."""
    kinds = set()
    for spec in itertools.islice(guess_inputs(model), 150):
        kind = tuple((path, one.dtype, len(one.shape)) for path, one in leaves(spec))
        if kind not in kinds:
            kinds.add(kind)
            yield spec
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


# ----------------------------------------------------------------------------------------------- one try


@dataclass(slots=True)
class _Stop:
    """Where a try stopped.

    Attributes:
        message: what the error says.
        furthest: how far it got.
        name, args: the operation that could not be done; "" where it was none, and then that before.
        blamed: the inputs that its arguments are made of, by their place.
        picked: inputs of which single elements were taken, and how many.
        asked: inputs of which an entry was taken by name, and the name.
        touched: inputs that were looked at.
        error: the name of the error's class.
        whole: its arguments that are inputs as they were given: which input, and which of its tensors.
    """

    message: str
    error: str
    furthest: float
    name: str
    args: Any
    blamed: list[int]
    picked: dict[int, int]
    asked: dict[int, str]
    touched: frozenset[int]
    whole: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Done:
    """A try that came to its end: how many weights it used, inputs that mattered, rows of the tables they look up."""

    used: int
    touched: frozenset[int]
    tables: dict[int, int]


def _tried(model: torch.nn.Module, spec: Any, shortcut: Shortcut | None) -> _Stop | _Done:
    """Run MODEL."""
    device = next((str(t.device) for t in itertools.chain(model.parameters(), model.buffers())), "cpu")
    given = made(spec, device, torch.Generator().manual_seed(0))
    watch = _Watch(model, [t for _, t in leaves(given)], shortcut)
    training, fast, state = model.training, torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state()
    model.eval()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with warnings.catch_warnings(), torch.no_grad(), torch.device(device), watch:
            warnings.simplefilter("ignore")
            if isinstance(given, Mapping):
                model(**given)
            else:
                model(*given)
    except Exception as error:
        return watch.stopped(error)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(training)
        torch.set_rng_state(state)
    return _Done(watch.used, frozenset(watch.touched), watch.tables)


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Follows which inputs flow where, and what could not be done."""

    def __init__(self, model: torch.nn.Module, given: Sequence[torch.Tensor], shortcut: Shortcut | None) -> None:
        super().__init__()
        self._weights = {id(t) for t in itertools.chain(model.parameters(), model.buffers())}
        self._given = {id(t): place for place, t in enumerate(given)}
        self._from = {id(t): frozenset([place]) for place, t in enumerate(given)}
        self._shortcut = shortcut
        self._alive: list[Any] = []  # so that ids stay their own
        self._used: set[int] = set()
        self._calls = 0
        self._last: tuple[str, Any, frozenset[int]] = ("", (), frozenset())
        self._failed = False
        self._picked: dict[int, int] = {}
        self._asked: dict[int, str] = {}
        self.touched: set[int] = set()
        self.tables: dict[int, int] = {}
        self._parameters = {id(p) for p in model.parameters()}

    @property
    def used(self) -> int:
        """How many parameters were used."""
        return len(self._used & self._parameters)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        taken = [t for t in flat((args, kwargs)) if isinstance(t, torch.Tensor)]
        origin = frozenset(itertools.chain.from_iterable(self._from.get(id(t), ()) for t in taken))
        self._last, self._failed = (name, (args, kwargs), origin), True
        if name not in _LOOKS:
            self.touched |= origin
        if name == "embedding" and len(taken) == 2:
            ids, table = taken if taken[1].ndim == 2 and taken[1].is_floating_point() else taken[::-1]
            if id(ids) in self._given:
                at = self._given[id(ids)]
                self.tables[at] = min(self.tables.get(at, len(table)), len(table))
        if name == "__getitem__" and id(args[0]) in self._given:
            if isinstance(args[1], int):
                place = self._given[id(args[0])]
                self._picked[place] = max(self._picked.get(place, 0), args[1] + 1, 2)
            elif isinstance(args[1], str):
                self._asked[self._given[id(args[0])]] = args[1]
        elif name in ("unbind", "__iter__") and args and id(args[0]) in self._given:
            self._picked.setdefault(self._given[id(args[0])], 3)
        result = self._shortcut(name, args, kwargs) if self._shortcut is not None else None
        if result is None:
            result = func(*args, **kwargs)
        if any(isinstance(one, torch.Tensor) and _stored(one) > _MOST_MADE for one in flat(result)):
            raise MemoryError("makes too much of its inputs")
        self._failed = False
        self._calls += not (name in _PICKS and id(args[0]) in self._given)
        self._used.update(id(t) for t in taken if id(t) in self._weights)
        self._alive.append((args, kwargs, result))
        if origin:
            for one in flat(result):
                if isinstance(one, torch.Tensor) and id(one) not in self._given and id(one) not in self._weights:
                    self._from[id(one)] = origin
        return result

    def stopped(self, error: Exception) -> _Stop:
        name, args, origin = self._last
        return _Stop(
            str(error),
            type(error).__name__,
            len(self._used) + min(self._calls, 5000) * 1e-4,
            name if self._failed else "",
            args,
            sorted(origin),
            self._picked,
            self._asked,
            frozenset(self.touched),
            {self._given[id(t)]: i for i, t in enumerate(flat(args)) if id(t) in self._given},
        )


def _stored(tensor: torch.Tensor) -> int:
    """How many elements a result has that take memory."""
    return 0 if tensor.is_meta else math.prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s)


_PICKS = frozenset({"__getitem__", "unbind"})
_LOOKS = frozenset("__get__ size dim numel stride __len__".split())


def flat(value: Any) -> Iterator[Any]:
    """What is in lists, tuples and dicts in each other, in order."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from flat(item)
    else:
        yield value


# ------------------------------------------------------------------------------------------ what to try next


def _others(model: torch.nn.Module, spec: Any, stop: _Stop) -> Iterator[Any]:
    """Other inputs that what stopped a try suggests, the likeliest first."""
    told = leaves(spec)
    specs = [one for _, one in told]
    blamed = stop.blamed or list(range(len(specs)))
    yield from _named(model, spec, stop)
    for place, key in stop.asked.items():
        yield _put(spec, told[place][0], Fields({key: _first(model, key, specs[place])}))
    if not stop.name and isinstance(spec, list) and stop.touched and max(stop.touched) + 1 < len(spec):
        yield spec[: max(stop.touched) + 1]
    for place, count in stop.picked.items():  # a list, of which a tensor has the first dimension
        one = specs[place]
        if len(one.shape) > 2 and one.dtype.startswith("float") and 2 <= count <= 6:
            for n in dict.fromkeys((max(count, 3), 4, 2, 5)):
                yield _put(spec, told[place][0], [one] * n)
    if len(blamed) > 1 and stop.name not in _BY_ELEMENT:
        for rank in _dimensions(stop):
            yield with_leaves(spec, [_deeper(one, rank) if at in blamed else one for at, one in enumerate(specs)])
    yield from (with_leaves(spec, new) for new in _beside(specs, stop))
    yield from (with_leaves(spec, new) for new in _together(specs, blamed, stop))
    for at in [*blamed, *(at for at in range(len(specs)) if at not in blamed)]:
        for new in _changed(specs[at], stop):
            yield with_leaves(spec, [new if place == at else one for place, one in enumerate(specs)])


def _beside(specs: Sequence[InputSpec], stop: _Stop) -> Iterator[list[InputSpec]]:
    """An input that is joined with, or added to, something of other sizes takes these."""
    if stop.name not in _BY_ELEMENT | {"cat", "concat"}:
        return
    args, named = stop.args if len(stop.args) == 2 else ((), {})
    every = list(flat(stop.args))
    dim = named.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else 0)
    for place, at in stop.whole.items():
        own = every[at]
        for other in every:
            if not isinstance(other, torch.Tensor) or other is own or other.ndim != own.ndim:
                continue
            kept = dim % own.ndim if stop.name not in _BY_ELEMENT else -1
            shape = tuple(n if d == kept else m for d, (n, m) in enumerate(zip(own.shape, other.shape, strict=True)))
            if shape != specs[place].shape:
                yield [replace(one, shape=shape) if i == place else one for i, one in enumerate(specs)]


def _together(specs: Sequence[InputSpec], blamed: Sequence[int], stop: _Stop) -> Iterator[list[InputSpec]]:
    """All of several inputs with another size, which they share or which is the sum of theirs."""
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    x, weight = (args[0] if args else None), (args[1] if len(args) > 1 else None)
    groups: dict[tuple[int, int], list[int]] = {}
    for at in blamed:
        for d, n in enumerate(specs[at].shape):
            groups.setdefault((d, n), []).append(at)
    for have, want in _wanted_sizes(stop, x, weight):
        for (d, n), members in groups.items():
            more, rest = divmod(want - have, len(members))
            size = want if n == have else n + more if not rest and have > n else 0
            if len(members) < 2 or size < 1:
                continue
            yield [
                replace(one, shape=tuple(size if i == d else m for i, m in enumerate(one.shape)))
                if at in members
                else one
                for at, one in enumerate(specs)
            ]


def _deeper(one: InputSpec, rank: tuple[int, int]) -> InputSpec:
    """With a dimension more behind the first, where one more is wanted."""
    return replace(one, shape=(*one.shape[:1], 4, *one.shape[1:])) if 0 < rank[0] < rank[1] else one


def _put(spec: Any, path: tuple[Any, ...], value: Any) -> Any:
    """SPEC with something else at a path."""
    if not path:
        return value
    if isinstance(spec, Mapping):
        made_ = {k: _put(v, path[1:], value) if k == path[0] else v for k, v in spec.items()}
        return Fields(made_) if isinstance(spec, Fields) else made_
    return [_put(v, path[1:], value) if k == path[0] else v for k, v in enumerate(spec)]


def _first(model: torch.nn.Module, name: str, like: InputSpec) -> InputSpec:
    return next(iter(inputs_for(model, name, 2)), like)


def _named(model: torch.nn.Module, spec: Any, stop: _Stop) -> Iterator[Any]:
    """Arguments and entries that the message asks for by name."""
    key = re.fullmatch(r"'(\w+)'", stop.message) if stop.error == "KeyError" else None
    attribute = re.search(r"object has no attribute '(\w+)'", stop.message)
    attribute = attribute if attribute and re.search("'(Fields|Tensor|dict)'", stop.message) else None
    name = (key or attribute)[1] if key or attribute else None  # type: ignore[index]
    items = list(spec.items()) if isinstance(spec, Mapping) else list(enumerate(spec))
    if name is not None:
        for at, value in items:
            if isinstance(value, Fields) and name not in value:
                like = next(iter(value.values()))
                yield _put(spec, (at,), Fields({**value, name: _first(model, name, like)}))
            elif isinstance(value, InputSpec) and not hasattr(torch.Tensor, name):
                yield _put(spec, (at,), Fields({name: _first(model, name, value)}))
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return
    open_ = [
        p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is None
    ]
    if isinstance(spec, Mapping):
        by_name = dict(spec)
    else:
        names = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(names) < len(spec):
            return
        by_name = dict(zip(names, spec, strict=False))
    open_ = [one for one in open_ if one not in by_name]
    said = [one for one in open_ if re.search(rf"\b{re.escape(one)}\b", stop.message)]
    if not said and "NoneType" in stop.message:
        said = sorted((one for one in open_ if not _UNLIKELY.search(one)), key=lambda one: bool(_LATE.search(one)))[:6]
    for one in said[:6]:
        for option in itertools.islice(inputs_for(model, one, 2), 2):
            yield by_name | {one: option}
    if len(said) > 1 and "NoneType" not in stop.message:
        yield by_name | {one: _first(model, one, next(iter(inputs_for(model, one, 2)))) for one in said[:3]}


_UNLIKELY = re.compile(r"^return_|cache|past|^output_|^use_|loss|training|kwargs")
_LATE = re.compile(r"embeds$|^labels$|rewards|mask")
_NUMBER = re.compile(r"\d+")


def _changed(one: InputSpec, stop: _Stop) -> Iterator[InputSpec]:
    """Other inputs in place of one."""
    said, name = stop.message, stop.name
    floats = getattr(torch, one.dtype).is_floating_point
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    x = args[0] if args else None
    weight = args[1] if len(args) > 1 else None
    if name == "embedding" and floats and weight is not None:
        table = weight if x is None or (weight.ndim == 2 and weight.is_floating_point()) else x
        yield from _as_tokens(replace(one, high=len(table)), stop)
    if re.search(
        r"scalar types?: Long|must be long|index tensor|be int|expected.*(Long|Int)\b.*(Float|Double)"
        r"|indices.*(integer|Long)|Long but found Float|slice indices|dtype int64|to be an integer|only integer",
        said,
    ):
        yield from _as_tokens(one, stop) if floats else ()
        return
    if name == "embedding" and weight is not None:
        high = weight.shape[0]
        for fewer in dict.fromkeys((high, high // 2, 2)):
            if not floats and fewer > 1 and (one.high == 0 or fewer != one.high):
                yield replace(one, high=fewer)
    if re.search(r"out of (range|bounds)|Class values|index \d+ is", said) and not floats and "Dimension" not in said:
        size = [int(n) for n in re.findall(r"size (\d+)", said)]
        for high in dict.fromkeys((*size, one.high // 2, 4, 2)):
            if 1 < high < max(one.high, 3):
                yield replace(one, high=high)
    if re.search(
        r"(Long|long|Int|int)\b.*(should be the same|but got Long|found Long)|not implemented for '(Long|Int|Bool)'"
        r"|result type Float|have the same dtype|floating point|to be float|expected .*(Float|Half)\b",
        said,
    ):
        if not floats:
            for shape in dict.fromkeys((one.shape, (*one.shape, 12), (one.shape[0],))):
                yield InputSpec("float32", shape)
        if re.search(r"got (Long|Bool|Int)|found (Long|Int)", said):
            yield replace(one, dtype="float32", high=0, low=0)
    sizes = (other for have, want in _wanted_sizes(stop, x, weight) for other in _resized(one, have, want))
    deeper = _of_dimensions(one, _dimensions(stop), stop, weight)
    yield from itertools.chain(sizes, deeper) if stop.name in _BY_ELEMENT else itertools.chain(deeper, sizes)
    if x is not None and any(0 < want < have for have, want in _dimensions(stop)):  # one that goes if it is 1
        for size in dict.fromkeys(x.shape[1:]):
            if size > 1:
                yield from _resized(one, size, 1)
    if name in ("linear", *_ATTENTION) and floats and len(one.shape) != 3 and one.shape:  # a sequence of vectors
        width = weight.shape[1] if name == "linear" and weight is not None and weight.ndim == 2 else one.shape[-1]
        yield replace(one, shape=(one.shape[0], 12, width))
    target = re.search(r"Target sizes: \[([\d, ]+)\]\. +Tensor sizes: \[([\d, ]+)\]", said)
    target = target or re.search(r"size=\[([\d, ]+)\]()", said)
    if target:
        wanted = tuple(int(n) for n in _NUMBER.findall(target[1]))
        if one.shape != wanted and (not target[2] or one.shape == tuple(map(int, _NUMBER.findall(target[2])))):
            yield replace(one, shape=wanted)
    if stop.error in ("ValueError", "AssertionError"):  # as people write it
        numbers = list(dict.fromkeys(int(n) for n in _NUMBER.findall(said)))[:4]
        for have, want in itertools.permutations(numbers, 2):
            yield from (
                replace(one, shape=tuple(want if i == d else n for i, n in enumerate(one.shape)))
                for d in range(len(one.shape))
                if one.shape[d] == have and 0 < want <= 4096
            )
    exact = re.search(r"[Ee]xpected[^(\[]*[(\[]([\d, ]+)[)\]],? *(?:but )?got *(?:size )?[(\[]([\d, ]+)[)\]]", said)
    if exact:
        expected, got = (tuple(int(n) for n in _NUMBER.findall(exact[i])) for i in (1, 2))
        if got == one.shape:
            yield replace(one, shape=expected)
    doesnt = re.search(r"size \((\d+)\*(\d+)\) doesn't match model \((\d+)\*(\d+)\)", said)
    if doesnt and len(one.shape) == 4:
        yield replace(one, shape=(*one.shape[:2], int(doesnt[3]), int(doesnt[4])))
    if re.search(r"[Kk]ernel size|too small|Padding size should|at least|negative dimension|smaller than", said):
        if len(one.shape) > 2:
            for times in (2, 4, 8):
                yield replace(one, shape=(*one.shape[:2], *(n * times for n in one.shape[2:])))
                if len(one.shape) == 3:
                    yield replace(one, shape=(one.shape[0], one.shape[1] * times, one.shape[2]))
        elif floats:
            yield replace(one, shape=(one.shape[0], *(n * 4 for n in one.shape[1:])))
    if re.search(r"Sizes of tensors must match|must match the size", said):
        for times in (4, 16, 64):
            yield from (
                replace(one, shape=tuple(n * times if i == d else n for i, n in enumerate(one.shape)))
                for d in range(len(one.shape))
            )
    if not floats and stop.error in ("RuntimeError", "IndexError", "AssertionError", "ValueError") and one.high > 2:
        yield replace(one, high=2)
    if re.search(r"[Ll]engths?|sequence length|longer than|exceeds?|max(imum)?", said) and len(one.shape) > 1:
        for n in dict.fromkeys(int(n) for n in _NUMBER.findall(said)):
            if 1 < n < 4096:
                yield replace(one, shape=(*one.shape[:-1], n))
                if len(one.shape) > 2:
                    yield replace(one, shape=(one.shape[0], n, *one.shape[2:]))


def _as_tokens(one: InputSpec, stop: _Stop) -> Iterator[InputSpec]:
    high = one.high or 4
    for shape in dict.fromkeys((one.shape[:2], one.shape[:1], one.shape, (*one.shape[:2], 2))):
        yield InputSpec("int64", shape, high)


_ATTENTION = frozenset({"scaled_dot_product_attention", "bmm", "baddbmm"})
_BY_ELEMENT = frozenset("add mul sub __add__ __mul__ __sub__ __radd__ __rmul__".split())


def _dimensions(stop: _Stop) -> list[tuple[int, int]]:
    """How many dimensions something has, and how many are wanted."""
    said = stop.message
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    x, weight = (args[0] if args else None), (args[1] if len(args) > 1 else None)
    found: list[tuple[int, int]] = []
    if stop.name.startswith("conv") and x is not None and weight is not None and x.ndim != weight.ndim:
        found.append((x.ndim, weight.ndim))
    for pattern in (
        r"not enough values to unpack \(expected (?:at least )?(\d+), got (\d+)\)",
        r"number of dims don't match.*has (?P<b>\d+).*length (?P<a>\d+)|length of dims.*(\d+).*(\d+)",
        r"[Ee]xpected (\d)D?\b.*?(?:got|but).*?(\d)D?\b",
    ):
        match = re.search(pattern, said)
        if match:
            numbers = [int(n) for n in match.groups() if n is not None]
            if len(numbers) == 2 and max(numbers) < 7:
                found.append((numbers[1], numbers[0]))
    many = re.search(r"too many values to unpack \(expected (\d+)", said)
    if many:
        found.append((-1, int(many[1])))
    missing = re.search(r"Dimension out of range \(expected to be in range of \[-(\d+), \d+\], but got (-?\d+)\)", said)
    if missing:
        beyond = int(missing[2])
        found.append((int(missing[1]), max(beyond + 1, -beyond)))
    if re.search(r"tuple index out of range|too many indices for tensor of dimension (\d)", said):
        found.append((-1, -1))
    sizes = [tuple(map(int, _NUMBER.findall(text))) for text in re.findall(r"\[([\d, ]+)\]", said)]
    if "could not be broadcast together" in said and len({len(size) for size in sizes}) == 2:
        found.append((min(map(len, sizes)), max(map(len, sizes))))
    wanted = [int(n) for n in re.findall(r"\b([1-5])-?[dD]\b", said)]
    if wanted and sizes and stop.name:
        found += [(len(size), n) for size in sizes for n in wanted if n != len(size)]
    if (
        stop.name in _BY_ELEMENT
        and x is not None
        and weight is not None
        and 1 < min(x.ndim, weight.ndim) < max(x.ndim, weight.ndim)
    ):
        found.append((min(x.ndim, weight.ndim), max(x.ndim, weight.ndim)))
    if "permute" in stop.name and x is not None:
        found.append((x.ndim, len([a for a in flat(stop.args) if isinstance(a, int)])))
    return [(have, want) for have, want in dict.fromkeys(found) if have != want or have < 0]


def _of_dimensions(
    one: InputSpec, found: Sequence[tuple[int, int]], stop: _Stop, weight: torch.Tensor | None
) -> Iterator[InputSpec]:
    rank = len(one.shape)
    for have, want in found:
        more = (rank + 1 if want < 0 else want) - (rank if have < 0 else have)
        new = rank + more
        if not more or not 1 <= new <= 6:
            continue
        channels = [weight.shape[1]] if weight is not None and stop.name.startswith("conv") else []
        floats = getattr(torch, one.dtype).is_floating_point
        if more < 0:
            yield replace(one, shape=one.shape[:new])
            yield replace(one, shape=(one.shape[0], *one.shape[1 - new :]) if new > 1 else one.shape[:1])
            continue
        between = [a.shape[1] for a in flat(stop.args) if isinstance(a, torch.Tensor) and a.ndim > 2]
        plain = [
            shape
            for n in dict.fromkeys((*between, 4))
            for shape in (
                (*one.shape[:1], *(n for _ in range(more)), *one.shape[1:]),
                (*one.shape, *(n for _ in range(more))),
            )
        ]
        if not stop.name.startswith("conv") and stop.name:
            yield from (replace(one, shape=shape) for shape in plain)
        if floats and new >= 3:
            for c in dict.fromkeys((*channels, *(one.shape[1:2] if rank > 1 else ()), 3)):
                size = {3: 64, 4: 32}.get(new, 16)
                shape = (2, c, *(size for _ in range(new - 2)))
                yield replace(one, shape=shape if new < 5 else (2, c, 4, *(size for _ in range(new - 3))))
                if new == 5:
                    yield replace(one, shape=(2, 4, c, 16, 16))
        yield from (replace(one, shape=shape) for shape in plain)


def _wanted_sizes(stop: _Stop, x: torch.Tensor | None, weight: torch.Tensor | None) -> list[tuple[int, int]]:
    """Sizes that something has, and those that are wanted in their place."""
    said, name = stop.message, stop.name
    found: list[tuple[int, int]] = []
    if x is not None and weight is not None:
        if name.startswith("conv") and x.ndim >= weight.ndim - 1:
            channels = x.shape[1] if x.ndim == weight.ndim else x.shape[0]
            groups = re.search(r"groups=(\d+)", said)
            times = int(groups[1]) if groups else 1
            wanted = weight.shape[0] if "transpose" in name else weight.shape[1] * times
            if channels != wanted:
                found.append((channels, wanted))
        elif name == "linear" and x.shape and weight.ndim == 2:
            found.append((x.shape[-1], weight.shape[1]))
        elif name in ("layer_norm", "group_norm", "batch_norm", "rms_norm", "instance_norm"):
            width = weight.shape[-1] if weight.ndim else 0
            have = x.shape[-1] if name in ("layer_norm", "rms_norm") else x.shape[1 if x.ndim > 1 else 0]
            found.append((have, width))
        elif name in ("matmul", "__matmul__", "mm", "bmm", "addmm", "__rmatmul__") and x.ndim and weight.ndim:
            a, b = (args_ for args_ in [a for a in flat(stop.args) if isinstance(a, torch.Tensor)][-2:])
            inner = b.shape[-2] if b.ndim > 1 else b.shape[-1]
            found += [(a.shape[-1], inner), (inner, a.shape[-1])]
            if a.ndim > 2 and b.ndim > 2 and a.shape[0] != b.shape[0]:
                found += [(a.shape[0], b.shape[0]), (b.shape[0], a.shape[0])]
    patterns = (
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        r"input\.size\(-1\) must be equal to input_size\. Expected (?P<b>\d+), got (?P<a>\d+)",
        r"to have (?P<b>\d+) channels, but got (?P<a>\d+)",
        r"running_mean should contain (?P<a>\d+) elements not (?P<b>\d+)",
        r"Expected size (\d+) but got size (\d+)",
        r"subscript \w+ has size (\d+) for operand \d+ which does not broadcast with previously seen size (\d+)",
        r"expanded size of the tensor \((?P<b>\d+)\) must match the existing size \((?P<a>\d+)\)",
        r"expected (?P<b>\d+),? (?:but )?(?:got|was|found) (?P<a>\d+)",
        r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)",
        r"[Ww]as expecting embedding dimension of (?P<b>\d+), but got (?P<a>\d+)",
        r"expecting key weights shape of \(\d+, (?P<a>\d+)\), but got torch.Size\(\[\d+, (?P<b>\d+)\]\)",
    )
    for pattern in patterns:
        match = re.search(pattern, said)
        if match and len(match.groups()) == 2:
            named = match.groupdict()
            a, b = (int(named["a"]), int(named["b"])) if named else (int(match[1]), int(match[2]))
            found.append((a, b))
            if not named:
                found.append((b, a))
    view = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", said)
    if view:
        known = math.prod(n for n in map(int, re.findall(r"-?\d+", view[1])) if n > 0)
        found += [(int(view[2]), known)]
    return [(have, want) for have, want in dict.fromkeys(found) if have != want and have > 0 and want > 0]


def _resized(one: InputSpec, have: int, want: int) -> Iterator[InputSpec]:
    """Inputs with other sizes, so that something of size HAVE that is made of them has size WANT."""
    shape = one.shape
    places = [*range(1, len(shape)), 0] if len(shape) > 1 else [0]
    equal = [d for d in places if shape[d] == have]
    for d in equal:
        yield replace(one, shape=tuple(want if i == d else n for i, n in enumerate(shape)))
    if len(equal) > 1:
        yield replace(one, shape=tuple(want if i in equal else n for i, n in enumerate(shape)))
    for d in places:
        n = shape[d]
        made_ = n * want // have if n * want % have == 0 else 0
        if d not in equal and 0 < made_ != n:
            yield replace(one, shape=tuple(made_ if i == d else m for i, m in enumerate(shape)))
    if len(shape) >= 4:
        side = math.isqrt(shape[-1] * shape[-2] * want // have)
        for size in dict.fromkeys((side, side + 1)):
            if 0 < size != shape[-1]:
                yield replace(one, shape=(*shape[:-2], size, size))
        times = math.sqrt(want / have)
        if times == int(times) or 1 / times == int(1 / times):
            yield replace(one, shape=(*shape[:-2], int(shape[-2] * times), int(shape[-1] * times)))
    for d in places:
        if d and d not in equal and shape[d] + want - have > 0:
            yield replace(one, shape=tuple(n + want - have if i == d else n for i, n in enumerate(shape)))


__all__ = ["find_inputs", "working_inputs"]
