"""Casting between floating point types: every value as `torch.Tensor.to` of torch 2.13 gives it on the CPU.

Values are rounded to the nearest, ties to even. All narrow types are reached through float32, as in torch (so float64
is rounded twice). Beyond the range of a type: float16, bfloat16 and float8_e5m2 give infinities; float8_e4m3fn, which
has none, its largest value (448), also for infinities; the fnuz types give NaN. float8_e8m0fnu has powers of two alone:
signs are dropped, and 0 becomes the smallest. Which values that happens to is counted while they are computed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..disk.files import Source
from ..dtypes import ALL, BY_NAME, BY_SHORT, DType, Limits
from ..errors import RuleError, counted, printable

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: The types that torch casts between.
FLOATING: tuple[DType, ...] = tuple(dtype for dtype in ALL if dtype.is_floating and dtype.numpy)
_INFINITY = 0x7F800000


def floating(name: str) -> DType:
    """The floating point type of that name: torch's ("bfloat16"), or a short one ("bf16", "fp32", "e4m3").

    Raises:
        RuleError: there is none that torch casts to.
    """
    word = name.lower().removeprefix("torch.")
    dtype = BY_SHORT.get(word) or BY_NAME.get(word)
    if dtype not in FLOATING:
        known = ", ".join(dtype.name for dtype in FLOATING)
        raise RuleError(
            f"{printable(name, 40)!r} is no floating point type that torch casts to; there are {known}",
            where="--cast",
            hint="--cast bf16",
        )
    return dtype


@dataclass(slots=True)
class Tally:
    """What happened to values while they were cast.

    Attributes:
        values: how many were cast.
        overflow: finite ones beyond the range of the new type.
        underflow: ones that became 0.
        nan: ones that were NaN, and still are.
    """

    values: int = 0
    overflow: int = 0
    underflow: int = 0
    nan: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def counts(self) -> tuple[int, int, int, int]:
        """The four numbers, for `add`."""
        return self.values, self.overflow, self.underflow, self.nan

    def add(self, values: int, overflow: int, underflow: int, nan: int) -> None:
        """Count further ones, from any thread."""
        with self._lock:
            self.values += values
            self.overflow += overflow
            self.underflow += underflow
            self.nan += nan

    def clear(self) -> None:
        """Begin anew."""
        self.values = self.overflow = self.underflow = self.nan = 0

    def lines(self) -> list[str]:
        """What a person should know."""
        lines = [
            f"{counted(self.overflow, 'value')} beyond the range of the new type" if self.overflow else "",
            f"{counted(self.underflow, 'value')} too small for it, now 0" if self.underflow else "",
            f"{counted(self.nan, 'value')} NaN, as before" if self.nan else "",
        ]
        return [line for line in lines if line]

    def __deepcopy__(self, memo: object) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) for f in fields(self) if f.name[0] != "_"})


def convert(values: Array, dtype: DType, tally: Tally | None = None) -> Array:
    """VALUES (of one of the FLOATING types) as DTYPE, and counted in TALLY."""
    import numpy as np

    with np.errstate(all="ignore"):
        if values.dtype == np.float64:
            if dtype.name == "float64":
                return values
            single = values.astype(np.float32)
            if tally is not None:
                lost = np.count_nonzero(np.isinf(single)) - np.count_nonzero(np.isinf(values))
                lost = 0 if dtype.name == "float8_e4m3fn" else lost  # it counts infinities as beyond its range
                gone = np.count_nonzero(values) - np.count_nonzero(single)
                gone = 0 if dtype.name == "float8_e8m0fnu" else gone  # it has no 0
                tally.add(0, lost, gone, 0)
        else:
            single = values.astype(np.float32, copy=False)
        if tally is not None:
            tally.add(values.size, *_count(single, dtype))
        return _narrowed(single, dtype)


def _narrowed(single: Array, dtype: DType) -> Array:
    import numpy as np

    if dtype.name == "float8_e8m0fnu":
        bits = single.view(np.uint32)
        exponent, rest = (bits >> 23) & 0xFF, bits & 0x7FFFFF
        up = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
        powers: Array = np.minimum(exponent + up, 0xFF).astype(np.uint8).view(numpy_type(dtype))
        return powers
    if dtype.name == "float8_e4m3fn":
        single = np.clip(single, -448, 448)  # NaN stays NaN
    made: Array = single.astype(numpy_type(dtype), copy=False)
    return made


def _count(single: Array, dtype: DType) -> tuple[int, int, int]:
    """How many values are beyond the range of DTYPE, how many too small for it, and how many are NaN."""
    import numpy as np

    if not single.size:
        return 0, 0, 0
    limits = dtype.limits or Limits(_INFINITY)
    bits = single.view(np.uint32) & 0x7FFFFFFF
    over = under = nan = 0
    if int(bits.max()) >= limits.over:
        nan = int(np.count_nonzero(bits > _INFINITY))
        # an infinity that stays one has lost nothing
        kept = 0 if dtype.name == "float8_e4m3fn" else int(np.count_nonzero(bits == _INFINITY))
        over = int(np.count_nonzero(bits >= limits.over)) - nan - kept
    if limits.under and int(bits.min()) <= limits.under:
        under = int(np.count_nonzero(bits <= limits.under) - np.count_nonzero(bits == 0))
    return over, under, nan


def numpy_type(dtype: DType) -> Any:
    """The numpy type of a dtype, of `ml_dtypes` where numpy has none."""
    import numpy as np

    assert dtype.numpy is not None
    if hasattr(np, dtype.numpy):
        return np.dtype(dtype.numpy)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype.numpy))


@dataclass(frozen=True, eq=False, slots=True)
class Cast:
    """The values of another source in another type, computed in pieces when they are read."""

    source: Source
    old: DType
    new: DType
    tally: Tally
    step: int = 1 << 20

    @property
    def length(self) -> int:
        """Bytes of all values."""
        return self.source.length // self.old.itemsize * self.new.itemsize

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        item = self.new.itemsize
        first, last = offset // item, -(-(offset + length) // item)
        raw = self.source.read(first * self.old.itemsize, (last - first) * self.old.itemsize)
        made = convert(np.frombuffer(raw, numpy_type(self.old)), self.new, self.tally)
        return memoryview(made.view(np.uint8).data)[offset - first * item :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))
