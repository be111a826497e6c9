"""How a forward pass pairs the outputs that a rotary embedding rotates: neighbours, or element i with i + half.

Su et al., "RoFormer", 2021, rotate neighbours ("interleaved"), as GPT-J does; GPT-NeoX and Llama in Hugging Face's
code rotate halves ("half"). However code takes pairs apart, a rotated element is a sum of two outputs of a layer, each
times a table of cosines or sines. Which two they are is read from the numbers of the rows: a tensor with these numbers
goes through the calls that moved the outputs since the layer made them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..call import ADDS, CUTS, DIVIDES, JOINS, MULTIPLIES, TURNS, Call, summed_dim
from ..signature import PRODUCTS
from .products import letters_of
from .use import Uses

_SUBTRACTS = frozenset("sub subtract __sub__ __rsub__ sub_ __isub__".split())
_ADDS_PRODUCT = frozenset("addcmul addcmul_".split())
_WAVES = frozenset("cos cos_ sin sin_ polar".split())
#: What may begin or end a rotation.
_ROTATES = MULTIPLIES | ADDS | _SUBTRACTS | _ADDS_PRODUCT | PRODUCTS

#: Functions whose elements are computed from several elements of their tensors.
_ADDS_UP = ADDS | _SUBTRACTS | _ADDS_PRODUCT | {"complex"}

#: Functions that put tensors together, and all that only move elements to places that their arguments say.
_STACKS = JOINS | {"stack", "hstack"}
_MOVES = frozenset(
    "__getitem__ view reshape view_as reshape_as flatten unflatten t squeeze unsqueeze unbind narrow select roll flip"
    " expand expand_as repeat tile repeat_interleave".split()
)
_MOVES |= CUTS | TURNS | _STACKS

#: So many calls, and elements, are gone through for the rows in a tensor. Between a layer and its rotation are fewer.
_MOST_CALLS, _MOST_ELEMENTS = 64, 1 << 24

#: The rows i <= j in an element, as one number i * _BASE + j. An element that holds no row has -1.
_BASE = 1 << 31

#: Rows by the id of the tensor that holds them; None where they are not known.
_Known = dict[int, "torch.Tensor | None"]


class Rotary:
    """Follows what is multiplied by tables, and then added.

    Args:
        uses: gets `rotary` and `turned` of facts.
        made_by: the keys of the matrices that made a tensor.
        learned: whether a tensor was computed from weights.
    Attributes:
        kind: how the pass pairs what it rotates ("interleaved", "half"; "unknown" if it multiplies outputs of a layer
            by a table, and it is not seen how it pairs them), or None if it rotates nothing.
    """

    def __init__(self, uses: Uses, made_by: Callable[[Any], Collection[str]], learned: Callable[[Any], bool]) -> None:
        self.kind: str | None = None
        self._uses = uses
        self._made_by = made_by
        self._learned = learned
        self._from: dict[int, tuple[Call, int]] = {}  # id of a tensor -> the call that made it, and its place there
        self._waves: set[int] = set()  # cosines, sines, and what was made of these alone
        self._scaled: set[int] = set()  # outputs of layers times a table, before they are added

    def see(self, call: Call) -> None:
        """Note what CALL, which has run, shows about a rotary embedding, in `kind` and in the facts of matrices.

        A table is a tensor of numbers with fractions that no matrix made, or that was made of cosines and sines alone
        (also of learned angles). Outputs of layers are rotated where two tensors that were multiplied by tables are
        added or subtracted (also by `addcmul` and `sum`), where complex ones are multiplied by a tensor, and where a
        product with a table sums over two elements: which rows are a pair is read from the result (`_pairs`). Outputs
        that are multiplied, element by element, by a table with several columns (of complex numbers, by any) that is
        not learned are rotated in an unknown way, until such a call shows it.
        """
        for place, one in enumerate(call.results):
            self._from.setdefault(id(one), (call, place))
        if call.name in _WAVES or (call.tensors and all(id(one) in self._waves for one in call.tensors)):
            self._waves.update(map(id, call.results))
        if call.name not in _ROTATES and self._scaled.isdisjoint(map(id, call.tensors)):
            return
        made = [one for one in call.tensors if self._is_made(one)]
        tables = [one for one in call.tensors if _has_fractions(one) and not self._is_made(one)] if made else []
        plain = [one for one in tables if id(one) in self._waves or not self._learned(one)]
        scaled = [one for one in made if id(one) in self._scaled]
        if call.name in MULTIPLIES and len(made) == 1 < len(call.tensors) and made[0].is_complex():
            if plain:
                self._note(made, "unknown")
            self._rotates(made, self._rows(made[0], {}))
        elif call.name in MULTIPLIES and len(made) == len(tables) == 1:
            self._scaled.update(map(id, call.results))
            if plain and plain[0].ndim > 1 and plain[0].shape[-1] > 1:  # and no weights of a norm
                self._note(made, "unknown")
        elif call.name in ADDS | _SUBTRACTS:
            if len(scaled) == 2 and self._made_by(scaled[0]) == self._made_by(scaled[1]):
                self._rotates(scaled, self._rows_made(call, {}))
        elif call.name in PRODUCTS:
            if len(made) == len(tables) == len(plain) == 1:
                self._rotates(made, self._rows_made(call, {}))
        elif call.name in _ADDS_PRODUCT | {"sum"}:
            if scaled and len(tables) == len(made) - len(scaled):
                self._rotates(made, self._rows_made(call, {}))
        elif scaled:
            self._scaled.update(map(id, call.results))

    def _is_made(self, value: torch.Tensor) -> bool:
        """Return whether matrices of the model made the numbers in VALUE (not only its sizes, as those of
        `ones_like`), and it is no table of cosines or sines.
        """
        return bool(self._made_by(value)) and self._learned(value) and id(value) not in self._waves

    def _rotates(self, made: Sequence[torch.Tensor], rows: torch.Tensor | None) -> None:
        """Note that outputs MADE by matrices are rotated, where the elements of the result hold ROWS (see `_BASE`).
        Nothing is noted if these are not known, or if no element holds two.
        """
        pairs = None if rows is None else _pairs(rows)
        if pairs is not None:
            self._note(made, *pairs)

    def _note(self, made: Sequence[torch.Tensor], kind: str, width: int = 0) -> None:
        """Note in the facts of the matrices that made the tensors MADE how rotary embeddings pair their outputs:
        `rotary` becomes KIND ("half", "interleaved" or "unknown"), and `turned` WIDTH, the number of outputs of each
        head that are rotated (0 if that is not known). `kind` becomes KIND, too. The first note that is not "unknown"
        stays.
        """
        if self.kind in (None, "unknown"):
            self.kind = kind
        for key in {key for one in made for key in self._made_by(one)}:
            if key in self._uses and self._uses[key].facts.rotary in (None, "unknown"):
                self._uses[key].facts.rotary, self._uses[key].facts.turned = kind, width

    def _rows(self, value: torch.Tensor, known: _Known, depth: int = 0) -> torch.Tensor | None:
        """Return which rows of the matrices that made VALUE each of its elements holds, one or two of them, as numbers
        (see `_BASE`) in the sizes of VALUE. None if that is not known: an element may hold more than two, a call since
        these matrices moved elements in an unknown way, or there are too many calls or elements. KNOWN gets the rows of
        all tensors on the way.
        """
        if id(value) not in known:
            call, place = self._from.get(id(value), (None, 0))
            found = None
            if call is not None and depth < _MOST_CALLS and value.numel() <= _MOST_ELEMENTS:
                made = self._rows_made(call, known, depth + 1)
                found = made[place] if isinstance(made, tuple | list) else made
            known[id(value)] = found if found is not None and found.shape == value.shape else None
        return known[id(value)]

    def _rows_made(self, call: Call, known: _Known, depth: int = 0) -> Any:
        """Return the rows in the result of CALL as `_rows` does; if CALL has several results, a list or tuple with
        those of each. The result of a product or convolution that counts as made by matrices has one row in each
        element. None if no tensor in CALL has known rows, if some have and others that matrices made do not (factors
        aside), or if the function refuses to work on rows.
        """
        if (call.name in PRODUCTS or call.name.startswith("conv")) and self._made_by(call.result):
            return _numbered(call)
        each = {id(one): self._rows(one, known, depth) for one in call.tensors if self._is_made(one)}
        rows = {at: one for at, one in each.items() if one is not None}
        if not rows or (len(rows) < len(each) and call.name not in MULTIPLIES | DIVIDES):
            return None
        try:
            return _rows_after(call, rows)
        except (RuntimeError, TypeError, IndexError):  # what torch refuses to do with rows
            return None


def _has_fractions(value: torch.Tensor) -> bool:
    return bool(value.is_floating_point() or value.is_complex())


def _numbered(call: Call) -> torch.Tensor | None:
    """Return the number of the row that made each element of the result of CALL, a product or a convolution with a
    matrix, in the form of `_BASE`. Of an einsum, the rows are all dimensions of its last tensor that the result has, in
    the order of this tensor; None if its equation does not say which.
    """
    sizes = call.result.shape
    dim = 1 if call.name.startswith("conv") and len(sizes) > 2 else len(sizes) - 1
    numbers = torch.arange(sizes[dim], device="cpu").view(-1, *[1] * (len(sizes) - 1 - dim))
    if call.name == "einsum":
        letters, _, result = letters_of(call.args, call.tensors[-1])
        kept = [one for one in letters if one in result]
        if not kept or "." in result or len(result) != len(sizes):
            return None
        own = [sizes[result.index(one)] for one in kept]
        numbers = (
            torch.arange(torch.Size(own).numel(), device="cpu")
            .view(own)
            .permute([kept.index(x) for x in result if x in kept])
        )
        numbers = numbers.reshape([n if one in kept else 1 for one, n in zip(result, sizes, strict=True)])
    return (numbers * _BASE + numbers).expand(sizes)


def _rows_after(call: Call, rows: Mapping[int, torch.Tensor]) -> Any:
    """Return the rows in the result of CALL, or in each of its results, by ROWS, those in its tensors (by id; other
    tensors hold none). None if an element would hold more than two, or if elements are moved to where another tensor
    says (`x[index]`). A function that is not known here counts as one of each element, if it keeps the sizes, and has
    one result.
    """
    held = [rows[id(one)] for one in call.tensors if id(one) in rows]
    if call.name in _MOVES:
        takes = call.first if call.name in _STACKS else call.tensors if call.name.endswith("_as") else [call.first]
        if len(takes) < len(call.tensors):
            return None
        return _again(
            call, {id(t): torch.full((), -1, device="cpu").expand(t.shape) for t in call.tensors} | dict(rows)
        )
    if call.name == "view_as_complex":
        return _united(held[0][..., 0], held[0][..., 1])
    if call.name == "view_as_real":
        return held[0][..., None].expand(*held[0].shape, 2)
    if call.name == "sum":
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        dims = dim if isinstance(dim, tuple | list) else (dim,)
        if len(dims) != 1:
            return None
        (dim,) = dims
        both = _united(*held[0].unbind(dim)) if held[0].shape[dim] == 2 else None
        return both if both is None else both.reshape(call.result.shape)
    if call.name in PRODUCTS:
        return _summed(call, rows)
    if not isinstance(call.result, torch.Tensor):
        return None  # several results of a function that is not known here, such as `topk`
    found = held[0]
    for other in held[1:]:
        both = _united(*torch.broadcast_tensors(found, other))
        if both is None or (call.name not in _ADDS_UP and not torch.equal(both, found.expand_as(both))):
            return None
        found = both
    return found.expand(call.result.shape)


def _summed(call: Call, rows: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Return the rows in the result of CALL, a product of a tensor that holds ROWS (by id) with one that holds none.
    None if CALL does not sum over just one dimension of the former, with two elements.
    """
    place, one = next((place, one) for place, one in enumerate(call.values) if id(one) in rows)
    dim = summed_dim(call, place, one)
    if call.name == "einsum":
        letters, _, result = letters_of(call.args, one)
        summed = [at for at, letter in enumerate(letters) if letter not in result] if len(letters) == one.ndim else [0]
        dim = summed[0] if len(summed) == 1 else None
    if dim is None or one.shape[dim] != 2:
        return None
    both = torch.zeros_like(rows[id(one)]), torch.zeros_like(rows[id(one)])
    for at, part in enumerate(both):
        part.select(dim, at).copy_(rows[id(one)].select(dim, at))
    ones = {id(t): torch.ones(t.shape, dtype=torch.int64, device="cpu") for t in call.tensors}
    return _united(*(_again(call, ones | {id(one): part}) for part in both))


def _again(call: Call, instead: Mapping[int, torch.Tensor]) -> Any:
    """Return what the function of CALL gives with INSTEAD[id of a tensor] in place of each tensor among its arguments.
    For `view`, it is `reshape`. Errors of the function are not caught.
    """

    def put(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [*map(put, value)] if isinstance(value, list) else (*map(put, value),)
        return instead[id(value)] if isinstance(value, torch.Tensor) else value

    name = "reshape" if call.name == "view" else call.name
    function = getattr(torch.Tensor, name, None) or getattr(torch, name)
    return function(*put(call.args), **{name: put(value) for name, value in call.kwargs.items()})


def _united(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Return the rows that elements hold which are computed from the rows ONE and OTHER, of equal sizes; None if one of
    them would hold more than two.
    """
    index = tuple(slice(1 if one.stride(d) == other.stride(d) == 0 else None) for d in range(one.ndim))
    a, b = one[index], other[index]  # without what is repeated
    ends = [a // _BASE, a % _BASE, b // _BASE, b % _BASE]
    low, high = torch.minimum(ends[0], ends[2]), torch.maximum(ends[1], ends[3])
    lone = (a < 0) | (b < 0)
    if not all((lone | (end == low) | (end == high)).all() for end in ends):
        return None
    return torch.where(lone, torch.maximum(a, b), low * _BASE + high).expand(one.shape)


def _pairs(rows: torch.Tensor) -> tuple[str, int] | None:
    """Return (kind, width) of the pairs in ROWS: "interleaved" if all are two neighbours, "half" if all are equally far
    apart, else "unknown", also if a row is the first of one pair and the second of another. Width is the number of rows
    of each head in pairs: twice their distance for "half", 0 for "unknown". One pair of neighbours in each head, where
    both are the same, counts as "half". None if no element holds two rows.
    """
    first, second = rows // _BASE, rows % _BASE
    pairs = (rows >= 0) & (first != second)
    if not pairs.any():
        return None
    apart = (second - first)[pairs].unique()
    if len(apart) > 1 or torch.isin(first[pairs], second[pairs]).any():
        return "unknown", 0
    if apart[0] > 1 or (first[pairs].unique().diff() > 2).all():
        return "half", 2 * int(apart[0])
    width = 2
    for dim in range(rows.ndim):
        line = first.movedim(dim, 0).flatten(1)[:, 0].unique()  # along one dimension
        width = max(width, 2 * len(line) if (line.diff() == 2).all() else 0)
    return "interleaved", width


__all__ = ["Rotary"]
