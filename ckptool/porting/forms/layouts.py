"""Bring matrices and kernels with inputs first, or with a dimension for the heads, into torch's layout."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import replace
from math import prod

from ...model_code.signature import PRODUCTS, Entry
from .. import expression as ex
from ..expression import Shape
from ..questions import Reason
from ..words import label, table
from .fusing.projections import fused_kind
from .pieces import Canon, Name, Piece, squeezed
from .roles import components

_Path = tuple[str, ...]

#: Functions that multiply element by element.
_BY_ELEMENT = frozenset("mul multiply __mul__ __rmul__ mul_ __imul__".split())

_TURNED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}


def torch_layout(canon: Canon, piece: Piece, bare: Collection[Shape]) -> None:
    """Bring PIECE of the side CANON from inputs first into torch's layout (outputs first), if its use or its name says
    that it has inputs first; else leave it as it is, as a piece that is in torch's layout already (`placed`). The first
    case that applies decides:

      - on the target, the forward pass or the name `kernel` (`_is_stored_turned`);
      - for a matrix of the source, unless its name says that inputs are first (`kernel`), the source's code, if that
        shows the layout. Such a matrix is also marked as `placed`, transposed or not;
      - for the source, the name: of a depthwise kernel (`_turn_depthwise`), or others (`_layout_of_name`).

    In the last case, a tensor with three dimensions and sizes in BARE, those of bare parameters of the model, is left
    as it is, unless its name is that of a depthwise kernel.
    """
    if piece.placed:
        return
    named = piece.leaf in table().inputs_first
    shown = not named and len(piece.shape) == 2 and piece.entry.facts.inputs_first is not None
    if shown and not canon.is_target:
        piece = canon.pieces[piece.name] = replace(piece, placed=True)
    if shown or canon.is_target:
        if _is_stored_turned(piece):
            turn(canon, piece)
    elif piece.leaf in table().depthwise and len(piece.shape) in (3, 4):
        _turn_depthwise(canon, piece)
    elif len(piece.shape) != 3 or piece.shape not in bare:
        _layout_of_name(canon, piece)


def _is_stored_turned(piece: Piece) -> bool:
    """Return whether the tensor PIECE has inputs first, in one of two cases:

      - The forward pass multiplies with it so, and it has two or more dimensions. This does not count for a tensor of
        three or more of which an einsum shows that each is of inputs or of outputs (a projection with heads). For a
        table that a product with `one_hot` looks up (`_as_tables`), the product has to take its columns instead.
      - It is called `kernel` (`_is_called_kernel`).

    False for the weight of an `Embedding`.
    """
    facts = piece.entry.facts
    of_heads = len(piece.shape) > 2 and {*facts.dims} == {"input", "output"}
    used_so = facts.inputs_first and len(piece.shape) > 1 and not of_heads
    if piece.entry.how == "embedding" and facts.looked_up:
        used_so = facts.inputs_first is False
    return bool(used_so or _is_called_kernel(piece)) and piece.entry.module != "Embedding"


def _is_called_kernel(piece: Piece) -> bool:
    """Return whether PIECE, a tensor of the target, is a matrix whose name says that inputs are first (`kernel`). False
    if the forward pass or the class of its module shows the layout (`_unseen`), which then decides, and if the forward
    pass multiplies the matrix element by element.
    """
    named = len(piece.shape) == 2 and piece.leaf in table().inputs_first
    return named and _unseen(piece.entry) and piece.entry.how not in _BY_ELEMENT


def _turn_depthwise(canon: Canon, piece: Piece) -> None:
    """Bring the depthwise kernel PIECE, [size…, in, n] with n outputs for each input, into torch's layout [in * n, 1,
    size…].
    """
    rank = len(piece.shape)
    made = canon.permute(piece, (*range(rank - 2, rank), *range(rank - 2)))
    inputs, multiplier, *size = made.shape
    if multiplier != 1:
        canon.reshape(made, (inputs * multiplier, 1, *size))


def _layout_of_name(canon: Canon, piece: Piece) -> None:
    """Bring PIECE of the source CANON from [size…, in, out] into torch's layout, [out, in, size…], if its name says
    that inputs are first (`kernel`) and it has two to five dimensions. Beside a `recurrent_kernel` in the same module,
    such a weight also gets the role `weight_ih`, and a `bias` of one or two dimensions the role `bias_ih`. Other pieces
    stay as they are.
    """
    rank = len(piece.shape)
    recurrent = canon.pieces.get(piece.name.beside("weight_hh"))
    of_cell = recurrent is not None and recurrent.leaf == "recurrent_kernel"
    if piece.leaf in table().inputs_first and rank in _TURNED:
        if piece.role == "weight" and of_cell:
            piece = canon.change(piece, replace(piece, role="weight_ih"))
        canon.permute(piece, _TURNED[rank]) if rank != 2 else turn(canon, piece)
    elif piece.leaf == "bias" and of_cell and rank in (1, 2):
        canon.change(piece, replace(piece, role="bias_ih"))


def turn(canon: Canon, piece: Piece) -> Piece:
    """Transpose PIECE in its side CANON (swap its last two dimensions), and return the new piece, which has the same
    name.
    """
    shape = (*piece.shape[:-2], piece.shape[-1], piece.shape[-2])
    return canon.change(piece, replace(piece, shape=shape), ex.transpose, ex.transpose)


def turn_all(one: Canon, other: Canon) -> None:
    """Bring all pieces of ONE that have inputs first, by their name or use, into torch's layout (see `torch_layout`).
    Before that, matrices of ONE that a product with `one_hot` looks up are marked as embedding tables, if OTHER has
    them as tables (`_as_tables`). OTHER, the other side, is not changed.

    Tensors of the source with three dimensions and the sizes of a bare parameter of OTHER (`is_bare`: an `nn.Parameter`
    that is no weight of a layer) stay as they are, unless OTHER has a tensor with these sizes reversed that is not
    bare.
    """
    _as_tables(one, other)
    bare = {p.shape for p in other.pieces.values() if is_bare(p)} - {
        p.shape[::-1] if len(p.shape) == 3 else () for p in other.pieces.values() if not is_bare(p)
    }
    for piece in list(one.pieces.values()):
        torch_layout(one, piece, bare)


def _as_tables(one: Canon, other: Canon) -> None:
    """Mark matrices of ONE that a product with `one_hot` looks up as embedding tables: `how` of their entries becomes
    "embedding". This is done for each such matrix without a bias whose layout the code shows, if OTHER has an embedding
    table with its role and its sizes, rows first, and no `nn.Linear` with a weight of its role and of these sizes
    reversed: code writes such a layer either as a table or as a linear layer.
    """
    looked_up = [p for p in one.pieces.values() if p.entry.facts.looked_up and p.entry.facts.inputs_first is not None]
    for piece in looked_up:
        rows_first = piece.shape if piece.entry.facts.inputs_first else piece.shape[::-1]
        alike = [p for p in other.pieces.values() if p.role == piece.role and p.shape in (rows_first, rows_first[::-1])]
        tables = [p for p in alike if p.shape == rows_first and p.entry.how == "embedding"]
        linear = [p for p in alike if p.shape == rows_first[::-1] and p.entry.module == "Linear"]
        if tables and not linear and piece.name.beside("bias") not in one.pieces:
            one.pieces[piece.name] = replace(piece, entry=replace(piece.entry, how="embedding"))


def turn_by_vote(canon: Canon) -> None:
    """Transpose the matrices of CANON (`_may_be_turned`) that have inputs first, as the lengths of their biases show.

    A matrix whose rows or columns, but not both, are as many as the bias has values is a vote for its layout. All
    matrices of layers with one name (`kin`: `fc1` and `fc2` are "fc", in any module) then get the layout with more
    votes, also those that voted otherwise; if none of them has a vote, that with more votes in the whole side. A tie
    changes nothing. Stacked matrices [n, in, out] and single ones vote apart, and so do tensors as they are and members
    selected from a stack (`_held`).
    """
    votes: dict[tuple[object, str], Counter[bool]] = defaultdict(Counter)
    everywhere: dict[object, Counter[bool]] = defaultdict(Counter)
    matrices = [p for p in canon.pieces.values() if _may_be_turned(canon, p)]
    for piece in matrices:
        values = canon.pieces[piece.name.beside("bias")].shape[-1]
        rows, columns = (n == values for n in piece.shape[-2:])
        if rows != columns:
            votes[_held(piece), kin(piece)][columns] += 1
            everywhere[_held(piece)][columns] += 1
    for piece in matrices:
        vote = votes.get((_held(piece), kin(piece))) or everywhere[_held(piece)]
        if vote[True] > vote[False]:
            turn(canon, piece)


def _may_be_turned(canon: Canon, piece: Piece) -> bool:
    """Return whether PIECE of CANON is a weight with two dimensions, or a stack of such weights with three, that has
    its bias beside it (`_has_its_bias`), and whose layout nothing states: neither the file nor, for the target, the
    forward pass or the class of the module. False for a tensor of the source that a step has changed, unless it is a
    member selected from a stack.
    """
    seen = piece.placed or (canon.is_target and not _unseen(piece.entry))
    taken_whole = piece.expr.is_copy or ex.is_selected(piece.expr)
    is_matrix = piece.role == "weight" and len(piece.shape) in (2, 3)
    return is_matrix and taken_whole and not seen and _has_its_bias(canon, piece)


def _has_its_bias(canon: Canon, weight: Piece) -> bool:
    """Return whether CANON has the bias of WEIGHT: under the same path, and with a key in the same module as the key of
    WEIGHT. It has to be a vector for a matrix, and [n, k] or [n, 1, k] for a stack of n; its length k does not matter.
    """
    bias = canon.pieces.get(weight.name.beside("bias"))
    if bias is None or not bias.shape or squeezed(bias.shape[:-1]) != squeezed(weight.shape[:-2]):
        return False
    return components(bias.entry.key)[:-1] == components(weight.entry.key)[:-1]


def _held(piece: Piece) -> tuple[int, bool]:
    """Return (number of dimensions of PIECE, whether its expression is a copy). Matrices of one name vote on their
    layout only with those that have an equal result here.
    """
    return len(piece.shape), piece.expr.is_copy


def _unseen(entry: Entry) -> bool:
    """Return whether the layout of the weight ENTRY of the target is open: its forward pass does not show it, does not
    take the weight by `linear`, and the class of its module is none of those whose layout is known (`Linear`,
    `Embedding`).
    """
    told = entry.facts.inputs_first is not None or entry.how == "linear"
    return not told and entry.module not in ("Linear", "Embedding", "NonDynamicallyQuantizableLinear")


def kin(piece: Piece) -> str:
    """Return the last component of PIECE's path that is no number, without digits in it ("fc2" -> "fc"); "" if there is
    none. All layers with this name have one layout.
    """
    return next((re.sub(r"\d+", "", c) for c in reversed(piece.path) if not c.isdecimal()), "")


def follow_names(source: Canon, target: Canon) -> None:
    """Transpose each matrix of the source whose namesake the model stores with inputs first, if both are stored with
    equal sizes: tensors with one name and one shape usually have one layout. Namesakes have the longest common end of
    their paths (`_pairs_by_name`). A matrix whose namesake is stored with other sizes stays.

    Nothing is done if, among the pairs that are not square, more are stored with different sizes than with equal ones.
    A matrix is not transposed, but gets a question with the transposed matrix as its option, if all of these are true:
    all pairs are square, the source lacks a key of a parameter of the model, and the model's matrix is the weight of a
    torch layer (not `is_bare`).
    """
    pairs = _pairs_by_name(source, target)
    votes = Counter(own.shape == piece.entry.shape for piece, own in pairs if piece.shape[-1] != piece.shape[-2])
    if votes[False] > votes[True]:
        return
    keys = {key for key, entry in target.signature.entries.items() if entry.parameter is not False}
    sure = votes[True] > 0 or keys <= set(source.signature.entries)
    for piece, own in [(piece, own) for piece, own in pairs if own.shape == piece.entry.shape]:
        if sure or is_bare(piece):
            turn(source, own)
        else:
            source.pieces[own.name] = own.asking(Reason.INPUTS_FIRST, option=ex.transpose(own.expr))


def _pairs_by_name(source: Canon, target: Canon) -> list[tuple[Piece, Piece]]:
    """Return (matrix of the target, tensor of the source) for each matrix that the model stores with inputs first
    (`is_turned`), if exactly one tensor of the source with its role shares the longest end of the path with it
    (`_namesakes`). Other matrices are left out. Only tensors of the source count that have two or more dimensions,
    whose dimensions no step has changed, and whose layout the file does not state. Sizes do not matter.
    """
    ends: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in source.pieces.values():
        stored = len(piece.shape) > 1 and piece.is_laid_out_as_stored and not piece.placed
        for at in range(len(piece.path)) if stored else ():
            ends[piece.path[at:]].append(piece)
    found = [(piece, _namesakes(piece, ends)) for piece in target.pieces.values() if is_turned(target, piece)]
    return [(piece, near[0]) for piece, near in found if len(near) == 1]


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
    """Transpose those bare matrices of the source (`is_bare`: parameters that are no weights of torch layers) that have
    inputs first, as the sizes of the target's tensors in the common form show. Square ones stay.

    First, weights, bare or not, are transposed if their sizes are those in which the model stores a matrix with inputs
    first, and no tensor of the target has them (`_turn_stored_alike`). Then come the bare ones whose transposed sizes a
    tensor of the target has (`_may_be_transposed`). One whose present sizes no tensor of the target has is transposed.
    For other single matrices, names decide: a matrix is transposed if tensors of the target with such names have the
    transposed sizes, and stays if these have the present ones (`_said`). If names show neither, the order of all
    tensors decides whether all such matrices are transposed, stay, or get a question (`_turn_by_order`). Stacks that
    fit both ways stay.
    """
    wanted = {squeezed(p.shape) for p in target.pieces.values()}
    _turn_stored_alike(source, target, wanted)
    left = []
    for p in _may_be_transposed(source, target, wanted):
        if p.shape not in wanted:
            turn(source, p)
        elif len(p.shape) == 2:
            said = _said(p, target)
            if said:
                turn(source, p)
            elif said is None:
                left.append(p)
    if left:
        _turn_by_order(source, target, left)


def _turn_stored_alike(source: Canon, target: Canon, wanted: Collection[Shape]) -> None:
    """Transpose each weight of the source that has the sizes of a key in which the model stores a matrix with inputs
    first (`is_turned`), if WANTED, the sizes of the target's pieces, does not have them. WANTED is without sizes of 1.
    Tensors whose dimensions a step has changed, and those whose layout the file states, stay.
    """
    weights = [p for p in source.pieces.values() if p.role == "weight" and not p.placed and p.is_laid_out_as_stored]
    _leave_stored_alike(weights, target)
    stored = {p.entry.shape for p in target.pieces.values() if is_turned(target, p)}
    for p in [p for p in weights if p.shape in stored and squeezed(p.shape) not in wanted]:
        turn(source, p)


def _leave_stored_alike(weights: Sequence[Piece], target: Canon) -> None:
    """Take back the transposition of the target's stacks of one stored size (three dimensions or more), if the model
    stores some with inputs first and some not, and WEIGHTS, those of the source that no step has changed, have just as
    many of this size: the two sides then most likely store each stack alike.
    """
    theirs = Counter(p.shape for p in weights)
    for shape, count in theirs.items():
        stacks = [p for p in target.pieces.values() if p.entry.shape == shape and len(shape) > 2]
        turned = [p for p in stacks if is_turned(target, p)]
        if len(stacks) == count > len(turned) > 0:
            for p in turned:
                turn(target, p)


def _may_be_transposed(source: Canon, target: Canon, wanted: Collection[Shape]) -> list[Piece]:
    """Return the bare matrices of the source (`is_bare`), and stacks of them (three dimensions), that are not square
    and whose transposed sizes are in WANTED, the sizes of the target's tensors. All of one size are left out if the
    target has exactly as many bare parameters of the same size, not transposed, that its forward pass uses otherwise
    than in matrix products: these are most likely the same.
    """
    bare = [p for p in source.pieces.values() if is_bare(p) and len(p.shape) in (2, 3)]
    fitting = [p for p in bare if p.shape[-1] != p.shape[-2] and (*p.shape[:-2], p.shape[-1], p.shape[-2]) in wanted]
    by_element = Counter(p.shape for p in target.pieces.values() if is_bare(p) and p.entry.how not in (*PRODUCTS, ""))
    own = Counter(p.shape for p in fitting)
    return [p for p in fitting if own[p.shape] != by_element[p.shape]]


def _turn_by_order(source: Canon, target: Canon, matrices: Sequence[Piece]) -> None:
    """Transpose all MATRICES of the source, if the order of all tensors of the source then agrees better with that of
    the target (`_agreement`); leave all as they are if it then agrees less. If it agrees equally well, all stay, and
    each gets a question without an option.
    """
    as_is = _agreement(source, target, set())
    turned = _agreement(source, target, {p.name for p in matrices})
    for p in matrices if turned >= as_is else ():
        if turned > as_is:
            turn(source, p)
        else:
            source.pieces[p.name] = p.asking(Reason.INPUTS_FIRST)


def _said(piece: Piece, target: Canon) -> bool | None:
    """Return whether tensors of the target with the last name of PIECE, a matrix of the source, have its sizes reversed
    (True) or as they are (False).

    If none of them has either, or they have both, the tensors that are by their names the same part of a feed-forward
    block as PIECE (gate, up, down) are looked at in the same way. None if these do not show it either.
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

    The source has the order of its state dict, the target that of execution, without the tensors that are not used; if
    no use is known, that of its state dict. Tensors are equal if their roles and their sizes, without sizes of 1, are.
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
    """Reshape kernels of the source, tensors whose name says that inputs are first (`kernel`), with a dimension for the
    heads ([in, heads, width] or [heads, width, out]) to matrices [in, out], if it is known which dimensions are inputs
    (`_inputs_of`). Other kernels stay as they are.

    A bias with two or more dimensions is made flat if the target has no tensor of its sizes, and either its kernel was
    reshaped, or it has no kernel and the target has a vector of its length.
    """
    theirs = Counter(p.shape for p in target.pieces.values())
    inputs = _inputs_of(source, target)
    for name, first in inputs.items():
        piece = source.pieces[name]
        source.reshape(piece, (prod(piece.shape[:first]), prod(piece.shape[first:])))
    for piece in list(source.pieces.values()):
        flat, weight = (prod(piece.shape),), piece.name.beside("weight")
        of_heads = piece.role == "bias" and len(piece.shape) > 1 and not theirs[piece.shape]
        if of_heads and (weight in inputs or (theirs[flat] and weight not in source.pieces)):
            source.reshape(piece, flat)


def _inputs_of(source: Canon, target: Canon) -> dict[Name, int]:
    """Return name of a kernel of the source -> how many of its first dimensions are inputs, for tensors called `kernel`
    with three to five dimensions. The first of these that shows it counts; kernels for which none does are left out:

      - the bias of the kernel (`_inputs_by_bias`);
      - another kernel in the module around it (`attn.out` beside `attn.query`), whose outputs are known by its bias
        ([heads, width]): if the kernel begins with these sizes, they are its inputs, as those of an output projection
        are;
      - the matrices of the target (`_as_matrix_of`).
    """
    kernels = [p for p in source.pieces.values() if p.leaf in table().inputs_first and 2 < len(p.shape) < 6]
    inputs = _inputs_by_bias(source, kernels)
    of_heads: dict[_Path, list[Shape]] = defaultdict(list)
    for piece in kernels:
        if piece.name in inputs:
            of_heads[piece.path[:-1]].append(piece.shape[inputs[piece.name] :])
    wanted = matrices_wanted(target)
    shapes = {p.shape for p in target.pieces.values()}
    for piece in [p for p in kernels if p.name not in inputs]:
        heads = (s for s in of_heads[piece.path[:-1]] if len(s) < len(piece.shape) and piece.shape[: len(s)] == s)
        found = next(map(len, heads), 0) or _as_matrix_of(piece, wanted, shapes)
        if found:
            inputs[piece.name] = found
    return inputs


def _inputs_by_bias(source: Canon, kernels: Sequence[Piece]) -> dict[Name, int]:
    """Return name -> how many of the first dimensions are inputs, for those of KERNELS whose bias in SOURCE has two or
    more dimensions, and the last sizes of the kernel: these are the outputs.
    """
    inputs: dict[Name, int] = {}
    for piece in kernels:
        bias = source.pieces.get(piece.name.beside("bias"))
        if bias is not None and len(bias.shape) > 1 and piece.shape[-len(bias.shape) :] == bias.shape:
            inputs[piece.name] = len(piece.shape) - len(bias.shape)
    return inputs


def _as_matrix_of(kernel: Piece, wanted: Counter[Shape], shapes: Set[Shape]) -> int:
    """Return how many of the first dimensions of KERNEL are its inputs: the lowest number with which it becomes one of
    the matrices WANTED (`_wanted`). 0 if no number does, or if SHAPES has the sizes of KERNEL in torch's layout for
    convolutions.
    """
    if tuple(kernel.shape[d] for d in _TURNED[len(kernel.shape)]) in shapes:
        return 0
    return next((k for k in range(1, len(kernel.shape)) if _wanted(kernel, k, wanted)), 0)


def _wanted(kernel: Piece, inputs: int, wanted: Counter[Shape]) -> bool:
    """Return whether KERNEL, flattened to a matrix [outputs, inputs] whose inputs are its first INPUTS dimensions, is
    in WANTED, sizes -> how many matrices have them. It may be there as a whole, or, if its name is that of a fused
    projection, as one of its equal parts.
    """
    rows, columns = prod(kernel.shape[inputs:]), prod(kernel.shape[:inputs])
    kind = fused_kind(kernel)
    parts = len(kind.parts) if kind is not None and rows % len(kind.parts) == 0 else 1
    return wanted[rows, columns] > 0 or wanted[rows // parts, columns] > 0


def matrices_wanted(side: Canon) -> Counter[Shape]:
    """Return sizes -> how many tensors of SIDE have them, whatever their roles. A matrix [rows, in] with the name of a
    fused projection (`qkv`: queries, keys and values in one) counts as a whole, and also as its parts of equally many
    rows: [rows / 3, in] three times.
    """
    wanted = Counter(p.shape for p in side.pieces.values())
    for piece in side.pieces.values():
        kind = fused_kind(piece) if piece.role == "weight" and len(piece.shape) == 2 else None
        if kind is not None and piece.shape[0] % len(kind.parts) == 0:
            wanted[piece.shape[0] // len(kind.parts), piece.shape[1]] += len(kind.parts)
    return wanted
