"""Where code moves the numbers of a layer's output to, by reshapes, turns, cuts and joins.

Code cuts `qkv(x)` into heads and parts, puts neighbours side by side, and flattens maps in countless ways. Whatever it
does, the same steps on a tensor of numbers 0, 1, 2 … show where each number comes from. Facts about parts, halves and
orders follow from these numbers, and not from the names and arguments of the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from ..call import ADDS, DIVIDES, JOINS, LOOKS, MULTIPLIES, TURNS, Call
from ..signature import PRODUCTS

#: Functions that only move numbers, and give some of them or all.
_MOVES = TURNS | frozenset(
    "__getitem__ narrow select index_select view reshape flatten unflatten ravel roll flip t squeeze unsqueeze expand"
    " expand_as split split_with_sizes chunk unsafe_chunk tensor_split unbind pixel_unshuffle unfold".split()
)
_JOINS = JOINS | {"stack", "hstack", "dstack"}
_TURNS = TURNS | {"t"}
#: Their results are sums over places, or heads beside places: no feature map of the channels that went in.
_MIXES = PRODUCTS | {"scaled_dot_product_attention"}
_LAST = frozenset("linear embedding layer_norm rms_norm".split())
#: Products with a matrix whose rows, or columns, are the outputs of a layer.
_LAYERS = frozenset("linear addmm matmul __matmul__ mm".split())
#: Functions of several tensors that compute each number of the result from the numbers in its place.
_IN_PLACE = (
    ADDS
    | MULTIPLIES
    | DIVIDES
    | frozenset("sub __sub__ __rsub__ where masked_fill addcmul lerp maximum minimum clamp type_as".split())
)

#: Steps are not repeated on tensors with more elements than this, nor more steps than this.
_MOST, _MOST_STEPS = 1 << 24, 64
#: Nor on tensors with more elements than this, if the numbers of all places are wanted; and outputs at more places than
#: this are not looked at one by one.
_MOST_PLACES, _MOST_LISTED = 1 << 20, 1 << 16


class Share(NamedTuple):
    """Which outputs of a layer a tensor holds, at whatever places: RUNS times WIDTH of them in a row, the first run
    from START on, each of the others STEP later. WIDTH is 0 if they are not regular.

    Attributes:
        rows: how many outputs the layer has.
        in_order: whether each dimension of the tensor has them in the order that the layer has them in.
    """

    rows: int
    start: int
    width: int
    step: int
    runs: int
    in_order: bool

    @property
    def is_whole(self) -> bool:
        """Return whether it is all outputs, in whatever order."""
        return self.width == self.rows

    @property
    def is_block(self) -> bool:
        """Return whether it is outputs in a row, in order."""
        return self.runs == 1 and self.width > 0 and self.in_order

    @property
    def heads(self) -> int:
        """Return how many heads have an equal share in it, in order: 12 for the outputs 0-63, 192-255, … of 2304. 1 for
        a single run of outputs; 0 if the runs do not repeat through all outputs, or are not in order.
        """
        regular = self.width > 0 and self.runs * self.step == self.rows and self.start + self.width <= self.step
        return self.runs if regular and self.in_order else 0

    def is_part(self, place: int, parts: int) -> bool:
        """Return whether it is the equal block PLACE, from 0, of PARTS: outputs 768-1535 of 2304 are part 1 of 3. False
        for a single part.
        """
        each = self.rows / parts
        return parts > 1 and self.is_block and (self.start, self.width) == (place * each, each)


class Moved:
    """Follows outputs of layers, and other tensors whose channels are known, as long as code only moves their numbers
    or changes each in its place.

    Attributes:
        channels: id of a tensor -> (whether its channels are the last dimension, or else the second; how many), if the
            function that gave it, or its sizes, show that.
    """

    def __init__(self) -> None:
        self.channels: dict[int, tuple[bool, int]] = {}
        self._layers: dict[int, tuple[str, ...]] = {}  # id of a tensor -> weights that have a row for each channel
        # id of a tensor -> (the call that gave it, which of the results it is, how many steps behind the base)
        self._moved: dict[int, tuple[Call, int | None, int]] = {}
        self._same: dict[int, Any] = {}  # id of a tensor -> the tensor with the numbers that were changed in place
        self._shares: dict[int, Share | None] = {}

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note where the numbers in the result of CALL come from. KEYS has id of a parameter or buffer -> its key.

        - CALL only moves or joins numbers (`permute`, `cat`), and one of its tensors, weights aside, is followed: each
          result is followed, through 64 such calls at most.
        - CALL is no layer and no other product, its result has the sizes of a tensor that is followed, and this is its
          only tensor but weights, or CALL combines numbers place by place (a sum): the result has the same numbers. If
          CALL combines several such tensors that are followed, none of them may have been moved (`_agree`).

        The channels of any other result are noted (`_note_channels`), also of what is moved, for what is computed from
        it. Nothing is noted of a result that is the first argument itself, or has no numbers of its arguments.
        """
        if call.result is call.first or call.name in LOOKS or _takes_sizes(call.name):
            return
        data = [tensor for tensor in call.tensors if id(tensor) not in keys]
        followed = [tensor for tensor in data if self._root(tensor) is not None]
        moves = _moves(call)
        product = call.name in _MIXES or call.name.startswith("conv")
        if not followed or (product and not moves):
            self._note_channels(call, data, keys)
        elif moves:
            steps = 1 + max(self._steps(tensor) for tensor in followed)
            for place, one in enumerate(_results(call)):
                if steps <= _MOST_STEPS:
                    self._moved[id(one)] = call, place if one is not call.result else None, steps
            self._note_channels(call, data, keys)
        else:
            alike = [tensor for tensor in followed if _shape(tensor) == _shape(call.result)]
            if alike and (len(data) == 1 or (call.name in _IN_PLACE and self._agree(alike))):
                self._same[id(call.result)] = self._root(alike[0])
            else:
                self._note_channels(call, data, keys)

    def _root(self, tensor: Any) -> Any:
        """Return the tensor that has the numbers of TENSOR in the same places: TENSOR itself, or the one that it was
        before calls changed each number in its place (`relu`). None if TENSOR is not followed.
        """
        if id(tensor) in self._same:
            return self._same[id(tensor)]
        return tensor if id(tensor) in self._moved or id(tensor) in self.channels else None

    def _steps(self, tensor: Any) -> int:
        root = id(self._root(tensor))
        return self._moved[root][2] if root in self._moved else 0

    def _agree(self, tensors: list[Any]) -> bool:
        """Return whether TENSORS, all of one size, may be combined without losing track of their channels: there is
        only one, or none was moved and all have as many channels, in the same dimension.
        """
        roots = [id(self._root(tensor)) for tensor in tensors]
        still = not any(root in self._moved for root in roots)
        return len(tensors) == 1 or (still and len({self.channels[root] for root in roots}) == 1)

    def _note_channels(self, call: Call, data: list[Any], keys: Mapping[int, str]) -> None:
        """Note in `channels` which dimension of each result of CALL has the channels, and how many. For `linear`,
        `embedding`, `layer_norm`, `rms_norm`, `batch_norm` and convolutions, the function says this; for another
        product of data with one weight, of KEYS, behind it, its last dimension has them, if the weight has a dimension
        of this size. For another function, also for other norms, it follows from the first tensor of DATA, the tensors
        in CALL that are no weights, whose channels are known and seen in the sizes of the result (`_passed_on`).
        Nothing is noted if there is none, for other products (`matmul`, an attention), and for results with fewer than
        two dimensions.
        Also note which layers made the channels (`_note_layers`).
        """
        weights = [tensor for tensor in call.tensors if id(tensor) in keys and tensor.ndim > 1]
        if data and isinstance(call.result, torch.Tensor) and not _moves(call):
            self._note_layers(call, data[0], weights, keys)
        for one in _results(call):
            shape = _shape(one)
            if shape is None or len(shape) < 2:
                continue
            if call.name in _LAST or call.name.startswith("conv") or call.name == "batch_norm":
                last = call.name in _LAST
                self.channels[id(one)] = last, shape[-1 if last else 1]
            elif call.name in PRODUCTS:
                behind = len(weights) == len(data) == 1 and call.tensors[0] is not weights[0]
                if behind and shape[-1] in weights[0].shape[-2:]:
                    self.channels[id(one)] = True, shape[-1]
            elif call.name not in _MIXES:
                known = (self.channels.get(id(self._root(tensor))) for tensor in data)
                found = next(filter(None, (_passed_on(held, call.name, shape) for held in known if held)), None)
                if found is not None:
                    self.channels[id(one)] = found

    def _note_layers(self, call: Call, first: Any, weights: list[Any], keys: Mapping[int, str]) -> None:
        """Note the keys of the weights that have a row for each channel of the result of CALL: of a linear layer or a
        convolution, its only matrix (of WEIGHTS, the matrices in CALL that are in KEYS). If a convolution works on each
        channel of FIRST, its input, alone, the layers that made FIRST come before it; for `pad`, they are the only
        ones. Nothing is noted for other calls, or for several matrices.
        """
        before = self.layers_of(first)
        if call.name == "pad":
            self._layers[id(call.result)] = before
        elif len(weights) == 1 and (call.name in _LAYERS or call.name.startswith("conv")):
            (weight,) = weights
            alone = call.name.startswith("conv") and weight.shape[1] == 1 and weight.shape[0] == first.shape[1]
            self._layers[id(call.result)] = (*before * alone, keys[id(weight)])

    def was_moved(self, value: Any) -> bool:
        """Return whether the numbers of VALUE are followed, and were moved."""
        return id(self._root(value)) in self._moved

    def layers_of(self, value: Any) -> tuple[str, ...]:
        """Return the keys of the weights that have a row for each channel of the tensor that VALUE was made of
        (`base_of`): one, but of several convolutions of each channel alone. () if there is no such tensor, or if no
        layer made it.
        """
        base = self.base_of(value)
        return () if base is None else self._layers.get(id(base), ())

    def base_of(self, value: Any) -> Any:
        """Return the tensor with known channels that VALUE was made of, by calls that only move numbers or change each
        in its place: VALUE itself if there were none. If VALUE joins several, the first; None if it is not followed.
        """
        root = self._root(value)
        while root is not None and id(root) in self._moved:
            root = next(
                (base for one in self._moved[id(root)][0].tensors if (base := self._root(one)) is not None), None
            )
        return root

    def share_of(self, value: Any) -> Share | None:
        """Return which of the channels of the tensor that VALUE was made of (`base_of`) are in VALUE, at whatever
        places: the share is whole if VALUE has all channels of one place. Tensors from elsewhere that are joined with
        them do not count. None if VALUE is not followed, or if its numbers come from several tensors.
        """
        root = self._root(value)
        if root is None:
            return None
        if id(root) not in self._shares:
            found = self._numbers(root, self._channel_numbers, foreign=-1)
            self._shares[id(root)] = None if found is None else _share(found[1], self.channels[id(found[0])][1])
        return self._shares[id(root)]

    def channel_dim(self, value: Any) -> int | None:
        """Return the dimension of VALUE, from 0, along which it lists all channels of the tensor that it was made of
        (`base_of`), in order, each at all places: 1 for [b, c, h * w] of a map [b, c, h, w]. None if there is no such
        dimension (the channels were cut or reshaped to several, or are in another order), or if VALUE is not followed.
        """
        root = self._root(value)
        if id(root) in self.channels and id(root) not in self._moved:
            return root.ndim - 1 if self.channels[id(root)][0] else 1
        found = self._numbers(value, self._channel_numbers)
        if found is None:
            return None
        base, numbers = found
        wide = self.channels[id(base)][1]
        dims = [dim for dim, size in enumerate(numbers.shape) if size > 1 and numbers.stride(dim)]
        listed = len(dims) == 1 and numbers.shape[dims[0]] == wide and numbers.stride(dims[0]) == 1
        return dims[0] if listed else None

    def places(self, value: Any) -> tuple[Any, Any] | None:
        """Return (the tensor with known channels that all numbers in VALUE come from, for each number in VALUE its
        index in that tensor, flattened). None if they come from several tensors, if that is not known, or if VALUE has
        more than a million elements.
        """
        return self._numbers(value, _indices) if value.numel() <= _MOST_PLACES else None

    def _channel_numbers(self, base: Any) -> Any:
        """Return the number of its channel for each number in BASE, without memory for each of them."""
        last, wide = self.channels[id(base)]
        sizes = [1] * base.ndim
        sizes[-1 if last else 1] = wide
        return torch.arange(wide, device="cpu").reshape(sizes).expand(base.shape)

    def _numbers(
        self, value: Any, of_base: Callable[[Any], Any], *, foreign: int | None = None
    ) -> tuple[Any, Any] | None:
        """Return (the tensor that VALUE was made of, numbers in the sizes of VALUE): OF_BASE gives a number for each
        element of the former, and the calls in between move them as they moved the elements.

        Tensors that are joined with it and are not followed get the number FOREIGN. None if they are there and FOREIGN
        is None, if VALUE was made of several tensors or is not followed, or if a call does not work on such numbers.
        """
        bases: list[Any] = []
        numbers = self._repeat(value, of_base, foreign, bases, {})
        return None if numbers is None or not bases else (bases[0], numbers)

    def _repeat(
        self, value: Any, of_base: Callable[[Any], Any], foreign: int | None, bases: list[Any], known: dict[int, Any]
    ) -> Any:
        """Return the numbers in the sizes of VALUE, as `_numbers` does, or None. BASES gets the tensor that VALUE was
        made of, KNOWN id of a tensor -> its numbers. Tensors with more than 16 million elements have none.
        """
        root = self._root(value)
        if root is None or not isinstance(root, torch.Tensor) or root.numel() > _MOST:
            apart = root is None and isinstance(value, torch.Tensor) and value.numel() <= _MOST
            return torch.full(value.shape, foreign, device="cpu") if apart and foreign is not None else None
        if id(root) not in known:
            known[id(root)] = self._repeat_last(root, of_base, foreign, bases, known)
        return known[id(root)]

    def _repeat_last(
        self, root: Any, of_base: Callable[[Any], Any], foreign: int | None, bases: list[Any], known: dict[int, Any]
    ) -> Any:
        """Return the numbers of ROOT, a tensor that is followed, as `_repeat` does: those of OF_BASE if it was not
        moved, else what the call that gave it makes of the numbers of its arguments. None if BASES has another tensor
        already, if an argument has no numbers, or if the call raises an error or gives other sizes.
        """
        if id(root) not in self._moved:
            if bases and bases[0] is not root:
                return None
            bases[:] = [root]
            return of_base(root)
        call, place, _ = self._moved[id(root)]
        args, kwargs = list(call.args), dict(call.kwargs)
        at = 1 if call.name == "einsum" else 0
        given = args[at] if len(args) > at else next((kwargs[name] for name in _FIRST if name in kwargs), None)
        joined = given if call.name in _JOINS and isinstance(given, tuple | list) else None
        if joined is None and self._root(given) is None:
            return None
        parts = [self._repeat(part, of_base, foreign, bases, known) for part in ([given] if joined is None else joined)]
        if any(part is None for part in parts):
            return None
        for name in _FIRST:
            kwargs.pop(name, None)
        args[at : at + 1] = [parts[0] if joined is None else parts]
        try:
            function = _windows if _takes_windows(call) else _function(call.name)
            made = function(*args, **kwargs)
            made = made if place is None else made[place]
        except Exception:  # such as an index on another device
            return None
        return made if _shape(made) == _shape(root) else None


def _indices(base: Any) -> Any:
    """Return the index in BASE, flattened, of each of its numbers; None if BASE has more than a million."""
    if base.numel() > _MOST_PLACES:
        return None
    return torch.arange(base.numel(), device="cpu").reshape(base.shape)  # whatever device is the default


#: What torch calls its first argument, if it is given by name.
_FIRST = ("input", "self", "tensors")


def _function(name: str) -> Any:
    """Return the method NAME of a tensor, or, if there is none, the function NAME of torch."""
    return getattr(torch.Tensor, name, None) or getattr(torch, name)


def takes_parts(call: Call) -> bool:
    """Return whether CALL only moves numbers, and gives several tensors, or not all numbers of its first argument."""
    return call.name in _MOVES and not (
        isinstance(call.result, torch.Tensor) and call.result.numel() == call.first.numel()
    )


@cache
def _takes_sizes(name: str) -> bool:
    """Return whether the function NAME takes no numbers of its arguments (`zeros_like`, `new_ones`)."""
    return name.startswith("new_") or name.endswith("_like")


def _moves(call: Call) -> bool:
    """Return whether CALL only moves or joins numbers: one of `_MOVES`, `cat` and the like, an `unfold` that adds no
    zeros around, or an einsum of one tensor that sums up nothing ("nchw->nhwc").
    """
    if _takes_windows(call):
        padding = call.kwargs.get("padding", call.args[3] if len(call.args) > 3 else 0)
        return not any(padding) if isinstance(padding, tuple | list) else padding == 0
    if call.name == "einsum" and len(call.args) == 2 and isinstance(call.args[0], str):
        before, _, after = call.args[0].replace(" ", "").partition("->")
        return sorted(before) == sorted(after) and len({*after}) == len(after) and after.isalpha()
    return call.name in _MOVES or call.name in _JOINS


def _takes_windows(call: Call) -> bool:
    """Return whether CALL is of `torch.nn.functional.unfold`, and not of `Tensor.unfold`, which gives one dimension
    more than it takes.
    """
    return call.name == "unfold" and isinstance(call.result, torch.Tensor) and call.result.ndim < call.first.ndim


def _windows(numbers: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what `torch.nn.functional.unfold`, which takes no integers, makes of NUMBERS."""
    return torch.nn.functional.unfold(numbers.double(), *args, **kwargs).long()


def _results(call: Call) -> Iterator[Any]:
    return iter(call.result if isinstance(call.result, tuple | list) else [call.result])


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


def _share(numbers: Any, rows: int) -> Share | None:
    """Return which of the outputs 0 to ROWS - 1 the tensor NUMBERS lists, in whatever dimensions and however often;
    numbers below 0 stand for no output. `width` is 0 if the outputs are not regular. None if NUMBERS lists no output,
    or after repeats are left out more than 65,536 numbers.
    """
    held = numbers[tuple(0 if step == 0 and size else slice(None) for step, size in _dims_of(numbers))]
    if bool((held < 0).any()):
        for dim in range(held.ndim):
            held = held.index_select(dim, (_slices(held, dim) >= 0).any(0).nonzero().reshape(-1))
    for dim in reversed(range(held.ndim)) if held.numel() > rows else ():
        held = _without_repeats(held, dim)
    if not held.numel() or held.numel() > _MOST_LISTED:
        return None
    in_order = all(bool((held.diff(dim=dim) >= 0).all()) for dim in range(held.ndim))
    listed = held.unique()
    ends = [*((listed.diff() != 1).nonzero().reshape(-1) + 1).tolist(), len(listed)]
    width = ends[0]
    apart = {*listed[::width].diff().tolist()}
    if int(listed[0]) < 0 or ends != [*range(width, len(listed) + 1, width)] or len(apart) > 1:
        return Share(rows, 0, 0, 0, 0, in_order)
    return Share(rows, int(listed[0]), width, apart.pop() if apart else rows, len(ends), in_order)


def _slices(numbers: Any, dim: int) -> Any:
    """Return NUMBERS as a matrix with a column for each index of its dimension DIM."""
    return numbers.movedim(dim, -1).reshape(-1, numbers.shape[dim])


def _without_repeats(numbers: Any, dim: int) -> Any:
    """Return NUMBERS with its first slices along DIM alone, if the others repeat these in order: the heads of the first
    picture, if DIM lists those of several. Else return NUMBERS.
    """
    slices = _slices(numbers, dim)
    again = (slices == slices[:, :1]).all(0).nonzero().reshape(-1).tolist()[1:]
    if not again or slices.shape[1] % again[0]:
        return numbers
    each = slices.unflatten(1, (-1, again[0]))
    return numbers.narrow(dim, 0, again[0]) if bool((each == each[:, :1]).all()) else numbers


def _dims_of(numbers: Any) -> Iterator[tuple[int, int]]:
    return zip(numbers.stride(), numbers.shape, strict=True)


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


__all__ = ["Moved", "Share", "takes_parts"]
