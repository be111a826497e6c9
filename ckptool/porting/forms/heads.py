"""Heads of an attention: projections with a dimension for them, and keys and values with fewer heads than the queries,
or without a bias.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import cut, label, table
from .fusing.projections import fused_by_name, heads_of, part_label
from .layouts import is_bare, matrices_wanted
from .pieces import Canon, Piece, squeezed
from .stacked import fits_inside, numbered_lists

#: Parts of an attention that take its inputs.
_PARTS = ("q", "k", "v")


def flat_heads(one: Canon, other: Canon) -> None:
    """Reshape weights of ONE with three dimensions above 1, one of them for the heads ([heads, in, width], …), to
    matrices [out, in], if it is known which dimensions are inputs (`_inputs`); the others are the outputs. A bias with
    two dimensions and as many numbers as outputs then becomes a vector.

    Weight and bias stay as they are if OTHER has a tensor of the sizes of the weight, or a numbered list of as many
    members as the first dimension is long, with tensors of the other two sizes (in either order, or a fused part:
    `fits_inside`).
    """
    deep = [p for p in one.pieces.values() if p.role == "weight" and len(p.shape) == 3 and min(p.shape) > 1]
    if not deep:
        return
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    lists = numbered_lists(other)
    wanted = matrices_wanted(other)
    beside = _widths_beside(one, deep)
    for piece in deep:
        if theirs[piece.shape] or fits_inside(piece, lists.get(piece.shape[0], set())):
            continue
        bias = one.pieces.get(piece.name.beside("bias"))
        inputs = _inputs(piece, bias, wanted, beside[piece.path[:-1]])
        if inputs:
            rows = _as_matrix(one, piece, inputs)
            if bias is not None and len(bias.shape) == 2 and prod(bias.shape) == rows:
                one.reshape(bias, (rows,))


def _as_matrix(one: Canon, piece: Piece, inputs: Sequence[int]) -> int:
    """Reshape the projection PIECE of ONE to a matrix [out, in], where the dimensions INPUTS are the inputs and the
    others the outputs. Return the number of its rows.
    """
    outputs = [d for d in range(len(piece.shape)) if d not in inputs]
    rows = prod(piece.shape[d] for d in outputs)
    one.reshape(one.permute(piece, (*outputs, *inputs)), (rows, prod(piece.shape) // rows))
    return rows


def flat_vectors(one: Canon, other: Canon) -> None:
    """Flatten biases [heads, width] of ONE, which a relative attention adds to its queries (Dai et al.,
    "Transformer-XL", 2019), to the vectors that OTHER has.

    All bare matrices of ONE (`is_bare`: an `nn.Parameter` that is no weight of a layer) of one size, with both
    dimensions above 1, are flattened if just as many biases of ONE have this size, OTHER has no bias of this size, and
    OTHER has more biases of the flat size than ONE, by at least the number of these matrices. A bias is here a tensor
    with a name such as `q_bias` (`_is_bias`).
    """
    own, theirs = (Counter(p.shape for p in side.pieces.values() if _is_bias(p)) for side in (one, other))
    by_heads = Counter(
        p.shape for p in one.pieces.values() if len(squeezed(p.shape)) == len(p.shape) == 2 and is_bare(p)
    )
    for shape, count in by_heads.items():
        flat = (prod(shape),)
        if count != own[shape] or theirs[shape] or theirs[flat] - own[flat] < count or 0 in shape:
            continue
        for piece in [p for p in one.pieces.values() if p.shape == shape and is_bare(p)]:
            one.reshape(piece, flat)


def _is_bias(piece: Piece) -> bool:
    """Return whether the last component of PIECE's key has the word "bias" behind other words (`q_bias`); a plain
    `bias` does not.
    """
    return "bias" in cut(piece.leaf)[1:]


def _widths_beside(one: Canon, deep: Sequence[Piece]) -> dict[tuple[str, ...], set[Shape]]:
    """Return path of a module of ONE -> sizes [heads, width] of the biases of projections directly in it. Only
    projections of DEEP count, weights with three dimensions, whose bias has the sizes of the last two and not those of
    the first two, so that they are [in, heads, width]. The set is empty for other modules.
    """
    found: dict[tuple[str, ...], set[Shape]] = defaultdict(set)
    for piece in deep:
        bias = one.pieces.get(piece.name.beside("bias"))
        if bias is not None and bias.shape == piece.shape[1:] != piece.shape[:2]:
            found[piece.path[:-1]].add(bias.shape)
    return found


def _inputs(piece: Piece, bias: Piece | None, wanted: Counter[Shape], beside: Collection[Shape]) -> list[int]:
    """Return which dimensions of PIECE, a projection [heads, in, width] or similar, are inputs; [] if nothing shows it.

    The first of these that shows it counts: the einsum equation in the code of PIECE, if each dimension is either an
    input or an output there, and both occur; biases (`_inputs_by_biases`); or the only way to make a matrix that the
    other side has (`_inputs_by_size`).
    Args:
        piece: the projection, with three dimensions.
        bias: its bias, or None.
        wanted: sizes of matrices that the other side has.
        beside: the sizes [heads, width] of the biases of other projections in the module (`_widths_beside`).
    """
    told: Sequence[str] = piece.entry.facts.dims
    if len(told) == 3 and set(told) == {"input", "output"}:
        return [d for d, kind in enumerate(told) if kind == "input"]
    return _inputs_by_biases(piece, bias, wanted, beside) or _inputs_by_size(piece, wanted)


def _inputs_by_biases(piece: Piece, bias: Piece | None, wanted: Counter[Shape], beside: Collection[Shape]) -> list[int]:
    """Return which dimensions of the projection PIECE, with three dimensions, are inputs, as biases show: [2], [0] or
    [0, 1]; [] if they do not show it. The arguments are those of `_inputs`. The first that applies counts:

      - [2] for queries, keys and values by name, if BIAS has the sizes of the first two dimensions;
      - [0] if BIAS has the sizes of the last two dimensions, and not those of the first two;
      - [0, 1] for other projections (an output), if the sizes of the first two dimensions are in BESIDE, and those of
        the last two are not, and the other side has a matrix [third size, product of the first two].
    """
    is_part = label(table().group("attention"), piece.words) in _PARTS
    if is_part and bias is not None and bias.shape == piece.shape[:2]:
        return [2]
    if bias is not None and bias.shape == piece.shape[1:] != piece.shape[:2]:
        return [0]
    takes = piece.shape[:2] in beside and piece.shape[1:] not in beside
    return [0, 1] if takes and not is_part and wanted[piece.shape[2], prod(piece.shape[:2])] else []


def _inputs_by_size(piece: Piece, wanted: Counter[Shape]) -> list[int]:
    """Return which dimensions of the projection PIECE, with three dimensions, are inputs, if exactly one choice gives a
    matrix [outputs, inputs] whose sizes are in WANTED: one dimension for queries, keys, values and positions, two for
    an output, the last two for a table of other embeddings (segments), whose rows stay. The name of PIECE says which
    of these it is. [] if several choices fit, or none, and for other names.
    """
    said, rows = (label(table().group(group), piece.words) for group in ("attention", "embedding"))
    ways: list[list[int]] = []
    if said in _PARTS or rows == "position":
        ways = [[0], [1], [2]]
    elif said == "o":
        ways = [[1, 2], [0, 2], [0, 1]]
    elif rows is not None:
        ways = [[1, 2]]
    sizes = [(prod(piece.shape) // (n := prod(piece.shape[d] for d in way)), n) for way in ways]
    fitting = [way for way, size in zip(ways, sizes, strict=True) if wanted[size]]
    return fitting[0] if len(fitting) == 1 else []


def repeat_shared_heads(source: Canon, target: Canon) -> None:
    """Repeat the heads of the attention's keys and values of the source, and of their biases, so that they have as many
    rows as the queries, in each attention of the source that names all three (`_attentions`). All of these have to be
    so:

    - All weights for keys in the model have one size: as many rows as these queries, and the other sizes of the
      source's weight for keys. The model's code shows the number of heads.
    - Keys and values of the source have equal sizes, with fewer rows than the queries: a divisor of the number of rows
      of the queries, and whole heads, where a head has the rows of the queries divided by the number of heads.

    Queries that share a head are usually adjacent (Ainslie et al., "GQA: Training Generalized Multi-Query Transformer
    Models", 2023), so each head is repeated in place. Other code repeats all heads one after the other; therefore this
    is a question, unless there is only one head.
    """
    wanted = _heads(target)
    for parts in _attentions(source):
        if parts["k"].shape != parts["v"].shape:
            continue
        rows, fewer, rest = parts["q"].shape[0], parts["k"].shape[0], parts["k"].shape[1:]
        heads = wanted.get((rows, *rest), 0)
        if not 0 < fewer < rows or rows % fewer or heads == 0 or rows % heads or fewer % (rows // heads):
            continue
        for piece in (parts["k"], parts["v"]):
            for role in ("weight", "bias"):
                own = source.pieces.get(piece.name.beside(role))
                if own is not None and own.shape[:1] == (fewer,):
                    _repeat(source, own, fewer * heads // rows, rows // fewer)


def add_key_biases(source: Canon, target: Canon) -> None:
    """Add a bias of zeros for the keys of an attention to the pieces of the source, one zero for each row of the weight
    for the keys and without a question, in each attention of the source (`_attentions`) that has biases for queries and
    values and none for keys. Nothing is done if the model has no bias for the keys of an attention.

    A bias for keys does not change the result of an attention, and some code has none.
    """
    if not any(part_label(p.path) == "k" and p.role == "bias" for p in target.pieces.values()):
        return
    for parts in _attentions(source):
        biases = {part: source.pieces.get(p.name.beside("bias")) for part, p in parts.items()}
        value = biases["v"]
        if biases["q"] is not None and value is not None and biases["k"] is None:
            shape = parts["k"].shape[:1]
            made = replace(value, shape=shape, expr=ex.zeros(*shape), questions=())
            source.put(made.moved_to(parts["k"]))


def _attentions(source: Canon) -> list[dict[str, Piece]]:
    """Return part ("q", "k", "v") -> its weight, one dict for each module of SOURCE that has all three by name, as
    layers in it, or as the parts into which a fused projection in it was split. Weights have two or more dimensions;
    modules that lack one of the three are left out. If a module has several for one part, the last counts.
    """
    blocks: dict[tuple[str, ...], dict[str, Piece]] = defaultdict(dict)
    for piece in source.pieces.values():
        label = part_label(piece.path)
        if label in _PARTS and piece.role == "weight" and len(piece.shape) > 1:
            inside = 2 if fused_by_name(piece.entry.key) else 1  # a fused projection that was taken apart is a module
            blocks[piece.path[:-inside]][label] = piece
    return [parts for parts in blocks.values() if len(parts) == 3]


def _heads(target: Canon) -> dict[Shape, int]:
    """Return {sizes of the weights for keys in the model: number of heads into which its code splits the keys}. The
    number is 0 if the code does not show it, and that of the last weight if it shows several. {} if the weights have
    several sizes, or if no weight of the model is one for keys by its name.
    """
    keys = [p for p in target.pieces.values() if part_label(p.path) == "k" and p.role == "weight" and len(p.shape) > 1]
    found = {p.shape: heads_of(p.entry) or p.entry.facts.heads for p in keys}
    return found if len(found) == 1 else {}


def _repeat(source: Canon, piece: Piece, groups: int, times: int) -> None:
    """Replace PIECE, a weight or bias of keys or values, by one in which each of GROUPS groups of rows (its heads) is
    repeated TIMES times in place. With several groups it gets a question, with all groups repeated one after the other
    as its option.
    """
    make: Callable[[Expr], Expr] = partial(_in_place, groups=groups, times=times)
    made = replace(piece, shape=(piece.shape[0] * times, *piece.shape[1:]))
    if groups > 1:
        made = made.asking(Reason.SHARED_HEADS, str(groups), str(times), option=ex.cat(0, *[piece.expr] * times))
    source.change(piece, made, make)


def _in_place(e: Expr, *, groups: int, times: int) -> Expr:
    """Return E with each of GROUPS groups of rows repeated TIMES times in place."""
    return ex.by_heads(groups, *[e] * times) if groups > 1 else ex.cat(0, *[e] * times)
