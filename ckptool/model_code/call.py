"""The record of one call of a torch function in a forward pass, which each follower of the pass is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


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

    def __post_init__(self) -> None:
        self.values = flat((self.args, self.kwargs))
        self.tensors = [value for value in self.values if isinstance(value, torch.Tensor)]

    @property
    def first(self) -> Any:
        """Return its first argument by position; the argument `input` if it has none by position; None if it has
        neither.
        """
        return self.args[0] if self.args else self.kwargs.get("input")


def flat(value: Any) -> list[Any]:
    """Return the innermost values of VALUE as one list, in order: members of nested lists and tuples, and values
    (without keys) of nested dicts.

    Anything else is one value: `flat(5)` is [5].
    """
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            _gather(item, found)
    else:
        found.append(value)


__all__ = ["Call", "flat"]
