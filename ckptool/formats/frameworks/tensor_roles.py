"""What tensors are in their layers, told by names and numbers of dimensions, where a file says no more.

Layers of a framework call their weights alike: a `kernel` of Flax or TensorFlow has its outputs last, a `.weight` of
MLX its inputs. The words and orders are those of `flax.linen` and `flax.nnx`, of `keras.layers`, `tf.compat.v1.layers`
and slim, of `mlx.nn`, of Paddle's `nn`, and of the tensors that llama.cpp's converter writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...checkpoint import Checkpoint, Role
from ...tensor import LazyTensor

#: Number of dimensions in space -> their letters.
SPACE = {1: "W", 2: "HW", 3: "DHW"}
_NAME = "name"
#: What writers of safetensors other than torch's call themselves in its metadata.
_WRITERS = {"mlx": "mlx", "flax": "flax", "tf": "tensorflow", "np": "numpy"}

#: What is asked: the components of a name, the number of dimensions, the names that stand beside its module.
_Rule = Callable[[list[str], int, frozenset[str]], Role]


def told_by_writer(ckpt: Checkpoint) -> Checkpoint:
    """The checkpoint with the framework that its metadata name, and with what names tell of tensors."""
    framework = ckpt.framework or _WRITERS.get(ckpt.metadata.get("format", ""), "")
    if framework not in _RULES:
        return ckpt if framework == ckpt.framework else replace(ckpt, framework=framework)
    found: dict[str, Role] = {}
    for weights in ckpt.state_dicts():
        found |= roles_by_name(framework, weights.tensors)
    return replace(ckpt, framework=framework, roles={**found, **ckpt.roles})


def roles_by_name(framework: str, tensors: Mapping[str, LazyTensor]) -> dict[str, Role]:
    """Key -> what the tensor is, for those that the words of FRAMEWORK tell anything of."""
    rule = _RULES.get(framework)
    if rule is None:
        return {}
    parts = {key: _components(key) for key in tensors}
    beside: dict[tuple[str, ...], set[str]] = {(): set()}
    for path in parts.values():
        for at in (1, 2):
            beside.setdefault(tuple(path[:-at]), set()).update(path[-at : len(path) - at + 1])
    packed = {key.rpartition(".")[0] for key in tensors if key.endswith(".scales")} if framework == "mlx" else set()
    found = {}
    for key, tensor in tensors.items():
        if key.rpartition(".")[0] in packed:
            continue
        near = frozenset(beside[tuple(parts[key][:-2])] | beside[tuple(parts[key][:-1])])
        role = rule(parts[key], len(tensor.shape), near)
        if role != Role():
            found[key] = Role(role.layer, role.part, role.axes, _NAME)
    return found


def _components(key: str) -> list[str]:
    """The components of a name, without the `value` that NNX puts behind the names of variables."""
    parts = re.split(r"[/.]", key.removesuffix(":0"))
    return parts[:-1] if parts[-1] == "value" and len(parts) > 1 else parts


def _kernel(layer: str, rank: int, words: str, near: frozenset[str]) -> Role:
    """A kernel with its outputs last, of a layer in whose name and class WORDS stand."""
    if rank == 2:
        return Role(layer, "kernel", "IO")
    module = words.rpartition(" ")[2]
    if {"query", "key", "value"} <= near:
        axes = "IIO" if module in ("out", "attention_output") else "IOO" if module in ("query", "key", "value") else ""
        return Role(layer, "kernel", axes if rank == 3 else "")
    space = SPACE.get(rank - 2, "")
    if not space or (rank != 4 and "conv" not in words):
        return Role(layer, "kernel")
    return Role(layer, "kernel", f"{space}IO")


def _of_flax(path: list[str], rank: int, near: frozenset[str]) -> Role:
    """Names of Flax: `Conv_0/kernel`, where classes with a number are names that Flax gave."""
    leaf, module = path[-1], path[-2] if len(path) > 1 else ""
    attention = {"query", "key", "value"} <= near and len(path) > 2
    given = re.fullmatch(r"([A-Z][A-Za-z0-9]*)_\d+", path[-3] if attention else module)
    layer = given[1] if given else ""
    if leaf == "kernel":
        role = _kernel(layer, rank, f"{layer} {module}".lower(), near)
        if re.fullmatch(r"h[fgio]", module) and {"hi", "ho"} <= near:
            return Role(layer, "recurrent_kernel", role.axes)
        return role
    if leaf == "embedding":
        return Role(layer, "embeddings", "VO" if rank == 2 else "")
    if leaf == "bias":
        heads = rank == 2 and attention and module in ("query", "key", "value")
        return Role(layer, "beta" if "scale" in near else "bias", "OO" if heads else "")
    known = {"scale": "gamma", "mean": "moving_mean", "var": "moving_variance"}
    return Role(layer, known[leaf]) if leaf in known and rank == 1 else Role()


_TABLES = re.compile(r"(?:\w+_)?embeddings?(?:_table)?")
_LAYERS_OF_TF = re.compile(
    r"conv[123]d(?:_transpose)?|(?:depthwise|separable)_conv[12]d|(?:einsum_)?dense|embedding|(?:layer|batch|group)_"
    r"normalization|(?:lstm|gru|simple_rnn)(?:_cell)?|multi_head_attention"
)
_WORDS_OF_TF = {
    "bias": "bias",
    "biases": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "moving_mean": "moving_mean",
    "moving_variance": "moving_variance",
}


def _of_tensorflow(path: list[str], rank: int, near: frozenset[str]) -> Role:
    """Names of Keras, of `tf.layers` and of slim: `conv2d_3/kernel`, `Conv2d_1_depthwise/depthwise_weights`."""
    leaf, module = path[-1], path[-2] if len(path) > 1 else ""
    layer = re.sub(r"_\d+$", "", module)
    words = layer.lower()
    layer = layer if _LAYERS_OF_TF.fullmatch(layer) else ""
    space = SPACE.get(rank - 2, "") if rank > 2 else ""
    if leaf in ("depthwise_kernel", "depthwise_weights"):
        return Role(layer, "depthwise_kernel", f"{space}IM" if space else "")
    if leaf in ("pointwise_kernel", "pointwise_weights"):
        return Role(layer, "pointwise_kernel", f"{space}IO" if space else "")
    if leaf == "recurrent_kernel":
        return Role(layer, leaf, "IO" if rank == 2 else "")
    if leaf in ("kernel", "weights"):
        if space and "depthwise" in words:
            return Role(layer, "depthwise_kernel", f"{space}IM")
        if space and "transpose" in words:
            return Role(layer, "kernel", f"{space}OI")
        return _kernel(layer, rank, words, near)
    if _TABLES.fullmatch(leaf) and rank == 2:
        return Role(layer, "embeddings", "VO")
    part = _WORDS_OF_TF.get(leaf, "")
    heads = leaf == "bias" and rank == 2 and module in ("query", "key", "value") and {"query", "key", "value"} <= near
    return Role(layer, part, "OO" if heads else "") if part else Role()


def _of_mlx(path: list[str], rank: int, near: frozenset[str]) -> Role:
    """Names of MLX: `conv.weight`, with the inputs last."""
    leaf, module = path[-1], path[-2] if len(path) > 1 else ""
    if leaf != "weight" or rank < 2:
        return Role()
    if rank == 2:
        table = "embed" in module or module in ("wte", "wpe")
        return Role("", "embeddings", "VO") if table else Role("", "kernel", "OI")
    space = SPACE.get(rank - 2, "")
    if rank == 3 and "conv" not in module:
        return Role("", "kernel", "NOI") if "experts" in path or "switch_mlp" in path else Role()
    return Role("", "kernel", f"O{space}I") if space else Role()


_LINEAR = re.compile(r"(?:cross_)?attn_(?!rel_b|sinks)\w+|ffn_\w+|output|cls(?:_out)?|ssm_(?:in|out|x|dt)")


def _of_llama(path: list[str], rank: int, near: frozenset[str]) -> Role:
    """Names of llama.cpp: `blk.0.attn_q.weight`. Its dimensions are turned round already, so they are as in torch."""
    leaf, module = path[-1], path[-2] if len(path) > 1 else ""
    norm = module.endswith("norm")
    if leaf == "bias" and rank == 1:
        return Role("", "beta" if norm else "bias")
    if leaf != "weight":
        return Role()
    if norm and rank == 1:
        return Role("", "gamma")
    if module in ("token_embd", "position_embd", "token_types") and rank == 2:
        return Role("", "embeddings", "VO")
    if module == "patch_embd" and rank == 4:
        return Role("", "kernel", "OIHW")
    if not _LINEAR.fullmatch(module) or norm:
        return Role()
    if rank == 3 and module.endswith("_exps"):
        return Role("", "kernel", "NOI")
    return Role("", "kernel", "OI") if rank == 2 else Role()


def _of_arrays(path: list[str], rank: int, near: frozenset[str]) -> Role:
    """Names in files of plain arrays: those that Flax and TensorFlow mean the same by."""
    return _of_flax(path, rank, near) if path[-1] in ("kernel", "embedding") and len(path) > 1 else Role()


_RULES: dict[str, _Rule] = {
    "flax": _of_flax,
    "orbax": _of_flax,
    "tensorflow": _of_tensorflow,
    "tensorflow.js": _of_tensorflow,
    "mlx": _of_mlx,
    "llama.cpp": _of_llama,
    "numpy": _of_arrays,
}
