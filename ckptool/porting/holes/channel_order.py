"""Ask about layers whose channels the two codes may order differently: heads, flattened maps, and maps made of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import NamedTuple

from ...model_code.signature import PRODUCTS, Flattened
from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.fusing.projections import fused_by_name, part_label
from ..forms.pieces import Name, Piece, holds_channels_last, squeezed
from ..matching.units import Unit, label_of
from ..questions import Reason
from ..words import cut, words_of
from .filling import Change, Filled, Filling


class _Attention(NamedTuple):
    """An attention whose queries the source computes by a 1d convolution.

    Attributes:
        heads: how many heads the model's code splits the queries into.
        listed: whether the source's layer of queries is in a list.
        shown: whether the source's code splits the queries into (width, heads); None if it does not show it.
    """

    heads: int
    listed: bool
    shown: bool | None


def doubt_heads_of_channels(filling: Filling) -> None:
    """Make heads the outer index of the channels of an attention, if the source's code has them as the inner one, in
    weights and biases for queries, keys and values, and in weights of output layers (`_heads_outside`). The model's
    code has to show two heads or more, and the source has to compute the queries of this attention, and the layer of
    the tensor, by 1d convolutions of size 1.

    If the source's code shows into which sizes it splits the queries, there is no open question, and nothing is changed
    where heads are outside. Else it is asked. Nothing is asked or changed if the source's layer of queries has `conv`
    in its last name (`conv_q`), as that of Glow-TTS, with heads outside, nor if the source's code shows that each head
    has a share of queries, keys and values.

    Code with channels first often has heads inside, as SuperGlue has, whose layers are a list. If the source's layer of
    queries is in a list, the reordered tensor (`_heads_outside`) is taken and the plain one is the option; else it is
    the other way round.
    """
    attentions = {
        _module_of(t): _attention(t, s)
        for t, s in filling.matching.pairs
        if part_label(t.path) == "q"
        and _is_pointwise(s.main)
        and "conv" not in cut(s.last)
        and s.main.entry.facts.layout.kind != "inside"
    }
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        found = attentions.get(_module_of(t))
        if found is None or found.heads < 2 or found.shown is False or not _is_pointwise(s.main):
            continue
        move = _heads_outside(hole, t, s, found.heads)
        if move is not None and found.shown:
            filled.learn(move, Reason.HEADS_INSIDE, shows=f"splits channels into {found.heads} heads inside")
        elif move is not None:
            filled.ask(Reason.HEADS_INSIDE, other=move, exchange=found.listed)


def _module_of(t: Unit) -> tuple[str, ...]:
    """Return the path of the module around T, a layer, or around the fused projection that T is a part of."""
    return t.path[: -2 if part_label(t.path) and fused_by_name(t.main.entry.key) else -1]


def _attention(t: Unit, s: Unit) -> _Attention:
    """Return what code shows of the attention whose queries the layer T computes in the model, and S in the source.

    The model's number of heads is that of two sizes, (heads, width), or of three for a fused projection: the second one
    of (3, heads, width), else the first; if code shows no sizes, it is that of a part (`Facts.heads`). The source's
    sizes count if they are this number and another one.
    """
    sizes, theirs = t.main.entry.facts.layout.sizes, s.main.entry.facts.layout.sizes
    heads = (sizes[1] if len(sizes) == 3 and sizes[0] == 3 else sizes[0]) if sizes else t.main.entry.facts.heads
    told = len(theirs) == 2 and theirs[0] != theirs[1] and heads in theirs
    return _Attention(heads, s.last.isdecimal(), theirs[1] == heads if told else None)


def _is_pointwise(piece: Piece) -> bool:
    """Return whether PIECE is the kernel of a 1d convolution of size 1."""
    return len(piece.shape) == 3 and piece.shape[2] == 1


def _heads_outside(hole: Name, t: Unit, s: Unit, heads: int) -> Change | None:
    """Return the change that makes HEADS the outer index instead of the inner one in what fills HOLE of the layer T
    from S: in the rows of weights and biases for queries, keys and values, by the name of T, and in the columns of the
    weight of the output layer, by the name of T or S. None for other tensors, and if HEADS does not divide the rows or
    columns.
    """
    shape = t.pieces[hole.role].shape
    if hole.role in ("weight", "bias") and part_label(t.path) in ("q", "k", "v"):
        apart, order = (shape[0] // heads, heads, *shape[1:]), (1, 0, 2)[: len(shape) + 1]
    elif hole.role == "weight" and "o" in (label_of(t, "attention"), label_of(s, "attention")):
        apart, order = (shape[0], shape[1] // heads, heads), (0, 2, 1)
    else:
        return None
    return partial(_turned, apart=apart, order=order, shape=shape) if prod(apart) == prod(shape) else None


def _turned(e: Expr, apart: Shape, order: Sequence[int], shape: Shape) -> Expr:
    """Return E reshaped to the sizes APART, with these dimensions in ORDER, and then reshaped to SHAPE."""
    return ex.reshape(ex.permute(ex.reshape(e, apart), *order), shape)


def doubt_flattened(filling: Filling) -> None:
    """Reorder the columns of each layer that takes flattened feature maps (`_after_maps`), if the two codes flatten
    them in different orders. If both forward passes show the orders, there is no open question; else there is one
    (`_OfMaps.reorder`).

    Before that, the weight of a layer that is not of an attention is tried in another way (`_reorder_merged`), unless
    both forward passes show the orders of its maps: its columns may be two flattened dimensions, such as tokens and
    their channels, or maps that the source's code makes without a convolution. If both forward passes show these two
    dimensions, `_reorder_merged` decides alone. If only the model's does, it asks; but not about a layer after maps,
    nor if the source was traced or the two layers come from the same code (`Filling.same_code`).

    A layer is of an attention if its name says so (`_is_of_attention`), or if a layer directly in its module computes
    queries, keys or values, by the code of a side or by the name in the model.
    """
    attended = {t.path[:-1] for t, s in filling.matching.pairs if t.attends or s.attends or part_label(t.path)}
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        layer = _after_maps(filling, filled, t, s, hole.role)
        asks = layer is None and not (filling.source.signature.traced or filling.same_code(t, s))
        known = layer is not None and layer.shown
        plain = hole.role == "weight" and t.path[:-1] not in attended and not _is_of_attention(t, s)
        if plain and not known and _reorder_merged(filled, t, s, asks=asks):
            continue
        if layer is not None and layer.maps.order != layer.theirs:
            layer.reorder()


def _is_of_attention(t: Unit, s: Unit) -> bool:
    """Return whether the name of T or of S is that of a layer of an attention: it has the label "o" (output layer), or
    a word such as `attn` anywhere in its path. Two flattened dimensions of such a layer are heads, which other rules
    look at.
    """
    words = {*words_of(t.path), *words_of(s.path)}
    return "o" in (label_of(t, "attention"), label_of(s, "attention")) or not _ATTENTION.isdisjoint(words)


#: Words for an attention in names.
_ATTENTION = frozenset({"attn", "attention", "attend", "sa", "mha"})


def _reorder_merged(filled: Filled, t: Unit, s: Unit, *, asks: bool) -> bool:
    """Transpose the two dimensions in the columns of the weight of T, which FILLED copies from S or transposes, if both
    forward passes show which two sizes they flatten, and these are exchanged. There is no open question then. If only
    the model's forward pass shows it, the columns stay, and with ASKS there is a question with the transposed ones as
    its option.

    Return True if the source's forward pass shows the model's two sizes, in either order; else False. Nothing is done,
    and False is returned, if FILLED is no copy or transpose, if the two dimensions have one size or one of them is 1,
    if their product is not the number of columns of T, or if T is square, as most output layers of attentions are.
    """
    own, theirs = t.main.entry.facts.merged, s.main.entry.facts.merged
    whole = filled.expr.is_copy or ex.is_transposed(filled.expr)
    if own is None or not whole or own[0] == own[1] or 1 in own:
        return False
    if t.main.shape[1:] != (prod(own),) or t.main.shape[0] == t.main.shape[1]:
        return False
    other = own[::-1]
    turn = partial(_turned, apart=(t.main.shape[0], *other), order=(0, 2, 1), shape=t.main.shape)
    told = [f"{a:,} x {b:,}" for a, b in (own, other)]
    if theirs == other:
        filled.learn(turn, Reason.FLATTENED, *told, shows=f"flattens {other[0]} x {other[1]}")
    elif theirs is None and asks:
        filled.ask(Reason.FLATTENED_PAIR, *told, other=turn)
    return theirs in (own, other)


def doubt_unflattened(filling: Filling) -> None:
    """Reorder what holds something for each number of rows that become feature maps, if the two codes make maps of them
    in different orders: the rows of a layer, its bias, vectors of a norm behind it, and the columns of a table that is
    added. If both forward passes show the orders, there is no open question; else there is one (`_OfMaps.reorder`).
    Tensors of more than two dimensions, or with another number of rows or columns than the maps have numbers, are left
    out.

    For each tensor, `_order_of` gives the source's order. If that is not shown for a vector or a table, but the
    matrices whose rows become such maps have just one order, the vector or table gets this one, and it is shown if it
    is so for the matrices. A tensor without an order, as of layers of the same code (`Filling.same_code`), stays.
    """
    orders: dict[Flattened, set[tuple[str, bool]]] = defaultdict(set)
    made = []
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = t.pieces.get(hole.role)
        maps = None if piece is None else piece.entry.facts.unflattened
        if piece is None or maps is None or len(piece.shape) > 2:
            continue
        layer = _OfMaps(filled, piece, maps, "", shown=False, rows=True)
        if piece.shape[0 if layer.makes_rows else -1] != prod(maps[1:]):
            continue
        order = _order_of(filling, filled, maps, t, s, s.main.entry.facts.unflattened)
        made.append((layer, order))
        if layer.makes_rows and order is not None:
            orders[maps].add(order)
    for layer, order in made:
        if not layer.makes_rows and (order is None or not order[1]) and len(orders[layer.maps]) == 1:
            (order,) = orders[layer.maps]
        if order is not None and order[0] != layer.maps.order:
            replace(layer, theirs=order[0], shown=order[1]).reorder()


@dataclass(frozen=True, slots=True)
class _OfMaps:
    """The weight of a linear layer that takes flattened feature maps, or a tensor of a layer whose rows become maps.

    Attributes:
        filled: what fills it.
        piece: the tensor of the model.
        maps: the maps, in the order of the model's code.
        theirs: the order in which the source's code holds the maps, such as "nchw".
        shown: whether both forward passes show it.
        rows: whether rows become maps, and the tensor holds something for each of their numbers; else it takes maps.
    """

    filled: Filled
    piece: Piece
    maps: Flattened
    theirs: str
    shown: bool
    rows: bool = False

    @property
    def makes_rows(self) -> bool:
        """Return whether it is a matrix with which a product makes the rows that become maps."""
        return self.rows and len(self.piece.shape) == 2 and self.piece.entry.how in PRODUCTS

    def reorder(self) -> None:
        """Reorder the columns, or the rows, from the source's order to the model's. If both forward passes show the
        orders, there is no open question. Else there is one: the reordered tensor is taken, and the plain one is the
        option; but it is the other way round if the model's order is neither "nchw" nor "nhwc", and the source's is
        "nchw".
        """
        named = self.maps.order.upper(), self.theirs.upper()
        moved, as_here = Reason.FLATTENED, Reason.FLATTENED_AS_HERE
        if self.rows:
            moved, as_here = Reason.UNFLATTENED, Reason.UNFLATTENED_AS_HERE
        if self.shown:
            self.filled.learn(self._moved, moved, *named, shows=f"{'un' * self.rows}flattens {named[1]}")
        elif self.maps.order in _USUAL or self.theirs != "nchw":
            self.filled.ask(moved, *named, other=self._moved, exchange=True)
        else:  # nobody turns maps so but for weights that came like this
            self.filled.ask(as_here, *named, other=self._moved)

    def _moved(self, e: Expr) -> Expr:
        """Return E, which fills the tensor, in the model's order: its rows, if it is a matrix that makes the rows
        (`makes_rows`); else its last dimension, the columns of a matrix or the numbers of a vector.
        """
        if self.makes_rows:
            return ex.transpose(self._with_columns_moved(ex.transpose(e), self.piece.shape[::-1]))
        return self._with_columns_moved(e, self.piece.shape)

    def _with_columns_moved(self, x: Expr, shape: Shape) -> Expr:
        """Return X, a matrix or vector of sizes SHAPE, with its last dimension moved from the order of the source's
        maps (`theirs`) to that of the model's (`maps.order`).
        """
        own, c, h, w = self.maps
        if {own, self.theirs} <= _USUAL:
            return ex.flatten(x, c, h, w, own)
        sizes = {"c": c, "h": h, "w": w}
        outer = len(shape) > 1
        apart = ex.reshape(x, (*shape[:outer], *(sizes[letter] for letter in self.theirs[1:])))
        places = (self.theirs.index(letter) - 1 + outer for letter in own[1:])
        return ex.reshape(ex.permute(apart, *range(outer), *places), shape)


def _after_maps(filling: Filling, filled: Filled, t: Unit, s: Unit, role: str) -> _OfMaps | None:
    """Return the tensor ROLE of T, which FILLED fills from S, as the weight of a layer after flattened maps, with the
    order in which the source's code flattens them (`_order_of`). None if the tensor is no weight, if the model's
    forward pass does not show that it takes flattened maps, if its columns are not as many as the maps have numbers, or
    if `_order_of` returns None: the layers come from the same code, and the order is not shown.
    """
    piece = t.pieces.get(role)
    flattened = None if piece is None or role != "weight" else piece.entry.facts.flattened
    if piece is None or flattened is None or squeezed(piece.shape)[1:] != (prod(flattened[1:]),):
        return None
    order = _order_of(filling, filled, flattened, t, s, s.main.entry.facts.flattened)
    return None if order is None else _OfMaps(filled, piece, flattened, *order)


def _order_of(
    filling: Filling, filled: Filled, maps: Flattened, t: Unit, s: Unit, seen: Flattened | None
) -> tuple[str, bool] | None:
    """Return (order in which the source's code holds maps that the model holds as MAPS, whether both forward passes
    show it) for the tensor of T that FILLED fills from S. SEEN is what the source's forward pass shows of S.

    Both orders are known if both forward passes show maps of the same sizes, and the tensor is a copy, or transposed.
    Else None for layers of the same code (`Filling.same_code`); for others the order of the source is "nhwc" if its
    framework or the name of the weight says that channels are last (`holds_channels_last`), or "nchw".
    """
    x = filled.expr
    if seen is not None and seen[1:] == maps[1:] and (x.is_copy or (ex.is_transposed(x) and x.args[0].is_copy)):
        return seen.order, True
    last = holds_channels_last(s.main, filling.source.signature.framework)
    return None if filling.same_code(t, s) else ("nhwc" if last else "nchw", False)


#: The orders in which frameworks hold feature maps.
_USUAL = frozenset({"nchw", "nhwc"})

__all__ = ["doubt_flattened", "doubt_heads_of_channels", "doubt_unflattened"]
