"""Which classes a pickle may name, and which of them we write back.

An allow-list, exact names only: whatever it does not know counts as able to run code when somebody unpickles it. (Lists
of forbidden names have been bypassed for as long as there have been any.)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .dtypes import BY_STORAGE
from .kinds import stands_for_a_tensor
from .tree import Global, Object, walk

_TENSOR_TYPES = "BFloat16 Bool Byte Char Double Float Half Int Long Short".split()
_TORCH_CONSTANTS = """
    float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex128 complex64 complex32
    qint8 quint8 qint32 quint4x2 quint2x4 bits8 bits16 bits1x8 bits2x4 bits4x2 uint16 uint32 uint64
    float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
    int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7
    per_tensor_affine per_channel_affine per_channel_affine_float_qparams per_tensor_symmetric per_channel_symmetric
""".split()

#: What `torch.load(weights_only=True)` accepts in torch 2.13, apart from calls that allocate what they are told to.
PLAIN: frozenset[str] = frozenset(
    [
        *(f"torch.{name}" for name in ("Size", "Tensor", "device", *_TORCH_CONSTANTS)),
        *(f"torch.{name}" for name in BY_STORAGE),
        *(f"{module}.{name}Tensor" for module in ("torch", "torch.cuda") for name in _TENSOR_TYPES),
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

_BUILDERS = frozenset(f"builtins.{name}" for name in "bytes bytearray dict frozenset list set str tuple".split())

#: How torch and Python spell plain data; not worth a line in a listing of objects.
_PLUMBING = PLAIN | {"builtins.bytes", "builtins.frozenset"}


def named_globals(root: Any) -> Counter[str]:
    """Every class and function that the tree below ROOT names, with how many nodes name it.

    A call of something that is itself computed, and one of `_codecs.encode` other than the spelling of a byte string
    (which is read as bytes; nested ones multiply memory), count as `COMPUTED`.
    """
    counted: Counter[str] = Counter()
    for _, node in walk(root):
        if isinstance(node, Object):
            counted[called_name(node)] += 1
        elif isinstance(node, Global):
            counted.setdefault(str(node), 1)
    return counted


def called_name(made: Object) -> str:
    """The name of what makes an object, or `COMPUTED`."""
    name = str(made.callee) if isinstance(made.callee, Global) else COMPUTED
    return COMPUTED if name == "_codecs.encode" or _allocates(name, made.args) else name


def _allocates(name: str, args: Any) -> bool:
    """Whether a call makes as much as it is told to: `bytes(10**12)`, `list(range(10**12))`."""
    if name in ("builtins.bytes", "builtins.bytearray"):
        return any(isinstance(arg, int) for arg in args)
    return name in _BUILDERS and any(isinstance(arg, Object) for arg in args)


def beyond_plain_data(root: Any) -> Counter[str]:
    """The globals that we do not write back unless asked: all that are neither plain nor known as harmless."""
    return Counter({name: n for name, n in named_globals(root).items() if name not in PLAIN and name not in HARMLESS})


def count_objects(root: Any) -> dict[str, int]:
    """Instances by class name, most frequent first, without tensors and the spelling of plain data."""
    counted: Counter[str] = Counter()
    for _, node in walk(root):
        if isinstance(node, Object):
            name = node.class_name
            if name not in _PLUMBING and not stands_for_a_tensor(node):
                counted[name] += 1
    return dict(counted.most_common())
