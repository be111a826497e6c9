"""One table of element types: their names in torch, in torch's pickles, in safetensors and in numpy.

The torch names are those of `torch.<name>`. A dtype with a `storage` class is pickled as that typed storage and
rebuilt by `torch._utils._rebuild_tensor_v2`; one without is pickled as bytes (`torch.storage.UntypedStorage`) and
rebuilt by `_rebuild_tensor_v3`, which names the dtype. Checked against torch 2.13 and safetensors 0.8 by the tests.
"""

from __future__ import annotations

from .records import record


@record(frozen=True, slots=True)
class NotFinite:
    """How to tell an element that is no finite number: x & MASK == VALUE.

    Attributes:
        kind: the unsigned numpy type of as many bits ("u4"), of each half of a complex number.
        infinite: whether it is infinite rather than NaN if the remaining bits, but for the sign, are 0.
    """

    kind: str
    mask: int
    value: int
    infinite: bool = True


@record(frozen=True, slots=True)
class Limits:
    """Magnitudes as bits of float32: from OVER on a value is beyond the range of a type, up to UNDER one becomes 0.

    OVER is half way between the largest value and the next, UNDER half the smallest.
    """

    over: int
    under: int = 0


@record(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: as in `torch.<name>`.
        itemsize: bytes of one element.
        storage: class that torch pickles its storages as ("FloatStorage"), or None for an untyped one.
        safetensors: code in a safetensors header ("F32"), or None where that format cannot hold it.
        numpy: numpy type name, of `ml_dtypes` where numpy has none, or None where neither has it.
        since: the first torch that has it, where that is later than 0.4, by its release notes.
        exported: its number in exported programs (`ScalarType` in `torch/_export/serde/schema.py`).
        short: short names that people type.
        not_finite: which elements are no finite numbers.
        limits: magnitudes that a float32 loses when it is rounded to this type.
    """

    name: str
    itemsize: int
    storage: str | None = None
    safetensors: str | None = None
    numpy: str | None = None
    since: tuple[int, int] = (0, 4)
    exported: int | None = None
    short: tuple[str, ...] = ()
    not_finite: NotFinite | None = None
    limits: Limits | None = None

    @property
    def is_floating(self) -> bool:
        """True for real floating point types (as `torch.dtype.is_floating_point`)."""
        return self.name.startswith(("float", "bfloat"))

    @property
    def is_complex(self) -> bool:
        """True for complex types."""
        return self.name.startswith("complex")

    @property
    def packed(self) -> int:
        """How many safetensors elements one torch element holds: 2 for float4_e2m1fn_x2, else 1."""
        return 2 if self.name == "float4_e2m1fn_x2" else 1

    def __repr__(self) -> str:
        return self.name


ALL: tuple[DType, ...] = (
    DType(
        "float64",
        8,
        "DoubleStorage",
        "F64",
        "float64",
        exported=8,
        short=("fp64", "f64", "double"),
        not_finite=NotFinite("u8", 0x7FF0000000000000, 0x7FF0000000000000),
    ),
    DType(
        "float32",
        4,
        "FloatStorage",
        "F32",
        "float32",
        exported=7,
        short=("fp32", "f32", "float"),
        not_finite=NotFinite("u4", 0x7F800000, 0x7F800000),
    ),
    DType(
        "float16",
        2,
        "HalfStorage",
        "F16",
        "float16",
        exported=6,
        short=("fp16", "f16", "half"),
        not_finite=NotFinite("u2", 0x7C00, 0x7C00),
        limits=Limits(0x477FF000, 0x33000000),  # 65520, 2**-25
    ),
    DType(
        "bfloat16",
        2,
        "BFloat16Storage",
        "BF16",
        "bfloat16",
        since=(1, 2),
        exported=13,
        short=("bf16",),
        not_finite=NotFinite("u2", 0x7F80, 0x7F80),
        limits=Limits(0x7F7F8000, 0x00008000),
    ),
    DType("int64", 8, "LongStorage", "I64", "int64", exported=5),
    DType("int32", 4, "IntStorage", "I32", "int32", exported=4),
    DType("int16", 2, "ShortStorage", "I16", "int16", exported=3),
    DType("int8", 1, "CharStorage", "I8", "int8", exported=2),
    DType("uint8", 1, "ByteStorage", "U8", "uint8", exported=1),
    DType("bool", 1, "BoolStorage", "BOOL", "bool", since=(1, 2), exported=12),
    DType(
        "complex128",
        16,
        "ComplexDoubleStorage",
        None,
        "complex128",
        since=(1, 6),
        exported=11,
        not_finite=NotFinite("u8", 0x7FF0000000000000, 0x7FF0000000000000),
    ),
    DType(
        "complex64",
        8,
        "ComplexFloatStorage",
        "C64",
        "complex64",
        since=(1, 6),
        exported=10,
        not_finite=NotFinite("u4", 0x7F800000, 0x7F800000),
    ),
    DType("qint8", 1, "QInt8Storage", since=(1, 3)),
    DType("quint8", 1, "QUInt8Storage", since=(1, 3)),
    DType("qint32", 4, "QInt32Storage", since=(1, 3)),
    DType("quint4x2", 1, "QUInt4x2Storage", since=(1, 11)),
    DType("quint2x4", 1, "QUInt2x4Storage", since=(1, 11)),
    DType(
        "float8_e4m3fn",
        1,
        None,
        "F8_E4M3",
        "float8_e4m3fn",
        since=(2, 1),
        exported=29,
        short=("fp8", "fp8_e4m3", "e4m3", "f8_e4m3"),
        not_finite=NotFinite("u1", 0x7F, 0x7F, infinite=False),
        limits=Limits(0x43E80001, 0x3A800000),  # above 464, 2**-10
    ),
    DType(
        "float8_e4m3fnuz",
        1,
        None,
        "F8_E4M3FNUZ",
        "float8_e4m3fnuz",
        since=(2, 2),
        exported=31,
        not_finite=NotFinite("u1", 0xFF, 0x80, infinite=False),
        limits=Limits(0x43780000, 0x3A000000),  # 248, 2**-11
    ),
    DType(
        "float8_e5m2",
        1,
        None,
        "F8_E5M2",
        "float8_e5m2",
        since=(2, 1),
        exported=30,
        short=("fp8_e5m2", "e5m2", "f8_e5m2"),
        not_finite=NotFinite("u1", 0x7C, 0x7C),
        limits=Limits(0x47700000, 0x37000000),  # 61440, 2**-17
    ),
    DType(
        "float8_e5m2fnuz",
        1,
        None,
        "F8_E5M2FNUZ",
        "float8_e5m2fnuz",
        since=(2, 2),
        exported=32,
        not_finite=NotFinite("u1", 0xFF, 0x80, infinite=False),
        limits=Limits(0x47700000, 0x36800000),  # 61440, 2**-18
    ),
    DType(
        "float8_e8m0fnu",
        1,
        None,
        "F8_E8M0",
        "float8_e8m0fnu",
        since=(2, 7),
        exported=33,
        not_finite=NotFinite("u1", 0xFF, 0xFF, infinite=False),
        limits=Limits(0x7F400000),
    ),
    DType("float4_e2m1fn_x2", 1, None, "F4", since=(2, 8)),
    DType("bits8", 1, since=(2, 1)),
    DType("bits1x8", 1, since=(2, 1)),
    DType("bits2x4", 1, since=(2, 1)),
    DType("bits4x2", 1, since=(2, 1)),
    DType("bits16", 2, since=(2, 1)),
    DType("uint16", 2, None, "U16", "uint16", since=(2, 3), exported=28),
    DType("uint32", 4, None, "U32", "uint32", since=(2, 3), exported=34),
    DType("uint64", 8, None, "U64", "uint64", since=(2, 3), exported=35),
    DType("complex32", 4, since=(2, 2), exported=9),
)

BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
BY_EXPORTED: dict[int, DType] = {d.exported: d for d in ALL if d.exported}
BY_SHORT: dict[str, DType] = {word: d for d in ALL for word in d.short}
BY_STORAGE: dict[str, DType] = {d.storage: d for d in ALL if d.storage}
BY_SAFETENSORS: dict[str, DType] = {d.safetensors: d for d in ALL if d.safetensors}

UINT8 = BY_NAME["uint8"]
