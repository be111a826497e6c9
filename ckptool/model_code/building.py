"""Import a file that defines a model, build the model, and fill it.

Importing a model file runs it; no other module of ckptool imports a user's code. Models are built on the meta device if
possible, so that a model of any size needs no memory.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..checkpoint import Checkpoint, StateDict
from ..disk.paths import shell_path, shell_quote
from ..errors import CannotCarry, CheckpointError, NotFound, RuleError, Unreadable, printable
from ..keys import closest
from ..sharding.into_memory import fill_tensors, memory_for, shares_of
from ..tensor import LazyTensor
from ..torch_bridge import from_torch
from . import user_code
from .arguments import converted, needed
from .choosing import Shapes, choices, hint, is_model, listing, only_choice
from .signature import Signature
from .trace import signature_of

# ------------------------------------------------------------------------------------------ finding the model


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model in a user's code, found but not yet built.

    Attributes:
        text: the text that named it.
        name: its name in the code (`Net`, `build_model`, `model`).
        make: builds the model; for an instance, returns it.
        instance: whether it is an instance already.
    """

    text: str
    name: str
    make: Callable[[], torch.nn.Module]
    instance: bool = False


def find_model(text: str, kwargs: Mapping[str, Any] | None = None, *, weights: Shapes | None = None) -> ModelSource:
    """Import the code that TEXT names, which runs it, and return the model in it, not yet built. A value named in TEXT
    may be no model: only `build` checks that.

    Args:
        text: `MODEL.py`, `MODEL.py:Name` or `package.module:Name`; Name is a class, a factory or an instance, also with
            dots (`Outer.Inner`). Without Name, `only_choice` chooses, which may build the candidates.
        kwargs: arguments for the class or factory.
        weights: name -> shape of the weights to load; of several candidates in code without Name, the one that has most
            of them is chosen.
    Raises:
        Unreadable: there is no such file or module, or importing it raises an exception or ends the program.
        NotFound: there is no model in it, or nothing of that name.
        Ambiguous: there are several, and neither TEXT nor WEIGHTS say which.
    """
    place, name = user_code.split(text)
    module = _import(place)
    if name:
        found: Any = module
        for part in name.split("."):
            if not hasattr(found, part):
                raise NotFound(
                    f"there is no {printable(name)!r} in it",
                    where=place,
                    evidence=listing(choices(module)),
                    hint=hint(place, choices(module), part),
                )
            found = getattr(found, part)
    else:
        name, found = only_choice(module, place, weights, kwargs)
    return ModelSource(text, name, lambda: _build(found, name, place, dict(kwargs or {})), is_model(found))


def _import(place: str) -> Any:
    """Import the file or module PLACE, which runs it, without warnings, and return the module. What it prints to stderr
    is shown at the end; if it ends the program, only the last line, in the error.

    Raises:
        Unreadable: it is not there or holds no code, or importing it raises an exception or ends the program. The
            message names the line of PLACE, if it is known, and the hint says what to do.
    """
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            return user_code.import_code(place)
    except Unreadable:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        raise Unreadable(
            f"needs the module {printable(repr(error.name or '?'), 80)}, which is not there",
            where=place,
            evidence=_where_in_user_code(error, place),
            hint=f"PYTHONPATH=FOLDER if {printable(missing, 80)} is in a folder of yours; if not, install its package",
        ) from error
    except SystemExit as error:
        raise Unreadable(
            "ends the program when it is imported (SystemExit): it reads a command line, or runs as a script",
            where=place,
            evidence=[*_where_in_user_code(error, place), *_last_line(said)],
            hint='put that part under `if __name__ == "__main__":`',
        ) from error
    except Exception as error:
        raise Unreadable(
            f"raised while it was imported: {_error_text(error)}",
            where=place,
            evidence=_where_in_user_code(error, place),
            hint=f"python {shell_path(place)}   # shows the whole traceback" if user_code.names_file(place) else None,
        ) from error
    finally:
        sys.stderr.write(said.getvalue())


def _last_line(said: io.StringIO) -> list[str]:
    """Return the last line that is not blank of what code has printed to SAID, as a list of one printable text; [] if
    there is none. SAID is empty afterwards in any case.
    """
    lines = said.getvalue().split("\n")
    said.truncate(0)
    said.seek(0)
    return [printable(line, 200) for line in lines if line.strip()][-1:]


def _build(found: Any, name: str, place: str, kwargs: dict[str, Any]) -> torch.nn.Module:
    """Return the model that FOUND makes, a value that is called NAME in the file or module PLACE: FOUND itself if it is
    a model, else what the class or function returns for KWARGS (`converted`), without warnings.

    Raises:
        RuleError: KWARGS do not suit it (`_check_arguments`), or are given for a model.
        NotFound: FOUND cannot be called, or makes no model.
        CannotCarry: its code raises an exception or ends the program.
    """
    if is_model(found):
        if kwargs:
            raise RuleError(f"{printable(name)} is a model already and takes no arguments", where="--kwargs")
        return found
    if not callable(found):
        raise NotFound(f"{printable(name)} is not a model, class or factory", where=place)
    _check_arguments(found, name, place, kwargs)
    kwargs = converted(found, kwargs)
    signature = _signature_of(found)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = found(**kwargs)
    except (Exception, SystemExit) as error:
        raise CannotCarry(
            f"{printable(name)}({_call_text(kwargs)}) raised {_error_text(error)}",
            where=place,
            evidence=[*_where_in_user_code(error, place), f"{printable(name)}{printable(str(signature), 200)}"],
            hint=_after_failing(name, place, signature, kwargs),
        ) from error
    if not is_model(made):
        raise NotFound(f"{printable(name)}() gives a {type(made).__name__}, not a torch.nn.Module", where=place)
    return made


def _signature_of(found: Any) -> inspect.Signature:
    try:
        return inspect.signature(found)
    except (TypeError, ValueError):
        return inspect.Signature()


def _after_failing(name: str, place: str, signature: inspect.Signature, kwargs: Mapping[str, Any]) -> str:
    """Return the hint for the message that the model NAME in the file or module PLACE could not be built: what to type
    instead. SIGNATURE is that of the class or function, KWARGS the user's arguments.

    If it takes arguments, the hint is to check `--kwargs`, or, if KWARGS is empty, how to give arguments. If it takes
    none, and PLACE is a file whose name without its suffix is an identifier, the hint is a command that imports the
    file and shows the traceback. Else it is the advice to name a function of the user's that makes the model.
    """
    if signature.parameters:
        return "check the --kwargs" if kwargs else "--kwargs NAME=VALUE gives it arguments"
    if not user_code.names_file(place) or not Path(place).stem.isidentifier():
        return f"{printable(name)} takes no arguments; name a function of yours that makes the model"
    folder = str(Path(place).parent)
    there = "" if folder == "." else f"cd {shell_path(folder)} && "
    code = f"import {Path(place).stem} as code; code.{name}()"
    return f"{there}python -c {shell_quote(code, 400)}   # shows the whole traceback"


def _check_arguments(found: Any, name: str, place: str, kwargs: dict[str, Any]) -> None:
    """Raise an error if the class or function FOUND cannot be called with KWARGS, by its signature; else do nothing,
    also if Python does not know its signature. NAME and PLACE are as in `_build`.

    Raises:
        RuleError: an argument without a default is missing (the hint has options for it, see `needed`), or FOUND takes
            no argument of one of these names.
    """
    try:
        wanted = inspect.signature(found)
    except (TypeError, ValueError):
        return
    parameters = wanted.parameters
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in kwargs
    ]
    if missing:
        evidence, hint = needed(found, name, place, missing)
        raise RuleError(f"{printable(name)} needs {', '.join(missing)}", where=place, evidence=evidence, hint=hint)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [one for one in kwargs if one not in parameters and not takes_any]
    if unknown:
        near, value = closest(unknown[0], list(parameters), 1), kwargs[unknown[0]]
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        raise RuleError(
            f"{printable(name)} takes no {printable(unknown[0])!r}",
            where="--kwargs",
            evidence=[f"{name}{wanted}"],
            hint=f"--kwargs {shell_quote(f'{near[0]}={text}')}" if near else None,
        )


def _call_text(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())


def _error_text(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, 300)


def _where_in_user_code(error: BaseException, place: str) -> list[str]:
    """Return ["line N of FILE"] for the innermost line in the traceback of ERROR that is in a file with the name of
    PLACE, in whatever folder; [] if there is none, as where PLACE is the name of a module.
    """
    frame, shown = error.__traceback__, ""
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if Path(name).name == Path(place).name:
            shown = f"line {frame.tb_lineno} of {Path(name).name}"
        frame = frame.tb_next
    return [shown] if shown else []


# ----------------------------------------------------------------------------------------------- building it


def signature_for(model: Any, *, inputs: Any = None, kwargs: Mapping[str, Any] | None = None) -> Signature:
    """Return the signature of MODEL: a module, with or without wrappers, a `ModelSource`, or a text or path that names
    code, which is then run with KWARGS. INPUTS are example inputs for a forward pass, as in `signature_of`.

    Raises:
        RuleError: MODEL is none of these.
        CheckpointError: the code has no model, or the model cannot be built.
    """
    if isinstance(model, str | os.PathLike):
        model = find_model(str(model), kwargs)
    made = build(model) if isinstance(model, ModelSource) else require_model(model)
    return signature_of(unwrapped(made), inputs=inputs)


def require_model(model: Any) -> torch.nn.Module:
    """Return MODEL if it is a torch.nn.Module.

    Raises:
        RuleError: it is something else, which the message names. Of a class or function, the message says that it makes
            a model, and the hint calls it.
    """
    if is_model(model):
        return model
    name = getattr(model, "__name__", None)
    if name is not None and callable(model):
        what, hint = f"{printable(name)} makes a model and is none itself", f"{printable(name)}()"
    else:
        what, hint = f"{printable(repr(model), 60)} is not a torch.nn.Module", None
    raise RuleError(what, where="model", hint=hint)


def initial_values(source: ModelSource, keys: Sequence[str]) -> dict[str, LazyTensor]:
    """Return key -> initial value for KEYS, some keys of the state dict of the model that SOURCE makes, as building the
    model sets them; for an instance, its present values.

    The model is built twice for this, and in the second build only those parameters that are in KEYS, and all buffers,
    keep memory (`_partly_real`): a new head on a big model costs only the head. The model is built once more, as a
    whole, if that fails (its code looks at values that are not there, or registers another number of parameters the
    second time), or if one of KEYS has no value then.
    Raises:
        CheckpointError: as `build`.
    """
    try:
        model = _partly_real(source, set(keys))
        state = None if model is None else model.state_dict()
    except Exception:  # code that looks at the values of others while it builds
        state = None
    if state is None or any(state[key].is_meta for key in keys):
        state = unwrapped(build(source, real=True)).state_dict()
    tensors = from_torch({key: state[key].detach().contiguous() for key in keys}).state_dict("").tensors
    return dict(tensors)


def _partly_real(source: ModelSource, keys: set[str]) -> torch.nn.Module | None:
    """Return the model that SOURCE makes, with all parameters except KEYS on the meta device; its buffers have memory.
    None if SOURCE is an instance, or if a second build registers another number of parameters. Exceptions of the code
    are not caught.

    Parameters are identified by the order in which modules register them, which is noted on the meta device first.
    Those on the meta device are registered in place of those that the code makes.
    """
    if source.instance:
        return None
    order: list[torch.nn.Parameter] = []
    with torch.device("meta"), _NothingDrawn(), _on_registration(lambda _, parameter: order.append(parameter)):
        shape_only = unwrapped(source.make())
    wanted = {id(p) for name, p in shape_only.named_parameters(remove_duplicate=False) if name in keys}
    real = {n for n, parameter in enumerate(order) if id(parameter) in wanted}
    made = 0

    def chosen(_: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter | None:
        """Return a parameter without values in place of PARAMETER; None, so that it stays, if it is one of KEYS."""
        nonlocal made
        made += 1
        if made - 1 in real:
            return None
        return torch.nn.Parameter(torch.empty_like(parameter.data, device="meta"), parameter.requires_grad)

    with _on_registration(chosen):
        model = unwrapped(source.make())
    return model if made == len(order) else None


@contextlib.contextmanager
def _on_registration(then: Callable[[str, torch.nn.Parameter], torch.nn.Parameter | None]) -> Iterator[None]:
    """In this context, call THEN(name, parameter) for every parameter that any module registers, and register the
    result in its place (the parameter itself for None).
    """

    def hook(_module: torch.nn.Module, name: str, parameter: Any) -> Any:
        return then(name, parameter) if isinstance(parameter, torch.nn.Parameter) else None

    handle = torch.nn.modules.module.register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def fill(model: torch.nn.Module, ckpt: Checkpoint) -> None:
    """Copy the tensors of the checkpoint CKPT into the parameters and buffers of MODEL with the same names. MODEL has
    one for each name in CKPT; its others stay as they are. For a parameter that is divided among ranks, each rank reads
    its part; a model with such parameters may be on the meta device, and then gets memory.

    Sizes are compared before anything changes.
    Raises:
        CheckpointError: a size differs, values cannot be converted, MODEL has no memory for them, or the file cannot be
            read.
    """
    tensors = ckpt.state_dict("").tensors
    try:
        shares_of(model.state_dict(), tensors)  # before anything changes
        fill_tensors(memory_for(model, tensors), tensors)
    except CheckpointError as error:
        error.where = error.where or ckpt.where
        raise


def build(source: ModelSource, *, real: bool = False) -> torch.nn.Module:
    """Return the model that SOURCE makes: on the meta device, or with memory and values if REAL is true or if the code
    does not run on the meta device. In that last case it is run a second time, with torch's random numbers as they were
    before. An instance is returned as it is.

    Raises:
        RuleError: the arguments do not suit the class or factory.
        CannotCarry: the code does not run with memory either.
        NotFound: it makes no model.
    """
    if real or source.instance:
        return source.make()
    state = torch.get_rng_state()
    try:
        with torch.device("meta"), _NothingDrawn():
            return source.make()
    except CannotCarry:
        torch.set_rng_state(state)
        return source.make()


class _NothingDrawn(TorchFunctionMode):  # type: ignore[misc]
    """A mode of torch in which `normal_`, of tensors and of `torch.nn.init`, leaves a tensor on the meta device as it
    is. All other calls run.

    Without it, torch would import its compiler for two seconds, to draw nothing.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if function in _DRAWING:
            tensor = args[0] if args else named.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return function(*args, **named)


#: Functions that fill a tensor with normal numbers.
_DRAWING = frozenset({torch.Tensor.normal_, torch.nn.init.normal_})


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of MODEL, if MODEL is a wrapper (DataParallel, DistributedDataParallel, torch.compile),
    or several, one in the other; else MODEL itself.
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = getattr(model, "module", None)
        if inner is None or not is_model(inner):
            return model
        model = inner


def parameters_of(text: str, kwargs: Mapping[str, Any] | None = None) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the parameters, without buffers, of the model that TEXT names, in its order, tied ones
    once, under the first of their names. KWARGS are arguments for its class or factory.

    Raises:
        CheckpointError: as `find_model`, and if the model cannot be built.
    """
    model = unwrapped(build(find_model(text, kwargs)))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def refused(model: torch.nn.Module, weights: StateDict) -> str | None:
    """Return the text of the RuntimeError that `MODEL.load_state_dict(WEIGHTS, strict=True)` raises; None if MODEL
    accepts them.

    The call gets tensors of these shapes and types without values, and the metadata of WEIGHTS. MODEL is moved to the
    meta device for it: it loses its values and stays there.
    """
    state: OrderedDict[str, Any] = OrderedDict()
    for key, tensor in weights.tensors.items():
        state[key] = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype.name), device="meta")
    metadata = weights.metadata
    if metadata is not None:
        state._metadata = metadata  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it adds itself (num_batches_tracked) is not on the meta device
            model.to("meta").load_state_dict(state, strict=True)
    except RuntimeError as error:
        return str(error)
    return None


__all__ = [
    "ModelSource",
    "build",
    "fill",
    "find_model",
    "initial_values",
    "parameters_of",
    "refused",
    "signature_for",
    "unwrapped",
]
