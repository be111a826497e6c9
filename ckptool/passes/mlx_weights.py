"""MLX: from the words, scales and biases of one weight to its plain tensor.

    affine    P.weight uint32 (rows, columns * bits / 32), P.scales, P.biases (rows, groups)     q * scale + bias
    mxfp4     P.weight uint32, P.scales uint8, exponents of two for groups of 32                E2M1[q] * 2^(s - 127)
    nvfp4     P.weight uint32, P.scales uint8, the bits of float8_e4m3fn for groups of 16       E2M1[q] * scale
    mxfp8     P.weight uint32, P.scales uint8, exponents of two for groups of 32                E4M3[q] * 2^(s - 127)

The numbers of a row are one stream of bits, the lowest first, also those of 3, 5 and 6 bits. Bits and groups stand in
`config.json` under `quantization`, which may have settings of its own for a layer, by its name; widths alone tell them
where one pair fits. Seen in what MLX 0.32 writes.
"""

from __future__ import annotations

from math import prod

from ..dtypes import BY_NAME
from ..errors import counted, in_words
from ..tensor import LazyTensor, contiguous_stride
from .computing import computed, factor
from .mlx_settings import BITS, MODES, settings_of
from .quantized_families import Given, Made, Refused, shape_of
from .unpacking import E2M1, Grid, InRows, Looked, OfMlx, Small


def of_mlx(given: Given) -> Made:
    """The plain tensor of a weight of MLX: in the type of its scales, or bfloat16 where these are exponents."""
    shape, scales, biases = shape_of(given, 2, 3), given.part("scales"), given.get("biases")
    if scales.shape[:-1] != shape[:-1] or not scales.numel or (biases is not None and biases.shape != scales.shape):
        raise Refused(f"has scales of shape {list(scales.shape)} for {list(shape)}")
    module = given.one.name.rpartition(".")[0]
    found = settings_of(given.config, module, shape[-1], scales.shape[-1], biases is not None)
    if found is None:
        raise Refused(
            f"has {counted(shape[-1], 'word')} and {counted(scales.shape[-1], 'scale')} in a row, of which config.json "
            "does not say how many bits and how large a group they are"
        )
    bits, group, mode = found
    rows, columns = prod(shape[:-1]), shape[-1] * 32 // bits
    numbers = InRows(_flat(given.weight, rows), bits, columns)
    whole = (*shape[:-1], columns)
    if mode == "affine":
        if biases is None or not scales.dtype.is_floating or biases.dtype != scales.dtype or bits not in BITS:
            raise Refused(f"has {scales.dtype.name} scales and {bits} bits, which are not affine ones of MLX")
        grid = (rows, scales.shape[-1])
        made = OfMlx(numbers, factor(scales, grid), factor(biases, grid), group, scales.dtype)
        return given.one.name, computed(made, scales.dtype, whole, given.weight)
    if MODES.get(mode) != (bits, group) or biases is not None or scales.dtype.name != "uint8":
        raise Refused(f"is of the mode {in_words(mode)}, with {bits} bits and groups of {group}")
    return given.one.name, computed(
        Grid(
            Looked(numbers, E2M1 if bits == 4 else _e4m3()),
            Small(factor(_as_e4m3(scales) if mode == "nvfp4" else scales, (rows, scales.shape[-1]))),
            (1, group),
            None,
            mode != "nvfp4",
        ),
        BY_NAME["bfloat16"],
        whole,
        given.weight,
    )


def _flat(weight: LazyTensor, rows: int) -> LazyTensor:
    """The words of a weight as a matrix of ROWS."""
    if weight.stride != contiguous_stride(weight.shape):
        raise Refused("is stored in another order than that of its rows")
    sizes = (rows, weight.shape[-1])
    return LazyTensor(weight.storage, weight.dtype, sizes, contiguous_stride(sizes), weight.offset)


def _as_e4m3(scales: LazyTensor) -> LazyTensor:
    """Bytes that are the bits of float8."""
    return LazyTensor(scales.storage, BY_NAME["float8_e4m3fn"], scales.shape, scales.stride, scales.offset)


def _e4m3() -> tuple[float, ...]:
    """The values of float8_e4m3fn by their bits."""
    import ml_dtypes
    import numpy as np

    return tuple(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32).tolist())
