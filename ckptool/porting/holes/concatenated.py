"""Ask about layers that take concatenated branches: only the source's code shows the order of the branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import Piece
from ..matching.units import Pair, Unit
from ..questions import Reason
from .filling import Filled, Filling


def doubt_concatenated(filling: Filling) -> None:
    """Bring the channels of each layer that takes concatenated branches (`_taker`) into the model's order, or ask about
    them (`_Taker.doubt`). If the source was not traced, nothing is done if it has the keys of all parameters of the
    model (`same_names`), or if its keys are in no order.
    """
    if not filling.source.signature.traced and (filling.same_names or not filling.matcher.sequences.ordered):
        return
    weights = {p.entry.key: p for p in filling.target.pieces.values() if p.name in filling.unit_of}
    placed = [pair for pair in filling.matching.pairs if pair[0].flow is not None]
    takers = [
        _taker(filling, filled, *filling.unit_of[h], h.role, weights, placed) for h, filled in filling.holes.items()
    ]
    for taker in takers:
        if taker is not None:
            taker.doubt()


@dataclass(frozen=True, slots=True)
class _Taker:
    """A layer that takes concatenated branches.

    Attributes:
        filled: what fills its weight.
        dim: the dimension of the weight that has the channels of all branches.
        sizes: how many channels each branch has, in the model's order.
        units: (target, source) of the last layer of each branch.
        firsts: (target, source) of the layer of each branch that the source registers first; equal to `units` if two
            branches have a layer in common.
        shown: the place of each branch in the concatenation of the source's code; None if that is not known of all.
        guessed: whether what fills a branch has a question.
    """

    filled: Filled
    dim: int
    sizes: Sequence[int]
    units: Sequence[Pair]
    firsts: Sequence[Pair]
    shown: Sequence[int] | None
    guessed: bool

    def doubt(self) -> None:
        """Bring the channels of the weight into the model's order of branches, or ask about them. If the source's code
        shows the order of the branches, they are reordered without a question, or kept if it uses a branch twice. If
        not, the order of registration decides (`_doubt_registered`). In all cases, one more question, without options,
        is asked if what fills a branch has an open question.
        """
        if self.guessed:
            self.filled.ask(Reason.BRANCHES_GUESSED)
        if self.shown is None:
            self._doubt_registered()
        elif len(set(self.shown)) == len(self.shown):
            self.filled.change(partial(self._moved, stored=_places(self.shown)))

    def _doubt_registered(self) -> None:
        """Ask about the order of the branches if the source registers their last layers in another order than the model
        concatenates them; if not, if it registers their first layers in another order. As a rule, code concatenates
        branches in the order in which it registers them.

        The question is between the weight as it is and the weight with its channels moved from that other order to the
        model's. The moved one is taken, and the other is the option, if the model's code keeps to the rule; else the
        moved one is the option. Nothing is asked if two branches have one place in the source's order.

        If both orders are the model's, only tables with another name on the other side are asked about, with the
        opposite order as the option: code takes inputs in any order.
        """
        for units in (self.units, self.firsts):
            order = [s.order for _, s in units]
            if not _is_sorted(order):
                if len(set(order)) == len(order):
                    keeps = _is_sorted([t.order for t, _ in units])
                    move = partial(self._moved, stored=_places(order))
                    self.filled.ask(Reason.BRANCHES_JOINED, other=move, exchange=keeps)
                return
        if self._are_renamed_tables():
            move = partial(self._moved, stored=[*reversed(range(len(self.units)))])
            self.filled.ask(Reason.TABLES_JOINED, other=move)

    def _are_renamed_tables(self) -> bool:
        """Return whether the branches are rows of two or more tables, which the model looks up in each, and at least
        one of the tables has another last name in the source than in the model.
        """
        tables = len(self.units) > 1 and all(t.main.entry.how == "embedding" for t, _ in self.units)
        return tables and any(t.last != s.last for t, s in self.units)

    def _moved(self, e: Expr, stored: Sequence[int]) -> Expr:
        """Return the weight E with the channels of its branches in the model's order. STORED has the order of the file:
        for each place, the number of the branch in the model's order.
        """
        starts = {place: sum(self.sizes[i] for i in stored[:at]) for at, place in enumerate(stored)}
        parts = ((starts[i], starts[i] + n) for i, n in enumerate(self.sizes))
        return ex.cat(self.dim, *(ex.part(e, self.dim, start, stop) for start, stop in parts))


def _places(order: Sequence[float]) -> list[int]:
    """Return the indices of ORDER, that of the smallest number first."""
    return sorted(range(len(order)), key=order.__getitem__)


def _is_sorted(order: Sequence[float]) -> bool:
    return list(order) == sorted(order)


def _taker(
    filling: Filling, filled: Filled, t: Unit, s: Unit, role: str, weights: dict[str, Piece], placed: Sequence[Pair]
) -> _Taker | None:
    """Return what is known of the tensor ROLE of T, which FILLED fills from S, as one that takes concatenated branches.
    None in each of these cases:

      - The model's forward pass does not show that it takes parallel branches (`facts.joined`; a branch that feeds
        another one, as in a skip connection, is not parallel).
      - The last layer of a branch is not in WEIGHTS, key -> tensor of the model that is filled.
      - The tensor does not have as many channels (its second dimension; the first of a transposed convolution; the only
        one of a vector) as all branches together.

    From PLACED, the pairs whose targets have a place in the graph of the model, come the layers that are registered
    first in each branch; from S, the order in the source's code, if it shows one.
    """
    piece = t.pieces.get(role)
    joined = piece.entry.facts.joined if piece is not None else ()
    if piece is None or not joined or not all(key in weights for key, _ in joined):
        return None
    dim, sizes = min(len(piece.shape) - 1, 1), [n for _, n in joined]
    if piece.entry.how.startswith("conv_transpose"):
        dim = 0
    if piece.shape[dim : dim + 1] != (sum(sizes),):
        return None
    names = [weights[key].name for key, _ in joined]
    units = [filling.unit_of[name] for name in names]
    guessed = any(filling.holes[name].doubts for name in names)
    return _Taker(filled, dim, sizes, units, _firsts(units, placed), _shown(s.pieces.get(role), units), guessed)


def _firsts(units: Sequence[Pair], placed: Sequence[Pair]) -> list[Pair]:
    """Return, for each of UNITS, the last layer of a branch, the pair of the same branch that the source registers
    first. PLACED, the pairs whose targets have a place in the model's graph, has the candidates; without one, it is the
    last layer itself. Return UNITS as they are if two branches have a layer in common.
    """
    flows = [t.flow for t, _ in units]
    ends = [0 if flow is None else flow.before | flow.bit for flow in flows]
    if any(one & other for one, other in combinations(ends, 2)):
        return list(units)
    inside = [[one for one in placed if one[0].flow is not None and one[0].flow.bit & end] for end in ends]
    return [min(branch, key=lambda one: one[1].order, default=last) for branch, last in zip(inside, units, strict=True)]


def _shown(piece: Piece | None, units: Sequence[tuple[Unit, Unit]]) -> list[int] | None:
    """Return the place of each branch, a pair of UNITS, in the concatenation that PIECE of the source takes; None if
    the source's code does not show one for all of them.
    """
    joined = piece.entry.facts.joined if piece is not None else ()
    place = {key: at for at, (key, _) in enumerate(joined)}
    found = [place[s.main.entry.key] for _, s in units if s.main.entry.key in place]
    return found if len(found) == len(units) else None


__all__ = ["doubt_concatenated"]
