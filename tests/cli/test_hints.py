"""Commands in hints and reports are typed as they stand: for every name that a file can have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from samples import Files, Ran, Run

from ckptool.disk.files import beside, shell_path, shell_quote

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="names are quoted for a shell")

NAMES = [
    "-x.pt", "--overwrite", "-n", "-", "--in-place=1", "a b.pt", " a", "it's.pt", 'q"q.pt', "~x.pt", "$x.pt", "`x`.pt",
    "x;y&.pt", "*.pt", "#x.pt", "!x.pt", "x\\n.pt", "new\nline.pt", "\t", "é\x1b[31m.pt", "模.pt", "\u202ex.pt",
    "\udcff.pt", "-\n", "a" * 200 + ".pt",
]  # fmt: skip
#: What follows a command in a hint.
PROSE = re.compile(r" (?:takes|keeps|changes|puts|shows) ")


def words_of(command: str) -> list[str]:
    """What a shell makes of a command."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, cwd="/")
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_is_one_word_of_a_shell_and_never_an_option(name: str) -> None:
    (word,) = words_of(shell_path(name))
    assert os.path.normpath(word) == os.path.normpath(name)
    assert not word.startswith("-")
    assert shell_path(name).isprintable()
    assert words_of(shell_quote(name)) == [name]
    (word,) = words_of(beside(name, "fixed"))
    assert not word.startswith("-")
    assert "-fixed" in word


def test_a_word_that_is_too_long_is_cut() -> None:
    assert words_of(shell_quote("k" * 100_000, 200)) == ["k" * 199 + "…"]
    assert words_of(shell_quote("\n" * 100_000, 200)) == ["\n" * 199 + "…"]
    assert shell_quote("\ud800\n") == r"$'\xed\xa0\x80\x0a'"  # a key of a file may hold half a character


#: A file, and a command that has something to say about it.
TROUBLES = [
    ("dp.pth", "doctor {}"),
    ("last.ckpt", "doctor {}"),
    ("mixed.pth", "doctor {}"),
    ("evil.pth", "doctor {}"),
    ("cut.pth", "doctor {}"),
    ("dp.pth", "inspect {}"),
    ("last.ckpt", "inspect {}"),
    ("mixed.pth", "strip-prefix {} out.pth"),
    ("evil.pth", "convert {} out.pth"),
    ("plain.pth", "repair {} out.pth"),
    ("plain.pth", "average {} dp.pth -o out.pth"),
]


def commands_in(ran: Ran) -> list[str]:
    lines = (line.strip().removeprefix("Hint: ") for line in (ran.out + ran.err).splitlines())
    return [PROSE.split(line)[0] for line in lines if line.startswith("ckptool ")]


@pytest.mark.parametrize(("source", "command"), TROUBLES)
@pytest.mark.parametrize("name", ["x.pt", "-x.pt", "--overwrite", "a b's.pt", "~x", "$x\n.pt"], ids=ascii)
def test_commands_that_are_shown_work_as_they_stand(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch, source: str, command: str, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    Path("cut.pth").write_bytes(files["plain.pth"].read_bytes()[:-300])
    shutil.copy(source, f"./{name}")
    before = set(os.listdir())
    shown = commands_in(run(*[f"./{name}" if word == "{}" else word for word in command.split()]))
    assert shown
    for one in shown:
        ran = run(*words_of(one)[1:])
        assert ran.code in (0, 1), (one, ran.err)
        assert not ran.err.startswith("Usage")
    stem = Path(name).stem
    assert all(made.startswith(stem) or made == "out.pth" for made in set(os.listdir()) - before)


@pytest.mark.parametrize("name", ["-x", "--in-place", "a b", "$x\n"], ids=ascii)
def test_hints_about_folders_are_commands_too(run: Run, files: Files, name: str) -> None:
    """Those of other programs as well."""
    assert run("convert", "dp.pth", f"./{name}/", "-t", "shards").code == 0
    assert commands_in(run("inspect", f"./{name}"))
    ran = run("doctor", f"./{name}")
    for one in commands_in(ran):
        assert run(*words_of(one)[1:]).code == 0, one
    Path("weights").write_bytes(Path(name, "model.safetensors").read_bytes())
    Path(name, "model.safetensors").unlink()
    Path(name, "model.safetensors").symlink_to("../weights")
    hint = run("inspect", f"./{name}").err.partition("Hint: ")[2]
    assert hint.startswith("cp -rL ")
    subprocess.run(["bash", "-c", PROSE.split(hint)[0]], check=True)
    assert run("inspect", f"./{name}-copy").code == 0


def test_a_file_to_be_named_instead_of_a_folder_is_one_word(run: Run, files: Files) -> None:
    for copy in ("model", "diffusion_pytorch_model"):
        Path("-x y").mkdir(exist_ok=True)
        shutil.copy("plain.safetensors", f"-x y/{copy}.safetensors")
    hint = run("inspect", "./-x y").err.partition("Hint: name the file instead of the folder: ")[2]
    (word,) = words_of(hint.strip())
    assert run("inspect", word).code == 0


def test_a_command_that_is_repeated_keeps_its_files_files(run: Run, files: Files, torch: object) -> None:
    Path("net.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.other = nn.Conv2d(1, 2, 3)\n        self.more = nn.Linear(2, 4)\n"
    )
    shutil.copy("dp.pth", "-x.pt")
    ran = run("transfer", "-q", "--", "-x.pt", "net.py")
    assert ran.code == 1
    shown = commands_in(ran)
    assert shown
    for one in shown:
        words = words_of(one)
        assert "--" not in words
        assert words[:4] == ["ckptool", "transfer", "-q", "./-x.pt"]
        assert run(*words[1:], "-o", "out.pth").code == 0
