"""Tensors that hold a list of layers or experts along their first dimension."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import cut, label, table, telling_words
from .fusing.projections import fused_kind
from .layouts import turn
from .pieces import Canon, Piece, squeezed

_Path = tuple[str, ...]

#: A member of a list: a number, or a name and a number ("expert_0").
_COUNTED = re.compile(r"(|.*[A-Za-z]_?)(\d+)\Z")

#: Path of the module around stacks, and number of their members.
_Group = tuple[_Path, int]

#: Number of layers, and (role, sizes) of the tensors of each layer.
_Look = tuple[int, tuple[tuple[str, Shape], ...]]


def unstack(one: Canon, other: Canon) -> None:
    """Split the stacks of ONE, tensors that hold all members of a list along the first dimension, into one tensor for
    each member. The lists and stacks of OTHER show which tensors are stacks (`_stacks`); nothing is done if it has
    neither.

    Before that, vectors for the layers of a list are split (`_unstack_vectors`), and flat matrices of experts are
    reshaped to stacks (`_stand_up`). The stacks of a module are split together, those whose members have sizes of the
    list of OTHER (`_fitting`), if one of them has three dimensions or more. Without such a stack, only a norm is split
    (`_by_own_path`), if all of it fits. Matrices with inputs first are transposed (`_laid_out`).
    """
    lists, stacks = numbered_lists(other), _other_stacks(one, other)
    for n, shapes in stacks.items():
        lists[n] = lists.get(n, set()) | shapes
    if not lists:
        return
    _unstack_vectors(one, other)
    _stand_up(one, other)
    groups, norms = _by_own_path(_stacks(one, other, lists, stacks), lists_of(other))
    called = _called(other)
    votes = {group: _turned(members, lists[group[1]], called) for group, members in groups.items()}
    everywhere: Counter[bool] = sum(votes.values(), Counter())
    for (path, n), members in groups.items():
        fitting = _fitting(members, lists[n])
        is_norm = path in norms and len(fitting) == len(members)
        if is_norm or any(len(p.shape) > 2 for p in fitting):
            _unstack_group(one, path, fitting, lists[n], votes[path, n] or everywhere)


def _stacks(one: Canon, other: Canon, lists: Collection[int], stacks: Collection[int]) -> dict[_Group, list[Piece]]:
    """Return (path without its last component, number of members) -> the tensors of ONE that may be stacks.

    They have two dimensions or more, the first of which is one of LISTS, the lengths of OTHER's lists, and OTHER has no
    tensor of their name and sizes. It also has fewer tensors of their sizes than ONE, which does not count if the first
    dimension is one of STACKS (`_other_stacks`). The weight of a module itself (`attend.W`, whose path is `attend`) is
    put to the bare parameters of that module (`attend.a`), if some of these are stacks of as many members.
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
    """Return those of the stacks MEMBERS whose elements have sizes in INSIDE (`fits_inside`), and the biases of these:
    a bias is split as its weight is.
    """
    fits = {p.name: fits_inside(p, inside) for p in members}
    return [p for p in members if fits[p.name] or (p.role == "bias" and fits.get(p.name.beside("weight")))]


def _unstack_group(one: Canon, path: _Path, stacks: list[Piece], inside: set[Shape], votes: Counter[bool]) -> None:
    """Split STACKS of ONE, which have one length, into the members of one list at PATH, in torch's layout. A lone stack
    at PATH itself gets a longer path first, where that is needed (`_beside_others`). INSIDE and VOTES: see `_laid_out`.
    """
    if len(stacks) == 1 and stacks[0].path == path:
        stacks = [_beside_others(one, stacks[0])]
        path = stacks[0].path
    stacks = sorted(stacks, key=lambda p: p.order)
    first = stacks[0]
    stacks = [_laid_out(one, p, inside, votes) if len(p.shape) == 3 else p for p in stacks]
    _into_members(one, stacks, len(path), first)


def _unstack_vectors(one: Canon, other: Canon) -> None:
    """Split the tensors of a module of ONE, weight [n, d] and bias [n, d], or weight [n] and bias [n], into those of n
    layers, if OTHER has exactly one list of n layers with vectors or numbers of these sizes and roles, and ONE exactly
    one such module. A lone weight [n] also needs the name of the layers in that list; a lone weight [n, d] is not
    split.

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
            _into_members(one, sorted(found[0], key=lambda p: p.order), len(first.path), first)


def _into_members(canon: Canon, stacks: Sequence[Piece], cut_at: int, first: Piece) -> None:
    """Split STACKS, which together hold all tensors of the members of a list, along the first dimension into a tensor
    for each member. The number of the member stands behind CUT_AT components of the path.

    The tensors of one member come one after the other, in the order of STACKS. Their places in both orders are counted
    from that of the stack FIRST. Each has the questions of its stack, with the options cut out of it, too.
    """
    for place, piece in enumerate(stacks):
        new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
        for i in range(piece.shape[0]):
            behind = (i * len(stacks) + place) * 1e-6
            made = replace(
                piece,
                path=(*piece.path[:cut_at], str(i), *piece.path[cut_at:]),
                questions=tuple(q.translated(partial(ex.select, dim=0, index=i)) for q in piece.questions),
                shape=piece.shape[1:],
                order=first.order + behind,
                used=None if piece.used is None or first.used is None else first.used + behind,
            )
            new.append((made, partial(ex.select, dim=0, index=i)))
        canon.become(piece, new, lambda *e: ex.stack(*e))


def _lists_of_vectors(other: Canon) -> dict[_Look, list[List]]:
    """Return (number of layers, (role, sizes) of the tensors of a layer) -> a tensor of each list of such layers in
    OTHER, for layers that hold only vectors, or only single numbers, all of them in equally many members. Sizes of 1
    are left out.
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
    modules: dict[_Path, list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        modules[piece.path].append(piece)
    found: dict[_Look, list[list[Piece]]] = defaultdict(list)
    for held in modules.values():
        n = held[0].shape[0] if held[0].shape else 0
        if n > 1 and all(len(p.shape) in (1, 2) and p.shape[0] == n and not other.has(p) for p in held):
            found[n, tuple(sorted((p.role, p.shape[1:]) for p in held))].append(held)
    return found


def _by_own_path(
    groups: dict[_Group, list[Piece]], lists: Sequence[List]
) -> tuple[dict[_Group, list[Piece]], set[_Path]]:
    """Return (GROUPS, with a group for each path where matrices are lists of their own on the other side
    (`_sizes_alone`); paths of the norms in these: two stacks of vectors that are members of such lists, too).

    GROUPS has (path around, number of members) -> stacks, LISTS the lists of the other side.
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
    """Return the sizes of the tensors that are members of LISTS themselves (`fc.0`, not `layers.0.fc`), if MEMBERS have
    two or more stacks of matrices, all of these have such sizes as they are or transposed, and no tensor inside of a
    larger member has the sizes of one; else an empty set.
    """
    alone = {squeezed(one.shape) for one in lists if not one.below}
    among = {squeezed(one.shape) for one in lists if one.below}
    matrices = [squeezed(p.shape[1:]) for p in members if len(p.shape) > 2]
    apart = len(matrices) > 1 and {*matrices} <= alone | {shape[::-1] for shape in alone}
    return alone if apart and among.isdisjoint(matrices) else set()


def _beside_others(one: Canon, piece: Piece) -> Piece:
    """Return the stack PIECE, in ONE with the last component of its key added to its path, so that it can become a
    list, if its module holds other modules or parameters below this path; else as it is.
    """
    at = len(piece.path)
    if not any(p.path[:at] == piece.path and len(p.path) > at for p in one.pieces.values()):
        return piece
    made = replace(piece, path=(*piece.path, piece.leaf))
    return one.change(piece, made)


def _other_stacks(one: Canon, other: Canon) -> dict[int, set[Shape]]:
    """Return number of layers -> sizes of the layers (of one part, if they are fused) in stacks of OTHER with as many
    layers, for the numbers of layers for which ONE or OTHER has a stack that is fused there only
    (`_is_fused_here_only`). Stacks of biases [layers, rows] count, too.
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
    """Return whether the stack PIECE of matrices is fused by its name, and STACKS, those of the other side, have one
    with as many layers that is not fused, with the sizes of a part of PIECE in either layout, and none with the sizes
    of PIECE.
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
    """Return whether to transpose -> number of votes. A stack of matrices votes True if its matrices have the sizes of
    a list only when they are transposed, and False if they have them only as they are.

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
    """Return (whether it is transposed, its sizes) for a matrix of the stack PIECE: as it is, then transposed."""
    return [(False, piece.shape[1:]), (True, piece.shape[:0:-1])]


def _ways(piece: Piece, inside: set[Shape]) -> list[bool]:
    """Return in which ways a matrix of the stack PIECE has sizes in INSIDE: as it is (False), transposed (True), or
    both. If it has in neither, the ways in which it has them as parts (`_fused_ways`).
    """
    return [turned for turned, shape in _both_ways(piece) if shape in inside] or _fused_ways(piece, inside)


def _called(canon: Canon) -> dict[str, set[Shape]]:
    """Return word -> sizes of the weights of CANON that it names: matrices in numbered lists, and those in stacks. The
    word of a fused weight is each of its parts ("q", "gate"), and the sizes are those of one part. That of others is
    the part of a feed-forward block ("gate", "up", "down"); weights without such a word are left out.
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

    A stack of the target whose layout the forward pass shows follows that (`_used_with_inputs_first`). Else a stack
    with the sizes of INSIDE in one way only gets these sizes; in neither way, it stays. If it has them both ways, or is
    square, it is transposed if more VOTES are for it than against it. Without votes it stays, with a question if it is
    stored as it is or transposed; the option of the source is the other layout.
    """
    if one.is_target and (piece.entry.facts.inputs_first is not None or piece.entry.how == "linear"):
        return turn(one, piece) if _used_with_inputs_first(piece) else piece
    ways = _ways(piece, inside)
    if piece.shape[1] != piece.shape[2] and len(ways) < 2:
        return turn(one, piece) if ways == [True] else piece
    if votes[True] > votes[False]:
        return turn(one, piece)
    if votes or not (piece.expr.is_copy or ex.is_transposed(piece.expr)):
        return piece
    rival = None if one.is_target else ex.transpose(piece.expr)
    doubted = piece.asking(Reason.INPUTS_FIRST_OF_SEVERAL, option=rival)
    one.pieces[piece.name] = doubted
    return doubted


def _used_with_inputs_first(piece: Piece) -> bool:
    """Return whether the forward pass uses the stack PIECE with inputs first, and no step has transposed it: those that
    look like heads by their einsum, [heads, in, out], were left as they are, others were not.
    """
    facts = piece.entry.facts
    return bool(facts.inputs_first) and {*facts.dims} == {"input", "output"} and piece.shape == piece.entry.shape


def fits_inside(piece: Piece, inside: set[Shape]) -> bool:
    """Return whether one element of the stack PIECE along its first dimension has sizes in INSIDE, those of the members
    of a list: as it is, transposed, or divided into its parts, if it is a weight (`_fused_ways`) or a fused bias.
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

    A stack whose name says nothing is divided in two, unless its matrices have sizes in INSIDE undivided.
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
    """Return number of members -> sizes of the tensors in them, without sizes of 1, for the lists of `lists_of(CANON,
    OF)`. For tensors with the sizes of a fused weight or bias of CANON, the sizes of one part are there, too.
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
    """Split two or more weights of ONE in one module that together hold a list of layers (`_are_one_list`), if OTHER
    has a list of so many layers of their size, in this layout or transposed, and neither side has other tensors of this
    size.

    For example, the first layer has a table [1, n, d], and the other layers have one for all, [layers - 1, n, d]. The
    weights have more than two dimensions, of which the first counts layers, and the sizes of the others are equal
    (sizes of 1 left out). The layers are numbered in a row over all weights, in the order of use, or of registration
    where the use is not known.
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
    """Return whether MEMBERS, weights of one module of which ALONE hold a single layer, may hold one list together:
    they are two or more, some of them hold several layers, and all share a word that tells them from others.
    """
    several = len(members) > 1 and alone < len(members)
    return several and bool(frozenset.intersection(*(telling_words(p.path) for p in members)))


def _in_a_row(canon: Canon, members: list[Piece]) -> None:
    """Split MEMBERS, tensors that together hold a list of layers, in order, into one tensor for each layer, numbered in
    a row. Their order is a question, with the reverse order of the tensors as the option on the source.

    The order is certain if the order of this side is known (the target was traced, the source is ordered), and there
    are two tensors, of which the first holds one layer, and the second has all words of the first and more: `prompts`
    and `deep_prompts`.
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
