"""The order in which code puts neighbours side by side in the channels of a layer.

Swin Transformer (Liu et al., 2021) puts four neighbours side by side in the channels before each linear layer that
halves a picture. Code does so by slices (`x[:, 0::2, 0::2]`), by a reshape and a permute, or by `pixel_unshuffle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod

import torch

from ..call import Call
from ..signature import Neighbours
from .moved import Moved

_NORMS = frozenset("layer_norm rms_norm batch_norm group_norm instance_norm".split())
_LAST = frozenset("linear embedding layer_norm rms_norm".split())


class SideBySide:
    """Finds the neighbours of a feature map that code puts side by side in what a layer takes.

    Args:
        moved: shows where code moved the numbers of maps to.
    Attributes:
        found: key of a weight -> the neighbours that the layer takes side by side.
    """

    def __init__(self, moved: Moved) -> None:
        self.found: dict[str, Neighbours] = {}
        self._moved = moved

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note in `found` the neighbours that CALL takes, if it is a layer or a norm (`_note`). KEYS has id of a
        parameter or buffer -> its key.
        """
        layer = call.name == "linear" or call.name.startswith("conv")
        if layer or call.name in _NORMS:
            self._note(call, keys, norm=not layer)

    def _note(self, call: Call, keys: Mapping[int, str], *, norm: bool) -> None:
        """Note in `found` the neighbours that stand side by side in the first argument of CALL (`_neighbours`): for the
        weight of a layer, or for all parameters and buffers of a norm (NORM). The first note for a key stays. Nothing
        is noted if that argument was not moved by code after a layer, or has no neighbours side by side.
        """
        taken = call.values[1:] if norm else call.args[1:2]
        weights = [keys[id(value)] for value in taken if id(value) in keys]
        if self._moved.was_moved(call.first) and call.first.ndim > 1 and not all(key in self.found for key in weights):
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
        base = self._moved.base_of(value)
        if base is None:
            return None
        (at_end, wide), shape = self._moved.channels[id(base)], tuple(base.shape)
        count, rest = divmod(value.shape[-1 if last else 1], wide)
        if wide < 2 or rest or not 1 < count < prod(shape) // (wide * shape[0]):
            return None  # a map that is flattened is no neighbourhood
        found = self._moved.places(value)
        if found is None:
            return None
        numbers = found[1]
        row = (numbers.flatten(0, -2)[0] if last else numbers[0].reshape(numbers.shape[1], -1)[:, 0]).tolist()
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
        ordered = sorted(rank)
        in_line = len({b - a for a, b in pairwise(ordered)}) == 1
        return Neighbours(tuple(order), by_channel, in_line)


__all__ = ["SideBySide"]
