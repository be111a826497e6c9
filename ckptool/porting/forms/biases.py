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
from ..questions import Question, Reason, ask, ask_code
from ..words import common_start, cut, label, numbers, table
from .fusing.projections import fused_kind, own_name, part_label, said_part
from .layouts import is_bare, turn
from .pieces import Canon, Name, Piece, squeezed


def attach_biases(one: Canon, other: Canon) -> None:
    """Move each bias of ONE that is stored by itself (`_lone_biases`: a vector or a single number, alone in its module,
    with a name for a bias) into the module of its matrix (`_owner`: by sizes, then by names, paths and use), with the
    role "bias". A bias for which no matrix is found stays. A matrix gets one bias at most, and none if it has one.

    The matrix is transposed if its rows are not as many as the bias has values, or if the bias is a row [1, n] of
    several values, because code that adds such a row multiplies with inputs first. In the second case the matrix stays
    if the code shows the layout of the matrix.

    If OTHER stores biases of this size by themselves, too, a bias only gets the role. A bias [n, 1] stays as it is if
    OTHER has a weight of the same sizes (`_to_attach`). The bias of a sum of several layers stays, too, if OTHER has
    such a bias inside of one of the layers: then OTHER is changed, and that bias is moved beside its layers
    (`_part_of_sum`).
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
            shown = owner.entry.facts.inputs_first is not None
            if _rows(owner) != prod(piece.shape) or (_is_row(piece) and not shown):
                turn(one, owner)
            one.change(piece, replace(piece, path=owner.path, role="bias"))


def _to_attach(one: Canon, other: Canon) -> list[Piece]:
    """Return the biases that are stored by themselves in ONE (`_lone_biases`) and are to be moved beside a matrix:
    those of a size of which OTHER has no bias that is stored by itself. The role of the others becomes "bias" in ONE.
    Biases [n, 1] for which OTHER has a weight of the same sizes (a table of one column, for each user, say) are left
    out, too, and keep their role.
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
    """Return the one of MATRICES that BIAS belongs to: the only one whose sizes fit (`_fitting`), or of several such
    ones the one that names, paths and use point to (`_of_several`). None if the sizes of none fit, or if nothing tells
    those that fit apart. LAYERS has (sizes of the weight, sizes of the bias) of the other side's layers.
    """
    fitting = _fitting(bias, matrices, layers)
    return fitting[0] if len(fitting) == 1 else _of_several(bias, fitting, layers)


def _fitting(bias: Piece, matrices: list[Piece], layers: _Layers) -> list[Piece]:
    """Return those of MATRICES that BIAS may belong to by their sizes; [] if there are none. Two kinds fit:

      - a matrix with as many rows as BIAS has values; for a row [1, n] (`_is_row`), a matrix [1, n] instead, which has
        one input, and inputs first;
      - any `nn.Parameter` of a module around BIAS with as many columns as BIAS has values (`_gives`).

    If none fits, or BIAS has one value, those fit for which LAYERS has (sizes of the matrix, sizes of BIAS), because a
    layer of the other side has these sizes. A matrix that is by its name another part of a projection than BIAS
    (`value` for `q_bias`) never fits.
    """
    part = _part_of(bias)
    matrices = [m for m in matrices if part is None or part_label(m.path) in (None, part)]
    with_bias = [m for m in matrices if (m.shape, bias.shape) in layers]
    fits = {m.name: m.shape == bias.shape if _is_row(bias) else _rows(m) == prod(bias.shape) for m in matrices}
    found = [m for m in matrices if fits[m.name] or _gives(m, bias)]
    return found if found and squeezed(bias.shape) else with_bias


def _of_several(bias: Piece, fitting: list[Piece], layers: _Layers) -> Piece | None:
    """Return the one of FITTING, matrices whose sizes fit BIAS, that BIAS belongs to: the result of the first of these
    steps that gives exactly one matrix. None if each gives none or several; then BIAS stays where it is.

      1. The matrix that the name of BIAS says (`_called_as`, `_same_part`), or, if there is none, those with the same
         numbers in their paths.
      2. Of the result of 1 (of all, if that is empty), those whose paths share the longest beginning with that of BIAS.
      3. Of the result of 2 (of all, if that is empty), those for which LAYERS has (sizes of the matrix, sizes of BIAS).
      4. Of the result of 2 (of all, if that is empty), the one that is used last before BIAS.
      5. Of all, those of the output layer by name, if BIAS is of the output layer by name, too.
    """
    named = _called_as(bias, fitting) or _same_part(bias, fitting)
    said = named or [m for m in fitting if numbers(m.path) == numbers(bias.path)]
    near = _nearest(bias, said or fitting)
    close = near or fitting
    ways = (said, near, [m for m in close if (m.shape, bias.shape) in layers], _used_before(bias, close))
    output = [m for m in fitting if _of_output(m) and _of_output(bias)]
    return next((found[0] for found in (*ways, output) if len(found) == 1), None)


def _used_before(bias: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return [the one of MATRICES that is used last before BIAS]; [] if none is known to be used before it."""
    before = [m for m in matrices if m.used is not None and bias.used is not None and m.used < bias.used]
    return sorted(before, key=lambda m: m.used or 0)[-1:]


def _part_of_sum(lone: list[Piece], matrices: list[Piece], other: Canon) -> None:
    """Leave the bias of a sum of layers beside the layers on both sides: `lin_rel(x) + lin_root(y)` with a bias in one
    of the two is `fc_neigh(x) + fc_self(y) + bias`.

    LONE has the biases of one side that are stored by themselves, MATRICES the matrices of that side. Biases of LONE
    that are stored beside two or more matrices with as many rows are removed from the list LONE, so that they stay
    where they are. In OTHER, the bias in one of several parallel layers (`_in_one_of_several`) is moved out of its
    layer into the module around, with a question; it is answered if the source's code adds the outputs of these layers.
    Both are done for each size of which the two sides have equally many of these biases, else neither.
    """
    sums: dict[Shape, list[tuple[Piece, list[Piece]]]] = defaultdict(list)
    for piece in lone:
        if layers := _beside_sum(piece, matrices):
            sums[squeezed(piece.shape)].append((piece, layers))
    parts: dict[Shape, list[tuple[Piece, list[Piece]]]] = defaultdict(list)
    for bias, layers in _in_one_of_several(other):
        parts[squeezed(bias.shape)].append((bias, layers))
    for shape, found in parts.items():
        if len(found) != len(sums[shape]):
            continue
        added = all(_are_added(layers) for _, layers in (sums[shape] if other.is_target else found))
        question: Question[Expr] = ask(Reason.BIAS_OF_SUM)
        if added:
            question = ask_code(Reason.BIAS_OF_SUM, shows="adds the outputs of these layers")
        for bias, _ in found:
            other.change(bias, replace(bias, path=bias.path[:-1]).asked(question))
        for piece, _ in sums[shape]:
            lone.remove(piece)


def _are_added(layers: list[Piece]) -> bool:
    """Return whether the code of LAYERS is known to add the output of each to that of each other one."""
    return all(b.entry.key in a.entry.facts.added for a, b in combinations(layers, 2))


def _beside_sum(bias: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return those of MATRICES whose layers are directly in the module of BIAS and have as many rows as BIAS has
    values, if there are two or more of them and their first sizes are equal; else [].
    """
    beside = [m for m in matrices if m.path[:-1] == bias.path and _rows(m) == _rows(bias)]
    return beside if len(beside) > 1 and len({m.shape[0] for m in beside}) == 1 else []


def _in_one_of_several(canon: Canon) -> list[tuple[Piece, list[Piece]]]:
    """Return (bias, layers) for each module of CANON with two or more layers directly in it, if these are parallel
    (none is known to feed another, `_are_parallel`) and have equally many outputs, exactly one of them has a bias, and
    the module itself has none. Layers are weights with two or more dimensions. [] if there is no such module.
    """
    layers: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in canon.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 1 and piece.path:
            layers[piece.path[:-1]].append(piece)
    found = []
    for parent, held in layers.items():
        biases = [bias for m in held if (bias := canon.pieces.get(m.name.beside("bias"))) is not None]
        if len(biases) == 1 and Name(parent, "bias") not in canon.pieces and _are_parallel(held):
            found.append((biases[0], held))
    return found


def _are_parallel(layers: list[Piece]) -> bool:
    """Return whether LAYERS may run beside each other: they are two or more, have equally many outputs, and of no two
    of them does one take the output of the other, directly or through other layers. Two layers of which one has no
    known place in the forward pass count as parallel.
    """
    flows = [m.entry.facts.flow for m in layers]
    apart = all(a is None or b is None or a.beside(b) for a, b in combinations(flows, 2))
    return apart and len(layers) > 1 and len({_rows(m) for m in layers}) == 1


def _is_row(bias: Piece) -> bool:
    """Return whether BIAS is stored as a row [1, n] of several values."""
    return len(bias.shape) == 2 and bias.shape[0] == 1 < bias.shape[1]


def _rows(piece: Piece) -> int:
    """Return the number of outputs of a matrix PIECE: the first size of a tensor with two dimensions; for others the
    first size above 1, or 1 if there is none.
    """
    return next(iter(squeezed(piece.shape) if len(piece.shape) != 2 else piece.shape), 1)


def _of_output(piece: Piece) -> bool:
    """Return whether the name of PIECE says that it belongs to the output layer: by a name for a head (`classifier`,
    `lm_head`) or a word for the vocabulary (`vocab`, `lm`).
    """
    return label(table().group("purpose"), piece.words) == "head" or not table().vocabulary.isdisjoint(piece.words)


def _gives(matrix: Piece, bias: Piece) -> bool:
    """Return whether MATRIX, a bare parameter of a module around BIAS, has as many columns as BIAS has elements:
    transposed, it would give these outputs.
    """
    beside = matrix.path[:-1] == bias.path[: len(matrix.path) - 1]
    return beside and is_bare(matrix) and len(matrix.shape) == 2 and matrix.shape[-1:] == squeezed(bias.shape)


def _called_as(piece: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return [the one of MATRICES in the module of the bias PIECE whose own name has all words of the own name of
    PIECE, apart from "bias"]: `kernel` for `kernel_bias`, `short_filter` for `short_bias`. [] if there is none, if
    there are several, or if PIECE is called `bias` or without this word.
    """
    module, _, leaf = piece.entry.key.rpartition(".")
    own = {*cut(leaf)} - {"bias", "biases"}
    beside = [(m, m.entry.key.rpartition(".")) for m in matrices]
    found = [m for m, (around, _, name) in beside if own and around == module and own <= {*cut(name)}]
    return found if len(found) == 1 and own != {*cut(leaf)} else []


def _same_part(bias: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return [the one of MATRICES in the module around BIAS that is by its name the same part of a projection as BIAS]:
    `value` for `v_bias`, or, if none is directly in this module, the one at the least depth in it: `qkv.v`. [] if there
    is none, if there are several at that depth, or if the name of BIAS says no part.

    The code may use such a bias before the matrix, say for the size of the zeros that it adds to the keys.
    """
    part, around = _part_of(bias), bias.path[:-1]
    inside = [m for m in matrices if m.path[: len(around)] == around and part_label(m.path) == part is not None]
    depth = min((len(m.path) for m in inside), default=0)
    found = [m for m in inside if len(m.path) == depth]
    return found if len(found) == 1 else []


def _part_of(bias: Piece) -> str | None:
    """Return which part of a projection BIAS is of, by its own name without "bias": "v" for `v_bias`; None for other
    names.
    """
    return said_part([word for word in cut(bias.last) if word not in ("bias", "biases")])


def _nearest(piece: Piece, matrices: list[Piece]) -> list[Piece]:
    """Return those of MATRICES whose paths share the longest beginning with the path of the bias PIECE, all if several
    share equally much. [] if none begins with the same component.
    """
    shared = [common_start((m.path, piece.path)) for m in matrices]
    return [m for m, n in zip(matrices, shared, strict=True) if n == max(shared) > 0]


def _lone_biases(canon: Canon) -> list[Piece]:
    """Return the biases of CANON that are stored by themselves: vectors and single numbers (also [1, n] and [n, 1])
    whose path no other tensor has, and whose name says that they are biases: by a word (`_is_called_bias`), as `cell_b`
    beside matrices `cell_w…` (`_after_matrices`), or, as `offset`, in a module that has only a square matrix of as many
    rows beside it (`_of_the_matrix`).
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
    """Return whether PIECE has a word for a bias ("bias", "biases", "intercept") in its name or as its role, or is
    called `b`. A member of a list has the name of the list (`b.0`).
    """
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
    """Return whether PIECE, or the list that PIECE is a member of, has a name that ends with `_b`, and in the same
    module there is a matrix whose name has "w" in place of the "b", with anything behind it: `cell_b` beside `cell_wx`.
    MATRICES has the paths of all tensors of the side with two or more dimensions.
    """
    at = next((at for at in reversed(range(len(piece.path))) if not piece.path[at].isdecimal()), 0)
    found = _B.match(piece.path[at]) if piece.path else None
    start = () if found is None else (*piece.path[:at], f"{found[1]}w")
    beside = (path for path in matrices if len(path) > at and path[:at] == start[:-1])
    return bool(start) and any(path[at].startswith(start[-1]) for path in beside)


def _layers(canon: Canon) -> set[tuple[Shape, Shape]]:
    """Return (sizes of the weight, sizes of the bias) of every layer that has both."""
    layers = (held for held in canon.modules().values() if held.keys() >= {"weight", "bias"})
    return {(held["weight"].shape, held["bias"].shape) for held in layers}


def divide_biases(canon: Canon) -> None:
    """Split each vector of biases of a fused projection whose matrices are separate into one bias for each matrix
    (`_owners`): `in_proj_bias` [3 * n] beside `q_proj_weight`, `k_proj_weight`, `v_proj_weight` into a "bias" [n] in
    the module of each of these. A bias stays whole if these matrices together do not have as many rows as it has
    values, if one of them is missing, or if one has a bias. No question is asked.
    """
    for piece in [p for p in canon.pieces.values() if p.role == "bias" and len(p.shape) == 1]:
        owners = _owners(canon, piece)
        if owners and piece.shape == (sum(owner.shape[0] for owner in owners),):
            edges = pairwise(accumulate((0, *(owner.shape[0] for owner in owners))))
            new = [_bias_of(owner, piece, start, stop) for owner, (start, stop) in zip(owners, edges, strict=True)]
            canon.become(piece, new, partial(ex.cat, 0))


def _owners(canon: Canon, bias: Piece) -> list[Piece]:
    """Return the separate matrices of which BIAS holds the biases (`q_proj_weight`, `k_proj_weight`, `v_proj_weight` of
    `in_proj_bias`), in the order of the parts in BIAS. BIAS has to have the name of a fused projection; the matrices
    are in the same module, one for each part by name, and have no bias of their own.

    [] if one of them is missing or has a bias, if BIAS has a weight beside it, or for a bias with another name.
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
