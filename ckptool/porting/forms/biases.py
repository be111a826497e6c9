"""Biases that are stored outside of the module of their matrix, or one bias for several matrices."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, pairwise
from math import prod

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import common_start, cut, label, numbers, table
from .fusing.projections import fused_kind, own_name, part_label, said_part
from .layouts import is_bare, turn
from .pieces import Canon, Name, Piece, squeezed


def attach_biases(one: Canon, other: Canon) -> None:
    """Move each bias of ONE that is stored by itself (`_lone_biases`) into the module of its matrix (`_owner`), with
    the role "bias"; without one, it stays. A matrix gets one bias at most, and none if it has one. It is transposed if
    it has another number of rows than the bias has values, or if the bias is a row [1, n], as in x @ W + b, unless the
    code showed its layout, and it has as many rows.

    If OTHER stores biases of this size by themselves, too, a bias only gets the role. OTHER is changed where it has the
    bias of a sum of layers in one of these (`_part_of_sum`).
    """
    lone = _to_attach(one, other)
    matrices = [p for p in one.pieces.values() if p.role == "weight" and len(p.shape) > 1 and p not in lone]
    matrices = [p for p in matrices if p.name.beside("bias") not in one.pieces]
    _part_of_sum(lone, matrices, other)
    layers = _layers(other)
    for piece in lone:
        owner = _owner(piece, matrices, layers)
        if owner is not None:
            matrices.remove(owner)
            shown = owner.entry.facts.inputs_first is not None and owner.shape[0] == prod(piece.shape)
            if _rows(owner) != _rows(piece) and not shown:
                turn(one, owner)
            one.change(piece, replace(piece, path=owner.path, role="bias"))


def _to_attach(one: Canon, other: Canon) -> list[Piece]:
    """Return the biases of ONE that are stored by themselves (`_lone_biases`), if OTHER has none of this size; the rest
    are left out, and get the role of a bias in ONE. Left out, and left as they are, are those [n, 1] that OTHER has as
    a weight of these sizes: a table of one column, of each user, say.
    """
    apart = {squeezed(piece.shape) for piece in _lone_biases(other)}
    tables = {piece.shape for piece in other.pieces.values() if piece.role == "weight" and piece.shape[1:] == (1,)}
    found = []
    for piece in _lone_biases(one):
        if piece.shape not in tables and squeezed(piece.shape) not in apart:
            found.append(piece)
        elif piece.shape not in tables and piece.role != "bias":
            one.change(piece, replace(piece, role="bias"))
    return found


#: (sizes of the weight, sizes of the bias) of layers.
_Layers = Set[tuple[Shape, Shape]]


def _owner(bias: Piece, matrices: list[Piece], layers: _Layers) -> Piece | None:
    """Return that of MATRICES whose bias BIAS is; None if none fits (`_fitting`), or if nothing tells several apart
    (`_of_several`). LAYERS are those of the other side.
    """
    fitting = _fitting(bias, matrices, layers)
    return fitting[0] if len(fitting) == 1 else _of_several(bias, fitting, layers)


def _fitting(bias: Piece, matrices: list[Piece], layers: _Layers) -> list[Piece]:
    """Return those of MATRICES with as many rows as BIAS has values, and bare ones with as many columns (`_gives`). For
    a bias of one value, or if there are none, those whose sizes the other side has with such a bias, in LAYERS.

    A table may be a layer over words that are 0 or 1, and the other side has its bias with it.
    """
    with_bias = [m for m in matrices if (m.shape, bias.shape) in layers]
    found = [m for m in matrices if _rows(m) == _rows(bias) or _gives(m, bias)]
    return found if found and squeezed(bias.shape) else with_bias


def _of_several(bias: Piece, fitting: list[Piece], layers: _Layers) -> Piece | None:
    """Return the one of FITTING that the first of these leaves alone: the name of BIAS (`_called_as`, `_same_part`) or,
    where that finds none, the numbers in its path; of these (of all, if there are none) the nearest path; of the
    nearest, layers of the other side of these sizes (LAYERS), then the last one that is used before BIAS; of all, those
    of the output layer, if both are so by name. None if each leaves none or several.
    """
    named = _called_as(bias, fitting) or _same_part(bias, fitting)
    said = named or [m for m in fitting if numbers(m.path) == numbers(bias.path)]
    near = _nearest(bias, said or fitting)
    close = near or fitting
    ways = (said, near, [m for m in close if (m.shape, bias.shape) in layers], _used_before(bias, close))
    output = [m for m in fitting if _of_output(m) and _of_output(bias)]
    return next((found[0] for found in (*ways, output) if len(found) == 1), None)


def _used_before(bias: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return [the one of MATRICES that is used last before BIAS]; [] if it is not known when they are used."""
    before = [m for m in matrices if m.used is not None and bias.used is not None and m.used < bias.used]
    return sorted(before, key=lambda m: m.used or 0)[-1:]


def _part_of_sum(lone: list[Piece], matrices: list[Piece], other: Canon) -> None:
    """Treat the bias of a sum of layers alike on both sides: where OTHER has it inside of one of the layers, it is
    moved beside them there, with a question. LONE has the biases of one side that are stored by themselves; those that
    belong to such a sum are removed from it, and stay where they are. MATRICES are the matrices of that side.

    `lin_rel(x) + lin_root(y)` with a bias in one of the two is `fc_neigh(x) + fc_self(y) + bias`. It is done if both
    sides have equally many sums with biases of one size.
    """
    sums: dict[Shape, list[Piece]] = defaultdict(list)
    for piece in lone:
        if _is_beside_sum(piece, matrices):
            sums[squeezed(piece.shape)].append(piece)
    parts: dict[Shape, list[Piece]] = defaultdict(list)
    for bias in _in_one_of_several(other):
        parts[squeezed(bias.shape)].append(bias)
    for shape, found in parts.items():
        if len(found) != len(sums[shape]):
            continue
        for bias in found:
            of_sum = replace(bias, path=bias.path[:-1]).asking(Reason.BIAS_OF_SUM)
            other.change(bias, of_sum)
        for piece in sums[shape]:
            lone.remove(piece)


def _is_beside_sum(bias: Piece, matrices: list[Piece]) -> bool:
    """Return whether the module that BIAS is stored in holds two or more of MATRICES, with as many rows as it has
    values.
    """
    beside = [m for m in matrices if m.path[:-1] == bias.path and _rows(m) == _rows(bias)]
    return len(beside) > 1 and len({m.shape[0] for m in beside}) == 1


def _in_one_of_several(canon: Canon) -> list[Piece]:
    """Return the biases of CANON whose layer stands in a module with other layers, which are all parallel, have as many
    outputs, and no bias (`_are_parallel`). The module itself has none, either.
    """
    layers: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in canon.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 1 and piece.path:
            layers[piece.path[:-1]].append(piece)
    found = []
    for parent, held in layers.items():
        biases = [bias for m in held if (bias := canon.pieces.get(m.name.beside("bias"))) is not None]
        if len(biases) == 1 and Name(parent, "bias") not in canon.pieces and _are_parallel(held):
            found += biases
    return found


def _are_parallel(layers: list[Piece]) -> bool:
    """Return whether LAYERS are two or more with equally many outputs, of which none feeds another, as far as their
    forward passes are known.
    """
    flows = [m.entry.facts.flow for m in layers]
    apart = all(a is None or b is None or a.beside(b) for a, b in combinations(flows, 2))
    return apart and len(layers) > 1 and len({_rows(m) for m in layers}) == 1


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


def _same_part(bias: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return [the one of MATRICES] in the module that BIAS is in which is the same part of a projection by its name:
    `value` for `v_bias`. [] if there is none, or several.

    The code may use such a bias before the matrix, say for the size of the zeros that it adds to the keys.
    """
    part = said_part([word for word in cut(bias.last) if word not in ("bias", "biases")])
    found = [m for m in matrices if part is not None and m.path[:-1] == bias.path[:-1] and part_label(m.path) == part]
    return found if len(found) == 1 else []


def _nearest(piece: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return those of MATRICES that share the longest beginning of their path with the bias PIECE; [] if none
    shares any.
    """
    shared = [common_start((m.path, piece.path)) for m in matrices]
    return [m for m, n in zip(matrices, shared, strict=True) if n == max(shared) > 0]


def _lone_biases(canon: Canon) -> list[Piece]:
    """Return the vectors and single numbers of CANON that are alone under their path and whose name says that they are
    biases: by a word (`_is_called_bias`), as `cell_b` beside matrices `cell_w…` (`_after_matrices`), or, as `offset`,
    in a module with nothing else but a square matrix of as many rows (`_of_the_matrix`).
    """
    together = Counter(piece.path for piece in canon.pieces.values())
    matrices = {piece.path for piece in canon.pieces.values() if len(piece.shape) > 1}
    modules: dict[str, list[Piece]] = defaultdict(list)
    for piece in canon.pieces.values():
        modules[piece.entry.key.rpartition(".")[0]].append(piece)
    vectors = [p for p in canon.pieces.values() if len(squeezed(p.shape)) <= 1 and together[p.path] == 1]
    return [
        p
        for p in vectors
        if _is_called_bias(p)
        or _after_matrices(p, matrices)
        or _of_the_matrix(p, modules[p.entry.key.rpartition(".")[0]])
    ]


def _is_called_bias(piece: Piece) -> bool:
    """Return whether PIECE has a word for a bias in its name, or is called `b`, or its list is."""
    return not {"bias", "biases", "intercept"}.isdisjoint((*piece.words, piece.role)) or own_name(piece.path) == "b"


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


def _layers(canon: Canon) -> set[tuple[Shape, Shape]]:
    """Return (sizes of the weight, sizes of the bias) of every layer that has both."""
    weights = {p.path: p.shape for p in canon.pieces.values() if p.role == "weight"}
    return {(weights[p.path], p.shape) for p in canon.pieces.values() if p.role == "bias" and p.path in weights}


def divide_biases(canon: Canon) -> None:
    """Split each bias of a fused projection whose matrices are separate (`in_proj_bias` beside `q_proj_weight` …) into
    one bias for each matrix (`_owners`), if their rows are as many as the bias has values.
    """
    for piece in [p for p in canon.pieces.values() if p.role == "bias" and len(p.shape) == 1]:
        owners = _owners(canon, piece)
        if owners and piece.shape == (sum(owner.shape[0] for owner in owners),):
            edges = pairwise(accumulate((0, *(owner.shape[0] for owner in owners))))
            new = [_bias_of(owner, piece, start, stop) for owner, (start, stop) in zip(owners, edges, strict=True)]
            canon.become(piece, new, partial(ex.cat, 0))


def _owners(canon: Canon, bias: Piece) -> list[Piece]:
    """Return the matrices, in the order of their parts in BIAS, a bias of a fused projection by its name: one for each
    part in the same module, without a bias. [] if one is missing, if the projection has a weight, or for other biases.
    """
    kind = fused_kind(bias)
    if kind is None or bias.name.beside("weight") in canon.pieces:
        return []
    beside = [p for p in canon.pieces.values() if p.path[:-1] == bias.path[:-1] and p.role == "weight"]
    found = [next((p for p in beside if part_label(p.path) == part), None) for part in kind.parts]
    owners = [p for p in found if p is not None and p.name.beside("bias") not in canon.pieces]
    return owners if len(owners) == len(kind.parts) else []


def _bias_of(owner: Piece, whole: Piece, start: int, stop: int) -> tuple[Piece, Callable[[Expr], Expr]]:
    """Return the bias of the matrix OWNER, and the function that cuts it out of WHOLE, from START to STOP. It has the
    path and words of OWNER, a place directly behind it, and the questions of WHOLE.
    """
    made = replace(
        owner,
        role="bias",
        shape=(stop - start,),
        order=owner.order + 0.5,
        entry=whole.entry,
        questions=whole.questions,
    )
    return made, partial(ex.part, dim=0, start=start, stop=stop)
