"""Ask about pairs whose source has a look-alike beside it that nothing uses.

A file may hold a layer that the model lacks: an auxiliary head, an adapter, a projection of another stage. If its sizes
are those of the layer beside it, only names tell the two apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from ..matching.evidence import Kind
from ..matching.match import Matching
from ..matching.units import Pair, Path, Unit, apart, block_of, hard_conflict, series
from ..questions import Question, Reason
from ..words import common_start
from .names import own_words, soft_words

#: What related targets have in common -> name of a source without numbers -> `id` of the targets whose source has it.
_Names = dict[Path, dict[Path, set[int]]]


def doubt_beside_spares(matching: Matching) -> None:
    """Ask SPARE_BESIDE about each pair of MATCHING if a look-alike of its source in the same block, or a twin of it
    (`_are_twins`), has no partner, and would fit as well (`_fits_as_well`). All such look-alikes are options.

    The first of them that is in no undecided cell, had no partner before either, and is called like sources of related
    targets (`_called_like`, `_related`), as the source of the target is not, changes places with the source, which is
    an option then; SERIES is the only evidence of the target afterwards. The source has no partner from then on, so it
    may be an option of the next pairs. How sources are called is noted once, before the first change.

    Pairs with a doubt are not asked about, nor those that equal names or the neighbours on both sides made (evidence
    NAME or BETWEEN). A look-alike does not count if it is in a part that the model lacks: its name has a word of
    `_words_of_parts_left_out` that the name of the source lacks. Sources with a spare twin do not show how sources are
    called.
    """
    spare: dict[Hashable, list[Unit]] = defaultdict(list)
    for unit in matching.unpaired(1):
        for place in _places(unit):
            spare[place].append(unit)
    if not spare:
        return

    def twins(s: Unit) -> list[Unit]:
        return [u for u in spare[s.colour, s.last] if _are_twins(s, u)]

    names = _names([pair for pair in matching.pairs if not twins(pair[1])])
    gone, free = _words_of_parts_left_out(matching), {*matching.free_sources}
    for at, (t, s) in enumerate(matching.pairs):
        if t.told_by(Kind.NAME) or t.told_by(Kind.BETWEEN) or t.doubts:
            continue
        near = dict.fromkeys((*spare[s.colour, block_of(s.path)], *twins(s)))
        beside = [u for u in near if gone.isdisjoint({*u.words} - {*s.words})]
        found = [u for u in beside if _fits_as_well(t, s, u, names)]
        if not found:
            continue
        usual = [] if _called_like(t, _related(t), s, names) else [u for u in found if u in free]
        best = next((u for u in usual if _called_like(t, _related(t), u, names)), s)
        if best is not s:
            matching.pairs[at] = t, best
            matching.free_sources[matching.free_sources.index(best)] = s
            for place in _places(best):
                spare[place].remove(best)
            for place in _places(s):
                spare[place].append(s)
            t.exchange("spare beside it", Kind.SERIES)
        options = tuple(s if u is best else u for u in found)
        t.ask(Question(Reason.SPARE_BESIDE, (".".join(best.path), ".".join(options[0].path)), options))


def _places(unit: Unit) -> tuple[Hashable, Hashable]:
    """Return ((colour, block of UNIT), (colour, last name of UNIT)), by which look-alikes without a partner are looked
    up: the first is equal for look-alikes in one block, the second for those with one last name.
    """
    return (unit.colour, block_of(unit.path)), (unit.colour, unit.last)


def _words_of_parts_left_out(matching: Matching) -> frozenset[str]:
    """Return the words that are at least twice in the names of `free_sources`, and in that of no source of a pair:
    `decoder`, if the model has the encoder of an autoencoder alone.
    """
    left = Counter(word for unit in matching.free_sources for word in {*unit.words})
    used = {word for _, s in matching.pairs for word in s.words}
    return frozenset(word for word, count in left.items() if count > 1 and word not in used)


def _fits_as_well(t: Unit, s: Unit, spare: Unit, names: _Names) -> bool:
    """Return whether SPARE fits the target T as well as T's source S. False if the words of SPARE and T exclude each
    other, or if SPARE and S hold different roles. Else one of these is enough:

    - SPARE is called like the source of an equal layer in another block (`_called_like`), and S is not.
    - SPARE is in the module of S or is its twin, and its name shares more words with T than that of S does, counting
      only words that the other of the two lacks (`own_words`); if as many, `soft_words` has to be higher; if that is
      equal, too, no source of another related target (`_related`) may be called like S.
    """
    if hard_conflict(t.words, spare.words) or spare.pieces.keys() != s.pieces.keys():
        return False
    elsewhere = (series(t),)
    if _called_like(t, elsewhere, spare, names) and not _called_like(t, elsewhere, s, names):
        return True
    ours = own_words(t, s, spare, spare), soft_words(t, s)
    theirs = own_words(t, spare, s, s), soft_words(t, spare)
    kept = theirs == ours and _called_like(t, _related(t), s, names)
    near = spare.path[:-1] == s.path[:-1] or _are_twins(s, spare)
    return near and theirs >= ours and not kept


def _are_twins(one: Unit, other: Unit) -> bool:
    """Return whether ONE and OTHER have equal paths behind a module that has another name in one of them, or is not
    there: `extra.experts.0.up` and `experts.0.up`. A number is no such name: layers of two blocks are no twins.
    """
    own, theirs, _ = apart(one, other)
    at = common_start((own, theirs))
    return max(len(own), len(theirs)) == at + 1 and not any(name.isdecimal() for name in own[at:] + theirs[at:])


def _related(t: Unit) -> tuple[Path, Path]:
    """Return what the target T has in common with related targets: its name without numbers (equal layers of other
    blocks), and the path of the module around it.
    """
    return series(t), t.path[:-1]


def _called_like(t: Unit, shared: Sequence[Path], source: Unit, names: _Names) -> bool:
    """Return whether a related target other than T has a source that is called like SOURCE, but for numbers. SHARED has
    what such targets have in common with T (see `_related`): one of it is enough. NAMES is as `_names` returns it.
    """
    return any(names[one][series(source)] - {id(t)} for one in shared)


def _names(pairs: Sequence[Pair]) -> _Names:
    """Return what related targets have in common (`_related`) -> name of a source without numbers -> the `id` of the
    targets of PAIRS with such a source. Pairs with a doubt do not count.
    """
    found: _Names = defaultdict(lambda: defaultdict(set))
    for t, s in pairs:
        if not t.doubts:
            for shared in {*_related(t)}:
                found[shared][series(s)].add(id(t))
    return found


__all__ = ["doubt_beside_spares"]
