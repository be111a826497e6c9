"""The keys of an adapter, in the layouts of peft, diffusers and kohya, as layers: which module, and what is done to it.

    peft        base_model.model.M.lora_A.weight       M.lora_embedding_A   M.hada_w1_a   M.ia3_l   M.weight (whole)
    diffusers   unet.M.lora_A.weight                   unet.M.lora.down.weight   M.processor.to_q_lora.down.weight
    kohya       lora_unet_M_with_underscores.lora_down.weight   .alpha   .hada_w1_a   .lokr_w1   .dora_scale   .diff

Sources: what peft 0.21 and diffusers 0.42 write; LyCORIS 3 and kohya's scripts by their documentation.
"""

from __future__ import annotations

import re
from dataclasses import field

from ..checkpoint import Checkpoint, StateDict
from ..errors import CannotCarry, Malformed, counted, printable
from ..records import record
from ..tensor import LazyTensor
from .settings import Settings

#: The component of a key that says what the tensor is -> the name of that part here.
_ROLES = {
    "lora_A": "a",
    "lora_B": "b",
    "lora_down": "a",
    "lora_up": "b",
    "lora_mid": "mid",
    "lora_embedding_A": "embedding a",
    "lora_embedding_B": "embedding b",
    "lora_magnitude_vector": "magnitude",
    "dora_scale": "magnitude",
    "alpha": "alpha",
    "ia3_l": "ia3",
    "trainable_tokens_delta": "tokens",
    "diff": "diff",
    "diff_b": "diff of bias",
    **{name: name for name in "hada_w1_a hada_w1_b hada_w2_a hada_w2_b hada_t1 hada_t2".split()},
    **{name: name for name in "lokr_w1 lokr_w1_a lokr_w1_b lokr_w2 lokr_w2_a lokr_w2_b lokr_t2".split()},
}
_LOW_RANK = ("lora", "lora_linear_layer")
_PEFT = "base_model.model."
#: Parts of a pipeline, as keys of diffusers and of kohya begin.
_COMPONENT = re.compile(
    r"(?:(?P<dots>unet|transformer|transformer_2|prior|controlnet|text_encoder(?:_[23])?)\."
    r"|(?P<flat>lora_(?:unet|te[123]?|transformer|prior_unet)|lycoris)_)(?=.)"
)
#: How adapters call a part of a pipeline that has a folder of its own.
SAME_PART = {
    "lora_unet": "unet",
    "lora_te": "text_encoder",
    "lora_te1": "text_encoder",
    "lora_te2": "text_encoder_2",
    "lora_te3": "text_encoder_3",
    "lora_transformer": "transformer",
}


@record(frozen=False, slots=True)
class Layer:
    """A module that an adapter changes.

    Attributes:
        name: the module, or (of a tensor that is stored whole) the tensor.
        component: the part of a pipeline that it is in ("unet", "lora_te1"), "" if none is named.
        flat: its name has underscores in place of dots.
        whole: it is a tensor that takes the place of the base's.
        depth: how many wrappers of peft are around it, where it is a parameter of a module.
        parts: its tensors, by what they are.
        keys: their keys.
    """

    name: str
    component: str
    flat: bool
    whole: bool = False
    depth: int = 0
    parts: dict[str, LazyTensor] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)


def is_adapter(weights: StateDict) -> bool:
    """Whether weights are those of an adapter, which is no model: its parts are among them."""
    return any(word in weights.outline for word in _IN_PARTS) and any(map(_PART.search, weights))


#: What is in the name of each part, in the outline of the keys.
_IN_PARTS = ("lora", "hada_", "lokr_", "ia0_l", "trainable_tokens_delta", "dora_scale")
#: What no model's own tensor is called.
_PART = re.compile(
    r"\.(?:lora_(?:A|B|down|up|mid|embedding_[AB]|magnitude_vector)|(?:lora|lora_linear_layer|\w+_lora)\.(?:down|up)"
    r"|hada_[wt][12](?:_[ab])?|lokr_[wt][12](?:_[ab])?|ia3_l|trainable_tokens_delta|dora_scale)(?:\.|\Z)"
)


def layers_of(ckpt: Checkpoint, settings: Settings) -> list[Layer]:
    """The layers that an adapter changes, in its order.

    Raises:
        CannotCarry: it holds several adapters, or a key that is that of no adapter.
        Malformed: it holds none.
    """
    found: dict[tuple[str, str, bool, int], Layer] = {}
    strangers: list[str] = []
    names: set[str] = set()
    weights = ckpt.state_dict(ckpt.at)
    of_peft = any(key.startswith(_PEFT) for key in weights)
    for key, tensor in weights.items():
        if not isinstance(tensor, LazyTensor):
            strangers.append(key)
            continue
        said = _read(key, of_peft or settings.own)
        if said is None:
            strangers.append(key)
            continue
        layer, part, adapter = said
        names |= {adapter} if adapter else set()
        same = found.setdefault((layer.name, layer.component, layer.whole, layer.depth), layer)
        if part in same.parts:
            what = f"stores one thing twice: {printable(same.keys[0], 80)} and {printable(key, 80)}"
            raise Malformed(what, where=ckpt.where)
        same.parts[part] = tensor
        same.keys.append(key)
    if strangers and not found:
        what = "is not an adapter: none of its keys is that of one"
        raise CannotCarry(what, where=ckpt.where, evidence=[printable(key, 100) for key in strangers[:3]])
    if strangers:
        raise CannotCarry(
            f"holds {counted(len(strangers), 'key')} that no adapter of a known layout has:",
            where=ckpt.where,
            evidence=[printable(key, 100) for key in strangers[:6]],
        )
    if len(names) > 1:
        shown = ", ".join(printable(name, 40) for name in sorted(names)[:6])
        raise CannotCarry(f"holds {len(names)} adapters: {shown}; save them one by one", where=ckpt.where)
    return list(found.values())


def _read(key: str, of_peft: bool) -> tuple[Layer, str, str] | None:
    """The layer of a key, which part of it the tensor is, and the name of the adapter, if the key has one."""
    text = key.removeprefix(_PEFT) if of_peft else key
    component, flat = "", False
    if not key.startswith(_PEFT) and (found := _COMPONENT.match(text)) is not None:
        component, flat = found["dots"] or found["flat"], found["flat"] is not None
        text = text[found.end() :]
    parts = text.split(".")
    place = next((at for at in range(len(parts) - 1, 0, -1) if _is_role(parts, at)), None)
    if place is None:
        if not of_peft:
            return None
        plain = [one for one in parts if one not in ("base_layer",)]
        if "modules_to_save" in plain:
            at = plain.index("modules_to_save")
            named = len(plain) > at + 2
            return _layer([*plain[:at], *plain[at + 1 + named :]], whole=True), "whole", plain[at + 1] * named
        layer = _layer(plain, whole=True)
        layer.depth = len(parts) - len(plain)
        return layer, "whole", ""
    word, rest, module = parts[place], parts[place + 1 :], parts[:place]
    if word in _LOW_RANK or word.endswith("_lora"):  # of older diffusers: `.lora.down.weight`, `.to_q_lora.down.weight`
        role = {"down": "a", "up": "b"}[rest[0]]
        rest = rest[1:]
        if word.endswith("_lora"):
            module = [*module, *({"to_out": ["to_out", "0"]}.get(word[:-5], [word[:-5]]))]
    else:
        role = _ROLES[word]
    adapter = ""
    if rest and rest[0] not in ("weight", "bias"):
        adapter, rest = rest[0], rest[1:]
    if len(rest) > 1 or (rest and rest[0] == "bias" and role != "b"):
        return None
    role = "b bias" if rest == ["bias"] else role
    depth = module.count("base_layer")
    module = [one for one in module if one not in ("base_layer", "token_adapter", "processor")]
    layer = _layer(module)
    layer.component, layer.flat, layer.depth = component, flat, depth
    return (layer, role, adapter) if layer.name else None


def _is_role(parts: list[str], at: int) -> bool:
    word, after = parts[at], parts[at + 1 : at + 2]
    if word in _LOW_RANK or (word.endswith("_lora") and len(word) > 5):
        return after in (["down"], ["up"])
    return word in _ROLES


def _layer(parts: list[str], *, whole: bool = False) -> Layer:
    return Layer(".".join(parts), "", False, whole)
