"""The numbers that code multiplies tensors by, and adds to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..call import ADDS, DIVIDES, MULTIPLIES, SUBTRACTS, UNCHANGED, Call


class Factors:
    """Follows the number that each tensor was multiplied by."""

    def __init__(self) -> None:
        self._factors: dict[int, float | None] = {}  # id of a tensor -> the number that it was multiplied by, if not 1
        self._origin: dict[int, int] = {}  # id of a tensor that was computed from one other alone -> id of that one
        self._activated: set[int] = set()  # ids of products of a tensor with what was computed from it

    def see(self, call: Call, learned: Callable[[Any], bool], *, of_table: bool) -> None:
        """Note in `_factors` the number that the result of CALL was multiplied by: if CALL multiplies by a number, this
        number times the factor of its first tensor (6 for `(x * 2) * 3`); if CALL changes no number (`dropout`, `to`),
        that factor. The result of any other call, also of one that changes a tensor in place, loses its factor.

        To divide by a number is to multiply by its inverse, if LEARNED(first tensor): it was computed from weights. Of
        what a model is given, it is not: one code divides pictures by 255, and another one takes them divided.

        A number on the product of a tensor with what was computed from it alone (`x * relu6(x + 3) / 6`) belongs to an
        activation, which other code may call by one name (`hardswish`): then the factor is not known.

        OF_TABLE says that the number counts as one of a table whose rows are multiplied, and not as one of the result.
        """
        before = next((self.of(tensor) for tensor in call.tensors), 1.0)
        number = number_in(call.name, call.args, MULTIPLIES, 1.0 if call.name in UNCHANGED else None)
        if call.name in DIVIDES and not learned(call.first):
            number = None
        at = id(call.result)
        is_activated = number not in (None, 1.0) and id(call.first) in self._activated
        self._see_origin(call)
        self._factors.pop(at, None)
        if number is not None and not of_table:
            factor = None if before is None or is_activated else number * before
            if factor != 1.0:
                self._factors[at] = factor

    def _see_origin(self, call: Call) -> None:
        """Note whether the result of CALL was computed from one tensor alone, and whether it is a product of two
        tensors of which this is so.
        """
        at = id(call.result)
        origins = {self._origin.get(id(tensor), id(tensor)) for tensor in call.tensors}
        self._activated.discard(at)
        self._origin.pop(at, None)
        if len(origins) == 1:
            self._origin[at] = origins.pop()
            if call.name in MULTIPLIES and len(call.tensors) == _TWO:
                self._activated.add(at)

    def of(self, tensor: Any) -> float | None:
        """Return the number that TENSOR was multiplied by, as `see` has noted it: 1 if it has noted none, None if it is
        not known.
        """
        return self._factors.get(id(tensor), 1.0)


#: How many tensors a product of tensors has.
_TWO = 2


def number_in(name: str, args: Any, names: frozenset[str], nothing: float | None) -> float | None:
    """Return the number that the function NAME, called with ARGS, adds to a tensor or multiplies it by: the one among
    the first two of ARGS, 2.0 for `w * 2`. NAMES are the functions that add, or that multiply; to divide by 2 is to
    multiply by 0.5.

    NOTHING if NAME is none of NAMES. None if it is one of them, and there is no number or two; and if it subtracts.
    """
    divides = names is MULTIPLIES and name in DIVIDES
    if names is ADDS and name in SUBTRACTS:
        return None
    if name not in names and not divides:
        return nothing
    numbers = [value for value in args[:2] if isinstance(value, int | float)]
    if len(numbers) != 1 or (divides and (numbers[0] == 0 or args[0] is numbers[0])):
        return None
    return 1 / numbers[0] if divides else float(numbers[0])


__all__ = ["Factors", "number_in"]
