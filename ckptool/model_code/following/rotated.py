"""How a forward pass pairs the outputs that a rotary embedding rotates: neighbours, or element i with i + half.

Su et al., "RoFormer", 2021, rotate neighbours ("interleaved"), as GPT-J does; GPT-NeoX and Llama in Hugging Face's
code rotate halves ("half").
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from ..call import CUTS, JOINS, MULTIPLIES, TURNS, UNCHANGED, Call, every_second, turned_to
from .use import Uses

_SUBTRACTS = frozenset("sub subtract __sub__ sub_ __isub__".split())


class Rotary:
    """Follows halves and neighbours of the last dimension of tensors that were computed from weights.

    Args:
        uses: gets `rotary` and `turned` of facts.
        made_by: the keys of the matrices that made a tensor.
        learned: whether a tensor was computed from weights.
    Attributes:
        kind: how the pass pairs what it rotates ("interleaved", "half"), or None if it rotates nothing.
    """

    def __init__(self, uses: Uses, made_by: Callable[[Any], Collection[str]], learned: Callable[[Any], bool]) -> None:
        self.kind: str | None = None
        self._uses = uses
        self._made_by = made_by
        self._learned = learned
        self._negated: set[int] = set()
        self._halves: dict[int, tuple[int, int]] = {}  # id of a half of a tensor -> (id of that tensor, 0 or 1)
        self._scaled: dict[int, tuple[int, int]] = {}  # the same of a half times something
        self._turned_halves: set[int] = set()  # what a rotary embedding gives for the first half of a tensor
        self._of_halves: set[int] = set()  # tensors whose pairs, in the last dimension, are of two such halves

    def see(self, call: Call) -> None:
        """Note what CALL, which has run, shows about a rotary embedding, in `kind` and in the facts of matrices: of
        complex numbers and of every second element (`_rotate_pairs`), and of halves (`_pair_halves`, `_rotate_halves`).
        """
        self._pair_halves(call)
        self._rotate_pairs(call)
        if isinstance(call.result, torch.Tensor):
            self._rotate_halves(call)

    def _rotate_pairs(self, call: Call) -> None:
        """Note the rotary embedding that CALL shows, if it makes complex numbers (`view_as_complex`, `polar`), or takes
        every second element of a tensor that was computed from weights.

        The kind is "half" if the first argument of CALL is the two halves of a tensor, stacked in a new last dimension,
        else "interleaved". `kind` becomes this one; `polar`, which makes the angles, changes no earlier kind. The
        facts of the matrices that made the first argument get the kind, too (`_rotates`), but not for `polar`. If CALL
        sorts pairs into halves (turns [..., pairs, 2] into [..., 2, pairs], `_sorts_pairs`), these facts get
        "interleaved", because code then rotates halves that were neighbours, and `kind` stays.
        """
        first = call.args[0] if call.args and isinstance(call.args[0], torch.Tensor) else None
        second = call.name == "__getitem__" and every_second(call.args) and self._learned(first)
        kind = "half" if id(first) in self._of_halves else "interleaved"
        if second or call.name in ("view_as_complex", "polar"):
            self.kind = kind if call.name != "polar" else self.kind or kind
        if first is not None and (second or call.name == "view_as_complex"):
            self._rotates(kind, first, first.shape[-1] * (1 if second else first.shape[-2]))
        if first is not None and call.name in TURNS and _sorts_pairs(call, first):
            self._rotates("interleaved", first, 2 * first.shape[-2])

    def _pair_halves(self, call: Call) -> None:
        """Note what the result of CALL is, if it is one of these; halves are of the last dimension of one tensor:

        - a half (`x[..., :n]`), or the two halves (`x.chunk(2, -1)`): in `_halves`;
        - a half times something: in `_scaled`;
        - the first half times something minus the second half times something: in `_turned_halves`;
        - both halves, in their order, stacked in a new last dimension, or a copy of this stack (`float`): in
          `_of_halves`.
        """
        first, result = call.first, call.result
        if call.name == "__getitem__" and (place := _half(call.args, result)) is not None:
            self._halves[id(result)] = id(first), place
        elif call.name in MULTIPLIES:
            half = next((self._halves[id(one)] for one in call.args[:2] if id(one) in self._halves), None)
            if half is not None:
                self._scaled[id(result)] = half
        elif call.name in _SUBTRACTS and len(call.args) > 1:
            (whole, one), (other_whole, other) = (self._scaled.get(id(part), (0, -1)) for part in call.args[:2])
            if whole == other_whole and (one, other) == (0, 1):
                self._turned_halves.add(id(result))
        if call.name in CUTS and isinstance(result, tuple | list) and call.divides_last:
            if len(result) == 2 and result[0].shape == result[1].shape:
                self._halves.update({id(half): (id(first), place) for place, half in enumerate(result)})
        elif call.name == "stack" and isinstance(first, tuple | list) and isinstance(result, torch.Tensor):
            halves = [self._halves.get(id(one), (0, -1)) for one in first]
            dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
            if dim in (-1, result.ndim - 1) and [place for _, place in halves] == [0, 1] and len({*dict(halves)}) == 1:
                self._of_halves.add(id(result))
        elif call.name in UNCHANGED and id(first) in self._of_halves:
            self._of_halves.add(id(result))

    def _rotate_halves(self, call: Call) -> None:
        """Note the result of CALL as negated, if CALL negates a tensor; or, if it concatenates or stacks tensors, the
        rotary embedding that it shows.

        If one of these tensors is negated and computed from weights (`cat((-x2, x1))`), the kind is "half" for a
        concatenation, "interleaved" for a stack. If CALL concatenates, and one of them is computed from weights and is
        the difference of two scaled halves (`_turned_halves`), it is "half". The kind is noted in `kind`, unless
        there is one already, and in the facts of matrices (`_rotates`): with a negated tensor, of those that made any
        of the tensors; with such a difference, only of those that made the difference.
        """
        if call.name in ("neg", "__neg__", "negative"):
            self._negated.add(id(call.result))
        joins = call.name == "stack" or call.name in JOINS
        parts = call.args[0] if joins and call.args and isinstance(call.args[0], tuple | list) else ()
        if any(id(part) in self._negated and self._learned(part) for part in parts):
            kind = "interleaved" if call.name == "stack" else "half"
            self.kind = self.kind or kind
            for part in parts:
                self._rotates(kind, part, sum(one.shape[-1] for one in parts))
        for part in parts if call.name != "stack" else ():
            if id(part) in self._turned_halves and self._learned(part):
                self.kind = self.kind or "half"
                self._rotates("half", part, 2 * part.shape[-1])

    def _rotates(self, kind: str, value: Any, width: int = 0) -> None:
        """Note in the facts of the matrices that made the tensor VALUE how rotary embeddings pair their outputs:
        `rotary` becomes KIND ("half" or "interleaved"), and `turned` WIDTH, the number of outputs of each
        head that are rotated (0 if that is not known). The first note for a matrix stays.
        """
        for key in self._made_by(value):
            if key in self._uses and self._uses[key].facts.rotary is None:
                self._uses[key].facts.rotary, self._uses[key].facts.turned = kind, width


def _sorts_pairs(call: Call, before: torch.Tensor) -> bool:
    """Return whether CALL, a permutation, moves neighbours of BEFORE, its first argument, into halves: it exchanges the
    last two dimensions [pairs, 2]. False if BEFORE has fewer than four dimensions.
    """
    if before.ndim < 4 or before.shape[-1] != 2:
        return False
    last = before.ndim - 1
    return turned_to(call.name, call.args, before.ndim) == [*range(last - 1), last, last - 1]


def _half(args: Any, half: Any) -> int | None:
    """Return which half of the last dimension a call of `__getitem__` with ARGS, (tensor, index), takes, with all of
    the other dimensions: 0 for the first (`x[..., :n]`), 1 for the second. HALF is the result of the call. None if it
    takes something else, if the last dimension has an odd size, or if the tensor has fewer than two dimensions.
    """
    tensor, index = args[0], args[1] if len(args) > 1 else None
    last = index[-1] if isinstance(index, tuple) and index else None
    size = tensor.shape[-1] if isinstance(tensor, torch.Tensor) and tensor.ndim > 1 else 0
    if not isinstance(last, slice) or size % 2 or getattr(half, "shape", None) != (*tensor.shape[:-1], size // 2):
        return None
    return {range(size // 2): 0, range(size // 2, size): 1}.get(range(size)[last])


__all__ = ["Rotary"]
