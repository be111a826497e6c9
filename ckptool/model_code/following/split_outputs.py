"""How code splits the output of a layer, such as a fused projection, and what it does with the parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..call import ADDS, CUTS, MULTIPLIES, Call
from ..signature import Layout
from .moved import Moved, Share, takes_parts
from .use import Uses

#: Functions that only move what they take in their dimensions.
_PLACES = frozenset("__getitem__ unsqueeze squeeze view reshape expand to contiguous type float".split())
_RESHAPES = frozenset("view reshape unflatten".split())


class _Part(NamedTuple):
    """A part of the output of a layer: number `place`, from 0, of `parts` parts."""

    key: str
    place: int
    parts: int


class Projections:
    """Follows the outputs of layers until code splits them.

    Args:
        uses: gets `layout`, `heads` and `modulates` of facts.
        moved: shows where code moved the outputs to.
        comes_from: whether a tensor was computed from the output of the weight with this key, and of no other.
    """

    def __init__(self, uses: Uses, moved: Moved, comes_from: Callable[[Any, str], bool]) -> None:
        self._uses = uses
        self._moved = moved
        self._comes_from = comes_from
        self._parts: dict[int, _Part] = {}

    def see(self, call: Call) -> None:
        """Note how CALL, which has run, splits the output of a layer, and what it does with a part of one.

        If CALL only moves an output, or a part of it, it may reshape it (`_reshaped`) or take parts of it (`_cut`). If
        its first argument is a part, so may be its result (`_after_part`). Sums and products may modulate
        (`_modulated`).
        """
        parted = takes_parts(call)
        if parted or call.name in _RESHAPES:
            keys = [key for key in self._moved.layers_of(call.first) if key in self._uses]
            if keys:
                (self._cut if parted else self._reshaped)(call, keys)
        if isinstance(call.result, torch.Tensor):
            if call.name in ADDS | MULTIPLIES:
                self._modulated(call.name, call.args, call.result)
            if id(call.first) in self._parts:
                self._after_part(self._parts[id(call.first)], call, call.first)

    def _reshaped(self, call: Call, keys: list[str]) -> None:
        """Note in the layout of the layers KEYS the two or three sizes that CALL, a reshape, gives their outputs: (3,
        12, 64) for [b, n, 2304] to [b, n, 3, 12, 64]. Nothing is noted if no single dimension of its first argument
        lists all outputs in order (`channel_dim`), if this dimension is kept or becomes more than three, or if the
        layout has a kind already.
        """
        before, after = tuple(call.first.shape), tuple(call.result.shape)
        if all(self._uses[key].facts.layout.kind for key in keys) or before == after:
            return
        dim = self._moved.channel_dim(call.first)
        if dim is None:
            return
        end = len(after) - (len(before) - 1 - dim)  # the dimensions behind stay
        starts = [dim] if before[:dim] == after[:dim] else reversed(range(end))
        inner = next((after[n:end] for n in starts if math.prod(after[n:end]) == before[dim]), ())
        if before[dim + 1 :] == after[end:] and len(inner) in (2, 3):
            for key in keys:
                if not self._uses[key].facts.layout.kind:
                    self._uses[key].facts.layout = Layout("grouped", inner)

    def _cut(self, call: Call, keys: list[str]) -> None:
        """Note in the layout of the layers KEYS which of their outputs the results of CALL hold (`_with_share`);
        results that hold all that its first argument holds do not count. If CALL is a `chunk` or `split` into equal
        blocks of all outputs, its results are also noted as parts of the output of the last of KEYS.
        """
        results = [*call.result] if isinstance(call.result, tuple | list) else [call.result]
        whole = self._moved.share_of(call.first)
        shares = [self._moved.share_of(one) for one in results]
        taken = [share for share in shares if share is not None and share != whole] if whole is not None else []
        for key, share in itertools.product(keys, taken):
            facts = self._uses[key].facts
            facts.layout = _with_share(facts.layout, share, of_all=whole is not None and whole.is_whole)
        if call.name in CUTS and all(share and share.is_part(n, len(shares)) for n, share in enumerate(shares)):
            self._parts |= {id(part): _Part(keys[-1], n, len(results)) for n, part in enumerate(results)}

    def _after_part(self, what: _Part, call: Call, first: Any) -> None:
        """Note that the result of CALL is the part WHAT of an output, as FIRST, its first argument, is, if CALL only
        reshapes, indexes, expands or converts FIRST (not `permute` and the like), and keeps the number of elements.

        Also note the number of heads (`heads`) of the layer, if CALL reshapes the last dimension to two, heads and
        width; the first note stays.
        """
        split = call.name in ("reshape", "view", "unflatten") and call.result.ndim == first.ndim + 1
        if split and what.key in self._uses and math.prod(call.result.shape[-2:]) == first.shape[-1]:
            facts = self._uses[what.key].facts
            facts.heads = facts.heads or call.result.shape[-2]
        if call.name in _PLACES and call.result.numel() == first.numel():
            self._parts[id(call.result)] = what

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


def _with_share(layout: Layout, share: Share, *, of_all: bool) -> Layout:
    """Return LAYOUT after code took SHARE of the outputs, from all of them (OF_ALL) or from some that it took before.

    The kind becomes "block" for outputs in a row, "inside" for an equal share of each head, and "other" for anything
    else, or if LAYOUT has one of these kinds already and it is another, or another number of heads. From outputs that
    were taken before, only a block counts, if the kind is "block"; else LAYOUT is returned as it is.
    """
    if not of_all and not (layout.kind == "block" and share.is_block):
        return layout
    kind, heads = ("block", 0) if share.is_block else ("inside", share.heads) if share.heads else ("other", 0)
    if layout.kind not in ("", "grouped", kind) or layout.heads not in (0, heads):
        return layout._replace(kind="other")
    taken = {*layout.blocks, (share.start, share.start + share.width)} if share.is_block else ()
    return Layout(kind, layout.sizes, share.rows, heads, tuple(sorted(taken)))


__all__ = ["Projections"]
