"""Join numbered lists whose members are one tensor on the other side: heads, paths and experts with a module each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ...expression import Shape
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


class _Planned(NamedTuple):
    """What of a list is joined.

    Attributes:
        inner: the tensors of its members.
        plan: how to join them; vectors that it does not have are added up.
        open: whether the layers may be joined by block instead, which is a question.
    """

    inner: _Inner
    plan: _Plan
    open: bool


def join_lists(one: Canon, other: Canon) -> None:
    """Join the tensors of the members of numbered lists in ONE, each with those of the same name in all members:
    `heads.0.q` and `heads.1.q` become `heads.q`. `_planned` says which tensors of a list are joined, and how.

    A list is joined if, for each joined size, OTHER has at least as many more tensors than ONE as all planned lists at
    the same depth (the place of the number in the path) make; the sizes of joined vectors do not count. Else it stays
    as it is. The innermost lists come first, and sizes are counted anew for each depth. OTHER is not changed.
    """
    for at in sorted({at for p in one.pieces.values() for at, c in enumerate(p.path) if c.isdecimal()}, reverse=True):
        sizes = SizeCounts(one, other)
        parents = _parents(one, other, sizes)
        lists = _lists_at(one, at)
        planned = {head: found for head in lists if (found := _planned(head, lists[head], parents, sizes, other))}
        made = Counter(whole for found in planned.values() for _, whole in _joined_sizes(found.inner, found.plan))
        for head, found in planned.items():
            wholes = [whole for part, whole in _joined_sizes(found.inner, found.plan) if len(part) != 1]
            if all(made[whole] <= sizes.wanted(whole) for whole in wholes):
                _join_list(one, head, found)


def _lists_at(one: Canon, at: int) -> dict[_Path, _Inner]:
    """Return path of a list -> (path inside of a member, role) -> number of the member -> its piece, for the lists of
    ONE whose numbers are component AT of paths (counted from 0): `heads` with AT 1 for `heads.0.q`.
    """
    lists: dict[_Path, _Inner] = defaultdict(lambda: defaultdict(dict))
    for piece in one.pieces.values():
        if len(piece.path) > at and piece.path[at].isdecimal():
            lists[piece.path[:at]][piece.path[at + 1 :], piece.role][int(piece.path[at])] = piece
    return lists


def _planned(
    head: _Path, inner: _Inner, parents: dict[_Path, set[_Path]], sizes: SizeCounts, other: Canon
) -> _Planned | None:
    """Return what of the list HEAD, with the tensors INNER, is joined, and how; None for nothing. All layers are joined
    (`plan_of_list`), or, if that is not possible, only single layers of the members (`_plan_of_layer`).

    INNER has (path inside of a member, role) -> number of the member -> piece, SIZES counts both sides, and PARENTS has
    the modules whose layers can be joined with each other (see `_parents`).

    If PARENTS says that the layers inside of each member can be joined with each other (`heads.0.q` with `heads.0.k`),
    `join_families` may do that in place of joining the same layer of all members (`heads.0.q` with `heads.1.q`):

    - None if OTHER has layers of the joined sizes in a list of as many members (`_wholes_are_listed`): then
      `join_families` joins the layers of each member.
    - Only single layers if layers with these names can also be joined in a module outside of the list
      (`_families_elsewhere`).
    - Else all layers, with `open` set (a question), unless OTHER has layers of the joined sizes with the names of the
      layers inside, such as `q` (`_wholes_are_named`).
    """
    plan = plan_of_list(inner, sizes)
    if plan is not None:
        by_block = _joined_by_block(inner, parents)
        if by_block and _wholes_are_listed(inner, plan, other):
            return None
        if not _families_elsewhere(head, inner, parents):
            return _Planned(inner, plan, by_block and not _wholes_are_named(inner, plan, other))
    plan = _plan_of_layer(inner, sizes)
    return None if plan is None else _Planned({key: inner[key] for key in plan}, plan, open=False)


def _joined_sizes(inner: _Inner, plan: _Plan) -> list[tuple[Shape, Shape]]:
    """Return (sizes of a part, sizes of the joined tensor), without sizes of 1, for each tensor that PLAN makes of
    INNER.
    """
    parts = [next(iter(inner[key].values())).shape for key in plan]
    return [(squeezed(part), squeezed(join.shape(part))) for part, join in zip(parts, plan.values(), strict=True)]


def plan_of_list(inner: _Inner, sizes: SizeCounts) -> _Plan | None:
    """Return how to join each tensor in the members of a list: (path in a member, role) -> the way, for its matrices
    (`_plan_of_matrices`) and its vectors (`_plan_of_vectors`). INNER has (path in a member, role) -> number of the
    member -> piece.

    None if the members do not hold the same tensors, in the same sizes, if there is only one, or if there is no plan
    for the matrices.
    """
    numbers = {tuple(sorted(members)) for members in inner.values()}
    if len(numbers) != 1 or len(next(iter(numbers))) < 2:
        return None
    if any(len({p.shape for p in members.values()}) > 1 for members in inner.values()):
        return None
    plan = _plan_of_matrices(inner, sizes)
    return None if plan is None else plan | _plan_of_vectors(inner, plan)


def _plan_of_matrices(inner: _Inner, sizes: SizeCounts) -> _Plan | None:
    """Return how to join each matrix or kernel of INNER (as in `plan_of_list`): along its rows, as `SizeCounts.join`
    says, or else along its columns. It is the first of these ways for whose joined size the other side has more tensors
    than this side; matrices without a way are left out. If the members hold nothing but single numbers, these count as
    matrices.

    None if the other side has at least as many tensors of the size of some matrix as this side, if half of the matrices
    or more have no way, or if there are no matrices.
    """
    numbers_alone = all(prod(p.shape) == 1 == len(p.shape) for members in inner.values() for p in members.values())
    plan: _Plan = {}
    left = 0
    for key, members in inner.items():
        shape = next(iter(members.values())).shape
        if len(squeezed(shape)) < 2 and not numbers_alone:
            continue
        if sizes.wanted(shape) >= 0:
            return None
        ways = [sizes.join(shape, len(members), biased=(key[0], "bias") in inner)]
        if len(shape) > 1:
            ways.append(Join((shape[1],) * len(members), 1))
        way = next((way for way in ways if sizes.wanted(way.shape(shape)) > 0), None)
        if way is None:
            left += 1
        else:
            plan[key] = way
    return plan if len(plan) > left else None  # a mask in each head may be left over, most of what it holds may not


def _plan_of_vectors(inner: _Inner, plan: _Plan) -> _Plan:
    """Return (path in a member, role) -> how to join, for the vectors of INNER (as in `plan_of_list`), and for the
    norms of weight norm that are columns [n, 1]. They are joined along their rows, as PLAN joins the weight of their
    module: interleaved like it, and `open` if that is; one after the other if PLAN does not have that weight. Left out
    are vectors that PLAN has already, and those beside a weight that PLAN joins along another dimension.
    """
    found: _Plan = {}
    for (path, role), members in inner.items():
        size = next(iter(members.values())).shape
        beside = plan.get((path, "weight"), plan.get((path, "weight_v")))
        by_row = len(size) == 1 or (role == "weight_g" and size[:1] == squeezed(size))
        if (path, role) not in plan and by_row and (beside is None or beside.dim == 0):
            turns = 1 if beside is None else beside.turns
            found[path, role] = Join(size[:1] * len(members), 0, turns, beside is not None and beside.open)
    return found


def _plan_of_layer(inner: _Inner, sizes: SizeCounts) -> _Plan | None:
    """Return how to join single layers of the members of a list: each matrix or kernel that two or more members have,
    in equal sizes. This side must have no other tensors of this size, and none of the joined size; the other side
    exactly one of the joined size, and none of this size (`SizeCounts.only_whole`). The biases are joined in the same
    way, if each of these members has one, as long as the layer has rows. None if there is no such layer. INNER and the
    result are as in `plan_of_list`.
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
    """Return sorted last names of layers -> paths of the modules of ONE in which the weights of layers with these names
    can be joined to one tensor (`families`, `join_of_family`): ("k", "q", "v") -> {`blocks.0.attn`, `blocks.1.attn`}.
    SIZES counts the tensors of both sides.
    """
    found: dict[_Path, set[_Path]] = defaultdict(set)
    for parent, pieces in siblings(one, other).items():
        for family in families(pieces, sizes):
            if join_of_family(family, sizes) is not None:
                found[tuple(sorted(p.last for p in family.parts))].add(parent)
    return found


def _families_elsewhere(head: _Path, inner: _Inner, parents: dict[_Path, set[_Path]]) -> bool:
    """Return whether the weights inside of each member of the list HEAD can be joined with each other, and weights with
    the same names also in some module outside of the list. A module is outside if its path does not begin with HEAD,
    numbers in the path left out of account. INNER has the tensors of the list; PARENTS has names -> paths of the
    modules in which weights with these names can be joined (`_parents`).
    """
    members = _modules(inner)
    own = template(head)
    return any(members <= there and any(template(at[: len(head)]) != own for at in there) for there in parents.values())


def _modules(inner: _Inner) -> set[_Path]:
    """Return the paths of the modules around the weights of INNER: `heads.0` for `heads.0.q`. The outermost module of
    the model is left out.
    """
    return {p.path[:-1] for pieces in inner.values() for p in pieces.values() if p.role == "weight" and len(p.path) > 1}


def _joined_by_block(inner: _Inner, parents: dict[_Path, set[_Path]]) -> bool:
    """Return whether the weights of the list with the tensors INNER are in several modules (`heads.0`, `heads.1`), and
    weights of the same names can be joined with each other in each of these modules. PARENTS is from `_parents`.
    """
    members = _modules(inner)
    return len(members) > 1 and any(members <= there for there in parents.values())


def _wholes_of(inner: _Inner, plan: _Plan, other: Canon) -> list[Piece]:
    """Return the weights of OTHER, with two or more dimensions, that have the sizes of those that PLAN makes of
    INNER.
    """
    made = {whole for _, whole in _joined_sizes(inner, plan)}
    return [p for p in other.pieces.values() if p.role == "weight" and len(p.shape) > 1 and squeezed(p.shape) in made]


def _wholes_are_listed(inner: _Inner, plan: _Plan, other: Canon) -> bool:
    """Return whether OTHER has the layers that PLAN makes of INNER in lists of as many members: OTHER has layers with
    the joined sizes, each has a number in its path, and the layers whose paths differ only in the last number have
    exactly the numbers of the members in INNER (path and role -> number -> piece). False if OTHER has no such layer.
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
    """Return whether OTHER has, for the name of each layer inside of a member that PLAN joins (`q` of `heads.0.q`), a
    layer with this last name and one of the joined sizes. False if PLAN joins no weight inside of a member, but only
    the members themselves.
    """
    named = {path[-1] for path, role in plan if role == "weight" and path}
    return bool(named) and named <= {piece.last for piece in _wholes_of(inner, plan, other) if piece.path}


def _join_list(one: Canon, head: _Path, planned: _Planned) -> None:
    """Replace the tensors of the members of the list HEAD in ONE, as PLANNED, by one for each path in a member and
    role: the one of `heads.0.q` and `heads.1.q` is at `heads.q` (at `parts`, if both the path of the list and that in a
    member are empty). Vectors that are not joined are added up, if their sizes are equal; other tensors that are not
    joined stay. On the source, the counters of batch norms move, too (`_move_counters`).

    A joined tensor gets a question for each of these that is so: it is a vector of a layer norm (a layer with a weight
    that is not `_by_channel`); PLANNED.open is set; its parts may be interleaved (`Join.open`).
    """
    inner, plan, is_open = planned
    for (path, role), members in inner.items():
        parts = [members[n] for n in sorted(members)]
        join = plan.get((path, role))
        words = tuple(word for word in parts[0].words if not word.isdecimal())
        new = replace(parts[0], path=(*head, *path) or ("parts",), words=words)
        if join is None:
            if len(new.shape) == 1:  # what is added to a sum of paths
                merge_sum(one, parts, new)
            continue
        if len(squeezed(new.shape)) == 1 and (path, "weight") in inner and not _by_channel(inner, path):
            several, whole = ("model", "source") if one.is_target else ("source", "model")
            new = new.asking(Reason.NORMS_AS_ONE, several, whole)
        if is_open:
            new = new.asking(Reason.LAYERS_OF_BLOCK)
        merge(one, parts, asked(one, parts, new, join) if join.open else new, join)
    if not one.is_target:
        _move_counters(one, head, inner)


def _move_counters(one: Canon, head: _Path, inner: _Inner) -> None:
    """Change the path of the counter (`num_batches_tracked`) of each batch norm in the first member of the list HEAD to
    the path of the joined norm: `heads.0.bn` to `heads.bn`. Counters of other members stay. INNER has the tensors of
    the list.
    """
    at, first = len(head), str(min(n for members in inner.values() for n in members))
    for key, below in list(one.counters.items()):
        if below[: at + 1] == (*head, first) and (below[at + 1 :], "running_mean") in inner:
            one.counters[key] = (*head, *below[at + 1 :])


def _by_channel(inner: _Inner, path: _Path) -> bool:
    """Return whether the layer at PATH in each member has a matrix or a kernel as its weight, or the statistics of a
    batch norm, so that it is no layer norm. It has to have a weight. INNER is as in `plan_of_list`.
    """
    weights = inner[path, "weight"]
    return (path, "running_mean") in inner or len(next(iter(weights.values())).shape) > 1
