"""The library as programs use it: mappings, parts of tensors, arrays of numpy, own names for keys, printed reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from effort import lines
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tensor import LazyTensor
from ckptool.tree import ByteString, Dict

REAL = Path(__file__).parents[1] / "fixtures" / "trained" / "cnn-ddp-full.pth"


@pytest.fixture
def ckpt() -> Checkpoint:
    return ckptool.open(REAL)


def test_a_checkpoint_is_read_as_a_mapping(ckpt: Checkpoint) -> None:
    assert ckpt.keys()[:3] == ["epoch", "model", "optimizer"]
    assert list(ckpt) == ckpt.keys()
    assert len(ckpt) == len(ckpt.items()) == len(ckpt.values())
    assert "model" in ckpt
    assert "absent" not in ckpt
    assert ckpt["epoch"] == 2
    assert ckpt.get("absent", 7) == 7
    assert isinstance(ckpt["model"]["module.conv1.weight"], LazyTensor)
    assert ckpt["optimizer"]["param_groups"][0]["params"][:2] == [0, 1]
    with pytest.raises(KeyError):
        ckpt["absent"]


def test_reading_all_entries_of_a_flat_checkpoint_takes_time_in_proportion_to_their_number() -> None:
    def cost(count: int) -> int:
        flat = Checkpoint(Dict([(f"w{i}", i) for i in range(count)]))
        return lines(lambda: [key in flat for key, _ in flat.items()])

    assert cost(800) < 2.5 * cost(400)


def test_a_key_of_python_2_is_found_as_text() -> None:
    flat = Checkpoint(Dict([(ByteString(b"epoch"), 7)]))
    assert "epoch" in flat
    assert flat["epoch"] == 7


indices = st.one_of(
    st.integers(-5, 4),
    st.slices(5).filter(lambda one: one.step is None or one.step > 0),
)


@given(st.lists(indices, max_size=3), st.integers(0, 3), st.permutations(range(3)))
def test_a_part_of_a_tensor_is_that_of_the_array(picked: list[object], at: int, order: list[int]) -> None:
    array = np.arange(125, dtype=np.int32).reshape(5, 5, 5)
    index = (*picked[:at], ..., *picked[at:])
    node = ckptool.plan({"w": array}, "x.pth")  # which takes arrays as they are
    assert node.format == "torch-zip"
    whole = whole_tensor(array)
    permuted = LazyTensor(
        whole.storage, whole.dtype, tuple(whole.shape[i] for i in order), tuple(whole.stride[i] for i in order)
    )
    assert np.array_equal(np.asarray(permuted[index]), array.transpose(order)[index])


def whole_tensor(array: np.ndarray) -> LazyTensor:
    from ckptool.inert.in_memory import FromMemory

    return FromMemory().leaf(array, "w")


def test_only_the_bytes_of_a_part_are_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    ckptool.save({"w": np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)}, path)
    row = ckptool.open(path).state_dict()["w"][513]
    assert row.source().length == 4096
    assert row.numpy()[0] == 513 * 1024


def test_what_is_no_index_is_refused(ckpt: Checkpoint) -> None:
    tensor = ckpt.state_dict()["module.conv1.weight"]
    for index, error in (
        (99, IndexError),
        ((0,) * 9, IndexError),
        ((..., ...), IndexError),
        ([0, 1], TypeError),
        (slice(None, None, -1), ValueError),
    ):
        with pytest.raises(error):
            tensor[index]


def test_numpy_takes_a_tensor_as_an_array(ckpt: Checkpoint) -> None:
    tensor = ckpt.state_dict()["module.conv1.weight"]
    assert np.asarray(tensor).shape == tuple(tensor.shape)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert len(tensor) == 16
    assert tensor


def test_a_tensor_becomes_one_of_torch(torch, ckpt: Checkpoint) -> None:
    theirs = torch.load(REAL, map_location="cpu", weights_only=False)["model"]
    for key, tensor in ckpt.state_dict().items():
        assert torch.equal(tensor.torch(), theirs[key])
        assert tensor.torch().dtype == theirs[key].dtype


def test_arrays_and_tensors_out_of_files_are_saved_without_torch(tmp_path: Path) -> None:
    program = f"""
import sys, numpy as np, ckptool
weights = ckptool.open({str(REAL)!r}).state_dict()
ckptool.save({{key.upper(): tensor for key, tensor in weights.items()}}, "upper.safetensors")
turned = np.arange(6, dtype=">f4").reshape(2, 3).T
ckptool.save({{"a": turned, "b": np.float32(3), "c": np.zeros((0, 3), "i1")}}, "arrays.pth")
ckptool.save(weights, "again.pth")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    upper = ckptool.open(tmp_path / "upper.safetensors").state_dict()
    assert np.array_equal(upper["MODULE.FC.BIAS"], ckptool.open(REAL).state_dict()["module.fc.bias"])
    arrays = ckptool.open(tmp_path / "arrays.pth").state_dict()
    assert np.asarray(arrays["a"]).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert arrays["c"].shape == (0, 3)
    assert list(ckptool.open(tmp_path / "again.pth").state_dict()) == list(ckptool.open(REAL).state_dict())


def test_an_array_that_no_tensor_can_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(ckptool.CannotCarry, match="names is an array of"):
        ckptool.save({"names": np.array(["a"])}, tmp_path / "out.pth")


def test_a_function_renames_keys(ckpt: Checkpoint) -> None:
    done = ckptool.rename(ckpt, lambda key: key.replace("conv", "c"))
    assert "module.c1.weight" in done.state_dict()
    assert "7 of 16 keys" in done.history[-1] or "4 of 16 keys" in done.history[-1]
    assert list(ckptool.rename({"a.w": whole_tensor(np.ones(2))}, str.upper)) == ["A.W"]
    with pytest.raises(ckptool.KeyCollision):
        ckptool.rename(ckpt, lambda key: "same")
    with pytest.raises(TypeError, match="int"):
        ckptool.rename(ckpt, len)  # type: ignore[arg-type]


def test_names_of_commands_are_names_of_functions() -> None:
    assert ckptool.repair is ckptool.salvage
    assert ckptool.remap is ckptool.map_location
    assert ckptool.extract_weights is ckptool.extract


@pytest.mark.parametrize("name", ["inspect", "scan", "verify", "doctor"])
def test_a_report_prints_as_the_command_does(name: str) -> None:
    report = getattr(ckptool, name)(REAL)
    assert str(report).splitlines()[0].startswith(str(REAL))
    assert len(repr(report)) < 250
    assert report._repr_html_().startswith("<pre>")


def test_a_notebook_shows_tables_of_tensors_without_their_markup(ckpt: Checkpoint) -> None:
    assert "module.conv1.weight</code></td><td>[16, 3, 3, 3]</td>" in ckpt._repr_html_()
    hostile = ckptool.rename(ckpt, lambda key: f"<script>{key}</script>")
    assert "<script>" not in hostile._repr_html_()


def test_a_receipt_is_a_line() -> None:
    assert len(repr(ckptool.plan(ckptool.open(REAL), "x.pth"))) < 200


@pytest.mark.skipif(sys.platform == "win32", reason="paths")
def test_a_file_that_is_absent_is_a_file_that_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ckptool.open(tmp_path / "absent.pth")


def test_what_a_checkpoint_completes_is_described() -> None:
    described = (Path(__file__).parents[1] / "docs" / "library.md").read_text(encoding="utf-8")
    names = [name for name in dir(ckptool.open(REAL)) if not name.startswith("_")]
    assert "state_dict" in names
    assert [name for name in names if not re.search(rf"[.`]{name}\b", described)] == []
