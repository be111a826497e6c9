"""Find gated pairs (SwiGLU, GEGLU): the layer whose activated output multiplies the output of another layer is its
gate.

In `down(silu(a(x)) * b(x))` the gate is a, whatever its name is. A layer that computes both has the gate in one half of
its output (Shazeer, "GLU Variants Improve Transformer", 2020). No other module follows gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .call import Call
from .signature import Gate

#: Functions that only torch's own activations have the names of.
_ACTIVATIONS = frozenset(
    "silu silu_ gelu sigmoid sigmoid_ tanh relu relu_ relu6 elu selu celu leaky_relu mish softplus hardswish "
    "hardsigmoid logsigmoid softsign hardtanh".split()
)
_SIGMOIDS = frozenset("sigmoid sigmoid_ hardsigmoid".split())
_MULTIPLIES = frozenset("mul multiply __mul__ __rmul__ mul_ __imul__".split())
_PRODUCTS = frozenset("linear einsum matmul __matmul__ __rmatmul__ addmm mm bmm baddbmm grouped_mm _grouped_mm".split())
_CUTS = frozenset("chunk split tensor_split unsafe_chunk".split())

#: What a tensor comes from: the key of a weight, and which half of its outputs, if one.
_Origin = tuple[str, int | None]


class Gating:
    """Follows the output of each weight until it is multiplied with the output of another weight.

    Attributes:
        roles: key of a weight -> "gate" or "up", for two layers of one size and one input whose outputs are multiplied.
        halves: key of a weight -> which half of its output is the gate of the other half.
        opens: key of a weight -> "gate" or "up", as in `roles`, where both layers go through an activation and that of
            the gate is a sigmoid.
    """

    def __init__(self) -> None:
        self.roles: dict[str, str] = {}
        self.halves: dict[str, Gate] = {}
        self.opens: dict[str, str] = {}
        self._origin: dict[int, _Origin] = {}
        self._active: dict[int, str] = {}  # tensors that went through an activation, and which
        self._taken: dict[str, tuple[int, tuple[int, ...]]] = {}  # what a weight works on, and its sizes

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note what CALL, which has run, shows about gates. KEYS has id of a parameter or buffer -> its key."""
        name, tensors, result = call.name, call.tensors, call.result
        if name in _PRODUCTS or name.startswith("conv"):
            self._begin(tensors, result, keys)
            return
        origins = {self._origin[id(t)] for t in tensors if id(t) in self._origin}
        if name in _MULTIPLIES and len(tensors) == 2:
            self._judge(tensors[0], tensors[1])
        if len(origins) != 1:
            return
        (key, half), *_ = origins
        if name == "glu" and half is None:
            self.halves.setdefault(key, Gate(1, "glu"))  # in torch the second half opens the first
            return
        if half is None and name in _CUTS and isinstance(result, tuple | list):
            if len(result) == 2 and result[0].shape == result[1].shape:
                self._origin.update((id(part), (key, place)) for place, part in enumerate(result))
            return
        if not hasattr(result, "ndim"):
            return
        if half is None and name == "__getitem__" and (place := _half(call.args)) is not None:
            half = place
        self._origin[id(result)] = key, half
        active = name if name in _ACTIVATIONS else next(filter(None, map(self._active.get, map(id, tensors))), None)
        if active is not None:
            self._active[id(result)] = active

    def comes_from(self, value: Any, key: str) -> bool:
        """Return whether the tensor VALUE was computed from the output of the weight KEY, and of no other weight. False
        if a product without weights (`matmul` of two results) lies between.
        """
        return self._origin.get(id(value), ("", None))[0] == key

    def _begin(self, tensors: list[Any], result: Any, keys: Mapping[int, str]) -> None:
        weights = [t for t in tensors if id(t) in keys and t.ndim > 1]
        data = [t for t in tensors if id(t) not in keys]
        if len(weights) == len(data) == 1 and hasattr(result, "ndim"):
            key = keys[id(weights[0])]
            self._origin[id(result)] = key, None
            self._taken[key] = id(data[0]), tuple(weights[0].shape)

    def _judge(self, one: Any, other: Any) -> None:
        """Note in `roles` or `halves` which of ONE and OTHER, two tensors that are multiplied, is the gate: the one
        that went through an activation.

        If both halves of one layer did, the gate is the half that went through a sigmoid (van den Oord et al.,
        "WaveNet", 2016). So it is of two layers, which are noted apart: recurrent cells multiply such layers as well.
        """
        made = [self._active.get(id(tensor)) for tensor in (one, other)]
        opens = [name is not None and (None in made or name in _SIGMOIDS) for name in made]
        if opens[0] == opens[1]:
            return
        gate, up = (one, other) if opens[0] else (other, one)
        own, theirs = self._origin.get(id(gate)), self._origin.get(id(up))
        if own is None or theirs is None:
            return
        if own[0] == theirs[0]:
            if own[1] is not None and theirs[1] is not None and own[1] != theirs[1]:
                self.halves.setdefault(own[0], Gate(own[1], self._active.get(id(gate), "").rstrip("_")))
        elif own[1] is theirs[1] is None and self._taken[own[0]] == self._taken[theirs[0]]:
            known = self.roles if None in made else self.opens
            known.setdefault(own[0], "gate")
            known.setdefault(theirs[0], "up")


def _half(args: Any) -> int | None:
    """Return which half of the last dimension a call of `__getitem__` with ARGS, (tensor, index), takes: 0 for the
    first, 1 for the second.

    None if the index is no tuple that reaches the last dimension, if it takes no slice there or another one, or if the
    size of that dimension is odd.
    """
    index = args[1] if len(args) > 1 else None
    if not isinstance(index, tuple) or not index:
        return None
    last = index[-1]
    if not isinstance(last, slice) or last.step not in (None, 1) or args[0].shape[-1] % 2:
        return None
    if len(index) < args[0].ndim and Ellipsis not in index[:-1]:
        return None
    middle = args[0].shape[-1] // 2
    return {(0, middle): 0, (middle, 2 * middle): 1}.get(last.indices(args[0].shape[-1])[:2])
