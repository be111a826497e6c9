"""Find which rows of a matrix are which gate of an LSTM, and where the hidden state is in what a matrix takes.

In `c = f * c + i * g; h = o * tanh(c)` what is done with a part says which gate it is, in whatever order the code cuts
them: g went through a tanh and is multiplied with i, o is multiplied with the tanh of something that is no part, and f
is multiplied with what is left. A hidden state is computed with the matrix that takes it; the other half of what this
matrix takes is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from .call import Call
from .named_parts import slice_of

_GATES = 4
_PRODUCTS = frozenset("linear matmul __matmul__ mm addmm".split())
_ADDS = frozenset("add __add__ __radd__ add_ __iadd__".split())
_CUTS = frozenset("chunk split tensor_split unsafe_chunk".split())
_MULTIPLIES = frozenset("mul multiply __mul__ __rmul__ mul_ __imul__".split())
_JOINS = frozenset("cat concat concatenate".split())
_SIGMOIDS = frozenset("sigmoid sigmoid_ hardsigmoid".split())
_TANHS = frozenset("tanh tanh_".split())

#: The weights whose outputs were added, with their biases.
_Weights = frozenset[str]


class Cells:
    """Follows what is done with four equal parts of the outputs of weights, and what recurrent weights take.

    Attributes:
        hidden: key of a weight that takes two concatenated tensors -> which of them is the hidden state, 0 or 1.
    """

    def __init__(self) -> None:
        self.hidden: dict[str, int] = {}
        self._found: dict[_Weights, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._sums: dict[int, _Weights] = {}  # id of a tensor -> the weights whose outputs it is the sum of
        self._parts: dict[int, tuple[_Weights, int]] = {}  # id of a part -> these weights, and its place
        self._opened: dict[int, tuple[_Weights, int, bool]] = {}  # of a part after a sigmoid (true) or a tanh
        self._squashed: set[int] = set()  # tanh of what is no part
        self._joined: dict[int, list[Any]] = {}  # id of a tensor -> the two tensors that it concatenates

    def see(self, call: Call, keys: Mapping[int, str], made_with: Callable[[Any, str], bool]) -> None:
        """Note what one call of a torch function shows about recurrent cells.

        Args:
            call: the call, after it has run.
            keys: id of a parameter or buffer -> its key.
            made_with: whether a tensor was computed with the weight of this key.
        """
        name, first, result = call.name, call.first, call.result
        if name in _PRODUCTS or name.startswith("conv"):
            own = [keys[id(t)] for t in call.tensors if id(t) in keys]
            self._sums[id(result)] = frozenset(own)
            self._take(call, [key for t in call.tensors if (key := keys.get(id(t))) and t.ndim > 1], made_with)
        elif name in _ADDS:
            sums = [self._sums.get(id(t), frozenset({keys[id(t)]} if id(t) in keys else ())) for t in call.tensors]
            if any(id(t) in self._sums for t in call.tensors) and all(sums):
                self._sums[id(result)] = frozenset().union(*sums)
        elif name in _JOINS and isinstance(first, tuple | list) and len(first) == 2:
            self._joined[id(result)] = list(first)
        elif name in _CUTS and id(first) in self._sums and len(result) == _GATES:
            if len({tuple(part.shape) for part in result}) == 1:
                self._parts.update((id(part), (self._sums[id(first)], at)) for at, part in enumerate(result))
        elif name == "__getitem__" and id(first) in self._sums and (taken := slice_of(first, call.args[1])):
            dim, start, stop = taken
            if (stop - start) * _GATES == first.shape[dim]:
                self._parts[id(result)] = self._sums[id(first)], start // (stop - start)
        elif name in _SIGMOIDS | _TANHS:
            if (part := self._parts.get(id(first))) is not None:
                self._opened[id(result)] = *part, name in _SIGMOIDS
            elif name in _TANHS:
                self._squashed.add(id(result))
        elif name in _MULTIPLIES and len(call.tensors) == 2:
            self._multiply(*call.tensors)

    def gates(self) -> dict[str, tuple[str, ...]]:
        """Return key of a weight or bias -> its gates in the order of its rows, "i", "f", "g" and "o"."""
        orders = {}
        for weights, found in self._found.items():
            said = [next(iter(found[at])) if len(found[at]) == 1 else "" for at in range(_GATES)]
            if sorted(said) == sorted("ifgo"):
                orders.update(dict.fromkeys(weights, tuple(said)))
        return orders

    def _multiply(self, one: Any, other: Any) -> None:
        opened = self._opened.get(id(one)), self._opened.get(id(other))
        for own, theirs, beside in ((*opened, other), (*opened[::-1], one)):
            if own is None or not own[2]:
                continue
            weights, place, _ = own
            if theirs is None:
                self._found[weights][place].add("o" if id(beside) in self._squashed else "f")
            elif theirs[0] == weights and not theirs[2]:
                self._found[weights][place].add("i")
                self._found[weights][theirs[1]].add("g")

    def _take(self, call: Call, weights: list[str], made_with: Callable[[Any, str], bool]) -> None:
        parts = next((self._joined[id(t)] for t in call.tensors if id(t) in self._joined), None)
        if parts is not None and len(weights) == 1:
            recurs = [made_with(part, weights[0]) for part in parts]
            if recurs.count(True) == 1:
                self.hidden.setdefault(weights[0], recurs.index(True))


__all__ = ["Cells"]
