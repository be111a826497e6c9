"""The families of quantised weights, but for GPTQ and AWQ: from the tensors of one weight to its plain tensor.

What each is computed from, and against which library that is checked, is in `ckptool.passes.dequantizing`. A shape or a
setting that does not bear out the others is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..disk.documents import read_json
from ..dtypes import BY_NAME, DType
from ..errors import CannotCarry, CheckpointError, counted, in_words
from ..tensor import LazyTensor
from .computing import Factor, Rows, computed, factor, flat, stored
from .packed import Packed
from .unpacking import AcrossColumns, Grid, Halves, InRows, OfBitsandbytes, OfGptOss, Scaled8, Small

#: Bytes of a transposed weight that are computed at once: the parts that are read are short.
TRANSPOSED = 16 << 20
_BFLOAT16 = BY_NAME["bfloat16"]
#: Classes of torchao that are known.
TORCHAO = ("Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor")


class Refused(Exception):
    """Why a weight is not dequantised, in words."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a family is dequantised from.

    Attributes:
        one: the packed weight.
        tensors: the state dict.
        config: what describes the quantisation beside the weights.
        plain: the type of the model's other weights.
        notes: text in the header of the file.
    """

    one: Packed
    tensors: Mapping[str, LazyTensor]
    config: Mapping[str, Any]
    plain: DType
    notes: Mapping[str, str]

    @property
    def weight(self) -> LazyTensor:
        """The tensor of the weight itself."""
        return self.tensors[self.one.name]

    @property
    def beside(self) -> str:
        """What the names of its other parts begin with."""
        head = self.one.name.rpartition(".")[0]
        return f"{head}." if head else ""

    def part(self, name: str) -> LazyTensor:
        """A further tensor of it.

        Raises:
            Refused: it is missing.
        """
        found = self.get(name)
        if found is None:
            raise Refused(f"has no {name} beside it")
        return found

    def get(self, name: str) -> LazyTensor | None:
        """A further tensor of it, or None."""
        return self.tensors.get(f"{self.beside}{name}")


#: The new key of a weight, and its plain tensor.
Made = tuple[str, LazyTensor]


def shape_of(given: Given, *shapes: int) -> tuple[int, ...]:
    """The shape of a packed matrix."""
    shape = given.weight.shape
    if len(shape) not in shapes or not given.weight.numel:
        raise Refused(f"has the shape {list(shape)}")
    return shape


def floats(tensor: LazyTensor, what: str) -> LazyTensor:
    """TENSOR, if it holds floating point numbers; else it is refused as WHAT."""
    if not tensor.dtype.is_floating or tensor.dtype.numpy is None or not tensor.numel:
        raise Refused(f"has {what} of the type {tensor.dtype.name}, shape {list(tensor.shape)}")
    return tensor


def values(tensor: LazyTensor) -> Any:
    """All numbers of a small tensor, now."""
    return Factor(tensor.source(), tensor.dtype, tensor.shape).values.reshape(-1)


def _bitsandbytes4(given: Given) -> Made:
    name, tensors = given.one.name, given.tensors
    state_key = next((key for key in given.one.keys if ".quant_state." in key), None)
    if state_key is None:
        raise Refused("has no quant_state, which alone knows its shape")
    raw = bytes(tensors[state_key].source().read(0, tensors[state_key].nbytes))
    try:
        state = read_json(raw, state_key)
        shape, dtype, run = tuple(state["shape"]), str(state["dtype"]).removeprefix("torch."), state["blocksize"]
    except (CheckpointError, KeyError, TypeError):
        raise Refused("has a quant_state that is not JSON of one") from None
    count = 1
    for size in shape:
        count *= size if type(size) is int and size > 0 else 0
    table, scales = tensors.get(f"{name}.quant_map"), tensors[f"{name}.absmax"]
    runs = -(-count // run) if type(run) is int and run > 0 else 0
    fine = dtype in ("float16", "bfloat16", "float32") and table is not None and table.shape == (16,) and count
    if not fine or given.weight.numel * 2 != count + count % 2 or scales.numel != runs or table is None:
        raise Refused(f"has a quant_state of shape {in_words(state.get('shape'))} that its tensors do not bear out")
    nested = None
    if scales.dtype.name == "uint8":
        outer, inner = tensors.get(f"{name}.nested_absmax"), tensors.get(f"{name}.nested_quant_map")
        again, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if outer is None or inner is None or inner.shape != (256,) or type(again) is not int or again <= 0:
            raise Refused("has scales that are quantised, and not what they are quantised with")
        if outer.numel != -(-runs // again) or not isinstance(offset, int | float):
            raise Refused("has scales that are quantised, and numbers that do not bear them out")
        nested = (factor(inner), factor(outer), again, float(offset))
    elif scales.dtype.name != "float32":
        raise Refused(f"has scales of the type {scales.dtype.name}")
    made = OfBitsandbytes(given.weight.source(), factor(table), scales.source(), run, flat(shape), nested)
    return name, computed(made, BY_NAME[dtype], shape, given.weight)


def _bitsandbytes8(given: Given) -> Made:
    shape = shape_of(given, 2)
    scales, layout = floats(given.part("SCB"), "scales"), given.get("weight_format")
    if scales.numel != shape[0]:
        raise Refused(f"has {counted(scales.numel, 'scale')} for {counted(shape[0], 'row')}")
    if layout is not None and layout.numel == 1 and int(values(layout)[0]) != 0:
        raise Refused(f"has the weight_format {int(values(layout)[0])}; 0, by rows, is known")
    return given.one.name, computed(Scaled8(stored(given.weight), factor(scales)), given.plain, shape, given.weight)


def _compressed(given: Given) -> Made:
    """Packed integers of compressed-tensors, or its float4."""
    key = f"{given.beside}weight"
    if given.weight.dtype.name == "uint8":
        return key, _float4(given, given.weight)
    rows, words = shape_of(given, 2)
    scales = floats(given.part("weight_scale"), "scales")
    said = values(given.part("weight_shape")).tolist()
    if given.get("weight_g_idx") is not None:
        raise Refused(
            "has columns in an order of their own (weight_g_idx), which compressed-tensors 0.20 does not know"
        )
    if len(said) != 2 or said[0] != rows or said[1] <= 0:
        raise Refused(f"has a weight_shape of {said} for {rows:,} rows")
    columns = said[1]
    bits = _bits_of(given, columns, words)
    across = scales.shape[-1] if len(scales.shape) == 2 else 1
    grid = (scales.shape[0] if scales.numel > 1 else 1, across)
    if grid[0] not in (1, rows) or columns % across:
        raise Refused(f"has scales of shape {list(scales.shape)} for {[rows, columns]}")
    zeros = given.get("weight_zero_point")
    counted_from = None
    if zeros is not None:
        if zeros.dtype.name != "int32" or len(zeros.shape) != 2 or zeros.shape != (-(-rows * bits // 32), across):
            raise Refused(f"has zero points of shape {list(zeros.shape)}, {zeros.dtype.name}")
        counted_from = _down(zeros, bits, rows, 1 << (bits - 1))
    block = (1 if grid[0] == rows else rows, columns // across)
    numbers = InRows(given.weight, bits, columns, 1 << (bits - 1))
    made = Grid(numbers, Small(factor(scales, grid)), block, counted_from)
    return key, computed(made, scales.dtype, (rows, columns), given.weight)


def _down(zeros: LazyTensor, bits: int, rows: int, minus: int) -> Rows:
    """Zero points that are packed down the rows of a weight: (words, groups)."""
    turned = LazyTensor(zeros.storage, zeros.dtype, zeros.shape[::-1], zeros.stride[::-1], zeros.offset)
    return AcrossColumns(turned, bits, rows, of_awq=False, minus=minus)


def _bits_of(given: Given, columns: int, words: int) -> int:
    """How many bits an integer has: as its width tells. Where several fit, the configuration has a say."""
    fitting = [bits for bits in range(1, 9) if -(-columns * bits // 32) == words]
    padded = [bits for bits in range(1, 9) if -(-columns // (32 // bits)) == words]
    said = {group.get("num_bits") for group in _groups(given.config)}
    known = [bits for bits in fitting if bits in said] or fitting
    if len(known) == 1 and (known[0] in padded or known[0] not in (3, 5, 6, 7)):
        return known[0]
    if len(known) == 1 and not [bits for bits in padded if bits in said]:
        return known[0]
    raise Refused(f"has {words:,} words for {columns:,} columns, which does not tell how they are packed")


def _groups(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a configuration of compressed-tensors says of weights."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield weights


def _float4(given: Given, weight: LazyTensor) -> LazyTensor:
    """NVFP4 and MXFP4 of compressed-tensors, and NVFP4 of ModelOpt."""
    rows, half = shape_of(given, 2)
    columns, scales = half * 2, given.part("weight_scale")
    if len(scales.shape) != 2 or scales.shape[0] != rows or not scales.numel or columns % scales.shape[1]:
        raise Refused(f"has scales of shape {list(scales.shape)} for {[rows, columns]}")
    group = columns // scales.shape[1]
    if group == 32 and scales.dtype.name in ("uint8", "float8_e8m0fnu"):
        exponents, also, divides = scales.dtype.name == "uint8", None, False
    elif group == 16 and scales.dtype.name == "float8_e4m3fn":
        whole, second = given.get("weight_global_scale"), given.get("weight_scale_2")
        also = whole if whole is not None else second
        if also is None or also.numel != 1:
            raise Refused("has no global scale of one number beside it")
        exponents, divides = False, whole is not None
    else:
        raise Refused(f"has {scales.dtype.name} scales for groups of {group}, which is neither NVFP4 nor MXFP4")
    # exponents are looked at as numbers, one by one
    small = Small(factor(scales))
    made = Grid(
        Halves(weight),
        small,
        (1, group),
        None,
        exponents,
        also=factor(also) if also is not None else None,
        divides=divides,
    )
    return computed(made, _BFLOAT16, (rows, columns), weight)


def _scaled(given: Given) -> Made:
    """Float8 or int8 with scales beside it, of compressed-tensors or DeepSeek."""
    weight, key = given.weight, given.one.name
    if weight.dtype.name == "uint8":
        return key, _float4(given, weight)
    shape = shape_of(given, 2, 3)
    if weight.dtype.numpy is None:
        raise Refused(f"has the type {weight.dtype.name}")
    inverse = given.get("weight_scale_inv")
    scales = inverse if inverse is not None else given.get("weight_scale")
    if scales is None or not scales.numel or scales.dtype.numpy is None:
        raise Refused("has no weight_scale beside it")
    if len(shape) != 2:
        raise Refused(f"has the shape {list(shape)}")
    exponents = scales.dtype.name == "uint8"
    grid, block = _blocks(given, shape, scales)
    zeros = given.get("weight_zero_point")
    if zeros is not None and zeros.shape != scales.shape:
        raise Refused(f"has zero points of shape {list(zeros.shape)}, and scales of {list(scales.shape)}")
    counted_from = Small(factor(zeros, grid)) if zeros is not None else None
    made = Grid(stored(weight), Small(factor(scales, grid)), block, counted_from, exponents)
    wide = scales.dtype.is_floating and scales.dtype.itemsize >= 2 and inverse is None
    return key, computed(made, scales.dtype if wide else given.plain, shape, weight)


def _blocks(given: Given, shape: tuple[int, ...], scales: LazyTensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """The grid of the scales, and rows and columns of a block."""
    rows, columns = shape
    if scales.numel == 1:
        return (1, 1), (rows, columns)
    grid = (scales.shape[0], 1) if len(scales.shape) == 1 else scales.shape
    if len(grid) != 2:
        raise Refused(f"has scales of shape {list(scales.shape)}")
    sizes = [given.config.get("weight_block_size"), *(one.get("block_structure") for one in _groups(given.config))]
    for size in sizes:
        if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
            continue
        if grid == (-(-rows // size[0]), -(-columns // size[1])):
            return (grid[0], grid[1]), (size[0], size[1])
    if any(_may_be_another_size(size, count) for size, count in zip(shape, grid, strict=True)):
        raise Refused(f"has scales of shape {list(grid)} for {list(shape)}, and nothing says how large a block is")
    return (grid[0], grid[1]), (rows // grid[0], columns // grid[1])


#: Sizes of blocks that are usual, of which the last one in a row may be cut.
_USUAL_BLOCKS = (256, 128, 64, 32, 16)


def _may_be_another_size(size: int, count: int) -> bool:
    """Whether COUNT blocks may divide SIZE in another way than into equal ones, or cannot do so."""
    if count in (1, size):
        return False
    usual = any(-(-size // block) == count and block * count != size for block in _USUAL_BLOCKS)
    return bool(size % count) or usual


def _gpt_oss(given: Given) -> Made:
    name, blocks = given.one.name.removesuffix("_blocks"), given.weight
    scales = given.tensors.get(f"{name}_scales")
    if len(blocks.shape) != 4 or not blocks.numel or scales is None or scales.shape != blocks.shape[:3]:
        raise Refused(f"has blocks of shape {list(blocks.shape)}")
    if scales.dtype.name != "uint8" or blocks.shape[3] != 16:
        raise Refused(f"has {scales.dtype.name} scales for groups of {blocks.shape[3] * 2}")
    experts, columns, groups, half = blocks.shape
    shape = (experts, groups * half * 2, columns)
    return name, computed(OfGptOss(blocks, scales), _BFLOAT16, shape, blocks, TRANSPOSED)


def of_torchao(parts: Mapping[str, LazyTensor], dtype: DType) -> LazyTensor:
    """The tensors of TORCHAO: blocks of equal size, as the shapes tell."""
    numbers, scales, zeros = parts["qdata"], parts["scale"], parts.get("zero_point")
    shape, grid = numbers.shape, scales.shape if len(scales.shape) == 2 else (1, 1)
    fine = len(shape) == 2 and numbers.numel and numbers.dtype.numpy and scales.dtype.numpy and scales.numel
    if not fine or scales.numel != grid[0] * grid[1] or shape[0] % grid[0] or shape[1] % grid[1]:
        raise CannotCarry(f"holds a torchao tensor of shape {list(shape)} with scales of {list(scales.shape)}")
    if zeros is not None and (zeros.numel != scales.numel or zeros.dtype.is_floating):
        raise CannotCarry(f"holds a torchao tensor with zero points of {zeros.dtype.name}, shape {list(zeros.shape)}")
    block = (shape[0] // grid[0], shape[1] // grid[1])
    counted_from = Small(factor(zeros, grid)) if zeros is not None else None
    made = Grid(stored(numbers), Small(factor(scales, grid)), block, counted_from)
    return computed(made, dtype, shape, numbers)


def _torchao(given: Given) -> Made:
    """The same, flattened into tensors of a safetensors file whose header says what they are."""
    head = given.one.name.removesuffix("_qdata")
    module, _, leaf = head.rpartition("._")
    name = f"{module}.{leaf}"
    try:
        said = read_json(given.notes.get(name, "null"))
        kind, dtype = said["_type"], said["_data"]["dtype"]["_data"]
    except (CheckpointError, KeyError, TypeError):
        raise Refused("has no note in the header that says what it is") from None
    if kind not in TORCHAO or dtype not in BY_NAME or BY_NAME[dtype].numpy is None:
        raise Refused(f"is a {in_words(kind)}; {' and '.join(TORCHAO)} are known")
    parts = {key.removeprefix(f"{head}_"): given.tensors[key] for key in given.one.keys}
    if "scale" not in parts:
        raise Refused("has no scale beside it")
    return name, of_torchao(parts, BY_NAME[dtype])


#: Family of `ckptool.passes.packed` -> how a weight of it is dequantised.
FAMILIES: dict[str, Callable[[Given], Made]] = {
    "bitsandbytes, 4 bits": _bitsandbytes4,
    "bitsandbytes, 8 bits": _bitsandbytes8,
    "compressed-tensors": _compressed,
    "MXFP4": _gpt_oss,
    "torchao": _torchao,
    **{f"{dtype} with scales": _scaled for dtype in ("float8_e4m3fn", "float8_e5m2", "int8", "uint8")},
}
