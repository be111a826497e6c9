"""Weights that are packed or quantised over several tensors: what belongs together, by names and types.

    family              weight                       what belongs to it
    bitsandbytes 4-bit  X uint8                      X.absmax, X.quant_map, X.nested_absmax, X.nested_quant_map,
                                                     X.quant_state.bitsandbytes__nf4 (or fp4)
    bitsandbytes 8-bit  P.weight int8                P.SCB, P.weight_format
    GPTQ, AWQ           P.qweight int32              P.qzeros, P.scales, and of GPTQ P.g_idx
    compressed-tensors  P.weight_packed              P.weight_scale, P.weight_zero_point, P.weight_shape, P.weight_g_idx
    float8 with scales  P.weight float8              P.weight_scale, P.weight_scale_inv, P.input_scale, P.scale_weight …
    integers of these   P.weight int8                P.weight_scale, P.weight_zero_point …
    MLX                 P.weight uint32              P.scales, P.biases
    MXFP4               X_blocks uint8               X_scales
    torchao             P._weight_qdata              P._weight_scale, P._weight_zero_point
    torch's own         P.scale, P.zero_point        as quantised modules and observers save them

Sources: what the libraries wrote (bitsandbytes 0.50, compressed-tensors 0.20, transformers 5.23, MLX 0.32, auto-gptq
0.7.1, autoawq 0.2.9). The numbers of one tensor mean nothing without the others, so a change of type in one
of them spoils the weight.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from ..checkpoint import StateDict
from ..dtypes import BY_NAME
from ..records import record
from ..tensor import LazyTensor
from .mlx_settings import settings_of

_BITSANDBYTES = "absmax quant_map nested_absmax nested_quant_map".split()
_SCALES = """weight_scale weight_scale_inv weight_scale_2 weight_zero_point weight_shape weight_g_idx input_scale
input_zero_point input_global_scale weight_global_scale output_scale scale_weight scale_input k_scale v_scale""".split()
#: Names of what looks like a part of a packed weight, of whatever family.
_SUSPECT = re.compile(
    r"(?:^|[._])(?:q?scales?|scale_inv|absmax|zeros?|zero_points?|quant_map|code(?:book)?|scb)\Z", re.I
)


#: Types of integers that hold packed weights. Indices are of 64 bits.
_WORDS = frozenset("int8 uint8 int16 uint16 int32 uint32".split())


@record(frozen=True, slots=True)
class Packed:
    """A weight that is packed over several tensors.

    Attributes:
        family: who packs like that ("bitsandbytes").
        name: the weight.
        keys: its tensors, with that of the weight itself.
    """

    family: str
    name: str
    keys: tuple[str, ...]


#: What is in the name of some tensor of every family, or else a type that one of its tensors has.
_MARKS = ("qweight", "weight_packed", "zero_point", "_blocks", "_qdata")
_DTYPES = frozenset(
    ["int8", "uint8", "uint32", "float4_e2m1fn_x2", *(name for name in BY_NAME if name.startswith("float8"))]
)


#: Last names of weights that are packed, but for those of bitsandbytes.
_WEIGHTS = frozenset("qweight weight_packed zero_point weight".split())


def packed_in(weights: StateDict) -> list[Packed]:
    """The packed weights of a state dict, in its order."""
    return list(weights.once(_packed_in))


def _packed_in(weights: StateDict) -> list[Packed]:
    found: list[Packed] = []
    types = {view.dtype.name for view in weights.views}
    if _DTYPES.isdisjoint(types) and not any(mark in weights.outline for mark in _MARKS):
        return found  # as for most: a look at each key takes long
    tensors = weights.tensors
    lasts = [key.rpartition(".")[2] for key in tensors]
    ends = set(lasts)
    scales = [name for name in _SCALES if name in ends]
    if "absmax" not in ends:  # else any name may be that of a weight
        ends = {last for last in ends if last in _WEIGHTS or last.endswith(("_blocks", "_qdata"))}
    for last, (key, tensor) in zip(lasts, tensors.items(), strict=True):
        if last in ends and (one := _packed(key, tensor.dtype.name, tensors, scales)) is not None:
            family, others = one
            found.append(Packed(family, key, (key, *[other for other in others if other in tensors])))
    return found


#: Families of which shapes and types tell all but the numbers; of the others, notes, values and names of modules count.
_TOLD_BY_SHAPES = (" with scales", "MXFP4")


def kinds_of_packed(weights: StateDict) -> list[list[Packed]]:
    """The packed weights of a state dict in groups of those that are alike: equal shapes and types of parts with equal
    names.

    A weight of a family of which more than that counts is a group of its own.
    """
    return list(weights.once(_kinds_of_packed))


def _kinds_of_packed(weights: StateDict) -> list[list[Packed]]:
    found: defaultdict[tuple[Any, ...], list[Packed]] = defaultdict(list)
    tensors = weights.tensors
    for one in packed_in(weights):
        begin = one.name.rfind(".") + 1
        names, views = [key[begin:] for key in one.keys], [tensors[key].view for key in one.keys]
        alone = "" if one.family.endswith(_TOLD_BY_SHAPES) else one.name
        told = (one.family, alone, *names, *views)
        found[told].append(one)
    return list(found.values())


def _packed(key: str, dtype: str, tensors: Mapping[str, Any], scales: list[str]) -> tuple[str, list[str]] | None:
    """The family and the further keys of the packed weight KEY, or None if it is none that is known.

    SCALES are those of `_SCALES` that some tensor is called.
    """
    head, _, last = key.rpartition(".")
    beside = f"{head}." if head else ""
    if last == "qweight" and dtype == "int32" and f"{beside}scales" in tensors:
        family = "GPTQ" if f"{beside}g_idx" in tensors else "AWQ or GPTQ"
        return family, [f"{beside}{name}" for name in ("qzeros", "scales", "g_idx")]
    if dtype == "uint8" and f"{key}.absmax" in tensors:
        states = [f"{key}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")]
        return "bitsandbytes, 4 bits", [*(f"{key}.{name}" for name in _BITSANDBYTES), *states]
    if last == "weight_packed":
        return "compressed-tensors", [f"{beside}{name}" for name in scales]
    if last == "zero_point" and f"{beside}scale" in tensors:
        return "torch", [f"{beside}scale"]
    if last.endswith("_blocks") and dtype == "uint8":
        its_scales = key.removesuffix("_blocks") + "_scales"
        return ("MXFP4", [its_scales]) if its_scales in tensors else None
    if last.startswith("_") and last.endswith("_qdata") and key.removesuffix("qdata") + "scale" in tensors:
        stem = key.removesuffix("qdata")
        return "torchao", [other for other in tensors if other.startswith(stem) and other != key]
    if last != "weight":
        return None
    if dtype == "int8" and f"{beside}SCB" in tensors:
        return "bitsandbytes, 8 bits", [f"{beside}SCB", f"{beside}weight_format"]
    if dtype == "uint32" and f"{beside}scales" in tensors:
        return "MLX", [f"{beside}scales", f"{beside}biases"]
    narrow = dtype.startswith("float8") or dtype in ("int8", "uint8", "float4_e2m1fn_x2")
    if narrow and any(f"{beside}{name}" in tensors for name in scales):
        return f"{dtype} with scales", [f"{beside}{name}" for name in scales]
    return None


def grain(one: Packed, tensors: Mapping[str, LazyTensor], config: Mapping[str, Any]) -> tuple[int | None, str]:
    """How many bits a number of a packed weight has, and what shares a scale, in words; as far as shapes tell.

    Args:
        one: the weight.
        tensors: the state dict.
        config: the `quantization_config` beside it.
    """
    parts = {key.rpartition(".")[2]: tensors[key] for key in one.keys}
    weight = tensors[one.name]
    bits = config.get("bits", config.get("w_bit"))
    if one.family.startswith("bitsandbytes, 4"):
        return 4, f"groups of {weight.numel * 2 // max(parts['absmax'].numel, 1)}"
    if one.family.startswith("bitsandbytes"):
        return 8, "rows"
    if one.family in ("GPTQ", "AWQ or GPTQ") and "scales" in parts and len(weight.shape) == 2:
        sizes = parts["scales"].shape
        zeros = parts["qzeros"].shape if "qzeros" in parts else ()
        if len(sizes) != 2 or not sizes[0] or not sizes[1]:
            return None, ""
        if type(bits) is not int and len(zeros) == 2:
            bits = zeros[1] * 32 // sizes[1]
        if type(bits) is not int or not 0 < bits <= 16:
            return None, ""
        across = weight.shape[0] * 32 // bits if weight.shape[1] == sizes[-1] else weight.shape[0]
        return bits, f"groups of {across // sizes[0]}"
    if one.family == "MXFP4":
        return 4, "groups of 32"
    if one.family == "MLX" and len(parts["scales"].shape) == len(weight.shape):
        module, plain = one.name.rpartition(".")[0], "biases" in parts
        mlx = settings_of(config, module, weight.shape[-1], parts["scales"].shape[-1], plain)
        return (mlx[0], f"groups of {mlx[1]}") if mlx else (None, "")
    scales = next(
        (t for name, t in parts.items() if name.endswith(("weight_scale", "weight_scale_inv", "_scale"))), None
    )
    narrow = {"uint8": 4, "float4_e2m1fn_x2": 4, "int32": None}.get(weight.dtype.name, 8)
    if narrow is None:
        groups = config.get("config_groups")
        said = (
            [g.get("weights", {}) for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
        )
        found = {w.get("num_bits") for w in said if isinstance(w, dict)}
        narrow = found.pop() if len(found) == 1 else None
    return narrow, _shared(weight, scales, narrow)


def _shared(weight: LazyTensor, scales: LazyTensor | None, bits: Any) -> str:
    """What shares a scale, in words."""
    if scales is None or len(weight.shape) != 2 or type(bits) is not int:
        return ""
    rows = weight.shape[0]
    columns = weight.shape[1] * weight.dtype.itemsize * 8 // bits if bits else 0
    if scales.numel <= 1:
        return "the whole tensor"
    down, across = (scales.shape[0], 1) if len(scales.shape) == 1 else scales.shape[-2:]
    if not down or not across:
        return ""
    if down == rows:
        return "rows" if across == 1 else f"groups of {columns // across}"
    return f"blocks of {-(-rows // down)} x {-(-columns // across)}"


def unknown_in(tensors: Mapping[str, LazyTensor], known: set[str]) -> Iterator[tuple[str, str]]:
    """(weight, what is beside it) of weights that look packed in a way that is not KNOWN, by their keys."""
    suspects: dict[str, str] = {}
    for key, tensor in tensors.items():
        if tensor.dtype.is_floating and _SUSPECT.search(key):
            head = key.rpartition(".")[0]
            suspects.setdefault(head, key)
    for key, tensor in tensors.items():
        if key in known or tensor.dtype.name not in _WORDS or len(tensor.shape) < 2:
            continue
        beside = suspects.get(key.rpartition(".")[0]) or suspects.get(key)
        if beside is not None and beside not in known:
            yield key, beside


__all__ = ["Packed", "grain", "kinds_of_packed", "packed_in", "unknown_in"]
