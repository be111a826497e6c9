"""Casting between floating point types: every value as `torch.Tensor.to` of torch 2.13 gives it on the CPU.

Values are rounded to the nearest, ties to even. All narrow types are reached through float32, as in torch (so float64
is rounded twice). Beyond the range of a type: float16, bfloat16 and float8_e5m2 give infinities; float8_e4m3fn, which
has none, its largest value (448), also for infinities; the fnuz types give NaN. float8_e8m0fnu has powers of two alone:
signs are dropped, and 0 becomes the smallest. Which values that happens to is counted while they are computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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


#: The complex types that others are cast to. Halves of complex32 are widened.
COMPLEX: tuple[DType, ...] = (BY_NAME["complex64"], BY_NAME["complex128"])


def castable(name: str) -> DType:
    """The type of that name, floating point or complex.

    Raises:
        RuleError: there is none that torch casts to.
    """
    found = BY_NAME.get(name.lower().removeprefix("torch."))
    return found if found in COMPLEX else floating(name)


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
            f"{printable(name, 40)!r} is not a floating point dtype of torch; choose from {known}",
            where="--cast",
            hint="--cast bf16",
        )
    return dtype


#: Tensors that are named, those with most values of a kind.
_SHOWN = 4


@dataclass(slots=True)
class Tally:
    """What happened to values while they were cast.

    Attributes:
        values: how many were cast.
        overflow: finite ones beyond the range of the new type.
        underflow: ones that became 0.
        nan: ones that were NaN, and still are.
        names: the same three for each tensor, by its key.
    """

    values: int = 0
    overflow: int = 0
    underflow: int = 0
    nan: int = 0
    names: dict[str, list[int]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def counts(self) -> tuple[int, int, int, int, dict[str, list[int]]]:
        """The four numbers and the names, for `add` of another process."""
        return self.values, self.overflow, self.underflow, self.nan, self.names

    def add(
        self, values: int, overflow: int, underflow: int, nan: int, of: str | Mapping[str, Sequence[int]] = ""
    ) -> None:
        """Count further ones, from any thread: those OF one tensor, or of several, with the three numbers of each."""
        each = {of: (overflow, underflow, nan)} if isinstance(of, str) else of
        with self._lock:
            for name, further in each.items():
                if name and any(further):
                    counts = self.names.setdefault(name, [0, 0, 0])
                    counts[:] = [a + b for a, b in zip(counts, further, strict=True)]
            self.values += values
            self.overflow += overflow
            self.underflow += underflow
            self.nan += nan

    def clear(self) -> None:
        """Begin anew."""
        self.values = self.overflow = self.underflow = self.nan = 0
        self.names.clear()

    def lines(self) -> list[str]:
        """What a person should know."""
        told = (
            (self.overflow, "beyond the range of the new type"),
            (self.underflow, "too small for it, now 0"),
            (self.nan, "NaN, as before"),
        )
        return [
            f"{counted(count, 'value')} {what}{self._where(number)}"
            for number, (count, what) in enumerate(told)
            if count
        ]

    def _where(self, number: int) -> str:
        """The tensors with most of them."""
        counts = sorted(((-counts[number], name) for name, counts in self.names.items() if counts[number]))
        shown = ", ".join(f"{printable(name, 80)} ({-count:,})" for count, name in counts[:_SHOWN])
        more = f" and {len(counts) - _SHOWN:,} more tensors" if len(counts) > _SHOWN else ""
        return f": {shown}{more}" if shown else ""

    def __deepcopy__(self, memo: object) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) for f in fields(self) if f.name[0] != "_"})


def convert(values: Array, dtype: DType, count: Callable[[int, int, int, int], None] | None = None) -> Array:
    """VALUES (of one of the FLOATING types) as DTYPE.

    COUNT is told how many there were, and of them those beyond the range, those that became 0, and those that are NaN.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        if values.dtype == np.float64:
            if dtype.name == "float64":
                return values
            single = values.astype(np.float32)
            if count is not None:
                lost = int(np.count_nonzero(np.isinf(single)) - np.count_nonzero(np.isinf(values)))
                lost = 0 if dtype.name == "float8_e4m3fn" else lost  # it counts infinities as beyond its range
                gone = int(np.count_nonzero(values) - np.count_nonzero(single))
                gone = 0 if dtype.name == "float8_e8m0fnu" else gone  # it has no 0
                count(0, lost, gone, 0)
        else:
            single = values.astype(np.float32, copy=False)
        if count is not None:
            count(values.size, *_count(single, dtype))
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
    bits: Array = single.view(np.uint32) & 0x7FFFFFFF
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
    if hasattr(np, dtype.numpy) or dtype.numpy == "bool":
        return np.dtype(dtype.numpy)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype.numpy))


_PARTS = {name: BY_NAME[name] for name in ("float32", "float64")}


@dataclass(frozen=True, eq=False, slots=True)
class Cast:
    """The values of another source in another type, computed in pieces when they are read."""

    source: Source
    old: DType
    new: DType
    tally: Tally
    name: str = ""
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
        if self.old.is_complex:
            made = self._complex(raw)
        else:
            made = convert(np.frombuffer(raw, numpy_type(self.old)), self.new, self._count)
        return memoryview(made.view(np.uint8).data)[offset - first * item :][:length]

    def _count(self, values: int, overflow: int, underflow: int, nan: int) -> None:
        self.tally.add(values, overflow, underflow, nan, self.name)

    def _complex(self, raw: Any) -> Array:
        """Complex numbers are two numbers each; numpy has no name for complex32."""
        import numpy as np

        part = {4: "float16", 8: "float32", 16: "float64"}
        wide = np.dtype(part[self.new.itemsize])
        halves = np.frombuffer(raw, np.dtype(part[self.old.itemsize]))
        if wide.itemsize > halves.itemsize:
            return halves.astype(wide)
        return convert(halves, _PARTS[wide.name], self._count)

    def chunks(self) -> Iterator[memoryview]:
        """All values, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))
