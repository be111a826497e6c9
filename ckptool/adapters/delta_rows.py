"""What adapters do to a weight, each by rows and in float32, so that no whole weight is ever in memory.

A change of a weight W of shape (out, in), a convolution's with its kernel as further columns:

    LoRA     W + s B A                     B (out, r), A (r, in)
    DoRA     m (W + s B A) / |W + s B A|   m (out), norms over everything but out
    LoHa     W + s (B1 A1 * B2 A2)         elementwise
    LoKr     W + s kron(W1, W2)
    IA3      W scaled by rows, or by columns
    tokens   some rows of W replaced

Where the base holds W transposed (GPT-2's Conv1D) or is an embedding, so is the change. Source: the `get_delta_weight`
and `merge` of each tuner of peft 0.21, whose results these equal to rounding.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from ..passes.computing import RECENT, Factor, Rows

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Rows that are looked at together where all of a weight must be seen before the first value is known.
_TOGETHER = 256
#: So that several threads do not all work out the same norms.
_ONE_AT_A_TIME = threading.Lock()


class Change(Protocol):
    """What is added to a matrix."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix that it is added to."""

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""


@dataclass(frozen=True, eq=False, slots=True)
class Product:
    """B A, or its transpose.

    Attributes:
        b, a: the two factors, (out, r) and (r, in).
        turned: the weight is (in, out).
    """

    b: Factor
    a: Factor
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        outer, inner = self.b.shape[0], self.a.shape[1]
        return (inner, outer) if self.turned else (outer, inner)

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        made: Array
        if self.turned:
            made = self.a.values[:, first:last].T @ self.b.values.T
        else:
            made = self.b.values[first:last] @ self.a.values
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Tucker:
    """A product of two factors through a small kernel of a convolution: sum over i, j of T[i, j, …] U[i, p] V[j, q].

    Attributes:
        t: the kernel, (r, r, …).
        u, v: the factors, (r, out) and (r, in).
    """

    t: Factor
    u: Factor
    v: Factor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.u.shape[1], self.v.shape[1] * prod(self.t.shape[2:])

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        parts = self.t.values, self.u.values[:, first:last], self.v.values
        made: Array = np.einsum("ij...,ip,jq->pq...", *parts, optimize=True).reshape(last - first, -1)
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Hadamard:
    """Two matrices multiplied elementwise."""

    one: Change
    other: Change

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.one.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        made: Array = self.one.rows(first, last) * self.other.rows(first, last)
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Kronecker:
    """The Kronecker product of two matrices, the second with the kernel of a convolution as further columns."""

    one: Change
    other: Change

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.one.shape[0] * self.other.shape[0], self.one.shape[1] * self.other.shape[1]

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        inner = self.other.shape[0]
        parts = []
        for row in range(first // inner, -(-last // inner)):
            low, high = max(first - row * inner, 0), min(last - row * inner, inner)
            left = self.one.rows(row, row + 1)[0]
            parts.append(
                (left[None, :, None] * self.other.rows(low, high)[:, None, :]).reshape(high - low, self.shape[1])
            )
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False, slots=True)
class KroneckerOfPeft:
    """The product that peft 0.21 makes for a convolution in one dimension, whose kernel has a length above 1.

    Its `torch.kron` takes (a, b) and (c, d, k) and reads the (c, a d, b k) that come out as (a c, b d, k). So row
    number i of the weight is made of row i % a of the first and number i // a of the second, and its columns run over
    d, b, k. A model that was trained so is merged so.
    """

    one: Change
    other: Change
    kernel: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.one.shape[0] * self.other.shape[0], self.one.shape[1] * self.other.shape[1]

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        outer, parts = self.one.shape[0], []
        for row in range(first, last):
            left = self.one.rows(row % outer, row % outer + 1)[0]
            right = self.other.rows(row // outer, row // outer + 1).reshape(-1, 1, self.kernel)
            parts.append((right * left[None, :, None]).reshape(-1))
        return np.stack(parts) if parts else np.empty((0, self.shape[1]), np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Experts:
    """B A of each of several experts, whose weights lie in one tensor (experts, d0, d1), seen as (experts * d0, d1).

    Attributes:
        b: (out, r * experts): the expert is the last index of a column.
        a: (experts * r, in): the expert is the first index of a row.
        count: how many experts.
        turned: the weights are (in, out).
    """

    b: Factor
    a: Factor
    count: int
    turned: bool

    @property
    def each(self) -> tuple[int, int]:
        """Rows and columns of one expert."""
        outer, inner = self.b.shape[0], self.a.shape[1]
        return (inner, outer) if self.turned else (outer, inner)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.count * self.each[0], self.each[1]

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        height, rank = self.each[0], self.a.shape[0] // self.count
        parts = []
        for expert in range(first // height, -(-last // height)):
            low, high = max(first - expert * height, 0), min(last - expert * height, height)
            b = self.b.values[:, expert :: self.count]
            a = self.a.values[expert * rank : (expert + 1) * rank]
            parts.append(a[:, low:high].T @ b.T if self.turned else b[low:high] @ a)
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Some rows of a change: those from AT, as many as HEIGHT."""

    of: Change
    at: int
    height: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.height, self.of.shape[1]

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        return self.of.rows(self.at + first, self.at + last)


@dataclass(frozen=True, eq=False, slots=True)
class Whole:
    """A matrix that is stored: a factor of a Kronecker product, or a difference that was saved whole."""

    stored: Factor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.stored.shape[0], prod(self.stored.shape[1:])

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        return self.stored.values[first:last].reshape(last - first, -1)


# -- weights with a change


@dataclass(frozen=True, eq=False, slots=True)
class Added:
    """A weight plus a scaled change."""

    base: Rows
    change: Change
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.base.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        made: Array = self.base.rows(first, last) + np.float32(self.scale) * self.change.rows(first, last)
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Decomposed:
    """A weight plus a scaled change, brought to the magnitudes that were learnt (DoRA).

    Attributes:
        base: the weight, with what other adapters did to it.
        plain: the weight of the base model, whose norms count.
        change, scale: what is added.
        magnitude: the norms that were learnt, one for each row, or if BY_COLUMN for each column, or for each run of
            columns as long as a kernel of a convolution.
    """

    base: Rows
    plain: Rows
    change: Change
    scale: float
    magnitude: Factor
    by_column: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.base.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        change = np.float32(self.scale) * self.change.rows(first, last)
        learnt = self.magnitude.values.reshape(-1)
        if self.by_column:
            ratio = np.repeat(learnt / self._of_columns(), self.shape[1] // len(learnt))[None, :]
        else:
            norms = np.linalg.norm(self.plain.rows(first, last) + change, axis=1)
            ratio = (learnt[first:last] / norms)[:, None]
        made: Array = ratio * (self.base.rows(first, last) + change)
        return made

    def _of_columns(self) -> Array:
        """The norm of each column, or run of columns, for which all rows are read once."""
        import numpy as np

        with _ONE_AT_A_TIME:
            found = RECENT.get(self)
            if found is None:
                total = np.zeros(self.shape[1], np.float64)
                for at in range(0, self.shape[0], _TOGETHER):
                    end = min(at + _TOGETHER, self.shape[0])
                    block = self.plain.rows(at, end) + np.float32(self.scale) * self.change.rows(at, end)
                    total += np.square(block.astype(np.float64)).sum(0)
                found = np.sqrt(total.reshape(self.magnitude.values.size, -1).sum(1)).astype(np.float32)
                RECENT.put(self, found)
            return found


@dataclass(frozen=True, eq=False, slots=True)
class Scaled:
    """A weight whose rows, or columns, are multiplied by numbers that were learnt (IA3).

    Attributes:
        base: the weight.
        by: the numbers.
        by_column: one for each column, or for each run of columns as long as a kernel of a convolution.
    """

    base: Rows
    by: Factor
    by_column: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.base.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        by: Array = self.by.values.reshape(-1)
        if self.by_column:
            by = np.repeat(by, self.shape[1] // len(by))[None, :]
        else:
            by = by[first:last, None]
        made: Array = self.base.rows(first, last) * by
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Tokens:
    """A weight with some of its rows replaced.

    Attributes:
        base: the weight.
        places: which rows.
        values: the new ones, in the order of PLACES.
    """

    base: Rows
    places: tuple[int, ...]
    values: Factor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.base.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        made: Array = self.base.rows(first, last).copy()
        for number, place in enumerate(self.places):
            if first <= place < last:
                made[place - first] = self.values.values[number]
        return made
