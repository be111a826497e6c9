"""Pair norms that one side names after a part of their module, and the other side stores elsewhere.

One side has `norm_attn` or `pre_mlp_norm` beside the part, the other side a norm inside of the part's module. Or one
side has a norm inside of a layer (`lateral.weight`, `lateral.norm`), the other side beside the layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..words import all_in, common_start, cut, labels, shared, table
from .cells import Cells
from .units import Path, Unit, is_counted


class Owners:
    """Finds norms (here: vectors) that one side names after a part of their module, and their partners on the other
    side, which are beside or inside of that part.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._parts: dict[bool, dict[Path, dict[str, list[Unit]]]] = {}
        self._layers = {
            side: {u.path: u for u in units} for side, units in ((True, cells.targets), (False, cells.sources))
        }
        for is_target, units in ((True, cells.targets), (False, cells.sources)):
            inside = self._parts[is_target] = defaultdict(lambda: defaultdict(list))
            for unit in units:
                alone = len(unit.main.shape) > 1  # a layer without a module around it is a part, too; a norm is none
                for at in range(len(unit.path) - (not alone)):
                    inside[unit.path[:at]][unit.path[at]].append(unit)

    def pairs(self) -> list[tuple[Unit, Unit]]:
        """Return pairs (target, source) of vectors: each vector that is named after a part (`norm_attn` after `attn`),
        with the one vector of the other side that is nearest to the partner of this part (`_nearest`). First come those
        named in the source, then those named in the target, for each open cell with equally many units of both sides. A
        vector may be in several pairs, and in none.
        """
        found: list[tuple[Unit | None, Unit | None]] = []
        for targets, sources in self._cells.even():
            if len(targets[0].main.shape) == 1:
                found += [(self._nearest(s, targets, of_target=False), s) for s in sources]
                found += [(t, self._nearest(t, sources, of_target=True)) for t in targets]
        return [(t, s) for t, s in found if t is not None and s is not None]

    def _nearest(self, unit: Unit, others: Sequence[Unit], *, of_target: bool) -> Unit | None:
        """Return the partner among OTHERS, units of the other side, of UNIT, a norm that is named after a part of its
        module (`norm_attn` after `attn`, see `_named_after`): the one of OTHERS whose path has the longest beginning in
        common with the module around the partners of this part's layers. OF_TARGET says which side UNIT is of.

        None if UNIT is named after no part, or if no layer of the part is in a certain pair (vectors do not count). If
        several of OTHERS are equally near: None for a UNIT of the target, and the result of `_beside_in_use` for one of
        the source.
        """
        part = self._named_after(unit, of_target=of_target)
        known = [self._cells.pair_of[u.cell] for u in part if u.cell in self._cells.pair_of]
        certain = [(t, s) for t, s in known if not t.doubts]
        paths = [(s if of_target else t).path for t, s in certain if len(t.main.shape) > 1]
        if not paths:
            return None
        there = paths[0][: common_start(paths)] if len(paths) > 1 else paths[0][:-1]
        near = [common_start([other.path, there]) for other in others]
        tied = [other for other, at in zip(others, near, strict=True) if at == max(near)]
        if len(tied) == 1:
            return tied[0]
        return None if of_target else self._beside_in_use(tied, [t for t, _ in certain])

    def _named_after(self, unit: Unit, *, of_target: bool) -> list[Unit]:
        """Return the units of the part that the norm UNIT belongs to by its name: [the layer] that it is inside of, if
        its last name has a word for a norm (`lateral` for `lateral.norm`); else those of a module beside it (of `attn`
        for `norm_attn`, `_part`); [] if there is no such part. OF_TARGET says which side UNIT is of.
        """
        layer = self._layers[of_target].get(unit.path[:-1])
        if layer is not None and not _norms().isdisjoint(cut(unit.last)):
            return [layer]
        return _part(unit, self._parts[of_target].get(unit.path[:-1], {}))

    def _beside_in_use(self, norms: Sequence[Unit], part: Sequence[Unit]) -> Unit | None:
        """Return the one of NORMS that belongs to PART, units of the target like NORMS, by the order of execution. If
        the unit that the model runs first in their block is a vector, norms come before their parts here, and the
        result is the one of NORMS that runs last before all of PART; else it is the one that runs first after all of
        PART. None if there is none, or if NORMS and PART are not known to run in one block (`_run_in_one_block`).
        """
        if not _run_in_one_block(norms, part):
            return None
        block, turns = norms[0].path[:-1], [_turn(u) for u in part]
        inside = [u for u in self._cells.targets if u.within(block) and u.used is not None]
        if len(min(inside, key=_turn).main.shape) == 1:
            before = [u for u in norms if _turn(u) < min(turns)]
            return max(before, key=_turn, default=None)
        after = [u for u in norms if _turn(u) > max(turns)]
        return min(after, key=_turn, default=None)


def _part(unit: Unit, beside: dict[str, list[Unit]]) -> list[Unit]:
    """Return the units of the module beside the norm UNIT after which UNIT is named: those of `attn` for `norm_attn`.
    BESIDE has name of a module beside UNIT -> its units.

    The name of UNIT has to have a word for a norm, and none such as "post". A module fits if its name has all other
    words of the name of UNIT, without "pre" and the like; or if both names have the same labels, one or more, in the
    groups of words that exclude each other. Of several, the one whose name has the fewest words more is taken. [] if
    none fits, if two have equally few, or if there are no other words, or only numbers and no label.
    """
    words = frozenset(cut(unit.last))
    said, meant = words - _norms() - _BEFORE, labels(cut(unit.last), hard=True)
    if words.isdisjoint(_norms()) or not words.isdisjoint(table().after):
        return []
    if not said or (all(word.isdecimal() for word in said) and not meant):
        return []  # `norm_0` beside `attention_0` and `feed_forward_0`
    fitting = sorted(
        (len(cut(part)) - shared(said, cut(part)), part)
        for part in beside
        if part != unit.last and (all_in(said, part) or meant == labels(cut(part), hard=True) != {})
    )
    if not fitting or (len(fitting) > 1 and fitting[0][0] == fitting[1][0]):
        return []
    return beside[fitting[0][1]]


def _turn(unit: Unit) -> float:
    """Return the place of UNIT in the order of execution, 0 if it is not known."""
    return unit.used or 0.0


def _run_in_one_block(norms: Sequence[Unit], part: Sequence[Unit]) -> bool:
    """Return whether NORMS are directly in one module whose last name has a digit, PART has units, all of them in this
    module, and the place of each in the order of execution is known.
    """
    block = norms[0].path[:-1]
    numbered = bool(block) and is_counted(block[-1])
    known = bool(part) and all(u.used is not None for u in (*norms, *part))
    return numbered and known and all(n.path[:-1] == block for n in norms) and all(u.within(block) for u in part)


#: Words for where a norm stands; what stands after something may as well belong to what follows.
_BEFORE = frozenset({"pre", "before", "input"})


def _norms() -> frozenset[str]:
    """Return the words for norms: all words of the phrases with the label "norm" in `words.yaml`, and "layer"."""
    phrases = table().group("purpose").phrases
    return frozenset({"layer", *(word for phrase, said in phrases.items() if said == "norm" for word in phrase)})
