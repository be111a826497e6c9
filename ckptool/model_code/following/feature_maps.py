"""How code flattens feature maps before a linear layer, and which dimensions it merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..call import ADDS, MULTIPLIES, TURNS, UNCHANGED, Call, turned_to
from ..signature import Flattened

#: The dimensions of what convolutions give, by their number.
_MAPS = {3: "ncw", 4: "nchw", 5: "ncdhw"}

#: Functions that leave each channel of a map in its place.
CHANNEL_BY_CHANNEL = (
    UNCHANGED
    | ADDS
    | MULTIPLIES
    | frozenset(
        "relu relu_ relu6 gelu silu hardswish hardsigmoid sigmoid tanh leaky_relu elu mish softplus prelu batch_norm "
        "group_norm instance_norm".split()
    )
)


class FeatureMaps:
    """Follows the outputs of convolutions until code flattens them."""

    def __init__(self) -> None:
        self._orders: dict[int, str] = {}  # id of a feature map -> the letters of its dimensions: "nchw"
        self._flat: dict[int, Flattened] = {}
        self._merged: dict[int, tuple[int, int]] = {}  # the two dimensions that became the last one of a tensor

    def flattened(self, value: Any) -> Flattened | None:
        """Return how the feature maps in the rows of VALUE were flattened; None if it holds none."""
        return self._flat.get(id(value))

    def merged(self, value: Any) -> tuple[int, int] | None:
        """Return the sizes of the two dimensions that code made the last one of VALUE; None if it merged none."""
        return self._merged.get(id(value))

    def see(self, call: Call, keys: Mapping[int, str], *, rows: bool) -> None:
        """Note whether the result of CALL, a tensor, is a feature map, a flattened one, or has merged dimensions.

        A convolution with a result of three to five dimensions makes a feature map (`_MAPS`); a linear layer with a
        weight of the model makes none; any other function, what `_go_on` says. Flattened maps stay so if CALL keeps
        their sizes.

        Args:
            call: the call, after it has run.
            keys: id of a parameter or buffer -> its key.
            rows: whether the first argument of CALL is rows of a table. Their dimensions are not noted when they are
                merged: each code has the fields before the numbers of a row.
        """
        first = call.args[0] if call.args and isinstance(call.args[0], torch.Tensor) else None
        layer = call.name == "linear" and len(call.args) > 1 and id(call.args[1]) in keys
        if call.name.startswith("conv") and call.result.ndim in _MAPS:
            self._orders[id(call.result)] = _MAPS[call.result.ndim]
        elif not layer and first is not None:
            self._go_on(call, first)
        if first is not None and not rows:
            self._merge(call, first)

    def _go_on(self, call: Call, first: torch.Tensor) -> None:
        if id(first) in self._orders:
            order, flat = _after_features(self._orders[id(first)], call, first)
            if order:
                self._orders[id(call.result)] = order
            elif flat is not None:
                self._flat[id(call.result)] = flat
        elif id(first) in self._flat and call.result.shape == first.shape:
            self._flat[id(call.result)] = self._flat[id(first)]

    def _merge(self, call: Call, first: torch.Tensor) -> None:
        """Note the sizes of the last two dimensions of FIRST, the first argument of CALL, if CALL flattens just these
        two. The note stays with a result that has the same numbers (`dropout`, `contiguous`).
        """
        if call.name in UNCHANGED and id(first) in self._merged:
            self._merged[id(call.result)] = self._merged[id(first)]
        elif call.name in ("flatten", "reshape", "view") and first.ndim > 2:
            *outer, a, b = first.shape
            if tuple(call.result.shape) == (*outer, a * b):
                self._merged[id(call.result)] = a, b


def _after_features(order: str, call: Call, first: Any) -> tuple[str, Flattened | None]:
    """Return what the result of CALL is, whose first argument FIRST is a feature map with its dimensions in ORDER
    ("nchw"; "ncw" and "ncdhw" for other convolutions): ("features", new order) for a result with as many dimensions,
    the same order unless CALL permutes them (None if its arguments do not show how); ("flat", `Flattened`) if CALL
    flattens all but the first dimension n of maps of several places. None if it is neither.

    Maps with one or three spatial dimensions are no longer features behind a function that may mix channels, such as a
    linear layer, and are only told flattened with their channels first or, if there are three, last.
    """
    if call.result.ndim == first.ndim and call.name in TURNS:
        turned = turned_to(call.name, call.args, first.ndim)
        return "" if turned is None else "".join(order[dim] for dim in turned), None
    if call.result.ndim == first.ndim:
        keeps = len(order) == 4 or call.name in CHANNEL_BY_CHANNEL or "pool" in call.name or call.name == "pad"
        return order if keeps else "", None
    flattens = call.name in ("flatten", "reshape", "view") and call.result.ndim == 2 and first.ndim == len(order)
    if not flattens or order[0] != "n" or order == "nwc":
        return "", None
    sizes = dict(zip(order, first.shape, strict=True))
    c, w = sizes["c"], sizes["w"]
    h = sizes.get("d", 1) * sizes.get("h", 1)
    told = {"ncw": "nchw", "ncdhw": "nchw", "ndhwc": "nhwc"}.get(order, order if len(order) == 4 else "")
    whole = told and h * w > 1 and call.result.shape[1] == c * h * w
    return "", Flattened(told, c, h, w) if whole else None


__all__ = ["CHANNEL_BY_CHANNEL", "FeatureMaps"]
