"""Run a forward pass in float64, also where the code asks for float32, to show how much of a difference is due to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .calling import Mode

_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}
#: What draws numbers: in double precision other ones come of the same seed.
_RANDOM = frozenset({"rand", "randn", "rand_like", "randn_like", "normal_", "uniform_", "bernoulli_", "bernoulli"})


class Wider(Mode):
    """A mode (`with Wider():`) in which torch computes in float64: tensors of float16, bfloat16 and float32 that an
    operation takes are converted to float64, those of complex64 to complex128. If the code asks for one of these types
    (`dtype=torch.float32`), it gets the wider type instead.

    An operation that writes into a tensor of such a narrower type (a buffer) leaves that tensor its type. Random
    numbers are those that float32 gives for the same seed.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._overloadpacket.__name__
        if name in _RANDOM:
            return _drawn(func, name, args, kwargs)
        written = [
            value
            for value, argument in zip(args, func._schema.arguments, strict=False)
            if isinstance(value, torch.Tensor) and argument.alias_info is not None and argument.alias_info.is_write
        ]
        kept = next((t.dtype for t in written if t.dtype in _WIDER), None)
        if kept is not None:  # a buffer of the code that is written to stays what it is
            return func(*_cast(args, dict.fromkeys(_WIDER.values(), kept)), **kwargs)
        if kwargs.get("dtype") in _WIDER:
            kwargs["dtype"] = _WIDER[kwargs["dtype"]]
        args, kwargs = _cast(args, _WIDER), _cast(kwargs, _WIDER)
        if name in ("_softmax", "_log_softmax"):
            args = (*args[:2], False)  # its input is no half any more
        return func(*args, **kwargs)


def _cast(value: Any, types: dict[torch.dtype, torch.dtype]) -> Any:
    """Return VALUE with each tensor in it, also in lists, tuples and dicts, converted by TYPES (type -> new type).
    Tensors of types that are not in TYPES, and other values, stay as they are.
    """
    if isinstance(value, torch.Tensor):
        return value.to(types[value.dtype]) if value.dtype in types else value
    if isinstance(value, list | tuple):
        return type(value)([_cast(one, types) for one in value])
    if isinstance(value, dict):
        return {key: _cast(one, types) for key, one in value.items()}
    return value


def _drawn(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run FUNC, an operation of torch that draws random numbers (such as `randn`), with ARGS and KWARGS in float32, and
    return its numbers converted to float64, so that a run in float64 gets the same numbers. A type that the code asks
    for, other than float64, is kept for drawing. If NAME, the name of FUNC, ends in "_" (`normal_`), FUNC works in
    place: its first argument is filled with the numbers, and returned.
    """
    if not name.endswith("_"):
        if kwargs.get("dtype") in (None, torch.float64) and any(a.name == "dtype" for a in func._schema.arguments):
            kwargs["dtype"] = torch.float32
        narrow = [a.float() if isinstance(a, torch.Tensor) and a.dtype == torch.float64 else a for a in args]
        return _cast(func(*narrow, **kwargs), _WIDER)
    drawn = func(args[0].float() if args[0].is_floating_point() else args[0].clone(), *args[1:], **kwargs)
    return args[0].copy_(drawn)


@contextmanager
def in_double(model: torch.nn.Module) -> Iterator[None]:
    """In this context, the parameters and buffers of MODEL that are floating point or complex are in float64
    (complex128), and torch makes new tensors in float64 by default. Afterwards all of it is as before.
    """
    held = [t for t in (*model.parameters(), *model.buffers()) if t.dtype in _WIDER]
    before = [t.data for t in held]
    default = torch.get_default_dtype()
    try:
        for tensor in held:
            tensor.data = tensor.data.to(_WIDER[tensor.dtype])
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, old in zip(held, before, strict=True):
            tensor.data = old


__all__ = ["Wider", "in_double"]
