"""Call a model, and look at what its forward pass takes and gives."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import printable
from .flow import Place


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """A mode of torch. It is the class of modes that look at each operation of a forward pass.

    Torch puts a function around `__torch_dispatch__` that keeps its compiler from looking into it, and that imports the
    compiler for this. That takes seconds, so the plain function runs as long as nothing else has imported the compiler.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = cls.__torch_dispatch__
        super().__init_subclass__(**kwargs)
        cls._ways = plain, cls.__torch_dispatch__

    def __enter__(self) -> Any:
        type(self).__torch_dispatch__ = self._ways["torch._dynamo" in sys.modules]
        return super().__enter__()


def called(model: torch.nn.Module, inputs: Any) -> Any:
    """Return the output of MODEL for INPUTS, a dict (by name) or a sequence (by position)."""
    return model(**inputs) if isinstance(inputs, MappingOf) else model(*inputs)


def arguments(model: torch.nn.Module) -> tuple[list[str], list[str]]:
    """Return (the names of the arguments of MODEL's forward pass, those among them that have no default), with those by
    keyword only, without `*args` and `**kwargs`. Both are empty if its signature cannot be read.
    """
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return [], []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [p.name for p in named], [p.name for p in named if p.default is p.empty]


def first_line(error: Exception) -> str:
    """Return "CLASS: MESSAGE" for an exception, with the first line of its message that is not empty, up to 200
    characters and without a full stop at its end, or "no message".
    """
    lines = (line.strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {printable(next((line for line in lines if line), 'no message'), 200).rstrip('.')}"


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in VALUE (lists, tuples, dicts and dataclasses within each other), in their order; nothing for
    other values.
    """
    return (tensor for _, tensor in placed(value))


def placed(value: Any, place: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    """Yield (place, tensor) for all tensors in VALUE (lists, tuples, dicts and dataclasses within each other), in their
    order; nothing for other values. A place is the keys, names of fields and indices that lead to the tensor, after the
    beginning PLACE; keys of a dict that are not whole numbers are given as text.
    """
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, MappingOf):
        for key, item in value.items():
            yield from placed(item, (*place, key if isinstance(key, int) else str(key)))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=False):
            yield from placed(item, (*place, str(name)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from placed(item, (*place, index))
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from placed(getattr(value, name, None), (*place, name))


__all__ = ["Mode", "arguments", "called", "first_line", "placed", "tensors"]
