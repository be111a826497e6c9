"""Changes that make keys without a source of tensors of the source that nothing uses.

Matching may find no form that both sides share: vectors apart in one code and stacked in the other, a complex kernel as
two real ones. But whatever a whole model is made of is used somewhere, so what is left on one side belongs to what is
left on the other. Families of equal tensors are tried with each other, whatever makes one of the other (`dimensions`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nsmallest
from itertools import combinations, islice, permutations, product
from math import prod

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import squeezed
from ..words import common_start
from .dimensions import bordered, ways
from .flow import Use
from .ground import Change, Ground, module_of

#: What the labels of these changes begin with.
UNUSED = "of unused tensors"
#: Keys, in their order.
Family = tuple[str, ...]

#: Families of the source that are tried for one of the model, and changes for each pair of them.
_FAMILIES, _FOR_A_PAIR = 12, 64
#: What each nearer family adds to the cost; what a change of several adds that reads different modules for one; what a
#: key adds that is used after the place where the models diverge; and what a change adds that leaves tensors of equal
#: sizes unread in the modules that it reads from.
_FARTHER, _UNLIKE, _LATER, _UNREAD = 0.4, 3.0, 2.0, 2.0
#: Changes in all.
_MOST = 200
#: Of one family of the model, changes for each pair and in all that are combined with those of others; and changes of
#: several at once.
_FOR_SEVERAL, _OF_ONE, _TOGETHER = 16, 48, 160
#: Keys that are cut from tensors of the source at once, these tensors, and ways to do so.
_CUT, _WHOLES, _CUTS = 6, 4, 24
#: Combinations that are looked at, of which those are the cheapest.
_COMBINED = 4096
#: Keys whose modules are filled as a whole.
_JOINED = 4
#: Keys that are used after that place.
_AFTER = 3
#: How often a vector is repeated, at most.
_TIMES = 64
#: The most members of a family that are tried in each order.
_IN_EACH_ORDER = 4


@dataclass(frozen=True, slots=True)
class Filling:
    """Expressions for the keys of one or several families of the model (keys with tensors of equal sizes), made of such
    families of the source.

    Attributes:
        cost: how far it is from the simplest; the one with the lowest cost is tried first.
        how: what is done, in words; equal for the same change in another block.
        new: key -> expression.
        read: the keys of the source that it reads.
    """

    cost: float
    how: str
    new: dict[str, Expr]
    read: frozenset[str]


def from_unused(ground: Ground, fronts: Sequence[Use]) -> Iterator[Change]:
    """Yield each of the `fillings` as a change (label, key -> expression). They make keys without a source, which the
    uses FRONTS or a few later uses read, of unused tensors.
    """
    for one in fillings(ground, fronts):
        yield f"{UNUSED}, {one.how}", one.new


def cut_from_few(ground: Ground) -> Iterator[Change]:
    """Yield changes (label, key -> expression) that cut all keys without a source at once from fewer tensors: from all
    tensors of two or more dimensions that the source's code uses and no entry reads. A tensor [12, 4] is cut along its
    first dimension, into keys of [4, 4] and [8, 4], say, with no rows left over; each tensor has to be used up. At most
    24 changes; nothing if there are more than six keys or four tensors, or not fewer tensors than keys.
    """
    open_ = {key: e.shape for key, e in ground.entries.items() if e.status == "unmapped" and 0 not in e.shape}
    left = {key: shape for key, shape in (_left(ground) if open_ else {}).items() if len(shape) > 1}
    if len(left) < len(open_) <= _CUT and 0 < len(left) <= _WHOLES:
        for chosen in islice(_covers(list(left), left, open_), _CUTS):
            new = {}
            for whole, keys in chosen:
                start = 0
                for key in keys:
                    stop = start + prod(open_[key]) // prod(left[whole][1:])
                    new[key] = ex.reshape(ex.part(ex.of(whole), 0, start, stop), open_[key])
                    start = stop
            yield f"{UNUSED}, all cut from {len(left)}", new


def _covers(
    wholes: Sequence[str], left: MappingOf[str, Shape], open_: MappingOf[str, Shape]
) -> Iterator[list[tuple[str, Family]]]:
    """Yield each way to cut all keys of OPEN_ (key -> sizes) from all tensors WHOLES, as a list of (one of WHOLES, the
    keys that are cut from it, in the order of its rows); nothing if there is no way. The keys of a tensor have rows of
    its sizes (`_is_cut_so`) and as many numbers together as it has; each key is cut from one tensor. LEFT has the sizes
    of WHOLES. Ways with few keys of the first tensor come first, then those with keys in the order of OPEN_.
    """
    if not wholes:
        yield from [[]] if not open_ else []
        return
    first, *others = wholes
    width = left[first][1:]
    fitting = [key for key, shape in open_.items() if _is_cut_so(shape, width)]
    for count in range(1, len(fitting) + 1):
        for keys in permutations(fitting, count):
            if sum(prod(open_[key]) for key in keys) == prod(left[first]):
                rest = {key: shape for key, shape in open_.items() if key not in keys}
                yield from ([(first, keys), *more] for more in _covers(others, left, rest))


def _is_cut_so(shape: Shape, width: Shape) -> bool:
    """Return whether a tensor of sizes SHAPE may be rows of a tensor whose rows have the sizes WIDTH: several rows
    ([8, 4] for rows of (4,)), or one row, where sizes of 1 do not count ([4] or [1, 4, 1]).
    """
    return width in (squeezed(shape), shape[1:])


def fillings(ground: Ground, fronts: Sequence[Use]) -> list[Filling]:
    """Return up to 200 ways to make keys without a source of tensors that the source's code uses and no entry reads,
    the cheapest first, none twice. Each fills one family (several keys with tensors of equal sizes) or several at once.

    The keys are those that the uses FRONTS read, and up to three that later uses read (2 is added to the cost of
    these). [] if there are none, or no such tensors. A family of a key is filled alone only if one family of this key
    has all keys without a source that the uses of the key read: with less, no use would agree. So a weight whose layer
    also lacks its bias is not filled alone. For the first four keys, several families of one use or module are filled
    together, too (`_together`, `_several`). A filling costs 2 more if it leaves a tensor unread that has the module and
    the sizes of one that it reads.
    """
    open_ = {key: e.shape for key, e in ground.entries.items() if e.status == "unmapped" and 0 not in e.shape}
    left = _left(ground) if open_ else {}
    at_front = {key for use in fronts for key in use.keys}
    several = [{key for key in use.keys if key in open_} for use in ground.own.uses]
    every: list[Filling] = []
    done: set[Family] = set()
    joined: set[Family] = set()
    modules: set[str] = set()
    for place, key in enumerate(_touched(ground, fronts, open_) if left else ()):
        beside = [keys for keys in several if key in keys]
        alone = _alone(key, open_, beside, done)
        found = [one for family in alone for one in _fillings(ground, family, left, _FOR_A_PAIR)]
        for keys in _together(key, open_, beside, modules) if place < _JOINED else ():
            if keys not in joined:
                joined.add(keys)
                found += _several(ground, {k: open_[k] for k in keys}, left)
        later = 0.0 if key in at_front else _LATER
        every += [replace(one, cost=one.cost + later + _UNREAD * _leaves_some(one, left)) for one in found]
    once = {frozenset(one.new.items()): one for one in sorted(every, key=lambda one: -one.cost)}
    return nsmallest(_MOST, once.values(), key=lambda one: one.cost)


def _alone(key: str, open_: MappingOf[str, Shape], beside: Sequence[set[str]], done: set[Family]) -> list[Family]:
    """Return the families of KEY among OPEN_ (key -> sizes of the keys without a source) that are not in DONE, and add
    them to DONE. BESIDE has, for each use of KEY, the keys of OPEN_ that it reads. [] if no family of KEY has all keys
    of each of BESIDE, because with one of them missing, no use would agree.
    """
    near = families(key, open_)
    if not any(all(keys <= set(family) for keys in beside) for family in near):
        return []
    new = [family for family in near if family not in done]
    done |= set(new)
    return new


def _leaves_some(one: Filling, left: MappingOf[str, Shape]) -> bool:
    """Return whether the filling ONE leaves a tensor unread beside one that it reads: a key of LEFT (key -> sizes) in
    the same module of the source, of the same sizes.
    """
    like = {(module_of(key), left[key]) for key in one.read}
    return any((module_of(key), shape) in like for key, shape in left.items() if key not in one.read)


def _touched(ground: Ground, fronts: Sequence[Use], open_: MappingOf[str, Shape]) -> list[str]:
    """Return the keys of OPEN_ (key -> sizes of the keys without a source) that the uses FRONTS read, and then up to
    three that are read by uses which depend on FRONTS, in the order of execution: the output of a front may be in the
    source only with a bias that is added later.
    """
    found = dict.fromkeys(key for use in fronts for key in use.keys if key in open_)
    behind = {use.index for use in fronts}
    after: dict[str, None] = {}
    for use in ground.own.uses:
        if behind & use.before:
            behind.add(use.index)
            after |= dict.fromkeys(key for key in use.keys if key in open_ and key not in found)
    return [*found, *islice(after, _AFTER)]


def _left(ground: Ground) -> dict[str, Shape]:
    """Return key -> sizes for the tensors of the source that its code uses and no entry reads, in the order of their
    first use; {} if there are none.
    """
    read = {key for entry in ground.entries.values() for key in entry.sources}
    used = dict.fromkeys(key for use in ground.theirs.uses for key in use.keys)
    return {key: ground.shapes[key] for key in used if key in ground.shapes and key not in read}


def families(key: str, shapes: MappingOf[str, Shape]) -> list[Family]:
    """Return the families of KEY, each once: groups of keys of SHAPES (key -> sizes) with the sizes of KEY, KEY among
    them. These are KEY alone; all in its module; for each number in KEY, all that differ from it in that number only,
    sorted by it; all with its last name in modules beside its own (`a.q.weight`, `a.k.weight`).
    """
    path, _, name = key.rpartition(".")
    above = module_of(path)
    alike = [other for other, shape in shapes.items() if shape == shapes[key]]
    found = [
        (key,),
        tuple(other for other in alike if module_of(other) == path),
        *(tuple(sorted((o for o in alike if pattern.fullmatch(o)), key=_by_number)) for pattern in _patterns(key)),
        tuple(o for o in alike if o.endswith(f".{name}") and module_of(module_of(o)) == above),
    ]
    return [family for family in dict.fromkeys(found) if key in family]


def _patterns(key: str) -> list[re.Pattern[str]]:
    """Return a pattern for each number in KEY, which fits KEY and the keys that differ from it in that number alone."""
    return [
        re.compile(f"{re.escape(key[: number.start()])}[0-9]+{re.escape(key[number.end() :])}")
        for number in re.finditer("[0-9]+", key)
    ]


def _by_number(key: str) -> list[tuple[int, str]]:
    """Return a value to sort keys like KEY by, in which a number counts as a number: 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split("([0-9]+)", key)]


def _fillings(ground: Ground, family: Family, left: MappingOf[str, Shape], most: int) -> list[Filling]:
    """Return ways to make FAMILY, keys of the model, of tensors of LEFT (key -> sizes), the cheapest first; [] if there
    are none. Families of LEFT (`families`), also with one tensor more (`_with_one_beside`) or with some of their
    members (`_parts`), may make it if they have as many numbers in all as FAMILY, or if FAMILY is one tensor and may be
    the sum of the members, or one vector several times (2 to 64).

    The 12 of these that are nearest by use, path and name are tried, with at most MOST ways each (`_of_a_pair`), each
    farther one at 0.4 more cost. If FAMILY is one tensor with two dimensions or more, at most MOST ways with a border
    around a smaller tensor (`bordered`) are added.
    """
    shape = ground.entries[family[0]].shape
    wanted = len(family) * prod(shape)
    every: dict[Family, None] = {}
    for key, have in left.items():
        for whole in families(key, left):
            every |= dict.fromkeys(
                part
                for theirs in (whole, *_with_one_beside(whole, left))
                for part in _parts(theirs, wanted // prod(have))
                if len(part) * prod(have) == wanted
                or _are_added(part, have, family, shape)
                or _is_repeated(part, have, family, shape)
            )
    near, next_ = _near(ground, family), ground.next_keys

    def distance(theirs: Family) -> tuple[bool, int, bool]:
        """Return a value that is lowest for the nearest family THEIRS of the source. It has first whether all of its
        keys come next in the source's code (`Ground.next_keys`), then how near its path is to what fills the keys
        around FAMILY, then whether its last name is that of FAMILY.
        """
        return not next_.issuperset(theirs), -_closeness(theirs, near), _other_name(theirs, family)

    chosen = nsmallest(_FAMILIES, every, key=distance)
    out: list[Filling] = []
    for place, theirs in enumerate(chosen):
        pair = islice(_of_a_pair(ground, family, shape, theirs, left[theirs[0]]), most)
        out += [replace(one, cost=one.cost + _FARTHER * place) for one in pair]
    if len(family) == 1 and len(squeezed(shape)) > 1:
        edged = islice(sorted(bordered(shape, left), key=lambda one: one[0]), most)
        out += [Filling(cost, how, {family[0]: expr}, frozenset(expr.keys())) for cost, how, expr in edged]
    return sorted(out, key=lambda one: one.cost)


def _with_one_beside(theirs: Family, left: MappingOf[str, Shape]) -> Iterator[Family]:
    """Yield THEIRS, the keys of a list, with one more key of LEFT of equal sizes, last and then first, for each such
    key in the module that holds the list, or in a module directly inside of that. `conv.rel.0`, `conv.rel.1` (a weight
    for each relation) get `conv.root` (the node itself). Nothing if THEIRS has one key only.
    """
    if len(theirs) < 2:
        return
    paths = [key.split(".") for key in theirs]
    depth = max(common_start(paths) - 1, 0)
    for key, shape in left.items():
        path = key.split(".")
        near = path[:depth] == paths[0][:depth] and len(path) <= depth + 2
        if near and key not in theirs and shape == left[theirs[0]]:
            yield (*theirs, key)
            yield (key, *theirs)


def _parts(family: Family, count: int) -> Iterator[Family]:
    """Yield FAMILY; then, if it has three to five members, each choice of COUNT of them (as many as are needed), in the
    order of FAMILY; if COUNT is 1, each choice of two or more, but not of all, for sums. Only FAMILY if COUNT is 0 or
    not smaller than the number of members, or if FAMILY has fewer than three or more than five.
    """
    yield family
    if 2 < len(family) <= _IN_EACH_ORDER + 1:
        for size in range(2, len(family)) if count == 1 else [count] if 1 < count < len(family) else []:
            yield from combinations(family, size)


def _other_name(theirs: Family, family: Family) -> bool:
    """Return whether the first keys of THEIRS and FAMILY end in different names."""
    return theirs[0].rpartition(".")[2] != family[0].rpartition(".")[2]


def _are_added(theirs: Family, have: Shape, family: Family, shape: Shape) -> bool:
    """Return whether FAMILY, of one tensor of sizes SHAPE, may be the sum of the several THEIRS, of the same sizes HAVE
    up to dimensions of 1: the bias of layers that are joined along what they take.
    """
    return len(family) == 1 < len(theirs) and squeezed(have) == squeezed(shape)


def _is_repeated(theirs: Family, have: Shape, family: Family, shape: Shape) -> bool:
    """Return whether FAMILY, one vector of sizes SHAPE, may be the one vector THEIRS, of sizes HAVE, two to 64 times
    over: a bias of channels that one code has at each of several places, and the other as channels of their own (a
    transposed convolution, a pixel shuffle). Sizes of 1 do not count.
    """
    one, other = squeezed(have), squeezed(shape)
    times = other[0] // one[0] if len(one) == len(other) == 1 and other[0] % one[0] == 0 else 0
    return len(theirs) == len(family) == 1 and 1 < times <= _TIMES


def _of_a_pair(ground: Ground, family: Family, shape: Shape, theirs: Family, have: Shape) -> Iterator[Filling]:
    """Yield a `Filling`, with its cost, for each way to make FAMILY (keys of the model of sizes SHAPE each) of THEIRS
    (keys of the source of sizes HAVE each). The first of these cases that is true counts:

    - FAMILY is one key that has the sizes of each of several THEIRS: their sum.
    - FAMILY is one vector, 2 to 64 times as long as the one vector THEIRS: each number repeated (aabb), then the whole
      repeated (abab).
    - Else each of `ways`, the cheapest first, with THEIRS in each order (of more than four: as they are, and reversed).
      FAMILY is reordered in the same way if a member of it is made of several of THEIRS (not `Way.keeps_members`).
    """
    read = frozenset(theirs)
    if _are_added(theirs, have, family, shape):
        total = ex.add(*(ex.reshape(ex.of(key), shape, have) for key in theirs))
        yield Filling(1.0, f"{len(theirs)} added", {family[0]: total}, read)
        return
    if _is_repeated(theirs, have, family, shape):
        times, size = prod(shape) // prod(have), prod(have)
        for cost, how, dim in ((1.0, "each", 1), (1.5, "all", 0)):
            wide = (size, 1) if dim else (size,)
            whole = ex.cat(dim, *[ex.reshape(ex.of(theirs[0]), wide, have)] * times)
            several = ex.reshape(whole, shape, (size, times) if dim else (size * times,))
            yield Filling(cost, f"{how} {times} times", {family[0]: several}, read)
        return
    as_it_is = [(0, tuple(range(len(family))))]
    made = [
        (way.cost + 1.5 * (moved + turned), way, order, own)
        for way in ways((len(theirs), *have), (len(family), *shape))
        for moved, order in _orders(len(theirs))
        for turned, own in (as_it_is if way.keeps_members else _orders(len(family)))
    ]
    for cost, way, order, own in sorted(made, key=lambda one: one[0]):
        members = [ex.of(theirs[place]) for place in order]
        exprs = way.made(members, have, len(family), shape, ground.shapes)
        if exprs is not None:
            keys = [family[place] for place in own]
            yield Filling(cost, f"{way} in the order {order} {own}", dict(zip(keys, exprs, strict=True)), read)


@lru_cache(maxsize=64)
def _orders(count: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (number of inversions, order) for orders of COUNT members, as indices: each order of up to four; of more,
    the order as it is and its reverse, which counts as two inversions.
    """
    if count > _IN_EACH_ORDER:
        return (0, tuple(range(count))), (2, tuple(reversed(range(count))))
    return tuple((sum(a > b for a, b in combinations(order, 2)), order) for order in permutations(range(count)))


def _near(ground: Ground, family: Family) -> list[str]:
    """Return the keys of the source that the entries around FAMILY read: all in the module of its first key or below
    it, or else in the innermost module around that one in or below which entries have a source. [] if there is none;
    the whole model does not count.
    """
    path = family[0].split(".")[:-1]
    for depth in range(len(path), 0, -1):
        head = ".".join(path[:depth]) + "."
        out = [source for key, e in ground.entries.items() if key.startswith(head) for source in e.sources]
        if out:
            return out
    return []


def _closeness(theirs: Family, near: Iterable[str]) -> int:
    """Return the largest number of components at the beginning that the first key of THEIRS shares with one of NEAR,
    keys of the source; 0 without any.
    """
    return max((common_start([theirs[0].split("."), other.split(".")]) for other in near), default=0)


def _several(ground: Ground, open_: MappingOf[str, Shape], left: MappingOf[str, Shape]) -> Iterator[Filling]:
    """Yield up to 160 fillings, the cheapest first, each for two to four families of OPEN_ (key -> sizes) at once, of
    tensors of LEFT that no two of them share. The families are, for each key in turn, the largest that can be filled
    and has no key of those before; a key without any is left out. Nothing if they are fewer than two, or more than
    four.

    Only the cheapest fillings of each family are combined: 48 of two families, 15 of three, eight of four.
    """
    groups: list[list[Filling]] = []
    taken: set[str] = set()
    for key in open_:
        for family in sorted(families(key, open_), key=len, reverse=True) if key not in taken else ():
            found = _fillings(ground, family, left, _FOR_SEVERAL)[:_OF_ONE] if taken.isdisjoint(family) else []
            if found:
                taken |= set(family)
                groups.append(found)
                break
    if not 2 <= len(groups) <= 4:
        return
    groups = [group[: int(_COMBINED ** (1 / len(groups)))] for group in groups]
    together = (
        chosen
        for chosen in product(*groups)
        if len(frozenset().union(*(one.read for one in chosen))) == sum(len(one.read) for one in chosen)
    )
    yield from nsmallest(_TOGETHER, map(_joined, together), key=lambda one: one.cost)


def _together(key: str, open_: MappingOf[str, Shape], beside: Iterable[set[str]], done: set[str]) -> Iterator[Family]:
    """Yield the keys of OPEN_ that are filled together with KEY, in several choices: for each use of KEY with two open
    keys or more (BESIDE has those of each use), these; then all below the module of KEY; then all below the module
    above that. The last two are left out for a module in DONE; it is added to DONE.
    """
    yield from dict.fromkeys(tuple(k for k in open_ if k in keys) for keys in beside if len(keys) > 1)
    path = module_of(key)
    if path not in done:
        done.add(path)
        for head in (path, module_of(path)):
            yield tuple(k for k in open_ if not head or k.startswith(f"{head}."))


def _joined(parts: Sequence[Filling]) -> Filling:
    """Return the fillings PARTS as one filling for all their keys. Its cost is the sum of theirs, and 3 more for each
    module of the model in which two of PARTS fill keys, if these two read unlike modules of the source.
    """
    new = {key: expr for one in parts for key, expr in one.new.items()}
    modules: dict[str, set[frozenset[str]]] = defaultdict(set)
    for one in parts:
        for key in one.new:
            modules[module_of(key)].add(frozenset(map(module_of, one.read)))
    unlike = sum(len(read) > 1 for read in modules.values())
    cost = sum(one.cost for one in parts) + _UNLIKE * unlike
    return Filling(cost, ", ".join(one.how for one in parts), new, frozenset().union(*(one.read for one in parts)))


__all__ = ["UNUSED", "cut_from_few", "fillings", "from_unused"]
