"""What a checkpoint can be, as Hypothesis strategies.

`checkpoints` makes trees of ckptool, `torch_values` the like of torch's own tensors; both are drawn in the same way.
Containers and tensors are shared, views overlap, and lists and dicts may hold themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import prod

from hypothesis import strategies as st

from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import ALL, BY_NAME, DType
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import ABSENT, Dict, List, Set

#: torch makes no tensor of these but by quantizing.
QUANTIZED = [dtype for dtype in ALL if dtype.name.startswith(("qint", "quint"))]
DENSE = [dtype for dtype in ALL if dtype not in QUANTIZED]
#: Those that torch pickles as a storage of their own class. It reads no others from legacy files, not even its own.
TYPED = [dtype for dtype in DENSE if dtype.storage]
#: Those that torch can also print, which Hypothesis does.
PRINTABLE = [dtype for dtype in DENSE if not dtype.name.startswith("bits")]

TEXTS = st.text(max_size=8) | st.sampled_from(
    [
        "weight",
        "layer.0.weight",
        "",
        "latin1",
        "storage",
        "0",
        "ключ",
        "重み",
        "\x00\n\r",
        "🔥",
        "\ud800",
        "a/b~c",
        "x" * 300,
    ]
)
INTS = st.integers(-3, 300) | st.sampled_from(
    [-(1 << 31), (1 << 31) - 1, 1 << 31, -(1 << 63) - 1, 1 << 200, 65535, 65536]
)
SCALARS = (
    st.none()
    | st.booleans()
    | INTS
    | st.floats()
    | TEXTS
    | st.binary(min_size=1, max_size=6)
    | st.sampled_from([float("nan"), -0.0, float("-inf"), 5e-324])
)
#: What torch's weights_only unpickler has no word for.
ODD_SCALARS = st.sampled_from([b"", 1 << 3000])
KEYS = TEXTS | INTS | st.booleans() | st.floats(allow_nan=False) | st.tuples(TEXTS, INTS)


@dataclass(frozen=True)
class View:
    """A tensor to be made: a view of the pool (a storage) with this number."""

    pool: int
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    parameter: bool = False
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True)
class Pool:
    """A storage to be made."""

    dtype: DType
    data: bytes


@st.composite
def pools(draw, dtypes=tuple(DENSE)):
    dtype = draw(st.sampled_from(dtypes))
    count = draw(st.integers(0, 24))
    seed = draw(st.integers(0, 255))
    raw = bytes((seed + 37 * i + (i >> 3)) & 255 for i in range(count * dtype.itemsize))
    return Pool(dtype, bytes(byte & 1 for byte in raw) if dtype.name == "bool" else raw)


@st.composite
def strided(draw, numel):
    """A (shape, stride, offset) that fits into NUMEL elements: whole, permuted, sliced, expanded or overlapping."""
    kind = draw(st.sampled_from(["whole", "box", "box", "permuted", "scalar", "empty", "expanded"]))
    if numel == 0 or kind == "empty":
        shape = draw(st.sampled_from([(0,), (0, 3), (2, 0, 1)]))
        return shape, contiguous_stride(shape), 0
    if kind == "whole":
        return (numel,), (1,), 0
    if kind == "scalar":
        return (), (), draw(st.integers(0, numel - 1))
    if kind == "permuted":
        rows = draw(st.sampled_from([n for n in range(1, numel + 1) if numel % n == 0]))
        return (rows, numel // rows), (1, rows), 0
    if kind == "expanded":
        return (2, numel), (0, 1), 0
    shape, stride, room = [], [], numel - 1
    for _ in range(draw(st.integers(1, 4))):
        step = draw(st.integers(0, 5))
        size = draw(st.integers(1, 4 if step == 0 else min(room // step + 1, 4)))
        room -= (size - 1) * step
        shape.append(size)
        stride.append(step)
    return tuple(shape), tuple(stride), draw(st.integers(0, room))


@st.composite
def views(draw, number, pool, dtypes=tuple(DENSE)):
    dtype = pool.dtype
    if dtype.storage is None:  # torch lets one untyped storage be seen as several types
        dtype = draw(st.sampled_from([d for d in dtypes if d.storage is None]))
    shape, stride, offset = draw(strided(len(pool.data) // dtype.itemsize))
    real = dtype.is_floating or dtype.is_complex
    parameter = real and draw(st.booleans())
    return View(
        number,
        dtype,
        shape,
        stride,
        offset,
        # torch cannot load a tensor of an untyped storage that requires gradients, unless it is a parameter
        requires_grad=real and (parameter or dtype.storage is not None) and draw(st.booleans()),
        parameter=parameter,
        conj=dtype.is_complex and dtype.name != "complex32" and draw(st.booleans()),
        neg=dtype.name in ("float32", "float64", "complex64") and draw(st.booleans()),
    )


class TreeMaker:
    """Makes nodes of ckptool's tree."""

    def __init__(self, pools, locations=("cpu",)):
        self.storages = [
            Storage(
                Buffer(pool.data),
                locations[i % len(locations)],
                pool.dtype if pool.dtype.storage else None,
            )
            for i, pool in enumerate(pools)
        ]

    def tensor(self, view):
        flags = view.requires_grad, view.parameter, view.conj, view.neg
        return LazyTensor(self.storages[view.pool], view.dtype, view.shape, view.stride, view.offset, *flags)

    def dict(self, entries, ordered, metadata):
        attributes = ABSENT if metadata is None else Dict([("_metadata", metadata)])
        return Dict(list(entries.items()), ordered, attributes)

    def list(self, items):
        return List(list(items))

    def set(self, items, frozen):
        return Set(list(items), frozen)

    def extend(self, holder, item):
        if isinstance(holder, List):
            holder.items.append(item)
        else:
            holder.entries.append(("itself", item))


class TorchMaker:
    """Makes what torch.save would be given."""

    def __init__(self, pools):
        import torch

        self.torch = torch
        self.storages = [
            torch.tensor(list(pool.data), dtype=torch.uint8).untyped_storage() if pool.data else torch.UntypedStorage(0)
            for pool in pools
        ]

    def tensor(self, view):
        import warnings

        torch = self.torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "ComplexHalf support is experimental"
            made = torch.empty(0, dtype=getattr(torch, view.dtype.name))
            made.set_(self.storages[view.pool], view.offset, view.shape, view.stride)
            made = torch._conj(made) if view.conj else made
            made = torch._neg_view(made) if view.neg else made
        if view.parameter:
            return torch.nn.Parameter(made, view.requires_grad)
        return made.requires_grad_() if view.requires_grad else made

    def dict(self, entries, ordered, metadata):
        made = OrderedDict(entries) if ordered else dict(entries)
        if metadata is not None:
            made._metadata = metadata
        return made

    def list(self, items):
        return list(items)

    def set(self, items, frozen):
        return (frozenset if frozen else set)(items)

    def extend(self, holder, item):
        if isinstance(holder, list):
            holder.append(item)
        else:
            holder["itself"] = item


@st.composite
def _values(draw, maker_of, *, weights_only, dtypes=tuple(DENSE)):
    """A dict of everything: later nodes refer to earlier ones, so that nothing is a mere tree."""
    stock = draw(st.lists(pools(dtypes), min_size=1, max_size=4))
    maker = maker_of(stock)
    tensors = [
        maker.tensor(draw(views(number, pool, dtypes)))
        for number, pool in enumerate(stock)
        for _ in range(draw(st.integers(1, 3)))
    ]
    scalars = SCALARS if weights_only else SCALARS | ODD_SCALARS
    nodes = list(tensors)
    holders = []
    for _ in range(draw(st.integers(0, 6))):
        child = st.sampled_from(nodes) | scalars
        kind = draw(st.sampled_from(["dict", "ordered", "list", "tuple", "set"]))
        if kind in ("dict", "ordered"):
            ordered = kind == "ordered"
            entries = draw(st.dictionaries(KEYS, child, max_size=4))
            metadata = None
            if ordered and draw(st.booleans()):
                versions = draw(st.dictionaries(TEXTS, st.just(1), max_size=3))
                metadata = maker.dict(
                    {path: maker.dict({"version": n}, False, None) for path, n in versions.items()}, True, None
                )
            nodes.append(maker.dict(entries, ordered, metadata))
            holders.append(nodes[-1])
        elif kind == "list":
            nodes.append(maker.list(draw(st.lists(child, max_size=4))))
            holders.append(nodes[-1])
        elif kind == "tuple":
            nodes.append(tuple(draw(st.lists(child, max_size=5))))
        else:
            frozen = not weights_only and draw(st.booleans())
            nodes.append(maker.set(draw(st.sets(TEXTS | INTS, max_size=4)), frozen))
    for holder in holders:
        if draw(st.integers(0, 4)) == 0:
            maker.extend(holder, draw(st.sampled_from(nodes)))  # forwards or to itself: a cycle
    return maker.dict({f"n{i}": node for i, node in enumerate(nodes)}, draw(st.booleans()), None)


def torch_values(*, weights_only=True, dtypes=tuple(PRINTABLE)):
    """A dict of torch tensors and plain data, nested, shared and cyclic.

    Args:
        weights_only: only what torch.load(weights_only=True) accepts.
        dtypes: element types to choose from.
    """
    return _values(TorchMaker, weights_only=weights_only, dtypes=dtypes)


def checkpoints(*, dtypes=tuple(DENSE), locations=("cpu", "cuda:1", "meta")):
    """A Checkpoint in memory with everything that a pickle can hold."""
    values = _values(lambda stock: TreeMaker(stock, locations), weights_only=False, dtypes=dtypes)
    return values.map(Checkpoint)


#: Keys as they can stand in the header of a safetensors file: text, but no half of a surrogate pair.
PLAIN_KEYS = TEXTS.filter(lambda text: "\ud800" not in text)


@st.composite
def flat_checkpoints(draw, dtypes=tuple(DENSE)):
    """A state dict alone: text keys and dense tensors, some tied, some views of one storage, with `_metadata`."""
    stock = draw(st.lists(pools(dtypes), min_size=1, max_size=3))
    maker = TreeMaker(stock)
    made = []
    for number, pool in enumerate(stock):
        for _ in range(draw(st.integers(1, 3))):
            view = draw(views(number, pool, dtypes))
            made.append(maker.tensor(replace(view, requires_grad=False, parameter=False)))
    keys = draw(st.lists(PLAIN_KEYS, min_size=1, max_size=8, unique=True))
    entries = {key: draw(st.sampled_from(made)) for key in keys}
    paths = draw(st.none() | st.lists(PLAIN_KEYS, max_size=3, unique=True))
    metadata = None
    if paths is not None:
        metadata = Dict([(path, Dict([("version", 1)])) for path in paths], True)
    return Checkpoint(maker.dict(entries, True, metadata))


def tensor_of(dtype, shape=(3,), data=None, location="cpu", **flags):
    """A contiguous tensor over a storage of its own."""
    kind = BY_NAME[dtype] if isinstance(dtype, str) else dtype
    size = prod(shape) * kind.itemsize
    raw = bytes(i % 2 if kind.name == "bool" else (i * 7 + 1) & 127 for i in range(size)) if data is None else data
    storage = Storage(Buffer(raw), location, kind if kind.storage else None)
    return LazyTensor(storage, kind, tuple(shape), contiguous_stride(tuple(shape)), **flags)


def state_dict_of(entries, metadata=None):
    """A Checkpoint that is a state dict: ENTRIES is a dict of tensors, METADATA a dict of versions by module path."""
    attributes = ABSENT
    if metadata is not None:
        versions = [(path, Dict([("version", version)])) for path, version in metadata.items()]
        attributes = Dict([("_metadata", Dict(versions, True))])
    return Checkpoint(Dict(list(entries.items()), True, attributes))
