"""The order in which code lists the numbers of a patch, if it cuts pictures into patches for a linear layer.

A picture [n, c, h, w] becomes [n, c, rows, p, columns, q] by a reshape, is permuted, and is flattened again; or
`unfold` does this; a video [n, c, t, h, w] or [n, t, c, h, w] is cut in time, too. This module follows only which of
the dimensions end up inside the last one, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..call import TURNS, Call, turned_to

#: What the dimensions of a picture and of a video may be called, by their number, and what each of them becomes when it
#: is cut into patches: the place of a patch (a capital letter) and the place in it. A video has its channels first, or
#: its frames.
_PICTURES = {4: (("N", "c", "h", "w"),), 5: (("N", "c", "t", "h", "w"), ("N", "t", "c", "h", "w"))}
_CUT = {"t": ("T", "t"), "h": ("H", "h"), "w": ("W", "w")}


class Patches:
    """Follows pictures that code cuts into patches, until each row of a tensor holds the numbers of one patch."""

    def __init__(self) -> None:
        #: id of a tensor -> ways to name its dimensions: the letters in each of them
        self._ways: dict[int, list[tuple[str, ...]]] = {}

    def order_of(self, value: Any) -> str:
        """Return the order in which each row of the tensor VALUE lists the numbers of its patch: the letters c, h, w
        ("chw", "hwc"), with t for a video ("thwc").

        "" if VALUE was not followed, or if not just one of the ways to name its dimensions has just these in the last.
        """
        lasts = {dims[-1] for dims in self._ways.get(id(value), ())}
        orders = [last for last in lasts if "".join(sorted(last)) in ("chw", "chtw")]
        return orders[0] if len(orders) == 1 else ""

    def see(self, call: Call, learned: Callable[[Any], bool]) -> None:
        """Note which dimensions of a picture or a video each dimension of the result of CALL holds, if its first
        argument is followed and the function only reshapes it, turns it (`permute`, `transpose`), unfolds it or copies
        it. The results of other functions are not followed.

        A tensor with four or five dimensions that is not followed and was not computed from weights (LEARNED: tensor ->
        whether it was) is taken for a picture [n, c, h, w], or for a video with its channels or its frames first, and
        followed from there: whichever of the two the code cuts so. `unfold` counts only for a picture that is not cut
        yet. A result whose first dimension is n and c together is not followed.
        """
        first, result = call.first, call.result
        if not hasattr(result, "shape") or not hasattr(first, "shape"):
            return
        ways: Sequence[tuple[str, ...]] = self._ways.get(id(first), ())
        if not ways and not learned(first):
            ways = _PICTURES.get(len(first.shape), ())
        made = [after for dims in ways if (after := _after(call, dims)) is not None and after[0] != "Nc"]
        if made:
            self._ways[id(result)] = made


def _after(call: Call, dims: tuple[str, ...]) -> tuple[str, ...] | None:
    after = tuple(call.result.shape)
    if call.name in ("reshape", "view", "flatten", "unflatten"):
        return _cut_or_joined(dims, call.first.shape, after)
    if call.name in ("contiguous", "clone", "to", "float"):
        return dims
    if call.name == "unfold" and dims in _PICTURES[4] and len(after) == 3:
        return ("N", "chw", "HW")
    turned = turned_to(call.name, call.args, len(dims), call.kwargs) if call.name in TURNS else None
    return None if turned is None else tuple(dims[n] for n in turned)


def _cut_or_joined(dims: tuple[str, ...], before: Sequence[int], after: Sequence[int]) -> tuple[str, ...] | None:
    """Return the letters in each dimension after a reshape from the sizes BEFORE to the sizes AFTER; DIMS are the
    letters in each dimension before it: ("N", "c", "H", "h", "W", "w") for ("N", "c", "h", "w"), from [2, 3, 32, 32]
    to [2, 3, 4, 8, 4, 8].

    Each dimension in turn has to be kept; or, if it is all of t, h or w, be cut in two ("h" into "H", which patch, and
    "h", the place in it); or be joined with those after it (their letters side by side, without that of a single row or
    column of patches). The first of these that fits the sizes is taken. None if none fits, or if dimensions are left
    over.
    """
    made: list[str] = []
    left, at = list(zip(dims, before, strict=True)), 0
    while at < len(after):
        if not left:
            return None
        letters, size = left.pop(0)
        if size == after[at]:
            made.append(letters)
        elif letters in _CUT and at + 1 < len(after) and after[at] * after[at + 1] == size:
            made += _CUT[letters]
            at += 1
        else:
            letters = _without_one_place(letters, size)
            while size < after[at] and left:
                more, count = left.pop(0)
                letters, size = letters + _without_one_place(more, count), size * count
            if size != after[at]:
                return None
            made.append(letters)
        at += 1
    return tuple(made) if not left else None


def _without_one_place(letters: str, size: int) -> str:
    """Return the LETTERS of a dimension, or "" if it is the place of a patch and has the SIZE 1."""
    return "" if size == 1 and letters.isupper() else letters
