"""Links: from which input of the source's code each input of the model gets its values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from itertools import islice, permutations, product
from math import prod
from typing import Any

import torch

from ....model_code.inputs import InputSpec, leaves

#: Choices of links for all inputs that are looked at, and orders of inputs that are tried.
_CHOICES, _ORDERS = 256, 16


@dataclass(frozen=True, slots=True)
class Link:
    """The origin of one input of the model.

    Attributes:
        source: the place of an input of the source's code; None if only the model takes it.
        order: the dimensions of that input, in the order in which the model takes them; () if they stay. For "frames",
            the dimension along which the model takes the values several times.
        how: "" for the same values; "reshaped" if the model takes them in other sizes, in one order; "grey" if the
            source's code takes colours and the model one channel; "frames" if the model takes the same values several
            times; "part" for the input of a module inside of the source's code.
        module: the path of that module, for "part".
    """

    source: int | None
    order: tuple[int, ...] = ()
    how: str = ""
    module: str = ""


def links(theirs: Any, own: Any) -> Iterator[tuple[Link, ...]]:
    """Yield ways to make the model's inputs OWN from the inputs of the source's code THEIRS: each a tuple with one link
    per input of the model, none twice. A way in which no input of the model has an origin is left out.

    The likeliest comes first (`_likeliest`). If the model has several inputs, up to 16 ways follow in which each input
    of the model takes the values of a different input of the source's code, as they are or with their dimensions in
    another order; an input for which no such link is possible has no origin there (`_one_for_each`). Last come ways
    that are the likeliest but for one input, with another of its `_options`.
    """
    first, second = leaves(theirs), leaves(own)
    every = [_options(first, path, one) for path, one in second]
    plain = _likeliest(every)
    same = [[o for o in options if o.source is not None and not o.how] for options in every]
    ways = [plain, *islice(_one_for_each(same), _ORDERS if len(second) > 1 else 0)]
    ways += [(*plain[:i], other, *plain[i + 1 :]) for i, options in enumerate(every) for other in options]
    yield from (way for way in dict.fromkeys(ways) if any(link.source is not None or link.how for link in way))


def links_by_name(theirs: torch.nn.Module, first: Any, own: torch.nn.Module, second: Any) -> tuple[Link, ...] | None:
    """Return one link for each of SECOND, the inputs of the model OWN, in order: its origin is the input of the same
    name in FIRST, the inputs of the source's code THEIRS, with the same values. Inputs by position get the names of the
    arguments (`by_name`).

    None unless both sides have the same names, at least two, and each is one spec (no list, no tensor) of the same type
    and size on both sides. If there are such links, no others are tried.
    """
    first, second = by_name(theirs, first), by_name(own, second)
    if not (isinstance(first, dict) and isinstance(second, dict)) or len(first) < 2 or first.keys() != second.keys():
        return None
    single = all(isinstance(one, InputSpec) for side in (first, second) for one in side.values())
    if not single or any(type_and_shape(first[name]) != type_and_shape(second[name]) for name in second):
        return None
    return tuple(Link(list(first).index(name)) for name in second)


def by_name(model: torch.nn.Module, spec: Any) -> Any:
    """Return the inputs SPEC as a dict by the names of the arguments of MODEL, so that equal calls compare as equal. A
    mapping keeps its own names; inputs with which MODEL cannot be called stay as they are.
    """
    if isinstance(spec, MappingOf):
        return dict(spec)
    try:
        return dict(inspect.signature(model.forward).bind(*spec).arguments)
    except (TypeError, ValueError):
        return spec


def are_turned(plain: Sequence[Link], others: Sequence[Link]) -> bool:
    """Return whether OTHERS, the origins of the model's inputs, have the sources of PLAIN in another order, or the same
    sources with their dimensions in another order (the width of a picture for its height).
    """
    one, other = ([link.source for link in some] for some in (plain, others))
    if one == other:
        return [link.order for link in plain] != [link.order for link in others]
    return sorted(map(str, one)) == sorted(map(str, other))


def _likeliest(every: Sequence[Sequence[Link]]) -> tuple[Link, ...]:
    """Return one link for each input of the model. EVERY has, for each input, its possible links, the likeliest first.
    The first one counts whose source no earlier input has taken; if all are taken, the first one; a link without a
    source, if the input has no possible links.
    """
    out: list[Link] = []
    used: set[int] = set()
    for options in every:
        link = next((o for o in options if o.source not in used), options[0] if options else Link(None))
        if link.source is not None:
            used.add(link.source)
        out.append(link)
    return tuple(out)


def _one_for_each(every: Sequence[Sequence[Link]]) -> Iterator[tuple[Link, ...]]:
    """Yield tuples with one link for each input of the model, in which no two inputs have the same source. EVERY has,
    for each input, its possible links; an input without any gets a link without a source. Only the first 256
    combinations are looked at.
    """
    for chosen in islice(product(*[options or [Link(None)] for options in every]), _CHOICES):
        taken = [link.source for link in chosen if link.source is not None]
        if len(set(taken)) == len(taken):
            yield chosen


def _options(first: Sequence[Any], path: tuple[Any, ...], one: Any) -> list[Link]:
    """Return the possible links of ONE, the input (a spec or tensor) of the model at PATH, the likeliest first; [] if
    there are none. FIRST has (path, input) of the source's code; inputs of another type than ONE do not count. An input
    with the same last name in its path is likelier than others (see `_made_of`).
    """
    kind, wanted = type_and_shape(one)
    out: list[tuple[int, Link]] = []
    for place, (their_path, other) in enumerate(first):
        their_kind, have = type_and_shape(other)
        if their_kind == kind:
            is_named = isinstance(path[-1], str) and path[-1] == str(their_path[-1])
            dtype = getattr(torch, kind, None)
            is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
            out += _made_of(place, have, wanted, is_named=is_named, is_float=is_float)
    return [link for _, link in sorted(out, key=lambda one: one[0])]


def _made_of(
    place: int, have: tuple[int, ...], wanted: tuple[int, ...], *, is_named: bool, is_float: bool
) -> Iterator[tuple[int, Link]]:
    """Yield (cost, link) for the ways to make an input of the model, of sizes WANTED, of the input of the source's code
    at PLACE, of sizes HAVE; nothing if no way fits. The lower the cost, the likelier; it rises in this order:

    - the values as they are, if the sizes are equal;
    - the values reshaped, if there are as many, and no order of the dimensions gives the sizes ("reshaped");
    - the values with the dimensions after the first in another order, if there are three to five dimensions in all;
    - one channel in place of all channels of a picture [N, C, H, W] ("grey");
    - the values several times along a new dimension, which is dimension 2 or 1 of WANTED ("frames").

    All but the first two are only for floating point numbers (IS_FLOAT). If the names are equal (IS_NAMED), the first
    three cost 1 less, except for another order if HAVE and WANTED are equal.
    """
    other_name = 0 if is_named else 1
    if have == wanted:
        yield other_name, Link(place)
    elif prod(have) == prod(wanted) and sorted(have) != sorted(wanted):
        yield 2 + other_name, Link(place, (), "reshaped")
    if not is_float:
        return
    if sorted(have) == sorted(wanted):
        cost = 4 if have == wanted else 2 + other_name
        yield from (
            (cost, Link(place, order)) for order in _orders(len(have)) if tuple(have[i] for i in order) == wanted
        )
    elif len(have) == len(wanted) == 4 and wanted == (have[0], 1, *have[2:]):
        yield 5, Link(place, (), "grey")
    elif len(wanted) == len(have) + 1:
        yield from ((6, Link(place, (d,), "frames")) for d in (2, 1) if (*wanted[:d], *wanted[d + 1 :]) == have)


def _orders(ndim: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders of NDIM dimensions with the batch (0) first, without the present one; none unless NDIM is 3 to
    5.
    """
    if 3 <= ndim <= 5:
        for order in islice(permutations(range(1, ndim)), 1, None):
            yield (0, *order)


def type_and_shape(value: Any) -> tuple[str, tuple[int, ...]]:
    """Return (type, shape) of VALUE, a spec, a tensor or a plain value such as a number; the type as a name: "float32",
    for a plain value "a float", which is the name of no type of tensors.
    """
    if not isinstance(value, InputSpec | torch.Tensor):
        return f"a {type(value).__name__}", ()
    return str(value.dtype).removeprefix("torch."), tuple(value.shape)


__all__ = ["Link", "are_turned", "by_name", "links", "links_by_name", "type_and_shape"]
