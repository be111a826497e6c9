"""The order in which code lists the numbers of a patch, if it cuts pictures into patches for a linear layer.

A picture [n, c, h, w] becomes [n, c, rows, p, columns, q] by a reshape, is permuted, and is flattened again; or
`unfold` does this; a video [n, c, t, h, w] or [n, t, c, h, w] is cut in time, too. This module follows only which of
the dimensions end up inside the last one, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..call import TURNS, Call, turned_to
from ..signature import Axis

#: A dimension of a tensor: the axes that it holds, the outermost first; none if its size is 1.
_Dim = tuple[Axis, ...]

#: What the dimensions of a picture and of a video may be called, by their number, and what each of them becomes when it
#: is cut into patches: the place of a patch (a capital letter) and the place in it. A video has its channels first, or
#: its frames.
_PICTURES = {4: ("Nchw",), 5: ("Ncthw", "Ntchw")}
_CUT = {"t": ("T", "t"), "h": ("H", "h"), "w": ("W", "w")}


class Patches:
    """Follows pictures that code cuts into patches, until each row of a tensor holds the numbers of one patch."""

    def __init__(self) -> None:
        #: id of a tensor -> ways to name its dimensions: the axes in each of them
        self._ways: dict[int, list[tuple[_Dim, ...]]] = {}

    def axes_of(self, value: Any) -> tuple[Axis, ...]:
        """Return the order in which each row of the tensor VALUE lists the numbers of its patch: the axes c, h and w,
        with t for a video, each with its size in the patch.

        () if VALUE was not followed, or if not just one of the ways to name its dimensions has just these in the last.
        """
        lasts = {dims[-1] for dims in self._ways.get(id(value), ())}
        orders = [last for last in lasts if "".join(sorted(axis.letter for axis in last)) in ("chw", "chtw")]
        return orders[0] if len(orders) == 1 else ()

    def see(self, call: Call, learned: Callable[[Any], bool]) -> None:
        """Note which axes of a picture or a video each dimension of the result of CALL holds, if its first argument is
        followed and the function only reshapes it, turns it (`permute`, `transpose`), unfolds it, copies it, or is a
        layer norm. The results of other functions are not followed.

        A tensor with four or five dimensions that is not followed and was not computed from weights (LEARNED: tensor ->
        whether it was) is taken for a picture [n, c, h, w], or for a video with its channels or its frames first, and
        followed from there: whichever of the two the code cuts so. A result whose first dimension is n and c together
        is not followed.
        """
        first, result = call.first, call.result
        if not hasattr(result, "shape") or not hasattr(first, "shape"):
            return
        ways: Sequence[tuple[_Dim, ...]] = self._ways.get(id(first), ())
        if not ways and not learned(first):
            letters = _PICTURES.get(len(first.shape), ())
            ways = [tuple((Axis(*named),) for named in zip(way, first.shape, strict=True)) for way in letters]
        made = [after for dims in ways if (after := _after(call, dims)) is not None and _letters(after[0]) != "Nc"]
        if made:
            self._ways[id(result)] = made


def _letters(dim: _Dim) -> str:
    return "".join(axis.letter for axis in dim)


def _after(call: Call, dims: tuple[_Dim, ...]) -> tuple[_Dim, ...] | None:
    """Return the axes in each dimension of the result of CALL, whose first argument has the axes DIMS: of a reshape, a
    copy, a layer norm, an `unfold` or a turn (`permute`). None for other functions, and if the axes no longer show (a
    reshape through the middle of an axis).
    """
    if call.name in ("reshape", "view", "flatten", "unflatten"):
        return _cut_or_joined(dims, tuple(call.result.shape))
    if call.name in ("contiguous", "clone", "to", "float", "layer_norm"):
        return dims
    if call.name == "unfold":
        return _unfolded(dims, call) if len(call.result.shape) == 3 else _unfolded_once(dims, call)
    turned = turned_to(call.name, call.args, len(dims), call.kwargs) if call.name in TURNS else None
    return None if turned is None else tuple(dims[n] for n in turned)


def _unfolded(dims: tuple[_Dim, ...], call: Call) -> tuple[_Dim, ...] | None:
    """Return the axes [N, c h w, places] of the patches that CALL, of `torch.nn.functional.unfold`, makes of a picture
    with the axes DIMS. None if DIMS are others than N, c, h, w, or if CALL does not say how large the patches are.
    """
    size = call.kwargs.get("kernel_size", call.args[1] if len(call.args) > 1 else None)
    h, w = (size, size) if isinstance(size, int) else size if isinstance(size, tuple | list) else (0, 0)
    if "".join(map(_letters, dims)) != "Nchw" or h * w == 0:
        return None
    return dims[0], (*dims[1], Axis("h", h), Axis("w", w)), (Axis("HW", call.result.shape[2]),)


def _unfolded_once(dims: tuple[_Dim, ...], call: Call) -> tuple[_Dim, ...] | None:
    """Return the axes in each dimension of the result of CALL, of `Tensor.unfold`, which cuts one of DIMS: it becomes
    the place of a patch, and the place in the patch is a new last dimension. None if it is not t, h or w.
    """
    at = call.args[1] if len(call.args) > 1 else call.kwargs.get("dimension")
    letters = _letters(dims[at]) if isinstance(at, int) else ""
    if letters not in _CUT:
        return None
    made = [*dims, (Axis(letters, call.result.shape[-1]),)]
    made[at % len(dims)] = (Axis(letters.upper(), call.result.shape[at % len(dims)]),)
    return tuple(made)


def _cut_or_joined(dims: tuple[_Dim, ...], after: Sequence[int]) -> tuple[_Dim, ...] | None:
    """Return the axes in each dimension after a reshape to the sizes AFTER; DIMS are the axes in each dimension before
    it: N, c, H, h, W, w after a reshape of N, c, h, w from [2, 3, 32, 32] to [2, 3, 4, 8, 4, 8].

    Each dimension in turn has to be kept; or, if it is all of t, h or w, be cut in two ("h" into "H", which patch, and
    "h", the place in it); or be joined with those after it (their axes side by side, without that of a single row or
    column of patches). The first of these that fits the sizes is taken. None if none fits, or if dimensions are left
    over.
    """
    made: list[_Dim] = []
    left, at = list(dims), 0
    while at < len(after):
        if not left:
            return None
        dim = left.pop(0)
        size = prod(axis.size for axis in dim)
        if size == after[at]:
            made.append(dim)
        elif _letters(dim) in _CUT and at + 1 < len(after) and after[at] * after[at + 1] == size:
            made += [(Axis(*cut),) for cut in zip(_CUT[dim[0].letter], after[at : at + 2], strict=True)]
            at += 1
        else:
            dim = _without_one_place(dim)
            while size < after[at] and left:
                more = left.pop(0)
                dim, size = dim + _without_one_place(more), size * prod(axis.size for axis in more)
            if size != after[at]:
                return None
            made.append(dim)
        at += 1
    return tuple(made) if not left else None


def _without_one_place(dim: _Dim) -> _Dim:
    """Return the axes of DIM without one that is the place of a patch and has the size 1."""
    return tuple(axis for axis in dim if axis.size > 1 or not axis.letter.isupper())
