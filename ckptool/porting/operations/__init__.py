"""The operations of expressions, by name: how a tensor of the model is made from tensors of the source. A new operation
is one class and one line here.
"""

from __future__ import annotations

from . import arithmetic, cutting, rearranging, reparametrizing, resizing
from .operation import OPERATIONS

OPERATIONS.update(
    (operation.name, operation)
    for operation in (
        rearranging.Transpose(),
        rearranging.Permute(),
        rearranging.Reshape(),
        cutting.Slice(),
        cutting.Select(),
        cutting.Cat(),
        cutting.Stack(),
        rearranging.Rotary(),
        cutting.OfHeads(),
        cutting.ByHeads(),
        rearranging.Flatten(),
        reparametrizing.WeightNorm(),
        reparametrizing.Norm(),
        reparametrizing.SpectralNorm(),
        reparametrizing.Lora(),
        reparametrizing.LoraAlpha(),
        reparametrizing.FoldWeight(),
        reparametrizing.FoldBias(),
        arithmetic.Add(),
        arithmetic.Mul(),
        arithmetic.Nonzero(),
        arithmetic.Shift(),
        arithmetic.Scale(),
        arithmetic.Flip(),
        arithmetic.Sum(),
        resizing.Repeat(),
        resizing.Grow(),
        resizing.Pad(),
        arithmetic.Zeros(),
        arithmetic.Eye(),
        resizing.Resize(),
    )
)

__all__ = ["OPERATIONS"]
