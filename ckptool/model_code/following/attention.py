"""Tell queries, keys and values of an attention by what the forward pass does with them, whatever they are called.

In `softmax(q @ k.T) @ v` the softmax adds up over the places of the keys (Vaswani et al., "Attention Is All You Need",
2017). So does `scaled_dot_product_attention`, which has them in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..call import TURNS, Call
from ..signature import PRODUCTS

_SHAPES = frozenset("view reshape flatten unflatten squeeze unsqueeze".split())


class _Scores(NamedTuple):
    """The product of the outputs of two layers.

    Attributes:
        made: the keys of the weights of the two layers.
        owners: for each dimension, which of the two it lists the places of, 0 or 1; None for both, or if not known.
    """

    made: tuple[str, str]
    owners: tuple[int | None, ...]


class Attention:
    """Finds the layers that make the queries, keys and values of an attention.

    The arguments of `scaled_dot_product_attention` tell them. In other code, the product of the outputs of two layers
    is followed to a softmax, which adds up over the places of the keys, and from there to the product with the values.

    Args:
        made_by: returns the key of the weight of the only layer whose output a tensor is, or None.
    Attributes:
        roles: key of a weight -> "q", "k" or "v"; "" for a layer that is several of these.
    """

    def __init__(self, made_by: Callable[[Any], str | None]) -> None:
        self.roles: dict[str, str] = {}
        self._made_by = made_by
        self._scores: dict[int, _Scores] = {}  # by the id of the tensor
        self._weights: set[int] = set()  # ids of what a softmax made of scores

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note in `roles` what CALL, which has run, shows. KEYS has id of a parameter or buffer -> its key.

        - `scaled_dot_product_attention`: the layers that made its arguments `query`, `key` and `value`, by position or
          by name, get the roles "q", "k" and "v".
        - A product of two or more tensors, none of which is a parameter or buffer: `_multiply`, of the last two
          tensors.
        - A softmax: `_soften`.
        - Any other function that returns one tensor: `_go_on`.

        A layer counts as the one that made a tensor only if the tensor comes from the whole output of this layer and of
        no other (`Gating.made_by`).
        """
        if call.name == "scaled_dot_product_attention":
            for place, name in enumerate(("query", "key", "value")):
                value = call.args[place] if place < len(call.args) else call.kwargs.get(name)
                self._note("qkv"[place], self._made_by(value))
        elif call.name in PRODUCTS:
            if len(call.tensors) > 1 and not any(id(t) in keys for t in call.tensors):
                self._multiply(call, *call.tensors[-2:])
        elif call.name == "softmax":
            self._soften(call)
        elif isinstance(call.result, torch.Tensor):
            self._go_on(call)

    def _note(self, role: str, key: str | None) -> None:
        """Note the ROLE of the layer whose weight is KEY. The role becomes "", and stays so, if the layer had another
        one before. Nothing is noted if KEY is None.
        """
        if key is not None:
            self.roles[key] = role if self.roles.get(key, role) == role else ""

    def _multiply(self, call: Call, one: Any, other: Any) -> None:
        """Note what CALL, the product of the tensors ONE and OTHER, shows. If one of them is what a softmax made of
        scores, the other one is values: its layer gets the role "v". Else, if each is the output of a single layer, and
        the two layers differ, the result is scores (`_scores`): its second last dimension lists the places of the layer
        of ONE, its last those of the layer of OTHER; for an einsum, its equation says which (`_of_einsum`). Else, and
        for an einsum whose equation does not say so, nothing is noted.
        """
        if id(one) in self._weights or id(other) in self._weights:
            self._note("v", self._made_by(other if id(one) in self._weights else one))
            return
        made = self._made_by(one), self._made_by(other)
        if None in made or made[0] == made[1] or not isinstance(call.result, torch.Tensor):
            return
        owners = _of_einsum(call) if call.name == "einsum" else (*[None] * (call.result.ndim - 2), 0, 1)
        if len(owners) == call.result.ndim:
            self._scores[id(call.result)] = _Scores((made[0] or "", made[1] or ""), owners)

    def _soften(self, call: Call) -> None:
        """Note the roles of the two layers whose scores the softmax CALL takes: "k" for the layer whose places the
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
            for place, key in enumerate(scores.made):
                self._note("k" if place == owner else "q", key)
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
    """Return OWNERS, a value for each dimension of the first argument of CALL, in the order in which CALL turns the
    dimensions; () if torch refuses the same call on a probe, a tensor of as many dimensions with sizes 0, 1, 2 …, by
    which the order is found.
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
