"""`ckptool transfer … --explain KEY`: the way of one key, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from samples import Run

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.body(x).relu())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    torch.save(layers.state_dict(), tmp_path / "old.pth")
    return tmp_path


@pytest.mark.parametrize("key", ["body.weight", "head.bias", "0.weight", "2.bias"])
def test_every_key_of_both_sides_is_explained_and_nothing_is_written(run: Run, folder: Path, key: str) -> None:
    before = sorted(folder.iterdir())
    done = run("transfer", "old.pth", "net.py", "--explain", key)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{key} (")
    assert sorted(p for p in folder.iterdir() if p.name != "__pycache__") == before


def test_a_key_without_a_source_is_explained_where_the_port_would_be_refused(run: Run, folder: Path) -> None:
    done = run("transfer", "old.pth", "net.py", "--kwargs", "classes=3", "--explain", "head.weight")
    assert done.code == 0, done.err
    assert "has no source" in done.out
    assert "in its place the source has 2.weight with sizes [10, 8]" in done.out


def test_a_key_that_is_nowhere_is_one_line_with_the_nearest(run: Run, folder: Path) -> None:
    done = run("transfer", "old.pth", "net.py", "--explain", "head.weights")
    assert done.code == 2
    assert "neither Net nor the file has a key 'head.weights'" in done.err
    assert "did you mean: head.weight" in done.err


def test_several_keys_are_one_document_of_json(run: Run, folder: Path) -> None:
    done = run("transfer", "old.pth", "net.py", "--explain", "head.weight", "--explain", "2.bias", "--json")
    document = json.loads(done.out)
    assert list(document["explained"]) == ["head.weight", "2.bias"]
    assert document["explained"]["2.bias"][0].startswith("2.bias (10)")
