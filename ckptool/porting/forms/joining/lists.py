"""Join numbered lists whose members are one tensor on the other side: heads, paths and experts with a module each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import prod

from ...matching.units import template
from ...questions import Reason
from ..pieces import Canon, Piece, squeezed
from .families import asked, families, join_of_family, siblings
from .join import Join, SizeCounts, merge, merge_sum

_Path = tuple[str, ...]

#: Path inside of a member, and role -> number of the member -> the piece.
_Inner = dict[tuple[_Path, str], dict[int, Piece]]

#: Path inside of a member, and role -> how to join the pieces of all members.
_Plan = dict[tuple[_Path, str], Join]


def join_lists(one: Canon, other: Canon) -> None:
    """Join each tensor of the members of a numbered list in ONE (`heads.0.q`, `heads.1.q`) to one tensor, if OTHER has
    as many more of the joined tensors, vectors aside, as all such lists make. If that is not possible, one layer of
    each member may be joined alone (`_plan_of_layer`). Inner lists come first.

    If every block of a list holds two equal layers and nothing else, two joins are possible: the two layers of each
    block, or the same layer of all blocks. The first is left to `join_families` if such layers can be joined in other
    modules, too, or if OTHER has the joined layers in a list of as many blocks. Else the second is made, with a
    question unless OTHER has layers with the names of the joined ones.
    """
    for at in sorted({at for p in one.pieces.values() for at, c in enumerate(p.path) if c.isdecimal()}, reverse=True):
        sizes = SizeCounts(one, other)
        parents = _parents(one, other, sizes)
        lists: dict[_Path, _Inner] = defaultdict(lambda: defaultdict(dict))
        for piece in one.pieces.values():
            if len(piece.path) > at and piece.path[at].isdecimal():
                lists[piece.path[:at]][piece.path[at + 1 :], piece.role][int(piece.path[at])] = piece
        plans: dict[_Path, _Plan] = {}
        open_to: set[_Path] = set()
        for head, inner in lists.items():
            plan = plan_of_list(inner, sizes)
            by_block = plan is not None and _joined_by_block(inner, parents)
            if plan is not None and by_block and _wholes_are_listed(inner, plan, other):
                continue
            if plan is not None and not _families_elsewhere(head, inner, parents):
                plans[head] = plan
                if by_block and not _wholes_are_named(inner, plan, other):
                    open_to.add(head)
            elif (plan := _plan_of_layer(inner, sizes)) is not None:
                plans[head] = plan
                lists[head] = {key: inner[key] for key in plan}
        made = Counter(
            squeezed(join.shape(next(iter(lists[head][key].values())).shape))
            for head, plan in plans.items()
            for key, join in plan.items()
        )
        for head, plan in plans.items():
            parts = [next(iter(lists[head][key].values())).shape for key in plan]
            wholes = zip(
                parts, (join.shape(part) for join, part in zip(plan.values(), parts, strict=True)), strict=True
            )
            if all(made[squeezed(w)] <= sizes.wanted(w) for part, w in wholes if len(squeezed(part)) != 1):
                _join_list(one, head, lists[head], plan, is_open=head in open_to)


def plan_of_list(inner: _Inner, sizes: SizeCounts) -> _Plan | None:
    """Return how to join each tensor in the members of a list: (path in a member, role) -> the way, the first that the
    other side lacks tensors of: as `SizeCounts.join` says, or by columns. INNER has (path in a member, role) -> number
    of the member -> piece.

    None if the members do not hold the same tensors, in the same sizes, if there is only one, if the other side has as
    many of a matrix as this side, or if half of the matrices or more have no way. Vectors, and vectors that weight norm
    has as columns, are joined along their rows beside matrices that are joined by rows, or without any; other vectors
    are left out. If the members hold nothing but single numbers, these count as matrices.
    """
    numbers = {tuple(sorted(members)) for members in inner.values()}
    if len(numbers) != 1 or len(next(iter(numbers))) < 2:
        return None
    plan: _Plan = {}
    left = 0
    numbers_alone = all(prod(p.shape) == 1 == len(p.shape) for members in inner.values() for p in members.values())
    for key, members in inner.items():
        biased = (key[0], "bias") in inner
        shapes = {p.shape for p in members.values()}
        if len(shapes) != 1:
            return None
        shape = next(iter(shapes))
        if len(squeezed(shape)) < 2 and not numbers_alone:
            continue
        if sizes.wanted(shape) >= 0:
            return None
        ways = [sizes.join(shape, len(members), biased=biased)]
        if len(shape) > 1:
            ways.append(Join((shape[1],) * len(members), 1))
        fitting = [way for way in ways if sizes.wanted(way.shape(shape)) > 0]
        if fitting:
            plan[key] = fitting[0]
        else:
            left += 1
    if len(plan) <= left:  # a mask in each head may be left over, most of what it holds may not
        return None
    for (path, role), members in inner.items():
        size = next(iter(members.values())).shape
        beside = plan.get((path, "weight"), plan.get((path, "weight_v")))
        by_row = len(size) == 1 or (role == "weight_g" and size[:1] == squeezed(size))
        if (path, role) not in plan and by_row and (beside is None or beside.dim == 0):
            turns = 1 if beside is None else beside.turns
            plan[path, role] = Join(size[:1] * len(members), 0, turns, beside is not None and beside.open)
    return plan


def _plan_of_layer(inner: _Inner, sizes: SizeCounts) -> _Plan | None:
    """Return how to join one layer of each member of a list, and its bias, if the other side has one layer over all
    members, and both sides have no other tensors of these two sizes; else None. INNER and the result are as in
    `plan_of_list`.

    For example, one layer computes the filters of all blocks, and all other layers are in the blocks on both sides.
    """
    plan: _Plan = {}
    for (path, role), members in inner.items():
        shapes = {p.shape for p in members.values()}
        if role != "weight" or len(members) < 2 or len(shapes) > 1 or len(squeezed(next(iter(shapes)))) < 2:
            continue
        shape = next(iter(shapes))
        join = sizes.join(shape, len(members), biased=(path, "bias") in inner)
        if sizes.only_whole(shape, join.shape(shape), len(members)):
            plan[path, role] = join
            bias = inner.get((path, "bias"), {})
            if bias.keys() == members.keys() and {p.shape for p in bias.values()} == {shape[:1]}:
                plan[path, "bias"] = join
    return plan or None


def _parents(one: Canon, other: Canon, sizes: SizeCounts) -> dict[_Path, set[_Path]]:
    """Return sorted names of tensors of one module that can be joined -> paths of the modules of ONE that hold such
    tensors with these names.
    """
    found: dict[_Path, set[_Path]] = defaultdict(set)
    for parent, pieces in siblings(one, other).items():
        for family in families(pieces, sizes):
            if join_of_family(family, sizes) is not None:
                found[tuple(sorted(p.last for p in family.parts))].add(parent)
    return found


def _families_elsewhere(head: _Path, inner: _Inner, parents: dict[_Path, set[_Path]]) -> bool:
    """Return whether the tensors inside of each member of the list HEAD, which has INNER, can be joined with each
    other, and tensors with these names also in a module outside of such lists. PARENTS is from `_parents`.
    """
    members = _modules(inner)
    own = template(head)
    return any(members <= there and any(template(at[: len(head)]) != own for at in there) for there in parents.values())


def _modules(inner: _Inner) -> set[_Path]:
    """Return the paths of the modules around the weights of INNER, without the outermost module."""
    return {p.path[:-1] for pieces in inner.values() for p in pieces.values() if p.role == "weight" and len(p.path) > 1}


def _joined_by_block(inner: _Inner, parents: dict[_Path, set[_Path]]) -> bool:
    """Return whether the layers inside of each member of a list, INNER, can be joined with each other, and the list has
    several members. PARENTS is from `_parents`.
    """
    members = _modules(inner)
    return len(members) > 1 and any(members <= there for there in parents.values())


def _wholes_of(inner: _Inner, plan: _Plan, other: Canon) -> list[Piece]:
    """Return the weights of OTHER, with two or more dimensions, that have the sizes of those that PLAN makes of
    INNER.
    """
    made = {squeezed(join.shape(next(iter(inner[key].values())).shape)) for key, join in plan.items()}
    return [p for p in other.pieces.values() if p.role == "weight" and len(p.shape) > 1 and squeezed(p.shape) in made]


def _wholes_are_listed(inner: _Inner, plan: _Plan, other: Canon) -> bool:
    """Return whether OTHER has layers with the joined sizes, all of them in lists with the same numbers as the list
    with the members INNER.
    """
    numbers = {str(n) for members in inner.values() for n in members}
    rows: dict[_Path, set[str]] = defaultdict(set)
    wholes = _wholes_of(inner, plan, other)
    for piece in wholes:
        at = next((at for at in reversed(range(len(piece.path))) if piece.path[at].isdecimal()), None)
        if at is None:
            return False
        row = (*piece.path[:at], "", *piece.path[at + 1 :])
        rows[row].add(piece.path[at])
    return bool(wholes) and all(held == numbers for held in rows.values())


def _wholes_are_named(inner: _Inner, plan: _Plan, other: Canon) -> bool:
    """Return whether OTHER has, among the layers with the joined sizes, one with the name of each layer that PLAN joins
    of the members INNER; False if the members have no names for layers.
    """
    named = {path[-1] for path, role in plan if role == "weight" and path}
    return bool(named) and named <= {piece.last for piece in _wholes_of(inner, plan, other) if piece.path}


def _join_list(one: Canon, head: _Path, inner: _Inner, plan: _Plan, *, is_open: bool) -> None:
    for (path, role), members in inner.items():
        parts = [members[n] for n in sorted(members)]
        join = plan.get((path, role))
        new = replace(parts[0], path=(*head, *path) or ("parts",), words=_without_number(parts[0]))
        if join is not None:
            if len(squeezed(new.shape)) == 1 and (path, "weight") in inner and not _by_channel(inner, path):
                several, whole = ("model", "source") if one.is_target else ("source", "model")
                new = new.asking(Reason.NORMS_AS_ONE, several, whole)
            if is_open:
                new = new.asking(Reason.LAYERS_OF_BLOCK)
            merge(one, parts, asked(one, parts, new, join) if join.open else new, join)
        elif len(new.shape) == 1:  # what is added to a sum of paths
            merge_sum(one, parts, new)
    if not one.is_target:
        for key, below in list(one.counters.items()):
            in_list = below[: len(head)] == head and (below[len(head) + 1 :], "running_mean") in inner
            if in_list and below[len(head) : len(head) + 1] == ("0",):
                one.counters[key] = (*head, *below[len(head) + 1 :])


def _by_channel(inner: _Inner, path: _Path) -> bool:
    """Return whether the layer at PATH in each member has a matrix, a kernel or the statistics of a batch norm (so that
    it is no layer norm). INNER is as in `plan_of_list`.
    """
    weights = inner[path, "weight"]
    return (path, "running_mean") in inner or len(next(iter(weights.values())).shape) > 1


def _without_number(piece: Piece) -> _Path:
    return tuple(word for word in piece.words if not word.isdecimal())
