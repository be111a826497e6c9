"""Damaged bytes are named: the checksums of a zip archive are compared wherever its bytes pass into another form."""

import os
import random
import sys
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import state_dict_of, tensor_of
from web import serving

import ckptool
from ckptool.disk import checksums
from ckptool.disk.checksums import Damaged, crc32, joined_crc32
from ckptool.disk.composing import Crc32Of, Joined, Verify
from ckptool.disk.files import CHUNK, Buffer, File, FileRange
from ckptool.disk.writing import write_pieces
from ckptool.dtypes import BY_NAME
from ckptool.tensor import LazyTensor, Storage

pytestmark = pytest.mark.same_without_torch

KEYS = ("plain", "turned", "slice.a", "slice.b", "fine")


def checkpoint():
    """A state dict with a permuted tensor and two views of one storage."""
    rng = np.random.default_rng(3)
    kind = BY_NAME["float32"]
    plain, turned, shared, fine = (
        Storage(Buffer(rng.standard_normal(600).astype("float32").tobytes()), "cpu", kind) for _ in range(4)
    )
    return state_dict_of(
        {
            "plain": LazyTensor(plain, kind, (20, 30), (30, 1)),
            "turned": LazyTensor(turned, kind, (20, 30), (1, 20)),
            "slice.a": LazyTensor(shared, kind, (100,), (1,)),
            "slice.b": LazyTensor(shared, kind, (300,), (1,), 200),
            "fine": LazyTensor(fine, kind, (600,), (1,)),
        }
    )


def saved(folder, ckpt=None):
    path = folder / "in.pth"
    ckptool.save(ckpt or checkpoint(), path)
    return path


def break_storage(path, key, at=40):
    """Change one bit of the storage of a tensor."""
    source = ckptool.open(path).state_dict()[key].storage.source
    data = bytearray(path.read_bytes())
    data[source.offset + at] ^= 2
    path.write_bytes(data)


def listing(folder):
    return {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*")}


#: How the bytes come into another form: the passes, and the options of `save`.
WAYS = {
    "safetensors": (lambda ckpt: ckpt, {"format": "safetensors"}),
    "legacy": (lambda ckpt: ckpt, {"format": "torch-legacy"}),
    "dcp": (lambda ckpt: ckpt, {"format": "dcp"}),
    "shards": (lambda ckpt: ckpt, {"format": "sharded-safetensors", "max_shard_size": "3KB"}),
    "cast": (lambda ckpt: ckptool.cast(ckpt, "bfloat16"), {"format": "safetensors"}),
    "cast in an archive": (lambda ckpt: ckptool.cast(ckpt, "bfloat16"), {"format": "torch-zip"}),
    "mean in an archive": (lambda ckpt: ckptool.average([ckpt, ckpt]), {"format": "torch-zip"}),
}


@pytest.mark.parametrize("key", ["plain", "turned", "slice.b"])
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_checksum_is_refused_with_the_name_of_the_tensor_and_nothing_is_written(tmp_path, way, key):
    path = saved(tmp_path)
    break_storage(path, key)
    change, options = WAYS[way]
    before = listing(tmp_path)
    with pytest.raises(ckptool.Malformed, match=rf"in.pth: the bytes of {key[:5]}.* are damaged: their checksum does"):
        ckptool.save(change(ckptool.open(path)), tmp_path / "out", **options)
    assert listing(tmp_path) == before or way == "shards"  # of which finished ones may be left aside
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", WAYS)
def test_allowed_damage_is_listed_and_written_as_it_is(tmp_path, way):
    path = saved(tmp_path)
    break_storage(path, "plain")
    change, options = WAYS[way]
    ckpt = change(ckptool.open(path))
    receipt = ckptool.save(ckpt, tmp_path / "out", allow_loss=True, **options)
    (line,) = receipt.damaged
    assert line.startswith("plain: CRC-32 recorded ")
    assert receipt.as_json()["damaged"] == [line]
    found = ckptool.open(tmp_path / "out").state_dict()["plain"].numpy()
    assert np.array_equal(found, ckpt.state_dict()["plain"].numpy(), equal_nan=True)


def test_damage_in_what_a_run_before_had_written_is_listed_too(tmp_path, monkeypatch):
    path = saved(tmp_path)
    break_storage(path, "plain")
    options = {"format": "sharded-safetensors", "max_shard_size": "3KB", "allow_loss": True}

    def stop(count, seen=[0]):  # noqa: B006 - what was written
        seen[0] += count
        if seen[0] > 6000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ckptool.save(ckptool.open(path), tmp_path / "out", progress=stop, **options)
    receipt = ckptool.save(ckptool.open(path), tmp_path / "out", **options)
    assert [line.split(":")[0] for line in receipt.damaged] == ["plain"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_whole_or_has_no_checksum_is_written_without_a_word(tmp_path, way):
    path = saved(tmp_path)
    change, options = WAYS[way]
    assert ckptool.save(change(ckptool.open(path)), tmp_path / "a", **options).damaged == []
    data = path.read_bytes()
    crc = ckptool.open(path).state_dict()["plain"].storage.crc.to_bytes(4, "little")
    assert data.count(crc) == 2
    path.write_bytes(data.replace(crc, bytes(4)))  # 0 over some bytes: not recorded
    break_storage(path, "plain")
    assert ckptool.save(change(ckptool.open(path)), tmp_path / "b", **options).damaged == []


@pytest.mark.parametrize("format_", ["torch-zip", "sharded-bin"])
@pytest.mark.parametrize("change", [lambda ckpt: ckptool.drop(ckpt, ["fine"]), ckptool.untie, ckptool.compact])
def test_to_another_archive_the_checksum_goes_along_and_still_shows_the_damage(tmp_path, format_, change):
    path = saved(tmp_path)
    break_storage(path, "plain")
    ckptool.save(change(ckptool.open(path)), tmp_path / "out", format=format_)
    verified = ckptool.verify(tmp_path / "out")
    assert [line.split(":")[0] for line in verified.damage] == ["plain"]


def test_a_part_of_a_damaged_storage_gets_no_checksum_that_agrees(tmp_path):
    path = saved(tmp_path)
    break_storage(path, "slice.a", at=700)  # a byte that belongs to neither
    ckpt = ckptool.compact(ckptool.open(path))
    with pytest.raises(ckptool.Malformed, match=r"the bytes of slice.a and 1 more are damaged"):
        ckptool.save(ckpt, tmp_path / "out.pth")


@pytest.mark.parametrize("way", ["safetensors", "cast"])
def test_compressed_records_have_their_checksums_compared(tmp_path, way):
    path = saved(tmp_path)
    crc = ckptool.open(path).state_dict()["turned"].storage.crc
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "again.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
    change, options = WAYS[way]
    assert ckptool.save(change(ckptool.open(tmp_path / "again.pth")), tmp_path / "a", **options).damaged == []
    raw = (tmp_path / "again.pth").read_bytes()
    (tmp_path / "again.pth").write_bytes(raw.replace(crc.to_bytes(4, "little"), (crc ^ 1).to_bytes(4, "little")))
    with pytest.raises(ckptool.Malformed, match="the bytes of turned are damaged"):
        ckptool.save(change(ckptool.open(tmp_path / "again.pth")), tmp_path / "b", **options)


@pytest.mark.parametrize("way", ["safetensors", "cast", "legacy"])
def test_of_a_file_on_the_web_checksums_are_compared_without_another_fetch(tmp_path, way):
    big = {
        f"w{n}": tensor_of("float32", (500, 2000), np.random.default_rng(n).standard_normal(10**6, "f4").tobytes())
        for n in range(3)
    }
    with serving(tmp_path) as server:
        path = saved(tmp_path, state_dict_of(big))
        change, options = WAYS[way]
        assert ckptool.save(change(ckptool.open(server.url("in.pth"))), tmp_path / "a", **options).damaged == []
        assert way == "cast" or server.sent < 1.3 * path.stat().st_size  # its threads ask for what others have, too
        break_storage(path, "w1", at=3 << 20)
        with pytest.raises(ckptool.Malformed, match="the bytes of w1 are damaged"):
            ckptool.save(change(ckptool.open(server.url("in.pth"))), tmp_path / "b", **options)


def test_chunks_of_a_sharded_run_are_compared(torch, tmp_path):
    ckptool.save(checkpoint(), tmp_path / "folder", format="dcp")
    source = ckptool.open(tmp_path / "folder").state_dict()["fine"].storage.source
    data = bytearray(source.file.path.read_bytes())
    data[source.offset + 3] ^= 1
    source.file.path.write_bytes(data)
    with pytest.raises(ckptool.Malformed, match=r"distcp: the bytes of fine are damaged"):
        ckptool.save(ckptool.open(tmp_path / "folder"), tmp_path / "out.safetensors")


def test_dense_values_of_a_sparse_tensor_are_compared(torch, tmp_path):
    values = torch.eye(50).to_sparse()
    torch.save({"w": values}, tmp_path / "in.pth")
    source = ckptool.open(tmp_path / "in.pth").state_dict().others["w"].parts["values"].storage.source
    data = bytearray((tmp_path / "in.pth").read_bytes())
    data[source.offset + 3] ^= 1
    (tmp_path / "in.pth").write_bytes(data)
    with pytest.raises(ckptool.Malformed, match="are damaged: their checksum does not match"):
        ckptool.save(ckptool.to_dense(ckptool.open(tmp_path / "in.pth")), tmp_path / "out.pth")


# -- the writing of pieces


@pytest.fixture
def input_file(tmp_path):
    data = random.Random(0).randbytes(24 << 20)
    (tmp_path / "x").write_bytes(data)
    return File(tmp_path / "x"), data


def ranges(file, data, sizes, broken=()):
    """Ranges of FILE of these sizes, one after the other, with their checksums; of the BROKEN ones with others."""
    found, at = [], 64
    for number, size in enumerate(sizes):
        crc = zlib.crc32(data[at : at + size])
        found.append(FileRange(file, at, size, crc ^ (number in broken)))
        at += size
    return found


SIZES = st.lists(
    st.sampled_from([1, 5000, 1 << 18, (1 << 20) - 1, 1 << 20, 3 << 20, 5_000_000]), min_size=1, max_size=6
)


@given(SIZES, st.data())
def test_damage_is_found_wherever_it_is_and_whoever_takes_the_checksum(tmp_path_factory, sizes, data):
    folder = tmp_path_factory.mktemp("pieces")
    raw = random.Random(1).randbytes(sum(sizes) + 64)
    (folder / "x").write_bytes(raw)
    file = File(folder / "x")
    broken = data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=2))
    parts = ranges(file, raw, sizes, broken)
    shift = data.draw(st.sampled_from([0, 64, 4096 + 64, 17]))  # with and without the copy in the kernel
    noted = {}
    pieces = [Buffer(bytes(shift))]
    for part in parts:
        pieces += [part, Crc32Of(part), Verify(part, noted)]
    with open(folder / "out", "wb", buffering=0) as out:
        write_pieces(out, pieces)
    expected = bytes(shift) + b"".join(
        raw[p.offset : p.offset + p.length] + zlib.crc32(raw[p.offset : p.offset + p.length]).to_bytes(4, "little")
        for p in parts
    )
    assert (folder / "out").read_bytes() == expected
    assert [parts.index(source) for source, found in noted.items() if found != source.crc] == sorted(broken)
    if broken:
        pieces = [piece if not isinstance(piece, Verify) else Verify(piece.source, None) for piece in pieces]
        with open(folder / "out", "wb", buffering=0) as out, pytest.raises(Damaged):
            write_pieces(out, pieces)


def test_parts_know_the_record_that_they_are_a_part_of(input_file):
    file, data = input_file
    whole = FileRange(file, 0, len(data), zlib.crc32(data))
    part = whole.part(100, 1000).part(5, 10)
    assert (part.offset, part.crc, part.whole) == (105, None, whole)
    assert whole.part(0, len(data)) is whole


def test_the_checksum_of_joined_parts_is_that_of_all_of_them(tmp_path, input_file):
    file, _ = input_file
    joined = Joined((FileRange(file, 10, 5 << 20), FileRange(file, 9 << 20, 7)))
    with open(tmp_path / "out", "wb", buffering=0) as out:
        write_pieces(out, [joined, Crc32Of(joined)])
    made = (tmp_path / "out").read_bytes()
    assert zlib.crc32(made[:-4]).to_bytes(4, "little") == made[-4:]


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="finds holes")
def test_holes_stay_holes_and_count_as_zeros(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.truncate(40 << 20)
        file.seek(20 << 20)
        file.write(b"data" * 1000)
    source = File(tmp_path / "x").range(64, (40 << 20) - 64)
    with open(tmp_path / "out", "wb", buffering=0) as out:
        write_pieces(out, [source, Crc32Of(source)])
    made = (tmp_path / "out").read_bytes()
    assert zlib.crc32(made[:-4]).to_bytes(4, "little") == made[-4:]
    assert (tmp_path / "out").stat().st_blocks * 512 < CHUNK


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_checksums_of_parts_make_that_of_the_whole(one, other):
    assert joined_crc32(zlib.crc32(one), zlib.crc32(other), len(other)) == zlib.crc32(one + other)


@given(SIZES, st.data())
def test_parts_of_a_joined_piece_are_compared_as_they_are_written_and_read_once(tmp_path_factory, sizes, data):
    folder = tmp_path_factory.mktemp("joined")
    raw = random.Random(2).randbytes(sum(sizes) + 64)
    (folder / "x").write_bytes(raw)
    file = File(folder / "x")
    broken = data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=2))
    parts = ranges(file, raw, sizes, broken)
    joined = Joined((*parts[:2], Buffer(b"between"), Joined(tuple(parts[2:]))))
    of_whole = data.draw(st.booleans())
    noted, read = {}, []
    checks = [Verify(part, noted) for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        real = File.read_into
        patch.setattr(File, "read_into", lambda self, view, at: read.append(len(view)) or real(self, view, at))
        with open(folder / "out", "wb", buffering=0) as out:
            write_pieces(out, [Buffer(b"x"), joined, *[Crc32Of(joined)] * of_whole, *checks])
    pieces = [raw[part.offset : part.offset + part.length] for part in parts]
    expected = b"".join((*pieces[:2], b"between", *pieces[2:]))
    crc = zlib.crc32(expected).to_bytes(4, "little") * of_whole
    assert (folder / "out").read_bytes() == b"x" + expected + crc
    assert {parts.index(source) for source, found in noted.items() if found != source.crc} == broken
    assert sum(read) == sum(sizes)


@pytest.mark.parametrize("installed", [True, False])
def test_a_checksum_is_that_of_zlib_with_isal_and_without(monkeypatch, installed):
    if installed:
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    checksums._fastest.cache_clear()
    monkeypatch.setattr(checksums, "_MANY", 64)
    rng = random.Random(5)
    try:
        for size in (0, 1, 63, 64, 65, 1000, 1 << 20):
            data, before = rng.randbytes(size), rng.randrange(1 << 32)
            for view in (data, bytearray(data), memoryview(data)):
                assert crc32(view) == zlib.crc32(data)
                assert crc32(view, before) == zlib.crc32(data, before)
        assert (checksums._fastest() is zlib.crc32) != installed
    finally:
        checksums._fastest.cache_clear()
