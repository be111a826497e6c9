"""Ask about pairs whose source has a look-alike beside it that nothing uses.

A file may hold a layer that the model lacks: an auxiliary head, an adapter, a projection of another stage. If its sizes
are those of the layer beside it, only names tell the two apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..matching.evidence import Kind
from ..matching.match import Matching
from ..matching.units import Pair, Path, Unit, apart, block_of, hard_conflict, series
from ..questions import Question, Reason
from ..words import common_start
from .names import own_words, soft_words

#: What related targets have in common -> how often their sources have which name, without numbers.
_Names = dict[Path, Counter[Path]]


def doubt_beside_spares(matching: Matching) -> None:
    """Ask SPARE_BESIDE about each pair of MATCHING if a look-alike of its source in the same block, or a twin of it
    (`_are_twins`), has no partner, and would fit as well (`_fits_as_well`). All such look-alikes are options.

    The first of them that is in no undecided cell, and is called like a source of the target or of related targets
    (`_called_like`, `_related`), changes places with the source, which is an option then; SERIES is the only evidence
    of the target afterwards. How sources are called is counted once, before the first change, and the pair of the
    target itself counts.

    Pairs with a doubt are not asked about, nor those that equal names or the neighbours on both sides made (evidence
    NAME or BETWEEN). A look-alike does not count if it is in a part that the model lacks: its name has a word of
    `_words_of_parts_left_out` that the name of the source lacks. Sources with a spare twin do not show how sources are
    called.
    """
    spare: dict[object, list[Unit]] = defaultdict(list)
    for unit in matching.unpaired(1):
        spare[unit.colour, block_of(unit.path)].append(unit)
        spare[unit.colour, unit.last].append(unit)
    if not spare:
        return
    twins = [[u for u in spare[s.colour, s.last] if _are_twins(s, u)] for _, s in matching.pairs]
    names = _names([pair for pair, found in zip(matching.pairs, twins, strict=True) if not found])
    gone = _words_of_parts_left_out(matching)
    for at, (t, s) in enumerate(matching.pairs):
        if t.told_by(Kind.NAME) or t.told_by(Kind.BETWEEN) or t.doubts:
            continue
        near = dict.fromkeys((*spare[s.colour, block_of(s.path)], *twins[at]))
        beside = [u for u in near if gone.isdisjoint({*u.words} - {*s.words})]
        found = [u for u in beside if _fits_as_well(t, s, u, names)]
        if not found:
            continue
        best = next((u for u in found if u in matching.free_sources and _called_like(_related(t), u, names)), s)
        if best is not s:
            matching.pairs[at] = t, best
            matching.free_sources[matching.free_sources.index(best)] = s
            t.exchange("spare beside it", Kind.SERIES)
        options = tuple(s if u is best else u for u in found)
        t.ask(Question(Reason.SPARE_BESIDE, (".".join(best.path), ".".join(options[0].path)), options))


def _words_of_parts_left_out(matching: Matching) -> frozenset[str]:
    """Return the words that two or more sources without a partner share, and no source of a pair has: `decoder`, if
    the model has the encoder of an autoencoder alone.
    """
    left = Counter(word for unit in matching.free_sources for word in unit.words)
    used = {word for _, s in matching.pairs for word in s.words}
    return frozenset(word for word, count in left.items() if count > 1 and word not in used)


def _fits_as_well(t: Unit, s: Unit, spare: Unit, names: _Names) -> bool:
    """Return whether SPARE fits the target T as well as T's source S. False if the words of SPARE and T exclude each
    other, or if SPARE and S hold different roles. Else one of these is enough:

    - SPARE is called like the source of an equal layer in another block (`_called_like`), and S is not: of the sources
      of T and of these layers, at most S itself has the name of S.
    - SPARE is in the module of S or is its twin, and its name shares more words with T than that of S does, counting
      only words that the other of the two lacks (`own_words`); if as many, `soft_words` has to be higher; if that is
      equal, too, at most one source of T and of related targets (`_related`) may be called like S.
    """
    if hard_conflict(t.words, spare.words) or spare.pieces.keys() != s.pieces.keys():
        return False
    elsewhere = (series(t),)
    if _called_like(elsewhere, spare, names) and not _called_like(elsewhere, s, names, least=2):
        return True
    ours = own_words(t, s, spare, spare), soft_words(t, s)
    theirs = own_words(t, spare, s, s), soft_words(t, spare)
    kept = theirs == ours and _called_like(_related(t), s, names, least=2)
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


def _called_like(shared: Sequence[Path], source: Unit, names: _Names, least: int = 1) -> bool:
    """Return whether LEAST of the pairs whose targets have one of SHARED in common have a source that is called like
    SOURCE, but for numbers. NAMES is as `_names` returns it.
    """
    return any(names[one][series(source)] >= least for one in shared)


def _names(pairs: Sequence[Pair]) -> _Names:
    """Return what related targets have in common (`_related`) -> name of a source without numbers -> how many of PAIRS
    have such a target and such a source. Pairs with a doubt do not count.
    """
    found: _Names = defaultdict(Counter)
    for t, s in pairs:
        if not t.doubts:
            for shared in {*_related(t)}:
                found[shared][series(s)] += 1
    return found


__all__ = ["doubt_beside_spares"]
