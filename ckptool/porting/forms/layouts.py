"""Bring matrices and kernels with inputs first, or with a dimension for the heads, into torch's layout."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from math import prod

from ...model_code.signature import Entry
from .. import expression as ex
from ..expression import Shape
from ..questions import Reason
from ..words import label, table
from .pieces import Canon, Name, Piece, squeezed, unchanged
from .projections import fused_kind
from .roles import components

#: Functions that multiply with a matrix.
PRODUCTS = frozenset("linear matmul __matmul__ __rmatmul__ addmm mm bmm baddbmm einsum".split())

#: Functions that multiply element by element.
_BY_ELEMENT = frozenset("mul multiply __mul__ __rmul__ mul_ __imul__".split())

_TURNED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}


def torch_layout(canon: Canon, piece: Piece, bare: Collection[Shape]) -> None:
    """Bring PIECE of the side CANON from inputs first into torch's layout, if its name or its use says that it has
    inputs first.

    On the target, a weight is transposed if the forward pass uses it so (unless it is that of an embedding, or has
    heads between inputs and outputs), or if it is a matrix called `kernel` that is not multiplied element by element,
    and neither the forward pass nor the class of its module shows the layout. On the source, kernels [size…, in, out]
    become [out, in, size…], and depthwise kernels [size…, in, n] become [in * n, 1, size…]; the vocabulary has their
    names (`inputs_first`, `depthwise`). With a recurrent kernel beside it, a kernel becomes `weight_ih`, a bias with
    one or two dimensions `bias_ih`.
    Args:
        canon: the side, which is changed.
        piece: a piece of it.
        bare: sizes [a, b, c] that are not those of a kernel: a source tensor with them stays as it is.
    """
    rank = len(piece.shape)
    if canon.is_target:
        of_heads = rank > 2 and {*piece.entry.facts.dims} == {"input", "output"}
        by_element = piece.entry.how in _BY_ELEMENT  # which takes no inputs
        named = rank == 2 and piece.leaf in table().inputs_first and _unseen(piece.entry) and not by_element
        used_so = piece.entry.facts.inputs_first and rank >= 2 and not of_heads
        if (named or used_so) and piece.entry.module != "Embedding":
            turn(canon, piece)
        return
    recurrent = canon.pieces.get(piece.name.beside("weight_hh"))
    of_cell = recurrent is not None and recurrent.leaf == "recurrent_kernel"
    if piece.leaf in table().depthwise and rank in (3, 4):
        made = _reorder(canon, piece, (*range(rank - 2, rank), *range(rank - 2)))
        inputs, multiplier, *size = made.shape
        if multiplier != 1:
            flat = (inputs * multiplier, 1, *size)
            canon.become(made, [(replace(made, shape=flat), partial(ex.reshape, shape=flat))], unchanged)
    elif rank == 3 and piece.shape in bare:
        return
    elif piece.leaf in table().inputs_first and rank in _TURNED:
        if piece.role == "weight" and of_cell:
            piece = _renamed(canon, piece, "weight_ih")
        _reorder(canon, piece, _TURNED[rank]) if rank != 2 else turn(canon, piece)
    elif piece.leaf == "bias" and of_cell and rank in (1, 2):
        _renamed(canon, piece, "bias_ih")


def _renamed(canon: Canon, piece: Piece, role: str) -> Piece:
    new = replace(piece, role=role)
    canon.become(piece, [(new, lambda e: e)], lambda e: e)
    return canon.pieces[new.name]


def turn(canon: Canon, piece: Piece) -> Piece:
    """Transpose PIECE in its side CANON (swap its last two dimensions), and return the new piece, which has the same
    name.
    """
    shape = (*piece.shape[:-2], piece.shape[-1], piece.shape[-2])
    canon.become(piece, [(replace(piece, shape=shape), ex.transpose)], ex.transpose)
    return canon.pieces[piece.name]


def _reorder(canon: Canon, piece: Piece, dims: tuple[int, ...]) -> Piece:
    back = [0] * len(dims)
    for new, old in enumerate(dims):
        back[old] = new
    shape = tuple(piece.shape[d] for d in dims)
    canon.become(
        piece,
        [(replace(piece, shape=shape), lambda e: ex.permute(e, *dims))],
        lambda e: ex.permute(e, *back),
    )
    return canon.pieces[piece.name]


def turn_all(one: Canon, other: Canon) -> None:
    """Bring all pieces of ONE that have inputs first, by their name or use, into torch's layout (see `torch_layout`).

    Source tensors with three dimensions and the sizes of a bare parameter of the target stay as they are, unless the
    target has a tensor that is not bare with these sizes reversed.
    """
    bare = {p.shape for p in other.pieces.values() if is_bare(p)} - {
        p.shape[::-1] if len(p.shape) == 3 else () for p in other.pieces.values() if not is_bare(p)
    }
    for piece in list(one.pieces.values()):
        torch_layout(one, piece, bare)


def turn_by_vote(canon: Canon) -> None:
    """Transpose the matrices of CANON that have inputs first, as the lengths of their biases show.

    A matrix whose rows or columns, but not both, are as many as the bias has values is a vote for its layout. All
    matrices of layers with one name (`kin`) then get the layout with more votes; if none of them has a vote, that with
    more votes in all such matrices. A tie changes nothing. Stacked matrices [n, in, out], with biases [n, out] or [n,
    1, out], and single ones vote apart, and so do tensors as they are and members selected from a stack.
    Only weights with a bias beside them in the file or the model count, whose layout neither the file, the forward pass
    nor the class of the module states.
    """
    votes: dict[tuple[object, str], Counter[bool]] = defaultdict(Counter)
    everywhere: dict[object, Counter[bool]] = defaultdict(Counter)
    matrices = []
    for piece in canon.pieces.values():
        rank = len(piece.shape)
        if (
            piece.placed
            or piece.role != "weight"
            or rank not in (2, 3)
            or not (piece.expr.is_copy or ex.is_selected(piece.expr))
        ):
            continue
        bias = canon.pieces.get(piece.name.beside("bias"))
        if bias is None or not bias.shape or squeezed(bias.shape[:-1]) != squeezed(piece.shape[:-2]):
            continue
        if components(bias.entry.key)[:-1] != components(piece.entry.key)[:-1]:  # of a module: it is in torch's layout
            continue
        if canon.is_target and not _unseen(piece.entry):
            continue
        matrices.append(piece)
        rows, columns = (n == bias.shape[-1] for n in piece.shape[-2:])
        if rows != columns:
            votes[_held(piece), kin(piece)][columns] += 1
            everywhere[_held(piece)][columns] += 1
    for piece in matrices:
        vote = votes.get((_held(piece), kin(piece))) or everywhere[_held(piece)]
        if vote[True] > vote[False]:
            turn(canon, piece)


def _held(piece: Piece) -> tuple[int, bool]:
    """Return (number of dimensions, whether PIECE is a tensor of its side as it is, without operations). Matrices with
    one name have one layout if they also have one result here.
    """
    return len(piece.shape), piece.expr.is_copy


def _unseen(entry: Entry) -> bool:
    """Return whether neither the forward pass nor the class of its module shows the layout of the weight ENTRY of the
    target.
    """
    told = entry.facts.inputs_first is not None or entry.how == "linear"
    return not told and entry.module not in ("Linear", "Embedding", "NonDynamicallyQuantizableLinear")


def kin(piece: Piece) -> str:
    """Return the last component of PIECE's path that is no number, without digits in it ("fc2" -> "fc"); "" if there is
    none. All layers with this name have one layout.
    """
    return next((re.sub(r"\d+", "", c) for c in reversed(piece.path) if not c.isdecimal()), "")


def follow_names(source: Canon, target: Canon) -> None:
    """Transpose a matrix of the source if the model stores the matrix with that name in the same sizes, and transposes
    it.

    Tensors with one name and one shape usually have one layout. Of these matrices, without square ones, those that have
    equal sizes on both sides must be at least as many as the others; else nothing is done. If all are square, the
    source lacks a parameter of the model, and the model's matrix is not bare, the transposed matrix is only the option
    of a question. A matrix of the source counts if its layout is not stated, and no other has an equally long end of
    the path in common.
    """
    ends: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in source.pieces.values():
        if len(piece.shape) >= 2 and piece.expr.is_copy and not piece.placed:
            for at in range(len(piece.path)):
                ends[piece.path[at:]].append(piece)
    same, votes = [], Counter[bool]()
    for piece in target.pieces.values():
        if not is_turned(target, piece):
            continue
        found = _namesakes(piece, ends)
        if len(found) == 1:
            if found[0].shape == piece.entry.shape:
                same.append((piece, found[0]))
            if piece.shape[-1] != piece.shape[-2]:
                votes[found[0].shape == piece.entry.shape] += 1
    keys = {key for key, entry in target.signature.entries.items() if entry.parameter is not False}
    everything = keys <= set(source.signature.entries)
    for piece, own in same:
        if own.name not in source.pieces or votes[False] > votes[True]:
            continue
        if everything or votes[True] or is_bare(piece):
            turn(source, own)
        else:
            source.pieces[own.name] = own.asking(Reason.INPUTS_FIRST, option=ex.transpose(own.expr))


def is_turned(target: Canon, piece: Piece) -> bool:
    """Return whether the model stores the matrix PIECE of TARGET with inputs first, so that its key is PIECE
    transposed.
    """
    return target.assembly.get(piece.entry.key) == ex.transpose(ex.of(piece.name.hole))


def _namesakes(piece: Piece, ends: dict[tuple[str, ...], list[Piece]]) -> list[Piece]:
    """Return the tensors of the source with the role of PIECE, a piece of the target, whose paths share the longest end
    with its path; [] if none has even the same last component. ENDS has end of a path -> tensors of the source.
    """
    for at in range(len(piece.path)):
        found = [p for p in ends.get(piece.path[at:], ()) if p.role == piece.role]
        if found:
            return found
    return []


#: Matrices of torch's attention, which holds them itself, as a linear layer does.
_OF_TORCH = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def is_bare(piece: Piece) -> bool:
    """Return whether PIECE is a weight that code registers by itself (`nn.Parameter`), no weight of a torch layer.

    Its role is "weight", and its key shows it: the last component is also the last of its path (`experts.w1`), is "W"
    or "w", or ends with `_weight` (except those of torch's attention). A piece whose layout the file states is never
    bare.
    """
    leaf = piece.leaf
    if piece.placed:
        return False
    own = piece.last == leaf or leaf in ("W", "w") or (leaf.endswith("_weight") and leaf not in _OF_TORCH)
    return piece.role == "weight" and own


def turn_bare_matrices(source: Canon, target: Canon) -> None:
    """Transpose the matrices of the source that have inputs first, as the target shows.

    A weight that has the sizes in which the model stores a matrix that it transposes, and no tensor of the target, is
    transposed. The others are bare matrices and stacks of matrices that are not square, and of which the target has the
    transposed sizes. As many of one size as the target has bare parameters of this size outside of matrix products
    stay. Those whose own sizes the target does not have are transposed; stacks that it has both ways stay; then names
    decide (`_said`).
    The rest is transposed together, if the order of all tensors then agrees better with that of the target. If it
    agrees equally well both ways, each stays, and asks a question.
    """
    wanted = {squeezed(p.shape) for p in target.pieces.values()}
    turned_there = {p.entry.shape for p in target.pieces.values() if is_turned(target, p)}
    for p in list(source.pieces.values()):  # what is in a layer is laid out as in torch, as a rule; the sizes say not
        if (
            p.role == "weight"
            and not p.placed
            and p.expr.is_copy
            and p.shape in turned_there
            and squeezed(p.shape) not in wanted
        ):
            turn(source, p)
    bare = [
        p
        for p in source.pieces.values()
        if is_bare(p)
        and len(p.shape) in (2, 3)
        and p.shape[-1] != p.shape[-2]
        and (*p.shape[:-2], p.shape[-1], p.shape[-2]) in wanted
    ]
    by_element = Counter(p.shape for p in target.pieces.values() if is_bare(p) and p.entry.how not in (*PRODUCTS, ""))
    own = Counter(p.shape for p in bare)
    bare = [p for p in bare if own[p.shape] != by_element[p.shape]]  # the model multiplies with none of as many
    for p in [p for p in bare if len(p.shape) == 3 or p.shape not in wanted]:
        bare.remove(p)
        if p.shape not in wanted:
            turn(source, p)
    for p in list(bare):
        said = _said(p, target)
        if said is not None:
            bare.remove(p)
            if said:
                turn(source, p)
    if not bare:
        return
    as_is = _agreement(source, target, set())
    turned = _agreement(source, target, {p.name for p in bare})
    if turned == as_is and all(p.shape in wanted for p in bare):
        for p in bare:
            source.pieces[p.name] = p.asking(Reason.INPUTS_FIRST)
        return
    if turned >= as_is:
        for p in bare:
            turn(source, p)


def _said(piece: Piece, target: Canon) -> bool | None:
    """Return whether the target's tensors with the last name of PIECE have its sizes reversed (True) or as they are
    (False).

    If they have neither, or both: the same of tensors with the same word for a part of a feed-forward block (gate, up,
    down). None if these do not show it either.
    """
    group = table().group("neck")
    word = label(group, piece.words)
    of_word = {p.shape for p in target.pieces.values() if word is not None and label(group, p.words) == word}
    of_name = {p.shape for p in target.pieces.values() if p.last == piece.last}
    for shapes in (of_name, of_word):
        as_is, turned = piece.shape in shapes, piece.shape[::-1] in shapes
        if as_is != turned:
            return turned
    return None


def _agreement(source: Canon, target: Canon, turned: set[Name]) -> int:
    """Return how many tensors have the same order on both sides if the matrices of the source named in TURNED are
    transposed.

    The source has the order of its state dict, the target that of execution, without the tensors that are not used.
    Tensors are equal if their roles and their sizes, without sizes of 1, are.
    """
    from difflib import SequenceMatcher

    a = [
        (p.role, squeezed(p.shape[::-1] if p.name in turned else p.shape))
        for p in sorted(source.pieces.values(), key=lambda p: p.order)
    ]
    in_use = [p for p in target.pieces.values() if p.used is not None]
    b = [
        (p.role, squeezed(p.shape))
        for p in sorted(in_use or target.pieces.values(), key=lambda p: (p.used or 0, p.order))
    ]
    return sum(block.size for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())


def general_dense(source: Canon, target: Canon) -> None:
    """Reshape kernels of the source with a dimension for the heads ([in, heads, width] or [heads, width, out]) to
    matrices [in, out]. A bias with several dimensions is made flat, if the target has no tensor of its sizes, and its
    kernel was reshaped, or it has no kernel and the target has a vector of its length.

    How many of the first dimensions of a kernel, with three to five dimensions, are inputs follows from the sizes of
    its bias, of the biases in other layers of the module, or of the target's matrices. A kernel for which none of these
    tells stays as it is.
    """
    wanted = matrices_wanted(target)
    theirs = Counter(p.shape for p in target.pieces.values())
    kernels = [p for p in source.pieces.values() if p.leaf in table().inputs_first and 2 < len(p.shape) < 6]
    inputs: dict[Name, int] = {}
    of_heads: dict[_Path, set[Shape]] = defaultdict(set)
    for piece in kernels:
        bias = source.pieces.get(piece.name.beside("bias"))
        if bias is not None and len(bias.shape) > 1 and piece.shape[-len(bias.shape) :] == bias.shape:
            inputs[piece.name] = len(piece.shape) - len(bias.shape)
            of_heads[piece.path[:-1]].add(bias.shape)
    for piece in kernels:
        beside = of_heads[piece.path[:-1]]
        if piece.name not in inputs:
            found = next((len(s) for s in beside if piece.shape[: len(s)] == s and len(piece.shape) > len(s)), 0)
            as_convolution = tuple(piece.shape[d] for d in _TURNED[len(piece.shape)])
            if not found and not theirs[as_convolution]:
                found = next((k for k in range(1, len(piece.shape)) if _wanted(piece, k, wanted)), 0)
            if found:
                inputs[piece.name] = found
    for piece in kernels:
        if piece.name in inputs:
            k = inputs[piece.name]
            _flat(source, piece, (prod(piece.shape[:k]), prod(piece.shape[k:])))
    for piece in list(source.pieces.values()):
        if piece.role == "bias" and len(piece.shape) > 1 and not theirs[piece.shape]:
            flat = (prod(piece.shape),)
            weight = piece.name.beside("weight")
            if weight in inputs or (theirs[flat] and weight not in source.pieces):
                _flat(source, piece, flat)


_Path = tuple[str, ...]


def _wanted(kernel: Piece, inputs: int, wanted: Counter[Shape]) -> bool:
    """Return whether KERNEL, flattened to a matrix whose inputs are its first INPUTS dimensions, is in WANTED, [out,
    in] -> how many, as a whole or, if its name is that of a fused projection, as one of its parts.
    """
    rows, columns = prod(kernel.shape[inputs:]), prod(kernel.shape[:inputs])
    kind = fused_kind(kernel)
    parts = len(kind.parts) if kind is not None and rows % len(kind.parts) == 0 else 1
    return wanted[rows, columns] > 0 or wanted[rows // parts, columns] > 0


def matrices_wanted(side: Canon) -> Counter[Shape]:
    """Return sizes -> how many tensors of SIDE have them. The parts of a matrix [rows, in] that its name calls fused
    count, too, beside the whole.
    """
    wanted = Counter(p.shape for p in side.pieces.values())
    for piece in side.pieces.values():
        kind = fused_kind(piece) if piece.role == "weight" and len(piece.shape) == 2 else None
        if kind is not None and piece.shape[0] % len(kind.parts) == 0:
            wanted[piece.shape[0] // len(kind.parts), piece.shape[1]] += len(kind.parts)
    return wanted


def _flat(source: Canon, piece: Piece, shape: Shape) -> None:
    source.become(piece, [(replace(piece, shape=shape), partial(ex.reshape, shape=shape))], unchanged)
