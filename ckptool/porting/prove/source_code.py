"""The code that a file was saved from, filled with that file."""

from __future__ import annotations

from typing import Any

import torch

from ...architecture import ModelSource, build, fill, find_model, unwrapped
from ...checkpoint import Checkpoint
from ...errors import NotFound, counted, printable
from ...keys import unwrap
from ...signature import Signature
from ...trace import signature_of
from .. import expression as ex
from ..expression import Expr
from ..mapping import Entry, Mapping
from ..sources import apply, match_signature


def built(model: Any) -> torch.nn.Module:
    """A model as it is, or built from code."""
    if isinstance(model, torch.nn.Module):
        return unwrapped(model)
    found = model if isinstance(model, ModelSource) else find_model(str(model))
    return unwrapped(build(found, real=True))


def load_own(model: torch.nn.Module, ckpt: Checkpoint, mapping: Mapping) -> dict[str, Expr]:
    """Load the source file into the source's own code, and say what each of its keys is made of."""
    wanted_here = signature_of(model, trace=False)
    found = _by_names(wanted_here, ckpt, mapping.at) or match_signature(ckpt, wanted_here, at=mapping.at)
    wanted = [e for e in found.entries if not e.default]
    missing = [e.target for e in wanted if e.status != "mapped"]
    if len(missing) > 0.1 * len(wanted):
        raise NotFound(
            f"the code of the source has {counted(len(missing), 'key')} that the file does not have for certain",
            where=ckpt.where,
            evidence=[printable(key, 100) for key in missing[:4]],
            hint="--source-model names the code that the file was saved from",
        )
    fill(model, apply(found, ckpt))
    return {e.target: e.expr for e in found.entries if e.expr is not None}


def adapter_factors(model: torch.nn.Module) -> list[float]:
    """What low-rank adapters may be multiplied with: numbers that the modules with adapters hold, and their ratios."""
    found: dict[float, None] = {}
    for module in model.modules():
        names = [*module._parameters, *module._modules]
        if not any("lora" in name.lower() for name in names):
            continue
        values = [v for held in vars(module).values() for v in (held.values() if isinstance(held, dict) else [held])]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
        found |= dict.fromkeys([*numbers, *(a / b for a in numbers for b in numbers)])
    return list(found)[:64]


def _by_names(wanted: Signature, ckpt: Checkpoint, at: str | None) -> Mapping | None:
    """The mapping by equal names, wrappers aside, where all of them are there in the same sizes: it is its own file."""
    weights = ckpt.state_dict(at)
    names: dict[str, str | None] = {}
    for depth in range(4):  # below modules and collections that the code does not have
        ends: dict[str, str | None] = {}
        for held in weights.tensors:
            end = ".".join(held.split(".")[depth:])
            ends[end] = None if end in ends else held
        names = ends | names
    entries = []
    for own, entry in zip(unwrap(list(wanted.entries)).values(), wanted.entries.values(), strict=True):
        key = names.get(entry.key) or names.get(own)
        if key is None and entry.key.endswith("num_batches_tracked"):
            entries.append(Entry(entry.key, entry.shape, "mapped", default=True))
        elif key is None or weights.tensors[key].shape != entry.shape:
            return None
        else:
            entries.append(Entry(entry.key, entry.shape, "mapped", ex.of(key)))
    shapes = {key: tensor.shape for key, tensor in weights.tensors.items()}
    return Mapping((), (), shapes, ckpt.where, wanted.name, at=at).with_entries(entries)
