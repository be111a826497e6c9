"""Bring tensors of other frameworks into torch's layout and under torch's roles, as their files state it; name the
weights of graph operators (ONNX, TFLite) as layers, whatever names they have; and give the weights of an export to ONNX
the names of their layers.

torch.onnx.export computes constants, and gives the results numbers as names, in the order in which the model uses them:
`onnx::Conv_193` and `onnx::Conv_194` are weight and bias of a convolution with the following batch norm folded in;
`onnx::MatMul_211` is the weight of a linear layer with inputs first, whose bias keeps its name. torch 2.13 does this
with `dynamo=False`; with `dynamo=True` a matrix is named `val_308`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from ...checkpoint import Role
from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import cut, table
from .axes import Way, is_transposed_layer, ways
from .gates import reordered
from .pieces import Canon, Name, Piece, unchanged

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

#: Parts of which each layer has one; the others of a layer are as long as its outputs.
_LEADING = ("kernel", "depthwise_kernel", "gamma")
#: Frameworks whose files hold constants of a graph beside the weights.
_GRAPHS = frozenset({"onnx", "tflite"})
#: Operator of a recurrent layer -> its gates in the order of ONNX, and in that of torch. A GRU of ONNX computes what
#: torch's does only with an attribute that roles do not have, so it is left out.
_GATES = {"LSTM": (("i", "o", "f", "g"), ("i", "f", "g", "o")), "RNN": (("h",), ("h",))}


def take_what_is_stated(source: Canon, target: Canon) -> None:
    """Give every tensor of the source whose role the file states (in the terms of its framework, `gamma`) torch's role,
    path and layout (`weight`). Tensors of Keras' recurrent layers and those that have a number as their name
    (`onnx::MatMul_211`) stay as they are. The output layer of an attention gets the words "out" and "proj", if the file
    states that it is one (`_word_outputs`).

    A layout that an operator or a class states is certain, unless it fits in two ways. A layout that only a name states
    is taken if it gives the tensor sizes of the model; this is a question if the tensor as stored has sizes of the
    model, too, and the other kernels of the file do not decide it.

    In a graph (ONNX, TFLite), the tensors of one operator get one path. If several operators of its kind have equal
    sizes, the order in the file decides, which is a question. There, recurrent operators are split into torch's
    tensors, and tensors of whole numbers that no operator takes as weights are removed (`_join_operators`). TARGET, the
    model, is not changed.
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
    _join_operators(source)


def _word_outputs(source: Canon) -> None:
    """Add the words "out" and "proj" to all tensors of SOURCE in each module that the file states to be the output of
    an attention: a class with "attention" in its name, whose kernel has two dimensions of inputs, then one of outputs.
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
    """Return the role that the file states for PIECE; an empty `Role` if it states none."""
    return piece.entry.stated or Role()


def _part(piece: Piece) -> str:
    """Return which part of its layer the file states PIECE to be ("gamma"); "" if it states none."""
    return _stated(piece).part


class _Wanted:
    """The sizes that the model wants: those of all its tensors, both in the common form and as the model stores them
    (`all`); and, in the common form, those of three or more dimensions, apart for transposed convolutions and for all
    other tensors.
    """

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
        """Return whether a tensor of sizes SHAPE, laid out in this WAY, has the sizes of a tensor of the model. With
        three or more dimensions, a transposed convolution counts only for a transposed convolution, and others only for
        others.
        """
        made = way.shape(shape)
        if len(made) < 3:
            return made in self.all
        return made in self._by_class[way.order.startswith("IO")]


def _names_hold(source: Canon, pieces: Sequence[Piece], wanted: _Wanted) -> bool | None:
    """Return whether the names of kernels in this file say their layout (True), or the kernels are in torch's layout
    already (False), as files of MLX may be; None if no kernel shows it.

    A tensor of PIECES has a vote if it has three or more dimensions, if only its name states its layout, and if the
    name does not mean this layout in all files (as `kernel` does). The vote is True if only the stated layout gives
    sizes WANTED by the model, False if only the sizes as stored are wanted; there is none if both fit, or neither. The
    majority decides; a tie gives False.
    """
    votes: Counter[bool] = Counter()
    for piece in pieces:
        if _stated(piece).told_by == "name" and len(piece.shape) > 2 and piece.leaf not in table().inputs_first:
            turned = any(wanted.fits(way, piece.shape) for way in _ways(source, piece))
            if turned != (piece.shape in wanted.all):
                votes[turned] += 1
    return votes[True] > votes[False] if votes else None


def _ways(source: Canon, piece: Piece) -> list[Way]:
    """Return the ways in which the role that the file states may bring PIECE of SOURCE into torch's layout."""
    return ways(_stated(piece), source.signature.framework, len(piece.shape))


def _named(source: Canon, piece: Piece) -> Piece:
    """Change PIECE in SOURCE to torch's role for the part that the file states ("gamma" -> "weight"), and return it.

    If the last component of its path is its own name (`bn.gamma`), and the vocabulary lists that name as a role, it
    also gets the path of the module around (`bn`). PIECE itself is returned, unchanged, if the file states no part that
    torch has, if it has this name already, or if another tensor has it.
    """
    role = _PARTS.get(_part(piece), piece.role)
    alone = len(piece.path) > 1 and piece.last == piece.leaf and cut(piece.leaf) in table().leaves
    path = piece.path[:-1] if alone and _part(piece) in _PARTS else piece.path
    made = replace(piece, role=role, path=path)
    if made.name == piece.name or made.name in source.pieces:
        return piece
    return source.change(piece, made)


def _lay_out(source: Canon, piece: Piece, wanted: _Wanted, names_hold: bool | None) -> None:
    """Bring PIECE of SOURCE into torch's layout, as its stated role says: in the first of the ways that `_fitting_ways`
    returns for the sizes WANTED by the model. The new piece is marked as `placed`. PIECE stays if there is no such way.
    A bias with a dimension for heads becomes a vector, unless the model has a tensor of its sizes.

    If another layout is possible (`_other_layout`), a question is asked, with that layout as the option. NAMES_HOLD is
    whether the names of kernels in this file say their layout; None if that is not known (`_names_hold`).
    """
    shape = piece.shape
    if _stated(piece).axes == "OO" and len(shape) == 2 and shape not in wanted.all:  # the bias of heads
        source.reshape(piece, (prod(shape),))
        return
    found = _fitting_ways(source, piece, wanted, names_hold)
    if found:
        way = found[0]
        unproven = _is_vague(piece) and names_hold is None and shape in wanted.all
        other = _other_layout(piece, found, unproven=unproven)
        made = replace(piece, shape=way.shape(shape), placed=True)
        made = made if other is None else made.asking(Reason.STATED_BY_NAME, option=other)
        source.change(piece, made, lambda e: way.apply(e, shape))


def _fitting_ways(source: Canon, piece: Piece, wanted: _Wanted, names_hold: bool | None) -> list[Way]:
    """Return the ways to bring PIECE of SOURCE into torch's layout that give it sizes WANTED by the model; if none
    does, [the likeliest way]. [] if PIECE is to stay as it is stored:

      - Its role gives no way.
      - Two of its axes have one letter (heads in a dimension of their own), the model has a tensor of its sizes as
        stored, and the likeliest way does not fit.
      - Only its name states the layout, and no way fits.
      - Only its name states it, the name is vague (`_is_vague`), and the other kernels of the file show that names do
        not say the layout (NAMES_HOLD is False).
    """
    role, shape = _stated(piece), piece.shape
    found = _ways(source, piece)
    divided = len(set(role.axes)) < len(role.axes)
    if not found or (divided and shape in wanted.all and not wanted.fits(found[0], shape)):
        return []  # heads in a dimension of their own, as the model has them
    fitting = [way for way in found if wanted.fits(way, shape)]
    if role.told_by == "name" and (not fitting or (_is_vague(piece) and names_hold is False)):
        return []  # other steps know what else may be made of it
    return fitting or found[:1]


def _is_vague(piece: Piece) -> bool:
    """Return whether only the name of PIECE states its layout, it has three dimensions or more, and the name is not one
    that has this layout in all files (`kernel`).
    """
    known = piece.leaf in table().inputs_first or piece.leaf in table().depthwise
    return _stated(piece).told_by == "name" and len(piece.shape) > 2 and not known


def _other_layout(piece: Piece, found: Sequence[Way], *, unproven: bool) -> Expr | None:
    """Return the expression of what else PIECE may be, if it is laid out in the first of the ways FOUND; None if that
    is certain. The first of these that applies:

    - there are several ways: the tensor laid out in the second;
    - the first way is UNPROVEN: the tensor as it is stored;
    - only its name states the layout, the way mirrors the kernel, and its last two sizes, inputs and outputs, are
      equal: the tensor laid out with outputs before inputs.
    """
    way, shape = found[0], piece.shape
    if len(found) > 1:
        return found[1].apply(piece.expr, shape)
    if unproven:
        return piece.expr
    if _stated(piece).told_by == "name" and way.mirrored and shape[-1] == shape[-2]:
        return Way(way.axes[:-2] + "OI", way.order).apply(piece.expr, shape)
    return None


def _join_operators(source: Canon) -> None:
    """Give the weights of one operator of a graph one path: the bias of a Conv that of its kernel, and so for the four
    tensors of a batch norm; recurrent operators are split into torch's weights. Before, in files of graphs (ONNX,
    TFLite), tensors of whole numbers that no operator takes as weights are removed from the pieces: they are sizes and
    axes.

    Vectors go to the kernels with as many outputs that have no tensor of this role yet, if there are equally many of
    both; else they stay. With several, the order in the file decides, with a question.
    """
    of_graph: dict[str, list[Piece]] = defaultdict(list)
    if source.signature.framework in _GRAPHS:  # whole numbers that no operator takes as weights are sizes and axes
        for name, piece in list(source.pieces.items()):
            if piece.entry.stated is None and "int" in piece.entry.dtype:
                del source.pieces[name]
    for piece in source.pieces.values():
        if _stated(piece).told_by == "operator" and not is_numbered(piece):
            of_graph[_stated(piece).layer].append(piece)
    for operator, pieces in of_graph.items():
        if operator in _GATES:
            _join_cells(source, pieces, *_GATES[operator])
        else:
            _join_layers(source, pieces)


def _join_layers(source: Canon, pieces: Sequence[Piece]) -> None:
    """Give each vector (bias, statistics) among PIECES, the weights of one kind of operator in SOURCE, the path and the
    words of its layer: of a kernel or scale with as many outputs as it has values, and without a tensor of its role.

    This is done for all vectors of one role and length if there are equally many such layers; else they stay. If there
    are several, they go together in the order in the file, which is a question about each vector. Vectors that have a
    weight beside them stay.
    """
    leads: dict[int, list[Piece]] = defaultdict(list)
    others: dict[tuple[int, str], list[Piece]] = defaultdict(list)
    for piece in pieces:
        if _part(piece) in _LEADING:
            leads[_outputs(piece)].append(piece)
        elif len(piece.shape) == 1 and piece.name.beside("weight") not in source.pieces:
            others[piece.shape[0], piece.role].append(piece)
    for (outputs, role), found in others.items():
        free = [lead for lead in leads[outputs] if lead.name.beside(role) not in source.pieces]
        if len(free) != len(found):
            continue
        for lead, piece in zip(free, found, strict=True):
            made = piece.moved_to(lead)
            if len(free) > 1:
                made = made.asking(Reason.SEVERAL_OPERATORS)
            source.change(piece, made)


def _outputs(piece: Piece) -> int:
    """Return the number of outputs of the kernel or scale PIECE: the first size, or the second of a kernel that the
    file states to be that of a transposed convolution; 0 for a single number.
    """
    return piece.shape[1 if len(piece.shape) > 2 and is_transposed_layer(_stated(piece)) else 0] if piece.shape else 0


def _join_cells(source: Canon, pieces: Sequence[Piece], have: tuple[str, ...], want: tuple[str, ...]) -> None:
    """Split PIECES, the weights [directions, gates * width, …] and biases [directions, 2 * gates * width] of recurrent
    operators of one kind, into torch's tensors for each direction (`weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`),
    with the gates in the order WANT; HAVE is their present order.

    The first weight on inputs, the first one on hidden states and the first bias are of one layer, and so on, which is
    a question about each new tensor if two layers have weights on inputs of the same sizes. Nothing is done if there
    are not equally many weights on inputs and on hidden states, and as many biases or none. Layers with other sizes
    stay as they are.
    """
    inputs, states, biases = (
        [p for p in pieces if _part(p) == name] for name in ("kernel", "recurrent_kernel", "bias")
    )
    if len(inputs) != len(states) or len(biases) not in (0, len(inputs)):
        return
    several = len({p.shape for p in inputs}) < len(inputs)
    for place, (ih, hh) in enumerate(zip(inputs, states, strict=True)):
        bias = biases[place] if biases else None
        rows = ih.shape[1] if len(ih.shape) == 3 else 0
        fits = rows and hh.shape[:2] == ih.shape[:2] and rows == len(have) * hh.shape[-1]
        if not fits or (bias is not None and bias.shape != (ih.shape[0], 2 * rows)):
            continue
        split = partial(_divide_cell, source, of=ih, have=have, want=want, asked=several)
        split(ih, {"weight_ih": (0, rows)})
        split(hh, {"weight_hh": (0, rows)})
        if bias is not None:
            split(bias, {"bias_ih": (0, rows), "bias_hh": (rows, 2 * rows)})


def _divide_cell(
    source: Canon,
    piece: Piece,
    cuts: dict[str, tuple[int, int]],
    *,
    of: Piece,
    have: tuple[str, ...],
    want: tuple[str, ...],
    asked: bool,
) -> None:
    """Replace PIECE, [directions, rows, …] of a recurrent layer, by a tensor for each direction and role, with its
    gates in the order WANT. The new tensors are marked as `placed`.

    Args:
        source: the side of the piece.
        piece: the tensor.
        cuts: role -> (start, stop) of its rows.
        of: the tensor whose path and words the layer gets; the second direction is the module "reverse" in it.
        have: the present order of the gates.
        want: their new order.
        asked: whether to ask which of several layers the tensors belong to.
    """
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    for d in range(piece.shape[0]):
        for role, (start, stop) in cuts.items():
            path, shape = (*of.path, "reverse") if d else of.path, (stop - start, *piece.shape[2:])
            made = replace(piece, path=path, role=role, shape=shape, words=of.words, placed=True)
            made = made.asking(Reason.SEVERAL_OPERATORS) if asked else made
            rows = (start, stop) if len(cuts) > 1 else None
            new.append((made, partial(_gates, d=d, rows=rows, of=stop - start, have=have, want=want)))
    source.become(piece, new, unchanged)


def _gates(
    e: Expr, *, d: int, rows: tuple[int, int] | None, of: int, have: tuple[str, ...], want: tuple[str, ...]
) -> Expr:
    """Return the expression of member D of the stack E (along its first dimension), with its gates moved from the order
    HAVE to the order WANT. If ROWS (start, stop) are given, only these rows of it are taken, else all. OF is how many
    rows the gates have together.
    """
    e = ex.select(e, 0, d)
    return reordered(e if rows is None else ex.part(e, 0, *rows), of, have, want)


_NUMBERED = re.compile(r"(?:onnx::(\w+)|val)_(\d+)\Z")
_Path = tuple[str, ...]


def is_numbered(piece: Piece) -> bool:
    """Return whether an ONNX export gave the tensor PIECE a number as its name (`onnx::MatMul_211`, `val_308`)."""
    return _NUMBERED.match(piece.entry.key) is not None


def name_exported(source: Canon, target: Canon) -> None:
    """Give a path to the tensors of the source that an ONNX export named by numbers. Kernels of convolutions, and
    matrices of Gemm, get one of their own (`onnx::Conv_193` -> `Conv_193`), which their biases get, too. Matrices of
    MatMul get that of their layer (`_layers`), or, if it is not known, one of their own (`MatMul_211`); they are
    transposed to torch's layout. Tensors of other operators (`onnx::Add_5`) stay as they are.

    A matrix without an operator in its name (`val_308`) is treated as one of MatMul only if it has as many outputs as
    some bias without a weight has values; else it stays. Between several layers of equal sizes, the order of the
    numbers decides, which is a question unless the model's order of use is known.
    """
    named = [
        (int(found[2]), found[1] or "", piece)
        for piece in source.pieces.values()
        if (found := _NUMBERED.match(piece.entry.key))
    ]
    numbered = sorted(named, key=lambda one: one[:2])  # `val_7` and `val_07` stay in the order of the file
    _convolutions(source, [(op, piece) for _, op, piece in numbered])
    lone = [
        p
        for p in source.pieces.values()
        if p.role == "bias" and len(p.shape) == 1 and p.name.beside("weight") not in source.pieces
    ]
    matrices: dict[Shape, list[Piece]] = defaultdict(list)
    for _, op, piece in numbered:
        if (op == "MatMul" and len(piece.shape) == 2) or (not op and piece.shape[1:] in {b.shape for b in lone}):
            matrices[piece.shape[::-1]].append(piece)
    for shape, alike in matrices.items():
        _linear(source, alike, _layers(source, target, shape, lone, len(alike)))


def _convolutions(source: Canon, numbered: Sequence[tuple[str, Piece]]) -> None:
    """Give each kernel of a convolution or Gemm in NUMBERED, (operator, tensor) in the order of numbers, a path of its
    own (`Conv_193`). The first vector of that operator behind it, before the next kernel, becomes its bias, with the
    same path. Both get "conv" as their only word. Other tensors stay.
    """
    before: Piece | None = None
    for op, piece in numbered:
        if op.startswith(("Conv", "Gemm")) and len(piece.shape) > 1:
            path = (f"{op}_{piece.leaf.rpartition('_')[2]}",)
            before = source.change(piece, replace(piece, path=path, words=("conv",)))
        elif before is not None and op == before.path[0].rpartition("_")[0] and len(piece.shape) == 1:
            made = replace(piece, path=before.path, role="bias", words=before.words)
            source.change(piece, made)
            before = None


def _layers(source: Canon, target: Canon, shape: Shape, lone: Sequence[Piece], count: int) -> list[tuple[_Path, bool]]:
    """Return (path of the layer, whether it is certain) for each of COUNT matrices with torch's sizes SHAPE, in the
    order of their numbers; [] if their layers are not known. LONE has the biases of the source without a weight.

    If the model has all of LONE under their names, its forward pass was followed, and it uses COUNT weights of this
    size that the source lacks, these are the layers, and certain. Else the layers are those of the biases with as many
    values as SHAPE has rows, if there are COUNT of them; this is certain only if COUNT is 1.
    """
    own = [p for p in lone if p.shape == shape[:1]]
    if all(p.name in target.pieces for p in lone) and target.signature.traced:
        used = [
            p
            for p in target.pieces.values()
            if p.role == "weight" and p.shape == shape and p.used is not None and p.name not in source.pieces
        ]
        if len(used) == count:
            return [(p.path, True) for p in sorted(used, key=lambda p: p.used or 0)]
    return [(p.path, count == 1) for p in own] if len(own) == count else []


def _linear(source: Canon, matrices: Sequence[Piece], layers: Sequence[tuple[_Path, bool]]) -> None:
    """Transpose MATRICES of an ONNX export, which have one size, to torch's layout, and give them the paths in LAYERS,
    (path, whether it is certain), in their order; a path of their own (`MatMul_211`) if LAYERS is empty. A matrix is
    put before the bias with its path, and gets its words. If a path is not certain, this is a question, with the first
    other one of MATRICES as the option.
    """
    for place, piece in enumerate(matrices):
        path, certain = layers[place] if layers else ((f"MatMul_{piece.leaf.rpartition('_')[2]}",), True)
        bias = source.pieces.get(Name(path, "bias"))
        others = [ex.transpose(other.expr) for other in matrices if other is not piece]
        made = replace(
            piece,
            path=path,
            shape=piece.shape[::-1],
            placed=True,  # the source's code would have it turned once more
            order=piece.order if bias is None else bias.order - 0.5,
            words=piece.words if bias is None else bias.words,
        )
        if not certain:
            made = made.asking(Reason.EXPORTED_NUMBERS, option=others[0] if others else None)
        source.change(piece, made, ex.transpose, ex.transpose)


__all__ = ["take_what_is_stated"]
