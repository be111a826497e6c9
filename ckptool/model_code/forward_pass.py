"""Follow a forward pass: when each tensor is used, by which function, and what happens to the result.

Values do not matter, only which function takes which tensor. `trace` runs the model under it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .bypass import Bypasses
from .call import Call, flat
from .channels import Channels
from .gating import Gating
from .hollow import shape_only
from .input_search import Budget
from .named_parts import NamedParts
from .patches import Patches
from .recurrent import Cells
from .signature import BehindLayer, Facts, Flattened, Flow, Layout

#: Functions that put dimensions in another order.
_TURNS = frozenset("permute transpose swapaxes swapdims movedim moveaxis".split())

#: Functions that read a property, and those that give a view whose use is what counts.
_LOOKS = frozenset("__get__ size dim numel stride __len__ is_floating_point is_complex data_ptr type_as".split())

#: What changes no number in evaluation.
_UNCHANGED = frozenset("dropout to float contiguous clone".split())

_VIEWS = frozenset(
    "t T mT transpose permute view reshape unsqueeze squeeze detach contiguous clone to float double half bfloat16 type"
    " expand expand_as".split()
)

_PRODUCTS = frozenset("matmul __matmul__ __rmatmul__ addmm mm bmm baddbmm grouped_mm _grouped_mm".split())

_ADDS = frozenset("add __add__ __radd__ add_ __iadd__".split())

_MULTIPLIES = frozenset("mul multiply __mul__ __rmul__ mul_ __imul__".split())

#: Functions that may put a dimension of one element somewhere.
_ONES = frozenset({"__getitem__", "unsqueeze", "squeeze"})

#: Functions that only move what they take in their dimensions.
_PLACES = frozenset("__getitem__ unsqueeze squeeze view reshape expand to contiguous type float".split())

#: A tensor that was computed from more matrices than this counts as the output of none.
_MOST_CREDITED = 4

#: Functions that multiply with a matrix, and those that take one out of a stack.
_MULTIPLY = _PRODUCTS | {"linear", "einsum"}

_MEMBERS = frozenset("__getitem__ select unbind index_select".split())


@dataclass(slots=True)
class Use:
    """The first use of a parameter or buffer in a forward pass.

    Attributes:
        index: how many other tensors of the state dict were used before it.
        how: the function that took it ("linear"). For a member of a stack (`w[i]`), the product that took the member.
        facts: what the rest of the pass shows about it.
    """

    index: int
    how: str
    facts: Facts = field(default_factory=Facts)


def _turned_to(name: str, args: Any) -> list[int] | None:
    """Return, for each of the four dimensions of the result of the function NAME (`permute`, `transpose` …), its place
    before, as for `permute`; None if ARGS, its arguments by position, do not show it.
    """
    given = args[1] if len(args) == 2 and isinstance(args[1], tuple | list | torch.Size) else args[1:]
    if not all(isinstance(dim, int) for dim in given):
        return None
    dims = [dim % 4 for dim in given]
    if name == "permute":
        return dims if sorted(dims) == [0, 1, 2, 3] else None
    if len(dims) != 2:
        return None
    order = [0, 1, 2, 3]
    if name.startswith("move"):
        order.insert(dims[1], order.pop(dims[0]))
    else:
        order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    return order


class Follower(TorchFunctionMode):  # type: ignore[misc]
    """A mode of torch that notes when each parameter is used, by which function, and what happens to the result.

    Args:
        keys: id of a parameter or buffer -> its key; views of them are added.
        buffers: keys of buffers.
    Attributes:
        uses: key -> its first `Use`, in order. Some facts are there only after `finish`.
        rotary: how the pass pairs what it rotates ("interleaved", "half"), or None if it rotates nothing.
    """

    def __init__(self, keys: dict[int, str], buffers: Container[str]) -> None:
        super().__init__()
        self._keys = keys
        self.uses: dict[str, Use] = {}
        self.rotary: str | None = None
        self._alive: list[Any] = []
        self._budget = Budget()
        self._from: dict[int, tuple[str, Any]] = {}  # what a tensor is: ("features", "nchw"), ("fused", key) ...
        self._negated: set[int] = set()
        self._whole = frozenset(keys)  # the parameters themselves
        self._turned: set[int] = set()  # transposed views of parameters
        self._channels = Channels(buffers)
        self._gating = Gating()
        self._patches = Patches()
        self._bypasses = Bypasses()
        self._named_parts = NamedParts()
        self._cells = Cells()
        self._alone: dict[int, str] = {}  # id of a tensor -> the only parameter that it was made of, in its sizes
        self._rows: dict[int, str] = {}  # id of a tensor -> the table whose rows it is
        self._made: dict[int, str] = {}  # id of a tensor -> the weight of the layer whose outputs it is
        self._normed: dict[int, str] = {}  # id of such a tensor -> the statistics of the batch norm that took it
        self._outputs: dict[int, frozenset[str]] = {}  # id of a tensor -> the matrices that made what it holds
        self._multiplied: set[int] = set()  # products, element by element, of the outputs of two matrices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = Call(getattr(func, "__name__", ""), args, kwargs)
        name = call.name
        self._alive.append(call)  # so that ids stay their own
        for place, value in enumerate(call.values):
            key = self._keys.get(id(value))
            if key is not None and name not in _LOOKS:
                self._use(key, name, place, args, value)
        self._taken_elsewhere(name, call.tensors)
        result = shape_only(name, args, kwargs)
        if result is None:
            self._budget.before(name, args)
            result = func(*args, **kwargs)
        self._budget.after(result)
        call.result = result
        if name in _VIEWS and args and id(args[0]) in self._keys and isinstance(result, torch.Tensor):
            self._keys.setdefault(id(result), self._keys[id(args[0])])
            if (name in ("t", "transpose") or (name == "permute" and result.ndim == 2)) != (
                id(args[0]) in self._turned
            ):
                self._turned.add(id(result))
        elif name in _MEMBERS and args and id(args[0]) in self._keys and args[0].ndim > 2:
            self._members(args, result)
        self._learn(name, args, kwargs, result)
        self._channels.see(call, self._keys)
        self._gating.see(call, self._keys)
        self._bypasses.see(call, self._keys)
        self._patches.see(call, self._channels.learned)
        self._see_parts(call)
        self._cells.see(call, self._keys, self._channels.made_with)
        self._named_parts.see_inputs(call, self._keys, self._channels.learned)
        self._credit(name, call.tensors, result)
        return result

    def _see_parts(self, call: Call) -> None:
        """Note the parts that CALL divides its first argument into, if that is an output of one weight, of two whose
        outputs were multiplied (then for both), rows of a table, or a parameter itself. Also note that a result of the
        sizes of a parameter, made of it alone, stands for it.
        """
        own = {self._keys[id(t)] if id(t) in self._whole else self._alone.get(id(t), "") for t in call.tensors}
        if len(own) == 1 and getattr(call.result, "shape", None) == call.tensors[0].shape:
            self._alone[id(call.result)] = next(iter(own))
        first = id(call.first)
        made = self._outputs.get(first) or {self._rows.get(first) or (next(iter(own)) if len(own) == 1 else "")}
        if made != {""} and (len(made) == 1 or first in self._multiplied):
            for key in made:
                self._named_parts.see(call, key)

    def _credit(self, name: str, taken: Sequence[Any], result: Any) -> None:
        """Note which matrices made RESULT, the output of the function NAME, which took the tensors TAKEN.

        For a product or a convolution, they are its weights; for another function, all matrices that made what it took.
        Nothing is noted if there are none, or more than four.
        """
        if name in _MULTIPLY or name.startswith("conv"):
            made = frozenset(self._keys[id(t)] for t in taken[1:] if id(t) in self._keys and t.ndim > 1)
        else:
            each = [self._outputs.get(id(t), frozenset()) for t in taken]
            made = frozenset().union(*each)
            if name in _MULTIPLIES and [len(keys) for keys in each] == [1, 1] and len(made) == 2:
                self._multiplied.add(id(result))
        if 0 < len(made) <= _MOST_CREDITED:
            for one in [result] if isinstance(result, torch.Tensor) else flat(result):
                if isinstance(one, torch.Tensor):
                    self._outputs.setdefault(id(one), made)

    def _rotates(self, kind: str, value: Any, width: int = 0) -> None:
        """Note in the facts of the matrices that made VALUE how rotary embeddings pair their outputs (KIND: "half",
        "interleaved", or "unknown"), and how many outputs of each head are rotated (WIDTH; 0 if that is not known). The
        first note for a matrix stays.
        """
        for key in self._outputs.get(id(value), ()):
            if key in self.uses and self.uses[key].facts.rotary is None:
                self.uses[key].facts.rotary, self.uses[key].facts.turned = kind, width

    def finish(self) -> None:
        """Fill in, after the forward pass, the facts of `uses` that only the whole pass shows: flow, concatenations,
        gates, bypasses and parts.
        """
        bypasses = self._bypasses.found()
        gates = self._cells.gates()
        for key, use in self.uses.items():
            use.facts.bypasses = bypasses.get(key, ())
            use.facts.joined = self._channels.joined.get(key, ())
            use.facts.place = self._channels.places.get(key)
            use.facts.beside_gate = self._gating.roles.get(key, "")
            use.facts.opens = self._gating.opens.get(key, "")
            use.facts.gate = self._gating.halves.get(key)
            use.facts.parts = self._named_parts.parts.get(key, ())
            use.facts.takes = self._named_parts.takes.get(key, ())
            use.facts.gates = gates.get(key, ())
            use.facts.hidden = self._cells.hidden.get(key)
            if key in self._channels.before:
                use.facts.flow = Flow(self._channels.bit[key], self._channels.before[key])

    def _use(self, key: str, name: str, place: int, args: Any, value: Any) -> None:
        if name in _VIEWS:
            return  # what is done with the view counts
        if key not in self.uses:
            self.uses[key] = Use(len(self.uses), name)
            first = args[0] if args and isinstance(args[0], torch.Tensor) else None
            kind, what = self._from.get(id(first), ("", None))
            facts = self.uses[key].facts
            if kind == "flat" and name in ("linear", "addmm", "matmul"):
                facts.flattened = what
            if name in ("linear", "matmul", "__matmul__") and place == 1:
                facts.pixels = self._patches.order_of(first)
            facts.plus = _number(name, args, _ADDS, 0.0)
            facts.times = _number(name, args, _MULTIPLIES, 1.0)
        self.uses[key].facts.runs += name == self.uses[key].how
        if name in _MULTIPLY and self.uses[key].how in _MEMBERS:
            self.uses[key].how = name  # what is done with a member counts
        if name in _PRODUCTS and place >= 1:
            self._stands(key, inputs_first=id(value) not in self._turned)
        elif name == "linear" and place == 1 and (id(value) in self._turned or value.ndim == 2):
            self._stands(key, inputs_first=id(value) in self._turned)
        elif name == "einsum":
            self._summed(key, args, value)

    def _with_rows(self, name: str, args: Any, facts: Facts) -> None:
        """Note, unless another function took them before, which function takes rows of the table that has FACTS: NAME,
        called with ARGS ("added" if it adds). If it multiplies the rows by a number, that is the table's `times`; None
        if by something else.
        """
        if name in _MULTIPLIES and facts.rows == "":  # to multiply the rows is to multiply the table
            number = _number(name, args, _MULTIPLIES, 1.0)
            facts.times = None if None in (number, facts.times) else number
        if facts.rows == "" and name not in _LOOKS:
            facts.rows = "added" if name in _ADDS else name

    def _stands(self, key: str, *, inputs_first: bool) -> None:
        """Note whether the matrix KEY is stored as [inputs, outputs] (INPUTS_FIRST), unless there is a note already."""
        facts = self.uses[key].facts
        if facts.inputs_first is None:
            facts.inputs_first = inputs_first

    def _members(self, args: Any, result: Any) -> None:
        """Note that RESULT, one or several matrices taken out of a stack by index (`w[i]`), belongs to the parameter
        that holds the stack, ARGS[0]. Slices, and results with other last two sizes, are not noted.
        """
        index = args[1] if len(args) > 1 else 0
        whole = isinstance(index, int) or (isinstance(index, torch.Tensor) and not index.is_floating_point())
        for one in [result] if isinstance(result, torch.Tensor) else result if whole else ():
            if whole and isinstance(one, torch.Tensor) and one.shape[-2:] == args[0].shape[-2:]:
                self._keys.setdefault(id(one), self._keys[id(args[0])])
                if id(args[0]) in self._turned:
                    self._turned.add(id(one))

    def _summed(self, key: str, args: Any, value: torch.Tensor) -> None:
        """Note which dimensions of the parameter KEY are inputs, outputs or both, if ARGS, (equation, tensors …), are
        those of an einsum with an arrow. VALUE is the parameter or a view of it; only for itself are all dimensions
        noted.

        If just one of the last two dimensions is in the result, that one is the outputs.
        """
        equation, *operands = args
        operands = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
        if not isinstance(equation, str) or "->" not in equation:
            return
        given, result = equation.replace(" ", "").split("->")
        letters = next((one for one, x in zip(given.split(","), operands, strict=False) if x is value), "")
        if len(letters) != value.ndim or "." in letters or len(letters) < 2:
            return
        last, before = (letters[-1] in result, letters[-2] in result)
        if last != before:
            self._stands(key, inputs_first=last != (id(value) in self._turned))
        others = "".join(one for one in given.split(",") if one != letters)
        if id(value) in self._whole and not self.uses[key].facts.dims:
            kinds = ("input" if x not in result else "both" if x in others else "output" for x in letters)
            self.uses[key].facts.dims = tuple(kinds)

    def _learn(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note facts that RESULT, of the call of a function NAME with ARGS and KWARGS, shows: how features are
        flattened, how fused projections are split, what rows of tables are taken by, shifts and scales, rotary
        embeddings, and which layer a batch norm follows.
        """
        every_second = name == "__getitem__" and _every_second(args) and self._channels.learned(args[0])
        if name == "view_as_complex" or name == "polar" or every_second:
            self.rotary = "interleaved"
            if args and isinstance(args[0], torch.Tensor) and name != "polar":
                width = args[0].shape[-1] * (1 if every_second else args[0].shape[-2])
                self._rotates("interleaved", args[0], width)
        if name in _TURNS and isinstance(result, torch.Tensor) and _sorts_pairs(args[0], result):
            self._rotates("unknown", args[0])
        if not isinstance(result, torch.Tensor):
            if isinstance(result, tuple | list):
                first = args[0] if args else None
                kind, what = self._from.get(id(first), ("", None))
                if kind == "grouped" and name in _CUTS and _along_last(args, kwargs, first):
                    self._inside(what)
                if kind == "fused" and name in ("chunk", "split", "tensor_split", "unsafe_chunk", "unbind"):
                    self._layout(what, "block")
                    if name != "unbind" and len({getattr(part, "shape", None) for part in result}) == 1:
                        for place, part in enumerate(result):
                            self._from[id(part)] = ("part", (what[0], place, len(result)))
            return
        if name == "embedding" and len(args) > 1 and id(args[1]) in self._keys:
            self._rows[id(result)] = self._keys[id(args[1])]
        for one in args[:2]:
            if (table := self._rows.get(id(one))) in self.uses:
                if name in _UNCHANGED:
                    self._rows[id(result)] = table
                else:
                    self._with_rows(name, args, self.uses[table].facts)
        if name in _ADDS | _MULTIPLIES:
            self._modulated(name, args, result)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name in ("neg", "__neg__", "negative"):
            self._negated.add(id(result))
        elif (
            name in ("cat", "concat", "concatenate", "stack")
            and args
            and isinstance(args[0], tuple | list)
            and any(id(part) in self._negated and self._channels.learned(part) for part in args[0])
        ):
            kind = "half" if name != "stack" else "interleaved"
            self.rotary = self.rotary or kind
            width = sum(part.shape[-1] for part in args[0])
            for part in args[0]:
                self._rotates(kind, part, width)
        if (name.startswith("conv") or name == "linear") and len(args) > 1 and id(args[1]) in self._keys:
            self._made[id(result)] = self._keys[id(args[1])]
        elif name == "batch_norm":
            self._behind(args, kwargs)
        if name.startswith("conv") and result.ndim == 4:
            self._from[id(result)] = ("features", "nchw")
        elif name == "linear" and len(args) > 1 and id(args[1]) in self._keys:
            self._from[id(result)] = ("fused", (self._keys[id(args[1])], args[1].shape[0]))
        elif first is not None and id(first) in self._from:
            kind, what = self._from[id(first)]
            made = self._after(kind, what, name, args, first, result)
            if made is not None:
                self._from[id(result)] = made

    def _behind(self, args: Any, kwargs: Any) -> None:
        """Note for the batch norm called with these arguments which layer's output it takes directly, and its eps;
        nothing if its input is no output of a layer, or if its mean is no tensor of the model.
        """
        given = dict(zip(_OF_BATCH_NORM, args, strict=False)) | kwargs
        layer, mean = self._made.get(id(given.get("input"))), self._keys.get(id(given.get("running_mean")))
        eps = given.get("eps", 1e-5)
        if layer is not None and mean in self.uses and isinstance(eps, float):
            self.uses[mean].facts.behind = BehindLayer(layer, eps)
            self._normed[id(given["input"])] = mean

    def _taken_elsewhere(self, name: str, values: Sequence[Any]) -> None:
        """Forget that a batch norm directly follows a layer whose output is in VALUES, if the function NAME, which
        takes VALUES, is neither a batch norm nor one that reads a property.
        """
        for value in values if name != "batch_norm" and name not in _LOOKS else ():
            self._made.pop(id(value), None)
            if (mean := self._normed.pop(id(value), None)) is not None:
                self.uses[mean].facts.behind = None

    def _after(self, kind: str, what: Any, name: str, args: Any, first: Any, result: Any) -> tuple[str, Any] | None:
        if kind == "features":
            if result.ndim == 4 and name in _TURNS:
                order = _turned_to(name, args)
                return None if order is None else (kind, "".join(what[dim] for dim in order))
            if result.ndim == 4:
                return kind, what
            if name in ("flatten", "reshape", "view") and result.ndim == 2 and first.ndim == 4 and what[0] == "n":
                sizes = dict(zip(what, first.shape, strict=True))
                c, h, w = sizes["c"], sizes["h"], sizes["w"]
                if h * w > 1 and result.shape[1] == c * h * w:
                    return "flat", Flattened(what, c, h, w)
            return None
        if kind == "grouped":
            cut = result.shape[:-1] == first.shape[:-1] and result.shape != first.shape
            if name == "__getitem__" and cut and not _every_second(args):
                self._inside(what)
            return (kind, what) if name in _TURNS and result.shape[-1] == first.shape[-1] else None
        if kind == "flat":
            return (kind, what) if result.shape == first.shape else None
        if kind == "part":
            if name in ("reshape", "view", "unflatten") and result.ndim == first.ndim + 1 and what[0] in self.uses:
                heads, width = result.shape[-2:]
                if heads * width == first.shape[-1]:
                    self.uses[what[0]].facts.heads = self.uses[what[0]].facts.heads or heads
            return (kind, what) if name in _PLACES and result.numel() == first.numel() else None
        if kind == "fused" and name in _ONES and result.numel() == first.numel():
            return kind, what
        if kind == "fused":
            if name in ("reshape", "view", "unflatten", "rearrange") and result.ndim > first.ndim:
                self._reshaped(what, first, result)
                return ("grouped", what) if result.ndim == first.ndim + 1 else None
            if name in ("__getitem__", "narrow"):
                self._layout(what, "block")
                return None
            return (kind, what) if result.shape == first.shape else None
        return None

    def _modulated(self, name: str, args: Any, result: torch.Tensor) -> None:
        """Note which parts of the output of a layer are added to other tensors (shifts) or multiply them (scales), for
        a call of the function NAME that adds or multiplies and gives RESULT.

        With a number (`1 + scale`), RESULT is the same part. A half that multiplies what was computed from its own
        layer is a gate, and not noted. The first note for a part stays.
        """
        for part, other in itertools.permutations(args[:2]):
            kind, what = self._from.get(id(part), ("", None))
            if kind != "part" or what[0] not in self.uses:
                continue
            key, place, count = what
            if count == 2 and name in _MULTIPLIES and self._gating.comes_from(other, key):
                continue  # a gate and what it is multiplied with
            if not isinstance(other, torch.Tensor) or other.ndim == 0:
                self._from[id(result)] = kind, what  # such as 1 + scale
                continue
            facts = self.uses[key].facts
            done = list(facts.modulates or [""] * count)
            done[place] = done[place] or ("add" if name in _ADDS else "mul")
            facts.modulates = tuple(done)

    def _inside(self, what: Any) -> None:
        """Note that the output of the projection WHAT, (key, rows), which is reshaped first, is then split along the
        last of the new sizes.
        """
        key = what[0]
        if key in self.uses and self.uses[key].facts.layout.kind == "grouped":
            facts = self.uses[key].facts
            facts.layout = facts.layout._replace(kind="inside")

    def _reshaped(self, what: Any, first: Any, result: Any) -> None:
        inner = tuple(result.shape[first.ndim - 1 :])
        if math.prod(inner) == what[1] and len(inner) in (2, 3):
            self._layout(what, "grouped", inner)

    def _layout(self, what: Any, layout: str, inner: tuple[int, ...] = ()) -> None:
        key = what[0]
        if key in self.uses:
            facts = self.uses[key].facts
            facts.layout = facts.layout if facts.layout.kind else Layout(layout, inner)


_CUTS = frozenset("chunk split split_with_sizes tensor_split unsafe_chunk".split())


def _along_last(args: Any, kwargs: Any, whole: Any) -> bool:
    """Return whether a call with these arguments splits the tensor WHOLE along its last dimension; the dimension is 0
    if they name none.
    """
    dim = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    return isinstance(dim, int) and dim % whole.ndim == whole.ndim - 1


#: What torch's batch norm is given, in its order.
_OF_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _number(name: str, args: Any, names: frozenset[str], nothing: float) -> float | None:
    """Return the number that the function NAME, called with ARGS, adds to a parameter or multiplies it by, if it is one
    of NAMES; None if its first two arguments are not one number and something else.

    It is NOTHING if NAME is another function.
    """
    if name not in names:
        return nothing
    numbers = [value for value in args[:2] if isinstance(value, int | float)]
    return float(numbers[0]) if len(numbers) == 1 else None


def _sorts_pairs(before: Any, after: torch.Tensor) -> bool:
    """Return whether, by its sizes, AFTER is BEFORE with neighbours [..., pairs, 2] moved into halves [..., 2, pairs].
    BEFORE has at least four dimensions, and pairs is not 2.

    Then the function that rotates the halves afterwards does not show which elements of BEFORE are pairs.
    """
    swapped = isinstance(before, torch.Tensor) and before.ndim >= 4 and before.shape[-1] == 2 != before.shape[-2]
    return swapped and after.shape == (*before.shape[:-2], 2, before.shape[-2])


def _every_second(args: Any) -> bool:
    """Return whether a call of `__getitem__` with ARGS, (tensor, index), takes every second element of the last
    dimension and all of the others, as interleaved rotary embeddings do. The tensor is of floating point numbers and
    has three or four dimensions.
    """
    index = args[1] if len(args) > 1 else None
    if not isinstance(index, tuple) or not index:
        return False
    last = index[-1]
    return (
        isinstance(last, slice)
        and last.step == 2
        and args[0].ndim in (3, 4)
        and args[0].is_floating_point()
        and len(index) in (2, args[0].ndim)
        and all(i is Ellipsis or i == slice(None) for i in index[:-1])
    )
