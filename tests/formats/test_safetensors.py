import json
import math
import struct
from dataclasses import replace

import pytest
from contract import FormatContract, everything_in, sample, weights_of
from strategies import ALL, flat_checkpoints, state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tensor import contiguous_stride
from ckptool.tree import Dict, List

DTYPES = tuple(dtype for dtype in ALL if dtype.safetensors)


class TestSafetensors(FormatContract):
    name = "safetensors"
    dtypes = DTYPES
    checkpoints = flat_checkpoints(tuple(dtype for dtype in DTYPES if dtype.packed == 1))

    def held(self, ckpt):
        return weights_of(ckpt)


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), length


def write_file(path, header, data=b"", pad=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw + pad)) + raw + pad + data)
    return path


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


# --------------------------------------------------------------------------------------------------- what is written


def test_the_header_names_tensors_as_registered_and_the_data_fall_in_item_size(tmp_path):
    dtypes = ["int8", "float64", "float32", "bool", "float16", "int64"]
    ckptool.save(state_dict_of({f"{i}": tensor_of(d) for i, d in enumerate(dtypes)}), tmp_path / "x.safetensors")
    header, length = header_of(tmp_path / "x.safetensors")
    assert list(header) == ["__metadata__", *"012345"]
    assert length % 8 == 0
    begins = {name: header[name]["data_offsets"][0] for name in "012345"}
    assert sorted(begins, key=begins.get) == ["1", "5", "2", "4", "0", "3"]
    for name, dtype in zip("012345", dtypes, strict=True):
        assert begins[name] % tensor_of(dtype).dtype.itemsize == 0


def test_metadata_says_that_the_format_is_pt_and_keeps_what_was_there(tmp_path):
    ckptool.save(replace(sample(), metadata={"author": "someone"}), tmp_path / "x.safetensors")
    metadata = header_of(tmp_path / "x.safetensors")[0]["__metadata__"]
    assert metadata["format"] == "pt"
    assert metadata["author"] == "someone"
    assert all(isinstance(value, str) for value in metadata.values())
    assert ckptool.open(tmp_path / "x.safetensors").metadata == {"author": "someone"}


def test_a_format_that_another_library_noted_is_kept(tmp_path):
    write_file(tmp_path / "x", {"__metadata__": {"format": "mlx"}, "w": entry()}, bytes(8))
    ckptool.save(ckptool.open(tmp_path / "x"), tmp_path / "y.safetensors")
    assert header_of(tmp_path / "y.safetensors")[0]["__metadata__"]["format"] == "mlx"


def test_permuted_tensors_are_stored_in_c_order_and_come_back_permuted(tmp_path):
    kind = tensor_of("float32", (2, 3, 4, 5)).dtype
    base = tensor_of(kind, (2, 3, 4, 5), struct.pack("<120f", *range(120)))
    channels_last = base.changed(shape=(2, 5, 3, 4), stride=(60, 1, 20, 5))
    done = ckptool.save(state_dict_of({"w": channels_last}), tmp_path / "x.safetensors")
    assert done.form == ("1 permuted tensor is stored in C order; its strides are noted",)
    ckpt = ckptool.open(tmp_path / "x.safetensors")
    back = ckpt.state_dict()["w"]
    assert (back.shape, back.stride) == (channels_last.shape, channels_last.stride)
    assert bytes(back.source().read(0, 480)) == bytes(channels_last.source().read(0, 480))
    ckptool.save(ckpt, tmp_path / "y.pth")
    stored = ckptool.open(tmp_path / "y.pth").state_dict()["w"]
    assert bytes(stored.storage.source.read(0, 480)) == base.storage.source.data


def test_packed_four_bit_elements_double_the_last_dimension(tmp_path):
    ckptool.save(state_dict_of({"w": tensor_of("float4_e2m1fn_x2", (2, 3))}), tmp_path / "x.safetensors")
    assert header_of(tmp_path / "x.safetensors")[0]["w"]["shape"] == [2, 6]
    assert ckptool.open(tmp_path / "x.safetensors").state_dict()["w"].shape == (2, 3)


def test_conjugate_and_negative_views_are_written_as_their_values(tmp_path):
    value = tensor_of("complex64", (1,), struct.pack("<2f", 1.0, 2.0))
    entries = {
        "conj": value.changed(conj=True),
        "neg": value.changed(neg=True),
        "both": value.changed(conj=True, neg=True),
    }
    ckptool.save(state_dict_of(entries), tmp_path / "x.safetensors")
    values = [struct.unpack("<2f", raw) for raw in everything_in(ckptool.open(tmp_path / "x.safetensors"))]
    assert values == [(1.0, -2.0), (-1.0, -2.0), (-1.0, 2.0)]


# -------------------------------------------------------------------------------------------- what it cannot hold

LOST = {
    "entries beside the state dict": (
        Dict([("state_dict", sample().root), ("epoch", 3), ("optimizer", Dict([("lr", 0.1)]))]),
        ["epoch", "optimizer"],
    ),
    "entries around a deeper one": (
        Dict([("all", List([Dict([("model", sample().root), ("step", 1)])])), ("note", "x")]),
        ["all/0/step", "note"],
    ),
    "values that are not tensors": (
        Dict([("a", tensor_of("int8")), ("b", tensor_of("int8")), ("n", 3)]),
        ["1 value that is not a tensor: n"],
    ),
    "element types": (
        Dict([("a", tensor_of("int8")), ("z", tensor_of("complex128"))]),
        ["1 tensor of complex128: z"],
    ),
    "attributes": (
        Dict([("a", tensor_of("int8"))], True, Dict([("_metadata", Dict([], True)), ("mine", 1)])),
        ["attributes of the state dict: mine"],
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_content_that_would_be_lost_is_listed_and_refused(tmp_path, name):
    root, expected = LOST[name]
    ckpt = Checkpoint(root)
    with pytest.raises(ckptool.CannotCarry) as caught:
        ckptool.save(ckpt, tmp_path / "x.safetensors")
    assert list(caught.value.evidence) == expected
    assert not (tmp_path / "x.safetensors").exists()
    assert list(ckptool.save(ckpt, tmp_path / "x.safetensors", allow_loss=True).content) == expected


@pytest.mark.parametrize("key", ["__metadata__", "\ud800", "half \udfff of a pair"])
def test_a_name_that_the_format_cannot_hold_is_content_that_would_be_lost(tmp_path, key):
    ckpt = state_dict_of({key: tensor_of("int8"), "other": tensor_of("int8")})
    with pytest.raises(ckptool.CannotCarry):
        ckptool.save(ckpt, tmp_path / "x.safetensors")
    ckptool.save(ckpt, tmp_path / "x.safetensors", allow_loss=True)
    assert list(ckptool.open(tmp_path / "x.safetensors").state_dict()) == ["other"]


def test_a_tie_of_a_name_that_cannot_be_held_is_noted_among_the_others(tmp_path):
    tensor = tensor_of("int8")
    ckptool.save(
        state_dict_of(dict.fromkeys(["\ud800", "b", "c"], tensor)), tmp_path / "x.safetensors", allow_loss=True
    )
    assert ckptool.open(tmp_path / "x.safetensors").state_dict().ties() == [["b", "c"]]


def test_metadata_of_modules_may_be_anything(tmp_path):
    odd = [
        Dict([("\ud800", Dict([("version", 1)]))], True),
        Dict([("", Dict([("version", tensor_of("int8"))]))], True),
        Dict([((1, 2), Dict([("version", 1)]))], True),
        Dict([("", Dict([(3, 4)]))], True),
    ]
    odd[1].entries.append(("itself", odd[1]))
    for metadata in odd:
        ckpt = Checkpoint(Dict([("w", tensor_of("int8"))], True, Dict([("_metadata", metadata)])))
        ckptool.save(ckpt, tmp_path / "x.safetensors", overwrite=True)
        assert list(ckptool.open(tmp_path / "x.safetensors").state_dict()) == ["w"]


def test_text_metadata_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(ckptool.CannotCarry, match="are not text"):
        ckptool.plan(replace(sample(), metadata={"title": "\udfff"}), tmp_path / "x.safetensors")


def test_a_packed_scalar_is_content_that_would_be_lost(tmp_path):
    with pytest.raises(ckptool.CannotCarry, match="tensor of float4"):
        ckptool.plan(state_dict_of({"x": tensor_of("float4_e2m1fn_x2", ())}), tmp_path / "x.safetensors")


def test_form_that_changes_is_said(tmp_path):
    tensor = tensor_of("float32", (4,), bytes(16), location="cuda:1")
    entries = {
        "a": tensor,
        "tied": tensor,
        "part": tensor.changed(shape=(2,)),
        "strided": tensor.changed(shape=(2,), stride=(2,)),
        "parameter": tensor_of("float32", parameter=True, requires_grad=True),
    }
    form = "\n".join(ckptool.plan(state_dict_of(entries), tmp_path / "x.safetensors").form)
    for said in (
        "1 tied key is stored twice, and noted: tied = a",
        "1 strided tensor is",
        "shared storages",
        "location cuda:1",
        "require",
    ):
        assert said in form


def test_an_expanded_tensor_that_would_fill_the_disk_is_refused(tmp_path):
    huge = tensor_of("float32", (1,)).changed(shape=(1 << 40,), stride=(0,))
    with pytest.raises(ckptool.CannotCarry, match="expands 4 stored bytes"):
        ckptool.plan(state_dict_of({"x": huge}), tmp_path / "x.safetensors")


def overlapping():
    """5,000 tensors of 256 kB over one storage of 2 MB, each with other strides."""
    base = tensor_of("float32", (1 << 19,), bytes(4 << 19))
    return {f"w{n}": base.changed(shape=(256, 256), stride=(1 + n % 7, 1), offset=n) for n in range(5000)}


def tied():
    base = tensor_of("float32", (1 << 16,), bytes(4 << 16))
    return {f"w{n}": base for n in range(5000)}


@pytest.mark.parametrize("make", [overlapping, tied])
def test_many_tensors_over_one_storage_that_would_fill_the_disk_are_refused(tmp_path, make):
    ckpt = state_dict_of(make())
    for format_ in ("safetensors", "sharded-safetensors"):
        with pytest.raises(
            ckptool.CannotCarry, match=r"would become 1,31\d,\d{3},\d{3} bytes, [\d,]+ times the \d"
        ) as caught:
            ckptool.plan(ckpt, tmp_path / "x", format=format_)
        assert caught.value.evidence == ("the limit is 256 times the input, or 1,073,741,824 bytes if that is more",)
        assert caught.value.hint == "-t torch-zip writes what tensors share once"
    assert ckptool.plan(ckpt, tmp_path / "x", format="torch-zip").nbytes < 10 << 20
    if make is tied:
        with pytest.raises(ckptool.CannotCarry, match="would become"):
            ckptool.plan(ckptool.untie(ckpt), tmp_path / "x", format="torch-zip")


def test_sparse_tensors_that_would_fill_the_disk_together_are_refused(torch, tmp_path):
    size = (100_000_000,)
    sparse = {f"w{n}": torch.sparse_coo_tensor([[n]], [1.0], size, check_invariants=True) for n in range(3)}
    torch.save(sparse, tmp_path / "x")
    ckpt = ckptool.to_dense(ckptool.open(tmp_path / "x"))
    with pytest.raises(ckptool.CannotCarry, match="would become 1,200,"):
        ckptool.plan(ckpt, tmp_path / "y.pth")
    ckptool.plan(ckptool.drop(ckpt, ["w0"]), tmp_path / "y.pth")


# ---------------------------------------------------------------------------------------------- what is read

READ = {
    "no metadata": ({"w": entry()}, bytes(8)),
    "metadata that are null": ({"__metadata__": None, "w": entry()}, bytes(8)),
    "no tensors": ({}, b""),
    "unknown keys in an entry": ({"w": {**entry(), "comment": "x"}}, bytes(8)),
    "data in another order than the header": ({"a": entry(begin=8, end=16), "b": entry()}, bytes(16)),
    "empty tensors at a boundary": ({"e": entry(shape=(0, 3), begin=8, end=8), "w": entry()}, bytes(8)),
    "an empty name": ({"": entry()}, bytes(8)),
    "scalars": ({"s": entry(shape=(), end=4)}, bytes(4)),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("pad", [b"", b" " * 5, b"\n"])
def test_files_of_other_writers_are_read(tmp_path, name, pad):
    header, data = READ[name]
    ckpt = ckptool.open(write_file(tmp_path / "x.safetensors", header, data, pad), format="safetensors")
    names = [key for key in header if key != "__metadata__"]
    assert [key for key, _ in ckpt.root.entries] == names
    assert not ckpt.order_preserved
    assert "order of its keys" in ckpt.warnings[0]


REFUSED = {
    "not JSON": (b"{]", b""),
    "an array": (b"[]", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "a space before the brace": (b" {}", b""),
    "a name twice": (
        b'{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
        b"",
    ),
    "a field twice": (b'{"w":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}}', b""),
    "half of a surrogate pair": (b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', b""),
    "NaN": (b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,0]}}', b""),
    "deep nesting": (b'{"w":' * 50_000 + b"1" + b"}" * 50_000, b""),
    "an unknown dtype": ({"w": entry("F31")}, bytes(8)),
    "a dtype in lower case": ({"w": entry("f32")}, bytes(8)),
    "a dtype that is not text": ({"w": entry(["F32"])}, bytes(8)),
    "a float in the shape": ({"w": {**entry(), "shape": [2.0]}}, bytes(8)),
    "a bool in the shape": ({"w": {**entry(end=4), "shape": [True]}}, bytes(4)),
    "a negative size": ({"w": entry(shape=(-2,))}, bytes(8)),
    "a shape that is not a list": ({"w": {**entry(), "shape": 2}}, bytes(8)),
    "a missing field": ({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "an entry that is none": ({"w": 5}, bytes(8)),
    "three offsets": ({"w": {**entry(), "data_offsets": [0, 4, 8]}}, bytes(8)),
    "offsets that do not fit the shape": ({"w": entry(shape=(3,))}, bytes(8)),
    "an end before the begin": ({"w": entry(begin=8, end=0)}, bytes(8)),
    "a huge shape": ({"w": entry(shape=(1 << 40, 1 << 40))}, bytes(8)),
    "a hole": ({"a": entry(), "b": entry(begin=12, end=20)}, bytes(20)),
    "a hole at the start": ({"a": entry(begin=4, end=12)}, bytes(12)),
    "an overlap": ({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)),
    "two names for one range": ({"a": entry(), "b": entry()}, bytes(8)),
    "data that are missing": ({"w": entry()}, bytes(7)),
    "data that are too many": ({"w": entry()}, bytes(9)),
    "data without a tensor": ({}, bytes(1)),
    "metadata that are not a map": ({"__metadata__": ["x"], "w": entry()}, bytes(8)),
    "metadata that are not text": ({"__metadata__": {"n": 1}, "w": entry()}, bytes(8)),
    "an odd number of 4-bit elements": ({"w": entry("F4", (3,), 0, 1)}, bytes(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_contradicts_the_format_is_refused(tmp_path, name):
    header, data = REFUSED[name]
    write_file(tmp_path / "x.safetensors", header, data)
    with pytest.raises(ckptool.Malformed):
        ckptool.open(tmp_path / "x.safetensors")


@pytest.mark.parametrize("length", [100_000_001, 1 << 40, (1 << 64) - 1])
def test_a_header_that_cannot_be_so_long_is_refused_unread(tmp_path, length, bytes_read):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{" + bytes(100))
    with pytest.raises(ckptool.Malformed, match="header"):
        ckptool.open(tmp_path / "x.safetensors")
    assert sum(bytes_read) < 10_000


# ------------------------------------------------------------------------------------------------------- our note

TRIED = {
    "ties of tensors that differ in shape": {"ties": {"b": "c"}},
    "ties of tensors that are not there": {"ties": {"b": "nowhere", "nowhere": "a"}},
    "ties that are not names": {"ties": {"b": 5, "a": ["b"]}},
    "ties that are not a map": {"ties": ["a", "b"]},
    "strides that are not a permutation": {"strides": {"c": [5, 7]}},
    "strides of another length": {"strides": {"c": [1]}},
    "strides that are not numbers": {"strides": {"c": ["1", 2], "a": 5}},
    "negative strides": {"strides": {"c": [-1, -2]}},
    "strides of nothing": {"strides": {"nowhere": [1]}},
    "metadata that are not a map": {"_metadata": 5},
}


def noted(tmp_path, note):
    header = {
        "__metadata__": {"ckptool": note if isinstance(note, str) else json.dumps({"version": 1, **note})},
        "a": entry(),
        "b": entry(begin=8, end=16),
        "c": entry(shape=(2, 3), begin=16, end=40),
    }
    return write_file(tmp_path / "x.safetensors", header, bytes(8) + b"differs!" + bytes(range(24)))


@pytest.mark.parametrize("name", TRIED)
def test_a_note_that_does_not_fit_the_tensors_changes_nothing(tmp_path, name):
    plain = weights_of(ckptool.open(noted(tmp_path, {})))
    assert weights_of(ckptool.open(noted(tmp_path, TRIED[name]))) == plain


def test_a_note_that_claims_a_tie_of_tensors_that_differ_is_not_believed(tmp_path):
    ckpt = ckptool.open(noted(tmp_path, {"ties": {"b": "a"}}))
    done = ckptool.save(ckpt, tmp_path / "y.pth")
    assert any("no longer tied" in step for step in done.steps)
    back = ckptool.open(tmp_path / "y.pth")
    assert back.state_dict().ties() == []
    assert everything_in(back)[:2] == [bytes(8), b"differs!"]


@pytest.mark.parametrize("note", ["", "{", "[]", '{"version": 2}', "1" * 5000, "[" * 100_000])
def test_a_note_that_cannot_be_understood_is_passed_over(tmp_path, note):
    ckpt = ckptool.open(noted(tmp_path, note))
    assert not ckpt.order_preserved
    assert len(ckpt.state_dict()) == 3


def test_a_note_of_strides_is_a_note_of_where_the_values_stand(tmp_path):
    ckpt = ckptool.open(noted(tmp_path, {"strides": {"c": [1, 2]}}))
    tensor = ckpt.state_dict()["c"]
    assert tensor.stride == (1, 2) != contiguous_stride(tensor.shape)
    assert everything_in(ckpt)[2] == bytes(range(24))
    stored = bytes(tensor.storage.source.read(0, 24))
    assert [stored[n * 4] for n in range(6)] == [0, 12, 4, 16, 8, 20]
    assert math.prod(tensor.shape) == 6
