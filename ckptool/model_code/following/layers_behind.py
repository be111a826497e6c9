"""Which matrices made what a tensor holds: the outputs of the layers that it was computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..call import MULTIPLIES, Call
from ..signature import PRODUCTS

#: A tensor that was computed from more matrices than this counts as the output of none.
_MOST = 4


class Outputs:
    """Follows the outputs of matrices, through all functions, to the next product or convolution."""

    def __init__(self) -> None:
        self._made_by: dict[int, frozenset[str]] = {}  # id of a tensor -> the matrices that made what it holds
        self._multiplied: set[int] = set()  # products, element by element, of the outputs of two matrices

    def of(self, value: Any) -> frozenset[str]:
        """Return the keys of the matrices that made the tensor VALUE, those of the last products or convolutions before
        it; an empty set if they are not known or more than four.
        """
        return self._made_by.get(id(value), frozenset())

    def is_product(self, value: Any) -> bool:
        """Return whether VALUE is the product, element by element, of the outputs of two matrices."""
        return id(value) in self._multiplied

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note which matrices made the result of CALL, which has run; for several results, for each of them. KEYS has
        id of a parameter or buffer -> its key.

        For a product or a convolution, they are its weights: the parameters among its tensors with two or more
        dimensions, but not the first of these tensors. For another function, they are all matrices that made one of
        its tensors. Nothing is noted if there are none, or more than four, or if a result has a note already.

        Also note that the result is a product of the outputs of two matrices, if CALL multiplies, element by element, a
        tensor that one matrix made with a tensor that another one made.
        """
        if call.name in PRODUCTS or call.name.startswith("conv"):
            made = frozenset(keys[id(t)] for t in call.tensors[1:] if id(t) in keys and t.ndim > 1)
        else:
            each = [self.of(t) for t in call.tensors]
            made = frozenset().union(*each)
            if call.name in MULTIPLIES and [len(keys) for keys in each] == [1, 1] and len(made) == 2:
                self._multiplied.add(id(call.result))
        if 0 < len(made) <= _MOST:
            for one in call.results:
                self._made_by.setdefault(id(one), made)


__all__ = ["Outputs"]
