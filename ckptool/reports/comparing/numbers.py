"""The values of tensors in bounded memory: compared, summed up as a digest, or described by statistics.

Tensors are read in pieces that fit into the caches of a core, by as many threads as there are cores.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, islice
from math import inf, isfinite, nan, sqrt
from typing import TYPE_CHECKING, Any, TypeVar

from ...disk.files import File, FileRange, Source
from ...dtypes import DType
from ...tensor import LazyTensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Bytes that are looked at at once. Elements of all types fit into it without a rest.
_PIECE = 1 << 18
#: Bytes that are one piece of work for a thread.
_SHARE = 32 << 20
_MOST_THREADS = 8
#: Bytes, and items, that are worth handing over to a thread.
_BATCH, _MOST_TOGETHER = 1 << 20, 1024


def in_threads(
    work: Callable[[_T], _R], items: Iterable[_T], size: Callable[[_T], int] = lambda _: _BATCH
) -> Iterator[_R]:
    """What WORK makes of each item, in order, several at a time. Items are taken up only as they are needed.

    SIZE gives the bytes that an item stands for: a thread takes small ones together, since handing over one takes as
    long as reading some kilobytes.
    """
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    def all_of(batch: list[_T]) -> list[_R]:
        return [work(item) for item in batch]

    batches = _batches(items, size)
    first = list(islice(batches, 2))
    if len(first) < 2:  # nothing to do at the same time
        yield from (work(item) for batch in first for item in batch)
        return
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[list[_R]]] = deque()
        try:
            for batch in chain(first, batches):
                waiting.append(pool.submit(all_of, batch))
                if len(waiting) > 4 * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _batches(items: Iterable[_T], size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Runs of ITEMS that are large enough together."""
    batch: list[_T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= _BATCH or len(batch) == _MOST_TOGETHER:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


class _Window:
    """A source seen through a buffer that is used again and again: memory that stays in the cache."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file: File | None = source.file if isinstance(source, FileRange) else None
        self._start = source.offset if isinstance(source, FileRange) else 0
        self._buffer = bytearray()

    def read(self, at: int, length: int) -> bytes | bytearray:
        """LENGTH bytes from AT, at most _PIECE. What was read before is overwritten.

        Of bytes, not views: those are compared by memcmp, views number by number.
        """
        if self._file is None:
            found = self._source.read(at, length)
            return found if isinstance(found, bytes) else bytes(found)
        if length != len(self._buffer):
            self._buffer = bytearray(length)
        self._file.read_into(memoryview(self._buffer), self._start + at)
        return self._buffer


def shares(length: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of the parts of LENGTH bytes that threads work on one at a time."""
    for at in range(0, length, _SHARE):
        yield at, min(_SHARE, length - at)


# -- digests


def digest(tensor: LazyTensor) -> str:
    """A digest of what a tensor holds: SHA-256 over its type, its shape, and its values in C order, little-endian.

    It does not depend on the container, the name, strides, sharing or the device.
    """
    told = hashlib.sha256(f"{tensor.dtype.name} {list(tensor.shape)}\n".encode())
    source = tensor.source()
    window = _Window(source)
    for at in range(0, source.length, _PIECE):
        told.update(window.read(at, min(_PIECE, source.length - at)))
    return told.hexdigest()


# -- comparing


@dataclass(frozen=True, slots=True)
class Difference:
    """How the values of two tensors of the same shape differ; the second is the one to compare with.

    Attributes:
        elements: how many there are.
        different: how many are not equal. Two NaN are equal.
        beyond: of these, how many are farther apart than the tolerance: |a - b| > atol + rtol * |b|.
        unmatched: how many are NaN or infinite in one of the two only, or infinite with the other sign.
        max_abs, mean_abs: |a - b|, over all elements that are finite in both.
        max_rel, mean_rel: |a - b| / max(|a|, |b|), between 0 and 2, over the same.
        cosine: of the angle between the two as vectors, over the same; NaN if one of them is zero.
        distance: length of a - b, relative to that of b (of a, where b is zero).
    """

    elements: int
    different: int
    beyond: int
    unmatched: int
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    cosine: float
    distance: float


@dataclass(slots=True)
class _Sums:
    """What a part of a comparison adds up to."""

    elements: int = 0
    different: int = 0
    beyond: int = 0
    unmatched: int = 0
    finite: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    max_rel: float = 0.0
    sum_rel: float = 0.0
    ab: float = 0.0
    aa: float = 0.0
    bb: float = 0.0
    dd: float = 0.0

    def add(self, other: _Sums) -> None:
        for name in self.__slots__:
            mine, its = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, its) if name.startswith("max") else mine + its)

    def result(self) -> Difference:
        norms = sqrt(self.aa) * sqrt(self.bb)
        base = self.bb or self.aa
        n = max(self.finite, 1)
        return Difference(
            self.elements,
            self.different,
            self.beyond,
            self.unmatched,
            self.max_abs,
            self.sum_abs / n,
            self.max_rel,
            self.sum_rel / n,
            max(-1.0, min(1.0, self.ab / norms)) if norms and isfinite(norms) else nan,
            inf if self.unmatched else sqrt(self.dd / base) if base else 0.0,
        )


def equal_bits(one: Source, other: Source, at: int, length: int) -> bool:
    """Whether LENGTH bytes from AT are the same in both."""
    left, right = _Window(one), _Window(other)
    return all(
        left.read(begin, min(_PIECE, at + length - begin)) == right.read(begin, min(_PIECE, at + length - begin))
        for begin in range(at, at + length, _PIECE)
    )


def can_be_compared(dtype: DType) -> bool:
    """Whether numbers of a type can be computed with; the bytes of others are equal or not."""
    return dtype.numpy is not None


def compare(
    one: LazyTensor, other: LazyTensor, rtol: float = 0.0, atol: float = 0.0
) -> Iterator[Callable[[], tuple[float, ...]]]:
    """The work of comparing two tensors of one shape, in parts that can be done in any order: each gives its sums."""
    left, right = one.source(), other.source()
    items = one.numel
    step = _SHARE // max(one.dtype.itemsize, other.dtype.itemsize)
    for at in range(0, items, step):
        count = min(step, items - at)

        def part(at: int = at, count: int = count) -> tuple[float, ...]:
            return astuple(_compared(left, right, one.dtype, other.dtype, at, count, rtol, atol))

        yield part


def total(parts: Iterable[Sequence[float]]) -> Difference:
    """The difference that the sums of parts add up to."""
    sums = _Sums()
    for part in parts:
        sums.add(_Sums(*part))  # type: ignore[arg-type]
    return sums.result()


def _compared(
    left: Source, right: Source, dtype: DType, other: DType, at: int, count: int, rtol: float, atol: float
) -> _Sums:
    import numpy as np

    mine, its = _Window(left), _Window(right)
    step = _PIECE // max(dtype.itemsize, other.itemsize)
    sums = _Sums()
    with np.errstate(all="ignore"):
        for begin in range(at, at + count, step):
            size = min(step, at + count - begin)
            a_raw = mine.read(begin * dtype.itemsize, size * dtype.itemsize)
            b_raw = its.read(begin * other.itemsize, size * other.itemsize)
            same = dtype == other and a_raw == b_raw
            a = _numbers(a_raw, dtype)
            _add(sums, a, a if same else _numbers(b_raw, other), same, rtol, atol)
    return sums


def _numbers(raw: bytes | bytearray, dtype: DType) -> Array:
    """The numbers as float64, a complex one as two."""
    import numpy as np

    return as_array(raw, dtype).astype(np.float64)


def as_array(raw: bytes | bytearray, dtype: DType) -> Array:
    """The numbers in their own type, a complex one as two."""
    import numpy as np

    name: Any = dtype.numpy
    if dtype.is_complex:
        name = {"complex64": "float32", "complex128": "float64"}[name]
    elif not hasattr(np, name) and name != "bool":
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    return np.frombuffer(raw, name)


def _add(sums: _Sums, a: Array, b: Array, same: bool, rtol: float, atol: float) -> None:
    import numpy as np

    sums.elements += a.size
    aa = _dot(a, a)
    if same and isfinite(aa):
        sums.finite += a.size
        sums.aa += aa
        sums.bb += aa
        sums.ab += aa
        return
    d = a - b
    dd = _dot(d, d)
    if not isfinite(dd):
        a, b, d = _finite(sums, a, b)
        aa, dd = _dot(a, a), _dot(d, d)
    sums.finite += a.size
    np.abs(d, out=d)
    different = int(np.count_nonzero(d != 0))
    sums.different += different
    sums.max_abs = max(sums.max_abs, float(d.max(initial=0.0)))
    sums.sum_abs += float(d.sum())
    sums.ab += _dot(a, b)
    sums.aa += aa
    sums.bb += _dot(b, b)
    sums.dd += dd
    np.abs(b, out=b)
    sums.beyond += int(np.count_nonzero(d > atol + rtol * b)) if rtol or atol else different
    np.abs(a, out=a)
    np.maximum(a, b, out=b)
    np.maximum(b, np.finfo(np.float64).tiny, out=b)  # two zeros differ by 0
    np.divide(d, b, out=d)
    sums.max_rel = max(sums.max_rel, float(d.max(initial=0.0)))
    sums.sum_rel += float(d.sum())


def _dot(a: Array, b: Array) -> float:
    """The sum of products, without BLAS, which would start threads of its own in each of ours."""
    import numpy as np

    return float(np.einsum("i,i->", a, b))


def _finite(sums: _Sums, a: Array, b: Array) -> tuple[Array, Array, Array]:
    """The elements that are finite in both; the others are counted."""
    import numpy as np

    both = np.isfinite(a) & np.isfinite(b)
    x, y = a[~both], b[~both]
    odd = int(np.count_nonzero(~((x == y) | (np.isnan(x) & np.isnan(y)))))
    sums.unmatched += odd
    sums.different += odd
    sums.beyond += odd
    a, b = a[both], b[both]
    return a, b, a - b


# -- statistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the values of a tensor are like. NaN and infinite values are counted and left out of the rest.

    Attributes:
        elements: how many there are (of complex numbers, both parts).
        min, max, mean, std: of the finite ones, NaN if there is none; std is that of the population.
        zeros, nan, infinite: how many are that.
        histogram: how many are in each of 40 bins of equal width from min to max.
    """

    elements: int
    min: float
    max: float
    mean: float
    std: float
    zeros: int
    nan: int
    infinite: int
    histogram: list[int]


_BINS = 40


def statistics(tensor: LazyTensor) -> Statistics | None:
    """The statistics of a tensor, or None if its type cannot be computed with."""
    import numpy as np

    if not can_be_compared(tensor.dtype):
        return None
    low, high, mean, m2, finite = inf, -inf, 0.0, 0.0, 0
    elements = zeros = nans = infinite = 0
    for part in _parts(tensor):
        elements += part.size
        zeros += int(np.count_nonzero(part == 0))
        good = np.isfinite(part)
        if not good.all():
            nans += int(np.count_nonzero(np.isnan(part)))
            infinite += int(np.count_nonzero(np.isinf(part)))
            part = part[good]
        if not part.size:
            continue
        low, high = min(low, float(part.min())), max(high, float(part.max()))
        here = float(part.mean())
        away = part - here
        # the sums of squares of two parts around their own means, joined (Chan, Golub, LeVeque)
        total, apart = finite + part.size, here - mean
        m2 += _dot(away, away) + apart * apart * finite * part.size / total
        mean += apart * part.size / total
        finite = total
    if not finite:
        return Statistics(elements, nan, nan, nan, nan, zeros, nans, infinite, [])
    bins = np.zeros(_BINS, np.int64)
    for part in _parts(tensor):
        part = part[np.isfinite(part)]
        if high > low:
            place = ((part - low) * (_BINS / (high - low))).astype(np.int64)
            bins += np.bincount(np.minimum(place, _BINS - 1), minlength=_BINS)
        else:
            bins[0] += part.size
    return Statistics(elements, low, high, mean, sqrt(m2 / finite), zeros, nans, infinite, bins.tolist())


def _parts(tensor: LazyTensor) -> Iterator[Array]:
    """All numbers as float64, in pieces."""
    source = tensor.source()
    window = _Window(source)
    for at in range(0, source.length, _PIECE):
        yield _numbers(window.read(at, min(_PIECE, source.length - at)), tensor.dtype)
