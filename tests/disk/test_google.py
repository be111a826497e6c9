"""Google's store as it is spoken: gcsfs against an emulator. `make test-stores` builds both."""

import importlib.util
import os

import pytest
from store_servers import free_port, google_emulator, running
from test_urls import checkpoint

import ckptool
from ckptool.disk import ahead, remote, sending, uploads

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("gcsfs") is None, reason="gcsfs is not installed (make test-stores)"),
    pytest.mark.skipif(google_emulator() is None, reason="no emulator is in build/stores (make test-stores)"),
    pytest.mark.filterwarnings("default"),  # of gcsfs and what it is made of
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    port = free_port()
    words = [google_emulator(), "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=models"]
    with running(words, port, tmp_path_factory.mktemp("google") / "log"):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def client(address, monkeypatch):
    """The client's own file system, with nothing but what the environment says, and an empty bucket."""
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # which asks over gRPC, and the emulator has none
    import gcsfs

    monkeypatch.setitem(__import__("fsspec").config.conf, "gs", {"token": "anon"})
    gcsfs.GCSFileSystem.clear_instance_cache()
    store = gcsfs.GCSFileSystem(token="anon")
    for name in store.find("models"):
        store.rm_file(name)
    store.invalidate_cache()
    remote.TRAFFIC.clear()
    yield store
    gcsfs.GCSFileSystem.clear_instance_cache()


def names(client, place):
    client.invalidate_cache()
    return sorted(name.rpartition("/")[2] for name in client.find(place))


def test_files_and_folders_go_there_and_back(client, tmp_path):
    ckptool.save(checkpoint(), tmp_path / "a.pth")
    ckptool.save(ckptool.open(tmp_path / "a.pth"), "gs://models/a.pth")
    assert client.cat("models/a.pth") == (tmp_path / "a.pth").read_bytes()
    for format_ in ("shards", "dcp"):
        url = f"gs://models/{format_}"
        ckptool.save(checkpoint(), url, format=format_, max_shard_size="300KB")
        assert ckptool.diff(url, tmp_path / "a.pth", weights=True).same
        assert ckptool.verify(url).sound
    assert ckptool.diff("gs://models/a.pth", tmp_path / "a.pth").same


def test_large_objects_go_in_chunks_and_come_in_ranges(client, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "_HELD", 1 << 20)
    monkeypatch.setattr(ahead, "SEGMENT", 1 << 20)
    ckpt = checkpoint(4, 1200)
    ckptool.save(ckpt, "gs://models/large.safetensors")
    ckptool.save(ckpt, tmp_path / "large.safetensors")
    assert client.cat("models/large.safetensors") == (tmp_path / "large.safetensors").read_bytes()
    ckptool.save(ckptool.open("gs://models/large.safetensors"), tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "large.safetensors").read_bytes()


def test_what_is_there_is_replaced_only_if_that_is_asked_for(client):
    client.pipe_file("models/a.pth", b"theirs")
    with pytest.raises(ckptool.OutputExists, match="exists already"):
        ckptool.save(checkpoint(), "gs://models/a.pth")
    assert client.cat("models/a.pth") == b"theirs"
    ckptool.save(checkpoint(), "gs://models/a.pth", overwrite=True)
    assert ckptool.verify("gs://models/a.pth").sound


def test_an_upload_that_breaks_off_leaves_nothing_that_can_be_read(client, monkeypatch):
    add = sending._ToStore.add

    def broken(self, data):
        if "00003" in str(self._path):
            raise ckptool.Unwritable("the network is gone", where=self._path)
        add(self, data)

    monkeypatch.setattr(sending._ToStore, "add", broken)
    with pytest.raises(ckptool.Unwritable, match="gone"):
        ckptool.save(checkpoint(), "gs://models/m", format="shards", max_shard_size="200KB")
    assert not names(client, "models/m")


def test_an_object_that_changes_is_refused_and_what_is_not_there_is_named(client, tmp_path):
    ckptool.save(checkpoint(), "gs://models/a.safetensors")
    ckpt = ckptool.open("gs://models/a.safetensors")
    ckptool.save(ckptool.cast(checkpoint(), "float64"), "gs://models/a.safetensors", overwrite=True)
    with pytest.raises(ckptool.Malformed, match="changed in its store"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    for word in ("gs://models/b.pth", "gs://nothing-there/b.pth"):
        with pytest.raises(ckptool.Unreadable, match="is not there") as caught:
            ckptool.open(word)
        assert str(caught.value).count("\n") == 1
