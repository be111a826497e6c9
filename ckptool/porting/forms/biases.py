"""Biases that are stored outside of the module of their matrix, or one bias for several matrices."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, pairwise

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import cut, label, numbers, table
from .layouts import is_bare, turn
from .pieces import Canon, Name, Piece, squeezed, unchanged
from .projections import fused_kind, part_label


def attach_biases(one: Canon, other: Canon) -> None:
    """Move each bias of ONE that is stored by itself into the module of its matrix, unless OTHER stores biases of this
    size by themselves, too: then it only gets the role of a bias. A bias that OTHER has as a table of one column stays
    as it is.

    The matrices are those without a bias and with as many rows as the bias has values, or bare ones with as many
    columns, which are transposed; for a bias of one value, or if there are none, those of a size that OTHER has with
    such a bias. Of several matrices, the first of these that fits exactly one decides: the name of the bias, the
    numbers in its path, the nearest path, layers of OTHER with a bias of these sizes, the last use before that of the
    bias, and that both are of the output layer by name. If none decides, the bias stays.
    """
    apart = {squeezed(piece.shape) for piece in _lone_biases(other)}
    tables = {piece.shape for piece in other.pieces.values() if piece.role == "weight" and piece.shape[1:] == (1,)}
    lone = []
    for piece in _lone_biases(one):
        if piece.shape in tables:
            continue  # of each user, say: the other side has it as a table of one column, too, whatever its name
        if squeezed(piece.shape) not in apart:
            lone.append(piece)
        elif piece.role != "bias":
            one.become(piece, [(replace(piece, role="bias"), unchanged)], unchanged)
    matrices = [
        p
        for p in one.pieces.values()
        if p.role == "weight" and len(p.shape) >= 2 and p.name.beside("bias") not in one.pieces and p not in lone
    ]
    together = _layers(other)
    _part_of_sum(lone, matrices, other)
    for piece in lone:
        fitting = [m for m in matrices if _rows(m) == _rows(piece) or _gives(m, piece)]
        if not squeezed(piece.shape):  # of one value, as much else is
            fitting = [m for m in fitting if (m.shape, piece.shape) in together]
        if not fitting:  # a table may be a layer over words that are 0 or 1, and the other side has its bias with it
            fitting = [m for m in matrices if (m.shape, piece.shape) in together]
        same = _called_as(piece, fitting) or [m for m in fitting if numbers(m.path) == numbers(piece.path)]
        if len(same) != 1:
            same = _nearest(piece, same or fitting)
        if len(same) != 1:  # which of them the other side has with a bias
            with_bias = [m for m in same or fitting if (m.shape, piece.shape) in together]
            same = with_bias if len(with_bias) == 1 else same
        if len(same) != 1 and piece.used is not None:
            same = sorted((m for m in fitting if m.used is not None and m.used < piece.used), key=lambda m: m.used or 0)
            same = same[-1:]
        if len(same) != 1 and _of_output(piece):
            same = [m for m in fitting if _of_output(m)]
        owner = same[0] if len(same) == 1 else fitting[0] if len(fitting) == 1 else None
        if owner is not None:
            matrices.remove(owner)
            if _rows(owner) != _rows(piece):
                turn(one, owner)
            one.become(piece, [(replace(piece, path=owner.path, role="bias"), unchanged)], unchanged)


def _part_of_sum(lone: list[Piece], matrices: list[Piece], other: Canon) -> None:
    """Treat a bias that is stored beside several layers, whose outputs are added, alike on both sides: where OTHER has
    it inside of one of the layers, it is moved beside them there, with a question. LONE has the biases of one side that
    are stored by themselves; those that belong to such a sum are removed from it. MATRICES are the matrices of that
    side.

    `lin_rel(x) + lin_root(y)` with a bias in one of the two is `fc_neigh(x) + fc_self(y) + bias`. The layers are in one
    module, with equally many outputs, and in OTHER in parallel, with one bias. It is done if both sides have equally
    many sums with biases of one size.
    """
    sums: dict[Shape, list[Piece]] = defaultdict(list)
    for piece in lone:
        beside = [m for m in matrices if m.path[:-1] == piece.path and _rows(m) == _rows(piece)]
        if len(beside) > 1 and len({m.shape[0] for m in beside}) == 1:
            sums[squeezed(piece.shape)].append(piece)
    layers: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in other.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 1 and piece.path:
            layers[piece.path[:-1]].append(piece)
    parts: dict[Shape, list[Piece]] = defaultdict(list)
    for parent, held in layers.items():
        biases = [bias for m in held if (bias := other.pieces.get(m.name.beside("bias"))) is not None]
        flows = [m.entry.facts.flow for m in held]
        apart = all(a is None or b is None or a.beside(b) for a, b in combinations(flows, 2))
        alike = len(held) > 1 and len({_rows(m) for m in held}) == 1
        if alike and apart and len(biases) == 1 and Name(parent, "bias") not in other.pieces:
            parts[squeezed(biases[0].shape)].append(biases[0])
    for shape, found in parts.items():
        if len(found) == len(sums[shape]):
            for bias in found:
                of_sum = replace(bias, path=bias.path[:-1]).asking(Reason.BIAS_OF_SUM)
                other.become(bias, [(of_sum, unchanged)], unchanged)
            for piece in sums[shape]:
                lone.remove(piece)


def _rows(piece: Piece) -> int:
    """Return the first size of PIECE, for a tensor without two dimensions the first above 1, or 1 if there is none: how
    many outputs a matrix has, or to how many a bias is added.
    """
    return next(iter(squeezed(piece.shape) if len(piece.shape) != 2 else piece.shape), 1)


def _of_output(piece: Piece) -> bool:
    """Return whether the name of PIECE says that it belongs to the output layer."""
    return label(table().group("purpose"), piece.words) == "head" or not table().vocabulary.isdisjoint(piece.words)


def _gives(matrix: Piece, bias: Piece) -> bool:
    """Return whether MATRIX, a bare parameter of a module around BIAS, has as many columns as BIAS has elements:
    transposed, it would give these outputs.
    """
    beside = matrix.path[:-1] == bias.path[: len(matrix.path) - 1]
    return beside and is_bare(matrix) and len(matrix.shape) == 2 and matrix.shape[-1:] == squeezed(bias.shape)


def _called_as(piece: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return [the one of MATRICES] in the module of the bias PIECE whose name has all words of that of the bias, apart
    from "bias": `kernel` for `kernel_bias`, `short_filter` for `short_bias`. [] if there is none, or several, or if
    PIECE is called `bias` or without this word.
    """
    module, _, leaf = piece.entry.key.rpartition(".")
    own = {*cut(leaf)} - {"bias", "biases"}
    beside = [(m, m.entry.key.rpartition(".")) for m in matrices]
    found = [m for m, (around, _, name) in beside if own and around == module and own <= {*cut(name)}]
    return found if len(found) == 1 and own != {*cut(leaf)} else []


def _nearest(piece: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return those of MATRICES that share the longest beginning of their path with the bias PIECE; [] if none
    shares any.
    """
    shared = [_together(m.path, piece.path) for m in matrices]
    return [m for m, n in zip(matrices, shared, strict=True) if n == max(shared) > 0]


def _together(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _lone_biases(canon: Canon) -> list[Piece]:
    together = Counter(piece.path for piece in canon.pieces.values())
    matrices = {piece.path for piece in canon.pieces.values() if len(piece.shape) > 1}
    modules: dict[str, list[Piece]] = defaultdict(list)
    for piece in canon.pieces.values():
        modules[piece.entry.key.rpartition(".")[0]].append(piece)
    return [
        piece
        for piece in canon.pieces.values()
        if len(squeezed(piece.shape)) <= 1
        and together[piece.path] == 1
        and (
            {"bias", "biases", "intercept"} & {*piece.words, piece.role}
            or _own_name(piece.path) == "b"
            or _after_matrices(piece, matrices)
            or _of_the_matrix(piece, modules[piece.entry.key.rpartition(".")[0]])
        )
    ]


def _of_the_matrix(piece: Piece, beside: list[Piece]) -> bool:
    """Return whether PIECE is a vector with a name for biases, such as `offset`, and its module, which holds BESIDE,
    has exactly one other tensor: a bare square matrix, with as many rows.
    """
    sizes = {p.shape for p in beside if is_bare(p)}
    named = table().leaves.get(cut(piece.leaf)) == "bias"
    return named and len(beside) == 2 and sizes == {piece.shape, piece.shape * 2} and len(piece.shape) == 1


_B = re.compile(r"(.*_)b(?::\d+)?\Z")


def _after_matrices(piece: Piece, matrices: Set[tuple[str, ...]]) -> bool:
    """Return whether PIECE, or the list that it is in, has a name that ends with `_b`, beside matrices that begin with
    the same text and a "w": `cell_b` beside `cell_wx`. MATRICES has the paths of all matrices.
    """
    at = next((at for at in reversed(range(len(piece.path))) if not piece.path[at].isdecimal()), 0)
    found = _B.match(piece.path[at]) if piece.path else None
    start = () if found is None else (*piece.path[:at], f"{found[1]}w")
    beside = (path for path in matrices if len(path) > at and path[:at] == start[:-1])
    return bool(start) and any(path[at].startswith(start[-1]) for path in beside)


def _own_name(path: tuple[str, ...]) -> str:
    """Return the last component of PATH that is no number, so that a bias in a list has the name of the list; "" if
    there is none.
    """
    return next((component for component in reversed(path) if not component.isdecimal()), "")


def _layers(canon: Canon) -> set[tuple[Shape, Shape]]:
    """Return (sizes of the weight, sizes of the bias) of every layer that has both."""
    weights = {p.path: p.shape for p in canon.pieces.values() if p.role == "weight"}
    return {(weights[p.path], p.shape) for p in canon.pieces.values() if p.role == "bias" and p.path in weights}


def divide_biases(canon: Canon) -> None:
    """Split each bias of a fused projection whose matrices are separate (`in_proj_bias` beside `q_proj_weight` …) into
    one bias for each matrix. Each part has to have a matrix of this name in the same module, without a bias, and their
    rows have to be as many as the bias has values.
    """
    for piece in list(canon.pieces.values()):
        kind = fused_kind(piece) if piece.role == "bias" and len(piece.shape) == 1 else None
        if kind is None or piece.name.beside("weight") in canon.pieces:
            continue
        beside = [p for p in canon.pieces.values() if p.path[:-1] == piece.path[:-1] and p.role == "weight"]
        owners = [next((p for p in beside if part_label(p.path) == part), None) for part in kind.parts]
        if any(o is None or o.name.beside("bias") in canon.pieces for o in owners):
            continue
        rows = [o.shape[0] for o in owners if o is not None]
        if sum(rows) != piece.shape[0]:
            continue
        edges = list(pairwise(accumulate((0, *rows))))
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = [
            (
                replace(
                    o,
                    role="bias",
                    shape=(stop - start,),
                    order=o.order + 0.5,
                    entry=piece.entry,
                    questions=piece.questions,
                ),
                partial(ex.part, dim=0, start=start, stop=stop),
            )
            for o, (start, stop) in zip(owners, edges, strict=True)
            if o is not None
        ]
        canon.become(piece, new, partial(ex.cat, 0))
