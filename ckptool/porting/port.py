"""Make a mapping from the signatures of a source and of a target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from ..keys.known_buffers import COUNTERS, STATISTICS
from ..model_code.signature import Entry as Tensor
from ..model_code.signature import Signature
from . import expression as ex
from .equal_blocks import shortened
from .expression import Expr, Shape
from .forms.canonical import canonical
from .forms.copies import called_as_in, copies, doubt_copies, target_networks, with_target_networks
from .forms.pieces import squeezed, substituted
from .holes.background import doubt_background
from .holes.conventions import doubt_conventions
from .holes.filling import Filled, Filling, Values
from .holes.folded import finish_folds
from .holes.out_of_place import doubt_what_is_out_of_place
from .holes.substitutes import substitute
from .mapping import Entry, Mapping, Part
from .matching.match import Matcher, is_average, kind_of
from .questions import Question, Reason, Topic, answered, ask, joined
from .rivals import weigh
from .words import cut, table


def port(
    source: Signature,
    target: Signature,
    *,
    values: Values | None = None,
    lora_scale: float | None = None,
) -> Mapping:
    """Return the mapping from the source to the target: which tensor goes where, with an entry for each key of the
    target, in its order. If both sides have a list of 66 or more equal blocks (`shortened`), only the first 33 of
    these, or a few more, are matched at first, and the others are filled like them (see `equal_blocks`). If the blocks
    that were matched do not have one result, or the others cannot be filled like them (`carried`), all are matched.

    Args:
        source: the keys and shapes of the file.
        target: the keys and shapes of the model.
        values: a function that is given a key of the source and returns the values of its tensor, or None if the tensor
            is not small; values may contradict a name. None if no values can be read.
        lora_scale: the scale of low-rank adapters; None if the file does not state it.
    """
    short = shortened(source, target)
    if short is not None:
        looked_at: set[str] = set()

        def noted(key: str) -> Any:
            looked_at.add(key)
            return None if values is None else values(key)

        made = port(short.source, short.target, values=values and noted, lora_scale=lora_scale)
        if (whole := short.carried(made, looked_at)) is not None:
            return whole
    return _matched(source, target, values, lora_scale)


def _matched(source: Signature, target: Signature, values: Values | None, lora_scale: float | None) -> Mapping:
    """Return the mapping from SOURCE to TARGET as they are, with all of their blocks. VALUES and LORA_SCALE are as in
    `port`.

    Of two keys of SOURCE for one tensor, the one that TARGET has may become the tensor's own key (`called_as_in`). Of
    several copies of the model in SOURCE only the preferred one is matched, and the others become options (`copies`). A
    target network of TARGET that SOURCE lacks gets what fills the network that it follows (`target_networks`). What is
    left is brought into the common form and matched, pairs are weighed against their swaps, and the holes are filled;
    then come substitutes for units without a partner, questions about conventions, the background, pairs that are out
    of place, and copies, and at last the norms that are folded into layers.
    """
    shapes = {key: entry.shape for key, entry in source.entries.items()}
    source = called_as_in(source, target)
    copied, others = copies(source, target)
    kept = replace(source, entries={k: e for k, e in source.entries.items() if k not in copied and k not in others})
    twins = target_networks(source, target)
    wanted = replace(target, entries={k: e for k, e in target.entries.items() if k not in twins}) if twins else target
    s, t = canonical(kept, wanted, lora_scale=lora_scale)
    matcher = Matcher(s, t)
    matching = matcher.run()
    weigh(matching, matcher.sequences)
    filling = Filling(s, t, matcher, matching, values)
    for own, theirs in matching.pairs:
        filling.fill(own, theirs)
    for targets, sources in matching.undecided:
        filling.guess(targets, sources)
    substitute(filling)
    doubt_conventions(filling)
    doubt_background(filling)
    doubt_what_is_out_of_place(filling)
    doubt_copies(filling, copied)
    finish_folds(filling)
    made = _Entries(filling, shapes, copied).mapping()
    return with_target_networks(made, target, twins) if twins else made


class _Entries:
    """Builds the entries of a mapping from filled holes.

    Args:
        filling: the holes of the target with what fills them, or why nothing does.
        shapes: key -> sizes, of the source.
        copied: key of a further copy of the model in the source -> key of the copy that was chosen. Tensors of further
            copies do not fill buffers.
    """

    def __init__(self, filling: Filling, shapes: dict[str, Shape], copied: dict[str, str]) -> None:
        self._source, self._target, self._shapes, self._copied = filling.source, filling.target, shapes, copied
        self._filled, self._unit_of = filling.holes, filling.unit_of
        self._holes = {name.hole: filled for name, filled in filling.holes.items()}
        self._names = {name.hole: name for name in filling.holes}
        self._misses = {name.hole: why for name, why in filling.misses.items()}
        read = (key for key, entry in self._source.signature.entries.items() if entry.used is not None)
        self._read_modules = {key.rpartition(".")[0] for key in read}  # in the forward pass of the source's code
        self._unused: list[Tensor] | None = None
        self._factors: dict[str, _Factors] = {}  # path of a module of the source -> its unused matrices

    def mapping(self) -> Mapping:
        """Return the mapping with an entry for each key of the target, in its order, and with the notes of both sides.
        It also has the questions, and sums of biases, of `_without_company`.
        """
        source, target = self._source, self._target
        entries = [self._entry(key) for key in target.signature.entries]
        made = Mapping(
            tuple(entries),
            (),
            self._shapes,
            source.signature.name,
            target.signature.name,
            (*source.notes, *target.notes),
            target.signature.metadata,
        )
        return self._without_company(made.with_entries(entries))

    def _without_company(self, made: Mapping) -> Mapping:
        """Return MADE with questions about keys whose layer seems to lack a tensor. A key with an expression gets the
        first of these questions that fits, or none; a key without an expression gets none:

        - LEFT_BESIDE: an unused tensor of the source (an adapter, a mask, a scale) seems to belong to a layer that the
          key reads (`_left_beside`). The question names this tensor. It does not fit if the tensor is a statistic that
          old instance norms kept and did not use (`_may_be_unused`), and the key is of an instance norm of the model.
        - LEFT_OUT_BESIDE: the source's code runs an unused layer on the input of a layer that this key, or another key
          of its module, reads (`_left_out`). The question names the unused layer; of several keys, the last decides.
        - NEW_BESIDE: the key reads one tensor, its module has another name than the source's (`_called_alike`), and a
          key of this module that may be trained is unmapped. The question names the first such key.
        - TIED_IN_MODEL: the key is tied to another key of the model, and an unused tensor of the source seems to be its
          own (`_left_by_tie`). The question names the other key, and this tensor.

        Then a bias that is alone may become a sum with biases of the source that were left out (`_with_left_biases`);
        these no longer count as unused.
        """
        left = self._left(made)
        gaps: dict[str, dict[Shape, str]] = defaultdict(dict)
        for one in made.entries:
            if one.status == "unmapped" and one.parameter is not False:
                gaps[one.target.rpartition(".")[0]].setdefault(squeezed(one.shape), one.target)
        unused = self._unused_layers(made)
        found = [(one, self._left_out(one, unused)) for one in made.entries if one.expr is not None]
        aside = {one.target.rpartition(".")[0]: name for one, name in found if name is not None}
        entries: list[Entry] = []
        for one in made.entries:
            module = one.target.rpartition(".")[0]
            missing = gaps.get(module, {})
            beside = self._left_beside(one, left, missing.keys())
            old = self._target.signature.entries[one.target].of_instance_norm
            if beside is not None and not (old and self._may_be_unused(beside)):
                one = one.asking(ask(Reason.LEFT_BESIDE, beside))
            elif one.expr is not None and module in aside:
                one = one.asking(ask(Reason.LEFT_OUT_BESIDE, aside[module]))
            elif len(one.sources) == 1 and missing and not _called_alike(module, one.sources[0]):
                one = one.asking(ask(Reason.NEW_BESIDE, next(iter(missing.values()))))
            elif (own := self._left_by_tie(one, made.unused)) is not None:
                one = one.asking(ask(Reason.TIED_IN_MODEL, str(self._target.signature.entries[one.target].tied), own))
            entries.append(one)
        entries = self._with_left_biases(entries)
        read = {key for one in entries for key in one.sources}  # a sum also reads biases that were left out
        return replace(made, entries=tuple(entries), unused=tuple(key for key in made.unused if key not in read))

    def _left_by_tie(self, one: Entry, unused: Sequence[str]) -> str | None:
        """Return the key of UNUSED, the source's tensors that no key reads, that seems to be the source of ONE, if the
        model ties ONE to another key. It has the sizes of the tensor that ONE copies, and the last two components of
        ONE's key; or else it is the only one with these sizes. It is itself not tied, and its last two components are
        not those of the tensor that ONE copies, as those of an average or of another part are. None if there is none,
        or if the key does not copy one tensor.
        """
        tensors = self._source.signature.entries
        if not unused or self._target.signature.entries[one.target].tied is None:
            return None
        if one.expr is None or not one.expr.is_copy or len(one.shape) < 2:
            return None
        fitting = [key for key in unused if key in tensors and tensors[key].tied is None]
        fitting = [key for key in fitting if self._shapes[key] == self._shapes[one.expr.key]]
        fitting = [key for key in fitting if key.split(".")[-2:] != one.expr.key.split(".")[-2:]]
        named = [key for key in fitting if key.split(".")[-2:] == one.target.split(".")[-2:]]
        return next(iter(named), fitting[0] if len(fitting) == 1 else None)

    def _may_be_unused(self, key: str) -> bool:
        """Return whether KEY, a key of the source, is a statistic that an instance norm of torch kept and did not use,
        as those up to version 0.4 did. A norm with a count of batches is newer, and used its statistics.
        """
        leaf = key.rpartition(".")[2]
        counted = any(key.removesuffix(leaf) + name in self._source.signature.entries for name in COUNTERS)
        return leaf in STATISTICS and not counted

    def _left(self, made: Mapping) -> dict[str, list[str]]:
        """Return path of a module of the source -> its unused keys that may be part of a layer (`_may_belong`), in
        order. Unused are the keys that no key of MADE reads. A key is listed for each module around it: `a.b.mask` for
        `a` and for `a.b`.
        """
        left: dict[str, list[str]] = defaultdict(list)
        for key in filter(self._may_belong, made.unused):
            parts = key.split(".")
            for at in range(1, len(parts)):
                left[".".join(parts[:at])].append(key)
        return left

    def _may_belong(self, key: str) -> bool:
        """Return whether the source's tensor KEY may be part of a layer: it has floating point numbers and is not tied.

        False also for a count of statistics (`_counts`), an average of weights (`is_average`), a key with a name of
        tensors that models compute themselves (`Words.derived`), a key that the source's code does not read although it
        reads others of the same module, and a key that is not in the source (of a further copy of the model).
        """
        entry = self._source.signature.entries.get(key)
        if entry is None or entry.tied is not None or not entry.dtype.startswith(("float", "bfloat")):
            return False
        if entry.used is None and key.rpartition(".")[0] in self._read_modules:
            return False
        path = key.split(".")
        return not _counts(key, self._shapes) and table().derived.isdisjoint(path) and not is_average(path)

    def _left_beside(self, one: Entry, left: MappingOf[str, list[str]], gaps: Set[Shape]) -> str | None:
        """Return an unused key of the source that seems to belong to a layer that ONE reads; None if there is none.
        LEFT has path of a module -> its unused keys.

        The first of these that there is: a key that seems to change a tensor that ONE reads (`_left_in`); a factor of
        an adapter of a matrix that ONE reads (`_low_rank_beside`); the last unused key directly in a layer that ONE
        reads whose sizes, without those of 1, are in GAPS, the sizes of unmapped keys of ONE's module. For each, the
        layers are looked at in the order in which ONE reads them.
        """
        layers = [key.rpartition(".") for key in one.sources]
        found = next((rest for path, _, leaf in layers if (rest := _left_in(left, path, leaf))), None)
        found = found or next((rest for key in one.sources if (rest := self._low_rank_beside(key, left))), None)
        if found is not None or not gaps:
            return found
        inside = [(path, key) for path, _, _ in layers for key in reversed(left.get(path, ()))]
        direct = [key for path, key in inside if key.rpartition(".")[0] == path]
        return next((key for key in direct if squeezed(self._shapes[key]) in gaps), None)

    def _low_rank_beside(self, key: str, left: MappingOf[str, list[str]]) -> str | None:
        """Return the key of one of two unused matrices that together may adapt the source's matrix KEY: the factor
        [rank, inputs], the first of its rank. None if there are no two such matrices, or if KEY is no matrix. LEFT has
        path of a module -> its unused keys.

        KEY is [outputs, inputs]. The other factor is [rows, rank], where rows divides outputs. The rank is at most half
        of the smaller size of KEY. Both are in the module around the layer of KEY, or in a module directly in that.
        Names do not count: code may call them anything (`qkv.linear_a_q`, `qkv.linear_b_q` beside `qkv.qkv`).
        """
        shape = self._shapes[key]
        around = key.rpartition(".")[0].rpartition(".")[0]
        if len(shape) != 2 or not around:
            return None
        if around not in self._factors:
            near = (other for other in left.get(around, ()) if other.count(".") <= around.count(".") + 2)
            self._factors[around] = _Factors({other: self._shapes[other] for other in near})
        return self._factors[around].of_matrix(*shape)

    def _unused_layers(self, made: Mapping) -> list[Tensor]:
        """Return the entries of the source's signature for matrices and kernels (two or more dimensions) that no key of
        MADE reads, not even under another name, although their output flows, also through other layers, into a layer
        that some key of MADE reads. [] if there are none, or if no forward pass of the source's code is known.
        """
        tensors = self._source.signature.entries
        flows = {key: e.facts.flow for key, e in tensors.items() if e.facts.flow is not None}
        taken = [flows[key] for one in made.entries for key in one.sources if key in flows]
        before, names = reduce(or_, (flow.before for flow in taken), 0), {flow.number for flow in taken}
        left = [key for key in made.unused if key in flows and flows[key].number not in names]
        left_out = (key for key in left if flows[key].bit & before)
        return [tensors[key] for key in left_out if len(tensors[key].shape) > 1]

    def _with_left_biases(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return ENTRIES with the biases that a question LEFT_BESIDE names (keys `….bias`) added to biases of the model
        that are alone: code that adds the outputs of layers may keep one bias for them.

        A bias of the model is alone if it is the only key of its module. If it has an expression, this becomes the sum
        of it and of all of the named biases with its sizes. The entry gets the question BIAS_FOR_ALL, with the old
        expression as option. In all entries, the open questions LEFT_BESIDE about biases that were added are answered.
        If nothing can be added, the entries stay as they are.
        """
        left = {q.named[0] for one in entries for q in one.questions if q.reason is Reason.LEFT_BESIDE}
        biases = {key for key in left if key.rpartition(".")[2] == "bias"}
        if not biases:
            return list(entries)
        inside = Counter(one.target.rpartition(".")[0] for one in entries)
        made, added = [], set()
        for one in entries:
            module, _, leaf = one.target.rpartition(".")
            if leaf == "bias" and inside[module] == 1 and one.expr is not None:
                others = sorted(key for key in biases if self._shapes[key] == one.shape)
                if others:
                    question: Question[Expr] = ask(Reason.BIAS_FOR_ALL, ", ".join(others))
                    summed = ex.add(one.expr, *map(ex.of, others))
                    one = replace(one, expr=summed).asking(question.about(one.expr))
                    added.update(others)
            made.append(one)
        return [
            replace(
                one,
                questions=tuple(
                    replace(q, answer="it is in the sum of the biases")
                    if q.is_open and q.reason is Reason.LEFT_BESIDE and q.named[0] in added
                    else q
                    for q in one.questions
                ),
            )
            for one in made
        ]

    def _left_out(self, one: Entry, unused: Sequence[Tensor]) -> str | None:
        """Return the path of the first layer of UNUSED, the unused matrices and kernels of the source, that stands
        beside a matrix or kernel that ONE reads; its key, if it is in no module. None if there is none.

        Two layers stand beside each other if the source's code runs them by the same function (not `embedding`) on
        inputs computed from the same weights, and they read equally many channels: the model may need the sum of the
        two, or of the one and of a product that begins with the other (a low-rank adapter).
        """
        for key in one.sources if unused else ():
            used = self._source.signature.entries.get(key)
            flow = None if used is None else used.facts.flow
            if used is None or flow is None or len(used.shape) < 2:
                continue
            for other in unused:
                there = other.facts.flow
                alike = other.how == used.how != "embedding" and other.shape[1] == used.shape[1]
                if alike and there is not None and there.before == flow.before:
                    return other.key.rpartition(".")[0] or other.key
        return None

    def _entry(self, key: str) -> Entry:
        """Return the entry for KEY, a key of the target, by the first of these cases that fits:

        - KEY is tied to another key, and has no expression over holes of its own (`assembly`): the entry of that key,
          with KEY and with the tie as evidence. But if that is unmapped, and the source has KEY in other sizes, KEY is
          unmapped with the reason OTHER_SIZES.
        - KEY is a counter: the entry that `_counter` makes.
        - A hole of KEY is empty: a buffer that the model may compute (`_is_constant`) keeps the model's own value
          (`default`), but is unmapped with the question COMPUTED_OR_READ if an unused tensor of the source could fill
          it (`_could_fill`). Any other key is unmapped; its question is the reason why its first empty hole with a
          known reason is empty, or NOTHING if no reason is known.
        - All holes of KEY are filled: the expression made of what fills them, with the questions and evidence of the
          holes. If the expression is a copy, questions about layout count as answered.
        """
        wanted = self._target.signature.entries[key]
        blank = Entry(key, wanted.shape, dtype=wanted.dtype, parameter=wanted.parameter)
        if wanted.tied is not None and key not in self._target.assembly:
            first = self._entry(wanted.tied)
            have = self._shapes.get(key, wanted.shape)
            if first.status == "unmapped" and have != wanted.shape:
                return blank.asking(ask(Reason.OTHER_SIZES, key, str(list(have))))
            return replace(first, target=key, evidence=f"tied to {wanted.tied}")
        if key in self._target.counters:
            return self._counter(blank)
        assembly = self._target.assembly[key]
        holes = assembly.keys()
        missing = [hole for hole in holes if hole not in self._holes]
        if missing:
            if self._is_constant(key):
                fitting = self._could_fill(key)
                if fitting is None:
                    return replace(blank, default=True, evidence="computed by the model itself")
                return blank.asking(ask(Reason.COMPUTED_OR_READ, fitting))
            why = next((self._misses[hole] for hole in missing if hole in self._misses), None)
            return blank.asking(why or ask(Reason.NOTHING))
        filled = [self._holes[hole] for hole in holes]
        expr = ex.simplified(
            substituted(assembly, {h: f.expr for h, f in zip(holes, filled, strict=True)}), self._shapes
        )
        if key in self._target.dropped.values():  # what some is dropped of is filled with such a copy, if there is one
            expr = expr.rename(lambda name: self._source.dropped.get(name, name))
        questions = self._questions(assembly, dict(zip(holes, filled, strict=True)))
        if expr.is_copy:
            questions = answered(questions, Topic.LAYOUT, "what was taken apart is put together again as it was")
        evidence = "; ".join(dict.fromkeys(f.evidence for f in filled if f.evidence))
        way = tuple(map(self._part, holes))
        return replace(blank, expr=expr, evidence=evidence, questions=tuple(questions), way=way)

    def _part(self, hole: str) -> Part:
        """Return, for `--explain`, how HOLE, which is filled, was matched: the paths of its unit and of the unit's
        partner, the steps of both sides, and the evidence.
        """
        name = self._names[hole]
        t, s = self._unit_of[name]
        own, theirs = self._target.pieces.get(name), s.pieces.get(name.role, s.main)
        steps = own.steps if own is not None else ()
        return Part(".".join(t.path), ".".join(s.path), steps, theirs.steps, tuple(t.told), t.support)

    def _questions(self, assembly: Expr, filled: MappingOf[str, Filled]) -> list[Question[Expr]]:
        """Return the questions about a key, open and answered, made of those about its holes; [] if there are none. The
        options of a hole become options for the whole key.

        ASSEMBLY is the key's expression over its holes, FILLED has hole -> what fills it. Questions of several holes
        with the same reason, names and answer become one question. Its option N is ASSEMBLY with option N in each of
        these holes, and with what fills them now in the other holes and in holes with fewer options. Equal options are
        there once, and at most eight for each question. A question without options stays one without.
        """
        values = {hole: one.expr for hole, one in filled.items()}
        asked: dict[object, dict[str, Question[Expr]]] = defaultdict(dict)
        for hole, one in filled.items():
            for question in one.questions:
                asked[question.asked, question.answer].setdefault(hole, question)
        questions: list[Question[Expr]] = []
        for held in asked.values():
            options = []
            for number in range(max(len(question.options) for question in held.values())):
                others = {hole: q.options[number] for hole, q in held.items() if len(q.options) > number}
                options.append(ex.simplified(substituted(assembly, values | others), self._shapes))
            questions = joined(questions, next(iter(held.values())).about(*dict.fromkeys(options)))
        return questions

    def _counter(self, blank: Entry) -> Entry:
        """Return BLANK, the entry of a counter of batches in a norm of the model, as a copy of the counter of the norm
        that this one was paired with, with the evidence and, without options, the questions of that pair. If the norm
        has no partner, or the partner has no counter, BLANK keeps the model's own value (`default`).
        """
        path = self._target.counters[blank.target]
        norm = next(
            (p for p in self._target.pieces.values() if p.path == path and p.name in self._unit_of),
            None,
        )
        if norm is not None:
            partner = self._unit_of[norm.name][1].path
            for key, where in self._source.counters.items():
                if where == partner:
                    filled = self._filled[norm.name]
                    questions = tuple(question.about() for question in filled.questions)
                    return replace(blank, expr=ex.of(key), evidence=filled.evidence, questions=questions)
        return replace(blank, default=True, evidence="a counter; the source has none")

    def _is_constant(self, key: str) -> bool:
        """Return whether KEY is a buffer of the model and no running statistic, so that the model may compute it. False
        if it is not known whether KEY is a buffer.
        """
        entry = self._target.signature.entries[key]
        piece = next((p for p in self._target.pieces.values() if p.entry.key == key), None)
        return entry.parameter is False and (piece is None or piece.role not in STATISTICS)

    def _could_fill(self, key: str) -> str | None:
        """Return the first key of the source that no hole reads and that could fill KEY, a buffer of the model: it has
        the same sizes, in any order and without those of 1, and the same kind of type (float, int …). None if there is
        none. Counters, tied keys, and keys of further copies of the model do not count.
        """
        if self._unused is None:
            used = {k for filled in self._holes.values() for k in filled.expr.keys()}  # noqa: SIM118 - a method of ours
            used |= self._source.counters.keys() | self._copied.keys()
            self._unused = [e for k, e in self._source.signature.entries.items() if k not in used and e.tied is None]
        buffer = self._target.signature.entries[key]
        return next(
            (
                e.key
                for e in self._unused
                if sorted(squeezed(e.shape)) == sorted(squeezed(buffer.shape)) and kind_of(e) == kind_of(buffer)
            ),
            None,
        )


def _counts(key: str, shapes: MappingOf[str, Shape]) -> bool:
    """Return whether KEY is a single number that counts what went into the statistics beside it: its last name is one
    for counts (`count`, `n`), and a running mean or variance is in the same module. Nothing is computed with it once
    these are made. SHAPES has the sizes of all keys of the file.
    """
    module, _, leaf = key.rpartition(".")
    beside = (f"{module}.{name}" if module else name for name in STATISTICS)
    return leaf in table().counts and not squeezed(shapes[key]) and any(other in shapes for other in beside)


class _Factors:
    """Matrices that may be factors of low-rank adapters.

    Args:
        shapes: key -> sizes, also of tensors that are no matrices.
    """

    def __init__(self, shapes: MappingOf[str, Shape]) -> None:
        self._downs: dict[int, dict[int, str]] = defaultdict(dict)  # inputs -> rank -> the first key
        self._ups: dict[int, set[int]] = defaultdict(set)  # rank -> rows
        for key, shape in shapes.items():
            if len(shape) == 2:
                self._downs[shape[1]].setdefault(shape[0], key)
                self._ups[shape[1]].add(shape[0])

    def of_matrix(self, outputs: int, inputs: int) -> str | None:
        """Return the key of the first factor [rank, inputs] of an adapter of a matrix [OUTPUTS, INPUTS], if there is
        another [rows, rank], where rows divides OUTPUTS, and the rank is at most half of the smaller size; else None.
        """
        for rank, key in self._downs.get(inputs, {}).items():
            whole = any(rows and outputs % rows == 0 for rows in self._ups.get(rank, ()))
            if whole and 2 * rank <= min(outputs, inputs):
                return key
        return None


def _called_alike(module: str, source: str) -> bool:
    """Return whether the last component of MODULE that is no number is also one of the key SOURCE, before its last one;
    True if MODULE has only numbers or is empty. `blocks.3.proj` is called as `h.0.proj.weight`, but not as
    `h.0.fc.proj`.
    """
    own = next((part for part in reversed(module.split(".")) if not part.isdigit()), "")
    return not own or own in source.split(".")[:-1]


def _left_in(left: MappingOf[str, Sequence[str]], path: str, leaf: str) -> str | None:
    """Return an unused key of the source that seems to change the tensor LEAF ("weight") of the layer PATH; None if
    there is none. LEFT has path of a module -> its unused keys, at any depth in it.

    If LEAF is a common name of a weight, bias or statistic (`Words.leaves`), the first unused key in the layer counts;
    else the first whose name in the layer begins with LEAF (`kernel` -> `kernel_mask`). If there is none, and PATH ends
    in `.module`, the first unused key counts whose name in the module around begins with LEAF.
    """
    for layer in (path, path.removesuffix(".module")):
        for key in left.get(layer, ()):
            if (layer == path and cut(leaf) in table().leaves) or key.startswith(f"{layer}.{leaf}"):
                return key
    return None
