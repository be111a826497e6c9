"""Pair norms that one side names after a part of their module, and the other side stores elsewhere.

One side has `norm_attn` or `pre_mlp_norm` beside the part, the other side a norm inside of the part's module. Or one
side has a norm inside of a layer (`lateral.weight`, `lateral.norm`), the other side beside the layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..words import all_in, common_start, cut, labels, shared, table
from .cells import Cells
from .units import Unit

_Path = tuple[str, ...]


class Owners:
    """Finds norms (here: vectors) that one side names after a part of their module, and the norms beside or inside of
    that part on the other side.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._parts: dict[bool, dict[_Path, dict[str, list[Unit]]]] = {}
        self._layers = {
            side: {u.path: u for u in units} for side, units in ((True, cells.targets), (False, cells.sources))
        }
        for is_target, units in ((True, cells.targets), (False, cells.sources)):
            inside = self._parts[is_target] = defaultdict(lambda: defaultdict(list))
            for unit in units:
                for at in range(len(unit.path) - 1):
                    inside[unit.path[:at]][unit.path[at]].append(unit)

    def pairs(self) -> list[tuple[Unit, Unit]]:
        """Return pairs (target, source) of norms: one is named after a part of its module, and the other is in or
        beside the partner of that part. A norm may be in several; [] if there are none.

        Only open cells of vectors with equally many units of both sides are looked at.
        """
        found: list[tuple[Unit | None, Unit | None]] = []
        for targets, sources in self._cells.open():
            if len(targets[0].main.shape) == 1 and len(targets) == len(sources):
                found += [(self._nearest(s, targets, of_target=False), s) for s in sources]
                found += [(t, self._nearest(t, sources, of_target=True)) for t in targets]
        return [(t, s) for t, s in found if t is not None and s is not None]

    def _nearest(self, unit: Unit, others: Sequence[Unit], *, of_target: bool) -> Unit | None:
        """Return the unit among OTHERS, of the other side, whose path has the longest beginning in common with the
        partners of the part that UNIT is named after (`_named_after`). OF_TARGET says which side UNIT is of.

        None if UNIT is named after no part, if no layer of the part is in a certain pair (vectors do not count), or if
        several others are equally near. For a UNIT of the source, `_beside_in_use` decides between these.
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
        """Return the units of the part that the norm UNIT is named after: [the layer] that it is inside of, else those
        of a module beside it (`_part`); [] if there is no such part. OF_TARGET says which side UNIT is of.
        """
        layer = self._layers[of_target].get(unit.path[:-1])
        if layer is not None and not set(cut(unit.last)).isdisjoint(_norms()):
            return [layer]
        return self._part(unit, self._parts[of_target].get(unit.path[:-1], {})) or []

    def _beside_in_use(self, norms: Sequence[Unit], part: Sequence[Unit]) -> Unit | None:
        """Return the one of NORMS, of the target, that the model runs last before all of PART, units of their block. If
        the block does not begin with a norm, return the first that runs after all of PART. None if there is no such
        norm, or if NORMS and PART are not known to run in one block (`_run_in_one_block`).
        """
        if not _run_in_one_block(norms, part):
            return None
        block, turns = norms[0].path[:-1], [_turn(u) for u in part]
        inside = [u for u in self._cells.targets if u.path[: len(block)] == block and u.used is not None]
        if len(min(inside, key=_turn).main.shape) == 1:
            before = [u for u in norms if _turn(u) < min(turns)]
            return max(before, key=_turn, default=None)
        after = [u for u in norms if _turn(u) > max(turns)]
        return min(after, key=_turn, default=None)

    def _part(self, unit: Unit, beside: dict[str, list[Unit]]) -> list[Unit] | None:
        """Return the units of the module that the norm UNIT is named after (`norm_attn` -> those of `attn`), among
        BESIDE, name -> units of the same module.

        The name of UNIT has a word for a norm, and no word such as "post". Its other words, without "pre" and the like,
        are all in the name of the module, or the two names have equal labels that exclude others. The module with the
        fewest other words counts. None if there is no such module, if two have equally few, or if the other words are
        only numbers.
        """
        name = unit.last
        if not set(cut(name)) & _norms() or not table().after.isdisjoint(cut(name)):
            return None
        said, meant = frozenset(cut(name)) - _norms() - _BEFORE, labels(cut(name), hard=True)
        if all(word.isdecimal() for word in said) and not meant:
            return None  # `norm_0` beside `attention_0` and `feed_forward_0`
        fitting: list[tuple[int, str]] = []
        for part in beside:
            words = cut(part)
            if part != name and said and (all_in(said, part) or meant == labels(cut(part), hard=True) != {}):
                fitting.append((len(words) - shared(said, words), part))
        fitting.sort()
        if not fitting or (len(fitting) > 1 and fitting[0][0] == fitting[1][0]):
            return None
        return beside[fitting[0][1]]


def _turn(unit: Unit) -> float:
    """Return the place of UNIT in the order of execution, 0 if it is not known."""
    return unit.used or 0.0


def _run_in_one_block(norms: Sequence[Unit], part: Sequence[Unit]) -> bool:
    """Return whether NORMS are directly in one block, the last name of whose path has a digit, the units of PART are
    anywhere in it, and the place of each in the order of execution is known.
    """
    block = norms[0].path[:-1]
    numbered = any(c.isdecimal() for c in block[-1]) if block else False
    known = bool(part) and all(u.used is not None for u in (*norms, *part))
    inside = all(norm.path[:-1] == block for norm in norms) and all(u.path[: len(block)] == block for u in part)
    return numbered and known and inside


#: Words for where a norm stands; what stands after something may as well belong to what follows.
_BEFORE = frozenset({"pre", "before", "input"})


def _norms() -> frozenset[str]:
    phrases = table().group("purpose").phrases
    return frozenset({"layer", *(word for phrase, said in phrases.items() if said == "norm" for word in phrase)})
