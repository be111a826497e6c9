"""Models in code: importing a file that defines one, and what the model wants (see `ckptool.signature`).

Importing a model file runs it; nothing else in ckptool runs a user's code. Models are built on the meta device where
that works, so that one of any size costs no memory, and its forward pass is followed there on inputs that are worked
out from its first layers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .checkpoint import Checkpoint
from .errors import Ambiguous, CannotCarry, NotFound, RuleError, Unreadable, printable
from .files import shell_quote
from .model import from_torch, to_torch
from .signature import Entry, Signature
from .tensor import LazyTensor

# ------------------------------------------------------------------------------------------ finding the model

#: Names that say "this makes the model", in the order in which they are preferred.
_FACTORIES = ("build_model", "create_model", "make_model", "get_model")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model in a user's code, found but not yet built.

    Attributes:
        text: as it was named.
        name: what it is called there (`Net`, `build_model`, `model`).
        make: builds it; for an instance, gives it.
    """

    text: str
    name: str
    make: Callable[[], torch.nn.Module]
    instance: bool = False


def find_model(text: str, kwargs: Mapping[str, Any] | None = None, *, option: str = "MODEL.py") -> ModelSource:
    """Import the code that TEXT names and find the model in it. This runs that code.

    Args:
        text: `MODEL.py`, `MODEL.py:Name` or `package.module:Name`; Name is a class, a factory or an instance.
        kwargs: arguments for the class or factory.
        option: what the user typed it for, for messages.

    Raises:
        Unreadable: there is no such file, or it raises when it is imported.
        NotFound: there is no model in it, or none of that name.
        Ambiguous: there are several and TEXT does not say which.
        RuleError: the arguments do not fit.
    """
    place, name = _split(text)
    module = _import(place, text)
    if name:
        found: Any = module
        for part in name.split("."):
            if not hasattr(found, part):
                raise NotFound(
                    f"there is no {printable(name)!r} in it",
                    where=place,
                    evidence=_listed(_choices(module)),
                    hint=_hint(place, _choices(module)),
                )
            found = getattr(found, part)
    else:
        name, found = _only_choice(module, place)
    return ModelSource(text, name, lambda: _build(found, name, place, dict(kwargs or {})), _is_model(found))


def _split(text: str) -> tuple[str, str]:
    """`a/b.py:Net` -> (`a/b.py`, `Net`). A drive letter of Windows is not a name."""
    place, colon, name = text.rpartition(":")
    if not colon or re.search(r"[\\/]", name):
        return text, ""
    return place, name


def _import(place: str, text: str) -> Any:
    path = Path(place)
    is_file = place.endswith(".py") or path.exists() or "/" in place
    if is_file and not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file or directory"
        raise Unreadable(what, where=place, hint="MODEL.py, MODEL.py:Name or package.module:Name")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _import_file(path) if is_file else _import_module(place)
    except (KeyboardInterrupt, Unreadable):
        raise
    except BaseException as error:
        raise Unreadable(
            f"raised while it was imported: {_error_text(error)}",
            where=place,
            evidence=_where_in_user_code(error, place),
            hint="python " + shell_quote(place) + " shows the whole traceback" if is_file else None,
        ) from error


def _import_file(path: Path) -> Any:
    name = re.sub(r"\W", "_", path.stem) or "model"
    if name in sys.modules:
        name = f"{name}_{abs(hash(str(path.resolve()))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Unreadable("is not a Python file", where=path, hint="MODEL.py, MODEL.py:Name or package.module:Name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # files beside it can be imported, as when it is run
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module


def _import_module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(Path.cwd()))


def _is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def _choices(module: Any) -> dict[str, Any]:
    """What in a module could be the model: instances, classes and factories that it defines itself."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    found = {}
    for name, value in own.items():
        if (
            _is_model(value)
            or (isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__)
            or (inspect.isfunction(value) and value.__module__ == module.__name__ and _makes_a_model(name, value))
        ):
            found[name] = value
    return found


def _makes_a_model(name: str, function: Any) -> bool:
    made = function.__annotations__.get("return")
    if isinstance(made, type) and issubclass(made, torch.nn.Module):
        return True
    return name in _FACTORIES or bool(re.match(r"(build|create|make|get)_?(\w*_)?(model|net|network)$", name))


def _only_choice(module: Any, place: str) -> tuple[str, Any]:
    choices = _choices(module)
    for name in _FACTORIES:
        if name in choices:
            return name, choices[name]
    instances = {name: value for name, value in choices.items() if _is_model(value)}
    if len(instances) == 1:
        return next(iter(instances.items()))
    factories = {name: value for name, value in choices.items() if inspect.isfunction(value)}
    if len(factories) == 1 and not instances:
        return next(iter(factories.items()))
    classes = {name: value for name, value in choices.items() if isinstance(value, type)}
    outer = _outermost(module, classes)
    if len(outer) == 1 and not instances and not factories:
        return next(iter(outer.items()))
    if not choices:
        raise NotFound(
            "defines no model: no torch.nn.Module class, instance or factory",
            where=place,
            hint=f"{shell_quote(place)}:Name names a class, an instance or a function that returns one",
        )
    shown = instances or factories or outer or choices
    raise Ambiguous(
        f"defines {len(shown)} models; say which:", where=place, evidence=_listed(shown), hint=_hint(place, shown)
    )


def _outermost(module: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """The classes that no other class of the file is made of: whose name no other's source mentions."""
    inner = set()
    for other in classes.values():
        try:
            text = inspect.getsource(other)
        except (OSError, TypeError):
            continue
        inner |= {name for name, value in classes.items() if value is not other and re.search(rf"\b{name}\b", text)}
    return {name: value for name, value in classes.items() if name not in inner} or classes


def _listed(choices: Mapping[str, Any]) -> list[str]:
    return [f"{printable(name)} ({_kind(value)})" for name, value in list(choices.items())[:20]]


def _kind(value: Any) -> str:
    return "instance" if _is_model(value) else "class" if isinstance(value, type) else "function"


def _hint(place: str, choices: Mapping[str, Any]) -> str | None:
    return f"{shell_quote(place)}:{next(iter(choices))}" if choices else None


def _build(found: Any, name: str, place: str, kwargs: dict[str, Any]) -> torch.nn.Module:
    if _is_model(found):
        if kwargs:
            raise RuleError(f"{printable(name)} is a model already and takes no arguments", where="--kwargs")
        return found  # type: ignore[no-any-return]
    if not callable(found):
        raise NotFound(f"{printable(name)} is no model, class or factory", where=place)
    _check_arguments(found, name, place, kwargs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = found(**kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise CannotCarry(
            f"{printable(name)}({_call_text(kwargs)}) raised {_error_text(error)}",
            where=place,
            evidence=_where_in_user_code(error, place),
            hint="--kwargs NAME=VALUE gives it arguments" if not kwargs else "check the --kwargs",
        ) from error
    if not _is_model(made):
        raise NotFound(f"{printable(name)}() gives a {type(made).__name__}, not a torch.nn.Module", where=place)
    return made  # type: ignore[no-any-return]


def _check_arguments(found: Any, name: str, place: str, kwargs: dict[str, Any]) -> None:
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
        raise RuleError(
            f"{printable(name)} needs {', '.join(missing)}",
            where=place,
            evidence=[f"{name}{wanted}"],
            hint=" ".join(f"--kwargs {one}=…" for one in missing),
        )
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [one for one in kwargs if one not in parameters and not takes_any]
    if unknown:
        raise RuleError(
            f"{printable(name)} takes no {printable(unknown[0])!r}", where="--kwargs", evidence=[f"{name}{wanted}"]
        )


def _call_text(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())


def _error_text(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, 300)


def _where_in_user_code(error: BaseException, place: str) -> list[str]:
    """The innermost line of the user's file that the error went through."""
    frame, shown = error.__traceback__, ""
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if Path(name).name == Path(place).name:
            shown = f"line {frame.tb_lineno} of {Path(name).name}"
        frame = frame.tb_next
    return [shown] if shown else []


# ----------------------------------------------------------------------------------------------- building it


def signature_for(model: Any, *, inputs: Any = None, kwargs: Mapping[str, Any] | None = None) -> Signature:
    """The signature of a module, or of the code that a text names (which is imported and run)."""
    if _is_model(model):
        return signature_of(unwrapped(model), inputs=inputs)
    found = find_model(str(model), kwargs)
    return signature_of(unwrapped(build(found)), inputs=inputs)


def initial_values(source: ModelSource, keys: Sequence[str]) -> dict[str, LazyTensor]:
    """The values that the model itself gives to KEYS when it is built. This builds it for real."""
    state = unwrapped(build(source, real=True)).state_dict()
    tensors = from_torch({key: state[key].detach().contiguous() for key in keys}).state_dict("").tensors
    return dict(tensors)


def fill(model: torch.nn.Module, ckpt: Checkpoint) -> None:
    """Copy the tensors of a checkpoint into the parameters and buffers of MODEL that have their names."""
    own = model.state_dict()
    with torch.no_grad():
        for key, tensor in ckpt.state_dict("").tensors.items():
            to_fill = own[key]
            if to_fill.is_meta:
                raise CannotCarry(
                    f"{printable(key)} is on the meta device and has no memory",
                    hint="model.to_empty(device='cpu') gives it some",
                )
            to_fill.copy_(to_torch(tensor))


def read_inputs(inputs: Any) -> Any:
    """Inputs as they may be given: texts, tensors, or specs; positional or by name."""
    if inputs is None:
        return None
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, Mapping):
        return {k: (parse_inputs([v])[0] if isinstance(v, str) else v) for k, v in inputs.items()}  # type: ignore[index]
    if all(isinstance(one, str) for one in inputs):
        return parse_inputs(inputs)
    return list(inputs)


def build(source: ModelSource, *, real: bool = False) -> torch.nn.Module:
    """Build the model: on the meta device unless REAL values are wanted or the code cannot be run there."""
    if real or source.instance:
        return source.make()
    state = torch.get_rng_state()
    try:
        with torch.device("meta"):
            return source.make()
    except RuleError:
        raise
    except CannotCarry:
        torch.set_rng_state(state)
        return source.make()


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = getattr(model, "module", None)
        if inner is None or not _is_model(inner):
            return model
        model = inner


# -------------------------------------------------------------------------------------------- its signature


def signature_of(
    model: torch.nn.Module,
    *,
    name: str = "",
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    trace: bool = True,
) -> Signature:
    """What MODEL wants: its state dict's keys, shapes and order, and what a forward pass on the meta device shows.

    Args:
        model: the model; it is not changed.
        name: for messages; the name of its class if it is empty.
        inputs: example inputs (positional, or by name); worked out from the first layers if None.
        trace: follow a forward pass. If that cannot be done, the signature says so and the rest of it holds.
    """
    state = model.state_dict()
    parameters = {id(parameter) for parameter in model.parameters()}
    owners = {
        f"{path}.{leaf}" if path else leaf: type(module).__name__
        for path, module in model.named_modules(remove_duplicate=False)
        for leaf in (*module._parameters, *module._buffers)
    }
    live = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for key in state:
        tensor = live.get(key)
        if tensor is not None:
            held = first.setdefault(id(tensor), key)
            if held != key:
                ties[key] = held
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
            dict(at.notes) if at else {},
        )
    metadata = getattr(state, "_metadata", None)
    return Signature(
        name or type(model).__name__,
        entries,
        traced=bool(found.uses),
        inputs=found.inputs,
        rotary=found.rotary,
        metadata={path: dict(value) for path, value in metadata.items()} if metadata else None,
    )


@dataclass(slots=True)
class _Use:
    index: int
    how: str
    notes: dict[str, Any]


@dataclass(slots=True)
class _Followed:
    uses: dict[str, _Use]
    inputs: str = ""
    rotary: str | None = None


_Nothing = _Followed({})

#: Seconds that looking for inputs may take, and forward passes that it may try.
_PATIENCE, _TRIES = 20.0, 120
#: Above this number of parameters a model is followed on the meta device or not at all.
_SMALL = 50_000_000


def _follow(model: torch.nn.Module, live: Mapping[str, torch.Tensor], inputs: Any) -> _Followed:
    """Follow a forward pass on the first inputs that the model takes."""
    candidates = [inputs] if inputs is not None else guess_inputs(model)
    began = time.monotonic()
    shadow = _on_meta(model)
    best = _Nothing
    for attempt, candidate in enumerate(candidates):
        if attempt >= _TRIES or time.monotonic() - began > _PATIENCE:
            break
        found = _attempt(shadow, live, candidate) if shadow is not None else None
        if found is None and inputs is not None and sum(t.numel() for t in live.values()) < _SMALL:
            found = _attempt(model, live, candidate)
        if found is None:
            continue
        if found.inputs:
            return found
        if len(found.uses) > len(best.uses):
            best = found
    if inputs is None and sum(t.numel() for t in live.values()) < _SMALL and not any(t.is_meta for t in live.values()):
        for candidate in itertools.islice(guess_inputs(model), 40):
            if time.monotonic() - began > 2 * _PATIENCE:
                break
            found = _attempt(model, live, candidate)
            if found is not None and found.inputs:
                return found
    return best if len(best.uses) >= 0.9 * len(live) else _Nothing


def _on_meta(model: torch.nn.Module) -> torch.nn.Module | None:
    """A copy of the model on the meta device, with its structure and no values; the model itself if it is there."""
    import copy

    if all(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers())):
        return model  # also where it cannot be copied: functions that it holds may refer to it

    memo: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if isinstance(tensor, torch.nn.Parameter):
            memo[id(tensor)] = torch.nn.Parameter(
                torch.empty_like(tensor.data, device="meta"), requires_grad=tensor.requires_grad
            )
        else:
            memo[id(tensor)] = torch.empty_like(tensor, device="meta")
    try:
        return copy.deepcopy(model, memo)
    except Exception:
        return None


def _attempt(model: torch.nn.Module, live: Mapping[str, torch.Tensor], inputs: Any) -> _Followed | None:
    names = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    device = next((str(t.device) for t in names.values()), "cpu")
    args, kwargs = (), {}
    if isinstance(inputs, Mapping):
        kwargs = {key: made(value, device) for key, value in inputs.items()}
    else:
        args = tuple(made(value, device) for value in inputs)
    keys: dict[int, str] = {}
    for key, tensor in names.items():
        keys.setdefault(id(tensor), key)
    mode = _Follower(keys)
    training = model.training
    fast = torch.backends.mha.get_fastpath_enabled()
    state = torch.get_rng_state()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with warnings.catch_warnings(), torch.no_grad(), _same_default_device(device), mode:
            warnings.simplefilter("ignore")
            model(*args, **kwargs)
    except Exception:
        return _Followed(mode.uses) if mode.uses else None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(training)
        torch.set_rng_state(state)
    return _Followed(mode.uses, inputs_text(inputs), mode.rotary)


@contextlib.contextmanager
def _same_default_device(device: str) -> Iterator[None]:
    with torch.device(device):
        yield


class _Follower(TorchFunctionMode):
    """Notes which parameter is used when, by which function, and what is done with the result."""

    def __init__(self, keys: dict[int, str]) -> None:
        super().__init__()
        self._keys = keys
        self.uses: dict[str, _Use] = {}
        self.rotary: str | None = None
        self._alive: list[Any] = []
        self._from: dict[int, tuple[str, Any]] = {}  # what a tensor is: ("features", "nchw"), ("fused", key) ...
        self._negated: set[int] = set()
        self._turned: set[int] = set()  # transposed views of parameters

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self._alive.append((args, kwargs))  # so that ids stay their own
        for place, value in enumerate(_flat([args, kwargs])):
            key = self._keys.get(id(value))
            if key is not None and name not in _LOOKS:
                self._use(key, name, place, args, value)
        result = func(*args, **kwargs)
        self._alive.append(result)
        if name in _VIEWS and args and id(args[0]) in self._keys and isinstance(result, torch.Tensor):
            self._keys.setdefault(id(result), self._keys[id(args[0])])
            if (name in ("t", "transpose") or (name == "permute" and result.ndim == 2)) != (
                id(args[0]) in self._turned
            ):
                self._turned.add(id(result))
        self._learn(name, args, kwargs, result)
        return result

    def _use(self, key: str, name: str, place: int, args: Any, value: Any) -> None:
        if name in _VIEWS:
            return  # what is done with the view counts
        if key not in self.uses:
            self.uses[key] = _Use(len(self.uses), name, {})
            first = args[0] if args and isinstance(args[0], torch.Tensor) else None
            kind, what = self._from.get(id(first), ("", None))
            if kind == "flat" and name in ("linear", "addmm", "matmul"):
                self.uses[key].notes["flatten"] = what
        if name in _PRODUCTS and place >= 1:
            self.uses[key].notes.setdefault("right", id(value) not in self._turned)
        elif name == "linear" and id(value) in self._turned:
            self.uses[key].notes.setdefault("right", True)

    def _learn(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """What is worth knowing of a result: features and how they are flattened, fused projections, rotary."""
        if name == "view_as_complex" or name == "polar" or (name == "__getitem__" and _every_second(args)):
            self.rotary = "interleaved"
        if not isinstance(result, torch.Tensor):
            if isinstance(result, tuple | list):
                first = args[0] if args else None
                kind, what = self._from.get(id(first), ("", None))
                if kind == "fused" and name in ("chunk", "split", "tensor_split", "unsafe_chunk", "unbind"):
                    self._layout(what, "block")
            return
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name in ("neg", "__neg__", "negative"):
            self._negated.add(id(result))
        elif name in ("cat", "concat", "concatenate", "stack") and args and isinstance(args[0], tuple | list):
            if any(id(part) in self._negated for part in args[0]) and self.rotary is None:
                self.rotary = "half" if name != "stack" else "interleaved"
        if name.startswith("conv") and result.ndim == 4:
            self._from[id(result)] = ("features", "nchw")
        elif name == "linear" and len(args) > 1 and id(args[1]) in self._keys:
            self._from[id(result)] = ("fused", (self._keys[id(args[1])], args[1].shape[0]))
        elif first is not None and id(first) in self._from:
            kind, what = self._from[id(first)]
            made = self._after(kind, what, name, args, first, result)
            if made is not None:
                self._from[id(result)] = made

    def _after(self, kind: str, what: Any, name: str, args: Any, first: Any, result: Any) -> tuple[str, Any] | None:
        if kind == "features":
            if result.ndim == 4 and name == "permute":
                dims = tuple(args[1] if isinstance(args[1], tuple | list | torch.Size) else args[1:])
                return (kind, "nhwc") if dims in ((0, 2, 3, 1), (0, -2, -1, 1)) and what == "nchw" else None
            if result.ndim == 4:
                return kind, what
            if name in ("flatten", "reshape", "view") and result.ndim == 2 and first.ndim == 4:
                c, h, w = first.shape[1:] if what == "nchw" else (first.shape[3], first.shape[1], first.shape[2])
                if h * w > 1 and result.shape[1] == c * h * w:
                    return "flat", (what, c, h, w)
            return None
        if kind == "flat":
            return (kind, what) if result.shape == first.shape else None
        if kind == "fused":
            if name in ("reshape", "view", "unflatten", "rearrange") and result.ndim > first.ndim:
                self._reshaped(what, first, result)
                return None
            if name in ("__getitem__", "narrow"):
                self._layout(what, "block")
                return None
            return (kind, what) if result.shape == first.shape else None
        return None

    def _reshaped(self, what: Any, first: Any, result: Any) -> None:
        inner = tuple(result.shape[first.ndim - 1 :])
        if math.prod(inner) == what[1] and len(inner) >= 2:
            if len(inner) == 3 and inner[0] in (2, 3):
                self._layout(what, "block")
            elif len(inner) == 3 and inner[1] in (2, 3):
                self._layout(what, "heads", inner[0])
            elif len(inner) == 2:
                self._layout(what, "maybe heads", inner[0])

    def _layout(self, what: Any, layout: str, heads: int = 0) -> None:
        key = what[0]
        if key in self.uses:
            self.uses[key].notes.setdefault("layout", (layout, heads))


def _every_second(args: Any) -> bool:
    """Whether the even or the odd elements of a last dimension are taken, as rotary embeddings of pairs do."""
    index = args[1] if len(args) > 1 else None
    last = index[-1] if isinstance(index, tuple) and index else None
    return (
        isinstance(last, slice)
        and last.step == 2
        and args[0].ndim in (3, 4)
        and args[0].is_floating_point()
        and len(index) in (2, args[0].ndim)
        and all(i is Ellipsis or i == slice(None) for i in index[:-1])
    )


#: Functions that read a property, and those that give a view whose use is what counts.
_LOOKS = frozenset("__get__ size dim numel stride __len__ is_floating_point is_complex data_ptr type_as".split())
_VIEWS = frozenset(
    "t T mT transpose permute view reshape unsqueeze squeeze detach contiguous to expand expand_as".split()
)


_PRODUCTS = frozenset("matmul __matmul__ __rmatmul__ addmm mm bmm baddbmm".split())


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _flat(item)
    else:
        yield value


# --------------------------------------------------------------------------------------------- example inputs

_SPEC = re.compile(r"(?:(\w+)=)?(\w+)\[([\d,\s]*)\](?:<(\d+))?\Z")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A random input: element type and shape; integers are below HIGH and not below LOW."""

    dtype: str
    shape: tuple[int, ...]
    high: int = 0
    low: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" + (f"<{self.high}" if self.high else "")


def parse_inputs(texts: Sequence[str]) -> list[InputSpec] | dict[str, InputSpec] | None:
    """Inputs as they are written on the command line: `float32[2,3,64,64]`, `int64[2,12]<100`, `name=float32[2,8]`.

    Raises:
        RuleError: a text is none of these.
    """
    positional: list[InputSpec] = []
    named: dict[str, InputSpec] = {}
    for text in texts:
        found = _SPEC.match(text.strip())
        if found is None or not hasattr(torch, found[2]) or not isinstance(getattr(torch, found[2]), torch.dtype):
            raise RuleError(f"{printable(text)!r} is no input", where="--input", hint="--input 'float32[2,3,64,64]'")
        spec = InputSpec(found[2], tuple(int(n) for n in found[3].split(",") if n.strip()), int(found[4] or 0))
        if found[1]:
            named[found[1]] = spec
        else:
            positional.append(spec)
    if positional and named:
        raise RuleError("some inputs have a name and some have none", where="--input", hint="name all of them, or none")
    return named or positional or None


def made(value: Any, device: str = "cpu", generator: Any = None) -> Any:
    """The random tensor that a spec describes; anything else as it is."""
    if not isinstance(value, InputSpec):
        return value
    dtype = getattr(torch, value.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        if device == "meta":
            return torch.empty(value.shape, dtype=dtype, device="meta")
        return torch.randn(value.shape, dtype=dtype, generator=generator).to(device)
    if device == "meta":
        return torch.empty(value.shape, dtype=dtype, device="meta")
    if dtype == torch.bool:
        return torch.ones(value.shape, dtype=dtype)
    return torch.randint(value.low, max(value.high, value.low + 1, 2), value.shape, dtype=dtype, generator=generator)


def inputs_text(inputs: Any) -> str:
    """Inputs as a person would type them."""
    if isinstance(inputs, Mapping):
        return " ".join(f"{name}={value}" for name, value in inputs.items())
    return " ".join(map(str, inputs)) or "no input"


_TOKENS = re.compile(r"(^|_)(ids?|idx|tokens?|indices|text|src|tgt|words?|sentence|caption|labels?|seq)($|_)")
_PICTURES = re.compile(r"(^|_)(images?|imgs?|pixel(_values)?|pictures?|frames?|video|photo)($|_)")
_SIZES = (32, 64, 16, 224, 28, 24, 8, 128, 96, 48, 256, 299, 384, 512, 12, 20, 40)


def guess_inputs(model: torch.nn.Module) -> Iterator[Any]:
    """Inputs that MODEL might take, the likeliest first, from the names of its arguments and its first layers."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if needed:
        yield from _combined(model, [p.name for p in needed], by_name=False)
        return
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not names:
        yield []
        return
    main = getattr(model, "main_input_name", None)
    first = main if isinstance(main, str) and main in names else names[0]
    tokens = next((n for n in names if n in ("input_ids", "text", "tokens", "ids")), None)
    pictures = next((n for n in names if n in ("pixel_values", "image", "images", "img")), None)
    if tokens and pictures:
        yield from _combined(model, [n for n in names if n in (tokens, pictures)], by_name=True)
    if "decoder_input_ids" in names:
        yield from _combined(model, [first, "decoder_input_ids"], by_name=True)
    yield from _combined(model, [first], by_name=True)


def _combined(model: torch.nn.Module, wanted: list[str], *, by_name: bool) -> Iterator[Any]:
    """Inputs for the arguments WANTED, the likeliest combinations first."""
    options = [list(_inputs_for(model, name, len(wanted))) for name in wanted]
    if len(wanted) == 1:
        combined: Iterator[tuple[InputSpec, ...]] = ((one,) for one in options[0])
    elif len({str(one) for one in options[0]} ^ {str(one) for one in options[1]}) == 0:
        # the same kinds of input: equal ones first
        equal = (tuple(one for _ in wanted) for one in options[0])
        combined = itertools.chain(equal, itertools.islice(itertools.product(*(o[:8] for o in options)), 64))
    else:
        combined = itertools.islice(itertools.product(*(o[:10] for o in options)), 100)
    for specs in combined:
        yield dict(zip(wanted, specs, strict=True)) if by_name else list(specs)


def _inputs_for(model: torch.nn.Module, name: str, among: int) -> Iterator[InputSpec]:
    """Inputs for the argument NAME: tokens, pictures or vectors, by its name and by the first layers of each kind."""
    embeddings, convolutions, vectors = [], [], []
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            embeddings.append(module.num_embeddings)
        elif isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d):
            convolutions.append((module.weight.ndim - 2, module.in_channels))
        elif isinstance(module, torch.nn.ConvTranspose1d | torch.nn.ConvTranspose2d | torch.nn.ConvTranspose3d):
            convolutions.append((module.weight.ndim - 2, -module.in_channels))
        elif isinstance(module, torch.nn.Linear):
            vectors.append(module.in_features)
        elif isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
            vectors.insert(0, module.input_size)
    high = min(embeddings, default=0)
    tokens = (
        [InputSpec("int64", (2, n), min(high, 1 << 30)) for n in (12, 8, 16, 4, 77, 32, 64, 10)] if embeddings else []
    )
    first = dict.fromkeys(convolutions)
    low = sorted(first, key=lambda c: (abs(c[1]) not in (1, 3, 4), list(first).index(c)))
    pictures = []
    for dims, channels in [*list(first)[:2], *low[:2]]:
        if channels < 0:
            pictures += [InputSpec("float32", (2, -channels, *([n] * dims))) for n in (1, 4, 8)]
        elif dims == 1:
            pictures += [InputSpec("float32", (2, channels, n)) for n in (64, 256, 1024, 16)]
        elif dims == 3:
            pictures += [InputSpec("float32", (2, channels, *([n] * 3))) for n in (16, 32, 8)]
        else:
            pictures += [InputSpec("float32", (2, channels, n, n)) for n in _SIZES]
    size = getattr(getattr(model, "config", None), "image_size", None)
    channels_of = getattr(getattr(model, "config", None), "num_channels", 3)
    if isinstance(size, int):
        pictures.insert(0, InputSpec("float32", (2, channels_of, size, size)))
    plain = []
    for width in dict.fromkeys(vectors[:3] + vectors[-1:]):
        plain += [InputSpec("float32", (2, width)), InputSpec("float32", (2, 12, width))]
        plain += [InputSpec("float32", (2, width, 8, 8))] if among == 1 else []
    if not convolutions and not embeddings:  # pictures may be cut into patches for a linear layer
        plain += [InputSpec("float32", (2, c, n, n)) for c in (3, 1) for n in _SIZES]
    pictures = list(dict.fromkeys(pictures))
    if _TOKENS.search(name):
        yield from (*tokens, *plain, *pictures)
    elif _PICTURES.search(name):
        yield from (*pictures, *plain, *tokens)
    elif embeddings and not convolutions:
        yield from (*tokens, *plain)
    elif convolutions:
        yield from (*pictures, *tokens, *plain)
    else:
        yield from (*plain, *tokens)


__all__ = [
    "InputSpec",
    "ModelSource",
    "build",
    "find_model",
    "guess_inputs",
    "inputs_text",
    "made",
    "parse_inputs",
    "signature_of",
    "unwrapped",
]
