"""What is inside a folder: nothing is followed out of it, except into the blobs of a Hugging Face cache."""

import gc
import os
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import ckptool
from ckptool.disk.inside import Folder, files_in

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes of POSIX")


@pytest.fixture(params=["below a descriptor", "by name"])
def way(request, monkeypatch):
    """Both ways of opening: the second is that of a platform without openat."""
    if request.param == "by name":
        monkeypatch.setattr(os, "supports_dir_fd", frozenset())
    return request.param


@pytest.fixture
def folder(tmp_path):
    """A folder with a file, a folder in it, and a secret beside it."""
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "plain").write_bytes(b"inside")
    (tmp_path / "folder" / "sub" / "deep").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"secret")
    return tmp_path / "folder"


def link(folder, name, target):
    (folder / name).symlink_to(target)
    return folder / name


def read(folder, name):
    file = Folder(folder).file(name, "index.json")
    return file.read(0, file.size)


INSIDE = {
    "a link to a file of the folder": lambda f: link(f, "x", "plain"),
    "a link into a folder below": lambda f: link(f, "x", "sub/deep"),
    "an absolute link back into the folder": lambda f: link(f, "x", f / "plain"),
    "a link out of it and back": lambda f: link(f, "x", "../folder/plain"),
    "a chain of links": lambda f: (link(f, "y", "sub/../plain"), link(f, "z", "y"), link(f, "x", "z")),
    "a link through a link to a folder": lambda f: (link(f, "s", "sub"), link(f, "x", "s/deep")),
    "a link through a link back from outside": lambda f: (
        link(f.parent, "back", "folder"),
        link(f, "x", "../back/plain"),
    ),
}


@pytest.mark.parametrize("make", INSIDE.values(), ids=INSIDE)
def test_links_that_stay_in_the_folder_are_followed(folder, make, way):
    make(folder)
    assert read(folder, "x") == b"inside"
    assert Folder(folder).lying("x") == "file"


OUTSIDE = {
    "a link to a file beside it": lambda f: link(f, "x", "../secret"),
    "an absolute link": lambda f: link(f, "x", f.parent / "secret"),
    "a link to a link out of it": lambda f: (link(f, "y", "../secret"), link(f, "x", "y")),
    "a link through a folder that is a link": lambda f: (link(f, "s", "../elsewhere"), link(f, "x", "s/file")),
    "a link to a folder": lambda f: link(f, "x", "../elsewhere"),
    "a link to the folder around it": lambda f: link(f, "x", ".."),
    "a link to a folder with a longer name": lambda f: ((f.parent / "folder2").mkdir(), link(f, "x", "../folder2")),
    "a link to a device": lambda f: link(f, "x", "/dev/zero"),
    "a link to a pipe": lambda f: (os.mkfifo(f.parent / "pipe"), link(f, "x", "../pipe")),
}


@pytest.mark.parametrize("make", OUTSIDE.values(), ids=OUTSIDE)
def test_links_that_leave_the_folder_are_refused_and_named(folder, make, way):
    make(folder)
    with pytest.raises(ckptool.Unreadable) as caught:
        read(folder, "x")
    assert str(caught.value).startswith(f"{folder / 'x'}: is a link out of the folder, and is not followed:\n    x -> ")
    assert caught.value.hint.startswith(f"cp -rL {folder} {folder}-copy puts files in the place of links")
    assert Folder(folder).lying("x") == "outside"


NO_FILE = {
    "a link to nothing": (lambda f: link(f, "x", "nothing"), "is a link that leads nowhere"),
    "a link to nothing outside": (lambda f: link(f, "x", "../nothing"), "is a link that leads nowhere"),
    "a link to a folder of the folder": (lambda f: link(f, "x", "sub"), "is a folder"),
    "a pipe": (lambda f: os.mkfifo(f / "x"), "not a regular file"),
    "a link to a pipe of the folder": (lambda f: (os.mkfifo(f / "p"), link(f, "x", "p")), "not a regular file"),
    "a loop of links": (lambda f: (link(f, "y", "x"), link(f, "x", "y")), "is a link that leads nowhere"),
    "a folder": (lambda f: (f / "x").mkdir(), "is a folder"),
}


@pytest.mark.parametrize(("make", "what"), NO_FILE.values(), ids=NO_FILE)
def test_what_is_no_file_is_refused_at_once(folder, make, what, way):
    make(folder)
    with pytest.raises(ckptool.Unreadable, match=what):
        read(folder, "x")
    assert Folder(folder).lying("x") == "other"


def test_the_folder_itself_may_be_given_through_links(folder, way):
    link(folder.parent, "way", "folder")
    link(folder.parent, "door", "way")
    link(folder, "x", "plain")
    link(folder, "y", folder / "plain")
    assert read(folder.parent / "door", "x") == read(folder.parent / "door", "y") == b"inside"
    link(folder, "z", "../secret")
    assert Folder(folder.parent / "door").lying("z") == "outside"


def test_a_file_that_became_a_link_meanwhile_is_not_followed(folder, way):
    seen = Folder(folder)
    (folder / "plain").unlink()
    link(folder, "plain", "../secret")
    with pytest.raises(ckptool.Unreadable, match="a link out of the folder"):
        seen.file("plain", "")


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="this platform opens by name")
@pytest.mark.parametrize("exchanged", ["file", "folder"])
def test_a_way_that_is_exchanged_between_the_look_and_the_opening_is_not_followed(folder, monkeypatch, exchanged):
    link(folder, "x", "sub/deep")
    looked = os.path.realpath

    def then_exchange(path, *args, **options):
        found = looked(path, *args, **options)
        if found.endswith("deep"):
            if exchanged == "file":
                (folder / "sub" / "deep").unlink()
                link(folder, "sub/deep", folder.parent / "secret")
            else:
                (folder / "sub").rename(folder / "gone")
                (folder.parent / "elsewhere" / "deep").write_bytes(b"secret")
                link(folder, "sub", "../elsewhere")
        return found

    monkeypatch.setattr(os.path, "realpath", then_exchange)
    with pytest.raises(ckptool.Unreadable):
        Folder(folder).file("x", "")


def test_no_descriptor_stays_open(folder, way):
    pytest.importorskip("resource")
    link(folder, "x", "sub/deep")
    link(folder, "y", "../secret")
    gc.collect()  # what tests before this one left
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        seen = Folder(folder)
        seen.file("x", "").close()
        with pytest.raises(ckptool.Unreadable):
            seen.file("y", "")
        del seen
    assert len(os.listdir("/dev/fd")) == before


# -- the cache of huggingface_hub

CONTENTS = {"model.safetensors": b"weights", "config.json": b"{}", "unet/config.json": b'{"a": 1}'}


@pytest.fixture(scope="module")
def hub():
    """A server with the few answers of the Hugging Face hub that a download needs."""

    class Hub(BaseHTTPRequestHandler):
        def answer(self):
            data = CONTENTS[self.path.split("/resolve/main/")[1]]
            self.send_response(200)
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("ETag", f'"{sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            return data

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.wfile.write(self.answer())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def snapshot(hub, tmp_path, monkeypatch):
    """What huggingface_hub itself makes of a download."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    library = pytest.importorskip("huggingface_hub")
    for name in CONTENTS:
        library.hf_hub_download("org/repo", name, endpoint=hub, cache_dir=tmp_path / "hub", token=False)
    found = tmp_path / "hub" / "models--org--repo" / "snapshots" / ("a" * 40)
    assert (found / "model.safetensors").is_symlink()
    assert (found / "unet" / "config.json").is_symlink()
    return found


def test_blobs_of_a_hugging_face_cache_are_followed(snapshot, way):
    assert read(snapshot, "model.safetensors") == b"weights"
    assert read(snapshot / "unet", "config.json") == b'{"a": 1}'
    assert Folder(snapshot).lying("config.json") == Folder(snapshot / "unet").lying("config.json") == "file"
    assert [(os.path.relpath(path, snapshot), inside) for path, inside in files_in(snapshot, pytest.fail)] == [
        (name, True) for name in ("config.json", "model.safetensors", "unet/config.json")
    ]
    link(snapshot.parents[3], "given", snapshot)
    assert read(snapshot.parents[3] / "given", "model.safetensors") == b"weights"


def blob(cache, name="a1"):
    (cache / "blobs").mkdir(parents=True, exist_ok=True)
    (cache / "blobs" / name).write_bytes(b"blob")
    (cache / "snapshots" / "main").mkdir(parents=True, exist_ok=True)
    return cache / "snapshots" / "main"


NOT_ITS_BLOBS = {
    "blobs that are a link": lambda c: (
        blob(c),
        (c / "blobs").rename(c.parent / "blobs"),
        link(c, "blobs", "../blobs"),
    ),
    "a blob that is a link": lambda c: (
        blob(c),
        (c / "blobs" / "a1").unlink(),
        link(c, "blobs/a1", c.parent / "secret"),
    ),
    "the blobs of another cache": lambda c: (
        blob(c),
        blob(c.parent / "b"),
        link(c, "snapshots/main/x", "../../../b/blobs/a1"),
    ),
    "a folder below its blobs": lambda c: (
        blob(c),
        (c / "blobs" / "d").mkdir(),
        link(c, "snapshots/main/x", "../../blobs/d/e"),
        (c / "blobs/d/e").write_bytes(b"blob"),
    ),
    "its blobs themselves": lambda c: (blob(c), link(c, "snapshots/main/x", "../../blobs")),
    "its refs": lambda c: (blob(c), (c / "refs").mkdir(), link(c, "snapshots/main/x", "../../refs")),
}


@pytest.mark.parametrize("make", NOT_ITS_BLOBS.values(), ids=NOT_ITS_BLOBS)
def test_only_the_blobs_of_the_own_cache_are_followed(tmp_path, make, way):
    (tmp_path / "secret").write_bytes(b"secret")
    make(tmp_path / "cache")
    snapshot = tmp_path / "cache" / "snapshots" / "main"
    if not os.path.lexists(snapshot / "x"):
        link(snapshot, "x", "../../blobs/a1")
    assert Folder(snapshot).lying("x") == "outside"
    with pytest.raises(ckptool.Unreadable, match="a link out of the folder"):
        read(snapshot, "x")


def test_a_folder_that_is_called_snapshots_is_no_cache(tmp_path, way):
    blob(tmp_path)
    link(tmp_path / "snapshots", "x", "../blobs/a1")
    assert Folder(tmp_path / "snapshots").lying("x") == "outside"


# -- folders that are searched


def test_a_search_goes_through_the_folders_below_and_names_links_that_leave(folder):
    link(folder, "a", "plain")
    link(folder, "b", "../secret")
    link(folder, "c", "../elsewhere")
    link(folder, "d", "nothing")
    link(folder, "e", "sub")
    link(folder / "sub", "f", "../plain")
    link(folder / "sub", "g", "../../secret")
    link(folder, "h", "../nothing")
    link(folder, "i", "/dev/null")
    os.mkfifo(folder / "sub" / "p")
    link(folder / "sub", "loop", "loop")
    found = [(os.path.relpath(path, folder), inside) for path, inside in files_in(folder, pytest.fail)]
    assert found == [
        ("a", True), ("b", False), ("c", False), ("i", False), ("plain", True),
        ("sub/deep", True), ("sub/f", True), ("sub/g", False),
    ]  # fmt: skip
