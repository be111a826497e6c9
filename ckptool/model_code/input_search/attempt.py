"""Run one forward pass on inputs that the model may not take, and note how far it gets, what stops it, and which inputs
it used.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..call import Call, flat
from ..in_eval import in_eval
from ..inputs import leaves, made

#: Does an operation on tensors without values, where it can say what comes out; else gives None.
Shortcut = Callable[[str, Any, Any], "torch.Tensor | None"]

#: Calls of one function on tensors of equal sizes that count.
_MOST_ALIKE = 16

#: Elements that any intermediate result may have, and bytes that all together may take.
_MOST_MADE, _MOST_BYTES = 1 << 25, 1 << 31


@dataclass(slots=True)
class Stop:
    """The place where a try, a forward pass on guessed inputs, stopped with an error.

    Attributes:
        message: the text of the error.
        error: the name of the error's class.
        furthest: how far the try got: the number of parameters and buffers that were used, plus at most 0.5 for calls:
            16 at most of each function and sizes, so that going round a loop more often is no progress.
        name, args: the operation that failed, with its arguments (by position, by name). If the model's own code
            failed, `name` is "" and `args` are those of the operation before.
        blamed: places of the inputs that these arguments come from; first those that came there without weights.
        picked: place of an input from which single elements were taken (`x[2]`) -> how many it has to have at least:
            one more than the largest index, and 2 or more; 3 if the input was taken apart (`a, b = x`).
        asked: place of an input from which an entry was taken by name -> the name.
        touched: places of the inputs that were used.
        whole: place of an input that is itself one of `args`, also inside of a list -> its place among them.
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
class Done:
    """A try that ran to its end.

    Attributes:
        used: how many parameters of the model it used.
        touched: the places of the inputs that it used.
        tables: place of an input that looks up rows of a table -> number of rows of the smallest such table.
    """

    used: int
    touched: frozenset[int]
    tables: dict[int, int]


def attempt(model: torch.nn.Module, spec: Any, shortcut: Shortcut | None) -> Stop | Done:
    """Run MODEL on random inputs of SPEC, the same ones each time, and return how the try ended: `Done` or, after an
    error, `Stop`. SHORTCUT(name, args, kwargs), if given, replaces an operation unless it returns None (see
    `shape_only`).
    """
    device = next((str(t.device) for t in itertools.chain(model.parameters(), model.buffers())), "cpu")
    given = made(spec, device, torch.Generator().manual_seed(0))
    watch = _Watch(model, [t for _, t in leaves(given)], shortcut)
    try:
        with in_eval(model, device), watch:
            if isinstance(given, Mapping):
                model(**given)
            else:
                model(*given)
    except Exception as error:
        return watch.stopped(error)
    return Done(watch.used, frozenset(watch.touched), watch.tables)


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """A mode of torch that follows which inputs flow into which operation, and notes the operation that failed.

    Args:
        model: the model that runs.
        given: the tensors in its inputs, in the order of their places.
        shortcut: as in `attempt`.
    Attributes:
        touched: the places of the inputs that were used, beyond a look at their properties.
        tables: as in `Done`.
    """

    def __init__(self, model: torch.nn.Module, given: Sequence[torch.Tensor], shortcut: Shortcut | None) -> None:
        super().__init__()
        self._weights = {id(t) for t in itertools.chain(model.parameters(), model.buffers())}
        self._given = {id(t): place for place, t in enumerate(given)}
        self._from = {id(t): frozenset([place]) for place, t in enumerate(given)}
        self._only_inputs = set(self._given)  # what was made of inputs alone
        self._shortcut = shortcut
        self._alive: list[Any] = []  # so that ids stay their own
        self._budget = Budget()
        self._used: set[int] = set()
        self._calls: Counter[tuple[str, ...]] = Counter()  # function and sizes -> how many calls
        self._last: tuple[str, Any, frozenset[int]] = ("", (), frozenset())
        self._failed = False
        self._picked: dict[int, int] = {}
        self._asked: dict[int, str] = {}
        self.touched: set[int] = set()
        self.tables: dict[int, int] = {}
        self._parameters = {id(p) for p in model.parameters()}

    @property
    def used(self) -> int:
        """Return how many parameters of the model, without buffers, were used."""
        return len(self._used & self._parameters)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run FUNC, or the shortcut instead of it, and return the result. Before that, note which inputs FUNC takes and
        what it takes out of them; after it, which inputs its result comes from.
        """
        kwargs = kwargs or {}
        call = Call(getattr(func, "__name__", ""), args, kwargs)
        name, taken = call.name, call.tensors
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
            self._budget.before(name, args)
            result = func(*args, **kwargs)
        call.result = result
        self._budget.after(call.results)
        self._failed = False
        if not (name in _PICKS and id(args[0]) in self._given):
            alike = (name, *(str(tuple(t.shape)) for t in taken))
            self._calls[alike] += 1
        self._used.update(id(t) for t in taken if id(t) in self._weights)
        self._alive.append((args, kwargs, result))
        if origin:
            for one in call.results:
                if id(one) not in self._given and id(one) not in self._weights:
                    self._from[id(one)] = origin
                    if all(id(t) in self._only_inputs for t in taken):
                        self._only_inputs.add(id(one))
        return result

    def stopped(self, error: Exception) -> Stop:
        """Return how the try ended, for ERROR, which the model raised: the operation that ran last, and all that was
        noted.
        """
        name, args, origin = self._last
        only_inputs = [self._from[id(t)] for t in flat(args) if id(t) in self._only_inputs]
        as_given = frozenset(
            itertools.chain.from_iterable(only_inputs)
        )  # the sizes of the others are those of weights, too
        return Stop(
            str(error),
            type(error).__name__,
            len(self._used) + min(sum(min(count, _MOST_ALIKE) for count in self._calls.values()), 5000) * 1e-4,
            name if self._failed else "",
            args,
            sorted(origin, key=lambda place: (place not in as_given, place)),
            self._picked,
            self._asked,
            frozenset(self.touched),
            {self._given[id(t)]: i for i, t in enumerate(flat(args)) if id(t) in self._given},
        )


class Budget:
    """Limits the memory of a try, which keeps all results, so that their ids stay unique.

    It raises MemoryError if one result has more than 32 million elements or all together take more than 2 GB, before a
    result gets memory if possible. Expanded dimensions and tensors on the meta device do not count.
    """

    def __init__(self) -> None:
        self._counted: set[int] = set()
        self._left = _MOST_BYTES

    def before(self, name: str, args: Any) -> None:
        """Raise MemoryError if the arguments ARGS (by position) of the operation NAME, which has not run, show that its
        result will have more than 32 million elements: for products of matrices, `cdist`, and rows taken by a tensor of
        integers. Other operations, and tensors on the meta device, are not checked.
        """
        pair = [one for one in args[-2:] if isinstance(one, torch.Tensor) and one.ndim > 1 and not one.is_meta]
        if name in _OF_PAIRS and len(pair) == 2:
            a, b = pair
            batch = max(a.shape[:-2], b.shape[:-2], key=math.prod)
            _refuse(math.prod(batch) * a.shape[-2] * b.shape[-2 if name == "cdist" else -1] > _MOST_MADE)
        elif name == "__getitem__" and isinstance(args[0], torch.Tensor) and not args[0].is_meta:
            rows = args[1] if isinstance(args[1], torch.Tensor) else None
            if rows is not None and rows.dtype in (torch.int32, torch.int64):
                _refuse(rows.numel() * math.prod(args[0].shape[1:]) > _MOST_MADE)

    def after(self, results: Iterable[torch.Tensor]) -> None:
        """Count the memory of RESULTS, the tensors that a function gave, each memory once. Raise MemoryError if one of
        them has more than 32 million elements (an expanded dimension counts as one), or if all results so far take more
        than 2 GB together. Tensors on the meta device, and sparse ones, do not count.
        """
        for one in results:
            if one.is_meta or one.layout is not torch.strided:
                continue
            try:
                elements, memory = _stored(one), one.untyped_storage()
                held = memory._cdata, memory.nbytes()
            except (NotImplementedError, RuntimeError):  # what functions are mapped over has no memory of its own
                continue
            _refuse(elements > _MOST_MADE)
            if held[0] not in self._counted:
                self._counted.add(held[0])
                self._left -= held[1]
        _refuse(self._left < 0)


def _refuse(much: bool) -> None:
    if much:
        raise MemoryError("makes too much of its inputs")


#: Functions of pairs of rows, of which the result is as long as one argument times the other.
_OF_PAIRS = frozenset("cdist matmul __matmul__ bmm mm baddbmm".split())


def _stored(tensor: torch.Tensor) -> int:
    """Return how many elements of TENSOR need memory: a dimension that is expanded counts as one."""
    return math.prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s)


_PICKS = frozenset({"__getitem__", "unbind"})

_LOOKS = frozenset("__get__ size dim numel stride __len__".split())


__all__ = ["Budget", "Done", "Shortcut", "Stop", "attempt"]
