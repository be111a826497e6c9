"""Ways in which the dimensions of some tensors become those of others: reordered, split and merged.

A family of equal tensors counts as one tensor with a first dimension for its members. So a stack, a concatenation, a
real and an imaginary part, heads apart and heads together are all one thing: the dimensions of one family are cut into
factors, and the factors are put together again to the dimensions of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, islice, pairwise, permutations, product
from math import prod

from ...errors import RuleError
from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import squeezed

#: Dimensions of each family that are cut into two factors; ways that are made, and that are returned.
_CUTS, _MADE, _MOST = 2, 4000, 48


@dataclass(frozen=True, slots=True)
class Way:
    """One way from a family of tensors to another. From one tensor of [6] to one of [2, 3], the factors are ((), (2,
    3)), and the order is ((), (0,), (1,)).

    Attributes:
        factors: for each dimension of the first family (the members first), its factors.
        order: for each dimension of the second family (the members first), the factors that it is made of, by their
            numbers: factors of the first family are counted from 0.
        cost: two for each dimension that is cut, on either side, and one for each pair of factors that changes its
            order.
    """

    factors: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, ...], ...]
    cost: int

    def __str__(self) -> str:
        return " ".join("x".join(map(str, one)) or "1" for one in self.order)

    @property
    def keeps_members(self) -> bool:
        """Return whether each member of the second family is made of the one member of the first in the same place."""
        return self.order[0] == self._numbers()[0]

    def _numbers(self) -> list[tuple[int, ...]]:
        """Return, for each dimension of the first family, the numbers of its factors, counted from 0 through all
        dimensions: for factors ((2,), (3, 4)) it is [(0,), (1, 2)].
        """
        out, at = [], 0
        for factors in self.factors:
            out.append(tuple(range(at, at + len(factors))))
            at += len(factors)
        return out

    def made(
        self, members: Sequence[Expr], have: Shape, count: int, want: Shape, shapes: MappingOf[str, Shape]
    ) -> list[Expr] | None:
        """Return the COUNT members of the second family as expressions of sizes WANT, made of MEMBERS, the expressions
        of the first family, of sizes HAVE each. None if an operation does not fit, or if a member would have other
        sizes than WANT. SHAPES has the sizes of the source.
        """
        sizes = [size for factors in self.factors for size in factors]
        out = []
        for number in range(count):
            fixed = _places(number, [(one, sizes[one]) for one in self.order[0]])
            made = self._one(members, have, want, sizes, fixed)
            try:
                made = ex.simplified(made, shapes)
                if ex.shape_of(made, shapes) != want:
                    return None
            except RuleError:
                return None
            out.append(made)
        return out

    def _one(
        self, members: Sequence[Expr], have: Shape, want: Shape, sizes: Sequence[int], fixed: dict[int, int]
    ) -> Expr:
        """Return the expression of one member of the second family, of sizes WANT, made of MEMBERS, the expressions of
        the first family, of sizes HAVE each.

        FIXED has number of a factor -> place along it, and says which member is made. SIZES has the size of each factor
        by its number. Members of the first family at other places than FIXED are not read. If several are read, they
        are concatenated along the dimension that begins with the one factor that counts them; if there is no such
        dimension, or if several factors count them, they are stacked and reordered.
        """
        own, *inner = self._numbers()
        free = [one for one in own if one not in fixed]
        kept = [one for axis in inner for one in axis if one not in fixed]
        cut = [
            _cut(x, have, inner, sizes, fixed)
            for place, x in enumerate(members)
            if all(fixed.get(one, at) == at for one, at in _places(place, [(o, sizes[o]) for o in own]).items())
        ]
        dims = self.order[1:]
        then = [one for axis in dims for one in axis]
        if not free:
            return _ordered(cut[0], kept, then, sizes, want)
        along = next((d for d, axis in enumerate(dims) if axis[:1] == (free[0],)), None)
        if along is None or len(free) > 1:
            stacked = ex.stack(*(ex.reshape(x, [sizes[one] for one in kept]) for x in cut))
            return _ordered(stacked, [*free, *kept], then, sizes, want)
        part = tuple(prod(sizes[one] for one in axis if one not in free) for axis in dims)
        then.remove(free[0])
        return ex.cat(along, *(_ordered(x, kept, then, sizes, part) for x in cut))


def _places(number: int, factors: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return number of a factor -> place of element NUMBER along it. FACTORS are pairs (number of the factor, size), of
    which the last runs fastest: element 5 of [(0, 2), (1, 3)] is {0: 1, 1: 2}.
    """
    out = {}
    for one, size in reversed(factors):
        number, out[one] = divmod(number, size)
    return out


def _cut(
    x: Expr, have: Shape, inner: Sequence[Sequence[int]], sizes: Sequence[int], fixed: MappingOf[int, int]
) -> Expr:
    """Return X, of sizes HAVE, cut to the places in FIXED (number of a factor -> place along it).

    INNER has, for each dimension of X, the numbers of its factors; SIZES has the size of each factor by its number. A
    factor in FIXED is gone from the result. The other factors of such a dimension become dimensions of their own,
    unless just its first factor is in FIXED: then they stay one dimension. Dimensions without a factor in FIXED stay.
    """
    shape = list(have)
    for d in reversed(range(len(have))):
        held = [one for one in inner[d] if one in fixed]
        if not held:
            continue
        if len(inner[d]) == 1:
            x = ex.select(x, d, fixed[held[0]])
            del shape[d]
        elif held == [inner[d][0]]:  # the first factor: a slice
            width = prod(sizes[one] for one in inner[d][1:])
            x = ex.part(x, d, fixed[held[0]] * width, (fixed[held[0]] + 1) * width)
            shape[d] = width
        else:
            x = ex.reshape(x, [*shape[:d], *(sizes[one] for one in inner[d]), *shape[d + 1 :]])
            for place, one in reversed(list(enumerate(inner[d]))):
                if one in fixed:
                    x = ex.select(x, d + place, fixed[one])
            shape[d : d + 1] = [sizes[one] for one in inner[d] if one not in fixed]
    return x


def _ordered(x: Expr, now: Sequence[int], then: Sequence[int], sizes: Sequence[int], shape: Shape) -> Expr:
    """Return X with its factors in another order, reshaped to SHAPE. NOW has the numbers of the factors of X in their
    order, THEN the same numbers in the new order; SIZES has the size of each factor by its number.
    """
    if list(now) != list(then):
        places = [list(now).index(one) for one in then]
        x = ex.reshape(x, [sizes[one] for one in now])
        last = len(places) - 1
        swapped = places == [*range(last - 1), last, last - 1]
        x = ex.transpose(x) if swapped else ex.permute(x, *places)
    return ex.reshape(x, shape)


@lru_cache(maxsize=256)
def ways(have: Shape, want: Shape) -> tuple[Way, ...]:
    """Return up to 48 ways from one family of equal tensors to another, the cheapest first, none twice. HAVE and WANT
    are (number of members, sizes of one member …) of the two families. Dimensions are cut into factors as in
    `_factored`; at most 200 ways count for the same cuts, and the search ends once more than 4,000 are found. () if the
    numbers of elements differ or are 0, or if HAVE or WANT has more than seven numbers.
    """
    if prod(have) != prod(want) or 0 in have or len(have) > 7 or len(want) > 7:
        return ()
    whole: dict[tuple[int, ...], list[list[tuple[int, ...]]]] = defaultdict(list)
    for factors in _factored(have):
        whole[tuple(sorted(size for axis in factors for size in axis))].append(factors)
    found: list[Way] = []
    for parts in _factored(want):
        for factors in whole.get(tuple(sorted(size for axis in parts for size in axis)), ()):
            found += islice(_joined(factors, parts), _MADE // 20)
        if len(found) > _MADE:
            break
    return tuple(sorted(dict.fromkeys(found), key=lambda way: way.cost)[:_MOST])


def _factored(shape: Shape) -> Iterator[list[tuple[int, ...]]]:
    """Yield SHAPE with a tuple of factors for each dimension: first all uncut, then with one and with two dimensions
    cut into two factors, then with one cut into three (`[8]` -> `[(8,)]`, `[(2, 4)]`, `[(4, 2)]`, `[(2, 2, 2)]`).
    Factors of a cut are larger than 1, and all but the last at most 128: 1,024 is cut into (2, 512), but not into (512,
    2). A dimension of 1 has no factors, ().
    """
    plain: list[tuple[int, ...]] = [(size,) if size > 1 else () for size in shape]
    for count in range(_CUTS + 1):
        for chosen in combinations(range(len(shape)), count):
            for cuts in product(*(_cuts(shape[d]) for d in chosen)):
                out = list(plain)
                for d, cut in zip(chosen, cuts, strict=True):
                    out[d] = cut
                yield out
    for d, size in enumerate(shape):
        for three in _cuts_in_three(size):
            yield [*plain[:d], three, *plain[d + 1 :]]


def _cuts(size: int) -> list[tuple[int, int]]:
    """Return the pairs of factors of SIZE, both larger than 1 and the first at most 128, those with a small first
    factor first: [(2, 4), (4, 2)] for 8. [] if there are none, as for a prime.
    """
    return [(n, size // n) for n in range(2, min(size, 129)) if size % n == 0 and size // n > 1]


def _cuts_in_three(size: int) -> list[tuple[int, int, int]]:
    """Return the triples of factors of SIZE, all larger than 1 and the first two at most 128."""
    return [(a, *rest) for a, b in _cuts(size) for rest in _cuts(b)]


def _joined(factors: Sequence[tuple[int, ...]], parts: Sequence[tuple[int, ...]]) -> Iterator[Way]:
    """Yield the ways (`Way`) to make dimensions with the factors PARTS from dimensions with FACTORS: one for each way
    to assign factors of equal size to each other. A way is left out if two successive factors of one dimension follow
    one another in a dimension of the second family, too: it equals the way without that cut.

    Args:
        factors: for each dimension of the first family, its factors.
        parts: for each dimension of the second family, its factors: the same numbers, in any order.
    """
    sizes = [size for axis in factors for size in axis]
    axis_of = [d for d, axis in enumerate(factors) for _ in axis]
    by_size: dict[int, list[int]] = defaultdict(list)
    for number, size in enumerate(sizes):
        by_size[size].append(number)
    kinds = list(by_size)
    cuts = sum(len(axis) > 1 for axis in (*factors, *parts))
    for chosen in product(*(permutations(by_size[size]) for size in kinds)):
        left = {size: list(numbers) for size, numbers in zip(kinds, chosen, strict=True)}
        order = tuple(tuple(left[size].pop(0) for size in axis) for axis in parts)
        needless = any(b == a + 1 and axis_of[a] == axis_of[b] for axis in order for a, b in pairwise(axis))
        if needless:  # what was cut is joined again as it was
            continue
        flat = [number for axis in order for number in axis]
        turned = sum(a > b for a, b in combinations(flat, 2))
        yield Way(tuple(factors), order, 2 * cuts + turned)


def bordered(want: Shape, shapes: MappingOf[str, Shape]) -> Iterator[tuple[int, str, Expr]]:
    """Yield (cost, a name for what is done, expression) for each way to make a tensor of sizes WANT from a tensor of
    SHAPES (key -> sizes), the core, by a border one element wide, first or last, along one dimension or along two.
    Dimensions of 1 in WANT and SHAPES do not count.

    The parts of the border are other tensors of SHAPES, each read once: one part for one dimension, three (two edges
    and the corner) for two, of which at most one may be missing; zeros take its place. At most 64 choices of borders
    are tried for each core.
    """
    sizes = squeezed(want)
    for dims in chain(combinations(range(len(sizes)), 1), combinations(range(len(sizes)), 2)):
        core = tuple(size - (d in dims) for d, size in enumerate(sizes))
        edges = [tuple(size for e, size in enumerate(core) if e not in cut) for cut in _faces(dims)]
        fitting = [[key for key, shape in shapes.items() if squeezed(shape) == squeezed(edge)] for edge in edges]
        for whole in (key for key, shape in shapes.items() if squeezed(shape) == squeezed(core)):
            choices = [[*keys, None] if len(edges) > 1 else keys for keys in fitting]
            for chosen in islice(product(*choices), _EDGES):
                held = [key for key in (whole, *chosen) if key is not None]
                if len(set(held)) == len(held) >= len(edges):
                    for cost, how, made in _with_border(whole, chosen, core, dims, shapes):
                        yield cost, how, ex.reshape(made, want, sizes)


def _with_border(
    whole: str, chosen: Sequence[str | None], core: Shape, dims: Sequence[int], shapes: MappingOf[str, Shape]
) -> Iterator[tuple[int, str, Expr]]:
    """Yield (cost, a name for what is done, expression) for the tensor with the key WHOLE, of sizes CORE, with a border
    along DIMS: one for each way to put each border first or last.

    CHOSEN has, for each part of the border (see `_faces`), the key of its tensor, or None for zeros. The cost is higher
    if WHOLE and CHOSEN are not in the order of SHAPES (key -> sizes), if a part is zeros, and for each border that
    comes first.
    """
    parts: dict[tuple[int, ...], Expr] = {(): ex.reshape(ex.of(whole), core, shapes[whole])}
    for cut, key in zip(_faces(dims), chosen, strict=True):
        flat = tuple(1 if d in cut else size for d, size in enumerate(core))
        parts[cut] = ex.zeros(*flat) if key is None else ex.reshape(ex.of(key), flat, shapes[key])
    held = [key for key in (whole, *chosen) if key is not None]
    order = [key for key in shapes if key in held]
    cost = 1 + sum(a != b for a, b in zip(held, order, strict=True)) + 2 * (len(held) <= len(chosen))
    for first in product((False, True), repeat=len(dims)):
        yield cost + sum(first), f"bordered {dims} {first}", _framed(parts, dims, first)


#: Choices of tensors for the parts of a border.
_EDGES = 64


def _faces(dims: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the parts of a border along DIMS, one dimension or two, each as the dimensions along which it has size 1:
    one for each of them, then the corner of both.
    """
    return [tuple(one) for count in range(1, len(dims) + 1) for one in combinations(dims, count)]


def _framed(parts: MappingOf[tuple[int, ...], Expr], dims: Sequence[int], first: Sequence[bool]) -> Expr:
    """Return one tensor of PARTS: the core, PARTS[()], with the parts of its border first or last along DIMS. Each part
    has the dimensions along which it has size 1 as its key (`_faces`): (0,) and (1,) for the edges, (0, 1) for the
    corner of both. FIRST says of each of DIMS whether its border comes first.
    """
    if not dims:
        return parts[()]
    *rest, last = dims
    inner = _framed({cut: x for cut, x in parts.items() if last not in cut}, rest, first[:-1])
    edge = _framed({tuple(d for d in cut if d != last): x for cut, x in parts.items() if last in cut}, rest, first[:-1])
    return ex.cat(last, edge, inner) if first[-1] else ex.cat(last, inner, edge)


__all__ = ["Way", "bordered", "ways"]
