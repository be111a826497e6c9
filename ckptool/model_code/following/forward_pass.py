"""Follow a forward pass: when each tensor is used, by which function, and what happens to the result.

Values do not matter, only which function takes which tensor. `trace` runs the model under it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..call import ADDS, LOOKS, MULTIPLIES, Call
from ..hollow import shape_only
from ..input_search import Budget
from ..signature import PRODUCTS, Flow
from .attention import Attention
from .batch_norms import BatchNorms
from .bypass import Bypasses
from .channels import Channels
from .feature_maps import FeatureMaps
from .gating import Gating
from .layers_behind import Outputs
from .looked_up import Tables
from .moved import Moved
from .multiplied import Factors, number_in
from .named_parts import NamedParts
from .patches import Patches
from .products import Products
from .recurrent import Cells
from .rotated import Rotary
from .side_by_side import SideBySide
from .split_outputs import Projections
from .use import Use, Uses
from .views_of_parameters import MEMBERS, VIEWS, Views

#: Whether a note that fails stops the pass, as in tests.
strict = False


class Follower(TorchFunctionMode):  # type: ignore[misc]
    """A mode of torch that notes when each parameter is used, by which function, and what happens to the result.

    The forward pass runs inside of `with` this mode; after it, `finish` adds what only the whole pass shows. Calls on
    tensors without values give zeros of the right sizes, without computing, if `shape_only` knows the function. A
    result that is too large raises MemoryError (`Budget`). If a note about a result fails (`_observe`), the pass goes
    on without notes about later results; which function uses which parameter is still noted (`_use`).

    Args:
        keys: id of a parameter or buffer -> its key; the pass adds views of them to this dict.
        buffers: keys of buffers.
    Attributes:
        uses: key -> its first `Use`, in order. Some facts are there only after `finish`.
    """

    def __init__(self, keys: dict[int, str], buffers: Container[str]) -> None:
        super().__init__()
        self._keys = keys
        self.uses: Uses = {}
        self._alive: list[Any] = []
        self._budget = Budget()
        self._seen = 0  # how many parameters were used before a note failed
        self._blind = False  # whether a note has failed; the calls after it are run, and not noted
        self._channels = Channels(buffers)
        self._moved = Moved()
        self._gating = Gating(self._moved)
        self._outputs = Outputs()
        self._views = Views(keys, self._channels.is_of_weights)
        self._products = Products(self.uses, self._views)
        self._factors = Factors()
        self._tables = Tables(self.uses)
        self._feature_maps = FeatureMaps(self._moved)
        self._projections = Projections(self.uses, self._moved, self._gating.comes_from)
        self._rotary = Rotary(self.uses, self._outputs.of, self._channels.learned)
        self._batch_norms = BatchNorms(self.uses)
        self._patches = Patches()
        self._side_by_side = SideBySide(self._moved)
        self._bypasses = Bypasses(self._moved)
        self._named_parts = NamedParts()
        self._attention = Attention(self._gating.made_by, self._named_parts.part_of)
        self._cells = Cells()

    @property
    def rotary(self) -> str | None:
        """Return how the pass pairs outputs ("interleaved", "half", "unknown"); None if it rotates nothing."""
        return self._rotary.kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run FUNC, or take zeros of its sizes instead (`shape_only`), note which parameters it uses and what its
        result shows, and return the result.
        """
        kwargs = kwargs or {}
        call = Call.of(func, args, kwargs)
        self._alive.append(call)  # so that ids stay their own
        for place, value in enumerate(call.values):
            key = self._keys.get(id(value))
            if key is not None and call.name not in LOOKS | VIEWS:  # what is done with the view counts
                self._use(key, call, place, value)
            elif (known := self._views.stands_for(value)) is not None:
                self._products.see(known[0], call, place, value, turned=known[1])
        call.result = shape_only(call.name, call.args, kwargs)
        if call.result is None:
            self._budget.before(call.name, call.args)
            call.result = func(*args, **kwargs)
        self._budget.after(call.results)
        self._batch_norms.take(call)
        if not self._blind:
            try:
                self._observe(call)
            except Exception:  # a note that fails must not cost what the rest of the pass shows
                if strict:
                    raise
                self._blind, self._seen = True, len(self.uses)
        return call.result

    def _observe(self, call: Call) -> None:
        """Note what CALL, which has run, shows: give CALL to each class that follows one idea, those of numbers,
        tables, batch norms and flattened maps only if the result is one tensor. The order matters: later notes read
        earlier ones.
        """
        self._views.see(call)
        self._moved.see(call, self._keys)
        self._rotary.see(call)
        if isinstance(call.result, torch.Tensor):
            of_table = any(map(self._tables.has_factor_of, call.tensors))
            self._factors.see(call, self._channels.learned, of_table=of_table)
            self._tables.see(call, self._keys)
            self._batch_norms.see(call, self._keys)
            self._feature_maps.see(call, self._keys, rows=self._tables.table_of(call.first) is not None)
        self._projections.see(call)
        self._channels.see(call, self._keys)
        self._gating.see(call, self._keys)
        self._bypasses.see(call, self._keys)
        self._patches.see(call, self._channels.learned)
        self._side_by_side.see(call, self._keys)
        self._see_parts(call)
        self._attention.see(call, self._keys)
        self._cells.see(call, self._keys, self._channels.made_with)
        self._named_parts.see_inputs(call, self._keys, self._channels.learned)
        self._outputs.see(call, self._keys)

    def _see_parts(self, call: Call) -> None:
        """Note the parts that CALL divides its first argument into (`NamedParts.see`), if this argument was computed
        from the output of one weight and no other (`Outputs.of`), is rows of a table, is a parameter itself or was
        computed from one parameter in its sizes (`Views.see_alone`), or is the product of the outputs of two weights
        (then the parts are noted for both).
        """
        own = self._views.see_alone(call)
        made = self._outputs.of(call.first) or {self._tables.table_of(call.first) or own}
        if made != {""} and (len(made) == 1 or self._outputs.is_product(call.first)):
            for key in made:
                self._named_parts.see(call, key)

    def _use(self, key: str, call: Call, place: int, value: Any) -> None:
        """Note that CALL takes VALUE, the parameter KEY or a view of it, as argument number PLACE.

        If `uses` does not have KEY, it gets its first use (`_first_use`, and `overlaps`). If CALL is of the same
        function as the first use (or is that use), `runs` grows by 1, from 0; if VALUE is the weight of a layer there,
        and the data of CALL was multiplied by another number than that of the first use, `times` becomes None. If the
        first use took a member out of a stack (`w[i]`) and CALL is a product, `how` of the first use becomes the
        function of CALL. If CALL is a product of a matrix with rows of one_hot, other than a linear layer, it is
        `looked_up`. Which dimensions are inputs is noted, too (`Products`).
        """
        if key not in self.uses:
            self._first_use(key, call.name, place, call.args)
            self.uses[key].facts.overlaps = call.name in _CONVOLUTIONS and place == 1 and _moves_less(call, value)
        again = call.name == self.uses[key].how
        if again and _is_weight(call.name, place) and self.uses[key].facts.times != self._factors.of(call.first):
            self.uses[key].facts.times = None
        self.uses[key].facts.runs += again
        if call.name in PRODUCTS and self.uses[key].how in MEMBERS:
            self.uses[key].how = call.name
        self._products.see(key, call, place, value, turned=self._views.is_turned(value))
        given = any(self._tables.is_one_hot(tensor) for tensor in call.tensors)
        if given and value.ndim == 2 and call.name in PRODUCTS - {"linear"}:
            self.uses[key].facts.looked_up = True

    def _first_use(self, key: str, name: str, place: int, args: Any) -> None:
        """Add to `uses` the first use of the parameter KEY, by the function NAME with ARGS, as argument number PLACE.

        These facts are set:

        - `plus`: the number that NAME adds to the parameter; None if it adds something else, 0 if NAME does not add.
        - `times`: the number that NAME multiplies the parameter by; None if it multiplies by something else. If NAME
          does not multiply, it is 1; for the weight of a layer, the number that its data was multiplied by before.
        - `flattened` and `merged`: how the data of `linear`, `addmm` or `matmul` (the first argument, of `addmm` the
          second) is flattened; None if it is not, or if NAME is another function.
        - `pixels`: only if the parameter is the second argument of `linear` or `matmul` (`@`), or one of a layer norm,
          and each row of the first argument lists the numbers of a patch.
        """
        use = self.uses[key] = Use(len(self.uses), name)
        data = args[1:2] if name == "addmm" else args[:1]  # `addmm` takes the bias first
        first = data[0] if data and isinstance(data[0], torch.Tensor) else None
        if name in ("linear", "addmm", "matmul"):
            use.facts.flattened = self._feature_maps.flattened(first)
            use.facts.merged = self._feature_maps.merged(first)
        if (name in ("linear", "matmul", "__matmul__") and place == 1) or name == "layer_norm":
            use.facts.pixels = self._patches.axes_of(first)
        use.facts.plus = number_in(name, args, ADDS, 0.0)
        use.facts.times = number_in(name, args, MULTIPLIES, self._factors.of(first) if _is_weight(name, place) else 1.0)

    def finish(self) -> None:
        """Set, after the forward pass, the facts in `uses` that only the whole pass shows: `flow`, `joined`, `place`,
        `bypasses`, `input`, `beside_gate`, `by_sigmoid`, `opens`, `gate`, `added`, `attends`, `gates`, `hidden`,
        `parts`, `takes`, `neighbours` and `unflattened`; and `flattened`, where no call has set it. Others stay. If
        a note failed, and layers before that are rotated, it is not known how the later ones are ("unknown").
        """
        if self._blind and self.rotary:
            for use in list(self.uses.values())[self._seen :]:
                use.facts.rotary = use.facts.rotary or "unknown"
        bypasses = self._bypasses.found()
        gates = self._cells.gates()
        unflattened, beside_maps = self._feature_maps.unflattened(), self._feature_maps.beside_maps()
        for key, use in self.uses.items():
            use.facts.bypasses = bypasses.get(key, ())
            use.facts.joined = self._channels.joined.get(key, ())
            use.facts.place = self._channels.places.get(key)
            use.facts.input = self._gating.input_of(key)
            use.facts.beside_gate = self._gating.roles.get(key, "")
            use.facts.by_sigmoid = key in self._gating.by_sigmoid
            use.facts.opens = self._gating.opens.get(key, "")
            use.facts.gate = self._gating.halves.get(key)
            use.facts.added = frozenset(self._gating.added.get(key, ()))
            use.facts.attends = self._attention.role_of(key)
            use.facts.parts = self._named_parts.parts(key, self._attention.roles_of_parts(key))
            use.facts.takes = self._named_parts.takes.get(key, ())
            use.facts.gates = gates.get(key, ())
            use.facts.hidden = self._cells.hidden.get(key)
            use.facts.neighbours = self._side_by_side.found.get(key)
            use.facts.unflattened = unflattened.get(key)
            use.facts.flattened = use.facts.flattened or beside_maps.get(key)
            if key in self._channels.before:
                use.facts.flow = Flow(self._channels.bit[key], self._channels.before[key])


_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})


def _moves_less(call: Call, kernel: torch.Tensor) -> bool:
    """Return whether CALL, a convolution with KERNEL, moves it by less than its size along some dimension."""
    stride = call.kwargs.get("stride", call.args[3] if len(call.args) > 3 else 1)
    steps = [stride] if isinstance(stride, int) else [*stride]
    sizes = kernel.shape[2:]
    return any(step < size for step, size in zip(steps * len(sizes) if len(steps) == 1 else steps, sizes, strict=True))


def _is_weight(name: str, place: int) -> bool:
    """Return whether argument number PLACE, from 0, of the function NAME is the weight of a linear layer or of a
    convolution.
    """
    return place == 1 and (name == "linear" or name.startswith("conv"))


__all__ = ["Follower"]
