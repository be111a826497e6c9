"""Find inputs with the same values for two models that may take them in different forms."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from itertools import islice, permutations, product
from typing import Any

import torch

from ...errors import CannotCarry, printable
from ...model_code.in_eval import modes_kept
from ...model_code.input_search import working_inputs
from ...model_code.inputs import InputSpec, inputs_text, leaves, made, with_leaves
from .flow import Flow
from .recorder import arguments, attempt, called, first_line, follow
from .verdict import NOTHING, Verdict

#: Of the first draw of inputs.
SEED = 20
#: Inputs of the source's code that are tried, those of the model for each, ways to link them, seconds of CPU time.
_THEIRS, _OWN, _WAYS, _PATIENCE = 4, 3, 8, 20.0
#: Inputs of modules of the source's code that the model may take, and of the first with weights that it has.
_PARTS, _BEGINS = 24, 3

#: What agreement counts where the model is given what a module inside of the source's code takes: it skips what may
#: be wrong before that.
_OF_PARTS = 0.6

#: What comes of running the model: the flow and how far it agrees.
Judged = tuple[Flow | None, Verdict]


@dataclass(frozen=True, slots=True)
class _Link:
    """The origin of one input of the model.

    Attributes:
        source: the place of an input of the source's code; None if only the model takes it.
        order: the dimensions of that input, in the order in which the model takes them; () if they stay. For "frames",
            the dimension along which the model takes the values several times.
        how: "" for the same values; "grey" if the source's code takes colours and the model one channel; "frames" if
            the model takes the same values several times; "part" for the input of a module inside of the source's code.
        module: the path of that module, for "part".
    """

    source: int | None
    order: tuple[int, ...] = ()
    how: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class SameInputs:
    """Inputs for two models with the same values.

    Attributes:
        theirs, own: the inputs as the source's code and the model take them, as specs or tensors.
        links: the origin of each input of the model.
        code: the source's code.
        plain: the likeliest links of these inputs, if `links` are the same with inputs of one size in other places;
            else None.
        flow: the flow of the source's code on `values`; None before it was run.
        values: the inputs of the model; None before they are made.
    """

    theirs: Any
    own: Any
    links: tuple[_Link, ...]
    code: torch.nn.Module
    plain: tuple[_Link, ...] | None = None
    flow: Flow | None = field(default=None, repr=False)
    values: Any = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Return the inputs of the source's code as a user would type them; for a model that begins inside of the
        source's code also the modules there.
        """
        inside = [printable(link.module) for link in self.links if link.how == "part"]
        begins = f", as {' and '.join(inside)} of the source's code takes it" if inside else ""
        return inputs_text(self.theirs) + begins

    def made(self, seed: int) -> tuple[Any, Any] | None:
        """Return (inputs of the source's code, inputs of the model) with the same random values, drawn from SEED; what
        only the model takes gets values of its own. None if a module inside of the source's code, whose input the model
        takes, was not run.
        """
        values = made(self.theirs, generator=torch.Generator().manual_seed(seed))
        given = [t for _, t in leaves(values)]
        own = [t for _, t in leaves(made(self.own, generator=torch.Generator().manual_seed(seed + 1)))]
        inner: dict[str, torch.Tensor] = {}
        if any(link.how == "part" for link in self.links):
            inner = parts(self.code, values, frozenset(link.module for link in self.links))
        for place, link in enumerate(self.links):
            if link.how == "part":
                if link.module not in inner:
                    return None
                own[place] = inner[link.module]
            elif link.source is None:
                continue
            elif link.how == "grey":
                given[link.source] = own[place].expand_as(given[link.source]).clone()
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
    known: frozenset[str] = frozenset(),
    late: Callable[[], bool] = lambda: False,
) -> SameInputs:
    """Return inputs with the same values for both models; of several, those with which the models agree most. The
    search ends at the first with equal outputs, or, once some are found, when it is late or has had 20 seconds of CPU
    time.

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
    until = time.thread_time() + _PATIENCE
    ran = False
    for candidate in _candidates(theirs, own, inputs, source_inputs, known):
        if best is not None and (late() or time.thread_time() > until):
            break
        found = _tried(candidate, judged)
        if found is None:
            continue
        ran = True
        verdict, whole = found
        rank = _rank(verdict, candidate)
        if best is None or rank > best[0]:
            best = rank, whole
        if verdict.equal and verdict.compared:
            break
    if best is not None:
        return best[1]
    if inputs is not None and not ran:
        _refuse_given(theirs, own, inputs, source_inputs)
    raise CannotCarry(_why_none(theirs, own), where="--prove", hint="--input 'float32[2,3,64,64]' gives them")


def _refuse_given(theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any) -> None:
    """Raise the error for the given inputs INPUTS and SOURCE_INPUTS (or None), which do not suit both models; it names
    the model that does not take them. THEIRS is the source's code, OWN the model.

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


def _rank(verdict: Verdict, candidate: SameInputs) -> tuple[Any, ...]:
    fresh = sum(link.source is None and not link.how for link in candidate.links)
    proved = verdict.equal and verdict.compared > 0
    share = _OF_PARTS if any(link.how == "part" for link in candidate.links) else 1.0
    return proved, share * (verdict.agreeing + verdict.entered), verdict.compared, verdict.equal, -fresh


def in_plain_places(found: SameInputs) -> SameInputs | None:
    """Return the inputs FOUND with each input in its likeliest place, and the flow of the source's code on them. None
    if FOUND has no inputs of one size exchanged, or if the source's code cannot be run on the result.
    """
    if found.plain is None:
        return None
    plain = replace(found, links=found.plain, plain=None)
    values = plain.made(SEED)
    flow = None if values is None else follow(found.code, values[0], bare=True)
    return None if values is None or flow is None else replace(plain, flow=flow, values=values[1])


def _turned(plain: Sequence[_Link], links: Sequence[_Link]) -> bool:
    """Return whether LINKS, the origins of the model's inputs, have the sources of PLAIN in another order."""
    sources = [[link.source for link in some] for some in (plain, links)]
    return sorted(map(str, sources[0])) == sorted(map(str, sources[1])) and sources[0] != sources[1]


def _tried(candidate: SameInputs, judged: Callable[[Flow, Any], Judged]) -> tuple[Verdict, SameInputs] | None:
    values = candidate.made(SEED)
    if values is None:
        return None
    flow = follow(candidate.code, values[0], bare=True)
    if flow is None:
        return None
    seen, verdict = judged(flow, values[1])
    if seen is None or verdict is NOTHING:
        return None
    return verdict, replace(candidate, flow=flow, values=values[1])


def _candidates(
    theirs: torch.nn.Module, own: torch.nn.Module, inputs: Any, source_inputs: Any, known: frozenset[str]
) -> Iterator[SameInputs]:
    """Yield inputs for both models, not tried yet, the likeliest first. THEIRS is the source's code, OWN the model.
    INPUTS and SOURCE_INPUTS are given by the user, or None. KNOWN are modules of the source's code where the model may
    begin.

    First come those of the source's code in the forms that the model takes, then those that the model was found to
    take, in several links each, and last the inputs of modules inside of the source's code.
    """
    done: set[str] = set()

    def linked(first: Any, second: Any) -> Iterator[SameInputs]:
        told = repr((_by_name(theirs, first), _by_name(own, second)))
        if told not in done:
            done.add(told)
            named = _links_by_name(_by_name(theirs, first), _by_name(own, second))
            if named is not None:
                yield SameInputs(first, second, named, theirs)
                return
            plain: tuple[_Link, ...] | None = None
            for links in islice(_links(first, second), _WAYS):
                yield SameInputs(first, second, links, theirs, plain if plain and _turned(plain, links) else None)
                plain = plain or links

    firsts: list[Any] = []
    specs = _specs_of(theirs, inputs, source_inputs)
    for spec in islice(specs, _THEIRS):
        firsts.append(spec)
        spelled = [inputs] if inputs is not None else list(_spellings(own, spec))
        for wanted in spelled:
            yield from linked(spec, wanted)
        if inputs is not None:
            continue
        for wanted in islice(working_inputs(own, like=spelled), _OWN):
            yield from linked(spec, wanted)
            for mixed in islice(_mixtures(spec, wanted), 6):
                yield from linked(_respelled(spec, mixed), _respelled(wanted, mixed))
            if source_inputs is None:
                like = [_respelled(spec, wanted), *_spellings(theirs, wanted)]
                for other in islice(working_inputs(theirs, like=like), 2):
                    yield from linked(other, wanted)
    if firsts:
        yield from _inside(theirs, own, firsts[0], inputs, known)


def _specs_of(theirs: torch.nn.Module, inputs: Any, source_inputs: Any) -> Iterator[Any]:
    """Yield inputs of the source's code THEIRS: only SOURCE_INPUTS if given; else those on which it was found to run,
    in a search that begins with INPUTS, the inputs of the model, if these are given.
    """
    if source_inputs is not None:
        yield source_inputs
    elif inputs is not None:
        like = list(_spellings(theirs, inputs))
        yield from working_inputs(theirs, like=like)
    else:
        yield from working_inputs(theirs)


def _mixtures(theirs: Any, own: Any) -> Iterator[list[Any]]:
    """Yield inputs as flat lists in the order of THEIRS, one for each way to take each input from THEIRS, or in its
    place an input of OWN of the same type and number of dimensions: one model may accept any size. THEIRS and OWN are
    the inputs of the two models.
    """
    left = [one for _, one in leaves(own)]
    choices: list[list[Any]] = []
    for _, one in leaves(theirs):
        kind = one.dtype, len(one.shape)
        same = next((o for o in left if (o.dtype, len(o.shape)) == kind), None)
        if same is not None:
            left.remove(same)
        choices.append([one] if same is None or same == one else [one, same])
    yield from map(list, product(*choices))


def _by_name(model: torch.nn.Module, spec: Any) -> Any:
    """Return the inputs SPEC as a dict by the names of the arguments of MODEL, so that equal calls compare as equal. A
    mapping keeps its own names; inputs with which MODEL cannot be called stay as they are.
    """
    if isinstance(spec, MappingOf):
        return dict(spec)
    try:
        bound = inspect.signature(model.forward).bind(*spec).arguments
    except (TypeError, ValueError):
        return spec
    return dict(bound)


def _links_by_name(first: Any, second: Any) -> tuple[_Link, ...] | None:
    """Return the origins of the model's inputs, SECOND, in FIRST, those of the source's code, by their names. Such
    inputs are not tried in another order.

    None unless both are dicts with the same names, at least two, each a single spec, of the same type and size on both
    sides.
    """
    if not (isinstance(first, dict) and isinstance(second, dict)) or len(first) < 2 or first.keys() != second.keys():
        return None
    single = all(isinstance(one, InputSpec) for side in (first, second) for one in side.values())
    if not single or any(_told(first[name]) != _told(second[name]) for name in second):
        return None
    return tuple(_Link(list(first).index(name)) for name in second)


def _respelled(example: Any, other: Any) -> Any:
    """Return inputs in the form of EXAMPLE (by position or by name), with each input replaced by the first one of
    OTHER, not used yet, that has the same type and number of dimensions, if there is one.
    """
    left = [one for _, one in leaves(other)]
    out = []
    for _, one in leaves(example):
        kind = one.dtype, len(one.shape)
        same = next((o for o in left if (o.dtype, len(o.shape)) == kind), None)
        if same is not None:
            left.remove(same)
        out.append(one if same is None else same)
    return with_leaves(example, out)


def _spellings(model: torch.nn.Module, spec: Any) -> Iterator[Any]:
    """Yield the inputs SPEC in the forms in which MODEL may take them, each once: if they have names and the model
    needs no others, those that it knows, by name; by position; the first alone, under the name of the main input, if
    the model names one; by the names of its arguments in order, unless the first is by position only.

    If MODEL needs fewer arguments, also only so many; if it needs more, the inputs again and again until they are so
    many.
    """
    flat = list(spec.values()) if isinstance(spec, MappingOf) else list(spec)
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        parameters = inspect.Signature().parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [p for p in parameters if p.kind in kinds]
    needed = [p.name for p in named if p.default is p.empty]
    out: list[Any] = []
    if isinstance(spec, MappingOf):
        known = {p.name for p in named}
        by_name = {name: value for name, value in spec.items() if name in known}
        if by_name and set(needed) <= set(by_name):
            out.append(by_name)
        out.append(flat)
    else:
        out.append(flat)
    main = getattr(model, "main_input_name", None)
    if isinstance(main, str) and flat:
        out.append({main: flat[0]})
    if named and named[0].kind is not inspect.Parameter.POSITIONAL_ONLY:
        out.append(dict(zip((p.name for p in named), flat, strict=False)))
    if 0 < len(needed) < len(flat):
        out.append(flat[: len(needed)])
    if len(needed) > len(flat) > 0:
        out.append([*flat, *flat * len(needed)][: len(needed)])
    yield from {repr(one): one for one in out}.values()


# ------------------------------------------------------------------------------------------------- linking


def _links(theirs: Any, own: Any) -> Iterator[tuple[_Link, ...]]:
    """Yield the origins of the model's inputs, OWN, among the inputs of the source's code, THEIRS: each a tuple with
    one link per input, the likeliest first. In each, at least one input has an origin.
    """
    first, second = leaves(theirs), leaves(own)
    options = [_options(first, path, one) for path, one in second]
    plain = _chosen(options, first)
    yield from _unlike((plain,), set())
    said = {plain}
    if len(second) > 1:  # in other orders
        same = [[o for o in option if o.source is not None and not o.how] for option in options]
        for chosen in islice(_products(same), 16):
            yield from _unlike((chosen,), said)
    for place, option in enumerate(options):
        for other in option:
            yield from _unlike((tuple(other if i == place else link for i, link in enumerate(plain)),), said)


def _unlike(links: Sequence[tuple[_Link, ...]], said: set[tuple[_Link, ...]]) -> Iterator[tuple[_Link, ...]]:
    for one in links:
        if one not in said and any(link.source is not None or link.how for link in one):
            said.add(one)
            yield one


def _products(options: Sequence[Sequence[_Link]]) -> Iterator[tuple[_Link, ...]]:
    for chosen in islice(product(*[option or [_Link(None)] for option in options]), 256):
        taken = [link.source for link in chosen if link.source is not None]
        if len(set(taken)) == len(taken):
            yield chosen


def _chosen(options: Sequence[Sequence[_Link]], first: Sequence[Any]) -> tuple[_Link, ...]:
    """Return one link for each input of the model: the first of its OPTIONS whose source no earlier input took, else
    its first option; a link without a source if it has none.
    """
    out: list[_Link] = []
    used: set[int] = set()
    for option in options:
        link = next((o for o in option if o.source not in used), option[0] if option else _Link(None))
        if link.source is not None:
            used.add(link.source)
        out.append(link)
    return tuple(out)


def _options(first: Sequence[Any], path: tuple[Any, ...], one: Any) -> list[_Link]:
    """Return the ways to make ONE, the input of the model at PATH, from one of FIRST, the inputs (path, input) of the
    source's code of the same type; [] if there are none. The likeliest come first: equal sizes under an equal name,
    equal sizes; and for floating point numbers: equal sizes in another order, with an equal name first; equal sizes
    with the dimensions in another order; one channel in place of several of a picture; one dimension more in place two
    or one ("frames").
    """
    out: list[tuple[int, _Link]] = []
    for place, (their_path, other) in enumerate(first):
        a, b = _told(other), _told(one)
        named = 0 if str(path[-1]) == str(their_path[-1]) and isinstance(path[-1], str) else 1
        if a[0] != b[0]:
            continue
        if a[1] == b[1]:
            out.append((named, _Link(place)))
            moved = [o for o in _orders(len(a[1])) if tuple(a[1][i] for i in o) == b[1]] if a[2] else []
            out += [(4, _Link(place, order)) for order in moved]
        elif a[2] and sorted(a[1]) == sorted(b[1]):
            moved = [o for o in _orders(len(a[1])) if tuple(a[1][i] for i in o) == b[1]]
            out += [(2 + named, _Link(place, order)) for order in moved]
        elif a[2] and len(a[1]) == len(b[1]) == 4 and b[1][1] == 1 and (b[1][0], *b[1][2:]) == (a[1][0], *a[1][2:]):
            out.append((5, _Link(place, (), "grey")))
        elif a[2] and len(b[1]) == len(a[1]) + 1:
            for d in (2, 1):
                if b[1][:d] + b[1][d + 1 :] == a[1]:
                    out.append((6, _Link(place, (d,), "frames")))
    return [link for _, link in sorted(out, key=lambda told: told[0])]


def _orders(ndim: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders of NDIM dimensions with the batch (0) first, without the present one; none unless NDIM is 3 to
    5.
    """
    if 3 <= ndim <= 5:
        for order in islice(permutations(range(1, ndim)), 1, None):
            yield (0, *order)


def _told(value: Any) -> tuple[str, tuple[int, ...], bool]:
    """Return (type, shape, whether the type is a floating point type) of VALUE, a spec or a tensor; the type as a name
    ("float32").
    """
    dtype = value.dtype if isinstance(value, InputSpec) else str(value.dtype).removeprefix("torch.")
    return dtype, tuple(value.shape), getattr(torch, dtype).is_floating_point


# -------------------------------------------------------------------------------- what flows inside the source


def parts(code: torch.nn.Module, values: Any, wanted: frozenset[str] = frozenset()) -> dict[str, torch.Tensor]:
    """Run CODE (the source's code) on VALUES and return path -> first input, where that is a floating point tensor, for
    the modules inside of CODE that have children, or whose paths are in WANTED, in the order in which they run. Empty
    if CODE cannot be run.
    """
    found: dict[str, torch.Tensor] = {}
    hooks = []

    def note(path: str) -> Callable[[torch.nn.Module, Any], None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
                found.setdefault(path, args[0].detach().clone())

        return hook

    for path, module in code.named_modules():
        if path and (path in wanted or any(True for _ in module.children())):
            hooks.append(module.register_forward_pre_hook(note(path)))
    try:
        with modes_kept(code), torch.no_grad():
            called(code, values)
    except Exception:
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _inside(
    theirs: torch.nn.Module, own: torch.nn.Module, spec: Any, inputs: Any, known: frozenset[str]
) -> Iterator[SameInputs]:
    """Yield inputs for a model OWN that equals a module inside of the source's code THEIRS: the model takes the input
    of that module, when the code runs on SPEC. Up to three modules in KNOWN come first, then one of the others for each
    shape of their inputs. Nothing if INPUTS of the model are given.

    A module is left out if its input is the code's own input with channels in another order (BGR for RGB): the model
    then takes the same pictures as the code, and its weights have to be reordered.
    """
    values = made(spec, generator=torch.Generator().manual_seed(SEED))
    seen: set[tuple[int, ...]] = set()
    given = [tensor for _, tensor in leaves(values)]
    found = {
        path: tensor
        for path, tensor in parts(theirs, values, known).items()
        if not any(_same_values(tensor, other) for other in given)
    }
    begins = [path for path in found if path in known][:_BEGINS]
    for path in dict.fromkeys([*begins, *(path for path in found if path not in known)]):
        tensor = found[path]
        shape = tuple(tensor.shape)
        if shape in seen and path not in begins:
            continue
        seen.add(shape)
        if len(seen) > _PARTS:
            return
        wanted = InputSpec(str(tensor.dtype).removeprefix("torch."), shape)
        if inputs is None:
            for spelled in islice(_spellings(own, [wanted]), 3):
                if len(leaves(spelled)) == 1:
                    yield SameInputs(spec, spelled, (_Link(None, (), "part", path),), theirs)


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have one shape and type, and the same values in any order; numbers that are not
    floating point have to be in the same order.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():  # there are others that cannot be sorted
        return bool(torch.equal(one, other))
    return bool(torch.equal(one.double().flatten().sort().values, other.double().flatten().sort().values))


__all__ = ["SameInputs", "same_inputs"]
