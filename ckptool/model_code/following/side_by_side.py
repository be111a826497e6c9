"""The order in which code puts neighbours side by side, and how it divides the channels of a convolution.

Swin Transformer (Liu et al., 2021) puts four neighbours side by side in the channels before each linear layer that
halves a picture. Code does so by slices (`x[:, 0::2, 0::2]`), by a reshape and a permute, or by `pixel_unshuffle`.
Whatever it does, the same steps on a tensor of numbers 0, 1, 2 … show where each channel comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from ..call import CUTS, JOINS, TURNS, Call
from ..signature import PRODUCTS, Layout, Neighbours

#: Functions that only move numbers, and give some of them or all.
_MOVES = frozenset(
    "__getitem__ narrow select view reshape flatten unflatten permute transpose swapaxes swapdims movedim moveaxis roll"
    " squeeze unsqueeze split split_with_sizes chunk tensor_split unbind contiguous clone pixel_unshuffle t".split()
)
_JOINS = JOINS | {"stack", "hstack", "dstack"}
_TURNS = TURNS | {"t"}
_NORMS = frozenset("layer_norm rms_norm batch_norm group_norm instance_norm".split())
#: Their results are sums over places, or heads beside places: no feature map of the channels that went in.
_MIXES = PRODUCTS | {"scaled_dot_product_attention"}
_LAST = frozenset("linear embedding layer_norm rms_norm".split())

_CUTS = CUTS | {"unbind"}
_RESHAPES = frozenset("view reshape unflatten".split())
#: Parts that code divides the output of a layer into, at most.
_MOST_PARTS = 4

#: Steps are not repeated on tensors with more elements than this.
_MOST = 1 << 20


class SideBySide:
    """Follows feature maps through a forward pass from the function that computes them to the layers that take them.

    Attributes:
        found: key of a weight -> the neighbours that the layer takes side by side.
        layouts: key of the weight of a convolution -> how code divides its output into parts.
    """

    def __init__(self) -> None:
        self.found: dict[str, Neighbours] = {}
        self.layouts: dict[str, Layout] = {}
        # id of a tensor -> (whether its channels are the last dimension, or the second; how many)
        self._channels: dict[int, tuple[bool, int]] = {}
        # id of a tensor -> (the call that gave it, which of the results it is)
        self._moved: dict[int, tuple[Call, int | None]] = {}
        self._made_by: dict[int, str] = {}  # id of a tensor -> key of the convolution that gave it

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note where the numbers in the result of CALL come from; in `found`, the neighbours that CALL takes, if it is
        a layer or a norm (`_note`); and in `layouts`, how CALL divides the output of a convolution, if it reshapes it
        (`_note_groups`) or cuts it into two to four parts (`_note_parts`).

        A result is followed back to the arguments of CALL if CALL only moves or joins numbers (`permute`, `cat`) and
        one of its tensors has known channels or is followed itself; or if CALL is no layer and takes one tensor that is
        followed, and no other but weights, and the result has its sizes (a norm, an activation). Nothing is noted of a
        result that is the first argument itself.

        Args:
            call: the call, after it has run.
            keys: id of a parameter or buffer -> its key.
        """
        layer = call.name == "linear" or call.name.startswith("conv")
        if layer or call.name in _NORMS:
            self._note(call, keys, norm=not layer)
        if call.result is call.first:
            return
        if call.name.startswith("conv") and len(call.args) > 1 and id(call.args[1]) in keys:
            self._made_by[id(call.result)] = keys[id(call.args[1])]
        self._note_groups(call)
        data = [tensor for tensor in call.tensors if id(tensor) not in keys]
        if call.name in _MOVES | _JOINS and any(
            id(tensor) in self._channels or id(tensor) in self._moved for tensor in data
        ):
            results = call.result if isinstance(call.result, tuple | list) else [call.result]
            for place, one in enumerate(results):
                self._moved[id(one)] = call, place if one is not call.result else None
            if call.name in _CUTS and isinstance(call.result, tuple | list) and 1 < len(call.result) <= _MOST_PARTS:
                self._note_parts(call.result)
        elif len(data) == 1 and id(data[0]) in self._moved and _shape(data[0]) == _shape(call.result) and not layer:
            self._moved[id(call.result)] = call, None  # a norm, an activation
        self._note_channels(call, data)

    def _note_groups(self, call: Call) -> None:
        """Note in `layouts` the two sizes that CALL reshapes the channels of a convolution's output to ("grouped"): [2,
        48, 6, 6] to [2, 6, 8, 6, 6] gives (6, 8). Nothing is noted if CALL changes other dimensions. The first note for
        a convolution stays.
        """
        key, before, after = self._made_by.get(id(call.first)), _shape(call.first), _shape(call.result)
        if key is None or before is None or after is None or call.name not in _RESHAPES:
            return
        if len(after) == len(before) + 1 and (*after[:1], *after[3:]) == (*before[:1], *before[2:]):
            self.layouts.setdefault(key, Layout("grouped", after[1:3]))

    def _note_parts(self, parts: Sequence[torch.Tensor]) -> None:
        """Note in `layouts` how PARTS divide the output of a convolution, if each has an equal share of its channels:
        "block" for one share after the other, "inside" for a share of each of several heads, with the sizes (heads,
        channels of each head in all PARTS). A "grouped" note for the layer is replaced, any other stays. Nothing is
        noted if PARTS do not come from a convolution, or divide its channels in another way.
        """
        bases: list[Any] = []
        numbers = [self._numbers(part, bases, {}) for part in parts]
        key = self._made_by.get(id(bases[0])) if bases else None
        known = self.layouts.get(key or "", Layout("grouped")).kind != "grouped"
        if key is None or known or any(one is None for one in numbers):
            return
        wide, inner = bases[0].shape[1], prod(bases[0].shape[2:])
        shares = [torch.unique(one // inner % wide).tolist() for one in numbers]
        size = wide // len(parts)
        first = next((n for n, channel in enumerate(shares[0]) if channel != n), size)  # as many of the first head
        step = first * len(parts)
        for place, share in enumerate(shares):
            start = place * first
            if share != [
                start + head * step + n for head in range(size // first if first else 0) for n in range(first)
            ]:
                return
        self.layouts[key] = Layout("block") if first == size else Layout("inside", (size // first, step))

    def _note_channels(self, call: Call, data: list[Any]) -> None:
        """Note in `_channels` which dimension of each result of CALL has the channels, and how many. For `linear`,
        `embedding`, `layer_norm`, `rms_norm`, `batch_norm` and convolutions, the function says this. For another
        function, also for other norms, it follows from the first tensor of DATA, the tensors in CALL that are no
        weights, whose channels are known and seen in the sizes of the result (`_passed_on`). Nothing is noted if there
        is none, for other products (`matmul`, an attention), and for results with fewer than two dimensions.
        """
        results = call.result if isinstance(call.result, tuple | list) else [call.result]
        for one in results:
            shape = _shape(one)
            if shape is None or len(shape) < 2:
                continue
            if call.name in _LAST or call.name.startswith("conv") or call.name == "batch_norm":
                last = call.name in _LAST
                self._channels[id(one)] = last, shape[-1 if last else 1]
            elif call.name not in _MIXES:
                known = (_passed_on(self._channels[id(t)], call.name, shape) for t in data if id(t) in self._channels)
                found = next(filter(None, known), None)
                if found is not None:
                    self._channels[id(one)] = found

    def _note(self, call: Call, keys: Mapping[int, str], *, norm: bool) -> None:
        """Note in `found` the neighbours that stand side by side in the first argument of CALL (`_neighbours`): for the
        weight of a layer, or for all parameters and buffers of a norm (NORM). The first note for a key stays. Nothing
        is noted if that argument was not moved by code after a layer, or has no neighbours side by side.
        """
        taken = call.values[1:] if norm else call.args[1:2]
        weights = [keys[id(value)] for value in taken if id(value) in keys]
        if id(call.first) in self._moved and call.first.ndim > 1 and not all(key in self.found for key in weights):
            found = self._neighbours(call.first, last=call.name in _LAST)
            if found is not None:
                self.found |= {key: self.found.get(key, found) for key in weights}

    def _neighbours(self, value: torch.Tensor, *, last: bool) -> Neighbours | None:
        """Return the neighbours that stand side by side in the channels of the tensor VALUE, which are its last
        dimension (LAST) or its second.

        None if the numbers in VALUE do not all come from one feature map with known channels, two or more; if each
        place in VALUE holds the channels of one place in this map only, or those of all places (it is flattened); or if
        the order is not regular (all channels of one neighbour after the other, or all neighbours of one channel).
        """
        bases: list[Any] = []
        numbers = self._numbers(value, bases, {})
        if numbers is None or len(bases) != 1 or id(bases[0]) not in self._channels:
            return None
        at_end, wide = self._channels[id(bases[0])]
        row = (numbers.flatten(0, -2)[0] if last else numbers[0].reshape(numbers.shape[1], -1)[:, 0]).tolist()
        shape = _shape(bases[0]) or ()
        count = len(row) // wide
        if wide < 2 or len(row) % wide or not 1 < count < prod(shape) // (wide * shape[0]):
            return None  # a map that is flattened is no neighbourhood
        inner = 1 if at_end else prod(shape[2:])
        channels = [n // inner % wide for n in row]
        places = [n // (inner * wide) * inner + n % inner for n in row]
        rank = {place: n for n, place in enumerate(sorted({*places}))}
        by_channel = channels[0] == channels[1]
        order = [rank[place] for place in (places[:count] if by_channel else places[::wide])]
        made = (
            [(c, n) for c in range(wide) for n in order] if by_channel else [(c, n) for n in order for c in range(wide)]
        )
        if len(rank) != count or made != [(c, rank[place]) for c, place in zip(channels, places, strict=True)]:
            return None
        return Neighbours(tuple(order), by_channel)

    def _numbers(self, value: Any, bases: list[Any], known: dict[int, Any]) -> Any:
        """Return a tensor of the sizes of VALUE with, for each number in VALUE, its index in the base, the flattened
        tensor that all numbers come from. None if they come from several tensors, if that is not known, or if VALUE has
        more than a million elements.

        BASES, an empty list at first, gets the base as its only member. KNOWN has id of a tensor -> the result for it,
        and gets those that are new.
        """
        if id(value) not in known:
            known[id(value)] = self._worked_out(value, bases, known)
        return known[id(value)]

    def _worked_out(self, value: Any, bases: list[Any], known: dict[int, Any]) -> Any:
        if not isinstance(value, torch.Tensor) or value.numel() > _MOST:
            return None
        if id(value) not in self._moved:
            if bases and bases[0] is not value:
                return None
            bases[:] = [value]
            return torch.arange(value.numel(), device="cpu").reshape(value.shape)  # whatever device is the default
        call, place = self._moved[id(value)]
        joins = call.name in _JOINS and isinstance(call.first, tuple | list)
        parts = [self._numbers(part, bases, known) for part in (call.first if joins else [call.first])]
        if any(part is None for part in parts):
            return None
        if call.name not in _MOVES | _JOINS:
            return parts[0]  # a norm, an activation
        try:
            made = _function(call.name)(parts if joins else parts[0], *call.args[1:], **call.kwargs)
        except Exception:  # such as an index on another device, or an argument that is given by its name
            return None
        return made if place is None else made[place]


def _function(name: str) -> Any:
    """Return the method NAME of a tensor, or, if there is none, the function NAME of torch."""
    return getattr(torch.Tensor, name, None) or getattr(torch, name)


def _passed_on(held: tuple[bool, int], name: str, shape: tuple[int, ...]) -> tuple[bool, int] | None:
    """Return (whether channels are the last dimension, or else the second; how many) for a result with the sizes SHAPE
    of the function NAME, of a tensor with HELD, the same two of its own channels.

    They are the dimension of the two that has as many. If both have, they stay where they were, or None if NAME turns
    dimensions (`permute`). None if neither has.
    """
    wide = held[1]
    ends = shape[1] == wide, shape[-1] == wide
    if all(ends):
        return held if name not in _TURNS else None
    return (ends[1], wide) if any(ends) else None


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


__all__ = ["SideBySide"]
