"""Models without values, for forward passes in which only shapes and the uses of weights matter."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def without_memory(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield two copies of MODEL without values: one on the CPU with zeros that share one element in each tensor, then
    one on the meta device. A copy that cannot be made is left out.

    The first runs on a CPU like any model, also if code reads values, and starts fast: the first pass on the meta
    device imports two seconds of torch. Its buffers and plain attributes of up to a million elements, such as indices
    and masks, keep their values, if they have some. The second is for models whose operations themselves are too big. A
    model whose parameters and buffers are all on the meta device (or that has none) is yielded itself at the end, for
    code that cannot be copied.
    """
    for hollow in (_zeros, _on_meta):
        memo: dict[int, Any] = {}
        for tensor in itertools.chain(model.parameters(), model.buffers(), _attributes(model)):
            made_hollow = hollow(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                made_hollow = torch.nn.Parameter(made_hollow, requires_grad=False)
            memo[id(tensor)] = made_hollow
        with contextlib.suppress(Exception):
            yield _copied(model, memo)
    if all(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers())):
        yield model  # where it cannot be copied: functions that it holds may refer to it


def _attributes(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors that modules in MODEL hold as plain attributes (not in a list or dict), such as the weight that
    a weight norm computes before each call; torch cannot copy them.
    """
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def _copied(model: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
    """Return the same as `copy.deepcopy(model, memo)`, faster. MEMO has id of an object -> the object that takes its
    place in the copy, here of each tensor, and gets those of the modules.

    Modules that are copied in the usual way, by their class and a dict, are made here; deepcopy copies the others.
    """
    states: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        kind: Any = type(module)
        if hasattr(kind, "__deepcopy__") or "__deepcopy__" in vars(module) or kind in copyreg.dispatch_table:
            continue
        made_by = module.__reduce_ex__(4)
        if made_by[:2] == (_NEW, (kind,)) and [type(part) for part in made_by[2:] if part] == [dict]:
            memo[id(module)] = kind.__new__(kind)
            states[id(module)] = made_by[2]
    for at, state in reversed(states.items()):  # so that the parts of a module are complete before it
        memo[at].__setstate__({name: _copy(value, memo) for name, value in state.items()})
    copied: torch.nn.Module = copy.deepcopy(model, memo)
    return copied


#: What copies an object without arguments.
_NEW = copyreg.__newobj__  # type: ignore[attr-defined]


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return the same as `copy.deepcopy(value, memo)`, faster for plain values, dicts and empty containers, which
    modules hold most of. MEMO has id of an object -> its copy, and gets those of the containers that are copied.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is not dict and (kind not in _CONTAINERS or value):
        return copy.deepcopy(value, memo)
    made = memo.get(id(value))
    if made is None:
        made = memo[id(value)] = kind()
        for key, item in value.items() if value else ():
            made[_copy(key, memo)] = _copy(item, memo)
    return made


_PLAIN = frozenset({type(None), bool, int, float, str})
_CONTAINERS = frozenset({OrderedDict, list, set})


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Return zeros in the sizes of TENSOR that share one element; a copy of TENSOR if it has values, at most a million,
    and is no parameter.
    """
    if not tensor.is_meta and tensor.numel() <= _FEW and not isinstance(tensor, torch.nn.Parameter):
        return tensor.detach().clone()  # indices and masks, whose values code may need
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")


#: Elements of a buffer whose values are kept.
_FEW = 1 << 20


def shape_only(name: str, args: Any, kwargs: Any) -> Any:
    """Return a tensor of the shape that the torch function NAME gives for the arguments ARGS and KWARGS, without
    computing it: zeros that share one element. For a recurrent layer, return the tuple of all tensors that it gives.
    None if the function has to run.

    A tensor is hollow here if it has two or more elements, which share one in memory (all strides 0). The known
    functions:

    - functions of each element (`relu`), if their first argument is hollow and on a CPU: a view of it;
    - those that change their first argument in place (`add_`), if that is hollow and on a CPU: that argument itself,
      whatever the types of the others. Sizes of the others have to fit only if it is changed element by element;
    - pools of an input with a batch and channels, if that is hollow, on any device; None for one that gives indices,
      too;
    - `linear`, and convolutions that are not transposed, if the weight is hollow and on a CPU, and the input is
      floating point. A convolution must have no groups and no arguments by keyword;
    - `view_as_complex` of a real tensor, if that is hollow and on a CPU: torch refuses to view zeros that share one
      element;
    - `grouped_mm` of a matrix and a stack of matrices, whatever they hold: zeros with memory of their own;
    - recurrent layers, if no argument is given by keyword (`_after_all_steps`).

    Inputs and weights count only by position. None for all other functions, and if sizes do not fit.
    """
    x = args[0] if args else None
    if not isinstance(x, torch.Tensor):
        return None
    if name in _RECURRENT:
        return None if kwargs else _after_all_steps(x, *args[1:])
    if name in _BY_ELEMENT | _IN_PLACE and x.numel() > 1 and not any(x.stride()) and x.device.type == "cpu":
        # one element in memory for all cannot be changed in place, and its value does not matter
        changed = name in _IN_PLACE or name.endswith("_") or kwargs.get("inplace") or any(one is True for one in args)
        if name in _SUMS and not _fit(x, args[1:]):
            return None
        return x if changed else x.view_as(x)
    if name in _POOLS and x.ndim == int(name[-2]) + 2 and not any(x.stride()) and x.numel() > 1:
        one = getattr(torch.nn.functional, name)(x[:1, :1], *args[1:], **kwargs)
        return one.new_zeros(()).expand(*x.shape[:2], *one.shape[2:]) if isinstance(one, torch.Tensor) else None
    if name == "view_as_complex" and x.is_floating_point() and x.shape[-1:] == (2,) and not any(x.stride()):
        return torch.view_as_complex(x.new_zeros(2)).expand(x.shape[:-1]) if x.device.type == "cpu" else None
    weight = args[1] if len(args) > 1 else None
    if not isinstance(weight, torch.Tensor):
        return None
    if name in _GROUPED and x.ndim == 2 and weight.ndim == 3 and x.shape[1] == weight.shape[1]:
        return x.new_zeros(x.shape[0], weight.shape[2])  # kernels want values that lie apart, and some kinds of numbers
    if weight.device.type != "cpu" or weight.numel() < 2 or any(weight.stride()) or not x.is_floating_point():
        return None
    if name == "linear" and weight.ndim == 2 and x.shape[-1:] == weight.shape[1:]:
        return x.new_zeros(()).expand(*x.shape[:-1], weight.shape[0])
    if name in ("conv1d", "conv2d", "conv3d") and x.ndim == weight.ndim and x.shape[1] == weight.shape[1]:
        sizes = None if kwargs or args[6:] not in ((), (1,)) else _convolved(x.shape[2:], weight.shape[2:], *args[3:6])
        return None if sizes is None else x.new_zeros(()).expand(x.shape[0], weight.shape[0], *sizes)
    return None


def _after_all_steps(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...] | None:
    """Return (outputs, last state) of a recurrent layer of torch on X, with two last states for an LSTM: zeros of the
    right sizes that share one element, because torch itself would take each step, one after the other. REST has the
    other arguments: the states at the beginning, all weights, and settings; if X is packed, the sizes of its batches
    come before these.

    None if torch has to run, which raises its own error for sizes or types that do not fit, and takes an X without a
    batch; and if the weights have values (they are neither on the meta device nor zeros that share one element).
    """
    packed = not (len(rest) > 2 and isinstance(rest[2], bool))
    if len(rest) != 8 or x.ndim != (2 if packed else 3):
        return None
    states, weights, _, layers, _, _, both_ways = rest[packed:][:7]
    states = (states,) if isinstance(states, torch.Tensor) else tuple(states)
    hollow = all(w.is_meta or not any(w.stride()) for w in weights)
    alike = {(t.dtype, t.device) for t in (x, *states, *weights)}
    if not (hollow and len(alike) == 1 and x.is_floating_point() and x.shape[-1] == weights[0].shape[1]):
        return None
    ways, first = 1 + both_ways, states[0]
    batch = first.shape[1] if packed else x.shape[0 if rest[7] else 1]
    sizes = [(ways * layers, batch, size) for size in (weights[1].shape[1], weights[1].shape[0] // 4)]
    if [tuple(state.shape) for state in states] != sizes[: len(states)]:
        return None
    output = x.new_zeros(()).expand(*x.shape[:-1], ways * first.shape[-1])
    return output, *(x.new_zeros(()).expand(state.shape) for state in states)


def _convolved(
    sizes: Sequence[int], kernel: Sequence[int], stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> list[int] | None:
    """Return the sizes of the output of a convolution over SIZES, the spatial sizes of a line, an image or a volume,
    with a kernel of the sizes KERNEL: [16, 16] for [32, 32], (3, 3), STRIDE 2 and PADDING 1. STRIDE, PADDING and
    DILATION are one number, or one for each dimension.

    None if torch has to compute them, because one of these three is no plain number ("same") or out of range, or if no
    output is left.
    """
    each = [
        tuple(n) * (len(sizes) if len(n) == 1 else 1) if isinstance(n, tuple | list) else (n,) * len(sizes)
        for n in (stride, padding, dilation)
    ]
    if any(len(numbers) != len(sizes) or not all(type(n) is int for n in numbers) for numbers in each):
        return None  # padding may be "same", and sizes of a traced model no numbers
    found = [
        (size + 2 * pad - far * (span - 1) - 1) // step + 1
        for size, span, step, pad, far in zip(sizes, kernel, *each, strict=True)
        if step > 0 and pad >= 0 and far > 0
    ]
    return found if len(found) == len(sizes) and min(found) > 0 else None


_POOLS = frozenset(
    f"{kind}_pool{dims}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for dims in (1, 2, 3)
)
_RECURRENT = frozenset({"rnn_tanh", "rnn_relu", "gru", "lstm"})
#: Rows by one of several matrices each, as mixtures of experts do.
_GROUPED = frozenset({"grouped_mm", "_grouped_mm"})
#: Functions of each element, also in place.
_BY_ELEMENT = frozenset(
    "relu relu_ relu6 leaky_relu leaky_relu_ gelu silu mish elu elu_ selu hardswish hardsigmoid sigmoid tanh "
    "dropout dropout1d dropout2d dropout3d feature_dropout softplus hardtanh hardtanh_ prelu".split()
)
#: Functions that change their first argument in place, and not its sizes.
_IN_PLACE = frozenset(
    "__iadd__ __isub__ __imul__ __itruediv__ __setitem__ add_ sub_ mul_ div_ addcmul_ addcdiv_ clamp_ clamp_min_ "
    "clamp_max_ copy_ fill_ zero_ masked_fill_ index_add_ index_copy_ scatter_ scatter_add_ sigmoid_ tanh_ exp_ sqrt_ "
    "neg_ normal_ uniform_ dropout_".split()
)
#: Those of them that compute with other tensors element by element.
_SUMS = frozenset("__iadd__ __isub__ __imul__ __itruediv__ add_ sub_ mul_ div_ addcmul_ addcdiv_ copy_".split())


def _fit(x: torch.Tensor, others: Sequence[Any]) -> bool:
    """Return whether each tensor of OTHERS can be broadcast to the sizes of X."""
    sizes = [tuple(one.shape) for one in others if isinstance(one, torch.Tensor)]
    pairs = ((a, b) for one in sizes for a, b in zip(reversed(x.shape), reversed(one), strict=False))
    return all(len(one) <= x.ndim for one in sizes) and all(b in (a, 1) for a, b in pairs)


__all__ = ["shape_only", "without_memory"]
