"""Bring tensors of other frameworks into torch's layout and under torch's roles, as their files state it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....checkpoint import Role
from ... import expression as ex
from ...expression import Shape
from ...questions import Reason
from ...words import cut, table
from ..exported import is_numbered
from ..pieces import Canon, Piece, unchanged
from .axes import Way, ways
from .operators import join_operators

#: What torch calls the parts of layers.
_PARTS = {
    "kernel": "weight",
    "depthwise_kernel": "weight",
    "pointwise_kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "alpha": "weight",
    "bias": "bias",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def take_what_is_stated(source: Canon, target: Canon) -> None:
    """Give every tensor of the source whose role the file states (in the terms of its framework) torch's role, path and
    layout.

    A statement by an operator or a class is certain. A statement by a name has to agree with the sizes of the model,
    and is a question if the tensor has a size of the model without it, too.
    """
    # what has a number in place of a name has a step of its own
    pieces = [p for p in source.pieces.values() if p.entry.stated is not None and not is_numbered(p)]
    wanted = _Wanted(target)
    names_hold = _names_hold(source, pieces, wanted)
    of_cells = {piece.path for piece in pieces if _part(piece) == "recurrent_kernel"}
    for piece in pieces:
        if piece.path not in of_cells:
            _lay_out(source, _named(source, piece), wanted, names_hold)
    _word_outputs(source)
    join_operators(source)


def _word_outputs(source: Canon) -> None:
    """Add the words "out" and "proj" to the names of tensors that the file states to be the output layer of
    an attention.
    """
    found = {
        piece.path
        for piece in source.pieces.values()
        if _stated(piece).axes == "IIO" and "attention" in _stated(piece).layer.lower()
    }
    for name, piece in list(source.pieces.items()):
        if piece.path in found:
            source.pieces[name] = replace(piece, words=(*piece.words, "out", "proj"))


def _stated(piece: Piece) -> Role:
    return piece.entry.stated or Role()


def _part(piece: Piece) -> str:
    return _stated(piece).part


class _Wanted:
    """The sizes of the model's transposed convolutions, of its convolutions, and of all its tensors."""

    def __init__(self, target: Canon) -> None:
        self.all = {piece.shape for piece in target.pieces.values()} | {
            piece.entry.shape for piece in target.pieces.values()
        }
        self._by_class = {
            transposed: {
                piece.shape
                for piece in target.pieces.values()
                if ("Transpose" in piece.entry.module) == transposed and len(piece.shape) > 2
            }
            for transposed in (True, False)
        }

    def fits(self, way: Way, shape: Shape) -> bool:
        """Return whether a tensor of sizes SHAPE, laid out in this WAY, has the sizes of a layer of the model. A
        transposed convolution counts only for a transposed convolution.
        """
        made = way.shape(shape)
        if len(made) < 3:
            return made in self.all
        return made in self._by_class[way.order.startswith("IO")]


def _names_hold(source: Canon, pieces: Sequence[Piece], wanted: _Wanted) -> bool | None:
    """Return whether kernels whose layout only their name states have that layout, as the sizes of the model show. None
    if the sizes do not show it.

    A file of MLX may hold kernels in torch's layout.
    """
    votes: Counter[bool] = Counter()
    for piece in pieces:
        if _stated(piece).told_by == "name" and len(piece.shape) > 2 and piece.leaf not in table().inputs_first:
            turned = any(wanted.fits(way, piece.shape) for way in _ways(source, piece))
            if turned != (piece.shape in wanted.all):
                votes[turned] += 1
    return votes[True] > votes[False] if votes else None


def _ways(source: Canon, piece: Piece) -> list[Way]:
    return ways(_stated(piece), source.signature.framework, len(piece.shape))


def _named(source: Canon, piece: Piece) -> Piece:
    """Return PIECE with torch's role for the part that the file states ("gamma" -> "weight"). A tensor that is alone in
    a module called like it gets the path of the module around.
    """
    role = _PARTS.get(_part(piece), piece.role)
    alone = len(piece.path) > 1 and piece.last == piece.leaf and cut(piece.leaf) in table().leaves
    path = piece.path[:-1] if alone and _part(piece) in _PARTS else piece.path
    made = replace(piece, role=role, path=path)
    if made.name == piece.name or made.name in source.pieces:
        return piece
    source.become(piece, [(made, unchanged)], unchanged)
    return source.pieces[made.name]


def _lay_out(source: Canon, piece: Piece, wanted: _Wanted, names_hold: bool | None) -> None:
    role, shape = _stated(piece), piece.shape
    if role.axes == "OO" and len(shape) == 2 and shape not in wanted.all:  # the bias of heads
        flat = (prod(shape),)
        source.become(piece, [(replace(piece, shape=flat), lambda e: ex.reshape(e, flat))], unchanged)
        return
    found = _ways(source, piece)
    divided = len(set(role.axes)) < len(role.axes)
    if not found or (divided and shape in wanted.all and not wanted.fits(found[0], shape)):
        return  # heads in a dimension of their own, as the model has them
    fitting = [way for way in found if wanted.fits(way, shape)]
    by_name = role.told_by == "name"
    known = piece.leaf in table().inputs_first or piece.leaf in table().depthwise
    if by_name and (not fitting or (len(shape) > 2 and not known and names_hold is False)):
        return  # other steps know what else may be made of it
    way = (fitting or found)[0]
    made = replace(piece, shape=way.shape(shape), placed=True)
    if len(fitting) > 1:
        made = made.asking(Reason.STATED_BY_NAME, option=fitting[1].apply(piece.expr, shape))
    elif by_name and len(shape) > 2 and not known and names_hold is None and shape in wanted.all:
        made = made.asking(Reason.STATED_BY_NAME, option=piece.expr)
    elif by_name and way.mirrored and shape[-1] == shape[-2]:
        made = made.asking(Reason.STATED_BY_NAME, option=Way(way.axes[:-2] + "OI", way.order).apply(piece.expr, shape))
    source.become(piece, [(made, lambda e: way.apply(e, shape))], unchanged)


__all__ = ["take_what_is_stated"]
