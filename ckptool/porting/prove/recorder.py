"""Follow a forward pass: record every operation that takes a weight, where torch runs it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import printable
from ...model_code.in_eval import in_eval
from ...model_code.inputs import leaves, with_leaves
from .. import expression as ex
from ..expression import Expr, Shape
from .code_steps import Step, Swap, is_step, step_of
from .derived import Derived
from .fingerprints import fingerprints
from .flow import Flow, Held, Place, Use
from .precision import Wider, in_double

_SEED = 20


def follow(
    model: torch.nn.Module,
    inputs: Any,
    *,
    bare: bool = False,
    wider: bool = False,
    swaps: MappingOf[int, Swap] = MappingProxyType({}),
) -> Flow | None:
    """Run MODEL in eval mode on INPUTS and return its flow; None if the model raises.

    Its training mode, weights and the state of random numbers are as before afterwards.
    Args:
        model: the model.
        inputs: a sequence (by position) or a dict (by name).
        bare: also record the outputs of layers before their biases are added, for a model that adds these later.
        wider: compute in float64.
        swaps: functions to run in place of some steps: number of the step -> function.
    """
    with in_double(model) if wider else nullcontext():
        recorder = _Recorder(model, bare, swaps)
        out, error = attempt(model, inputs, recorder, wider=wider)
    if error is not None:
        return None
    given = [(place, t) for place, t in placed(out) if t.is_floating_point()]
    found = [t for _, t in given]
    behind = [recorder.feeding(t) for t in found]
    places = [place for place, _ in given]
    return Flow(recorder.uses, found, behind, [recorder.steps_to(t) for t in found], places)


def attempt(
    model: torch.nn.Module, inputs: Any, recorder: _Recorder | None = None, *, wider: bool = False
) -> tuple[Any, None] | tuple[None, Exception]:
    """Run MODEL in eval mode on copies of INPUTS, with the same random numbers each time, and return (output, None), or
    (None, the exception) if it raises. RECORDER records the operations; WIDER computes in float64, but leaves the
    weights as they are.
    """
    given = {id(t): t.clone() for t in tensors(inputs)}  # code may change what it is given
    if wider:
        given = {key: t.double() if t.is_floating_point() else t for key, t in given.items()}
    copied = with_leaves(inputs, [given.get(id(one), one) for _, one in leaves(inputs)])
    if recorder is not None:
        recorder.flows(given.values())
    modes = recorder or nullcontext(), Wider() if wider else nullcontext()
    try:
        with in_eval(model), torch.backends.mkldnn.flags(enabled=False), modes[0], modes[1]:
            torch.manual_seed(_SEED)
            return called(model, copied), None
    except Exception as error:
        return None, error


def first_line(error: Exception) -> str:
    """Return "CLASS: MESSAGE" for an exception, with the first line of its message that is not empty, up to 200
    characters and without a full stop at its end, or "no message".
    """
    lines = (line.strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {printable(next((line for line in lines if line), 'no message'), 200).rstrip('.')}"


def arguments(model: torch.nn.Module) -> tuple[list[str], list[str]]:
    """Return (the names of the arguments of MODEL's forward pass, those among them that have no default), without
    `*args` and `**kwargs`. Both are empty if its signature cannot be read.
    """
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return [], []
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [p.name for p in named], [p.name for p in named if p.default is p.empty]


def called(model: torch.nn.Module, inputs: Any) -> Any:
    """Return the output of MODEL for INPUTS, a dict (by name) or a sequence (by position)."""
    return model(**inputs) if isinstance(inputs, MappingOf) else model(*inputs)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in VALUE (lists, tuples, dicts and dataclasses within each other), in their order; nothing for
    other values.
    """
    return (tensor for _, tensor in placed(value))


def placed(value: Any, place: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    """Yield (place, tensor) for all tensors in VALUE (lists, tuples, dicts and dataclasses within each other), in their
    order; a place is the keys, names of fields and indices that lead to the tensor, after the beginning PLACE.
    """
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, MappingOf):
        for key, item in value.items():
            yield from placed(item, (*place, key if isinstance(key, int) else str(key)))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=False):
            yield from placed(item, (*place, str(name)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from placed(item, (*place, index))
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from placed(getattr(value, name, None), (*place, name))


@dataclass(slots=True)
class _Base:
    """A tensor made only of weights, by its layout in its storage.

    Attributes:
        keys: the keys of the state dict that the tensor is made of.
        expr: the expression over these keys that makes this tensor; None if no expression does.
        shape, stride, offset, numel: the layout of this tensor in the storage.
    """

    keys: tuple[str, ...]
    expr: Expr | None
    shape: Shape
    stride: tuple[int, ...]
    offset: int
    numel: int


_NORMS = {
    "native_layer_norm": {2: "weight", 3: "bias"},
    "native_group_norm": {1: "weight", 2: "bias"},
    "native_batch_norm": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "_native_batch_norm_legit_no_training": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "_fused_rms_norm": {2: "weight"},
}
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv"})
_SCALES = frozenset({"mul", "mul_", "div", "div_"})
_SHIFTS = frozenset({"add", "add_", "sub", "sub_", "rsub"})
_TABLES = frozenset({"embedding", "index", "index_select", "gather", "embedding_bag"})
_STATES = frozenset({"zeros", "zeros_like", "new_zeros"})


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, model: torch.nn.Module, bare: bool, swaps: MappingOf[int, Swap]) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self._bare, self._swaps = bare, swaps
        self._count = 0
        self._step: Step | None = None  # the one that is being done
        self._chain: tuple[Step, ...] = ()  # the steps before it, since the last use of weights
        self._chains: dict[int, tuple[Step, ...]] = {}
        self._bases: dict[int, list[_Base]] = {}
        self._flowing: dict[int, frozenset[int]] = {}
        self._places: dict[int, StorageWeakRef] = {}
        self._derived = Derived(self._expression, {})
        live = chain(model.named_parameters(remove_duplicate=True), model.named_buffers(remove_duplicate=True))
        state = model.state_dict(keep_vars=True)
        names = {id(t): key for key, t in reversed(state.items()) if isinstance(t, torch.Tensor)}
        for _, tensor in live:
            key = names.get(id(tensor))
            if key is not None and tensor.numel():
                self._derived.shapes[key] = tuple(tensor.shape)
                self._hold(tensor, (key,), ex.of(key))

    def flows(self, given: Iterable[torch.Tensor]) -> None:
        """Mark the tensors GIVEN as inputs of the model: what is computed from them is data, not weights."""
        for tensor in given:
            self._flowing[self._place(tensor)] = frozenset()

    def feeding(self, tensor: torch.Tensor) -> frozenset[int]:
        """Return the indices of the uses of weights from whose outputs TENSOR is computed, without another use in
        between; empty if there is none.
        """
        return self._flowing.get(self._place(tensor), frozenset())

    def steps_to(self, tensor: torch.Tensor) -> tuple[Step, ...]:
        """Return the steps between the last uses of weights and TENSOR, which is computed from their outputs, in order;
        () if there is none.
        """
        return self._chains.get(self._place(tensor), ())

    def _hold(self, tensor: torch.Tensor, keys: tuple[str, ...], expr: Expr | None) -> None:
        base = _Base(keys, expr, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.numel())
        self._bases.setdefault(self._place(tensor), []).append(base)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        result = self._done(func, name, args, kwargs)
        taken = list(tensors((args, kwargs)))
        out = list(tensors(result))
        if name in _STATES and out[0].is_floating_point():  # what a recurrent layer begins with
            self._flowing.setdefault(self._place(out[0]), frozenset())
        if not out or not taken:
            return result
        flowing = [t for t in taken if self._place(t) in self._flowing]
        held = [t for t in taken if self._place(t) not in self._flowing and self._place(t) in self._bases]
        places = {self._place(t) for t in taken}
        if not flowing:
            new = [t for t in out if t.numel() and self._place(t) not in places]
            if held:
                for one in new:
                    self._derive(name, args, kwargs, held, one)
            return result
        before = frozenset(chain.from_iterable(self._flowing[self._place(t)] for t in flowing))
        self._chain = self._steps_before(flowing)
        if held:
            first = len(self.uses)
            self._note(name, args, kwargs, out[0], before)
            before = frozenset(range(first, len(self.uses))) or before
        for one in out:
            place = self._place(one)
            old = self._flowing.get(place, frozenset()) if place in places and not held else frozenset()
            self._flowing[place] = before | old
            steps = () if held else self._chain if self._step is None else (*self._chain, self._step)
            if steps or place in self._chains:
                self._chains[place] = steps
        return result

    def _done(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run an operation FUNC of torch, called NAME, or the swap that replaces its step, and return the output. The
        step is noted as the present one; None for operations that are no steps or take no data.
        """
        self._step = None
        if not is_step(name) or not any(self._place(t) in self._flowing for t in tensors((args, kwargs))):
            return func(*args, **kwargs)
        self._step = step_of(self._count, func, args, kwargs)
        self._count += 1
        swap = self._swaps.get(self._count - 1)
        return func(*args, **kwargs) if swap is None else swap(func, args, kwargs)

    def _steps_before(self, flowing: Iterable[torch.Tensor]) -> tuple[Step, ...]:
        chains = {steps for t in flowing if (steps := self._chains.get(self._place(t)))}
        if len(chains) < 2:
            return next(iter(chains), ())
        found = {step.number: step for steps in chains for step in steps}
        return tuple(found[number] for number in sorted(found))

    def _place(self, tensor: torch.Tensor) -> int:
        """Return a number that identifies the storage of TENSOR in this forward pass: no other storage gets it, also
        after this one is freed. Its values are not kept.
        """
        storage = tensor.untyped_storage()
        place: int = storage._cdata
        if place not in self._places:  # which keeps the address from being given to another
            self._places[place] = StorageWeakRef(storage)
        return place

    # -- weights

    def held(self, value: Any) -> Held | None:
        """Return VALUE as a `Held` if it is a tensor made only of weights; else None. Its expression is None if none
        makes this view of them.
        """
        if not isinstance(value, torch.Tensor) or self._place(value) in self._flowing:
            return None
        bases = self._bases.get(self._place(value), ())
        offset = value.storage_offset()
        base = next((b for b in bases if b.offset <= offset < b.offset + max(b.numel, 1)), bases[0] if bases else None)
        if base is None:
            return None
        return Held(base.keys, None if base.expr is None else _viewed(base, value), tuple(value.shape))

    def _expression(self, tensor: torch.Tensor) -> Expr | None:
        held = self.held(tensor)
        return None if held is None else held.expr

    def _derive(self, name: str, args: Any, kwargs: Any, held: list[torch.Tensor], out: torch.Tensor) -> None:
        """Record that OUT, the output of the operation NAME, is made only of the weights HELD. OUT has an expression if
        an operation of expressions does the same.
        """
        parts = [p for p in map(self.held, held) if p is not None]
        keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
        known = all(part.expr is not None for part in parts)
        expr = self._derived.of(name, args, kwargs, out) if known else None
        self._hold(out, keys, expr)

    # -- uses

    def _note(self, name: str, args: Any, kwargs: Any, out: torch.Tensor, before: frozenset[int]) -> None:
        flat = list(args)
        if name in _PRODUCTS:
            self._product(name, flat, out, before)
        elif name == "convolution" and any(map(self.held, flat[1:3])):
            weight, bias = self.held(flat[1]), self.held(flat[2])
            roles = {"weight": weight, "bias": bias}
            kind = "deconv" if flat[6] else "conv"
            groups = int(flat[8])
            if groups > 1:
                kind = "depthwise" if weight is not None and weight.shape[:2] == (groups, 1) else f"grouped {kind}"
            taken = fingerprints(flat[0], 1) if kind in ("conv", "depthwise") else None
            self._add(kind, roles, taken, fingerprints(out, 1), before, self._without(out, flat[2], 1))
        elif name in _NORMS:
            dim = -1 if "layer" in name or "rms" in name else 1
            roles = {role: self.held(flat[at]) for at, role in _NORMS[name].items() if at < len(flat)}
            self._add("norm", roles, fingerprints(flat[0], dim), fingerprints(out, dim), before)
        elif name in _TABLES and self.held(flat[0]) is not None:
            ids = next((t for t in tensors(flat[1:]) if self._place(t) in self._flowing), None)
            taken = None if ids is None else fingerprints(ids.reshape(1, -1), 0)
            self._add("table", {"weight": self.held(flat[0])}, taken, fingerprints(out, -1), before)
        elif name in _SCALES | _SHIFTS and len(flat) > 1:
            x, weight = (flat[0], flat[1]) if self.held(flat[0]) is None else (flat[1], flat[0])
            role, kind = ("weight", "scale") if name in _SCALES else ("bias", "shift")
            members = sorted(before)
            at = x.ndim - weight.ndim if isinstance(x, torch.Tensor) else -1
            if (
                weight.ndim in (2, 3)
                and x.shape == out.shape
                and at >= 0
                and len(weight) == x.shape[at] == len(members)
            ):
                for n, one in enumerate(members if len(members) > 1 else ()):  # several layers at once
                    taken, given = (fingerprints(t.select(at, n), -1) for t in (x, out))
                    self._add(kind, {role: self.held(weight[n])}, taken, given, frozenset({one}))
                if len(members) > 1:
                    return
            dim = next((d for d in range(-1, -weight.ndim - 1, -1) if weight.shape[d] > 1), -1) if weight.ndim else -1
            taken = fingerprints(x, dim) if isinstance(x, torch.Tensor) and x.ndim >= -dim else None
            self._add(kind, {role: self.held(weight)}, taken, fingerprints(out, dim), before)
        else:
            roles = {f"{i}": self.held(t) for i, t in enumerate(tensors((args, kwargs)))}
            self._add(name, roles, None, fingerprints(out, -1), before)

    def _product(self, name: str, args: list[Any], out: torch.Tensor, before: frozenset[int]) -> None:
        bias = args.pop(0) if name.startswith(("add", "badd")) else None
        a, b = args[0], args[1]
        weights_right = self.held(b) is not None and self.held(a) is None
        if not weights_right and self.held(a) is None:  # only the bias is one
            self._add("shift", {"bias": self.held(bias)}, None, fingerprints(out, -1), before)
            return
        if not weights_right:  # W x = (x^T W^T)^T
            if b.ndim < 2:
                self._add("linear", {"weight": self.held(a)}, None, fingerprints(out, -1), before)
                return
            a, b, out = b.mT, a.mT, out.mT
        if b.ndim == 3 and b.stride(0) and len(b) > 1:
            for n in range(len(b)):
                roles = {"weight": self.held(b[n].mT)}
                if isinstance(bias, torch.Tensor) and bias.ndim == 3 and len(bias) == len(b):
                    roles["bias"] = self.held(bias[n])
                self._add("linear", roles, fingerprints(a[n], -1), fingerprints(out[n], -1), before)
            return
        weight = b[0] if b.ndim == 3 else b
        roles = {"weight": self.held(weight.mT if weight.ndim == 2 else weight), "bias": self.held(bias)}
        self._add("linear", roles, fingerprints(a, -1), fingerprints(out, -1), before, self._without(out, bias, -1))

    def _without(self, out: torch.Tensor, bias: Any, dim: int) -> torch.Tensor | None:
        """Return the fingerprints along DIM of the output OUT without its BIAS. None if the recorder was not asked for
        them, or if BIAS is no tensor with a number for each channel.
        """
        if not self._bare or not isinstance(bias, torch.Tensor) or bias.numel() != out.shape[dim]:
            return None
        sizes = [-1 if d == dim % out.ndim else 1 for d in range(out.ndim)]
        return fingerprints(out - bias.reshape(sizes), dim)

    def _add(
        self,
        kind: str,
        roles: MappingOf[str, Held | None],
        taken: torch.Tensor | None,
        given: torch.Tensor,
        before: frozenset[int],
        bare: torch.Tensor | None = None,
    ) -> None:
        held = {role: one for role, one in roles.items() if one is not None}
        if held:
            steps = self._chain
            self.uses.append(Use(len(self.uses), kind, held, taken, given, before, bare, steps, self._step))


def _viewed(base: _Base, view: torch.Tensor) -> Expr | None:
    """Return VIEW, a view of a storage, as an expression over BASE, a tensor in that storage with an expression: BASE
    itself, a part of it with its dimensions in another order, or a reshaped part, if one of its strides is none of BASE
    (`_reshaped`). None if VIEW begins at no element of BASE, or repeats numbers.
    """
    assert base.expr is not None
    shape, stride = tuple(view.shape), view.stride()
    if shape == base.shape and (stride == base.stride or view.numel() == 1):
        return base.expr
    starts, rest = [0] * len(base.shape), view.storage_offset() - base.offset
    dims = sorted((d for d in range(len(base.shape)) if base.shape[d] > 1), key=lambda d: -base.stride[d])
    for d in dims:
        starts[d], rest = divmod(rest, base.stride[d])
    if rest:
        return None
    wanted = [(n, s) for n, s in zip(shape, stride, strict=True) if n > 1 and s]
    free = list(dims)
    order: list[int] = []
    for n, s in wanted:
        found = next((d for d in free if base.stride[d] == s and starts[d] + n <= base.shape[d]), None)
        if found is None:
            return _reshaped(base, view, starts, dims)
        free.remove(found)
        order.append(found)
    counts = {d: n for d, (n, _) in zip(order, wanted, strict=True)}
    x = _cut(base, starts, counts)
    kept = [counts.get(d, 1) for d in range(len(base.shape))]
    still = [d for d in range(len(base.shape)) if kept[d] > 1]
    if order != sorted(order):
        x = ex.reshape(x, [kept[d] for d in still], kept)
        places = [still.index(d) for d in order]
        x = ex.transpose(x) if places == [1, 0] else ex.permute(x, *places)
        kept = [kept[d] for d in order]
    small = tuple(n for n, s in zip(shape, stride, strict=True) if not (n > 1 and not s))
    return ex.reshape(x, small, kept) if prod(small) == prod(kept) else None


def _cut(base: _Base, starts: Sequence[int], counts: MappingOf[int, int]) -> Expr:
    assert base.expr is not None
    x = base.expr
    for d, size in enumerate(base.shape):
        n = counts.get(d, 1)
        if (starts[d], n) != (0, size):
            x = ex.part(x, d, starts[d], starts[d] + n)
    return x


def _reshaped(base: _Base, view: torch.Tensor, starts: Sequence[int], dims: Sequence[int]) -> Expr | None:
    """Return VIEW, a contiguous view of whole rows of BASE (of its first dimension larger than 1), perhaps with its
    last two dimensions exchanged, as an expression; None for other views. STARTS has the first index along each
    dimension, DIMS the dimensions larger than 1, those with larger strides first.
    """
    if not dims or any(starts[d] for d in dims[1:]) or list(dims) != sorted(dims):
        return None
    turned = not view.is_contiguous()
    plain = view.mT if turned and view.ndim >= 2 else view
    inner = prod(base.shape[d] for d in dims[1:])
    if not plain.is_contiguous() or plain.numel() % inner or base.stride[dims[0]] != inner:
        return None
    x = _cut(base, starts, {d: base.shape[d] for d in dims} | {dims[0]: plain.numel() // inner})
    x = ex.reshape(x, tuple(plain.shape))
    return ex.transpose(x) if turned else x


__all__ = ["arguments", "attempt", "called", "first_line", "follow", "tensors"]
