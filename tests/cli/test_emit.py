"""`ckptool transfer --emit`: code that converts files like the one that was ported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from samples import Run

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = nn.Linear(3, 5)
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        return self.head(self.stem(x))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 4))
    torch.save({"state_dict": model.state_dict()}, tmp_path / "old.pth")
    return tmp_path


def converted(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "port"}
    exec(path.read_text(), names)
    return names["convert"](state)


def test_the_code_makes_the_file_that_is_written(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "-o", "new.pth", "--emit", "port.py").code == 0
    wanted = torch.load(folder / "new.pth")
    made = converted(folder / "port.py", torch.load(folder / "old.pth")["state_dict"])
    assert list(made) == list(wanted)
    assert all(torch.equal(made[key], wanted[key]) for key in wanted)
    text = (folder / "port.py").read_text()
    assert "    ckptool transfer old.pth net.py -o new.pth --emit port.py\n" in text
    assert "what the file holds under 'state_dict'" in text


def test_it_is_written_when_nothing_else_is(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "-n", "--emit", "port.py").code == 0
    assert (folder / "port.py").exists()
    assert run("transfer", "old.pth", "net.py", "-n", "--kwargs", "classes=3", "--emit", "three.py").code == 1
    assert "the model keeps its own values of: head.weight, head.bias." in " ".join(
        (folder / "three.py").read_text().split()
    )


@pytest.mark.parametrize("name", ["net.py", "old.pth"])
def test_it_never_replaces_another_file_of_the_command(run: Run, folder: Path, name: str) -> None:
    before = (folder / name).read_bytes()
    ran = run("transfer", "old.pth", "net.py", "-n", "--emit", name, "--overwrite")
    assert (ran.code, ran.err.splitlines()[-2]) == (
        2,
        f"Error: --emit: {name} is an input or another output of this command.",
    )
    assert (folder / name).read_bytes() == before


def test_it_replaces_no_code_that_somebody_wrote(run: Run, folder: Path) -> None:
    (folder / "mine.py").write_text("print('mine')\n")
    ran = run("transfer", "old.pth", "net.py", "-n", "--emit", "mine.py", "--overwrite")
    assert ran.code == 2
    assert "mine.py: is not a ckptool converter" in ran.err
    assert (folder / "mine.py").read_text() == "print('mine')\n"
