"""Ask how rotary embeddings pair the rows of queries and keys: row i with i + half, or with i + 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from .. import expression as ex
from ..forms.fusing.projections import heads_of, of_library, part_label
from ..forms.pieces import Name, Piece, squeezed, unchanged
from ..matching.units import Path, Unit
from ..questions import Reason
from ..words import Rotary, table, words_of
from .filling import Change, Filling

#: How code turns queries and keys, as an answer.
_PAIRS = {"half": "pairs halves", "interleaved": "pairs neighbours"}


def doubt_rotary(filling: Filling) -> None:
    """Keep or reorder the rows of each tensor of queries or keys to which the model applies a rotary embedding
    (`_turned_by_model`), or ask about them. They are kept if both codes pair rows in one way, by their forward passes
    or by names (`_Rows.are_known_to_agree`); reordered if both forward passes show different ways and turn whole heads
    (`_Rows.reorder_by_code`); else a question is asked (`_Rows.ask`).

    Nothing is done if the source has the keys of all parameters of the model (`same_names`), and its forward pass was
    not followed. If it was followed, but does not show how it pairs the rows of a tensor, that tensor stays without a
    question.

    Units of queries and keys without a matrix, such as a bias of its own, come last: they are left as they are if the
    matrix for the same (queries, or keys) in their module was kept.
    """
    if filling.same_names and not filling.source.signature.traced:
        return
    kept: set[tuple[Path, str]] = set()
    seen = any(entry.facts.rotary for entry in filling.target.signature.entries.values())
    for hole in sorted(filling.holes, key=lambda one: len(filling.unit_of[one][0].main.shape) < 2):
        rows = _turned_by_model(filling, hole, seen=seen)
        if rows is None or (len(rows.t.main.shape) < 2 and rows.layer in kept):
            continue
        if rows.learn_from_code() or rows.are_known_to_agree():
            kept.add(rows.layer)
        elif not rows.reorder_by_code():
            rows.ask()


def _turned_by_model(filling: Filling, hole: Name, *, seen: bool) -> _Rows | None:
    """Return the tensor in HOLE as rows of queries or keys that the model turns by a rotary embedding. None if its name
    in the model (if that says no part: its name in the source) says neither "q" nor "k"; if it is the weight or bias of
    a norm (the last name ends in "norm"); or if the model does not turn it. None, too, for learned queries
    (`_are_queries`) that the model turns in a way that was not seen. SEEN is whether the model's forward pass shows how
    it turns any tensor.
    """
    t, s = filling.unit_of[hole]
    kind = _kind_in_model(filling, t, seen=seen)
    part = part_label(t.path) or part_label(s.path)
    is_norm = t.last.endswith("norm") and hole.role in ("weight", "bias")
    if kind is None or part not in ("q", "k") or is_norm:
        return None
    if kind == "unknown" and _are_queries(t.pieces[hole.role]):
        return None
    return _Rows(filling, hole, t, s, kind, (t.path[:-1], part))


def _kind_in_model(filling: Filling, t: Unit, *, seen: bool) -> str | None:
    """Return how the model pairs the rows of T in a rotary embedding: "half" (row i with i + half), "interleaved" (with
    i + 1), "unknown" if it turns them in a way that was not seen, None if it does not turn them.

    If the forward pass shows this for no tensor of the model (SEEN is false), what the signature of FILLING says of the
    whole model is returned (`rotary`, which may be None); if it does for others, but does not use T, "unknown".
    """
    if not seen:
        return filling.target.signature.rotary
    return "unknown" if t.main.entry.used is None else t.main.entry.facts.rotary


def _are_queries(piece: Piece) -> bool:
    """Return whether PIECE holds learned queries, one per row, and is not a layer that computes queries: it is a
    parameter called `query` or `queries`, and no square matrix.
    """
    bare = piece.last == piece.entry.key.split(".")[-1] in ("query", "queries")
    return bare and squeezed(piece.shape)[:1] != squeezed(piece.shape)[1:]


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor of queries or keys that the model turns.

    Attributes:
        filling: all tensors.
        hole: the tensor of the model.
        t, s: the units of model and source.
        kind: how the model pairs its rows: "half", "interleaved" or "unknown".
        layer: the module around it, and "q" or "k".
    """

    filling: Filling
    hole: Name
    t: Unit
    s: Unit
    kind: str
    layer: tuple[Path, str]

    def learn_from_code(self) -> bool:
        """Say whether both forward passes pair the rows in one way; if they do, keep the rows, and add the question
        about them as answered. False, without a change, if the source's forward pass does not show how it pairs them.
        """
        shown = self._shown_in_source()
        if shown is None or shown != self.kind:
            return False
        self.filling.holes[self.hole].learn(unchanged, Reason.ROTARY, shows=_PAIRS[shown])
        return True

    def reorder_by_code(self) -> bool:
        """Reorder the rows to the model's pairs, without an open question, and return True, if both forward passes show
        how they pair rows, and turn whole heads. The caller has made sure that the two ways differ.

        If the source's forward pass does not show it, change nothing, and return whether the source has the keys of all
        parameters of the model (`same_names`: then nothing is to be asked). In all other cases (the model's way or its
        heads are not known, or only a part of each head is turned), change nothing, and return False.
        """
        shown, turn = self._shown_in_source(), self._reordering()
        if shown is None:
            return self.filling.same_names
        if turn is None or self.kind == "unknown" or not self._turn_whole_heads():
            return False
        self.filling.holes[self.hole].learn(turn, Reason.ROTARY, shows=_PAIRS[shown])
        return True

    def are_known_to_agree(self) -> bool:
        """Return whether the rows may be kept without a question: nothing shows that the source pairs them in another
        way than the model (`_differ`), and it has the model's code (`same_code`, by equal keys) or names that surely
        mean the model's way. False if the source has the keys of all parameters of the model (`same_names`), and its
        forward pass does not show how it pairs the rows.
        """
        if self._shown_in_source() is None and self.filling.same_names:
            return False
        said = self._said_by_source()
        sure = said is not None and said.sure and said.kind == self.kind
        return not self._differ() and (sure or self.filling.same_code(self.t, self.s))

    def ask(self) -> None:
        """Ask how the rows are paired. The option is the reordered tensor (`_reordering`); there is none if it cannot
        be made. The reordered tensor is taken, and the plain one is the option, if the source is known to pair
        otherwise (`_differ`) and does not have the model's code.
        """
        exchange = self._differ() and not self.filling.same_code(self.t, self.s)
        self.filling.holes[self.hole].ask(Reason.ROTARY, other=self._reordering(), exchange=exchange)

    def _shown_in_source(self) -> str | None:
        """Return how the source's forward pass pairs the rows, "half" or "interleaved"; None if it does not show it, or
        shows it as "unknown".
        """
        shown = self.s.main.entry.facts.rotary
        return shown if shown in _PAIRS else None

    def _said_by_source(self) -> Rotary | None:
        """Return what the library of the source says about the pairing, or, if no library is known (`of_library`), what
        the names of the source say; None if that says nothing.
        """
        library = of_library(self.filling.source, self.s.path)
        return _rotary_by_name(self.s.path) if library is None else library.rotary

    def _differ(self) -> bool:
        """Return whether the source's forward pass, or else its library, or else its names, pair rows in another way
        than the model. False if the way of one of the two is not known.
        """
        said = self._said_by_source()
        theirs = self._shown_in_source() or (said.kind if said is not None else None)
        return self.kind != "unknown" and theirs is not None and theirs != self.kind

    def _reordering(self) -> Change | None:
        """Return the change that reorders the rows of the tensor from the other pairing to the model's (to halves, if
        that is unknown), in each head. None if the model's number of heads is unknown, or if it does not divide the
        rows into heads with an even number of rows each.
        """
        heads, shape = heads_of(self.t.main.entry), self.t.pieces[self.hole.role].shape
        if not heads or not shape or shape[0] % (2 * heads):
            return None
        kind = self.kind if self.kind != "unknown" else "half"
        return partial(ex.rotary, heads=heads, to=kind)

    def _turn_whole_heads(self) -> bool:
        """Return whether both codes turn all rows of a head: as many as the model's layer has, divided by its heads."""
        widths = {unit.main.entry.facts.turned for unit in (self.t, self.s)}
        return widths == {self.t.main.shape[0] // heads_of(self.t.main.entry)}


def _rotary_by_name(path: Sequence[str]) -> Rotary | None:
    """Return how code with the name PATH pairs queries and keys in rotary embeddings, and whether that is sure, by the
    longest known phrase at the end of the last two components of PATH, or of PATH without its last component; None if
    no phrase is known.

    The table does not have `Wqkv`, `qkv`, `to_q` and `query_key_value`, because some code with these names pairs halves
    and some neighbours.
    """
    for end in (len(path), len(path) - 1):  # what was taken out of a fused projection has its name behind it
        words = words_of(path[max(end - 2, 0) : end])
        for start in range(len(words)):
            if words[start:] in table().rotary:
                return table().rotary[words[start:]]
    return None


__all__ = ["doubt_rotary"]
