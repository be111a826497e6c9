"""Make the signature of a model from its state dict and a forward pass.

The forward pass is followed on a copy without values if possible, on inputs from `ckptool.model_code.inputs`, so that
it needs no memory whatever the size of the model.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import RuleError, printable
from ..keys.known_buffers import FREQUENCIES
from ..sharding.placing import is_sharded
from .following.forward_pass import Follower
from .following.use import Use
from .hollow import shape_only, without_memory
from .in_eval import in_eval
from .input_search import find_inputs
from .inputs import InputSpec, guess_inputs, inputs_text, made
from .signature import Entry, Facts, Signature


def signature_of(
    model: torch.nn.Module,
    *,
    name: str = "",
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    trace: bool = True,
) -> Signature:
    """Return the signature of MODEL: its keys, shapes and order, and facts from a forward pass of a copy without
    values, or, if that fails, of a small model itself (`_follow`).

    Entries of the state dict that are no tensors are left out. One that is the same parameter or buffer as earlier ones
    is tied to the first of these, and has its use and facts.

    Args:
        model: the model; it is not changed.
        name: for messages; the name of its class if it is empty.
        inputs: example inputs (positional, or by name); guessed and searched for if None.
        trace: follow a forward pass. If no pass runs to its end, the facts are those of a pass that used nine tenths of
            the tensors, or there are none; `rotary`, if it is None then, is "unknown" if names of classes or buffers
            show a rotary embedding. A model that the ranks of a run share (with DTensors) is not followed, so that all
            ranks get the same result; its `rotary` is None, as if TRACE were false.

    Raises:
        RuleError: the model has lazy layers that have not run yet.
    """
    state = model.state_dict()
    named, buffers = _tensors(model)
    _require_sizes(name or _class_of(model), named | buffers)
    classes = dict(model.named_modules(remove_duplicate=False))
    owners = {key: _class_of(classes[key.rpartition(".")[0]]) for key in (*named, *buffers)}
    live = named | buffers
    parameters = {id(parameter) for parameter in named.values()}
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for key in state:
        tensor = live.get(key)
        if tensor is not None:
            held = first.setdefault(id(tensor), key)
            if held != key:
                ties[key] = held
    # a pass through a model that ranks share waits for the others, and how far one gets in its time differs by rank
    trace = trace and not any(map(is_sharded, state.values()))
    found = _follow(model, live, inputs) if trace else _Nothing
    entries = {}
    for key, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue  # _extra_state may be anything
        at = found.uses.get(ties.get(key, key))
        entries[key] = Entry(
            key,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            id(live.get(key)) in parameters,
            owners.get(key, ""),
            ties.get(key),
            at.index if at else None,
            at.how if at else "",
            _with_heads(at.facts if at else Facts(), classes[key.rpartition(".")[0]]) if key in owners else Facts(),
        )
    metadata = getattr(state, "_metadata", None)
    return Signature(
        name or _class_of(model),
        entries,
        traced=bool(found.uses),
        inputs=found.inputs,
        rotary=found.rotary if found.rotary or found.inputs or not trace else _rotary_by_parts(model),
        metadata={path: dict(value) for path, value in metadata.items()} if metadata else None,
    )


def _with_heads(facts: Facts, module: torch.nn.Module) -> Facts:
    """Return FACTS, those of a tensor that MODULE holds, with the number of heads of MODULE if this is torch's
    `nn.MultiheadAttention`, whose heads no function that is followed splits; else FACTS as they are.
    """
    return replace(facts, heads=module.num_heads) if isinstance(module, torch.nn.MultiheadAttention) else facts


def without_sizes(tensors: Mapping[str, Any]) -> str | None:
    """Return the first key of TENSORS (key -> entry of a state dict) that has no sizes yet, as in a lazy layer that has
    not run; None if there is none.
    """
    return next((key for key, tensor in tensors.items() if torch.nn.parameter.is_lazy(tensor)), None)


def _require_sizes(name: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `RuleError` if one of TENSORS (key -> parameter or buffer) of the model NAME has no sizes yet: lazy layers
    get them in the first forward pass.
    """
    key = without_sizes(tensors)
    if key is not None:
        what = f"{printable(name)} has lazy layers, whose sizes are known only after a first forward pass: {key}"
        raise RuleError(what, where="model", hint=_RUN_ONCE)


_RUN_ONCE = "run the model once on an input that fits, for example at the end of build_model()"


def _tensors(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return (parameters, buffers) of MODEL, each name -> tensor; tensors with several names are under each of them."""
    return dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers(remove_duplicate=False))


def _class_of(module: torch.nn.Module) -> str:
    """Return the name of the class of MODULE in its code, also if `torch.jit.script` or `fully_shard` put another class
    in its place: "Net" for an `FSDPNet`.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    made, *bases = type(module).__mro__
    wrapped = bases[0].__name__ == "FSDPModule" and made.__name__.startswith("FSDP")
    return bases[1].__name__ if wrapped else made.__name__


def _rotary_by_parts(model: torch.nn.Module) -> str | None:
    """Return "unknown" (how pairs are formed) if names in MODEL, which was not followed, show a rotary embedding; else
    None.

    Such names are: a class with "rotary" in it or "rope" at its beginning, in any case; a buffer whose name is one of
    the known tables of frequencies.
    """
    classes = {_class_of(module).lower() for module in model.modules()}
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    said = any("rotary" in name or name.startswith("rope") for name in classes) or not FREQUENCIES.isdisjoint(buffers)
    return "unknown" if said else None


@dataclass(slots=True)
class _Followed:
    """What a forward pass shows.

    Attributes:
        uses: as in `Follower`; {} if no pass was followed.
        inputs: the text of the inputs (`inputs_text`); "" if the pass did not end.
        rotary: as in `Follower`.
    """

    uses: dict[str, Use]
    inputs: str = ""
    rotary: str | None = None


_Nothing = _Followed({})

#: Seconds that looking for inputs may take, and forward passes that it may try.
_PATIENCE, _TRIES = 20.0, 120

#: Above this number of parameters a model is followed on the meta device or not at all.
_SMALL = 50_000_000

#: Below this number of parameters a model computes faster with values than torch works out shapes without them.
_TINY = 1_000_000


def _follow(model: torch.nn.Module, live: Mapping[str, torch.Tensor], inputs: Any) -> _Followed:
    """Return what a forward pass of MODEL shows, on the first inputs on which it runs to its end: INPUTS, or, if that
    is None, guessed and then searched ones. Guesses with an input of more than 4 million elements are left out.

    Copies of the model without values are run, one after the other, and then the model itself if it has values and less
    than 50 million elements; each for about 20 seconds at most, with 120 guesses (40 for the model itself). If the
    model has values and less than a million elements, inputs are searched for only with the model itself.

    If no pass ends, return what the pass that used most tensors shows (the first of several), without inputs, if it
    used nine tenths of LIVE, the parameters and buffers; else nothing: `uses` is {}.
    """
    numbers = sum(t.numel() for t in live.values())
    small = numbers < _SMALL and not any(t.is_meta for t in live.values())
    tiny = small and numbers < _TINY
    best = _Nothing
    for one in itertools.chain(without_memory(model), [model] if small else []):
        began = time.monotonic()
        guesses = itertools.islice(filter(_is_small, guess_inputs(model)), 40 if one is model else _TRIES)
        search = one is model or not tiny
        searched = find_inputs(one, shortcut=shape_only, patience=_PATIENCE / 2) if search else iter(())
        with _one_thread() if one is not model else contextlib.nullcontext():
            for candidate in [inputs] if inputs is not None else itertools.chain(guesses, searched):
                if time.monotonic() - began > _PATIENCE:
                    break
                found = _attempt(one, candidate)
                if found is not None and found.inputs:
                    return found
                if found is not None and len(found.uses) > len(best.uses):
                    best = found
    return best if len(best.uses) >= 0.9 * len(live) else _Nothing


def _is_small(inputs: Any) -> bool:
    """Return whether each of the guessed INPUTS, a list or a dict of specs, has at most 4 million elements
    (`_MOST_INPUT`), so that it can be tried: some layers take thousands of channels.
    """
    specs = inputs.values() if isinstance(inputs, Mapping) else inputs
    return all(math.prod(spec.shape) <= _MOST_INPUT for spec in specs)


_MOST_INPUT = 1 << 22


def _means_alone(parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> set[str]:
    """Return the keys of the means of batch norms without weights: each buffer `running_mean` that has no parameter
    `weight` beside it. They stand for the layer, which has no other tensor that is used.
    """
    means = [name for name in buffers if name.rpartition(".")[2] == "running_mean"]
    return {name for name in means if f"{name.removesuffix('running_mean')}weight" not in parameters}


def _attempt(model: torch.nn.Module, inputs: Any) -> _Followed | None:
    """Return what a forward pass of MODEL on INPUTS shows: a list, or a dict for inputs by name, of specs, tensors or
    nested ones. If the pass raises an exception, return what it shows until then, with "" for `inputs` and without the
    facts that only a whole pass shows; None if it used no tensor of MODEL.
    """
    parameters, buffers = _tensors(model)
    names = parameters | buffers
    device = next((str(t.device) for t in names.values()), "cpu")
    args, kwargs = (), {}
    if isinstance(inputs, Mapping):
        kwargs = {key: _hollow(value, device) for key, value in inputs.items()}
    else:
        args = tuple(_hollow(value, device) for value in inputs)
    keys: dict[int, str] = {}
    for key, tensor in names.items():
        keys.setdefault(id(tensor), key)
    mode = Follower(keys, buffers.keys() - _means_alone(parameters, buffers))
    try:
        with in_eval(model, device), mode:
            model(*args, **kwargs)
    except Exception:
        return _Followed(mode.uses, "", mode.rotary) if mode.uses else None
    mode.finish()
    return _Followed(mode.uses, inputs_text(inputs), mode.rotary)


def _hollow(value: Any, device: str) -> Any:
    """Return VALUE, a spec, a tensor or nested ones, as a model takes it: with copies of tensors, and tensors in place
    of specs, on DEVICE if their numbers are floating point, else on the CPU (all without values if DEVICE is "meta").

    A single spec of floating point numbers becomes zeros that share one element if DEVICE is "cpu", because values do
    not matter; other specs become random values.
    """
    if isinstance(value, InputSpec) and device == "cpu" and getattr(torch, value.dtype).is_floating_point:
        return torch.zeros((), dtype=getattr(torch, value.dtype)).expand(value.shape)
    return made(value, device)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """In this context, if it is entered in the main thread, torch computes with one thread; afterwards with as many as
    before.

    Models without values have little to compute, and more threads mostly wait for each other on a busy machine. In
    other threads nothing is changed, because two that set and restore the number at once would leave a wrong one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
