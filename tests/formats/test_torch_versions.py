"""Old and new worlds: what old programs wrote is read, and what they cannot read is said."""

import struct

import pytest
from assemble import Call, Name, pickled
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.formats.pickle import writer as _pickle_write
from ckptool.formats.pickle.reader import Reader
from ckptool.formats.torch_versions import impossible, parse_target
from ckptool.tensor import Storage
from ckptool.tree import Dict, Global, Object


@pytest.mark.parametrize("text", ["torch==1.6", "torch == 1.6.0", "1.6", "torch==1.6.0+cpu"])
def test_versions_are_written_as_in_requirements(text):
    assert parse_target(text) == (1, 6)


@pytest.mark.parametrize("text", ["", "torch", "torch>=1.6", "numpy==1.6", "1", "one.six"])
def test_other_words_are_no_versions(text):
    with pytest.raises(ckptool.RuleError, match="is not a version of torch"):
        parse_target(text)


def test_a_zip_archive_is_too_new_for_torch_1_5_and_a_legacy_file_is_not(tmp_path):
    ckpt = state_dict_of({"w": tensor_of("float32")})
    with pytest.raises(ckptool.CannotCarry, match=r"(?s)torch 1.5 cannot load.*the zip archive.*-t legacy"):
        ckptool.save(ckpt, tmp_path / "x.pth", for_torch="torch==1.5")
    ckptool.save(ckpt, tmp_path / "x.pth", format="legacy", for_torch="torch==1.5")
    ckptool.save(ckpt, tmp_path / "y.pth", for_torch="torch==1.6")
    ckptool.save(ckpt, tmp_path / "x.safetensors", for_torch="torch==1.5")


@pytest.mark.parametrize(
    ("dtype", "last", "first"),
    [("float8_e5m2", "2.0", "2.1"), ("uint16", "2.2", "2.3"), ("complex64", "1.5", "1.6"), ("float32", None, "0.4")],
)
def test_types_are_named_with_the_version_that_brought_them(tmp_path, dtype, last, first):
    ckpt = state_dict_of({"w": tensor_of(dtype), "v": tensor_of(dtype)})
    assert impossible(ckpt.root, parse_target(first), zipped=False) == []
    if last:
        (line,) = impossible(ckpt.root, parse_target(last), zipped=False)
        assert line == f"tensors of {dtype}: 2 (since torch {first})"


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_kinds_of_tensors_are_named_too(torch, tmp_path):
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.tag = 1
    csr = torch.eye(2).to_sparse_csr()
    torch.save({"p": parameter, "c": csr, "j": torch.ones(1, dtype=torch.complex64).conj()}, tmp_path / "x.pt")
    with pytest.raises(ckptool.CannotCarry) as raised:
        ckptool.save(ckptool.open(tmp_path / "x.pt"), tmp_path / "y.pt", for_torch="torch==1.13")
    assert sorted(raised.value.evidence) == [
        "lazily conjugated or negated tensors: 1 (since torch 2.0)",
        "parameters with attributes: 1 (since torch 2.0)",
        "sparse tensors: 1 (since torch 2.0)",
    ]
    assert raised.value.hint == "--to-dense   # makes dense tensors of sparse ones"


def test_only_what_helps_is_recommended(tmp_path):
    scheme = (Global("torch", "per_tensor_affine"), 0.5, 0)
    storage = Storage(Buffer(b"1234"), "cpu", BY_NAME["qint8"], "s")
    quantized = Object(
        "reduce", Global("torch._utils", "_rebuild_qtensor"), (storage, 0, (4,), (1,), scheme, False, None)
    )
    for target, said in (("1.2", "--dequantize"), ("2.0", None)):
        ckpt = Checkpoint(Dict([("q", quantized), ("w", tensor_of("uint16"))]))
        with pytest.raises(ckptool.CannotCarry) as raised:
            ckptool.plan(ckpt, tmp_path / "x.pth", format="torch-zip", for_torch=target)
        assert ("--dequantize" in (raised.value.hint or "")) == bool(said)


def test_types_and_storages_that_stand_for_themselves_count_too():
    root = Dict([("t", Global("torch", "bfloat16")), ("s", Storage(Buffer(b"1234"), "cpu", None, "s"))])
    assert impossible(root, (1, 1), zipped=True) == [
        "the zip archive (since torch 1.6)",
        "the type torch.bfloat16: 1 (since torch 1.2)",
        "storages without a type: 1 (since torch 2.0)",
    ]
    assert impossible(root, (2, 0), zipped=True) == []


def test_no_torch_before_0_4_reads_the_tensors_that_are_written(tmp_path):
    with pytest.raises(ckptool.CannotCarry, match=r"tensors of float32: 1 \(since torch 0.4\)"):
        ckptool.plan(state_dict_of({"w": tensor_of("float32")}), tmp_path / "x.pth", format="legacy", for_torch="0.3")


@pytest.mark.parametrize("core", ["core", "_core"])
def test_numpy_objects_of_both_names_are_read_and_kept(tmp_path, core):
    dtype = Object(
        "reduce", Global("numpy", "dtype"), ("f8", False, True), [("state", (3, "<", None, None, None, -1, -1, 0))]
    )
    name = Global(f"numpy.{core}.multiarray", "scalar")
    ckpt = Checkpoint(
        Dict([("w", tensor_of("float32")), ("n", Object("reduce", name, (dtype, struct.pack("<d", 1.5))))])
    )
    ckptool.save(ckpt, tmp_path / "x.pth")
    back = ckptool.open(tmp_path / "x.pth")
    assert f"numpy.{core}".encode() in (tmp_path / "x.pth").read_bytes()
    assert ckptool.clean(back).root.get("n") == 1.5
    lines = impossible(back.root, (2, 0), zipped=True)
    assert bool(lines) == (core == "_core")


BEYOND = {
    "I": (b"I4294967297\n.", 4294967297),
    "I negative": (b"I-4294967297\n.", -4294967297),
    "L": (b"L123456789012345678901234567890L\n.", 123456789012345678901234567890),
    "F": (b"F1e300\n.", 1e300),
    "V": (b"V\\u00e9\n.", "é"),
    "BINUNICODE8": (b"\x80\x04\x8d" + struct.pack("<Q", 2) + "é".encode() + b".", "é"),
    "BINBYTES8": (b"\x80\x04\x8e" + struct.pack("<Q", 2) + b"\0\xff.", b"\0\xff"),
    "BYTEARRAY8": (b"\x80\x05\x96" + struct.pack("<Q", 1) + b"x.", bytearray(b"x")),
}


@pytest.mark.parametrize("name", BEYOND)
def test_text_opcodes_and_lengths_beyond_32_bits_are_read(name):
    data, value = BEYOND[name]
    assert Reader(data, "x", lambda pid: None).load() == value


def test_a_length_of_64_bits_is_held_against_what_is_there():
    with pytest.raises(ckptool.Malformed, match="is cut short"):
        Reader(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "x", lambda pid: None).load()


def test_a_text_that_is_too_long_for_protocol_2_is_written_in_protocol_4(monkeypatch):
    monkeypatch.setattr(_pickle_write, "_LONGEST_TEXT", 10)
    written = _pickle_write.write_pickle(Dict([("x" * 11, "é")]), lambda storage: "")
    assert written[:2] == b"\x80\x04"
    back = Reader(written, "x", lambda pid: None).load()
    assert back.entries == [("x" * 11, "é")]


def test_strings_of_python_2_are_text_in_every_length(tmp_path):
    raw = "clé".encode()
    data = pickled({raw: 1, b"long " * 100: 2, b"\xff": 3})
    back = Reader(data, "x", lambda pid: None).load()
    assert [str(key) for key, _ in back.entries] == ["clé", "long " * 100, "ÿ"]
    cleaned = ckptool.clean(Checkpoint(back))
    assert [type(key) for key, _ in cleaned.root.entries] == [str, str, str]
    assert cleaned.history == ("clean the root: 3 byte strings of Python 2 -> text",)


def test_what_is_called_by_its_python_2_name_is_known(tmp_path):
    root = Reader(pickled(Call("__builtin__.set", [1])), "x", lambda pid: None).load()
    assert root.items == [1]
    assert Reader(pickled(Name("copy_reg._reconstructor")), "x", lambda pid: None).load().module == "copyreg"


@pytest.mark.parametrize("version", ["torch==0.9", "1.14"])
def test_a_version_that_never_was_is_refused(version):
    with pytest.raises(ckptool.RuleError, match="there was no torch"):
        parse_target(version)


@pytest.mark.parametrize("version", ["0.4.1", "1.13.1", "torch==2.99"])
def test_versions_that_were_and_those_to_come_are_taken(version):
    assert parse_target(version)
