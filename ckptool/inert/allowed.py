"""Which classes a pickle may name, and which of them we write back.

An allow-list, exact names only: whatever it does not know counts as able to run code when somebody unpickles it. (Lists
of forbidden names have been bypassed for as long as there have been any.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from ..dtypes import BY_NAME, BY_STORAGE
from ..tree import Dict, Global, Object, Walked, holds_tensors_alone, walk

_TENSOR_TYPES = "BFloat16 Bool Byte Char Double Float Half Int Long Short".split()
_SPARSE_TYPES = [name for name in _TENSOR_TYPES if name != "Bool"]
_TORCH_CONSTANTS = """
    int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7
    per_tensor_affine per_channel_affine per_channel_affine_float_qparams per_tensor_symmetric per_channel_symmetric
""".split()

#: What `torch.load(weights_only=True)` accepts in torch 2.13, apart from calls that allocate what they are told to.
PLAIN: frozenset[str] = frozenset(
    [
        *(f"torch.{name}" for name in ("Size", "Tensor", "device", *BY_NAME, *_TORCH_CONSTANTS)),
        *(f"torch.{name}" for name in BY_STORAGE),
        *(f"{module}.{name}Tensor" for module in ("torch", "torch.cuda") for name in _TENSOR_TYPES),
        *(f"{module}.sparse.{name}Tensor" for module in ("torch", "torch.cuda") for name in _SPARSE_TYPES),
        *(f"torch.cuda.{name}Storage" for name in (*_TENSOR_TYPES, "ComplexDouble", "ComplexFloat")),
        "torch.storage.UntypedStorage",
        "torch.storage.TypedStorage",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch._tensor._rebuild_from_type_v2",
        *(
            f"torch._utils._rebuild_{name}"
            for name in """tensor tensor_v2 tensor_v3 parameter parameter_with_state sparse_tensor qtensor nested_tensor
            meta_tensor_no_storage device_tensor_from_cpu_tensor device_tensor_from_numpy wrapper_subclass""".split()
        ),
        "collections.OrderedDict",
        "collections.Counter",
        "_codecs.encode",
        *(f"builtins.{name}" for name in ("set", "bytearray", "complex")),
    ]
)

_NUMPY_CORES = ("numpy.core", "numpy._core")

#: Classes that only hold data: unpickling them sets attributes or items and calls nothing of the file's choosing.
HARMLESS: frozenset[str] = frozenset(
    [
        "argparse.Namespace",
        "types.SimpleNamespace",
        "collections.defaultdict",
        "collections.deque",
        *(
            f"builtins.{name}"
            for name in "bool bytes dict float frozenset int list object range slice str tuple".split()
        ),
        "builtins.Ellipsis",
        "builtins.NotImplemented",
        "copyreg._reconstructor",
        *(
            f"pathlib{inner}.{name}"
            for inner in ("", "._local")
            for name in "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath".split()
        ),
        *(f"datetime.{name}" for name in "date datetime time timedelta timezone".split()),
        "decimal.Decimal",
        "fractions.Fraction",
        "uuid.UUID",
        "typing.Any",
        *(
            f"torch.distributed.checkpoint.metadata.{name}"
            for name in """BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties
            TensorStorageMetadata _MEM_FORMAT_ENCODING""".split()
        ),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "numpy.ndarray",
        "numpy.dtype",
        *(f"{core}.multiarray._reconstruct" for core in _NUMPY_CORES),
        *(f"{core}.multiarray.scalar" for core in _NUMPY_CORES),
        *(f"{core}.numeric._frombuffer" for core in _NUMPY_CORES),
        *(f"numpy.dtypes.{kind}DType" for kind in "Bool Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64".split()),
        *(f"numpy.dtypes.{kind}DType" for kind in "Float16 Float32 Float64 Complex64 Complex128 Str Bytes".split()),
        # the records of torch.distributed.checkpoint, all of them dataclasses
        *(
            f"torch.distributed.checkpoint.metadata.{name}"
            for name in """Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata
            TensorProperties StorageMeta _MEM_FORMAT_ENCODING""".split()
        ),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "omegaconf.dictconfig.DictConfig",
        "omegaconf.listconfig.ListConfig",
        "omegaconf.base.ContainerMetadata",
        "omegaconf.base.Metadata",
        *(
            f"omegaconf.nodes.{kind}Node"
            for kind in "Any Boolean Bytes Enum Float Integer Path String Union Interpolation".split()
        ),
    ]
)

#: In place of the name of what is called, where that is not a global.
COMPUTED = "calls of computed functions"

#: What these make is as large as what they are given says, if that is itself computed: `list(range(10**12))`.
_BUILDERS = frozenset(
    [
        *(f"builtins.{name}" for name in "bytes bytearray dict float frozenset int list set str tuple complex".split()),
        *(f"collections.{name}" for name in "Counter OrderedDict defaultdict deque".split()),
        *("decimal.Decimal", "fractions.Fraction", "torch.Size", "torch.Tensor"),
        *(name for name in PLAIN if name.endswith(("Tensor", "Storage"))),
    ]
)
#: And these take as much as a number says.
_TAKERS = frozenset(
    ["builtins.bytes", "builtins.bytearray", "numpy.ndarray"]
    + [name for name in PLAIN if name.endswith(("Tensor", "Storage"))]
)
_RECONSTRUCT = frozenset(f"{core}.multiarray._reconstruct" for core in _NUMPY_CORES)
_REBUILD_BY = ("torch._tensor._rebuild_from_type", "torch._tensor._rebuild_from_type_v2")
#: Calls of which `called_name` looks at the arguments.
_LOOKED_INTO = frozenset(
    [
        *(*_BUILDERS, *_TAKERS, *_RECONSTRUCT, *_REBUILD_BY),
        *("_codecs.encode", "copyreg._reconstructor", "fractions.Fraction", "numpy.dtype"),
    ]
)

#: How torch and Python spell plain data; not worth a line in a listing of objects.
_PLUMBING = PLAIN | {"builtins.bytes", "builtins.frozenset"}


def named_globals(root: Any, walked: Walked | None = None) -> Counter[str]:
    """Every class and function that the tree below ROOT names, with how many nodes name it. WALKED: its nodes, if
    somebody has walked it already.

    A call of something that is itself computed, and one of `_codecs.encode` other than the spelling of a byte string
    (which is read as bytes; nested ones multiply memory), count as `COMPUTED`.
    """
    counted: Counter[str] = Counter()
    for _, node in walk(root, holds_tensors_alone) if walked is None else walked:
        if isinstance(node, Object):
            counted[called_name(node)] += 1
        elif isinstance(node, Global):
            counted.setdefault(str(node), 1)
    return counted


def called_name(made: Object) -> str:
    """The name of what makes an object, or `COMPUTED`."""
    name = str(made.callee) if isinstance(made.callee, Global) else COMPUTED
    args = made.args
    if made.how == "newobj_ex" and len(args) == 2 and isinstance(args[0], tuple):
        args = (*args[0], *([value for _, value in args[1].entries] if isinstance(args[1], Dict) else args[1:]))
    return COMPUTED if name == "_codecs.encode" or _allocates(name, args) or _corrupts(name, made) else name


def _allocates(name: str, args: Any) -> bool:
    """Whether a call makes as much as it is told to: `bytes(10**12)`, `list(range(10**12))`."""
    if name == "copyreg._reconstructor" and len(args) == 3:  # (class, base, state): base.__new__(class, state)
        base = str(args[1]) if isinstance(args[1], Global) else COMPUTED
        return base != "builtins.object" and (base == COMPUTED or _allocates(base, args[2:]))
    if name in _REBUILD_BY:  # (function, type, args, state): function(*args)
        return not args or not isinstance(args[0], Global) or str(args[0]) not in _REBUILDERS
    if name in _RECONSTRUCT:  # (class, shape, type): an empty one, which gets its state later
        empty = len(args) == 3 and isinstance(args[1], tuple) and 0 in args[1]
        return not empty or isinstance(args[2], Object)
    if name == "fractions.Fraction" and any(isinstance(arg, str) and not _RATIO.fullmatch(arg) for arg in args):
        return True
    if name in _TAKERS and any(isinstance(arg, int) or type(arg) is tuple for arg in args):
        return True
    return name in _BUILDERS and any(isinstance(arg, Object) for arg in args)


_RATIO = re.compile(r"-?\d+(/\d+)?")
_REBUILDERS = frozenset(name for name in PLAIN if name.startswith("torch._utils._rebuild_"))


def _corrupts(name: str, made: Object) -> bool:
    """Whether it makes a numpy type whose parts contradict each other.

    numpy takes the flags of a type from the file: a type of objects that does not say so has arrays whose bytes, also
    from the file, are pointers.
    """
    return name == "numpy.dtype" and (not made.args or _item_bytes(made, {}) is None)


_CODE = re.compile(r"([biufcSUVOMm?])(\d{0,9})")
_OBJECT, _STRUCTURE = 63, 16  # flags of a type of objects; what a structure adds to the flags that it has of its parts
_INHERITED = 27


def _item_bytes(node: Any, seen: dict[int, tuple[int, int] | None]) -> tuple[int, int] | None:
    """(bytes, flags) of an item of a pickled numpy.dtype that numpy itself could have written, or None."""
    if id(node) not in seen:
        seen[id(node)] = None  # also while it is in work: no type is part of itself
        if isinstance(node, Object) and str(node.callee) == "numpy.dtype" and node.args and len(seen) < 1000:
            states = [value for _, value in node.steps]
            seen[id(node)] = _typed(node.args[0], states, seen) if len(states) < 2 else None
    return seen[id(node)]


def _typed(code: Any, states: list[Any], seen: dict[int, tuple[int, int] | None]) -> tuple[int, int] | None:
    state = states[0] if states else (3, "|", None, None, None, -1, -1, None)
    if not isinstance(state, tuple) or len(state) not in (8, 9):
        return None
    _, _, base, names, fields, item, _, flags = state[:8]
    simple = base is None and names is None and fields is None
    if isinstance(code, Global):
        known = BY_NAME.get(code.name) if code.module == "ml_dtypes" else None
        return (known.itemsize, 64) if known and simple and flags in (64, None) else None
    match = _CODE.fullmatch(str(code).lstrip("<>|=")) if isinstance(code, str) else None
    if match is None:
        return None
    kind, size = match[1], int(match[2] or 0)
    size = {"U": 4 * size, "O": 8, "?": 1}.get(kind, size)
    if simple:
        implied = {"O": _OBJECT, "U": 8}.get(kind, 0)
        return (size, implied) if flags in (implied, None) and item in (-1, size) else None
    if kind != "V" or type(item) is not int or item != size:
        return None
    if base is not None:
        from .other_tensors import numbers  # here, since a scanner seldom comes here

        inner = _item_bytes(base[0], seen) if isinstance(base, tuple) and len(base) == 2 and fields is None else None
        shape = numbers(base[1]) if inner else None
        if inner is None or shape is None or min(shape, default=0) < 0 or prod(shape) * inner[0] != size:
            return None
        return (size, inner[1]) if flags in (inner[1], inner[1] & _INHERITED) else None
    if not isinstance(names, tuple) or not isinstance(fields, Dict) or len(names) != len(fields.entries):
        return None
    inherited = 0
    for _, field in fields.entries:
        part = _item_bytes(field[0], seen) if isinstance(field, tuple) and len(field) in (2, 3) else None
        if part is None or type(field[1]) is not int or not 0 <= field[1] <= size - part[0]:
            return None
        inherited |= part[1] & _INHERITED
    return (size, flags) if flags == inherited | _STRUCTURE else None


def beyond_plain_data(root: Any, walked: Walked | None = None) -> Counter[str]:
    """The globals that we do not write back unless asked: all that are neither plain nor known as harmless."""
    named = named_globals(root, walked)
    return Counter({name: n for name, n in named.items() if name not in PLAIN and name not in HARMLESS})


def is_plain_data(named: Iterable[Global], made: Iterable[Object]) -> bool:
    """Whether `beyond_plain_data` is empty for any tree of the objects MADE and the globals NAMED, which are all that
    a reader met. A look without a walk through the tree.
    """
    trusted = set()
    for one in named:
        name = str(one)
        if name not in PLAIN and name not in HARMLESS:
            return False
        if name not in _LOOKED_INTO:
            trusted.add(id(one))
    return all(id(node.callee) in trusted or called_name(node) != COMPUTED for node in made)


def count_objects(root: Any, walked: Walked | None = None) -> dict[str, int]:
    """Instances by class name, most frequent first, without tensors and the spelling of plain data."""
    from .other_tensors import stands_for_a_tensor  # here, since a scanner does not count

    counted: Counter[str] = Counter()
    for _, node in walk(root, holds_tensors_alone) if walked is None else walked:
        if isinstance(node, Object):
            name = node.class_name
            if name not in _PLUMBING and not stands_for_a_tensor(node):
                counted[name] += 1
    return dict(counted.most_common())
