"""The same inputs for two models that may take them in different forms."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch

from ...errors import CannotCarry
from ...inputs import guess_inputs, inputs_text, made
from .flow import Flow
from .recorder import follow

_SEED = 20
#: How many guesses of each model are tried.
_GUESSES = 60


@dataclass(frozen=True, slots=True)
class SameInputs:
    """Inputs for two models with the same values.

    Attributes:
        flow: what flows through the source's code.
        own: the inputs of the model.
        shown: what they are, as a person would type them.
        theirs, wanted: how the source's code and the model take them.
    """

    flow: Flow
    own: Any
    shown: str
    theirs: Any
    wanted: Any

    def again(self, seed: int) -> tuple[Any, Any]:
        """Other values of the same kind: for the source's code, and for the model."""
        values = _values(self.theirs, seed)
        return values, _like(values, self.wanted)


def same_inputs(theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any) -> SameInputs:
    """Inputs that both models take, with the same values.

    Args:
        theirs: the source's code.
        own: the model.
        inputs: for the model; worked out if None.
        source_inputs: for the source's code, if it takes them in another form.

    Raises:
        CannotCarry: none are found that both take.
    """
    if inputs is not None:
        for first in [source_inputs] if source_inputs is not None else _spellings(theirs, inputs):
            a = _values(first)
            b = _like(a, inputs)
            flow = None if b is None else follow(theirs, a)
            if flow is not None:
                return SameInputs(flow, b, inputs_text(first), first, inputs)
        raise CannotCarry("the source's code cannot be run on these inputs", where="--input")
    for spec in chain(islice(guess_inputs(theirs), _GUESSES), islice(guess_inputs(own), _GUESSES)):
        a = _values(spec)
        flow = follow(theirs, a)
        if flow is None:
            continue
        for wanted, form in _forms(own, spec, a):
            if follow(own, form) is not None:
                return SameInputs(flow, form, inputs_text(spec), spec, wanted)
    raise CannotCarry(
        "found no inputs that both models take", where="--prove", hint="--input 'float32[2,3,64,64]' gives them"
    )


def _spellings(model: torch.nn.Module, spec: Any) -> Iterator[Any]:
    """Inputs as they are, by position, and under the names that MODEL has for as many."""
    flat = list(spec.values()) if isinstance(spec, MappingOf) else list(spec)
    yield spec
    yield flat
    for other in islice(guess_inputs(model), 1):
        if isinstance(other, MappingOf) and len(other) == len(flat):
            yield dict(zip(other, flat, strict=True))
    main = getattr(model, "main_input_name", None)
    if isinstance(main, str) and len(flat) == 1:
        yield {main: flat[0]}
    for other in islice(guess_inputs(model), 60):
        yield other


def _values(spec: Any, seed: int = _SEED) -> Any:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spec, MappingOf):
        return {k: made(v, generator=generator) for k, v in spec.items()}
    return [made(v, generator=generator) for v in spec]


def _like(values: Any, wanted: Any) -> Any | None:
    """The same values in the form of WANTED, or None where it wants others.

    Each goes where its type and shape are wanted. A picture in colours becomes grey where WANTED is.
    """
    left = list(values.values()) if isinstance(values, dict) else list(values)
    own = _values(wanted)
    for key in own if isinstance(own, dict) else range(len(own)):
        mine = own[key]
        same = next((v for v in left if v.dtype == mine.dtype and v.shape == mine.shape), None)
        if same is None:
            same = next((v for v in left if v.ndim == mine.ndim == 4 and _is_grey_of(mine, v)), None)
            if same is None:
                return None
            same.copy_(mine.expand_as(same))
        else:
            own[key] = same
        left = [v for v in left if v is not same]
    return own


def _is_grey_of(grey: torch.Tensor, colours: torch.Tensor) -> bool:
    return grey.shape[1] == 1 and grey.shape[2:] == colours.shape[2:] and len(grey) == len(colours)


def _forms(own: torch.nn.Module, spec: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    """VALUES in the forms in which OWN may take them: other spellings, then what it takes itself."""
    for wanted in _spellings(own, spec):
        form = _like(values, wanted)
        if form is not None and len(form) == len(values):
            yield wanted, form
