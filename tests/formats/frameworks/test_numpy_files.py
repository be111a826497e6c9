"""Arrays of numpy (.npy, .npz) against numpy itself."""

import io
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ckptool
from ckptool.errors import CannotCarry, CheckpointError, Malformed, UnknownFormat
from ckptool.tensor import Gathered

KINDS = "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1 c8 c16".split()


def arrays():
    """Arrays of every type and order, under names as people give them."""
    made = {
        f"layer/{order}{kind}": np.arange(6).reshape(2, 3).astype(f"{order}{kind}") for kind in KINDS for order in "<>"
    }
    return made | {
        "turned": np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)),
        "W": np.ones(2, "f4"),
        "w": np.zeros(2, "f4"),
        "empty": np.zeros((0, 3), "f4"),
        "scalar": np.float64(3.5),
        "arr_0": np.arange(100_000, dtype="f4"),
    }


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_every_array_of_an_archive_is_what_numpy_reads(tmp_path, write):
    write(tmp_path / "a.npz", **arrays())
    found = ckptool.open(tmp_path / "a.npz").state_dict().tensors
    with np.load(tmp_path / "a.npz") as theirs:
        assert set(found) == set(theirs.files)
        for name in theirs.files:
            np.testing.assert_array_equal(found[name].numpy(), theirs[name], strict=False)
            assert found[name].dtype.numpy == theirs[name].dtype.newbyteorder("=").name


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_an_archive_converted_and_back_has_the_same_arrays(tmp_path, write):
    kept = {name: value for name, value in arrays().items() if value.dtype.kind != "c"}
    write(tmp_path / "a.npz", **kept)
    ckptool.save(ckptool.open(tmp_path / "a.npz"), tmp_path / "b.safetensors")
    ckptool.save(ckptool.open(tmp_path / "b.safetensors"), tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as theirs:
        assert set(theirs.files) == set(kept)
        for name, value in kept.items():
            np.testing.assert_array_equal(theirs[name], value)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.dtype(f"{o}{k}") for k in KINDS for o in "<>"]), hnp.array_shapes(min_dims=0, min_side=0)
    ),
    st.booleans(),
)
def test_any_array_that_numpy_saves_is_read(tmp_path_factory, value, fortran):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    np.save(path, np.asfortranarray(value) if fortran and value.ndim else value)
    tensor = ckptool.open(path).state_dict()["array"]
    assert tensor.numpy().tobytes() == np.load(path).astype(value.dtype.newbyteorder("="), order="C").tobytes()


def test_what_is_not_compressed_stays_in_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.arange(6.0))
    source = ckptool.open(tmp_path / "a.npz").state_dict()["w"].source()
    assert not isinstance(source, Gathered)
    assert source.read(0, source.length) == np.arange(6.0).tobytes()
    assert source.whole.crc


def test_bfloat16_which_numpy_does_not_name_is_said_to_be_a_guess(tmp_path):
    values = np.arange(4).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", w=values)
    ckpt = ckptool.open(tmp_path / "a.npz")
    assert (ckpt.state_dict()["w"].numpy() == values).all()
    assert "taken for bfloat16" in ckpt.warnings[0]
    receipt = ckptool.save(ckpt, tmp_path / "b.npz")
    assert "numpy has no type" in receipt.form[0]
    with np.load(tmp_path / "b.npz") as theirs:
        assert (theirs["w"].view(ml_dtypes.bfloat16) == values).all()


def test_text_is_a_value_and_objects_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.ones(2), note=np.array("hi"), names=np.array(["a", "bc"]), o=np.array([{}, 1]))
    ckpt = ckptool.open(tmp_path / "a.npz")
    values = dict(ckpt.root.entries)
    assert values["note"] == "hi"
    assert values["names"].items == ["a", "bc"]
    assert ckpt.lost_content == ("the array o of Python objects, which are a pickle (|O)",)
    with pytest.raises(CannotCarry, match="the array o of Python objects"):
        ckptool.save(ckpt, tmp_path / "b.pth")
    assert not (tmp_path / "b.pth").exists()


def test_text_of_several_dimensions_keeps_them_and_what_is_no_text_is_lost(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.ones(2), grid=np.array([["a", "b", "c"], ["d", "e", "f"]]))
    rows = dict(ckptool.open(tmp_path / "a.npz").root.entries)["grid"].items
    assert [row.items for row in rows] == [["a", "b", "c"], ["d", "e", "f"]]
    np.savez(tmp_path / "b.npz", w=np.ones(2), odd=np.full(3, 0xFFFFFFFF, np.uint32).view("<U1"))
    assert ckptool.open(tmp_path / "b.npz").lost_content == ("the array odd of text (<U1)",)


def test_an_array_of_objects_is_refused_with_a_command_that_works(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}, len], dtype=object))
    with pytest.raises(UnknownFormat, match="an array of Python objects, which are a pickle") as raised:
        ckptool.open(tmp_path / "o.npy")
    assert raised.value.hint.startswith("ckptool scan ")
    assert "builtins.len" in [one.name for one in ckptool.scan(tmp_path / "o.npy").findings]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os').system('id'),), }", "is none"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1, }", "is none"),
        ("{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3), }", "is none"),
        ("{'descr': '<f4', 'descr': '<f4', 'shape': (2, 3), }", "is none"),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (2, 3), }", "unknown type '<q9'"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), }", "takes 36"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }", "is none"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 70 + "), }", "is none"),
        ("(" * 5000, "is none"),
        ("'" * 9000, "is none"),
    ],
)
def test_a_header_that_lies_is_refused_in_a_line(tmp_path, header, said):
    raw = header.encode()
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(raw)) + raw + bytes(24))
    with pytest.raises(Malformed) as raised:
        ckptool.open(tmp_path / "x.npy")
    assert said in str(raised.value)


def test_an_archive_that_says_it_inflates_to_less_than_it_does_is_refused(tmp_path):
    data = io.BytesIO()
    np.save(data, np.zeros(1 << 20))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", data.getvalue())
    raw = bytearray((tmp_path / "bomb.npz").read_bytes())
    true = struct.pack("<I", len(data.getvalue()))
    assert raw.count(true) == 2
    (tmp_path / "bomb.npz").write_bytes(raw.replace(true, struct.pack("<I", 128)))
    with pytest.raises(CheckpointError):
        ckptool.save(ckptool.open(tmp_path / "bomb.npz"), tmp_path / "out.pth")
    assert not (tmp_path / "out.pth").exists()


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_a_changed_byte_is_found_by_its_checksum(tmp_path, write):
    write(tmp_path / "a.npz", w=np.random.default_rng(0).random(1000))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    found = ckptool.verify(tmp_path / "a.npz")
    assert not found.sound
    with pytest.raises(CheckpointError):
        ckptool.save(ckptool.open(tmp_path / "a.npz"), tmp_path / "out.pth")


def test_nan_in_an_archive_is_a_doubt(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.array([1, np.nan, np.inf], "f4"))
    found = ckptool.verify(tmp_path / "a.npz")
    assert found.doubts == ["w: 1 NaN", "w: 1 infinite value"]
    assert found.checksums == (1, 0)


def test_a_scan_knows_an_archive_with_names_that_differ_in_case(tmp_path):
    np.savez(tmp_path / "a.npz", W=np.ones(1), w=np.ones(1))
    assert ckptool.scan(tmp_path / "a.npz").verdict == "safe"
