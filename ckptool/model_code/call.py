"""The record of one call of a torch function in a forward pass, which each follower of the pass is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

#: Functions that add, those that multiply or divide, element by element; and activations between 0 and 1.
ADDS = frozenset("add __add__ __radd__ add_ __iadd__".split())
SUBTRACTS = frozenset("sub subtract rsub __sub__ __rsub__ sub_ __isub__".split())
MULTIPLIES = frozenset("mul multiply __mul__ __rmul__ mul_ __imul__".split())
DIVIDES = frozenset("div divide true_divide __truediv__ div_ __itruediv__".split())
SIGMOIDS = frozenset("sigmoid sigmoid_ hardsigmoid".split())

#: Functions that divide a tensor into parts, that concatenate tensors, and that put dimensions in another order.
CUTS = frozenset("chunk split split_with_sizes tensor_split unsafe_chunk".split())
JOINS = frozenset("cat concat concatenate".split())
TURNS = frozenset("permute transpose swapaxes swapdims movedim moveaxis".split())

#: Functions that read a property, and those that change no number in evaluation.
LOOKS = frozenset("__get__ size dim numel stride __len__ is_floating_point is_complex data_ptr type_as".split())
UNCHANGED = frozenset("dropout to float contiguous clone".split())


@dataclass(slots=True)
class Call:
    """A call of a torch function.

    Its tensors have to stay alive as long as the pass, so that their ids stay unique.

    Attributes:
        name: the name of the function ("linear").
        args, kwargs: its arguments.
        values: all arguments as one list (see `flat`): by position, then by name.
        tensors: the tensors among them.
        result: what it returned; None before it has run.
    """

    name: str
    args: Any
    kwargs: Any
    values: list[Any] = field(init=False)
    tensors: list[Any] = field(init=False)
    result: Any = None
    _results: list[Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.values = flat((self.args, self.kwargs))
        self.tensors = [value for value in self.values if isinstance(value, torch.Tensor)]

    @classmethod
    def of(cls, func: Any, args: Any, kwargs: Any) -> Call:
        """Return the record of a call of FUNC, which has not run yet. A property of a tensor that gives a view (`T`,
        `H`, `mT`, `mH`, `data`) counts as a call of the function that gives the same view: `w.T` as `w.t()`. For other
        properties, the name is "__get__".
        """
        name = getattr(func, "__name__", "")
        if name == "__get__":
            view = _VIEWS_BY_PROPERTY.get(getattr(getattr(func, "__self__", None), "__name__", ""))
            if view is not None:
                name, args = view(args[0])
        return cls(name, args, kwargs)

    @property
    def results(self) -> list[Any]:
        """Return the tensors in `result`, also in nested lists and tuples, once the call has run."""
        if self._results is None:
            self._results = [value for value in flat(self.result) if isinstance(value, torch.Tensor)]
        return self._results

    @property
    def first(self) -> Any:
        """Return its first argument by position; the argument `input` if it has none by position; None if it has
        neither.
        """
        return self.args[0] if self.args else self.kwargs.get("input")


def _reversed(of: torch.Tensor) -> tuple[str, Any]:
    """Return (function, arguments) for the tensor OF with its dimensions in the opposite order."""
    return ("t", (of,)) if of.ndim == 2 else ("permute", (of, tuple(reversed(range(of.ndim)))))


def _with_last_exchanged(of: torch.Tensor) -> tuple[str, Any]:
    """Return (function, arguments) for the tensor OF with its last two dimensions exchanged."""
    return "transpose", (of, -2, -1)


#: Property of a tensor -> (function, arguments) that give the same view. H and mH also conjugate complex numbers.
_VIEWS_BY_PROPERTY: dict[str, Callable[[torch.Tensor], tuple[str, Any]]] = {
    "T": _reversed,
    "H": _with_last_exchanged,
    "mT": _with_last_exchanged,
    "mH": _with_last_exchanged,
    "data": lambda of: ("detach", (of,)),
}


def flat(value: Any) -> list[Any]:
    """Return the innermost values of VALUE as one list, in order: members of nested lists and tuples, and values
    (without keys) of nested dicts.

    Anything else is one value: `flat(5)` is [5].
    """
    found: list[Any] = []
    _gather((value,), found)
    return found


def _gather(values: Iterable[Any], found: list[Any]) -> None:
    """Append to FOUND the innermost values of each of VALUES, as `flat` returns them."""
    for value in values:
        if isinstance(value, _HOLDERS):
            _gather(value.values() if isinstance(value, dict) else value, found)
        else:
            found.append(value)


_HOLDERS = (tuple, list, dict)


def summed_dim(call: Call, place: int, matrix: torch.Tensor) -> int | None:
    """Return which dimension of MATRIX the product CALL sums over, that of its inputs: -1 (the last) for `linear(x,
    matrix)` and `matrix @ x`, -2 for `x @ matrix`. PLACE is the index of MATRIX, from 0, in `CALL.values`.

    None if CALL is no product of two tensors, if it is an einsum, if MATRIX has fewer than two dimensions or is no
    factor (the bias of `addmm`), or if CALL sums over another dimension, or over several.
    """
    if matrix.ndim < 2:
        return None
    match call.name:
        case "linear":
            return -1 if call.kwargs.get("weight", matrix if place == 1 else None) is matrix else None
        case "inner":
            return -1
        case "matmul" | "__matmul__" | "mm" | "bmm" | "mv" | "grouped_mm" | "_grouped_mm":
            return (-1, -2)[place] if place < 2 else None
        case "__rmatmul__":
            return (-2, -1)[place]
        case "addmm" | "baddbmm" | "addmv":
            return (-1, -2)[place - 1] if place in (1, 2) else None
        case "tensordot":
            return _dim_of_tensordot(call, place, matrix)
    return None


def _dim_of_tensordot(call: Call, place: int, matrix: torch.Tensor) -> int | None:
    """Return which dimension of MATRIX, argument number PLACE (0 or 1) of the tensordot CALL, it sums over: -1 (the
    last) or -2. Its argument `dims` says how many there are (1: the last of the first tensor and the first of the
    second) or lists them for each tensor. None if it sums over several, or over another than the last two of MATRIX.
    """
    dims = call.args[2] if len(call.args) > 2 else call.kwargs.get("dims", 2)
    if dims == 1:
        dims = [-1], [0]  # the last of the first tensor, and the first of the second
    try:
        (dim,) = dims[place]
    except (TypeError, ValueError, IndexError):
        return None
    dim = dim if dim < 0 else dim - matrix.ndim
    return dim if dim in (-1, -2) else None


def turned_to(name: str, args: Any, count: int = 4, kwargs: Mapping[str, Any] | None = None) -> list[int] | None:
    """Return, for each of the COUNT dimensions of the result of the function NAME (`permute`, `transpose` …), its place
    before, as for `permute`: [0, 2, 3, 1] for `permute(x, 0, 2, 3, 1)`, [0, 1, 3, 2] for `transpose(x, 2, 3)`.

    ARGS are its arguments by position, the tensor first, and KWARGS those by name. None if the function does not take
    these for a tensor of COUNT dimensions, or if the tensor is given by name.
    """
    probe = torch.empty(tuple(range(count)), device="meta")
    try:
        return [*getattr(torch.Tensor, name)(probe, *args[1:], **(kwargs or {})).shape]
    except (TypeError, RuntimeError, IndexError):
        return None


def every_second(args: Any) -> bool:
    """Return whether a call of `__getitem__` with ARGS, (tensor, index), takes a slice with step 2 of the last
    dimension (wherever it starts and stops) and all of the other dimensions, as interleaved rotary embeddings do:
    `x[..., ::2]`, `x[..., 1::2]`, `x[:, :, ::2]`. False for tensors of integers, and for those that have not three or
    four dimensions.
    """
    tensor, index = args[0], args[1] if len(args) > 1 else None
    if not isinstance(index, tuple) or not index or tensor.ndim not in (3, 4) or not tensor.is_floating_point():
        return False
    *others, last = index
    everything = all(i is Ellipsis or i == slice(None) for i in others)
    whole = len(index) == tensor.ndim or any(i is Ellipsis for i in others)  # else LAST is not of the last dimension
    return isinstance(last, slice) and last.step == 2 and everything and whole


__all__ = ["Call", "every_second", "flat", "summed_dim", "turned_to"]
