"""Servers that lie, switch files, drip or never end: each gives one true line, and nothing is written."""

import gzip
import itertools
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_urls import CERTIFICATE, checkpoint
from web import answer, part, serving

import ckptool
from ckptool.cli import main
from ckptool.disk import http_files, remote, urls
from ckptool.disk import web as disk_web

pytestmark = pytest.mark.same_without_torch

TAG = ("ETag", '"x"')


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """No proxy of the environment, no pauses, and little patience."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(disk_web, "TIMEOUT", 0.5)
    monkeypatch.setattr(disk_web, "PATIENCE", 0.5)
    remote.TRAFFIC.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def data(folder):
    """A safetensors file of a megabyte."""
    ckptool.save(checkpoint(), folder / "a.safetensors")
    return (folder / "a.safetensors").read_bytes()


@pytest.fixture(scope="module")
def other(folder):
    """Another version of it: the same size, other numbers."""
    ckptool.save(ckptool.cast(checkpoint(), "bfloat16"), folder / "half.pth")
    ckptool.save(ckptool.cast(ckptool.open(folder / "half.pth"), "float32"), folder / "b.safetensors")
    return (folder / "b.safetensors").read_bytes()


@pytest.fixture
def web(tmp_path):
    (tmp_path / "web").mkdir()
    with serving(tmp_path / "web") as server:
        yield server


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command in an empty folder. Returns its exit code and what it says."""
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")

    def command(*args):
        with pytest.raises(SystemExit) as left:
            main([str(arg) for arg in args])
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return command


@pytest.fixture
def refused(web, tmp_path, run):
    """Serve a file in a way of its own, and return what `convert` says of it: one error, and nothing is written."""

    def convert(raw, url=None):
        web.requests.clear()
        web.raw["a.safetensors"] = raw
        url = url or web.url("a.safetensors")
        code, out, err = run("convert", url, "out.safetensors")
        said = [line for line in err.splitlines() if not line.startswith("read ")]
        assert code == 2, err
        assert not out
        assert not list((tmp_path / "here").iterdir())
        assert said[0].startswith(f"Error: {url}: ")
        assert said[0].count(url) == 1
        assert len(said) <= 2
        assert all(line.startswith("Hint: ") for line in said[1:])
        assert err.replace("\n", "").isprintable()
        return err

    return convert


def whole(body, *headers):
    """A server that sends nothing but the whole file."""
    return lambda asked, number: [answer(200, body, *headers)]


def parts(body, *headers):
    """A server that sends what is asked for, with HEADERS."""
    return lambda asked, number: [part(body, asked, *headers)]


def stated(*headers):
    """A server that sends a part, and says what it likes of it."""
    return lambda asked, number: [answer(206, bytes(len(asked)), TAG, *headers)]


def sent(*pieces):
    """A server that sends these bytes."""
    return lambda asked, number: pieces


def sent_by_turns(*answers):
    """A server that sends the first of ANSWERS, then the second, and so on; the last again and again."""
    return lambda asked, number: [answers[min(number, len(answers) - 1)]]


# -- numbers and names that are none


@pytest.mark.parametrize(
    ("length", "words"),
    [
        ("²", "sends no number as its length: '²'"),
        ("9" * 5000, "sends no number as its length"),
        ("-5", "sends no number as its length: '-5'"),
        ("+5", "sends no number as its length: '+5'"),
        ("1_000", "sends no number as its length: '1_000'"),
        ("5, 5", "sends no number as its length: '5, 5'"),
        ("9" * 18, "does not serve parts of files (HTTP range requests), and it has 999,999,999,999,999,999 bytes"),
        ("2000000", "the connection broke off after 96"),
    ],
)
def test_a_length_is_a_number_and_is_kept(refused, data, length, words):
    assert words in refused(whole(data, ("Content-Length", length)))


@pytest.mark.parametrize(
    "said",
    [
        "bytes 0-65535/" + "9" * 5000,
        "bytes 0-65535/٣٤",
        "bytes 0-65535/100",
        "bytes 0-65535/0",
        "bytes 0-65535/-5",
        "bytes 1-65536/1000000",
        "bytes 0-70000/1000000",
        "bytes 0-+65535/1000000",
        "items 0-65535/1000000",
        "bytes */1000000",
        "",
    ],
)
def test_a_part_that_is_not_the_one_asked_for_is_refused(refused, said):
    said = said.encode().decode("latin-1")
    assert "does not send the bytes that were asked for (HTTP 206" in refused(stated(("Content-Range", said)))


def test_a_server_that_does_not_say_how_large_the_file_is_is_said_not_to(refused):
    assert "does not say how large it is" in refused(stated(("Content-Range", "bytes 0-65535/*")))


def test_a_size_that_no_file_has_takes_neither_memory_nor_time(refused):
    said = refused(stated(("Content-Range", f"bytes 0-65535/{10**17}")))
    assert "its server does not send the bytes that were asked for" in said  # of its end, where some formats are told


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Type", "multipart/byteranges; boundary=x"), ("Content-Range", "bytes 0-65535/1000000")],
        [("Content-Type", "multipart/byteranges; boundary=x")],
        [("Content-Range", "bytes 0-65535/1000000"), ("Content-Length", 9)],
        [("Content-Range", "bytes 0-65535/1000000"), ("Content-Length", 65537)],
    ],
    ids=["envelope", "envelope alone", "shorter", "longer"],
)
def test_a_part_that_contradicts_its_length_or_is_in_an_envelope_is_refused(refused, headers):
    assert "does not send the bytes that were asked for (HTTP 206" in refused(stated(*headers))


@pytest.mark.parametrize("name", ["ETag", "Last-Modified", "Content-Length", "Content-Range", "Transfer-Encoding"])
def test_two_different_headers_of_one_name_are_a_contradiction(refused, data, name):
    said = refused(lambda asked, number: [part(data, asked, (name, "1"), (name, "2"))])
    assert f"contradicts itself: it sends two different headers {name}" in said


def test_a_header_that_is_there_twice_and_the_same_is_none(web, data):
    web.raw["a.safetensors"] = parts(data, TAG, TAG)
    assert ckptool.verify(web.url("a.safetensors")).sound


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (answer(204), "answers HTTP 204"),
        (answer(203, b"x"), "answers HTTP 203"),
        (answer(300), "answers HTTP 300"),
        (answer(304), "answers HTTP 304"),
        (answer(401, b"", ("WWW-Authenticate", 'Basic realm="\x1b[31m"')), "needs a login or a licence"),
        (answer(503, b"", ("Retry-After", "9" * 5000)), "answers HTTP 503"),
        (answer(416, b"", ("Content-Range", "bytes */5000")), "does not send the bytes that were asked for (HTTP 416"),
        (b"HTTP/1.1 500 \x1b[31mEVIL\x07\x9b31m\r\n\r\n", "answers HTTP 500 \\x1b[31mEVIL"),
    ],
    ids=map(str, range(8)),
)
def test_what_is_no_answer_to_the_question_is_said_with_its_number(refused, first, words):
    assert words in refused(sent(first))


# -- one file


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("ETag", 'W/"1"')], [("ETag", 'W/"2"')]),
        ([("ETag", '"1"')], [("ETag", '"2"')]),
        ([("ETag", '"1"')], []),
        ([], [("ETag", '"1"')]),
        ([("Last-Modified", "a")], [("Last-Modified", "b")]),
        ([("ETag", '"1"'), ("Last-Modified", "a")], [("ETag", '"1"'), ("Last-Modified", "b")]),
    ],
    ids=["weak tag", "tag", "tag goes", "tag comes", "date", "date under one tag"],
)
def test_another_version_is_refused_whatever_shows_it(refused, data, other, before, after):
    assert len(data) == len(other)
    assert "changed on its server while it was being read" in refused(
        lambda asked, number: [part(other, asked, *after) if number else part(data, asked, *before)]
    )


def test_what_is_asked_for_again_when_a_connection_broke_off_is_of_the_same_version(refused, data, other):
    said = refused(
        lambda asked, n: [
            part(other, asked, ("ETag", '"2"')) if n > 1 else part(data, asked, ("ETag", '"1"'))[:300_000]
        ]
    )
    assert "changed on its server while it was being read" in said


@pytest.mark.parametrize("status", [200, 206, 416])
def test_another_length_is_another_version(refused, data, status, monkeypatch):
    monkeypatch.setattr(http_files, "MOST_WHOLE", 100_000)

    def change(asked, number):
        if not number:
            return [part(data, asked, TAG)]
        return [
            {
                200: answer(200, data[:-8], ("Content-Length", len(data) - 8), TAG),
                206: part(data[:-8], asked, TAG),
                416: answer(416, b"", ("Content-Range", "bytes */10")),
            }[status]
        ]

    assert "changed on its server" in refused(change)


def test_the_whole_file_in_place_of_a_part_is_refused(refused, data):
    said = refused(lambda asked, n: [answer(200, data, TAG) if n else part(data, asked, TAG)])
    assert "does not send the bytes that were asked for (HTTP 200" in said


def test_a_redirection_that_leads_to_another_version_later_is_refused(web, refused, data, other):
    web.raw["one"] = lambda asked, n: [answer(403) if n else part(data, asked, ("ETag", '"1"'))]
    web.raw["two"] = parts(other, ("ETag", '"2"'))
    switched = sent_by_turns(*(answer(302, b"", ("Location", name)) for name in ("/one", "/two")))
    assert "changed on its server" in refused(switched)
    web.requests.clear()
    web.raw["two"] = parts(data, ("ETag", '"1"'))
    web.raw["a.safetensors"] = switched
    file = urls.open_file(web.url("a.safetensors"))
    assert file.read(0, len(data)) == data
    file.close()


def test_a_file_without_a_version_is_read_in_one_request(web, data, other, run, folder):
    web.raw["a.safetensors"] = lambda asked, n: [part(other if n > 1 else data, asked)]
    code, _, err = run("convert", web.url("a.safetensors"), "out.safetensors")
    assert code == 0
    assert "gives no version" not in err
    assert ckptool.diff(folder / "a.safetensors", "out.safetensors", weights=True).same
    assert len(web.requests) == 2


def test_a_small_file_comes_with_the_first_request(web):
    ckptool.save(checkpoint(1, 20), web.folder / "a.pth")
    web.tags = ""
    assert ckptool.verify(web.url("a.pth")).sound
    assert len(web.requests) == len(remote.TRAFFIC) == 1


NO_VERSION = "gives no version of it (neither ETag nor Last-Modified), so a change while it was being read could not be"


def test_of_a_large_file_without_a_version_every_receipt_and_report_says_so(web, data, run, monkeypatch):
    monkeypatch.setattr(http_files, "MOST_WHOLE", 500_000)
    web.raw["a.safetensors"] = parts(data)
    web.raw["cut.safetensors"] = parts(data[:-100])
    url = web.url("a.safetensors")
    for command in (
        ["convert", url, "out.pth"],
        ["convert", url, "shards", "--to", "shards", "--max-shard-size", "300kB"],
        ["average", url, url, "-o", "mean.pth"],
        ["repair", web.url("cut.safetensors"), "repaired.safetensors", "--allow-loss"],
        ["convert", url, "out2.pth", "--json"],
    ):
        code, out, err = run(*command)
        assert code == 0, err
        assert (out + err).count(NO_VERSION) == 1, command
    for command in (["inspect", url], ["inspect", url, "--json"], ["verify", url]):
        assert NO_VERSION in re.sub(r"\s+", " ", run(*command)[1]), command
    web.raw["a.safetensors"] = parts(data, ("ETag", 'W/"1"'))
    assert "gives no version" not in "".join(map(str, run("convert", url, "out3.pth")))


def test_the_receipt_of_a_port_says_so_too(torch, web, data, run, monkeypatch):
    monkeypatch.setattr(http_files, "MOST_WHOLE", 500_000)
    web.raw["a.safetensors"] = parts(data)
    Path("model.py").write_text(
        "import torch\n\n\n"
        "def model():\n"
        "    return torch.nn.ModuleDict({'layers': torch.nn.Sequential("
        "*(torch.nn.Linear(200, 200, bias=False) for _ in range(6)))})\n"
    )
    url = web.url("a.safetensors")
    code, _, err = run("transfer", url, "model.py:model", "-o", "out.safetensors")
    assert code == 0, err
    assert err.count(NO_VERSION) == 1


def test_a_run_that_was_cut_off_is_taken_up_only_of_the_same_version(web, data, monkeypatch):
    monkeypatch.setattr(http_files, "MOST_WHOLE", 500_000)

    def kind(*headers):
        web.raw["a.safetensors"] = parts(data, *headers)
        return urls.open_file(web.url("a.safetensors")).modified

    assert kind(("ETag", 'W/"1"')) == kind(("ETag", 'W/"1"')) != kind(("ETag", 'W/"2"'))
    assert kind(("Last-Modified", "a")) != kind(("Last-Modified", "b"))
    assert kind() != kind()
    monkeypatch.setattr(http_files, "MOST_WHOLE", 5_000_000)
    assert kind() == kind()


# -- framing


def chunked(*body):
    """A server that sends these bytes as the chunks of the whole file."""
    return sent(answer(200, b"", ("Transfer-Encoding", "chunked")), *body)


def in_chunks(body, size, extension=b""):
    for at in range(0, len(body), size):
        piece = body[at : at + size]
        yield f"{len(piece):x}".encode() + extension + b"\r\n" + piece + b"\r\n"
    yield b"0\r\n"


def test_a_file_in_chunks_is_the_file(web, data):
    url = web.url("a.safetensors")
    for raw in (
        lambda asked, n: [
            answer(200, b"", ("Transfer-Encoding", "Chunked")),
            *in_chunks(data, 100_000, b" ;a=b"),
            b"\r\n",
        ],
        lambda asked, n: [
            part(data, asked, TAG, ("Transfer-Encoding", "chunked"), length=False)[
                : -len(data[asked.start : asked.stop])
            ],
            *in_chunks(data[asked.start : asked.stop], 3000),
        ],
    ):
        web.raw["a.safetensors"] = raw
        assert ckptool.verify(url).sound
        assert ckptool.open(url).nbytes == len(data)


NO_SIZE = "sends a chunk without a size"
MORE_FRAME = "sends more chunk headers than bytes of the file"
CHUNKS = {
    "a word": ([b"ZZZ\r\nabc"], NO_SIZE + ": b'ZZZ'"),
    "negative": ([b"-5\r\nabc"], NO_SIZE + ": b'-5'"),
    "0x": ([b"0x10\r\n" + bytes(16)], NO_SIZE),
    "underscore": ([b"1_0\r\n" + bytes(16)], NO_SIZE),
    "many digits": ([b"F" * 5000 + b"\r\n"], MORE_FRAME),
    "16 digits": ([b"F" * 16 + b"\r\n"], NO_SIZE),
    "larger than what comes": ([b"FFFFFFFFFFFF\r\nabc"], "the connection broke off after 3 bytes"),
    "smaller than what comes": ([b"5\r\nabcdefgh\r\n0\r\n"], NO_SIZE),
    "no last one": ([b"3\r\nabc\r\n"], "the connection broke off after 3 bytes"),
    "a reset": ([b"3\r\nabc", b""], "the connection broke off after 3 bytes"),
    "a long extension": ([b"5;" + b"x" * 10_000_000], MORE_FRAME),
    "long extensions": ([b"1;" + b"x" * 4000 + b"\r\na\r\n"] * 500, MORE_FRAME),
    "a byte each": ([b"1\r\na\r\n" * 200_000], MORE_FRAME),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_that_are_none_are_refused(refused, name):
    body, words = CHUNKS[name]
    assert words in refused(chunked(*body))


def test_trailers_without_an_end_are_not_read(web, data, run):
    web.raw["a.safetensors"] = lambda asked, n: itertools.chain(
        [answer(200, b"", ("Transfer-Encoding", "chunked"))],
        in_chunks(data, 100_000),
        itertools.repeat(b"X: y\r\n" * 100, 100_000),
    )
    assert run("inspect", web.url("a.safetensors"))[0] == 0


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, gzip", "chunked, chunked"])
def test_a_form_of_transfer_that_is_not_known_is_named(refused, data, coding):
    assert f"sends it with Transfer-Encoding '{coding}', which is not read" in refused(
        whole(data, ("Transfer-Encoding", coding))
    )


@pytest.mark.parametrize("status", [200, 206])
def test_a_packed_file_is_named_as_such_with_the_command_that_unpacks_it(refused, data, status):
    packed = gzip.compress(data)
    said = refused(
        lambda asked, n: [
            answer(
                status,
                packed,
                ("Content-Encoding", "gzip"),
                ("Content-Length", len(packed)),
                ("Content-Range", f"bytes 0-{len(packed) - 1}/{len(packed)}"),
            )
        ]
    )
    assert "sends it packed (Content-Encoding: gzip), which was not asked for" in said
    assert "Hint: fetch it first: curl --compressed -L -o a.safetensors http://127.0.0.1" in said


@pytest.mark.parametrize("coding", ["identity", "binary", "UTF-8", "none"])
def test_a_coding_that_packs_nothing_is_passed_over(web, data, coding):
    web.raw["a.safetensors"] = parts(data, TAG, ("Content-Encoding", coding))
    assert ckptool.verify(web.url("a.safetensors")).sound


def test_what_comes_behind_an_answer_is_not_read(web, data, run):
    second = answer(206, b"evil", ("Content-Range", "bytes 0-3/4"))
    web.raw["a.safetensors"] = lambda asked, n: [part(data, asked, TAG) + second * 100]
    assert run("verify", web.url("a.safetensors"))[0] == 0
    web.raw["a.safetensors"] = lambda asked, n: itertools.chain(
        [part(data, asked, TAG)], itertools.repeat(bytes(65536), 10_000)
    )
    assert run("verify", web.url("a.safetensors"))[0] == 0


def test_a_connection_that_the_server_keeps_open_keeps_nobody(web, data, run, monkeypatch):
    monkeypatch.setattr(disk_web, "PATIENCE", 60)
    closing = threading.Event()

    def keep(asked, number):
        yield part(data, asked, TAG, ("Connection", "keep-alive"), ("Keep-Alive", "timeout=999"))
        closing.wait(20)

    web.raw["a.safetensors"] = keep
    began = time.monotonic()
    code = run("verify", web.url("a.safetensors"))[0]
    took = time.monotonic() - began
    closing.set()
    assert code == 0
    assert took < 10


# -- heads


UNREADABLE = "gives no answer that can be read"
TOO_LARGE = "the head of its server's answer has more than 262,144 bytes"
CUT = "closed the connection before its answer was complete"
HEADS = {
    "endless 100": ([b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000], TOO_LARGE),
    "endless 103": ([b"HTTP/1.1 103 Hints\r\n\r\n" * 20_000], TOO_LARGE),
    "a long line": ([b"HTTP/1.1 200 OK\r\nX: " + b"a" * 10_000_000], UNREADABLE),
    "many lines": ([b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 5000 + b"\r\n"], UNREADABLE),
    "long lines": ([b"HTTP/1.1 200 OK\r\n" + (b"X: " + b"a" * 60_000 + b"\r\n") * 90], TOO_LARGE),
    "HTTP/0.9": ([b"\x93NUMPY" * 1000], CUT),
    "HTTP/0.9 with lines": ([b"\x93NUMPY\n" * 1000], UNREADABLE),
    "HTTP/2": ([b"HTTP/2 200 OK\r\n\r\n"], UNREADABLE),
    "a terminal": ([b"\x1b[31mHTTP\x07garbage\r\n\r\n"], UNREADABLE),
    "empty lines": ([b"\r\n" * 100_000], UNREADABLE),
    "a large status": ([b"HTTP/1.1 999999 OK\r\n\r\n"], UNREADABLE),
    "a status of other digits": ([b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n"], UNREADABLE),
    "cut in a header": ([b"HTTP/1.1 200 OK\r\nContent-Le"], CUT),
    "cut between headers": ([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"], CUT),
    "nothing": ([], CUT),
    "a reset": ([b""], "cannot be reached: connection reset by peer"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_none_is_refused(refused, name):
    pieces, words = HEADS[name]
    assert words in refused(sent(*pieces))


def test_interim_answers_are_passed_over(web, data):
    hints = answer(100) + answer(103, b"", ("Link", "<x>")) + answer(102)
    web.raw["a.safetensors"] = lambda asked, n: [hints + part(data, asked, TAG)]
    assert ckptool.verify(web.url("a.safetensors")).sound


def drip(data, seconds, pieces=1):
    for at in range(0, len(data), pieces):
        time.sleep(seconds)
        yield data[at : at + pieces]


def test_a_head_that_drips_is_given_up(refused, data):
    began = time.monotonic()
    said = refused(lambda asked, n: drip(part(data, asked, TAG), 0.1))
    assert "does not answer within 0.5 seconds" in said
    assert time.monotonic() - began < 5


WORDS = [
    b"\r\n",
    b"\n",
    b":",
    b" ",
    b"0",
    b"-1",
    b"9" * 30,
    b"\0",
    b"\xb2",
    b"\xff",
    b"416",
    b"200",
    b"302",
    b"100",
    b"bytes */7",
]
WORDS += [
    b"\r\nContent-Length: 5",
    b"\r\nTransfer-Encoding: chunked",
    b'\r\nETag: W/"z"',
    b"\r\nLocation: /x",
    b"HTTP/1.1 ",
]


@given(
    number=st.integers(0, 2),
    changes=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 6), st.sampled_from(WORDS)), min_size=1, max_size=3),
)
def test_a_head_that_was_tampered_with_gives_the_file_or_one_line(tmp_path_factory, number, changes):
    """What moves the end of the head is left out: then it is the body that was tampered with."""
    content = bytes(range(256)) * 700

    def tampered(asked, n):
        sound = part(content, asked, TAG)
        end = sound.index(b"\r\n\r\n")
        head = sound[:end]
        for at, length, word in changes if n == number else ():
            head = head[:at] + word + head[at + length :]
        lines = head.replace(b"\r\n", b"\n").split(b"\n")
        whole = all(b":" in line for line in lines[1:]) and not head.endswith(b"\r")
        return [head + sound[end:] if whole else sound]

    with serving(tmp_path_factory.mktemp("web")) as web:
        web.raw["a"] = tampered
        read, said = b"", ""
        try:
            file = urls.open_file(web.url("a"))
            read = file.read(0, 100) + file.read(100, 90_000) + file.read(90_100, file.size - 90_100)
            file.close()
        except ckptool.CheckpointError as error:
            said = str(error)
        assert read == content or said.startswith(f"{web.url('a')}: ")
        assert len(said.splitlines()) <= 2
        assert said.replace("\n", "").isprintable()


# -- bodies


def test_a_body_that_drips_is_given_up(refused, data, monkeypatch):
    monkeypatch.setattr(disk_web, "TIMEOUT", 30.0)
    for framing in (("Content-Length", len(data)), ("X", "y")):
        said = refused(
            lambda asked, n, framing=framing: itertools.chain([answer(200, b"", framing)], drip(data, 0.05, 10))
        )
        assert "its server sends less than 1,000 bytes a second" in said


def test_a_body_that_stops_is_given_up(refused, data):
    def stop(asked, number):
        yield part(data, asked, TAG)[:30_000]
        time.sleep(2)

    assert "its server sends less than 1,000 bytes a second" in refused(stop)


def test_a_body_that_moves_has_no_deadline(web, data, monkeypatch):
    monkeypatch.setattr(disk_web, "TIMEOUT", 0.2)
    monkeypatch.setattr(disk_web, "PATIENCE", 0.2)
    web.raw["a.safetensors"] = lambda asked, n: itertools.chain(
        [answer(200, b"", ("Content-Length", len(data)))], drip(data, 0.1, 60_000)
    )
    began = time.monotonic()
    assert ckptool.verify(web.url("a.safetensors")).sound
    assert time.monotonic() - began > 1


def test_time_that_a_reader_takes_is_not_the_server_s(web, data):
    web.raw["a.safetensors"] = parts(data, TAG)
    file = urls.open_file(web.url("a.safetensors"))
    for at in range(0, 400_000, 100_000):
        assert file.read(at, 100_000) == data[at : at + 100_000]
        time.sleep(0.3)
    file.close()


def test_a_server_that_hangs_up_after_each_byte_is_given_up(refused, web, data):
    said = refused(lambda asked, n: [part(data, asked, TAG) if not n else part(data, asked, TAG)[: 1 - len(asked)]])
    assert "the connection broke off at byte" in said
    assert len(web.requests) < 40


def test_a_server_that_hangs_up_now_and_then_is_asked_again(web, data):
    web.raw["a.safetensors"] = lambda asked, n: [part(data, asked, TAG)[: 40_000 if n else None]]
    file = urls.open_file(web.url("a.safetensors"))
    assert file.read(0, len(data)) == data
    file.close()


@pytest.mark.parametrize("at", [10, 500, 40_000])
def test_a_connection_that_is_reset_is_one_line_where_it_does_not_come_back(refused, web, data, at):
    said = refused(lambda asked, n: [part(data, asked, TAG)[:at], b""])
    assert "the connection broke off" in said or "connection reset" in said
    assert len(web.requests) < 20


def test_a_connection_that_is_reset_now_and_then_is_taken_up_where_it_was(web, data, folder):
    def reset(asked, number):
        yield part(data, asked, TAG)[: 250_000 if number % 2 else None]
        if number % 2:
            time.sleep(0.05)
            yield b""

    web.raw["a.safetensors"] = reset
    assert ckptool.verify(web.url("a.safetensors"), against=folder / "a.safetensors").sound


def test_a_body_without_an_end_is_left(refused, data):
    endless = itertools.repeat(bytes(1 << 20), 10_000)
    said = refused(lambda asked, n: itertools.chain([answer(200)], endless))
    assert "does not serve parts of files (HTTP range requests), and how large it is is not said" in said


# -- redirections


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/a.safetensors", "is redirected in a circle"),
        ("file:///etc/passwd", "is redirected to file:///etc/passwd, which is not followed"),
        ("ftp://127.0.0.1:1/x", "is redirected to ftp://127.0.0.1:1/x, which is not followed"),
        ("data:text/plain,hi", "is redirected to data:text/plain,hi, which is not followed"),
        ("http://me:secret@127.0.0.1:1/x", "is redirected to 127.0.0.1 with a login, which is not followed"),
        ("http://[::1", "is redirected to http://[::1, which is not an address of the web"),
        (
            "http://127.0.0.1:99999999/",
            "is redirected to http://127.0.0.1:99999999/, which is not an address of the web",
        ),
        ("http://127.0.0.1:0/", "is redirected to http://127.0.0.1:0/, which is not an address of the web"),
        ("http://:80/x", "is redirected to http://:80/x, which is not an address of the web"),
        (
            "http://127.0.0.1:1/\x1b[31mX\x07",
            "http://127.0.0.1:1, where it is redirected, cannot be reached: connection",
        ),
        ("", "is redirected, but its server does not say where to"),
    ],
    ids=map(str, range(11)),
)
def test_a_redirection_that_is_not_followed_is_said_in_a_true_line(refused, location, words):
    said = refused(sent(answer(302, b"", ("Location", location))))
    assert words in said
    assert "secret" not in said
    assert said.count("redirected") == 1


def test_redirections_are_counted(refused, web):
    said = refused(lambda asked, n: [answer(302, b"", ("Location", f"/a.safetensors?{n}"))])
    assert "is redirected more than 10 times" in said
    assert len(web.requests) == 11


def test_a_redirection_to_two_places_is_a_contradiction(refused):
    said = refused(sent(answer(302, b"", ("Location", "/b"), ("Location", "/c"))))
    assert "it sends two different headers Location" in said


def test_the_page_of_a_redirection_is_not_read(web, data):
    web.raw["go"] = lambda asked, n: itertools.chain(
        [answer(302, b"", ("Location", "/a.safetensors"))], itertools.repeat(bytes(1 << 16), 10_000)
    )
    web.raw["a.safetensors"] = parts(data, TAG)
    assert ckptool.verify(web.url("go")).sound


def test_a_redirection_to_a_name_of_another_alphabet_is_followed(web, data):
    web.raw["go"] = sent("HTTP/1.1 302 said\r\nLocation: /模型 1.safetensors\r\n\r\n".encode())
    web.raw["模型 1.safetensors"] = parts(data, TAG)
    assert ckptool.verify(web.url("go")).sound


def test_a_login_goes_where_a_redirection_stays_on_its_server_and_no_further(web, data):
    web.redirects["a"] = web.url("b")
    web.redirects["b"] = web.url("c").replace("127.0.0.1", "localhost")
    web.raw["c"] = parts(data, TAG)
    assert ckptool.verify(web.url("a").replace("http://", "http://me:secret@")).sound
    assert {path for path, headers in web.requests if "Authorization" in headers} == {"a", "b"}
    assert {path for path, headers in web.requests} == {"a", "b", "c"}


# -- what a person types


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://h:99999999/a.pth", "https:///a.pth", "http://:80/x"])
def test_an_address_that_is_none_is_said_to_be_none(refused, url):
    assert "cannot be reached: it is not an address of the web" in refused(sent(), url)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a b", "a%0d%0ab"])
def test_a_host_that_cannot_be_one_is_a_line(refused, host):
    refused(sent(), f"http://{host}/a.pth")


def test_a_login_is_not_printed(run):
    code, _, err = run("inspect", "http://me:secret@:80/a.pth")
    assert code == 2
    assert err.startswith("Error: http://:80/a.pth: cannot be reached")
    assert "secret" not in err


# -- proxies, TLS, signals


def test_a_proxy_that_drips_or_never_ends_is_given_up(refused, web, monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    for words in (
        "does not answer within 0.5 seconds",
        "the head of its server's answer has more",
        "tunnel connection failed",
    ):
        with socket.create_server(("127.0.0.1", 0)) as proxy:

            def serve(proxy=proxy, words=words):
                connection, _ = proxy.accept()
                with connection:
                    connection.recv(4096)
                    try:
                        if "tunnel" in words:
                            connection.sendall(b"HTTP/1.1 407 \x1b[31mno\r\n\r\n")
                        elif "head" in words:
                            connection.sendall(b"HTTP/1.1 200 OK\r\n" + (b"X: " + b"y" * 50_000 + b"\r\n") * 20)
                        else:
                            for piece in drip(b"HTTP/1.1 200 OK\r\n" * 100, 0.1):
                                connection.sendall(piece)
                    except OSError:
                        pass

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
            assert words in refused(sent(), "https://models.example/a.safetensors")
            thread.join(5)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:99999999", "nonsense"])
def test_a_proxy_that_is_none_is_a_line(refused, monkeypatch, proxy):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", proxy)
    refused(sent(), "http://models.example/a.safetensors")


def test_a_secure_server_that_drips_or_breaks_off_is_given_up(refused, web, data, tmp_path, monkeypatch):
    (tmp_path / "own.pem").write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    web.socket = context.wrap_socket(web.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    url = web.url("a.safetensors").replace("http://", "https://")
    assert "does not answer within" in refused(lambda asked, n: drip(part(data, asked, TAG), 0.1), url)
    assert "broke off" in refused(lambda asked, n: [part(data, asked, TAG)[:3000]], url)
    assert "less than 1,000 bytes a second" in refused(
        lambda asked, n: itertools.chain([part(data, asked, TAG)[:3000]], drip(data, 0.1)), url
    )


def test_a_server_that_does_not_finish_its_tls_greeting_is_given_up(refused):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/a.safetensors"
        assert "does not answer within" in refused(sent(), url)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_signal_ends_a_command_that_waits_for_a_server(web, tmp_path, number, status, command):
    """Also where threads wait: `inspect` reads parts of an archive at once, and a cast is computed in threads."""
    ckptool.save(checkpoint(12, 400), tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as old, zipfile.ZipFile(tmp_path / "a.pth", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED if command == "inspect" else zipfile.ZIP_STORED)
    data = (tmp_path / "a.pth").read_bytes()
    waiting, ended = threading.Event(), threading.Event()

    def stall(asked, n):
        if n < (3 if command == "inspect" else 4):
            yield part(data, asked, TAG)
            return
        yield part(data, asked, TAG)[:300]
        waiting.set()
        ended.wait(30)

    web.raw["a.pth"] = stall
    args = ["inspect", web.url("a.pth")] if command == "inspect" else ["convert", web.url("a.pth"), "out.safetensors"]
    args += ["--cast", "float16"] if command == "convert" else []
    child = subprocess.Popen(
        [sys.executable, "-m", "ckptool", *args], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        assert waiting.wait(20)
        time.sleep(0.3)
        child.send_signal(number)
        began = time.monotonic()
        _, err = child.communicate(timeout=20)
        assert time.monotonic() - began < 5
    finally:
        ended.set()
        child.kill()
        child.wait()
    assert child.returncode == status
    assert b"nothing was changed" in err
    assert not [path for path in tmp_path.iterdir() if path.name not in ("a.pth", "plain.pth", "web")]
