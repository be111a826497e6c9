"""`ckptool verify`."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import pytest
from samples import Files, Run, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict


def damaged(files: Files) -> Path:
    path = files["plain.pth"]
    source = ckptool.open(path).state_dict()["fc.weight"].storage.source
    data = bytearray(path.read_bytes())
    data[source.offset] ^= 1
    path.write_bytes(data)
    return path


def test_the_exit_code_is_the_verdict(run: Run, files: Files) -> None:
    assert run("verify", "plain.pth", "plain.safetensors", "old.pth", "evil.pth").code == 0
    assert run("verify", "plain.safetensors", "--against", "plain.pth").code == 0
    assert run("verify", "dp.pth", "--against", "plain.pth").code == 1
    assert run("verify", "absent.pth").code == 2
    assert run("verify", "a", "b", "--manifest", "m").code == 2
    damaged(files)
    assert run("verify", "plain.pth").code == 1
    assert run("verify", "plain.pth", "absent.pth").code == 2


def test_doubts_count_when_they_are_asked_to(run: Run, tmp_path: Path) -> None:
    ckptool.save(Checkpoint(Dict([("w", tensor(2, fill=255))])), tmp_path / "nan.pth")
    ran = run("verify", "nan.pth")
    assert ran.code == 0
    assert "perhaps wrong:\n    w: 2 NaN" in ran.out
    assert run("verify", "nan.pth", "--strict").code == 1


MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros({}))
"""


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("against", [None, "same.pth", "other.pth"])
@pytest.mark.parametrize("model", [None, "fits.py", "another.py"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_file_is_called_sound_where_the_exit_code_is_0_and_nowhere_else(
    run: Run, tmp_path: Path, damage: bool, odd: bool, against: str | None, model: str | None, strict: bool
) -> None:
    if model:
        pytest.importorskip("torch")
    weights = Checkpoint(Dict([("w", tensor(2, fill=255 if odd else 1))]))
    for name in ("a.pth", "same.pth"):
        ckptool.save(weights, name)
    ckptool.save(Checkpoint(Dict([("w", tensor(2, fill=3))])), "other.pth")
    Path("fits.py").write_text(MODEL.format(2))
    Path("another.py").write_text(MODEL.format(3))
    if damage:
        source = ckptool.open("a.pth").storages()[0].source
        data = bytearray(Path("a.pth").read_bytes())
        data[source.offset] ^= 1  # type: ignore[attr-defined]
        Path("a.pth").write_bytes(data)
    options = [*(["--against", against] if against else []), *(["--fits", model] if model else [])]
    options += ["--strict"] if strict else []
    bad = damage or against == "other.pth" or (strict and odd) or model == "another.py"
    ran = run("verify", "a.pth", *options)
    first = ran.out.splitlines()[0]
    assert ran.code == int(bad), ran.err
    assert first.startswith("a.pth: sound, ") == (not bad)
    assert ("sound" in ran.out) == (not bad)
    if damage:
        assert first.startswith("a.pth: DAMAGED, ")
    (document,) = json.loads(run("verify", "a.pth", *options, "--json").out)["files"]
    assert document["sound"] == (not bad)
    assert bool(run("verify", "a.pth", *options, "-q").out) == bad


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_says_what_is_damaged(run: Run, files: Files, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    damaged(files)
    found, recorded = crc32(bytes([3]) + bytes([2]) * 31), crc32(bytes([2]) * 32)
    assert run("verify", "plain.pth").out == (
        "plain.pth: DAMAGED, torch-zip, 2.0 kB\n"
        "  478 bytes read; 7 checksums agree\n"
        "\n"
        "  damage:\n"
        f"    fc.weight: its CRC-32 is {found:08x}, recorded was {recorded:08x}\n"
    )


def test_a_manifest_is_written_checked_and_not_replaced(run: Run, files: Files) -> None:
    assert run("verify", "plain.pth", "--write-manifest", "m").code == 0
    assert run("verify", "plain.safetensors", "--manifest", "m", "-q").code == 0
    assert run("verify", "dp.pth", "--manifest", "m").code == 1
    ran = run("verify", "plain.pth", "--write-manifest", "m")
    assert (ran.code, "exists" in ran.err) == (2, True)
    assert run("verify", "plain.pth", "--write-manifest", "m", "--overwrite").code == 0


def test_the_json_document_has_every_field_that_is_promised(run: Run, files: Files) -> None:
    document = json.loads(run("verify", "plain.pth", "--json", "--digest", "--against", "plain.safetensors").out)
    (found,) = document["files"]
    assert set(found) == {
        "sound", "path", "format", "bytes", "read", "damage", "doubts", "notes", "checksums", "digest", "digests",
        "against", "fit",
    }  # fmt: skip
    assert found["sound"]
    assert len(found["digest"]) == 64
    assert found["against"]["same"]


def test_names_from_a_file_cannot_talk_to_the_terminal(run: Run, tmp_path: Path) -> None:
    ckptool.save(Checkpoint(Dict([("\x1b[31mred\x07\nx", tensor(1, fill=255))])), tmp_path / "loud.pth")
    for args in ([], ["-v", "--digest"], ["--json", "--digest"]):
        assert not set(run("verify", "loud.pth", *args).out) & {"\x1b", "\x07"}
