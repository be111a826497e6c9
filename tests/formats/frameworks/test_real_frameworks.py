"""Files that the frameworks' own libraries wrote, against what these libraries read (see fixtures/frameworks)."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

import ckptool
from ckptool.errors import NotInstalled
from ckptool.tensor import LazyTensor
from ckptool.tree import walk

HERE = Path(__file__).parents[3] / "fixtures" / "frameworks"
EXPECTED = json.loads((HERE / "expected.json").read_text())


#: Ending of a file, or a folder -> the package that its values need.
NEEDS = {"h5": "h5py", "keras": "h5py", "gguf": "gguf"}
NEEDS |= dict.fromkeys(("orbax-zarr", "orbax-zarr3", "orbax-ocdbt", "orbax-ocdbt-zarr3"), "zstandard")


def opened(name):
    """A file of the folder, if the package that it needs is installed."""
    package = NEEDS.get(name.rpartition(".")[2])
    if package:
        pytest.importorskip(package)
    return ckptool.open(HERE / name)


def row(tensor):
    values = tensor.numpy()
    return [values.dtype.name, list(values.shape), hashlib.sha256(values.tobytes("C")).hexdigest()[:16]]


def tensors_of(ckpt):
    """Every tensor of a checkpoint by its path, and by its key where there is one dict of weights."""
    found = dict(ckpt.tensors()) | {path: other.dense for path, other in ckpt.other_tensors() if other.dense}
    for weights in ckpt.state_dicts():
        own = dict(weights.tensors) | {key: other.dense for key, other in weights.others.items() if other.dense}
        found |= {f"{weights.path}/{key}": tensor for key, tensor in own.items()}
        found |= own if len(ckpt.state_dicts()) == 1 else {}
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_framework_wrote_is_read_as_it_reads_it(name):
    found = tensors_of(opened(name))
    for key, expected in EXPECTED[name].items():
        assert key in found, sorted(found)
        assert row(found[key]) == expected, key


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_framework_wrote_is_whole_and_can_be_converted(tmp_path, name):
    ckpt = opened(name)
    assert ckptool.verify(HERE / name).damage == []
    ckptool.save(ckpt, tmp_path / "out.pth", allow_loss=True)
    before = [row(node) for _, node in walk(ckpt.root) if isinstance(node, LazyTensor)]
    after = [row(node) for _, node in walk(ckptool.open(tmp_path / "out.pth").root) if isinstance(node, LazyTensor)]
    assert before == after


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("mlx.safetensors", "mlx"),
        ("flax.msgpack", "flax"),
        ("onnx.onnx", "onnx"),
        ("paddle.pdparams", "paddle"),
        ("tf1-v1.ckpt", "tensorflow"),
        ("gguf.gguf", "llama.cpp"),
        ("stored.npz", "numpy"),
    ],
)
def test_the_framework_is_stated(name, framework):
    assert opened(name).framework == framework


def test_what_paddle_stores_as_uint16_may_be_bfloat16():
    assert "the file does not say which: w" in opened("paddle-bf16.pdparams").warnings[-1]


def test_a_package_that_is_missing_is_no_damage(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(NotInstalled, match="needs gguf, which is not installed") as raised:
        ckptool.verify(HERE / "gguf.gguf")
    assert raised.value.hint == "pip install gguf"
