"""Proof by inputs and outputs that were saved. What is no such file is named, with what helps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import ckptool
from ckptool.errors import CheckpointError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, image: Any, scale: Any = None) -> Any:
        return self.head(self.stem(image).relu().mean((2, 3)))


class Runs:
    """Pickled, it would make a file when it is unpickled by pickle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / "it-ran"),)


def whole(x: Any, y: Any) -> Any:
    return {"input": x, "output": y}


GOOD: dict[str, Callable[[Any, Any], Any]] = {
    "as they are": whole,
    "by position": lambda x, y: {"input.0": x, "output.0": y},
    "by name": lambda x, y: {"input.image": x, "output.logits": y},
    "in dicts and lists": lambda x, y: {"inputs": {"image": x}, "outputs": [{"logits": y}]},
    "in double precision": lambda x, y: {"input": x.double(), "output": y.double()},
    "inputs in half precision": lambda x, y: {"input": x.half(), "output": y},
    "on a GPU that is not here": lambda x, y: {"input": x, "output": y, "device": "cuda:3"},
    "with other outputs": lambda x, y: {"input": x, "output": [y.argmax(1), y, y.half()]},
}

BAD: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "other names": (lambda x, y: {"x": x, "y": y}, "no tensors that are inputs and outputs", "--rename x=input"),
    "no outputs": (lambda x, y: {"input": x}, "no tensors that are outputs", '"output": model(x)'),
    "one other name": (lambda x, y: {"input": x, "y": y}, "no tensors that are outputs", "--rename y=output"),
    "no inputs": (lambda x, y: {"output": y}, "no tensors that are inputs", '"input": x'),
    "weights": (lambda x, y: Net().state_dict(), "it holds stem.weight float32[4,3,3,3]", "torch.save("),
    "a list": (lambda x, y: [x, y], "it holds a list", "torch.save("),
    "a tensor": (lambda x, y: x, "it holds float32[2,3,8,8]", "torch.save("),
    "a text": (lambda x, y: {"input": "hello", "output": y}, "no tensors that are inputs", "torch.save("),
    "NaN outputs": (lambda x, y: {"input": x, "output": y * float("nan")}, "10 of 10 are NaN", "eval mode"),
    "NaN inputs": (lambda x, y: {"input": x * float("nan"), "output": y}, "holds no finite number", "eval mode"),
    "no elements": (lambda x, y: {"input": x[:0], "output": y[:0]}, "has no elements", "batch"),
    "classes": (lambda x, y: {"input": x, "output": y.argmax(1)}, "whole numbers", "logits"),
    "half precision": (lambda x, y: {"input": x, "output": y.half()}, "too coarse", "model.float()"),
    "another shape goes in": (lambda x, y: {"input": x[:, :1], "output": y}, "cannot be run", "torch.save("),
    "another type goes in": (lambda x, y: {"input": x.long(), "output": y}, "cannot be run", "torch.save("),
    "another name goes in": (
        lambda x, y: {"input.picture": x, "output": y},
        "unexpected keyword argument 'picture'",
        "--rename input.picture=input.image",
    ),
    "too many go in": (lambda x, y: {"input": [x, x, x], "output": y}, "cannot be run", "torch.save("),
    "with a name and without": (lambda x, y: {"input": x, "input.a": x, "output": y}, "some have none", "name all"),
    "another shape comes out": (
        lambda x, y: {"input": x, "output": torch.zeros(2, 7)},
        "the model gives float32[2,5], and float32[2,7] is saved",
        "torch.save(",
    ),
}


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def saved(net: nn.Module, make: Callable[[Any, Any], Any], path: Path) -> Path:
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.save(make(x, net(x)), path)
    return path


@pytest.mark.parametrize("case", GOOD)
def test_inputs_and_outputs_are_found_however_they_are_kept(case: str, net: nn.Module, tmp_path: Path) -> None:
    path = saved(net, GOOD[case], tmp_path / "io.pth")
    mapping = ckptool.transfer(net.state_dict(), Net(), reference=path)
    assert mapping.proof is not None
    assert mapping.proof["equal"], mapping.proof


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_compared_with_is_named_with_what_helps(case: str, net: nn.Module, tmp_path: Path) -> None:
    make, said, hint = BAD[case]
    path = saved(net, make, tmp_path / "io.pth")
    with pytest.raises(CheckpointError) as caught:
        ckptool.transfer(net.state_dict(), Net(), reference=path)
    assert said in str(caught.value)
    assert caught.value.where == str(path)
    assert hint in (caught.value.hint or "")


def test_objects_in_it_stay_data(net: nn.Module, tmp_path: Path) -> None:
    path = saved(net, lambda x, y: whole(x, y) | {"more": Runs(tmp_path)}, tmp_path / "io.pth")
    mapping = ckptool.transfer(net.state_dict(), Net(), reference=path)
    assert mapping.proof is not None
    assert mapping.proof["equal"]
    path = saved(net, lambda x, y: {"input": Runs(tmp_path), "output": y}, tmp_path / "io.pth")
    with pytest.raises(CheckpointError, match=r"an object of class \w+\.mkdir"):
        ckptool.transfer(net.state_dict(), Net(), reference=path)
    assert not (tmp_path / "it-ran").exists()


def test_outputs_of_another_model_differ_by_so_much(net: nn.Module, tmp_path: Path) -> None:
    path = saved(Net().eval(), whole, tmp_path / "io.pth")
    mapping = ckptool.transfer(net.state_dict(), Net(), reference=path)
    assert mapping.proof is not None
    assert not mapping.proof["equal"]
    assert "outputs differ on the saved inputs, by up to" in mapping.proof["text"]
    assert "uses of weights" not in mapping.proof["text"]  # of which none were seen


@pytest.mark.parametrize("case", ["other names", "another name goes in"])
def test_the_command_that_is_named_makes_it_a_reference(
    case: str, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptool.cli import main

    monkeypatch.chdir(tmp_path)
    path = saved(net, BAD[case][0], Path("bad.pth"))
    with pytest.raises(CheckpointError) as caught:
        ckptool.transfer(net.state_dict(), Net(), reference=path)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(caught.value.hint or "")[1:])
    assert ended.value.code == 0
    mapping = ckptool.transfer(net.state_dict(), Net(), reference="io.safetensors")
    assert mapping.proof is not None
    assert mapping.proof["equal"]


@pytest.mark.parametrize("bad", [b"", b"\x80\x02", b"import torch\n", b"PK\x03\x04" + bytes(200)])
def test_a_file_that_is_none_is_one_line_and_a_hint(bad: bytes, net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "io.pth").write_bytes(bad)
    with pytest.raises(CheckpointError) as caught:
        ckptool.transfer(net.state_dict(), Net(), reference=tmp_path / "io.pth")
    assert caught.value.hint


def test_one_that_is_cut_short_is_named(net: nn.Module, tmp_path: Path) -> None:
    path = saved(net, whole, tmp_path / "io.pth")
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(CheckpointError, match=r"io\.pth"):
        ckptool.transfer(net.state_dict(), Net(), reference=path)
