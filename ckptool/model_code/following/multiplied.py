"""The numbers that code multiplies tensors by, and adds to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..call import DIVIDES, MULTIPLIES, UNCHANGED, Call


class Factors:
    """Follows the number that each tensor was multiplied by."""

    def __init__(self) -> None:
        self._factors: dict[int, float] = {}  # id of a tensor -> the number that it was multiplied by, if not 1

    def see(self, call: Call, learned: Callable[[Any], bool], *, of_table: bool) -> None:
        """Note in `_factors` the number that the result of CALL was multiplied by: if CALL multiplies by a number, this
        number times the factor of its first tensor (6 for `(x * 2) * 3`); if CALL changes no number (`dropout`, `to`),
        that factor. The result of any other call, also of one that changes a tensor in place, loses its factor.

        To divide by a number is to multiply by its inverse, if LEARNED(first tensor): it was computed from weights. Of
        what a model is given, it is not: one code divides pictures by 255, and another one takes them divided.

        OF_TABLE says that the number counts as one of a table whose rows are multiplied, and not as one of the result.
        """
        before = next((self.of(tensor) for tensor in call.tensors), 1.0)
        number = number_in(call.name, call.args, MULTIPLIES, 1.0 if call.name in UNCHANGED else None)
        if call.name in DIVIDES and learned(call.first):
            by = call.args[1] if len(call.args) > 1 else None
            number = 1 / by if isinstance(by, int | float) and by else None
        self._factors.pop(id(call.result), None)
        if number is not None and number * before != 1.0 and not of_table:
            self._factors[id(call.result)] = number * before

    def of(self, tensor: Any) -> float:
        """Return the number that TENSOR was multiplied by, as `see` has noted it; 1 if it has noted none."""
        return self._factors.get(id(tensor), 1.0)


def number_in(name: str, args: Any, names: frozenset[str], nothing: float | None) -> float | None:
    """Return the number that the function NAME, called with ARGS, adds to a tensor or multiplies it by: the one among
    the first two of ARGS, 2.0 for `w * 2`. NAMES are the functions that add, or that multiply.

    NOTHING if NAME is none of NAMES. None if it is one of them, and there is no number or two.
    """
    if name not in names:
        return nothing
    numbers = [value for value in args[:2] if isinstance(value, int | float)]
    return float(numbers[0]) if len(numbers) == 1 else None


__all__ = ["Factors", "number_in"]
