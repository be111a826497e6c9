"""S3 as it is spoken: s3fs against moto's server, and against a server that refuses, lies and breaks off.

`make test-stores` builds an environment with s3fs, and one with moto, which pip cannot put beside it.
"""

import hashlib
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from store_servers import free_port, moto_server, running
from test_urls import checkpoint, tensor
from web import answer, part, serving

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.cli import main
from ckptool.disk import ahead, remote, sending, stores, uploads
from ckptool.reports.inspect import inspect
from ckptool.tree import Dict

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("s3fs") is None, reason="s3fs is not installed (make test-stores)"),
    pytest.mark.skipif(moto_server() is None, reason="moto is not in build/stores (make test-stores)"),
    pytest.mark.filterwarnings("default"),  # of s3fs and what it is made of
]
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCY"
LOGIN = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    with running([moto_server(), "-H", "127.0.0.1", "-p", port], port, log):
        yield f"http://127.0.0.1:{port}", log


@pytest.fixture
def client(server, monkeypatch, tmp_path):
    """The client's own file system, with nothing but what the environment says."""
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    for name in list(os.environ):
        if name.startswith(("AWS_", "FSSPEC_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in {**LOGIN, "AWS_ENDPOINT_URL": server[0], "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    remote.TRAFFIC.clear()
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    yield s3fs.S3FileSystem()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(client, request):
    """A bucket of its own for each test."""
    name = f"t{hashlib.md5(request.node.name.encode()).hexdigest()[:12]}"
    client.mkdir(name)
    yield name
    assert not client.call_s3("list_multipart_uploads", Bucket=name).get("Uploads")


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert SECRET not in captured.out + captured.err
        return left.value.code, captured.out, captured.err

    return command


def asked(server, since=0):
    """The requests that the server has noted: method, path."""
    lines = server[1].read_text(errors="replace")[since:]
    return re.findall(r'"(?:\x1b\[[\d;]*m)*(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP', lines)


def names(client, place):
    client.invalidate_cache()
    return sorted(name.rpartition("/")[2] for name in client.ls(place)) if client.exists(place) else []


@pytest.mark.parametrize(
    ("name", "format_"), [("a.pth", "torch-zip"), ("a.pth", "torch-legacy"), ("a.safetensors", None)]
)
def test_a_file_goes_there_and_back_bit_for_bit(client, bucket, tmp_path, name, format_):
    url = f"s3://{bucket}/some/{name}"
    ckptool.save(checkpoint(), url, format=format_)
    ckptool.save(checkpoint(), tmp_path / name, format=format_)
    assert client.cat(f"{bucket}/some/{name}") == (tmp_path / name).read_bytes()
    assert ckptool.diff(url, tmp_path / name).same
    assert ckptool.verify(url).sound
    ckptool.save(ckptool.open(url), tmp_path / f"back-{name}")
    assert (tmp_path / f"back-{name}").read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("format_", ["shards", "bin", "dcp"])
def test_a_folder_goes_there_and_back(client, bucket, tmp_path, format_):
    url = f"s3://{bucket}/run/1"
    ckptool.save(checkpoint(), tmp_path / "here", format=format_, max_shard_size="300KB")
    ckptool.save(ckptool.open(tmp_path / "here"), url, format=format_, max_shard_size="300KB")
    for file in (tmp_path / "here").iterdir():
        assert client.cat(f"{bucket}/run/1/{file.name}") == file.read_bytes()
    assert ckptool.diff(url, tmp_path / "here").same
    ckptool.save(ckptool.open(f"{url}/"), tmp_path / "back", format=format_)
    assert ckptool.diff(tmp_path / "back", tmp_path / "here").same


def test_every_command_takes_an_object(client, bucket, run, tmp_path):
    ckptool.save(checkpoint(), tmp_path / "a.pth")
    url = f"s3://{bucket}/a.pth"
    assert run("add-prefix", tmp_path / "a.pth", url)[0] == 0
    assert run("inspect", url)[0] == 0
    assert run("verify", url)[0] == 0
    assert run("scan", url)[0] == 0
    assert run("scan", f"s3://{bucket}/")[0] == 0
    assert run("doctor", url)[0] == 1
    assert run("diff", url, tmp_path / "a.pth")[0] == 1
    assert run("strip-prefix", url, "--in-place")[0] == 0
    assert run("diff", url, tmp_path / "a.pth")[0] == 0
    code, _, err = run("convert", url, f"s3://{bucket}/shards/", "--max-shard-size", "300KB")
    assert code == 0
    assert err.startswith(f"wrote s3://{bucket}/shards/: sharded-safetensors")
    assert run("convert", f"s3://{bucket}/shards", tmp_path / "out.safetensors")[0] == 0
    code, out, _ = run("convert", url, f"s3://{bucket}/b.pth", "--json", "--save-recipe", tmp_path / "r")
    assert json.loads(out)["path"] == f"s3://{bucket}/b.pth"
    assert SECRET not in (tmp_path / "r").read_text()


def test_looking_at_163_shards_fetches_kilobytes(server, client, bucket, tmp_path):
    rng = np.random.default_rng(0)
    tensors = [(f"layers.{n}.{k}.weight", tensor(rng.bytes(20_000))) for n in range(163) for k in "ab"]
    url = f"s3://{bucket}/m"
    ckptool.save(Checkpoint(Dict(tensors)), url, format="shards", max_shard_size=45_000)
    size = sum(client.info(name)["size"] for name in client.ls(f"{bucket}/m"))
    remote.TRAFFIC.clear()
    before = len(server[1].read_text(errors="replace"))
    assert len(inspect(url).tensors) == 326
    received = sum(found.received for found in remote.TRAFFIC.values())
    requests = sum(found.requests for found in remote.TRAFFIC.values())
    index = client.info(f"{bucket}/m/model.safetensors.index.json")["size"]
    assert received <= index + 163 * (16 << 10) < 0.5 * size
    assert requests == 163 + 1 + 1 + 1  # the shards and the index, the name itself, and the list
    assert abs(len(asked(server, before)) - requests) <= 2


def test_large_objects_go_in_parts_and_come_in_ranges(client, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "PART", 5 << 20)
    monkeypatch.setattr(ahead, "SEGMENT", 2 << 20)
    rng = np.random.default_rng(0)
    ckpt = Checkpoint(Dict([(f"w{n}", tensor(rng.bytes(3 << 20))) for n in range(8)]))
    url = f"s3://{bucket}/large.safetensors"
    counted = []
    ckptool.save(ckpt, url, progress=counted.append)
    assert client.info(url)["ETag"].rstrip('"').endswith("-5")
    assert sum(counted) == client.info(url)["size"]
    ckptool.save(ckpt, tmp_path / "large.safetensors")
    assert client.cat(url) == (tmp_path / "large.safetensors").read_bytes()
    ckptool.save(ckptool.open(url), tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "large.safetensors").read_bytes()
    assert remote.TRAFFIC[url].received < 1.05 * (24 << 20)


def test_an_object_that_is_there_is_not_replaced_unless_that_is_asked_for(client, bucket, tmp_path):
    url = f"s3://{bucket}/a.pth"
    client.pipe_file(f"{bucket}/a.pth", b"theirs")
    with pytest.raises(ckptool.OutputExists, match="exists already"):
        ckptool.save(checkpoint(), url)
    assert client.cat(f"{bucket}/a.pth") == b"theirs"
    ckptool.save(checkpoint(), url, overwrite=True)
    assert ckptool.verify(url).sound


@pytest.mark.parametrize("format_", ["torch-zip", "shards"])
@pytest.mark.parametrize("before", [False, True], ids=["made", "changed"])
def test_what_appears_or_changes_meanwhile_is_kept(client, bucket, monkeypatch, format_, before):
    url, name = (f"s3://{bucket}/a", f"{bucket}/a/model-00001-of-00004.safetensors")
    if format_ == "torch-zip":
        url, name = f"s3://{bucket}/a.pth", f"{bucket}/a.pth"
    if before:
        client.pipe_file(name, b"old")
    send = uploads._send

    def sent(*args):
        send(*args)
        client.pipe_file(name, b"theirs")

    monkeypatch.setattr(uploads, "_send", sent)
    options = {"max_shard_size": "300KB"} if format_ == "shards" else {}
    with pytest.raises(ckptool.OutputExists, match="by another program meanwhile"):
        ckptool.save(checkpoint(), url, format=format_, overwrite=before, **options)
    assert client.cat(name) == b"theirs"
    assert names(client, f"{bucket}/a") in ([], ["model-00001-of-00004.safetensors"])


def test_an_upload_that_breaks_off_leaves_what_was_there_and_no_parts(client, bucket, monkeypatch):
    url = f"s3://{bucket}/m"
    ckptool.save(checkpoint(), url, format="shards", max_shard_size="300KB")
    before = {name: client.cat(name) for name in client.ls(f"{bucket}/m")}
    monkeypatch.setattr(sending, "SMALL", 0)
    parts = sending._ToS3._part

    def broken(self, number, data):
        if "00003" in str(self._path):
            self._gate.release()
            raise ckptool.Unwritable("the network is gone", where=self._path)
        return parts(self, number, data)

    monkeypatch.setattr(sending._ToS3, "_part", broken)
    for size in ("100KB", "200KB"):
        with pytest.raises(ckptool.Unwritable, match="the network is gone"):
            ckptool.save(
                ckptool.cast(checkpoint(), "float16"), url, format="shards", max_shard_size=size, overwrite=True
            )
    client.invalidate_cache()
    assert {name: client.cat(name) for name in client.ls(f"{bucket}/m")} == before
    with pytest.raises(ckptool.Unwritable):
        ckptool.save(checkpoint(), f"s3://{bucket}/new", format="shards", max_shard_size="200KB")
    assert not names(client, f"{bucket}/new")


def test_a_step_that_is_cut_in_two_leaves_nothing_that_is_taken_for_a_checkpoint(client, bucket, monkeypatch):
    monkeypatch.setattr(sending, "SMALL", 0)
    ckptool.save(checkpoint(), f"s3://{bucket}/m", format="shards", max_shard_size="300KB")
    publish = sending._ToS3.publish

    def broken(self, old):
        if "00003" in str(self._path):
            raise ckptool.Unwritable("the network is gone", where=self._path)
        publish(self, old)

    monkeypatch.setattr(sending._ToS3, "publish", broken)
    options = {"format": "shards", "max_shard_size": "200KB"}
    with pytest.raises(ckptool.Unwritable, match="gone") as caught:
        ckptool.save(ckptool.add_prefix(checkpoint()), f"s3://{bucket}/m", overwrite=True, **options)
    assert "gone in part" in caught.value.hint
    with pytest.raises(ckptool.Malformed, match="lacks"):
        ckptool.open(f"s3://{bucket}/m")
    with pytest.raises(ckptool.Unwritable, match="gone"):
        ckptool.save(checkpoint(), f"s3://{bucket}/new", **options)
    assert not names(client, f"{bucket}/new")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_neither_objects_nor_parts(server, client, bucket, tmp_path, number):
    rng = np.random.default_rng(0)
    large = Checkpoint(Dict([(f"w{n}", tensor(rng.bytes(8 << 20))) for n in range(10)]))
    ckptool.save(large, tmp_path / "a.safetensors")
    words = ["convert", str(tmp_path / "a.safetensors"), f"s3://{bucket}/m/", "--max-shard-size", "16MB"]
    ours = {**os.environ, "PYTHONPATH": str(Path(ckptool.__file__).parents[1])}
    command = [sys.executable, "-m", "ckptool", *words]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ours)
    for _ in range(400):
        if client.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads"):
            break
        time.sleep(0.02)
    time.sleep(random.Random(number).random() * 0.2)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode in (130, 143), err
    assert "nothing was changed" in err
    assert not names(client, f"{bucket}/m")


def test_an_object_that_changes_while_it_is_read_is_refused(client, bucket, tmp_path):
    url = f"s3://{bucket}/a.safetensors"
    ckptool.save(checkpoint(), url)
    ckpt = ckptool.open(url)
    ckptool.save(ckptool.cast(checkpoint(), "float64"), url, overwrite=True)
    with pytest.raises(ckptool.Malformed, match="changed in its store while it was being read"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    assert not list(tmp_path.glob("*out*"))


def test_what_is_not_there_is_said_in_a_line(client, bucket, run, tmp_path):
    ckptool.save(checkpoint(1, 10), tmp_path / "a.pth")
    for word, said in (
        ("s3://no-such-bucket/a.pth", "there is no bucket no-such-bucket"),
        (f"s3://{bucket}/a.pth", "is not there"),
        (f"s3://{bucket}/folder/", "is not there|holds nothing"),
        (f"s3://{bucket}", "holds nothing"),
    ):
        code, out, err = run("inspect", word)
        assert (code, out) == (2, "")
        assert re.match(rf"Error: {word}: ({said})\.\nHint: [^\n]+\n\Z", err)
    code, _, err = run("convert", tmp_path / "a.pth", "s3://no-such-bucket/a.pth")
    assert code == 2
    assert "there is no bucket no-such-bucket" in err


# -- a server of ours


@pytest.fixture
def odd(client, tmp_path, monkeypatch):
    """A server that answers as a test wants. Objects are those of a folder."""
    folder = tmp_path / "odd"
    (folder / "bucket").mkdir(parents=True)
    ckptool.save(checkpoint(), folder / "bucket" / "a.safetensors")
    with serving(folder) as web:
        monkeypatch.setenv("AWS_ENDPOINT_URL", web.url("").rstrip("/"))
        client.clear_instance_cache()
        yield web


def refusing(status, code):
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>sig={SECRET}</Message></Error>".encode()
    return lambda asked, _: [answer(status, body, ("Content-Length", len(body)), ("Content-Type", "application/xml"))]


@pytest.mark.parametrize(
    ("status", "code", "said", "hint"),
    [
        (403, "AccessDenied", "its store denies access to it (AccessDenied)", "aws sts get-caller-identity"),
        (400, "ExpiredToken", "the login for its store has expired (ExpiredToken)", "log in again"),
        (403, "InvalidAccessKeyId", "its store does not know the login", "aws configure"),
        (403, "SignatureDoesNotMatch", "its store does not know the login", "aws configure"),
        (404, "NoSuchKey", "is not there", "check the name"),
    ],
)
def test_a_refusal_is_said_in_a_line_without_what_the_store_wrote(odd, run, tmp_path, status, code, said, hint):
    odd.raw["bucket/b.pth"] = refusing(status, code)
    odd.raw["bucket"] = refusing(status, code)
    number, out, err = run("convert", "s3://bucket/b.pth", tmp_path / "out.pth")
    assert (number, out) == (2, "")
    assert err.startswith(f"Error: s3://bucket/b.pth: {said}")
    assert hint in err
    assert err.count("\n") == 2
    assert not list(tmp_path.glob("*out*"))
    ckptool.save(checkpoint(1, 10), tmp_path / "a.pth")
    if status != 404:
        number, _, err = run("convert", tmp_path / "a.pth", "s3://bucket/b.pth")
        assert number == 2
        assert err.startswith("Error: s3://bucket/b.pth: ")


def test_a_store_without_a_login_is_said_to_have_none(client, run, monkeypatch):
    for name in LOGIN:
        if name != "AWS_EC2_METADATA_DISABLED":
            monkeypatch.delenv(name)
    client.clear_instance_cache()
    code, _, err = run("inspect", "s3://bucket/a.pth")
    assert code == 2
    assert "no login for its store was found" in err
    assert "FSSPEC_S3_ANON=true" in err


def test_ranges_that_are_others_and_versions_that_change_are_refused(odd, tmp_path):
    data = (odd.folder / "bucket" / "a.safetensors").read_bytes()
    tag = ("ETag", '"one"')
    tags = iter([tag])
    odd.raw["bucket/a.safetensors"] = lambda asked, _: [part(data, asked, next(tags, ("ETag", '"two"')))]
    ckpt = ckptool.open("s3://bucket/a.safetensors")
    with pytest.raises(ckptool.Malformed, match="changed in its store"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    odd.requests.clear()

    def shifted(asked, number):
        return [part(data, range(asked.start + (number > 0), asked.stop + (number > 0)), tag)]

    odd.raw["bucket/a.safetensors"] = shifted
    ckpt = ckptool.open("s3://bucket/a.safetensors")
    with pytest.raises(ckptool.Unreadable, match="does not send the bytes that were asked for"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    assert not list(tmp_path.glob("*out*"))


def test_answers_that_break_off_are_asked_for_again_a_few_times(odd, tmp_path):
    data = (odd.folder / "bucket" / "a.safetensors").read_bytes()
    whole = threading.Event()

    def cut(asked, number):
        sent = part(data, asked, ("ETag", '"one"'))
        return [sent if whole.is_set() or number % 2 else sent[: len(sent) // 2]]

    odd.raw["bucket/a.safetensors"] = cut
    ckptool.save(ckptool.open("s3://bucket/a.safetensors"), tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == data
    whole.set()
    ckpt = ckptool.open("s3://bucket/a.safetensors")
    whole.clear()
    odd.raw["bucket/a.safetensors"] = lambda asked, _: [part(data, asked, ("ETag", '"one"'))[:500]]
    began = len(odd.requests)
    with pytest.raises(ckptool.Unreadable):
        ckptool.save(ckpt, tmp_path / "other.pth")
    assert len(odd.requests) - began <= 60
    assert not (tmp_path / "other.pth").exists()


def test_a_store_that_never_answers_is_given_up(odd, monkeypatch):
    monkeypatch.setattr(stores, "PATIENCE", 0.5)
    monkeypatch.setattr(stores, "SLOWEST", 1 << 30)
    odd.slow["bucket/a.safetensors"] = 5
    began = time.monotonic()
    with pytest.raises(ckptool.Unreadable, match=r"cannot be reached, or is busy|does not answer within"):
        ckptool.open("s3://bucket/a.safetensors")
    assert time.monotonic() - began < 8
