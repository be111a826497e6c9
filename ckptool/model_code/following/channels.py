"""Find which layers the channels of a tensor come from, through concatenations, and which layers feed which.

A layer that takes concatenated branches has their order in its weights, and no shape shows that order. Only parallel
branches count: if one branch feeds another, as in a skip connection, code can register them in only one order.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ..call import JOINS, Call, flat
from ..signature import Parts

#: What gives channels in the last dimension.
_ROWS = frozenset("linear embedding embedding_bag".split())


class Channels:
    """Follows the channels of feature maps through a forward pass, from the layer that computes them to the layers that
    take them.

    Args:
        buffers: keys of buffers, which are no weights.
    Attributes:
        joined: key of a weight -> the layers whose concatenated outputs it takes, each with its number of channels; of
            several concatenations that it takes, those of the first. Layers of which one feeds another are left out
            (`_join`).
        places: key of a weight -> the place of its output, from 0, among those of other layers that are concatenated
            with it, in the first such concatenation.
        bit: key of a weight -> the number of its bit in `before`, in the order in which weights are used.
        before: key of a weight -> the weights that its first input was computed from, and those with a lower number
            that meet their first input in the same call (for a bias, the weight of its layer), as a set of bits.
    """

    def __init__(self, buffers: Container[str] = ()) -> None:
        self._buffers = buffers
        self.joined: dict[str, Parts] = {}
        self.places: dict[str, int] = {}
        self._of: dict[int, tuple[bool, Parts]] = {}  # whether they are the last dimension or the second; and what
        self.bit: dict[str, int] = {}
        self.before: dict[str, int] = {}
        self._behind: dict[int, int] = {}  # id of a tensor -> the weights that it was computed from, as a set of bits
        self._only_weights: set[int] = set()  # ids of tensors that were computed from weights alone
        self._key_of: dict[int, str] = {}  # number of a bit -> key of its weight
        self._waiting = 0  # the weights that met no data yet, as a set of bits

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note, for the result of CALL, which layers its channels come from (`_channels_of`) and which weights it was
        computed from (`_met`; for several results, `_note_several`); and in `joined`, `places`, `bit` and `before` what
        CALL shows of the weights in it. The results of functions such as `new_zeros` and `zeros_like`, which take no
        numbers of their arguments, come from no weights.

        Args:
            call: the call, after it has run.
            keys: id of a parameter or buffer -> its key.
        """
        made = call.name.startswith("new_") or call.name.endswith("_like")  # which takes no numbers of its arguments
        tensors = () if made else call.tensors
        behind = self._met(tensors, keys)
        if getattr(call.result, "shape", None) is None:
            self._note_several(call, behind)
            return
        found = self._channels_of(call, keys)
        if found is not None:
            self._of[id(call.result)] = found
        if behind:
            self._behind[id(call.result)] = behind
            if all(id(v) in self._only_weights or id(v) in keys for v in tensors):
                self._only_weights.add(id(call.result))

    def is_of_weights(self, tensor: object) -> bool:
        """Return whether TENSOR was computed from weights, or from weights and buffers, and from nothing else. False
        for a weight itself.
        """
        return id(tensor) in self._only_weights

    def _note_several(self, call: Call, behind: int) -> None:
        """Note that each tensor in the tuple or list that CALL returned was computed from the weights BEHIND, a set of
        bits; or, if CALL is `__setitem__`, that the tensor that it changed was. Nothing is noted of other results, or
        without weights.
        """
        if behind and isinstance(call.result, tuple | list):
            # a torch.Size is a tuple as well, and small integers are shared, so that their ids mean nothing
            self._behind.update((id(part), behind) for part in flat(call.result) if hasattr(part, "shape"))
        elif behind and call.name == "__setitem__":
            self._behind[id(call.args[0])] = behind

    def _channels_of(self, call: Call, keys: Mapping[int, str]) -> tuple[bool, Parts] | None:
        """Return (whether channels are the last dimension, or else the second; the layers that they come from, each
        with its number of channels, in order) of the result of CALL; None if they are not known. KEYS has id of a
        parameter or buffer -> its key.

        The channels of a layer are its own; those of a concatenation, those of all its parts (`_side_by_side`); those
        of any other function, those of its first argument, if the result has as many in their dimension (`_passed_on`).
        Also note in `joined` which concatenated layers the weights in CALL take, if it is a linear layer, a convolution
        or a batch norm, and in `places` the places of the layers that CALL concatenates.
        """
        weight = keys.get(id(call.args[1])) if len(call.args) > 1 else None
        is_layer = call.name.startswith("conv") or call.name in _ROWS
        if weight is not None and weight not in self._buffers and is_layer and call.args[1].ndim > 1:
            return self._of_layer(call, weight)
        if call.name in JOINS and isinstance(call.first, tuple | list):
            dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
            return self._side_by_side(call.first, dim, len(call.result.shape))
        held = self._of.get(id(call.first))
        if held is None:
            return None
        if call.name == "batch_norm":
            for value in flat((call.args[1:], call.kwargs)):
                if id(value) in keys:
                    self._join(keys[id(value)], held[1])
        return self._passed_on(held, call.result.shape)

    def _of_layer(self, call: Call, weight: str) -> tuple[bool, Parts]:
        """Return (whether channels are the last dimension, ((WEIGHT, number of channels),)) of the output of a layer:
        True for a linear layer or an embedding, False for a convolution. CALL is the call of the layer, WEIGHT the key
        of its weight.

        If a linear layer or convolution takes the concatenated outputs of two or more layers, also note these in
        `joined` (`_join`: not if one of them feeds another), if the channels of its input are known, in the dimension
        in which it takes them, and as many as its weight takes (in a grouped convolution they are not).
        """
        last = call.name in _ROWS
        held = self._of.get(id(call.first))
        inputs = call.args[1].shape[0 if call.name.startswith("conv_transpose") else 1]
        fits = held is not None and held[0] is last and sum(n for _, n in held[1]) == inputs
        if held is not None and fits and not call.name.startswith("embedding"):
            self._join(weight, held[1])
        return last, ((weight, call.result.shape[-1 if last else 1]),)

    def _met(self, tensors: Iterable[Any], keys: Mapping[int, str]) -> int:
        """Return the weights that TENSORS, the arguments of a call, are or were computed from, as a set of bits. KEYS
        has id of a parameter or buffer -> its key. Buffers do not count.

        If one of TENSORS is data (no weight or buffer, and not computed from these alone), also set `before` of the
        weights that meet data here for the first time, to those that the data was computed from (`_note_before`).
        """
        data, own, meets = 0, 0, False
        for value in tensors:
            if id(value) in keys:
                own |= self._bit_of(keys[id(value)])
            elif id(value) in self._only_weights:
                own |= self._behind[id(value)]
            else:
                data |= self._behind.get(id(value), 0)
                meets = True
        if meets:
            self._note_before(own & self._waiting, data)
        return data | own

    def _bit_of(self, key: str) -> int:
        """Return the set of bits with the weight KEY alone, which gets a number in `bit` when it is used for the first
        time; 0 for a buffer.
        """
        if key in self._buffers:
            return 0
        if key not in self.bit:
            self.bit[key] = len(self.bit)
            self._key_of[self.bit[key]] = key
            self._waiting |= 1 << self.bit[key]
        return 1 << self.bit[key]

    def _note_before(self, waiting: int, data: int) -> None:
        """Set `before` of each of the weights WAITING, which meet data for the first time in one call, to the weights
        DATA that the data was computed from, and those of WAITING with a lower number. Also take WAITING out of
        `_waiting`. All of these are sets of bits.
        """
        while waiting:
            low = waiting & -waiting
            self.before[self._key_of[low.bit_length() - 1]] = data
            data |= low
            self._waiting &= ~low
            waiting &= ~low

    def learned(self, value: Any) -> bool:
        """Return whether the tensor VALUE is the result of a call that took a weight or another such result (or was
        changed by a `__setitem__` with one): not an input, and not computed from inputs alone.
        """
        return id(value) in self._behind

    def made_with(self, value: Any, key: str) -> bool:
        """Return whether the tensor VALUE was computed with the weight KEY."""
        return key in self.bit and bool(self._behind.get(id(value), 0) >> self.bit[key] & 1)

    def _side_by_side(self, parts: Any, dim: Any, rank: int) -> tuple[bool, Parts] | None:
        """Return (whether channels are the last dimension, the layers whose outputs are concatenated, in order, each
        with its number of channels) for a concatenation of the tensors PARTS along DIM to RANK dimensions. A part that
        is itself concatenated counts with its layers.

        Each of these layers also gets its place in `places`, counted from 0, unless it has one. None if DIM is not the
        dimension of the channels, if some parts have them in another one, or if one part comes from an unknown layer.
        """
        held = [self._of.get(id(part)) for part in parts]
        if not isinstance(dim, int) or any(one is None for one in held) or len({one[0] for one in held if one}) != 1:
            return None
        last = next(one[0] for one in held if one)
        if dim % rank != (rank - 1 if last else 1):
            return None
        made = tuple(part for one in held if one for part in one[1])
        for place, (key, _) in enumerate(made):
            self.places.setdefault(key, place)
        return last, made

    @staticmethod
    def _passed_on(held: tuple[bool, Parts], shape: Any) -> tuple[bool, Parts] | None:
        """Return the channels, as `_channels_of` does, of a result with the sizes SHAPE of a function of a tensor with
        the channels HELD: HELD, if the result has as many in the same dimension (the last or the second). A matrix has
        them in its last dimension, since maps of one pixel are flat. None if that size differs.
        """
        last, parts = held
        wide = sum(n for _, n in parts)
        if len(shape) == 2 and shape[1] == wide:
            return True, parts
        return held if len(shape) > 2 and shape[-1 if last else 1] == wide else None

    def _join(self, key: str, parts: Parts) -> None:
        """Note in `joined` that the weight KEY takes the concatenated outputs of the layers PARTS, (key, number of
        channels) each.

        Nothing is noted if there is one layer only, if a layer is there twice, if the input of one of them was computed
        from another one, or if KEY has a note already.
        """
        names = [name for name, _ in parts]
        apart = len(set(names)) == len(names) and not any(
            self.before.get(other, 0) >> self.bit[name] & 1 for name in names for other in names
        )
        if len(parts) > 1 and apart:
            self.joined.setdefault(key, parts)
