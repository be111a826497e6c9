"""The numbers of packed and quantised weights, computed by rows in float32 when they are written.

Integers below 8 bits lie in words as one stream of bits, the lowest first. Which of them are neighbours, what they are
counted from and what multiplies them differs between families; see `ckptool.passes.dequantizing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..disk.files import Source
from ..dtypes import DType
from ..errors import CannotCarry
from ..tensor import LazyTensor
from .casting import convert, numpy_type
from .computing import Factor, Rows

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: The 16 values of a float4 (E2M1) by its bits.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
#: Where AWQ puts the first, second … of eight neighbours among the 4-bit parts of a word.
_PLACES_OF_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


def from_words(words: Array, bits: int, count: int) -> Array:
    """The first COUNT integers of BITS in each row of int32 words, without a sign."""
    import numpy as np

    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw[:, :count]
    if bits == 4:
        return np.stack((raw & 15, raw >> 4), -1).reshape(len(raw), raw.shape[1] * 2)[:, :count]
    whole = raw.shape[1] * 8 // bits
    one_by_one = np.unpackbits(raw, axis=1, bitorder="little")[:, : whole * bits].reshape(len(raw), whole, bits)
    made: Array = (one_by_one << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    return made[:, :count]


def _numbers(tensor: LazyTensor, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
    """A part of a matrix, read from where it is."""
    import numpy as np

    part = LazyTensor(
        tensor.storage,
        tensor.dtype,
        (rows[1] - rows[0], columns[1] - columns[0]),
        tensor.stride,
        tensor.offset + rows[0] * tensor.stride[0] + columns[0] * tensor.stride[1],
    )
    source = part.source()
    return np.frombuffer(source.read(0, source.length), numpy_type(tensor.dtype)).reshape(part.shape)


class Integers(Protocol):
    """A matrix of integers, by rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST, in any type of numbers."""


@dataclass(frozen=True, eq=False, slots=True)
class InRows:
    """Integers that are packed along the rows, each row into words of its own.

    Attributes:
        words: (rows, words) of 4 bytes; or, DOWN, (words, rows), as GPTQ stores them.
        bits: of an integer.
        columns: how many integers a row has.
        minus: what is subtracted from each.
        down: the words of a row stand below each other.
    """

    words: LazyTensor
    bits: int
    columns: int
    minus: int = 0
    down: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.words.shape[1 if self.down else 0], self.columns

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        if self.down:
            words = _numbers(self.words, (0, self.words.shape[0]), (first, last)).T
        else:
            words = _numbers(self.words, (first, last), (0, self.words.shape[1]))
        made: Array = from_words(words, self.bits, self.columns).astype(np.float32) - np.float32(self.minus)
        return made


@dataclass(frozen=True, eq=False, slots=True)
class AcrossColumns:
    """Integers that are packed along the rows of the transposed weight, whose columns are asked for.

    Attributes:
        words: (columns of the weight, words) int32.
        bits: of an integer.
        count: rows of the weight.
        of_awq: eight neighbours stand in the order of AWQ.
        minus: what is subtracted from each.
        never: an integer that must not be there, or -1.
    """

    words: LazyTensor
    bits: int
    count: int
    of_awq: bool
    minus: int = 0
    never: int = -1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the weight."""
        return self.count, self.words.shape[0]

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        # 32 integers begin and end with a word, whatever their bits; eight of 4 bits do
        low = first // 32 * self.bits
        high = min(-(-last // 32) * self.bits, self.words.shape[1])
        words = _numbers(self.words, (0, self.words.shape[0]), (low, high))
        numbers = from_words(words, self.bits, (high - low) * 32 // self.bits)
        if self.of_awq:
            numbers = numbers.reshape(len(numbers), -1, 8)[:, :, _PLACES_OF_AWQ].reshape(len(numbers), -1)
        start = first // 32 * 32
        wanted = numbers[:, first - start : last - start].T
        if self.never >= 0 and (wanted == self.never).any():
            raise CannotCarry(f"has a zero point that is stored as {self.never}, which its readers take for two things")
        made: Array = wanted.astype(np.float32) - np.float32(self.minus)
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Halves:
    """Values of 4 bits from a table, two in a byte, the low half first.

    Attributes:
        bytes_: (rows, columns / 2) of one byte each.
        table: the 16 values.
    """

    bytes_: LazyTensor
    table: tuple[float, ...] = E2M1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.bytes_.shape[0], self.bytes_.shape[1] * 2

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        raw = _numbers(self.bytes_, (first, last), (0, self.bytes_.shape[1])).view(np.uint8)
        made: Array = np.array(self.table, np.float32)[np.stack((raw & 15, raw >> 4), -1).reshape(len(raw), -1)]
        return made


@dataclass(frozen=True, eq=False, slots=True)
class Looked:
    """Integers of up to 8 bits as what they are the places of in a table: of floats with few bits, every value.

    Attributes:
        places: the integers.
        table: the values.
    """

    places: InRows
    table: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.places.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        made: Array = np.array(self.table, np.float32)[self.places.rows(first, last).astype(np.uint8)]
        return made


@dataclass(frozen=True, eq=False, slots=True)
class OfMlx:
    """A weight of MLX: q * scale + bias, rounded twice, as MLX computes it in the type of the scales.

    Attributes:
        numbers: q.
        scales, biases: (rows, groups).
        group: columns of a group.
        dtype: the type of the scales.
    """

    numbers: InRows
    scales: Factor
    biases: Factor
    group: int
    dtype: DType

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.numbers.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        scales, biases = (np.repeat(one.values[first:last], self.group, axis=1) for one in (self.scales, self.biases))
        products = convert(self.numbers.rows(first, last) * scales, self.dtype).astype(np.float32)
        made: Array = products + biases
        return made


# -- scales


def _powers(values: Array) -> Array:
    """Powers of two by their exponents, which count from 127."""
    import numpy as np

    powers: Array = np.ldexp(np.float32(1), values.astype(np.int32) - 127)
    return powers


@dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """(q - zero) * scale, with a scale for each block of rows and columns.

    Attributes:
        numbers: q.
        scales: (blocks down, blocks across), or one number.
        block: rows and columns of a block; those at the edges may be smaller.
        zeros: what the numbers are counted from, of the shape of the scales, or None.
        exponents: the scales are exponents of two.
        groups: which block across each column is in, where columns of one block are no neighbours.
        also: a further factor of all; if DIVIDES, it divides the scales.
        divides: see ALSO.
    """

    numbers: Integers | Rows
    scales: Integers | Rows
    block: tuple[int, int]
    zeros: Integers | Rows | None = None
    exponents: bool = False
    groups: Factor | None = None
    also: Factor | None = None
    divides: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.numbers.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        values = self.numbers.rows(first, last).astype(np.float32)
        if self.zeros is not None:
            values -= self._spread(self.zeros.rows, first, last)
        scales = self._spread(self._of_scales, first, last)
        made: Array = values * scales
        return made

    def _of_scales(self, first: int, last: int) -> Array:
        import numpy as np

        scales = self.scales.rows(first, last)
        scales = _powers(scales) if self.exponents else scales.astype(np.float32)
        if self.also is not None:
            also = self.also.values.reshape(-1)[:1]
            scales = scales / also if self.divides else scales * also
        return scales

    def _spread(self, read: Any, first: int, last: int) -> Array:
        """One number for each element of some rows."""
        import numpy as np

        down, across = self.block
        low, high = first // down, -(-last // down)
        found: Array = read(low, high)
        if found.shape[1] > 1:
            columns = self.numbers.shape[1]
            if self.groups is not None:
                found = found[:, self.groups.values.reshape(-1)]
            else:
                found = np.repeat(found, across, axis=1)[:, :columns]
        if down > 1:
            found = np.repeat(found, down, axis=0)[first - low * down : last - low * down]
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Small:
    """A small matrix that is kept while it is needed: scales and zeros.

    Attributes:
        stored: its values.
        turned: they are stored transposed.
    """

    stored: Factor
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.stored.shape
        return (columns, rows) if self.turned else (rows, columns)

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        values: Array = self.stored.values
        return values[:, first:last].T if self.turned else values[first:last]


@dataclass(frozen=True, eq=False, slots=True)
class OfBitsandbytes:
    """A weight of bitsandbytes in 4 bits: the first value of two in the high half, scales for runs of values.

    Attributes:
        halves: two values in each byte.
        table: the 16 values.
        scales: one for each run, or, NESTED, its place in a table.
        run: how many values have one scale.
        shape: rows and columns.
        nested: (table, scales of runs of scales, how many have one, what is added), or None.
    """

    halves: Source
    table: Factor
    scales: Source
    run: int
    shape: tuple[int, int]
    nested: tuple[Factor, Factor, int, float] | None = None

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        begin, end = first * self.shape[1], last * self.shape[1]
        low, high = begin // 2, -(-end // 2)
        raw = np.frombuffer(self.halves.read(low, high - low), np.uint8)
        values = self.table.values[np.stack((raw >> 4, raw & 15), -1).reshape(-1)[begin - low * 2 : end - low * 2]]
        scales = self._scales(begin // self.run, -(-end // self.run))
        start = begin // self.run * self.run
        made: Array = values * np.repeat(scales, self.run)[begin - start : end - start]
        return made.reshape(last - first, self.shape[1])

    def _scales(self, first: int, last: int) -> Array:
        import numpy as np

        if self.nested is None:
            return np.frombuffer(self.scales.read(first * 4, (last - first) * 4), np.float32)
        table, outer, run, offset = self.nested
        places = np.frombuffer(self.scales.read(first, last - first), np.uint8)
        found: Array = table.values[places] * outer.values[np.arange(first, last) // run] + np.float32(offset)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Scaled8:
    """A weight of bitsandbytes in 8 bits: q * scale / 127, with a scale for each row."""

    numbers: Rows
    scales: Factor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.numbers.shape

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        scales = self.scales.values.reshape(-1)[first:last, None]
        made: Array = self.numbers.rows(first, last) * scales * np.float32(7.874015718698502e-3)
        return made


@dataclass(frozen=True, eq=False, slots=True)
class OfGptOss:
    """Experts in MXFP4, as gpt-oss stores them, transposed as its code wants them.

    Attributes:
        blocks: (experts, columns, groups, 16): 32 values of 4 bits in a group.
        scales: (experts, columns, groups): exponents of two.
    """

    blocks: LazyTensor
    scales: LazyTensor

    @property
    def shape(self) -> tuple[int, int]:
        """The rows of all experts, and columns."""
        experts, columns, groups, half = self.blocks.shape
        return experts * groups * half * 2, columns

    def rows(self, first: int, last: int) -> Array:
        """The rows from FIRST up to LAST."""
        import numpy as np

        _, columns, groups, half = self.blocks.shape
        each, group = groups * half * 2, half * 2
        parts = []
        for expert in range(first // each, -(-last // each)):
            low, high = max(first - expert * each, 0), min(last - expert * each, each)
            one, end = low // group, -(-high // group)
            halves = self._part(self.blocks, expert, one, end)
            powers = self._part(self.scales, expert, one, end)
            table = np.array(E2M1, np.float32)
            values = table[np.stack((halves & 15, halves >> 4), -1).reshape(columns, end - one, group)]
            values = np.ldexp(values, powers.astype(np.int32)[:, :, None] - 127)
            parts.append(values.reshape(columns, -1).T[low - one * group : high - one * group])
        return np.concatenate(parts)

    @staticmethod
    def _part(tensor: LazyTensor, expert: int, first: int, last: int) -> Array:
        import numpy as np

        shape = (tensor.shape[1], last - first, *tensor.shape[3:])
        offset = tensor.offset + expert * tensor.stride[0] + first * tensor.stride[2]
        source = LazyTensor(tensor.storage, tensor.dtype, shape, tensor.stride[1:], offset).source()
        return np.frombuffer(source.read(0, source.length), np.uint8).reshape(shape)
