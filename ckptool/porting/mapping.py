"""The result of a port: for every key of the target an expression over source keys, with evidence and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, get_args

from ..errors import printable
from ..keys import Pattern
from .expression import Expr, Shape
from .matching.evidence import Told
from .questions import Question, Reason, answered, joined, still_open

Status = Literal["mapped", "guessed", "unmapped"]


@dataclass(frozen=True, slots=True)
class Part:
    """How one part of a key was matched, in the common form.

    Attributes:
        target, source: the paths of the units that were paired, in the common form.
        target_steps, source_steps: the names of the steps that brought the key's part, and its source, into this form.
        told: the evidence that told the unit of the model from its look-alikes, in the order in which it was found.
        support: the name of the rule that supports a pair made only by its shape; "" if there is none. If names that
            exclude each other refused an earlier partner of the unit, the name of that rule.
    """

    target: str
    source: str
    target_steps: tuple[str, ...]
    source_steps: tuple[str, ...]
    told: tuple[Told, ...]
    support: str


@dataclass(frozen=True, slots=True)
class Entry:
    """The source of one key of the target.

    Attributes:
        target: the key.
        shape: its sizes; () in a mapping that was read from a file.
        expr: the expression that makes it, or None if the key has no source.
        evidence: what decided, as text for the report; "" if there is none.
        questions: what is uncertain, with other expressions as options; for an unmapped key, the reason.
        default: whether it needs no source: a counter, or a buffer that the model computes itself.
        dtype: its element type in the model.
        parameter: whether it is trained (a buffer is not); None if that is not known.
        line: its line in a mapping file, counted from 1; 0 if it was not read from one.
        way: how each of its parts was matched; empty if it was not matched.
    """

    target: str
    shape: Shape
    expr: Expr | None = None
    evidence: str = ""
    questions: tuple[Question[Expr], ...] = ()
    default: bool = False
    dtype: str = "float32"
    parameter: bool | None = None
    line: int = 0
    way: tuple[Part, ...] = field(default=(), repr=False, compare=False)

    @property
    def status(self) -> Status:
        """Return "unmapped" if the key needs a source and has none; else "guessed" if a question about the entry is
        open, and "mapped" if none is. This is the only place where that is decided.
        """
        if self.expr is None and not self.default:
            return "unmapped"
        return "guessed" if any(question.is_open for question in self.questions) else "mapped"

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return the sentences of the open questions of this entry, each once; () if none is open. For an unmapped key,
        they say why it has no source.
        """
        return tuple(dict.fromkeys(map(str, still_open(self.questions))))

    @property
    def rivals(self) -> tuple[Expr, ...]:
        """Return the options of the open questions of this entry, each once, without the entry's own expression; () if
        there are none.
        """
        options = dict.fromkeys(option for question in still_open(self.questions) for option in question.options)
        return tuple(option for option in options if option != self.expr)

    def asking(self, *questions: Question[Expr]) -> Entry:
        """Return the entry with QUESTIONS added at the end of its questions. An open question is not added if the entry
        has an open question with the same reason and names: the old question then gets the options of the new one as
        well. Of a question that was added or changed, the first eight options are kept.
        """
        every = self.questions
        for question in questions:
            every = tuple(joined(every, question))
        return replace(self, questions=every)

    def tried(self, expr: Expr) -> Entry:
        """Return the entry with EXPR, which a proof found by trial, as its expression. It has an open question, so that
        it is a guess, and it is not `default`.

        If the entry had no expression, all its questions are answered first. If no question is open, one with the
        reason FOUND_BY_TRIAL is added. The old expression, if there was one, becomes the first option of the first open
        question.
        """
        had = () if self.expr is None else (self.expr,)
        found = Question(Reason.FOUND_BY_TRIAL, (), had)
        # what was asked about a key without a source is why it has none
        questions = self.questions if had else tuple(answered(self.questions, None, "a trial filled the key"))
        if not any(question.is_open for question in questions):
            questions = (*questions, found)
        first = next(place for place, question in enumerate(questions) if question.is_open)
        asked = questions[first].about(*had, *(x for x in questions[first].options if x not in had))
        questions = (*questions[:first], asked, *questions[first + 1 :])
        return replace(self, expr=expr, questions=questions, default=False)

    def settled(self, answer: str) -> Entry:
        """Return the entry with ANSWER as the answer of all its open questions, and as its evidence. It is not
        `default` then: without an expression it is unmapped. An empty ANSWER answers the questions as well.
        """
        questions = answered(self.questions, None, answer or "settled without evidence")
        return replace(self, questions=tuple(questions), evidence=answer, default=False)

    @property
    def keeps_its_name(self) -> bool:
        """Return whether the key has no source, or is a copy of the source's tensor of the same name."""
        return self.expr is None or (self.expr.is_copy and self.expr.key == self.target)

    @property
    def numel(self) -> int:
        """Return the number of elements of the tensor."""
        return prod(self.shape)

    @property
    def sources(self) -> list[str]:
        """Return the source keys that the expression reads, each once, in its order; [] if there is no expression."""
        return self.expr.keys() if self.expr is not None else []

    def as_json(self) -> dict[str, Any]:
        """Return the entry as `--json` prints it, a dict with the keys "target", "status", "sources" (source keys),
        "ops" (names of the operations; [] for a copy and for a key without a source; ["default"] if the key needs no
        source), "expression" (its text, or None), "evidence", "doubts" (sentences), "rivals" (texts of the options of
        open questions), and "questions", also the answered ones: {"asks": sentence, "options": texts, "answer": text,
        or None if it is open}.
        """
        return {
            "target": self.target,
            "status": self.status,
            "sources": self.sources,
            "ops": self.expr.operations() if self.expr is not None else ["default"] if self.default else [],
            "expression": None if self.expr is None else str(self.expr),
            "evidence": self.evidence,
            "doubts": list(self.doubts),
            "rivals": [str(rival) for rival in self.rivals],
            "questions": [
                {"asks": str(one), "options": list(map(str, one.options)), "answer": one.answer or None}
                for one in self.questions
            ],
        }


@dataclass(frozen=True, repr=False)
class Mapping(MappingOf[str, Entry]):
    """A port from one set of keys to another. It is immutable, and read like a dict: key of the target -> its entry.

    Attributes:
        entries: an entry for every key of the target, in its order.
        unused: source keys that no entry reads, in the order of the source.
        source_shapes: source key -> sizes, of the source that it was made for; empty if it was read from a file.
        source: the name of the source, for messages.
        target: the name of the model, for messages.
        notes: changes to the source as a whole, and other notes for the report.
        metadata: `_metadata` of the target's state dict, or None.
        at: the path of the weights in the file, if there was a choice or the user named it; else None.
        proof: the result of comparing outputs (see `prove`), or None.
    """

    entries: tuple[Entry, ...]
    unused: tuple[str, ...]
    source_shapes: MappingOf[str, Shape] = field(default_factory=dict)
    source: str = ""
    target: str = ""
    notes: tuple[str, ...] = ()
    metadata: MappingOf[str, Any] | None = None
    at: str | None = None
    proof: MappingOf[str, Any] | None = None

    def __repr__(self) -> str:
        counts = (f"{len(self.having(status)):,} {status}" for status in get_args(Status))
        return f"<Mapping {printable(self.source) or 'the source'} -> {printable(self.target)}: {', '.join(counts)}>"

    @cached_property
    def _of_key(self) -> dict[str, Entry]:
        return {entry.target: entry for entry in self.entries}

    def __getitem__(self, key: str) -> Entry:
        return self._of_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of_key)

    def __len__(self) -> int:
        return len(self._of_key)

    def having(self, status: Status) -> list[Entry]:
        """Return the entries with this STATUS, in their order."""
        return [entry for entry in self.entries if entry.status == status]

    @property
    def coverage(self) -> dict[str, list[int]]:
        """Return how much of the target is covered: {"keys": [covered keys, all keys], "parameters": [covered elements,
        all elements]}. A key is covered if it is mapped or guessed; a key that needs no source is covered, too.
        Elements of buffers count as well.
        """
        covered = [entry for entry in self.entries if entry.status != "unmapped"]
        return {
            "keys": [len(covered), len(self.entries)],
            "parameters": [sum(e.numel for e in covered), sum(e.numel for e in self.entries)],
        }

    @property
    def is_sure(self) -> bool:
        """Return whether every key is mapped: none is a guess or without a source."""
        return all(entry.status == "mapped" for entry in self.entries)

    def open_questions(self, guesses: Sequence[str], gaps: Sequence[str]) -> list[Entry]:
        """Return the entries that the user did not accept: the guessed ones whose key matches none of the patterns
        GUESSES, and the unmapped ones whose key matches none of the patterns GAPS, in their order; [] if there are
        none.

        A pattern (`keys.Pattern`) matches the keys that begin with it, by whole components; an empty one matches all,
        and one that begins with `re:` the keys in which the regular expression is found.

        Raises:
            RuleError: a text in GUESSES or GAPS is no pattern.
        """
        accepted = {
            status: [Pattern.parse(text) for text in texts]
            for status, texts in (("guessed", guesses), ("unmapped", gaps))
        }
        return [
            entry
            for entry in self.entries
            if entry.status != "mapped" and not any(p.matches(entry.target) for p in accepted[entry.status])
        ]

    def with_entries(self, entries: Sequence[Entry]) -> Mapping:
        """Return the mapping with ENTRIES in place of its entries, and with the keys of `source_shapes` that they do
        not read as its unused keys.
        """
        used = {key for entry in entries for key in entry.sources}
        return replace(self, entries=tuple(entries), unused=tuple(key for key in self.source_shapes if key not in used))

    def as_json(self) -> dict[str, Any]:
        """Return the mapping as part of the document that `--json` prints, a dict with the keys "target" (name of the
        model), "coverage" (`coverage`), "entries" (a dict for each, `Entry.as_json`), "unused" (list of source keys),
        and "proof" (a dict, or None if there is none).
        """
        return {
            "target": self.target,
            "coverage": self.coverage,
            "entries": [entry.as_json() for entry in self.entries],
            "unused": list(self.unused),
            "proof": None if self.proof is None else dict(self.proof),
        }


def different(target: str, source: str) -> tuple[str, str]:
    """Return (beginning of the key TARGET, beginning of the key SOURCE), before the components that both have at their
    end: ("a.", "b.c.") for `a.x.w` and `b.c.x.w`. Each ends with a dot, and is "" if nothing is before these
    components; ("", "") for equal keys. Without any such component, they are the whole keys with a dot.
    """
    own, theirs = target.split("."), source.split(".")
    shared = 0
    while shared < min(len(own), len(theirs)) and own[-1 - shared] == theirs[-1 - shared]:
        shared += 1
    heads = (parts[: len(parts) - shared] for parts in (own, theirs))
    first, second = ("".join(f"{part}." for part in parts) for parts in heads)
    return first, second


__all__ = ["Entry", "Mapping", "Status", "different"]
