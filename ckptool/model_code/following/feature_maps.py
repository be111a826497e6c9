"""How code flattens feature maps before a linear layer and makes them of its output, and which dimensions it merges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import torch

from ..call import ADDS, MULTIPLIES, TURNS, UNCHANGED, Call, turned_to
from ..signature import PRODUCTS, Flattened
from .moved import Moved

#: The dimensions of what convolutions give, by their number.
_MAPS = {3: "ncw", 4: "nchw", 5: "ncdhw"}
_CHANNELS_LAST = frozenset({"nhwc", "ndhwc"})

#: Functions that leave each channel of a map in its place.
_CHANNEL_BY_CHANNEL = (
    UNCHANGED
    | ADDS
    | MULTIPLIES
    | frozenset(
        "relu relu_ relu6 gelu silu hardswish hardsigmoid sigmoid tanh leaky_relu elu mish softplus prelu batch_norm "
        "group_norm instance_norm".split()
    )
)

#: Functions that combine rows number by number; and those that give rows of a table, or a vector as rows.
_BY_NUMBER = _CHANNEL_BY_CHANNEL | frozenset("layer_norm sub __sub__ __rsub__ div __truediv__ __rtruediv__".split())
_ROWS_OF = frozenset("embedding __getitem__ unsqueeze expand".split())

#: How the orders of sequences and volumes are told: as those of pictures.
_TOLD = {"ncw": "nchw", "nwc": "nhwc", "ncdhw": "nchw", "ndhwc": "nhwc"}


class _Rows:
    """Rows [n, numbers] whose numbers are in one order, because code combines them number by number.

    Attributes:
        keys: the tensors of the model that hold something for each number.
        taken_by: the matrices of the model that take such rows.
        maps: how such rows become maps that a convolution takes, or None if they do not.
    """

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.taken_by: set[str] = set()
        self.maps: Flattened | None = None
        self._whole = self

    @property
    def whole(self) -> _Rows:
        """Return the rows that these are a part of, after all that they were joined with; they themselves if none."""
        while self._whole is not self._whole._whole:
            self._whole = self._whole._whole
        return self._whole

    def join(self, other: _Rows) -> None:
        """Note that the numbers of OTHER are in the same order: from now on, the `whole` of both is the same, with the
        keys and matrices of both, and the maps of this one, or of OTHER if this one has none.
        """
        one, other = self.whole, other.whole
        if one is not other:
            one.keys |= other.keys
            one.taken_by |= other.taken_by
            one.maps = one.maps or other.maps
            other._whole = one


class _Shaped(NamedTuple):
    """Maps that code has made of rows of numbers.

    Attributes:
        rows: the rows.
        sizes: the sizes of the maps right after they were made of rows.
        dims: for each of their dimensions now, its place then.
    """

    rows: _Rows
    sizes: tuple[int, ...]
    dims: tuple[int, ...]


class FeatureMaps:
    """Follows the outputs of convolutions until code flattens them, and rows until a convolution takes them as maps.

    Args:
        moved: shows where code moved the numbers of maps to.
    """

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self._rows: dict[int, _Rows] = {}  # by the id of a tensor [n, numbers]
        self._made: dict[tuple[str, bool], _Rows] = {}  # by a key, and whether a product with it makes the rows
        self._shaped: dict[int, _Shaped] = {}
        self._orders: dict[int, str] = {}  # id of a feature map -> the letters of its dimensions: "nchw"
        self._merged: dict[int, tuple[int, int]] = {}  # the two dimensions that became the last one of a tensor

    def flattened(self, value: Any) -> Flattened | None:
        """Return how the feature maps in the rows of VALUE were flattened, by whatever calls: ("nchw", 512, 7, 7) for
        `x.flatten(1)` of maps with 512 channels. None unless each row holds all numbers of one map of several places,
        in an order of its dimensions that can be told (`_told`); maps with one spatial dimension have to have channels
        first.
        """
        base = self._moved.base_of(value)
        order = self._orders.get(id(base), "")
        if order[:1] != "n" or value.ndim < 2 or value.shape[-1] != prod(base.shape[1:]):
            return None
        sizes = dict(zip(order, base.shape, strict=True))
        h, w = sizes.get("d", 1) * sizes.get("h", 1), sizes["w"]
        found = self._moved.places(value) if h * w > 1 else None
        if found is None:
            return None
        row = found[1].flatten(0, -2)[0]
        numbers = torch.arange(len(row), device="cpu").reshape(base.shape[1:]) + row.min()
        turned = ("".join(order[dim] for dim in dims) for dims in permutations(range(1, base.ndim)))
        for after in sorted(turned, key=lambda letters: "n" + letters not in (*_MAPS.values(), *_CHANNELS_LAST)):
            told = _told("n" + after)
            if (
                told
                and after != "wc"
                and torch.equal(numbers.permute([order.index(x) - 1 for x in after]).flatten(), row)
            ):
                return Flattened(told, sizes["c"], h, w)
        return None

    def unflattened(self) -> dict[str, Flattened]:
        """Return key of a tensor that holds something for each number of a row -> the maps made of such rows. Tensors
        whose rows become no maps are left out.
        """
        return {key: maps for rows in self._made.values() if (maps := rows.whole.maps) for key in rows.whole.keys}

    def beside_maps(self) -> dict[str, Flattened]:
        """Return key of a matrix that takes rows -> the maps that are made of such rows as well. Matrices whose rows
        become no maps are left out.
        """
        return {key: maps for rows in self._made.values() if (maps := rows.whole.maps) for key in rows.whole.taken_by}

    def merged(self, value: Any) -> tuple[int, int] | None:
        """Return the sizes of the two dimensions that code made the last one of VALUE; None if it merged none."""
        return self._merged.get(id(value))

    def see(self, call: Call, keys: Mapping[int, str], *, rows: bool) -> None:
        """Note whether the result of CALL, a tensor, is a feature map, or has merged dimensions (`_merge`), and what
        CALL shows about rows and the maps made of them (`_see_rows`).

        A convolution with a result of three to five dimensions makes a feature map (`_MAPS`); a linear layer with a
        weight of the model makes none. For any other function, the first argument decides: if it is a feature map, so
        may be the result (`_after_features`).

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
        elif not layer and id(first) in self._orders:
            self._orders[id(call.result)] = _after_features(self._orders[id(first)], call, first)
        self._see_rows(call, keys)
        if first is not None and not rows:
            self._merge(call, first)

    def _see_rows(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note whether the result of CALL, a tensor, is rows [n, numbers] that a matrix of the model makes or a table
        holds, rows made of these number by number, or maps made of rows by a reshape that keeps the first dimension;
        which matrix takes rows; and how the first convolution takes the maps (`_made_of_rows`). KEYS is as in `see`.

        Maps stay so if CALL permutes their dimensions, or works on each channel for itself (`_keeps_channels`) and
        keeps their number of dimensions.
        """
        first, result = call.first, call.result
        shaped, rows = self._shaped.get(id(first)), self._rows.get(id(first))
        own = [(keys[id(tensor)], tensor) for tensor in call.tensors if id(tensor) in keys]
        given = [self._rows[id(tensor)] for tensor in call.tensors if self._are_rows(tensor, result)]
        if call.name in PRODUCTS and own:
            for taken in (self._rows[id(tensor)] for tensor in call.tensors if id(tensor) in self._rows):
                taken.whole.taken_by |= {key for key, tensor in own if tensor.ndim == 2}
            if result.ndim == 2:
                self._hold(result, [key for key, _ in own], [], product=True)
        elif result.ndim and ((given and call.name in _BY_NUMBER) or (own and call.name in _ROWS_OF)):
            held = [key for key, tensor in own if tensor.ndim and tensor.shape[-1] == result.shape[-1]]
            self._hold(result, held, given, product=False)
        elif rows is not None and call.name in ("view", "reshape", "unflatten") and result.shape[0] == first.shape[0]:
            self._shaped[id(result)] = _Shaped(rows, tuple(result.shape), tuple(range(result.ndim)))
        elif shaped is not None and call.name.startswith("conv"):
            shaped.rows.whole.maps = shaped.rows.whole.maps or _made_of_rows(shaped)
        elif shaped is not None and result.ndim == first.ndim:
            turned = _turned(call) if call.name in TURNS else [*range(first.ndim)]
            if turned is not None and (call.name in TURNS or _keeps_channels(call)):
                self._shaped[id(result)] = shaped._replace(dims=tuple(shaped.dims[dim] for dim in turned))

    def _are_rows(self, tensor: torch.Tensor, result: torch.Tensor) -> bool:
        """Return whether TENSOR is rows with as many numbers as RESULT, which has two dimensions."""
        return id(tensor) in self._rows and result.ndim == 2 and tensor.shape[-1] == result.shape[-1]

    def _hold(self, result: torch.Tensor, keys: Iterable[str], given: Iterable[_Rows], *, product: bool) -> None:
        """Note that RESULT is rows in the order of the rows GIVEN, and that the tensors KEYS hold something for each
        number: a matrix, and its bias, with which a PRODUCT makes the rows, or what is combined with them. All rows
        that one of KEYS makes, in this call and earlier ones, are in one order; so are all rows that one of KEYS is
        combined with.
        """
        made = self._rows[id(result)] = _Rows()
        for key in keys:
            made.whole.keys.add(key)
            self._made.setdefault((key, product), made).join(made)
        for rows in given:
            rows.join(made)

    def _merge(self, call: Call, first: torch.Tensor) -> None:
        """Note the sizes of the last two dimensions of FIRST, the first argument of CALL, if CALL flattens just these
        two, and FIRST has three or more. The note stays with a result that has the same numbers (`dropout`,
        `contiguous`).
        """
        if call.name in UNCHANGED and id(first) in self._merged:
            self._merged[id(call.result)] = self._merged[id(first)]
        elif call.name in ("flatten", "reshape", "view") and first.ndim > 2:
            *outer, a, b = first.shape
            if tuple(call.result.shape) == (*outer, a * b):
                self._merged[id(call.result)] = a, b


def _after_features(order: str, call: Call, first: Any) -> str:
    """Return the order of the dimensions of the result of CALL, "" if it is no feature map. FIRST, the first argument
    of CALL, is a feature map with its dimensions in ORDER ("nchw"; "ncw" and "ncdhw" for other convolutions).

    A result with as many dimensions as FIRST is a feature map in the same order, or in the new order if CALL permutes
    them. Exceptions: one with other sizes that was reshaped; and, behind a function that may mix channels (not
    `_keeps_channels`), such as a linear layer, one with one or three spatial dimensions.
    """
    if call.result.ndim != first.ndim:
        return ""
    if call.name in TURNS:
        return "".join(order[dim] for dim in _turned(call) or ()) if order else ""
    reshaped = call.name in ("view", "reshape") and call.result.shape != first.shape
    return order if not reshaped and (len(order) == 4 or _keeps_channels(call)) else ""


def _turned(call: Call) -> list[int] | None:
    return turned_to(call.name, call.args, call.first.ndim, call.kwargs)


def _told(order: str) -> str:
    """Return the ORDER of the dimensions of maps as that of pictures: "nchw" for "ncw" and "ncdhw", "nhwc" for "nwc"
    and "ndhwc", any order of four dimensions as it is; "" for others.
    """
    return _TOLD.get(order, order if len(order) == 4 else "")


def _keeps_channels(call: Call) -> bool:
    """Return whether CALL leaves each channel of the maps that it takes in its place: activations, norms, sums,
    products by element, pools, `pad` and `interpolate`.
    """
    return call.name in _CHANNEL_BY_CHANNEL or "pool" in call.name or call.name in ("pad", "interpolate")


def _made_of_rows(shaped: _Shaped) -> Flattened | None:
    """Return how the maps SHAPED, which a convolution takes as [n, c, …], were made of rows. None if the numbers of a
    row are in one channel or one place, if the first dimension was not n, or if the dimensions were in no order that is
    told (`_told`).
    """
    letters = dict(zip(shaped.dims, _MAPS.get(len(shaped.dims), ""), strict=False))
    order = "".join(letters.get(dim, "") for dim in range(len(shaped.sizes)))
    sizes = dict(zip(order, shaped.sizes, strict=False))
    c, h, w = sizes.get("c", 1), sizes.get("d", 1) * sizes.get("h", 1), sizes.get("w", 1)
    told = _told(order) if order.startswith("n") else ""
    return Flattened(told, c, h, w) if told and c > 1 and h * w > 1 else None


__all__ = ["FeatureMaps"]
