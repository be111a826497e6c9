"""Generators of tensors: written like dicts, with one tensor in memory at a time."""

import weakref

import numpy as np
import pytest

import ckptool

VALUES = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.ones(5, np.int64),
    "empty": np.ones((0, 2)),
}


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_generator_gives_the_file_that_the_dict_gives(tmp_path, name):
    ckptool.save(VALUES, tmp_path / f"dict-{name}")
    ckptool.save(((key, value) for key, value in VALUES.items()), tmp_path / name)
    assert ckptool.diff(tmp_path / f"dict-{name}", tmp_path / name, weights=True).same
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"dict-{name}", name]


def test_memory_holds_one_tensor_at_a_time(tmp_path):
    made = []

    def tensors():
        for number in range(20):
            assert sum(one() is not None for one in made) <= 1
            array = np.ones(1000, np.float32)
            made.append(weakref.ref(array))
            yield f"w{number}", array
            del array

    ckptool.save(tensors(), tmp_path / "w.safetensors")
    assert len(ckptool.open(tmp_path / "w.safetensors").state_dict()) == 20


def test_a_transposed_tensor_out_of_a_file_is_written_in_order(tmp_path):
    ckptool.save({"w": VALUES["a.weight"]}, tmp_path / "in.pth")
    held = ckptool.open(tmp_path / "in.pth").state_dict()["w"]
    ckptool.save(iter([("w", held), ("row", held[1]), ("epoch", 3)]), tmp_path / "out.pth")
    found = ckptool.open(tmp_path / "out.pth")
    assert np.array_equal(found["row"], VALUES["a.weight"][1])
    assert found["epoch"] == 3


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ([("a", np.ones(1)), ("a", np.ones(1))], ckptool.KeyCollision, "'a' comes twice"),
        (["a"], ckptool.RuleError, "a str came where a pair"),
        ([("a", object())], ckptool.CannotCarry, "a is a object"),
    ],
)
def test_what_is_no_tensor_leaves_no_file(tmp_path, given, error, says):
    with pytest.raises(error, match=says):
        ckptool.save(iter(given), tmp_path / "out.pth")
    assert not list(tmp_path.iterdir())


def test_a_target_that_exists_is_found_before_the_first_tensor_is_asked_for(tmp_path):
    (tmp_path / "out.pth").write_bytes(b"mine")

    def tensors():
        raise AssertionError
        yield

    with pytest.raises(ckptool.OutputExists):
        ckptool.save(tensors(), tmp_path / "out.pth")


def test_keys_are_mapped_by_a_function_and_left_out_by_none(tmp_path):
    ckptool.save(VALUES, tmp_path / "in.pth")
    mapped = ckptool.rename(ckptool.open(tmp_path / "in.pth"), lambda key: None if key == "b" else f"net.{key}")
    assert list(mapped.state_dict()) == ["net.a.weight", "net.empty"]
