"""Kinds of tensors: what the calls mean that torch and numpy put into a pickle in place of a tensor.

Dense tensors and parameters become `LazyTensor` as they are read. All other kinds (sparse, quantized, nested, meta, of
a class of their own, with attributes, numpy arrays) stay the inert objects that they are in the file, so that they are
carried as they came; `other_tensor` says what such an object is, and which dense tensor has the same values. Argument
orders are those of `torch/_utils.py` and `torch/_tensor.py` in torch 2.13, and of `numpy.core.multiarray`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

from ..disk.files import Buffer
from ..dtypes import BY_NAME, UINT8, DType
from ..errors import Malformed, printable
from ..records import record
from ..tensor import MOST_DIMENSIONS, LazyTensor, Storage, contiguous_stride
from ..tree import ABSENT, ByteString, Dict, Global, List, Object, Set, holds_tensors_alone, walk


class Contradiction(Malformed):
    """The arguments of a call are none of a tensor. The reader adds where that is."""


@record(frozen=True, eq=False, slots=True)
class OtherTensor:
    """A tensor that is no dense one, or more than that.

    Attributes:
        kind: "sparse_coo", "quantized", "nested", "meta", "numpy", "attributes" (a dense tensor with attributes of its
            own), "device" (made on a device from numbers on the CPU), or "subclass".
        dtype: element type, or None where the file does not tell.
        shape: sizes; those of a nested tensor are not told by one shape, () then.
        parts: the dense tensors that it is made of, by their role ("indices", "values", "scales" …).
        dense: the dense tensor of the same values, where it is there without computing.
        class_name: of a subclass of torch.Tensor, "" otherwise.
        attributes: names of what it carries beside its values.
        requires_grad, parameter: as in `LazyTensor`.
        detail: what decoding needs: scale and zero point, or the axis, of a quantized tensor; strides of a meta one.
    """

    kind: str
    dtype: DType | None
    shape: tuple[int, ...]
    parts: dict[str, LazyTensor]
    dense: LazyTensor | None = None
    class_name: str = ""
    attributes: tuple[str, ...] = ()
    requires_grad: bool = False
    parameter: bool = False
    detail: Any = None

    def __post_init__(self) -> None:
        """Refuse sizes that no tensor has, whatever its kind."""
        _require(min(self.shape, default=0) >= 0, f"a {self.kind} tensor with a negative size")
        _require(prod(n or 1 for n in self.shape) < 1 << 63, f"a {self.kind} tensor of more elements than any memory")

    @property
    def location(self) -> str:
        """Where its parts are: "cpu", "cuda:1", or "meta" for a tensor without any."""
        return next((part.location for part in self.parts.values()), "meta")

    @property
    def nbytes(self) -> int:
        """Bytes that its parts take."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def numel(self) -> int:
        """Elements that are stored: of a sparse tensor only the specified ones."""
        if self.kind.startswith("sparse") or self.kind == "nested":
            return self.parts["values"].numel
        return prod(self.shape)

    @property
    def words(self) -> str:
        """What it is, in a word or two."""
        if self.kind == "subclass":
            return printable(self.class_name.rpartition(".")[2], 40)
        return {"attributes": "with attributes", "numpy": "numpy array"}.get(self.kind, self.kind)


# -- dense tensors

_DENSE = {"_rebuild_tensor": 4, "_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}


def dense_tensor(callee: Global, args: Any) -> LazyTensor | None:
    """The tensor or parameter that a call of one of torch's rebuild functions makes, or None if it is another kind.

    Raises:
        Contradiction, Malformed: the arguments are none of a tensor, or reach out of the storage.
    """
    if callee.module != "torch._utils":
        return None
    if callee.name == "_rebuild_parameter":
        if len(args) != 3 or not isinstance(args[0], LazyTensor) or _not_empty(args[2]):
            return None
        return args[0].changed(requires_grad=args[1] is True, parameter=True)
    fixed = _DENSE.get(callee.name)
    if fixed is None:
        return None
    if not fixed <= len(args) <= fixed + (fixed > 4):
        raise Contradiction(f"calls {callee} with {len(args)} arguments")
    storage, offset, shape, stride, *more = args
    shape, stride = numbers(shape), numbers(stride)
    if not isinstance(storage, Storage) or shape is None or stride is None or type(offset) is not int:
        raise Contradiction(f"calls {callee} with arguments that are none of a tensor")
    if more and _not_empty(more[1]):
        return None  # hooks: torch never writes any; kept as they came
    flags = _flags(args[fixed:])
    tensor = LazyTensor(
        storage,
        _named_dtype(more[2]) if callee.name == "_rebuild_tensor_v3" else storage.dtype or UINT8,
        shape,
        stride,
        offset,
        requires_grad=bool(more) and more[0] is True,
        conj="conj" in flags,
        neg="neg" in flags,
    )
    tensor.check()
    if tensor.conj and not tensor.dtype.is_complex:
        raise Contradiction(f"has a lazily conjugated tensor of {tensor.dtype.name}, which is not a complex type")
    return tensor


def _named_dtype(named: Any) -> DType:
    dtype = BY_NAME.get(named.name) if isinstance(named, Global) and named.module == "torch" else None
    if dtype is None:
        raise Contradiction(f"has a tensor of unknown type {printable(_text(named), 80)}")
    return dtype


def _flags(metadata: tuple[Any, ...]) -> set[str]:
    if not metadata or metadata[0] is None:
        return set()
    if not isinstance(metadata[0], Dict):
        raise Contradiction("has a tensor with metadata that are not a dict")
    flags = {_text(key) for key, value in metadata[0].entries if value is True}
    if flags - {"conj", "neg"}:
        raise Contradiction("has a tensor with unknown metadata")
    return flags


def _text(value: Any) -> str:
    """A text or name as a text; of anything else what it is, since tuples within tuples can be too long to be shown."""
    return str(value) if isinstance(value, str | int | Global) else f"<{type(value).__name__.lower()}>"


def numbers(value: Any) -> tuple[int, ...] | None:
    """A shape or stride: a tuple of integers, or a torch.Size of one. None if VALUE is neither."""
    if _calls(value, "torch.Size") and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, tuple) or len(value) > MOST_DIMENSIONS:
        return None
    for n in value:
        if type(n) is not int or not -1 << 63 <= n < 1 << 63:  # what torch can unpack
            return None
    return value


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, Object) and isinstance(value.callee, Global) and str(value.callee) == name


def _not_empty(hooks: Any) -> bool:
    return not (hooks is None or hooks == () or (isinstance(hooks, Dict) and not hooks.entries))


# -- other kinds

_Maker = Callable[[Object], OtherTensor | None]


def other_tensor(node: Any) -> OtherTensor | None:
    """What kind of tensor an inert object stands for, or None if it stands for none.

    Raises:
        Contradiction, Malformed: its parts do not fit together.
    """
    if not isinstance(node, Object) or not isinstance(node.callee, Global) or not isinstance(node.args, tuple):
        return None
    make = _MAKERS.get(str(node.callee))
    if make is None:
        return None
    known = _KNOWN.get(node)
    if known is None or known.steps != len(node.steps):  # it may have been asked for before its state was read
        known = _KNOWN[node] = _made(make, node)
    if _WITHIN.levels:
        _WITHIN.levels[-1] = max(_WITHIN.levels[-1], known.levels)
    return known.tensor


@record(frozen=True, slots=True)
class _Known:
    tensor: OtherTensor | None
    steps: int
    levels: int


class _Within(threading.local):
    """The tensors that are being looked at, one within the other, and how many levels were found below each."""

    def __init__(self) -> None:
        self.nodes: list[Object] = []
        self.levels: list[int] = []


#: What each object stands for. One that many others are made of is looked at once: a few dozen of them, each holding
#: the one before twice, would else be looked at 2**40 times.
_KNOWN: WeakKeyDictionary[Object, _Known] = WeakKeyDictionary()
_WITHIN = _Within()
_MOST_LEVELS = 32  # of tensors within tensors; a parameter that is a DTensor of a quantized one has four


def _made(make: _Maker, node: Object) -> _Known:
    _require(all(node is not outer for outer in _WITHIN.nodes), "a tensor that is made of itself")
    _WITHIN.nodes.append(node)
    _WITHIN.levels.append(0)
    try:
        _require(len(_WITHIN.nodes) <= _MOST_LEVELS, f"tensors within tensors, more than {_MOST_LEVELS} deep")
        tensor = make(node)
    finally:
        _WITHIN.nodes.pop()
        levels = _WITHIN.levels.pop() + 1
    _require(levels <= _MOST_LEVELS, f"tensors within tensors, more than {_MOST_LEVELS} deep")
    return _Known(tensor, len(node.steps), levels)


def stands_for_a_tensor(node: Any) -> bool:
    """Whether an inert object stands for a tensor of whatever kind, going by its name alone."""
    return isinstance(node, Object) and isinstance(node.callee, Global) and str(node.callee) in _MAKERS


def as_dense(node: Any) -> LazyTensor | None:
    """The dense tensor that a node is or stands for, whatever else it carries; None if there is none."""
    if isinstance(node, LazyTensor):
        return node
    other = other_tensor(node)
    return other.dense if other else None


def _sparse(node: Object) -> OtherTensor:
    layout, data = node.args if len(node.args) == 2 else (None, None)
    name = layout.args[0] if isinstance(layout, Object) and len(layout.args) == 1 else layout
    kind = _text(name).removeprefix("torch.")
    if not isinstance(data, tuple):
        raise Contradiction("has a sparse tensor without data")
    if kind == "sparse_coo":
        _require(3 <= len(data) <= 4, f"a sparse tensor of {len(data)} parts")
        return _coo(as_dense(data[0]), as_dense(data[1]), numbers(data[2]), coalesced=data[3:] == (True,))
    _require(kind in COMPRESSED, f"a tensor of unknown layout {printable(kind, 40)}")
    _require(len(data) == 4, f"a sparse tensor of {len(data)} parts")
    return _compressed(kind, as_dense(data[0]), as_dense(data[1]), as_dense(data[2]), numbers(data[3]))


def _coo(
    indices: LazyTensor | None, values: LazyTensor | None, shape: tuple[int, ...] | None, *, coalesced: bool
) -> OtherTensor:
    if indices is None or values is None or shape is None:
        raise Contradiction("has a sparse tensor whose parts are not tensors")
    _require(len(indices.shape) == 2 and len(values.shape) >= 1, "a sparse tensor with parts of the wrong rank")
    depth, count = indices.shape
    fits = (
        indices.dtype.name == "int64"
        and count == values.shape[0]
        and depth + len(values.shape) - 1 == len(shape)
        and values.shape[1:] == shape[depth:]
    )
    _require(fits, "a sparse tensor whose parts do not fit together")
    return OtherTensor("sparse_coo", values.dtype, shape, {"indices": indices, "values": values}, detail=coalesced)


#: Layout -> whether rows are compressed (else columns), whether values are blocks.
COMPRESSED = {
    "sparse_csr": (True, False),
    "sparse_csc": (False, False),
    "sparse_bsr": (True, True),
    "sparse_bsc": (False, True),
}


def _compressed(
    kind: str, outer: LazyTensor | None, inner: LazyTensor | None, values: LazyTensor | None, shape: Any
) -> OtherTensor:
    if outer is None or inner is None or values is None or shape is None:
        raise Contradiction("has a sparse tensor whose parts are not tensors")
    by_rows, blocks = COMPRESSED[kind]
    batch = len(outer.shape) - 1
    _require(
        batch >= 0 and len(inner.shape) == batch + 1 and len(values.shape) >= batch + 1 + 2 * blocks,
        "a sparse tensor with parts of the wrong rank",
    )
    block = values.shape[batch + 1 : batch + 3] if blocks else (1, 1)
    rest = values.shape[batch + 1 + 2 * blocks :]
    fits = (
        len(shape) == batch + 2 + len(rest)
        and min(block) > 0
        and outer.shape[:batch] == inner.shape[:batch] == values.shape[:batch] == shape[:batch]
        and inner.shape[batch] == values.shape[batch]
        and shape[batch + 2 :] == rest
        and all(size % step == 0 for size, step in zip(shape[batch : batch + 2], block, strict=True))
        and outer.shape[batch] == shape[batch + (not by_rows)] // block[not by_rows] + 1
        and outer.dtype == inner.dtype
        and outer.dtype.name in ("int64", "int32")
    )
    _require(fits, "a sparse tensor whose parts do not fit together")
    return OtherTensor(kind, values.dtype, shape, {"compressed": outer, "indices": inner, "values": values})


#: Those that torch writes, and reads.
_SCHEMES = {f"torch.per_{name}" for name in ("tensor_affine", "channel_affine", "channel_affine_float_qparams")}


def _quantized(node: Object) -> OtherTensor:
    _require(len(node.args) >= 6, "a quantized tensor that lacks arguments")
    storage, offset, shape, stride, scheme, grad = node.args[:6]
    shape, stride = numbers(shape), numbers(stride)
    if not isinstance(storage, Storage) or storage.dtype is None or shape is None or stride is None:
        raise Contradiction("has a quantized tensor without a typed storage")
    if type(offset) is not int:
        raise Contradiction("has a quantized tensor whose offset is not a number")
    packed = {"quint4x2": 2, "quint2x4": 4}.get(storage.dtype.name, 1)
    if packed == 1:
        values = LazyTensor(storage, storage.dtype, shape, stride, offset)
    else:  # several elements in a byte, rows one after the other
        plain = stride == contiguous_stride(shape) and offset == 0 and min(shape, default=0) >= 0
        _require(plain, "a packed tensor that is not a contiguous one")
        values = LazyTensor(storage, storage.dtype, (-(-prod(shape) // packed),), (1,))
    values.check()
    _require(isinstance(scheme, tuple) and len(scheme) >= 3 and isinstance(scheme[0], Global), "no quantizer")
    parts = {"values": values}
    name = str(scheme[0])
    _require(name in _SCHEMES, f"a tensor quantized in an unknown way: {printable(name, 80)}")
    if name == "torch.per_tensor_affine":
        scale, zero = scheme[1:3]
        numeric = type(scale) is float or _fits_64_bits(scale)
        _require(numeric and _fits_64_bits(zero), "a quantized tensor without a scale and a zero point")
        detail: Any = (float(scale), zero)
    else:
        scales, zeros, axis = (*scheme[1:], None)[:3]
        scales, zeros = as_dense(scales), as_dense(zeros)
        if scales is None or zeros is None or type(axis) is not int or not 0 <= axis < len(shape):
            raise Contradiction("has a tensor quantized per channel without scales, zero points and an axis")
        fits = (
            scales.shape == zeros.shape == (shape[axis],)
            and scales.dtype.name in ("float32", "float64")
            and zeros.dtype.name in ("int32", "int64", "float32", "float64")
        )
        _require(fits, "a tensor quantized per channel whose scales do not fit")
        parts |= {"scales": scales, "zero_points": zeros}
        detail = axis
    return OtherTensor("quantized", storage.dtype, shape, parts, requires_grad=grad is True, detail=detail)


def _fits_64_bits(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _nested(node: Object) -> OtherTensor:
    parts = dict(zip(("values", "sizes", "strides", "offsets"), map(as_dense, node.args), strict=False))
    if len(parts) != 4 or not all(parts.values()):
        raise Contradiction("has a nested tensor whose parts are not tensors")
    known = {name: part for name, part in parts.items() if part is not None}
    sizes, strides, offsets = known["sizes"], known["strides"], known["offsets"]
    fits = (
        len(sizes.shape) == 2
        and sizes.shape == strides.shape
        and offsets.shape == sizes.shape[:1]
        and len(known["values"].shape) == 1
        and sizes.dtype.name == strides.dtype.name == offsets.dtype.name == "int64"
    )
    _require(fits, "a nested tensor whose parts do not fit together")
    return OtherTensor("nested", known["values"].dtype, (), known)


def _meta(node: Object) -> OtherTensor:
    dtype, shape, stride, grad = node.args if len(node.args) == 4 else (None,) * 4
    shape, stride = numbers(shape), numbers(stride)
    if shape is None or stride is None or len(shape) != len(stride):
        raise Contradiction("has a meta tensor without sizes")
    return OtherTensor("meta", _named_dtype(dtype), shape, {}, requires_grad=grad is True, detail=stride)


def _on_device(node: Object) -> OtherTensor | None:
    """Made of numbers on the CPU (a tensor or an array), then moved to a device that is no storage's."""
    data, dtype, device, grad = node.args if len(node.args) == 4 else (None,) * 4
    dense = as_dense(data)
    if dense is None:
        return None
    if isinstance(dtype, Global) and _named_dtype(dtype) == dense.dtype:
        dense = dense.changed(requires_grad=grad is True)
        place = str(device) if isinstance(device, str) else ""
        return OtherTensor(
            "device", dense.dtype, dense.shape, {"values": dense}, dense, requires_grad=grad is True, detail=place
        )
    return OtherTensor("device", _named_dtype(dtype), dense.shape, {"values": dense}, requires_grad=grad is True)


def _parameter(node: Object) -> OtherTensor | None:
    """`_rebuild_parameter` around another kind, or `_rebuild_parameter_with_state`."""
    if len(node.args) not in (3, 4) or not isinstance(node.args[1], bool):
        return None
    inner, grad = node.args[:2]
    made = _with_attributes(inner, node.args[3] if len(node.args) == 4 else ABSENT)
    return made and _flagged(made, requires_grad=grad is True, parameter=True)


def _with_attributes(inner: Any, state: Any) -> OtherTensor | None:
    """INNER, a tensor of any kind, with the attributes that torch sets from STATE, or None if it cannot set them."""
    names = _attribute_names(state)
    if names is None:
        return None
    if isinstance(inner, LazyTensor):
        return OtherTensor("attributes", inner.dtype, inner.shape, {"values": inner}, inner, attributes=names)
    other = other_tensor(inner)
    return other and replace(other, attributes=(*other.attributes, *names))


def _attribute_names(state: Any) -> tuple[str, ...] | None:
    """The names in a state: a dict of attributes, or one and a dict of slots."""
    names: list[str] = []
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, Dict) and all(isinstance(key, str) for key, _ in part.entries):
            names += [str(key) for key, _ in part.entries]
        elif part is not None and part is not ABSENT:
            return None
    return tuple(names)


def _flagged(other: OtherTensor, **flags: bool) -> OtherTensor:
    dense = other.dense.changed(**flags) if other.dense is not None else None
    return replace(other, dense=dense, **flags)  # type: ignore[arg-type]


#: What torch.nn.Buffer writes down; no attribute of the user's.
_OF_BUFFERS = {"persistent", "_is_buffer"}
_NESTED_CLASS = "torch.nested._internal.nested_tensor.NestedTensor"


def _from_type(node: Object) -> OtherTensor | None:
    """`_rebuild_from_type(_v2)`: a tensor of some class, or with attributes of its own."""
    if len(node.args) != 4 or not isinstance(node.args[0], Global) or not isinstance(node.args[1], Global):
        return None
    function, cls, args, state = node.args
    class_name = "" if str(cls) in ("torch.Tensor", "torch.nn.parameter.Parameter") else str(cls)
    if not isinstance(args, tuple):
        return None
    if function.name == "_rebuild_wrapper_subclass":
        return _wrapper(class_name, args, state)
    if str(cls) == _NESTED_CLASS:
        return _jagged(args)
    dense = dense_tensor(function, args)
    own_way = class_name and _attribute_names(state) is None  # the class has a `__setstate__`
    inner = dense if dense is not None else Object("reduce", function, args)
    made = _with_attributes(inner, ABSENT if own_way else state)
    if made is None:
        return None
    if own_way:
        made = replace(made, attributes=("its state",))
    kept = tuple(name for name in made.attributes if name not in _OF_BUFFERS)
    if class_name:
        return replace(made, kind="subclass", class_name=class_name, attributes=kept)
    return replace(made, attributes=kept)


def _wrapper(class_name: str, args: tuple[Any, ...], state: Any) -> OtherTensor:
    """A tensor of a class that keeps its values in attributes.

    A DTensor that is not divided is its local tensor, unless that is one of several parts of a sum.
    """
    _require(len(args) == 8, "a wrapped tensor that lacks arguments")
    shape = numbers(args[2])
    if shape is None:
        raise Contradiction("has a wrapped tensor without sizes")
    parts: dict[str, LazyTensor] = {}
    attributes: list[str] = []
    spec: Any = None
    for part in state if isinstance(state, tuple) else (state,):
        for key, value in part.entries if isinstance(part, Dict) else ():
            spec = value if key == "_spec" else spec
            dense = as_dense(value)
            if dense is not None:
                parts[_text(key)] = dense
            else:
                attributes.append(_text(key))
    local = parts.get("_local_tensor")
    alone = local is not None and local.shape == shape and class_name.endswith(".DTensor") and not _is_summed(spec)
    whole = local if alone else None
    grad = args[7] is True
    if whole is not None:
        whole, attributes = whole.changed(requires_grad=grad), [name for name in attributes if name != "_spec"]
    return OtherTensor(
        "subclass", _named_dtype(args[1]), shape, parts, whole, class_name, tuple(attributes), requires_grad=grad
    )


def _is_summed(spec: Any) -> bool:
    """Whether a DTensor is the sum (or the mean, the maximum …) of what several ranks hold, or nobody can tell.

    Source: `torch/distributed/tensor/placement_types.py` of torch 2.13.
    """
    state = spec.state if isinstance(spec, Object) else None
    placements = state.get("placements") if isinstance(state, Dict) else None
    known = ("Replicate", "Shard", "_StridedShard")
    return not isinstance(placements, tuple) or not all(
        isinstance(one, Object) and one.class_name.rpartition(".")[2] in known for one in placements
    )


def _jagged(args: tuple[Any, ...]) -> OtherTensor | None:
    fields = args[0] if len(args) == 1 and isinstance(args[0], Dict) else Dict()
    values, offsets = as_dense(fields.get("values")), as_dense(fields.get("offsets"))
    if values is None or offsets is None:
        return None
    fits = len(values.shape) >= 1 and len(offsets.shape) == 1 and offsets.dtype.name in ("int64", "int32")
    _require(fits, "a nested tensor whose parts do not fit together")
    return OtherTensor("nested", values.dtype, (), {"values": values, "offsets": offsets}, detail="jagged")


def _old_class(node: Object) -> OtherTensor | None:
    """Tensors and parameters of torch 0.1 to 0.3: their class is called, and their state follows."""
    state = node.state
    if isinstance(state, tuple) and len(state) == 4 and isinstance(state[0], Storage):
        dense = dense_tensor(Global("torch._utils", "_rebuild_tensor"), state)
        return _with_attributes(dense, ABSENT)
    inner, grad = node.args[0] if node.args else None, node.args[1] if len(node.args) > 1 else False
    if isinstance(state, tuple) and len(state) == 5:
        inner, grad = state[0], state[3]
    elif isinstance(state, tuple) and len(state) == 3:
        grad = state[0]
    made = _with_attributes(inner, ABSENT)
    parameter = str(node.callee).endswith("Parameter")
    return made and _flagged(made, requires_grad=grad is True, parameter=parameter)


# -- numpy

#: numpy's codes, without the byte order.
_NUMPY_CODES = {
    "b1": "bool",
    **{f"{kind[0]}{bits // 8}": f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
    "c8": "complex64",
    "c16": "complex128",
}


def numpy_dtype(node: Any) -> tuple[DType, bool] | None:
    """(element type, whether big-endian) that a pickled numpy.dtype names; None for objects, texts and records."""
    if not _calls(node, "numpy.dtype") or not node.args:
        return None
    code = node.args[0]
    name = code.name if isinstance(code, Global) and code.module == "ml_dtypes" else _NUMPY_CODES.get(_text(code))
    order = node.state[1] if isinstance(node.state, tuple) and len(node.state) > 1 else "<"
    dtype = BY_NAME.get(name) if name else None
    return None if dtype is None else (dtype, _text(order) == ">")


def _array(node: Object) -> OtherTensor | None:
    """`_reconstruct(…)` with the state (version, shape, dtype, in Fortran's order, data); old ones lack the version."""
    state = node.state
    if not isinstance(state, tuple) or len(state) not in (4, 5):
        return None
    shape, dtype, fortran, data = state[-4:]
    return _numpy(shape, dtype, data, fortran=fortran is True)


def _buffer_array(node: Object) -> OtherTensor | None:
    if len(node.args) != 4:
        return None
    data, dtype, shape, order = node.args
    return _numpy(shape, dtype, data, fortran=_text(order) == "F")


def _number(node: Object) -> OtherTensor | None:
    return _numpy((), *node.args) if len(node.args) == 2 else None


def _numpy(shape: Any, dtype: Any, data: Any, *, fortran: bool = False) -> OtherTensor | None:
    found, sizes = numpy_dtype(dtype), numbers(shape)
    if _calls(data, "builtins.bytearray") and len(data.args) == 1:
        data = data.args[0]
    raw = data.raw if isinstance(data, ByteString) else bytes(data) if isinstance(data, bytes | bytearray) else None
    if found is None or sizes is None or raw is None:
        return None
    kind, big_endian = found
    if min(sizes, default=0) < 0 or prod(sizes) * kind.itemsize != len(raw):
        raise Contradiction(f"has a numpy array of {kind.name} {list(sizes)} with {len(raw):,} bytes")
    stride = tuple(reversed(contiguous_stride(sizes[::-1]))) if fortran else contiguous_stride(sizes)
    storage = Storage(Buffer(raw), "cpu", kind if kind.storage else None, "numpy", big_endian=big_endian)
    dense = LazyTensor(storage, kind, sizes, stride)
    return OtherTensor("numpy", kind, sizes, {"values": dense}, dense)


_MAKERS: dict[str, _Maker] = {
    "torch._utils._rebuild_sparse_tensor": _sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _sparse,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_nested_tensor": _nested,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _on_device,
    "torch._utils._rebuild_device_tensor_from_numpy": _on_device,
    "torch._utils._rebuild_xla_tensor": _on_device,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type": _from_type,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.nn.parameter.Parameter": _old_class,
    "torch.autograd.variable.Variable": _old_class,
    **{f"numpy.{core}.multiarray._reconstruct": _array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _number for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _buffer_array for core in ("core", "_core")},
}
#: Of these all is known when they are called; the others get their state afterwards.
COMPLETE_WHEN_CALLED = frozenset(name for name in _MAKERS if name.startswith(("torch._utils.", "torch._tensor.")))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Contradiction(f"has {what}")


def others_in(root: Any) -> list[tuple[Any, Object, OtherTensor]]:
    """(trail, node, what it is) of every tensor below ROOT that is not dense, the outermost ones only."""
    found = []
    inner: set[int] = set()
    for trail, node in walk(root, holds_tensors_alone):
        if id(node) in inner:
            inner.update(id(below) for below in _below(node))
            continue
        other = other_tensor(node)
        if other is not None:
            found.append((trail, node, other))
            inner.update(id(below) for below in _below(node))
    return found


def _below(node: Any) -> Iterable[Any]:
    if isinstance(node, Object):
        return [node.args, *(value for _, value in node.steps)]
    if isinstance(node, Dict):
        return [value for _, value in node.entries]
    if isinstance(node, List | Set):
        return node.items
    return node if isinstance(node, tuple) else ()
