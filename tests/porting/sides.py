"""Signatures and tensors for the tests of porting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ckptool.dtypes import BY_NAME
from ckptool.files import Buffer
from ckptool.signature import Entry, Signature
from ckptool.tensor import LazyTensor, Storage, contiguous_stride


def lazy_tensor(values: Any) -> LazyTensor:
    """A numpy array as a tensor of a file."""
    values = np.ascontiguousarray(values)
    dtype = BY_NAME[values.dtype.name]
    return LazyTensor(
        Storage(Buffer(values.tobytes()), "cpu", dtype), dtype, values.shape, contiguous_stride(values.shape)
    )


def signature(
    shapes: Mapping[str, tuple[int, ...]] | Iterable[tuple[str, tuple[int, ...]]], *, ordered: bool = True
) -> Signature:
    """What a file with these keys offers."""
    return Signature("a file", {key: Entry(key, tuple(shape)) for key, shape in dict(shapes).items()}, ordered=ordered)


def wanted(shapes: Mapping[str, tuple[int, ...]], *, used: Iterable[str] | None = None) -> Signature:
    """What a model wants; USED lists its keys in the order in which its forward pass takes them."""
    place = {key: n for n, key in enumerate(shapes if used is None else used)}
    entries = {
        key: Entry(key, tuple(shape), parameter="running" not in key, used=place.get(key))
        for key, shape in shapes.items()
    }
    return Signature("Net", entries, traced=used is not None)


def pairing(mapping: Any) -> dict[str, str]:
    """Target key -> expression, of what was found."""
    return {e.target: str(e.expr) for e in mapping.entries if e.expr is not None}
