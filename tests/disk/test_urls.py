"""Checkpoints by their URL: only the parts that are needed cross the network, and what goes wrong is said in a line."""

import os
import re
import socket
import ssl
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from web import part, serving

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.disk import http_files, remote, urls
from ckptool.disk import web as disk_web
from ckptool.disk.addresses import is_remote
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.reports.inspect import inspect
from ckptool.tensor import LazyTensor, Storage, contiguous_stride
from ckptool.tree import Dict

pytestmark = pytest.mark.same_without_torch


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """No proxy of the environment, and no pauses."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(remote, "stopped", False)  # a program that a signal ended may have run in this process
    remote.TRAFFIC.clear()


@pytest.fixture
def web(tmp_path):
    folder = tmp_path / "web"
    folder.mkdir()
    with serving(folder) as server:
        yield server


def tensor(array):
    array = np.frombuffer(array, "uint8") if isinstance(array, bytes) else array
    kind = BY_NAME[array.dtype.name]
    return LazyTensor(Storage(Buffer(array.tobytes()), "cpu", kind), kind, array.shape, contiguous_stride(array.shape))


def checkpoint(layers=6, width=200):
    rng = np.random.default_rng(0)
    return Checkpoint(
        Dict(
            [
                (f"layers.{n}.weight", tensor(rng.standard_normal((width, width)).astype("float32")))
                for n in range(layers)
            ]
        )
    )


SAVED = {
    "a.pth": "torch-zip",
    "old.pth": "torch-legacy",
    "a.safetensors": "safetensors",
}


@pytest.fixture
def files(web):
    for name, format_ in SAVED.items():
        ckptool.save(checkpoint(), web.folder / name, format=format_)
    return web


def traffic(url):
    return remote.TRAFFIC[url]


@pytest.mark.parametrize("name", SAVED)
def test_looking_at_a_file_reads_little_of_it(files, name):
    seen = inspect(files.url(name))
    here = inspect(files.folder / name)
    assert [(t.key, t.shape, t.dtype) for t in seen.tensors] == [(t.key, t.shape, t.dtype) for t in here.tensors]
    found = traffic(files.url(name))
    assert found.size == (files.folder / name).stat().st_size > 900_000
    assert found.received == files.sent
    assert found.received < 0.45 * found.size
    assert found.requests == len(files.requests) <= 8


def test_of_an_archive_of_many_records_only_the_directory_and_the_pickle_are_read(web):
    ckptool.save(checkpoint(300, 100), web.folder / "many.pth")
    assert len(inspect(web.url("many.pth")).tensors) == 300
    assert len(web.requests) <= 4
    assert web.sent < 300_000 < 12_000_000 < (web.folder / "many.pth").stat().st_size


def test_one_tensor_of_a_large_file_costs_what_it_weighs(web):
    ckptool.save(checkpoint(50, 100), web.folder / "a.pth")
    found = ckptool.open(web.url("a.pth")).state_dict()["layers.30.weight"].numpy()
    assert np.array_equal(found, checkpoint(50, 100).state_dict()["layers.30.weight"].numpy())
    assert web.sent < 300_000


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
@pytest.mark.parametrize("tags", ["strong", "weak", "date", ""])
def test_every_command_that_reads_takes_a_url(files, tmp_path, name, ranges, tags):
    files.ranges, files.tags = ranges, tags
    url, here = files.url(name), files.folder / name
    assert ckptool.diff(url, here).same
    assert ckptool.verify(url).sound
    assert ckptool.verify(url, digest=True).digests == ckptool.verify(here, digest=True).digests
    assert ckptool.scan(url).verdict == "safe"
    assert ckptool.doctor(url).healthy
    ckptool.save(ckptool.open(url), tmp_path / "out.safetensors")
    assert ckptool.diff(here, tmp_path / "out.safetensors", weights=True).same
    ckptool.save(ckptool.add_prefix(ckptool.open(url)), tmp_path / "out.pth")
    assert ckptool.verify(tmp_path / "out.pth").sound


def test_reading_all_of_a_file_asks_for_long_parts(web, monkeypatch):
    ckptool.save(checkpoint(12, 700), web.folder / "a.safetensors")
    assert ckptool.verify(web.url("a.safetensors")).sound
    size = (web.folder / "a.safetensors").stat().st_size
    assert len(web.requests) < 30 < size / (1 << 20) * 2


def test_torch_tensors_can_be_had_from_a_url(torch, files):
    expected = torch.load(files.folder / "a.pth", weights_only=True)
    for mmap in (False, True):
        found = ckptool.load(files.url("a.pth"), mmap=mmap)
        assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_redirections_are_followed_and_signed_ones_asked_for_again(files):
    files.redirects["model"] = files.url("a.safetensors") + "?signature=1"
    url = files.url("model")
    assert ckptool.open(url).format == "safetensors"
    file = urls.open_file(url)
    assert [path for path, _ in files.requests[-2:]] == ["model", "a.safetensors"]
    file.read(500_000, 10)
    assert files.requests[-1][0] == "a.safetensors"  # straight to where it was found
    files.failing["a.safetensors"] = [403]
    file.read(300_000, 10)
    assert [path for path, _ in files.requests[-3:]] == ["a.safetensors", "model", "a.safetensors"]


def test_a_login_is_sent_to_the_server_that_it_is_for_and_to_no_other(files, tmp_path):
    (tmp_path / "other").mkdir()
    ckptool.save(checkpoint(1), tmp_path / "other" / "b.pth")
    with serving(tmp_path / "other") as other:
        files.redirects["b.pth"] = other.url("b.pth")
        ckpt = ckptool.open(files.url("b.pth").replace("http://", "http://me:secret@"))
        assert "Authorization" in files.requests[0][1]
        assert not any("Authorization" in headers for _, headers in other.requests)
    assert "secret" not in ckpt.where


def test_proxies_of_the_environment_are_used(files, monkeypatch):
    monkeypatch.setenv("http_proxy", files.url(""))
    monkeypatch.setenv("no_proxy", "")
    files.requests.clear()
    assert ckptool.open("http://models.example/a.safetensors").format == "safetensors"
    assert [headers["Host"] for _, headers in files.requests] == ["models.example"]


# -- what goes wrong


def refused(url, *kinds):
    with pytest.raises(kinds or ckptool.CheckpointError) as failed:
        inspect(url)
    lines = str(failed.value).splitlines()
    assert len(lines) <= 2
    return str(failed.value)


def test_a_small_file_comes_whole_from_a_server_without_parts_and_a_large_one_not(files, monkeypatch):
    files.ranges = False
    assert inspect(files.url("a.pth")).tensors
    assert traffic(files.url("a.pth")).received == (files.folder / "a.pth").stat().st_size
    monkeypatch.setattr(http_files, "MOST_WHOLE", 500_000)
    said = refused(files.url("a.pth"), ckptool.Unreadable)
    size = (files.folder / "a.pth").stat().st_size
    assert f"does not serve parts of files (HTTP range requests), and it has {size:,} bytes" in said
    assert f"curl -L -o a.pth {files.url('a.pth')}" in said


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "is not there"),
        (403, "a login or a licence"),
        (401, "a login or a licence"),
        (500, "HTTP 500"),
        (418, "418"),
    ],
)
def test_what_a_server_refuses_is_said_with_its_number(files, status, words):
    files.status["a.pth"] = status
    said = refused(files.url("a.pth"), ckptool.Unreadable)
    assert words in said
    assert str(status) in said


def test_a_server_that_is_busy_is_asked_again(files):
    files.failing["a.pth"] = [503, 429]
    assert inspect(files.url("a.pth")).tensors


def test_a_server_that_does_not_answer_is_given_up(files, monkeypatch):
    monkeypatch.setattr(disk_web, "TIMEOUT", 0.2)
    files.slow["a.pth"] = 1.0
    assert "does not answer within 0.2 seconds" in refused(files.url("a.pth"), ckptool.Unreadable)


def test_a_connection_that_breaks_off_is_taken_up_where_it_was(files, monkeypatch):
    files.breaking = [200_000, 300_000]
    assert ckptool.verify(files.url("a.safetensors"), against=files.folder / "a.safetensors").sound
    assert not files.breaking
    files.breaking = [0] * 50
    with pytest.raises(ckptool.Unreadable, match="broke off"):
        ckptool.verify(files.url("a.safetensors"))


@pytest.mark.parametrize("tags", ["strong", "weak", "date", ""])
def test_a_file_that_changes_between_two_requests_is_refused(files, tags, monkeypatch):
    monkeypatch.setattr(http_files, "MOST_WHOLE", 500_000)
    files.tags = tags
    path = files.folder / "a.safetensors"
    file = urls.open_file(files.url("a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data if tags else data + b"more")
    os.utime(path, (1, 1))
    with pytest.raises(ckptool.Malformed, match="changed on its server"):
        file.read(500_000, 100_000)


def test_a_scan_reads_what_could_be_a_pickle(web):
    ckptool.save(checkpoint(20, 200), web.folder / "a.pth")
    assert ckptool.scan(web.url("a.pth")).verdict == "safe"
    assert web.sent < 0.4 * (web.folder / "a.pth").stat().st_size


def test_a_web_page_is_no_checkpoint_and_the_page_about_a_file_names_the_file(web):
    for path in ("org/model/blob/main/model.safetensors", "login"):
        web.pages[path] = "\n<!DOCTYPE html><html>…</html>"
    said = refused(web.url("org/model/blob/main/model.safetensors?x=1"), ckptool.UnknownFormat)
    assert "is a web page, not a file" in said
    assert f"the file itself is at {web.url('org/model/resolve/main/model.safetensors')}" in said
    assert "a login, a licence or a quota" in refused(web.url("login"), ckptool.UnknownFormat)


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("https://huggingface.co/a/b/blob/main/x.bin", "https://huggingface.co/a/b/resolve/main/x.bin"),
        ("https://github.com/a/b/blob/main/x.pth", "https://github.com/a/b/raw/main/x.pth"),
        ("https://www.dropbox.com/s/1/x.pth?dl=0", "https://www.dropbox.com/s/1/x.pth?dl=1"),
        ("https://huggingface.co/a/b", "https://huggingface.co/a/b/resolve/main/FILE"),
        ("https://huggingface.co/a/b/tree/v2", "https://huggingface.co/a/b/resolve/v2/FILE"),
        ("https://example.org/login", None),
    ],
)
def test_where_the_file_of_a_page_is(page, file):
    assert http_files._file_of_page(page) == file


def test_an_error_page_of_a_server_that_says_it_is_a_file_is_told_by_its_bytes(web):
    (web.folder / "a.pth").write_bytes(b"<html>quota</html>")
    assert "is a web page" in refused(web.url("a.pth"))


def test_what_cannot_be_reached_is_said_in_a_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "connection refused" in refused(f"http://127.0.0.1:{port}/a.pth", ckptool.Unreadable)
    assert "cannot be reached" in refused("http://127.0.0.1:99999/a.pth", ckptool.Unreadable)
    for scheme in ("ftp", "file", "oss"):
        assert f"{scheme}:// is not read" in refused(f"{scheme}://host/a.pth", ckptool.Unreadable)


def test_a_name_that_no_host_has_is_said_to_be_one(monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "there is no host models.invalid" in refused("http://models.invalid/a.pth", ckptool.Unreadable)


#: A certificate of 127.0.0.1, signed by itself, with its key. Nobody trusts it.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgkmq4Shdl9QQPwMnO
ftC18todkTCE896B8C1mr+R7r7KhRANCAAR8nmAyHj5BiIJ88mz/88rLDsnlv5py
m7b+TPirurciDuJSSpv4xJR3S3pwbiGG+nGngjRzKLXiQ56/jA2nf73T
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkDCCATagAwIBAgIUEmp1+MnFnxodZPNosLqOhlH4jKgwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMTE5NTkzMloYDzIxMjYxMDI4
MTk1OTMyWjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR8nmAyHj5BiIJ88mz/88rLDsnlv5pym7b+TPirurciDuJSSpv4xJR3
S3pwbiGG+nGngjRzKLXiQ56/jA2nf73To2QwYjAdBgNVHQ4EFgQUFYdWhjxTTKfr
K1/TLJ3wkOUw1c8wHwYDVR0jBBgwFoAUFYdWhjxTTKfrK1/TLJ3wkOUw1c8wDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0gAMEUC
IQDpO+byUGVwQPb9eAoGdM/ZeIpX402eyVBeLlPtQdux/AIgVAcIZ7iB6otQTyLv
uGjJDP8Xmq9LUdkUydgYMuyN5xw=
-----END CERTIFICATE-----
"""


@pytest.fixture
def secure(tmp_path, files, monkeypatch):
    """The server with a certificate that is trusted, and its URLs."""
    (tmp_path / "own.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    files.socket = context.wrap_socket(files.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    return lambda name: files.url(name).replace("http://", "https://")


def test_a_certificate_that_is_not_to_be_trusted_is_not_trusted(secure, monkeypatch):
    assert inspect(secure("a.pth")).tensors
    monkeypatch.delenv("SSL_CERT_FILE")
    said = refused(secure("a.pth"), ckptool.Unreadable)
    assert "certificate of its server is not to be trusted: self" in said
    assert "SSL_CERT_FILE" in said


def test_a_server_that_speaks_no_tls_is_said_not_to(files):
    said = refused(files.url("a.pth").replace("http://", "https://"), ckptool.Unreadable)
    assert "no secure connection" in said


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a.pth", "gopher://x/"])
def test_redirections_lead_to_the_web_only(files, target):
    files.redirects["a"] = target
    assert "which is not followed" in refused(files.url("a"))


def test_redirections_in_a_circle_are_left(files):
    files.redirects["a"] = files.url("a")
    assert "in a circle" in refused(files.url("a"))


def test_redirections_from_https_to_http_are_not_followed(files, secure):
    files.redirects["a"] = "http://127.0.0.1/a.pth"
    assert "from https:// to http://, which is not followed" in refused(secure("a"), ckptool.Unreadable)
    files.redirects["b"] = secure("a.pth")
    assert inspect(secure("b")).tensors


def test_an_empty_file_is_empty_there_too(web):
    (web.folder / "a.pth").write_bytes(b"")
    assert "the file is empty" in refused(web.url("a.pth"))


def test_a_file_that_is_cut_short_is_named_and_saved_from_afar(files, tmp_path):
    data = (files.folder / "a.pth").read_bytes()
    (files.folder / "cut.pth").write_bytes(data[:-5000])
    assert not ckptool.doctor(files.url("cut.pth")).healthy
    found = ckptool.salvage(files.url("cut.pth"))
    assert found.kept >= 5


def test_nothing_is_written_to_a_url(files):
    with pytest.raises(ckptool.RuleError, match="not to other URLs"):
        ckptool.save(ckptool.open(files.url("a.pth")), files.url("b.pth"))


def test_a_url_as_a_path_is_said_to_have_lost_a_slash():
    with pytest.raises(ckptool.Unreadable, match="a URL is given as text"):
        ckptool.open(Path("http://127.0.0.1/a.pth"))
    with pytest.raises(ckptool.RuleError, match="a URL is given as text"):
        ckptool.save(checkpoint(1, 20), Path("s3://bucket/a.pth"))


@pytest.mark.parametrize("target", ["https://h/x", "hf://a/b", "FTP://h/x", "file:///tmp/x.pth"])
@pytest.mark.parametrize("to", ["torch-zip", "shards", "dcp"])
def test_a_target_elsewhere_is_refused_by_its_name(run_command, tmp_path, monkeypatch, target, to):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ckptool.save(checkpoint(1, 20), tmp_path / "a.pth")
    code, _, err = run_command("convert", str(tmp_path / "a.pth"), target, "--to", to)
    assert code == 2
    said = "is on the hub" if target.startswith("hf") else "files are written here and to object stores"
    assert err.startswith(f"Error: {target}: {said}")
    assert "\nHint: name a file" in err
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("path", ["C:\\x.pth", "C:/x.pth", "c://x", "a:b", "x/s3://b", "/tmp/s3://b", "12:30://x"])
def test_drives_and_other_colons_are_places_here(path):
    assert not is_remote(path)
    assert not is_remote(Path(path))


def test_a_name_with_a_colon_is_a_file_where_it_is_one(run_command, tmp_path, monkeypatch):
    ckptool.save(checkpoint(1, 20), tmp_path / "a.pth")
    (tmp_path / "ftp:" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run_command("convert", str(tmp_path / "a.pth"), "ftp:/b/x.pth")[0] == 0
    assert run_command("inspect", "ftp://b/x.pth")[0] == 0
    assert run_command("convert", str(tmp_path / "a.pth"), "ftp://b/x.pth", "--overwrite")[0] == 0
    assert run_command("convert", str(tmp_path / "a.pth"), "ftp://b/y.pth")[0] == 2
    ckptool.save(checkpoint(1, 20), Path("ftp:/b/z.pth"))
    assert sorted(path.name for path in Path("ftp:/b").iterdir()) == ["x.pth", "z.pth"]


@pytest.fixture
def folders(web):
    """The same weights as shards of both kinds, as one file in a folder, and as slices."""
    ckpt = checkpoint()
    ckptool.save(ckpt, web.folder / "shards", format="shards", max_shard_size="300KB")
    ckptool.save(ckpt, web.folder / "bins", format="bin", max_shard_size="300KB")
    ckptool.save(ckpt, web.folder / "single", format="shards")
    ckptool.save(ckpt, web.folder / "slices", format="dcp")
    return web


@pytest.mark.parametrize(
    "name",
    [
        "shards/",
        "shards/model.safetensors.index.json",
        "bins/",
        "bins/pytorch_model.bin.index.json",
        "single/",
        "slices/",
        "slices/.metadata",
    ],
)
def test_a_folder_of_the_web_is_found_by_the_names_of_its_files(folders, tmp_path, name):
    here = folders.folder / name.partition("/")[0]
    ckpt = ckptool.open(folders.url(name))
    assert folders.sent < 200_000
    assert ckpt.format == ckptool.open(here).format
    ckptool.save(ckpt, tmp_path / "out.safetensors")
    assert ckptool.diff(tmp_path / "out.safetensors", here, weights=True).same
    assert ckptool.verify(folders.url(name)).sound


def test_a_shard_that_is_not_on_its_server_is_named(folders):
    (folders.folder / "shards" / "model-00002-of-00006.safetensors").unlink()
    assert "'model-00002-of-00006.safetensors', which is not in the folder" in refused(folders.url("shards/"))


def test_a_url_with_a_slash_at_its_end_that_is_a_file_is_read_as_one(files):
    files.raw["download/"] = lambda asked, _: [part((files.folder / "a.pth").read_bytes(), asked, ("ETag", '"x"'))]
    assert ckptool.open(files.url("download/")).format == "torch-zip"


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_any_part_is_that_of_the_file(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("web")
    content = np.random.default_rng(1).bytes(data.draw(st.integers(1, 700_000)))
    (folder / "x").write_bytes(content)
    with serving(folder) as web:
        file = urls.open_file(web.url("x"))
        assert file.size == len(content)
        for _ in range(8):
            begin = data.draw(st.integers(0, len(content)))
            length = data.draw(st.integers(0, len(content) - begin))
            assert file.read(begin, length) == content[begin : begin + length]
        file.expect([(0, len(content))])
        assert b"".join(file.range(0, file.size).chunks()) == content
        with pytest.raises(ckptool.Malformed):
            file.read(len(content), 1)
        file.close()


# -- the command line


def test_the_command_line_says_how_much_was_read(files, run_command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    url = files.url("a.safetensors")
    code, out, err = run_command("inspect", url)
    size = (files.folder / "a.safetensors").stat().st_size
    assert code == 0
    assert err == f"read {files.sent:,} of {size:,} bytes in 1 request: {url}\n"
    assert url in out
    code, _, err = run_command("convert", url, "out.pth", "--add-prefix", "module.")
    assert code == 0
    assert traffic_of(err) < size + 100_000  # checksums are taken on the way
    assert run_command("doctor", "out.pth")[0] == 1
    assert run_command("convert", url, "out2.pth", "-q")[2] == ""
    code, _, err = run_command("add-prefix", url, "--in-place")
    assert code == 2
    assert "not to other URLs" in err
    assert not [path for path in tmp_path.iterdir() if path.name not in ("web", "out.pth", "out2.pth")]


def traffic_of(err):
    return int(re.search(r"^read ([\d,]+) of", err, re.MULTILINE)[1].replace(",", ""))


@pytest.fixture
def run_command(capsys):
    from ckptool.cli import main

    def run(*args):
        with pytest.raises(SystemExit) as left:
            main(list(args))
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def test_commands_that_are_advised_write_here(files):
    ckptool.save(ckptool.add_prefix(ckptool.open(files.folder / "a.pth")), files.folder / "dp.pth")
    url = files.url("dp.pth") + "?download=true"
    (command,) = ckptool.doctor(url).cure
    assert command == f"ckptool strip-prefix '{url}' dp-fixed.pth"
    assert Path(command.split()[-1]).name == "dp-fixed.pth"
