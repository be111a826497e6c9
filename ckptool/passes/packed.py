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
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..checkpoint import StateDict
from ..dtypes import BY_NAME
from ..records import record
from ..tensor import LazyTensor, View
from .mlx_settings import settings_of

_BITSANDBYTES = "absmax quant_map nested_absmax nested_quant_map".split()
_BITSANDBYTES += [f"quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")]
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
        look: equal for weights of one family whose tensors have equal names in their modules, shapes and types.
    """

    family: str
    name: str
    keys: tuple[str, ...]
    look: tuple[Any, ...] = ()


#: What is in the name of some tensor of every family, or else a type that one of its tensors has.
_MARKS = ("qweight", "weight_packed", "zero_point", "_blocks", "_qdata")
_DTYPES = frozenset(
    ["int8", "uint8", "uint32", "float4_e2m1fn_x2", *(name for name in BY_NAME if name.startswith("float8"))]
)


def packed_in(weights: StateDict) -> list[Packed]:
    """The packed weights of a state dict, module after module in the order of their first tensors."""
    return list(weights.once(_packed_in))


def _packed_in(weights: StateDict) -> list[Packed]:
    types = {view.dtype.name for view in weights.views}
    if _DTYPES.isdisjoint(types) and not any(mark in weights.outline for mark in _MARKS):
        return []  # as for most: a look at each key takes long
    found: list[Packed] = []
    tensors = weights.tensors
    modules: dict[str, list[Any]] = {}  # path with its last dot -> the name and the view of one tensor after the other
    for key, tensor in tensors.items():
        begin = key.rfind(".") + 1
        module = key[:begin]
        if module in modules:
            modules[module] += (key[begin:], tensor.view)
        else:
            modules[module] = [key[begin:], tensor.view]
    known: dict[tuple[Any, ...], list[tuple[str, list[str], tuple[Any, ...]]]] = {}
    for module, held in modules.items():
        told = tuple(held)
        here = known.get(told)  # modules are many, and alike
        if here is None:
            here = known[told] = _in_module(dict(zip(held[::2], held[1::2], strict=True)))
        for family, parts, look in here:
            keys = tuple([module + part for part in parts])
            found.append(Packed(family, keys[0], keys, look))
        weight = module.removesuffix(".")
        if module and "absmax" in held and weight in tensors and tensors[weight].dtype.name == "uint8":
            others = [key for name in _BITSANDBYTES if (key := module + name) in tensors]
            found.append(Packed("bitsandbytes, 4 bits", weight, (weight, *others)))
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
    found: defaultdict[Any, list[Packed]] = defaultdict(list)
    for one in packed_in(weights):
        found[one.look if one.family.endswith(_TOLD_BY_SHAPES) else one.name].append(one)
    return list(found.values())


def _in_module(views: Mapping[str, View]) -> list[tuple[str, list[str], tuple[Any, ...]]]:
    """The packed weights of a module, each with its family, the names of its tensors, that of the weight first, and its
    look (see `Packed`). VIEWS are those of all tensors of the module, by name.
    """
    found = []
    for name, view in views.items():
        family, others = _packed(name, view.dtype.name, views)
        if family:
            parts = [name, *(other for other in others if other in views and other != name)]
            found.append((family, parts, (family, *parts, *map(views.__getitem__, parts))))
    return found


def _packed(name: str, dtype: str, beside: Collection[str]) -> tuple[str, Iterable[str]]:
    """The family of a packed weight, "" if it is none that is known, and what its other tensors may be called.

    BESIDE are the names of the tensors of its module.
    """
    if name == "qweight" and dtype == "int32" and "scales" in beside:
        return ("GPTQ" if "g_idx" in beside else "AWQ or GPTQ"), ("qzeros", "scales", "g_idx")
    if name == "weight_packed":
        return "compressed-tensors", _SCALES
    if name == "zero_point" and "scale" in beside:
        return "torch", ("scale",)
    if name.endswith("_blocks") and dtype == "uint8" and (its := f"{name.removesuffix('_blocks')}_scales") in beside:
        return "MXFP4", (its,)
    if name.startswith("_") and name.endswith("_qdata") and f"{name.removesuffix('qdata')}scale" in beside:
        return "torchao", [other for other in beside if other.startswith(name.removesuffix("qdata"))]
    if name != "weight":
        return "", ()
    if dtype == "int8" and "SCB" in beside:
        return "bitsandbytes, 8 bits", ("SCB", "weight_format")
    if dtype == "uint32" and "scales" in beside:
        return "MLX", ("scales", "biases")
    narrow = dtype.startswith("float8") or dtype in ("int8", "uint8", "float4_e2m1fn_x2")
    return (f"{dtype} with scales", _SCALES) if narrow and any(scale in beside for scale in _SCALES) else ("", ())


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
