"""Follow a forward pass: record every operation that takes a weight, where torch runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from contextlib import nullcontext
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...model_code.in_eval import in_eval
from ...model_code.inputs import leaves, with_leaves
from .. import expression as ex
from ..expression import Expr
from .calling import Mode, called, placed, tensors
from .code_steps import Step, Swap, is_step, step_of
from .derived import Derived
from .fingerprints import fingerprints
from .flow import Flow, Held, Use
from .precision import Wider, in_double
from .views import Base, viewed

_SEED = 20


def follow(
    model: torch.nn.Module,
    inputs: Any,
    *,
    bare: bool = False,
    wider: bool = False,
    swaps: MappingOf[int, Swap] = MappingProxyType({}),
) -> Flow | None:
    """Run MODEL once in eval mode on copies of INPUTS and return its flow: each operation that took a weight, in the
    order of execution, and the floating point outputs. None if the model raises.

    Afterwards the training mode of MODEL, its weights and the state of random numbers are as before.

    Args:
        model: the model.
        inputs: a sequence (by position) or a dict (by name).
        bare: also record the outputs of layers before their biases are added, for a model that adds these later.
        wider: compute in float64.
        swaps: functions to run in place of some steps (operations without weights): number of the step -> function.
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
    """Run MODEL once in eval mode on copies of INPUTS, with the same random numbers in each call, and return (output,
    None), or (None, the exception) if the model raises. RECORDER, if it is not None, records the operations. With
    WIDER, inputs and operations are in float64; the weights are not converted here (see `in_double`).
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


class _Recorder(Mode):
    """A mode that records in `uses` each operation of a forward pass that takes data and a weight of MODEL. A tensor is
    data if it is computed from the inputs (`flows`), or from floating point zeros that the code makes, such as the
    first state of a recurrent layer. What an operation makes of weights without data counts as a weight, too.

    Args:
        model: the model, whose parameters and buffers with a key are the weights. Of several keys of one tensor, the
            first counts; tensors without elements are no weights.
        bare: also record the outputs of layers before their biases are added.
        swaps: number of a step -> the function that runs in its place.
    """

    def __init__(self, model: torch.nn.Module, bare: bool, swaps: MappingOf[int, Swap]) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self._bare, self._swaps = bare, swaps
        self._count = 0
        self._step: Step | None = None  # the one that is being done
        self._before: frozenset[int] = frozenset()  # the uses that its data comes from
        self._chain: tuple[Step, ...] = ()  # the steps before it, since the last use of weights
        self._chains: dict[int, tuple[Step, ...]] = {}
        self._bases: dict[int, list[Base]] = {}
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
        """Record that TENSOR is made only of the weights KEYS, by the expression EXPR over these, if there is one."""
        base = Base(keys, expr, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.numel())
        self._bases.setdefault(self._place(tensor), []).append(base)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        result = self._done(func, name, args, kwargs)
        taken, out = list(tensors((args, kwargs))), list(tensors(result))
        if name in _STATES and out[0].is_floating_point():  # what a recurrent layer begins with
            self._flowing.setdefault(self._place(out[0]), frozenset())
        places = {self._place(t) for t in taken}
        held = [t for t in taken if self._place(t) not in self._flowing and self._place(t) in self._bases]
        if not places.isdisjoint(self._flowing):
            if out:
                self._before = frozenset().union(*(self._flowing.get(place, ()) for place in places))
                self._chain = self._steps_before(places)
                if held:
                    self._note(name, args, kwargs, out[0])
                self._flow_on(out, places, after_weights=bool(held))
        elif held:
            for one in out:
                if one.numel() and self._place(one) not in places:
                    self._derive(name, args, kwargs, held, one)
        return result

    def _flow_on(self, out: Iterable[torch.Tensor], taken: set[int], *, after_weights: bool) -> None:
        """Record for each tensor of OUT, the outputs of the present operation, that it is data, from which uses of
        weights it is computed (`_before`), and by which steps since these: `_chain`, and the operation itself if it is
        a step.

        If the operation is a use of weights itself (AFTER_WEIGHTS), there are no steps since. Else, for an output in
        the storage of an input (an operation in place), the uses recorded for that storage before count as well. TAKEN
        are the numbers (`_place`) of the storages of its inputs.
        """
        for one in out:
            place = self._place(one)
            old = self._flowing.get(place, frozenset()) if place in taken and not after_weights else frozenset()
            self._flowing[place] = self._before | old
            steps = () if after_weights else self._chain if self._step is None else (*self._chain, self._step)
            if steps or place in self._chains:
                self._chains[place] = steps

    def _done(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run the operation FUNC of torch, called NAME, with ARGS and KWARGS, and return its output.

        If NAME is that of a step (`is_step`) and an argument is data, the operation gets the next number, the step is
        noted in `_step` (None for arithmetic of two tensors, see `step_of`), and the swap with this number, if there is
        one, runs in place of FUNC. Else `_step` is None, and FUNC just runs.
        """
        self._step = None
        if not is_step(name) or not any(self._place(t) in self._flowing for t in tensors((args, kwargs))):
            return func(*args, **kwargs)
        self._step = step_of(self._count, func, args, kwargs)
        self._count += 1
        swap = self._swaps.get(self._count - 1)
        return func(*args, **kwargs) if swap is None else swap(func, args, kwargs)

    def _steps_before(self, places: Iterable[int]) -> tuple[Step, ...]:
        """Return the steps (operations without weights) by which the tensors in the storages PLACES are computed since
        the last uses of weights, in the order of execution, each once; () if there are none.
        """
        chains = {steps for place in places if (steps := self._chains.get(place))}
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
        """Return VALUE as a `Held` (keys, expression over them, sizes) if it is a tensor made only of weights. None if
        it is data, is made of no recorded weight, or is no tensor.

        VALUE counts as a view of the recorded tensor in its storage that holds its first element, else of the first
        one recorded there. The expression is None if no expression makes this view.
        """
        if not isinstance(value, torch.Tensor) or self._place(value) in self._flowing:
            return None
        bases = self._bases.get(self._place(value), ())
        offset = value.storage_offset()
        base = next((b for b in bases if b.offset <= offset < b.offset + max(b.numel, 1)), bases[0] if bases else None)
        if base is None:
            return None
        return Held(base.keys, None if base.expr is None else viewed(base, value), tuple(value.shape))

    def _expression(self, tensor: torch.Tensor) -> Expr | None:
        """Return the expression of TENSOR over keys; None if it is not made only of weights, or by no expression."""
        held = self.held(tensor)
        return None if held is None else held.expr

    def _derive(self, name: str, args: Any, kwargs: Any, held: list[torch.Tensor], out: torch.Tensor) -> None:
        """Record that OUT, the output of the operation NAME with ARGS and KWARGS, is made only of the weights HELD. OUT
        gets an expression over their keys if each of HELD has one and an operation of expressions does the same as
        NAME; else its expression is None.
        """
        parts = [p for p in map(self.held, held) if p is not None]
        keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
        known = all(part.expr is not None for part in parts)
        expr = self._derived.of(name, args, kwargs, out) if known else None
        self._hold(out, keys, expr)

    # -- uses

    def _note(self, name: str, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        """Add to `uses` the operation NAME, which takes data and weights, with its arguments ARGS and KWARGS and its
        output OUT: as "linear", a convolution, "norm", "table", "scale" or "shift", else under its own NAME. In the
        last case, the role of a weight is its place among all tensors in the arguments ("0", "1" …), the channels are
        along the last dimension, and the input counts as unknown. A norm has its channels along the last dimension if
        it is a layer norm or an RMS norm, else along dimension 1. The input of a table is all indices, as one channel.
        The operation becomes several uses if it computes several layers at once.

        `_before`, the indices of the uses from which the present data is computed, is then those of the added uses; it
        stays if none was added.
        """
        flat = list(args)
        first = len(self.uses)
        if name in _PRODUCTS:
            self._product(name, flat, out)
        elif name == "convolution" and any(map(self.held, flat[1:3])):
            self._convolution(flat, out)
        elif name in _NORMS:
            dim = -1 if "layer" in name or "rms" in name else 1
            roles = {role: self.held(flat[at]) for at, role in _NORMS[name].items() if at < len(flat)}
            self._add("norm", roles, fingerprints(flat[0], dim), fingerprints(out, dim))
        elif name in _TABLES and self.held(flat[0]) is not None:
            ids = next((t for t in tensors(flat[1:]) if self._place(t) in self._flowing), None)
            taken = None if ids is None else fingerprints(ids.reshape(1, -1), 0)
            self._add("table", {"weight": self.held(flat[0])}, taken, fingerprints(out, -1))
        elif name in _SCALES | _SHIFTS and len(flat) > 1:
            self._scale_or_shift(name, flat, out)
        else:
            roles = {f"{i}": self.held(t) for i, t in enumerate(tensors((args, kwargs)))}
            self._add(name, roles, None, fingerprints(out, -1))
        self._before = frozenset(range(first, len(self.uses))) or self._before

    def _convolution(self, args: Sequence[Any], out: torch.Tensor) -> None:
        """Add to `uses` a convolution with ARGS, the arguments of torch's `convolution`, and the output OUT. It is a
        "deconv" if it is transposed, else a "conv"; with several groups "depthwise" if its weight has the sizes
        [groups, 1, …], else "grouped conv" or "grouped deconv". Only "conv" and "depthwise" get the fingerprints of
        their input.
        """
        weight, groups = self.held(args[1]), int(args[8])
        kind = "deconv" if args[6] else "conv"
        if groups > 1:
            kind = "depthwise" if weight is not None and weight.shape[:2] == (groups, 1) else f"grouped {kind}"
        taken = fingerprints(args[0], 1) if kind in ("conv", "depthwise") else None
        roles = {"weight": weight, "bias": self.held(args[2])}
        self._add(kind, roles, taken, fingerprints(out, 1), self._without(out, args[2], 1))

    def _scale_or_shift(self, name: str, args: Sequence[Any], out: torch.Tensor) -> None:
        """Add to `uses` the operation NAME with the output OUT, whose first two ARGS are data and a weight, in either
        order: as a "scale" with a "weight" if NAME multiplies or divides, as a "shift" with a "bias" if it adds or
        subtracts. Its channels are along the last dimension in which the weight has more than one number; along the
        last, if there is none.

        If the data is computed from several uses, the weight has two or three dimensions with one row for each of these
        uses, and the data has as many rows in the same dimension, the weight is a stack: row n becomes a use of its
        own, with the n-th of those uses as the only one before it.
        """
        x, weight = (args[0], args[1]) if self.held(args[0]) is None else (args[1], args[0])
        role, kind = ("weight", "scale") if name in _SCALES else ("bias", "shift")
        members = sorted(self._before)
        at = x.ndim - weight.ndim
        stacked = weight.ndim in (2, 3) and x.shape == out.shape and at >= 0
        if stacked and 1 < len(members) == len(weight) == x.shape[at]:  # several layers at once
            for n, one in enumerate(members):
                taken, given = (fingerprints(t.select(at, n), -1) for t in (x, out))
                self._add(kind, {role: self.held(weight[n])}, taken, given, before=frozenset({one}))
            return
        dim = next((d for d in range(-1, -weight.ndim - 1, -1) if weight.shape[d] > 1), -1) if weight.ndim else -1
        taken = fingerprints(x, dim) if x.ndim >= -dim else None
        self._add(kind, {role: self.held(weight)}, taken, fingerprints(out, dim))

    def _product(self, name: str, args: list[Any], out: torch.Tensor) -> None:
        """Add to `uses` the product of matrices NAME (`mm`, `addmm`, `bmm` …) with the output OUT: a "linear" layer,
        whichever of the two matrices is the weight; one for each member of a stack of weights; or a "shift" if neither
        matrix is a weight, and the added bias is.

        If NAME adds a bias (`addmm`, `baddbmm` …), the bias is the first of ARGS, and is removed from this list.
        """
        bias = args.pop(0) if name.startswith(("add", "badd")) else None
        a, b = args[0], args[1]
        if self.held(a) is None and self.held(b) is None:
            self._add("shift", {"bias": self.held(bias)}, None, fingerprints(out, -1))
            return
        if self.held(a) is not None:  # W x = (x^T W^T)^T
            if b.ndim < 2:
                self._add("linear", {"weight": self.held(a), "bias": self.held(bias)}, None, fingerprints(out, -1))
                return
            a, b, out = b.mT, a.mT, out.mT
        if b.ndim == 3 and b.stride(0) and len(b) > 1:
            for n in range(len(b)):
                roles = {"weight": self.held(b[n].mT)}
                if isinstance(bias, torch.Tensor) and bias.ndim == 3 and len(bias) == len(b):
                    roles["bias"] = self.held(bias[n])
                self._add("linear", roles, fingerprints(a[n], -1), fingerprints(out[n], -1))
            return
        weight = b[0] if b.ndim == 3 else b
        roles = {"weight": self.held(weight.mT if weight.ndim == 2 else weight), "bias": self.held(bias)}
        self._add("linear", roles, fingerprints(a, -1), fingerprints(out, -1), self._without(out, bias, -1))

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
        bare: torch.Tensor | None = None,
        before: frozenset[int] | None = None,
    ) -> None:
        """Add a use of KIND at the end of `uses`, with the weights in ROLES (role -> weight) that are not None. Nothing
        is added if all are None. TAKEN, GIVEN and BARE are the fingerprints of its input, of its output, and of its
        output without the bias; None if not known.

        BEFORE has the indices of the uses from whose outputs its input is computed; if it is None, `_before` counts.
        """
        held = {role: one for role, one in roles.items() if one is not None}
        if held:
            before = self._before if before is None else before
            self.uses.append(Use(len(self.uses), kind, held, taken, given, before, bare, self._chain, self._step))


__all__ = ["attempt", "follow"]
