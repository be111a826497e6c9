"""What flows through a model: each use of its weights in a forward pass, with what goes in and what comes out.

Every operation is seen where torch runs it (a `TorchDispatchMode`), so that code may use its weights as it likes: in
layers, as bare parameters, in slices, transposed, joined. What goes in and out is kept as one fingerprint for each
channel, which neither the layout nor the order of channels and positions changes: the same channels in two models are
found whatever each of them makes of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import expression as ex
from .expression import Expr, Shape
from .pieces import substituted

_SEED = 20


@dataclass(frozen=True, slots=True)
class Held:
    """A weight as an operation takes it.

    Attributes:
        keys: of the state dict, that it is made of.
        expr: how, as an expression over those keys; None where no expression says it.
        shape: its sizes there, outputs first.
    """

    keys: tuple[str, ...]
    expr: Expr | None
    shape: Shape


@dataclass(slots=True)
class Use:
    """One use of weights.

    Attributes:
        index: its place in the order of execution.
        kind: "linear", "conv", "table", "norm", "scale", "shift" or another operation's name.
        held: the weights by their roles: "weight", "bias", …
        taken: fingerprints of what goes in, one row a channel, in order; None where channels are not known.
        given: fingerprints of what comes out.
        before: the uses whose results it takes.
    """

    index: int
    kind: str
    held: dict[str, Held]
    taken: torch.Tensor | None
    given: torch.Tensor
    before: frozenset[int] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that it reads."""
        return tuple(dict.fromkeys(key for held in self.held.values() for key in held.keys))

    @property
    def told(self) -> tuple[Any, ...]:
        """What tells its weights from others."""
        return self.kind, *((role, held.keys, held.expr) for role, held in self.held.items())

    @property
    def rows(self) -> int:
        """Channels that come out."""
        return len(self.given)


@dataclass(slots=True)
class Flow:
    """A forward pass: the uses of weights in their order, and what came out."""

    uses: list[Use]
    outputs: list[torch.Tensor]
    #: For each output the last uses that it is made of.
    behind: list[frozenset[int]] = field(default_factory=list)
    #: Uses of weights that are used again and again, as in a loop over time, taken together.
    repeated: dict[tuple[Any, ...], list[Use]] = field(default_factory=dict)
    _known: Known | None = field(default=None, repr=False)
    _entries: Known | None = field(default=None, repr=False)

    @property
    def known(self) -> Known:
        """All channels that came out of a use of weights."""
        if self._known is None:
            every = chain(self.uses, *self.repeated.values())
            self._known = Known(use.given for use in every)
        return self._known

    @property
    def entries(self) -> Known:
        """All channels that went into a use of weights."""
        if self._entries is None:
            every = chain(self.uses, *self.repeated.values())
            self._entries = Known(use.taken for use in every if use.taken is not None)
        return self._entries

    def renamed(self, made_of: MappingOf[str, Expr]) -> Flow:
        """The same over other keys: those that the keys of the code are made of."""
        uses = [_renamed(use, made_of) for use in self.uses]
        return Flow(uses, self.outputs, self.behind, _repeated(uses))


def _renamed(use: Use, made_of: MappingOf[str, Expr]) -> Use:
    held = {}
    for role, one in use.held.items():
        keys = dict.fromkeys(key for own in one.keys for key in (made_of[own].keys() if own in made_of else ()))
        known = one.expr is not None and all(key in made_of for key in one.keys)
        expr = substituted(one.expr, dict(made_of)) if known and one.expr is not None else None
        held[role] = replace(one, keys=tuple(keys), expr=expr)
    return replace(use, held=held)


def _repeated(uses: Sequence[Use]) -> dict[tuple[Any, ...], list[Use]]:
    groups: dict[tuple[Any, ...], list[Use]] = {}
    for use in uses:
        groups.setdefault(use.told, []).append(use)
    out = {}
    for told, group in groups.items():
        first = group[0]
        if len(group) < 2 or any(u.given.shape != first.given.shape for u in group):
            continue
        inputs = [u.taken for u in group if u.taken is not None]
        taken = _together(inputs) if len(inputs) == len(group) and len({len(t) for t in inputs}) == 1 else None
        out[told] = [Use(first.index, first.kind, first.held, taken, _together([u.given for u in group]))]
    return out


def _together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Fingerprints of values that come in equal parts."""
    x = torch.stack(list(parts))
    cubes = (x[..., 3] ** 3).mean(0)
    return torch.stack(
        [
            (x[..., 0] ** 2).mean(0).sqrt(),
            x[..., 1].mean(0),
            x[..., 2].mean(0),
            cubes.sign() * cubes.abs().pow(1 / 3),
            x[..., 4].amax(0),
            x[..., 5].amin(0),
        ],
        dim=1,
    )


def follow(model: torch.nn.Module, inputs: Any) -> Flow | None:
    """Run MODEL in eval mode on INPUTS (positional, or by name) and note how it uses its weights; None if it raises."""
    recorder = _Recorder(model)
    training, fast = model.training, torch.backends.mha.get_fastpath_enabled()
    given = {id(t): t.clone() for t in tensors(inputs)}  # code may change what it is given
    recorder.flows(given.values())
    model.eval()
    state = torch.get_rng_state()
    torch.manual_seed(_SEED)
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), recorder:
                out = called(model, _with(inputs, given))
    except Exception:
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.set_rng_state(state)
        model.train(training)
    found = [t for t in tensors(out) if t.is_floating_point()]
    behind = [recorder.feeding(t) for t in found]
    return Flow(recorder.uses, found, behind, _repeated(recorder.uses))


def called(model: torch.nn.Module, inputs: Any) -> Any:
    """What MODEL gives for inputs by position or by name."""
    return model(**inputs) if isinstance(inputs, MappingOf) else model(*inputs)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples, dicts and objects that hold fields (dataclasses), in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, MappingOf):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors(getattr(value, name, None))


def _with(value: Any, new: MappingOf[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return new[id(value)]
    if isinstance(value, MappingOf):
        return {k: _with(v, new) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with(v, new) for v in value)
    return value


# -------------------------------------------------------------------------------------------- fingerprints


def fingerprints(values: torch.Tensor, dim: int) -> torch.Tensor:
    """One row of numbers for each channel of VALUES along DIM, which the order of its elements does not change."""
    x = values.detach().double()
    if not x.ndim:
        x = x.reshape(1)
    x = x.movedim(dim, 0).reshape(x.shape[dim], -1)
    if not x.shape[1]:
        return torch.zeros(len(x), 6, dtype=torch.float64)
    x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)  # masked places
    squares = x * x
    cubes = (squares * x).mean(1)
    return torch.stack(
        [
            squares.mean(1).sqrt(),
            x.mean(1),
            x.abs().mean(1),
            cubes.sign() * cubes.abs().pow(1 / 3),
            x.amax(1),
            x.amin(1),
        ],
        dim=1,
    )


#: How far fingerprints of the same channel may lie apart, relative to the channel and to the largest of all.
_APART, _NOISE = 1e-3, 1e-5


def pairing(wanted: torch.Tensor, have: torch.Tensor) -> list[int] | None:
    """For each channel of WANTED its place in HAVE, where both are the same channels in any order; else None."""
    if wanted.shape != have.shape:
        return None
    allowed = _allowed(wanted, have)
    if bool(((wanted - have).abs() <= allowed).all()):
        return list(range(len(have)))
    total = (wanted.sum(0) - have.sum(0)).abs()
    if bool((total > allowed.sum(0) + allowed.max() * 4).any()) or len(wanted) > 8192:
        return None
    return _assigned(wanted, have, allowed)


def _assigned(wanted: torch.Tensor, have: torch.Tensor, allowed: torch.Tensor) -> list[int] | None:
    """The places one by one. Channels that look alike (all zero, say) go where their neighbours go."""
    top, by_top = have[:, 4].sort()
    low = torch.searchsorted(top.contiguous(), (wanted[:, 4] - allowed[:, 0]).contiguous()).tolist()
    high = torch.searchsorted(top.contiguous(), (wanted[:, 4] + allowed[:, 0]).contiguous(), right=True).tolist()
    fitting: list[list[int]] = []
    for place in range(len(wanted)):
        near = by_top[low[place] : high[place]]
        same = ((have[near] - wanted[place]).abs() <= allowed[place]).all(1)
        fitting.append(near[same].tolist())
        if not fitting[-1]:
            return None
    found = [fits[0] if len(fits) == 1 else -1 for fits in fitting]
    free = set(range(len(have))) - set(found)
    if len(set(found) - {-1}) < sum(at >= 0 for at in found):
        return None
    open_ = [place for place, at in enumerate(found) if at < 0]
    for step in (1, -1):
        for place in open_ if step > 0 else reversed(open_):
            before = found[place - step] if 0 <= place - step < len(found) else -1
            if found[place] < 0 and before >= 0 and before + step in free and before + step in fitting[place]:
                found[place] = before + step
                free.discard(before + step)
    for place in open_:
        if found[place] < 0:
            at = next((at for at in sorted(fitting[place]) if at in free), None)
            if at is None:
                return None
            found[place] = at
            free.discard(at)
    return found


def _allowed(wanted: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    largest = float(max(wanted[:, 0].max(), other[:, 0].max())) if len(wanted) and len(other) else 0.0
    return (_APART * wanted[:, :1] + _NOISE * largest).expand(-1, 1) + 1e-12


class Known:
    """A pool of channels to look others up in."""

    def __init__(self, groups: Iterable[torch.Tensor]) -> None:
        rows = torch.cat([torch.zeros(1, 6, dtype=torch.float64), *groups])
        self.rows = rows[rows[:, 4].argsort()]

    def holds(self, wanted: torch.Tensor) -> bool:
        """Whether every channel of WANTED is in the pool."""
        low = _APART * wanted[:, 0] + _NOISE * float(wanted[:, 0].max()) + 1e-12
        tops = self.rows[:, 4].contiguous()
        first = torch.searchsorted(tops, (wanted[:, 4] - low).contiguous())
        last = torch.searchsorted(tops, (wanted[:, 4] + low).contiguous(), right=True)
        open_ = torch.arange(len(wanted))
        step = 0
        while len(open_) and step < _LOOKED_AT:
            at = first[open_] + step
            if bool((at >= last[open_]).any()):
                return False
            same = ((self.rows[at.clamp(max=len(tops) - 1)] - wanted[open_]).abs() <= low[open_, None]).all(1)
            open_ = open_[~same]
            step += 1
        return not len(open_)


#: Channels of nearly the same maximum that are looked at for each that is looked up.
_LOOKED_AT = 4096


# ---------------------------------------------------------------------------------------------- recording


@dataclass(slots=True)
class _Base:
    """A storage that holds weights only: what it is made of, and how it lies."""

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
_COPIES = frozenset({"clone", "contiguous", "_to_copy", "copy", "detach", "_reshape_copy", "alias", "lift_fresh"})
_STATES = frozenset({"zeros", "zeros_like", "new_zeros"})


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self._bases: dict[int, list[_Base]] = {}
        self._flowing: dict[int, frozenset[int]] = {}
        self._alive: list[Any] = []  # so that addresses stay their own
        live = chain(model.named_parameters(remove_duplicate=True), model.named_buffers(remove_duplicate=True))
        state = model.state_dict(keep_vars=True)
        names = {id(t): key for key, t in reversed(state.items()) if isinstance(t, torch.Tensor)}
        for _, tensor in live:
            key = names.get(id(tensor))
            if key is not None and tensor.numel():
                self._hold(tensor, (key,), ex.of(key))

    def flows(self, given: Iterable[torch.Tensor]) -> None:
        """Name what the inputs are."""
        for tensor in given:
            self._alive.append(tensor)
            self._flowing[_place(tensor)] = frozenset()

    def feeding(self, tensor: torch.Tensor) -> frozenset[int]:
        """The uses whose results TENSOR is made of, no use between."""
        return self._flowing.get(_place(tensor), frozenset())

    def _hold(self, tensor: torch.Tensor, keys: tuple[str, ...], expr: Expr | None) -> None:
        base = _Base(keys, expr, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.numel())
        self._bases.setdefault(_place(tensor), []).append(base)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        taken = list(tensors((args, kwargs)))
        self._alive.append(result)
        out = list(tensors(result))
        if name in _STATES and out[0].is_floating_point():  # what a recurrent layer begins with
            self._flowing.setdefault(_place(out[0]), frozenset())
        if not out or not taken:
            return result
        flowing = [t for t in taken if _place(t) in self._flowing]
        held = [t for t in taken if _place(t) not in self._flowing and _place(t) in self._bases]
        places = {_place(t) for t in taken}
        if not flowing:
            new = [t for t in out if t.numel() and _place(t) not in places]
            if held:
                for one in new:
                    self._derive(name, args, held, one)
            return result
        before = frozenset(chain.from_iterable(self._flowing[_place(t)] for t in flowing))
        if held:
            first = len(self.uses)
            self._note(name, args, kwargs, out[0], before)
            before = frozenset(range(first, len(self.uses))) or before
        for one in out:
            place = _place(one)
            old = self._flowing.get(place, frozenset()) if place in places and not held else frozenset()
            self._flowing[place] = before | old
        return result

    # -- weights

    def held(self, value: Any) -> Held | None:
        """A tensor that is made of weights only, or None."""
        if not isinstance(value, torch.Tensor) or _place(value) in self._flowing:
            return None
        bases = self._bases.get(_place(value), ())
        offset = value.storage_offset()
        base = next((b for b in bases if b.offset <= offset < b.offset + max(b.numel, 1)), bases[0] if bases else None)
        if base is None:
            return None
        return Held(base.keys, None if base.expr is None else _viewed(base, value), tuple(value.shape))

    def _derive(self, name: str, args: Any, held: list[torch.Tensor], out: torch.Tensor) -> None:
        """What is made of weights alone: a copy, or weights joined, keeps its expression."""
        parts = [p for p in map(self.held, held) if p is not None]
        keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
        expr = None
        if all(p.expr is not None for p in parts):
            exprs = [p.expr for p in parts if p.expr is not None]
            if name in _COPIES and len(exprs) == 1 and parts[0].shape == tuple(out.shape):
                expr = exprs[0]
            elif name == "cat" and args and len(exprs) == len(args[0]):
                dim = int(args[1]) if len(args) > 1 else 0
                expr = ex.cat(dim % out.ndim, *exprs)
            elif name == "embedding" and len(exprs) == 1 and args[1].numel() == out.numel() // out.shape[-1]:
                rows = args[1].reshape(-1)
                start = int(rows[0])
                if torch.equal(rows, torch.arange(start, start + len(rows))):
                    part = ex.part(exprs[0], 0, start, start + len(rows))
                    expr = ex.reshape(part, tuple(out.shape), (len(rows), out.shape[-1]))
        self._alive.append(out)
        self._hold(out, keys, expr)

    # -- uses

    def _note(self, name: str, args: Any, kwargs: Any, out: torch.Tensor, before: frozenset[int]) -> None:
        flat = list(args)
        if name in _PRODUCTS:
            self._product(name, flat, out, before)
        elif name == "convolution":
            weight, bias = self.held(flat[1]), self.held(flat[2])
            roles = {"weight": weight, "bias": bias}
            kind = "deconv" if flat[6] else "conv"
            groups = int(flat[8])
            if groups > 1:
                kind = "depthwise" if weight is not None and weight.shape[:2] == (groups, 1) else f"grouped {kind}"
            taken = fingerprints(flat[0], 1) if kind in ("conv", "depthwise") else None
            self._add(kind, roles, taken, fingerprints(out, 1), before)
        elif name in _NORMS:
            dim = -1 if "layer" in name or "rms" in name else 1
            roles = {role: self.held(flat[at]) for at, role in _NORMS[name].items() if at < len(flat)}
            self._add("norm", roles, fingerprints(flat[0], dim), fingerprints(out, dim), before)
        elif name in _TABLES and self.held(flat[0]) is not None:
            ids = next((t for t in tensors(flat[1:]) if _place(t) in self._flowing), None)
            taken = None if ids is None else fingerprints(ids.reshape(1, -1), 0)
            self._add("table", {"weight": self.held(flat[0])}, taken, fingerprints(out, -1), before)
        elif name in _SCALES | _SHIFTS and len(flat) > 1:
            x, weight = (flat[0], flat[1]) if self.held(flat[0]) is None else (flat[1], flat[0])
            role, kind = ("weight", "scale") if name in _SCALES else ("bias", "shift")
            members = sorted(before)
            if weight.ndim == x.ndim == out.ndim == 3 and len(weight) == len(x) == len(members) > 1:
                for n, one in enumerate(members):  # several layers at once
                    taken = fingerprints(x[n], -1)
                    self._add(kind, {role: self.held(weight[n])}, taken, fingerprints(out[n], -1), frozenset({one}))
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
        self._add("linear", roles, fingerprints(a, -1), fingerprints(out, -1), before)

    def _add(
        self,
        kind: str,
        roles: MappingOf[str, Held | None],
        taken: torch.Tensor | None,
        given: torch.Tensor,
        before: frozenset[int],
    ) -> None:
        held = {role: one for role, one in roles.items() if one is not None}
        if held:
            self.uses.append(Use(len(self.uses), kind, held, taken, given, before))


def _place(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    return storage.data_ptr() or id(storage)


def _viewed(base: _Base, view: torch.Tensor) -> Expr | None:
    """A view of a storage as an expression over what the storage holds, or None where none of ours says it."""
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
    """A contiguous view of whole rows, or a transposed one, in other sizes."""
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


__all__ = ["Flow", "Held", "Known", "Use", "called", "fingerprints", "follow", "pairing", "tensors"]
