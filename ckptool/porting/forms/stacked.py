"""Tensors that hold a list of layers or experts along their first dimension."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Question, Reason
from ..words import cut, label, table, telling_words
from .fusing.projections import fused_kind
from .layouts import turn
from .pieces import Canon, Name, Piece, squeezed

_Path = tuple[str, ...]

#: A member of a list: a number, or a name and a number ("expert_0").
_COUNTED = re.compile(r"(|.*[A-Za-z]_?)(\d+)\Z")

#: Path of the module around stacks, and number of their members.
_Group = tuple[_Path, int]

#: Number of layers, and (role, sizes) of the tensors of each layer.
_Look = tuple[int, tuple[tuple[str, Shape], ...]]


def unstack(one: Canon, other: Canon) -> None:
    """Split each stack of ONE, a tensor that holds all layers or experts of a list along its first dimension, into one
    tensor for each member: `experts.w1` [8, m, n] -> `experts.0.w1` … `experts.7.w1` [m, n].

    A tensor is a stack if OTHER has a numbered list of as many members (`_stacks`) with tensors of the member's sizes,
    also transposed or as equal parts of it (`_fitting`). Stacks of OTHER count as lists if a projection is fused on one
    side only (`_other_stacks`). Nothing is done if OTHER has no numbered list and no such stacks.

    Before that, stacks whose members are along the last dimension are permuted (`_members_first`), vectors for the
    layers of a list are split (`_unstack_vectors`), and flat matrices of experts are reshaped to stacks (`_stand_up`).
    The fitting stacks of a module are split together, if one of them has three dimensions or more; else only the scale
    and shift of a norm are split (`_by_own_path`), if both fit. Stacks of matrices with inputs first are transposed
    (`_laid_out`). Where sizes fit in several ways, a stack gets a question (`_doubt_dimension`, `_laid_out`).
    """
    lists, stacks = numbered_lists(other), _other_stacks(one, other)
    for n, shapes in stacks.items():
        lists[n] = lists.get(n, set()) | shapes
    if not lists:
        return
    moved = _members_first(one, other, lists)
    _unstack_vectors(one, other)
    _stand_up(one, other)
    groups, norms = _by_own_path(_stacks(one, other, lists, stacks), lists_of(other))
    called = _called(other)
    votes = {group: _turned(members, lists[group[1]], called) for group, members in groups.items()}
    everywhere: Counter[bool] = sum(votes.values(), Counter())
    held = {group: _fitting(members, lists[group[1]]) for group, members in groups.items()}
    known = {group: _known_dimensions(fitting, moved) for group, fitting in held.items()}
    for (path, n), members in groups.items():
        shown = known[path, n] or set().union(*known.values())
        fitting = [_doubt_dimension(one, p, moved, shown) for p in held[path, n]]
        is_norm = path in norms and len(fitting) == len(members)
        if is_norm or any(len(p.shape) > 2 for p in fitting):
            _unstack_group(one, path, fitting, lists[n], votes[path, n] or everywhere)


def _members_first(one: Canon, other: Canon, lists: Mapping[int, set[Shape]]) -> set[Name]:
    """Move the last dimension of each stack of ONE to the front that holds its members along the last: a kernel [in,
    out, n], as mixtures of experts have it in Keras, with n members. Return the names of the tensors that were moved.

    This is done if OTHER has a list of n members with matrices [in, out], in either order, no list of as many members
    as the first dimension is long, and no tensor with the name and sizes of the kernel. It is not done if the first two
    sizes are equal, because nothing then shows which of them are the inputs. Biases [out, n] in the module of such a
    kernel go with it, if the list also has vectors [out]. LISTS has number of members -> sizes of tensors in lists of
    OTHER.
    """
    kernels = [
        p
        for p in one.pieces.values()
        if p.role != "bias" and len(p.shape) == 3 and p.shape[0] not in lists and not other.has(p)
        if p.shape[0] != p.shape[1]  # else nothing shows which of the two are the inputs
        if not lists.get(p.shape[-1], set()).isdisjoint((p.shape[:2], p.shape[1::-1]))
    ]
    moved: set[Name] = set()
    for kernel in kernels:
        rows, n = kernel.shape[1:]
        near = (p for p in one.pieces.values() if p.path[:-1] == kernel.path[:-1] and p.shape == (rows, n))
        beside = [p for p in near if (p.role == "bias" or "bias" in cut(p.leaf)) and p.name not in moved]
        moved.add(one.permute(kernel, (2, 0, 1)).name)
        for bias in beside if (rows,) in lists[n] else ():
            moved.add(one.permute(bias, (1, 0)).name)
    return moved


def _known_dimensions(stacks: Sequence[Piece], moved: Set[Name]) -> set[bool]:
    """Return along which dimension STACKS, tensors of one module, hold their members as their sizes show: {True} for
    the last one, from where those with the names MOVED were moved to the front; {False} for the first one; both, or
    neither, if that is how it is. Only those show it that have a single dimension with as many members, and those whose
    layout the code shows.
    """
    return {p.name in moved for p in stacks if _is_shown(p) or p.shape.count(p.shape[0]) == 1}


def _doubt_dimension(one: Canon, piece: Piece, moved: Set[Name], shown: Set[bool]) -> Piece:
    """Return PIECE, a stack of ONE, with a question about the dimension that holds its members, if its second or third
    dimension is as long as its first, and nothing shows which of them holds the members. ONE then has the piece with
    the question in place of PIECE; else PIECE is returned as it is.

    The code may show it (`_is_shown`). Other stacks show it if SHOWN, the result of `_known_dimensions` for them, says
    that they all hold their members as PIECE does: along the last dimension if its name is in MOVED, else along the
    first. On the source, the options are all other ways to read PIECE that give members of these sizes; on the target
    there are none, because a member there would be made of all others.
    """
    n, rank = piece.shape[0], len(piece.shape)
    rest = tuple(range(3, rank))
    ways = [(*dims, *rest) for dims in permutations(range(min(rank, 3))) if dims[0]]
    ways = [dims for dims in ways if tuple(piece.shape[d] for d in dims) == piece.shape]
    if not ways or _is_shown(piece) or shown == {piece.name in moved}:
        return piece
    options = () if one.is_target else tuple(ex.permute(piece.expr, *dims) for dims in ways)
    doubted = piece.asked(Question(Reason.MEMBERS_ALONG, (str(n),), options))
    one.pieces[piece.name] = doubted
    return doubted


def _is_shown(piece: Piece) -> bool:
    """Return whether the forward pass shows which of the dimensions of the stack PIECE are those of its matrices."""
    return piece.entry.facts.inputs_first is not None or piece.entry.how == "linear"


def _stacks(one: Canon, other: Canon, lists: Collection[int], stacks: Collection[int]) -> dict[_Group, list[Piece]]:
    """Return (path without its last component, number of members) -> the tensors of ONE that may be stacks.

    A tensor may be a stack if it has two dimensions or more, its first size is in LISTS (the lengths of OTHER's lists),
    and OTHER has no tensor of its name and sizes. OTHER must also have fewer tensors of its sizes (without sizes of 1)
    than ONE, unless its first size is in STACKS (the lengths of OTHER's stacks, `_other_stacks`).

    A tensor of a module itself (`attend.W`, whose path is `attend`) is put into the group of `attend`, beside stacks
    one component below (`attend.a`), if there are any of as many members; else it is in the group of the module around
    `attend`.
    """
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    own = Counter(squeezed(p.shape) for p in one.pieces.values())
    groups: dict[_Group, list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if len(piece.shape) < 2 or piece.shape[0] not in lists or other.has(piece):
            continue
        if piece.shape[0] in stacks or theirs[squeezed(piece.shape)] < own[squeezed(piece.shape)]:
            groups[piece.path[:-1], piece.shape[0]].append(piece)
    for (path, n), members in groups.items():
        outer = groups.get((path[:-1], n), []) if path else []
        for piece in [p for p in outer if p.path == path]:
            outer.remove(piece)
            members.append(piece)
    return groups


def _fitting(members: Sequence[Piece], inside: set[Shape]) -> list[Piece]:
    """Return those of the stacks MEMBERS that can be split into members of a list: each element has sizes in INSIDE
    (`fits_inside`), or the stack is a bias whose weight is among them, because a bias is split as its weight is.
    """
    fits = {p.name: fits_inside(p, inside) for p in members}
    return [p for p in members if fits[p.name] or (p.role == "bias" and fits.get(p.name.beside("weight")))]


def _unstack_group(one: Canon, path: _Path, stacks: list[Piece], inside: set[Shape], votes: Counter[bool]) -> None:
    """Split STACKS of ONE, which have equally many members, into the members of one list at PATH: `PATH.0`, `PATH.1` ….

    Stacks with three dimensions are brought into torch's layout before (`_laid_out`, which takes INSIDE, the sizes of
    the members of the other side's list, and VOTES, the result of `_turned`). A lone stack whose own path is PATH first
    gets a longer path, if other tensors are below PATH (`_beside_others`); then the list is at this longer path.
    """
    if len(stacks) == 1 and stacks[0].path == path:
        stacks = [_beside_others(one, stacks[0])]
        path = stacks[0].path
    stacks = sorted(stacks, key=lambda p: p.order)
    first = stacks[0]
    stacks = [_laid_out(one, p, inside, votes) if len(p.shape) == 3 else p for p in stacks]
    _into_members(one, stacks, len(path), first)


def _unstack_vectors(one: Canon, other: Canon) -> None:
    """Split the tensors of a module of ONE, such as weight [n, d] and bias [n, d], or weight [n] and bias [n], into
    those of n layers (`MODULE.0`, `MODULE.1` …), if OTHER has exactly one list of n layers that hold just these roles,
    with vectors [d] or single numbers, and ONE exactly one such module, of which OTHER has no tensor by name and sizes.
    Else nothing is done.

    A lone weight [n] is split only if the last component of its path is also that of the layers in the list: `scale`
    for `layers.0.scale`. A lone weight [n, d], or a lone tensor of another role, is never split. If n equals d, the
    tensors of the layers get a question about the dimension (`_doubt_dimension`).

    A layer of one input has a vector as its weight; code that embeds numbers keeps all of these in one parameter.
    """
    modules = _modules_of_vectors(one, other)
    for (n, look), lists in _lists_of_vectors(other).items():
        found = modules.get((n, look), [])
        if look == (("weight", ()),):  # as many numbers may be much else
            found = [held for held in found if held[0].last in lists[0].below[-1:]]
        elif len(look) < 2:
            continue
        if len(lists) == len(found) == 1:
            first = found[0][0]
            stacks = [_doubt_dimension(one, p, set(), set()) for p in sorted(found[0], key=lambda p: p.order)]
            _into_members(one, stacks, len(first.path), first)


def _into_members(canon: Canon, stacks: Sequence[Piece], cut_at: int, first: Piece) -> None:
    """Replace each of STACKS in CANON by one tensor for each member of a list, cut along the first dimension. The
    number of the member is put behind the first CUT_AT components of the path: for 1, `experts.w1` -> `experts.0.w1`.

    STACKS hold all tensors of the members. The tensors of one member come one after the other, in the order of STACKS.
    Their places in the orders of registration and of execution begin at those of the stack FIRST (none of execution if
    it is not known for both stacks). Each keeps the questions of its stack, with their options cut as well.
    """
    for place, piece in enumerate(stacks):
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
        for i in range(piece.shape[0]):
            behind = (i * len(stacks) + place) * 1e-6
            made = replace(
                piece,
                path=(*piece.path[:cut_at], str(i), *piece.path[cut_at:]),
                shape=piece.shape[1:],
                order=first.order + behind,
                used=None if piece.used is None or first.used is None else first.used + behind,
            )
            new.append((made, partial(ex.select, dim=0, index=i)))
        canon.become(piece, new, lambda *e: ex.stack(*e))


def _lists_of_vectors(other: Canon) -> dict[_Look, list[List]]:
    """Return (number of layers, (role, sizes) of each tensor of a layer, sorted) -> one `List` for each list of such
    layers in OTHER, that of the layer's first tensor. Sizes of 1 are left out.

    Lists count only if their layers hold vectors alone, or single numbers alone, and equally many members have each of
    the tensors.
    """
    layers: dict[tuple[_Path, _Path], list[List]] = defaultdict(list)
    for found in lists_of(other):
        layers[found.around, found.below].append(found)
    wanted: dict[_Look, list[List]] = defaultdict(list)
    for held in layers.values():
        look = tuple(sorted((found.role, squeezed(found.shape)) for found in held))
        if {len(shape) for _, shape in look} in ({0}, {1}) and len({found.length for found in held}) == 1:
            wanted[held[0].length, look].append(held[0])
    return wanted


def _modules_of_vectors(one: Canon, other: Canon) -> dict[_Look, list[list[Piece]]]:
    """Return (n, (role, sizes without the first) of the tensors of a module) -> the tensors of each such module of ONE:
    all are [n] or [n, d], with n of 2 or more, and OTHER has none of them by name and sizes.
    """
    found: dict[_Look, list[list[Piece]]] = defaultdict(list)
    for held in [list(module.values()) for module in one.modules().values()]:
        n = held[0].shape[0] if held[0].shape else 0
        if n > 1 and all(len(p.shape) in (1, 2) and p.shape[0] == n and not other.has(p) for p in held):
            found[n, tuple(sorted((p.role, p.shape[1:]) for p in held))].append(held)
    return found


def _by_own_path(
    groups: dict[_Group, list[Piece]], lists: Sequence[List]
) -> tuple[dict[_Group, list[Piece]], set[_Path]]:
    """Return (the groups of stacks to split, the paths of norms among them).

    GROUPS has (path around the stacks, number of members) -> stacks, LISTS the lists of the other side. A group is kept
    as it is, unless the other side has the weights of this group as lists of their own, `fc.0` and not `0.fc`
    (`_sizes_alone`): then each of its stacks is put into the group of its own path. In a group so divided, a path with
    exactly two stacks of vectors [n, d], d a size of these lists, is a norm.
    """
    found: dict[_Group, list[Piece]] = defaultdict(list)
    norms: set[_Path] = set()
    for (path, n), members in groups.items():
        alone = _sizes_alone(members, [one for one in lists if one.length == n and one.role == "weight"])
        for piece in members:
            found[piece.path if alone else path, n].append(piece)
        vectors = Counter(p.path for p in members if len(p.shape) == 2 and squeezed(p.shape[1:]) in alone)
        norms |= {own for own, count in vectors.items() if count == 2}  # a scale and a shift
    return found, norms


def _sizes_alone(members: Sequence[Piece], lists: Sequence[List]) -> set[Shape]:
    """Return the sizes of the tensors that are members of LISTS themselves (`fc.0`, not `layers.0.fc`), if three things
    are true of the matrices in the stacks MEMBERS: they are of two or more stacks; each has one of these sizes, as it
    is or transposed; and none has the sizes of a tensor inside of a larger member (`layers.0.fc`). Else return an empty
    set.
    """
    alone = {squeezed(one.shape) for one in lists if not one.below}
    among = {squeezed(one.shape) for one in lists if one.below}
    matrices = [squeezed(p.shape[1:]) for p in members if len(p.shape) > 2]
    apart = len(matrices) > 1 and {*matrices} <= alone | {shape[::-1] for shape in alone}
    return alone if apart and among.isdisjoint(matrices) else set()


def _beside_others(one: Canon, piece: Piece) -> Piece:
    """Add the last component of its key to the path of the stack PIECE in ONE (`experts` -> `experts.W`), if ONE has
    other tensors below this path, and return the changed piece. Else change nothing, and return PIECE itself.
    """
    at = len(piece.path)
    if not any(p.path[:at] == piece.path and len(p.path) > at for p in one.pieces.values()):
        return piece
    made = replace(piece, path=(*piece.path, piece.leaf))
    return one.change(piece, made)


def _other_stacks(one: Canon, other: Canon) -> dict[int, set[Shape]]:
    """Return number of layers n -> sizes of one layer in each stack of OTHER with n layers: stacks of weights [n, rows,
    columns] and of biases [n, rows]. For a fused layer (`qkv`) they are the sizes of one part.

    Only an n counts for which ONE or OTHER has a stack that is fused on its own side only (`_is_fused_here_only`); {}
    if there is none.
    """
    own, theirs = ([p for p in side.pieces.values() if _is_stack_of_matrices(p)] for side in (one, other))
    fused = [p for p in own if _is_fused_here_only(p, theirs)] + [p for p in theirs if _is_fused_here_only(p, own)]
    found: dict[int, set[Shape]] = {piece.shape[0]: set() for piece in fused}
    for piece in other.pieces.values():
        of_vectors = len(piece.shape) == 2 and piece.role == "bias"
        if (of_vectors or _is_stack_of_matrices(piece)) and piece.shape[0] in found:
            found[piece.shape[0]].add(_part(piece, piece.shape[1:]))
    return found


def _is_stack_of_matrices(piece: Piece) -> bool:
    """Return whether PIECE is a weight with three dimensions."""
    return len(piece.shape) == 3 and piece.role == "weight"


def _is_fused_here_only(piece: Piece, stacks: Sequence[Piece]) -> bool:
    """Return whether the stack PIECE of matrices is fused on its own side only: its name is that of a fused projection;
    one of STACKS, those of the other side, has as many layers, no such name, and the sizes of a part of PIECE, also
    transposed; and none of STACKS has the sizes of PIECE.
    """
    apart = {p.shape[1:] for p in stacks if p.shape[0] == piece.shape[0] and fused_kind(p) is None}
    is_fused = fused_kind(piece) is not None and bool(_fused_ways(piece, apart))
    return is_fused and all(p.shape != piece.shape for p in stacks)


def _part(piece: Piece, shape: Shape) -> Shape:
    """Return SHAPE, the sizes of a weight or bias, with the rows of one part, if the name of PIECE says that it is
    fused and the rows can be divided; else SHAPE.
    """
    kind = fused_kind(piece)
    return shape if kind is None or shape[0] % len(kind.parts) else (shape[0] // len(kind.parts), *shape[1:])


def _stand_up(one: Canon, other: Canon) -> None:
    """Reshape matrices of ONE, [experts * rows, columns] and [rows, experts * columns], to stacks [experts, rows,
    columns], if the words of the matrix have one for experts, and OTHER has a list with a word for experts and as many
    members, with matrices of these sizes (for the first form, also transposed), and no tensor of the sizes of the
    whole. The first number of members that fits counts.
    """
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    inside = numbered_lists(other, of=table().experts)
    for piece in list(one.pieces.values()):
        if len(piece.shape) != 2 or theirs[piece.shape] or not table().experts & set(piece.words):
            continue
        for n, shapes in inside.items():
            rows, columns = piece.shape[0] // n, piece.shape[1]
            if piece.shape[0] == n * rows and {(rows, columns), (columns, rows)} & shapes:
                one.reshape(piece, (n, rows, columns))
                break
            if piece.shape[1] % n == 0 and (piece.shape[0], columns // n) in shapes:
                # of what gives the results, which are added
                one.permute(one.reshape(piece, (piece.shape[0], n, columns // n)), (1, 0, 2))
                break


def _turned(stacks: Sequence[Piece], inside: set[Shape], called: dict[str, set[Shape]]) -> Counter[bool]:
    """Return how many of STACKS vote for True (transpose) and for False (leave as it is). A stack of matrices votes
    True if its matrices have sizes in INSIDE only when they are transposed, and False if they have them only as they
    are, whole or as parts (`_ways`); it has no vote if they do not have them at all.

    Args:
        stacks: the stacks, of which those with three dimensions vote.
        inside: sizes of the tensors in a list.
        called: word for a part of a feed-forward block -> sizes of the other side's tensors with this word. They decide
            for a stack that fits both ways. A stack for which they do not decide has no vote.
    """
    votes: Counter[bool] = Counter()
    for piece in stacks:
        ways = _ways(piece, inside) if len(piece.shape) == 3 else []
        if len(ways) > 1:
            ways = [turned for turned, shape in _both_ways(piece) if shape in called.get(_word(piece), ())]
        if len(ways) == 1:
            votes[ways[0]] += 1
    return votes


def _both_ways(piece: Piece) -> list[tuple[bool, Shape]]:
    """Return [(False, sizes of one matrix of the stack PIECE), (True, these sizes after the matrix is transposed)]."""
    return [(False, piece.shape[1:]), (True, piece.shape[:0:-1])]


def _ways(piece: Piece, inside: set[Shape]) -> list[bool]:
    """Return in which ways a matrix of the stack PIECE has sizes in INSIDE: as it is (False), transposed (True), or
    both. If it has in neither, the ways in which it has them as parts (`_fused_ways`).
    """
    return [turned for turned, shape in _both_ways(piece) if shape in inside] or _fused_ways(piece, inside)


def _called(canon: Canon) -> dict[str, set[Shape]]:
    """Return word -> sizes of the matrices of CANON that the word names, for weights that are matrices with a number in
    their paths, or stacks of matrices. The word is the part of a feed-forward block that the name says ("gate", "up",
    "down"); weights without one are left out. A fused weight is there under each of its parts ("q", "gate") instead,
    with the sizes of one part.
    """
    found: dict[str, set[Shape]] = defaultdict(set)
    for piece in canon.pieces.values():
        rank = len(piece.shape)
        if piece.role == "weight" and (rank == 3 or (rank == 2 and any(map(counted, piece.path)))):
            kind = fused_kind(piece)
            for word in (_word(piece),) if kind is None else kind.parts:
                found[word].add(_part(piece, piece.shape[-2:]))
    return {word: shapes for word, shapes in found.items() if word}


def _word(piece: Piece) -> str:
    """Return which part of a feed-forward block PIECE is by its words ("gate", "up", "down"); "" if they say none."""
    return label(table().group("neck"), piece.words) or ""


def _laid_out(one: Canon, piece: Piece, inside: set[Shape], votes: Counter[bool]) -> Piece:
    """Bring the stack PIECE of ONE into torch's layout, transposed or as it is, and return it. INSIDE has the sizes of
    the layers on the other side, VOTES what other stacks show (see `_turned`).

    If the forward pass of the target shows the layout of its stack, that decides (`_used_with_inputs_first`). Else a
    stack whose matrices are not square is transposed if they fit INSIDE only transposed, and stays if they fit only as
    they are, or in neither way (`_ways`).

    If they are square, or fit both ways, VOTES decide: the stack is transposed if more are True than False, else it
    stays. Without votes it stays, and gets a question. If the matrices are square, its option on the source is the
    other layout. Others would have other sizes in that layout, and fill another layer.
    """
    if one.is_target and _is_shown(piece):
        return turn(one, piece) if _used_with_inputs_first(piece) else piece
    ways = _ways(piece, inside)
    if piece.shape[1] != piece.shape[2] and len(ways) < 2:
        return turn(one, piece) if ways == [True] else piece
    if votes[True] > votes[False]:
        return turn(one, piece)
    if votes:
        return piece
    square = piece.shape[1] == piece.shape[2]
    rival = ex.transpose(piece.expr) if square and not one.is_target else None
    doubted = piece.asking(Reason.INPUTS_FIRST_OF_SEVERAL, option=rival)
    one.pieces[piece.name] = doubted
    return doubted


def _used_with_inputs_first(piece: Piece) -> bool:
    """Return whether the stack PIECE still has to be transposed: the forward pass uses it with inputs first, and no
    step has transposed it yet. Earlier steps leave only stacks that look like heads: an einsum shows inputs or outputs
    for each of their dimensions, and both occur. False for all others.
    """
    facts = piece.entry.facts
    return bool(facts.inputs_first) and {*facts.dims} == {"input", "output"} and piece.shape == piece.entry.shape


def fits_inside(piece: Piece, inside: set[Shape]) -> bool:
    """Return whether one element of the stack PIECE along its first dimension has sizes in INSIDE, those of the members
    of a list, without sizes of 1: as it is; transposed, if it is a matrix; or divided into equal parts, if it is a
    weight (`_fused_ways`), or a vector of biases with the name of a fused projection.
    """
    shape = piece.shape[1:]
    if squeezed(shape) in inside or (len(shape) == 2 and shape[::-1] in inside):
        return True
    kind = fused_kind(piece) if piece.role == "bias" and len(shape) == 1 else None
    if kind is not None and shape[0] % len(kind.parts) == 0 and (shape[0] // len(kind.parts),) in inside:
        return True
    return bool(_fused_ways(piece, inside))


def _fused_ways(piece: Piece, inside: set[Shape]) -> list[bool]:
    """Return in which ways each matrix of a stack PIECE, divided along its rows into its parts, has sizes in INSIDE: as
    it is (False), transposed before (True), or both; [] if in neither, or if PIECE is no weight.

    Its name says in how many parts it is divided (`qkv`: three); two if it says nothing, but then the result is [] if
    its matrices have sizes in INSIDE undivided, as they are or transposed.
    """
    kind, shape = fused_kind(piece), piece.shape[1:]
    if piece.role != "weight" or (kind is None and {shape, shape[::-1]} & inside):
        return []
    n = 2 if kind is None else len(kind.parts)
    ways = [(False, shape), (True, shape[::-1])] if len(shape) == 2 else [(False, shape)]
    return [turned for turned, (rows, *rest) in ways if rows % n == 0 and (rows // n, *rest) in inside]


def counted(component: str) -> tuple[str, int] | None:
    """Return (name, number) of a component of a path that is a number, or a name with a number at its end: ("expert_",
    0) for `expert_0`, ("", 3) for `3`; None for others.
    """
    found = _COUNTED.match(component)
    return None if found is None else (found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class List:
    """The tensors that the members of a numbered list hold under one name, such as `layers.{}.fc.weight`.

    Attributes:
        around: the path before the number, with the name of the members as its last component: ("layers", "") for
            `layers.0.fc`, ("expert_",) for `expert_0.fc`.
        below: the path behind the number, up to the tensor.
        role: the role of the tensor.
        length: number of members that hold it.
        shape: sizes of the tensor in each member, which are equal.
    """

    around: tuple[str, ...]
    below: tuple[str, ...]
    role: str
    length: int
    shape: Shape


def lists_of(canon: Canon, of: frozenset[str] = frozenset()) -> list[List]:
    """Return the lists of CANON, one for each tensor that two or more members of a numbered list have, all in equal
    sizes. A number anywhere in a path counts members; a tensor with several numbers in its path is in several lists. If
    OF is given, only lists with one of these words in the name of the list, or in that of its members, are returned.
    """
    members: dict[tuple[tuple[str, ...], tuple[str, ...], str], dict[int, Shape]] = defaultdict(dict)
    for piece in canon.pieces.values():
        for at, component in enumerate(piece.path):
            found = _COUNTED.match(component)
            if found and (not of or of & set(cut(".".join((*piece.path[max(at - 1, 0) : at], found[1]))))):
                held = members[(*piece.path[:at], found[1]), piece.path[at + 1 :], piece.role]
                held[int(found[2])] = piece.shape
    return [
        List(around, below, role, len(shapes), next(iter(shapes.values())))
        for (around, below, role), shapes in members.items()
        if len(shapes) > 1 and len(set(shapes.values())) == 1
    ]


def numbered_lists(canon: Canon, of: frozenset[str] = frozenset()) -> dict[int, set[Shape]]:
    """Return number of members -> sizes of the tensors in one member, of all lists of CANON with so many members
    (`lists_of`), without sizes of 1. If OF is given, only lists with one of these words in their names count.

    For tensors with the sizes of a fused weight or bias of CANON (`qkv`), the sizes of one part are there, too.
    """
    parts: dict[Shape, Shape] = {}
    for piece in canon.pieces.values():
        if piece.role in ("weight", "bias") and 0 < len(piece.shape) < 3 and _part(piece, piece.shape) != piece.shape:
            parts[piece.shape] = _part(piece, piece.shape)
    found: dict[int, set[Shape]] = defaultdict(set)
    for one in lists_of(canon, of):
        found[one.length] |= {squeezed(one.shape)} | ({parts[one.shape]} if one.shape in parts else set())
    return found


def unstack_together(one: Canon, other: Canon) -> None:
    """Split two or more weights of ONE in one module that share a word of their names (`_are_one_list`) and together
    hold a list of layers into one weight for each layer, if OTHER has a list of so many layers of their size, in this
    layout or transposed (then they are transposed first), and neither side has other tensors of this size.

    For example, the first layer has a table `prompts` [1, n, d], and the other layers have one for all, `deep_prompts`
    [layers - 1, n, d]: `0.prompts`, `1.deep_prompts`, `2.deep_prompts` …. The weights have more than two dimensions, of
    which the first counts layers, and the sizes of the others are equal (sizes of 1 left out). The layers are numbered
    in a row over all weights, in the order of use, or of registration where the use is not known. This order may be a
    question (`_in_a_row`).
    """
    lists = numbered_lists(other)
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    own = Counter(squeezed(p.shape) for p in one.pieces.values())
    groups: dict[tuple[_Path, Shape], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 2:
            groups[piece.path[:-1], squeezed(piece.shape[1:])].append(piece)
    for (_, rest), members in groups.items():
        n, alone = sum(p.shape[0] for p in members), sum(squeezed(p.shape) == rest for p in members)
        inside = next((shape for shape in (rest, rest[::-1]) if shape in lists.get(n, ())), None)
        if inside is not None and theirs[inside] == n and own[rest] == alone and _are_one_list(members, alone):
            members = [turn(one, p) for p in members] if inside != rest else members
            _in_a_row(one, sorted(members, key=lambda p: p.order if p.used is None else p.used))


def _are_one_list(members: Sequence[Piece], alone: int) -> bool:
    """Return whether MEMBERS, stacks of layers in one module, may be one list together: they are two or more, not all
    of them hold just one layer (ALONE is how many do), and all their paths share a word that is no number and no word
    for a kind of layer (`telling_words`).
    """
    several = len(members) > 1 and alone < len(members)
    return several and bool(frozenset.intersection(*(telling_words(p.path) for p in members)))


def _in_a_row(canon: Canon, members: list[Piece]) -> None:
    """Replace MEMBERS in CANON, tensors that together hold a list of layers along their first dimensions, in this
    order, by one tensor for each layer. The layers are numbered in a row, from 0, in the module around MEMBERS.

    Each new tensor has a question about the order of MEMBERS. On the source its option is the layer that would have
    this number if MEMBERS came in the reverse order; on the target there is no option. No question is asked if the
    order of this side is known (the target was traced, the source is ordered), and MEMBERS are two tensors, the first
    of one layer, and the second with all words of the first in its path and more: `prompts` and `deep_prompts`.
    """
    ordered = canon.signature.traced if canon.is_target else canon.signature.ordered
    named = len(members) == 2 and telling_words(members[0].path) < telling_words(members[1].path)
    certain = ordered and named and members[0].shape[0] == 1
    names = " and ".join(".".join(p.path) for p in members)
    backwards = [ex.select(p.expr, 0, i) for p in members[::-1] for i in range(p.shape[0])]
    layer = 0
    for piece in members:
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
        for i in range(piece.shape[0]):
            made = replace(
                piece,
                path=(*piece.path[:-1], str(layer), piece.last),
                shape=piece.shape[1:],
                order=members[0].order + layer * 1e-6,
                used=None if piece.used is None or members[0].used is None else members[0].used + layer * 1e-6,
            )
            if not certain:
                option = None if canon.is_target else backwards[layer]
                made = made.asking(Reason.LAYERS_IN_SEVERAL, names, option=option)
            new.append((made, partial(ex.select, dim=0, index=i)))
            layer += 1
        canon.become(piece, new, lambda *e: ex.stack(*e))
