"""GPTQ and AWQ: from the words, zeros and scales of one weight to its plain tensor.

    GPTQ   qweight (in * bits / 32, out)   qzeros (groups, out * bits / 32)   scales (groups, out)   g_idx (in)
    AWQ    qweight (in, out / 8)           qzeros (groups, out / 8)           scales (groups, out)

The integers of a word stand lowest first; AWQ's eight in the order 0 2 4 6 1 3 5 7. The first version of GPTQ's packing
stores zeros less 1. Seen in what the modules of auto-gptq 0.7.1 and autoawq 0.2.9 pack; the second version is from the
source of gptqmodel 7.7. What nothing says (the version, whether columns are in order) is refused, and so is the version
"gptq_p" of gptqmodel, whose integers of 3, 5, 6 and 7 bits lie in other places.
"""

from __future__ import annotations

from typing import Any

from ..errors import counted, in_words
from ..tensor import LazyTensor
from .computing import Rows, computed, factor
from .quantized_families import TRANSPOSED, Given, Made, Refused, floats, shape_of, values
from .unpacking import AcrossColumns, Grid, InRows, Small


def awq_or_gptq(given: Given) -> Made:
    """The plain tensor of a weight of AWQ or GPTQ: whose it is says the configuration, or else its shapes do."""
    method = str(given.config.get("quant_method") or "").lower()
    columns, out = given.weight.shape if len(given.weight.shape) == 2 else (0, 0)
    scales = floats(given.part("scales"), "scales")
    if len(scales.shape) != 2 or not columns:
        raise Refused(f"has scales of shape {list(scales.shape)}")
    wide = scales.shape[1]
    if method == "awq" or (not method and out != wide and out * 8 == wide and given.get("g_idx") is None):
        return _awq(given, scales)
    if method not in ("", "gptq"):
        raise Refused(f"is of the method {in_words(method)}")
    return _gptq(given, scales)


def _setting(given: Given, *names: str) -> Any:
    return next((given.config[name] for name in names if given.config.get(name) is not None), None)


def _awq(given: Given, scales: LazyTensor) -> Made:
    columns, words = shape_of(given, 2)
    bits, version = _setting(given, "bits", "w_bit"), _setting(given, "version")
    if version is not None and str(version).lower() != "gemm":
        raise Refused(f"is packed in the version {in_words(version)}; 'gemm' is known")
    if version is None or bits is None:
        raise Refused("says neither its bits nor the version of its packing")
    if bits != 4:
        raise Refused(f"has {in_words(bits)} bits; 4 are known")
    zeros, (groups, rows) = given.get("qzeros"), scales.shape
    if words * 8 != rows or not groups or columns % groups:
        raise Refused(f"has the shape {list(given.weight.shape)}, and scales of {list(scales.shape)}")
    counted_from: Rows | None = None
    minus = 8
    if zeros is not None:
        if zeros.dtype.name != "int32" or zeros.shape != (groups, words):
            raise Refused(f"has zero points of shape {list(zeros.shape)}")
        counted_from, minus = AcrossColumns(zeros, 4, rows, of_awq=True), 0
    elif given.config.get("zero_point") is not False:
        raise Refused("has no qzeros beside it")
    numbers = AcrossColumns(given.weight, 4, rows, of_awq=True, minus=minus)
    made = Grid(numbers, Small(factor(scales), turned=True), (1, columns // groups), counted_from)
    return f"{given.beside}weight", computed(made, scales.dtype, (rows, columns), given.weight, TRANSPOSED)


def _gptq(given: Given, scales: LazyTensor) -> Made:
    words, rows = shape_of(given, 2)
    bits, zeros, (groups, wide) = _setting(given, "bits", "w_bit"), given.part("qzeros"), scales.shape
    if bits not in (2, 3, 4, 8):
        raise Refused(
            "does not say its bits" if bits is None else f"has {in_words(bits)} bits; 2, 3, 4 and 8 are known"
        )
    columns = words * 32 // bits
    if (
        wide != rows
        or not groups
        or words * 32 % bits
        or zeros.shape != (groups, rows * bits // 32)
        or rows * bits % 32
    ):
        shapes = ", ".join(str(list(one.shape)) for one in (given.weight, scales, zeros))
        raise Refused(f"has the shapes {shapes}, which {bits} bits do not bear out")
    order = given.get("g_idx")
    if order is None and given.config.get("desc_act") is not False:
        raise Refused("has no g_idx, and nothing says that its columns are in order (desc_act)")
    if order is not None:
        which = values(order)
        if (
            order.shape != (columns,)
            or order.dtype.is_floating
            or not 0 <= int(which.min()) <= int(which.max()) < groups
        ):
            raise Refused("has a g_idx that does not fit its groups")
    elif columns % groups:
        raise Refused(f"has {counted(groups, 'group')} for {columns:,} columns")
    added = _added(given, zeros, bits)
    # a zero of 0, less 1, is the largest number there is, which readers of the first version take for two things
    never = (1 << bits) - 1 if added else -1
    counted_from = AcrossColumns(zeros, bits, rows, of_awq=False, minus=-added, never=never)
    numbers = InRows(given.weight, bits, columns, down=True)
    made = Grid(
        numbers,
        Small(factor(scales), turned=True),
        (1, columns // groups if columns % groups == 0 else columns),
        counted_from,
        groups=factor(order) if order is not None else None,
    )
    return f"{given.beside}weight", computed(made, scales.dtype, (rows, columns), given.weight, TRANSPOSED)


def _added(given: Given, zeros: LazyTensor, bits: int) -> int:
    """What is added to the zeros as they are stored: 1 in the first version of the packing, 0 in the second.

    Raises:
        Refused: nothing tells which version it is.
    """
    version = _setting(given, "checkpoint_format")
    if version in ("gptq", "gptq_v2"):
        return 1 if version == "gptq" else 0
    if version is not None:
        raise Refused(f"is packed in the version {in_words(version)}; 'gptq' and 'gptq_v2' are known")
    if given.config.get("sym") is True and bits in (2, 4, 8):  # then all zeros are the middle, or the middle less 1
        import numpy as np

        found = np.unique(np.asarray(values(zeros)).view(np.uint8))
        for added in (0, 1):
            middle = (1 << (bits - 1)) - added
            if found.tolist() == [sum(middle << at for at in range(0, 8, bits))]:
                return added
    raise Refused("does not say in which version it is packed (checkpoint_format)")
