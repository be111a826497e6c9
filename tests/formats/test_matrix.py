"""The same model through every format in every direction: equal tensors in the same order with the same ties."""

import itertools

import pytest
from contract import bytes_at, weights_of
from strategies import state_dict_of, tensor_of

import ckptool

#: Format -> options that divide the model among several files.
FORMATS = {
    "torch-zip": {},
    "torch-legacy": {},
    "safetensors": {},
    "sharded-safetensors": {"max_shard_size": 300},
    "sharded-bin": {"max_shard_size": 300},
    "dcp": {"max_shard_size": 1500},
}


def model():
    """A model of several types, with tied, transposed, empty and scalar tensors, and versions in its `_metadata`."""
    shared = tensor_of("float32", (8, 6))
    transposed = tensor_of("bfloat16", (6, 4))
    entries = {
        "embed.weight": shared,
        "layers.0.weight": tensor_of("float16", (16, 8)),
        "layers.0.steps": tensor_of("int64", ()),
        "layers.1.weight": type(transposed)(transposed.storage, transposed.dtype, (4, 6), (1, 4)),
        "layers.1.mask": tensor_of("bool", (5,)),
        "layers.1.none": tensor_of("float32", (0, 3)),
        "head.bias": tensor_of("float64", (7,)),
        "head.weight": shared,
    }
    return state_dict_of(entries, {"": 1, "embed": 1, "layers.1": 2})


def save(ckpt, path, name):
    ckptool.save(ckpt, path, format=name, **FORMATS[name])
    return ckptool.open(path)


@pytest.mark.parametrize(("one", "other"), list(itertools.product(FORMATS, FORMATS)))
def test_a_model_is_the_same_after_any_two_formats(tmp_path, one, other):
    wanted = weights_of(model())
    there = save(model(), tmp_path / "one", one)
    assert there.format == one
    assert weights_of(there) == wanted
    back = save(there, tmp_path / "two", other)
    assert weights_of(back) == wanted
    assert wanted[1] == [["embed.weight", "head.weight"]]
    again = save(back, tmp_path / "three", one)
    assert weights_of(again) == wanted
    if one == other:
        assert bytes_at(tmp_path / "three") == bytes_at(tmp_path / "two")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("world", [1, 4])
def test_what_ranks_saved_is_the_same_in_any_format(ranks, tmp_path, world, name):
    torch = pytest.importorskip("torch")
    expected = torch.load(ranks[world] / "full.pth", weights_only=False)["model"]
    ckpt = ckptool.extract(ckptool.open(ranks[world] / "dcp"), at="model")
    save(ckpt, tmp_path / "x", name)
    found = ckptool.load(tmp_path / "x")
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert all(found[key].dtype == value.dtype for key, value in expected.items())
