"""The names and roles that Keras gives its weights, told from the groups and attributes of its HDF5 files.

    layers/conv2d_3/vars/0            Keras 3 (.weights.h5, in .keras): the name of the layer is an attribute of `vars`,
                                      what the weight is follows from its number and the class of the layer
    model_weights/L/L/kernel:0        Keras 1 and 2 (.h5): `layer_names` and `weight_names` are attributes
    L/L/kernel:0                      the same, of save_weights

The names of Keras 3 are those of `model.weights[i].path`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...checkpoint import Role
from ...disk.documents import read_json
from ...errors import Malformed, counted
from ...tensor import LazyTensor
from .tensor_roles import SPACE

#: Class of a layer -> the names of its weights, in the order in which it makes them.
_PARTS = {
    "dense": "kernel bias",
    "einsum_dense": "kernel bias",
    "embedding": "embeddings",
    "batch_normalization": "gamma beta moving_mean moving_variance",
    "layer_normalization": "gamma beta",
    "group_normalization": "gamma beta",
    "prelu": "alpha",
    "p_re_l_u": "alpha",
    "lstm_cell": "kernel recurrent_kernel bias",
    "gru_cell": "kernel recurrent_kernel bias",
    "simple_rnn_cell": "kernel recurrent_kernel bias",
    **dict.fromkeys(("query_dense", "key_dense", "value_dense", "output_dense"), "kernel bias"),
} | {
    f"{kind}{n}d{end}": parts
    for n in (1, 2, 3)
    for kind, end, parts in (
        ("conv", "", "kernel bias"),
        ("conv", "_transpose", "kernel bias"),
        ("depthwise_conv", "", "kernel bias"),
        ("separable_conv", "", "depthwise_kernel pointwise_kernel bias"),
    )
}
_ROOT = "model_weights"
_OPTIMIZER = "optimizer_weights"
_CONFIG = "model_config"


@dataclass(slots=True)
class Names:
    """What Keras calls the tensors of a file.

    Attributes:
        weights, optimizer: (name, path in the file), in order.
        roles: name -> what it is.
        texts: configurations.
        framework: "keras", or "" for a file that is not Keras's.
        notes: what a person should know.
    """

    weights: list[tuple[str, str]] = field(default_factory=list)
    optimizer: list[tuple[str, str]] = field(default_factory=list)
    roles: dict[str, Role] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    framework: str = ""
    notes: list[str] = field(default_factory=list)


def named_as_in_keras(
    paths: list[str], groups: Mapping[str, Any], texts: Mapping[str, str], tensors: Mapping[str, LazyTensor]
) -> Names:
    """Names for the tensors at PATHS, from the attributes of GROUPS and the configuration among TEXTS."""
    root = next((at for at in (_ROOT, "") if "layer_names" in groups.get(at, {})), None)
    found = Names()
    for key in ("keras_version", "backend", _CONFIG, "training_config"):
        value = groups.get("", {}).get(key)
        if isinstance(value, str):
            found.texts[f"keras.{key}"] = value
    if root is not None:
        _legacy(found, root, paths, groups)
    elif any("/vars/" in f"/{path}" for path in paths):
        _new(found, paths, groups)
    else:
        found.weights = [(path, path) for path in paths]
        return found
    found.framework = "keras"
    layers = _configured(texts.get("keras.config") or found.texts.get(f"keras.{_CONFIG}"))
    beside: dict[str, set[str]] = defaultdict(set)
    for name, _ in found.weights:
        *above, module, _ = ("", "", *name.split("/"))
        beside["/".join(above)].add(module)
    for name, path in found.weights:
        near = frozenset(beside["/".join(("", "", *name.split("/"))[:-2])])
        role = role_in_keras(name, len(tensors[path].shape), layers, found.roles.get(name, Role()), near)
        if role != Role():
            found.roles[name] = role
    return found


def _texts_of(attributes: Mapping[str, Any], name: str) -> list[str]:
    """A list of names, which is divided among NAME0, NAME1 … where it is long."""
    parts = [attributes.get(name)] if name in attributes else []
    while f"{name}{len(parts)}" in attributes:
        parts.append(attributes[f"{name}{len(parts)}"])
    return [text for part in parts if isinstance(part, list) for text in part if isinstance(text, str)]


def _legacy(found: Names, root: str, paths: list[str], groups: Mapping[str, Any]) -> None:
    """Names as `weight_names` has them, layer by layer."""
    known = set(paths)
    listed: list[tuple[str, str, str]] = []
    for layer in _texts_of(groups[root], "layer_names"):
        group = f"{root}/{layer}" if root else layer
        weights = _texts_of(groups.get(group, {}), "weight_names")
        listed += [(layer, weight, f"{group}/{weight}") for weight in weights if f"{group}/{weight}" in known]
    short = {weight.removesuffix(":0") for _, weight, _ in listed}
    for layer, weight, path in listed:
        name = weight.removesuffix(":0")
        found.weights.append((name if len(short) == len(listed) else f"{layer}/{name}", path))
    done = {path for _, _, path in listed}
    for path in paths:
        if path in done:
            continue
        if path.startswith(f"{_OPTIMIZER}/"):
            found.optimizer.append((path.removeprefix(f"{_OPTIMIZER}/").removesuffix(":0"), path))
        else:
            found.weights.append((path, path))
    if len({name for name, _ in found.weights}) < len(found.weights):
        found.weights = [(path, path) for _, path in found.weights]


def _new(found: Names, paths: list[str], groups: Mapping[str, Any]) -> None:
    """Names from the attributes `name` of the groups `vars`."""
    sizes: dict[str, int] = defaultdict(int)
    for path in paths:
        sizes[path.rpartition("/")[0]] += 1
    named: list[tuple[str, str, Role]] = []
    for path in paths:
        holder, _, last = path.rpartition("/")
        if path.startswith("optimizer/"):
            found.optimizer.append((path.removeprefix("optimizer/"), path))
            continue
        parts = holder.split("/")
        if parts[-1:] != ["vars"] or not last.isdecimal():
            named.append((path, path, Role()))
            continue
        words: list[str] = []
        for end in range(1, len(parts)):
            name = groups.get("/".join([*parts[:end], "vars"]), {}).get("name")
            if isinstance(name, str) and name:
                words.append(name)
        kind = re.sub(r"_\d+$", "", parts[-2]) if len(parts) > 1 else ""
        if kind == "cell" and len(parts) > 2:
            kind = re.sub(r"_\d+$", "", parts[-3]) + "_cell"
        part = _part(kind, int(last), sizes[holder])
        named.append(("/".join([*words, part or last]), path, Role(kind, part)))
    if len({name for name, _, _ in named}) < len(named):
        found.notes.append("names of layers stand twice, so that the weights have the names of the file's groups")
        named = [(path, path, role) for _, path, role in named]
    found.weights = [(name, path) for name, path, _ in named]
    found.roles = {name: role for name, _, role in named if role != Role()}
    unknown = sum(name.rpartition("/")[2].isdecimal() for name, _, _ in named)
    if unknown:
        they = counted(unknown, "weight has a number", "weights have numbers")
        found.notes.append(f"{they} for a name, since the class of their layer is none that is known")


def _part(kind: str, number: int, count: int) -> str:
    """What weight NUMBER of the COUNT of a layer of class KIND is; "" if that cannot be told."""
    parts = _PARTS.get(kind, "").split()
    if number >= len(parts) or count > len(parts):
        return ""
    if count == len(parts) or parts[0] in ("kernel", "depthwise_kernel"):  # then what is left out is the bias
        return parts[number]
    return ("moving_mean", "moving_variance")[number] if kind == "batch_normalization" and count == 2 else ""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a configuration says of a layer.

    Attributes:
        kind: its class.
        equation: of an EinsumDense, what it computes ("abc,cde->abde").
    """

    kind: str
    equation: str = ""


def layers_in(config: Any) -> dict[str, Layer]:
    """Name of a layer -> what a configuration of Keras, parsed from JSON, says of it."""
    found: dict[str, Layer] = {}
    pending = [config]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            inner = one["config"] if isinstance(one.get("config"), dict) else {}
            name, kind, equation = inner.get("name"), one.get("class_name"), inner.get("equation")
            if isinstance(name, str) and isinstance(kind, str):
                found.setdefault(name, Layer(kind, equation if isinstance(equation, str) else ""))
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)
    return found


def _configured(text: str | None) -> dict[str, Layer]:
    try:
        return layers_in(read_json(text)) if text else {}
    except Malformed:
        return {}


def role_in_keras(name: str, rank: int, layers: Mapping[str, Layer], known: Role, beside: frozenset[str]) -> Role:
    """What a weight is: by the class of the innermost layer in its name that is known, else by its name.

    Args:
        name: as Keras has it, with slashes.
        rank: number of its dimensions.
        layers: what the configuration says.
        known: what the file itself says of its layer and part.
        beside: the names that stand beside its layer.
    """
    words = name.split("/")
    layer = next((layers[word] for word in reversed(words[:-1]) if word in layers), Layer(known.layer))
    part = known.part or words[-1]
    flat = layer.kind.lower().replace("_", "")
    space = SPACE.get(rank - 2, "")
    told = "class" if layer.kind else "name"
    axes = ""
    if "attention" in flat or {"query", "key", "value"} <= beside:
        return role_in_attention(words, rank, layer.kind, part, told)
    if "conv" in flat and part.endswith("kernel") and space:
        if flat.startswith("depthwiseconv") or part == "depthwise_kernel":
            part, axes = "depthwise_kernel", f"{space}IM"
        else:
            axes = f"{space}OI" if "transpose" in flat and "separable" not in flat else f"{space}IO"
    elif flat == "einsumdense" and part == "kernel":
        axes = _axes_of(layer.equation, rank)
    elif part in ("kernel", "recurrent_kernel") and rank == 2:
        axes = "IO"
    elif part == "embeddings" and rank == 2:
        axes = "VO"
    return Role(layer.kind, part, axes, told) if layer.kind or known.part or axes else Role()


def role_in_attention(words: list[str], rank: int, kind: str, part: str, told: str) -> Role:
    """What a weight of an attention of Keras is: its kernels have an axis for the heads."""
    module = words[-2] if len(words) > 1 else ""
    axes = ""
    if part == "kernel" and rank == 3:
        axes = {"attention_output": "IIO", "query": "IOO", "key": "IOO", "value": "IOO"}.get(module, "")
    elif part == "kernel" and rank == 2:
        axes = "IO"
    elif part == "bias" and rank == 2 and module in ("query", "key", "value"):
        axes = "OO"
    return Role(kind, part, axes, told)


def _axes_of(equation: str, rank: int) -> str:
    """The axes of the kernel of an EinsumDense: what it shares with the input alone are inputs, and so on."""
    taken, arrow, given = equation.replace("...", "").replace(" ", "").partition("->")
    data, comma, kernel = taken.partition(",")
    if not arrow or not comma or len(kernel) != rank:
        return ""
    kinds = {(True, False): "I", (False, True): "O", (True, True): "N"}
    return "".join(found) if all(found := [kinds.get((c in data, c in given), "") for c in kernel]) else ""
