"""How code flattens feature maps before a linear layer and makes them of its output, and which dimensions it merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ..call import ADDS, MULTIPLIES, TURNS, UNCHANGED, Call, turned_to
from ..signature import PRODUCTS, Flattened

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


#: How the orders of sequences and volumes are told: as those of pictures.
_TOLD = {"ncw": "nchw", "nwc": "nhwc", "ncdhw": "nchw", "ndhwc": "nhwc"}


class _Shaped(NamedTuple):
    """Maps that code has made of rows of numbers.

    Attributes:
        keys: the tensors of the model that hold something for each number of a row.
        sizes: the sizes of the maps right after they were made of rows.
        dims: for each of their dimensions now, its place then.
    """

    keys: frozenset[str]
    sizes: tuple[int, ...]
    dims: tuple[int, ...]


class FeatureMaps:
    """Follows the outputs of convolutions until code flattens them, and rows until a convolution takes them as maps.

    Attributes:
        unflattened: key of a tensor that holds something for each number of a row -> the maps made of such rows.
    """

    def __init__(self) -> None:
        self.unflattened: dict[str, Flattened] = {}
        self._rows: dict[int, frozenset[str]] = {}  # id of rows [n, numbers] -> tensors with one for each
        self._shaped: dict[int, _Shaped] = {}
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
        self._see_rows(call, keys)
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

    def _see_rows(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note whether the result of CALL, a tensor, is rows [n, numbers] that a matrix of the model makes, rows made
        of these number by number, or maps made of rows; and in `unflattened`, the maps that CALL, a convolution, takes.
        KEYS is as in `see`.

        Maps stay so if CALL permutes their dimensions, or works on each channel for itself.
        """
        first, result = call.first, call.result
        shaped, rows = self._shaped.get(id(first)), self._rows.get(id(first))
        own = frozenset(keys[id(tensor)] for tensor in call.tensors if id(tensor) in keys)
        if call.name in PRODUCTS and own and result.ndim == 2:
            self._rows[id(result)] = own
        elif rows is not None and result.shape == first.shape and call.name in CHANNEL_BY_CHANNEL | {"layer_norm"}:
            self._rows[id(result)] = rows | own
        elif rows is not None and call.name in ("view", "reshape", "unflatten") and result.shape[0] == first.shape[0]:
            self._shaped[id(result)] = _Shaped(rows, tuple(result.shape), tuple(range(result.ndim)))
        elif shaped is not None and call.name.startswith("conv"):
            made = _made_of_rows(shaped)
            self.unflattened |= dict.fromkeys(shaped.keys, made) if made is not None else {}
        elif shaped is not None and result.ndim == first.ndim:
            turned = turned_to(call.name, call.args, first.ndim) if call.name in TURNS else [*range(first.ndim)]
            if turned is not None and (call.name in TURNS or _keeps_channels(call)):
                self._shaped[id(result)] = shaped._replace(dims=tuple(shaped.dims[dim] for dim in turned))

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
        return order if len(order) == 4 or _keeps_channels(call) else "", None
    flattens = call.name in ("flatten", "reshape", "view") and call.result.ndim == 2 and first.ndim == len(order)
    if not flattens or order[0] != "n" or order == "nwc":
        return "", None
    sizes = dict(zip(order, first.shape, strict=True))
    c, w = sizes["c"], sizes["w"]
    h = sizes.get("d", 1) * sizes.get("h", 1)
    told = _told(order)
    whole = told and h * w > 1 and call.result.shape[1] == c * h * w
    return "", Flattened(told, c, h, w) if whole else None


def _told(order: str) -> str:
    """Return the ORDER of the dimensions of maps as that of pictures: "nchw" for "ncw". "" if their depth, height and
    width are not in this order, side by side.
    """
    return _TOLD.get(order, order if len(order) == 4 else "")


def _keeps_channels(call: Call) -> bool:
    """Return whether CALL leaves each channel of the maps that it takes in its place."""
    return call.name in CHANNEL_BY_CHANNEL or "pool" in call.name or call.name in ("pad", "interpolate")


def _made_of_rows(shaped: _Shaped) -> Flattened | None:
    """Return how the maps SHAPED, which a convolution takes, were made of rows. None if the numbers of a row are in one
    channel or one place, or if the dimensions are in no order that is told (`_told`).
    """
    letters = dict(zip(shaped.dims, _MAPS.get(len(shaped.dims), ""), strict=False))
    order = "".join(letters.get(dim, "") for dim in range(len(shaped.sizes)))
    sizes = dict(zip(order, shaped.sizes, strict=False))
    c, h, w = sizes.get("c", 1), sizes.get("d", 1) * sizes.get("h", 1), sizes.get("w", 1)
    told = _told(order) if order.startswith("n") else ""
    return Flattened(told, c, h, w) if told and c > 1 and h * w > 1 else None


__all__ = ["CHANNEL_BY_CHANNEL", "FeatureMaps"]
