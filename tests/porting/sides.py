"""Signatures and tensors for the tests of porting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.model_code.signature import Entry, Signature
from ckptool.porting import mapping
from ckptool.porting.expression import Expr, Shape, lazy
from ckptool.porting.port import port
from ckptool.porting.questions import Question, Reason
from ckptool.tensor import LazyTensor, Storage, contiguous_stride


def lazy_tensor(values: Any) -> LazyTensor:
    """A numpy array as a tensor of a file."""
    values = np.array(values, order="C")  # which keeps a single number one
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


def found(mapping: Any, key: str) -> Any:
    """What was found for one key of the target."""
    return next(entry for entry in mapping.entries if entry.target == key)


@dataclass
class Made:
    """What a port makes of one key: its status, and its values, None where it has no source."""

    status: str
    values: Any
    entry: Any


def worked_out(source: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], **more: Any) -> dict[str, Made]:
    """Port numpy arrays into a model that wants SHAPES, and work out what each key would hold."""
    made = port(signature({k: np.shape(v) for k, v in source.items()}), wanted(shapes, **more))
    tensors = {key: lazy_tensor(value) for key, value in source.items()}
    return {
        e.target: Made(e.status, None if e.expr is None else lazy(e.expr, tensors).numpy(), e) for e in made.entries
    }


def guess(key: str, shape: Shape, expr: Expr, options: tuple[Expr, ...] = ()) -> mapping.Entry:
    """An entry about which it is open which of two tensors it is."""
    return mapping.Entry(key, shape, expr).asking(Question(Reason.SEVERAL_FIT, ("2",), options))
