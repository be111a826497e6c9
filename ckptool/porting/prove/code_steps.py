"""The operations of code between its weights, with their settings: activations, scales, padding, the eps of norms.

A checkpoint holds none of them. A step is one operation as torch runs it, with its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

#: Operations between weights that have a setting, or are one. A trailing `_` (in place) is left out.
_BETWEEN = frozenset(
    "relu gelu silu sigmoid tanh elu celu leaky_relu hardswish hardsigmoid hardtanh softplus mish log_sigmoid_forward "
    "_softmax _log_softmax exp sin cos erf sqrt rsqrt square abs clamp clamp_min clamp_max threshold softshrink "
    "hardshrink glu add sub rsub mul div floor_divide pow floor ceil round trunc flip bernoulli "
    "max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d "
    "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d upsample_nearest1d upsample_nearest2d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d".split()
)
#: Operations with weights that have settings.
_WITH_WEIGHTS = frozenset(
    "convolution native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_no_training "
    "_fused_rms_norm mm addmm bmm baddbmm".split()
)
_ATTENTION = "_scaled_dot_product"
#: Arithmetic, which is a step only with a number.
_NUMBERS = frozenset({"add", "sub", "rsub", "mul", "div", "floor_divide", "pow"})
#: Arguments that are sizes and places, not settings; and momentum, which does nothing in eval mode.
_NO_SETTINGS = frozenset(
    "normalized_shape N C HxW momentum dim half_to_float output_size scales scales_h scales_w scale_factors dtype "
    "layout device memory_format generator alpha beta return_debug_mask transposed output_padding input_scale "
    "is_causal".split()
)
#: What stands for a tensor in the arguments of a step.
HERE = object()


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One operation of a forward pass, without its tensors: a scale, an activation, a norm without weights; or one with
    weights that has settings, such as a convolution.

    Attributes:
        number: the place of the step among the steps of the forward pass.
        name: name of the operation, without the underscore of an in-place operation.
        settings: the arguments that are not tensors, sizes or places, as pairs (name, value); those that are None are
            left out.
        func: the function that torch runs.
        args, kwargs: the arguments, with `HERE` in place of each tensor.
    """

    number: int
    name: str
    settings: tuple[tuple[str, Any], ...]
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_attention(self) -> bool:
        """Return whether this step is one of torch's fused attention operations (`scaled_dot_product_attention`)."""
        return self.name.startswith(_ATTENTION)

    @property
    def factor(self) -> float | None:
        """Return the number by which this step multiplies, for `x / 2` its inverse, 0.5. None for other steps (also for
        a division that rounds its result), or if the number is 0 or not finite.
        """
        settings = dict(self.settings)
        number = settings.get("other") if self.name in ("mul", "div") and "rounding_mode" not in settings else None
        if not isinstance(number, bool | float) or not number or not isfinite(number):
            return None
        return float(number) if self.name == "mul" else 1 / number

    @property
    def added(self) -> float | None:
        """Return the number that this step adds, for `x - 2` its negative, -2.0. None for other steps (also `1 - x`),
        or if the number is 0.
        """
        number = dict(self.settings).get("other") if self.name in ("add", "sub") else None
        times = self.kwargs.get("alpha", 1)  # `torch.add(x, 2, alpha=3)` adds 6
        if not isinstance(number, bool | float) or not number or not isinstance(times, int | float):
            return None
        return float(number * times if self.name == "add" else -number * times)


#: What is done in place of a step: it is given the function that does the step, and its arguments.
Swap = Callable[[Any, Sequence[Any], dict[str, Any]], Any]


def is_step(name: str) -> bool:
    """Return whether the operation of torch with this NAME may be recorded as a step, because it has a setting or is
    one: activations (`relu`), arithmetic (`mul`), pooling, padding, upsampling, convolutions, norms, products of
    matrices, softmax, fused attention, the mask of a dropout (`bernoulli`). An underscore at the end (`relu_`) makes no
    difference.
    """
    plain = name.rstrip("_")
    return plain in _BETWEEN or plain in _WITH_WEIGHTS or plain.startswith(_ATTENTION)


def step_of(number: int, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Step | None:
    """Return the call FUNC(*ARGS, **KWARGS) of an operation of torch as a step, with NUMBER as its place in the forward
    pass and with its settings (see `_settings`). The name is not checked (see `is_step`).

    A fused attention operation has one setting, its scale: if none is given, 1 / sqrt(size of a head). None for
    arithmetic (`add`, `mul`, `pow` …) with a tensor as second argument; a tensor without dimensions counts as a number.
    """
    name = func._overloadpacket.__name__.rstrip("_")
    if name in _NUMBERS:
        args = [_as_number(a) if at else a for at, a in enumerate(args)]
        if any(isinstance(a, torch.Tensor) for a in args[1:]):
            return None
    settings = _settings(func, args, kwargs)
    first = next((a for a in args if isinstance(a, torch.Tensor)), None)
    width = first.shape[-1] if first is not None and first.ndim else 0
    if name.startswith(_ATTENTION):
        settings = {"scale": settings.get("scale") or width**-0.5}
    given = tuple(map(_template, args)), {key: _template(value) for key, value in kwargs.items()}
    return Step(number, name, tuple(settings.items()), func, *given)


def _settings(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return name -> value for the arguments of a call FUNC(*ARGS, **KWARGS) that hold no tensor, with the values as
    `_plain` gives them. An argument that is left out has its default value. Not returned are those whose value is None
    (also by `_plain`) and those in `_NO_SETTINGS` (sizes, types, momentum). A stride that is left out is the size of
    the kernel.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    settings = {
        argument.name: _plain(given.get(argument.name, argument.default_value))
        for argument in func._schema.arguments
        if argument.name not in _NO_SETTINGS and not _has_tensor(given.get(argument.name))
    }
    if not settings.get("stride", True):
        settings["stride"] = settings.get("kernel_size")
    return {name: value for name, value in settings.items() if value is not None}


def _has_tensor(value: Any) -> bool:
    """Return whether VALUE is a tensor, or a list or tuple with one in it."""
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_has_tensor, value)))


def _as_number(value: Any) -> Any:
    """Return VALUE as a float if it is a tensor without dimensions, else as it is."""
    return float(value) if isinstance(value, torch.Tensor) and not value.ndim else value


def _plain(value: Any) -> Any:
    """Return VALUE in a form in which equal settings are equal: numbers as floats of nine significant digits, lists as
    tuples, or as their value, if all their values are equal (`[3, 3]` -> 3.0); text, True and False stay. None for
    other objects, and for None.
    """
    if isinstance(value, list | tuple):
        values = tuple(map(_plain, value))
        return values[0] if values and len(set(values)) == 1 else values
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return float(f"{value:.9g}")
    return None


def _template(value: Any) -> Any:
    """Return VALUE with `HERE` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return HERE
    return type(value)(map(_template, value)) if isinstance(value, list | tuple) else value


# ------------------------------------------------------------------------------------------------- swaps


def instead(step: Step) -> Swap:
    """Return a swap: a function that is given a call of the model (operation, arguments) and runs STEP of the source's
    code in its place. STEP gets the tensors of the call, in order, where it had its own tensors, and keeps its other
    arguments; the call may have more tensors than STEP, but not fewer. The swap returns the result; if the call works
    in place, the result is written into its first tensor, else the tensors of the call stay as they are.
    """

    def swap(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run STEP on the tensors of the call."""
        own = [a for a in args if isinstance(a, torch.Tensor)]
        taken = iter(own)
        new = [next(taken) if a is HERE else a for a in step.args]
        new[:1] = [new[0].clone()] if _in_place(step.func) else new[:1]
        made = step.func(*new, **step.kwargs)
        return own[0].copy_(made) if _in_place(func) else made

    return swap


def before(step: Step) -> Swap:
    """Return a swap: a function that runs STEP of the source's code on the input of a call in the model, then the call
    on the result, and returns what the call gives.

    It is for a step that the model's code lacks: for example, a scale of the queries.
    """
    return _on_what_comes(lambda x: instead(step)(step.func, [x.clone()], {}))


def times(factor: float, *, before: bool = False) -> Swap:
    """Return a swap: a function that runs a call of the model and returns its output times FACTOR. With BEFORE, it
    multiplies the input of the call instead. In an attention operation, unless BEFORE, the scale is multiplied.
    """
    if before:
        return _on_what_comes(lambda x: x * factor)

    def swap(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the call, and multiply its output by FACTOR; in an attention operation, its scale."""
        if func._overloadpacket.__name__.startswith(_ATTENTION):
            scale = kwargs.get("scale") or args[0].shape[-1] ** -0.5
            return func(*args, **{**kwargs, "scale": scale * factor})
        made = func(*args, **kwargs)
        return made.mul_(factor) if _in_place(func) else made * factor

    return swap


def _on_what_comes(change: Callable[[torch.Tensor], torch.Tensor]) -> Swap:
    """Return a swap: a function that runs a call on its input as CHANGE returns it, and returns what the call gives; in
    place, if the call works in place. The input is the first argument; where a bias comes first (`addmm`, `baddbmm`),
    the second.
    """

    def swap(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the call on its changed input."""
        at = 1 if func._overloadpacket.__name__ in ("addmm", "baddbmm") else 0  # a bias comes first
        new = change(args[at])
        made = func(*args[:at], new, *args[at + 1 :], **kwargs)
        return args[at].copy_(made) if _in_place(func) else made

    return swap


def left_out(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Skip a call of the model (this is a swap): return its first argument, a copy unless the call works in place. For
    the mask of a dropout, return a tensor full of the probability to keep a number, so that all are kept.
    """
    if func._overloadpacket.__name__.startswith("bernoulli"):
        return args[0].fill_(args[1]) if _in_place(func) else torch.full_like(args[0], args[1])
    return args[0] if _in_place(func) else args[0].clone()


def _in_place(func: Any) -> bool:
    """Return whether FUNC, an operation of torch, works in place: its name ends with "_"."""
    name: str = func._overloadpacket.__name__
    return name.endswith("_")


__all__ = ["HERE", "Step", "Swap", "before", "instead", "is_step", "left_out", "step_of", "times"]
