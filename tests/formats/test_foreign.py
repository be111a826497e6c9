"""Files that are no checkpoint are named for what they are; checkpoints that are cut short are called that."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.errors import CheckpointError, Malformed, UnknownFormat
from ckptool.formats import torch_legacy
from ckptool.formats.beginnings import is_tar
from ckptool.formats.flat import safetensors
from ckptool.formats.foreign import describe


def zipped(**members):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return made.getvalue()


def tarred(name):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return made.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 438007537\n"
INDEX = {
    "metadata": {"total_size": 1},
    "weight_map": {f"layers.{i}.weight": "model-00001.safetensors" for i in range(99)},
}
HTML = "a web page (HTML), as a login, quota or error page is saved in place of a file"

FOREIGN = {
    "LFS pointer": (LFS, "a Git LFS pointer (86 bytes); the real file has 438,007,537 bytes", "git lfs pull"),
    "LFS pointer with CR": (LFS.replace(b"\n", b"\r\n"), "a Git LFS pointer (89 bytes)", "git lfs pull"),
    "HTML": (b"<!DOCTYPE html><html><title>Sign in</title>", HTML, "download it again"),
    "HTML without doctype": (b"<HTML><body>", HTML, "download it again"),
    "HTML after blank lines": (b"\n\r\n  <html>", HTML, "download it again"),
    "HTML after a mark": (b"\xef\xbb\xbf<html>", HTML, "download it again"),
    "HTML in UTF-16": ("\ufeff<html>".encode("utf-16-le"), HTML, "download it again"),
    "XML": (
        b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>",
        "XML or HTML, as a login, quota",
        "download it again",
    ),
    "JSON": (b'{"error":"Repository not found"}', 'JSON: {"error":"Repository not found"}', "download it again"),
    "a shard index": (json.dumps(INDEX, indent=2).encode(), "the index of a sharded checkpoint", None),
    "text": (b"404: Not Found", "a text: 404: Not Found", "download it again"),
    "text of several lines": (b"Entry not found\r\nsorry\n", "a text: Entry not found", "download it again"),
    "text with umlauts": ("Datei nicht verfügbar".encode(), "a text: Datei nicht verfügbar", "download it again"),
    "empty": (b"", "the file is empty", "copy or download it again"),
    "zeros": (
        bytes(10_000),
        "it begins with zeros, as a file does whose writing was cut off",
        "copy or download it again",
    ),
    "one zero": (b"\0", "it begins with zeros", "copy or download it again"),
    "zeros, then something": (bytes(100) + b"PK\3\4", "it begins with zeros", "copy or download it again"),
    "gzip": (gzip.compress(b"x", mtime=0), "a gzip file", "gunzip < "),
    "bzip2": (bz2.compress(b"x"), "a bzip2 file", "bunzip2 < "),
    "xz": (lzma.compress(b"x"), "an xz file", "unxz < "),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\0\1\0\0x", "a zstd file", "unzstd < "),
    "7z": (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x "),
    "rar": (b"Rar!\x1a\x07\x01\0", "a rar archive", "unrar x "),
    "tar": (tarred("model/weights.bin"), "a tar archive", "tar -xf "),
    "zip with another beginning": (
        b"P\0\3\4" + bytes(30),
        "a zip archive whose beginning is damaged",
        "download it again",
    ),
    "GGML": (b"ggml\1\0\0\0", "a GGML file (llama.cpp)", None),
    "ONNX": (b"\x08\x07\x12\x07pytorch\x1a\x052.3.0", "an ONNX model", None),
    "a program": (b"\x7fELF\2\1\1", "a program (ELF)", None),
    "a script": (b"#!/bin/sh\nexit 1\n", "a script", None),
    "a picture": (b"\x89PNG\r\n\x1a\n", "a picture (PNG)", None),
    "PDF": (b"%PDF-1.7", "a PDF document", None),
    "an opcode too new for its reader": (b"\x95\x10\0\0\0\0\0\0\0}", "its first bytes, 95 10 00 00 00 00 00 00", None),
    "noise": (bytes(range(200, 256)), "its first bytes, c8 c9 ca cb cc cd ce cf, are those of no format", None),
    "an old exported program": (
        zipped(serialized_exported_program__json="x").replace(b"program/json", b"program.json"),
        "an exported program (.pt2) of torch 2.1 to 2.7",
        None,
    ),
    "a zip without data.pkl": (zipped(m__version="3"), "a torch zip archive without data.pkl", None),
    "a zip with a checkpoint in it": (zipped(**{"run__model.pth": "x"}), "a zip archive with a checkpoint in it", None),
    "another zip": (
        zipped(**{"word__document.xml": "x", "word__b": "y"}),
        "a zip archive, but none of torch's: it holds",
        None,
    ),
}


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_that_is_no_checkpoint_is_named_for_what_it_is(tmp_path, case, suffix):
    data, what, hint = FOREIGN[case]
    if suffix == "safetensors" and "its first bytes" in what:
        pytest.skip("the name says that it is meant to be one, so it is read as one")
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(data)
    with pytest.raises(UnknownFormat) as raised:
        ckptool.open(path)
    error = raised.value
    assert error.where == str(path)
    assert error.what.startswith(f"not a checkpoint that can be read: {what}")
    assert "\n" not in error.what
    assert error.evidence == ()
    assert hint is None or hint in error.hint


@pytest.mark.parametrize("case", FOREIGN)
def test_detect_and_open_agree(tmp_path, case):
    path = tmp_path / "file"
    path.write_bytes(FOREIGN[case][0])
    if FOREIGN[case][0].startswith(b"PK"):
        assert ckptool.detect(path) == "torch-zip"  # its directory tells more, but is at its end
    else:
        with pytest.raises(UnknownFormat):
            ckptool.detect(path)


@pytest.mark.parametrize("members", [{"a.txt": "x", "b.txt": "y"}, {"model.pth": "x"}, {}])
def test_a_zip_without_a_folder_is_refused_with_what_is_in_it(tmp_path, members):
    (tmp_path / "in.pth").write_bytes(zipped(**members))
    with pytest.raises(CheckpointError) as raised:
        ckptool.open(tmp_path / "in.pth")
    assert all(name in str(raised.value) for name in list(members)[:1])


def test_a_file_that_is_named_safetensors_says_what_is_wrong_with_it_as_one(tmp_path):
    (tmp_path / "in.safetensors").write_bytes(bytes(range(200, 256)))
    with pytest.raises(Malformed, match="announces a header of"):
        ckptool.open(tmp_path / "in.safetensors")


def test_the_command_in_a_hint_names_the_file_as_one_word(tmp_path):
    path = tmp_path / "my model.bin"
    path.write_bytes(LFS)
    with pytest.raises(UnknownFormat) as raised:
        ckptool.open(path)
    assert raised.value.hint == "git lfs pull --include 'my model.bin'"


@pytest.mark.parametrize("data", [b'{"\x1b[31mred\x07": 1}', b"\x1b]0;title\x07 a text", "<\u202ehtml>".encode()])
def test_what_is_shown_of_a_file_is_fit_for_a_terminal(tmp_path, data):
    (tmp_path / "in").write_bytes(data)
    with pytest.raises(UnknownFormat) as raised:
        ckptool.open(tmp_path / "in")
    assert str(raised.value).replace("\n", "").isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_are_described_in_one_line(data):
    for padded in (data, data + bytes(4096 - len(data))):
        from pathlib import Path

        what, hint = describe(padded, len(padded), Path("file.pth"))
        assert what.isprintable()
        assert hint is None or hint.isprintable()


# ------------------------------------------------------------------------------------------ checkpoints cut short


def saved(tmp_path, format_):
    """The bytes of a small checkpoint in one of the formats, made without torch."""
    from ckptool import Checkpoint, LazyTensor, Storage
    from ckptool.disk.files import Buffer
    from ckptool.dtypes import BY_NAME
    from ckptool.tree import Dict

    float32 = BY_NAME["float32"]
    entries = [
        (f"layer{i}.weight", LazyTensor(Storage(Buffer(bytes(range(200))), "cpu", float32), float32, (50,), (1,)))
        for i in range(3)
    ]
    path = tmp_path / f"whole.{format_}"
    ckptool.save(Checkpoint(Dict(entries, ordered=True)), path, format=format_)
    return path.read_bytes()


@pytest.mark.parametrize("format_", ["torch-zip", "torch-legacy", "safetensors"])
def test_a_checkpoint_that_ends_anywhere_too_early_is_refused(tmp_path, format_):
    """At every byte. As soon as the beginning tells what it is, it is called malformed, and not something else."""
    whole = saved(tmp_path, format_)
    told_by = {"torch-zip": 4, "torch-legacy": 2, "safetensors": 9}[format_]
    path = tmp_path / "cut"
    path.write_bytes(whole)
    for length in reversed(range(len(whole))):
        with path.open("r+b") as file:
            file.truncate(length)
        with pytest.raises(Malformed if length >= told_by else UnknownFormat) as raised:
            ckptool.open(path)
        assert raised.value.where == str(path)


CUTS = {
    "torch-zip": [(0.5, "the end of the archive is missing"), (0.99, "the end of the archive is missing")],
    "torch-legacy": [
        (0.1, "its pickle is cut short"),
        (0.99, "is cut short: 200 bytes expected at offset"),
    ],
    "safetensors": [(0.1, "its header is cut short"), (0.99, "is cut short: its tensors take 600 bytes")],
}


@pytest.mark.parametrize(("format_", "part", "what"), [(f, *cut) for f, cuts in CUTS.items() for cut in cuts])
def test_what_is_cut_short_says_so_and_what_to_compare(tmp_path, format_, part, what):
    whole = saved(tmp_path, format_)
    (tmp_path / "cut").write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(Malformed) as raised:
        ckptool.open(tmp_path / "cut")
    assert what in raised.value.what
    assert "compare the size with the source" in raised.value.hint


@pytest.mark.parametrize("format_", ["torch-zip", "torch-legacy", "safetensors"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.pth", "model.pth.tar", "model.bin", "model", "model.zip"])
def test_the_name_of_a_file_does_not_matter(tmp_path, format_, name):
    (tmp_path / name).write_bytes(saved(tmp_path, format_))
    assert ckptool.detect(tmp_path / name) == format_
    assert ckptool.open(tmp_path / name).format == format_


@pytest.mark.parametrize("case", [case for case in FOREIGN if not FOREIGN[case][0].startswith(b"PK")])
def test_no_format_takes_a_foreign_file_for_its_own(case):
    head = FOREIGN[case][0][:4096]
    assert not torch_legacy.sniff(head)
    assert not safetensors.sniff(head)


def test_files_that_torch_writes_are_known_from_those_that_it_cannot_load(tmp_path):
    torch = pytest.importorskip("torch")
    weights = {"w": torch.ones(3)}
    torch.save(weights, tmp_path / "zip.pth")
    torch.save(weights, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    assert ckptool.detect(tmp_path / "zip.pth") == "torch-zip"
    assert ckptool.detect(tmp_path / "legacy.pth") == "torch-legacy"
    for protocol in (2, 3, 4, 5):
        torch.save(weights, tmp_path / "p", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
        assert ckptool.detect(tmp_path / "p") == "torch-legacy"


@given(
    st.sampled_from([tarred("0"), tarred("data/é"), bytes(512), b"\xff" * 600]),
    st.lists(st.tuples(st.one_of(st.integers(0, 511), st.integers(148, 155)), st.integers(0, 255)), max_size=4),
    st.sampled_from([None, b"%o\0", b" %o", b"0o%o", b"+%o", b"\x1c%o", b"%o8"]),
    st.booleans(),
)
def test_a_tar_header_is_one_where_tarfile_takes_it(head, changes, spelling, signed):
    made = bytearray(head)
    for place, byte in changes:
        made[place] = byte
    if spelling:
        rest = memoryview(bytes(made[:148] + made[156:512]))
        made[148:156] = (spelling % abs(256 + sum(rest.cast("b") if signed else rest))).ljust(8, b"\0")[:8]
    try:
        tarfile.TarInfo.frombuf(bytes(made[:512]), "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        assert not is_tar(bytes(made))
    else:
        assert is_tar(bytes(made))
