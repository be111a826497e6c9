"""Tell queries, keys and values of an attention by what the forward pass does with them, whatever they are called.

In `softmax(q @ k.T) @ v` the softmax adds up over the places of the keys (Vaswani et al., "Attention Is All You Need",
2017). So does `scaled_dot_product_attention`, which has them in this order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..call import TURNS, Call
from ..signature import PRODUCTS
from .named_parts import Place

_SHAPES = frozenset("view reshape flatten unflatten squeeze unsqueeze".split())

#: The key of the weight of a layer, and a part of its output, as the places of that part and of those around it, the
#: outermost first (see `NamedParts.part_of`); no places for the whole output.
_Source = tuple[str, tuple[Place, ...]]


class _Scores(NamedTuple):
    """The product of the outputs of two layers, or of two parts of outputs.

    Attributes:
        made: where the two come from.
        owners: for each dimension, which of the two it lists the places of, 0 or 1; None for both, or if not known.
    """

    made: tuple[_Source, _Source]
    owners: tuple[int | None, ...]


class Attention:
    """Finds the layers, and parts of their outputs, that are the queries, keys and values of an attention.

    The arguments of `scaled_dot_product_attention` tell them. In other code, the product of the outputs of two layers
    is followed to a softmax, which adds up over the places of the keys, and from there to the product with the values.

    Args:
        made_by: returns the key of the weight of the only layer whose output a tensor is, or None.
        part_of: returns (key of a weight, place) of a tensor that is a part of an output, or None.
    """

    def __init__(
        self, made_by: Callable[[Any], str | None], part_of: Callable[[Any], tuple[str, Place] | None]
    ) -> None:
        self._roles: dict[str, dict[Place | None, str]] = defaultdict(dict)  # key -> place, None for all -> role
        self._made_by = made_by
        self._part_of = part_of
        self._parts: dict[int, _Source] = {}  # by the id of what was computed from one part of an output alone
        self._scores: dict[int, _Scores] = {}  # by the id of the tensor
        self._weights: set[int] = set()  # ids of what a softmax made of scores

    def role_of(self, key: str) -> str:
        """Return what the output of the weight KEY, or each part of it that an attention takes, is there: "q", "k" or
        "v"; "" if that is not known, or if it is several of these.
        """
        roles = {*self._roles[key].values()}
        return roles.pop() if len(roles) == 1 else ""

    def roles_of_parts(self, key: str) -> Mapping[Place | None, str]:
        """Return place of a part of the output of the weight KEY -> what it is in an attention, "q", "k" or "v", or ""
        if it is several of these. {} unless the weight has parts with different roles.
        """
        return self._roles[key] if len({*self._roles[key].values()} - {""}) > 1 else {}

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note what CALL, which has run, shows. KEYS has id of a parameter or buffer -> its key.

        - `scaled_dot_product_attention`: the layers that made its arguments `query`, `key` and `value`, by position or
          by name, get the roles "q", "k" and "v", or the parts of their outputs do.
        - A product of two or more tensors, none of which is a parameter or buffer: `_multiply`, of the last two
          tensors.
        - A softmax: `_soften`.
        - Any other function that returns one tensor: `_go_on`.

        A layer counts as the one that made a tensor only if the tensor comes from the whole output of this layer, or
        from one part of it, and of no other (`_source_of`).
        """
        if call.name == "scaled_dot_product_attention":
            for place, name in enumerate(("query", "key", "value")):
                value = call.args[place] if place < len(call.args) else call.kwargs.get(name)
                self._note("qkv"[place], self._source_of(value))
        elif call.name in PRODUCTS:
            if len(call.tensors) > 1 and not any(id(t) in keys for t in call.tensors):
                self._multiply(call, *call.tensors[-2:])
        elif call.name == "softmax":
            self._soften(call)
        elif isinstance(call.result, torch.Tensor):
            self._go_on(call)
        if call.name not in PRODUCTS:
            self._go_on_with_parts(call)

    def _go_on_with_parts(self, call: Call) -> None:
        """Note for each result of CALL the part of an output that it comes from: the innermost part that all tensors in
        CALL with a source come from, and inside of it the part that CALL cuts out as this result, if it does
        (`part_of`). Nothing is noted if the sources are of several layers; a result without a part loses an earlier
        note.
        """
        sources = [source for one in call.tensors if (source := self._source_of(one)) is not None]
        paths = [path for _, path in sources]
        around = tuple(each[0] for each in zip(*paths, strict=False) if len({*each}) == 1)
        if len({key for key, _ in sources}) > 1:
            return
        for result in call.results:
            own = self._part_of(result)
            key = sources[0][0] if sources else "" if own is None else own[0]
            path = around if own is None else (*around, own[1])
            self._parts.pop(id(result), None)
            if path:
                self._parts[id(result)] = key, path

    def _source_of(self, value: Any) -> _Source | None:
        """Return the part of an output that the tensor VALUE was computed from, and no other part, as (key of the
        layer's weight, places); or (key, ()) if it was computed from the whole output of one layer (`made_by`). None
        for others.
        """
        key = self._made_by(value)
        return self._parts.get(id(value)) or (None if key is None else (key, ()))

    def _note(self, role: str, source: _Source | None) -> None:
        """Note the ROLE of SOURCE, an output or a part of one, and of all parts around it. The role of each becomes "",
        and stays so, if it had another one before. Nothing is noted if SOURCE is None.
        """
        key, places = source or ("", ())
        for place in places or ([None] if source else ()):
            self._roles[key][place] = role if self._roles[key].get(place, role) == role else ""

    def _multiply(self, call: Call, one: Any, other: Any) -> None:
        """Note what CALL, the product of the tensors ONE and OTHER, shows. If one of them is what a softmax made of
        scores, the other one is values: its source gets the role "v". Else, if each has a source, and the two differ,
        the result is scores (`_scores`): its second last dimension lists the places of the source of ONE, its last
        those of the source of OTHER; for an einsum, its equation says which (`_of_einsum`). Else, and
        for an einsum whose equation does not say so, nothing is noted.
        """
        if id(one) in self._weights or id(other) in self._weights:
            self._note("v", self._source_of(other if id(one) in self._weights else one))
            return
        made = self._source_of(one), self._source_of(other)
        if made[0] is None or made[1] is None or made[0] == made[1] or not isinstance(call.result, torch.Tensor):
            return
        owners = _of_einsum(call) if call.name == "einsum" else (*[None] * (call.result.ndim - 2), 0, 1)
        if len(owners) == call.result.ndim:
            self._scores[id(call.result)] = _Scores((made[0], made[1]), owners)

    def _soften(self, call: Call) -> None:
        """Note the roles of the two sources whose scores the softmax CALL takes: "k" for the one whose places the
        softmax adds up over, "q" for the other one; and note that the result is what a softmax made of scores. Nothing
        is noted if CALL takes no scores, if its dimension is not given as a number, or if it is not known which of the
        two layers has its places in that dimension.
        """
        scores = self._scores.get(id(call.first))
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        if scores is None or not isinstance(dim, int):
            return
        owner = scores.owners[dim]
        if owner is not None:
            for place, source in enumerate(scores.made):
                self._note("k" if place == owner else "q", source)
            self._weights.add(id(call.result))

    def _go_on(self, call: Call) -> None:
        """Note that the result of CALL is scores, if just one of its arguments is, and CALL turns their dimensions,
        reshapes them, or keeps their sizes (a factor, a mask); and that it is what a softmax made of scores, if an
        argument with as many elements is.
        """
        if any(id(t) in self._weights and t.numel() == call.result.numel() for t in call.tensors):
            self._weights.add(id(call.result))
        found = [t for t in call.tensors if id(t) in self._scores]
        if len(found) != 1:
            return
        (taken,), scores = found, self._scores[id(found[0])]
        if call.name in TURNS | {"t"}:
            owners = _turned(call, scores.owners)
        elif call.name in _SHAPES:
            owners = _regrouped(scores.owners, taken.shape, call.result.shape)
        else:
            owners = scores.owners if call.result.shape == taken.shape else ()
        if len(owners) == call.result.ndim:
            self._scores[id(call.result)] = scores._replace(owners=owners)


def _of_einsum(call: Call) -> tuple[int | None, ...]:
    """Return, for each dimension of the result of the einsum CALL of two tensors, which of the two has it, 0 or 1; None
    for one that both have. () if CALL has no equation as its first argument, or an equation without an arrow, with
    "...", or of another number of tensors than two.
    """
    equation = call.args[0] if call.args else ""
    if not isinstance(equation, str) or "->" not in equation or "." in equation or equation.count(",") != 1:
        return ()
    given, result = equation.replace(" ", "").split("->")
    one, other = given.split(",")
    return tuple(None if (x in one) == (x in other) else int(x in other) for x in result)


def _turned(call: Call, owners: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return OWNERS, which has a value for each dimension of the first argument of CALL, in the order in which CALL
    puts the dimensions: (None, 1, 0) for (None, 0, 1) and `transpose(1, 2)`. () if that order cannot be found.
    """
    probe = torch.empty(tuple(range(len(owners))), device="meta")
    try:
        made = getattr(torch.Tensor, call.name)(probe, *call.args[1:], **call.kwargs)
    except (TypeError, RuntimeError):
        return ()
    return tuple(owners[size] for size in made.shape)


def _regrouped(owners: Sequence[int | None], before: Sequence[int], after: Sequence[int]) -> tuple[int | None, ...]:
    """Return a value for each dimension of a tensor that is reshaped from the sizes BEFORE to AFTER. OWNERS has the
    values of its dimensions before: (0, 1) becomes (0, 0, 1) from [6, 4] to [2, 3, 4].

    Each run of dimensions of BEFORE (`_blocks`) gives its value to all dimensions of AFTER that it becomes. Of those in
    BEFORE, dimensions of size 1 do not count. The value is None if the other dimensions in the run have unlike values,
    or if there are none.
    """
    made: list[int | None] = []
    at = 0
    for whole in _blocks(before, after):
        own = {owner for owner, size in zip(owners[at:], before[at : at + whole[0]], strict=False) if size != 1}
        made += [own.pop() if len(own) == 1 else None] * whole[1]
        at += whole[0]
    return tuple(made)


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """Return a list of (how many of the sizes BEFORE, how many of AFTER) for the smallest runs of both with equal
    products, in order: [(2, 1), (1, 1)] for [2, 3, 4] and [6, 4].
    """
    found, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second = i, j
        one = other = 1
        while i < len(before) and (i == first or one < other):
            one, i = one * before[i], i + 1
        while j < len(after) and (j == second or other < one):
            other, j = other * after[j], j + 1
        while one != other and (i < len(before) or j < len(after)):
            if one < other and i < len(before):
                one, i = one * before[i], i + 1
            elif j < len(after):
                other, j = other * after[j], j + 1
            else:
                break
        found.append((i - first, j - second))
    return found


__all__ = ["Attention"]
