"""The lazy negative and conjugate of torch: the stored numbers are those of the tensor but for their signs.

Torch notes them as flags of a tensor (`Tensor.is_neg`, `Tensor.is_conj`), and saves the flags. Values are resolved
before they are cast: the narrow types do not all have the same numbers on both sides of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .disk.files import Source
from .dtypes import DType
from .errors import CannotCarry
from .records import record

if TYPE_CHECKING:
    import numpy as np

#: Bytes of a storage that are negated at once.
_NEGATED = 4 << 20


@record(frozen=True, eq=False, slots=True)
class Negated:
    """The numbers of another source with the opposite sign, computed when they are read."""

    source: Source
    dtype: DType

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return self.source.length

    @property
    def step(self) -> int:
        """Bytes that are computed at once."""
        return _NEGATED

    def read(self, offset: int, length: int) -> memoryview:
        """LENGTH bytes from OFFSET."""
        import numpy as np

        item = self.dtype.itemsize
        first, last = offset // item, -(-(offset + length) // item)
        raw = np.frombuffer(self.source.read(first * item, (last - first) * item), np.uint8)
        return memoryview(resolved(raw, self.dtype, conj=False, neg=True).data)[offset - first * item :][:length]

    def chunks(self) -> Iterator[memoryview]:
        """All bytes, in pieces."""
        for at in range(0, self.length, self.step):
            yield self.read(at, min(self.step, self.length - at))


def require_resolvable(dtype: DType, where: object = "") -> None:
    """Refuse a lazily conjugated or negated tensor, in the file WHERE, of a type that has no negative numbers.

    Raises:
        CannotCarry: bool, float8_e8m0fnu, a quantized type, or one of bits.
    """
    integers = dtype.numpy is not None and dtype.numpy.startswith(("int", "uint"))
    signed = dtype.is_complex or (dtype.is_floating and dtype.numpy is not None and dtype.name != "float8_e8m0fnu")
    if not (integers or signed):
        raise CannotCarry(f"a lazily negated tensor of {dtype.name} has no values: torch cannot negate it", where=where)


def resolved(raw: np.ndarray[Any, Any], dtype: DType, *, conj: bool, neg: bool) -> np.ndarray[Any, Any]:
    """Bytes of numbers of DTYPE with the lazy conjugate and negative carried out."""
    import numpy as np

    if not (conj or neg):
        return raw
    require_resolvable(dtype)
    if not (dtype.is_floating or dtype.is_complex):
        wrapped: np.ndarray[Any, Any] = np.negative(raw.view(np.dtype(dtype.numpy)))  # as in torch
        return wrapped.view(np.uint8)
    part = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    signs = raw.copy().reshape(-1, part)
    top = signs[:, part - 1]  # little-endian: the sign is in the last byte
    if dtype.name.endswith("fnuz"):  # has one zero, and its NaN where the negative zero would be
        top ^= ((top & 0x7F) != 0).astype(np.uint8) << 7
    elif neg:
        top ^= np.uint8(0x80)
    if conj:
        top[1::2] ^= np.uint8(0x80)
    flat: np.ndarray[Any, Any] = signs.reshape(-1)
    return flat
