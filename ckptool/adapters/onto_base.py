"""One layer of an adapter onto the base: which tensor it changes, and what computes the new values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..checkpoint import Checkpoint
from ..dtypes import DType
from ..errors import CannotCarry, counted, printable
from ..passes.casting import Cast, Tally, numpy_type
from ..passes.computing import Rows, factor, flat, stored
from ..tensor import LazyTensor, Storage, contiguous_stride
from . import weight_changes as changes
from .adapter_layers import Layer
from .base_modules import Places
from .delta_rows import Added, Part, Scaled, Tokens, Whole
from .settings import Settings, listed_places
from .weight_changes import Misfit

#: Models whose experts are stored (in, out) in one tensor, by `model_type`. A square one does not tell.
_EXPERTS_TURNED = ("gpt_oss", "aria", "aria_text", "openai_privacy_filter", "llama4", "llama4_text")
#: Modules of GPT-2 and its relatives that store their weights (in, out).
_TURNED = re.compile(r"(?:^|\.)(?:c_attn|q_attn|c_proj|c_fc)\Z")
_TURNED_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "gptsan", "clvp")
#: A fused parameter of experts -> the tensors of one expert whose rows it holds, one after the other.
_FUSED = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}
EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|shared)\.weight\Z")
HEADS = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight\Z")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter, and how much of it is merged.

    Attributes:
        ckpt: its weights.
        settings: what it says of itself.
        weight: by what its change is multiplied.
    """

    ckpt: Checkpoint
    settings: Settings
    weight: float = 1.0


@dataclass(slots=True)
class Merge:
    """A merge under way.

    Attributes:
        base: the base model.
        tensors: its weights by key.
        places: their modules.
        config: what its `config.json` says.
        changed: what computes the new values, by the tensor that they are of.
        replaced: tensors that take the place of others, or are new, by key.
        lines: what was done.
        heads: what became of a head that is tied to the embeddings.
    """

    base: Checkpoint
    tensors: dict[str, LazyTensor]
    places: Places
    config: dict[str, Any]
    changed: dict[tuple[Any, ...], Rows] = field(default_factory=dict)
    replaced: dict[str, LazyTensor] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    def before(self, key: str) -> Rows:
        """What computes the values of a tensor of the base so far."""
        tensor = self.replaced.get(key) or self.tensors[key]
        return self.changed.get(tensor.identity) or stored(tensor)

    def tensor(self, key: str) -> LazyTensor:
        """A tensor of the base, or what an adapter put in its place."""
        found = self.replaced.get(key) or self.tensors[key]
        if not found.dtype.is_floating or found.dtype.numpy is None:
            raise Misfit(f"the base has {found.dtype.name} there")
        return found

    def put(self, key: str, rows: Rows) -> None:
        """Say what computes the values of a tensor from now on."""
        self.changed[self.tensor(key).identity] = rows


def square_weights(merge: Merge, adapter: Adapter, layers: Sequence[Layer], paths: dict[int, str]) -> bool | None:
    """Whether square weights of the base are stored (in, out); None if nothing tells.

    What the configuration says holds for the last kind of layer that peft met, so it counts only where the weights
    that are not square bear it out.
    """
    seen = set()
    for layer in layers:
        a, b = layer.parts.get("a"), layer.parts.get("b")
        base = merge.tensors.get(f"{paths.get(id(layer), '')}.weight")
        if a is None or b is None or base is None or len(base.shape) != 2 or len(a.shape) != 2 or len(b.shape) != 2:
            continue
        out_in = b.shape[0], a.shape[1]
        if out_in[0] != out_in[1] and base.shape in (out_in, out_in[::-1]):
            seen.add(base.shape != out_in)
    said = adapter.settings.flag("fan_in_fan_out")
    return said if seen <= {said} else None


def put(
    merge: Merge, adapter: Adapter, settings: Settings, layer: Layer, path: str | None, turned: bool | None
) -> None:
    """Put what one layer does onto the base.

    Raises:
        Misfit: it does not fit.
    """
    if layer.whole:
        _replace(merge, adapter, layer, path)
        return
    parts = dict(layer.parts)
    if path is not None and f"{path}.weight" not in merge.tensors and settings.texts("target_parameters"):
        _put_onto_parameter(merge, adapter, settings, layer, path)
        return
    if path is None or path not in merge.places:
        path = _tied_head(merge, layer)
    key = f"{path}.weight"
    if key not in merge.tensors:
        raise Misfit("has no weight in the base")
    base = merge.tensor(key)
    before, plain = merge.before(key), stored(base)
    alpha = number_in(parts.pop("alpha", None))
    rank: int | None
    if "tokens" in parts:
        _require_plain_weight(adapter, "trained tokens")
        merge.put(key, _tokens(adapter.settings, layer.name, parts, base, before))
    elif "ia3" in parts:
        _require_plain_weight(adapter, "IA3")
        rows, bias_too = changes.scaled(parts, base, before, settings, layer.name)
        by = layer.parts["ia3"]
        merge.put(key, rows)
        bias = f"{path}.bias"
        if bias_too and bias in merge.tensors:
            merge.put(bias, Scaled(merge.before(bias), factor(by), by_column=False))
    else:
        if "diff" in parts:
            change, scale = changes.difference(parts, base), 1.0
        else:
            if "lokr_w1" in parts or "lokr_w1_a" in parts:
                change, rank = changes.kronecker(parts, base, of_peft=settings.own)
                whole = "lokr_w1" in layer.parts and "lokr_w2" in layer.parts
                scale = 1.0 if whole and not settings.own else settings.scale(layer.name, rank, alpha)
            elif "hada_w1_a" in parts:
                change, rank = changes.hadamard(parts, base)
                scale = settings.scale(layer.name, rank, alpha)
            else:
                change, rank = changes.low_rank(parts, base, _is_turned(merge, layer, base, path, turned))
                scale = settings.scale(layer.name, rank, alpha)
        magnitude = parts.pop("magnitude", None)
        if magnitude is not None:
            _require_plain_weight(adapter, "DoRA")
        scale *= adapter.weight
        merge.put(key, changes.put_onto(base, before, plain, change, scale, magnitude, of_peft=settings.own))
        for part in ("b bias", "diff of bias"):
            if part in parts:
                _put_onto_bias(merge, f"{path}.bias", parts.pop(part), scale if part == "b bias" else adapter.weight)
    if parts:
        raise Misfit(f"has parts that nothing uses: {', '.join(parts)}")


def _is_turned(merge: Merge, layer: Layer, base: LazyTensor, path: str, turned: bool | None) -> bool:
    a, b = layer.parts.get("a"), layer.parts.get("b")
    if a is None or b is None or len(base.shape) != 2 or len(a.shape) != 2 or len(b.shape) != 2:
        return False
    out_in = b.shape[0], a.shape[1]
    if out_in[0] != out_in[1]:
        return base.shape != out_in and base.shape == out_in[::-1]
    if merge.config.get("model_type") in _TURNED_MODELS:
        return _TURNED.search(path) is not None
    if turned is None:
        raise Misfit(f"is square ({list(base.shape)}), and nothing says whether the base stores it (out, in)")
    return turned


def _require_plain_weight(adapter: Adapter, what: str) -> None:
    if adapter.weight != 1:
        said = f"is merged with the weight {adapter.weight:g}, and half of {what} has no meaning"
        raise CannotCarry(said, where=adapter.ckpt.where, hint="merge it without a weight")


def _tied_head(merge: Merge, layer: Layer) -> str:
    """The embedding that a head without a tensor of its own is tied to."""
    found = [key for key in merge.tensors if EMBEDDINGS.search(key)]
    head = layer.name.rpartition(".")[2] in ("lm_head", "embed_out")
    if not head or len(found) != 1 or merge.config.get("tie_word_embeddings") is not True:
        raise Misfit("is not in the base")
    name = printable(layer.name, 60)
    line = f"note: {name} is tied to {printable(found[0], 60)}, so its change moves both, as in peft"
    merge.heads += [line] if line not in merge.heads else []
    return found[0].rpartition(".")[0]


def _put_onto_bias(merge: Merge, key: str, change: LazyTensor, scale: float) -> None:
    if key not in merge.tensors:
        raise Misfit("changes a bias that the base lacks")
    if change.shape != merge.tensor(key).shape:
        raise Misfit(f"its bias is {list(change.shape)}, the base's {list(merge.tensor(key).shape)}")
    merge.put(key, Added(merge.before(key), Whole(factor(change, (change.numel, 1))), scale))


def _tokens(settings: Settings, module: str, parts: dict[str, LazyTensor], base: LazyTensor, before: Rows) -> Rows:
    """An embedding with some tokens replaced."""
    values = parts.pop("tokens")
    listed = settings.values.get("trainable_token_indices", settings.values.get("token_indices"))
    if isinstance(listed, dict):
        fitting = [places for name, places in listed.items() if f".{module}".endswith(f".{name}")]
        listed = fitting[0] if len(fitting) == 1 else None
    if not isinstance(listed, list):
        raise Misfit("has trained tokens, and nothing says which")
    places = listed_places(listed, settings.where)
    if values.shape != (len(places), *base.shape[1:]) or max(places, default=0) >= base.shape[0]:
        raise Misfit(
            f"trains {counted(len(places), 'token')} with {list(values.shape)}, the base has {list(base.shape)}"
        )
    return Tokens(before, places, factor(values))


def _replace(merge: Merge, adapter: Adapter, layer: Layer, path: str | None) -> None:
    """Put a tensor of the adapter in the place of the base's, in the type of that one."""
    _require_plain_weight(adapter, "a module that was saved whole")
    new = layer.parts["whole"]
    key = path if path in merge.tensors else None
    if key is None:
        if layer.depth and layer.name.endswith(".weight"):  # the base's head, saved along by peft: the embedding
            key = f"{_tied_head(merge, replace(layer, name=layer.name.removesuffix('.weight')))}.weight"
        elif layer.name.rpartition(".")[2] == "weight" and HEADS.search(layer.name):
            _untied_head(merge, layer.name, new)
            return
        else:
            raise Misfit("is not in the base")
    old = merge.tensors[key]
    if new.shape != old.shape:
        raise Misfit(f"is {shown(new)}, the base has {shown(old)}")
    made = _as(new, old.dtype)
    # the base that was saved along is the tensor itself, with all its names; a module of its own is one name's
    names = [name for name, one in merge.tensors.items() if one.identity == old.identity] if layer.depth else [key]
    merge.replaced.update(dict.fromkeys(names, made))


def _untied_head(merge: Merge, name: str, new: LazyTensor) -> None:
    """Give a base whose head is tied to its embeddings the head that was trained."""
    found = [tensor for key, tensor in merge.tensors.items() if EMBEDDINGS.search(key)]
    if len(found) != 1 or found[0].shape != new.shape or merge.config.get("tie_word_embeddings") is not True:
        raise Misfit("is not in the base")
    merge.replaced[name] = _as(new, found[0].dtype)
    merge.heads.append(f"note: {printable(name, 60)} is new: it was tied to the embeddings, and was trained apart")


def shown(tensor: LazyTensor) -> str:
    """Type and shape, for a message."""
    return f"{tensor.dtype.name} {list(tensor.shape)}"


def _as(tensor: LazyTensor, dtype: DType) -> LazyTensor:
    """A tensor of its own with the values of TENSOR as DTYPE."""
    source = tensor.source()
    if tensor.dtype != dtype:
        if not (tensor.dtype.is_floating and dtype.is_floating and tensor.dtype.numpy and dtype.numpy):
            raise Misfit(f"is {tensor.dtype.name}, the base has {dtype.name}")
        source = Cast(source, tensor.dtype, dtype, Tally())
    storage = Storage(source, "cpu", dtype if dtype.storage else None)
    return LazyTensor(storage, dtype, tensor.shape, contiguous_stride(tensor.shape))


def number_in(tensor: LazyTensor | None) -> float | None:
    """The value of an alpha that is stored beside the factors."""
    if tensor is None:
        return None
    import numpy as np

    if tensor.numel != 1 or tensor.dtype.numpy is None:
        raise Misfit(f"its alpha is {shown(tensor)}")
    source = tensor.source()
    return float(np.frombuffer(source.read(0, source.length), numpy_type(tensor.dtype))[0])


# -- parameters of experts


def _put_onto_parameter(merge: Merge, adapter: Adapter, settings: Settings, layer: Layer, path: str) -> None:
    """Put a change onto a parameter that is no `weight`: the experts of a module, in one tensor or in one each.

    The key names the module alone, and wrappers within each other stand for its parameters; the shapes tell which.
    """
    if set(layer.parts) != {"a", "b"}:
        raise Misfit("is not in the base")
    turned = True if merge.config.get("model_type") in _EXPERTS_TURNED else None
    fitting = []
    for name in dict.fromkeys(one.rpartition(".")[2] for one in settings.texts("target_parameters")):
        key = f"{path}.{name}"
        if key in merge.tensors:
            found = changes.experts(layer.parts, merge.tensor(key).shape, turned)
            fitting += [(name, [(key, 0, merge.tensor(key).shape)], found)] if found else []
        elif (split := _split_experts(merge, layer.name, path, name)) is not None:
            found = changes.experts(layer.parts, split[0], False)
            fitting += [(name, split[1], found)] if found else []
    if not fitting:
        raise Misfit(f"fits no parameter of {printable(path, 80)}: {changes.shown(*layer.parts.values())}")
    if len(fitting) > 1:
        names = " and ".join(printable(name, 40) for name, _, _ in fitting)
        raise Misfit(f"fits several parameters: {names}")
    name, targets, (change, rank) = fitting[0]
    scale = settings.scale(f"{layer.name}.{name}", rank) * adapter.weight
    for key, row, shape in targets:
        height = flat(shape)[0] * (shape[1] if len(shape) == 3 else 1)
        before = merge.before(key)
        if len(shape) == 3:
            before = merge.changed.get(merge.tensor(key).identity) or stored(
                merge.tensor(key), (shape[0] * shape[1], shape[2])
            )
        merge.put(key, Added(before, Part(change, row, height), scale))


def _split_experts(
    merge: Merge, layer: str, path: str, name: str
) -> tuple[tuple[int, ...], list[tuple[str, int, tuple[int, ...]]]] | None:
    """A fused parameter whose experts the base stores one by one: its shape, and of each part key, first row, shape."""
    for inner in _FUSED.get(name, ()):
        for head in (path, path.replace(".mlp.", ".block_sparse_moe.")):
            keys: list[tuple[str, int, tuple[int, ...]]] = []
            row = expert = 0
            while f"{head}.{expert}.{inner[0]}.weight" in merge.tensors:
                for one in inner:
                    key = f"{head}.{expert}.{one}.weight"
                    shape = merge.tensor(key).shape if key in merge.tensors else ()
                    if len(shape) != 2 or (keys and shape[1] != keys[0][2][1]):
                        return None
                    keys.append((key, row, shape))
                    row += shape[0]
                expert += 1
            if expert and not row % expert:
                return (expert, row // expert, keys[0][2][1]), keys
    return None
