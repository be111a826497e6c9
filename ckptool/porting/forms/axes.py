"""Bring tensors of other frameworks into torch's layout, by the letters of their axes. `Role.axes` explains the
letters: I inputs, O outputs, M outputs for each input of a depthwise convolution, D H W space, V entries of a table, N
a stack.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ...checkpoint import Role
from .. import expression as ex
from ..expression import Expr, Shape

_SPACE = "DHW"
#: Frameworks whose transposed convolutions take kernels mirrored against those of torch.
_MIRRORED = frozenset({"flax", "orbax", "numpy"})


class Way(NamedTuple):
    """How to bring a tensor into torch's layout.

    Attributes:
        axes: the letters of the tensor's axes, one for each dimension.
        order: the letters in torch's order, each once.
        mirrored: whether depth, height and width are reversed.
    """

    axes: str
    order: str
    mirrored: bool = False

    def shape(self, shape: Shape) -> Shape:
        """Return the sizes in torch's layout of a tensor with the sizes SHAPE: one size for each letter of `order`, the
        product of all sizes of SHAPE whose axis has this letter. But for a depthwise kernel ("M" in `order`), the
        first two are [inputs * outputs for each input, 1].
        """
        sizes = [prod(n for n, axis in zip(shape, self.axes, strict=True) if axis == letter) for letter in self.order]
        return (sizes[0] * sizes[1], 1, *sizes[2:]) if "M" in self.order else tuple(sizes)

    def apply(self, e: Expr, shape: Shape) -> Expr:
        """Return the expression of E, which has the sizes SHAPE, in torch's layout, with the sizes that `shape` gives:
        its axes in the order of `order`, neighbouring axes of one letter as one dimension, inputs and outputs of a
        depthwise kernel as one, and, if the way is mirrored, its dimensions of space reversed.
        """
        axes, sizes = "", list[int]()
        for letter, n in zip(self.axes, shape, strict=True):
            if axes.endswith(letter):
                sizes[-1] *= n
            else:
                axes, sizes = axes + letter, [*sizes, n]
        e = ex.reshape(e, sizes, shape)
        dims = [place for letter in self.order for place, other in enumerate(axes) if other == letter]
        e = ex.transpose(e) if dims == [1, 0] else ex.permute(e, *dims)
        made = self.shape(shape)
        e = ex.reshape(e, made, [sizes[d] for d in dims])
        mirrored = [place for place in range(2, len(made)) if made[place] > 1] if self.mirrored else []
        return ex.flip(e, *mirrored) if mirrored else e


def is_transposed_layer(role: Role) -> bool:
    """Return whether the file states, by ROLE, that the layer of a tensor is a transposed convolution: ROLE.layer, its
    class or operator, has "transpose" or "backprop" in its name, or ROLE.axes begins with a letter of space (D, H, W)
    and ends with OI.
    """
    name = role.layer.lower()
    return "transpose" in name or "backprop" in name or (role.axes.endswith("OI") and role.axes[0] in _SPACE)


def ways(role: Role, framework: str, rank: int) -> list[Way]:
    """Return the ways to bring a tensor of RANK dimensions, of which the file states ROLE, into torch's layout, the
    likeliest first: [Way("HWIO", "OIHW")] for the kernel of a plain convolution. FRAMEWORK is the one that wrote the
    file: with flax, orbax and numpy, kernels of transposed convolutions are mirrored.

    There is one way for most tensors, also for those in torch's layout. There are two for a kernel whose layer the file
    does not state: that of a plain convolution, then that of a transposed one. A letter may occur several times in a
    matrix, a table or a depthwise kernel: these axes become one. [] if the file does not state one axis for each
    dimension, for less than two dimensions, and for letters that do not make up a matrix, table or kernel.
    """
    axes = role.axes
    if len(axes) != rank or rank < 2 or not set(axes) <= set("IOMVN" + _SPACE):
        return []
    space = "".join(letter for letter in _SPACE if letter in axes)
    if not space:
        order = "".join(letter for letter in "NVOI" if letter in axes)
        return [Way(axes, order)] if set(order) == set(axes) else []
    if "M" in axes:
        return [Way(axes, f"IM{space}")] if set(axes) == {"I", "M", *space} else []
    if set(axes) != {"I", "O", *space} or len(set(axes)) < rank:
        return []
    transposed = [Way(axes, f"IO{space}", framework in _MIRRORED)] if _may_be_transposed(role) else []
    return transposed if is_transposed_layer(role) else [Way(axes, f"OI{space}"), *transposed]


def _may_be_transposed(role: Role) -> bool:
    """Return whether the layer of a tensor with the stated ROLE is a transposed convolution, or not stated."""
    return is_transposed_layer(role) or not role.layer


def is_foreign(role: Role) -> bool:
    """Return whether a file states by ROLE that a tensor is not in torch's layout. Torch's layouts are OI, VO, NOI and
    OI with the letters of space behind it, but for a transposed convolution IO with the letters of space behind it; any
    other text of axes is foreign. False if the file does not state the axes.
    """
    if not role.axes:
        return False
    space = "".join(letter for letter in _SPACE if letter in role.axes)
    return role.axes not in ("OI", "VO", "NOI", f"IO{space}" if space and is_transposed_layer(role) else f"OI{space}")


__all__ = ["Way", "is_foreign", "is_transposed_layer", "ways"]
