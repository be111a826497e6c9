"""Azure as it is spoken: adlfs against azurite. `make test-stores` builds both."""

import importlib.util
import os

import pytest
from store_servers import azurite, free_port, running
from test_urls import checkpoint

import ckptool
from ckptool.disk import ahead, remote, sending, uploads

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("adlfs") is None, reason="adlfs is not installed (make test-stores)"),
    pytest.mark.skipif(azurite() is None, reason="azurite is not in build/stores (make test-stores)"),
    pytest.mark.filterwarnings("default"),  # of adlfs and what it is made of
]
#: The account that every azurite has, which is in its manual.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    port = free_port()
    folder = tmp_path_factory.mktemp("azurite")
    words = [azurite(), "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", port, "--skipApiVersionCheck"]
    with running([*words, "--disableTelemetry", "--silent"], port, folder / "log"):
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"


@pytest.fixture
def client(address, monkeypatch):
    """The client's own file system, with nothing but what the environment says, and a container."""
    import adlfs

    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    words = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", words)
    adlfs.AzureBlobFileSystem.clear_instance_cache()
    store = adlfs.AzureBlobFileSystem()
    if not store.exists("models"):
        store.mkdir("models")
    for name in store.find("models"):
        store.rm_file(name)
    store.invalidate_cache()
    remote.TRAFFIC.clear()
    yield store
    adlfs.AzureBlobFileSystem.clear_instance_cache()


def names(client, place):
    client.invalidate_cache()
    return sorted(name.rpartition("/")[2] for name in client.find(place))


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_files_and_folders_go_there_and_back(client, tmp_path, scheme):
    ckptool.save(checkpoint(), tmp_path / "a.pth")
    ckptool.save(ckptool.open(tmp_path / "a.pth"), f"{scheme}://models/a.pth")
    assert client.cat("models/a.pth") == (tmp_path / "a.pth").read_bytes()
    for format_ in ("shards", "dcp"):
        url = f"{scheme}://models/{format_}"
        ckptool.save(checkpoint(), url, format=format_, max_shard_size="300KB")
        assert ckptool.diff(url, tmp_path / "a.pth", weights=True).same
        assert ckptool.verify(url).sound
    assert ckptool.diff(f"{scheme}://models/a.pth", tmp_path / "a.pth").same


def test_large_blobs_go_in_blocks(client, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "_HELD", 1 << 20)
    monkeypatch.setattr(ahead, "SEGMENT", 1 << 20)
    ckpt = checkpoint(4, 1200)
    ckptool.save(ckpt, "az://models/large.safetensors")
    ckptool.save(ckpt, tmp_path / "large.safetensors")
    assert client.cat("models/large.safetensors") == (tmp_path / "large.safetensors").read_bytes()
    ckptool.save(ckptool.open("az://models/large.safetensors"), tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "large.safetensors").read_bytes()


def test_what_is_there_is_replaced_only_if_that_is_asked_for(client):
    client.pipe_file("models/a.pth", b"theirs")
    with pytest.raises(ckptool.OutputExists, match="exists already"):
        ckptool.save(checkpoint(), "az://models/a.pth")
    assert client.cat("models/a.pth") == b"theirs"
    ckptool.save(checkpoint(), "az://models/a.pth", overwrite=True)
    assert ckptool.verify("az://models/a.pth").sound


@pytest.mark.parametrize("before", [False, True], ids=["made", "changed"])
def test_what_appears_or_changes_meanwhile_is_kept(client, monkeypatch, before):
    if before:
        client.pipe_file("models/a.pth", b"old")
    send = uploads._send

    def sent(*args):
        send(*args)
        client.pipe_file("models/a.pth", b"theirs", overwrite=True)

    monkeypatch.setattr(uploads, "_send", sent)
    with pytest.raises(ckptool.OutputExists, match="by another program meanwhile"):
        ckptool.save(checkpoint(), "az://models/a.pth", overwrite=before)
    assert client.cat("models/a.pth") == b"theirs"


def test_an_upload_that_breaks_off_leaves_nothing_that_can_be_read(client, monkeypatch):
    add = sending._ToStore.add

    def broken(self, data):
        if "00003" in str(self._path):
            raise ckptool.Unwritable("the network is gone", where=self._path)
        add(self, data)

    monkeypatch.setattr(sending._ToStore, "add", broken)
    with pytest.raises(ckptool.Unwritable, match="gone"):
        ckptool.save(checkpoint(), "az://models/m", format="shards", max_shard_size="200KB")
    assert not names(client, "models/m")


def test_a_blob_that_changes_while_it_is_read_is_refused(client, tmp_path):
    ckptool.save(checkpoint(), "az://models/a.safetensors")
    ckpt = ckptool.open("az://models/a.safetensors")
    ckptool.save(ckptool.cast(checkpoint(), "float64"), "az://models/a.safetensors", overwrite=True)
    with pytest.raises(ckptool.Malformed, match="changed in its store"):
        ckptool.save(ckpt, tmp_path / "out.pth")


@pytest.mark.parametrize(
    ("word", "said"), [("az://nothing/a.pth", "no bucket nothing|is not there"), ("az://models/a.pth", "is not there")]
)
def test_what_is_not_there_is_said_in_a_line(client, word, said):
    with pytest.raises(ckptool.Unreadable, match=said) as caught:
        ckptool.open(word)
    assert str(caught.value).count("\n") == 1
    assert KEY not in str(caught.value)


def test_a_key_that_is_wrong_is_said_to_be_denied(client, monkeypatch, address):
    words = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey=AAAA;BlobEndpoint={address};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", words)
    client.clear_instance_cache()
    with pytest.raises(ckptool.Unreadable, match="denies access to it"):
        ckptool.open("az://models/a.pth")
