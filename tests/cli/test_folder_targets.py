"""A folder is written where one is asked for, and never because one is there."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from samples import Files, Run

import ckptool

WRITERS = [
    "strip-prefix dp.pth",
    "add-prefix dp.pth",
    "rename dp.pth --rename module.conv1=module.c",
    "remap dp.pth -m cpu",
    "convert dp.pth",
    "convert dp.pth -t safetensors",
    "convert dp.pth -t legacy --overwrite",
    "clean dp.pth",
    "slim dp.pth",
    "extract-weights dp.pth",
    "average dp.pth dp.pth",
    "repair broken.pth",
    "convert plain.safetensors",
]


@pytest.fixture
def folder(files: Files) -> Path:
    """A folder with something in it."""
    Path("broken.pth").write_bytes(bytes(30) + files["dp.pth"].read_bytes()[30:])
    Path("there").mkdir()
    Path("there/notes.txt").write_text("notes")
    Path("empty").mkdir()
    return Path("there")


@pytest.mark.parametrize("out", ["there", "there/", "empty", "empty/", "new/", "./there", "."])
@pytest.mark.parametrize("command", WRITERS)
def test_a_file_is_not_made_a_folder_of_shards_because_a_folder_is_there(
    run: Run, folder: Path, command: str, out: str
) -> None:
    before = sorted(map(str, Path().rglob("*")))
    ran = run(*command.split(), "-o", out)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == f"Error: {out}: is a folder, and this format is one file."
    assert sorted(map(str, Path().rglob("*"))) == before
    hint = ran.err.partition("Hint: name the file: ")[2]
    (word, *rest) = shlex.split(hint.split("   ")[0])
    assert not rest
    assert Path(word).parent == Path(out)
    if not Path(word).exists():
        Path(word).parent.mkdir(exist_ok=True)
        assert run(*command.split(), "-o", word).code == 0, word
        suffixes = {"torch-zip": (".pth",), "torch-legacy": (".pth",), "safetensors": (".safetensors",)}
        assert Path(word).suffix in suffixes[ckptool.detect(word)]


@pytest.mark.parametrize(
    ("options", "out"),
    [
        ("-t shards", "new"),
        ("-t shards", "new/"),
        ("-t shards", "empty"),
        ("-t shards", "empty/"),
        ("-t dcp", "new"),
        ("--max-shard-size 5GB", "new"),
        ("--max-shard-size 5GB", "new/"),
        ("--max-shard-size 5GB -t safetensors", "empty"),
        ("--max-shard-size 5GB -t torch-zip", "new"),
        ("--variant fp16", "new/"),
    ],
)
def test_a_folder_that_is_asked_for_is_written(run: Run, folder: Path, options: str, out: str) -> None:
    assert run("convert", "dp.pth", out, *options.split()).code == 0
    assert Path(out).is_dir()
    assert len(ckptool.open(out).state_dict()) == 3
    ran = run("convert", "dp.pth", "there", *options.split())
    assert (ran.code, "is a folder that is not empty" in ran.err) == (2, True)
    ran = run("convert", "dp.pth", "there", *options.split(), "--overwrite")
    assert (ran.code, "notes.txt" in ran.err) == (2, True)


@pytest.mark.parametrize("out", ["copy", "copy/", "copy.v2/", "empty", "empty/"])
def test_a_folder_becomes_a_folder(run: Run, folder: Path, out: str) -> None:
    assert run("convert", "dp.pth", "shards", "-t", "shards").code == 0
    assert run("strip-prefix", "shards", out).code == 0
    assert Path(out).is_dir()
    assert len(ckptool.open(out).state_dict()) == 3
    assert run("strip-prefix", "shards", f"{out.rstrip('/')}-2.pth").code == 0
    assert Path(f"{out.rstrip('/')}-2.pth").is_file()


def test_in_place_a_folder_stays_one_and_a_file_stays_one(run: Run, folder: Path) -> None:
    assert run("convert", "dp.pth", "shards.pth/", "-t", "shards").code == 0
    assert run("strip-prefix", "shards.pth", "--in-place").code == 0
    assert sorted(os.listdir("shards.pth")) == ["model.safetensors"]
    ran = run("strip-prefix", "there", "--in-place")
    assert (ran.code, "a folder without sharded weights" in ran.err) == (2, True)
    assert os.listdir("there") == ["notes.txt"]
    assert run("strip-prefix", "dp.pth", "--in-place").code == 0
    assert Path("dp.pth").is_file()


def test_a_dry_run_refuses_it_too(run: Run, folder: Path) -> None:
    assert run("convert", "dp.pth", "there", "-n").code == 2
    assert run("convert", "dp.pth", "there/dp.pth", "-n").code == 0


@pytest.mark.parametrize("out", ["there", "there/", "new/"])
def test_so_does_transfer(run: Run, folder: Path, torch: object, out: str) -> None:
    Path("net.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv1 = nn.Conv2d(1, 2, 3)\n        self.fc = nn.Linear(2, 4, bias=False)\n"
    )
    ran = run("transfer", "dp.pth", "net.py", "-o", out)
    assert ran.code == 2
    assert "running" not in ran.err
    what = f"Error: {out}: is a folder, and this format is one file.\nHint: name the file: {Path(out)}/dp.pth"
    assert what in ran.err
    assert run("transfer", "dp.pth", "net.py", "-o", "empty/", "-t", "shards").code == 0
    assert run("transfer", "dp.pth", "net.py", "-o", "there", "-t", "shards", "--overwrite").code == 2
    assert os.listdir("there") == ["notes.txt"]
    assert sorted(os.listdir("empty")) == ["model.safetensors"]


def test_in_the_library_it_is_the_same(files: Files, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ckptool.Unwritable) as caught:
        ckptool.save(ckptool.open(files["dp.pth"]), tmp_path / "there")
    assert str(tmp_path / "there" / "dp.pth") in str(caught.value.hint)
    ckptool.save(ckptool.open(files["dp.pth"]), tmp_path / "there", max_shard_size=100)
    assert json.loads((tmp_path / "there" / "model.safetensors.index.json").read_text())
