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

from ..call import ADDS, CUTS, JOINS, MULTIPLIES, SIGMOIDS, Call
from ..signature import PRODUCTS
from .named_parts import slice_of

_GATES = 4
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
        """Note what one call of a torch function shows about recurrent cells, for `gates` and `hidden`. A product or a
        convolution gives the output of its weights, and may take a hidden state (`_take`). Other calls add such
        outputs, concatenate two tensors, cut an output into parts, take a sigmoid or tanh of a part, or multiply two
        tensors, which shows their gates (`_multiply`). Of other functions, nothing is noted.

        Args:
            call: the call, after it has run.
            keys: id of a parameter or buffer -> its key.
            made_with: whether a tensor was computed with the weight of this key.
        """
        name = call.name
        if name in PRODUCTS or name.startswith("conv"):
            self._sums[id(call.result)] = frozenset(keys[id(t)] for t in call.tensors if id(t) in keys)
            self._take(call, [key for t in call.tensors if (key := keys.get(id(t))) and t.ndim > 1], made_with)
        elif name in ADDS:
            self._add(call, keys)
        elif name in JOINS and isinstance(call.first, tuple | list) and len(call.first) == 2:
            self._joined[id(call.result)] = list(call.first)
        elif name in CUTS or name == "__getitem__":
            self._cut(call)
        elif name in SIGMOIDS | _TANHS:
            self._open(call)
        elif name in MULTIPLIES and len(call.tensors) == 2:
            self._multiply(*call.tensors)

    def _add(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note in `_sums` that the result of CALL, an addition, is a sum of outputs of weights, with the keys of these
        weights and of biases: if each tensor in CALL is such an output, such a sum or a parameter, and not all of them
        are parameters.
        """
        sums = [self._sums.get(id(t), frozenset({keys[id(t)]} if id(t) in keys else ())) for t in call.tensors]
        if any(id(t) in self._sums for t in call.tensors) and all(sums):
            self._sums[id(call.result)] = frozenset().union(*sums)

    def _cut(self, call: Call) -> None:
        """Note in `_parts` the results of CALL that are a fourth of the output of a weight, or of a sum of outputs,
        each with its place from 0 to 3: all results of a function that cuts it into four equal parts (`chunk`), or a
        slice of a fourth of one dimension. Nothing is noted of other parts.
        """
        weights = self._sums.get(id(call.first))
        if weights is None:
            return
        if call.name in CUTS and len(call.result) == _GATES and len({tuple(part.shape) for part in call.result}) == 1:
            self._parts.update((id(part), (weights, at)) for at, part in enumerate(call.result))
        taken = slice_of(call.first, call.args[1]) if call.name == "__getitem__" else None
        if taken is not None and (taken[2] - taken[1]) * _GATES == call.first.shape[taken[0]]:
            self._parts[id(call.result)] = weights, taken[1] // (taken[2] - taken[1])

    def _open(self, call: Call) -> None:
        """Note that the result of CALL is a part after a sigmoid or a tanh, or the tanh of what is no part."""
        part = self._parts.get(id(call.first))
        if part is not None:
            self._opened[id(call.result)] = *part, call.name in SIGMOIDS
        elif call.name in _TANHS:
            self._squashed.add(id(call.result))

    def gates(self) -> dict[str, tuple[str, ...]]:
        """Return key of a weight or bias -> its four gates in the order of its rows, such as ("i", "f", "g", "o"), by
        what all calls have shown. All weights and biases of one sum have the same. A key is left out if the calls show
        no gate or several for one of its four parts, or one gate for two parts; {} if there are none.
        """
        orders = {}
        for weights, found in self._found.items():
            said = [next(iter(found[at])) if len(found[at]) == 1 else "" for at in range(_GATES)]
            if sorted(said) == sorted("ifgo"):
                orders.update(dict.fromkeys(weights, tuple(said)))
        return orders

    def _multiply(self, one: Any, other: Any) -> None:
        """Note which gates ONE and OTHER are, two tensors that are multiplied. For each of them that is a part after a
        sigmoid, the other factor decides. Times a part of the same weights after a tanh, it is "i", and the other "g".
        Times the tanh of a tensor that is no part, it is "o". Times a tensor that is neither a part after a sigmoid or
        a tanh nor such a tanh, it is "f". In other cases nothing is noted.
        """
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
        """Note in `hidden` which of the two concatenated tensors that CALL takes is the hidden state, 0 or 1: the only
        one that was itself computed with the weight in CALL, in an earlier step. WEIGHTS are the keys of the matrices
        in CALL; MADE_WITH(tensor, key) returns whether a tensor was computed with a weight.

        Nothing is noted if WEIGHTS are not just one, if CALL takes no concatenation of two, or if both of these or
        neither was computed with the weight. The first note for a weight stays.
        """
        parts = next((self._joined[id(t)] for t in call.tensors if id(t) in self._joined), None)
        recurs = [made_with(part, weights[0]) for part in parts or ()] if len(weights) == 1 else []
        if recurs.count(True) == 1:
            self.hidden.setdefault(weights[0], recurs.index(True))


__all__ = ["Cells"]
