"""Slices that are compared with one that was read hold what reading them finds, and are refused in the same words."""

import io
import struct
import zipfile
from random import Random

import numpy as np
import pytest
from same import graph
from strategies import tensor_of
from test_dcp import write, zipped

import ckptool
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError
from ckptool.formats import _dcp_metadata as records
from ckptool.formats import dcp
from ckptool.formats.zip import layout


def a_slice(number, values=6, extra=()):
    """A slice as torch writes it, with a number of its own. EXTRA: records behind the values."""
    raw = np.arange(number, number + values, dtype="float32").tobytes()
    with zipfile.ZipFile(io.BytesIO(zipped(tensor_of("float32", (values,), raw)))) as written:
        held = {name.partition("/")[2]: written.read(name) for name in written.namelist()}
    held = {"data.pkl": held["data.pkl"], "byteorder": b"little", "data/0": raw, "version": b"3\n"}
    held |= {".data/serialization_id": f"{number:040d}".encode(), **dict(extra)}
    pieces = layout.lay_out("archive", [layout.Record(name, Buffer(data), None) for name, data in held.items()])
    return b"".join(bytes(piece.read(0, piece.length)) for piece in pieces)


def a_folder(path, slices, values=6):
    at, items = 0, []
    for number, data in enumerate(slices):
        box = records.Box((0,), (values,), records.Slice("__0_0.distcp", at, len(data)))
        items.append(records.Item(f"w{number}", (f"w{number}",), [box], BY_NAME["float32"], (values,)))
        at += len(data)
    write(path, {"__0_0.distcp": b"".join(slices)}, items)


def told(path):
    try:
        ckpt = ckptool.open(path)
    except CheckpointError as error:
        return str(error), error.hint
    places = [(s.source.offset, s.source.length, s.source.crc, s.crc, s.key, s.location) for s in ckpt.storages()]
    return graph(ckpt.root), places, ckpt.warnings, ckpt.lost_content


def both_ways(monkeypatch, path):
    quick = told(path)
    with monkeypatch.context() as patch:
        patch.setattr(dcp, "like_of", lambda archive, made: None)
        return quick, told(path)


@pytest.fixture
def opened(monkeypatch):
    """Counts the archives that are opened."""
    calls, real = [], dcp.open_archive
    monkeypatch.setattr(dcp, "open_archive", lambda file: (calls.append(1), real(file))[1])
    return calls


@pytest.mark.parametrize("values", [6, 3000])
def test_of_slices_that_are_alike_one_is_read(opened, monkeypatch, tmp_path, values):
    a_folder(tmp_path / "x", [a_slice(number, values) for number in range(5)], values)
    quick = told(tmp_path / "x")
    assert len(opened) == 1
    held = ckptool.open(tmp_path / "x").root
    assert [held.get(f"w{number}").numpy()[0] for number in range(5)] == [0, 1, 2, 3, 4]
    monkeypatch.setattr(dcp, "like_of", lambda archive, made: None)
    assert quick == told(tmp_path / "x")


def test_what_torch_wrote_is_alike_too(opened, tmp_path):
    torch = pytest.importorskip("torch")
    slices = []
    for number in range(4):
        data = io.BytesIO()
        torch.save(torch.arange(number, number + 6, dtype=torch.float32), data)
        slices.append(data.getvalue())
    assert len(set(slices)) == 4
    a_folder(tmp_path / "x", slices)
    held = ckptool.open(tmp_path / "x").root
    assert len(opened) == 1
    assert [held.get(f"w{number}").numpy()[5] for number in range(4)] == [5, 6, 7, 8]


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_slice_is_told_alike(monkeypatch, tmp_path, seed):
    random = Random(seed)
    slices = [a_slice(number, extra=[("more", bytes(9))] if seed == 2 else ()) for number in range(3)]
    a_folder(tmp_path / "x", slices)
    begin, end = len(slices[0]), len(slices[0]) + len(slices[1])
    directory = begin + slices[1].index(b"PK\1\2")
    file = tmp_path / "x" / "__0_0.distcp"
    whole = file.read_bytes()
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(random.choice((1, 1, 2))):
            at = random.randrange(directory if random.random() < 0.5 else begin, end)
            if random.random() < 0.7:
                data[at] = random.choice((0, 1, 0xFF, data[at] ^ (1 << random.randrange(8))))
            else:
                data[at : at + 4] = struct.pack("<I", random.choice((0, 1, begin, len(data), 0xFFFFFFFF)))
        file.write_bytes(data[: len(whole)])
        quick, slow = both_ways(monkeypatch, tmp_path / "x")
        assert quick == slow


def test_a_checksum_that_is_stated_in_one_place_alone_is_refused(monkeypatch, tmp_path):
    slices = [a_slice(number) for number in range(2)]
    at = slices[1].index(b"PK\7\10", slices[1].index(b"data/0")) + 4
    slices[1] = slices[1][:at] + bytes(4) + slices[1][at + 4 :]
    a_folder(tmp_path / "x", slices)
    quick, slow = both_ways(monkeypatch, tmp_path / "x")
    assert quick == slow
    assert "contradicts the checksum" in quick[0]
