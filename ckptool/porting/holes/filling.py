"""Fill the holes of the target (the places of its tensors) from matched units, and keep the questions about each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import Canon, Name, Piece, squeezed, substituted
from ..matching.evidence import Kind
from ..matching.match import Matcher, Matching
from ..matching.units import SOME, Pair, Unit, hard_conflict, label_of, related, similarity
from ..questions import Question, Reason, ask, ask_code, joined, still_open
from ..words import common_start

#: Sorted behind whatever a key may go on with.
_LAST = "\U0010ffff"
#: What stands this many components above a tensor is the block around its module; so many equal names below it, and
#: such a share of them, tell that it is the same code: a library may have joined the experts in it.
_AROUND, _ENOUGH, _MOST = 3, 6, 0.66

#: Makes another expression of one.
Change = Callable[[Expr], Expr]
#: Gives the values of a source key as a numpy array, for the few small tensors whose values say something.
Values = Callable[[str], Any]


@dataclass(slots=True)
class Filled:
    """The expression that fills one hole of the target.

    Attributes:
        expr: the expression.
        evidence: why it was chosen, for the report.
        questions: what is uncertain about it, with other expressions as options.
    """

    expr: Expr
    evidence: str
    questions: list[Question[Expr]] = field(default_factory=list)

    @property
    def doubts(self) -> list[Question[Expr]]:
        """Return the open questions about this expression."""
        return still_open(self.questions)

    def change(self, make: Change) -> None:
        """Replace the expression by MAKE(expression), and in the same way each option of the questions so far, because
        an option stands for the expression.
        """
        self.expr = make(self.expr)
        self.questions = [question.translated(make) for question in self.questions]

    def ask(
        self,
        reason: Reason,
        *named: str,
        options: Sequence[Expr] = (),
        other: Change | None = None,
        exchange: bool = False,
    ) -> None:
        """Add an open question whether the hole is filled with this expression or with another one. If the same
        question (reason and names) is open, it gets the options as well, behind its own. A question keeps its first
        eight options.

        Args:
            reason, named: the sentence, and the text for each `{}` in it.
            options: other expressions, the likeliest first.
            other: makes one more option of the expression, before OPTIONS.
            exchange: change the expression, and the options so far, by OTHER (`change`), and make the expression before
                that the option in its place. Without OTHER it has no effect.
        """
        if other is not None:
            before = self.expr
            if exchange:
                self.change(other)
            options = (before if exchange else other(before), *options)
        self.questions = joined(self.questions, Question(reason, named, tuple(options)))

    def learn(self, make: Change, reason: Reason, *named: str, shows: str) -> None:
        """Change the expression by MAKE, and add a question for REASON, with the texts NAMED in its sentence, as
        answered: SHOWS says what the source's code does. The question has no options.
        """
        self.change(make)
        self.questions = [*self.questions, ask_code(reason, *named, shows=shows)]


class Filling:
    """The holes of the target while they are filled with expressions over the source.

    Attributes:
        source, target: the two sides in their common form.
        matcher, matching: the matcher and the pairs that it found.
        values: returns the values of a small tensor of the source, given its key; None if no values may be read.
        holes: name of a hole -> what fills it; holes that are not filled are missing.
        misses: name of a hole -> why it stays empty, if more is known than that no source fits.
        unit_of: name of a hole -> the units (target, source) that it was filled from.
        planned: (unit of the source, what is done with it to the holes at the end, after all questions about layers are
            asked).
        same_names: whether the source has all keys of the model but for buffers, and so most likely the same code.
    """

    def __init__(
        self, source: Canon, target: Canon, matcher: Matcher, matching: Matching, values: Values | None
    ) -> None:
        self.source, self.target, self.matcher, self.matching, self.values = source, target, matcher, matching, values
        self.holes: dict[Name, Filled] = {}
        self.misses: dict[Name, Question[Expr]] = {}
        self.unit_of: dict[Name, Pair] = {}
        self.planned: list[tuple[Unit, Callable[[Filling], None]]] = []
        own = {key for key, entry in target.signature.entries.items() if entry.parameter is not False}
        self.same_names = own <= set(source.signature.entries)
        self._compared: dict[tuple[str, str], bool] = {}
        self._sorted = [sorted(side.signature.entries) for side in (target, source)]  # each block is asked about once

    def put(self, piece: Piece, units: Pair, filled: Filled) -> None:
        """Fill the hole of PIECE with FILLED, and note that it comes from UNITS (target, source)."""
        self.holes[piece.name] = filled
        self.unit_of[piece.name] = units

    def fill(self, t: Unit, s: Unit) -> None:
        """Fill the holes of the unit T of the target with the pieces of the unit S of the source (`_source_for`). A
        hole for which S has no piece stays as it is. The pairs of the matching are not changed.

        What fills a hole gets the questions about T (with the piece of the same role of each unit that is an option, if
        it has one of these sizes), about the pieces of S that it reads, and about the piece of T (with the new
        expression in place of its own hole). If T is a GRU with two biases and S has one (`_may_reset_before`), a
        question is added to T first.
        """
        if _may_reset_before(t, s):
            t.ask(ask(Reason.RESET_BEFORE))
        for role, piece in t.pieces.items():
            found = _source_for(role, piece, t, s)
            if found is None:
                continue
            expr, used = found
            questions = [q.translated(partial(_of_role, role, piece)) for q in t.questions]
            questions += [q for name in used for q in s.pieces[name].questions]
            questions += [q.translated(partial(substituted, values={piece.name.hole: expr})) for q in piece.questions]
            self.put(piece, (t, s), Filled(expr, _evidence_text(t), questions))

    def guess(self, targets: list[Unit], sources: list[Unit]) -> None:
        """Fill each of TARGETS, units that no evidence tells apart, from one of SOURCES, each source at most once, with
        a question about each pair, which is added to the target. The question has all other SOURCES as options; if
        there is one source for several targets, it has no option, and names another of TARGETS. The pairs of the
        matching are not changed.

        Each target, in the order of use (of registration, if that is not known), takes the likeliest of the sources
        that are left (`_likeliest`), or stays without one, and then gets no question. A buffer gets no question either
        if all SOURCES have equal values.
        """
        free = sorted(sources, key=lambda u: u.order)
        for t in sorted(targets, key=lambda u: u.used if u.used is not None else u.order):
            chosen = self._likeliest(t, free)
            if chosen is None:
                continue
            free.remove(chosen)
            if t.main.entry.parameter is not False or not self._equal(sources):
                others = tuple(s for s in sources if s is not chosen)
                wanting = next((other for other in targets if other is not t), None)
                if others or wanting is None:
                    t.ask(Question(Reason.GUESSED_OF_SEVERAL, (str(len(sources)),), others))
                else:
                    t.ask(ask(Reason.WANTED_ELSEWHERE, ".".join(wanting.path)))
            self.fill(t, chosen)

    def _likeliest(self, t: Unit, sources: list[Unit]) -> Unit | None:
        """Return the unit of SOURCES whose name is most similar to that of T (`similarity`), the first of equally
        similar ones. Units whose words exclude those of T ("q", "k") do not count, nor those whose bias has another
        size than that of T.

        None if no unit is left, or if nothing supports the most similar one: its `similarity` to T is 0.15 or less, its
        name means something else (`related`), and no module around it matches one around T as a whole (`Scopes.same`).
        """
        allowed = [s for s in sources if not hard_conflict(t.words, s.words) and _biases_fit(t, s)]
        best = max(allowed, key=lambda s: similarity(t, s), default=None)
        if best is None or not (similarity(t, best) > SOME or related(t, best) or self.matcher.scopes.same(t, best)):
            return None
        return best

    def _equal(self, sources: Sequence[Unit]) -> bool:
        """Return whether the main tensors of all SOURCES have equal sizes and values, like buffers that are the same in
        each layer. False if values cannot be read, or if one of SOURCES has several tensors, or one that is no copy of
        a key.
        """
        if self.values is None or any(len(u.pieces) > 1 or not u.main.expr.is_copy for u in sources):
            return False
        first, *others = (self.values(u.main.expr.key) for u in sources)
        return first is not None and all(
            one is not None and one.shape == first.shape and bool((one == first).all()) for one in others
        )

    def same_code(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S come from the same code, as names say: the source has all keys of the model but for
        buffers (`same_names`), or a module around T and one around S hold nearly the same names (`_same_below`). Below
        these two modules, the keys of T and S have to be equal, in three components or more.

        Libraries rename the first components when a model becomes part of another one (a language model with vision, a
        detector with its backbone). The code inside stays the same.
        """
        if self.same_names:
            return True
        own, theirs = t.main.entry.key.split("."), s.main.entry.key.split(".")
        shared = common_start([own[::-1], theirs[::-1]])
        # below an attention there are four names that much code shares: it is the block around it that tells
        return any(self._same_below(own[:-n], theirs[:-n]) for n in range(_AROUND, shared + 1))

    def _same_below(self, own: Sequence[str], theirs: Sequence[str]) -> bool:
        """Return whether the module THEIRS of the source holds, under equal names, at least 66 percent of the keys that
        the model has in the module OWN, and at least 6 of them. Both paths are given by their components. The result
        is kept for the next call with these modules.
        """
        prefixes = ".".join((*own, "")), ".".join((*theirs, ""))
        if prefixes not in self._compared:
            below, beside = (
                {key[len(prefix) :] for key in keys[bisect_left(keys, prefix) : bisect_left(keys, prefix + _LAST)]}
                for keys, prefix in zip(self._sorted, prefixes, strict=True)
            )
            self._compared[prefixes] = len(below & beside) >= max(_ENOUGH, _MOST * len(below))
        return self._compared[prefixes]

    def written_once(self, t: Unit, s: Unit) -> bool:
        """Return whether T and S seem to be the same layer of one code: they were paired by their name or have equal
        last names (`_have_one_name`), or they come from the same code (`same_code`).
        """
        return _have_one_name(t, s) or self.same_code(t, s)

    def alike(self, t: Unit, s: Unit) -> bool:
        """Return whether S seems to be in the place of T: their paths are equal, their names say one kind of embedding,
        or they stand between the same pairs (`Orders.between`). False if the words of their names exclude each other.
        """
        if hard_conflict(t.words, s.words):
            return False
        if t.path == s.path:
            return True
        if label_of(t, "embedding") and label_of(t, "embedding") == label_of(s, "embedding"):
            return True
        return self.matcher.orders.between(t, s)


def _have_one_name(t: Unit, s: Unit) -> bool:
    """Return whether the evidence for T has its name among it, or the last two components of the paths of T and S are
    equal.
    """
    return t.told_by(Kind.NAME) or t.path[-2:] == s.path[-2:]


def _biases_fit(t: Unit, s: Unit) -> bool:
    """Return whether T and S both have a bias of the same sizes, without sizes of 1; True, too, if one of them, or
    both, have no `bias`.
    """
    own, theirs = t.pieces.get("bias"), s.pieces.get("bias")
    return own is None or theirs is None or squeezed(own.shape) == squeezed(theirs.shape)


def _may_reset_before(t: Unit, s: Unit) -> bool:
    """Return whether T, of the model, is a GRU with two biases, for the input and for the hidden state, and its partner
    S has one bias.

    In torch the reset gate is multiplied with the second bias. Code that applies the gate to the hidden state needs
    none.
    """
    return _is_gru(t.pieces.get("weight_hh")) and [len(_biases(unit)) for unit in (t, s)] == [2, 1]


def _is_gru(hidden: Piece | None) -> bool:
    """Return whether HIDDEN, the weight of a recurrent layer for its hidden state, has the sizes of a GRU, [3n, n]."""
    return hidden is not None and len(hidden.shape) > 1 and hidden.shape[0] == 3 * hidden.shape[1]


def _biases(unit: Unit) -> list[str]:
    """Return those of the roles "bias_ih", "bias_hh" and "bias" that UNIT has, in this order: two for a bias each for
    the input and the hidden state, one for a single bias, none without.
    """
    return [role for role in ("bias_ih", "bias_hh", "bias") if role in unit.pieces]


#: What every batch norm has that keeps statistics.
_WITH_STATISTICS = frozenset({"running_mean", "running_var"})


def _source_for(role: str, piece: Piece, t: Unit, s: Unit) -> tuple[Expr, list[str]] | None:
    """Return (expression for PIECE, the tensor ROLE of T; roles of the pieces of S that it reads). The first that
    applies:

      - T and S are batch norms (both have a running mean and variance), and S lacks the weight or bias: ones or zeros,
        and []. Keras stores neither with `scale=False` or `center=False`, and torch neither with `affine=False`.
      - Both units have just one piece: that of S, whatever its role.
      - A bias: as `_bias_for` says.
      - Any other tensor: the piece of S with this role.

    None if S has no such piece, or if the sizes of the two differ in more than sizes of 1.
    """
    if role in ("weight", "bias") and role not in s.pieces and t.pieces.keys() & s.pieces.keys() >= _WITH_STATISTICS:
        zeros = ex.zeros(*piece.shape)
        return (ex.shift(zeros, 1.0) if role == "weight" else zeros), []
    if len(t.pieces) == len(s.pieces) == 1:
        role = next(iter(s.pieces))
    elif role in ("bias", "bias_ih", "bias_hh"):
        return _bias_for(role, piece, t, s)
    expr = _of_role(role, piece, s)
    return None if expr is None else (expr, [role])


def _of_role(role: str, piece: Piece, unit: Unit) -> Expr | None:
    """Return the expression of the tensor ROLE of UNIT, of the source, reshaped to the sizes of PIECE, of the target.
    None if UNIT has no such tensor, or if the sizes differ in more than dimensions of size 1.
    """
    found = unit.pieces.get(role)
    if found is None or squeezed(found.shape) != squeezed(piece.shape):
        return None
    return found.expr if found.shape == piece.shape else ex.reshape(found.expr, piece.shape)


def _bias_for(role: str, piece: Piece, t: Unit, s: Unit) -> tuple[Expr, list[str]] | None:
    """Return (expression for PIECE, the bias ROLE of the layer T; roles of the biases of S that it reads). None if the
    sizes differ, if S has no bias, or for a GRU in which two biases of S would become one of T.

    If T and S have equally many biases, each is copied from that of its role, a single one from the single one. If only
    T has two, the first (`bias_ih`) is that of S, and the second is zeros, which read no role: (zeros, []). If only S
    has two, that of T is their sum.
    """
    own, theirs = _biases(t), _biases(s)
    if len(own) == len(theirs) and (len(own) == 1 or role in theirs):
        role = role if role in theirs else theirs[0]
        expr = _of_role(role, piece, s)
        return None if expr is None else (expr, [role])
    if not theirs or any(s.pieces[r].shape != piece.shape for r in theirs):
        return None
    if len(own) == 1:
        if _is_gru(s.pieces.get("weight_hh", t.pieces.get("weight_hh"))):
            return None  # a GRU multiplies one of its two biases by a gate before it adds them
        return ex.add(*(s.pieces[r].expr for r in theirs)), theirs
    return (s.pieces[theirs[0]].expr, theirs) if role == own[0] else (ex.zeros(*piece.shape), [])


def _evidence_text(t: Unit) -> str:
    """Return the text of the last three different pieces of evidence of T, for the report; "the only one of its shape"
    if T has none.
    """
    found = list(dict.fromkeys(t.evidence))
    return ", ".join(map(str, found[-3:])) or "the only one of its shape"
