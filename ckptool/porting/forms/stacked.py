"""Tensors that hold a list of layers or experts along their first dimension."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..questions import Reason
from ..words import cut, label, table, telling_words
from .fusing.projections import fused_kind
from .layouts import turn
from .pieces import Canon, Piece, squeezed, unchanged

#: A member of a list: a number, or a name and a number ("expert_0").
_COUNTED = re.compile(r"(|.*[A-Za-z]_?)(\d+)\Z")


def unstack(one: Canon, other: Canon) -> None:
    """Split tensors of ONE that each hold all members of a list along the first dimension into a tensor for each
    member.

    OTHER has a list of as many members with tensors of these sizes: as they are, transposed, or as the parts of a fused
    one; and fewer tensors of the size of the stack than ONE. Or it has stacks of as many layers, and one is fused on
    one side only (`_other_stacks`). Stacks that OTHER has by name and sizes stay whole. The stacks of one module are
    split together, if a matrix is among them, or if OTHER has lists of these layers alone.
    Matrices [n, in, out] are transposed if sizes, words or the other stacks show it; if nothing does, this is a
    question.
    """
    lists = numbered_lists(other)
    stacks = _other_stacks(one, other)
    for n, shapes in stacks.items():
        lists[n] = lists.get(n, set()) | shapes
    if not lists:
        return
    _unstack_vectors(one, other)
    _stand_up(one, other)
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    own = Counter(squeezed(p.shape) for p in one.pieces.values())
    groups: dict[tuple[tuple[str, ...], int], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if (
            len(piece.shape) >= 2
            and piece.shape[0] in lists
            and not other.has(piece)
            and (piece.shape[0] in stacks or theirs[squeezed(piece.shape)] < own[squeezed(piece.shape)])
        ):
            groups[(piece.path[:-1], piece.shape[0])].append(piece)
    _with_those_of_its_module(groups)
    groups, alone = _listed_alone(groups, lists_of(other))
    called = _called(other)
    turned = {key: _turned(members, lists[key[1]], called) for key, members in groups.items()}
    everywhere: Counter[bool] = sum(turned.values(), Counter())
    for (path, n), members in groups.items():
        votes = turned[path, n]
        inside = lists[n]
        fits = {p.name: fits_inside(p, inside) for p in members}
        # A bias is in as many parts as the weight beside it.
        fitting = [p for p in members if fits[p.name] or (p.role == "bias" and fits.get(p.name.beside("weight")))]
        big = [p for p in fitting if len(p.shape) >= 3]
        if not big and (path not in alone or len(fitting) < len(members)):
            continue
        if len(fitting) == 1 and fitting[0].path == path:
            fitting = [_beside_others(one, fitting[0])]
            path = fitting[0].path
        first = min(fitting, key=lambda p: p.order)
        for place, piece in enumerate(sorted(fitting, key=lambda p: p.order)):
            if len(piece.shape) == 3:
                piece = _laid_out(one, piece, inside, votes or everywhere)
            _unstacked(one, piece, n, len(path), first, place, len(fitting))


def _unstack_vectors(one: Canon, other: Canon) -> None:
    """Split the tensors of a module of ONE, weight [n, d] and bias [n, d], or weight [n] and bias [n], into those of n
    layers, if OTHER has exactly one list of n layers with vectors or numbers of these sizes and roles, and ONE exactly
    one such module. A lone weight [n] also needs the name of the layers in that list; a lone weight [n, d] is not
    split.

    A layer of one input has a vector as its weight; code that embeds numbers keeps all of these in one parameter.
    """
    wanted: dict[tuple[int, tuple[tuple[str, Shape], ...]], list[List]] = defaultdict(list)
    inside: dict[tuple[tuple[str, ...], tuple[str, ...]], list[List]] = defaultdict(list)
    for found in lists_of(other):
        inside[found.around, found.below].append(found)
    for held in inside.values():
        look = tuple(sorted((found.role, squeezed(found.shape)) for found in held))
        if {len(shape) for _, shape in look} in ({0}, {1}) and len({found.length for found in held}) == 1:
            wanted[held[0].length, look].append(held[0])
    modules: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        modules[piece.path].append(piece)
    there: dict[tuple[int, tuple[tuple[str, Shape], ...]], list[list[Piece]]] = defaultdict(list)
    for members in modules.values():
        n = members[0].shape[0] if members[0].shape else 0
        if n > 1 and all(len(p.shape) in (1, 2) and p.shape[0] == n and not other.has(p) for p in members):
            look = tuple(sorted((p.role, p.shape[1:]) for p in members))
            there[n, look].append(members)
    for (n, look), lists in wanted.items():
        stacks = there[n, look]
        if look == (("weight", ()),):  # as many numbers may be much else
            stacks = [one for one in stacks if one[0].last in lists[0].below[-1:]]
        elif len(look) < 2:
            continue
        if len(lists) == len(stacks) == 1:
            for place, piece in enumerate(sorted(stacks[0], key=lambda p: p.order)):
                _unstacked(one, piece, n, len(piece.path), stacks[0][0], place, len(look))


def _with_those_of_its_module(groups: dict[tuple[tuple[str, ...], int], list[Piece]]) -> None:
    """Move each stack whose path is that of a module (`attend.W`) to the group of the other parameters of this module
    (`attend.a`), if there is one with as many layers.

    GROUPS, (path around, number of layers) -> stacks, is changed in place.
    """
    for (path, n), members in groups.items():
        outer = groups.get((path[:-1], n), []) if path else []
        for piece in [p for p in outer if p.path == path]:
            outer.remove(piece)
            members.append(piece)


def _listed_alone(
    groups: dict[tuple[tuple[str, ...], int], list[Piece]], lists: Sequence[List]
) -> tuple[dict[tuple[tuple[str, ...], int], list[Piece]], set[tuple[str, ...]]]:
    """Return (GROUPS with each stack in a group of its own path, where the other side has lists of such layers alone;
    paths of the norms among these, stacks of vectors with a weight and a bias each).

    A group is divided if it has two or more stacks of matrices, whose layers are members of lists themselves on the
    other side, in either layout, and are in no lists with larger members. GROUPS has (path around, number of layers) ->
    stacks, LISTS the lists of the other side.
    """
    found: dict[tuple[tuple[str, ...], int], list[Piece]] = defaultdict(list)
    vectors: set[tuple[str, ...]] = set()
    for (path, n), members in groups.items():
        layers = [one for one in lists if one.length == n and one.role == "weight"]
        alone = {squeezed(one.shape) for one in layers if not one.below}
        among = {squeezed(one.shape) for one in layers if one.below}
        big = [squeezed(p.shape[1:]) for p in members if len(p.shape) > 2]
        apart = len(big) > 1 and {*big} <= alone | {shape[::-1] for shape in alone} and among.isdisjoint(big)
        for piece in members:
            found[piece.path if apart else path, n].append(piece)
        held = Counter(p.path for p in members if len(p.shape) == 2 and squeezed(p.shape[1:]) in alone)
        vectors |= {one for one, count in held.items() if apart and count == _FACTORS}
    return found, vectors


#: A norm has so many: a scale and a shift.
_FACTORS = 2


def _beside_others(one: Canon, piece: Piece) -> Piece:
    """Return the stack PIECE with the last component of its key added to its path, so that it can become a list, if its
    module holds other modules or parameters below this path; else as it is.
    """
    at = len(piece.path)
    if not any(p.path[:at] == piece.path and len(p.path) > at for p in one.pieces.values()):
        return piece
    made = replace(piece, path=(*piece.path, piece.leaf))
    one.become(piece, [(made, unchanged)], unchanged)
    return one.pieces[made.name]


def _other_stacks(one: Canon, other: Canon) -> dict[int, set[Shape]]:
    """Return number of layers -> sizes of the layers (of one part, if they are fused) in stacks of OTHER with as many
    layers, for the numbers for which a stack of matrices is fused by its name on one side and in parts on the other,
    and no stack there has the sizes of the fused one.
    """
    own, theirs = (
        [p for p in side.pieces.values() if len(p.shape) == 3 and p.role == "weight"] for side in (one, other)
    )
    found: dict[int, set[Shape]] = {}
    for fused, apart in ((own, theirs), (theirs, own)):
        for piece in fused:
            same = [p for p in apart if p.shape[0] == piece.shape[0] and fused_kind(p) is None]
            if (
                fused_kind(piece)
                and _fused_ways(piece, {p.shape[1:] for p in same})
                and all(p.shape != piece.shape for p in apart)
            ):
                found.setdefault(piece.shape[0], set())
    for piece in other.pieces.values():
        stacked = (len(piece.shape) == 3 and piece.role == "weight") or (len(piece.shape) == 2 and piece.role == "bias")
        if stacked and piece.shape[0] in found:
            found[piece.shape[0]].add(_part(piece, piece.shape[1:]))
    return found


def _part(piece: Piece, shape: Shape) -> Shape:
    """Return SHAPE, the sizes of a weight or bias, with the rows of one part, if the name of PIECE says that it is
    fused and the rows can be divided; else SHAPE.
    """
    kind = fused_kind(piece)
    return shape if kind is None or shape[0] % len(kind.parts) else (shape[0] // len(kind.parts), *shape[1:])


def _stand_up(one: Canon, other: Canon) -> None:
    """Reshape matrices of ONE, [experts * rows, columns] and [rows, experts * columns], to stacks [experts, rows,
    columns], if the name has a word for experts, and OTHER has a list of as many experts with matrices of these sizes
    (for the first form, also transposed) and no tensor of the sizes of the whole.
    """
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    inside = numbered_lists(other, of=table().experts)
    for piece in list(one.pieces.values()):
        if len(piece.shape) != 2 or theirs[piece.shape] or not table().experts & set(piece.words):
            continue
        for n, shapes in inside.items():
            rows, columns = piece.shape[0] // n, piece.shape[1]
            if piece.shape[0] == n * rows and {(rows, columns), (columns, rows)} & shapes:
                _as_stack(one, piece, (n, rows, columns))
                break
            if piece.shape[1] % n == 0 and (piece.shape[0], columns // n) in shapes:
                _side_by_side(one, piece, n)  # of what gives the results, which are added
                break


def _as_stack(one: Canon, piece: Piece, shape: Shape) -> None:
    flat = partial(ex.reshape, shape=piece.shape)
    one.become(piece, [(replace(piece, shape=shape), partial(ex.reshape, shape=shape))], flat)


def _side_by_side(one: Canon, piece: Piece, n: int) -> None:
    """Reshape the matrix PIECE from [rows, N * columns] to [N, rows, columns]."""
    rows, columns = piece.shape[0], piece.shape[1] // n

    def down(e: Expr) -> Expr:
        return ex.permute(ex.reshape(e, (rows, n, columns)), 1, 0, 2)

    def up(e: Expr) -> Expr:
        return ex.reshape(ex.permute(e, 1, 0, 2), piece.shape)

    one.become(piece, [(replace(piece, shape=(n, rows, columns)), down)], up)


def _turned(members: list[Piece], inside: set[Shape], called: dict[str, set[Shape]]) -> Counter[bool]:
    """Return whether to transpose -> number of votes: True for a stack of matrices that only then has the sizes of a
    list, False for one that has them only as it is. Stacks for which neither sizes nor words show it have no vote.

    Args:
        members: stacks, of which those with three dimensions count.
        inside: sizes of the tensors in a list.
        called: word for a part of a feed-forward block -> sizes of the other side's tensors with this word. It decides
            between two ways that both fit.
    """
    votes: Counter[bool] = Counter()
    for piece in members:
        if len(piece.shape) != 3:
            continue
        shape, turned = piece.shape[1:], piece.shape[:0:-1]
        ways = [way for way, size in ((False, shape), (True, turned)) if size in inside] or _fused_ways(piece, inside)
        if len(ways) > 1 and shape != turned:
            own = called.get(_word(piece), set())
            ways = [way for way, size in ((False, shape), (True, turned)) if size in own]
        if len(ways) == 1:
            votes[ways[0]] += 1
    return votes


def _called(canon: Canon) -> dict[str, set[Shape]]:
    """Return word for a part of a feed-forward block ("gate", "up", "down"), or name of the part of a fused projection
    -> sizes of the matrices of CANON in lists and stacks with this word, or of one such part.
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
    group = table().group("neck")
    return label(group, piece.words) or ""


def _laid_out(one: Canon, piece: Piece, inside: set[Shape], votes: Counter[bool]) -> Piece:
    """Return the stack PIECE of ONE in torch's layout, transposed or as it is. INSIDE has the sizes of the layers on
    the other side, VOTES what other stacks show (see `_turned`).

    A stack of the target whose layout the forward pass shows is transposed only if it has inputs first and looked like
    heads, [heads, in, out], by its einsum; others were transposed before. A stack with the sizes of INSIDE in one way
    only gets these sizes; in neither way, it stays. If it has them both ways, or is square, it is transposed if more
    VOTES are for it than against it. Without votes it stays, with a question if it is stored as it is or transposed.
    """
    shape, turned = piece.shape[1:], piece.shape[:0:-1]
    seen = one.is_target and (piece.entry.facts.inputs_first is not None or piece.entry.how == "linear")
    if seen:  # and turned before, unless it looked like heads: [heads, in, out]
        of_heads = {*piece.entry.facts.dims} == {"input", "output"}
        as_is = piece.entry.facts.inputs_first and of_heads and piece.shape == piece.entry.shape
        return turn(one, piece) if as_is else piece
    if shape != turned:
        ways = [way for way, size in ((False, shape), (True, turned)) if size in inside] or _fused_ways(piece, inside)
        if len(ways) < 2:
            return turn(one, piece) if ways == [True] else piece
    if votes[True] > votes[False]:
        return turn(one, piece)
    if votes or not (piece.expr.is_copy or ex.is_transposed(piece.expr)):
        return piece
    rival = None if one.is_target else ex.transpose(piece.expr)
    doubted = piece.asking(Reason.INPUTS_FIRST_OF_SEVERAL, option=rival)
    one.pieces[piece.name] = doubted
    return doubted


def fits_inside(piece: Piece, inside: set[Shape]) -> bool:
    """Return whether one element of the stack PIECE along its first dimension has sizes in INSIDE, those of the members
    of a list: as it is, transposed, or divided into its parts.
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
    sizes. If OF is given, only those with one of these words in the name of the list, or in that of its members.
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
    OF)`. Of a fused weight or bias, the sizes of one part are there, too.
    """
    parts: dict[Shape, Shape] = {}
    for piece in canon.pieces.values():
        if piece.role in ("weight", "bias") and 0 < len(piece.shape) < 3 and _part(piece, piece.shape) != piece.shape:
            parts[piece.shape] = _part(piece, piece.shape)
    found: dict[int, set[Shape]] = defaultdict(set)
    for one in lists_of(canon, of):
        found[one.length] |= {squeezed(one.shape)} | ({parts[one.shape]} if one.shape in parts else set())
    return found


def _unstacked(canon: Canon, piece: Piece, n: int, cut_at: int, first: Piece, place: int, of: int) -> None:
    """Split PIECE, one tensor of a list of N layers, along its first dimension into a tensor for each layer.

    Args:
        canon: the side of the tensor, which is changed.
        piece: the tensor.
        n: the number of layers.
        cut_at: the number of components of its path before the number of the layer.
        first: the first tensor of the list, whose place in the order counts.
        place: which tensor of a layer it is, counted from 0. The tensors of one layer come one after the other.
        of: how many tensors a layer has.
    """
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    for i in range(n):
        made = replace(
            piece,
            path=(*piece.path[:cut_at], str(i), *piece.path[cut_at:]),
            questions=tuple(q.translated(partial(ex.select, dim=0, index=i)) for q in piece.questions),
            shape=piece.shape[1:],
            order=first.order + (i * of + place) * 1e-6,
            used=None if piece.used is None or first.used is None else first.used + (i * of + place) * 1e-6,
        )
        new.append((made, partial(ex.select, dim=0, index=i)))
    canon.become(piece, new, lambda *e: ex.stack(*e))


def unstack_together(one: Canon, other: Canon) -> None:
    """Split two or more weights of ONE in one module that together hold a list of layers, if OTHER has a list of so
    many layers of their size, in this layout or transposed, and neither side has other tensors of this size.

    For example, the first layer has a table [1, n, d], and the other layers have one for all, [layers - 1, n, d]. The
    weights have more than two dimensions, of which the first counts layers, and the sizes of the others are equal
    (sizes of 1 left out). At least one of the weights has more than these sizes, so it holds several layers, and all
    share a word that tells them from others. The layers are numbered in a row over all weights, in the order of use, or
    of registration where the use is not known.
    """
    lists = numbered_lists(other)
    theirs = Counter(squeezed(p.shape) for p in other.pieces.values())
    own = Counter(squeezed(p.shape) for p in one.pieces.values())
    groups: dict[tuple[tuple[str, ...], Shape], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.shape) > 2:
            groups[piece.path[:-1], squeezed(piece.shape[1:])].append(piece)
    for (_, rest), members in groups.items():
        n, alone = sum(p.shape[0] for p in members), sum(squeezed(p.shape) == rest for p in members)
        inside = next((shape for shape in (rest, rest[::-1]) if shape in lists.get(n, ())), None)
        if len(members) < 2 or inside is None or theirs[inside] != n or own[rest] != alone:
            continue
        if alone == len(members) or not frozenset.intersection(*(telling_words(p.path) for p in members)):
            continue
        if inside != rest:
            members = [turn(one, p) for p in members]
        _in_a_row(one, sorted(members, key=lambda p: p.order if p.used is None else p.used))


def _in_a_row(canon: Canon, members: list[Piece]) -> None:
    """Split MEMBERS, tensors that together hold a list of layers, in order, into one tensor for each layer, numbered in
    a row. Their order is a question, with the reverse order of the tensors as the option on the source.

    The order is certain if the order of this side is known (the target was traced, the source is ordered), and there
    are two tensors: one that holds the first layer, and one with its words and more that holds the rest: `prompts` and
    `deep_prompts`.
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
