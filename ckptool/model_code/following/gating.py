"""Find gated pairs (SwiGLU, GEGLU): the layer whose activated output multiplies the output of another layer is its
gate.

In `down(silu(a(x)) * b(x))` the gate is a, whatever its name is. A layer that computes both has the gate in one half of
its output (Shazeer, "GLU Variants Improve Transformer", 2020). Outputs of several layers may be added first, as where
a condition comes in: `tanh(a(x) + c(y)) * sigmoid(b(x) + d(y))`. Further layers may stand between the value and the
product, as in Mamba: `down(silu(a(x)) * ssm(conv(b(x))))`. No other module follows gates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from typing import Any

from ..call import ADDS, MULTIPLIES, SIGMOIDS, Call
from ..signature import PRODUCTS, Gate
from .moved import Moved, takes_parts

#: Functions that only torch's own activations have the names of.
_ACTIVATIONS = frozenset(
    "silu silu_ gelu sigmoid sigmoid_ tanh relu relu_ relu6 elu selu celu leaky_relu mish softplus hardswish "
    "hardsigmoid logsigmoid softsign hardtanh".split()
)


#: What a tensor comes from: the key of a weight, and which half of its outputs, if one. Of a sum, those of several.
_Origin = tuple[str, int | None]
_Origins = tuple[_Origin, ...]
#: Outputs of so many weights in a sum are followed. The sums of residual blocks grow with each block.
_MOST_ADDED = 4
#: Outputs, or halves of outputs, that a tensor was computed from, through whatever: the last ones so many.
_MOST_BEHIND = 16


class Gating:
    """Follows the output of each weight until it is multiplied with the output of another weight.

    Args:
        moved: shows which outputs a tensor holds.
    Attributes:
        roles: key of a weight -> "gate" or "up", for two layers of one size and one input whose outputs are multiplied.
            Either only the output of "gate" goes through an activation before; or the output of "up" goes through
            further layers, whose activations do not count, and the activation of "gate" is no sigmoid.
        halves: key of a weight -> which half of its output is the gate of the other half, and with which activation.
        opens: the same as `roles` in two other cases: both outputs go through an activation, and only that of "gate" is
            a sigmoid; or the output of "up" goes through further layers, and the activation of "gate" is a sigmoid.
        by_sigmoid: the keys of both layers of each pair in `roles` whose gate goes through a sigmoid.
        added: key of a weight -> the weights whose outputs are added to its output, as they are.
    """

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        self.roles: dict[str, str] = {}
        self.halves: dict[str, Gate] = {}
        self.opens: dict[str, str] = {}
        self.by_sigmoid: set[str] = set()
        self.added: dict[str, set[str]] = defaultdict(set)
        self._origins: dict[int, _Origins] = {}
        # id of a tensor -> the outputs and halves that it was computed from, each with a number that counts them all
        self._behind: dict[int, dict[_Origin, int]] = {}
        self._count = 0
        self._last_run: dict[str, int] = {}  # what was counted when the weight was used last
        self._terms: dict[int, frozenset[str]] = {}  # tensors that are the outputs of weights, or sums of these
        self._active: dict[int, str] = {}  # tensors that went through an activation, and which
        self._taken: dict[str, tuple[int, tuple[int, ...]]] = {}  # what a weight works on, and its sizes
        self._inputs: dict[int, int] = {}  # id of such a tensor -> how many were met before it

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note in the attributes what CALL, which has run, shows about gates. KEYS has id of a parameter or buffer ->
        its key.

        A product or a convolution of one weight (of two or more dimensions) and one other tensor gives the output of
        that weight; this tensor is noted as its input (`input_of`). The result of any other call comes from the same
        outputs, or halves of outputs, as the tensors in CALL, if that is known of some of these and is the same for
        them (`_go_on`). A sum of two such tensors of different origins comes from both, if neither went through an
        activation and they come from at most four outputs together. Where CALL multiplies two tensors element by
        element, one of them may be the gate of the other (`_judge`).
        """
        self._compute(call)
        self._add(call)
        if call.name in PRODUCTS or call.name.startswith("conv"):
            self._begin(call.tensors, call.result, keys)
            return
        found = {self._origins[id(t)] for t in call.tensors if id(t) in self._origins}
        for one, other in _multiplied(call):
            self._judge(one, other)
        if len(found) == 1:
            self._go_on(call, *found)
        elif call.name in ADDS and len(found) == 2 and not any(id(t) in self._active for t in call.tensors):
            added = sorted({origin for origins in found for origin in origins}, key=repr)
            if len(added) <= _MOST_ADDED:
                self._origins[id(call.result)] = tuple(added)

    def _add(self, call: Call) -> None:
        """Note in `added` the weights whose outputs CALL adds to each other, four at most: it takes two tensors that
        are nothing but such outputs, or sums of them.
        """
        terms = [self._terms.get(id(t), frozenset()) for t in call.tensors] if call.name in ADDS else []
        if len(terms) != 2 or not all(terms) or len(terms[0] | terms[1]) > _MOST_ADDED:
            return
        self._terms[id(call.result)] = terms[0] | terms[1]
        for key, other in permutations(terms[0] | terms[1], 2):
            self.added[key].add(other)

    def _compute(self, call: Call) -> None:
        """Note in `_behind` that the results of CALL were computed from all that the tensors in CALL were computed
        from: the last 16 outputs and halves of outputs.
        """
        held = {id(one): one for t in call.tensors if (one := self._behind.get(id(t)))}
        last = next(iter(held.values()), {})
        if len(held) > 1:
            behind = {origin: number for one in held.values() for origin, number in one.items()}
            last = dict(sorted(behind.items(), key=lambda item: item[1])[-_MOST_BEHIND:])
        for result in call.result if isinstance(call.result, tuple | list) else (call.result,):
            if hasattr(result, "ndim"):
                self._behind[id(result)] = last

    def _start(self, value: Any, origins: _Origins) -> None:
        """Note that the tensor VALUE is the output, or the half of one, that ORIGINS name; of a sum, those of all."""
        self._origins[id(value)] = origins
        self._count += 1
        self._behind[id(value)] = self._behind.get(id(value), {}) | dict.fromkeys(origins, self._count)

    def _go_on(self, call: Call, origins: _Origins) -> None:
        """Note which outputs, or halves of outputs, the results of CALL come from; its arguments come from ORIGINS.

        Results that hold one half of whole outputs (`_half_of`) are this half. Any other single result comes from
        ORIGINS, too; of other results of a cut, nothing is noted. The activation of halves and single results is noted
        (`_pass_activation`). If CALL is torch's `glu` of whole outputs, only their second half is noted as the gate, in
        `halves`; the result comes from nothing.
        """
        whole = all(half is None for _, half in origins)
        if call.name == "glu" and whole:
            for key, _ in origins:
                self.halves.setdefault(key, Gate(1, "glu"))
            return
        several, parted = isinstance(call.result, tuple | list), whole and takes_parts(call)
        for result in call.result if several else [call.result]:
            half = self._half_of(result) if parted else None
            if half is not None:
                self._start(result, tuple((key, half) for key, _ in origins))
            elif not several and hasattr(result, "ndim"):
                self._origins[id(result)] = origins
            if half is not None or not several:
                self._pass_activation(call, result)

    def _half_of(self, value: Any) -> int | None:
        """Return which half of the outputs of a layer VALUE holds, 0 or 1, whatever places it holds them of; None if it
        holds others, or if that is not known.
        """
        share = self._moved.share_of(value)
        return next((half for half in (0, 1) if share is not None and share.is_part(half, 2)), None)

    def _pass_activation(self, call: Call, result: Any) -> None:
        """Note the activation that RESULT, a result of CALL, went through: CALL itself, or else that of the first of
        its arguments that went through one. Nothing is noted if there is none.
        """
        before = next((self._active[id(t)] for t in call.tensors if id(t) in self._active), None)
        active = call.name if call.name in _ACTIVATIONS else before
        if active is not None:
            self._active[id(result)] = active

    def input_of(self, key: str) -> int | None:
        """Return a number for the tensor that the weight KEY took last, the same for weights that took the same object;
        None if that is not known.
        """
        taken = self._taken.get(key)
        return None if taken is None else self._inputs.setdefault(taken[0], len(self._inputs))

    def comes_from(self, value: Any, key: str) -> bool:
        """Return whether the tensor VALUE was computed from the output of the weight KEY, and of no other weight. False
        if a product without weights (`matmul` of two results) lies between.
        """
        return {own for own, _ in self._origins.get(id(value), ())} == {key}

    def made_by(self, value: Any) -> str | None:
        """Return the key of the weight whose whole output the tensor VALUE was computed from, if it is that of one
        weight and of no other; None if not, and if a product without weights lies between.
        """
        origins = self._origins.get(id(value), ())
        return origins[0][0] if len(origins) == 1 and origins[0][1] is None else None

    def _begin(self, tensors: list[Any], result: Any, keys: Mapping[int, str]) -> None:
        """Note that RESULT, of a product or a convolution of TENSORS, is the output of a weight, and which tensor this
        weight took last (`input_of`). Nothing is noted unless TENSORS are one weight of KEYS (id -> key) with two or
        more dimensions, one tensor that is not in KEYS, and at most vectors of KEYS besides.
        """
        weights = [t for t in tensors if id(t) in keys and t.ndim > 1]
        data = [t for t in tensors if id(t) not in keys]
        if len(weights) == len(data) == 1 and hasattr(result, "ndim"):
            key = keys[id(weights[0])]
            self._last_run[key] = self._count
            self._start(result, ((key, None),))
            self._terms[id(result)] = frozenset((key,))
            self._taken[key] = id(data[0]), tuple(weights[0].shape)

    def _judge(self, one: Any, other: Any) -> None:
        """Note in `roles`, `opens` or `halves` which of ONE and OTHER, two tensors that are multiplied, is the gate
        (`_note_gate`): the only one that went through an activation, or, if both did, the only one whose activation is
        a sigmoid (van den Oord et al., "WaveNet", 2016). Neither is a gate if both are sigmoids, or if both are other
        activations.

        If the value goes through further layers, their activations do not count: the gate is then the only one that
        went through an activation and has its counterpart among all that the other one was computed from (`_behind`).
        What a recurrent cell computed in an earlier step does not count, and neither does a value that is a gate itself
        (a sigmoid).
        """
        made = [self._active.get(id(tensor)) for tensor in (one, other)]
        opens = [name is not None and (None in made or name in SIGMOIDS) for name in made]
        if opens[0] != opens[1]:
            gate, up = (one, other) if opens[0] else (other, one)
            self._note_gate(gate, self._counterparts(gate, self._origins.get(id(up), ())), alone=None in made)
        far = []
        for gate, up in ((one, other), (other, one)):
            near = self._counterparts(gate, self._origins.get(id(up), ()))
            behind = self._behind.get(id(up), {}).items()
            found = self._counterparts(gate, [one for one, number in behind if number > self._last_run[one[0]]])
            if found and not near and id(gate) in self._active and self._active.get(id(up)) not in SIGMOIDS:
                far.append((gate, found))
        if len(far) == 1:
            (gate, found), *_ = far
            self._note_gate(gate, found, alone=self._active[id(gate)] not in SIGMOIDS, far=True)

    def _counterparts(self, gate: Any, among: Collection[_Origin]) -> list[tuple[_Origin, _Origin]]:
        """Return (output, its counterpart) for each output that the tensor GATE comes from, if just one of AMONG is its
        counterpart (`_are_counterparts`).
        """
        found = [
            (own, [one for one in among if self._are_counterparts(own, one)]) for own in self._origins.get(id(gate), ())
        ]
        return [(own, others[0]) for own, others in found if len(others) == 1]

    def _note_gate(
        self, gate: Any, counterparts: Sequence[tuple[_Origin, _Origin]], *, alone: bool, far: bool = False
    ) -> None:
        """Note that the tensor GATE is a gate; COUNTERPARTS has (output that it comes from, output that it multiplies).
        The first note for a weight stays.

        If the two are halves of the output of one weight, `halves` gets the half that is the gate, its activation, and
        whether the other half goes through further layers (FAR). If they are the outputs of two weights, these get
        "gate" and "up": in `roles` if ALONE (and if the gate went through a sigmoid, both are in `by_sigmoid`), else in
        `opens`, because recurrent cells multiply such layers as well.
        ALONE is False if both went through an activation, or if a sigmoid multiplies what went through further layers.
        """
        for (key, half), (other, _) in counterparts:
            if other == key:
                self.halves.setdefault(key, Gate(half or 0, self._active.get(id(gate), "").rstrip("_"), far))
            else:
                known = self.roles if alone else self.opens
                if alone and key not in known and other not in known and self._active.get(id(gate)) in SIGMOIDS:
                    self.by_sigmoid |= {key, other}
                known.setdefault(key, "gate")
                known.setdefault(other, "up")

    def _are_counterparts(self, one: _Origin, other: _Origin) -> bool:
        """Return whether ONE and OTHER, each (key of a weight, half of its output, or None for all of it), are the two
        halves of the output of one weight, or the whole outputs of two weights of equal sizes that took the same tensor
        last.
        """
        (key, half), (other_key, rest) = one, other
        if key == other_key:
            return half is not None and rest is not None and half != rest
        return half is rest is None and self._taken[key] == self._taken[other_key]


def _multiplied(call: Call) -> list[tuple[Any, Any]]:
    """Return the pairs of tensors that CALL multiplies element by element: the two of a product (`a * b`), the last two
    of three of `addcmul`, the weight with each end of `lerp(a, b, weight)`. [] for other calls, and for a product with
    a number.
    """
    tensors = call.tensors
    if call.name in MULTIPLIES and len(tensors) == 2:
        return [(tensors[0], tensors[1])]
    if call.name == "addcmul" and len(tensors) == 3:
        return [(tensors[1], tensors[2])]
    if call.name == "lerp" and len(tensors) == 3:  # a + z * (b - a)
        return [(tensors[0], tensors[2]), (tensors[1], tensors[2])]
    return []
