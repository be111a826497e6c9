"""How code splits the output of a layer, such as a fused projection, and what it does with the parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..call import ADDS, CUTS, MULTIPLIES, TURNS, Call, every_second
from ..signature import Layout
from .feature_maps import CHANNEL_BY_CHANNEL
from .use import Uses

#: Functions that may put a dimension of one element somewhere.
_ONES = frozenset({"__getitem__", "unsqueeze", "squeeze"})

#: Functions that only move what they take in their dimensions.
_PLACES = frozenset("__getitem__ unsqueeze squeeze view reshape expand to contiguous type float".split())


class _Output(NamedTuple):
    """The output of a linear layer, which may hold several projections.

    Attributes:
        key: the key of the layer's weight.
        rows: how many outputs it has.
    """

    key: str
    rows: int


class _Part(NamedTuple):
    """A part of the output of a layer: number `place`, from 0, of `parts` parts."""

    key: str
    place: int
    parts: int


class Projections:
    """Follows the outputs of linear layers, and the maps of convolutions, until code splits them.

    Args:
        uses: gets `layout`, `heads` and `modulates` of facts.
        comes_from: whether a tensor was computed from the output of the weight with this key, and of no other.
    """

    def __init__(self, uses: Uses, comes_from: Callable[[Any, str], bool]) -> None:
        self._uses = uses
        self._comes_from = comes_from
        self._outputs: dict[int, _Output] = {}
        self._grouped: dict[int, _Output] = {}  # outputs that were reshaped to a dimension more
        self._parts: dict[int, _Part] = {}
        self._maps_of: dict[int, tuple[str, ...]] = {}  # the convolutions that have a row for each channel of a map

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note how CALL, which has run, splits the output of a layer, and what it does with a part of one. KEYS has id
        of a parameter or buffer -> its key.

        If CALL returned several tensors, `_divided` notes how; nothing else is noted then. If CALL returned one tensor:
        sums and products may modulate (`_modulated`); the result of a linear layer with a weight of the model is the
        output of this layer; the results of other functions, but convolutions, go on (`_go_on`); and maps of
        convolutions are noted (`_make_maps`).
        """
        if not isinstance(call.result, torch.Tensor):
            self._divided(call)
            return
        if call.name in ADDS | MULTIPLIES:
            self._modulated(call.name, call.args, call.result)
        key = keys.get(id(call.args[1])) if len(call.args) > 1 else None
        first = call.args[0] if call.args and isinstance(call.args[0], torch.Tensor) else None
        if call.name == "linear" and key is not None:
            self._outputs[id(call.result)] = _Output(key, call.args[1].shape[0])
        elif not call.name.startswith("conv") or call.result.ndim not in (3, 4, 5):
            self._go_on(call, first)
        if first is not None:
            self._make_maps(call, first, key)

    def _go_on(self, call: Call, first: Any) -> None:
        """Note what the result of CALL is, if its first argument FIRST is an output (`_after_output`), an output
        reshaped to one dimension more (`_after_grouped`), or a part (`_after_part`).
        """
        if id(first) in self._outputs:
            self._after_output(self._outputs[id(first)], call, first)
        elif id(first) in self._grouped:
            self._after_grouped(self._grouped[id(first)], call, first)
        elif id(first) in self._parts:
            self._after_part(self._parts[id(first)], call, first)

    def _after_output(self, what: _Output, call: Call, first: Any) -> None:
        """Note what the result of CALL is, whose first argument FIRST is the output WHAT:

        - the same output, if it has the sizes of FIRST, or if CALL is an index, `squeeze` or `unsqueeze` that keeps the
          number of elements (`x[:, None]`);
        - a reshaped one, if CALL reshapes FIRST to one dimension more;
        - nothing, for any other CALL, and for a part of FIRST (`x[..., :n]`, `narrow`).

        Also note the layout of the projection: "grouped" with its new sizes, if CALL reshapes it to more dimensions
        (`_reshaped`); "block", if CALL takes a part of it, along whatever dimension and with whatever steps.
        """
        if call.name in _ONES and call.result.numel() == first.numel():
            self._outputs[id(call.result)] = what
        elif call.name in ("reshape", "view", "unflatten", "rearrange") and call.result.ndim > first.ndim:
            self._reshaped(what, first, call.result)
            if call.result.ndim == first.ndim + 1:
                self._grouped[id(call.result)] = what
        elif call.name in ("__getitem__", "narrow"):
            self._layout(what.key, "block")
        elif call.result.shape == first.shape:
            self._outputs[id(call.result)] = what

    def _after_grouped(self, what: _Output, call: Call, first: Any) -> None:
        """Note that the result of CALL is the reshaped output WHAT like FIRST, its first argument, if CALL turns
        dimensions (`permute`, `transpose`) and keeps the size of the last.

        Also note that the projection is split "inside" (`_inside`), if CALL is an index that takes a part of the last
        dimension only, and not every second element.
        """
        cut = call.result.shape[:-1] == first.shape[:-1] and call.result.shape != first.shape
        if call.name == "__getitem__" and cut and not every_second(call.args):
            self._inside(what.key)
        if call.name in TURNS and call.result.shape[-1] == first.shape[-1]:
            self._grouped[id(call.result)] = what

    def _after_part(self, what: _Part, call: Call, first: Any) -> None:
        """Note that the result of CALL is the part WHAT of an output like FIRST, its first argument, if CALL only
        reshapes, indexes, expands or converts FIRST (not `permute` and the like), and keeps the number of elements.

        Also note the number of heads (`heads`) of the projection, if CALL reshapes the last dimension to two, heads and
        width; the first note stays.
        """
        split = call.name in ("reshape", "view", "unflatten") and call.result.ndim == first.ndim + 1
        if split and what.key in self._uses and math.prod(call.result.shape[-2:]) == first.shape[-1]:
            facts = self._uses[what.key].facts
            facts.heads = facts.heads or call.result.shape[-2]
        if call.name in _PLACES and call.result.numel() == first.numel():
            self._parts[id(call.result)] = what

    def _divided(self, call: Call) -> None:
        """Note in the `layout` of a linear layer how CALL, which returned several tensors, divides the layer's output,
        its first argument:

        - "inside", if the output was reshaped (`_reshaped`), and CALL cuts it along the last of its new dimensions;
        - "block", if the output was not reshaped, and CALL is `unbind`, or cuts a dimension with as many elements as
          the layer has outputs. Blocks of one shape are also noted as parts of the output, but not those of `unbind`.

        Convolutions get "block" if CALL cuts the channels of a map that they made, before anything mixed these. Nothing
        is noted for any other CALL. A layer keeps its first layout, but "grouped" becomes "inside".
        """
        if not isinstance(call.result, tuple | list):
            return
        first = call.args[0] if call.args else None
        maps = self._maps_of.get(id(first), ()) if call.name in CUTS else ()
        if maps and first is not None and sum(part.shape[1] for part in call.result) == first.shape[1]:
            for key in maps:
                self._layout(key, "block")
        if id(first) in self._grouped and call.name in CUTS and call.divides_last:
            self._inside(self._grouped[id(first)].key)
        what = self._outputs.get(id(first))
        if what is not None and (call.name == "unbind" or (call.name in CUTS and call.divided_size == what.rows)):
            self._layout(what.key, "block")
            if call.name != "unbind" and len({getattr(part, "shape", None) for part in call.result}) == 1:
                for place, part in enumerate(call.result):
                    self._parts[id(part)] = _Part(what.key, place, len(call.result))

    def _modulated(self, name: str, args: Any, result: torch.Tensor) -> None:
        """Note in `modulates` of a layer that the function NAME, called with ARGS, adds a part of the layer's output to
        another tensor ("add"), or multiplies another tensor by this part ("mul"). RESULT is what NAME returned.

        With a number or a tensor of no dimensions (`1 + scale`), nothing is noted, but RESULT counts as the same part.
        If the layer's output has two parts, a part that multiplies a tensor that was computed from this layer alone is
        a gate, and not noted. The first note for a part stays.
        """
        for part, other in itertools.permutations(args[:2]):
            what = self._parts.get(id(part))
            if what is None or what.key not in self._uses:
                continue
            if what.parts == 2 and name in MULTIPLIES and self._comes_from(other, what.key):
                continue  # a gate and what it is multiplied with
            if not isinstance(other, torch.Tensor) or other.ndim == 0:
                self._parts[id(result)] = what  # such as 1 + scale
                continue
            facts = self._uses[what.key].facts
            done = list(facts.modulates or [""] * what.parts)
            done[what.place] = done[what.place] or ("add" if name in ADDS else "mul")
            facts.modulates = tuple(done)

    def _make_maps(self, call: Call, first: torch.Tensor, key: str | None) -> None:
        """Note in `_maps_of` which convolutions have a row for each channel of the map that CALL returned. FIRST is the
        first argument of CALL, KEY the weight that it takes, or None.

        If CALL is a convolution with a weight of the model, it is that one (KEY), and if it convolves each channel
        alone, also those of FIRST. If CALL leaves each channel in its place (`CHANNEL_BY_CHANNEL`: activations, norms,
        sums, element-wise products) and keeps the sizes of FIRST, they are those of FIRST. Else nothing is noted.
        """
        before = self._maps_of.get(id(first), ())
        if call.name.startswith("conv") and key is not None:
            weight = call.args[1]
            alone = weight.shape[1] == 1 and weight.shape[0] == first.shape[1]
            self._maps_of[id(call.result)] = (*before, key) if alone else (key,)
        elif before and call.name in CHANNEL_BY_CHANNEL and call.result.shape == first.shape:
            self._maps_of[id(call.result)] = before

    def _inside(self, key: str) -> None:
        """Change the layout of the projection KEY from "grouped" to "inside": its output, which was reshaped, is split
        along the last of the new sizes. A projection with another layout stays as it is.
        """
        if key in self._uses and self._uses[key].facts.layout.kind == "grouped":
            facts = self._uses[key].facts
            facts.layout = facts.layout._replace(kind="inside")

    def _reshaped(self, what: _Output, first: Any, result: Any) -> None:
        """Note the layout "grouped" of the projection WHAT, whose output FIRST is reshaped to RESULT, with the sizes
        that RESULT has in place of the last one of FIRST: (3, 12, 64) for [b, n, 2304] to [b, n, 3, 12, 64]. Nothing is
        noted unless these are two or three, and their product is the number of rows. The first note stays.
        """
        inner = tuple(result.shape[first.ndim - 1 :])
        if math.prod(inner) == what.rows and len(inner) in (2, 3):
            self._layout(what.key, "grouped", inner)

    def _layout(self, key: str, layout: str, inner: tuple[int, ...] = ()) -> None:
        """Note that the output of the layer KEY has the LAYOUT, with the sizes INNER; the first note stays."""
        if key in self._uses and not self._uses[key].facts.layout.kind:
            self._uses[key].facts.layout = Layout(layout, inner)


__all__ = ["Projections"]
