"""Dequantising: plain tensors of quantised weights, with the values that the library which wrote them computes.

    family              value                                              type                checked against
    torch               (q - zero) scale                                   float32             torch
    bitsandbytes 4      table[q] absmax, absmax quantised once more        as its state says   bitsandbytes 0.50
    bitsandbytes 8      q SCB / 127                                        as config.json says bitsandbytes 0.50
    compressed-tensors  (q - zero) scale, by tensor, rows, groups, blocks  of the scales       compressed-tensors 0.20
    NVFP4, MXFP4        table[q] scale / global scale; table[q] 2^(s-127)  bfloat16            compressed-tensors 0.20
    gpt-oss MXFP4       table[q] 2^(s-127), transposed                     bfloat16            transformers 5.23
    DeepSeek float8     q scale_inv of a block                             as config.json says transformers 5.23
    torchao             (q - zero) scale, int8, float8, int1 to int8       as it says          torchao 0.18
    AWQ                 (q - zero) scale                                   of the scales       autoawq 0.2.9
    GPTQ                (q - zero) scale of the column's group             of the scales       auto-gptq 0.7.1
    MLX                 q scale + bias; table[q] scale                     of the scales       mlx 0.32

Of AWQ and GPTQ what their modules pack was seen, not a file of a whole model. Where the layout is not sure (a version
of the packing that nobody names, an order of columns that is missing) nothing is guessed. Values are computed in
float32 and rounded once, but for MLX, which rounds the product, too; memory is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..checkpoint import Checkpoint, StateDict
from ..dtypes import BY_NAME, DType
from ..errors import CannotCarry, NoMatch, counted, printable
from ..inert import decode
from ..inert.other_tensors import OtherTensor, others_in
from ..tensor import LazyTensor
from ..tree import rebuild
from .by_key import Missing
from .gptq_and_awq import awq_or_gptq
from .mlx_weights import of_mlx
from .packed import Packed, kinds_of_packed, packed_in
from .quantized_families import FAMILIES, TORCHAO, Given, Made, Refused, of_torchao
from .side_files import config_of, quantization_of, without_quantization
from .values import with_other_entries

_FAMILIES = {**FAMILIES, "GPTQ": awq_or_gptq, "AWQ or GPTQ": awq_or_gptq, "MLX": of_mlx}


def dequantize(ckpt: Checkpoint, *, at: str | None = None, missing: Missing = "error") -> Checkpoint:
    """Make plain tensors of quantised ones: the values that the library which wrote them computes.

    torch's own quantised tensors, wherever they are in the file, become float32. Of the weights, those of bitsandbytes,
    compressed-tensors, GPTQ, AWQ, MLX, torchao, DeepSeek's float8, NVFP4 and MXFP4 get the type that the library gives
    them. What belonged to them (scales, zeros) goes, and so does what a `config.json` beside them says of it.

    Args:
        ckpt: the checkpoint.
        at: path of the state dict.
        missing: "ok" lets it match nothing.

    Raises:
        NoMatch: nothing is quantised.
        CannotCarry: a weight is quantised in a way that is not known, or not sure.
    """
    return _dequantized(ckpt, at, missing, every=True)


def try_dequantizing(ckpt: Checkpoint, *, at: str | None = None) -> None:
    """Raise what `dequantize` would raise, from a look at one of the weights that are alike (see `kinds_of_packed`)."""
    _dequantized(ckpt, at, "error", every=False)


def _dequantized(ckpt: Checkpoint, at: str | None, missing: Missing, *, every: bool) -> Checkpoint:
    found = [(node, other) for _, node, other in others_in(ckpt.root) if _is_known(other)]
    made = {id(node): _of_object(other) for node, other in found}
    before, after = sum(other.nbytes for _, other in found), sum(tensor.nbytes for tensor in made.values())
    weights = _weights(ckpt, at)
    packed = packed_in(weights) if weights else []
    if weights is not None and not every:
        packed = [alike[0] for alike in kinds_of_packed(weights)]
    if not found and not packed and missing == "error":
        raise NoMatch("no tensor is quantized", where=ckpt.where, hint="--if-present   # lets rules match nothing")
    lines = []
    if found or not packed:
        lines = [f"dequantize: {counted(len(found), 'quantized tensor')}, {before:,} bytes -> {after:,}"]
    done = replace(ckpt, root=rebuild(ckpt.root, instead=made)) if made else ckpt
    if packed and weights is not None:
        weights = done.state_dict(at)
        entries, told = _unpacked(done, weights, packed)
        done = with_other_entries(done, weights, entries)
        done = without_quantization(replace(done, metadata=_without_notes(done.metadata, packed)))
        lines += told
    elif found and any(other.kind == "subclass" for _, other in found):
        done = without_quantization(done)
    return done.noting(*lines)


def _weights(ckpt: Checkpoint, at: str | None) -> StateDict | None:
    """The weights, if there is one state dict of them in the file itself."""
    if at is None and len(ckpt.state_dicts()) != 1:
        return None
    found = ckpt.state_dict(at)
    return found if found.model is None else None


def _is_known(other: OtherTensor) -> bool:
    return other.kind == "quantized" or (other.kind == "subclass" and other.class_name.startswith("torchao."))


def _of_object(other: OtherTensor) -> LazyTensor:
    """The plain tensor of an object of torch or of torchao."""
    if other.kind == "quantized":
        return decode.dequantized(other)
    name = other.class_name.rpartition(".")[2]
    if name not in TORCHAO or other.dtype is None or "qdata" not in other.parts or "scale" not in other.parts:
        raise CannotCarry(f"holds a {printable(other.class_name, 80)}, whose packing is not known")
    return of_torchao(other.parts, other.dtype)


def _unpacked(ckpt: Checkpoint, weights: StateDict, packed: list[Packed]) -> tuple[list[tuple[Any, Any]], list[str]]:
    """The entries of a state dict with plain weights, and what was done."""
    config, tensors = quantization_of(ckpt), weights.tensors
    parts = {key for one in packed for key in one.keys}
    plain = _plain_type(ckpt, tensors, parts)
    made: dict[str, Made] = {}
    refused: list[str] = []
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for one in packed:
        family = _FAMILIES.get(one.family)
        try:
            if family is None:
                raise Refused("is not dequantised")
            made[one.name] = family(Given(one, tensors, config, plain, ckpt.metadata))
        except Refused as why:
            refused.append(f"{printable(one.name, 80)} ({one.family}): {why}")
            continue
        counts[one.family] += 1
        sizes[f"{one.family} before"] += sum(tensors[key].nbytes for key in one.keys)
        sizes[f"{one.family} after"] += made[one.name][1].nbytes
    if refused:
        raise CannotCarry(
            f"has {counted(len(refused), 'quantised weight')} that cannot be dequantised:",
            where=ckpt.where,
            evidence=refused[:6] + ([f"… and {len(refused) - 6:,} more"] if len(refused) > 6 else []),
        )
    entries = []
    for key, value in weights.node.entries:
        if key in made:
            entries.append(made[key])
        elif key not in parts:
            entries.append((key, value))
    names = [key for key, _ in entries]
    if len(set(names)) < len(names):
        raise CannotCarry("has a plain tensor where a quantised one would go", where=ckpt.where)
    lines = [
        f"dequantize: {counted(count, 'weight')} of {family}, "
        f"{sizes[f'{family} before']:,} bytes -> {sizes[f'{family} after']:,}"
        for family, count in counts.items()
    ]
    return entries, lines


def _plain_type(ckpt: Checkpoint, tensors: Mapping[str, LazyTensor], parts: set[str]) -> DType:
    """The type of a model's weights: as its configuration says, else that of most numbers beside the packed ones."""
    config = config_of(ckpt)
    inner = config.get("text_config")
    for node in (config, inner if isinstance(inner, dict) else {}):
        for name in ("torch_dtype", "dtype"):
            said = str(node.get(name)).removeprefix("torch.")
            if said in ("float16", "bfloat16", "float32"):
                return BY_NAME[said]
    counts: Counter[str] = Counter()
    for key, tensor in tensors.items():
        if key not in parts and tensor.dtype.name in ("float16", "bfloat16", "float32"):
            counts[tensor.dtype.name] += tensor.numel
    return BY_NAME[counts.most_common(1)[0][0]] if counts else BY_NAME["float32"]


def _without_notes(metadata: Mapping[str, str], packed: list[Packed]) -> Mapping[str, str]:
    """The text in a header without torchao's notes on tensors that are plain now."""
    if not any(one.family == "torchao" for one in packed):
        return metadata
    return {key: text for key, text in metadata.items() if key != "tensor_names" and '"_type"' not in text}
