"""Checkpoints of several files on the web and in stores: read from there, or refused in a line that says what to do."""

from pathlib import Path

import pytest
from web import serving

import ckptool
from ckptool.disk import remote
from ckptool.errors import CannotCarry, CheckpointError

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"
BY_FILE = (
    "tf2.index",
    "tf1-v2.ckpt.index",
    "tf1-v1.ckpt",
    "onnx-external.onnx",
    "tfjs/model.json",
    "gguf.gguf",
    "flax.msgpack",
)
BY_FOLDER = ("saved_model", "orbax-ocdbt", "orbax-ocdbt-zarr3", "orbax-zarr", "orbax-zarr3")


def needed(name):
    for word, package in (("orbax", "zstandard"), ("gguf", "gguf")):
        if name.startswith(word):
            pytest.importorskip(package)


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    with serving(HERE) as server:
        yield server


@pytest.fixture
def store(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    for name in {*BY_FILE, *BY_FOLDER, "keras.h5"}:
        top = HERE / name.split("/")[0]
        beside = [path for path in top.parent.glob(f"{top.stem.split('.')[0]}*") if path.is_file()]
        for path in top.rglob("*") if top.is_dir() else beside:
            if path.is_file():
                memory.pipe_file(f"/bucket/{path.relative_to(HERE).as_posix()}", path.read_bytes())
    return "memory://bucket"


@pytest.mark.parametrize("name", BY_FILE)
def test_a_file_that_names_others_is_read_from_the_web(web, name):
    needed(name)
    assert ckptool.diff(web.url(name), HERE / name).same


@pytest.mark.parametrize("name", [*BY_FILE, *BY_FOLDER])
def test_files_and_folders_are_read_from_a_store(store, name):
    needed(name)
    assert ckptool.diff(f"{store}/{name}", HERE / name).same


def test_a_file_beside_that_is_missing_on_the_web_is_named(web, tmp_path):
    (tmp_path / "tf2.index").write_bytes((HERE / "tf2.index").read_bytes())
    with serving(tmp_path) as server, pytest.raises(CheckpointError, match=r"tf2\.data-00000-of-00001"):
        ckptool.open(server.url("tf2.index"))


def test_a_folder_of_the_web_is_refused_in_a_line(web):
    with pytest.raises(CheckpointError) as refused:
        ckptool.open(web.url("saved_model/"))
    assert "\n" not in refused.value.what


def test_hdf5_elsewhere_is_refused_before_its_child_is_asked(web, store):
    pytest.importorskip("h5py")
    for url in (web.url("keras.h5"), f"{store}/keras.h5"):
        with pytest.raises(CannotCarry, match="is an HDF5 file on a server; such files are read here only") as refused:
            ckptool.open(url)
        assert refused.value.hint == "fetch it first, and name the file here"
