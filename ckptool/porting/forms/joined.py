"""Several tensors of one list or one family of names on one side, which are one tensor on the other.

One mechanism for heads, paths and experts with a module each, tables of several fields in one, and stacked weights:
what stands apart is joined along a dimension, where the other side has as many tensors more of the joined
sizes as it has fewer of the parts. The order of a numbered list is kept; that of names is a doubt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, combinations, pairwise
from math import gcd

from .. import expression as ex
from ..doubts import Doubt
from ..expression import Expr, Shape
from ..matching.namesakes import namesakes
from ..matching.units import template
from ..words import cut, label, table
from .fused import BY_HEADS, fused_kind, part_label
from .layouts import is_bare, turn
from .pieces import Canon, Name, Piece, squeezed, unchanged
from .spelled import MOST_SPELLED, spelled

_Path = tuple[str, ...]

_ORDER = "in which order the parts stand in one tensor is in the code only"
_NORMS = "whether several norms are the same as one over all their channels is in the code only"
_LETTERS = "abcdefgh"
#: Of so many modules beside each other some may be parts of one.
_MOST_BESIDE = 8
_TURNS = "whether the parts stand one after the other or take turns is in the code only"


@dataclass(frozen=True, slots=True)
class _Join:
    """A way to make one tensor of several, and several of one.

    Attributes:
        sizes: of the parts along the dimension in which they are joined.
        dim: that dimension; None for a new one in front.
        turns: how many times the parts take turns along it; 1 if they stand one after the other.
    """

    sizes: tuple[int, ...]
    dim: int | None
    turns: int = 1

    def shape(self, part: Shape) -> Shape:
        """The sizes of the whole, for those of one part."""
        if self.dim is None:
            return (len(self.sizes), *part)
        return (*part[: self.dim], sum(self.sizes), *part[self.dim + 1 :])

    def whole(self, *parts: Expr, rest: Shape) -> Expr:
        """The whole, from the parts; REST are the sizes of one part behind the first dimension."""
        if self.dim is None:
            return ex.stack(*parts)
        if self.turns == 1:
            return ex.cat(self.dim, *parts)
        cut_up = [
            ex.reshape(part, (self.turns, size // self.turns, *rest))
            for part, size in zip(parts, self.sizes, strict=True)
        ]
        return ex.reshape(ex.cat(1, *cut_up), (sum(self.sizes), *rest))

    def part(self, whole: Expr, *, index: int, rest: Shape) -> Expr:
        """Part INDEX of the whole."""
        if self.dim is None:
            return ex.select(whole, 0, index)
        edges = list(pairwise(accumulate((0, *self.sizes))))
        start, stop = edges[index]
        if self.turns == 1:
            return ex.part(whole, self.dim, start, stop)
        rows = ex.reshape(whole, (self.turns, sum(self.sizes) // self.turns, *rest))
        inner = ex.part(rows, 1, start // self.turns, stop // self.turns)
        return ex.reshape(inner, (stop - start, *rest))


def join_parts(one: Canon, other: Canon) -> None:
    """Join what stands apart on one side, where the other side has it in one tensor."""
    _turn_spelled(one, other)
    _line_up(one, other)
    _count_spelled(one, other)
    _join_lists(one, other)
    while _join_families(one, other):  # what was joined is no longer among the tensors of its parts' sizes
        pass


def _turn_spelled(one: Canon, other: Canon) -> None:
    """Turn parameters of the other side whose name spells those of layers beside each other, and whose sizes show that
    they hold these with their inputs first."""
    wholes = [p for p in other.pieces.values() if is_bare(p) and len(p.shape) == 2 and p.shape[0] != p.shape[1]]
    turned: set[Name] = set()
    for pieces in _siblings(one, other).values() if wholes else ():
        rows: dict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            if len(piece.shape) == 2:
                rows[piece.shape[1]].append(piece)
        for inputs, parts in rows.items():
            shape = (inputs, sum(p.shape[0] for p in parts))
            names = {p.last for p in wholes if p.shape == shape}
            if 1 < len(parts) <= MOST_SPELLED and names and _spelled_parts(parts, names) is not None:
                turned |= {p.name for p in wholes if p.shape == shape and _spelled_parts(parts, {p.last}) is not None}
    for name in turned:
        turn(other, other.pieces[name])


class _Sizes:
    """How many tensors of some sizes two sides have more than each other."""

    def __init__(self, one: Canon, other: Canon) -> None:
        self._own = _counted(one)
        self._theirs = _counted(other)
        for piece in other.pieces.values():
            kind = fused_kind(piece) if piece.role == "weight" else None
            if kind is not None and piece.shape[0] % len(kind.parts) == 0:
                self._theirs[squeezed((piece.shape[0] // len(kind.parts), *piece.shape[1:]))] += len(kind.parts)

    def wanted(self, shape: Shape) -> int:
        """How many the other side has more."""
        return self._theirs[squeezed(shape)] - self._own[squeezed(shape)]

    def only_whole(self, part: Shape, whole: Shape, count: int) -> bool:
        """Whether this side has so many parts of these sizes and no whole, and the other one whole and no part."""
        part, whole = squeezed(part), squeezed(whole)
        own, theirs = (self._own[part], self._own[whole]), (self._theirs[part], self._theirs[whole])
        return own == (count, 0) and theirs == (0, 1)


def _counted(canon: Canon) -> Counter[Shape]:
    return Counter(squeezed(p.shape) for p in canon.pieces.values())


# -- numbered lists


def _line_up(one: Canon, other: Canon) -> None:
    """See lists beside each other as one list of parts, where the other side has layers of the sizes of these together:
    `filters.0` and `gates.0`, `filters.1` and `gates.1` of a code with a list for each kind of layer.
    """
    lists: dict[_Path, dict[str, dict[int, Piece]]] = defaultdict(lambda: defaultdict(dict))
    for piece in one.pieces.values():
        if piece.role == "weight" and len(piece.path) > 1 and piece.last.isdecimal() and not piece.path[-2].isdecimal():
            lists[piece.path[:-2]][piece.path[-2]][int(piece.last)] = piece
    sizes = _Sizes(one, other)
    for parent, named in lists.items():
        beside: dict[tuple[tuple[int, Shape], ...], list[str]] = defaultdict(list)
        for name, members in named.items():
            beside[tuple((n, members[n].shape) for n in sorted(members))].append(name)
        for places, names in beside.items():
            if 1 < len(names) <= MOST_SPELLED and len(places) > 1:
                blocks = {n: [named[name][n] for name in names] for n, _ in places}
                if _are_wanted(list(blocks.values()), sizes):
                    for n, parts in blocks.items():
                        for name, part in zip(names, parts, strict=True):
                            _move(one, part.path, (*parent, "+".join(names), str(n), name))


def _are_wanted(blocks: Sequence[Sequence[Piece]], sizes: _Sizes) -> bool:
    """Whether the other side has no such parts as some blocks hold, and all of what each of them is together."""
    joins = [_join_of_family(_Family(tuple(parts), (), numbered=False), sizes) for parts in blocks]
    parts = Counter(squeezed(part.shape) for block in blocks for part in block)
    if None in joins or any(-sizes.wanted(shape) < count for shape, count in parts.items()):
        return False
    wholes = Counter(squeezed(j.shape(parts[0].shape)) for j, parts in zip(joins, blocks, strict=True) if j)
    return all(count <= sizes.wanted(shape) for shape, count in wholes.items())


def _move(one: Canon, old: _Path, new: _Path) -> None:
    """Put what stands at one path at another."""
    for piece in [p for p in one.pieces.values() if p.path == old]:
        one.become(piece, [(replace(piece, path=new), unchanged)], unchanged)


_Content = dict[tuple[_Path, str], Piece]
_Look = tuple[tuple[tuple[_Path, str], Shape], ...]


def _count_spelled(one: Canon, other: Canon) -> None:
    """See modules beside each other as a list, where one of the other side has the names of all of them in its own, and
    the same tensors, of the sizes that theirs have together: `main_conv` and `short_conv`, each a layer with its norm,
    which are `main_short_conv` there.
    """
    wholes: dict[_Look, set[str]] = defaultdict(set)
    for named in _modules(other).values():
        for name, content in named.items():
            wholes[_look(content)].add(name)
    sizes = _Sizes(one, other)
    for parent, named in _modules(one).items():
        alike: dict[_Look, list[str]] = defaultdict(list)
        for name, content in named.items():
            alike[_look(content)].append(name)
        for names in alike.values():
            while names and (members := _spelled_by_one(names, named[names[0]], wholes)):
                inner = {key: {at: named[name][key] for at, name in enumerate(members)} for key in named[names[0]]}
                if _plan_of_list(inner, sizes) is None:
                    break
                for at, name in enumerate(members):
                    for path in dict.fromkeys(piece.path for piece in named[name].values()):
                        _move(one, path, (*parent, "+".join(members), str(at), *path[len(parent) + 1 :]))
                names = [name for name in names if name not in members]


def _spelled_by_one(names: Sequence[str], content: _Content, wholes: Mapping[_Look, set[str]]) -> list[str]:
    """Some of these modules, each with such CONTENT, in the order in which the name of a whole spells them; or none."""
    for n in range(2, min(len(names), MOST_SPELLED) + 1) if len(names) <= _MOST_BESIDE else ():
        spoken = wholes.get(_look(content, n), set())
        for some in combinations(names, n) if spoken else ():
            if (order := spelled(some, spoken)) is not None:
                return [some[at] for at in order]
    return []


def _modules(canon: Canon) -> dict[_Path, dict[str, _Content]]:
    """What is in each named module, by what is around it."""
    held: dict[_Path, dict[str, _Content]] = defaultdict(lambda: defaultdict(dict))
    for piece in canon.pieces.values():
        for at, name in enumerate(piece.path[:-1]):
            if not name.isdecimal():
                held[piece.path[:at]][name][piece.path[at + 1 :], piece.role] = piece
    return held


def _look(content: _Content, times: int = 1) -> _Look:
    """The tensors of a module, or of so many of them in one."""
    return tuple(sorted((key, (times * p.shape[0], *p.shape[1:]) if p.shape else ()) for key, p in content.items()))


def _join_lists(one: Canon, other: Canon) -> None:
    """Join the members of numbered lists.

    Two joins fit a list of blocks that hold two like layers each and nothing else: inside of each block, or across the
    blocks. Such a list may be joined across its blocks.
    """
    for at in sorted({at for p in one.pieces.values() for at, c in enumerate(p.path) if c.isdecimal()}, reverse=True):
        sizes = _Sizes(one, other)
        parents = _parents(one, other, sizes)
        lists: dict[_Path, dict[tuple[_Path, str], dict[int, Piece]]] = defaultdict(lambda: defaultdict(dict))
        for piece in one.pieces.values():
            if len(piece.path) > at and piece.path[at].isdecimal():
                lists[piece.path[:at]][piece.path[at + 1 :], piece.role][int(piece.path[at])] = piece
        plans = {}
        for head, inner in lists.items():
            plan = _plan_of_list(inner, sizes)
            if plan is not None and not _families_elsewhere(head, inner, parents):
                plans[head] = plan
            elif (plan := _plan_of_layer(inner, sizes)) is not None:
                plans[head] = plan
                lists[head] = {key: inner[key] for key in plan}
        made = Counter(
            squeezed(join.shape(next(iter(lists[head][key].values())).shape))
            for head, plan in plans.items()
            for key, join in plan.items()
        )
        for head, plan in plans.items():
            wholes = [join.shape(next(iter(lists[head][key].values())).shape) for key, join in plan.items()]
            if all(made[squeezed(w)] <= sizes.wanted(w) for w in wholes if len(squeezed(w)) > 1):
                _join_list(one, head, lists[head], plan)


_Inner = dict[tuple[_Path, str], dict[int, Piece]]
_Plan = dict[tuple[_Path, str], _Join]


def _plan_of_list(inner: _Inner, sizes: _Sizes) -> _Plan | None:
    """How to join what each member of a list holds, or None where that is not what the other side has."""
    numbers = {tuple(sorted(members)) for members in inner.values()}
    if len(numbers) != 1 or len(next(iter(numbers))) < 2:
        return None
    plan: _Plan = {}
    left = 0
    for key, members in inner.items():
        shapes = {p.shape for p in members.values()}
        if len(shapes) != 1:
            return None
        shape = next(iter(shapes))
        if len(squeezed(shape)) < 2:
            continue
        if sizes.wanted(shape) >= 0:
            return None
        ways = [_Join((shape[d],) * len(members), d) for d in (0, 1)]
        fitting = [way for way in ways if sizes.wanted(way.shape(shape)) > 0]
        if fitting:
            plan[key] = fitting[0]
        else:
            left += 1
    if len(plan) <= left:  # a mask in each head may be left over, most of what it holds may not
        return None
    for (path, role), members in inner.items():
        size = next(iter(members.values())).shape
        beside = plan.get((path, "weight"))
        if (path, role) not in plan and len(size) == 1 and (beside is None or beside.dim == 0):
            plan[path, role] = _Join(size * len(members), 0)
    return plan


def _plan_of_layer(inner: _Inner, sizes: _Sizes) -> _Plan | None:
    """How to join one layer of each member of a list, of which the other side has no part, and one over all of them.

    As where one layer computes the filters of all blocks, and all else is in each of them on both sides.
    """
    plan: _Plan = {}
    for (path, role), members in inner.items():
        shapes = {p.shape for p in members.values()}
        if role != "weight" or len(members) < 2 or len(shapes) > 1 or len(squeezed(next(iter(shapes)))) < 2:
            continue
        shape = next(iter(shapes))
        join = _Join((shape[0],) * len(members), 0)
        if sizes.only_whole(shape, join.shape(shape), len(members)):
            plan[path, role] = join
            bias = inner.get((path, "bias"), {})
            if bias.keys() == members.keys() and {p.shape for p in bias.values()} == {shape[:1]}:
                plan[path, "bias"] = join
    return plan or None


def _parents(one: Canon, other: Canon, sizes: _Sizes) -> dict[_Path, set[_Path]]:
    """Names of tensors that can be joined with each other -> where they stand beside each other."""
    found: dict[_Path, set[_Path]] = defaultdict(set)
    for parent, pieces in _siblings(one, other).items():
        for family in _families(pieces, sizes):
            if _join_of_family(family, sizes) is not None:
                found[tuple(sorted(p.last for p in family.parts))].add(parent)
    return found


def _families_elsewhere(head: _Path, inner: _Inner, parents: dict[_Path, set[_Path]]) -> bool:
    """Whether what each member of a list holds can be joined with each other, and is so outside of such lists, too."""
    members = {
        p.path[:-1] for pieces in inner.values() for p in pieces.values() if p.role == "weight" and len(p.path) > 1
    }
    own = template(head)
    return any(members <= there and any(template(at[: len(head)]) != own for at in there) for there in parents.values())


def _join_list(one: Canon, head: _Path, inner: _Inner, plan: _Plan) -> None:
    for (path, role), members in inner.items():
        parts = [members[n] for n in sorted(members)]
        join = plan.get((path, role))
        new = replace(parts[0], path=(*head, *path) or ("parts",), words=_without_number(parts[0]))
        if join is not None:
            if len(new.shape) == 1 and (path, "weight") in inner and not _by_channel(inner, path):
                new = replace(new, doubts=(*new.doubts, Doubt(_NORMS)))
            _merge(one, parts, new, join)
        elif len(new.shape) == 1:  # what is added to a sum of paths
            _merge_sum(one, parts, new)
    if not one.is_target:
        for key, below in list(one.counters.items()):
            in_list = below[: len(head)] == head and (below[len(head) + 1 :], "running_mean") in inner
            if in_list and below[len(head) : len(head) + 1] == ("0",):
                one.counters[key] = (*head, *below[len(head) + 1 :])


def _by_channel(inner: _Inner, path: _Path) -> bool:
    """Whether what stands at PATH in each member works on its channels one by one: a layer does, and a batch norm."""
    weights = inner[path, "weight"]
    return (path, "running_mean") in inner or len(next(iter(weights.values())).shape) > 1


def _without_number(piece: Piece) -> _Path:
    return tuple(word for word in piece.words if not word.isdecimal())


def _merge(one: Canon, parts: Sequence[Piece], new: Piece, join: _Join) -> Piece:
    rest = parts[0].shape[1:]
    new = replace(
        new,
        shape=join.shape(parts[0].shape),
        order=min(p.order for p in parts),
        used=min((p.used for p in parts if p.used is not None), default=None),
        doubts=tuple(dict.fromkeys((*(d for p in parts for d in p.doubts), *new.doubts))),
    )
    up: list[Callable[[Expr], Expr]] = [partial(join.part, index=i, rest=rest) for i in range(len(parts))]
    one.merge(parts, new, partial(join.whole, rest=rest), up)
    return new


def _merge_sum(one: Canon, parts: Sequence[Piece], new: Piece) -> None:
    """The biases of layers whose results are added: their sum, and of a sum the first one with zeros for the others."""
    if len({p.shape for p in parts}) == 1:
        zeros = ex.zeros(*parts[0].shape)
        up: list[Callable[[Expr], Expr]] = [unchanged, *[lambda _: zeros] * (len(parts) - 1)]
        one.merge(parts, new, ex.add, up)


# -- families of names


def _siblings(one: Canon, other: Canon) -> dict[_Path, list[Piece]]:
    """Weights of one side that the other has not under their names, by what they are parts of."""
    siblings: dict[_Path, list[Piece]] = defaultdict(list)
    labelled = {(label, p.shape) for p in other.pieces.values() if (label := part_label(p.path)) and len(p.shape) > 1}
    there = namesakes(one, other)
    for piece in one.pieces.values():
        if piece.role == "weight" and piece.path and piece.name not in there and not _of_fewer_heads(piece, labelled):
            siblings[piece.path[:-1]].append(piece)
    for parent, held in siblings.items():  # what is called by its module alone: `words.weight` beside `words.more`
        own = one.pieces.get(Name(parent, "weight"))
        if own is not None and all(len(p.shape) > 1 for p in (own, *held)):
            held.append(own)
    return siblings


def _of_fewer_heads(piece: Piece, labelled: set[tuple[str, Shape]]) -> bool:
    """Whether keys or values may be those of fewer heads than the other side has: no parts of one layer."""
    which = part_label(piece.path)
    return which in ("k", "v") and any(
        label == which
        and shape[1:] == piece.shape[1:]
        and 0 < piece.shape[0] < shape[0]
        and shape[0] % piece.shape[0] == 0
        for label, shape in labelled
    )


def _join_families(one: Canon, other: Canon) -> bool:
    """Join siblings. Returns whether any were."""
    sizes = _Sizes(one, other)
    plans: list[tuple[_Path, _Family, _Join]] = []
    taken: set[Name] = set()
    for parent, pieces in _siblings(one, other).items():
        for family in _families(pieces, sizes):
            join = _join_of_family(family, sizes)
            if join is not None and not taken & {p.name for p in family.parts}:
                taken |= {p.name for p in family.parts}
                plans.append((parent, family, join))
    wholes: dict[Shape, set[str]] = defaultdict(set)
    for piece in other.pieces.values():
        if piece.path:
            wholes[squeezed(piece.shape)].add(piece.last)
    made: dict[Shape, list[tuple[_Path, _Family, _Join, tuple[Piece, ...] | None]]] = defaultdict(list)
    for parent, family, join in plans:
        whole = squeezed(join.shape(family.parts[0].shape))
        made[whole].append((parent, family, join, _spelled_parts(family.parts, wholes[whole])))
    joined = False
    for whole, found in made.items():
        if len(found) > sizes.wanted(whole):
            found = [one for one in found if one[-1] is not None]  # of more than there can be, those that a name spells
        for parent, family, join, named in found if len(found) <= sizes.wanted(whole) else ():
            there = [p for p in other.pieces.values() if squeezed(p.shape) == whole]
            order = named or _by_gate(family.parts, there)
            if order is None and (order := _by_cuts(family, join, other)) is not None:
                join = replace(join, turns=1)
            if order is not None:
                by_heads = join.dim == 0 and len(set(join.sizes)) > 1 and all(_label(p.words) for p in order)
                family, join = replace(family, parts=order, numbered=True), _join_in_order(join, family, order)
                if by_heads:  # a name says what comes first, in the whole or in each head
                    family = replace(family, doubt=Doubt(BY_HEADS))
            _join_family(one, parent, family, join)
            joined = True
    return joined


def _join_in_order(join: _Join, family: _Family, parts: Sequence[Piece]) -> _Join:
    """A join with the sizes in the order of PARTS, which are those of a family."""
    sizes = {part.name: size for part, size in zip(family.parts, join.sizes, strict=True)}
    return replace(join, sizes=tuple(sizes[part.name] for part in parts))


def _spelled_parts(parts: Sequence[Piece], wholes: set[str]) -> tuple[Piece, ...] | None:
    """The parts in the order in which the name of the whole spells them."""
    order = spelled([part.last for part in parts], wholes)
    return None if order is None else tuple(parts[at] for at in order)


def _by_gate(parts: Sequence[Piece], wholes: Sequence[Piece]) -> tuple[Piece, ...] | None:
    """A gate and what it is multiplied with in the order in which the forward pass takes them out of the whole."""
    halves = {None if piece.entry.facts.gate is None else piece.entry.facts.gate.half for piece in wholes}
    gates = [part for part in parts if part_label(part.path) == "gate" or {"gate", "gates"} & set(cut(part.last))]
    if len(parts) != 2 or len(gates) != 1 or len(halves) != 1 or halves == {None}:
        return None
    return tuple(sorted(parts, key=lambda part: (part is gates[0]) != (halves == {0})))


def _by_cuts(family: _Family, join: _Join, other: Canon) -> tuple[Piece, ...] | None:
    """Parts of a size each in the order in which the code of the model has these sizes, if it has them in one alone."""
    if join.dim != 0 or len(set(join.sizes)) < len(join.sizes) or not other.is_target:
        return None
    told = {sizes for sizes in other.signature.cuts if sorted(sizes) == sorted(join.sizes)}
    if len(told) != 1:
        return None
    return tuple(family.parts[join.sizes.index(size)] for size in next(iter(told)))


@dataclass(frozen=True, slots=True)
class _Family:
    """Parts of one thing by their names.

    Attributes:
        parts: them, in order.
        stem: what their names have in common.
        numbered: whether names say the order.
        turns: whether they may take turns.
        doubt: about how they stand, or None.
    """

    parts: tuple[Piece, ...]
    stem: _Path
    numbered: bool
    turns: bool = False
    doubt: Doubt | None = None


def _families(pieces: list[Piece], sizes: _Sizes) -> list[_Family]:
    """Groups of siblings that may be parts of one tensor; numbered names first, then those of a table, then all."""
    pieces = sorted((p for p in pieces if sizes.wanted(p.shape) < 0), key=lambda p: p.order)
    listed = sorted((p for p in pieces if p.last.isdecimal()), key=lambda p: int(p.last))
    pieces = [p for p in pieces if not p.last.isdecimal()]
    found = [_Family(tuple(listed), (), numbered=True)] if len({p.shape for p in listed}) > 1 else []
    for known, place in ((_number, True), (_letter, True), (_label, False)):
        groups: dict[_Path, dict[str, Piece]] = defaultdict(dict)
        for piece in pieces:
            said = known(cut(piece.last))
            if said is not None:
                groups[said[1]][said[0]] = piece
        for stem, members in groups.items():
            if len(members) > 1:
                ordered = tuple(members[k] for k in sorted(members, key=int if place else None))
                if known is not _letter or _counts(members, ordered):
                    found.append(_Family(ordered, stem, place and _in_a_row([int(k) for k in members])))
    found[:0] = _of_one_stem(pieces)
    found += _of_gates(pieces)
    for kinds in table().together:
        labelled = {part: p for p in pieces if (part := kinds.label(cut(p.last))) is not None}
        if len(labelled) > 1:
            parts = tuple(labelled[k] for k in kinds.parts if k in labelled)
            found.append(_Family(parts, (), numbered=kinds.sure, turns=kinds.turns))
    alike: dict[tuple[int, Shape], list[Piece]] = defaultdict(list)
    for piece in pieces:
        for dim in range(min(len(piece.shape), 2)):
            alike[dim, (*piece.shape[:dim], 0, *piece.shape[dim + 1 :])].append(piece)
    for (dim, rest), group in alike.items():
        if dim == 1 and rest[0] == 1:  # of a table of positions, one row for a token stands in front
            group.sort(key=lambda p: p.shape[1] != 1)
        elif dim == 1 and all(p.used is not None for p in group):  # inputs: what is computed first is named first
            group.sort(key=lambda p: p.used or 0)
        if len(group) > 1:
            found.append(_Family(tuple(group), (), numbered=False))
            found += _of_one_word(group)
        tables = [p for p in group if label(table().group("embedding"), p.words) == "position"]
        if 1 < len(tables) < len(group):  # beside a token for the class, which the other side has apart, too
            token = tables[0].shape[1] == 1 and not {"cls", "class", "token"}.isdisjoint(tables[0].words)
            found.append(_Family(tuple(tables), (), numbered=dim == 1 and token))
    return found


def _of_one_word(group: Sequence[Piece]) -> list[_Family]:
    """Some of a group whose names have a word in common that those of the others do not have."""
    having: dict[str, list[Piece]] = defaultdict(list)
    for piece in group:
        for word in {*cut(piece.last)}:
            having[word].append(piece)
    return [_Family(tuple(some), (), numbered=False) for some in having.values() if 1 < len(some) < len(group)]


def _of_one_stem(pieces: list[Piece]) -> list[_Family]:
    """Three parts or more of equal sizes whose names differ in their last word: `mix_r`, `mix_k`, `mix_v`."""
    groups: dict[tuple[_Path, Shape], list[Piece]] = defaultdict(list)
    for piece in pieces:
        words = cut(piece.last)
        if len(words) > 1 and not words[-1].isdecimal():
            groups[words[:-1], piece.shape].append(piece)
    return [_Family(tuple(group), stem, numbered=False) for (stem, _), group in groups.items() if len(group) > 2]


def _of_gates(pieces: list[Piece]) -> list[_Family]:
    """The update and the reset gate of a GRU (`convz`, `convr`), which share an input; the candidate does not."""
    named = {piece.last: piece for piece in pieces}
    both = [(one, named.get(f"{name[:-1]}r")) for name, one in named.items() if name[-1:] == "z"]
    return [_Family((one, other), (), numbered=False) for one, other in both if other and one.shape == other.shape]


def _in_a_row(numbers: Sequence[int]) -> bool:
    """Whether numbers count something: `w1` and `w3`, where another `w2` is, do not say which comes first in one."""
    return max(numbers) - min(numbers) == len(numbers) - 1


def _number(words: _Path) -> tuple[str, _Path] | None:
    if len(words) < 2 or not words[-1].isdecimal():
        return None
    return words[-1], words[:-1]


def _letter(words: _Path) -> tuple[str, _Path] | None:
    """The place in the alphabet of a letter behind a number: `conv1a` and `conv1b`."""
    if len(words) < 3 or len(words[-1]) > 1 or words[-1] not in _LETTERS or not words[-2].isdecimal():
        return None
    return str(_LETTERS.index(words[-1])), words[:-1]


def _counts(members: dict[str, Piece], ordered: Sequence[Piece]) -> bool:
    """Whether letters count: they are a, b and so on without a gap, registered in that order."""
    places = {int(k) for k in members}
    return places == set(range(len(members))) and all(a.order < b.order for a, b in pairwise(ordered))


def _label(words: _Path) -> tuple[str, _Path] | None:
    """Queries and keys (in that order), in names that are equal otherwise."""
    for at, word in enumerate(words):
        said = table().parts.get((word,))
        if said in ("q", "k", "v") and len(words) > 1:
            return str("qkv".index(said)), (*words[:at], *words[at + 1 :])
    return None


def _join_of_family(family: _Family, sizes: _Sizes) -> _Join | None:
    shapes = [p.shape for p in family.parts]
    ways = []
    if len({shape[1:] for shape in shapes}) == 1 and len(shapes[0]) > 1:
        rows = tuple(shape[0] for shape in shapes)
        ways.append(_Join(rows, 0, gcd(*rows) if family.turns else 1))
    if len({(shape[:1], shape[2:]) for shape in shapes}) == 1 and min(map(len, shapes)) > 1:
        ways.append(_Join(tuple(shape[1] for shape in shapes), 1))
    if len(set(shapes)) == 1 and len(squeezed(shapes[0])) > 0:
        ways.append(_Join((1,) * len(shapes), None))
    return next((way for way in ways if sizes.wanted(way.shape(shapes[0])) > 0), None)


def _join_family(one: Canon, parent: _Path, family: _Family, join: _Join) -> None:
    leaf = table().leaves.get(family.stem)  # q_scale and q_shift are weight and bias of one thing
    stem = ("parts",) if leaf is not None else family.stem or ("+".join(p.last for p in family.parts),)
    words = tuple(word for component in (*parent, *family.stem) for word in cut(component))
    for role in ("weight", "bias"):
        found = [m for p in family.parts if (m := one.pieces.get(p.name.beside(role))) is not None]
        if role == "bias" and join.dim == 1 and found:
            _merge_sum(one, found, replace(found[0], path=(*parent, *stem), words=words))
        if len(found) != len(family.parts):
            continue
        if role == "bias" and not _fits_bias(join, [m.shape for m in found]):
            continue
        new = replace(found[0], path=(*parent, *stem), role=leaf or role, words=words)
        if family.doubt is not None:
            new = replace(new, doubts=(family.doubt,))
        elif not family.numbered:
            new = replace(new, doubts=(_doubt(one, found, new, join),))
        _merge(one, found, new, join)


def _fits_bias(join: _Join, shapes: Sequence[Shape]) -> bool:
    """Whether biases are joined as the weights beside them are: by rows, or as a stack."""
    if join.dim is None:
        return len(set(shapes)) == 1
    return join.dim == 0 and tuple(shape[0] for shape in shapes) == join.sizes


def _doubt(one: Canon, parts: Sequence[Piece], new: Piece, join: _Join) -> Doubt:
    """That the order of names is a convention, with what else it could be."""
    rest = parts[0].shape[1:]
    places = range(len(parts))
    if join.turns > 1:
        why, other = _TURNS, replace(join, turns=1)
    elif len(parts) == 2:
        why, other, places = _ORDER, replace(join, sizes=join.sizes[::-1]), places[::-1]
    else:
        return Doubt(_ORDER)
    if one.is_target:
        own = ex.of(new.name.hole)
        there = {place: other.part(own, index=i, rest=rest) for i, place in enumerate(places)}
        return Doubt(why, rival=join.whole(*(there[i] for i in range(len(parts))), rest=rest))
    return Doubt(why, rival=other.whole(*(parts[i].expr for i in places), rest=rest))
