"""One table of element types: their names in torch, in torch's pickles, in safetensors and in numpy.

The torch names are those of `torch.<name>`. A dtype with a `storage` class is pickled as that typed storage and
rebuilt by `torch._utils._rebuild_tensor_v2`; one without is pickled as bytes (`torch.storage.UntypedStorage`) and
rebuilt by `_rebuild_tensor_v3`, which names the dtype. Checked against torch 2.13 and safetensors 0.8 by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: as in `torch.<name>`.
        itemsize: bytes of one element.
        storage: class that torch pickles its storages as ("FloatStorage"), or None for an untyped one.
        safetensors: code in a safetensors header ("F32"), or None where that format cannot hold it.
        numpy: numpy type name, of `ml_dtypes` where numpy has none, or None where neither has it.
    """

    name: str
    itemsize: int
    storage: str | None = None
    safetensors: str | None = None
    numpy: str | None = None

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
    DType("float64", 8, "DoubleStorage", "F64", "float64"),
    DType("float32", 4, "FloatStorage", "F32", "float32"),
    DType("float16", 2, "HalfStorage", "F16", "float16"),
    DType("bfloat16", 2, "BFloat16Storage", "BF16", "bfloat16"),
    DType("int64", 8, "LongStorage", "I64", "int64"),
    DType("int32", 4, "IntStorage", "I32", "int32"),
    DType("int16", 2, "ShortStorage", "I16", "int16"),
    DType("int8", 1, "CharStorage", "I8", "int8"),
    DType("uint8", 1, "ByteStorage", "U8", "uint8"),
    DType("bool", 1, "BoolStorage", "BOOL", "bool"),
    DType("complex128", 16, "ComplexDoubleStorage", None, "complex128"),
    DType("complex64", 8, "ComplexFloatStorage", "C64", "complex64"),
    DType("qint8", 1, "QInt8Storage"),
    DType("quint8", 1, "QUInt8Storage"),
    DType("qint32", 4, "QInt32Storage"),
    DType("quint4x2", 1, "QUInt4x2Storage"),
    DType("quint2x4", 1, "QUInt2x4Storage"),
    DType("float8_e4m3fn", 1, None, "F8_E4M3", "float8_e4m3fn"),
    DType("float8_e4m3fnuz", 1, None, "F8_E4M3FNUZ", "float8_e4m3fnuz"),
    DType("float8_e5m2", 1, None, "F8_E5M2", "float8_e5m2"),
    DType("float8_e5m2fnuz", 1, None, "F8_E5M2FNUZ", "float8_e5m2fnuz"),
    DType("float8_e8m0fnu", 1, None, "F8_E8M0", "float8_e8m0fnu"),
    DType("float4_e2m1fn_x2", 1, None, "F4"),
    DType("bits8", 1),
    DType("bits1x8", 1),
    DType("bits2x4", 1),
    DType("bits4x2", 1),
    DType("bits16", 2),
    DType("uint16", 2, None, "U16", "uint16"),
    DType("uint32", 4, None, "U32", "uint32"),
    DType("uint64", 8, None, "U64", "uint64"),
    DType("complex32", 4),
)

BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
BY_STORAGE: dict[str, DType] = {d.storage: d for d in ALL if d.storage}
BY_SAFETENSORS: dict[str, DType] = {d.safetensors: d for d in ALL if d.safetensors}

UINT8 = BY_NAME["uint8"]
