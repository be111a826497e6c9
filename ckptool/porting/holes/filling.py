"""What goes into each hole of the target: filled from matched units, with what is not certain about it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import Canon, Name, Piece, squeezed, substituted
from ..matching.match import Matcher, Matching
from ..matching.units import Unit, hard_conflict, label_of, related, similarity
from ..questions import Question, Reason, ask_code, joined, still_open

#: Sorted behind whatever a key may go on with.
_LAST = "\U0010ffff"
#: What stands this many components above a tensor is the block around its module; so many equal names below it, and
#: such a share of them, tell that it is the same code: a library may have joined the experts in it.
_AROUND, _ENOUGH, _MOST = 3, 6, 0.66

#: Gives the values of a source key as a numpy array, for the few small tensors whose values say something.
Values = Callable[[str], Any]


@dataclass(slots=True)
class Filled:
    """What goes into one hole of the target.

    Attributes:
        expr: it.
        evidence: what decided, for the report.
        questions: what is not certain about it, with what else it may be.
    """

    expr: Expr
    evidence: str
    questions: list[Question[Expr]] = field(default_factory=list)

    @property
    def doubts(self) -> list[Question[Expr]]:
        """The questions that are open."""
        return still_open(self.questions)

    def ask(self, reason: Reason, *named: str, options: Sequence[Expr] = (), exchange: bool = False) -> None:
        """Ask whether it is this expression or one of OPTIONS; with EXCHANGE, the first of these is the likelier."""
        if exchange:
            self.expr, options = options[0], (self.expr, *options[1:])
        self.questions = joined(self.questions, Question(reason, named, tuple(options)))

    def learn(self, expr: Expr, reason: Reason, *named: str, shows: str) -> None:
        """Take EXPR, since the source's code answers the question: SHOWS says what it does."""
        self.expr = expr
        self.questions = [*self.questions, ask_code(reason, *named, shows=shows)]


class Filling:
    """The holes of the target, being filled.

    Attributes:
        source, target: the two sides in their common form.
        matcher, matching: how units were matched, and what was found.
        values: gives small tensors of the source.
        holes: what goes into each, by its name.
        misses: why nothing goes into it, where more can be said than that.
        unit_of: from which (target, source) units that comes.
    """

    def __init__(
        self, source: Canon, target: Canon, matcher: Matcher, matching: Matching, values: Values | None
    ) -> None:
        self.source, self.target, self.matcher, self.matching, self.values = source, target, matcher, matching, values
        self.holes: dict[Name, Filled] = {}
        self.misses: dict[Name, Question[Expr]] = {}
        self.unit_of: dict[Name, tuple[Unit, Unit]] = {}
        self.same_names = self._same_names()
        self._compared: dict[tuple[str, str], bool] = {}
        self._sorted = [sorted(side.signature.entries) for side in (target, source)]  # each block is asked about once

    def fill(self, t: Unit, s: Unit) -> None:
        """Fill the holes of the unit T with the pieces of S, with all questions about T and about those pieces."""
        evidence = _evidence_text(t, s)
        left = dict(s.pieces)
        for role, piece in t.pieces.items():
            found = self._source_for(role, piece, t, s)
            if found is None:
                continue
            expr, used = found
            for name in used:
                left.pop(name, None)
            questions = [q.translated(partial(self._option, role, piece)) for q in t.questions]
            questions += [q for name in used for q in s.pieces[name].questions]
            questions += [q.translated(partial(substituted, values={piece.name.hole: expr})) for q in piece.questions]
            self.holes[piece.name] = Filled(expr, evidence, questions)
            self.unit_of[piece.name] = (t, s)

    def _option(self, role: str, piece: Piece, unit: Unit) -> Expr | None:
        found = unit.pieces.get(role)
        if found is None or squeezed(found.shape) != squeezed(piece.shape):
            return None
        return self._reshaped(found, piece.shape)

    def _reshaped(self, found: Piece, shape: Shape) -> Expr:
        return found.expr if found.shape == shape else ex.reshape(found.expr, shape)

    def _source_for(self, role: str, piece: Piece, t: Unit, s: Unit) -> tuple[Expr, list[str]] | None:
        if role in ("bias", "bias_ih", "bias_hh") and max(len(t.pieces), len(s.pieces)) > 1:
            return self._bias_for(role, piece, t, s)
        found = s.pieces.get(role)
        if found is None and len(t.pieces) == 1 and len(s.pieces) == 1:
            role, found = next(iter(s.pieces.items()))
        if found is not None:
            if squeezed(found.shape) != squeezed(piece.shape):
                return None
            return self._reshaped(found, piece.shape), [role]
        return None

    def _bias_for(self, role: str, piece: Piece, t: Unit, s: Unit) -> tuple[Expr, list[str]] | None:
        """A bias; a recurrent layer has one for the input, one for the hidden state, or one for both."""
        roles: list[str] = ["bias_ih", "bias_hh", "bias"]
        own, theirs = ([r for r in roles if r in u.pieces] for u in (t, s))
        if len(own) == len(theirs) and (len(own) == 1 or role in theirs):
            role = role if role in theirs else theirs[0]
            found = s.pieces[role]
            same = squeezed(found.shape) == squeezed(piece.shape)
            return (self._reshaped(found, piece.shape), [role]) if same else None
        hh = s.pieces.get("weight_hh", t.pieces.get("weight_hh"))
        if not theirs or any(s.pieces[r].shape != piece.shape for r in theirs):
            return None
        if len(own) == 1:
            if hh is not None and len(hh.shape) > 1 and hh.shape[0] == 3 * hh.shape[1]:
                return None  # a GRU multiplies one of its two biases by a gate before it adds them
            return ex.add(*(s.pieces[r].expr for r in theirs)), theirs
        if role == own[0]:
            return s.pieces[theirs[0]].expr, theirs
        return ex.zeros(*piece.shape), []

    def guess(self, targets: list[Unit], sources: list[Unit]) -> None:
        """What no evidence separates: paired as it comes and called a guess, where there is any reason to fill it."""
        free = sorted(sources, key=lambda u: u.order)
        own = sorted(targets, key=lambda u: u.used if u.used is not None else u.order)
        for t in own:
            ranked = sorted(free, key=lambda s: (hard_conflict(t.words, s.words) is not None, -similarity(t, s)))
            if not ranked:
                return
            top = similarity(t, ranked[0])
            chosen = ranked[0]
            same = [s for s in ranked if similarity(t, s) == top]
            if len(own) == len(sources):
                chosen = same[0]
            reason = top > 0.15 or related(t, chosen) or self.matcher.scopes.same(t, chosen)
            if not reason or hard_conflict(t.words, chosen.words):
                continue
            free.remove(chosen)
            if t.main.entry.parameter is False and self._equal(sources):
                self.fill(t, chosen)
                continue
            others = tuple(s for s in sources if s is not chosen)
            t.ask(Question(Reason.GUESSED_OF_SEVERAL, (str(len(sources)),), others))
            self.fill(t, chosen)

    def _equal(self, sources: Sequence[Unit]) -> bool:
        """Whether units of the source hold the same values, as buffers do that code computes alike in each layer."""
        if self.values is None or any(len(u.pieces) > 1 or not u.main.expr.is_copy for u in sources):
            return False
        first, *others = (self.values(u.main.expr.key) for u in sources)
        return first is not None and all(
            one is not None and one.shape == first.shape and bool((one == first).all()) for one in others
        )

    def _same_names(self) -> bool:
        """Whether the file's keys are the model's, so that nothing speaks for other code."""
        own = {k for k, e in self.target.signature.entries.items() if e.parameter is not False}
        return own <= set(self.source.signature.entries)

    def same_code(self, t: Unit, s: Unit) -> bool:
        """Whether a part of the file around S has the names of the model's around T, but for what stands before them.

        Files of models that contain others (a language model with eyes, a detector with its backbone) are renamed in
        their first components as versions of a library go by; what is inside stays the code that it was.
        """
        if self.same_names:
            return True
        own, theirs = t.main.entry.key.split("."), s.main.entry.key.split(".")
        shared = next(
            (n for n, (a, b) in enumerate(zip(reversed(own), reversed(theirs), strict=False)) if a != b), None
        )
        shared = min(len(own), len(theirs)) if shared is None else shared
        # below an attention there are four names that much code shares: it is the block around it that tells
        return any(self._same_below(own[:-n], theirs[:-n]) for n in range(_AROUND, shared + 1))

    def _same_below(self, own: Sequence[str], theirs: Sequence[str]) -> bool:
        prefixes = ".".join(own) + ".", ".".join(theirs) + "."
        if prefixes not in self._compared:
            below, beside = (
                {key[len(prefix) :] for key in keys[bisect_left(keys, prefix) : bisect_left(keys, prefix + _LAST)]}
                for keys, prefix in zip(self._sorted, prefixes, strict=True)
            )
            self._compared[prefixes] = len(below & beside) >= max(_ENOUGH, _MOST * len(below))
        return self._compared[prefixes]

    def alike(self, t: Unit, s: Unit) -> bool:
        """Whether S stands where T does, by its name or by what stands around it."""
        if hard_conflict(t.words, s.words):
            return False
        if t.path == s.path:
            return True
        if label_of(t, "embedding") and label_of(t, "embedding") == label_of(s, "embedding"):
            return True
        return self.matcher.orders.between(t, s)


def _evidence_text(t: Unit, s: Unit) -> str:
    found = list(dict.fromkeys(t.evidence))
    if not found:
        return "the only one of its shape"
    return ", ".join(map(str, found[-3:]))
