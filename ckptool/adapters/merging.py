"""Merging adapters into the weights of their base model.

Nothing is read but headers and small numbers; what is written is computed by rows when it is written (see
`ckptool.adapters.delta_rows`), and rounded once to the type that the base has. Everything in an adapter is used, or
nothing is merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..checkpoint import Checkpoint, settle_ties
from ..disk.files import StrPath, shell_path
from ..errors import CannotCarry, Malformed, RuleError, counted, printable
from ..formats.opening import open as open_checkpoint
from ..passes.computing import Factor, computed
from ..passes.dequantizing import dequantize
from ..passes.envelopes import extract
from ..passes.packed import packed_in
from ..passes.side_files import CONFIG, config_of, with_side_file
from ..passes.values import with_other_entries
from ..tensor import LazyTensor
from .adapter_layers import SAME_PART, Layer, layers_of
from .base_modules import Places
from .onto_base import EMBEDDINGS, HEADS, Adapter, Merge, put, square_weights
from .settings import for_component, require_mergeable, settings_of
from .weight_changes import Misfit

_SHOWN = 6


def open_adapter(path: StrPath | Checkpoint, weight: float = 1.0) -> Adapter:
    """Open an adapter: a folder of peft, or a file of peft, diffusers or kohya.

    Raises:
        CheckpointError: it cannot be read, or is none that can be merged.
    """
    ckpt = path if isinstance(path, Checkpoint) else open_checkpoint(path)
    settings = settings_of(ckpt)
    require_mergeable(settings)
    return Adapter(ckpt, settings, weight)


def merge_lora(
    base: Checkpoint,
    adapters: Checkpoint | Adapter | StrPath | Sequence[Checkpoint | Adapter | StrPath],
    *,
    weights: Sequence[float] | None = None,
    component: str | None = None,
    at: str | None = None,
) -> Checkpoint:
    """Merge adapters into their base model: what `merge_and_unload` of peft gives, without loading a model.

    LoRA (rsLoRA, DoRA, with ranks and alphas by module, embeddings, convolutions, biases, fused experts, whole modules,
    trained tokens), LoHa, LoKr and IA3 of peft, and the layouts of diffusers and kohya. Values are computed in float32
    and rounded once to the type of the base. A quantised base is dequantised first. Several adapters are merged one
    after the other.

    Args:
        base: the base model.
        adapters: folders or files, or what was opened of them.
        weights: by what the change of each is multiplied; 1 if None.
        component: the part of a pipeline whose layers are taken ("unet", "lora_te1"); the others are left.
        at: path of the base's weights.

    Returns:
        The weights of the model, without what stood around them.

    Raises:
        CannotCarry: an adapter is for another base (the layers that do not fit are named), holds what cannot be merged,
            or changes nothing.
        Ambiguous: a name fits several modules.
    """
    one = isinstance(adapters, Checkpoint | Adapter) or not isinstance(adapters, Sequence) or isinstance(adapters, str)
    listed: Sequence[Any] = [adapters] if one else adapters  # type: ignore[assignment]
    factors = [1.0] * len(listed) if weights is None else list(weights)
    if not listed or len(factors) != len(listed):
        raise RuleError(f"{counted(len(factors), 'weight')} for {counted(len(listed), 'adapter')}", where="weights")
    opened = [
        item if isinstance(item, Adapter) else open_adapter(item, factor_)
        for item, factor_ in zip(listed, factors, strict=True)
    ]
    base = settle_ties(base)  # what a note calls tied may not be, any more
    if packed_in(base.state_dict(at)):
        base = dequantize(base, at=at)
    tensors = base.state_dict(at).tensors
    merge = Merge(base, tensors, Places(tensors, base.where), config_of(base))
    for adapter in opened:
        _merge(merge, adapter, component)
    return _finished(merge, at)


# -- one adapter


def _merge(merge: Merge, adapter: Adapter, component: str | None) -> None:
    """Put what an adapter does onto what was done before."""
    layers = _wanted(layers_of(adapter.ckpt, adapter.settings), adapter, component)
    paths, said = merge.places.find(layers)
    misfits: list[tuple[Layer, str]] = []
    first = len(merge.changed) + len(merge.replaced)
    turned = square_weights(merge, adapter, layers, paths)
    touched = 0
    for layer in sorted(layers, key=lambda layer: not layer.whole):  # a base that was saved along comes before
        settings = for_component(adapter.settings, layer.component)
        try:
            put(merge, adapter, settings, layer, paths.get(id(layer)), turned)
            touched += 1
        except Misfit as why:
            misfits.append((layer, str(why)))
    if misfits:
        raise _refusal(merge, adapter, layers, misfits)
    if not touched or not _changes_something(layers):
        what = "changes nothing: its factors are 0, as before training" if touched else "holds no layer"
        raise CannotCarry(what, where=adapter.ckpt.where)
    count = len(merge.changed) + len(merge.replaced) - first
    keys = sum(len(layer.keys) for layer in layers)
    weight = f", weight {adapter.weight:g}" if adapter.weight != 1 else ""
    line = f"merge {printable(adapter.ckpt.where, 100)}{weight}: {counted(keys, 'key')}"
    merge.lines.append(f"{line} of {counted(len(layers), 'layer')} change {counted(count, 'tensor')}")
    if said:
        merge.lines.append(f"note: the base has the adapter's names {said}")


def _wanted(layers: list[Layer], adapter: Adapter, component: str | None) -> list[Layer]:
    """The layers of one part of a pipeline, if one was named."""
    there = list(dict.fromkeys(layer.component for layer in layers))
    if component is None:
        if len(there) > 1:
            shown = ", ".join(printable(name, 40) or "(none)" for name in there)
            raise CannotCarry(
                f"changes several parts of a pipeline: {shown}",
                where=adapter.ckpt.where,
                hint=f"--component {there[0] or there[1]}   # merges those of one part into it",
            )
        return layers
    kept = [layer for layer in layers if component in (layer.component, SAME_PART.get(layer.component))]
    if not kept:
        shown = ", ".join(printable(name, 40) or "(none)" for name in there)
        raise RuleError(
            f"{adapter.ckpt.where} has no part {printable(component, 40)!r}; it has {shown}", where="--component"
        )
    return kept


# -- the end


def _changes_something(layers: Iterable[Layer]) -> bool:
    """Whether any number of an adapter is one that changes its base; those of one that was never trained are 0."""
    import numpy as np

    for layer in layers:
        parts = layer.parts
        if (
            layer.whole
            or not {"b", "embedding a", "hada_w2_a", "hada_w1_a", "diff"} & set(parts)
            or "magnitude" in parts
        ):
            return True
        names = ("b", "a", "mid", "b bias") if "b" in parts else tuple(parts)
        factors = {name: parts[name] for name in names if name in parts}
        if "b bias" in factors and np.any(_values(factors["b bias"])):
            return True
        factors.pop("b bias", None)
        factors.pop("alpha", None)
        if all(np.any(_values(one)) for one in factors.values()):
            return True
    return False


def _values(tensor: LazyTensor) -> Any:
    return Factor(tensor.source(), tensor.dtype, tensor.shape).values


def _refusal(merge: Merge, adapter: Adapter, layers: Sequence[Layer], misfits: list[tuple[Layer, str]]) -> CannotCarry:
    count = counted(len(layers), "layer does", "layers do")
    named = [f"{printable(layer.name, 80)}: {why}" for layer, why in misfits[:_SHOWN]]
    more = len(misfits) - _SHOWN
    base_name = adapter.settings.values.get("base_model_name_or_path")
    said = f"; it says that its base is {printable(base_name, 80)}" if isinstance(base_name, str) and base_name else ""
    return CannotCarry(
        f"does not fit this base: {len(misfits):,} of {count} not{said}:",
        where=adapter.ckpt.where,
        evidence=named + ([f"… and {more:,} more"] if more > 0 else []),
        hint=f"ckptool inspect {shell_path(merge.base.where)}   # shows the names and shapes of the base",
    )


def _finished(merge: Merge, at: str | None) -> Checkpoint:
    """The base with all changes."""
    base, weights = merge.base, merge.base.state_dict(at)
    keys: dict[tuple[Any, ...], list[str]] = {}
    for key, tensor in merge.tensors.items():
        keys.setdefault(tensor.identity, []).append(key)
    made: dict[tuple[Any, ...], LazyTensor] = {}

    def new(key: str, old: LazyTensor) -> LazyTensor:
        tensor = merge.replaced.get(key, old)
        rows = merge.changed.get(tensor.identity)
        if rows is None:
            return tensor
        if tensor.identity not in made:
            made[tensor.identity] = computed(rows, tensor.dtype, tensor.shape, tensor)
        return made[tensor.identity]

    entries: list[tuple[Any, Any]] = []
    for key, value in weights.node.entries:
        held = merge.tensors.get(key) if isinstance(key, str) else None
        entries.append((key, value if held is None else new(str(key), held)))
    further = [key for key in merge.replaced if key not in merge.tensors]
    entries += [(key, new(key, merge.replaced[key])) for key in further]
    lines = [*merge.lines, *merge.heads, *_tied_lines(merge, keys)]
    done = with_other_entries(base, weights, entries)
    done = extract(done, at=weights.path) if weights.path else done
    if further or any(len(keys[merge.tensors[key].identity]) > 1 for key in merge.replaced if key in merge.tensors):
        done = _said_untied(done)
    return done.noting(*lines)


def _said_untied(ckpt: Checkpoint) -> Checkpoint:
    config = config_of(ckpt)
    if config.get("tie_word_embeddings") is not True or ckpt.folder is None:
        return ckpt
    config["tie_word_embeddings"] = False
    return with_side_file(ckpt, CONFIG, config, "tie_word_embeddings true -> false, since the head was trained apart")


def _tied_lines(merge: Merge, keys: dict[tuple[Any, ...], list[str]]) -> list[str]:
    """What else moves with a change: the other names of a tensor, and a head that is tied to the embeddings."""
    lines = []
    alone = merge.config.get("tie_word_embeddings") is True and not merge.heads
    alone = alone and not any(HEADS.search(key) for key in [*merge.tensors, *merge.replaced])
    for names in keys.values():
        moved = (merge.replaced.get(names[0]) or merge.tensors[names[0]]).identity in merge.changed
        if moved and len(names) > 1:
            shown_names = ", ".join(printable(name, 60) for name in names[:4])
            lines.append(f"note: {shown_names} share one tensor, so the change moves them all, as in peft")
        elif moved and alone and EMBEDDINGS.search(names[0]):
            lines.append(f"note: the head is tied to {printable(names[0], 60)}, so it moves with it, as in peft")
    return lines


__all__ = ["Adapter", "Malformed", "merge_lora", "open_adapter"]
