"""Which dimension of a matrix is its inputs: the one that products sum over."""

from __future__ import annotations

from typing import Any

import torch

from ..call import Call, summed_dim
from ..signature import PRODUCTS
from .use import Uses
from .views_of_parameters import Views


class Products:
    """Notes which dimensions of each parameter are its inputs, by the products that take it.

    Args:
        uses: gets `inputs_first` and `dims` of facts.
        views: knows which tensors are parameters.
    """

    def __init__(self, uses: Uses, views: Views) -> None:
        self._uses = uses
        self._views = views
        self._data: set[str] = set()  # parameters that linear layers take

    def see(self, key: str, call: Call, place: int, value: Any, *, turned: bool) -> None:
        """Note whether the parameter KEY has its inputs first (`inputs_first`), if CALL is a product with VALUE: False
        for `linear(x, w)` and `w @ x`, True for `x @ w`. VALUE, argument number PLACE, is the parameter or a tensor
        that stands for it; TURNED if VALUE is transposed, which gives the opposite. The first note stays. For an
        einsum, see `_summed`.

        A parameter that `linear` takes in the place of its input is data, such as learned features of nodes: its
        `inputs_first` becomes None and stays so, whatever other calls do with it. Of two parameters that are multiplied
        (`a @ b`), only the second gets a note.
        """
        from_left = place == 0 and bool(call.args) and call.args[0] is value
        if from_left and call.name == "linear":
            self._data.add(key)
            self._uses[key].facts.inputs_first = None
        elif key in self._data or (
            from_left and call.name in PRODUCTS and len(call.args) > 1 and id(call.args[1]) in self._views.keys
        ):
            return
        elif call.name == "einsum":
            self._summed(key, call.args, value, turned=turned)
        elif (dim := summed_dim(call, place, value)) is not None:
            self._note_inputs_first(key, inputs_first=(dim == -2) != turned)

    def _note_inputs_first(self, key: str, *, inputs_first: bool) -> None:
        """Note whether the matrix KEY is stored as [inputs, outputs] (INPUTS_FIRST), unless there is a note already."""
        facts = self._uses[key].facts
        if facts.inputs_first is None:
            facts.inputs_first = inputs_first

    def _summed(self, key: str, args: Any, value: torch.Tensor, *, turned: bool) -> None:
        """Note in the facts of the parameter KEY which of its dimensions an einsum sums over. ARGS are the arguments of
        the einsum, (equation, tensors …). VALUE, one of these tensors, is the parameter or stands for it; TURNED if it
        is transposed.

        If just one of the last two dimensions is in the result, that one is the outputs and the other one the inputs
        (`inputs_first`). If VALUE is the parameter itself, `dims` gets for each dimension "input" (it is not in the
        result), "both" (it is in the result and in another tensor) or "output" (it is in the result, and in no other
        tensor). If it is a member of the parameter (`w[i]`), the dimension of the members is "both", too: code that
        takes them one by one multiplies each with its own share of the data. The first notes stay. Nothing is noted if
        the equation has no arrow, if it has no letter for each dimension of VALUE (`...`), or if VALUE has fewer than
        two dimensions.
        """
        letters, others, result = letters_of(args, value)
        if len(letters) != value.ndim or "." in letters or len(letters) < 2:
            return
        last, before = (letters[-1] in result, letters[-2] in result)
        if last != before:
            self._note_inputs_first(key, inputs_first=last != turned)
        outer = self._views.dims_less(value)
        if outer is not None and not self._uses[key].facts.dims:
            kinds = ("input" if x not in result else "both" if x in others else "output" for x in letters)
            self._uses[key].facts.dims = ("both",) * outer + tuple(kinds)


def letters_of(args: Any, value: torch.Tensor) -> tuple[str, str, str]:
    """Return (letters of VALUE, letters of the other tensors, one after the other, letters of the result) in the
    equation of an einsum with ARGS, (equation, tensors …): ("oi", "bi", "bo") for the second tensor of "bi,oi->bo".
    ("", "", "") if the equation has no arrow. The first is "" if VALUE is none of the tensors.
    """
    equation, *operands = args
    operands = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    if not isinstance(equation, str) or "->" not in equation:
        return "", "", ""
    given, result = equation.replace(" ", "").split("->")
    each = list(zip(given.split(","), operands, strict=False))
    letters = next((one for one, x in each if x is value), "")
    return letters, "".join(one for one, x in each if x is not value), result


__all__ = ["Products", "letters_of"]
