"""`ckptool.verify`: damage is found wherever a checksum covers it; digests are those of the weights alone."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer, File
from ckptool.dtypes import ALL, BY_NAME
from ckptool.reports import regions
from ckptool.reports.manifests import read_manifest, total_digest, write_manifest
from ckptool.reports.verify import _count_odd, _Found, digests_of
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict

TRAINED = Path(__file__).resolve().parents[2] / "fixtures" / "trained"


def tensor(array, location="cpu"):
    array = np.ascontiguousarray(array)
    kind = BY_NAME[array.dtype.name]
    return LazyTensor(
        Storage(Buffer(array.tobytes()), location, kind), kind, array.shape, contiguous_stride(array.shape)
    )


def saved(path, entries, **options):
    ckptool.save(Checkpoint(Dict(list(entries.items()), True)), path, **options)
    return path


@pytest.fixture
def weights():
    rng = np.random.default_rng(5)
    return {f"layers.{n}.weight": tensor(rng.standard_normal((40, 50)).astype("float32")) for n in range(3)}


@pytest.mark.parametrize(
    "path", sorted(TRAINED.glob("*.pth")) + sorted(TRAINED.glob("*.safetensors")), ids=lambda p: p.name
)
def test_what_was_saved_is_sound(path):
    found = ckptool.verify(path)
    assert (found.sound, found.damage, found.doubts) == (True, [], [])
    assert found.checksums[0] > 0 or found.format in ("safetensors", "torch-legacy")


def test_every_byte_of_every_record_is_covered(tmp_path, weights):
    path = saved(tmp_path / "a.pth", weights)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    for record in records:
        if not record.file_size:
            continue
        start = record.header_offset + 30 + data[record.header_offset + 26] + 256 * data[record.header_offset + 27]
        start += data[record.header_offset + 28] + 256 * data[record.header_offset + 29]
        for at in (start, start + record.file_size - 1):
            broken = bytearray(data)
            broken[at] ^= 1
            (tmp_path / "b.pth").write_bytes(broken)
            try:
                found = ckptool.verify(tmp_path / "b.pth")
            except ckptool.Malformed:
                continue  # a record that is read to open the file
            assert not found.sound
            assert len(found.damage) == 1


def test_the_tensor_that_is_damaged_is_named(tmp_path, weights):
    path = saved(tmp_path / "a.pth", weights)
    ckpt = ckptool.open(path)
    source = ckpt.state_dict()["layers.1.weight"].storage.source
    data = bytearray(path.read_bytes())
    data[source.offset + 17] ^= 0x40
    path.write_bytes(data)
    (line,) = ckptool.verify(path).damage
    assert line.startswith("layers.1.weight: its CRC-32 is ")


def test_a_checksum_of_0_is_one_that_was_not_recorded(torch, tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    found = ckptool.verify(tmp_path / "a.pth")
    assert found.sound
    assert found.checksums[1] > 0
    assert any("no checksum was recorded" in note for note in found.notes)


def test_compressed_records_are_checked_too(tmp_path, weights):
    path = saved(tmp_path / "a.pth", weights)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
    assert ckptool.verify(tmp_path / "b.pth").sound


def test_nan_and_infinite_values_are_doubts_with_their_numbers(tmp_path):
    odd = np.array([1, np.nan, np.inf, -np.inf, 0], "float32")
    found = ckptool.verify(saved(tmp_path / "a.safetensors", {"w": tensor(odd), "v": tensor(np.ones(3, "float32"))}))
    assert found.sound
    assert found.doubts == ["w: 1 NaN", "w: 2 infinite values"]


@pytest.mark.parametrize("name", [dtype.name for dtype in ALL if dtype.not_finite])
@given(data=st.binary(max_size=64))
def test_numbers_that_are_not_finite_are_told_as_numpy_tells_them(name, data):
    import ml_dtypes

    kind = BY_NAME[name]
    real = {"complex64": "float32", "complex128": "float64"}.get(kind.numpy, kind.numpy)
    numbers = np.dtype(getattr(np, real, None) or getattr(ml_dtypes, real))
    data = data[: len(data) // kind.itemsize * kind.itemsize]
    values = np.frombuffer(data, numbers)
    with np.errstate(all="ignore"):
        values = values.astype("float64") if numbers.itemsize < 8 else values
    found = _Found()
    _count_odd(found, data, BY_NAME[name].not_finite, False)
    assert (found.nan, found.infinite) == (np.isnan(values).sum(), np.isinf(values).sum())


def test_a_hole_of_zeros_is_a_doubt_and_a_tensor_of_zeros_is_none(tmp_path):
    values = np.random.default_rng(0).standard_normal(1 << 18).astype("float32")
    holed = values.copy()
    holed[100_000:120_000] = 0
    entries = {"whole": tensor(values), "holed": tensor(holed), "zeros": tensor(np.zeros(1 << 18, "float32"))}
    for name in ("a.pth", "a.safetensors"):
        (doubt,) = ckptool.verify(saved(tmp_path / name, entries)).doubts
        assert doubt.startswith("holed: ")
        assert int(doubt.split()[1]) in (18, 19)


def test_what_cannot_be_opened_is_an_error(tmp_path, weights):
    path = saved(tmp_path / "a.pth", weights)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ckptool.Malformed):
        ckptool.verify(path)


def test_the_same_weights_have_the_same_digest_in_every_format_and_order(tmp_path, weights):
    zipped = saved(tmp_path / "a.pth", weights)
    others = [
        saved(tmp_path / "b.safetensors", dict(reversed(weights.items()))),
        saved(tmp_path / "c.pth", weights, format="legacy"),
        saved(tmp_path / "d.ckpt", {"epoch": 3, "state_dict": Dict(list(weights.items()), True)}),
    ]
    digest = ckptool.verify(zipped, digest=True).digest
    assert digest
    assert {ckptool.verify(path, digest=True).digest for path in others} == {digest}
    changed = {**weights, "layers.0.weight": weights["layers.1.weight"]}
    assert ckptool.verify(saved(tmp_path / "e.pth", changed), digest=True).digest != digest


def test_a_manifest_is_kept_and_names_what_does_not_fit(tmp_path, weights):
    digests = digests_of(ckptool.open(saved(tmp_path / "a.pth", weights)))
    write_manifest(tmp_path / "m", digests)
    assert read_manifest(tmp_path / "m") == digests
    assert ckptool.verify(saved(tmp_path / "b.safetensors", weights), manifest=tmp_path / "m").sound
    changed = {**weights, "layers.0.weight": weights["layers.1.weight"], "new": tensor(np.ones(1, "float32"))}
    del changed["layers.2.weight"]
    found = ckptool.verify(saved(tmp_path / "c.pth", changed), manifest=tmp_path / "m")
    assert found.damage == [
        "layers.0.weight: its digest is not that of the manifest",
        "layers.2.weight: is in the manifest and not in the file",
        "new: is not in the manifest",
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ckptool-manifest": 1, "digest": "x", "tensors": {"a": "b"}}', "\xff"]
)
def test_what_is_no_manifest_is_refused(tmp_path, weights, text):
    (tmp_path / "m").write_text(text)
    with pytest.raises(ckptool.Malformed):
        ckptool.verify(saved(tmp_path / "a.pth", weights), manifest=tmp_path / "m")


def test_the_digest_is_written_down_for_other_programs(tmp_path):
    import hashlib
    import json

    array = np.arange(6, dtype="float32").reshape(2, 3)
    found = ckptool.verify(saved(tmp_path / "a.pth", {"w": tensor(array)}), digest=True)
    one = hashlib.sha256(b"float32 [2, 3]\n" + array.tobytes()).hexdigest()
    assert found.digests == {"w": one}
    assert found.digest == hashlib.sha256(f"{json.dumps('w')} {one}\n".encode()).hexdigest() == total_digest({"w": one})


def test_another_file_is_held_against_it(tmp_path, weights):
    left, right = saved(tmp_path / "a.pth", weights), saved(tmp_path / "b.safetensors", weights)
    assert ckptool.verify(left, against=right).sound
    other = saved(tmp_path / "c.pth", {**weights, "layers.0.weight": weights["layers.1.weight"]})
    found = ckptool.verify(left, against=other)
    assert (found.sound, found.damage) == (False, [])


def test_a_sharded_folder_is_read_whole(tmp_path, weights):
    ckptool.save(Checkpoint(Dict(list(weights.items()), True)), tmp_path / "out", max_shard_size=9000)
    found = ckptool.verify(tmp_path / "out")
    assert found.sound
    assert found.read >= 3 * 8000


def test_a_distributed_checkpoint_is_read_whole(tmp_path, weights):
    ckptool.save(Checkpoint(Dict(list(weights.items()), True)), tmp_path / "out", format="dcp")
    found = ckptool.verify(tmp_path / "out", digest=True)
    assert found.sound
    assert found.read >= 3 * 8000
    assert found.digest == ckptool.verify(saved(tmp_path / "a.pth", weights), digest=True).digest


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["float32", "float16", "int64", "bool"]),
            st.integers(0, 5),
            st.sampled_from([0, 1, np.nan, np.inf]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([".pth", ".safetensors"]),
    st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), max_size=2),
)
def test_small_tensors_that_are_read_together_are_judged_as_each_alone(tmp_path_factory, drawn, suffix, changes):
    path = tmp_path_factory.mktemp("runs") / f"a{suffix}"
    whole = {
        str(n): tensor(np.full((500,) * (n % 7 == 6) + (size,), value if kind[0] == "f" else 1).astype(kind))
        for n, (kind, size, value) in enumerate(drawn)
    }
    saved(path, whole)
    opened = ckptool.open(path)
    data = bytearray(path.read_bytes())
    places = [s.source.offset + at for s in opened.storages() for at in range(s.source.length)]
    for place, value in changes if places else ():
        data[places[place % len(places)]] = value
    path.write_bytes(data)
    together = ckptool.verify(ckptool.open(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regions, "_small_and_alike", lambda region: None)
        assert together == ckptool.verify(ckptool.open(path))


def test_small_tensors_take_few_reads(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.pth", {f"{n}.weight": tensor(np.ones(4, "float32")) for n in range(2000)})
    opened, reads = ckptool.open(path), []
    for name in ("read", "read_into"):
        read = getattr(File, name)
        monkeypatch.setattr(File, name, lambda *args, read=read: (reads.append(args), read(*args))[1])
    assert ckptool.verify(opened).checksums[0] > 2000
    assert len(reads) < 100  # those of the directory included
