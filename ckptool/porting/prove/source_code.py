"""The code that a file was saved from, with the weights of the file loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...checkpoint import Checkpoint
from ...errors import NotFound, counted, printable
from ...keys import unwrap
from ...model_code.building import ModelSource, build, fill, find_model, unwrapped
from ...model_code.signature import Signature
from ...model_code.trace import signature_of
from .. import expression as ex
from ..applying import apply
from ..expression import Expr, Shape
from ..forms.own_code import named_alike
from ..mapping import Entry, Mapping
from ..sources import match_signature
from .flow import Flow
from .ground import module_of


def built(model: Any) -> torch.nn.Module:
    """Return MODEL as a module without wrappers (DataParallel …). A module is taken as it is; a `ModelSource` or the
    text `MODEL.py:Name` is built first, with real values in its tensors.
    """
    if isinstance(model, torch.nn.Module):
        return unwrapped(model)
    found = model if isinstance(model, ModelSource) else find_model(str(model))
    return unwrapped(build(found, real=True))


@contextmanager
def values_kept(*models: Any) -> Iterator[None]:
    """Give each of MODELS that is a module its own parameters and buffers back at the end, with their values: a proof
    loads weights into the modules of its caller, and code may put other tensors in their places when it runs. Tensors
    on the meta device have no values, and stay.
    """
    modules = [m for model in models if isinstance(model, torch.nn.Module) for m in model.modules()]
    slots = [(held, dict(held)) for m in modules for held in (m._parameters, m._buffers)]
    tensors = {id(t): t for _, kept in slots for t in kept.values() if t is not None and not t.is_meta}
    values = {key: t.detach().clone() for key, t in tensors.items()}
    try:
        yield
    finally:
        for held, kept in slots:
            held.clear()
            held.update(kept)
        with torch.no_grad():
            for key, value in values.items():
                if not torch.equal(tensors[key], value):
                    tensors[key].copy_(value)


@dataclass(frozen=True, slots=True)
class OwnCode:
    """How the keys of the source's code relate to the keys of the file, after the file was loaded into that code.

    Attributes:
        made_of: key of the code -> its expression over keys of the file.
        copies: key of the file -> other keys of the file that suit as well, if the file holds several copies of the
            model.
        missing: keys of the code that need a source and have none in the file for certain.
    """

    made_of: dict[str, Expr]
    copies: dict[str, list[str]] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    @property
    def read(self) -> list[str]:
        """Return the keys of the file that the code reads, each once; those of other state dicts than that of the
        mapping with their path in front.
        """
        return list(dict.fromkeys(key for expr in self.made_of.values() for key in expr.keys()))  # noqa: SIM118

    def modules_of(self, mapping: Mapping) -> frozenset[str]:
        """Return the paths of the modules of the source's code that hold a key made of a key of the file that MAPPING
        reads.
        """
        used = {key for entry in mapping.entries for key in entry.sources}
        return frozenset(module_of(key) for key, expr in self.made_of.items() if used & set(expr.keys()))

    def pairs_of_modules(
        self, mapping: Mapping, theirs: torch.nn.Module, own: torch.nn.Module
    ) -> dict[str, tuple[torch.nn.Module, torch.nn.Module]]:
        """Return key of the model -> (module of the source's code whose weight it takes, module of the model that holds
        it), for the entries of MAPPING. THEIRS is the source's code, OWN the model.

        An entry reads keys of the file; the first of these that is a tensor of the source's code as it is (a copy)
        gives the module of that code. Keys of the model without such a key, or without a module of that path, are left
        out.
        """
        of_code = {expr.key: key for key, expr in self.made_of.items() if expr.is_copy}
        first, second = (dict(model.named_modules(remove_duplicate=False)) for model in (theirs, own))
        out = {}
        for entry in mapping.entries:
            keys = [of_code[key] for key in entry.sources if key in of_code]
            a = first.get(module_of(keys[0])) if keys else None
            b = second.get(module_of(entry.target))
            if a is not None and b is not None:
                out[entry.target] = a, b
        return out

    def seen(self, flow: Flow) -> Flow:
        """Return FLOW, a forward pass of the source's code over the keys of that code, with keys of the file instead.
        The outputs and the uses of weights that depend on keys of the code which the file lacks (`missing`) are left
        out.
        """
        made = flow.renamed(self.made_of)
        if not self.missing:
            return made
        open_ = flow.depending(use.index for use in flow.uses if not self.missing.isdisjoint(use.keys))
        kept = [i for i, behind in enumerate(flow.behind) if open_.isdisjoint(behind)]
        uses = [use for use in made.uses if use.index not in open_]
        return replace(made.with_outputs(kept), uses=uses)


def load_own(model: torch.nn.Module, ckpt: Checkpoint, mapping: Mapping) -> OwnCode:
    """Load the file CKPT into MODEL, the code that it was saved from, and return how their keys correspond. MAPPING is
    the mapping to prove. Keys of the code that the file lacks keep the values of MODEL. They are `missing` in the
    result, as are keys with a guess, though it is loaded; buffers that may keep their value are not.

    The keys correspond by equal names and sizes (`_by_names`), if the file has all that are needed; else by names that
    begin with the path of a state dict in the file, if it has all of these; else by matching. If matching leaves more
    than a tenth of the keys missing, they correspond by names after all, if nine tenths have equal names and sizes.

    Raises:
        NotFound: the file lacks more than a tenth of the keys of the code.
    """
    wanted_here = signature_of(model, trace=False)
    named = _by_names(wanted_here, ckpt, mapping) or _by_names(wanted_here, ckpt, mapping, paths=True)
    found, copies = named or (match_signature(ckpt, wanted_here, at=mapping.at), {})
    missing = _missing(found)
    if len(missing) > _FEW * len(found.entries):
        found, copies = _by_names(wanted_here, ckpt, mapping, share=1 - _FEW) or (found, copies)
        missing = _missing(found)
    if len(missing) > _FEW * len(found.entries):
        raise NotFound(
            f"the code of the source has {counted(len(missing), 'key')} that the file does not have for certain",
            where=ckpt.where,
            evidence=[printable(key, 100) for key in missing[:4]],
            hint="--source-model names the code that the file was saved from",
        )
    fill(model, apply(found, ckpt))
    made_of = {e.target: e.expr for e in found.entries if e.expr is not None}
    return OwnCode(made_of, _with_other_parts(copies, made_of, wanted_here, ckpt, mapping), frozenset(missing))


#: Share of its keys that the source's code may lack.
_FEW = 0.1


def _with_other_parts(
    copies: dict[str, list[str]], made_of: dict[str, Expr], wanted: Signature, ckpt: Checkpoint, mapping: Mapping
) -> dict[str, list[str]]:
    """Return COPIES (key of the file -> other keys of the file that suit as well) with more of these, as PATH/KEY: keys
    of other state dicts of the file CKPT with the names and sizes of WANTED, the source's code. Only state dicts that
    options of MAPPING read count; nothing is added if MAPPING names no state dict (`at`).

    MADE_OF has key of the code -> its expression over keys of the file; only keys that are copies get more.
    """
    code, optional = _wanted_by_name(wanted)
    rivals = {key for entry in mapping.entries for rival in entry.rivals for key in rival.keys()}  # noqa: SIM118
    out = {key: list(others) for key, others in copies.items()}
    for weights in ckpt.state_dicts() if mapping.at is not None else ():
        whole = {key: f"{weights.path}/{key}" if weights.path else key for key in weights.tensors}
        if weights.path == mapping.at or rivals.isdisjoint(whole.values()):
            continue
        shapes = {key: tensor.shape for key, tensor in weights.tensors.items()}
        for way in named_alike(code, shapes, optional):
            for key, held in way.items():
                own = made_of.get(key)
                if own is not None and own.is_copy and whole[held] not in out.setdefault(own.key, []):
                    out[own.key].append(whole[held])
    return out


def _missing(found: Mapping) -> list[str]:
    """Return the keys that FOUND does not fill for certain: those without a source and those with a guess, without keys
    that may keep the model's own values. [] if there are none.
    """
    return [e.target for e in found.entries if not e.default and e.status != "mapped"]


def adapter_factors(model: torch.nn.Module) -> list[float]:
    """Return possible scales of low-rank adapters, each once, the first 64; [] if MODEL has no adapters. Looked at are
    the modules of MODEL that have a parameter or a child with "lora" in its name: the positive numbers among their
    attributes, and in dicts that are attributes, and the ratios of two such numbers of one module.
    """
    found: dict[float, None] = {}
    for module in model.modules():
        names = [*module._parameters, *module._modules]
        if not any("lora" in name.lower() for name in names):
            continue
        values = [v for held in vars(module).values() for v in (held.values() if isinstance(held, dict) else [held])]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
        found |= dict.fromkeys([*numbers, *(a / b for a in numbers for b in numbers)])
    return list(found)[:64]


def _by_names(
    wanted: Signature, ckpt: Checkpoint, mapping: Mapping, *, share: float = 1.0, paths: bool = False
) -> tuple[Mapping, dict[str, list[str]]] | None:
    """Return (mapping from CKPT to the code WANTED, by equal names and sizes below a prefix of the file; key of CKPT
    -> other keys of the file that suit as well). None if the file has less than SHARE of the code's keys that are
    needed. If the file holds several copies, the one with most of the keys that MAPPING reads is taken, and the keys
    of the others are in the dict. A key that the file lacks is `default` if it is a buffer that is no running
    statistic, else unmapped.

    With PATHS, the name of a key begins with the path of its state dict in the file (`netG/fc.weight`), because the
    code may hold several models that the file stores apart.
    """
    held = _held_by_name(ckpt, mapping, paths=paths)
    code, optional = _wanted_by_name(wanted)
    shapes = {name: shape for name, (_, shape) in held.items()}
    named = named_alike(code, shapes, optional, share=share)
    ways = [{key: held[name][0] for key, name in way.items()} for way in named]
    if not ways:
        return None
    used = {key for entry in mapping.entries for key in entry.sources}
    way = max(ways, key=lambda way: len(used & set(way.values())))
    copies: dict[str, list[str]] = {}
    for other in ways:
        for key, one in way.items():
            if other.get(key, one) != one:
                copies.setdefault(one, []).append(other[key])
    entries = [
        Entry(key, shape, ex.of(way[key])) if key in way else Entry(key, shape, default=key in optional)
        for key, shape in code.items()
    ]
    found = Mapping((), (), dict(held.values()), ckpt.where, wanted.name, at=mapping.at)
    return found.with_entries(entries), copies


def _held_by_name(ckpt: Checkpoint, mapping: Mapping, *, paths: bool) -> dict[str, tuple[str, Shape]]:
    """Return name -> (key, shape) for the tensors in the state dicts of CKPT, and key -> (key, shape) for further keys
    of the source that MAPPING has. In the state dict that MAPPING reads (`at`; in all, if it has none), key and name
    are the key itself; in others, and for a key that MAPPING calls PATH/KEY, both are PATH/KEY. With PATHS, the name is
    PATH/KEY in all, and a key with wrappers (`module.fc.weight`) has a second name without them.
    """
    held: dict[str, tuple[str, Shape]] = {}
    for weights in ckpt.state_dicts():
        bare = unwrap(weights.tensors) if paths and weights.path else {}
        for key, tensor in weights.tensors.items():
            whole = f"{weights.path}/{key}" if weights.path else key
            meant = weights.path == (mapping.at or weights.path) and whole not in mapping.source_shapes
            name = whole if paths or not meant else key
            for one in (name, f"{weights.path}/{bare[key]}") if bare else (name,):
                held[one] = key if meant else whole, tensor.shape
    for key, shape in mapping.source_shapes.items():  # what stands beside a state dict, too
        held.setdefault(key, (key, shape))
    return held


def _wanted_by_name(wanted: Signature) -> tuple[dict[str, Shape], frozenset[str]]:
    """Return (key -> shape of the code WANTED, the keys that a file may lack). The latter are the buffers other than
    running statistics.
    """
    code = {key: entry.shape for key, entry in wanted.entries.items()}
    return code, frozenset(k for k, e in wanted.entries.items() if not e.parameter and "running_" not in k)
