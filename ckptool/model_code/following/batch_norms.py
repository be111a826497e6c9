"""Which layer is directly before a batch norm, so that the norm can be folded into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..call import LOOKS, Call
from ..signature import BehindLayer
from .use import Uses

#: What torch's batch norm is given, in its order.
_OF_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


class BatchNorms:
    """Follows the outputs of layers until a function takes them, to find batch norms directly behind a layer.

    Args:
        uses: gets `behind` of facts.
    """

    def __init__(self, uses: Uses) -> None:
        self._uses = uses
        self._made: dict[int, str] = {}  # id of a tensor -> the weight of the layer whose outputs it is
        self._shapes_of: dict[int, list[int]] = {}  # such a tensor -> itself and its other shapes, in one list
        self._shaped_anew: set[int] = set()  # such tensors that were reshaped
        self._normed: dict[int, str] = {}  # id of such a tensor -> the statistics of the batch norm that took it

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note what CALL, which has run and returned a tensor, shows: if it is a batch norm, the layer that it is
        behind (`_behind`); if it is a linear layer or a convolution (also a transposed one) whose second argument is a
        parameter, that its result is the direct output of this layer. KEYS has id of a parameter or buffer -> its key.
        """
        if call.name == "batch_norm":
            self._behind(call.args, call.kwargs, keys)
        key = keys.get(id(call.args[1])) if len(call.args) > 1 else None
        if key is not None and (call.name.startswith("conv") or call.name == "linear"):
            self._made[id(call.result)] = key

    def _behind(self, args: Any, kwargs: Any, keys: Mapping[int, str]) -> None:
        """Note, in `behind` of the running mean of a batch norm, the layer whose output it takes directly, and the eps
        of the norm. ARGS and KWARGS are the arguments of the call of `batch_norm`, KEYS is as in `see`. Nothing is
        noted if its input is no direct output of a layer, if its mean is no tensor of the model, or if its eps is no
        float.

        If another batch norm took another shape of the same output before, that norm loses its note (`_forget`), and
        this one gets none. Two norms that take the same tensor are both noted.
        """
        given = dict(zip(_OF_BATCH_NORM, args, strict=False)) | kwargs
        layer, mean = self._made.get(id(given.get("input"))), keys.get(id(given.get("running_mean")))
        eps = given.get("eps", 1e-5)
        others = set(self._shapes_of.get(id(given.get("input")), ())) - {id(given.get("input"))}
        if layer is not None and not others.isdisjoint(self._normed):
            self._forget(given["input"])  # two norms take its output
        elif layer is not None and mean in self._uses and isinstance(eps, float):
            self._uses[mean].facts.behind = BehindLayer(layer, eps)
            self._normed[id(given["input"])] = mean

    def take(self, call: Call) -> None:
        """Forget that the tensors that CALL takes, and other shapes of these tensors, are direct outputs of layers
        (`_forget`): a function other than a batch norm takes them. A batch norm that took one of them before loses its
        note (`behind` becomes None), and one that takes it later gets none. Nothing changes if CALL is a `batch_norm`
        itself or only reads a property. Of a function whose name ends with `_as` (`view_as`), only the first tensor
        counts: it takes only the sizes of the second.

        A reshape (`flatten`, `reshape`, `view`) of the output of a linear layer that keeps the size of the last
        dimension forgets nothing, and its result is a direct output, too: tokens are flattened before a batch norm.
        That holds for one reshape of each tensor, and only before a norm took the tensor.
        """
        if call.name == "batch_norm" or call.name in LOOKS:
            return
        first, result = call.first, call.result
        layer = self._made.get(id(first)) if call.name in ("flatten", "reshape", "view") else None
        once = id(first) not in self._shaped_anew and id(first) not in self._normed
        if once and layer in self._uses and self._uses[layer].how == "linear" and result.shape[-1:] == first.shape[-1:]:
            self._made[id(result)] = layer
            self._shaped_anew.add(id(first))
            self._shapes_of.setdefault(id(first), [id(first)]).append(id(result))
            self._shapes_of[id(result)] = self._shapes_of[id(first)]
            return
        for value in call.tensors[:1] if call.name.endswith("_as") else call.tensors:
            self._forget(value)

    def _forget(self, value: Any) -> None:
        """Forget that VALUE, and other shapes of it, are direct outputs of a layer. `behind` of a batch norm that took
        one of them becomes None.
        """
        for one in self._shapes_of.get(id(value), [id(value)]):
            self._made.pop(one, None)
            if (mean := self._normed.pop(one, None)) is not None:
                self._uses[mean].facts.behind = None


__all__ = ["BatchNorms"]
