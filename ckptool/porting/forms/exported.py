"""Weights with the names and layouts of an export to ONNX.

torch.onnx.export computes constants, and gives the results numbers as names, in the order in which the model uses them:
`onnx::Conv_193` and `onnx::Conv_194` are weight and bias of a convolution with the following batch norm folded in;
`onnx::MatMul_211` is the weight of a linear layer with inputs first, whose bias keeps its name. torch 2.13 does this
with `dynamo=False`; with `dynamo=True` a matrix is named `val_308`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from .. import expression as ex
from ..expression import Shape
from ..questions import Reason
from .pieces import Canon, Name, Piece, unchanged

_NUMBERED = re.compile(r"(?:onnx::(\w+)|val)_(\d+)\Z")
_Path = tuple[str, ...]


def is_numbered(piece: Piece) -> bool:
    """Return whether an ONNX export gave the tensor PIECE a number as its name (`onnx::MatMul_211`, `val_308`)."""
    return _NUMBERED.match(piece.entry.key) is not None


def name_exported(source: Canon, target: Canon) -> None:
    """Give tensors of the source that an ONNX export named by numbers the path of their layer, and torch's layout."""
    numbered = sorted(
        (int(found[2]), found[1] or "", piece)
        for piece in source.pieces.values()
        if (found := _NUMBERED.match(piece.entry.key))
    )
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
    """Give each kernel of a convolution in NUMBERED, (operator, tensor) in the order of numbers, a path of its own
    (`Conv_193`); the next vector of that operator becomes its bias.
    """
    before: Piece | None = None
    for op, piece in numbered:
        if op.startswith(("Conv", "Gemm")) and len(piece.shape) > 1:
            path = (f"{op}_{piece.leaf.rpartition('_')[2]}",)
            source.become(piece, [(replace(piece, path=path, words=("conv",)), unchanged)], unchanged)
            before = source.pieces[Name(path, "weight")]
        elif before is not None and op == before.path[0].rpartition("_")[0] and len(piece.shape) == 1:
            made = replace(piece, path=before.path, role="bias", words=before.words)
            source.become(piece, [(made, unchanged)], unchanged)
            before = None


def _layers(source: Canon, target: Canon, shape: Shape, lone: Sequence[Piece], count: int) -> list[tuple[_Path, bool]]:
    """Return (path of the layer, whether it is certain) for each of COUNT matrices of one SHAPE, in the order of use;
    [] if their layers are not known. LONE has the biases of the source without a weight.

    If the model has all of LONE under their names, and its forward pass was followed, its order of use is certain.
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
    for place, piece in enumerate(matrices):
        path, certain = layers[place] if layers else ((f"MatMul_{piece.leaf.rpartition('_')[2]}",), True)
        bias = source.pieces.get(Name(path, "bias"))
        others = [ex.transpose(other.expr) for other in matrices if other is not piece]
        made = replace(
            piece,
            path=path,
            shape=piece.shape[::-1],
            order=piece.order if bias is None else bias.order - 0.5,
            words=piece.words if bias is None else bias.words,
        )
        if not certain:
            made = made.asking(Reason.EXPORTED_NUMBERS, option=others[0] if others else None)
        source.become(piece, [(made, ex.transpose)], ex.transpose)
