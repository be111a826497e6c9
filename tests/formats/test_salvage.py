"""`ckptool.salvage`: what is whole of a damaged file is saved as it was, and what is lost is named."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict, List

LAYERS = 8


def tensor(array):
    array = np.ascontiguousarray(array)
    kind = BY_NAME[array.dtype.name]
    return LazyTensor(Storage(Buffer(array.tobytes()), "cpu", kind), kind, array.shape, contiguous_stride(array.shape))


def checkpoint():
    rng = np.random.default_rng(1)
    weights = [(f"layers.{n}.weight", tensor(rng.standard_normal((20, 30)).astype("float32"))) for n in range(LAYERS)]
    return Checkpoint(Dict([("epoch", 3), ("state_dict", Dict([*weights, ("empty", tensor(np.zeros((0, 3))))], True))]))


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "ok.pth"
    ckptool.save(checkpoint(), path)
    return path


def zipped_again(path, name, *, method=zipfile.ZIP_STORED, extra=()):
    """The archive at PATH, with other names."""
    out = path.with_name("again.pth")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", method) as new:
        for record in old.infolist():
            new.writestr(name(record.filename), old.read(record))
        for other, data in extra:
            new.writestr(other, data)
    return out


def inside_another(path):
    out = path.with_name("outer.zip")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        new.write(path, "download/ok.pth")
    return out


def cut(path, size):
    out = path.with_name(f"cut{path.suffix}")
    data = path.read_bytes()
    out.write_bytes(data[:size] if size < 0 else data[: int(size * len(data))] if size < 1 else data[:size])
    return out


MENDED = {
    "flat": lambda path: zipped_again(path, lambda name: name.partition("/")[2]),
    "by macOS": lambda path: zipped_again(
        path,
        lambda name: name,
        method=zipfile.ZIP_DEFLATED,
        extra=[("__MACOSX/._ok", b"x"), ("archive/.DS_Store", b"y")],
    ),
    "in a folder within a folder": lambda path: zipped_again(path, lambda name: f"a/b/{name}"),
    "compressed": lambda path: zipped_again(path, lambda name: name, method=zipfile.ZIP_DEFLATED),
    "in another archive": inside_another,
    "without its directory": lambda path: cut(path, -500),
    "without its end record": lambda path: cut(path, -20),
}


@pytest.mark.parametrize("kind", MENDED)
def test_what_only_has_another_form_is_mended_without_loss(whole, tmp_path, kind):
    found = ckptool.salvage(MENDED[kind](whole))
    assert found.wrong
    assert not found.lost
    ckptool.save(found.checkpoint, tmp_path / "out.pth")
    assert ckptool.diff(whole, tmp_path / "out.pth").same
    assert ckptool.verify(tmp_path / "out.pth").sound


@pytest.mark.parametrize("kind", MENDED)
def test_torch_loads_what_was_mended(torch, whole, tmp_path, kind):
    ckptool.save(ckptool.salvage(MENDED[kind](whole)).checkpoint, tmp_path / "out.pth")
    expected = torch.load(whole, weights_only=True)["state_dict"]
    found = torch.load(tmp_path / "out.pth", weights_only=True, mmap=True)["state_dict"]
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("format_", ["torch-zip", "torch-legacy", "safetensors"])
@given(data=st.data())
@settings(max_examples=25)
def test_of_a_file_that_is_cut_short_every_tensor_is_whole_or_named(tmp_path_factory, format_, data):
    folder = tmp_path_factory.mktemp("cut")
    path = folder / ("ok.safetensors" if format_ == "safetensors" else "ok.pth")
    ckpt = checkpoint()
    ckptool.save(ckpt if format_ != "safetensors" else ckptool.extract(ckpt), path, format=format_)
    raw = path.read_bytes()
    size = data.draw(st.integers(0, len(raw) - 1))
    path.write_bytes(raw[:size])
    try:
        found = ckptool.salvage(path)
    except ckptool.CheckpointError:
        assert size < 4000  # the part that says what there is
        return
    before = ckpt.state_dict().tensors
    after = found.checkpoint.state_dict().tensors if found.kept else {}
    assert all(np.array_equal(after[key].numpy(), before[key].numpy()) for key in after)
    lost = {path.rpartition("/")[2] for path, _ in found.lost}
    assert after.keys() | lost == before.keys()
    assert not after.keys() & lost
    assert found.kept == len(after)


def test_torch_loads_what_is_left_of_a_cut_file(torch, whole, tmp_path):
    found = ckptool.salvage(cut(whole, 0.5))
    ckptool.save(found.checkpoint, tmp_path / "out.pth", allow_loss=True)
    left = torch.load(tmp_path / "out.pth", weights_only=True)
    expected = torch.load(whole, weights_only=True)
    assert left["epoch"] == 3
    assert 0 < len(left["state_dict"]) < LAYERS
    assert all(torch.equal(value, expected["state_dict"][key]) for key, value in left["state_dict"].items())


def test_files_that_torch_wrote_lose_their_directory_and_get_it_back(torch, tmp_path):
    torch.manual_seed(0)
    state = {f"w{n}": torch.randn(50, 20) for n in range(5)} | {"tied": torch.ones(3)}
    state["tied.too"] = state["tied"]
    torch.save(state, tmp_path / "a.pth")
    data = (tmp_path / "a.pth").read_bytes()
    (tmp_path / "b.pth").write_bytes(data[: data.index(b"PK\1\2")])
    found = ckptool.salvage(tmp_path / "b.pth")
    assert (found.lost, found.kept) == ((), 7)
    ckptool.save(found.checkpoint, tmp_path / "c.pth")
    back = torch.load(tmp_path / "c.pth", weights_only=True)
    assert all(torch.equal(back[key], value) for key, value in state.items())
    assert back["tied"].data_ptr() == back["tied.too"].data_ptr()


def test_a_tensor_whose_checksum_does_not_match_is_lost(whole):
    source = ckptool.open(whole).state_dict()["layers.3.weight"].storage.source
    data = bytearray(whole.read_bytes())
    data[source.offset] ^= 1
    whole.write_bytes(data)
    found = ckptool.salvage(whole)
    assert found.lost == (("state_dict/layers.3.weight", "its checksum does not match"),)
    with pytest.raises(ckptool.CannotCarry, match="checksum does not match"):
        ckptool.save(found.checkpoint, whole.with_name("out.pth"))


def test_the_entry_that_holds_a_lost_tensor_goes_as_a_whole(tmp_path):
    big = tensor(np.ones(5000, "float32"))
    root = Dict([("first", tensor(np.ones(3, "float32"))), ("several", List([1, tensor(np.ones(2, "float32")), big]))])
    ckptool.save(Checkpoint(root), tmp_path / "a.pth")
    found = ckptool.salvage(cut(tmp_path / "a.pth", -1000))
    assert [path for path, _ in found.lost] == ["several"]
    assert [path for path, _ in found.checkpoint.tensors()] == ["first"]


def test_bytes_behind_a_safetensors_file_are_left_behind(tmp_path):
    path = tmp_path / "a.safetensors"
    ckptool.save(ckptool.extract(checkpoint()), path)
    path.write_bytes(path.read_bytes() + b"junk")
    found = ckptool.salvage(path)
    assert found.wrong == ("4 bytes follow the last tensor",)
    assert not found.lost


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"PK\5\6" + bytes(18), b"<html>", b"\x80\x02}."])
def test_of_what_is_no_checkpoint_nothing_can_be_saved(tmp_path, data):
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(ckptool.CheckpointError):
        ckptool.salvage(tmp_path / "a.pth")


def test_an_archive_of_two_checkpoints_is_not_chosen_from(whole, tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        new.write(whole, "a.pth")
        new.write(whole, "b.pth")
    (tmp_path / "both.zip").write_bytes(out.getvalue())
    with pytest.raises(ckptool.NotFound, match="2 checkpoints"):
        ckptool.salvage(tmp_path / "both.zip")


@given(st.binary(max_size=200), st.integers(0, 30), st.integers(1, 5))
@settings(max_examples=30)
def test_noise_ends_in_an_error_of_ours_or_in_what_is_whole(tmp_path_factory, noise, where, times):
    path = tmp_path_factory.mktemp("noise") / "a.pth"
    ckptool.save(checkpoint(), path)
    data = bytearray(path.read_bytes())
    for n in range(times):
        at = (where * 997 + n * 5003) % len(data)
        data[at : at + len(noise)] = noise
    path.write_bytes(data)
    try:
        found = ckptool.salvage(path)
    except ckptool.CheckpointError:
        return
    assert found.kept <= found.tensors


# -- records whose local header is destroyed


def headers(path):
    """The offset of the local header and of the payload of each record."""
    with zipfile.ZipFile(path) as archive:
        found = {record.filename: record.header_offset for record in archive.infolist()}
    data = path.read_bytes()
    lengths = {name: int.from_bytes(data[at + 26 : at + 28], "little") for name, at in found.items()}
    extras = {name: int.from_bytes(data[at + 28 : at + 30], "little") for name, at in found.items()}
    return {name: (at, at + 30 + lengths[name] + extras[name]) for name, at in found.items()}


RECORDS = ("data.pkl", "data/0", "data/3", "version")


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("size", [4, 30, None], ids=["signature", "fixed part", "all of it"])
@pytest.mark.parametrize("fill", [b"\0", b"\xff"], ids=["zeros", "ones"])
def test_a_destroyed_local_header_is_rebuilt_from_the_directory(whole, tmp_path, record, size, fill):
    begin, payload = next(places for name, places in headers(whole).items() if name.endswith(f"/{record}"))
    data = bytearray(whole.read_bytes())
    size = size or payload - begin
    data[begin : begin + size] = fill * size
    (tmp_path / "broken.pth").write_bytes(data)
    with pytest.raises(ckptool.CheckpointError):
        ckptool.open(tmp_path / "broken.pth")
    found = ckptool.salvage(tmp_path / "broken.pth")
    assert (found.lost, found.kept) == ((), LAYERS + 1)
    assert any(f"/{record} is damaged" in line for line in found.wrong)
    ckptool.save(found.checkpoint, tmp_path / "out.pth")
    assert ckptool.diff(whole, tmp_path / "out.pth").same


def test_all_local_headers_destroyed_is_no_more_than_one(whole, tmp_path):
    data = bytearray(whole.read_bytes())
    for begin, payload in headers(whole).values():
        data[begin:payload] = bytes(payload - begin)
    (tmp_path / "broken.pth").write_bytes(data)
    found = ckptool.salvage(tmp_path / "broken.pth")
    assert (found.lost, found.kept) == ((), LAYERS + 1)


def test_where_the_directory_and_a_payload_are_damaged_the_local_headers_save_the_rest(whole, tmp_path):
    data = bytearray(whole.read_bytes())
    begin, payload = next(places for name, places in headers(whole).items() if name.endswith("/data/3"))
    data[begin:payload] = bytes(payload - begin)  # one header, and the name of another record in the directory
    at = data.index(b"archive/data/1" if b"archive/data/1" in data else b"/data/1", data.index(b"PK\1\2"))
    data[at + len(b"archive/data/1") - 1] ^= 0x40
    (tmp_path / "broken.pth").write_bytes(data)
    found = ckptool.salvage(tmp_path / "broken.pth")
    assert found.kept == LAYERS
    assert len(found.lost) == 1


@pytest.mark.parametrize("crc", [True, False], ids=["checksums", "no checksums"])
@pytest.mark.parametrize("size", [4, 30])
def test_torch_loads_a_file_of_its_own_whose_first_header_was_destroyed(torch, tmp_path, crc, size):
    state = {"a": torch.arange(60.0).reshape(6, 10), "b": torch.ones(3, dtype=torch.int8)}
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(crc)
    try:
        torch.save(state, tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    for name, (begin, _) in headers(tmp_path / "a.pth").items():
        data = bytearray((tmp_path / "a.pth").read_bytes())
        data[begin : begin + size] = bytes(size)
        (tmp_path / "b.pth").write_bytes(data)
        found = ckptool.salvage(tmp_path / "b.pth")
        assert not found.lost, name
        ckptool.save(found.checkpoint, tmp_path / "c.pth", overwrite=True)
        back = torch.load(tmp_path / "c.pth", weights_only=True, mmap=True)
        assert all(torch.equal(back[key], value) for key, value in state.items())


def test_a_wrong_payload_is_not_taken_for_the_record_of_a_destroyed_header(whole, tmp_path):
    begin, payload = next(places for name, places in headers(whole).items() if name.endswith("/data/3"))
    data = bytearray(whole.read_bytes())
    data[begin : payload + 1] = b"\xff" * (payload + 1 - begin)  # the first byte of the values, too
    (tmp_path / "broken.pth").write_bytes(data)
    found = ckptool.salvage(tmp_path / "broken.pth")
    assert [path for path, _ in found.lost] == ["state_dict/layers.3.weight"]


@pytest.mark.parametrize("written", [0.4, 0.6])
def test_of_two_saves_one_over_the_other_only_one_is_kept(tmp_path, written):
    """A save of the same layout that did not reach its end leaves the tensors of the one before behind it, and its
    directory: each record is whole by itself.
    """
    old, new = checkpoint(), checkpoint()
    state = dict(new.root.entries)["state_dict"]
    state.entries[:] = [(key, tensor(value.numpy() + 1)) for key, value in state.entries]
    for name, ckpt in (("old", old), ("new", new)):
        ckptool.save(ckpt, tmp_path / f"{name}.pth")
    one, other = ((tmp_path / f"{name}.pth").read_bytes() for name in ("old", "new"))
    assert len(one) == len(other)
    ends = [at for at in range(len(other)) if other[at : at + 4] == b"PK\3\4"]
    end = next(at for at in ends if at > written * len(other))  # between two records: none is damaged
    (tmp_path / "mixed.pth").write_bytes(other[:end] + one[end:])
    found = ckptool.salvage(tmp_path / "mixed.pth")
    assert any("records of two saves" in line for line in found.wrong)
    kept, before = found.checkpoint.state_dict().tensors, old.state_dict().tensors
    assert found.kept
    assert found.lost
    assert all(np.array_equal(value.numpy(), before[key].numpy()) for key, value in kept.items())
