"""Suggest the next inputs, all together, by the error that stopped a try, the likeliest first."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..call import flat
from ..inputs import Fields, InputSpec, inputs_for, leaves, with_leaves
from .attempt import Stop
from .changes import changes, deeper
from .wanted import BY_ELEMENT, wanted_dimensions, wanted_sizes


def suggestions(model: torch.nn.Module, spec: Any, stop: Stop) -> Iterator[Any]:
    """Yield other inputs than SPEC for MODEL that the error of the failed try STOP suggests, in the form of SPEC but
    for arguments and entries that are added, the likeliest first. Some may be yielded twice.

    In this order, they have:

    - one column per layer (`_counted`);
    - more arguments or entries (`_named`);
    - a `Fields` with one entry in place of an input from which code took an entry by this name;
    - fewer inputs: those behind the last one that was used are left out, if SPEC is a list, and the model's own code
      failed, not an operation;
    - a list of 2 to 6 equal inputs in place of one of floating point numbers with three or more dimensions, if code
      took single elements of it (`x[2]`, none beyond the sixth);
    - other dimensions or sizes of several inputs at once (`deeper`, `_in_steps`, `_beside`, `_together`, `_as_said`);
    - other dimensions, sizes or types of one input at a time (`changes`), first of those that the failed operation was
      computed from.
    """
    told = leaves(spec)
    specs = [one for _, one in told]
    blamed = stop.blamed or list(range(len(specs)))
    yield from (with_leaves(spec, new) for new in _counted(specs, stop))
    yield from _named(model, spec, stop)
    for place, key in stop.asked.items():
        yield _put(spec, told[place][0], Fields({key: _first(model, key, specs[place])}))
    if not stop.name and isinstance(spec, list) and stop.touched and max(stop.touched) + 1 < len(spec):
        yield spec[: max(stop.touched) + 1]
    for place, count in stop.picked.items():  # a list, of which a tensor has the first dimension
        one = specs[place]
        if len(one.shape) > 2 and one.dtype.startswith("float") and 2 <= count <= 6:
            for n in dict.fromkeys((max(count, 3), 4, 2, 5)):
                yield _put(spec, told[place][0], [one] * n)
    if len(blamed) > 1 and stop.name not in BY_ELEMENT:
        for rank in wanted_dimensions(stop):
            yield with_leaves(spec, [deeper(one, rank) if at in blamed else one for at, one in enumerate(specs)])
    yield from (with_leaves(spec, new) for new in _in_steps(specs, stop))
    yield from (with_leaves(spec, new) for new in _beside(specs, stop))
    yield from (with_leaves(spec, new) for new in _together(specs, blamed, stop))
    yield from (with_leaves(spec, new) for new in _as_said(specs, blamed, stop))
    for at in [*blamed, *(at for at in range(len(specs)) if at not in blamed)]:
        for new in changes(specs[at], stop):
            yield with_leaves(spec, [new if place == at else one for place, one in enumerate(specs)])


#: What a container of modules says that has no layer of a number, or of a name that counts.
_NO_SUCH_LAYER = re.compile(r"'[A-Za-z_]*(\d+)'|index (\d+) is out of range")


def _counted(specs: Sequence[InputSpec], stop: Stop) -> Iterator[list[InputSpec]]:
    """Yield inputs with fewer columns than SPECS, the inputs of the try STOP: code that has a layer for each column has
    no layer for the last ones, if the error of STOP is a KeyError or IndexError with a number.

    If the error says that there is no `embed_4`, each dimension but the first, if it is larger, becomes four, one
    dimension at a time; and after these, three. Nothing is yielded for other errors.
    """
    found = _NO_SUCH_LAYER.fullmatch(stop.message) if stop.error in ("KeyError", "IndexError") else None
    last = int(found[1] or found[2]) if found else 0
    for size in (last, last - 1):  # those that count from one have the last one still
        for at, one in enumerate(specs):
            for d, n in enumerate(one.shape[1:], 1):
                if 0 < size < n:
                    shape = (*one.shape[:d], size, *one.shape[d + 1 :])
                    yield [replace(one, shape=shape) if i == at else other for i, other in enumerate(specs)]


def _in_steps(specs: Sequence[InputSpec], stop: Stop) -> Iterator[list[InputSpec]]:
    """Yield once SPECS, the inputs of the try STOP, with four steps in time for each: a second dimension of 4. Nothing
    is yielded for a single input, or unless STOP failed in `linear` or `layer_norm` with vectors that are n times as
    long as the layer takes, n from 2 to the number of inputs. Code then concatenated n inputs that it takes step by
    step.
    """
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    if len(specs) > 1 and len(args) > 1 and stop.name in ("linear", "layer_norm") and args[0].ndim and args[1].ndim:
        times, rest = divmod(args[0].shape[-1], args[1].shape[-1])
        if not rest and 1 < times <= len(specs):
            yield [deeper(one, (1, 2)) for one in specs]


def _beside(specs: Sequence[InputSpec], stop: Stop) -> Iterator[list[InputSpec]]:
    """Yield inputs like SPECS, the inputs of the try STOP, in which one input gets the sizes of another tensor in the
    operation where STOP failed. In a concatenation, it keeps its size in the dimension that is concatenated.

    Only inputs that are themselves an argument of the operation are changed, and only to the sizes of a tensor of as
    many dimensions. Nothing is yielded for other operations than additions, subtractions and products by element
    (`BY_ELEMENT`), and concatenations.
    """
    if stop.name not in BY_ELEMENT | {"cat", "concat"}:
        return
    args, named = stop.args if len(stop.args) == 2 else ((), {})
    every = list(flat(stop.args))
    dim = named.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else 0)
    for place, at in stop.whole.items():
        own = every[at]
        for other in every:
            if not isinstance(other, torch.Tensor) or other is own or other.ndim != own.ndim:
                continue
            kept = dim % own.ndim if stop.name not in BY_ELEMENT else -1
            shape = tuple(n if d == kept else m for d, (n, m) in enumerate(zip(own.shape, other.shape, strict=True)))
            if shape != specs[place].shape:
                yield [replace(one, shape=shape) if i == place else one for i, one in enumerate(specs)]


def _together(specs: Sequence[InputSpec], blamed: Sequence[int], stop: Stop) -> Iterator[list[InputSpec]]:
    """Yield inputs like SPECS, the inputs of the try STOP, in which two or more inputs get another size at once: all of
    BLAMED, the places of the inputs that may change, that have one size in the same dimension.

    The error of STOP says which size a tensor has, and which it needs (`wanted_sizes`). Inputs of the size that it has
    get the size that it needs. Inputs of a smaller size each take an equal part of the difference, as if the tensor had
    the sum of their sizes (which is not checked): 8 and 8 become 10 and 10, if it has 16 and needs 20. Nothing is
    yielded for parts that are not whole, nor for inputs of a larger size.
    """
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    x, weight = (args[0] if args else None), (args[1] if len(args) > 1 else None)
    groups: dict[tuple[int, int], list[int]] = {}
    for at in blamed:
        for d, n in enumerate(specs[at].shape):
            groups.setdefault((d, n), []).append(at)
    for have, want in wanted_sizes(stop, x, weight):
        for (d, n), members in groups.items():
            more, rest = divmod(want - have, len(members))
            size = want if n == have else n + more if not rest and have > n else 0
            if len(members) < 2 or size < 1:
                continue
            yield [
                replace(one, shape=tuple(size if i == d else m for i, m in enumerate(one.shape)))
                if at in members
                else one
                for at, one in enumerate(specs)
            ]


def _as_said(specs: Sequence[InputSpec], blamed: Sequence[int], stop: Stop) -> Iterator[list[InputSpec]]:
    """Yield SPECS, the inputs of the try STOP, with one dimension changed in one of BLAMED, the places of inputs that
    may change: the size that an einsum has there becomes the one that it needs. Nothing is yielded for other errors,
    nor for an input without that size.
    """
    for have, want in wanted_sizes(stop, None, None) if stop.name == "einsum" else ():
        for at in blamed:
            for d in [d for d, n in enumerate(specs[at].shape) if n == have]:
                shape = (*specs[at].shape[:d], want, *specs[at].shape[d + 1 :])
                yield [replace(one, shape=shape) if i == at else one for i, one in enumerate(specs)]


def _put(spec: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the nested inputs SPEC with VALUE in place of what is at PATH, the keys and indices that lead there. VALUE
    itself if PATH is empty; unchanged if there is nothing at PATH.
    """
    if not path:
        return value
    if isinstance(spec, Mapping):
        made_ = {k: _put(v, path[1:], value) if k == path[0] else v for k, v in spec.items()}
        return Fields(made_) if isinstance(spec, Fields) else made_
    return [_put(v, path[1:], value) if k == path[0] else v for k, v in enumerate(spec)]


def _first(model: torch.nn.Module, name: str, like: InputSpec) -> InputSpec:
    """Return the first spec of `inputs_for` for the argument NAME of MODEL, as one of two; LIKE if there is none."""
    return next(iter(inputs_for(model, name, 2)), like)


def _named(model: torch.nn.Module, spec: Any, stop: Stop) -> Iterator[Any]:
    """Yield inputs like SPEC with an entry or an argument of MODEL added whose name the error of the try STOP mentions.

    If the error is about a missing key or attribute, this entry is added to each `Fields` that lacks it, one at a time;
    an input that is one tensor becomes a `Fields` with this entry alone, if tensors have no attribute of that name.

    Of arguments, only those that SPEC lacks and that have None as their default are added; the result is then a dict
    argument -> input. They are the first six that the error names, one at a time, each with two guesses; and then the
    first three together, unless the error is about a None. If it is about a None and names none of them, all but
    unlikely ones (caches, flags) count as named, masks and labels last. If none counts as named and a linear layer
    failed, the first two that are conditions by their names (`context`, `memory`) are added, one at a time: as a
    sequence and as a vector of the width that the layer takes. No argument is added if Python does not know those of
    MODEL, or if SPEC has more inputs than MODEL has names for by position.
    """
    key = re.fullmatch(r"'(\w+)'", stop.message) if stop.error == "KeyError" else None
    attribute = re.search(r"object has no attribute '(\w+)'", stop.message)
    attribute = attribute if attribute and re.search("'(Fields|Tensor|dict)'", stop.message) else None
    name = (key or attribute)[1] if key or attribute else None  # type: ignore[index]
    items = list(spec.items()) if isinstance(spec, Mapping) else list(enumerate(spec))
    if name is not None:
        for at, value in items:
            if isinstance(value, Fields) and name not in value:
                like = next(iter(value.values()))
                yield _put(spec, (at,), Fields({**value, name: _first(model, name, like)}))
            elif isinstance(value, InputSpec) and not hasattr(torch.Tensor, name):
                yield _put(spec, (at,), Fields({name: _first(model, name, value)}))
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return
    open_ = [
        p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is None
    ]
    if isinstance(spec, Mapping):
        by_name = dict(spec)
    else:
        names = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(names) < len(spec):
            return
        by_name = dict(zip(names, spec, strict=False))
    open_ = [one for one in open_ if one not in by_name]
    said = [one for one in open_ if re.search(rf"\b{re.escape(one)}\b", stop.message)]
    if not said and "NoneType" in stop.message:
        said = sorted((one for one in open_ if not _UNLIKELY.search(one)), key=lambda one: bool(_LATE.search(one)))[:6]
    args = [a for a in flat(stop.args) if isinstance(a, torch.Tensor)]
    if not said and stop.name == "linear" and len(args) > 1 and args[1].ndim == 2:
        for one in [one for one in open_ if _CONDITIONS.search(one)][:2]:  # code takes the input itself without it
            yield by_name | {one: InputSpec("float32", (2, 12, args[1].shape[1]))}
            yield by_name | {one: InputSpec("float32", (2, args[1].shape[1]))}
    for one in said[:6]:
        for option in itertools.islice(inputs_for(model, one, 2), 2):
            yield by_name | {one: option}
    if len(said) > 1 and "NoneType" not in stop.message:
        yield by_name | {one: _first(model, one, next(iter(inputs_for(model, one, 2)))) for one in said[:3]}


_UNLIKELY = re.compile(r"^return_|cache|past|^output_|^use_|loss|training|kwargs")

#: What a model is conditioned on, if it is given.
_CONDITIONS = re.compile(r"context|cond|encoder_hidden_states|memory|cross|prompt|text")

_LATE = re.compile(r"embeds$|^labels$|rewards|mask")


__all__ = ["suggestions"]
