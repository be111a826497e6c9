"""Spell inputs in the forms in which a model may take them: by position, by name, fewer or more of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from itertools import product
from typing import Any

import torch

from ....model_code.inputs import leaves, with_leaves
from ..calling import arguments
from .links import type_and_shape


def spellings(model: torch.nn.Module, spec: Any) -> Iterator[Any]:
    """Yield the inputs SPEC, a dict by name or a sequence by position, in the forms in which MODEL may take them, each
    form once, in this order:

    - if SPEC is a dict, by their names, those that are names of arguments of MODEL, if all that it needs is there;
    - by position, all of them;
    - the first alone, under the name of the main input (`main_input_name`), if MODEL has one;
    - by the names of the arguments of MODEL, in order, without inputs beyond them, unless its first argument is by
      position only;
    - by position, only the first as many as MODEL needs, if it needs fewer; if it needs more, the inputs again and
      again until they are as many.
    """
    flat = list(spec.values()) if isinstance(spec, MappingOf) else list(spec)
    names, needed = arguments(model)
    out: list[Any] = []
    if isinstance(spec, MappingOf):
        known = {name: value for name, value in spec.items() if name in names}
        out += [known] if known and set(needed) <= known.keys() else []
    out.append(flat)
    main = getattr(model, "main_input_name", None)
    if isinstance(main, str) and flat:
        out.append({main: flat[0]})
    by_position_only = inspect.Parameter.POSITIONAL_ONLY
    if names and inspect.signature(model.forward).parameters[names[0]].kind is not by_position_only:
        out.append(dict(zip(names, flat, strict=False)))
    if 0 < len(needed) < len(flat):
        out.append(flat[: len(needed)])
    if len(needed) > len(flat) > 0:
        out.append([*flat, *flat * len(needed)][: len(needed)])
    yield from {repr(one): one for one in out}.values()


def respelled(example: Any, other: Any) -> Any:
    """Return inputs in the form of EXAMPLE (by position or by name), with each input replaced by its counterpart in
    OTHER (see `_counterparts`), if there is one.
    """
    return with_leaves(example, [one if same is None else same for one, same in _counterparts(example, other)])


def mixtures(theirs: Any, own: Any) -> Iterator[list[Any]]:
    """Yield mixtures of THEIRS and OWN, the inputs of two models, as flat lists in the order of THEIRS: for each input
    of THEIRS either that or, if it is another one, its counterpart in OWN (see `_counterparts`), in each combination.
    The first is THEIRS itself.
    """
    pairs = _counterparts(theirs, own)
    yield from map(list, product(*([one] if same is None or same == one else [one, same] for one, same in pairs)))


def _counterparts(example: Any, other: Any) -> list[tuple[Any, Any]]:
    """Return (input, its counterpart) for each input of EXAMPLE, in order. The counterpart is the first input of OTHER
    of the same type and number of dimensions that is not the counterpart of an earlier one; None if there is none.
    """
    left = [one for _, one in leaves(other)]
    out = []
    for _, one in leaves(example):
        kind, shape = type_and_shape(one)
        of = ((o, *type_and_shape(o)) for o in left)
        same = next((o for o, other, sizes in of if (other, len(sizes)) == (kind, len(shape))), None)
        if same is not None:
            left.remove(same)
        out.append((one, same))
    return out


__all__ = ["mixtures", "respelled", "spellings"]
