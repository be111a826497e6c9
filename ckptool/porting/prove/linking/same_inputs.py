"""Find inputs with the same values for two models that may take them in different forms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from ....errors import CannotCarry, printable
from ....model_code.input_search import working_inputs
from ....model_code.inputs import InputSpec, inputs_text, leaves, made, with_leaves
from ..calling import arguments, first_line
from ..flow import Flow
from ..recorder import attempt, follow
from ..verdict import NOTHING, Verdict
from .inner_inputs import beginnings, inputs_inside
from .links import Link, are_turned, by_name, links, links_by_name, type_and_shape
from .spellings import mixtures, respelled, spellings

#: Of the first draw of inputs.
SEED = 20
#: Inputs of the source's code that are tried, those of the model for each, ways to link them, seconds of CPU time.
_THEIRS, _OWN, _WAYS, _PATIENCE = 4, 3, 8, 20.0
#: Mixtures of the inputs of both models that are tried for one pair of them, and inputs of the source's code that are
#: searched for in the form of the model's.
_MIXTURES, _LIKE_OWN = 6, 2
#: What agreement counts where the model is given what a module inside of the source's code takes: it skips what may
#: be wrong before that.
_OF_PARTS = 0.6

#: What comes of running the model: the flow and how far it agrees.
Judged = tuple[Flow | None, Verdict]


@dataclass(frozen=True, slots=True)
class SameInputs:
    """Inputs for two models with the same values.

    Attributes:
        theirs, own: the inputs as the source's code and the model take them, as specs or tensors.
        links: for each input of the model, in order, which input of the source's code it is made of, and how.
        code: the source's code.
        plain: inputs that are likelier by themselves, with which a proof begins: those with the likeliest links, if
            `links` are the same with inputs of one size in other places; those on which more agrees of all that both
            models take themselves, if this model begins inside of the source's code; None if these are the likeliest.
        flow: the flow of the source's code on `values`; None before it was run.
        values: the inputs of the model; None before they are made.
    """

    theirs: Any
    own: Any
    links: tuple[Link, ...]
    code: torch.nn.Module
    plain: SameInputs | None = None
    flow: Flow | None = field(default=None, repr=False)
    values: Any = field(default=None, repr=False)

    @property
    def is_turned(self) -> bool:
        """Return whether inputs of one size, or dimensions of one input, have changed places."""
        return self.plain is not None and are_turned(self.plain.links, self.links)

    @property
    def shown(self) -> str:
        """Return the inputs of the source's code as a user would type them; for a model that begins inside of the
        source's code also the modules there.
        """
        inside = [printable(link.module) for link in self.links if link.how == "part"]
        begins = f", as {' and '.join(inside)} of the source's code takes it" if inside else ""
        return inputs_text(self.theirs) + begins

    def made(self, seed: int) -> tuple[Any, Any] | None:
        """Return (inputs of the source's code, inputs of the model) with the same random values, drawn from SEED. Each
        input of the model is made of its origin, as its link says; an input without an origin gets random values of its
        own. A link with the `how` "grey" goes the other way: each channel of the input of the source's code is the one
        channel of the model's input.

        For a link with the `how` "part", the source's code is run, and the model gets the input of the link's module
        there; None is returned if that module did not run.
        """
        values = made(self.theirs, generator=torch.Generator().manual_seed(seed))
        given = [t for _, t in leaves(values)]
        own = [t for _, t in leaves(made(self.own, generator=torch.Generator().manual_seed(seed + 1)))]
        inner: dict[str, torch.Tensor] = {}
        if any(link.how == "part" for link in self.links):
            inner = inputs_inside(self.code, values, frozenset(link.module for link in self.links))
        for place, link in enumerate(self.links):
            if link.how == "part":
                if link.module not in inner:
                    return None
                own[place] = inner[link.module]
            elif link.source is None:
                continue
            elif link.how == "grey":
                given[link.source] = own[place].expand_as(given[link.source]).clone()
            elif link.how == "reshaped":
                own[place] = given[link.source].reshape(own[place].shape)
            elif link.how == "frames":
                own[place] = given[link.source].unsqueeze(link.order[0]).expand_as(own[place]).clone()
            else:
                own[place] = given[link.source].permute(link.order).contiguous() if link.order else given[link.source]
        return with_leaves(self.theirs, given), with_leaves(self.own, own)


def same_inputs(
    theirs: torch.nn.Module,
    own: torch.nn.Module,
    inputs: Any,
    source_inputs: Any,
    judged: Callable[[Flow, Any], Judged],
    known: frozenset[str],
    late: Callable[[], bool],
) -> SameInputs:
    """Return inputs with the same values for both models; of several, those with which the models agree most (`_rank`),
    the first of several that agree equally. The search ends at the first with equal outputs, or, once some are found,
    when it is late or has had 20 seconds of CPU time.

    Last, the model gets the input of a module inside of the source's code. If INPUTS are given, this is tried only if
    both models could be run in another way before, and counts only if outputs are equal. If outputs are not equal so,
    and something agreed in another way, the best of these ways is in `SameInputs.plain`: a layer that has the weights
    of a later one agrees with it inside, too.

    Args:
        theirs: the source's code.
        own: the model.
        inputs: inputs of the model; searched for if None.
        source_inputs: inputs of the source's code, if it takes another form.
        judged: runs the model on inputs and compares it with a flow of the source's code: (flow, inputs of the model)
            -> (flow of the model, or None if it cannot be run, verdict).
        known: modules of the source's code whose weights the model has; a model that is a part of the source's code may
            begin at one of these.
        late: whether to stop as soon as some inputs are found.

    Raises:
        CannotCarry: no inputs are found that both models take.
    """
    best: tuple[tuple[Any, ...], SameInputs] | None = None
    plain: SameInputs | None = None
    until = time.thread_time() + _PATIENCE
    ran = False
    for candidate in _candidates(theirs, own, inputs, source_inputs, known):
        if best is not None and (late() or time.thread_time() > until):
            break
        if inputs is not None and not ran and _begins_inside(candidate.links):
            break
        found = _tried(candidate, judged)
        if found is None:
            continue
        ran = True
        verdict, both = found
        if inputs is not None and _begins_inside(candidate.links) and not (verdict.equal and verdict.compared):
            continue  # given inputs are left only for a proof
        rank = _rank(verdict, candidate.links)
        if best is None or rank > best[0]:
            best = rank, both
            if not _begins_inside(both.links):
                plain = both if verdict.agreeing + verdict.entered > 0 else None
            elif not rank[0]:
                best = rank, replace(both, plain=plain)
        if verdict.equal and verdict.compared:
            break
    if best is not None:
        return best[1]
    if inputs is not None and not ran:
        _refuse_given(theirs, own, inputs, source_inputs)
    raise CannotCarry(_why_none(theirs, own), where="--prove", hint="--input 'float32[2,3,64,64]' gives them")


def _refuse_given(theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any) -> None:
    """Raise the error for the given inputs INPUTS and SOURCE_INPUTS (or None), which do not suit both models. THEIRS is
    the source's code, OWN the model. The error names the first that cannot be run on its own: the model on INPUTS, the
    source's code on SOURCE_INPUTS. If each can, it says that the source's code cannot be run on INPUTS, or, with
    SOURCE_INPUTS, that the two have nothing in common.

    Raises:
        CannotCarry: always.
    """
    given = [("--input", "the model", own, inputs)]
    given += [("--source-input", "the source's code", theirs, source_inputs)] if source_inputs is not None else []
    for option, name, model, spec in given:
        error = attempt(model, made(spec, generator=torch.Generator().manual_seed(SEED)))[1]
        if error is not None:
            what = f"{name} cannot be run on {inputs_text(spec)}: {first_line(error)}"
            names, needed = arguments(model)
            takes = ", ".join(n if n in needed else f"[{n}]" for n in names)
            hint = f"{option} '{needed[0] if needed else 'x'}=float32[2,3,64,64]', as its forward pass takes them"
            raise CannotCarry(what, where=option, evidence=[f"it takes {printable(takes, 160)}"], hint=hint)
    if source_inputs is None:
        needed = arguments(theirs)[1]
        options = " ".join(f"--source-input '{name}=float32[2,3,64,64]'" for name in needed[:3])
        raise CannotCarry(
            f"the source's code cannot be run on {inputs_text(inputs)}, which the model takes",
            where="--input",
            hint=f"{options or '--source-input SPEC'}, the same in the form that it takes",
        )
    raise CannotCarry("nothing that the model takes is in what the source's code takes", where="--source-input")


def _why_none(theirs: torch.nn.Module, own: torch.nn.Module) -> str:
    """Return a sentence that says why no inputs suit both THEIRS, the source's code, and OWN, the model: one of them
    runs on none that are found, or they take different ones.
    """
    first, second = (next(working_inputs(model), None) for model in (theirs, own))
    if first is None:
        return "found no inputs on which the source's code runs"
    if second is None:
        return "found no inputs on which the model runs"
    return f"the source's code takes {inputs_text(first)}, the model {inputs_text(second)}, and no inputs fit both"


def _rank(verdict: Verdict, chosen: Sequence[Link]) -> tuple[Any, ...]:
    """Return a sort key for inputs with the links CHOSEN; the larger it is, the better. VERDICT is that on the model
    with these inputs. The key is a tuple, whose first items count most:

    1. whether outputs were compared and are equal,
    2. how many inputs and outputs of layers agree (60 percent of it, if the model begins inside of the source's code),
    3. how many outputs could be compared,
    4. whether all is equal, also if no output could be compared,
    5. minus the number of inputs of the model without an origin.
    """
    fresh = sum(link.source is None and not link.how for link in chosen)
    proved = verdict.equal and verdict.compared > 0
    share = _OF_PARTS if _begins_inside(chosen) else 1.0
    return proved, share * (verdict.agreeing + verdict.entered), verdict.compared, verdict.equal, -fresh


def _begins_inside(chosen: Sequence[Link]) -> bool:
    """Return whether the model begins inside of the source's code by the links CHOSEN."""
    return any(link.how == "part" for link in chosen)


def _tried(candidate: SameInputs, judged: Callable[[Flow, Any], Judged]) -> tuple[Verdict, SameInputs] | None:
    """Run both models on CANDIDATE and return (the verdict of JUDGED, CANDIDATE with its flow and values); None if one
    of the two cannot be run.
    """
    both = run(candidate)
    if both is None or both.flow is None:
        return None
    seen, verdict = judged(both.flow, both.values)
    return None if seen is None or verdict is NOTHING else (verdict, both)


def run(candidate: SameInputs) -> SameInputs | None:
    """Return CANDIDATE with values, and with the flow of the source's code on them; as it is if it has them. None if
    that code cannot be run on them.
    """
    if candidate.flow is not None:
        return candidate
    values = candidate.made(SEED)
    flow = None if values is None else follow(candidate.code, values[0], bare=True)
    return None if values is None or flow is None else replace(candidate, flow=flow, values=values[1])


def _candidates(
    theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any, known: frozenset[str]
) -> Iterator[SameInputs]:
    """Yield inputs for both models with the links between them, the likeliest first; the models have not been run on
    them. THEIRS is the source's code, OWN the model. INPUTS (of the model) and SOURCE_INPUTS are given by the user, or
    None. KNOWN has the paths of modules of the source's code where the model may begin.

    First come pairs of inputs (`_pairs`), each in up to eight ways to link them; a pair that equals an earlier one by
    the names of its arguments is left out. Last come models that begin at a module inside of the source's code
    (`beginnings`): there, the source's code gets its inputs in the first pair, and the model the input of that module.
    """
    begun: Any = None
    done: set[str] = set()
    for first, second in _pairs(theirs, own, inputs, source_inputs):
        begun = first if begun is None else begun
        told = repr((by_name(theirs, first), by_name(own, second)))
        if told not in done:
            done.add(told)
            yield from _linked(theirs, first, own, second)
    if begun is not None:
        values = made(begun, generator=torch.Generator().manual_seed(SEED))
        for path, wanted in beginnings(theirs, own, values, known):
            yield SameInputs(begun, wanted, (Link(None, (), "part", path),), theirs)


def _linked(theirs: torch.nn.Module, first: Any, own: torch.nn.Module, second: Any) -> Iterator[SameInputs]:
    """Yield FIRST and SECOND, the inputs of the source's code THEIRS and of the model OWN, with up to eight different
    links between them (`links`). If both have the same names, two or more, and inputs of equal types and sizes under
    them, yield them once, with the links by name (`links_by_name`). If the links of a later way have the sources of the
    first way in another order, its `plain` is the first way.
    """
    named = links_by_name(theirs, first, own, second)
    if named is not None:
        yield SameInputs(first, second, named, theirs)
        return
    plain: SameInputs | None = None
    for way in islice(links(first, second), _WAYS):
        turned = plain is not None and are_turned(plain.links, way)
        yield SameInputs(first, second, way, theirs, plain if turned else None)
        plain = plain or SameInputs(first, second, way, theirs)


def _pairs(theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs of the source's code THEIRS, inputs of the model OWN), for up to four inputs of the source's code
    (`_specs_of`). If INPUTS of the model are given, each is paired with these alone.

    Else each is paired with itself in every form that the model may take (`spellings`), then with up to three inputs
    that the model was found to take. After each of the three come up to six mixtures of the two, and, unless
    SOURCE_INPUTS are given, the same inputs of the model with up to two others of the source's code in their form.
    """
    for spec in islice(_specs_of(theirs, inputs, source_inputs), _THEIRS):
        if inputs is not None:
            yield spec, inputs
            continue
        spelled = list(spellings(own, spec))
        yield from ((spec, wanted) for wanted in spelled)
        for wanted in islice(working_inputs(own, like=_as_specs(spelled)), _OWN):
            yield spec, wanted
            for mixed in islice(mixtures(spec, wanted), _MIXTURES):
                yield respelled(spec, mixed), respelled(wanted, mixed)
            if source_inputs is None:
                like = [respelled(spec, wanted), *spellings(theirs, wanted)]
                yield from ((other, wanted) for other in islice(working_inputs(theirs, like=like), _LIKE_OWN))


def _specs_of(theirs: torch.nn.Module, inputs: Any, source_inputs: Any) -> Iterator[Any]:
    """Yield inputs of the source's code THEIRS: only SOURCE_INPUTS if given, which are not tried. Else yield the forms
    of INPUTS, the inputs of the model, that THEIRS may take (`spellings`) and can be run on, if INPUTS are given and
    have values, which are kept; and then all inputs on which a search found it to run (`working_inputs`). The search
    begins with specs like these forms.
    """
    if source_inputs is not None:
        yield source_inputs
        return
    forms = [] if inputs is None else list(spellings(theirs, inputs))
    for form in filter(_has_values, forms):
        if attempt(theirs, made(form, generator=torch.Generator().manual_seed(SEED)))[1] is None:
            yield form
    yield from working_inputs(theirs, like=_as_specs(forms))


def _has_values(inputs: Any) -> bool:
    """Return whether INPUTS are not only specs, but tensors or plain values, too."""
    return not all(isinstance(one, InputSpec) for _, one in leaves(inputs))


def _as_specs(several: Iterable[Any]) -> list[Any]:
    """Return SEVERAL inputs, each with specs in place of tensors, for a search, which changes types and sizes. Inputs
    with plain values, which have neither, are left out.
    """
    return [
        with_leaves(inputs, [one if isinstance(one, InputSpec) else _spec_of(one) for _, one in leaves(inputs)])
        for inputs in several
        if all(isinstance(one, InputSpec | torch.Tensor) for _, one in leaves(inputs))
    ]


def _spec_of(tensor: torch.Tensor) -> InputSpec:
    """Return a spec like TENSOR; one of whole numbers has those from 0 to the largest in TENSOR."""
    dtype, shape = type_and_shape(tensor)
    whole = tensor.numel() and not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return InputSpec(dtype, shape, int(tensor.max()) + 1 if whole else 0)


__all__ = ["SEED", "SameInputs", "run", "same_inputs"]
