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

from .attention import Attention
from .bypass import Bypasses
from .call import ADDS, MULTIPLIES, Call, flat, summed_dim
from .channels import Channels
from .gating import Gating
from .hollow import shape_only
from .input_search import Budget
from .named_parts import NamedParts
from .patches import Patches
from .recurrent import Cells
from .side_by_side import SideBySide
from .signature import PRODUCTS, BehindLayer, Facts, Flattened, Flow, Layout

#: Functions that put dimensions in another order.
_TURNS = frozenset("permute transpose swapaxes swapdims movedim moveaxis".split())

#: Functions that read a property, and those that give a view whose use is what counts.
_LOOKS = frozenset("__get__ size dim numel stride __len__ is_floating_point is_complex data_ptr type_as".split())

#: What changes no number in evaluation.
_UNCHANGED = frozenset("dropout to float contiguous clone".split())

_VIEWS = frozenset(
    "t transpose permute view reshape unsqueeze squeeze detach contiguous clone to float double half bfloat16 type"
    " expand expand_as".split()
)

#: Functions of rows of one_hot whose results are such rows, or columns; `view` and `reshape` if the rows stay whole.
_KEEPS_ONES = _VIEWS | {"type_as"}

#: Functions whose result has each number in the place of the one that it is computed from.
_NUMBER_BY_NUMBER = (
    ADDS
    | MULTIPLIES
    | frozenset(
        "sub subtract __sub__ div divide true_divide __truediv__ div_ normalize renorm clamp clip clamp_min abs neg exp"
        " square sqrt tanh sigmoid softplus relu sign round where masked_fill dropout".split()
    )
)

#: Functions that multiply their first argument with their second one from the right.
_FROM_THE_RIGHT = frozenset("matmul __matmul__ mm bmm".split())

_SUBTRACTS = frozenset("sub subtract __sub__ sub_ __isub__".split())

#: Functions that may put a dimension of one element somewhere.
_ONES = frozenset({"__getitem__", "unsqueeze", "squeeze"})

#: Functions that only move what they take in their dimensions.
_PLACES = frozenset("__getitem__ unsqueeze squeeze view reshape expand to contiguous type float".split())

#: A tensor that was computed from more matrices than this counts as the output of none.
_MOST_CREDITED = 4

#: Functions that take a matrix out of a stack.
_MEMBERS = frozenset("__getitem__ select unbind index_select".split())


@dataclass(slots=True)
class Use:
    """The first use of a parameter or buffer in a forward pass. Making a view of it (`w.t()`) is none; what takes the
    view uses it.

    Attributes:
        index: how many other tensors of the state dict were used before it.
        how: the function that took it ("linear"). For a member of a stack (`w[i]`), the product that took the member.
        facts: what the rest of the pass shows about it.
    """

    index: int
    how: str
    facts: Facts = field(default_factory=Facts)


def _turned_to(name: str, args: Any, count: int = 4) -> list[int] | None:
    """Return, for each of the COUNT dimensions of the result of the function NAME (`permute`, `transpose` …), its place
    before, as for `permute`: [0, 2, 3, 1] for `permute(x, 0, 2, 3, 1)`, [0, 1, 3, 2] for `transpose(x, 2, 3)`.

    ARGS are its arguments by position, the tensor first. None if they do not show it: the dimensions are given by
    keyword or are no integers, or `movedim` moves several.
    """
    given = args[1] if len(args) == 2 and isinstance(args[1], tuple | list | torch.Size) else args[1:]
    if not all(isinstance(dim, int) for dim in given):
        return None
    dims = [dim % count for dim in given]
    order = list(range(count))
    if name == "permute":
        return dims if sorted(dims) == order else None
    if len(dims) != 2:
        return None
    if name.startswith("move"):
        order.insert(dims[1], order.pop(dims[0]))
    else:
        order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    return order


def _turns(call: Call) -> bool:
    """Return whether CALL, which gives a view, counts as exchanging the last two dimensions: any `t` or `transpose`,
    whatever its dimensions, and any `permute` of a matrix.
    """
    return call.name in ("t", "transpose") or (call.name == "permute" and call.result.ndim == 2)


#: Whether a note that fails stops the pass, as in tests.
strict = False


class Follower(TorchFunctionMode):  # type: ignore[misc]
    """A mode of torch that notes when each parameter is used, by which function, and what happens to the result.

    The forward pass runs inside of `with` this mode; after it, `finish` adds what only the whole pass shows. Calls on
    tensors without values give zeros of the right sizes, without computing, if `shape_only` knows the function. A
    result that is too large raises MemoryError (`Budget`). If a note about a result fails, the pass goes on without
    notes about later results.

    Args:
        keys: id of a parameter or buffer -> its key; the pass adds views of them to this dict.
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
        self._halves: dict[int, tuple[int, int]] = {}  # id of a half of a tensor -> (id of that tensor, 0 or 1)
        self._maps_of: dict[int, tuple[str, ...]] = {}  # the convolutions that have a row for each channel of a map
        self._merged: dict[int, tuple[int, int]] = {}  # the two dimensions that became the last one of a tensor
        self._scaled: dict[int, tuple[int, int]] = {}  # the same of a half times something
        self._turned_halves: set[int] = set()  # what a rotary embedding gives for the first half of a tensor
        self._of_halves: set[int] = set()  # tensors whose pairs, in the last dimension, are of two such halves
        self._whole = frozenset(keys)  # the parameters themselves
        self._turned: set[int] = set()  # transposed views of parameters
        self._channels = Channels(buffers)
        self._gating = Gating()
        self._attention = Attention(self._gating.made_by)
        self._patches = Patches()
        self._side_by_side = SideBySide()
        self._bypasses = Bypasses()
        self._named_parts = NamedParts()
        self._cells = Cells()
        self._stands_for: dict[int, tuple[str, bool]] = {}  # what stands for a parameter, and whether transposed
        self._alone: dict[int, str] = {}  # id of a tensor -> the only parameter that it was made of, in its sizes
        self._data: set[str] = set()  # parameters that linear layers take
        self._rows: dict[int, str] = {}  # id of a tensor -> the table whose rows it is
        self._one_hot: set[int] = set()  # tensors that are one in one place of each row, and zero elsewhere
        self._scaled_rows: dict[int, str] = {}  # the same of rows that were multiplied
        self._made: dict[int, str] = {}  # id of a tensor -> the weight of the layer whose outputs it is
        self._shapes_of: dict[int, list[int]] = {}  # such a tensor -> itself and its other shapes, in one list
        self._shaped_anew: set[int] = set()  # such tensors that were reshaped
        self._normed: dict[int, str] = {}  # id of such a tensor -> the statistics of the batch norm that took it
        self._outputs: dict[int, frozenset[str]] = {}  # id of a tensor -> the matrices that made what it holds
        self._factors: dict[int, float] = {}  # id of a tensor -> the number that it was multiplied by, if not 1
        self._multiplied: set[int] = set()  # products, element by element, of the outputs of two matrices
        self._blind = False  # whether a note has failed; the calls after it are run, and not noted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = Call.of(func, args, kwargs)
        self._alive.append(call)  # so that ids stay their own
        for place, value in enumerate(call.values):
            key = self._keys.get(id(value))
            if key is not None and call.name not in _LOOKS | _VIEWS:  # what is done with the view counts
                self._use(key, call, place, value)
            elif id(value) in self._stands_for:
                key, turned = self._stands_for[id(value)]
                self._see_layout(key, call, place, value, turned=turned)
        call.result = shape_only(call.name, call.args, kwargs)
        if call.result is None:
            self._budget.before(call.name, call.args)
            call.result = func(*args, **kwargs)
        self._budget.after(call.result)
        self._taken_elsewhere(call)
        if not self._blind:
            try:
                self._observe(call)
            except Exception:  # a note that fails must not cost what the rest of the pass shows
                if strict:
                    raise
                self._blind = True
        return call.result

    def _observe(self, call: Call) -> None:
        """Note what CALL, which has run, shows. The order matters: later notes read earlier ones."""
        self._name_views(call)
        self._name_computed(call)
        self._learn(call)
        self._channels.see(call, self._keys)
        self._gating.see(call, self._keys)
        self._attention.see(call, self._keys)
        self._bypasses.see(call, self._keys)
        self._patches.see(call, self._channels.learned)
        self._side_by_side.see(call, self._keys)
        self._see_parts(call)
        self._cells.see(call, self._keys, self._channels.made_with)
        self._named_parts.see_inputs(call, self._keys, self._channels.learned)
        self._credit(call.name, call.tensors, call.result)

    def _name_views(self, call: Call) -> None:
        """Enter the result of CALL in `_keys`, if it is a view of a parameter, with the key of that parameter; and in
        `_turned`, if the view is transposed (twice is not). A result that has a key keeps it.

        Copies and conversions (`clone`, `to`) count as views. The matrices that CALL takes out of a stack get the key
        of the stack (`_members`), and a weight that torch's weight norm computes gets the key of its direction
        (`weight_v`). Nothing is noted unless the first argument of CALL is a parameter or such a view.
        """
        first = call.args[0] if call.args else None
        if id(first) not in self._keys:
            return
        if call.name in _VIEWS and isinstance(call.result, torch.Tensor):
            self._keys.setdefault(id(call.result), self._keys[id(first)])
            if _turns(call) != (id(first) in self._turned):
                self._turned.add(id(call.result))
        elif call.name == "_weight_norm":
            self._keys.setdefault(id(call.result), self._keys[id(first)])
        elif call.name in _MEMBERS and first is not None and first.ndim > 2:
            self._members(call.args, call.result)

    def _name_computed(self, call: Call) -> None:
        """Note in `_stands_for` that the result of CALL, a matrix, stands for a parameter, and if it is transposed.

        It does if it is computed from weights alone, number by number (`normalize(w)`, `w * 2`), and those arguments of
        CALL that have its sizes are, or stand for, one parameter; or if it is a view of a matrix that stands for a
        parameter. Nothing is noted of other results, such as views of a parameter itself, which have its key
        (`_name_views`).
        """
        result = call.result
        if not isinstance(result, torch.Tensor) or result.ndim != 2 or id(result) in self._keys:
            return
        if call.name in _VIEWS:
            taken = {self._stands_for.get(id(call.first))} - {None}
        elif call.name in _NUMBER_BY_NUMBER and all(map(self._is_of_weights, call.tensors)):
            taken = {
                self._stands_for.get(id(t)) or (self._keys[id(t)], id(t) in self._turned)
                for t in call.tensors
                if t.shape == result.shape and (id(t) in self._stands_for or id(t) in self._keys)
            }
        else:
            return
        if len(taken) == 1 and (known := taken.pop()) is not None:
            self._stands_for[id(result)] = known[0], known[1] != _turns(call)

    def _is_of_weights(self, tensor: Any) -> bool:
        """Return whether TENSOR is a parameter, a view of one that has its key, or computed from parameters alone."""
        return id(tensor) in self._keys or self._channels.is_of_weights(tensor)

    def _see_parts(self, call: Call) -> None:
        """Note the parts that CALL divides its first argument into (`NamedParts.see`), if that is an output of one
        weight, rows of a table, a parameter itself, or the product of the outputs of two weights (then for both).

        Also note in `_alone` that the result of CALL stands for a parameter, if it is computed from that alone and has
        its sizes: its parts are noted as those of the parameter.
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
        """Note in `_outputs` which matrices made RESULT, the output of the function NAME, which took the tensors TAKEN;
        for several results, for each of them.

        For a product or a convolution, they are its weights: the parameters in TAKEN with two or more dimensions, but
        not the first of TAKEN. For another function, they are all matrices that made one of TAKEN. Nothing is noted if
        there are none, or more than four, or if a result has a note already.

        Also note in `_multiplied` that RESULT is a product of the outputs of two matrices, if NAME multiplies, element
        by element, a tensor that one matrix made with a tensor that another one made.
        """
        if name in PRODUCTS or name.startswith("conv"):
            made = frozenset(self._keys[id(t)] for t in taken[1:] if id(t) in self._keys and t.ndim > 1)
        else:
            each = [self._outputs.get(id(t), frozenset()) for t in taken]
            made = frozenset().union(*each)
            if name in MULTIPLIES and [len(keys) for keys in each] == [1, 1] and len(made) == 2:
                self._multiplied.add(id(result))
        if 0 < len(made) <= _MOST_CREDITED:
            for one in [result] if isinstance(result, torch.Tensor) else flat(result):
                if isinstance(one, torch.Tensor):
                    self._outputs.setdefault(id(one), made)

    def _rotates(self, kind: str, value: Any, width: int = 0) -> None:
        """Note in the facts of the matrices that made the tensor VALUE how rotary embeddings pair their outputs:
        `rotary` becomes KIND ("half" or "interleaved"), and `turned` WIDTH, the number of outputs of each
        head that are rotated (0 if that is not known). The first note for a matrix stays. `rotary` of the whole pass
        is not changed.
        """
        for key in self._outputs.get(id(value), ()):
            if key in self.uses and self.uses[key].facts.rotary is None:
                self.uses[key].facts.rotary, self.uses[key].facts.turned = kind, width

    def finish(self) -> None:
        """Set, after the forward pass, the facts in `uses` that only the whole pass shows: `flow`, `joined`, `place`,
        `bypasses`, `input`, `beside_gate`, `opens`, `gate`, `added`, `attends`, `gates`, `hidden`, `parts`,
        `takes` and `neighbours`; and `layout`, where no call has set it. Other facts stay.
        """
        bypasses = self._bypasses.found()
        gates = self._cells.gates()
        for key, use in self.uses.items():
            use.facts.bypasses = bypasses.get(key, ())
            use.facts.joined = self._channels.joined.get(key, ())
            use.facts.place = self._channels.places.get(key)
            use.facts.input = self._gating.input_of(key)
            use.facts.beside_gate = self._gating.roles.get(key, "")
            use.facts.opens = self._gating.opens.get(key, "")
            use.facts.gate = self._gating.halves.get(key)
            use.facts.added = frozenset(self._gating.added.get(key, ()))
            use.facts.attends = self._attention.roles.get(key, "")
            use.facts.parts = self._named_parts.parts.get(key, ())
            use.facts.takes = self._named_parts.takes.get(key, ())
            use.facts.gates = gates.get(key, ())
            use.facts.hidden = self._cells.hidden.get(key)
            use.facts.neighbours = self._side_by_side.found.get(key)
            if not use.facts.layout.kind:
                use.facts.layout = self._side_by_side.layouts.get(key, use.facts.layout)
            if key in self._channels.before:
                use.facts.flow = Flow(self._channels.bit[key], self._channels.before[key])

    def _use(self, key: str, call: Call, place: int, value: Any) -> None:
        """Note that CALL takes VALUE, the parameter KEY or a view of it, as argument number PLACE.

        If `uses` does not have KEY, it gets its first use (`_first_use`). If CALL is of the same function as the first
        use (or is that use), `runs` grows by 1, from 0; if VALUE is the weight of a layer there, and the data of CALL
        was multiplied by another number than that of the first use, `times` becomes None. If the first use took a
        member out of a stack (`w[i]`) and CALL is a product, `how` of the first use becomes the function of CALL. If
        CALL is a product of a matrix with rows of one_hot, other than a linear layer, it is `looked_up`. Which
        dimensions are inputs is noted, too (`_see_layout`).
        """
        if key not in self.uses:
            self._first_use(key, call.name, place, call.args)
        again = call.name == self.uses[key].how
        if again and _is_weight(call.name, place) and self.uses[key].facts.times != self._factor_of(call.first):
            self.uses[key].facts.times = None
        self.uses[key].facts.runs += again
        if call.name in PRODUCTS and self.uses[key].how in _MEMBERS:
            self.uses[key].how = call.name
        self._see_layout(key, call, place, value, turned=id(value) in self._turned)
        given = any(id(tensor) in self._one_hot for tensor in call.tensors)
        if given and value.ndim == 2 and call.name in PRODUCTS - {"linear"}:
            self.uses[key].facts.looked_up = True

    def _see_layout(self, key: str, call: Call, place: int, value: Any, *, turned: bool) -> None:
        """Note whether the parameter KEY has its inputs first (`inputs_first`), if CALL is a product with VALUE: False
        for `linear(x, w)` and `w @ x`, True for `x @ w`. VALUE, argument number PLACE, is the parameter or a tensor
        that stands for it; TURNED if VALUE is transposed, which gives the opposite. The first note stays. For an
        einsum, see `_summed`.

        A parameter that `linear` takes in the place of its input is data, such as learned features of nodes: its
        `inputs_first` becomes None and stays so, whatever other calls do with it. Of two parameters that are multiplied
        (`a @ b`), only the second gets a note.
        """
        from_left = place == 0 and bool(call.args) and call.args[0] is value
        if from_left and call.name == "linear":
            self._data.add(key)
            self.uses[key].facts.inputs_first = None
        elif key in self._data or (
            from_left and call.name in _FROM_THE_RIGHT and len(call.args) > 1 and id(call.args[1]) in self._keys
        ):
            return
        elif call.name == "einsum":
            self._summed(key, call.args, value, turned=turned)
        elif (dim := summed_dim(call, place, value)) is not None:
            self._stands(key, inputs_first=(dim == -2) != turned)

    def _first_use(self, key: str, name: str, place: int, args: Any) -> None:
        """Add to `uses` the first use of the parameter KEY, by the function NAME with ARGS, as argument number PLACE.

        These facts are set:

        - `plus`: the number that NAME adds to the parameter; None if it adds something else, 0 if NAME does not add.
        - `times`: the number that NAME multiplies the parameter by; None if it multiplies by something else. If NAME
          does not multiply, it is 1; for the weight of a layer, the number that its data was multiplied by before.
        - `flattened` and `merged`: how the data of `linear`, `addmm` or `matmul` (the first argument, of `addmm` the
          second) is flattened; None if it is not, or if NAME is another function.
        - `pixels`: only if the parameter is the second argument of `linear` or `matmul` (`@`), and each row of the
          first one lists the numbers of a patch.
        """
        use = self.uses[key] = Use(len(self.uses), name)
        data = args[1:2] if name == "addmm" else args[:1]  # `addmm` takes the bias first
        first = data[0] if data and isinstance(data[0], torch.Tensor) else None
        kind, what = self._from.get(id(first), ("", None))
        if name in ("linear", "addmm", "matmul"):
            use.facts.flattened = what if kind == "flat" else None
            use.facts.merged = self._merged.get(id(first))
        if name in ("linear", "matmul", "__matmul__") and place == 1:
            use.facts.pixels = self._patches.order_of(first)
        use.facts.plus = _number(name, args, ADDS, 0.0)
        use.facts.times = _number(name, args, MULTIPLIES, self._factor_of(first) if _is_weight(name, place) else 1.0)

    def _with_rows(self, name: str, args: Any, facts: Facts) -> None:
        """Note in `rows` of FACTS, the facts of an embedding table, that the function NAME with the arguments ARGS
        takes rows of it: "added" if NAME adds, else NAME. Nothing changes if `rows` is set already, or if NAME only
        reads a property.

        If NAME multiplies, `times` becomes the number in ARGS; None if there is no number, or if `times` was None.
        """
        if name in MULTIPLIES and facts.rows == "":  # to multiply the rows is to multiply the table
            number = _number(name, args, MULTIPLIES, 1.0)
            facts.times = None if None in (number, facts.times) else number
        if facts.rows == "" and name not in _LOOKS:
            facts.rows = "added" if name in ADDS else name

    def _stands(self, key: str, *, inputs_first: bool) -> None:
        """Note whether the matrix KEY is stored as [inputs, outputs] (INPUTS_FIRST), unless there is a note already."""
        facts = self.uses[key].facts
        if facts.inputs_first is None:
            facts.inputs_first = inputs_first

    def _members(self, args: Any, result: Any) -> None:
        """Enter RESULT, one or several matrices that a call with ARGS has taken out of a stack, in `_keys` with the key
        of the stack, ARGS[0]; and in `_turned`, if the stack is transposed.

        That is done if ARGS[1] is an integer or a tensor of integers or booleans (`w[i]`, `w.select(0, i)`), or is not
        there (`w.unbind()`); not for slices and tuples, nor for results whose last two sizes are not the stack's.
        """
        index = args[1] if len(args) > 1 else 0
        if not isinstance(index, int) and (not isinstance(index, torch.Tensor) or index.is_floating_point()):
            return
        members = [result] if isinstance(result, torch.Tensor) else result
        for one in [m for m in members if isinstance(m, torch.Tensor) and m.shape[-2:] == args[0].shape[-2:]]:
            self._keys.setdefault(id(one), self._keys[id(args[0])])
            if id(args[0]) in self._turned:
                self._turned.add(id(one))

    def _summed(self, key: str, args: Any, value: torch.Tensor, *, turned: bool) -> None:
        """Note in the facts of the parameter KEY which of its dimensions an einsum sums over. ARGS are the arguments of
        the einsum, (equation, tensors …). VALUE, one of these tensors, is the parameter or stands for it; TURNED if it
        is transposed.

        If just one of the last two dimensions is in the result, that one is the outputs and the other one the inputs
        (`inputs_first`). If VALUE is the parameter itself, `dims` gets for each dimension "input" (it is not in the
        result), "both" (it is in the result and in another tensor) or "output" (it is in the result, and in no other
        tensor). The first notes stay. Nothing is noted if the equation has no arrow, if it has no letter for each
        dimension of VALUE (`...`), or if VALUE has fewer than two dimensions.
        """
        letters, others, result = _letters(args, value)
        if len(letters) != value.ndim or "." in letters or len(letters) < 2:
            return
        last, before = (letters[-1] in result, letters[-2] in result)
        if last != before:
            self._stands(key, inputs_first=last != turned)
        if id(value) in self._whole and not self.uses[key].facts.dims:
            kinds = ("input" if x not in result else "both" if x in others else "output" for x in letters)
            self.uses[key].facts.dims = tuple(kinds)

    def _learn(self, call: Call) -> None:
        """Note facts that the result of CALL, which has run, shows: how features are flattened, how fused projections
        are split, which tensors are multiplied by a number, which functions take rows of tables, shifts and scales,
        rotary embeddings, and which layer a batch norm follows. If CALL gives no single tensor, only how it splits a
        projection (`_divided`), and whether it cuts a tensor into two halves (`_pair_halves`).
        """
        self._rotates_pairs(call)
        if not isinstance(call.result, torch.Tensor):
            self._divided(call)
            return
        self._multiply(call)
        self._take_rows(call)
        if call.name in ADDS | MULTIPLIES:
            self._modulated(call.name, call.args, call.result)
        self._rotates_halves(call)
        if call.name == "batch_norm":
            self._behind(call.args, call.kwargs)
        self._come_from(call)

    def _multiply(self, call: Call) -> None:
        """Note in `_factors` the number that the result of CALL was multiplied by: if CALL multiplies by a number, this
        number times the factor of its first tensor (6 for `(x * 2) * 3`); if CALL changes no number (`dropout`, `to`),
        that factor. The result of any other call, also of one that changes a tensor in place, loses its factor.
        """
        before = next((self._factor_of(tensor) for tensor in call.tensors), 1.0)
        number = _number(call.name, call.args, MULTIPLIES, 1.0 if call.name in _UNCHANGED else None)
        self._factors.pop(id(call.result), None)
        if number is not None and number * before != 1.0:
            self._factors[id(call.result)] = number * before

    def _factor_of(self, tensor: Any) -> float:
        """Return the number that TENSOR was multiplied by, as `_factors` has it; 1 if it was not."""
        return self._factors.get(id(tensor), 1.0)

    def _rotates_pairs(self, call: Call) -> None:
        """Note the rotary embedding that CALL shows, if it makes complex numbers (`view_as_complex`, `polar`), or takes
        every second element of a tensor that was computed from weights.

        The kind is "half" if the first argument of CALL is the two halves of a tensor, stacked in a new last dimension,
        else "interleaved". `rotary` becomes this kind; `polar`, which makes the angles, changes no earlier kind. The
        facts of the matrices that made the first argument get the kind, too (`_rotates`), but not for `polar`. If CALL
        sorts pairs into halves (turns [..., pairs, 2] into [..., 2, pairs], `_sorts_pairs`), these facts get
        "interleaved", because code then rotates halves that were neighbours, and `rotary` stays.

        Also note which tensors are halves and stacked halves (`_pair_halves`).
        """
        self._pair_halves(call)
        first = call.args[0] if call.args and isinstance(call.args[0], torch.Tensor) else None
        second = call.name == "__getitem__" and _every_second(call.args) and self._channels.learned(first)
        kind = "half" if id(first) in self._of_halves else "interleaved"
        if second or call.name in ("view_as_complex", "polar"):
            self.rotary = kind if call.name != "polar" else self.rotary or kind
        if first is not None and (second or call.name == "view_as_complex"):
            self._rotates(kind, first, first.shape[-1] * (1 if second else first.shape[-2]))
        if first is not None and call.name in _TURNS and _sorts_pairs(call, first):
            self._rotates("interleaved", first, 2 * first.shape[-2])

    def _pair_halves(self, call: Call) -> None:
        """Note what the result of CALL is, if it is one of these; halves are of the last dimension of one tensor:

        - a half (`x[..., :n]`), or the two halves (`x.chunk(2, -1)`): in `_halves`;
        - a half times something: in `_scaled`;
        - the first half times something minus the second half times something: in `_turned_halves`;
        - both halves, in their order, stacked in a new last dimension, or a copy of this stack (`float`): in
          `_of_halves`.
        """
        first, result = call.first, call.result
        if call.name == "__getitem__" and (place := _half(call.args, result)) is not None:
            self._halves[id(result)] = id(first), place
        elif call.name in MULTIPLIES:
            half = next((self._halves[id(one)] for one in call.args[:2] if id(one) in self._halves), None)
            if half is not None:
                self._scaled[id(result)] = half
        elif call.name in _SUBTRACTS and len(call.args) > 1:
            (whole, one), (other_whole, other) = (self._scaled.get(id(part), (0, -1)) for part in call.args[:2])
            if whole == other_whole and (one, other) == (0, 1):
                self._turned_halves.add(id(result))
        if call.name in _CUTS and isinstance(result, tuple | list) and call.divides_last:
            if len(result) == 2 and result[0].shape == result[1].shape:
                self._halves.update({id(half): (id(first), place) for place, half in enumerate(result)})
        elif call.name == "stack" and isinstance(first, tuple | list) and isinstance(result, torch.Tensor):
            halves = [self._halves.get(id(one), (0, -1)) for one in first]
            dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0)
            if dim in (-1, result.ndim - 1) and [place for _, place in halves] == [0, 1] and len({*dict(halves)}) == 1:
                self._of_halves.add(id(result))
        elif call.name in _UNCHANGED and id(first) in self._of_halves:
            self._of_halves.add(id(result))

    def _rotates_halves(self, call: Call) -> None:
        """Note the result of CALL as negated, if CALL negates a tensor; or, if it concatenates or stacks tensors, the
        rotary embedding that it shows.

        If one of these tensors is negated and computed from weights (`cat((-x2, x1))`), the kind is "half" for a
        concatenation, "interleaved" for a stack. If CALL concatenates, and one of them is computed from weights and is
        the difference of two scaled halves (`_turned_halves`), it is "half". The kind is noted in `rotary`, unless
        there is one already, and in the facts of matrices (`_rotates`): with a negated tensor, of those that made any
        of the tensors; with such a difference, only of those that made the difference.
        """
        if call.name in ("neg", "__neg__", "negative"):
            self._negated.add(id(call.result))
        parts = call.args[0] if call.name in _JOINS and call.args and isinstance(call.args[0], tuple | list) else ()
        if any(id(part) in self._negated and self._channels.learned(part) for part in parts):
            kind = "interleaved" if call.name == "stack" else "half"
            self.rotary = self.rotary or kind
            for part in parts:
                self._rotates(kind, part, sum(one.shape[-1] for one in parts))
        for part in parts if call.name != "stack" else ():
            if id(part) in self._turned_halves and self._channels.learned(part):
                self.rotary = self.rotary or "half"
                self._rotates("half", part, 2 * part.shape[-1])

    def _divided(self, call: Call) -> None:
        """Note in the `layout` of a linear layer how CALL, which returned several tensors, divides the layer's output,
        its first argument:

        - "inside", if the output was reshaped (`_reshaped`), and CALL cuts it along the last of its new dimensions;
        - "block", if the output was not reshaped, and CALL is `unbind`, or cuts a dimension with as many elements as
          the layer has outputs. Blocks of one shape are also noted as parts of the output, but not those of `unbind`.

        Convolutions get "block" if CALL cuts the channels of a map that they made, before anything mixed these. Nothing
        is noted for any other CALL. A layer keeps its first layout, but "grouped" becomes "inside".
        """
        if not isinstance(call.result, tuple | list):
            return
        first = call.args[0] if call.args else None
        maps = self._maps_of.get(id(first), ()) if call.name in _CUTS else ()
        if maps and first is not None and sum(part.shape[1] for part in call.result) == first.shape[1]:
            for key in maps:
                self._layout((key, first.shape[1]), "block")
        kind, what = self._from.get(id(first), ("", None))
        if kind == "grouped" and call.name in _CUTS and call.divides_last:
            self._inside(what)
        if kind == "fused" and call.name in _BLOCKS and (call.name == "unbind" or call.divided_size == what[1]):
            self._layout(what, "block")
            if call.name != "unbind" and len({getattr(part, "shape", None) for part in call.result}) == 1:
                for place, part in enumerate(call.result):
                    self._from[id(part)] = ("part", (what[0], place, len(call.result)))

    def _take_rows(self, call: Call) -> None:
        """Note that the result of CALL holds rows of a table, if CALL looks them up (`embedding`), or takes such rows
        and changes no number (`dropout`, `to`). Also note that the result is one-hot, if CALL makes such rows
        (`one_hot`), or takes some and changes no number.

        If CALL does something else with rows, that is noted in the facts of the table (`_with_rows`), the first time
        only. If rows that were multiplied by a number are multiplied by another one, `times` of the table becomes the
        product of the two.
        """
        rows = call.name in _KEEPS_ONES and id(call.first) in self._one_hot
        whole = call.name not in ("view", "reshape") or call.result.shape[-1] == call.first.shape[-1]
        if call.name == "one_hot" or (rows and whole):
            self._one_hot.add(id(call.result))
        if call.name == "embedding" and len(call.args) > 1 and id(call.args[1]) in self._keys:
            self._rows[id(call.result)] = self._keys[id(call.args[1])]
        for one in call.args[:2]:
            table, scaled = self._rows.get(id(one)), self._scaled_rows.get(id(one))
            if table in self.uses and call.name in _UNCHANGED:
                self._rows[id(call.result)] = table
            elif table in self.uses:
                is_first = self.uses[table].facts.rows == ""
                self._with_rows(call.name, call.args, self.uses[table].facts)
                if is_first and call.name in MULTIPLIES:  # of a table that is looked up again, the first time counts
                    self._rows.pop(id(call.result), None)  # multiplied where it stands
                    self._scaled_rows[id(call.result)] = table
            elif scaled in self.uses and call.name in MULTIPLIES:  # once more
                facts, number = self.uses[scaled].facts, _number(call.name, call.args, MULTIPLIES, 1.0)
                if facts.times is not None and number is not None:
                    facts.times *= number
                    self._scaled_rows[id(call.result)] = scaled

    def _come_from(self, call: Call) -> None:
        """Note what the result of CALL, a tensor, is. If CALL is a linear layer or a convolution with a weight of the
        model, `_made` gets the key of this weight.

        `_from` gets ("features", "nchw") for a convolution with a result of four dimensions (`_MAPS`); ("fused", (key,
        rows) of the weight) for a linear layer with a weight of the model; for another function, what `_after` makes of
        the note about its first argument, if there is one. Dimensions that CALL flattens (`_merge`), and convolutions
        with a row for each channel of the result (`_make_maps`), are noted, too.
        """
        key = self._keys.get(id(call.args[1])) if len(call.args) > 1 else None
        first = call.args[0] if call.args and isinstance(call.args[0], torch.Tensor) else None
        made: tuple[str, Any] | None = None
        if key is not None and (call.name.startswith("conv") or call.name == "linear"):
            self._made[id(call.result)] = key
        if call.name.startswith("conv") and call.result.ndim in _MAPS:
            made = ("features", _MAPS[call.result.ndim])
        elif call.name == "linear" and key is not None:
            made = ("fused", (key, call.args[1].shape[0]))
        elif id(first) in self._from:
            made = self._after(*self._from[id(first)], call, first)
        if made is not None:
            self._from[id(call.result)] = made
        if first is not None:
            self._merge(call, first)
            self._make_maps(call, first, key)

    def _make_maps(self, call: Call, first: torch.Tensor, key: str | None) -> None:
        """Note in `_maps_of` which convolutions have a row for each channel of the map that CALL returned. FIRST is the
        first argument of CALL, KEY the weight that it takes, or None.

        If CALL is a convolution with a weight of the model, it is that one (KEY), and if it convolves each channel
        alone, also those of FIRST. If CALL leaves each channel in its place (`_CHANNEL_BY_CHANNEL`: activations, norms,
        sums, element-wise products) and keeps the sizes of FIRST, they are those of FIRST. Else nothing is noted.
        """
        before = self._maps_of.get(id(first), ())
        if call.name.startswith("conv") and key is not None:
            weight = call.args[1]
            alone = weight.shape[1] == 1 and weight.shape[0] == first.shape[1]
            self._maps_of[id(call.result)] = (*before, key) if alone else (key,)
        elif before and call.name in _CHANNEL_BY_CHANNEL and call.result.shape == first.shape:
            self._maps_of[id(call.result)] = before

    def _merge(self, call: Call, first: torch.Tensor) -> None:
        """Note the sizes of the last two dimensions of FIRST, the first argument of CALL, if CALL flattens just these
        two. The note stays with a result that has the same numbers (`dropout`, `contiguous`). Rows that a table gave
        are left out: each code has the fields before the numbers of a row.
        """
        if id(first) in self._rows:
            return
        if call.name in _UNCHANGED and id(first) in self._merged:
            self._merged[id(call.result)] = self._merged[id(first)]
        elif call.name in ("flatten", "reshape", "view") and first.ndim > 2:
            *outer, a, b = first.shape
            if tuple(call.result.shape) == (*outer, a * b):
                self._merged[id(call.result)] = a, b

    def _behind(self, args: Any, kwargs: Any) -> None:
        """Note, in `behind` of the running mean of a batch norm, the layer whose output it takes directly, and the eps
        of the norm. ARGS and KWARGS are the arguments of the call of `batch_norm`. Nothing is noted if its input is
        no direct output of a layer, if its mean is no tensor of the model, or if its eps is no float.
        """
        given = dict(zip(_OF_BATCH_NORM, args, strict=False)) | kwargs
        layer, mean = self._made.get(id(given.get("input"))), self._keys.get(id(given.get("running_mean")))
        eps = given.get("eps", 1e-5)
        others = set(self._shapes_of.get(id(given.get("input")), ())) - {id(given.get("input"))}
        if layer is not None and not others.isdisjoint(self._normed):
            self._forget_layer(given["input"])  # two norms take its output
        elif layer is not None and mean in self.uses and isinstance(eps, float):
            self.uses[mean].facts.behind = BehindLayer(layer, eps)
            self._normed[id(given["input"])] = mean

    def _taken_elsewhere(self, call: Call) -> None:
        """Forget that the tensors that CALL took are direct outputs of layers, and so are other shapes of these: a
        batch norm that took one of them loses its note (`behind` becomes None), and one that takes it later gets none.
        Nothing changes if CALL is a `batch_norm` itself, only reads a property, or takes only the sizes of a tensor
        (the second of `view_as`).

        The output of a linear layer that CALL reshapes without touching the last dimension stays one, and so does the
        result: tokens are flattened before a batch norm. That holds for one reshape of each tensor, before any norm.
        """
        if call.name == "batch_norm" or call.name in _LOOKS:
            return
        first, result = call.first, call.result
        layer = self._made.get(id(first)) if call.name in ("flatten", "reshape", "view") else None
        once = id(first) not in self._shaped_anew and id(first) not in self._normed
        if once and layer in self.uses and self.uses[layer].how == "linear" and result.shape[-1:] == first.shape[-1:]:
            self._made[id(result)] = layer
            self._shaped_anew.add(id(first))
            self._shapes_of.setdefault(id(first), [id(first)]).append(id(result))
            self._shapes_of[id(result)] = self._shapes_of[id(first)]
            return
        for value in call.tensors[:1] if call.name.endswith("_as") else call.tensors:
            self._forget_layer(value)

    def _forget_layer(self, value: Any) -> None:
        """Forget that VALUE, and other shapes of it, are direct outputs of a layer (`_taken_elsewhere`)."""
        for one in self._shapes_of.get(id(value), [id(value)]):
            self._made.pop(one, None)
            if (mean := self._normed.pop(one, None)) is not None:
                self.uses[mean].facts.behind = None

    def _after(self, kind: str, what: Any, call: Call, first: Any) -> tuple[str, Any] | None:
        """Return (kind, what) of the result of CALL for `_from`, by (KIND, WHAT) of its first argument FIRST. None if
        the result is of no kind any more.

        Kinds are "features", "flat" (flattened features, which stay so if CALL keeps the sizes), "fused" (the output of
        a projection, which is any linear layer: it may hold several), "grouped" (the same, reshaped) and "part" (a part
        of it). The function for the kind decides (`_after_fused` …), and may note facts of the projection.
        """
        if kind == "features":
            return _after_features(what, call, first)
        if kind == "flat":
            return (kind, what) if call.result.shape == first.shape else None
        after = {"grouped": self._after_grouped, "part": self._after_part, "fused": self._after_fused}
        return after[kind](what, call, first)

    def _after_grouped(self, what: Any, call: Call, first: Any) -> tuple[str, Any] | None:
        """Return ("grouped", WHAT) for the result of CALL, if CALL turns dimensions (`permute`, `transpose`) and keeps
        the size of the last; else None. FIRST, its first argument, is the reshaped output of the projection WHAT.

        Also note that the projection is split "inside" (`_inside`), if CALL is an index that takes a part of the last
        dimension only, and not every second element.
        """
        cut = call.result.shape[:-1] == first.shape[:-1] and call.result.shape != first.shape
        if call.name == "__getitem__" and cut and not _every_second(call.args):
            self._inside(what)
        return ("grouped", what) if call.name in _TURNS and call.result.shape[-1] == first.shape[-1] else None

    def _after_part(self, what: Any, call: Call, first: Any) -> tuple[str, Any] | None:
        """Return ("part", WHAT) for the result of CALL, if CALL only reshapes, indexes, expands or converts FIRST, its
        first argument, and keeps the number of elements; else None. FIRST is the part WHAT, (key, place, number of
        parts), of the output of a projection.

        Also note the number of heads (`heads`) of the projection, if CALL reshapes the last dimension to two, heads and
        width; the first note stays.
        """
        split = call.name in ("reshape", "view", "unflatten") and call.result.ndim == first.ndim + 1
        if split and what[0] in self.uses and math.prod(call.result.shape[-2:]) == first.shape[-1]:
            facts = self.uses[what[0]].facts
            facts.heads = facts.heads or call.result.shape[-2]
        return ("part", what) if call.name in _PLACES and call.result.numel() == first.numel() else None

    def _after_fused(self, what: Any, call: Call, first: Any) -> tuple[str, Any] | None:
        """Return what the result of CALL is. Its first argument, FIRST, is the output of the linear layer WHAT, (key,
        rows) of its weight. The result is

        - ("fused", WHAT), if it has the sizes of FIRST, or if CALL only adds or removes dimensions of size 1;
        - ("grouped", WHAT), if CALL reshapes FIRST to one dimension more;
        - None, for any other CALL, and for a part of FIRST (`x[..., :n]`, `narrow`).

        Also note the layout of the projection: "grouped" with its new sizes, if CALL reshapes it to more dimensions
        (`_reshaped`); "block", if CALL takes a part of it.
        """
        if call.name in _ONES and call.result.numel() == first.numel():
            return "fused", what
        if call.name in ("reshape", "view", "unflatten", "rearrange") and call.result.ndim > first.ndim:
            self._reshaped(what, first, call.result)
            return ("grouped", what) if call.result.ndim == first.ndim + 1 else None
        if call.name in ("__getitem__", "narrow"):
            self._layout(what, "block")
            return None
        return ("fused", what) if call.result.shape == first.shape else None

    def _modulated(self, name: str, args: Any, result: torch.Tensor) -> None:
        """Note in `modulates` of a layer that the function NAME, called with ARGS, adds a part of the layer's output to
        another tensor ("add"), or multiplies another tensor by this part ("mul"). RESULT is what NAME returned.

        With a number (`1 + scale`), nothing is noted, but RESULT counts as the same part. A half that multiplies a
        tensor that was computed from its own layer is a gate, and not noted. The first note for a part stays.
        """
        for part, other in itertools.permutations(args[:2]):
            kind, what = self._from.get(id(part), ("", None))
            if kind != "part" or what[0] not in self.uses:
                continue
            key, place, count = what
            if count == 2 and name in MULTIPLIES and self._gating.comes_from(other, key):
                continue  # a gate and what it is multiplied with
            if not isinstance(other, torch.Tensor) or other.ndim == 0:
                self._from[id(result)] = kind, what  # such as 1 + scale
                continue
            facts = self.uses[key].facts
            done = list(facts.modulates or [""] * count)
            done[place] = done[place] or ("add" if name in ADDS else "mul")
            facts.modulates = tuple(done)

    def _inside(self, what: Any) -> None:
        """Change the layout of the projection WHAT, (key, rows), from "grouped" to "inside": its output, which was
        reshaped, is split along the last of the new sizes. A projection with another layout stays as it is.
        """
        key = what[0]
        if key in self.uses and self.uses[key].facts.layout.kind == "grouped":
            facts = self.uses[key].facts
            facts.layout = facts.layout._replace(kind="inside")

    def _reshaped(self, what: Any, first: Any, result: Any) -> None:
        """Note the layout "grouped" of the projection WHAT, (key, rows), whose output FIRST is reshaped to RESULT, with
        the sizes that RESULT has in place of the last one of FIRST: (3, 12, 64) for [b, n, 2304] to [b, n, 3, 12, 64].
        Nothing is noted unless these are two or three, and their product is the number of rows. The first note stays.
        """
        inner = tuple(result.shape[first.ndim - 1 :])
        if math.prod(inner) == what[1] and len(inner) in (2, 3):
            self._layout(what, "grouped", inner)

    def _layout(self, what: Any, layout: str, inner: tuple[int, ...] = ()) -> None:
        """Note that the output of the projection WHAT, (key, rows), has the LAYOUT, with the sizes INNER; the first
        note stays.
        """
        key = what[0]
        if key in self.uses and not self.uses[key].facts.layout.kind:
            self.uses[key].facts.layout = Layout(layout, inner)


def _letters(args: Any, value: torch.Tensor) -> tuple[str, str, str]:
    """Return (letters of VALUE, letters of the other tensors, one after the other, letters of the result) in the
    equation of an einsum with ARGS, (equation, tensors …): ("oi", "bi", "bo") for the second tensor of "bi,oi->bo".
    ("", "", "") if the equation has no arrow. The first is "" if VALUE is none of the tensors.
    """
    equation, *operands = args
    operands = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    if not isinstance(equation, str) or "->" not in equation:
        return "", "", ""
    given, result = equation.replace(" ", "").split("->")
    each = list(zip(given.split(","), operands, strict=False))
    letters = next((one for one, x in each if x is value), "")
    return letters, "".join(one for one, x in each if x is not value), result


def _after_features(order: str, call: Call, first: Any) -> tuple[str, Any] | None:
    """Return what the result of CALL is, whose first argument FIRST is a feature map with its dimensions in ORDER
    ("nchw"; "ncw" and "ncdhw" for other convolutions): ("features", new order) for a result with as many dimensions,
    the same order unless CALL permutes them (None if its arguments do not show how); ("flat", `Flattened`) if CALL
    flattens all but the first dimension n of maps of several places. None if it is neither.

    Maps with one or three spatial dimensions are no longer features behind a function that may mix channels, such as a
    linear layer, and are only told flattened with their channels first or, if there are three, last.
    """
    if call.result.ndim == first.ndim and call.name in _TURNS:
        turned = _turned_to(call.name, call.args, first.ndim)
        return None if turned is None else ("features", "".join(order[dim] for dim in turned))
    if call.result.ndim == first.ndim:
        keeps = len(order) == 4 or call.name in _CHANNEL_BY_CHANNEL or "pool" in call.name or call.name == "pad"
        return ("features", order) if keeps else None
    flattens = call.name in ("flatten", "reshape", "view") and call.result.ndim == 2 and first.ndim == len(order)
    if not flattens or order[0] != "n" or order == "nwc":
        return None
    sizes = dict(zip(order, first.shape, strict=True))
    c, w = sizes["c"], sizes["w"]
    h = sizes.get("d", 1) * sizes.get("h", 1)
    told = {"ncw": "nchw", "ncdhw": "nchw", "ndhwc": "nhwc"}.get(order, order if len(order) == 4 else "")
    return ("flat", Flattened(told, c, h, w)) if told and h * w > 1 and call.result.shape[1] == c * h * w else None


#: The dimensions of what convolutions give, by their number.
_MAPS = {3: "ncw", 4: "nchw", 5: "ncdhw"}

#: Functions that leave each channel of a map in its place.
_CHANNEL_BY_CHANNEL = (
    _UNCHANGED
    | ADDS
    | MULTIPLIES
    | frozenset(
        "relu relu_ relu6 gelu silu hardswish hardsigmoid sigmoid tanh leaky_relu elu mish softplus prelu batch_norm "
        "group_norm instance_norm".split()
    )
)

#: Functions that join tensors.
_JOINS = frozenset("cat concat concatenate stack".split())

#: Functions that divide a tensor into blocks.
_BLOCKS = frozenset("chunk split tensor_split unsafe_chunk unbind".split())

_CUTS = frozenset("chunk split split_with_sizes tensor_split unsafe_chunk".split())


#: What torch's batch norm is given, in its order.
_OF_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _is_weight(name: str, place: int) -> bool:
    """Return whether argument number PLACE, from 0, of the function NAME is the weight of a linear layer or of a
    convolution.
    """
    return place == 1 and (name == "linear" or name.startswith("conv"))


def _number(name: str, args: Any, names: frozenset[str], nothing: float | None) -> float | None:
    """Return the number that the function NAME, called with ARGS, adds to a tensor or multiplies it by: the one among
    the first two of ARGS, 2.0 for `w * 2`. NAMES are the functions that add, or that multiply.

    NOTHING if NAME is none of NAMES. None if it is one of them, and there is no number or two.
    """
    if name not in names:
        return nothing
    numbers = [value for value in args[:2] if isinstance(value, int | float)]
    return float(numbers[0]) if len(numbers) == 1 else None


def _sorts_pairs(call: Call, before: torch.Tensor) -> bool:
    """Return whether CALL, a permutation, moves neighbours of BEFORE, its first argument, into halves: it exchanges the
    last two dimensions [pairs, 2]. False if BEFORE has fewer than four dimensions.
    """
    if before.ndim < 4 or before.shape[-1] != 2:
        return False
    last = before.ndim - 1
    return _turned_to(call.name, call.args, before.ndim) == [*range(last - 1), last, last - 1]


def _half(args: Any, half: Any) -> int | None:
    """Return which half of the last dimension a call of `__getitem__` with ARGS, (tensor, index), takes, with all of
    the other dimensions: 0 for the first (`x[..., :n]`), 1 for the second. HALF is the result of the call. None if it
    takes something else, if the last dimension has an odd size, or if the tensor has fewer than two dimensions.
    """
    tensor, index = args[0], args[1] if len(args) > 1 else None
    last = index[-1] if isinstance(index, tuple) and index else None
    size = tensor.shape[-1] if isinstance(tensor, torch.Tensor) and tensor.ndim > 1 else 0
    if not isinstance(last, slice) or size % 2 or getattr(half, "shape", None) != (*tensor.shape[:-1], size // 2):
        return None
    return {range(size // 2): 0, range(size // 2, size): 1}.get(range(size)[last])


def _every_second(args: Any) -> bool:
    """Return whether a call of `__getitem__` with ARGS, (tensor, index), takes every second element of the last
    dimension and all of the other dimensions, as interleaved rotary embeddings do: `x[..., ::2]`, `x[..., 1::2]`,
    `x[:, :, ::2]`. False for tensors of integers, and for those that have not three or four dimensions.
    """
    tensor, index = args[0], args[1] if len(args) > 1 else None
    if not isinstance(index, tuple) or not index or tensor.ndim not in (3, 4) or not tensor.is_floating_point():
        return False
    *others, last = index
    everything = all(i is Ellipsis or i == slice(None) for i in others)
    whole = len(index) == tensor.ndim or any(i is Ellipsis for i in others)  # else LAST is not of the last dimension
    return isinstance(last, slice) and last.step == 2 and everything and whole
