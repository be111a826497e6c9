"""Find the pairs that could be swapped: look-alikes in one block, and in different blocks with evidence for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations

from ..forms.branches import beside
from ..matching.units import Pair, Path, Unit, apart, block_of, by_block, hard_conflict, series
from ..questions import Question, Reason, ask
from .company import crossed, in_company
from .names import by_names
from .swaps import Swaps, places_fall

#: Sources are exchanged in groups of look-alikes up to this size.
MOST = 64
#: So many look-alikes are compared each with each; in larger groups each with its neighbours.
_ALL_WITH_ALL = 24
_NEAR = 3

#: Two pairs, and why their swap cannot be excluded.
Swap = tuple[Pair, Pair, Question[Unit]]


def by_look(pairs: Iterable[Pair]) -> dict[object, list[Pair]]:
    """Return shape and kind (`Unit.colour`) -> the pairs of such units, in their order."""
    alike: dict[object, list[Pair]] = defaultdict(list)
    for pair in pairs:
        alike[pair[0].colour].append(pair)
    return alike


def look_alikes(pairs: Iterable[Pair]) -> Iterator[tuple[Pair, Pair]]:
    """Yield each two of PAIRS of one shape and kind (`Unit.colour` of the targets), if at most 24 pairs are of it. If
    more are of it, yield each pair with the next three in the order of registration of the targets, and again in that
    of the sources, so that two pairs may come twice. Nothing else is looked at: names or contents may exclude the swap
    of the two.
    """
    for group in by_look(pairs).values():
        if len(group) <= _ALL_WITH_ALL:
            yield from combinations(group, 2)
            continue
        for key in (lambda p: p[0].order, lambda p: p[1].order):
            row = sorted(group, key=key)
            for at, one in enumerate(row):
                for other in row[at + 1 : at + 1 + _NEAR]:
                    yield one, other


def in_doubt(swaps: Swaps) -> set[int]:
    """Return the `id` of the target of each pair that has a doubt, or that may be swapped with one of the `look_alikes`
    in its block: `Swaps.reason` returns a question about the two, and contents do not exclude the swap. Nothing is
    asked.
    """
    found = {id(t) for t, _ in swaps.pairs if t.doubts}
    for pairs in by_block(swaps.pairs).values():
        for one, other in look_alikes(pairs):
            if swaps.reason(one, other) and not swaps.contents.fit_only_so(one, other):
                found |= {id(one[0]), id(other[0])}
    return found


def across_blocks(swaps: Swaps) -> list[Swap]:
    """Return (pair, pair, question) for each two look-alikes in different blocks of which one of these is true:

    - names are for their swap (`_by_names`): NAMES_FOR_SWAP;
    - the other pairs of their blocks are for it (`_by_company`): COMPANY_FOR_SWAP;
    - there is a question about it (`Swaps.reason`), and their places do not tell them apart (`_by_places`).

    The first two also have some couples in one block. A couple may come several times. Nothing is asked.
    """
    return [*_by_names(swaps.pairs), *_by_company(swaps.pairs), *_by_places(swaps)]


def of_the_modules_beside(pairs: Sequence[Pair]) -> Iterator[Swap]:
    """Yield (pair, pair, question BESIDE_FOR_SWAP) for look-alikes (T, S) and (T2, S2) if S2 is in a module with the
    name of one around T, and this module is in the part of the source from which the modules beside that around T come
    (`_is_beside_them`): T is `x.encoder.a`, S2 is `x.net.encoder.a`, and `x.decoder` comes from `x.net.decoder`. Equal
    names of T and S do not exclude it, since code may have given the name to another part.

    PAIRS are all pairs. Of each shape and kind, the first 64 pairs are compared.
    """
    beside: dict[Path, dict[Path, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        own, theirs, name = apart(*pair)
        if name and own != theirs and not name[0].isdecimal():
            beside[own][theirs].append(name[0])
    for group in by_look(pairs).values() if beside else ():
        for one, other in permutations(group[:MOST], 2):
            if _is_beside_them(one, other, beside):
                yield one, other, ask(Reason.BESIDE_FOR_SWAP)


def _is_beside_them(one: Pair, other: Pair, beside: Mapping[Path, Mapping[Path, Sequence[str]]]) -> bool:
    """Return whether, for the pairs ONE (T, S) and OTHER (T2, S2), the modules or layers beside a module around T come
    from the part of the source with S2. For a module M of the target and a module N of the source, all of these are
    true:

    - T is in a module of M, S2 is in a module of N with the same name, and this name is no number;
    - two or more pairs show that M has become N: BESIDE has M -> N -> names, each that of a module or layer directly in
      M whose partner has the same path below N, and two or more of these are other names than that of the module;
    - S has the path of S2 below N at its end, too, but T2 does not have the path of T below M there.
    """
    (t, s), (t2, s2) = one, other
    for depth, name in enumerate(t.path[:-1]):
        for theirs, heads in beside.get(t.path[:depth], {}).items():
            rest = s2.path[len(theirs) :]
            if len(rest) > 1 and rest[0] == name and s2.path[: len(theirs)] == theirs and not name.isdecimal():
                own = t.path[depth:]
                told = s.path[-len(rest) :] == rest and t2.path[-len(own) :] != own
                if told and sum(head != name for head in heads) > 1:
                    return True
    return False


def run_by_one_code(pairs: Iterable[Pair]) -> Iterator[Swap]:
    """Yield (pair, pair, question RUN_BY_ONE_CODE) for look-alikes if the model runs the target of the first pair only,
    and the source's code the source of the second pair only. Of one shape and kind, the first such target that the
    model runs comes with the first such source that the source's code runs, the second with the second, and so on.

    Names have to allow the swap: words may not exclude it, and not both pairs may have equal paths, as the two codes
    have if each was told to run another part.
    """
    for group in by_look(pairs).values():
        for one, other in zip(_run_alone(group, 0), _run_alone(group, 1), strict=False):
            (t, s), (t2, s2) = one, other
            excluded = any(hard_conflict(a.words, b.words) is not None for a, b in ((t, s2), (t2, s)))
            if not excluded and (t.path, t2.path) != (s.path, s2.path):
                yield one, other, ask(Reason.RUN_BY_ONE_CODE)


def _run_alone(pairs: Iterable[Pair], side: int) -> list[Pair]:
    """Return those of PAIRS of which only the code of SIDE (0 for the model's, 1 for the source's) runs its unit, in
    the order in which it runs them.
    """
    found = [pair for pair in pairs if pair[side].used is not None and pair[1 - side].used is None]
    return sorted(found, key=lambda pair: pair[side].used or 0.0)


def _by_names(pairs: list[Pair]) -> Iterator[Swap]:
    """Yield (pair, pair, question NAMES_FOR_SWAP) for look-alikes whose names are for the swap (`by_names` without SOFT
    is "against").

    Pairs of one kind have equal paths apart from numbers. Of each two kinds, only the first pairs are compared, if they
    are in different blocks. If their names are for it, each pair of one kind is yielded with the first of the other,
    also two pairs in one block.
    """
    for ones, others in _kinds(pairs):
        if not _in_one_block(ones[0], others[0]) and by_names(ones[0], others[0], soft=False) == "against":
            yield from _each(ones, others, ones[0], others[0], Reason.NAMES_FOR_SWAP)


def _by_company(pairs: list[Pair]) -> Iterator[Swap]:
    """Yield (pair, pair, question COMPANY_FOR_SWAP) for look-alikes if the other pairs of their blocks are for the swap
    (`in_company`, LEAST is 2), and not for the pairs as they are. Of these other pairs, the first 64 count that have no
    doubt and are no look-alikes of the two.

    Pairs of one kind have equal paths apart from numbers. The first pair of a kind is compared with the first pair of
    another kind that is in another block. If neighbours are for this swap, each pair of one kind is yielded with the
    compared one of the other (`_each`). Pairs outside of all blocks, and pairs whose names exclude the swap, are not
    compared.
    """
    blocks = by_block(pairs)
    for ones, others in _kinds(pairs):
        one = ones[0]
        other = next((pair for pair in others if not _in_one_block(pair, one)), None)
        if other is None or by_names(one, other) == "sure":
            continue
        both = block_of(one[0].path), block_of(other[0].path)
        inside = (pair for block in both for pair in blocks[block])
        around = [pair for pair in inside if pair[0].colour != one[0].colour and not pair[0].doubts][:MOST]
        if () in both or in_company(one, other, around):
            continue
        if in_company(*crossed(one, other), around, least=2):
            yield from _each(ones, others, one, other, Reason.COMPANY_FOR_SWAP)


def _each(ones: list[Pair], others: list[Pair], one: Pair, other: Pair, reason: Reason) -> Iterator[Swap]:
    """Yield (pair, pair, question for REASON) for each of ONES with OTHER, then for ONE with each of OTHERS."""
    yield from ((pair, other, ask(reason)) for pair in ones)
    yield from ((one, pair, ask(reason)) for pair in others)


def _by_places(swaps: Swaps) -> Iterator[Swap]:
    """Yield (pair, pair, question) for look-alikes in different blocks about whose swap there is a question
    (`Swaps.reason`), if their targets are parallel branches, their places in lists are for the swap (`places_fall`), or
    their sources are in one block, which the model has as several. Of each shape and kind, the first 64 pairs are
    compared.
    """
    for group in by_look(swaps.pairs).values():
        for one, other in combinations(group[:MOST], 2):
            divided = block_of(one[1].path) == block_of(other[1].path) != ()
            near = divided or beside(one[0], other[0]) or places_fall(one, other)
            if near and not _in_one_block(one, other) and (reason := swaps.reason(one, other)):
                yield one, other, reason


def _in_one_block(one: Pair, other: Pair) -> bool:
    return block_of(one[0].path) == block_of(other[0].path)


def _kinds(pairs: list[Pair]) -> Iterator[tuple[list[Pair], list[Pair]]]:
    """Yield (pairs of one kind, pairs of another kind) for each two kinds of one shape and kind of unit
    (`Unit.colour`), of at most the first 24. The pairs of a kind have equal paths on either side, apart from numbers.
    """
    kinds: dict[object, dict[object, list[Pair]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        kinds[pair[0].colour][(series(pair[0]), series(pair[1]))].append(pair)
    for alike in kinds.values():
        yield from combinations(list(alike.values())[:_ALL_WITH_ALL], 2)
