"""Object stores through fsspec, on the one that is in memory: folders, writing, and what goes wrong."""

import datetime
import importlib.util
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_urls import checkpoint

import ckptool
from ckptool.cli import main
from ckptool.disk import ahead, remote, stores, uploads
from ckptool.disk.addresses import Url, as_path, is_url, model_hint
from ckptool.disk.urls import look, open_file
from ckptool.errors import without_secrets

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory(monkeypatch):
    """An empty store, and no pauses."""
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    remote.TRAFFIC.clear()
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    return store


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return command


def names(store, folder=""):
    return sorted(path.removeprefix(f"/{folder}") for path in store.store if path.startswith(f"/{folder}"))


FORMATS = [("a.pth", "torch-zip"), ("a.pth", "torch-legacy"), ("a.safetensors", None)]
FOLDERS = ["shards", "bin", "dcp"]


@pytest.mark.parametrize(("name", "format_"), FORMATS)
def test_a_file_is_written_to_a_store_and_read_from_it(memory, tmp_path, name, format_):
    url = f"memory://bucket/{name}"
    receipt = ckptool.save(checkpoint(), url, format=format_)
    assert str(receipt.path) == url
    assert memory.info(f"/bucket/{name}")["size"] == receipt.nbytes
    ckptool.save(checkpoint(), tmp_path / name, format=format_)
    assert memory.cat(f"/bucket/{name}") == (tmp_path / name).read_bytes()
    assert ckptool.diff(url, tmp_path / name).same
    assert ckptool.verify(url).sound
    assert ckptool.scan(url).verdict == "safe"
    assert ckptool.doctor(url).healthy


@pytest.mark.parametrize("format_", FOLDERS)
def test_a_folder_is_written_to_a_store_and_read_from_it(memory, tmp_path, format_):
    ckptool.save(checkpoint(), "memory://bucket/run/1", format=format_, max_shard_size="300KB")
    ckptool.save(checkpoint(), tmp_path / "here", format=format_, max_shard_size="300KB")
    assert names(memory, "bucket/run/1/") == sorted(path.name for path in (tmp_path / "here").iterdir())
    for url in ("memory://bucket/run/1", "memory://bucket/run/1/"):
        assert ckptool.diff(url, tmp_path / "here").same
        assert ckptool.verify(url).sound
        assert ckptool.doctor(url).healthy
    ckptool.save(ckptool.open("memory://bucket/run/1"), tmp_path / "out.safetensors")
    assert ckptool.diff(tmp_path / "out.safetensors", tmp_path / "here", weights=True).same


def test_the_index_takes_its_name_last(memory, monkeypatch):
    order = []
    put = memory.__class__.pipe_file

    def noted(self, path, value, mode="overwrite", **options):
        order.append(path.rpartition("/")[2])
        return put(self, path, value, mode=mode, **options)

    monkeypatch.setattr(memory.__class__, "pipe_file", noted)
    ckptool.save(checkpoint(), "memory://b/shards", format="shards", max_shard_size="300KB")
    assert order[-1] == "model.safetensors.index.json"
    ckptool.save(checkpoint(), "memory://b/slices", format="dcp")
    assert order[-1] == ".metadata"


def test_what_is_there_is_replaced_only_if_that_is_asked_for(memory, run):
    ckptool.save(checkpoint(), "memory://b/a.pth")
    before = memory.cat("/b/a.pth")
    code, _, err = run("add-prefix", "memory://b/a.pth", "memory://b/a.pth")
    assert code == 2
    assert "memory://b/a.pth: exists already.\nHint: add --overwrite, or choose another name" in err
    assert memory.cat("/b/a.pth") == before
    assert run("add-prefix", "memory://b/a.pth", "memory://b/a.pth", "--overwrite")[0] == 0
    assert next(iter(ckptool.open("memory://b/a.pth").state_dict())).startswith("module.")
    assert run("strip-prefix", "memory://b/a.pth", "--in-place")[0] == 0
    assert ckptool.diff("memory://b/a.pth", "memory://b/a.pth").same
    assert not next(iter(ckptool.open("memory://b/a.pth").state_dict())).startswith("module.")
    code, _, err = run("add-prefix", "memory://b/a.pth", "--in-place", "--backup", ".bak")
    assert code == 2
    assert "keeps no backup in a store" in err


def test_an_old_folder_makes_room_for_the_new_and_keeps_what_is_not_weights(memory):
    ckptool.save(checkpoint(), "memory://b/m", format="shards", max_shard_size="200KB")
    memory.pipe_file("/b/m/README.md", b"mine")
    with pytest.raises(ckptool.OutputExists, match="is a folder that is not empty"):
        ckptool.save(checkpoint(), "memory://b/m", format="shards")
    assert len(names(memory, "b/m/")) == 8
    ckptool.save(checkpoint(), "memory://b/m", format="shards", overwrite=True)
    assert names(memory, "b/m/") == ["README.md", "model.safetensors"]
    ckptool.save(ckptool.add_prefix(ckptool.open("memory://b/m")), "memory://b/m", overwrite=True)
    assert ckptool.verify("memory://b/m").sound


def test_what_appears_meanwhile_is_kept(memory, monkeypatch):
    def meanwhile(change):
        send = uploads._send

        def sent(*args):
            send(*args)
            change()

        monkeypatch.setattr(uploads, "_send", sent)

    meanwhile(lambda: memory.pipe_file("/b/a.pth", b"theirs"))
    with pytest.raises(ckptool.OutputExists, match="was made by another program meanwhile"):
        ckptool.save(checkpoint(), "memory://b/a.pth")
    assert memory.cat("/b/a.pth") == b"theirs"
    meanwhile(lambda: memory.pipe_file("/b/m/model.safetensors.index.json", b"theirs"))
    with pytest.raises(ckptool.OutputExists, match="by another program meanwhile"):
        ckptool.save(checkpoint(), "memory://b/m", format="shards", max_shard_size="300KB")
    assert names(memory, "b/m/") == ["model.safetensors.index.json"]


def test_an_upload_that_breaks_off_leaves_what_was_there(memory, tmp_path, monkeypatch):
    ckptool.save(checkpoint(), "memory://b/m", format="shards", max_shard_size="300KB")
    before = {path: memory.cat(path) for path in memory.store}
    ckptool.save(checkpoint(), tmp_path / "a.pth")
    damaged = bytearray((tmp_path / "a.pth").read_bytes())
    damaged[500_000] ^= 1
    (tmp_path / "a.pth").write_bytes(damaged)
    for target, format_ in (("memory://b/m", "shards"), ("memory://b/x.safetensors", None)):
        with pytest.raises(ckptool.Malformed, match="checksum"):
            ckptool.save(ckptool.open(tmp_path / "a.pth"), target, overwrite=True, format=format_)
    assert {path: memory.cat(path) for path in memory.store} == before


def test_an_object_that_changes_while_it_is_read_is_refused(memory, tmp_path):
    ckptool.save(checkpoint(), "memory://b/a.safetensors")
    ckpt = ckptool.open("memory://b/a.safetensors")
    ckptool.save(ckptool.cast(checkpoint(), "bfloat16"), "memory://b/a.safetensors", overwrite=True)
    memory.store["/b/a.safetensors"].created += datetime.timedelta(seconds=1)
    with pytest.raises(ckptool.Malformed, match="changed in its store while it was being read"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    assert not (tmp_path / "out.pth").exists()


def test_what_is_not_there_is_said_in_a_line(memory, run):
    memory.pipe_file("/b/notes/README.md", b"mine")
    for word, said in (
        ("memory://b/nothing.pth", "is not there"),
        ("memory://nothing/", "holds nothing"),
        ("memory://b/notes", "a folder without sharded weights"),
        ("memory://b/notes/model.safetensors.index.json", "is not there"),
    ):
        code, out, err = run("inspect", word)
        assert (code, out) == (2, "")
        assert err.startswith(f"Error: {word}: ")
        assert said in err


PACKAGES = [("s3", "s3fs"), ("gs", "gcsfs"), ("az", "adlfs")]


@pytest.mark.parametrize(("scheme", "package"), PACKAGES)
def test_a_package_that_is_missing_is_named(scheme, package, run, tmp_path, monkeypatch):
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    word = f"{scheme}://b/a.pth"
    code, _, err = run("inspect", word)
    assert code == 2
    assert f"needs {package}, which is not installed.\nHint: pip install {package}\n" in err
    ckptool.save(checkpoint(1, 10), tmp_path / "a.pth")
    assert f"Hint: pip install {package}\n" in run("convert", tmp_path / "a.pth", word)[2]


def test_a_folder_is_searched_for_pickles(memory, run):
    ckptool.save(checkpoint(2, 10), "memory://b/run/a.pth")
    ckptool.save(checkpoint(2, 10), "memory://b/run/deeper/b.pth")
    memory.pipe_file("/b/run/notes.txt", b"mine")
    code, out, _ = run("scan", "memory://b/run")
    assert code == 0
    assert "memory://b/run/a.pth: safe" in out
    assert "memory://b/run/deeper/b.pth: safe" in out
    assert "1 file skipped" in out


def test_long_reads_come_in_requests_side_by_side_and_in_bounded_memory(memory, monkeypatch):
    monkeypatch.setattr(ahead, "SEGMENT", 1 << 16)
    monkeypatch.setattr(remote, "_WINDOW", 1 << 16)
    content = bytes(range(256)) * 40_000
    memory.pipe_file("/b/x", content)
    going, most = [], []
    lock = threading.Lock()
    together = threading.Event()
    ask = stores.StoreFetcher._range

    def noted(self, begin, end):
        with lock:
            going.append(end - begin)
            most.append((len(going), sum(going)))
            if len(going) > 1:
                together.set()
        together.wait(0.01)
        try:
            return ask(self, begin, end)
        finally:
            with lock:
                going.remove(end - begin)

    monkeypatch.setattr(stores.StoreFetcher, "_range", noted)
    file = open_file("memory://b/x")
    assert b"".join(file.read(at, min(100_000, len(content) - at)) for at in range(0, len(content), 100_000)) == content
    assert 1 < max(number for number, _ in most) <= ahead.MOST_AHEAD + 1
    assert max(size for _, size in most) <= (ahead.MOST_AHEAD + 1) * (1 << 16) + 100_000
    assert file.traffic.received < 1.1 * len(content)


def test_what_is_read_ahead_is_no_more_than_what_was_read(memory, monkeypatch):
    monkeypatch.setattr(ahead, "SEGMENT", 1 << 18)
    memory.pipe_file("/b/x", bytes(20 << 20))
    file = open_file("memory://b/x")
    file.read(1 << 20, 100_000)
    file.read((1 << 20) + 100_000, 100_000)
    file.close()
    assert file.traffic.received <= 65_536 + 200_000 + 2 * (1 << 18)


@given(st.data())
@settings(max_examples=15)
def test_any_part_is_that_of_the_object(data):
    store = fsspec.filesystem("memory")
    content = random.Random(data.draw(st.integers(0, 9))).randbytes(data.draw(st.integers(0, 400_000)))
    store.pipe_file("/law/x", content)
    file = open_file("memory://law/x")
    assert file.size == len(content)
    for _ in range(6):
        begin = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, len(content) - begin))
        assert file.read(begin, length) == content[begin : begin + length]


@given(st.binary(max_size=300_000), st.integers(1, 70_000), st.lists(st.integers(1, 90_000), max_size=8))
@settings(max_examples=30)
def test_parts_of_an_upload_are_of_one_size_and_hold_all_bytes(content, part, lengths):
    class Sender:
        def __init__(self):
            self.sent = []

        def add(self, data):
            self.sent.append(data)

    sender = Sender()
    out = uploads._Parts(sender, part)
    at = 0
    for length in [*lengths, len(content)]:
        out.write(content[at : at + length])
        at += length
    out.finish()
    assert b"".join(sender.sent) == content
    assert all(len(data) == part for data in sender.sent[:-1])
    assert all(0 < len(data) <= part for data in sender.sent)
    assert out.position == len(content)


# -- words


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://host/a.pth?X-Amz-Signature=abc&part=1", "https://host/a.pth?X-Amz-Signature=…&part=1"),
        ("https://host/a.pth?sv=1&sig=abc%3D", "https://host/a.pth?sv=1&sig=…"),
        ("https://host/a.pth?token=abc#x", "https://host/a.pth?token=…#x"),
        ("https://me:word@host/a.pth", "https://host/a.pth"),
        ("s3://me:word@bucket/a.pth", "s3://bucket/a.pth"),
        ("https://host/a.pth?version=3", "https://host/a.pth?version=3"),
        ("abfs://me:word@host/a.pth", "abfs://host/a.pth"),
        ("abfss://data@me.dfs.core.windows.net/a.pth", "abfss://data@me.dfs.core.windows.net/a.pth"),
        ("hf://org/m@refs/pr/7/a.pth", "hf://org/m@refs/pr/7/a.pth"),
    ],
)
def test_what_gives_access_is_not_shown(address, shown):
    assert str(as_path(address)) == shown == without_secrets(address)
    assert as_path(address).address == address
    assert str(ckptool.Unreadable("is bad", where=address)) == f"{shown}: is bad."


def test_a_url_goes_up_and_down_like_a_path():
    folder = as_path("s3://b/runs/1/")
    assert isinstance(folder, Url)
    assert (folder / "model.safetensors").address == "s3://b/runs/1/model.safetensors"
    assert (folder / "model.safetensors").parent.address == "s3://b/runs/1/"
    assert folder.name == "1"
    assert as_path("https://host/a/b.json?sv=1&sig=x").parent.address == "https://host/a/?sv=1&sig=x"
    assert (as_path("https://host/a?sig=x") / "b").address == "https://host/a/b?sig=x"
    assert as_path("s3://b").parent.address == "s3://b"
    assert as_path("s3://b/odd?name#1.pth").name == "odd?name#1.pth"
    assert as_path("s3://b/run?1/x#2").parent.address == "s3://b/run?1/"
    assert (as_path("s3://b/run?1") / "what?.pth").address == "s3://b/run?1/what?.pth"


@pytest.mark.parametrize("name", ["b/a::b.pth", "b/x::file://y", "b/zip::a.pth", "b/a?b#c*d%20 e.pth", "top.pth"])
def test_an_object_of_an_odd_name_is_the_one_that_is_named(memory, tmp_path, name):
    others = {f"/{name.partition(mark)[0]}" for mark in ":?#"} - {f"/{name}"}
    for other in others:
        memory.pipe_file(other, b"another")
    ckptool.save(checkpoint(), f"memory://{name}", overwrite=True, format="torch-zip")
    assert {f"/{key.lstrip('/')}" for key in memory.store} == {*others, f"/{name}"}
    assert all(memory.cat(other) == b"another" for other in others)
    ckptool.save(checkpoint(), tmp_path / "a.pth")
    assert ckptool.diff(f"memory://{name}", tmp_path / "a.pth").same


def test_the_files_of_a_folder_of_an_odd_name_are_found(memory, run):
    folder = "memory://b/run?1#2"
    ckptool.save(checkpoint(), folder, format="shards", max_shard_size="200KB")
    index = f"{folder}/model.safetensors.index.json"
    assert ckptool.diff(index, folder).same
    code, _, err = run("scan", folder)
    assert (code, "is not there" in err) == (0, False)


def test_several_files_go_to_a_folder_of_a_store(memory, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.pth", "b.pth"):
        ckptool.save(checkpoint(), name)
    assert run("convert", "a.pth", "b.pth", "--out-dir", "memory://b/dir", "--dry-run")[0] == 0
    assert not memory.store
    assert run("convert", "a.pth", "b.pth", "--out-dir", "memory://b/dir")[0] == 0
    assert names(memory) == ["b/dir/a.pth", "b/dir/b.pth"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.pth", "b.pth"]


def test_an_object_does_not_hide_a_folder_and_a_folder_is_not_hidden(memory):
    ckptool.save(checkpoint(), "memory://b/m", format="shards", max_shard_size="200KB")
    ckptool.save(checkpoint(), "memory://b/n", format="torch-zip")
    before = dict(memory.store)
    for overwrite in (False, True):
        with pytest.raises(ckptool.Unwritable, match="is a folder, not a file name"):
            ckptool.save(checkpoint(), "memory://b/m", format="torch-zip", overwrite=overwrite)
        with pytest.raises(ckptool.Unwritable, match="is an object, not a folder"):
            ckptool.save(checkpoint(), "memory://b/n", format="shards", overwrite=overwrite)
    assert memory.store == before


@pytest.mark.parametrize("word", ["s3:/b/x", "ftp://b/x", "xs3://b/x", "/s3://b", "a/hf://b", "org/m"])
def test_other_words_are_no_urls(word):
    assert not is_url(word)


@given(st.text(max_size=40))
def test_a_hint_for_a_model_is_given_to_names_of_models_only(word):
    hint = model_hint(word)
    assert hint is None or (word.count("/") == 1 and hint.endswith(f"hf://{word}"))


def test_a_path_of_pathlib_that_lost_a_slash_is_said_to_have(tmp_path, monkeypatch):
    from pathlib import Path

    monkeypatch.chdir(tmp_path)
    for word in ("s3://b/x.pth", "hf://org/m", "https://host/x"):
        with pytest.raises(ckptool.Unreadable, match="a URL is given as text"):
            look(Path(word))
