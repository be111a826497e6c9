"""Trees of Flax in msgpack: what lies is refused, whatever is changed."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.disk.composing import Joined
from ckptool.disk.files import FileRange
from ckptool.errors import CheckpointError, Malformed

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"


def text(value):
    return bytes([0xA0 | len(value)]) + value.encode()


def array(shape, kind, data):
    body = b"\x93" + bytes([0x90 | len(shape), *shape]) + text(kind) + b"\xc4" + bytes([len(data)]) + data
    return b"\xc7" + bytes([len(body), 1]) + body


def test_values_stay_in_the_file():
    tensors = ckptool.open(HERE / "flax.msgpack").state_dict().tensors
    assert all(isinstance(tensor.source(), FileRange) for tensor in tensors.values())
    assert isinstance(ckptool.open(HERE / "flax-chunked.msgpack").state_dict()["w"].source(), Joined)


def test_the_weights_in_an_optimizer_of_old_flax_are_the_state_dict(tmp_path):
    """`{"optimizer": {"target": {"fc": {"kernel": …}}, "state": {"step": 3}}}`, as T5X saves."""
    target = b"\x81" + text("fc") + b"\x81" + text("kernel") + array([2], "float32", bytes(8))
    raw = (
        b"\x81"
        + text("optimizer")
        + b"\x82"
        + text("target")
        + target
        + text("state")
        + b"\x81"
        + text("step")
        + b"\x03"
    )
    (tmp_path / "x.msgpack").write_bytes(raw)
    (found,) = ckptool.open(tmp_path / "x.msgpack").state_dicts()
    assert (found.path, list(found.tensors)) == ("optimizer/target", ["fc/kernel"])


def test_numbers_beside_the_arrays_are_values():
    values = dict(ckptool.open(HERE / "flax.msgpack").root.entries)
    assert (values["step"], values["lr"], values["flag"], values["none"]) == (3, 1e-3, True, None)
    assert values["np"].numpy() == np.float32(2.5)
    assert values["c"].numpy() == 1 + 2j


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x81" + text("w") + array((3,), "float32", bytes(8)), "takes 12"),
        (b"\x81" + text("w") + array((3,), "float32", bytes(12))[:-4], "cut short"),
        (b"\x82" + 2 * (text("w") + array((1,), "int8", b"x")), "two entries"),
        (b"\x81" + text("w") * 2 + b"rest", "bytes that follow"),
        (b"\x81" + text("w") + b"\xc1", "msgpack never uses"),
        (b"\x81" + text("w") + b"\xdd" + b"\xff" * 4, "cut short"),
        (b"\x81" + text("w") + b"\x81" + text("w") + b"\x91" * 200, "nested more than"),
        (b"\xdf" + b"\xff" * 4 + text("w"), "cut short"),
    ],
)
def test_what_lies_is_refused_in_a_line_or_noted(tmp_path, raw, said):
    (tmp_path / "x.msgpack").write_bytes(raw)
    if "follow" in said:
        assert said in ckptool.open(tmp_path / "x.msgpack").lost_content[0]
        return
    with pytest.raises(Malformed) as raised:
        ckptool.open(tmp_path / "x.msgpack")
    assert said in str(raised.value)


def test_a_type_that_torch_does_not_have_is_named_as_lost(tmp_path):
    raw = b"\x82" + text("w") + array((2,), "int4", b"ab") + text("v") + array((2,), "int8", b"ab")
    (tmp_path / "x.msgpack").write_bytes(raw)
    assert ckptool.open(tmp_path / "x.msgpack").lost_content == ("the array w of int4",)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_file_is_read_or_refused(tmp_path_factory, data):
    raw = bytearray((HERE / "flax.msgpack").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.msgpack"
    path.write_bytes(raw[: data.draw(st.integers(1, len(raw)))])
    try:
        for _, tensor in ckptool.open(path).tensors():
            tensor.source().read(0, tensor.nbytes)
    except CheckpointError:
        pass


def test_leaves_of_equinox_may_stand_behind_a_line_of_settings(tmp_path):
    raw = (HERE / "equinox.eqx").read_bytes()
    (tmp_path / "x.eqx").write_bytes(b'{"width": 4}\n' + raw)
    ckpt = ckptool.open(tmp_path / "x.eqx")
    assert ckpt.metadata == {"hyperparameters": '{"width": 4}'}
    assert ckptool.diff(tmp_path / "x.eqx", HERE / "equinox.eqx").same
    (tmp_path / "cut.eqx").write_bytes(raw[:-1])
    with pytest.raises(Malformed, match="array 3 is cut short"):
        ckptool.open(tmp_path / "cut.eqx")


def test_the_length_of_a_number_is_that_of_its_type(tmp_path):
    raw = b"\x82" + text("w") + array((1,), "int8", b"x") + text("n") + b"\xcb" + struct.pack(">d", 2.5)
    (tmp_path / "x.msgpack").write_bytes(raw)
    assert dict(ckptool.open(tmp_path / "x.msgpack").root.entries)["n"] == 2.5
