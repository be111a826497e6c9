"""Read inputs and outputs that were saved where the source's code runs."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...disk.files import StrPath, shell_path, shell_quote
from ...errors import CannotCarry, NotFound, RuleError, UnknownFormat, counted, printable
from ...formats.loading import load
from ...inert.inert_object import Inert
from ...model_code.inputs import inputs_text, leaves, nested, with_leaves
from .calling import arguments, first_line, placed, tensors
from .flow import Place
from .measure import of_one_size
from .recorder import attempt

_INPUTS, _OUTPUTS = ("input", "inputs"), ("output", "outputs")
_PLAIN = (bool, int, float, str, type(None))
_COARSE = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Reference:
    """Inputs of the model, by position or by name, and the saved outputs for them.

    Attributes:
        inputs: the inputs: a list or a dict.
        outputs: the saved outputs.
        places: for each of `outputs`, its path in what the model returns: `()` for a single tensor, `("a", 0)` for
            `output.a.0`.
        coarse: the eps of the coarsest type in which an input was saved (bfloat16: 0.0078); 0 if it is float32 or
            finer.
    """

    inputs: Any
    outputs: list[torch.Tensor]
    places: list[Place]
    coarse: float = 0.0


def read_reference(path: StrPath, model: torch.nn.Module) -> Reference:
    """Read the file PATH, in any format, with tensors named `input`, `input.0`, `input.NAME` … and `output`, `output.0`
    …, run MODEL on the inputs once, and return inputs and outputs. Saved outputs of whole numbers, or in float16 or
    bfloat16, are left out if there are finer ones.

    Raises:
        NotFound: none of the inputs is a tensor, or there are no outputs.
        CannotCarry: an input is neither a tensor nor a plain value; the model cannot be run on these inputs; none of
            its outputs has as many numbers as any saved one; or saved tensors cannot be used (sparse, empty, without a
            finite number; no output in float32 or finer).
        RuleError: some inputs have a name and some have none, or one is inside of another (`input.a`, `input.a.b`).
        UnknownFormat: the file is none that ckptool reads; the hint says how to save one.
    """
    try:
        raw = load(path, map_location="cpu")
    except UnknownFormat as error:
        error.hint = f"where the source's code runs: {_save(model)}"
        raise
    ins, outs = _under(raw, _INPUTS), _under(raw, _OUTPUTS)
    inputs = _inputs(ins, path, model)
    given = _outputs(outs, path, model)
    outputs = [t for _, t in given]
    if not any(True for _ in tensors(inputs)) or not outs:
        missing = "inputs (`input…`)" if outs else "outputs (`output…`)" if ins else "inputs and outputs"
        raise NotFound(
            f"holds no tensors that are {missing}", where=path, evidence=_held(raw), hint=_rename(raw, path, model)
        )
    _try(model, inputs, outputs, path)
    coarse = max((torch.finfo(t.dtype).eps for t in tensors(ins) if t.dtype in _COARSE), default=0.0)
    return Reference(inputs, outputs, [place for place, _ in given], coarse)


def _under(raw: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of RAW, a dict from the file, whose keys are one of NAMES up to the first dot, by the rest of
    the key: "mask" for `input.mask`, "" for `input`. Empty if RAW is no dict.
    """
    if not isinstance(raw, MappingOf):
        return {}
    cut = ((*key.partition("."), value) for key, value in raw.items() if isinstance(key, str))
    return {rest: value for head, _, rest, value in cut if head in names}


def _inputs(found: dict[str, Any], path: StrPath, model: torch.nn.Module) -> Any:
    """Return the inputs FOUND in the file PATH as MODEL takes them. FOUND has name -> value, with the name without
    `input.` ("" for `input` itself). The result is a list if there is one input without a name, or if all names are
    numbers (sorted by these), else a dict; [] if FOUND is empty. A list, tuple or dict under the plain name `input` is
    all inputs. Floating point tensors get the type of the model's first floating point parameter (float32 if there is
    none).

    Raises:
        RuleError: some inputs have a name and some have none, or one is inside of another (`input.a`, `input.a.b`).
        CannotCarry: an input is neither a tensor nor a plain value (number, text, None), or a tensor that is sparse,
            quantized, complex, empty or without a finite number.
    """
    if "" in found and len(found) > 1:
        raise RuleError("some inputs have a name and some have none", where=path, hint="name all of them, or none")
    given: Any = found.get("") if "" in found else nested(found, path)
    if isinstance(given, MappingOf) and "" not in found and all(name.isdecimal() for name in given):
        given = [given[name] for name in sorted(given, key=int)]
    if not isinstance(given, MappingOf | list | tuple):
        given = [given]
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    new = []
    for way, value in leaves(given):
        name = ".".join(["input", *map(str, way)]) if len(way) > 1 or isinstance(given, MappingOf) else "input"
        if isinstance(value, torch.Tensor):
            _require_values(name, value, path)
        elif not isinstance(value, _PLAIN):
            hint = f"where the source's code runs: {_save(model)}"
            raise CannotCarry(f"{name} is not a tensor, but {_kind(value)}", where=path, hint=hint)
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        new.append(value.to(kind) if is_float else value)
    return with_leaves(given, new)


def _outputs(found: dict[str, Any], path: StrPath, model: torch.nn.Module) -> list[tuple[Place, torch.Tensor]]:
    """Return (place, tensor) for the outputs FOUND in the file PATH (name without `output.` -> value) that are floating
    point numbers of at least the precision of float32; others are left out. The place is the name in parts: ("a", 0)
    for `output.a.0`, () for `output`. If all names are numbers, they are sorted as numbers: 2 before 10. [] if FOUND is
    empty. MODEL is for messages.

    Raises:
        CannotCarry: FOUND is not empty and all outputs are left out; or a returned one is sparse, quantized, empty or
            without a finite number.
    """
    named = {
        tuple(int(n) if n.isdecimal() else n for n in rest.split(".") if n): value for rest, value in found.items()
    }
    if all(isinstance(n, int) for place in named for n in place):
        named = dict(sorted(named.items()))
    every = [one for place, value in named.items() for one in placed(value, place)]
    kept = [(place, t) for place, t in every if t.is_floating_point()]
    fine = [(place, t) for place, t in kept if t.dtype not in _COARSE]
    if found and not fine:
        what, hint = _why_none_is_left([t for _, t in every], [t for _, t in kept])
        raise CannotCarry(f"its outputs are {what}", where=path, hint=f"{hint}: {_save(model)}")
    for _, t in fine:
        _require_values("output", t, path)
    return fine


def _why_none_is_left(every: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> tuple[str, str]:
    """Return (what the saved outputs are, what to do) for a message about outputs that cannot be compared: EVERY has
    the tensors among them, KEPT those of floating point numbers. The reason is that there are no tensors if EVERY is
    empty, whole numbers if KEPT is, else that all of KEPT are too coarse (float16, bfloat16).
    """
    if not every:
        return "not tensors", "where the source's code runs"
    if not kept:
        what = f"{inputs_text(every)}: whole numbers cannot be compared up to rounding"
        return what, "save what they are made of (logits in place of classes)"
    return f"{inputs_text(kept)}, which is too coarse to prove weights by", "save them again from model.float()"


def _require_values(name: str, value: torch.Tensor, path: StrPath) -> None:
    """Raise CannotCarry if VALUE, the tensor NAME of the file PATH, holds no numbers that can be compared; else do
    nothing.

    Raises:
        CannotCarry: it is sparse, quantized or complex, has no elements, or is floating point without a finite number.
    """
    if value.layout is not torch.strided or value.is_quantized or value.is_complex():
        raise CannotCarry(
            f"{name} is sparse, quantized or complex, and cannot be compared",
            where=path,
            hint="save it as a dense tensor of float32",
        )
    told = f"{name} {inputs_text([value])}"
    if not value.numel():
        raise CannotCarry(f"{told} has no elements", where=path, hint="save a batch of at least one")
    if value.is_floating_point() and not bool(torch.isfinite(value).any()):
        nans = int(value.isnan().sum())
        infinite = f"{counted(value.numel() - nans, 'other')} infinite"
        raise CannotCarry(
            f"{told} holds no finite number: {nans:,} of {value.numel():,} are NaN, {infinite}",
            where=path,
            hint="run the source's code in eval mode and in float32, on inputs as it was trained with, and save again",
        )


def _try(model: torch.nn.Module, inputs: Any, outputs: Sequence[torch.Tensor], path: StrPath) -> None:
    """Run MODEL once on INPUTS from the file PATH, and raise CannotCarry if nothing it gives can be compared with the
    saved OUTPUTS; else do nothing. One output with as many numbers as one of OUTPUTS is enough; the values are not
    compared.

    Raises:
        CannotCarry: the model raises on the inputs, or none of its floating point outputs has as many numbers as any of
            OUTPUTS (outputs of one number count only if both sides have one output alone).
    """
    out, error = attempt(model, inputs)
    if error is not None:
        raise CannotCarry(
            f"the model cannot be run on {inputs_text(inputs)}: {first_line(error)}",
            where=path,
            evidence=[f"it takes {_parameters(model)}"],
            hint=_named_otherwise(inputs, path, model) or f"save what this model takes: {_save(model)}",
        )
    given = [t for t in tensors(out) if t.is_floating_point()]
    alone = len(outputs) == len(given) == 1
    if not any(of_one_size(a, b, alone) for a in outputs for b in given):
        raise CannotCarry(
            f"the model gives {inputs_text(given)}, and {inputs_text(outputs)} is saved: none are of one size",
            where=path,
            hint=f"save what this model gives: {_save(model)}",
        )


# ------------------------------------------------------------------------------------------------- what helps


def _named_otherwise(inputs: Any, path: StrPath, model: torch.nn.Module) -> str | None:
    """Return the command that renames the one input in the file PATH that is no argument of MODEL to the one argument
    without a default that INPUTS lack. None if INPUTS have no names (are no dict), if the arguments of MODEL are not
    known, or if there is not exactly one such input and exactly one such argument.
    """
    names, needed = arguments(model)
    if not isinstance(inputs, MappingOf) or not names:
        return None
    odd, open_ = [n for n in inputs if n not in names], [n for n in needed if n not in inputs]
    if len(odd) != 1 or len(open_) != 1:
        return None
    return _renamed(path, {f"input.{odd[0]}": f"input.{open_[0]}"})


def _rename(raw: Any, path: StrPath, model: torch.nn.Module) -> str:
    """Return the command that renames the two tensors of the file PATH to `input` and `output`: the first is the input,
    unless one of them has a name that says otherwise. If RAW, the contents of the file, is not a dict of exactly two
    tensors, return advice with the code that saves inputs and outputs of MODEL instead.
    """
    given = raw if isinstance(raw, MappingOf) else {}
    found = [str(key) for key, value in given.items() if isinstance(value, torch.Tensor)]
    if len(found) == 2 == len(given):
        a, b = found
        if b.partition(".")[0] in _INPUTS or a.partition(".")[0] in _OUTPUTS:
            a, b = b, a
        new = {old: word for old, word in ((a, "input"), (b, "output")) if old.partition(".")[0] != word}
        return _renamed(path, new)
    return f"where the source's code runs: {_save(model)}"


def _renamed(path: StrPath, new: MappingOf[str, str]) -> str:
    """Return the command that renames tensors of the file PATH, by NEW (old name -> new name)."""
    rules = " ".join(f"--rename {shell_quote(f'{old}={to}')}" for old, to in new.items())
    return f"ckptool rename {shell_path(path)} io.safetensors {rules}"


def _save(model: torch.nn.Module) -> str:
    """Return a line of Python that runs MODEL on the arguments that it needs (or on `x`) and saves these and its
    output, for a message to the user.
    """
    _, needed = arguments(model)
    words = needed or ["x"]
    keys = ['"input": x'] if len(words) == 1 else [f'"input.{word}": {word}' for word in words]
    call = "x" if len(words) == 1 else ", ".join(words)
    return f'model.eval(); torch.save({{{", ".join(keys)}, "output": model({call})}}, "io.pth")'


def _parameters(model: torch.nn.Module) -> str:
    """Return the names of the arguments of MODEL, those with a default in brackets, for a message to the user."""
    names, needed = arguments(model)
    return printable(", ".join(n if n in needed else f"[{n}]" for n in names) or "any arguments", 160)


def _held(raw: Any) -> list[str]:
    """Return a line, in a list, for a message about RAW, the contents of a file without inputs or outputs: it names up
    to four entries, each with its type and sizes (`_kind`), and how many more there are, or says what RAW is if it is
    no dict. [] if it is an empty dict.
    """
    if not isinstance(raw, MappingOf):
        return [f"it holds {_kind(raw)}, and no names"]
    told = [f"{printable(str(key), 60)} {_kind(value)}" for key, value in list(raw.items())[:4]]
    return [f"it holds {', '.join(told)}{f', … {len(raw) - 4:,} more' if len(raw) > 4 else ''}"] if told else []


def _kind(value: Any) -> str:
    """Return what VALUE is, for a message to the user: the type and sizes of a tensor ("float32[2,3]"), else its class
    ("a list", "an object of class a.B").
    """
    if isinstance(value, torch.Tensor):
        return inputs_text([value])
    if isinstance(value, Inert):
        return f"an object of class {printable(value.class_name, 80)}"
    return f"a {type(value).__name__}"


__all__ = ["Reference", "read_reference"]
