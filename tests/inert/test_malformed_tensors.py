"""Tensors of other kinds that contradict themselves, or would take for ever, are refused as their file is opened."""

import struct
import zipfile

import numpy as np
import pytest
from assemble import Call, Name, Ordered, Stored, body, pickled
from effort import calls

import ckptool
from ckptool.errors import Malformed
from ckptool.reports.inspect import describe


def stored(kind="FloatStorage", numel=4, key="0"):
    return Stored(("storage", Name(f"torch.{kind}"), key, "cpu", numel))


def tensor(shape=(4,), stride=(1,), kind="FloatStorage", numel=4, key="0"):
    return Call("torch._utils._rebuild_tensor_v2", stored(kind, numel, key), 0, shape, stride, False, Ordered())


def quantized(
    offset=0, shape=(4,), stride=(1,), kind="QUInt8Storage", numel=4, scale=0.5, zero=1, name="tensor_affine"
):
    scheme = (Name(f"torch.per_{name}"), scale, zero)
    return Call("torch._utils._rebuild_qtensor", stored(kind, numel), offset, shape, stride, scheme, False, Ordered())


def meta(shape, stride):
    return Call("torch._utils._rebuild_meta_tensor_no_storage", Name("torch.float32"), shape, stride, False)


class Raw:
    """Opcodes as they are."""

    def __init__(self, raw):
        self.raw = raw


def zip_of(tmp_path, value, members=None):
    """A torch zip of the state dict {"w": VALUE}."""
    raw = value.raw if isinstance(value, Raw) else pickled(Ordered(w=value))
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", raw)
        archive.writestr("x/byteorder", "little")
        archive.writestr("x/version", "3\n")
        for key, data in (members or {"0": bytes(16)}).items():
            archive.writestr(f"x/data/{key}", data)
    return tmp_path / "x.pt"


def state_dict_with(last):
    """The pickle of {"w": …}, where LAST are the opcodes of the value."""
    return Raw(b"\x80\x02" + body(Ordered()) + body("w") + last + b"s.")


DTYPE = body(Call("numpy.dtype", "f8", False, True)) + body((3, "<", None, None, None, -1, -1, 0)) + b"b"


def array(shape, data):
    """The opcodes of a numpy array of float64, with whatever data."""
    made = Call("numpy.core.multiarray._reconstruct", Name("numpy.ndarray"), (0,), b"b")
    return body(made) + b"(" + body(1) + body(shape) + DTYPE + b"\x89" + body(data) + b"tb"


BYTES = {"0": bytes(4)}
REFUSED = {
    "an offset that is None": (quantized(offset=None), BYTES, "offset is not a number"),
    "an offset that is a text": (quantized(offset="1"), BYTES, "offset is not a number"),
    "an offset that is a class": (quantized(offset=Name("os.system")), BYTES, "offset is not a number"),
    "an offset between two elements": (quantized(offset=1.5, shape=(2,)), BYTES, "offset is not a number"),
    "a zero point of 80 bits": (quantized(zero=1 << 79), BYTES, "without a scale and a zero point"),
    "a scheme that torch does not have": (quantized(name="tensor_q"), BYTES, "an unknown way: torch.per_tensor_q"),
    "a scale beyond all floats": (quantized(scale=1 << 2000), BYTES, "without a scale and a zero point"),
    "negative sizes of packed elements": (
        quantized(shape=(-2, -2), stride=(1, 1), kind="QUInt4x2Storage", numel=2),
        {"0": bytes(2)},
        "not a contiguous one",
    ),
    "negative sizes without numbers": (meta((-5, 3), (3, 1)), {}, "a negative size"),
    "sizes beyond all numbers": (meta((1 << 61,) * 60, (1,) * 60), {}, "more elements than any memory"),
    "an array whose bytes are too few": (state_dict_with(array((3,), b"a")), {}, "with 1 bytes"),
    "a parameter that is made of itself": (
        state_dict_with(body(Name("torch.nn.parameter.Parameter")) + b"(N\x89tRq\x00(h\x00h\x00h\x00\x89h\x00tb"),
        {},
        "made of itself",
    ),
    "nested sizes in one dimension": (
        Call("torch._utils._rebuild_nested_tensor", tensor(), *(tensor((2,), (1,), "LongStorage", 2, "1"),) * 3),
        {"0": bytes(16), "1": bytes(16)},
        "do not fit together",
    ),
    "nested sizes that are not integers": (
        Call("torch._utils._rebuild_nested_tensor", *(tensor(),) * 3, tensor((1,))),
        {"0": bytes(16)},
        "do not fit together",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_that_contradicts_itself_is_refused_as_its_file_is_opened(tmp_path, name):
    value, members, why = REFUSED[name]
    path = zip_of(tmp_path, value, members)
    with pytest.raises(Malformed, match=why) as refused:
        ckptool.open(path)
    assert refused.value.where == str(path)


def test_a_zero_point_of_64_bits_is_computed_without_overflow(tmp_path):
    path = zip_of(tmp_path, quantized(zero=-(1 << 63)), BYTES)
    done = ckptool.dequantize(ckptool.open(path)).state_dict()["w"].numpy()
    assert (done == np.float32(2.0**62)).all()


def test_what_many_tensors_are_made_of_is_looked_at_once(tmp_path):
    def wrapped(inner):
        args = (Name("torch.Tensor"), Name("torch.float32"), (4,), (1,), 0, Name("torch.strided"), "cpu", False)
        made = body(Name("torch._utils._rebuild_wrapper_subclass")) + body(Name("some.Wrapper")) + body(args)
        return body(Name("torch._tensor._rebuild_from_type_v2")) + b"(" + made + inner + b"tR"

    opcodes = body(tensor()) + b"q\x000"
    for level in range(28):  # each holds the one before twice: 2**28 ways to the innermost
        again = b"h" + bytes([level])
        opcodes += wrapped(b"}(" + body("a") + again + body("b") + again + b"u") + b"q" + bytes([level + 1]) + b"0"
    pickle = b"\x80\x02" + opcodes + body(Ordered()) + body("w") + b"h" + bytes([28]) + b"s."
    path = zip_of(tmp_path, Raw(pickle))
    assert calls(lambda: describe(ckptool.open(path))) < 1_000_000


def test_tensors_within_tensors_without_end_are_refused(tmp_path):
    function = body(Name("torch._utils._rebuild_parameter_with_state"))
    deep = (function + b"(") * 400 + body(tensor()) + (b"\x89" + body(Ordered()) + b"}tR") * 400
    pickle = state_dict_with(deep)
    with pytest.raises(Malformed, match="tensors within tensors"):
        ckptool.open(zip_of(tmp_path, pickle))


def test_the_indices_that_many_sparse_tensors_share_are_checked_once(tmp_path):
    count = 1_000_000
    shared = body(tensor((1, count), (0, 0), "LongStorage", 1, "0")) + b"q\x000"
    shared += body(tensor((count,), (0,), "FloatStorage", 1, "1")) + b"q\x010"
    layout = body(Name("torch.sparse_coo"))
    one = body(Name("torch._utils._rebuild_sparse_tensor")) + b"(" + layout + b"(h\x00h\x01" + body((10,)) + b"ttR"
    pickle = b"\x80\x02" + shared + b"}(" + b"".join(body(f"s{n}") + one for n in range(2000)) + b"u."
    ckpt = ckptool.open(zip_of(tmp_path, Raw(pickle), {"0": struct.pack("<q", 3), "1": bytes(4)}))
    assert not ckpt.warnings, "2,000 times 8 MB would be more than is checked on opening"


def test_indices_are_checked_on_opening_up_to_a_limit_for_the_whole_file(tmp_path):
    """Each of these says that it has other sizes, so that all have to be looked at: 30 times 7 MB from 8 bytes."""
    count = 900_000
    shared = body(tensor((1, count), (0, 0), "LongStorage", 1, "0")) + b"q\x000"
    shared += body(tensor((count,), (0,), "FloatStorage", 1, "1")) + b"q\x010"
    made = body(Name("torch._utils._rebuild_sparse_tensor")) + b"(" + body(Name("torch.sparse_coo")) + b"(h\x00h\x01"
    entries = b"".join(body(f"s{size}") + made + body((size,)) + b"ttR" for size in range(10, 40))
    path = zip_of(tmp_path, Raw(b"\x80\x02" + shared + b"}(" + entries + b"u."), {"0": bytes(8), "1": bytes(4)})
    assert ckptool.open(path).warnings == ("the indices of 21 sparse tensors were not checked: they are large",)


def test_nested_sizes_are_checked_in_one_sweep(tmp_path):
    count = 2_000_000
    expanded = tensor((count, 1), (0, 0), "LongStorage", 1, "1"), tensor((count,), (0,), "LongStorage", 1, "1")
    made = Call("torch._utils._rebuild_nested_tensor", tensor(), expanded[0], expanded[0], expanded[1])
    path = zip_of(tmp_path, made, {"0": bytes(16), "1": struct.pack("<q", 1)})
    assert calls(lambda: ckptool.open(path)) < count / 10


@pytest.mark.parametrize("size", [5, 1 << 61, (1 << 63) - 1, -1])
def test_a_nested_tensor_that_reaches_beyond_its_values_is_refused(tmp_path, size):
    part, offsets = tensor((1, 1), (1, 1), "LongStorage", 1, "1"), tensor((1,), (1,), "LongStorage", 1, "2")
    made = Call("torch._utils._rebuild_nested_tensor", tensor(), part, part, offsets)
    with pytest.raises(Malformed, match="nested tensor"):
        ckptool.open(zip_of(tmp_path, made, {"0": bytes(16), "1": struct.pack("<q", size), "2": bytes(8)}))
