"""Which parameter a tensor of a forward pass is, is a view of, or stands for.

Code seldom gives a parameter to a function as it is: it transposes it, takes a matrix out of a stack, or normalises it
first. What is done with the result is done with the parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..call import ADDS, MULTIPLIES, Call

VIEWS = frozenset(
    "t transpose permute view reshape unsqueeze squeeze detach contiguous clone float to double half bfloat16 type"
    " expand expand_as".split()
)

#: Functions whose result has each number in the place of the one that it is computed from.
_NUMBER_BY_NUMBER = (
    ADDS
    | MULTIPLIES
    | frozenset(
        "sub subtract __sub__ div divide true_divide __truediv__ div_ normalize renorm clamp clip clamp_min abs neg exp"
        " square sqrt tanh sigmoid softplus relu sign round where masked_fill dropout".split()
    )
)

#: Functions that take a matrix out of a stack.
MEMBERS = frozenset("__getitem__ select unbind index_select".split())


class Views:
    """Names the views of parameters.

    Args:
        keys: id of a parameter or buffer -> its key.
        made_of_weights: whether a tensor was computed from weights alone.
    Attributes:
        keys: the same; `see` adds views.
    """

    def __init__(self, keys: dict[int, str], made_of_weights: Callable[[Any], bool]) -> None:
        self.keys = keys
        self._made_of_weights = made_of_weights
        self._whole = frozenset(keys)  # the parameters themselves
        self._turned: set[int] = set()  # transposed views of parameters
        self._picked: dict[int, int] = {}  # id of a member of a parameter -> how many dimensions it has less
        self._stands_for: dict[int, tuple[str, bool]] = {}  # what stands for a parameter, and whether transposed
        self._alone: dict[int, str] = {}  # id of a tensor -> the only parameter that it was made of, in its sizes

    def is_whole(self, value: Any) -> bool:
        """Return whether VALUE is a parameter or buffer itself, and no view of one."""
        return id(value) in self._whole

    def dims_less(self, value: Any) -> int | None:
        """Return how many dimensions fewer VALUE has than the parameter or buffer that it was taken out of: 1 for
        `w[i]`. 0 for a parameter or buffer itself; None for another view, and for what is no view.
        """
        return 0 if self.is_whole(value) else self._picked.get(id(value))

    def is_turned(self, value: Any) -> bool:
        """Return whether VALUE is a transposed view of a parameter."""
        return id(value) in self._turned

    def stands_for(self, value: Any) -> tuple[str, bool] | None:
        """Return (key of the parameter that the matrix VALUE stands for, whether transposed); None if it stands for
        none (see `_name_computed`), or is a parameter or a view of one itself.
        """
        return self._stands_for.get(id(value))

    def key_of_whole(self, value: Any) -> str:
        """Return the key of the parameter that VALUE is, or that it was computed from in its sizes, and from no other;
        "" if there is none.
        """
        return self.keys[id(value)] if id(value) in self._whole else self._alone.get(id(value), "")

    def see(self, call: Call) -> None:
        """Note which parameter the result of CALL, which has run, is a view of (`_name_views`), or stands for
        (`_name_computed`).
        """
        self._name_views(call)
        self._name_computed(call)

    def _name_views(self, call: Call) -> None:
        """Enter the result of CALL in `keys`, if it is a view of a parameter, with the key of that parameter; and in
        `_turned`, if the view is transposed (twice is not). A result that has a key keeps it.

        Copies and conversions (`clone`, `to`) count as views. The matrices that CALL takes out of a stack get the key
        of the stack (`_members`), and a weight that torch's weight norm computes gets the key of its direction
        (`weight_v`). Nothing is noted unless the first argument of CALL is a parameter or such a view.
        """
        first = call.args[0] if call.args else None
        if id(first) not in self.keys:
            return
        if call.name in VIEWS and isinstance(call.result, torch.Tensor):
            self.keys.setdefault(id(call.result), self.keys[id(first)])
            if _turns(call) != (id(first) in self._turned):
                self._turned.add(id(call.result))
        elif call.name == "_weight_norm":
            self.keys.setdefault(id(call.result), self.keys[id(first)])
        elif call.name in MEMBERS and first is not None and first.ndim > 2:
            self._members(call.args, call.result)

    def _name_computed(self, call: Call) -> None:
        """Note in `_stands_for` that the result of CALL, a matrix, stands for a parameter, and if it is transposed.

        It does if it is computed from weights alone, number by number (`normalize(w)`, `w * 2`), and those arguments of
        CALL that have its sizes are, or stand for, one parameter; or if it is a view of a matrix that stands for a
        parameter. Nothing is noted of other results, such as views of a parameter itself, which have its key
        (`_name_views`).
        """
        result = call.result
        if not isinstance(result, torch.Tensor) or result.ndim != 2 or id(result) in self.keys:
            return
        if call.name in VIEWS:
            taken = {self._stands_for.get(id(call.first))} - {None}
        elif call.name in _NUMBER_BY_NUMBER and all(map(self._is_of_weights, call.tensors)):
            taken = {
                self._stands_for.get(id(t)) or (self.keys[id(t)], id(t) in self._turned)
                for t in call.tensors
                if t.shape == result.shape and (id(t) in self._stands_for or id(t) in self.keys)
            }
        else:
            return
        if len(taken) == 1 and (known := taken.pop()) is not None:
            self._stands_for[id(result)] = known[0], known[1] != _turns(call)

    def _is_of_weights(self, tensor: Any) -> bool:
        """Return whether TENSOR is a parameter, a view of one that has its key, or computed from parameters alone."""
        return id(tensor) in self.keys or self._made_of_weights(tensor)

    def _members(self, args: Any, result: Any) -> None:
        """Enter RESULT, one or several matrices that a call with ARGS has taken out of a stack, in `keys` with the key
        of the stack, ARGS[0]; and in `_turned`, if the stack is transposed.

        That is done if ARGS[1] is an integer or a tensor of integers or booleans (`w[i]`, `w.select(0, i)`), or is not
        there (`w.unbind()`); not for slices and tuples, nor for results whose last two sizes are not the stack's.
        """
        index = args[1] if len(args) > 1 else 0
        if not isinstance(index, int) and (not isinstance(index, torch.Tensor) or index.is_floating_point()):
            return
        members = [result] if isinstance(result, torch.Tensor) else result
        for one in [m for m in members if isinstance(m, torch.Tensor) and m.shape[-2:] == args[0].shape[-2:]]:
            self.keys.setdefault(id(one), self.keys[id(args[0])])
            if id(args[0]) in self._turned:
                self._turned.add(id(one))
            if self.is_whole(args[0]):
                self._picked[id(one)] = args[0].ndim - one.ndim

    def see_alone(self, call: Call) -> str:
        """Return the key of the only parameter that the tensors in CALL are, or were computed from in its sizes
        (`key_of_whole`); "" if there is none, if one of the tensors comes from none, or if they come from several. If
        the result of CALL has the sizes of its first tensor, it counts as computed from the parameter as well.
        """
        own = {self.key_of_whole(tensor) for tensor in call.tensors}
        if len(own) != 1:
            return ""
        (key,) = own
        if getattr(call.result, "shape", None) == call.tensors[0].shape:
            self._alone[id(call.result)] = key
        return key


def _turns(call: Call) -> bool:
    """Return whether CALL, which gives a view, counts as exchanging the last two dimensions: any `t` or `transpose`,
    whatever its dimensions, and any `permute` of a matrix.
    """
    return call.name in ("t", "transpose") or (call.name == "permute" and call.result.ndim == 2)


__all__ = ["MEMBERS", "VIEWS", "Views"]
